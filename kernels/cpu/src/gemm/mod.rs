//! f32 matrix products `C = act(alpha A B + bias + residual)` with B packed ahead of time.
//!
//! The rows of A are only pointers ([`Rows`]), so a convolution over an NHWC image is a product without an im2col
//! copy. C is cut into blocks of `row_block` x `column_block`; threads take blocks. Within a block a panel of B meets
//! all row tiles before the next panel, so that it stays in cache. Each register tile covers the whole depth unless
//! `depth_block` cuts it.

mod attention;
mod pack;
mod tile;

pub use attention::{Attention, AttentionShape, HeadRows, Mask, attention, attention_in_passes, score_count};
pub use pack::{PackedSize, pack_columns, pack_with};
pub use tile::{Kernel, kernel_by_name, kernels};

use crate::{
    isa::Isa,
    pointwise::{Activation, Lines, activate_lines},
    pool::ThreadPool,
};
use pack::{pack_rows, pack_strided};
use std::sync::{Mutex, PoisonError};
use tile::{Finish, Tile};

/// The rows of a left operand: each is `taps` pieces of `tap_len` contiguous elements.
///
/// # Safety
/// Every pointer that [`Rows::pointers`] writes is valid for reads of `tap_len` elements while `self` lives.
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
        assert!(rows == 0 || (rows - 1) * stride + columns <= data.len(), "the matrix is longer than its data");
        Self { data, rows, columns, stride }
    }
}

// SAFETY: `new` checked that every row lies within `data`.
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

/// How a product is cut up: a tactic.
#[derive(Clone, Copy, Debug)]
pub struct Blocking {
    pub kernel: &'static Kernel,
    /// Copy the rows of a block into the order the kernel reads them.
    pub pack_rows: bool,
    /// Rows per task.
    pub row_block: usize,
    /// Columns per task; rounded up to whole panels.
    pub column_block: usize,
    /// Depth steps per pass over C; `usize::MAX` for one pass.
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

/// Memory of one thread, grown on first use and kept.
#[derive(Debug, Default)]
struct ThreadScratch {
    pointers: Pointers,
    rows: Vec<f32>,
    columns: Vec<f32>,
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
        let of = |s: &ThreadScratch| s.pointers.0.capacity() * 8 + (s.rows.capacity() + s.columns.capacity()) * 4;
        self.threads.iter().map(|s| of(&s.lock().unwrap_or_else(PoisonError::into_inner))).sum()
    }

