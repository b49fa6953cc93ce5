//! f32 matrix products `C = act(alpha A B + bias + residual)` with B packed ahead of time.
//!
//! The rows of A are only pointers ([`Rows`]), so a convolution over an NHWC image is a product without an im2col
//! copy. C is cut into blocks of `row_block` x `column_block`; threads take blocks. Within a block a panel of B meets
//! all row tiles before the next panel, so that it stays in cache. Each register tile covers the whole depth unless
//! `depth_block` cuts it.

mod attention;
mod batch;
mod bf16;
mod pack;
mod tile;

pub use attention::{Attention, AttentionShape, HeadRows, Mask, attention, attention_in_passes, score_count};
pub use batch::{Batch, BatchError, BatchItem, BatchShape, View, multiply_batch};
pub use bf16::bf16_kernels;
pub(crate) use bf16::words_apart;
pub use pack::{PackedSize, pack_columns, pack_with};
pub(crate) use tile::in_register;
pub use tile::{Factors, Kernel, kernel_by_name, kernels};

use crate::{
    isa::{Isa, IsaLevel},
    pointwise::{Activation, Lines, activate_lines},
    pool::ThreadPool,
};
use pack::pack_rows;
use std::sync::{Mutex, PoisonError};
use tile::{Finish, Tile};

/// The rows of a left operand: each is `taps` pieces of `tap_len` contiguous elements.
///
/// # Safety
/// [`Rows::pointers`] writes all the pointers it is asked for, and each is valid for reads of `tap_len` elements while
/// `self` lives. `count`, `taps` and `tap_len` always give the same.
pub unsafe trait Rows: Sync {
    /// How many rows there are.
    fn count(&self) -> usize;
    fn taps(&self) -> usize;
    fn tap_len(&self) -> usize;
    /// Writes the pointer of tap `t` of row `first + r` to `to[t * rows + r]`, for all `r` below `rows`; these rows are
    /// below `count`.
    fn pointers(&self, first: usize, rows: usize, to: &mut [*const f32]);
}

/// The rows of a row-major matrix.
#[derive(Debug)]
pub struct MatrixRows<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    stride: usize,
}

impl<'a> MatrixRows<'a> {
    /// `rows` rows of `columns` elements, `stride` apart.
    ///
    /// # Panics
    /// When `data` is shorter than that.
    pub fn new(data: &'a [f32], rows: usize, columns: usize, stride: usize) -> Self {
        // Rows that are only read may overlap.
        let end = rows.checked_sub(1).map_or(Some(0), |last| last.checked_mul(stride)?.checked_add(columns));
        assert!(end.is_some_and(|end| end <= data.len()), "the matrix is longer than its data");
        Self { data, rows, columns, stride }
    }
}

// SAFETY: `new` checked, without overflow, that every row lies within `data`.
unsafe impl Rows for MatrixRows<'_> {
    fn count(&self) -> usize {
        self.rows
    }
    fn taps(&self) -> usize {
        1
    }
    fn tap_len(&self) -> usize {
        self.columns
    }
    #[inline]
    fn pointers(&self, first: usize, rows: usize, to: &mut [*const f32]) {
        for (row, to) in to[..rows].iter_mut().enumerate() {
            *to = self.data[(first + row) * self.stride..].as_ptr();
        }
    }
}

/// A part of a row-major matrix that a product is written to, or added from.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Element at row 0, column 0.
    pub offset: usize,
    /// From one row to the next.
    pub stride: usize,
}

impl Place {
    /// One beyond the last element of `rows` rows of `columns`; `None` when rows overlap or that overflows.
    pub(crate) fn end(self, rows: usize, columns: usize) -> Option<usize> {
        if rows == 0 || columns == 0 {
            return Some(0);
        }
        if rows > 1 && self.stride < columns {
            return None;
        }
        (rows - 1).checked_mul(self.stride)?.checked_add(columns)?.checked_add(self.offset)
    }
}

/// How a product is cut up: a tactic.
#[derive(Clone, Copy, Debug)]
pub struct Blocking {
    pub kernel: &'static Kernel,
    /// Copy the rows of a block into the order the kernel reads them. Those of bf16 kernels always are.
    pub pack_rows: bool,
    /// Rows per task.
    pub row_block: usize,
    /// Columns per task; rounded up to whole panels.
    pub column_block: usize,
    /// Depth steps per pass over C; `usize::MAX` for one pass. Kernels of bf16 know no other.
    pub depth_block: usize,
}

