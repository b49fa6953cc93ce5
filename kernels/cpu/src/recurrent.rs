//! RNN, GRU and LSTM in one direction. What the inputs give is multiplied for all steps before; here each step multiplies
//! the state by packed weights, and one pass over its gates makes the next state.

use crate::{
    gemm::{Blocking, Epilogue, MatrixRows, Place, Workspace, multiply},
    isa::{Isa, per_level},
    pointwise::{Activation, activate},
    pool::ThreadPool,
};

/// What is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// One gate.
    Rnn,
    /// Update, reset, new. `before_reset`: the state is multiplied before the reset gate takes of it.
    Gru { before_reset: bool },
    /// Input, output, forget, new. `input_forget`: what is forgotten is what is not taken in.
    Lstm { input_forget: bool },
}

impl Cell {
    pub fn gates(self) -> usize {
        match self {
            Self::Rnn => 1,
            Self::Gru { .. } => 3,
            Self::Lstm { .. } => 4,
        }
    }
}

/// Sizes, functions and operands.
#[derive(Clone, Copy, Debug)]
pub struct Recurrence<'a> {
    pub cell: Cell,
    pub steps: usize,
    pub batch: usize,
    pub hidden: usize,
    pub reverse: bool,
    /// Of gates, of what is new, of the state.
    pub activations: [Activation; 3],
    pub clip: Option<f32>,
    /// Columns of the weights, and where those of the last gate begin; others lie side by side before.
    pub columns: usize,
    pub last_gate: usize,
    /// `[step][row][gate][unit]`.
    pub x: &'a [f32],
    /// Packed for the blocking's kernel.
    pub weights: &'a [f32],
    /// `[row][unit]`; zeros where not given.
    pub h: Option<&'a [f32]>,
    pub c: Option<&'a [f32]>,
    /// Steps of each row.
    pub lengths: Option<&'a [i32]>,
    /// Of input, output and forget gate.
    pub peepholes: Option<&'a [f32]>,
    /// Added to the product of the state for what is new, before the reset gate takes of it.
    pub new_bias: Option<&'a [f32]>,
}

/// A row's length that is longer than there are steps, or negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a row has {length} of {steps} steps")]
pub struct LengthError {
    pub length: i32,
    pub steps: usize,
}

impl Recurrence<'_> {
    /// Elements of the memory that a run needs beside its results; `None` when they are too many to count.
    pub fn scratch_len(batch: usize, hidden: usize, columns: usize) -> Option<usize> {
        batch.checked_mul(hidden.checked_mul(3)?.checked_add(columns)?)
    }
}

per_level! {
    /// `to += more`, both as long as `to`.
    fn add(more: &[f32], to: &mut [f32]) {
        for (to, more) in to.iter_mut().zip(more) {
            *to += more;
        }
    }
}
per_level! {
    fn add_products(a: &[f32], b: &[f32], to: &mut [f32]) {
        for ((to, a), b) in to.iter_mut().zip(a).zip(b) {
            *to += a * b;
        }
    }
}
per_level! {
    fn limit(bound: f32, to: &mut [f32]) {
        for to in to {
            *to = to.clamp(-bound, bound);
        }
    }
}
per_level! {
    /// `c = forget c + input new`.
    fn next_state(input: &[f32], forget: &[f32], new: &[f32], c: &mut [f32]) {
        for (((c, input), forget), new) in c.iter_mut().zip(input).zip(forget).zip(new) {
            *c = forget * *c + input * new;
        }
    }
}
per_level! {
    fn multiply_all(a: &[f32], b: &[f32], to: &mut [f32]) {
        for ((to, a), b) in to.iter_mut().zip(a).zip(b) {
            *to = a * b;
        }
    }
}
per_level! {
    /// `h = (1 - update) new + update h`.
    fn blend(update: &[f32], new: &[f32], h: &mut [f32]) {
        for ((h, update), new) in h.iter_mut().zip(update).zip(new) {
            *h = (1.0 - update) * new + update * *h;
        }
    }
}

