//! Engine cards: the immutable facts of one build, kept beside its plan.

use crate::{CacheUse, ModelRef, PlanRef};
use planforge_types::{
    BuildSpec, EngineKey, Sku, Toolchain, fingerprint::DeviceFingerprint, preparation::PreparedFrom,
};
use serde::{Deserialize, Serialize};

/// Raised whenever a field changes its meaning or goes away; new optional fields do not raise it.
pub const CARD_SCHEMA_VERSION: u32 = 1;

/// What is known of an engine the moment it is built, and never changes again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineCard {
    pub schema_version: u32,
    /// Built on a scripted double.
    pub simulated: bool,
    pub engine_key: EngineKey,
    pub model: ModelRef,
    /// Where the model comes from, if a job of the farm prepared it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepared_from: Option<PreparedFrom>,
    pub plan: PlanRef,
    pub sku: Sku,
    pub toolchain: Toolchain,
    /// Complete: the one that went into the key.
    pub spec: BuildSpec,
    /// The device it was built on.
    pub device: DeviceFingerprint,
    pub job: String,
    pub attempt: u32,
    pub agent: String,
    pub planforge_version: String,
    /// Unix milliseconds of the agent's clock.
    pub built_unix_ms: u64,
    pub build_ms: f64,
    /// The tactic or timing cache it was built with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheUse>,
    /// What the compiler says of the build: passes, tactics tried, warnings.
    pub facts: serde_json::Value,
}
