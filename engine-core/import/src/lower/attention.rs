//! Attention in terms of products and a softmax, so that its parts have kernels and passes know them.

use super::{super::builder::Lowering, Rule, sizes};
use crate::{element_type, error::Refusal};
use planforge_graph::ir::{Activation, Binary, Compare, ElementType, Op, ReduceKind, ValueId};

pub const RULES: &[Rule] = &[
    Rule {
        op_type: "Attention",
        attributes: &[
            "is_causal",
            "kv_num_heads",
            "left_window_size",
            "q_num_heads",
            "qk_matmul_output_mode",
            "right_window_size",
            "scale",
            "softcap",
            "softmax_precision",
        ],
        lower: attention,
    },
    Rule {
        op_type: "RotaryEmbedding",
        attributes: &["interleaved", "num_heads", "rotary_embedding_dim"],
        lower: rotary_embedding,
    },
];

/// (B,S,heads * size) as (B,heads,S,size).
pub fn split_heads(node: &mut Lowering<'_>, x: ValueId, heads: usize) -> Result<ValueId, Refusal> {
    let shape = node.shape(x);
    let [batch, length, width] = shape[..] else {
        return Err(Refusal::Impossible { what: "the rank", value: shape.len().to_string(), shape });
    };
    if heads == 0 || width % heads != 0 {
        return Err(Refusal::Impossible { what: "the number of heads", value: heads.to_string(), shape });
    }
    let x = node.reshape(x, vec![batch, length, heads, width / heads])?;
    node.transpose(x, &[0, 2, 1, 3])
}

/// (B,heads,S,size) as (B,S,heads * size).
pub fn join_heads(node: &mut Lowering<'_>, x: ValueId) -> Result<ValueId, Refusal> {
    let [batch, heads, length, size] = node.shape(x)[..] else { return Err(Refusal::Inner) };
    let x = node.transpose(x, &[0, 2, 1, 3])?;
    node.reshape(x, vec![batch, length, heads * size])
}

/// Each head of keys or values once for every head of queries that reads it.
pub fn repeat_heads(node: &mut Lowering<'_>, x: ValueId, heads: usize) -> Result<ValueId, Refusal> {
    let shape = node.shape(x);
    let [batch, own, length, size] = shape[..] else { return Err(Refusal::Inner) };
    if own == heads {
        return Ok(x);
    }
    if own == 0 || !heads.is_multiple_of(own) {
        return Err(Refusal::Impossible { what: "the number of heads", value: heads.to_string(), shape });
    }
    let x = node.reshape(x, vec![batch, own, 1, length, size])?;
    let x = node.emit_as(Op::Expand, &[x], vec![batch, own, heads / own, length, size])?;
    node.reshape(x, vec![batch, heads, length, size])
}

/// Number of heads that three-dimensional inputs need.
fn heads(node: &Lowering<'_>, name: &'static str) -> Result<usize, Refusal> {
    Ok(sizes(name, &[node.attributes.required_int(name)?])?[0])
}

/// Which keys a query may see: `true` where it may, `None` when it may see all.
struct Sight {
    /// Positions before the first query: a number, or one per image.
    past: usize,
    valid: Option<ValueId>,
    causal: bool,
    left: i64,
    right: i64,
}

