//! An engine under load, as people read it.

use super::{duration, table};
use planforge_report::{
    format::{bytes, milliseconds, percent},
    load::{LoadPoint, LoadReport, Slice, Soak},
};
use planforge_types::shown;

/// Slices of a soak that are shown, evenly spread; JSON has all.
const SLICES_SHOWN: usize = 12;

/// Runs, what they answer, and what to know of them.
pub fn render(report: &LoadReport) -> String {
    let threads = report.threads.map(|threads| format!(" of {threads} threads")).unwrap_or_default();
    let head = format!(
        "{} for {} with {}, {} b{}: {} instances{threads}",
        report.model, report.sku, report.toolchain, report.precision, report.batch, report.concurrency
    );
    let mut text = format!("{}\n", shown::line(&head));
    if !report.points.is_empty() {
        text.push_str(&points(&report.points));
        text.push_str("latencies count from when each request was to arrive, waiting included\n");
    }
    if let Some(found) = &report.objective {
        let words = found.objective.words();
        let capacity = format!("{:.1} requests/s as fast as it goes", found.capacity_per_s);
        text.push_str(&match (found.rate_per_s, found.broken_at_per_s) {
            (Some(rate), Some(broken)) => {
                format!("{rate:.1} requests/s keep a {words}; {broken:.1} break it ({capacity})\n")
            }
            (Some(rate), None) => {
                format!("{rate:.1} requests/s keep a {words}, and none that was tried breaks it ({capacity})\n")
            }
            (None, _) => {
                let least = found.objective.figure.least_requests();
                format!("no rate at which a run has {least} requests keeps a {words} ({capacity}); --duration makes runs longer\n")
            }
        });
    }
    if let Some(soak) = &report.soak {
        text.push_str(&slices(soak));
    }
    for finding in &report.findings {
        text.push_str(&format!("{}\n", shown::line(&format!("{}: {}", finding.code, finding.message))));
    }
    text
}

fn points(points: &[LoadPoint]) -> String {
    let columns =
        ["rate", "for", "requests", "served/s", "median", "p90", "p99", "p99.9", "max", "execution", "busy", ""];
    let mut rows = table(&columns);
    for point in points {
        let tail = &point.latency_ms;
        let marks = [
            point.fell_behind.then(|| match point.unserved {
                0 => "fell behind".to_owned(),
                given_up => format!("fell behind, {given_up} given up"),
            }),
            (!point.disturbed.is_empty()).then(|| "disturbed".to_owned()),
        ];
        rows.add_row([
            point.rate_per_s.map_or_else(|| "closed".to_owned(), |rate| format!("{rate:.1}/s")),
            duration(point.duration_ms as u64),
            point.requests.to_string(),
            format!("{:.1}", point.served_per_s),
            milliseconds(tail.median),
            milliseconds(tail.p90),
            milliseconds(tail.p99),
            milliseconds(tail.p999),
            milliseconds(tail.max),
            milliseconds(point.service_ms.median),
            percent(point.busy_share),
            marks.into_iter().flatten().collect::<Vec<_>>().join(", "),
        ]);
    }
    super::render(rows, &(0..columns.len() - 1).collect::<Vec<_>>())
}

fn slices(soak: &Soak) -> String {
    let columns =
        ["at", "requests", "served/s", "median", "p99", "resident", "descriptors", "clock", "temperature", ""];
    let mut rows = table(&columns);
    let count = soak.slices.len();
    let step = count.div_ceil(SLICES_SHOWN).max(1);
    let dash = || "-".to_owned();
    let shown: Vec<&Slice> = soak.slices.iter().step_by(step).collect();
    for slice in &shown {
        let mut marks: Vec<&str> = slice.throttle.iter().map(String::as_str).collect();
        marks.extend((!slice.disturbed.is_empty()).then_some("disturbed"));
        rows.add_row([
            duration(slice.at_ms as u64),
            slice.requests.to_string(),
            format!("{:.1}", slice.served_per_s),
            milliseconds(slice.latency_ms.median),
            milliseconds(slice.latency_ms.p99),
            slice.resident_bytes.map_or_else(dash, bytes),
            slice.descriptors.map_or_else(dash, |count| count.to_string()),
            slice.clock_mhz.map_or_else(dash, |mhz| format!("{mhz} MHz")),
            slice.temperature_c.map_or_else(dash, |degrees| format!("{degrees:.0} C")),
            marks.join(", "),
        ]);
    }
    let seconds = soak.slice_ms / 1e3;
    let note = format!("{} of {count} slices of {seconds:.0} s\n", shown.len());
    format!("{}{note}", super::render(rows, &(0..columns.len() - 1).collect::<Vec<_>>()))
}