/// What follows the product, before it is stored.
#[derive(Clone, Copy, Debug)]
pub struct Epilogue<'a> {
    pub alpha: f32,
    /// One per column, padded with anything to whole panels.
    pub bias: Option<&'a [f32]>,
    /// Added element by element.
    pub residual: Option<(&'a [f32], Place)>,
    pub activation: Activation,
}

impl Default for Epilogue<'_> {
    fn default() -> Self {
        Self { alpha: 1.0, bias: None, residual: None, activation: Activation::None }
    }
}

impl Epilogue<'_> {
    /// What the microkernel does of it to the tile whose first element is that of this row and column.
    fn of_tile(&self, row: usize, column: usize) -> Finish {
        let (clip, low, high) = match self.activation {
            Activation::Relu => (true, 0.0, f32::INFINITY),
            Activation::Clip { low, high } => (true, low, high),
            _ => (false, 0.0, 0.0),
        };
        let residual = |(data, place): (&[f32], Place)| data[place.offset + row * place.stride + column..].as_ptr();
        Finish {
            alpha: self.alpha,
            bias: self.bias.map_or(std::ptr::null(), |bias| bias[column..].as_ptr()),
            residual: self.residual.map_or(std::ptr::null(), residual),
            residual_stride: self.residual.map_or(0, |(_, place)| place.stride),
            clip,
            low,
            high,
        }
    }

    /// What is left to do to a finished tile of C.
    ///
    /// # Safety
    /// `c` are `rows` rows of `columns` elements, each `stride` behind the one before, and nobody else's.
    unsafe fn activate(&self, isa: Isa, (c, stride): (*mut f32, usize), rows: usize, columns: usize) {
        if matches!(self.activation, Activation::None | Activation::Relu | Activation::Clip { .. }) {
            return;
        }
        // SAFETY: the caller's promise.
        let lines = unsafe { Lines::new(c, stride, rows, columns) };
        activate_lines(isa, self.activation, lines);
    }
}

/// Memory of one thread, grown on first use and kept.
#[derive(Debug, Default)]
struct ThreadScratch {
    pointers: Pointers,
    rows: Vec<f32>,
    columns: Vec<f32>,
    /// Rows of products of bytes.
    bytes: Vec<u8>,
    /// What rows of bytes are multiplied by, where that is no weight, and rows that are made on the way.
    panels: Vec<u8>,
}

#[derive(Debug, Default)]
struct Pointers(Vec<*const f32>);
// SAFETY: the pointers are written before they are read within one task; between tasks they mean nothing.
unsafe impl Send for Pointers {}

/// Scratch memory of every thread of a pool.
#[derive(Debug)]
pub struct Workspace {
    threads: Vec<Mutex<ThreadScratch>>,
}

impl Workspace {
    /// For pools of up to `threads` threads.
    pub fn new(threads: usize) -> Self {
        Self { threads: (0..threads).map(|_| Mutex::default()).collect() }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let of = |s: &ThreadScratch| {
            let floats = s.rows.capacity() + s.columns.capacity();
            s.pointers.0.capacity() * 8 + floats * 4 + s.bytes.capacity() + s.panels.capacity()
        };
        self.threads.iter().map(|s| of(&s.lock().unwrap_or_else(PoisonError::into_inner))).sum()
    }

