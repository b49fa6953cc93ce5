//! What a plan loses on a device kind that it was not built for: told once both were measured there, wherever the plan's
//! measurement is shown; "not measured" until then.

use planforge_tests::{
    farm::{Farm, Link, id_of},
    fleet::{Host, HostLimits},
    models, process,
};
use serde_json::Value;
use std::{fs, process::Output};

const HOME: &str = "a100-pcie-40gb";
const ABROAD: &str = "a100-sxm4-80gb";

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn median_ms(report: &Value) -> f64 {
    report["latency_ms"]["median"].as_f64().unwrap_or_else(|| panic!("no median in {report}"))
}

#[test]
fn a_foreign_plan_states_its_loss_once_the_own_engine_was_measured() {
    let farm = Farm::start(Link::Loopback);
    let limits = HostLimits::default();
    let _home = Host::start(&farm, HOME, &["10.13.3.9"], limits);
    let mut abroad = Host::start(&farm, ABROAD, &["10.13.3.9"], limits);
    farm.wait_agents(2);
    let model = models::convolutions(&farm.path().join("net.onnx"), 2, 8, 12, 410);
    let path = model.to_str().expect("UTF-8");
    let built = farm.json(&["submit", path, "--sku", HOME, "--wait"]);
    let plan = built["jobs"][0]["plan_digest"].as_str().expect("a plan").to_owned();

    // Measured abroad before anything was built there: nothing is known of the loss, and that is said.
    let shown = said(&process::run(farm.cli(&["bench", &plan, "--on", ABROAD])));
    assert!(shown.contains("a foreign plan on a100-sxm4-80gb: it was built for a100-pcie-40gb"), "{shown}");
    assert!(shown.contains("not measured: no engine of the same model, spec and toolchain was built for"), "{shown}");
    let again = farm.json(&["bench", &plan, "--on", ABROAD]);
    let foreign = id_of(&again["jobs"][0]);
    assert!(again["portability"][&foreign]["loss"].is_null(), "{again}");

    // The device's own engine is faster there.
    let mut timing = abroad.toolchains[0].scenario.timing.clone();
    timing.compute_ms *= 0.8;
    abroad.toolchains[0].set_timing(timing);
    let own = farm.json(&["submit", path, "--sku", ABROAD, "--wait"]);
    let own = id_of(&own["jobs"][0]);

    let document = farm.json(&["report", &foreign]);
    let loss = &document["portability"][0]["loss"];
    let number = |name: &str| loss[name].as_f64().unwrap_or_else(|| panic!("no {name} in {document}"));
    let expected = median_ms(&document["reports"][0]) / median_ms(&farm.json(&["report", &own])["reports"][0]) - 1.0;
    assert!((number("relative") - expected).abs() < 0.02, "{} is not {expected}", number("relative"));
    assert!(number("low") > 0.1 && number("low") <= number("relative") && number("relative") <= number("high"));
    assert_eq!(loss["own_job"], own, "{loss}");

    // Said in words wherever the measurement is shown: by the report's name, in a file of it, beside others, on the page.
    let file = farm.path().join("foreign.json");
    fs::write(&file, document["reports"][0].to_string()).expect("the test's folder is writable");
    let file = file.to_str().expect("UTF-8");
    for arguments in [&["report", foreign.as_str()][..], &["report", file], &["compare", file, &foreign]] {
        let shown = said(&process::run(farm.cli(arguments)));
        assert!(shown.contains("of the engine built for a100-sxm4-80gb"), "{arguments:?}: {shown}");
    }
    let comparison = farm.json(&["compare", &own, &foreign]);
    assert_eq!(comparison["portability"].as_array().map(Vec::len), Some(1), "{comparison}");
    assert_eq!((&comparison["portability"][0]["row"], &comparison["portability"][0]["loss"]), (&1.into(), loss));
    let page = farm.page(&format!("jobs/{foreign}"));
    assert!(page.contains("built for a100-pcie-40gb, measured on a100-sxm4-80gb; loss: "), "{page}");

    // At home a plan loses nothing, and nothing is said.
    let at_home = farm.json(&["report", &own]);
    assert!(at_home["portability"][0].is_null(), "{at_home}");
}
