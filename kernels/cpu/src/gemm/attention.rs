//! Scaled dot-product attention of several heads, `softmax(scale Q K^T + mask) V`, over operands that lie in rows with
//! every head beside the next.
//!
//! Two ways: head by head, a block of queries at a time, so that scores never leave the cache; and in passes over all
//! heads, with every score in memory.

use super::{
    Batch, BatchItem, BatchShape, Block, Blocking, Epilogue, MatrixRows, Place, Shared, ThreadScratch, View, Workspace,
    check_call, grow, multiply_batch, pack::pack_strided, run_block, times,
};
use crate::{
    isa::Isa,
    pool::{ThreadPool, for_parts},
    rows::{softmax, softmax_rows},
};

/// Sizes of an attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    pub batch: usize,
    pub heads: usize,
    pub queries: usize,
    pub keys: usize,
    /// Columns per head of queries and keys, and of values.
    pub depth: usize,
    pub value_depth: usize,
    /// Of the scores, before the mask is added.
    pub scale: f32,
    /// A query whose every key is masked by -inf gives zeros instead of what is no number.
    pub guarded: bool,
}

/// Rows of queries, keys or values: column `c` of head `h` of row `r` of image `i` is
/// `data[offset + (i * rows + r) * stride + h * depth + c]`.
#[derive(Clone, Copy, Debug)]
pub struct HeadRows<'a> {
    pub data: &'a [f32],
    pub offset: usize,
    pub stride: usize,
}

impl HeadRows<'_> {
    fn check(&self, rows: usize, width: usize) {
        let last = rows.checked_sub(1).and_then(|last| last.checked_mul(self.stride));
        let end = last.and_then(|last| last.checked_add(width)?.checked_add(self.offset));
        assert!(rows == 0 || end.is_some_and(|end| end <= self.data.len()), "rows of an attention leave their operand");
        assert!(rows <= 1 || self.stride >= width, "rows of an attention overlap");
    }
}

/// What is added to the scores; strides along image, head, query and key, 0 where it repeats.
#[derive(Clone, Copy, Debug)]
pub struct Mask<'a> {
    pub data: &'a [f32],
    pub strides: [usize; 4],
}

/// Operands of an attention.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    pub shape: AttentionShape,
    pub queries: HeadRows<'a>,
    pub keys: HeadRows<'a>,
    pub values: HeadRows<'a>,
    pub mask: Option<Mask<'a>>,
}

impl Attention<'_> {
    /// Checks the operands and the number of elements of the result, so that no place within them overflows.
    fn check(&self, to: usize) {
        let AttentionShape { batch, heads, queries, keys, depth, value_depth, .. } = self.shape;
        let value_width = times(heads, value_depth);
        self.queries.check(times(batch, queries), times(heads, depth));
        self.keys.check(times(batch, keys), times(heads, depth));
        self.values.check(times(batch, keys), value_width);
        assert_eq!(to, times(times(batch, queries), value_width), "the result is not as large as its shape");
        let covers = self.mask.is_none_or(|mask| mask.covers([batch, heads, queries, keys]));
        assert!(covers, "the mask is too short");
    }

    /// Adds the mask to the scores of some queries of a head.
    fn add_mask(&self, image: usize, head: usize, first: usize, scores: &mut [f32]) {
        if let Some(mask) = self.mask {
            mask.add_to([image, head, first], self.shape.keys, scores);
        }
    }
}

impl Mask<'_> {
    /// Whether it reaches to the last of so many images, heads, queries and keys.
    pub(crate) fn covers(&self, sizes: [usize; 4]) -> bool {
        let last = sizes
            .iter()
            .zip(self.strides)
            .try_fold(0usize, |sum, (&size, stride)| size.saturating_sub(1).checked_mul(stride)?.checked_add(sum));
        last.is_some_and(|last| last < self.data.len())
    }

    /// Adds it to rows of scores: those of the head of an image from a query on.
    pub(crate) fn add_to(&self, [image, head, first]: [usize; 3], keys: usize, scores: &mut [f32]) {
        let Mask { data, strides } = self;
        for (row, line) in scores.chunks_exact_mut(keys).enumerate() {
            let at = image * strides[0] + head * strides[1] + (first + row) * strides[2];
            match strides[3] {
                1 => line.iter_mut().zip(&data[at..at + keys]).for_each(|(score, mask)| *score += mask),
                0 => line.iter_mut().for_each(|score| *score += data[at]),
                step => line.iter_mut().zip(data[at..].iter().step_by(step)).for_each(|(score, mask)| *score += mask),
            }
        }
    }
}

