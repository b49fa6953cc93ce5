//! Everything at once for a while, for a farm of two coordinators over PostgreSQL and S3 with eight agents: agents and
//! coordinators killed and stopped beyond their leases, ways cut and led nowhere, the database ended and begun again and
//! its replica promoted, the store refusing, slow, and losing what it answers; jobs submitted all the while. Then every job
//! has ended, once; of every key there is one artifact; no device was leased twice at a time; no event is missing, neither
//! in the database nor in a watch that went on meanwhile.
//!
//! `PLANFORGE_CHAOS_S` says for how long, 15 seconds otherwise; `PROPTEST_RNG_SEED` what happens in which order. Clocks
//! jump in the simulation (`coordinator/tests/it/simulation.rs`), which has two coordinators too.

#![expect(clippy::print_stdout, reason = "what happened, and with which seed, for whoever reads the log")]

use nix::sys::signal::Signal;
use planforge_postgres_server::Server;
use planforge_s3_server::{BUCKET, Fault, Proxy as StoreProxy, S3Server};
use planforge_tests::{
    eventually, models, pause,
    process::{self, Process},
    proxy::Proxy,
};
use rand::{RngExt as _, SeedableRng as _, rngs::Xoshiro256PlusPlus};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fs::{self, File},
    net::TcpListener,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};
use tempfile::TempDir;

const AGENTS: usize = 8;
const LEASE: [&str; 4] = ["--heartbeat-ms", "200", "--lease-ms", "1500"];
/// Longer than a lease, of an agent and of a leader.
const STOPPED: Duration = Duration::from_millis(2_500);
/// How long a way leads nowhere, and the store is in trouble.
const TROUBLE: Duration = Duration::from_millis(1_500);
/// Jobs that may wait or run before more are submitted.
const LIVE_MAX: u64 = 6;
/// Nobody listens there.
const NOWHERE: &str = "http://127.0.0.1:9";

/// A program that comes back whatever happens to it.
struct Member {
    process: Process,
    /// Stopped until then.
    until: Option<Instant>,
}

impl Member {
    fn go_on_when_due(&mut self, now: Instant) {
        if self.until.is_some_and(|until| now >= until) {
            self.process.signal(Signal::SIGCONT);
            self.until = None;
        }
    }

    fn stop(&mut self) -> bool {
        let may = self.until.is_none() && self.process.is_running();
        if may {
            self.process.signal(Signal::SIGSTOP);
            self.until = Some(Instant::now() + STOPPED);
        }
        may
    }
}

/// Where everything lies.
struct World {
    folder: TempDir,
    /// Whose rows count; the one that was before it stays until the end.
    database: Server,
    replica: Option<Server>,
    former: Option<Server>,
    /// How coordinators reach the database: its folder is a link, which leads elsewhere after the promotion.
    store: String,
    s3: S3Server,
    to_s3: StoreProxy,
    ports: [u16; 2],
}

