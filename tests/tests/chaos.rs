//! Everything at once for a while: agents and coordinator killed, agents stopped beyond their leases, connections cut,
//! replies lost, tokens revoked; jobs submitted all the while. Then what the farm promised is held against what it has:
//! every acknowledged job ended, once; every blob has its bytes; no event is missing, neither in the store nor in a watch
//! that went on meanwhile.
//!
//! `PLANFORGE_CHAOS_S` says for how long, 100 seconds otherwise; `PROPTEST_RNG_SEED` what happens in which order.

#![expect(clippy::print_stdout, reason = "what happened, and with which seed, for whoever reads the log")]

use nix::sys::signal::Signal;
use planforge_tests::{
    eventually,
    farm::{Farm, Link, id_of},
    models, pause,
    process::{self, Process},
    proxy::Proxy,
};
use rand::{RngExt as _, SeedableRng as _, rngs::Xoshiro256PlusPlus};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fs::{self, File},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

const LEASE: [&str; 4] = ["--heartbeat-ms", "200", "--lease-ms", "1500"];
/// Longer than a lease.
const STOPPED: Duration = Duration::from_millis(2_500);
/// Models that jobs are of; then they are of these again.
const MODELS: u32 = 40;
/// Jobs that may wait or run before more are submitted: the farm is quiet again soon after the last of what goes wrong.
const LIVE_MAX: u64 = 6;

/// One agent, which comes back whatever happens to it.
struct Host {
    name: String,
    token_name: String,
    token: String,
    agent: Process,
    /// Stopped until then.
    until: Option<Instant>,
}

impl Host {
    fn start(farm: &Farm, proxy: &Proxy, name: &str, generation: u32) -> Self {
        let token_name = format!("{name}-{generation}");
        let token = eventually("a token for an agent", || token(farm, &token_name));
        let agent = farm.start_agent_at(&proxy.url(), name, name, Some(&token));
        Self { name: name.to_owned(), token_name, token, agent, until: None }
    }

    fn restart(&mut self, farm: &Farm, proxy: &Proxy) {
        self.agent.kill_9();
        self.until = None;
        self.agent = farm.start_agent_at(&proxy.url(), &self.name, &self.name, Some(&self.token));
    }

    fn go_on_when_due(&mut self, now: Instant) {
        if self.until.is_some_and(|until| now >= until) {
            self.agent.signal(Signal::SIGCONT);
            self.until = None;
        }
    }
}

/// A new token of role agent. The coordinator may be away.
fn token(farm: &Farm, name: &str) -> Result<String, String> {
    let made = said(farm.cli(&["token", "create", name, "--role", "agent", "--json"]));
    let document: Value = serde_json::from_slice(&made.stdout).map_err(|_| format!("{made:?}"))?;
    document["secret"].as_str().map(str::to_owned).ok_or_else(|| document.to_string())
}

fn said(mut command: Command) -> Output {
    command.stdin(Stdio::null()).output().expect("the binary runs")
}

/// What happened, for whoever reads the log.
#[derive(Debug, Default)]
struct Told {
    agent_kills: u32,
    coordinator_kills: u32,
    stops: u32,
    cuts: u32,
    lost_replies: u32,
    revocations: u32,
}

/// Jobs that wait or run; `None` while the coordinator is away.
fn live(farm: &Farm) -> Option<u64> {
    let states = ["--state", "queued", "--state", "leased", "--state", "running"];
    let listed = said(farm.cli(&[&["jobs", "--json", "--limit", "1"], &states[..]].concat()));
    serde_json::from_slice::<Value>(&listed.stdout).ok()?["total"].as_u64()
}

fn seconds() -> u64 {
    env::var("PLANFORGE_CHAOS_S").ok().and_then(|text| text.parse().ok()).unwrap_or(100)
}

