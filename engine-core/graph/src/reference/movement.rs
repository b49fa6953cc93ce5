//! Operators that only move elements, whatever their type.

use super::{
    OpError,
    walk::{around, broadcast_strides, strides, walk},
};
use crate::{
    ir::{PadMode, Tensor, TensorError},
    shape::TensorType,
};
use bytes::Bytes;

/// Collects output elements, given by their offset in the input, whatever their size.
pub struct Mover<'a> {
    from: &'a [u8],
    size: usize,
    moved: Vec<u8>,
}

impl<'a> Mover<'a> {
    pub fn new(x: &'a Tensor, out: &TensorType) -> Self {
        let size = x.element().bytes();
        let count: usize = out.shape.iter().product();
        Self { from: x.bytes(), size, moved: Vec::with_capacity(count * size) }
    }

    /// Appends `count` neighbouring elements from `offset` on.
    pub fn take(&mut self, offset: usize, count: usize) {
        self.moved.extend_from_slice(&self.from[offset * self.size..][..count * self.size]);
    }

    /// Appends the bytes of one element that is not in the input.
    pub fn put(&mut self, element: &[u8]) {
        self.moved.extend_from_slice(element);
    }

    /// # Errors
    ///
    /// When the elements do not fill the output.
    pub fn finish(self, out: &TensorType) -> Result<Tensor, TensorError> {
        Tensor::new(out.element, out.shape.clone(), Bytes::from(self.moved))
    }
}

/// Reads `x` with the given strides from `base` on, in the order of the output.
fn read_strided(x: &Tensor, base: isize, strides: &[isize], out: &TensorType) -> Result<Tensor, OpError> {
    let mut mover = Mover::new(x, out);
    walk(&out.shape, [strides], |[offset]| mover.take((base + offset) as usize, 1));
    Ok(mover.finish(out)?)
}

/// Output axis `i` is input axis `perm[i]`.
///
/// # Errors
///
/// When the elements do not fill the output.
pub fn transpose(x: &Tensor, perm: &[usize], out: &TensorType) -> Result<Tensor, OpError> {
    let own = strides(x.shape());
    let permuted: Vec<isize> = perm.iter().map(|&axis| own[axis]).collect();
    read_strided(x, 0, &permuted, out)
}

/// `x` of a shape that broadcasts to the output's.
///
/// # Errors
///
/// When the elements do not fill the output.
pub fn expand(x: &Tensor, out: &TensorType) -> Result<Tensor, OpError> {
    read_strided(x, 0, &broadcast_strides(x.shape(), &out.shape), out)
}

pub fn slice(x: &Tensor, starts: &[usize], steps: &[i64], out: &TensorType) -> Result<Tensor, OpError> {
    let own = strides(x.shape());
    // Where nothing is taken, starts mean nothing; where one is, steps mean nothing. Either may be of any size.
    let base = match out.shape.contains(&0) {
        true => 0,
        false => own.iter().zip(starts).map(|(stride, &start)| stride * start as isize).sum(),
    };
    let taken = own.iter().zip(steps).zip(&out.shape);
    let stepped: Vec<isize> =
        taken.map(|((stride, &step), &size)| if size > 1 { stride * step as isize } else { 0 }).collect();
    read_strided(x, base, &stepped, out)
}

/// `condition`, `a` and `b` of shapes that broadcast together to the output's.
///
/// # Errors
///
/// When the condition is no tensor of bools.
pub fn select(condition: &Tensor, a: &Tensor, b: &Tensor, out: &TensorType) -> Result<Tensor, OpError> {
    let size = out.element.bytes();
    let chosen = condition.bools()?;
    let mut moved = Vec::with_capacity(out.shape.iter().product::<usize>() * size);
    let to = &out.shape;
    let [c, i, j] = [condition, a, b].map(|tensor| broadcast_strides(tensor.shape(), to));
    walk(to, [&c, &i, &j], |[c, i, j]| {
        let (from, offset) = if chosen[c as usize] != 0 { (a, i) } else { (b, j) };
        moved.extend_from_slice(&from.bytes()[offset as usize * size..][..size]);
    });
    Ok(Tensor::new(out.element, to.clone(), Bytes::from(moved))?)
}

/// Parts that differ along `axis` alone, one after another.
///
/// # Errors
///
/// When the elements do not fill the output.
pub fn concat(parts: &[&Tensor], axis: usize, out: &TensorType) -> Result<Tensor, OpError> {
    let size = out.element.bytes();
    let outer: usize = out.shape[..axis].iter().product();
    let mut moved = Vec::with_capacity(out.shape.iter().product::<usize>() * size);
    for index in 0..outer {
        for part in parts {
            let run = part.shape()[axis..].iter().product::<usize>() * size;
            moved.extend_from_slice(&part.bytes()[index * run..][..run]);
        }
    }
    Ok(Tensor::new(out.element, out.shape.clone(), Bytes::from(moved))?)
}

/// `x` cut along `axis` into outputs of the sizes they declare.
///
/// # Errors
///
/// When the elements do not fill the outputs.
pub fn split(x: &Tensor, axis: usize, outputs: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
    let (outer, size, inner) = around(x.shape(), axis);
    let mut begin = 0;
    let mut parts = Vec::with_capacity(outputs.len());
    for out in outputs {
        let length = out.shape[axis];
        let mut mover = Mover::new(x, out);
        for index in 0..outer {
            mover.take((index * size + begin) * inner, length * inner);
        }
        parts.push(mover.finish(out)?);
        begin += length;
    }
    Ok(parts)
}

