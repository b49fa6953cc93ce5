//! Resampling.

use super::{
    super::builder::Lowering,
    Rule,
    interpolate::{self, Axis, Coordinates, Kernel, Resampling},
    sizes,
};
use crate::error::Refusal;
use planforge_graph::{
    ir::{ElementType, Op, Resize, ResizeCoordinates, ResizeMode, ResizeNearest, ValueId},
    shape::is_float,
};

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

fn coordinates(node: &Lowering<'_>) -> Result<Coordinates, Refusal> {
    Ok(match node.attributes.text_or("coordinate_transformation_mode", "half_pixel")? {
        "half_pixel" => Coordinates::HalfPixel,
        "half_pixel_symmetric" if node.opset >= 19 => Coordinates::HalfPixelSymmetric,
        "pytorch_half_pixel" => Coordinates::PytorchHalfPixel,
        "align_corners" => Coordinates::AlignCorners,
        "asymmetric" => Coordinates::Asymmetric,
        "tf_crop_and_resize" => Coordinates::Crop,
        other => return Err(unknown("coordinate_transformation_mode", other)),
    })
}

fn resampling(node: &Lowering<'_>) -> Result<Resampling, Refusal> {
    let coordinates = coordinates(node)?;
    let nearest = match node.attributes.text_or("nearest_mode", "round_prefer_floor")? {
        "round_prefer_floor" => ResizeNearest::RoundPreferFloor,
        "round_prefer_ceil" => ResizeNearest::RoundPreferCeil,
        "floor" => ResizeNearest::Floor,
        "ceil" => ResizeNearest::Ceil,
        other => return Err(unknown("nearest_mode", other)),
    };
    let steepness = node.attributes.float_or("cubic_coeff_a", -0.75)?;
    let kernel = match node.attributes.text_or("mode", "nearest")? {
        "nearest" => Kernel::Nearest(nearest),
        "linear" => Kernel::Linear,
        "cubic" => Kernel::Cubic(steepness.into()),
        other => return Err(unknown("mode", other)),
    };
    if matches!(kernel, Kernel::Nearest(_)) {
        // Both are about the weights of several neighbours.
        node.attributes.must_be("exclude_outside", 0)?;
        if node.opset >= 18 {
            node.attributes.must_be("antialias", 0)?;
        }
    }
    Ok(Resampling {
        kernel,
        coordinates,
        antialias: node.opset >= 18 && node.attributes.flag("antialias", false)?,
        exclude_outside: node.attributes.flag("exclude_outside", false)?,
        extrapolation: node.attributes.float_or("extrapolation_value", 0.0)?.into(),
    })
}

/// The same as an operator of the graph, where it is one.
fn common(how: &Resampling) -> Option<(ResizeMode, ResizeCoordinates)> {
    let mode = match how.kernel {
        Kernel::Nearest(rule) => ResizeMode::Nearest(rule),
        Kernel::Linear => ResizeMode::Linear,
        Kernel::Cubic(_) => return None,
    };
    let coordinates = match how.coordinates {
        Coordinates::HalfPixel => ResizeCoordinates::HalfPixel,
        Coordinates::PytorchHalfPixel => ResizeCoordinates::PytorchHalfPixel,
        Coordinates::AlignCorners => ResizeCoordinates::AlignCorners,
        Coordinates::Asymmetric => ResizeCoordinates::Asymmetric,
        Coordinates::HalfPixelSymmetric | Coordinates::Crop => return None,
    };
    (!how.antialias && !how.exclude_outside).then_some((mode, coordinates))
}

