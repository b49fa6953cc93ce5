//! Attention in the ways models spell it.

use super::*;
use planforge_graph::ir::Attention;

/// Batch, heads, tokens, width of a head.
const B: i64 = 2;
const H: i64 = 3;
const S: i64 = 5;
const D: i64 = 4;

/// `x` (B,S,H D) seen as heads; the operand `name` is a transpose of it.
fn heads(model: TestModel, name: &str, perm: &[i64]) -> TestModel {
    let (flat, split) = (format!("{name}.flat"), format!("{name}.split"));
    model
        .floats(&format!("{name}.w"), &[(H * D) as usize; 2], &numbers((H * D * H * D) as usize))
        .node("MatMul", &["x", &format!("{name}.w")], &flat, vec![])
        .node("Reshape", &[&flat, "split"], &split, vec![])
        .node("Transpose", &[&split], name, vec![ints("perm", perm)])
}

fn start() -> TestModel {
    TestModel::new(17).input("x", &[B, S, H * D]).longs("split", &[B, S, H, D]).longs("join", &[B, S, H * D]).floats(
        "scale",
        &[],
        &[0.5],
    )
}

fn joined(model: TestModel) -> TestModel {
    model
        .node("Transpose", &["context"], "context.t", vec![ints("perm", &[0, 2, 1, 3])])
        .node("Reshape", &["context.t", "join"], "y", vec![])
        .output("y")
}

/// The passes up to what the recovery leaves behind.
const RECOVERY: &[Pass] = &[scale::run, attention::run, slices::run, moves::settle, dead::run];

#[test]
fn heads_and_mask_become_one_operator() {
    let model = start().input("mask", &[B, 1, 1, S]);
    let model = heads(model, "q", &[0, 2, 1, 3]);
    let model = heads(model, "k", &[0, 2, 3, 1]);
    let model = heads(model, "v", &[0, 2, 1, 3])
        .node("Mul", &["q", "scale"], "q.scaled", vec![])
        .node("MatMul", &["q.scaled", "k"], "scores", vec![])
        .node("Add", &["mask", "scores"], "masked", vec![])
        .node("Softmax", &["masked"], "weights", vec![])
        .node("MatMul", &["weights", "v"], "context", vec![]);
    let left = after(&joined(model), RECOVERY);
    assert_eq!(kinds(&left), ["matmul", "matmul", "matmul", "attention"]);
    assert_eq!(left[3], Op::Attention(Attention { heads: 3, scale: 0.5, guarded: false }));
}

#[test]
fn a_packed_projection_is_read_where_it_lies() {
    let model = TestModel::new(17)
        .input("x", &[B, S, 3 * H * D])
        .longs("split", &[B, S, 3, H, D])
        .longs("join", &[B, S, H * D])
        .constant("0", &Tensor::scalar(0i64))
        .constant("1", &Tensor::scalar(1i64))
        .constant("2", &Tensor::scalar(-1i64))
        .node("Reshape", &["x", "split"], "five", vec![])
        .node("Transpose", &["five"], "packed", vec![ints("perm", &[2, 0, 3, 1, 4])])
        .node("Gather", &["packed", "0"], "q", vec![])
        .node("Gather", &["packed", "1"], "k", vec![])
        .node("Gather", &["packed", "2"], "v", vec![])
        .node("Transpose", &["k"], "k.t", vec![ints("perm", &[0, 1, 3, 2])])
        .node("MatMul", &["q", "k.t"], "scores", vec![])
        .node("Softmax", &["scores"], "weights", vec![])
        .node("MatMul", &["weights", "v"], "context", vec![]);
    assert_eq!(kinds(&after(&joined(model), RECOVERY)), ["slice", "slice", "slice", "attention"]);
}

#[test]
fn attention_of_one_head_needs_no_moves() {
    let model = TestModel::new(17)
        .input("q", &[B, S, D])
        .input("k", &[B, D, S + 1])
        .input("v", &[B, S + 1, D])
        .input("mask", &[B, S, S + 1])
        .floats("scale", &[], &[2.0])
        .node("MatMul", &["q", "k"], "scores", vec![])
        .node("Div", &["scores", "scale"], "scaled", vec![])
        .node("Add", &["scaled", "mask"], "masked", vec![])
        .node("Softmax", &["masked"], "weights", vec![])
        .node("MatMul", &["weights", "v"], "y", vec![])
        .output("y");
    assert_eq!(kinds(&after(&model, RECOVERY)), ["transpose", "reshape", "attention"]);
}

#[test]
fn what_is_not_attention_stays() {
    let parts = |perm_of_softmax: i64| {
        TestModel::new(17)
            .input("q", &[B, S, D])
            .input("k", &[B, D, S])
            .input("v", &[B, S, D])
            .node("MatMul", &["q", "k"], "scores", vec![])
            .node("Softmax", &["scores"], "weights", vec![int("axis", perm_of_softmax)])
            .node("MatMul", &["weights", "v"], "y", vec![])
            .output("y")
    };
    let has_attention = |model: &TestModel| kinds(&after(model, RECOVERY)).iter().any(|kind| kind == "attention");
    assert!(has_attention(&parts(-1)));
    assert!(!has_attention(&parts(1)), "softmax over the queries");
    assert!(!has_attention(&parts(-1).output("weights")), "somebody reads the weights");
    assert!(!has_attention(&parts(-1).output("scores")), "somebody reads the scores");
    let shared_keys = TestModel::new(17)
        .input("q", &[B, H, S, D])
        .input("k", &[1, H, D, S])
        .input("v", &[B, H, S, D])
        .node("MatMul", &["q", "k"], "scores", vec![])
        .node("Softmax", &["scores"], "weights", vec![])
        .node("MatMul", &["weights", "v"], "y", vec![])
        .output("y");
    assert!(!has_attention(&shared_keys), "keys are broadcast over the batch");
}
