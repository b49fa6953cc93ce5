//! Losses, from log-probabilities and labels.

use super::{super::builder::Lowering, Rule};
use crate::error::Refusal;
use planforge_graph::ir::{Binary, Compare, ElementType, Op, ReduceKind, Unary, ValueId};

pub const RULES: &[Rule] = &[
    Rule { op_type: "NegativeLogLikelihoodLoss", attributes: &["ignore_index", "reduction"], lower: likelihood },
    Rule { op_type: "SoftmaxCrossEntropyLoss", attributes: &["ignore_index", "reduction"], lower: cross_entropy },
];

fn likelihood(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let log_probabilities = node.input(0, "input")?;
    Ok(vec![loss(node, log_probabilities)?])
}

fn cross_entropy(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let scores = node.input(0, "scores")?;
    let log_probabilities = node.emit(Op::Softmax { axis: 1, log: true }, &[scores])?;
    Ok(vec![loss(node, log_probabilities)?, log_probabilities])
}

/// `-weight[label] * log p[label]`, zero where the label is ignored; reduced.
fn loss(node: &mut Lowering<'_>, log_probabilities: ValueId) -> Result<ValueId, Refusal> {
    node.at_most(3)?;
    let (labels, weights) = (node.input(1, "labels")?, node.optional(2));
    let (shape, label_shape) = (node.shape(log_probabilities), node.shape(labels));
    let fits = shape.len() >= 2 && [&shape[..1], &shape[2..]].concat() == label_shape;
    if !fits {
        return Err(Refusal::Impossible { what: "the labels' shape", value: format!("{label_shape:?}"), shape });
    }
    let element = node.ty(log_probabilities).element;
    let mut index = labels;
    let mut counted = None;
    if let Some(ignored) = node.attributes.int("ignore_index")? {
        let is_ignored = node.compare_with(Compare::Equal, labels, ignored as f64)?;
        let first = node.scalar(node.ty(labels).element, 0.0)?;
        index = node.choose(is_ignored, first, labels)?;
        let kept = node.unary(Unary::Not, is_ignored)?;
        counted = Some(node.cast(kept, element)?);
    }
    if let Some(weights) = weights {
        let weight = node.emit(Op::Gather { axis: 0 }, &[weights, index])?;
        counted = Some(match counted {
            None => weight,
            Some(counted) => node.binary(Binary::Mul, weight, counted)?,
        });
    }
    let mut column = label_shape.clone();
    column.insert(1, 1);
    let column = node.reshape(index, column)?;
    let picked = node.emit(Op::GatherElements { axis: 1 }, &[log_probabilities, column])?;
    let picked = node.reshape(picked, label_shape.clone())?;
    let mut loss = node.unary(Unary::Neg, picked)?;
    if let Some(counted) = counted {
        // A log-probability of -inf at an ignored place does not count either: zero times it would be NaN.
        let weighted = node.binary(Binary::Mul, loss, counted)?;
        let zero = node.scalar(element, 0.0)?;
        let nothing = node.compare(Compare::Equal, counted, zero)?;
        loss = node.choose(nothing, zero, weighted)?;
    }
    let all: Vec<usize> = (0..label_shape.len()).collect();
    match node.attributes.text_or("reduction", "mean")? {
        "none" => Ok(loss),
        "sum" => node.reduce(ReduceKind::Sum, loss, &all, false),
        "mean" => match counted {
            None => node.reduce(ReduceKind::Mean, loss, &all, false),
            Some(counted) => {
                let sum = node.reduce(ReduceKind::Sum, loss, &all, false)?;
                let count = node.reduce(ReduceKind::Sum, counted, &all, false)?;
                node.binary(Binary::Div, sum, count)
            }
        },
        other => Err(Refusal::Attribute { name: "reduction".into(), reason: format!("is {other}") }),
    }
}

/// 1 at the largest element along the axis (the first of equal ones), 0 elsewhere.
pub fn hardmax(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let mut x = node.input(0, "input")?;
    let shape = node.shape(x);
    let default = if node.opset < 13 { 1 } else { -1 };
    let mut axis = node.axis(node.attributes.int_or("axis", default)?, shape.len(), "axis")?;
    if node.opset < 13 {
        // Like softmax, over all axes from this one on.
        x = node.reshape(x, vec![shape[..axis].iter().product(), shape[axis..].iter().product()])?;
        axis = 1;
    }
    let inner = node.shape(x);
    let arg = planforge_graph::ir::ArgReduce { largest: true, axis, keep: true, last: false };
    let best = node.emit(Op::ArgReduce(arg), &[x])?;
    let counting = node.counting(ElementType::I64, inner[axis])?;
    let mut along = vec![1; inner.len()];
    along[axis] = inner[axis];
    let counting = node.reshape(counting, along)?;
    let hit = node.compare(Compare::Equal, best, counting)?;
    let element = node.ty(x).element;
    let hit = node.cast(hit, element)?;
    Ok(vec![node.reshape(hit, shape)?])
}
