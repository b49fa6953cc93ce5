//! Normalisations and softmax.

use super::{super::builder::Lowering, Rule};
use crate::error::Refusal;
use planforge_graph::ir::{Binary, Compare, ElementType, Op, ReduceKind, Unary, ValueId};

pub const RULES: &[Rule] = &[
    Rule {
        op_type: "BatchNormalization",
        attributes: &["epsilon", "momentum", "training_mode"],
        lower: batch_normalization,
    },
    Rule { op_type: "LayerNormalization", attributes: &["axis", "epsilon", "stash_type"], lower: layer_normalization },
    Rule { op_type: "InstanceNormalization", attributes: &["epsilon"], lower: instance_normalization },
    Rule {
        op_type: "GroupNormalization",
        attributes: &["epsilon", "num_groups", "stash_type"],
        lower: group_normalization,
    },
    Rule { op_type: "MeanVarianceNormalization", attributes: &["axes"], lower: mean_variance },
    Rule { op_type: "LpNormalization", attributes: &["axis", "p"], lower: lp_normalization },
    // The name ONNX Runtime gives it in the standard domain before opset 23.
    Rule {
        op_type: "SimplifiedLayerNormalization",
        attributes: &["axis", "epsilon", "stash_type"],
        lower: rms_normalization,
    },
    Rule { op_type: "RMSNormalization", attributes: &["axis", "epsilon", "stash_type"], lower: rms_normalization },
    Rule { op_type: "LRN", attributes: &["alpha", "beta", "bias", "size"], lower: lrn },
    Rule { op_type: "Softmax", attributes: &["axis"], lower: |node| softmax(node, false) },
    Rule { op_type: "LogSoftmax", attributes: &["axis"], lower: |node| softmax(node, true) },
];

fn batch_normalization(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(5)?;
    if node.opset >= 14 && node.attributes.flag("training_mode", false)? {
        return batch_statistics(node);
    }
    node.only_outputs(1)?;
    node.attributes.without_effect("momentum");
    let inputs = ["X", "scale", "B", "mean", "var"];
    let inputs: Vec<ValueId> =
        inputs.iter().enumerate().map(|(position, what)| node.input(position, what)).collect::<Result<_, _>>()?;
    let epsilon = node.attributes.float_or("epsilon", 1e-5)?;
    Ok(vec![node.emit(Op::BatchNorm { epsilon }, &inputs)?])
}

/// Training mode: normalised by the batch's own mean and variance, which the running ones move towards.
fn batch_statistics(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let x = node.input(0, "X")?;
    let (scale, bias) = (node.input(1, "scale")?, node.input(2, "B")?);
    let running = [node.input(3, "input_mean")?, node.input(4, "input_var")?];
    let (epsilon, momentum) = (node.attributes.float_or("epsilon", 1e-5)?, node.attributes.float_or("momentum", 0.9)?);
    let axes: Vec<usize> = (0..node.ty(x).rank()).filter(|&axis| axis != 1).collect();
    let mean = node.reduce(ReduceKind::Mean, x, &axes, true)?;
    let centred = node.binary(Binary::Sub, x, mean)?;
    let squares = node.binary(Binary::Mul, centred, centred)?;
    let variance = node.reduce(ReduceKind::Mean, squares, &axes, true)?;
    let channels = node.shape(scale);
    let (mean, variance) = (node.reshape(mean, channels.clone())?, node.reshape(variance, channels)?);
    let mut results = vec![node.emit(Op::BatchNorm { epsilon }, &[x, scale, bias, mean, variance])?];
    for (running, current) in running.into_iter().zip([mean, variance]) {
        let kept = node.binary_with(Binary::Mul, running, momentum.into())?;
        let current = node.cast(current, node.ty(running).element)?;
        let added = node.binary_with(Binary::Mul, current, 1.0 - f64::from(momentum))?;
        results.push(node.binary(Binary::Add, kept, added)?);
    }
    Ok(results)
}

fn mean_variance(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let x = node.input(0, "X")?;
    let axes = node.axes(node.attributes.ints("axes")?.unwrap_or(&[0, 2, 3]), node.ty(x).rank())?;
    let mean = node.reduce(ReduceKind::Mean, x, &axes, true)?;
    let centred = node.binary(Binary::Sub, x, mean)?;
    let squares = node.binary(Binary::Mul, centred, centred)?;
    let variance = node.reduce(ReduceKind::Mean, squares, &axes, true)?;
    let deviation = node.unary(Unary::Sqrt, variance)?;
    // As the operator's own definition: a constant channel becomes zero instead of NaN.
    let deviation = node.binary_with(Binary::Add, deviation, 1e-9)?;
    Ok(vec![node.binary(Binary::Div, centred, deviation)?])
}

fn lp_normalization(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let x = node.input(0, "input")?;
    let axis = node.axis(node.attributes.int_or("axis", -1)?, node.ty(x).rank(), "axis")?;
    let kind = match node.attributes.int_or("p", 2)? {
        1 => ReduceKind::L1,
        2 => ReduceKind::L2,
        other => return Err(Refusal::Attribute { name: "p".into(), reason: format!("is {other}, not 1 or 2") }),
    };
    let norm = node.reduce(kind, x, &[axis], true)?;
    // What is zero everywhere stays so.
    let none = node.compare_with(Compare::Equal, norm, 0.0)?;
    let one = node.scalar(node.ty(x).element, 1.0)?;
    let norm = node.choose(none, one, norm)?;
    Ok(vec![node.binary(Binary::Div, x, norm)?])
}

