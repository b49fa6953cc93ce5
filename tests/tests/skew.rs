//! Releases that work together: today's program with one built as the release before it, and as the one after, each as
//! coordinator and as agent; and what is said where two are too far apart.
//!
//! The other program is the whole of today's with another range of protocols and another number of release
//! (`cli/examples/other-release.rs`). `PLANFORGE_LAST_RELEASE` names a binary of a real release, with which
//! `the_last_release_that_was_built_works_with_this_one` does the same.

use planforge_postgres_server::Server;
use planforge_proto::protocol::{COMPILES_SINCE, OLDEST_PROTOCOL, PROTOCOL, RELEASE};
use planforge_skipped::skipped;
use planforge_tests::{
    eventually,
    farm::{id_of, is_ended},
    models,
    process::{self, Process},
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

const SKU: &str = "cpu-x86-64-v2";

/// A program of some release.
#[derive(Clone, Debug)]
struct Program {
    path: PathBuf,
    /// What it says of itself; `None`: what it was built as.
    speaks: Option<String>,
}

/// Today's.
fn today() -> Program {
    Program { path: process::planforge().to_owned(), speaks: None }
}

/// Today's with another number of release, the oldest that it works with, and other protocols.
fn other(release: &str, oldest_release: &str, protocols: (u32, u32)) -> Program {
    let speaks = format!("{release} {oldest_release} {} {}", protocols.0, protocols.1);
    Program { path: process::other_release().to_owned(), speaks: Some(speaks) }
}

/// The release before a change of the contract: it speaks what was spoken until then. It had this number, since none was
/// released yet.
fn before() -> Program {
    other(RELEASE, "0.1", (OLDEST_PROTOCOL, PROTOCOL - 1))
}

/// A later release, by minor versions, with the number of the one before it.
fn later(releases: u64, protocols: (u32, u32)) -> Program {
    let mut parts = RELEASE.split('.').map(|part| part.parse::<u64>().expect("a release is numbers"));
    let (major, minor) = parts.next().zip(parts.next()).expect("a major and a minor version");
    let minor = minor + releases;
    other(&format!("{major}.{minor}.0"), &format!("{major}.{}", minor - 1), protocols)
}

/// One farm, whose members are of several releases.
struct Farm {
    folder: TempDir,
    /// Where the farm's rows are; `None`: in the coordinator's folder.
    database: Option<(Server, String)>,
}

/// A coordinator that serves.
struct Coordinator {
    process: Process,
    url: String,
}

impl Farm {
    fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("planforge-test-").tempdir().expect("a temporary folder");
        Self { folder, database: None }
    }

    /// One whose coordinators share a database; `None`, and told, where there is none.
    fn of_several() -> Option<Self> {
        let server = Server::start()?;
        let store = server.database("farm");
        Some(Self { database: Some((server, store)), ..Self::new() })
    }

    fn home(&self, name: &str) -> PathBuf {
        let home = self.folder.path().join(name);
        fs::create_dir_all(&home).expect("a home folder");
        home
    }

    fn command(&self, program: &Program, home: &str) -> Command {
        let mut command = process::command_of(&program.path, &self.home(home));
        command.envs(program.speaks.iter().map(|speaks| ("OTHER_RELEASE", speaks)));
        command
    }

    /// Starts a coordinator and waits until it answers, leading or, where another leads, standing by.
    fn coordinator(&self, program: &Program, name: &str) -> Coordinator {
        let mut command = self.command(program, name);
        command.args(["coordinator", "--listen", "127.0.0.1:0", "--data"]).arg(self.home(&format!("{name}-data")));
        if let Some((_, store)) = &self.database {
            command.env("PLANFORGE_STORE", store).arg("--blobs").arg(self.folder.path().join("blobs"));
        }
        let mut process = Process::start(name, self.folder.path(), command);
        let line = match name {
            "standby" => process.wait_for_line("listening at"),
            _ => process.wait_for_line("url "),
        };
        let at = line.rfind("http").unwrap_or_else(|| panic!("no URL in '{line}'"));
        let url = line[at..].split_whitespace().next().unwrap_or_default().to_owned();
        Coordinator { process, url }
    }

    fn cli(&self, program: &Program, url: &str, arguments: &[&str]) -> Command {
        let token = eventually("the first coordinator writes its admin token", || {
            fs::read_to_string(self.folder.path().join("first-data/admin.token")).map_err(|error| error.to_string())
        });
        let mut command = self.command(program, "user");
        command.env("PLANFORGE_SERVER", url).env("PLANFORGE_TOKEN", token.trim()).args(arguments);
        command
    }

    fn json(&self, program: &Program, url: &str, arguments: &[&str]) -> Value {
        process::run_json(self.cli(program, url, arguments))
    }

    /// Starts an agent; whether it joins is seen later.
    fn agent(&self, program: &Program, url: &str, name: &str) -> Process {
        let mut command = self.cli(program, url, &["agent", "--measure-budget-s", "1", "--name", name, "--state"]);
        command.arg(self.home(&format!("{name}-state"))).arg("--lock-dir").arg(self.home("locks"));
        Process::start(name, self.folder.path(), command)
    }

    /// Waits until an agent is there; which protocol is spoken with it, as the coordinator says.
    fn joined(&self, program: &Program, url: &str, name: &str) -> u64 {
        eventually(&format!("the agent {name} is there"), || {
            let told = self.json(program, url, &["agents", "list", "--json"]);
            let agents = told["agents"].as_array().into_iter().flatten();
            let mut online = agents.filter(|agent| agent["name"] == name && agent["online"] == true);
            // A release of before they were numbered tells of none.
            online.next().map(|agent| agent["protocol"].as_u64().unwrap_or(0)).ok_or_else(|| told.to_string())
        })
    }

    fn submit(&self, program: &Program, url: &str, seed: u32, further: &[&str]) -> String {
        let model = models::convolutions(&self.folder.path().join(format!("m{seed}.onnx")), 2, 16, 16, seed);
        let mut arguments = vec!["submit", model.to_str().expect("UTF-8"), "--sku", SKU, "--threads", "1", "--json"];
        arguments.extend(further);
        id_of(&self.json(program, url, &arguments)["jobs"][0])
    }

    fn wait_job(&self, url: &str, id: &str, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("job {id} {what}"), || {
            let output = process::run(self.cli(&today(), url, &["jobs", id, "--json"]));
            let reply: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let job = reply["jobs"][0].clone();
            if condition(&job) { Ok(job) } else { Err(job.to_string()) }
        })
    }

    /// The job has ended well, and its plan comes whole to the commands of each of the programs.
    fn check_built(&self, programs: &[&Program], url: &str, id: &str) {
        let job = self.wait_job(url, id, "ends", is_ended);
        assert_eq!((&job["state"], &job["attempt"]), (&"succeeded".into(), &1.into()), "{job}");
        let digest = job["plan_digest"].as_str().expect("a plan digest");
        for (at, program) in programs.iter().enumerate() {
            let plan = self.folder.path().join(format!("{id}-{at}.plan"));
            let mut fetch = self.cli(program, url, &["fetch", digest, "-o"]);
            fetch.arg(&plan);
            let output = process::run(fetch);
            assert!(output.status.success(), "{program:?}: {output:?}");
            assert_eq!(hex::encode(Sha256::digest(fs::read(&plan).expect("the plan"))), digest);
            let looked = self.json(program, url, &["inspect", plan.to_str().expect("UTF-8"), "--json"]);
            assert!(looked.to_string().contains("native"), "{looked}");
        }
    }
}

