//! What is wrong with data, models and budgets is said in words, and what is doubtful is a finding.

use planforge_import::testing::{TestModel, int, numbers};
use planforge_onnx::Model;
use planforge_precision::{
    Budget, DataError, Kind, Options, PrecisionError, Reference, Samples, Target, ports, prepare,
};
use planforge_types::{ElementType, HostTensor, NamedTensors};
use std::error::Error as _;

/// `y = relu(x·a + b)·c` on four numbers.
fn model() -> TestModel {
    TestModel::new(17)
        .input("x", &[1, 4])
        .floats("a", &[4, 16], &numbers(64))
        .floats("b", &[16], &numbers(16))
        .floats("c", &[16, 3], &numbers(48))
        .node("MatMul", &["x", "a"], "xa", vec![])
        .node("Add", &["xa", "b"], "sum", vec![])
        .node("Relu", &["sum"], "h", vec![])
        .node("MatMul", &["h", "c"], "y", vec![])
        .output("y")
}

fn floats(shape: &[usize], values: &[f32]) -> HostTensor {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    HostTensor { element: ElementType::F32, shape: shape.to_vec(), bytes }
}

fn longs(values: &[i64]) -> HostTensor {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    HostTensor { element: ElementType::I64, shape: vec![values.len()], bytes }
}

fn arrays(named: &[(&str, HostTensor)]) -> NamedTensors {
    named.iter().map(|(name, tensor)| ((*name).to_owned(), tensor.clone())).collect()
}

fn fit(model: &Model, named: &[(&str, HostTensor)]) -> Result<Samples, DataError> {
    Samples::fit(arrays(named), &ports(model))
}

fn rows(count: usize) -> HostTensor {
    let values: Vec<f32> = numbers(count * 4);
    floats(&[count, 4], &values)
}

#[test]
fn data_that_does_not_fit_is_told() {
    let model = model().model();
    let wrong = |named: &[(&str, HostTensor)]| fit(&model, named).unwrap_err();
    let pair = [("x", rows(3)), ("other", rows(3))];
    assert!(matches!(wrong(&[("a", rows(3)), ("b", rows(3))]), DataError::NoInput { .. }));
    assert_eq!(wrong(&pair).to_string(), "array 'other' belongs to no input; the model takes x");
    assert!(matches!(wrong(&[("x", floats(&[3, 5], &numbers(15)))]), DataError::Shape { .. }));
    assert!(matches!(wrong(&[("x", longs(&[1, 2]))]), DataError::Shape { .. }));
    let whole = HostTensor { shape: vec![1, 4], ..longs(&[1, 2, 3, 4]) };
    assert!(matches!(wrong(&[("x", whole)]), DataError::Element { .. }));
    assert!(matches!(wrong(&[("x", floats(&[0, 4], &[]))]), DataError::Empty));
    assert!(matches!(wrong(&[]), DataError::NoInput { .. }));
    let error = wrong(&[("x", floats(&[2, 4], &[1.0, 2.0, 3.0, 4.0, 5.0, f32::NAN, 7.0, 8.0]))]);
    assert_eq!(error.to_string(), "array 'x' holds a number that is none, in row 1: NaN");
    // Of every array, whatever the ones before it hold.
    let two = TestModel::new(17)
        .input("x", &[1, 4])
        .input("z", &[1, 4])
        .floats("a", &[4, 3], &numbers(12))
        .node("Add", &["x", "z"], "sum", vec![])
        .node("MatMul", &["sum", "a"], "y", vec![])
        .output("y")
        .model();
    let second = floats(&[2, 4], &[1.0, 2.0, 3.0, f32::INFINITY, 5.0, 6.0, 7.0, 8.0]);
    let error = fit(&two, &[("x", rows(2)), ("z", second)]).unwrap_err();
    assert_eq!(error.to_string(), "array 'z' holds a number that is none, in row 0: inf");
    assert!(fit(&two, &[("x", rows(2)), ("z", floats(&[2, 4], &[0.5; 8]))]).is_ok(), "one of them varies");
    let error = wrong(&[("x", floats(&[2, 4], &[0.5; 8]))]);
    assert_eq!(error.to_string(), "array 'x' is 0.5 everywhere: nothing can be calibrated on that");
    assert!(matches!(wrong(&[("x", rows(3)), ("labels", longs(&[1, 2]))]), DataError::Rows { .. }));
    assert!(matches!(wrong(&[("x", rows(2)), ("labels", floats(&[2], &[0.0, 1.0]))]), DataError::Labels { .. }));
}

