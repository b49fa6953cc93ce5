//! The recurrent network that ONNX Runtime's dynamic quantizer emits: the weights are bytes, and what they are multiplied by
//! is quantized by what it holds, in every step anew. Its steps are laid out one after another.

use super::{
    super::builder::Lowering, Rule, integer::dynamic_quantize, microsoft_integer::matmul_to_float,
    recurrent::directions,
};
use crate::error::Refusal;
use planforge_graph::ir::{Activation, Binary, Op, ValueId};

pub const RULES: &[Rule] = &[Rule {
    op_type: "DynamicQuantizeLSTM",
    attributes: &[
        "activation_alpha",
        "activation_beta",
        "activations",
        "clip",
        "direction",
        "hidden_size",
        "input_forget",
    ],
    lower: lstm,
}];

/// Nodes that a step becomes.
const STEP_NODES: usize = 40;

/// Weights of one direction, with what their bytes mean.
#[derive(Clone, Copy)]
struct Weights {
    /// (inputs,4 * hidden).
    bytes: ValueId,
    scale: ValueId,
    zero: ValueId,
}

/// One direction of what is (directions,…), without that axis.
fn of_direction(node: &mut Lowering<'_>, x: ValueId, direction: usize) -> Result<ValueId, Refusal> {
    let shape = node.shape(x);
    if shape.first().is_none_or(|&count| direction >= count) {
        let value = format!("{shape:?}");
        return Err(Refusal::Impossible { what: "the number of directions", value, shape });
    }
    let one = node.part(x, 0, direction, 1)?;
    node.reshape(one, shape[1..].to_vec())
}

fn weights(node: &mut Lowering<'_>, at: [usize; 3], direction: usize) -> Result<Weights, Refusal> {
    let given = [node.input(at[0], "weights")?, node.input(at[1], "a scale")?, node.input(at[2], "a zero point")?];
    Ok(Weights {
        bytes: of_direction(node, given[0], direction)?,
        scale: of_direction(node, given[1], direction)?,
        zero: of_direction(node, given[2], direction)?,
    })
}

/// The product of floats with such weights.
fn product(node: &mut Lowering<'_>, x: ValueId, by: Weights) -> Result<ValueId, Refusal> {
    let inputs = std::mem::replace(&mut node.inputs, vec![Some(x)]);
    let made = dynamic_quantize(node).and_then(|made| {
        let &[x, scale, zero] = &made[..] else { return Err(Refusal::Inner) };
        node.inputs = vec![Some(x), Some(by.bytes), Some(scale), Some(by.scale), Some(zero), Some(by.zero)];
        matmul_to_float(node)
    });
    node.inputs = inputs;
    made?.first().copied().ok_or(Refusal::Inner)
}

/// Sizes: steps, batch, inputs, hidden.
fn sizes_of(node: &Lowering<'_>) -> Result<[usize; 4], Refusal> {
    let (x, w, r) = (node.input(0, "X")?, node.input(1, "W")?, node.input(2, "R")?);
    let shapes = [node.shape(x), node.shape(w), node.shape(r)];
    let [&[steps, batch, inputs], &[_, rows, gates], &[_, hidden, wide]] = [&shapes[0][..], &shapes[1], &shapes[2]]
    else {
        let value = format!("{shapes:?}");
        return Err(Refusal::Impossible { what: "the rank of X, W or R", value, shape: shapes[0].clone() });
    };
    if rows != inputs || Some(gates) != hidden.checked_mul(4) || wide != gates || [steps, batch, hidden].contains(&0) {
        let value = format!("{:?} and {:?}", node.shape(w), node.shape(r));
        return Err(Refusal::Impossible { what: "the weights", value, shape: shapes[0].clone() });
    }
    if node.attributes.int("hidden_size")?.is_some_and(|given| given != hidden as i64) {
        let reason = format!("differs from the weights' {hidden}");
        return Err(Refusal::Attribute { name: "hidden_size".into(), reason });
    }
    Ok([steps, batch, inputs, hidden])
}

