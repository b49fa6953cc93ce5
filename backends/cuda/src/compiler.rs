//! The compiler for NVIDIA devices: from an ONNX file to a plan file.

use crate::{
    ahead,
    build::{self, Draft, PreparedCount},
    cache::{self, Prepared, TacticCache},
    engine::Engine,
    failure::{log_lines, model},
    inspect,
    meter::CudaSession,
    plan::{self, Manifest, Parts, TunedOn},
    program::MAX_WORKSPACE_BYTES,
    runtime::{Device, RuntimeError},
    versions::{self, BACKEND, Versions},
};
use planforge_backend::{Cancel, CompileRequest, CompiledPlan, Compiler, Events, LoadOptions, Meter, PlanIdentity};
use planforge_kernels_cuda::{
    device::DeviceError,
    libraries::libraries,
    nvrtc,
    nvtx::{Range, range},
};
use planforge_passes::frontend::{self, Note};
use planforge_plan::container::{self, KIND_CUDA_MANIFEST};
use planforge_report::Finding;
use planforge_types::{
    BackendError, FailureClass, Precision, Sku, Toolchain,
    fingerprint::{DeviceKind, DiscoveredDevice, GpuFacts},
};
use std::{collections::BTreeMap, io, path::Path, time::Instant};

/// First compute capability, times ten, that has bf16 and TF32.
const BF16_CAPABILITY: u32 = 80;

const BYTES_PER_MIB: u64 = 1 << 20;

/// Compiles for NVIDIA devices. Looks for libraries only when it is asked about one.
#[derive(Clone, Copy, Debug, Default)]
pub struct CudaCompiler;

/// Compute capability times ten; 0 when it is not known.
fn capability(gpu: &GpuFacts) -> u32 {
    let mut parts = gpu.compute_capability.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    parts.next().unwrap_or(0) * 10 + parts.next().unwrap_or(0)
}

impl CudaCompiler {
    /// What can be refused without libraries and devices.
    fn check_spec(request: &CompileRequest) -> Result<(), BackendError> {
        let sku = &request.sku;
        let gpu = request.device.gpu.as_ref().filter(|_| request.device.kind == DeviceKind::Gpu && !sku.is_cpu());
        let gpu = gpu.ok_or_else(|| {
            model(
                format!("the CUDA compiler builds on NVIDIA devices, not for {sku}"),
                "name a SKU that `planforge devices` lists",
            )
        })?;
        let spec = &request.spec;
        let too_old = matches!(spec.precision, Precision::Bf16 | Precision::Tf32) && capability(gpu) < BF16_CAPABILITY;
        if too_old {
            let precision = spec.precision.to_string();
            return Err(model(
                format!(
                    "{precision} needs compute capability 8.0; {} has {}",
                    request.device.name, gpu.compute_capability
                ),
                "ask for fp16 or fp32",
            ));
        }
        let workspace_mib = MAX_WORKSPACE_BYTES / BYTES_PER_MIB;
        let refusals = [
            (build::storage(spec.precision).is_none(), format!("precision {}", spec.precision)),
            (spec.hardware_compatibility.is_some(), "hardware compatibility levels".into()),
            (spec.version_compatible, "version-compatible plans".into()),
            (spec.calibration.is_some(), "calibration".into()),
            (!spec.plugins.is_empty(), "plugins".into()),
            (
                spec.workspace_mib.is_some_and(|mib| mib < workspace_mib),
                format!("a workspace below {workspace_mib} MiB"),
            ),
        ];
        if let Some((_, what)) = refusals.iter().find(|(given, _)| *given) {
            return Err(model(format!("the CUDA compiler does not support {what} yet"), "leave it out of the spec"));
        }
        match spec.options.keys().next() {
            Some(name) => Err(model(format!("the CUDA compiler has no option {name}"), "leave the option out")),
            None => Ok(()),
        }
    }
}

