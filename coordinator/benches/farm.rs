//! How fast the farm is: what checking its own rules costs the scheduler, durable cycles at the store, durable cycles over
//! gRPC, the time from a call to the lease on an idle farm, and what beating agents cost and how soon they are back.
//!
//! `cargo bench -p planforge-coordinator --bench farm [-- rules|store|grpc|postgres|latency|agents]` prints one table; every durable
//! number stands beside the fsync rate of the same minute. `PLANFORGE_BENCH_CALLS` sets how many idle submissions are
//! timed (10,000 by default), `PLANFORGE_BENCH_AGENTS` how many agents there are (1,000). `postgres` is `store`, `grpc` and
//! `latency` over a server of its own in the folder for temporary files; `several` is about more than one coordinator.

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]

mod scripted;

use planforge_client::backoff::Backoff;
use planforge_coordinator::{
    core::{Change, CoreConfig, Event, Input, Job, JobState, Model, Now, Snapshot, State, Want, invariants},
    server::CoordinatorConfig,
    store::{PostgresConfig, PostgresStore, SqliteStore, Store},
};
use planforge_postgres_server::Server;
use planforge_proto::v1::{self, agent_message::Kind as Say, coordinator_message::Kind};
use planforge_types::{BuildSpec, Digest, EngineKey, Toolchain};
use scripted::{Bench, CALLERS, Outcome, SKU, Trouble, Way, connect, cycles, fsyncs, percentile, setting};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
const WINDOW: Duration = Duration::from_secs(8);
const FLEET: usize = 1_000;
const RECONNECTS_FIRST: Duration = Duration::from_millis(100);
const RECONNECTS_LONGEST: Duration = Duration::from_secs(3);

/// Brings the token to the other process of [`agents`].
const SECRET: &str = "PLANFORGE_BENCH_TOKEN";

fn main() -> Outcome {
    // Cargo passes `--bench`; what remains names one of the measurements.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let runtime = tokio::runtime::Runtime::new()?;
    if let [role, url] = words.as_slice()
        && role == "fleet"
    {
        let way = Way { url: url.clone(), secret: std::env::var(SECRET)? };
        return runtime.block_on(fleet(&way));
    }
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| word == name);
    if wanted("rules") {
        rules()?;
    }
    if wanted("store") {
        runtime.block_on(store(None))?;
    }
    if wanted("grpc") {
        runtime.block_on(cycles_over_grpc(None))?;
    }
    if wanted("postgres")
        && let Some(server) = Server::start()
    {
        runtime.block_on(store(Some(&server)))?;
        runtime.block_on(cycles_over_grpc(Some(&server)))?;
        runtime.block_on(latency(Some(&server)))?;
    }
    if wanted("latency") {
        runtime.block_on(latency(None))?;
    }
    if wanted("agents") {
        runtime.block_on(agents())?;
    }
    Ok(())
}

fn transition(seq: u64, what: &str, state: JobState) -> Change {
    Change::Event(Event {
        seq,
        at_ms: seq,
        job: format!("job{seq}").as_str().into(),
        actor: "bench".into(),
        what: what.into(),
        state,
        attempt: 1,
        phase: String::new(),
        detail: String::new(),
    })
}

/// A job that waits for a device.
fn waiting(number: usize) -> Result<Job, Box<dyn std::error::Error + Send + Sync>> {
    let (id, name) = (format!("job{number:06}"), "m".to_owned());
    let digest = Digest::of(id.as_bytes());
    let model = Model { digest, graph_digest: None, structure_digest: None, name, files: Vec::new() };
    let toolchain = Toolchain { backend: "native".into(), version: "1".into(), components: Default::default() };
    let key = Some(id_key(&id)?);
    let want = Want {
        request: id.clone(),
        actor: "bench".into(),
        project: "bench".into(),
        priority: 0,
        tags: Vec::new(),
        no_fallback: false,
        require: planforge_types::Requirement::default(),
    };
    let job = Job::queued(id.as_str().into(), model, SKU.parse()?, BuildSpec::default(), want, 1);
    Ok(Job { key, toolchain: Some(toolchain), wait_for_device: true, ..job })
}

