//! Windows that slide over any number of dimensions.

use crate::{
    codegen::{
        expr::{Digits, activation, activation_f64},
        nest::{function, indices, number},
    },
    lower::{Lowering, Outcome},
    view::Kind,
};
use planforge_graph::ir::{Conv, ConvTranspose, MatMul, NamedOp, Node, Op, Pool, PoolKind};
use std::fmt::Write as _;

/// Geometry of a window: one entry for each spatial axis.
struct Window<'a> {
    kernel: Vec<u64>,
    strides: &'a [usize],
    /// Of the begin of each axis.
    pads: &'a [usize],
    dilations: &'a [usize],
}

impl Window<'_> {
    fn rank(&self) -> usize {
        self.kernel.len()
    }

    /// Heads of loops over its taps `t0`, .. that lie at `y0`, .. in an image of these sizes.
    fn taps(&self, image: &[u64]) -> String {
        let mut text = String::new();
        for (axis, size) in image.iter().enumerate() {
            let _ = writeln!(
                text,
                "for (int t{axis} = 0; t{axis} < {}; t{axis}++) {{ const int y{axis} = i{} * {} - {} + t{axis} * {};\n\
                 if ((u32)y{axis} >= {}u) continue;",
                self.kernel[axis],
                axis + 2,
                self.strides[axis],
                self.pads[axis],
                self.dilations[axis],
                size,
            );
        }
        text
    }

    /// Heads of loops over taps that reach the thread's place from `y0`, .. of so many windows.
    fn reached(&self, windows: &[u64]) -> String {
        let mut text = String::new();
        for (axis, count) in windows.iter().enumerate() {
            let _ = writeln!(
                text,
                "for (int t{axis} = 0; t{axis} < {}; t{axis}++) {{ const int s{axis} = i{} + {} - t{axis} * {};\n\
                 const int y{axis} = s{axis} / {stride};\n\
                 if (s{axis} < 0 || s{axis} % {stride} != 0 || y{axis} >= {}) continue;",
                self.kernel[axis],
                axis + 2,
                self.pads[axis],
                self.dilations[axis],
                count,
                stride = self.strides[axis],
            );
        }
        text
    }

    fn ends(&self) -> String {
        "}".repeat(self.rank())
    }

    /// `y0, y1`, or other names.
    fn places(&self, name: &str) -> String {
        (0..self.rank()).map(|axis| format!("{name}{axis}")).collect::<Vec<_>>().join(", ")
    }
}

/// Row-major place of what `name` counts along axes of these sizes.
fn flat(name: &str, sizes: &[u64]) -> String {
    let step = |place: String, (axis, size): (usize, &u64)| format!("({place}) * {size} + {name}{axis}");
    sizes.iter().enumerate().fold("0".to_owned(), step)
}

