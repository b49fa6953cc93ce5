//! Rounding to few bits, bits as they lie, sums over named axes, and Fourier transforms as sums.

use crate::{
    codegen::nest::{function, indices, number},
    lower::{Lowering, Outcome},
    view::{Kind, View},
};
use planforge_graph::{
    ir::{NamedOp, Node, Quantization},
    named::{EXPONENT, NARROW_FLOATS},
};
use std::{collections::BTreeMap, f64::consts::PI};

/// What rounding to steps of a scale leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lower) enum Rounded {
    /// The steps' number, as a whole number.
    ToWhole,
    /// What so many steps are.
    ToSteps,
}

/// Where a parameter of quantization lies for the thread's element.
fn of_axis(parameter: &View, how: &Quantization) -> String {
    match (parameter.rank(), how.axis) {
        (0, _) => String::new(),
        (1, Some(axis)) if parameter.dims[0] > 1 => format!("i{axis}"),
        (rank, _) => vec!["0"; rank].join(", "),
    }
}

/// Least and largest number of a quantized type.
fn limits(kind: Kind) -> Outcome<[i64; 2]> {
    Ok(match kind {
        Kind::I8 => [i8::MIN.into(), i8::MAX.into()],
        Kind::U8 => [0, u8::MAX.into()],
        Kind::I16 => [i16::MIN.into(), i16::MAX.into()],
        Kind::U16 => [0, u16::MAX.into()],
        Kind::I32 => [i32::MIN.into(), i32::MAX.into()],
        kind => return Err(format!("quantization to {}", kind.name())),
    })
}

