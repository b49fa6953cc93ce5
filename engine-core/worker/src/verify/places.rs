//! Outputs that say where something stands (`ArgMax`, `TopK`): another place that holds as good a value is as right.

#[cfg(test)]
use super::numerics;
use planforge_graph::{
    interpreter::{self, run},
    ir::{Graph, Node, Op, Tensor},
    reference::{OpError, around},
    shape::TensorType,
};
use planforge_report::{Allowed, OutputNumerics};
use planforge_types::{HostTensor, NamedTensors};
use std::collections::{BTreeMap, BTreeSet};

/// Where an output's places come from.
#[derive(Clone, Copy, Debug)]
struct Source {
    /// Of the node in the graph.
    node: usize,
    axis: usize,
}

/// The node that each output's places come from.
fn sources(graph: &Graph) -> BTreeMap<String, Source> {
    let definitions = graph.def_use().definition;
    let source = |output: &planforge_graph::ir::Output| {
        let mut value = output.value;
        loop {
            let node = definitions[value.index()]?;
            let definition = &graph.nodes[node];
            match &definition.op {
                Op::Identity | Op::Reshape | Op::Cast { .. } => value = definition.input(0)?,
                Op::ArgReduce(arg) => return Some((output.name.clone(), Source { node, axis: arg.axis })),
                Op::TopK { axis, .. } if definition.outputs.get(1) == Some(&value) => {
                    return Some((output.name.clone(), Source { node, axis: *axis }));
                }
                _ => return None,
            }
        }
    };
    graph.outputs.iter().filter_map(source).collect()
}

/// Judges anew, by the values that they point to in the reference, the places among `outputs` that differ. Stops, and
/// leaves the rest as it is, as soon as `stop` says so.
pub(super) fn judge(
    outputs: &mut [OutputNumerics],
    graph: &Graph,
    inputs: &BTreeMap<String, Tensor>,
    [plan, reference]: [&NamedTensors; 2],
    threshold: f64,
    stop: &dyn Fn() -> bool,
) {
    let mut wanted = sources(graph);
    wanted.retain(|name, _| outputs.iter().any(|output| output.name == *name && differs(output)));
    let nodes: BTreeSet<usize> = wanted.values().map(|source| source.node).collect();
    if nodes.is_empty() {
        return;
    }
    let mut searched: BTreeMap<usize, Tensor> = BTreeMap::new();
    let mut at = 0;
    let mut compute = |node: &Node, tensors: &[Option<&Tensor>], types: &[TensorType]| {
        if let (true, Some(Some(values))) = (nodes.contains(&at), tensors.first()) {
            searched.insert(at, (*values).clone());
        }
        at += 1;
        if stop() { Err(OpError::Stopped) } else { run(&node.op, tensors, types) }
    };
    if interpreter::execute_by(graph, inputs, &mut compute).is_err() {
        return;
    }
    for output in outputs.iter_mut() {
        let Some(source) = wanted.get(&output.name) else { continue };
        let (Some(values), Some(plan), Some(reference)) =
            (searched.get(&source.node), plan.get(&output.name), reference.get(&output.name))
        else {
            continue;
        };
        if as_good(values, source.axis, plan, reference, threshold) == Some(true) {
            output.allowed = Some(Allowed {
                max_error: output.max_error,
                within: true,
                reason: format!("each place holds a value within {threshold:.0e} of the one at the reference's"),
                ..Allowed::default()
            });
        }
    }
}

fn differs(output: &OutputNumerics) -> bool {
    output.problem.is_none() && output.whole_difference.is_some_and(|difference| difference > 0.0)
}

