//! Operators that move elements; what their shapes follow from must be constant.

use super::{super::builder::Lowering, Rule, sizes};
use crate::error::Refusal;
use planforge_graph::{
    ir::{ElementType, Op, PadMode, ValueId},
    shape::broadcast,
};

pub const RULES: &[Rule] = &[
    Rule { op_type: "Reshape", attributes: &["allowzero"], lower: reshape },
    Rule { op_type: "Flatten", attributes: &["axis"], lower: flatten },
    Rule { op_type: "Squeeze", attributes: &["axes"], lower: squeeze },
    Rule { op_type: "Unsqueeze", attributes: &["axes"], lower: unsqueeze },
    Rule { op_type: "Transpose", attributes: &["perm"], lower: transpose },
    Rule { op_type: "Expand", attributes: &[], lower: expand },
    Rule { op_type: "Concat", attributes: &["axis"], lower: concat },
    Rule { op_type: "Split", attributes: &["axis", "split", "num_outputs"], lower: split },
    Rule { op_type: "Slice", attributes: &["starts", "ends", "axes"], lower: slice },
    Rule { op_type: "Pad", attributes: &["mode", "pads", "value"], lower: pad },
    Rule { op_type: "Tile", attributes: &[], lower: tile },
    Rule { op_type: "Gather", attributes: &["axis"], lower: gather },
    Rule { op_type: "GatherElements", attributes: &["axis"], lower: gather_elements },
    Rule { op_type: "GatherND", attributes: &["batch_dims"], lower: gather_nd },
    Rule { op_type: "OneHot", attributes: &["axis"], lower: one_hot },
    Rule { op_type: "DepthToSpace", attributes: &["blocksize", "mode"], lower: depth_to_space },
    Rule { op_type: "SpaceToDepth", attributes: &["blocksize", "mode"], lower: space_to_depth },
    Rule { op_type: "Trilu", attributes: &["upper"], lower: trilu },
];

fn impossible(what: &'static str, value: &[i64], shape: Vec<usize>) -> Refusal {
    Refusal::Impossible { what, value: format!("{value:?}"), shape }
}

fn reshape(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(2)?;
    let x = node.input(0, "data")?;
    let wanted = node.known_ints(1, "shape")?.ok_or(Refusal::MissingInput { position: 1, what: "shape" })?;
    let keep_zero = node.attributes.flag("allowzero", false)?;
    let from = node.shape(x);
    let wrong = || impossible("the new shape", &wanted, from.clone());
    let mut shape = Vec::with_capacity(wanted.len());
    let mut open = None;
    for (axis, &size) in wanted.iter().enumerate() {
        shape.push(match size {
            -1 if open.is_none() => {
                open = Some(axis);
                1
            }
            0 if !keep_zero => *from.get(axis).ok_or_else(wrong)?,
            size => usize::try_from(size).map_err(|_| wrong())?,
        });
    }
    if let Some(axis) = open {
        let others = shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size)).ok_or_else(wrong)?;
        let count: usize = from.iter().product();
        shape[axis] = count.checked_div(others).filter(|size| size * others == count).ok_or_else(wrong)?;
    }
    Ok(vec![node.emit_as(Op::Reshape, &[x], shape)?])
}

fn flatten(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let x = node.input(0, "input")?;
    let shape = node.shape(x);
    // Counted from the front, the axis may be the rank itself: everything is in front of it.
    let axis = match node.attributes.int_or("axis", 1)? {
        axis if axis >= 0 => node.axis(axis, shape.len() + 1, "axis")?,
        axis => node.axis(axis, shape.len(), "axis")?,
    };
    let to = vec![shape[..axis].iter().product(), shape[axis..].iter().product()];
    Ok(vec![node.emit_as(Op::Reshape, &[x], to)?])
}

