//! Softmax and running sums along any axis: `[outer][size][inner]`, many lines side by side.

use crate::{
    isa::{Isa, per_level},
    math,
    pool::{ThreadPool, for_parts},
    rows,
};

/// Lines that one task takes together.
const TOGETHER: usize = 256;

/// The sizes around an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Around {
    pub outer: usize,
    pub size: usize,
    pub inner: usize,
}

impl Around {
    /// Elements.
    ///
    /// # Panics
    /// When they are too many to count, or the axis has none.
    fn len(self) -> usize {
        assert!(self.size > 0 && self.inner > 0, "an axis without elements");
        let len = self.outer.checked_mul(self.size).and_then(|len| len.checked_mul(self.inner));
        len.expect("sizes are out of bounds")
    }
}

/// One block of lines: where it begins in its image, and how many they are.
struct Lines<'a> {
    from: &'a [f32],
    to: *mut f32,
    inner: usize,
    size: usize,
    count: usize,
    log: bool,
}

per_level! {
    fn softmax_lines(of: &Lines<'_>) {
        let Lines { from, to, inner, size, count, log } = *of;
        let mut top = [f32::NEG_INFINITY; TOGETHER];
        let mut sum = [0f32; TOGETHER];
        let (top, sum) = (&mut top[..count], &mut sum[..count]);
        for step in 0..size {
            for (top, x) in top.iter_mut().zip(&from[step * inner..][..count]) {
                *top = if (*top > *x) | top.is_nan() { *top } else { *x };
            }
        }
        for step in 0..size {
            // SAFETY: `softmax` vouches for `count` elements of every step, which are this task's alone.
            let to = unsafe { std::slice::from_raw_parts_mut(to.add(step * inner), count) };
            for (((to, x), top), sum) in to.iter_mut().zip(&from[step * inner..][..count]).zip(&*top).zip(&mut *sum) {
                let e = math::exp::<FUSED>(x - top);
                *sum += e;
                *to = if log { x - top } else { e };
            }
        }
        for sum in &mut *sum {
            *sum = if log { math::ln::<FUSED>(*sum) } else { 1.0 / *sum };
        }
        for step in 0..size {
            // SAFETY: as above.
            let to = unsafe { std::slice::from_raw_parts_mut(to.add(step * inner), count) };
            for (to, sum) in to.iter_mut().zip(&*sum) {
                *to = if log { *to - sum } else { *to * sum };
            }
        }
    }
}

per_level! {
    fn log_softmax_rows(columns: usize, to: &mut [f32]) {
        for row in to.chunks_exact_mut(columns) {
            let top = row.iter().fold(f32::NEG_INFINITY, |a, &b| if (a > b) | a.is_nan() { a } else { b });
            let mut sum = 0f64;
            for x in row.iter_mut() {
                *x -= top;
                sum += f64::from(math::exp::<FUSED>(*x));
            }
            let sum = sum.ln() as f32;
            for x in row.iter_mut() {
                *x -= sum;
            }
        }
    }
}

/// Softmax along an axis, or its logarithm.
///
/// # Panics
/// When a buffer is not as long as the sizes say.
pub fn softmax(isa: Isa, pool: &ThreadPool, around: Around, log: bool, from: &[f32], to: &mut [f32]) {
    let len = around.len();
    assert!(from.len() == len && to.len() == len, "the lines are not whole");
    let Around { outer, size, inner } = around;
    if inner == 1 {
        to.copy_from_slice(from);
        if !log {
            return rows::softmax(isa, pool, size, false, to);
        }
        let part = size * (16_384 / size).max(1);
        return for_parts(pool, to, part, |_, part| log_softmax_rows(isa, size, part));
    }
    struct Base(*mut f32);
    // SAFETY: tasks write disjoint lines.
    unsafe impl Sync for Base {}
    impl Base {
        fn at(&self, offset: usize) -> *mut f32 {
            self.0.wrapping_add(offset)
        }
    }
    let base = Base(to.as_mut_ptr());
    let blocks = inner.div_ceil(TOGETHER);
    pool.run(outer * blocks, |task, _| {
        let (image, first) = (task / blocks, task % blocks * TOGETHER);
        let count = TOGETHER.min(inner - first);
        // The last step's lines end with the image, which lies within both buffers: their lengths were compared above.
        let at = image * size * inner + first;
        softmax_lines(isa, &Lines { from: &from[at..], to: base.at(at), inner, size, count, log });
    });
}

/// Running sums along an axis.
///
/// # Panics
/// When a buffer is not as long as the sizes say.
pub fn cum_sum<T: Copy + Default + Send + Sync>(
    pool: &ThreadPool,
    around: Around,
    (exclusive, reverse): (bool, bool),
    add: impl Fn(T, T) -> T + Sync,
    from: &[T],
    to: &mut [T],
) {
    let len = around.len();
    assert!(from.len() == len && to.len() == len, "the lines are not whole");
    let Around { size, inner, .. } = around;
    let image = size * inner;
    for_parts(pool, to, image, |task, to| {
        let from = &from[task * image..][..image];
        let mut sums = vec![T::default(); inner];
        for step in 0..size {
            let at = if reverse { size - 1 - step } else { step } * inner;
            for ((to, from), sum) in to[at..at + inner].iter_mut().zip(&from[at..]).zip(&mut sums) {
                let next = add(*sum, *from);
                *to = if exclusive { *sum } else { next };
                *sum = next;
            }
        }
    });
}
