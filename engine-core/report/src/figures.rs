//! The figures of a report that lists and pages show, read leniently: everything is optional, so that a report of
//! another version still shows what it has in common with ours. Whoever judges or compares reads a whole
//! [`Report`](crate::Report) instead.

use serde::{Deserialize, Serialize};

/// The figures of a report that lists and pages show.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Figures {
    pub latency_ms: LatencyFigures,
    pub windows: Vec<WindowFigures>,
    pub throughput_per_s: Option<f64>,
    pub batch: Option<u64>,
    pub build_ms: Option<f64>,
    pub peak_memory_bytes: Option<u64>,
    pub build_memory_bytes: Option<u64>,
    pub run_memory_bytes: Option<u64>,
    pub engine_memory_bytes: Option<u64>,
    pub simulated: bool,
    pub numerics: Option<NumericFigures>,
    pub accuracy: Option<AccuracyFigures>,
    pub layers: Vec<LayerFigures>,
    /// Read by itself: of another version they are missing, not the whole report.
    pub ceilings: serde_json::Value,
    pub streams: serde_json::Value,
    pub batches: serde_json::Value,
    pub findings: Vec<FindingFigures>,
}

/// Of [`LatencyStats`](planforge_stats::LatencyStats), in milliseconds.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LatencyFigures {
    pub count: Option<u64>,
    pub median: Option<f64>,
    pub min: Option<f64>,
    pub p90: Option<f64>,
    pub p99: Option<f64>,
    pub ci_low: Option<f64>,
    pub ci_high: Option<f64>,
    /// Why there is none; the bounds are then all samples.
    pub no_interval: Option<String>,
}

/// Of a [`WindowRecord`](crate::WindowRecord).
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct WindowFigures {
    pub iterations: u64,
    pub tainted: Vec<String>,
    pub kept_tainted: bool,
}

/// Of [`Numerics`](crate::Numerics).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NumericFigures {
    pub oracle: String,
    pub max_error: Option<f64>,
    pub threshold: Option<f64>,
    pub passed: bool,
    pub skipped: Option<String>,
}

/// Of [`Accuracy`](crate::Accuracy).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AccuracyFigures {
    pub rows: u64,
    pub top1: Option<f64>,
}

/// Of a [`LayerTime`](crate::LayerTime).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LayerFigures {
    pub name: String,
    pub kind: String,
    pub tactic: String,
    pub median_ms: f64,
    pub flops: u64,
    pub bytes: u64,
    pub precision: Option<String>,
}

/// Of a [`Finding`](crate::Finding).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct FindingFigures {
    pub severity: String,
    pub message: String,
}

impl Figures {
    /// Reads the document of a report.
    ///
    /// # Errors
    ///
    /// Where it is no JSON object, or a figure of it is of another kind than ours.
    pub fn parse(report_json: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(report_json)
    }

    /// The document of a report by its headline alone, for who looks at very many: latency, throughput, which windows
    /// something disturbed. Reads as the whole one does; `None` where it is no report.
    pub fn brief(report_json: &str) -> Option<String> {
        #[derive(Default, Deserialize, Serialize)]
        #[serde(default)]
        struct Brief {
            schema_version: serde_json::Value,
            simulated: bool,
            batch: Option<u64>,
            throughput_per_s: Option<f64>,
            #[serde(skip_serializing_if = "serde_json::Value::is_null")]
            latency_ms: serde_json::Value,
            windows: Vec<WindowFigures>,
        }
        let brief: Brief = serde_json::from_str(report_json).ok()?;
        serde_json::to_string(&brief).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{disturbed, sample_report};

    #[test]
    fn figures_are_those_of_the_report() {
        let report = sample_report(1.5);
        let figures = Figures::parse(&serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(figures.latency_ms.median, Some(report.latency_ms.median));
        assert_eq!(figures.latency_ms.count, Some(report.latency_ms.count));
        assert_eq!(figures.throughput_per_s, Some(report.throughput_per_s));
        assert_eq!(figures.build_ms, report.build_ms);
        assert_eq!(figures.accuracy.unwrap().top1, report.accuracy.map(|accuracy| accuracy.top1));
        assert_eq!(figures.numerics.unwrap().max_error, report.numerics.map(|numerics| numerics.max_error));
        assert_eq!(figures.windows.len(), report.windows.len());
        assert_eq!(figures.layers[0].tactic, report.layers[0].tactic);
        assert!(!figures.simulated);
    }

    #[test]
    fn a_brief_report_has_the_headline_of_the_whole() {
        for report in [sample_report(1.5), disturbed(sample_report(1.5))] {
            let whole = serde_json::to_string(&report).unwrap();
            let brief = Figures::brief(&whole).unwrap();
            assert!(brief.len() < whole.len() / 2, "{} of {} bytes", brief.len(), whole.len());
            let figures = Figures::parse(&brief).unwrap();
            assert_eq!(figures.latency_ms.median, Some(report.latency_ms.median));
            assert_eq!(figures.throughput_per_s, Some(report.throughput_per_s));
            assert_eq!(figures.wholly_disturbed(), report.wholly_disturbed());
            assert!(figures.layers.is_empty());
        }
        assert_eq!(Figures::brief("nothing"), None);
        assert!(Figures::parse(&Figures::brief("{}").unwrap()).unwrap().latency_ms.median.is_none());
    }

    #[test]
    fn what_another_version_leaves_out_is_missing_alone() {
        let figures = Figures::parse(r#"{"latency_ms":{"median":1.5},"new":[1],"simulated":true}"#).unwrap();
        assert_eq!((figures.latency_ms.median, figures.latency_ms.p99, figures.simulated), (Some(1.5), None, true));
        assert!(figures.layers.is_empty() && figures.throughput_per_s.is_none());
        assert!(Figures::parse("nothing").is_err());
    }
}
