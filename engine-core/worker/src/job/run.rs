//! One job from order to report, inside the worker process.
//!
//! compile → verify → card → [`WorkEvent::Built`] → wait for the upload → measure → the rest → report →
//! [`WorkEvent::Done`]. A benchmark starts at verify, with the plan it is given. Where an order asks for several
//! builds, each is verified and measured, and the one kept is told, uploaded and measured anew (see `selection`). An order
//! that only compiles ends with the upload, one that prepares for a device elsewhere before anything is loaded. Whatever
//! goes wrong on the way becomes one [`WorkEvent::Failed`] with the class that decides about a retry.

use super::{
    document,
    extra::distinct,
    loss::Loss,
    memory::PeakMemory,
    outlet::{CompileEvents, Outlet, log},
    prepare, selection,
};
use crate::{
    measure::{self, Clock, MeasureConfig, Measurement, MonotonicClock},
    preparation::calibration,
    verify::{self, Agreements, Independent, Second, Verdict, inputs},
};
use planforge_backend::{
    Aside, Cancel, CompileRequest, Compiler, KeptFile, LoadOptions, LoadSite, Meter, Oracle, Pacing,
};
use planforge_device::telemetry::{OpenTelemetry, Telemetry, unix_ms};
use planforge_graph::ir::Graph;
use planforge_report::{
    BuildSelection, CacheState, CacheUse, Finding, ModelRef, PlanRef, ShapePoint,
    card::{CARD_SCHEMA_VERSION, EngineCard},
};
use planforge_types::{
    BackendError, DigestWriter, FailureClass, NamedTensors, OptimizationProfile,
    fingerprint::DeviceFingerprint,
    order::{Artifact, WorkEvent, WorkKind, WorkOrder},
};
use std::{
    cell::OnceCell,
    collections::BTreeMap,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

/// How a run ended; the last event said the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    Succeeded,
    Failed,
}

/// Runs `order` to its end.
///
/// The last event is [`WorkEvent::Done`] or [`WorkEvent::Failed`]; of an order that measures nothing
/// [`WorkEvent::Compiled`], [`WorkEvent::Prepared`] or [`WorkEvent::Made`]. `wait_continue` returns when the agent has uploaded
/// the plan; an error from it means that the agent is gone. Log lines go to `tracing` with the target `attempt`.
pub fn run(
    order: &WorkOrder,
    compilers: &[Box<dyn Compiler>],
    open_telemetry: &OpenTelemetry<'_>,
    events: &mut (dyn FnMut(WorkEvent) + Send),
    wait_continue: &mut dyn FnMut() -> io::Result<()>,
    cancel: &Cancel,
) -> RunEnd {
    let outlet = Outlet::new(events);
    let steps = || -> Result<(), BackendError> {
        if order.kind == WorkKind::Prepare {
            return prepare::run(order, compilers, &outlet, cancel);
        }
        let device: DeviceFingerprint = serde_json::from_value(order.fingerprint.clone()).map_err(|error| {
            BackendError::infrastructure(format!("the order's device description cannot be understood: {error}"))
        })?;
        let backend = &order.toolchain.backend;
        let compiler = compilers.iter().find(|compiler| compiler.backend() == backend).ok_or_else(|| {
            BackendError::infrastructure(format!(
                "this agent has no backend '{backend}', though it was given a job for it"
            ))
        })?;
        // Opened before anything touches the device, so that later processes on it are told from this one.
        let loss = Loss::default();
        // Nothing is watched of a device that is elsewhere.
        let elsewhere = order.kind == WorkKind::Ahead;
        let watched = DeviceFingerprint { gpu: device.gpu.clone().filter(|_| !elsewhere), ..device.clone() };
        let telemetry = loss.watching(open_telemetry(&watched));
        let job = Job {
            order,
            compiler: &**compiler,
            oracle: compilers.iter().filter(|other| other.backend() != backend).find_map(|other| other.oracle()),
            others: compilers.iter().map(|other| &**other).filter(|other| other.backend() != backend).collect(),
            second: compilers.iter().find_map(|compiler| compiler.oracle()),
            known: order.oracles.as_deref().map(Agreements::new),
            outlet: &outlet,
            cancel,
            loss,
            device,
            clock: MonotonicClock::default(),
            memory: PeakMemory::default(),
            given: OnceCell::new(),
        };
        job.run(telemetry, wait_continue)
    };
    let result =
        catch_unwind(AssertUnwindSafe(steps)).unwrap_or_else(|panic| Err(BackendError::bug("the worker", &*panic)));
    match result {
        Ok(()) => RunEnd::Succeeded,
        Err(error) => {
            let BackendError { class, message, hint, reason } = error;
            outlet.send(WorkEvent::Failed { class, message, hint, reason });
            RunEnd::Failed
        }
    }
}

