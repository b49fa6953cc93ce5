//! Graphs as PyTorch's exporter writes them.

use super::*;
use planforge_graph::ir::{Attention, ElementType};

const B: i64 = 2;
const H: i64 = 3;
const S: i64 = 5;
const D: i64 = 4;
const C: i64 = H * D;

#[test]
fn chains_of_moves_are_written_the_shortest_way() {
    let model = TestModel::new(17)
        .input("x", &[S, B, C])
        .longs("merged", &[S, B * H, D])
        .longs("split", &[B, H, S, D])
        .node("Reshape", &["x", "merged"], "a", vec![])
        .node("Transpose", &["a"], "b", vec![ints("perm", &[1, 0, 2])])
        .node("Reshape", &["b", "split"], "c", vec![])
        .node("Transpose", &["c"], "d", vec![ints("perm", &[0, 2, 1, 3])])
        .node("Relu", &["d"], "y", vec![])
        .output("y");
    let left = after(&model, &[moves::settle, dead::run]);
    assert_eq!(kinds(&left), ["transpose", "reshape", "activation"]);
}

#[test]
fn chains_that_cannot_be_told_apart_stay() {
    // 6 x 4 seen as 8 x 3: no axis of either is a part of one of the other.
    let model = TestModel::new(17)
        .input("x", &[6, 4])
        .longs("other", &[8, 3])
        .longs("back", &[4, 6])
        .node("Transpose", &["x"], "a", vec![ints("perm", &[1, 0])])
        .node("Reshape", &["a", "other"], "b", vec![])
        .node("Transpose", &["b"], "c", vec![ints("perm", &[1, 0])])
        .node("Reshape", &["c", "back"], "y", vec![])
        .output("y");
    let left = after(&model, &[moves::settle, dead::run]);
    assert_eq!(kinds(&left), ["transpose", "reshape", "transpose", "reshape"]);
}

/// An attention layer with the sequence first, queries, keys and values from one packed projection.
fn sequence_first() -> TestModel {
    let model = TestModel::new(17)
        .input("x", &[B, S, C])
        .floats("w.in", &[C as usize, 3 * C as usize], &numbers((3 * C * C) as usize))
        .floats("b.in", &[3 * C as usize], &numbers(3 * C as usize))
        .floats("w.out", &[C as usize, C as usize], &numbers((C * C) as usize))
        .floats("b.out", &[C as usize], &numbers(C as usize))
        .floats("scale", &[], &[0.5])
        .longs("packed", &[S, B, 3, C])
        .longs("first", &[0])
        .longs("last", &[-2])
        .longs("by head", &[S, B * H, D])
        .longs("heads", &[B, H, S, D])
        .longs("flat", &[S * B, C])
        .longs("deep", &[S, B, C])
        .node("Transpose", &["x"], "rows", vec![ints("perm", &[1, 0, 2])])
        .node("MatMul", &["rows", "w.in"], "product", vec![])
        .node("Add", &["product", "b.in"], "in", vec![])
        .node("Reshape", &["in", "packed"], "three", vec![])
        .node("Unsqueeze", &["three", "first"], "four", vec![])
        .node("Transpose", &["four"], "turned", vec![ints("perm", &[3, 1, 2, 0, 4])])
        .node("Squeeze", &["turned", "last"], "parts", vec![]);
    let model = ["q", "k", "v"].into_iter().zip(0i64..).fold(model, |model, (name, index)| {
        let [at, part, split, turned] = ["at", "part", "split", "turned"].map(|what| format!("{name}.{what}"));
        model
            .constant(&at, &Tensor::scalar(index))
            .node("Gather", &["parts", &at], &part, vec![])
            .node("Reshape", &[&part, "by head"], &split, vec![])
            .node("Transpose", &[&split], &turned, vec![ints("perm", &[1, 0, 2])])
            .node("Reshape", &[&turned, "heads"], name, vec![])
    });
    model
        .node("Transpose", &["k"], "k.t", vec![ints("perm", &[0, 1, 3, 2])])
        .node("Mul", &["q", "scale"], "q.scaled", vec![])
        .node("MatMul", &["q.scaled", "k.t"], "scores", vec![])
        .node("Softmax", &["scores"], "weights", vec![])
        .node("MatMul", &["weights", "v"], "context", vec![])
        .node("Transpose", &["context"], "joined", vec![ints("perm", &[2, 0, 1, 3])])
        .node("Reshape", &["joined", "flat"], "context.flat", vec![])
        .node("Gemm", &["context.flat", "w.out", "b.out"], "out", vec![int("transB", 1)])
        .node("Reshape", &["out", "deep"], "out.deep", vec![])
        .node("Transpose", &["out.deep"], "back", vec![ints("perm", &[1, 0, 2])])
        .node("Add", &["back", "x"], "y", vec![])
        .output("y")
}

