//! Sums, extremes and their places over any dimensions of any view, and running sums along one.

use super::{
    BLOCK, Generated, blocks, c_float, c_type,
    expr::{Class, Digits, NoCode},
    kernel,
};
use crate::view::{Kind, View};
use planforge_graph::ir::ReduceKind;

/// What becomes of the elements that are reduced to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Reduce(ReduceKind),
    /// The place of the largest (or smallest) along one dimension; of equal ones the last or the first.
    Arg {
        largest: bool,
        last: bool,
    },
}

/// Elements from which on threads share them, where they are neighbours in memory.
const SHARED_FROM: u64 = 16;
/// Results below which threads share what they can: one each would leave most of a device idle.
const FEW_RESULTS: u64 = 4096;
/// Elements from which on a whole block shares them.
const LONG: u64 = 2048;

/// One dimension that is walked: its size, and the strides of what is read and of what is written.
#[derive(Clone, Copy, Debug)]
struct Axis {
    size: u64,
    from: u64,
    to: u64,
}

/// Arguments: in, out. `out` has the dimensions of `in` that are not among `axes`; those may be left as 1.
pub fn generate(from: &View, to: &View, axes: &[usize], how: How) -> Result<Generated, NoCode> {
    let (mut kept, mut reduced) = (Vec::new(), Vec::new());
    for (axis, (&size, &stride)) in from.dims.iter().zip(&from.strides).enumerate() {
        if axes.contains(&axis) {
            reduced.push(Axis { size, from: stride, to: 0 });
        } else {
            let place = if to.rank() == from.rank() { axis } else { kept.len() };
            kept.push(Axis { size, from: stride, to: to.strides[place] });
        }
    }
    let (kept, reduced) = (merged(kept), merged(reduced));
    let count = |axes: &[Axis]| axes.iter().map(|axis| axis.size).product::<u64>();
    let (results, each) = (count(&kept), count(&reduced));
    let lanes = lanes(&kept, &reduced, results, each);
    // Threads and elements count in 32 bits, those past the end too.
    let most = u64::from(u32::MAX) - u64::from(BLOCK);
    if results > most / lanes || each > most {
        return Err(NoCode(format!("a reduction of {each} elements to each of {results}")));
    }
    let class = match (Class::of(from.kind), how) {
        // Roots and logarithms of whole numbers are real before they are cut off.
        (Class::Int | Class::Unsigned, How::Reduce(ReduceKind::L2 | ReduceKind::LogSum | ReduceKind::LogSumExp)) => {
            Class::Double
        }
        (Class::Bool, _) => Class::Int,
        (class, _) => class,
    };
    let Code { start, join, first, last, again } = code(how, class, Digits::of(from.kind), each)?;
    let number = class.c_type();
    let value = match class {
        Class::Float => "to_f(p[at])".to_owned(),
        _ => format!("({number})p[at]"),
    };
    let is_arg = matches!(how, How::Arg { .. });
    let visit = |what: &str| {
        format!(
            "for (u32 r = lane; r < {each}u; r += {lanes}u) {{\ni64 at = begin;\n{}const {number} v = {value};\n{what}\n}}\n",
            walk("r", &reduced, &[("at", |axis| axis.from)])
        )
    };
    let all = if lanes > 1 { "acc = all(acc);\n" } else { "" };
    let mut body = format!(
        "const u32 lane = threadIdx.x % {lanes}u, i = blockIdx.x * {}u + threadIdx.x / {lanes}u;\n\
         if (i >= {results}u) return;\ni64 begin = 0, end = 0;\n{}A acc = {start};\n{}{all}",
        u64::from(BLOCK) / lanes,
        walk("i", &kept, &[("begin", |axis| axis.from), ("end", |axis| axis.to)]),
        visit(&format!("const A one = {first}; acc = join(acc, one);")),
    );
    if let Some(again) = again {
        body += &format!(
            "const {number} top = acc, shift = {magnitude}(top) == {infinity} ? 0.0f : top;\nacc = 0.0f;\n{}{}",
            visit(&format!("acc += {again};")),
            if lanes > 1 { "acc = all_added(acc);\n" } else { "" },
            magnitude = if class == Class::Double { "fabs" } else { "fabsf" },
            infinity = c_float(f32::INFINITY),
        );
    }
    body += &format!("if (lane == 0) put(q[end], {last});");
    let parameters =
        [format!("const {}* __restrict__ p", c_type(from.kind)), format!("{}* __restrict__ q", c_type(to.kind))];
    let mut source = kernel("reduce", &parameters, BLOCK, &body);
    let kind = if is_arg { format!("struct A {{ {number} v; i64 at; }};") } else { format!("typedef {number} A;") };
    let mut head = format!("{kind}\n__device__ __forceinline__ A join(A a, A b) {{ {join} }}\n");
    if lanes > 1 {
        head += &across("all", "join(a, b)", is_arg, lanes);
    }
    if lanes > 1 && again.is_some() {
        head += &across("all_added", "a + b", false, lanes);
    }
    source.text = source.text.replacen("extern \"C\"", &format!("{head}extern \"C\""), 1);
    Ok(Generated { source, grid: [blocks(results * lanes, BLOCK.into()), 1, 1], block: [BLOCK, 1, 1], shared_bytes: 0 })
}

