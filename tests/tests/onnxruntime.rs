//! ONNX Runtime beside the native engine. Where no libonnxruntime is found these tests pass without testing anything
//! and say so, unless `PLANFORGE_TEST_ONNXRUNTIME=required`.

use planforge_tests::{models, process};
use serde_json::Value;
use std::{env, fs, path::Path, process::Command};
use tempfile::TempDir;

fn command(home: &Path, arguments: &[&str]) -> Command {
    let mut command = process::command(home);
    // The harness keeps the caller's settings away; this one says where the library is.
    if let Some(library) = env::var_os("PLANFORGE_ONNXRUNTIME") {
        command.env("PLANFORGE_ONNXRUNTIME", library);
    }
    command.args(arguments).arg("--data").arg(home.join("data")).arg("--json");
    command
}

/// A home of its own, where there is a library.
fn home() -> Option<TempDir> {
    let home = tempfile::Builder::new().prefix("planforge-test-").tempdir().expect("a temporary folder");
    let devices = process::run_json(command(home.path(), &["devices"]));
    if devices.to_string().contains("onnxruntime") {
        return Some(home);
    }
    let required = env::var_os("PLANFORGE_TEST_ONNXRUNTIME").is_some_and(|value| value == "required");
    assert!(!required, "no device offers onnxruntime: {devices}");
    planforge_skipped::skipped("no libonnxruntime was found");
    None
}

fn jobs(document: &Value) -> &[Value] {
    document["jobs"].as_array().unwrap_or_else(|| panic!("no jobs in {document}"))
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("no {field} in {value}"))
}

#[test]
fn a_model_becomes_an_onnxruntime_plan_that_is_verified_inspected_and_run() {
    let Some(home) = home() else { return };
    let (model, set) = (models::digits(), models::digits_test_set());
    let (model, set) = (model.to_str().unwrap(), set.to_str().unwrap());
    let arguments = ["build", model, "--toolchain", "onnxruntime", "--eval", set];
    let document = process::run_json(command(home.path(), &arguments));
    let job = &jobs(&document)[0];
    assert_eq!(text(job, "state"), "succeeded", "{job}");
    let report = &job["report"];
    assert_eq!(text(&report["toolchain"], "backend"), "onnxruntime");
    assert_eq!(report["numerics"]["oracle"], "reference operators", "{report}");
    assert_eq!(report["numerics"]["passed"], true, "{report}");
    // The reference itself is held against the runtime, operator by operator.
    let independent = &report["numerics"]["independent"];
    assert_eq!(independent["agrees"], true, "{independent}");
    assert!(text(independent, "runtime").starts_with("onnxruntime "), "{independent}");
    let expected = models::digits_training_facts()["test_top1"].as_f64().expect("a number");
    let accuracy = report["accuracy"]["top1"].as_f64().expect("a number");
    assert!((accuracy - expected).abs() < 1e-9, "{accuracy} {expected}");
    assert!(report["layers"].as_array().is_some_and(|layers| !layers.is_empty()), "{report}");

    let plan = text(job, "plan_path");
    let inspected = process::run_json(command(home.path(), &["inspect", plan]));
    assert_eq!(inspected["built_as"]["model_digest"], job["model"]["digest"], "{inspected}");
    assert_eq!(inspected["built_as"]["toolchain"], report["toolchain"], "{inspected}");
    let outputs = home.path().join("out.npz");
    process::run_json(command(home.path(), &["run", plan, "--input", set, "--output", outputs.to_str().unwrap()]));
    assert!(fs::metadata(outputs).expect("the outputs").len() > 0);

    // The same request again is answered from the store.
    let again = process::run_json(command(home.path(), &arguments));
    assert_eq!(jobs(&again)[0]["cached"], true, "{again}");
}

