//! Attention and convolution that hand a state on, so that a text can be read in parts.

use super::{
    super::builder::Lowering,
    Rule,
    attention::{join_heads, split_heads},
    sizes,
};
use crate::error::Refusal;
use planforge_graph::ir::{Activation, Binary, Conv, ElementType, Epilogue, Op, PadMode, Unary, ValueId};

pub const RULES: &[Rule] = &[
    Rule { op_type: "CausalConvWithState", attributes: &["activation"], lower: causal_conv },
    Rule {
        op_type: "LinearAttention",
        attributes: &["chunk_size", "kv_num_heads", "q_num_heads", "scale", "update_rule"],
        lower: linear_attention,
    },
];

/// A convolution of each channel by itself over what came before, of which the last part is the next state.
fn causal_conv(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(4)?;
    let (x, weights, bias) = (node.input(0, "input")?, node.input(1, "weight")?, node.optional(2));
    let (shape, kernel) = (node.shape(x), node.shape(weights));
    let wrong = || Refusal::Impossible { what: "the weights", value: format!("{kernel:?}"), shape: shape.clone() };
    let ([batch, channels, length], [of, 1, taps]) = (&shape[..], &kernel[..]) else { return Err(wrong()) };
    if of != channels || *taps == 0 {
        return Err(wrong());
    }
    let state = taps - 1;
    let padded = match node.optional(3) {
        Some(past) => {
            if node.shape(past) != [*batch, *channels, state] {
                let value = format!("{:?}", node.shape(past));
                return Err(Refusal::Impossible { what: "the state", value, shape });
            }
            if state == 0 { x } else { node.emit(Op::Concat { axis: 2 }, &[past, x])? }
        }
        None => {
            let op = Op::Pad { mode: PadMode::Constant, begins: vec![0, 0, state as i64] };
            node.emit_as(op, &[x], vec![*batch, *channels, length + state])?
        }
    };
    let conv = Conv {
        strides: vec![1],
        pads: vec![0, 0],
        dilations: vec![1],
        groups: *channels,
        epilogue: Epilogue::default(),
    };
    let mut y = node.emit_optional(Op::Conv(conv), vec![Some(padded), Some(weights), bias], &[])?;
    match node.attributes.text_or("activation", "none")? {
        "none" => {}
        "silu" | "swish" => y = node.emit(Op::Activation(Activation::Silu), &[y])?,
        other => return Err(Refusal::Attribute { name: "activation".into(), reason: format!("is {other}") }),
    }
    Ok(vec![y, node.part(padded, 2, *length, state)?])
}

/// A value of (B,T,width) as (B,heads,T,width / heads), in the type that states are computed in.
fn heads_of(node: &mut Lowering<'_>, id: ValueId, heads: usize, wide: ElementType) -> Result<ValueId, Refusal> {
    let id = node.cast(id, wide)?;
    split_heads(node, id, heads)
}

/// One step of (B,heads,T,width), as (B,heads,width) in another shape.
fn step(node: &mut Lowering<'_>, id: ValueId, at: usize, shape: [usize; 4]) -> Result<ValueId, Refusal> {
    let id = node.part(id, 2, at, 1)?;
    node.reshape(id, shape.to_vec())
}

