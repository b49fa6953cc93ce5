//! What one step of an engine takes.

use serde::{Deserialize, Serialize};

/// Time of one step of an engine, averaged over runs that were profiled apart from the latency samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LayerTime {
    /// Names of the model's nodes that this step computes.
    pub name: String,
    /// `conv`, `gemm`, `pool`, ...
    pub kind: String,
    /// Tactic that computes it.
    pub tactic: String,
    pub median_ms: f64,
    /// Counted from shapes, multiply and add apart; 0 where meaningless.
    pub flops: u64,
    /// Bytes read and written, counted from shapes.
    pub bytes: u64,
    /// Type it computes in, where the engine tells: `fp16`, `int8`, ...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<String>,
    /// Memory formats of its inputs and outputs as the engine names them, `fp16:NHWC8 -> fp16:NHWC8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub formats: Option<String>,
    /// The model's nodes that were fused into it, where that is known apart from its name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// What the device counted while it ran, where that was asked for and the device's profiler may count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<LayerCounters>,
}

/// What a device's profiler counted of one execution of a step: of the most that each part reaches, in percent, the mean
/// over the step's kernels by their time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LayerCounters {
    /// Kernels that the step launched.
    pub kernels: u64,
    /// Under the profiler, which runs kernels one by one: no part of any measurement.
    pub time_ms: f64,
    /// The multiprocessors' busiest pipeline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_percent: Option<f64>,
    /// The device's memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_percent: Option<f64>,
    /// The second-level cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l2_percent: Option<f64>,
    /// Warps that were there, of those that fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub occupancy_percent: Option<f64>,
    /// Cycles in which tensor cores computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor_percent: Option<f64>,
}

impl LayerCounters {
    /// In one line: `SM 70 %, memory 15 %, L2 25 %, tensor cores 60 %, occupancy 50 %`.
    pub fn describe(&self) -> String {
        let parts = [
            ("SM", self.sm_percent),
            ("memory", self.memory_percent),
            ("L2", self.l2_percent),
            ("tensor cores", self.tensor_percent),
            ("occupancy", self.occupancy_percent),
        ];
        let told = parts.into_iter().filter_map(|(name, percent)| Some(format!("{name} {:.0} %", percent?)));
        told.collect::<Vec<_>>().join(", ")
    }
}
