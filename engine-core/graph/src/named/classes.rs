//! From scores to classes, as ONNX Runtime has it where the operators of `ai.onnx.ml` leave it open.

use super::Entry;
use crate::{
    ir::{ElementType, NamedOp, Tensor},
    reference::{Inputs, OpError, numbers::Numbers},
    shape::{Given, ShapeError, TensorType, attribute, mismatch, require},
};
use std::f64::consts::{PI, SQRT_2};

/// What becomes of the scores of a row.
pub const TRANSFORMS: [&str; 5] = ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"];

/// Scores nearer to zero than this are zeros to SOFTMAX_ZERO.
const ZERO: f64 = 1e-7;

pub(super) const ENTRIES: &[Entry] = &[
    Entry { name: "score_transform", takes_empty: true, infer: transform_type, run: transform },
    Entry { name: "tree_classes", takes_empty: true, infer: classes_type, run: tree_classes },
    Entry { name: "linear_classes", takes_empty: true, infer: classes_type, run: linear_classes },
    Entry { name: "svm_linear_classes", takes_empty: true, infer: classes_type, run: svm_linear_classes },
];

fn known_transform(named: &NamedOp, shape: &[usize]) -> Result<(), ShapeError> {
    let name = named.text("transform");
    require(TRANSFORMS.contains(&name), || attribute("post_transform", name, shape))
}

/// `[scores (N,C)]`, row by row.
fn transform_type(named: &NamedOp, given: &Given<'_>, _: &[Vec<usize>]) -> Result<Vec<TensorType>, ShapeError> {
    let x = given.float(0)?;
    require(x.rank() == 2, || given.rank_error(0, "2 axes are needed".into()))?;
    known_transform(named, &x.shape)?;
    Ok(vec![x.clone()])
}

/// `[scores (N,C), given? (N,C, bool), base? (one per class, or one)]` -> labels (N), scores (N,E) as f32. `labels` has
/// one per class; of a single column of scores and two labels E is 2.
fn classes_type(named: &NamedOp, given: &Given<'_>, _: &[Vec<usize>]) -> Result<Vec<TensorType>, ShapeError> {
    let x = given.float(0)?;
    let [rows, columns] = x.shape[..] else { return Err(given.rank_error(0, "2 axes are needed".into())) };
    given.optional_is(1, "given scores", &TensorType::new(ElementType::Bool, [rows, columns]))?;
    if let Some(base) = given.optional(2) {
        given.float(2)?;
        require(base.rank() == 1, || mismatch("base values", &base.shape, &[columns]))?;
    }
    known_transform(named, &x.shape)?;
    let labels = named.ints("labels").len();
    let fits = columns > 0 && (columns == labels || (columns == 1 && labels <= 2));
    require(fits, || attribute("labels", labels, &x.shape))?;
    let wide = if columns == 1 && labels == 2 { 2 } else { columns };
    Ok(vec![TensorType::new(ElementType::I64, [rows]), TensorType::new(ElementType::F32, [rows, wide])])
}

/// Where the larger half of the logistic function is taken from, so that neither overflows.
pub(super) fn logistic(x: f64) -> f64 {
    let upper = 1.0 / (1.0 + (-x.abs()).exp());
    if x < 0.0 { 1.0 - upper } else { upper }
}

/// The inverse of the normal distribution by Winitzki's formula, with the constant of ONNX Runtime.
fn probit(x: f64) -> f64 {
    let x = 2.0 * x - 1.0;
    let log = ((1.0 - x) * (1.0 + x)).ln();
    let v = 2.0 / (PI * 0.147) + 0.5 * log;
    let root = ((v * v - log / 0.147).sqrt() - v).sqrt();
    SQRT_2 * if x < 0.0 { -root } else { root }
}

/// Transforms the scores of one row. A single score knows PROBIT alone.
pub(super) fn transform_row(name: &str, row: &mut [f64]) {
    match name {
        "PROBIT" => row.iter_mut().for_each(|x| *x = probit(*x)),
        _ if row.len() < 2 => {}
        "LOGISTIC" => row.iter_mut().for_each(|x| *x = logistic(*x)),
        "SOFTMAX" | "SOFTMAX_ZERO" => {
            let top = row.iter().copied().fold(f64::from(f32::MIN), f64::max);
            let mut sum = 0.0;
            for x in row.iter_mut() {
                if name == "SOFTMAX" || x.abs() > ZERO {
                    *x = (*x - top).exp();
                    sum += *x;
                } else {
                    *x *= (-top).exp();
                }
            }
            row.iter_mut().for_each(|x| *x /= sum);
        }
        _ => {}
    }
}

fn transform(named: &NamedOp, inputs: &Inputs<'_>, outputs: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
    let mut scores = inputs.get(0)?.to_f64s();
    let columns = outputs[0].shape.last().copied().unwrap_or(0);
    scores.chunks_mut(columns.max(1)).for_each(|row| transform_row(named.text("transform"), row));
    Ok(vec![Numbers::Float(scores).into_tensor(&outputs[0])?])
}

