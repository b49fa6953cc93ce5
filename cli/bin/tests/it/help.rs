//! Every command's help, so that no flag changes unseen.

use crate::support::World;

#[test]
fn the_overview_lists_commands_exit_codes_and_settings() {
    insta::assert_snapshot!("help", World::new().transcript(&["--help"]));
}

#[test]
fn every_command_has_its_help() {
    let world = World::new();
    let overview = String::from_utf8(world.run(&["-h"]).stdout).unwrap();
    let commands: Vec<_> = overview
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(commands.contains(&"build") && commands.contains(&"fetch"), "{overview}");
    for command in commands {
        insta::assert_snapshot!(format!("help-{command}"), world.transcript(&[command, "-h"]));
    }
    let actions = [
        ("token", ["create", "list", "revoke"].as_slice()),
        ("caches", &["list", "drop"]),
        ("plugins", &["list", "allow", "forbid"]),
        ("pause", &["list", "sku", "project", "agent"]),
        ("resume", &["sku", "project", "agent"]),
    ];
    for (command, actions) in actions {
        for action in actions {
            insta::assert_snapshot!(format!("help-{command}-{action}"), world.transcript(&[command, action, "-h"]));
        }
    }
}

#[test]
fn every_shell_gets_a_completion_script() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = World::new().run(&["completions", shell]);
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && script.contains("testmodel"), "{shell}");
    }
}
