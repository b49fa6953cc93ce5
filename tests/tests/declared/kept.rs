//! What the farm is told of a project's engines: that they are to be kept, and which should exist.

use super::{Clone, declare, skus, with_agent};
use planforge_tests::process;
use serde_json::Value;

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

fn list<'a>(document: &'a Value, name: &str) -> &'a Vec<Value> {
    document[name].as_array().unwrap_or_else(|| panic!("no {name} in {document}"))
}

#[test]
fn sync_and_check_pin_what_the_lock_names_and_a_token_that_reads_is_told_that_it_does_not() {
    let (farm, _agent) = with_agent();
    let one = Clone::new(&farm, "one");
    declare(&one, &[("alpha", 101), ("beta", 102)], "");
    let count = 2 * skus().len();
    assert_eq!(list(&one.json(&["pins", "list"]), "pins").len(), 0);
    let synced = one.json(&["sync"]);
    assert_eq!(synced["pinned"]["engines"], count, "{synced:#}");
    let pins = one.json(&["pins", "list"]);
    let lock = one.read("engines.lock");
    for pin in list(&pins, "pins") {
        let (plan, sku) = (pin["plan_digest"].as_str().expect("a digest"), pin["sku"].as_str().expect("a kind"));
        assert!(lock.contains(plan) && skus().contains(&sku), "{pin}");
        assert_eq!((&pin["owner"], &pin["project"]), (&"admin".into(), &"default".into()), "{pin}");
        assert_eq!(pin["reason"], "engines.lock of one", "{pin}");
        let lasts_ms = pin["expires_ms"].as_u64().zip(pin["created_ms"].as_u64()).map(|(end, begin)| end - begin);
        assert_eq!(lasts_ms, Some(90 * DAY_MS), "{pin}");
    }
    assert_eq!(list(&pins, "pins").len(), count);

    // Another who may submit has pins of its own; one that may only read has none, and its pipeline is as green.
    let check = |token: &str| {
        let mut command = one.command(&["check", "--json"]);
        command.env("PLANFORGE_TOKEN", token);
        let output = process::run(command);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        (serde_json::from_slice::<Value>(&output.stdout).expect("one object"), said)
    };
    let (checked, said) = check(&farm.token("ci", "submit"));
    assert!(checked["pinned"]["engines"] == count && !said.contains("not pinned"), "{said}");
    let (checked, said) = check(&farm.token("viewer", "read"));
    assert_eq!(checked["pinned"]["engines"], 0, "{checked:#}");
    assert!(
        said.contains("the engines of engines.lock are not pinned") && said.contains("needs role submit"),
        "{said}"
    );
    assert_eq!(list(&one.json(&["pins", "list", "--owner", "ci"]), "pins").len(), count);
    assert_eq!(list(&one.json(&["pins", "list", "--limit", "1"]), "pins").len(), 1);

    // By hand: a plan's file, its digest, or its engine's key.
    one.json(&["fetch", "--sku", skus()[0]]);
    let file = format!("engines/alpha/{}/default.plan", skus()[0]);
    let added = one.json(&["pins", "add", &file, "--days", "365", "--reason", "release 1.4"]);
    let pin = &list(&added, "pins")[0];
    assert_eq!(pin["reason"], "release 1.4", "{pin}");
    let (plan, key) = (pin["plan_digest"].as_str().expect("a digest"), pin["engine_key"].as_str().expect("a key"));
    let again = one.json(&["pins", "add", key]);
    assert_eq!(list(&again, "pins")[0]["expires_ms"], pin["expires_ms"], "it only ever lasts longer: {again:#}");
    assert_eq!(list(&one.json(&["pins", "remove", plan]), "removed").len(), 1);
    let said = one.refused(&["pins", "remove", plan], 3);
    assert!(said.contains("admin has no pin"), "{said}");
    assert_eq!(list(&one.json(&["pins", "remove", plan, "--owner", "ci"]), "removed").len(), 1);
    let said = one.refused(&["pins", "add", &"7".repeat(64)], 3);
    assert!(said.contains("has none of the 1 plans"), "{said}");
    assert_eq!(list(&one.json(&["pins", "list"]), "pins").len(), 2 * (count - 1));
    // Readable without a machine, too.
    let table = String::from_utf8(one.run(&["pins", "list"]).stdout).expect("UTF-8");
    assert!(table.contains("engines.lock of one") && table.contains("89d"), "{table}");
}

#[test]
fn the_farm_knows_which_engines_should_exist_after_each_sync() {
    let (farm, _agent) = with_agent();
    let one = Clone::new(&farm, "one");
    declare(&one, &[("alpha", 111)], "");
    let text = one.read("planforge.toml").replacen(&format!("{:?}", skus()), "[\"cpu\"]", 1);
    one.write(
        "planforge.toml",
        &format!("name = \"shop\"\n{text}\n[specs.default]\n[specs.one]\nthreads = 1\ntoolchain = \"native\"\n"),
    );
    let said = one.refused(&["config", "farm", "shop"], 3);
    assert!(said.contains("knows no repository 'shop'"), "{said}");
    let synced = one.json(&["sync"]);
    assert_eq!(synced["registered"]["name"], "shop", "{synced:#}");
    let known = one.json(&["config", "farm"]);
    let [shop] = list(&known, "declarations").as_slice() else { panic!("{known:#}") };
    let cells = list(shop, "cells");
    assert_eq!(cells.len(), list(&synced, "cells").len(), "{shop:#}");
    let lock = one.read("engines.lock");
    for cell in cells {
        assert_eq!((&cell["model"], &cell["target"]), (&"alpha".into(), &"cpu".into()), "{cell}");
        assert!(cell["sku"].as_str().is_some_and(|sku| sku.starts_with("cpu-")), "{cell}");
        for field in ["plan_digest", "model_digest"] {
            assert!(cell[field].as_str().is_some_and(|digest| lock.contains(digest)), "{cell}");
        }
    }
    let specs: Vec<(&str, &str)> = list(shop, "specs")
        .iter()
        .map(|spec| (spec["name"].as_str().expect("a name"), spec["toolchain"].as_str().expect("a range")))
        .collect();
    assert_eq!(specs, [("default", ""), ("one", "native")]);
    // The same for who asks over HTTP.
    let page: Value = serde_json::from_str(&farm.page("api/v1/declarations?name=shop")).expect("JSON");
    assert_eq!(page["declarations"], known["declarations"]);
    let table = String::from_utf8(one.run(&["config", "farm", "shop"]).stdout).expect("UTF-8");
    assert!(table.contains("alpha") && table.contains("native"), "{table}");

    // What is declared no more is known no more; another repository's stays.
    let two = Clone::new(&farm, "two");
    declare(&two, &[("beta", 112)], "");
    two.json(&["sync"]);
    let text = one.read("planforge.toml");
    one.write("planforge.toml", text.split("\n[specs.default]").next().expect("a part"));
    one.json(&["sync"]);
    let known = one.json(&["config", "farm"]);
    let told: Vec<(&str, usize)> = list(&known, "declarations")
        .iter()
        .map(|declaration| (declaration["name"].as_str().expect("a name"), list(declaration, "cells").len()))
        .collect();
    assert_eq!(told, [("shop", cells.len() / 2), ("two", skus().len())], "the newest first");
    one.json(&["config", "forget", "two"]);
    assert_eq!(list(&one.json(&["config", "farm"]), "declarations").len(), 1);
}
