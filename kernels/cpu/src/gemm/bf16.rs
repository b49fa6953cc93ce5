//! Products of f32 numbers that are rounded to bf16 on their way: half the bytes, and twice to sixteen times the products
//! of an instruction. Sums stay f32.
//!
//! A step of depth is a pair of numbers in the place of one f32: operands are slices of f32 whose words hold pairs, the
//! earlier in the lower half. Rows of a tile lie one behind the other. The instructions take subnormal factors for zero.

use super::{
    Block, Epilogue, Place, Pointers, Rows, grow,
    tile::{Kernel, Tile},
    times,
};
use crate::isa::{Isa, IsaLevel, per_level};

/// The kernels written for `level` that multiply as bf16, the usually best one first; none for levels without such
/// instructions.
pub fn bf16_kernels(level: IsaLevel) -> &'static [&'static Kernel] {
    match level {
        #[cfg(target_arch = "x86_64")]
        IsaLevel::X86V4Bf16 => &x86::BF16,
        #[cfg(target_arch = "x86_64")]
        IsaLevel::X86V4Amx => &x86::AMX,
        _ => &[],
    }
}

/// The nearest bf16, of two as near the even one; NaN stays one.
#[inline(always)]
fn rounded(value: f32) -> u32 {
    let bits = value.to_bits();
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if value.is_nan() { bits >> 16 | 0x40 } else { nearest }
}

/// Two numbers in the place of one.
pub(super) fn pair(first: f32, second: f32) -> f32 {
    f32::from_bits(rounded(first) | rounded(second) << 16)
}

per_level! {
    /// A row of numbers as pairs, the last with zero where the row has no more, and zeros behind them.
    fn paired(row: &[f32], to: &mut [f32]) {
        let (pairs, odd) = row.as_chunks::<2>();
        let (whole, rest) = to.split_at_mut(pairs.len());
        for (to, [first, second]) in whole.iter_mut().zip(pairs) {
            *to = pair(*first, *second);
        }
        rest.fill(0.0);
        if let (Some(to), [last]) = (rest.first_mut(), odd) {
            *to = pair(*last, 0.0);
        }
    }
}

/// Steps, which are words of four bytes, of a cache line.
const LINE: usize = 16;

/// Words of four bytes from a row to the next, so that no two of a tile's lie at the same place of a cache: an odd number of
/// lines.
pub(crate) fn words_apart(words: usize) -> usize {
    let lines = words.div_ceil(LINE);
    (lines + usize::from(lines.is_multiple_of(2))).saturating_mul(LINE)
}

/// What of it begins at a cache line.
fn aligned(memory: &mut [f32]) -> &mut [f32] {
    let skipped = memory.as_ptr().align_offset(LINE * size_of::<f32>()).min(memory.len());
    &mut memory[skipped..]
}

/// Packs gathered rows, each in `steps` steps and `to.len() / rows` apart.
///
/// # Safety
/// `table` holds, for each tap, one pointer per row, each valid for `tap_len` elements.
unsafe fn pack_rows(
    isa: Isa,
    (table, rows): (&[*const f32], usize),
    tap_len: usize,
    (row, steps): (&mut Vec<f32>, usize),
    to: &mut [f32],
) {
    let (taps, stride) = (table.len() / rows, to.len() / rows);
    assert!(taps * tap_len <= 2 * steps && steps <= stride, "the packed rows are too long for their buffer");
    for (at, to) in to.chunks_exact_mut(stride.max(1)).enumerate() {
        let to = &mut to[..steps];
        // SAFETY: the caller's promise.
        let piece = |tap: usize| unsafe { std::slice::from_raw_parts(table[tap * rows + at], tap_len) };
        if taps == 1 {
            paired(isa, piece(0), to);
        } else if tap_len.is_multiple_of(2) {
            let (whole, padding) = to.split_at_mut(taps * tap_len / 2);
            whole.chunks_exact_mut((tap_len / 2).max(1)).enumerate().for_each(|(tap, to)| paired(isa, piece(tap), to));
            padding.fill(0.0);
        } else {
            // Pairs reach from one piece into the next.
            row.clear();
            (0..taps).for_each(|tap| row.extend_from_slice(piece(tap)));
            paired(isa, row, to);
        }
    }
}

