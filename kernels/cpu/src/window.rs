//! Pooling over NHWC images.

use crate::{
    conv::ConvShape,
    isa::{Isa, per_level},
    pool::{ThreadPool, for_parts},
};

/// Channels of a mean that one task takes are a multiple of this: whole cache lines and registers.
const CHANNELS_PER_TASK: usize = 32;

/// What a window gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolKind {
    Max,
    /// The sum over the window inside the image, divided by the number of its positions inside; `count_pad`: also by
    /// those in the padding (as far as `padded` says it reaches).
    Average {
        count_pad: bool,
    },
}

/// One line of the output.
struct Line<'a> {
    shape: &'a ConvShape,
    kind: PoolKind,
    image: &'a [f32],
    /// Height and width up to which padding counts, from the first line and column of the padding.
    padded: [usize; 2],
    at: (usize, usize),
}

per_level! {
    fn pool_line(line: &Line<'_>, to: &mut [f32]) {
        let Line { shape, kind, image, padded, at: (index, y) } = *line;
        let channels = shape.channels;
        for (x, to) in to.chunks_exact_mut(channels).enumerate() {
            to.fill(if kind == PoolKind::Max { f32::NEG_INFINITY } else { 0.0 });
            let (mut inside, mut counted) = (0usize, 0usize);
            for ky in 0..shape.kernel[0] {
                let at_y = y * shape.strides[0] + ky * shape.dilations[0];
                let from_y = at_y.wrapping_sub(shape.pads[0]);
                for kx in 0..shape.kernel[1] {
                    let at_x = x * shape.strides[1] + kx * shape.dilations[1];
                    let from_x = at_x.wrapping_sub(shape.pads[1]);
                    counted += usize::from(at_y < padded[0] && at_x < padded[1]);
                    if from_y >= shape.height || from_x >= shape.width {
                        continue;
                    }
                    inside += 1;
                    let at = ((index * shape.height + from_y) * shape.width + from_x) * channels;
                    let from = &image[at..at + channels];
                    if kind == PoolKind::Max {
                        for (to, x) in to.iter_mut().zip(from) {
                            *to = if *x > *to || x.is_nan() { *x } else { *to };
                        }
                    } else {
                        for (to, x) in to.iter_mut().zip(from) {
                            *to += x;
                        }
                    }
                }
            }
            if let PoolKind::Average { count_pad } = kind {
                let divisor = (if count_pad { counted } else { inside }) as f32;
                for to in to {
                    *to /= divisor;
                }
            }
        }
    }
}

/// Pools an image. `padded`: height and width of the padded image, counted from the first line of its padding.
///
/// # Panics
/// When a buffer's length is not that of the shape, or its sizes are out of bounds.
pub fn pool(
    isa: Isa,
    threads: &ThreadPool,
    kind: PoolKind,
    shape: &ConvShape,
    padded: [usize; 2],
    image: &[f32],
    to: &mut [f32],
) {
    shape.check(image);
    assert_eq!(shape.channels, shape.out_channels, "a pool keeps its channels");
    assert_eq!(to.len(), shape.output_len(), "the result is not as large as its shape");
    for_parts(threads, to, shape.out_width * shape.channels, |task, line| {
        let at = (task / shape.out_height, task % shape.out_height);
        pool_line(isa, &Line { shape, kind, image, padded, at }, line);
    });
}

per_level! {
    /// Means of as many channels as `to` holds, from channel `first` of pixels of `channels` on.
    fn mean_pixels(image: &[f32], channels: usize, first: usize, to: &mut [f32]) {
        to.fill(0.0);
        for pixel in image.chunks_exact(channels) {
            for (to, x) in to.iter_mut().zip(&pixel[first..]) {
                *to += x;
            }
        }
        let scale = channels as f32 / image.len() as f32;
        for to in to {
            *to *= scale;
        }
    }
}

