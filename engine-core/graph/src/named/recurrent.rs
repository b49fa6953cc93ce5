//! RNN, GRU and LSTM: step by step, as their definitions say.

use super::Entry;
use crate::{
    ir::{ElementType, NamedOp, Tensor},
    reference::{
        Inputs, OpError,
        gather::integers,
        numbers::{Numbers, floats},
    },
    shape::{Given, ShapeError, TensorType, attribute, mismatch, require},
};

pub(super) const ENTRIES: &[Entry] = &[
    Entry { name: "rnn", takes_empty: false, infer: infer_cell, run: run_cell },
    Entry { name: "gru", takes_empty: false, infer: infer_cell, run: run_cell },
    Entry { name: "lstm", takes_empty: false, infer: infer_cell, run: run_cell },
];

/// The functions between a cell's sums; parameters have their usual values.
pub const ACTIVATIONS: [&str; 8] =
    ["Relu", "Tanh", "Sigmoid", "HardSigmoid", "LeakyRelu", "Elu", "Softsign", "Softplus"];

fn activate(name: &str, x: f64) -> f64 {
    match name {
        "Relu" => x.max(0.0),
        "Tanh" => x.tanh(),
        "Sigmoid" => 1.0 / (1.0 + (-x).exp()),
        "HardSigmoid" => (0.2 * x + 0.5).clamp(0.0, 1.0),
        "LeakyRelu" => {
            if x < 0.0 {
                0.01 * x
            } else {
                x
            }
        }
        "Elu" => {
            if x < 0.0 {
                x.exp_m1()
            } else {
                x
            }
        }
        "Softsign" => x / (1.0 + x.abs()),
        _ => x.max(0.0) + (-x.abs()).exp().ln_1p(),
    }
}

/// Gates of a cell, and functions per direction.
fn gates(name: &str) -> (usize, usize) {
    match name {
        "lstm" => (4, 3),
        "gru" => (3, 2),
        _ => (1, 1),
    }
}

/// `[x (S,B,I), w (D,G*H,I), r (D,G*H,H), b? (D,2*G*H), lengths? (B), h? (D,B,H)]`, and for LSTM `[c? (D,B,H), p? (D,3*H)]`
/// -> `[y (S,D,B,H), h (D,B,H)]`, and c for LSTM. `reverse` has one flag per direction.
fn infer_cell(named: &NamedOp, given: &Given<'_>, _: &[Vec<usize>]) -> Result<Vec<TensorType>, ShapeError> {
    let x = given.float(0)?;
    let (w, r) = (given.get(1)?, given.get(2)?);
    given.same_element(0, 1)?;
    given.same_element(0, 2)?;
    let (gates, functions) = gates(&named.name);
    let ([steps, batch, inputs], [directions, rows, _], [_, _, hidden]) =
        (x.shape.as_slice(), w.shape.as_slice(), r.shape.as_slice())
    else {
        return Err(given.rank_error(0, "3 axes are needed".into()));
    };
    let (steps, batch, directions, hidden) = (*steps, *batch, *directions, *hidden);
    let wide = hidden.checked_mul(gates).filter(|&wide| wide == *rows);
    let wide = wide.ok_or_else(|| mismatch("weights", &w.shape, &r.shape))?;
    require(w.shape == [directions, wide, *inputs], || mismatch("weights", &w.shape, &x.shape))?;
    require(r.shape == [directions, wide, hidden], || mismatch("recurrent weights", &r.shape, &w.shape))?;
    let reverse = named.ints("reverse");
    require(reverse.len() == directions, || attribute("direction", reverse, &w.shape))?;
    let names = named.texts("activations");
    let known = names.iter().all(|name| ACTIVATIONS.contains(&name.as_str()));
    require(known && names.len() == functions * directions, || attribute("activations", names, &w.shape))?;
    let state = TensorType::new(x.element, [directions, batch, hidden]);
    given.optional_is(3, "bias", &TensorType::new(x.element, [directions, 2 * wide]))?;
    if let Some(lengths) = given.optional(4) {
        given.integer(4)?;
        require(lengths.shape == [batch], || mismatch("lengths", &lengths.shape, &[batch]))?;
    }
    given.optional_is(5, "state", &state)?;
    let y = TensorType::new(x.element, [steps, directions, batch, hidden]);
    if named.name != "lstm" {
        return Ok(vec![y, state]);
    }
    given.optional_is(6, "cell state", &state)?;
    given.optional_is(7, "peepholes", &TensorType::new(x.element, [directions, 3 * hidden]))?;
    Ok(vec![y, state.clone(), state])
}

/// Weights of one direction.
struct Cell<'a> {
    kind: &'a str,
    inputs: usize,
    hidden: usize,
    w: &'a [f64],
    r: &'a [f64],
    /// Of the input side, then of the recurrent side; empty when there is none.
    bias: &'a [f64],
    peepholes: &'a [f64],
    activations: &'a [String],
    clip: f64,
    before_reset: bool,
    input_forget: bool,
}

