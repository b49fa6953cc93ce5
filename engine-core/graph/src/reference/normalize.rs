//! Normalisations and softmax; statistics in f64.

use super::{
    Inputs, OpError,
    elementwise::{max_nan, optional_floats},
    numbers::{Numbers, floats},
    walk::{around, broadcast_strides, walk},
};
use crate::{ir::Tensor, shape::TensorType};

/// `[x (n, c, ..), scale (c), bias (c), mean (c), variance (c)]`; gives the shape of `x`.
///
/// # Errors
///
/// When an input is missing or no float.
pub fn batch_norm(inputs: &Inputs<'_>, epsilon: f32, out: &TensorType) -> Result<Tensor, OpError> {
    let x = inputs.get(0)?;
    let channels = if x.rank() > 1 { x.shape()[1] } else { 1 };
    let inner: usize = x.shape().iter().skip(2).product();
    let mut values = floats("batch_norm", x)?;
    let parameter = |position| floats("batch_norm", inputs.get(position)?);
    let (scale, bias, mean, variance) = (parameter(1)?, parameter(2)?, parameter(3)?, parameter(4)?);
    for (plane, values) in values.chunks_mut(inner.max(1)).enumerate() {
        let channel = plane % channels;
        let factor = scale[channel] / (variance[channel] + f64::from(epsilon)).sqrt();
        values.iter_mut().for_each(|value| *value = (*value - mean[channel]) * factor + bias[channel]);
    }
    Numbers::Float(values).into_tensor(out)
}

/// Brings each chunk to mean 0 and variance 1.
fn standardize(values: &mut [f64], chunk: usize, epsilon: f32) {
    for values in values.chunks_mut(chunk.max(1)) {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        let factor = 1.0 / (variance + f64::from(epsilon)).sqrt();
        values.iter_mut().for_each(|value| *value = (*value - mean) * factor);
    }
}

/// `[x, scale?, bias?]` over the axes from `axis` on; gives the shape of `x`.
///
/// # Errors
///
/// When an input is missing or no float.
pub fn layer_norm(inputs: &Inputs<'_>, axis: usize, epsilon: f32, out: &TensorType) -> Result<Tensor, OpError> {
    let x = inputs.get(0)?;
    let mut values = floats("layer_norm", x)?;
    standardize(&mut values, x.shape()[axis..].iter().product(), epsilon);
    let strides_of =
        |position: usize| inputs.optional(position).map(|tensor| broadcast_strides(tensor.shape(), x.shape()));
    let scale = optional_floats("layer_norm", inputs.optional(1))?;
    let bias = optional_floats("layer_norm", inputs.optional(2))?;
    let still = vec![0; x.rank()];
    let (scale_strides, bias_strides) =
        (strides_of(1).unwrap_or_else(|| still.clone()), strides_of(2).unwrap_or_else(|| still.clone()));
    let mut values_left = values.iter_mut();
    walk(x.shape(), [&scale_strides, &bias_strides], |[i, j]| {
        if let Some(value) = values_left.next() {
            *value = *value * scale.as_ref().map_or(1.0, |scale| scale[i as usize])
                + bias.as_ref().map_or(0.0, |bias| bias[j as usize]);
        }
    });
    Numbers::Float(values).into_tensor(out)
}

/// `groups` of `None`: every channel by itself.
///
/// `[x (n, c, ..), scale (c), bias (c)]`; gives the shape of `x`.
///
/// # Errors
///
/// When an input is missing or no float.
pub fn group_norm(
    inputs: &Inputs<'_>,
    groups: Option<usize>,
    epsilon: f32,
    out: &TensorType,
) -> Result<Tensor, OpError> {
    let x = inputs.get(0)?;
    let channels = x.shape()[1];
    let inner: usize = x.shape()[2..].iter().product();
    let mut values = floats("group_norm", x)?;
    standardize(&mut values, channels / groups.unwrap_or(channels) * inner, epsilon);
    let (scale, bias) = (floats("group_norm", inputs.get(1)?)?, floats("group_norm", inputs.get(2)?)?);
    for (plane, values) in values.chunks_mut(inner.max(1)).enumerate() {
        let channel = plane % channels;
        values.iter_mut().for_each(|value| *value = *value * scale[channel] + bias[channel]);
    }
    Numbers::Float(values).into_tensor(out)
}

/// `x / (bias + alpha/size * sum of squares of neighbouring channels)^beta`.
///
/// # Errors
///
/// When it is no tensor of floats.
pub fn lrn(x: &Tensor, [alpha, beta, bias]: [f32; 3], size: usize, out: &TensorType) -> Result<Tensor, OpError> {
    let (outer, channels, inner) = around(x.shape(), 1);
    let values = floats("lrn", x)?;
    let mut result = Vec::with_capacity(values.len());
    for image in values.chunks(channels * inner).take(outer) {
        for channel in 0..channels {
            let first = channel.saturating_sub((size - 1) / 2);
            let last = (channel + size / 2).min(channels - 1);
            for at in 0..inner {
                let squares: f64 = (first..=last).map(|channel| image[channel * inner + at].powi(2)).sum();
                let base = f64::from(bias) + f64::from(alpha) / size as f64 * squares;
                result.push(image[channel * inner + at] / base.powf(beta.into()));
            }
        }
    }
    Numbers::Float(result).into_tensor(out)
}

/// Along `axis`; gives the shape of `x`.
///
/// # Errors
///
/// When it is no tensor of floats.
pub fn softmax(x: &Tensor, axis: usize, log: bool, out: &TensorType) -> Result<Tensor, OpError> {
    let (outer, size, inner) = around(x.shape(), axis);
    let mut values = floats("softmax", x)?;
    for outer in 0..outer {
        for at in 0..inner {
            let position = |index: usize| (outer * size + index) * inner + at;
            let largest = (0..size).map(|index| values[position(index)]).fold(f64::NEG_INFINITY, max_nan);
            let sum: f64 = (0..size).map(|index| (values[position(index)] - largest).exp()).sum();
            for index in 0..size {
                let shifted = values[position(index)] - largest;
                values[position(index)] = if log { shifted - sum.ln() } else { shifted.exp() / sum };
            }
        }
    }
    Numbers::Float(values).into_tensor(out)
}
