//! A loaded engine that is run and timed.
//!
//! The headline is device time of the captured graph on inputs that lie on the device: two events around every launch,
//! launches queued ahead so that the device never waits for the host. What transfers, launching and changing inputs
//! cost stands apart.
//!
//! | file | times |
//! |---|---|
//! | `mod` | windows, layers |
//! | `split` | transfers, enqueuing, the graph against single launches, inputs that change |
//! | `streams` | several contexts at once |
//! | `trace` | a timeline |
//! | `counters` | nothing: what the device counts while each step runs |

pub mod counters;
mod split;
mod streams;
mod trace;

use crate::{
    engine::Engine,
    probe,
    program::{Program, Step, Work},
    runtime::{Context, RuntimeError},
    versions::Versions,
    view::Kind,
};
use planforge_backend::{Aside, Cache, KeptFile, Meter, StreamSamples, Window, WindowSamples};
use planforge_kernels_cuda::nvtx::range;
use planforge_report::{LatencySplit, LayerCounters, LayerTime, Rates};
use planforge_types::{BackendError, NamedTensors, Port};
use std::{collections::BTreeMap, path::PathBuf, time::Instant};

/// Most executions of one window: bounds the memory of samples.
const ITERATIONS_MAX: u32 = 1_000_000;
/// Executions that are queued before their times are read: enough that the device never idles.
const QUEUED: usize = 64;

/// A CUDA engine ready to be timed.
#[derive(Debug)]
pub struct CudaSession {
    engine: Engine,
    plan: PathBuf,
    /// Folder for files worth keeping; `None`: nobody would keep them.
    scratch: Option<PathBuf>,
    files: Vec<KeptFile>,
}

/// One timed execution.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Between the events around it.
    device_ms: f64,
    /// What the host took to hand it over.
    enqueue_ms: f64,
}

impl CudaSession {
    pub fn new(engine: Engine, plan: PathBuf, scratch: Option<PathBuf>) -> Self {
        Self { engine, plan, scratch, files: Vec::new() }
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }
}

/// Times `count` executions, each handed over by `launch`.
fn timed(
    context: &Context,
    count: usize,
    mut launch: impl FnMut(usize) -> Result<(), RuntimeError>,
) -> Result<Vec<Sample>, RuntimeError> {
    let stream = context.stream();
    let mut samples = Vec::with_capacity(count);
    let mut queued = Vec::with_capacity(QUEUED);
    for index in 0..count {
        let from = stream.moment()?;
        let began = Instant::now();
        launch(index)?;
        let enqueue_ms = began.elapsed().as_secs_f64() * 1e3;
        queued.push((from, stream.moment()?, enqueue_ms));
        if queued.len() == QUEUED || index + 1 == count {
            stream.synchronize()?;
            for (from, to, enqueue_ms) in queued.drain(..) {
                samples.push(Sample { device_ms: to.since_ms(&from)?, enqueue_ms });
            }
        }
    }
    Ok(samples)
}

/// What a step is called in lists of layers.
fn layer(program: &Program, step: &Step, median_ms: f64) -> LayerTime {
    let (read, written) = step.work.views();
    let tactic = match (&step.tactic, &step.work) {
        (Some(tactic), _) => tactic.name(),
        (None, Work::Kernel(kernel)) => format!("kernel {}x{}", kernel.grid[0], kernel.block[0]),
        (None, _) => String::new(),
    };
    let widest = read.iter().map(|view| view.kind).filter(|kind| kind.is_float()).max_by_key(|kind| kind.bytes());
    let precision = match widest.unwrap_or(written.kind) {
        // Products of f32 may round their factors then.
        Kind::F32 if program.tf32 && !matches!(step.work, Work::Kernel(_)) => "tf32",
        kind => kind.name(),
    };
    let name = if step.origins.is_empty() { step.name.clone() } else { step.origins.join(" + ") };
    LayerTime {
        name,
        kind: step.work.kind().to_owned(),
        tactic,
        median_ms,
        flops: step.flops,
        bytes: step.bytes,
        precision: Some(precision.to_owned()),
        nodes: step.origins.clone(),
        ..LayerTime::default()
    }
}

