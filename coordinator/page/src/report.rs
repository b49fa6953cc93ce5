//! What a report says on a page beyond its figures: charts, what bounds the engine, what is worth trying, and which types
//! its time and weights are in.

use crate::{
    format, layers,
    reading::Reading,
    rows::JobDetail,
    table::{Cell, Part, Table, column, figures, words},
    view::Section,
};
use askama::Template;
use planforge_advice::{Advice, advise, bound};
use planforge_documents::chart;
use planforge_report::{Ceilings, Report, Severity};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Template)]
#[template(path = "job_result.html")]
pub struct JobResult {
    pub job: JobDetail,
    pub said: Measured,
}

impl Reading {
    /// How latencies are spread and how windows followed each other, and what grows with batch and streams.
    pub fn measured(&self, others: &[Report]) -> Measured {
        let Some(report) = &self.whole else { return Measured::default() };
        let latency = [chart::distribution(report, "c-latency"), chart::windows(report, "c-windows")];
        Measured {
            advice: advise(report, others).into_iter().map(Said::from).collect(),
            latency: latency.into_iter().flatten().collect(),
            sweeps: [chart::batches(report, "c-batch"), chart::streams(report, "c-streams")].concat(),
        }
    }

    /// Where the time goes.
    pub fn time(&self, asked: &layers::Asked) -> Time {
        let is_long = self.layers.len() > layers::ROWS && !asked.address.is_empty();
        let mut time = Time { ceilings: self.ceilings_words(), asked: asked.clone(), is_long, ..Time::default() };
        if let Some(report) = &self.whole {
            let charts = [chart::layers(report, "c-layers"), chart::roofline(report, "c-roofline")];
            time.bound = bound::of_engine(report).map(|bound| bound.words).unwrap_or_default();
            time.charts = charts.into_iter().flatten().collect();
        }
        time
    }

    fn ceilings_words(&self) -> String {
        if self.layers.iter().all(|layer| layer.flops == 0 && layer.bytes == 0) {
            return String::new();
        }
        let known = self.ceilings.as_ref().map(Ceilings::describe);
        known.unwrap_or_else(|| "not known: what this device reaches was not measured".into())
    }

    /// Which types the layers compute in and the weights are kept in; `None` where the engine does not tell.
    pub fn precisions(&self) -> Option<Table> {
        let report = self.whole.as_ref()?;
        let mut types: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
        let total: f64 = self.layers.iter().map(|layer| layer.median_ms).sum();
        for layer in &self.layers {
            let of = types.entry(layer.precision.as_deref().unwrap_or("not told")).or_default();
            *of = (of.0 + 1, of.1 + layer.median_ms / total.max(f64::MIN_POSITIVE));
        }
        if types.keys().all(|name| *name == "not told") && report.weight_bytes.is_empty() {
            return None;
        }
        for name in report.weight_bytes.keys() {
            types.entry(name).or_default();
        }
        let mut types: Vec<(&str, (usize, f64))> = types.into_iter().collect();
        types.sort_by(|(_, a), (_, b)| b.1.total_cmp(&a.1));
        let columns = [
            column("Type", "wide"),
            figures("Layers"),
            figures("Share of their time"),
            column("Share as a bar", "bar-cell unseen"),
            figures("Weights"),
        ];
        let mut table = Table::new("precisions", "Types", &columns);
        for (name, (layers, share)) in types {
            let weights = report.weight_bytes.get(name).map_or_else(|| "–".into(), |bytes| format::bytes(*bytes));
            table.push(
                name,
                "",
                [
                    Cell::text(name),
                    Cell::text(format::grouped(layers as u64)),
                    Cell::text(if layers == 0 { "–".into() } else { format::percent(share) }).strong(true),
                    Cell::of([Part::Bar((share * 100.0).clamp(0.0, 100.0).round() as u32)]),
                    Cell::text(weights),
                ],
            );
        }
        Some(table)
    }

    /// Points of the measurement at every shape of every profile.
    pub fn shapes(&self) -> Option<Table> {
        let points = &self.whole.as_ref()?.points;
        if points.is_empty() {
            return None;
        }
        let columns = [
            words("Profile"),
            words("At"),
            column("Shapes", "wide"),
            figures("Median"),
            figures("p99"),
            figures("Throughput"),
        ];
        let mut table = Table::new("shapes", "Shapes", &columns);
        for point in points {
            let sizes = |shape: &[u64]| shape.iter().map(u64::to_string).collect::<Vec<_>>().join("x");
            let shapes: Vec<String> =
                point.shapes.iter().map(|(name, shape)| format!("{name} {}", sizes(shape))).collect();
            let none = || point.problem.clone().unwrap_or_else(|| "–".into());
            let stats = point.latency_ms.as_ref();
            table.push(
                format!("{} {}", point.profile, point.at.name()),
                "",
                [
                    Cell::text(point.profile.to_string()),
                    Cell::text(point.at.name()),
                    Cell::text(shapes.join(", ")),
                    Cell::text(stats.map_or_else(none, |stats| format::milliseconds(stats.median))).strong(true),
                    Cell::text(stats.map_or_else(String::new, |stats| format::milliseconds(stats.p99))),
                    Cell::text(point.throughput_per_s.map_or_else(String::new, format::per_second)),
                ],
            );
        }
        Some(table)
    }
}

