//! A loaded native plan: bound, run and timed.
//!
//! At the usual shapes of its profile a plan runs the program it holds. Any other shape inside the profile gets a
//! program of its own when it is first bound (see `specialize`), and the last few are kept. All of them share the
//! plan's packed weights, and one arena, for one of them runs at a time.

mod instances;
mod trace;

use super::{
    engine::Engine,
    error::EngineError,
    gelus,
    memory::Weights,
    plan::{self, Manifest, PlanError},
    program::{Program, ProgramPort, Step},
    rates,
    specialize::{SpecializeError, Specializer},
    tail::{self, TailKernels},
    target::target,
};
use bytes::Bytes;
use planforge_backend::{Aside, Cache, KeptFile, Lent, LoadOptions, Meter, StreamSamples, Window, WindowSamples};
use planforge_graph::{interpreter, ir::Computer};
use planforge_import::{Bounds, Fragment};
use planforge_kernels_cpu::{isa::Isa, pace::pace_ns, pool::ThreadPool};
use planforge_onnx::Model;
use planforge_plan::signature::{self, InputSignature};
use planforge_report::{LayerTime, Rates};
use planforge_types::failure::chain;
use planforge_types::{BackendError, FailureClass, NamedTensors, OptimizationProfile, Port};
use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

/// Most runs of one window or profile: bounds the memory of samples.
const ITERATIONS_MAX: u32 = 10_000_000;

/// Shapes whose engines are kept, the one in use among them. A server that pads to a handful of sizes keeps them all;
/// each costs its steps and the few constants that only it has, not weights or activations.
pub const SHAPES_KEPT: usize = 8;

/// A native engine ready to run.
pub struct CpuSession {
    manifest: Manifest,
    isa: Isa,
    pool: Arc<ThreadPool>,
    weights: Weights,
    profile: usize,
    /// What it takes under its profile.
    takes: Vec<InputSignature>,
    /// At least one, the one in use last, which alone has memory.
    engines: Vec<Engine>,
    /// Message and weights of the model, for other shapes than the usual ones.
    model: Option<(Bytes, Bytes)>,
    /// Made of the model when a shape asks for it first.
    specializer: Option<Specializer>,
    /// Computes what follows the program; `computer` is the same.
    kernels: Option<Arc<TailKernels>>,
    computer: Arc<dyn Computer>,
    bound: bool,
    /// Where a timeline is written; absent where nobody keeps one.
    scratch: Option<PathBuf>,
    files: Vec<KeptFile>,
}

impl std::fmt::Debug for CpuSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuSession").field("manifest", &self.manifest).field("profile", &self.profile).finish()
    }
}

/// A plan that does not run: its own fault, unless memory is what is missing.
fn engine_error(error: &EngineError) -> BackendError {
    match error {
        EngineError::Memory(_) => BackendError::new(FailureClass::Resource, chain(error))
            .with_hint("run it where more memory is free, or at smaller shapes"),
        _ => BackendError::model(chain(error)).with_hint("build the plan again"),
    }
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
        BackendError::model(chain(&error)).with_hint(hint)
    }
}

impl From<SpecializeError> for BackendError {
    fn from(error: SpecializeError) -> Self {
        let hint = match &error {
            SpecializeError::Import(_) => "build the model with a profile whose shapes all suit it",
            _ => "report this with the model's structure",
        };
        BackendError::model(chain(&error)).with_hint(hint)
    }
}

