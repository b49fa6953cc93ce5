//! Attention of `com.microsoft`, as ONNX Runtime's optimizer and the exporters of language models emit it: with masks, with
//! keys and values of earlier runs, with heads that share them, and turned by position.

use super::{
    super::builder::Lowering,
    Rule,
    attention::{join_heads, repeat_heads, split_heads, turn},
    microsoft_integer::matmul_to_float,
    sizes,
};
use crate::error::Refusal;
use planforge_graph::ir::{Activation, Binary, Compare, ElementType, MatMul, Op, ValueId};

pub const RULES: &[Rule] = &[
    Rule {
        op_type: "Attention",
        attributes: &[
            "do_rotary",
            "mask_filter_value",
            "num_heads",
            "past_present_share_buffer",
            "qkv_hidden_sizes",
            "rotary_embedding_dim",
            "scale",
            "unidirectional",
        ],
        lower: attention,
    },
    Rule {
        op_type: "QAttention",
        attributes: &[
            "do_rotary",
            "mask_filter_value",
            "num_heads",
            "past_present_share_buffer",
            "rotary_embedding_dim",
            "scale",
            "unidirectional",
        ],
        lower: quantized_attention,
    },
    Rule {
        op_type: "MultiHeadAttention",
        attributes: &["mask_filter_value", "num_heads", "scale", "unidirectional"],
        lower: multi_head_attention,
    },
    Rule {
        op_type: "GroupQueryAttention",
        attributes: &[
            "do_rotary",
            "k_quant_type",
            "kv_cache_bit_width",
            "kv_num_heads",
            "local_window_size",
            "num_heads",
            "qk_output",
            "rotary_interleaved",
            "scale",
            "smooth_softmax",
            "softcap",
            "v_quant_type",
        ],
        lower: group_query_attention,
    },
    Rule {
        op_type: "RotaryEmbedding",
        attributes: &["interleaved", "is_packed_batching", "num_heads", "rotary_embedding_dim", "scale"],
        lower: rotary_embedding,
    },
];

/// What both attentions have in common.
struct Heads {
    count: usize,
    scale: Option<f32>,
    /// Added where the mask says no.
    filter: f64,
    causal: bool,
}

fn heads(node: &Lowering<'_>) -> Result<Heads, Refusal> {
    Ok(Heads {
        count: sizes("num_heads", &[node.attributes.required_int("num_heads")?])?[0],
        scale: node.attributes.float("scale")?.filter(|&scale| scale != 0.0),
        filter: node.attributes.float_or("mask_filter_value", -10_000.0)?.into(),
        causal: node.attributes.flag("unidirectional", false)?,
    })
}

/// The sizes of a value of so many axes.
fn shape_of<const RANK: usize>(node: &Lowering<'_>, x: ValueId, what: &'static str) -> Result<[usize; RANK], Refusal> {
    let shape = node.shape(x);
    <[usize; RANK]>::try_from(&shape[..]).map_err(|_| Refusal::Impossible {
        what,
        value: format!("{} axes", shape.len()),
        shape,
    })
}

/// A mask of keys as what is added to the scores: (B) counts the keys that are seen; (B,L), and (B,S,L) for each query, have
/// 1 for each of them.
fn key_bias(
    node: &mut Lowering<'_>,
    mask: ValueId,
    [queries, keys]: [usize; 2],
    filter: f64,
) -> Result<ValueId, Refusal> {
    let seen = match node.shape(mask)[..] {
        [batch] => {
            let column = node.counting(ElementType::I32, keys)?;
            let count = node.reshape(mask, vec![batch, 1, 1, 1])?;
            let count = node.cast(count, ElementType::I32)?;
            node.compare(Compare::Less, column, count)?
        }
        [batch, length] if length == keys => {
            let mask = node.reshape(mask, vec![batch, 1, 1, keys])?;
            node.cast(mask, ElementType::Bool)?
        }
        [batch, rows, length] if rows == queries && length == keys => {
            let mask = node.reshape(mask, vec![batch, 1, queries, keys])?;
            node.cast(mask, ElementType::Bool)?
        }
        _ => {
            let value = format!("{:?}", node.shape(mask));
            return Err(Refusal::Impossible { what: "the mask", value, shape: vec![queries, keys] });
        }
    };
    let (nothing, filter) = (node.scalar(ElementType::F32, 0.0)?, node.scalar(ElementType::F32, filter)?);
    node.choose(seen, nothing, filter)
}

