//! Build specs: what is asked of an engine, with every default filled in before it is hashed.

use super::Digest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Arithmetic the engine may use for weights and activations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    #[default]
    Fp32,
    Tf32,
    Fp16,
    Bf16,
    Int8,
    Fp8,
    /// Whatever the backend finds fastest.
    Best,
}

/// Smallest, usual and largest size of one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DimRange {
    pub min: u64,
    pub opt: u64,
    pub max: u64,
}

/// Shapes one engine context is tuned for: every dimension of every input, by input name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OptimizationProfile {
    pub inputs: BTreeMap<String, Vec<DimRange>>,
}

/// What is asked of an engine. Every field is part of the engine key; in a request, fields may be left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BuildSpec {
    pub precision: Precision,
    /// Empty: the shapes the model itself fixes. Order matters (profile 0 first).
    pub profiles: Vec<OptimizationProfile>,
    /// Most scratch memory a tactic may use; `None`: what the device has.
    pub workspace_mib: Option<u64>,
    /// 0..=5, higher tries more tactics.
    pub optimization_level: OptimizationLevel,
    /// TensorRT's hardware compatibility level (`none`, `ampere+`, `same_compute_capability`).
    pub hardware_compatibility: Option<String>,
    pub version_compatible: bool,
    /// Calibration cache or table that int8 scales come from.
    pub calibration: Option<Digest>,
    /// Plugin libraries, sorted.
    pub plugins: Vec<Digest>,
    /// CPU threads the engine runs on. `None` only in a request: resolved, per SKU, to the cores of the smallest
    /// known device that offers it. Always `None` for GPUs.
    pub threads: Option<u32>,
    /// Backend options by allow-listed name.
    pub options: BTreeMap<String, String>,
}

/// How hard the compiler searches for tactics, 0 (first that works) to 5 (everything).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OptimizationLevel(pub u8);

impl Default for OptimizationLevel {
    fn default() -> Self {
        Self(3)
    }
}

impl BuildSpec {
    /// Brings equal meanings to one form: sorted plugins without repeats, profiles kept in order.
    pub fn canonical(mut self) -> Self {
        self.plugins.sort_unstable();
        self.plugins.dedup();
        self
    }
}
