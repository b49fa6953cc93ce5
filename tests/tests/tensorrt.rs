//! A worker's whole job through the stand-in `trtexec`: command line, process, read-back, report.

use planforge_backend::{Cancel, Compiler};
use planforge_device::telemetry::Telemetry;
use planforge_report::{Report, ShapePoint};
use planforge_tensorrt::{Discovery, TensorRtCompiler, discover::Places, process::Limits};
use planforge_tests::{
    boards::{Board, board_of},
    fleet::{Toolchain, program},
    models,
    standin::scenario::{Behaviour, Gpu, Phase, Rule, Scenario, Selects},
};
use planforge_types::{
    BuildSpec, Digest, DimRange, EngineKey, FailureClass, OptimizationProfile, Precision, Sku,
    fingerprint::{DeviceFingerprint, DeviceKind, GpuFacts, HostFacts},
    order::{MeasureAsk, WorkEvent, WorkKind, WorkOrder},
    telemetry::TelemetrySample,
};
use planforge_worker::job::{self, RunEnd};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

const DRIVER: &str = "580.159.03";

/// A device that is always quiet.
struct Quiet;

impl Telemetry for Quiet {
    fn sample(&mut self) -> TelemetrySample {
        TelemetrySample::default()
    }
}

fn fingerprint(board: Board) -> DeviceFingerprint {
    let (major, minor) = board.compute_capability;
    let gpu = GpuFacts {
        uuid: board.uuid(),
        pci_id: format!("10de:{:04x}", board.pci),
        compute_capability: format!("{major}.{minor}"),
        sm_count: Some(board.sms),
        driver: DRIVER.into(),
        ..GpuFacts::default()
    };
    DeviceFingerprint {
        kind: DeviceKind::Gpu,
        name: board.name.into(),
        memory_mib: board.memory_mib,
        gpu: Some(gpu),
        cpu: None,
        host: HostFacts::default(),
    }
}

struct Job {
    folder: tempfile::TempDir,
    toolchain: Toolchain,
    order: WorkOrder,
    limits: Limits,
    events: Vec<WorkEvent>,
}

impl Job {
    fn new(version: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let model = models::convolutions(&folder.path().join("m.onnx"), 2, 4, 6, 5);
        Self::of(version, model, folder)
    }

    fn of(version: &str, model: PathBuf, folder: tempfile::TempDir) -> Self {
        let board = board_of("h100-sxm");
        let toolchain =
            Toolchain::install(&program("standin-trtexec"), &folder.path().join("trt"), board.scenario(version));
        let scratch = folder.path().join("scratch");
        fs::create_dir_all(&scratch).expect("a scratch folder");
        let fingerprint = fingerprint(board);
        let discovery = Discovery::new(places(&toolchain), None);
        let offers = discovery.toolchains(Some(DRIVER));
        let [offer] = &offers[..] else { panic!("one toolchain, not {offers:?}") };
        assert!(offer.version.starts_with(version), "{offer}");
        let sku: Sku = "h100-sxm".parse().expect("a name");
        let spec = BuildSpec::default();
        let model_digest = Digest::of(&fs::read(&model).expect("the model"));
        let order = WorkOrder {
            kind: WorkKind::Build,
            job: "job-1".into(),
            attempt: 1,
            agent: "here".into(),
            engine_key: EngineKey::new(&model_digest, &sku, offer, &spec),
            model,
            model_name: "m.onnx".into(),
            model_digest,
            graph_digest: None,
            structure_digest: None,
            sku,
            toolchain: offer.clone(),
            spec,
            fingerprint: serde_json::to_value(fingerprint).expect("plain data"),
            cache: Some(scratch.join("timing.cache")),
            cache_origin: None,
            prepared: None,
            prepare: None,
            prepared_from: None,
            ceilings: None,
            oracles: None,
            scratch,
            plan: None,
            built_for: None,
            eval: None,
            inputs: None,
            baselines: Vec::new(),
            calibration: None,
            plugins: Vec::new(),
            builds: 1,
            measure: MeasureAsk::default(),
            measure_budget_ms: 2_000,
            strict_measure_budget: false,
            limit_ms: 0,
            allow_inaccurate: false,
            simulated: true,
            trace: None,
        };
        let wall = Duration::from_secs(120);
        Self {
            folder,
            toolchain,
            order,
            limits: Limits { wall, silence: wall, memory_bytes: None },
            events: Vec::new(),
        }
    }

