//! Support vector machines: distances to the vectors, and the votes of pairs of classes.

use super::{
    Entry,
    classes::{TRANSFORMS, logistic, transform_row},
};
use crate::{
    ir::{ElementType, NamedOp, Tensor},
    reference::{
        Inputs, OpError,
        numbers::{Numbers, floats},
    },
    shape::{Given, ShapeError, TensorType, attribute, mismatch, require},
};

/// Rounds in which probabilities of pairs are brought together, and how near they come (libsvm).
const MAX_ROUNDS: usize = 100;
const NEAR_ENOUGH: f64 = 0.005;

/// Probabilities of pairs stay this far from 0 and 1.
const LEAST_PROBABILITY: f64 = 1e-7;

pub(super) const ENTRIES: &[Entry] = &[
    Entry { name: "rbf", takes_empty: true, infer: rbf_type, run: rbf },
    Entry { name: "svm_classes", takes_empty: true, infer: svm_type, run: svm },
];

/// `[x (N,F), vectors (V,F)]` -> (N,V): `exp(-gamma |x - vector|^2)`.
fn rbf_type(_: &NamedOp, given: &Given<'_>, _: &[Vec<usize>]) -> Result<Vec<TensorType>, ShapeError> {
    let (x, vectors) = (given.float(0)?, given.float(1)?);
    given.same_element(0, 1)?;
    match (&x.shape[..], &vectors.shape[..]) {
        (&[rows, columns], &[count, width]) if columns == width => Ok(vec![TensorType::new(x.element, [rows, count])]),
        _ => Err(mismatch("support vectors", &vectors.shape, &x.shape)),
    }
}

fn rbf(named: &NamedOp, inputs: &Inputs<'_>, outputs: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
    let (x, vectors) = (inputs.get(0)?, inputs.get(1)?);
    let columns = x.shape()[1].max(1);
    let (x, vectors) = (floats("rbf", x)?, floats("rbf", vectors)?);
    let gamma = named.float("gamma", 0.0);
    let near = |row: &[f64], vector: &[f64]| {
        let distance: f64 = row.iter().zip(vector).map(|(a, b)| (a - b) * (a - b)).sum();
        (-gamma * distance).exp()
    };
    let rows = x.chunks(columns);
    let values = rows.flat_map(|row| vectors.chunks(columns).map(move |vector| near(row, vector))).collect();
    Ok(vec![Numbers::Float(values).into_tensor(&outputs[0])?])
}

/// `[kernels (N,V), coefficients (classes-1,V), rho (pairs), prob_a? (pairs), prob_b? (pairs)]` -> labels (N), scores.
/// `counts`: vectors per class, which lie class by class; `positive`: no coefficient is below zero.
fn svm_type(named: &NamedOp, given: &Given<'_>, _: &[Vec<usize>]) -> Result<Vec<TensorType>, ShapeError> {
    let (kernels, coefficients, rho) = (given.float(0)?, given.float(1)?, given.float(2)?);
    let [rows, vectors] = kernels.shape[..] else { return Err(given.rank_error(0, "2 axes are needed".into())) };
    let classes = named.ints("labels").len();
    require((2..1 << 16).contains(&classes), || attribute("labels", classes, &kernels.shape))?;
    let counts = named.sizes("counts").unwrap_or_default();
    let all = counts.iter().try_fold(0usize, |sum, &count| sum.checked_add(count));
    require(counts.len() == classes && all == Some(vectors), || attribute("counts", &counts, &kernels.shape))?;
    require(coefficients.shape == [classes - 1, vectors], || {
        mismatch("coefficients", &coefficients.shape, &[classes - 1, vectors])
    })?;
    let pairs = classes * (classes - 1) / 2;
    require(rho.shape == [pairs], || mismatch("rho", &rho.shape, &[pairs]))?;
    for position in [3, 4] {
        given.optional_is(position, "probabilities", rho)?;
    }
    require(given.optional(3).is_some() == given.optional(4).is_some(), || {
        attribute("prob_b", "not given with prob_a", &rho.shape)
    })?;
    let transform = named.text("transform");
    require(TRANSFORMS.contains(&transform), || attribute("post_transform", transform, &kernels.shape))?;
    let wide = match given.optional(3) {
        None if classes > 2 => pairs,
        _ => classes,
    };
    Ok(vec![TensorType::new(ElementType::I64, [rows]), TensorType::new(ElementType::F32, [rows, wide])])
}

