//! Elements that are found, put or ordered by what other elements say.
//!
//! What says where an element lies may be anything, as while an engine is tuned: nothing outside of an operand is reached.
//!
//! Puts meet in the order of their indices whatever the device does: what may reach the same place is one thread's.

use super::with_index;
use crate::{
    codegen::nest::{indices, number},
    lower::{Lowering, Outcome},
    view::{Kind, View},
};
use planforge_graph::ir::{NamedOp, Node};

/// An index as a place of an axis: below zero it counts from the end; what is outside of the axis becomes its nearest.
fn place(name: &str, index: &str, size: u64) -> String {
    format!(
        "i64 {name} = {index}; if ({name} < 0) {name} += {size};\n\
         {name} = {name} < 0 ? 0 : {name} >= {size} ? {} : {name};\n",
        size.saturating_sub(1)
    )
}

/// How an update `v` meets what is there.
fn met(reduction: &str, kind: Kind, at: &str) -> String {
    let old = format!("const auto old = num(Y({at})); ");
    let value = match reduction {
        "add" => "old + v",
        "mul" => "old * v",
        "max" => "old != old || old > v ? old : v",
        "min" => "old != old || old < v ? old : v",
        _ => return format!("put(Y({at}), v);"),
    };
    debug_assert_ne!(kind, Kind::Bool, "truths are only put");
    format!("{old}put(Y({at}), {value});")
}

