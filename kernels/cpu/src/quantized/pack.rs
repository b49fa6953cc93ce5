//! The right operand in the kernels' order: panels of columns, each group of depth together; behind them the sums of
//! all columns.

use super::Kernel;

/// Bytes of a packed right operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedSize {
    /// Panels and sums together.
    pub bytes: usize,
    /// Where the sums begin.
    pub sums: usize,
    /// Columns rounded up to whole panels: how many sums there are.
    pub columns: usize,
}

impl PackedSize {
    /// For `depth x columns` elements packed for `kernel`; `None` when that overflows.
    pub fn new(kernel: &Kernel, depth: usize, columns: usize) -> Option<Self> {
        let columns = columns.checked_next_multiple_of(kernel.nr)?;
        let sums = columns.checked_mul(kernel.padded_depth(depth)?)?.checked_next_multiple_of(64)?;
        let bytes = sums.checked_add(columns.checked_mul(4)?.checked_next_multiple_of(64)?)?;
        Some(Self { bytes, sums, columns })
    }
}

/// Packs the right operand `value(step, column)` into `to`; what is unsigned has to be moved by 128 by the caller.
///
/// # Panics
/// When `to` is not exactly as long as [`PackedSize`] says.
pub fn pack(kernel: &Kernel, depth: usize, columns: usize, to: &mut [u8], value: impl Fn(usize, usize) -> i8) {
    let size = PackedSize::new(kernel, depth, columns);
    let Some(size) = size.filter(|size| size.bytes == to.len()) else { panic!("the packed operand has another size") };
    let (panels, sums) = to.split_at_mut(size.sums);
    panels.fill(0);
    sums.fill(0);
    let (nr, group) = (kernel.nr, kernel.group);
    let steps = kernel.steps(depth).unwrap_or_default();
    for column in 0..columns {
        let (panel, place) = (column / nr, column % nr);
        let first = panel * steps * nr * group + place * group;
        let mut sum = 0i32;
        for step in 0..depth {
            let value = value(step, column);
            sum = sum.wrapping_add(value.into());
            panels[first + step / group * nr * group + step % group] = value as u8;
        }
        sums[4 * column..4 * column + 4].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Weights of a depthwise convolution, `value(tap, channel)` without their zero points: `[tap][channel]` as 16-bit
/// numbers, and behind them, from a multiple of 64 bytes on, the sum of each channel's.
pub fn depthwise_weights(taps: usize, channels: usize, value: impl Fn(usize, usize) -> i16) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::with_capacity(taps * channels * 2 + channels * 4 + 64);
    for tap in 0..taps {
        bytes.extend((0..channels).flat_map(|channel| value(tap, channel).to_le_bytes()));
    }
    bytes.resize(bytes.len().next_multiple_of(64), 0);
    for channel in 0..channels {
        let sum: i32 = (0..taps).map(|tap| i32::from(value(tap, channel))).sum();
        bytes.extend(sum.to_le_bytes());
    }
    bytes
}
