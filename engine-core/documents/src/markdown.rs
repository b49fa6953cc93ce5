//! Reports as Markdown that fits a comment of a pull request: figures, verdicts, what to know, and the rest folded away.

use crate::{
    Dossier, chart,
    figure::{self, Figure},
    record,
    story::{Gain, Story},
};
use planforge_advice::{advise, bound};
use planforge_report::{
    LayerTime, Report, Roofline, Severity,
    compare::Comparison,
    disturbance,
    format::{bytes, milliseconds, per_second, percent},
};
use planforge_types::shown;

/// Layers in the table of the slowest.
const LAYERS: usize = 12;

/// The text.
pub fn render(dossier: &Dossier<'_>) -> String {
    let mut out = format!("### {}\n\n", words(&dossier.title()));
    if dossier.reports.iter().any(|report| report.simulated) {
        out.push_str("> **SIMULATED**: measured on a scripted device, no number is real\n\n");
    }
    if let Some(comparison) = dossier.comparison {
        out.push_str(&compared(comparison));
    }
    let is_alone = dossier.reports.len() == 1;
    for (index, report) in dossier.reports.iter().enumerate() {
        let label = format!("{}. {}", index + 1, words(&figure::label(report)));
        let portability = dossier.portability.get(index).and_then(Option::as_ref);
        let loss =
            portability.map(|cell| format!("Loss against the device's own engine: {}\n\n", words(&cell.words())));
        let text = format!("{}{}", loss.unwrap_or_default(), single(report, dossier.reports));
        if is_alone {
            out.push_str(&text);
        } else {
            out.push_str(&format!("<details><summary>{label}</summary>\n\n{text}</details>\n\n"));
        }
    }
    if dossier.reports.iter().any(|report| report.wholly_disturbed().is_some()) {
        out.push_str(&format!("{}\n", words(&disturbance::legend(true))));
    }
    out
}

/// A tuning story.
pub fn story(story: &Story<'_>) -> String {
    let mut out = format!("### {}\n\n", words(&story.title()));
    if story.reports.iter().any(|report| report.simulated) {
        out.push_str("> **SIMULATED**: measured on a scripted device, no number is real\n\n");
    }
    let none = || "–".to_owned();
    let rows: Vec<Vec<String>> = (story.rows().iter())
        .map(|row| {
            let told = [row.gain.as_ref().map(Gain::words).unwrap_or_default(), row.remark.clone()];
            let told: Vec<String> = told.iter().filter(|text| !text.is_empty()).map(|text| words(text)).collect();
            let median = |ms: f64| words(&disturbance::marked(milliseconds(ms), row.disturbed));
            vec![
                words(&row.name),
                words(&row.change),
                row.median_ms.map_or_else(none, median),
                row.throughput_per_s.map_or_else(none, per_second),
                if told.is_empty() { none() } else { told.join("; ") },
                row.since_first.map_or_else(none, |times| format!("{times:.2}x")),
            ]
        })
        .collect();
    let columns = ["step", "what was done", "median", "throughput", "over the step before", "over the first"];
    out.push_str(&table(&columns, &[2, 3, 5], &rows));
    for report in story.reports {
        for baseline in &report.baselines {
            out.push_str(&format!("- beside it: {}\n", words(&report.baseline_words(baseline))));
        }
    }
    if let Some(last) = story.last() {
        out.push_str(&format!("\nMeasured on {}.\n", words(&last.device.name)));
    }
    if story.reports.iter().any(|report| report.wholly_disturbed().is_some()) {
        out.push_str(&format!("\n{}\n", words(&disturbance::legend(true))));
    }
    out
}

pub(crate) fn table(columns: &[&str], numeric: &[usize], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let rule: Vec<String> =
        (0..columns.len()).map(|index| if numeric.contains(&index) { "---:" } else { "---" }.to_owned()).collect();
    let heads: Vec<String> = columns.iter().map(|name| (*name).to_owned()).collect();
    let rows: String = rows.iter().map(|cells| line(cells)).collect();
    format!("{}{}{rows}\n", line(&heads), line(&rule))
}

fn compared(comparison: &Comparison) -> String {
    let rows: Vec<Vec<String>> = (comparison.rows.iter().enumerate())
        .map(|(index, row)| {
            let verdict = comparison.against_base(index).map_or_else(|| "base".to_owned(), |pair| pair.verdict_words());
            vec![
                (index + 1).to_string(),
                words(&row.model),
                words(&row.sku),
                words(&row.toolchain),
                words(&row.spec_words()),
                words(&disturbance::marked(milliseconds(row.median_ms), row.wholly_disturbed)),
                milliseconds(row.p99_ms),
                per_second(row.throughput_per_s),
                bytes(row.plan_bytes),
                row.top1.map_or("–".into(), percent),
                words(&verdict),
            ]
        })
        .collect();
    let columns = ["#", "model", "sku", "toolchain", "spec", "median", "p99", "throughput", "plan", "top-1", "verdict"];
    let mut out = table(&columns, &[5, 6, 7, 8, 9], &rows);
    out.push_str("<details><summary>Why the verdicts are what they are</summary>\n\n");
    for pair in &comparison.pairs {
        let (base, other) = (pair.base + 1, pair.other + 1);
        let reason = words(&pair.reason_words());
        out.push_str(&format!("- {other} against {base}: {}: {reason}\n", pair.judged_words()));
    }
    if let Some(basis) = &comparison.basis {
        out.push_str(&format!("\n{}\n", words(&basis.words())));
    }
    out.push_str("\n</details>\n\n");
    out
}

