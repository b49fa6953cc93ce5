//! Resampling.

use super::{super::builder::Lowering, Rule, sizes};
use crate::error::Refusal;
use planforge_graph::ir::{Op, Resize, ResizeCoordinates, ResizeMode, ResizeNearest, ValueId};

pub const RULES: &[Rule] = &[
    Rule {
        op_type: "Resize",
        attributes: &[
            "antialias",
            "axes",
            "coordinate_transformation_mode",
            "cubic_coeff_a",
            "exclude_outside",
            "extrapolation_value",
            "keep_aspect_ratio_policy",
            "mode",
            "nearest_mode",
        ],
        lower: resize,
    },
    Rule { op_type: "Upsample", attributes: &["mode", "scales"], lower: upsample },
];

/// Resize as it was up to opset 9: coordinates begin at the first element, neighbours are rounded down.
fn upsample(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    if node.opset > 9 {
        return Err(Refusal::Unsupported { what: "Upsample after opset 9".into() });
    }
    let x = node.input(0, "X")?;
    let scales: Vec<f32> = if node.opset < 9 {
        node.at_most(1)?;
        node.attributes.floats("scales")?.unwrap_or_default().to_vec()
    } else {
        node.at_most(2)?;
        node.known_floats(1, "scales")?.unwrap_or_default().iter().map(|&scale| scale as f32).collect()
    };
    let mode = match node.attributes.text_or("mode", "nearest")? {
        "nearest" => ResizeMode::Nearest(ResizeNearest::Floor),
        "linear" => ResizeMode::Linear,
        other => return Err(unknown("mode", other)),
    };
    let shape = node.shape(x);
    if scales.len() != shape.len() || scales.iter().any(|scale| !scale.is_finite() || *scale < 1.0) {
        return Err(Refusal::Impossible { what: "the list of scales", value: format!("{scales:?}"), shape });
    }
    let out = shape.iter().zip(&scales).map(|(&size, &scale)| scaled(size, scale)).collect();
    let coordinates = ResizeCoordinates::Asymmetric;
    Ok(vec![node.emit_as(Op::Resize(Resize { mode, coordinates, scales }), &[x], out)?])
}

/// Size of an axis after scaling, in single precision like ONNX's shape inference: 0.7 of 640 is 448.
fn scaled(size: usize, scale: f32) -> usize {
    (size as f32 * scale).floor() as usize
}

fn unknown(name: &str, value: &str) -> Refusal {
    Refusal::Attribute { name: name.into(), reason: format!("is {value}, which is not supported") }
}

fn resize(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    if node.opset < 11 {
        return Err(Refusal::Unsupported { what: "Resize before opset 11".into() });
    }
    node.at_most(4)?;
    let x = node.input(0, "X")?;
    let coordinates = match node.attributes.text_or("coordinate_transformation_mode", "half_pixel")? {
        "half_pixel" => ResizeCoordinates::HalfPixel,
        "pytorch_half_pixel" => ResizeCoordinates::PytorchHalfPixel,
        "align_corners" => ResizeCoordinates::AlignCorners,
        "asymmetric" => ResizeCoordinates::Asymmetric,
        other => return Err(unknown("coordinate_transformation_mode", other)),
    };
    let nearest = match node.attributes.text_or("nearest_mode", "round_prefer_floor")? {
        "round_prefer_floor" => ResizeNearest::RoundPreferFloor,
        "round_prefer_ceil" => ResizeNearest::RoundPreferCeil,
        "floor" => ResizeNearest::Floor,
        "ceil" => ResizeNearest::Ceil,
        other => return Err(unknown("nearest_mode", other)),
    };
    let mode = match node.attributes.text_or("mode", "nearest")? {
        "nearest" => ResizeMode::Nearest(nearest),
        "linear" => ResizeMode::Linear,
        other => return Err(unknown("mode", other)),
    };
    // These concern cubic resampling and cropping, which are refused above.
    for name in ["cubic_coeff_a", "extrapolation_value"] {
        node.attributes.without_effect(name);
    }
    node.attributes.must_be("exclude_outside", 0)?;
    if node.opset >= 18 {
        node.attributes.must_be("antialias", 0)?;
        match node.attributes.text_or("keep_aspect_ratio_policy", "stretch")? {
            "stretch" => (),
            other => return Err(unknown("keep_aspect_ratio_policy", other)),
        }
    }
    let shape = node.shape(x);
    let axes = match if node.opset >= 18 { node.attributes.ints("axes")? } else { None } {
        Some(axes) => {
            node.axes(axes, shape.len())?;
            axes.iter().map(|&axis| node.axis(axis, shape.len(), "axes")).collect::<Result<Vec<_>, _>>()?
        }
        None => (0..shape.len()).collect(),
    };
    let (out, scales) = target(node, &shape, &axes)?;
    // Runtimes differ on whether corners are those of the rounded or of the exact size.
    let exact = |axis: usize| f64::from(scales[axis]) * shape[axis] as f64 == out[axis] as f64;
    if coordinates == ResizeCoordinates::AlignCorners
        && node.optional(3).is_none()
        && !axes.iter().all(|&axis| exact(axis))
    {
        return Err(Refusal::Unsupported { what: "align_corners with scales that give no whole size".into() });
    }
    Ok(vec![node.emit_as(Op::Resize(Resize { mode, coordinates, scales }), &[x], out)?])
}