/// Mean over the pixels of each image: `[batch][pixel][channel]` to `[batch][channel]`.
///
/// # Panics
/// When lengths do not fit together.
pub fn global_mean(isa: Isa, pool: &ThreadPool, channels: usize, from: &[f32], to: &mut [f32]) {
    if to.is_empty() {
        return;
    }
    assert!(channels > 0 && to.len().is_multiple_of(channels), "means are not whole pixels");
    let image = from.len() / (to.len() / channels);
    assert!(
        image > 0 && image.is_multiple_of(channels) && from.len() == image * (to.len() / channels),
        "images are not whole pixels"
    );
    // Images are tasks, or parts of the channels of one after the other where there are fewer images than threads.
    let images = to.len() / channels;
    if images >= pool.threads() {
        let of = |task: usize| &from[task * image..(task + 1) * image];
        return for_parts(pool, to, channels, |task, to| mean_pixels(isa, of(task), channels, 0, to));
    }
    let part = channels.div_ceil(pool.threads()).next_multiple_of(CHANNELS_PER_TASK);
    for (from, to) in from.chunks_exact(image).zip(to.chunks_exact_mut(channels)) {
        for_parts(pool, to, part, |task, to| mean_pixels(isa, from, channels, task * part, to));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pooling_agrees_with_a_plain_loop(
            batch in 1usize..3, h in 1usize..9, w in 1usize..9, channels in 1usize..40,
            k in (1usize..4, 1usize..4), s in (1usize..3, 1usize..3), p in (0usize..2, 0usize..2),
            values in proptest::collection::vec(-1f32..1.0, 2 * 8 * 8 * 40), count_pad: bool,
        ) {
            prop_assume!(p.0 < k.0 && p.1 < k.1 && h + 2 * p.0 >= k.0 && w + 2 * p.1 >= k.1);
            let shape = ConvShape {
                batch, height: h, width: w, channels, out_channels: channels,
                out_height: (h + 2 * p.0 - k.0) / s.0 + 1, out_width: (w + 2 * p.1 - k.1) / s.1 + 1,
                kernel: [k.0, k.1], strides: [s.0, s.1], dilations: [1, 1], pads: [p.0, p.1], groups: 1,
            };
            let image = &values[..shape.image_len()];
            let threads = ThreadPool::new(2).unwrap();
            for isa in Isa::available() {
                for kind in [PoolKind::Max, PoolKind::Average { count_pad }] {
                    let mut got = vec![f32::NAN; shape.pixels() * channels];
                    pool(isa, &threads, kind, &shape, [h + 2 * p.0, w + 2 * p.1], image, &mut got);
                    for (at, got) in got.iter().enumerate() {
                        let (c, pixel) = (at % channels, at / channels);
                        let (x, rest) = (pixel % shape.out_width, pixel / shape.out_width);
                        let (y, index) = (rest % shape.out_height, rest / shape.out_height);
                        let mut seen = Vec::new();
                        for iy in (y * s.0) as isize - p.0 as isize..(y * s.0 + k.0) as isize - p.0 as isize {
                            for ix in (x * s.1) as isize - p.1 as isize..(x * s.1 + k.1) as isize - p.1 as isize {
                                if (0..h as isize).contains(&iy) && (0..w as isize).contains(&ix) {
                                    seen.push(image[((index * h + iy as usize) * w + ix as usize) * channels + c]);
                                }
                            }
                        }
                        let want = match kind {
                            PoolKind::Max => seen.iter().copied().fold(f32::NEG_INFINITY, f32::max),
                            PoolKind::Average { count_pad } => {
                                seen.iter().sum::<f32>() / if count_pad { k.0 * k.1 } else { seen.len() } as f32
                            }
                        };
                        prop_assert!((got - want).abs() < 1e-5, "{kind:?}: {got} not {want}");
                    }
                }
            }
        }

        #[test]
        fn global_means_agree(batch in 1usize..4, pixels in 1usize..50, channels in 1usize..40) {
            let from: Vec<f32> = (0..batch * pixels * channels).map(|i| (i % 17) as f32 - 8.0).collect();
            let threads = ThreadPool::new(2).unwrap();
            for isa in Isa::available() {
                let mut got = vec![0.0; batch * channels];
                global_mean(isa, &threads, channels, &from, &mut got);
                for (at, got) in got.iter().enumerate() {
                    let (image, c) = (at / channels, at % channels);
                    let sum: f32 = (0..pixels).map(|p| from[(image * pixels + p) * channels + c]).sum();
                    prop_assert!((got - sum / pixels as f32).abs() < 1e-4);
                }
            }
        }
    }
}