    fn scenario(&mut self, change: impl FnOnce(&mut Scenario)) {
        change(&mut self.toolchain.scenario);
        let folder = self.toolchain.program().parent().expect("a folder").to_owned();
        self.toolchain.scenario.write(&folder).expect("the scenario is written");
    }

    fn rule(&mut self, phase: Phase, behaviour: Behaviour) {
        self.toolchain.set_rules(vec![Rule { graph: String::new(), phase, times: None, behaviour }]);
    }

    fn run(&mut self) -> RunEnd {
        let compiler = TensorRtCompiler::new(Discovery::new(places(&self.toolchain), None)).with_limits(self.limits);
        let compilers: Vec<Box<dyn Compiler>> = vec![Box::new(compiler)];
        let mut events = Vec::new();
        let end = job::run(
            &self.order,
            &compilers,
            &|_| Box::new(Quiet),
            &mut |event| events.push(event),
            &mut || Ok(()),
            &Cancel::default(),
        );
        self.events = events;
        end
    }

    fn report(&mut self) -> Report {
        let end = self.run();
        let Some(WorkEvent::Done { report, .. }) = self.events.last() else {
            panic!("{end:?}: {:?}", self.events.last())
        };
        serde_json::from_slice(&fs::read(report).expect("the report")).expect("a report")
    }

    fn failure(&mut self) -> (FailureClass, String) {
        assert_eq!(self.run(), RunEnd::Failed);
        let Some(WorkEvent::Failed { class, message, .. }) = self.events.last() else { panic!("{:?}", self.events) };
        (*class, message.clone())
    }

    fn built(&self) -> usize {
        self.events.iter().filter(|event| matches!(event, WorkEvent::Built { .. })).count()
    }
}

fn places(toolchain: &Toolchain) -> Places {
    Places { programs: Some(vec![toolchain.program()]), ..Places::default() }
}

fn codes(report: &Report) -> Vec<&str> {
    report.findings.iter().map(|finding| finding.code.as_str()).collect()
}

#[test]
fn versions_of_every_generation_build_verify_measure_and_profile() {
    for version in ["8.5.1", "8.6.1", "10.5.0", "10.16.0", "11.1.0"] {
        let mut job = Job::new(version);
        let report = job.report();
        assert!(report.accurate && report.simulated, "{version}: {:?}", report.findings);
        let numerics = report.numerics.as_ref().expect("outputs are compared");
        assert!(numerics.passed && numerics.skipped.is_none(), "{version}: {numerics:?}");
        // The board's compute time, give or take what the stand-in varies.
        let expected = board_of("h100-sxm").compute_ms;
        assert!((report.latency_ms.median / expected - 1.0).abs() < 0.2, "{version}: {:?}", report.latency_ms);
        assert!(report.is_consistent().expect("samples decode"), "{version}");
        let split = report.split.as_ref().expect("the latency's parts");
        assert_eq!(
            split.modes.iter().map(|mode| (mode.cuda_graph, mode.transfers)).collect::<Vec<_>>(),
            [(true, false), (true, true), (false, false)]
        );
        assert!(split.modes[1].h2d.is_some_and(|part| part.median > 0.0), "{version}: {split:?}");
        assert!(split.modes[0].enqueue.is_some() && split.modes[0].tool_executions_per_s.is_some(), "{version}");
        assert!(!report.layers.is_empty(), "{version}: {:?}", codes(&report));
        assert!(!report.precision_time.is_empty(), "{version}: {:?}", report.layers);
        assert!(report.artifacts.iter().any(|artifact| artifact.name == "profile.json"), "{version}");
        let cache = report.cache.as_ref().expect("a timing cache");
        assert!(!cache.warm && cache.after.is_some(), "{version}: {cache:?}");
        // The header is the file's own, untouched.
        let Some(WorkEvent::Built { plan, plan_digest, .. }) =
            job.events.iter().find(|event| matches!(event, WorkEvent::Built { .. }))
        else {
            panic!("{version}: never told")
        };
        assert_eq!(Digest::of(&fs::read(plan).expect("the plan")), *plan_digest);
        assert!(!job.order.scratch.join("engine.plan.part").exists());
    }
}

