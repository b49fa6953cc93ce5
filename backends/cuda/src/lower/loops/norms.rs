//! Normalisation and softmax of rows of any length and type, from reductions and what is done to every element; and
//! reductions of many elements to few, in parts that fill a device.

use crate::{
    codegen::{
        expr::{Class, Expr, Load},
        reduce::{self, How},
    },
    lower::{Lowering, Outcome},
    view::{Kind, View},
};
use planforge_graph::ir::{Binary, Node, ReduceKind, Unary};

/// Elements from which on one block is too little for a result.
const PARTED_FROM: u64 = 1 << 16;
/// Results that fill a device by themselves.
const MANY_RESULTS: u64 = 256;
/// Parts that a reduction is cut into.
const PARTS: [u64; 6] = [512, 256, 128, 64, 32, 16];

fn load(view: View) -> Box<Expr> {
    Box::new(Expr::Load(Load { view, index: None }))
}

fn binary(op: Binary, a: Box<Expr>, b: Box<Expr>) -> Box<Expr> {
    Box::new(Expr::Binary(op, a, b))
}

impl Lowering<'_> {
    /// Where statistics of values of a kind are kept.
    fn wide(kind: Kind) -> Kind {
        if kind == Kind::F64 { kind } else { Kind::F32 }
    }

    /// Reduces the last axis of `x`, in two steps where one block would have too much to do; the same parts every time.
    fn reduce_rows(&mut self, node: &Node, x: &View, kind: ReduceKind) -> Outcome<View> {
        let axis = x.rank() - 1;
        let mut dims = x.dims.clone();
        let length = dims[axis];
        let results: u64 = dims[..axis].iter().product();
        let parts = PARTS.into_iter().find(|parts| length.is_multiple_of(*parts));
        let parts = parts.filter(|_| length >= PARTED_FROM && results < MANY_RESULTS);
        let wide = Self::wide(x.kind);
        let mut from = x.clone();
        if let Some(parts) = parts {
            let mut cut = dims[..axis].to_vec();
            cut.extend([parts, length / parts]);
            if let Some(view) = x.reshaped(&cut) {
                cut.pop();
                from = View::rows(self.temporary("parts", wide, &cut), wide, &cut);
                self.reduced(node, &view, &from, axis + 1, kind)?;
            }
        }
        dims[axis] = 1;
        let to = View::rows(self.temporary("reduced", wide, &dims), wide, &dims);
        self.reduced(node, &from, &to, axis, kind)?;
        Ok(to)
    }

    /// Reduces `axes` of `x` to `y` in two steps where one block would have too much to do: done when true. Which parts
    /// there are follows from the sizes alone, so the result is the same every time.
    pub(in crate::lower) fn reduce_in_parts(
        &mut self,
        node: &Node,
        x: &View,
        y: &View,
        axes: &[usize],
        kind: ReduceKind,
    ) -> Outcome<bool> {
        let Some(&cut) = axes.iter().max_by_key(|axis| x.dims[**axis]) else { return Ok(false) };
        let each: u64 = axes.iter().map(|&axis| x.dims[axis]).product();
        let parts = PARTS.into_iter().find(|parts| x.dims[cut].is_multiple_of(*parts));
        let Some(parts) = parts.filter(|_| each >= PARTED_FROM && y.elements() < MANY_RESULTS) else {
            return Ok(false);
        };
        // Parts of whole numbers are whole numbers.
        let rounds = matches!(kind, ReduceKind::Mean | ReduceKind::L2 | ReduceKind::LogSumExp);
        if rounds && !Class::of(x.kind).is_real() {
            return Ok(false);
        }
        let (first, last) = match kind {
            ReduceKind::L1 | ReduceKind::SumSquare => (kind, ReduceKind::Sum),
            ReduceKind::LogSum => (ReduceKind::Sum, kind),
            kind => (kind, kind),
        };
        let wide = match Class::of(x.kind) {
            Class::Float => Kind::F32,
            Class::Double => Kind::F64,
            Class::Unsigned => Kind::U64,
            Class::Int | Class::Bool => Kind::I64,
        };
        let kept: Vec<usize> = (0..x.rank()).filter(|axis| !axes.contains(axis)).collect();
        let of = |view: &View, axes: &[usize]| View {
            dims: axes.iter().map(|&axis| view.dims[axis]).collect(),
            strides: axes.iter().map(|&axis| view.strides[axis]).collect(),
            ..view.clone()
        };
        // What stays, the parts, and then all that is reduced within each part.
        let mut from = of(x, &kept);
        let inner = x.dims[cut] / parts;
        from.dims.extend([parts, inner]);
        from.strides.extend([x.strides[cut] * inner, x.strides[cut]]);
        let others: Vec<usize> = axes.iter().copied().filter(|axis| *axis != cut).collect();
        let rest = of(x, &others);
        from.dims.extend(rest.dims);
        from.strides.extend(rest.strides);
        let dims = &from.dims[..=kept.len()];
        let partly = View::rows(self.temporary("parts", wide, dims), wide, dims);
        let within: Vec<usize> = (kept.len() + 1..from.rank()).collect();
        let generated =
            reduce::generate(&from, &partly, &within, How::Reduce(first)).map_err(|error| error.to_string())?;
        self.emit(generated, "reduce", vec![from, partly.clone()], &node.origins, x.elements());
        let to = if y.rank() == x.rank() { of(y, &kept) } else { y.clone() };
        self.reduced(node, &partly, &to, kept.len(), last)?;
        Ok(true)
    }

    fn reduced(&mut self, node: &Node, from: &View, to: &View, axis: usize, kind: ReduceKind) -> Outcome<()> {
        // What is left of the axis has size 1, or is no dimension at all.
        let generated = reduce::generate(from, to, &[axis], How::Reduce(kind)).map_err(|error| error.to_string())?;
        self.emit(generated, "reduce", vec![from.clone(), to.clone()], &node.origins, from.elements());
        Ok(())
    }

    /// `(x - mean) / sqrt(variance + epsilon)` of every row, not computed yet; `x` is rows of its last axis.
    pub(in crate::lower) fn normal_rows(&mut self, node: &Node, x: &View, epsilon: f32) -> Outcome<Expr> {
        let wide = Self::wide(x.kind);
        let over_rows = |view: &View| view.broadcast(&x.dims).ok_or("statistics that do not repeat");
        let mean = self.reduce_rows(node, x, ReduceKind::Mean)?;
        let centred = binary(Binary::Sub, load(x.clone()), load(over_rows(&mean)?));
        let squares = View::rows(self.temporary("squares", wide, &x.dims), wide, &x.dims);
        self.emit_pointwise(&binary(Binary::Mul, centred.clone(), centred.clone()), &squares, &node.origins)?;
        let variance = self.reduce_rows(node, &squares, ReduceKind::Mean)?;
        let spread = binary(Binary::Add, load(over_rows(&variance)?), Box::new(Expr::Float(epsilon)));
        Ok(Expr::Binary(Binary::Div, centred, Box::new(Expr::Unary(Unary::Sqrt, spread))))
    }

    /// The same in memory of the wanted kind.
    pub(in crate::lower) fn normal_rows_stored(&mut self, node: &Node, x: &View, epsilon: f32) -> Outcome<View> {
        let kind = if x.kind == Kind::F64 { x.kind } else { self.float };
        let normal = self.normal_rows(node, x, epsilon)?;
        let to = View::rows(self.temporary("normal", kind, &x.dims), kind, &x.dims);
        self.emit_pointwise(&normal, &to, &node.origins)?;
        Ok(to)
    }

    /// Everything from `axis` on is one row; scale and bias repeat as they may.
    pub(in crate::lower) fn layer_norm_of_any(&mut self, node: &Node, axis: usize, epsilon: f32) -> Outcome<()> {
        let x = self.input_view(node, 0)?;
        let dims = x.dims.clone();
        let x = self.dense_rows(x)?;
        let mut rows = dims[..axis].to_vec();
        rows.push(dims[axis..].iter().product());
        let x = x.reshaped(&rows).ok_or("its rows do not follow each other")?;
        let normal = self.normal_rows_stored(node, &x, epsilon)?;
        let mut result = load(normal.reshaped(&dims).ok_or("its rows do not follow each other")?);
        for (position, op) in [(1, Binary::Mul), (2, Binary::Add)] {
            if let Some(id) = node.input(position) {
                let view = self.view(id)?.broadcast(&dims).ok_or("parameters of another size")?;
                result = binary(op, result, load(view));
            }
        }
        let y = self.place(node.outputs[0])?;
        self.emit_pointwise(&result, &y, &node.origins)?;
        self.bind(node.outputs[0], y)
    }

    /// `exp(x - log(sum(exp(x))))` along any axis.
    pub(in crate::lower) fn softmax_of_any(&mut self, node: &Node, axis: usize, log: bool) -> Outcome<()> {
        let x = self.input_view(node, 0)?;
        let wide = Self::wide(x.kind);
        let mut dims = x.dims.clone();
        dims[axis] = 1;
        let sum = View::rows(self.temporary("sums", wide, &dims), wide, &dims);
        self.reduced(node, &x, &sum, axis, ReduceKind::LogSumExp)?;
        let sum = sum.broadcast(&x.dims).ok_or("sums that do not repeat")?;
        let shifted = binary(Binary::Sub, load(x), load(sum));
        let result = if log { shifted } else { Box::new(Expr::Unary(Unary::Exp, shifted)) };
        let y = self.place(node.outputs[0])?;
        self.emit_pointwise(&result, &y, &node.origins)?;
        self.bind(node.outputs[0], y)
    }
}
