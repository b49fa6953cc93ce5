//! Reductions, running sums and selections.

use super::{super::builder::Lowering, Rule, sizes};
use crate::error::Refusal;
use planforge_graph::{
    ir::{ArgReduce, Binary, ElementType, Op, PadMode, ReduceKind, ValueId},
    shape::is_float,
};

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
    Rule { op_type: "CumProd", attributes: &["exclusive", "reverse"], lower: cum_prod },
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
    if let Some(extreme) = of_nothing(node, kind, x, &axes, keep)? {
        return Ok(vec![extreme]);
    }
    Ok(vec![node.emit(Op::Reduce { kind, axes, keep }, &[x])?])
}

/// The extreme of no integers or bools: what any other is beyond.
fn of_nothing(
    node: &mut Lowering<'_>,
    kind: ReduceKind,
    x: ValueId,
    axes: &[usize],
    keep: bool,
) -> Result<Option<ValueId>, Refusal> {
    let (element, mut out) = (node.ty(x).element, node.shape(x));
    if !out.contains(&0) || is_float(element) {
        return Ok(None);
    }
    for &axis in axes.iter().rev() {
        out[axis] = 1;
        if !keep {
            out.remove(axis);
        }
    }
    let value = match (kind, element) {
        (ReduceKind::Max, ElementType::Bool) => 0.0,
        (ReduceKind::Min, ElementType::Bool) => 1.0,
        // Both are cut at what the type has.
        (ReduceKind::Max, _) => f64::NEG_INFINITY,
        (ReduceKind::Min, _) => f64::INFINITY,
        _ => return Ok(None),
    };
    let value = node.scalar(element, value)?;
    node.emit_as(Op::Expand, &[value], out).map(Some)
}

fn arg_reduce(node: &mut Lowering<'_>, largest: bool) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let x = node.input(0, "data")?;
    let axis = node.axis(node.attributes.int_or("axis", 0)?, node.shape(x).len(), "axis")?;
    let keep = node.attributes.flag("keepdims", true)?;
    let last = if node.opset >= 12 { node.attributes.flag("select_last_index", false)? } else { false };
    Ok(vec![node.emit(Op::ArgReduce(ArgReduce { largest, axis, keep, last }), &[x])?])
}

/// What runs along one axis: it, its axis, whether without itself, whether from the end.
fn running(node: &Lowering<'_>) -> Result<(ValueId, usize, bool, bool), Refusal> {
    node.at_most(2)?;
    let x = node.input(0, "x")?;
    let axis = node.known_ints(1, "axis")?.ok_or(Refusal::MissingInput { position: 1, what: "axis" })?;
    let [axis] = axis[..] else {
        return Err(Refusal::Impossible { what: "axis", value: format!("{axis:?}"), shape: node.shape(x) });
    };
    let axis = node.axis(axis, node.shape(x).len(), "axis")?;
    let exclusive = node.attributes.flag("exclusive", false)?;
    Ok((x, axis, exclusive, node.attributes.flag("reverse", false)?))
}

fn cum_sum(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let (x, axis, exclusive, reverse) = running(node)?;
    Ok(vec![node.emit(Op::CumSum { axis, exclusive, reverse }, &[x])?])
}

/// Products with what lies one step back, two, four and so on: after each, twice as many are multiplied.
fn cum_prod(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let (x, axis, exclusive, reverse) = running(node)?;
    let (shape, one) = (node.shape(x), node.scalar(node.ty(x).element, 1.0)?);
    let back = |node: &mut Lowering<'_>, x: ValueId, by: usize| {
        let mut begins = vec![0i64; shape.len()];
        begins[axis] = if reverse { -(by as i64) } else { by as i64 };
        let op = Op::Pad { mode: PadMode::Constant, begins };
        node.emit_as(op, &[x, one], shape.clone())
    };
    let mut product = if exclusive { back(node, x, 1)? } else { node.emit(Op::Identity, &[x])? };
    let mut by = 1;
    while by < shape[axis] {
        let before = back(node, product, by)?;
        product = node.binary(Binary::Mul, product, before)?;
        by *= 2;
    }
    Ok(vec![product])
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

#[cfg(test)]
mod tests {
    use crate::testing::{TestModel, int};
    use planforge_graph::{
        interpreter,
        ir::{ElementType, Tensor},
    };
    use std::collections::BTreeMap;

    fn products(exclusive: i64, reverse: i64) -> Vec<f64> {
        let graph = TestModel::new(26)
            .input("x", &[2, 5])
            .longs("axis", &[-1])
            .node("CumProd", &["x", "axis"], "y", vec![int("exclusive", exclusive), int("reverse", reverse)])
            .output("y")
            .import();
        let x = vec![1f32, 2.0, 3.0, 4.0, 5.0, -1.0, 0.5, 2.0, 0.0, 7.0];
        let x = Tensor::from_vec(vec![2, 5], x).expect("two rows");
        interpreter::execute(&graph, &BTreeMap::from([("x".to_owned(), x)])).expect("the graph runs")["y"].to_f64s()
    }

    #[test]
    fn the_extreme_of_nothing_is_what_any_other_is_beyond() {
        for (element, op_type, expected) in [
            (ElementType::Bool, "ReduceMax", 0),
            (ElementType::Bool, "ReduceMin", 1),
            (ElementType::I64, "ReduceMax", i64::MIN),
            (ElementType::I8, "ReduceMin", 127),
        ] {
            let graph = TestModel::new(20)
                .input_of("x", element, &[2, 0])
                .longs("axis", &[1])
                .node(op_type, &["x", "axis"], "y", vec![int("keepdims", 0)])
                .output("y")
                .import();
            let y = graph.constant(graph.outputs[0].value).expect("it is known");
            assert_eq!(y.to_i64s(), Some(vec![expected; 2]), "{op_type} of {element}");
        }
    }

    #[test]
    fn products_run_along_an_axis_from_either_end() {
        assert_eq!(products(0, 0), [1.0, 2.0, 6.0, 24.0, 120.0, -1.0, -0.5, -1.0, 0.0, 0.0]);
        assert_eq!(products(1, 0), [1.0, 1.0, 2.0, 6.0, 24.0, 1.0, -1.0, -0.5, -1.0, 0.0]);
        assert_eq!(products(0, 1), [120.0, 120.0, 60.0, 20.0, 5.0, 0.0, 0.0, 0.0, 0.0, 7.0]);
        assert_eq!(products(1, 1), [120.0, 60.0, 20.0, 5.0, 1.0, 0.0, 0.0, 0.0, 7.0, 1.0]);
    }
}
