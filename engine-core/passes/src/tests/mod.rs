//! Every pass leaves the meaning alone, and does what its file says.

mod caches;
mod doubles;
mod exported;
mod integer_attention;
mod joined_integers;
mod merged_products;
mod names;
mod plans;
mod quantized;
mod random;
mod recovered_attention;
mod taps;

use super::*;
use planforge_graph::{
    interpreter,
    ir::{Activation, Conv, Epilogue, GeluForm, MatMul, Op, Tensor},
};
use planforge_import::testing::{TestModel, float, int, ints, numbers};
use std::collections::BTreeMap;

/// Largest difference a pass may make, relative to the output's scale: a few roundings of f32.
const BOUND: f64 = 1e-5;

fn inputs(graph: &Graph) -> BTreeMap<String, Tensor> {
    graph
        .inputs
        .iter()
        .map(|&id| {
            let shape = graph.static_shape(id).expect("tests have static shapes");
            let values = numbers(shape.iter().product());
            (graph.value(id).name.clone(), Tensor::from_vec(shape, values).expect("values fill the shape"))
        })
        .collect()
}

/// Asserts that both graphs give the same outputs.
fn assert_same_meaning(before: &Graph, after: &Graph) {
    let inputs = inputs(before);
    let expected = interpreter::execute(before, &inputs).expect("the graph before runs");
    let actual = interpreter::execute(after, &inputs).expect("the graph after runs");
    assert_eq!(expected.keys().collect::<Vec<_>>(), actual.keys().collect::<Vec<_>>());
    for (name, expected) in expected {
        let (a, e) = (actual[&name].to_f64s(), expected.to_f64s());
        let scale = e.iter().fold(1e-6f64, |scale, value| scale.max(value.abs()));
        for (a, e) in a.iter().zip(&e) {
            assert!((a - e).abs() <= BOUND * scale, "{name}: {a} instead of {e}\nbefore {before}\nafter {after}");
        }
    }
}

/// Runs one pass, checks its meaning, and gives the operators that are left.
fn after(model: &TestModel, passes: &[Pass]) -> Vec<Op> {
    let before = model.import();
    let mut graph = before.clone();
    for &pass in passes {
        apply(&mut graph, "test", pass).expect("a pass keeps the invariants");
    }
    assert_same_meaning(&before, &graph);
    graph.nodes.into_iter().map(|node| node.op).collect()
}

fn kinds(ops: &[Op]) -> Vec<String> {
    ops.iter().map(|op| op.kind().to_owned()).collect()
}

fn conv_model() -> TestModel {
    TestModel::new(17).input("x", &[1, 2, 5, 5]).floats("w", &[3, 2, 3, 3], &numbers(54)).node(
        "Conv",
        &["x", "w"],
        "c",
        vec![ints("pads", &[1, 1, 1, 1])],
    )
}

fn matmul_model() -> TestModel {
    TestModel::new(17).input("x", &[2, 4, 3]).floats("w", &[3, 5], &numbers(15)).node(
        "MatMul",
        &["x", "w"],
        "m",
        vec![],
    )
}

#[test]
fn constants_are_folded() {
    let weights = numbers(70_000);
    let model = TestModel::new(17)
        .input("x", &[2, 7])
        .floats("w", &[10_000, 7], &weights)
        .node("Transpose", &["w"], "t", vec![])
        .node("MatMul", &["x", "t"], "y", vec![])
        .output("y");
    assert_eq!(kinds(&after(&model, &[constants::run])), ["matmul"]);
}

#[test]
fn an_expanded_scalar_is_not_folded_into_megabytes() {
    let model = TestModel::new(17)
        .input("x", &[1, 1])
        .floats("one", &[], &[1.0])
        .longs("to", &[1024, 1024])
        .node("Expand", &["one", "to"], "e", vec![])
        .node("Add", &["x", "e"], "y", vec![])
        .output("y");
    assert_eq!(kinds(&after(&model, &[constants::run])), ["expand", "binary"]);
}

