//! What a large farm costs: the time of lists, counts and submissions beside those of a small one, how long a start takes
//! and how much memory.
//!
//! `cargo bench -p planforge-grown --bench lists [-- WAITING FINISHED]` makes a farm of 1,000 waiting and 1,000
//! finished jobs and one of 100,000 and 1,000,000 (a few minutes, about 6 GB), each in a folder of its own that goes at the
//! end, opens each in a process of its own, and prints one table. `PLANFORGE_BENCH_FOLDER` names a folder in which the farms
//! stay for the next time.

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]

use planforge_coordinator::{
    auth::Actor,
    blobs::BlobStore as _,
    farm::Farm,
    server::{Coordinator, CoordinatorConfig},
};
use planforge_grown::{Size, Trouble, grow, model_file};
use planforge_proto::v1;
use planforge_types::Digest;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// How often each call is timed; its median is told.
const ROUNDS: usize = 41;

type Outcome = Result<(), Trouble>;

fn main() -> Outcome {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let runtime = tokio::runtime::Runtime::new()?;
    if let [role, folder] = words.as_slice()
        && role == "measure"
    {
        return runtime.block_on(measure(Path::new(folder)));
    }
    let number = |at: usize, usual: usize| words.get(at).map_or(Ok(usual), |word| word.parse());
    let large = Size { waiting: number(0, 100_000)?, finished: number(1, 1_000_000)?, with_blobs: false };
    let small = Size { waiting: 1_000, finished: 1_000, with_blobs: false };
    let temporary = tempfile::tempdir_in(".")?;
    let root = std::env::var_os("PLANFORGE_BENCH_FOLDER").map_or(temporary.path().to_owned(), PathBuf::from);
    let mut told = Vec::new();
    for size in [small, large] {
        let folder = root.join(format!("farm-{}-{}", size.waiting, size.finished));
        runtime.block_on(made(&folder, size))?;
        let output = std::process::Command::new(std::env::current_exe()?).arg("measure").arg(&folder).output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        let figures: Vec<(String, f64)> = serde_json::from_slice(&output.stdout)?;
        told.push(figures);
    }
    let [small, large] = &told[..] else { return Err("two farms are measured".into()) };
    let small: BTreeMap<&str, f64> = small.iter().map(|(name, figure)| (name.as_str(), *figure)).collect();
    println!("{:<44} {:>10} {:>10} {:>7}", "", "small", "large", "ratio");
    for (name, figure) in large {
        let before = small.get(name.as_str()).copied().unwrap_or(f64::NAN);
        println!("{name:<44} {before:>10.3} {figure:>10.3} {:>7.2}", figure / before);
    }
    println!("asked: lists, counts, submissions a ratio of 1.5 at most; start 3,000 ms; memory 400 MiB");
    Ok(())
}