#[test]
fn few_and_one_sided_samples_are_findings() {
    let model = model().model();
    let codes = |named: &[(&str, HostTensor)]| -> Vec<String> {
        fit(&model, named).unwrap().findings().into_iter().map(|finding| finding.code).collect()
    };
    assert_eq!(codes(&[("x", rows(99)), ("labels", longs(&[0; 99]))]), ["few-samples", "one-sided-data"]);
    let even: Vec<i64> = (0..120).map(|at| at % 3).collect();
    assert!(codes(&[("x", rows(120)), ("labels", longs(&even))]).is_empty());
    let mut same = [[0.5_f32; 4]; 120].concat();
    same[0] = 1.0;
    assert_eq!(codes(&[("x", floats(&[120, 4], &same))]), ["one-sided-data"]);
}

fn refused(model: &Model, samples: Option<&Samples>, options: &Options) -> PrecisionError {
    prepare(model, samples, None, options, &Reference).unwrap_err()
}

#[test]
fn what_cannot_be_prepared_is_told() {
    let model = model().model();
    let samples = fit(&model, &[("x", rows(20))]).unwrap();
    let int8 = Options::new(Kind::Int8, Target::Any);
    assert!(matches!(refused(&model, None, &int8), PrecisionError::NoData { .. }));
    let error = refused(&model, Some(&samples), &Options::new(Kind::Bf16, Target::OnnxRuntime));
    assert_eq!(error.to_string(), "the target onnxruntime has no bf16");
    let budget = Options { budget: Some(Budget::AccuracyDrop(0.5)), ..int8.clone() };
    assert!(refused(&model, Some(&samples), &budget).to_string().contains("there are no labels"));
    for most in [-1.0, f64::NAN] {
        let budget = Options { budget: Some(Budget::OutputError(most)), ..int8.clone() };
        assert!(matches!(refused(&model, Some(&samples), &budget), PrecisionError::Options(_)));
    }
    let group = Options { group: Some(12), ..Options::new(Kind::Int4Weights, Target::Any) };
    assert!(matches!(refused(&model, None, &group), PrecisionError::Options(_)));
    let keep = Options { keep: vec!["nothing".to_owned()], ..int8.clone() };
    assert_eq!(refused(&model, Some(&samples), &keep).to_string(), "there is no layer 'nothing' to keep");
    let plain = TestModel::new(17).input("x", &[1, 4]).node("Relu", &["x"], "y", vec![]).output("y").model();
    let samples = fit(&plain, &[("x", rows(20))]).unwrap();
    assert!(matches!(refused(&plain, Some(&samples), &int8), PrecisionError::Nothing { .. }));
}

#[test]
fn a_budget_that_cannot_be_met_names_the_best_and_its_layers() {
    let model = model().model();
    let samples = fit(&model, &[("x", rows(20))]).unwrap();
    let options = Options { budget: Some(Budget::OutputError(0.0)), ..Options::new(Kind::Int8, Target::Any) };
    let text = refused(&model, Some(&samples), &options).to_string();
    assert!(text.starts_with("a budget of 0 relative output error cannot be met: the best"), "{text}");
    assert!(text.contains("make xa") && text.contains("make y"), "{text}");
}

#[test]
fn a_layer_that_reads_nothing_but_zeros_stays() {
    // The second product reads what a negative bias has made zero throughout.
    let model = TestModel::new(17)
        .input("x", &[1, 4])
        .floats("a", &[4, 16], &numbers(64))
        .floats("b", &[16], &[-1e6; 16])
        .floats("c", &[16, 3], &numbers(48))
        .floats("d", &[4, 3], &numbers(12))
        .node("Gemm", &["x", "a", "b"], "sum", vec![])
        .node("Relu", &["sum"], "h", vec![])
        .node("MatMul", &["h", "c"], "dead", vec![])
        .node("MatMul", &["x", "d"], "alive", vec![])
        .node("Add", &["dead", "alive"], "y", vec![])
        .output("y")
        .model();
    let samples = fit(&model, &[("x", rows(20))]).unwrap();
    let prepared = prepare(&model, Some(&samples), None, &Options::new(Kind::Int8, Target::Any), &Reference).unwrap();
    let dead = prepared.report.layers.iter().find(|layer| layer.name == "make dead").unwrap();
    assert!(dead.precision == "fp32" && dead.why.contains("zero throughout"), "{dead:?}");
    assert!(prepared.report.findings.iter().any(|finding| finding.code == "layer-kept"));
}

