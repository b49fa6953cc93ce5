//! Convolutions and matrix products.

use super::{super::builder::Lowering, Rule, spatial_sizes};
use crate::error::Refusal;
use planforge_graph::{
    ir::{Binary, Conv, ConvTranspose, Epilogue, MatMul, Op, ValueId},
    shape::{AutoPad, resolve_pads, transposed_pads},
};

/// What every convolution has.
pub const CONV_ATTRIBUTES: &[&str] = &["auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"];

pub const RULES: &[Rule] = &[
    Rule { op_type: "Conv", attributes: CONV_ATTRIBUTES, lower: conv },
    Rule {
        op_type: "ConvTranspose",
        attributes: &[
            "auto_pad",
            "dilations",
            "group",
            "kernel_shape",
            "output_padding",
            "output_shape",
            "pads",
            "strides",
        ],
        lower: conv_transpose,
    },
    Rule { op_type: "Gemm", attributes: &["alpha", "beta", "transA", "transB"], lower: gemm },
    Rule { op_type: "MatMul", attributes: &[], lower: matmul },
];

pub fn auto_pad(node: &Lowering<'_>) -> Result<AutoPad, Refusal> {
    match node.attributes.text_or("auto_pad", "NOTSET")? {
        "NOTSET" => Ok(AutoPad::NotSet),
        "VALID" => Ok(AutoPad::Valid),
        "SAME_UPPER" => Ok(AutoPad::SameUpper),
        "SAME_LOWER" => Ok(AutoPad::SameLower),
        other => Err(Refusal::Attribute { name: "auto_pad".into(), reason: format!("is {other}, which is unknown") }),
    }
}

pub fn impossible_window(shape: &[usize], kernel: &[usize]) -> Refusal {
    Refusal::Impossible { what: "the window", value: format!("{kernel:?}"), shape: shape.to_vec() }
}

/// Spatial sizes of image and kernel; checks the declared kernel.
fn spatial(node: &Lowering<'_>, x: ValueId, w: ValueId) -> Result<(Vec<usize>, Vec<usize>), Refusal> {
    let (x, w) = (node.shape(x), node.shape(w));
    if x.len() < 3 || w.len() != x.len() {
        return Err(Refusal::Impossible { what: "the weights' shape", value: format!("{w:?}"), shape: x });
    }
    let (image, kernel) = (x[2..].to_vec(), w[2..].to_vec());
    if spatial_sizes("kernel_shape", node.attributes.ints("kernel_shape")?, kernel.len(), 1)? != kernel
        && node.attributes.has("kernel_shape")
    {
        let reason = format!("differs from the weights' {kernel:?}");
        return Err(Refusal::Attribute { name: "kernel_shape".into(), reason });
    }
    Ok((image, kernel))
}

fn groups(node: &Lowering<'_>) -> Result<usize, Refusal> {
    let groups = node.attributes.int_or("group", 1)?;
    usize::try_from(groups)
        .ok()
        .filter(|&groups| groups > 0)
        .ok_or_else(|| Refusal::Attribute { name: "group".into(), reason: format!("is {groups}") })
}

fn conv(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(3)?;
    let (x, w, bias) = (node.input(0, "X")?, node.input(1, "W")?, node.optional(2));
    let op = Op::Conv(conv_attributes(node, x, w)?);
    Ok(vec![node.emit_optional(op, vec![Some(x), Some(w), bias], &[])?])
}

/// The convolution that the node's attributes describe.
pub fn conv_attributes(node: &Lowering<'_>, x: ValueId, w: ValueId) -> Result<Conv, Refusal> {
    let (image, kernel) = spatial(node, x, w)?;
    let rank = image.len();
    let strides = spatial_sizes("strides", node.attributes.ints("strides")?, rank, 1)?;
    let dilations = spatial_sizes("dilations", node.attributes.ints("dilations")?, rank, 1)?;
    let explicit = spatial_sizes("pads", node.attributes.ints("pads")?, 2 * rank, 0)?;
    let auto = auto_pad(node)?;
    let pads = resolve_pads(auto, &explicit, &image, &kernel, &strides, &dilations)
        .ok_or_else(|| impossible_window(&image, &kernel))?;
    Ok(Conv { strides, pads, dilations, groups: groups(node)?, epilogue: Epilogue::default() })
}

