//! Moving elements: transposes, layout changes, and copies between strides.

use crate::pool::{ThreadPool, for_parts};

/// Most axes of a transpose after merging those that stay together.
pub const AXES_MAX: usize = 8;

/// A permutation of axes, prepared once.
#[derive(Clone, Debug)]
pub struct Transpose {
    /// Sizes of the output's axes and the input strides behind them; axes that stay together are one.
    axes: Vec<(usize, usize)>,
    len: usize,
}

impl Transpose {
    /// Output axis `i` is input axis `perm[i]`. `None` when `perm` is no permutation of the axes, sizes overflow, or
    /// more than [`AXES_MAX`] axes are left after merging.
    pub fn new(shape: &[usize], perm: &[usize]) -> Option<Self> {
        let mut seen = vec![false; shape.len()];
        for &axis in perm {
            if std::mem::replace(seen.get_mut(axis)?, true) {
                return None;
            }
        }
        if perm.len() != shape.len() {
            return None;
        }
        let len = shape.iter().try_fold(1usize, |len, &size| len.checked_mul(size))?;
        let mut strides = vec![1usize; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis].checked_mul(shape[axis])?;
        }
        let mut axes: Vec<(usize, usize)> = Vec::new();
        for &axis in perm.iter().filter(|&&axis| shape[axis] != 1) {
            let (size, stride) = (shape[axis], strides[axis]);
            match axes.last_mut() {
                // Where some other axis is of no size, the product of these may overflow.
                Some(last) if Some(last.1) == stride.checked_mul(size) => *last = (last.0.checked_mul(size)?, stride),
                _ => axes.push((size, stride)),
            }
        }
        if axes.is_empty() {
            axes.push((len, 1));
        }
        (axes.len() <= AXES_MAX).then_some(Self { axes, len })
    }

    /// Whether nothing moves.
    pub fn is_copy(&self) -> bool {
        self.axes.len() == 1 && self.axes[0].1 == 1
    }

    /// Copies `from` to `to` in the new order.
    ///
    /// # Panics
    /// When a length is not that of the shape.
    pub fn run(&self, pool: &ThreadPool, from: &[f32], to: &mut [f32]) {
        assert!(from.len() == self.len && to.len() == self.len);
        if self.len == 0 {
            return;
        }
        if self.is_copy() {
            return for_parts(pool, to, 65_536, |task, part| {
                part.copy_from_slice(&from[task * 65_536..task * 65_536 + part.len()]);
            });
        }
        // Lines of the innermost output axis; when it is strided and the next one is contiguous, in square blocks.
        let (inner, inner_stride) = self.axes[self.axes.len() - 1];
        let (rows, row_stride) = if self.axes.len() >= 2 { self.axes[self.axes.len() - 2] } else { (1, 0) };
        let outer = &self.axes[..self.axes.len().saturating_sub(2)];
        let plane = inner * rows;
        // Rows per task: whole planes, or parts of one when it is large.
        let rows_per_task = (16_384 / inner.max(1)).clamp(1, rows).next_multiple_of(8).min(rows);
        let tasks_per_plane = rows.div_ceil(rows_per_task);
        let planes_per_task = if tasks_per_plane == 1 { (16_384 / plane.max(1)).max(1) } else { 1 };
        let base = |mut index: usize| {
            let mut at = 0;
            for &(size, stride) in outer.iter().rev() {
                at += index % size * stride;
                index /= size;
            }
            at
        };
        let fill = |first: usize, to: &mut [f32]| {
            if inner_stride == 1 {
                for (row, line) in to.chunks_exact_mut(inner).enumerate() {
                    let at = first + row * row_stride;
                    line.copy_from_slice(&from[at..at + inner]);
                }
            } else {
                const BLOCK: usize = 8;
                let rows = to.len() / inner;
                for row in (0..rows).step_by(BLOCK) {
                    let height = BLOCK.min(rows - row);
                    for column in 0..inner {
                        let at = first + row * row_stride + column * inner_stride;
                        for i in 0..height {
                            to[(row + i) * inner + column] = from[at + i * row_stride];
                        }
                    }
                }
            }
        };
        if tasks_per_plane == 1 {
            for_parts(pool, to, plane * planes_per_task, |task, part| {
                for (index, plane_to) in part.chunks_exact_mut(plane).enumerate() {
                    fill(base(task * planes_per_task + index), plane_to);
                }
            });
        } else {
            // A task never crosses planes: one loop per plane.
            for (index, plane_to) in to.chunks_exact_mut(plane).enumerate() {
                let first = base(index);
                for_parts(pool, plane_to, rows_per_task * inner, |task, part| {
                    fill(first + task * rows_per_task * row_stride, part);
                });
            }
        }
    }
}

