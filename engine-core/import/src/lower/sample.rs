//! Images read at computed places: as gathers, weights and sums.

use super::{super::builder::Lowering, Rule, linear::impossible_window, spatial_sizes};
use crate::error::Refusal;
use planforge_graph::{
    ir::{Binary, Compare, ElementType, Op, Unary, ValueId},
    shape::window_outputs,
};

pub const RULES: &[Rule] = &[
    Rule { op_type: "AffineGrid", attributes: &["align_corners"], lower: affine_grid },
    Rule {
        op_type: "DeformConv",
        attributes: &["dilations", "group", "kernel_shape", "offset_group", "pads", "strides"],
        lower: deform_conv,
    },
    Rule { op_type: "GridSample", attributes: &["align_corners", "mode", "padding_mode"], lower: grid_sample },
];

/// Which neighbours of a place are mixed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Nearest,
    Linear,
    Cubic,
}

/// What lies outside of an image.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outside {
    Zeros,
    Border,
    /// About the middle of the outermost pixels, or about their outer edges.
    Reflection {
        corners: bool,
    },
}

/// The steepness of cubic weights, as PyTorch and ONNX have it.
const CUBIC: f64 = -0.75;

fn impossible(what: &'static str, value: &[usize], shape: Vec<usize>) -> Refusal {
    Refusal::Impossible { what, value: format!("{value:?}"), shape }
}

/// `x` brought between 0 and `size - 1` by turning back at either end as often as it takes.
fn reflected(node: &mut Lowering<'_>, x: ValueId, size: usize, corners: bool) -> Result<ValueId, Refusal> {
    let (low, high) = if corners { (0.0, size as f64 - 1.0) } else { (-0.5, size as f64 - 0.5) };
    let range = high - low;
    if range <= 0.0 {
        return node.binary_with(Binary::Mul, x, 0.0);
    }
    let above = node.binary_with(Binary::Sub, x, low)?;
    let above = node.unary(Unary::Abs, above)?;
    let above = node.binary_with(Binary::FMod, above, 2.0 * range)?;
    let back = node.binary_with(Binary::Mul, above, -1.0)?;
    let back = node.binary_with(Binary::Add, back, 2.0 * range)?;
    let turned = node.binary(Binary::Min, above, back)?;
    node.binary_with(Binary::Add, turned, low)
}

fn clamped(node: &mut Lowering<'_>, x: ValueId, size: usize) -> Result<ValueId, Refusal> {
    let x = node.binary_with(Binary::Max, x, 0.0)?;
    node.binary_with(Binary::Min, x, size as f64 - 1.0)
}

/// One neighbour along one axis.
struct Tap {
    /// Its whole number, which lies inside.
    place: ValueId,
    /// Whether it lay inside to begin with; `None` where that does not matter.
    inside: Option<ValueId>,
    /// `None`: 1.
    weight: Option<ValueId>,
}

/// `((a t + b) t + c) t + d`
fn cubic(node: &mut Lowering<'_>, t: ValueId, [a, b, c, d]: [f64; 4]) -> Result<ValueId, Refusal> {
    let mut sum = node.binary_with(Binary::Mul, t, a)?;
    for add in [b, c] {
        sum = node.binary_with(Binary::Add, sum, add)?;
        sum = node.binary(Binary::Mul, sum, t)?;
    }
    node.binary_with(Binary::Add, sum, d)
}

