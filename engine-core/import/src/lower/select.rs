//! Operators whose result has as many elements as the data says: what they look at must be constant.

use super::{super::builder::Lowering, Rule};
use crate::{builder::MAX_FOLDED_ELEMENTS, error::Refusal};
use planforge_graph::ir::{ElementType, Op, Tensor, ValueId};
use std::{cmp::Ordering, collections::BTreeMap};

pub const RULES: &[Rule] = &[
    Rule { op_type: "NonZero", attributes: &[], lower: non_zero },
    Rule { op_type: "Compress", attributes: &["axis"], lower: compress },
    Rule { op_type: "Unique", attributes: &["axis", "sorted"], lower: unique },
    Rule { op_type: "NonMaxSuppression", attributes: &["center_point_box"], lower: non_max_suppression },
];

/// A constant input that is small enough to be looked at here.
fn small<'a>(node: &'a Lowering<'_>, position: usize, what: &'static str) -> Result<&'a Tensor, Refusal> {
    let tensor = node.known(position, what)?;
    match node.sees_all() || tensor.len() <= MAX_FOLDED_ELEMENTS {
        true => Ok(tensor),
        false => Err(Refusal::Impossible { what, value: "too large".into(), shape: tensor.shape().to_vec() }),
    }
}

fn indices(node: &mut Lowering<'_>, shape: Vec<usize>, values: Vec<i64>) -> Result<ValueId, Refusal> {
    Ok(node.add_constant(Tensor::from_vec(shape, values)?))
}

fn non_zero(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let tensor = small(node, 0, "the data")?;
    let shape = tensor.shape().to_vec();
    let hits: Vec<usize> =
        tensor.to_f64s().iter().enumerate().filter(|(_, value)| **value != 0.0).map(|(at, _)| at).collect();
    let mut found = Vec::with_capacity(shape.len() * hits.len());
    for axis in 0..shape.len() {
        let inner: usize = shape[axis + 1..].iter().product();
        found.extend(hits.iter().map(|at| (at / inner % shape[axis]) as i64));
    }
    Ok(vec![indices(node, vec![shape.len(), hits.len()], found)?])
}

/// Only the condition must be known.
fn compress(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(2)?;
    let mut x = node.input(0, "input")?;
    let condition = small(node, 1, "the condition")?.to_f64s();
    let shape = node.shape(x);
    let axis = match node.attributes.int("axis")? {
        Some(axis) => node.axis(axis, shape.len(), "axis")?,
        None => {
            x = node.reshape(x, vec![shape.iter().product()])?;
            0
        }
    };
    let size = node.shape(x)[axis];
    let kept = condition.iter().take(size).enumerate().filter(|(_, flag)| **flag != 0.0);
    let kept: Vec<i64> = kept.map(|(at, _)| at as i64).collect();
    let kept = indices(node, vec![kept.len()], kept)?;
    Ok(vec![node.emit(Op::Gather { axis }, &[x, kept])?])
}

/// Distinct elements or slices, with where each is first, which one each is, and how often it comes.
fn unique(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let mut x = node.input(0, "X")?;
    let values = small(node, 0, "the data")?.to_f64s();
    if node.ty(x).element == ElementType::U64 || node.ty(x).element == ElementType::I64 {
        let exact = |value: &f64| value.abs() < 2f64.powi(53);
        if !values.iter().all(exact) {
            return Err(Refusal::Unsupported { what: "64-bit integers beyond 2^53".into() });
        }
    }
    let shape = node.shape(x);
    let axis = match node.attributes.int("axis")? {
        Some(axis) => node.axis(axis, shape.len(), "axis")?,
        None => {
            x = node.reshape(x, vec![shape.iter().product()])?;
            0
        }
    };
    let shape = node.shape(x);
    let (outer, size, inner) = planforge_graph::reference::around(&shape, axis);
    // Slices without elements may be any number.
    if size > MAX_FOLDED_ELEMENTS && !node.sees_all() {
        return Err(Refusal::Impossible { what: "the number of slices", value: size.to_string(), shape });
    }
    let slice = |at: usize| -> Vec<f64> {
        (0..outer).flat_map(|outer| values[(outer * size + at) * inner..][..inner].to_vec()).collect()
    };
    let slices: Vec<Vec<f64>> = (0..size).map(slice).collect();
    let order = |a: &[f64], b: &[f64]| {
        let unequal = a.iter().zip(b).map(|(a, b)| a.partial_cmp(b).unwrap_or_else(|| a.total_cmp(b)));
        unequal.into_iter().find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    };
    let mut sorted: Vec<usize> = (0..size).collect();
    sorted.sort_by(|&a, &b| order(&slices[a], &slices[b]));
    // Groups of equal slices, each with its first place.
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for at in sorted {
        match groups.last_mut() {
            Some(group) if order(&slices[group[0]], &slices[at]).is_eq() => group.push(at),
            _ => groups.push(vec![at]),
        }
    }
    if !node.attributes.flag("sorted", true)? {
        groups.sort_by_key(|group| group[0]);
    }
    let first: Vec<i64> = groups.iter().map(|group| group[0] as i64).collect();
    let counts: Vec<i64> = groups.iter().map(|group| group.len() as i64).collect();
    let number: BTreeMap<usize, i64> =
        groups.iter().zip(0..).flat_map(|(group, number)| group.iter().map(move |&at| (at, number))).collect();
    let count = groups.len();
    let first = indices(node, vec![count], first)?;
    let y = node.emit(Op::Gather { axis }, &[x, first])?;
    let inverse = indices(node, vec![size], number.into_values().collect())?;
    let counts = indices(node, vec![count], counts)?;
    Ok(vec![y, first, inverse, counts])
}