    fn with<R>(&self, thread: usize, body: impl FnOnce(&mut ThreadScratch) -> R) -> R {
        // Contents mean nothing between tasks, so a poisoned lock does no harm.
        body(&mut self.threads[thread].lock().unwrap_or_else(PoisonError::into_inner))
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
// SAFETY: tasks write disjoint ranges; see the drivers.
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
    assert!(place.stride >= columns || rows <= 1, "rows of a matrix overlap");
    assert!(
        rows == 0 || columns == 0 || place.offset + (rows - 1) * place.stride + columns <= len,
        "a matrix is longer than its data"
    );
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
    let depth = rows.taps() * rows.tap_len();
    check_call(isa, kernel, (b, columns), depth, epilogue);
    check_place(place, count, columns, c.len());
    if let Some((residual, place)) = epilogue.residual {
        check_place(place, count, columns, residual.len());
    }
    if count == 0 || columns == 0 {
        return;
    }
    let row_block = blocking.row_block.clamp(1, count);
    let column_block = blocking.column_block.max(1).next_multiple_of(kernel.nr);
    let row_tasks = count.div_ceil(row_block);
    let tasks = row_tasks * columns.div_ceil(column_block);
    let c = Shared(c.as_mut_ptr());
    pool.run(tasks, |task, thread| {
        let row = (task % row_tasks) * row_block;
        let column = (task / row_tasks) * column_block;
        let block =
            Block { rows: row..(row + row_block).min(count), columns: column..(column + column_block).min(columns) };
        workspace.with(thread, |scratch| {
            let ThreadScratch { pointers, rows: packed, .. } = scratch;
            // SAFETY: `check_call` and `check_place` covered all operands; blocks of different tasks are disjoint.
            unsafe { run_block(isa, blocking, rows, b, block, c.at(place.offset), place, epilogue, pointers, packed) }
        });
    });
}

/// Checks what every product needs.
fn check_call(isa: Isa, kernel: &Kernel, (b, columns): (&[f32], usize), depth: usize, epilogue: &Epilogue<'_>) {
    assert!(
        kernels(isa.level()).iter().any(|k| std::ptr::eq(*k, kernel)),
        "{} is no kernel of {}",
        kernel.name,
        isa.level()
    );
    let panels = columns.div_ceil(kernel.nr);
    assert!(b.len() >= panels * kernel.nr * depth, "the packed operand is too short");
    if let Some(bias) = epilogue.bias {
        assert!(bias.len() >= panels * kernel.nr, "the bias is not padded to whole panels");
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
/// `c` (row 0, column 0), bias and residual cover the whole product, `b` all panels at the depth of `rows`; nobody
/// else writes the block; the machine runs the kernel's level. The block's columns begin at a panel.
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
    let depth = taps * tap_len;
    let row_count = block.rows.len();
    // One table per tile of rows: [tap][row of the tile].
    let table = grow(&mut pointers.0, row_count * taps, std::ptr::null());
    for first in (0..row_count).step_by(kernel.mr) {
        let rows = kernel.mr.min(row_count - first);
        let to = &mut table[first * taps..(first + rows) * taps];
        source.pointers(block.rows.start + first, rows, to);
    }
    if blocking.pack_rows {
        let packed = grow(packed, row_count * depth, 0.0);
        for first in (0..row_count).step_by(kernel.mr) {
            let rows = kernel.mr.min(row_count - first);
            let table = &table[first * taps..(first + rows) * taps];
            // SAFETY: the pointers come from `Rows::pointers`, valid for `tap_len` elements.
            unsafe { pack_rows(table, rows, tap_len, &mut packed[first * depth..(first + rows) * depth]) };
        }
    }
    let (clip, low, high) = match epilogue.activation {
        Activation::Relu => (true, 0.0, f32::INFINITY),
        Activation::Clip { low, high } => (true, low, high),
        _ => (false, 0.0, 0.0),
    };
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
                let finish = last.then(|| Finish {
                    alpha: epilogue.alpha,
                    bias: epilogue.bias.map_or(std::ptr::null(), |bias| bias[column..].as_ptr()),
                    residual: epilogue.residual.map_or(std::ptr::null(), |(data, place)| {
                        data[place.offset + row * place.stride + column..].as_ptr()
                    }),
                    residual_stride: epilogue.residual.map_or(0, |(_, place)| place.stride),
                    clip,
                    low,
                    high,
                });
                let tile_c = c.wrapping_add(row * place.stride + column);
                let tile = Tile {
                    a,
                    a_offset,
                    taps: tile_taps,
                    tap_len: tile_len,
                    b: panel.wrapping_add(step * kernel.nr),
                    c: tile_c,
                    c_stride: place.stride,
                    columns,
                    accumulate: index > 0,
                    finish,
                };
                let family = if blocking.pack_rows { kernel.packed_by_rows } else { kernel.by_rows };
                // SAFETY: the caller's promise, cut to this tile.
                unsafe { family[rows - 1](&tile) };
                if last && !clip && epilogue.activation != Activation::None {
                    // SAFETY: within the block, which is this thread's alone.
                    let lines = unsafe { Lines::new(tile_c, place.stride, rows, columns) };
                    activate_lines(isa, epilogue.activation, lines);
                }
            }
        }
    }
}

/// A matrix inside a larger buffer, with any strides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    pub offset: usize,
    pub row_stride: usize,
    pub column_stride: usize,
}

impl View {
    fn check(self, rows: usize, columns: usize, len: usize) {
        let end = (rows.max(1) - 1) * self.row_stride + (columns.max(1) - 1) * self.column_stride;
        assert!(rows == 0 || columns == 0 || self.offset + end < len, "a view is longer than its data");
    }
}

/// One product of a batch.
#[derive(Clone, Copy, Debug)]
pub struct BatchItem {
    pub a: View,
    pub b: View,
    pub c: Place,
    pub residual: Place,
}

