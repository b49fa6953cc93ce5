//! Models as ONNX Runtime's own quantizer makes them, on ONNX Runtime itself: it multiplies integers and rounds some sums
//! to the other side than the reference, and that is right.

use planforge_backend::{Cancel, CompileRequest, Compiler, Events, LoadOptions};
use planforge_device::cpu;
use planforge_onnxruntime::OnnxRuntimeCompiler;
use planforge_types::{BuildSpec, Digest, Precision, fingerprint::DiscoveredDevice, spec::OptimizationLevel};
use planforge_worker::{
    measure::MonotonicClock,
    verify::{Check, ORACLE_BUDGET_MS, Second, inputs},
};
use std::{fs, path::Path};

struct Silent;

impl Events for Silent {
    fn progress(&self, _: &str, _: f32, _: &str) {}
    fn log(&self, _: &str) {}
}

fn has_vnni() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512vnni") || is_x86_feature_detected!("avxvnni");
    #[cfg(not(target_arch = "x86_64"))]
    true
}

#[test]
fn quantized_models_are_right_on_the_runtime_they_were_made_for() {
    let compiler = OnnxRuntimeCompiler::of_environment();
    if let Err(error) = compiler.library() {
        let needed = std::env::var_os("PLANFORGE_TEST_ONNXRUNTIME").is_some_and(|value| value == "required");
        assert!(!needed, "{error} {}", error.hint);
        planforge_skipped::skipped(error);
        return;
    }
    let (fingerprint, levels) = cpu::detect(&cpu::host_facts());
    let skus: Vec<_> = levels.iter().map(|level| level.sku()).collect();
    let device =
        DiscoveredDevice { id: "cpu0".into(), fingerprint, skus, threads: 1, offers: Vec::new(), simulated: false };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/quantized");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let is = |file: &Path, name: &str| file.file_stem().is_some_and(|stem| stem == name);
    let oracle = compiler.oracle().unwrap();
    for model in files {
        let graph = planforge_import::import(&planforge_onnx::Model::open(&model).unwrap(), None).unwrap();
        let scratch = tempfile::tempdir().unwrap();
        let request = CompileRequest {
            model: model.clone(),
            model_digest: Digest::of(&fs::read(&model).unwrap()),
            sku: device.skus.last().unwrap().clone(),
            toolchain: compiler.toolchains(&device).pop().unwrap(),
            // Optimised further the runtime makes an integer softmax of this one, whose results are up to a step low.
            spec: BuildSpec {
                threads: Some(1),
                optimization_level: if is(&model, "tokens-qdq") {
                    OptimizationLevel(1)
                } else {
                    OptimizationLevel::default()
                },
                ..BuildSpec::default()
            },
            device: device.fingerprint.clone(),
            scratch: scratch.path().to_owned(),
            cache: None,
            calibration: None,
            plugins: Vec::new(),
        };
        let plan = compiler.compile(&request, &Silent, &Cancel::default()).unwrap();
        let mut meter = compiler.load(&plan.path, &LoadOptions::default()).unwrap();
        let second = Second { runtime: Some(&*oracle), model: &model, model_digest: request.model_digest, known: None };
        for seed in 0..24 {
            let inputs = inputs::generate(&inputs::of_graph(&graph).unwrap(), seed);
            meter.bind(&inputs).unwrap();
            let check = Check {
                graph: Ok(&graph),
                independent: None,
                second: Some(second),
                inputs: &inputs,
                eval: None,
                precision: Precision::Fp32,
                budget_ms: ORACLE_BUDGET_MS,
                clock: &MonotonicClock::default(),
                cancel: &Cancel::default(),
            };
            let verdict = check.run(&mut *meter).unwrap();
            let name = model.file_stem().unwrap().to_string_lossy().into_owned();
            // Operator by operator the runtime says what the reference says.
            let agreement = verdict.numerics.as_ref().unwrap().independent.clone().unwrap();
            match &agreement.reason {
                // It knows when it does not know.
                Some(reason) => assert!(!has_vnni() && reason.contains("VNNI"), "{name} {seed}: {agreement:?}"),
                None => assert_eq!(agreement.agrees, Some(true), "{name} {seed}: {agreement:?}"),
            }
            // Here the integer softmax stands in the model itself: single inputs are refused.
            assert!(verdict.accurate || is(&model, "tokens-qoperator"), "{name} {seed}: {:?}", verdict.findings);
        }
    }
}
