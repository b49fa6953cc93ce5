//! A sweep as one request and one document, and an engine under load, by the real binary on this machine's processor.

use planforge_device::CpuLevel;
use planforge_tests::{
    farm::{Farm, Link},
    models, process,
};
use serde_json::Value;
use std::{fs, path::Path};

fn level() -> Option<&'static str> {
    let found = CpuLevel::detect().first().map(|level| level.name());
    if found.is_none() {
        planforge_skipped::skipped("a processor with a known instruction-set level");
    }
    found
}

#[test]
fn a_sweep_is_one_request_whose_report_tells_each_axis() {
    let Some(sku) = level() else { return };
    let farm = Farm::start(Link::Loopback);
    let _agent = farm.start_agent("one", "one", None);
    farm.wait_agents(1);
    let model = models::convolutions(&farm.path().join("net.onnx"), 2, 16, 14, 78);
    let path = model.to_str().expect("UTF-8");
    let sweep = ["--sweep", "threads=1,2", "--sweep", "level=0,3", "--tag", "base"];
    let built = farm.json(&[&["submit", path, "--sku", sku, "--wait"][..], &sweep].concat());
    assert_eq!(built["jobs"].as_array().map(Vec::len), Some(4), "{built}");
    let request = built["request_id"].as_str().expect("a request");
    let html = farm.path().join("sweep.html");
    let document = farm.json(&["report", "--request", request, "-o", html.to_str().expect("UTF-8")]);
    let told = &document["sweep"];
    assert_eq!(told["axes"], serde_json::json!(["level", "threads"]), "{told}");
    assert_eq!((told["points"].as_array().map(Vec::len), told["lines"].as_array().map(Vec::len)), (Some(4), Some(4)));
    assert!(told["missing"].as_array().is_some_and(|missing| missing.len() == 4), "no baseline was asked for: {told}");
    assert!(fs::read_to_string(html).expect("the document").contains("The sweep"));
    let text = process::run(farm.cli(&["report", "--request", request]));
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("sweep over 4 reports: level, threads") && text.contains("no speed-up"), "{text}");

    // Engines of a tag are what later ones are held against, each of its own spec.
    let junit = farm.path().join("gate.xml");
    let junit = junit.to_str().expect("UTF-8");
    let again = farm.json(&["submit", path, "--sku", sku, "--wait", "--force", "--sweep", "threads=1,2"]);
    let request = again["request_id"].as_str().expect("a request");
    let gated = farm.cli(&[
        "compare",
        "--request",
        request,
        "--baseline-tag",
        "base",
        "--gate",
        "size=1000",
        "--gate",
        "memory=1000",
        "--junit",
        junit,
        "--json",
    ]);
    let document = process::run_json(gated);
    assert_eq!(document["bases"], serde_json::json!([null, null, 0, 1]), "{document}");
    for (base, other) in [(0, 2), (1, 3)] {
        assert_eq!(document["rows"][base]["threads"], document["rows"][other]["threads"], "{document}");
    }
    let xml = fs::read_to_string(junit).expect("test results");
    assert!(xml.contains("tests=\"4\" failures=\"0\"") && xml.contains("plan size"), "{xml}");
    let refused = process::run(farm.cli(&["compare", "--request", request, "--baseline-tag", "none", "--gate", "5"]));
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
}

#[test]
fn builds_and_streams_are_axes_of_one_engine() {
    let Some(sku) = level() else { return };
    let farm = Farm::start(Link::Loopback);
    let _agent = farm.start_agent("one", "one", None);
    farm.wait_agents(1);
    let model = models::convolutions(&farm.path().join("net.onnx"), 1, 8, 12, 83);
    let path = model.to_str().expect("UTF-8");
    let sweep = ["--threads", "1", "--sweep", "builds=1,2", "--sweep", "streams=1,2"];
    let built = farm.json(&[&["submit", path, "--sku", sku, "--wait"][..], &sweep].concat());
    assert_eq!(built["jobs"].as_array().map(Vec::len), Some(1), "nothing is built twice: {built}");
    let document = farm.json(&["report", "--request", built["request_id"].as_str().expect("a request")]);
    let (told, report) = (&document["sweep"], &document["reports"][0]);
    let trials = report["lottery"]["builds"].as_array().expect("two builds");
    let of_builds = told["lines"].as_array().expect("lines").iter().find(|line| line["axis"] == "builds");
    let of_builds = of_builds.unwrap_or_else(|| panic!("no line along builds: {told}"));
    let medians: Vec<&Value> = of_builds["points"]
        .as_array()
        .expect("points")
        .iter()
        .map(|index| &told["points"][index.as_u64().expect("an index") as usize]["median_ms"])
        .collect();
    assert_eq!((trials.len(), medians.len(), medians[0]), (2, 2, &trials[0]["median_ms"]), "{told}");
    // Cores that others hold make fewer points, which is said.
    let streams = told["axes"].as_array().is_some_and(|axes| axes.contains(&"streams".into()));
    assert!(streams || report["findings"].to_string().contains("that nobody else has"), "{report}");
    let refused = process::run(farm.cli(&["submit", path, "--sku", sku, "--sweep", "cuda-graph=on,off"]));
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

fn bench(home: &Path, model: &Path, more: &[&str]) -> Value {
    let mut command = process::command(home);
    command.arg("bench").arg(model).args(["--threads", "1", "--json"]).args(more);
    process::run_json(command)["load"].clone()
}

#[test]
fn an_engine_serves_requests_that_arrive_by_themselves() {
    if level().is_none() {
        return;
    }
    let home = tempfile::tempdir().expect("a temporary folder");
    let model = models::convolutions(&home.path().join("net.onnx"), 2, 8, 12, 79);
    let open = bench(home.path(), &model, &["--rate", "40/s", "--duration", "1s"]);
    let point = &open["points"][0];
    assert_eq!(point["rate_per_s"], 40.0, "{open}");
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("no number in {open}"));
    assert!(number(&point["requests"]) + number(&point["unserved"]) > 15.0, "{point}");
    assert!(number(&point["latency_ms"]["p99"]) >= number(&point["service_ms"]["median"]), "{point}");

    let closed = bench(home.path(), &model, &["--concurrency", "2", "--duration", "1s"]);
    assert!(closed["points"][0]["rate_per_s"].is_null() && closed["concurrency"] == 2, "{closed}");

    // What no processor holds is no answer; a second each is little for the rest, and says so by its own figures.
    let none = bench(home.path(), &model, &["--objective", "median=0.001us", "--duration", "1s"]);
    assert!(none["objective"]["rate_per_s"].is_null() && number(&none["objective"]["capacity_per_s"]) > 0.0, "{none}");

    let soak = bench(home.path(), &model, &["--soak", "3s"]);
    let slices = soak["soak"]["slices"].as_array().unwrap_or_else(|| panic!("no slices in {soak}"));
    assert!(!slices.is_empty() && slices.iter().all(|slice| slice["resident_bytes"].as_u64() > Some(0)), "{soak}");
    assert!(soak["findings"].to_string().contains("soak-short") || slices.len() >= 8, "{soak}");
}
