//! Golden digests of what is decided for small models on three devices: a change of it comes with another revision, or
//! does not come.
//!
//! Digested is everything but machine code, which depends on NVRTC's patch version: programs with their steps, memory,
//! streams, tactics and kernels' sources, the sources of all candidates, constants, and which kernels let the ones behind
//! them begin early. Tactics are those of a committed cache, so nothing is timed and no GPU is needed; the devices are
//! the few numbers that decide anything.

#[path = "../../cpu/tests/golden/rule.rs"]
mod rule;

use planforge_cuda::{
    build,
    cache::TacticCache,
    codegen::candidates::{after, own_kernels},
    codegen::{Generated, gemm},
    early::{self, Behind},
    program::{After, Program, Tactic, Work},
    runtime::{self, End},
    schedule::{self, Schedule},
    signature::signature,
    tune::{Effort, Timed, Times, Tuned, recall},
    versions::{CUDA_REVISION, Versions},
};
use planforge_types::{BuildSpec, Digest, DimRange, OptimizationProfile, Precision};
use rule::{Digests, Golden, Revision, judge};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

const REVISION: Revision =
    Revision { number: CUDA_REVISION, constant: "CUDA_REVISION in backends/cuda/src/versions.rs" };
const LEVEL: u8 = 3;

/// What of a device decides anything: T4, A100, H200.
const DEVICES: [(&str, gemm::Device); 3] = [
    ("t4", gemm::Device { capability: 75, sm_count: 40, shared_block_bytes: 65_536 }),
    ("a100", gemm::Device { capability: 80, sm_count: 108, shared_block_bytes: 166_912 }),
    ("h200", gemm::Device { capability: 90, sm_count: 132, shared_block_bytes: 232_448 }),
];

const PRECISIONS: [(&str, Precision); 2] = [("fp16", Precision::Fp16), ("fp32", Precision::Fp32)];

/// Small models: every family of operators that has device code.
fn models() -> Vec<(String, PathBuf)> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace");
    let folder = |path: &str| here.join(path);
    let files = [
        ("digits", folder("examples/digits/digits.onnx")),
        ("block", folder("backends/cpu/tests/golden/block.onnx")),
        ("dense", folder("backends/cpu/tests/golden/dense.onnx")),
        ("varying", folder("backends/cpu/tests/golden/varying.onnx")),
    ];
    let small = [
        "attention",
        "average",
        "chain",
        "conv",
        "depthwise",
        "gather",
        "gemm",
        "matmul",
        "norm",
        "pool",
        "reduce",
        "slice",
        "softmax",
        "transposed",
    ];
    let small = small.map(|name| (name, folder("fuzz/corpus/import_model").join(format!("ok-{name}"))));
    files.into_iter().chain(small).map(|(name, path)| (name.to_owned(), path)).collect()
}

fn spec(model: &str, precision: Precision) -> BuildSpec {
    let mut spec = BuildSpec { precision, ..BuildSpec::default() };
    if model == "varying" {
        let profile = |rows: [u64; 3], height: [u64; 3]| {
            let range = |[min, opt, max]: [u64; 3]| DimRange { min, opt, max };
            let dims = vec![range(rows), range([3; 3]), range(height), range([8; 3])];
            OptimizationProfile { inputs: [("x".to_owned(), dims)].into() }
        };
        spec.profiles = vec![profile([1, 2, 4], [4, 8, 16]), profile([1, 8, 8], [8, 8, 8])];
    }
    spec
}

fn versions() -> Versions {
    Versions { driver: "13.0".into(), nvrtc: "13.0".into(), cublaslt: "13.1.0".into(), cudnn: "9.19.0".into() }
}

/// A tactic for a step that nobody timed, by what the step is: of libraries, that were seen to wait, that were seen not
/// to, and that were not tried; and of our own.
fn first_tactics(program: &mut Program, step: usize, target: gemm::Device) -> Vec<Timed> {
    let work = program.steps[step].work.clone();
    let signature = Digest::of(signature(program, &work).as_bytes());
    let waits = [Some(true), None, Some(false)][usize::from(signature.as_raw()[1] % 3)];
    let dnn = Tactic::Dnn { engine: 41, knobs: vec![(2, 3)], workspace_bytes: 512, waits };
    let words = [u64::from(signature.as_raw()[2]); 8];
    let behind = (runtime::end(program, &work) == End::Kernel).then(|| after(&work)).flatten();
    let behind_source = behind.as_ref().map(|kernel| kernel.source.clone());
    let after = behind.map(|kernel| {
        program.sources.push(kernel.source);
        After { source: program.sources.len() - 1, grid: kernel.grid, block: kernel.block }
    });
    let blas = Tactic::Blas { words, workspace_bytes: 1 << 16, waits, after };
    let own = |program: &mut Program| {
        let kernel = own_kernels(target, program, &work, 1).into_iter().next()?;
        program.sources.push(kernel.source.clone());
        let (grid, block, shared_bytes) = (kernel.grid, kernel.block, kernel.shared_bytes);
        let tactic = Tactic::Kernel { source: program.sources.len() - 1, grid, block, shared_bytes };
        Some(Timed { tactic, us: 2.0, source: Some(kernel.source) })
    };
    let library = |tactic: Tactic| {
        let source = behind_source.clone().filter(|_| tactic.source().is_some());
        Timed { tactic, us: 2.5, source }
    };
    let choice = match (&work, signature.as_raw()[0] % 16) {
        (Work::Attention(_), _) | (_, 0) => own(program),
        (Work::Conv(conv), _) if conv.taps.is_some() => own(program),
        (Work::Product(_), _) => Some(library(blas)),
        _ => None,
    };
    vec![choice.unwrap_or_else(|| library(dnn))]
}

