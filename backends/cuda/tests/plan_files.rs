//! Plan files without a GPU: what is written is read, and whatever else a file holds is an error.

#[expect(dead_code, reason = "only whole images are needed here")]
#[path = "common/elf.rs"]
mod elf;

use planforge_backend::PLAN_HEAD_BYTES;
use planforge_cpu::CpuCompiler;
use planforge_cuda::{
    CudaCompiler, build, inspect,
    plan::{self, Manifest, Parts, PlanError, ProfileProgram, Tried, TunedOn},
    program::{After, Buffer, Place, Tactic, Work},
    versions::Versions,
};
use planforge_modelgen::{Batch, Options, Style};
use planforge_onnx::Detached;
use planforge_plan::container::ContainerError;
use planforge_types::{BuildSpec, Digest, DimRange, OptimizationProfile, Precision, Toolchain};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

fn model(folder: &Path, batch: Batch) -> planforge_onnx::Model {
    let path = folder.join("model.onnx");
    let style = Style { batch, ..Style::default() };
    // The trained one is small, but its batch is fixed.
    let name = if batch == Batch::Dynamic { "mobilenet-v3-large" } else { "digits" };
    planforge_modelgen::generate(name, &Options { style, ..Options::default() }, &path).expect("written");
    planforge_onnx::Model::open(&path).expect("read")
}

fn versions() -> Versions {
    Versions { driver: "13.0".into(), nvrtc: "13.0".into(), cublaslt: "13.1.0".into(), cudnn: "9.19.0".into() }
}

/// A stand-in for machine code: whole headers around something of the kernel's own.
fn machine_code(text: &str) -> Vec<u8> {
    elf::image(90, "kernel", 2, &text.as_bytes()[..40]).0
}

/// An engine whose tactics nobody timed, with stand-ins for machine code: the file is all that matters here.
fn written(folder: &Path, batch: Batch, spec: BuildSpec) -> (PathBuf, Manifest) {
    let draft = build::draft(&model(folder, batch), &spec).expect("every node has device code");
    let mut code = BTreeMap::new();
    let mut programs = Vec::new();
    for (mut program, rows_apart) in draft.programs.into_iter().zip(draft.rows_apart) {
        let mut tried = BTreeMap::new();
        for (index, step) in program.steps.iter_mut().enumerate() {
            step.tactic = match step.work {
                Work::Kernel(_) => None,
                Work::Conv(_) => Some(Tactic::Dnn {
                    engine: 41,
                    knobs: vec![(2, 3), (17, -1)],
                    workspace_bytes: 512,
                    waits: Some(true),
                }),
                _ => {
                    let words = [u64::MAX - index as u64; 8];
                    Some(Tactic::Blas { words, workspace_bytes: 1 << 20, waits: None, after: None })
                }
            };
            if let Some(tactic) = &step.tactic {
                tried.insert(step.name.clone(), vec![Tried { tactic: tactic.name(), us: 12.75 }]);
            }
        }
        program.drop_unused_sources();
        for source in &program.sources {
            code.insert(planforge_cuda::source::source_digest(source), machine_code(&source.text));
        }
        programs.push(ProfileProgram { program, rows_apart, tried });
    }
    let mut manifest = Manifest {
        model_digest: Digest::of(b"model"),
        sku: "h200-sxm".parse().expect("a SKU"),
        toolchain: versions().toolchain("580.1"),
        versions: versions(),
        spec: spec.canonical(),
        device_class: Digest::of(b"class"),
        tuned_on: TunedOn { name: "NVIDIA H200".into(), architecture: "sm_90a".into(), sm_count: 132 },
        graph: draft.graph,
        passes: draft.passes,
        inputs: draft.inputs,
        outputs: draft.outputs,
        programs,
        kernels: Vec::new(),
    };
    let library_plans = BTreeMap::from([("ab".to_owned(), "{\"engine\":41}".to_owned())]);
    let held = Detached { proto: b"message".to_vec(), ..Detached::default() };
    let parts = Parts { weights: &draft.weights, code, library_plans, model: Some(&held) };
    let path = folder.join("engine.plan");
    plan::write(&path, &mut manifest, &parts).expect("the plan is written");
    (path, manifest)
}