#[test]
fn a_sequence_that_comes_first_is_moved_nowhere() {
    let before = sequence_first().import();
    let after = pipeline(before.clone(), Target::default()).expect("the passes keep the graph").graph;
    assert_same_meaning(&before, &after);
    let left: Vec<&str> = after.nodes.iter().map(|node| node.op.kind()).collect();
    assert_eq!(left, ["matmul", "slice", "slice", "slice", "attention", "matmul"], "{after}");
}

fn bools(shape: &[usize], values: &[bool]) -> Tensor {
    let bytes: Vec<u8> = values.iter().map(|&value| u8::from(value)).collect();
    Tensor::new(ElementType::Bool, shape.to_vec(), bytes.into()).expect("a value a place")
}

/// Attention whose padding mask is gathered by index and whose weights are guarded against rows of -inf alone.
fn guarded() -> TestModel {
    let places: Vec<i64> = (0..B).flat_map(|batch| (0..S).flat_map(move |at| [batch, at])).collect();
    let indices = Tensor::from_vec(vec![B as usize, 1, 1, S as usize, 2], places).expect("an index a place");
    let all = bools(&[1, 1, S as usize, 1], &[true; S as usize]);
    let model = TestModel::new(17)
        .input("x", &[B, S, C])
        .input_of("mask", ElementType::Bool, &[B, S])
        .constant("indices", &indices)
        .constant("all", &all)
        .constant("none", &Tensor::scalar(0f32))
        .constant("never", &Tensor::scalar(f32::NEG_INFINITY))
        .longs("split", &[B, S, H, D])
        .longs("join", &[B, S, C])
        .node("GatherND", &["mask", "indices"], "gathered", vec![])
        .node("And", &["all", "gathered"], "both", vec![])
        .node("Where", &["both", "none", "never"], "added", vec![])
        .node("Reshape", &["x", "split"], "heads", vec![])
        .node("Transpose", &["heads"], "q", vec![ints("perm", &[0, 2, 1, 3])])
        .node("Transpose", &["heads"], "k", vec![ints("perm", &[0, 2, 3, 1])]);
    model
        .node("MatMul", &["q", "k"], "scores", vec![])
        .node("Add", &["scores", "added"], "masked", vec![])
        .node("Softmax", &["masked"], "weights", vec![])
        .node("IsNaN", &["weights"], "none left", vec![])
        .node("Where", &["none left", "none", "weights"], "shares", vec![])
        .node("MatMul", &["shares", "q"], "context", vec![])
        .node("Transpose", &["context"], "joined", vec![ints("perm", &[0, 2, 1, 3])])
        .node("Reshape", &["joined", "join"], "y", vec![])
        .output("y")
}

#[test]
fn a_gathered_mask_stays_small_and_its_guard_joins_the_attention() {
    let before = guarded().import();
    let after = pipeline(before.clone(), Target::default()).expect("the passes keep the graph").graph;
    let left: Vec<Op> = after.nodes.iter().map(|node| node.op.clone()).collect();
    assert_eq!(kinds(&left), ["reshape", "where", "attention"]);
    assert_eq!(left[2], Op::Attention(Attention { heads: 3, scale: 1.0, guarded: true }));
    let mask = after.nodes[2].input(3).expect("a mask");
    assert_eq!(after.static_shape(mask), Some(vec![B as usize, 1, 1, S as usize]));
    // The first sequence has keys, the second has none at all.
    let mut given = inputs(&before);
    let keys = [true, true, false, true, false, false, false, false, false, false];
    given.insert("mask".into(), bools(&[B as usize, S as usize], &keys));
    let run = |graph| interpreter::execute(graph, &given).expect("the graph runs")["y"].to_f64s();
    let (expected, actual) = (run(&before), run(&after));
    assert!(expected.iter().zip(&actual).all(|(e, a)| (e - a).abs() <= BOUND * e.abs().max(1.0)), "{actual:?}");
    assert!(actual[(S * C) as usize..].iter().all(|value| *value == 0.0));
    assert!(actual[..(S * C) as usize].iter().any(|value| *value != 0.0));
}

