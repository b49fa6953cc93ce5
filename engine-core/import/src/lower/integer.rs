//! Products of integers, and quantized operators: computed exactly, scaled and rounded once.

use super::{
    super::builder::Lowering,
    Rule,
    linear::{CONV_ATTRIBUTES, conv_attributes},
};
use crate::error::Refusal;
use planforge_graph::ir::{Binary, Compare, ElementType, Op, ReduceKind, Unary, ValueId};

pub const RULES: &[Rule] = &[
    Rule { op_type: "ConvInteger", attributes: CONV_ATTRIBUTES, lower: conv_integer },
    Rule { op_type: "MatMulInteger", attributes: &[], lower: matmul_integer },
    Rule { op_type: "QLinearConv", attributes: CONV_ATTRIBUTES, lower: qlinear_conv },
    Rule { op_type: "QLinearMatMul", attributes: &[], lower: qlinear_matmul },
    Rule { op_type: "DynamicQuantizeLinear", attributes: &[], lower: dynamic_quantize },
];

/// What an 8-bit type can hold.
pub fn range(element: ElementType) -> Result<(f64, f64), Refusal> {
    match element {
        ElementType::U8 => Ok((0.0, 255.0)),
        ElementType::I8 => Ok((-128.0, 127.0)),
        ElementType::U16 => Ok((0.0, 65535.0)),
        ElementType::I16 => Ok((-32768.0, 32767.0)),
        other => Err(Refusal::Element(other.to_string())),
    }
}

/// Rounds half to even and limits to what `element` holds.
pub fn saturate(
    node: &mut Lowering<'_>,
    x: ValueId,
    zero: Option<ValueId>,
    to: ElementType,
) -> Result<ValueId, Refusal> {
    let (low, high) = range(to)?;
    let mut x = node.unary(Unary::Round, x)?;
    if let Some(zero) = zero {
        let zero = node.cast(zero, node.ty(x).element)?;
        x = node.binary(Binary::Add, x, zero)?;
    }
    let x = node.binary_with(Binary::Max, x, low)?;
    let x = node.binary_with(Binary::Min, x, high)?;
    node.cast(x, to)
}

/// A zero point or scale made to broadcast along `axis` of a value with `rank` axes.
pub fn along(node: &mut Lowering<'_>, parameter: ValueId, axis: usize, rank: usize) -> Result<ValueId, Refusal> {
    let shape = node.shape(parameter);
    match shape[..] {
        [] | [1] => node.reshape(parameter, Vec::new()),
        [size] => {
            let mut wide = vec![1; rank.max(axis + 1)];
            wide[axis] = size;
            node.reshape(parameter, wide)
        }
        _ => Ok(parameter),
    }
}

/// The value minus its zero point, as `to`.
pub fn centred(
    node: &mut Lowering<'_>,
    x: ValueId,
    zero: Option<ValueId>,
    axis: usize,
    to: ElementType,
) -> Result<ValueId, Refusal> {
    range(node.ty(x).element)?;
    let rank = node.ty(x).rank();
    let wide = node.cast(x, to)?;
    let Some(zero) = zero else { return Ok(wide) };
    let zero = along(node, zero, axis, rank)?;
    let zero = node.cast(zero, to)?;
    node.binary(Binary::Sub, wide, zero)
}

/// The exact product in f64: sums of 8-bit products stay far below 2^53.
fn exact_conv(
    node: &mut Lowering<'_>,
    [x, w]: [ValueId; 2],
    [x_zero, w_zero]: [Option<ValueId>; 2],
) -> Result<ValueId, Refusal> {
    let x = centred(node, x, x_zero, 1, ElementType::F64)?;
    let w = centred(node, w, w_zero, 0, ElementType::F64)?;
    let op = conv_attributes(node, x, w)?;
    node.emit(Op::Conv(op), &[x, w])
}

fn conv_integer(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(4)?;
    let values = [node.input(0, "x")?, node.input(1, "w")?];
    let zeros = [node.optional(2), node.optional(3)];
    let sum = exact_conv(node, values, zeros)?;
    Ok(vec![node.cast(sum, ElementType::I32)?])
}

/// The axis of rows: zero points and scales of the left operand may be one per row.
fn row_axis(node: &Lowering<'_>, a: ValueId) -> usize {
    node.ty(a).rank().saturating_sub(2)
}

fn column_axis(node: &Lowering<'_>, b: ValueId) -> usize {
    node.ty(b).rank().saturating_sub(1)
}

pub fn matmul_integer(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(4)?;
    let (a, b) = (node.input(0, "A")?, node.input(1, "B")?);
    let (rows, columns) = (row_axis(node, a), column_axis(node, b));
    let a = centred(node, a, node.optional(2), rows, ElementType::I32)?;
    let b = centred(node, b, node.optional(3), columns, ElementType::I32)?;
    Ok(vec![node.matmul(a, b)?])
}