#[test]
fn no_ops_are_dropped() {
    let model = TestModel::new(17)
        .input("x", &[2, 3])
        .floats("one", &[], &[1.0])
        .floats("zero", &[1, 1], &[0.0])
        .longs("same", &[2, 3])
        .node("Identity", &["x"], "a", vec![])
        .node("Dropout", &["a"], "b", vec![])
        .node("Reshape", &["b", "same"], "c", vec![])
        .node("Mul", &["one", "c"], "d", vec![])
        .node("Sub", &["d", "zero"], "e", vec![])
        .node("Transpose", &["e"], "f", vec![ints("perm", &[0, 1])])
        .node("Relu", &["f"], "y", vec![])
        .output("y")
        .output("a");
    assert_eq!(kinds(&after(&model, &[identity::run])), ["activation"]);
}

#[test]
fn a_neutral_constant_that_widens_the_shape_stays() {
    let model = TestModel::new(17)
        .input("x", &[3])
        .floats("zeros", &[1, 1], &[0.0])
        .node("Add", &["x", "zeros"], "y", vec![])
        .output("y");
    assert_eq!(kinds(&after(&model, &[identity::run])), ["binary"]);
}

#[test]
fn moves_are_merged() {
    let model = TestModel::new(17)
        .input("x", &[2, 3, 4])
        .longs("flat", &[24])
        .longs("to", &[4, 6])
        .node("Reshape", &["x", "flat"], "a", vec![])
        .node("Reshape", &["a", "to"], "y", vec![])
        .node("Transpose", &["x"], "b", vec![ints("perm", &[1, 2, 0])])
        .node("Transpose", &["b"], "z", vec![ints("perm", &[1, 0, 2])])
        .output("y")
        .output("z");
    let left = after(&model, &[moves::run, dead::run]);
    assert_eq!(left, [Op::Reshape, Op::Transpose { perm: vec![2, 1, 0] }]);
}

#[test]
fn equal_nodes_are_computed_once() {
    let model = TestModel::new(17)
        .input("x", &[2, 3])
        .longs("flat", &[6])
        .longs("turned", &[3, 2])
        .node("Exp", &["x"], "a", vec![])
        .node("Exp", &["x"], "b", vec![])
        .node("Neg", &["a"], "c", vec![])
        .node("Neg", &["b"], "d", vec![])
        .node("Add", &["c", "d"], "y", vec![])
        .node("Reshape", &["x", "flat"], "e", vec![])
        .node("Reshape", &["x", "turned"], "f", vec![])
        .output("y")
        .output("e")
        .output("f");
    let left = after(&model, &[duplicates::run]);
    assert_eq!(kinds(&left), ["unary", "unary", "binary", "reshape", "reshape"]);
}

#[test]
fn dead_nodes_are_dropped() {
    let model = TestModel::new(17)
        .input("x", &[2])
        .node("Exp", &["x"], "a", vec![])
        .node("Neg", &["a"], "b", vec![])
        .node("Relu", &["x"], "y", vec![])
        .output("y");
    assert_eq!(kinds(&after(&model, &[dead::run])), ["activation"]);
}

#[test]
fn batch_norm_is_folded_into_its_convolution() {
    let normed = |model: TestModel| {
        model
            .floats("scale", &[3], &[0.5, 2.0, -1.0])
            .floats("shift", &[3], &[0.1, 0.2, 0.3])
            .floats("mean", &[3], &[0.0, 1.0, -1.0])
            .floats("variance", &[3], &[1.0, 0.25, 4.0])
            .node("BatchNormalization", &["c", "scale", "shift", "mean", "variance"], "y", vec![])
            .output("y")
    };
    assert_eq!(kinds(&after(&normed(conv_model()), &[batch_norm::run])), ["conv"]);
    // Somebody else reads the convolution's result.
    let shared = normed(conv_model()).output("c");
    assert_eq!(kinds(&after(&shared, &[batch_norm::run])), ["conv", "batch_norm"]);
}