/// A full disk is the host's lack, not its failure: trying again there cannot help.
pub(super) fn file_error(what: &str, path: &Path, error: &io::Error) -> BackendError {
    let message = format!("cannot {what} {}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            BackendError::new(FailureClass::Resource, message).with_hint("free space in the agent's scratch folder")
        }
        _ => BackendError::infrastructure(message),
    }
}

/// The plan at hand and where it came from.
#[derive(Clone)]
pub(super) struct Built {
    pub path: PathBuf,
    pub plan: PlanRef,
    /// `None` when this job did not build it.
    pub build_ms: Option<f64>,
    pub facts: serde_json::Value,
    pub findings: Vec<Finding>,
    pub cache: Option<CacheUse>,
}

/// A plan that was measured, loaded and ready for more.
pub(super) struct Measured {
    pub built: Built,
    pub loaded: Loaded,
    pub measurement: Measurement,
    pub measured_unix_ms: u64,
    pub selection: Option<BuildSelection>,
}

/// A plan ready to be timed, and what is known of its outputs.
pub(super) struct Loaded {
    pub meter: Box<dyn Meter>,
    pub inputs: NamedTensors,
    pub verdict: Verdict,
}

/// How long each phase took, in milliseconds; a phase that was run again adds up.
pub(super) type Phases = BTreeMap<String, f64>;

pub(super) struct Job<'a> {
    pub order: &'a WorkOrder,
    pub compiler: &'a dyn Compiler,
    /// Of another backend, when one has any.
    pub oracle: Option<Box<dyn Oracle>>,
    /// The backends that are not the job's, for baselines.
    pub others: Vec<&'a dyn Compiler>,
    /// Of any backend: the reference is held against it, not the engine.
    pub second: Option<Box<dyn Oracle>>,
    /// What this host compared before.
    pub known: Option<Agreements>,
    pub outlet: &'a Outlet<'a>,
    pub cancel: &'a Cancel,
    pub loss: Loss,
    pub device: DeviceFingerprint,
    pub clock: MonotonicClock,
    pub memory: PeakMemory,
    /// What the order's file of inputs gives the engine, once it was read.
    pub given: OnceCell<NamedTensors>,
}