fn id_key(id: &str) -> Result<EngineKey, Box<dyn std::error::Error + Send + Sync>> {
    Ok(Digest::of(id.as_bytes()).to_string().parse()?)
}

/// What the rules that are checked after every input cost, beside a check of the whole state.
fn rules() -> Outcome {
    const INPUTS: u32 = 200_000;
    for live in [100, 10_000, 100_000] {
        let jobs = (0..live).map(waiting).collect::<Result<Vec<_>, _>>()?;
        let now = Now { mono_ms: 0, wall_ms: 1 };
        let mut state = State::new(CoreConfig::default(), Snapshot { jobs, ..Snapshot::default() }, now);
        // Of a session that nobody has: all that is left to do is the check.
        let begin = Instant::now();
        for _ in 0..INPUTS {
            let effects = state.apply(Input::Heartbeat { session: 1, leases: Vec::new(), telemetry: Vec::new() }, now);
            if !effects.broken.is_empty() {
                return Err(effects.broken.join("; ").into());
            }
        }
        let input_us = begin.elapsed().as_secs_f64() * 1e6 / f64::from(INPUTS);
        let begin = Instant::now();
        invariants::check(&state).map_err(|broken| broken.join("; "))?;
        let whole_ms = begin.elapsed().as_secs_f64() * 1e3;
        println!("rules: {live} live jobs: {input_us:.2} us an input, {whole_ms:.2} ms the whole state");
    }
    Ok(())
}

/// Submit, lease and finish with their events, each its own durable commit, by 64 callers.
async fn store(server: Option<&Server>) -> Outcome {
    let folder = tempfile::tempdir_in(".")?;
    let store: Arc<dyn Store> = match server {
        Some(server) => Arc::new(PostgresStore::open(&postgres(server, "bench_store")).await?),
        None => Arc::new(SqliteStore::open(&folder.path().join("farm.db")).await?),
    };
    let epoch = store.acquire("bench", 1).await?;
    let (fsync_rate, _) = fsyncs(server.map_or(folder.path(), Server::socket_folder))?;
    let template = sample_job().await?;
    let (seq, cycles) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let begin = Instant::now();
    let callers = (0..CALLERS).map(|_| {
        let (store, seq, cycles, mut job) = (store.clone(), seq.clone(), cycles.clone(), template.clone());
        tokio::spawn(async move {
            while begin.elapsed() < WINDOW {
                let number = seq.fetch_add(3, Ordering::Relaxed) + 1;
                job.id = format!("job{number}").as_str().into();
                let steps =
                    [("submitted", JobState::Queued), ("leased", JobState::Leased), ("succeeded", JobState::Succeeded)];
                for (offset, (what, state)) in (0..).zip(steps) {
                    job.state = state;
                    job.ended_ms = u64::from(state.is_terminal());
                    let changes = vec![Change::Job(Arc::new(job.clone())), transition(number + offset, what, state)];
                    store.commit(epoch, changes).await?;
                }
                cycles.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<(), planforge_coordinator::store::StoreError>(())
        })
    });
    for caller in futures::future::join_all(callers).await {
        caller??;
    }
    let rate = cycles.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64();
    let wanted = (12.0 * fsync_rate).min(3_000.0);
    println!(
        "store{}: {rate:.0} cycles/s with {CALLERS} callers; {fsync_rate:.0} fsync/s; asked {wanted:.0}",
        over(server)
    );
    Ok(())
}

fn over(server: Option<&Server>) -> &'static str {
    server.map_or("", |_| " over PostgreSQL")
}

/// An empty database of that name.
fn postgres(server: &Server, name: &str) -> PostgresConfig {
    PostgresConfig { url: server.database(name), may_begin: true, ..PostgresConfig::default() }
}