/// Queries, keys and values of (B,heads,S,size) to (B,S,heads * size).
fn attend(
    node: &mut Lowering<'_>,
    heads: &Heads,
    [q, k, v]: [ValueId; 3],
    mask: Option<ValueId>,
    bias: Option<ValueId>,
) -> Result<ValueId, Refusal> {
    let element = node.ty(q).element;
    if element != ElementType::F32 {
        return Err(Refusal::Element(element.to_string()));
    }
    let [_, _, queries, size] = shape_of(node, q, "the queries")?;
    let [_, _, keys, _] = shape_of(node, k, "the keys")?;
    let scale = heads.scale.unwrap_or_else(|| 1.0 / (size as f32).sqrt());
    let product = MatMul { alpha: scale, trans_b: true, ..MatMul::default() };
    let mut scores = node.emit(Op::MatMul(product), &[q, k])?;
    if let Some(mask) = mask {
        let bias = key_bias(node, mask, [queries, keys], heads.filter)?;
        scores = node.binary(Binary::Add, scores, bias)?;
    }
    if let Some(bias) = bias {
        scores = node.binary(Binary::Add, scores, bias)?;
    }
    if heads.causal {
        let column = node.counting(ElementType::I64, keys)?;
        let row = node.counting(ElementType::I64, queries)?;
        let row = node.reshape(row, vec![queries, 1])?;
        let row = node.binary_with(Binary::Add, row, keys as f64 - queries as f64)?;
        let seen = node.compare(Compare::LessOrEqual, column, row)?;
        let never = node.scalar(element, f32::MIN.into())?;
        scores = node.choose(seen, scores, never)?;
    }
    let weights = node.emit(Op::Softmax { axis: 3, log: false }, &[scores])?;
    let y = node.matmul(weights, v)?;
    join_heads(node, y)
}

/// What the operators with one product for queries, keys and values do behind it.
fn attend_packed(
    node: &mut Lowering<'_>,
    packed: ValueId,
    [mask, past, bias]: [Option<ValueId>; 3],
) -> Result<Vec<ValueId>, Refusal> {
    node.only_outputs(2)?;
    for name in ["do_rotary", "past_present_share_buffer", "rotary_embedding_dim"] {
        node.attributes.must_be(name, 0)?;
    }
    let heads = heads(node)?;
    let width = node.shape(packed).last().copied().unwrap_or(0);
    let parts = match node.attributes.ints("qkv_hidden_sizes")? {
        Some(parts) => sizes("qkv_hidden_sizes", parts)?,
        None => vec![width / 3; 3],
    };
    if parts.len() != 3 || parts.iter().sum::<usize>() != width || node.ty(packed).rank() != 3 {
        let (value, shape) = (format!("{parts:?}"), node.shape(packed));
        return Err(Refusal::Impossible { what: "the widths of queries, keys and values", value, shape });
    }
    let mut each = Vec::new();
    let mut start = 0;
    for part in parts {
        let piece = node.part(packed, 2, start, part)?;
        each.push(split_heads(node, piece, heads.count)?);
        start += part;
    }
    let (mut k, mut v) = (each[1], each[2]);
    if let Some(past) = past {
        // Keys, then values: (2,B,heads,P,size).
        let [_, batch, count, length, size] = shape_of(node, past, "the past state")?;
        for (at, new) in [&mut k, &mut v].into_iter().enumerate() {
            let before = node.part(past, 0, at, 1)?;
            let before = node.reshape(before, vec![batch, count, length, size])?;
            *new = node.emit(Op::Concat { axis: 2 }, &[before, *new])?;
        }
    }
    let y = attend(node, &heads, [each[0], k, v], mask, bias)?;
    if !node.wants(1) {
        return Ok(vec![y]);
    }
    let mut present = Vec::new();
    for state in [k, v] {
        let shape = [&[1], &node.shape(state)[..]].concat();
        present.push(node.reshape(state, shape)?);
    }
    Ok(vec![y, node.emit(Op::Concat { axis: 0 }, &present)?])
}

