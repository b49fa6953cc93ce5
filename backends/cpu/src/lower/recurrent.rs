//! Recurrent networks: what all inputs give is one product; then a step per direction that repeats the cell.

use super::{
    super::program::{BufferId, CellKind, MoveAxis, MovePart, RecurrentSizes, StepKind},
    Lowered, Lowering, constant,
};
use crate::draft::{Role, WeightSource};
use planforge_graph::ir::{Activation, ElementType, NamedOp, Node, Tensor, ValueId};

/// The function behind a name of [`planforge_graph::named::ACTIVATIONS`].
fn activation(name: &str) -> Option<Activation> {
    Some(match name {
        "Relu" => Activation::Relu,
        "Tanh" => Activation::Tanh,
        "Sigmoid" => Activation::Sigmoid,
        "HardSigmoid" => Activation::HardSigmoid { alpha: 0.2, beta: 0.5 },
        "LeakyRelu" => Activation::LeakyRelu { alpha: 0.01 },
        "Elu" => Activation::Elu { alpha: 1.0 },
        "Softsign" => Activation::Softsign,
        "Softplus" => Activation::Softplus,
        _ => return None,
    })
}

/// Part `index` of `count` along the first axis of a constant.
fn part(tensor: &Tensor, index: usize, count: usize) -> Option<Tensor> {
    let bytes = tensor.bytes();
    let size = bytes.len() / count;
    Tensor::new(tensor.element(), tensor.shape()[1..].to_vec(), bytes.slice(index * size..(index + 1) * size)).ok()
}

