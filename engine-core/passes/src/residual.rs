//! Takes the addition of a tensor of the same shape into the convolution or matrix product before it.
//!
//! Before: `x -> Conv(w, b) -> Add r -> y`. After: `x -> Conv(w, b, r) -> y`.
//!
//! When both sides are products, the later one takes the earlier one's result.

use super::edit::{Edit, Replacement, both_ways, sole_producer, takes_epilogue};
use planforge_graph::ir::{Binary, Graph, Op};

pub fn run(graph: &mut Graph, changes: &mut Vec<String>) {
    let found = graph.def_use();
    let mut edit = Edit::of(graph);
    for last in 0..graph.nodes.len() {
        if graph.nodes[last].op != Op::Binary(Binary::Add) {
            continue;
        }
        let node = &graph.nodes[last];
        let matched = both_ways(node)
            .into_iter()
            .filter_map(|(x, residual)| {
                let (at, product) = sole_producer(graph, &found, x)?;
                let open = takes_epilogue(graph, product) && product.input(3).is_none() && !edit.is_dead(at);
                let shape = &graph.value(node.outputs[0]).shape;
                let same = graph.value(x).shape == *shape && graph.value(residual).shape == *shape;
                (open && same).then_some((at, residual))
            })
            .max_by_key(|&(at, _)| at);
        if let Some((at, residual)) = matched {
            let product = &graph.nodes[at];
            let inputs = vec![product.input(0), product.input(1), product.input(2), Some(residual)];
            let op = product.op.clone();
            edit.replace(graph, Replacement { parts: &[at], last, op, inputs }, changes);
        }
    }
    edit.apply(graph);
}
