//! Attention between quantizations.

use super::*;
use planforge_graph::ir::ElementType;

const INTEGERS: Target = Target { exact_f32: true, integer_steps: true, ..PLAIN };
const PLAIN: Target = Target {
    integer_products: false,
    channel_slices: false,
    halves: false,
    exact_f32: false,
    integer_steps: false,
    unfused: false,
};

/// What is put between the products, and whether the result is quantized.
#[derive(Clone, Copy)]
struct Form {
    divided: bool,
    masked: bool,
    result: bool,
    /// Scale and zero point of the weights on their way back.
    back: (f32, u8),
}

const WHOLE: Form = Form { divided: true, masked: true, result: true, back: (1.0 / 255.0, 0) };

fn trip(model: TestModel, value: &str, scale: &str, zero: &str) -> TestModel {
    let [there, back] = [format!("{value}.q"), format!("{value}.d")];
    model.node("QuantizeLinear", &[value, scale, zero], &there, vec![]).node(
        "DequantizeLinear",
        &[&there, scale, zero],
        &back,
        vec![],
    )
}

/// Two heads of five queries and seven keys, their rows side by side as layers give them.
fn model(form: Form) -> TestModel {
    let heads = |model: TestModel, value: &str, perm: &[i64]| {
        let [split, turned] = [format!("{value}.s"), format!("{value}.h")];
        let from = format!("{value}.d");
        let model = model.node("Reshape", &[&from, "split"], &split, vec![]);
        let model = trip(model, &split, "scale", "zero");
        let model = model.node("Transpose", &[&format!("{split}.d")], &turned, vec![ints("perm", perm)]);
        trip(model, &turned, "scale", "zero")
    };
    let mut model = TestModel::new(17)
        .input("q", &[1, 5, 8])
        .input("k", &[1, 7, 8])
        .input("v", &[1, 7, 8])
        .input("mask", &[1, 1, 1, 7])
        .constant("split", &Tensor::from_vec(vec![4], vec![1i64, -1, 2, 4]).expect("four"))
        .constant("zero", &Tensor::scalar(130u8))
        .constant("none", &Tensor::scalar(0u8))
        .constant("back", &Tensor::scalar(form.back.1))
        .floats("scale", &[], &[0.01])
        .floats("weight", &[], &[1.0 / 255.0])
        .floats("weight.back", &[], &[form.back.0])
        .floats("two", &[], &[2.0]);
    for (value, perm) in [("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])] {
        model = heads(trip(model, value, "scale", "zero"), value, &perm);
    }
    model = model.node("MatMul", &["q.h.d", "k.h.d"], "scores", vec![]);
    let mut scores = "scores";
    if form.divided {
        model = model.node("Div", &[scores, "two"], "divided", vec![]);
        scores = "divided";
    }
    if form.masked {
        model = model.node("Add", &["mask", scores], "masked", vec![]);
        scores = "masked";
    }
    model = model
        .node("Softmax", &[scores], "w", vec![int("axis", -1)])
        .node("QuantizeLinear", &["w", "weight", "none"], "w.q", vec![])
        .node("DequantizeLinear", &["w.q", "weight.back", "back"], "w.d", vec![])
        .node("MatMul", &["w.d", "v.h.d"], "y", vec![]);
    if form.result { trip(model, "y", "scale", "zero").output("y.q") } else { model.output("y") }
}

fn kinds_of(form: Form, target: Target) -> Vec<String> {
    let before = model(form).import();
    let graph = pipeline(before.clone(), target).expect("the pipeline keeps the invariants").graph;
    // A weight on the edge between two steps may fall to the other side, and with it what is summed.
    let given = inputs(&before);
    let [want, got] = [&before, &graph].map(|graph| interpreter::execute(graph, &given).expect("it runs"));
    for (name, want) in want {
        let step = if want.element() == ElementType::U8 { 1.0 } else { 0.01 };
        let apart = want.to_f64s().into_iter().zip(got[&name].to_f64s()).map(|(a, b)| (a - b).abs());
        assert!(apart.fold(0.0, f64::max) <= step, "{name}\n{graph}");
    }
    graph.nodes.iter().map(|node| node.op.kind().to_owned()).collect()
}

fn count(kinds: &[String], kind: &str) -> usize {
    kinds.iter().filter(|of| *of == kind).count()
}

#[test]
fn attention_between_quantizations_is_one_operator_of_integers() {
    for divided in [false, true] {
        for masked in [false, true] {
            for result in [false, true] {
                let kinds = kinds_of(Form { divided, masked, result, ..WHOLE }, INTEGERS);
                assert_eq!(count(&kinds, "integer_attention"), 1, "{kinds:?}");
                // Queries, keys and values are quantized and then moved as bytes.
                assert_eq!(count(&kinds, "quantize"), 3, "{kinds:?}");
                let floats = ["matmul", "softmax", "dequantize", "fake_quantize", "attention"];
                assert!(floats.iter().all(|kind| count(&kinds, kind) == 0), "{kinds:?}");
            }
        }
    }
}

#[test]
fn keys_lie_as_they_were_made() {
    let graph = pipeline(model(WHOLE).import(), INTEGERS).expect("the pipeline keeps the invariants").graph;
    let of = graph.nodes.iter().find(|node| node.op.kind() == "integer_attention").expect("an attention");
    let Op::Named(named) = &of.op else { unreachable!() };
    let keys = graph.static_shape(of.input(1).expect("keys"));
    assert_eq!((named.flag("turned"), keys), (false, Some(vec![1, 2, 7, 4])));
}

#[test]
fn weights_that_come_back_by_another_scale_and_other_targets_stay_floats() {
    for back in [(1.0 / 127.0, 0), (1.0 / 255.0, 3)] {
        assert_eq!(count(&kinds_of(Form { back, ..WHOLE }, INTEGERS), "integer_attention"), 0);
    }
    for target in [PLAIN, Target { unfused: true, ..INTEGERS }] {
        assert_eq!(count(&kinds_of(WHOLE, target), "integer_attention"), 0);
    }
}