/// The neighbours of each place along an axis of `size`.
fn taps(node: &mut Lowering<'_>, at: ValueId, size: usize, mode: Mode, outside: Outside) -> Result<Vec<Tap>, Refusal> {
    let mut at = at;
    if mode == Mode::Nearest {
        at = node.unary(Unary::Round, at)?;
    }
    match outside {
        Outside::Zeros => {}
        // Of a cubic only the pixels stay inside, as in PyTorch and ONNX Runtime.
        Outside::Border if mode == Mode::Cubic => {}
        Outside::Border => at = clamped(node, at, size)?,
        Outside::Reflection { corners } => at = reflected(node, at, size, corners)?,
    }
    // A place between two pixels is whole again once it is reflected about their edges.
    let low = if mode == Mode::Nearest { node.unary(Unary::Round, at)? } else { node.unary(Unary::Floor, at)? };
    let mut weighted = Vec::new();
    match mode {
        Mode::Nearest => weighted.push((0.0, None)),
        Mode::Linear => {
            let high = node.binary(Binary::Sub, at, low)?;
            let rest = node.binary_with(Binary::Mul, high, -1.0)?;
            let rest = node.binary_with(Binary::Add, rest, 1.0)?;
            weighted.extend([(0.0, Some(rest)), (1.0, Some(high))]);
        }
        Mode::Cubic => {
            let part = node.binary(Binary::Sub, at, low)?;
            let rest = node.binary_with(Binary::Mul, part, -1.0)?;
            let rest = node.binary_with(Binary::Add, rest, 1.0)?;
            let near = [CUBIC + 2.0, -(CUBIC + 3.0), 0.0, 1.0];
            // `a (1 + t)^3 - 5 a (1 + t)^2 + 8 a (1 + t) - 4 a`
            let far = [CUBIC, -2.0 * CUBIC, CUBIC, 0.0];
            for (step, t, factors) in [(-1.0, part, far), (0.0, part, near), (1.0, rest, near), (2.0, rest, far)] {
                weighted.push((step, Some(cubic(node, t, factors)?)));
            }
        }
    }
    let mut taps = Vec::new();
    for (step, weight) in weighted {
        let mut place = node.binary_with(Binary::Add, low, step)?;
        let mut inside = None;
        match outside {
            Outside::Zeros => {
                let above = node.compare_with(Compare::GreaterOrEqual, place, 0.0)?;
                let below = node.compare_with(Compare::LessOrEqual, place, size as f64 - 1.0)?;
                inside = Some(node.binary(Binary::And, above, below)?);
            }
            Outside::Border => {}
            Outside::Reflection { corners } => place = reflected(node, place, size, corners)?,
        }
        let place = clamped(node, place, size)?;
        taps.push(Tap { place, inside, weight });
    }
    Ok(taps)
}

/// Images `x` (N,C,spatial..) at `places`, one (N,P) for each spatial axis: (N,P,C).
fn sample(
    node: &mut Lowering<'_>,
    x: ValueId,
    places: &[ValueId],
    mode: Mode,
    outside: Outside,
) -> Result<ValueId, Refusal> {
    let shape = node.shape(x);
    let (batch, channels, image) = (shape[0], shape[1], &shape[2..]);
    let points = node.shape(places[0])[1];
    let element = node.ty(x).element;
    let rows = node.reshape(x, vec![batch, channels, image.iter().product()])?;
    let rows = node.transpose(rows, &[0, 2, 1])?;
    let mut along = Vec::new();
    for (&places, &size) in places.iter().zip(image) {
        along.push(taps(node, places, size, mode, outside)?);
    }
    let mut sum = None;
    let combinations: usize = along.iter().map(Vec::len).product();
    // Beside the gather: places and weights along each axis, and the sum.
    node.builder.unroll(combinations * (4 * image.len() + 6))?;
    for combination in 0..combinations {
        let (mut rest, mut index, mut weight, mut inside) = (combination, None, None, None);
        for (taps, &size) in along.iter().zip(image) {
            let tap = &taps[rest % taps.len()];
            rest /= taps.len();
            let place = node.cast(tap.place, ElementType::I64)?;
            index = Some(match index {
                None => place,
                Some(index) => {
                    let index = node.binary_with(Binary::Mul, index, size as f64)?;
                    node.binary(Binary::Add, index, place)?
                }
            });
            weight = join(node, Binary::Mul, weight, tap.weight)?;
            inside = join(node, Binary::And, inside, tap.inside)?;
        }
        let Some(index) = index else { return Err(Refusal::Inner) };
        let index = node.reshape(index, vec![batch, points, 1])?;
        let mut value = node.emit(Op::GatherNd { batch_dims: 1 }, &[rows, index])?;
        if let Some(weight) = weight {
            let weight = node.reshape(weight, vec![batch, points, 1])?;
            let weight = node.cast(weight, element)?;
            value = node.binary(Binary::Mul, value, weight)?;
        }
        if let Some(inside) = inside {
            let inside = node.reshape(inside, vec![batch, points, 1])?;
            let zero = node.scalar(element, 0.0)?;
            value = node.choose(inside, value, zero)?;
        }
        sum = join(node, Binary::Add, sum, Some(value))?;
    }
    sum.ok_or(Refusal::Inner)
}

/// Whichever of two is there, or both together.
fn join(
    node: &mut Lowering<'_>,
    op: Binary,
    a: Option<ValueId>,
    b: Option<ValueId>,
) -> Result<Option<ValueId>, Refusal> {
    match (a, b) {
        (Some(a), Some(b)) => node.binary(op, a, b).map(Some),
        (a, b) => Ok(a.or(b)),
    }
}

/// The type that places are computed in.
fn place_type(element: ElementType) -> ElementType {
    if element == ElementType::F64 { element } else { ElementType::F32 }
}