fn submit(farm: &Farm, proxy: &Proxy, seed: u32) -> std::process::Child {
    let path = farm.path().join(format!("chaos-{}.onnx", seed % MODELS));
    let model = if path.is_file() { path } else { models::convolutions(&path, 1, 8, 8, seed % MODELS) };
    let mut command = farm.cli(&["submit", model.to_str().expect("UTF-8"), "--wait-for-device", "--json", "--tag"]);
    command.args([format!("chaos-{seed}"), "--sku".into(), "cpu-x86-64-v2".into(), "--threads".into(), "1".into()]);
    // The same model again is a new job.
    command.args((seed >= MODELS).then_some("--force"));
    command.env("PLANFORGE_SERVER", proxy.url()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the binary runs")
}

#[test]
fn every_promise_holds_while_everything_goes_wrong() {
    let seed = env::var("PROPTEST_RNG_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    println!("PROPTEST_RNG_SEED={seed}");
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut farm = Farm::start_with(Link::Loopback, &LEASE);
    let proxy = Proxy::to(&farm.url);
    let mut generation = 0;
    let mut hosts: Vec<Host> = ["left", "right"].map(|name| Host::start(&farm, &proxy, name, 0)).into();
    farm.wait_agents(2);
    let watched = farm.path().join("watch.jsonl");
    let mut watch = farm.cli(&["watch", "--since", "0", "--json"]);
    watch.env("PLANFORGE_SERVER", proxy.url()).stdout(File::create(&watched).expect("a file"));
    watch.stderr(File::create(farm.path().join("watch.err")).expect("a file"));
    let mut watch = watch.spawn().expect("the binary runs");

    let end = Instant::now() + Duration::from_secs(seconds());
    let mut told = Told::default();
    let (mut acknowledged, mut refused) = (BTreeSet::new(), Vec::new());
    let mut submitting: Vec<std::process::Child> = Vec::new();
    let mut submitted = 0;
    while Instant::now() < end {
        pause(Duration::from_millis(random.random_range(200..1_200)));
        hosts.iter_mut().for_each(|host| host.go_on_when_due(Instant::now()));
        if submitting.len() < 3 && live(&farm).is_none_or(|live| live < LIVE_MAX) {
            submitting.push(submit(&farm, &proxy, submitted));
            submitted += 1;
        }
        let at = random.random_range(0..hosts.len());
        match random.random_range(0..100) {
            0..15 => {
                hosts[at].restart(&farm, &proxy);
                told.agent_kills += 1;
            }
            15..27 => {
                farm.kill_coordinator();
                farm.restart_coordinator();
                told.coordinator_kills += 1;
            }
            27..37 if hosts[at].until.is_none() => {
                hosts[at].agent.signal(Signal::SIGSTOP);
                hosts[at].until = Some(Instant::now() + STOPPED);
                told.stops += 1;
            }
            37..55 => {
                proxy.cut();
                told.cuts += 1;
            }
            55..65 => {
                // Of the next submission: taken, and its caller does not hear of it.
                proxy.swallow_replies_to(format!("chaos-{submitted}").as_bytes());
                submitting.push(submit(&farm, &proxy, submitted));
                submitted += 1;
                eventually("a reply is lost", || proxy.has_swallowed().then_some(()).ok_or(String::new()));
                farm.kill_coordinator();
                proxy.cut();
                farm.restart_coordinator();
                told.lost_replies += 1;
            }
            65..70 => {
                let gone = said(farm.cli(&["token", "revoke", &hosts[at].token_name]));
                if gone.status.success() {
                    generation += 1;
                    let name = hosts[at].name.clone();
                    hosts[at].agent.kill_9();
                    hosts[at] = Host::start(&farm, &proxy, &name, generation);
                    told.revocations += 1;
                }
            }
            _ => {}
        }
        submitting.retain_mut(|child| match child.try_wait() {
            Ok(Some(_)) => {
                take(child, &mut acknowledged, &mut refused);
                false
            }
            _ => true,
        });
    }
    println!("{submitted} submissions; {told:?}");

    // Quiet again.
    for host in &mut hosts {
        host.go_on_when_due(Instant::now() + STOPPED);
    }
    for mut child in submitting {
        eventually("a submission ends", || match child.try_wait() {
            Ok(Some(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        });
        take(&mut child, &mut acknowledged, &mut refused);
    }
    assert_eq!(refused, Vec::<String>::new(), "whoever submits waits for a coordinator that comes back");
    farm.wait_agents(2);
    let mut ends: BTreeMap<String, u32> = BTreeMap::new();
    for id in &acknowledged {
        let job = farm.wait_ended(id);
        *ends.entry(job["state"].as_str().unwrap_or_default().to_owned()).or_default() += 1;
        // A job that lost its agent too often ends as one that did.
        let lost = || job["failure"]["class"] == "infrastructure" && job["attempt"].as_u64() >= Some(3);
        assert!(job["state"] == "succeeded" || (job["state"] == "failed" && lost()), "{job}");
    }
    println!("{} acknowledged jobs: {ends:?}", acknowledged.len());
    assert!(ends.get("succeeded").is_some_and(|count| *count > 0), "nothing was built");
    check_store(&farm);
    check_events(&farm, &acknowledged, &watched);
    // It ends when it is told to.
    let _ = watch.kill();
    let _ = watch.wait();
}

/// Notes what a submission that has ended was told.
fn take(child: &mut std::process::Child, acknowledged: &mut BTreeSet<String>, refused: &mut Vec<String>) {
    use std::io::Read as _;
    let (mut out, mut err) = (String::new(), String::new());
    let read = child.stdout.take().map(|mut stream| stream.read_to_string(&mut out));
    let _ = child.stderr.take().map(|mut stream| stream.read_to_string(&mut err));
    let reply: Value = serde_json::from_str(&out).unwrap_or_default();
    match reply["jobs"].as_array() {
        Some(jobs) if read.is_some() => acknowledged.extend(jobs.iter().map(id_of)),
        _ => refused.push(format!("{out}{err}")),
    }
}

/// Every blob that is named is there with its bytes, and of every job's end there is one engine.
fn check_store(farm: &Farm) {
    let mut check = farm.cli(&["admin", "check", "--read", "--json", "--data"]);
    check.arg(farm.data()).env_remove("PLANFORGE_SERVER");
    let output = process::run(check);
    assert!(output.status.success(), "{output:?}");
    let engines = farm.json(&["engines", "--all"]);
    let plans: Vec<(&str, &str)> = engines["engines"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|engine| Some((engine["engine_key"].as_str()?, engine["plan_digest"].as_str()?)))
        .collect();
    let distinct: BTreeSet<_> = plans.iter().collect();
    assert_eq!(distinct.len(), plans.len(), "an artifact is published once");
}

fn numbers(lines: &str) -> Vec<(u64, Value)> {
    let events = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let durable = events.filter(|event| event["what"] != "progress");
    durable.filter_map(|event| Some((event["seq"].as_u64()?, event))).collect()
}

/// Events count from one without a gap, each job ends once in them, and who watched all the while saw the same.
fn check_events(farm: &Farm, acknowledged: &BTreeSet<String>, watched: &std::path::Path) {
    let all = said(farm.cli(&["watch", "--since", "0", "--json", "--timeout", "3"]));
    let events = numbers(&String::from_utf8_lossy(&all.stdout));
    let seqs: Vec<u64> = events.iter().map(|(seq, _)| *seq).collect();
    assert!(seqs.iter().copied().eq(1..=seqs.len() as u64), "a gap: {seqs:?}");
    let mut ends: BTreeMap<&str, u32> = BTreeMap::new();
    for (_, event) in &events {
        let id = event["job"]["id"].as_str().unwrap_or_default();
        if matches!(event["what"].as_str(), Some("succeeded" | "failed" | "cancelled")) {
            *ends.entry(id).or_default() += 1;
        }
    }
    assert!(ends.values().all(|count| *count == 1), "a job ended twice: {ends:?}");
    assert!(acknowledged.iter().all(|id| ends.contains_key(id.as_str())), "a job's end has no event");
    println!("{} events", seqs.len());
    eventually("the watch has seen all of it", || {
        let lines = fs::read_to_string(watched).map_err(|error| error.to_string())?;
        let seen: Vec<u64> = numbers(&lines).into_iter().map(|(seq, _)| seq).collect();
        if seen == seqs { Ok(()) } else { Err(format!("{} of {} events", seen.len(), seqs.len())) }
    });
}
