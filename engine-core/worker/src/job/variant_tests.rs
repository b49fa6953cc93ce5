//! Jobs of several builds, shapes and streams, on a compiler whose plans take as long as the test says. There is no
//! model to compare with: outputs are only searched for NaN.

use super::*;
use planforge_backend::{
    Aside, Cancel, CompileRequest, CompiledPlan, Compiler, Events, KeptFile, LoadOptions, Meter, StreamSamples, Window,
    WindowSamples,
};
use planforge_device::{
    cpu,
    telemetry::{self, OpenTelemetry, Telemetry},
};
use planforge_report::{Finding, LatencySplit, LayerTime, ModeSplit, Rates, Report, ShapePoint, card::EngineCard};
use planforge_types::{
    BackendError, BuildSpec, Digest, DimRange, ElementType, EngineKey, FailureClass, HostTensor, NamedTensors,
    OptimizationProfile, Port, Sku, Toolchain,
    fingerprint::DiscoveredDevice,
    order::{MeasureAsk, WorkEvent, WorkKind, WorkOrder},
    telemetry::TelemetrySample,
};
use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Streams beyond which the scripted engine has no memory.
const MOST_STREAMS: u32 = 8;

/// Rows beyond which the scripted engine has no memory.
const MOST_ROWS: usize = 8;

/// What the builds do, in order.
#[derive(Clone, Debug, Default)]
struct Script {
    /// Time of one row in each build's plan; a build past the end fails.
    row_ms: Vec<f64>,
    /// Builds whose outputs are not finite.
    wrong: Vec<usize>,
    /// How much longer every plan takes once it was chosen: it was lucky when it was measured first.
    luck: f64,
}

#[derive(Clone, Default)]
struct Scripted {
    script: Script,
    built: Arc<AtomicUsize>,
    /// What each build's cache held when it began; `None`: no such file.
    caches: Arc<Mutex<Vec<Option<String>>>>,
    loads: Arc<Mutex<Vec<usize>>>,
    /// How often the device's rates were measured.
    probes: Arc<AtomicUsize>,
}

impl Compiler for Scripted {
    fn backend(&self) -> &'static str {
        "native"
    }

    fn toolchains(&self, _: &DiscoveredDevice) -> Vec<Toolchain> {
        Vec::new()
    }

    fn check(&self, _: &CompileRequest) -> Result<(), BackendError> {
        Ok(())
    }

    fn compile(&self, request: &CompileRequest, _: &dyn Events, _: &Cancel) -> Result<CompiledPlan, BackendError> {
        let index = self.built.fetch_add(1, Ordering::Relaxed);
        let cache = request.cache.as_deref().unwrap();
        let before = fs::read_to_string(cache).ok();
        fs::write(cache, format!("{}+{index}", before.as_deref().unwrap_or(""))).unwrap();
        self.caches.lock().unwrap().push(before);
        if index >= self.script.row_ms.len() {
            return Err(BackendError::new(FailureClass::Resource, "no luck"));
        }
        let path = request.scratch.join("engine.plan");
        fs::write(&path, index.to_string()).unwrap();
        let findings = vec![Finding::note("tool-says", "hello")];
        Ok(CompiledPlan { path, facts: serde_json::json!({ "build": index }), findings })
    }

    fn recognises(&self, _: &[u8]) -> bool {
        true
    }

    fn load(&self, plan: &Path, options: &LoadOptions) -> Result<Box<dyn Meter>, BackendError> {
        let index: usize = fs::read_to_string(plan).unwrap().parse().unwrap();
        let loads = {
            let mut loads = self.loads.lock().unwrap();
            loads.push(options.profile);
            loads.len()
        };
        let luck = if loads > self.script.row_ms.len() { self.script.luck } else { 0.0 };
        let scratch = options.site.as_ref().unwrap().scratch.clone();
        let wrong = self.script.wrong.contains(&index);
        let (row_ms, profile) = (self.script.row_ms[index] * (1.0 + luck), options.profile);
        let probes = Arc::clone(&self.probes);
        Ok(Box::new(ScriptedMeter { row_ms, wrong, rows: 0, profile, scratch, traced: None, probes }))
    }
}

struct ScriptedMeter {
    row_ms: f64,
    wrong: bool,
    rows: usize,
    profile: usize,
    scratch: PathBuf,
    traced: Option<PathBuf>,
    probes: Arc<AtomicUsize>,
}

