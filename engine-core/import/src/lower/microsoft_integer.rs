//! Operators of `com.microsoft` that ONNX Runtime's quantizer emits: read as numbers, computed, quantized again.

use super::{
    super::builder::Lowering,
    Rule,
    integer::{along, centred, dynamic_quantize, matmul_integer, saturate},
    pool::{average_pool, max_pool},
    quantize::{dequantize, quantize},
};
use crate::error::Refusal;
use planforge_graph::ir::{Activation, Binary, ElementType, MatMul, Op, ReduceKind, ValueId};

pub const RULES: &[Rule] = &[
    Rule { op_type: "QLinearAdd", attributes: &[], lower: |node| pair(node, Binary::Add) },
    Rule { op_type: "QLinearMul", attributes: &[], lower: |node| pair(node, Binary::Mul) },
    Rule { op_type: "QLinearSigmoid", attributes: &[], lower: |node| activate(node, Activation::Sigmoid) },
    Rule { op_type: "QLinearLeakyRelu", attributes: &["alpha"], lower: leaky_relu },
    Rule { op_type: "QLinearGlobalAveragePool", attributes: &["channels_last"], lower: global_average },
    Rule {
        op_type: "QLinearAveragePool",
        attributes: &["auto_pad", "ceil_mode", "channels_last", "count_include_pad", "kernel_shape", "pads", "strides"],
        lower: average,
    },
    Rule { op_type: "QLinearConcat", attributes: &["axis"], lower: concat },
    Rule { op_type: "QLinearWhere", attributes: &[], lower: choose },
    // With types that the standard ones had not when they came.
    Rule { op_type: "QuantizeLinear", attributes: &["axis", "block_size"], lower: quantize },
    Rule { op_type: "DequantizeLinear", attributes: &["axis", "block_size"], lower: dequantize },
    Rule { op_type: "QLinearSoftmax", attributes: &["axis", "opset"], lower: softmax },
    Rule { op_type: "QGemm", attributes: &["alpha", "transA", "transB"], lower: qgemm },
    Rule { op_type: "DynamicQuantizeMatMul", attributes: &[], lower: dynamic_matmul },
    Rule { op_type: "MatMulIntegerToFloat", attributes: &[], lower: matmul_to_float },
    Rule {
        op_type: "NhwcMaxPool",
        attributes: &["auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides"],
        lower: nhwc_max_pool,
    },
];

/// The number behind a quantized value whose scale and zero point are the inputs after it.
fn dequantized(node: &mut Lowering<'_>, position: usize) -> Result<ValueId, Refusal> {
    let x = node.input(position, "a quantized value")?;
    let scale = node.input(position + 1, "its scale")?;
    let zero = node.optional(position + 2);
    let rank = node.ty(x).rank();
    let x = centred(node, x, zero, 0, ElementType::F32)?;
    let scale = along(node, scale, 0, rank)?;
    node.binary(Binary::Mul, x, scale)
}

/// Quantized with scale and zero point at `position`; without a zero point as `element`.
fn quantized(node: &mut Lowering<'_>, x: ValueId, position: usize, element: ElementType) -> Result<ValueId, Refusal> {
    let scale = node.input(position, "the result's scale")?;
    let zero = node.optional(position + 1);
    let scale = node.reshape(scale, Vec::new())?;
    let scaled = node.binary(Binary::Div, x, scale)?;
    let zero = match zero {
        Some(zero) => Some(node.reshape(zero, Vec::new())?),
        None => None,
    };
    let to = zero.map_or(element, |zero| node.ty(zero).element);
    saturate(node, scaled, zero, to)
}

fn element(node: &Lowering<'_>) -> Result<ElementType, Refusal> {
    Ok(node.ty(node.input(0, "a quantized value")?).element)
}

fn pair(node: &mut Lowering<'_>, op: Binary) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(8)?;
    let (a, b) = (dequantized(node, 0)?, dequantized(node, 3)?);
    let result = node.binary(op, a, b)?;
    let element = element(node)?;
    Ok(vec![quantized(node, result, 6, element)?])
}

fn activate(node: &mut Lowering<'_>, activation: Activation) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(5)?;
    let x = dequantized(node, 0)?;
    let y = node.emit(Op::Activation(activation), &[x])?;
    let element = element(node)?;
    Ok(vec![quantized(node, y, 3, element)?])
}

fn leaky_relu(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let alpha = node.attributes.float_or("alpha", 0.01)?;
    activate(node, Activation::LeakyRelu { alpha })
}

fn global_average(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(5)?;
    let last = node.attributes.flag("channels_last", false)?;
    let x = dequantized(node, 0)?;
    let rank = node.ty(x).rank();
    if rank < 3 {
        return Err(Refusal::Impossible { what: "the rank", value: rank.to_string(), shape: node.shape(x) });
    }
    let axes: Vec<usize> = if last { (1..rank - 1).collect() } else { (2..rank).collect() };
    let y = node.reduce(ReduceKind::Mean, x, &axes, true)?;
    let element = element(node)?;
    Ok(vec![quantized(node, y, 3, element)?])
}

