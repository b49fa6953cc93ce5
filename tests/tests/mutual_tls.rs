//! Certificates of agents and of the coordinator, as processes: enrolled with a one-time token, read again on SIGHUP; and
//! the files that secrets lie in.

use nix::sys::signal::Signal;
use planforge_tests::{
    eventually,
    farm::{Farm, Link, write_certificates},
    models, process,
    process::Process,
};
use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).permissions().mode() & 0o777
}

/// An agent that has no token but a file for its enrollment.
fn enrolled_agent(farm: &Farm, name: &str, file: &Path) -> Process {
    let home = farm.home(name);
    let locks = farm.path().join(format!("locks-{name}"));
    fs::create_dir_all(&locks).expect("a lock folder");
    let mut command = farm.command_as(&home, None);
    command.args(["agent", "--measure-budget-s", "1", "--name", name, "--enroll"]).arg(file);
    command.arg("--state").arg(home.join("state")).arg("--lock-dir").arg(locks);
    Process::start(name, farm.path(), command)
}

#[test]
fn an_agent_enrolls_once_builds_with_its_certificate_and_reads_it_again_on_sighup() {
    let mut farm = Farm::start_with(Link::Tls, &["--agent-certificates", "require"]);
    let file = farm.path().join("rack-1.once");
    let create = ["token", "create", "rack-1", "--role", "enroll", "-o", file.to_str().expect("UTF-8")];
    let made = farm.json(&create);
    assert_eq!(made["token_file"].as_str(), file.to_str());
    assert!(made.get("secret").is_none(), "{made}");
    assert_eq!(mode(&file), 0o600);
    let again = process::run(farm.cli(&create));
    assert_eq!(again.status.code(), Some(2), "never over a file that is there: {again:?}");

    let mut agent = enrolled_agent(&farm, "rack-1", &file);
    farm.wait_agents(1);
    let state = farm.home("rack-1").join("state");
    assert_eq!((mode(&state), mode(&state.join("identity/key.pem"))), (0o700, 0o600));
    let model = models::convolutions(&farm.path().join("m.onnx"), 2, 16, 14, 7);
    let jobs = farm.submit(&model, &["--sku", "cpu-x86-64-v2", "--threads", "1"]);
    let job = farm.wait_ended(&planforge_tests::farm::id_of(&jobs[0]));
    assert_eq!(job["state"], "succeeded", "{job}");

    // Both sides read their files again and go on.
    agent.signal(Signal::SIGHUP);
    eventually("the agent reads its certificate again", || match agent.log() {
        log if log.contains("read the certificate again") => Ok(()),
        log => Err(log),
    });
    write_certificates(farm.path());
    farm.coordinator.signal(Signal::SIGHUP);
    eventually("the coordinator reads its certificates again", || match farm.coordinator.log() {
        log if log.contains("read certificates and keys again") => Ok(()),
        log => Err(log),
    });
    // The command line is shown the new certificate, which the new authority signed.
    farm.wait_agents(1);
    assert!(agent.is_running() && farm.coordinator.is_running());

    // A second start needs no token, and the used one enrolls nobody else.
    agent.signal(Signal::SIGTERM);
    assert!(agent.wait().success());
    fs::rename(&file, farm.path().join("used.once")).expect("the file is ours");
    let _again = enrolled_agent(&farm, "rack-1", &file);
    farm.wait_agents(1);
    let mut other = enrolled_agent(&farm, "rack-2", &farm.path().join("used.once"));
    assert_eq!(other.wait().code(), Some(5), "{}", other.log());
    assert!(other.log().contains("cannot enroll"), "{}", other.log());
}

#[test]
fn files_of_secrets_that_others_may_read_are_refused() {
    let farm = Farm::start(Link::Loopback);
    let file = farm.path().join("token");
    fs::write(&file, &farm.admin).expect("the test's folder is writable");
    let status = |file_mode: u32, arguments: &[&str]| {
        fs::set_permissions(&file, fs::Permissions::from_mode(file_mode)).expect("the file is ours");
        let mut command = farm.command_as(&farm.home("user"), None);
        command.arg("jobs").arg("--token-file").arg(&file).args(arguments);
        let output = process::run(command);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(status(0o600, &[]).0, Some(0));
    let (code, said) = status(0o644, &[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("0644") && said.contains("--allow-readable-key"), "{said}");
    assert_eq!(status(0o644, &["--allow-readable-key"]).0, Some(0));
}

#[test]
fn the_owner_of_the_data_folder_replaces_the_first_token_of_a_running_farm_and_of_a_stopped_one() {
    let mut farm = Farm::start(Link::Loopback);
    let data = farm.data();
    let knows = |farm: &Farm, secret: &str| {
        let mut command = farm.command_as(&farm.home("user"), Some(secret));
        command.arg("jobs");
        process::run(command).status.code()
    };
    let replace = |home: &Path| {
        let mut command = process::command(home);
        command.args(["token", "replace-admin", "--json", "--data"]).arg(&data);
        process::run_json(command);
        fs::read_to_string(data.join("admin.token")).expect("the new token").trim().to_owned()
    };
    let first = farm.admin.clone();
    let second = replace(&farm.home("owner"));
    assert_eq!((knows(&farm, &first), knows(&farm, &second)), (Some(5), Some(0)), "while it runs");
    assert_eq!(mode(&data.join("admin.token")), 0o600);

    farm.kill_coordinator();
    let third = replace(&farm.home("owner"));
    farm.restart_coordinator();
    assert_eq!((knows(&farm, &second), knows(&farm, &third)), (Some(5), Some(0)), "and while it does not");

    let nowhere = farm.home("nowhere");
    let mut command = process::command(&nowhere);
    command.args(["token", "replace-admin", "--data"]).arg(nowhere.join("data"));
    assert_eq!(process::run(command).status.code(), Some(2));
    assert!(!nowhere.join("data").exists(), "no farm is made where there is none");
}
