//! Element-wise operators, gathers, and what only changes how a value is looked at.

use super::{Bound, Lowering, Outcome, traffic};
use crate::{
    codegen::{
        expr::{Class, Expr, Index, Load},
        pointwise,
    },
    program::Work,
    view::{Kind, View},
};
use planforge_graph::ir::{Binary, Node, Op, Unary, ValueId};

/// Largest expression that is carried into its user; bounds a kernel's text.
const MAX_LAZY: usize = 40;

/// Whether `whole` is `dims` behind nothing but ones, or the same.
fn is_behind_ones<T: PartialEq + From<u8>>(dims: &[T], whole: &[T]) -> bool {
    whole.strip_suffix(dims).is_some_and(|ones| ones.iter().all(|one| *one == T::from(1)))
}

impl Lowering<'_> {
    pub(super) fn pointwise(&mut self, node: &Node) -> Outcome<()> {
        if matches!(node.op, Op::Identity | Op::Cast { .. }) && self.states.is_same(node.outputs[0]) {
            let view = self.input_view(node, 0)?;
            return self.bind(node.outputs[0], view);
        }
        let dims = self.dims(node.outputs[0])?;
        let mut origins = node.origins.clone();
        let mut operand = |lowering: &mut Self, position: usize| -> Outcome<Box<Expr>> {
            let id = node.input(position).ok_or_else(|| format!("input {position} is missing"))?;
            Ok(Box::new(lowering.operand(id, &dims, &mut origins)?))
        };
        let expression = match &node.op {
            Op::Identity => *operand(self, 0)?,
            Op::Unary(op) => Expr::Unary(*op, operand(self, 0)?),
            Op::Activation(op) => Expr::Activation(*op, operand(self, 0)?),
            Op::Binary(op) => Expr::Binary(*op, operand(self, 0)?, operand(self, 1)?),
            Op::Compare(op) => Expr::Compare(*op, operand(self, 0)?, operand(self, 1)?),
            Op::Where => Expr::Select(operand(self, 0)?, operand(self, 1)?, operand(self, 2)?),
            Op::Cast { to } => Expr::Cast(Class::of(Kind::of(*to)), operand(self, 0)?),
            other => return Err(format!("{} is not element-wise", other.kind())),
        };
        // What is computed in 64 bits is cut to what the result keeps, also where it is never stored.
        let cut =
            matches!(self.kind(node.outputs[0]), Kind::I8 | Kind::U8 | Kind::I16 | Kind::U16 | Kind::I32 | Kind::U32);
        let grows = matches!(node.op, Op::Unary(_) | Op::Binary(_) | Op::Cast { .. });
        let expression = match cut && grows {
            true => Expr::Narrow(self.kind(node.outputs[0]), Box::new(expression)),
            false => expression,
        };
        self.finish(node.outputs[0], expression, origins)
    }

    /// `(x - mean) / sqrt(variance + epsilon) * scale + bias`, where it could not be folded away.
    pub(super) fn batch_norm(&mut self, node: &Node, epsilon: f32) -> Outcome<()> {
        let dims = self.dims(node.outputs[0])?;
        let mut origins = node.origins.clone();
        let x = self.operand(node.input(0).ok_or("input 0 is missing")?, &dims, &mut origins)?;
        let mut channel = |position: usize| -> Outcome<Box<Expr>> {
            let mut view = self.input_view(node, position)?;
            // `[C]` becomes `[C, 1, ..]` to broadcast along the channels.
            view.dims.resize(dims.len() - 1, 1);
            view.strides.resize(dims.len() - 1, 0);
            let view = view.broadcast(&dims).ok_or("its parameters do not broadcast")?;
            Ok(Box::new(Expr::Load(Load { view, index: None })))
        };
        let (scale, bias, mean, variance) = (channel(1)?, channel(2)?, channel(3)?, channel(4)?);
        let spread = Expr::Binary(Binary::Add, variance, Box::new(Expr::Float(epsilon)));
        let centred = Expr::Binary(Binary::Sub, Box::new(x), mean);
        let unit = Expr::Binary(Binary::Div, Box::new(centred), Box::new(Expr::Unary(Unary::Sqrt, Box::new(spread))));
        let scaled = Expr::Binary(Binary::Mul, Box::new(unit), scale);
        self.finish(node.outputs[0], Expr::Binary(Binary::Add, Box::new(scaled), bias), origins)
    }

    /// Rows of a table by index.
    pub(super) fn gather(&mut self, node: &Node, axis: usize) -> Outcome<()> {
        let (table, indices) = (self.input_view(node, 0)?, self.index_view(node, 1)?);
        let dims = self.dims(node.outputs[0])?;
        let (lead, middle) = (axis, indices.rank());
        let mut strides = table.strides[..lead].to_vec();
        strides.extend(std::iter::repeat_n(0, middle));
        strides.extend(&table.strides[axis + 1..]);
        let view = View { dims: dims.clone(), strides, ..table.clone() };
        let mut index_strides = vec![0; lead];
        index_strides.extend(&indices.strides);
        index_strides.resize(dims.len(), 0);
        let index = Index {
            view: View { dims, strides: index_strides, ..indices },
            stride: table.strides[axis],
            rows: table.dims[axis],
        };
        let expression = Expr::Load(Load { view, index: Some(Box::new(index)) });
        self.finish(node.outputs[0], expression, node.origins.clone())
    }

    /// The element of a constant that has just one.
    pub(super) fn only_element(&self, id: ValueId) -> Outcome<Option<Expr>> {
        let Some(tensor) = self.graph.constant(id).filter(|tensor| tensor.len() == 1) else { return Ok(None) };
        Ok(Some(match Class::of(self.kind(id)) {
            Class::Float => Expr::Float(tensor.to_f64s()[0] as f32),
            Class::Double => Expr::Double(tensor.to_f64s()[0]),
            Class::Int => Expr::Int(tensor.to_i64s().ok_or("a constant that is no whole number")?[0]),
            // It may be larger than any number that the expression can hold.
            Class::Unsigned => return Ok(None),
            Class::Bool => Expr::Bool(tensor.to_f64s()[0] != 0.0),
        }))
    }

    /// Whole numbers that say where elements come from.
    pub(super) fn index_view(&mut self, node: &Node, position: usize) -> Outcome<View> {
        let indices = self.input_view(node, position)?;
        match indices.kind {
            kind if kind.is_float() || kind == Kind::F64 || kind == Kind::Bool => {
                Err(format!("indices of type {}", kind.name()))
            }
            _ => Ok(indices),
        }
    }

    /// One operand of an element-wise operator whose result has `dims`.
    fn operand(&mut self, id: ValueId, dims: &[u64], origins: &mut Vec<String>) -> Outcome<Expr> {
        if let Some(only) = self.only_element(id)? {
            return Ok(only);
        }
        if let Some(Bound::Lazy { expression, origins: more }) = self.bound.get(&id)
            && is_behind_ones(&self.dims(id)?, dims)
        {
            let mut expression = expression.clone();
            expression.map_views(&mut |view| view.broadcast(dims).expect("ones alone stand before it"));
            for origin in more {
                if !origins.contains(origin) {
                    origins.push(origin.clone());
                }
            }
            return Ok(expression);
        }
        let view = self.view(id)?;
        let view = view.broadcast(dims).ok_or("its operands do not broadcast")?;
        Ok(Expr::Load(Load { view, index: None }))
    }

    /// Keeps an expression for its only user, or computes it now.
    fn finish(&mut self, id: ValueId, expression: Expr, origins: Vec<String>) -> Outcome<()> {
        // Every element is read and written by one thread.
        if let Some(data) = self.states.chosen_from(id) {
            let out = self.view(data)?;
            self.emit_pointwise(&expression, &out, &origins)?;
            return self.bind(id, out);
        }
        let carried = self.uses.sole_use(id).is_some_and(|user| {
            let user = &self.graph.nodes[user];
            let takes = matches!(
                user.op,
                Op::Identity
                    | Op::Unary(_)
                    | Op::Activation(_)
                    | Op::Binary(_)
                    | Op::Compare(_)
                    | Op::Where
                    | Op::Cast { .. }
            );
            let shapes = [id, user.outputs[0]].map(|id| self.graph.static_shape(id));
            takes && matches!(&shapes, [Some(own), Some(its)] if is_behind_ones(own, its))
        });
        if carried && expression.size() <= MAX_LAZY {
            self.bound.insert(id, Bound::Lazy { expression, origins });
            return Ok(());
        }
        let out = self.place(id)?;
        self.emit_pointwise(&expression, &out, &origins)?;
        self.bind(id, out)
    }

    pub(super) fn emit_pointwise(&mut self, expression: &Expr, out: &View, origins: &[String]) -> Outcome<()> {
        let generated = pointwise::generate(expression, out).map_err(|error| error.to_string())?;
        let mut loads = Vec::new();
        expression.loads(&mut loads);
        let bytes = traffic::of_loads(&loads, out);
        let mut operands = Vec::new();
        for load in loads {
            operands.push(load.view.clone());
            if let Some(index) = &load.index {
                // The table is reached by index, wherever that leads: all of it is read.
                let rows = index.rows;
                let table = operands.last_mut().expect("pushed above");
                table.dims.push(rows);
                table.strides.push(index.stride);
                operands.push(index.view.clone());
            }
        }
        operands.push(out.clone());
        let role = if expression.size() == 0 { "copy" } else { "pointwise" };
        let flops = expression.size() as u64 * out.elements();
        let step = self.emit(generated, role, operands, origins, flops);
        step.bytes = bytes;
        if let Work::Kernel(kernel) = &mut step.work {
            expression.gelus(&mut kernel.gelus);
        }
        Ok(())
    }

    pub(super) fn reshape(&mut self, node: &Node) -> Outcome<()> {
        let dims = self.dims(node.outputs[0])?;
        let view = self.input_view(node, 0)?;
        let view = match view.reshaped(&dims) {
            Some(view) => view,
            None => {
                // The logical order must become the order in memory.
                let buffer = self.temporary("reshaped", view.kind, &view.dims);
                let rows = View::rows(buffer, view.kind, &view.dims);
                self.copy(&view, &rows, &node.origins)?;
                rows.reshaped(&dims).ok_or("the shapes do not fit")?
            }
        };
        self.bind(node.outputs[0], view)
    }

    pub(super) fn slice(&mut self, node: &Node, starts: &[usize], steps: &[i64]) -> Outcome<()> {
        if steps.iter().any(|&step| step < 0) {
            return self.slice_backwards(node, starts, steps);
        }
        let mut view = self.input_view(node, 0)?;
        view.dims = self.dims(node.outputs[0])?;
        for (axis, (&start, &step)) in starts.iter().zip(steps).enumerate() {
            let step = step.unsigned_abs();
            view.offset += start as u64 * view.strides[axis];
            view.strides[axis] *= step;
        }
        self.bind(node.outputs[0], view)
    }

    /// Copies what does not lie in its place yet.
    pub(super) fn concat(&mut self, node: &Node, axis: usize) -> Outcome<()> {
        let whole = self.whole(node.outputs[0])?;
        let mut start = 0;
        for &id in node.inputs.iter().flatten() {
            let length = self.dims(id)?[axis];
            self.lay(id, whole.slice(axis, start, length), &node.origins)?;
            start += length;
        }
        self.bind(node.outputs[0], whole)
    }
}