#[test]
fn batch_norm_of_no_filters_or_channels_stays() {
    for (batch, channels, filters) in [(1, 3, 0), (0, 0, 4)] {
        let weights = [filters, channels, 1];
        let model = TestModel::new(17)
            .input("x", &[batch, channels as i64, 5])
            .floats("w", &weights, &numbers(weights.iter().product()))
            .floats("ones", &[filters], &vec![1.0; filters])
            .node("Conv", &["x", "w"], "c", vec![])
            .node("BatchNormalization", &["c", "ones", "ones", "ones", "ones"], "y", vec![])
            .output("y");
        let mut graph = model.import();
        apply(&mut graph, "test", batch_norm::run).expect("a pass keeps the invariants");
        let left: Vec<&str> = graph.nodes.iter().map(|node| node.op.kind()).collect();
        assert_eq!(left, ["conv", "batch_norm"], "{filters} filters of {channels} channels");
    }
}

#[test]
fn scalings_go_into_the_product() {
    let model = TestModel::new(17)
        .input("x", &[2, 4, 3])
        .floats("w", &[3, 5], &numbers(15))
        .floats("c", &[1], &[4.0])
        .node("Mul", &["c", "x"], "s", vec![])
        .node("MatMul", &["s", "w"], "m", vec![])
        .node("Div", &["m", "c"], "d", vec![])
        .node("Mul", &["d", "c"], "y", vec![])
        .output("y");
    assert_eq!(after(&model, &[scale::run]), [Op::MatMul(MatMul { alpha: 4.0, ..MatMul::default() })]);
    let swapped = matmul_model().floats("c", &[], &[4.0]).node("Div", &["c", "m"], "y", vec![]).output("y");
    assert_eq!(kinds(&after(&swapped, &[scale::run])), ["matmul", "binary"]);
}

#[test]
fn bias_goes_into_products_and_convolutions() {
    let product = matmul_model().floats("b", &[1, 5], &numbers(5)).node("Add", &["b", "m"], "y", vec![]).output("y");
    assert_eq!(kinds(&after(&product, &[bias::run])), ["matmul"]);
    let filters =
        conv_model().floats("b", &[1, 3, 1, 1], &numbers(3)).node("Add", &["c", "b"], "y", vec![]).output("y");
    assert_eq!(kinds(&after(&filters, &[bias::run])), ["conv"]);
    // Along the rows, not the channels.
    let rows = conv_model().floats("b", &[5, 1], &numbers(5)).node("Add", &["c", "b"], "y", vec![]).output("y");
    assert_eq!(kinds(&after(&rows, &[bias::run])), ["conv", "binary"]);
    // A product of vectors has no columns.
    let vectors = TestModel::new(17)
        .input("x", &[4, 3])
        .floats("w", &[3], &numbers(3))
        .floats("b", &[4], &numbers(4))
        .node("MatMul", &["x", "w"], "m", vec![])
        .node("Add", &["m", "b"], "y", vec![])
        .output("y");
    assert_eq!(kinds(&after(&vectors, &[bias::run])), ["matmul", "binary"]);
}

#[test]
fn residuals_go_into_the_later_product() {
    let model = conv_model()
        .floats("v", &[3, 2, 1, 1], &numbers(6))
        .node("Conv", &["x", "v"], "d", vec![])
        .node("Add", &["c", "d"], "s", vec![])
        .node("Relu", &["s"], "y", vec![])
        .output("y");
    let left = after(&model, &[residual::run, activation::run]);
    assert_eq!(kinds(&left), ["conv", "conv"]);
    let fused = Op::Conv(Conv {
        strides: vec![1, 1],
        pads: vec![0; 4],
        dilations: vec![1, 1],
        groups: 1,
        epilogue: Epilogue { activation: Some(Activation::Relu) },
    });
    assert_eq!(left[1], fused);
}

#[test]
fn an_activation_before_the_addition_keeps_the_residual_out() {
    let model = conv_model()
        .input("r", &[1, 3, 5, 5])
        .node("Relu", &["c"], "a", vec![])
        .node("Add", &["a", "r"], "y", vec![])
        .output("y");
    assert_eq!(kinds(&after(&model, &[residual::run, activation::run])), ["conv", "binary"]);
    assert_eq!(kinds(&after(&model, &[activation::run, residual::run])), ["conv", "binary"]);
}

