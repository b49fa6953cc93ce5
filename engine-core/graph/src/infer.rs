//! Types and shapes of every operator's results: the one place that knows what an operator gives.
//!
//! Operators whose result follows from data (`Reshape`, `Slice`, ...) are asked with the shapes the importer resolved,
//! and checked against their inputs.

use crate::{
    ir::{
        Activation, Attention, Binary, ConvTranspose, ElementType, Graph, Op, PadMode, Pool, Quantization, ReduceKind,
        Unary,
    },
    named,
    shape::{
        Given, ShapeError, TensorType, attribute, broadcast, broadcast_types, conv_type, is_float, matmul_type,
        mismatch, require, taps_are_few, wanted_shape, window_outputs,
    },
};

/// Largest size, stride, pad or dilation of a pooling window: sums of products of two of them stay in 64 bits.
const WINDOW_SIZE_MAX: usize = 1 << 31;

/// Types of the results. `wanted` gives the output shapes of operators whose result follows from data; others do
/// not look at it.
///
/// # Errors
///
/// When the operator cannot be applied to such inputs, or to `wanted`.
pub fn infer(op: &Op, inputs: &[Option<&TensorType>], wanted: &[Vec<usize>]) -> Result<Vec<TensorType>, ShapeError> {
    let results = infer_filled(op, inputs, wanted)?;
    let empty = |ty: &TensorType| ty.shape.contains(&0);
    if let Some(position) = inputs.iter().position(|ty| ty.is_some_and(empty))
        && !results.iter().all(empty)
        && !takes_empty(op, inputs[position].map_or(ElementType::F32, |ty| ty.element))
    {
        return Err(ShapeError::Empty { position });
    }
    Ok(results)
}

/// Whether an operator makes something of inputs without elements.
fn takes_empty(op: &Op, element: ElementType) -> bool {
    match op {
        Op::Reduce { kind, .. } => {
            is_float(element)
                || matches!(kind, ReduceKind::Sum | ReduceKind::Prod | ReduceKind::L1 | ReduceKind::SumSquare)
        }
        Op::Concat { .. } | Op::MatMul(_) | Op::Pad { mode: PadMode::Constant, .. } | Op::Split { .. } => true,
        Op::Named(named) => named::takes_empty(&named.name),
        _ => false,
    }
}