/// Sizes of every product of a batch: `rows x depth` by `depth x columns`.
#[derive(Clone, Copy, Debug)]
pub struct BatchShape {
    pub rows: usize,
    pub columns: usize,
    pub depth: usize,
}

/// Many products whose right operands are not known ahead of time; each task packs what it needs. The residual of
/// `epilogue`, if any, is placed by each item. Items must not overlap in C.
///
/// # Panics
/// When an operand is shorter than its shape says, or the kernel's level is above `isa`'s.
#[expect(clippy::too_many_arguments, reason = "a product has that many operands")]
pub fn multiply_batch(
    isa: Isa,
    pool: &ThreadPool,
    workspace: &Workspace,
    blocking: &Blocking,
    shape: BatchShape,
    items: &[BatchItem],
    (a, b): (&[f32], &[f32]),
    c: &mut [f32],
    epilogue: &Epilogue<'_>,
) {
    let kernel = blocking.kernel;
    let BatchShape { rows, columns, depth } = shape;
    if rows == 0 || columns == 0 {
        return;
    }
    for item in items {
        item.a.check(rows, depth, a.len());
        item.b.check(depth, columns, b.len());
        check_place(item.c, rows, columns, c.len());
        if let Some((residual, _)) = epilogue.residual {
            check_place(item.residual, rows, columns, residual.len());
        }
    }
    let row_block = blocking.row_block.clamp(1, rows);
    let column_block = blocking.column_block.clamp(1, columns).next_multiple_of(kernel.nr);
    let row_tasks = rows.div_ceil(row_block);
    let column_tasks = columns.div_ceil(column_block);
    let c = Shared(c.as_mut_ptr());
    pool.run(items.len() * row_tasks * column_tasks, |task, thread| {
        let row = task % row_tasks * row_block;
        let column = task / row_tasks % column_tasks * column_block;
        let item = &items[task / row_tasks / column_tasks];
        let row_count = row_block.min(rows - row);
        let column_count = column_block.min(columns - column);
        workspace.with(thread, |scratch| {
            let ThreadScratch { pointers, rows: packed, columns: panels } = scratch;
            let padded = column_count.next_multiple_of(kernel.nr);
            // Beside the panels: rows of A made contiguous, when they are not.
            let gathered = if item.a.column_stride == 1 || depth <= 1 { 0 } else { row_count * depth };
            let buffer = grow(panels, padded * depth + gathered, 0.0);
            let (panels, gathered) = buffer.split_at_mut(padded * depth);
            let b_view = View { offset: item.b.offset + column * item.b.column_stride, ..item.b };
            pack_strided(&b[b_view.offset.min(b.len())..], b_view, depth, column_count, kernel.nr, panels);
            let a_offset = item.a.offset + row * item.a.row_stride;
            let source = if gathered.is_empty() {
                MatrixRows::new(&a[a_offset.min(a.len())..], row_count, depth, item.a.row_stride)
            } else {
                for (row, line) in gathered.chunks_exact_mut(depth).enumerate() {
                    for (step, value) in line.iter_mut().enumerate() {
                        *value = a[a_offset + row * item.a.row_stride + step * item.a.column_stride];
                    }
                }
                MatrixRows::new(gathered, row_count, depth, depth)
            };
            let residual = epilogue.residual.map(|(data, _)| {
                let offset = item.residual.offset + row * item.residual.stride + column;
                (data, Place { offset, stride: item.residual.stride })
            });
            let epilogue = Epilogue { residual, bias: epilogue.bias.map(|bias| &bias[column..]), ..*epilogue };
            check_call(isa, kernel, (panels, column_count), depth, &epilogue);
            let block = Block { rows: 0..row_count, columns: 0..column_count };
            let place = Place { offset: 0, stride: item.c.stride };
            let c = c.at(item.c.offset + row * item.c.stride + column);
            // SAFETY: views and places were checked for every item; tasks write disjoint blocks of items that do not
            // overlap.
            unsafe { run_block(isa, blocking, &source, panels, block, c, place, &epilogue, pointers, packed) }
        });
    });
}

#[cfg(test)]
mod tests;