/// Makes a farm where none was left by an earlier run.
async fn made(folder: &Path, size: Size) -> Outcome {
    let done = folder.join("grown");
    if done.exists() {
        return Ok(());
    }
    std::fs::create_dir_all(folder)?;
    let begin = Instant::now();
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as u64;
    let grown = grow(folder, size, now_ms, |_| ()).await?;
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

/// Opens one farm and prints its figures, in the order of the table, as JSON.
async fn measure(folder: &Path) -> Outcome {
    let mut figures: Vec<(String, f64)> = Vec::new();
    let mut config = CoordinatorConfig::new(folder);
    config.listen = Some("127.0.0.1:0".parse()?);
    config.farm.max_live_jobs = 1_000_000;
    let begin = Instant::now();
    let coordinator = Coordinator::start(config).await?;
    figures.push(("start, ms".into(), begin.elapsed().as_secs_f64() * 1e3));
    let farm = coordinator.farm().clone();
    let local = Actor::local();
    let states = |states: &[v1::JobState]| states.iter().map(|state| i32::from(*state)).collect::<Vec<_>>();
    let any = || v1::ListJobsRequest { limit: 100, ..Default::default() };
    let model = || "model1.onnx".to_owned();
    let lists = [
        ("jobs", any()),
        ("jobs with their total", v1::ListJobsRequest { with_total: true, ..any() }),
        ("jobs with reports", v1::ListJobsRequest { with_reports: true, ..any() }),
        ("queued jobs", v1::ListJobsRequest { states: states(&[v1::JobState::Queued]), ..any() }),
        (
            "queued jobs, oldest first",
            v1::ListJobsRequest {
                states: states(&[v1::JobState::Queued]),
                order: v1::JobOrder::Oldest.into(),
                ..any()
            },
        ),
        (
            "failed and cancelled jobs",
            v1::ListJobsRequest { states: states(&[v1::JobState::Failed, v1::JobState::Cancelled]), ..any() },
        ),
        ("jobs of a device kind", v1::ListJobsRequest { sku: "h100-sxm".into(), ..any() }),
        ("jobs of a model", v1::ListJobsRequest { model: model(), ..any() }),
        ("jobs of a project", v1::ListJobsRequest { project: "vision".into(), ..any() }),
        (
            "failed jobs of a project and device kind",
            v1::ListJobsRequest {
                project: "vision".into(),
                sku: "t4".into(),
                states: states(&[v1::JobState::Failed]),
                limit: 5,
                ..Default::default()
            },
        ),
        ("jobs of a tag", v1::ListJobsRequest { tags: vec!["nightly".into()], limit: 20, ..Default::default() }),
        ("jobs that ended last", v1::ListJobsRequest { order: v1::JobOrder::Ended.into(), ..any() }),
    ];
    for (name, request) in lists {
        let farm = &farm;
        let local = &local;
        let time = median(async || farm.list_jobs(local, request.clone()).await.map(drop)).await?;
        figures.push((format!("{name}, ms"), time));
    }
    let deep = deep_page(&farm, &local).await?;
    let time = median(async || farm.list_jobs(&local, deep.clone()).await.map(drop)).await?;
    figures.push(("jobs, a page in the middle, ms".into(), time));
    let engines = [
        ("engines", v1::ListEnginesRequest { limit: 50, ..Default::default() }),
        // As many as the small farm has, too.
        ("engines of a model", v1::ListEnginesRequest { limit: 5, model: model(), ..Default::default() }),
        ("engines of a device kind", v1::ListEnginesRequest { limit: 5, sku: "t4".into(), ..Default::default() }),
        ("engines of a project", v1::ListEnginesRequest { limit: 5, project: "vision".into(), ..Default::default() }),
    ];
    for (name, request) in engines {
        let time = median(async || farm.list_engines(&local, request.clone()).await.map(drop)).await?;
        figures.push((format!("{name}, ms"), time));
    }
    figures.push(("live counts, ms".into(), median(async || farm.live_counts(&local).await.map(drop)).await?));
    figures.push(("metrics, ms".into(), median(async || farm.stats().await.map(drop)).await?));
    let bytes = model_file(0);
    let digest = Digest::of(&bytes).to_string();
    let file = v1::ModelFile { name: "m.onnx".into(), digest: digest.clone(), size_bytes: bytes.len() as u64 };
    coordinator.blobs().put(bytes.into()).await?;
    let model = v1::Model { digest, name: "m.onnx".into(), files: vec![file], ..v1::Model::default() };
    let submission = |number: usize, force: bool| v1::SubmitRequest {
        models: vec![model.clone()],
        skus: vec!["cpu-x86-64-v3".into()],
        specs_json: vec![format!(r#"{{"workspace_mib":{}}}"#, 5_000_000 + number)],
        project: "vision".into(),
        force,
        ..Default::default()
    };
    for (name, force) in [("submission", false), ("forced submission", true)] {
        let number = std::cell::Cell::new(0);
        let time = median(async || {
            number.set(number.get() + 1);
            farm.submit(&local, submission(number.get(), force)).await.map(drop)
        });
        figures.push((format!("{name}, ms"), time.await?));
    }
    figures.push(("memory, MiB".into(), memory_mib("VmRSS")?));
    figures.push(("most memory, MiB".into(), memory_mib("VmHWM")?));
    println!("{}", serde_json::to_string(&figures)?);
    coordinator.shutdown().await;
    Ok(())
}

/// The request of the eleventh page.
async fn deep_page(farm: &Farm, actor: &Actor) -> Result<v1::ListJobsRequest, Trouble> {
    let mut request = v1::ListJobsRequest { limit: 100, ..Default::default() };
    for _ in 0..10 {
        let reply = farm.list_jobs(actor, request.clone()).await?;
        request.cursor = reply.next_cursor;
    }
    Ok(request)
}

/// The median time of a call, milliseconds.
async fn median(call: impl AsyncFn() -> Result<(), planforge_proto::ApiError>) -> Result<f64, Trouble> {
    call().await?;
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        call().await?;
        times.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    times.get(ROUNDS / 2).copied().ok_or_else(|| "nothing was timed".into())
}
