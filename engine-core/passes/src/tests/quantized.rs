//! Quantization and its way back.

use super::*;
use planforge_graph::ir::Quantization;

fn model() -> TestModel {
    let weights = Tensor::new(planforge_graph::ir::ElementType::I8, vec![2, 3], vec![127, 5, 0, 128, 200, 64].into());
    TestModel::new(17)
        .input("x", &[4, 2])
        .constant("w", &weights.expect("values fill the shape"))
        .floats("w.scale", &[3], &[0.01, 0.02, 0.5])
        .floats("x.scale", &[], &[0.25])
        .constant("zero", &Tensor::scalar(3i8))
        .node("QuantizeLinear", &["x", "x.scale", "zero"], "x.q", vec![])
        .node("DequantizeLinear", &["x.q", "x.scale", "zero"], "x.d", vec![])
        .node("DequantizeLinear", &["w", "w.scale"], "w.d", vec![int("axis", 1)])
        .node("MatMul", &["x.d", "w.d"], "y", vec![])
}

#[test]
fn a_trip_becomes_one_operator_and_weights_become_floats() {
    let how = Quantization { element: planforge_graph::ir::ElementType::I8, axis: None };
    let left = after(&model().output("y"), &[constants::run, quantization::run, dead::run]);
    assert_eq!(left, [Op::FakeQuantize(how), Op::MatMul(MatMul::default())]);
    // The integers are an output of their own.
    let shared = after(&model().output("y").output("x.q"), &[quantization::run, dead::run]);
    assert_eq!(kinds(&shared), ["quantize", "fake_quantize", "matmul"]);
}

#[test]
fn a_second_trip_changes_nothing() {
    let twice = model()
        .node("QuantizeLinear", &["x.d", "x.scale", "zero"], "again.q", vec![])
        .node("DequantizeLinear", &["again.q", "x.scale", "zero"], "again", vec![])
        .output("again");
    assert_eq!(kinds(&after(&twice, &[quantization::run, dead::run])), ["fake_quantize"]);
}

#[test]
fn other_steps_on_the_way_back_keep_both_operators() {
    let other = model()
        .floats("other", &[], &[0.5])
        .node("DequantizeLinear", &["x.q", "other", "zero"], "z", vec![])
        .output("z");
    assert_eq!(kinds(&after(&other, &[quantization::run, dead::run])), ["quantize", "dequantize"]);
}

#[test]
fn a_backend_with_integer_products_keeps_the_integers() {
    let target = Target { integer_products: true, ..Target::default() };
    let graph = pipeline(model().output("y").import(), target).expect("the pipeline keeps the invariants").graph;
    let left: Vec<Op> = graph.nodes.into_iter().map(|node| node.op).collect();
    assert_eq!(kinds(&left), ["quantize", "dequantize", "dequantize", "matmul"]);
}
