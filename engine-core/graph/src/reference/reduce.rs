//! Reductions, running sums and selections along axes.

use super::{
    OpError,
    elementwise::{max_nan, min_nan},
    numbers::Numbers,
    walk::{around, strides, walk},
};
use crate::{
    ir::{ArgReduce, ElementType, ReduceKind, Tensor},
    shape::TensorType,
};
use std::cmp::Ordering;

/// Gathers, for each output element, the input elements it comes from, in row-major order.
fn groups<T: Copy>(values: &[T], shape: &[usize], axes: &[usize]) -> Vec<Vec<T>> {
    let own = strides(shape);
    let is_reduced = |axis: &usize| axes.contains(axis);
    let pick = |reduced: bool| -> (Vec<usize>, Vec<isize>) {
        (0..shape.len()).filter(|axis| is_reduced(axis) == reduced).map(|axis| (shape[axis], own[axis])).unzip()
    };
    let ((kept_shape, kept_strides), (gone_shape, gone_strides)) = (pick(false), pick(true));
    let mut within = Vec::new();
    walk(&gone_shape, [&gone_strides], |[offset]| within.push(offset as usize));
    let mut groups = Vec::new();
    walk(&kept_shape, [&kept_strides], |[base]| {
        groups.push(within.iter().map(|offset| values[base as usize + offset]).collect());
    });
    groups
}

fn reduce_floats(kind: ReduceKind, values: &[f64]) -> f64 {
    let each = || values.iter().copied();
    match kind {
        ReduceKind::Sum => each().sum(),
        ReduceKind::Mean => each().sum::<f64>() / values.len() as f64,
        ReduceKind::Max => each().fold(f64::NEG_INFINITY, max_nan),
        ReduceKind::Min => each().fold(f64::INFINITY, min_nan),
        ReduceKind::Prod => each().product(),
        ReduceKind::L1 => each().map(f64::abs).sum(),
        ReduceKind::L2 => each().map(|value| value * value).sum::<f64>().sqrt(),
        ReduceKind::SumSquare => each().map(|value| value * value).sum(),
        ReduceKind::LogSum => each().sum::<f64>().ln(),
        ReduceKind::LogSumExp => {
            let largest = each().fold(f64::NEG_INFINITY, max_nan);
            if largest.is_infinite() {
                return largest;
            }
            largest + each().map(|value| (value - largest).exp()).sum::<f64>().ln()
        }
    }
}

fn reduce_integers(kind: ReduceKind, values: &[i128]) -> i128 {
    let each = || values.iter().copied();
    let as_floats = || each().map(|value| value as f64).collect::<Vec<_>>();
    match kind {
        ReduceKind::Sum => each().sum(),
        ReduceKind::Max => each().max().unwrap_or(0),
        ReduceKind::Min => each().min().unwrap_or(0),
        ReduceKind::Prod => each().fold(1, i128::wrapping_mul),
        ReduceKind::L1 => each().map(i128::abs).sum(),
        ReduceKind::SumSquare => each().fold(0, |sum, value| sum.wrapping_add(value.wrapping_mul(value))),
        ReduceKind::Mean => each().sum::<i128>() / values.len() as i128,
        ReduceKind::L2 | ReduceKind::LogSum | ReduceKind::LogSumExp => reduce_floats(kind, &as_floats()) as i128,
    }
}

/// Over `axes`, which the output lacks or has as 1.
///
/// # Errors
///
/// When the type has no such reduction.
pub fn reduce(kind: ReduceKind, axes: &[usize], x: &Tensor, out: &TensorType) -> Result<Tensor, OpError> {
    match Numbers::of(x) {
        Numbers::Float(values) => {
            Numbers::Float(groups(&values, x.shape(), axes).iter().map(|group| reduce_floats(kind, group)).collect())
        }
        Numbers::Int(values) => {
            Numbers::Int(groups(&values, x.shape(), axes).iter().map(|group| reduce_integers(kind, group)).collect())
        }
    }
    .into_tensor(out)
}