fn infer_filled(op: &Op, inputs: &[Option<&TensorType>], wanted: &[Vec<usize>]) -> Result<Vec<TensorType>, ShapeError> {
    let given = Given(inputs);
    let one = |element: ElementType, shape: &[usize]| Ok(vec![TensorType::new(element, shape)]);
    let like = |given: &TensorType| Ok(vec![given.clone()]);
    match op {
        Op::Named(named) => named::infer(named, &given, wanted),
        Op::Identity => like(given.get(0)?),
        Op::Unary(unary) => unary_type(*unary, &given),
        Op::Activation(Activation::Relu) => {
            let x = given.get(0)?;
            require(x.element != ElementType::Bool, || ShapeError::Element { position: 0, element: x.element })?;
            like(x)
        }
        Op::Activation(_) => like(given.float(0)?),
        Op::Binary(binary) => binary_type(*binary, &given),
        Op::Compare(_) => {
            given.same_element(0, 1)?;
            one(ElementType::Bool, &broadcast_types(given.get(0)?, given.get(1)?)?)
        }
        Op::Where => {
            given.bool(0)?;
            given.same_element(1, 2)?;
            let both = TensorType::new(given.get(1)?.element, broadcast_types(given.get(1)?, given.get(2)?)?);
            one(both.element, &broadcast_types(given.get(0)?, &both)?)
        }
        Op::Cast { to } => one(*to, &given.get(0)?.shape),
        Op::Conv(conv) => conv_type(conv, &given),
        Op::ConvTranspose(conv) => conv_transpose_type(conv, &given, wanted),
        Op::MatMul(product) => matmul_type(product, &given),
        Op::Pool(pool) => pool_type(pool, &given, wanted),
        Op::BatchNorm { .. } => {
            let x = given.float(0)?;
            let channels = TensorType::new(x.element, [x.shape.get(1).copied().unwrap_or(1)]);
            for (position, what) in [(1, "scale"), (2, "bias"), (3, "mean"), (4, "variance")] {
                // Statistics may be of another float type than x.
                let parameter = given.float(position)?;
                require(parameter.shape == channels.shape, || mismatch(what, &parameter.shape, &x.shape))?;
            }
            like(x)
        }
        Op::LayerNorm { axis, .. } => {
            given.float(0)?;
            let x = given.axis(*axis, 0)?;
            for position in [1, 2] {
                if let Some(parameter) = given.optional(position) {
                    require(broadcast(&x.shape, &parameter.shape).as_ref() == Some(&x.shape), || {
                        mismatch("scale or bias", &parameter.shape, &x.shape)
                    })?;
                }
            }
            like(x)
        }
        Op::InstanceNorm { .. } | Op::GroupNorm { .. } => {
            given.float(0)?;
            let x = given.image(0, 0)?;
            if let Op::GroupNorm { groups, .. } = op {
                require(*groups > 0 && x.shape[1] % groups == 0, || attribute("num_groups", groups, &x.shape))?;
            }
            for (position, what) in [(1, "scale"), (2, "bias")] {
                given.get(position)?;
                given.optional_is(position, what, &TensorType::new(x.element, [x.shape[1]]))?;
            }
            like(x)
        }
        Op::Lrn { size, .. } => {
            given.float(0)?;
            let x = given.image(0, 0)?;
            require(*size > 0, || attribute("size", size, &x.shape))?;
            like(x)
        }
        Op::Softmax { axis, .. } => {
            given.float(0)?;
            like(given.axis(*axis, 0)?)
        }
        Op::Reduce { axes, keep, .. } => {
            let x = given.get(0)?;
            require(axes.iter().all(|&axis| axis < x.rank()), || attribute("axes", axes, &x.shape))?;
            one(x.element, &reduced(&x.shape, axes, *keep))
        }
        Op::ArgReduce(arg) => {
            let x = given.axis(arg.axis, 0)?;
            one(ElementType::I64, &reduced(&x.shape, &[arg.axis], arg.keep))
        }
        Op::CumSum { axis, .. } => like(given.axis(*axis, 0)?),
        Op::Attention(attention) => attention_type(attention, &given),
        Op::Quantize(how) => {
            quantization_fits(how, given.float(0)?, &given)?;
            given.optional_is(2, "zero point", &TensorType::new(how.element, given.get(1)?.shape.clone()))?;
            one(how.element, &given.get(0)?.shape)
        }
        Op::Dequantize(how) => {
            let x = given.integer(0)?;
            require(x.element == how.element, || ShapeError::Element { position: 0, element: x.element })?;
            quantization_fits(how, x, &given)?;
            given.optional_is(2, "zero point", &TensorType::new(how.element, given.get(1)?.shape.clone()))?;
            one(given.float(1)?.element, &x.shape)
        }
        Op::FakeQuantize(how) => {
            let x = given.float(0)?;
            quantization_fits(how, x, &given)?;
            given.optional_is(2, "zero point", &TensorType::new(how.element, given.get(1)?.shape.clone()))?;
            one(given.get(1)?.element, &x.shape)
        }
        _ => movement_type(op, &given, wanted),
    }
}

