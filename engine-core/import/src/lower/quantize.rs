//! Quantization and its way back.

use super::{super::builder::Lowering, Rule, integer::saturate, sizes, widths::Rounding};
use crate::{
    error::Refusal,
    narrow::{Kept, kept_type},
};
use planforge_graph::ir::{Binary, ElementType, Op, Quantization, ValueId};

pub const RULES: &[Rule] = &[
    Rule {
        op_type: "QuantizeLinear",
        attributes: &["axis", "block_size", "output_dtype", "precision", "saturate"],
        lower: quantize,
    },
    Rule { op_type: "DequantizeLinear", attributes: &["axis", "block_size", "output_dtype"], lower: dequantize },
];

/// Input, scale and zero point, the last two as scalars, lists along an axis of the input, or one for each block of it.
struct Given {
    x: ValueId,
    scale: ValueId,
    zero: Option<ValueId>,
    axis: Option<usize>,
    /// Elements of the axis that share a scale; 0: no blocks.
    block: usize,
}

fn given(node: &mut Lowering<'_>) -> Result<Given, Refusal> {
    node.at_most(3)?;
    let (x, scale, zero) = (node.input(0, "x")?, node.input(1, "scale")?, node.optional(2));
    let block = if node.opset >= 21 { node.attributes.int_or("block_size", 0)? } else { 0 };
    let block = sizes("block_size", &[block])?[0];
    let rank = node.ty(x).rank();
    let axis = if node.opset >= 13 { node.attributes.int_or("axis", 1)? } else { 1 };
    let per_tensor = block == 0 && matches!(node.shape(scale)[..], [] | [1]);
    if node.opset < 13 && !per_tensor {
        return Err(Refusal::Unsupported { what: "a scale per axis before opset 13".into() });
    }
    // A scalar scale belongs to no axis, whatever the attribute says.
    let axis = if per_tensor { None } else { Some(node.axis(axis, rank, "axis")?) };
    if let (Some(axis), true) = (axis, block > 0) {
        let (mut shape, found) = (node.shape(x), node.shape(scale));
        shape[axis] = shape[axis].div_ceil(block);
        if found != shape {
            return Err(Refusal::Impossible { what: "the scales of blocks", value: format!("{found:?}"), shape });
        }
    }
    let scalar = |node: &mut Lowering<'_>, id: ValueId| match axis.is_none() && node.ty(id).rank() == 1 {
        true => node.emit_as(Op::Reshape, &[id], Vec::new()),
        false => Ok(id),
    };
    let scale = scalar(node, scale)?;
    let zero = zero.map(|zero| scalar(node, zero)).transpose()?;
    Ok(Given { x, scale, zero, axis, block })
}

/// The type that an attribute asks for; nothing when it is left open.
fn asked(node: &Lowering<'_>, name: &'static str) -> Result<Option<Kept>, Refusal> {
    let number = node.attributes.int_or(name, 0)?;
    if number == 0 {
        return Ok(None);
    }
    let element = i32::try_from(number).map_err(|_| number.to_string()).and_then(kept_type);
    element.map(Some).map_err(|element| Refusal::Attribute { name: name.into(), reason: format!("is {element}") })
}

fn named((element, narrow): Kept) -> String {
    narrow.map_or_else(|| element.to_string(), |narrow| narrow.name().to_owned())
}

impl Given {
    /// A scale or zero point in `wide`, in a shape that broadcasts to the input's.
    fn spread(&self, node: &mut Lowering<'_>, id: ValueId, wide: ElementType) -> Result<ValueId, Refusal> {
        let id = node.widened(id)?;
        let id = node.cast(id, wide)?;
        let Some(axis) = self.axis else { return Ok(id) };
        let (shape, found) = (node.shape(self.x), node.shape(id));
        let mut out = vec![1; shape.len()];
        if self.block == 0 {
            if found != [shape[axis]] {
                return Err(Refusal::Impossible { what: "the list of scales", value: format!("{found:?}"), shape });
            }
            out[axis] = found[0];
            return node.reshape(id, out);
        }
        if found.len() != shape.len() {
            return Err(Refusal::Impossible { what: "the zero points of blocks", value: format!("{found:?}"), shape });
        }
        let mut apart = found.clone();
        apart.insert(axis + 1, 1);
        let id = node.reshape(id, apart.clone())?;
        apart[axis + 1] = self.block;
        let id = node.emit_as(Op::Expand, &[id], apart)?;
        let mut joined = found;
        joined[axis] = joined[axis].saturating_mul(self.block);
        let id = node.reshape(id, joined)?;
        node.part(id, axis, 0, shape[axis])
    }
}