/// Self-attention with one product for queries, keys and values.
fn attention(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(6)?;
    let (x, weights) = (node.input(0, "input")?, node.input(1, "weights")?);
    let product = Op::MatMul(MatMul::default());
    let packed = node.emit_optional(product, vec![Some(x), Some(weights), node.optional(2)], &[])?;
    let others = [node.optional(3), node.optional(4), node.optional(5)];
    attend_packed(node, packed, others)
}

/// The same with that product of integers.
fn quantized_attention(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(9)?;
    let (x, weights) = (node.input(0, "input")?, node.input(1, "weight")?);
    let (x_scale, weight_scale) = (node.input(3, "input_scale")?, node.input(4, "weight_scale")?);
    let (bias, zeros) = (node.optional(2), [node.optional(6), node.optional(7)]);
    let (mask, past) = (node.optional(5), node.optional(8));
    let given = vec![Some(x), Some(weights), Some(x_scale), Some(weight_scale), zeros[0], zeros[1], bias];
    let inputs = std::mem::replace(&mut node.inputs, given);
    let product = matmul_to_float(node);
    node.inputs = inputs;
    let packed = product?.first().copied().ok_or(Refusal::Inner)?;
    attend_packed(node, packed, [mask, past, None])
}

fn multi_head_attention(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(8)?;
    node.only_outputs(3)?;
    let heads = heads(node)?;
    let given = [node.input(0, "query")?, node.input(1, "key")?, node.input(2, "value")?];
    let mut start = 0;
    let mut each = Vec::new();
    for mut id in given {
        // Keys and values of another run, heads apart already: nothing is added to them any more.
        if node.ty(id).rank() == 4 && !each.is_empty() {
            each.push(id);
            continue;
        }
        let [.., width] = shape_of::<3>(node, id, "queries, keys or values")?;
        if let Some(bias) = node.optional(3) {
            let total = node.shape(bias).iter().product::<usize>();
            if node.ty(bias).rank() != 1 || start + width > total {
                return Err(Refusal::Impossible { what: "the bias", value: total.to_string(), shape: node.shape(id) });
            }
            let part = node.part(bias, 0, start, width)?;
            id = node.binary(Binary::Add, id, part)?;
        }
        start += width;
        each.push(split_heads(node, id, heads.count)?);
    }
    for (at, past) in [(1, node.optional(6)), (2, node.optional(7))] {
        if let Some(past) = past {
            each[at] = node.emit(Op::Concat { axis: 2 }, &[past, each[at]])?;
        }
    }
    let (mask, bias) = (node.optional(4), node.optional(5));
    let y = attend(node, &heads, [each[0], each[1], each[2]], mask, bias)?;
    Ok(vec![y, each[1], each[2]])
}

/// Cosines or sines of a table, for positions (B or 1,S): (B or 1,S,1,pairs).
fn looked_up(node: &mut Lowering<'_>, table: ValueId, positions: ValueId) -> Result<ValueId, Refusal> {
    let [batch, length] = shape_of(node, positions, "the positions")?;
    let [_, half] = shape_of(node, table, "the cache")?;
    let rows = node.emit(Op::Gather { axis: 0 }, &[table, positions])?;
    node.reshape(rows, vec![batch, length, 1, half])
}

/// (B,S,heads,size) turned by the rows that tables have for its positions.
fn turned(
    node: &mut Lowering<'_>,
    x: ValueId,
    tables: [ValueId; 2],
    positions: ValueId,
    interleaved: bool,
) -> Result<ValueId, Refusal> {
    let [batch, length, _, size] = shape_of(node, x, "the heads")?;
    let turns = [looked_up(node, tables[0], positions)?, looked_up(node, tables[1], positions)?];
    let [cos, sin] = [node.shape(turns[0]), node.shape(turns[1])];
    let fits = (cos[0] == batch || cos[0] == 1) && cos[1] == length && cos == sin && (1..=size / 2).contains(&cos[3]);
    if !fits {
        let value = format!("{:?}", node.shape(turns[0]));
        return Err(Refusal::Impossible { what: "the cache", value, shape: node.shape(x) });
    }
    turn(node, x, turns, interleaved)
}

