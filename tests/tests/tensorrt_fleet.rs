//! The user's fleet: T4, two A100s, two H100s, each an agent process of its own with a stand-in TensorRT, and the real
//! CPU of this machine beside them. Nothing of the five GPUs is there: every report says so.

use planforge_tests::{
    boards::BOARDS,
    farm::{Farm, Link, id_of},
    fleet::{Host, HostLimits},
    models, process,
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::{fs, process::Output};

/// Another TensorRT on each host, old to new, as fleets have them.
const VERSIONS: [&str; 5] = ["8.6.1.6", "10.3.0.26", "10.13.3.9", "10.16.1.11", "10.13.3.9"];

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("no text {field} in {value}"))
}

#[test]
fn one_submit_builds_for_five_boards_and_the_cpu_and_each_gets_its_own() {
    let farm = Farm::start(Link::Loopback);
    let hosts: Vec<Host> = BOARDS
        .iter()
        .zip(VERSIONS)
        .map(|(board, version)| Host::start(&farm, board.sku, &[version], HostLimits::default()))
        .collect();
    let _cpu = farm.start_agent("cpu", "host-cpu", None);
    farm.wait_agents(6);

    let model = models::convolutions(&farm.path().join("net.onnx"), 3, 8, 12, 400);
    let path = model.to_str().expect("UTF-8");
    let skus: Vec<&str> = BOARDS.iter().map(|board| board.sku).collect();
    let list = format!("{},cpu-x86-64-v2", skus.join(","));
    // The CPU builds natively, the boards with TensorRT: each with what it has.
    let reply = farm.json(&["submit", path, "--sku", &list, "--wait"]);
    let jobs = reply["jobs"].as_array().expect("jobs").clone();
    assert_eq!(jobs.len(), 6, "{reply}");

    let mut plans = Vec::new();
    for (job, sku) in jobs.iter().zip(skus.iter().copied().chain(["cpu-x86-64-v2"])) {
        assert_eq!((text(job, "state"), text(job, "sku")), ("succeeded", sku), "{job}");
        let simulated = sku != "cpu-x86-64-v2";
        assert_eq!((&job["simulated"], &job["report"]["simulated"]), (&simulated.into(), &simulated.into()), "{sku}");
        assert_eq!(job["accurate"], true, "{sku}");
        assert!(job["report"]["latency_ms"]["median"].as_f64().is_some_and(|ms| ms > 0.0), "{sku}");
        plans.push(text(job, "plan_digest").to_owned());
    }
    plans.sort_unstable();
    plans.dedup();
    assert_eq!(plans.len(), 6, "six devices, six plans");
    // Each built with the toolchain of its own host, in a process that did nothing but build.
    for (host, version) in hosts.iter().zip(VERSIONS) {
        let job = jobs.iter().find(|job| job["sku"] == host.board.sku).expect("a job for every board");
        let exact = text(&job["toolchain"], "version");
        assert!(version.starts_with(exact) || exact.starts_with(version), "{exact} on a host with {version}");
        assert_eq!(host.toolchains[0].builds().len(), 1, "{:?}", host.toolchains[0].calls());
    }

    // Compared: across devices nobody claims a better engine, and simulated never stands beside measured.
    let ids: Vec<String> = jobs.iter().map(id_of).collect();
    let mut arguments = vec!["compare"];
    arguments.extend(ids.iter().map(String::as_str));
    let comparison = farm.json(&arguments);
    assert_eq!(comparison["rows"].as_array().map(Vec::len), Some(6), "{comparison}");
    let pairs = comparison["pairs"].as_array().expect("pairs");
    assert!(pairs.iter().all(|pair| pair["across_devices"] == true), "{comparison}");
    let with_cpu = pairs.iter().find(|pair| pair["other"] == 5).expect("a pair with the CPU");
    assert_eq!(with_cpu["verdict"], "cannot_tell");
    assert!(text(with_cpu, "reason").contains("simulated"), "{with_cpu}");
    let shown = said(&process::run(farm.cli(&arguments)));
    assert!(shown.contains("h100-sxm") && shown.contains("simulated") && shown.contains("another device"), "{shown}");

    // The right one comes, with its mark; the T4's is refused where an H100 is asked for.
    let h100 = jobs.iter().find(|job| job["sku"] == "h100-sxm").expect("a job");
    let t4 = jobs.iter().find(|job| job["sku"] == "t4").expect("a job");
    let out = farm.path().join("h100.plan");
    let target = out.to_str().expect("UTF-8");
    let fetch = process::run(farm.cli(&["fetch", path, "--sku", "h100-sxm", "-o", target, "--card"]));
    assert!(fetch.status.success() && said(&fetch).contains("simulated"), "{}", said(&fetch));
    assert_eq!(hex::encode(Sha256::digest(fs::read(&out).expect("the plan"))), text(h100, "plan_digest"));
    let card: Value =
        serde_json::from_slice(&fs::read(format!("{target}.card.json")).expect("the card")).expect("JSON");
    assert_eq!((&card["simulated"], &card["sku"]), (&true.into(), &"h100-sxm".into()));
    let wrong = farm.path().join("wrong.plan");
    let arguments = ["fetch", text(t4, "plan_digest"), "--sku", "h100-sxm", "-o", wrong.to_str().expect("UTF-8")];
    let refused = process::run(farm.cli(&arguments));
    assert_eq!(refused.status.code(), Some(6), "{}", said(&refused));
    assert!(said(&refused).contains("an engine for t4, not for h100-sxm"), "{}", said(&refused));
    assert!(!wrong.exists());
    // A plan that no backend here can run is not run.
    let t4_plan = farm.path().join("t4.plan");
    let fetch = process::run(farm.cli(&["fetch", path, "--sku", "t4", "-o", t4_plan.to_str().expect("UTF-8")]));
    assert!(fetch.status.success(), "{}", said(&fetch));
    for command in [&["bench", "t4.plan"][..], &["run", "t4.plan", "--input", "x.npz", "--output", "y.npz"]] {
        let mut cli = farm.cli(command);
        cli.current_dir(farm.path());
        let refused = process::run(cli);
        assert!(!refused.status.success(), "{command:?}: {}", said(&refused));
    }
    assert!(!farm.path().join("y.npz").exists());

    // Shown as simulated wherever it is shown.
    let shown = |arguments: &[&str]| said(&process::run(farm.cli(arguments)));
    for arguments in [&["jobs"][..], &["engines"], &["devices"], &["report", ids[0].as_str()]] {
        let shown = shown(arguments);
        assert!(shown.to_lowercase().contains("simulated"), "{arguments:?}: {shown}");
    }
    let engines = farm.json(&["engines"]);
    let marked = engines["engines"].as_array().expect("engines").iter().filter(|e| e["simulated"] == true).count();
    assert_eq!(marked, 5, "{engines}");
    for page in ["", &format!("jobs/{}", ids[0])] {
        let page = farm.page(page);
        assert!(page.contains("simulated"), "{page}");
    }

    // The same again is answered from the store; nothing is built twice.
    let again = farm.json(&["submit", path, "--sku", &list, "--wait"]);
    assert!(again["jobs"].as_array().expect("jobs").iter().all(|job| job["cached"] == true), "{again}");
    assert!(hosts.iter().all(|host| host.toolchains[0].builds().len() == 1));
}