impl Lowering<'_> {
    /// Whether the operand at `position` has height and width, and everything is stored as the engine likes.
    pub(in crate::lower) fn is_common_image(&self, node: &Node, position: usize) -> Outcome<bool> {
        let id = node.input(position).ok_or_else(|| format!("input {position} is missing"))?;
        let dims = self.dims(id)?;
        let is_constant = |position: usize| node.input(position).is_none_or(|id| self.graph.constant(id).is_some());
        let constant = !matches!(node.op, Op::Conv(_)) || (is_constant(1) && is_constant(2));
        Ok(dims.len() == 4 && constant && self.kind(id).is_float() && dims.iter().all(|&size| size > 0))
    }

    /// Whether a product is of matrices of floats.
    pub(in crate::lower) fn is_common_product(&self, node: &Node) -> Outcome<bool> {
        for position in [0, 1] {
            let id = node.input(position).ok_or_else(|| format!("input {position} is missing"))?;
            if self.dims(id)?.len() < 2 || !self.kind(id).is_float() || self.dims(id)?.contains(&0) {
                return Ok(false);
            }
        }
        let columns = self.dims(node.outputs[0])?.last().copied();
        let bias = node.input(2).map(|id| self.dims(id)).transpose()?;
        Ok(bias.is_none_or(|bias| bias.iter().product::<u64>() == columns.unwrap_or(0)))
    }

    pub(in crate::lower) fn conv_loops(&mut self, node: &Node, conv: &Conv) -> Outcome<()> {
        let (x, w) = (self.input_view(node, 0)?, self.input_view(node, 1)?);
        let rank = x.rank();
        let y = self.place(node.outputs[0])?;
        let window = Window {
            kernel: w.dims[2..].to_vec(),
            strides: &conv.strides,
            pads: &conv.pads,
            dilations: &conv.dilations,
        };
        let (channels, filters) = (w.dims[1], (w.dims[0] / conv.groups as u64).max(1));
        let mut reads = vec![x.clone(), w];
        let mut body = format!(
            "{number} f = 0;\nfor (int c = 0; c < {channels}; c++) {{\n{}\
             f += X0(i0, i1 / {filters} * {channels} + c, {}) * X1(i1, c, {});\n{}}}\n",
            window.taps(&x.dims[2..]),
            window.places("y"),
            window.places("t"),
            window.ends(),
            number = number(y.kind),
        );
        for (position, place) in [(2, "i1".to_owned()), (3, indices(rank))] {
            if let Some(id) = node.input(position) {
                let _ = writeln!(body, "f += X{}({place});", reads.len());
                reads.push(self.view(id)?);
            }
        }
        body += &stored(conv.epilogue.activation, y.kind, &indices(rank));
        let dims = y.dims.clone();
        self.nest(node, "conv_loops", &reads, &y, &dims, &body)?;
        self.bind(node.outputs[0], y)
    }

    pub(in crate::lower) fn conv_transpose(&mut self, node: &Node, conv: &ConvTranspose) -> Outcome<()> {
        let (x, w) = (self.input_view(node, 0)?, self.input_view(node, 1)?);
        let window = Window {
            kernel: w.dims[2..].to_vec(),
            strides: &conv.strides,
            pads: &conv.pads,
            dilations: &conv.dilations,
        };
        let (channels, filters) = (x.dims[1] / (conv.groups as u64).max(1), w.dims[1]);
        let rank = x.rank();
        let y = self.place(node.outputs[0])?;
        let mut reads = vec![x.clone(), w];
        let mut body = format!(
            "{number} f = 0;\nconst int g = i1 / {filters} * {channels}, k = i1 % {filters};\n\
             {}for (int c = g; c < g + {channels}; c++) f += X0(i0, c, {}) * X1(c, k, {});\n{}\n",
            window.reached(&x.dims[2..]),
            window.places("y"),
            window.places("t"),
            window.ends(),
            number = number(y.kind),
        );
        if let Some(id) = node.input(2) {
            body += "f += X2(i1);\n";
            reads.push(self.view(id)?);
        }
        body += &stored(None, y.kind, &indices(rank));
        let dims = y.dims.clone();
        self.nest(node, "conv_transpose", &reads, &y, &dims, &body)?;
        self.bind(node.outputs[0], y)
    }

    pub(in crate::lower) fn product_loops(&mut self, node: &Node, product: &MatMul) -> Outcome<()> {
        let (a, b) = (self.input_view(node, 0)?, self.input_view(node, 1)?);
        let y = self.place(node.outputs[0])?;
        let rank = y.rank();
        // A row or a column that is a vector has no place in the result.
        let (row, column) = match (a.rank(), b.rank()) {
            (1, 1) => (None, None),
            (1, _) => (None, Some(rank - 1)),
            (_, 1) => (Some(rank - 1), None),
            _ => (Some(rank - 2), Some(rank - 1)),
        };
        let lead = rank - usize::from(row.is_some()) - usize::from(column.is_some());
        let place = |view: &crate::view::View, outer: Option<usize>, inner: [&str; 2], turned: bool| {
            if view.rank() == 1 {
                return "k".to_owned();
            }
            let own = view.rank() - 2;
            let mut places: Vec<String> = (0..own)
                .map(|axis| match view.dims[axis] {
                    1 => "0".to_owned(),
                    _ => format!("i{}", lead - own + axis),
                })
                .collect();
            let outer = outer.map_or("0".to_owned(), |axis| format!("i{axis}"));
            let mut last = inner.map(|name| if name == "k" { name.to_owned() } else { outer.clone() });
            if turned {
                last.reverse();
            }
            places.extend(last);
            places.join(", ")
        };
        let depth = match a.rank() {
            1 => a.dims[0],
            own => a.dims[own - if product.trans_a { 2 } else { 1 }],
        };
        let mut body = format!(
            "{} f = 0;\nfor (int k = 0; k < {depth}; k++) f += X0({}) * X1({});\n",
            number(y.kind),
            place(&a, row, ["row", "k"], product.trans_a),
            place(&b, column, ["k", "column"], product.trans_b),
        );
        if product.alpha != 1.0 {
            let _ = writeln!(body, "f *= {:e};", product.alpha);
        }
        let mut reads = vec![a, b];
        for position in [2, 3] {
            if let Some(id) = node.input(position) {
                let view = self.view(id)?.broadcast(&y.dims).ok_or("what is added does not repeat")?;
                let _ = writeln!(body, "f += X{}({});", reads.len(), indices(rank));
                reads.push(view);
            }
        }
        body += &stored(product.epilogue.activation, y.kind, &indices(rank));
        let dims = y.dims.clone();
        self.nest(node, "product_loops", &reads, &y, &dims, &body)?;
        self.bind(node.outputs[0], y)
    }

    pub(in crate::lower) fn pool_loops(&mut self, node: &Node, pool: &Pool) -> Outcome<()> {
        let x = self.input_view(node, 0)?;
        let window = Window {
            kernel: pool.kernel.iter().map(|&size| size as u64).collect(),
            strides: &pool.strides,
            pads: &pool.pads,
            dilations: &pool.dilations,
        };
        let (rank, number) = (x.rank(), number(x.kind));
        let is_real = x.kind.is_float() || x.kind == Kind::F64;
        let visit = |what: &str| {
            format!(
                "{}const {number} v = X0(i0, i1, {});\n{what}\n{}\n",
                window.taps(&x.dims[2..]),
                window.places("y"),
                window.ends()
            )
        };
        let place = indices(rank);
        let body = match pool.kind {
            PoolKind::Max => {
                let start = if is_real { "-__int_as_float(0x7f800000)" } else { "0" };
                format!(
                    "{number} f = {start}; bool any = false;\n{}put(Y({place}), f);",
                    visit("f = !any || v > f || v != v ? v : f; any = true;"),
                )
            }
            PoolKind::Average { count_pad } => {
                let mut count = String::from("int count = 0;\n");
                if count_pad {
                    count = "int count = 1;\n".into();
                    for axis in 0..window.rank() {
                        let end = pool.pads[axis] as u64 + x.dims[axis + 2] + pool.pads[window.rank() + axis] as u64;
                        let _ = writeln!(
                            count,
                            "{{ int along = 0; for (int t = 0; t < {}; t++) along += i{} * {} + t * {} < {end}; count *= along; }}",
                            window.kernel[axis],
                            axis + 2,
                            pool.strides[axis],
                            pool.dilations[axis],
                        );
                    }
                }
                let add = if count_pad { "f += v;" } else { "f += v; count++;" };
                format!("{number} f = 0;\n{count}{}put(Y({place}), f / count);", visit(add))
            }
        };
        self.nest_of_result(node, "pool_loops", std::slice::from_ref(&x), &body)
    }

    /// What an attribute of a named window says.
    fn window_of(named: &NamedOp) -> Outcome<[Vec<usize>; 4]> {
        let list = |name: &str| named.sizes(name).ok_or_else(|| format!("its {name} are no sizes"));
        Ok([list("kernel")?, list("strides")?, list("pads")?, list("dilations")?])
    }

    pub(super) fn power_pool(&mut self, node: &Node, named: &NamedOp) -> Outcome<()> {
        let x = self.input_view(node, 0)?;
        let [kernel, strides, pads, dilations] = Self::window_of(named)?;
        let kernel: Vec<u64> = kernel.iter().map(|&size| size as u64).collect();
        let window = Window { kernel, strides: &strides, pads: &pads, dilations: &dilations };
        let p = named.int("p", 2);
        let body = format!(
            "{number} f = 0;\n{}const {number} v = {abs}(X0(i0, i1, {}));\n\
             {number} e = 1; for (int p = 0; p < {p}; p++) e *= v;\nf += e;\n{}\n\
             put(Y({}), {p} == 1 ? f : {pow}(f, ({number})1 / {p}));",
            window.taps(&x.dims[2..]),
            window.places("y"),
            window.ends(),
            indices(x.rank()),
            number = number(x.kind),
            abs = function(x.kind, "fabs"),
            pow = function(x.kind, "pow"),
        );
        self.nest_of_result(node, "pool_loops", &[x], &body)
    }

    pub(super) fn max_places(&mut self, node: &Node, named: &NamedOp) -> Outcome<()> {
        let x = self.input_view(node, 0)?;
        let [kernel, strides, pads, dilations] = Self::window_of(named)?;
        let kernel: Vec<u64> = kernel.iter().map(|&size| size as u64).collect();
        let window = Window { kernel, strides: &strides, pads: &pads, dilations: &dilations };
        let image = &x.dims[2..];
        let place = match named.flag("column_major") {
            false => flat("y", image),
            true => {
                // The first axis counts fastest.
                let step = |place: String, (axis, size): (usize, &u64)| format!("({place}) * {size} + y{axis}");
                image.iter().enumerate().rev().fold("0".to_owned(), step)
            }
        };
        let body = format!(
            "{number} best = 0; i64 at = 0; bool any = false;\n{}const {number} v = X0(i0, i1, {});\n\
             if (!any || v > best || (v != v && best == best)) {{ best = v; at = {place}; }} any = true;\n{}\n\
             put(Y({}), ((i64)i0 * {} + i1) * {} + at);",
            window.taps(image),
            window.places("y"),
            window.ends(),
            indices(x.rank()),
            x.dims[1],
            image.iter().product::<u64>(),
            number = number(x.kind),
        );
        self.nest_of_result(node, "pool_loops", std::slice::from_ref(&x), &body)
    }

    pub(super) fn columns_to_image(&mut self, node: &Node, named: &NamedOp) -> Outcome<()> {
        let x = self.input_view(node, 0)?;
        let dims = self.dims(node.outputs[0])?;
        let [kernel, strides, pads, dilations] = Self::window_of(named)?;
        let kernel: Vec<u64> = kernel.iter().map(|&size| size as u64).collect();
        let window = Window { kernel, strides: &strides, pads: &pads, dilations: &dilations };
        let steps: Vec<u64> = (0..window.rank())
            .map(|axis| {
                let padded = dims[axis + 2] + (pads[axis] + pads[window.rank() + axis]) as u64;
                (padded.saturating_sub(dilations[axis] as u64 * (window.kernel[axis] - 1) + 1)) / strides[axis] as u64
                    + 1
            })
            .collect();
        let taps: u64 = window.kernel.iter().product();
        let body = format!(
            "{} f = 0;\n{}f += X0(i0, i1 * {taps} + {}, {});\n{}\nput(Y({}), f);",
            number(x.kind),
            window.reached(&steps),
            flat("t", &window.kernel),
            flat("y", &steps),
            window.ends(),
            indices(dims.len()),
        );
        self.nest_of_result(node, "col2im", &[x], &body)
    }

    /// Across neighbouring channels.
    pub(in crate::lower) fn local_norm(
        &mut self,
        node: &Node,
        [alpha, beta, bias]: [f32; 3],
        size: usize,
    ) -> Outcome<()> {
        let x = self.input_view(node, 0)?;
        let (number, place) = (number(x.kind), indices(x.rank()));
        let body = format!(
            "{number} f = 0;\nfor (int c = i1 - {before} < 0 ? 0 : i1 - {before}; c <= i1 + {} && c < {}; c++) {{\n\
             const {number} v = X0({}); f += v * v; }}\n\
             put(Y({place}), X0({place}) / {pow}(({number}){bias:e} + ({number}){:e} * f, ({number}){beta:e}));",
            size / 2,
            x.dims[1],
            super::with_index(x.rank(), 1, "c"),
            f64::from(alpha) / size as f64,
            before = (size.max(1) - 1) / 2,
            pow = function(x.kind, "pow"),
        );
        self.nest_of_result(node, "local_norm", &[x], &body)
    }
}

/// What stands at the end of a sum `f`.
fn stored(op: Option<planforge_graph::ir::Activation>, kind: Kind, place: &str) -> String {
    let value = match op {
        None => "f".to_owned(),
        Some(op) if kind == Kind::F64 => activation_f64(op, "f"),
        Some(op) => activation(op, Digits::of(kind), "f"),
    };
    format!("put(Y({place}), {value});")
}