/// Operators that only move elements.
fn movement_type(op: &Op, given: &Given<'_>, wanted: &[Vec<usize>]) -> Result<Vec<TensorType>, ShapeError> {
    let one = |element: ElementType, shape: &[usize]| Ok(vec![TensorType::new(element, shape)]);
    let count = |shape: &[usize]| shape.iter().product::<usize>();
    let x = given.get(0)?;
    match op {
        Op::Reshape => {
            let out = wanted_shape(wanted, 0)?;
            require(count(out) == count(&x.shape), || mismatch("elements", &x.shape, out))?;
            one(x.element, out)
        }
        Op::Transpose { perm } => {
            let mut sorted = perm.clone();
            sorted.sort_unstable();
            require(sorted.iter().copied().eq(0..x.rank()), || attribute("perm", perm, &x.shape))?;
            one(x.element, &perm.iter().map(|&axis| x.shape[axis]).collect::<Vec<_>>())
        }
        Op::Expand => {
            let out = wanted_shape(wanted, 0)?;
            require(broadcast(&x.shape, out).as_deref() == Some(out), || mismatch("expand", &x.shape, out))?;
            one(x.element, out)
        }
        Op::Concat { axis } => {
            let mut out = given.axis(*axis, 0)?.shape.clone();
            out[*axis] = 0;
            for position in 0..given.0.len() {
                let part = given.get(position)?;
                given.same_element(0, position)?;
                let fits =
                    part.rank() == out.len() && (0..out.len()).all(|at| at == *axis || part.shape[at] == out[at]);
                require(fits, || mismatch("concatenated", &part.shape, &x.shape))?;
                out[*axis] =
                    out[*axis].checked_add(part.shape[*axis]).ok_or_else(|| attribute("axis", axis, &part.shape))?;
            }
            one(x.element, &out)
        }
        Op::Split { axis } => {
            given.axis(*axis, 0)?;
            let mut total = 0usize;
            for part in wanted {
                let fits = part.len() == x.rank() && (0..part.len()).all(|at| at == *axis || part[at] == x.shape[at]);
                require(fits, || mismatch("part", part, &x.shape))?;
                total = total.saturating_add(part[*axis]);
            }
            require(total == x.shape[*axis] && !wanted.is_empty(), || attribute("split", wanted, &x.shape))?;
            Ok(wanted.iter().map(|part| TensorType::new(x.element, part.clone())).collect())
        }
        Op::Slice { starts, steps } => {
            let out = wanted_shape(wanted, 0)?;
            let fits = [starts.len(), steps.len(), out.len()] == [x.rank(); 3]
                && (0..x.rank()).all(|axis| {
                    let last = starts[axis] as i128 + (out[axis] as i128 - 1) * i128::from(steps[axis]);
                    let inside = |at: i128| (0..x.shape[axis] as i128).contains(&at);
                    steps[axis] != 0 && (out[axis] == 0 || (inside(starts[axis] as i128) && inside(last)))
                });
            require(fits, || mismatch("slice", out, &x.shape))?;
            one(x.element, out)
        }
        Op::Pad { begins, .. } => {
            let out = wanted_shape(wanted, 0)?;
            require(begins.len() == x.rank() && out.len() == x.rank(), || mismatch("pads", out, &x.shape))?;
            if let Some(fill) = given.optional(1) {
                given.same_element(0, 1)?;
                require(count(&fill.shape) == 1, || mismatch("fill", &fill.shape, &[]))?;
            }
            one(x.element, out)
        }
        Op::Tile => {
            let out = wanted_shape(wanted, 0)?;
            let fits = out.len() == x.rank() && out.iter().zip(&x.shape).all(|(out, own)| *own > 0 && out % own == 0);
            require(fits, || mismatch("tile", out, &x.shape))?;
            one(x.element, out)
        }
        Op::Gather { axis } => {
            given.axis(*axis, 0)?;
            let indices = given.integer(1)?;
            one(x.element, &[&x.shape[..*axis], &indices.shape, &x.shape[axis + 1..]].concat())
        }
        Op::GatherElements { axis } => {
            given.axis(*axis, 0)?;
            let indices = given.integer(1)?;
            let fits =
                indices.rank() == x.rank() && (0..x.rank()).all(|at| at == *axis || indices.shape[at] <= x.shape[at]);
            require(fits, || mismatch("indices", &indices.shape, &x.shape))?;
            one(x.element, &indices.shape)
        }
        Op::GatherNd { batch_dims } => gather_nd_type(x, given.integer(1)?, *batch_dims),
        Op::OneHot { axis } => {
            let (out, values) = (wanted_shape(wanted, 0)?, given.get(1)?);
            require(values.shape == [2], || mismatch("values", &values.shape, &[2]))?;
            let mut without = out.to_vec();
            require(*axis < out.len(), || attribute("axis", axis, out))?;
            without.remove(*axis);
            require(without == x.shape, || mismatch("indices", &x.shape, out))?;
            one(values.element, out)
        }
        Op::Resize(resize) => {
            let out = wanted_shape(wanted, 0)?;
            // Nothing cannot be resized to something.
            let made = |(from, to): (&usize, &usize)| *from > 0 || *to == 0;
            let fits = out.len() == x.rank() && resize.scales.len() == x.rank() && x.shape.iter().zip(out).all(made);
            require(fits, || mismatch("scales", out, &x.shape))?;
            require(resize.scales.iter().all(|scale| scale.is_finite() && *scale > 0.0), || {
                attribute("scales", &resize.scales, &x.shape)
            })?;
            one(x.element, out)
        }
        Op::DepthToSpace { block, .. } => {
            let [n, c, h, w] = x.shape[..] else { return Err(given.rank_error(0, "4 axes are needed".into())) };
            let area = block.checked_mul(*block).filter(|&area| area > 0 && c % area == 0);
            let area = area.ok_or_else(|| attribute("blocksize", block, &x.shape))?;
            one(x.element, &[n, c / area, h * block, w * block])
        }
        Op::SpaceToDepth { block } => {
            let [n, c, h, w] = x.shape[..] else { return Err(given.rank_error(0, "4 axes are needed".into())) };
            let fits = *block > 0 && h % block == 0 && w % block == 0;
            require(fits, || attribute("blocksize", block, &x.shape))?;
            one(x.element, &[n, c * block * block, h / block, w / block])
        }
        Op::Trilu { .. } => {
            require(x.rank() >= 2, || given.rank_error(0, "at least 2 axes are needed".into()))?;
            one(x.element, &x.shape)
        }
        Op::TopK { axis, .. } => {
            let (out, own) = (wanted_shape(wanted, 0)?, given.axis(*axis, 0)?);
            let fits = out.len() == own.rank()
                && (0..out.len())
                    .all(|at| if at == *axis { out[at] <= own.shape[at] } else { out[at] == own.shape[at] });
            require(fits, || attribute("k", out, &own.shape))?;
            Ok(vec![TensorType::new(x.element, out), TensorType::new(ElementType::I64, out)])
        }
        other => unreachable!("{} is inferred above", other.kind()),
    }
}