/// Runs another rule on one value in the place of the node's inputs.
fn instead(
    node: &mut Lowering<'_>,
    x: ValueId,
    rule: fn(&mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal>,
) -> Result<ValueId, Refusal> {
    let inputs = std::mem::replace(&mut node.inputs, vec![Some(x)]);
    let results = rule(node);
    node.inputs = inputs;
    results?.first().copied().ok_or(Refusal::Inner)
}

fn average(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(5)?;
    node.attributes.must_be("channels_last", 0)?;
    let x = dequantized(node, 0)?;
    let y = instead(node, x, average_pool)?;
    let element = element(node)?;
    Ok(vec![quantized(node, y, 3, element)?])
}

/// The result's scale and zero point come first, then three inputs for each part.
fn concat(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let count = node.inputs.len();
    if count < 5 || !(count - 2).is_multiple_of(3) {
        return Err(Refusal::Inputs { given: count, most: 5 });
    }
    let mut parts = Vec::new();
    for position in (2..count).step_by(3) {
        parts.push(dequantized(node, position)?);
    }
    let rank = node.ty(parts[0]).rank();
    let axis = node.axis(node.attributes.required_int("axis")?, rank, "axis")?;
    let y = node.emit(Op::Concat { axis }, &parts)?;
    let element = node.ty(node.input(2, "a part")?).element;
    Ok(vec![quantized(node, y, 0, element)?])
}

fn choose(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(9)?;
    let condition = node.input(0, "condition")?;
    let (x, y) = (dequantized(node, 1)?, dequantized(node, 4)?);
    let chosen = node.choose(condition, x, y)?;
    let element = node.ty(node.input(1, "X")?).element;
    Ok(vec![quantized(node, chosen, 7, element)?])
}

fn softmax(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(5)?;
    let x = dequantized(node, 0)?;
    let rank = node.ty(x).rank();
    let axis = node.axis(node.attributes.int_or("axis", -1)?, rank, "axis")?;
    if node.attributes.required_int("opset")? < 13 && axis + 1 != rank {
        return Err(Refusal::Unsupported { what: "a softmax over several axes at once".into() });
    }
    let y = node.emit(Op::Softmax { axis, log: false }, &[x])?;
    let element = element(node)?;
    Ok(vec![quantized(node, y, 3, element)?])
}

/// `alpha * op(A) op(B)` with C added to the exact sums; quantized when a scale is given, else as float.
fn qgemm(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(9)?;
    let (a, b) = (node.input(0, "A")?, node.input(3, "B")?);
    let (trans_a, trans_b) = (node.attributes.flag("transA", false)?, node.attributes.flag("transB", false)?);
    let column = usize::from(!trans_b);
    let a = centred(node, a, node.optional(2), 0, ElementType::F64)?;
    let b = centred(node, b, node.optional(5), column, ElementType::F64)?;
    let product = MatMul { trans_a, trans_b, ..MatMul::default() };
    let mut sum = node.emit(Op::MatMul(product), &[a, b])?;
    if let Some(c) = node.optional(6) {
        let c = node.cast(c, ElementType::F64)?;
        sum = node.binary(Binary::Add, sum, c)?;
    }
    let (a_scale, b_scale) = (node.input(1, "a_scale")?, node.input(4, "b_scale")?);
    let b_scale = along(node, b_scale, 1, 2)?;
    let a_scale = node.reshape(a_scale, Vec::new())?;
    let scale = node.binary(Binary::Mul, a_scale, b_scale)?;
    let alpha = node.attributes.float_or("alpha", 1.0)?;
    let scale = node.binary_with(Binary::Mul, scale, alpha.into())?;
    let scale = node.cast(scale, ElementType::F64)?;
    let y = node.binary(Binary::Mul, sum, scale)?;
    let y = node.cast(y, ElementType::F32)?;
    if node.optional(7).is_none() {
        return Ok(vec![y]);
    }
    let element = element(node)?;
    Ok(vec![quantized(node, y, 7, element)?])
}

pub fn matmul_to_float(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(7)?;
    let (a_scale, b_scale) = (node.input(2, "a_scale")?, node.input(3, "b_scale")?);
    let given = [node.optional(0), node.optional(1), node.optional(4), node.optional(5)];
    let inputs = std::mem::replace(&mut node.inputs, given.to_vec());
    let product = matmul_integer(node);
    node.inputs = inputs;
    let sum = product?[0];
    let rank = node.ty(sum).rank();
    let sum = node.cast(sum, ElementType::F32)?;
    let a_scale = along(node, a_scale, rank.saturating_sub(2), rank)?;
    let b_scale = along(node, b_scale, rank.saturating_sub(1), rank)?;
    let scale = node.binary(Binary::Mul, a_scale, b_scale)?;
    let mut y = node.binary(Binary::Mul, sum, scale)?;
    if let Some(bias) = node.optional(6) {
        y = node.binary(Binary::Add, y, bias)?;
    }
    Ok(vec![y])
}

/// The first operand is quantized by what it holds, then multiplied as integers.
fn dynamic_matmul(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(5)?;
    let a = node.input(0, "A")?;
    let given: Vec<Option<ValueId>> = (1..5).map(|position| node.optional(position)).collect();
    let inputs = std::mem::replace(&mut node.inputs, vec![Some(a)]);
    let made = dynamic_quantize(node).and_then(|made| {
        let &[y, scale, zero] = &made[..] else { return Err(Refusal::Inner) };
        node.inputs = vec![Some(y), given[0], Some(scale), given[1], Some(zero), given[2], given[3]];
        matmul_to_float(node)
    });
    node.inputs = inputs;
    made
}

fn nhwc_max_pool(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let x = node.input(0, "x")?;
    let rank = node.ty(x).rank();
    if rank < 3 {
        return Err(Refusal::Impossible { what: "the rank", value: rank.to_string(), shape: node.shape(x) });
    }
    let first: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    let last: Vec<usize> = [0].into_iter().chain(2..rank).chain([1]).collect();
    let x = node.transpose(x, &first)?;
    let y = instead(node, x, max_pool)?;
    Ok(vec![node.transpose(y, &last)?])
}
