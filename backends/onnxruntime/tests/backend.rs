//! The backend on the real library. Where none is found these tests pass without testing anything and say so, unless
//! `PLANFORGE_TEST_ONNXRUNTIME=required`.

use planforge_backend::{Cancel, CompileRequest, CompiledPlan, Compiler, Events, LoadOptions, Window};
use planforge_device::cpu;
use planforge_graph::{interpreter, ir::Tensor};
use planforge_onnx::Model;
use planforge_onnxruntime::OnnxRuntimeCompiler;
use planforge_types::{
    BuildSpec, Digest, DimRange, ElementType, FailureClass, HostTensor, NamedTensors, OptimizationLevel,
    OptimizationProfile, fingerprint::DiscoveredDevice,
};
use planforge_worker::verify::inputs;
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// The compiler, where there is a library.
fn found() -> Option<OnnxRuntimeCompiler> {
    let compiler = OnnxRuntimeCompiler::of_environment();
    match compiler.library() {
        Ok(_) => Some(compiler),
        Err(error) if std::env::var_os("PLANFORGE_TEST_ONNXRUNTIME").is_some_and(|value| value == "required") => {
            panic!("{error} {}", error.hint)
        }
        Err(error) => {
            planforge_skipped::skipped(error);
            None
        }
    }
}

struct Silent;

impl Events for Silent {
    fn progress(&self, _: &str, _: f32, _: &str) {}
    fn log(&self, _: &str) {}
}

fn device() -> DiscoveredDevice {
    let (fingerprint, levels) = cpu::detect(&cpu::host_facts());
    let skus = levels.iter().map(|level| level.sku()).collect();
    DiscoveredDevice { id: "cpu0".into(), fingerprint, skus, threads: 1, offers: Vec::new(), simulated: false }
}

fn digits() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/digits.onnx")
}

fn request(compiler: &OnnxRuntimeCompiler, model: &Path, scratch: &Path) -> CompileRequest {
    let device = device();
    CompileRequest {
        model: model.to_owned(),
        model_digest: Digest::of(&fs::read(model).unwrap()),
        sku: device.skus.last().unwrap().clone(),
        toolchain: compiler.toolchains(&device).pop().unwrap(),
        spec: BuildSpec { threads: Some(1), ..BuildSpec::default() },
        device: device.fingerprint,
        scratch: scratch.to_owned(),
        cache: None,
        calibration: None,
        plugins: Vec::new(),
    }
}

fn compile(compiler: &OnnxRuntimeCompiler, request: &CompileRequest) -> CompiledPlan {
    compiler.compile(request, &Silent, &Cancel::default()).unwrap()
}

/// Made-up inputs and what the reference operators make of them.
fn reference(model: &Path) -> (NamedTensors, NamedTensors) {
    let graph = planforge_import::import(&Model::open(model).unwrap(), None).unwrap();
    let inputs = inputs::generate(&inputs::of_graph(&graph).unwrap(), 7);
    let tensors = inputs.iter().map(|(name, t)| (name.clone(), Tensor::try_from(t.clone()).unwrap())).collect();
    let outputs = interpreter::execute(&graph, &tensors).unwrap();
    (inputs, outputs.iter().map(|(name, tensor)| (name.clone(), HostTensor::from(tensor))).collect())
}