/// A job as the farm makes it, from a farm that nothing is measured on.
async fn sample_job() -> Result<planforge_coordinator::core::Job, Box<dyn std::error::Error + Send + Sync>> {
    let folder = tempfile::tempdir_in(".")?;
    let bench = Bench::start(folder.path()).await?;
    let mut agent = connect(&bench.way, 0).await?;
    let mut farm = bench.way.farm().await?;
    farm.submit(bench.request.clone()).await?;
    agent.assigned().await?;
    drop(agent);
    bench.coordinator.shutdown().await;
    let store = SqliteStore::open(&folder.path().join("farm.db")).await?;
    let jobs = store.jobs(planforge_coordinator::store::JobFilter { limit: 1, ..Default::default() }).await?;
    jobs.into_iter().next().ok_or_else(|| "the sample job is gone".into())
}

/// 64 callers and 64 agents on one coordinator, everything over loopback gRPC.
async fn cycles_over_grpc(server: Option<&Server>) -> Outcome {
    let folder = tempfile::tempdir_in(".")?;
    let mut config = CoordinatorConfig::new(folder.path());
    config.postgres = server.map(|server| postgres(server, "bench_grpc"));
    let bench = Bench::start_with(config, folder.path()).await?;
    let (fsync_rate, _) = fsyncs(server.map_or(folder.path(), Server::socket_folder))?;
    let rate = cycles(std::slice::from_ref(&bench.way), &bench.request, bench.plan, WINDOW).await?;
    let rescued = bench.coordinator.farm().stats().await?.rescued_wakeups;
    let over = over(server);
    println!(
        "grpc{over}: {rate:.0} cycles/s with {CALLERS} callers; {fsync_rate:.0} fsync/s; rescued {rescued}; asked 1000"
    );
    bench.coordinator.shutdown().await;
    Ok(())
}

/// From the call to the moment the agent holds the lease, one at a time.
async fn latency(server: Option<&Server>) -> Outcome {
    let calls = setting("PLANFORGE_BENCH_CALLS", 10_000);
    let folder = tempfile::tempdir_in(".")?;
    let mut config = CoordinatorConfig::new(folder.path());
    config.postgres = server.map(|server| postgres(server, "bench_latency"));
    let bench = Bench::start_with(config, folder.path()).await?;
    let durable = server.map_or(folder.path(), Server::socket_folder);
    let mut agent = connect(&bench.way, 0).await?;
    let mut farm = bench.way.farm().await?;
    let (rate, before) = fsyncs(durable)?;
    let mut times = Vec::with_capacity(calls);
    for _ in 0..calls {
        let begin = Instant::now();
        let request = bench.request.clone();
        let (submitted, assigned) = tokio::join!(farm.submit(request), async {
            let assign = agent.assigned().await;
            (assign, begin.elapsed().as_secs_f64() * 1e3)
        });
        submitted?;
        times.push(assigned.1);
        agent.finish(assigned.0?, bench.plan).await?;
        while !matches!(agent.next().await?, Kind::FinishedAck(_)) {}
    }
    times.sort_by(f64::total_cmp);
    let (_, after) = fsyncs(durable)?;
    let rescued = bench.coordinator.farm().stats().await?.rescued_wakeups;
    println!(
        "latency{}: {calls} calls, p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms; fsync {rate:.0}/s, p50 {:.2}/{:.2} ms, p99 {:.2}/{:.2} ms (before/after); rescued {rescued}",
        over(server),
        percentile(&times, 0.5),
        percentile(&times, 0.99),
        percentile(&times, 1.0),
        percentile(&before, 0.5),
        percentile(&after, 0.5),
        percentile(&before, 0.99),
        percentile(&after, 0.99),
    );
    bench.coordinator.shutdown().await;
    Ok(())
}

