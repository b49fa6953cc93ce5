//! What passes share: collected changes, and questions about the graph.

use planforge_graph::{
    ir::{DefUse, Graph, Node, Op, ValueId},
    shape::is_float,
};
use std::collections::{BTreeMap, BTreeSet};

/// Changes to one graph, applied together.
#[derive(Debug, Default)]
pub struct Edit {
    dead: Vec<bool>,
    /// New nodes, by the place of the node they stand in front of.
    inserted: BTreeMap<usize, Vec<Node>>,
    redirected: BTreeMap<ValueId, ValueId>,
}

impl Edit {
    pub fn of(graph: &Graph) -> Self {
        Self { dead: vec![false; graph.nodes.len()], inserted: BTreeMap::new(), redirected: BTreeMap::new() }
    }

    /// Drops a node; its outputs must be redirected or unused.
    pub fn kill(&mut self, node: usize) {
        self.dead[node] = true;
    }

    pub fn is_dead(&self, node: usize) -> bool {
        self.dead[node]
    }

    /// Whoever reads `from` reads `to`.
    pub fn redirect(&mut self, from: ValueId, to: ValueId) {
        self.redirected.insert(from, to);
    }

    /// What `id` stands for after all redirections.
    fn resolve(&self, mut id: ValueId) -> ValueId {
        while let Some(&to) = self.redirected.get(&id) {
            id = to;
        }
        id
    }

    /// Puts a node in front of the one at `place`, behind those put there before.
    pub fn insert(&mut self, place: usize, node: Node) {
        self.inserted.entry(place).or_default().push(node);
    }

    pub fn apply(mut self, graph: &mut Graph) {
        let nodes = std::mem::take(&mut graph.nodes);
        for (index, node) in nodes.into_iter().enumerate() {
            graph.nodes.extend(self.inserted.remove(&index).unwrap_or_default());
            if !self.dead[index] {
                graph.nodes.push(node);
            }
        }
        if self.redirected.is_empty() {
            return;
        }
        for id in graph.nodes.iter_mut().flat_map(|node| node.inputs.iter_mut().flatten()) {
            *id = self.resolve(*id);
        }
        for output in &mut graph.outputs {
            output.value = self.resolve(output.value);
        }
    }
}

/// The one element of a float constant; `None` for anything else.
pub fn scalar(graph: &Graph, id: ValueId) -> Option<f64> {
    let tensor = graph.constant(id).filter(|tensor| tensor.len() == 1 && is_float(tensor.element()))?;
    Some(tensor.to_f64s()[0])
}

/// Whether `id` is a constant scalar within rounding of `wanted`.
pub fn is_scalar(graph: &Graph, id: ValueId, wanted: f64) -> bool {
    // Half precision rounds by one part in 2,048; a bfloat16 model keeps its own operators.
    scalar(graph, id).is_some_and(|value| (value - wanted).abs() <= 5e-4 * wanted.abs())
}

/// The two inputs of a binary node, in both orders.
pub fn both_ways(node: &Node) -> Vec<(ValueId, ValueId)> {
    match (node.input(0), node.input(1)) {
        (Some(a), Some(b)) => vec![(a, b), (b, a)],
        _ => Vec::new(),
    }
}

/// The node that defines `id`.
pub fn producer<'a>(graph: &'a Graph, found: &DefUse, id: ValueId) -> Option<(usize, &'a Node)> {
    found.definition[id.index()].map(|index| (index, &graph.nodes[index]))
}

/// The node that defines `id`, when nothing but the asking node reads it.
pub fn sole_producer<'a>(graph: &'a Graph, found: &DefUse, id: ValueId) -> Option<(usize, &'a Node)> {
    found.sole_use(id)?;
    producer(graph, found, id)
}

/// A float convolution or matrix product that no activation has been fused into.
pub fn takes_epilogue(graph: &Graph, node: &Node) -> bool {
    let plain = node.op.epilogue().is_some_and(|epilogue| epilogue.activation.is_none());
    plain && is_float(graph.value(node.outputs[0]).element)
}

/// The model's nodes behind `parts`, earlier ones first.
pub fn joined_origins(graph: &Graph, parts: &[usize]) -> Vec<String> {
    let mut parts = parts.to_vec();
    parts.sort_unstable();
    let mut seen = BTreeSet::new();
    let all = parts.iter().flat_map(|&part| &graph.nodes[part].origins);
    all.filter(|&origin| seen.insert(origin.as_str())).cloned().collect()
}

/// What one node becomes.
#[derive(Debug)]
pub struct Replacement<'a> {
    /// Nodes it also computes; they die.
    pub parts: &'a [usize],
    /// The node whose place and outputs it takes.
    pub last: usize,
    pub op: Op,
    pub inputs: Vec<Option<ValueId>>,
}

impl Edit {
    /// Puts one node in the place of several.
    pub fn replace(&mut self, graph: &mut Graph, by: Replacement<'_>, changes: &mut Vec<String>) {
        let mut all = by.parts.to_vec();
        all.push(by.last);
        let origins = joined_origins(graph, &all);
        changes.push(format!("{}: {}", by.op.kind(), origins.join(" + ")));
        let node = &mut graph.nodes[by.last];
        (node.op, node.inputs, node.origins) = (by.op, by.inputs, origins);
        by.parts.iter().for_each(|&part| self.kill(part));
    }
}
