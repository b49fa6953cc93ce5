//! Plans of one shape and of ranges of shapes, from models that hold their weights and from models whose weights lie in a
//! file beside them: made without a GPU, read when the model's files are gone, and run on the host at every kind of shape.

#[expect(dead_code, reason = "only whole images are needed here")]
#[path = "common/elf.rs"]
mod elf;
mod emulator;

use emulator::{
    Emulator,
    host::{Host, kernels},
};
use planforge_cuda::{
    build,
    plan::{
        self, CheckedPlan, Manifest, Parts, ProfileProgram, TunedOn,
        weights::{Pool, places},
    },
    program::Program,
    source::source_digest,
    versions::Versions,
};
use planforge_graph::{interpreter, ir::Tensor};
use planforge_import::testing::{TestModel, value_info};
use planforge_onnx::{
    Model,
    proto::{
        AttributeProto, GraphProto, NodeProto, StringStringEntryProto, TensorProto, ValueInfoProto,
        attribute_proto::AttributeType,
        tensor_proto::{DataLocation, DataType},
        tensor_shape_proto::{Dimension, dimension::Value},
    },
    write::{Storage, write_model},
};
use planforge_plan::container::{
    self, KIND_CUDA_CODE, KIND_CUDA_MANIFEST, KIND_CUDA_MODEL, KIND_CUDA_MODEL_MESSAGE, KIND_CUDA_MODEL_WEIGHTS,
    KIND_WEIGHTS, Writer,
};
use planforge_types::{BuildSpec, Digest, DimRange, OptimizationProfile, Precision};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

const WIDTH: usize = 24;
const INNER: usize = 40;
/// Rows of the table of which the model reads as many as it is given.
const TABLE_ROWS: usize = 32;
const WEIGHTS: [(&str, &[usize]); 4] =
    [("table", &[TABLE_ROWS, WIDTH]), ("up", &[WIDTH, INNER]), ("bias", &[INNER]), ("down", &[INNER, WIDTH])];
const BOUND: f64 = 1e-2;

/// Small numbers of either sign that repeat nowhere.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut random = StdRng::seed_from_u64(seed);
    (0..count).map(|_| random.random_range(-0.5f32..0.5)).collect()
}

/// `y = relu((x + table[..rows]) up + bias) down` with `rows` open: a constant of it depends on the shape.
fn write(folder: &Path, storage: Storage, rows: Value) -> PathBuf {
    let mut model = TestModel::new(17)
        .longs("zero", &[0])
        .longs("one", &[1])
        .node("Shape", &["x"], "shape", vec![])
        .node("Slice", &["shape", "zero", "one"], "rows", vec![])
        .node("Slice", &["table", "zero", "rows", "zero"], "places", vec![])
        .node("Add", &["x", "places"], "placed", vec![])
        .node("MatMul", &["placed", "up"], "wide", vec![])
        .node("Add", &["wide", "bias"], "biased", vec![])
        .node("Relu", &["biased"], "positive", vec![])
        .node("MatMul", &["positive", "down"], "y", vec![])
        .output("y");
    let size = |value| Dimension { value: Some(value), ..Dimension::default() };
    let dims = vec![size(rows), size(Value::DimValue(WIDTH as i64))];
    model.graph().input.push(value_info("x", DataType::Float as i32, dims));
    let weight = |(name, dims): &(&str, &[usize])| TensorProto {
        name: (*name).into(),
        dims: dims.iter().map(|&size| size as i64).collect(),
        data_type: DataType::Float as i32,
        ..TensorProto::default()
    };
    let weights: Vec<TensorProto> = WEIGHTS.iter().map(weight).collect();
    let path = folder.join("model.onnx");
    let fill = &mut |tensor: &TensorProto, out: &mut dyn io::Write| out.write_all(&content(&tensor.name));
    write_model(&path, &model.proto, &weights, storage, fill).expect("the model is written");
    path
}

