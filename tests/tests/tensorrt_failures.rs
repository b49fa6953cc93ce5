//! What goes wrong with TensorRT, and what a user is told: class, message, hint, and how often it was tried.

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use planforge_tests::{
    boards::board_of,
    eventually,
    farm::{Farm, Link, id_of},
    fleet::{Host, HostLimits},
    models, process,
    standin::scenario::{Behaviour, Phase, Rule, Selects},
};
use serde_json::Value;
use std::path::{Path, PathBuf};

const SKU: &str = "t4";

struct Case {
    farm: Farm,
    host: Host,
    models: u32,
}

impl Case {
    fn start(limits: HostLimits) -> Self {
        let farm = Farm::start(Link::Loopback);
        let host = Host::start(&farm, SKU, &["10.13.3.9"], limits);
        farm.wait_agents(1);
        Self { farm, host, models: 0 }
    }

    /// A model that nobody has built, told from others by its graph's name.
    fn model(&mut self, graph: &str) -> PathBuf {
        self.models += 1;
        let file = self.farm.path().join(format!("{graph}-{}.onnx", self.models));
        models::named_convolutions(&file, graph, 2, 4, 8, 500 + self.models)
    }

    fn rules(&mut self, rules: Vec<(&str, Phase, Option<u32>, Behaviour)>) {
        let rule =
            |(graph, phase, times, behaviour): (&str, _, _, _)| Rule { graph: graph.into(), phase, times, behaviour };
        self.host.toolchains[0].set_rules(rules.into_iter().map(rule).collect());
    }

    fn submit(&self, model: &Path) -> String {
        id_of(&self.farm.submit(model, &["--sku", SKU])[0])
    }

    /// Attempts with their outcome, oldest first.
    fn attempts(job: &Value) -> Vec<String> {
        let attempts = job["attempts"].as_array().into_iter().flatten();
        attempts.map(|attempt| attempt["outcome"].as_str().unwrap_or("").to_owned()).collect()
    }

    fn detail(&self, id: &str) -> Value {
        self.farm.json(&["jobs", id])["jobs"][0].clone()
    }

    /// Processes of the stand-in that are alive.
    fn tools(&self) -> Vec<i32> {
        let program = self.host.toolchains[0].program();
        process::processes_with(&[program.to_str().expect("UTF-8")])
            .into_iter()
            .filter(|pid| {
                std::fs::read_link(format!("/proc/{pid}/exe"))
                    .is_ok_and(|exe| exe.ends_with("trtexec") || exe.ends_with("standin-trtexec"))
            })
            .collect()
    }
}

