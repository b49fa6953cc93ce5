//! The portability matrix: for real over the instruction-set levels of this machine's processor, and over a scripted fleet.

use planforge_device::CpuLevel;
use planforge_tests::{
    farm::{Farm, Link},
    fleet::{Host, HostLimits},
    models, process,
};
use serde_json::Value;
use std::fs;

/// The cell of the only matrix in a document.
fn cell<'a>(document: &'a Value, built_for: &str, measured_on: &str) -> &'a Value {
    let cells = document["matrices"][0]["cells"].as_array().unwrap_or_else(|| panic!("no cells in {document}"));
    let found = cells.iter().find(|cell| cell["built_for"] == built_for && cell["measured_on"] == measured_on);
    found.unwrap_or_else(|| panic!("no cell of {built_for} on {measured_on} in {document}"))
}

#[test]
fn levels_of_this_processor_are_measured_against_each_other() {
    let levels = CpuLevel::detect();
    let [low, .., high] = levels[..] else {
        planforge_skipped::skipped("a processor of two instruction-set levels");
        return;
    };
    let (low, high) = (low.name(), high.name());
    let farm = Farm::start(Link::Loopback);
    let _agent = farm.start_agent("one", "one", None);
    farm.wait_agents(1);
    let model = models::convolutions(&farm.path().join("net.onnx"), 2, 16, 14, 77);
    let path = model.to_str().expect("UTF-8");
    let skus = format!("{low},{high}");

    // Nothing is built by looking.
    let output = process::run(farm.cli(&["matrix", path, "--sku", &skus]));
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("--measure"), "{output:?}");

    let document = farm.json(&["matrix", path, "--sku", &skus, "--measure", "--require", "memory=1MiB"]);
    let jobs = farm.json(&["jobs", "--all"])["jobs"].clone();
    // Two builds, which measure, and what was built for the low level on the high one; the other way round is refused.
    let asked = |job: &Value| job["requires"] == serde_json::json!(["memory=1MiB"]);
    assert!(jobs.as_array().is_some_and(|jobs| jobs.len() >= 3 && jobs.iter().all(asked)), "{jobs}");
    for sku in [low, high] {
        assert_eq!(cell(&document, sku, sku)["state"], "own", "{document}");
    }
    // What came of it depends on the processor and on who else uses it; that it was measured does not.
    let foreign = cell(&document, low, high);
    assert!(["valid", "suboptimal", "undecided"].contains(&foreign["state"].as_str().unwrap_or("")), "{foreign}");
    assert!(foreign["median_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{foreign}");
    assert_eq!(foreign["differences"][0], format!("instruction set: {low} and {high}"));
    // This processor could run it; a device of that kind need not.
    let refused = cell(&document, high, low);
    assert_eq!(refused["state"], "refused", "{refused}");
    assert!(refused["reason"].as_str().is_some_and(|why| why.contains("does not promise")), "{refused}");
    assert_eq!(document["matrices"][0]["simulated"], false);
    let classes = &document["classes"];
    assert_eq!(classes["classes"].as_array().map(Vec::len), Some(0), "{classes}");
    assert!(classes["pairs"][0]["lacks"].to_string().contains("is refused on"), "{classes}");

    // Looked up again it is the same, by the model's name too, and nothing is measured.
    let jobs = farm.json(&["jobs", "--all"])["total"].clone();
    let again = farm.json(&["matrix", "net.onnx", "--sku", &skus]);
    assert_eq!(cell(&again, low, high), foreign);
    assert_eq!(farm.json(&["jobs", "--all"])["total"], jobs);
}

#[test]
fn a_scripted_fleet_has_cells_that_run_cells_that_are_refused_and_no_classes() {
    const SKUS: [&str; 3] = ["t4", "a100-pcie-40gb", "a100-sxm4-80gb"];
    let farm = Farm::start(Link::Loopback);
    let _hosts = SKUS.map(|sku| Host::start(&farm, sku, &["10.13.3.9"], HostLimits::default()));
    farm.wait_agents(3);
    let model = models::convolutions(&farm.path().join("net.onnx"), 2, 8, 12, 411);
    let path = model.to_str().expect("UTF-8");
    let file = farm.path().join("matrix.html");
    let file = file.to_str().expect("UTF-8");
    let document = farm.json(&["matrix", path, "--sku", &SKUS.join(","), "--measure", "-o", file]);
    for (built_for, measured_on) in [(SKUS[1], SKUS[2]), (SKUS[2], SKUS[1])] {
        let found = cell(&document, built_for, measured_on);
        assert!(found["loss"]["low"].is_number() && found["loss"]["high"].is_number(), "{found}");
        assert!(found["differences"].to_string().contains("memory MiB: "), "{found}");
    }
    let refused = cell(&document, SKUS[0], SKUS[1]);
    assert_eq!(refused["state"], "refused", "{refused}");
    assert!(refused["reason"].as_str().is_some_and(|why| why.contains("compute capability")), "{refused}");
    assert!(refused["differences"].to_string().contains("compute capability: 7.5 and 8.0"), "{refused}");
    let pairs = document["classes"]["pairs"].to_string();
    assert!(pairs.contains("simulated figures are no evidence"), "{pairs}");
    let page = fs::read_to_string(file).expect("the matrix as a file");
    assert!(page.contains("SIMULATED") && page.contains("refused"), "{page}");
}
