//! Reductions, running sums and selections.

use super::{super::builder::Lowering, Rule, sizes};
use crate::error::Refusal;
use planforge_graph::ir::{ArgReduce, Op, ReduceKind, ValueId};

macro_rules! reduction {
    ($name:literal, $kind:expr) => {
        Rule {
            op_type: $name,
            attributes: &["axes", "keepdims", "noop_with_empty_axes"],
            lower: |node| reduce(node, $kind, 18),
        }
    };
}

pub const RULES: &[Rule] = &[
    Rule {
        op_type: "ReduceSum",
        attributes: &["axes", "keepdims", "noop_with_empty_axes"],
        lower: |node| reduce(node, ReduceKind::Sum, 13),
    },
    reduction!("ReduceMean", ReduceKind::Mean),
    reduction!("ReduceMax", ReduceKind::Max),
    reduction!("ReduceMin", ReduceKind::Min),
    reduction!("ReduceProd", ReduceKind::Prod),
    reduction!("ReduceL1", ReduceKind::L1),
    reduction!("ReduceL2", ReduceKind::L2),
    reduction!("ReduceLogSum", ReduceKind::LogSum),
    reduction!("ReduceLogSumExp", ReduceKind::LogSumExp),
    reduction!("ReduceSumSquare", ReduceKind::SumSquare),
    Rule {
        op_type: "ArgMax",
        attributes: &["axis", "keepdims", "select_last_index"],
        lower: |node| arg_reduce(node, true),
    },
    Rule {
        op_type: "ArgMin",
        attributes: &["axis", "keepdims", "select_last_index"],
        lower: |node| arg_reduce(node, false),
    },
    Rule { op_type: "CumSum", attributes: &["exclusive", "reverse"], lower: cum_sum },
    Rule { op_type: "TopK", attributes: &["axis", "k", "largest", "sorted"], lower: top_k },
];

/// Axes are an attribute before opset `as_input`, and an input from it on.
fn reduce(node: &mut Lowering<'_>, kind: ReduceKind, as_input: i64) -> Result<Vec<ValueId>, Refusal> {
    let x = node.input(0, "data")?;
    let (axes, keep_all) = if node.opset < as_input {
        node.at_most(1)?;
        (node.attributes.ints("axes")?.map(<[i64]>::to_vec), false)
    } else {
        node.at_most(2)?;
        (node.known_ints(1, "axes")?, node.attributes.flag("noop_with_empty_axes", false)?)
    };
    let keep = node.attributes.flag("keepdims", true)?;
    let rank = node.shape(x).len();
    let axes = node.axes(&axes.unwrap_or_default(), rank)?;
    let axes = match (axes.is_empty(), keep_all) {
        (false, _) => axes,
        (true, false) => (0..rank).collect(),
        // No axis is reduced: every element is a group of its own.
        (true, true) => Vec::new(),
    };
    Ok(vec![node.emit(Op::Reduce { kind, axes, keep }, &[x])?])
}

fn arg_reduce(node: &mut Lowering<'_>, largest: bool) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let x = node.input(0, "data")?;
    let axis = node.axis(node.attributes.int_or("axis", 0)?, node.shape(x).len(), "axis")?;
    let keep = node.attributes.flag("keepdims", true)?;
    let last = if node.opset >= 12 { node.attributes.flag("select_last_index", false)? } else { false };
    Ok(vec![node.emit(Op::ArgReduce(ArgReduce { largest, axis, keep, last }), &[x])?])
}

fn cum_sum(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(2)?;
    let x = node.input(0, "x")?;
    let axis = node.known_ints(1, "axis")?.ok_or(Refusal::MissingInput { position: 1, what: "axis" })?;
    let [axis] = axis[..] else {
        return Err(Refusal::Impossible { what: "axis", value: format!("{axis:?}"), shape: node.shape(x) });
    };
    let axis = node.axis(axis, node.shape(x).len(), "axis")?;
    let exclusive = node.attributes.flag("exclusive", false)?;
    let reverse = node.attributes.flag("reverse", false)?;
    Ok(vec![node.emit(Op::CumSum { axis, exclusive, reverse }, &[x])?])
}

/// k is an attribute in opset 9 and an input from 10 on.
fn top_k(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let x = node.input(0, "X")?;
    let k = if node.opset < 10 {
        node.at_most(1)?;
        node.attributes.required_int("k")?
    } else {
        node.at_most(2)?;
        let k = node.known_ints(1, "K")?.ok_or(Refusal::MissingInput { position: 1, what: "K" })?;
        k.first().copied().unwrap_or(0)
    };
    let mut out = node.shape(x);
    let axis = node.axis(node.attributes.int_or("axis", -1)?, out.len(), "axis")?;
    let largest = node.opset < 11 || node.attributes.flag("largest", true)?;
    // Sorted is one of the orders that unsorted allows.
    if node.opset >= 11 {
        node.attributes.flag("sorted", true)?;
    }
    out[axis] = sizes("K", &[k])?[0];
    node.emit_all(Op::TopK { axis, largest }, vec![Some(x)], &[out.clone(), out])
}