impl Meter for ScriptedMeter {
    fn inputs(&self) -> Vec<Port> {
        vec![Port { name: "x".into(), element: ElementType::F32, shape: vec![None, Some(4)] }]
    }

    fn outputs(&self) -> Vec<Port> {
        vec![Port { name: "y".into(), ..self.inputs().remove(0) }]
    }

    fn bind(&mut self, inputs: &NamedTensors) -> Result<(), BackendError> {
        self.rows = inputs["x"].shape[0];
        if self.rows > MOST_ROWS {
            return Err(BackendError::new(FailureClass::Resource, "out of device memory"));
        }
        Ok(())
    }

    fn switch_profile(&mut self, profile: usize) -> Result<Option<()>, BackendError> {
        (self.profile, self.rows) = (profile, 0);
        Ok(Some(()))
    }

    fn run(&mut self) -> Result<NamedTensors, BackendError> {
        assert!(self.rows > 0, "inputs are bound after a change of profiles");
        let value = if self.wrong { f32::NAN } else { 1.0 };
        let bytes = std::iter::repeat_n(value.to_le_bytes(), self.rows * 4).flatten().collect();
        let output = HostTensor { element: ElementType::F32, shape: vec![self.rows, 4], bytes };
        Ok(NamedTensors::from([("y".to_owned(), output)]))
    }

    fn window(&mut self, window: Window) -> Result<WindowSamples, BackendError> {
        // The second profile is tuned worse.
        let latency = self.row_ms * (1 + self.profile) as f64 * self.rows as f64;
        Ok(WindowSamples { latency_ms: vec![latency; window.iterations as usize] })
    }

    fn layers(&mut self, _: u32) -> Result<Vec<LayerTime>, BackendError> {
        let layer = |precision: &str, median_ms| LayerTime {
            precision: Some(precision.into()),
            median_ms,
            bytes: 1000,
            ..LayerTime::default()
        };
        Ok(vec![layer("fp16", 3.0), layer("fp32", 1.0)])
    }

    fn memory_bytes(&self) -> u64 {
        1
    }

    fn split(&mut self) -> Result<Option<LatencySplit>, BackendError> {
        let mode = ModeSplit { cuda_graph: true, executions: self.rows as u64, ..ModeSplit::default() };
        Ok(Some(LatencySplit { modes: vec![mode] }))
    }

    fn streams(&mut self, streams: u32, _: Window) -> Result<Option<StreamSamples>, BackendError> {
        if streams > MOST_STREAMS {
            return Err(BackendError::new(FailureClass::Resource, "out of device memory"));
        }
        // Two streams fill the device.
        let executions_per_s = f64::from(streams.min(2)) * 100.0;
        Ok(Some(StreamSamples { executions_per_s, latency_ms: vec![f64::from(streams); 10] }))
    }

    fn trace(&mut self) -> Result<Option<()>, BackendError> {
        let path = self.scratch.join("timeline");
        fs::write(&path, "tick").unwrap();
        self.traced = Some(path);
        Ok(Some(()))
    }

    fn weight_bytes(&self) -> BTreeMap<String, u64> {
        BTreeMap::from([("fp16".to_owned(), 10)])
    }

    fn gelus(&self) -> BTreeMap<String, u64> {
        BTreeMap::from([(planforge_report::gelu::ERF.to_owned(), 12)])
    }

    fn rate_conditions(&self) -> Option<BTreeMap<String, String>> {
        Some(BTreeMap::from([("threads".to_owned(), "1".to_owned())]))
    }

    fn rates(&mut self) -> Result<Rates, BackendError> {
        let probe = self.probes.fetch_add(1, Ordering::Relaxed);
        match probe {
            0 => Err(BackendError::new(FailureClass::Resource, "no memory to copy")),
            number => Ok(Rates { copy_gb_s: number as f64, ..Rates::default() }),
        }
    }

    fn aside(&mut self) -> Aside {
        let files = self.traced.take().map(|path| KeptFile { name: "timeline.nsys-rep".into(), path });
        Aside { findings: vec![Finding::warning("unstable-compute", "it varies")], files: files.into_iter().collect() }
    }
}

fn rows(min: u64, opt: u64, max: u64) -> OptimizationProfile {
    let four = DimRange { min: 4, opt: 4, max: 4 };
    OptimizationProfile { inputs: BTreeMap::from([("x".to_owned(), vec![DimRange { min, opt, max }, four])]) }
}

