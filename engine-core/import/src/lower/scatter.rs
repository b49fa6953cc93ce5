//! Scattering.

use super::{super::builder::Lowering, Rule};
use crate::error::Refusal;
use planforge_graph::ir::{ElementType, NamedOp, Op, ValueId};

pub const RULES: &[Rule] = &[
    Rule { op_type: "ScatterElements", attributes: &["axis", "reduction"], lower: elements },
    // The name of ScatterElements before opset 11.
    Rule { op_type: "Scatter", attributes: &["axis"], lower: elements },
    Rule { op_type: "ScatterND", attributes: &["reduction"], lower: nd },
];

/// Data, indices, updates and how they meet: reductions came with opset 16, extremes with 18.
fn common(node: &Lowering<'_>) -> Result<([ValueId; 3], String), Refusal> {
    node.at_most(3)?;
    let inputs = [node.input(0, "data")?, node.input(1, "indices")?, node.input(2, "updates")?];
    let known: &[&str] = match node.opset {
        ..16 => &["none"],
        16..18 => &["none", "add", "mul"],
        _ => &["none", "add", "mul", "max", "min"],
    };
    let reduction = if node.opset < 16 { "none" } else { node.attributes.text_or("reduction", "none")? };
    if !known.contains(&reduction) {
        return Err(Refusal::Attribute { name: "reduction".into(), reason: format!("is {reduction}") });
    }
    match node.ty(inputs[1]).element {
        ElementType::I32 | ElementType::I64 => Ok((inputs, reduction.to_owned())),
        other => Err(Refusal::Element(format!("{other} of indices"))),
    }
}

fn elements(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let (inputs, reduction) = common(node)?;
    let axis = node.axis(node.attributes.int_or("axis", 0)?, node.ty(inputs[0]).rank(), "axis")?;
    let op = NamedOp::new("scatter_elements").with_int("axis", axis as i64).with_text("reduction", &reduction);
    Ok(vec![node.emit(Op::Named(op.into()), &inputs)?])
}

fn nd(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let (inputs, reduction) = common(node)?;
    let op = NamedOp::new("scatter_nd").with_text("reduction", &reduction);
    Ok(vec![node.emit(Op::Named(op.into()), &inputs)?])
}