impl CpuSession {
    /// Loads a plan file, checking all of it.
    pub(crate) fn load(path: &Path, options: &LoadOptions) -> Result<Self, BackendError> {
        let checked = plan::read(path)?;
        let (manifest, profile) = (checked.manifest, options.profile);
        let (takes, program) = usual(&manifest, profile)?;
        let program = program.clone();
        let level = plan::level_of(&manifest)?;
        let isa = Isa::new(level).ok_or_else(|| BackendError::model(format!("this CPU lacks {}", level.describe())))?;
        let threads = options.threads.unwrap_or(manifest.threads) as usize;
        let pool =
            ThreadPool::pinned(threads).map_err(|error| BackendError::new(FailureClass::Resource, chain(&error)))?;
        let pool = Arc::new(pool);
        let weights = Weights::new(checked.weights.part(&checked.map));
        let engine = Engine::new(program, weights.clone(), isa, Arc::clone(&pool)).map_err(|error| {
            let error = engine_error(&error);
            BackendError { message: format!("plan {}: {}", path.display(), error.message), ..error }
        })?;
        let mut session = Self {
            manifest,
            isa,
            pool,
            weights,
            profile,
            takes,
            engines: vec![engine],
            model: checked.model,
            specializer: None,
            kernels: None,
            computer: interpreter::plainly(),
            bound: false,
            scratch: options.site.as_ref().map(|site| site.scratch.clone()),
            files: Vec::new(),
        };
        if session.manifest.tail.is_some() {
            let fragment = session.usual_fragment()?;
            let last = session.engines.pop().map(|engine| engine.followed_by(fragment));
            session.engines.extend(last);
        }
        Ok(session)
    }

    /// The nodes behind the program of the current profile's usual shapes.
    fn usual_fragment(&mut self) -> Result<Option<Arc<Fragment>>, BackendError> {
        if self.manifest.tail.is_none() {
            return Ok(None);
        }
        let fragment = match &self.manifest.dynamic {
            None => Some(tail::fragment(bounds(&self.manifest), self.model.as_ref())?),
            Some(_) => {
                let usual = self.takes.iter().map(|input| {
                    let shape = input.dims.iter().map(|dim| dim.range.opt as usize).collect::<Vec<_>>();
                    (input.name.as_str(), shape)
                });
                let usual: Vec<_> = usual.collect();
                let fixed = usual.iter().map(|(name, shape)| (*name, shape.as_slice()));
                let fixed = OptimizationProfile::of_shapes(fixed);
                self.specializer()?.fragment(&fixed)?
            }
        };
        Ok(self.known(fragment))
    }

    /// A fragment whose constants the kernels of what follows know.
    fn known(&mut self, fragment: Option<Arc<Fragment>>) -> Option<Arc<Fragment>> {
        if let Some(fragment) = &fragment {
            match &self.kernels {
                Some(kernels) => kernels.know(fragment),
                None => {
                    let kernels = Arc::new(TailKernels::new(self.isa, Arc::clone(&self.pool), fragment));
                    self.computer = Arc::<TailKernels>::clone(&kernels);
                    self.kernels = Some(kernels);
                }
            }
        }
        fragment
    }

    /// What makes programs of other shapes.
    fn specializer(&mut self) -> Result<&mut Specializer, BackendError> {
        Ok(match &mut self.specializer {
            Some(specializer) => specializer,
            none => none.insert(specializer(&self.manifest, self.model.as_ref(), self.isa, &self.pool)?),
        })
    }

    /// What the plan says of itself.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// How many shapes have an engine now; at most `SHAPES_KEPT`.
    pub fn shapes_ready(&self) -> usize {
        self.engines.len()
    }

    fn engine(&self) -> &Engine {
        self.engines.last().expect("there is always an engine")
    }

    fn program(&self) -> &Program {
        self.engine().program()
    }

    fn check_bound(&self) -> Result<(), BackendError> {
        if self.bound { Ok(()) } else { Err(BackendError::model("no inputs are bound to the engine")) }
    }

    /// Runs `body` on the engine in use.
    fn guarded<T>(&mut self, body: impl FnOnce(&mut Engine) -> Result<T, BackendError>) -> Result<T, BackendError> {
        self.check_bound()?;
        let pool = Arc::clone(&self.pool);
        let _pinned = pool.pin_caller();
        guarded(|| body(self.engines.last_mut().expect("there is always an engine")))
    }

