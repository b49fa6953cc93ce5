//! One result, element by element, from an expression over any views of its dimensions.
//!
//! Dimensions that all views walk alike are merged, the rest is nested as the result lies in memory, and the innermost
//! run is read and written in vectors of up to 16 bytes wherever every view allows it.

use super::{
    BLOCK, Generated, blocks, c_type,
    expr::{Class, Digits, Expr, Load, NoCode},
    kernel,
};
use crate::view::{Kind, View};
use planforge_graph::ir::Activation;

/// Elements of a thread where each is read by itself: one load of two bytes at a time keeps no memory busy.
const SCATTERED: u64 = 8;
/// Elements from which on that leaves enough threads.
const SCATTERED_FROM: u64 = 1 << 20;
/// Vectors of a thread that changes its elements in place, and how many there must be: two loads under way hide more of
/// the memory's latency where threads are left over.
const IN_PLACE: u64 = 2;
const IN_PLACE_FROM: u64 = 1 << 19;

/// One merged dimension: its size, and the stride of every walker along it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Axis {
    size: u64,
    strides: Vec<u64>,
}

/// Makes `out = expression`. Arguments: the loads' addresses (a gather's index right after its table), then `out`.
pub fn generate(expression: &Expr, out: &View) -> Result<Generated, NoCode> {
    make(expression, out, false)
}

/// Makes `activation` of every element of `view`, where it lies. Argument: the view's address.
pub fn in_place(activation: Activation, view: &View) -> Result<Generated, NoCode> {
    let load = Expr::Load(Load { view: view.clone(), index: None });
    make(&Expr::Activation(activation, Box::new(load)), view, true)
}