impl Cell<'_> {
    fn sum(weights: &[f64], row: usize, values: &[f64]) -> f64 {
        weights[row * values.len()..][..values.len()].iter().zip(values).map(|(w, x)| w * x).sum()
    }

    fn bias(&self, side: usize, row: usize) -> f64 {
        self.bias.get(side * self.bias.len() / 2 + row).copied().unwrap_or(0.0)
    }

    fn input(&self, gate: usize, unit: usize, x: &[f64]) -> f64 {
        let row = gate * self.hidden + unit;
        Self::sum(self.w, row, x) + self.bias(0, row)
    }

    fn recurrent(&self, gate: usize, unit: usize, h: &[f64]) -> f64 {
        let row = gate * self.hidden + unit;
        Self::sum(self.r, row, h) + self.bias(1, row)
    }

    fn apply(&self, function: usize, x: f64) -> f64 {
        activate(&self.activations[function], x.clamp(-self.clip, self.clip))
    }

    /// The next hidden state; `c` is updated in place.
    fn step(&self, x: &[f64], h: &[f64], c: &mut [f64]) -> Vec<f64> {
        debug_assert_eq!(x.len(), self.inputs);
        let units = 0..self.hidden;
        let both = |gate: usize, unit: usize| self.input(gate, unit, x) + self.recurrent(gate, unit, h);
        match self.kind {
            "lstm" => {
                let peep = |gate: usize, unit: usize, c: f64| {
                    self.peepholes.get(gate * self.hidden + unit).map_or(0.0, |weight| weight * c)
                };
                let next = units.map(|unit| {
                    let old = c[unit];
                    let input = self.apply(0, both(0, unit) + peep(0, unit, old));
                    let forget = match self.input_forget {
                        true => 1.0 - input,
                        false => self.apply(0, both(2, unit) + peep(2, unit, old)),
                    };
                    let new = forget * old + input * self.apply(1, both(3, unit));
                    let output = self.apply(0, both(1, unit) + peep(1, unit, new));
                    (new, output * activate(&self.activations[2], new))
                });
                let next: Vec<(f64, f64)> = next.collect();
                c.iter_mut().zip(&next).for_each(|(c, (new, _))| *c = *new);
                next.into_iter().map(|(_, h)| h).collect()
            }
            "gru" => {
                let update: Vec<f64> = units.clone().map(|unit| self.apply(0, both(0, unit))).collect();
                let reset: Vec<f64> = units.clone().map(|unit| self.apply(0, both(1, unit))).collect();
                let kept: Vec<f64> = reset.iter().zip(h).map(|(reset, h)| reset * h).collect();
                units
                    .map(|unit| {
                        let recurrent = match self.before_reset {
                            true => reset[unit] * self.recurrent(2, unit, h),
                            false => self.recurrent(2, unit, &kept),
                        };
                        let new = self.apply(1, self.input(2, unit, x) + recurrent);
                        (1.0 - update[unit]) * new + update[unit] * h[unit]
                    })
                    .collect()
            }
            _ => units.map(|unit| self.apply(0, both(0, unit))).collect(),
        }
    }
}

fn run_cell(named: &NamedOp, inputs: &Inputs<'_>, outputs: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
    let op = super::kind(&named.name);
    let (x, w, r) = (inputs.get(0)?, inputs.get(1)?, inputs.get(2)?);
    let [steps, directions, batch, hidden] = outputs[0].shape[..] else { return Ok(Vec::new()) };
    let width = x.shape()[2];
    let (_, functions) = gates(&named.name);
    let (x, w, r) = (floats(op, x)?, floats(op, w)?, floats(op, r)?);
    let optional = |position: usize| inputs.optional(position).map(|tensor| floats(op, tensor)).transpose();
    let bias = optional(3)?.unwrap_or_default();
    let peepholes = optional(7)?.unwrap_or_default();
    let states = directions * batch * hidden;
    let mut h = optional(5)?.unwrap_or_else(|| vec![0.0; states]);
    let mut c = optional(6)?.unwrap_or_else(|| vec![0.0; states]);
    let lengths = match inputs.optional(4) {
        Some(lengths) => integers(op, lengths)?,
        None => vec![steps as i64; batch],
    };
    if let Some(&index) = lengths.iter().find(|&&length| !(0..=steps as i64).contains(&length)) {
        return Err(OpError::Index { op, index, size: steps });
    }
    let part = |values: &'_ [f64], direction: usize| -> std::ops::Range<usize> {
        let size = values.len() / directions.max(1);
        direction * size..(direction + 1) * size
    };
    let clip = named.float("clip", f32::INFINITY);
    let mut y = vec![0f64; steps * states];
    for direction in 0..directions {
        let cell = Cell {
            kind: &named.name,
            inputs: width,
            hidden,
            w: &w[part(&w, direction)],
            r: &r[part(&r, direction)],
            bias: &bias[part(&bias, direction)],
            peepholes: &peepholes[part(&peepholes, direction)],
            activations: &named.texts("activations")[direction * functions..][..functions],
            clip,
            before_reset: named.flag("linear_before_reset"),
            input_forget: named.flag("input_forget"),
        };
        let reverse = named.ints("reverse")[direction] != 0;
        for image in 0..batch {
            let place = (direction * batch + image) * hidden;
            let length = lengths[image] as usize;
            for step in 0..length {
                let at = if reverse { length - 1 - step } else { step };
                let x = &x[(at * batch + image) * width..][..width];
                let next = cell.step(x, &h[place..place + hidden], &mut c[place..place + hidden]);
                y[at * states + place..][..hidden].copy_from_slice(&next);
                h[place..place + hidden].copy_from_slice(&next);
            }
        }
    }
    let results = [y, h, c].into_iter().zip(outputs);
    debug_assert!(outputs.iter().all(|out| out.element != ElementType::Bool));
    results.map(|(values, out)| Numbers::Float(values).into_tensor(out)).collect()
}
