//! Which values are quantised by which scale, for who runs the model.

use planforge_import::testing::{TestModel, int, ints, numbers};
use planforge_onnx::Model;
use planforge_precision::{Kind, Options, Prepared, Reference, Samples, Target, ports, prepare};
use planforge_types::{ElementType, HostTensor, NamedTensors};
use std::collections::BTreeMap;

/// Two convolutions of one image, the second's values ten times as large, joined and read by a third; with `read`, the first
/// one's are read by another as well.
fn joined(read: bool) -> Model {
    let large: Vec<f32> = numbers(24).into_iter().map(|value| 10.0 * value).collect();
    let model = TestModel::new(17)
        .input("x", &[1, 3, 6, 6])
        .floats("a", &[8, 3, 1, 1], &numbers(24))
        .floats("b", &[8, 3, 1, 1], &large)
        .floats("c", &[4, 16, 1, 1], &numbers(64))
        .node("Conv", &["x", "a"], "ca", vec![])
        .node("Relu", &["ca"], "ra", vec![])
        .node("Conv", &["x", "b"], "cb", vec![])
        .node("Relu", &["cb"], "rb", vec![])
        .node("Concat", &["ra", "rb"], "both", vec![int("axis", 1)])
        .node("Conv", &["both", "c"], "y", vec![])
        .output("y");
    match read {
        true => {
            model.floats("d", &[4, 8, 1, 1], &numbers(32)).node("Conv", &["ra", "d"], "z", vec![]).output("z").model()
        }
        false => model.model(),
    }
}

fn prepared(model: &Model, target: Target) -> Prepared {
    let values: Vec<f32> = numbers(20 * 3 * 36);
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let rows = HostTensor { element: ElementType::F32, shape: vec![20, 3, 6, 6], bytes };
    let samples = Samples::fit(NamedTensors::from([("x".to_owned(), rows)]), &ports(model)).unwrap();
    prepare(model, Some(&samples), None, &Options::new(Kind::Int8, target), &Reference).unwrap()
}

/// The scale by which each value is quantised.
fn scales(model: &Model, target: Target) -> BTreeMap<String, f32> {
    let graph = prepared(model, target).proto.graph.unwrap();
    let stored = |name: &str| {
        let tensor = graph.initializer.iter().find(|tensor| tensor.name == name).unwrap();
        f32::from_le_bytes(tensor.raw_data[..4].try_into().unwrap())
    };
    let quantised = graph.node.iter().filter(|node| node.op_type == "QuantizeLinear");
    quantised.map(|node| (node.input[0].clone(), stored(&node.input[1]))).collect()
}

#[test]
fn what_is_joined_for_onnx_runtime_takes_the_scale_of_the_whole_unless_others_read_it() {
    let joined_by = |target, read| {
        let scales = scales(&joined(read), target);
        ["ra", "rb", "both"].map(|value| scales[value])
    };
    let [small, large, whole] = joined_by(Target::OnnxRuntime, false);
    assert!(small == whole && large == whole, "{small} {large} {whole}");
    let [small, large, whole] = joined_by(Target::OnnxRuntime, true);
    assert!(small < whole / 5.0 && large == whole, "{small} {large} {whole}");
    let [small, _, whole] = joined_by(Target::Cpu, false);
    assert!(small < whole / 5.0, "for others each keeps what it has: {small} {whole}");
}

#[test]
fn a_pool_that_is_joined_keeps_the_scale_of_what_it_reads() {
    let large: Vec<f32> = numbers(64).into_iter().map(|value| 10.0 * value).collect();
    let pool = vec![ints("kernel_shape", &[3, 3]), ints("pads", &[1; 4])];
    let model = TestModel::new(17)
        .input("x", &[1, 3, 6, 6])
        .floats("a", &[8, 3, 1, 1], &numbers(24))
        .floats("b", &[8, 8, 1, 1], &large)
        .floats("c", &[4, 16, 1, 1], &numbers(64))
        .node("Conv", &["x", "a"], "ca", vec![])
        .node("Relu", &["ca"], "ra", vec![])
        .node("MaxPool", &["ra"], "pool", pool)
        .node("Conv", &["ra", "b"], "cb", vec![])
        .node("Relu", &["cb"], "rb", vec![])
        .node("Concat", &["pool", "rb"], "both", vec![int("axis", 1)])
        .node("Conv", &["both", "c"], "y", vec![])
        .output("y")
        .model();
    let scales = scales(&model, Target::OnnxRuntime);
    assert_eq!((scales["pool"], scales["rb"]), (scales["ra"], scales["both"]), "{scales:?}");
    assert!(scales["ra"] < scales["both"] / 5.0, "{scales:?}");
}

#[test]
fn a_cache_has_a_scale_for_an_input_that_an_activation_alone_reads() {
    let model = TestModel::new(17)
        .input("x", &[1, 3, 6, 6])
        .floats("a", &[8, 3, 1, 1], &numbers(24))
        .node("Relu", &["x"], "r", vec![])
        .node("Conv", &["r", "a"], "c", vec![])
        .node("Relu", &["c"], "y", vec![])
        .output("y")
        .model();
    let scales = prepared(&model, Target::TensorRt).scales;
    assert!(["x", "r", "c", "y"].iter().all(|value| scales.contains_key(*value)), "{scales:?}");
    assert_eq!(scales["c"], scales["y"], "what lies before an activation is cut as it cuts it");
    assert!(prepared(&model, Target::Cpu).scales.is_empty());
}

