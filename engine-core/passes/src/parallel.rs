//! Computes products of the same operand together: one product with all their weights side by side, then a split.
//!
//! Before: `x -> MatMul(w1, b1) -> q`, `x -> MatMul(w2, b2) -> k`, `x -> MatMul(w3, b3) -> v`.
//! After: `x -> MatMul([w1 w2 w3], [b1 b2 b3]) -> Split -> q, k, v`. Likewise 1x1 convolutions along their channels.
//!
//! Attention reads parts of a wider tensor where they lie, so queries, keys and values always gain. Whether anything
//! else does depends on the backend: one that cannot read a slice of channels in place would have to copy it.

use super::edit::{Edit, joined_origins};
use planforge_graph::{
    interpreter,
    ir::{DefUse, Graph, Node, Op, Tensor, ValueId},
    shape::TensorType,
};
use std::collections::BTreeMap;

/// Products whose parts only attention reads.
pub fn run(graph: &mut Graph, changes: &mut Vec<String>) {
    merge(graph, changes, false);
}

/// All products and 1x1 convolutions.
pub fn run_all(graph: &mut Graph, changes: &mut Vec<String>) {
    merge(graph, changes, true);
}

fn merge(graph: &mut Graph, changes: &mut Vec<String>, any_reader: bool) {
    let found = graph.def_use();
    let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (at, node) in graph.nodes.iter().enumerate() {
        let wanted = any_reader || read_by_attention(graph, &found, node.outputs[0]);
        if let Some(key) = key(graph, node).filter(|_| wanted) {
            groups.entry(key).or_default().push(at);
        }
    }
    let mut edit = Edit::of(graph);
    let mut groups: Vec<Vec<usize>> = groups.into_values().filter(|group| group.len() > 1).collect();
    groups.sort_unstable();
    for group in groups {
        replace(graph, &mut edit, &group, changes);
    }
    edit.apply(graph);
}

fn read_by_attention(graph: &Graph, found: &DefUse, value: ValueId) -> bool {
    let readers = &found.uses[value.index()];
    let reads = |&at: &usize| matches!(graph.nodes[at].op, Op::Attention(_)) && graph.nodes[at].input(3) != Some(value);
    !found.is_output[value.index()] && !readers.is_empty() && readers.iter().all(reads)
}

/// What nodes must have in common to be computed together; `None` for those that never are.
fn key(graph: &Graph, node: &Node) -> Option<String> {
    let weights = graph.constant(node.input(1)?)?;
    let bias = node.input(2).map(|id| graph.constant(id));
    if node.input(3).is_some() || bias == Some(None) {
        return None;
    }
    let fits = match &node.op {
        Op::MatMul(product) => weights.rank() == 2 && !product.trans_a && graph.value(node.input(0)?).shape.len() >= 2,
        Op::Conv(conv) => {
            conv.groups == 1
                && weights.shape()[2..].iter().all(|&size| size == 1)
                && conv.pads.iter().all(|&pad| pad == 0)
        }
        _ => false,
    };
    fits.then(|| format!("{:?} {:?} {:?} {}", node.input(0), node.op, weights.element(), bias.is_some()))
}

/// The tensors one behind the other along an axis.
fn joined(tensors: &[&Tensor], axis: usize) -> Option<Tensor> {
    let mut shape = tensors.first()?.shape().to_vec();
    shape[axis] = tensors.iter().map(|tensor| tensor.shape()[axis]).sum();
    let out = TensorType::new(tensors[0].element(), shape);
    let inputs: Vec<Option<&Tensor>> = tensors.iter().map(|&tensor| Some(tensor)).collect();
    Some(interpreter::run(&Op::Concat { axis }, &inputs, &[out]).ok()?.remove(0))
}

fn replace(graph: &mut Graph, edit: &mut Edit, group: &[usize], changes: &mut Vec<String>) {
    let first = &graph.nodes[group[0]];
    let (op, x) = (first.op.clone(), first.input(0));
    let outputs: Vec<ValueId> = group.iter().map(|&at| graph.nodes[at].outputs[0]).collect();
    let Some(mut shape) = graph.static_shape(outputs[0]) else { return };
    let (weight_axis, axis) = match &op {
        Op::MatMul(product) => (usize::from(!product.trans_b), shape.len() - 1),
        _ => (0, 1),
    };
    let constants = |position: usize| -> Option<Vec<&Tensor>> {
        group.iter().map(|&at| graph.constant(graph.nodes[at].input(position)?)).collect()
    };
    let Some(weights) = constants(1).and_then(|all| joined(&all, weight_axis)) else { return };
    let bias = constants(2).and_then(|all| joined(&all, 0));
    let parts: Option<Vec<Vec<usize>>> = outputs.iter().map(|&id| graph.static_shape(id)).collect();
    let Some(parts) = parts else { return };
    shape[axis] = parts.iter().map(|part| part[axis]).sum();
    let origins = joined_origins(graph, group);
    changes.push(format!("{}: {}", op.kind(), origins.join(" + ")));
    let name = graph.value(outputs[0]).name.clone();
    let weights = graph.add_constant(format!("{name}/weights beside others"), weights);
    let bias = bias.map(|bias| graph.add_constant(format!("{name}/bias beside others"), bias));
    let whole = graph.add_value(format!("{name} beside others"), graph.value(outputs[0]).element, &shape);
    let mut inputs = vec![x, Some(weights)];
    inputs.extend(bias.map(Some));
    edit.insert(group[0], Node { op, inputs, outputs: vec![whole], origins: origins.clone() });
    edit.insert(group[0], Node { op: Op::Split { axis }, inputs: vec![Some(whole)], outputs, origins });
    group.iter().for_each(|&at| edit.kill(at));
}
