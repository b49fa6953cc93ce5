//! A long run in slices: whether it drifts, grows or is held down.
//!
//! Each slice is a run of its own, and keeps its figures alone, so that hours take no memory. The device's state, resident
//! memory and open descriptors are read between slices. What is found compares the last quarter of the slices with the
//! first, and looks for changes of the level as `history` does; slices that something disturbed are left out of both.

use super::{arrivals::Arrivals, rig::Rig};
use planforge_device::telemetry::{Telemetry, contention};
use planforge_report::{
    Finding,
    format::{bytes, milliseconds},
    load::{LoadPoint, Slice, Soak},
};
use planforge_stats::{change::changes, median};
use planforge_types::{BackendError, telemetry::TelemetrySample};
use std::{
    fs,
    time::{Duration, Instant},
};

/// Slices that a soak of any length is cut into, where they are long enough.
const SLICES: u32 = 120;
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// Slices below which a first and a last quarter say nothing.
const LEAST_SLICES: usize = 8;

/// Share of the pairs of an early and a late slice that have to agree.
const AGREE: f64 = 0.95;

/// Growth that matters: of a latency, and of memory.
const GREATER: f64 = 0.02;
const LEAST_GROWTH_BYTES: u64 = 1 << 20;

/// How slices are run.
#[derive(Clone, Copy, Debug)]
pub struct SoakConfig {
    pub length: Duration,
    pub rate_per_s: Option<f64>,
    pub seed: u64,
    /// Threads of all instances together: decides how much waiting counts as disturbance.
    pub threads: u32,
}

/// How long each slice of a soak is.
pub fn slice_length(length: Duration) -> Duration {
    (length / SLICES).clamp(SHORTEST, LONGEST).min(length)
}

/// Runs for as long as `config` says; `told` hears of every slice.
///
/// # Errors
///
/// When an instance fails, the device is lost, or the work was cancelled.
pub fn soak(
    rig: &Rig<'_>,
    telemetry: &mut dyn Telemetry,
    config: &SoakConfig,
    told: &mut dyn FnMut(&Slice),
) -> Result<(Soak, Vec<Finding>), BackendError> {
    let length = slice_length(config.length);
    let began = Instant::now();
    let mut soak = Soak { slice_ms: length.as_secs_f64() * 1e3, slices: Vec::new() };
    let mut before = telemetry.sample();
    let mut best_pace = rig.pace_ns();
    while began.elapsed() < config.length {
        let at_ms = began.elapsed().as_secs_f64() * 1e3;
        let arrivals = match config.rate_per_s {
            // Each slice has arrivals of its own.
            Some(rate) => Arrivals::poisson(rate, length, config.seed.wrapping_add(soak.slices.len() as u64)),
            None => Arrivals::closed(length),
        };
        let (served, unserved) = rig.serve(arrivals)?;
        let after = telemetry.sample();
        if let Some(reason) = contention::device_lost(&before, &after) {
            return Err(BackendError::device_lost(&reason));
        }
        let pace_ns = rig.pace_ns();
        best_pace = best_pace.into_iter().chain(pace_ns).reduce(f64::min);
        let mut disturbed = contention::assess(&before, &after, soak.slice_ms, config.threads);
        disturbed.extend(best_pace.zip(pace_ns).and_then(|(best, pace)| contention::slow_cores(best, pace)));
        let point = LoadPoint::of(&served, unserved, config.rate_per_s, soak.slice_ms, rig.instances());
        let slice = slice(at_ms, point, pace_ns, &after, disturbed);
        told(&slice);
        soak.slices.push(slice);
        before = after;
    }
    let findings = findings(&soak);
    Ok((soak, findings))
}

fn slice(
    at_ms: f64,
    point: Option<LoadPoint>,
    pace_ns: Option<f64>,
    state: &TelemetrySample,
    disturbed: Vec<String>,
) -> Slice {
    let (requests, served_per_s, latency_ms) =
        point.map_or_else(Default::default, |point| (point.requests, point.served_per_s, point.latency_ms));
    Slice {
        at_ms,
        requests,
        served_per_s,
        latency_ms,
        resident_bytes: resident_bytes(),
        device_memory_mib: state.memory_used_mib,
        descriptors: descriptors(),
        pace_ns,
        clock_mhz: state.sm_clock_mhz.or(state.cpu_mhz),
        temperature_c: state.temperature_c,
        throttle: state.throttle.clone(),
        disturbed,
    }
}

/// Resident memory of this process now, as the kernel counts it.
fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// Open descriptors of this process.
fn descriptors() -> Option<u64> {
    // Reading the folder opens it.
    Some((fs::read_dir("/proc/self/fd").ok()?.count() as u64).saturating_sub(1))
}

