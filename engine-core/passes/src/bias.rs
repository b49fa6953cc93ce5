//! Takes the addition of a vector into the convolution or matrix product before it.
//!
//! Before: `x -> MatMul(w) -> Add b -> y`, b a vector along the last axis (for a convolution: along the channels).
//! After: `x -> MatMul(w, b) -> y`.

use super::edit::{Edit, Replacement, both_ways, sole_producer, takes_epilogue};
use planforge_graph::ir::{Binary, Graph, Node, Op, Tensor, ValueId};

pub fn run(graph: &mut Graph, changes: &mut Vec<String>) {
    let found = graph.def_use();
    let mut edit = Edit::of(graph);
    for last in 0..graph.nodes.len() {
        if graph.nodes[last].op != Op::Binary(Binary::Add) {
            continue;
        }
        let node = &graph.nodes[last];
        let matched = both_ways(node).into_iter().find_map(|(x, b)| {
            let (at, product) = sole_producer(graph, &found, x)?;
            let open = takes_epilogue(graph, product) && product.input(2).is_none() && product.input(3).is_none();
            let same_shape = graph.value(x).shape == graph.value(node.outputs[0]).shape;
            (open && same_shape && !edit.is_dead(at)).then_some(())?;
            Some((at, vector(graph, product, b)?))
        });
        if let Some((at, bias)) = matched {
            let (op, x, w) = (graph.nodes[at].op.clone(), graph.nodes[at].input(0), graph.nodes[at].input(1));
            let bias = match bias {
                Vector::Value(id) => id,
                Vector::Reshaped(tensor) => {
                    let name = format!("{}/bias", graph.value(graph.nodes[last].outputs[0]).name);
                    graph.add_constant(name, tensor)
                }
            };
            edit.replace(graph, Replacement { parts: &[at], last, op, inputs: vec![x, w, Some(bias)] }, changes);
        }
    }
    edit.apply(graph);
}

enum Vector {
    Value(ValueId),
    /// A constant of another shape that means the same.
    Reshaped(Tensor),
}

/// `b` as a bias of `product`: one number per filter, or per column.
fn vector(graph: &Graph, product: &Node, b: ValueId) -> Option<Vector> {
    let out = graph.static_shape(product.outputs[0])?;
    let shape = graph.static_shape(b)?;
    // A product of two vectors, or with one on the right, has no columns to run along.
    let right = graph.value(product.input(1)?).shape.len();
    if right < 2 || out.is_empty() {
        return None;
    }
    // How many axes follow the one the bias runs along.
    let behind = if matches!(product.op, Op::Conv(_)) { out.len() - 2 } else { 0 };
    let length = out[out.len() - 1 - behind];
    if shape == [length] && behind == 0 {
        return Some(Vector::Value(b));
    }
    let tensor = graph.constant(b)?;
    let at = shape.len().checked_sub(1 + behind)?;
    let others_are_one = shape.iter().enumerate().all(|(axis, &size)| axis == at || size == 1);
    match others_are_one && shape[at] == length && shape.len() <= out.len() {
        true => Some(Vector::Reshaped(tensor.reshaped(vec![length]).ok()?)),
        false => None,
    }
}
