//! The product in blocks: rows copied into the kernels' order, panels of columns against them, each tile finished while
//! it is still in cache.

use super::{
    Finish, Kernel, Output, PackedSize, Rows,
    finish::{Panel, SharedOutput, Sums},
    flip, kernels,
    tile::{COLUMNS_MAX, TILE_MAX, Tile},
};
use crate::{
    gemm::{Place, Workspace, words_apart},
    isa::{Isa, per_level},
    pool::ThreadPool,
};

/// How a product is cut up: a tactic.
#[derive(Clone, Copy, Debug)]
pub struct Blocking {
    pub kernel: &'static Kernel,
    /// Rows per task.
    pub row_block: usize,
    /// Columns per task; rounded up to whole panels.
    pub column_block: usize,
}

/// What a product multiplies its rows by, and what becomes of it.
#[derive(Clone, Copy, Debug)]
pub struct Product<'a> {
    /// As [`super::pack`] packs it.
    pub packed: &'a [u8],
    pub columns: usize,
    /// Rows hold signed bytes.
    pub signed: bool,
    /// The zero point of the rows, as they hold it.
    pub zero: u8,
    /// The zero points of the columns, one or one for each, moved as the columns were; empty: all 0.
    pub column_zeros: &'a [i32],
    pub finish: Finish<'a>,
}

per_level! {
    /// Makes bytes unsigned.
    fn flipped(bytes: &mut [u8], by: u8) {
        bytes.iter_mut().for_each(|byte| *byte ^= by);
    }
}

per_level! {
    /// Bytes as 16-bit numbers.
    fn widened(bytes: &[u8], to: &mut [u8]) {
        for (to, &byte) in to.chunks_exact_mut(2).zip(bytes) {
            to.copy_from_slice(&i16::from(byte).to_le_bytes());
        }
    }
}

/// Rows that are copied before they are widened.
const WIDENED_TOGETHER: usize = 8;

fn sum_of(bytes: &[u8]) -> i32 {
    bytes.iter().fold(0i32, |sum, &byte| sum.wrapping_add(byte.into()))
}

/// The sums of columns behind the panels.
fn column_sum(packed: &[u8], size: PackedSize, column: usize) -> i32 {
    let at = size.sums + 4 * column;
    i32::from_le_bytes([packed[at], packed[at + 1], packed[at + 2], packed[at + 3]])
}

