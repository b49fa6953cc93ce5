//! A loaded plan: bound, run and timed.

use crate::{
    plan::{self, PlanManifest},
    profile,
    session::{Runtime, Setup, Spinning},
    settings::{check_level, optimization, provider_of, refuse, spinning, threads},
    tensors,
};
use ort::{
    memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType},
    session::{IoBinding, Session, SessionOutputs},
    value::DynTensor,
};
use planforge_backend::{LoadOptions, Meter, Window, WindowSamples};
use planforge_report::LayerTime;
use planforge_types::{BackendError, FailureClass, NamedTensors, OptimizationProfile, Port, Toolchain};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

/// Most runs of one window: bounds the memory of samples.
const ITERATIONS_MAX: u32 = 10_000_000;
/// Most profiled runs: bounds the profile's file.
const PROFILED_MAX: u32 = 100;

/// A plan in memory, ready to run.
#[derive(Debug)]
pub struct OrtSession {
    runtime: Runtime,
    path: PathBuf,
    manifest: PlanManifest,
    profile: Option<OptimizationProfile>,
    threads: usize,
    spinning: Spinning,
    /// Folder for the profiler's file.
    scratch: PathBuf,
    session: Session,
    binding: IoBinding,
    /// The bound inputs, in memory of the library; none before the first are bound.
    bound: Vec<(String, DynTensor)>,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    /// This process's own memory before the plan was loaded, and how much the plan has been seen to add.
    before_bytes: u64,
    held_bytes: u64,
}

impl OrtSession {
    /// Loads a plan file of this backend.
    pub(crate) fn load(
        path: &Path,
        options: &LoadOptions,
        runtime: impl FnOnce(&Toolchain) -> Result<Runtime, BackendError>,
    ) -> Result<Self, BackendError> {
        let manifest = plan::read(path)?;
        check_level(&manifest.sku)?;
        let profiles = &manifest.spec.profiles;
        let profile = profiles.get(options.profile).cloned();
        if profile.is_none() && options.profile > 0 {
            return Err(refuse(
                format!("the plan has {} profiles, so there is no profile {}", profiles.len(), options.profile),
                "count profiles from 0",
            ));
        }
        let runtime = runtime(&manifest.toolchain)?;
        let before_bytes = own_memory_bytes();
        let threads = threads(&manifest.spec, options.threads);
        let spinning = spinning(&manifest.spec)?;
        let session = runtime.session(path, &setup(&manifest, threads, spinning, None))?;
        let port = |outlet: &ort::value::Outlet| tensors::port(outlet.name(), outlet.dtype());
        let inputs = session.inputs().iter().map(port).collect::<Result<_, _>>()?;
        let outputs = session.outputs().iter().map(port).collect::<Result<_, _>>()?;
        let binding = binding(&runtime, &session, &[], &[])?;
        let scratch = options.site.as_ref().map_or_else(std::env::temp_dir, |site| site.scratch.clone());
        let weights_bytes = fs::metadata(path).map_or(0, |facts| facts.len());
        let mut meter = Self {
            runtime,
            path: path.to_owned(),
            manifest,
            profile,
            threads,
            spinning,
            scratch,
            session,
            binding,
            bound: Vec::new(),
            inputs,
            outputs,
            before_bytes,
            held_bytes: weights_bytes,
        };
        meter.see_memory();
        Ok(meter)
    }

    /// What the plan says it was built as.
    pub fn manifest(&self) -> &PlanManifest {
        &self.manifest
    }

    /// Keeps the most that the plan has been seen to add to this process.
    fn see_memory(&mut self) {
        self.held_bytes = self.held_bytes.max(own_memory_bytes().saturating_sub(self.before_bytes));
    }

    fn check_bound(&self) -> Result<(), BackendError> {
        match self.bound.len() == self.inputs.len() {
            true => Ok(()),
            false => Err(refuse("no inputs are bound to the engine", "bind inputs first")),
        }
    }

    fn run_once(&mut self) -> Result<SessionOutputs<'_>, BackendError> {
        let runtime = &self.runtime;
        self.session.run_binding(&self.binding).map_err(|error| runtime.error("stopped", error.message()))
    }
}

fn setup<'a>(manifest: &PlanManifest, threads: usize, spinning: Spinning, profile: Option<&'a Path>) -> Setup<'a> {
    Setup {
        provider: provider_of(&manifest.sku),
        threads,
        // The plan is optimised already; a GPU's copies between device and host are placed when it is loaded, which
        // needs the first level there.
        optimization: if manifest.sku.is_cpu() { 0 } else { optimization(&manifest.spec).min(1) },
        spinning,
        dimensions: &[],
        optimised: None,
        profile,
    }
}

/// A binding of `session` with `inputs`, whose outputs come to the CPU's memory.
fn binding(
    runtime: &Runtime,
    session: &Session,
    inputs: &[(String, DynTensor)],
    outputs: &[Port],
) -> Result<IoBinding, BackendError> {
    let make = || -> ort::Result<IoBinding> {
        let mut binding = session.create_binding()?;
        for (name, value) in inputs {
            binding.bind_input(name, value)?;
        }
        let host = MemoryInfo::new(AllocationDevice::CPU, 0, AllocatorType::Device, MemoryType::Default)?;
        outputs.iter().try_for_each(|port| binding.bind_output_to_device(&port.name, &host))?;
        Ok(binding)
    };
    make().map_err(|error| runtime.error("cannot bind inputs and outputs", error.message()))
}