/// Axes are an attribute up to opset 12 and an input from 13 on.
fn axes_of(node: &Lowering<'_>) -> Result<Option<Vec<i64>>, Refusal> {
    if node.opset < 13 {
        node.at_most(1)?;
        return Ok(node.attributes.ints("axes")?.map(<[i64]>::to_vec));
    }
    node.at_most(2)?;
    node.known_ints(1, "axes")
}

fn squeeze(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let x = node.input(0, "data")?;
    let shape = node.shape(x);
    let axes = match axes_of(node)? {
        Some(axes) => node.axes(&axes, shape.len())?,
        None => (0..shape.len()).filter(|&axis| shape[axis] == 1).collect(),
    };
    if let Some(&axis) = axes.iter().find(|&&axis| shape[axis] != 1) {
        return Err(impossible("the squeezed axis", &[axis as i64], shape));
    }
    let kept = (0..shape.len()).filter(|axis| !axes.contains(axis)).map(|axis| shape[axis]).collect();
    Ok(vec![node.emit_as(Op::Reshape, &[x], kept)?])
}

fn unsqueeze(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let x = node.input(0, "data")?;
    let axes = axes_of(node)?.ok_or(Refusal::MissingInput { position: 1, what: "axes" })?;
    let own = node.shape(x);
    let rank = own.len() + axes.len();
    let axes = node.axes(&axes, rank)?;
    let mut sizes = own.into_iter();
    let shape = (0..rank).map(|axis| if axes.contains(&axis) { 1 } else { sizes.next().unwrap_or(1) }).collect();
    Ok(vec![node.emit_as(Op::Reshape, &[x], shape)?])
}

fn transpose(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let x = node.input(0, "data")?;
    let rank = node.shape(x).len();
    let perm = match node.attributes.ints("perm")? {
        Some(perm) => sizes("perm", perm)?,
        None => (0..rank).rev().collect(),
    };
    Ok(vec![node.emit(Op::Transpose { perm }, &[x])?])
}

fn expand(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(2)?;
    let x = node.input(0, "input")?;
    let wanted = node.known_ints(1, "shape")?.ok_or(Refusal::MissingInput { position: 1, what: "shape" })?;
    let own = node.shape(x);
    let to = broadcast(&own, &sizes("shape", &wanted)?).ok_or_else(|| impossible("the shape", &wanted, own))?;
    Ok(vec![node.emit_as(Op::Expand, &[x], to)?])
}

fn concat(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let inputs: Vec<ValueId> =
        (0..node.inputs.len()).map(|position| node.input(position, "input")).collect::<Result<_, _>>()?;
    let first = node.input(0, "first")?;
    // An empty part (a list of no dimensions, say) adds nothing.
    let rank = node.shape(first).len();
    let axis = node.axis(node.attributes.required_int("axis")?, rank, "axis")?;
    let filled: Vec<ValueId> = inputs.iter().copied().filter(|&id| !node.shape(id).contains(&0)).collect();
    let inputs = if filled.is_empty() { inputs } else { filled };
    Ok(vec![node.emit(Op::Concat { axis }, &inputs)?])
}

fn split(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let x = node.input(0, "input")?;
    let shape = node.shape(x);
    let axis = node.axis(node.attributes.int_or("axis", 0)?, shape.len(), "axis")?;
    let given = if node.opset < 13 {
        node.at_most(1)?;
        node.attributes.ints("split")?.map(<[i64]>::to_vec)
    } else {
        node.at_most(2)?;
        node.known_ints(1, "split")?
    };
    let count = match if node.opset >= 18 { node.attributes.int("num_outputs")? } else { None } {
        Some(count) => usize::try_from(count).unwrap_or(0),
        None => node.outputs.len(),
    };
    let parts = match given {
        Some(given) => sizes("split", &given)?,
        // Before as many parts are made.
        None if count != node.outputs.len() => return Err(impossible("the number of parts", &[count as i64], shape)),
        None => {
            // Equal parts; the last one is smaller when they do not divide (opset 18 on).
            let part = shape[axis].div_ceil(count.max(1));
            let rest = shape[axis].checked_sub(part * count.saturating_sub(1));
            let uneven = rest != Some(part) && node.opset < 18;
            let rest = rest.filter(|&rest| rest > 0 && !uneven);
            let rest = rest.ok_or_else(|| impossible("the number of parts", &[count as i64], shape.clone()))?;
            let mut parts = vec![part; count];
            if let Some(last) = parts.last_mut() {
                *last = rest;
            }
            parts
        }
    };
    if parts.len() != node.outputs.len() {
        return Err(impossible("the number of parts", &[parts.len() as i64], shape));
    }
    let wanted: Vec<Vec<usize>> = parts
        .iter()
        .map(|&part| {
            let mut shape = shape.clone();
            shape[axis] = part;
            shape
        })
        .collect();
    node.emit_all(Op::Split { axis }, vec![Some(x)], &wanted)
}

