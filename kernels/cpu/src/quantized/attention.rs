//! Attention over bytes, `to(P (V - v))` with `P = bytes(softmax(scale (Q - q) (K - k)^T + mask))`, head by head: scores and
//! their weights never leave the cache, and both products are exact.

use super::{
    FLIP, Finish, MatrixRows, Output, PackedSize, Product,
    finish::SharedOutput,
    pack::{Columns, pack_columns},
    product::{Block, Blocking, run_block},
    tile::kernels,
};
use crate::{
    gemm::{Mask, Place, Workspace},
    isa::{Isa, per_level},
    pool::ThreadPool,
    rows::softmax_rows,
};

/// Sizes of an attention, with every head's rows one behind the other and the heads behind one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionSizes {
    pub batch: usize,
    pub heads: usize,
    pub queries: usize,
    pub keys: usize,
    /// Columns of queries and keys, and of values.
    pub depth: usize,
    pub value_depth: usize,
}

impl AttentionSizes {
    fn heads(&self) -> Option<usize> {
        self.batch.checked_mul(self.heads)
    }

    /// Elements of queries, keys, values and result; `None` when one of them overflows.
    pub fn lengths(&self) -> Option<[usize; 4]> {
        let of = |rows: usize, columns: usize| self.heads()?.checked_mul(rows)?.checked_mul(columns);
        let Self { queries, keys, depth, value_depth, .. } = *self;
        Some([of(queries, depth)?, of(keys, depth)?, of(keys, value_depth)?, of(queries, value_depth)?])
    }
}

/// A computed operand.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a> {
    pub data: &'a [u8],
    pub signed: bool,
    /// The zero point, as the data holds it.
    pub zero: u8,
}

impl Bytes<'_> {
    /// What makes signed bytes of them, and the zero point then.
    fn as_columns(&self) -> (u8, i32) {
        let flip = if self.signed { 0 } else { FLIP };
        (flip, i32::from((self.zero ^ flip) as i8))
    }
}

/// What the weights are made of softmax by: divided, rounded half to even, above their zero point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steps {
    pub scale: f32,
    pub zero: i32,
    pub signed: bool,
}

/// Operands of an attention.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    pub sizes: AttentionSizes,
    pub queries: Bytes<'a>,
    pub keys: Bytes<'a>,
    /// The keys of a head lie as (depth, keys).
    pub turned: bool,
    pub values: Bytes<'a>,
    /// Of the scores, before the mask is added.
    pub scale: f32,
    pub mask: Option<Mask<'a>>,
    pub weights: Steps,
    /// Of the weighted values; its lists have one element.
    pub finish: Finish<'a>,
}

per_level! {
    /// Floats as bytes of the nearest whole number of steps above `zero`; what is no number is none.
    fn stepped(from: &[f32], scale: f32, limits: [i32; 3], to: &mut [u8]) {
        // As large as that, floats have no digits behind the point: what is added rounds, and its last byte is the number's.
        const NO_DIGITS: f32 = 12_582_912.0;
        let [low, zero, high] = limits;
        let (least, most) = ((low - zero) as f32, (high - zero) as f32);
        for (value, to) in from.iter().zip(to) {
            let steps = value / scale;
            let steps = if steps.is_nan() { 0.0 } else { steps };
            let steps = if steps < most { steps } else { most };
            let steps = if steps > least { steps } else { least };
            *to = ((steps + NO_DIGITS).to_bits() as u8).wrapping_add(zero as u8);
        }
    }
}

/// Bytes of a cache line, at which operands begin.
const LINE: usize = 64;