/// One axis of a [`Move`]: its size, and the strides in elements on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveAxis {
    pub size: usize,
    /// May go backwards.
    pub from: isize,
    pub to: usize,
}

/// A copy of elements of any width between places in strides: parts of tensors cut out, put side by side, repeated.
#[derive(Clone, Debug)]
pub struct Move {
    element_bytes: usize,
    from: usize,
    to: usize,
    /// Outermost first, by stride of the output; axes that stay together are one.
    outer: Vec<MoveAxis>,
    inner: MoveAxis,
    /// Elements that must exist on each side.
    from_len: usize,
    to_len: usize,
}

/// Bytes that one task of a [`Move`] copies, about: enough to be worth waking a thread.
const MOVE_TASK_BYTES: usize = 65_536;

/// Where the innermost axis is short, as channels of an image are, runs go along a piece of the axis around it instead, of
/// which the tasks still take their own parts.
fn turn_short_runs(axes: &mut Vec<MoveAxis>) {
    const SHORT: usize = 16;
    const PIECE: std::ops::RangeInclusive<usize> = 32..=1_024;
    let [.., around, inner] = axes.as_slice() else { return };
    let (around, inner) = (*around, *inner);
    if inner.size >= SHORT || (inner.from == 1 && inner.to == 1) {
        return;
    }
    let Some(piece) = PIECE.rev().find(|piece| around.size.is_multiple_of(*piece)) else { return };
    let (Some(from), Some(to)) = (around.from.checked_mul(piece as isize), around.to.checked_mul(piece)) else {
        return;
    };
    axes.truncate(axes.len() - 2);
    axes.push(MoveAxis { size: around.size / piece, from, to });
    axes.push(inner);
    axes.push(MoveAxis { size: piece, ..around });
}

impl Move {
    /// Copies one element to `to` plus strides for every index over `axes`. `None` when sizes overflow or no buffer is
    /// as long, elements are not of 1, 2, 4 or 8 bytes, there are more than [`AXES_MAX`] axes left after merging, or two
    /// elements would be copied to the same place.
    pub fn new(element_bytes: usize, (from, to): (usize, usize), axes: &[MoveAxis]) -> Option<Self> {
        if !matches!(element_bytes, 1 | 2 | 4 | 8) {
            return None;
        }
        let count = axes.iter().try_fold(1usize, |count, axis| count.checked_mul(axis.size))?;
        let mut sorted: Vec<MoveAxis> = axes.iter().copied().filter(|axis| axis.size != 1).collect();
        sorted.sort_by_key(|axis| std::cmp::Reverse(axis.to));
        let mut merged: Vec<MoveAxis> = Vec::new();
        for axis in sorted {
            match merged.last_mut() {
                Some(last)
                    if axis.to.checked_mul(axis.size) == Some(last.to)
                        && isize::try_from(axis.size).ok().and_then(|size| axis.from.checked_mul(size))
                            == Some(last.from) =>
                {
                    *last = MoveAxis { size: last.size.checked_mul(axis.size)?, ..axis };
                }
                _ => merged.push(axis),
            }
        }
        let mut extent = 1usize;
        let (mut from_low, mut from_len, mut to_len) = (from as i128, from as i128 + 1, to.checked_add(1)?);
        for axis in merged.iter().rev() {
            // Each axis steps beyond all that the inner ones reach, so that no place is written twice.
            if axis.to < extent && count > 0 {
                return None;
            }
            let steps = axis.size.saturating_sub(1);
            extent = axis.to.checked_mul(steps)?.checked_add(extent)?;
            let reach = (axis.from as i128).checked_mul(steps as i128)?;
            (from_low, from_len) = (from_low.checked_add(reach.min(0))?, from_len.checked_add(reach.max(0))?);
            to_len = axis.to.checked_mul(steps)?.checked_add(to_len)?;
        }
        if count > 0 && from_low < 0 {
            return None;
        }
        let mut from_len = if count == 0 { 0 } else { usize::try_from(from_len).ok()? };
        if count == 0 {
            (from_len, to_len, merged) = (0, 0, vec![MoveAxis { size: 0, from: 1, to: 1 }]);
        }
        // So that offsets in bytes, and the step beyond the end of an axis, can be counted.
        let fits = |len: usize| len.checked_mul(element_bytes).is_some_and(|bytes| bytes <= isize::MAX as usize);
        if !fits(from_len) || !fits(to_len) {
            return None;
        }
        if merged.len() + 1 < AXES_MAX {
            turn_short_runs(&mut merged);
        }
        let inner = merged.pop().unwrap_or(MoveAxis { size: 1, from: 1, to: 1 });
        (merged.len() < AXES_MAX).then_some(Self { element_bytes, from, to, outer: merged, inner, from_len, to_len })
    }