/// What became of a soak.
pub fn findings(soak: &Soak) -> Vec<Finding> {
    let slices = &soak.slices;
    let quiet: Vec<&Slice> = slices.iter().filter(|slice| slice.disturbed.is_empty() && slice.requests > 0).collect();
    let mut found = Vec::new();
    let disturbed = slices.len() - quiet.len();
    if disturbed > 0 {
        let mut reasons: Vec<&str> = slices.iter().flat_map(|slice| &slice.disturbed).map(|why| kind(why)).collect();
        reasons.sort_unstable();
        reasons.dedup();
        let reasons = if reasons.is_empty() { "no request was served".to_owned() } else { reasons.join(", ") };
        found.push(Finding::warning(
            "soak-disturbed",
            format!("{disturbed} of {} slices say nothing of the engine: {reasons}", slices.len()),
        ));
    }
    let throttled = slices.iter().filter(|slice| !slice.throttle.is_empty()).count();
    if throttled > 0 {
        let mut reasons: Vec<&str> = slices.iter().flat_map(|slice| &slice.throttle).map(String::as_str).collect();
        reasons.sort_unstable();
        reasons.dedup();
        let message =
            format!("clocks were held down after {throttled} of {} slices: {}", slices.len(), reasons.join(", "));
        found.push(Finding::warning("throttled", message));
    }
    if quiet.len() < LEAST_SLICES {
        let message = format!("{} quiet slices are too few to tell a drift; it takes {LEAST_SLICES}", quiet.len());
        found.push(Finding::note("soak-short", message));
    } else {
        found.extend(latency(&quiet, "drift", "median latency", |slice| slice.latency_ms.median));
        found.extend(latency(&quiet, "tail-drift", "99th percentile", |slice| slice.latency_ms.p99));
    }
    // Memory and descriptors do not care who used the processors.
    if slices.len() >= LEAST_SLICES {
        found.extend(growth(slices, soak));
    }
    found
}

fn kind(reason: &str) -> &str {
    reason.split(':').next().unwrap_or(reason)
}

/// The first and the last quarter of a series.
fn quarters<T>(series: &[T]) -> (&[T], &[T]) {
    let quarter = (series.len() / 4).max(1);
    (&series[..quarter], &series[series.len() - quarter..])
}

/// A latency that is another at the end than at the beginning, or changed its level meanwhile.
fn latency(slices: &[&Slice], code: &str, what: &str, figure: fn(&Slice) -> f64) -> Option<Finding> {
    let values: Vec<f64> = slices.iter().map(|slice| figure(slice)).collect();
    let minute = |slice: &Slice| slice.at_ms / 60_000.0;
    if let Some(change) = changes(&values).last() {
        let percent = (change.ratio() - 1.0) * 100.0;
        let (before, after) = (milliseconds(change.before), milliseconds(change.after));
        let at = minute(slices[change.first]);
        return Some(Finding::warning(
            code,
            format!("the {what} went from {before} to {after} ({percent:+.1} %) at minute {at:.1}"),
        ));
    }
    let (early, late) = quarters(&values);
    let pairs = (early.len() * late.len()) as f64;
    let above = early.iter().map(|a| late.iter().filter(|b| *b > a).count()).sum::<usize>() as f64 / pairs;
    let (from, to) = (median(early), median(late));
    let ratio = to / from;
    let is_drift = (above >= AGREE && ratio > 1.0 + GREATER) || (above <= 1.0 - AGREE && ratio < 1.0 / (1.0 + GREATER));
    is_drift.then(|| {
        let (from, to, percent) = (milliseconds(from), milliseconds(to), (ratio - 1.0) * 100.0);
        Finding::warning(code, format!("the {what} drifted from {from} to {to} ({percent:+.1} %) over the run"))
    })
}