impl Meter for CudaSession {
    fn inputs(&self) -> Vec<Port> {
        self.engine.inputs()
    }

    fn outputs(&self) -> Vec<Port> {
        self.engine.outputs()
    }

    fn switch_profile(&mut self, profile: usize) -> Result<Option<()>, BackendError> {
        self.engine.switch_profile(profile).map(Some)
    }

    fn bind(&mut self, inputs: &NamedTensors) -> Result<(), BackendError> {
        self.engine.bind(inputs)
    }

    fn run(&mut self) -> Result<NamedTensors, BackendError> {
        self.engine.run()
    }

    fn states(&self) -> Vec<(String, String)> {
        self.engine.states(false)
    }

    fn growing(&self) -> Vec<(String, String)> {
        self.engine.states(true)
    }

    fn keep(&mut self, place: u64) -> Result<(), BackendError> {
        self.engine.keep(place)
    }

    fn caches(&self) -> Vec<Cache> {
        let places = self.engine.state_places();
        let states = self.engine.states(false).into_iter();
        states.map(|(input, output)| Cache { places: places.get(&input).copied(), input, output }).collect()
    }

    fn step(&mut self, inputs: &NamedTensors, outputs: &[String]) -> Result<Option<NamedTensors>, BackendError> {
        self.engine.step(inputs, outputs).map(Some)
    }

    fn window(&mut self, window: Window) -> Result<WindowSamples, BackendError> {
        let context = &self.engine.current()?.context;
        let count = window.iterations.clamp(1, ITERATIONS_MAX) as usize;
        let _range = range("window");
        let samples = timed(context, count, |_| context.launch())?;
        Ok(WindowSamples { latency_ms: samples.iter().map(|sample| sample.device_ms).collect() })
    }

    fn layers(&mut self, _iterations: u32) -> Result<Vec<LayerTime>, BackendError> {
        let captured = self.engine.current()?;
        let times = captured.context.step_times_ms(&self.engine.device)?;
        Ok(captured.program.steps.iter().zip(times).map(|(step, ms)| layer(&captured.program, step, ms)).collect())
    }

    fn memory_bytes(&self) -> u64 {
        self.engine.memory_bytes()
    }

    fn split(&mut self) -> Result<Option<LatencySplit>, BackendError> {
        split::measure(&self.engine).map(Some)
    }

    fn streams(&mut self, streams: u32, window: Window) -> Result<Option<StreamSamples>, BackendError> {
        streams::measure(&self.engine, streams, window).map(Some)
    }

    fn trace(&mut self) -> Result<Option<()>, BackendError> {
        let Some(scratch) = &self.scratch else { return Ok(None) };
        self.files.push(trace::record(&self.engine, scratch)?);
        Ok(Some(()))
    }

    fn counters(&mut self) -> Result<Option<Vec<Option<LayerCounters>>>, BackendError> {
        let Some(scratch) = &self.scratch else { return Ok(None) };
        let steps = self.engine.usual()?.program.steps.len();
        let counted = counters::count(&self.plan, self.engine.profile(), steps, scratch);
        counted.map(Some).map_err(BackendError::infrastructure)
    }

    fn weight_bytes(&self) -> BTreeMap<String, u64> {
        self.engine.weight_bytes()
    }

    fn gelus(&self) -> BTreeMap<String, u64> {
        self.engine.gelus()
    }

    fn rate_conditions(&self) -> Option<BTreeMap<String, String>> {
        Some(probe::conditions(&Versions::here()))
    }

    fn rates(&mut self) -> Result<Rates, BackendError> {
        Ok(probe::rates(&self.engine.device.gpu)?)
    }

    fn aside(&mut self) -> Aside {
        Aside { findings: self.engine.take_findings(), files: std::mem::take(&mut self.files) }
    }
}
