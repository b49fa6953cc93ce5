//! Reductions, normalisation and softmax.

use super::{Lowering, Outcome};
use crate::{
    codegen::{
        best,
        expr::{Expr, Load},
        norm::{self, Row},
        pool,
        reduce::{self, How},
    },
    view::{Kind, View},
};
use planforge_graph::ir::{ArgReduce, Binary, Node, ReduceKind};

/// Longest row of a group: it lies in the registers of a block.
const MAX_ROW: u64 = 1 << 17;

impl Lowering<'_> {
    pub(super) fn reduce(&mut self, node: &Node, kind: ReduceKind, axes: &[usize]) -> Outcome<()> {
        let id = node.input(0).ok_or("it has no input")?;
        let dims = self.dims(id)?;
        if kind != ReduceKind::Mean || axes != [2, 3] || dims.len() != 4 || !self.kind(id).is_float() {
            return self.reduce_any(node, axes, How::Reduce(kind));
        }
        let x = self.image(id, dims[1])?;
        let out_dims = self.dims(node.outputs[0])?;
        let y = self.place(node.outputs[0])?;
        let y = if y.is_rows() {
            y
        } else {
            View::rows(self.temporary("mean", self.float, &out_dims), self.float, &out_dims)
        };
        let generated = pool::spatial_mean(&x, &y);
        let flops = x.elements();
        self.emit(generated, "mean", vec![x, y.clone()], &node.origins, flops);
        self.bind(node.outputs[0], y)
    }

    pub(super) fn arg_reduce(&mut self, node: &Node, arg: &ArgReduce) -> Outcome<()> {
        let x = self.input_view(node, 0)?;
        let y = self.place(node.outputs[0])?;
        // Where one row is what there is at every step; elsewhere one block's way is enough.
        if !self.program.states.is_empty() && best::fits(&x, y.elements()) {
            let count = best::parts(x.elements());
            let parts = View::rows(self.temporary("parts", Kind::F32, &[count, 2]), Kind::F32, &[count, 2]);
            let (each, all) =
                (best::of_parts(&x, arg.largest, arg.last), best::of_all(count, &y, arg.largest, arg.last));
            let flops = x.elements();
            self.emit(each, "reduce", vec![x, parts.clone()], &node.origins, flops);
            self.emit(all, "reduce", vec![parts, y.clone()], &node.origins, count);
            return self.bind(node.outputs[0], y);
        }
        self.reduce_any(node, &[arg.axis], How::Arg { largest: arg.largest, last: arg.last })
    }

    pub(super) fn running_sum(&mut self, node: &Node, axis: usize, exclusive: bool, reverse: bool) -> Outcome<()> {
        let x = self.input_view(node, 0)?;
        let y = self.place(node.outputs[0])?;
        let generated = reduce::running_sum(&x, &y, axis, exclusive, reverse).map_err(|error| error.to_string())?;
        let flops = x.elements();
        self.emit(generated, "running_sum", vec![x, y.clone()], &node.origins, flops);
        self.bind(node.outputs[0], y)
    }

    fn reduce_any(&mut self, node: &Node, axes: &[usize], how: How) -> Outcome<()> {
        let x = self.input_view(node, 0)?;
        let y = self.place(node.outputs[0])?;
        if let How::Reduce(kind) = how
            && self.reduce_in_parts(node, &x, &y, axes, kind)?
        {
            return self.bind(node.outputs[0], y);
        }
        let generated = reduce::generate(&x, &y, axes, how).map_err(|error| error.to_string())?;
        let flops = x.elements();
        self.emit(generated, "reduce", vec![x, y.clone()], &node.origins, flops);
        self.bind(node.outputs[0], y)
    }

    pub(super) fn layer_norm(&mut self, node: &Node, axis: usize, epsilon: f32) -> Outcome<()> {
        let x = self.input_view(node, 0)?;
        let length: u64 = x.dims[axis..].iter().product();
        let whole = |id| self.dims(id).map(|dims| dims.iter().product::<u64>() == length);
        let repeats = [1, 2].into_iter().filter_map(|position| node.input(position)).map(whole);
        if length > MAX_ROW
            || x.kind == Kind::F64
            || !repeats.collect::<Outcome<Vec<_>>>()?.into_iter().all(|whole| whole)
        {
            return self.layer_norm_of_any(node, axis, epsilon);
        }
        let x = self.dense_rows(x)?;
        // Everything from the axis on is one row.
        let mut row_dims = x.dims[..axis].to_vec();
        row_dims.push(length);
        let x = x.reshaped(&row_dims).ok_or("its rows do not follow each other")?;
        let mut operands = vec![x.clone()];
        for position in [1, 2] {
            if let Some(id) = node.input(position) {
                let view = self.view(id)?;
                operands.push(self.dense_rows(view)?);
            }
        }
        let row = Row::LayerNorm { epsilon, scale: node.input(1).is_some(), bias: node.input(2).is_some() };
        self.rows(node, row, operands, 8)
    }

    /// Groups of channels with all their pixels are rows; then each channel has its scale and bias.
    pub(super) fn group_norm(&mut self, node: &Node, groups: Option<usize>, epsilon: f32) -> Outcome<()> {
        let x = self.input_view(node, 0)?;
        let x = self.dense_rows(x)?;
        let (dims, channels) = (x.dims.clone(), x.dims[1]);
        let groups = groups.map_or(channels, |groups| groups as u64);
        let length = x.elements() / (dims[0] * groups).max(1);
        let from = x.reshaped(&[dims[0] * groups, length]).ok_or("its groups do not follow each other")?;
        let to = if length > MAX_ROW || from.kind == Kind::F64 {
            self.normal_rows_stored(node, &from, epsilon)?
        } else {
            let to = View::rows(self.temporary("normal", self.float, &from.dims), self.float, &from.dims);
            let row = Row::LayerNorm { epsilon, scale: false, bias: false };
            let generated = norm::rows(&from, &to, &[], row);
            self.emit(generated, "layer_norm", vec![from, to.clone()], &node.origins, to.elements() * 8);
            to
        };
        let normal = to.reshaped(&dims).ok_or("its groups do not follow each other")?;
        let mut of_channel = vec![1; dims.len()];
        of_channel[1] = channels;
        let mut load = |position: usize| {
            let view = self.input_view(node, position)?;
            let view = view.reshaped(&of_channel).and_then(|view| view.broadcast(&dims));
            let view = view.ok_or("parameters of another size")?;
            Ok::<_, String>(Box::new(Expr::Load(Load { view, index: None })))
        };
        let (scale, bias) = (load(1)?, load(2)?);
        let normal = Box::new(Expr::Load(Load { view: normal, index: None }));
        let scaled = Expr::Binary(Binary::Add, Box::new(Expr::Binary(Binary::Mul, normal, scale)), bias);
        let y = self.place(node.outputs[0])?;
        self.emit_pointwise(&scaled, &y, &node.origins)?;
        self.bind(node.outputs[0], y)
    }

    pub(super) fn softmax(&mut self, node: &Node, axis: usize, log: bool) -> Outcome<()> {
        let x = self.input_view(node, 0)?;
        if x.kind == Kind::F64 || x.dims[axis] > MAX_ROW {
            return self.softmax_of_any(node, axis, log);
        }
        let row = if log { Row::LogSoftmax } else { Row::Softmax { guarded: false } };
        if axis + 1 == x.rank() {
            let x = self.dense_rows(x)?;
            return self.rows(node, row, vec![x], 5);
        }
        // Rows along another dimension: with that one last, and turned back by how the result is read.
        let mut turned: Vec<usize> = (0..x.rank()).filter(|other| *other != axis).collect();
        turned.push(axis);
        let mut back: Vec<usize> = (0..axis).collect();
        back.push(x.rank() - 1);
        back.extend(axis..x.rank() - 1);
        let from = self.dense_rows(x.permuted(&turned))?;
        let kind = if from.kind.is_float() { self.float } else { from.kind };
        let to = View::rows(self.temporary("turned", kind, &from.dims), kind, &from.dims);
        let generated = norm::rows(&from, &to, &[], row);
        self.emit(generated, "softmax", vec![from, to.clone()], &node.origins, to.elements() * 5);
        self.bind(node.outputs[0], to.permuted(&back))
    }

    fn rows(&mut self, node: &Node, row: Row, mut operands: Vec<View>, flops_each: u64) -> Outcome<()> {
        let y = self.place(node.outputs[0])?;
        let y = if y.is_rows() { y } else { self.fresh(node.outputs[0])? };
        let parameters: Vec<&View> = operands[1..].iter().collect();
        let generated = norm::rows(&operands[0], &y, &parameters, row);
        operands.push(y.clone());
        let role = if matches!(row, Row::LayerNorm { .. }) { "layer_norm" } else { "softmax" };
        self.emit(generated, role, operands, &node.origins, y.elements() * flops_each);
        self.bind(node.outputs[0], y)
    }
}
