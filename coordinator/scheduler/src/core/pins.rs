//! A wish that a plan be kept. The core has no part in it: it holds what the store keeps.

use planforge_types::{Digest, EngineKey, Sku};
use serde::{Deserialize, Serialize};

/// Somebody of a project wants a plan kept until a time. There is one for each plan, project and owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinRecord {
    pub plan: Digest,
    pub project: String,
    /// Name of the token, or `local`.
    pub owner: String,
    /// Of the plan's engine, as the project knows it; for people.
    pub key: EngineKey,
    pub model: String,
    pub sku: Sku,
    /// For people: `engines.lock of shop`.
    pub reason: String,
    pub created_ms: u64,
    /// From this time on the pin is as good as absent.
    pub expires_ms: u64,
}

impl PinRecord {
    /// What there is one pin of.
    pub fn id(&self) -> PinId {
        PinId { plan: self.plan, project: self.project.clone(), owner: self.owner.clone() }
    }
}

/// What there is one pin of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PinId {
    pub plan: Digest,
    pub project: String,
    pub owner: String,
}
