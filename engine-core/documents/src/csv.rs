//! Reports as CSV (RFC 4180): one line a figure, so that any program can filter, pivot and plot them.

use crate::{
    Dossier,
    figure::{self, Figure},
};
use planforge_charts::Basis;
use planforge_report::Report;

/// The first line.
pub const HEADER: &str = "report,model,sku,toolchain,precision,batch,section,name,figure,value,unit,basis";

/// The table.
pub fn render(dossier: &Dossier<'_>) -> String {
    let mut out = format!("{HEADER}\r\n");
    for (index, report) in dossier.reports.iter().enumerate() {
        let rows = Rows { number: index + 1, report };
        rows.write(&mut out);
    }
    out
}

struct Rows<'a> {
    number: usize,
    report: &'a Report,
}

impl Rows<'_> {
    fn write(&self, out: &mut String) {
        let report = self.report;
        for figure in figure::headline(report) {
            self.figure(out, "headline", &figure);
        }
        for figure in figure::latency(report) {
            self.figure(out, "latency", &figure);
        }
        for (number, window) in report.windows.iter().enumerate() {
            let state = match (window.tainted.is_empty(), window.kept_tainted) {
                (true, _) => "quiet",
                (false, true) => "disturbed and kept",
                (false, false) => "disturbed and discarded",
            };
            self.row(out, "window", &format!("{} ({state})", number + 1), "median", Some(window.median_ms), "ms", None);
        }
        for point in report.batches.iter().flat_map(|sweep| &sweep.points) {
            let name = point.batch.to_string();
            let stats = point.latency_ms.as_ref();
            self.row(out, "batch", &name, "throughput", point.throughput_per_s, "1/s", None);
            self.row(out, "batch", &name, "median", stats.map(|stats| stats.median), "ms", None);
            self.row(out, "batch", &name, "p99", stats.map(|stats| stats.p99), "ms", None);
        }
        for point in report.streams.iter().flat_map(|sweep| &sweep.points) {
            let name = point.streams.to_string();
            self.row(out, "streams", &name, "throughput", Some(point.throughput_per_s), "1/s", None);
            self.row(out, "streams", &name, "median", Some(point.median_ms), "ms", None);
            self.row(out, "streams", &name, "p99", Some(point.p99_ms), "ms", None);
        }
        for point in &report.points {
            let name = format!("profile {} at {}", point.profile, point.at.name());
            let stats = point.latency_ms.as_ref();
            self.row(out, "profile", &name, "median", stats.map(|stats| stats.median), "ms", None);
            self.row(out, "profile", &name, "throughput", point.throughput_per_s, "1/s", None);
        }
        for layer in &report.layers {
            self.row(out, "layer", &layer.name, "time", Some(layer.median_ms), "ms", None);
            let counted = [("operations", layer.flops, "FLOP"), ("bytes", layer.bytes, "bytes")];
            if let Some(counters) = &layer.counters {
                let percents = [
                    ("counted SM", counters.sm_percent),
                    ("counted memory", counters.memory_percent),
                    ("counted L2", counters.l2_percent),
                    ("counted tensor cores", counters.tensor_percent),
                    ("counted occupancy", counters.occupancy_percent),
                ];
                for (name, percent) in percents {
                    self.row(out, "layer", &layer.name, name, percent, "%", None);
                }
            }
            for (name, count, unit) in counted.into_iter().filter(|(_, count, _)| *count > 0) {
                self.row(out, "layer", &layer.name, name, Some(count as f64), unit, Some(figure::estimate(report)));
            }
        }
    }

    fn figure(&self, out: &mut String, section: &str, figure: &Figure) {
        self.row(out, section, "", figure.name, Some(figure.value), figure.unit, Some(figure.basis));
    }

    /// What was not measured has no line.
    #[expect(clippy::too_many_arguments, reason = "the columns of the table, in their order")]
    fn row(
        &self,
        out: &mut String,
        section: &str,
        name: &str,
        figure: &str,
        value: Option<f64>,
        unit: &str,
        basis: Option<Basis>,
    ) {
        let Some(value) = value else { return };
        let report = self.report;
        let cells = [
            self.number.to_string(),
            cell(&report.model.name),
            cell(figure::measured_on(report).as_str()),
            cell(&report.toolchain.to_string()),
            report.spec.precision.to_string(),
            report.batch.to_string(),
            section.to_owned(),
            cell(name),
            cell(figure),
            value.to_string(),
            unit.to_owned(),
            cell(basis.unwrap_or_else(|| figure::basis(report)).words()),
        ];
        out.push_str(&cells.join(","));
        out.push_str("\r\n");
    }
}

/// A text as one cell. What a spreadsheet would compute, or take as a command, begins with an apostrophe.
fn cell(text: &str) -> String {
    let text = planforge_types::shown::line(text);
    let guard = if text.starts_with(['=', '+', '-', '@']) { "'" } else { "" };
    let text = format!("{guard}{text}");
    if text.contains([',', '"', '\n', '\r']) || !guard.is_empty() {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_text_whatever_they_hold() {
        let cells = ["plain", "a,b", "say \"so\"", "=1+1", "-x", "two\nlines"].map(cell);
        assert_eq!(cells, ["plain", "\"a,b\"", "\"say \"\"so\"\"\"", "\"'=1+1\"", "\"'-x\"", "two\\nlines"]);
    }
}
