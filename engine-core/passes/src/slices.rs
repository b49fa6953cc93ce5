//! Takes single slices above the transposes and reshapes they are taken from, so that a part of a packed tensor is a
//! plain slice of it.
//!
//! Before: `x (B,S,3 H D) -> Reshape (B,S,3,H,D) -> Transpose (3,B,H,S,D) -> Gather 1 -> y (B,H,S,D)`.
//! After: `x -> Slice H D..2 H D -> Reshape (B,S,H,D) -> Transpose (B,H,S,D) -> y`.
//!
//! Only gathers of one constant index; what they were taken from stays for whoever else reads it.

use super::edit::{Edit, joined_origins, producer};
use planforge_graph::ir::{DefUse, Graph, Node, Op, Tensor, ValueId};

pub fn run(graph: &mut Graph, changes: &mut Vec<String>) {
    // Each round takes every gather past one operator; chains of moves are merged before, so that two rounds do most.
    loop {
        let found = graph.def_use();
        let mut edit = Edit::of(graph);
        let before = changes.len();
        for at in 0..graph.nodes.len() {
            let Some((axis, index)) = single(graph, at) else { continue };
            let Some(taken) =
                past_transpose(graph, &found, at, axis).or_else(|| past_reshape(graph, &found, at, axis, index))
            else {
                continue;
            };
            let origins = joined_origins(graph, &[taken.above, at]);
            changes.push(origins.join(" + "));
            let output = graph.nodes[at].outputs[0];
            let name = format!("{}/part", graph.value(output).name);
            let part = graph.add_value(name, graph.value(output).element, &taken.shape);
            edit.insert(
                at,
                Node { op: taken.first, inputs: taken.inputs, outputs: vec![part], origins: origins.clone() },
            );
            let node = &mut graph.nodes[at];
            (node.op, node.inputs, node.origins) = (taken.then, vec![Some(part)], origins);
        }
        edit.apply(graph);
        if changes.len() == before {
            return;
        }
    }
}

/// Axis and index of a gather of one line by a constant.
fn single(graph: &Graph, at: usize) -> Option<(usize, usize)> {
    let node = &graph.nodes[at];
    let Op::Gather { axis } = node.op else { return None };
    let index = graph.constant(node.input(1)?).filter(|tensor| tensor.rank() == 0).and_then(Tensor::to_i64s)?[0];
    let size = graph.static_shape(node.input(0)?)?[axis] as i64;
    let index = if index < 0 { index + size } else { index };
    (0..size).contains(&index).then_some((axis, index as usize))
}

/// A gather taken past the operator above it.
struct Taken {
    above: usize,
    first: Op,
    inputs: Vec<Option<ValueId>>,
    /// Shape of what the first gives.
    shape: Vec<usize>,
    then: Op,
}

fn without(shape: &[usize], axis: usize) -> Vec<usize> {
    [&shape[..axis], &shape[axis + 1..]].concat()
}

fn past_transpose(graph: &Graph, found: &DefUse, at: usize, axis: usize) -> Option<Taken> {
    let node = &graph.nodes[at];
    let (above, transpose) = producer(graph, found, node.input(0)?)?;
    let Op::Transpose { perm } = &transpose.op else { return None };
    let x = transpose.input(0)?;
    let from = perm[axis];
    let renumbered = |axis: usize| if axis > from { axis - 1 } else { axis };
    let left = perm.iter().copied().filter(|&axis| axis != from).map(renumbered).collect();
    Some(Taken {
        above,
        first: Op::Gather { axis: from },
        inputs: vec![Some(x), node.input(1)],
        shape: without(&graph.static_shape(x)?, from),
        then: Op::Transpose { perm: left },
    })
}

/// Where the axis is the first of those that one axis of x was split into, its lines are stretches of that axis.
fn past_reshape(graph: &Graph, found: &DefUse, at: usize, axis: usize, index: usize) -> Option<Taken> {
    let (above, reshape) = producer(graph, found, graph.nodes[at].input(0)?)?;
    if reshape.op != Op::Reshape {
        return None;
    }
    let x = reshape.input(0)?;
    let (from, to) = (graph.static_shape(x)?, graph.static_shape(reshape.outputs[0])?);
    let lead: usize = to[..axis].iter().product();
    let split = (0..from.len()).find(|&split| from[..split].iter().product::<usize>() == lead && from[split] != 1)?;
    let stretch =
        from[split].checked_div(to[axis]).filter(|stretch| stretch * to[axis] == from[split] && *stretch > 0)?;
    let mut starts = vec![0; from.len()];
    starts[split] = index * stretch;
    let mut shape = from.clone();
    shape[split] = stretch;
    let steps = vec![1; from.len()];
    Some(Taken { above, first: Op::Slice { starts, steps }, inputs: vec![Some(x)], shape, then: Op::Reshape })
}