fn sight(node: &mut Lowering<'_>, sight: &Sight, queries: usize, keys: usize) -> Result<Option<ValueId>, Refusal> {
    let column = node.counting(ElementType::I64, keys)?;
    let row = node.counting(ElementType::I64, queries)?;
    let row = node.reshape(row, vec![queries, 1])?;
    // Where each query stands among the keys.
    let mut at = node.binary_with(Binary::Add, row, sight.past as f64)?;
    let mut seen = Vec::new();
    if let Some(valid) = sight.valid {
        let batch: usize = node.shape(valid).iter().product();
        let valid = node.reshape(valid, vec![batch, 1, 1, 1])?;
        let valid = node.cast(valid, ElementType::I64)?;
        seen.push(node.compare(Compare::Less, column, valid)?);
        let before = node.binary_with(Binary::Sub, valid, queries as f64)?;
        at = node.binary(Binary::Add, row, before)?;
    }
    if sight.causal {
        seen.push(node.compare(Compare::LessOrEqual, column, at)?);
    }
    if sight.left >= 0 {
        let first = node.binary_with(Binary::Sub, at, sight.left as f64)?;
        seen.push(node.compare(Compare::GreaterOrEqual, column, first)?);
    }
    if sight.right >= 0 {
        let last = node.binary_with(Binary::Add, at, sight.right as f64)?;
        seen.push(node.compare(Compare::LessOrEqual, column, last)?);
    }
    let mut all = None;
    for one in seen {
        all = Some(match all {
            None => one,
            Some(all) => node.binary(Binary::And, all, one)?,
        });
    }
    Ok(all)
}

/// The mask of the model, made as long as the keys are: what it does not speak of may not be seen.
fn padded_mask(node: &mut Lowering<'_>, mask: ValueId, keys: usize, element: ElementType) -> Result<ValueId, Refusal> {
    let mut shape = node.shape(mask);
    let given = shape.last().copied().unwrap_or(keys);
    let is_bool = node.ty(mask).element == ElementType::Bool;
    if given == keys || shape.is_empty() || given == 1 {
        return Ok(mask);
    }
    let axis = shape.len() - 1;
    if given > keys {
        return Err(Refusal::Impossible { what: "the mask", value: format!("{shape:?}"), shape: vec![keys] });
    }
    shape[axis] = keys - given;
    let fill = match is_bool {
        true => node.scalar(ElementType::Bool, 0.0)?,
        false => node.scalar(element, f64::NEG_INFINITY)?,
    };
    let rest = node.emit_as(Op::Expand, &[fill], shape)?;
    node.emit(Op::Concat { axis }, &[mask, rest])
}

