//! One job from order to report, inside the worker process.
//!
//! compile → verify → card → [`WorkEvent::Built`] → wait for the upload → measure → report → [`WorkEvent::Done`].
//! A benchmark starts at verify, with the plan it is given. Whatever goes wrong on the way becomes one
//! [`WorkEvent::Failed`] with the class that decides about a retry.

use super::{FailureClass, WorkEvent, WorkKind, WorkOrder, document};
use crate::{
    backend::{
        BackendError, Cancel, CompileRequest, Compiler, Events, LoadOptions, LoadSite, Meter, NamedTensors, Oracle,
    },
    card::{CARD_SCHEMA_VERSION, EngineCard},
    device::DeviceFingerprint,
    identity::{Digest, DigestWriter},
    ir::Graph,
    measure::{Clock, MeasureConfig, Measurement, MonotonicClock, measure},
    report::{Finding, ModelRef, PlanRef, Severity},
    telemetry::{OpenTelemetry, Telemetry, unix_ms},
    verify::{self, Independent, Verdict, inputs},
};
use std::{
    any::Any,
    collections::BTreeMap,
    fs::File,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

/// Profiled executions from which per-layer times are taken.
const LAYER_ITERATIONS: u32 = 20;

/// Longest the profiled executions may take, as far as the measured latency tells.
const LAYER_BUDGET_MS: f64 = 3_000.0;

/// Progress of one phase is told in steps of this, so that a chatty compiler costs the agent nothing.
const PROGRESS_STEP: f32 = 0.01;

/// How a run ended; the last event said the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    Succeeded,
    Failed,
}

/// Runs `order` to its end.
///
/// The last event is [`WorkEvent::Done`] or [`WorkEvent::Failed`]. `wait_continue` returns when the agent has uploaded
/// the plan; an error from it means that the agent is gone. Log lines go to `tracing` with the target `attempt`.
pub fn run(
    order: &WorkOrder,
    compilers: &[Box<dyn Compiler>],
    open_telemetry: &OpenTelemetry<'_>,
    events: &mut (dyn FnMut(WorkEvent) + Send),
    wait_continue: &mut dyn FnMut() -> io::Result<()>,
    cancel: &Cancel,
) -> RunEnd {
    let outlet = Outlet(Mutex::new(Sender { events, told: None }));
    let steps = || -> Result<(), BackendError> {
        let device: DeviceFingerprint = serde_json::from_value(order.fingerprint.clone())
            .map_err(|error| infrastructure(format!("the order's device description cannot be understood: {error}")))?;
        let backend = &order.toolchain.backend;
        let compiler = compilers.iter().find(|compiler| compiler.backend() == backend).ok_or_else(|| {
            infrastructure(format!("this agent has no backend '{backend}', though it was given a job for it"))
        })?;
        // Opened before anything touches the device, so that later processes on it are told from this one.
        let telemetry = open_telemetry(&device);
        let job = Job {
            order,
            compiler: &**compiler,
            oracle: compilers.iter().filter(|other| other.backend() != backend).find_map(|other| other.oracle()),
            outlet: &outlet,
            cancel,
            device,
            clock: MonotonicClock::default(),
        };
        job.run(telemetry, wait_continue)
    };
    let result = catch_unwind(AssertUnwindSafe(steps)).unwrap_or_else(|panic| {
        Err(infrastructure(format!("the worker stopped at a bug: {}", panic_message(&*panic)))
            .with_hint("the attempt's log has the place; please report it"))
    });
    match result {
        Ok(()) => RunEnd::Succeeded,
        Err(error) => {
            outlet.send(WorkEvent::Failed { class: error.class, message: error.message, hint: error.hint });
            RunEnd::Failed
        }
    }
}

fn infrastructure(message: impl Into<String>) -> BackendError {
    BackendError::new(FailureClass::Infrastructure, message)
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// A full disk is the host's lack, not its failure: trying again there cannot help.
fn file_error(what: &str, path: &Path, error: &io::Error) -> BackendError {
    let message = format!("cannot {what} {}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            BackendError::new(FailureClass::Resource, message).with_hint("free space in the agent's scratch folder")
        }
        _ => infrastructure(message),
    }
}