/// Gives a step a library's product with this kernel behind it.
fn follow(manifest: &mut Manifest, after: After) {
    let step = manifest.programs[0].program.steps.iter_mut().find(|step| step.tactic.is_some()).expect("a choice");
    step.tactic = Some(Tactic::Blas { words: [1; 8], workspace_bytes: 0, waits: None, after: Some(after) });
}

fn fp16() -> BuildSpec {
    BuildSpec { precision: Precision::Fp16, ..BuildSpec::default() }
}

fn profiles(sizes: &[(u64, u64, u64)]) -> BuildSpec {
    let profile = |&(min, opt, max): &(u64, u64, u64)| {
        let one = |size| DimRange { min: size, opt: size, max: size };
        let dims = vec![DimRange { min, opt, max }, one(3), one(224), one(224)];
        OptimizationProfile { inputs: BTreeMap::from([("input".to_owned(), dims)]) }
    };
    BuildSpec { profiles: sizes.iter().map(profile).collect(), ..fp16() }
}

#[test]
fn what_is_written_is_read_and_the_same_again_is_the_same_bytes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (path, manifest) = written(folder.path(), Batch::Fixed(1), fp16());
    let read = plan::read(&path).expect("the plan is read");
    assert_eq!(read.manifest, manifest);
    assert_eq!(read.weights().len() as u64, manifest.programs[0].program.weight_bytes);
    assert_eq!(read.code().count(), manifest.kernels.len());
    assert_eq!(read.library_plans()["ab"], "{\"engine\":41}");
    assert!(read.model().is_err(), "a stand-in is no model");
    let bytes = fs::read(&path).expect("read");
    let (again, _) = written(folder.path(), Batch::Fixed(1), fp16());
    assert_eq!(fs::read(again).expect("read"), bytes);
    use planforge_backend::Compiler as _;
    assert!(CudaCompiler.recognises(&bytes[..PLAN_HEAD_BYTES as usize]));
    let refused = CpuCompiler.identify(&path).expect_err("a CPU does not run it").message;
    assert!(refused.contains("it is a plan for an NVIDIA device"), "{refused}");
}

#[test]
fn a_plan_is_inspected_without_a_device() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (path, _) = written(folder.path(), Batch::Fixed(1), fp16());
    let inspection = inspect(&path).expect("the plan is read");
    assert!(inspection.profiles[0].tactics.keys().any(|tactic| tactic.starts_with("cudnn conv")));
    assert!(inspection.profiles[0].steps.iter().any(|step| !step.tried.is_empty()));
    let words = inspection.to_string();
    for part in ["h200-sxm (sm_90a)", "tuned   on NVIDIA H200", "cudnn 9.19", "fp16", "cudnn eng41 k2=3 k17=-1"] {
        assert!(words.contains(part), "{part}: {words}");
    }
}

#[test]
fn profiles_share_constants_and_show_what_varies() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (one, _) = written(folder.path(), Batch::Dynamic, profiles(&[(1, 4, 8)]));
    let one = plan::read(&one).expect("read").weights().len();
    let (path, manifest) = written(folder.path(), Batch::Dynamic, profiles(&[(1, 4, 8), (1, 16, 32)]));
    let read = plan::read(&path).expect("read");
    assert_eq!(manifest.programs.len(), 2);
    assert_eq!(read.weights().len(), one, "equal constants lie there once");
    for ports in [&manifest.inputs, &manifest.outputs] {
        assert!(ports.iter().all(|port| port.shape[0].is_none() && port.shape[1..].iter().all(Option::is_some)));
    }
    assert!(manifest.programs.iter().all(|profile| profile.rows_apart));
    assert_eq!(manifest.programs[1].program.inputs[0].shape[0], 16);
}

