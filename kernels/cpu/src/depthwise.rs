//! Depthwise convolution over NHWC images: every channel by itself, sums of a few pixels held in registers.
//!
//! A task is some lines of the output. Within it a block of channels (one or two registers wide) meets all pixels
//! before the next block, so that its weights stay in the first cache.

use crate::{
    conv::ConvShape,
    isa::{Isa, IsaLevel},
    pointwise::{Activation, activate},
    pool::{ThreadPool, for_parts},
    vector::*,
};
use std::ops::Range;

/// Tasks per thread, so that threads end together.
const TASKS_PER_THREAD: usize = 4;

/// Operands of a depthwise convolution. Images are NHWC, as large as the shape says; [`depthwise`] compares all.
#[derive(Clone, Copy, Debug)]
pub struct Depthwise<'a> {
    pub image: &'a [f32],
    /// `[kernel height][kernel width][channel]`.
    pub weights: &'a [f32],
    /// One per channel.
    pub bias: &'a [f32],
    /// Added element by element before the activation.
    pub residual: Option<&'a [f32]>,
    pub activation: Activation,
}

/// Some lines of one block of channels.
struct Block<'a> {
    shape: &'a ConvShape,
    of: &'a Depthwise<'a>,
    /// First output line, counted over all images, and how many.
    first: usize,
    lines: usize,
    /// First channel.
    channel: usize,
    /// Channels that exist, where they are fewer than the block's registers hold.
    count: usize,
    to: *mut f32,
}

/// Positions of a kernel axis that lie inside the image, `at` being the output position: one run of them, because
/// they move on in equal steps.
fn taps_inside(shape: &ConvShape, axis: usize, at: usize) -> Range<usize> {
    let size = [shape.height, shape.width][axis];
    let start = (at * shape.strides[axis]).wrapping_sub(shape.pads[axis]);
    let fits = |tap: &usize| start.wrapping_add(tap * shape.dilations[axis]) < size;
    let first = (0..shape.kernel[axis]).find(fits).unwrap_or(0);
    first..first + (first..shape.kernel[axis]).take_while(fits).count()
}

/// Vector `vector` behind `from`; of a block narrower than its registers the part that exists.
///
/// # Safety
/// The instruction set of `V` exists; what is read is valid. (A closure would not be inlined with its instructions.)
#[inline(always)]
unsafe fn load<V: Vector, const PART: bool>(from: *const f32, vector: usize, count: usize) -> V {
    // SAFETY: the caller's promise.
    unsafe { if PART { V::load_part(from, count) } else { V::load(from.add(vector * V::LANES)) } }
}

/// Sums of `PX` pixels from output column `x` on, in `NV` registers each, over kernel lines `kys` and columns `kxs`, all
/// of which lie inside the image.
///
/// # Safety
/// The instruction set of `V` exists; the block lies within its operands.
#[inline(always)]
unsafe fn pixels<V: Vector, const NV: usize, const PX: usize, const PART: bool>(
    block: &Block<'_>,
    line: usize,
    x: usize,
    (kys, kxs): (&Range<usize>, &Range<usize>),
    to: *mut f32,
) {
    let (shape, of) = (block.shape, block.of);
    let channels = shape.channels;
    let (image, y) = (line / shape.out_height, line % shape.out_height);
    // SAFETY: the caller's promise: kernel positions lie inside the image, channels within a pixel.
    unsafe {
        let mut sums = [[V::zero(); VECTORS_MAX]; ROWS_MAX];
        let mut weight = [V::zero(); VECTORS_MAX];
        let bias = of.bias.as_ptr().add(block.channel);
        each_vector!(NV, J, {
            weight[J] = load::<V, PART>(bias, J, block.count);
            each_row!(PX, P, { sums[P][J] = weight[J] });
        });
        let step = shape.strides[1] * channels;
        for ky in kys.clone() {
            let from_y = y * shape.strides[0] + ky * shape.dilations[0] - shape.pads[0];
            let line = of.image.as_ptr().add((image * shape.height + from_y) * shape.width * channels + block.channel);
            for kx in kxs.clone() {
                let from_x = x * shape.strides[1] + kx * shape.dilations[1] - shape.pads[1];
                let from = line.add(from_x * channels);
                let weights = of.weights.as_ptr().add((ky * shape.kernel[1] + kx) * channels + block.channel);
                each_vector!(NV, J, { weight[J] = load::<V, PART>(weights, J, block.count) });
                each_row!(PX, P, {
                    each_vector!(NV, J, {
                        sums[P][J] =
                            sums[P][J].multiply_add(load::<V, PART>(from.add(P * step), J, block.count), weight[J])
                    });
                });
            }
        }
        if let Some(residual) = of.residual {
            let from = residual.as_ptr().add((line * shape.out_width + x) * channels + block.channel);
            each_row!(PX, P, {
                each_vector!(NV, J, {
                    sums[P][J] = sums[P][J].add(load::<V, PART>(from.add(P * channels), J, block.count))
                });
            });
        }
        let clip = match of.activation {
            Activation::Relu => Some((0.0, f32::INFINITY)),
            Activation::Clip { low, high } => Some((low, high)),
            _ => None,
        };
        if let Some((low, high)) = clip {
            let (low, high) = (V::splat(low), V::splat(high));
            // In this order a NaN stays one.
            each_row!(PX, P, { each_vector!(NV, J, { sums[P][J] = high.min(low.max(sums[P][J])) }) });
        }
        each_row!(PX, P, {
            each_vector!(NV, J, {
                let to = to.add((x + P) * channels);
                if PART { sums[P][J].store_part(to, block.count) } else { sums[P][J].store(to.add(J * V::LANES)) }
            });
        });
    }
}