    /// Makes the engine of these shapes, which the profile allows, the one in use.
    fn select(&mut self, shapes: &[&[usize]]) -> Result<(), BackendError> {
        let fits = |engine: &Engine| {
            let ports = engine.program().inputs.iter();
            ports.map(|port| port.shape.as_slice()).eq(shapes.iter().copied())
        };
        let mut next = match self.engines.iter().position(fits) {
            Some(at) if at + 1 == self.engines.len() => return Ok(()),
            Some(at) => self.engines.remove(at),
            None => {
                let engine = guarded(|| self.specialize(shapes))?;
                if self.engines.len() == SHAPES_KEPT {
                    // The one whose use is longest ago. It has no memory to pass on: the last one has.
                    self.engines.remove(0);
                }
                engine
            }
        };
        // Whatever becomes of it, the last engine is the one with memory.
        let arena = self.engines.last_mut().map(Engine::take_arena).unwrap_or_default();
        let given = next.give_arena(arena);
        self.engines.push(next);
        given.map_err(|error| engine_error(&EngineError::from(error)))
    }

    /// An engine without memory for these shapes.
    fn specialize(&mut self, shapes: &[&[usize]]) -> Result<Engine, BackendError> {
        let fixed = self.takes.iter().zip(shapes).map(|(input, &shape)| (input.name.as_str(), shape));
        let fixed = OptimizationProfile::of_shapes(fixed);
        let usual = self
            .manifest
            .program_of(self.profile)
            .filter(|program| program.inputs.iter().map(|port| port.shape.as_slice()).eq(shapes.iter().copied()))
            .cloned();
        let (program, weights, fragment) = match usual {
            Some(program) => (program, self.weights.clone(), self.usual_fragment()?),
            None => {
                let tuned = self.manifest.program_of(self.profile).unwrap_or(&self.manifest.program).clone();
                let (program, more, fragment) = self.specializer()?.program(&fixed, &tuned)?;
                (program, self.weights.with(more), self.known(fragment))
            }
        };
        let engine = Engine::without_arena(program, weights, self.isa, Arc::clone(&self.pool));
        engine.map(|engine| engine.followed_by(fragment)).map_err(|error| engine_error(&error))
    }
}

/// What a plan takes under a profile, and its program at the usual shapes.
fn usual(manifest: &Manifest, profile: usize) -> Result<(Vec<InputSignature>, &Program), BackendError> {
    manifest.signature(profile).zip(manifest.program_of(profile)).ok_or_else(|| {
        let profiles = manifest.profiles();
        let number = if profiles == 1 { "one profile".to_owned() } else { format!("{profiles} profiles") };
        BackendError::model(format!("the plan has {number}, so there is no profile {profile}"))
            .with_hint("profiles are counted from 0")
    })
}

/// What makes programs of a plan's model.
fn specializer(
    manifest: &Manifest,
    model: Option<&(Bytes, Bytes)>,
    isa: Isa,
    pool: &ThreadPool,
) -> Result<Specializer, BackendError> {
    let broken = |reason: String| BackendError::model(reason).with_hint("fetch or build the plan again");
    let (Some((message, weights)), Some(dynamic)) = (model, &manifest.dynamic) else {
        return Err(broken("the plan holds no model to make other shapes of".into()));
    };
    let model = Model::attach(message.clone(), weights.clone())
        .map_err(|error| broken(format!("the plan's model cannot be read: {}", chain(&error))))?;
    let section = (manifest.program.weight_bytes, dynamic.packed.clone());
    let target = (isa, target(&manifest.spec));
    Ok(Specializer::new(model, weights.clone(), section, target, pool.threads(), bounds(manifest)))
}

/// The bounds of a plan's spec, which were read when it was built.
fn bounds(manifest: &Manifest) -> Bounds {
    tail::bounds(manifest.spec.options.get(tail::OPTION_BOUNDS)).unwrap_or_default()
}

/// Runs `body` and turns a panic in it into an error: a plan is input, and kernels check what they are given.
fn guarded<T>(body: impl FnOnce() -> Result<T, BackendError>) -> Result<T, BackendError> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("unknown");
        Err(BackendError::model(format!("the engine stopped: {words}")).with_hint("build the plan again"))
    })
}