/// Everything that is decided for a model on a device, and the steps that `times` does not know, which learn a tactic.
fn decided(path: &Path, spec: &BuildSpec, target: gemm::Device, times: &mut Times) -> Option<(Digest, usize)> {
    let model = planforge_onnx::Model::open(path).expect("it is read");
    // What has no device code is no plan.
    let draft = build::draft(&model, spec).ok()?;
    let mut strangers = 0;
    let mut programs = Vec::new();
    for program in &draft.programs {
        let mut program = program.clone();
        let mut candidates = Vec::new();
        let mut tuned = Tuned::default();
        for step in 0..program.steps.len() {
            let work = program.steps[step].work.clone();
            if matches!(work, Work::Kernel(_)) {
                continue;
            }
            let all = own_kernels(target, &program, &work, Effort::of_level(LEVEL).tiles);
            let of = |one: Generated| (Digest::of(one.source.text.as_bytes()), one.grid, one.block, one.shared_bytes);
            candidates.extend(all.into_iter().chain(after(&work)).map(of));
            if !recall(&mut program, step, times, &mut tuned) {
                strangers += 1;
                let learnt = first_tactics(&mut program, step, target);
                times.insert(signature(&program, &work), learnt);
                assert!(recall(&mut program, step, times, &mut tuned), "what was learnt is known");
            }
        }
        program.drop_unused_sources();
        program.check().expect("it holds together");
        let cost_us: Vec<f64> = program.steps.iter().map(|step| 2.0 + step.bytes as f64 / 2e6).collect();
        // As it is, and with its steps side by side.
        let ways = [Some(program.clone()), schedule::spread(&program, 2, &cost_us)];
        let ways: Vec<_> = ways
            .into_iter()
            .flatten()
            .map(|program| {
                let behind: Vec<Behind> = program.steps.iter().map(Behind::of).collect();
                let alone = early::kept_alone(target.capability, &program, &behind);
                let waits = Schedule::of(&program).waits;
                serde_json::json!({"program": program, "alone": alone, "waits": waits})
            })
            .collect();
        programs.push(serde_json::json!({"ways": ways, "candidates": candidates}));
    }
    let all = serde_json::json!({
        "spec": spec.clone().canonical(),
        "programs": programs,
        "rows_apart": draft.rows_apart,
        "weights": Digest::of(&draft.weights),
        "inputs": draft.inputs,
        "outputs": draft.outputs,
        "graph": draft.graph,
        "passes": draft.passes,
    });
    Some((Digest::of(&serde_json_canonicalizer::to_vec(&all).expect("only JSON types")), strangers))
}

/// All models on all devices, by the tactics in a cache file, which learns those of strangers; their names.
fn decide_all(file: &Path) -> (Golden, Vec<String>) {
    let (mut golden, mut strangers) = (Golden::new(), Vec::new());
    for (device, target) in DEVICES {
        let mut cache = TacticCache::open(Some(file), Digest::of(device.as_bytes()), &versions(), LEVEL);
        let mut times = cache.times();
        for (model, path) in models() {
            for (word, precision) in PRECISIONS {
                let Some((digest, unknown)) = decided(&path, &spec(&model, precision), target, &mut times) else {
                    continue;
                };
                let name = format!("{device}/{word}/{model}");
                if unknown > 0 {
                    strangers.push(name.clone());
                }
                let model = Digest::of(&fs::read(&path).expect("read")).to_string();
                golden.insert(name, Digests { model, plan: digest.to_string() });
            }
        }
        if !strangers.is_empty() {
            cache.learn(&times, BTreeMap::new(), BTreeMap::new());
            cache.save().expect("the cache is written");
        }
    }
    (golden, strangers)
}

#[test]
fn plans_change_only_together_with_their_revision() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let [plans, tactics] = ["plans", "tactics"].map(|what| rule::file(&folder, what, REVISION));
    let known = rule::read(&plans);
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let cache = scratch.path().join("cache.json");
    if tactics.exists() {
        fs::copy(&tactics, &cache).expect("copied");
    }
    let (now, strangers) = decide_all(&cache);
    assert!(now.len() > 60, "only {} plans", now.len());
    let gone: Vec<&String> = known.keys().filter(|name| !now.contains_key(*name)).collect();
    assert!(gone.is_empty(), "nothing is made of {gone:?} any more");
    let all = judge(&known, &now, REVISION, rule::blessing()).unwrap_or_else(|words| {
        panic!("{words}\n{} have steps that the committed tactics lack: {strangers:?}", strangers.len());
    });
    if !strangers.is_empty() {
        assert!(rule::blessing(), "{strangers:?} have steps that the committed tactics lack");
        let kept: serde_json::Value =
            serde_json::from_slice(&fs::read(&cache).expect("read")).expect("the cache is JSON");
        rule::write(&tactics, &kept);
    }
    if all != known {
        rule::write(&plans, &all);
    }
}