#[test]
fn what_overflows_fp16_stays_in_single_precision() {
    let large: Vec<f32> = numbers(64).iter().map(|weight| weight * 60_000.0).collect();
    let small: Vec<f32> = numbers(48).iter().map(|weight| weight / 60_000.0).collect();
    let model = TestModel::new(17)
        .input("x", &[1, 4])
        .floats("a", &[4, 16], &large)
        .floats("c", &[16, 3], &small)
        .floats("d", &[3, 3], &numbers(9))
        .node("MatMul", &["x", "a"], "h", vec![])
        .node("MatMul", &["h", "c"], "z", vec![])
        .node("Tanh", &["z"], "t", vec![])
        .node("MatMul", &["t", "d"], "y", vec![])
        .output("y")
        .model();
    let samples = fit(&model, &[("x", rows(20))]).unwrap();
    let prepared = prepare(&model, Some(&samples), None, &Options::new(Kind::Fp16, Target::Any), &Reference).unwrap();
    let precisions: Vec<&str> = prepared.report.layers.iter().map(|layer| layer.precision.as_str()).collect();
    assert_eq!(precisions, ["fp32", "fp32", "fp16", "fp16"]);
    assert!(prepared.report.layers[0].why.starts_with("overflow: 'h' reaches"), "{}", prepared.report.layers[0].why);
    assert!(prepared.report.measured.unwrap().relative_rms < 0.01);
    // Without data nothing says so, and that is told; what is measured later is infinite.
    let blind = prepare(&model, None, None, &Options::new(Kind::Fp16, Target::Any), &Reference).unwrap();
    assert_eq!(blind.report.findings[0].code, "overflow-unknown");
    assert!(blind.report.measured.is_none());
}

#[test]
fn older_operators_are_raised_or_refused() {
    let old = |opset: i64| {
        TestModel::new(opset)
            .input("x", &[1, 4])
            .floats("a", &[4, 16], &numbers(64))
            .node("MatMul", &["x", "a"], "h", vec![])
            .node("Softmax", &["h"], "y", vec![int("axis", 1)])
            .output("y")
            .model()
    };
    let samples = fit(&old(11), &[("x", rows(20))]).unwrap();
    let int8 = Options::new(Kind::Int8, Target::Any);
    let prepared = prepare(&old(11), Some(&samples), None, &int8, &Reference).unwrap();
    assert_eq!(prepared.proto.opset_import[0].version, 13);
    let error = refused(&old(10), Some(&samples), &int8);
    assert!(matches!(error, PrecisionError::Opset { from: 10, to: 13, .. }), "{error}");
    assert!(error.source().is_none() && !error.hint().is_empty());
}

#[test]
fn int4_groups_are_packed_for_who_runs_them() {
    let model = model().model();
    let options = |target| Options { group: Some(16), ..Options::new(Kind::Int4Weights, target) };
    let blocked = prepare(&model, None, None, &options(Target::Any), &Reference).unwrap();
    let ops = |proto: &planforge_onnx::proto::ModelProto| -> Vec<String> {
        proto.graph.as_ref().unwrap().node.iter().map(|node| node.op_type.clone()).collect()
    };
    // The second product has 48 weights: its scales would take what is saved.
    assert_eq!(ops(&blocked.proto), ["DequantizeLinear", "MatMul", "Add", "Relu", "MatMul"]);
    assert_eq!(blocked.proto.opset_import[0].version, 21);
    let packed = prepare(&model, None, None, &options(Target::OnnxRuntime), &Reference).unwrap();
    assert_eq!(ops(&packed.proto), ["MatMulNBits", "Add", "Relu", "MatMul"]);
    // Both are the same numbers.
    let samples = fit(&model, &[("x", rows(20))]).unwrap();
    let error = |target| {
        let prepared = prepare(&model, Some(&samples), None, &options(target), &Reference).unwrap();
        prepared.report.measured.unwrap().relative_rms
    };
    assert!((error(Target::Any) - error(Target::OnnxRuntime)).abs() < 1e-6);
}

#[test]
fn weights_that_are_listed_among_the_inputs_go_with_their_tensors() {
    let mut listed = model();
    let weight = planforge_import::testing::value_info("a", 1, Vec::new());
    listed.graph().input.push(weight);
    let model = listed.model();
    let samples = fit(&model, &[("x", rows(20))]).unwrap();
    let prepared = prepare(&model, Some(&samples), None, &Options::new(Kind::Int8, Target::Any), &Reference).unwrap();
    let inputs: Vec<&str> =
        prepared.proto.graph.as_ref().unwrap().input.iter().map(|input| input.name.as_str()).collect();
    assert_eq!(inputs, ["x"]);
}
