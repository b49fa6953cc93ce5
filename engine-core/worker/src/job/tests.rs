//! Whole jobs on a compiler made for tests: its plans hold the model's path and it runs the reference operators, so
//! its outputs are right unless it is told to spoil them.

use super::*;
use planforge_backend::{
    Cancel, CompileRequest, CompiledPlan, Compiler, Events, LoadOptions, Meter, Window, WindowSamples,
};
use planforge_device::{cpu, telemetry};
use planforge_graph::{
    interpreter,
    ir::{Graph, Tensor},
};
use planforge_report::{LayerTime, Report, card::EngineCard};
use planforge_types::{
    BackendError, BuildSpec, Digest, ElementType, EngineKey, FailureClass, HostTensor, NamedTensors, Port, Sku,
    Toolchain,
    fingerprint::DiscoveredDevice,
    order::{MeasureAsk, PrepareOrder, WorkEvent, WorkKind, WorkOrder},
    preparation::{Kind, PrepareAsk, Target},
};
use std::{
    cell::Cell,
    fs, io,
    path::{Path, PathBuf},
    time::Instant,
};

mod baselines;
mod given;
mod oracle;

/// What the compiler does wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// Every output is this much off.
    Offset(f32),
    NotANumber,
    Refuse,
    Panic,
    NoLayers,
}

thread_local! {
    /// First value of what was timed last.
    static TIMED: Cell<f32> = const { Cell::new(0.0) };
}

struct TestCompiler(Fault);

impl Compiler for TestCompiler {
    fn backend(&self) -> &'static str {
        "native"
    }

    fn toolchains(&self, _: &DiscoveredDevice) -> Vec<Toolchain> {
        vec![toolchain()]
    }

    fn check(&self, _: &CompileRequest) -> Result<(), BackendError> {
        match self.0 {
            Fault::Refuse => Err(BackendError::new(FailureClass::Resource, "needs 9 GiB").with_hint("try h100-sxm")),
            _ => Ok(()),
        }
    }

    fn compile(&self, request: &CompileRequest, events: &dyn Events, _: &Cancel) -> Result<CompiledPlan, BackendError> {
        assert_ne!(self.0, Fault::Panic, "a bug");
        for step in 0..1000 {
            events.progress("tactics", step as f32 / 1000.0, "conv");
        }
        let path = request.scratch.join("engine.plan");
        fs::write(&path, request.model.to_str().unwrap()).unwrap();
        Ok(CompiledPlan { path, facts: serde_json::json!({ "steps": 3 }), ..CompiledPlan::default() })
    }

    fn recognises(&self, _: &[u8]) -> bool {
        true
    }

    fn load(&self, plan: &Path, options: &LoadOptions) -> Result<Box<dyn Meter>, BackendError> {
        assert_eq!(options.threads, Some(1));
        let model = planforge_onnx::Model::open(fs::read_to_string(plan).unwrap().as_ref()).unwrap();
        let graph = planforge_import::import(&model, None).unwrap();
        Ok(Box::new(TestMeter { graph, inputs: NamedTensors::new(), fault: self.0 }))
    }
}

struct TestMeter {
    graph: Graph,
    inputs: NamedTensors,
    fault: Fault,
}

impl TestMeter {
    fn port(&self, name: &str, id: planforge_graph::ir::ValueId) -> Port {
        let shape = self.graph.static_shape(id).unwrap().iter().map(|size| Some(*size as u64)).collect();
        Port { name: name.into(), element: self.graph.value(id).element, shape }
    }
}

impl Meter for TestMeter {
    fn inputs(&self) -> Vec<Port> {
        self.graph.inputs.iter().map(|id| self.port(&self.graph.value(*id).name, *id)).collect()
    }

    fn outputs(&self) -> Vec<Port> {
        self.graph.outputs.iter().map(|output| self.port(&output.name, output.value)).collect()
    }

    fn bind(&mut self, inputs: &NamedTensors) -> Result<(), BackendError> {
        self.inputs = inputs.clone();
        Ok(())
    }

