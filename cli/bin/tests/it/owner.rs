//! Whoever started a farm on this machine gets in without typing a token; nobody else does, and no port is trusted.

use crate::{
    farm::{Up, json, signal, wait_for},
    support::{World, transcript},
};
use std::{
    fs,
    net::TcpListener,
    os::unix::fs::{MetadataExt as _, chown},
    path::PathBuf,
    process::{Command, Output},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// A command for the coordinator's address, of somebody who has no token.
fn without_token(world: &World, up: &Up, args: &[&str]) -> Command {
    let mut command = world.command(args);
    command.env("PLANFORGE_SERVER", &up.url);
    command
}

/// The record that the coordinator has left.
fn record(world: &World, up: &Up) -> PathBuf {
    let name = up.url.trim_start_matches("http://").replace(':', "_");
    world.root().join("home/.local/state/planforge/servers").join(name)
}

fn said(world: &World, output: &Output) -> String {
    transcript(world.root(), output)
}

#[test]
fn the_owner_types_no_token_and_others_need_one() {
    let world = World::new();
    let up = Up::start(&world);
    assert!(record(&world, &up).is_file());
    let tokens = without_token(&world, &up, &["token", "list", "--json"]).output().unwrap();
    assert_eq!(json(&tokens)["tokens"][0]["name"], "admin", "{}", said(&world, &tokens));
    let checked = without_token(&world, &up, &["doctor", "--json"]).output().unwrap();
    let checked = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(checked.contains("admin as local"), "{checked}");
    let opened = json(&without_token(&world, &up, &["open", "--json"]).output().unwrap());
    let link = opened["url"].as_str().unwrap();
    assert!(link.starts_with(&format!("{}/login?once=", up.url)), "{link}");
    let by_data = world.run(&["open", "--data", "up"]);
    assert!(String::from_utf8_lossy(&by_data.stdout).starts_with(&format!("{}/login?once=", up.url)));

    // The same machine, another home: as another user or a container comes.
    let stranger = |args: &[&str]| {
        let mut command = without_token(&world, &up, args);
        command.env("HOME", world.root().join("elsewhere")).output().unwrap()
    };
    for args in [&["jobs"][..], &["token", "list"], &["token", "create", "x", "--role", "admin"], &["open"]] {
        let refused = stranger(args);
        assert_eq!(refused.status.code(), Some(5), "{args:?}: {}", said(&world, &refused));
    }
    // A token that is given is the one that is used, also by the owner.
    let bad = without_token(&world, &up, &["jobs", "--token", "pf_0"]).output().unwrap();
    assert_eq!(bad.status.code(), Some(5), "{}", said(&world, &bad));
}

#[test]
fn an_agent_of_the_owner_joins_without_a_token() {
    let world = World::new();
    let up = Up::start(&world);
    let mut agent = without_token(&world, &up, &["agent", "--name", "second", "--state", "second"]);
    agent.args(["--lock-dir", "locks"]).stderr(fs::File::create(world.root().join("agent.log")).unwrap());
    let mut agent = agent.spawn().unwrap();
    wait_for("the second agent", || {
        let devices = json(&without_token(&world, &up, &["devices", "--json"]).output().unwrap());
        devices["devices"].as_array()?.iter().any(|device| device["agent"] == "second").then_some(())
    });
    signal(&agent, "-TERM");
    assert!(agent.wait().unwrap().success());
}

#[test]
fn a_record_of_somebody_else_is_not_believed() {
    let world = World::new();
    let up = Up::start(&world);
    let record = record(&world, &up);
    if !fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0) {
        return planforge_skipped::skipped("only root can give a file to somebody else");
    }
    for theirs in [record.clone(), record.parent().unwrap().to_owned()] {
        chown(&theirs, Some(65_534), None).unwrap();
        let refused = without_token(&world, &up, &["jobs"]).output().unwrap();
        let said = said(&world, &refused);
        assert_eq!(refused.status.code(), Some(5), "{said}");
        assert!(said.contains("belongs to another user") && said.contains("--token-file"), "{said}");
        // With a token nothing there is looked at.
        assert!(up.command(&world, &["jobs"]).output().unwrap().status.success());
        chown(&theirs, Some(0), None).unwrap();
    }
    assert!(without_token(&world, &up, &["jobs"]).output().unwrap().status.success());
}

#[test]
fn whoever_takes_over_the_port_of_a_dead_coordinator_hears_nothing() {
    let world = World::new();
    let mut up = Up::start(&world);
    up.child.kill().unwrap();
    up.child.wait().unwrap();
    let address = up.url.trim_start_matches("http://").to_owned();
    let taken = wait_for("the port", || TcpListener::bind(&address).ok());
    let heard = Arc::new(AtomicUsize::new(0));
    let counter = heard.clone();
    std::thread::spawn(move || {
        for _ in taken.incoming() {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    for args in [&["jobs"][..], &["token", "list"], &["devices"]] {
        let gone = without_token(&world, &up, args).output().unwrap();
        let said = said(&world, &gone);
        assert_eq!(gone.status.code(), Some(4), "{args:?}: {said}");
        assert!(said.contains("does not run any more") && said.contains("hint: start it again with --data"), "{said}");
    }
    assert_eq!(heard.load(Ordering::Relaxed), 0, "nothing was sent to the port");
    // One that is started again there replaces the record; one that ends well takes it away.
    drop(up);
    let up = Up::start(&world);
    assert!(without_token(&world, &up, &["jobs"]).output().unwrap().status.success());
    let record = record(&world, &up);
    drop(up);
    assert!(!record.exists());
}

#[test]
fn the_flag_that_asked_for_tokens_is_still_taken() {
    let world = World::new();
    let mut command = world.command(&["up", "--data", "up", "--listen", "127.0.0.1:0", "--require-token"]);
    let log = world.root().join("up.log");
    command.stdout(fs::File::create(world.root().join("up.out")).unwrap()).stderr(fs::File::create(&log).unwrap());
    let mut child = command.spawn().unwrap();
    let log = wait_for("its words", || {
        let log = fs::read_to_string(&log).ok()?;
        log.contains("every address asks for a token, 127.0.0.1 too").then_some(log)
    });
    assert!(log.contains("--require-token does nothing any more"), "{log}");
    signal(&child, "-TERM");
    child.wait().unwrap();
}
