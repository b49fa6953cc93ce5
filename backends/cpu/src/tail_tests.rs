//! Engines whose sizes only data decides: right, of real size, repeatable, within bounds and at varying shapes.

use super::*;
use planforge_backend::{Cancel, CompileRequest, Compiler, Events, LoadOptions, Meter, Window};
use planforge_device::{CpuLevel, cpu};
use planforge_graph::{interpreter, ir::Tensor};
use planforge_import::{
    Bounds, import_open,
    testing::{TestModel, int, ints, numbers},
};
use planforge_types::{
    BackendError, BuildSpec, Digest, DimRange, ElementType, HostTensor, NamedTensors, OptimizationLevel,
    OptimizationProfile, fingerprint::HostFacts,
};
use prost::Message as _;
use std::{collections::BTreeMap, fs, path::Path};

struct Silent;
impl Events for Silent {
    fn progress(&self, _phase: &str, _fraction: f32, _detail: &str) {}
    fn log(&self, _line: &str) {}
}

/// Boxes from a convolution, suppressed, and a head on what is left: the shape of every detector.
fn detector() -> TestModel {
    TestModel::new(17)
        .input("x", &[1, 3, 8, 8])
        .floats("w", &[8, 3, 3, 3], &numbers(216))
        .floats("head", &[8, 512], &numbers(4096))
        .floats("bias", &[512], &numbers(512))
        .floats("weights", &[64, 8, 3, 3], &numbers(4608))
        .longs("rows", &[64, 8])
        .longs("boxes shape", &[1, 64, 4])
        .longs("scores shape", &[1, 1, 64])
        .longs("four", &[4])
        .longs("five", &[5])
        .longs("one", &[1])
        .longs("zero", &[0])
        .longs("last", &[1])
        .longs("two", &[2])
        .longs("minus", &[-1])
        .longs("images", &[-1, 8, 1, 1])
        .longs("most", &[20])
        .floats("overlap", &[1], &[0.4])
        .floats("least", &[1], &[-0.5])
        .node("Conv", &["x", "w"], "map", vec![ints("pads", &[1; 4])])
        .node("Transpose", &["map"], "nhwc", vec![ints("perm", &[0, 2, 3, 1])])
        .node("Reshape", &["nhwc", "rows"], "all", vec![])
        .node("Slice", &["all", "zero", "four", "last"], "corners", vec![])
        .node("Slice", &["all", "four", "five", "last"], "marks", vec![])
        .node("Reshape", &["corners", "boxes shape"], "boxes", vec![])
        .node("Reshape", &["marks", "scores shape"], "scores", vec![])
        .node("NonMaxSuppression", &["boxes", "scores", "most", "overlap", "least"], "selected", vec![])
        .node("Gather", &["selected", "two"], "column", vec![int("axis", 1)])
        .node("Reshape", &["column", "minus"], "kept", vec![])
        .node("Gather", &["all", "kept"], "lines", vec![int("axis", 0)])
        .node("Gemm", &["lines", "head", "bias"], "hidden", vec![])
        .node("Relu", &["hidden"], "features", vec![])
        .node("Reshape", &["lines", "images"], "pixels", vec![])
        .node("Conv", &["pixels", "weights"], "maps", vec![ints("pads", &[1; 4])])
        .output("map")
        .output("kept")
        .output("features")
        .output("maps")
}

fn request(model: &TestModel, folder: &Path, profiles: Vec<OptimizationProfile>, bounds: &str) -> CompileRequest {
    let path = folder.join("model.onnx");
    fs::write(&path, model.proto.encode_to_vec()).expect("the model is written");
    let options = if bounds.is_empty() { BTreeMap::new() } else { BTreeMap::from([("bounds".into(), bounds.into())]) };
    CompileRequest {
        model: path,
        model_digest: Digest::of(b"model"),
        sku: CpuLevel::detect().last().expect("a level runs here").sku(),
        device: cpu::detect(&HostFacts::default()).0,
        toolchain: toolchain(),
        spec: BuildSpec {
            threads: Some(1),
            optimization_level: OptimizationLevel(0),
            profiles,
            options,
            ..BuildSpec::default()
        },
        scratch: folder.to_owned(),
        cache: None,
        calibration: None,
        plugins: Vec::new(),
    }
}

fn load(request: &CompileRequest) -> Result<CpuSession, BackendError> {
    let plan = CpuCompiler.compile(request, &Silent, &Cancel::default())?.path;
    CpuSession::load(&plan, &LoadOptions::default())
}

fn image(side: usize, seed: usize) -> NamedTensors {
    let values: Vec<f64> =
        (0..3 * side * side).map(|at| ((at + seed) * (31 + seed) % 89) as f64 / 44.0 - 1.0).collect();
    let tensor = HostTensor::of_values(ElementType::F32, vec![1, 3, side, side], &values);
    NamedTensors::from([("x".to_owned(), tensor)])
}