    fn run(&mut self) -> Result<NamedTensors, BackendError> {
        let inputs = self.inputs.iter().map(|(name, t)| (name.clone(), Tensor::try_from(t.clone()).unwrap())).collect();
        let outputs = interpreter::execute(&self.graph, &inputs).unwrap();
        let spoil = |tensor: &Tensor| {
            let mut values = tensor.values::<f32>().unwrap().into_owned();
            match self.fault {
                Fault::Offset(offset) => values.iter_mut().step_by(2).for_each(|value| *value += offset),
                Fault::NotANumber => values[0] = f32::NAN,
                _ => {}
            }
            HostTensor::from(&Tensor::from_vec(tensor.shape().to_vec(), values).unwrap())
        };
        Ok(outputs.iter().map(|(name, tensor)| (name.clone(), spoil(tensor))).collect())
    }

    fn window(&mut self, window: Window) -> Result<WindowSamples, BackendError> {
        let mut latency_ms = Vec::new();
        let bound = self.inputs.values().next().map(|tensor| Tensor::try_from(tensor.clone()).unwrap());
        TIMED.set(bound.map_or(0.0, |tensor| tensor.values::<f32>().unwrap()[0]));
        for _ in 0..window.iterations {
            let began = Instant::now();
            self.run()?;
            latency_ms.push(began.elapsed().as_secs_f64() * 1e3);
        }
        Ok(WindowSamples { latency_ms })
    }

    fn layers(&mut self, iterations: u32) -> Result<Vec<LayerTime>, BackendError> {
        if self.fault == Fault::NoLayers {
            return Err(BackendError::new(FailureClass::Infrastructure, "no profiler"));
        }
        assert!(iterations >= 1);
        let layer = LayerTime {
            name: "all".into(),
            kind: "graph".into(),
            tactic: "reference".into(),
            median_ms: 1.0,
            flops: 1,
            bytes: 1,
            ..LayerTime::default()
        };
        Ok(vec![layer])
    }

    fn memory_bytes(&self) -> u64 {
        4096
    }
}

fn toolchain() -> Toolchain {
    Toolchain { backend: "native".into(), version: "1".into(), components: Default::default() }
}

/// A job on the digits model.
struct Fixture {
    _scratch: tempfile::TempDir,
    order: WorkOrder,
    events: Vec<WorkEvent>,
}

impl Fixture {
    fn new() -> Self {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits");
        let model = examples.join("digits.onnx");
        let model_digest = Digest::of(&fs::read(&model).unwrap());
        let scratch = tempfile::tempdir().unwrap();
        let sku: Sku = "cpu-x86-64-v2".parse().unwrap();
        let spec = BuildSpec { threads: Some(1), ..BuildSpec::default() };
        let (fingerprint, _) = cpu::detect(&cpu::host_facts());
        let order = WorkOrder {
            kind: WorkKind::Build,
            job: "job-1".into(),
            attempt: 2,
            agent: "here".into(),
            engine_key: EngineKey::new(&model_digest, &sku, &toolchain(), &spec),
            model,
            model_name: "digits.onnx".into(),
            model_digest,
            graph_digest: None,
            structure_digest: None,
            sku,
            toolchain: toolchain(),
            spec,
            fingerprint: serde_json::to_value(fingerprint).unwrap(),
            scratch: scratch.path().to_owned(),
            cache: None,
            cache_origin: None,
            prepared: None,
            prepare: None,
            prepared_from: None,
            ceilings: None,
            oracles: None,
            plan: None,
            built_for: None,
            eval: None,
            inputs: None,
            baselines: Vec::new(),
            calibration: None,
            plugins: Vec::new(),
            builds: 1,
            measure: MeasureAsk::default(),
            limit_ms: 0,
            measure_budget_ms: 200,
            strict_measure_budget: false,
            allow_inaccurate: false,
            simulated: false,
            trace: None,
        };
        Self { _scratch: scratch, order, events: Vec::new() }
    }