#[test]
fn every_failure_has_its_class_words_and_number_of_tries() {
    let mut case = Case::start(HostLimits::default());
    let node = || "c1".to_owned();
    let failures: Vec<(&str, Phase, Behaviour, &str, &str, bool)> = vec![
        ("parse", Phase::Build, Behaviour::ParseError { node: node() }, "model", "c1", false),
        ("operator", Phase::Build, Behaviour::UnsupportedOperator { operator: "Conv".into() }, "model", "Conv", false),
        ("tactic", Phase::Build, Behaviour::NoImplementation { node: node() }, "model", "c1", false),
        (
            "memory-tactic",
            Phase::Build,
            Behaviour::NoImplementationForMemory { node: node(), requested_mib: 30_000 },
            "resource",
            "memory",
            false,
        ),
        (
            "memory",
            Phase::Build,
            Behaviour::OutOfMemory { requested_bytes: 17_179_869_184 },
            "resource",
            "16384 MiB",
            false,
        ),
        (
            "memory-run",
            Phase::Load,
            Behaviour::OutOfMemory { requested_bytes: 17_179_869_184 },
            "resource",
            "memory",
            false,
        ),
        ("calibration", Phase::Build, Behaviour::CalibrationMissing, "model", "calibrat", false),
        ("shape", Phase::Load, Behaviour::BadShape { input: "x".into() }, "model", "x", false),
        ("wrong", Phase::Load, Behaviour::WrongOutputs, "model", "outputs are wrong", false),
        ("nan", Phase::Load, Behaviour::NanOutputs, "model", "NaN", false),
        ("crash", Phase::Build, Behaviour::Crash, "infrastructure", "signal 6", true),
        ("empty", Phase::Build, Behaviour::EmptyEngine, "model", "empty engine", false),
        ("version", Phase::Load, Behaviour::VersionTag { plan_tag: 239 }, "", "version", false),
        ("device", Phase::Load, Behaviour::WrongDevice { plan: (8, 6) }, "", "8.6", false),
        // An export cut off in the middle is no fault of the model.
        ("garbage", Phase::Load, Behaviour::GarbageExports, "infrastructure", "output 'y1'", true),
    ];
    let rules =
        failures.iter().map(|(graph, phase, behaviour, ..)| (*graph, *phase, None, behaviour.clone())).collect();
    // Longer names first: a rule is for every graph whose name holds its own.
    let mut rules: Vec<(&str, Phase, Option<u32>, Behaviour)> = rules;
    rules.sort_by_key(|(graph, ..)| std::cmp::Reverse(graph.len()));
    case.rules(rules);
    let ids: Vec<String> = failures
        .iter()
        .map(|(graph, ..)| {
            let model = case.model(graph);
            case.submit(&model)
        })
        .collect();
    let mut problems = Vec::new();
    for ((graph, _, _, class, part, retried), id) in failures.iter().zip(&ids) {
        case.farm.wait_ended(id);
        let job = case.detail(id);
        let failure = &job["failure"];
        let (got_class, message) = (failure["class"].as_str().unwrap_or(""), failure["message"].as_str().unwrap_or(""));
        let hint = failure["hint"].as_str().unwrap_or("");
        let tries = Case::attempts(&job).len();
        let told = format!("{graph}: [{got_class}] {message} / {hint} ({tries} tries)");
        if job["state"] != "failed" || !got_class.contains(class) || !message.contains(part) || message.is_empty() {
            problems.push(told.clone());
        }
        if hint.is_empty() || (tries > 1) != *retried {
            problems.push(format!("hint or tries: {told}"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));

    // Wrong and NaN outputs are never fetched, unless somebody insists.
    for graph in ["wrong", "nan"] {
        let index = failures.iter().position(|f| f.0 == graph).expect("a failure");
        let job = case.detail(&ids[index]);
        let digest = job["model"]["digest"].as_str().expect("a digest").to_owned();
        let fetch = process::run(case.farm.cli(&["fetch", &digest, "--sku", SKU, "-o", "x.plan"]));
        assert_eq!(fetch.status.code(), Some(3), "{graph}: {fetch:?}");
    }
    let model = case.model("wrong");
    let id = id_of(&case.farm.submit(&model, &["--sku", SKU, "--allow-inaccurate"])[0]);
    let job = case.farm.wait_ended(&id);
    assert_eq!((&job["state"], &job["accurate"]), (&"succeeded".into(), &false.into()), "{job}");
    let path = model.to_str().expect("UTF-8");
    let fetch = |extra: &[&str]| {
        let mut arguments = vec!["fetch", path, "--sku", SKU, "-o", "x.plan"];
        arguments.extend(extra);
        process::run(case.farm.cli(&arguments)).status.code()
    };
    assert_eq!(fetch(&[]), Some(6));
    assert_eq!(fetch(&["--allow-inaccurate"]), Some(0));

    // And after all that, the agent does what it should.
    let model = case.model("fine");
    let id = case.submit(&model);
    let job = case.farm.wait_ended(&id);
    assert_eq!(job["state"], "succeeded", "{job}");
}

#[test]
fn what_nobody_knows_and_what_the_disk_lost_is_never_remembered() {
    let mut case = Case::start(HostLimits::default());
    let unheard = Behaviour::Fails { text: "Error[99]: something that nobody has seen".into() };
    let full = Behaviour::Fails { text: "[TRT] write: No space left on device".into() };
    case.rules(vec![
        ("unheard", Phase::Build, None, unheard),
        ("full", Phase::Build, None, full),
        ("cut", Phase::Load, None, Behaviour::CutPlan),
    ]);
    let parts = [("unheard", "something that nobody has seen"), ("full", "No space left"), ("cut", "no whole plan")];
    let submitted: Vec<(PathBuf, String)> = parts
        .iter()
        .map(|(graph, _)| {
            let model = case.model(graph);
            let id = case.submit(&model);
            (model, id)
        })
        .collect();
    for ((graph, part), (_, id)) in parts.iter().zip(&submitted) {
        case.farm.wait_ended(id);
        let job = case.detail(id);
        let message = job["failure"]["message"].as_str().unwrap_or("");
        assert_eq!((&job["state"], &job["failure"]["class"]), (&"failed".into(), &"infrastructure".into()), "{job}");
        assert!(message.contains(part), "{graph}: {message}");
        // Whoever asks for its report is told the same, and its log says it too.
        let report = process::run(case.farm.cli(&["report", id]));
        let said = String::from_utf8_lossy(&report.stderr).into_owned();
        assert!(report.status.code() == Some(3) && said.contains("failed") && said.contains(part), "{graph}: {said}");
        let compare = process::run(case.farm.cli(&["compare", id, id]));
        assert!(String::from_utf8_lossy(&compare.stderr).contains(part), "{graph}: {compare:?}");
        let log = String::from_utf8_lossy(&process::run(case.farm.cli(&["logs", id])).stdout).into_owned();
        assert!(log.contains("agent: failed: ") && !log.contains("exit code 1"), "{graph}: {log}");
        let first = log.lines().next().unwrap_or("");
        assert!(first.contains(" failed [infrastructure]: ") && first.contains(part), "{graph}: {log}");
    }
    // The disk has room again, and the same requests are built.
    case.rules(Vec::new());
    for (model, _) in &submitted {
        let id = case.submit(model);
        let job = case.farm.wait_ended(&id);
        assert_eq!(job["state"], "succeeded", "{job}");
    }
}

#[test]
fn what_a_gpu_cannot_do_is_refused_at_submission() {
    let farm = Farm::start(Link::Loopback);
    let _new = Host::start(&farm, "h100-pcie", &["8.4.1.5", "10.3.0.26"], HostLimits::default());
    let _old = Host::start(&farm, SKU, &["10.13.3.9"], HostLimits::default());
    farm.wait_agents(2);
    let model = models::convolutions(&farm.path().join("m.onnx"), 1, 4, 8, 700);
    let model = model.to_str().expect("UTF-8");
    let refused = |arguments: &[&str], parts: &[&str]| {
        let mut all = vec!["submit", model];
        all.extend(arguments);
        let submit = process::run(farm.cli(&all));
        let said = String::from_utf8_lossy(&submit.stderr).into_owned();
        assert_eq!(submit.status.code(), Some(6), "{arguments:?}: {said}");
        all.push("--dry-run");
        let dry_run = process::run(farm.cli(&all));
        let shown = String::from_utf8_lossy(&dry_run.stdout).into_owned();
        assert!(parts.iter().all(|part| said.contains(part)), "{arguments:?}: {said}");
        assert!(shown.contains("be refused"), "{arguments:?}: {shown}");
    };
    refused(
        &["--sku", "h100-pcie", "--toolchain", "tensorrt=8.4"],
        &["compute capability 9.0 (Hopper)", "8.5.1 and newer do", "--toolchain tensorrt=10.3.0"],
    );
    refused(&["--sku", SKU, "--precision", "bf16"], &["precision bf16", "7.5 (Turing)", "ask for fp16"]);
    refused(&["--sku", SKU, "--precision", "fp8"], &["precision fp8", "7.5 (Turing)"]);
    refused(&["--sku", SKU, "--hardware-compatibility", "ampere+"], &["ampere+", "same_compute_capability"]);
    // Who names no version has one that knows the GPU.
    let id = id_of(&farm.submit(Path::new(model), &["--sku", "h100-pcie"])[0]);
    let job = farm.wait_ended(&id);
    assert_eq!(job["state"], "succeeded", "{job}");
}

#[test]
fn a_run_on_another_board_stores_nothing_and_is_tried_again() {
    let mut case = Case::start(HostLimits::default());
    let far = board_of("h100-sxm").gpu();
    case.host.toolchains[0].set_selects(Selects { building: Some(far.clone()), ..Selects::default() });
    let model = case.model("elsewhere");
    let id = case.submit(&model);
    case.farm.wait_ended(&id);
    let job = case.detail(&id);
    let failure = &job["failure"];
    assert_eq!((&job["state"], &failure["class"]), (&"failed".into(), &"infrastructure".into()), "{job}");
    let message = failure["message"].as_str().unwrap_or("");
    for words in [far.name.as_str(), &far.uuid, case.host.board.name, &case.host.board.uuid()] {
        assert!(message.contains(words), "no {words} in {message}");
    }
    assert_eq!(Case::attempts(&job), ["failed"; 3], "{job}");
    let digest = job["model"]["digest"].as_str().expect("a digest");
    let fetch = process::run(case.farm.cli(&["fetch", digest, "--sku", SKU, "-o", "x.plan"]));
    assert_eq!(fetch.status.code(), Some(3), "nothing is stored: {fetch:?}");
    // The board is back where it was: the same request is built.
    case.host.toolchains[0].set_selects(Selects::default());
    let id = case.submit(&model);
    let job = case.farm.wait_ended(&id);
    assert_eq!(job["state"], "succeeded", "{job}");
}

#[test]
fn a_tool_that_hangs_is_killed_within_the_limit_and_the_agent_lives_on() {
    let mut case = Case::start(HostLimits { job_limit_ms: 4_000, ..HostLimits::default() });
    case.rules(vec![("hang", Phase::Build, None, Behaviour::Hang)]);
    let model = case.model("hang");
    let id = case.submit(&model);
    eventually("the tool hangs", || if case.tools().is_empty() { Err("not yet".into()) } else { Ok(()) });
    let job = case.farm.wait_ended(&id);
    assert_eq!(job["state"], "failed", "{job}");
    assert!(case.tools().is_empty(), "the hanging tool is gone");
    let model = case.model("fine");
    let id = case.submit(&model);
    let job = case.farm.wait_ended(&id);
    assert_eq!(job["state"], "succeeded", "{job}");
    assert!(case.host.process.is_running());
}

#[test]
fn a_killed_agent_leaves_no_tool_behind_and_its_job_is_built_again() {
    let mut case = Case::start(HostLimits::default());
    case.rules(vec![("slow", Phase::Build, Some(1), Behaviour::Hang)]);
    let model = case.model("slow");
    let id = case.submit(&model);
    // Not before it hangs: one that dies earlier leaves the hanging to the next attempt.
    let mark = case.host.toolchains[0].program().with_file_name("rule-0.count");
    eventually("the tool hangs", || if mark.exists() { Ok(()) } else { Err("not yet".into()) });
    let tool = eventually("the tool builds", || case.tools().first().copied().ok_or("not yet".to_owned()));
    case.host.process.kill_9();
    eventually("the tool died with its agent", || match kill(Pid::from_raw(tool), None::<Signal>) {
        Err(_) => Ok(()),
        Ok(()) if case.tools().is_empty() => Ok(()),
        Ok(()) => Err(format!("{tool} is alive")),
    });
    case.host.restart(&case.farm, HostLimits::default());
    let job = case.farm.wait_ended(&id);
    assert_eq!(job["state"], "succeeded", "{job}");
    // The agent that comes back tells that the attempt is over: nobody waits for the lease to run out.
    let detail = case.detail(&id);
    assert_eq!(Case::attempts(&detail), ["failed", "succeeded"], "{detail}");
    let failure = &detail["attempts"][0]["failure"];
    assert_eq!(failure["class"], "infrastructure", "{detail}");
    assert!(
        failure["message"].as_str().is_some_and(|message| message.contains("ended while the job ran")),
        "{failure}"
    );
}

#[test]
fn a_flood_of_log_ends_neither_the_job_nor_the_memory() {
    let mut case = Case::start(HostLimits::default());
    case.rules(vec![("flood", Phase::Build, None, Behaviour::HugeLog { bytes: 1 << 28 })]);
    let model = case.model("flood");
    let id = case.submit(&model);
    let job = case.farm.wait_ended(&id);
    assert_eq!(job["state"], "succeeded", "{job}");
    let log = process::run(case.farm.cli(&["logs", &id])).stdout;
    assert!(log.len() < 16 << 20, "the kept log is bounded: {} bytes", log.len());
}

#[test]
fn a_toolchain_that_does_not_start_is_not_offered() {
    let farm = Farm::start(Link::Loopback);
    let mut broken = board_of(SKU).scenario("10.13.3.9");
    let library = Behaviour::MissingLibrary { library: "libnvinfer.so.10".into() };
    broken.rules = vec![Rule { graph: String::new(), phase: Phase::Start, times: None, behaviour: library }];
    let sound = board_of(SKU).scenario("10.3.0.26");
    let _host = Host::start_with(&farm, SKU, vec![broken, sound], HostLimits::default());
    farm.wait_agents(1);
    let devices = farm.json(&["devices"]);
    let offers = devices["devices"][0]["toolchains"].as_array().expect("toolchains").clone();
    let versions: Vec<&str> = offers.iter().filter_map(|offer| offer["version"].as_str()).collect();
    assert!(versions.len() == 1 && versions[0].starts_with("10.3"), "{versions:?}");
    let model = models::convolutions(&farm.path().join("m.onnx"), 1, 4, 8, 600);
    let arguments = ["submit", model.to_str().expect("UTF-8"), "--sku", SKU, "--toolchain", "tensorrt=10.13"];
    let refused = process::run(farm.cli(&arguments));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(6) && said.contains("10.3"), "says what there is: {said}");
}
