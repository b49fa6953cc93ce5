//! Matrix products and convolutions: sums of products, accumulated in f64.

use super::{
    Inputs, OpError,
    elementwise::{activate_all, optional_floats},
    numbers::{Numbers, floats},
    walk::{broadcast_strides, walk},
};
use crate::{
    ir::{Conv, ConvTranspose, MatMul, Tensor},
    shape::{TensorType, is_float},
};
use rayon::prelude::*;

/// Rows of the left matrix that share one pass over the right one.
const ROWS_TOGETHER: usize = 8;

/// Swaps the last two axes of stacked matrices.
fn swap_last<T: Copy>(values: &[T], rows: usize, columns: usize) -> Vec<T> {
    let mut result = Vec::with_capacity(values.len());
    for matrix in values.chunks(rows * columns) {
        for column in 0..columns {
            result.extend((0..rows).map(|row| matrix[row * columns + column]));
        }
    }
    result
}

/// A matrix operand: leading axes, rows, columns.
struct Operand {
    lead: Vec<usize>,
    rows: usize,
    columns: usize,
}

impl Operand {
    fn of(shape: &[usize], swapped: bool) -> Self {
        let [lead @ .., rows, columns] = shape else { unreachable!("rank 1 is raised to 2 before") };
        let (rows, columns) = if swapped { (*columns, *rows) } else { (*rows, *columns) };
        Self { lead: lead.to_vec(), rows, columns }
    }
}

/// Matrices `[.., m, k]` and `[.., k, n]`, stacked axes by broadcasting, or vectors `[k]`; gives `[.., m, n]`. Bias
/// `[n]`, residual as the result.
///
/// # Errors
///
/// When an input is missing, or the types have no product.
pub fn matmul(product: &MatMul, inputs: &Inputs<'_>, out: &TensorType) -> Result<Tensor, OpError> {
    let (a, b) = (inputs.get(0)?, inputs.get(1)?);
    // numpy: a vector on the left is a row, on the right a column; the axis added is not in the output.
    let a_shape = if a.rank() == 1 { vec![1, a.len()] } else { a.shape().to_vec() };
    let b_shape = if b.rank() == 1 { vec![b.len(), 1] } else { b.shape().to_vec() };
    let left = Operand::of(&a_shape, product.trans_a && a.rank() > 1);
    let right = Operand::of(&b_shape, product.trans_b && b.rank() > 1);
    let mut lead = out.shape.clone();
    for axis_added in [a.rank() == 1, b.rank() == 1] {
        if !axis_added {
            lead.pop();
        }
    }
    let (m, k, n) = (left.rows, left.columns, right.columns);
    // Which matrices meet: offsets of a and b for every index of the leading axes.
    let mut meetings = Vec::new();
    walk(&lead, [&broadcast_strides(&left.lead, &lead), &broadcast_strides(&right.lead, &lead)], |[i, j]| {
        meetings.push((i as usize * m * k, j as usize * k * n));
    });
    if !is_float(out.element) {
        return integer_matmul(product, inputs, &left, &right, &meetings, out);
    }
    let mut x = floats("matmul", a)?;
    let mut y: Vec<f64> = floats("matmul", b)?;
    if product.trans_a && a.rank() > 1 && k > 0 {
        x = swap_last(&x, left.columns, left.rows);
    }
    if product.trans_b && b.rank() > 1 && k > 0 {
        y = swap_last(&y, right.columns, right.rows);
    }
    let mut result = vec![0f64; meetings.len() * m * n];
    // A sum of no products is zero.
    let rows: Vec<_> = result.chunks_mut((m * n).max(1)).zip(&meetings).filter(|_| k > 0).collect();
    rows.into_par_iter().for_each(|(result, &(i, j))| {
        let (x, y) = (&x[i..i + m * k], &y[j..j + k * n]);
        result.par_chunks_mut(ROWS_TOGETHER * n).zip(x.par_chunks(ROWS_TOGETHER * k)).for_each(|(result, x)| {
            for index in 0..k {
                let y = &y[index * n..][..n];
                for (sums, x) in result.chunks_mut(n).zip(x.chunks(k)) {
                    let x = x[index];
                    for (sum, &y) in sums.iter_mut().zip(y) {
                        *sum += x * y;
                    }
                }
            }
        });
    });
    finish(result, f64::from(product.alpha), n, inputs, product.epilogue.activation.as_ref(), out)
}

/// Scales, adds bias (along the last axis) and residual, activates and rounds.
fn finish(
    mut result: Vec<f64>,
    alpha: f64,
    n: usize,
    inputs: &Inputs<'_>,
    activation: Option<&crate::ir::Activation>,
    out: &TensorType,
) -> Result<Tensor, OpError> {
    if alpha != 1.0 {
        result.iter_mut().for_each(|value| *value *= alpha);
    }
    if let Some(bias) = optional_floats("matmul", inputs.optional(2))? {
        for row in result.chunks_mut(n) {
            row.iter_mut().zip(&bias).for_each(|(value, bias)| *value += bias);
        }
    }
    if let Some(residual) = optional_floats("matmul", inputs.optional(3))? {
        result.iter_mut().zip(&residual).for_each(|(value, residual)| *value += residual);
    }
    activate_all(activation, &mut result);
    Numbers::Float(result).into_tensor(out)
}

