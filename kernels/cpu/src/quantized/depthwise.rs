//! Depthwise convolution of bytes: every channel by itself, a block of them side by side.

use super::{
    Finish, Output,
    channels::{self, Block, Kernel, Tap},
    finish::{Panel, Sums},
};
use crate::{conv::ConvShape, isa::Isa, pool::ThreadPool};

/// Operands of a depthwise convolution.
#[derive(Clone, Copy, Debug)]
pub struct Depthwise<'a> {
    /// NHWC.
    pub image: &'a [u8],
    /// `[tap][channel]`, without zero points.
    pub weights: &'a [i16],
    /// The sum of each channel's weights.
    pub sums: &'a [i32],
    /// The image holds signed bytes.
    pub signed: bool,
    /// The image's zero point, as it holds it.
    pub zero: u8,
    pub finish: Finish<'a>,
}

/// Stands in an offset's place where a tap lies beyond the image.
const OUTSIDE: usize = usize::MAX;

/// Pixels of a line whose sums are kept until they are finished together.
const PIXELS_MAX: usize = 32;

/// Most channels of a block.
const CHANNELS_MAX: usize = 32;

/// Channels that are computed together.
struct Part {
    panel: Panel,
    first: usize,
    /// `None`: one after another, as plain code.
    kernel: Option<&'static Kernel>,
}

impl Part {
    /// All channels: in blocks, the widest first; where less than the narrowest is left, that one again over some channels
    /// that were computed already.
    fn all(isa: Isa, of: &Depthwise<'_>, channels: usize, zero: i32) -> Vec<Self> {
        let kernels = channels::kernels(isa.level());
        let mut parts = Vec::new();
        let mut first = 0;
        while first < channels {
            let left = channels - first;
            let kernel = kernels.iter().find(|kernel| kernel.channels <= left);
            let kernel = kernel.or_else(|| kernels.last().filter(|kernel| kernel.channels <= channels));
            let count = kernel.map_or(left.min(CHANNELS_MAX), |kernel| kernel.channels);
            let from = first.min(channels - count);
            let mut panel = Panel::new(&of.finish, from, count);
            for (moved, sum) in panel.moved.iter_mut().zip(&of.sums[from..from + count]) {
                *moved = zero.wrapping_mul(*sum).wrapping_neg();
            }
            parts.push(Self { panel, first: from, kernel });
            first = from + count;
        }
        parts
    }

    /// Numbers between the sums of two pixels.
    fn stride(&self) -> usize {
        self.panel.columns.next_multiple_of(8)
    }

    /// The sums of `pixels` pixels, where taps from `offsets` on move by `step` bytes a pixel, or lie `beyond`.
    fn add_taps(
        &self,
        of: &Depthwise<'_>,
        offsets: &[usize],
        (pixels, step): (usize, usize),
        beyond: &[u8; CHANNELS_MAX],
        taps: &mut Vec<Tap>,
        to: &mut [i32],
    ) {
        let (channels, count) = (of.sums.len(), self.panel.columns);
        let outside = Tap { at: beyond.as_ptr(), step: 0 };
        let Some(kernel) = self.kernel else {
            for pixel in 0..pixels {
                for channel in 0..count {
                    let sum = offsets.iter().enumerate().fold(0i32, |sum, (tap, &offset)| {
                        let byte = match offset {
                            OUTSIDE => of.zero,
                            offset => of.image[offset + pixel * step + self.first + channel],
                        };
                        let byte = if of.signed { i32::from(byte as i8) } else { byte.into() };
                        sum.wrapping_add(byte * i32::from(of.weights[tap * channels + self.first + channel]))
                    });
                    to[pixel * self.stride() + channel] = sum;
                }
            }
            return;
        };
        taps.clear();
        taps.extend(offsets.iter().map(|&offset| match offset {
            OUTSIDE => outside,
            offset => {
                // The last that the tap meets lies within the image.
                let met = &of.image[offset + self.first..][..(pixels - 1) * step + count];
                Tap { at: met.as_ptr(), step }
            }
        }));
        let weights = &of.weights[self.first..][..(offsets.len() - 1) * channels + count];
        let to = &mut to[..pixels * count];
        let block = Block { taps, weights: weights.as_ptr(), stride: channels, pixels, sums: to.as_mut_ptr() };
        // SAFETY: the kernel is one of the level that `isa` vouched for; taps, weights and sums were cut to what it uses.
        unsafe { kernel.run(of.signed, &block) };
    }
}

/// Convolves every channel by its own kernel.
///
/// # Panics
/// When an operand is not as large as the shape says, or the shape is not depthwise.
pub fn depthwise(isa: Isa, pool: &ThreadPool, shape: &ConvShape, of: &Depthwise<'_>, mut to: Output<'_>) {
    shape.check_sizes(of.image.len());
    let channels = shape.channels;
    assert!(shape.groups == channels && shape.out_channels == channels, "the convolution is not depthwise");
    let taps = shape.kernel[0] * shape.kernel[1];
    assert_eq!(Some(of.weights.len()), taps.checked_mul(channels), "the weights are not as large as the shape");
    assert_eq!(of.sums.len(), channels, "there is not one sum for each channel");
    assert_eq!(to.len(), shape.output_len(), "the output is not as large as the shape");
    of.finish.check(channels, &to);
    let zero = if of.signed { i32::from(of.zero as i8) } else { of.zero.into() };
    let parts = Part::all(isa, of, channels, zero);
    let to = to.shared();
    let lines = shape.pixels() / shape.out_width.max(1);
    let (inside, step) = (shape.whole_columns(), shape.strides[1] * channels);
    pool.run(lines, |line, _| {
        let beyond = [of.zero; CHANNELS_MAX];
        let (mut offsets, mut met) = (vec![OUTSIDE; taps], Vec::with_capacity(taps));
        let mut sums = [0i32; PIXELS_MAX * CHANNELS_MAX];
        let mut x = 0;
        while x < shape.out_width {
            // At the edges each pixel has taps of its own.
            let pixels = if inside.contains(&x) { (inside.end - x).min(PIXELS_MAX) } else { 1 };
            let row = line * shape.out_width + x;
            offsets_of(shape, row, &mut offsets);
            for part in &parts {
                part.add_taps(of, &offsets, (pixels, step), &beyond, &mut met, &mut sums);
                let done = Sums { of: &sums, stride: part.stride(), rows: pixels };
                // SAFETY: `check` passed the output, which has `channels` elements for each pixel; each line belongs to
                // one task.
                unsafe { of.finish.store(isa, done, &part.panel, to, [row * channels + part.first, channels]) };
            }
            x += pixels;
        }
    });
}

/// Where the taps of an output pixel begin in the image.
pub(super) fn offsets_of(shape: &ConvShape, row: usize, to: &mut [usize]) {
    let (image, y, x) = shape.pixel(row);
    for ky in 0..shape.kernel[0] {
        let line = (y * shape.strides[0] + ky * shape.dilations[0]).wrapping_sub(shape.pads[0]);
        for kx in 0..shape.kernel[1] {
            let column = (x * shape.strides[1] + kx * shape.dilations[1]).wrapping_sub(shape.pads[1]);
            to[ky * shape.kernel[1] + kx] = if line < shape.height && column < shape.width {
                ((image * shape.height + line) * shape.width + column) * shape.channels
            } else {
                OUTSIDE
            };
        }
    }
}

/// Whether an offset is none.
pub(super) fn is_outside(offset: usize) -> bool {
    offset == OUTSIDE
}