/// A shape after the reduction of some axes.
pub(crate) fn reduced(shape: &[usize], axes: &[usize], keep: bool) -> Vec<usize> {
    let sizes = shape.iter().enumerate();
    sizes
        .filter(|(axis, _)| keep || !axes.contains(axis))
        .map(|(axis, &size)| if axes.contains(&axis) { 1 } else { size })
        .collect()
}

fn unary_type(unary: Unary, given: &Given<'_>) -> Result<Vec<TensorType>, ShapeError> {
    let x = match unary {
        Unary::Not => given.bool(0)?,
        Unary::BitwiseNot => given.integer(0)?,
        Unary::Neg | Unary::Abs | Unary::Sign => {
            let x = given.get(0)?;
            require(x.element != ElementType::Bool, || ShapeError::Element { position: 0, element: x.element })?;
            x
        }
        _ => given.float(0)?,
    };
    let element = if unary == Unary::IsNan { ElementType::Bool } else { x.element };
    Ok(vec![TensorType::new(element, x.shape.clone())])
}

fn binary_type(binary: Binary, given: &Given<'_>) -> Result<Vec<TensorType>, ShapeError> {
    let (a, b) = (given.get(0)?, given.get(1)?);
    if binary != Binary::Pow {
        given.same_element(0, 1)?;
    }
    let takes = match binary {
        // Runtimes differ on negative numbers and amounts.
        Binary::ShiftLeft | Binary::ShiftRight => {
            matches!(a.element, ElementType::U8 | ElementType::U16 | ElementType::U32 | ElementType::U64)
        }
        Binary::And | Binary::Or | Binary::Xor => a.element == ElementType::Bool,
        Binary::BitwiseAnd | Binary::BitwiseOr | Binary::BitwiseXor | Binary::Mod => {
            !is_float(a.element) && a.element != ElementType::Bool
        }
        _ => a.element != ElementType::Bool && b.element != ElementType::Bool,
    };
    require(takes, || ShapeError::Element { position: 0, element: a.element })?;
    let out = broadcast_types(a, b)?;
    if binary == Binary::PRelu {
        require(out == a.shape, || mismatch("slope", &b.shape, &a.shape))?;
    }
    Ok(vec![TensorType::new(a.element, out)])
}