fn single(report: &Report, all: &[Report]) -> String {
    let row = |figure: &Figure| {
        let sure =
            if figure.name == "median latency" { format!(" ({})", figure::sureness(report)) } else { String::new() };
        vec![
            figure.name.to_owned(),
            format!("{}{}", words(&figure.text), words(&sure)),
            figure.basis.words().to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = figure::headline(report).iter().map(row).collect();
    let mut out = table(&["figure", "value", "basis"], &[1], &rows);
    if let Some(line) = chart::spark(report) {
        out.push_str(&format!("Latency: `{line}`\n\n"));
    }
    if let Some(bound) = bound::of_engine(report) {
        out.push_str(&format!("Bound by {}.\n\n", words(&bound.words)));
    }
    let advice = advise(report, all);
    for said in &advice {
        let (gravity, message) = (severity(said.severity), words(&said.message));
        out.push_str(&format!("- {gravity}: {message} ({}). *Try*: {}\n", said.code, words(&said.advice)));
    }
    if !advice.is_empty() {
        out.push('\n');
    }
    for finding in &report.findings {
        let severity = severity(finding.severity);
        out.push_str(&format!("- {severity}: {} ({})\n", words(&finding.message), words(&finding.code)));
    }
    if !report.findings.is_empty() {
        out.push('\n');
    }
    out.push_str(&sweeps(report));
    for baseline in &report.baselines {
        out.push_str(&format!("- beside it: {}\n\n", words(&report.baseline_words(baseline))));
    }
    out.push_str(&layers(report));
    out.push_str("<details><summary>Record</summary>\n\n");
    for part in record::parts(report) {
        let rows: Vec<Vec<String>> = part.lines.iter().map(|(name, text)| vec![words(name), words(text)]).collect();
        out.push_str(&table(&[part.heading, ""], &[], &rows));
    }
    out.push_str("</details>\n\n");
    out
}

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Note => "note",
        Severity::Warning => "**warning**",
        Severity::Error => "**error**",
    }
}

fn sweeps(report: &Report) -> String {
    let mut out = String::new();
    let mark = |value: u32, knee: Option<u32>| if knee == Some(value) { "knee" } else { "" }.to_owned();
    if let Some(sweep) = &report.batches {
        let rows = sweep.points.iter().map(|point| {
            let none = || point.problem.as_deref().map_or("–".to_owned(), words);
            let stats = point.latency_ms.as_ref();
            vec![
                point.batch.to_string(),
                point.throughput_per_s.map_or_else(none, per_second),
                stats.map_or("–".into(), |stats| milliseconds(stats.median)),
                stats.map_or("–".into(), |stats| milliseconds(stats.p99)),
                mark(point.batch, sweep.knee),
            ]
        });
        out.push_str(&table(&["batch", "throughput", "median", "p99", ""], &[0, 1, 2, 3], &rows.collect::<Vec<_>>()));
    }
    if let Some(sweep) = &report.streams {
        let rows = sweep.points.iter().map(|point| {
            vec![
                point.streams.to_string(),
                per_second(point.throughput_per_s),
                milliseconds(point.median_ms),
                milliseconds(point.p99_ms),
                mark(point.streams, sweep.knee),
            ]
        });
        out.push_str(&table(&["streams", "throughput", "median", "p99", ""], &[0, 1, 2, 3], &rows.collect::<Vec<_>>()));
    }
    out
}

fn layers(report: &Report) -> String {
    if report.layers.is_empty() {
        return String::new();
    }
    let total: f64 = report.layers.iter().map(|layer| layer.median_ms).sum();
    let mut sorted: Vec<&LayerTime> = report.layers.iter().collect();
    sorted.sort_by(|a, b| b.median_ms.total_cmp(&a.median_ms));
    let rows = sorted.iter().take(LAYERS).map(|layer| {
        let reached = Roofline::of(layer, report.ceilings.as_ref()).and_then(|line| line.of_ceiling());
        vec![
            words(&layer.name),
            words(&layer.kind),
            words(layer.precision.as_deref().unwrap_or("–")),
            milliseconds(layer.median_ms),
            percent(layer.median_ms / total.max(f64::MIN_POSITIVE)),
            reached.unwrap_or_else(|| "–".into()),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    let (shown, all) = (rows.len(), report.layers.len());
    let columns = ["layer", "kind", "type", "time (measured)", "share", "reached (estimated)"];
    let table = table(&columns, &[3, 4], &rows);
    format!("<details><summary>The slowest {shown} of {all} layers</summary>\n\n{table}</details>\n\n")
}

/// Words from a report: no markup, no mention of anybody, one line.
pub(crate) fn words(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in shown::line(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            // An entity mentions nobody and refers to nothing; a backslash in front would.
            '@' => out.push_str("&#64;"),
            '#' => out.push_str("&#35;"),
            '|' | '`' | '*' | '_' | '[' | ']' | '\\' | '~' | '!' => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_no_markup() {
        assert_eq!(words("a|b *c* `d` <e> @f #1"), "a\\|b \\*c\\* \\`d\\` &lt;e&gt; &#64;f &#35;1");
        assert_eq!(words("two\nlines\u{202e}"), "two\\\\nlines\\\\u{202e}");
    }
}
