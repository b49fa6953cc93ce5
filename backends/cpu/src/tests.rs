//! The native backend from model file to answers, against the reference operators.

use super::*;
use planforge_backend::{Cancel, CompileRequest, Compiler, Events, LoadOptions, Meter};
use planforge_device::{CpuLevel, cpu};
use planforge_graph::interpreter;
use planforge_kernels_cpu::{gemm::bf16_kernels, isa::Isa};
use planforge_onnx::Model;
use planforge_types::{
    BuildSpec, Digest, HostTensor, NamedTensors, OptimizationLevel, Precision, fingerprint::HostFacts,
};
use std::{
    fs,
    path::{Path, PathBuf},
};

struct Silent;
impl Events for Silent {
    fn progress(&self, _phase: &str, _fraction: f32, _detail: &str) {}
    fn log(&self, _line: &str) {}
}

fn digits() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/digits.onnx")
}

fn request(level: CpuLevel, folder: &Path) -> CompileRequest {
    CompileRequest {
        model: digits(),
        model_digest: Digest::of(&fs::read(digits()).unwrap()),
        sku: level.sku(),
        device: cpu::detect(&HostFacts::default()).0,
        toolchain: toolchain(),
        spec: BuildSpec { threads: Some(1), ..BuildSpec::default() },
        scratch: folder.to_owned(),
        cache: None,
        calibration: None,
        plugins: Vec::new(),
    }
}

fn build(request: &CompileRequest) -> PathBuf {
    CpuCompiler.compile(request, &Silent, &Cancel::default()).unwrap().path
}

/// One image and what the reference operators say of it.
fn image_and_answer() -> (NamedTensors, Vec<f32>) {
    let graph = planforge_import::import(&Model::open(&digits()).unwrap(), None).unwrap();
    let name = graph.value(graph.inputs[0]).name.clone();
    let shape = graph.static_shape(graph.inputs[0]).unwrap();
    let values: Vec<f32> = (0..shape.iter().product()).map(|i: usize| (i * 7 % 17) as f32 / 16.0).collect();
    let tensor = ir_tensor(&shape, &values);
    let answer = interpreter::execute(&graph, &[(name.clone(), tensor.clone())].into()).unwrap();
    let answer = answer.values().next().unwrap().values::<f32>().unwrap().into_owned();
    ([(name, HostTensor::from(&tensor))].into(), answer)
}

fn ir_tensor(shape: &[usize], values: &[f32]) -> planforge_graph::ir::Tensor {
    planforge_graph::ir::Tensor::from_vec(shape.to_vec(), values.to_vec()).unwrap()
}

fn answer_of(plan: &Path, inputs: &NamedTensors) -> Result<Vec<f32>, planforge_types::BackendError> {
    let mut meter = CpuCompiler.load(plan, &LoadOptions::default())?;
    meter.bind(inputs)?;
    let outputs = meter.run()?;
    let bytes = &outputs.values().next().unwrap().bytes;
    Ok(bytes.chunks_exact(4).map(|raw| f32::from_le_bytes(raw.try_into().unwrap())).collect())
}

fn assert_agrees(got: &[f32], want: &[f32], what: &str) {
    let scale = want.iter().fold(0f32, |top, value| top.max(value.abs()));
    assert_eq!(got.len(), want.len(), "{what}");
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() <= 1e-5 * scale, "{what}: {got} is not {want}");
    }
}

#[test]
fn every_level_agrees_with_the_reference_by_kernels_of_its_own() {
    let (inputs, want) = image_and_answer();
    let mut seen = std::collections::BTreeSet::new();
    for level in CpuLevel::detect() {
        let folder = tempfile::tempdir().unwrap();
        let plan = build(&request(level, folder.path()));
        assert_agrees(&answer_of(&plan, &inputs).unwrap(), &want, level.name());
        let inspection = inspect(&plan).unwrap();
        assert!(inspection.runs_here && !inspection.foreign);
        let own = planforge_kernels_cpu::gemm::kernels(plan::isa_level(level));
        for step in inspection.steps.iter().filter(|step| !step.tried.is_empty()) {
            assert!(own.iter().any(|kernel| step.kernel.starts_with(kernel.name)), "{} at {level}", step.kernel);
            assert!(step.tried.len() > 1 && step.tried.iter().all(|tried| tried.best_us.is_some()));
        }
        assert!(seen.insert(inspection.instruction_set.clone()), "{level} uses the kernels of another level");
        assert!(inspection.to_string().contains(&inspection.instruction_set));
    }
}