fn rms_normalization(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(2)?;
    node.attributes.must_be("stash_type", 1)?;
    let (given, scale) = (node.input(0, "X")?, node.input(1, "scale")?);
    let rank = node.ty(given).rank();
    let axis = node.axis(node.attributes.int_or("axis", -1)?, rank, "axis")?;
    let epsilon = node.attributes.float_or("epsilon", 1e-5)?;
    Ok(vec![rms(node, given, scale, axis, epsilon)?])
}

/// Divided by the root of the mean square over the axes from `axis` on, and scaled.
pub fn rms(
    node: &mut Lowering<'_>,
    given: ValueId,
    scale: ValueId,
    axis: usize,
    epsilon: f32,
) -> Result<ValueId, Refusal> {
    let rank = node.ty(given).rank();
    let element = node.ty(given).element;
    // Statistics are taken in f32 at least.
    let wide = if element == ElementType::F64 { element } else { ElementType::F32 };
    let x = node.cast(given, wide)?;
    let squares = node.binary(Binary::Mul, x, x)?;
    let mean = node.reduce(ReduceKind::Mean, squares, &(axis..rank).collect::<Vec<_>>(), true)?;
    let mean = node.binary_with(Binary::Add, mean, epsilon.into())?;
    let root = node.unary(Unary::Sqrt, mean)?;
    let normal = node.binary(Binary::Div, x, root)?;
    let normal = node.cast(normal, element)?;
    node.binary(Binary::Mul, normal, scale)
}

/// Mean and inverse deviation, when asked for, are computed apart.
fn layer_normalization(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(3)?;
    node.attributes.must_be("stash_type", 1)?;
    let (x, scale, bias) = (node.input(0, "X")?, node.input(1, "Scale")?, node.optional(2));
    let rank = node.shape(x).len();
    let axis = node.axis(node.attributes.int_or("axis", -1)?, rank, "axis")?;
    let epsilon = node.attributes.float_or("epsilon", 1e-5)?;
    let op = Op::LayerNorm { axis, epsilon };
    let mut results = vec![node.emit_optional(op, vec![Some(x), Some(scale), bias], &[])?];
    if node.wants(1) || node.wants(2) {
        let average = Op::Reduce { kind: ReduceKind::Mean, axes: (axis..rank).collect(), keep: true };
        let mean = node.emit(average.clone(), &[x])?;
        let centred = node.emit(Op::Binary(Binary::Sub), &[x, mean])?;
        let squares = node.emit(Op::Binary(Binary::Mul), &[centred, centred])?;
        let variance = node.emit(average, &[squares])?;
        let epsilon = node.scalar(node.ty(x).element, epsilon.into())?;
        let shifted = node.emit(Op::Binary(Binary::Add), &[variance, epsilon])?;
        let deviation = node.emit(Op::Unary(Unary::Sqrt), &[shifted])?;
        results.extend([mean, node.emit(Op::Unary(Unary::Reciprocal), &[deviation])?]);
    }
    Ok(results)
}

fn instance_normalization(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(3)?;
    let inputs = [node.input(0, "input")?, node.input(1, "scale")?, node.input(2, "B")?];
    let epsilon = node.attributes.float_or("epsilon", 1e-5)?;
    Ok(vec![node.emit(Op::InstanceNorm { epsilon }, &inputs)?])
}

/// Scale and bias are one per group up to opset 20 and one per channel from 21 on.
fn group_normalization(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(3)?;
    if node.opset >= 21 {
        node.attributes.must_be("stash_type", 1)?;
    }
    let (x, mut scale, mut bias) = (node.input(0, "X")?, node.input(1, "scale")?, node.input(2, "bias")?);
    let groups = node.attributes.required_int("num_groups")?;
    let groups = usize::try_from(groups).ok().filter(|&groups| groups > 0);
    let groups = groups.ok_or(Refusal::Attribute { name: "num_groups".into(), reason: "is not positive".into() })?;
    let epsilon = node.attributes.float_or("epsilon", 1e-5)?;
    if node.opset < 21 {
        let channels = node.shape(x).get(1).copied().unwrap_or(0);
        for parameter in [&mut scale, &mut bias] {
            let column = node.emit_as(Op::Reshape, &[*parameter], vec![groups, 1])?;
            let spread = node.emit_as(Op::Expand, &[column], vec![groups, channels / groups])?;
            *parameter = node.emit_as(Op::Reshape, &[spread], vec![channels / groups * groups])?;
        }
    }
    Ok(vec![node.emit(Op::GroupNorm { groups, epsilon }, &[x, scale, bias])?])
}

fn lrn(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let x = node.input(0, "X")?;
    let alpha = node.attributes.float_or("alpha", 1e-4)?;
    let beta = node.attributes.float_or("beta", 0.75)?;
    let bias = node.attributes.float_or("bias", 1.0)?;
    let size = super::sizes("size", &[node.attributes.required_int("size")?])?[0];
    Ok(vec![node.emit(Op::Lrn { alpha, beta, bias, size }, &[x])?])
}

/// Up to opset 12 softmax runs over all axes from `axis` on at once; from 13 on over the one axis.
fn softmax(node: &mut Lowering<'_>, log: bool) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let x = node.input(0, "input")?;
    let shape = node.shape(x);
    let default = if node.opset < 13 { 1 } else { -1 };
    let axis = node.axis(node.attributes.int_or("axis", default)?, shape.len(), "axis")?;
    if node.opset >= 13 || axis + 1 == shape.len() {
        return Ok(vec![node.emit(Op::Softmax { axis, log }, &[x])?]);
    }
    let flat = vec![shape[..axis].iter().product(), shape[axis..].iter().product()];
    let flat = node.emit_as(Op::Reshape, &[x], flat)?;
    let result = node.emit(Op::Softmax { axis: 1, log }, &[flat])?;
    Ok(vec![node.emit_as(Op::Reshape, &[result], shape)?])
}
