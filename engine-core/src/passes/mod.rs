//! Passes that make a graph cheaper without changing what it computes, each in a file of its own.
//!
//! Every pass's file begins with its graph before and after. After each pass the graph is checked again (order,
//! names, types and shapes), so a pass that breaks it is named at once.

mod activation;
mod batch_norm;
mod bias;
mod constants;
mod dead;
mod duplicates;
mod edit;
mod gates;
mod gelu;
mod identity;
mod layer_norm;
mod moves;
mod residual;
mod scale;
#[cfg(test)]
mod tests;

use crate::{
    ir::{Graph, GraphError},
    shape::{ShapeError, check_graph},
};
use serde::Serialize;

/// What one pass did, for `inspect`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PassRecord {
    pub pass: &'static str,
    pub nodes_before: usize,
    pub nodes_after: usize,
    /// One line per change: the model's nodes it concerns.
    pub changes: Vec<String>,
}

/// A graph after all passes.
#[derive(Clone, Debug)]
pub struct Optimized {
    pub graph: Graph,
    pub passes: Vec<PassRecord>,
}

/// A pass left a graph that is none: a fault of the compiler.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PassError {
    #[error("after pass {pass}: {source}")]
    Graph { pass: &'static str, source: GraphError },
    #[error("after pass {pass}: {source}")]
    Shape { pass: &'static str, source: ShapeError },
}

/// Rewrites a graph and says what it changed.
pub type Pass = fn(&mut Graph, &mut Vec<String>);

/// The passes in the order they run. Recovery of composed operators comes before fusion takes their parts.
pub const PIPELINE: &[(&str, Pass)] = &[
    ("fold-constants", constants::run),
    ("drop-no-ops", identity::run),
    ("merge-moves", moves::run),
    ("drop-duplicates", duplicates::run),
    ("drop-dead", dead::run),
    ("recover-layer-norm", layer_norm::run),
    ("recover-gelu", gelu::run),
    ("recover-gates", gates::run),
    ("fold-batch-norm", batch_norm::run),
    ("fold-scale", scale::run),
    ("fuse-bias", bias::run),
    ("fuse-residual", residual::run),
    ("fuse-activation", activation::run),
    ("fold-constants-again", constants::run),
    ("drop-dead-again", dead::run),
];

/// Runs every pass.
pub fn pipeline(graph: Graph) -> Result<Optimized, PassError> {
    let mut optimized = Optimized { graph, passes: Vec::with_capacity(PIPELINE.len()) };
    for &(pass, run) in PIPELINE {
        optimized.passes.push(apply(&mut optimized.graph, pass, run)?);
    }
    Ok(optimized)
}

/// Runs one pass and checks what it leaves.
fn apply(graph: &mut Graph, pass: &'static str, run: Pass) -> Result<PassRecord, PassError> {
    let nodes_before = graph.nodes.len();
    let mut changes = Vec::new();
    run(graph, &mut changes);
    graph.compact();
    graph.check().map_err(|source| PassError::Graph { pass, source })?;
    check_graph(graph).map_err(|source| PassError::Shape { pass, source })?;
    tracing::debug!(pass, changes = changes.len(), nodes = graph.nodes.len(), "pass");
    Ok(PassRecord { pass, nodes_before, nodes_after: graph.nodes.len(), changes })
}