/// Where along an axis of `size` an element of a padded one comes from, `at` counted from the axis' first; `None` for
/// what is filled in.
pub fn padded_position(mode: PadMode, at: i64, size: i64) -> Option<i64> {
    if (0..size).contains(&at) {
        return Some(at);
    }
    match mode {
        PadMode::Constant => None,
        PadMode::Edge => Some(at.clamp(0, size - 1)),
        PadMode::Wrap => Some(at.rem_euclid(size)),
        PadMode::Reflect if size == 1 => Some(0),
        PadMode::Reflect => {
            // The axis mirrors at its first and last element: period 2 (size - 1).
            let at = at.rem_euclid(2 * (size - 1));
            Some(if at < size { at } else { 2 * (size - 1) - at })
        }
    }
}

/// `x [size..]` with `begins` and as much behind as the output has; `value` is a scalar.
///
/// # Errors
///
/// When the value cannot be read, or the elements do not fill the output.
pub fn pad(
    x: &Tensor,
    fill: Option<&Tensor>,
    mode: PadMode,
    begins: &[i64],
    out: &TensorType,
) -> Result<Tensor, OpError> {
    let zeros = [0u8; 8];
    let fill: &[u8] = fill.map_or(&zeros[..x.element().bytes()], |fill| fill.bytes());
    let positions: Vec<Vec<Option<i64>>> = (0..x.rank())
        .map(|axis| {
            (0..out.shape[axis] as i64)
                .map(|at| padded_position(mode, at - begins[axis], x.shape()[axis] as i64))
                .collect()
        })
        .collect();
    let mut mover = Mover::new(x, out);
    let own = strides(x.shape());
    let mut index = vec![0usize; x.rank()];
    for _ in 0..out.shape.iter().product() {
        let offset: Option<i64> =
            (0..x.rank()).map(|axis| positions[axis][index[axis]].map(|at| at * own[axis] as i64)).sum();
        match offset {
            Some(offset) => mover.take(offset as usize, 1),
            None => mover.put(fill),
        }
        for axis in (0..x.rank()).rev() {
            index[axis] += 1;
            if index[axis] < out.shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    Ok(mover.finish(out)?)
}

/// `x` repeated along each axis as often as the output's size is a multiple of its own.
///
/// # Errors
///
/// When the elements do not fill the output.
pub fn tile(x: &Tensor, out: &TensorType) -> Result<Tensor, OpError> {
    // Tiling is an expand of (1, size) pairs seen as one axis of repeats x size.
    let own = strides(x.shape());
    let (mut shape, mut read) = (Vec::new(), Vec::new());
    for ((&size, &out), &stride) in x.shape().iter().zip(&out.shape).zip(&own) {
        shape.extend([out / size, size]);
        read.extend([0, stride]);
    }
    let tiled = read_strided(x, 0, &read, &TensorType { element: out.element, shape })?;
    Ok(tiled.reshaped(out.shape.clone())?)
}

/// Regroups `x`, seen in the shape `seen`, by a permutation of its axes.
fn regroup(x: &Tensor, seen: Vec<usize>, perm: [usize; 6], out: &TensorType) -> Result<Tensor, OpError> {
    let permuted = TensorType { element: out.element, shape: perm.iter().map(|&axis| seen[axis]).collect() };
    let x = x.reshaped(seen)?;
    Ok(transpose(&x, &perm, &permuted)?.reshaped(out.shape.clone())?)
}

/// `[n, c·block², h, w]` to `[n, c, h·block, w·block]`.
///
/// # Errors
///
/// When the elements do not fill the output.
pub fn depth_to_space(x: &Tensor, block: usize, column_row: bool, out: &TensorType) -> Result<Tensor, OpError> {
    let [n, c, h, w] = x.shape()[..] else { return Err(rank_error(x)) };
    let depth = c / (block * block);
    match column_row {
        false => regroup(x, vec![n, block, block, depth, h, w], [0, 3, 4, 1, 5, 2], out),
        true => regroup(x, vec![n, depth, block, block, h, w], [0, 1, 4, 2, 5, 3], out),
    }
}

/// `[n, c, h·block, w·block]` to `[n, c·block², h, w]`.
///
/// # Errors
///
/// When the elements do not fill the output.
pub fn space_to_depth(x: &Tensor, block: usize, out: &TensorType) -> Result<Tensor, OpError> {
    let [n, c, h, w] = x.shape()[..] else { return Err(rank_error(x)) };
    regroup(x, vec![n, c, h / block, block, w / block, block], [0, 3, 5, 1, 2, 4], out)
}

fn rank_error(x: &Tensor) -> OpError {
    OpError::Tensor(TensorError::Overflow(x.shape().to_vec()))
}

/// Matrices `[.., m, n]`; what is below (above) diagonal `k` becomes zero.
///
/// # Errors
///
/// When the elements do not fill the output.
pub fn trilu(x: &Tensor, upper: bool, k: i64, out: &TensorType) -> Result<Tensor, OpError> {
    let [.., rows, columns] = x.shape()[..] else { return Err(rank_error(x)) };
    let zeros = [0u8; 8];
    let zero = &zeros[..x.element().bytes()];
    let mut mover = Mover::new(x, out);
    for offset in 0..x.len() {
        let (row, column) = ((offset / columns % rows) as i64, (offset % columns) as i64);
        let kept = if upper { column - row >= k } else { column - row <= k };
        match kept {
            true => mover.take(offset, 1),
            false => mover.put(zero),
        }
    }
    Ok(mover.finish(out)?)
}
