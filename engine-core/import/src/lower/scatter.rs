//! Scattering.

use super::{super::builder::Lowering, Rule};
use crate::error::Refusal;
use planforge_graph::ir::{Binary, ElementType, NamedOp, Op, ValueId};

pub const RULES: &[Rule] = &[
    Rule { op_type: "ScatterElements", attributes: &["axis", "reduction"], lower: elements },
    // The name of ScatterElements before opset 11.
    Rule { op_type: "Scatter", attributes: &["axis"], lower: elements },
    Rule { op_type: "ScatterND", attributes: &["reduction"], lower: nd },
    Rule { op_type: "TensorScatter", attributes: &["axis", "mode"], lower: cache },
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

/// A cache of keys or values with an update written into it, from a place for each image on.
fn cache(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(3)?;
    let (past, update) = (node.input(0, "past_cache")?, node.input(1, "update")?);
    let (shape, given) = (node.shape(past), node.shape(update));
    let axis = node.axis(node.attributes.int_or("axis", -2)?, shape.len(), "axis")?;
    let fits = given.len() == shape.len()
        && axis > 0
        && (0..shape.len()).all(|at| if at == axis { given[at] <= shape[at] } else { given[at] == shape[at] });
    if !fits {
        return Err(Refusal::Impossible { what: "the update", value: format!("{given:?}"), shape });
    }
    let circular = match node.attributes.text_or("mode", "linear")? {
        "linear" => false,
        "circular" => true,
        other => return Err(Refusal::Attribute { name: "mode".into(), reason: format!("is {other}") }),
    };
    let along = |size: usize, at: usize| {
        let mut shape = vec![1; given.len()];
        shape[at] = size;
        shape
    };
    let steps = node.counting(ElementType::I64, given[axis])?;
    let mut places = node.reshape(steps, along(given[axis], axis))?;
    if let Some(first) = node.optional(2) {
        if node.shape(first) != [shape[0]] {
            let value = format!("{:?}", node.shape(first));
            return Err(Refusal::Impossible { what: "the list of places", value, shape });
        }
        let first = node.cast(first, ElementType::I64)?;
        let first = node.reshape(first, along(shape[0], 0))?;
        places = node.binary(Binary::Add, first, places)?;
    }
    if circular {
        places = node.binary_with(Binary::Mod, places, shape[axis].max(1) as f64)?;
    }
    let places = node.emit_as(Op::Expand, &[places], given)?;
    let op = NamedOp::new("scatter_elements").with_int("axis", axis as i64).with_text("reduction", "none");
    Ok(vec![node.emit(Op::Named(op.into()), &[past, places, update])?])
}

#[cfg(test)]
mod tests {
    use crate::testing::{TestModel, text};
    use planforge_graph::{interpreter, ir::Tensor};
    use std::collections::BTreeMap;

    #[test]
    fn a_cache_is_written_from_a_place_for_each_image_on() {
        let model = |mode: &'static str, update: &[i64]| {
            TestModel::new(24)
                .input("past", &[2, 3, 2])
                .input("x", update)
                .longs("first", &[1, 2])
                .node("TensorScatter", &["past", "x", "first"], "y", vec![text("mode", mode)])
                .output("y")
        };
        let past = Tensor::from_vec(vec![2, 3, 2], (0..12).map(|at| at as f32).collect()).expect("a cache");
        let update = Tensor::from_vec(vec![2, 2, 2], (20..28).map(|at| at as f32).collect()).expect("an update");
        let inputs = BTreeMap::from([("past".to_owned(), past), ("x".to_owned(), update)]);
        let graph = model("circular", &[2, 2, 2]).import();
        let made = interpreter::execute(&graph, &inputs).expect("the graph runs")["y"].to_f64s();
        assert_eq!(made, [0., 1., 20., 21., 22., 23., 26., 27., 8., 9., 24., 25.]);
        // From the last place on there is room for one alone.
        interpreter::execute(&model("linear", &[2, 2, 2]).import(), &inputs).expect_err("it ends before");
        let error = crate::import(&model("linear", &[2, 4, 2]).model(), None).expect_err("it is too long").to_string();
        assert!(error.contains("the update is [2, 4, 2]"), "{error}");
    }
}
