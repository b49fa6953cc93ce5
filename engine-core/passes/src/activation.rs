//! Takes an activation into the convolution or matrix product before it.
//!
//! Before: `x -> Conv(w, b) -> Relu -> y`. After: `x -> Conv(w, b; Relu) -> y`.

use super::edit::{Edit, Replacement, sole_producer, takes_epilogue};
use planforge_graph::ir::{Graph, Op};

pub fn run(graph: &mut Graph, changes: &mut Vec<String>) {
    let found = graph.def_use();
    let mut edit = Edit::of(graph);
    for last in 0..graph.nodes.len() {
        let Op::Activation(activation) = graph.nodes[last].op else { continue };
        let Some(x) = graph.nodes[last].input(0) else { continue };
        let Some((at, product)) = sole_producer(graph, &found, x) else { continue };
        if !takes_epilogue(graph, product) || edit.is_dead(at) {
            continue;
        }
        let mut op = product.op.clone();
        match &mut op {
            Op::Conv(conv) => conv.epilogue.activation = Some(activation),
            Op::MatMul(product) => product.epilogue.activation = Some(activation),
            _ => continue,
        }
        let inputs = product.inputs.clone();
        edit.replace(graph, Replacement { parts: &[at], last, op, inputs }, changes);
    }
    edit.apply(graph);
}