#[test]
fn every_tactic_can_be_forced_and_agrees() {
    let (inputs, want) = image_and_answer();
    for level in CpuLevel::detect() {
        let isa = Isa::new(plan::isa_level(level)).unwrap();
        let mut words: Vec<String> =
            planforge_kernels_cpu::gemm::kernels(isa.level()).iter().map(|kernel| kernel.name.to_owned()).collect();
        words.extend(["+packed".to_owned(), "+taps".to_owned(), "+lines".to_owned()]);
        for word in words {
            let folder = tempfile::tempdir().unwrap();
            let mut request = request(level, folder.path());
            request.spec.optimization_level = OptimizationLevel(0);
            request.spec.options.insert(OPTION_FORCE_TACTIC.into(), word.clone());
            let plan = build(&request);
            let steps = inspect(&plan).unwrap().steps;
            assert!(steps.iter().any(|step| step.kernel.contains(&word)), "nothing uses {word}");
            assert_agrees(&answer_of(&plan, &inputs).unwrap(), &want, &word);
        }
    }
}

#[test]
fn bf16_engines_multiply_as_bf16_and_stay_near_the_reference() {
    let (inputs, want) = image_and_answer();
    let scale = want.iter().fold(0f32, |top, value| top.max(value.abs()));
    for level in CpuLevel::detect() {
        let folder = tempfile::tempdir().unwrap();
        let mut request = request(level, folder.path());
        request.spec.precision = Precision::Bf16;
        request.spec.optimization_level = OptimizationLevel(0);
        let own = bf16_kernels(plan::isa_level(level));
        if own.is_empty() {
            let error = CpuCompiler.check(&request).unwrap_err();
            assert!(error.message.contains("no bf16 for"), "{}", error.message);
            continue;
        }
        let plan = build(&request);
        let by_kernel = |step: &inspect::InspectedStep| own.iter().any(|own| step.kernel.starts_with(own.name));
        assert!(inspect(&plan).unwrap().steps.iter().any(by_kernel), "no product of bf16 at {level}");
        let got = answer_of(&plan, &inputs).unwrap();
        let error = got.iter().zip(&want).fold(0f32, |top, (got, want)| top.max((got - want).abs()));
        assert!(error <= 2e-2 * scale, "{level} is off by {error} of {scale}");
        assert!(error > 1e-5 * scale, "{level} rounds nothing");
        let mut session = CpuSession::load(&plan, &LoadOptions::default()).unwrap();
        session.bind(&inputs).unwrap();
        let layers = session.layers(3).unwrap();
        assert!(layers.iter().any(|layer| layer.precision.as_deref() == Some("bf16")), "{layers:?}");
        // Weights take half the room that they take as f32.
        request.spec.precision = Precision::Fp32;
        let weights = |plan: &Path| inspect(plan).unwrap().memory.weight_bytes;
        assert!(weights(&plan) < weights(&build(&request)), "{level}");
    }
}

#[test]
fn operators_stay_apart_where_fusion_is_off_and_agree() {
    let (inputs, want) = image_and_answer();
    let folder = tempfile::tempdir().unwrap();
    let mut request = request(*CpuLevel::detect().last().unwrap(), folder.path());
    request.spec.optimization_level = OptimizationLevel(0);
    let fused = inspect(&build(&request)).unwrap().steps.len();
    request.spec.options.insert(OPTION_FUSION.into(), "off".into());
    let plan = build(&request);
    let steps = inspect(&plan).unwrap().steps;
    assert!(steps.len() > fused, "{} steps, {fused} with fusion", steps.len());
    assert!(steps.iter().all(|step| step.nodes.len() == 1), "{steps:?}");
    assert_agrees(&answer_of(&plan, &inputs).unwrap(), &want, "fusion off");
}

/// Cancels when it hears of a phase.
struct CancelsAt<'a>(&'static str, &'a Cancel);
impl Events for CancelsAt<'_> {
    fn progress(&self, phase: &str, _fraction: f32, _detail: &str) {
        if phase == self.0 {
            self.1.cancel();
        }
    }
    fn log(&self, _line: &str) {}
}

#[test]
fn a_cancelled_build_says_nothing_of_the_model() {
    for phase in ["import", "tune"] {
        let folder = tempfile::tempdir().unwrap();
        let cancel = Cancel::default();
        let request = request(CpuLevel::detect()[0], folder.path());
        let error = CpuCompiler.compile(&request, &CancelsAt(phase, &cancel), &cancel).unwrap_err();
        assert!(error.message.contains("cancelled"), "{phase}: {error}");
        // Of class `Model` it would be remembered, and the key refused for ever.
        assert_eq!(error.class, planforge_types::FailureClass::Infrastructure, "{phase}");
    }
}

