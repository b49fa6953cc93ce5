//! What the command line says of a data folder that is not whole, and which exit code scripts get.

use crate::{
    farm::{Up, digits, json, signal, wait_for},
    support::{World, transcript},
};
use serde_json::Value;
use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Child, Output},
};

#[test]
fn a_database_that_is_damaged_or_gone_is_told_and_nothing_is_begun_in_its_place() {
    let world = World::new();
    drop(Up::start(&world));
    let data = world.path("up");
    let database = data.join("farm.db");
    let whole = fs::read(&database).unwrap();

    fs::write(&database, b"no database").unwrap();
    let output = world.run(&["jobs", "--data", "up"]);
    let said = transcript(world.root(), &output);
    assert_eq!(output.status.code(), Some(70), "{said}");
    assert!(said.contains("[ROOT]/here/up/farm.db is damaged") && said.contains("planforge admin restore"), "{said}");
    assert!(!said.contains("again"), "{said}");

    fs::write(&database, &whole).unwrap();
    assert!(world.run(&["jobs", "--data", "up"]).status.success());

    let blob = data.join("blobs/sha256/ab").join(format!("ab{}", "0".repeat(62)));
    fs::create_dir_all(blob.parent().unwrap()).unwrap();
    fs::write(&blob, b"bytes").unwrap();
    for gone in [None, Some(&b""[..])] {
        for file in ["farm.db", "farm.db-wal", "farm.db-shm"] {
            let _ = fs::remove_file(data.join(file));
        }
        if let Some(bytes) = gone {
            fs::write(&database, bytes).unwrap();
        }
        for args in [&["jobs", "--data", "up"][..], &["up", "--data", "up", "--listen", "127.0.0.1:0"]] {
            let output = world.run(args);
            let said = transcript(world.root(), &output);
            assert_eq!(output.status.code(), Some(70), "{args:?}: {said}");
            assert!(said.contains("[ROOT]/here/up/farm.db is gone") && said.contains("planforge up --new"), "{said}");
        }
        assert_eq!(fs::metadata(&database).map_or(0, |facts| facts.len()), 0, "no farm was begun");
    }
    drop(Up::start_with(&world, &["--new"]));
    assert!(world.run(&["jobs", "--data", "up"]).status.success(), "and what was begun goes on without the flag");
}

fn said(world: &World, output: &Output) -> String {
    transcript(world.root(), output)
}

/// Changes one bit of a stored blob as a disk does: without a trace in its times.
fn rot(path: &Path) {
    let published = fs::metadata(path).unwrap().modified().unwrap();
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(path, bytes).unwrap();
    File::options().write(true).open(path).unwrap().set_modified(published).unwrap();
}