struct Fixture {
    _scratch: tempfile::TempDir,
    order: WorkOrder,
    compiler: Scripted,
    events: Vec<WorkEvent>,
}

impl Fixture {
    fn new(row_ms: &[f64]) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let sku: Sku = "cpu-x86-64-v2".parse().unwrap();
        let toolchain = Toolchain { backend: "native".into(), version: "1".into(), components: BTreeMap::new() };
        let spec = BuildSpec { profiles: vec![rows(2, 2, 2)], ..BuildSpec::default() };
        let model_digest = Digest::of(b"model");
        let order = WorkOrder {
            kind: WorkKind::Build,
            job: "job-1".into(),
            attempt: 1,
            agent: "here".into(),
            engine_key: EngineKey::new(&model_digest, &sku, &toolchain, &spec),
            model: scratch.path().join("absent.onnx"),
            model_name: "absent.onnx".into(),
            model_digest,
            graph_digest: None,
            structure_digest: None,
            sku,
            toolchain,
            spec,
            fingerprint: serde_json::to_value(cpu::detect(&cpu::host_facts()).0).unwrap(),
            scratch: scratch.path().to_owned(),
            cache: Some(scratch.path().join("cache")),
            cache_origin: None,
            prepared: None,
            prepare: None,
            prepared_from: None,
            ceilings: None,
            oracles: None,
            limit_ms: 0,
            plan: None,
            built_for: None,
            eval: None,
            inputs: None,
            baselines: Vec::new(),
            calibration: None,
            plugins: Vec::new(),
            builds: row_ms.len() as u32,
            measure: MeasureAsk::default(),
            measure_budget_ms: 100,
            strict_measure_budget: false,
            allow_inaccurate: false,
            simulated: true,
            trace: None,
        };
        let script = Script { row_ms: row_ms.to_vec(), ..Script::default() };
        let compiler = Scripted { script, ..Scripted::default() };
        Self { _scratch: scratch, order, compiler, events: Vec::new() }
    }

    fn run(&mut self) -> RunEnd {
        self.run_with(&telemetry::for_device)
    }

    fn run_with(&mut self, open_telemetry: &OpenTelemetry<'_>) -> RunEnd {
        let compilers: Vec<Box<dyn Compiler>> = vec![Box::new(self.compiler.clone())];
        let mut events = Vec::new();
        let end = run(
            &self.order,
            &compilers,
            open_telemetry,
            &mut |event| events.push(event),
            &mut || Ok(()),
            &Cancel::default(),
        );
        self.events = events;
        end
    }

    fn report(&self) -> Report {
        let Some(WorkEvent::Done { report, .. }) = self.events.last() else { panic!("{:?}", self.events.last()) };
        serde_json::from_slice(&fs::read(report).unwrap()).unwrap()
    }

    fn cache(&self) -> String {
        fs::read_to_string(self.order.cache.as_deref().unwrap()).unwrap()
    }
}

#[test]
fn of_several_builds_the_fastest_is_kept_and_told_once() {
    let mut job = Fixture::new(&[3.0, 1.0, 2.0]);
    assert_eq!(job.run(), RunEnd::Succeeded);
    let built: Vec<_> = job.events.iter().filter(|event| matches!(event, WorkEvent::Built { .. })).collect();
    let [WorkEvent::Built { plan, plan_digest, card, .. }] = built[..] else { panic!("{built:?}") };
    assert_eq!((fs::read_to_string(plan).unwrap().as_str(), *plan_digest), ("1", Digest::of(b"1")));
    let card: EngineCard = serde_json::from_slice(&fs::read(card).unwrap()).unwrap();
    assert_eq!(card.facts["build"], 1);

    let report = job.report();
    assert_eq!((report.plan.digest, report.latency_ms.median), (*plan_digest, 2.0));
    let selection = report.selection.as_ref().unwrap();
    let medians: Vec<f64> = selection.builds.iter().map(|build| build.median_ms).collect();
    assert_eq!(medians, [6.0, 2.0, 4.0]);
    assert_eq!(selection.builds.iter().map(|build| build.kept).collect::<Vec<_>>(), [false, true, false]);
    assert!(selection.unstable && (selection.spread - 2.0).abs() < 1e-9, "{selection:?}");
    let codes: Vec<&str> = report.findings.iter().map(|finding| finding.code.as_str()).collect();
    for code in ["build-unstable", "tool-says", "unstable-compute"] {
        assert_eq!(codes.iter().filter(|have| **have == code).count(), 1, "{code} in {codes:?}");
    }
}

