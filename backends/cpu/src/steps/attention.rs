//! Attention, head by head or in passes over all heads.

use super::{
    Operands, Prepared, Ready,
    checker::{Checker, product},
};
use crate::{
    error::EngineError,
    program::{AttentionSizes, Gather, HeadRows, StepKind, Tactic},
};
use planforge_kernels_cpu::{
    gemm::{self, AttentionShape, Blocking, kernels, score_count},
    isa::Isa,
};

/// Every tactic of attention, the one to take untimed first: by heads in blocks of a few tiles of queries, and in
/// passes. `None` for other kinds.
pub(super) fn candidates(kind: &StepKind, isa: Isa) -> Option<Vec<Tactic>> {
    let StepKind::Attention { sizes, .. } = kind else { return None };
    let mut all: Vec<Tactic> = Vec::new();
    for kernel in kernels(isa.level()) {
        for pack_rows in [false, true] {
            let ways =
                [(Gather::Heads, kernel.mr * 2), (Gather::Heads, kernel.mr * 4), (Gather::Passes, sizes.queries)];
            for (gather, row_block) in ways {
                let row_block = row_block.clamp(1, sizes.queries.max(1));
                let column_block = sizes.keys.max(sizes.value_depth).next_multiple_of(kernel.nr).max(kernel.nr);
                let kernel = kernel.name.to_owned();
                let tactic = Tactic { kernel, gather, pack_rows, row_block, column_block, depth_block: 0 };
                if !all.contains(&tactic) {
                    all.push(tactic);
                }
            }
        }
    }
    Some(all)
}

/// Bytes of the scores that a tactic keeps in memory; `None` for other kinds.
pub(super) fn scratch_bytes(kind: &StepKind, tactic: &Tactic) -> Option<u64> {
    match (kind, tactic.gather) {
        (StepKind::Attention { sizes, .. }, Gather::Passes) => {
            score_count(&(*sizes).into()).and_then(|count| (count as u64).checked_mul(4))
        }
        _ => None,
    }
}

#[derive(Debug)]
struct Attention {
    shape: AttentionShape,
    /// Of queries, keys and values.
    rows: [HeadRows; 3],
    mask: [usize; 4],
    blocking: Blocking,
    passes: bool,
}

/// `rows` are those of queries, keys and values.
pub(super) fn attention(
    check: &Checker<'_>,
    sizes: &AttentionSizes,
    rows: [HeadRows; 3],
    mask: [usize; 4],
) -> Prepared {
    let tactic = check.tactic()?;
    let blocking = check.blocking()?;
    let [queries, keys, values] = rows;
    let widths = [
        (sizes.queries, product(&[sizes.heads, sizes.depth])?, queries),
        (sizes.keys, product(&[sizes.heads, sizes.depth])?, keys),
        (sizes.keys, product(&[sizes.heads, sizes.value_depth])?, values),
    ];
    let scores = product(&[sizes.batch, sizes.heads, sizes.queries, sizes.keys])?;
    if [sizes.batch, sizes.heads, sizes.queries, sizes.keys, sizes.depth, sizes.value_depth].contains(&0) {
        return Err("it attends to nothing".to_owned());
    }
    for (position, (rows, width, at)) in widths.into_iter().enumerate() {
        let rows = product(&[sizes.batch, rows])?;
        let end = (rows - 1).checked_mul(at.stride).and_then(|end| end.checked_add(width)?.checked_add(at.offset));
        let elements = check.input_bytes(position) / 4;
        if at.stride < width || end.is_none_or(|end| end as u64 > elements) {
            return Err(format!("rows of its input {position} lie outside of it"));
        }
    }
    if check.input(3).is_some() {
        let steps = [sizes.batch, sizes.heads, sizes.queries, sizes.keys].into_iter().zip(mask);
        let last =
            steps.into_iter().try_fold(0usize, |sum, (size, stride)| (size - 1).checked_mul(stride)?.checked_add(sum));
        let elements = check.input_bytes(3) / 4;
        if last.is_none_or(|last| last as u64 >= elements) {
            return Err("its mask is too short".to_owned());
        }
    }
    check.gives(product(&[sizes.batch, sizes.queries, sizes.heads, sizes.value_depth])?)?;
    let passes = match tactic.gather {
        Gather::Heads => false,
        Gather::Passes => true,
        _ => return Err(format!("tactic {} does not suit it", tactic.name())),
    };
    check.needs_scratch(passes.then_some(scores))?;
    Ok(Box::new(Attention { shape: (*sizes).into(), rows, mask, blocking, passes }))
}

impl Ready for Attention {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let (isa, pool, workspace) = (on.isa, on.pool, on.workspace);
        let operand = |position: usize| gemm::HeadRows {
            data: on.numbers(position),
            offset: self.rows[position].offset,
            stride: self.rows[position].stride,
        };
        let of = gemm::Attention {
            shape: self.shape,
            queries: operand(0),
            keys: operand(1),
            values: operand(2),
            mask: on.input(3).map(|data| gemm::Mask { data, strides: self.mask }),
        };
        let (to, scratch) = on.output_and_scratch();
        match scratch.filter(|_| self.passes) {
            Some(scores) => gemm::attention_in_passes(isa, pool, workspace, &self.blocking, &of, scores, to),
            None => gemm::attention(isa, pool, workspace, &self.blocking, &of, to),
        }
        Ok(())
    }
}
