//! The device's state around the windows.

use super::{NOT_RECORDED, line, or_not};
use crate::figure;
use planforge_report::{Report, Seen, Spread};
use planforge_types::telemetry::TelemetrySample;

/// One figure of a sample, in words.
type Reading<'a> = &'a dyn Fn(&TelemetrySample) -> Option<String>;

/// Before and after, where at least one of the two is known, and what was seen between them.
pub(super) fn lines(report: &Report) -> Vec<(String, String)> {
    let (before, after) = (&report.telemetry.before, &report.telemetry.after);
    let both = |name: &str, of: Reading<'_>| {
        let (from, to) = (of(before), of(after));
        let told = from.is_some() || to.is_some();
        let text = format!("{}, then {}", or_not(from, |text| text), or_not(to, |text| text));
        told.then(|| line(name, text))
    };
    let readings: [(&str, Reading<'_>); 9] = [
        ("SM clock", &|s| s.sm_clock_mhz.map(|mhz| format!("{mhz} MHz"))),
        ("memory clock", &|s| s.memory_clock_mhz.map(|mhz| format!("{mhz} MHz"))),
        ("processor clock", &|s| s.cpu_mhz.map(|mhz| format!("{mhz} MHz"))),
        ("temperature", &|s| s.temperature_c.map(|c| format!("{c:.0} °C"))),
        ("power", &|s| s.power_w.map(|watt| format!("{watt:.0} W"))),
        ("power limit", &|s| s.power_limit_w.map(|watt| format!("{watt:.0} W"))),
        ("utilisation", &|s| s.utilization_percent.map(|percent| format!("{percent:.0} %"))),
        ("memory in use", &|s| s.memory_used_mib.map(|mib| format!("{mib} MiB"))),
        ("load average", &|s| s.load_1m.map(|load| format!("{load:.2}"))),
    ];
    let mut lines: Vec<_> = readings.into_iter().filter_map(|(name, of)| both(name, of)).collect();
    if lines.is_empty() {
        lines.push(line("state", NOT_RECORDED.into()));
    }
    match &report.telemetry.seen {
        Some(seen) => lines.extend(over_windows(seen)),
        None => lines.push(line("over the windows", format!("{NOT_RECORDED}: an older version measured"))),
    }
    lines.push(line("throttled", throttled(report)));
    lines.push(line("energy", figure::energy_words(report)));
    let seen = report.telemetry.seen.iter().flat_map(|seen| &seen.foreign_processes);
    let sharing = before.foreign_processes.iter().chain(&after.foreign_processes).chain(seen);
    let passed = after.passed_processes.iter().map(|process| (process.pid, &process.name));
    let mut others: Vec<String> = sharing
        .map(|process| (process.pid, &process.name))
        .chain(passed)
        .map(|(pid, name)| format!("{} ({pid})", if name.is_empty() { "unknown" } else { name }))
        .collect();
    others.sort_unstable();
    others.dedup();
    lines.push(line("other processes", if others.is_empty() { "none seen".into() } else { others.join(", ") }));
    lines
}

fn over_windows(seen: &Seen) -> Vec<(String, String)> {
    let mut lines = vec![line("readings", format!("{}, none inside a window", seen.readings))];
    let spreads = [
        ("SM clock over the windows", seen.sm_clock_mhz, "MHz"),
        ("memory clock over the windows", seen.memory_clock_mhz, "MHz"),
        ("processor clock over the windows", seen.cpu_mhz, "MHz"),
        ("temperature over the windows", seen.temperature_c, "°C"),
        ("power over the windows", seen.power_w, "W"),
        ("utilisation over the windows", seen.utilization_percent, "%"),
    ];
    let words = |Spread { min, mean, max }: Spread, unit: &str| {
        format!("{min:.0} {unit} least, {mean:.0} {unit} mean, {max:.0} {unit} most")
    };
    let told = spreads.into_iter().filter_map(|(name, spread, unit)| Some(line(name, words(spread?, unit))));
    lines.extend(told);
    let outside = match (seen.outside_utilization_percent, seen.others_outside_percent) {
        (Some(percent), _) => format!("{percent:.0} % of the device, before the warm-up"),
        (None, Some(percent)) => format!("{percent:.1} % of the processors by others, during the warm-up"),
        (None, None) => "not available: the device does not tell".into(),
    };
    lines.push(line("utilisation outside of windows", outside));
    lines.extend(
        seen.others_percent
            .map(|percent| line("used by others meanwhile", format!("{percent:.1} % of the processors"))),
    );
    lines
}

fn throttled(report: &Report) -> String {
    let pair = &report.telemetry;
    let Some(seen) = &pair.seen else {
        let reasons: Vec<&str> = pair.before.throttle.iter().chain(&pair.after.throttle).map(String::as_str).collect();
        return if reasons.is_empty() { "no".into() } else { reasons.join(", ") };
    };
    if report.device.gpu.is_none() {
        return "not available: a CPU's kernel does not tell; its pace is taken instead".into();
    }
    let reason = |(name, readings): (&String, &u32)| format!("{name} in {readings} of {} readings", seen.readings);
    let reasons: Vec<String> = seen.throttle.iter().map(reason).collect();
    if reasons.is_empty() { "no".into() } else { reasons.join(", ") }
}