fn resize(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    if node.opset < 11 {
        return Err(Refusal::Unsupported { what: "Resize before opset 11".into() });
    }
    node.at_most(4)?;
    let x = node.input(0, "X")?;
    let how = resampling(node)?;
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
    if how.coordinates == Coordinates::AlignCorners
        && node.optional(3).is_none()
        && !axes.iter().all(|&axis| exact(axis))
    {
        return Err(Refusal::Unsupported { what: "align_corners with scales that give no whole size".into() });
    }
    if let Some((mode, coordinates)) = common(&how) {
        return Ok(vec![node.emit_as(Op::Resize(Resize { mode, coordinates, scales }), &[x], out)?]);
    }
    let element = node.ty(x).element;
    if !is_float(element) && !matches!(how.kernel, Kernel::Nearest(_)) {
        return Err(Refusal::Element(element.to_string()));
    }
    let mut regions = vec![[0.0, 1.0]; shape.len()];
    if how.coordinates == Coordinates::Crop {
        let given = node.known_floats(1, "roi")?.unwrap_or_default();
        if given.len() != 2 * axes.len() || given.iter().any(|edge| !edge.is_finite()) {
            return Err(Refusal::Impossible { what: "the region", value: format!("{given:?}"), shape });
        }
        for (at, &axis) in axes.iter().enumerate() {
            regions[axis] = [given[at], given[axes.len() + at]];
        }
    }
    // Narrow floats are mixed in wider ones and rounded once.
    let wide = match how.kernel {
        Kernel::Linear | Kernel::Cubic(_) if element != ElementType::F64 => ElementType::F32,
        _ => element,
    };
    let mut made = node.cast(x, wide)?;
    for axis in 0..shape.len() {
        let along = Axis { input: shape[axis], out: out[axis], scale: scales[axis].into(), region: regions[axis] };
        let stays = along.input == along.out && along.scale == 1.0 && along.region == [0.0, 1.0];
        if stays || along.out == 0 {
            continue;
        }
        if along.input == 0 {
            return Err(Refusal::Impossible { what: "the size", value: along.out.to_string(), shape });
        }
        made = interpolate::along(node, made, axis, &along, &how)?;
    }
    let made = node.cast(made, element)?;
    if node.shape(made) == out {
        return Ok(vec![node.emit(Op::Identity, &[made])?]);
    }
    // Nothing is left of it.
    let nothing = node.scalar(element, 0.0)?;
    Ok(vec![node.emit_as(Op::Expand, &[nothing], out)?])
}

/// Whether sizes are kept as they are given, or in the proportion of the image.
fn policy<'a>(node: &Lowering<'a>) -> Result<&'a str, Refusal> {
    if node.opset < 18 { Ok("stretch") } else { node.attributes.text_or("keep_aspect_ratio_policy", "stretch") }
}

/// Output shape and scales, from whichever of the two the model gives.
fn target(node: &Lowering<'_>, shape: &[usize], axes: &[usize]) -> Result<(Vec<usize>, Vec<f32>), Refusal> {
    let (mut out, mut scales) = (shape.to_vec(), vec![1f32; shape.len()]);
    let wrong = |what, value: String| Refusal::Impossible { what, value, shape: shape.to_vec() };
    let given_scales = node.known_floats(2, "scales")?;
    let given_sizes = node.known_ints(3, "sizes")?.filter(|sizes| !sizes.is_empty());
    match (given_scales, given_sizes) {
        (Some(given), None) => {
            // It is about sizes.
            policy(node)?;
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
            let given = sizes("sizes", &given)?;
            let ratios = axes.iter().zip(&given).map(|(&axis, &size)| size as f64 / shape[axis] as f64);
            // One scale for all axes: the image fits into the sizes, or fills them.
            let shared = match policy(node)? {
                "stretch" => None,
                "not_larger" => Some(ratios.fold(f64::INFINITY, f64::min)),
                "not_smaller" => Some(ratios.fold(0.0, f64::max)),
                other => return Err(unknown("keep_aspect_ratio_policy", other)),
            };
            if shared.is_some_and(|scale| !scale.is_finite()) {
                return Err(wrong("the list of sizes", format!("{given:?}")));
            }
            for (&axis, size) in axes.iter().zip(given) {
                let size = shared.map_or(size, |scale| (scale * shape[axis] as f64 + 0.5).floor() as usize);
                scales[axis] = shared.map_or(size as f32 / shape[axis] as f32, |scale| scale as f32);
                out[axis] = size;
            }
        }
        _ => return Err(wrong("the choice of scales and sizes", "none or both given".into())),
    }
    Ok((out, scales))
}

#[cfg(test)]
mod tests {
    use crate::testing::{TestModel, float, int, ints, text};
    use planforge_graph::{
        interpreter,
        ir::{ElementType, Graph, Tensor},
    };
    use planforge_onnx::proto::AttributeProto;
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

    /// A resize of 1x1x1xN rows.
    fn row(values: &[f32], inputs: &[&str], attributes: Vec<AttributeProto>) -> Vec<f64> {
        let size = values.len();
        let graph = TestModel::new(19)
            .input("x", &[1, 1, 1, size as i64])
            .floats("roi", &[2], &[0.5, 1.5])
            .floats("scales", &[1], &[2.0])
            .longs("sizes", &[3])
            .node("Resize", inputs, "y", [attributes, vec![ints("axes", &[3])]].concat())
            .output("y")
            .import();
        let x = Tensor::from_vec(vec![1, 1, 1, size], values.to_vec()).expect("a row");
        interpreter::execute(&graph, &BTreeMap::from([("x".to_owned(), x)])).expect("the graph runs")["y"].to_f64s()
    }