impl Lowering<'_> {
    pub(in crate::lower) fn slice_backwards(&mut self, node: &Node, starts: &[usize], steps: &[i64]) -> Outcome<()> {
        let x = self.input_view(node, 0)?;
        let places = starts.iter().zip(steps).enumerate();
        let places: Vec<String> = places.map(|(axis, (start, step))| format!("{start} + i{axis} * ({step})")).collect();
        let body = format!("put(Y({}), X0({}));", indices(x.rank()), places.join(", "));
        self.nest_of_result(node, "slice", &[x], &body)
    }

    pub(in crate::lower) fn gather_nd(&mut self, node: &Node, batch_dims: usize) -> Outcome<()> {
        let (x, index) = (self.input_view(node, 0)?, self.index_view(node, 1)?);
        let lead = index.rank() - 1;
        let depth = index.dims[lead] as usize;
        let rank = self.dims(node.outputs[0])?.len();
        let mut body = String::new();
        let mut places: Vec<String> = (0..batch_dims).map(|axis| format!("i{axis}")).collect();
        for at in 0..depth {
            let read = match lead {
                0 => format!("X1({at})"),
                _ => format!("X1({}, {at})", indices(lead)),
            };
            body += &place(&format!("k{at}"), &read, x.dims[batch_dims + at]);
            places.push(format!("k{at}"));
        }
        places.extend((lead..rank).map(|axis| format!("i{axis}")));
        body += &format!("put(Y({}), X0({}));", indices(rank), places.join(", "));
        self.nest_of_result(node, "gather", &[x, index], &body)
    }

    pub(in crate::lower) fn one_hot(&mut self, node: &Node, axis: usize) -> Outcome<()> {
        let (index, values) = (self.input_view(node, 0)?, self.input_view(node, 1)?);
        let dims = self.dims(node.outputs[0])?;
        let others: Vec<String> = (0..dims.len()).filter(|&at| at != axis).map(|at| format!("i{at}")).collect();
        let body = format!(
            "auto k = X0({}); if (k < 0) k += {};\nput(Y({}), k == i{axis} ? X1(1) : X1(0));",
            others.join(", "),
            dims[axis],
            indices(dims.len())
        );
        self.nest_of_result(node, "one_hot", &[index, values], &body)
    }

    pub(super) fn reverse_sequence(&mut self, node: &Node, named: &NamedOp) -> Outcome<()> {
        let (x, lengths) = (self.input_view(node, 0)?, self.input_view(node, 1)?);
        let (time, batch) = (named.size("time"), named.size("batch"));
        let body = format!(
            "const i64 given = X1(i{batch}); const int n = given < 0 ? 0 : given > {length} ? {length} : (int)given;\n\
             const int at = i{time} < n ? n - 1 - i{time} : i{time};\nput(Y({}), X0({}));",
            indices(x.rank()),
            with_index(x.rank(), time, "at"),
            length = x.dims[time],
        );
        self.nest_of_result(node, "reverse_sequence", &[x, lengths], &body)
    }

    /// Each element counts how many come before it, which is where it goes.
    pub(in crate::lower) fn top_k(&mut self, node: &Node, axis: usize, largest: bool) -> Outcome<()> {
        let x = self.input_view(node, 0)?;
        let (dims, size) = (x.dims.clone(), x.dims[axis]);
        let before = if largest { "a > b || (a != a && b == b)" } else { "a < b || (b != b && a == a)" };
        let number = number(x.kind);
        for (position, value) in [(0, "v".to_owned()), (1, format!("i{axis}"))] {
            let y = self.place(node.outputs[position])?;
            let body = format!(
                "const {number} v = X0({}); int rank = 0;\nfor (int j = 0; j < {size}; j++) {{\n\
                 const {number} o = X0({});\nint first, last;\n\
                 {{ const {number} a = o, b = v; first = {before}; }}\n{{ const {number} a = v, b = o; last = {before}; }}\n\
                 rank += first || (!last && j < i{axis});\n}}\nif (rank < {}) put(Y({}), {value});",
                indices(dims.len()),
                with_index(dims.len(), axis, "j"),
                y.dims[axis],
                with_index(dims.len(), axis, "rank"),
            );
            self.nest(node, "top_k", std::slice::from_ref(&x), &y, &dims, &body)?;
            self.bind(node.outputs[position], y)?;
        }
        Ok(())
    }

    /// A thread for each line along the axis.
    pub(super) fn scatter_elements(&mut self, node: &Node, named: &NamedOp) -> Outcome<()> {
        let axis = named.size("axis");
        let y = self.data_of_result(node)?;
        let (index, updates) = (self.index_view(node, 1)?, self.input_view(node, 2)?);
        let rank = y.rank();
        let mut dims = index.dims.clone();
        let length = std::mem::replace(&mut dims[axis], 1);
        if !index.dims.contains(&0) {
            let from = with_index(rank, axis, "j");
            let body = format!(
                "for (int j = 0; j < {length}; j++) {{\n{}const auto v = X1({from});\n{}\n}}",
                place("k", &format!("X0({from})"), y.dims[axis]),
                met(named.text("reduction"), y.kind, &with_index(rank, axis, "k")),
            );
            self.nest(node, "scatter", &[index, updates], &y, &dims, &body)?;
        }
        self.bind(node.outputs[0], y)
    }

    /// A thread for each element of what is put at once.
    pub(super) fn scatter_nd(&mut self, node: &Node, named: &NamedOp) -> Outcome<()> {
        let y = self.data_of_result(node)?;
        let (index, updates) = (self.index_view(node, 1)?, self.input_view(node, 2)?);
        let lead = index.rank() - 1;
        let depth = index.dims[lead] as usize;
        let dims = y.dims[depth..].to_vec();
        if !updates.dims.contains(&0) {
            let mut body = String::new();
            for (axis, size) in index.dims[..lead].iter().enumerate() {
                body += &format!("for (int u{axis} = 0; u{axis} < {size}; u{axis}++) {{\n");
            }
            let counted: Vec<String> = (0..lead).map(|axis| format!("u{axis}")).collect();
            let own: Vec<String> = (0..dims.len()).map(|axis| format!("i{axis}")).collect();
            let mut places = Vec::new();
            for at in 0..depth {
                let read = [&counted[..], &[at.to_string()]].concat().join(", ");
                body += &place(&format!("k{at}"), &format!("X0({read})"), y.dims[at]);
                places.push(format!("k{at}"));
            }
            places.extend(own.iter().cloned());
            body += &format!(
                "const auto v = X1({});\n{}\n{}",
                [&counted[..], &own[..]].concat().join(", "),
                met(named.text("reduction"), y.kind, &places.join(", ")),
                "}".repeat(lead)
            );
            self.nest(node, "scatter", &[index, updates], &y, &dims, &body)?;
        }
        self.bind(node.outputs[0], y)
    }

    /// The first input's elements where the result is to lie.
    fn data_of_result(&mut self, node: &Node) -> Outcome<View> {
        let x = self.input_view(node, 0)?;
        if self.states.is_in_place(node.outputs[0]) {
            return Ok(x);
        }
        let y = self.place(node.outputs[0])?;
        self.copy(&x, &y, &node.origins)?;
        Ok(y)
    }

    /// The value of the first key that equals; `nan`: what is no number equals itself.
    pub(super) fn lookup(&mut self, node: &Node, named: &NamedOp) -> Outcome<()> {
        let x = self.exact_input(node, 0)?;
        let (keys, values, default) =
            (self.exact_input(node, 1)?, self.exact_input(node, 2)?, self.exact_input(node, 3)?);
        let same = if named.flag("nan") { "k == v || (k != k && v != v)" } else { "k == v" };
        let (place, count, number) = (indices(x.rank()), keys.dims[0], number(keys.kind));
        let body = format!(
            "const {number} v = X0({place}); int at = -1;\n\
             for (int j = 0; j < {count} && at < 0; j++) {{ const {number} k = X1(j); if ({same}) at = j; }}\n\
             put(Y({place}), at < 0 ? X3(0) : X2(at));"
        );
        self.nest_of_result(node, "lookup", &[x, keys, values, default], &body)
    }
}
