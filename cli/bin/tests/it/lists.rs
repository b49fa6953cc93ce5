//! Lists that end at a limit say what they leave out, and `--all` leaves nothing out.

use crate::{
    farm::{Up, digits, json},
    support::{World, transcript},
};
use serde_json::Value;
use std::process::Output;

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Each list: the command, what it counts, how many there are, and what stands below its first two rows.
fn ends_at_its_limit(world: &World, up: &Up, list: &[&str], field: &str, count: Option<usize>, said: &str) {
    let run = |more: &[&str]| {
        let output = up.command(world, &[list, more].concat()).output().unwrap();
        assert!(output.status.success(), "{list:?} {more:?}: {}", transcript(world.root(), &output));
        output
    };
    let limited = run(&["--limit", "2"]);
    assert!(stderr(&limited).contains(said), "{list:?}: {}", transcript(world.root(), &limited));
    let limited = json(&run(&["--limit", "2", "--json"]));
    assert_eq!((limited[field].as_array().unwrap().len(), &limited["more"]), (2, &Value::from(true)), "{limited:#}");
    let all = run(&["--all"]);
    assert!(!stderr(&all).contains("--all"), "{list:?}: {}", transcript(world.root(), &all));
    let all = json(&run(&["--all", "--json"]));
    let rows = all[field].as_array().unwrap();
    assert_eq!(all["more"], false, "{all:#}");
    assert!(rows.len() > 2 && count.is_none_or(|count| rows.len() == count), "{list:?}: {all:#}");
    assert_eq!(rows[..2], limited[field].as_array().unwrap()[..], "{list:?}");
}

#[test]
fn lists_say_what_they_leave_out_and_all_leaves_nothing_out() {
    let world = World::new();
    let up = Up::start(&world);
    let sku = up.sku(&world);
    let model = digits();
    let model = model.to_str().unwrap();
    let run = |args: &[&str]| json(&up.command(&world, &[args, &["--json"]].concat()).output().unwrap());
    let built = run(&["build", model, "--sku", &sku, "--threads", "1"]);
    let plan = built["jobs"][0]["plan_digest"].as_str().unwrap();
    for name in ["ann", "bob", "cyd"] {
        let secret = run(&["token", "create", name, "--role", "submit", "--project", "default"]);
        let secret = secret["secret"].as_str().or(secret["token"].as_str()).unwrap().to_owned();
        let mut pin = up.command(&world, &["pins", "add", plan]);
        let pinned = pin.env("PLANFORGE_TOKEN", secret).output().unwrap();
        assert!(pinned.status.success(), "{}", transcript(world.root(), &pinned));
    }
    for threads in ["2", "3"] {
        run(&["submit", model, "--sku", "gpu-nobody-has", "--wait-for-device", "--threads", threads]);
    }
    ends_at_its_limit(&world, &up, &["pins", "list"], "pins", Some(3), "there are more pins than these 2: --limit 8");
    ends_at_its_limit(&world, &up, &["audit"], "audit", None, "there are more lines than these 2: --limit 8");
    ends_at_its_limit(&world, &up, &["requests"], "requests", Some(3), "2 of 3 requests: --limit 8");
    ends_at_its_limit(&world, &up, &["events"], "events", None, "events: --limit 8 shows more, --all all of them");

    let open = run(&["requests", "--state", "open"]);
    assert_eq!((open["requests"].as_array().unwrap().len(), &open["total"]), (2, &2.into()), "{open:#}");
    assert_eq!(open["requests"][0]["live_jobs"], 1);
    // What waits is made more urgent, and by more than is allowed it is not.
    let waits = run(&["jobs", "--state", "unplaceable"])["jobs"][0]["id"].as_str().unwrap().to_owned();
    let set = run(&["priority", &waits, "--to", "-7"]);
    assert_eq!((&set["jobs"][0]["priority"], &set["remarks"][0]), (&(-7).into(), &"".into()), "{set:#}");
    let wrong = up.command(&world, &["priority", &waits, "--to", "4000"]).output().unwrap();
    assert!(!wrong.status.success() && stderr(&wrong).contains("1000"), "{}", transcript(world.root(), &wrong));
    // A link is listed until it is ended.
    let request = built["jobs"][0]["request_id"].as_str().unwrap();
    let link = run(&["share", "create", "--request", request, "--days", "2"]);
    assert!(link["url"].as_str().is_some_and(|url| url.contains("/shared/")), "{link:#}");
    let id = link["share"]["id"].as_str().unwrap();
    assert_eq!(run(&["share", "list"])["shares"][0]["request_id"], request);
    let listed = up.command(&world, &["share", "list"]).output().unwrap();
    assert!(String::from_utf8_lossy(&listed.stdout).contains(id), "{}", transcript(world.root(), &listed));
    run(&["share", "revoke", id]);
    assert_eq!(run(&["share", "list"])["shares"], serde_json::json!([]));
    let request = run(&["requests", "--state", "succeeded"]);
    assert_eq!(request["requests"][0]["id"], built["jobs"][0]["request_id"], "{request:#}");
    let job = built["jobs"][0]["id"].as_str().unwrap();
    let ended = run(&["events", "--job", job, "--kind", "succeeded"]);
    let [event] = &ended["events"].as_array().unwrap()[..] else { panic!("{ended:#}") };
    assert_eq!((&event["job"], &event["state"]), (&job.into(), &"succeeded".into()));
    let after = run(&["events", "--after", &event["seq"].to_string()]);
    assert!(after["events"].as_array().unwrap().iter().all(|later| later["job"] != job), "{after:#}");
    // What would go, in words as well.
    let would = up.command(&world, &["gc", "--dry-run"]).output().unwrap();
    let words = "0 events, 0 logs, 0 files that no job names and 0 measurements with newer ones would go";
    assert!(stderr(&would).contains(words), "{}", transcript(world.root(), &would));
    let astray = up.command(&world, &["requests", "--state", "queued"]).output().unwrap();
    assert_eq!(astray.status.code(), Some(2), "{}", transcript(world.root(), &astray));
}