#[test]
fn a_farm_is_checked_backed_up_restored_and_healed() {
    let world = World::new();
    let up = Up::start(&world);
    let model = digits();
    let model = model.to_str().unwrap();
    let sku = up.sku(&world);
    let build = ["build", model, "--sku", &sku, "--threads", "1", "--json"];
    let built = json(&up.command(&world, &build).output().unwrap());
    let job = built["jobs"][0]["id"].as_str().unwrap().to_owned();
    let plan = built["jobs"][0]["plan_digest"].as_str().unwrap().to_owned();
    let owner = |args: &[&str]| {
        let mut command = world.command(args);
        command.env("PLANFORGE_SERVER", &up.url).output().unwrap()
    };

    let sound = owner(&["admin", "check", "--read", "--json"]);
    assert!(sound.status.success(), "{}", said(&world, &sound));
    assert_eq!(json(&sound)["blobs"]["missing"], serde_json::json!([]));
    let made = owner(&["admin", "backup", "copy", "--json"]);
    assert!(made.status.success(), "{}", said(&world, &made));
    assert_eq!(json(&made)["lacking"], serde_json::json!([]));
    let again = owner(&["admin", "backup", "copy"]);
    assert_eq!(again.status.code(), Some(7), "nothing is written over: {}", said(&world, &again));
    let foreign = world.run(&["admin", "check", "--server", "https://farm.example:7400"]);
    assert_eq!(foreign.status.code(), Some(2), "{}", said(&world, &foreign));

    // A plan rots where nothing shows it.
    let blob = world.path("up/blobs/sha256").join(&plan[..2]).join(&plan);
    rot(&blob);
    let scrubbed = owner(&["admin", "scrub", "--json"]);
    assert_eq!(scrubbed.status.code(), Some(1), "{}", said(&world, &scrubbed));
    assert_eq!(json(&scrubbed)["damaged"], serde_json::json!([plan]));
    assert!(!blob.exists());
    let checked = owner(&["admin", "check", "--json"]);
    assert_eq!(checked.status.code(), Some(1));
    let blobs = &json(&checked)["blobs"];
    assert_eq!((&blobs["missing"], &blobs["quarantined"]), (&serde_json::json!([plan]), &serde_json::json!([plan])));
    let fetched = up.command(&world, &["fetch", &plan, "-o", "out.plan"]).output().unwrap();
    assert_eq!(fetched.status.code(), Some(3), "{}", said(&world, &fetched));
    assert!(said(&world, &fetched).contains("planforge submit"), "{}", said(&world, &fetched));
    let rebuilt = json(&up.command(&world, &build).output().unwrap());
    assert_eq!((&rebuilt["jobs"][0]["state"], &rebuilt["jobs"][0]["cached"]), (&"succeeded".into(), &false.into()));
    drop(up);

    // Made anew elsewhere, with the plan as it was.
    let restored = world.run(&["admin", "restore", "copy", "--data", "anew"]);
    assert!(restored.status.success(), "{}", said(&world, &restored));
    let jobs = json(&world.run(&["jobs", "--data", "anew", "--json"]));
    assert_eq!(jobs["jobs"][0]["id"], Value::from(job));
    let fetched = world.run(&["fetch", &plan, "-o", "out.plan", "--data", "anew"]);
    assert!(fetched.status.success(), "{}", said(&world, &fetched));
    let over = world.run(&["admin", "restore", "copy", "--data", "anew"]);
    assert_eq!(over.status.code(), Some(7), "{}", said(&world, &over));
}

#[test]
fn a_scrub_that_heals_all_that_it_finds_ends_well_and_another_does_not() {
    let world = World::new();
    let copy = world.path("copy");
    fs::create_dir(&copy).unwrap();
    let up = Up::start_as(&world, "coordinator", "127.0.0.1:0", &["--blobs-copy", copy.to_str().unwrap()]);
    let model = digits();
    let submit = ["submit", model.to_str().unwrap(), "--sku", "gpu-nobody-has", "--wait-for-device", "--json"];
    let submitted = json(&up.command(&world, &submit).output().unwrap());
    let digest = submitted["jobs"][0]["model"]["files"][0]["digest"].as_str().unwrap().to_owned();
    let blob = world.path("up/blobs/sha256").join(&digest[..2]).join(&digest);
    let scrub = || {
        let mut command = world.command(&["admin", "scrub", "--json"]);
        command.env("PLANFORGE_SERVER", &up.url).output().unwrap()
    };
    fs::copy(&blob, copy.join(&digest)).unwrap();
    rot(&blob);
    let healed = scrub();
    assert_eq!(healed.status.code(), Some(0), "{}", said(&world, &healed));
    let told = json(&healed);
    assert_eq!((&told["damaged"], &told["healed"]), (&serde_json::json!([digest]), &serde_json::json!([digest])));
    assert_eq!(told["quarantined"], serde_json::json!([]));
    fs::remove_file(copy.join(&digest)).unwrap();
    rot(&blob);
    let lost = scrub();
    assert_eq!(lost.status.code(), Some(1), "{}", said(&world, &lost));
    assert_eq!(
        (&json(&lost)["healed"], &json(&lost)["quarantined"]),
        (&serde_json::json!([]), &serde_json::json!([digest]))
    );
}