/// `in_place`: the only load is of `out` itself.
fn make(expression: &Expr, out: &View, in_place: bool) -> Result<Generated, NoCode> {
    let mut loads = Vec::new();
    expression.loads(&mut loads);
    let walkers = walkers(&loads, out);
    let mut axes = merged(&walkers, out);
    let inner = axes.pop().unwrap_or(Axis { size: 1, strides: vec![0; walkers.len()] });
    let vector = vector_width(&loads, &walkers, &axes, &inner);

    let total = axes.iter().map(|axis| axis.size).product::<u64>() * (inner.size / vector);
    let each = match vector {
        1 if total >= SCATTERED_FROM => SCATTERED,
        2.. if in_place && total >= IN_PLACE_FROM => IN_PLACE,
        _ => 1,
    };
    // Threads count in 32 bits, those past the end too.
    if total > u64::from(u32::MAX) - u64::from(BLOCK) * each {
        return Err(NoCode(format!("an element-wise result of {} elements", out.elements())));
    }
    let runs = inner.size / vector;
    // The place of element i: its index along every merged dimension.
    let mut body = format!("const u32 flat = i; u32 x = i % {runs}u; i /= {runs}u;\n");
    for (index, axis) in axes.iter().enumerate().rev() {
        body += &match index {
            0 => format!("u32 a{index} = i;\n"),
            _ => format!("u32 a{index} = i % {}u; i /= {}u;\n", axis.size, axis.size),
        };
    }
    let indices = body.clone();
    let place = |walker: usize| {
        // What is walked in the order of the elements needs none of the indices.
        let mut dense = inner.size;
        let in_order = inner.strides[walker] == 1
            && axes.iter().rev().all(|axis| {
                let stride = dense;
                dense *= axis.size;
                axis.strides[walker] == stride
            });
        if in_order {
            return format!("(i64)flat * {vector}");
        }
        // 32-bit numbers where they are enough.
        let short = walkers[walker].end_bytes().is_some_and(|end| end < 1 << 31);
        let (cast, suffix) = if short { ("", "u") } else { ("(i64)", "") };
        let mut terms: Vec<String> = axes
            .iter()
            .enumerate()
            .filter(|(_, axis)| axis.strides[walker] != 0)
            .map(|(index, axis)| format!("{cast}a{index} * {}{suffix}", axis.strides[walker]))
            .collect();
        if inner.strides[walker] != 0 {
            terms.push(format!("{cast}x * {}{suffix}", inner.strides[walker] * vector));
        }
        if terms.is_empty() { "0".to_owned() } else { terms.join(" + ") }
    };

    let mut parameters = Vec::new();
    let mut walker = 0;
    for (number, load) in loads.iter().enumerate() {
        let kind = c_type(load.view.kind);
        match in_place {
            true => body += &format!("const {kind}* p{number} = out;\n"),
            false => parameters.push(format!("const {kind}* __restrict__ p{number}")),
        }
        let mut at = place(walker);
        let step = inner.strides[walker];
        walker += 1;
        if let Some(index) = &load.index {
            parameters.push(format!("const {}* __restrict__ q{number}", c_type(index.view.kind)));
            body += &format!(
                "i64 g{number} = (i64)q{number}[{}];\nif (g{number} < 0) g{number} += {};\n",
                place(walker),
                index.rows
            );
            // An index out of range would read anything; it reads the nearest row instead.
            body += &format!(
                "g{number} = g{number} < 0 ? 0 : g{number} >= {} ? {} : g{number};\n",
                index.rows,
                index.rows.saturating_sub(1)
            );
            at = format!("{at} + g{number} * {}", index.stride);
            walker += 1;
        }
        body += &match step {
            0 => format!("{kind} l{number} = p{number}[{at}];\n"),
            _ if vector == 1 => format!("{kind} l{number} = p{number}[{at}];\n"),
            _ => format!("Vec<{kind}, {vector}> l{number}; l{number}.load(p{number} + ({at}));\n"),
        };
    }
    let out_kind = c_type(out.kind);
    let alone = if in_place { "" } else { " __restrict__" };
    parameters.push(format!("{out_kind}*{alone} out"));
    let lanes: Vec<bool> = {
        let mut walker = 0;
        let lane = |load: &&Load| {
            let step = inner.strides[walker];
            walker += 1 + usize::from(load.index.is_some());
            step != 0 && vector > 1
        };
        loads.iter().map(lane).collect()
    };
    let value = |number: usize| {
        let element = if lanes[number] { format!("l{number}.v[j]") } else { format!("l{number}") };
        match Class::of(loads[number].view.kind) {
            Class::Float => format!("to_f({element})"),
            Class::Double => element,
            Class::Int => format!("((i64){element})"),
            Class::Unsigned => format!("((unsigned long long){element})"),
            Class::Bool => format!("({element} != 0)"),
        }
    };
    let class = Class::of(out.kind);
    let expression = match (expression.class(), class) {
        (have, want) if have == want => expression.clone(),
        (_, want) => Expr::Cast(want, Box::new(expression.clone())),
    };
    let text = expression.c(&mut 0, digits(&loads, out), &value)?;
    let stored = if class == Class::Bool { "u8" } else { out_kind };
    let compute = format!("#pragma unroll\nfor (int j = 0; j < {vector}; j++) put(r[e].v[j], {text});\n");
    let store = format!("r[e].store(out + ({}));\n", place(walker));
    let begin = format!("u32 begin = blockIdx.x * {}u + threadIdx.x;\n", u64::from(BLOCK) * each);
    let body = if each == 1 {
        format!(
            "{begin}u32 i = begin; if (i >= {total}u) return;\nVec<{stored}, {vector}> r[1]; const int e = 0;\n{body}{compute}{store}"
        )
    } else {
        // All are read before any is written, past the end the last one once more.
        format!(
            "{begin}Vec<{stored}, {vector}> r[{each}];\n#pragma unroll\nfor (int e = 0; e < {each}; e++) {{\n\
             u32 i = min(begin + e * {BLOCK}u, {last}u);\n{body}{compute}}}\n\
             #pragma unroll\nfor (int e = 0; e < {each}; e++) {{\nu32 i = begin + e * {BLOCK}u; if (i >= {total}u) break;\n{indices}{store}}}\n",
            last = total - 1,
        )
    };
    let name = match in_place {
        true => "activation",
        false if expression.size() == 0 => "copy",
        false => "pointwise",
    };
    Ok(Generated {
        source: kernel(name, &parameters, BLOCK, &body),
        grid: [blocks(total, u64::from(BLOCK) * each), 1, 1],
        block: [BLOCK, 1, 1],
        shared_bytes: 0,
    })
}

/// What functions have to be good to: no more than what they are given.
fn digits(loads: &[&Load], out: &View) -> Digits {
    let of_halves = loads.iter().any(|load| matches!(load.view.kind, Kind::F16 | Kind::Bf16));
    match Digits::of(out.kind) {
        Digits::Single if of_halves => Digits::Half,
        digits => digits,
    }
}

