//! The two traits every backend implements. Both block and run inside a worker process, which may die alone.
//!
//! Warm-up, stopping rule, numerics and statistics live above these, once, for every backend.

#![warn(clippy::missing_errors_doc)]

pub mod stack;

use planforge_report::{Finding, LatencySplit, LayerCounters, LayerTime, Rates};
use planforge_types::{
    BackendError, BuildSpec, Digest, ElementType, FailureClass, NamedTensors, Port, Sku, Toolchain,
    fingerprint::{DeviceFingerprint, DiscoveredDevice},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// Shared flag that long work looks at between steps.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Where a backend tells of its progress; the worker forwards it.
pub trait Events: Sync {
    /// `fraction` of `phase` is done, 0..=1.
    fn progress(&self, phase: &str, fraction: f32, detail: &str);
    /// A line for the attempt's log.
    fn log(&self, line: &str);
}

/// What to compile, for what.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CompileRequest {
    /// The ONNX file; external data lies beside it.
    pub model: PathBuf,
    pub model_digest: Digest,
    pub sku: Sku,
    /// The device it is built on.
    pub device: DeviceFingerprint,
    pub toolchain: Toolchain,
    /// Resolved: defaults filled in, CPU threads named.
    pub spec: BuildSpec,
    /// Empty folder of this job's own; the plan is written here.
    pub scratch: PathBuf,
    /// File of the tactic or timing cache for this device and toolchain: this job's own copy, updated in place. It may
    /// not exist yet.
    pub cache: Option<PathBuf>,
    /// Calibration cache that the spec names.
    pub calibration: Option<PathBuf>,
    /// Plugin libraries, in the order of the spec's digests.
    pub plugins: Vec<PathBuf>,
}

/// A plan that was written, and what its compiler says of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CompiledPlan {
    pub path: PathBuf,
    /// Build facts for the engine card: passes, tactics tried, warnings.
    pub facts: serde_json::Value,
    /// What a reader of the engine's reports should know: the tool's own warnings.
    pub findings: Vec<Finding>,
}

/// Turns models into plans for the devices its toolchains know.
pub trait Compiler: Send + Sync {
    /// `native`, `tensorrt`, `onnxruntime`.
    fn backend(&self) -> &'static str;

    /// Toolchains of this backend that can build for `device` on this host now; looks only as far as a file's stamp.
    fn toolchains(&self, device: &DiscoveredDevice) -> Vec<Toolchain>;

    /// Refuses what cannot be built, before anything runs. Returns quickly.
    ///
    /// # Errors
    ///
    /// What cannot be built, of class *model*; what this host lacks, of class *infrastructure* or *resource*.
    fn check(&self, request: &CompileRequest) -> Result<(), BackendError>;

    /// Builds the plan into `request.scratch`.
    ///
    /// # Errors
    ///
    /// Of the class that says whose fault it is: the model's, this host's, its memory's; cancelled, when `cancel` says so.
    fn compile(
        &self,
        request: &CompileRequest,
        events: &dyn Events,
        cancel: &Cancel,
    ) -> Result<CompiledPlan, BackendError>;

    /// As [`Self::compile`], for an engine that only [`Meter::run_lending`] runs, some hundred times: it need not be the
    /// quickest that can be found, and not hold on to the outputs that `passing` names once it has lent them, so that their
    /// memory can be another's. A compiler may do more all the same.
    ///
    /// # Errors
    ///
    /// As [`Self::compile`].
    fn compile_lending(
        &self,
        request: &CompileRequest,
        passing: &BTreeSet<String>,
        events: &dyn Events,
        cancel: &Cancel,
    ) -> Result<CompiledPlan, BackendError> {
        let _ = passing;
        self.compile(request, events, cancel)
    }

    /// Toolchains for whose engines this backend prepares on this host what can be had without the device, which is
    /// elsewhere: by the versions alone on which that rests. Whoever asks wants it done: libraries are opened for it.
    fn prepares(&self) -> Vec<Toolchain> {
        Vec::new()
    }

    /// Makes ready, in the file `into`, what a build of `request` takes on a device like the one that it describes. That
    /// build is given it by [`Self::join_caches`], and takes of it only what is exactly its own.
    ///
    /// # Errors
    ///
    /// Of the class that says whose fault it is; of class *infrastructure* where this backend prepares nothing.
    fn prepare(
        &self,
        request: &CompileRequest,
        into: &Path,
        events: &dyn Events,
        cancel: &Cancel,
    ) -> Result<(), BackendError> {
        let _ = (into, events, cancel);
        let (backend, sku) = (self.backend(), &request.sku);
        Err(BackendError::infrastructure(format!("{backend} prepares nothing for {sku} without the device")))
    }

