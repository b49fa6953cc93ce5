//! The backends of this program: one list, used by the agent, its workers and every command that loads a plan.
//!
//! `native` is one backend of two halves, engines for CPUs and engines for NVIDIA devices. Which half is meant is told by
//! the device or SKU, and for a plan by what its file begins with.

use crate::failure::Failure;
use planforge_backend::{
    Cancel, CompileRequest, CompiledPlan, Compiler, Events, LoadOptions, Meter, PLAN_HEAD_BYTES, PlanIdentity,
};
use planforge_cpu::CpuCompiler;
use planforge_cuda::CudaCompiler;
use planforge_onnxruntime::OnnxRuntimeCompiler;
use planforge_plan::BACKEND;
use planforge_tensorrt::TensorRtCompiler;
use planforge_types::{
    BackendError, FailureClass, Sku, Toolchain,
    fingerprint::{DeviceKind, DiscoveredDevice},
};
use std::{fs::File, io, io::Read as _, path::Path};

/// Every backend, the dependency-free one first.
pub fn compilers() -> Vec<Box<dyn Compiler>> {
    vec![
        Box::new(NativeBackend::default()),
        Box::new(TensorRtCompiler::default()),
        Box::new(OnnxRuntimeCompiler::of_environment()),
    ]
}

/// The backend whose plan the file is; `None` when it is nobody's.
pub fn of_plan(plan: &Path) -> Result<Option<Box<dyn Compiler>>, Failure> {
    let head = head_of(plan).map_err(|e| Failure::io("read", plan, &e))?;
    Ok(compilers().into_iter().find(|compiler| compiler.recognises(&head)))
}

/// Whether the file is a plan of the native backend for an NVIDIA device.
pub fn is_cuda_plan(plan: &Path) -> Result<bool, Failure> {
    let head = head_of(plan).map_err(|e| Failure::io("read", plan, &e))?;
    Ok(CudaCompiler.recognises(&head))
}

fn head_of(plan: &Path) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    File::open(plan)?.take(PLAN_HEAD_BYTES).read_to_end(&mut head)?;
    Ok(head)
}

/// The native backend. Its CUDA half opens no library before it is asked about an NVIDIA device.
#[derive(Clone, Copy, Debug, Default)]
struct NativeBackend {
    cpu: CpuCompiler,
    cuda: CudaCompiler,
}

impl NativeBackend {
    fn of_sku(&self, sku: &Sku) -> &dyn Compiler {
        if sku.is_cpu() { &self.cpu } else { &self.cuda }
    }

    fn of_file(&self, plan: &Path) -> Result<&dyn Compiler, BackendError> {
        let head = head_of(plan).map_err(|error| {
            BackendError::new(FailureClass::Model, format!("cannot open plan {}: {error}", plan.display()))
                .with_hint("check the path")
        })?;
        // What is neither's is refused by the CPU's reader, with its reason.
        Ok(if self.cuda.recognises(&head) { &self.cuda } else { &self.cpu })
    }
}

impl Compiler for NativeBackend {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn toolchains(&self, device: &DiscoveredDevice) -> Vec<Toolchain> {
        match device.fingerprint.kind {
            DeviceKind::Cpu => self.cpu.toolchains(device),
            DeviceKind::Gpu => self.cuda.toolchains(device),
        }
    }