/// Corners of a box: lower ones first.
fn corners(raw: &[f64], centred: bool) -> [f64; 4] {
    let [a, b, c, d] = [raw[0], raw[1], raw[2], raw[3]];
    if centred {
        return [b - d / 2.0, a - c / 2.0, b + d / 2.0, a + c / 2.0];
    }
    [a.min(c), b.min(d), a.max(c), b.max(d)]
}

fn overlap(a: &[f64; 4], b: &[f64; 4]) -> f64 {
    let side = |low: usize| (a[low + 2].min(b[low + 2]) - a[low].max(b[low])).max(0.0);
    let area = |c: &[f64; 4]| (c[2] - c[0]) * (c[3] - c[1]);
    let (both, either) = (side(0) * side(1), area(a) + area(b));
    if both > 0.0 { both / (either - both) } else { 0.0 }
}

fn non_max_suppression(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(5)?;
    let boxes = small(node, 0, "the boxes")?;
    let scores = small(node, 1, "the scores")?;
    let wrong = || Refusal::Impossible {
        what: "the shape of boxes and scores",
        value: format!("{:?}", boxes.shape()),
        shape: scores.shape().to_vec(),
    };
    let ([batch, count, 4], [score_batch, classes, score_count]) = (boxes.shape(), scores.shape()) else {
        return Err(wrong());
    };
    if (batch, count) != (score_batch, score_count) {
        return Err(wrong());
    }
    let (batch, count, classes) = (*batch, *count, *classes);
    // Boxes without scores may be of any number of classes.
    if batch.saturating_mul(classes) > MAX_FOLDED_ELEMENTS && !node.sees_all() {
        return Err(wrong());
    }
    let (boxes, scores) = (boxes.to_f64s(), scores.to_f64s());
    let one = |position: usize, what: &'static str| -> Result<Option<f64>, Refusal> {
        Ok(node.known_floats(position, what)?.and_then(|values| values.first().copied()))
    };
    let most = one(2, "max_output_boxes_per_class")?.unwrap_or(0.0).max(0.0) as usize;
    let threshold = one(3, "iou_threshold")?.unwrap_or(0.0);
    let least = one(4, "score_threshold")?;
    let centred = node.attributes.flag("center_point_box", false)?;
    let corners: Vec<[f64; 4]> = boxes.chunks_exact(4).map(|raw| corners(raw, centred)).collect();
    let mut selected = Vec::new();
    for image in 0..batch {
        for class in 0..classes {
            let scores = &scores[(image * classes + class) * count..][..count];
            let mut candidates: Vec<usize> =
                (0..count).filter(|&at| least.is_none_or(|least| scores[at] > least)).collect();
            candidates.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
            let mut kept: Vec<usize> = Vec::new();
            for at in candidates {
                if kept.len() >= most {
                    break;
                }
                let place = |at: usize| &corners[image * count + at];
                if kept.iter().all(|&other| overlap(place(at), place(other)) <= threshold) {
                    kept.push(at);
                }
            }
            selected.extend(kept.into_iter().flat_map(|at| [image as i64, class as i64, at as i64]));
        }
    }
    Ok(vec![indices(node, vec![selected.len() / 3, 3], selected)?])
}
