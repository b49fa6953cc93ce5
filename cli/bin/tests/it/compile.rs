//! Engines that are built first and measured later, over a real farm: compiled alone, listed, fetched, refreshed.

use crate::{
    farm::{Up, digits, json},
    support::{World, transcript},
};

#[test]
fn an_engine_is_built_not_measured_until_a_refresh_measures_it() {
    let world = World::new();
    let up = Up::start(&world);
    let sku = up.sku(&world);
    let mut submit =
        up.command(&world, &["submit", "--sku", &sku, "--toolchain", "native", "--compile-only", "--wait"]);
    let built = submit.arg(digits()).output().unwrap();
    assert!(built.status.success(), "{}", transcript(world.root(), &built));
    let table = String::from_utf8_lossy(&built.stdout);
    assert!(table.contains("built, not measured"), "{table}");
    let engines = || json(&up.command(&world, &["engines", "--json"]).output().unwrap());
    let engine = engines()["engines"][0].clone();
    assert!(engine["unmeasured"] == true && engine["report"].is_null() && engine["accurate"] == true, "{engine:#}");
    let mut fetch = up.command(&world, &["fetch", "--sku", &sku, "--output", "digits.plan"]);
    let fetched = fetch.arg(digits()).output().unwrap();
    let said = String::from_utf8_lossy(&fetched.stderr);
    assert!(fetched.status.success() && said.contains("built, not measured"), "{said}");

    let told = json(&up.command(&world, &["refresh", "--dry-run", "--json"]).output().unwrap());
    assert_eq!(told["cells"][0]["reasons"], serde_json::json!(["unmeasured"]), "{told:#}");
    let refreshed = up.command(&world, &["refresh", "digits.onnx", "--wait", "--json"]).output().unwrap();
    assert!(refreshed.status.success(), "{}", transcript(world.root(), &refreshed));
    let measured = engines()["engines"][0].clone();
    assert_eq!(measured["plan_digest"], engine["plan_digest"], "nothing was built again");
    assert!(measured["unmeasured"].is_null() && measured["report"]["latency_ms"]["median"].is_number(), "{measured:#}");
    // On a busy machine its measurement may be disturbed, which is another reason.
    let left = ["refresh", "--dry-run", "--reason", "unmeasured", "--json"];
    let fresh = json(&up.command(&world, &left).output().unwrap());
    assert_eq!((fresh["cells"].as_array().map(Vec::len), fresh["looked_at"].as_u64()), (Some(0), Some(1)), "{fresh:#}");

    // For a processor there is nothing to compile before.
    let mut first = up.command(&world, &["submit", "--sku", &sku, "--compile-first"]);
    let refused = first.arg(digits()).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{}", transcript(world.root(), &refused));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("leave --compile-first out"));
}
