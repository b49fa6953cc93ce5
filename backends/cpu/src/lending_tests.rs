//! Outputs that pass: lent behind the step that makes them, in memory that others write afterwards.

use super::{program::ProgramError, *};
use planforge_backend::{Cancel, CompileRequest, Compiler, Events, LoadOptions, Meter};
use planforge_device::{CpuLevel, cpu};
use planforge_import::testing::{TestModel, numbers};
use planforge_onnx::write::save;
use planforge_types::{BuildSpec, Digest, HostTensor, NamedTensors, OptimizationLevel, Port, fingerprint::HostFacts};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

const LAYERS: usize = 8;
const WIDTH: usize = 64;
const ROWS: usize = 32;

struct Silent;
impl Events for Silent {
    fn progress(&self, _phase: &str, _fraction: f32, _detail: &str) {}
    fn log(&self, _line: &str) {}
}

/// Layers one behind the other, the results of all of them outputs; what the first gives the last one reads, too.
fn chain_of_layers() -> TestModel {
    let weights: Vec<f32> = numbers(WIDTH * WIDTH).into_iter().map(|value| value / 8.0).collect();
    let mut model = TestModel::new(17).input("x", &[ROWS as i64, WIDTH as i64]).floats("w", &[WIDTH, WIDTH], &weights);
    let mut from = "x".to_owned();
    for layer in 0..LAYERS {
        let (product, to) = (format!("p{layer}"), format!("h{layer}"));
        model = model.node("MatMul", &[&from, "w"], &product, vec![]).node("Tanh", &[&product], &to, vec![]);
        model = model.output(&to);
        from = to;
    }
    model.node("Add", &["h0", &from], "y", vec![]).output("y")
}

fn request(folder: &Path) -> CompileRequest {
    let path = folder.join("model.onnx");
    save(&path, &chain_of_layers().proto).unwrap();
    let spec = BuildSpec { threads: Some(1), optimization_level: OptimizationLevel(0), ..BuildSpec::default() };
    CompileRequest {
        model: path,
        model_digest: Digest::of(b"a chain of layers"),
        sku: CpuLevel::detect().pop().expect("this CPU has a level").sku(),
        device: cpu::detect(&HostFacts::default()).0,
        toolchain: toolchain(),
        spec,
        scratch: folder.to_owned(),
        cache: None,
        calibration: None,
        plugins: Vec::new(),
    }
}

/// The engine with these outputs passing, on made-up numbers.
fn engine(folder: &Path, passing: &BTreeSet<String>) -> Box<dyn Meter> {
    let plan = CpuCompiler.compile_lending(&request(folder), passing, &Silent, &Cancel::default()).unwrap();
    let mut meter = CpuCompiler.load(&plan.path, &LoadOptions::default()).unwrap();
    let bytes = numbers(ROWS * WIDTH).into_iter().flat_map(f32::to_le_bytes).collect();
    let tensor = HostTensor { element: planforge_types::ElementType::F32, shape: vec![ROWS, WIDTH], bytes };
    meter.bind(&NamedTensors::from([("x".to_owned(), tensor)])).unwrap();
    meter
}

/// What a run lends, and what is lent first.
fn lent(meter: &mut dyn Meter) -> (BTreeMap<String, Vec<u8>>, Vec<String>) {
    let (mut all, mut order) = (BTreeMap::new(), Vec::new());
    let look = &mut |some: &[planforge_backend::Lent<'_>]| {
        for lent in some {
            assert!(all.insert(lent.name.to_owned(), lent.bytes.to_vec()).is_none(), "{} is lent twice", lent.name);
            order.push(lent.name.to_owned());
        }
    };
    meter.run_lending(look).unwrap();
    (all, order)
}

fn names(ports: Vec<Port>) -> BTreeSet<String> {
    ports.into_iter().map(|port| port.name).collect()
}