#[test]
fn gelu_is_recovered_in_each_spelling() {
    let start = || {
        TestModel::new(17)
            .input("x", &[2, 8])
            .floats("root", &[], &[std::f32::consts::SQRT_2])
            .floats("inverse", &[], &[std::f32::consts::FRAC_1_SQRT_2])
            .floats("one", &[], &[1.0])
            .floats("half", &[], &[0.5])
            .floats("two", &[], &[2.0])
    };
    let whole = start()
        .node("Div", &["x", "root"], "a", vec![])
        .node("Erf", &["a"], "b", vec![])
        .node("Add", &["b", "one"], "c", vec![])
        .node("Mul", &["x", "c"], "d", vec![])
        .node("Mul", &["d", "half"], "y", vec![])
        .output("y");
    let half_first = start()
        .node("Mul", &["inverse", "x"], "a", vec![])
        .node("Erf", &["a"], "b", vec![])
        .node("Add", &["one", "b"], "c", vec![])
        .node("Div", &["x", "two"], "h", vec![])
        .node("Mul", &["h", "c"], "y", vec![])
        .output("y");
    let half_inside = start()
        .node("Div", &["x", "root"], "a", vec![])
        .node("Erf", &["a"], "b", vec![])
        .node("Add", &["b", "one"], "c", vec![])
        .node("Mul", &["c", "half"], "d", vec![])
        .node("Mul", &["x", "d"], "y", vec![])
        .output("y");
    for model in [whole, half_first, half_inside] {
        assert_eq!(after(&model, &[gelu::run]), [Op::Activation(Activation::Gelu(GeluForm::Erf))]);
    }
    let other_constant = start()
        .node("Div", &["x", "two"], "a", vec![])
        .node("Erf", &["a"], "b", vec![])
        .node("Add", &["b", "one"], "c", vec![])
        .node("Mul", &["x", "c"], "d", vec![])
        .node("Mul", &["d", "half"], "y", vec![])
        .output("y");
    assert_eq!(after(&other_constant, &[gelu::run]).len(), 5);
}

#[test]
fn gelu_by_tanh_is_recovered_in_each_spelling() {
    let start = || {
        TestModel::new(17)
            .input("x", &[2, 8])
            .floats("scale", &[], &[0.797_884_6])
            .floats("share", &[], &[0.044_715])
            .floats("one", &[], &[1.0])
            .floats("half", &[], &[0.5])
            .floats("three", &[], &[3.0])
    };
    let end = |model: TestModel| {
        model
            .node("Tanh", &["argument"], "t", vec![])
            .node("Add", &["one", "t"], "gate", vec![])
            .node("Mul", &["x", "half"], "h", vec![])
            .node("Mul", &["h", "gate"], "y", vec![])
            .output("y")
    };
    let by_power = start()
        .node("Pow", &["x", "three"], "cube", vec![])
        .node("Mul", &["cube", "share"], "part", vec![])
        .node("Add", &["x", "part"], "sum", vec![])
        .node("Mul", &["sum", "scale"], "argument", vec![]);
    let by_products = start()
        .node("Mul", &["x", "x"], "square", vec![])
        .node("Mul", &["share", "square"], "part", vec![])
        .node("Add", &["part", "one"], "sum", vec![])
        .node("Mul", &["x", "scale"], "scaled", vec![])
        .node("Mul", &["scaled", "sum"], "argument", vec![]);
    for model in [end(by_power.clone()), end(by_products)] {
        assert_eq!(after(&model, &[gelu::run]), [Op::Activation(Activation::Gelu(GeluForm::Tanh))]);
    }
    // Somebody else reads the cube.
    assert_eq!(after(&end(by_power).output("cube"), &[gelu::run]).len(), 8);
    let other_share = start()
        .node("Pow", &["x", "three"], "cube", vec![])
        .node("Mul", &["cube", "half"], "part", vec![])
        .node("Add", &["x", "part"], "sum", vec![])
        .node("Mul", &["sum", "scale"], "argument", vec![]);
    assert_eq!(after(&end(other_share), &[gelu::run]).len(), 8);
}