/// An output whose dimensions of `varies` depend on the inputs'.
fn output_port(of: &ProgramPort, varies: Option<&Vec<bool>>) -> Port {
    let size = |(axis, &size): (usize, &usize)| match varies.and_then(|varies| varies.get(axis)) {
        Some(true) => None,
        _ => Some(size as u64),
    };
    Port { name: of.name.clone(), element: of.element, shape: of.shape.iter().enumerate().map(size).collect() }
}

/// The outputs of an engine, as its plan describes them.
pub(crate) fn output_ports(manifest: &Manifest) -> Vec<Port> {
    let varies = |index: usize| manifest.dynamic.as_ref().and_then(|dynamic| dynamic.outputs.get(index));
    let own = manifest.program.outputs.iter().enumerate();
    let own = own.map(|(index, port)| output_port(port, varies(index)));
    let Some(summary) = &manifest.tail else { return own.collect() };
    let all: Vec<Port> = summary.outputs.iter().cloned().chain(own).collect();
    summary.order.iter().filter_map(|name| all.iter().find(|port| port.name == *name).cloned()).collect()
}

/// An input as its profile allows it.
pub(crate) fn input_port(of: &InputSignature) -> Port {
    let size = |dim: &signature::DimSignature| (dim.range.min == dim.range.max).then_some(dim.range.opt);
    Port { name: of.name.clone(), element: of.element, shape: of.dims.iter().map(size).collect() }
}

/// What is said of a step that took so long.
fn layer(program: &Program, step: &Step, level: &str, median_ms: f64) -> LayerTime {
    LayerTime {
        name: step.origins.join(" + "),
        kind: step.kind.name().to_owned(),
        tactic: step.kernel_name(level),
        median_ms,
        flops: step.kind.flops(),
        bytes: program.moved_bytes(step),
        precision: Some(step.precision().to_owned()),
        ..LayerTime::default()
    }
}