/// # Safety
/// As [`pixels`].
#[inline(always)]
unsafe fn lines<V: Vector, const NV: usize, const PX: usize, const PART: bool>(block: &Block<'_>) {
    let shape = block.shape;
    let whole = shape.whole_columns();
    for index in 0..block.lines {
        let line = block.first + index;
        let kys = taps_inside(shape, 0, line % shape.out_height);
        let kxs = 0..shape.kernel[1];
        // SAFETY: the caller's promise; each output pixel is computed once, over the kernel positions inside.
        unsafe {
            let to = block.to.add(index * shape.out_width * shape.channels + block.channel);
            let mut x = 0;
            while x < shape.out_width {
                if x >= whole.start && x + PX <= whole.end {
                    pixels::<V, NV, PX, PART>(block, line, x, (&kys, &kxs), to);
                    x += PX;
                } else {
                    let kxs = taps_inside(shape, 1, x);
                    pixels::<V, NV, 1, PART>(block, line, x, (&kys, &kxs), to);
                    x += 1;
                }
            }
        }
    }
}

/// Every channel of some lines.
///
/// # Safety
/// As [`pixels`]; `block.channel` is 0.
#[inline(always)]
unsafe fn task<V: Vector, const NV: usize, const PX: usize>(block: &Block<'_>) {
    let channels = block.shape.channels;
    let mut channel = 0;
    // SAFETY: the caller's promise; blocks of channels do not overlap and end with the pixel.
    unsafe {
        while channel < channels {
            let left = channels - channel;
            if left >= NV * V::LANES {
                lines::<V, NV, PX, false>(&Block { channel, ..*block });
                channel += NV * V::LANES;
            } else if left >= V::LANES {
                lines::<V, 1, PX, false>(&Block { channel, ..*block });
                channel += V::LANES;
            } else {
                lines::<V, 1, PX, true>(&Block { channel, count: left, ..*block });
                channel = channels;
            }
        }
    }
}

/// One function per level; vectors per pixel and pixels at a time fill its registers.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::*;

    /// # Safety
    /// As [`super::task`].
    #[target_feature(enable = "sse4.2,popcnt")]
    pub(super) unsafe fn v2(block: &Block<'_>) {
        // SAFETY: the caller's promise.
        unsafe { task::<Sse, 2, 4>(block) }
    }

    /// # Safety
    /// As [`super::task`].
    #[target_feature(enable = "avx2,fma,bmi2")]
    pub(super) unsafe fn v3(block: &Block<'_>) {
        // SAFETY: the caller's promise.
        unsafe { task::<Avx2, 2, 5>(block) }
    }

    /// # Safety
    /// As [`super::task`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2")]
    pub(super) unsafe fn v4(block: &Block<'_>) {
        // SAFETY: the caller's promise.
        unsafe { task::<Avx512, 2, 7>(block) }
    }
}

/// # Safety
/// The machine runs `level`; else as [`task`].
unsafe fn run(level: IsaLevel, block: &Block<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        match level {
            #[cfg(target_arch = "x86_64")]
            IsaLevel::X86V2 => x86::v2(block),
            #[cfg(target_arch = "x86_64")]
            IsaLevel::X86V3 => x86::v3(block),
            #[cfg(target_arch = "x86_64")]
            IsaLevel::X86V4 | IsaLevel::X86V4Vnni | IsaLevel::X86V4Bf16 | IsaLevel::X86V4Amx => x86::v4(block),
            #[cfg(target_arch = "aarch64")]
            IsaLevel::Neon => task::<Neon, 2, 6>(block),
            _ => task::<Lanes4, 2, 4>(block),
        }
    }
}