/// Bounds are attributes in opset 9 and inputs from 10 on.
fn slice(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let x = node.input(0, "data")?;
    let shape = node.shape(x);
    let missing = |position, what| Refusal::MissingInput { position, what };
    let (first, last, axes, steps) = if node.opset < 10 {
        node.at_most(1)?;
        let list = |name: &'static str| Ok::<_, Refusal>(node.attributes.ints(name)?.map(<[i64]>::to_vec));
        let starts = list("starts")?.ok_or(missing(0, "starts"))?;
        (starts, list("ends")?.ok_or(missing(0, "ends"))?, list("axes")?, None)
    } else {
        node.at_most(5)?;
        let starts = node.known_ints(1, "starts")?.ok_or(missing(1, "starts"))?;
        let ends = node.known_ints(2, "ends")?.ok_or(missing(2, "ends"))?;
        (starts, ends, node.known_ints(3, "axes")?, node.known_ints(4, "steps")?)
    };
    let axes = match axes {
        Some(axes) => axes.iter().map(|&axis| node.axis(axis, shape.len(), "axes")).collect::<Result<Vec<_>, _>>()?,
        None => (0..first.len()).collect(),
    };
    let steps_given = steps.unwrap_or_else(|| vec![1; first.len()]);
    let mut seen = axes.clone();
    seen.sort_unstable();
    seen.dedup();
    let fits = [last.len(), axes.len(), steps_given.len(), seen.len()] == [first.len(); 4]
        && axes.iter().all(|&axis| axis < shape.len());
    if !fits {
        return Err(impossible("the list of starts", &first, shape));
    }
    let (mut starts, mut steps, mut out) = (vec![0; shape.len()], vec![1i64; shape.len()], shape.clone());
    for (index, &axis) in axes.iter().enumerate() {
        let size = shape[axis] as i64;
        let step = steps_given[index];
        if step == 0 {
            return Err(impossible("a step", &steps_given, shape));
        }
        if size == 0 {
            // Nothing to take from, in either direction.
            continue;
        }
        let from_end = |at: i64| if at < 0 { at.saturating_add(size) } else { at };
        let (low, high) = if step > 0 { (0, size) } else { (-1, size - 1) };
        let start = from_end(first[index]).clamp(low.max(0), high);
        let end = from_end(last[index]).clamp(low, high);
        let length = if step > 0 {
            (end - start).max(0).unsigned_abs().div_ceil(step.unsigned_abs())
        } else {
            (start - end).max(0).unsigned_abs().div_ceil(step.unsigned_abs())
        };
        (starts[axis], steps[axis], out[axis]) = (start as usize, step, length as usize);
    }
    Ok(vec![node.emit_as(Op::Slice { starts, steps }, &[x], out)?])
}