    fn close(found: &[f64], expected: &[f64]) {
        let near = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5);
        assert!(found.len() == expected.len() && near, "{found:?} instead of {expected:?}");
    }

    #[test]
    fn cubic_smoothed_and_cropped_rows_are_what_their_definition_gives() {
        let cubic = || vec![text("mode", "cubic")];
        let ramp = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
        // Between equally steep neighbours a cubic is their line.
        close(
            &row(&ramp, &["x", "", "scales"], cubic())[6..10],
            &[2.75, 3.25, 3.75, 4.25].map(|x: f64| {
                // Weights of -0.75 overshoot a line by what their first moment lacks.
                let (low, part) = (x.floor(), x - x.floor());
                let weight = |distance: f64| {
                    let (a, d) = (-0.75, distance.abs());
                    if d <= 1.0 {
                        ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0
                    } else {
                        ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a
                    }
                };
                (-1..=2).map(|step| (low + f64::from(step)) * weight(part - f64::from(step))).sum::<f64>()
            }),
        );
        // A smoothed row of a third of the length sees five neighbours: 1 2 3 2 1.
        let smooth = vec![text("mode", "linear"), int("antialias", 1)];
        close(&row(&ramp[..], &["x", "", "", "sizes"], vec![text("mode", "nearest")]), &[1.0, 3.0, 6.0]);
        let nine = [0.0, 0.0, 0.0, 0.0, 9.0, 0.0, 0.0, 0.0, 0.0];
        close(&row(&nine, &["x", "", "", "sizes"], smooth), &[0.0, 3.0, 0.0]);
        let crop = vec![
            text("mode", "linear"),
            text("coordinate_transformation_mode", "tf_crop_and_resize"),
            float("extrapolation_value", -1.0),
        ];
        close(&row(&[0.0, 10.0, 20.0, 30.0, 40.0], &["x", "roi", "", "sizes"], crop), &[20.0, 40.0, -1.0]);
    }

    #[test]
    fn proportions_are_kept_where_that_is_asked_for() {
        for (policy, expected) in [("not_larger", [4, 6]), ("not_smaller", [8, 12]), ("stretch", [8, 6])] {
            let graph = TestModel::new(18)
                .input("x", &[1, 1, 2, 3])
                .longs("sizes", &[8, 6])
                .node(
                    "Resize",
                    &["x", "", "", "sizes"],
                    "y",
                    vec![ints("axes", &[2, 3]), text("keep_aspect_ratio_policy", policy)],
                )
                .output("y")
                .import();
            let shape = graph.static_shape(graph.outputs[0].value).expect("shapes are bound");
            assert_eq!(shape[2..], expected, "{policy}");
        }
    }

    #[test]
    fn what_cannot_be_resampled_is_refused_in_words() {
        let refused = |inputs: &[&str], attributes: Vec<AttributeProto>| {
            let model = TestModel::new(19)
                .input("x", &[1, 4])
                .floats("scales", &[2], &[1.0, 2.0])
                .node("Resize", inputs, "y", attributes)
                .output("y");
            crate::import(&model.model(), None).expect_err("this is refused").to_string()
        };
        let crop = vec![text("coordinate_transformation_mode", "tf_crop_and_resize")];
        assert!(refused(&["x", "", "scales"], crop).contains("the region is []"));
        let smooth = vec![int("antialias", 1)];
        assert!(refused(&["x", "", "scales"], smooth).contains("antialias is 1; only 0 is supported"));
        assert!(refused(&["x", "", "scales"], vec![text("mode", "quintic")]).contains("mode is quintic"));
    }

    #[test]
    fn nothing_stays_nothing() {
        let nothing = HostTensor { element: ElementType::F32, shape: vec![1, 0], bytes: Vec::new() };
        let inputs = BTreeMap::from([("x".to_owned(), Tensor::try_from(nothing).expect("no elements are a tensor"))]);
        let made = interpreter::execute(&scaled("Resize", 0, 2.0), &inputs).expect("nothing can be resized");
        assert_eq!(made["y"].shape(), [1, 0]);
    }
}