#[test]
fn gated_activations_are_recovered() {
    let silu = TestModel::new(17)
        .input("x", &[6])
        .node("Sigmoid", &["x"], "g", vec![])
        .node("Mul", &["x", "g"], "y", vec![])
        .output("y");
    assert_eq!(after(&silu, &[gates::run]), [Op::Activation(Activation::Silu)]);
    let swish = TestModel::new(17)
        .input("x", &[6])
        .node("HardSigmoid", &["x"], "g", vec![float("alpha", 1.0 / 6.0), float("beta", 0.5)])
        .node("Mul", &["g", "x"], "y", vec![])
        .output("y");
    assert_eq!(after(&swish, &[gates::run]), [Op::Activation(Activation::HardSwish)]);
}

fn primitive_layer_norm() -> TestModel {
    TestModel::new(17)
        .input("x", &[2, 3, 8])
        .floats("two", &[], &[2.0])
        .floats("epsilon", &[], &[1e-5])
        .floats("scale", &[8], &numbers(8))
        .floats("shift", &[8], &numbers(8))
        .node("ReduceMean", &["x"], "mean", vec![ints("axes", &[-1])])
        .node("Sub", &["x", "mean"], "d", vec![])
        .node("Pow", &["d", "two"], "squares", vec![])
        .node("ReduceMean", &["squares"], "variance", vec![ints("axes", &[-1])])
        .node("Add", &["variance", "epsilon"], "shifted", vec![])
        .node("Sqrt", &["shifted"], "deviation", vec![])
        .node("Div", &["d", "deviation"], "n", vec![])
}

#[test]
fn layer_norm_is_recovered() {
    let whole = primitive_layer_norm()
        .node("Mul", &["n", "scale"], "m", vec![])
        .node("Add", &["m", "shift"], "y", vec![])
        .output("y");
    assert_eq!(after(&whole, &[layer_norm::run]), [Op::LayerNorm { axis: 2, epsilon: 1e-5 }]);
    let bare = primitive_layer_norm().output("n");
    assert_eq!(kinds(&after(&bare, &[layer_norm::run])), ["layer_norm"]);
    // Somebody else reads the mean.
    let shared = primitive_layer_norm().output("n").output("mean");
    assert_eq!(after(&shared, &[layer_norm::run]).len(), 7);
}

#[test]
fn the_pipeline_records_what_it_did() {
    let model = conv_model()
        .input("r", &[1, 3, 5, 5])
        .node("Add", &["c", "r"], "s", vec![])
        .node("Relu", &["s"], "y", vec![])
        .output("y");
    let before = model.import();
    let optimized = pipeline(before.clone(), Target::default()).expect("the pipeline keeps the invariants");
    assert_same_meaning(&before, &optimized.graph);
    assert_eq!(optimized.graph.nodes.len(), 1);
    assert_eq!(optimized.graph.nodes[0].origins, ["make c", "make s", "make y"]);
    assert_eq!(
        optimized.passes.len(),
        PIPELINE.iter().filter(|(pass, only, _)| Target::default().wants(pass, *only)).count()
    );
    let residual =
        optimized.passes.iter().find(|record| record.pass == "fuse-residual").expect("it is in the pipeline");
    assert_eq!((residual.nodes_before, residual.nodes_after, residual.changes.len()), (3, 2, 1));
}

#[test]
fn every_pass_that_joins_operators_is_known_as_one() {
    let passes: Vec<&str> = PIPELINE.iter().map(|(pass, _, _)| *pass).collect();
    for fusion in FUSIONS {
        assert!(passes.contains(&fusion), "{fusion} is no pass");
    }
    for pass in passes {
        let joins =
            ["recover-", "fuse-", "join-"].iter().any(|word| pass.starts_with(word)) || pass.ends_with("parallel");
        assert!(!joins || FUSIONS.contains(&pass), "{pass} runs although fusion is off");
    }
}
