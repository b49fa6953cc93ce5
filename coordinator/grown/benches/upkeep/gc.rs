//! 100,000 old jobs with their engines go while the farm works: how long that takes, and what claims notice of it. Windows
//! in which the collection goes on and such in which it rests take turns. `PLANFORGE_BENCH_COLLECT_S` ends it after so many
//! seconds of collecting, wherever it is by then; `PLANFORGE_BENCH_FINISHED` asks for fewer jobs than 115,000.

use crate::{
    folder, now_ms,
    scripted::{Bench, Outcome},
    work::{Claims, Work},
};
use planforge_coordinator::server::CoordinatorConfig;
use planforge_grown::{Size, grow};
use planforge_retention::Policy;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// So many that 100,000 are older than a policy keeps them.
const FINISHED: usize = 115_000;
const WINDOW: Duration = Duration::from_secs(3);
/// Shorter, for the whole takes a quarter of an hour even so; thousands of claims come from it all the same.
const REST: Duration = Duration::from_millis(500);
/// So long the farm works on where a step of the collection outlasts its window: an agent that is silent is given up.
const LONGER: Duration = Duration::from_millis(100);

pub async fn measure() -> Outcome {
    let folder = folder()?;
    let finished = std::env::var("PLANFORGE_BENCH_FINISHED").map_or(Ok(FINISHED), |text| text.parse())?;
    let size = Size { waiting: 0, finished, plan_bytes: None };
    grow(folder.path(), size, now_ms()?, |_| ()).await?;
    let mut config = CoordinatorConfig::new(folder.path());
    // The coordinator's own collection finds nothing to do.
    let nothing = Policy { jobs_ms: None, superseded_ms: None, unused_ms: None, room_bytes: None, ..Policy::default() };
    config.farm.retention = nothing;
    let bench = Bench::start_with(config, folder.path()).await?;
    let mut work = Work::begin(&bench).await?;
    let (mut idle, mut busy) = (Vec::new(), Vec::new());
    work.go(&bench, WINDOW, &mut Vec::new()).await?;
    let policy = Policy { room_bytes: None, ..Policy::default() };
    let mut collection = bench.coordinator.farm().collection(policy, false).await?;
    let (mut took, mut longest) = (Duration::ZERO, Duration::ZERO);
    let most_s: u64 = std::env::var("PLANFORGE_BENCH_COLLECT_S").map_or(Ok(u64::MAX), |text| text.parse())?;
    let mut goes_on = true;
    while goes_on && took.as_secs() < most_s {
        work.go(&bench, REST, &mut idle).await?;
        let rest = Arc::new(AtomicBool::new(false));
        let resting = rest.clone();
        let collecting = tokio::spawn(async move {
            let begin = Instant::now();
            let (mut goes_on, mut longest) = (true, Duration::ZERO);
            while goes_on && !resting.load(Ordering::Relaxed) {
                let step = Instant::now();
                goes_on = collection.step().await?;
                longest = longest.max(step.elapsed());
            }
            Ok::<_, planforge_proto::ApiError>((collection, goes_on, begin.elapsed(), longest))
        });
        work.go(&bench, WINDOW, &mut busy).await?;
        rest.store(true, Ordering::Relaxed);
        while !collecting.is_finished() {
            work.go(&bench, LONGER, &mut busy).await?;
        }
        let (back, more, took_now, longest_now) = collecting.await??;
        (collection, goes_on, longest) = (back, more, longest.max(longest_now));
        took += took_now;
    }
    let told = collection.told();
    if goes_on {
        println!("gc: ended by PLANFORGE_BENCH_COLLECT_S before all was gone");
    }
    println!(
        "gc: {} jobs and {} engines went in {:.0} s of collecting: {:.0} jobs/s; the longest step took {:.2} s",
        told.jobs,
        told.engines,
        took.as_secs_f64(),
        told.jobs as f64 / took.as_secs_f64(),
        longest.as_secs_f64()
    );
    let (idle, busy) = (Claims::of(idle), Claims::of(busy));
    idle.row("claims while nothing is collected", &idle);
    busy.row("claims while it collects", &idle);
    println!("asked: p99 at most 2 times the idle one");
    bench.coordinator.shutdown().await;
    Ok(())
}