/// The same sum of two products, with a weight in each of the ways that a model may have one: beside the file behind
/// others, in a typed field, of a `Constant` node, of a branch's own graph, and one that two nodes read.
fn write_every_way(folder: &Path) -> PathBuf {
    let weight = |name: &str| {
        let (_, dims) = WEIGHTS.iter().find(|(known, _)| *known == name).expect("a weight of the model");
        TensorProto {
            name: name.into(),
            dims: dims.iter().map(|&size| size as i64).collect(),
            data_type: DataType::Float as i32,
            ..TensorProto::default()
        }
    };
    let raw = |name: &str| TensorProto { raw_data: content(name).into(), ..weight(name) };
    let entry = |key: &str, value: usize| StringStringEntryProto { key: key.into(), value: value.to_string() };
    let before = [7u8; 192];
    fs::write(folder.join("beside.bin"), [&before[..], &content("table"), &before].concat()).expect("written");
    let location = StringStringEntryProto { key: "location".into(), value: "beside.bin".into() };
    let table = TensorProto {
        data_location: DataLocation::External as i32,
        external_data: vec![location, entry("offset", before.len()), entry("length", content("table").len())],
        ..weight("table")
    };
    let up = content("up");
    let floats = up.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let up = TensorProto { float_data: floats.collect(), ..weight("up") };
    let of_graph = |name: &str, graph: GraphProto| AttributeProto {
        name: name.into(),
        g: Some(graph.into()),
        r#type: AttributeType::Graph as i32,
        ..AttributeProto::default()
    };
    let branch = GraphProto {
        name: "branch".into(),
        initializer: vec![raw("down")],
        node: vec![NodeProto {
            op_type: "MatMul".into(),
            input: vec!["positive".into(), "down".into()],
            output: vec!["chosen".into()],
            ..NodeProto::default()
        }],
        output: vec![ValueInfoProto { name: "chosen".into(), ..ValueInfoProto::default() }],
        ..GraphProto::default()
    };
    let constant = AttributeProto {
        name: "value".into(),
        t: Some(raw("bias").into()),
        r#type: AttributeType::Tensor as i32,
        ..AttributeProto::default()
    };
    let truth = Tensor::from_bools(vec![], vec![1]).expect("one truth");
    let mut model = TestModel::new(17)
        .longs("zero", &[0])
        .longs("one", &[1])
        .constant("truth", &truth)
        .node("Constant", &[], "bias", vec![constant])
        .node("Shape", &["x"], "shape", vec![])
        .node("Slice", &["shape", "zero", "one"], "rows", vec![])
        .node("Slice", &["table", "zero", "rows", "zero"], "places", vec![])
        .node("Add", &["x", "places"], "placed", vec![])
        .node("MatMul", &["placed", "up"], "wide", vec![])
        .node("Add", &["wide", "bias"], "biased", vec![])
        .node("Relu", &["biased"], "positive", vec![])
        .node("If", &["truth"], "first", vec![of_graph("then_branch", branch.clone()), of_graph("else_branch", branch)])
        .node("Transpose", &["up"], "tied", vec![])
        .node("MatMul", &["positive", "tied"], "second", vec![])
        .node("Add", &["first", "second"], "y", vec![])
        .output("y");
    model.graph().initializer.extend([table, up]);
    let size = |value| Dimension { value: Some(value), ..Dimension::default() };
    let dims = vec![size(Value::DimParam("rows".into())), size(Value::DimValue(WIDTH as i64))];
    model.graph().input.push(value_info("x", DataType::Float as i32, dims));
    let path = folder.join("every-way.onnx");
    planforge_onnx::write::save(&path, &model.proto).expect("the model is written");
    path
}