#[test]
fn the_plan_that_is_kept_is_measured_anew_after_the_choice() {
    let mut job = Fixture::new(&[3.0, 1.0, 2.0]);
    job.compiler.script.luck = 0.25;
    assert_eq!(job.run(), RunEnd::Succeeded);
    let report = job.report();
    let selection = report.selection.as_ref().unwrap();
    let kept = selection.builds.iter().find(|build| build.kept).unwrap();
    assert_eq!((kept.median_ms, report.latency_ms.median), (2.0, 2.5));
    assert!(selection.remeasured && report.is_consistent().unwrap());
    let told = job.events.iter().map(|event| match event {
        WorkEvent::Built { .. } => "built",
        WorkEvent::WindowBegin => "window",
        _ => "",
    });
    let events: Vec<&str> = told.collect();
    let built = events.iter().position(|event| *event == "built").unwrap();
    assert_eq!(events[..built].iter().filter(|event| **event == "window").count(), 3);
    assert_eq!(
        events[built..].iter().filter(|event| **event == "window").count(),
        2,
        "the headline, and what is beside"
    );
}

#[test]
fn further_builds_time_their_tactics_anew_and_a_full_cache_is_only_added_to() {
    let mut cold = Fixture::new(&[3.0, 1.0]);
    cold.run();
    assert_eq!(*cold.compiler.caches.lock().unwrap(), [None, None]);
    assert_eq!(cold.cache(), "+1", "nothing to lose: the kept build's");

    let mut warm = Fixture::new(&[3.0, 1.0]);
    fs::write(warm.order.cache.as_deref().unwrap(), "farm").unwrap();
    warm.run();
    assert_eq!(*warm.compiler.caches.lock().unwrap(), [Some("farm".to_owned()), None]);
    assert_eq!(warm.cache(), "farm+0", "the first build's, which has all that was there");
    let report = warm.report();
    let warmth = |report: &Report| {
        let builds = report.selection.iter().flat_map(|selection| &selection.builds);
        builds.map(|build| build.cache.as_ref().unwrap().warm).collect::<Vec<_>>()
    };
    assert_eq!(warmth(&report), [true, false]);
    let cache = report.cache.unwrap();
    assert!(!cache.warm && cache.before.is_none() && cache.after.unwrap().digest == Digest::of(b"+1"));
}

#[test]
fn a_single_build_updates_its_cache_in_place_and_says_what_it_found() {
    let mut job = Fixture::new(&[1.0]);
    fs::write(job.order.cache.as_deref().unwrap(), "farm").unwrap();
    assert_eq!(job.run(), RunEnd::Succeeded);
    let report = job.report();
    let cache = report.cache.as_ref().unwrap();
    assert!(cache.warm && cache.before.as_ref().unwrap().digest == Digest::of(b"farm"));
    assert_eq!((job.cache().as_str(), report.selection.is_none()), ("farm+0", true));
}

#[test]
fn a_fast_build_with_wrong_outputs_is_not_kept() {
    let mut job = Fixture::new(&[3.0, 1.0]);
    job.compiler.script.wrong = vec![1];
    assert_eq!(job.run(), RunEnd::Succeeded);
    let report = job.report();
    assert!(report.accurate && report.plan.digest == Digest::of(b"0"));
    assert_eq!(report.selection.unwrap().builds.iter().map(|b| b.accurate).collect::<Vec<_>>(), [true, false]);

    let mut all_wrong = Fixture::new(&[3.0, 1.0]);
    all_wrong.compiler.script.wrong = vec![0, 1];
    assert_eq!(all_wrong.run(), RunEnd::Failed);
    assert!(!all_wrong.events.iter().any(|event| matches!(event, WorkEvent::Built { .. })));
    all_wrong.compiler.built.store(0, Ordering::Relaxed);
    all_wrong.order.allow_inaccurate = true;
    assert_eq!(all_wrong.run(), RunEnd::Succeeded);
    assert!(!all_wrong.report().accurate && all_wrong.report().plan.digest == Digest::of(b"1"));
}

#[test]
fn a_later_build_that_fails_is_noted_and_a_first_one_ends_the_job() {
    let mut job = Fixture::new(&[2.0]);
    job.order.builds = 2;
    assert_eq!(job.run(), RunEnd::Succeeded);
    let selection = job.report().selection.unwrap();
    assert_eq!((selection.builds.len(), selection.failed), (1, vec!["build 2 of 2: no luck".to_owned()]));

    let mut none = Fixture::new(&[]);
    none.order.builds = 3;
    assert_eq!(none.run(), RunEnd::Failed);
    assert_eq!(none.compiler.built.load(Ordering::Relaxed), 1);
}