fn refuse_what_is_not_known(node: &Lowering<'_>) -> Result<(), Refusal> {
    for (position, what) in [(4, "lengths of the sequences"), (7, "peepholes")] {
        if node.optional(position).is_some() {
            return Err(Refusal::Unsupported { what: what.into() });
        }
    }
    for name in ["activation_alpha", "activation_beta"] {
        if node.attributes.floats(name)?.is_some_and(|values| !values.is_empty()) {
            return Err(Refusal::Attribute { name: name.into(), reason: "is not supported".into() });
        }
    }
    let usual = ["Sigmoid", "Tanh", "Tanh"];
    let given = node.attributes.texts("activations")?.unwrap_or_default();
    if !given.chunks(3).all(|cell| cell.iter().zip(usual).all(|(name, usual)| name.eq_ignore_ascii_case(usual))) {
        let reason = format!("names others than {}", usual.join(", "));
        return Err(Refusal::Attribute { name: "activations".into(), reason });
    }
    if node.attributes.float("clip")?.is_some() {
        return Err(Refusal::Attribute { name: "clip".into(), reason: "is not supported".into() });
    }
    node.attributes.must_be("input_forget", 0)
}

/// As LSTM has it, with the weights (directions,inputs,4 * hidden).
fn lstm(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(12)?;
    refuse_what_is_not_known(node)?;
    let reverse = directions(node)?;
    let [steps, batch, inputs, hidden] = sizes_of(node)?;
    node.builder.unroll(steps.saturating_mul(reverse.len() * STEP_NODES))?;
    let x = node.input(0, "X")?;
    let rows = node.reshape(x, vec![steps * batch, inputs])?;
    let mut all = vec![Vec::new(); steps];
    let (mut last_h, mut last_c) = (Vec::new(), Vec::new());
    for (direction, &reverse) in reverse.iter().enumerate() {
        let (w, r) = (weights(node, [1, 8, 9], direction)?, weights(node, [2, 10, 11], direction)?);
        let mut driven = product(node, rows, w)?;
        if let Some(bias) = node.optional(3) {
            // Of the inputs, then of the states.
            let bias = of_direction(node, bias, direction)?;
            for part in 0..2 {
                let one = node.part(bias, 0, part * 4 * hidden, 4 * hidden)?;
                driven = node.binary(Binary::Add, driven, one)?;
            }
        }
        let mut state = [None, None];
        for (slot, position) in state.iter_mut().zip([5, 6]) {
            if let Some(given) = node.optional(position) {
                *slot = Some(of_direction(node, given, direction)?);
            }
        }
        let order: Vec<usize> = if reverse == 1 { (0..steps).rev().collect() } else { (0..steps).collect() };
        for step in order {
            let mut gates = node.part(driven, 0, step * batch, batch)?;
            if let Some(h) = state[0] {
                let own = product(node, h, r)?;
                gates = node.binary(Binary::Add, gates, own)?;
            }
            let [h, c] = cell(node, gates, state[1], hidden)?;
            state = [Some(h), Some(c)];
            all[step].push(node.reshape(h, vec![1, 1, batch, hidden])?);
        }
        for (last, state) in [(&mut last_h, state[0]), (&mut last_c, state[1])] {
            last.push(node.reshape(state.ok_or(Refusal::Inner)?, vec![1, batch, hidden])?);
        }
    }
    let mut by_step = Vec::with_capacity(steps);
    for directions in all {
        by_step.push(node.emit(Op::Concat { axis: 1 }, &directions)?);
    }
    let y = node.emit(Op::Concat { axis: 0 }, &by_step)?;
    Ok(vec![y, node.emit(Op::Concat { axis: 0 }, &last_h)?, node.emit(Op::Concat { axis: 0 }, &last_c)?])
}

/// The next states, of gates (batch,4 * hidden) in the order input, output, forget, cell.
fn cell(node: &mut Lowering<'_>, gates: ValueId, c: Option<ValueId>, hidden: usize) -> Result<[ValueId; 2], Refusal> {
    let mut each = Vec::new();
    for (at, activation) in
        [Activation::Sigmoid, Activation::Sigmoid, Activation::Sigmoid, Activation::Tanh].into_iter().enumerate()
    {
        let gate = node.part(gates, 1, at * hidden, hidden)?;
        each.push(node.emit(Op::Activation(activation), &[gate])?);
    }
    let mut next = node.binary(Binary::Mul, each[0], each[3])?;
    if let Some(c) = c {
        let kept = node.binary(Binary::Mul, each[2], c)?;
        next = node.binary(Binary::Add, kept, next)?;
    }
    let seen = node.emit(Op::Activation(Activation::Tanh), &[next])?;
    Ok([node.binary(Binary::Mul, each[1], seen)?, next])
}