/// What a weight holds.
fn content(name: &str) -> Vec<u8> {
    let index = WEIGHTS.iter().position(|(known, _)| *known == name).expect("a weight of the model");
    let count = WEIGHTS[index].1.iter().product();
    numbers(index as u64, count).iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn spec(precision: Precision, rows: [u64; 3]) -> BuildSpec {
    let [min, opt, max] = rows;
    let width = WIDTH as u64;
    let dims = vec![DimRange { min, opt, max }, DimRange { min: width, opt: width, max: width }];
    let profile = OptimizationProfile { inputs: BTreeMap::from([("x".to_owned(), dims)]) };
    BuildSpec { precision, profiles: vec![profile], ..BuildSpec::default() }
}

/// The plan of a model, whose tactics nobody timed and whose machine code is made up.
fn built(model: &Path, spec: &BuildSpec, to: &Path) -> PathBuf {
    let file = Model::open(model).expect("the model is read");
    let draft = build::draft(&file, spec).expect("every node has device code");
    let held = spec.varies().then(|| build::held_model(&file, &draft).expect("the model is taken along"));
    let mut code = BTreeMap::new();
    let mut programs = Vec::new();
    for (mut program, rows_apart) in draft.programs.into_iter().zip(draft.rows_apart) {
        program.drop_unused_sources();
        for source in &program.sources {
            code.insert(source_digest(source), elf::image(90, "kernel", 2, &source.text.as_bytes()[..40]).0);
        }
        programs.push(ProfileProgram { program, rows_apart, tried: BTreeMap::new() });
    }
    let versions =
        Versions { driver: "13.0".into(), nvrtc: "13.0".into(), cublaslt: "13.1.0".into(), cudnn: "9.19.0".into() };
    let mut manifest = Manifest {
        model_digest: Digest::of(b"model"),
        sku: "h200-sxm".parse().expect("a SKU"),
        toolchain: versions.toolchain("580.1"),
        versions,
        spec: spec.clone().canonical(),
        device_class: Digest::of(b"class"),
        tuned_on: TunedOn { name: "NVIDIA H200".into(), architecture: "sm_90a".into(), sm_count: 132 },
        graph: draft.graph,
        passes: draft.passes,
        inputs: draft.inputs,
        outputs: draft.outputs,
        programs,
        kernels: Vec::new(),
    };
    let parts = Parts { weights: &draft.weights, code, library_plans: BTreeMap::new(), model: held.as_ref() };
    let path = to.join("engine.plan");
    plan::write(&path, &mut manifest, &parts).expect("the plan is written");
    path
}

fn input(rows: usize) -> Tensor {
    Tensor::from_vec(vec![rows, WIDTH], numbers(9, rows * WIDTH)).expect("as many values as the shape says")
}

/// What the reference makes of so many rows.
fn expected(model: &Path, rows: usize) -> Vec<f64> {
    let shapes = OptimizationProfile::of_shapes([("x", &[rows, WIDTH][..])]);
    let graph = planforge_import::import(&Model::open(model).expect("read"), Some(&shapes)).expect("imported");
    let inputs = BTreeMap::from([("x".to_owned(), input(rows))]);
    interpreter::execute(&graph, &inputs).expect("the reference computes it")["y"].to_f64s()
}

/// Runs a program by kernels of ours and compares it.
fn check(emulator: &Emulator, what: &str, program: &Program, weights: &[u8], rows: usize, expected: &[f64]) {
    let inputs = BTreeMap::from([("x".to_owned(), input(rows))]);
    let mut host = Host::new(emulator, program, weights, &inputs);
    for step in &program.steps {
        let choice = kernels(program, step);
        let (kernel, as_) = choice.first().unwrap_or_else(|| panic!("{what}: no kernel computes {}", step.name));
        host.run(step, kernel, *as_).unwrap_or_else(|error| panic!("{what}, {}: {error}", step.name));
    }
    let got = host.output(0).to_f64s();
    assert_eq!(got.len(), expected.len(), "{what}");
    let squares: f64 = expected.iter().map(|x| x * x).sum();
    let differences: f64 = got.iter().zip(expected).map(|(a, b)| (a - b) * (a - b)).sum();
    let error = (differences / squares).sqrt();
    assert!(error < BOUND, "{what}: relative error {error:e}");
}

/// The program of a plan at so many rows, and all of its constants.
fn at_rows(plan: &CheckedPlan, rows: usize) -> (Program, Vec<u8>) {
    let model = plan.model().expect("what the plan holds is a model").expect("the plan holds its model");
    let known = places(plan.manifest.programs.iter().map(|profile| &profile.program), plan.weights());
    let mut pool = Pool::behind(plan.weights().len() as u64, known);
    let shapes = BTreeMap::from([("x".to_owned(), vec![rows as u64, WIDTH as u64])]);
    let program = build::at_shapes(&model, &shapes, &plan.manifest.spec, &mut pool).expect("it suits the model");
    let mut program = [program];
    let own = pool.into_bytes(&mut program);
    let [program] = program;
    (program, [plan.weights(), &own].concat())
}

#[test]
fn every_shape_of_a_range_is_right_when_the_model_is_gone_wherever_its_weights_lay() {
    let Some(emulator) = Emulator::new() else { return };
    let open = Value::DimParam("rows".into());
    for (storage, precision) in
        [(Storage::Inline, Precision::Fp16), (Storage::External, Precision::Fp16), (Storage::External, Precision::Fp32)]
    {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let model = write(folder.path(), storage, open.clone());
        let sizes = [1, 5, 8, 20];
        let expected = sizes.map(|rows| expected(&model, rows));
        let plans = tempfile::tempdir().expect("a temporary folder");
        let plan = built(&model, &spec(precision, [1, 8, 20]), plans.path());
        drop(folder);
        assert!(!model.exists());
        let plan = plan::read(&plan).expect("the plan is read");
        assert_eq!(plan.manifest.inputs[0].shape, [None, Some(WIDTH as u64)]);
        let what = |rows| format!("{storage:?} {precision:?}, {rows} rows");
        check(&emulator, &what(8), &plan.manifest.programs[0].program, plan.weights(), 8, &expected[2]);
        for (rows, expected) in sizes.into_iter().zip(&expected) {
            let (program, weights) = at_rows(&plan, rows);
            check(&emulator, &what(rows), &program, &weights, rows, expected);
        }
    }
}

#[test]
fn every_shape_of_a_range_is_right_whichever_way_a_weight_comes() {
    let Some(emulator) = Emulator::new() else { return };
    for precision in [Precision::Fp16, Precision::Fp32] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let model = write_every_way(folder.path());
        let sizes = [1, 5, 8, 20];
        let expected = sizes.map(|rows| expected(&model, rows));
        let plans = tempfile::tempdir().expect("a temporary folder");
        let plan = built(&model, &spec(precision, [1, 8, 20]), plans.path());
        drop(folder);
        let bytes = fs::read(&plan).expect("read");
        for name in ["table", "up", "down"] {
            let content = content(name);
            let found = bytes.windows(content.len()).filter(|part| *part == content).count();
            assert!(found <= 1, "{precision:?}: {name} lies there {found} times");
        }
        let plan = plan::read(&plan).expect("the plan is read");
        for (rows, expected) in sizes.into_iter().zip(&expected) {
            let (program, weights) = at_rows(&plan, rows);
            check(&emulator, &format!("every way, {precision:?}, {rows} rows"), &program, &weights, rows, expected);
        }
    }
}

