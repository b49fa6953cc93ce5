//! Depthwise convolution of bytes: every channel by itself, a block of them side by side.

use super::{
    Finish, Output,
    finish::{Panel, SharedOutput},
    flip,
    tile::COLUMNS_MAX,
};
use crate::{
    conv::ConvShape,
    isa::{Isa, per_level},
    pool::ThreadPool,
};

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

/// Channels that are added up together.
const TOGETHER: usize = 16;

per_level! {
    /// For each channel the sum over taps of what lies at their offsets by their weights; `beyond` stands where there is
    /// nothing.
    fn add_taps(image: &[u8], beyond: &[u8], offsets: &[usize], of: Channels<'_>, to: &mut [i32]) {
        let Channels { weights, stride, first, by } = of;
        let line = |offset: usize, at: usize, len: usize| {
            if offset == OUTSIDE { &beyond[..len] } else { &image[offset + first + at..][..len] }
        };
        let whole = to.len() / TOGETHER * TOGETHER;
        let (blocks, rest) = to.split_at_mut(whole);
        for (block, to) in blocks.chunks_exact_mut(TOGETHER).enumerate() {
            let at = block * TOGETHER;
            let mut sums = [0i32; TOGETHER];
            for (tap, &offset) in offsets.iter().enumerate() {
                let x = line(offset, at, TOGETHER);
                let w = &weights[tap * stride + first + at..][..TOGETHER];
                for lane in 0..TOGETHER {
                    sums[lane] += i32::from(x[lane] ^ by) * i32::from(w[lane]);
                }
            }
            to.copy_from_slice(&sums);
        }
        for (index, to) in rest.iter_mut().enumerate() {
            let at = whole + index;
            *to = offsets.iter().enumerate().fold(0, |sum, (tap, &offset)| {
                sum + i32::from(line(offset, at, 1)[0] ^ by) * i32::from(weights[tap * stride + first + at])
            });
        }
    }
}

/// Channels from `first` on, of all `stride`.
#[derive(Clone, Copy)]
struct Channels<'a> {
    weights: &'a [i16],
    stride: usize,
    first: usize,
    /// Combined with each byte.
    by: u8,
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
    let by = flip(of.signed);
    let zero = i32::from(of.zero ^ by);
    let panels: Vec<Panel> = (0..channels)
        .step_by(COLUMNS_MAX)
        .map(|first| {
            let columns = COLUMNS_MAX.min(channels - first);
            let mut panel = Panel::new(&of.finish, first, columns);
            for (moved, sum) in panel.moved.iter_mut().zip(&of.sums[first..first + columns]) {
                *moved = zero.wrapping_mul(*sum).wrapping_neg();
            }
            panel
        })
        .collect();
    let to: SharedOutput = to.shared();
    let lines = shape.pixels() / shape.out_width.max(1);
    pool.run(lines, |line, _| {
        let beyond = [of.zero; COLUMNS_MAX];
        let mut offsets = vec![OUTSIDE; taps];
        let mut sums = [0i32; COLUMNS_MAX];
        for x in 0..shape.out_width {
            let row = line * shape.out_width + x;
            offsets_of(shape, row, &mut offsets);
            for (index, panel) in panels.iter().enumerate() {
                let first = index * COLUMNS_MAX;
                let part = Channels { weights: of.weights, stride: channels, first, by };
                add_taps(isa, of.image, &beyond, &offsets, part, &mut sums[..panel.columns]);
                // SAFETY: `check` passed the output, which has `channels` elements for each pixel; each line belongs to
                // one task.
                unsafe { of.finish.store(isa, &sums, panel, to, row * channels + first) };
            }
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
