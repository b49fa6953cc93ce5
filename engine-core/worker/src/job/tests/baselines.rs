//! Other runtimes beside the engine: programs by their protocol, and other backends.

use super::*;
use planforge_report::compare::Verdict;
use planforge_types::order::{BaselineAsk, BaselineOrder};
use std::os::unix::fs::PermissionsExt as _;

/// A backend of another name, whose engines are this test's, too.
struct OtherBackend;

impl Compiler for OtherBackend {
    fn backend(&self) -> &'static str {
        "other"
    }
    fn toolchains(&self, _device: &DiscoveredDevice) -> Vec<Toolchain> {
        vec![Toolchain { backend: "other".into(), version: "7".into(), components: Default::default() }]
    }
    fn check(&self, request: &CompileRequest) -> Result<(), BackendError> {
        TestCompiler(Fault::None).check(request)
    }
    fn compile(
        &self,
        request: &CompileRequest,
        events: &dyn Events,
        cancel: &Cancel,
    ) -> Result<CompiledPlan, BackendError> {
        TestCompiler(Fault::None).compile(request, events, cancel)
    }
    fn recognises(&self, _head: &[u8]) -> bool {
        false
    }
    fn load(&self, plan: &Path, options: &LoadOptions) -> Result<Box<dyn Meter>, BackendError> {
        TestCompiler(Fault::None).load(plan, options)
    }
}