#[test]
fn the_same_cache_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let level = *CpuLevel::detect().last().unwrap();
    let mut request = request(level, folder.path());
    request.cache = Some(folder.path().join("cache"));
    let first = fs::read(build(&request)).unwrap();
    assert!(folder.path().join("cache").is_file());
    assert!(fs::read(build(&request)).unwrap() == first, "a second build gave another plan");
    request.spec.options.insert(OPTION_FORCE_TACTIC.into(), "packed".into());
    assert!(fs::read(build(&request)).unwrap() != first);
}

/// What two builds learnt at once is one cache: each finds its own in it, and times nothing.
#[test]
fn caches_of_two_builds_are_joined() {
    let folder = tempfile::tempdir().unwrap();
    let mut request = request(*CpuLevel::detect().last().unwrap(), folder.path());
    let (one, two) = (folder.path().join("one"), folder.path().join("two"));
    request.cache = Some(one.clone());
    let first = fs::read(build(&request)).unwrap();
    request.cache = Some(two.clone());
    request.spec.threads = Some(2);
    let second = fs::read(build(&request)).unwrap();
    assert!(CpuCompiler.join_caches(&request.sku, &two, &one).unwrap());
    let both = fs::read(&two).unwrap();
    assert!(fs::read(build(&request)).unwrap() == second);
    request.spec.threads = Some(1);
    assert!(fs::read(build(&request)).unwrap() == first);
    assert!(fs::read(&two).unwrap() == both, "a build found something new");
    // What cannot be read knows nothing.
    fs::write(&one, "torn").unwrap();
    assert!(CpuCompiler.join_caches(&request.sku, &two, &one).unwrap());
    assert!(fs::read(&two).unwrap() == both);
}

#[test]
fn a_damaged_plan_is_an_error_and_never_a_crash() {
    let (inputs, _) = image_and_answer();
    let folder = tempfile::tempdir().unwrap();
    let mut request = request(CpuLevel::detect()[0], folder.path());
    request.spec.optimization_level = OptimizationLevel(0);
    let plan = build(&request);
    let whole = fs::read(&plan).unwrap();
    let damaged = folder.path().join("damaged.plan");
    // Every byte of header and table, and bytes spread over the rest.
    for at in (0..200).chain((200..whole.len()).step_by(997)) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        fs::write(&damaged, bytes).unwrap();
        assert!(answer_of(&damaged, &inputs).is_err(), "byte {at} was flipped unnoticed");
        assert!(inspect(&damaged).is_err());
    }
    for len in [0, 7, 8, 47, 48, 4096, whole.len() - 1] {
        fs::write(&damaged, &whole[..len]).unwrap();
        assert!(answer_of(&damaged, &inputs).is_err(), "a cut to {len} bytes went unnoticed");
    }
}

/// A plan written by someone who can make digests match: every number of its program changed in turn.
#[test]
fn a_hostile_program_is_an_error_or_an_answer() {
    use super::{
        engine::Engine,
        memory::{AlignedBytes, Weights},
    };
    let folder = tempfile::tempdir().unwrap();
    let level = CpuLevel::detect()[0];
    let mut request = request(level, folder.path());
    request.spec.optimization_level = OptimizationLevel(0);
    let checked = plan::read(&build(&request)).unwrap();
    let weights = checked.weights.bytes(&checked.map).to_vec();
    let text = serde_json::to_string(&checked.manifest.program).unwrap();
    let isa = Isa::new(plan::isa_level(level)).unwrap();
    let pool = std::sync::Arc::new(planforge_kernels_cpu::pool::ThreadPool::new(1).unwrap());
    let digits: Vec<(usize, &str)> = text.match_indices(|c: char| c.is_ascii_digit()).collect();
    let mut ran = 0;
    for (at, digit) in digits {
        for other in ["0", "9", "99999999", "18446744073709551615"] {
            let changed = format!("{}{other}{}", &text[..at], &text[at + digit.len()..]);
            let Ok(program) = serde_json::from_str::<program::Program>(&changed) else { continue };
            if program.check().is_err() || program.arena_bytes > 1 << 24 || program.weight_bytes != weights.len() as u64
            {
                continue;
            }
            let mut owned = AlignedBytes::zeroed(weights.len()).unwrap();
            owned.bytes_mut().copy_from_slice(&weights);
            let pool = std::sync::Arc::clone(&pool);
            let run = std::panic::AssertUnwindSafe(|| {
                if let Ok(mut engine) = Engine::new(program, Weights::owned(owned), isa, pool) {
                    let _ = engine.run();
                }
            });
            // A kernel that refuses its operands panics, which the meter turns into an error.
            let _ = std::panic::catch_unwind(run);
            ran += 1;
        }
    }
    assert!(ran > 100, "only {ran} changed programs got as far as the engine");
}