fn rotary_embedding(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(4)?;
    node.attributes.must_be("is_packed_batching", 0)?;
    if node.attributes.float_or("scale", 1.0)? != 1.0 {
        return Err(Refusal::Attribute { name: "scale".into(), reason: "is not 1".into() });
    }
    let (given, positions) = (node.input(0, "input")?, node.input(1, "position_ids")?);
    let tables = [node.input(2, "cos_cache")?, node.input(3, "sin_cache")?];
    let [_, half] = shape_of(node, tables[0], "the cache")?;
    let part = sizes("rotary_embedding_dim", &[node.attributes.int_or("rotary_embedding_dim", 0)?])?[0];
    let count = sizes("num_heads", &[node.attributes.int_or("num_heads", 0)?])?[0];
    let flat = node.ty(given).rank() == 3;
    let x = if flat {
        let [batch, length, width] = shape_of(node, given, "the input")?;
        let size = if part == 0 { 2 * half } else { width.checked_div(count).unwrap_or(0) };
        if size == 0 || width % size != 0 {
            let value = format!("{count} of {size}");
            return Err(Refusal::Impossible { what: "the number of heads", value, shape: node.shape(given) });
        }
        node.reshape(given, vec![batch, length, width / size, size])?
    } else {
        shape_of::<4>(node, given, "the input")?;
        node.transpose(given, &[0, 2, 1, 3])?
    };
    let [_, length, ..] = shape_of::<4>(node, x, "the input")?;
    // One number is the first place of all rows.
    let positions = match node.shape(positions)[..] {
        [1] => {
            let places = node.counting(ElementType::I64, length)?;
            let places = node.binary(Binary::Add, places, positions)?;
            node.reshape(places, vec![1, length])?
        }
        _ => positions,
    };
    if part != 0 && part != 2 * half {
        let value = part.to_string();
        return Err(Refusal::Impossible { what: "the turned part", value, shape: node.shape(tables[0]) });
    }
    let interleaved = node.attributes.flag("interleaved", false)?;
    let y = turned(node, x, tables, positions, interleaved)?;
    let shape = node.shape(given);
    Ok(vec![if flat { node.reshape(y, shape)? } else { node.transpose(y, &[0, 2, 1, 3])? }])
}

/// Keys and values of language models: heads that several heads of queries share, with those of earlier runs before them.
struct Grouped {
    /// (B,S,heads,size), keys and values with fewer heads.
    each: [ValueId; 3],
    batch: usize,
    length: usize,
    heads: usize,
    own: usize,
    size: usize,
}

fn grouped(node: &mut Lowering<'_>) -> Result<Grouped, Refusal> {
    let heads = sizes("num_heads", &[node.attributes.required_int("num_heads")?])?[0];
    let own = sizes("kv_num_heads", &[node.attributes.required_int("kv_num_heads")?])?[0];
    let query = node.input(0, "query")?;
    let shape @ [batch, length, width] = shape_of(node, query, "the query")?;
    let all = heads.checked_add(own.checked_mul(2).ok_or(Refusal::Inner)?).ok_or(Refusal::Inner)?;
    let packed = node.optional(1).is_none();
    let parts = if packed { all } else { heads };
    if heads == 0 || own == 0 || heads % own != 0 || width % parts != 0 || width == 0 {
        let value = format!("{heads} and {own}");
        return Err(Refusal::Impossible { what: "the number of heads", value, shape: shape.to_vec() });
    }
    let size = width / parts;
    let given = if packed {
        let (q, k) = (heads * size, own * size);
        [node.part(query, 2, 0, q)?, node.part(query, 2, q, k)?, node.part(query, 2, q + k, k)?]
    } else {
        [query, node.input(1, "key")?, node.input(2, "value")?]
    };
    let mut each = given;
    for (x, count) in each.iter_mut().zip([heads, own, own]) {
        if node.shape(*x) != [batch, length, count * size] {
            let value = format!("{:?}", node.shape(*x));
            return Err(Refusal::Impossible { what: "keys and values", value, shape: shape.to_vec() });
        }
        *x = node.reshape(*x, vec![batch, length, count, size])?;
        *x = node.cast(*x, ElementType::F32)?;
    }
    Ok(Grouped { each, batch, length, heads, own, size })
}

