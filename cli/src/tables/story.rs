//! A tuning story on one screen.

use planforge_documents::story::{Gain, Row, Story};
use planforge_report::{
    disturbance,
    format::{milliseconds, per_second},
};

/// The steps below each other, and what stood beside them.
pub fn render(story: &Story<'_>) -> String {
    let mut text = String::new();
    if story.reports.iter().any(|report| report.simulated) {
        text.push_str("SIMULATED: measured on a scripted device, no number is real\n");
    }
    text.push_str(&format!("{}\n\n", story.title()));
    let mut table =
        super::table(&["step", "what was done", "median", "throughput", "over the step before", "over the first"]);
    let rows = story.rows();
    table.add_rows(rows.iter().map(cells));
    text.push_str(&super::render(table, &[2, 3, 5]));
    for report in story.reports {
        for baseline in &report.baselines {
            text.push_str(&format!("\nbeside it: {}\n", report.baseline_words(baseline)));
        }
    }
    if rows.iter().any(|row| row.disturbed) {
        text.push_str(&format!("\n{} {}\n", disturbance::MARK, disturbance::MEANING));
    }
    text
}

fn cells(row: &Row) -> [String; 6] {
    let none = || "-".to_owned();
    let told = [row.gain.as_ref().map(Gain::words).unwrap_or_default(), row.remark.clone()];
    let told: Vec<&str> = told.iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
    [
        row.name.clone(),
        row.change.clone(),
        row.median_ms.map_or_else(none, |ms| disturbance::marked(milliseconds(ms), row.disturbed)),
        row.throughput_per_s.map_or_else(none, per_second),
        if told.is_empty() { none() } else { told.join("; ") },
        row.since_first.map_or_else(none, |times| format!("{times:.2}x")),
    ]
}
