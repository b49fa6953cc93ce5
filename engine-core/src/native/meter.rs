//! A loaded native plan: bound, run and timed.

use super::{
    engine::Engine,
    memory::Weights,
    plan::{self, Manifest, PlanError},
    program::{ProgramPort, StepKind},
};
use crate::{
    backend::{BackendError, HostTensor, LayerTime, LoadOptions, Meter, NamedTensors, Port, Window, WindowSamples},
    ir::element_count,
    worker::FailureClass,
};
use planforge_kernels::{isa::Isa, pool::ThreadPool};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Arc,
    time::Instant,
};

/// Most runs of one window or profile: bounds the memory of samples.
const ITERATIONS_MAX: u32 = 10_000_000;

/// A native engine ready to run.
#[derive(Debug)]
pub struct NativeMeter {
    engine: Engine,
    manifest: Manifest,
    /// Name of the instruction set, as kernel names begin with.
    isa: &'static str,
    bound: bool,
}

fn model_error(message: impl Into<String>) -> BackendError {
    BackendError::new(FailureClass::Model, message)
}

/// Words an error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(&format!(": {error}"));
        source = error.source();
    }
    text
}

impl From<PlanError> for BackendError {
    fn from(error: PlanError) -> Self {
        let hint = match &error {
            PlanError::Open { .. } => "check the path",
            PlanError::Container { .. } | PlanError::Manifest { .. } => "fetch or build the plan again",
            PlanError::Sku { .. } | PlanError::Instructions { .. } => {
                "build the model for a SKU that `planforge devices` lists here"
            }
        };
        model_error(chain(&error)).with_hint(hint)
    }
}

impl NativeMeter {
    /// Loads a plan file, checking all of it.
    pub(crate) fn load(path: &Path, options: &LoadOptions) -> Result<Self, BackendError> {
        if options.profile != 0 {
            return Err(model_error(format!("the plan has one profile, so there is no profile {}", options.profile)));
        }
        let checked = plan::read(path)?;
        let level = plan::level_of(&checked.manifest)?;
        let isa = Isa::new(level).ok_or_else(|| model_error(format!("this CPU lacks {}", level.describe())))?;
        let threads = options.threads.unwrap_or(checked.manifest.threads) as usize;
        let pool =
            ThreadPool::new(threads).map_err(|error| BackendError::new(FailureClass::Resource, chain(&error)))?;
        let weights = Weights::new(checked.weights.part(&checked.map));
        let manifest = checked.manifest;
        let engine = Engine::new(manifest.program.clone(), weights, isa, Arc::new(pool))
            .map_err(|error| model_error(format!("plan {}: {}", path.display(), chain(&error))))?;
        Ok(Self { engine, manifest, isa: level.name(), bound: false })
    }

    /// What the plan says of itself.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn check_bound(&self) -> Result<(), BackendError> {
        if self.bound { Ok(()) } else { Err(model_error("no inputs are bound to the engine")) }
    }

    /// Runs `body` and turns a panic in a kernel into an error: a plan is input, and kernels check what they are given.
    fn guarded<T>(&mut self, body: impl FnOnce(&mut Engine) -> Result<T, BackendError>) -> Result<T, BackendError> {
        self.check_bound()?;
        let engine = &mut self.engine;
        catch_unwind(AssertUnwindSafe(|| body(engine))).unwrap_or_else(|panic| {
            let words = panic.downcast_ref::<String>().map(String::as_str);
            let words = words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("unknown");
            Err(model_error(format!("the engine stopped: {words}")).with_hint("build the plan again"))
        })
    }
}

fn port(of: &ProgramPort) -> Port {
    let shape = of.shape.iter().map(|&size| Some(size as u64)).collect();
    Port { name: of.name.clone(), element: of.element, shape }
}

impl Meter for NativeMeter {
    fn inputs(&self) -> Vec<Port> {
        self.manifest.program.inputs.iter().map(port).collect()
    }