/// Pads and fill are attributes up to opset 10 and inputs from 11 on.
fn pad(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let x = node.input(0, "data")?;
    let shape = node.shape(x);
    let mode = match node.attributes.text_or("mode", "constant")? {
        "constant" => PadMode::Constant,
        "reflect" => PadMode::Reflect,
        "edge" => PadMode::Edge,
        "wrap" if node.opset >= 19 => PadMode::Wrap,
        other => return Err(Refusal::Attribute { name: "mode".into(), reason: format!("is {other}") }),
    };
    let (pads, mut fill, axes) = if node.opset < 11 {
        node.at_most(1)?;
        let value = node.attributes.float_or("value", 0.0)?;
        let fill = if value == 0.0 { None } else { Some(node.scalar(node.ty(x).element, value.into())?) };
        (node.attributes.ints("pads")?.map(<[i64]>::to_vec), fill, None)
    } else {
        node.at_most(if node.opset < 18 { 3 } else { 4 })?;
        (node.known_ints(1, "pads")?, node.optional(2), node.known_ints(3, "axes")?)
    };
    let pads = pads.ok_or(Refusal::MissingInput { position: 1, what: "pads" })?;
    let axes = match axes {
        Some(axes) => {
            node.axes(&axes, shape.len())?;
            axes.iter().map(|&axis| node.axis(axis, shape.len(), "axes")).collect::<Result<Vec<_>, _>>()?
        }
        None => (0..shape.len()).collect(),
    };
    if pads.len() != 2 * axes.len() {
        return Err(impossible("the list of pads", &pads, shape));
    }
    let (mut begins, mut out) = (vec![0i64; shape.len()], shape.clone());
    for (index, &axis) in axes.iter().enumerate() {
        let (begin, end) = (pads[index], pads[axes.len() + index]);
        let size = i128::from(begin) + i128::from(end) + shape[axis] as i128;
        begins[axis] = begin;
        out[axis] = usize::try_from(size).map_err(|_| impossible("the list of pads", &pads, shape.clone()))?;
    }
    if let Some(given) = fill {
        if mode != PadMode::Constant {
            fill = None;
        } else if node.shape(given).iter().product::<usize>() != 1 {
            return Err(Refusal::Impossible { what: "the fill", value: "a list".into(), shape: node.shape(given) });
        }
    }
    Ok(vec![node.emit_optional(Op::Pad { mode, begins }, vec![Some(x), fill], &[out])?])
}

fn tile(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(2)?;
    let x = node.input(0, "input")?;
    let repeats = node.known_ints(1, "repeats")?.ok_or(Refusal::MissingInput { position: 1, what: "repeats" })?;
    let shape = node.shape(x);
    let wrong = || impossible("the list of repeats", &repeats, shape.clone());
    if repeats.len() != shape.len() {
        return Err(wrong());
    }
    let out = sizes("repeats", &repeats)?
        .iter()
        .zip(&shape)
        .map(|(repeat, size)| size.checked_mul(*repeat).ok_or_else(wrong))
        .collect::<Result<_, _>>()?;
    Ok(vec![node.emit_as(Op::Tile, &[x], out)?])
}

/// Data and indices of the gathering operators.
fn picked(node: &Lowering<'_>) -> Result<[ValueId; 2], Refusal> {
    node.at_most(2)?;
    let inputs = [node.input(0, "data")?, node.input(1, "indices")?];
    match node.ty(inputs[1]).element {
        ElementType::I32 | ElementType::I64 => Ok(inputs),
        other => Err(Refusal::Element(format!("{other} of indices"))),
    }
}

fn gather(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let inputs = picked(node)?;
    let axis = node.axis(node.attributes.int_or("axis", 0)?, node.ty(inputs[0]).rank(), "axis")?;
    Ok(vec![node.emit(Op::Gather { axis }, &inputs)?])
}

fn gather_elements(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let inputs = picked(node)?;
    let axis = node.axis(node.attributes.int_or("axis", 0)?, node.ty(inputs[0]).rank(), "axis")?;
    Ok(vec![node.emit(Op::GatherElements { axis }, &inputs)?])
}