    /// What engines of this backend for `sku` can never be measured by beside the usual, by the names of
    /// [`planforge_types::order::extras`]. Who asks for it is refused before anything is built.
    fn never_measures(&self, sku: &Sku) -> &'static [&'static str] {
        let _ = sku;
        &[]
    }

    /// Names of the options that this backend's specs for `sku` may have, so that a wrong one is refused before anybody
    /// waits for a device; `None` where they depend on more.
    fn options(&self, sku: &Sku) -> Option<&'static [&'static str]> {
        let _ = sku;
        None
    }

    /// Whether such a build needs a process of its own: what it leaves in one (contexts, loaded code, freed memory) would
    /// be measured with the engine, which users load where nothing was built.
    fn builds_out_of_process(&self, request: &CompileRequest) -> bool {
        let _ = request;
        false
    }

    /// Whether a file that begins with `head` ([`PLAN_HEAD_BYTES`] of it, or all) is a plan of this backend's.
    fn recognises(&self, head: &[u8]) -> bool;

    /// What a plan of this backend's says it was built as. An error where its plans do not tell.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, is no plan of this backend's, or does not say.
    fn identify(&self, plan: &Path) -> Result<PlanIdentity, BackendError> {
        let backend = self.backend();
        let message = format!("{} is a plan of {backend}, which does not say what it was built from", plan.display());
        Err(BackendError::new(FailureClass::Model, message).with_hint("its engine card does"))
    }

    /// Loads a plan on this host's device to run and time it.
    ///
    /// # Errors
    ///
    /// When the plan is damaged, is for another device, asks for more memory than there is, or a library is missing.
    fn load(&self, plan: &Path, options: &LoadOptions) -> Result<Box<dyn Meter>, BackendError>;

    /// Adds to the cache file `into`, which a build for `sku` left, what `from` knows beyond it, so that builds side by
    /// side lose nothing; `false` where such caches cannot be joined. A file that cannot be understood knows nothing.
    ///
    /// # Errors
    ///
    /// When a file cannot be read or written.
    fn join_caches(&self, sku: &Sku, into: &Path, from: &Path) -> io::Result<bool> {
        let _ = (sku, into, from);
        Ok(false)
    }

    /// What this backend can check other backends' engines with, here and now; `None` where it has nothing for that.
    fn oracle(&self) -> Option<Box<dyn Oracle>> {
        None
    }
}

/// What a plan was built as.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanIdentity {
    /// Name of the model's graph.
    pub model_name: String,
    pub model_digest: Digest,
    pub sku: Sku,
    pub toolchain: Toolchain,
    pub spec: BuildSpec,
    /// CPU threads it runs on when nobody says otherwise.
    pub threads: Option<u32>,
    /// It runs here, but was tuned on a device of another class.
    pub foreign: bool,
}

/// Says what a model's outputs are, with nothing in common with the engines that are checked by it.
pub trait Oracle: Send + Sync {
    /// As reports call it, with its version.
    fn name(&self) -> String;

    /// The outputs of the ONNX file `model` on `inputs`, in at most `limit`; an error when it cannot say.
    ///
    /// # Errors
    ///
    /// When it cannot say: the model is not supported, the time is over, or `cancel` says so.
    fn outputs(
        &self,
        model: &Path,
        inputs: &NamedTensors,
        limit: Duration,
        cancel: &Cancel,
    ) -> Result<NamedTensors, BackendError>;
}

/// As much of a plan's beginning as tells whose it is.
pub const PLAN_HEAD_BYTES: u64 = 64;

/// How a plan is loaded.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// CPU threads; `None`: as the plan's spec says.
    pub threads: Option<u32>,
    /// Index of the optimization profile.
    pub profile: usize,
    /// Run a plan that was made for another SKU whose code this device can run; its results are marked foreign.
    pub allow_foreign: bool,
    /// The job that loads it; `None` outside of one. A backend that runs other programs needs it.
    pub site: Option<LoadSite>,
}