#[test]
fn every_cut_and_sampled_flips_are_noticed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (path, _) = written(folder.path(), Batch::Fixed(1), fp16());
    let whole = fs::read(&path).expect("read");
    let broken = folder.path().join("broken.plan");
    let try_one = |bytes: &[u8]| {
        fs::write(&broken, bytes).expect("written");
        plan::read(&broken).map(|plan| plan.manifest)
    };
    // Headers bit by bit, the rest in steps that meet every section.
    for at in (0..400).chain((400..whole.len()).step_by(997)) {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(try_one(&damaged).is_err(), "byte {at} was flipped unnoticed");
    }
    for len in (0..whole.len()).step_by(1009).chain([whole.len() - 1]) {
        assert!(try_one(&whole[..len]).is_err(), "a cut to {len} bytes went unnoticed");
    }
    fs::write(&broken, b"PLANFORG").expect("written");
    assert!(matches!(plan::read(&broken), Err(PlanError::Container { source: ContainerError::Truncated { .. }, .. })));
}

/// Writes a manifest that was changed by `change`, with digests that fit.
fn changed(change: impl FnOnce(&mut Manifest)) -> Result<Manifest, String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (path, mut manifest) = written(folder.path(), Batch::Fixed(1), fp16());
    change(&mut manifest);
    let sealed = folder.path().join("sealed.plan");
    let text = serde_json::to_vec(&manifest).expect("a manifest has only JSON types");
    plan::seal(&sealed, &text, &plan::read(&path).expect("read")).expect("written");
    plan::read(&sealed).map(|plan| plan.manifest).map_err(|error| error.to_string())
}

