//! The worker program as an agent starts it, without one: what it does when it is told to build only.

use planforge_backend::CompileRequest;
use planforge_tests::{models, process};
use planforge_types::{BuildSpec, Digest, Toolchain, fingerprint::DiscoveredDevice};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    process::{Child, Stdio},
};

fn start(home: &std::path::Path) -> Child {
    let mut command = process::command(home);
    command.arg("worker").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().expect("the worker starts")
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"))).collect()
}

/// A GPU's engine is built by this process, beside the one that measures it.
#[test]
fn a_worker_that_is_told_to_build_only_leaves_a_plan() {
    let home = tempfile::Builder::new().prefix("planforge-test-").tempdir().expect("a temporary folder");
    let device: DiscoveredDevice = planforge_device::discover(None).pop().expect("the processor is last");
    let scratch = home.path().join("scratch");
    fs::create_dir(&scratch).unwrap();
    let model = models::digits();
    let request = CompileRequest {
        model_digest: Digest::of(&fs::read(&model).unwrap()),
        model,
        sku: device.skus[0].clone(),
        device: device.fingerprint.clone(),
        toolchain: Toolchain { backend: "native".into(), version: "0".into(), components: BTreeMap::new() },
        spec: BuildSpec { threads: Some(1), ..BuildSpec::default() },
        scratch: scratch.clone(),
        cache: None,
        calibration: None,
        plugins: Vec::new(),
    };
    let said = |request: &CompileRequest| {
        let mut worker = start(home.path());
        let order = serde_json::json!({ "backend": "native", "request": request });
        let mut stdin = worker.stdin.take().unwrap();
        writeln!(stdin, "compile {order}").unwrap();
        let mut text = String::new();
        worker.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        drop(stdin);
        (worker.wait().unwrap().success(), lines(&text))
    };
    let (succeeded, events) = said(&request);
    assert!(!succeeded);
    let refusal = &events.last().expect("it says why")["error"];
    let offered = refusal["message"].as_str().unwrap_or_default();
    assert!(offered.contains("native 0"), "another toolchain than the one that is here is refused: {events:?}");
    let request = CompileRequest { toolchain: planforge_cpu::toolchain(), ..request };
    let (succeeded, events) = said(&request);
    let last = events.last().expect("it says something");
    assert!(succeeded, "{last}");
    assert_eq!(last["event"], "compiled", "{last}");
    assert_eq!(last["plan"]["path"], scratch.join("engine.plan").to_str().unwrap());
    assert!(fs::metadata(scratch.join("engine.plan")).unwrap().len() > 1000);
    assert!(events.iter().any(|event| event["event"] == "progress"), "{events:?}");
}