/// Where and for what a job loads a plan.
#[derive(Clone, Debug)]
pub struct LoadSite {
    pub device: DeviceFingerprint,
    pub toolchain: Toolchain,
    /// What the plan was built from.
    pub spec: BuildSpec,
    /// The ONNX file.
    pub model: PathBuf,
    /// Plugin libraries, in the order of the spec's digests.
    pub plugins: Vec<PathBuf>,
    /// Folder of this job's own.
    pub scratch: PathBuf,
    /// Looked at while another program runs.
    pub cancel: Cancel,
}

/// Who decides how long a window is and warms the engine up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Pacing {
    /// The experiment: it warms up, and a window is exactly [`Window::iterations`] executions.
    #[default]
    Iterations,
    /// Every window is a process of its own, which warms up before it times. A window goes on for at least
    /// [`Window::iterations`] executions and at least [`Window::duration_ms`].
    Process {
        /// Shortest window that is worth starting a process for.
        window_ms: f64,
        /// How long each of them warms up.
        warm_up_ms: f64,
    },
}

/// How one timed window is run; [`Pacing`] says which field binds.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Timed executions in this window.
    pub iterations: u32,
    /// Timed part of this window.
    pub duration_ms: f64,
}

/// Raw samples of one window, one per execution.
#[derive(Clone, Debug, Default)]
pub struct WindowSamples {
    pub latency_ms: Vec<f64>,
}

/// Executions of an engine in several streams at once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StreamSamples {
    /// Executions a second, all streams together.
    pub executions_per_s: f64,
    /// One per execution, in any order.
    pub latency_ms: Vec<f64>,
}

/// A file worth keeping beside plan and report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptFile {
    /// File name for people, `timeline.nsys-rep`.
    pub name: String,
    pub path: PathBuf,
}

/// What a meter noticed beside the numbers it was asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Aside {
    pub findings: Vec<Finding>,
    pub files: Vec<KeptFile>,
}

/// An input that an output takes the place of at the next run: the same, with some places written anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    pub input: String,
    pub output: String,
    /// How many runs it has places for, where each writes one and none begins again at the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub places: Option<u64>,
}

/// An output of a run, where it lies.
#[derive(Clone, Copy, Debug)]
pub struct Lent<'a> {
    pub name: &'a str,
    pub element: ElementType,
    pub shape: &'a [usize],
    pub bytes: &'a [u8],
}

impl<'a> Lent<'a> {
    /// Of outputs that were copied already.
    pub fn all(outputs: &'a NamedTensors) -> Vec<Self> {
        let lent = outputs.iter().map(|(name, tensor)| Lent {
            name,
            element: tensor.element,
            shape: &tensor.shape,
            bytes: &tensor.bytes,
        });
        lent.collect()
    }
}

