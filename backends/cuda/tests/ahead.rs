//! What is compiled for a device that is not here: the same kernels that a build on it would try, for its architecture.

use planforge_backend::{Cancel, CompileRequest, Compiler as _, Events};
use planforge_cuda::{
    CudaCompiler, ahead, build,
    cache::{self, TacticCache},
    program::Work,
    source::source_digest,
    versions::Versions,
};
use planforge_kernels_cuda::{cubin::Cubin, libraries::libraries, nvrtc::Arch};
use planforge_modelgen::Options;
use planforge_types::{
    BuildSpec, Digest, FailureClass, Precision, Toolchain,
    fingerprint::{DeviceFingerprint, DeviceKind, GpuFacts, HostFacts},
};
use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::Mutex,
};

fn gpu(capability: &str, sm_count: u32) -> GpuFacts {
    GpuFacts { compute_capability: capability.into(), sm_count: Some(sm_count), ..GpuFacts::default() }
}

fn digits(folder: &Path) -> PathBuf {
    let path = folder.join("digits.onnx");
    planforge_modelgen::generate("digits", &Options::default(), &path).expect("the model is written");
    path
}

fn spec(level: u8) -> BuildSpec {
    let mut spec = BuildSpec { precision: Precision::Fp16, ..BuildSpec::default() };
    spec.optimization_level.0 = level;
    spec
}

#[test]
fn every_step_has_its_candidates_and_more_effort_has_more() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = planforge_onnx::Model::open(&digits(folder.path())).expect("read");
    let count = |capability: &str, level: u8| {
        let draft = build::draft(&model, &spec(level)).expect("a draft");
        let gpu = gpu(capability, 100);
        let arch = ahead::arch_of(&gpu).expect("an architecture");
        let sources = ahead::sources(&draft, &gpu, arch, level);
        for program in &draft.programs {
            for step in &program.steps {
                if let Work::Kernel(kernel) = &step.work {
                    assert!(sources.contains_key(&source_digest(&program.sources[kernel.source])), "{}", step.name);
                }
            }
        }
        sources.len()
    };
    assert!(count("9.0", 3) > count("9.0", 0));
    assert!(count("7.5", 3) > 0 && count("12.0", 3) > 0);
    assert_eq!(ahead::arch_of(&gpu("none", 1)), None);
}

/// Where tests are to have NVRTC, its absence is no excuse.
fn nvrtc() -> Option<String> {
    match &libraries().nvrtc {
        Ok(found) => Some(found.version.clone()),
        Err(missing) => {
            assert!(env::var_os("PLANFORGE_NEED_NVRTC").is_none(), "{missing}");
            planforge_skipped::skipped(missing);
            None
        }
    }
}

#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl Events for Told {
    fn progress(&self, _phase: &str, _fraction: f32, _detail: &str) {}

    fn log(&self, line: &str) {
        self.0.lock().expect("whole").push(line.into());
    }
}

#[test]
fn kernels_are_compiled_for_another_architecture_without_a_device() {
    let Some(version) = nvrtc() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let offered = CudaCompiler.prepares().remove(0);
    let of_device = |cuda: &str| {
        let components = [("cuda", cuda), ("cudnn", "9.19"), ("driver_branch", "580")];
        let components = components.map(|(name, version)| (name.to_owned(), version.to_owned())).into();
        Toolchain { components, ..offered.clone() }
    };
    let request = |toolchain: Toolchain, capability: &str| CompileRequest {
        model: digits(folder.path()),
        model_digest: Digest::of(b"digits"),
        sku: "h100-sxm".parse().expect("a SKU"),
        device: DeviceFingerprint {
            kind: DeviceKind::Gpu,
            name: "a board elsewhere".into(),
            memory_mib: 81_559,
            gpu: Some(gpu(capability, 132)),
            cpu: None,
            host: HostFacts::default(),
        },
        toolchain,
        spec: spec(0),
        scratch: folder.path().to_owned(),
        cache: None,
        calibration: None,
        plugins: Vec::new(),
    };
    let into = folder.path().join("prepared");
    let told = Told::default();
    let fine = request(of_device(&version), "9.0");
    CudaCompiler.prepare(&fine, &into, &told, &Cancel::default()).expect("compiled");
    assert!(told.0.lock().expect("whole")[0].contains("kernels compiled for sm_90a"), "{:?}", told.0);
    // A build joins it with its cache, and finds each kernel under its source, for its own architecture.
    let cache_file = folder.path().join("cache");
    cache::join(&cache_file, &into).expect("joined");
    let open = TacticCache::open(Some(&cache_file), Digest::of(b"class"), &Versions::default(), 0);
    let here = Arch::of_device(9, 0);
    let code = open.prepared(here, &version).code;
    let draft = build::draft(&planforge_onnx::Model::open(&fine.model).expect("read"), &spec(0)).expect("a draft");
    let sources = ahead::sources(&draft, &gpu("9.0", 132), here, 0);
    assert!(!code.is_empty() && code.len() <= sources.len(), "{} of {}", code.len(), sources.len());
    for (source, code) in &code {
        assert!(sources.contains_key(source));
        assert_eq!(Cubin::parse(code).expect("it holds together").capability(), Some(90));
    }
    assert_eq!(open.prepared(Arch::of_device(8, 0), &version).code.len(), 0);
    // The same again is the same, byte for byte.
    let again = folder.path().join("again");
    CudaCompiler.prepare(&fine, &again, &told, &Cancel::default()).expect("compiled");
    assert_eq!(fs::read(&into).expect("read"), fs::read(&again).expect("read"));
    // Refused in words, and nothing is written: another CUDA, an architecture that nobody knows, a cancelled job.
    let refused = folder.path().join("refused");
    let refuse = |request: &CompileRequest, cancel: &Cancel| {
        let error = CudaCompiler.prepare(request, &refused, &told, cancel).expect_err("refused");
        assert!(!refused.exists());
        error
    };
    let cancelled = Cancel::default();
    assert!(refuse(&request(of_device("1.0"), "9.0"), &cancelled).message.contains("compiles ahead for native"));
    let unknown = refuse(&request(of_device(&version), "99.0"), &cancelled);
    assert!(unknown.message.contains("sm_990a") && unknown.class == FailureClass::Infrastructure, "{unknown:?}");
    cancelled.cancel();
    refuse(&fine, &cancelled);
}