/// The engine's answers are those of the reference operators; how many boxes there are.
fn assert_right(meter: &mut CpuSession, model: &TestModel, given: &NamedTensors) -> usize {
    let shapes = given.iter().map(|(name, tensor)| (name.as_str(), &tensor.shape[..]));
    let profile = OptimizationProfile::of_shapes(shapes);
    let graph = import_open(&model.model(), Some(&profile), false, &Bounds::new()).expect("it is imported").graph;
    meter.bind(given).expect("the engine takes it");
    let answers = meter.run().expect("the engine runs");
    let given: BTreeMap<String, Tensor> = given
        .iter()
        .map(|(name, tensor)| (name.clone(), Tensor::try_from(tensor.clone()).expect("a tensor")))
        .collect();
    let wanted = interpreter::execute(&graph, &given).expect("the reference runs");
    assert!(answers.keys().eq(wanted.keys()), "{:?} {:?}", answers.keys(), wanted.keys());
    for (name, wanted) in &wanted {
        let answer = Tensor::try_from(answers[name].clone()).expect("a tensor");
        assert_eq!((answer.shape(), answer.element()), (wanted.shape(), wanted.element()), "{name}");
        for (got, want) in answer.to_f64s().iter().zip(wanted.to_f64s()) {
            assert!((got - want).abs() <= 1e-4 * want.abs().max(1.0), "{name}: {got} is not {want}");
        }
    }
    wanted["kept"].len()
}

#[test]
fn a_detector_gives_as_many_boxes_as_it_finds() {
    let (model, folder) = (detector(), tempfile::tempdir().expect("a folder"));
    let mut meter = load(&request(&model, folder.path(), Vec::new(), "")).expect("it is built");
    let shapes: Vec<(String, Vec<Option<u64>>)> =
        meter.outputs().into_iter().map(|port| (port.name, port.shape)).collect();
    let names: Vec<&str> = shapes.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["map", "kept", "features", "maps"]);
    assert_eq!((shapes[0].1.as_slice(), shapes[2].1.len()), (&[Some(1), Some(8), Some(8), Some(8)][..], 2));
    let counts: Vec<usize> = (0..4).map(|seed| assert_right(&mut meter, &model, &image(8, seed))).collect();
    assert!(counts.iter().any(|&count| count > 0) && counts.iter().any(|count| *count != counts[0]), "{counts:?}");
    let samples = meter.window(Window { iterations: 2, duration_ms: 0.0 }).expect("it is timed");
    assert_eq!(samples.latency_ms.len(), 2);
    let layers = meter.layers(1).expect("its layers are timed");
    assert!(layers.last().is_some_and(|layer| layer.kind == "tail"), "{layers:?}");
}

#[test]
fn a_plan_is_the_same_twice_and_says_what_follows_its_steps() {
    let folders = [tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder")];
    let plans = folders.each_ref().map(|folder| {
        let request = request(&detector(), folder.path(), Vec::new(), "");
        CpuCompiler.compile(&request, &Silent, &Cancel::default()).expect("it is built")
    });
    let [first, second] = plans.each_ref().map(|plan| fs::read(&plan.path).expect("a plan"));
    assert!(first == second, "two builds of one model differ");
    assert_eq!(plans[0].facts["nodes_sized_by_data"], 8);
    let inspected = inspect(&plans[0].path).expect("it is inspected");
    let tail = inspected.tail.as_ref().expect("something follows");
    assert_eq!(tail.handed, ["all", "boxes", "scores"]);
    assert!(inspected.to_string().contains("whose sizes only data decides"), "{inspected}");
}

#[test]
fn bounds_are_held_and_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let build = |bounds: &str| load(&request(&detector(), folder.path(), Vec::new(), bounds));
    let mut meter = build("kept:64").expect("it is built");
    let count = assert_right(&mut meter, &detector(), &image(8, 1));
    assert!(count > 1, "{count}");
    let mut meter = build(&format!("kept:{}", count - 1)).expect("it is built");
    meter.bind(&image(8, 1)).expect("the engine takes it");
    let error = meter.run().expect_err("it is more than the bound");
    let says = format!("value kept has the shape [{count}]");
    assert!(error.message.contains(&says) && error.message.contains("its bound"), "{error}");
    let error = build("kept").expect_err("no size is given");
    assert!(error.message.contains("'kept'"), "{error}");
}

#[test]
fn shapes_may_vary_besides() {
    let mut model = detector();
    // As many rows as there are pixels.
    for (name, values) in [("rows", [-1, 8].as_slice()), ("boxes shape", &[1, -1, 4]), ("scores shape", &[1, 1, -1])] {
        let initializer = model.graph().initializer.iter_mut().find(|tensor| tensor.name == name);
        let bytes: Vec<u8> = values.iter().flat_map(|value: &i64| value.to_le_bytes()).collect();
        initializer.expect("a constant").raw_data = bytes.into();
    }
    for (axis, name) in [(2, "height"), (3, "width")] {
        use planforge_onnx::proto::{tensor_shape_proto::dimension, type_proto};
        let value = model.graph().input[0].r#type.as_mut().and_then(|ty| ty.value.as_mut());
        let Some(type_proto::Value::TensorType(tensor)) = value else { panic!("inputs are tensors") };
        tensor.shape.as_mut().expect("a shape").dim[axis].value = Some(dimension::Value::DimParam(name.into()));
    }
    let range = |min, opt, max| DimRange { min, opt, max };
    let dims = vec![range(1, 1, 1), range(3, 3, 3), range(6, 8, 12), range(6, 8, 12)];
    let profile = OptimizationProfile { inputs: BTreeMap::from([("x".to_owned(), dims)]) };
    let folder = tempfile::tempdir().expect("a folder");
    let mut meter = load(&request(&model, folder.path(), vec![profile], "")).expect("it is built");
    for side in [8, 12, 6, 8] {
        assert_right(&mut meter, &model, &image(side, side));
    }
}