fn conv_transpose(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(3)?;
    let (x, w, bias) = (node.input(0, "X")?, node.input(1, "W")?, node.optional(2));
    let (image, kernel) = spatial(node, x, w)?;
    let rank = image.len();
    let strides = spatial_sizes("strides", node.attributes.ints("strides")?, rank, 1)?;
    let dilations = spatial_sizes("dilations", node.attributes.ints("dilations")?, rank, 1)?;
    let explicit = spatial_sizes("pads", node.attributes.ints("pads")?, 2 * rank, 0)?;
    let padding = spatial_sizes("output_padding", node.attributes.ints("output_padding")?, rank, 0)?;
    let asked = match node.attributes.ints("output_shape")? {
        Some(asked) => Some(spatial_sizes("output_shape", Some(asked), rank, 1)?),
        None => None,
    };
    let auto = auto_pad(node)?;
    let (begins, sizes) =
        transposed_pads(auto, &explicit, asked.as_deref(), &padding, [&image, &kernel, &strides, &dilations])
            .ok_or_else(|| impossible_window(&image, &kernel))?;
    let groups = groups(node)?;
    let filters = node.shape(w)[1].saturating_mul(groups);
    let shape = [&[node.shape(x)[0], filters], sizes.as_slice()].concat();
    let op = Op::ConvTranspose(ConvTranspose { strides, pads: begins, dilations, groups });
    Ok(vec![node.emit_optional(op, vec![Some(x), Some(w), bias], &[shape])?])
}

fn matmul(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(2)?;
    let inputs = [node.input(0, "A")?, node.input(1, "B")?];
    Ok(vec![node.emit(Op::MatMul(MatMul::default()), &inputs)?])
}

/// `alpha op(A) op(B) + beta C`: a matrix product with C as its bias, its residual, or an addition of its own.
pub fn gemm(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(3)?;
    let (a, b) = (node.input(0, "A")?, node.input(1, "B")?);
    for id in [a, b] {
        if node.ty(id).rank() != 2 {
            let shape = node.shape(id);
            return Err(Refusal::Impossible { what: "the rank", value: shape.len().to_string(), shape });
        }
    }
    let alpha = node.attributes.float_or("alpha", 1.0)?;
    let beta = node.attributes.float_or("beta", 1.0)?;
    let (trans_a, trans_b) = (node.attributes.flag("transA", false)?, node.attributes.flag("transB", false)?);
    let op = Op::MatMul(MatMul { alpha, trans_a, trans_b, epilogue: Epilogue::default() });
    let Some(mut c) = node.optional(2) else {
        return Ok(vec![node.emit(op, &[a, b])?]);
    };
    if beta != 1.0 {
        let beta = node.scalar(node.ty(c).element, beta.into())?;
        c = node.emit(Op::Binary(Binary::Mul), &[c, beta])?;
    }
    let m = node.shape(a)[usize::from(trans_a)];
    let n = node.shape(b)[usize::from(!trans_b)];
    match node.shape(c)[..] {
        [columns] if columns == n => Ok(vec![node.emit(op, &[a, b, c])?]),
        [1, columns] if columns == n => {
            let bias = node.emit_as(Op::Reshape, &[c], vec![n])?;
            Ok(vec![node.emit(op, &[a, b, bias])?])
        }
        [rows, columns] if rows == m && columns == n => {
            Ok(vec![node.emit_optional(op, vec![Some(a), Some(b), None, Some(c)], &[])?])
        }
        _ => {
            let product = node.emit(op, &[a, b])?;
            let sum = node.emit(Op::Binary(Binary::Add), &[product, c])?;
            match node.shape(sum) == [m, n] {
                true => Ok(vec![sum]),
                false => Err(Refusal::Impossible {
                    what: "the shape of C",
                    value: format!("{:?}", node.shape(c)),
                    shape: vec![m, n],
                }),
            }
        }
    }
}