/// The other process of [`agents`]: agents, each with a connection and beating every three seconds, that come back as the
/// real ones do.
async fn fleet(way: &Way) -> Outcome {
    let agents = (0..setting("PLANFORGE_BENCH_AGENTS", FLEET)).map(|number| {
        let way = way.clone();
        tokio::spawn(async move {
            let mut backoff = Backoff::new(RECONNECTS_FIRST, RECONNECTS_LONGEST);
            loop {
                if let Ok(mut agent) = connect(&way, number).await {
                    backoff = Backoff::new(RECONNECTS_FIRST, RECONNECTS_LONGEST);
                    let beating = tokio::spawn(beat(agent.out.clone()));
                    while agent.next().await.is_ok() {}
                    beating.abort();
                }
                tokio::time::sleep(backoff.next_delay()).await;
            }
        })
    });
    let _: Vec<Result<(), _>> = futures::future::join_all(agents).await;
    Ok(())
}

async fn beat(out: tokio::sync::mpsc::Sender<v1::AgentMessage>) {
    let mut beat = tokio::time::interval(Duration::from_secs(3));
    loop {
        beat.tick().await;
        let telemetry = vec![v1::DeviceTelemetry { device: "cpu0".into(), json: r#"{"load":0.5}"#.into() }];
        let kind = Some(Say::Heartbeat(v1::Heartbeat { leases: Vec::new(), telemetry }));
        if out.send(v1::AgentMessage { kind }).await.is_err() {
            return;
        }
    }
}

/// Resident memory in MiB and processor time in seconds of this process.
fn cost() -> Result<(f64, f64), Box<dyn std::error::Error + Send + Sync>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS")).ok_or("no VmRSS")?;
    let kib: f64 = line.split_whitespace().nth(1).ok_or("no number")?.parse()?;
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split_whitespace().collect();
    // utime and stime, in ticks of 10 ms on every Linux in use.
    let ticks = fields.get(11).ok_or("no utime")?.parse::<f64>()? + fields.get(12).ok_or("no stime")?.parse::<f64>()?;
    Ok((kib / 1024.0, ticks / 100.0))
}

/// Until all agents are there, in seconds.
async fn gathered(bench: &Bench, count: usize) -> Result<f64, Trouble> {
    let begin = Instant::now();
    while bench.coordinator.farm().stats().await?.agents_up < count as u64 {
        if begin.elapsed() > Duration::from_secs(120) {
            return Err("the agents do not connect".into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(begin.elapsed().as_secs_f64())
}

async fn agents() -> Outcome {
    let count = setting("PLANFORGE_BENCH_AGENTS", FLEET);
    let folder = tempfile::tempdir_in(".")?;
    let bench = Bench::start(folder.path()).await?;
    let mut child = tokio::process::Command::new(std::env::current_exe()?)
        .args(["fleet", &bench.way.url])
        .env(SECRET, &bench.way.secret)
        .kill_on_drop(true)
        .spawn()?;
    let connected_s = gathered(&bench, count).await?;
    let (_, cpu_before) = cost()?;
    let window = Instant::now();
    tokio::time::sleep(Duration::from_secs(15)).await;
    let (rss_mib, cpu_after) = cost()?;
    let share = 100.0 * (cpu_after - cpu_before) / window.elapsed().as_secs_f64();
    println!(
        "agents: {count} beating every 3 s (connected in {connected_s:.1} s): {rss_mib:.0} MiB, {share:.1} % of one core; asked 150 MiB, 20 % of 1,000, 400 MiB of 5,000"
    );
    let (mut config, address) = (CoordinatorConfig::new(folder.path()), bench.coordinator.address());
    bench.coordinator.shutdown().await;
    let begin = Instant::now();
    config.listen = address;
    let bench = Bench::start_at(config, folder.path()).await?;
    gathered(&bench, count).await?;
    println!(
        "agents: {count} are back {:.1} s after the coordinator ended; asked 15 s of 5,000",
        begin.elapsed().as_secs_f64()
    );
    child.kill().await?;
    bench.coordinator.shutdown().await;
    Ok(())
}