/// Integer products are exact and wrap; ONNX gives them neither scale nor epilogue but Gemm's added C.
fn integer_matmul(
    product: &MatMul,
    inputs: &Inputs<'_>,
    left: &Operand,
    right: &Operand,
    meetings: &[(usize, usize)],
    out: &TensorType,
) -> Result<Tensor, OpError> {
    let wrong = || OpError::Element { op: "matmul", element: out.element };
    let ints = |tensor: &Tensor| match Numbers::of(tensor) {
        Numbers::Int(values) => Ok(values),
        Numbers::Float(_) => Err(wrong()),
    };
    if product.alpha != 1.0 || product.epilogue.activation.is_some() {
        return Err(wrong());
    }
    let (a, b) = (inputs.get(0)?, inputs.get(1)?);
    let (mut x, mut y) = (ints(a)?, ints(b)?);
    if product.trans_a && a.rank() > 1 && left.columns > 0 {
        x = swap_last(&x, left.columns, left.rows);
    }
    if product.trans_b && b.rank() > 1 && right.rows > 0 {
        y = swap_last(&y, right.columns, right.rows);
    }
    let (m, k, n) = (left.rows, left.columns, right.columns);
    let bias = inputs.optional(2).map(ints).transpose()?;
    let residual = inputs.optional(3).map(ints).transpose()?;
    let mut result = Vec::with_capacity(meetings.len() * m * n);
    for &(i, j) in meetings {
        for row in 0..m {
            for column in 0..n {
                let sum = (0..k)
                    .fold(0i128, |sum, k_| sum.wrapping_add(x[i + row * k + k_].wrapping_mul(y[j + k_ * n + column])));
                let bias = bias.as_ref().map_or(0, |bias| bias[column]);
                let residual = residual.as_ref().map_or(0, |residual| residual[result.len()]);
                result.push(sum.wrapping_add(bias).wrapping_add(residual));
            }
        }
    }
    Numbers::Int(result).into_tensor(out)
}

/// Where one output axis reads one kernel position: output indices `first..end` read inputs from `start` on.
struct Reach {
    first: usize,
    end: usize,
    start: usize,
}

/// Output positions along an axis for which `position * stride + tap * dilation - pad` lies in the input.
fn reach(out: usize, input: usize, stride: usize, offset: isize) -> Reach {
    let first = if offset >= 0 { 0 } else { (-offset as usize).div_ceil(stride) };
    let room = input as isize - offset; // positions below room / stride are inside
    let end = if room <= 0 { 0 } else { (room as usize).div_ceil(stride).min(out) };
    let first = first.min(end);
    Reach { first, end, start: (first * stride).wrapping_add_signed(offset) }
}

/// Images `[n, c, spatial..]` and filters `[k, c / groups, spatial..]`, bias `[k]`, residual as the result; gives
/// `[n, k, spatial..]`.
///
/// # Errors
///
/// When an input is missing or no float.
pub fn conv(conv: &Conv, inputs: &Inputs<'_>, out: &TensorType) -> Result<Tensor, OpError> {
    let (x, w) = (inputs.get(0)?, inputs.get(1)?);
    let (x_shape, w_shape) = (x.shape(), w.shape());
    let (channels, filters) = (x_shape[1], w_shape[0]);
    let (spatial, kernel, out_spatial) = (&x_shape[2..], &w_shape[2..], &out.shape[2..]);
    let (per_group, filters_per_group) = (w_shape[1], filters / conv.groups);
    let x_plane: usize = spatial.iter().product();
    let out_plane: usize = out_spatial.iter().product();
    let taps: usize = kernel.iter().product();
    let x = floats("conv", x)?;
    let w = floats("conv", w)?;
    let bias = optional_floats("conv", inputs.optional(2))?;
    let residual = optional_floats("conv", inputs.optional(3))?;
    let mut result = vec![0f64; out.shape.iter().product()];
    result.par_chunks_mut(out_plane.max(1)).enumerate().for_each(|(plane, sums)| {
        let (image, filter) = (plane / filters, plane % filters);
        let group = filter / filters_per_group;
        for channel in 0..per_group {
            let x = &x[(image * channels + group * per_group + channel) * x_plane..][..x_plane];
            let w = &w[(filter * per_group + channel) * taps..][..taps];
            correlate(conv, x, spatial, w, kernel, sums, out_spatial);
        }
        if let Some(bias) = &bias {
            sums.iter_mut().for_each(|sum| *sum += bias[filter]);
        }
        if let Some(residual) = &residual {
            sums.iter_mut().zip(&residual[plane * out_plane..]).for_each(|(sum, residual)| *sum += residual);
        }
        activate_all(conv.epilogue.activation.as_ref(), sums);
    });
    Numbers::Float(result).into_tensor(out)
}