    fn with<R>(&self, thread: usize, body: impl FnOnce(&mut ThreadScratch) -> R) -> R {
        // Contents mean nothing between tasks, so a poisoned lock does no harm.
        body(&mut self.threads[thread].lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The memory of a thread that products of bytes use, whatever is in it.
    pub(crate) fn with_bytes<R>(&self, thread: usize, body: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        self.with(thread, |scratch| body(&mut scratch.bytes))
    }

    /// The memory of a thread for products of computed bytes: so many of panels, so many floats, and what
    /// [`Workspace::with_bytes`] gives.
    pub(crate) fn with_panels<R>(
        &self,
        thread: usize,
        (bytes, floats): (usize, usize),
        body: impl FnOnce(&mut [u8], &mut [f32], &mut Vec<u8>) -> R,
    ) -> R {
        self.with(thread, |scratch| {
            let ThreadScratch { columns, bytes: rows, panels, .. } = scratch;
            body(grow(panels, bytes, 0), grow(columns, floats, 0.0), rows)
        })
    }
}

fn grow<T: Clone>(vector: &mut Vec<T>, len: usize, value: T) -> &mut [T] {
    if vector.len() < len {
        vector.resize(len, value);
    }
    &mut vector[..len]
}

/// The output, shared between threads that write disjoint blocks.
#[derive(Clone, Copy)]
struct Shared(*mut f32);
// SAFETY: the tasks of one loop write disjoint ranges: blocks of one product in `multiply`, of products that do not
// overlap in `multiply_batch`, of other heads, images or queries in `attention`.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Through a method, so that closures take the whole wrapper.
    fn at(self, offset: usize) -> *mut f32 {
        self.0.wrapping_add(offset)
    }
}

fn check_place(place: Place, rows: usize, columns: usize, len: usize) {
    let end = place.end(rows, columns);
    assert!(end.is_some_and(|end| end <= len), "a matrix is longer than its data, or its rows overlap");
}

/// `a * b`, of sizes whose product is that of something in memory.
///
/// # Panics
/// When it overflows, so that no later check compares with what is left of it.
fn times(a: usize, b: usize) -> usize {
    a.checked_mul(b).expect("sizes of a product are out of bounds")
}

/// `C = act(alpha A B + bias + residual)`, where `b` holds `columns` columns packed for the blocking's kernel.
///
/// # Panics
/// When an operand is shorter than its shape says, or the kernel's level is above `isa`'s.
#[expect(clippy::too_many_arguments, reason = "a product has that many operands")]
pub fn multiply(
    isa: Isa,
    pool: &ThreadPool,
    workspace: &Workspace,
    blocking: &Blocking,
    rows: &dyn Rows,
    (b, columns): (&[f32], usize),
    (c, place): (&mut [f32], Place),
    epilogue: &Epilogue<'_>,
) {
    let (count, kernel) = (rows.count(), blocking.kernel);
    let depth = times(rows.taps(), rows.tap_len());
    match kernel.factors {
        Factors::F32 => check_call(isa, kernel, (b, columns), depth, epilogue),
        Factors::Bf16 => check_operands(isa, kernel, bf16_kernels, (b, columns), depth, epilogue),
    }
    check_place(place, count, columns, c.len());
    if let Some((residual, place)) = epilogue.residual {
        check_place(place, count, columns, residual.len());
    }
    if count == 0 || columns == 0 {
        return;
    }
    let row_block = blocking.row_block.clamp(1, count);
    let column_block = blocking.column_block.clamp(1, columns).next_multiple_of(kernel.nr);
    let row_tasks = count.div_ceil(row_block);
    let tasks = row_tasks * columns.div_ceil(column_block);
    let c = Shared(c.as_mut_ptr());
    pool.run(tasks, |task, thread| {
        let row = (task % row_tasks) * row_block;
        let column = (task / row_tasks) * column_block;
        let block =
            Block { rows: row..(row + row_block).min(count), columns: column..(column + column_block).min(columns) };
        workspace.with(thread, |scratch| {
            let ThreadScratch { pointers, rows: packed, columns: row, .. } = scratch;
            let c = c.at(place.offset);
            // SAFETY: the checks above covered all operands; blocks of different tasks are disjoint.
            unsafe {
                match kernel.factors {
                    Factors::F32 => run_block(isa, blocking, rows, b, block, c, place, epilogue, pointers, packed),
                    Factors::Bf16 => {
                        bf16::run_block(isa, kernel, rows, b, block, (c, place), epilogue, (pointers, packed, row))
                    }
                }
            }
        });
    });
}

/// Checks what every product of f32 needs.
fn check_call(isa: Isa, kernel: &Kernel, b: (&[f32], usize), depth: usize, epilogue: &Epilogue<'_>) {
    check_operands(isa, kernel, kernels, b, depth, epilogue);
}

/// Likewise of any product; `known` are the kernels of a level.
fn check_operands(
    isa: Isa,
    kernel: &Kernel,
    known: impl Fn(IsaLevel) -> &'static [&'static Kernel],
    (b, columns): (&[f32], usize),
    depth: usize,
    epilogue: &Epilogue<'_>,
) {
    assert!(
        known(isa.level()).iter().any(|k| std::ptr::eq(*k, kernel)),
        "{} is no kernel of {}",
        kernel.name,
        isa.level()
    );
    let padded = times(columns.div_ceil(kernel.nr), kernel.nr);
    let steps = kernel.steps(depth).expect("sizes of a product are out of bounds");
    assert!(b.len() >= times(padded, steps), "the packed operand is too short");
    if let Some(bias) = epilogue.bias {
        assert!(bias.len() >= padded, "the bias is not padded to whole panels");
    }
}