impl World {
    fn new() -> Option<Self> {
        let database = Server::start()?;
        let folder = tempfile::Builder::new().prefix("planforge-test-").tempdir().expect("a temporary folder");
        let named = |path: &Path| path.to_string_lossy().replace('/', "%2F");
        let (way, socket) = (folder.path().join("database"), database.socket_folder().to_owned());
        symlink(&socket, &way).expect("a link");
        let store = database.database("farm").replace(&named(&socket), &named(&way));
        let replica = database.replica();
        database.sql("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'");
        database.sql("postgres", "SELECT pg_reload_conf()");
        eventually("the replica is waited for", || {
            let state = "SELECT COALESCE(MAX(sync_state), 'none') FROM pg_stat_replication";
            match database.sql("postgres", state).as_str() {
                "sync" | "quorum" => Ok(()),
                other => Err(other.to_owned()),
            }
        });
        let s3 = S3Server::start();
        let to_s3 = StoreProxy::before(s3.address());
        let ports = [free_port(), free_port()];
        Some(Self { folder, database, replica: Some(replica), former: None, store, s3, to_s3, ports })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn home(&self, name: &str) -> PathBuf {
        let home = self.path(name);
        fs::create_dir_all(&home).expect("a home folder");
        home
    }

    fn url(&self, at: usize) -> String {
        format!("http://127.0.0.1:{}", self.ports[at])
    }

    fn coordinator(&self, at: usize) -> Process {
        let name = format!("coordinator-{at}");
        let mut command = process::command(&self.home(&name));
        command
            .env("PLANFORGE_STORE", &self.store)
            .args(["coordinator", "--data"])
            .arg(self.path(&format!("data-{at}")));
        command.args(["--listen", &format!("127.0.0.1:{}", self.ports[at]), "--blobs", "s3://farm/blobs"]).args(LEASE);
        command.args(["--blobs-endpoint", &self.to_s3.endpoint(), "--blobs-direct", "60", "--blobs-keys"]);
        command.arg(self.s3.keys_file());
        Process::start(&name, self.folder.path(), command)
    }

    /// Waits until it answers, leading or standing by.
    fn wait_up(&self, at: usize) {
        eventually("a coordinator answers", || {
            let mut curl = Command::new("curl");
            curl.args(["-s", "-m", "5", &format!("{}/readyz", self.url(at))]);
            let said = String::from_utf8_lossy(&process::run(curl).stdout).into_owned();
            if said.starts_with("ready") || said.starts_with("forwards") { Ok(()) } else { Err(said) }
        });
    }

    fn agent(&self, at: usize, url: &str, token: &str) -> Process {
        let name = format!("agent-{at}");
        let home = self.home(&name);
        let mut command = process::command(&home);
        command.env("PLANFORGE_SERVER", url).env("PLANFORGE_TOKEN", token);
        command.args(["agent", "--measure-budget-s", "2", "--name", &name, "--state"]).arg(home.join("state"));
        command.arg("--lock-dir").arg(self.home(&format!("locks-{at}")));
        Process::start(&name, self.folder.path(), command)
    }

    fn cli(&self, url: &str, arguments: &[&str]) -> Command {
        let admin = fs::read_to_string(self.path("data-0/admin.token")).expect("an admin token");
        let mut command = process::command(&self.home("user"));
        command.env("PLANFORGE_SERVER", url).env("PLANFORGE_TOKEN", admin.trim()).args(arguments);
        command
    }

    /// A number that the database says; `None` while it is away.
    fn number(&self, sql: &str) -> Option<u64> {
        self.database.try_sql("farm", sql)?.parse().ok()
    }

    fn promote(&mut self) {
        let Some(replica) = self.replica.take() else { return };
        self.database.crash();
        replica.sql("postgres", "SELECT pg_promote()");
        let way = self.path("database");
        fs::remove_file(&way).expect("the link");
        symlink(replica.socket_folder(), &way).expect("a link");
        self.former = Some(std::mem::replace(&mut self.database, replica));
    }

    fn submit(&self, url: &str, seed: u32) -> Child {
        let model = models::convolutions(&self.path(&format!("chaos-{seed}.onnx")), 1, 8, 8, seed);
        let mut command = self.cli(url, &["submit", model.to_str().expect("UTF-8"), "--wait-for-device", "--json"]);
        command.args(["--sku", "cpu-x86-64-v2", "--threads", "1"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the binary runs")
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.expect("a port of loopback").port()
}

/// What a busy and failing store does to requests, by chance.
fn trouble(seed: u32) -> impl Fn(&planforge_s3_server::Seen) -> Fault + Send + Sync + 'static {
    let state = AtomicU32::new(seed | 1);
    move |_| {
        let next = |state: u32| state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let drawn = state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |state| Some(next(state))).unwrap_or(seed);
        match (drawn >> 16) % 10 {
            0 => Fault::Refused,
            1 => Fault::Answered(503, "SlowDown"),
            2 => Fault::Answered(500, "InternalError"),
            3 => Fault::AnswerLost,
            4 | 5 => Fault::Slow(Duration::from_millis(300)),
            _ => Fault::None,
        }
    }
}

/// What happened, for whoever reads the log.
#[derive(Debug, Default)]
struct Told {
    agent_kills: u32,
    agent_stops: u32,
    coordinator_kills: u32,
    coordinator_stops: u32,
    cuts: u32,
    partitions: u32,
    store_troubles: u32,
    database_ends: u32,
    promotions: u32,
}

#[test]
fn a_fleet_over_postgres_and_s3_keeps_every_promise_while_everything_goes_wrong() {
    let seed = env::var("PROPTEST_RNG_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let lasts_s: u64 = env::var("PLANFORGE_CHAOS_S").ok().and_then(|text| text.parse().ok()).unwrap_or(15);
    println!("PROPTEST_RNG_SEED={seed}");
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let Some(mut world) = World::new() else { return };
    let mut coordinators: Vec<Member> = Vec::new();
    for at in 0..2 {
        coordinators.push(Member { process: world.coordinator(at), until: None });
        world.wait_up(at);
    }
    // Each way is a load balancer's, to one of the two.
    let ways = [Proxy::to(&world.url(0)), Proxy::to(&world.url(1))];
    let mut lost_ways: [Option<Instant>; 2] = [None, None];
    let tokens: Vec<String> = (0..AGENTS)
        .map(|at| {
            let made = ["token", "create", &format!("agent-{at}"), "--role", "agent", "--json"];
            let made = process::run_json(world.cli(&world.url(0), &made));
            made["secret"].as_str().expect("a secret").to_owned()
        })
        .collect();
    let start = |world: &World, at: usize| world.agent(at, &ways[at % 2].url(), &tokens[at]);
    let mut agents: Vec<Member> = (0..AGENTS).map(|at| Member { process: start(&world, at), until: None }).collect();
    let watched = world.path("watch.jsonl");
    let mut watch = world.cli(&ways[0].url(), &["watch", "--since", "0", "--json"]);
    watch.stdin(Stdio::null()).stdout(File::create(&watched).expect("a file"));
    watch.stderr(File::create(world.path("watch.err")).expect("a file"));
    let mut watch = watch.spawn().expect("the binary runs");

    let (begin, end) = (Instant::now(), Instant::now() + Duration::from_secs(lasts_s));
    let mut told = Told::default();
    let (mut submitting, mut acknowledged, mut refused): (Vec<Child>, _, _) = (Vec::new(), BTreeSet::new(), Vec::new());
    let (mut submitted, mut store_until) = (0, None);
    while Instant::now() < end {
        pause(Duration::from_millis(random.random_range(100..500)));
        let now = Instant::now();
        agents.iter_mut().chain(&mut coordinators).for_each(|member| member.go_on_when_due(now));
        for at in 0..2 {
            // One that was paused past its lease ends by itself.
            if !coordinators[at].process.is_running() {
                coordinators[at] = Member { process: world.coordinator(at), until: None };
            }
            if lost_ways[at].is_some_and(|until| now >= until) {
                ways[at].point_at(&world.url(at));
                lost_ways[at] = None;
            }
        }
        if store_until.is_some_and(|until| now >= until) {
            world.to_s3.decide(|_| Fault::None);
            store_until = None;
        }
        let live = world.number("SELECT COUNT(*) FROM jobs WHERE ended_ms = 0");
        if submitting.len() < 3 && live.is_none_or(|live| live < LIVE_MAX) {
            submitting.push(world.submit(&ways[random.random_range(0..2)].url(), submitted));
            submitted += 1;
        }
        let (agent, one) = (random.random_range(0..AGENTS), random.random_range(0..2_usize));
        match random.random_range(0..100) {
            0..10 => {
                agents[agent].process.kill_9();
                agents[agent] = Member { process: start(&world, agent), until: None };
                told.agent_kills += 1;
            }
            10..18 => told.agent_stops += u32::from(agents[agent].stop()),
            18..28 => {
                coordinators[one].process.kill_9();
                coordinators[one] = Member { process: world.coordinator(one), until: None };
                told.coordinator_kills += 1;
            }
            28..36 => told.coordinator_stops += u32::from(coordinators[one].stop()),
            36..46 => {
                ways[one].cut();
                told.cuts += 1;
            }
            46..54 => {
                ways[one].point_at(NOWHERE);
                ways[one].cut();
                lost_ways[one] = Some(now + TROUBLE);
                told.partitions += 1;
            }
            54..66 => {
                world.to_s3.decide(trouble(random.random_range(0..u32::MAX)));
                store_until = Some(now + TROUBLE);
                told.store_troubles += 1;
            }
            66..70 => {
                world.database.crash();
                world.database.begin();
                told.database_ends += 1;
            }
            _ => {}
        }
        if told.promotions == 0 && begin.elapsed() > Duration::from_secs(lasts_s) / 2 {
            world.promote();
            told.promotions += 1;
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
    world.to_s3.decide(|_| Fault::None);
    for at in 0..2 {
        coordinators[at].go_on_when_due(Instant::now() + STOPPED);
        ways[at].point_at(&world.url(at));
    }
    agents.iter_mut().for_each(|agent| agent.go_on_when_due(Instant::now() + STOPPED));
    eventually("both coordinators serve", || {
        for (at, coordinator) in coordinators.iter_mut().enumerate() {
            if !coordinator.process.is_running() {
                *coordinator = Member { process: world.coordinator(at), until: None };
            }
        }
        let lead = world.number("SELECT COUNT(*) FROM leader WHERE expires_at > now()");
        if lead == Some(1) { Ok(()) } else { Err(format!("{lead:?}")) }
    });
    (0..2).for_each(|at| world.wait_up(at));
    for mut child in submitting {
        eventually("a submission ends", || match child.try_wait() {
            Ok(Some(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        });
        take(&mut child, &mut acknowledged, &mut refused);
    }
    println!("{} jobs acknowledged, {} submissions told of a failure: {refused:?}", acknowledged.len(), refused.len());
    assert!(acknowledged.len() >= refused.len(), "most were taken");
    eventually("every job ends", || match world.number("SELECT COUNT(*) FROM jobs WHERE ended_ms = 0") {
        Some(0) => Ok(()),
        other => Err(format!("{other:?} are live")),
    });
    check(&world, &acknowledged);
    check_watch(&world, &watched);
    // It ends when it is told to.
    let _ = watch.kill();
    let _ = watch.wait();
}

/// Notes what a submission that has ended was told.
fn take(child: &mut Child, acknowledged: &mut BTreeSet<String>, refused: &mut Vec<String>) {
    use std::io::Read as _;
    let (mut out, mut err) = (String::new(), String::new());
    let _ = child.stdout.take().map(|mut stream| stream.read_to_string(&mut out));
    let _ = child.stderr.take().map(|mut stream| stream.read_to_string(&mut err));
    let reply: Value = serde_json::from_str(&out).unwrap_or_default();
    match reply["jobs"].as_array() {
        Some(jobs) => acknowledged.extend(jobs.iter().filter_map(|job| Some(job["id"].as_str()?.to_owned()))),
        None => refused.push(err.lines().next().unwrap_or_default().to_owned()),
    }
}

/// Holds what the farm promised against its database and its bucket.
fn check(world: &World, acknowledged: &BTreeSet<String>) {
    let rows = |sql: &str| -> Vec<Vec<String>> {
        let text = world.database.sql("farm", sql);
        text.lines().map(|line| line.split('|').map(str::to_owned).collect()).collect()
    };
    // Every job ended exactly once, and every one that was acknowledged is there.
    let jobs: BTreeMap<String, String> =
        rows("SELECT id, state FROM jobs").into_iter().map(|row| (row[0].clone(), row[1].clone())).collect();
    assert!(acknowledged.iter().all(|id| jobs.contains_key(id)), "an acknowledged job is gone");
    let ended =
        "SELECT job, COUNT(*) FROM events WHERE what IN ('succeeded', 'failed', 'cancelled', 'skipped') GROUP BY job";
    let ends: BTreeMap<String, String> = rows(ended).into_iter().map(|row| (row[0].clone(), row[1].clone())).collect();
    assert!(ends.values().all(|count| count == "1"), "a job ended twice: {ends:?}");
    assert!(jobs.keys().all(|id| ends.contains_key(id)), "a job's end has no event");
    let mut states: BTreeMap<&str, u32> = BTreeMap::new();
    jobs.values().for_each(|state| *states.entry(state).or_default() += 1);
    println!("{} jobs: {states:?}", jobs.len());
    assert!(states.get("succeeded").is_some_and(|count| *count > 0), "nothing was built");
    let failed =
        "SELECT id, doc::jsonb -> 'failure' FROM jobs WHERE state = 'failed' AND doc NOT LIKE '%infrastructure%'";
    assert_eq!(rows(failed), Vec::<Vec<String>>::new(), "only lost agents and stores fail jobs here");
    // One artifact per key; its bytes are there, and no object has other bytes than its name says.
    let twice = "SELECT engine_key, COUNT(*) FROM engines GROUP BY engine_key HAVING COUNT(*) > 1";
    assert_eq!(rows(twice), Vec::<Vec<String>>::new(), "a key has two artifacts");
    let mut objects = BTreeSet::new();
    for key in world.s3.keys(BUCKET) {
        if let Some(hex) = key.strip_prefix("blobs/sha256/").and_then(|rest| rest.split('/').nth(1)) {
            let bytes = fs::read(world.s3.object(BUCKET, &key)).expect("an object");
            assert_eq!(hex::encode(Sha256::digest(&bytes)), hex, "{key}");
            objects.insert(hex.to_owned());
        }
    }
    let plans = rows("SELECT DISTINCT plan_digest FROM engines");
    assert!(plans.iter().all(|row| objects.contains(&row[0])), "a plan is gone");
    // Events count from one without a gap.
    assert_eq!(rows("SELECT MIN(seq) = 1, MAX(seq) = COUNT(*) FROM events"), [["t", "t"]], "a gap in the events");
    // No attempt was given twice, and no device to two jobs at a time. A lease that ran out may be revived until the job is
    // given to somebody else.
    let mut held: BTreeMap<String, String> = BTreeMap::new();
    let mut leases = BTreeSet::new();
    let events = rows("SELECT seq, job, attempt, what, detail FROM events WHERE what <> 'phase' ORDER BY seq");
    for row in &events {
        let [seq, job, attempt, what, detail] = &row[..] else { continue };
        if matches!(what.as_str(), "leased" | "requeued" | "succeeded" | "failed" | "cancelled") {
            held.retain(|_, holder| holder != job);
        }
        if what == "leased" {
            assert!(leases.insert((job, attempt)), "event {seq}: attempt {attempt} of {job} is given again");
            let before = held.insert(detail.clone(), job.clone());
            assert!(before.is_none(), "event {seq}: {detail} is held for {before:?} already: {events:#?}");
        }
    }
    println!("{} leases, {} objects", leases.len(), objects.len());
}

/// Who watched all the while saw every event that stands in the database, once and in order.
fn check_watch(world: &World, watched: &Path) {
    let stored = world.number("SELECT MAX(seq) FROM events").expect("the database answers");
    eventually("the watch has seen all of it", || {
        let lines = fs::read_to_string(watched).map_err(|error| error.to_string())?;
        let events = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let seen: Vec<u64> =
            events.filter(|event| event["what"] != "progress").filter_map(|e| e["seq"].as_u64()).collect();
        match seen.iter().copied().eq(1..=stored) {
            true => Ok(()),
            false => Err(format!("{} of {stored} events", seen.len())),
        }
    });
    println!("{stored} events");
}
