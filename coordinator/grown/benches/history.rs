//! What the history of a model that was built very often costs.
//!
//! `cargo bench -p planforge-grown --bench history [-- BUILDS]` makes a farm with 10,000 builds of one model for one device
//! kind (about 500 MB, in a folder of its own that goes at the end), whose level rises by 5 % in the middle, and asks it as
//! `planforge history` does: every engine with its report, page by page; then the figures out of the reports, and since
//! which build they are others.

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]

use planforge_coordinator::{
    auth::Actor,
    farm::Farm,
    server::{Coordinator, CoordinatorConfig},
};
use planforge_grown::{HISTORY_MODEL, Trouble, grow_builds};
use planforge_proto::v1;
use planforge_report::{
    figures::Figures,
    history::{Build, steps},
    testing::usual_report,
};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// How often the whole is timed.
const ROUNDS: usize = 5;

fn main() -> Result<(), Trouble> {
    let count = std::env::args().skip(1).find(|word| word != "--bench").map_or(Ok(10_000), |word| word.parse())?;
    tokio::runtime::Runtime::new()?.block_on(history(count))
}

async fn history(count: usize) -> Result<(), Trouble> {
    let folder = tempfile::tempdir_in(".")?;
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as u64;
    let report = |number: usize| usual_report(number as u64, if number < count / 2 { 1.0 } else { 1.05 });
    let document = |number: usize| serde_json::to_string(&report(number)).unwrap_or_default();
    println!("{count} builds, each with a report of {} KiB", document(0).len() >> 10);
    grow_builds(folder.path(), count, now_ms, document).await?;
    let coordinator = Coordinator::start(CoordinatorConfig::new(folder.path())).await?;
    let mut times: [Vec<f64>; 3] = Default::default();
    let mut found = 0;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        let engines = engines(coordinator.farm()).await?;
        let listed = begin.elapsed();
        let mut builds: Vec<Build> = engines.into_iter().map(build).collect();
        builds.sort_by_key(|build| build.created_ms);
        let read = begin.elapsed();
        found = steps(&builds).len();
        let judged = begin.elapsed();
        if builds.len() != count {
            return Err(format!("{} builds were listed", builds.len()).into());
        }
        for (times, time) in times.iter_mut().zip([listed, read - listed, judged - read]) {
            times.push(time.as_secs_f64() * 1e3);
        }
    }
    for (name, times) in
        ["engines with their reports", "figures of the reports", "changes of the level"].iter().zip(times)
    {
        println!("{name:<28} {:>10.1} ms", median(times));
    }
    println!("{found} changes found; asked: 50 ms together");
    coordinator.shutdown().await;
    Ok(())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Every engine of the model, as the command asks for them.
async fn engines(farm: &Farm) -> Result<Vec<v1::Engine>, Trouble> {
    let mut request = v1::ListEnginesRequest {
        model: HISTORY_MODEL.into(),
        limit: u32::MAX,
        brief_reports: true,
        ..v1::ListEnginesRequest::default()
    };
    let mut found = Vec::new();
    loop {
        let reply = farm.list_engines(&Actor::local(), request.clone()).await?;
        found.extend(reply.engines);
        if reply.next_cursor.is_empty() {
            return Ok(found);
        }
        request.cursor = reply.next_cursor;
    }
}

fn build(engine: v1::Engine) -> Build {
    let figures = Figures::parse(&engine.report_json).unwrap_or_default();
    Build {
        disturbed: figures.wholly_disturbed().is_some(),
        median_ms: figures.latency_ms.median.unwrap_or_default(),
        toolchain: engine.toolchain_json,
        model_digest: engine.model.map(|model| model.digest).unwrap_or_default(),
        job: engine.job,
        created_ms: engine.created_ms,
        plan_digest: engine.plan_digest,
    }
}
