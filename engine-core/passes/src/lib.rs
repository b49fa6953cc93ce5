//! Passes that make a graph cheaper without changing what it computes, each in a file of its own.
//!
//! Every pass's file begins with its graph before and after. After each pass the graph is checked again (order,
//! names, types and shapes), so a pass that breaks it is named at once.
//!
//! Four more look at a graph and describe it for backends without changing it: [`layout`] says which values are images
//! with channels last, [`placement`] which values can lie inside others (concatenations, splits), [`memory`] where each
//! buffer goes and how much memory the whole needs, [`states`] which outputs are inputs with some places written anew.

mod activation;
mod attention;
mod batch_norm;
mod bias;
mod broadcasts;
mod chains;
mod constants;
mod dead;
mod duplicates;
mod edit;
mod exact_sums;
pub mod frontend;
mod gates;
mod gelu;
mod halves;
mod identity;
mod layer_norm;
pub mod layout;
pub mod memory;
mod moves;
mod parallel;
pub mod placement;
mod quantization;
mod quantized;
mod residual;
mod scale;
mod sink;
mod slices;
pub mod states;
mod taps;
#[cfg(test)]
mod tests;

use planforge_graph::{
    infer::check_graph,
    ir::{Graph, GraphError},
    shape::ShapeError,
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

/// What a backend can do that decides which passes pay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Products and convolutions of integers: quantized weights and the operators around them stay as they are.
    pub integer_products: bool,
    /// Kernels read and write some channels of a wider image in place: splits and concatenations cost nothing.
    pub channel_slices: bool,
    /// Kernels of fp16 and bf16; what a model stores so is computed in f32 otherwise.
    pub halves: bool,
    /// Products of f32 keep every digit, and there are no others: integers are multiplied so where sums stay exact.
    pub exact_f32: bool,
    /// Kernels of 8-bit integers with exact sums: quantized operators become products of integers.
    pub integer_steps: bool,
    /// Operators stay apart as the model has them, to see what joining them brings.
    pub unfused: bool,
}

impl Target {
    fn wants(self, pass: &str, only: Only) -> bool {
        if self.unfused && FUSIONS.contains(&pass) {
            return false;
        }
        match only {
            Only::Always => true,
            Only::FloatProducts => !self.integer_products,
            Only::ChannelSlices => self.channel_slices,
            Only::WholeChannels => !self.channel_slices,
            Only::FullFloats => !self.halves,
            Only::ExactSums => self.exact_f32,
            Only::IntegerSteps => self.integer_steps,
        }
    }
}

/// For which targets a pass runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Only {
    Always,
    FloatProducts,
    ChannelSlices,
    WholeChannels,
    FullFloats,
    /// Of targets whose products are of f32 alone.
    ExactSums,
    /// Of targets with kernels of 8-bit integers.
    IntegerSteps,
}

/// The passes that join operators, or move them so that others can be joined. Without them a graph still loses what
/// computes nothing and what is known before it runs.
const FUSIONS: [&str; 16] = [
    "join-quantized",
    "recover-layer-norm",
    "recover-gelu",
    "recover-gates",
    "fold-batch-norm",
    "fold-scale",
    "recover-attention",
    "sink-moves",
    "settle-moves",
    "push-slices",
    "settle-moves-again",
    "fuse-bias",
    "fuse-residual",
    "fuse-activation",
    "merge-parallel",
    "merge-all-parallel",
];

/// The passes in the order they run. Recovery of composed operators comes before fusion takes their parts.
pub const PIPELINE: &[(&str, Only, Pass)] = &[
    // Before anything is computed of constants: an unrolled loop repeats it at every step.
    ("drop-repeated", Only::Always, duplicates::run),
    ("widen-halves", Only::FullFloats, halves::run),
    // Before weights of quantized operators become wide numbers.
    ("join-quantized", Only::IntegerSteps, quantized::run),
    ("fold-constants", Only::Always, constants::run),
    ("narrow-exact-sums", Only::ExactSums, exact_sums::run),
    ("merge-quantization", Only::FloatProducts, quantization::run),
    ("drop-no-ops", Only::Always, identity::run),
    ("merge-moves", Only::Always, moves::run),
    ("drop-duplicates", Only::Always, duplicates::run),
    ("drop-dead", Only::Always, dead::run),
    ("shrink-broadcasts", Only::Always, broadcasts::run),
    ("recover-layer-norm", Only::Always, layer_norm::run),
    ("recover-gelu", Only::Always, gelu::run),
    ("recover-gates", Only::Always, gates::run),
    ("fold-batch-norm", Only::Always, batch_norm::run),
    ("fold-scale", Only::Always, scale::run),
    ("recover-attention", Only::Always, attention::run),
    ("sink-moves", Only::Always, sink::run),
    ("settle-moves", Only::Always, moves::settle),
    ("push-slices", Only::Always, slices::run),
    ("settle-moves-again", Only::Always, moves::settle),
    ("drop-dead-moves", Only::Always, dead::run),
    ("fuse-bias", Only::Always, bias::run),
    ("fuse-residual", Only::Always, residual::run),
    ("fuse-activation", Only::Always, activation::run),
    ("merge-parallel", Only::WholeChannels, parallel::run),
    ("merge-all-parallel", Only::ChannelSlices, parallel::run_all),
    ("fold-constants-again", Only::Always, constants::run),
    ("drop-dead-again", Only::Always, dead::run),
];

/// Runs every pass that the target wants.
pub fn pipeline(graph: Graph, target: Target) -> Result<Optimized, PassError> {
    let mut optimized = Optimized { graph, passes: Vec::with_capacity(PIPELINE.len()) };
    for &(pass, only, run) in PIPELINE {
        if target.wants(pass, only) {
            optimized.passes.push(apply(&mut optimized.graph, pass, run)?);
        }
    }
    Ok(optimized)
}

/// Runs one pass and checks what it leaves.
fn apply(graph: &mut Graph, pass: &'static str, run: Pass) -> Result<PassRecord, PassError> {
    let nodes_before = graph.nodes.len();
    let mut changes = Vec::new();
    run(graph, &mut changes);
    graph.compact();
    // Passes name what they add after values of the model, which may have a value of that name already.
    graph.number_repeated_names();
    graph.check().map_err(|source| PassError::Graph { pass, source })?;
    check_graph(graph).map_err(|source| PassError::Shape { pass, source })?;
    tracing::debug!(pass, changes = changes.len(), nodes = graph.nodes.len(), "pass");
    Ok(PassRecord { pass, nodes_before, nodes_after: graph.nodes.len(), changes })
}
