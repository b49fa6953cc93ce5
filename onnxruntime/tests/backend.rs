//! The backend on the real library. Where none is found these tests pass without testing anything and say so, unless
//! `PLANFORGE_TEST_ONNXRUNTIME=required`.

use planforge_engine_core::{
    backend::{
        Cancel, CompileRequest, CompiledPlan, Compiler, Events, HostTensor, LoadOptions, Meter, NamedTensors, Window,
    },
    device::{DiscoveredDevice, cpu},
    identity::{BuildSpec, Digest, DimRange, OptimizationLevel, OptimizationProfile, Toolchain},
    import,
    ir::Tensor,
    ops,
    verify::inputs,
};
use planforge_onnx::Model;
use planforge_onnxruntime::OnnxRuntimeCompiler;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The compiler, where there is a library.
fn found() -> Option<OnnxRuntimeCompiler> {
    let compiler = OnnxRuntimeCompiler::of_environment();
    match compiler.library() {
        Ok(_) => Some(compiler),
        Err(error) if std::env::var_os("PLANFORGE_TEST_ONNXRUNTIME").is_some_and(|value| value == "required") => {
            panic!("{error} {}", error.hint)
        }
        #[expect(clippy::print_stderr, reason = "a test that tests nothing says so")]
        Err(error) => {
            eprintln!("SKIPPED: {error}");
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
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits/digits.onnx")
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
    let graph = import::import(&Model::open(model).unwrap(), None).unwrap();
    let inputs = inputs::generate(&inputs::of_graph(&graph).unwrap(), 7);
    let tensors = inputs.iter().map(|(name, t)| (name.clone(), Tensor::try_from(t.clone()).unwrap())).collect();
    let outputs = ops::execute(&graph, &tensors).unwrap();
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