/// New keys or values (B,heads,S,size) put behind those of earlier runs, from `start` (B,1) on, `whole` of them in all; what
/// lies behind the new ones is zero.
fn put(
    node: &mut Lowering<'_>,
    past: Option<ValueId>,
    new: ValueId,
    start: ValueId,
    whole: usize,
) -> Result<ValueId, Refusal> {
    let [batch, heads, length, size] = shape_of(node, new, "keys and values")?;
    let places = node.counting(ElementType::I64, whole)?;
    let known = past.map_or(0, |past| node.shape(past).get(2).copied().unwrap_or(0));
    let zero = node.scalar(ElementType::F32, 0.0)?;
    let mut before = past;
    if known < whole {
        let rest = node.emit_as(Op::Expand, &[zero], vec![batch, heads, whole - known, size])?;
        before = Some(match past {
            Some(past) if known > 0 => node.emit(Op::Concat { axis: 2 }, &[past, rest])?,
            _ => rest,
        });
    }
    let before = before.ok_or(Refusal::Inner)?;
    // Which of the new ones stands at each place, where one does.
    let at = node.binary(Binary::Sub, places, start)?;
    let from = node.compare_with(Compare::GreaterOrEqual, at, 0.0)?;
    let to = node.compare_with(Compare::Less, at, length as f64)?;
    let inside = node.binary(Binary::And, from, to)?;
    let inside = node.reshape(inside, vec![batch, 1, whole, 1])?;
    let earlier = node.compare_with(Compare::Less, at, 0.0)?;
    let earlier = node.reshape(earlier, vec![batch, 1, whole, 1])?;
    let before = node.choose(earlier, before, zero)?;
    let spread = if length == 1 {
        new
    } else {
        let at = node.binary_with(Binary::Max, at, 0.0)?;
        let at = node.binary_with(Binary::Min, at, length as f64 - 1.0)?;
        let at = node.reshape(at, vec![batch, 1, whole, 1])?;
        let at = node.emit_as(Op::Expand, &[at], vec![batch, heads, whole, size])?;
        node.emit(Op::GatherElements { axis: 2 }, &[new, at])?
    };
    node.choose(inside, spread, before)
}