    fn eval(mut self) -> Self {
        self.order.eval = Some(self.order.model.with_file_name("digits-test.npz"));
        self
    }

    fn run(&mut self, fault: Fault) -> RunEnd {
        self.run_until(fault, &mut || Ok(()))
    }

    fn run_until(&mut self, fault: Fault, wait: &mut dyn FnMut() -> io::Result<()>) -> RunEnd {
        let compilers: Vec<Box<dyn Compiler>> = vec![Box::new(TestCompiler(fault))];
        let mut events = Vec::new();
        let end = run(
            &self.order,
            &compilers,
            &telemetry::for_device,
            &mut |event| events.push(event),
            wait,
            &Cancel::default(),
        );
        self.events = events;
        end
    }

    fn report(&self) -> Report {
        match self.events.last() {
            Some(WorkEvent::Done { report, accurate, .. }) => {
                let report: Report = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
                assert_eq!(report.accurate, *accurate);
                report
            }
            other => panic!("no report but {other:?}"),
        }
    }

    fn failure(&self) -> (FailureClass, String, String) {
        match self.events.last() {
            Some(WorkEvent::Failed { class, message, hint, .. }) => (*class, message.clone(), hint.clone()),
            other => panic!("no failure but {other:?}"),
        }
    }

    fn was_built(&self) -> bool {
        self.events.iter().any(|event| matches!(event, WorkEvent::Built { .. }))
    }
}

#[test]
fn a_build_goes_all_the_way_and_its_accuracy_is_the_trainings() {
    let mut job = Fixture::new().eval();
    assert_eq!(job.run(Fault::None), RunEnd::Succeeded);
    let report = job.report();
    assert!(
        report.accurate && report.findings.iter().all(|finding| finding.code != "unverified"),
        "{:?}",
        report.findings
    );
    let numerics = report.numerics.as_ref().unwrap();
    assert!(numerics.passed && numerics.max_error < 1e-6 && numerics.outputs[0].elements == 10, "{numerics:?}");

    let training = fs::read(job.order.model.with_file_name("training.json")).unwrap();
    let training: serde_json::Value = serde_json::from_slice(&training).unwrap();
    let accuracy = report.accuracy.as_ref().unwrap();
    assert_eq!(Some(accuracy.correct), training["test_correct"].as_u64());
    assert_eq!(Some(accuracy.rows), training["test_images"].as_u64());
    assert_eq!(accuracy.reference_top1, Some(accuracy.top1));

    assert_eq!((report.batch, report.engine_memory_bytes, report.layers.len()), (1, 4096, 1));
    assert!(report.build_ms.is_some() && report.peak_memory_bytes.is_some());
    let phases: Vec<&str> = report.phases_ms.keys().map(String::as_str).collect();
    assert_eq!(phases, ["compile", "measure", "upload", "verify"]);
    assert_eq!((report.provenance.job.as_str(), report.provenance.attempt), ("job-1", 2));
}

#[test]
fn every_printed_number_is_derived_again_from_the_report_alone() {
    let mut job = Fixture::new();
    job.run(Fault::None);
    let report = job.report();
    assert_eq!(report.samples.decode().unwrap().len() as u64, report.latency_ms.count);
    assert!(report.is_consistent().unwrap());
    assert_eq!(report.throughput_per_s, report.batch as f64 * 1e3 / report.latency_ms.mean);
}

#[test]
fn the_plan_is_told_with_digest_and_card_before_anything_is_timed() {
    let mut job = Fixture::new();
    let mut waited = false;
    job.run_until(Fault::None, &mut || {
        waited = true;
        Ok(())
    });
    assert!(waited);
    let position = |wanted: fn(&WorkEvent) -> bool| job.events.iter().position(wanted).unwrap();
    let built = position(|event| matches!(event, WorkEvent::Built { .. }));
    assert!(built < position(|event| matches!(event, WorkEvent::WindowBegin)));
    let WorkEvent::Built { plan, plan_digest, plan_bytes, card } = &job.events[built] else { unreachable!() };
    let bytes = fs::read(plan).unwrap();
    assert_eq!((Digest::of(&bytes), bytes.len() as u64), (*plan_digest, *plan_bytes));
    let card: EngineCard = serde_json::from_slice(&fs::read(card).unwrap()).unwrap();
    assert_eq!((card.plan.digest, card.engine_key), (*plan_digest, job.order.engine_key));
    assert_eq!(card.facts["steps"], 3);
    assert_eq!(job.report().plan.digest, *plan_digest);
}

