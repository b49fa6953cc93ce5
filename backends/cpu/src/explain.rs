//! What the native compiler would do with a model and what it cannot: without a device, without building anything.

use planforge_graph::{
    ir::{Activation, Graph, Op},
    shape::{is_float, multiply_accumulates},
};
use planforge_onnx::Model;
use planforge_passes::{
    self, PassError, frontend,
    layout::{Layout, Layouts},
    memory,
    placement::Placement,
};
use planforge_plan::lines;
use planforge_report::format::mib;
use planforge_types::{OptimizationProfile, Port, shown::Lines};
use serde::Serialize;
use std::{collections::BTreeMap, fmt};

/// Columns of a label.
const LABEL_WIDTH: usize = 11;

/// What is known of a model.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// The model's name for itself; may be empty.
    pub name: String,
    pub opset: Option<i64>,
    /// Operators of the model by type, nodes of its main graph.
    pub operators: BTreeMap<String, usize>,
    /// Everything that stands in the way, in words; when it is empty there is a `graph`.
    pub refused: Vec<String>,
    /// What to do about it; empty when nothing stands in the way.
    pub hint: String,
    /// Why some nodes follow the engine's program, with sizes that only data decides; empty where none do.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub behind: Vec<String>,
    pub graph: Option<GraphExplanation>,
}

/// What the compiler makes of a graph it takes.
#[derive(Clone, Debug, Serialize)]
pub struct GraphExplanation {
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    /// Trained numbers: what nodes read of stored tensors, without running statistics, scales and indices.
    pub parameters: u64,
    /// Multiply-accumulates of one run.
    pub multiply_accumulates: u64,
    pub imported_nodes: usize,
    pub nodes: usize,
    /// Operators left after the passes, by kind.
    pub kinds: BTreeMap<String, usize>,
    pub recovered: Recovered,
    pub fused: Fused,
    /// Passes that changed something.
    pub passes: Vec<PassCount>,
    pub layout: LayoutSummary,
    pub memory: MemorySummary,
}

/// Composed operators that were found in their pieces, or given as such.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Recovered {
    pub attentions: usize,
    pub layer_norms: usize,
    pub gelus: usize,
    /// SiLU and hard swish.
    pub gates: usize,
}

/// What products and convolutions compute besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Fused {
    pub products: usize,
    pub with_bias: usize,
    pub with_residual: usize,
    pub with_activation: usize,
}

#[derive(Clone, Debug, Serialize)]
pub struct PassCount {
    pub pass: &'static str,
    pub changes: usize,
    pub nodes_before: usize,
    pub nodes_after: usize,
}

/// Which values are images with channels last.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LayoutSummary {
    pub images: usize,
    pub rows: usize,
    /// Values that are turned from one layout to the other, and their bytes.
    pub turns: usize,
    pub turned_bytes: u64,
    /// Values that can lie inside others: parts of concatenations and splits.
    pub placed: usize,
}

/// Estimated for a backend that follows the layout and placement above; scratch memory of kernels is not in it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MemorySummary {
    pub arena_bytes: u64,
    pub without_reuse_bytes: u64,
    pub constant_bytes: u64,
}

/// Explains a model with the shapes of a profile. An error is a fault of the compiler.
pub fn explain(model: &Model, profile: Option<&OptimizationProfile>) -> Result<Explanation, PassError> {
    let mut operators = BTreeMap::new();
    for node in &model.graph().node {
        let prefix = if node.domain.is_empty() { String::new() } else { format!("{}.", node.domain) };
        *operators.entry(format!("{prefix}{}", node.op_type)).or_default() += 1;
    }
    let mut explanation = Explanation {
        name: model.graph().name.clone(),
        opset: model.opset(),
        operators,
        refused: Vec::new(),
        hint: String::new(),
        behind: Vec::new(),
        graph: None,
    };
    match planforge_import::import_open(model, profile, false, &BTreeMap::new()) {
        Ok(imported) => {
            explanation.behind = imported.fragment.iter().flat_map(|fragment| fragment.reasons()).collect();
            explanation.graph = Some(of_graph(imported.graph)?);
        }
        Err(error) => {
            explanation.refused = error.problems.iter().map(ToString::to_string).collect();
            explanation.hint = error.hint();
        }
    }
    Ok(explanation)
}

fn of_graph(imported: Graph) -> Result<GraphExplanation, PassError> {
    let (parameters, multiply_accumulates) = (parameters(&imported), multiply_accumulates(&imported));
    let imported_nodes = imported.nodes.len();
    let optimized = planforge_passes::pipeline(imported, crate::TARGET)?;
    let graph = &optimized.graph;
    let mut kinds = BTreeMap::new();
    for node in &graph.nodes {
        *kinds.entry(node.op.kind().to_owned()).or_default() += 1;
    }
    let passes = optimized.passes.iter().filter(|record| !record.changes.is_empty()).map(|record| PassCount {
        pass: record.pass,
        changes: record.changes.len(),
        nodes_before: record.nodes_before,
        nodes_after: record.nodes_after,
    });
    let placement = Placement::find(graph);
    let plan = memory::plan(graph, &placement);
    Ok(GraphExplanation {
        inputs: frontend::inputs(graph),
        outputs: frontend::outputs(graph),
        parameters,
        multiply_accumulates,
        imported_nodes,
        nodes: graph.nodes.len(),
        kinds,
        recovered: recovered(graph),
        fused: fused(graph),
        passes: passes.collect(),
        layout: layout(graph, placement.len()),
        memory: MemorySummary {
            arena_bytes: plan.as_ref().map_or(0, |plan| plan.arena_bytes),
            without_reuse_bytes: plan.as_ref().map_or(0, |plan| plan.without_reuse_bytes),
            constant_bytes: graph.constant_bytes(),
        },
    })
}

