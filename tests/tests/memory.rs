//! A worker that the kernel kills for want of memory: in a control group of this test's own, with too little of it.

use planforge_tests::{
    farm::{Farm, Link, id_of, is_ended},
    models,
    process::Process,
};
use std::{fs, io, path::PathBuf, process::Command};

/// What the small agent and its workers may use together.
const LIMIT_BYTES: u64 = 300 << 20;
/// Values of the model's input, and of its output: more than half a gigabyte with both.
const VALUES: i64 = 80 << 20;

/// A control group with a limit; it goes when it is dropped, and all its processes have ended.
struct Group(PathBuf);

impl Group {
    /// `Err`: why there can be none here.
    fn new() -> Result<Self, String> {
        let mut why = String::new();
        // Version 1, then version 2.
        for (root, limit) in [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")] {
            let folder = PathBuf::from(root).join(format!("planforge-test-{}", std::process::id()));
            let made = fs::create_dir(&folder).and_then(|()| {
                let group = Self(folder.clone());
                if folder.join(limit).exists() {
                    fs::write(folder.join(limit), LIMIT_BYTES.to_string())?;
                    return Ok(group);
                }
                Err(io::Error::other(format!("it has no {limit}")))
            });
            match made {
                Ok(group) => return Ok(group),
                Err(error) => why += &format!("{}: {error}; ", folder.display()),
            }
        }
        Err(why)
    }

    /// The command, to run in this group.
    fn enter(&self, command: &Command) -> Command {
        let mut inside = Command::new("sh");
        inside.args(["-ec", "echo $$ > \"$0\"; exec \"$@\""]).arg(self.0.join("cgroup.procs"));
        inside.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            inside.current_dir(folder);
        }
        inside
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // One with processes stays; the next boot takes it away.
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_worker_that_is_killed_for_memory_is_tried_once_where_there_is_more() {
    let group = match Group::new() {
        Ok(group) => group,
        Err(why) => return planforge_skipped::skipped(format_args!("no control group can be made here: {why}")),
    };
    let farm = Farm::start(Link::Loopback);
    let large = farm.start_agent("large", "large", None);
    farm.wait_agents(1);
    let sku = ["--sku", "cpu-x86-64-v2", "--threads", "1"];
    // Keeps the large one busy until the small one has the other job.
    let busy = models::convolutions(&farm.path().join("busy.onnx"), 8, 64, 56, 1);
    let busy = id_of(&farm.submit(&busy, &[&sku[..], &["--builds", "8"]].concat())[0]);
    farm.wait_job(&busy, "runs", |job| job["state"] == "running");
    let command = group.enter(&farm.agent_command(&farm.url, "small", "small", None));
    let small = Process::start("agent-small", farm.path(), command);
    farm.wait_agents(2);

    let model = models::relu_of_shape(&farm.path().join("large.onnx"), &[1, VALUES]);
    let id = id_of(&farm.submit(&model, &sku)[0]);
    let first = farm.wait_job(&id, "was tried", |job| job["attempts"].as_array().is_some_and(|all| !all.is_empty()));
    assert_eq!(first["attempts"][0]["agent"], "small", "{first}");
    farm.wait_job(&id, "failed there", |job| {
        is_ended(job) || job["attempts"][0]["outcome"].as_str().is_some_and(|outcome| outcome != "running")
    });
    farm.json(&["cancel", &busy]);
    let job = farm.wait_ended(&id);
    let attempts = job["attempts"].as_array().expect("attempts");
    assert_eq!((&attempts[0]["failure"]["class"], attempts.len()), (&"resource".into(), 2), "{job}");
    let said = attempts[0]["failure"]["message"].as_str().unwrap_or_default();
    assert!(said.contains("memory ran out") && said.contains("has 300 MiB of it"), "{said}");
    assert_eq!((&attempts[1]["agent"], &job["state"]), (&"large".into(), &"succeeded".into()), "{job}");
    drop((small, large));
}
