//! Resampling of grids, one axis after the other: nearest and linear are separable.

use super::{OpError, numbers::Numbers, walk::around};
use crate::{
    ir::{Resize, ResizeCoordinates, ResizeMode, ResizeNearest, Tensor},
    shape::{TensorType, is_float},
};

/// Where output position `at` lies on an input axis.
fn source(coordinates: ResizeCoordinates, at: usize, input: usize, out: usize, scale: f64) -> f64 {
    let at = at as f64;
    match coordinates {
        ResizeCoordinates::HalfPixel => (at + 0.5) / scale - 0.5,
        ResizeCoordinates::PytorchHalfPixel if out > 1 => (at + 0.5) / scale - 0.5,
        ResizeCoordinates::PytorchHalfPixel => 0.0,
        ResizeCoordinates::AlignCorners if out > 1 => at * (input as f64 - 1.0) / (out as f64 - 1.0),
        ResizeCoordinates::AlignCorners => 0.0,
        ResizeCoordinates::Asymmetric => at / scale,
    }
}

fn nearest(rule: ResizeNearest, at: f64) -> f64 {
    match rule {
        ResizeNearest::RoundPreferFloor => (at - 0.5).ceil(),
        ResizeNearest::RoundPreferCeil => (at + 0.5).floor(),
        ResizeNearest::Floor => at.floor(),
        ResizeNearest::Ceil => at.ceil(),
    }
}

/// For each output position of an axis: two input positions and the weight of the second.
pub fn taps(resize: &Resize, axis: usize, input: usize, out: usize) -> Vec<(usize, usize, f64)> {
    let scale = f64::from(resize.scales[axis]);
    let last = input.saturating_sub(1) as f64;
    (0..out)
        .map(|at| {
            let at = source(resize.coordinates, at, input, out, scale);
            match resize.mode {
                ResizeMode::Nearest(rule) => {
                    let at = nearest(rule, at).clamp(0.0, last) as usize;
                    (at, at, 0.0)
                }
                ResizeMode::Linear => {
                    let at = at.clamp(0.0, last);
                    let low = at.floor();
                    (low as usize, (low + 1.0).min(last) as usize, at - low)
                }
            }
        })
        .collect()
}

/// By how much every element is repeated along each axis, when a nearest resize does nothing else.
pub fn repeats(resize: &Resize, input: &[usize], out: &[usize]) -> Option<Vec<usize>> {
    if !matches!(resize.mode, ResizeMode::Nearest(_)) || input.len() != out.len() {
        return None;
    }
    let factor = |axis: usize| {
        let factor = out[axis].checked_div(input[axis]).filter(|&factor| factor * input[axis] == out[axis])?;
        let taps = taps(resize, axis, input[axis], out[axis]);
        taps.into_iter().enumerate().all(|(at, (from, ..))| from == at / factor).then_some(factor)
    };
    (0..out.len()).map(factor).collect()
}

/// Axis by axis from the shape of `x` to the output's.
///
/// # Errors
///
/// When it is no tensor of floats where values are mixed.
pub fn resize(resize: &Resize, x: &Tensor, out: &TensorType) -> Result<Tensor, OpError> {
    if !is_float(x.element()) && resize.mode == ResizeMode::Linear {
        return Err(OpError::Element { op: "resize", element: x.element() });
    }
    match Numbers::of(x) {
        Numbers::Float(values) => Numbers::Float(along_axes(resize, x.shape(), values, out, |a, b, weight| {
            if weight == 0.0 { a } else { a * (1.0 - weight) + b * weight }
        })),
        Numbers::Int(values) => Numbers::Int(along_axes(resize, x.shape(), values, out, |a, _, _| a)),
    }
    .into_tensor(out)
}

fn along_axes<T: Copy>(
    resize: &Resize,
    shape: &[usize],
    mut values: Vec<T>,
    out: &TensorType,
    mix: impl Fn(T, T, f64) -> T,
) -> Vec<T> {
    let mut shape = shape.to_vec();
    for axis in 0..shape.len() {
        if shape[axis] == out.shape[axis] && resize.scales[axis] == 1.0 {
            continue;
        }
        let taps = taps(resize, axis, shape[axis], out.shape[axis]);
        let (outer, size, inner) = around(&shape, axis);
        let mut resized = Vec::with_capacity(outer * taps.len() * inner);
        for outer in 0..outer {
            for &(low, high, weight) in &taps {
                let row = |at: usize| &values[(outer * size + at) * inner..][..inner];
                resized.extend(row(low).iter().zip(row(high)).map(|(&a, &b)| mix(a, b, weight)));
            }
        }
        shape[axis] = taps.len();
        values = resized;
    }
    values
}
