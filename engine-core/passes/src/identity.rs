//! Drops nodes that give what they are given, and of convolutions what computes nothing ([`taps`]).
//!
//! Before: `x -> Identity -> Reshape (to the shape it has) -> Mul 1 -> y`. After: readers of y read x.

use super::{edit::Edit, taps};
use planforge_graph::ir::{Activation, Binary, Graph, Node, Op, ValueId};

pub fn run(graph: &mut Graph, changes: &mut Vec<String>) {
    let mut edit = Edit::of(graph);
    for (index, node) in graph.nodes.iter().enumerate() {
        if let ([output], Some(source)) = (node.outputs.as_slice(), unchanged(graph, node)) {
            changes.push(node.origins.join(" + "));
            edit.kill(index);
            edit.redirect(*output, source);
        }
    }
    edit.apply(graph);
    taps::run(graph, changes);
}

/// The input that the node's only output equals.
fn unchanged(graph: &Graph, node: &Node) -> Option<ValueId> {
    let x = node.input(0)?;
    let output = node.outputs[0];
    let same_type = |id: ValueId| {
        graph.value(id).shape == graph.value(output).shape && graph.value(id).element == graph.value(output).element
    };
    let is = |id: ValueId, wanted: f64| graph.constant(id).is_some_and(|tensor| tensor.to_f64s() == [wanted]);
    let holds = match &node.op {
        Op::Identity | Op::Reshape | Op::Expand | Op::Tile | Op::Cast { .. } | Op::Split { .. } => true,
        Op::Transpose { perm } => perm.iter().copied().eq(0..perm.len()),
        Op::Slice { steps, .. } => steps.iter().all(|&step| step == 1),
        Op::Pad { begins, .. } => begins.iter().all(|&begin| begin == 0),
        Op::Concat { .. } => node.inputs.len() == 1,
        Op::Activation(Activation::Clip { min: None, max: None }) => true,
        Op::Binary(op @ (Binary::Mul | Binary::Add)) => {
            let neutral = if *op == Binary::Mul { 1.0 } else { 0.0 };
            let b = node.input(1)?;
            return [(x, b), (b, x)].into_iter().find(|&(x, b)| is(b, neutral) && same_type(x)).map(|(x, _)| x);
        }
        Op::Binary(Binary::Div) => is(node.input(1)?, 1.0),
        Op::Binary(Binary::Sub) => is(node.input(1)?, 0.0),
        _ => false,
    };
    Some(x).filter(|&x| holds && same_type(x))
}