#[test]
fn a_plan_of_one_shape_is_right_and_holds_no_model_wherever_the_weights_lay() {
    let Some(emulator) = Emulator::new() else { return };
    for storage in [Storage::Inline, Storage::External] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let model = write(folder.path(), storage, Value::DimValue(8));
        let expected = expected(&model, 8);
        let plans = tempfile::tempdir().expect("a temporary folder");
        let spec = BuildSpec { precision: Precision::Fp16, ..BuildSpec::default() };
        let plan = built(&model, &spec, plans.path());
        drop(folder);
        let plan = plan::read(&plan).expect("the plan is read");
        assert!(plan.model().expect("nothing is broken").is_none());
        let program = &plan.manifest.programs[0].program;
        check(&emulator, &format!("{storage:?}"), program, plan.weights(), 8, &expected);
    }
}

#[test]
fn no_weight_lies_in_a_plan_twice() {
    let mut sizes = Vec::new();
    for storage in [Storage::Inline, Storage::External] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let model = write(folder.path(), storage, Value::DimParam("rows".into()));
        let plan = built(&model, &spec(Precision::Fp32, [1, 8, 20]), folder.path());
        let bytes = fs::read(&plan).expect("read");
        // Those of a few bytes lie in the model's message, too.
        for (name, _) in WEIGHTS.into_iter().filter(|(name, _)| content(name).len() >= 1024) {
            let content = content(name);
            let found = bytes.windows(content.len()).filter(|part| *part == content).count();
            assert!(found <= 1, "{storage:?}: {name} lies there {found} times");
        }
        sizes.push(bytes.len());
    }
    assert!(sizes[0].abs_diff(sizes[1]) < 1024, "where weights lay makes no difference: {sizes:?}");
}