impl Job<'_> {
    fn run(
        &self,
        mut telemetry: Box<dyn Telemetry>,
        wait_continue: &mut dyn FnMut() -> io::Result<()>,
    ) -> Result<(), BackendError> {
        let order = self.order;
        self.check_given()?;
        let mut phases = Phases::new();
        let measured = match order.kind {
            WorkKind::Build if order.builds > 1 => {
                let selection::Chosen { built, loaded, selection } =
                    selection::run(self, &mut *telemetry, &mut phases)?;
                self.hand_over(&built, &mut phases, wait_continue)?;
                let measured = self.measured(built, loaded, &mut *telemetry, &mut phases)?;
                Measured { selection: Some(selection), ..measured }
            }
            WorkKind::Build => {
                let built =
                    self.phase("compile", &mut phases, || self.compile(&order.scratch, order.cache.as_deref()))?;
                let loaded = self.accepted(&built, &mut phases)?;
                self.hand_over(&built, &mut phases, wait_continue)?;
                self.measured(built, loaded, &mut *telemetry, &mut phases)?
            }
            WorkKind::Compile => {
                let built =
                    self.phase("compile", &mut phases, || self.compile(&order.scratch, order.cache.as_deref()))?;
                let loaded = self.accepted(&built, &mut phases)?;
                self.hand_over(&built, &mut phases, wait_continue)?;
                self.outlet.send(WorkEvent::Compiled { accurate: loaded.verdict.accurate });
                return Ok(());
            }
            WorkKind::Ahead => return self.phase("compile", &mut phases, || self.prepare()),
            // It has no device, and never comes here.
            WorkKind::Prepare => return Err(BackendError::infrastructure("a model is prepared without a device")),
            WorkKind::Benchmark => {
                let built = self.given_plan()?;
                let loaded = self.accepted(&built, &mut phases)?;
                self.measured(built, loaded, &mut *telemetry, &mut phases)?
            }
        };
        self.finish(measured, &mut *telemetry, phases)
    }

    /// What belongs beside the headline, then the report.
    fn finish(&self, measured: Measured, telemetry: &mut dyn Telemetry, phases: Phases) -> Result<(), BackendError> {
        let order = self.order;
        let Measured { built, mut loaded, measurement, measured_unix_ms, selection } = measured;
        self.outlet.send(WorkEvent::WindowBegin);
        let extra = self.measure_extra(&mut loaded, &built.path, &measurement, telemetry);
        self.outlet.send(WorkEvent::WindowEnd);
        let mut extra = extra?;
        let aside = loaded.meter.aside();
        let artifacts = self.artifacts(aside, &mut extra.findings);
        let report = document::assemble(document::Parts {
            order,
            device: &self.device,
            built,
            phases_ms: phases,
            measured_unix_ms,
            inputs: loaded.meter.inputs(),
            bound: &loaded.inputs,
            engine_memory_bytes: loaded.meter.memory_bytes(),
            measurement,
            selection,
            extra,
            artifacts: &artifacts,
            verdict: loaded.verdict,
            memory: &self.memory,
            given: self.given_inputs(),
        });
        let path = order.scratch.join("report.json");
        document::write_json(&path, &report).map_err(|error| file_error("write the report", &path, &error))?;
        self.outlet.send(WorkEvent::Done { report: path, accurate: report.accurate, artifacts });
        Ok(())
    }

    /// Runs one phase between two progress events and notes how long it took.
    pub fn phase<T>(
        &self,
        name: &str,
        phases: &mut Phases,
        work: impl FnOnce() -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        self.may_go_on(name)?;
        self.outlet.progress(name, 0.0, "");
        let began_ms = self.clock.now_ms();
        let result = work()?;
        let took_ms = self.clock.now_ms() - began_ms;
        *phases.entry(name.to_owned()).or_default() += took_ms;
        self.outlet.progress(name, 1.0, "");
        log(&format!("{name} took {took_ms:.0} ms"));
        Ok(result)
    }

    /// Whether there is still something to do: the job was not cancelled and its device is there.
    pub fn may_go_on(&self, next: &str) -> Result<(), BackendError> {
        if self.cancel.is_cancelled() {
            return Err(BackendError::cancelled(format!("cancelled before {next}")));
        }
        self.loss.check()
    }

    /// Makes ready what a build elsewhere takes, on a device like the order's.
    fn prepare(&self) -> Result<(), BackendError> {
        let into = self.order.scratch.join("prepared");
        let request = self.request(&self.order.scratch, None)?;
        self.compiler.prepare(&request, &into, &CompileEvents(self.outlet), self.cancel)?;
        let PlanRef { digest, bytes } = plan_ref(&into)?;
        self.outlet.send(WorkEvent::Prepared { file: into, digest, bytes });
        Ok(())
    }

    fn request(&self, scratch: &Path, cache: Option<&Path>) -> Result<CompileRequest, BackendError> {
        let order = self.order;
        let calibration = order.calibration.as_deref();
        let calibration = calibration.map(|file| calibration::file(file, &order.toolchain, scratch)).transpose()?;
        Ok(CompileRequest {
            model: order.model.clone(),
            model_digest: order.model_digest,
            sku: order.sku.clone(),
            device: self.device.clone(),
            toolchain: order.toolchain.clone(),
            spec: order.spec.clone(),
            scratch: scratch.to_owned(),
            cache: cache.map(Path::to_owned),
            calibration,
            plugins: order.plugins.clone(),
        })
    }

    /// Builds into `scratch`; `cache` is updated in place.
    pub fn compile(&self, scratch: &Path, cache: Option<&Path>) -> Result<Built, BackendError> {
        let request = self.request(scratch, cache)?;
        self.compiler.check(&request)?;
        // What was prepared elsewhere is no experience of earlier builds: without any the build is cold.
        let before = cache.and_then(cache_state);
        if let (Some(cache), Some(prepared)) = (cache, &self.order.prepared) {
            let joined = self.compiler.join_caches(&request.sku, cache, prepared);
            if let Err(error) = joined {
                log(&format!("what was prepared for this build cannot be used: {error}"));
            }
        }
        let began_ms = self.clock.now_ms();
        let compile = || self.compiler.compile(&request, &CompileEvents(self.outlet), self.cancel);
        let compiled = self.memory.of_build(compile)?;
        let build_ms = self.clock.now_ms() - began_ms;
        let plan = plan_ref(&compiled.path)?;
        log(&format!("built plan {} of {} bytes", plan.digest, plan.bytes));
        let cache = cache.map(|path| CacheUse { warm: before.is_some(), before, after: cache_state(path) });
        let planforge_backend::CompiledPlan { path, facts, findings } = compiled;
        Ok(Built { path, plan, build_ms: Some(build_ms), facts, findings, cache })
    }

    fn given_plan(&self) -> Result<Built, BackendError> {
        let path = self
            .order
            .plan
            .clone()
            .ok_or_else(|| BackendError::infrastructure("the order to measure a plan names none"))?;
        let plan = plan_ref(&path)?;
        let facts = serde_json::Value::Null;
        Ok(Built { path, plan, build_ms: None, facts, findings: Vec::new(), cache: None })
    }

    /// Loads and verifies; wrong outputs are an error unless the order allows them.
    fn accepted(&self, built: &Built, phases: &mut Phases) -> Result<Loaded, BackendError> {
        let loaded = self.phase("verify", phases, || self.verify(built))?;
        if !loaded.verdict.accurate && !self.order.allow_inaccurate {
            return Err(loaded.verdict.refusal());
        }
        Ok(loaded)
    }

    pub fn load(&self, plan: &Path, profile: usize) -> Result<Box<dyn Meter>, BackendError> {
        let order = self.order;
        let site = LoadSite {
            device: self.device.clone(),
            toolchain: order.toolchain.clone(),
            spec: order.spec.clone(),
            model: order.model.clone(),
            plugins: order.plugins.clone(),
            scratch: order.scratch.clone(),
            cancel: self.cancel.clone(),
        };
        let allow_foreign = order.built_for.as_ref().is_some_and(|sku| *sku != order.sku);
        self.compiler.load(plan, &LoadOptions { threads: order.spec.threads, profile, allow_foreign, site: Some(site) })
    }

    /// Loads the plan, makes its inputs and checks its outputs.
    pub fn verify(&self, built: &Built) -> Result<Loaded, BackendError> {
        let order = self.order;
        let elsewhere =
            |loaded: &Result<Box<dyn Meter>, _>| loaded.as_ref().is_ok_and(|meter| runs_elsewhere(&**meter));
        let mut meter = self.memory.of_run(elsewhere, || self.load(&built.path, 0))?;
        let profile = order.spec.profiles.first();
        let graph = self.reference_graph(profile);
        let made = reference_inputs(graph.as_ref().ok(), &*meter, profile);
        let given = self.given(&*meter)?;
        // Given inputs may have shapes of their own.
        let own = given.filter(|given| !same_shapes(given, &made)).map(shapes_of);
        let graph = own.as_ref().map_or(graph, |shapes| self.reference_graph(Some(shapes)));
        let compared = given.unwrap_or(&made);
        meter.bind(compared)?;
        let check = verify::Check {
            graph: graph.as_ref().map_err(String::as_str),
            independent: self.independent(),
            second: self.second(),
            inputs: compared,
            eval: order.eval.as_deref(),
            precision: order.spec.precision,
            budget_ms: verify::ORACLE_BUDGET_MS,
            clock: &self.clock,
            cancel: self.cancel,
        };
        let mut verdict = check.run(&mut *meter)?;
        // Where every other shape starts a process of its own, one set of inputs has to do.
        if graph.is_ok() && meter.pacing() == Pacing::Iterations {
            self.verify_ends(&mut *meter, &built.path, &mut verdict)?;
        }
        let told = self.given_inputs().map(|given| Finding::note("given-inputs", given.words()));
        verdict.findings.extend(told);
        let inputs = given.filter(|_| order.measure.time_inputs).cloned().unwrap_or(made);
        // The accuracy check bound its own rows, and what is compared need not be what is timed.
        meter.bind(&inputs)?;
        for finding in &verdict.findings {
            log(&format!("{}: {}", finding.code, finding.message));
        }
        Ok(Loaded { meter, inputs, verdict })
    }

    /// Checks the smallest and largest shapes of every profile, and the usual ones of those after the first, as far as
    /// [`ENDS_BUDGET_MS`] goes.
    fn verify_ends(&self, meter: &mut dyn Meter, plan: &Path, verdict: &mut Verdict) -> Result<(), BackendError> {
        let order = self.order;
        let began_ms = self.clock.now_ms();
        let mut other: Option<(usize, Box<dyn Meter>)> = None;
        for (index, profile) in order.spec.profiles.iter().enumerate() {
            for (at, fixed) in distinct(profile) {
                if (index, at) == (0, ShapePoint::Opt) {
                    continue;
                }
                let point = format!("profile {index} at {} shapes", at.name());
                self.may_go_on(&point)?;
                let left_ms = ENDS_BUDGET_MS - (self.clock.now_ms() - began_ms);
                if left_ms <= 0.0 {
                    let reason = format!("checking the other shapes took longer than {:.0} s", ENDS_BUDGET_MS / 1e3);
                    verdict.unverified_at(&point, &reason);
                    continue;
                }
                if index > 0 && other.as_ref().is_none_or(|(loaded, _)| *loaded != index) {
                    drop(other.take());
                    other = Some((index, self.load(plan, index)?));
                }
                let meter = match &mut other {
                    Some((_, meter)) => &mut **meter,
                    None => &mut *meter,
                };
                let graph = self.reference_graph(Some(&fixed));
                let made = reference_inputs(graph.as_ref().ok(), meter, Some(&fixed));
                let inputs = self.with_controls(made);
                meter.bind(&inputs)?;
                let check = verify::Check {
                    graph: graph.as_ref().map_err(String::as_str),
                    independent: self.independent(),
                    second: self.second(),
                    inputs: &inputs,
                    eval: None,
                    precision: order.spec.precision,
                    budget_ms: left_ms,
                    clock: &self.clock,
                    cancel: self.cancel,
                };
                check.also(meter, &point, verdict)?;
            }
        }
        Ok(())
    }

    /// Says what is right when the reference operators do not; a measurement may come without the model.
    fn independent(&self) -> Option<Independent<'_>> {
        let oracle = self.oracle.as_deref().filter(|_| self.order.model.is_file())?;
        Some(Independent { oracle, model: &self.order.model })
    }

    /// What the reference operators are held against.
    fn second(&self) -> Option<Second<'_>> {
        self.order.model.is_file().then(|| Second {
            runtime: self.second.as_deref(),
            model: &self.order.model,
            model_digest: self.order.model_digest,
            known: self.known.as_ref(),
        })
    }

    /// Tells the agent of the plan and waits until it has it.
    fn hand_over(
        &self,
        built: &Built,
        phases: &mut Phases,
        wait_continue: &mut dyn FnMut() -> io::Result<()>,
    ) -> Result<(), BackendError> {
        let card = self.write_card(built)?;
        self.phase("upload", phases, || {
            let PlanRef { digest: plan_digest, bytes: plan_bytes } = built.plan;
            self.outlet.send(WorkEvent::Built { plan: built.path.clone(), plan_digest, plan_bytes, card });
            wait_continue()
                .map_err(|error| BackendError::infrastructure(format!("the agent did not take the plan: {error}")))
        })
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
            cache: built.cache.clone(),
            facts: built.facts.clone(),
            prepared_from: order.prepared_from.clone(),
        };
        let path = order.scratch.join("card.json");
        document::write_json(&path, &card).map_err(|error| file_error("write the engine card", &path, &error))?;
        Ok(path)
    }

    pub fn measured(
        &self,
        built: Built,
        mut loaded: Loaded,
        telemetry: &mut dyn Telemetry,
        phases: &mut Phases,
    ) -> Result<Measured, BackendError> {
        let measured_unix_ms = unix_ms();
        let config = self.headline_config();
        if let Some(words) = measure::announced(loaded.meter.pacing(), &config) {
            log(&words);
        }
        let measurement = self.phase("measure", phases, || {
            self.outlet.send(WorkEvent::WindowBegin);
            let elsewhere = runs_elsewhere(&*loaded.meter);
            let timed = || measure::measure(&mut *loaded.meter, telemetry, &self.clock, &config, self.cancel);
            let result = self.memory.of_run(|_| elsewhere, timed);
            self.outlet.send(WorkEvent::WindowEnd);
            result
        })?;
        Ok(Measured { built, loaded, measurement, measured_unix_ms, selection: None })
    }

    /// How the headline is measured, and what is put beside it.
    pub fn headline_config(&self) -> MeasureConfig {
        let usual = MeasureConfig::within(self.order.measure_budget_ms as f64, self.threads());
        MeasureConfig { strict_budget: self.order.strict_measure_budget, ..usual }
            .at_least(self.order.measure.warm_up_ms, self.order.measure.min_windows)
    }

    fn threads(&self) -> u32 {
        self.order.spec.threads.unwrap_or(1)
    }

    /// One experiment on what is bound, beside the headline: it has no more than its share of the time.
    pub fn measure_extras(
        &self,
        meter: &mut dyn Meter,
        budget_ms: f64,
        telemetry: &mut dyn Telemetry,
    ) -> Result<Measurement, BackendError> {
        let config = MeasureConfig { strict_budget: true, ..MeasureConfig::within(budget_ms, self.threads()) };
        measure::measure(meter, telemetry, &self.clock, &config, self.cancel)
    }

    /// The model's graph as imported for `profile`'s usual shapes, nothing optimised; else why there is none.
    pub fn reference_graph(&self, profile: Option<&OptimizationProfile>) -> Result<Graph, String> {
        if self.order.model.as_os_str().is_empty() {
            return Err("the model that the plan was built from was not given".into());
        }
        let model = planforge_onnx::Model::open(&self.order.model).map_err(|error| error.to_string())?;
        // Bounds are the engine's: what is right is right without them.
        let imported = planforge_import::import_open(&model, profile, false, &BTreeMap::new());
        imported.map(|imported| imported.graph).map_err(|error| error.to_string())
    }

    /// Digests of the files a meter kept; one that is too large or gone is told as a finding.
    fn artifacts(&self, aside: Aside, findings: &mut Vec<Finding>) -> Vec<Artifact> {
        document::add_once(findings, aside.findings);
        let mut artifacts = Vec::new();
        for KeptFile { name, path } in aside.files {
            match plan_ref(&path) {
                Ok(PlanRef { digest, bytes }) if bytes <= ARTIFACT_MAX_BYTES => {
                    artifacts.push(Artifact { name, path, digest, bytes });
                }
                Ok(PlanRef { bytes, .. }) => findings.push(Finding::note(
                    "artifact-too-large",
                    format!("{name} is not kept: {bytes} bytes are more than {ARTIFACT_MAX_BYTES}"),
                )),
                Err(error) => findings.push(Finding::note("artifact-lost", format!("{name} is not kept: {error}"))),
            }
        }
        artifacts
    }
}