fn conv_transpose_type(
    conv: &ConvTranspose,
    given: &Given<'_>,
    wanted: &[Vec<usize>],
) -> Result<Vec<TensorType>, ShapeError> {
    let x = given.float(0)?;
    given.image(0, 1)?;
    given.same_element(0, 1)?;
    let w = given.get(1)?;
    let out = wanted_shape(wanted, 0)?;
    let spatial = x.rank() - 2;
    require(w.rank() == x.rank() && w.shape[0] == x.shape[1], || mismatch("weights", &w.shape, &x.shape))?;
    require(conv.groups > 0 && x.shape[1] % conv.groups == 0, || attribute("group", conv.groups, &x.shape))?;
    let lengths = [conv.strides.len(), conv.dilations.len(), conv.pads.len()];
    require(lengths == [spatial; 3], || attribute("strides, dilations, pads", lengths, &x.shape))?;
    require(!conv.strides.contains(&0), || attribute("strides", &conv.strides, &x.shape))?;
    require(!conv.dilations.contains(&0), || attribute("dilations", &conv.dilations, &x.shape))?;
    // Where the last tap of the last position lies must be a number, even if it is cut off.
    let last = |size: usize, step: usize| size.saturating_sub(1).checked_mul(step);
    let fits = (0..spatial).all(|axis| {
        let position = last(x.shape[2 + axis], conv.strides[axis]);
        let tap = last(w.shape[2 + axis], conv.dilations[axis]);
        position.zip(tap).is_some_and(|(position, tap)| position.checked_add(tap).is_some())
    });
    require(fits, || mismatch("kernel and input", &w.shape, &x.shape))?;
    let filters = w.shape[1].checked_mul(conv.groups).ok_or_else(|| attribute("group", conv.groups, &w.shape))?;
    require(out.len() == x.rank() && out[..2] == [x.shape[0], filters], || mismatch("output", out, &x.shape))?;
    given.optional_is(2, "bias", &TensorType::new(x.element, [filters]))?;
    Ok(vec![TensorType::new(x.element, out)])
}

fn pool_type(pool: &Pool, given: &Given<'_>, wanted: &[Vec<usize>]) -> Result<Vec<TensorType>, ShapeError> {
    let x = given.image(0, 1)?;
    require(x.element != ElementType::Bool, || ShapeError::Element { position: 0, element: x.element })?;
    let out = wanted_shape(wanted, 0)?;
    let spatial = x.rank() - 2;
    let lengths = [pool.kernel.len(), pool.strides.len(), pool.dilations.len(), pool.pads.len()];
    require(lengths == [spatial, spatial, spatial, 2 * spatial], || {
        attribute("kernel_shape, strides, dilations, pads", lengths, &x.shape)
    })?;
    for (name, sizes, least) in [
        ("kernel_shape", &pool.kernel, 1),
        ("strides", &pool.strides, 1),
        ("dilations", &pool.dilations, 1),
        ("pads", &pool.pads, 0),
    ] {
        let fine = sizes.iter().all(|size| (least..=WINDOW_SIZE_MAX).contains(size));
        require(fine, || attribute(name, sizes, &x.shape))?;
    }
    let outputs = |ceil| window_outputs(&x.shape[2..], &pool.kernel, &pool.strides, &pool.pads, &pool.dilations, ceil);
    let fits = out.len() == x.rank()
        && out[..2] == x.shape[..2]
        && [outputs(false), outputs(true)].iter().flatten().any(|sizes| *sizes == out[2..]);
    require(fits, || mismatch("window and padded input", &pool.kernel, &x.shape))?;
    require(taps_are_few(&pool.kernel, out), || attribute("kernel_shape", &pool.kernel, &x.shape))?;
    // A window that lies in the padding alone would have no value.
    let inside =
        (0..spatial).all(|axis| pool.pads[axis] < reach(pool, axis) && pool.pads[spatial + axis] < reach(pool, axis));
    require(inside, || attribute("pads", &pool.pads, &x.shape))?;
    Ok(vec![TensorType::new(x.element, out)])
}

fn reach(pool: &Pool, axis: usize) -> usize {
    (pool.kernel[axis] - 1).saturating_mul(pool.dilations[axis]).saturating_add(1)
}

fn attention_type(attention: &Attention, given: &Given<'_>) -> Result<Vec<TensorType>, ShapeError> {
    let (q, k, v) = (given.float(0)?, given.get(1)?, given.get(2)?);
    given.same_element(0, 1)?;
    given.same_element(0, 2)?;
    let ([batch, queries, width], [k_batch, keys, k_width], [v_batch, v_keys, v_width]) =
        (&q.shape[..], &k.shape[..], &v.shape[..])
    else {
        return Err(given.rank_error(0, "3 axes are needed".into()));
    };
    require(batch == k_batch && width == k_width, || mismatch("keys", &k.shape, &q.shape))?;
    require(batch == v_batch && keys == v_keys, || mismatch("values", &v.shape, &k.shape))?;
    let heads = attention.heads;
    require(heads > 0 && width % heads == 0 && v_width % heads == 0, || attribute("heads", heads, &q.shape))?;
    if let Some(mask) = given.optional(3) {
        given.same_element(0, 3)?;
        let scores = [*batch, heads, *queries, *keys];
        let fits = broadcast(&mask.shape, &scores).is_some_and(|shape| shape == scores);
        require(fits, || mismatch("mask", &mask.shape, &scores))?;
    }
    Ok(vec![TensorType::new(q.element, [*batch, *queries, *v_width])])
}