fn grid_sample(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(2)?;
    let (x, grid) = (node.input(0, "X")?, node.input(1, "grid")?);
    let (shape, grid_shape) = (node.shape(x), node.shape(grid));
    let mode = match node.attributes.text_or("mode", if node.opset < 20 { "bilinear" } else { "linear" })? {
        "nearest" => Mode::Nearest,
        "linear" | "bilinear" => Mode::Linear,
        "cubic" | "bicubic" => Mode::Cubic,
        other => return Err(Refusal::Attribute { name: "mode".into(), reason: format!("is {other}") }),
    };
    let corners = node.attributes.flag("align_corners", false)?;
    let outside = match node.attributes.text_or("padding_mode", "zeros")? {
        "zeros" => Outside::Zeros,
        "border" => Outside::Border,
        "reflection" => Outside::Reflection { corners },
        other => return Err(Refusal::Attribute { name: "padding_mode".into(), reason: format!("is {other}") }),
    };
    let rank = shape.len().saturating_sub(2);
    let fits = (1..=3).contains(&rank)
        && grid_shape.len() == shape.len()
        && grid_shape[0] == shape[0]
        && grid_shape[rank + 1] == rank;
    if !fits {
        return Err(impossible("the grid", &grid_shape, shape));
    }
    if mode == Mode::Cubic && rank > 2 {
        return Err(Refusal::Unsupported { what: "cubic sampling of more than 2 axes".into() });
    }
    if shape.contains(&0) {
        return Err(impossible("an image without pixels", &shape, grid_shape));
    }
    let out = &grid_shape[1..=rank];
    let points: usize = out.iter().product();
    let element = place_type(node.ty(grid).element);
    let grid = node.cast(grid, element)?;
    let grid = node.reshape(grid, vec![shape[0], points, rank])?;
    let mut places = Vec::new();
    for (axis, &size) in shape[2..].iter().enumerate() {
        // The last axis of the image comes first.
        let given = node.part(grid, 2, rank - 1 - axis, 1)?;
        let given = node.reshape(given, vec![shape[0], points])?;
        let from = node.binary_with(Binary::Add, given, 1.0)?;
        places.push(if corners {
            node.binary_with(Binary::Mul, from, (size as f64 - 1.0) / 2.0)?
        } else {
            let wide = node.binary_with(Binary::Mul, from, size as f64)?;
            let wide = node.binary_with(Binary::Sub, wide, 1.0)?;
            node.binary_with(Binary::Mul, wide, 0.5)?
        });
    }
    let made = sample(node, x, &places, mode, outside)?;
    let made = node.transpose(made, &[0, 2, 1])?;
    Ok(vec![node.reshape(made, [&shape[..2], out].concat())?])
}

/// Where the pixels of an image lie between -1 and 1, moved by a matrix for each image.
fn affine_grid(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(2)?;
    let theta = node.input(0, "theta")?;
    let size = node.known_ints(1, "size")?.ok_or(Refusal::MissingInput { position: 1, what: "size" })?;
    let size = super::sizes("size", &size)?;
    let corners = node.attributes.flag("align_corners", false)?;
    let shape = node.shape(theta);
    let rank = size.len().saturating_sub(2);
    if !matches!(rank, 2 | 3) || shape != [size[0], rank, rank + 1] {
        return Err(impossible("the size", &size, shape));
    }
    let image = &size[2..];
    if corners && image.contains(&1) {
        return Err(Refusal::Unsupported { what: "align_corners along an axis of 1".into() });
    }
    let points = image.iter().try_fold(1usize, |points, &size| points.checked_mul(size));
    let points = points.filter(|&points| points <= 1 << 24).ok_or_else(|| impossible("the size", &size, shape))?;
    // Each counts as much as numbers that are counted along an axis.
    node.builder.unroll(points >> 10)?;
    let mut grid = Vec::with_capacity(points * (rank + 1));
    for point in 0..points {
        let mut rest = point;
        // The last axis comes first, as it does in the result.
        for &size in image.iter().rev() {
            let at = (rest % size) as f64;
            rest /= size;
            grid.push(match corners {
                true => -1.0 + 2.0 * at / (size as f64 - 1.0),
                false => -1.0 + (2.0 * at + 1.0) / size as f64,
            });
        }
        grid.push(1.0);
    }
    let element = node.ty(theta).element;
    let grid = node.numbers(element, vec![points, rank + 1], grid)?;
    let theta = node.transpose(theta, &[0, 2, 1])?;
    let moved = node.matmul(grid, theta)?;
    Ok(vec![node.reshape(moved, [&size[..1], image, &[rank]].concat())?])
}