/// Forwards events from any thread of a backend.
struct Outlet<'a>(Mutex<Sender<'a>>);

struct Sender<'a> {
    events: &'a mut (dyn FnMut(WorkEvent) + Send),
    /// Phase and fraction told last.
    told: Option<(String, f32)>,
}

impl Outlet<'_> {
    fn send(&self, event: WorkEvent) {
        (self.0.lock().unwrap_or_else(PoisonError::into_inner).events)(event);
    }

    fn progress(&self, phase: &str, fraction: f32, detail: &str) {
        let mut sender = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fraction = if fraction.is_finite() { fraction.clamp(0.0, 1.0) } else { 0.0 };
        let news = sender
            .told
            .as_ref()
            .is_none_or(|(told, at)| told != phase || fraction >= at + PROGRESS_STEP || (fraction >= 1.0 && *at < 1.0));
        if news {
            sender.told = Some((phase.to_owned(), fraction));
            (sender.events)(WorkEvent::Progress { phase: phase.to_owned(), fraction, detail: detail.to_owned() });
        }
    }
}

/// What a backend tells while it compiles: its own stages become the detail of the phase `compile`.
struct CompileEvents<'a>(&'a Outlet<'a>);

impl Events for CompileEvents<'_> {
    fn progress(&self, phase: &str, fraction: f32, detail: &str) {
        let detail = match (phase, detail) {
            ("compile" | "", detail) => detail.to_owned(),
            (stage, "") => stage.to_owned(),
            (stage, detail) => format!("{stage}: {detail}"),
        };
        self.0.progress("compile", fraction, &detail);
    }

    fn log(&self, line: &str) {
        log(line);
    }
}

fn log(line: &str) {
    tracing::info!(target: "attempt", "{line}");
}

/// The plan at hand and where it came from.
struct Built {
    path: PathBuf,
    plan: PlanRef,
    /// `None` when this job did not build it.
    build_ms: Option<f64>,
    facts: serde_json::Value,
}

struct Job<'a> {
    order: &'a WorkOrder,
    compiler: &'a dyn Compiler,
    /// Of another backend, when one has any.
    oracle: Option<Box<dyn Oracle>>,
    outlet: &'a Outlet<'a>,
    cancel: &'a Cancel,
    device: DeviceFingerprint,
    clock: MonotonicClock,
}

