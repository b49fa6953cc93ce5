//! Attention whose operands and weights are quantized becomes one of 8-bit integers.
//!
//! Before: `q -> Dequantize, k -> Dequantize -> MatMul -> Div -> Add mask -> Softmax -> Quantize -> Dequantize, v -> Dequantize
//! -> MatMul -> Quantize -> y`, with a scale or none, a mask or none, and the last quantization or none.
//! After: `q, k, v, mask -> integer_attention -> y`. Keys that were transposed for the product are no more.

use super::{
    super::{
        attention::bare,
        edit::{Edit, Replacement, both_ways},
    },
    floats::{Operand, operand, quantization},
    is_scale, is_short,
    known::Known,
};
use planforge_graph::{
    ir::{Binary, ElementType, Graph, NamedOp, Node, Op, Tensor, ValueId},
    named::integer_attention::ATTENTION,
    shape::broadcast,
};

pub fn run(graph: &mut Graph, changes: &mut Vec<String>) {
    let found = graph.def_use();
    let mut edit = Edit::of(graph);
    for softmax in 0..graph.nodes.len() {
        let Some(matched) = matched(&Known { graph, found: &found }, softmax) else { continue };
        replace(graph, &mut edit, matched, changes);
    }
    edit.apply(graph);
}

/// A quantized value: its type, scale and zero point.
type Steps = (ElementType, f64, f64);

struct Matched {
    q: Operand,
    k: Operand,
    v: Operand,
    /// Keys lie as (.., depth, keys).
    turned: bool,
    /// Those keys, transposed from others by the node that has this permutation.
    from: Option<(ValueId, Vec<usize>)>,
    mask: Option<ValueId>,
    scale: f32,
    weights: Steps,
    result: Option<Steps>,
    factor: f64,
    /// All its nodes but the last one.
    parts: Vec<usize>,
    last: usize,
}

/// The node that makes a value which nobody else reads.
fn sole<'a>(known: &Known<'a>, id: ValueId) -> Option<(usize, &'a Node)> {
    known.user(id)?;
    known.producer(id)
}

/// The product behind a value, what it is multiplied by, and the nodes of both.
fn scaled_product(known: &Known<'_>, id: ValueId) -> Option<(usize, f64, Vec<usize>)> {
    let (at, node) = sole(known, id)?;
    if bare(node).is_some() {
        return Some((at, 1.0, vec![at]));
    }
    let (product, by) = match node.op {
        Op::Binary(Binary::Mul) => both_ways(node).into_iter().find_map(|(x, by)| Some((x, known.scalar(by)?)))?,
        Op::Binary(Binary::Div) => (node.input(0)?, 1.0 / known.scalar(node.input(1)?)?),
        _ => return None,
    };
    let (product_at, node) = sole(known, product)?;
    let same = known.shape(product)? == known.shape(id)?;
    (same && bare(node).is_some()).then(|| (product_at, by, vec![at, product_at]))
}

