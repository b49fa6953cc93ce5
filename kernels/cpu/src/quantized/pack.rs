//! The right operand in the kernels' order: panels of columns, each group of depth together; behind them the sums of
//! all columns.

use super::{Kernel, tile::COLUMNS_MAX};
use crate::isa::{Isa, per_level};

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

/// Bytes as they lie: element `(step, column)` at `step * strides[0] + column * strides[1]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns<'a> {
    pub data: &'a [u8],
    pub strides: [usize; 2],
    /// What makes signed bytes of them.
    pub flip: u8,
}

per_level! {
    /// Four steps of columns that lie side by side, each column's together; adds them to the columns' sums.
    fn interleaved(lines: [&[u8]; 4], flip: u8, to: &mut [u8], sums: &mut [i32]) {
        let [a, b, c, d] = lines;
        let flips = u32::from_le_bytes([flip; 4]);
        let (words, _) = to.as_chunks_mut::<4>();
        for ((((a, b), c), d), word) in a.iter().zip(b).zip(c).zip(d).zip(words) {
            let [a, b, c, d] = [*a, *b, *c, *d].map(u32::from);
            *word = ((a | b << 8 | c << 16 | d << 24) ^ flips).to_le_bytes();
        }
        for line in lines {
            line.iter().zip(&mut *sums).for_each(|(byte, sum)| *sum = sum.wrapping_add(((byte ^ flip) as i8).into()));
        }
    }
}

per_level! {
    /// A column whose steps lie one behind the other, by fours, each `apart` bytes behind the ones before.
    fn by_fours(column: &[u8], flip: u8, apart: usize, to: &mut [u8], sum: &mut i32) {
        let (fours, rest) = column.as_chunks::<4>();
        for (four, to) in fours.iter().zip(to.chunks_mut(apart.max(4))) {
            let four = four.map(|byte| byte ^ flip);
            to[..4].copy_from_slice(&four);
            let [a, b, c, d] = four.map(|byte| i32::from(byte as i8));
            *sum = sum.wrapping_add(a + b + c + d);
        }
        if !rest.is_empty() {
            for (byte, to) in rest.iter().zip(&mut to[fours.len() * apart.max(4)..]) {
                *to = byte ^ flip;
                *sum = sum.wrapping_add(i32::from(*to as i8));
            }
        }
    }
}

/// Packs a right operand that was computed, as [`pack`] packs weights.
///
/// # Panics
/// When `to` is not exactly as long as [`PackedSize`] says, or the data shorter than its strides say.
pub(super) fn pack_columns(isa: Isa, kernel: &Kernel, [depth, columns]: [usize; 2], from: &Columns<'_>, to: &mut [u8]) {
    let &Columns { data, strides: [by_step, by_column], flip } = from;
    if kernel.group != 4 || (by_step != 1 && by_column != 1) {
        return pack(kernel, depth, columns, to, |step, column| {
            (data[step * by_step + column * by_column] ^ flip) as i8
        });
    }
    let size = PackedSize::new(kernel, depth, columns);
    let Some(size) = size.filter(|size| size.bytes == to.len()) else { panic!("the packed operand has another size") };
    let (panels, sums) = to.split_at_mut(size.sums);
    panels.fill(0);
    sums.fill(0);
    let (nr, steps) = (kernel.nr, kernel.steps(depth).unwrap_or_default());
    let mut own = [0i32; COLUMNS_MAX];
    for (index, panel) in panels.chunks_exact_mut((steps * nr * 4).max(1)).enumerate() {
        let first = index * nr;
        let count = nr.min(columns - first);
        let own = &mut own[..count];
        own.fill(0);
        if by_step == 1 {
            for (place, sum) in own.iter_mut().enumerate() {
                let column = &data[(first + place) * by_column..][..depth];
                by_fours(isa, column, flip, nr * 4, &mut panel[place * 4..], sum);
            }
        } else {
            let nothing = [flip; COLUMNS_MAX];
            for (step, to) in (0..depth).step_by(4).zip(panel.chunks_exact_mut(nr * 4)) {
                // Steps beyond the last one become zeros.
                let line = |at: usize| match step + at < depth {
                    true => &data[(step + at) * by_step + first..][..count],
                    false => &nothing[..count],
                };
                interleaved(isa, [line(0), line(1), line(2), line(3)], flip, &mut to[..count * 4], own);
            }
        }
        for (to, sum) in sums[4 * first..].chunks_exact_mut(4).zip(&*own) {
            to.copy_from_slice(&sum.to_le_bytes());
        }
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