/// A loaded plan that can be run and timed.
pub trait Meter {
    fn inputs(&self) -> Vec<Port>;
    fn outputs(&self) -> Vec<Port>;
    /// Makes `inputs` current; shapes outside the profile are an error at once.
    ///
    /// # Errors
    ///
    /// When a name, type or shape is none that the engine takes.
    fn bind(&mut self, inputs: &NamedTensors) -> Result<(), BackendError>;
    /// Runs once on the bound inputs and returns every output.
    ///
    /// # Errors
    ///
    /// When nothing is bound, or the device fails.
    fn run(&mut self) -> Result<NamedTensors, BackendError>;
    /// Runs once on the bound inputs and lends every output once, in any order, some or all of them at a time: for whoever
    /// looks at much and keeps little.
    ///
    /// # Errors
    ///
    /// As of [`Meter::run`].
    fn run_lending(&mut self, look: &mut dyn FnMut(&[Lent<'_>])) -> Result<(), BackendError> {
        look(&Lent::all(&self.run()?));
        Ok(())
    }
    /// Names of the inputs that the engine changes in place, each with the output that it then is.
    fn states(&self) -> Vec<(String, String)> {
        Vec::new()
    }
    /// Names of the inputs whose output has one place more, behind all others, and lies in the same memory on the device,
    /// each with its output's.
    fn growing(&self) -> Vec<(String, String)> {
        Vec::new()
    }
    /// Lays what the last run put behind each of [`Meter::growing`] at this place of its input, counted from 0.
    ///
    /// # Errors
    ///
    /// When nothing is bound, there is no such place, or the device fails.
    fn keep(&mut self, _place: u64) -> Result<(), BackendError> {
        Ok(())
    }
    /// Inputs that are an output of the run before, changed in place ([`Meter::states`]) or not; empty where the plan
    /// does not say.
    fn caches(&self) -> Vec<Cache> {
        let states = self.states().into_iter();
        states.map(|(input, output)| Cache { input, output, places: None }).collect()
    }
    /// Puts some inputs in the place of those that are bound, runs once, and returns the outputs that are named; what
    /// [`Meter::states`] names stays where it is, as the last run left it. `None` where the backend keeps no states.
    ///
    /// # Errors
    ///
    /// When nothing is bound, an input is not like the one that is bound, or the device fails.
    fn step(&mut self, _inputs: &NamedTensors, _outputs: &[String]) -> Result<Option<NamedTensors>, BackendError> {
        Ok(None)
    }
    /// Times executions on the bound inputs.
    ///
    /// # Errors
    ///
    /// When nothing is bound, or the device fails.
    fn window(&mut self, window: Window) -> Result<WindowSamples, BackendError>;
    /// Per-layer times over `iterations` profiled runs.
    ///
    /// # Errors
    ///
    /// When nothing is bound, or the device fails.
    fn layers(&mut self, iterations: u32) -> Result<Vec<LayerTime>, BackendError>;
    /// Memory this engine holds: weights, activations, scratch; 0 where it is not told.
    fn memory_bytes(&self) -> u64;

    /// Makes another optimization profile current; nothing is bound then. `None` where an engine has one profile only.
    ///
    /// # Errors
    ///
    /// When there is no such profile, or no memory for it.
    fn switch_profile(&mut self, _profile: usize) -> Result<Option<()>, BackendError> {
        Ok(None)
    }
    /// How windows are laid out.
    fn pacing(&self) -> Pacing {
        Pacing::Iterations
    }
    /// Nanoseconds that a fixed piece of work takes right now on the slowest core that the engine runs on; `None` where
    /// the device tells its state itself. Asked between windows, never inside one.
    fn pace_ns(&mut self) -> Option<f64> {
        None
    }
    /// The parts of the latency in several modes of running; `None` where the backend cannot tell them apart.
    ///
    /// # Errors
    ///
    /// When nothing is bound, or the device fails.
    fn split(&mut self) -> Result<Option<LatencySplit>, BackendError> {
        Ok(None)
    }
    /// Runs `streams` contexts at once; `None` where the backend cannot.
    ///
    /// # Errors
    ///
    /// When nothing is bound, there is no memory for so many, or the device fails.
    fn streams(&mut self, _streams: u32, _window: Window) -> Result<Option<StreamSamples>, BackendError> {
        Ok(None)
    }
    /// Records a timeline of one window; `None` where the backend cannot. It comes back as a file of [`Meter::aside`].
    ///
    /// # Errors
    ///
    /// When nothing is bound, or the tool that records fails.
    fn trace(&mut self) -> Result<Option<()>, BackendError> {
        Ok(None)
    }
    /// What the device counts while each layer runs, in the order of [`Meter::layers`], by a profiler that runs the plan
    /// anew; `None` where the backend has none.
    ///
    /// # Errors
    ///
    /// When the profiler is not there, may not count, or fails.
    fn counters(&mut self) -> Result<Option<Vec<Option<LayerCounters>>>, BackendError> {
        Ok(None)
    }
    /// Bytes of the plan's weights by element type; empty where the backend does not tell. Known after
    /// [`Meter::layers`].
    fn weight_bytes(&self) -> BTreeMap<String, u64> {
        BTreeMap::new()
    }
    /// How many GELUs the engine computes in which form, by the words of [`planforge_report::gelu`]; empty where it has
    /// none, or the backend does not tell.
    fn gelus(&self) -> BTreeMap<String, u64> {
        BTreeMap::new()
    }
    /// What rates of the device depend on beside the device and its driver: library versions, threads. `None` where
    /// the backend cannot measure any.
    fn rate_conditions(&self) -> Option<BTreeMap<String, String>> {
        None
    }
    /// Measures what the device reaches, this engine apart; only asked where [`Meter::rate_conditions`] tells
    /// something. Takes seconds at most.
    ///
    /// # Errors
    ///
    /// When this backend measures none, or the device fails.
    fn rates(&mut self) -> Result<Rates, BackendError> {
        Err(BackendError::new(FailureClass::Infrastructure, "this backend measures no rates of the device"))
    }
    /// What was noticed since this was last asked.
    fn aside(&mut self) -> Aside {
        Aside::default()
    }
}
