//! Double precision: a constant goes into an operator only where the operator's single precision holds it.

use super::*;
use planforge_graph::ir::ValueId;

/// What a pass leaves of the model in double precision, its scalar constant `name` having another value.
fn left(model: &TestModel, name: &str, value: f64, pass: Pass) -> Vec<String> {
    let mut graph = random::in_double(&model.import());
    let at = graph.values.iter().position(|value| value.name == name).expect("the constant has its name");
    graph.constants.insert(ValueId(at as u32), Tensor::scalar(value));
    apply(&mut graph, "test", pass).expect("a pass keeps the invariants");
    graph.nodes.iter().map(|node| node.op.kind().to_owned()).collect()
}

#[test]
fn a_scaling_that_single_precision_rounds_stays() {
    let behind = matmul_model().floats("c", &[], &[1.0]).node("Mul", &["m", "c"], "y", vec![]).output("y");
    assert_eq!(left(&behind, "c", 0.5, scale::run), ["matmul"]);
    assert_eq!(left(&behind, "c", 0.1, scale::run), ["matmul", "binary"]);
    let before = TestModel::new(17)
        .input("x", &[2, 3])
        .floats("w", &[3, 5], &numbers(15))
        .floats("c", &[], &[1.0])
        .node("Div", &["x", "c"], "s", vec![])
        .node("MatMul", &["s", "w"], "y", vec![])
        .output("y");
    assert_eq!(left(&before, "c", 8.0, scale::run), ["matmul"]);
    assert_eq!(left(&before, "c", 3.0, scale::run), ["binary", "matmul"]);
}

#[test]
fn an_epsilon_that_single_precision_rounds_stays() {
    let model = primitive_layer_norm().output("n");
    assert_eq!(left(&model, "epsilon", 1.0 / 65536.0, layer_norm::run), ["layer_norm"]);
    assert_eq!(left(&model, "epsilon", 1e-5, layer_norm::run).len(), 7);
}