#[test]
fn phases_are_told_in_order_and_progress_is_thinned_out() {
    let mut job = Fixture::new();
    job.run(Fault::None);
    let mut phases = Vec::new();
    let mut compile_events = 0;
    for event in &job.events {
        if let WorkEvent::Progress { phase, fraction, detail } = event {
            assert!((0.0..=1.0).contains(fraction));
            if phase == "compile" {
                compile_events += 1;
                assert!(detail.is_empty() || detail == "tactics: conv", "{detail}");
            }
            if phases.last() != Some(phase) {
                phases.push(phase.clone());
            }
        }
    }
    assert_eq!(phases, ["compile", "verify", "upload", "measure"]);
    assert!((50..=110).contains(&compile_events), "{compile_events} events for 1000 steps");
}

#[test]
fn wrong_outputs_are_an_error_that_is_never_uploaded() {
    for fault in [Fault::Offset(0.5), Fault::NotANumber] {
        let mut job = Fixture::new();
        assert_eq!(job.run(fault), RunEnd::Failed);
        let (class, message, hint) = job.failure();
        assert_eq!(class, FailureClass::Model);
        assert!(message.contains("outputs are wrong") && hint.contains("--allow-inaccurate"), "{message} {hint}");
        assert!(!job.was_built());
    }
}

#[test]
fn wrong_outputs_may_be_allowed_and_the_report_says_so() {
    let mut job = Fixture::new().eval();
    job.order.allow_inaccurate = true;
    assert_eq!(job.run(Fault::Offset(5.0)), RunEnd::Succeeded);
    let report = job.report();
    assert!(!report.accurate && !report.numerics.as_ref().unwrap().passed);
    assert!(report.accuracy.as_ref().unwrap().top1 < 0.9, "{:?}", report.accuracy);
    assert!(report.findings.iter().any(|finding| finding.code == "inaccurate"));
}

#[test]
fn failures_keep_their_class_and_hint() {
    let mut job = Fixture::new();
    job.run(Fault::Refuse);
    assert_eq!(job.failure(), (FailureClass::Resource, "needs 9 GiB".into(), "try h100-sxm".into()));

    let mut job = Fixture::new();
    job.run(Fault::Panic);
    let (class, message, _) = job.failure();
    assert!(class == FailureClass::Infrastructure && message.contains("a bug"), "{message}");

    let mut job = Fixture::new();
    job.order.toolchain.backend = "tensorrt".into();
    job.run(Fault::None);
    assert!(job.failure().1.contains("no backend 'tensorrt'"));

    let mut job = Fixture::new();
    job.order.fingerprint = serde_json::json!({ "kind": "abacus" });
    job.run(Fault::None);
    assert!(job.failure().1.contains("device description"));

    let mut job = Fixture::new();
    job.run_until(Fault::None, &mut || Err(io::ErrorKind::BrokenPipe.into()));
    let (class, message, _) = job.failure();
    assert!(class == FailureClass::Infrastructure && message.contains("did not take the plan"), "{message}");
}

#[test]
fn an_unsuitable_test_set_does_not_fail_the_engine() {
    let mut job = Fixture::new();
    job.order.eval = Some(job.order.model.clone());
    assert_eq!(job.run(Fault::None), RunEnd::Succeeded);
    let report = job.report();
    let finding = report.findings.iter().find(|finding| finding.code == "test-set").unwrap();
    assert!(finding.message.contains("no readable .npz"), "{}", finding.message);
}

