//! Clients and coordinators of different releases.

use super::{Clone, declare, states, with_agent};
use planforge_tests::{process, releases};
use serde_json::Value;

/// A new client asks a farm that has none of what is new: engines are built, locked, checked and fetched as before.
#[test]
fn a_farm_of_the_release_before_keeps_no_pins_and_does_all_the_rest() {
    let (farm, _agent) = with_agent();
    let one = Clone::new(&farm, "one");
    declare(&one, &[("alpha", 121)], "");
    let before = releases::previous(&farm);
    let run = |arguments: &[&str]| {
        let mut command = one.command(arguments);
        command.env("PLANFORGE_SERVER", &before).arg("--json");
        let output = process::run(command);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let document: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
        (output.status.code(), document, said)
    };
    let (code, synced, said) = run(&["sync"]);
    assert_eq!((code, &synced["ok"], &synced["written"]), (Some(0), &true.into(), &true.into()), "{said}");
    assert!(said.contains("not pinned") && said.contains("is of an earlier release"), "{said}");
    assert!(said.contains("does not know what is declared here"), "{said}");
    for problem in [&synced["pinned"]["problem"], &synced["registered"]["problem"]] {
        assert!(problem.as_str().is_some_and(|words| words.contains("earlier release")), "{synced:#}");
    }
    let (code, checked, said) = run(&["check", "--strict"]);
    assert_eq!((code, &checked["pinned"]["engines"]), (Some(0), &0.into()), "{said}");
    assert!(states(&checked).iter().all(|(_, state)| state == "present"), "{checked:#}");
    let (code, fetched, said) = run(&["fetch", "--sku", super::skus()[0]]);
    assert_eq!((code, &fetched["engines"][0]["from"]), (Some(0), &"farm".into()), "{said}");
    // Who asks for what it does not have is told so, with a code of its own.
    for arguments in [&["pins", "list"][..], &["config", "farm"]] {
        let (code, told, said) = run(arguments);
        assert_eq!((code, &told["error"]["code"]), (Some(6), &"unsupported".into()), "{said}");
        assert!(told["error"]["hint"].as_str().is_some_and(|hint| hint.contains("upgrade")), "{told:#}");
    }
    // After the upgrade the next check pins.
    assert_eq!(one.json(&["check"])["pinned"]["engines"], super::skus().len());
}
