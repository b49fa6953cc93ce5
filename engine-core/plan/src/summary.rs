//! What plans say of the model they were made of.

use serde::{Deserialize, Serialize};

/// What one pass of the optimiser did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PassSummary {
    pub pass: String,
    pub nodes_before: u64,
    pub nodes_after: u64,
    /// One line per change: the model's nodes it concerns.
    pub changes: Vec<String>,
}

/// The model in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphSummary {
    pub name: String,
    /// Nodes as imported, and after the passes.
    pub imported_nodes: u64,
    pub nodes: u64,
    pub parameters: u64,
    pub constant_bytes: u64,
}
