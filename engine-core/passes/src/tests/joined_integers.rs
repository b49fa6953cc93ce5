//! Quantized operators joined into products of integers.

use super::*;
use planforge_graph::ir::ElementType;

const INTEGERS: Target = Target {
    integer_products: false,
    channel_slices: false,
    halves: false,
    exact_f32: true,
    integer_steps: true,
    unfused: false,
};

fn left(model: &TestModel, target: Target) -> Vec<String> {
    let graph = pipeline(model.import(), target).expect("the pipeline keeps the invariants").graph;
    graph.nodes.iter().map(|node| node.op.kind().to_owned()).collect()
}

fn model(activation: &str) -> TestModel {
    let weights = Tensor::new(ElementType::I8, vec![2, 3], vec![127, 5, 0, 128, 200, 64].into());
    TestModel::new(17)
        .input("x", &[4, 2])
        .constant("w", &weights.expect("values fill the shape"))
        .floats("w.scale", &[3], &[0.01, 0.02, 0.5])
        .floats("x.scale", &[], &[0.25])
        .floats("b", &[3], &[1.0, 2.0, 3.0])
        .constant("zero", &Tensor::scalar(3i8))
        .node("QuantizeLinear", &["x", "x.scale", "zero"], "x.q", vec![])
        .node("DequantizeLinear", &["x.q", "x.scale", "zero"], "x.d", vec![])
        .node("DequantizeLinear", &["w", "w.scale"], "w.d", vec![int("axis", 1)])
        .node("MatMul", &["x.d", "w.d"], "m", vec![])
        .node("Add", &["m", "b"], "s", vec![])
        .node(activation, &["s"], "a", vec![])
        .node("QuantizeLinear", &["a", "x.scale", "zero"], "y", vec![])
        .output("y")
}

#[test]
fn a_product_between_quantizations_is_one_operator() {
    assert_eq!(left(&model("Relu"), INTEGERS), ["quantize", "integer_product"]);
    // What is no limit stays between.
    assert_eq!(left(&model("Tanh"), INTEGERS), ["quantize", "integer_product", "activation", "quantize"]);
    // Somebody reads the floats.
    let read = model("Relu").output("a");
    assert_eq!(left(&read, INTEGERS), ["quantize", "integer_product", "activation", "quantize"]);
}

#[test]
fn other_targets_and_unfused_builds_keep_their_floats() {
    for target in [Target { integer_steps: false, ..INTEGERS }, Target { unfused: true, ..INTEGERS }] {
        assert!(!left(&model("Relu"), target).contains(&"integer_product".to_owned()), "{target:?}");
    }
}
