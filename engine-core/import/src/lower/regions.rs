//! Regions of images, and maxima put back where they were found.

use super::{super::builder::Lowering, Rule, linear::impossible_window, sizes, spatial_sizes};
use crate::error::Refusal;
use planforge_graph::ir::{ElementType, NamedOp, Op, PadMode, ValueId};

pub const RULES: &[Rule] = &[
    Rule { op_type: "MaxUnpool", attributes: &["kernel_shape", "pads", "strides"], lower: max_unpool },
    Rule {
        op_type: "RoiAlign",
        attributes: &[
            "coordinate_transformation_mode",
            "mode",
            "output_height",
            "output_width",
            "sampling_ratio",
            "spatial_scale",
        ],
        lower: roi_align,
    },
];

fn roi_align(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(3)?;
    let inputs = [node.input(0, "X")?, node.input(1, "rois")?, node.input(2, "batch_indices")?];
    let attributes = &node.attributes;
    let half_pixel = if node.opset < 16 {
        false
    } else {
        match attributes.text_or("coordinate_transformation_mode", "half_pixel")? {
            "half_pixel" => true,
            "output_half_pixel" => false,
            other => {
                let name = "coordinate_transformation_mode".into();
                return Err(Refusal::Attribute { name, reason: format!("is {other}") });
            }
        }
    };
    let largest = match attributes.text_or("mode", "avg")? {
        "avg" => false,
        "max" => true,
        other => return Err(Refusal::Attribute { name: "mode".into(), reason: format!("is {other}") }),
    };
    let op = NamedOp::new("roi_align")
        .with_int("height", attributes.int_or("output_height", 1)?)
        .with_int("width", attributes.int_or("output_width", 1)?)
        .with_int("samples", attributes.int_or("sampling_ratio", 0)?)
        .with_floats("scale", &[attributes.float_or("spatial_scale", 1.0)?])
        .with_int("half_pixel", half_pixel.into())
        .with_int("largest", largest.into());
    Ok(vec![node.emit(Op::Named(op.into()), &inputs)?])
}

/// Zeros, but for the maxima of a pooling where its second output says that they were.
fn max_unpool(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(3)?;
    let (x, places) = (node.input(0, "X")?, node.input(1, "I")?);
    let shape = node.shape(x);
    let missing = || Refusal::Attribute { name: "kernel_shape".into(), reason: "is missing".into() };
    let given = node.attributes.ints("kernel_shape")?.ok_or_else(missing)?;
    if shape.len() < 3 || node.shape(places) != shape {
        return Err(impossible_window(&shape, &[given.len()]));
    }
    let rank = shape.len() - 2;
    let kernel = spatial_sizes("kernel_shape", Some(given), rank, 1)?;
    let strides = spatial_sizes("strides", node.attributes.ints("strides")?, rank, 1)?;
    let pads = spatial_sizes("pads", node.attributes.ints("pads")?, 2 * rank, 0)?;
    let mut pooled = shape.clone();
    for axis in 0..rank {
        let full = (shape[axis + 2].saturating_sub(1)).checked_mul(strides[axis]);
        let full = full.and_then(|full| full.checked_add(kernel[axis]));
        let size = full.and_then(|full| full.checked_sub(pads[axis] + pads[rank + axis]));
        pooled[axis + 2] = size.ok_or_else(|| impossible_window(&shape, &kernel))?;
    }
    let element = node.ty(x).element;
    let nothing = node.scalar(element, 0.0)?;
    let count = pooled.iter().try_fold(1usize, |count, &size| count.checked_mul(size));
    let count = count.ok_or_else(|| impossible_window(&shape, &kernel))?;
    let nothing = node.emit_as(Op::Expand, &[nothing], vec![count])?;
    let flat = vec![shape.iter().product()];
    let x = node.reshape(x, flat.clone())?;
    let places = node.reshape(places, flat)?;
    let places = node.cast(places, ElementType::I64)?;
    let op = NamedOp::new("scatter_elements").with_int("axis", 0).with_text("reduction", "none");
    let made = node.emit(Op::Named(op.into()), &[nothing, places, x])?;
    let made = node.reshape(made, pooled.clone())?;
    let Some(target) = node.known_ints(2, "output_shape")? else { return Ok(vec![made]) };
    let target = sizes("output_shape", &target)?;
    let fits = target.len() == pooled.len() && target.iter().zip(&pooled).all(|(target, own)| target >= own);
    if !fits || target[..2] != pooled[..2] {
        return Err(Refusal::Impossible { what: "the output's shape", value: format!("{target:?}"), shape: pooled });
    }
    let begins = vec![0; target.len()];
    Ok(vec![node.emit_as(Op::Pad { mode: PadMode::Constant, begins }, &[made], target)?])
}

#[cfg(test)]
mod tests {
    use crate::testing::{TestModel, int, ints, text};
    use planforge_graph::{interpreter, ir::Tensor};
    use std::collections::BTreeMap;

    #[test]
    fn what_is_pooled_comes_back_to_its_place() {
        let window = || vec![ints("kernel_shape", &[2, 2]), ints("strides", &[2, 2])];
        let graph = TestModel::new(11)
            .input("x", &[2, 1, 4, 4])
            .node_of("MaxPool", &["x"], &["large", "places"], window())
            .node("MaxUnpool", &["large", "places"], "y", window())
            .output("places")
            .output("y")
            .import();
        let values: Vec<f32> = (0..32).map(|at| if at % 5 == 0 { 9.0 } else { at as f32 / 8.0 }).collect();
        let x = Tensor::from_vec(vec![2, 1, 4, 4], values.clone()).expect("two images");
        let made = interpreter::execute(&graph, &BTreeMap::from([("x".to_owned(), x)])).expect("the graph runs");
        let places = made["places"].to_i64s().expect("places");
        assert_eq!(places, [0, 7, 13, 10, 20, 23, 25, 30]);
        let back = made["y"].to_f64s();
        for (at, &value) in values.iter().enumerate() {
            let kept = if places.contains(&(at as i64)) { f64::from(value) } else { 0.0 };
            assert_eq!(back[at], kept, "element {at}");
        }
    }

    #[test]
    fn regions_are_refused_that_are_none() {
        let model = |mode: &'static str, samples: i64| {
            TestModel::new(16)
                .input("x", &[1, 2, 8, 8])
                .input("rois", &[3, 4])
                .input_of("at", planforge_graph::ir::ElementType::I64, &[3])
                .node("RoiAlign", &["x", "rois", "at"], "y", vec![text("mode", mode), int("sampling_ratio", samples)])
                .output("y")
        };
        let graph = model("max", 2).import();
        assert_eq!(graph.static_shape(graph.outputs[0].value), Some(vec![3, 2, 1, 1]));
        for (mode, samples, says) in [("median", 2, "mode is median"), ("avg", -1, "sampling_ratio is -1")] {
            let error = crate::import(&model(mode, samples).model(), None).expect_err(says).to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