fn attention(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    if node.opset < 23 {
        return Err(Refusal::Unsupported { what: "Attention before opset 23".into() });
    }
    node.at_most(if node.opset < 24 { 6 } else { 7 })?;
    let (mut q, mut k, mut v) = (node.input(0, "Q")?, node.input(1, "K")?, node.input(2, "V")?);
    let flat = node.ty(q).rank() == 3;
    if flat {
        let (q_heads, kv_heads) = (heads(node, "q_num_heads")?, heads(node, "kv_num_heads")?);
        q = split_heads(node, q, q_heads)?;
        k = split_heads(node, k, kv_heads)?;
        v = split_heads(node, v, kv_heads)?;
    }
    if [q, k, v].iter().any(|&id| node.ty(id).rank() != 4) {
        return Err(Refusal::Unsupported { what: "attention over other than 3 or 4 axes".into() });
    }
    let element = node.ty(q).element;
    let mut past = 0;
    if let Some(before) = node.optional(4) {
        past = node.shape(before).get(2).copied().unwrap_or(0);
        k = node.emit(Op::Concat { axis: 2 }, &[before, k])?;
    }
    if let Some(before) = node.optional(5) {
        v = node.emit(Op::Concat { axis: 2 }, &[before, v])?;
    }
    let present = [k, v];
    let [batch, q_heads, queries, size] = node.shape(q)[..] else { return Err(Refusal::Inner) };
    let keys = node.shape(k)[2];
    let k = repeat_heads(node, k, q_heads)?;
    let v = repeat_heads(node, v, q_heads)?;
    let scale = match node.attributes.float("scale")? {
        Some(scale) => f64::from(scale),
        None => 1.0 / (size as f64).sqrt(),
    };
    let precision = match node.attributes.int("softmax_precision")? {
        Some(number) => i32::try_from(number).ok().and_then(|number| element_type(number).ok()).ok_or_else(|| {
            Refusal::Attribute { name: "softmax_precision".into(), reason: "names no type that is supported".into() }
        })?,
        None => element,
    };
    let windows = node.opset >= 25;
    let window = |name: &'static str| -> Result<i64, Refusal> {
        if windows { node.attributes.int_or(name, -1) } else { Ok(-1) }
    };
    let view = Sight {
        past,
        valid: node.optional(6),
        causal: node.attributes.flag("is_causal", false)?,
        left: window("left_window_size")?,
        right: window("right_window_size")?,
    };
    // Narrow floats are computed wide and rounded at the end.
    let wide = if element == ElementType::F64 { element } else { ElementType::F32 };
    let mode = node.attributes.int_or("qk_matmul_output_mode", 0)?;
    let softcap = node.attributes.float_or("softcap", 0.0)?;
    let (left, right) = (node.cast(q, wide)?, node.cast(k, wide)?);
    let right = node.transpose(right, &[0, 1, 3, 2])?;
    let scores = node.matmul(left, right)?;
    let scores = node.binary_with(Binary::Mul, scores, scale)?;
    let capped = if softcap == 0.0 {
        scores
    } else {
        let scaled = node.binary_with(Binary::Div, scores, softcap.into())?;
        let bent = node.emit(Op::Activation(Activation::Tanh), &[scaled])?;
        node.binary_with(Binary::Mul, bent, softcap.into())?
    };
    let mut biased = capped;
    let mut any_mask = None;
    let never = node.scalar(wide, f64::NEG_INFINITY)?;
    let nothing = node.scalar(wide, 0.0)?;
    let mut biases = Vec::new();
    if let Some(mask) = node.optional(3) {
        let mask = padded_mask(node, mask, keys, element)?;
        biases.push(match node.ty(mask).element {
            ElementType::Bool => node.choose(mask, nothing, never)?,
            _ => node.cast(mask, wide)?,
        });
    }
    if let Some(seen) = sight(node, &view, queries, keys)? {
        biases.push(node.choose(seen, nothing, never)?);
    }
    for bias in biases {
        any_mask = Some(match any_mask {
            None => bias,
            Some(other) => node.binary(Binary::Add, other, bias)?,
        });
    }
    if let Some(bias) = any_mask {
        biased = node.binary(Binary::Add, capped, bias)?;
        if node.shape(biased) != [batch, q_heads, queries, keys] {
            let value = format!("{:?}", node.shape(bias));
            return Err(Refusal::Impossible { what: "the mask", value, shape: node.shape(scores) });
        }
    }
    let logits = node.cast(biased, precision)?;
    let mut weights = node.emit(Op::Softmax { axis: 3, log: false }, &[logits])?;
    weights = node.cast(weights, wide)?;
    if let Some(bias) = any_mask {
        // A query that may see no key gets nothing.
        let axis = node.ty(bias).rank() - 1;
        let best = node.reduce(ReduceKind::Max, bias, &[axis], true)?;
        let blind = node.compare(Compare::Equal, best, never)?;
        weights = node.choose(blind, nothing, weights)?;
    }
    let values = node.cast(v, wide)?;
    let y = node.matmul(weights, values)?;
    let y = if flat { join_heads(node, y)? } else { y };
    let mut results = vec![node.cast(y, element)?, present[0], present[1]];
    let shown = match mode {
        0 => scores,
        1 => capped,
        2 => biased,
        3 => weights,
        other => {
            return Err(Refusal::Attribute { name: "qk_matmul_output_mode".into(), reason: format!("is {other}") });
        }
    };
    if node.wants(3) {
        results.push(node.cast(shown, element)?);
    }
    Ok(results)
}

