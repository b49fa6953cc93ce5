//! What engines are held to beside their declaration: a coordinator's own schedule, the lock of a branch, and what was shown
//! of the class that a device kind is in.

use super::{Clone, skus, with_agent};
use planforge_tests::{
    eventually,
    farm::{Farm, Link},
    models,
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::fs;

/// Jobs that a refresh asked for.
fn refreshes(farm: &Farm) -> Vec<Value> {
    let jobs = farm.json(&["jobs", "--tag", "refresh", "--limit", "100"]);
    jobs["jobs"].as_array().unwrap_or_else(|| panic!("no jobs in {jobs}")).clone()
}

/// A coordinator looks after a minute at the earliest, so this takes as long.
#[test]
fn a_coordinator_refreshes_on_its_schedule_and_asks_for_nothing_twice() {
    let farm = Farm::start_with(Link::Loopback, &["--refresh-every", "1m"]);
    let _agent = farm.start_agent("one", "host", None);
    farm.wait_agents(1);
    let mark = farm.data().join("refreshed");
    let model = models::convolutions(&farm.path().join("net.onnx"), 1, 4, 8, 121);
    let compiled = farm.submit(&model, &["--sku", skus()[0], "--threads", "1", "--compile-only", "--wait"]);
    assert_eq!(compiled[0]["state"], "succeeded", "{compiled:?}");
    let first = |jobs: &[Value]| jobs.iter().min_by_key(|job| job["created_ms"].as_u64()).cloned();
    let measured = eventually("the schedule measures what nobody measured", || match first(&refreshes(&farm)) {
        Some(job) if job["state"] == "succeeded" => Ok(job),
        other => Err(format!("{other:?}")),
    });
    assert_eq!(measured["plan_digest"], compiled[0]["plan_digest"], "{measured}");
    eventually("it notes when it looked", || fs::read_to_string(&mark).map_err(|error| error.to_string()));
    // What a busy machine disturbed is measured again, and for that reason alone.
    let meanwhile =
        refreshes(&farm).into_iter().filter(|job| job["created_ms"].as_u64() <= measured["ended_ms"].as_u64());
    assert_eq!(meanwhile.count(), 1, "what was under way is not asked for again");
    let unmeasured = farm.json(&["refresh", "--dry-run", "--reason", "unmeasured"]);
    assert_eq!(unmeasured["cells"].as_array().map(Vec::len), Some(0), "{unmeasured}");
}

#[test]
fn what_is_built_on_a_branch_is_gated_against_the_lock_of_another() {
    let (farm, _agent) = with_agent();
    let sku = skus()[0];
    let one = Clone::new(&farm, "one");
    one.write("planforge.toml", &format!("targets = [\"{sku}\"]\n[models.alpha]\npath = \"alpha.onnx\"\n"));
    one.commit("declared");
    one.git(&["branch", "empty"]);
    one.model("alpha.onnx", 122);
    let synced = one.json(&["sync"]);
    let locked = synced["cells"][0]["engine"]["plan"].as_str().expect("a digest").to_owned();
    one.commit("locked");
    // Other weights of the same graph, built beside the lock.
    one.model("alpha.onnx", 123);
    one.json(&["submit", "alpha.onnx", "--sku", sku, "--wait"]);
    let gated = |lock: &str, gates: &[&str], code: i32| {
        let mut arguments =
            vec!["compare", "--model", "alpha.onnx", "--baseline-lock", lock, "--junit", "gate.xml", "--json"];
        arguments.extend(gates.iter().flat_map(|gate| ["--gate", *gate]));
        let output = one.run(&arguments);
        assert_eq!(output.status.code(), Some(code), "{gates:?}: {output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default()
    };
    for lock in ["main", "engines.lock"] {
        let document = gated(lock, &["size=900", "memory=900"], 0);
        assert_eq!(document["bases"], serde_json::json!([null, 0]), "{document}");
        assert_eq!(document["rows"][0]["plan_digest"], locked.as_str(), "{document}");
        assert!(one.read("gate.xml").contains("tests=\"2\" failures=\"0\""), "{}", one.read("gate.xml"));
    }
    // Nobody counted its accuracy, so nobody has shown that it is good enough.
    let document = gated("main", &["size=900", &format!("{sku}:accuracy=1")], 9);
    assert_eq!(document["gate"]["passed"], false, "{document}");
    assert!(one.read("gate.xml").contains("tests=\"2\" failures=\"1\""), "{}", one.read("gate.xml"));
    // A branch that has locked nothing holds nothing, and says so.
    gated("empty", &["size=900"], 3);
    gated("nowhere", &["size=900"], 2);
}

/// What `matrix` would write of so many models, had it measured plans of both kinds on two boards of either.
fn evidence(looked: &Value, models: usize, simulated: bool) -> String {
    let of_model = |index: usize| {
        let mut matrix = looked["matrices"][0].clone();
        matrix["structure_digest"] = hex::encode(Sha256::digest([index as u8])).into();
        for cell in matrix["cells"].as_array_mut().expect("cells").iter_mut() {
            if cell["built_for"] == cell["measured_on"] {
                continue;
            }
            let board = |name: &str| serde_json::json!({ "board": name, "state": "valid", "simulated": simulated });
            let boards =
                ["a", "b"].map(|name| board(&format!("{}-{name}", cell["measured_on"].as_str().expect("a kind"))));
            let high = 0.01 + index as f64 / 1_000.0;
            let digest = hex::encode(Sha256::digest(b"own"));
            cell["loss"] = serde_json::json!({
                "relative": 0.005, "low": -0.004, "high": high, "foreign_ms": 1.005, "own_ms": 1.0, "own_plan": digest,
                "own_job": "job",
            });
            cell["boards"] = boards.to_vec().into();
            cell["state"] = "valid".into();
        }
        matrix
    };
    serde_json::json!({ "matrices": (0..models).map(of_model).collect::<Vec<_>>() }).to_string()
}

#[test]
fn an_engine_stands_in_for_one_of_its_class_where_somebody_asks_and_the_lock_says_so() {
    let (farm, _agent) = with_agent();
    let [built, other, ..] = skus()[..] else { return planforge_skipped::skipped("this processor has one level") };
    let one = Clone::new(&farm, "one");
    one.model("alpha.onnx", 131);
    one.write("planforge.toml", &format!("targets = [\"{built}\"]\n[models.alpha]\npath = \"alpha.onnx\"\n"));
    let synced = one.json(&["sync"]);
    let plan = synced["cells"][0]["engine"]["plan"].as_str().expect("a digest").to_owned();
    let looked = one.json(&["matrix", "alpha.onnx", "--sku", &format!("{built},{other}")]);
    one.write("good.json", &evidence(&looked, 3, false));
    let fetch = ["fetch", "alpha", "--sku", other];
    one.refused(&fetch, 3);
    for (name, text, why) in [
        ("few.json", evidence(&looked, 2, false), "valid both ways in 2 of the 3 models"),
        ("scripted.json", evidence(&looked, 3, true), "simulated figures are no evidence"),
        (
            "others.json",
            evidence(&looked, 3, false).replace("\"native ", "\"other "),
            "none of 3 matrices is of native",
        ),
    ] {
        one.write(name, &text);
        for asked in [&fetch[..], &["fetch", "alpha.onnx", "--unlocked", "--sku", other]] {
            let said = one.refused(&[asked, &["--classes", name]].concat(), 3);
            assert!(said.contains(why), "{name}: {said}");
        }
    }
    assert!(!one.read("engines.lock").contains("stand_in"));

    let output = one.run(&[&fetch[..], &["--classes", "good.json", "--json"]].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let shown = format!("built for {built}, which was shown to be interchangeable by 3 models on 2 and 2 boards");
    assert!(said.contains(&format!("nothing was built for {other}")) && said.contains(&shown), "{said}");
    let document: Value = serde_json::from_slice(&output.stdout).expect("one object");
    let stands = &document["engine"]["stands_in_for"][0];
    assert_eq!(
        (&stands["sku"], &stands["built_for"], &stands["loss_high"]),
        (&other.into(), &built.into(), &0.012.into())
    );
    assert_eq!(document["plan_digest"], plan.as_str());
    let lock = one.read("engines.lock");
    assert!(lock.contains("[[stand_in]]") && lock.contains("loss_low = -0.004\nloss_high = 0.012\n"), "{lock}");
    // What the lock says answers everybody who has it, and is told each time; what is synced keeps it.
    assert_eq!(one.json(&["sync"])["written"], false);
    let output = one.run(&fetch);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("stands in by engines.lock") && said.contains(&shown), "{said}");
    let unlocked = ["fetch", "alpha.onnx", "--unlocked", "--sku", other, "--classes", "good.json", "-o", "newest/"];
    let output = one.run(&unlocked);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("stands in by good.json"), "{said}");
    // An engine that takes its place was not what was meant.
    one.model("alpha.onnx", 132);
    one.json(&["sync"]);
    assert!(!one.read("engines.lock").contains("stand_in"), "{}", one.read("engines.lock"));
}