pub fn quantize(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let given = given(node)?;
    let saturates = node.opset < 19 || node.attributes.flag("saturate", true)?;
    let asked = if node.opset >= 21 { asked(node, "output_dtype")? } else { None };
    if node.opset >= 23
        && let Some(precision) = self::asked(node, "precision")?
        && precision != (ElementType::F32, None)
    {
        return Err(Refusal::Attribute { name: "precision".into(), reason: format!("is {}", named(precision)) });
    }
    let zero_type = given.zero.map(|zero| node.kept(zero));
    let (element, narrow) = match (asked, zero_type) {
        (Some(asked), Some(zero)) if asked != zero => {
            let reason = format!("is {}, but the zero point is {}", named(asked), named(zero));
            return Err(Refusal::Attribute { name: "output_dtype".into(), reason });
        }
        (Some(element), _) | (None, Some(element)) => element,
        (None, None) => (ElementType::U8, None),
    };
    let to_float = narrow.filter(|narrow| !narrow.is_integer());
    if given.block == 0 && to_float.is_none() {
        // Integers are quantized as the numbers they are.
        let mut x = given.x;
        if node.ty(x).element == ElementType::I32 {
            x = node.cast(x, node.ty(given.scale).element)?;
        }
        let zero = given.zero.map(|zero| node.codes(zero)).transpose()?;
        let op = Op::Quantize(Quantization { element, axis: given.axis });
        let made = node.emit_optional(op, vec![Some(x), Some(given.scale), zero], &[])?;
        return Ok(vec![match narrow {
            Some(narrow) => node.clamped(made, narrow)?,
            None => made,
        }]);
    }
    let wide = if node.ty(given.x).element == ElementType::F64 { ElementType::F64 } else { ElementType::F32 };
    let x = node.cast(given.x, wide)?;
    let scale = given.spread(node, given.scale, wide)?;
    let scaled = node.binary(Binary::Div, x, scale)?;
    let zero = given.zero.map(|zero| given.spread(node, zero, wide)).transpose()?;
    if let Some(narrow) = to_float {
        let moved = match zero {
            Some(zero) => node.binary(Binary::Add, scaled, zero)?,
            None => scaled,
        };
        return Ok(vec![node.narrowed(moved, narrow, Rounding { saturates, mode: "up" })?]);
    }
    let made = saturate(node, scaled, zero, element)?;
    Ok(vec![match narrow {
        Some(narrow) => node.clamped(made, narrow)?,
        None => made,
    }])
}

pub fn dequantize(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let given = given(node)?;
    let (element, narrow) = node.kept(given.x);
    let to = node.ty(given.scale).element;
    let of_float = narrow.is_some_and(|narrow| !narrow.is_integer());
    let result = if given.block == 0 && !of_float {
        let x = node.codes(given.x)?;
        let zero = given.zero.map(|zero| node.codes(zero)).transpose()?;
        let op = Op::Dequantize(Quantization { element, axis: given.axis });
        node.emit_optional(op, vec![Some(x), Some(given.scale), zero], &[])?
    } else {
        let exact = element == ElementType::I32 || to == ElementType::F64;
        let wide = if exact { ElementType::F64 } else { ElementType::F32 };
        let x = node.widened(given.x)?;
        let mut x = node.cast(x, wide)?;
        if let Some(zero) = given.zero {
            let zero = given.spread(node, zero, wide)?;
            x = node.binary(Binary::Sub, x, zero)?;
        }
        let scale = given.spread(node, given.scale, wide)?;
        let made = node.binary(Binary::Mul, x, scale)?;
        node.cast(made, to)?
    };
    let asked = if node.opset >= 23 { asked(node, "output_dtype")? } else { None };
    match asked {
        Some((_, Some(narrow))) => {
            let reason = format!("is {}, not a float of 16 bits or more", narrow.name());
            Err(Refusal::Attribute { name: "output_dtype".into(), reason })
        }
        Some((to, None)) if to != node.ty(result).element => Ok(vec![node.emit(Op::Cast { to }, &[result])?]),
        _ => Ok(vec![result]),
    }
}