#[test]
fn a_second_build_is_warm_and_its_card_says_how_it_was_run() {
    let mut job = Job::new("10.5.0");
    job.report();
    let again = job.report();
    let cache = again.cache.as_ref().expect("a timing cache");
    assert!(cache.warm && cache.before.is_some());
    let card: serde_json::Value =
        serde_json::from_slice(&fs::read(job.order.scratch.join("card.json")).expect("the card")).expect("JSON");
    let facts = &card["facts"];
    assert_eq!(facts["timing_cache"]["state"], "warm");
    let argv: Vec<&str> = facts["argv"].as_array().expect("a list").iter().filter_map(|arg| arg.as_str()).collect();
    assert!(argv.contains(&"--skipInference") && argv.contains(&"--profilingVerbosity=detailed"), "{argv:?}");
    assert!(facts["build_s"].as_f64().is_some_and(|seconds| seconds > 0.0), "{facts}");
}

#[test]
fn what_a_preparation_wrote_down_calibrates_as_a_cache_of_the_version_that_runs() {
    for (version, header) in [("8.6.1", "TRT-8601-EntropyCalibration2"), ("10.5.0", "TRT-100500-EntropyCalibration2")] {
        let mut job = Job::new(version);
        let document = br#"{"source": "of", "calibration": {"image": 0.007874016}, "layers": []}"#;
        let given = job.folder.path().join("model.preparation.json");
        fs::write(&given, document).expect("a file");
        job.order.calibration = Some(given);
        job.order.spec.calibration = Some(Digest::of(document));
        job.order.spec.precision = Precision::Int8;
        job.report();
        let card = job.events.iter().find_map(|event| match event {
            WorkEvent::Built { card, .. } => Some(fs::read_to_string(card).expect("the card")),
            _ => None,
        });
        let made = job.order.scratch.join("calibration-of-preparation.cache");
        assert!(card.expect("a card").contains(&format!("--calib={}", made.display())), "{version}");
        assert_eq!(fs::read_to_string(made).expect("the cache"), format!("{header}\nimage: 3c010204\n"));
    }
    let mut job = Job::new("10.5.0");
    let given = job.folder.path().join("model.preparation.json");
    fs::write(&given, br#"{"layers": []}"#).expect("a file");
    job.order.calibration = Some(given);
    job.order.spec.calibration = Some(Digest::of(b"{}"));
    job.order.spec.precision = Precision::Int8;
    let (class, message) = job.failure();
    assert!(class == FailureClass::Model && message.contains("found no ranges"), "{message}");
}

#[test]
fn failures_come_with_class_and_words_and_leave_no_plan() {
    let cases: [(Phase, Behaviour, FailureClass, &str); 6] = [
        (Phase::Build, Behaviour::ParseError { node: "c0".into() }, FailureClass::Model, "c0"),
        (Phase::Build, Behaviour::OutOfMemory { requested_bytes: 9 << 30 }, FailureClass::Resource, "memory"),
        (Phase::Build, Behaviour::EmptyEngine, FailureClass::Model, "m.onnx"),
        (Phase::Build, Behaviour::Crash, FailureClass::Infrastructure, "m.onnx"),
        (Phase::Load, Behaviour::WrongDevice { plan: (8, 0) }, FailureClass::Model, "8.0"),
        (Phase::Load, Behaviour::NanOutputs, FailureClass::Model, "NaN"),
    ];
    for (phase, behaviour, class, words) in cases {
        let mut job = Job::new("10.16.0");
        let what = format!("{behaviour:?}");
        job.rule(phase, behaviour);
        let (found, message) = job.failure();
        assert!(message.contains(words), "{what}: {found:?} {message}");
        assert_eq!(found, class, "{what}: {message}");
        assert_eq!(job.built(), 0, "{what}");
        assert!(!job.order.scratch.join("engine.plan.part").exists(), "{what}");
    }
}

#[test]
fn what_ran_on_another_board_does_not_count() {
    let (own, far) = (board_of("h100-sxm"), board_of("a100-sxm4-80gb").gpu());
    // Another specimen of the same kind: only its UUID tells, which versions before 10.0 do not print.
    let twin = Gpu { uuid: "GPU-0badc0de-0000-4000-8000-000000000001".into(), ..own.gpu() };
    for version in ["8.5.1", "8.6.1", "10.5.0", "11.1.0"] {
        for other in [&far, &twin] {
            let told_apart = other.name != own.name || !version.starts_with('8');
            let building = Selects { building: Some(other.clone()), ..Selects::default() };
            let loading = Selects { loading: Some(other.clone()), ..Selects::default() };
            for selects in [building, loading] {
                let mut job = Job::new(version);
                job.scenario(|scenario| scenario.selects = selects.clone());
                if !told_apart {
                    assert_eq!(job.run(), RunEnd::Succeeded, "{version}: {:?}", job.events.last());
                    continue;
                }
                let (class, message) = job.failure();
                assert_eq!(class, FailureClass::Infrastructure, "{version}: {message}");
                for words in [&other.name, own.name, "not on the leased"] {
                    assert!(message.contains(words), "{version}: no {words} in {message}");
                }
                let uuids = [&other.uuid, &own.uuid()].map(|uuid| message.contains(uuid.as_str()));
                assert_eq!(uuids, [!version.starts_with('8'), true], "{version}: {message}");
                assert_eq!(job.built(), 0, "{version}: nothing is stored");
                assert!(!job.order.scratch.join("engine.plan.part").exists(), "{version}");
                let measured = job.events.iter().any(|event| matches!(event, WorkEvent::Done { .. }));
                assert!(!measured, "{version}: {:?}", job.events);
            }
        }
    }
}

#[test]
fn a_failure_on_another_board_says_nothing_of_the_model() {
    let mut job = Job::new("10.16.0");
    job.rule(Phase::Build, Behaviour::OutOfMemory { requested_bytes: 9 << 30 });
    job.scenario(|scenario| scenario.selects.building = Some(board_of("t4").gpu()));
    let (class, message) = job.failure();
    assert!(class == FailureClass::Infrastructure && message.contains("Tesla T4"), "{class:?} {message}");
}

#[test]
fn a_stored_plan_is_measured_on_the_leased_board_or_not_at_all() {
    let mut job = Job::new("10.5.0");
    assert_eq!(job.run(), RunEnd::Succeeded);
    job.order.kind = WorkKind::Benchmark;
    job.order.plan = Some(job.order.scratch.join("engine.plan"));
    job.report();
    job.scenario(|scenario| scenario.selects.loading = Some(board_of("t4").gpu()));
    let (class, message) = job.failure();
    assert!(
        class == FailureClass::Infrastructure && message.contains("trtexec ran on Tesla T4"),
        "{class:?} {message}"
    );
}

#[test]
fn a_log_that_names_no_device_is_told_in_the_report() {
    for version in ["8.6.1", "10.5.0"] {
        let mut job = Job::new(version);
        job.scenario(|scenario| scenario.selects.unsaid = true);
        let report = job.report();
        let told: Vec<_> = report.findings.iter().filter(|finding| finding.code == "device-unconfirmed").collect();
        let [told] = &told[..] else { panic!("{version}: {:?}", report.findings) };
        assert!(told.message.contains("does not say"), "{told:?}");
        assert!(told.message.contains(&board_of("h100-sxm").uuid()), "{told:?}");
    }
}

#[test]
fn a_hang_that_ignores_sigterm_ends_the_job() {
    let mut job = Job::new("10.5.0");
    job.rule(Phase::Build, Behaviour::Hang);
    job.limits.silence = Duration::from_millis(600);
    let (class, message) = job.failure();
    assert_eq!(class, FailureClass::Infrastructure, "{message}");
}

#[test]
fn wrong_outputs_are_kept_only_when_asked_for() {
    let mut job = Job::new("10.5.0");
    job.rule(Phase::Load, Behaviour::WrongOutputs);
    let (class, message) = job.failure();
    assert!(class == FailureClass::Model && message.contains("outputs are wrong"), "{message}");
    job.order.allow_inaccurate = true;
    assert!(!job.report().accurate);
}

#[test]
fn streams_are_swept_and_a_missing_recorder_is_told() {
    let mut job = Job::new("8.5.3");
    job.order.measure = MeasureAsk { streams: vec![1, 2, 4, 8], trace: true, ..MeasureAsk::default() };
    let report = job.report();
    let sweep = report.streams.as_ref().expect("a sweep");
    assert_eq!(sweep.points.iter().map(|point| point.streams).collect::<Vec<_>>(), [1, 2, 4, 8]);
    assert!(sweep.knee.is_some_and(|knee| knee > 1) && sweep.best.is_some(), "{sweep:?}");
    let traced = report.artifacts.iter().any(|artifact| artifact.name == "timeline.nsys-rep");
    assert!(traced || codes(&report).contains(&"no-trace"), "{:?}", report.findings);
}

#[test]
fn several_builds_keep_the_fastest() {
    let mut job = Job::new("10.16.0");
    job.scenario(|scenario| scenario.timing.between_builds = 0.2);
    job.order.builds = 3;
    let report = job.report();
    let selection = report.selection.as_ref().expect("three builds");
    assert_eq!((selection.builds.len(), job.built()), (3, 1));
    let fastest = selection.builds.iter().min_by(|a, b| a.median_ms.total_cmp(&b.median_ms)).expect("three");
    assert!(fastest.kept && fastest.plan_digest == report.plan.digest);
}

#[test]
fn what_a_version_cannot_do_is_refused_before_anything_runs() {
    let mut job = Job::new("11.1.0");
    job.order.spec.precision = planforge_types::Precision::Fp16;
    let (class, message) = job.failure();
    assert_eq!(class, FailureClass::Model, "{message}");
    assert!(!Path::new(&job.order.scratch.join("engine.plan")).exists());
}

#[test]
fn dynamic_shapes_are_measured_at_both_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = models::dynamic_rows(&folder.path().join("rows.onnx"));
    let mut job = Job::of("10.5.0", model, folder);
    let rows = |min, opt, max| {
        let dims = vec![DimRange { min, opt, max }, DimRange { min: 16, opt: 16, max: 16 }];
        OptimizationProfile { inputs: BTreeMap::from([("x".to_owned(), dims)]) }
    };
    job.order.spec.profiles = vec![rows(1, 4, 8), rows(8, 16, 32)];
    let report = job.report();
    let told: Vec<_> =
        report.points.iter().map(|p| (p.profile, p.at, p.shapes["x"][0], p.latency_ms.is_some())).collect();
    use ShapePoint::{Max, Min, Opt};
    assert_eq!(
        told,
        [
            (0, Min, 1, true),
            (0, Opt, 4, true),
            (0, Max, 8, true),
            (1, Min, 8, true),
            (1, Opt, 16, true),
            (1, Max, 32, true)
        ],
        "{:?}",
        report.findings
    );
    assert!(job.folder.path().exists());
}