/// Builds an engine on an agent of the one release for a coordinator of the other, asked for by each of `asking`, and fetched
/// by the commands of both; they speak `protocol` (`None`: what the other release tells of is not known).
fn build_across(coordinator: &Program, agent: &Program, asking: &[&Program], protocol: Option<u32>) {
    let farm = Farm::new();
    let first = farm.coordinator(coordinator, "first");
    let mut agents = farm.agent(agent, &first.url, "one");
    let spoken = farm.joined(&today(), &first.url, "one");
    assert!(protocol.is_none_or(|protocol| u64::from(protocol) == spoken), "{coordinator:?}, {agent:?}: {spoken}");
    for (seed, asks) in (1..).zip(asking) {
        let id = farm.submit(asks, &first.url, seed, &[]);
        farm.check_built(&[coordinator, agent], &first.url, &id);
    }
    assert!(agents.is_running(), "{}", agents.log());
}

/// The same where the two differ by what they say alone.
fn build_both_ways(other: &Program, todays_is_told: u32, other_is_told: u32) {
    build_across(&today(), other, &[other], Some(todays_is_told));
    build_across(other, &today(), &[&today()], Some(other_is_told));
}

#[test]
fn the_release_before_builds_for_todays_coordinator_and_today_for_the_one_before() {
    build_both_ways(&before(), PROTOCOL - 1, PROTOCOL - 1);
}

#[test]
fn the_release_after_builds_for_todays_coordinator_and_today_for_the_one_after() {
    let after = later(1, (PROTOCOL, PROTOCOL + 1));
    build_both_ways(&after, PROTOCOL, PROTOCOL);
}

#[test]
fn agents_and_coordinators_of_before_protocols_were_numbered_work_with_today() {
    assert_eq!(OLDEST_PROTOCOL, 1, "without it they are refused, which is to be said in CHANGELOG.md");
    let unnumbered = other(RELEASE, "0.1", (0, 0));
    build_both_ways(&unnumbered, 1, 0);
}