impl Fixture {
    /// With a baseline whose program is this Python text; `order` is its order.
    fn beside(mut self, name: &str, program: Option<&str>) -> Self {
        let program = program.map(|text| {
            let path = self.order.scratch.join(name);
            let head = "#!/usr/bin/env python3\nimport json, sys, time\norder = json.load(open(sys.argv[1]))\n\
                        say = lambda answer: print(json.dumps(answer), flush=True)\n";
            fs::write(&path, format!("{head}{text}")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path
        });
        self.order.measure.baselines.push(BaselineAsk { name: name.into(), module: None });
        self.order.baselines.push(BaselineOrder { name: name.into(), program, problem: None, module: None });
        self
    }

    fn refusal(&mut self) -> String {
        assert_eq!(self.run(Fault::None), RunEnd::Succeeded, "{:?}", self.events.last());
        let report = self.report();
        assert!(report.baselines.is_empty(), "{:?}", report.baselines);
        let finding = report.findings.iter().find(|finding| finding.code == "no-baseline").expect("it is told");
        finding.message.clone()
    }
}

const HONEST: &str = r#"
assert order["protocol"] == 1 and order["device"] == "cpu" and order["precision"] == "fp32" and order["module"] is None
open(order["model"], "rb").read(4), open(order["inputs"], "rb").read(4)
say({"ready": {"library": "sleeper 1.0", "settings": {"mode": order["name"]}}})
for line in sys.stdin:
    latencies = []
    for _ in range(json.loads(line)["window"]["iterations"]):
        began = time.perf_counter()
        time.sleep(0.002)
        latencies.append((time.perf_counter() - began) * 1e3)
    say({"latencies_ms": latencies})
open("ended", "w")
"#;

#[test]
fn a_program_is_measured_as_the_engine_is_and_compared_with_it() {
    let mut job = Fixture::new().beside("sleeper", Some(HONEST));
    assert_eq!(job.run(Fault::None), RunEnd::Succeeded, "{:?}", job.events.last());
    let report = job.report();
    let [baseline] = &report.baselines[..] else { panic!("{:?}", report.findings) };
    assert_eq!((baseline.library.as_str(), baseline.settings["mode"].as_str()), ("sleeper 1.0", "sleeper"));
    assert!(baseline.latency_ms.min >= 2.0, "{:?}", baseline.latency_ms);
    assert!(baseline.windows.len() >= 5 && baseline.latency_ms.count >= 20);
    assert_eq!(report.contradiction().unwrap(), None);
    // The digits take microseconds: no disturbance makes them as slow as that.
    let pair = report.against(baseline).unwrap();
    let told = matches!(pair.verdict, Verdict::Faster | Verdict::CannotTell | Verdict::Ambiguous);
    assert!(told && pair.ratio.is_none_or(|ratio| ratio < 1.0), "{pair:?}");
    let words = report.baseline_words(baseline);
    assert!(
        words.starts_with("sleeper, sleeper 1.0 (mode sleeper): ") && words.contains("outputs not compared"),
        "{words}"
    );
    assert!(job.order.scratch.join("baseline-sleeper/ended").exists(), "it was asked to end, and could");
}

#[test]
fn another_backend_is_a_baseline_whose_outputs_are_held_against_the_engines() {
    let mut job = Fixture::new().beside("other", None);
    let compilers: Vec<Box<dyn Compiler>> = vec![Box::new(TestCompiler(Fault::None)), Box::new(OtherBackend)];
    let mut events = Vec::new();
    let send = &mut |event| events.push(event);
    let end = run(&job.order, &compilers, &telemetry::for_device, send, &mut || Ok(()), &Cancel::default());
    job.events = events;
    assert_eq!(end, RunEnd::Succeeded);
    let report = job.report();
    let [baseline] = &report.baselines[..] else { panic!("{:?}", report.findings) };
    assert_eq!((baseline.library.as_str(), baseline.relative_rms), ("other 7", Some(0.0)));
    assert_eq!(report.contradiction().unwrap(), None);
}

#[test]
fn programs_that_fail_or_lie_cost_the_report_nothing_but_themselves() {
    let ready = "say({\"ready\": {\"library\": \"x\"}})\n";
    for (name, text, said) in [
        ("refuses", "say({\"error\": \"no such module\"})".to_owned(), "no such module"),
        ("dies", "sys.exit(\"torch is not installed\")".to_owned(), "torch is not installed"),
        ("babbles", "print(\"Downloading...\", flush=True); time.sleep(60)".to_owned(), "it answered 'Downloading...'"),
        ("early", "say({\"latencies_ms\": [1.0]}); time.sleep(60)".to_owned(), "before it was ready"),
        (
            "short",
            format!("{ready}sys.stdin.readline(); say({{\"latencies_ms\": [1.0] * 1000000}})"),
            "it gave 1000000",
        ),
        (
            "negative",
            format!(
                "{ready}n = json.loads(sys.stdin.readline())['window']['iterations']; say({{\"latencies_ms\": [-1.0] * n}})"
            ),
            "above 0",
        ),
        ("leaves", format!("{ready}sys.exit(3)"), "exit status: 3"),
        (
            "outputs",
            "say({\"ready\": {\"library\": \"x\", \"outputs\": \"/nowhere.npz\"}})".to_owned(),
            "cannot be read",
        ),
    ] {
        let refusal = Fixture::new().beside(name, Some(&text)).refusal();
        assert!(refusal.contains(said) && refusal.contains(name), "{name}: {refusal}");
    }
    let mut both = Fixture::new().beside("jax", None).beside("torch", None);
    both.refusal();
    let told = both.report().findings.into_iter().filter(|finding| finding.code == "no-baseline");
    assert_eq!(told.count(), 2, "each has its reason");
    let unknown = Fixture::new().beside("jax", None).refusal();
    assert!(unknown.contains("knows no baseline jax") && unknown.contains("PLANFORGE_BASELINES"), "{unknown}");
    let mut unsafe_one = Fixture::new().beside("torch", None);
    unsafe_one.order.baselines[0].problem = Some("torch may be written by others".into());
    assert!(unsafe_one.refusal().contains("written by others"));
}

#[test]
fn a_cancelled_job_does_not_wait_for_a_program() {
    let mut job = Fixture::new().beside("slow", Some("time.sleep(600)"));
    let compilers: Vec<Box<dyn Compiler>> = vec![Box::new(TestCompiler(Fault::None))];
    let cancel = Cancel::default();
    let (mut events, stop) = (Vec::new(), cancel.clone());
    let send = &mut |event: WorkEvent| {
        if matches!(&event, WorkEvent::Progress { phase, .. } if phase == "baselines") {
            stop.cancel();
        }
        events.push(event);
    };
    let end = run(&job.order, &compilers, &telemetry::for_device, send, &mut || Ok(()), &cancel);
    job.events = events;
    assert_eq!((end, job.failure().0), (RunEnd::Failed, BackendError::cancelled("").class));
}
