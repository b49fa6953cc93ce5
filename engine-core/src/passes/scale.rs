//! Takes a scaling by a constant number into the matrix product before it.
//!
//! Before: `a, b -> MatMul -> Mul c -> y` (or `Div c`). After: `a, b -> MatMul(alpha c) -> y`.

use super::edit::{Edit, Replacement, both_ways, scalar, sole_producer, takes_epilogue};
use crate::ir::{Binary, Graph, MatMul, Op};

pub fn run(graph: &mut Graph, changes: &mut Vec<String>) {
    let found = graph.def_use();
    let mut edit = Edit::of(graph);
    for last in 0..graph.nodes.len() {
        let node = &graph.nodes[last];
        // Only the left side of a division is scaled by a constant.
        let (divided, ways) = match node.op {
            Op::Binary(Binary::Mul) => (false, 2),
            Op::Binary(Binary::Div) => (true, 1),
            _ => continue,
        };
        let matched = both_ways(node).into_iter().take(ways).find_map(|(x, factor)| {
            let factor = scalar(graph, factor)?;
            let (at, product) = sole_producer(graph, &found, x)?;
            let Op::MatMul(op) = product.op else { return None };
            let plain = takes_epilogue(graph, product) && product.input(2).is_none() && product.input(3).is_none();
            let same_shape = graph.value(x).shape == graph.value(node.outputs[0]).shape;
            let factor = if divided { 1.0 / factor } else { factor };
            let alpha = (f64::from(op.alpha) * factor) as f32;
            (plain && same_shape && alpha.is_finite() && !edit.is_dead(at)).then_some((at, MatMul { alpha, ..op }))
        });
        if let Some((at, op)) = matched {
            let inputs = graph.nodes[at].inputs.clone();
            edit.replace(graph, Replacement { parts: &[at], last, op: Op::MatMul(op), inputs }, changes);
        }
    }
    edit.apply(graph);
}
