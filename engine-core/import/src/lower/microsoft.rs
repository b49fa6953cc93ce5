//! Operators of `com.microsoft` that ONNX Runtime's optimizer emits, composed of standard ones.

use super::{
    super::builder::Lowering,
    Rule,
    linear::{CONV_ATTRIBUTES, conv_attributes, gemm},
};
use crate::error::Refusal;
use planforge_graph::ir::{Activation, Binary, ElementType, Epilogue, GeluForm, MatMul, Op, ReduceKind, ValueId};

pub const RULES: &[Rule] = &[
    Rule {
        op_type: "FusedConv",
        attributes: &[
            "activation",
            "activation_params",
            CONV_ATTRIBUTES[0],
            CONV_ATTRIBUTES[1],
            CONV_ATTRIBUTES[2],
            CONV_ATTRIBUTES[3],
            CONV_ATTRIBUTES[4],
            CONV_ATTRIBUTES[5],
        ],
        lower: fused_conv,
    },
    Rule {
        op_type: "FusedGemm",
        attributes: &[
            "activation",
            "activation_alpha",
            "activation_beta",
            "activation_gamma",
            "alpha",
            "beta",
            "transA",
            "transB",
        ],
        lower: fused_gemm,
    },
    Rule {
        op_type: "FusedMatMul",
        attributes: &["alpha", "transA", "transB", "transBatchA", "transBatchB"],
        lower: fused_matmul,
    },
    Rule { op_type: "Gelu", attributes: &[], lower: |node| gelu(node, 1, GeluForm::Erf) },
    Rule { op_type: "BiasGelu", attributes: &[], lower: |node| gelu(node, 2, GeluForm::Erf) },
    Rule { op_type: "FastGelu", attributes: &[], lower: |node| gelu(node, 2, GeluForm::Tanh) },
    Rule { op_type: "QuickGelu", attributes: &["alpha"], lower: quick_gelu },
    Rule { op_type: "SkipLayerNormalization", attributes: &["epsilon"], lower: |node| skip_norm(node, false) },
    Rule { op_type: "SkipSimplifiedLayerNormalization", attributes: &["epsilon"], lower: |node| skip_norm(node, true) },
    Rule { op_type: "EmbedLayerNormalization", attributes: &["epsilon", "mask_index_type"], lower: embed },
];

/// The activation that a fused operator names, with up to two parameters.
fn activation(name: &str, parameters: &[f32]) -> Result<Activation, Refusal> {
    let at = |index: usize, default: f32| parameters.get(index).copied().unwrap_or(default);
    Ok(match name {
        "Relu" => Activation::Relu,
        "Tanh" => Activation::Tanh,
        "Sigmoid" => Activation::Sigmoid,
        "LeakyRelu" => Activation::LeakyRelu { alpha: at(0, 0.01) },
        "HardSigmoid" => Activation::HardSigmoid { alpha: at(0, 0.2), beta: at(1, 0.5) },
        "Clip" => Activation::Clip { min: parameters.first().copied(), max: parameters.get(1).copied() },
        other => {
            let reason = format!("is '{other}', which is not supported");
            return Err(Refusal::Attribute { name: "activation".into(), reason });
        }
    })
}

/// `activation(conv + B + Z)`.
fn fused_conv(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(4)?;
    let (x, w) = (node.input(0, "X")?, node.input(1, "W")?);
    let op = Op::Conv(conv_attributes(node, x, w)?);
    let mut y = node.emit_optional(op, vec![Some(x), Some(w), node.optional(2)], &[])?;
    if let Some(z) = node.optional(3) {
        y = node.binary(Binary::Add, y, z)?;
    }
    let parameters = node.attributes.floats("activation_params")?.unwrap_or_default();
    match node.attributes.text_or("activation", "")? {
        "" => Ok(vec![y]),
        name => {
            let activation = activation(name, parameters)?;
            Ok(vec![node.emit(Op::Activation(activation), &[y])?])
        }
    }
}

fn fused_gemm(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let y = gemm(node)?[0];
    let mut parameters = Vec::new();
    for name in ["activation_alpha", "activation_beta", "activation_gamma"] {
        parameters.extend(node.attributes.float(name)?);
    }
    match node.attributes.text_or("activation", "")? {
        "" => Ok(vec![y]),
        name => {
            let activation = activation(name, &parameters)?;
            Ok(vec![node.emit(Op::Activation(activation), &[y])?])
        }
    }
}