#[test]
fn a_plan_computes_what_the_reference_computes() {
    let Some(compiler) = found() else { return };
    let (inputs, expected) = reference(&digits());
    for level in 0..=3 {
        let scratch = tempfile::tempdir().unwrap();
        let mut request = request(&compiler, &digits(), scratch.path());
        request.spec.optimization_level = OptimizationLevel(level);
        let plan = compile(&compiler, &request);
        assert!(plan.facts["nodes_after"].as_u64().unwrap() <= plan.facts["nodes_before"].as_u64().unwrap());
        assert!(compiler.recognises(&fs::read(&plan.path).unwrap()[..64]));
        let mut meter = compiler.load(&plan.path, &LoadOptions::default()).unwrap();
        meter.bind(&inputs).unwrap();
        let outputs = meter.run().unwrap();
        assert_eq!(outputs.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        for (name, tensor) in &outputs {
            assert_eq!(tensor.shape, expected[name].shape);
            let values = |t: &HostTensor| Tensor::try_from(t.clone()).unwrap().to_f64s();
            for (ours, theirs) in values(tensor).iter().zip(values(&expected[name])) {
                assert!((ours - theirs).abs() < 1e-4, "level {level}, {name}: {ours} {theirs}");
            }
        }
    }
}

/// `y = relu(x * w)` with `x` of `batch` rows of four, written as `op` where that is another operator.
fn small_model(folder: &Path, op: &str) -> PathBuf {
    use planforge_onnx::proto::{
        GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto, TypeProto,
        ValueInfoProto,
        tensor_shape_proto::{Dimension, dimension::Value as Size},
        type_proto::{Tensor as TensorType, Value as Kind},
    };
    let info = |name: &str| {
        let sizes = [Size::DimParam("batch".into()), Size::DimValue(4)];
        let dim = sizes.into_iter().map(|size| Dimension { value: Some(size), ..Default::default() }).collect();
        let tensor = TensorType { elem_type: 1, shape: Some(TensorShapeProto { dim }) };
        let of = TypeProto { value: Some(Kind::TensorType(tensor)), ..Default::default() };
        ValueInfoProto { name: name.into(), r#type: Some(of), ..Default::default() }
    };
    let node = |name: &str, op: &str, input: &[&str], output: &str| NodeProto {
        name: name.into(),
        op_type: op.into(),
        input: input.iter().map(|&name| name.into()).collect(),
        output: vec![output.into()],
        ..Default::default()
    };
    let weights: Vec<u8> = (0..16).flat_map(|i| (i as f32 / 8.0 - 1.0).to_le_bytes()).collect();
    let graph = GraphProto {
        name: "small".into(),
        node: vec![node("times", "MatMul", &["x", "w"], "t"), node("above", op, &["t"], "y")],
        initializer: vec![TensorProto {
            name: "w".into(),
            dims: vec![4, 4],
            data_type: 1,
            raw_data: weights.into(),
            ..Default::default()
        }],
        input: vec![info("x")],
        output: vec![info("y")],
        ..Default::default()
    };
    let model = ModelProto {
        ir_version: 8,
        graph: Some(graph),
        opset_import: vec![OperatorSetIdProto { version: 17, ..Default::default() }],
        ..Default::default()
    };
    let path = folder.join("small.onnx");
    planforge_onnx::write::save(&path, &model).unwrap();
    path
}

fn rows(rows: usize, columns: usize) -> NamedTensors {
    let bytes = (0..rows * columns).flat_map(|i| (i as f32).to_le_bytes()).collect();
    [("x".into(), HostTensor { element: ElementType::F32, shape: vec![rows, columns], bytes })].into()
}

#[test]
fn any_shape_of_the_profile_runs_and_no_other() {
    let Some(compiler) = found() else { return };
    let scratch = tempfile::tempdir().unwrap();
    let model = small_model(scratch.path(), "Relu");
    let mut request = request(&compiler, &model, scratch.path());
    let dims = vec![DimRange { min: 2, opt: 4, max: 8 }, DimRange { min: 4, opt: 4, max: 4 }];
    request.spec.profiles = vec![OptimizationProfile { inputs: [("x".into(), dims)].into() }];
    let plan = compile(&compiler, &request);
    let mut meter = compiler.load(&plan.path, &LoadOptions::default()).unwrap();
    assert_eq!(meter.inputs()[0].shape, [None, Some(4)]);
    assert!(meter.run().unwrap_err().message.contains("no inputs are bound"));
    for batch in 2..=8 {
        meter.bind(&rows(batch, 4)).unwrap();
        let outputs = meter.run().unwrap();
        assert_eq!(outputs["y"].shape, [batch, 4]);
        // 0 * -1 + 1 * -0.5 + 2 * 0 + 3 * 0.5
        assert_eq!(outputs["y"].bytes[..4], 1.0f32.to_le_bytes());
    }
    for (inputs, words) in [
        (rows(1, 4), "input x has shape [1, 4], but the engine takes 2..=8 x 4"),
        (rows(9, 4), "input x has shape [9, 4], but the engine takes 2..=8 x 4"),
        (rows(2, 5), "input x has shape [2, 5], but the engine takes 2..=8 x 4"),
        (NamedTensors::new(), "input x is not given"),
        ([("z".to_owned(), rows(2, 4)["x"].clone())].into(), "the engine has no input z"),
    ] {
        let error = meter.bind(&inputs).unwrap_err();
        assert_eq!((error.class, error.message.as_str()), (FailureClass::Model, words));
    }
    let wrong_type = HostTensor { element: ElementType::I32, ..rows(2, 4)["x"].clone() };
    assert!(meter.bind(&[("x".into(), wrong_type)].into()).unwrap_err().message.contains("i32"));
    // What is bound stays bound.
    assert_eq!(meter.run().unwrap()["y"].shape, [8, 4]);
    let error = compiler.load(&plan.path, &LoadOptions { profile: 1, ..LoadOptions::default() }).err().unwrap();
    assert!(error.message.contains("there is no profile 1"));
}

#[test]
fn a_profile_of_one_shape_fixes_it_in_the_plan() {
    let Some(compiler) = found() else { return };
    let scratch = tempfile::tempdir().unwrap();
    let model = small_model(scratch.path(), "Relu");
    let mut request = request(&compiler, &model, scratch.path());
    let dims = [3, 4].map(|size| DimRange { min: size, opt: size, max: size }).to_vec();
    request.spec.profiles = vec![OptimizationProfile { inputs: [("x".into(), dims)].into() }];
    let plan = compile(&compiler, &request);
    assert_eq!(plan.facts["fixed_dimensions"], serde_json::json!({ "batch": 3 }));
    let meter = compiler.load(&plan.path, &LoadOptions::default()).unwrap();
    assert_eq!(meter.inputs()[0].shape, [Some(3), Some(4)]);
}

#[test]
fn the_same_build_is_the_same_bytes_and_it_is_timed_and_profiled() {
    let Some(compiler) = found() else { return };
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let plans = folders.each_ref().map(|folder| compile(&compiler, &request(&compiler, &digits(), folder.path())).path);
    assert_eq!(fs::read(&plans[0]).unwrap(), fs::read(&plans[1]).unwrap());
    let mut meter = compiler.load(&plans[0], &LoadOptions::default()).unwrap();
    meter.bind(&reference(&digits()).0).unwrap();
    let samples = meter.window(Window { iterations: 5, duration_ms: 0.0 }).unwrap();
    assert_eq!(samples.latency_ms.len(), 5);
    assert!(samples.latency_ms.iter().all(|ms| *ms > 0.0));
    let layers = meter.layers(3).unwrap();
    assert!(layers.iter().any(|layer| layer.kind.contains("Conv") && layer.flops > 0), "{layers:?}");
    assert!(layers.iter().all(|layer| layer.tactic == "CPUExecutionProvider" && layer.median_ms >= 0.0));
    assert!(meter.memory_bytes() >= fs::metadata(&plans[0]).unwrap().len());
    let left: Vec<_> = fs::read_dir(folders[0].path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["engine.plan"]);
}

#[test]
fn what_cannot_be_built_here_is_refused_in_words() {
    let Some(compiler) = found() else { return };
    let scratch = tempfile::tempdir().unwrap();
    let model = small_model(scratch.path(), "Foo");
    let request = request(&compiler, &model, scratch.path());
    let compile = |request: &CompileRequest| compiler.compile(request, &Silent, &Cancel::default()).unwrap_err();
    let error = compile(&request);
    assert_eq!(error.class, FailureClass::Model);
    assert!(error.message.contains("Foo"), "{error}");
    if let [lower, .., _] = &device().skus[..] {
        let lower = CompileRequest { sku: lower.clone(), ..request.clone() };
        assert!(compile(&lower).message.contains("it runs as"), "{}", compile(&lower));
    }
    let mut other = request.clone();
    other.toolchain.version = "1.17.0".into();
    assert_eq!(compile(&other).class, FailureClass::Infrastructure);
    let gpu = CompileRequest { sku: "t4".parse().unwrap(), ..request };
    assert_eq!(compile(&gpu).class, FailureClass::Infrastructure);
}

/// A classifier as it is exported by default: probabilities in maps.
#[test]
fn as_an_oracle_it_gives_the_tensor_that_maps_are_made_of() {
    let Some(compiler) = found() else { return };
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cpu/tests/onnx_cases/ml");
    let model = cases.join("sklearn_forest_two/model.onnx");
    let (inputs, expected) = reference(&model);
    let oracle = compiler.oracle().unwrap();
    let outputs = oracle.outputs(&model, &inputs, Duration::from_secs(60), &Cancel::default()).unwrap();
    assert!(expected.contains_key("output_probability"), "{:?}", expected.keys());
    for (name, tensor) in &expected {
        let (right, told) =
            (Tensor::try_from(tensor.clone()).unwrap(), Tensor::try_from(outputs[name].clone()).unwrap());
        assert_eq!(right.shape(), told.shape(), "{name}");
        let apart = right.to_f64s().iter().zip(told.to_f64s()).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(apart < 1e-6, "{name} is off by {apart}");
    }
}

#[test]
fn as_an_oracle_it_agrees_with_the_reference_and_keeps_its_limit() {
    let Some(compiler) = found() else { return };
    let oracle = compiler.oracle().unwrap();
    assert!(oracle.name().starts_with("onnxruntime 1."));
    let (inputs, expected) = reference(&digits());
    let outputs = oracle.outputs(&digits(), &inputs, Duration::from_secs(60), &Cancel::default()).unwrap();
    let values = |t: &HostTensor| Tensor::try_from(t.clone()).unwrap().to_f64s();
    for (name, tensor) in &expected {
        for (right, told) in values(tensor).iter().zip(values(&outputs[name])) {
            assert!((right - told).abs() < 1e-4, "{name}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let foo = small_model(folder.path(), "Foo");
    let error = oracle.outputs(&foo, &rows(1, 4), Duration::from_secs(60), &Cancel::default()).unwrap_err();
    assert!(error.message.contains("Foo"), "{error}");
    let error = oracle.outputs(&digits(), &inputs, Duration::ZERO, &Cancel::default()).unwrap_err();
    assert_eq!(error.message, "it took longer than 0 s");
}