/// Depthwise convolution: as many groups as channels, one output channel each.
///
/// # Panics
/// When the shape is not depthwise, its sizes are out of bounds, or a buffer's length is not that of the shape.
pub fn depthwise(isa: Isa, pool: &ThreadPool, shape: &ConvShape, of: &Depthwise<'_>, to: &mut [f32]) {
    let channels = shape.channels;
    assert!(shape.groups == channels && shape.out_channels == channels, "the convolution is not depthwise");
    shape.check(of.image);
    // A group has one channel: its depth is the number of kernel positions.
    let weights = shape.depth().checked_mul(channels);
    assert_eq!(Some(of.weights.len()), weights, "the weights are not as many as kernel positions and channels");
    assert_eq!(of.bias.len(), channels, "the bias is not one value per channel");
    assert_eq!(to.len(), shape.output_len(), "the result is not as large as its shape");
    assert!(
        of.residual.is_none_or(|residual| residual.len() == to.len()),
        "the residual is not as large as the result"
    );
    let line_len = shape.out_width * channels;
    if line_len == 0 {
        return;
    }
    let all = shape.batch * shape.out_height;
    let per_task = if pool.threads() == 1 { all } else { all.div_ceil(pool.threads() * TASKS_PER_THREAD).max(1) };
    for_parts(pool, to, line_len * per_task, |task, part| {
        let (first, lines) = (task * per_task, part.len() / line_len);
        let block = Block { shape, of, first, lines, channel: 0, count: 0, to: part.as_mut_ptr() };
        // SAFETY: an `Isa` of a level exists only where the machine runs it. The lengths were compared with the shape
        // above, whose `check` found that no position overflows; `part` holds `lines` whole lines, and kernel positions
        // outside of the image are left out.
        unsafe { run(isa.level(), &block) };
        if !matches!(of.activation, Activation::None | Activation::Relu | Activation::Clip { .. }) {
            activate(isa, of.activation, part);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_a_plain_loop_at_every_level(
            batch in 1usize..3, size in (1usize..20, 1usize..40), channels in 1usize..70,
            kernel in (1usize..6, 1usize..6), strides in (1usize..4, 1usize..4), dilations in (1usize..3, 1usize..3),
            pads in (0usize..4, 0usize..4), extra in (0usize..3, 0usize..3), with_residual: bool, threads in 1usize..4,
            which in 0usize..4,
        ) {
            let extent = |k: usize, d: usize| (k - 1) * d + 1;
            let ends = [size.0 + 2 * pads.0 + extra.0, size.1 + 2 * pads.1 + extra.1];
            prop_assume!(ends[0] >= extent(kernel.0, dilations.0) && ends[1] >= extent(kernel.1, dilations.1));
            let shape = ConvShape {
                batch, height: size.0, width: size.1, channels, out_channels: channels, groups: channels,
                out_height: (ends[0] - extent(kernel.0, dilations.0)) / strides.0 + 1,
                out_width: (ends[1] - extent(kernel.1, dilations.1)) / strides.1 + 1,
                kernel: [kernel.0, kernel.1], strides: [strides.0, strides.1],
                dilations: [dilations.0, dilations.1], pads: [pads.0, pads.1],
            };
            let value = |i: usize| (i * 37 % 101) as f32 / 50.0 - 1.0;
            let values = |len: usize, from: usize| (0..len).map(|i| value(i + from)).collect::<Vec<f32>>();
            let out_len = shape.pixels() * channels;
            let (image, weights, bias) = (values(shape.image_len(), 0), values(kernel.0 * kernel.1 * channels, 7), values(channels, 3));
            let residual = values(out_len, 11);
            let activation = [Activation::None, Activation::Relu, Activation::Clip { low: -0.5, high: 0.5 }, Activation::HardSwish][which];
            let of = Depthwise { image: &image, weights: &weights, bias: &bias, residual: with_residual.then_some(&residual[..]), activation };
            let mut want = Vec::new();
            for (at, &more) in residual.iter().enumerate() {
                let (c, pixel) = (at % channels, at / channels);
                let (x, line) = (pixel % shape.out_width, pixel / shape.out_width);
                let (y, index) = (line % shape.out_height, line / shape.out_height);
                let mut sum = bias[c];
                for ky in 0..kernel.0 {
                    for kx in 0..kernel.1 {
                        let from_y = (y * strides.0 + ky * dilations.0).wrapping_sub(pads.0);
                        let from_x = (x * strides.1 + kx * dilations.1).wrapping_sub(pads.1);
                        if from_y < size.0 && from_x < size.1 {
                            sum += image[((index * size.0 + from_y) * size.1 + from_x) * channels + c]
                                * weights[(ky * kernel.1 + kx) * channels + c];
                        }
                    }
                }
                want.push(sum + if with_residual { more } else { 0.0 });
            }
            activate(Isa::available()[0], activation, &mut want);
            let pool = ThreadPool::new(threads).unwrap();
            for isa in Isa::available() {
                let mut got = vec![f32::NAN; out_len];
                depthwise(isa, &pool, &shape, &of, &mut got);
                for (at, (got, want)) in got.iter().zip(&want).enumerate() {
                    prop_assert!((got - want).abs() < 1e-4, "{} at {at}: {got} not {want}", isa.level());
                }
            }
        }
    }
}
