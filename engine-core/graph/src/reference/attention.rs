//! Scaled dot-product attention, head by head.

use super::{
    Inputs, OpError,
    elementwise::{max_nan, optional_floats},
    numbers::{Numbers, floats},
    walk::broadcast_strides,
};
use crate::{
    ir::{Attention, Tensor},
    shape::TensorType,
};
use rayon::prelude::*;

/// `softmax(scale q·kᵀ + mask)·v`: queries `[n, l, heads·d]`, keys `[n, s, heads·d]`, values `[n, s, heads·e]`, mask
/// `[n, heads, l, s]` by broadcasting; gives `[n, l, heads·e]`.
///
/// # Errors
///
/// When an input is missing or no float, or the result cannot hold what comes out.
pub fn attention(attention: &Attention, inputs: &Inputs<'_>, out: &TensorType) -> Result<Tensor, OpError> {
    let (q, k, v) = (inputs.get(0)?, inputs.get(1)?, inputs.get(2)?);
    let (batch, queries, width) = (q.shape()[0], q.shape()[1], q.shape()[2]);
    let (keys, v_width) = (k.shape()[1], v.shape()[2]);
    let heads = attention.heads;
    let (depth, v_depth) = (width / heads, v_width / heads);
    let mask_strides = inputs.optional(3).map(|mask| broadcast_strides(mask.shape(), &[batch, heads, queries, keys]));
    let mask = optional_floats("attention", inputs.optional(3))?;
    let (q, k, v) = (floats("attention", q)?, floats("attention", k)?, floats("attention", v)?);
    let mut result = vec![0f64; batch * queries * v_width];
    result.par_chunks_mut(v_width.max(1)).enumerate().for_each(|(row, result)| {
        let (image, query) = (row / queries, row % queries);
        for head in 0..heads {
            let q = &q[row * width + head * depth..][..depth];
            let score = |key: usize| {
                let k = &k[(image * keys + key) * width + head * depth..][..depth];
                let dot: f64 = q.iter().zip(k).map(|(q, k)| q * k).sum();
                let added = mask.as_ref().zip(mask_strides.as_ref()).map_or(0.0, |(mask, strides)| {
                    let index = [image, head, query, key];
                    mask[index.iter().zip(strides).map(|(&at, &stride)| at * stride as usize).sum::<usize>()]
                });
                f64::from(attention.scale) * dot + added
            };
            let mut weights: Vec<f64> = (0..keys).map(score).collect();
            let largest = weights.iter().copied().fold(f64::NEG_INFINITY, max_nan);
            weights.iter_mut().for_each(|weight| *weight = (*weight - largest).exp());
            let sum: f64 = weights.iter().sum();
            if attention.guarded && !sum.is_finite() {
                continue;
            }
            let result = &mut result[head * v_depth..][..v_depth];
            for (key, weight) in weights.iter().enumerate() {
                let v = &v[(image * keys + key) * v_width + head * v_depth..][..v_depth];
                result.iter_mut().zip(v).for_each(|(result, v)| *result += weight / sum * v);
            }
        }
    });
    Numbers::Float(result).into_tensor(out)
}