/// What only ever grew: every late value above every early one.
fn growth(slices: &[Slice], soak: &Soak) -> Vec<Finding> {
    let hours = |from: usize, to: usize| ((slices[to].at_ms - slices[from].at_ms) / 3_600_000.0).max(f64::MIN_POSITIVE);
    let grown = |figure: fn(&Slice) -> Option<u64>| -> Option<(u64, u64)> {
        let values: Vec<u64> = slices.iter().map(figure).collect::<Option<_>>()?;
        let (early, late) = quarters(&values);
        let (most, least) = (early.iter().copied().max()?, late.iter().copied().min()?);
        (least > most).then_some((most, late.iter().copied().max()?))
    };
    let over = hours(0, slices.len() - 1) + soak.slice_ms / 3_600_000.0;
    let mut found = Vec::new();
    if let Some((from, to)) = grown(|slice| slice.resident_bytes)
        && to - from >= LEAST_GROWTH_BYTES.max((from as f64 * GREATER) as u64)
    {
        let rate = bytes(((to - from) as f64 / over) as u64);
        let message = format!("resident memory grew from {} to {}, {rate} an hour", bytes(from), bytes(to));
        found.push(Finding::warning("memory-growth", message));
    }
    if let Some((from, to)) = grown(|slice| slice.descriptors) {
        found.push(Finding::warning("descriptor-growth", format!("open descriptors grew from {from} to {to}")));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::rig::{tests::timed, with_rig};
    use planforge_backend::Cancel;
    use planforge_report::load::Tail;

    fn slices(change: impl Fn(usize, &mut Slice)) -> Soak {
        let slice = |index: usize| {
            let noise = 1.0 + 0.003 * ((index * 7 % 11) as f64 / 11.0);
            let latency_ms = Tail { median: noise, p99: 1.2 * noise, ..Tail::default() };
            let mut slice = Slice {
                at_ms: index as f64 * 1000.0,
                requests: 1000,
                latency_ms,
                resident_bytes: Some((100 << 20) + ((index % 3) << 12) as u64),
                descriptors: Some(12),
                ..Slice::default()
            };
            change(index, &mut slice);
            slice
        };
        Soak { slice_ms: 1000.0, slices: (0..60).map(slice).collect() }
    }

    fn codes(soak: &Soak) -> Vec<String> {
        findings(soak).into_iter().map(|finding| finding.code).collect()
    }

    #[test]
    fn a_calm_run_finds_nothing() {
        assert_eq!(codes(&slices(|_, _| {})), Vec::<String>::new());
    }

    #[test]
    fn drift_tail_memory_descriptors_and_throttling_are_each_found() {
        let drift = slices(|index, slice| slice.latency_ms.median *= 1.0 + 0.001 * index as f64);
        assert!(codes(&drift).contains(&"drift".into()), "{:?}", findings(&drift));
        let step = slices(|index, slice| slice.latency_ms.p99 *= if index >= 30 { 1.3 } else { 1.0 });
        let said = findings(&step);
        assert!(said[0].code == "tail-drift" && said[0].message.contains("(+30.0 %) at minute 0.5"), "{said:?}");
        let leak = slices(|index, slice| slice.resident_bytes = Some((100 + index as u64) << 20));
        let said = findings(&leak);
        assert!(said[0].code == "memory-growth" && said[0].message.contains("an hour"), "{said:?}");
        // What goes up once and stays is no leak of anything that matters.
        let once = slices(|index, slice| slice.resident_bytes = Some((100 << 20) + u64::from(index > 2) * 8192));
        assert_eq!(codes(&once), Vec::<String>::new());
        assert_eq!(codes(&slices(|index, slice| slice.descriptors = Some(index as u64))), ["descriptor-growth"]);
        assert_eq!(
            codes(&slices(|index, slice| slice.throttle.extend((index == 9).then(|| "thermal".into())))),
            ["throttled"]
        );
    }

    #[test]
    fn disturbed_slices_are_told_and_judged_by_nobody() {
        let busy = slices(|index, slice| {
            if index >= 40 {
                slice.latency_ms.median *= 2.0;
                slice.disturbed.push("other processes used: 60 % of the processors".into());
            }
        });
        let said = findings(&busy);
        assert_eq!(said.len(), 1, "{said:?}");
        assert_eq!(said[0].message, "20 of 60 slices say nothing of the engine: other processes used");
        let few = slices(|index, slice| slice.requests = u64::from(index < 3));
        assert_eq!(codes(&few), ["soak-disturbed", "soak-short"]);
    }

    #[test]
    fn a_soak_is_cut_into_slices_that_say_how_the_process_does() {
        assert_eq!(slice_length(Duration::from_secs(1800)), Duration::from_secs(15));
        assert_eq!(slice_length(Duration::from_secs(10)), Duration::from_secs(1));
        let config = SoakConfig { length: Duration::from_millis(300), rate_per_s: Some(200.0), seed: 1, threads: 1 };
        let mut heard = 0;
        let (soak, _) = with_rig(1, &timed, &Cancel::default(), |rig| {
            let mut telemetry = planforge_device::telemetry::CpuTelemetry::default();
            soak(rig, &mut telemetry, &config, &mut |_| heard += 1)
        })
        .unwrap();
        assert!(heard == soak.slices.len() && heard > 0, "{heard}");
        let slice = &soak.slices[0];
        assert!(slice.requests > 0 && slice.resident_bytes > Some(0) && slice.descriptors > Some(0), "{slice:?}");
    }
}