/// A convolution each tap of which is read at a place of its own: sampled, then multiplied.
fn deform_conv(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(5)?;
    let (x, weights, offsets) = (node.input(0, "X")?, node.input(1, "W")?, node.input(2, "offset")?);
    let (bias, mask) = (node.optional(3), node.optional(4));
    let (shape, kernel_shape) = (node.shape(x), node.shape(weights));
    let ([batch, channels, height, width], [made, _, kernel @ ..]) = (&shape[..], &kernel_shape[..]) else {
        return Err(Refusal::Unsupported { what: "a deformed convolution over other than 2 axes".into() });
    };
    let (batch, channels, made) = (*batch, *channels, *made);
    if kernel.len() != 2 || kernel.contains(&0) || shape.contains(&0) {
        return Err(impossible_window(&shape, kernel));
    }
    if let Some(given) = node.attributes.ints("kernel_shape")?
        && given.iter().map(|&size| size as usize).ne(kernel.iter().copied())
    {
        return Err(Refusal::Attribute { name: "kernel_shape".into(), reason: format!("is {given:?}") });
    }
    let group = |name: &'static str| -> Result<usize, Refusal> {
        Ok(super::sizes(name, &[node.attributes.int_or(name, 1)?])?[0])
    };
    let (groups, offset_groups) = (group("group")?, group("offset_group")?);
    let strides = spatial_sizes("strides", node.attributes.ints("strides")?, 2, 1)?;
    let dilations = spatial_sizes("dilations", node.attributes.ints("dilations")?, 2, 1)?;
    let pads = spatial_sizes("pads", node.attributes.ints("pads")?, 4, 0)?;
    let image = [*height, *width];
    let out = window_outputs(&image, kernel, &strides, &pads, &dilations, false)
        .ok_or_else(|| impossible_window(&shape, kernel))?;
    let (taps, positions) = (kernel[0] * kernel[1], out[0] * out[1]);
    let divides = |count: usize, of: usize| count > 0 && of.is_multiple_of(count);
    if !divides(groups, channels)
        || !divides(groups, made)
        || !divides(offset_groups, channels)
        || kernel_shape[1] * groups != channels
    {
        return Err(impossible("the weights", &kernel_shape, shape));
    }
    let offset_shape = node.shape(offsets);
    if offset_shape != [batch, offset_groups * taps * 2, out[0], out[1]] {
        return Err(impossible("the offsets", &offset_shape, shape));
    }
    let element = node.ty(x).element;
    let wide = place_type(element);
    let apart = batch * offset_groups;
    let offsets = node.cast(offsets, wide)?;
    let offsets = node.reshape(offsets, vec![apart, taps, 2, positions])?;
    let mut places = Vec::new();
    for axis in 0..2 {
        let moved = node.part(offsets, 2, axis, 1)?;
        let moved = node.reshape(moved, vec![apart, taps * positions])?;
        let mut home = Vec::with_capacity(taps * positions);
        for tap in 0..taps {
            let tap = [tap / kernel[1], tap % kernel[1]][axis] * dilations[axis];
            home.extend((0..positions).map(|position| {
                let position = [position / out[1], position % out[1]][axis] * strides[axis];
                (position + tap) as f64 - pads[axis] as f64
            }));
        }
        node.builder.unroll(home.len() >> 10)?;
        let home = node.numbers(wide, vec![taps * positions], home)?;
        places.push(node.binary(Binary::Add, moved, home)?);
    }
    let parts = node.reshape(x, vec![apart, channels / offset_groups, image[0], image[1]])?;
    let mut read = sample(node, parts, &places, Mode::Linear, Outside::Zeros)?;
    if let Some(mask) = mask {
        let mask_shape = node.shape(mask);
        if mask_shape != [batch, offset_groups * taps, out[0], out[1]] {
            return Err(impossible("the mask", &mask_shape, shape));
        }
        let mask = node.reshape(mask, vec![apart, taps * positions, 1])?;
        read = node.binary(Binary::Mul, read, mask)?;
    }
    let read = node.transpose(read, &[0, 2, 1])?;
    let columns = node.reshape(read, vec![batch, groups, channels / groups * taps, positions])?;
    let weights = node.reshape(weights, vec![groups, made / groups, channels / groups * taps])?;
    let product = node.matmul(weights, columns)?;
    let mut result = node.reshape(product, vec![batch, made, out[0], out[1]])?;
    if let Some(bias) = bias {
        if node.shape(bias) != [made] {
            return Err(impossible("the bias", &node.shape(bias), shape));
        }
        let bias = node.reshape(bias, vec![made, 1, 1])?;
        result = node.binary(Binary::Add, result, bias)?;
    }
    Ok(vec![result])
}

