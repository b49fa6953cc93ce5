//! Computes in f32 what a model stores in halves, for backends whose kernels are for f32.
//!
//! Before: `x: f16 -> Conv(w: f16) -> Relu -> y: f16`.
//! After: `x -> Cast(f32) -> Conv(w: f32) -> Relu -> Cast(f16) -> y`, weights converted once, here.
//!
//! Inputs and outputs of the graph keep their types. Nothing is rounded between, so results are nearer to what the model
//! means than its own types allow. A graph of which some operator wants halves stays as it is.

use planforge_graph::{
    infer::check_graph,
    interpreter,
    ir::{ElementType, Graph, Node, Op, ValueId},
    shape::TensorType,
};
use std::collections::BTreeMap;

fn is_half(element: ElementType) -> bool {
    matches!(element, ElementType::F16 | ElementType::Bf16)
}

pub fn run(graph: &mut Graph, changes: &mut Vec<String>) {
    let computes = |node: &Node| node.outputs.iter().any(|&id| is_half(graph.value(id).element));
    if !graph.nodes.iter().any(computes) {
        return;
    }
    let before = graph.clone();
    match widen(graph) {
        Some(count) if graph.check().is_ok() && check_graph(graph).is_ok() => {
            changes.push(format!("{count} values of halves are computed in f32"));
        }
        _ => *graph = before,
    }
}

/// Gives every value of halves f32 in its place; how many there were.
fn widen(graph: &mut Graph) -> Option<usize> {
    let origin = |graph: &Graph, id: ValueId| vec![graph.value(id).name.clone()];
    let mut wide: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    let mut first = Vec::new();
    for id in graph.inputs.clone() {
        if is_half(graph.value(id).element) {
            let shape = graph.static_shape(id)?;
            let to = graph.add_value(format!("{}/f32", graph.value(id).name), ElementType::F32, &shape);
            let op = Op::Cast { to: ElementType::F32 };
            first.push(Node { op, inputs: vec![Some(id)], outputs: vec![to], origins: origin(graph, id) });
            wide.insert(id, to);
        }
    }
    let halves: Vec<ValueId> =
        graph.constants.iter().filter(|(_, tensor)| is_half(tensor.element())).map(|(&id, _)| id).collect();
    for id in halves {
        let tensor = graph.constant(id)?.clone();
        let to = TensorType::new(ElementType::F32, tensor.shape());
        let cast = interpreter::run(&Op::Cast { to: ElementType::F32 }, &[Some(&tensor)], &[to]).ok()?;
        let name = format!("{}/f32", graph.value(id).name);
        wide.insert(id, graph.add_constant(name, cast.into_iter().next()?));
    }
    let mut nodes = std::mem::take(&mut graph.nodes);
    let mut count = wide.len();
    let mut last = Vec::new();
    for node in &mut nodes {
        for &id in &node.outputs {
            let element = graph.value(id).element;
            if !is_half(element) {
                continue;
            }
            count += 1;
            // What leaves the graph keeps its type, and its value: others read the wide one.
            let leaves = graph.outputs.iter().any(|output| output.value == id);
            let shape = graph.static_shape(id)?;
            let to = graph.add_value(format!("{}/f32", graph.value(id).name), ElementType::F32, &shape);
            wide.insert(id, to);
            if leaves {
                let op = Op::Cast { to: element };
                last.push(Node { op, inputs: vec![Some(to)], outputs: vec![id], origins: node.origins.clone() });
            }
        }
        for id in node.inputs.iter_mut().flatten().chain(&mut node.outputs) {
            *id = wide.get(id).copied().unwrap_or(*id);
        }
        if let Op::Cast { to } = &mut node.op
            && is_half(*to)
        {
            *to = ElementType::F32;
        }
    }
    graph.nodes = first.into_iter().chain(nodes).chain(last).collect();
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_graph::ir::Tensor;
    use planforge_import::testing::{TestModel, int, numbers};

    fn halves(shape: &[usize], values: &[f32]) -> Tensor {
        let wide = Tensor::from_vec(shape.to_vec(), values.to_vec()).unwrap();
        let to = TensorType::new(ElementType::F16, shape);
        interpreter::run(&Op::Cast { to: ElementType::F16 }, &[Some(&wide)], &[to]).unwrap().remove(0)
    }

    /// Typed halves throughout, and weights of halves that are cast where they are used.
    fn models() -> [(&'static str, TestModel); 2] {
        let w = halves(&[6, 4], &numbers(24));
        let typed = TestModel::new(17)
            .input_of("x", ElementType::F16, &[3, 6])
            .constant("w", &w)
            .node("MatMul", &["x", "w"], "p", vec![])
            .node("Softmax", &["p"], "s", vec![int("axis", -1)])
            .node("Add", &["s", "p"], "y", vec![])
            .output("s")
            .output("y");
        let stored = TestModel::new(17)
            .input("x", &[3, 6])
            .constant("w", &w)
            .node("Cast", &["w"], "wide", vec![int("to", 1)])
            .node("MatMul", &["x", "wide"], "y", vec![])
            .output("y");
        [("typed", typed), ("stored", stored)]
    }

    #[test]
    fn only_edges_are_halves_and_results_are_nearer_than_a_half() {
        for (name, model) in models() {
            let before = model.import();
            let element = before.value(before.inputs[0]).element;
            let mut x = Tensor::from_vec(vec![3, 6], numbers(18)).unwrap();
            if is_half(element) {
                x = halves(&[3, 6], &numbers(18));
            }
            let inputs = BTreeMap::from([("x".to_owned(), x)]);
            let expected = interpreter::execute(&before, &inputs).unwrap();
            let after = crate::pipeline(before, crate::Target::default()).unwrap().graph;
            for node in after.nodes.iter().filter(|node| !matches!(node.op, Op::Cast { .. })) {
                let all = node.inputs.iter().flatten().chain(&node.outputs);
                assert!(all.into_iter().all(|&id| !is_half(after.value(id).element)), "{name}: {:?}", node.op);
            }
            let got = interpreter::execute(&after, &inputs).unwrap();
            for (output, expected) in &expected {
                assert_eq!(got[output].element(), expected.element(), "{name}");
                for (got, expected) in got[output].to_f64s().iter().zip(expected.to_f64s()) {
                    assert!(
                        (got - expected).abs() <= 2e-3 * expected.abs().max(1.0),
                        "{name}: {got} is not {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_target_with_kernels_for_halves_keeps_them() {
        let [(_, typed), _] = models();
        let target = crate::Target { halves: true, ..crate::Target::default() };
        let graph = crate::pipeline(typed.import(), target).unwrap().graph;
        assert!(graph.nodes.iter().all(|node| !matches!(node.op, Op::Cast { .. })));
    }
}