/// Whether every place of `plan` holds a value as good as the reference's, and none is named twice along the axis.
fn as_good(values: &Tensor, axis: usize, plan: &HostTensor, reference: &HostTensor, threshold: f64) -> Option<bool> {
    let places = |tensor: &HostTensor| Tensor::try_from(tensor.clone()).ok()?.to_i64s();
    let (plan, reference) = (places(plan)?, places(reference)?);
    let (_, size, inner) = around(values.shape(), axis);
    let values = values.to_f64s();
    let rows = values.len().checked_div(size)?;
    let of_row = plan.len().checked_div(rows).filter(|of_row| of_row * rows == plan.len())?;
    let scale = values.iter().filter(|value| value.is_finite()).fold(0.0f64, |scale, value| scale.max(value.abs()));
    let mut named = BTreeSet::new();
    for (at, (given, wanted)) in plan.iter().zip(&reference).enumerate() {
        let (outer, column) = (at / (of_row * inner), at % inner);
        let value = |place: i64| {
            let place = usize::try_from(place).ok().filter(|place| *place < size)?;
            values.get((outer * size + place) * inner + column).copied()
        };
        let good = match (value(*given), value(*wanted)) {
            (Some(given), Some(wanted)) => given == wanted || (given - wanted).abs() <= threshold * scale,
            _ => false,
        };
        if !good || !named.insert((outer, column, *given)) {
            return Some(false);
        }
    }
    Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_graph::ir::{ArgReduce, ElementType, Output};

    const X: [f32; 8] = [1.0, 5.0, 5.0001, 2.0, -1.0, -4.0, 0.0, -0.5];

    fn judged(op: Op, outputs: &[(&str, ElementType, &[usize])], plan: &[i64], reference: &[i64]) -> bool {
        let mut graph = Graph::default();
        let x = graph.add_value("x", ElementType::F32, &[2, 4]);
        let ids: Vec<_> =
            outputs.iter().map(|(name, element, shape)| graph.add_value(*name, *element, shape)).collect();
        graph.inputs = vec![x];
        graph.nodes = vec![Node { op, inputs: vec![Some(x)], outputs: ids.clone(), origins: Vec::new() }];
        let (name, _, shape) = outputs.last().unwrap();
        graph.outputs = vec![Output { name: (*name).into(), value: *ids.last().unwrap() }];
        let named = |places: &[i64]| {
            let values: Vec<f64> = places.iter().map(|place| *place as f64).collect();
            NamedTensors::from([((*name).into(), HostTensor::of_values(ElementType::I64, shape.to_vec(), &values))])
        };
        let (plan, reference) = (named(plan), named(reference));
        let mut found = numerics::compare(&plan, &reference, &BTreeMap::new());
        let inputs = [("x".to_owned(), Tensor::from_vec(vec![2, 4], X.to_vec()).unwrap())].into();
        judge(&mut found, &graph, &inputs, [&plan, &reference], 1e-3, &|| false);
        numerics::passes(&found, 1e-3)
    }

    #[test]
    fn another_place_with_as_good_a_value_is_right_and_no_other() {
        let top = |axis| Op::ArgReduce(ArgReduce { largest: true, axis, keep: false, last: false });
        let rows: &[(&str, ElementType, &[usize])] = &[("y", ElementType::I64, &[2])];
        assert!(judged(top(1), rows, &[1, 2], &[2, 2]));
        assert!(!judged(top(1), rows, &[3, 2], &[2, 2]));
        assert!(!judged(top(1), rows, &[4, 2], &[2, 2]));
        assert!(!judged(top(1), rows, &[-1, 2], &[2, 2]));
        let columns: &[(&str, ElementType, &[usize])] = &[("y", ElementType::I64, &[4])];
        assert!(!judged(top(0), columns, &[0, 0, 0, 1], &[0, 0, 0, 0]));
    }

    #[test]
    fn of_the_best_places_each_is_named_once() {
        let top = || Op::TopK { axis: 1, largest: true };
        let outputs: &[(&str, ElementType, &[usize])] =
            &[("values", ElementType::F32, &[2, 2]), ("y", ElementType::I64, &[2, 2])];
        assert!(judged(top(), outputs, &[1, 2, 2, 3], &[2, 1, 2, 3]));
        assert!(!judged(top(), outputs, &[1, 1, 2, 3], &[2, 1, 2, 3]));
    }
}