/// Runs all steps: every state to `y` (`[step][row][unit]`), the last ones to `h` and (LSTM) `c`.
///
/// # Panics
/// When an operand is not as long as the sizes say.
#[expect(clippy::too_many_arguments, reason = "a network has that many operands")]
pub fn run(
    isa: Isa,
    pool: &ThreadPool,
    workspace: &Workspace,
    blocking: &Blocking,
    of: &Recurrence<'_>,
    scratch: &mut [f32],
    y: &mut [f32],
    (h_last, c_last): (&mut [f32], Option<&mut [f32]>),
) -> Result<(), LengthError> {
    let Recurrence { cell, steps, batch, hidden, columns, last_gate, .. } = *of;
    let times = |a: usize, b: usize| a.checked_mul(b).expect("sizes are out of bounds");
    let (state, gates) = (times(batch, hidden), cell.gates());
    let wide = times(gates, hidden);
    let fits = |len: Option<usize>, wanted: usize| len.is_none_or(|len| len == wanted);
    let lstm = matches!(cell, Cell::Lstm { .. });
    assert!(hidden > 0 && batch > 0 && times(gates - 1, hidden) <= last_gate, "gates that are not there");
    assert!(
        last_gate.checked_add(hidden).is_some_and(|end| end <= columns) && last_gate.is_multiple_of(blocking.kernel.nr)
            || !matches!(cell, Cell::Gru { .. }) && columns == wide,
        "columns are not where their gate is"
    );
    assert!(of.x.len() == times(times(steps, batch), wide) && y.len() == times(steps, state), "steps are not whole");
    assert!(
        h_last.len() == state
            && fits(c_last.as_ref().map(|c| c.len()), state)
            && fits(of.h.map(<[f32]>::len), state)
            && fits(of.c.map(<[f32]>::len), state)
            && fits(of.lengths.map(<[i32]>::len), batch)
            && fits(of.peepholes.map(<[f32]>::len), times(3, hidden))
            && fits(of.new_bias.map(<[f32]>::len), hidden),
        "an operand is not as long as the sizes say"
    );
    assert!(
        Some(scratch.len()) == Recurrence::scratch_len(batch, hidden, columns),
        "the memory is not as large as needed"
    );
    if let Some(&length) =
        of.lengths.and_then(|all| all.iter().find(|&&n| usize::try_from(n).is_err() || n as usize > steps))
    {
        return Err(LengthError { length, steps });
    }
    if of.lengths.is_some() {
        y.fill(0.0);
    }
    let (sums, rest) = scratch.split_at_mut(batch * columns);
    let (h, rest) = rest.split_at_mut(state);
    let (c, kept) = rest.split_at_mut(state);
    for (to, from) in [(&mut *h, of.h), (&mut *c, of.c)] {
        match from {
            Some(from) => to.copy_from_slice(from),
            None => to.fill(0.0),
        }
    }
    let limited = |values: &mut [f32]| {
        if let Some(bound) = of.clip.filter(|bound| *bound >= 0.0) {
            limit(isa, bound, values);
        }
    };
    let product = |rows: &[f32], first: usize, count: usize, sums: &mut [f32]| {
        let a = MatrixRows::new(rows, batch, hidden, hidden);
        let b = (&of.weights[first * hidden..], count);
        let place = Place { offset: first, stride: columns };
        multiply(isa, pool, workspace, blocking, &a, b, (sums, place), &Epilogue::default());
    };
    for step in 0..steps {
        let begin = match cell {
            Cell::Gru { before_reset: false } => 2 * hidden,
            _ => columns,
        };
        product(h, 0, begin, sums);
        // Which rows still run, and where their step lies.
        let at = |row: usize| {
            let length = of.lengths.map_or(steps, |lengths| lengths[row] as usize);
            (step < length).then(|| if of.reverse { length - 1 - step } else { step })
        };
        if matches!(cell, Cell::Gru { before_reset: false }) {
            for row in 0..batch {
                let Some(at) = at(row) else { continue };
                let x = &of.x[(at * batch + row) * wide..][..2 * hidden];
                let gates = &mut sums[row * columns..][..2 * hidden];
                add(isa, x, gates);
                limited(gates);
                activate(isa, of.activations[0], gates);
                let h = &h[row * hidden..][..hidden];
                multiply_all(isa, &gates[hidden..], h, &mut kept[row * hidden..][..hidden]);
            }
            product(kept, last_gate, hidden, sums);
        }
        for row in 0..batch {
            let Some(at) = at(row) else { continue };
            let x = &of.x[(at * batch + row) * wide..][..wide];
            let sums = &mut sums[row * columns..][..columns];
            let (h, c) = (&mut h[row * hidden..][..hidden], &mut c[row * hidden..][..hidden]);
            match cell {
                Cell::Rnn => {
                    add(isa, x, sums);
                    limited(sums);
                    activate(isa, of.activations[0], sums);
                    h.copy_from_slice(&sums[..hidden]);
                }
                Cell::Gru { before_reset } => {
                    let (gates, new) = sums.split_at_mut(last_gate);
                    let new = &mut new[..hidden];
                    let (update, reset) = gates.split_at_mut(hidden);
                    let reset = &mut reset[..hidden];
                    if before_reset {
                        add(isa, &x[..hidden], update);
                        add(isa, &x[hidden..2 * hidden], reset);
                        for gate in [&mut *update, &mut *reset] {
                            limited(gate);
                            activate(isa, of.activations[0], gate);
                        }
                        if let Some(bias) = of.new_bias {
                            add(isa, bias, new);
                        }
                        for (new, reset) in new.iter_mut().zip(&*reset) {
                            *new *= reset;
                        }
                    } else if let Some(bias) = of.new_bias {
                        add(isa, bias, new);
                    }
                    add(isa, &x[2 * hidden..], new);
                    limited(new);
                    activate(isa, of.activations[1], new);
                    blend(isa, update, new, h);
                }
                Cell::Lstm { input_forget } => {
                    add(isa, x, sums);
                    let (input, rest) = sums.split_at_mut(hidden);
                    let (output, rest) = rest.split_at_mut(hidden);
                    let (forget, new) = rest.split_at_mut(hidden);
                    let new = &mut new[..hidden];
                    if let Some(peepholes) = of.peepholes {
                        add_products(isa, &peepholes[..hidden], c, input);
                        add_products(isa, &peepholes[2 * hidden..], c, forget);
                    }
                    limited(input);
                    activate(isa, of.activations[0], input);
                    if input_forget {
                        for (forget, input) in forget.iter_mut().zip(&*input) {
                            *forget = 1.0 - input;
                        }
                    } else {
                        limited(forget);
                        activate(isa, of.activations[0], forget);
                    }
                    limited(new);
                    activate(isa, of.activations[1], new);
                    next_state(isa, input, forget, new, c);
                    if let Some(peepholes) = of.peepholes {
                        add_products(isa, &peepholes[hidden..2 * hidden], c, output);
                    }
                    limited(output);
                    activate(isa, of.activations[0], output);
                    new.copy_from_slice(c);
                    activate(isa, of.activations[2], new);
                    multiply_all(isa, output, new, h);
                }
            }
            y[(at * batch + row) * hidden..][..hidden].copy_from_slice(h);
        }
    }
    h_last.copy_from_slice(h);
    if let Some(c_last) = c_last.filter(|_| lstm) {
        c_last.copy_from_slice(c);
    }
    Ok(())
}
