//! Products of the same operand.

use super::*;

fn three_products() -> TestModel {
    let weights = |columns: usize| numbers(4 * columns);
    TestModel::new(17)
        .input("x", &[2, 3, 4])
        .floats("a.w", &[4, 4], &weights(4))
        .floats("b.w", &[4, 4], &weights(4))
        .floats("c.w", &[4, 6], &weights(6))
        .floats("a.b", &[4], &numbers(4))
        .floats("b.b", &[4], &numbers(4))
        .node("MatMul", &["x", "a.w"], "a.p", vec![])
        .node("MatMul", &["x", "b.w"], "b.p", vec![])
        .node("MatMul", &["x", "c.w"], "c", vec![])
        .node("Add", &["a.p", "a.b"], "a", vec![])
        .node("Add", &["b.p", "b.b"], "b", vec![])
}

#[test]
fn products_with_a_bias_are_computed_together_and_those_without_apart() {
    let model = three_products().output("a").output("b").output("c");
    let left = after(&model, &[bias::run, parallel::run_all]);
    assert_eq!(kinds(&left), ["matmul", "matmul", "split"]);
    // No attention reads them, so a backend that must copy parts leaves them alone.
    assert_eq!(kinds(&after(&model, &[bias::run, parallel::run])), ["matmul"; 3]);
}

#[test]
fn queries_keys_and_values_are_one_product() {
    let model = TestModel::new(17)
        .input("x", &[2, 3, 4])
        .floats("q.w", &[4, 4], &numbers(16))
        .floats("k.w", &[4, 4], &numbers(17)[1..])
        .floats("v.w", &[4, 4], &numbers(18)[2..])
        .node("MatMul", &["x", "q.w"], "q", vec![])
        .node("MatMul", &["x", "k.w"], "k", vec![])
        .node("MatMul", &["x", "v.w"], "v", vec![])
        .node("Transpose", &["k"], "k.t", vec![ints("perm", &[0, 2, 1])])
        .node("MatMul", &["q", "k.t"], "scores", vec![])
        .node("Softmax", &["scores"], "weights", vec![])
        .node("MatMul", &["weights", "v"], "y", vec![])
        .output("y");
    let left = after(&model, &[attention::run, moves::settle, dead::run, parallel::run]);
    assert_eq!(kinds(&left), ["matmul", "split", "attention"]);
}

#[test]
fn convolutions_of_one_pixel_are_computed_together() {
    let model = TestModel::new(17)
        .input("x", &[1, 2, 5, 5])
        .floats("a.w", &[3, 2, 1, 1], &numbers(6))
        .floats("b.w", &[4, 2, 1, 1], &numbers(8))
        .floats("c.w", &[4, 2, 3, 3], &numbers(72))
        .node("Conv", &["x", "a.w"], "a", vec![ints("strides", &[2, 2])])
        .node("Conv", &["x", "b.w"], "b", vec![ints("strides", &[2, 2])])
        .node("Conv", &["x", "c.w"], "c", vec![])
        .output("a")
        .output("b")
        .output("c");
    assert_eq!(kinds(&after(&model, &[parallel::run_all])), ["conv", "split", "conv"]);
}
