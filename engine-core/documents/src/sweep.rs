//! A sweep as a document: its own section first, then the reports that it is made of.

use crate::{Dossier, markdown};
use planforge_report::{
    Report,
    format::{milliseconds, per_second},
    sweep::{Line, Sweep},
};

/// A comment of a pull request.
pub fn markdown(dossier: &Dossier<'_>, sweep: &Sweep) -> String {
    let rows: Vec<Vec<String>> = speed_ups(dossier.reports, sweep)
        .into_iter()
        .map(|row| row.into_iter().map(|cell| markdown::words(&cell)).collect())
        .collect();
    let mut out = "### Speed-up against the baseline\n\n".to_owned();
    out.push_str(&markdown::table(&SPEED_UP_COLUMNS, &[0, 4], &rows));
    for line in best(sweep) {
        out.push_str(&format!("- {}\n", markdown::words(&line)));
    }
    for line in sweep.lines.iter().filter(|line| line.best.is_some()) {
        out.push_str(&format!("- {}\n", markdown::words(&line_words(line))));
    }
    format!("{out}\n{}", markdown::render(dossier))
}

/// Of [`speed_ups`].
pub(crate) const SPEED_UP_COLUMNS: [&str; 6] = ["batch", "device kind", "engine", "against", "speed-up", "verdict"];

/// How engines stand to their baselines, a row each.
pub(crate) fn speed_ups(reports: &[Report], sweep: &Sweep) -> Vec<Vec<String>> {
    let row = |one: &planforge_report::sweep::SpeedUp| {
        let report = &reports[one.report];
        let bounds = one.times_low.zip(one.times_high).map(|(low, high)| format!(" ({low:.2} to {high:.2})"));
        let mark = if one.imported { " (imported)" } else { "" };
        let times = one.times.map(|times| format!("{times:.2}x{}{mark}", bounds.unwrap_or_default()));
        vec![
            one.batch.to_string(),
            report.sku.to_string(),
            format!("{} {}", report.toolchain, report.spec.precision),
            one.baseline.clone(),
            times.unwrap_or_else(|| "–".into()),
            one.verdict_words().to_owned(),
        ]
    };
    sweep.speed_ups.iter().map(row).collect()
}

/// The best points, in words.
pub(crate) fn best(sweep: &Sweep) -> Vec<String> {
    let point = |index: &usize| {
        let point = &sweep.points[*index];
        let at: Vec<String> = point.at.iter().map(|(name, value)| format!("{name} {value}")).collect();
        let (median, rate) = (milliseconds(point.median_ms), per_second(point.throughput_per_s));
        format!("{median}, {rate} at {} (report {})", at.join(", "), point.report + 1)
    };
    let named = |what: &str, best: &[usize]| -> Vec<String> {
        best.iter().map(|index| format!("{what}: {}", point(index))).collect()
    };
    [named("highest throughput", &sweep.best_throughput), named("lowest median", &sweep.best_latency)].concat()
}

/// What an axis does along a line, in words.
pub(crate) fn line_words(line: &Line) -> String {
    let with: Vec<String> = line.with.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let with = if with.is_empty() { String::new() } else { format!(" ({})", with.join(", ")) };
    let knee = line.knee.as_ref().map(|knee| format!(", knee at {knee}")).unwrap_or_default();
    format!("{}{with}: best at {}{knee}", line.axis, line.best.as_deref().unwrap_or("no value"))
}
