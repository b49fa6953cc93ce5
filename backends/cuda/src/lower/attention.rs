//! Scaled dot-product attention: one fused kernel in 16-bit floats, products and a softmax otherwise.

use super::{Lowering, Outcome};
use crate::{
    codegen::{
        attention::fits,
        expr::{Expr, Load},
        norm::{self, Row},
    },
    program::{AttentionWork, ProductWork, Work},
    view::View,
};
use planforge_graph::ir::{Attention, Binary, Node};

/// Heads lie side by side: `[batch][sequence][heads size]` as `[batch][heads][sequence][size]`.
fn by_head(view: &View, heads: u64) -> Option<View> {
    let [batch, length, width] = [0, 1, 2].map(|axis| view.dims[axis]);
    Some(view.reshaped(&[batch, length, heads, width / heads])?.permuted(&[0, 2, 1, 3]))
}

impl Lowering<'_> {
    pub(super) fn attention(&mut self, node: &Node, attention: &Attention) -> Outcome<()> {
        let heads = attention.heads as u64;
        let mut operands = Vec::new();
        for position in 0..3 {
            let view = self.input_view(node, position)?;
            let view = if view.kind == self.float { view } else { self.dense_rows(view)? };
            operands.push(by_head(&view, heads).ok_or("heads that do not lie side by side")?);
        }
        let [q, k, v] = [0, 1, 2].map(|index| operands[index].clone());
        let out = node.outputs[0];
        let y = self.place_strictly(out, |_| true)?;
        let o = by_head(&y, heads).ok_or("a result whose heads do not lie side by side")?;
        let [batch, _, length, size] = [0, 1, 2, 3].map(|axis| q.dims[axis]);
        let (keys, width) = (k.dims[2], v.dims[3]);
        let flops = 2 * batch * heads * length * keys * (size + width);
        let scores_dims = [batch, heads, length, keys];
        let mask = match node.input(3) {
            Some(id) => Some(self.view(id)?.broadcast(&scores_dims).ok_or("its mask does not broadcast")?),
            None => None,
        };
        let work = AttentionWork { q, k, v, mask, o, scale: attention.scale };
        if fits(&work) {
            self.step(Work::Attention(work), &node.origins, flops);
            return self.bind(out, y);
        }

        let AttentionWork { q, k, v, mask, o, .. } = work;
        let all = batch * heads;
        let scores = View::rows(self.temporary("scores", self.float, &scores_dims), self.float, &scores_dims);
        let a = self.matrix_rows(q, &[all, length, size], true)?;
        let b = self.matrix_rows(k.permuted(&[0, 1, 3, 2]), &[all, size, keys], false)?;
        self.plain_product(node, a, b, &scores, [all, length, keys], attention.scale)?;
        let masked = match mask {
            Some(mask) => {
                let load = |view: &View| Box::new(Expr::Load(Load { view: view.clone(), index: None }));
                let masked = View::rows(self.temporary("masked", self.float, &scores_dims), self.float, &scores_dims);
                let sum = Expr::Binary(Binary::Add, load(&scores), load(&mask));
                self.emit_pointwise(&sum, &masked, &node.origins)?;
                masked
            }
            None => scores,
        };
        let shares = View::rows(self.temporary("shares", self.float, &scores_dims), self.float, &scores_dims);
        let generated = norm::rows(&masked, &shares, &[], Row::Softmax { guarded: attention.guarded });
        self.emit(generated, "softmax", vec![masked, shares.clone()], &node.origins, 5 * shares.elements());
        let v = self.matrix_rows(v, &[all, keys, width], false)?;
        let mixed_dims = [batch, heads, length, width];
        let mixed = View::rows(self.temporary("mixed", self.float, &mixed_dims), self.float, &mixed_dims);
        let shares = shares.reshaped(&[all, length, keys]).ok_or("its scores do not lie in rows")?;
        self.plain_product(node, shares, v, &mixed, [all, length, width], 1.0)?;
        self.copy(&mixed, &o, &node.origins)?;
        self.bind(out, y)
    }

    /// `y = alpha a · b`, nothing else.
    fn plain_product(&mut self, node: &Node, a: View, b: View, y: &View, shape: [u64; 3], alpha: f32) -> Outcome<()> {
        let flops = 2 * shape.iter().product::<u64>() * a.dims[2];
        let y = y.reshaped(&shape).ok_or("its result does not lie in rows")?;
        let work = ProductWork { a, b, bias: None, residual: None, y, alpha, activation: None, norm: None };
        self.step(Work::Product(work), &node.origins, flops);
        Ok(())
    }
}