/// `round(sum * a_scale * b_scale / y_scale) + y_zero`, limited to the type of `y_zero`.
fn requantize(node: &mut Lowering<'_>, sum: ValueId, scales: [ValueId; 3], zero: ValueId) -> Result<ValueId, Refusal> {
    let [a, b, y] = scales;
    let mut wide = [a, b, y];
    for scale in &mut wide {
        *scale = node.cast(*scale, ElementType::F64)?;
    }
    let factor = node.binary(Binary::Mul, wide[0], wide[1])?;
    let factor = node.binary(Binary::Div, factor, wide[2])?;
    let scaled = node.binary(Binary::Mul, sum, factor)?;
    let to = node.ty(zero).element;
    let zero = if node.ty(zero).rank() == 1 { node.reshape(zero, Vec::new())? } else { zero };
    saturate(node, scaled, Some(zero), to)
}

/// Scale of a quantized operand as it broadcasts over the result.
fn scalar_scale(node: &mut Lowering<'_>, position: usize, what: &'static str) -> Result<ValueId, Refusal> {
    let scale = node.input(position, what)?;
    match node.shape(scale)[..] {
        [] | [1] => node.reshape(scale, Vec::new()),
        _ => Err(Refusal::Unsupported { what: format!("{what} of more than one value") }),
    }
}

fn qlinear_conv(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(9)?;
    let values = [node.input(0, "x")?, node.input(3, "w")?];
    let zeros = [Some(node.input(2, "x_zero_point")?), Some(node.input(5, "w_zero_point")?)];
    let mut sum = exact_conv(node, values, zeros)?;
    let rank = node.ty(sum).rank();
    if let Some(bias) = node.optional(8) {
        let bias = along(node, bias, 1, rank)?;
        let bias = node.cast(bias, ElementType::F64)?;
        sum = node.binary(Binary::Add, sum, bias)?;
    }
    let x_scale = scalar_scale(node, 1, "x_scale")?;
    let w_scale = node.input(4, "w_scale")?;
    let w_scale = along(node, w_scale, 1, rank)?;
    let y_scale = scalar_scale(node, 6, "y_scale")?;
    let zero = node.input(7, "y_zero_point")?;
    Ok(vec![requantize(node, sum, [x_scale, w_scale, y_scale], zero)?])
}

fn qlinear_matmul(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(8)?;
    let (a, b) = (node.input(0, "a")?, node.input(3, "b")?);
    let (rows, columns) = (row_axis(node, a), column_axis(node, b));
    let (a_scale, b_scale) = (node.input(1, "a_scale")?, node.input(4, "b_scale")?);
    let (a_zero, b_zero) = (node.input(2, "a_zero_point")?, node.input(5, "b_zero_point")?);
    let left = centred(node, a, Some(a_zero), rows, ElementType::F64)?;
    let right = centred(node, b, Some(b_zero), columns, ElementType::F64)?;
    let sum = node.matmul(left, right)?;
    let rank = node.ty(sum).rank();
    let a_scale = along(node, a_scale, rank.saturating_sub(2), rank)?;
    let b_scale = along(node, b_scale, rank.saturating_sub(1), rank)?;
    let y_scale = scalar_scale(node, 6, "y_scale")?;
    let zero = node.input(7, "y_zero_point")?;
    Ok(vec![requantize(node, sum, [a_scale, b_scale, y_scale], zero)?])
}

/// Scale and zero point over the range of the input, which always includes zero.
pub fn dynamic_quantize(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let x = node.input(0, "x")?;
    let element = node.ty(x).element;
    let all: Vec<usize> = (0..node.ty(x).rank()).collect();
    let high = node.reduce(ReduceKind::Max, x, &all, false)?;
    let high = node.binary_with(Binary::Max, high, 0.0)?;
    let low = node.reduce(ReduceKind::Min, x, &all, false)?;
    let low = node.binary_with(Binary::Min, low, 0.0)?;
    let width = node.binary(Binary::Sub, high, low)?;
    let scale = node.binary_with(Binary::Div, width, 255.0)?;
    // Nothing but zeros: any scale is right, and none may be zero.
    let none = node.compare_with(Compare::Equal, scale, 0.0)?;
    let one = node.scalar(element, 1.0)?;
    let scale = node.choose(none, one, scale)?;
    let offset = node.binary(Binary::Div, low, scale)?;
    let offset = node.unary(Unary::Neg, offset)?;
    let zero = saturate(node, offset, None, ElementType::U8)?;
    let scaled = node.binary(Binary::Div, x, scale)?;
    let y = saturate(node, scaled, Some(zero), ElementType::U8)?;
    Ok(vec![y, scale, zero])
}
