//! A coordinator and three agents as processes that share no folder: by URL, CA file and token, as on several hosts.

use nix::sys::signal::Signal;
use planforge_tests::{
    farm::{Farm, Link, id_of},
    models, process,
};
use sha2::{Digest as _, Sha256};
use std::fs;

#[test]
fn three_agents_join_by_url_ca_and_token_and_a_reader_fetches_what_they_built() {
    let farm = Farm::start(Link::Tls);
    let tokens = ["one", "two", "three"].map(|name| (name, farm.token(name, "agent")));
    let _agents = tokens.each_ref().map(|(name, token)| farm.start_agent(name, name, Some(token)));
    farm.wait_agents(3);
    let agent_token = tokens[0].1.clone();

    let submitter = farm.token("pipeline", "submit");
    let reader = farm.token("reader", "read");
    let mut jobs = Vec::new();
    for seed in 0..3 {
        let model = models::convolutions(&farm.path().join(format!("m{seed}.onnx")), 2, 16, 14, 100 + seed);
        let mut submit = farm.command_as(&farm.home("pipeline"), Some(&submitter));
        submit.arg("submit").arg(&model).args(["--sku", "cpu-x86-64-v2", "--threads", "1", "--json"]);
        let reply = process::run_json(submit);
        jobs.push((model, id_of(&reply["jobs"][0])));
    }
    for (model, id) in &jobs {
        let job = farm.wait_ended(id);
        assert_eq!(job["state"], "succeeded", "{job}");
        let out = farm.home("reader").join(format!("{id}.plan"));
        let mut fetch = farm.command_as(&farm.home("reader"), Some(&reader));
        // One thread is what was asked for, and not what the farm would choose.
        fetch.arg("fetch").arg(model).args(["--sku", "cpu-x86-64-v2", "--spec", r#"{"threads":1}"#, "-o"]).arg(&out);
        let output = process::run(fetch);
        assert!(output.status.success(), "{output:?}");
        let plan = fs::read(&out).expect("the fetched plan");
        assert_eq!(hex::encode(Sha256::digest(plan)), job["plan_digest"].as_str().expect("a digest"));
    }

    // Missing engines have their own exit code, and leave no file.
    let out = farm.home("reader").join("missing.plan");
    let mut fetch = farm.command_as(&farm.home("reader"), Some(&reader));
    fetch.arg("fetch").arg(&jobs[0].0).args(["--sku", "h100-sxm", "-o"]).arg(&out);
    let output = process::run(fetch);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(!out.exists());

    // A reader may not submit; nobody may come with a made-up or revoked token, or with none.
    let refused = |token: Option<&str>, arguments: &[&str]| {
        let mut command = farm.command_as(&farm.home("refused"), token);
        command.args(arguments);
        let output = process::run(command);
        assert_eq!(output.status.code(), Some(5), "{arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let model = jobs[0].0.to_str().expect("UTF-8");
    let said = refused(Some(&reader), &["submit", model, "--sku", "cpu-x86-64-v2", "--force"]);
    assert!(said.contains("submit"), "says which role is needed: {said}");
    refused(Some("pf_0000000000000000000000000000000000000000000000000000000000000000"), &["jobs"]);
    refused(None, &["jobs"]);
    let tokens = farm.json(&["token", "list"]);
    let id = tokens["tokens"]
        .as_array()
        .and_then(|tokens| tokens.iter().find(|t| t["name"] == "reader"))
        .and_then(|t| t["id"].as_str())
        .unwrap_or_else(|| panic!("the reader's token is listed: {tokens}"));
    farm.json(&["token", "revoke", id]);
    let said = refused(Some(&reader), &["jobs"]);
    assert!(said.contains("token"), "{said}");

    // Secrets are hashed at rest.
    for file in ["agent", "submit", "read"].iter().zip([&agent_token, &submitter, &reader]) {
        let (role, secret) = file;
        let found = process::run({
            let mut grep = std::process::Command::new("grep");
            grep.arg("-rl").arg(secret.as_str()).arg(farm.data());
            grep
        });
        assert_eq!(String::from_utf8_lossy(&found.stdout), "", "the {role} token's secret is stored nowhere");
    }
}

#[test]
fn a_client_without_the_ca_trusts_nothing() {
    let farm = Farm::start(Link::Tls);
    let mut command = farm.command_as(&farm.home("stranger"), Some(&farm.admin));
    command.env_remove("PLANFORGE_CA").arg("jobs");
    let output = process::run(command);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).to_lowercase();
    assert!(said.contains("certificate") && said.contains("hint"), "{said}");
}

/// What an operator sees: every refusal is a reason and a hint on the agent's own output, and its process ends with it.
#[test]
fn an_agents_token_is_one_agents_and_ends_with_its_revocation() {
    let farm = Farm::start(Link::Loopback);
    let token = farm.token("builder", "agent");
    let mut first = farm.start_agent("one", "host-a", Some(&token));
    farm.wait_agents(1);
    let mut second = farm.start_agent("two", "host-b", Some(&token));
    let said = second.wait_for_line("belongs to agent");
    assert!(said.contains("builder"), "{said}");
    second.wait_for_line("planforge token rebind builder");
    assert!(!second.wait().success());
    farm.json(&["token", "revoke", "builder"]);
    first.wait_for_line("was revoked");
    assert!(!first.wait().success());
    let agents = farm.json(&["agents", "list"]);
    assert_eq!(agents["agents"][0]["online"], false, "{agents}");
    farm.json(&["agents", "forget", "one"]);
    assert_eq!(farm.json(&["agents", "list"])["agents"].as_array().map(Vec::len), Some(0));
    let model = models::convolutions(&farm.path().join("m.onnx"), 2, 16, 14, 7);
    let model = model.to_str().expect("UTF-8");
    let output = process::run(farm.cli(&["submit", model, "--sku", "cpu-x86-64-v2"]));
    assert_eq!(output.status.code(), Some(6), "nobody offers it any more: {output:?}");
}

#[test]
fn two_agents_with_one_identity_are_told_apart() {
    let farm = Farm::start(Link::Loopback);
    let _first = farm.start_agent("twin", "host-a", None);
    farm.wait_agents(1);
    // The same state folder, so the same identity, as after copying a machine image.
    let home = farm.home("agent-twin");
    let copy = farm.home("agent-copy");
    let copied = std::process::Command::new("cp").arg("-r").arg(home.join("state")).arg(&copy).status();
    assert!(copied.is_ok_and(|status| status.success()));
    let mut command = farm.command_as(&copy, Some(&farm.admin));
    let locks = farm.home("locks-copy");
    command.args(["agent", "--name", "twin", "--state"]).arg(copy.join("state")).arg("--lock-dir").arg(locks);
    let mut second = planforge_tests::process::Process::start("agent-copy", farm.path(), command);
    let said = second.wait_for_line("identity");
    assert!(!said.is_empty());
    let devices = farm.json(&["devices"]);
    let online = devices["devices"].as_array().map_or(0, |d| d.iter().filter(|d| d["online"] == true).count());
    assert_eq!(online, 1, "{devices}");
}

/// What two hosts learn at once, with backends that are there everywhere: neither's is lost.
#[test]
fn two_agents_that_build_at_once_learn_from_each_other() {
    // One of them stands still while the other builds, for longer than a lease has by default.
    let farm = Farm::start_with(Link::Loopback, &["--lease-ms", "120000"]);
    let agents = ["one", "two"].map(|name| farm.start_agent(name, &format!("host-{name}"), None));
    farm.wait_agents(2);
    let build = |name: &str, channels: usize| {
        let model = models::convolutions(&farm.path().join(format!("{name}.onnx")), 2, channels, 20, 5);
        let job = &farm.submit(&model, &["--sku", "cpu-x86-64-v2", "--threads", "1", "--force"])[0];
        id_of(job)
    };
    let log = |id: &str| {
        let output = process::run(farm.cli(&["logs", id]));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let caches = || farm.json(&["caches", "list"])["caches"].as_array().expect("a list").clone();

    // It has begun, from nothing, when it measures; what it learnt is published at its end.
    let slow = build("slow", 24);
    let job = farm.wait_job(&slow, "measures", |job| job["phase"] == "measure");
    let agent = &agents[usize::from(job["agent"] == "two")];
    agent.signal(Signal::SIGSTOP);
    let quick = build("quick", 16);
    assert_eq!(farm.wait_ended(&quick)["state"], "succeeded");
    agent.signal(Signal::SIGCONT);
    assert_eq!(farm.wait_ended(&slow)["state"], "succeeded");
    let both = caches();
    assert_eq!(both.len(), 1, "one kind of device: {both:?}");
    assert_eq!(both[0]["job"], quick.as_str(), "the first that ended is the newest: {both:?}");
    assert_eq!(both[0]["beside"][0]["job"], slow.as_str(), "{both:?}");

    // The next build, on whichever, begins with both.
    let third = build("third", 8);
    assert_eq!(farm.wait_ended(&third)["state"], "succeeded");
    let said = log(&third);
    assert!(said.contains(&format!("joined with that of job {slow}")), "{said}");
    assert_eq!(caches()[0]["beside"].as_array().map(Vec::len), Some(0));
    for again in [build("slow", 24), build("quick", 16)] {
        assert_eq!(farm.wait_ended(&again)["state"], "succeeded");
        let said = log(&again);
        assert!(said.contains("0 steps timed"), "what either learnt is known: {said}");
    }
}
