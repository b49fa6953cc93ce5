//! How much a graph computes, counted from its shapes.

use crate::ir::{Graph, Node, Op};

/// Multiply-accumulates of all products, convolutions and attentions of a graph of static shapes; what has no static
/// shape counts as nothing.
pub fn multiply_accumulates(graph: &Graph) -> u64 {
    graph.nodes.iter().map(|node| of_node(graph, node).unwrap_or(0)).fold(0, u64::saturating_add)
}

fn of_node(graph: &Graph, node: &Node) -> Option<u64> {
    let shape = |position: usize| graph.static_shape(node.input(position)?);
    let product = |sizes: &[usize]| sizes.iter().fold(1u64, |product, &size| product.saturating_mul(size as u64));
    let out = graph.static_shape(*node.outputs.first()?)?;
    Some(match &node.op {
        // Every element of the result is a sum over one filter.
        Op::Conv(_) => product(&out).saturating_mul(product(&shape(1)?[1..])),
        // Every element of the input is spread over one filter.
        Op::ConvTranspose(_) => product(&shape(0)?).saturating_mul(product(&shape(1)?[1..])),
        Op::MatMul(of) => {
            let a = shape(0)?;
            let depth = if of.trans_a && a.len() > 1 { a[a.len() - 2] } else { *a.last()? };
            product(&out).saturating_mul(depth as u64)
        }
        // Scores, and what is added up by them.
        Op::Attention(_) => {
            let (q, v) = (shape(0)?, shape(2)?);
            let scores = product(&q).saturating_mul(v[1] as u64);
            scores.saturating_add(product(&out).saturating_mul(v[1] as u64))
        }
        _ => 0,
    })
}
