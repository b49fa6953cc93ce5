//! Quantization and its way back.

use super::{super::builder::Lowering, Rule};
use crate::{element_type, error::Refusal};
use planforge_graph::ir::{ElementType, Op, Quantization, ValueId};

pub const RULES: &[Rule] = &[
    Rule {
        op_type: "QuantizeLinear",
        attributes: &["axis", "block_size", "output_dtype", "precision", "saturate"],
        lower: quantize,
    },
    Rule { op_type: "DequantizeLinear", attributes: &["axis", "block_size", "output_dtype"], lower: dequantize },
];

/// Input, scale and zero point, the last two as scalars or lists along an axis of the input.
struct Given {
    inputs: Vec<Option<ValueId>>,
    axis: Option<usize>,
    /// Type of the zero point.
    zero: Option<ElementType>,
}

fn given(node: &mut Lowering<'_>) -> Result<Given, Refusal> {
    node.at_most(3)?;
    let (x, scale, zero) = (node.input(0, "x")?, node.input(1, "scale")?, node.optional(2));
    if node.opset >= 21 {
        node.attributes.must_be("block_size", 0)?;
    }
    let rank = node.ty(x).rank();
    let axis = if node.opset >= 13 { node.attributes.int_or("axis", 1)? } else { 1 };
    let per_tensor = matches!(node.shape(scale)[..], [] | [1]);
    if node.opset < 13 && !per_tensor {
        return Err(Refusal::Unsupported { what: "a scale per axis before opset 13".into() });
    }
    // A scalar scale belongs to no axis, whatever the attribute says.
    let axis = if per_tensor { None } else { Some(node.axis(axis, rank, "axis")?) };
    let mut parameters = vec![Some(scale), zero];
    for parameter in parameters.iter_mut().flatten() {
        if axis.is_none() && node.ty(*parameter).rank() == 1 {
            *parameter = node.emit_as(Op::Reshape, &[*parameter], Vec::new())?;
        }
    }
    let zero = zero.map(|zero| node.ty(zero).element);
    Ok(Given { inputs: [vec![Some(x)], parameters].concat(), axis, zero })
}

/// The type that an attribute asks for; nothing when it is left open.
fn asked(node: &Lowering<'_>, name: &'static str) -> Result<Option<ElementType>, Refusal> {
    let number = node.attributes.int_or(name, 0)?;
    if number == 0 {
        return Ok(None);
    }
    let element = i32::try_from(number).map_err(|_| number.to_string()).and_then(element_type);
    element.map(Some).map_err(|element| Refusal::Attribute { name: name.into(), reason: format!("is {element}") })
}

fn quantize(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let given = given(node)?;
    if node.opset >= 19 {
        // Concerns 8-bit floats alone, which no value here has.
        node.attributes.without_effect("saturate");
    }
    let asked = if node.opset >= 21 { asked(node, "output_dtype")? } else { None };
    if node.opset >= 23
        && let Some(precision) = self::asked(node, "precision")?
        && precision != ElementType::F32
    {
        return Err(Refusal::Attribute { name: "precision".into(), reason: format!("is {precision}") });
    }
    let element = match (asked, given.zero) {
        (Some(asked), Some(zero)) if asked != zero => {
            let reason = format!("is {asked}, but the zero point is {zero}");
            return Err(Refusal::Attribute { name: "output_dtype".into(), reason });
        }
        (Some(element), _) | (None, Some(element)) => element,
        (None, None) => ElementType::U8,
    };
    // Integers are quantized as the numbers they are.
    let mut inputs = given.inputs;
    if let (Some(x), Some(scale)) = (inputs[0], inputs[1])
        && node.ty(x).element == ElementType::I32
    {
        let to = node.ty(scale).element;
        inputs[0] = Some(node.emit(Op::Cast { to }, &[x])?);
    }
    let how = Quantization { element, axis: given.axis };
    Ok(vec![node.emit_optional(Op::Quantize(how), inputs, &[])?])
}

fn dequantize(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let given = given(node)?;
    let element = node.ty(node.input(0, "x")?).element;
    let how = Quantization { element, axis: given.axis };
    let result = node.emit_optional(Op::Dequantize(how), given.inputs, &[])?;
    let asked = if node.opset >= 23 { asked(node, "output_dtype")? } else { None };
    match asked.filter(|&to| to != node.ty(result).element) {
        Some(to) => Ok(vec![node.emit(Op::Cast { to }, &[result])?]),
        None => Ok(vec![result]),
    }
}
