//! Operators that pick elements by index.

use super::{
    OpError,
    movement::Mover,
    walk::{around, strides, walk},
};
use crate::{
    ir::{Tensor, TensorError},
    shape::TensorType,
};
use bytes::Bytes;

/// Indices counted from the end when negative, checked against the axis.
pub(crate) fn resolve(op: &'static str, index: i64, size: usize) -> Result<usize, OpError> {
    let resolved = if index < 0 { index.checked_add(size as i64) } else { Some(index) };
    resolved.and_then(|index| usize::try_from(index).ok()).filter(|&index| index < size).ok_or(OpError::Index {
        op,
        index,
        size,
    })
}

pub(crate) fn integers(op: &'static str, tensor: &Tensor) -> Result<Vec<i64>, OpError> {
    tensor.to_i64s().ok_or(OpError::Element { op, element: tensor.element() })
}

/// `x [a.., size, b..]` and `indices [i..]`; gives `[a.., i.., b..]`.
///
/// # Errors
///
/// When an index is outside of the axis, or the indices are no integers.
pub fn gather(x: &Tensor, indices: &Tensor, axis: usize, out: &TensorType) -> Result<Tensor, OpError> {
    let (outer, size, inner) = around(x.shape(), axis);
    let indices: Vec<usize> = integers("gather", indices)?
        .into_iter()
        .map(|index| resolve("gather", index, size))
        .collect::<Result<_, _>>()?;
    let mut mover = Mover::new(x, out);
    for outer in 0..outer {
        for index in &indices {
            mover.take((outer * size + index) * inner, inner);
        }
    }
    Ok(mover.finish(out)?)
}

/// `x` and `indices` of the same rank; gives the shape of `indices`.
///
/// # Errors
///
/// When an index is outside of the axis, or the indices are no integers.
pub fn gather_elements(x: &Tensor, indices: &Tensor, axis: usize, out: &TensorType) -> Result<Tensor, OpError> {
    let indices = integers("gather_elements", indices)?;
    let own = strides(x.shape());
    let mut along = own.clone();
    along[axis] = 0;
    let mut offsets = Vec::with_capacity(indices.len());
    walk(&out.shape, [&along], |[offset]| offsets.push(offset as usize));
    let mut mover = Mover::new(x, out);
    for (offset, index) in offsets.into_iter().zip(indices) {
        let index = resolve("gather_elements", index, x.shape()[axis])?;
        mover.take(offset + index * own[axis] as usize, 1);
    }
    Ok(mover.finish(out)?)
}

/// `x [batch.., a.., b..]` and `indices [batch.., i.., axes of a]`; gives `[batch.., i.., b..]`.
///
/// # Errors
///
/// When an index is outside of its axis, or the indices are no integers.
pub fn gather_nd(x: &Tensor, indices: &Tensor, batch_dims: usize, out: &TensorType) -> Result<Tensor, OpError> {
    let Some(&depth) = indices.shape().last() else {
        return Err(OpError::Tensor(TensorError::Overflow(indices.shape().to_vec())));
    };
    let own = strides(x.shape());
    let inner: usize = x.shape()[batch_dims + depth..].iter().product();
    let batches: usize = x.shape()[..batch_dims].iter().product();
    let batch_size = x.len() / batches.max(1);
    let indices = integers("gather_nd", indices)?;
    let per_batch = indices.len() / batches.max(1);
    let mut mover = Mover::new(x, out);
    for batch in 0..batches {
        for index in indices[batch * per_batch..][..per_batch].chunks(depth.max(1)) {
            let mut offset = batch * batch_size;
            for (place, &index) in index.iter().enumerate() {
                let axis = batch_dims + place;
                offset += resolve("gather_nd", index, x.shape()[axis])? * own[axis] as usize;
            }
            mover.take(offset, inner);
        }
    }
    Ok(mover.finish(out)?)
}

/// `indices [i..]` and `values [2]` (off, on); gives `i` with an axis of the depth at `axis`.
///
/// # Errors
///
/// When the indices are no integers.
pub fn one_hot(indices: &Tensor, values: &Tensor, axis: usize, out: &TensorType) -> Result<Tensor, OpError> {
    let depth = out.shape[axis];
    // Indices may be floats that hold integers.
    let indices = indices.to_f64s();
    let size = values.element().bytes();
    let (off, on) = values.bytes().split_at(size);
    let inner: usize = out.shape[axis + 1..].iter().product();
    let outer: usize = out.shape[..axis].iter().product();
    let mut moved = Vec::with_capacity(outer * depth * inner * size);
    for outer in 0..outer {
        for at in 0..depth {
            for inner_at in 0..inner {
                let index = indices[outer * inner + inner_at];
                let index = if index < 0.0 { index + depth as f64 } else { index };
                moved.extend_from_slice(if index == at as f64 { on } else { off });
            }
        }
    }
    Ok(Tensor::new(out.element, out.shape.clone(), Bytes::from(moved))?)
}