#[test]
fn an_upgrade_fans_out_over_versions_and_the_gate_says_which_device_loses() {
    let farm = Farm::start(Link::Loopback);
    let limits = HostLimits::default();
    let versions = ["10.13.3.9", "11.1.0.106"];
    let mut hosts = ["t4", "h100-sxm"].map(|sku| Host::start(&farm, sku, &versions, limits));
    // The new version is faster on one board and slower on the other.
    for (host, factor) in hosts.iter_mut().zip([0.8, 1.3]) {
        let mut timing = host.toolchains[1].scenario.timing.clone();
        timing.compute_ms *= factor;
        host.toolchains[1].set_timing(timing);
    }
    farm.wait_agents(2);
    let model = models::convolutions(&farm.path().join("net.onnx"), 2, 8, 12, 401);
    let path = model.to_str().expect("UTF-8");
    let fan_out = ["--sku", "t4,h100-sxm", "--toolchain", "tensorrt=10.13", "--toolchain", "tensorrt=11.1", "--wait"];
    let mut arguments = vec!["submit", path];
    arguments.extend(fan_out);
    let reply = farm.json(&arguments);
    let jobs = reply["jobs"].as_array().expect("jobs");
    assert_eq!(jobs.len(), 4, "{reply}");
    assert!(jobs.iter().all(|job| job["state"] == "succeeded"), "{reply}");

    let request = text(&reply, "request_id");
    let comparison = farm.json(&["compare", "--request", request]);
    let verdict = |comparison: &Value, sku: &str| {
        let group = comparison["groups"].as_array().expect("groups").iter().find(|g| g["sku"] == sku).expect("a group");
        let (base, other) = (&group["rows"][0], &group["rows"][1]);
        let pairs = comparison["pairs"].as_array().expect("pairs");
        let pair = pairs.iter().find(|p| p["base"] == *base && p["other"] == *other).expect("a pair");
        text(pair, "verdict").to_owned()
    };
    assert_eq!(verdict(&comparison, "t4"), "faster", "{comparison}");
    assert_eq!(verdict(&comparison, "h100-sxm"), "slower", "{comparison}");

    // As a gate: by request, by model and toolchains, and by device kind.
    let gate = |extra: &[&str]| {
        let mut arguments = vec!["compare", "--gate", "5"];
        arguments.extend(extra);
        process::run(farm.cli(&arguments))
    };
    let by_request = gate(&["--request", request]);
    assert_eq!(by_request.status.code(), Some(9), "{}", said(&by_request));
    assert!(said(&by_request).contains("FAILED  h100-sxm") && said(&by_request).contains("passed  t4"));
    let by_model = ["--model", path, "--toolchain", "tensorrt=10.13", "--toolchain", "tensorrt=11.1"];
    assert_eq!(gate(&by_model).status.code(), Some(9));
    let only_t4 = [&by_model[..], &["--sku", "t4"]].concat();
    assert_eq!(gate(&only_t4).status.code(), Some(0), "{}", said(&gate(&only_t4)));
    let absent = gate(&["--model", path, "--toolchain", "tensorrt=10.13", "--toolchain", "tensorrt=10.14"]);
    assert_eq!(absent.status.code(), Some(3), "{}", said(&absent));
    assert!(said(&absent).contains("tensorrt=10.14"), "{}", said(&absent));
}