/// Starts a command whose outputs go to files named after it.
fn begin(world: &World, up: &Up, name: &str, args: &[&str]) -> Child {
    let file = |kind: &str| File::create(world.root().join(format!("{name}.{kind}"))).unwrap();
    up.command(world, args).stdout(file("out")).stderr(file("err")).spawn().unwrap()
}

fn read(world: &World, file: &str) -> String {
    fs::read_to_string(world.root().join(file)).unwrap()
}

#[test]
fn whoever_waits_comes_back_after_a_restart_and_misses_nothing() {
    let world = World::new();
    let mut first = Up::start_as(&world, "coordinator", "127.0.0.1:0", &[]);
    let address = first.url.trim_start_matches("http://").to_owned();
    let model = digits();
    let model = model.to_str().unwrap();
    // An older event, which a watch from now on does not show.
    let old = ["submit", model, "--sku", "t4", "--wait-for-device", "--json"];
    let old = json(&first.command(&world, &old).output().unwrap())["jobs"][0]["id"].as_str().unwrap().to_owned();
    let mut watch = begin(&world, &first, "watch", &["watch", "--json"]);
    wait_for("the watch", || read(&world, "watch.err").contains("behind event").then_some(()));
    let since = first.command(&world, &["watch", "--since", "0", "--timeout", "1", "--json"]).output().unwrap();
    assert_eq!(since.status.code(), Some(10), "{}", said(&world, &since));
    assert!(String::from_utf8_lossy(&since.stdout).contains(&old), "asked for, the past is shown");

    let args = ["submit", model, "--sku", "cpu-x86-64-v2", "--threads", "1", "--wait", "--wait-for-device", "--json"];
    let mut submit = begin(&world, &first, "submit", &args);
    let waits = ["jobs", "--sku", "cpu-x86-64-v2", "--json"];
    let id = wait_for("the job", || {
        let jobs = json(&first.command(&world, &waits).output().unwrap());
        Some(jobs["jobs"].as_array()?.first()?["id"].as_str()?.to_owned())
    });
    wait_for("its event", || read(&world, "watch.out").contains(&id).then_some(()));
    wait_for("words about what nobody offers", || {
        read(&world, "submit.err").contains("no device with cpu-x86-64-v2 is online").then_some(())
    });
    signal(&first.child, "-KILL");
    first.child.wait().unwrap();
    wait_for("words about the restart", || read(&world, "submit.err").contains("the jobs go on").then_some(()));

    let second = Up::start_as(&world, "up", &address, &[]);
    let ended = submit.wait().unwrap();
    assert!(ended.success(), "{}", read(&world, "submit.err"));
    let reply: Value = serde_json::from_str(&read(&world, "submit.out")).unwrap();
    assert_eq!((reply["jobs"][0]["id"].as_str(), reply["jobs"][0]["state"].as_str()), (Some(&*id), Some("succeeded")));
    wait_for("the end in the watch", || read(&world, "watch.out").contains("\"what\":\"succeeded\"").then_some(()));
    signal(&watch, "-KILL");
    watch.wait().unwrap();
    let lines = read(&world, "watch.out");
    let events: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(events.iter().all(|event| event["job"]["id"] != old), "from now on: {lines}");
    let numbers: Vec<u64> =
        events.iter().filter(|event| event["what"] != "progress").map(|event| event["seq"].as_u64().unwrap()).collect();
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "each once and in order: {numbers:?}");
    let all = second.command(&world, &["watch", &id, "--json"]).output().unwrap();
    let all: Vec<u64> = String::from_utf8_lossy(&all.stdout)
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["seq"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, all, "none was missed while the coordinator was away");

    // Whoever has no patience says so.
    let args = ["submit", model, "--sku", "t4", "--wait", "--wait-for-device", "--timeout", "1"];
    let output = second.command(&world, &args).output().unwrap();
    assert_eq!(output.status.code(), Some(10), "{}", said(&world, &output));
    assert!(said(&world, &output).contains("the jobs go on"), "{}", said(&world, &output));
    let output = second.command(&world, &["watch", &old, "--timeout", "1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(10), "{}", said(&world, &output));
}