/// A layer of attention of two heads: products with weights before and behind it, with everything in pieces. Scores are
/// divided by a number or, `before`, queries and keys multiplied by one.
fn transformer(before: bool) -> Model {
    let mut model = TestModel::new(17)
        .input("x", &[1, 6, 8])
        .floats("half", &[], &[0.5])
        .floats("factor", &[1], &[1.3])
        .longs("split", &[1, 6, 2, 4])
        .longs("join", &[1, 6, 8]);
    for (name, perm) in [("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])] {
        let [weight, bias, product, sum, split] = ["w", "b", "p", "s", "r"].map(|part| format!("{name}.{part}"));
        model = model
            .floats(&weight, &[8, 8], &numbers(64))
            .floats(&bias, &[8], &numbers(8))
            .node("MatMul", &["x", &weight], &product, vec![])
            .node("Add", &[&product, &bias], &sum, vec![])
            .node("Reshape", &[&sum, "split"], &split, vec![])
            .node("Transpose", &[&split], &format!("{name}.t"), vec![ints("perm", &perm)]);
        let multiplied = before && name != "v";
        model = match multiplied {
            true => model.node("Mul", &[&format!("{name}.t"), "factor"], name, vec![]),
            false => model.node("Identity", &[&format!("{name}.t")], name, vec![]),
        };
    }
    model = model.node("MatMul", &["q", "k"], "scores", vec![]);
    let scores = if before { "scores" } else { "scaled" };
    if !before {
        model = model.node("Div", &["scores", "half"], "scaled", vec![]);
    }
    model
        .floats("o.w", &[8, 8], &numbers(64))
        .node("Softmax", &[scores], "weights", vec![int("axis", -1)])
        .node("MatMul", &["weights", "v"], "context", vec![])
        .node("Transpose", &["context"], "turned", vec![ints("perm", &[0, 2, 1, 3])])
        .node("Reshape", &["turned", "join"], "joined", vec![])
        .node("MatMul", &["joined", "o.w"], "y", vec![])
        .output("y")
        .model()
}

fn attended(model: &Model, target: Target, keep: &[&str]) -> Prepared {
    let bytes = numbers(30 * 48).iter().flat_map(|value| value.to_le_bytes()).collect();
    let rows = HostTensor { element: ElementType::F32, shape: vec![30, 6, 8], bytes };
    let samples = Samples::fit(NamedTensors::from([("x".to_owned(), rows)]), &ports(model)).unwrap();
    let options =
        Options { keep: keep.iter().map(|&name| name.to_owned()).collect(), ..Options::new(Kind::Int8, target) };
    prepare(model, Some(&samples), None, &options, &Reference).unwrap()
}

#[test]
fn what_queries_and_keys_are_multiplied_by_goes_into_the_layers_that_make_them() {
    let muls = |target: Target| {
        let prepared = attended(&transformer(true), target, &[]);
        let loss = prepared.report.measured.as_ref().map(|measured| measured.relative_rms).unwrap();
        assert!(loss < 0.1, "{loss}");
        let graph = prepared.proto.graph.unwrap();
        let count = graph.node.iter().filter(|node| node.op_type == "Mul").count();
        let quantised = graph.node.iter().filter(|node| node.op_type == "QuantizeLinear");
        (count, quantised.map(|node| node.input[0].clone()).collect::<Vec<_>>(), prepared.report.folded)
    };
    let (count, quantised, folded) = muls(Target::Cpu);
    assert_eq!((count, folded), (0, vec!["make q".to_owned(), "make k".to_owned()]));
    assert!(
        ["q.s", "q.t", "k.t", "weights"].iter().all(|value| quantised.contains(&(*value).to_owned())),
        "{quantised:?}"
    );
    let (count, _, folded) = muls(Target::Any);
    assert_eq!((count, folded.len()), (2, 0));
}

#[test]
fn attention_between_layers_of_integers_is_one_of_integers_for_our_engines() {
    let quantised = |target: Target, keep: &[&str]| {
        let prepared = attended(&transformer(false), target, keep);
        let loss = prepared.report.measured.as_ref().map(|measured| measured.relative_rms).unwrap();
        assert!(loss < 0.1, "{loss}");
        let nodes = prepared.proto.graph.unwrap().node.into_iter();
        nodes.filter(|node| node.op_type == "QuantizeLinear").map(|node| node.input[0].clone()).collect::<Vec<_>>()
    };
    let products = ["q", "k", "v", "weights", "context"].map(str::to_owned);
    let whole = quantised(Target::Cpu, &[]);
    assert!(products.iter().all(|value| whole.contains(value)), "{whole:?}");
    // Numbers that are only moved keep the scale that they have.
    assert!(
        ["q.s", "q.r", "k.r", "turned", "joined"].iter().all(|value| whole.contains(&(*value).to_owned())),
        "{whole:?}"
    );
    for target in [Target::Any, Target::OnnxRuntime, Target::TensorRt] {
        let others = quantised(target, &[]);
        assert!(!products.iter().any(|value| others.contains(value)), "{target:?}: {others:?}");
    }
    // With a layer beside it that stays single precision, or returns to it, the products do, too.
    for kept in ["make k.p", "make y"] {
        let rest = quantised(Target::Cpu, &[kept]);
        assert!(!rest.contains(&"weights".to_owned()) && !rest.contains(&"scores".to_owned()), "{kept}: {rest:?}");
    }
}
