//! Fourier transforms, as sums.

use super::Entry;
use crate::{
    ir::{NamedOp, Tensor},
    reference::{
        Inputs, OpError,
        numbers::{Numbers, floats},
        walk::around,
    },
    shape::{Given, ShapeError, TensorType, attribute, mismatch, require, wanted_shape},
};
use std::f64::consts::PI;

/// Longest transform: sums take the square of it.
const MAX_LENGTH: usize = 1 << 20;

pub(super) const ENTRIES: &[Entry] = &[
    Entry { name: "dft", takes_empty: false, infer: dft_type, run: dft },
    Entry { name: "stft", takes_empty: false, infer: stft_type, run: stft },
];

/// `length` points of a transform, from those given, zeros after them. `turns` has one entry for each fraction of a
/// turn.
fn transform(given: &[(f64, f64)], length: usize, bins: usize, turns: &[(f64, f64)]) -> Vec<(f64, f64)> {
    (0..bins)
        .map(|bin| {
            given.iter().take(length).enumerate().fold((0.0, 0.0), |(re, im), (at, (a, b))| {
                let (cos, sin) = turns[bin * at % length];
                (re + a * cos - b * sin, im + a * sin + b * cos)
            })
        })
        .collect()
}

fn turns(length: usize, inverse: bool) -> Vec<(f64, f64)> {
    let sign = if inverse { 2.0 } else { -2.0 };
    (0..length).map(|at| (sign * PI * at as f64 / length as f64).sin_cos()).map(|(sin, cos)| (cos, sin)).collect()
}

/// `[x (.., 1 or 2)]`: real and imaginary parts along the last axis, transformed along `axis`.
fn dft_type(named: &NamedOp, given: &Given<'_>, wanted: &[Vec<usize>]) -> Result<Vec<TensorType>, ShapeError> {
    let (x, out) = (given.float(0)?, wanted_shape(wanted, 0)?);
    let (axis, length) = (named.size("axis"), named.size("length"));
    require((1..=MAX_LENGTH).contains(&length), || attribute("dft_length", length, &x.shape))?;
    let last = x.rank().saturating_sub(1);
    require(axis < last && matches!(x.shape[last], 1 | 2), || attribute("axis", axis, &x.shape))?;
    let (inverse, onesided) = (named.flag("inverse"), named.flag("onesided"));
    let mut expected = x.shape.clone();
    expected[axis] = if onesided && !inverse { length / 2 + 1 } else { length };
    expected[last] = if onesided && inverse { 1 } else { 2 };
    require(!(onesided && inverse) || x.shape[axis] > length / 2, || attribute("dft_length", length, &x.shape))?;
    require(out == expected, || mismatch("transform", out, &expected))?;
    Ok(vec![TensorType::new(x.element, expected)])
}

fn dft(named: &NamedOp, inputs: &Inputs<'_>, outputs: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
    let (x, out) = (inputs.get(0)?, &outputs[0]);
    let (axis, length) = (named.size("axis"), named.size("length"));
    let (inverse, onesided) = (named.flag("inverse"), named.flag("onesided"));
    let rank = x.rank();
    let parts = x.shape()[rank - 1];
    let (outer, size, inner) = around(&x.shape()[..rank - 1], axis);
    let (bins, out_parts) = (out.shape[axis], out.shape[rank - 1]);
    let values = floats("dft", x)?;
    let turns = turns(length, inverse);
    let scale = if inverse { 1.0 / length as f64 } else { 1.0 };
    let mut result = vec![0f64; out.shape.iter().product()];
    for outer in 0..outer {
        for lane in 0..inner {
            let at = |index: usize| ((outer * size + index) * inner + lane) * parts;
            let part = |index: usize| (values[at(index)], if parts == 2 { values[at(index) + 1] } else { 0.0 });
            let mut points: Vec<(f64, f64)> = (0..size).map(part).collect();
            if onesided && inverse {
                // The other half of a real signal's spectrum mirrors the first.
                points.truncate(length / 2 + 1);
                points.extend(
                    (points.len()..length).map(|bin| part(length - bin)).map(|(re, im)| (re, -im)).collect::<Vec<_>>(),
                );
            }
            for (bin, (re, im)) in transform(&points, length, bins, &turns).into_iter().enumerate() {
                let place = ((outer * bins + bin) * inner + lane) * out_parts;
                result[place] = re * scale;
                if out_parts == 2 {
                    result[place + 1] = im * scale;
                }
            }
        }
    }
    Ok(vec![Numbers::Float(result).into_tensor(out)?])
}

/// `[signal (N,samples) or (N,samples,1 or 2), window? (length)]` -> (N,frames,bins,2).
fn stft_type(named: &NamedOp, given: &Given<'_>, wanted: &[Vec<usize>]) -> Result<Vec<TensorType>, ShapeError> {
    let (x, out) = (given.float(0)?, wanted_shape(wanted, 0)?);
    let (step, length) = (named.size("step"), named.size("length"));
    require(step > 0 && (1..=MAX_LENGTH).contains(&length), || attribute("frame_step", [step, length], &x.shape))?;
    let (batch, samples) = match x.shape[..] {
        [batch, samples] | [batch, samples, 1 | 2] => (batch, samples),
        _ => return Err(given.rank_error(0, "2 or 3 axes are needed".into())),
    };
    require(samples >= length, || attribute("frame_length", length, &x.shape))?;
    let bins = if named.flag("onesided") { length / 2 + 1 } else { length };
    let expected = [batch, (samples - length) / step + 1, bins, 2];
    require(out == expected, || mismatch("frames", out, &expected))?;
    if given.optional(1).is_some() {
        let window = given.float(1)?;
        require(window.shape == [length], || mismatch("window", &window.shape, &[length]))?;
    }
    Ok(vec![TensorType::new(x.element, expected)])
}

fn stft(named: &NamedOp, inputs: &Inputs<'_>, outputs: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
    let (x, out) = (inputs.get(0)?, &outputs[0]);
    let (step, length) = (named.size("step"), named.size("length"));
    let [batch, frames, bins, _] = out.shape[..] else { return Ok(Vec::new()) };
    let values = floats("stft", x)?;
    let window = inputs.optional(1).map(|window| floats("stft", window)).transpose()?;
    let parts = if x.rank() == 3 { x.shape()[2] } else { 1 };
    let turns = turns(length, false);
    let mut result = Vec::with_capacity(out.shape.iter().product());
    for image in 0..batch {
        for frame in 0..frames {
            let points: Vec<(f64, f64)> = (0..length)
                .map(|at| {
                    let place = (image * x.shape()[1] + frame * step + at) * parts;
                    let weight = window.as_ref().map_or(1.0, |window| window[at]);
                    (values[place] * weight, if parts == 2 { values[place + 1] * weight } else { 0.0 })
                })
                .collect();
            result.extend(transform(&points, length, bins, &turns).into_iter().flat_map(|(re, im)| [re, im]));
        }
    }
    Ok(vec![Numbers::Float(result).into_tensor(out)?])
}