/// What a rule says, and by which number.
#[derive(Clone, Debug)]
pub struct Said {
    pub severity: &'static str,
    pub code: &'static str,
    pub message: String,
    pub advice: String,
    pub evidence: String,
}

impl From<Advice> for Said {
    fn from(advice: Advice) -> Self {
        Self {
            severity: match advice.severity {
                Severity::Note => "note",
                Severity::Warning => "warning",
                Severity::Error => "error",
            },
            code: advice.code,
            evidence: advice.evidence.words(),
            message: advice.message,
            advice: advice.advice,
        }
    }
}

/// What was measured, as charts, and what to try.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    pub advice: Vec<Said>,
    pub latency: Vec<String>,
    pub sweeps: Vec<String>,
}

/// Where the time goes, above the layers.
#[derive(Clone, Debug, Default, Template)]
#[template(path = "time.html")]
pub struct Time {
    /// What bounds the engine, with the number.
    pub bound: String,
    pub charts: Vec<String>,
    /// What the layers are held against; empty where they have no counts.
    pub ceilings: String,
    pub asked: layers::Asked,
    /// There are more layers than one page has: they can be looked for.
    pub is_long: bool,
}

/// Everything that a report says, below what it is of. `others` are reports that advice is held against.
pub fn sections(job: JobDetail, document: &str, others: &[Report], asked: &layers::Asked) -> Vec<Section> {
    let reading = Reading::of(document);
    let said = reading.measured(others);
    let mut sections = vec![Section::html("", "job-result", &JobResult { job, said })];
    sections.extend(reading.shapes().map(|table| Section::table("By shape", table)));
    if !reading.layers.is_empty() {
        sections.push(Section::html("", "time", &reading.time(asked)));
        sections.extend(reading.precisions().map(|table| Section::table("Types of layers and weights", table)));
        sections.push(Section::table("Layers", layers::table(&reading, asked)));
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_report::testing::{sample_report, with_ceilings_and_batches};

    #[test]
    fn a_report_brings_its_charts_and_none_has_a_style_of_its_own() {
        let report = with_ceilings_and_batches(sample_report(1.0));
        let reading = Reading::of(&serde_json::to_string(&report).unwrap());
        let (measured, time) = (reading.measured(&[]), reading.time(&layers::Asked::default()));
        let all = [measured.latency, measured.sweeps, time.charts.clone()].concat();
        assert!(all.len() >= 5, "{} charts", all.len());
        for chart in &all {
            assert!(chart.starts_with("<svg") && !chart.contains("style=") && !chart.contains("<script"), "{chart}");
        }
        let ids: Vec<&str> = all.iter().flat_map(|chart| chart.split(" id=\"").skip(1)).collect();
        let once: std::collections::BTreeSet<&str> = ids.iter().filter_map(|rest| rest.split('"').next()).collect();
        assert_eq!(ids.len(), once.len(), "names are used once");
        assert!(time.render().unwrap().contains("Where the time goes"));
    }

    #[test]
    fn a_report_that_contradicts_itself_and_one_of_another_version_say_what_they_can() {
        let mut wrong = sample_report(1.0);
        wrong.latency_ms.median *= 2.0;
        let wrong = Reading::of(&serde_json::to_string(&wrong).unwrap());
        assert!(wrong.whole.is_none() && wrong.layers.is_empty());
        let old = Reading::of(r#"{"latency_ms":{"median":1.0},"layers":[{"name":"a","median_ms":0.5}]}"#);
        assert!(old.whole.is_none() && old.layers.len() == 1 && old.measured(&[]).latency.is_empty());
        assert!(old.precisions().is_none());
    }

    #[test]
    fn types_tell_layers_time_and_weights() {
        let mut report = sample_report(1.0);
        for (index, layer) in report.layers.iter_mut().enumerate() {
            layer.precision = Some(["int8", "fp32"][index % 2].into());
            layer.median_ms = [3.0, 1.0][index % 2];
        }
        report.layers.truncate(2);
        report.weight_bytes = [("int8".to_owned(), 1 << 20), ("fp16".to_owned(), 2 << 20)].into();
        let table = Reading::of(&serde_json::to_string(&report).unwrap()).precisions().unwrap();
        let html = table.render().unwrap();
        assert_eq!(table.rows.iter().map(|row| row.key.as_str()).collect::<Vec<_>>(), ["int8", "fp32", "fp16"]);
        assert!(html.contains("75.0 %") && html.contains("2.00 MiB"), "{html}");
    }
}