#[test]
fn a_profile_that_does_not_suit_the_model_is_refused_before_anything_is_timed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = write(folder.path(), Storage::External, Value::DimParam("rows".into()));
    let file = Model::open(&model).expect("read");
    // The table ends before the largest shape does.
    let error = build::draft(&file, &spec(Precision::Fp16, [1, 8, 40])).expect_err("there are no such rows");
    assert!(error.message.contains("at the largest shapes of profile 0"), "{error}");
}

#[test]
fn plans_that_hold_the_file_itself_go_on_opening() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = write(folder.path(), Storage::Inline, Value::DimParam("rows".into()));
    let plan = built(&model, &spec(Precision::Fp16, [1, 8, 20]), folder.path());
    let bytes = fs::read(&plan).expect("read");
    let known = [KIND_CUDA_MANIFEST, KIND_WEIGHTS, KIND_CUDA_CODE, KIND_CUDA_MODEL_MESSAGE, KIND_CUDA_MODEL_WEIGHTS];
    let sections = container::read(&bytes, &known).expect("it is a plan");
    let part = |kind| container::only(&sections, kind, "section").expect("it is there").bytes(&bytes);
    let old = folder.path().join("old.plan");
    let mut writer = Writer::create(&old, 4).expect("created");
    for kind in [KIND_CUDA_MANIFEST, KIND_WEIGHTS, KIND_CUDA_CODE] {
        writer.section::<io::Error>(kind, |out| out.write_all(part(kind))).expect("written");
    }
    let file = fs::read(&model).expect("read");
    writer.optional_section::<io::Error>(KIND_CUDA_MODEL, |out| out.write_all(&file)).expect("written");
    writer.finish().expect("written");
    let old = plan::read(&old).expect("a plan of an earlier revision is read");
    let (now, _) = at_rows(&plan::read(&plan).expect("read"), 5);
    let (then, _) = at_rows(&old, 5);
    assert_eq!(then, now);
    // A message without its weights is no plan.
    let broken = folder.path().join("broken.plan");
    let mut writer = Writer::create(&broken, 4).expect("created");
    for kind in [KIND_CUDA_MANIFEST, KIND_WEIGHTS, KIND_CUDA_CODE, KIND_CUDA_MODEL_MESSAGE] {
        writer.section::<io::Error>(kind, |out| out.write_all(part(kind))).expect("written");
    }
    writer.finish().expect("written");
    let error = plan::read(&broken).expect_err("its model has no weights").to_string();
    assert!(error.contains("lacks its weights of the model"), "{error}");
}