    /// Elements that input and output must have.
    pub fn needs(&self) -> (usize, usize) {
        (self.from_len, self.to_len)
    }

    /// Copies from `from` to `to`; what of `to` no index reaches is left as it is.
    ///
    /// # Panics
    /// When either is shorter than [`Self::needs`].
    pub fn run(&self, pool: &ThreadPool, from: &[u8], to: &mut [u8]) {
        let bytes = self.element_bytes;
        assert!(from.len() >= self.from_len * bytes && to.len() >= self.to_len * bytes, "a copy leaves its buffers");
        if self.to_len == 0 {
            return;
        }
        struct Base(*mut u8);
        // SAFETY: tasks write disjoint places: `new` refuses axes that lead to one place twice.
        unsafe impl Sync for Base {}
        impl Base {
            fn at(&self, offset: usize) -> *mut u8 {
                self.0.wrapping_add(offset)
            }
        }
        let base = Base(to.as_mut_ptr());
        let runs: usize = self.outer.iter().map(|axis| axis.size).product();
        let per_task = (MOVE_TASK_BYTES / (self.inner.size * bytes)).clamp(1, runs);
        pool.run(runs.div_ceil(per_task), |task, _| {
            let first = task * per_task;
            let mut index = [0usize; AXES_MAX];
            let (mut at_from, mut at_to, mut rest) = (self.from as isize, self.to, first);
            for (axis, index) in self.outer.iter().zip(&mut index).rev() {
                *index = rest % axis.size;
                rest /= axis.size;
                at_from += *index as isize * axis.from;
                at_to += *index * axis.to;
            }
            for _ in first..(first + per_task).min(runs) {
                // SAFETY: `needs` covers every index over the axes, in bytes too (`new`), and was compared with both
                // lengths above; no two runs write the same place (`new`).
                unsafe { self.run_of(from.as_ptr().offset(at_from * bytes as isize), base.at(at_to * bytes)) };
                for (axis, index) in self.outer.iter().zip(&mut index).rev() {
                    *index += 1;
                    at_from += axis.from;
                    at_to += axis.to;
                    if *index < axis.size {
                        break;
                    }
                    *index = 0;
                    at_from -= axis.from * axis.size as isize;
                    at_to -= axis.to * axis.size;
                }
            }
        });
    }

