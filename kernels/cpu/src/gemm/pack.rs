//! Packing operands into the order microkernels read them.

use super::{Factors, Kernel, View, bf16::pair};

/// Elements of a packed right operand.
#[derive(Clone, Copy, Debug)]
pub struct PackedSize {
    pub elements: usize,
    /// Columns rounded up to whole panels: what a bias is padded to.
    pub columns: usize,
}

impl PackedSize {
    /// For `depth x columns` elements packed for `kernel`; `None` when that overflows.
    pub fn new(kernel: &Kernel, depth: usize, columns: usize) -> Option<Self> {
        let columns = columns.checked_next_multiple_of(kernel.nr)?;
        Some(Self { elements: columns.checked_mul(kernel.steps(depth)?)?, columns })
    }
}

/// Packs the right operand `value(step, column)` into `to`: panels of the kernel's width, each depth-major, the last
/// padded with zeros.
///
/// # Panics
/// When `to` is not exactly as long as [`PackedSize`] says.
pub fn pack_with(
    kernel: &Kernel,
    depth: usize,
    columns: usize,
    to: &mut [f32],
    mut value: impl FnMut(usize, usize) -> f32,
) {
    assert_eq!(Some(to.len()), PackedSize::new(kernel, depth, columns).map(|size| size.elements));
    let Some(steps) = kernel.steps(depth).filter(|_| !to.is_empty()) else { return };
    for (panel, to) in to.chunks_exact_mut(kernel.nr * steps).enumerate() {
        for (step, line) in to.chunks_exact_mut(kernel.nr).enumerate() {
            for (index, to) in line.iter_mut().enumerate() {
                let column = panel * kernel.nr + index;
                let mut at = |step| if step < depth && column < columns { value(step, column) } else { 0.0 };
                *to = match kernel.factors {
                    Factors::F32 => at(step),
                    Factors::Bf16 => pair(at(2 * step), at(2 * step + 1)),
                };
            }
        }
    }
}

/// Packs the right operand whose element (step, column) is `data[step * step_stride + column * column_stride]`.
///
/// # Panics
/// When `data` or `to` is too short.
pub fn pack_columns(
    kernel: &Kernel,
    data: &[f32],
    (depth, step_stride): (usize, usize),
    (columns, column_stride): (usize, usize),
    to: &mut [f32],
) {
    assert_eq!(Some(to.len()), PackedSize::new(kernel, depth, columns).map(|size| size.elements));
    let view = View { offset: 0, row_stride: step_stride, column_stride };
    assert!(view.end(depth, columns).is_some_and(|end| end <= data.len()), "a view is longer than its data");
    match kernel.factors {
        Factors::F32 => pack_strided(data, view, depth, columns, kernel.nr, to),
        Factors::Bf16 => {
            pack_with(kernel, depth, columns, to, |step, column| data[step * step_stride + column * column_stride]);
        }
    }
}

/// Packs a view (its offset already applied to `data`) into panels of `nr` columns: as many as `to` holds.
pub(super) fn pack_strided(data: &[f32], view: View, depth: usize, columns: usize, nr: usize, to: &mut [f32]) {
    if to.is_empty() {
        return;
    }
    for (panel, to) in to.chunks_exact_mut(nr * depth).enumerate() {
        let first = panel * nr;
        let count = nr.min(columns - first);
        if view.column_stride == 1 {
            for (step, line) in to.chunks_exact_mut(nr).enumerate() {
                let from = step * view.row_stride + first;
                line[..count].copy_from_slice(&data[from..from + count]);
                line[count..].fill(0.0);
            }
        } else {
            if count < nr {
                to.fill(0.0);
            }
            // Columns are read along the depth (contiguous when B is given transposed), eight steps at a time, so
            // that written lines are still in cache when the next column comes.
            const STEPS: usize = 8;
            for (chunk, lines) in to.chunks_mut(nr * STEPS).enumerate() {
                let steps = lines.len() / nr;
                for index in 0..count {
                    let from = (first + index) * view.column_stride + chunk * STEPS * view.row_stride;
                    for step in 0..steps {
                        lines[step * nr + index] = data[from + step * view.row_stride];
                    }
                }
            }
        }
    }
}

/// Packs a tile of gathered rows: for each depth step the value of every row.
///
/// # Safety
/// `table` holds, for each tap, one pointer per row, each valid for `tap_len` elements.
pub(super) unsafe fn pack_rows(table: &[*const f32], rows: usize, tap_len: usize, to: &mut [f32]) {
    let taps = table.len() / rows;
    assert!(to.len() >= taps * tap_len * rows, "the packed rows are too long for their buffer");
    for tap in 0..taps {
        let to = &mut to[tap * tap_len * rows..(tap + 1) * tap_len * rows];
        for row in 0..rows {
            // SAFETY: the caller's promise.
            let line = unsafe { std::slice::from_raw_parts(table[tap * rows + row], tap_len) };
            for (step, value) in line.iter().enumerate() {
                to[step * rows + row] = *value;
            }
        }
    }
}
