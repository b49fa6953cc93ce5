//! kill -9 of coordinator, agent and worker in each phase of a job, and the promises that must hold afterwards:
//! nothing acknowledged is lost, every job ends once, one engine per key whose bytes match, never two workers on one
//! device, a dead holder's job runs again, no repair step.

use nix::sys::signal::Signal;
use planforge_tests::{
    eventually,
    farm::{Farm, Link, id_of, is_ended},
    models,
    process::{self, Process},
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::{fs, path::Path};

/// Phases a job passes through on its agent, and what names each.
const PHASES: [&str; 4] = ["compile", "verify", "upload", "measure"];

struct Case {
    farm: Farm,
    agent: Process,
}

impl Case {
    fn start() -> Self {
        let farm = Farm::start(Link::Loopback);
        let agent = farm.start_agent("one", "host", None);
        farm.wait_agents(1);
        Self { farm, agent }
    }

    /// Submits a job and waits until it has reached `phase` (or is past it: phases can be short).
    fn submit_and_wait_for(&self, phase: &str, seed: u32) -> String {
        let model = models::convolutions(&self.farm.path().join(format!("m{seed}.onnx")), 6, 64, 28, seed);
        let jobs = self.farm.submit(&model, &["--sku", "cpu-x86-64-v2", "--threads", "1"]);
        let id = id_of(&jobs[0]);
        let index = PHASES.iter().position(|p| *p == phase);
        self.farm.wait_job(&id, &format!("reaches {phase}"), |job| {
            let at = job["phase"].as_str().and_then(|now| PHASES.iter().position(|p| *p == now));
            is_ended(job) || (job["state"] == "running" && at >= index)
        });
        id
    }

    fn workers(&self) -> Vec<i32> {
        let folder = self.farm.path().to_string_lossy().into_owned();
        let all = process::processes_with(&["worker"]);
        let ours = |pid: &i32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            String::from_utf8_lossy(&environment).contains(&folder)
        };
        all.into_iter().filter(ours).collect()
    }

    /// The job ends in success, once, with one engine whose bytes match.
    fn check_success(&self, id: &str) -> Value {
        let job = self.farm.wait_ended(id);
        assert_eq!(job["state"], "succeeded", "{job}");
        let digest = job["plan_digest"].as_str().expect("a plan digest");
        let out = self.farm.home("user").join(format!("{id}.plan"));
        let mut fetch = self.farm.cli(&["fetch", digest, "-o"]);
        fetch.arg(&out);
        let output = process::run(fetch);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(hex::encode(Sha256::digest(fs::read(&out).expect("the plan"))), digest);
        let engines = self.farm.json(&["engines"]);
        let of_key = engines["engines"]
            .as_array()
            .map_or(0, |all| all.iter().filter(|engine| engine["engine_key"] == job["engine_key"]).count());
        assert_eq!(of_key, 1, "one engine per key: {engines}");
        // Ended is ended: a look a moment later shows the same.
        assert_eq!(self.farm.wait_ended(id)["ended_ms"], job["ended_ms"]);
        job
    }
}

#[test]
fn a_killed_coordinator_loses_nothing_and_leases_are_resumed() {
    let mut case = Case::start();
    for (seed, phase) in PHASES.iter().enumerate() {
        let id = case.submit_and_wait_for(phase, 10 + seed as u32);
        let before = case.farm.job(&id).expect("the job");
        case.farm.kill_coordinator();
        case.farm.restart_coordinator();
        let job = case.check_success(&id);
        if !is_ended(&before) {
            assert_eq!(job["attempt"], before["attempt"], "{phase}: resumed, not requeued: {job}");
        }
    }
    assert!(case.agent.is_running(), "the agent lives on");
}

#[test]
fn a_submission_that_was_acknowledged_survives_the_coordinator() {
    let mut farm = Farm::start(Link::Loopback);
    let agent = farm.start_agent("one", "host", None);
    farm.wait_agents(1);
    drop(agent);
    for seed in 0..5 {
        let model = models::convolutions(&farm.path().join(format!("s{seed}.onnx")), 1, 8, 8, 50 + seed);
        let id = id_of(&farm.submit(&model, &["--sku", "cpu-x86-64-v2", "--threads", "1"])[0]);
        farm.kill_coordinator();
        farm.restart_coordinator();
        let job = farm.job(&id).unwrap_or_else(|| panic!("job {id} was acknowledged and is lost"));
        assert!(!is_ended(&job), "{job}");
    }
}

#[test]
fn a_killed_agent_takes_its_worker_along_and_its_job_runs_again() {
    let mut case = Case::start();
    for (seed, phase) in PHASES.iter().enumerate() {
        let id = case.submit_and_wait_for(phase, 20 + seed as u32);
        case.agent.kill_9();
        eventually("the worker died with its agent", || {
            let left = case.workers();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        });
        case.agent = case.farm.start_agent("one", "host", None);
        let job = case.check_success(&id);
        assert!(job["attempt"].as_u64() <= Some(2), "{phase}: {job}");
    }
}