/// Tells that the board is gone once so many engines were built.
struct Breaking {
    built: Arc<AtomicUsize>,
    after: usize,
}

impl Telemetry for Breaking {
    fn sample(&mut self) -> TelemetrySample {
        let gone = self.built.load(Ordering::Relaxed) >= self.after;
        TelemetrySample { xids: if gone { vec![79] } else { Vec::new() }, ..TelemetrySample::default() }
    }
}

#[test]
fn a_device_that_is_lost_ends_the_job_wherever_it_is_heard() {
    for (builds, after) in [(3, 2), (1, 1)] {
        let mut job = Fixture::new(&[3.0, 1.0, 2.0][..builds]);
        job.order.spec.profiles = vec![rows(1, 2, 4)];
        let built = job.compiler.built.clone();
        let end = job.run_with(&|_| Box::new(Breaking { built: built.clone(), after }));
        assert_eq!(end, RunEnd::Failed, "{builds} builds");
        let Some(WorkEvent::Failed { class, message, .. }) = job.events.last() else { panic!("{:?}", job.events) };
        assert_eq!(*class, FailureClass::Infrastructure);
        assert!(message.contains("device was lost") && message.contains("Xid 79"), "{message}");
        assert_eq!(job.compiler.built.load(Ordering::Relaxed), after, "nothing more is built on it");
    }
}

#[test]
fn every_profile_is_measured_at_its_smallest_usual_and_largest_shapes() {
    let mut job = Fixture::new(&[1.0]);
    job.order.spec.profiles = vec![rows(1, 2, 4), rows(4, 4, 16)];
    assert_eq!(job.run(), RunEnd::Succeeded);
    let report = job.report();
    let told: Vec<_> = report
        .points
        .iter()
        .map(|point| (point.profile, point.at, point.shapes["x"][0], point.latency_ms.map(|stats| stats.median)))
        .collect();
    assert_eq!(
        told,
        [
            (0, ShapePoint::Min, 1, Some(1.0)),
            (0, ShapePoint::Opt, 2, Some(2.0)),
            (0, ShapePoint::Max, 4, Some(4.0)),
            (1, ShapePoint::Opt, 4, Some(8.0)),
            (1, ShapePoint::Max, 16, None),
        ]
    );
    assert_eq!(
        report.points.iter().map(|point| point.headline).collect::<Vec<_>>(),
        [false, true, false, false, false]
    );
    assert_eq!(report.points[2].batch, 4);
    assert_eq!(report.points[4].problem.as_deref(), Some("out of device memory"));
    assert!(report.findings.iter().any(|f| f.code == "point-failed" && f.message.contains("profile 1 at max shapes")));
    assert_eq!(*job.compiler.loads.lock().unwrap(), [0, 1], "one engine for each profile");
    let switches: Vec<usize> = report.switches.iter().map(|switch| switch.profile).collect();
    assert_eq!(switches, [1]);
    assert!(!report.findings.iter().any(|finding| finding.code == "no-switch"));
    assert_eq!(report.split.unwrap().modes[0].executions, 2);
    assert!((report.precision_time["fp16"] - 0.75).abs() < 1e-12);
    assert_eq!(report.weight_bytes["fp16"], 10);
    assert_eq!(report.gelu["erf"], 12);
}

#[test]
fn fixed_shapes_have_no_points() {
    let mut job = Fixture::new(&[1.0]);
    job.run();
    assert_eq!(job.report().points.len(), 1, "the usual shapes alone, which are the headline");
    job.compiler.built.store(0, Ordering::Relaxed);
    job.order.spec.profiles.clear();
    job.run();
    assert!(job.report().points.is_empty());
}