/// Labels and scores, row by row; classes that are `never` given stay out where nothing says which were.
fn each_row(
    inputs: &Inputs<'_>,
    outputs: &[TensorType],
    never: &[i64],
    mut row: impl FnMut(&[f64], &[bool], &mut [f64]) -> i64,
) -> Result<Vec<Tensor>, OpError> {
    let scores = inputs.get(0)?;
    let columns = scores.shape()[1];
    let scores = scores.to_f64s();
    let present: Vec<bool> = match inputs.optional(1) {
        Some(given) => given.bools()?.iter().map(|&given| given != 0).collect(),
        None => (0..scores.len()).map(|at| !never.contains(&((at % columns) as i64))).collect(),
    };
    let wide = outputs[1].shape[1];
    let mut out = vec![0f64; outputs[1].shape[0] * wide];
    let rows = scores.chunks(columns).zip(present.chunks(columns)).zip(out.chunks_mut(wide));
    let labels: Vec<i64> = rows.map(|((scores, present), out)| row(scores, present, out)).collect();
    let labels = Tensor::from_vec(outputs[0].shape.clone(), labels)?;
    Ok(vec![labels, Numbers::Float(out).into_tensor(&outputs[1])?])
}

/// How one score stands for two classes.
#[derive(Clone, Copy, PartialEq)]
enum Pair {
    /// It is a probability: the other class has what is left of 1.
    Rest,
    /// It is a margin: the other class has its opposite.
    Opposite,
    /// Nothing is known of the other.
    Alone,
}

/// Writes one score for two classes.
fn write_pair(pair: Pair, transform: &str, score: f64, out: &mut [f64]) {
    let both = match pair {
        _ if transform == "PROBIT" => [probit(score), 0.0],
        Pair::Alone => [score, 0.0],
        _ if transform == "LOGISTIC" => [logistic(-score), logistic(score)],
        Pair::Rest => [1.0 - score, score],
        Pair::Opposite => [-score, score],
    };
    out.iter_mut().zip(both).for_each(|(out, score)| *out = score);
}

/// `binary`: all weights are of one of two classes; `positive`: none of them is below zero.
fn tree_classes(named: &NamedOp, inputs: &Inputs<'_>, outputs: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
    let labels = named.ints("labels");
    let transform = named.text("transform");
    let (binary, positive) = (named.flag("binary"), named.flag("positive"));
    let base = inputs.optional(2).map(Tensor::to_f64s).unwrap_or_default();
    // Whether the second class wins, by the score that speaks for it; and what one score alone is.
    let decide = |score: f64| match (binary, positive) {
        (true, true) => (labels[usize::from(score > 0.5)], Some(Pair::Rest)),
        (true, false) => (labels[usize::from(score > 0.0)], Some(Pair::Opposite)),
        (false, _) => (i64::from(score > 0.0), None),
    };
    each_row(inputs, outputs, named.ints("never"), |scores, present, out| {
        let mut scores = scores.to_vec();
        if scores.len() > 2 {
            scores.iter_mut().zip(&base).for_each(|(score, base)| *score += base);
            let candidates = (0..scores.len()).filter(|&class| present[class] || class < base.len());
            let best = candidates.reduce(|best, class| if scores[class] > scores[best] { class } else { best });
            transform_row(transform, &mut scores);
            out.copy_from_slice(&scores);
            return best.map_or(labels[0], |best| labels[best]);
        }
        if scores.len() == 1 {
            // A single class, of which nothing is known but its score.
            let score = scores[0] + base.last().copied().unwrap_or(0.0);
            let (label, pair) = decide(score);
            write_pair(pair.unwrap_or(Pair::Alone), transform, score, out);
            return label;
        }
        let mut second = present[1];
        let mut alone = Pair::Alone;
        match base[..] {
            [_, base] if second => {
                scores[1] = base + scores[0];
                scores[0] = -scores[1];
            }
            [first, other] => {
                scores[0] += first;
                scores[1] += other;
                second = false;
            }
            [only] => scores[0] += only,
            _ => alone = Pair::Opposite,
        }
        let (label, pair) = decide(if second { scores[1] } else { scores[0] });
        if second || base.len() == 2 {
            // What no leaf has given counts as 0, whatever was added to it.
            let given = [present[0], second];
            scores.iter_mut().zip(given).filter(|(_, given)| !given).for_each(|(score, _)| *score = 0.0);
            transform_row(transform, &mut scores);
            out.copy_from_slice(&scores);
        } else {
            write_pair(pair.unwrap_or(alone), transform, scores[0], out);
        }
        label
    })
}

fn linear_classes(named: &NamedOp, inputs: &Inputs<'_>, outputs: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
    let labels = named.ints("labels");
    let transform = named.text("transform");
    each_row(inputs, outputs, &[], |scores, _, out| {
        if let [score] = scores[..] {
            let wins = score > 0.0;
            let pair = if labels.len() == 2 { Pair::Rest } else { Pair::Alone };
            write_pair(pair, transform, score, out);
            return if labels.len() == 2 { labels[usize::from(wins)] } else { i64::from(wins) };
        }
        let best = (1..scores.len()).fold(0, |best, class| if scores[class] > scores[best] { class } else { best });
        out.copy_from_slice(scores);
        transform_row(transform, out);
        labels[best]
    })
}

/// The class of the largest score; of two the second where that is above zero, or with `positive` at least a half.
fn svm_linear_classes(named: &NamedOp, inputs: &Inputs<'_>, outputs: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
    let labels = named.ints("labels");
    let transform = named.text("transform");
    let positive = named.flag("positive");
    each_row(inputs, outputs, &[], |scores, _, out| {
        let best = (1..scores.len()).fold(0, |best, class| if scores[class] > scores[best] { class } else { best });
        let second = if positive { scores[best] >= 0.5 } else { scores[best] > 0.0 };
        out[..scores.len()].copy_from_slice(scores);
        transform_row(transform, &mut out[..scores.len()]);
        if labels.len() == 2 && second { labels[1] } else { labels[best] }
    })
}
