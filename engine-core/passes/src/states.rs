//! Outputs that are an input with some places written anew: caches that go from one run to the next.
//!
//! Before: `cache -> ScatterElements(place, new) -> next cache`, or `Where(place == token's, new, cache)`; transposed
//! or converted on the way or not.
//! After: nothing is changed; each is told with what writes it, and along which axis of the input the places lie.
//!
//! Others come out one place longer than they went in: `Concat(cache, new) -> next cache`.

use planforge_graph::ir::{Binary, Compare, DefUse, Graph, NamedOp, Node, Op, Tensor, ValueId};
use std::collections::BTreeSet;

/// Most nodes that are looked at to see how a place is found.
const MAX_ANCESTORS: usize = 4096;

/// How places are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Where indices say.
    Put,
    /// Where a place equals the token's: every element is the new one or what was there.
    Chosen,
}

/// An output that is an input with some places written anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Number among the graph's inputs, and among its outputs.
    pub input: usize,
    pub output: usize,
    pub written: Written,
    /// What is written into, and what comes out of that.
    pub data: ValueId,
    pub result: ValueId,
    /// Values between them and the input and the output that are the same elements, moved or converted.
    pub passed: Vec<ValueId>,
    /// Whether elements are converted on the way.
    pub converts: bool,
    /// Whether nobody else reads what was there before.
    pub is_alone: bool,
    /// The axis of the input along which one place is written per run, where one is, and no run begins again at its
    /// start by itself.
    pub axis: Option<usize>,
}

/// Every such output of a graph. An input that two outputs write is left out the second time.
pub fn caches(graph: &Graph, uses: &DefUse) -> Vec<Cache> {
    let mut found: Vec<Cache> = Vec::new();
    for (number, output) in graph.outputs.iter().enumerate() {
        let Some(cache) = cache(graph, uses, number, output.value) else { continue };
        if found.iter().all(|other| other.input != cache.input && other.result != cache.result) {
            found.push(cache);
        }
    }
    found
}

fn cache(graph: &Graph, uses: &DefUse, number: usize, output: ValueId) -> Option<Cache> {
    let mut way = Way::to(graph, output);
    let node = loop {
        let node = &graph.nodes[uses.definition[way.at.index()]?];
        if !way.back(node) {
            break node;
        }
    };
    let result = node.outputs[0];
    let (written, operands) = match &node.op {
        Op::Named(named) if is_put(named) => (Written::Put, vec![0]),
        Op::Where if is_one_place(graph, uses, node.input(0)?) => (Written::Chosen, vec![2, 1]),
        _ => return None,
    };
    operands.into_iter().find_map(|operand| {
        let data = node.input(operand)?;
        let mut way = way.clone();
        way.at = data;
        let behind = way.order.clone();
        let mut is_alone = true;
        while let Some(definition) = uses.definition[way.at.index()] {
            is_alone &= uses.sole_use(way.at).is_some();
            if !way.back(&graph.nodes[definition]) {
                return None;
            }
        }
        is_alone &= uses.sole_use(way.at).is_some();
        let input = graph.inputs.iter().position(|&id| id == way.at)?;
        let alike = graph.value(way.at).element == graph.value(output).element
            && graph.static_shape(way.at).is_some()
            && graph.static_shape(way.at) == graph.static_shape(output)
            && graph.static_shape(data) == graph.static_shape(result);
        if !alike || !way.order.iter().copied().eq(0..way.order.len()) {
            return None;
        }
        let along = match &node.op {
            Op::Named(named) => along(graph, node, named),
            _ => chosen_along(graph, node),
        };
        let index = node.input(if written == Written::Put { 1 } else { 0 })?;
        let axis = along.filter(|_| !begins_again(graph, uses, index));
        // The output's axes are the input's; `behind` says where those of the result go.
        let axis = axis.and_then(|axis| behind.iter().position(|&of| of == axis));
        let Way { passed, converts, .. } = way;
        Some(Cache { input, output: number, written, data, result, passed, converts, is_alone, axis })
    })
}

/// An output that is an input with one place behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grown {
    /// Number among the graph's inputs, and among its outputs.
    pub input: usize,
    pub output: usize,
    /// The concatenation, by its number, and what comes out of it.
    pub node: usize,
    pub result: ValueId,
    /// Along which it is longer.
    pub axis: usize,
}

/// Every such output of a graph of known shapes whose input nobody else reads.
pub fn grown(graph: &Graph, uses: &DefUse) -> Vec<Grown> {
    let mut found: Vec<Grown> = Vec::new();
    for (output, of) in graph.outputs.iter().enumerate() {
        let Some(grown) = grown_to(graph, uses, output, of.value) else { continue };
        if found.iter().all(|other| other.input != grown.input && other.result != grown.result) {
            found.push(grown);
        }
    }
    found
}