/// Attention, `blocking.row_block` queries of a head at a time; `to` is (batch, heads, queries, value depth).
///
/// # Panics
/// When an operand is shorter than its sizes say, or the kernel is none of `isa`.
pub fn attention(
    isa: Isa,
    pool: &ThreadPool,
    workspace: &Workspace,
    blocking: &Blocking,
    of: &Attention<'_>,
    mut to: Output<'_>,
) {
    let AttentionSizes { batch, heads, queries, keys, depth, value_depth } = of.sizes;
    let kernel = blocking.kernel;
    assert!(
        kernels(isa.level()).iter().any(|known| std::ptr::eq(*known, kernel)),
        "{} is no kernel of {}",
        kernel.name,
        isa.level()
    );
    let lengths = [of.queries.data.len(), of.keys.data.len(), of.values.data.len(), to.len()];
    assert_eq!(of.sizes.lengths(), Some(lengths), "operands of an attention are not as large as its sizes");
    assert!(of.mask.is_none_or(|mask| mask.covers([batch, heads, queries, keys])), "the mask is too short");
    of.finish.check(1, &to);
    if lengths.contains(&0) {
        assert!(to.len() == 0, "an attention to nothing has no result");
        return;
    }
    let row_block = blocking.row_block.clamp(1, queries);
    // Heads are tasks; queries are shared out too where there are fewer heads than threads would like.
    let parts = if pool.threads() == 1 { 1 } else { (pool.threads() * 2).div_ceil(batch * heads) };
    let per_part = queries.div_ceil(parts).next_multiple_of(row_block);
    let parts = queries.div_ceil(per_part);
    let sizes = (PackedSize::new(kernel, depth, keys), PackedSize::new(kernel, keys, value_depth));
    let (Some(key_size), Some(value_size)) = sizes else { panic!("sizes of an attention are out of bounds") };
    let (key_bytes, value_bytes) = (key_size.bytes.next_multiple_of(LINE), value_size.bytes.next_multiple_of(LINE));
    let scores_len = row_block.checked_mul(keys);
    let bytes = scores_len.and_then(|len| key_bytes.checked_add(value_bytes)?.checked_add(len)?.checked_add(LINE));
    let (Some(scores_len), Some(bytes)) = (scores_len, bytes) else {
        panic!("sizes of an attention are out of bounds")
    };
    let (key_flip, key_zero) = of.keys.as_columns();
    let (value_flip, value_zero) = of.values.as_columns();
    let [low, high] = if of.weights.signed { [-128, 127] } else { [0, 255] };
    let (key_zeros, value_zeros, scale) = ([key_zero], [value_zero], [of.scale]);
    let result = to.shared();
    pool.run(batch * heads * parts, |task, thread| {
        let item = task / parts;
        let (start, end) = (task % parts * per_part, (task % parts * per_part + per_part).min(queries));
        workspace.with_panels(thread, (bytes, scores_len), |panels, scores, scratch| {
            let begin = panels.as_ptr().align_offset(LINE).min(LINE);
            let (key_panels, rest) = panels[begin..].split_at_mut(key_bytes);
            let (value_panels, weights) = rest.split_at_mut(value_bytes);
            let keys_of = Columns {
                data: &of.keys.data[item * keys * depth..][..keys * depth],
                strides: if of.turned { [keys, 1] } else { [1, depth] },
                flip: key_flip,
            };
            pack_columns(isa, kernel, [depth, keys], &keys_of, &mut key_panels[..key_size.bytes]);
            let values_of = Columns {
                data: &of.values.data[item * keys * value_depth..][..keys * value_depth],
                strides: [value_depth, 1],
                flip: value_flip,
            };
            pack_columns(isa, kernel, [keys, value_depth], &values_of, &mut value_panels[..value_size.bytes]);
            let by_keys = Product {
                packed: key_panels,
                columns: keys,
                signed: of.queries.signed,
                zero: of.queries.zero,
                column_zeros: &key_zeros,
                finish: Finish::Floats { bias: None, factor: &scale },
            };
            let by_values = Product {
                packed: value_panels,
                columns: value_depth,
                signed: of.weights.signed,
                zero: of.weights.zero as u8,
                column_zeros: &value_zeros,
                finish: of.finish,
            };
            for row in (start..end).step_by(row_block) {
                let count = row_block.min(end - row);
                let rows = &of.queries.data[(item * queries + row) * depth..][..count * depth];
                let rows = MatrixRows::new(rows, count, depth);
                let (scores, weights) = (&mut scores[..count * keys], &mut weights[..count * keys]);
                let block = Block { rows: 0..count, columns: 0..keys, depth };
                let place = (SharedOutput::Floats(scores.as_mut_ptr()), Place { offset: 0, stride: keys });
                // SAFETY: `scores` holds `count` rows of `keys` columns and is this thread's alone; the panels were packed
                // as `key_size` says, and the kernel is one of `isa`.
                unsafe { run_block(isa, kernel, key_size, &rows, &by_keys, &block, place, scratch) };
                if let Some(mask) = of.mask {
                    mask.add_to([item / heads, item % heads, row], keys, scores);
                }
                softmax_rows(isa, keys, false, scores);
                stepped(isa, scores, of.weights.scale, [low, of.weights.zero, high], weights);
                let rows = MatrixRows::new(weights, count, keys);
                let block = Block { rows: 0..count, columns: 0..value_depth, depth: keys };
                let place = Place { offset: (item * queries + row) * value_depth, stride: value_depth };
                // SAFETY: the result is as large as its sizes say, and no other task has these rows of this head; its type
                // is that of `finish`, which `check` compared. The panels as above.
                unsafe { run_block(isa, kernel, value_size, &rows, &by_values, &block, (result, place), scratch) };
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(count: usize, seed: u64) -> Vec<u8> {
        let of = |at: u64| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ at) as u8;
        (0..count as u64).map(|at| of(at + seed * 0x1_0001)).collect()
    }

    fn number(byte: u8, signed: bool) -> i64 {
        if signed { i64::from(byte as i8) } else { byte.into() }
    }

    /// The same one head, query and key at a time, with sums in 64 bits.
    fn plain(isa: Isa, of: &Attention<'_>) -> Vec<u8> {
        let AttentionSizes { batch, heads, queries, keys, depth, value_depth } = of.sizes;
        let mut result = Vec::new();
        for item in 0..batch * heads {
            for query in 0..queries {
                let difference =
                    |of: &Bytes<'_>, at: usize| number(of.data[at], of.signed) - number(of.zero, of.signed);
                let score = |key: usize| {
                    let place = |at: usize| if of.turned { at * keys + key } else { key * depth + at };
                    let sum: i64 = (0..depth)
                        .map(|at| {
                            difference(&of.queries, (item * queries + query) * depth + at)
                                * difference(&of.keys, item * keys * depth + place(at))
                        })
                        .sum();
                    let mask = of.mask.map_or(0.0, |Mask { data, strides }| {
                        let at = [item / heads, item % heads, query, key];
                        data[at.iter().zip(strides).map(|(at, stride)| at * stride).sum::<usize>()]
                    });
                    sum as f32 * of.scale + mask
                };
                let mut weights: Vec<f32> = (0..keys).map(score).collect();
                softmax_rows(isa, keys, false, &mut weights);
                let Steps { scale, zero, signed } = of.weights;
                let [low, high] = if signed { [-128, 127] } else { [0, 255] };
                let stepped =
                    |weight: f32| ((weight / scale).round_ties_even() as i64 + i64::from(zero)).clamp(low, high);
                let Finish::Integers { factor, zero: above, .. } = of.finish else { panic!("bytes") };
                for column in 0..value_depth {
                    let sum: i64 = (0..keys)
                        .map(|key| {
                            let value = difference(&of.values, (item * keys + key) * value_depth + column);
                            (stepped(weights[key]) - i64::from(zero)) * value
                        })
                        .sum();
                    let rounded = (sum as f64 * factor[0]).round_ties_even() + f64::from(above);
                    result.push(rounded.clamp(0.0, 255.0) as u8);
                }
            }
        }
        result
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn every_kernel_gives_what_one_key_at_a_time_gives(
            batch in 1usize..3, heads in 1usize..4, queries in 1usize..20, keys in 1usize..70, depth in 1usize..70,
            value_depth in 1usize..40, turned: bool, signed: [bool; 4], zeros: [u8; 3], seed in 0u64..1000,
            threads in 1usize..4, row_block in 1usize..9, masked in 0usize..3,
        ) {
            let sizes = AttentionSizes { batch, heads, queries, keys, depth, value_depth };
            let [q, k, v, len] = sizes.lengths().unwrap();
            let data = [bytes(q, seed), bytes(k, seed + 1), bytes(v, seed + 2)];
            let of = |at: usize| Bytes { data: &data[at], signed: signed[at], zero: zeros[at] };
            // For all heads alike, or one number for each query; some keys are not there.
            let mask: Vec<f32> = (0..batch * queries * keys).map(|at| if at % 5 == 3 { f32::NEG_INFINITY } else { 0.1 * (at % 7) as f32 }).collect();
            let mask = match masked {
                0 => None,
                1 => Some(Mask { data: &mask, strides: [queries * keys, 0, keys, 1] }),
                _ => Some(Mask { data: &mask, strides: [queries, 0, 1, 0] }),
            };
            let (step, zero) = if signed[3] { (1.0 / 127.0, -3) } else { (1.0 / 255.0, 2) };
            let given = Attention {
                sizes,
                queries: of(0),
                keys: of(1),
                turned,
                values: of(2),
                scale: 3e-4,
                mask,
                weights: Steps { scale: step, zero, signed: signed[3] },
                finish: Finish::Integers { bias: None, factor: &[0.004], zero: 100, low: 0, high: 255 },
            };
            for isa in Isa::available() {
                let want = plain(isa, &given);
                for &kernel in kernels(isa.level()) {
                    let (pool, workspace) = (ThreadPool::new(threads).unwrap(), Workspace::new(threads));
                    let blocking = Blocking { kernel, row_block, column_block: kernel.nr };
                    let mut got = vec![7u8; len];
                    attention(isa, &pool, &workspace, &blocking, &given, Output::Bytes(&mut got));
                    prop_assert_eq!(&got, &want, "{}", kernel.name);
                }
            }
        }
    }
}
