//! Moving elements: transposes and layout changes.

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
                Some(last) if last.1 == stride * size => *last = (last.0 * size, stride),
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

    #[test]
    fn nonsense_permutations_are_refused() {
        assert!(Transpose::new(&[2, 3], &[0, 0]).is_none());
        assert!(Transpose::new(&[2, 3], &[0]).is_none());
        assert!(Transpose::new(&[2, 3], &[0, 2]).is_none());
        assert!(Transpose::new(&[usize::MAX, 3], &[1, 0]).is_none());
    }
}
