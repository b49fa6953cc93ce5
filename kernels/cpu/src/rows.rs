//! Work over whole rows of a row-major matrix: softmax and layer normalisation.

use crate::{
    isa::{Isa, per_level},
    math,
    pool::{ThreadPool, for_parts},
};

/// Independent sums, so that adding vectorises.
const LANES: usize = 32;

/// Folds `values` by `f` (associative and commutative enough) in lanes, in an order that no level changes.
#[inline(always)]
fn fold(values: &[f32], start: f32, step: impl Fn(f32, f32) -> f32, join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [start; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = step(*lane, *value);
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane = step(*lane, *value);
    }
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            lanes[i] = join(lanes[i], lanes[i + width]);
        }
    }
    lanes[0]
}

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    // Without a branch between the two tests, so that it vectorises.
    if (a > b) | a.is_nan() { a } else { b }
}

per_level! {
    pub(crate) fn softmax_rows(columns: usize, guarded: bool, to: &mut [f32]) {
        for row in to.chunks_exact_mut(columns) {
            let top = fold(row, f32::NEG_INFINITY, larger, larger);
            // A row of -inf alone has no softmax: NaN, as the plain formula gives.
            for value in row.iter_mut() {
                *value = math::exp::<FUSED>(*value - top);
            }
            let sum = fold(row, 0.0, |a, b| a + b, |a, b| a + b);
            if guarded && sum.is_nan() {
                row.fill(0.0);
                continue;
            }
            let scale = 1.0 / sum;
            for value in row.iter_mut() {
                *value *= scale;
            }
        }
    }
}

/// Rows one task takes, so that it has some ten thousand elements.
fn rows_per_task(columns: usize) -> usize {
    (16_384 / columns.max(1)).max(1)
}

/// Softmax of each row of `columns` elements, in place; `guarded` makes a row that has none all zeros.
///
/// # Panics
/// When the length is not a multiple of `columns`.
pub fn softmax(isa: Isa, pool: &ThreadPool, columns: usize, guarded: bool, to: &mut [f32]) {
    if to.is_empty() {
        return;
    }
    assert!(columns > 0 && to.len().is_multiple_of(columns), "the rows are not whole");
    for_parts(pool, to, columns * rows_per_task(columns), |_, part| softmax_rows(isa, columns, guarded, part));
}

/// Scale and shift of a layer normalisation, each as long as a row.
#[derive(Clone, Copy, Debug)]
pub struct NormParameters<'a> {
    pub scale: Option<&'a [f32]>,
    pub bias: Option<&'a [f32]>,
    pub epsilon: f32,
}

per_level! {
    fn norm_rows(columns: usize, from: &[f32], parameters: NormParameters<'_>, to: &mut [f32]) {
        let inverse_len = 1.0 / columns as f32;
        for (from, to) in from.chunks_exact(columns).zip(to.chunks_exact_mut(columns)) {
            let mean = fold(from, 0.0, |a, b| a + b, |a, b| a + b) * inverse_len;
            let variance = fold(from, 0.0, |a, b| a + (b - mean) * (b - mean), |a, b| a + b) * inverse_len;
            let inverse = 1.0 / (variance + parameters.epsilon).sqrt();
            match (parameters.scale, parameters.bias) {
                (Some(scale), Some(bias)) => {
                    for (((to, x), s), b) in to.iter_mut().zip(from).zip(scale).zip(bias) {
                        *to = (x - mean) * inverse * s + b;
                    }
                }
                (scale, bias) => {
                    for (i, (to, x)) in to.iter_mut().zip(from).enumerate() {
                        let value = (x - mean) * inverse * scale.map_or(1.0, |s| s[i]);
                        *to = value + bias.map_or(0.0, |b| b[i]);
                    }
                }
            }
        }
    }
}

/// Layer normalisation of each row of `columns` elements.
///
/// # Panics
/// When lengths do not fit together.
pub fn layer_norm(
    isa: Isa,
    pool: &ThreadPool,
    columns: usize,
    from: &[f32],
    parameters: NormParameters<'_>,
    to: &mut [f32],
) {
    if to.is_empty() {
        return;
    }
    assert!(columns > 0 && to.len().is_multiple_of(columns), "the rows are not whole");
    assert_eq!(from.len(), to.len(), "the result is not as large as what it is made of");
    for given in [parameters.scale, parameters.bias].into_iter().flatten() {
        assert_eq!(given.len(), columns, "scale or bias is not as long as a row");
    }
    let part = columns * rows_per_task(columns);
    for_parts(pool, to, part, |task, to| {
        let from = &from[task * part..task * part + to.len()];
        norm_rows(isa, columns, from, parameters, to);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn rows_agree_with_double_precision(
            rows in 1usize..9, columns in 1usize..200, threads in 1usize..4,
            values in proptest::collection::vec(-20f32..20.0, 9 * 200), with: (bool, bool),
        ) {
            let from = &values[..rows * columns];
            let pool = ThreadPool::new(threads).unwrap();
            let scale: Vec<f32> = (0..columns).map(|i| 0.5 + i as f32 * 0.01).collect();
            let bias: Vec<f32> = (0..columns).map(|i| i as f32 * 0.02 - 1.0).collect();
            for isa in Isa::available() {
                let mut soft = from.to_vec();
                softmax(isa, &pool, columns, false, &mut soft);
                let mut normal = vec![f32::NAN; from.len()];
                let parameters = NormParameters {
                    scale: with.0.then_some(&scale[..]), bias: with.1.then_some(&bias[..]), epsilon: 1e-5,
                };
                layer_norm(isa, &pool, columns, from, parameters, &mut normal);
                for (index, row) in from.chunks_exact(columns).enumerate() {
                    let wide: Vec<f64> = row.iter().map(|&x| x.into()).collect();
                    let sum: f64 = wide.iter().map(|x| x.exp()).sum();
                    let mean = wide.iter().sum::<f64>() / columns as f64;
                    let variance = wide.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / columns as f64;
                    for (i, x) in wide.iter().enumerate() {
                        let at = index * columns + i;
                        prop_assert!((f64::from(soft[at]) - x.exp() / sum).abs() < 2e-6);
                        let want = (x - mean) / (variance + 1e-5).sqrt()
                            * if with.0 { f64::from(scale[i]) } else { 1.0 }
                            + if with.1 { f64::from(bias[i]) } else { 0.0 };
                        prop_assert!((f64::from(normal[at]) - want).abs() < 1e-3, "{} not {want}", normal[at]);
                    }
                }
            }
        }
    }
}