/// Adds the correlation of one input plane with one kernel plane to one output plane.
fn correlate(conv: &Conv, x: &[f64], spatial: &[usize], w: &[f64], kernel: &[usize], sums: &mut [f64], out: &[usize]) {
    let rank = spatial.len();
    let mut tap = vec![0usize; rank];
    for &w in w {
        let reaches: Vec<Reach> = (0..rank)
            .map(|axis| {
                let offset = (tap[axis] * conv.dilations[axis]) as isize - conv.pads[axis] as isize;
                reach(out[axis], spatial[axis], conv.strides[axis], offset)
            })
            .collect();
        add_rows(conv, &reaches, x, spatial, w, sums, out);
        // The next tap, last axis fastest.
        for axis in (0..rank).rev() {
            tap[axis] += 1;
            if tap[axis] < kernel[axis] {
                break;
            }
            tap[axis] = 0;
        }
    }
}

/// Adds `w` times the reached part of the input, axis by axis.
fn add_rows(conv: &Conv, reaches: &[Reach], x: &[f64], spatial: &[usize], w: f64, sums: &mut [f64], out: &[usize]) {
    let axis = conv.strides.len() - spatial.len();
    let Reach { first, end, start } = reaches[0];
    let stride = conv.strides[axis];
    if spatial.len() == 1 {
        let sums = &mut sums[first..end];
        if sums.is_empty() {
            return;
        }
        match stride {
            1 => sums.iter_mut().zip(&x[start..]).for_each(|(sum, &x)| *sum += w * x),
            _ => sums.iter_mut().zip(x[start..].iter().step_by(stride)).for_each(|(sum, &x)| *sum += w * x),
        }
        return;
    }
    let (x_inner, out_inner) = (spatial[1..].iter().product::<usize>(), out[1..].iter().product::<usize>());
    for (step, position) in (first..end).enumerate() {
        let x = &x[(start + step * stride) * x_inner..][..x_inner];
        let sums = &mut sums[position * out_inner..][..out_inner];
        add_rows(conv, &reaches[1..], x, &spatial[1..], w, sums, &out[1..]);
    }
}

/// Images `[n, c, spatial..]` and filters `[c, k / groups, spatial..]`, bias `[k]`; gives `[n, k, spatial..]`.
///
/// # Errors
///
/// When an input is missing or no float.
pub fn conv_transpose(conv: &ConvTranspose, inputs: &Inputs<'_>, out: &TensorType) -> Result<Tensor, OpError> {
    let (x, w) = (inputs.get(0)?, inputs.get(1)?);
    let (x_shape, w_shape) = (x.shape().to_vec(), w.shape().to_vec());
    let (batch, channels, per_group) = (x_shape[0], x_shape[1], w_shape[1]);
    let filters = per_group * conv.groups;
    let channels_per_group = channels / conv.groups;
    let (spatial, kernel, out_spatial) = (&x_shape[2..], &w_shape[2..], &out.shape[2..]);
    let x_plane: usize = spatial.iter().product();
    let taps: usize = kernel.iter().product();
    let out_plane: usize = out_spatial.iter().product();
    let x = floats("conv_transpose", x)?;
    let w = floats("conv_transpose", w)?;
    let bias = optional_floats("conv_transpose", inputs.optional(2))?;
    let mut result = vec![0f64; batch * filters * out_plane];
    // Every input element is spread over the outputs its kernel covers.
    let (positions, tap_positions) = (indices(spatial), indices(kernel));
    for image in 0..batch {
        for channel in 0..channels {
            let group = channel / channels_per_group;
            let x = &x[(image * channels + channel) * x_plane..][..x_plane];
            for filter in 0..per_group {
                let w = &w[(channel * per_group + filter) * taps..][..taps];
                let plane = image * filters + group * per_group + filter;
                let sums = &mut result[plane * out_plane..][..out_plane];
                for (position, x) in positions.iter().zip(x) {
                    for (tap, w) in tap_positions.iter().zip(w) {
                        if let Some(target) = spread(conv, position, tap, out_spatial) {
                            sums[target] += x * w;
                        }
                    }
                }
            }
        }
    }
    if let Some(bias) = bias {
        for (plane, sums) in result.chunks_mut(out_plane).enumerate() {
            sums.iter_mut().for_each(|sum| *sum += bias[plane % filters]);
        }
    }
    Numbers::Float(result).into_tensor(out)
}

/// The output element that a kernel position reaches from an input position, when it is not cut off.
fn spread(conv: &ConvTranspose, position: &[usize], tap: &[usize], out: &[usize]) -> Option<usize> {
    let mut target = 0;
    for axis in 0..out.len() {
        let at = (position[axis] * conv.strides[axis] + tap[axis] * conv.dilations[axis])
            .checked_sub(conv.pads[axis])
            .filter(|&at| at < out[axis])?;
        target = target * out[axis] + at;
    }
    Some(target)
}

/// Every index of a shape in row-major order.
fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for &size in shape {
        all = all
            .into_iter()
            .flat_map(|index: Vec<usize>| (0..size).map(move |at| [index.as_slice(), &[at]].concat()))
            .collect();
    }
    all
}
