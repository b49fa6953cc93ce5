//! Operators that move elements, beyond what a view of the same memory says, and resizes, which may mix two.

use super::{Lowering, Outcome};
use crate::{
    codegen::expr::{Class, Expr, Index, Load},
    view::{Kind, View},
};
use planforge_graph::{
    ir::{Binary, Node, PadMode, Resize, ResizeMode},
    reference::{
        padded_position,
        resize::{repeats, taps},
    },
};

/// Largest triangle that lies among the constants as truths.
const MAX_TRIANGLE_BYTES: u64 = 64 << 20;

impl Lowering<'_> {
    /// Filled, then the input copied to its place; other modes take the element at each place of an axis by index.
    pub(super) fn pad(&mut self, node: &Node, mode: PadMode, begins: &[i64]) -> Outcome<()> {
        let mut x = self.input_view(node, 0)?;
        let dims = self.dims(node.outputs[0])?;
        if mode != PadMode::Constant {
            let padded = |axis: &usize| begins[*axis] != 0 || dims[*axis] != x.dims[*axis];
            let axes: Vec<usize> = (0..x.rank()).filter(padded).collect();
            for &axis in &axes {
                if x.dims[axis] == 0 {
                    return Err("padding of an axis without elements".into());
                }
                let place = |at: u64| padded_position(mode, at as i64 - begins[axis], x.dims[axis] as i64);
                let places: Option<Vec<i64>> = (0..dims[axis]).map(place).collect();
                let places = places.ok_or("padding without a place")?.into_iter().map(|at| at as f64).collect();
                let of = with_size(&x, axis, dims[axis]);
                let index = self.along(&of, axis, Kind::I64, places);
                let expression = by_index(of, axis, index, x.dims[axis]);
                x = self.next(node, &x, &expression, (axis, dims[axis]), axes.last() == Some(&axis))?;
            }
            return if axes.is_empty() { self.moved(node, &x) } else { self.bind(node.outputs[0], x) };
        }
        let fill = match node.input(1) {
            None => zero(Class::of(x.kind)),
            Some(id) => match self.only_element(id)? {
                Some(only) => only,
                // It is computed, and the same everywhere.
                None => {
                    let view = self.view(id)?.reshaped(&[]).ok_or("more than one element to fill with")?;
                    let view = view.broadcast(&dims).ok_or("what is filled in does not repeat")?;
                    Expr::Load(Load { view, index: None })
                }
            },
        };
        let y = self.place(node.outputs[0])?;
        self.emit_pointwise(&fill, &y, &node.origins)?;
        let (mut from, mut to) = (x, y.clone());
        for (axis, &begin) in begins.iter().enumerate() {
            // Below zero, elements are cut off.
            let (skipped, before) = ((-begin).max(0) as u64, begin.max(0) as u64);
            let length = from.dims[axis].saturating_sub(skipped).min(to.dims[axis].saturating_sub(before));
            if length == 0 {
                return self.bind(node.outputs[0], y);
            }
            from = from.slice(axis, skipped, length);
            to = to.slice(axis, before, length);
        }
        self.copy(&from, &to, &node.origins)?;
        self.bind(node.outputs[0], y)
    }

    pub(super) fn tile(&mut self, node: &Node) -> Outcome<()> {
        let x = self.input_view(node, 0)?;
        let dims = self.dims(node.outputs[0])?;
        let whole = |axis: usize| [(dims[axis] / x.dims[axis].max(1), 0), (x.dims[axis], x.strides[axis])];
        self.repeated(node, &x, whole)
    }

    /// Every axis of the result is two, of these sizes and strides of `x`: one of them repeats.
    fn repeated(&mut self, node: &Node, x: &View, parts: impl Fn(usize) -> [(u64, u64); 2]) -> Outcome<()> {
        let y = self.place(node.outputs[0])?;
        let (mut from, mut to) = (x.clone(), y.clone());
        for view in [&mut from, &mut to] {
            view.dims.clear();
            view.strides.clear();
        }
        for axis in 0..x.rank() {
            let [outer, inner] = parts(axis);
            from.dims.extend([outer.0, inner.0]);
            from.strides.extend([outer.1, inner.1]);
            to.dims.extend([outer.0, inner.0]);
            to.strides.extend([y.strides[axis] * inner.0, y.strides[axis]]);
        }
        self.copy(&from, &to, &node.origins)?;
        self.bind(node.outputs[0], y)
    }

    /// Each element of the result has an index of its own along `axis`.
    pub(super) fn gather_elements(&mut self, node: &Node, axis: usize) -> Outcome<()> {
        let (x, indices) = (self.input_view(node, 0)?, self.index_view(node, 1)?);
        let rows = x.dims[axis];
        let expression = by_index(View { dims: indices.dims.clone(), ..x }, axis, indices, rows);
        let y = self.place(node.outputs[0])?;
        self.emit_pointwise(&expression, &y, &node.origins)?;
        self.bind(node.outputs[0], y)
    }

    /// What lies outside of the triangle is zero.
    pub(super) fn triangle(&mut self, node: &Node, upper: bool, k: i64) -> Outcome<()> {
        let x = self.input_view(node, 0)?;
        let (rows, columns) = (x.dims[x.rank() - 2], x.dims[x.rank() - 1]);
        if rows.checked_mul(columns).is_none_or(|bytes| bytes > MAX_TRIANGLE_BYTES) {
            return Err(format!("a triangle of {rows} x {columns}"));
        }
        let kept = |at: u64| {
            let (row, column) = ((at / columns) as i64, (at % columns) as i64);
            let is_kept = if upper { column - row >= k } else { column - row <= k };
            f64::from(u8::from(is_kept))
        };
        let kept: Vec<f64> = (0..rows * columns).map(kept).collect();
        let mask = self.weights_view("triangle", Kind::Bool, &[rows, columns], &kept);
        let mask = mask.broadcast(&x.dims).ok_or("a triangle of one dimension")?;
        let load = |view: View| Box::new(Expr::Load(Load { view, index: None }));
        let class = Class::of(x.kind);
        let expression = Expr::Select(load(mask), load(x), Box::new(zero(class)));
        let y = self.place(node.outputs[0])?;
        self.emit_pointwise(&expression, &y, &node.origins)?;
        self.bind(node.outputs[0], y)
    }

    /// Blocks of pixels out of channels.
    pub(super) fn depth_to_space(&mut self, node: &Node, block: usize, column_row: bool) -> Outcome<()> {
        let x = self.input_view(node, 0)?;
        let b = block as u64;
        let [n, c, h, w] = <[u64; 4]>::try_from(x.dims.clone()).map_err(|_| "an input of another rank")?;
        let depth = c / (b * b);
        let (parts, perm) = match column_row {
            false => ([n, b, b, depth, h, w], [0, 3, 4, 1, 5, 2]),
            true => ([n, depth, b, b, h, w], [0, 1, 4, 2, 5, 3]),
        };
        self.regrouped(node, x, &parts, &perm, &[n, depth, h, b, w, b])
    }

    /// Channels out of blocks of pixels.
    pub(super) fn space_to_depth(&mut self, node: &Node, block: usize) -> Outcome<()> {
        let x = self.input_view(node, 0)?;
        let b = block as u64;
        let [n, c, h, w] = <[u64; 4]>::try_from(x.dims.clone()).map_err(|_| "an input of another rank")?;
        let (h, w) = (h / b, w / b);
        self.regrouped(node, x, &[n, c, h, b, w, b], &[0, 3, 5, 1, 2, 4], &[n, b, b, c, h, w])
    }

    fn regrouped(&mut self, node: &Node, x: View, parts: &[u64], perm: &[usize], to: &[u64]) -> Outcome<()> {
        let from = x.reshaped(parts).ok_or("its dimensions do not come apart")?.permuted(perm);
        let y = self.place(node.outputs[0])?;
        let to = y.reshaped(to).ok_or("its result's dimensions do not come apart")?;
        self.copy(&from, &to, &node.origins)?;
        self.bind(node.outputs[0], y)
    }

    /// Where elements are only repeated, by whole factors, a view that does so is copied.
    pub(super) fn resize(&mut self, node: &Node, resize: &Resize) -> Outcome<()> {
        let x = self.input_view(node, 0)?;
        let out_dims = self.dims(node.outputs[0])?;
        let sizes = |dims: &[u64]| dims.iter().map(|&size| size as usize).collect::<Vec<_>>();
        // Which neighbour is the nearest depends on coordinates and rounding.
        let Some(factors) = repeats(resize, &sizes(&x.dims), &sizes(&out_dims)) else {
            return self.resampled(node, resize, x, &out_dims);
        };
        let each = |axis: usize| [(x.dims[axis], x.strides[axis]), (factors[axis] as u64, 0)];
        self.repeated(node, &x, each)
    }

    /// One axis after the other, each element from one or two places of it.
    fn resampled(&mut self, node: &Node, resize: &Resize, mut x: View, dims: &[u64]) -> Outcome<()> {
        let wide = if x.kind == Kind::F64 { Kind::F64 } else { Kind::F32 };
        if resize.mode == ResizeMode::Linear && !x.kind.is_float() && x.kind != wide {
            return Err(format!("a linear resize of {}", x.kind.name()));
        }
        let resized = |axis: &usize| x.dims[*axis] != dims[*axis] || resize.scales[*axis] != 1.0;
        let axes: Vec<usize> = (0..dims.len()).filter(resized).collect();
        for &axis in &axes {
            if x.dims[axis] == 0 {
                return Err("a resize of an axis without elements".into());
            }
            let taps = taps(resize, axis, x.dims[axis] as usize, dims[axis] as usize);
            let of = with_size(&x, axis, dims[axis]);
            let low = self.along(&of, axis, Kind::I64, taps.iter().map(|(low, ..)| *low as f64).collect());
            let mut expression = by_index(of.clone(), axis, low, x.dims[axis]);
            if resize.mode == ResizeMode::Linear {
                let high = self.along(&of, axis, Kind::I64, taps.iter().map(|(_, high, _)| *high as f64).collect());
                let weight = self.along(&of, axis, wide, taps.iter().map(|(.., weight)| *weight).collect());
                let weight = || Box::new(Expr::Load(Load { view: weight.clone(), index: None }));
                let rest = Box::new(Expr::Binary(Binary::Sub, Box::new(Expr::Float(1.0)), weight()));
                let high = Box::new(by_index(of, axis, high, x.dims[axis]));
                let scaled = |a, b| Box::new(Expr::Binary(Binary::Mul, a, b));
                expression = Expr::Binary(Binary::Add, scaled(Box::new(expression), rest), scaled(high, weight()));
            }
            x = self.next(node, &x, &expression, (axis, dims[axis]), axes.last() == Some(&axis))?;
        }
        if axes.is_empty() { self.moved(node, &x) } else { self.bind(node.outputs[0], x) }
    }

    /// One number for each place along `axis` of `of`, repeated along all others.
    fn along(&mut self, of: &View, axis: usize, kind: Kind, values: Vec<f64>) -> View {
        let places = self.weights_view("places", kind, &[of.dims[axis]], &values);
        let mut view = View { dims: of.dims.clone(), strides: vec![0; of.rank()], ..places };
        view.strides[axis] = 1;
        view
    }

    /// `x` with another size along one axis, by `expression`: the result itself when that axis is the last.
    fn next(
        &mut self,
        node: &Node,
        x: &View,
        expression: &Expr,
        (axis, size): (usize, u64),
        is_last: bool,
    ) -> Outcome<View> {
        let to = if is_last {
            self.place(node.outputs[0])?
        } else {
            let kind = if x.kind.is_float() { self.float } else { x.kind };
            let dims = with_size(x, axis, size).dims;
            let is_image = x.rank() == 4 && x.strides[1] == 1;
            let lies = if is_image { View::channels_last } else { View::rows };
            lies(self.temporary("partly", kind, &dims), kind, &dims)
        };
        self.emit_pointwise(expression, &to, &node.origins)?;
        Ok(to)
    }

    /// The result is `view`, stored as the engine stores such values.
    fn moved(&mut self, node: &Node, view: &View) -> Outcome<()> {
        let y = self.place(node.outputs[0])?;
        self.copy(view, &y, &node.origins)?;
        self.bind(node.outputs[0], y)
    }
}

/// `view` with another size along one axis, for what is read by index there.
fn with_size(view: &View, axis: usize, size: u64) -> View {
    let mut view = view.clone();
    view.dims[axis] = size;
    view
}

fn zero(class: Class) -> Expr {
    match class {
        Class::Float => Expr::Float(0.0),
        Class::Double => Expr::Double(0.0),
        Class::Int | Class::Unsigned => Expr::Int(0),
        Class::Bool => Expr::Bool(false),
    }
}

/// The elements of `of`, along `axis` those that `index` names of its `rows`.
fn by_index(mut of: View, axis: usize, index: View, rows: u64) -> Expr {
    let stride = std::mem::take(&mut of.strides[axis]);
    Expr::Load(Load { view: of, index: Some(Box::new(Index { view: index, stride, rows })) })
}