/// Running sums along `axis`, a thread for each line. Arguments: in, out of the same dimensions.
pub fn running_sum(from: &View, to: &View, axis: usize, exclusive: bool, reverse: bool) -> Result<Generated, NoCode> {
    let lines = (0..from.rank()).filter(|other| *other != axis);
    let lines: Vec<Axis> =
        lines.map(|at| Axis { size: from.dims[at], from: from.strides[at], to: to.strides[at] }).collect();
    let lines = merged(lines);
    let (count, length) = (lines.iter().map(|axis| axis.size).product::<u64>(), from.dims[axis]);
    let most = u64::from(u32::MAX) - u64::from(BLOCK);
    if count > most || length > most {
        return Err(NoCode(format!("running sums of {count} lines of {length}")));
    }
    let class = if from.kind == Kind::Bool { Class::Int } else { Class::of(from.kind) };
    let number = class.c_type();
    let value = match class {
        Class::Float => "to_f(p[begin + (i64)s * STEP])".to_owned(),
        _ => format!("({number})p[begin + (i64)s * STEP]"),
    };
    let body = format!(
        "const u32 i = blockIdx.x * {BLOCK}u + threadIdx.x;\nif (i >= {count}u) return;\ni64 begin = 0, end = 0;\n{}\
         {number} sum = 0;\nfor (u32 r = 0; r < {length}u; r++) {{\nconst u32 s = {};\nconst {number} next = sum + {};\n\
         put(q[end + (i64)s * {}], {});\nsum = next;\n}}",
        walk("i", &lines, &[("begin", |axis| axis.from), ("end", |axis| axis.to)]),
        if reverse { format!("{length}u - 1u - r") } else { "r".to_owned() },
        value.replace("STEP", &from.strides[axis].to_string()),
        to.strides[axis],
        if exclusive { "sum" } else { "next" },
    );
    let parameters =
        [format!("const {}* __restrict__ p", c_type(from.kind)), format!("{}* __restrict__ q", c_type(to.kind))];
    Ok(Generated {
        source: kernel("running_sum", &parameters, BLOCK, &body),
        grid: [blocks(count, BLOCK.into()), 1, 1],
        block: [BLOCK, 1, 1],
        shared_bytes: 0,
    })
}

/// Threads that share one result.
fn lanes(kept: &[Axis], reduced: &[Axis], results: u64, each: u64) -> u64 {
    let nearest = |axes: &[Axis]| axes.iter().map(|axis| axis.from).min().unwrap_or(u64::MAX);
    let are_neighbours = nearest(reduced) < nearest(kept);
    if each < SHARED_FROM || (!are_neighbours && results >= FEW_RESULTS) {
        return 1;
    }
    if each >= LONG { BLOCK.into() } else { 32 }
}

/// Largest strides first, those of size 1 left out, and those made one that follow each other without a gap.
fn merged(mut axes: Vec<Axis>) -> Vec<Axis> {
    axes.retain(|axis| axis.size != 1);
    axes.sort_by_key(|axis| std::cmp::Reverse((axis.from, axis.to)));
    let mut merged: Vec<Axis> = Vec::new();
    for axis in axes {
        match merged.last_mut() {
            Some(outer) if outer.from == axis.from * axis.size && outer.to == axis.to * axis.size => {
                *outer = Axis { size: outer.size * axis.size, ..axis };
            }
            _ => merged.push(axis),
        }
    }
    merged
}

/// What an axis adds to a place.
type Stride = fn(&Axis) -> u64;

/// Adds to `places` what the element `index` of `axes` adds to them.
fn walk(index: &str, axes: &[Axis], places: &[(&str, Stride)]) -> String {
    let mut text = format!("u32 w_{index} = {index};\n");
    for (number, axis) in axes.iter().enumerate().rev() {
        let size = axis.size.max(1);
        let here = if number == 0 { format!("w_{index}") } else { format!("w_{index} % {size}u") };
        for (place, stride) in places {
            text += &format!("{place} += (i64)({here}) * {};\n", stride(axis));
        }
        if number > 0 {
            text += &format!("w_{index} /= {size}u;\n");
        }
    }
    text
}

struct Code {
    start: String,
    /// Of `a` and `b`.
    join: String,
    /// Of the element `v`, the `r`-th.
    first: &'static str,
    /// Of `acc`.
    last: String,
    /// What is added up in a second walk, `shift` being what the first gave.
    again: Option<&'static str>,
}