impl Lowering<'_> {
    /// Scale and zero, with the text of what they are for the thread's element.
    fn steps(&mut self, node: &Node, how: &Quantization, reads: &mut Vec<View>) -> Outcome<[String; 2]> {
        let scale = self.exact_input(node, 1)?;
        let of_scale = format!("X{}({})", reads.len(), of_axis(&scale, how));
        reads.push(scale);
        let zero = match node.input(2) {
            Some(id) => {
                let zero = self.view(id)?;
                let of_zero = format!("X{}({})", reads.len(), of_axis(&zero, how));
                reads.push(zero);
                of_zero
            }
            None => "0".into(),
        };
        Ok([of_scale, zero])
    }

    pub(in crate::lower) fn quantize(&mut self, node: &Node, how: &Quantization, rounded: Rounded) -> Outcome<()> {
        let x = self.input_view(node, 0)?;
        let [low, high] = limits(Kind::of(how.element))?;
        let (number, place) = (number(x.kind), indices(x.rank()));
        let mut reads = vec![x.clone()];
        let [scale, zero] = self.steps(node, how, &mut reads)?;
        let value = match rounded {
            // The largest number may be rounded up to one that there is not.
            Rounded::ToWhole => format!("n >= ({number}){high} ? {high}ll : (i64)n"),
            Rounded::ToSteps => format!("(n - ({number}){zero}) * s"),
        };
        let body = format!(
            "const {number} s = {scale}, steps = X0({place}) / s;\n\
             {number} n = (steps != steps ? 0 : {}(steps)) + ({number}){zero};\n\
             n = n < ({number}){low} ? ({number}){low} : n > ({number}){high} ? ({number}){high} : n;\nput(Y({place}), {value});",
            function(x.kind, "rint"),
        );
        self.nest_of_result(node, "quantize", &reads, &body)
    }

    pub(in crate::lower) fn dequantize(&mut self, node: &Node, how: &Quantization) -> Outcome<()> {
        let x = self.input_view(node, 0)?;
        let place = indices(x.rank());
        let mut reads = vec![x.clone()];
        let [scale, zero] = self.steps(node, how, &mut reads)?;
        let body = format!("put(Y({place}), (X0({place}) - {zero}) * {scale});");
        self.nest_of_result(node, "dequantize", &reads, &body)
    }

    /// The same bytes as another type of the same width.
    pub(super) fn bit_cast(&mut self, node: &Node) -> Outcome<()> {
        let id = node.input(0).ok_or("input 0 is missing")?;
        let from = Kind::of(self.graph.value(id).element);
        let to = Kind::of(self.graph.value(node.outputs[0]).element);
        let x = self.view(id)?;
        // The engine may keep floats in another width than the model.
        let x = if x.kind == from {
            x
        } else {
            let own = View::rows(self.temporary("bits", from, &x.dims), from, &x.dims);
            self.copy(&x, &own, &node.origins)?;
            own
        };
        self.bind(node.outputs[0], View { kind: to, ..x })
    }

    /// Floats as codes of eight bits or fewer.
    pub(super) fn narrow_float(&mut self, node: &Node, named: &NamedOp) -> Outcome<()> {
        let x = self.input_view(node, 0)?;
        let (place, saturates) = (indices(x.rank()), named.flag("saturate"));
        let to = named.text("to");
        if to == EXPONENT {
            let raised = match named.text("rounding") {
                "up" => "(bits & 0x7fffffu) != 0",
                "nearest" => "(bits & 0x400000u) != 0 && ((bits & 0x3fffffu) != 0 || code > 0)",
                _ => "false",
            };
            let body = format!(
                "const u32 bits = __float_as_uint((float)X0({place}));\nint code = bits >> 23 & 0xffu;\n\
                 if (code != 255 && ({raised}) && !({} && code == 254)) code++;\nput(Y({place}), (i64)code);",
                u8::from(saturates)
            );
            return self.nest_of_result(node, "narrow_float", &[x], &body);
        }
        let format = NARROW_FLOATS.into_iter().find(|format| format.name == to);
        let format = format.ok_or_else(|| format!("floats of the format {to}"))?;
        // What every code stands for, as far as they are numbers, and what comes next.
        let largest = format.encode(f64::INFINITY, true);
        let mut values: Vec<f64> = (0..=largest).map(|code| format.decode(code)).collect();
        let [.., before, last] = values[..] else { return Err("a format without numbers".into()) };
        values.push(2.0 * last - before);
        let table = self.weights_view("codes", Kind::F32, &[values.len() as u64], &values);
        let sign = format.encode(-1.0, true) ^ format.encode(1.0, true);
        let code = |value: f64| format.encode(value, saturates);
        let body = format!(
            "const {number} v = X0({place}), w = v < 0 ? -v : v;\n\
             const bool negative = v < 0 || (v == 0 && 1 / v < 0) || (v != v && (__float_as_uint((float)v) >> 31) != 0);\n\
             int code;\n\
             if (v != v) code = negative ? {} : {};\nelse {{\n\
             int above = 0; while (above < {count} && X1(above) < w) above++;\ncode = above;\n\
             if (above == {count}) code = {count} - 1;\n\
             else if (above > 0 && X1(above) > w) {{\n\
             const {number} down = w - X1(above - 1), up = X1(above) - w;\n\
             if (down < up || (down == up && above % 2 == 1)) code = above - 1; }}\n\
             if (code > {largest}) code = negative ? {} : {};\n\
             else code = code == 0 && negative ? {} : negative ? code | {sign} : code;\n}}\nput(Y({place}), (i64)code);",
            code(-f64::NAN),
            code(f64::NAN),
            code(f64::NEG_INFINITY),
            code(f64::INFINITY),
            code(-0.0),
            number = number(x.kind),
            count = values.len(),
        );
        self.nest_of_result(node, "narrow_float", &[x, table], &body)
    }

    pub(super) fn einsum(&mut self, node: &Node, named: &NamedOp) -> Outcome<()> {
        let mut labels = named.sizes("labels").ok_or("its labels are no numbers")?.into_iter();
        let ranks = named.sizes("ranks").ok_or("its ranks are no numbers")?;
        let lists: Vec<Vec<usize>> = ranks.into_iter().map(|rank| labels.by_ref().take(rank).collect()).collect();
        let (result, operands) = lists.split_last().ok_or("it has no result")?;
        let mut reads = Vec::new();
        let mut sizes: BTreeMap<usize, u64> = BTreeMap::new();
        for (position, list) in operands.iter().enumerate() {
            let view = self.input_view(node, position)?;
            for (&label, &size) in list.iter().zip(&view.dims) {
                let known = sizes.entry(label).or_insert(size);
                // One element along a label repeats.
                *known = if *known == 1 { size } else { *known };
            }
            reads.push(view);
        }
        let of_result: BTreeMap<usize, usize> = result.iter().copied().zip(0..).collect();
        let name = |label: usize| match of_result.get(&label) {
            Some(axis) => format!("i{axis}"),
            None => format!("s{label}"),
        };
        let summed: Vec<(usize, u64)> = sizes
            .iter()
            .filter(|(label, _)| !of_result.contains_key(label))
            .map(|(&label, &size)| (label, size))
            .collect();
        let y = self.place(node.outputs[0])?;
        let mut body = format!("{} f = 0;\n", number(y.kind));
        for (label, size) in &summed {
            body += &format!("for (int s{label} = 0; s{label} < {size}; s{label}++)\n");
        }
        let factors: Vec<String> = operands
            .iter()
            .zip(&reads)
            .enumerate()
            .map(|(position, (list, view))| {
                let places = list.iter().zip(&view.dims);
                let places: Vec<String> =
                    places.map(|(&label, &size)| if size == 1 { "0".to_owned() } else { name(label) }).collect();
                format!("X{position}({})", places.join(", "))
            })
            .collect();
        body += &format!("f += {};\nput(Y({}), f);", factors.join(" * "), indices(y.rank()));
        let dims = y.dims.clone();
        self.nest(node, "einsum", &reads, &y, &dims, &body)?;
        self.bind(node.outputs[0], y)
    }

    /// Cosine and sine of every fraction of a turn.
    fn turns(&mut self, kind: Kind, length: usize, sign: f64) -> View {
        let turns = (0..length).flat_map(|at| {
            let (sin, cos) = (sign * 2.0 * PI * at as f64 / length as f64).sin_cos();
            [cos, sin]
        });
        let kind = if kind == Kind::F64 { kind } else { Kind::F32 };
        self.weights_view("turns", kind, &[length as u64, 2], &turns.collect::<Vec<_>>())
    }

    pub(super) fn fourier(&mut self, node: &Node, named: &NamedOp) -> Outcome<()> {
        let x = self.input_view(node, 0)?;
        let (axis, length) = (named.size("axis"), named.size("length"));
        let (inverse, onesided) = (named.flag("inverse"), named.flag("onesided"));
        let rank = x.rank();
        let table = self.turns(x.kind, length, if inverse { 1.0 } else { -1.0 });
        let at = |place: &str, part: &str| {
            let places: Vec<String> =
                (0..rank - 1).map(|index| if index == axis { place.to_owned() } else { format!("i{index}") }).collect();
            format!("X0({}, {part})", places.join(", "))
        };
        let (given, part) = match onesided && inverse {
            // The other half of a real signal's spectrum mirrors the first.
            true => (length as u64, format!("j <= {} ? j : {length} - j", length / 2)),
            false => (x.dims[axis].min(length as u64), "j".to_owned()),
        };
        let mirrored = if onesided && inverse { format!("j <= {} ? 1 : -1", length / 2) } else { "1".into() };
        let imaginary = if x.dims[rank - 1] == 2 { at("from", "1") } else { "0".into() };
        let body = format!(
            "{number} re = 0, im = 0;\nfor (int j = 0; j < {given}; j++) {{\nconst int from = {part};\n\
             const int turn = (i64)i{axis} * j % {length};\n\
             const {number} a = {}, b = {imaginary} * ({mirrored}), c = X1(turn, 0), s = X1(turn, 1);\n\
             re += a * c - b * s; im += a * s + b * c;\n}}\nput(Y({}), (i{} == 0 ? re : im){});",
            at("from", "0"),
            indices(rank),
            rank - 1,
            if inverse { format!(" / {length}") } else { String::new() },
            number = number(x.kind),
        );
        self.nest_of_result(node, "fourier", &[x, table], &body)
    }

    pub(super) fn short_fourier(&mut self, node: &Node, named: &NamedOp) -> Outcome<()> {
        let x = self.input_view(node, 0)?;
        let (step, length) = (named.size("step"), named.size("length"));
        let table = self.turns(x.kind, length, -1.0);
        let mut reads = vec![x.clone(), table];
        let weight = match node.input(1) {
            Some(_) => {
                reads.push(self.exact_input(node, 1)?);
                "X2(j)"
            }
            None => "1",
        };
        let (real, imaginary) = match (x.rank(), x.dims.get(2)) {
            (3, Some(2)) => ("X0(i0, at, 0)", "X0(i0, at, 1)"),
            (3, _) => ("X0(i0, at, 0)", "0"),
            _ => ("X0(i0, at)", "0"),
        };
        let body = format!(
            "{number} re = 0, im = 0;\nfor (int j = 0; j < {length}; j++) {{\nconst int at = i1 * {step} + j;\n\
             const int turn = (i64)i2 * j % {length};\n\
             const {number} a = {real} * {weight}, b = {imaginary} * {weight}, c = X1(turn, 0), s = X1(turn, 1);\n\
             re += a * c - b * s; im += a * s + b * c;\n}}\nput(Y(i0, i1, i2, i3), i3 == 0 ? re : im);",
            number = number(x.kind),
        );
        self.nest_of_result(node, "fourier", &reads, &body)
    }
}
