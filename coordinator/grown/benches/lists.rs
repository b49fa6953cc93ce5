//! What a large farm costs: the time of lists, counts and submissions beside those of a small one, how long a start takes
//! and how much memory.
//!
//! `cargo bench -p planforge-grown --bench lists [-- WAITING FINISHED]` makes a farm of 1,000 waiting and 1,000
//! finished jobs and one of 100,000 and 1,000,000 (a few minutes, about 6 GB), each in a folder of its own that goes at the
//! end, and opens each in a process of its own. The two take turns, call by call, so that whatever else the machine does
//! falls on both. `PLANFORGE_BENCH_FOLDER` names a folder in which the large farm stays for the next time.
//!
//! `-- postgres [WAITING FINISHED]` does the same over PostgreSQL: both farms are databases of a server of its own in the
//! folder for temporary files (`TMPDIR`), which goes at the end.

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]

use futures::future::BoxFuture;
use planforge_coordinator::{
    auth::Actor,
    farm::Farm,
    server::{Coordinator, CoordinatorConfig},
    store::{CoverageFilter, PostgresConfig, PostgresStore},
};
use planforge_grown::{Size, Trouble, grow, grow_in, model_file};
use planforge_postgres_server::Server;
use planforge_proto::v1;
use planforge_retention::Policy;
use planforge_types::Digest;
use std::{
    io::{BufRead as _, BufReader, Lines, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// How often each call is timed on each farm.
const ROUNDS: usize = 101;
/// Brings the database of a farm to the process that opens it.
const STORE: &str = "PLANFORGE_BENCH_STORE";

type Outcome = Result<(), Trouble>;
/// A call that is timed, by its name in the table.
type Call = (String, Box<dyn Fn() -> BoxFuture<'static, Outcome>>);

fn main() -> Outcome {
    let mut words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let runtime = tokio::runtime::Runtime::new()?;
    if let [role, folder] = words.as_slice()
        && role == "measure"
    {
        return runtime.block_on(measure(Path::new(folder)));
    }
    let server = match words.first().is_some_and(|word| word == "postgres") {
        true => {
            words.remove(0);
            Some(Server::start().ok_or("there is no PostgreSQL")?)
        }
        false => None,
    };
    let number = |at: usize, usual: usize| words.get(at).map_or(Ok(usual), |word| word.parse());
    let large = Size { waiting: number(0, 100_000)?, finished: number(1, 1_000_000)?, plan_bytes: None };
    let small = Size { waiting: 1_000, finished: 1_000, plan_bytes: None };
    let temporary = tempfile::tempdir_in(".")?;
    let kept = std::env::var_os("PLANFORGE_BENCH_FOLDER").filter(|_| server.is_none());
    let root = kept.map_or(temporary.path().to_owned(), PathBuf::from);
    let place = |folder: PathBuf, name: &str| Place { folder, store: server.as_ref().map(|it| it.database(name)) };
    let small_place = place(temporary.path().join("small"), "small");
    let large_place = place(root.join(format!("farm-{}-{}", large.waiting, large.finished)), "large");
    runtime.block_on(made(&small_place, small))?;
    runtime.block_on(made(&large_place, large))?;
    if let Some(server) = &server {
        // As the server does by itself where a farm grew over years.
        for name in ["small", "large"] {
            server.sql(name, "VACUUM (ANALYZE)");
        }
    }
    let mut farms = [Measured::start(&small_place)?, Measured::start(&large_place)?];
    println!("{:<44} {:>10} {:>10} {:>7}", "medians", "small", "large", "ratio");
    let [small, large] = &farms;
    table(&small.starts, &large.starts);
    let calls = small.calls.len();
    let mut times = [vec![Vec::new(); calls], vec![Vec::new(); calls]];
    for round in 0..=ROUNDS {
        for call in 0..calls {
            // Neither farm is always the first.
            for turn in [round % 2, (round + 1) % 2] {
                let (Some(farm), Some(times)) = (farms.get_mut(turn), times.get_mut(turn)) else { continue };
                let time = farm.time(call)?;
                // The first call warms up.
                if let Some(times) = times.get_mut(call).filter(|_| round > 0) {
                    times.push(time);
                }
            }
        }
    }
    let [small, large] = farms;
    let [small_times, large_times] = times.map(|times| times.into_iter().map(median));
    table(&named(&small.calls, small_times), &named(&large.calls, large_times));
    table(&small.end()?, &large.end()?);
    println!("asked: lists, counts, submissions a ratio of 1.5 at most; start 3,000 ms; memory 400 MiB");
    Ok(())
}

fn named(names: &[String], figures: impl Iterator<Item = f64>) -> Vec<(String, f64)> {
    names.iter().map(|name| format!("{name}, ms")).zip(figures).collect()
}

fn table(small: &[(String, f64)], large: &[(String, f64)]) {
    for ((name, small), (_, large)) in small.iter().zip(large) {
        println!("{name:<44} {small:>10.3} {large:>10.3} {:>7.2}", large / small);
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Where a farm lies.
struct Place {
    folder: PathBuf,
    /// Its database, where that is PostgreSQL's.
    store: Option<String>,
}

impl Place {
    fn postgres(url: String) -> PostgresConfig {
        PostgresConfig { url, may_begin: true, ..PostgresConfig::default() }
    }
}

/// A farm that is open in a process of its own, which is told call by call what to do.
struct Measured {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    starts: Vec<(String, f64)>,
    calls: Vec<String>,
}

impl Measured {
    fn start(place: &Place) -> Result<Self, Trouble> {
        let mut command = Command::new(std::env::current_exe()?);
        if let Some(store) = &place.store {
            command.env(STORE, store);
        }
        command.arg("measure").arg(&place.folder).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let input = process.stdin.take().ok_or("no input")?;
        let output = BufReader::new(process.stdout.take().ok_or("no output")?).lines();
        let mut measured = Self { process, input, output, starts: Vec::new(), calls: Vec::new() };
        measured.starts = serde_json::from_str(&measured.line()?)?;
        measured.calls = serde_json::from_str(&measured.line()?)?;
        Ok(measured)
    }

    fn line(&mut self) -> Result<String, Trouble> {
        Ok(self.output.next().ok_or("the process of a farm ended")??)
    }

    /// How long a call took, milliseconds.
    fn time(&mut self, call: usize) -> Result<f64, Trouble> {
        writeln!(self.input, "{call}")?;
        Ok(self.line()?.parse()?)
    }

    /// Its memory.
    fn end(mut self) -> Result<Vec<(String, f64)>, Trouble> {
        writeln!(self.input, "end")?;
        let figures = serde_json::from_str(&self.line()?)?;
        self.process.wait()?;
        Ok(figures)
    }
}

/// Makes a farm where none was left by an earlier run.
async fn made(place: &Place, size: Size) -> Outcome {
    let folder = &place.folder;
    let done = folder.join("grown");
    if done.exists() {
        return Ok(());
    }
    std::fs::create_dir_all(folder)?;
    let begin = Instant::now();
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as u64;
    let grown = match &place.store {
        Some(url) => {
            let store = PostgresStore::open(&Place::postgres(url.clone())).await?;
            grow_in(&store, folder, size, now_ms, |_| ()).await?
        }
        None => grow(folder, size, now_ms, |_| ()).await?,
    };
    println!(
        "{} waiting, {} finished: {grown:?} in {:.0} s",
        size.waiting,
        size.finished,
        begin.elapsed().as_secs_f64()
    );
    Ok(std::fs::write(done, "")?)
}

/// Resident memory of this process in MiB: now, or the most so far.
fn memory_mib(line: &str) -> Result<f64, Trouble> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|text| text.starts_with(line)).ok_or("no such line")?;
    Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse::<f64>()? / 1024.0)
}

/// Opens one farm, and does what it is told, line by line.
async fn measure(folder: &Path) -> Outcome {
    let mut config = CoordinatorConfig::new(folder);
    config.listen = Some("127.0.0.1:0".parse()?);
    config.postgres = std::env::var(STORE).ok().map(Place::postgres);
    config.farm.max_live_jobs = 1_000_000;
    // Nothing goes: the farm stays as large as it was made.
    config.farm.retention =
        Policy { jobs_ms: None, superseded_ms: None, unused_ms: None, room_bytes: None, ..Policy::default() };
    let begin = Instant::now();
    let coordinator = Coordinator::start(config).await?;
    let starts = [("start, ms", begin.elapsed().as_secs_f64() * 1e3), ("memory after it, MiB", memory_mib("VmRSS")?)];
    println!("{}", serde_json::to_string(&starts)?);
    let bytes = model_file(0);
    let digest = Digest::of(&bytes).to_string();
    let file = v1::ModelFile { name: "m.onnx".into(), digest: digest.clone(), size_bytes: bytes.len() as u64 };
    coordinator.blobs().store(bytes.into()).await?;
    let model = v1::Model { digest, name: "m.onnx".into(), files: vec![file], ..v1::Model::default() };
    let farm = coordinator.farm();
    let calls: Vec<Call> = lists_of_jobs(farm)
        .await?
        .into_iter()
        .chain(lists_of_engines(farm))
        .chain(lists_of_history(farm))
        .chain(others(farm, model)?)
        .collect();
    let names: Vec<&String> = calls.iter().map(|(name, _)| name).collect();
    println!("{}", serde_json::to_string(&names)?);
    for line in std::io::stdin().lines() {
        let Ok(number) = line?.parse::<usize>() else { break };
        let (_, call) = calls.get(number).ok_or("no such call")?;
        let begin = Instant::now();
        call().await?;
        println!("{}", begin.elapsed().as_secs_f64() * 1e3);
    }
    let memory = [("memory, MiB", memory_mib("VmRSS")?), ("most memory, MiB", memory_mib("VmHWM")?)];
    println!("{}", serde_json::to_string(&memory)?);
    coordinator.shutdown().await;
    Ok(())
}

fn call<F>(name: &str, farm: &Farm, make: impl Fn(Farm) -> F + 'static) -> Call
where
    F: Future<Output = Outcome> + Send + 'static,
{
    let farm = farm.clone();
    (name.to_owned(), Box::new(move || Box::pin(make(farm.clone()))))
}

async fn lists_of_jobs(farm: &Farm) -> Result<Vec<Call>, Trouble> {
    let states = |states: &[v1::JobState]| states.iter().map(|state| i32::from(*state)).collect::<Vec<_>>();
    let any = || v1::ListJobsRequest { limit: 100, ..Default::default() };
    let queued = || v1::ListJobsRequest { states: states(&[v1::JobState::Queued]), ..any() };
    let ended = || v1::ListJobsRequest { states: states(&[v1::JobState::Succeeded]), ..any() };
    let refused = states(&[v1::JobState::Failed, v1::JobState::Cancelled]);
    // As many as the small farm has, too.
    let few = |limit| v1::ListJobsRequest { limit, ..Default::default() };
    let failed = v1::ListJobsRequest {
        project: "vision".into(),
        sku: "t4".into(),
        states: states(&[v1::JobState::Failed]),
        ..few(2)
    };
    let lists = [
        ("jobs", any()),
        ("jobs with their total", v1::ListJobsRequest { with_total: true, ..any() }),
        ("jobs with reports", v1::ListJobsRequest { with_reports: true, ..any() }),
        ("queued jobs", queued()),
        ("queued jobs, oldest first", v1::ListJobsRequest { order: v1::JobOrder::Oldest.into(), ..queued() }),
        ("failed and cancelled jobs", v1::ListJobsRequest { states: refused, limit: 50, ..Default::default() }),
        ("jobs of a device kind", v1::ListJobsRequest { sku: "h100-sxm".into(), ..any() }),
        ("jobs of a model", v1::ListJobsRequest { model: "model1.onnx".into(), ..any() }),
        ("jobs of a project", v1::ListJobsRequest { project: "vision".into(), ..any() }),
        ("failed jobs of a project and device kind", failed),
        ("jobs of a tag", v1::ListJobsRequest { tags: vec!["nightly".into()], ..few(20) }),
        ("jobs that ended last", v1::ListJobsRequest { order: v1::JobOrder::Ended.into(), ..any() }),
        ("ended jobs, a page in the middle", deep_page(farm, ended()).await?),
    ];
    let list = |(name, request): (&str, v1::ListJobsRequest)| {
        call(name, farm, move |farm| {
            let request = request.clone();
            async move { Ok(farm.list_jobs(&Actor::local(), request).await.map(drop)?) }
        })
    };
    Ok(lists.into_iter().map(list).collect())
}

/// The request of the sixth page.
async fn deep_page(farm: &Farm, mut request: v1::ListJobsRequest) -> Result<v1::ListJobsRequest, Trouble> {
    for _ in 0..5 {
        let reply = farm.list_jobs(&Actor::local(), request.clone()).await?;
        request.cursor = reply.next_cursor;
    }
    Ok(request)
}

fn lists_of_engines(farm: &Farm) -> impl Iterator<Item = Call> {
    // As many as the small farm has, too.
    let few = || v1::ListEnginesRequest { limit: 5, ..Default::default() };
    let lists = [
        ("engines", v1::ListEnginesRequest { limit: 50, ..Default::default() }),
        ("engines with their total", v1::ListEnginesRequest { limit: 50, with_total: true, ..Default::default() }),
        ("engines of a model", v1::ListEnginesRequest { model: "model1.onnx".into(), ..few() }),
        ("engines of a device kind", v1::ListEnginesRequest { sku: "t4".into(), ..few() }),
        ("engines of a project", v1::ListEnginesRequest { project: "vision".into(), ..few() }),
    ];
    let list = |(name, request): (&str, v1::ListEnginesRequest)| {
        call(name, farm, move |farm| {
            let request = request.clone();
            async move { Ok(farm.list_engines(&Actor::local(), request).await.map(drop)?) }
        })
    };
    lists.map(list).into_iter()
}

/// Lists of requests and of events.
fn lists_of_history(farm: &Farm) -> impl Iterator<Item = Call> {
    let any = || v1::ListRequestsRequest { limit: 50, with_total: true, ..Default::default() };
    let open = || v1::ListRequestsRequest { states: vec![v1::RequestState::Open.into()], ..any() };
    let requests = [
        ("requests with their total", any()),
        ("open requests", open()),
        ("failed requests", v1::ListRequestsRequest { states: vec![v1::RequestState::Failed.into()], ..any() }),
        ("open requests of a project", v1::ListRequestsRequest { project: "vision".into(), limit: 10, ..open() }),
    ];
    let requests = requests.map(|(name, request)| {
        call(name, farm, move |farm| {
            let request = request.clone();
            async move { Ok(farm.list_requests(&Actor::local(), request).await.map(drop)?) }
        })
    });
    let any = || v1::ListEventsRequest { limit: 50, ..Default::default() };
    let events = [
        ("events", any()),
        ("failed events", v1::ListEventsRequest { kinds: vec!["failed".into()], limit: 10, ..any() }),
        ("events of a project", v1::ListEventsRequest { project: "vision".into(), ..any() }),
    ];
    let events = events.map(|(name, request)| {
        call(name, farm, move |farm| {
            let request = request.clone();
            async move { Ok(farm.list_events(&Actor::local(), request).await.map(drop)?) }
        })
    });
    requests.into_iter().chain(events)
}

/// Counts and submissions.
fn others(farm: &Farm, model: v1::Model) -> Result<[Call; 5], Trouble> {
    // Other specs than in earlier runs, and than those of the farm's queue: they end where these begin.
    let first = 5_000_000 + SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() % 10_000_000;
    let submission = |name, force| {
        let (model, number) = (model.clone(), AtomicU64::new(first));
        call(name, farm, move |farm| {
            let request = v1::SubmitRequest {
                models: vec![model.clone()],
                skus: vec!["cpu-x86-64-v3".into()],
                specs_json: vec![format!(r#"{{"workspace_mib":{}}}"#, number.fetch_add(1, Ordering::Relaxed))],
                project: "vision".into(),
                force,
                ..Default::default()
            };
            async move { Ok(farm.submit(&Actor::local(), request).await.map(drop)?) }
        })
    };
    let counts = |farm: Farm| async move { Ok(farm.live_counts(&Actor::local()).await.map(drop)?) };
    let coverage = |farm: Farm| async move {
        let (actor, any) = (Actor::local(), CoverageFilter::default());
        let models = farm.covered_models(&actor, &any, 0, 60).await?;
        Ok(farm.coverage(&actor, &any, models.names, false).await.map(drop)?)
    };
    Ok([
        call("coverage of 60 models", farm, coverage),
        call("live counts", farm, counts),
        call("metrics", farm, |farm| async move { Ok(farm.stats().await.map(drop)?) }),
        submission("submission", false),
        submission("forced submission", true),
    ])
}