fn grown_to(graph: &Graph, uses: &DefUse, output: usize, result: ValueId) -> Option<Grown> {
    let node = uses.definition[result.index()]?;
    let Op::Concat { axis } = graph.nodes[node].op else { return None };
    let [Some(past), Some(new)] = graph.nodes[node].inputs[..] else { return None };
    let input = graph.inputs.iter().position(|&id| id == past)?;
    let one_place = graph.static_shape(new)?.get(axis) == Some(&1) && graph.static_shape(past).is_some();
    let alone = uses.sole_use(past) == Some(node);
    (one_place && alone).then_some(Grown { input, output, node, result, axis })
}

/// From a value back to what it was moved and converted from.
#[derive(Clone)]
struct Way {
    at: ValueId,
    /// For each axis of where it began, the axis of where it is.
    order: Vec<usize>,
    passed: Vec<ValueId>,
    converts: bool,
}

impl Way {
    fn to(graph: &Graph, value: ValueId) -> Self {
        let order = (0..graph.value(value).shape.len()).collect();
        Self { at: value, order, passed: Vec::new(), converts: false }
    }

    /// Goes back over `node`, which gives where it is; `false` where that computes something.
    fn back(&mut self, node: &Node) -> bool {
        match &node.op {
            Op::Transpose { perm } => self.order = self.order.iter().map(|&axis| perm[axis]).collect(),
            Op::Identity => {}
            Op::Cast { .. } => self.converts = true,
            _ => return false,
        }
        let Some(from) = node.input(0) else { return false };
        self.passed.push(self.at);
        self.at = from;
        true
    }
}

fn is_put(named: &NamedOp) -> bool {
    matches!(named.name.as_str(), "scatter_elements" | "scatter_nd") && matches!(named.text("reduction"), "none" | "")
}

/// The axis of the data along which a scatter writes one place, and all of the others.
fn along(graph: &Graph, node: &Node, named: &NamedOp) -> Option<usize> {
    let data = graph.static_shape(node.input(0)?)?;
    let indices = graph.static_shape(node.input(1)?)?;
    if named.name == "scatter_elements" {
        let axis = named.size("axis");
        let rest = |shape: &[usize]| (0..shape.len()).filter(|at| *at != axis).map(|at| shape[at]).collect::<Vec<_>>();
        return (indices.get(axis) == Some(&1) && rest(&indices) == rest(&data)).then_some(axis);
    }
    // Indices of the first axes, one for each place that these have but along one.
    let (depth, places) = indices.split_last()?;
    if *depth == 1 && places.iter().product::<usize>() == 1 {
        return Some(0);
    }
    if places.len() != *depth || *depth > data.len() {
        return None;
    }
    let mut shorter = (0..*depth).filter(|&axis| places[axis] != data[axis]);
    let axis = shorter.next().filter(|&axis| places[axis] == 1)?;
    shorter.next().is_none().then_some(axis)
}

/// Whether a mask says of each place whether it is one that is given: different numbers of the model compared with one.
fn is_one_place(graph: &Graph, uses: &DefUse, mask: ValueId) -> bool {
    let mut at = mask;
    while let Some(definition) = uses.definition[at.index()] {
        let node = &graph.nodes[definition];
        match (&node.op, node.input(0), node.input(1)) {
            (Op::Transpose { .. } | Op::Reshape | Op::Identity | Op::Cast { .. }, Some(from), _) => at = from,
            (Op::Compare(Compare::Equal), Some(one), Some(other)) => {
                let is_one = |id| graph.static_shape(id).is_some_and(|shape| shape.iter().product::<usize>() == 1);
                let differ = |id| {
                    let numbers = graph.constant(id).and_then(Tensor::to_i64s);
                    numbers.is_some_and(|all| all.iter().collect::<BTreeSet<_>>().len() == all.len())
                };
                return (differ(one) && is_one(other)) || (differ(other) && is_one(one));
            }
            _ => return false,
        }
    }
    false
}

/// The one axis of the result that a mask runs along.
fn chosen_along(graph: &Graph, node: &Node) -> Option<usize> {
    let mask = graph.static_shape(node.input(0)?)?;
    let rank = graph.static_shape(node.outputs[0])?.len();
    let mut long = (0..mask.len()).filter(|&axis| mask[axis] > 1);
    let axis = long.next()?;
    long.next().is_none().then(|| rank - mask.len() + axis)
}

/// Whether a place is a remainder: a cache of which the oldest place is written again.
fn begins_again(graph: &Graph, uses: &DefUse, place: ValueId) -> bool {
    let (mut next, mut seen) = (vec![place], BTreeSet::new());
    while let Some(id) = next.pop() {
        if !seen.insert(id) {
            continue;
        }
        if seen.len() > MAX_ANCESTORS {
            return true;
        }
        let Some(definition) = uses.definition[id.index()] else { continue };
        let node = &graph.nodes[definition];
        if matches!(node.op, Op::Binary(Binary::Mod | Binary::FMod)) {
            return true;
        }
        next.extend(node.inputs.iter().flatten());
    }
    false
}