fn code(how: How, class: Class, digits: Digits, each: u64) -> Result<Code, NoCode> {
    let (is_float, is_double) = (class.is_real(), class == Class::Double);
    let extreme = |largest: bool| match (is_float, largest) {
        _ if class == Class::Unsigned => if largest { "0ULL" } else { "18446744073709551615ULL" }.to_owned(),
        (true, true) => c_float(f32::NEG_INFINITY),
        (true, false) => c_float(f32::INFINITY),
        (false, true) => "(-9223372036854775807LL - 1)".to_owned(),
        (false, false) => "9223372036854775807LL".to_owned(),
    };
    let zero = if is_float { "0.0f" } else { "0" };
    let simple = |start: &str, join: &str, first: &'static str, last: String| Code {
        start: start.to_owned(),
        join: format!("return {join};"),
        first,
        last,
        again: None,
    };
    let sum = |first: &'static str, last: &str| simple(zero, "a + b", first, last.to_owned());
    // A number that is none stays.
    let nearer =
        |sign: &str| if is_float { format!("b {sign} a || b != b ? b : a") } else { format!("b {sign} a ? b : a") };
    let kind = match how {
        How::Reduce(kind) => kind,
        How::Arg { largest, last } => {
            let (nearer, later) = (if largest { ">" } else { "<" }, if last { ">" } else { "<" });
            // The start stands behind every element.
            let behind = if last { -1 } else { i64::from(u32::MAX) };
            return Ok(Code {
                start: format!("{{{}, {behind}LL}}", extreme(largest)),
                join: format!("return b.v {nearer} a.v || (b.v == a.v && b.at {later} a.at) ? b : a;"),
                first: "{v, (i64)r}",
                last: "acc.at".into(),
                again: None,
            });
        }
    };
    Ok(match kind {
        ReduceKind::Sum => sum("v", "acc"),
        ReduceKind::Mean if is_double => sum("v", &format!("acc / {each}.0")),
        ReduceKind::Mean if is_float => sum("v", &format!("acc * {}", c_float(1.0 / each as f32))),
        ReduceKind::Mean => sum("v", &format!("acc / {}LL", each.max(1))),
        ReduceKind::Max => simple(&extreme(true), &nearer(">"), "v", "acc".into()),
        ReduceKind::Min => simple(&extreme(false), &nearer("<"), "v", "acc".into()),
        ReduceKind::Prod => simple(if is_float { "1.0f" } else { "1" }, "a * b", "v", "acc".into()),
        ReduceKind::L1 if class == Class::Unsigned => sum("v", "acc"),
        ReduceKind::L1 if is_double => sum("fabs(v)", "acc"),
        ReduceKind::L1 => sum(if is_float { "fabsf(v)" } else { "llabs(v)" }, "acc"),
        ReduceKind::SumSquare => sum("v * v", "acc"),
        ReduceKind::L2 if is_double => sum("v * v", "sqrt(acc)"),
        ReduceKind::L2 if is_float => sum("v * v", "sqrtf(acc)"),
        ReduceKind::LogSum if is_double => sum("v", "log(acc)"),
        ReduceKind::LogSum if is_float => sum("v", "logf(acc)"),
        ReduceKind::LogSumExp if is_double => Code {
            again: Some("exp(v - shift)"),
            ..simple(&extreme(true), &nearer(">"), "v", "log(acc) + shift".into())
        },
        ReduceKind::LogSumExp if is_float => Code {
            again: Some(match digits {
                Digits::F16 | Digits::Half => "__expf(v - shift)",
                Digits::Single => "expf(v - shift)",
            }),
            ..simple(&extreme(true), &nearer(">"), "v", "logf(acc) + shift".into())
        },
        kind => return Err(NoCode(format!("{kind:?} of whole numbers"))),
    })
}

/// A function that joins what every thread of a result has, for all of them.
pub(super) fn across(name: &str, join: &str, is_arg: bool, lanes: u64) -> String {
    let other = |far: &str| match is_arg {
        true => format!(
            "A b; b.v = __shfl_xor_sync(0xffffffffu, a.v, {far}); b.at = __shfl_xor_sync(0xffffffffu, a.at, {far});"
        ),
        false => format!("A b = __shfl_xor_sync(0xffffffffu, a, {far});"),
    };
    let turns = |from: u32| {
        format!("#pragma unroll\nfor (int far = {from}; far > 0; far >>= 1) {{ {} a = {join}; }}\n", other("far"))
    };
    let block = format!(
        "__shared__ A part[8];\n__syncthreads();\nif (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = a;\n\
         __syncthreads();\na = part[threadIdx.x % 8];\n{}",
        turns(4)
    );
    let block = if lanes > 32 { block } else { String::new() };
    format!("__device__ __forceinline__ A {name}(A a) {{\n{}{block}return a;\n}}\n", turns(16))
}
