//! A report on one screen: what was measured, the numbers, and what to know before trusting them.

use super::{
    Finding, Report, Severity, StopReason,
    format::{bytes, milliseconds, per_second, percent},
};
use crate::measure::relative_half_width;
use comfy_table::{ContentArrangement, Table, presets::NOTHING};

/// Layers that are shown; the JSON has all.
const SHOWN_LAYERS: usize = 8;

/// Longest layer name and finding shown.
const SHOWN_CHARS: usize = 160;

impl Report {
    /// The report as plain text, one fact a line.
    pub fn render(&self) -> String {
        let mut table = Table::new();
        table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Disabled).force_no_tty();
        for (name, text) in self.lines() {
            table.add_row([name.to_owned(), text]);
        }
        if let Some(first) = table.column_mut(0) {
            first.set_padding((0, 1));
        }
        let mut text = String::new();
        if self.simulated {
            text.push_str("SIMULATED: measured on a scripted device, no number is real\n");
        }
        for line in table.to_string().lines() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        let stats = &self.latency_ms;
        let mut lines = vec![
            ("model", format!("{} ({})", self.model.name, self.model.digest.short())),
            ("engine", format!("{} for {}, {}", self.plan.digest.short(), self.sku, self.built_with())),
            ("device", format!("{} on {}", self.device.name, self.provenance.agent)),
        ];
        if let Some(foreign) = &self.foreign {
            lines.push(("foreign", format!("built for {}, measured on {}", foreign.built_for, foreign.measured_on)));
        }
        lines.push((
            "latency",
            format!(
                "{} median (±{:.1} %), p90 {}, p95 {}, p99 {}, max {}",
                milliseconds(stats.median),
                (relative_half_width(stats) * 100.0).min(999.9),
                milliseconds(stats.p90),
                milliseconds(stats.p95),
                milliseconds(stats.p99),
                milliseconds(stats.max),
            ),
        ));
        lines.push(("throughput", format!("{} at batch {}", per_second(self.throughput_per_s), self.batch)));
        lines.push(("samples", self.samples_line()));
        lines.push(("size", self.size_line()));
        if let Some(build_ms) = self.build_ms {
            lines.push(("build", milliseconds(build_ms)));
        }
        lines.push(("outputs", self.outputs_line()));
        if let Some(accuracy) = &self.accuracy {
            let reference = accuracy.reference_top1.map(|top1| format!(", reference {}", percent(top1)));
            let reference = reference.unwrap_or_default();
            lines.push(("accuracy", format!("{} top-1 of {} rows{reference}", percent(accuracy.top1), accuracy.rows)));
        }
        lines.extend(self.slowest_layers());
        lines.extend(self.findings.iter().map(|finding| ("finding", finding_line(finding))));
        lines
    }

    fn built_with(&self) -> String {
        let precision = format!("{:?}", self.spec.precision).to_lowercase();
        let threads = match self.spec.threads {
            Some(1) => ", 1 thread".to_owned(),
            Some(count) => format!(", {count} threads"),
            None => String::new(),
        };
        format!("{}, {precision}{threads}", self.toolchain)
    }

    fn samples_line(&self) -> String {
        let discarded = self.windows.len() - self.counted_windows().len();
        let stop = match self.experiment.stop {
            StopReason::Confident => "until confident",
            StopReason::BudgetSpent => "until the budget was spent",
            StopReason::SampleLimit => "up to the sample limit",
        };
        format!(
            "{} in {} windows, {discarded} discarded, {stop} ({})",
            self.latency_ms.count,
            self.windows.len() - discarded,
            milliseconds(self.experiment.elapsed_ms)
        )
    }

    fn size_line(&self) -> String {
        let peak = self.peak_memory_bytes.map(|peak| format!(", worker at most {}", bytes(peak))).unwrap_or_default();
        format!("plan {}, engine {} in memory{peak}", bytes(self.plan.bytes), bytes(self.engine_memory_bytes))
    }

    fn outputs_line(&self) -> String {
        match &self.numerics {
            Some(numerics) => match &numerics.skipped {
                Some(reason) => format!("not compared: {}", cut(reason)),
                None => format!(
                    "{}: off by {:.1e} of their scale, {:.0e} allowed ({})",
                    if numerics.passed { "right" } else { "WRONG" },
                    numerics.max_error,
                    numerics.threshold,
                    numerics.oracle
                ),
            },
            None => "not compared".into(),
        }
    }

    fn slowest_layers(&self) -> Vec<(&'static str, String)> {
        let total_ms: f64 = self.layers.iter().map(|layer| layer.median_ms).sum();
        let mut layers: Vec<_> = self.layers.iter().collect();
        layers.sort_by(|a, b| b.median_ms.total_cmp(&a.median_ms));
        let line = |layer: &&crate::backend::LayerTime| {
            let share = 100.0 * layer.median_ms / total_ms.max(f64::MIN_POSITIVE);
            let name = cut(&layer.name);
            format!("{share:4.1} %  {}  {} by {}  {name}", milliseconds(layer.median_ms), layer.kind, layer.tactic)
        };
        layers.iter().take(SHOWN_LAYERS).map(|layer| ("layer", line(layer))).collect()
    }
}

fn finding_line(finding: &Finding) -> String {
    let severity = match finding.severity {
        Severity::Note => "note",
        Severity::Warning => "warning",
        Severity::Error => "error",
    };
    format!("{severity}: {} ({})", cut(&finding.message), finding.code)
}

/// The first part of a long text, on one line.
fn cut(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.chars().count() <= SHOWN_CHARS {
        return line;
    }
    line.chars().take(SHOWN_CHARS).chain("...".chars()).collect()
}