#[test]
fn what_is_gathered_out_of_order_stays_gathered() {
    let indices = Tensor::from_vec(vec![3, 1], vec![0i64, 2, 1]).expect("three places");
    let model = TestModel::new(17)
        .input("x", &[3])
        .constant("indices", &indices)
        .node("GatherND", &["x", "indices"], "y", vec![])
        .output("y");
    assert_eq!(kinds(&after(&model, &[broadcasts::run])), ["gather_nd"]);
}

#[test]
fn a_slope_that_would_widen_what_it_is_applied_to_stays_behind_the_expansion() {
    let model = |from: &[i64], slope: &[usize]| {
        TestModel::new(17)
            .input("x", from)
            .longs("to", &[2, 3])
            .floats("slope", slope, &numbers(slope[0]))
            .node("Expand", &["x", "to"], "wide", vec![])
            .node("PRelu", &["wide", "slope"], "y", vec![])
            .output("y")
    };
    assert_eq!(kinds(&after(&model(&[2, 1], &[3]), &[broadcasts::run, dead::run])), ["expand", "binary"]);
    assert_eq!(kinds(&after(&model(&[1, 1], &[3]), &[broadcasts::run, dead::run])), ["expand", "binary"]);
    assert_eq!(kinds(&after(&model(&[2, 1], &[1]), &[broadcasts::run, dead::run])), ["binary", "expand"]);
}

#[test]
fn a_move_that_sinks_keeps_its_own_origins() {
    let perm = || vec![ints("perm", &[1, 0, 2])];
    let model = TestModel::new(17)
        .input("x", &[2, 3, 4])
        .node("Transpose", &["x"], "a", perm())
        .node("Relu", &["a"], "b", vec![])
        .node("Tanh", &["b"], "c", vec![])
        .node("Transpose", &["c"], "y", perm())
        .output("y");
    let before = model.import();
    let mut graph = before.clone();
    let record = apply(&mut graph, "test", sink::run).expect("a pass keeps the invariants");
    assert_same_meaning(&before, &graph);
    assert_eq!(graph.nodes[0].origins, ["make b"], "{graph}");
    assert_eq!(graph.nodes[1].origins, ["make c"], "{graph}");
    assert!(graph.nodes[2..].iter().all(|node| node.origins == ["make a"] || node.origins == ["make y"]), "{graph}");
    assert!(record.changes.iter().all(|change| change == "make b" || change == "make c"), "{:?}", record.changes);
}

#[test]
fn moves_sink_only_so_far() {
    const PAIRS: usize = 200;
    let perm = || vec![ints("perm", &[1, 0, 2])];
    let name = |at: usize| if at == 0 { "x".to_owned() } else { format!("v{at}") };
    let model = (0..PAIRS).fold(TestModel::new(17).input("x", &[2, 3, 4]), |model, at| {
        let turned = format!("t{at}");
        model.node("Transpose", &[&name(at)], &turned, perm()).node("Relu", &[&turned], &name(at + 1), vec![])
    });
    let before = model.node("Transpose", &[&name(PAIRS)], "y", perm()).output("y").import();
    let mut graph = before.clone();
    let record = apply(&mut graph, "test", sink::run).expect("a pass keeps the invariants");
    assert_same_meaning(&before, &graph);
    // Without a limit it would be about half the square of the pairs.
    assert!(record.changes.len() <= sink::MAX_ROUNDS * PAIRS, "{}", record.changes.len());
    let most = graph.nodes.iter().map(|node| node.origins.len()).max();
    assert_eq!(most, Some(1), "every node is one of the model's");
}