impl Meter for CpuSession {
    fn switch_profile(&mut self, profile: usize) -> Result<Option<()>, BackendError> {
        let (takes, program) = usual(&self.manifest, profile)?;
        let shapes: Vec<Vec<usize>> = program.inputs.iter().map(|port| port.shape.clone()).collect();
        (self.profile, self.takes, self.bound) = (profile, takes, false);
        self.select(&shapes.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
        Ok(Some(()))
    }

    fn inputs(&self) -> Vec<Port> {
        self.takes.iter().map(input_port).collect()
    }

    fn outputs(&self) -> Vec<Port> {
        output_ports(&self.manifest)
    }

    fn caches(&self) -> Vec<Cache> {
        self.manifest.caches.clone()
    }

    fn bind(&mut self, inputs: &NamedTensors) -> Result<(), BackendError> {
        let tensors = signature::check(&self.takes, inputs)?;
        // A refused shape leaves nothing bound that could be run by mistake.
        self.bound = false;
        let shapes: Vec<&[usize]> = tensors.iter().map(|tensor| tensor.shape.as_slice()).collect();
        self.select(&shapes)?;
        let engine = self.engines.last_mut().expect("there is always an engine");
        for (index, tensor) in tensors.iter().enumerate() {
            engine.set_input(index, &tensor.bytes);
        }
        self.bound = true;
        Ok(())
    }

    fn run(&mut self) -> Result<NamedTensors, BackendError> {
        let (summary, computer) = (self.manifest.tail.clone(), Arc::clone(&self.computer));
        self.guarded(|engine| {
            engine.run().map_err(|error| BackendError::model(chain(&error)))?;
            tail::finish(engine, summary.as_ref(), &computer)
        })
    }

    fn run_lending(&mut self, look: &mut dyn FnMut(&[Lent<'_>])) -> Result<(), BackendError> {
        if self.manifest.tail.is_some() {
            look(&Lent::all(&self.run()?));
            return Ok(());
        }
        self.guarded(|engine| engine.run_lending(look).map_err(|error| BackendError::model(chain(&error))))
    }

    fn window(&mut self, window: Window) -> Result<WindowSamples, BackendError> {
        let iterations = window.iterations.min(ITERATIONS_MAX);
        let (summary, computer) = (self.manifest.tail.clone(), Arc::clone(&self.computer));
        self.guarded(|engine| {
            let mut latency_ms = Vec::with_capacity(iterations as usize);
            for _ in 0..iterations {
                let start = Instant::now();
                engine.run().map_err(|error| BackendError::model(chain(&error)))?;
                if summary.is_some() {
                    tail::finish(engine, summary.as_ref(), &computer)?;
                }
                latency_ms.push(start.elapsed().as_secs_f64() * 1e3);
            }
            Ok(WindowSamples { latency_ms })
        })
    }

    fn pace_ns(&mut self) -> Option<f64> {
        let pool = Arc::clone(&self.pool);
        let _pinned = pool.pin_caller();
        Some(pace_ns(&pool))
    }

    fn layers(&mut self, iterations: u32) -> Result<Vec<LayerTime>, BackendError> {
        let iterations = iterations.clamp(1, ITERATIONS_MAX);
        let mut times = vec![Vec::new(); self.program().steps.len()];
        let mut behind_ms = Vec::new();
        let (summary, computer) = (self.manifest.tail.clone(), Arc::clone(&self.computer));
        self.guarded(|engine| {
            (0..iterations).try_for_each(|_| {
                engine.run_timed(&mut times).map_err(|error| BackendError::model(chain(&error)))?;
                if summary.is_some() {
                    let start = Instant::now();
                    tail::finish(engine, summary.as_ref(), &computer)?;
                    behind_ms.push(start.elapsed().as_secs_f64() * 1e3);
                }
                Ok(())
            })
        })?;
        let (program, isa) = (self.program(), self.isa.level().name());
        let layers = program.steps.iter().zip(&mut times).map(|(step, times)| {
            times.sort_unstable_by(f64::total_cmp);
            layer(program, step, isa, times.get(times.len() / 2).copied().unwrap_or(0.0))
        });
        behind_ms.sort_unstable_by(f64::total_cmp);
        let behind = summary.zip(behind_ms.get(behind_ms.len() / 2)).map(|(summary, &median_ms)| LayerTime {
            name: format!("{} nodes whose sizes data decides", summary.nodes),
            kind: "tail".into(),
            tactic: format!("{isa}_tail"),
            median_ms,
            ..LayerTime::default()
        });
        Ok(layers.chain(behind).collect())
    }

    fn streams(&mut self, streams: u32, window: Window) -> Result<Option<StreamSamples>, BackendError> {
        if self.manifest.tail.is_some() {
            // Instances would share what follows the program.
            return Ok(None);
        }
        let pool = Arc::clone(&self.pool);
        self.guarded(|engine| instances::measure(engine, &pool, streams, window)).map(Some)
    }

    fn trace(&mut self) -> Result<Option<()>, BackendError> {
        let Some(scratch) = self.scratch.clone() else { return Ok(None) };
        let (threads, level) = (self.pool.threads(), self.isa.level().name());
        let file = self.guarded(|engine| trace::record(engine, threads, level, &scratch))?;
        self.files.push(file);
        Ok(Some(()))
    }

    fn aside(&mut self) -> Aside {
        Aside { files: std::mem::take(&mut self.files), ..Aside::default() }
    }

    fn memory_bytes(&self) -> u64 {
        self.engine().held_bytes()
    }

    fn gelus(&self) -> BTreeMap<String, u64> {
        gelus::of(self.program())
    }

    fn rate_conditions(&self) -> Option<BTreeMap<String, String>> {
        let threads = ("threads".to_owned(), self.pool.threads().to_string());
        Some(BTreeMap::from([("level".to_owned(), self.isa.level().name().to_owned()), threads]))
    }

    fn rates(&mut self) -> Result<Rates, BackendError> {
        let _pinned = self.pool.pin_caller();
        guarded(|| Ok(rates::measure(self.isa, &self.pool)))
    }
}
