//! Resampling along one axis: every line of the result is a weighted sum of a few lines of the input.

use crate::{
    isa::{Isa, per_level},
    nest::scan::Around,
    pool::{ThreadPool, for_parts},
};

/// For each line of the result, lines of the input and their weights.
#[derive(Clone, Copy, Debug)]
pub struct Taps<'a> {
    /// Lines that each one is made of.
    pub count: usize,
    /// `count` for each line of the result.
    pub lines: &'a [i32],
    pub weights: &'a [f32],
}

per_level! {
    /// One image; every tap's line lies in `from`.
    fn resample_image(inner: usize, taps: Taps<'_>, from: &[f32], to: &mut [f32]) {
        let both = taps.lines.chunks_exact(taps.count).zip(taps.weights.chunks_exact(taps.count));
        if inner == 1 {
            for (to, (lines, weights)) in to.iter_mut().zip(both) {
                *to = lines.iter().zip(weights).map(|(&line, weight)| from[line as usize] * weight).sum();
            }
            return;
        }
        for (to, (lines, weights)) in to.chunks_exact_mut(inner).zip(both) {
            let line = |tap: usize| &from[lines[tap] as usize * inner..][..inner];
            for (to, x) in to.iter_mut().zip(line(0)) {
                *to = x * weights[0];
            }
            for (tap, &weight) in weights.iter().enumerate().skip(1) {
                // What has no weight adds nothing, were it infinite.
                if weight != 0.0 {
                    for (to, x) in to.iter_mut().zip(line(tap)) {
                        *to += x * weight;
                    }
                }
            }
        }
    }
}

/// `[outer][size][inner]` to as many lines as there are taps for.
///
/// # Panics
/// When a buffer is not as long as the sizes say, or a tap's line is not there.
pub fn resample(isa: Isa, pool: &ThreadPool, around: Around, taps: Taps<'_>, from: &[f32], to: &mut [f32]) {
    let Around { outer, size, inner } = around;
    assert!(taps.count > 0 && taps.lines.len() == taps.weights.len() && taps.lines.len().is_multiple_of(taps.count));
    let out = taps.lines.len() / taps.count;
    let len = |along: usize| outer.checked_mul(along).and_then(|len| len.checked_mul(inner));
    assert!(
        len(size) == Some(from.len()) && len(out) == Some(to.len()) && inner > 0 && out > 0,
        "the images are not as large as their sizes"
    );
    assert!(taps.lines.iter().all(|&line| usize::try_from(line).is_ok_and(|line| line < size)), "a line is not there");
    if outer >= pool.threads() {
        return for_parts(pool, to, out * inner, |task, to| {
            resample_image(isa, inner, taps, &from[task * size * inner..][..size * inner], to);
        });
    }
    // Few images: some lines of one after the other.
    let lines = (16_384 / inner).clamp(1, out);
    for (from, to) in from.chunks_exact(size * inner).zip(to.chunks_exact_mut(out * inner)) {
        for_parts(pool, to, lines * inner, |task, to| {
            let first = task * lines * taps.count;
            let count = to.len() / inner * taps.count;
            let taps = Taps { lines: &taps.lines[first..][..count], weights: &taps.weights[first..][..count], ..taps };
            resample_image(isa, inner, taps, from, to);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_weighted_sums() {
        let pool = ThreadPool::new(2).unwrap();
        let taps = Taps { count: 2, lines: &[0, 0, 0, 1, 1, 1], weights: &[1.0, 0.0, 0.5, 0.5, 0.0, 1.0] };
        for isa in Isa::available() {
            let mut to = [0.0; 6];
            resample(isa, &pool, Around { outer: 1, size: 2, inner: 2 }, taps, &[1.0, 2.0, 3.0, 6.0], &mut to);
            assert_eq!(to, [1.0, 2.0, 2.0, 4.0, 3.0, 6.0]);
            let mut to = [0.0; 6];
            resample(isa, &pool, Around { outer: 2, size: 2, inner: 1 }, taps, &[1.0, 3.0, 2.0, 6.0], &mut to);
            assert_eq!(to, [1.0, 2.0, 3.0, 2.0, 4.0, 6.0]);
        }
    }
}