#[test]
fn native_and_onnxruntime_stand_side_by_side() {
    let Some(home) = home() else { return };
    let model = models::digits();
    let arguments = ["build", model.to_str().unwrap(), "--toolchain", "native", "--toolchain", "onnxruntime"];
    let arguments = [&arguments[..], &["--threads", "1"]].concat();
    let document = process::run_json(command(home.path(), &arguments));
    let jobs = jobs(&document);
    assert_eq!(jobs.len(), 2, "{document}");
    assert!(jobs.iter().all(|job| job["state"] == "succeeded"), "{document}");
    // Of one model the comparison was made once, and both reports tell of it.
    let compared = |job: &Value| job["report"]["numerics"]["independent"]["compared_unix_ms"].clone();
    assert!(compared(&jobs[0]).is_u64() && compared(&jobs[0]) == compared(&jobs[1]), "{document}");
    let names: Vec<&str> = jobs.iter().map(|job| text(job, "id")).collect();
    let comparison = process::run_json(command(home.path(), &["compare", names[0], names[1]]));
    let pair = &comparison["pairs"][0];
    told_or_disturbed(pair);
    assert!(pair["differences"].to_string().contains("toolchain"), "{comparison}");
}

/// Both were measured and compared; where others kept the machine busy, that is what stands in the verdict's way.
fn told_or_disturbed(pair: &Value) {
    let reason = text(pair, "reason");
    match text(pair, "verdict") {
        "cannot_tell" => {
            assert!(["disturbed", "fast", "interval"].iter().any(|word| reason.contains(word)), "{pair:#}")
        }
        _ => assert!(pair["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{pair:#}"),
    }
}

#[test]
fn a_model_is_benched_beside_its_baseline() {
    let Some(home) = home() else { return };
    let model = models::digits();
    let arguments = ["bench", model.to_str().unwrap(), "--threads", "1", "--budget-s", "1"];
    let document = process::run_json(command(home.path(), &[&arguments[..], &["--baseline", "onnxruntime"]].concat()));
    let backend = |report: &str| text(&document[report]["toolchain"], "backend").to_owned();
    assert_eq!((backend("report"), backend("baseline")), ("native".into(), "onnxruntime".into()));
    for report in ["report", "baseline"] {
        assert_eq!(document[report]["spec"]["threads"], 1, "{document}");
        assert_eq!(document[report]["numerics"]["passed"], true, "{document}");
    }
    told_or_disturbed(&document["comparison"]["pairs"][0]);
    let unknown = command(home.path(), &[&arguments[..], &["--baseline", "tensorrt=99"]].concat()).output();
    assert!(!unknown.expect("planforge starts").status.success());
}

#[test]
fn what_onnxruntime_cannot_measure_is_refused_before_anything_is_built() {
    let Some(home) = home() else { return };
    let model = models::digits();
    let model = model.to_str().unwrap();
    for named in ["build", "bench"] {
        let asked = [named, model, "--toolchain", "onnxruntime", "--sweep-streams", "1,2"];
        let output = process::run(command(home.path(), &asked));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(6), "{named}: {output:?}");
        assert!(said.contains("no parallel streams") && said.contains("leave out --sweep-streams"), "{named}: {said}");
    }
    let known = process::run_json(command(home.path(), &["jobs"]));
    assert!(jobs(&known).is_empty(), "nothing was begun: {known}");
}

#[test]
fn onnxruntime_is_measured_beside_a_native_engine_under_one_lease() {
    let Some(home) = home() else { return };
    let model = models::digits();
    let arguments = ["build", model.to_str().unwrap(), "--threads", "1", "--beside", "onnxruntime"];
    let document = process::run_json(command(home.path(), &arguments));
    let report = &document["jobs"][0]["report"];
    let baseline = &report["baselines"][0];
    assert_eq!(baseline["name"], "onnxruntime", "{report:#}");
    assert!(text(baseline, "library").starts_with("onnxruntime "), "{baseline:#}");
    assert!(baseline["relative_rms"].as_f64().is_some_and(|rms| rms < 1e-4), "{baseline:#}");
    assert!(baseline["latency_ms"]["median"].as_f64().is_some_and(|ms| ms > 0.0), "{baseline:#}");
}