fn fused_matmul(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(2)?;
    for name in ["transBatchA", "transBatchB"] {
        node.attributes.must_be(name, 0)?;
    }
    let inputs = [node.input(0, "A")?, node.input(1, "B")?];
    let alpha = node.attributes.float_or("alpha", 1.0)?;
    let (trans_a, trans_b) = (node.attributes.flag("transA", false)?, node.attributes.flag("transB", false)?);
    let op = MatMul { alpha, trans_a, trans_b, epilogue: Epilogue::default() };
    Ok(vec![node.emit(Op::MatMul(op), &inputs)?])
}

fn gelu(node: &mut Lowering<'_>, most: usize, form: GeluForm) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(most)?;
    let mut x = node.input(0, "X")?;
    if let Some(bias) = node.optional(1) {
        x = node.binary(Binary::Add, x, bias)?;
    }
    Ok(vec![node.emit(Op::Activation(Activation::Gelu(form)), &[x])?])
}

fn quick_gelu(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let x = node.input(0, "X")?;
    let alpha = node.attributes.float_or("alpha", 1.702)?;
    let scaled = node.binary_with(Binary::Mul, x, alpha.into())?;
    let gate = node.emit(Op::Activation(Activation::Sigmoid), &[scaled])?;
    Ok(vec![node.binary(Binary::Mul, x, gate)?])
}

/// The sum of input, skip and bias, normalised; mean and deviation are not given out.
fn skip_norm(node: &mut Lowering<'_>, simplified: bool) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(if simplified { 4 } else { 5 })?;
    for position in [1, 2] {
        if node.wants(position) {
            return Err(Refusal::Output { position });
        }
    }
    let (x, skip, gamma) = (node.input(0, "input")?, node.input(1, "skip")?, node.input(2, "gamma")?);
    let (beta, bias) = if simplified { (None, node.optional(3)) } else { (node.optional(3), node.optional(4)) };
    let mut sum = node.binary(Binary::Add, x, skip)?;
    if let Some(bias) = bias {
        sum = node.binary(Binary::Add, sum, bias)?;
    }
    let axis = node.axis(-1, node.ty(sum).rank(), "the last axis")?;
    let epsilon = node.attributes.float_or("epsilon", if simplified { 1e-5 } else { 1e-12 })?;
    let y = if simplified {
        super::normalize::rms(node, sum, gamma, axis, epsilon)?
    } else {
        node.emit_optional(Op::LayerNorm { axis, epsilon }, vec![Some(sum), Some(gamma), beta], &[])?
    };
    Ok(vec![y, sum, sum, sum])
}

/// Words, positions and segments looked up, summed and normalised.
fn embed(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(9)?;
    node.attributes.must_be("mask_index_type", 0)?;
    let (ids, words) = (node.input(0, "input_ids")?, node.input(2, "word_embedding")?);
    let positions = node.input(3, "position_embedding")?;
    let (gamma, beta) = (node.input(5, "gamma")?, node.input(6, "beta")?);
    let [batch, length] = node.shape(ids)[..] else {
        let shape = node.shape(ids);
        return Err(Refusal::Impossible { what: "the rank of input_ids", value: shape.len().to_string(), shape });
    };
    let mut sum = node.emit(Op::Gather { axis: 0 }, &[words, ids])?;
    let place = match node.optional(8) {
        Some(given) => node.emit(Op::Gather { axis: 0 }, &[positions, given])?,
        None => {
            if node.shape(positions).first().is_none_or(|&rows| rows < length) {
                let shape = node.shape(positions);
                return Err(Refusal::Impossible { what: "the sequence", value: length.to_string(), shape });
            }
            node.part(positions, 0, 0, length)?
        }
    };
    sum = node.binary(Binary::Add, sum, place)?;
    if let (Some(segments), Some(table)) = (node.optional(1), node.optional(4)) {
        let segment = node.emit(Op::Gather { axis: 0 }, &[table, segments])?;
        sum = node.binary(Binary::Add, sum, segment)?;
    }
    let epsilon = node.attributes.float_or("epsilon", 1e-12)?;
    let y = node.emit(Op::LayerNorm { axis: 2, epsilon }, &[sum, gamma, beta])?;
    let lengths = match node.optional(7) {
        Some(mask) => node.reduce(ReduceKind::Sum, mask, &[1], false)?,
        None => {
            let zero = node.scalar(ElementType::I32, 0.0)?;
            node.emit_as(Op::Expand, &[zero], vec![batch])?
        }
    };
    Ok(vec![y, lengths, sum])
}
