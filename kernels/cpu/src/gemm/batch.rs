//! Many products of one size whose right operands are not known ahead of time.

use super::{
    Block, Blocking, Epilogue, MatrixRows, Place, Shared, ThreadScratch, Workspace, check_call, grow,
    pack::pack_strided, run_block, times,
};
use crate::{isa::Isa, pool::ThreadPool};

/// A matrix inside a larger buffer, with any strides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    pub offset: usize,
    pub row_stride: usize,
    pub column_stride: usize,
}

impl View {
    /// One beyond the last element of `rows x columns`; `None` when that overflows.
    pub(super) fn end(self, rows: usize, columns: usize) -> Option<usize> {
        if rows == 0 || columns == 0 {
            return Some(0);
        }
        let down = (rows - 1).checked_mul(self.row_stride)?;
        let across = (columns - 1).checked_mul(self.column_stride)?;
        down.checked_add(across)?.checked_add(self.offset)?.checked_add(1)
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

/// Why products cannot be computed side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    #[error("an item lies outside of its operands")]
    Outside,
    #[error("rows of its result overlap")]
    RowsOverlap,
    #[error("two items write the same element")]
    ItemsOverlap,
    #[error("its result has no room")]
    Memory,
}

/// Products that may be computed side by side: each lies within operands of certain lengths, and no two write the same
/// element. Checked once, so that calls need not.
#[derive(Clone, Debug)]
pub struct Batch {
    shape: BatchShape,
    items: Vec<BatchItem>,
    /// Elements that operands must have.
    a_len: usize,
    b_len: usize,
    c_len: usize,
    /// `None` when there is no residual that items could be added from.
    residual_len: Option<usize>,
}

impl Batch {
    /// Products over left and right operands and a result of `lens` elements.
    ///
    /// # Errors
    /// [`BatchError`] when an item leaves its operands, two items or two rows of one would be written to the same
    /// element, or the check of that has no memory (a bit per element of the result).
    pub fn new(shape: BatchShape, items: Vec<BatchItem>, lens: [usize; 3]) -> Result<Self, BatchError> {
        let (rows, columns) = (shape.rows, shape.columns);
        if rows > 1 && items.iter().any(|item| item.c.stride < columns) {
            return Err(BatchError::RowsOverlap);
        }
        let batch = Self::counted(shape, items).ok_or(BatchError::Outside)?;
        if batch.a_len > lens[0] || batch.b_len > lens[1] || batch.c_len > lens[2] {
            return Err(BatchError::Outside);
        }
        // The rows of one product were compared with its stride.
        if batch.items.len() > 1 && rows > 0 && columns > 0 && !batch.places_are_apart()? {
            return Err(BatchError::ItemsOverlap);
        }
        Ok(batch)
    }

    /// The same of items that are known not to overlap; `None` when their places cannot be counted.
    ///
    /// # Safety
    /// No two items have an element of C in common.
    pub(super) unsafe fn disjoint(shape: BatchShape, items: Vec<BatchItem>) -> Option<Self> {
        Self::counted(shape, items)
    }

    /// Works out what operands must have; whether items overlap is not asked.
    fn counted(shape: BatchShape, mut items: Vec<BatchItem>) -> Option<Self> {
        let BatchShape { rows, columns, depth } = shape;
        let (mut a_len, mut b_len, mut c_len, mut residual_len) = (0, 0, 0, Some(0usize));
        for item in &mut items {
            if depth == 0 {
                // Nothing of these is read, wherever they are said to be.
                (item.a, item.b) = (View::default(), View::default());
            }
            a_len = a_len.max(item.a.end(rows, depth)?);
            b_len = b_len.max(item.b.end(depth, columns)?);
            c_len = c_len.max(item.c.end(rows, columns)?);
            residual_len = residual_len.zip(item.residual.end(rows, columns)).map(|(a, b)| a.max(b));
        }
        Some(Self { shape, items, a_len, b_len, c_len, residual_len })
    }

    /// Whether no element of C belongs to two items: a bit for each that one has taken.
    fn places_are_apart(&self) -> Result<bool, BatchError> {
        let mut taken: Vec<u64> = Vec::new();
        let words = self.c_len.div_ceil(64);
        taken.try_reserve_exact(words).map_err(|_| BatchError::Memory)?;
        taken.resize(words, 0);
        for item in &self.items {
            for row in 0..self.shape.rows {
                let (mut at, end) = (item.c.offset + row * item.c.stride, self.shape.columns);
                let end = at + end;
                while at < end {
                    let bits = (64 - at % 64).min(end - at);
                    let mask = (u64::MAX >> (64 - bits)) << (at % 64);
                    let word = &mut taken[at / 64];
                    if *word & mask != 0 {
                        return Ok(false);
                    }
                    *word |= mask;
                    at += bits;
                }
            }
        }
        Ok(true)
    }
}

/// Computes every product of `batch` as [`super::multiply`] does one; each task packs what it needs. The residual of
/// `epilogue`, if any, is placed by each item.
///
/// # Panics
/// When an operand is shorter than the batch needs, or the kernel's level is above `isa`'s.
#[expect(clippy::too_many_arguments, reason = "a product has that many operands")]
pub fn multiply_batch(
    isa: Isa,
    pool: &ThreadPool,
    workspace: &Workspace,
    blocking: &Blocking,
    batch: &Batch,
    (a, b): (&[f32], &[f32]),
    c: &mut [f32],
    epilogue: &Epilogue<'_>,
) {
    let kernel = blocking.kernel;
    let BatchShape { rows, columns, depth } = batch.shape;
    let items = &batch.items;
    if rows == 0 || columns == 0 || items.is_empty() {
        return;
    }
    assert!(
        batch.a_len <= a.len() && batch.b_len <= b.len() && batch.c_len <= c.len(),
        "an operand of a batch is too short"
    );
    if let Some((residual, _)) = epilogue.residual {
        assert!(
            batch.residual_len.is_some_and(|needed| needed <= residual.len()),
            "a residual of a batch is too short"
        );
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
            let ThreadScratch { pointers, rows: packed, columns: panels, .. } = scratch;
            let panels_len = times(column_count.next_multiple_of(kernel.nr), depth);
            // Beside the panels: rows of A made contiguous, when they are not.
            let is_gathered = item.a.column_stride != 1 && depth > 1;
            let gathered_len = if is_gathered { times(row_count, depth) } else { 0 };
            let len = panels_len.checked_add(gathered_len).expect("sizes of a product are out of bounds");
            let (panels, gathered) = grow(panels, len, 0.0).split_at_mut(panels_len);
            let b_view = View { offset: item.b.offset + column * item.b.column_stride, ..item.b };
            pack_strided(&b[b_view.offset..], b_view, depth, column_count, kernel.nr, panels);
            let a_offset = item.a.offset + row * item.a.row_stride;
            let source = if gathered.is_empty() {
                MatrixRows::new(&a[a_offset..], row_count, depth, item.a.row_stride)
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
            // SAFETY: the lengths that `Batch::counted` found views and places to need were compared with the operands'
            // above; tasks write disjoint blocks of items that do not overlap, which `Batch` stands for.
            unsafe { run_block(isa, blocking, &source, panels, block, c, place, &epilogue, pointers, packed) }
        });
    });
}