#[test]
fn a_budget_that_was_asked_for_ends_in_no_verdict_and_no_gate_passes() {
    let farm = Farm::start(Link::Loopback);
    // Every window is a process of its own: one of them spends it.
    let limits = HostLimits { measure_budget_ms: 1, strict_measure_budget: true, ..HostLimits::default() };
    let versions = ["10.13.3.9", "11.1.0.106"];
    let mut host = Host::start(&farm, "t4", &versions, limits);
    // Half the time: nobody would doubt it, had it been measured.
    let mut timing = host.toolchains[1].scenario.timing.clone();
    timing.compute_ms *= 0.5;
    host.toolchains[1].set_timing(timing);
    farm.wait_agents(1);
    let model = models::convolutions(&farm.path().join("net.onnx"), 2, 8, 12, 403);
    let path = model.to_str().expect("UTF-8");
    let fan_out = ["--sku", "t4", "--toolchain", "tensorrt=10.13", "--toolchain", "tensorrt=11.1", "--wait"];
    let reply = farm.json(&[&["submit", path][..], &fan_out].concat());
    for job in reply["jobs"].as_array().expect("jobs") {
        let report = &job["report"];
        assert_eq!(
            (&job["state"], &report["windows"].as_array().map(Vec::len)),
            (&"succeeded".into(), &Some(1)),
            "{job}"
        );
        assert_eq!(report["latency_ms"]["no_interval"], "one window", "{report}");
        let findings = report["findings"].as_array().expect("findings");
        let told = findings.iter().find(|finding| finding["code"] == "too-few-windows");
        assert!(told.is_some_and(|told| text(told, "message").contains("no comparison is possible")), "{findings:?}");
        let id = text(job, "id");
        let shown = said(&process::run(farm.cli(&["report", id])));
        assert!(shown.contains("median (no interval: one window)"), "{shown}");
        let log = said(&process::run(farm.cli(&["logs", id])));
        assert!(log.contains("every timed window is a process of its own: the 5 that a comparison takes"), "{log}");
    }
    let request = text(&reply, "request_id");
    let comparison = farm.json(&["compare", "--request", request]);
    let pair = &comparison["pairs"][0];
    assert_eq!((text(pair, "verdict"), &pair["ratio"]), ("cannot_tell", &Value::Null), "{comparison}");
    assert!(text(pair, "reason").starts_with("too few windows: "), "{pair}");
    let gate = process::run(farm.cli(&["compare", "--request", request, "--gate", "50"]));
    assert_eq!(gate.status.code(), Some(9), "{}", said(&gate));
    assert!(said(&gate).contains("UNDECIDED  t4"), "{}", said(&gate));
}

#[test]
fn what_portable_builds_cost_is_one_comparison() {
    let farm = Farm::start(Link::Loopback);
    let _host = Host::start(&farm, "a100-sxm4-80gb", &["10.13.3.9"], HostLimits::default());
    farm.wait_agents(1);
    let model = models::convolutions(&farm.path().join("net.onnx"), 2, 8, 12, 402);
    let path = model.to_str().expect("UTF-8");
    let mut ids = Vec::new();
    let specs: [&[&str]; 3] = [&[], &["--hardware-compatibility", "ampere+"], &["--version-compatible"]];
    for spec in specs {
        let mut arguments = vec!["--sku", "a100-sxm4-80gb"];
        arguments.extend(spec);
        ids.push(id_of(&farm.submit(&model, &arguments)[0]));
    }
    for id in &ids {
        let job = farm.wait_ended(id);
        assert_eq!(job["state"], "succeeded", "{job}");
    }
    let comparison = farm.json(&["compare", "--model", path]);
    let rows = comparison["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 3, "{comparison}");
    assert_eq!(rows[0]["extras"].as_array().map(Vec::len), Some(0), "the plain build comes first: {comparison}");
    let pairs = comparison["pairs"].as_array().expect("pairs");
    let slower = pairs.iter().filter(|pair| pair["base"] == 0 && pair["verdict"] == "slower").count();
    assert_eq!(slower, 2, "{comparison}");
}