    fn never_measures(&self, sku: &Sku) -> &'static [&'static str] {
        self.of_sku(sku).never_measures(sku)
    }

    fn options(&self, sku: &Sku) -> Option<&'static [&'static str]> {
        self.of_sku(sku).options(sku)
    }

    fn check(&self, request: &CompileRequest) -> Result<(), BackendError> {
        self.of_sku(&request.sku).check(request)
    }

    fn compile(
        &self,
        request: &CompileRequest,
        events: &dyn Events,
        cancel: &Cancel,
    ) -> Result<CompiledPlan, BackendError> {
        self.of_sku(&request.sku).compile(request, events, cancel)
    }

    fn builds_out_of_process(&self, request: &CompileRequest) -> bool {
        self.of_sku(&request.sku).builds_out_of_process(request)
    }

    /// Engines for processors need nothing made ready elsewhere.
    fn prepares(&self) -> Vec<Toolchain> {
        self.cuda.prepares()
    }

    fn prepare(
        &self,
        request: &CompileRequest,
        into: &Path,
        events: &dyn Events,
        cancel: &Cancel,
    ) -> Result<(), BackendError> {
        self.cuda.prepare(request, into, events, cancel)
    }

    fn join_caches(&self, sku: &Sku, into: &Path, from: &Path) -> io::Result<bool> {
        self.of_sku(sku).join_caches(sku, into, from)
    }

    fn recognises(&self, head: &[u8]) -> bool {
        self.cpu.recognises(head) || self.cuda.recognises(head)
    }

    fn identify(&self, plan: &Path) -> Result<PlanIdentity, BackendError> {
        self.of_file(plan)?.identify(plan)
    }

    fn load(&self, plan: &Path, options: &LoadOptions) -> Result<Box<dyn Meter>, BackendError> {
        self.of_file(plan)?.load(plan, options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_plan::container::{KIND_CUDA_MANIFEST, KIND_MANIFEST, Writer};

    fn plan_of(folder: &Path, kind: u32) -> std::path::PathBuf {
        let path = folder.join(format!("{kind}.plan"));
        let mut writer = Writer::create(&path, 1).unwrap();
        writer.section::<io::Error>(kind, |out| out.write_all(b"{}")).unwrap();
        writer.finish().unwrap();
        path
    }

    #[test]
    fn a_plan_goes_to_the_half_it_is_for() {
        let folder = tempfile::tempdir().unwrap();
        let (cpu, cuda) = (plan_of(folder.path(), KIND_MANIFEST), plan_of(folder.path(), KIND_CUDA_MANIFEST));
        assert!(!is_cuda_plan(&cpu).unwrap() && is_cuda_plan(&cuda).unwrap());
        for plan in [&cpu, &cuda] {
            assert_eq!(of_plan(plan).unwrap().map(|compiler| compiler.backend()), Some(BACKEND));
        }
        // Each half reads its own manifest and stumbles over what it lacks, not over the kind of the file.
        let native = NativeBackend::default();
        let words = |plan: &Path| native.identify(plan).unwrap_err().message;
        assert!(words(&cpu).contains("lacks its weights"), "{}", words(&cpu));
        assert!(words(&cuda).contains("lacks its weights"), "{}", words(&cuda));
        let wrong = CpuCompiler.identify(&cuda).unwrap_err().message;
        assert!(wrong.contains("it is a plan for an NVIDIA device"), "{wrong}");
        assert!(words(Path::new("/nowhere/x.plan")).contains("cannot open"));
    }

    #[test]
    fn a_sku_decides_the_half_before_anything_is_loaded() {
        let native = NativeBackend::default();
        let of = |sku: &str| format!("{:?}", native.of_sku(&sku.parse().unwrap()).recognises(b"PLANFORG"));
        assert_eq!(of("cpu-x86-64-v3"), "true");
        assert_eq!(of("h200-sxm"), "false");
    }

    struct Silent;

    impl Events for Silent {
        fn progress(&self, _: &str, _: f32, _: &str) {}

        fn log(&self, _: &str) {}
    }

    #[test]
    fn what_is_made_ready_for_a_device_elsewhere_is_made_by_the_half_for_nvidia_devices() {
        let native = NativeBackend::default();
        assert_eq!(native.prepares(), CudaCompiler.prepares());
        // Where tests are to have NVRTC, it offers something.
        assert!(std::env::var_os("PLANFORGE_NEED_NVRTC").is_none() || !native.prepares().is_empty());
        let request = CompileRequest {
            model: "/nowhere/model.onnx".into(),
            model_digest: planforge_types::Digest::of(b"model"),
            sku: "h200-sxm".parse().unwrap(),
            device: planforge_types::fingerprint::DeviceFingerprint {
                kind: DeviceKind::Gpu,
                name: "a board elsewhere".into(),
                memory_mib: 143_771,
                gpu: None,
                cpu: None,
                host: planforge_types::fingerprint::HostFacts::default(),
            },
            toolchain: Toolchain { backend: BACKEND.into(), version: "0".into(), components: Default::default() },
            spec: planforge_types::BuildSpec::default(),
            scratch: "/nowhere".into(),
            cache: None,
            calibration: None,
            plugins: Vec::new(),
        };
        let into = Path::new("/nowhere/prepared");
        let words = |compiler: &dyn Compiler| {
            compiler.prepare(&request, into, &Silent, &Cancel::default()).unwrap_err().message
        };
        assert_eq!(words(&native), words(&CudaCompiler));
    }
}