/// Refuses inputs that are not the engine's or lie outside `profile`.
fn check_inputs(
    ports: &[Port],
    profile: Option<&OptimizationProfile>,
    inputs: &NamedTensors,
) -> Result<(), BackendError> {
    let expected = || ports.iter().map(|port| port.name.as_str()).collect::<Vec<_>>().join(", ");
    if let Some(name) = inputs.keys().find(|name| !ports.iter().any(|port| port.name == **name)) {
        return Err(refuse(format!("the engine has no input {name}"), &format!("it takes {}", expected())));
    }
    for port in ports {
        let tensor = inputs
            .get(&port.name)
            .ok_or_else(|| refuse(format!("input {} is not given", port.name), &format!("it takes {}", expected())))?;
        if tensor.element != port.element {
            return Err(refuse(
                format!("input {} is {}, but the engine takes {}", port.name, tensor.element, port.element),
                "convert the input",
            ));
        }
        let ranges = profile.and_then(|profile| profile.inputs.get(&port.name));
        let fits = port.shape.len() == tensor.shape.len()
            && port
                .shape
                .iter()
                .zip(&tensor.shape)
                .all(|(fixed, size)| fixed.is_none_or(|fixed| fixed == *size as u64))
            && ranges.is_none_or(|ranges| {
                ranges.len() == tensor.shape.len()
                    && ranges
                        .iter()
                        .zip(&tensor.shape)
                        .all(|(range, size)| (range.min..=range.max).contains(&(*size as u64)))
            });
        if !fits {
            let takes =
                port.shape.iter().enumerate().map(|(axis, fixed)| match (fixed, ranges.and_then(|r| r.get(axis))) {
                    (Some(size), _) => size.to_string(),
                    (None, Some(range)) if range.min == range.max => range.min.to_string(),
                    (None, Some(range)) => format!("{}..={}", range.min, range.max),
                    (None, None) => "any".into(),
                });
            let takes = takes.collect::<Vec<_>>().join(" x ");
            return Err(refuse(
                format!("input {} has shape {:?}, but the engine takes {takes}", port.name, tensor.shape),
                "give a shape within the profile, or build the model with a profile of that shape",
            ));
        }
    }
    Ok(())
}

impl Meter for OrtSession {
    fn inputs(&self) -> Vec<Port> {
        self.inputs.clone()
    }

    fn outputs(&self) -> Vec<Port> {
        self.outputs.clone()
    }

    fn bind(&mut self, inputs: &NamedTensors) -> Result<(), BackendError> {
        check_inputs(&self.inputs, self.profile.as_ref(), inputs)?;
        self.bound.clear();
        let values = inputs.iter().map(|(name, tensor)| Ok((name.clone(), tensors::to_value(tensor)?)));
        let values = values.collect::<Result<Vec<_>, BackendError>>()?;
        self.binding = binding(&self.runtime, &self.session, &values, &self.outputs)?;
        self.bound = values;
        Ok(())
    }

    fn run(&mut self) -> Result<NamedTensors, BackendError> {
        self.check_bound()?;
        let outputs = self.run_once()?;
        let tensors = outputs.iter().map(|(name, value)| Ok((name.to_owned(), tensors::from_value(name, &value)?)));
        let tensors = tensors.collect::<Result<NamedTensors, BackendError>>()?;
        drop(outputs);
        self.see_memory();
        Ok(tensors)
    }

    fn window(&mut self, window: Window) -> Result<WindowSamples, BackendError> {
        self.check_bound()?;
        let iterations = window.iterations.min(ITERATIONS_MAX);
        let mut latency_ms = Vec::with_capacity(iterations as usize);
        for _ in 0..iterations {
            let start = Instant::now();
            self.run_once()?;
            latency_ms.push(start.elapsed().as_secs_f64() * 1e3);
        }
        Ok(WindowSamples { latency_ms })
    }

    fn layers(&mut self, iterations: u32) -> Result<Vec<LayerTime>, BackendError> {
        self.check_bound()?;
        let prefix = self.scratch.join(format!("onnxruntime-profile-{}", std::process::id()));
        // A session profiles from its beginning or never, so this is another one.
        let setup = setup(&self.manifest, self.threads, self.spinning, Some(&prefix));
        let mut session = self.runtime.session(&self.path, &setup)?;
        let failed = |error: ort::Error| self.runtime.error("cannot profile", error.message());
        let iterations = iterations.clamp(1, PROFILED_MAX);
        let binding = binding(&self.runtime, &session, &self.bound, &self.outputs)?;
        for _ in 0..=iterations {
            session.run_binding(&binding).map_err(failed)?;
        }
        drop(binding);
        let file = PathBuf::from(session.end_profiling().map_err(failed)?);
        // The first run allocates and is left out.
        let layers = profile::read(&file, 1);
        if let Err(error) = fs::remove_file(&file) {
            tracing::debug!(file = %file.display(), %error, "a profile stays behind");
        }
        layers.map_err(|error| BackendError::new(FailureClass::Infrastructure, error.to_string()))
    }

    fn memory_bytes(&self) -> u64 {
        self.held_bytes
    }
}

/// Memory of this process that belongs to no file, 0 where the system does not tell.
fn own_memory_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
