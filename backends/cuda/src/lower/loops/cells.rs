//! Recurrent networks: one step that walks every sequence.

use crate::{
    codegen::cell::{self, Cell, CellKind},
    lower::{Lowering, Outcome},
    view::{Kind, View},
};
use planforge_graph::ir::{NamedOp, Node};

impl Lowering<'_> {
    pub(super) fn cell(&mut self, node: &Node, named: &NamedOp) -> Outcome<()> {
        let (x, w, r) = (self.input_view(node, 0)?, self.input_view(node, 1)?, self.input_view(node, 2)?);
        let mut optional = |position: usize| node.input(position).map(|id| self.view(id)).transpose();
        let (bias, lengths) = (optional(3)?, optional(4)?);
        let (h, c, peepholes) = (optional(5)?, optional(6)?, optional(7)?);
        let kind = match named.name.as_str() {
            "lstm" => CellKind::Lstm { input_forget: named.flag("input_forget") },
            "gru" => CellKind::Gru { before_reset: named.flag("linear_before_reset") },
            _ => CellKind::Rnn,
        };
        let [steps, batch] = [0, 1].map(|axis| x.dims[axis]);
        let (directions, hidden) = (r.dims[0], r.dims[2]);
        let stored = if x.kind == Kind::F64 { Kind::F64 } else { self.float };
        let dims = [steps + 2, directions, batch, hidden];
        let all = View::rows(self.temporary("states", stored, &dims), stored, &dims);
        let flops = 2 * steps * batch * w.elements() + 2 * steps * batch * r.elements();
        let described = Cell {
            kind,
            x: &x,
            w: &w,
            r: &r,
            bias: bias.as_ref(),
            lengths: lengths.as_ref(),
            h: h.as_ref(),
            c: c.as_ref(),
            peepholes: peepholes.as_ref(),
            reverse: named.ints("reverse").iter().map(|&flag| flag != 0).collect(),
            activations: named.texts("activations"),
            clip: named.float("clip", f32::INFINITY) as f32,
        };
        let (generated, mut operands) = cell::generate(&described, &all).map_err(|error| error.to_string())?;
        operands.push(all.clone());
        self.emit(generated, "recurrent", operands, &node.origins, flops);
        let state = |at: u64| all.slice(0, at, 1).reshaped(&dims[1..]).ok_or("states that do not lie in rows");
        let parts = [all.slice(0, 0, steps), state(steps)?, state(steps + 1)?];
        for (&output, part) in node.outputs.iter().zip(parts) {
            self.bind(output, part)?;
        }
        Ok(())
    }
}