fn matched(known: &Known<'_>, softmax: usize) -> Option<Matched> {
    let graph = known.graph;
    let node = &graph.nodes[softmax];
    let Op::Softmax { axis, log: false } = node.op else { return None };
    let scores = node.input(0)?;
    let shape = known.shape(scores)?;
    let rank = shape.len();
    if axis + 1 != rank || !(3..=4).contains(&rank) || graph.value(scores).element != ElementType::F32 {
        return None;
    }
    // Forwards: weights as integers, and what they weigh.
    let (quantize, there) = known.user(node.outputs[0])?;
    let weights = quantization(known, quantize)?;
    let (dequantize, back) = known.user(there.outputs[0])?;
    let floats = back.outputs[0];
    let same = operand(known, floats).is_some_and(|of| (of.element, of.scale, of.zero) == weights);
    let (context, product) = known.user(floats)?;
    let plain = bare(product).is_some_and(|product| product.alpha == 1.0 && !product.trans_b);
    if !same || !plain || product.input(0)? != floats {
        return None;
    }
    let v = operand(known, product.input(1)?)?;
    // Backwards: mask, scale and product.
    let (mut mask, mut parts) = (None, vec![softmax, quantize, dequantize]);
    let (product_at, by, mut behind) = match scaled_product(known, scores) {
        Some(found) => found,
        None => {
            let (at, add) = sole(known, scores).filter(|(_, node)| node.op == Op::Binary(Binary::Add))?;
            parts.push(at);
            let (found, other) =
                both_ways(add).into_iter().find_map(|(x, other)| Some((scaled_product(known, x)?, other)))?;
            let of_mask = known.shape(other)?;
            let product = graph.nodes[*found.2.first()?].outputs[0];
            let fits = of_mask.len() <= rank && broadcast(&of_mask, &shape).as_deref() == Some(&shape[..]);
            if !fits || known.shape(product)? != shape || graph.value(other).element != ElementType::F32 {
                return None;
            }
            mask = Some(other);
            found
        }
    };
    parts.append(&mut behind);
    let first = &graph.nodes[product_at];
    let how = bare(first)?;
    let (q, k) = (operand(known, first.input(0)?)?, operand(known, first.input(1)?)?);
    let shapes = [known.shape(q.value)?, known.shape(k.value)?, known.shape(v.value)?];
    // Nothing is broadcast: every head has queries, keys and values of its own.
    let lead = &shape[..rank - 2];
    if shapes.iter().any(|of| of.len() != rank || of[..rank - 2] != *lead) || shape.contains(&0) {
        return None;
    }
    let (depth, keys) = (shapes[0][rank - 1], shape[rank - 1]);
    let scale = (q.scale * k.scale * f64::from(how.alpha) * by) as f32;
    if !is_short(depth) || !is_short(keys) || !scale.is_normal() || !(weights.1 as f32).is_normal() {
        return None;
    }
    let mut last = context;
    let result = known.user(product.outputs[0]).and_then(|(user, _)| Some((user, quantization(known, user)?)));
    let result = result.map(|(user, steps)| {
        parts.push(context);
        last = user;
        steps
    });
    let factor = weights.1 * v.scale / result.map_or(1.0, |(_, scale, _)| scale);
    let turned = !how.trans_b;
    let from = sole(known, k.value).filter(|_| turned).and_then(|(_, node)| match &node.op {
        Op::Transpose { perm } => Some((node.input(0)?, perm.clone())),
        _ => None,
    });
    is_scale(factor).then_some(Matched { q, k, v, turned, from, mask, scale, weights, result, factor, parts, last })
}

fn replace(graph: &mut Graph, edit: &mut Edit, of: Matched, changes: &mut Vec<String>) {
    let output = graph.nodes[of.last].outputs[0];
    let name = graph.value(output).name.clone();
    let factor = graph.add_constant(format!("{name} (factor)"), Tensor::scalar(of.factor));
    let (element, scale, zero) = of.weights;
    let to = of.result.map_or_else(|| "f32".to_owned(), |(element, ..)| element.to_string());
    let zeros = [of.q.zero, of.k.zero, of.v.zero, zero, of.result.map_or(0.0, |(_, _, zero)| zero)];
    let (mut keys, mut turned) = (of.k.value, of.turned);
    // As they were but for their heads, each key's numbers lie side by side.
    if let (Some((x, mut perm)), Some(mut shape)) = (of.from, graph.static_shape(keys)) {
        let rank = perm.len();
        perm.swap(rank - 2, rank - 1);
        shape.swap(rank - 2, rank - 1);
        keys = graph.add_value(format!("{name} (keys)"), graph.value(keys).element, &shape);
        let origins = graph.nodes[of.last].origins.clone();
        edit.insert(of.last, Node { op: Op::Transpose { perm }, inputs: vec![Some(x)], outputs: vec![keys], origins });
        turned = false;
    }
    let op = NamedOp::new(ATTENTION)
        .with_ints("zeros", &zeros.map(|zero| zero as i64))
        .with_int("turned", turned.into())
        .with_floats("scale", &[of.scale])
        .with_floats("weights", &[scale as f32])
        .with_text("weights", &element.to_string())
        .with_text("to", &to);
    let inputs = vec![Some(of.q.value), Some(keys), Some(of.v.value), of.mask, Some(factor)];
    let op = Op::Named(Box::new(op));
    edit.replace(graph, Replacement { parts: &of.parts, last: of.last, op, inputs }, changes);
}