/// A matrix for each head to which every step adds the product of its key and its value. `gated`: it fades before;
/// `delta`: what is added is only what reading it by the key does not give yet. Steps are unrolled.
fn linear_attention(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(6)?;
    let given = [node.input(0, "query")?, node.input(1, "key")?, node.input(2, "value")?];
    let (past, decay, beta) = (node.optional(3), node.optional(4), node.optional(5));
    // How steps are grouped while they are computed.
    node.attributes.without_effect("chunk_size");
    let heads =
        |name: &'static str| -> Result<usize, Refusal> { Ok(sizes(name, &[node.attributes.required_int(name)?])?[0]) };
    let (readers, heads) = (heads("q_num_heads")?, heads("kv_num_heads")?);
    let (gated, delta) = match node.attributes.text_or("update_rule", "gated_delta")? {
        "linear" => (false, false),
        "gated" => (true, false),
        "delta" => (false, true),
        "gated_delta" => (true, true),
        other => return Err(Refusal::Attribute { name: "update_rule".into(), reason: format!("is {other}") }),
    };
    if gated != decay.is_some() || delta != beta.is_some() {
        let what = "an update rule with a decay or beta that it does not have, or without one that it has,";
        return Err(Refusal::Unsupported { what: what.into() });
    }
    if heads == 0 || readers == 0 || !readers.is_multiple_of(heads) {
        let value = format!("{readers} of queries");
        return Err(Refusal::Impossible { what: "the number of heads", value, shape: vec![heads] });
    }
    let group = readers / heads;
    let element = node.ty(given[0]).element;
    let wide = if element == ElementType::F64 { element } else { ElementType::F32 };
    let q = heads_of(node, given[0], readers, wide)?;
    let k = heads_of(node, given[1], heads, wide)?;
    let v = heads_of(node, given[2], heads, wide)?;
    let [batch, _, length, keys] = node.shape(k)[..] else { return Err(Refusal::Inner) };
    let values = node.shape(v)[3];
    let fits = node.shape(q) == [batch, readers, length, keys] && node.shape(v)[..3] == [batch, heads, length];
    if !fits || length == 0 {
        let value = format!("{:?}", node.shape(given[0]));
        return Err(Refusal::Impossible { what: "the query", value, shape: node.shape(given[1]) });
    }
    let decay = match decay {
        Some(decay) => {
            let decay = heads_of(node, decay, heads, wide)?;
            let shape = node.shape(decay);
            if shape[..3] != [batch, heads, length] || !(shape[3] == 1 || shape[3] == keys) {
                return Err(Refusal::Impossible { what: "the decay", value: format!("{shape:?}"), shape: vec![keys] });
            }
            Some((node.unary(Unary::Exp, decay)?, shape[3]))
        }
        None => None,
    };
    let beta = match beta {
        Some(beta) => {
            let shape = node.shape(beta);
            let own = shape.last().copied().unwrap_or(0);
            if shape.len() != 3 || shape[..2] != [batch, length] || !(own == heads || own == 1) {
                return Err(Refusal::Impossible { what: "beta", value: format!("{shape:?}"), shape: vec![heads] });
            }
            Some((heads_of(node, beta, own, wide)?, own))
        }
        None => None,
    };
    let scale = node.attributes.float_or("scale", 0.0)?;
    let scale = if scale == 0.0 { 1.0 / (keys as f64).sqrt() } else { scale.into() };
    let q = node.binary_with(Binary::Mul, q, scale)?;
    // Heads of queries that read the same state lie side by side.
    let q = node.reshape(q, vec![batch, heads, group, length, keys])?;
    let of_state = vec![batch, heads, keys, values];
    let (mut state, state_element) = match past {
        Some(past) => {
            if node.shape(past) != of_state {
                let value = format!("{:?}", node.shape(past));
                return Err(Refusal::Impossible { what: "the state", value, shape: of_state });
            }
            (node.cast(past, wide)?, node.ty(past).element)
        }
        None => {
            let nothing = node.scalar(wide, 0.0)?;
            (node.emit_as(Op::Expand, &[nothing], of_state)?, element)
        }
    };
    let mut read = Vec::with_capacity(length);
    for at in 0..length {
        node.builder.unroll(20)?;
        if let Some((decay, own)) = decay {
            let kept = step(node, decay, at, [batch, heads, own, 1])?;
            state = node.binary(Binary::Mul, state, kept)?;
        }
        let mut fresh = step(node, v, at, [batch, heads, 1, values])?;
        if let Some((beta, own)) = beta {
            let key = step(node, k, at, [batch, heads, 1, keys])?;
            let known = node.matmul(key, state)?;
            let missing = node.binary(Binary::Sub, fresh, known)?;
            let beta = step(node, beta, at, [batch, own, 1, 1])?;
            fresh = node.binary(Binary::Mul, missing, beta)?;
        }
        let key = step(node, k, at, [batch, heads, keys, 1])?;
        let added = node.binary(Binary::Mul, key, fresh)?;
        state = node.binary(Binary::Add, state, added)?;
        let query = node.part(q, 3, at, 1)?;
        let query = node.reshape(query, vec![batch, heads, group, keys])?;
        let result = node.matmul(query, state)?;
        read.push(node.reshape(result, vec![batch, heads, group, 1, values])?);
    }
    let read = node.emit(Op::Concat { axis: 3 }, &read)?;
    let read = node.reshape(read, vec![batch, readers, length, values])?;
    let y = join_heads(node, read)?;
    Ok(vec![node.cast(y, element)?, node.cast(state, state_element)?])
}

