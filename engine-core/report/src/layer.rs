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
}