#[test]
fn outputs_without_a_reference_are_still_searched_for_nan() {
    let mut job = Fixture::new();
    let plan = job.order.scratch.join("given.plan");
    fs::write(&plan, job.order.model.to_str().unwrap()).unwrap();
    job.order.kind = WorkKind::Benchmark;
    job.order.plan = Some(plan);
    job.order.model = job.order.scratch.join("gone.onnx");
    assert_eq!(job.run(Fault::None), RunEnd::Succeeded, "nothing is known to be wrong");
    let report = job.report();
    assert!(report.accurate && report.findings.iter().any(|finding| finding.code == "unverified"));

    job.run(Fault::NotANumber);
    let (class, message, _) = job.failure();
    assert!(class == FailureClass::Model && message.contains("1 values that are NaN or infinite"), "{message}");

    job.order.allow_inaccurate = true;
    assert_eq!(job.run(Fault::NotANumber), RunEnd::Succeeded);
    let report = job.report();
    let numerics = report.numerics.as_ref().unwrap();
    assert!(!report.accurate && numerics.skipped.is_some());
    assert_eq!(numerics.outputs.iter().map(|output| output.not_finite).sum::<u64>(), 1);
}

#[test]
fn an_engine_without_layer_times_is_measured_all_the_same() {
    let mut job = Fixture::new();
    assert_eq!(job.run(Fault::NoLayers), RunEnd::Succeeded);
    assert!(job.report().findings.iter().any(|finding| finding.code == "no-layers"));
}

#[test]
fn a_benchmark_measures_the_given_plan_and_marks_a_foreign_one() {
    let mut job = Fixture::new();
    let plan = job.order.scratch.join("given.plan");
    fs::write(&plan, job.order.model.to_str().unwrap()).unwrap();
    job.order.kind = WorkKind::Benchmark;
    job.order.plan = Some(plan);
    job.order.built_for = Some("cpu-x86-64-v3".parse().unwrap());
    assert_eq!(job.run(Fault::None), RunEnd::Succeeded);
    assert!(!job.was_built());
    let report = job.report();
    let foreign = report.foreign.as_ref().unwrap();
    assert_eq!((foreign.built_for.as_str(), foreign.measured_on.as_str()), ("cpu-x86-64-v3", "cpu-x86-64-v2"));
    assert_eq!(report.build_ms, None);

    job.order.plan = None;
    job.run(Fault::None);
    assert!(job.failure().1.contains("names none"));
}

#[test]
fn cancelling_ends_the_job_before_its_next_step() {
    let mut job = Fixture::new();
    let cancel = Cancel::default();
    let compilers: Vec<Box<dyn Compiler>> = vec![Box::new(TestCompiler(Fault::None))];
    let mut events = Vec::new();
    let mut wait = || {
        cancel.cancel();
        Ok(())
    };
    let end = run(&job.order, &compilers, &telemetry::for_device, &mut |event| events.push(event), &mut wait, &cancel);
    job.events = events;
    assert_eq!(end, RunEnd::Failed);
    assert!(job.failure().1.contains("cancelled") && !job.events.iter().any(|e| matches!(e, WorkEvent::WindowBegin)));
}

#[test]
fn an_order_that_only_compiles_verifies_hands_over_and_measures_nothing() {
    let mut job = Fixture::new();
    job.order.kind = WorkKind::Compile;
    assert_eq!(job.run(Fault::None), RunEnd::Succeeded);
    assert!(job.was_built());
    assert!(matches!(job.events.last(), Some(WorkEvent::Compiled { accurate: true })), "{:?}", job.events.last());
    let measured = |event: &&WorkEvent| matches!(event, WorkEvent::WindowBegin | WorkEvent::Done { .. });
    assert_eq!(job.events.iter().find(measured).map(|event| format!("{event:?}")), None);
    // What is wrong is no engine, measured or not.
    let mut wrong = Fixture::new();
    wrong.order.kind = WorkKind::Compile;
    assert_eq!(wrong.run(Fault::Offset(0.5)), RunEnd::Failed);
    assert!(!wrong.was_built());
    // This backend makes nothing ready for a device elsewhere, and says so.
    let mut elsewhere = Fixture::new();
    elsewhere.order.kind = WorkKind::Ahead;
    assert_eq!(elsewhere.run(Fault::None), RunEnd::Failed);
    assert!(elsewhere.failure().1.contains("without the device"), "{:?}", elsewhere.failure());
}

