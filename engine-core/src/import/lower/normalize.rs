//! Normalisations and softmax.

use super::{super::builder::Lowering, Rule};
use crate::{
    import::error::Refusal,
    ir::{Binary, Op, ReduceKind, Unary, ValueId},
};

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
    Rule { op_type: "LRN", attributes: &["alpha", "beta", "bias", "size"], lower: lrn },
    Rule { op_type: "Softmax", attributes: &["axis"], lower: |node| softmax(node, false) },
    Rule { op_type: "LogSoftmax", attributes: &["axis"], lower: |node| softmax(node, true) },
];

fn batch_normalization(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(5)?;
    node.only_outputs(1)?;
    node.attributes.without_effect("momentum");
    if node.opset >= 14 {
        node.attributes.must_be("training_mode", 0)?;
    }
    let inputs = ["X", "scale", "B", "mean", "var"];
    let inputs: Vec<ValueId> =
        inputs.iter().enumerate().map(|(position, what)| node.input(position, what)).collect::<Result<_, _>>()?;
    let epsilon = node.attributes.float_or("epsilon", 1e-5)?;
    Ok(vec![node.emit(Op::BatchNorm { epsilon }, &inputs)?])
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