impl Compiler for CudaCompiler {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn toolchains(&self, device: &DiscoveredDevice) -> Vec<Toolchain> {
        let gpu = device.fingerprint.gpu.as_ref().filter(|_| device.fingerprint.kind == DeviceKind::Gpu);
        // A scripted double has no driver to open.
        let Some(gpu) = gpu.filter(|_| !device.simulated) else { return Vec::new() };
        match versions::missing() {
            None => vec![Versions::here().toolchain(&gpu.driver)],
            Some(missing) => {
                tracing::debug!(%missing, device = device.id, "no CUDA engines can be built");
                Vec::new()
            }
        }
    }

    fn options(&self, _sku: &Sku) -> Option<&'static [&'static str]> {
        Some(&[])
    }

    fn check(&self, request: &CompileRequest) -> Result<(), BackendError> {
        Self::check_spec(request)?;
        if let Some(missing) = versions::missing() {
            return Err(RuntimeError::from(DeviceError::Missing(missing)).into());
        }
        let driver = request.device.gpu.as_ref().map_or("", |gpu| gpu.driver.as_str());
        let here = Versions::here().toolchain(driver);
        if request.toolchain != here {
            return Err(model(
                format!("this program and its libraries are {here}, not {}", request.toolchain),
                "ask for the toolchain that is offered, or install the other libraries",
            ));
        }
        Ok(())
    }

    fn compile(
        &self,
        request: &CompileRequest,
        events: &dyn Events,
        cancel: &Cancel,
    ) -> Result<CompiledPlan, BackendError> {
        self.check(request)?;
        let phases = Phases::begin("import");
        events.progress("import", 0.0, "");
        let file = frontend::open(&request.model)?;
        let draft = build::draft(&file, &request.spec)?;
        // Graphs of other shapes are made from it; what it takes is known before anything is timed.
        let held = request.spec.varies().then(|| build::held_model(&file, &draft)).transpose()?;
        drop(file);
        let phases = phases.next("open");
        if cancel.is_cancelled() {
            return Err(RuntimeError::Cancelled.into());
        }

        let device = Device::open(request.device.gpu.as_ref().map(|gpu| gpu.uuid.as_str()), None)?;
        let phases = phases.next("tune");
        let versions = Versions::here();
        let device_class = request.device.class_digest();
        let level = request.spec.optimization_level.0;
        let mut cache = TacticCache::open(request.cache.as_deref(), device_class, &versions, level);
        let mut go_on = |index: usize, count: usize, name: &str| {
            events.progress("tune", index as f32 / count.max(1) as f32, name);
            !cancel.is_cancelled()
        };
        let finished = build::finish(&device, &draft, level, &mut cache, &mut go_on).map_err(|error| {
            log_lines(&error).iter().for_each(|line| events.log(line));
            BackendError::from(error)
        })?;
        let phases = phases.next("write");
        if let Err(error) = cache.save() {
            events.log(&format!("the tactic cache could not be kept: {error}"));
        }
        events.log(&format!("{} steps timed, {} known from the tactic cache", finished.timed, finished.known));
        let ahead = (finished.prepared != PreparedCount::default()).then(|| compiled_ahead(&finished));
        ahead.iter().for_each(|words| events.log(words));

        events.progress("write", 0.0, "");
        let properties = device.gpu.properties();
        let Draft { weights, inputs, outputs, graph, passes, notes, .. } = draft;
        let steps = finished.programs[0].program.steps.len();
        let mut manifest = Manifest {
            model_digest: request.model_digest,
            sku: request.sku.clone(),
            toolchain: request.toolchain.clone(),
            versions,
            spec: request.spec.clone().canonical(),
            device_class,
            tuned_on: TunedOn {
                name: properties.name.clone(),
                architecture: properties.arch.to_string(),
                sm_count: properties.sm_count,
            },
            graph,
            passes,
            inputs,
            outputs,
            programs: finished.programs,
            kernels: Vec::new(),
        };
        let library_plan_bytes: usize = finished.library_plans.values().map(String::len).sum();
        let parts = Parts {
            weights: &weights,
            code: finished.code,
            library_plans: finished.library_plans,
            model: held.as_ref(),
        };
        let path = request.scratch.join("engine.plan");
        plan::write(&path, &mut manifest, &parts).map_err(|error| {
            BackendError::new(FailureClass::Resource, format!("plan {}: {error}", path.display()))
                .with_hint("make room on the disk of the scratch folder")
        })?;
        let phases_s = phases.end();
        let facts = serde_json::json!({
            "steps": steps,
            "profiles": manifest.programs.len(),
            "passes": manifest.passes.iter().map(|pass| (pass.pass.clone(), pass.changes.len())).collect::<BTreeMap<_, _>>(),
            "gelu": manifest.programs[0].program.gelus(),
            "tactics_timed": finished.timed,
            "tactics_known": finished.known,
            "kernels": manifest.kernels.len(),
            "kernels_prepared": finished.prepared.kernels,
            "kernels_prepared_used": finished.prepared_used.kernels,
            "cudnn_plans_prepared": finished.prepared.plans,
            "cudnn_plans_prepared_used": finished.prepared_used.plans,
            "kernel_bytes": parts.code.values().map(Vec::len).sum::<usize>(),
            "library_plan_bytes": library_plan_bytes,
            "arena_bytes": manifest.programs[0].program.arena_bytes,
            "weight_bytes": manifest.programs[0].program.weight_bytes,
            "device_memory_bytes": finished.device_bytes,
            "phases_s": phases_s,
            "versions": manifest.versions,
        });
        events.progress("write", 1.0, "");
        let ahead = ahead.map(|words| Finding::note("compiled-ahead", words));
        Ok(CompiledPlan { path, facts, findings: notes.iter().map(finding).chain(ahead).collect() })
    }

    /// By the compiler's revision and NVRTC alone: the device's other libraries are not there.
    fn prepares(&self) -> Vec<Toolchain> {
        match &libraries().nvrtc {
            Ok(nvrtc) => {
                vec![Versions { nvrtc: nvrtc.version.clone(), ..Versions::default() }.toolchain("")]
            }
            Err(missing) => {
                tracing::debug!(%missing, "nothing can be compiled ahead");
                Vec::new()
            }
        }
    }

    fn prepare(
        &self,
        request: &CompileRequest,
        into: &Path,
        events: &dyn Events,
        cancel: &Cancel,
    ) -> Result<(), BackendError> {
        Self::check_spec(request)?;
        let nvrtc = libraries().nvrtc.clone();
        let nvrtc =
            nvrtc.map_err(|missing| BackendError::from(RuntimeError::from(DeviceError::Missing(missing))))?.version;
        let here = Versions { nvrtc: nvrtc.clone(), ..Versions::default() }.toolchain("");
        let same = (&here.version, here.components.get("cuda"));
        if same != (&request.toolchain.version, request.toolchain.components.get("cuda")) {
            let message = format!("this program compiles ahead for {here}, not for {}", request.toolchain);
            return Err(BackendError::infrastructure(message).with_hint("bring agents and libraries to one version"));
        }
        let gpu = request.device.gpu.as_ref();
        let arch = gpu.and_then(ahead::arch_of).ok_or_else(|| {
            BackendError::infrastructure(format!("the device described as {} has no architecture", request.device.name))
        })?;
        let supported = nvrtc::supported().map_err(RuntimeError::from)?;
        if !supported.contains(&arch.capability) {
            return Err(BackendError::infrastructure(format!(
                "NVRTC {nvrtc} of this host does not compile for {arch}"
            ))
            .with_hint("install a newer one there, or build on the device without compiling ahead"));
        }
        events.progress("import", 0.0, "");
        let draft = build::draft(&frontend::open(&request.model)?, &request.spec)?;
        let level = request.spec.optimization_level.0;
        let sources = gpu.map(|gpu| ahead::sources(&draft, gpu, arch, level)).unwrap_or_default();
        let count = sources.len();
        let go_on = |done: usize| {
            events.progress("compile", done as f32 / count.max(1) as f32, &format!("{count} kernels for {arch}"));
            !cancel.is_cancelled()
        };
        let code = ahead::compile(&sources, arch, &go_on).ok_or(RuntimeError::Cancelled)?;
        let bytes: usize = code.values().map(Vec::len).sum();
        events.log(&format!("{} of {count} kernels compiled for {arch} by NVRTC {nvrtc}: {bytes} bytes", code.len()));
        let wanted = request.toolchain.components.get("cudnn").map(String::as_str).unwrap_or_default();
        let cudnn = ahead::LibraryPlans { device: &request.device, arch, version: wanted, level };
        let plans = cudnn.compile(&draft, cancel).ok_or(RuntimeError::Cancelled)?;
        events.log(&plans.words);
        let prepared = Prepared { code, plans: plans.texts };
        cache::write_prepared(into, arch, &nvrtc, prepared).map_err(|error| {
            BackendError::new(FailureClass::Resource, format!("{}: {error}", into.display()))
                .with_hint("make room on the disk of the scratch folder, or lower the optimization level")
        })
    }

    fn builds_out_of_process(&self, _request: &CompileRequest) -> bool {
        true
    }

    fn join_caches(&self, _sku: &Sku, into: &Path, from: &Path) -> io::Result<bool> {
        cache::join(into, from)?;
        Ok(true)
    }

    fn recognises(&self, head: &[u8]) -> bool {
        container::first_kind(head) == Some(KIND_CUDA_MANIFEST)
    }

    fn identify(&self, plan: &Path) -> Result<PlanIdentity, BackendError> {
        let plan = inspect::inspect(plan)?;
        Ok(PlanIdentity {
            model_name: plan.graph.name,
            model_digest: plan.model_digest,
            sku: plan.sku,
            toolchain: plan.toolchain,
            spec: plan.spec,
            threads: None,
            foreign: plan.foreign,
        })
    }

    fn load(&self, plan: &Path, options: &LoadOptions) -> Result<Box<dyn Meter>, BackendError> {
        let engine = Engine::load(plan, options)?;
        let scratch = options.site.as_ref().map(|site| site.scratch.clone());
        Ok(Box::new(CudaSession::new(engine, plan.to_owned(), scratch)))
    }
}

