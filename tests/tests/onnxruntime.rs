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
fn what_the_native_compiler_cannot_build_onnxruntime_does() {
    let Some(home) = home() else { return };
    let model = models::hashed(&home.path().join("hashed.onnx"));
    let build = |extra: &[&str]| {
        let arguments = [&["build", model.to_str().unwrap()], extra].concat();
        let output = process::run(command(home.path(), &arguments));
        let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        (output.status, serde_json::from_str::<Value>(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}")), err)
    };
    let (status, document, said) = build(&[]);
    assert!(status.success(), "{document}{said}");
    let [job] = jobs(&document) else { panic!("{document}") };
    assert_eq!((text(job, "state"), text(&job["report"]["toolchain"], "backend")), ("succeeded", "onnxruntime"));
    let tried = &job["tried"][0];
    assert_eq!(text(&tried["toolchain"], "backend"), "native");
    assert!(text(tried, "message").contains("MurmurHash3"), "{tried}");
    assert!(said.contains("native") && said.contains("cannot build it") && said.contains("onnxruntime"), "{said}");
    let card = process::run_json(command(home.path(), &["inspect", text(job, "plan_path")]));
    assert_eq!(text(&card["built_as"]["toolchain"], "backend"), "onnxruntime", "{card}");
    // Two jobs, linked; the request has succeeded with the second in the first one's place.
    let listed = process::run_json(command(home.path(), &["jobs"]));
    let first = jobs(&listed).iter().find(|other| other["id"] == tried["job"]).expect("the first job");
    assert_eq!((text(first, "state"), text(first, "fallback")), ("failed", text(job, "id")));
    assert_eq!(text(&first["failure"], "reason"), "unsupported");
    assert_ne!(first["engine_key"], job["engine_key"]);
    let requests = process::run_json(command(home.path(), &["requests"]));
    assert!(requests.to_string().contains(r#""state":"succeeded""#), "{requests}");
    let watched = process::run(command(home.path(), &["watch", text(first, "id")]));
    let events = String::from_utf8_lossy(&watched.stdout);
    assert!(watched.status.success() && events.contains(text(job, "id")), "{events}");

    // From then on nothing fails first; who wants no other toolchain hears why there is no engine.
    let (_, again, said) = build(&[]);
    assert_eq!((&jobs(&again)[0]["cached"], &jobs(&again)[0]["engine_key"]), (&Value::Bool(true), &job["engine_key"]));
    assert!(said.contains("cannot build it"), "{said}");
    let listed = process::run_json(command(home.path(), &["jobs"]));
    assert_eq!(jobs(&listed).iter().filter(|job| job["state"] == "failed").count(), 1, "{listed}");
    let (status, _, said) = build(&["--no-fallback"]);
    assert!(!status.success() && said.contains("MurmurHash3") && said.contains("planforge ops"), "{said}");
    // A lock has what was built, which is not outdated for what refused the model.
    let declared = format!("targets = [{}]\n\n[models.hashed]\npath = \"hashed.onnx\"\n", job["sku"]);
    fs::write(home.path().join("planforge.toml"), declared).expect("planforge.toml");
    process::run_json(command(home.path(), &["sync"]));
    let lock = fs::read_to_string(home.path().join("engines.lock")).expect("engines.lock");
    assert!(lock.contains("onnxruntime") && !lock.contains("native"), "{lock}");
    let checked = process::run_json(command(home.path(), &["check", "--strict"]));
    assert_eq!(checked["cells"][0]["state"], "present", "{checked}");
    let fetched = process::run_json(command(home.path(), &["fetch", model.to_str().unwrap(), "-o", "engines"]));
    assert!(fetched.to_string().contains("onnxruntime"), "{fetched}");
}

#[test]
fn a_model_that_no_backend_builds_is_told_the_reasons_of_all() {
    let Some(home) = home() else { return };
    let model = models::unknown_operators(&home.path().join("unknown.onnx"));
    let output = process::run(command(home.path(), &["build", model.to_str().unwrap()]));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    let (native, other) = said.split_once("Quuxify").expect("native names every operator");
    assert!(native.contains("2 toolchains were asked") && native.contains("Frobnicate"), "{said}");
    assert!(other.contains("onnxruntime") && other.contains("Frobnicate"), "{said}");
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

/// Both were measured and compared; where others kept the machine busy, that is what stands in the verdict's way: windows
/// that were disturbed, or so few of them within the budget asked for.
fn told_or_disturbed(pair: &Value) {
    let reason = text(pair, "reason");
    match text(pair, "verdict") {
        "cannot_tell" => {
            let known = ["disturbed", "equally fast", "is not known", "too few windows"];
            assert!(known.iter().any(|words| reason.contains(words)), "{pair:#}")
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