#[cfg(test)]
mod tests {
    use crate::testing::{TestModel, int, ints, numbers, text};
    use planforge_graph::{interpreter, ir::Tensor};
    use std::collections::BTreeMap;

    fn sampled(attributes: Vec<planforge_onnx::proto::AttributeProto>, at: f32) -> f32 {
        let graph = TestModel::new(20)
            .input("x", &[1, 1, 1, 4])
            .input("grid", &[1, 1, 1, 2])
            .node("GridSample", &["x", "grid"], "y", attributes)
            .output("y")
            .import();
        let x = Tensor::from_vec(vec![1, 1, 1, 4], vec![1f32, 2.0, 4.0, 8.0]).expect("four pixels");
        let grid = Tensor::from_vec(vec![1, 1, 1, 2], vec![at, 0.0]).expect("one place");
        let inputs = BTreeMap::from([("x".to_owned(), x), ("grid".to_owned(), grid)]);
        interpreter::execute(&graph, &inputs).expect("the graph runs")["y"].to_f64s()[0] as f32
    }

    #[test]
    fn what_lies_outside_is_zero_the_border_or_a_reflection() {
        // Pixels lie at -0.75, -0.25, 0.25, 0.75.
        for (mode, at, expected) in [
            ("zeros", 0.0, 3.0),
            ("zeros", 1.0, 4.0),
            ("zeros", 9.0, 0.0),
            ("border", 1.0, 8.0),
            ("border", -9.0, 1.0),
            ("reflection", 1.25, 8.0),
            ("reflection", 1.75, 4.0),
            ("reflection", -1.5, 1.5),
            ("reflection", 5.0 - 0.25, 8.0),
        ] {
            let found = sampled(vec![text("padding_mode", mode)], at);
            assert!((found - expected).abs() < 1e-5, "{mode} at {at}: {found}, not {expected}");
        }
        let corners = vec![int("align_corners", 1), text("padding_mode", "reflection")];
        assert!((sampled(corners, 1.0 + 2.0 / 3.0) - 4.0).abs() < 1e-5);
        assert_eq!(sampled(vec![text("mode", "nearest")], 0.4), 4.0);
    }

    #[test]
    fn a_grid_of_other_axes_is_refused() {
        let model = TestModel::new(20)
            .input("x", &[1, 1, 4, 4])
            .input("grid", &[1, 2, 2, 3])
            .node("GridSample", &["x", "grid"], "y", vec![])
            .output("y");
        let error = crate::import(&model.model(), None).expect_err("a grid of three axes").to_string();
        assert!(error.contains("the grid is [1, 2, 2, 3]"), "{error}");
        let odd = TestModel::new(20)
            .input("x", &[1, 1, 4, 4])
            .input("grid", &[1, 2, 2, 2])
            .node("GridSample", &["x", "grid"], "y", vec![text("padding_mode", "wrap")])
            .output("y");
        let error = crate::import(&odd.model(), None).expect_err("nothing wraps").to_string();
        assert!(error.contains("padding_mode is wrap"), "{error}");
    }

    #[test]
    fn a_convolution_without_offsets_is_a_plain_one() {
        let weights = numbers(4 * 2 * 3 * 3);
        let run = |deformed: bool| {
            let model = TestModel::new(19).input("x", &[2, 4, 6, 5]).floats("w", &[4, 2, 3, 3], &weights);
            let model = model.floats("offset", &[2, 2 * 9 * 2, 3, 5], &vec![0.0; 2 * 36 * 15]);
            let attributes = || vec![int("group", 2), ints("strides", &[2, 1]), ints("pads", &[1, 1, 1, 1])];
            let model = match deformed {
                true => {
                    let attributes = [attributes(), vec![int("offset_group", 2)]].concat();
                    model.node("DeformConv", &["x", "w", "offset"], "y", attributes)
                }
                false => model.node("Conv", &["x", "w"], "y", attributes()),
            };
            let graph = model.output("y").import();
            let x = Tensor::from_vec(vec![2, 4, 6, 5], numbers(240)).expect("two images");
            interpreter::execute(&graph, &BTreeMap::from([("x".to_owned(), x)])).expect("the graph runs")["y"].to_f64s()
        };
        let (deformed, plain) = (run(true), run(false));
        assert_eq!(deformed.len(), plain.len());
        assert!(deformed.iter().zip(&plain).all(|(a, b)| (a - b).abs() < 1e-5));
    }
}