#[test]
fn a_manifest_that_lies_is_refused_with_its_reason() {
    type Lie = fn(&mut Manifest);
    let cases: [(&str, Lie); 31] = [
        ("programs for", |m| m.programs.clear()),
        ("weights are not as long", |m| {
            m.programs[0].program.weight_bytes += 256;
        }),
        ("has no machine code", |m| {
            m.kernels.pop();
        }),
        ("has no machine code", |m| m.tuned_on.architecture = "sm_80".into()),
        ("outside of the machine code", |m| m.kernels[0].offset = u64::MAX),
        ("shorter than an ELF header", |m| m.kernels[0].bytes = 0),
        ("is not ELF", |m| {
            m.kernels[0].offset += 1;
            m.kernels[0].bytes -= 1;
        }),
        ("program headers reach beyond it", |m| m.kernels[0].bytes -= 1),
        ("is for sm_90, not for sm_80", |m| {
            m.tuned_on.architecture = "sm_80".into();
            m.kernels.iter_mut().for_each(|kernel| kernel.architecture = "sm_80".into());
        }),
        ("'volta' is no architecture", |m| m.kernels[0].architecture = "volta".into()),
        ("lies within another", |m| m.kernels.push(m.kernels[0].clone())),
        ("inputs or outputs are not", |m| m.inputs[0].name.push('!')),
        ("reaches beyond its arena", |m| m.programs[0].program.arena_bytes = 256),
        ("of which its buffers take", |m| m.programs[0].program.arena_bytes = 1 << 36),
        ("is used by no step", |m| {
            let program = &mut m.programs[0].program;
            let nothing = Buffer { name: "nothing".into(), bytes: 1 << 36, place: Place::Arena(0) };
            program.buffers.push(nothing);
            program.arena_bytes = 1 << 36;
        }),
        ("is not the whole of its buffer", |m| {
            let program = &mut m.programs[0].program;
            let output = program.outputs[0].buffer.0 as usize;
            program.buffers[output].bytes += 1 << 36;
        }),
        ("a larger workspace", |m| {
            let tactic = m.programs[0].program.steps.iter_mut().find_map(|step| step.tactic.as_mut());
            let Some(Tactic::Dnn { workspace_bytes, .. } | Tactic::Blas { workspace_bytes, .. }) = tactic else {
                return;
            };
            *workspace_bytes = 1 << 30;
        }),
        ("more shared memory", |m| {
            let (grid, block) = ([1, 1, 1], [32, 1, 1]);
            let step = m.programs[0].program.steps.iter_mut().find(|step| step.tactic.is_some()).expect("a choice");
            step.tactic = Some(Tactic::Kernel { source: 0, grid, block, shared_bytes: u32::MAX });
        }),
        ("more threads than any device", |m| {
            let (grid, block) = ([1, 70_000, 1], [32, 1, 1]);
            let step = m.programs[0].program.steps.iter_mut().find(|step| step.tactic.is_some()).expect("a choice");
            step.tactic = Some(Tactic::Kernel { source: 0, grid, block, shared_bytes: 0 });
        }),
        ("more threads than any device", |m| {
            let (grid, block) = ([1, 1, 1], [64, 32, 1]);
            let step = m.programs[0].program.steps.iter_mut().find(|step| step.tactic.is_some()).expect("a choice");
            step.tactic = Some(Tactic::Kernel { source: 0, grid, block, shared_bytes: 0 });
        }),
        ("names kernel 4096", |m| follow(m, After { source: 4096, grid: [1; 3], block: [32, 1, 1] })),
        ("a launch of no threads", |m| follow(m, After { source: 0, grid: [0, 1, 1], block: [32, 1, 1] })),
        ("more threads than any device", |m| follow(m, After { source: 0, grid: [1; 3], block: [2048, 1, 1] })),
        ("is not aligned", |m| {
            let buffers = &mut m.programs[0].program.buffers;
            let arena = buffers.iter_mut().find(|buffer| matches!(buffer.place, Place::Arena(_)));
            arena.expect("activations").place = Place::Arena(1);
        }),
        ("there is no such edge", |m| {
            let buffers = &mut m.programs[0].program.buffers;
            let input = buffers.iter_mut().find(|buffer| matches!(buffer.place, Place::Input(_)));
            input.expect("an input").place = Place::Input(9);
        }),
        ("more than any device has", |m| m.programs[0].program.arena_bytes = u64::MAX),
        ("a launch of no threads", |m| {
            let kernel = m.programs[0].program.steps.iter_mut().find_map(|step| match &mut step.work {
                Work::Kernel(kernel) => Some(kernel),
                _ => None,
            });
            kernel.expect("a kernel").grid[1] = 0;
        }),
        ("elements than any device has", |m| {
            let conv = m.programs[0].program.steps.iter_mut().find_map(|step| match &mut step.work {
                Work::Conv(conv) => Some(conv),
                _ => None,
            });
            conv.expect("a convolution").x.dims[0] = u64::MAX / 2;
        }),
        ("do not fit each other", |m| {
            let conv = m.programs[0].program.steps.iter_mut().find_map(|step| match &mut step.work {
                Work::Conv(conv) => Some(conv),
                _ => None,
            });
            conv.expect("a convolution").groups = 2;
        }),
        ("do not fit each other", |m| {
            let bias = m.programs[0].program.steps.iter_mut().find_map(|step| match &mut step.work {
                Work::Conv(conv) => conv.bias.as_mut(),
                _ => None,
            });
            bias.expect("a bias").dims[0] -= 1;
        }),
        ("do not fit each other", |m| {
            let product = m.programs[0].program.steps.iter_mut().find_map(|step| match &mut step.work {
                Work::Product(product) => Some(product),
                _ => None,
            });
            product.expect("a product").a.dims[2] -= 1;
        }),
    ];
    for (reason, change) in cases {
        let error = changed(change).expect_err(reason);
        assert!(error.contains(reason), "{reason}: {error}");
    }
    assert!(changed(|_| ()).is_ok(), "an honest one is taken");
}