/// Places along one axis, which the output lacks or has as 1.
///
/// # Errors
///
/// When the type has no order.
pub fn arg_reduce(arg: &ArgReduce, x: &Tensor, out: &TensorType) -> Result<Tensor, OpError> {
    fn best<T: PartialOrd + Copy>(arg: &ArgReduce, values: &[T]) -> i64 {
        let mut best = 0;
        for (index, value) in values.iter().enumerate().skip(1) {
            let better = match arg.largest {
                true => *value > values[best],
                false => *value < values[best],
            };
            if better || (arg.last && *value == values[best]) {
                best = index;
            }
        }
        best as i64
    }
    let result: Vec<i64> = match Numbers::of(x) {
        Numbers::Float(values) => {
            groups(&values, x.shape(), &[arg.axis]).iter().map(|group| best(arg, group)).collect()
        }
        Numbers::Int(values) => groups(&values, x.shape(), &[arg.axis]).iter().map(|group| best(arg, group)).collect(),
    };
    Ok(Tensor::from_vec(out.shape.clone(), result)?)
}

/// Sums along `axis`; gives the shape of `x`.
///
/// # Errors
///
/// When the type has no sum.
pub fn cum_sum(x: &Tensor, axis: usize, exclusive: bool, reverse: bool, out: &TensorType) -> Result<Tensor, OpError> {
    fn run<T: Copy + Default + std::ops::Add<Output = T>>(
        values: &mut [T],
        (outer, size, inner): (usize, usize, usize),
        exclusive: bool,
        reverse: bool,
    ) {
        for outer in 0..outer {
            for at in 0..inner {
                let mut sum = T::default();
                for step in 0..size {
                    let index = if reverse { size - 1 - step } else { step };
                    let value = &mut values[(outer * size + index) * inner + at];
                    let next = sum + *value;
                    *value = if exclusive { sum } else { next };
                    sum = next;
                }
            }
        }
    }
    let parts = around(x.shape(), axis);
    match Numbers::of(x) {
        Numbers::Float(mut values) => {
            run(&mut values, parts, exclusive, reverse);
            Numbers::Float(values)
        }
        Numbers::Int(mut values) => {
            run(&mut values, parts, exclusive, reverse);
            Numbers::Int(values)
        }
    }
    .into_tensor(out)
}

/// Largest (or smallest) first; of equal ones the lower index first.
///
/// Values and their places (i64): the shape of `x` with `k` along `axis`.
///
/// # Errors
///
/// When the type has no order.
pub fn top_k(x: &Tensor, axis: usize, largest: bool, outputs: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
    let (outer, size, inner) = around(x.shape(), axis);
    let k = outputs[0].shape[axis];
    let numbers = Numbers::of(x);
    let compare = |a: usize, b: usize| -> Ordering {
        let order = match &numbers {
            Numbers::Float(values) => values[a].total_cmp(&values[b]),
            Numbers::Int(values) => values[a].cmp(&values[b]),
        };
        if largest { order.reverse() } else { order }
    };
    let mut picked = vec![0usize; outer * k * inner];
    let mut indices = vec![0i64; outer * k * inner];
    for outer in 0..outer {
        for at in 0..inner {
            let mut order: Vec<usize> = (0..size).collect();
            order.sort_by(|&a, &b| compare((outer * size + a) * inner + at, (outer * size + b) * inner + at));
            for (rank, &index) in order.iter().take(k).enumerate() {
                picked[(outer * k + rank) * inner + at] = (outer * size + index) * inner + at;
                indices[(outer * k + rank) * inner + at] = index as i64;
            }
        }
    }
    let mut mover = super::movement::Mover::new(x, &outputs[0]);
    picked.into_iter().for_each(|offset| mover.take(offset, 1));
    debug_assert_eq!(outputs[1].element, ElementType::I64);
    Ok(vec![mover.finish(&outputs[0])?, Tensor::from_vec(outputs[1].shape.clone(), indices)?])
}