/// Every view that is walked: loads, their indices, then the result.
fn walkers<'a>(loads: &[&'a Load], out: &'a View) -> Vec<&'a View> {
    let mut walkers = Vec::new();
    for load in loads {
        walkers.push(&load.view);
        walkers.extend(load.index.as_ref().map(|index| &index.view));
    }
    walkers.push(out);
    walkers
}

/// The result's dimensions as it lies in memory, slowest first, with those merged that every walker walks alike.
fn merged(walkers: &[&View], out: &View) -> Vec<Axis> {
    let mut axes: Vec<Axis> = Vec::new();
    for axis in out.memory_order() {
        let size = out.dims[axis];
        if size == 1 {
            continue;
        }
        let strides: Vec<u64> = walkers.iter().map(|view| view.strides[axis]).collect();
        let merges = axes
            .last()
            .is_some_and(|outer| outer.strides.iter().zip(&strides).all(|(&outer, &inner)| outer == inner * size));
        match axes.last_mut().filter(|_| merges) {
            Some(outer) => *outer = Axis { size: outer.size * size, strides },
            None => axes.push(Axis { size, strides }),
        }
    }
    axes
}

/// Elements that one thread reads and writes at a time.
fn vector_width(loads: &[&Load], walkers: &[&View], axes: &[Axis], inner: &Axis) -> u64 {
    // What an index adds to the place of its table.
    let mut row_strides = vec![0; walkers.len()];
    let mut walker = 0;
    for load in loads {
        if let Some(index) = &load.index {
            // A vector has one index.
            if inner.strides[walker + 1] != 0 {
                return 1;
            }
            row_strides[walker] = index.stride;
        }
        walker += 1 + usize::from(load.index.is_some());
    }
    let fits = |width: &u64| {
        inner.size.is_multiple_of(*width)
            && walkers.iter().enumerate().all(|(number, view)| match inner.strides[number] {
                0 => true,
                1 => {
                    let chunk = (width * view.kind.bytes()).min(16) / view.kind.bytes();
                    let mut outer = axes.iter().map(|axis| axis.strides[number]).chain([row_strides[number]]);
                    view.offset % chunk == 0 && outer.all(|stride| stride % chunk == 0)
                }
                _ => false,
            })
            // Somebody must gain from it.
            && inner.strides.last() == Some(&1)
    };
    [8, 4, 2].into_iter().find(fits).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        codegen::expr::Index,
        view::{BufferId, Kind},
    };

    fn rows(kind: Kind, dims: &[u64]) -> View {
        View::rows(BufferId(0), kind, dims)
    }

    /// The text of a gather of `dims`, whose table, and then its index, are walked by these strides.
    fn gather(dims: [u64; 2], table: [u64; 2], index: [u64; 2], stride: u64) -> String {
        let walked = |kind: Kind, strides: [u64; 2]| View { strides: strides.to_vec(), ..rows(kind, &dims) };
        let index = Index { view: walked(Kind::I64, index), stride, rows: 9 };
        let load = Load { view: walked(Kind::F16, table), index: Some(Box::new(index)) };
        generate(&Expr::Load(load), &rows(Kind::F16, &dims)).expect("gathers have code").source.text
    }

    #[test]
    fn a_vector_is_gathered_by_one_index_from_where_it_is_aligned() {
        // Rows of a table, and rows of a part of its columns.
        assert!(gather([5, 64], [0, 1], [1, 0], 64).contains("Vec<half_t, 8> r[1]"));
        assert!(gather([5, 64], [0, 1], [1, 0], 100).contains("Vec<half_t, 4> r[1]"));
        assert!(gather([5, 64], [0, 1], [1, 0], 65).contains("Vec<half_t, 1> r[1]"));
        // Along the last dimension each element has an index of its own.
        assert!(gather([4, 16], [64, 0], [0, 1], 1).contains("Vec<half_t, 1> r[1]"));
    }

    #[test]
    fn more_threads_than_32_bits_count_are_refused() {
        let zeros = |dims: &[u64]| generate(&Expr::Float(0.0), &rows(Kind::F16, dims));
        assert!(zeros(&[1 << 30]).is_ok());
        assert!(zeros(&[1 << 36]).is_err());
        // What threads past the end would count to does not fit.
        assert!(zeros(&[(u64::from(u32::MAX) - 1) * 8]).is_err());
    }
}
