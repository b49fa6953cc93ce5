//! A constant that several steps use lies in a plan once.

use super::*;
use planforge_backend::{Cancel, CompileRequest, Compiler, Events, LoadOptions};
use planforge_device::{CpuLevel, cpu};
use planforge_graph::interpreter;
use planforge_import::testing::{TestModel, dim, numbers, value_info};
use planforge_onnx::{
    proto::{
        AttributeProto, GraphProto, NodeProto, ValueInfoProto, attribute_proto::AttributeType,
        tensor_shape_proto::dimension::Value,
    },
    write::save,
};
use planforge_types::{BuildSpec, Digest, HostTensor, NamedTensors, OptimizationLevel, fingerprint::HostFacts};
use std::fs;

const WIDTH: usize = 512;
/// Most that a plan may take of what its weights take in the model.
const OVERHEAD: f64 = 1.3;

struct Silent;
impl Events for Silent {
    fn progress(&self, _phase: &str, _fraction: f32, _detail: &str) {}
    fn log(&self, _line: &str) {}
}

/// The square matrix that everything here uses, small enough that many products of it stay finite.
fn weight() -> Vec<f32> {
    numbers(WIDTH * WIDTH).into_iter().map(|value| value / 16.0).collect()
}

/// One weight that twelve layers use, as ALBERT has them.
fn layers() -> TestModel {
    let mut model = TestModel::new(17).input("x", &[1, WIDTH as i64]).floats("w", &[WIDTH, WIDTH], &weight()).floats(
        "b",
        &[WIDTH],
        &numbers(WIDTH),
    );
    let mut from = "x".to_owned();
    for layer in 0..12 {
        let (product, sum, to) = (format!("p{layer}"), format!("s{layer}"), format!("h{layer}"));
        model = model.node("MatMul", &[&from, "w"], &product, vec![]).node("Add", &[&product, "b"], &sum, vec![]).node(
            "Tanh",
            &[&sum],
            &to,
            vec![],
        );
        from = to;
    }
    model.output(&from)
}

/// A recurrent network as a loop, whose body turns its weight around at every step.
fn recurrent() -> TestModel {
    let node = |op_type: &str, inputs: &[&str], output: &str| NodeProto {
        op_type: op_type.into(),
        input: inputs.iter().map(|&name| name.to_owned()).collect(),
        output: vec![output.into()],
        ..NodeProto::default()
    };
    let size = |size: usize| dim(Value::DimValue(size as i64));
    let output = |name: &str| ValueInfoProto { name: name.into(), ..ValueInfoProto::default() };
    let body = GraphProto {
        name: "body".into(),
        input: vec![
            value_info("step", 7, vec![]),
            value_info("go", 9, vec![]),
            value_info("h", 1, vec![size(1), size(WIDTH)]),
        ],
        node: vec![
            node("Identity", &["go"], "goes"),
            node("Transpose", &["w"], "turned"),
            node("MatMul", &["h", "turned"], "product"),
            node("Tanh", &["product"], "next"),
        ],
        output: ["goes", "next"].map(output).into(),
        ..GraphProto::default()
    };
    let r#type = AttributeType::Graph as i32;
    let body = AttributeProto { name: "body".into(), g: Some(Box::new(body)), r#type, ..AttributeProto::default() };
    TestModel::new(17)
        .input("x", &[1, WIDTH as i64])
        .floats("w", &[WIDTH, WIDTH], &weight())
        .longs("steps", &[40])
        .node("Loop", &["steps", "", "x"], "y", vec![body])
        .output("y")
}

#[test]
fn a_constant_that_several_steps_use_lies_in_a_plan_once() {
    for (name, model) in [("layers", layers()), ("recurrent", recurrent())] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        save(&path, &model.proto).unwrap();
        let level = CpuLevel::detect().pop().expect("this CPU has a level");
        let spec = BuildSpec { threads: Some(1), optimization_level: OptimizationLevel(0), ..BuildSpec::default() };
        let request = CompileRequest {
            model_digest: Digest::of(&fs::read(&path).unwrap()),
            model: path,
            sku: level.sku(),
            device: cpu::detect(&HostFacts::default()).0,
            toolchain: toolchain(),
            spec,
            scratch: folder.path().to_owned(),
            cache: None,
            calibration: None,
            plugins: Vec::new(),
        };
        let plan = CpuCompiler.compile(&request, &Silent, &Cancel::default()).unwrap().path;
        let (held, weights) = (fs::metadata(&plan).unwrap().len(), (WIDTH * WIDTH * 4) as f64);
        assert!(held as f64 <= OVERHEAD * weights, "{name}: {held} bytes for {weights} of weights");

        let graph = model.import();
        let input = planforge_graph::ir::Tensor::from_vec(vec![1, WIDTH], numbers(WIDTH)).unwrap();
        let expected = interpreter::execute(&graph, &[("x".to_owned(), input.clone())].into()).unwrap();
        let expected = expected.values().next().unwrap().to_f64s();
        let mut meter = CpuCompiler.load(&plan, &LoadOptions::default()).unwrap();
        meter.bind(&NamedTensors::from([("x".to_owned(), HostTensor::from(&input))])).unwrap();
        let got = meter.run().unwrap();
        let got = got.values().next().unwrap().bytes.chunks_exact(4);
        for (got, expected) in got.zip(expected) {
            let got = f64::from(f32::from_le_bytes(got.try_into().unwrap()));
            assert!((got - expected).abs() < 1e-3, "{name}: {got} is not {expected}");
        }
    }
}