    /// Copies along the innermost axis.
    ///
    /// # Safety
    /// Both sides are valid for the whole axis and do not overlap.
    unsafe fn run_of(&self, from: *const u8, to: *mut u8) {
        let MoveAxis { size, from: from_stride, to: to_stride } = self.inner;
        // SAFETY: the caller's promise, element by element or all at once.
        unsafe {
            if from_stride == 1 && to_stride == 1 {
                return to.copy_from_nonoverlapping(from, size * self.element_bytes);
            }
            match self.element_bytes {
                1 => strided::<u8>(from.cast(), from_stride, to.cast(), to_stride, size),
                2 => strided::<u16>(from.cast(), from_stride, to.cast(), to_stride, size),
                4 => strided::<u32>(from.cast(), from_stride, to.cast(), to_stride, size),
                _ => strided::<u64>(from.cast(), from_stride, to.cast(), to_stride, size),
            }
        }
    }
}

/// Copies `count` elements in strides.
///
/// # Safety
/// Both sides are valid for that and do not overlap.
unsafe fn strided<T: Copy>(from: *const T, from_stride: isize, to: *mut T, to_stride: usize, count: usize) {
    for at in 0..count {
        // SAFETY: the caller's promise; byte buffers need not be aligned for T.
        unsafe { to.add(at * to_stride).write_unaligned(from.offset(at as isize * from_stride).read_unaligned()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn transposes_agree_with_index_arithmetic(
            shape in proptest::collection::vec(1usize..9, 0..6), keys in proptest::collection::vec(any::<u32>(), 6),
            scale in 1usize..40,
        ) {
            let mut shape = shape;
            if let Some(first) = shape.first_mut() { *first *= scale; }
            let mut perm: Vec<usize> = (0..shape.len()).collect();
            perm.sort_by_key(|&axis| keys[axis]);
            let len: usize = shape.iter().product();
            let from: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let mut got = vec![f32::NAN; len];
            Transpose::new(&shape, &perm).unwrap().run(&ThreadPool::new(2).unwrap(), &from, &mut got);
            let out_shape: Vec<usize> = perm.iter().map(|&axis| shape[axis]).collect();
            for (index, got) in got.iter().enumerate() {
                let mut rest = index;
                let mut coordinates = vec![0; shape.len()];
                for axis in (0..shape.len()).rev() {
                    coordinates[perm[axis]] = rest % out_shape[axis];
                    rest /= out_shape[axis];
                }
                let at = coordinates.iter().zip(&shape).fold(0, |at, (c, size)| at * size + c);
                prop_assert_eq!(*got, at as f32);
            }
        }
    }

    #[test]
    fn large_planes_are_split_right() {
        let (rows, columns) = (700, 301);
        let from: Vec<f32> = (0..2 * rows * columns).map(|i| i as f32).collect();
        let mut got = vec![0.0; from.len()];
        let transpose = Transpose::new(&[2, rows, columns], &[0, 2, 1]).unwrap();
        transpose.run(&ThreadPool::new(3).unwrap(), &from, &mut got);
        for plane in 0..2 {
            for row in 0..rows {
                for column in 0..columns {
                    let at = plane * rows * columns;
                    assert_eq!(got[at + column * rows + row], from[at + row * columns + column]);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn moves_agree_with_index_arithmetic(
            sizes in proptest::collection::vec(1usize..7, 0..5), keys in proptest::collection::vec(any::<u32>(), 5),
            repeat in 0usize..5, gap in 0usize..4, offsets in (0usize..9, 0usize..9), wide: bool, threads in 1usize..4,
            scale in 1usize..3000,
        ) {
            let mut sizes = sizes;
            if let Some(last) = sizes.last_mut() { *last *= scale; }
            // The output is dense but for a gap behind each innermost line, the input in the order of the keys, one
            // axis of it repeated.
            let mut order: Vec<usize> = (0..sizes.len()).collect();
            order.sort_by_key(|&axis| keys[axis]);
            let (mut from_strides, mut to_strides) = (vec![0; sizes.len()], vec![0; sizes.len()]);
            let (mut from_len, mut to_len) = (1, 1);
            for &axis in order.iter().rev().filter(|&&axis| axis != repeat) {
                from_strides[axis] = from_len;
                from_len *= sizes[axis];
            }
            for axis in (0..sizes.len()).rev() {
                to_strides[axis] = to_len;
                to_len = to_len * sizes[axis] + if axis + 1 == sizes.len() { gap } else { 0 };
            }
            let axes: Vec<MoveAxis> =
                (0..sizes.len()).map(|i| MoveAxis { size: sizes[i], from: from_strides[i] as isize, to: to_strides[i] }).collect();
            let bytes = if wide { 8 } else { 4 };
            let copy = Move::new(bytes, offsets, &axes).unwrap();
            let from: Vec<u8> = (0..(from_len + offsets.0) * bytes).map(|i| (i * 31 % 251) as u8).collect();
            let mut got = vec![255u8; (to_len + offsets.1) * bytes];
            let mut want = got.clone();
            copy.run(&ThreadPool::new(threads).unwrap(), &from, &mut got);
            for index in 0..sizes.iter().product::<usize>() {
                let (mut rest, mut at) = (index, offsets);
                for axis in (0..sizes.len()).rev() {
                    at = (at.0 + rest % sizes[axis] * from_strides[axis], at.1 + rest % sizes[axis] * to_strides[axis]);
                    rest /= sizes[axis];
                }
                want[at.1 * bytes..][..bytes].copy_from_slice(&from[at.0 * bytes..][..bytes]);
            }
            prop_assert!(got == want);
        }
    }

    /// An image's planes laid side by side, and back, in runs along its pixels.
    #[test]
    fn short_axes_are_not_what_runs_go_along() {
        for (images, channels, pixels, pitch) in [(2, 3, 64 * 49, 4), (1, 2, 1_000, 2), (1, 3, 31, 3), (2, 5, 1_021, 8)]
        {
            let from: Vec<u8> = (0..images * channels * pixels).map(|at| (at * 31 % 251) as u8).collect();
            let axes = [
                MoveAxis { size: images, from: (channels * pixels) as isize, to: pixels * pitch },
                MoveAxis { size: channels, from: pixels as isize, to: 1 },
                MoveAxis { size: pixels, from: 1, to: pitch },
            ];
            let mut got = vec![255; images * pixels * pitch];
            let copy = Move::new(1, (0, 0), &axes).unwrap();
            copy.run(&ThreadPool::new(2).unwrap(), &from, &mut got[..copy.needs().1]);
            for (at, byte) in got.iter().enumerate() {
                let (image, pixel, channel) = (at / (pixels * pitch), at / pitch % pixels, at % pitch);
                let want = if channel < channels { from[(image * channels + channel) * pixels + pixel] } else { 255 };
                assert_eq!(*byte, want, "{images} x {channels} x {pixels}, {at}");
            }
        }
    }

    #[test]
    fn moves_that_write_twice_or_overflow_are_refused() {
        let axis = |size, from, to| MoveAxis { size, from, to };
        assert!(Move::new(4, (0, 0), &[axis(2, 1, 0)]).is_none());
        assert!(Move::new(4, (0, 0), &[axis(3, 1, 2), axis(3, 1, 1)]).is_none());
        assert!(Move::new(3, (0, 0), &[axis(3, 1, 1)]).is_none());
        assert!(Move::new(4, (0, usize::MAX), &[axis(3, 1, 1)]).is_none());
        assert!(Move::new(4, (0, 0), &[axis(3, isize::MAX, 1)]).is_none());
        let none = Move::new(4, (5, 5), &[axis(0, 1, 1), axis(3, 1, 1)]).unwrap();
        assert_eq!(none.needs(), (0, 0));
        none.run(&ThreadPool::new(1).unwrap(), &[], &mut []);
    }

    #[test]
    fn nonsense_permutations_are_refused() {
        assert!(Transpose::new(&[2, 3], &[0, 0]).is_none());
        assert!(Transpose::new(&[2, 3], &[0]).is_none());
        assert!(Transpose::new(&[2, 3], &[0, 2]).is_none());
        assert!(Transpose::new(&[usize::MAX, 3], &[1, 0]).is_none());
    }
}
