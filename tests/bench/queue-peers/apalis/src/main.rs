//! `apalis-peer DATABASE_URL CALLERS JOBS IDLE`: CALLERS tasks push jobs one at a time while one worker runs them, then one
//! pushes IDLE jobs, each once the one before it has begun. Prints the cycles per second from the first push to the last
//! handler, and how long after its push an idle job begins.

use apalis::prelude::*;
use apalis_postgres::{Config, PgPool, PostgresStorage};
use futures::stream;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{self, UnboundedReceiver};

/// How long jobs are pushed one by one.
const IDLE_AT_MOST: Duration = Duration::from_secs(240);
/// Workers beside each other in this process; more only adds contention on two cores.
const CONCURRENCY: usize = 24;

#[tokio::main]
async fn main() -> Result<(), BoxDynError> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, url, callers, jobs, idle] = arguments.as_slice() else {
        return Err("usage: apalis-peer DATABASE_URL CALLERS JOBS IDLE".into());
    };
    let (callers, jobs, idle): (usize, usize, usize) = (callers.parse()?, jobs.parse()?, idle.parse()?);
    let pool = PgPool::connect(url).await?;
    PostgresStorage::setup(&pool).await?;
    let queue = format!("peer-{}", std::process::id());
    let storage = PostgresStorage::<usize>::new(&pool).with_config(Config::default().queue(&queue).batch_size(10));

    let (begun, mut begins) = mpsc::unbounded_channel();
    let worker = WorkerBuilder::new("peer").backend(storage.clone().with_pubsub()).concurrency(CONCURRENCY).build(move |_job: usize| {
        let begun = begun.clone();
        async move {
            begun.send(Instant::now()).map_err(|gone| gone.to_string())?;
            Ok::<(), BoxDynError>(())
        }
    });
    let load = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        cycles(&storage, callers, jobs, &mut begins).await?;
        wake_ups(&storage, idle, &mut begins).await
    };
    // The worker's future is not spawnable, so it shares the main task with the load.
    tokio::select! {
        outcome = worker.run() => outcome.map_err(|error| format!("the worker stopped early: {error}").into()),
        outcome = load => outcome,
    }
}

async fn push(storage: &PostgresStorage<usize>, job: usize) -> Result<(), String> {
    let mut storage = storage.clone();
    storage.push_all(&mut stream::iter([TaskBuilder::new(job).build()])).await.map_err(|error| error.to_string())
}

/// Pushes `jobs` jobs from `callers` tasks, waits for the last handler, prints the rate.
async fn cycles(
    storage: &PostgresStorage<usize>,
    callers: usize,
    jobs: usize,
    begins: &mut UnboundedReceiver<Instant>,
) -> Result<(), BoxDynError> {
    let begin = Instant::now();
    let mut pushers = Vec::new();
    for caller in 0..callers {
        let storage = storage.clone();
        let share = jobs / callers + usize::from(caller < jobs % callers);
        pushers.push(tokio::spawn(async move {
            for job in 0..share {
                push(&storage, job).await?;
            }
            Ok::<(), String>(())
        }));
    }
    for _ in 0..jobs {
        begins.recv().await.ok_or("the worker is gone")?;
    }
    for pusher in pushers {
        pusher.await??;
    }
    println!("apalis {:.0} cycles/s", jobs as f64 / begin.elapsed().as_secs_f64());
    Ok(())
}

/// Pushes one job after the other, each once the one before it has begun, until there were `idle` or time is up.
async fn wake_ups(
    storage: &PostgresStorage<usize>,
    idle: usize,
    begins: &mut UnboundedReceiver<Instant>,
) -> Result<(), BoxDynError> {
    let mut times_ms = Vec::new();
    let begin = Instant::now();
    for job in 0..idle {
        if begin.elapsed() > IDLE_AT_MOST {
            break;
        }
        let pushed = Instant::now();
        push(storage, job).await?;
        let begun = begins.recv().await.ok_or("the worker is gone")?;
        times_ms.push(begun.duration_since(pushed).as_secs_f64() * 1e3);
    }
    times_ms.sort_by(f64::total_cmp);
    let idle = times_ms.len();
    let at = |share: f64| times_ms[(share * (idle - 1) as f64).round() as usize];
    let late = times_ms.iter().filter(|time_ms| **time_ms > 1_000.0).count();
    println!(
        "apalis {idle} idle: p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms; above 1 s: {late}",
        at(0.5),
        at(0.99),
        at(1.0)
    );
    Ok(())
}