#[test]
fn streams_and_timeline_are_measured_when_asked_for() {
    let mut job = Fixture::new(&[1.0]);
    job.order.measure = MeasureAsk { streams: vec![1, 2, 4], trace: true, ..MeasureAsk::default() };
    assert_eq!(job.run(), RunEnd::Succeeded);
    let report = job.report();
    let sweep = report.streams.as_ref().unwrap();
    let throughputs: Vec<f64> = sweep.points.iter().map(|point| point.throughput_per_s).collect();
    assert_eq!((throughputs, sweep.knee, sweep.best), (vec![200.0, 400.0, 400.0], Some(2), Some(2)));
    let Some(WorkEvent::Done { artifacts, .. }) = job.events.last() else { panic!("{:?}", job.events.last()) };
    assert_eq!((artifacts[0].name.as_str(), artifacts[0].digest), ("timeline.nsys-rep", Digest::of(b"tick")));
    assert_eq!(report.artifacts[0].digest, artifacts[0].digest);

    let mut too_many = Fixture::new(&[1.0]);
    too_many.order.measure = MeasureAsk { streams: vec![1, 2, MOST_STREAMS + 1], ..MeasureAsk::default() };
    assert_eq!(too_many.run(), RunEnd::Succeeded);
    let report = too_many.report();
    let kept: Vec<u32> = report.streams.iter().flat_map(|sweep| &sweep.points).map(|point| point.streams).collect();
    assert_eq!(kept, [1, 2], "what was measured before memory ran out stays");
    assert!(report.findings.iter().any(|f| f.code == "no-streams" && f.message.contains("out of device memory")));

    let mut plain = Fixture::new(&[1.0]);
    plain.run();
    assert!(plain.report().streams.is_none() && plain.report().artifacts.is_empty());
}

#[test]
fn batches_are_swept_within_the_profile() {
    let mut job = Fixture::new(&[1.0]);
    job.order.spec.profiles = vec![rows(1, 2, 16)];
    job.order.measure = MeasureAsk { batches: vec![1, 2, 8, 16, 32], ..MeasureAsk::default() };
    assert_eq!(job.run(), RunEnd::Succeeded);
    let sweep = job.report().batches.unwrap();
    let medians: Vec<_> =
        sweep.points.iter().map(|point| (point.batch, point.latency_ms.map(|stats| stats.median))).collect();
    assert_eq!(medians, [(1, Some(1.0)), (2, Some(2.0)), (8, Some(8.0)), (16, None), (32, None)]);
    assert_eq!(sweep.points[1].throughput_per_s, Some(1000.0));
    assert!(sweep.points[1].headline && !sweep.points[0].headline);
    let problems: Vec<_> = sweep.points.iter().filter_map(|point| point.problem.as_deref()).collect();
    assert_eq!(problems, ["out of device memory", "the profile allows 1 to 16"]);
    assert_eq!((sweep.knee, sweep.best), (Some(1), Some(1)));
}

#[test]
fn a_batch_that_does_not_vary_is_said() {
    let mut job = Fixture::new(&[1.0]);
    job.order.measure = MeasureAsk { batches: vec![1, 2], ..MeasureAsk::default() };
    assert_eq!(job.run(), RunEnd::Succeeded);
    let report = job.report();
    assert!(report.batches.is_none());
    let finding = report.findings.iter().find(|finding| finding.code == "no-batches").unwrap();
    assert!(finding.message.contains("do not share a first dimension that varies"), "{}", finding.message);
}

#[test]
fn a_devices_rates_are_measured_once_and_stand_in_every_report() {
    let mut job = Fixture::new(&[1.0]);
    let folder = job.order.scratch.join("ceilings");
    job.order.simulated = false;
    job.order.ceilings = Some(folder.clone());
    // The first time it fails, which fails no job.
    assert_eq!(job.run(), RunEnd::Succeeded);
    let report = job.report();
    assert!(report.ceilings.is_none());
    let finding = report.findings.iter().find(|finding| finding.code == "no-ceilings").unwrap();
    assert!(finding.message.contains("no memory to copy"), "{}", finding.message);

    let again = |job: &mut Fixture| {
        job.compiler.built.store(0, Ordering::Relaxed);
        assert_eq!(job.run(), RunEnd::Succeeded);
        job.report().ceilings.unwrap()
    };
    let mut first = again(&mut job);
    // On a busy machine what was disturbed is measured again, until it was not.
    while !first.disturbed.is_empty() {
        first = again(&mut job);
    }
    let probes = job.compiler.probes.load(Ordering::Relaxed);
    assert_eq!(again(&mut job), first, "as it was kept");
    assert_eq!(job.compiler.probes.load(Ordering::Relaxed), probes);
    assert_eq!(first.conditions["threads"], "1");

    job.order.simulated = true;
    job.compiler.built.store(0, Ordering::Relaxed);
    job.run();
    assert!(job.report().ceilings.is_none(), "a scripted device reaches nothing");
}
