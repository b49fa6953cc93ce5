//! A report among several: its headline figures.

use super::{disturbed, measured_on};
use crate::Report;
use serde::{Deserialize, Serialize};

/// The headline figures of one report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub model: String,
    /// What it was measured on.
    pub sku: String,
    pub device: String,
    pub toolchain: String,
    pub precision: String,
    /// What else the spec asks for that is not the default: `ampere+`, `version-compatible`, `level 5`, ...
    #[serde(default)]
    pub extras: Vec<String>,
    pub threads: Option<u32>,
    pub batch: u64,
    pub median_ms: f64,
    /// Where the median lies; absent where the samples do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci_low_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci_high_ms: Option<f64>,
    /// Timed windows that the figures come from.
    #[serde(default)]
    pub windows: usize,
    pub p99_ms: f64,
    pub throughput_per_s: f64,
    pub build_ms: Option<f64>,
    pub plan_bytes: u64,
    pub plan_digest: String,
    pub peak_memory_bytes: Option<u64>,
    pub max_error: Option<f64>,
    pub top1: Option<f64>,
    pub accurate: bool,
    pub simulated: bool,
    /// Measured while something else used the device.
    pub disturbed: bool,
    /// All of the windows that count were.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub wholly_disturbed: bool,
    pub foreign: bool,
}

impl Row {
    /// Precision, batch, threads and whatever else sets it apart, as people read them.
    pub fn spec_words(&self) -> String {
        let threads = self.threads.map(|threads| format!(" {threads}t")).unwrap_or_default();
        let mut words = format!("{} b{}{threads}", self.precision, self.batch);
        self.extras.iter().for_each(|extra| words.push_str(&format!(" {extra}")));
        words
    }

    /// What its figures are to be taken with care for.
    pub fn marks(&self) -> Vec<&'static str> {
        let marks = [
            (!self.accurate, "WRONG"),
            (self.simulated, "simulated"),
            (self.foreign, "foreign"),
            (self.disturbed, "disturbed"),
        ];
        marks.into_iter().filter_map(|(is_set, mark)| is_set.then_some(mark)).collect()
    }

    pub(super) fn of(report: &Report) -> Self {
        let compared = report.numerics.as_ref().filter(|numerics| numerics.skipped.is_none());
        Self {
            model: report.model.name.clone(),
            sku: measured_on(report).to_string(),
            device: report.device.name.clone(),
            toolchain: report.toolchain.to_string(),
            precision: report.spec.precision.to_string(),
            extras: extras(report),
            threads: report.spec.threads,
            batch: report.batch,
            median_ms: report.latency_ms.median,
            ci_low_ms: report.interval().ok().map(|interval| interval.low),
            ci_high_ms: report.interval().ok().map(|interval| interval.high),
            windows: report.window_count(),
            p99_ms: report.latency_ms.p99,
            throughput_per_s: report.throughput_per_s,
            build_ms: report.build_ms,
            plan_bytes: report.plan.bytes,
            plan_digest: report.plan.digest.to_string(),
            peak_memory_bytes: report.peak_memory_bytes,
            max_error: compared.map(|numerics| numerics.max_error),
            top1: report.accuracy.as_ref().map(|accuracy| accuracy.top1),
            accurate: report.accurate,
            simulated: report.simulated,
            disturbed: disturbed(report),
            wholly_disturbed: report.wholly_disturbed().is_some(),
            foreign: report.foreign.is_some(),
        }
    }
}

/// What a spec asks for beyond precision, where that is not the default.
fn extras(report: &Report) -> Vec<String> {
    let spec = &report.spec;
    let mut extras: Vec<String> = spec.hardware_compatibility.iter().cloned().collect();
    extras.extend(spec.version_compatible.then(|| "version-compatible".to_owned()));
    extras.extend(spec.approximate_gelu.then(|| "approximate GELU".to_owned()));
    let level = spec.optimization_level;
    extras.extend((level != Default::default()).then(|| format!("level {}", level.0)));
    extras.extend(spec.options.iter().map(|(name, value)| format!("{name}={value}")));
    extras
}