/// Attention head by head, `blocking.row_block` queries at a time; `to` is (batch, queries, heads x value depth).
///
/// # Panics
/// When an operand is shorter than its shape says, or the kernel's level is above `isa`'s.
pub fn attention(
    isa: Isa,
    pool: &ThreadPool,
    workspace: &Workspace,
    blocking: &Blocking,
    of: &Attention<'_>,
    to: &mut [f32],
) {
    of.check(to.len());
    let AttentionShape { batch, heads, queries, keys, depth, value_depth, scale, guarded } = of.shape;
    if to.is_empty() {
        return;
    }
    if keys == 0 {
        return to.fill(0.0);
    }
    let nr = blocking.kernel.nr;
    let row_block = blocking.row_block.clamp(1, queries);
    // Heads are tasks; queries are shared out too where there are fewer heads than threads would like.
    let parts = if pool.threads() == 1 { 1 } else { (pool.threads() * 2).div_ceil(batch * heads) };
    let per_part = queries.div_ceil(parts.max(1)).next_multiple_of(row_block);
    let parts = queries.div_ceil(per_part);
    let (key_len, value_len) = (times(keys.next_multiple_of(nr), depth), times(value_depth.next_multiple_of(nr), keys));
    let scratch_len = key_len.checked_add(value_len).and_then(|len| len.checked_add(times(row_block, keys)));
    let scratch_len = scratch_len.expect("sizes of an attention are out of bounds");
    let width = heads * value_depth;
    let result = Shared(to.as_mut_ptr());
    pool.run(batch * heads * parts, |task, thread| {
        let (head, image) = (task / parts % heads, task / parts / heads);
        let (start, end) = (task % parts * per_part, (task % parts * per_part + per_part).min(queries));
        workspace.with(thread, |scratch| {
            let ThreadScratch { pointers, rows: packed, columns: buffer, .. } = scratch;
            let buffer = grow(buffer, scratch_len, 0.0);
            let (key_panels, rest) = buffer.split_at_mut(key_len);
            let (value_panels, scores) = rest.split_at_mut(value_len);
            let at = |rows: &HeadRows<'_>, count: usize, depth: usize| {
                rows.offset + image * count * rows.stride + head * depth
            };
            let key_view = View { offset: 0, row_stride: 1, column_stride: of.keys.stride };
            pack_strided(&of.keys.data[at(&of.keys, keys, depth)..], key_view, depth, keys, nr, key_panels);
            let value_view = View { offset: 0, row_stride: of.values.stride, column_stride: 1 };
            let from = at(&of.values, keys, value_depth);
            pack_strided(&of.values.data[from..], value_view, keys, value_depth, nr, value_panels);
            let mut row = start;
            while row < end {
                let count = row_block.min(end - row);
                let from = at(&of.queries, queries, depth) + row * of.queries.stride;
                let source = MatrixRows::new(&of.queries.data[from..], count, depth, of.queries.stride);
                let scores = &mut scores[..count * keys];
                let epilogue = Epilogue { alpha: scale, ..Epilogue::default() };
                check_call(isa, blocking.kernel, (key_panels, keys), depth, &epilogue);
                let (block, place) = (Block { rows: 0..count, columns: 0..keys }, Place { offset: 0, stride: keys });
                // SAFETY: `scores` holds `count` rows of `keys` columns and is this thread's alone; `check_call` and
                // `MatrixRows` cover the operands.
                unsafe {
                    let c = scores.as_mut_ptr();
                    run_block(isa, blocking, &source, key_panels, block, c, place, &epilogue, pointers, packed);
                }
                of.add_mask(image, head, row, scores);
                softmax_rows(isa, keys, guarded, scores);
                let source = MatrixRows::new(scores, count, keys, keys);
                let epilogue = Epilogue::default();
                check_call(isa, blocking.kernel, (value_panels, value_depth), keys, &epilogue);
                let block = Block { rows: 0..count, columns: 0..value_depth };
                let place = Place { offset: 0, stride: width };
                let c = result.at((image * queries + row) * width + head * value_depth);
                // SAFETY: `check` compared the result's length with the shape, whose products do not overflow; tasks
                // write other heads, images or queries of it. The operands are covered as above.
                unsafe { run_block(isa, blocking, &source, value_panels, block, c, place, &epilogue, pointers, packed) }
                row += count;
            }
        });
    });
}

