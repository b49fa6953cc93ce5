//! RNN, GRU and LSTM.

use super::{
    Operands, Prepared, Ready, activation,
    checker::{CHANNELS_MAX, Checker, product},
    operands::States,
};
use crate::{
    error::EngineError,
    program::{CellKind, Gather, RecurrentSizes, StepKind, Tactic},
};
use planforge_kernels_cpu::{
    gemm::{Blocking, Kernel, PackedSize, kernels},
    isa::Isa,
    pointwise::Activation,
    recurrent::{self as cells, Cell, Recurrence},
};

/// From as many rows on, a product is like any other; below, wide panels read the weights best.
const ROWS_FEW: usize = 6;

/// The one tactic; `None` for other kinds.
pub(super) fn candidates(kind: &StepKind, isa: Isa, threads: usize) -> Option<Vec<Tactic>> {
    let StepKind::Recurrent(sizes) = kind else { return None };
    let all = kernels(isa.level());
    let kernel = match sizes.batch < ROWS_FEW {
        true => all.iter().max_by_key(|kernel| kernel.nr)?,
        false => all.first()?,
    };
    let columns = sizes.columns()?;
    let column_block = columns.div_ceil(threads).next_multiple_of(kernel.nr);
    let kernel = kernel.name.to_owned();
    let row_block = sizes.batch.max(1);
    Some(vec![Tactic { kernel, gather: Gather::Matrix, pack_rows: false, row_block, column_block, depth_block: 0 }])
}

/// Bytes of the memory for gates and states; `None` for other kinds.
pub(super) fn scratch_bytes(kind: &StepKind) -> Option<u64> {
    let StepKind::Recurrent(sizes) = kind else { return None };
    Some(Recurrence::scratch_len(sizes.batch, sizes.hidden, sizes.columns()?)? as u64 * 4)
}

/// Size of packed weights in elements, and of no bias; `None` for other kinds.
pub(super) fn packed_size(kind: &StepKind, kernel: &Kernel) -> Option<(usize, usize)> {
    let StepKind::Recurrent(sizes) = kind else { return None };
    Some((PackedSize::new(kernel, sizes.hidden, sizes.columns()?)?.elements, 0))
}

#[derive(Debug)]
struct Recurrent {
    sizes: RecurrentSizes,
    cell: Cell,
    activations: [Activation; 3],
    columns: usize,
    last_gate: usize,
    blocking: Blocking,
}

pub(super) fn recurrent(check: &Checker<'_>, sizes: &RecurrentSizes) -> Prepared {
    let RecurrentSizes { steps, batch, hidden, .. } = *sizes;
    let bounded = [steps, batch, hidden].iter().all(|size| (1..=CHANNELS_MAX).contains(size));
    let (columns, last_gate) = sizes.columns().zip(sizes.last_gate()).ok_or("its sizes are out of bounds")?;
    let cell = match sizes.kind {
        CellKind::Rnn => Cell::Rnn,
        CellKind::Gru { before_reset } => Cell::Gru { before_reset },
        CellKind::Lstm { input_forget } => Cell::Lstm { input_forget },
    };
    let lstm = matches!(cell, Cell::Lstm { .. });
    let outputs = if lstm { 3 } else { 2 };
    if !bounded || sizes.activations.len() > 3 || check.step.outputs.len() != outputs || check.step.inputs.len() > 6 {
        return Err("its sizes are out of bounds, or it has not as many operands as it needs".to_owned());
    }
    let state = product(&[batch, hidden])?;
    check.takes(0, product(&[steps, state, sizes.gates()])?)?;
    check.may_take(1, state)?;
    check.may_take(2, state)?;
    check.may_take(3, batch)?;
    check.may_take(4, product(&[3, hidden])?)?;
    check.may_take(5, hidden)?;
    check.holds("output", check.output(), product(&[steps, state])?, 4)?;
    for &id in &check.step.outputs[1..] {
        check.holds("state", Some(id), state, 4)?;
    }
    let blocking = check.blocking()?;
    let size = PackedSize::new(blocking.kernel, hidden, columns).ok_or("its weights are too large")?;
    check.holds("weights", check.step.weights, size.elements, 4)?;
    check.needs_scratch(Some(Recurrence::scratch_len(batch, hidden, columns).ok_or("its memory is too large")?))?;
    if matches!(cell, Cell::Gru { .. }) && !last_gate.is_multiple_of(blocking.kernel.nr) {
        return Err("its kernel's panels do not suit it".to_owned());
    }
    let mut activations = [Activation::None; 3];
    for (to, of) in activations.iter_mut().zip(&sizes.activations) {
        *to = activation(Some(*of));
    }
    Ok(Box::new(Recurrent { sizes: sizes.clone(), cell, activations, columns, last_gate, blocking }))
}

impl Ready for Recurrent {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let RecurrentSizes { steps, batch, hidden, reverse, clip, .. } = self.sizes;
        let (isa, pool, workspace, step) = (on.isa, on.pool, on.workspace, on.step);
        let of = Recurrence {
            cell: self.cell,
            steps,
            batch,
            hidden,
            reverse,
            activations: self.activations,
            clip,
            columns: self.columns,
            last_gate: self.last_gate,
            x: on.numbers(0),
            weights: on.weights(),
            h: on.input(1),
            c: on.input(2),
            lengths: on.input(3),
            peepholes: on.input(4),
            new_bias: on.input(5),
        };
        let States { all, last, inner, scratch } = on.states_and_scratch();
        let done = cells::run(isa, pool, workspace, &self.blocking, &of, scratch, all, (last, inner));
        done.map_err(|error| EngineError::Index {
            step: step.origins.join(" + "),
            index: error.length.into(),
            size: error.steps,
        })
    }
}