/// Output shape and scales, from whichever of the two the model gives.
fn target(node: &Lowering<'_>, shape: &[usize], axes: &[usize]) -> Result<(Vec<usize>, Vec<f32>), Refusal> {
    let (mut out, mut scales) = (shape.to_vec(), vec![1f32; shape.len()]);
    let wrong = |what, value: String| Refusal::Impossible { what, value, shape: shape.to_vec() };
    let given_scales = node.known_floats(2, "scales")?;
    let given_sizes = node.known_ints(3, "sizes")?.filter(|sizes| !sizes.is_empty());
    match (given_scales, given_sizes) {
        (Some(given), None) => {
            if given.len() != axes.len() || given.iter().any(|scale| !scale.is_finite() || *scale <= 0.0) {
                return Err(wrong("the list of scales", format!("{given:?}")));
            }
            for (&axis, scale) in axes.iter().zip(given) {
                scales[axis] = scale as f32;
                out[axis] = scaled(shape[axis], scales[axis]);
            }
        }
        (None, Some(given)) => {
            if given.len() != axes.len() {
                return Err(wrong("the list of sizes", format!("{given:?}")));
            }
            for (&axis, size) in axes.iter().zip(sizes("sizes", &given)?) {
                scales[axis] = size as f32 / shape[axis] as f32;
                out[axis] = size;
            }
        }
        _ => return Err(wrong("the choice of scales and sizes", "none or both given".into())),
    }
    Ok((out, scales))
}

#[cfg(test)]
mod tests {
    use crate::testing::TestModel;
    use planforge_graph::{
        interpreter,
        ir::{ElementType, Graph, Tensor},
    };
    use planforge_types::HostTensor;
    use std::collections::BTreeMap;

    fn scaled(op_type: &str, size: i64, scale: f32) -> Graph {
        let opset = if op_type == "Upsample" { 9 } else { 17 };
        let inputs: &[&str] = if opset == 9 { &["x", "scales"] } else { &["x", "", "scales"] };
        TestModel::new(opset)
            .input("x", &[1, size])
            .floats("scales", &[2], &[1.0, scale])
            .node(op_type, inputs, "y", vec![])
            .output("y")
            .import()
    }

    /// The size of an axis after `op_type` scales it.
    fn size_after(op_type: &str, size: i64, scale: f32) -> usize {
        let graph = scaled(op_type, size, scale);
        graph.static_shape(graph.outputs[0].value).expect("shapes are bound")[1]
    }

    #[test]
    fn sizes_are_scaled_in_single_precision() {
        for (size, scale, expected) in [(640, 0.7, 448), (10, 0.9, 9), (100, 1.9, 190), (320, 0.35, 112), (7, 0.5, 3)] {
            assert_eq!(size_after("Resize", size, scale), expected, "{scale} of {size}");
        }
        assert_eq!(size_after("Upsample", 100, 1.9), 190);
    }

    #[test]
    fn nothing_stays_nothing() {
        let nothing = HostTensor { element: ElementType::F32, shape: vec![1, 0], bytes: Vec::new() };
        let inputs = BTreeMap::from([("x".to_owned(), Tensor::try_from(nothing).expect("no elements are a tensor"))]);
        let made = interpreter::execute(&scaled("Resize", 0, 2.0), &inputs).expect("nothing can be resized");
        assert_eq!(made["y"].shape(), [1, 0]);
    }
}
