//! The reference that engines are judged by, held against a runtime that shares nothing with it.

use serde::{Deserialize, Serialize};

/// Whether an independent runtime computes of a model what the reference computes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Agreement {
    /// The runtime with its version; absent where none was present.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// Absent where nothing was compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agrees: Option<bool>,
    /// Largest difference of an output over its scale; of integers the share that differs.
    pub max_error: f64,
    /// When that was compared, in Unix milliseconds of the agent's clock: once for a model, before other builds of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compared_unix_ms: Option<u64>,
    /// Why nothing was compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The outputs that are further apart than single precision explains: where, and what either side says.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disagreements: Vec<String>,
}

impl Agreement {
    /// As people read it, a line.
    pub fn words(&self) -> String {
        let runtime = self.runtime.as_deref().unwrap_or("an independent runtime");
        match (self.agrees, &self.reason) {
            (Some(true), _) => format!("the reference agrees with {runtime}"),
            (Some(false), _) => format!("the reference DISAGREES with {runtime}"),
            (None, Some(reason)) => format!("not compared with an independent runtime: {reason}"),
            (None, None) => "not compared with an independent runtime".into(),
        }
    }
}