/// What was done before the device was taken.
fn compiled_ahead(finished: &build::Finished) -> String {
    let build::Finished { prepared, prepared_used, .. } = finished;
    let plans = match prepared.plans {
        0 => String::new(),
        plans => format!(", and {} of {plans} plans of cuDNN's", prepared_used.plans),
    };
    format!(
        "{} kernels were compiled elsewhere before this build had the device, which timed them; the engine uses {} of \
         them{plans}",
        prepared.kernels, prepared_used.kernels
    )
}

/// What a report says of an import.
fn finding(note: &Note) -> Finding {
    match note.is_warning() {
        true => Finding::warning(note.code(), note.to_string()),
        false => Finding::note(note.code(), note.to_string()),
    }
}

/// Seconds of each part of a build; a profiler sees each as a range.
struct Phases {
    name: &'static str,
    since: Instant,
    seconds: BTreeMap<&'static str, f64>,
    /// Of the part that runs.
    _range: Range,
}

impl Phases {
    fn begin(name: &'static str) -> Self {
        Self { name, since: Instant::now(), seconds: BTreeMap::new(), _range: range(name) }
    }

    /// Ends one part and begins another.
    fn next(self, name: &'static str) -> Self {
        Self { seconds: self.end(), ..Self::begin(name) }
    }

    fn end(mut self) -> BTreeMap<&'static str, f64> {
        self.seconds.insert(self.name, self.since.elapsed().as_secs_f64());
        self.seconds
    }
}
