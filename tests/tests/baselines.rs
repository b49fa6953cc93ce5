//! Other runtimes beside an engine: a program of the agent's host, and the model that a request brings for it.

use planforge_tests::{models, process};
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

/// Tells what its module holds, and sleeps.
const PROGRAM: &str = r#"#!/usr/bin/env python3
import json, sys, time
order = json.load(open(sys.argv[1]))
module = open(order["module"]).read() if order["module"] else "none"
print(json.dumps({"ready": {"library": "sleeper 1", "settings": {"module": module}}}), flush=True)
for line in sys.stdin:
    latencies = []
    for _ in range(json.loads(line)["window"]["iterations"]):
        began = time.perf_counter()
        time.sleep(0.002)
        latencies.append((time.perf_counter() - began) * 1e3)
    print(json.dumps({"latencies_ms": latencies}), flush=True)
"#;

struct Host {
    home: TempDir,
    programs: PathBuf,
}

impl Host {
    fn new() -> Self {
        let home = tempfile::Builder::new().prefix("planforge-test-").tempdir().expect("a temporary folder");
        let programs = home.path().join("programs");
        fs::create_dir(&programs).unwrap();
        fs::set_permissions(&programs, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(programs.join("sleeper"), PROGRAM).unwrap();
        fs::set_permissions(programs.join("sleeper"), fs::Permissions::from_mode(0o755)).unwrap();
        Self { home, programs }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = process::command(self.home.path());
        command.args(arguments).arg("--data").arg(self.home.path().join("data"));
        command.env("PLANFORGE_BASELINES", &self.programs);
        command
    }

    fn build(&self, extra: &[&str]) -> Value {
        let model = models::digits();
        let base = ["build", model.to_str().unwrap(), "--threads", "1", "--json"];
        let document = process::run_json(self.command(&[&base[..], extra].concat()));
        document["jobs"][0].clone()
    }

    fn module(&self, text: &str) -> String {
        let path: &Path = &self.home.path().join("module");
        fs::write(path, text).unwrap();
        format!("sleeper={}", path.display())
    }
}

#[test]
fn a_program_of_the_host_stands_beside_the_engine_and_answers_who_asks_for_it_again() {
    let host = Host::new();
    let first = host.build(&["--beside", &host.module("weights")]);
    assert_eq!(first["state"], "succeeded", "{first:#}");
    let baselines = first["report"]["baselines"].as_array().unwrap_or_else(|| panic!("{first:#}"));
    assert_eq!((&baselines[0]["name"], &baselines[0]["settings"]["module"]), (&"sleeper".into(), &"weights".into()));
    assert!(baselines[0]["latency_ms"]["min"].as_f64().is_some_and(|ms| ms >= 2.0), "{:#}", baselines[0]);
    let again = host.build(&["--beside", &host.module("weights")]);
    assert_eq!((&again["cached"], &again["report"]["baselines"]), (&true.into(), &first["report"]["baselines"]));
    // Whoever asks for none has what is there; another module is another measurement, of the same plan.
    assert_eq!(host.build(&[])["cached"], true);
    let other = host.build(&["--beside", &host.module("other weights")]);
    assert_eq!((&other["cached"], &other["plan_digest"]), (&false.into(), &first["plan_digest"]), "{other:#}");
    assert_eq!(other["report"]["baselines"][0]["settings"]["module"], "other weights");
    let shown = process::run(host.command(&["report", first["id"].as_str().unwrap()]));
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("sleeper, sleeper 1 (module weights): "), "{shown}");
}

#[test]
fn a_baseline_that_is_not_there_costs_nothing_but_itself_and_a_wrong_name_is_refused() {
    let host = Host::new();
    let job = host.build(&["--beside", "torch-compile"]);
    assert_eq!(job["state"], "succeeded", "{job:#}");
    let findings = job["report"]["findings"].to_string();
    assert!(findings.contains("no-baseline") && findings.contains("knows no baseline torch-compile"), "{findings}");
    for (asked, words) in
        [("Torch Compile", "no name of a baseline"), ("sleeper=", "names no file"), ("sleeper=/nowhere", "/nowhere")]
    {
        let model = models::digits();
        let refused = process::run(host.command(&["build", model.to_str().unwrap(), "--beside", asked]));
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(matches!(refused.status.code(), Some(2 | 3)) && said.contains(words), "{asked}: {refused:?}");
    }
}

#[test]
fn a_plan_is_measured_beside_a_program_without_a_farm() {
    let host = Host::new();
    let model = models::digits();
    let arguments = ["bench", model.to_str().unwrap(), "--threads", "1", "--beside", "sleeper", "--json"];
    let document = process::run_json(host.command(&arguments));
    assert_eq!(document["baselines"][0]["settings"]["module"], "none", "{document:#}");
}