impl Job<'_> {
    fn run(
        &self,
        mut telemetry: Box<dyn Telemetry>,
        wait_continue: &mut dyn FnMut() -> io::Result<()>,
    ) -> Result<(), BackendError> {
        let order = self.order;
        let mut phases_ms = BTreeMap::new();
        let built = match order.kind {
            WorkKind::Build => self.phase("compile", &mut phases_ms, || self.compile())?,
            WorkKind::Benchmark => self.given_plan()?,
        };
        let mut loaded = self.phase("verify", &mut phases_ms, || self.verify(&built))?;
        if !loaded.verdict.accurate && !order.allow_inaccurate {
            return Err(loaded.verdict.refusal());
        }
        if order.kind == WorkKind::Build {
            let card = self.write_card(&built)?;
            self.phase("upload", &mut phases_ms, || {
                let PlanRef { digest: plan_digest, bytes: plan_bytes } = built.plan;
                self.outlet.send(WorkEvent::Built { plan: built.path.clone(), plan_digest, plan_bytes, card });
                wait_continue().map_err(|error| infrastructure(format!("the agent did not take the plan: {error}")))
            })?;
        }
        let measured_unix_ms = unix_ms();
        let measurement = self.phase("measure", &mut phases_ms, || self.measure(&mut loaded, &mut *telemetry))?;
        let layers = self.layers(&mut loaded, &measurement);
        let report = document::assemble(document::Parts {
            order,
            device: &self.device,
            plan: built.plan.clone(),
            build_ms: built.build_ms,
            phases_ms,
            measured_unix_ms,
            inputs: loaded.meter.inputs(),
            bound: &loaded.inputs,
            engine_memory_bytes: loaded.meter.memory_bytes(),
            measurement,
            layers,
            verdict: loaded.verdict,
        });
        let path = order.scratch.join("report.json");
        document::write_json(&path, &report).map_err(|error| file_error("write the report", &path, &error))?;
        self.outlet.send(WorkEvent::Done { report: path, accurate: report.accurate, artifacts: Vec::new() });
        Ok(())
    }

    /// Runs one phase between two progress events and notes how long it took.
    fn phase<T>(
        &self,
        name: &str,
        phases_ms: &mut BTreeMap<String, f64>,
        work: impl FnOnce() -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        if self.cancel.is_cancelled() {
            return Err(infrastructure(format!("cancelled before {name}")));
        }
        self.outlet.progress(name, 0.0, "");
        let began_ms = self.clock.now_ms();
        let result = work()?;
        let took_ms = self.clock.now_ms() - began_ms;
        phases_ms.insert(name.to_owned(), took_ms);
        self.outlet.progress(name, 1.0, "");
        log(&format!("{name} took {took_ms:.0} ms"));
        Ok(result)
    }

    fn compile(&self) -> Result<Built, BackendError> {
        let order = self.order;
        let request = CompileRequest {
            model: order.model.clone(),
            model_digest: order.model_digest,
            sku: order.sku.clone(),
            device: self.device.clone(),
            toolchain: order.toolchain.clone(),
            spec: order.spec.clone(),
            scratch: order.scratch.clone(),
            cache: order.cache.clone(),
            calibration: order.calibration.clone(),
            plugins: order.plugins.clone(),
        };
        self.compiler.check(&request)?;
        let began_ms = self.clock.now_ms();
        let compiled = self.compiler.compile(&request, &CompileEvents(self.outlet), self.cancel)?;
        let build_ms = self.clock.now_ms() - began_ms;
        let plan = plan_ref(&compiled.path)?;
        log(&format!("built plan {} of {} bytes", plan.digest, plan.bytes));
        Ok(Built { path: compiled.path, plan, build_ms: Some(build_ms), facts: compiled.facts })
    }

    fn given_plan(&self) -> Result<Built, BackendError> {
        let path = self.order.plan.clone().ok_or_else(|| infrastructure("the order to measure a plan names none"))?;
        let plan = plan_ref(&path)?;
        Ok(Built { path, plan, build_ms: None, facts: serde_json::Value::Null })
    }

    /// Loads the plan, makes its inputs and checks its outputs.
    fn verify(&self, built: &Built) -> Result<Loaded, BackendError> {
        let order = self.order;
        let allow_foreign = order.built_for.as_ref().is_some_and(|sku| *sku != order.sku);
        let site = LoadSite {
            device: self.device.clone(),
            toolchain: order.toolchain.clone(),
            spec: order.spec.clone(),
            model: order.model.clone(),
            plugins: order.plugins.clone(),
            scratch: order.scratch.clone(),
            cancel: self.cancel.clone(),
        };
        let options = LoadOptions { threads: order.spec.threads, profile: 0, allow_foreign, site: Some(site) };
        let mut meter = self.compiler.load(&built.path, &options)?;
        let graph = reference_graph(order);
        let specs = match &graph {
            Ok(graph) => inputs::of_graph(graph),
            Err(_) => None,
        };
        let specs = specs.unwrap_or_else(|| inputs::of_ports(&meter.inputs(), order.spec.profiles.first()));
        let inputs = inputs::generate(&specs, inputs::REFERENCE_SEED);
        meter.bind(&inputs)?;
        let check = verify::Check {
            graph: graph.as_ref().map_err(String::as_str),
            independent: self.independent(),
            inputs: &inputs,
            eval: order.eval.as_deref(),
            precision: order.spec.precision,
            clock: &self.clock,
            cancel: self.cancel,
        };
        let verdict = check.run(&mut *meter)?;
        // The accuracy check bound its own rows.
        meter.bind(&inputs)?;
        for finding in &verdict.findings {
            log(&format!("{}: {}", finding.code, finding.message));
        }
        Ok(Loaded { meter, inputs, verdict })
    }

    /// Says what is right when the reference operators do not; a measurement may come without the model.
    fn independent(&self) -> Option<Independent<'_>> {
        let oracle = self.oracle.as_deref().filter(|_| self.order.model.is_file())?;
        Some(Independent { oracle, model: &self.order.model })
    }

    fn write_card(&self, built: &Built) -> Result<PathBuf, BackendError> {
        let order = self.order;
        let card = EngineCard {
            schema_version: CARD_SCHEMA_VERSION,
            simulated: order.simulated,
            engine_key: order.engine_key,
            model: model_ref(order),
            plan: built.plan.clone(),
            sku: order.sku.clone(),
            toolchain: order.toolchain.clone(),
            spec: order.spec.clone(),
            device: self.device.clone(),
            job: order.job.clone(),
            attempt: order.attempt,
            agent: order.agent.clone(),
            planforge_version: env!("CARGO_PKG_VERSION").to_owned(),
            built_unix_ms: unix_ms(),
            build_ms: built.build_ms.unwrap_or(0.0),
            facts: built.facts.clone(),
        };
        let path = order.scratch.join("card.json");
        document::write_json(&path, &card).map_err(|error| file_error("write the engine card", &path, &error))?;
        Ok(path)
    }

    fn measure(&self, loaded: &mut Loaded, telemetry: &mut dyn Telemetry) -> Result<Measurement, BackendError> {
        let threads = self.order.spec.threads.unwrap_or(1);
        let config = MeasureConfig::within(self.order.measure_budget_ms as f64, threads);
        self.outlet.send(WorkEvent::WindowBegin);
        let result = measure(&mut *loaded.meter, telemetry, &self.clock, &config, self.cancel);
        self.outlet.send(WorkEvent::WindowEnd);
        result
    }

    /// Per-layer times; an engine that cannot tell them is measured all the same.
    fn layers(&self, loaded: &mut Loaded, measurement: &Measurement) -> Vec<crate::backend::LayerTime> {
        let fits = (LAYER_BUDGET_MS / measurement.stats.median.max(1e-6)) as u32;
        match loaded.meter.layers(LAYER_ITERATIONS.min(fits).max(1)) {
            Ok(layers) => layers,
            Err(error) => {
                let message = format!("the backend gave no per-layer times: {error}");
                loaded.verdict.findings.push(Finding { code: "no-layers".into(), severity: Severity::Note, message });
                Vec::new()
            }
        }
    }
}

/// A plan ready to be timed, and what is known of its outputs.
struct Loaded {
    meter: Box<dyn Meter>,
    inputs: NamedTensors,
    verdict: Verdict,
}

/// The model's graph as imported, nothing optimised; else why there is none.
fn reference_graph(order: &WorkOrder) -> Result<Graph, String> {
    let model = planforge_onnx::Model::open(&order.model).map_err(|error| error.to_string())?;
    crate::import::import(&model, order.spec.profiles.first()).map_err(|error| error.to_string())
}

pub(super) fn model_ref(order: &WorkOrder) -> ModelRef {
    ModelRef {
        name: order.model_name.clone(),
        digest: order.model_digest,
        graph_digest: order.graph_digest,
        structure_digest: order.structure_digest,
    }
}

fn plan_ref(path: &Path) -> Result<PlanRef, BackendError> {
    let hash = || -> io::Result<(Digest, u64)> {
        let mut writer = DigestWriter::new();
        let bytes = io::copy(&mut File::open(path)?, &mut writer)?;
        Ok((writer.finish(), bytes))
    };
    let (digest, bytes) = hash().map_err(|error| file_error("read the plan", path, &error))?;
    Ok(PlanRef { digest, bytes })
}