/// Pairs of elements turned by an angle that depends on the position.
fn rotary_embedding(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(4)?;
    let given = node.input(0, "X")?;
    let caches = [node.input(1, "cos_cache")?, node.input(2, "sin_cache")?];
    let positions = node.optional(3);
    let flat = node.ty(given).rank() == 3;
    // (B,S,heads,size)
    let x = if flat {
        let heads = heads(node, "num_heads")?;
        let [batch, length, width] = node.shape(given)[..] else { return Err(Refusal::Inner) };
        if heads == 0 || width % heads != 0 {
            let value = heads.to_string();
            return Err(Refusal::Impossible { what: "the number of heads", value, shape: node.shape(given) });
        }
        node.reshape(given, vec![batch, length, heads, width / heads])?
    } else {
        node.attributes.int_or("num_heads", 0)?;
        node.transpose(given, &[0, 2, 1, 3])?
    };
    let [batch, length, _, size] = node.shape(x)[..] else { return Err(Refusal::Inner) };
    let turned = match node.attributes.int_or("rotary_embedding_dim", 0)? {
        0 => size,
        part => sizes("rotary_embedding_dim", &[part])?[0],
    };
    if turned > size || turned % 2 != 0 || turned == 0 {
        return Err(Refusal::Impossible { what: "the turned part", value: turned.to_string(), shape: node.shape(x) });
    }
    let half = turned / 2;
    let mut turns = Vec::new();
    for cache in caches {
        let cache = match positions {
            Some(positions) => node.emit(Op::Gather { axis: 0 }, &[cache, positions])?,
            None => cache,
        };
        let count: usize = node.shape(cache).iter().product();
        if count != batch * length * half {
            let value = format!("{:?}", node.shape(cache));
            return Err(Refusal::Impossible { what: "the cache", value, shape: node.shape(x) });
        }
        turns.push(node.reshape(cache, vec![batch, length, 1, half])?);
    }
    let interleaved = node.attributes.flag("interleaved", false)?;
    let result = turn(node, x, [turns[0], turns[1]], interleaved)?;
    if flat {
        let shape = node.shape(given);
        Ok(vec![node.reshape(result, shape)?])
    } else {
        Ok(vec![node.transpose(result, &[0, 2, 1, 3])?])
    }
}

/// Turns the first elements of every head of (B,S,heads,size): pairs of them, neighbours or of the two halves. The cosines
/// and sines are (B or 1,S,1,pairs).
pub fn turn(
    node: &mut Lowering<'_>,
    x: ValueId,
    [cos, sin]: [ValueId; 2],
    interleaved: bool,
) -> Result<ValueId, Refusal> {
    let size = node.shape(x)[3];
    let half = node.shape(cos)[3];
    let turned = 2 * half;
    let head = node.part(x, 3, 0, turned)?;
    let mut folded = node.shape(head);
    let axis = if interleaved { 4 } else { 3 };
    folded.truncate(3);
    folded.extend(if interleaved { [half, 2] } else { [2, half] });
    let pairs = node.reshape(head, folded.clone())?;
    let mut halves = Vec::new();
    for part in 0..2 {
        let piece = node.part(pairs, axis, part, 1)?;
        let mut shape = folded.clone();
        shape.remove(axis);
        halves.push(node.reshape(piece, shape)?);
    }
    let (a, b) = (halves[0], halves[1]);
    let products = [(a, cos), (b, sin), (a, sin), (b, cos)];
    let mut made = Vec::new();
    for (value, turn) in products {
        made.push(node.binary(Binary::Mul, value, turn)?);
    }
    let real = node.binary(Binary::Sub, made[0], made[1])?;
    let imaginary = node.binary(Binary::Add, made[2], made[3])?;
    let mut column = node.shape(real);
    column.insert(axis, 1);
    let (real, imaginary) = (node.reshape(real, column.clone())?, node.reshape(imaginary, column)?);
    let turned_pairs = node.emit(Op::Concat { axis }, &[real, imaginary])?;
    let shape = node.shape(head);
    let mut result = node.reshape(turned_pairs, shape)?;
    if turned < size {
        let rest = node.part(x, 3, turned, size - turned)?;
        result = node.emit(Op::Concat { axis: 3 }, &[result, rest])?;
    }
    Ok(result)
}
