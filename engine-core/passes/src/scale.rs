//! Takes scalings by a constant number into the matrix product they surround.
//!
//! Before: `a -> Mul c -> MatMul(b) -> Mul d -> y` (or `Div`, or on b). After: `a, b -> MatMul(alpha c d) -> y`.

use super::edit::{Edit, Replacement, both_ways, scalar, sole_producer, takes_epilogue};
use planforge_graph::ir::{Binary, ElementType, Graph, MatMul, Node, Op, ValueId};

pub fn run(graph: &mut Graph, changes: &mut Vec<String>) {
    scale_before(graph, changes);
    scale_after(graph, changes);
}

/// What a node scales, and by how much.
fn scaled(graph: &Graph, node: &Node) -> Option<(ValueId, f64)> {
    // Only the left side of a division is scaled by a constant.
    let (divided, ways) = match node.op {
        Op::Binary(Binary::Mul) => (false, 2),
        Op::Binary(Binary::Div) => (true, 1),
        _ => return None,
    };
    let (x, factor) =
        both_ways(node).into_iter().take(ways).find_map(|(x, factor)| Some((x, scalar(graph, factor)?)))?;
    let same_shape = graph.value(x).shape == graph.value(node.outputs[0]).shape;
    same_shape.then_some((x, if divided { 1.0 / factor } else { factor }))
}

/// The product, which gives `element`, scaled by `factor` as well, as long as that is a number it can hold.
fn times(op: MatMul, factor: f64, element: ElementType) -> Option<MatMul> {
    let exact = f64::from(op.alpha) * factor;
    let alpha = exact as f32;
    // The operator holds its scale in single precision: in double precision, only what that holds exactly.
    let held = element != ElementType::F64 || f64::from(alpha) == exact;
    (alpha.is_finite() && alpha != 0.0 && held).then_some(MatMul { alpha, ..op })
}

fn scale_before(graph: &mut Graph, changes: &mut Vec<String>) {
    let found = graph.def_use();
    let mut edit = Edit::of(graph);
    for last in 0..graph.nodes.len() {
        for side in 0..2 {
            let node = &graph.nodes[last];
            let matched = node.input(side).and_then(|input| {
                let Op::MatMul(op) = node.op else { return None };
                let (at, scaling) = sole_producer(graph, &found, input)?;
                let (x, factor) = scaled(graph, scaling).filter(|_| !edit.is_dead(at))?;
                Some((at, x, times(op, factor, graph.value(node.outputs[0]).element)?))
            });
            if let Some((at, x, op)) = matched {
                let mut inputs = node.inputs.clone();
                inputs[side] = Some(x);
                edit.replace(graph, Replacement { parts: &[at], last, op: Op::MatMul(op), inputs }, changes);
            }
        }
    }
    edit.apply(graph);
}

fn scale_after(graph: &mut Graph, changes: &mut Vec<String>) {
    let found = graph.def_use();
    let mut edit = Edit::of(graph);
    for last in 0..graph.nodes.len() {
        let matched = scaled(graph, &graph.nodes[last]).and_then(|(x, factor)| {
            let (at, product) = sole_producer(graph, &found, x)?;
            let Op::MatMul(op) = product.op else { return None };
            let plain = takes_epilogue(graph, product) && product.input(2).is_none() && product.input(3).is_none();
            let op = times(op, factor, graph.value(x).element)?;
            (plain && !edit.is_dead(at)).then_some((at, op))
        });
        if let Some((at, op)) = matched {
            let inputs = graph.nodes[at].inputs.clone();
            edit.replace(graph, Replacement { parts: &[at], last, op: Op::MatMul(op), inputs }, changes);
        }
    }
    edit.apply(graph);
}
