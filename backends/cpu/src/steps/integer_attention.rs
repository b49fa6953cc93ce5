//! Attention over 8-bit integers.

use super::{
    Operands, Prepared, Ready,
    checker::{Checker, product},
    quantized::blocking,
};
use crate::{
    error::EngineError,
    program::{AttentionSizes, ByteAttention, Gather, StepKind, SumsTo, Tactic},
};
use planforge_graph::named::quantized::DEPTH_MAX;
use planforge_kernels_cpu::{
    gemm::Mask,
    isa::Isa,
    quantized::{self, Blocking, Bytes, Finish, Output, PackedSize, kernels},
};

/// Scores that a thread keeps at most, unless a few queries have more.
const SCORES_MAX: usize = 1 << 20;
/// Queries that may have more.
const FEW_QUERIES: usize = 256;

/// Every tactic, the one to take untimed first: blocks of a few tiles of queries, and all of them where those are few;
/// `None` for other kinds.
pub(super) fn candidates(kind: &StepKind, isa: Isa) -> Option<Vec<Tactic>> {
    let StepKind::IntegerAttention { sizes, .. } = kind else { return None };
    let mut all: Vec<Tactic> = Vec::new();
    for kernel in kernels(isa.level()) {
        for row_block in [kernel.mr * 2, kernel.mr * 4, sizes.queries] {
            let row_block = row_block.clamp(1, sizes.queries.max(1));
            if !fits(row_block, sizes.keys) {
                continue;
            }
            let kernel = kernel.name.to_owned();
            let tactic =
                Tactic { kernel, gather: Gather::Heads, pack_rows: true, row_block, column_block: 1, depth_block: 0 };
            if !all.contains(&tactic) {
                all.push(tactic);
            }
        }
    }
    Some(all)
}

/// Whether a thread may keep the scores of so many queries.
fn fits(queries: usize, keys: usize) -> bool {
    queries <= FEW_QUERIES || queries.saturating_mul(keys) <= SCORES_MAX
}

#[derive(Debug)]
struct Attention {
    sizes: quantized::AttentionSizes,
    scale: f32,
    bytes: ByteAttention,
    mask: [usize; 4],
    blocking: Blocking,
}

pub(super) fn attention(check: &Checker<'_>, of: &AttentionSizes, bytes: &ByteAttention, mask: [usize; 4]) -> Prepared {
    let blocking = blocking(check)?;
    let AttentionSizes { batch, heads, queries, keys, depth, value_depth, scale, guarded } = *of;
    let sizes = quantized::AttentionSizes { batch, heads, queries, keys, depth, value_depth };
    let Some(lengths) = sizes.lengths().filter(|lengths| !lengths.contains(&0)) else {
        return Err("it attends to nothing".to_owned());
    };
    if guarded || depth > DEPTH_MAX || keys > DEPTH_MAX {
        return Err("its sums leave 32 bits, or it is guarded".to_owned());
    }
    for (position, elements) in lengths[..3].iter().enumerate() {
        check.holds(["queries", "keys", "values"][position], check.input(position), *elements, 1)?;
    }
    let packed = (PackedSize::new(blocking.kernel, depth, keys), PackedSize::new(blocking.kernel, keys, value_depth));
    let row_bytes = blocking.kernel.row_bytes(depth.max(keys)).ok_or("its rows are too long")?;
    let (Some(by_keys), Some(by_values)) = packed else { return Err("its operands are too large".to_owned()) };
    if !fits(blocking.row_block.min(queries), keys) {
        return Err("its block has more scores than a thread keeps".to_owned());
    }
    // What a thread keeps fits its memory.
    product(&[queries, row_bytes])?;
    product(&[queries, keys, 4])?;
    by_keys.bytes.checked_add(by_values.bytes).ok_or("its operands are too large")?;
    if check.input(3).is_some() {
        let steps = [batch, heads, queries, keys].into_iter().zip(mask);
        let last =
            steps.into_iter().try_fold(0usize, |sum, (size, stride)| (size - 1).checked_mul(stride)?.checked_add(sum));
        if last.is_none_or(|last| last as u64 >= check.input_bytes(3) / 4) {
            return Err("its mask is too short".to_owned());
        }
    }
    let [low, high] = if bytes.weights.signed { [-128, 127] } else { [0, 255] };
    if !(low..=high).contains(&bytes.weights.zero) || !bytes.weights.scale.is_normal() {
        return Err("its weights have no steps".to_owned());
    }
    let element = match bytes.to {
        SumsTo::Integers { low, high, .. } if low <= high => 1,
        SumsTo::Scaled => 4,
        _ => return Err("its sums become neither bytes nor floats".to_owned()),
    };
    check.needs_scratch(None)?;
    if check.step.outputs.len() != 1 {
        return Err("it has not one output".to_owned());
    }
    check.holds("output", check.output(), lengths[3], element)?;
    Ok(Box::new(Attention { sizes, scale, bytes: *bytes, mask, blocking }))
}

impl Ready for Attention {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let Self { sizes, scale, bytes, mask, blocking } = self;
        let (isa, pool, workspace) = (on.isa, on.pool, on.workspace);
        let operand = |position: usize| Bytes {
            data: on.input(position).unwrap_or(&[]),
            signed: bytes.signed[position],
            zero: bytes.zeros[position],
        };
        let factor = [bytes.factor];
        let finish = match bytes.to {
            SumsTo::Integers { zero, low, high } => Finish::Integers { bias: None, factor: &factor, zero, low, high },
            _ => Finish::Scaled { bias: None, factor: &factor },
        };
        let of = quantized::Attention {
            sizes: *sizes,
            queries: operand(0),
            keys: operand(1),
            turned: bytes.turned,
            values: operand(2),
            scale: *scale,
            mask: on.input(3).map(|data| Mask { data, strides: *mask }),
            weights: quantized::Steps {
                scale: bytes.weights.scale,
                zero: bytes.weights.zero,
                signed: bytes.weights.signed,
            },
            finish,
        };
        let to = match bytes.to {
            SumsTo::Integers { .. } => Output::Bytes(on.output(0)),
            _ => Output::Floats(on.output(0)),
        };
        quantized::attention(isa, pool, workspace, blocking, &of, to);
        Ok(())
    }
}