#[test]
fn a_killed_worker_is_an_infrastructure_failure_and_is_tried_again() {
    let mut case = Case::start();
    for (seed, phase) in PHASES.iter().enumerate() {
        let id = case.submit_and_wait_for(phase, 30 + seed as u32);
        for worker in case.workers() {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(worker), Signal::SIGKILL);
        }
        let job = case.check_success(&id);
        let detail = case.farm.json(&["jobs", &id]);
        assert!(job["attempt"].as_u64() <= Some(2), "{phase}: {detail}");
    }
    assert!(case.agent.is_running(), "the agent outlives its workers");
}

#[test]
fn a_cancelled_job_leaves_its_device_free() {
    let case = Case::start();
    let id = case.submit_and_wait_for("compile", 40);
    case.farm.json(&["cancel", &id]);
    let job = case.farm.wait_ended(&id);
    assert_eq!(job["state"], "cancelled", "{job}");
    eventually("the worker is gone", || {
        let left = case.workers();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    let next = case.submit_and_wait_for("measure", 41);
    case.check_success(&next);
}

#[test]
fn two_agents_on_one_host_never_run_two_workers_on_one_device() {
    let case = Case::start();
    let _second = case.farm.start_agent("two", "host", None);
    case.farm.wait_agents(2);
    let ids: Vec<String> = (0..4)
        .map(|seed| {
            let model = models::convolutions(&case.farm.path().join(format!("p{seed}.onnx")), 3, 32, 28, 60 + seed);
            id_of(&case.farm.submit(&model, &["--sku", "cpu-x86-64-v2", "--threads", "1"])[0])
        })
        .collect();
    eventually("all jobs end, one worker at a time", || {
        let workers = case.workers();
        assert!(workers.len() <= 1, "two workers share one device: {workers:?}");
        let ended = ids.iter().filter(|id| case.farm.job(id).is_some_and(|job| is_ended(&job))).count();
        if ended == ids.len() { Ok(()) } else { Err(format!("{ended} of {}", ids.len())) }
    });
    for id in &ids {
        case.check_success(id);
    }
}

#[test]
fn an_agent_asked_to_stop_finishes_its_job_first() {
    let mut case = Case::start();
    let id = case.submit_and_wait_for("compile", 70);
    case.agent.signal(Signal::SIGTERM);
    let status = case.agent.wait();
    assert!(status.success(), "drained: {status}\n{}", case.agent.log());
    let job = case.farm.job(&id).expect("the job");
    assert_eq!(job["state"], "succeeded", "{job}");
    assert_eq!(job["attempt"], 1, "{job}");
}

#[test]
fn a_flipped_bit_in_a_plan_is_seen_before_it_is_run() {
    let case = Case::start();
    let jobs = case.farm.submit(&models::digits(), &["--sku", "cpu-x86-64-v2", "--threads", "1"]);
    let id = id_of(&jobs[0]);
    case.check_success(&id);
    let plan = case.farm.home("user").join(format!("{id}.plan"));
    let good = fs::read(&plan).expect("the plan");
    for at in [0, good.len() / 3, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        let path = case.farm.home("user").join("bad.plan");
        fs::write(&path, bad).expect("written");
        let output = process::run(case.farm.cli(&["bench", path.to_str().expect("UTF-8")]));
        assert!(!output.status.success(), "byte {at}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("bad.plan"), "names the file: {said}");
    }
    // The same in the coordinator's own store: whoever fetches it is told, and gets no file.
    let digest = hex::encode(Sha256::digest(&good));
    let blob = find(&case.farm.data(), &digest).expect("the blob lies under its digest");
    let mut bytes = fs::read(&blob).expect("the blob");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    #[expect(clippy::permissions_set_readonly_false, reason = "the test's own folder")]
    {
        let mut permissions = fs::metadata(&blob).expect("metadata").permissions();
        permissions.set_readonly(false);
        fs::set_permissions(&blob, permissions).expect("writable");
    }
    fs::write(&blob, bytes).expect("written");
    let out = case.farm.home("user").join("flipped.plan");
    let mut fetch = case.farm.cli(&["fetch", &digest, "-o"]);
    fetch.arg(&out);
    let output = process::run(fetch);
    assert!(!output.status.success() && !out.exists(), "{output:?}");
}

/// The file of that name below a folder.
fn find(folder: &Path, name: &str) -> Option<std::path::PathBuf> {
    fs::read_dir(folder).ok()?.flatten().find_map(|entry| {
        let path = entry.path();
        if path.is_dir() { find(&path, name) } else { (entry.file_name() == name).then_some(path) }
    })
}