    fn outputs(&self) -> Vec<Port> {
        self.manifest.program.outputs.iter().map(port).collect()
    }

    fn bind(&mut self, inputs: &NamedTensors) -> Result<(), BackendError> {
        let ports = &self.manifest.program.inputs;
        let expected = || ports.iter().map(|port| port.name.as_str()).collect::<Vec<_>>().join(", ");
        if let Some(name) = inputs.keys().find(|name| !ports.iter().any(|port| port.name == **name)) {
            return Err(model_error(format!("the engine has no input {name}; it takes {}", expected())));
        }
        for port in ports {
            let tensor = inputs.get(&port.name).ok_or_else(|| {
                model_error(format!("input {} is not given; the engine takes {}", port.name, expected()))
            })?;
            let bytes = element_count(&tensor.shape).map(|count| count * tensor.element.bytes());
            if tensor.element != port.element || tensor.shape != port.shape || bytes != Some(tensor.bytes.len()) {
                return Err(model_error(format!(
                    "input {} is {:?} {:?} of {} bytes, but the engine was built for {:?} {:?}",
                    port.name,
                    tensor.element,
                    tensor.shape,
                    tensor.bytes.len(),
                    port.element,
                    port.shape
                ))
                .with_hint("build the model with a profile of that shape"));
            }
        }
        for (index, port) in ports.iter().enumerate() {
            if let Some(tensor) = inputs.get(&port.name) {
                self.engine.set_input(index, &tensor.bytes);
            }
        }
        self.bound = true;
        Ok(())
    }

    fn run(&mut self) -> Result<NamedTensors, BackendError> {
        self.guarded(|engine| engine.run().map_err(|error| model_error(chain(&error))))?;
        let outputs = self.manifest.program.outputs.iter().enumerate();
        Ok(outputs
            .map(|(index, port)| {
                let bytes = self.engine.output(index).to_vec();
                (port.name.clone(), HostTensor { element: port.element, shape: port.shape.clone(), bytes })
            })
            .collect())
    }

    fn window(&mut self, window: Window) -> Result<WindowSamples, BackendError> {
        let iterations = window.iterations.min(ITERATIONS_MAX);
        self.guarded(|engine| {
            let mut latency_ms = Vec::with_capacity(iterations as usize);
            for _ in 0..iterations {
                let start = Instant::now();
                engine.run().map_err(|error| model_error(chain(&error)))?;
                latency_ms.push(start.elapsed().as_secs_f64() * 1e3);
            }
            Ok(WindowSamples { latency_ms })
        })
    }

    fn layers(&mut self, iterations: u32) -> Result<Vec<LayerTime>, BackendError> {
        let iterations = iterations.clamp(1, ITERATIONS_MAX);
        let mut times = vec![Vec::new(); self.manifest.program.steps.len()];
        self.guarded(|engine| {
            (0..iterations).try_for_each(|_| engine.run_timed(&mut times)).map_err(|error| model_error(chain(&error)))
        })?;
        let program = &self.manifest.program;
        let layers = program.steps.iter().zip(&mut times).map(|(step, times)| {
            times.sort_unstable_by(f64::total_cmp);
            let bytes = step.reads().chain(step.outputs.iter().copied()).map(|id| program.buffer(id).bytes).sum();
            LayerTime {
                name: step.origins.join(" + "),
                kind: step.kind.name().to_owned(),
                tactic: step.kernel_name(self.isa),
                median_ms: times.get(times.len() / 2).copied().unwrap_or(0.0),
                flops: step.kind.flops(),
                // A gather touches only the lines it takes.
                bytes: if let StepKind::Gather { .. } = step.kind {
                    step.outputs.iter().map(|&id| 2 * program.buffer(id).bytes).sum()
                } else {
                    bytes
                },
                ..LayerTime::default()
            }
        });
        Ok(layers.collect())
    }

    fn memory_bytes(&self) -> u64 {
        self.engine.held_bytes()
    }
}
