//! Models as ONNX Runtime's own quantizer makes them: the native engine rounds some numbers to the other side than the
//! reference, and that is right.

mod support;

use planforge_backend::{Cancel, Compiler, LoadOptions};
use planforge_cpu::CpuCompiler;
use planforge_device::CpuLevel;
use planforge_graph::ir::Graph;
use planforge_import::import;
use planforge_onnx::Model;
use planforge_types::Precision;
use planforge_worker::{
    measure::MonotonicClock,
    verify::{Check, ORACLE_BUDGET_MS, inputs},
};
use std::{fs, path::Path};
use support::Silent;

#[test]
fn quantized_models_are_right_on_every_level() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/quantized");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for model in files {
        let graph = import(&Model::open(&model).unwrap(), None).unwrap();
        for level in CpuLevel::detect() {
            let scratch = tempfile::tempdir().unwrap();
            let request = support::request(&model, level, scratch.path());
            let plan = CpuCompiler.compile(&request, &Silent, &Cancel::default()).unwrap();
            assert_eq!(plan.facts["reference_steps"], 0, "{}", model.display());
            let name = model.file_stem().unwrap().to_string_lossy().into_owned();
            assert_right(&plan.path, &graph, &format!("{name} {level:?}"));
        }
    }
}

/// What the compiler of the revision before made of one of these models.
#[test]
fn a_plan_of_the_revision_before_is_opened_and_right() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    let graph = import(&Model::open(&fixtures.join("quantized/images-qdq.onnx")).unwrap(), None).unwrap();
    assert_right(&fixtures.join("plans/images-qdq-revision-8.plan"), &graph, "revision 8");
}

fn assert_right(plan: &Path, graph: &Graph, name: &str) {
    let mut meter = CpuCompiler.load(plan, &LoadOptions::default()).unwrap();
    // One set of inputs in a row of several has a rounding that falls the other way.
    for seed in 0..4 {
        let inputs = inputs::generate(&inputs::of_graph(graph).unwrap(), seed);
        meter.bind(&inputs).unwrap();
        let check = Check {
            graph: Ok(graph),
            independent: None,
            second: None,
            inputs: &inputs,
            eval: None,
            precision: Precision::Fp32,
            budget_ms: ORACLE_BUDGET_MS,
            clock: &MonotonicClock::default(),
            cancel: &Cancel::default(),
        };
        let verdict = check.run(&mut *meter).unwrap();
        assert!(verdict.accurate, "{name} {seed}: {:?}", verdict.findings);
    }
}