/// Multiplies every row of `rows` by all columns; row `r` of the result lies at `place.offset + r * place.stride`.
///
/// # Panics
/// When an operand is not as large as the others want it, or the kernel is none of `isa`.
pub fn multiply(
    isa: Isa,
    pool: &ThreadPool,
    workspace: &Workspace,
    blocking: &Blocking,
    rows: &dyn Rows,
    product: &Product<'_>,
    (mut to, place): (Output<'_>, Place),
) {
    let (count, depth, kernel, columns) = (rows.count(), rows.depth(), blocking.kernel, product.columns);
    assert!(
        kernels(isa.level()).iter().any(|known| std::ptr::eq(*known, kernel)),
        "{} is no kernel of {}",
        kernel.name,
        isa.level()
    );
    let size = PackedSize::new(kernel, depth, columns);
    let Some(size) = size.filter(|size| size.bytes <= product.packed.len()) else {
        panic!("the packed operand is too short");
    };
    let zeros = product.column_zeros.len();
    assert!(zeros <= 1 || zeros == columns, "there are not as many zero points as columns");
    product.finish.check(columns, &to);
    assert!(place.end(count, columns).is_some_and(|end| end <= to.len()), "a matrix is longer than its data");
    if count == 0 || columns == 0 {
        return;
    }
    let row_block = blocking.row_block.clamp(1, count);
    let column_block = blocking.column_block.clamp(1, columns).next_multiple_of(kernel.nr);
    let row_tasks = count.div_ceil(row_block);
    let tasks = row_tasks * columns.div_ceil(column_block);
    let to = to.shared();
    pool.run(tasks, |task, thread| {
        let row = (task % row_tasks) * row_block;
        let column = (task / row_tasks) * column_block;
        let rows_of = row..(row + row_block).min(count);
        let block = Block { rows: rows_of, columns: column..(column + column_block).min(columns), depth };
        workspace.with_bytes(thread, |scratch| {
            // SAFETY: `place.end` and `Finish::check` covered the output; blocks of different tasks are disjoint.
            unsafe { run_block(isa, kernel, size, rows, product, &block, (to, place), scratch) }
        });
    });
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// Sums by line of the cache.
#[repr(align(64))]
struct SumsByLine([i32; TILE_MAX]);

/// A part of the result in rows and columns.
pub(super) struct Block {
    pub rows: std::ops::Range<usize>,
    pub columns: std::ops::Range<usize>,
    /// Of every row, asked once: what is safe must not rest on rows that give another one later.
    pub depth: usize,
}

/// Computes one block on this thread.
///
/// # Safety
/// `to` holds the whole result at `place`, of which nobody else uses the block; its columns begin at a panel. `size` is that
/// of the packed operand, and the machine runs the kernel.
#[expect(clippy::too_many_arguments, reason = "a product has that many operands")]
pub(super) unsafe fn run_block(
    isa: Isa,
    kernel: &Kernel,
    size: PackedSize,
    rows: &dyn Rows,
    product: &Product<'_>,
    block: &Block,
    (to, place): (SharedOutput, Place),
    scratch: &mut Vec<u8>,
) {
    let (depth, count) = (block.depth, block.rows.len());
    // As `size` was made with them, there are that many.
    let steps = kernel.steps(depth).unwrap_or(usize::MAX);
    let stride = if kernel.together > 1 { words_apart(steps) } else { steps }.saturating_mul(4);
    let by = flip(product.signed);
    let column_zero = |column: usize| match product.column_zeros {
        [] => 0,
        [one] => *one,
        all => all[column],
    };
    let has_zeros = product.column_zeros.iter().any(|&zero| zero != 0);
    // Rows as the kernel reads them, a sum for each row, and some rows of bytes on their way to 16-bit numbers.
    let some = if kernel.group == 4 { 0 } else { WIDENED_TOGETHER.min(count) };
    let sizes = (count.checked_mul(stride), count.checked_mul(4), some.checked_mul(depth));
    let (Some(copied), Some(sums), Some(narrow)) = sizes else { panic!("the rows are larger than any memory") };
    let Some(needed) = copied.checked_add(sums).and_then(|all| all.checked_add(narrow)?.checked_add(LINE)) else {
        panic!("the rows are larger than any memory")
    };
    if scratch.len() < needed {
        scratch.resize(needed, 0);
    }
    let begin = scratch.as_ptr().align_offset(LINE).min(LINE);
    let (packed_rows, rest) = scratch[begin..needed].split_at_mut(copied);
    let (row_sums, narrow) = rest.split_at_mut(sums);
    if kernel.group == 4 && count > 0 {
        rows.fill(block.rows.clone(), stride, packed_rows);
        if by != 0 {
            flipped(isa, packed_rows, by);
        }
        for (row, of_row) in packed_rows.chunks_exact_mut(stride.max(1)).enumerate() {
            if has_zeros {
                row_sums[4 * row..4 * row + 4].copy_from_slice(&sum_of(&of_row[..depth]).to_le_bytes());
            }
            of_row[depth..].fill(0);
        }
    }
    for first in (0..count).step_by(some.max(1)).take(if some == 0 { 0 } else { count }) {
        let together = some.min(count - first);
        let narrow = &mut narrow[..together * depth];
        let from = block.rows.start + first;
        rows.fill(from..from + together, depth, narrow);
        if by != 0 {
            flipped(isa, narrow, by);
        }
        for row in 0..together {
            let bytes = &narrow[row * depth..][..depth];
            if has_zeros {
                row_sums[4 * (first + row)..][..4].copy_from_slice(&sum_of(bytes).to_le_bytes());
            }
            let (whole, padding) = packed_rows[(first + row) * stride..][..stride].split_at_mut(2 * depth);
            widened(isa, bytes, whole);
            padding.fill(0);
        }
    }
    let zero = i32::from(product.zero ^ by);
    let mut sums = SumsByLine([0i32; TILE_MAX]);
    let sums = &mut sums.0;
    for column in block.columns.clone().step_by(kernel.nr) {
        let columns = kernel.nr.min(block.columns.end - column);
        let mut panel = Panel::new(&product.finish, column, columns);
        let mut zeros = [0i32; COLUMNS_MAX];
        zeros[..columns].iter_mut().enumerate().for_each(|(at, of)| *of = column_zero(column + at));
        for (at, moved) in panel.moved[..columns].iter_mut().enumerate() {
            let of_zeros = (depth as i32).wrapping_mul(zero).wrapping_mul(zeros[at]);
            *moved = of_zeros.wrapping_sub(zero.wrapping_mul(column_sum(product.packed, size, column + at)));
        }
        let b = product.packed[column / kernel.nr * kernel.nr * steps * kernel.group..].as_ptr();
        for first in (0..count).step_by(kernel.mr) {
            let tile_rows = kernel.mr.min(count - first);
            let tile =
                Tile { a: packed_rows[first * stride..].as_ptr(), a_stride: stride, steps, b, sums: sums.as_mut_ptr() };
            // SAFETY: the rows lie in `packed_rows`, the panel in `packed` as `size` says, and a tile of any kernel fits
            // `sums`; the caller promises the instructions.
            unsafe { kernel.by_rows[tile_rows - 1](&tile) };
            if has_zeros {
                for (row, sums) in sums.chunks_exact_mut(kernel.nr).take(tile_rows).enumerate() {
                    let of_row = &row_sums[4 * (first + row)..][..4];
                    let row_sum = i32::from_le_bytes([of_row[0], of_row[1], of_row[2], of_row[3]]);
                    for (sum, zero) in sums[..columns].iter_mut().zip(&zeros) {
                        *sum = sum.wrapping_sub(row_sum.wrapping_mul(*zero));
                    }
                }
            }
            let of = Sums { of: &*sums, stride: kernel.nr, rows: tile_rows };
            let at = place.offset + (block.rows.start + first) * place.stride + column;
            // SAFETY: the caller's promise, cut to these rows of the panel.
            unsafe { product.finish.store(isa, of, &panel, to, [at, place.stride]) };
        }
    }
}