impl Lowering<'_> {
    pub(super) fn recurrent(&mut self, node: &Node, named: &NamedOp) -> Lowered<bool> {
        let input = |position: usize| node.input(position);
        let (Some(x), Some(w), Some(r)) = (input(0), input(1), input(2)) else { return Ok(false) };
        let (shape, out) = (self.shape(x)?, self.shape(node.outputs[0])?);
        let (Some(w), Some(r)) = (self.constant_f32(w).cloned(), self.constant_f32(r).cloned()) else {
            return Ok(false);
        };
        let bias = match input(3) {
            Some(id) => match self.constant_f32(id).cloned() {
                Some(bias) => Some(bias),
                None => return Ok(false),
            },
            None => None,
        };
        let [steps, directions, batch, hidden] = out[..] else { return Ok(false) };
        let depth = shape[2];
        let lstm = named.name == "lstm";
        let floats = [Some(x), input(5), input(6), input(7)].into_iter().flatten().all(|id| self.is_f32(id));
        let lengths = input(4);
        if !floats
            || out.contains(&0)
            || depth == 0
            || lengths.is_some_and(|id| self.graph.value(id).element != ElementType::I32)
        {
            return Ok(false);
        }
        let kind = match named.name.as_str() {
            "lstm" => CellKind::Lstm { input_forget: named.flag("input_forget") },
            "gru" => CellKind::Gru { before_reset: named.flag("linear_before_reset") },
            _ => CellKind::Rnn,
        };
        let functions = named.texts("activations").len() / directions;
        let mut activations = Vec::new();
        for name in named.texts("activations") {
            match activation(name) {
                Some(activation) => activations.push(activation),
                None => return Ok(false),
            }
        }
        let clip = named.floats("clip").first().copied();
        let from = self.row(x)?;
        let lengths = lengths.map(|id| self.row(id)).transpose()?;
        let mut made: Vec<Vec<BufferId>> = Vec::new();
        let name = self.graph.value(node.outputs[0]).name.clone();
        for direction in 0..directions {
            let sizes = RecurrentSizes {
                kind,
                steps,
                batch,
                hidden,
                reverse: named.ints("reverse")[direction] != 0,
                activations: activations[direction * functions..][..functions].to_vec(),
                clip,
            };
            let gates = sizes.gates();
            let (Some(columns), Some(last_gate)) = (sizes.columns(), sizes.last_gate()) else { return Ok(false) };
            let (Some(w), Some(r)) = (part(&w, direction, directions), part(&r, direction, directions)) else {
                return Ok(false);
            };
            let wide = gates * hidden;
            // Both biases at once; but what a reset gate takes of has its own.
            let mut own_bias = vec![0f32; wide];
            let mut new_bias = None;
            if let Some(bias) = bias.as_ref().and_then(|bias| part(bias, direction, directions)) {
                let values = bias.values::<f32>().unwrap_or_default();
                own_bias.copy_from_slice(&values[..wide]);
                let apart = kind == CellKind::Gru { before_reset: true };
                for (at, value) in values[wide..].iter().enumerate().filter(|(at, _)| !apart || *at < 2 * hidden) {
                    own_bias[at] += value;
                }
                new_bias = apart.then(|| values[wide + 2 * hidden..].to_vec());
            }
            let product = self.draft.add_buffer(
                format!("{name} (inputs of direction {direction})"),
                4 * (steps * batch * wide) as u64,
                Role::Temporary,
            );
            let gemm = StepKind::Gemm { rows: steps * batch, columns: wide, depth, alpha: 1.0, activation: None };
            self.emit(&node.origins, gemm, vec![Some(from)], vec![product]);
            if let Some(last) = self.draft.steps.last_mut() {
                last.weights = Some(WeightSource::Matrix { data: w, depth, columns: wide, strides: [1, depth] });
                last.bias = Some(own_bias);
            }
            let state = |lowering: &mut Self, id: Option<ValueId>, len: usize| -> Lowered<Option<BufferId>> {
                let Some(id) = id else { return Ok(None) };
                let whole = lowering.row(id)?;
                if directions == 1 {
                    return Ok(Some(whole));
                }
                let to = lowering.draft.add_buffer(format!("{name} (state)"), 4 * len as u64, Role::Temporary);
                let axes = vec![MoveAxis { size: len, from: 1, to: 1 }];
                let parts = vec![MovePart { input: 0, from: direction * len, to: 0, axes }];
                lowering.emit(&node.origins, StepKind::Move { element_bytes: 4, parts }, vec![Some(whole)], vec![to]);
                Ok(Some(to))
            };
            let h = state(self, input(5), batch * hidden)?;
            let c = state(self, input(6).filter(|_| lstm), batch * hidden)?;
            let peepholes = state(self, input(7).filter(|_| lstm), 3 * hidden)?;
            let new_bias = new_bias
                .map(|bias| self.draft.add_buffer(format!("{name} (bias)"), 4 * hidden as u64, constant(&bias)));
            let mut outputs = Vec::new();
            for (index, &id) in node.outputs.iter().enumerate() {
                let count = if index == 0 { steps * batch * hidden } else { batch * hidden };
                outputs.push(if directions == 1 {
                    let buffer = self.temporary(id, "")?;
                    self.placed[id.index()].row = Some(buffer);
                    buffer
                } else {
                    let name = format!("{} (direction {direction})", self.graph.value(id).name);
                    self.draft.add_buffer(name, 4 * count as u64, Role::Temporary)
                });
            }
            let weights = if matches!(kind, CellKind::Gru { .. }) {
                // The last gate begins at a panel of its own.
                let values = r.values::<f32>().unwrap_or_default();
                let mut moved = vec![0f32; hidden * columns];
                for gate in 0..wide {
                    let column = if gate < 2 * hidden { gate } else { last_gate + gate - 2 * hidden };
                    for step in 0..hidden {
                        moved[step * columns + column] = values[gate * hidden + step];
                    }
                }
                let Ok(data) = Tensor::from_vec(vec![hidden, columns], moved) else { return Ok(false) };
                WeightSource::Matrix { data, depth: hidden, columns, strides: [columns, 1] }
            } else {
                WeightSource::Matrix { data: r, depth: hidden, columns, strides: [1, hidden] }
            };
            let mut inputs = vec![Some(product), h, c, lengths, peepholes, new_bias];
            while inputs.last() == Some(&None) {
                inputs.pop();
            }
            made.push(outputs.clone());
            self.emit(&node.origins, StepKind::Recurrent(sizes), inputs, outputs);
            if let Some(last) = self.draft.steps.last_mut() {
                last.weights = Some(weights);
            }
        }
        if directions == 1 {
            return Ok(true);
        }
        let state = batch * hidden;
        for (index, &id) in node.outputs.iter().enumerate() {
            let to = self.temporary(id, "")?;
            self.placed[id.index()].row = Some(to);
            let count = if index == 0 { steps } else { 1 };
            let parts = (0..directions).map(|direction| MovePart {
                input: direction,
                from: 0,
                to: direction * state,
                axes: vec![
                    MoveAxis { size: count, from: state as isize, to: directions * state },
                    MoveAxis { size: state, from: 1, to: 1 },
                ],
            });
            let kind = StepKind::Move { element_bytes: 4, parts: parts.collect() };
            let inputs = made.iter().map(|outputs| Some(outputs[index])).collect();
            self.emit(&node.origins, kind, inputs, vec![to]);
        }
        Ok(true)
    }
}