#[cfg(test)]
mod tests {
    use crate::{
        import,
        testing::{TestModel, int, numbers, text},
    };
    use planforge_graph::{interpreter, ir::Tensor};
    use std::collections::BTreeMap;

    fn tensor(shape: &[usize]) -> Tensor {
        Tensor::from_vec(shape.to_vec(), numbers(shape.iter().product())).expect("numbers fill the shape")
    }

    /// A text read at once, and in two parts with the state handed on.
    fn in_parts(model: &dyn Fn(i64) -> TestModel, x: &str, axis: usize, state: &Tensor) -> [Vec<f64>; 2] {
        let whole = tensor(if axis == 1 { &[1, 6, 4] } else { &[1, 4, 6] });
        let cut = |from: usize, length: usize| {
            let values = whole.to_f64s();
            let at = |index: usize| match axis {
                1 => values[from * 4 + index] as f32,
                _ => values[index / length * 6 + from + index % length] as f32,
            };
            let shape = if axis == 1 { vec![1, length, 4] } else { vec![1, 4, length] };
            Tensor::from_vec(shape, (0..4 * length).map(at).collect()).expect("a part")
        };
        let run = |part: Tensor, state: &Tensor, length: i64| {
            let inputs = BTreeMap::from([(x.to_owned(), part), ("past".to_owned(), state.clone())]);
            interpreter::execute(&model(length).import(), &inputs).expect("the graph runs")
        };
        let once = run(whole.clone(), state, 6);
        let first = run(cut(0, 2), state, 2);
        let second = run(cut(2, 4), &first["state"], 4);
        let of = |made: &BTreeMap<String, Tensor>, name: &str| made[name].to_f64s();
        [of(&once, "state"), of(&second, "state")]
    }

    #[test]
    fn a_text_read_in_parts_leaves_the_same_state() {
        let conv = |length: i64| {
            TestModel::new(27)
                .input("x", &[1, 4, length])
                .input("past", &[1, 4, 2])
                .floats("w", &[4, 1, 3], &numbers(12))
                .node_of("CausalConvWithState", &["x", "w", "", "past"], &["y", "state"], vec![])
                .output("y")
                .output("state")
        };
        let [once, parts] = in_parts(&conv, "x", 2, &tensor(&[1, 4, 2]));
        assert_eq!(once, parts);
        let attention = |length: i64| {
            let attributes = vec![int("q_num_heads", 2), int("kv_num_heads", 1), text("update_rule", "delta")];
            TestModel::new(27)
                .input("x", &[1, length, 4])
                .input("past", &[1, 1, 2, 2])
                .longs("two", &[2])
                .longs("zero", &[0])
                .longs("last", &[2])
                .longs("first", &[1])
                .node("Slice", &["x", "zero", "two", "last"], "k", vec![])
                .node("Slice", &["x", "zero", "first", "last"], "b", vec![])
                .node_of("LinearAttention", &["x", "k", "k", "past", "", "b"], &["y", "state"], attributes)
                .output("y")
                .output("state")
        };
        let [once, parts] = in_parts(&attention, "x", 1, &tensor(&[1, 1, 2, 2]));
        assert!(once.iter().zip(&parts).all(|(a, b)| (a - b).abs() < 1e-5), "{once:?} {parts:?}");
    }

    #[test]
    fn an_update_rule_has_its_inputs_and_no_others() {
        let model = |rule: &'static str, heads: i64| {
            TestModel::new(27)
                .input("x", &[1, 3, 4])
                .node(
                    "LinearAttention",
                    &["x", "x", "x"],
                    "y",
                    vec![int("q_num_heads", 2), int("kv_num_heads", heads), text("update_rule", rule)],
                )
                .output("y")
        };
        model("linear", 2).import();
        for (rule, heads, says) in [
            ("gated", 2, "without one that it has"),
            ("quadratic", 2, "update_rule is quadratic"),
            ("linear", 3, "the number of heads is 2 of queries"),
        ] {
            let error = import(&model(rule, heads).model(), None).expect_err(says).to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