/// A plan that asks for what it does not need, by someone who can make digests match: 64 GiB were taken, or the process
/// was aborted.
#[test]
fn a_plan_asks_for_no_memory_but_what_its_steps_use() {
    use super::program::{ALIGNMENT, Buffer, Place};
    let folder = tempfile::tempdir().unwrap();
    let mut request = request(CpuLevel::detect()[0], folder.path());
    request.spec.optimization_level = OptimizationLevel(0);
    let built = build(&request);
    let sealed = folder.path().join("sealed.plan");
    let load = |change: &dyn Fn(&mut Manifest)| {
        let mut manifest = plan::read(&built).unwrap().manifest;
        change(&mut manifest);
        let text = serde_json::to_vec(&manifest).unwrap();
        unseal(&built, |sections| seal(&sealed, &Sections { manifest: &text, ..*sections })).unwrap().unwrap();
        CpuCompiler.load(&sealed, &LoadOptions::default()).map(drop).map_err(|error| error.message)
    };
    load(&|_| ()).unwrap();
    for more in [ALIGNMENT, 1 << 36] {
        let message = load(&|manifest| manifest.program.arena_bytes += more).unwrap_err();
        assert!(message.contains("of which its buffers take") || message.contains("at most"), "{message}");
    }
    let message = load(&|manifest| {
        let (bytes, place) = (1 << 36, Place::Arena(0));
        manifest.program.buffers.push(Buffer { name: "nothing".into(), bytes, place });
        manifest.program.arena_bytes = bytes;
    });
    assert!(message.as_ref().is_err_and(|message| message.contains("is used by no step")), "{message:?}");
    let message = load(&|manifest| manifest.spec.profiles = vec![Default::default(); 2]);
    assert!(message.as_ref().is_err_and(|message| message.contains("1 programs for 2 profiles")), "{message:?}");
}

#[test]
fn wrong_inputs_and_requests_are_refused_in_words() {
    let (inputs, _) = image_and_answer();
    let folder = tempfile::tempdir().unwrap();
    let level = CpuLevel::detect()[0];
    let mut fine = request(level, folder.path());
    fine.spec.optimization_level = OptimizationLevel(0);
    let plan = build(&fine);
    let mut meter = CpuCompiler.load(&plan, &LoadOptions::default()).unwrap();
    assert!(meter.run().unwrap_err().message.contains("bound"));
    let name = inputs.keys().next().unwrap().clone();
    let mut short = inputs.clone();
    short.get_mut(&name).unwrap().bytes.pop();
    assert!(meter.bind(&short).unwrap_err().message.contains(&name));
    let other: NamedTensors = [("no-such-input".to_owned(), inputs[&name].clone())].into();
    assert!(meter.bind(&other).unwrap_err().message.contains("no-such-input"));

    let mut gpu = fine.clone();
    gpu.sku = "h100-sxm".parse().unwrap();
    assert!(CpuCompiler.check(&gpu).unwrap_err().message.contains("h100-sxm"));
    if let Some(missing) = CpuLevel::ALL.into_iter().find(|level| !level.runs_here()) {
        let elsewhere = CompileRequest { sku: missing.sku(), ..fine.clone() };
        let message = CpuCompiler.check(&elsewhere).unwrap_err().message;
        assert!(message.contains(missing.name()) && message.contains(level.name()), "{message}");
    }
    let mut option = fine.clone();
    option.spec.options.insert("turbo".into(), "yes".into());
    assert!(CpuCompiler.check(&option).unwrap_err().message.contains("turbo"));
    let mut fusion = fine.clone();
    fusion.spec.options.insert(OPTION_FUSION.into(), "sometimes".into());
    assert!(CpuCompiler.check(&fusion).unwrap_err().message.contains("'sometimes' is neither"));
    let mut approximate = fine.clone();
    approximate.spec.approximate_gelu = true;
    let refusal = CpuCompiler.check(&approximate).unwrap_err();
    assert!(refusal.message.contains("approximate GELU is for native engines of NVIDIA devices"), "{refusal}");
    assert!(refusal.hint.contains("--approximate-gelu"), "{refusal}");
    let mut old = fine;
    old.toolchain.version = "0".into();
    assert!(CpuCompiler.check(&old).is_err());
}

#[test]
fn a_plan_for_instructions_this_cpu_lacks_names_both() {
    let folder = tempfile::tempdir().unwrap();
    let mut made = request(CpuLevel::detect()[0], folder.path());
    made.spec.optimization_level = OptimizationLevel(0);
    let Some(missing) = CpuLevel::ALL.into_iter().find(|level| !level.runs_here()) else {
        return planforge_skipped::skipped("this processor runs every level");
    };
    let mut manifest = plan::read(&build(&made)).unwrap().manifest;
    manifest.sku = missing.sku();
    let message = plan::level_of(&manifest).unwrap_err().to_string();
    assert!(message.contains(missing.name()) && message.contains(CpuLevel::detect()[0].name()), "{message}");
}
