//! A sweep as people read it: speed-ups first, then each axis, then the best points.

use super::table;
use planforge_report::{
    Report,
    format::{milliseconds, per_second},
    sweep::{Line, Point, SpeedUp, Sweep},
};
use planforge_types::shown;
use std::collections::BTreeMap;

/// Rows of one axis that are shown; JSON has all.
const LINES_SHOWN: usize = 24;

pub fn render(sweep: &Sweep, reports: &[Report]) -> String {
    let mut text = format!("sweep over {} reports: ", reports.len());
    text.push_str(&match sweep.axes.as_slice() {
        [] => "they differ in nothing that can be swept\n".to_owned(),
        axes => format!("{}\n", axes.join(", ")),
    });
    if !sweep.speed_ups.is_empty() {
        text.push_str(&format!("\n{}", speed_ups(&sweep.speed_ups, reports)));
    }
    let shared: Vec<&str> = sweep.missing.iter().map(String::as_str).collect();
    if !shared.is_empty() && sweep.speed_ups.is_empty() {
        text.push_str(
            "no speed-up: no report has a baseline (--baseline onnxruntime builds one, --beside measures one)\n",
        );
    } else {
        shared.iter().for_each(|line| text.push_str(&format!("{}\n", shown::line(line))));
    }
    for axis in &sweep.axes {
        let lines: Vec<&Line> = sweep.lines.iter().filter(|line| line.axis == *axis).collect();
        if !lines.is_empty() {
            text.push_str(&format!("\n{}", of_axis(axis, &lines, sweep)));
        }
    }
    text.push('\n');
    for (what, best) in [("highest throughput", &sweep.best_throughput), ("lowest median", &sweep.best_latency)] {
        for index in best {
            text.push_str(&format!("{what}: {}\n", shown::line(&point(&sweep.points[*index]))));
        }
    }
    text
}

fn speed_ups(all: &[SpeedUp], reports: &[Report]) -> String {
    let mut rows = table(&["batch", "sku", "spec", "against", "speed-up", "from", "to", "verdict"]);
    for one in all {
        let report = &reports[one.report];
        let threads = report.spec.threads.map(|threads| format!(" {threads}t")).unwrap_or_default();
        let times = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}x"));
        rows.add_row([
            one.batch.to_string(),
            report.sku.to_string(),
            format!("{} {}{threads}", report.toolchain, report.spec.precision),
            one.baseline.clone(),
            times(one.times),
            times(one.times_low),
            times(one.times_high),
            one.verdict_words().to_owned(),
        ]);
    }
    super::render(rows, &[0, 4, 5, 6])
}

fn at(with: &BTreeMap<String, String>) -> String {
    let parts: Vec<String> = with.iter().map(|(name, value)| format!("{name} {value}")).collect();
    if parts.is_empty() { "-".into() } else { parts.join(", ") }
}

fn point(point: &Point) -> String {
    let (median, rate) = (milliseconds(point.median_ms), per_second(point.throughput_per_s));
    format!("{median}, {rate} at {}", at(&point.at))
}

fn of_axis(axis: &str, lines: &[&Line], sweep: &Sweep) -> String {
    let mut rows = table(&[axis, "throughput", "median", "knee", "best", "with"]);
    for line in lines.iter().take(LINES_SHOWN) {
        let points: Vec<&Point> = line.points.iter().map(|index| &sweep.points[*index]).collect();
        let mark = |point: &Point| if point.disturbed { "*" } else { "" };
        let along =
            |of: &dyn Fn(&Point) -> String| points.iter().map(|point| of(point)).collect::<Vec<_>>().join(" / ");
        let dash = || "-".to_owned();
        rows.add_row([
            along(&|point| point.at.get(axis).cloned().unwrap_or_default()),
            along(&|point| per_second(point.throughput_per_s)),
            along(&|point| format!("{}{}", milliseconds(point.median_ms), mark(point))),
            line.knee.clone().unwrap_or_else(dash),
            line.best.clone().unwrap_or_else(dash),
            at(&line.with),
        ]);
    }
    let more = lines.len().saturating_sub(LINES_SHOWN);
    let more = if more > 0 { format!("and {more} more lines along {axis}\n") } else { String::new() };
    format!("{}{more}", super::render(rows, &[]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_report::testing::sample_report;

    #[test]
    fn a_sweep_says_what_each_axis_does() {
        let at = |threads: u32, ms: f64| {
            let mut report = sample_report(ms);
            report.spec.threads = Some(threads);
            report
        };
        let reports = [at(1, 2.0), at(2, 1.0)];
        let text = render(&Sweep::of(&reports, None), &reports);
        assert!(text.contains("sweep over 2 reports: threads") && text.contains("1 / 2"), "{text}");
        assert!(text.contains("no speed-up: no report has a baseline"), "{text}");
        assert!(text.contains("lowest median: 1.010 ms") && text.contains("at threads 2"), "{text}");
    }
}