/// Computes one block on this thread: as [`super::run_block`], with the same promises, in one pass over the depth.
///
/// # Safety
/// As [`super::run_block`].
#[expect(clippy::too_many_arguments, reason = "a product has that many operands")]
pub(super) unsafe fn run_block(
    isa: Isa,
    kernel: &Kernel,
    source: &dyn Rows,
    b: &[f32],
    block: Block,
    (c, place): (*mut f32, Place),
    epilogue: &Epilogue<'_>,
    (pointers, packed, gathered): (&mut Pointers, &mut Vec<f32>, &mut Vec<f32>),
) {
    let (taps, tap_len) = (source.taps(), source.tap_len());
    let steps = kernel.steps(times(taps, tap_len)).expect("sizes of a product are out of bounds");
    let stride = words_apart(steps);
    let row_count = block.rows.len();
    let table = grow(&mut pointers.0, times(kernel.mr, taps), std::ptr::null());
    let packed = aligned(grow(packed, times(row_count, stride).saturating_add(LINE), 0.0));
    for first in (0..row_count).step_by(kernel.mr) {
        let rows = kernel.mr.min(row_count - first);
        let table = &mut table[..rows * taps];
        source.pointers(block.rows.start + first, rows, table);
        // SAFETY: the pointers come from `Rows::pointers`, whose contract makes them valid for `tap_len` elements.
        unsafe {
            pack_rows(isa, (table, rows), tap_len, (gathered, steps), &mut packed[first * stride..][..rows * stride])
        };
    }
    for column in block.columns.clone().step_by(kernel.nr) {
        let columns = kernel.nr.min(block.columns.end - column);
        let panel = b[column / kernel.nr * kernel.nr * steps..].as_ptr();
        for first in (0..row_count).step_by(kernel.mr) {
            let rows = kernel.mr.min(row_count - first);
            let row = block.rows.start + first;
            let a = packed[first * stride..].as_ptr();
            let tile_c = c.wrapping_add(row * place.stride + column);
            let tile = Tile {
                a: &raw const a,
                a_offset: 0,
                taps: 1,
                tap_len: steps,
                a_stride: stride,
                b: panel,
                c: tile_c,
                c_stride: place.stride,
                columns,
                accumulate: false,
                finish: Some(epilogue.of_tile(row, column)),
            };
            // SAFETY: the caller's promise, cut to this tile; its rows lie in `packed`.
            unsafe {
                kernel.packed_by_rows[rows - 1](&tile);
                epilogue.activate(isa, (tile_c, place.stride), rows, columns);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::tile::{Factors, Kernel, Tile, conclude};
    use crate::{isa::IsaLevel, tiles, vector::*};
    use std::arch::x86_64::*;

    /// Rows and registers of columns of a tile of vectors.
    const ROWS: usize = 14;
    const REGISTERS: usize = 2;

    /// Computes a tile of MR packed rows by two registers of columns.
    ///
    /// # Safety
    /// The machine runs AVX-512 BF16; every pointer of `tile` is valid for what its documentation says.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,bmi2")]
    unsafe fn vectors<const MR: usize>(tile: &Tile) {
        // SAFETY: the caller's promise: MR rows of `tap_len` steps one behind the other, as many lines of two registers.
        unsafe {
            let mut sums = [[_mm512_setzero_ps(); VECTORS_MAX]; ROWS_MAX];
            let rows = *tile.a;
            let mut b = tile.b;
            for step in 0..tile.tap_len {
                let columns = |register: usize| from_bits(_mm512_loadu_si512(b.add(16 * register).cast()));
                let columns = [columns(0), columns(1)];
                each_row!(MR, R, {
                    let a = from_bits(_mm512_set1_epi32((*rows.add(R * tile.a_stride + step)).to_bits().cast_signed()));
                    sums[R][0] = _mm512_dpbf16_ps(sums[R][0], a, columns[0]);
                    sums[R][1] = _mm512_dpbf16_ps(sums[R][1], a, columns[1]);
                });
                b = b.add(16 * REGISTERS);
            }
            let mut all = [[Avx512::zero(); VECTORS_MAX]; ROWS_MAX];
            each_row!(MR, R, { each_vector!(REGISTERS, J, { all[R][J] = Avx512::from(sums[R][J]) }) });
            conclude::<Avx512, MR, REGISTERS>(tile, &mut all);
        }
    }

    #[inline(always)]
    fn from_bits(bits: __m512i) -> __m512bh {
        // SAFETY: both are 64 bytes that may hold anything.
        unsafe { std::mem::transmute(bits) }
    }

    /// Sums of a tile, by line of the cache.
    #[repr(align(64))]
    struct Sums([u32; tiles::ROWS * tiles::COLUMNS]);

    /// As [`vectors`], in the matrix unit.
    ///
    /// # Safety
    /// The machine runs AMX and lets this process use it; as [`vectors`], and the steps make whole tiles.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2")]
    unsafe fn matrix<const MR: usize>(tile: &Tile) {
        let mut sums = Sums([0; tiles::ROWS * tiles::COLUMNS]);
        // SAFETY: the caller's promise; a tile of any number of rows fits `sums`, whose rows are read as they were written.
        unsafe {
            let (rows, stride) = ((*tile.a).cast(), 4 * tile.a_stride);
            let to = sums.0.as_mut_ptr();
            tiles::multiply::<MR>(tiles::Factors::Bf16, (rows, stride), tile.b.cast(), tile.tap_len, to);
            for (row, sums) in sums.0.chunks_exact(tiles::COLUMNS).take(MR).enumerate() {
                let mut all = [[Avx512::zero(); VECTORS_MAX]; ROWS_MAX];
                each_vector!(2, J, { all[0][J] = Avx512::load(sums.as_ptr().cast::<f32>().add(16 * J)) });
                conclude::<Avx512, 1, 2>(&tile.row(row), &mut all);
            }
        }
    }

    static VECTORS: Kernel = Kernel {
        name: "avx512bf16_14x32",
        factors: Factors::Bf16,
        together: 1,
        level: IsaLevel::X86V4Bf16,
        mr: ROWS,
        nr: 16 * REGISTERS,
        by_rows: &[],
        packed_by_rows: &[
            vectors::<1>,
            vectors::<2>,
            vectors::<3>,
            vectors::<4>,
            vectors::<5>,
            vectors::<6>,
            vectors::<7>,
            vectors::<8>,
            vectors::<9>,
            vectors::<10>,
            vectors::<11>,
            vectors::<12>,
            vectors::<13>,
            vectors::<14>,
        ],
    };
    static MATRIX: Kernel = Kernel {
        name: "amx_bf16_32x32",
        factors: Factors::Bf16,
        together: tiles::STEPS,
        level: IsaLevel::X86V4Amx,
        mr: tiles::ROWS,
        nr: tiles::COLUMNS,
        by_rows: &[],
        packed_by_rows: &tiles::each_row_count!(matrix),
    };
    pub(super) static BF16: [&Kernel; 1] = [&VECTORS];
    pub(super) static AMX: [&Kernel; 2] = [&MATRIX, &VECTORS];
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    #[test]
    fn numbers_are_rounded_as_bf16_is() {
        let bits = (0..=0xffffu32).flat_map(|high| [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff].map(|low| high << 16 | low));
        for value in bits.map(f32::from_bits) {
            let [wanted, got] = [bf16::from_f32(value).to_bits(), rounded(value) as u16].map(bf16::from_bits);
            assert!(got == wanted || got.is_nan() && wanted.is_nan(), "{value:e}: {got}, not {wanted}");
            assert!(rounded(value) <= 0xffff, "{value:e}");
        }
        assert_eq!(pair(1.0, -2.0).to_bits(), 0xc000_3f80);
    }

    #[test]
    fn rows_become_pairs_with_zeros_behind_them() {
        for isa in Isa::available() {
            for len in 0..70 {
                let row: Vec<f32> = (0..len).map(|at| at as f32 + 1.0).collect();
                let mut to = vec![f32::NAN; 40];
                paired(isa, &row, &mut to);
                let numbers = to.iter().flat_map(|word| {
                    let bits = word.to_bits();
                    [bits << 16, bits & 0xffff_0000].map(f32::from_bits)
                });
                let wanted = (0..80).map(|at| if at < len { at as f32 + 1.0 } else { 0.0 });
                assert!(numbers.eq(wanted), "{len} numbers at {:?}", isa.level());
            }
        }
    }
}
