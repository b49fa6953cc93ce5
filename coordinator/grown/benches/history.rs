//! What the history of a model that was built very often costs.
//!
//! `cargo bench -p planforge-grown --bench history [-- BUILDS]` makes a farm with 10,000 builds of one model for one device
//! kind (about 500 MB, in a folder of its own that goes at the end), whose level rises by 5 % in the middle, and asks it as
//! `planforge history` does, of all projects and of one: every build, page by page; then since which build they are others.
//! Beside it stands what the changes cost of levels that make them dear: one that hardly scatters and wanders steadily.

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]

use planforge_coordinator::{
    auth::Actor,
    farm::Farm,
    server::{Coordinator, CoordinatorConfig},
};
use planforge_grown::{HISTORY_MODEL, PROJECTS, Trouble, grow_builds};
use planforge_proto::v1;
use planforge_report::{
    history::{Build, steps},
    testing::usual_report,
};
use planforge_retention::Policy;
use planforge_stats::change::changes;
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
    let mut config = CoordinatorConfig::new(folder.path());
    config.listen = Some("127.0.0.1:0".parse()?);
    // Nothing goes while it is asked.
    config.farm.retention =
        Policy { jobs_ms: None, superseded_ms: None, unused_ms: None, room_bytes: None, ..Policy::default() };
    let coordinator = Coordinator::start(config).await?;
    for project in ["", PROJECTS[0]] {
        told(coordinator.farm(), count, project).await?;
    }
    coordinator.shutdown().await;
    let wanders: Vec<f64> = (0..count).map(|index| 1.0 + 1e-4 * index as f64).collect();
    let times = (0..ROUNDS).map(|_| {
        let begin = Instant::now();
        std::hint::black_box(changes(&wanders));
        begin.elapsed().as_secs_f64() * 1e3
    });
    println!("changes of a level that wanders steadily: {:.1} ms", median(times.collect()));
    Ok(())
}

/// Times the history of the farm's model, as a project sees it.
async fn told(farm: &Farm, count: usize, project: &str) -> Result<(), Trouble> {
    let mut times: [Vec<f64>; 3] = Default::default();
    let mut found = 0;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        let builds = builds(farm, project).await?;
        let read = begin.elapsed();
        found = steps(&builds).len();
        let judged = begin.elapsed();
        if builds.len() != count {
            return Err(format!("{} builds were told", builds.len()).into());
        }
        for (times, time) in times.iter_mut().zip([read, judged - read, judged]) {
            times.push(time.as_secs_f64() * 1e3);
        }
    }
    println!("of {}:", if project.is_empty() { "all projects" } else { project });
    for (name, times) in ["builds with their medians", "changes of the level", "together"].iter().zip(times) {
        println!("{name:<28} {:>10.1} ms", median(times));
    }
    println!("{found} changes found; asked: 50 ms together");
    Ok(())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Every build of the model, as the command asks for them, the oldest first.
async fn builds(farm: &Farm, project: &str) -> Result<Vec<Build>, Trouble> {
    let mut request = v1::GetHistoryRequest {
        model: HISTORY_MODEL.into(),
        project: project.into(),
        ..v1::GetHistoryRequest::default()
    };
    let mut found = Vec::new();
    loop {
        let reply = farm.get_history(&Actor::local(), request.clone()).await?;
        for line in reply.lines {
            let toolchains = line.toolchains_json;
            found.extend(line.builds.into_iter().map(|build| Build {
                disturbed: build.disturbed,
                median_ms: build.median_ms,
                toolchain: toolchains.get(build.toolchain as usize).cloned().unwrap_or_default(),
                model_digest: build.model_digest,
                job: build.job,
                created_ms: build.created_ms,
                plan_digest: build.plan_digest,
            }));
        }
        if reply.next_cursor.is_empty() {
            found.sort_by_key(|build| build.created_ms);
            return Ok(found);
        }
        request.cursor = reply.next_cursor;
    }
}