#[test]
fn an_agent_of_the_release_before_is_not_given_what_it_does_not_know() {
    let farm = Farm::new();
    let first = farm.coordinator(&today(), "first");
    let _old = farm.agent(&other(RELEASE, "0.1", (1, COMPILES_SINCE - 1)), &first.url, "old");
    assert_eq!(farm.joined(&today(), &first.url, "old"), u64::from(COMPILES_SINCE - 1));
    let ahead = farm.submit(&today(), &first.url, 1, &["--compile-only"]);
    let told = farm.wait_job(&first.url, &ahead, "waits", |job| job["waiting_reason"] != "");
    assert_eq!(told["state"], "queued", "{told}");
    assert!(told["waiting_reason"].as_str().is_some_and(|why| why.contains("agent of this release")), "{told}");
    // It does not wait behind it for what it does know.
    let id = farm.submit(&today(), &first.url, 2, &[]);
    farm.check_built(&[&today()], &first.url, &id);
    let told = farm.wait_job(&first.url, &ahead, "is told", |job| job["state"] != "");
    assert_eq!((&told["state"], &told["attempt"]), (&"queued".into(), &0.into()), "{told}");
}

/// An agent of the one release is refused by a coordinator of the other; both say `words`.
fn refuse_across(coordinator: &Program, agent: &Program, words: &[String]) {
    let farm = Farm::new();
    let mut first = farm.coordinator(coordinator, "first");
    let mut agents = farm.agent(agent, &first.url, "one");
    // It will not be let in however often it asks: it ends.
    assert!(!agents.wait().success());
    first.process.wait_for_line("does not work with this coordinator");
    for (side, said) in [("agent", agents.log()), ("coordinator", first.process.log())] {
        let line = said.lines().find(|line| line.contains("does not work with this coordinator"));
        let line = line.unwrap_or_else(|| panic!("the {side} says no word of it: {said}"));
        assert!(words.iter().all(|word| line.contains(word)), "the {side}: {line} lacks one of {words:?}");
        assert!(said.contains("run the same release on every host"), "the {side}: {said}");
    }
    let told = farm.json(&today(), &first.url, &["agents", "list", "--json"]);
    assert_eq!(told["agents"], serde_json::json!([]), "it never joined");
}

#[test]
fn what_is_two_releases_apart_is_refused_with_both_numbers_on_both_sides() {
    let two_later = later(2, (PROTOCOL, PROTOCOL + 2));
    let release = two_later.speaks.as_deref().and_then(|text| text.split(' ').next()).expect("a release").to_owned();
    let both = |theirs: &str, age: &str, here: &str| {
        vec![format!("it is release {theirs}, which is too {age} for this release ({here})")]
    };
    refuse_across(&today(), &two_later, &both(&release, "new", RELEASE));
    refuse_across(&two_later, &today(), &both(RELEASE, "old", &release));
    // A neighbour that speaks nothing of what this one does.
    let stranger = later(1, (PROTOCOL + 1, PROTOCOL + 2));
    let known = |theirs: String, oldest: u32, newest: u32| vec![theirs, format!("protocols {oldest} to {newest}")];
    let theirs = format!("it speaks protocol {} at the oldest, which is too new", PROTOCOL + 1);
    refuse_across(&today(), &stranger, &known(theirs, OLDEST_PROTOCOL, PROTOCOL));
    let ours = format!("it speaks protocol {PROTOCOL} at the newest, which is too old");
    refuse_across(&stranger, &today(), &known(ours, PROTOCOL + 1, PROTOCOL + 2));
}

#[test]
fn a_farm_is_upgraded_coordinator_by_coordinator_and_then_its_agents() {
    let Some(farm) = Farm::of_several() else { return };
    let (today, before) = (today(), before());
    let mut first = farm.coordinator(&before, "first");
    let standby = farm.coordinator(&today, "standby");
    let mut agent = farm.agent(&before, &standby.url, "one");
    assert_eq!(farm.joined(&today, &standby.url, "one"), u64::from(PROTOCOL - 1));
    let id = farm.submit(&before, &standby.url, 1, &[]);
    // The older one ends as it is asked to, whatever runs, and the newer one leads.
    first.process.signal(nix::sys::signal::Signal::SIGTERM);
    assert!(first.process.wait().success());
    farm.check_built(&[&before, &today], &standby.url, &id);
    assert_eq!(farm.joined(&today, &standby.url, "one"), u64::from(PROTOCOL - 1), "the agent is of before still");
    agent.signal(nix::sys::signal::Signal::SIGTERM);
    agent.wait();
    let _agent = farm.agent(&today, &standby.url, "one");
    eventually("the agent is of today", || match farm.joined(&today, &standby.url, "one") {
        spoken if spoken == u64::from(PROTOCOL) => Ok(()),
        spoken => Err(format!("protocol {spoken}")),
    });
    let id = farm.submit(&today, &standby.url, 2, &[]);
    farm.check_built(&[&today], &standby.url, &id);
}

#[test]
fn the_last_release_that_was_built_works_with_this_one() {
    let Some(path) = env::var_os("PLANFORGE_LAST_RELEASE") else {
        return skipped("PLANFORGE_LAST_RELEASE names no binary of the last release");
    };
    let last = Program { path: Path::new(&path).to_owned(), speaks: None };
    build_across(&today(), &last, &[&last, &today()], None);
    build_across(&last, &today(), &[&today(), &last], None);
}