/// Elements of stored tensors that are trained: of at least one axis, and neither statistics nor quantization steps.
fn parameters(graph: &Graph) -> u64 {
    let mut counted = BTreeMap::new();
    for node in &graph.nodes {
        for (position, id) in node.inputs.iter().enumerate() {
            let aside = match node.op {
                Op::BatchNorm { .. } => position >= 3,
                Op::Quantize(_) | Op::Dequantize(_) | Op::FakeQuantize(_) => position >= 1,
                _ => false,
            };
            let tensor = id.and_then(|id| graph.constant(id)).filter(|tensor| !aside && tensor.rank() > 0);
            let stored = tensor.filter(|tensor| is_float(tensor.element()) || matches!(node.op, Op::Dequantize(_)));
            if let (Some(id), Some(tensor)) = (id, stored) {
                counted.insert(*id, tensor.len() as u64);
            }
        }
    }
    counted.values().sum()
}

fn activation_of(op: &Op) -> Option<Activation> {
    match op {
        Op::Activation(activation) => Some(*activation),
        _ => op.epilogue().and_then(|epilogue| epilogue.activation),
    }
}

fn recovered(graph: &Graph) -> Recovered {
    let mut found = Recovered::default();
    for node in &graph.nodes {
        found.attentions += usize::from(matches!(node.op, Op::Attention(_)));
        found.layer_norms += usize::from(matches!(node.op, Op::LayerNorm { .. }));
        match activation_of(&node.op) {
            Some(Activation::Gelu(_)) => found.gelus += 1,
            Some(Activation::Silu | Activation::HardSwish) => found.gates += 1,
            _ => (),
        }
    }
    found
}

fn fused(graph: &Graph) -> Fused {
    let mut found = Fused::default();
    for node in &graph.nodes {
        let Some(epilogue) = node.op.epilogue() else { continue };
        found.products += 1;
        found.with_bias += usize::from(node.input(2).is_some());
        found.with_residual += usize::from(node.input(3).is_some());
        found.with_activation += usize::from(epilogue.activation.is_some());
    }
    found
}

fn layout(graph: &Graph, placed: usize) -> LayoutSummary {
    let layouts = Layouts::assign(graph);
    let made = graph.nodes.iter().flat_map(|node| &node.outputs);
    let images = made.clone().filter(|id| layouts.of[id.index()] == Layout::ChannelsLast).count();
    let bytes = |id: planforge_graph::ir::ValueId| {
        let elements = graph.static_shape(id).map_or(0, |shape| shape.iter().product::<usize>());
        (elements * graph.value(id).element.bytes()) as u64
    };
    LayoutSummary {
        images,
        rows: made.count() - images,
        turns: layouts.turns.len(),
        turned_bytes: layouts.turns.iter().map(|turn| bytes(turn.value)).sum(),
        placed,
    }
}

fn counted<K: fmt::Display>(counts: &BTreeMap<K, usize>) -> String {
    let mut sorted: Vec<_> = counts.iter().collect();
    sorted.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    sorted.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let opset = self.opset.map_or_else(|| "?".to_owned(), |opset| opset.to_string());
        let lines = &mut Lines::new(f);
        writeln!(lines, "model      {} (opset {opset})", self.name)?;
        write!(lines, "operators  {}", counted(&self.operators))?;
        for problem in &self.refused {
            writeln!(lines)?;
            write!(lines, "refused    {problem}")?;
        }
        for reason in &self.behind {
            writeln!(lines)?;
            write!(lines, "behind     {reason}")?;
        }
        match &self.graph {
            Some(graph) => write!(f, "\n{graph}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for GraphExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let f = &mut Lines::new(f);
        lines::ports(f, LABEL_WIDTH, &self.inputs, &self.outputs)?;
        writeln!(f, "parameters {:.3} M", self.parameters as f64 / 1e6)?;
        writeln!(f, "computes   {:.3} G multiply-accumulates a run", self.multiply_accumulates as f64 / 1e9)?;
        writeln!(f, "nodes      {} imported, {} after the passes", self.imported_nodes, self.nodes)?;
        writeln!(f, "left       {}", counted(&self.kinds))?;
        let Recovered { attentions, layer_norms, gelus, gates } = self.recovered;
        writeln!(
            f,
            "recovered  {attentions} attentions, {layer_norms} layer normalisations, {gelus} GELUs, {gates} gated activations"
        )?;
        let Fused { products, with_bias, with_residual, with_activation } = self.fused;
        writeln!(
            f,
            "fused      {products} products and convolutions: {with_bias} with bias, {with_residual} with residual, {with_activation} with activation"
        )?;
        for pass in &self.passes {
            let nodes = (pass.nodes_before as u64, pass.nodes_after as u64);
            lines::pass(f, LABEL_WIDTH, pass.pass, pass.changes, nodes)?;
        }
        let layout = &self.layout;
        writeln!(
            f,
            "layout     {} images with channels last, {} others, {} turns of {}; {} values lie in others",
            layout.images,
            layout.rows,
            layout.turns,
            mib(layout.turned_bytes),
            layout.placed
        )?;
        let memory = &self.memory;
        write!(
            f,
            "memory     about {} of activations ({} without reuse), {} of weights",
            mib(memory.arena_bytes),
            mib(memory.without_reuse_bytes),
            mib(memory.constant_bytes)
        )
    }
}