/// Checks scale and axis of a quantization of `x`.
fn quantization_fits(how: &Quantization, x: &TensorType, given: &Given<'_>) -> Result<(), ShapeError> {
    let scale = given.float(1)?;
    let fits = match how.axis {
        None => scale.shape.is_empty(),
        Some(axis) => axis < x.rank() && scale.shape == [x.shape[axis]],
    };
    let integer = !is_float(how.element) && how.element != ElementType::Bool;
    require(integer, || ShapeError::Element { position: 0, element: how.element })?;
    require(fits, || mismatch("scale", &scale.shape, &x.shape))
}

fn gather_nd_type(x: &TensorType, indices: &TensorType, batch_dims: usize) -> Result<Vec<TensorType>, ShapeError> {
    let wrong = || mismatch("indices", &indices.shape, &x.shape);
    let [lead @ .., depth] = indices.shape.as_slice() else { return Err(wrong()) };
    let fits = batch_dims <= lead.len()
        && batch_dims.checked_add(*depth).is_some_and(|used| used <= x.rank())
        && lead[..batch_dims] == x.shape[..batch_dims];
    require(fits, wrong)?;
    Ok(vec![TensorType::new(x.element, [lead, &x.shape[batch_dims + depth..]].concat())])
}

/// Checks that every node's outputs are declared as what [`infer`] gives; passes are tested with it.
///
/// # Errors
///
/// The first node whose outputs are declared otherwise, or that cannot be applied.
pub fn check_graph(graph: &Graph) -> Result<(), ShapeError> {
    let types: Vec<TensorType> = (0..graph.values.len() as u32)
        .map(crate::ir::ValueId)
        .map(|id| {
            let value = graph.value(id);
            let shape = graph.static_shape(id).ok_or_else(|| ShapeError::Unbound { name: value.name.clone() })?;
            Ok(TensorType { element: value.element, shape })
        })
        .collect::<Result<_, _>>()?;
    for node in &graph.nodes {
        let label = || format!("{} ({})", node.origins.join(" + "), node.op.kind());
        let inputs: Vec<Option<&TensorType>> = node.inputs.iter().map(|id| id.map(|id| &types[id.index()])).collect();
        let declared: Vec<TensorType> = node.outputs.iter().map(|id| types[id.index()].clone()).collect();
        let wanted: Vec<Vec<usize>> = declared.iter().map(|declared| declared.shape.clone()).collect();
        let told = |types: &[TensorType]| types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let inferred = infer(&node.op, &inputs, &wanted)
            .map_err(|source| ShapeError::Node { node: label(), source: Box::new(source) })?;
        require(inferred == declared, || ShapeError::Declared {
            node: label(),
            declared: told(&declared),
            inferred: told(&inferred),
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transposed_convolution_has_one_number_per_axis() {
        let infer_with = |conv: ConvTranspose, x: &[usize], w: &[usize], out: &[usize]| {
            let types = [x, w].map(|shape| TensorType::new(ElementType::F32, shape));
            infer(&Op::ConvTranspose(conv), &types.each_ref().map(Some), &[out.to_vec()])
        };
        let fine = ConvTranspose { strides: vec![2], pads: vec![0], dilations: vec![1], groups: 1 };
        let (x, w, out) = ([1, 2, 4], [2, 3, 3], [1, 3, 9]);
        assert_eq!(infer_with(fine.clone(), &x, &w, &out), Ok(vec![TensorType::new(ElementType::F32, out)]));
        for wrong in [
            ConvTranspose { strides: vec![], ..fine.clone() },
            ConvTranspose { pads: vec![], ..fine.clone() },
            ConvTranspose { dilations: vec![1, 1], ..fine.clone() },
            ConvTranspose { strides: vec![0], ..fine.clone() },
            ConvTranspose { dilations: vec![0], ..fine.clone() },
            ConvTranspose { strides: vec![usize::MAX], ..fine.clone() },
        ] {
            assert!(infer_with(wrong.clone(), &x, &w, &out).is_err(), "{wrong:?}");
        }
        let groups = ConvTranspose { groups: usize::MAX, ..fine };
        assert!(infer_with(groups, &[1, 0, 4], &[0, 3, 3], &out).is_err());
    }
}