#[test]
fn what_passes_is_lent_as_it_was_made_and_makes_room_for_others() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let passing: BTreeSet<String> = (0..LAYERS).map(|layer| format!("h{layer}")).collect();
    let mut keeps = engine(folders[0].path(), &BTreeSet::new());
    let mut lends = engine(folders[1].path(), &passing);
    let (kept, _) = lent(&mut *keeps);
    assert_eq!(kept.keys().cloned().collect::<BTreeSet<_>>(), names(keeps.outputs()));
    for run in 0..2 {
        let (seen, order) = lent(&mut *lends);
        assert_eq!(seen, kept, "run {run}");
        assert!(order.is_sorted(), "h0, h1, … and then y: {order:?}");
    }
    // The first result is there until the sum, one more is read while the next is made, and the products before them.
    let value = ROWS * WIDTH * size_of::<f32>();
    let saved = keeps.memory_bytes() - lends.memory_bytes();
    assert!(saved as usize >= (LAYERS - 4) * value, "{saved} bytes less of {value} each");
    // Who does not look at them on the way has them no more.
    assert_eq!(names(lends.outputs()), BTreeSet::from(["y".to_owned()]));
    assert_eq!(lends.run().unwrap().into_keys().collect::<Vec<_>>(), ["y"]);
}

#[test]
fn a_plan_in_which_a_value_passes_that_no_step_makes_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let passing = BTreeSet::from(["h1".to_owned(), "no such value".to_owned()]);
    let plan = CpuCompiler.compile_lending(&request(folder.path()), &passing, &Silent, &Cancel::default()).unwrap();
    let mut program = plan::read(&plan.path).unwrap().manifest.program;
    assert_eq!(program.passing.iter().map(|port| port.name.as_str()).collect::<Vec<_>>(), ["h1"]);
    assert_eq!(program.check(), Ok(()));
    program.passing[0].buffer = program.inputs[0].buffer;
    assert_eq!(program.check(), Err(ProgramError::Port { name: "h1".to_owned() }));
}

#[test]
fn what_is_timed_briefly_serves_no_engine_that_is_kept_and_what_is_timed_at_length_serves_all() {
    let folder = tempfile::tempdir().unwrap();
    let timed = |cache: &str, lends: bool| {
        let plain = request(folder.path());
        let spec = BuildSpec { optimization_level: OptimizationLevel(2), ..plain.spec };
        let request = CompileRequest { spec, cache: Some(folder.path().join(cache)), ..plain };
        let plan = match lends {
            true => CpuCompiler.compile_lending(&request, &BTreeSet::new(), &Silent, &Cancel::default()),
            false => CpuCompiler.compile(&request, &Silent, &Cancel::default()),
        };
        let facts = plan.unwrap().facts;
        (facts["tactics_timed"].as_u64().unwrap(), facts["tactics_known"].as_u64().unwrap())
    };
    let (first, same) = timed("brief first", true);
    assert!(first > 0 && first + same == LAYERS as u64, "{first} timed, {same} like those");
    assert_eq!(timed("brief first", true), (0, LAYERS as u64));
    assert_eq!(timed("brief first", false), (first, same), "what was timed briefly is not enough");
    assert_eq!(timed("at length first", false), (first, same));
    assert_eq!(timed("at length first", true), (0, LAYERS as u64));
}

#[test]
fn of_most_kernels_a_brief_timing_tries_the_first_tactic_alone() {
    let folder = tempfile::tempdir().unwrap();
    let plain = request(folder.path());
    let spec = BuildSpec { optimization_level: OptimizationLevel(2), ..plain.spec };
    let request = CompileRequest { spec, ..plain };
    // How many tactics of each kernel were tried, by step.
    let tried = |plan: planforge_backend::CompiledPlan| -> Vec<BTreeMap<String, usize>> {
        let program = plan::read(&plan.path).unwrap().manifest.program;
        let of = |tried: &[program::TimedTactic]| {
            let mut counts = BTreeMap::new();
            tried.iter().for_each(|timed| *counts.entry(timed.tactic.kernel.clone()).or_insert(0) += 1);
            counts
        };
        program.steps.iter().filter(|step| !step.tried.is_empty()).map(|step| of(&step.tried)).collect()
    };
    let full = tried(CpuCompiler.compile(&request, &Silent, &Cancel::default()).unwrap());
    let brief = CpuCompiler.compile_lending(&request, &BTreeSet::new(), &Silent, &Cancel::default()).unwrap();
    let brief = tried(brief);
    assert_eq!((full.len(), brief.len()), (LAYERS, LAYERS));
    for (full, brief) in full.iter().zip(&brief) {
        assert!(full.keys().eq(brief.keys()), "every kernel is tried: {full:?}, {brief:?}");
        let beyond = brief.iter().filter(|(kernel, count)| **count < full[*kernel]);
        assert_eq!(beyond.clone().count(), full.len().saturating_sub(2), "{full:?}, {brief:?}");
        assert!(beyond.clone().all(|(_, count)| *count == 1), "{brief:?}");
    }
}