#[test]
fn no_number_in_a_manifest_makes_reading_panic() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (path, manifest) = written(folder.path(), Batch::Fixed(1), fp16());
    let plan = plan::read(&path).expect("read");
    let text = serde_json::to_string(&manifest).expect("a manifest has only JSON types");
    let numbers: Vec<(usize, usize)> = number_spans(&text);
    let sealed = folder.path().join("sealed.plan");
    for &(from, to) in numbers.iter().step_by(7) {
        for value in ["0", "18446744073709551615", "4294967295", "1099511627777"] {
            let other = format!("{}{value}{}", &text[..from], &text[to..]);
            plan::seal(&sealed, other.as_bytes(), &plan).expect("written");
            // An error or a plan that passed every check; which of them is not the point.
            let _ = plan::read(&sealed).map(|plan| plan.manifest.programs.len());
        }
    }
    assert!(numbers.len() > 100);
}

/// Where the numbers outside of strings stand.
fn number_spans(text: &str) -> Vec<(usize, usize)> {
    let bytes = text.as_bytes();
    let (mut spans, mut at, mut quoted) = (Vec::new(), 0, false);
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if quoted => at += 1,
            b'"' => quoted = !quoted,
            b'0'..=b'9' if !quoted => {
                let from = at;
                while at < bytes.len() && bytes[at].is_ascii_digit() {
                    at += 1;
                }
                spans.push((from, at));
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    spans
}

#[test]
fn what_cannot_be_built_is_refused_by_name() {
    use planforge_backend::{CompileRequest, Compiler as _};
    use planforge_types::fingerprint::{DeviceFingerprint, DeviceKind, GpuFacts, HostFacts};
    let gpu = |capability: &str| DeviceFingerprint {
        kind: DeviceKind::Gpu,
        name: "NVIDIA Test".into(),
        memory_mib: 1024,
        gpu: Some(GpuFacts { compute_capability: capability.into(), ..GpuFacts::default() }),
        cpu: None,
        host: HostFacts::default(),
    };
    let request = |sku: &str, device, spec| CompileRequest {
        model: "x.onnx".into(),
        model_digest: Digest::of(b"x"),
        sku: sku.parse().expect("a SKU"),
        device,
        toolchain: Toolchain { backend: "native".into(), version: "0".into(), components: BTreeMap::new() },
        spec,
        scratch: ".".into(),
        cache: None,
        calibration: None,
        plugins: Vec::new(),
    };
    let refusal =
        |sku, capability, spec| CudaCompiler.check(&request(sku, gpu(capability), spec)).expect_err("refused").message;
    let spec = |precision| BuildSpec { precision, ..BuildSpec::default() };
    assert!(refusal("cpu-x86-64-v3", "9.0", fp16()).contains("not for cpu-x86-64-v3"));
    assert!(refusal("h200-sxm", "9.0", spec(Precision::Int8)).contains("precision int8"));
    assert!(refusal("h200-sxm", "9.0", spec(Precision::Fp8)).contains("precision fp8"));
    assert!(refusal("t4", "7.5", spec(Precision::Bf16)).contains("bf16 needs compute capability 8.0"));
    assert!(refusal("t4", "7.5", spec(Precision::Tf32)).contains("tf32 needs compute capability 8.0"));
    let named = BuildSpec { hardware_compatibility: Some("ampere+".into()), ..fp16() };
    assert!(refusal("h200-sxm", "9.0", named).contains("hardware compatibility"));
    let option = BuildSpec { options: BTreeMap::from([("x".into(), "y".into())]), ..fp16() };
    assert!(refusal("h200-sxm", "9.0", option).contains("no option x"));
    let small = BuildSpec { workspace_mib: Some(1), ..fp16() };
    assert!(refusal("h200-sxm", "9.0", small).contains("a workspace below 64 MiB"));
}