/// An order to prepare the digits model as `ask` says, on the archive at `data`.
fn preparing(ask: PrepareAsk, data: &[PathBuf]) -> Fixture {
    let mut job = Fixture::new();
    job.order.kind = WorkKind::Prepare;
    job.order.toolchain = crate::preparation::toolchain();
    job.order.prepare = Some(PrepareOrder { ask, data: data.to_vec(), eval: None });
    job
}

#[test]
fn an_order_that_prepares_leaves_a_model_and_says_what_became_of_every_layer() {
    let data = Fixture::new().order.model.with_file_name("digits-test.npz");
    let ask = PrepareAsk { data: vec![Digest::of(b"rows")], ..PrepareAsk::new(Kind::Int8, Target::Any) };
    let mut job = preparing(ask.clone(), std::slice::from_ref(&data));
    assert_eq!(job.run(Fault::None), RunEnd::Succeeded);
    let Some(WorkEvent::Made { files, document, .. }) = job.events.last() else { panic!("{:?}", job.events.last()) };
    let [file] = &files[..] else { panic!("{files:?}") };
    assert_eq!((file.name.as_str(), Digest::of(&fs::read(&file.path).unwrap())), ("model.onnx", file.digest));
    let told: serde_json::Value = serde_json::from_slice(&fs::read(&document.path).unwrap()).unwrap();
    assert_eq!(told["source"], job.order.model_digest.to_string());
    assert_eq!(
        (&told["prepared"], &told["data"][0]),
        (&file.digest.to_string().into(), &ask.data[0].to_string().into())
    );
    assert_eq!(told["coverage"]["layers_lowered"], 4, "{told:#}");
    // The same comes to the same bytes: who asks for it elsewhere has the same engine.
    let first = file.digest;
    let mut again = preparing(ask.clone(), &[data]);
    again.run(Fault::None);
    let Some(WorkEvent::Made { files, .. }) = again.events.last() else { panic!("{:?}", again.events.last()) };
    assert_eq!(files[0].digest, first);
    // Neither data nor revision is guessed at.
    let refused = |mut job: Fixture| {
        assert_eq!(job.run(Fault::None), RunEnd::Failed);
        job.failure()
    };
    let folder = tempfile::tempdir().unwrap();
    let archive = |name: &str, shape: Vec<usize>, value: f32| {
        let path = folder.path().join(name);
        let bytes = value.to_le_bytes().repeat(shape.iter().product());
        let image = HostTensor { element: ElementType::F32, shape, bytes };
        planforge_identity::npz::write(&path, &[("image".to_owned(), image)].into()).unwrap();
        path
    };
    let zeros = archive("zeros.npz", vec![4, 1, 8, 8], 0.0);
    let (class, message, hint) = refused(preparing(ask.clone(), std::slice::from_ref(&zeros)));
    assert_eq!(class, FailureClass::Model);
    assert!(message.contains("is 0 everywhere") && hint.contains("samples like those"), "{message} {hint}");
    let nan = archive("nan.npz", vec![4, 1, 8, 8], f32::NAN);
    assert!(refused(preparing(ask.clone(), &[nan])).1.contains("a number that is none"));
    let wide = archive("wide.npz", vec![4, 3, 8, 8], 1.0);
    assert!(refused(preparing(ask.clone(), &[zeros, wide])).1.contains("another type or shape"));
    let missing = folder.path().join("none.npz");
    assert_eq!(refused(preparing(ask.clone(), &[missing])).0, FailureClass::Model);
    let mut other = preparing(ask, &[]);
    other.order.toolchain.version = "999".into();
    let (class, message, _) = refused(other);
    assert!(class == FailureClass::Infrastructure && message.contains("revision 999"), "{message}");
}