fn group_query_attention(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(11)?;
    node.only_outputs(3)?;
    for name in ["kv_cache_bit_width", "qk_output"] {
        node.attributes.must_be(name, 0)?;
    }
    if node.attributes.int_or("smooth_softmax", 0)? > 0 {
        return Err(Refusal::Attribute { name: "smooth_softmax".into(), reason: "is not supported".into() });
    }
    for name in ["k_quant_type", "v_quant_type"] {
        let given = node.attributes.text_or(name, "NONE")?;
        if given != "NONE" {
            return Err(Refusal::Attribute { name: name.into(), reason: format!("is {given}") });
        }
    }
    let element = node.ty(node.input(0, "query")?).element;
    let of = grouped(node)?;
    let Grouped { each: [mut q, mut k, v], batch, length, heads, own, size } = of;
    let total = node.known_number(6, "total_sequence_length")?;
    let keys = sizes("total_sequence_length", &[total as i64])?[0];
    let mut past = [node.optional(3), node.optional(4)];
    for state in past.iter_mut().flatten() {
        let [rows, count, _, width] = shape_of(node, *state, "the past state")?;
        if [rows, count, width] != [batch, own, size] {
            let value = format!("{:?}", node.shape(*state));
            return Err(Refusal::Impossible { what: "the past state", value, shape: vec![batch, own, size] });
        }
        *state = node.cast(*state, ElementType::F32)?;
    }
    let known = past[0].map_or(0, |state| node.shape(state)[2]);
    let whole = known.max(keys);
    if keys < length || past[0].is_some() != past[1].is_some() {
        let value = keys.to_string();
        return Err(Refusal::Impossible { what: "total_sequence_length", value, shape: vec![batch, length] });
    }
    // Where the first of the new ones stands: (B,1). A first run begins at 0, whatever is padded behind.
    let start = if keys == length {
        node.numbers(ElementType::I64, vec![batch, 1], vec![0.0; batch])?
    } else {
        let last = node.input(5, "seqlens_k")?;
        if node.shape(last).iter().product::<usize>() != batch {
            let value = format!("{:?}", node.shape(last));
            return Err(Refusal::Impossible { what: "seqlens_k", value, shape: vec![batch] });
        }
        let last = node.reshape(last, vec![batch, 1])?;
        let last = node.cast(last, ElementType::I64)?;
        node.binary_with(Binary::Sub, last, length as f64 - 1.0)?
    };
    let row = node.counting(ElementType::I64, length)?;
    // Where each query stands: (B,S).
    let at = node.binary(Binary::Add, row, start)?;
    let interleaved = node.attributes.flag("rotary_interleaved", false)?;
    if node.attributes.flag("do_rotary", false)? {
        let tables = [node.input(7, "cos_cache")?, node.input(8, "sin_cache")?];
        let mut wide = Vec::new();
        for table in tables {
            wide.push(node.cast(table, ElementType::F32)?);
        }
        let positions = node.optional(9).unwrap_or(at);
        q = turned(node, q, [wide[0], wide[1]], positions, interleaved)?;
        k = turned(node, k, [wide[0], wide[1]], positions, interleaved)?;
    }
    let q = node.transpose(q, &[0, 2, 1, 3])?;
    let mut present = [k, v];
    for (state, past) in present.iter_mut().zip(past) {
        let new = node.transpose(*state, &[0, 2, 1, 3])?;
        *state = match past {
            _ if keys == length && whole == length => new,
            // One sequence whose past is what was given.
            Some(past) if batch == 1 && known + length == keys => node.emit(Op::Concat { axis: 2 }, &[past, new])?,
            past => put(node, past, new, start, whole)?,
        };
    }
    let mut seen = Vec::new();
    for state in present {
        let state = node.part(state, 2, 0, keys)?;
        seen.push(repeat_heads(node, state, heads)?);
    }
    let scale = node.attributes.float("scale")?.filter(|&scale| scale != 0.0);
    let alpha = scale.unwrap_or_else(|| 1.0 / (size as f32).sqrt());
    let product = MatMul { alpha, trans_b: true, ..MatMul::default() };
    let mut scores = node.emit(Op::MatMul(product), &[q, seen[0]])?;
    let softcap = node.attributes.float_or("softcap", 0.0)?;
    if softcap != 0.0 {
        let scaled = node.binary_with(Binary::Div, scores, softcap.into())?;
        let bent = node.emit(Op::Activation(Activation::Tanh), &[scaled])?;
        scores = node.binary_with(Binary::Mul, bent, softcap.into())?;
    }
    if let Some(bias) = node.optional(10) {
        let bias = node.cast(bias, ElementType::F32)?;
        scores = node.binary(Binary::Add, scores, bias)?;
    }
    let column = node.counting(ElementType::I64, keys)?;
    let at = node.reshape(at, vec![batch, 1, length, 1])?;
    let mut visible = node.compare(Compare::LessOrEqual, column, at)?;
    let window = node.attributes.int_or("local_window_size", -1)?;
    if window > 0 {
        // So many keys, its own the last of them.
        let before = node.binary_with(Binary::Sub, at, window as f64)?;
        let near = node.compare(Compare::Greater, column, before)?;
        visible = node.binary(Binary::And, visible, near)?;
    }
    let never = node.scalar(ElementType::F32, f32::MIN.into())?;
    let scores = node.choose(visible, scores, never)?;
    let weights = node.emit(Op::Softmax { axis: 3, log: false }, &[scores])?;
    let y = node.matmul(weights, seen[1])?;
    let y = join_heads(node, y)?;
    let mut results = Vec::new();
    for result in [y, present[0], present[1]] {
        results.push(node.cast(result, element)?);
    }
    Ok(results)
}