/// Whether executions are processes of their own.
fn runs_elsewhere(meter: &dyn Meter) -> bool {
    meter.pacing() != Pacing::Iterations
}

/// Longest the oracles may take for all shapes of all profiles besides the usual ones of the first: a model whose
/// reference takes long at its largest shapes is checked where it is quick, and the report says where it was not.
const ENDS_BUDGET_MS: f64 = 60_000.0;

/// Largest file that is kept beside a report; a timeline of one window stays far below.
const ARTIFACT_MAX_BYTES: u64 = 512 << 20;

/// The reference inputs: as the graph reads them, else as the plan's edge says.
pub(super) fn reference_inputs(
    graph: Option<&Graph>,
    meter: &dyn Meter,
    profile: Option<&OptimizationProfile>,
) -> NamedTensors {
    let specs = graph.and_then(inputs::of_graph).unwrap_or_else(|| inputs::of_ports(&meter.inputs(), profile));
    inputs::generate(&specs, inputs::REFERENCE_SEED)
}

fn same_shapes(given: &NamedTensors, made: &NamedTensors) -> bool {
    given.iter().all(|(name, tensor)| made.get(name).is_some_and(|made| made.shape == tensor.shape))
}

fn shapes_of(inputs: &NamedTensors) -> OptimizationProfile {
    OptimizationProfile::of_shapes(inputs.iter().map(|(name, tensor)| (name.as_str(), &tensor.shape[..])))
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
    let (digest, bytes) = DigestWriter::of_file(path).map_err(|error| file_error("read", path, &error))?;
    Ok(PlanRef { digest, bytes })
}

/// What a cache file holds; `None` when it is absent or empty.
fn cache_state(path: &Path) -> Option<CacheState> {
    let (digest, bytes) = DigestWriter::of_file(path).ok()?;
    (bytes > 0).then_some(CacheState { digest, bytes })
}
