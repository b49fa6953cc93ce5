//! Keeps masks as small as they are: what exporters blow up before it is needed is broadcast where it is used.
//!
//! Before: `mask (B,T) -> GatherND (all of it, in order) -> And true (S,T) -> Where -inf (B,1,S,T) -> Add scores -> y`.
//! After: `mask -> Reshape (B,1,1,T) -> Where -inf (B,1,1,T) -> Add scores -> y`.

use super::edit::{Edit, both_ways};
use planforge_graph::{
    ir::{Binary, DefUse, Graph, Node, Op, Tensor, ValueId},
    shape::broadcast,
};

pub fn run(graph: &mut Graph, changes: &mut Vec<String>) {
    for step in [gather_all, and_true] {
        step(graph, changes);
    }
    // An expansion moves one operator a round.
    loop {
        let before = changes.len();
        bypass(graph, changes);
        sink(graph, changes);
        if changes.len() == before {
            return;
        }
    }
}

/// `GatherND` of every element in order is a reshape.
fn gather_all(graph: &mut Graph, changes: &mut Vec<String>) {
    for at in 0..graph.nodes.len() {
        let node = &graph.nodes[at];
        let (Op::GatherNd { batch_dims: 0 }, Some(x), Some(indices)) = (&node.op, node.input(0), node.input(1)) else {
            continue;
        };
        let (Some(shape), Some(indices)) = (graph.static_shape(x), graph.constant(indices)) else { continue };
        if takes_all_in_order(&shape, indices) {
            changes.push(node.origins.join(" + "));
            let node = &mut graph.nodes[at];
            (node.op, node.inputs) = (Op::Reshape, vec![Some(x)]);
        }
    }
}

fn takes_all_in_order(shape: &[usize], indices: &Tensor) -> bool {
    let full = indices.shape().last() == Some(&shape.len()) && !shape.is_empty();
    let Some(indices) = indices.to_i64s().filter(|_| full) else { return false };
    let count: usize = shape.iter().product();
    let flat = indices.chunks_exact(shape.len()).map(|index| {
        index.iter().zip(shape).try_fold(0usize, |flat, (&at, &size)| {
            let at = if at < 0 { at + size as i64 } else { at };
            usize::try_from(at).ok().filter(|at| *at < size).map(|at| flat * size + at)
        })
    });
    indices.len() == count * shape.len() && flat.eq((0..count).map(Some))
}

/// `And` with what is true everywhere is at most an expansion.
fn and_true(graph: &mut Graph, changes: &mut Vec<String>) {
    for at in 0..graph.nodes.len() {
        let node = &graph.nodes[at];
        if node.op != Op::Binary(Binary::And) {
            continue;
        }
        let all_true = |id: ValueId| graph.constant(id).is_some_and(|mask| mask.bytes().iter().all(|&byte| byte != 0));
        if let Some((x, _)) = both_ways(node).into_iter().find(|&(_, mask)| all_true(mask)) {
            changes.push(node.origins.join(" + "));
            let node = &mut graph.nodes[at];
            (node.op, node.inputs) = (Op::Expand, vec![Some(x)]);
        }
    }
}

/// What a value was before it was expanded.
fn unexpanded(graph: &Graph, found: &DefUse, id: ValueId) -> Option<ValueId> {
    let node = &graph.nodes[found.definition[id.index()]?];
    node.input(0).filter(|_| node.op == Op::Expand)
}

fn broadcasts(op: &Op) -> bool {
    matches!(op, Op::Binary(_) | Op::Compare(_) | Op::Where)
}

/// Shape of what the node gives when the input at `position` is `id`; `None` when it does not take that.
fn shape_with(graph: &Graph, node: &Node, position: usize, id: ValueId) -> Option<Vec<usize>> {
    let input = |at: usize| if at == position { Some(id) } else { node.input(at) };
    let mut inputs = (0..node.inputs.len()).filter_map(input);
    let shape = inputs.try_fold(Vec::new(), |shape: Vec<usize>, id| broadcast(&shape, &graph.static_shape(id)?))?;
    // A PRelu's slope does not widen what it is applied to.
    let fits = node.op != Op::Binary(Binary::PRelu) || graph.static_shape(input(0)?)? == shape;
    fits.then_some(shape)
}

/// An operator that broadcasts anyway reads what is not expanded.
fn bypass(graph: &mut Graph, changes: &mut Vec<String>) {
    let found = graph.def_use();
    for at in 0..graph.nodes.len() {
        for position in 0..graph.nodes[at].inputs.len() {
            let node = &graph.nodes[at];
            let Some(x) = node.input(position).filter(|_| broadcasts(&node.op)) else { continue };
            let Some(x) = unexpanded(graph, &found, x) else { continue };
            if shape_with(graph, node, position, x) == graph.static_shape(node.outputs[0]) {
                changes.push(node.origins.join(" + "));
                graph.nodes[at].inputs[position] = Some(x);
            }
        }
    }
}

/// An operator whose result is as large as one expanded input and no other computes before the expansion.
fn sink(graph: &mut Graph, changes: &mut Vec<String>) {
    let found = graph.def_use();
    let mut edit = Edit::of(graph);
    for at in 0..graph.nodes.len() {
        let node = &graph.nodes[at];
        if !(broadcasts(&node.op) || matches!(node.op, Op::Unary(_) | Op::Activation(_) | Op::Cast { .. })) {
            continue;
        }
        let output = node.outputs[0];
        let expanded = (0..node.inputs.len()).find_map(|position| {
            let x = unexpanded(graph, &found, node.input(position)?)?;
            let shape = shape_with(graph, node, position, x)?;
            (Some(&shape) != graph.static_shape(output).as_ref()).then_some((position, x, shape))
        });
        let Some((position, x, shape)) = expanded else { continue };
        changes.push(node.origins.join(" + "));
        let name = format!("{}/small{}", graph.value(output).name, graph.values.len());
        let small = graph.add_value(name, graph.value(output).element, &shape);
        let mut node = Node { outputs: vec![small], ..graph.nodes[at].clone() };
        node.inputs[position] = Some(x);
        let origins = node.origins.clone();
        edit.insert(at, node);
        graph.nodes[at] = Node { op: Op::Expand, inputs: vec![Some(small)], outputs: vec![output], origins };
    }
    edit.apply(graph);
}