fn gather_nd(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let inputs = picked(node)?;
    let batch_dims = sizes("batch_dims", &[node.attributes.int_or("batch_dims", 0)?])?[0];
    Ok(vec![node.emit(Op::GatherNd { batch_dims }, &inputs)?])
}

fn one_hot(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(3)?;
    let (indices, values) = (node.input(0, "indices")?, node.input(2, "values")?);
    let depth = node.known_floats(1, "depth")?.ok_or(Refusal::MissingInput { position: 1, what: "depth" })?;
    let depth = depth[0] as i64;
    let mut out = node.shape(indices);
    let axis = node.axis(node.attributes.int_or("axis", -1)?, out.len() + 1, "axis")?;
    out.insert(axis, sizes("depth", &[depth])?[0]);
    Ok(vec![node.emit_as(Op::OneHot { axis }, &[indices, values], out)?])
}

fn block(node: &Lowering<'_>) -> Result<usize, Refusal> {
    Ok(sizes("blocksize", &[node.attributes.required_int("blocksize")?])?[0])
}

fn depth_to_space(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let column_row = match if node.opset < 11 { "DCR" } else { node.attributes.text_or("mode", "DCR")? } {
        "DCR" => false,
        "CRD" => true,
        other => return Err(Refusal::Attribute { name: "mode".into(), reason: format!("is {other}") }),
    };
    let (x, block) = (node.input(0, "input")?, block(node)?);
    Ok(vec![node.emit(Op::DepthToSpace { block, column_row }, &[x])?])
}

fn space_to_depth(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let (x, block) = (node.input(0, "input")?, block(node)?);
    match if node.opset < 28 { "DCR" } else { node.attributes.text_or("mode", "DCR")? } {
        "DCR" => Ok(vec![node.emit(Op::SpaceToDepth { block }, &[x])?]),
        "CRD" => {
            let shape = node.shape(x);
            let whole = |size: usize| block > 0 && size.is_multiple_of(block);
            let [batch, channels, height, width] = shape[..] else { return Err(impossible("the block", &[], shape)) };
            if !whole(height) || !whole(width) {
                return Err(impossible("the block", &[block as i64], shape));
            }
            let (rows, columns) = (height / block, width / block);
            let apart = node.reshape(x, vec![batch, channels, rows, block, columns, block])?;
            let apart = node.transpose(apart, &[0, 1, 3, 5, 2, 4])?;
            Ok(vec![node.reshape(apart, vec![batch, channels * block * block, rows, columns])?])
        }
        other => Err(Refusal::Attribute { name: "mode".into(), reason: format!("is {other}") }),
    }
}

fn trilu(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(2)?;
    let x = node.input(0, "input")?;
    let k = node.known_ints(1, "k")?.and_then(|k| k.first().copied()).unwrap_or(0);
    let upper = node.attributes.flag("upper", true)?;
    Ok(vec![node.emit(Op::Trilu { upper, k }, &[x])?])
}

#[cfg(test)]
mod tests {
    use crate::testing::{TestModel, int, text};
    use planforge_graph::{interpreter, ir::Tensor};
    use std::collections::BTreeMap;

    #[test]
    fn space_goes_to_depth_and_back_in_either_order() {
        for mode in ["DCR", "CRD"] {
            let attributes = || vec![int("blocksize", 2), text("mode", mode)];
            let graph = TestModel::new(28)
                .input("x", &[1, 3, 4, 6])
                .node("SpaceToDepth", &["x"], "deep", attributes())
                .node("DepthToSpace", &["deep"], "y", attributes())
                .output("y")
                .import();
            let x = Tensor::from_vec(vec![1, 3, 4, 6], (0..72).map(|at| at as f32).collect()).expect("an image");
            let inputs = BTreeMap::from([("x".to_owned(), x.clone())]);
            assert_eq!(interpreter::execute(&graph, &inputs).expect("the graph runs")["y"], x, "{mode}");
        }
    }
}