/// Probabilities of classes from those of pairs (Wu, Lin and Weng, second approach, as libsvm has it).
fn couple(classes: usize, r: &[f64]) -> Vec<f64> {
    let at = |i: usize, j: usize| r[i * classes + j];
    let mut q = vec![0f64; classes * classes];
    for i in 0..classes {
        for j in (0..classes).filter(|&j| j != i) {
            q[i * classes + i] += at(j, i) * at(j, i);
            q[i * classes + j] = -at(j, i) * at(i, j);
        }
    }
    let mut p = vec![1.0 / classes as f64; classes];
    for _ in 0..MAX_ROUNDS {
        let mut qp: Vec<f64> = (0..classes).map(|i| (0..classes).map(|j| q[i * classes + j] * p[j]).sum()).collect();
        let mut pqp: f64 = p.iter().zip(&qp).map(|(p, qp)| p * qp).sum();
        let error = qp.iter().map(|qp| (qp - pqp).abs()).fold(0.0, f64::max);
        if error < NEAR_ENOUGH / classes as f64 {
            break;
        }
        for i in 0..classes {
            let own = q[i * classes + i];
            let step = (pqp - qp[i]) / own;
            p[i] += step;
            pqp = (pqp + step * (step * own + 2.0 * qp[i])) / (1.0 + step) / (1.0 + step);
            for j in 0..classes {
                qp[j] = (qp[j] + step * q[i * classes + j]) / (1.0 + step);
                p[j] /= 1.0 + step;
            }
        }
    }
    p
}

/// The first of the largest.
fn first_largest<T: PartialOrd>(values: &[T]) -> usize {
    (1..values.len()).fold(0, |best, at| if values[at] > values[best] { at } else { best })
}

fn svm(named: &NamedOp, inputs: &Inputs<'_>, outputs: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
    let op = "svm_classes";
    let kernels = inputs.get(0)?;
    let vectors = kernels.shape()[1];
    let (kernels, coefficients) = (floats(op, kernels)?, floats(op, inputs.get(1)?)?);
    let rho = floats(op, inputs.get(2)?)?;
    let probabilities = match (inputs.optional(3), inputs.optional(4)) {
        (Some(a), Some(b)) => Some((floats(op, a)?, floats(op, b)?)),
        _ => None,
    };
    let labels = named.ints("labels");
    let classes = labels.len();
    let counts = named.sizes("counts").unwrap_or_default();
    let starts: Vec<usize> = (0..classes).map(|class| counts[..class].iter().sum()).collect();
    let transform = named.text("transform");
    let wide = outputs[1].shape[1];
    let rows = outputs[0].shape[0];
    let (mut chosen, mut out) = (Vec::with_capacity(rows), vec![0f64; rows * wide]);
    for (row, out) in out.chunks_mut(wide).enumerate() {
        let near = &kernels[row * vectors..][..vectors];
        // What class `of` has to say for itself, in the line of coefficients that holds the other.
        let part = |line: usize, of: usize| -> f64 {
            let range = starts[of]..starts[of] + counts[of];
            coefficients[line * vectors..][range.clone()].iter().zip(&near[range]).map(|(a, b)| a * b).sum()
        };
        let (mut votes, mut scores) = (vec![0usize; classes], Vec::with_capacity(rho.len()));
        for i in 0..classes - 1 {
            for j in i + 1..classes {
                let sum = part(j - 1, i) + part(i, j) + rho[scores.len()];
                votes[if sum > 0.0 { i } else { j }] += 1;
                scores.push(sum);
            }
        }
        let most = first_largest(&votes);
        if let Some((a, b)) = &probabilities {
            let mut pairs = vec![0f64; classes * classes];
            let mut pair = 0;
            for i in 0..classes - 1 {
                for j in i + 1..classes {
                    let p = 1.0 - logistic(scores[pair] * a[pair] + b[pair]);
                    let p = p.clamp(LEAST_PROBABILITY, 1.0 - LEAST_PROBABILITY);
                    (pairs[i * classes + j], pairs[j * classes + i]) = (p, 1.0 - p);
                    pair += 1;
                }
            }
            scores = couple(classes, &pairs);
            transform_row(transform, &mut scores);
        } else if let [score] = scores[..] {
            scores = match transform {
                "NONE" => vec![-score, score],
                "LOGISTIC" => vec![logistic(-score), logistic(score)],
                _ => vec![1.0 - score, score],
            };
        } else {
            transform_row(transform, &mut scores);
        }
        out.copy_from_slice(&scores);
        chosen.push(labels[most]);
    }
    let labels = Tensor::from_vec(outputs[0].shape.clone(), chosen)?;
    Ok(vec![labels, Numbers::Float(out).into_tensor(&outputs[1])?])
}