/// A part of C in rows and columns.
struct Block {
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
}

/// Computes one block on this thread.
///
/// # Safety
/// `c` (row 0, column 0), bias and residual cover the whole product ([`check_place`]), `b` all panels at the depth of
/// `source` and the machine runs the kernel's level ([`check_call`]); nobody else reads or writes the block. Its columns
/// begin at a panel.
#[expect(clippy::too_many_arguments, reason = "a product has that many operands")]
unsafe fn run_block(
    isa: Isa,
    blocking: &Blocking,
    source: &dyn Rows,
    b: &[f32],
    block: Block,
    c: *mut f32,
    place: Place,
    epilogue: &Epilogue<'_>,
    pointers: &mut Pointers,
    packed: &mut Vec<f32>,
) {
    let kernel = blocking.kernel;
    let (taps, tap_len) = (source.taps(), source.tap_len());
    let depth = times(taps, tap_len);
    let row_count = block.rows.len();
    // One table per tile of rows: [tap][row of the tile].
    let table = grow(&mut pointers.0, times(row_count, taps), std::ptr::null());
    for first in (0..row_count).step_by(kernel.mr) {
        let rows = kernel.mr.min(row_count - first);
        let to = &mut table[first * taps..(first + rows) * taps];
        source.pointers(block.rows.start + first, rows, to);
    }
    if blocking.pack_rows {
        let packed = grow(packed, times(row_count, depth), 0.0);
        for first in (0..row_count).step_by(kernel.mr) {
            let rows = kernel.mr.min(row_count - first);
            let table = &table[first * taps..(first + rows) * taps];
            // SAFETY: the pointers come from `Rows::pointers`, whose contract makes them valid for `tap_len` elements.
            unsafe { pack_rows(table, rows, tap_len, &mut packed[first * depth..(first + rows) * depth]) };
        }
    }
    // Part of the depth in taps (gathered rows) or in elements.
    let (parts, part) = if depth == 0 {
        (1, 0)
    } else if taps == 1 || blocking.pack_rows {
        let part = blocking.depth_block.clamp(1, depth);
        (depth.div_ceil(part), part)
    } else {
        let part = (blocking.depth_block / tap_len).clamp(1, taps);
        (taps.div_ceil(part), part)
    };
    for index in 0..parts {
        let last = index + 1 == parts;
        for column in block.columns.clone().step_by(kernel.nr) {
            let columns = kernel.nr.min(block.columns.end - column);
            let panel = b[column / kernel.nr * kernel.nr * depth..].as_ptr();
            for first in (0..row_count).step_by(kernel.mr) {
                let rows = kernel.mr.min(row_count - first);
                let row = block.rows.start + first;
                let base: *const f32;
                let (a, a_offset, tile_taps, tile_len, step) = if blocking.pack_rows {
                    let start = index * part;
                    base = packed[first * depth + start * rows..].as_ptr();
                    (&raw const base, 0, 1, part.min(depth - start), start)
                } else if taps == 1 {
                    let start = index * part;
                    (table[first..].as_ptr(), start, 1, part.min(depth - start), start)
                } else {
                    let start = index * part;
                    let table = table[first * taps + start * rows..].as_ptr();
                    (table, 0, part.min(taps - start), tap_len, start * tap_len)
                };
                let finish = last.then(|| epilogue.of_tile(row, column));
                let tile_c = c.wrapping_add(row * place.stride + column);
                let tile = Tile {
                    a,
                    a_offset,
                    taps: tile_taps,
                    tap_len: tile_len,
                    a_stride: 0,
                    b: panel.wrapping_add(step * kernel.nr),
                    c: tile_c,
                    c_stride: place.stride,
                    columns,
                    accumulate: index > 0,
                    finish,
                };
                let family = if blocking.pack_rows { kernel.packed_by_rows } else { kernel.by_rows };
                // SAFETY: the caller's promise, cut to this tile. Operands are sliced above where the tile begins, and
                // pointers of A are `Rows::pointers`' or lie in `packed`.
                unsafe { family[rows - 1](&tile) };
                if last {
                    // SAFETY: within the block, which is this thread's alone.
                    unsafe { epilogue.activate(isa, (tile_c, place.stride), rows, columns) };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