/// Scores of one attention.
pub fn score_count(shape: &AttentionShape) -> Option<usize> {
    shape.batch.checked_mul(shape.heads)?.checked_mul(shape.queries)?.checked_mul(shape.keys)
}

/// Attention in passes over all heads; `scores` is as long as [`score_count`] says.
///
/// # Panics
/// As [`attention`], and when `scores` is of another length.
pub fn attention_in_passes(
    isa: Isa,
    pool: &ThreadPool,
    workspace: &Workspace,
    blocking: &Blocking,
    of: &Attention<'_>,
    scores: &mut [f32],
    to: &mut [f32],
) {
    of.check(to.len());
    let AttentionShape { batch, heads, queries, keys, depth, value_depth, scale, guarded } = of.shape;
    assert_eq!(Some(scores.len()), score_count(&of.shape), "the scores have no place");
    if to.is_empty() {
        return;
    }
    if keys == 0 {
        return to.fill(0.0);
    }
    let square = queries * keys;
    let width = heads * value_depth;
    let items = |values: bool| {
        let item = |index: usize| {
            let (image, head) = (index / heads, index % heads);
            let rows =
                |of: &HeadRows<'_>, count: usize, depth: usize| of.offset + image * count * of.stride + head * depth;
            let own = View { offset: index * square, row_stride: keys, column_stride: 1 };
            if values {
                let offset = rows(&of.values, keys, value_depth);
                let b = View { offset, row_stride: of.values.stride, column_stride: 1 };
                let c = Place { offset: image * queries * width + head * value_depth, stride: width };
                BatchItem { a: own, b, c, residual: c }
            } else {
                let offset = rows(&of.queries, queries, depth);
                let a = View { offset, row_stride: of.queries.stride, column_stride: 1 };
                let offset = rows(&of.keys, keys, depth);
                let b = View { offset, row_stride: 1, column_stride: of.keys.stride };
                let c = Place { offset: index * square, stride: keys };
                BatchItem { a, b, c, residual: c }
            }
        };
        (0..batch * heads).map(item).collect::<Vec<_>>()
    };
    // SAFETY: each item has a square of scores, or the columns of a head in the rows of an image, to itself.
    let batch_of =
        |shape, values| unsafe { Batch::disjoint(shape, items(values)) }.expect("`check` counted all places");
    let epilogue = Epilogue { alpha: scale, ..Epilogue::default() };
    let shape = BatchShape { rows: queries, columns: keys, depth };
    let operands = (of.queries.data, of.keys.data);
    multiply_batch(isa, pool, workspace, blocking, &batch_of(shape, false), operands, scores, &epilogue);
    if of.mask.is_some() {
        for_parts(pool, scores, square, |index, part| of.add_mask(index / heads, index % heads, 0, part));
    }
    softmax(isa, pool, keys, guarded, scores);
    let shape = BatchShape { rows: queries, columns: value_depth, depth: keys };
    let operands = (&*scores, of.values.data);
    multiply_batch(isa, pool, workspace, blocking, &batch_of(shape, true), operands, to, &Epilogue::default());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::kernels;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn both_ways_agree_with_plain_loops(
            batch in 1usize..3, heads in 1usize..4, queries in 1usize..40, keys in 1usize..50, depth in 1usize..20,
            value_depth in 1usize..40, gap in 0usize..5, masked in 0usize..4, threads in 1usize..4, row_block in 1usize..50,
            guarded: bool,
        ) {
            let shape = AttentionShape { batch, heads, queries, keys, depth, value_depth, scale: 0.3, guarded };
            let value = |i: usize| (i * 29 % 83) as f32 / 20.0 - 2.0;
            let values = |len: usize, from: usize| (0..len).map(|i| value(i + from)).collect::<Vec<f32>>();
            let (stride, value_stride) = (heads * depth + gap, heads * value_depth + gap);
            let q = values(batch * queries * stride + 3, 0);
            let k = values(batch * keys * stride + 5, 7);
            let v = values(batch * keys * value_stride, 2);
            let mask_values = values(batch * heads * queries * keys, 4);
            let strides = [
                [heads * queries * keys, queries * keys, keys, 1], [keys, 0, 0, 1], [0, 0, 1, 0], [0, 0, 0, 2],
            ][masked];
            let mut mask_values = if masked == 3 { values(2 * keys, 4) } else { mask_values };
            if guarded && masked == 2 {
                // One value per query: the first has no key left.
                mask_values[0] = f32::NEG_INFINITY;
            }
            let mask = (masked != 1 || batch * heads > 1).then_some(Mask { data: &mask_values[..], strides });
            let of = Attention {
                shape, mask,
                queries: HeadRows { data: &q, offset: 3, stride },
                keys: HeadRows { data: &k, offset: 5, stride },
                values: HeadRows { data: &v, offset: 0, stride: value_stride },
            };
            let mut want = vec![0f64; batch * queries * heads * value_depth];
            for image in 0..batch {
                for head in 0..heads {
                    for row in 0..queries {
                        let scores: Vec<f64> = (0..keys).map(|key| {
                            let dot: f64 = (0..depth).map(|c| {
                                f64::from(q[3 + (image * queries + row) * stride + head * depth + c])
                                    * f64::from(k[5 + (image * keys + key) * stride + head * depth + c])
                            }).sum();
                            let at = image * strides[0] + head * strides[1] + row * strides[2] + key * strides[3];
                            dot * f64::from(0.3f32) + mask.map_or(0.0, |mask| f64::from(mask.data[at]))
                        }).collect();
                        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                        if top == f64::NEG_INFINITY {
                            continue;
                        }
                        let sum: f64 = scores.iter().map(|s| (s - top).exp()).sum();
                        for c in 0..value_depth {
                            want[(image * queries + row) * heads * value_depth + head * value_depth + c] = (0..keys)
                                .map(|key| (scores[key] - top).exp() / sum
                                    * f64::from(v[(image * keys + key) * value_stride + head * value_depth + c]))
                                .sum();
                        }
                    }
                }
            }
            let pool = ThreadPool::new(threads).unwrap();
            let workspace = Workspace::new(threads);
            for isa in Isa::available() {
                for &kernel in kernels(isa.level()) {
                    for pack_rows in [false, true] {
                        let blocking = Blocking { kernel, pack_rows, row_block, column_block: kernel.nr, depth_block: usize::MAX };
                        let mut blocks = vec![f32::NAN; want.len()];
                        attention(isa, &pool, &workspace, &blocking, &of, &mut blocks);
                        let mut passes = vec![f32::NAN; want.len()];
                        let mut scores = vec![f32::NAN; score_count(&shape).unwrap()];
                        attention_in_passes(isa, &pool, &workspace, &blocking, &of, &mut scores, &mut passes);
                        for ((a, b), want) in blocks.iter().zip(&passes).zip(&want) {
                            prop_assert!((f64::from(*a) - want).abs() < 1e-4 && (f64::from(*b) - want).abs() < 1e-4,
                                "{}: {a} and {b}, not {want}", kernel.name);
                        }
                    }
                }
            }
        }
    }
}
