//! `apalis-peer DATABASE_URL CALLERS JOBS`: CALLERS tasks push jobs one at a time while one worker runs them.
//! Prints one line: `apalis <cycles per second> cycles/s`, from the first push to the last handler.

use apalis::prelude::*;
use apalis_postgres::{Config, PgPool, PostgresStorage};
use futures::stream;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Workers beside each other in this process; more only adds contention on two cores.
const CONCURRENCY: usize = 24;

#[tokio::main]
async fn main() -> Result<(), BoxDynError> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, url, callers, jobs] = arguments.as_slice() else {
        return Err("usage: apalis-peer DATABASE_URL CALLERS JOBS".into());
    };
    let (callers, jobs): (usize, usize) = (callers.parse()?, jobs.parse()?);
    let pool = PgPool::connect(url).await?;
    PostgresStorage::setup(&pool).await?;
    let queue = format!("peer-{}", std::process::id());
    let storage = PostgresStorage::<usize>::new(&pool).with_config(Config::default().queue(&queue).batch_size(10));

    let handled = Arc::new(AtomicUsize::new(0));
    let done = Arc::new(tokio::sync::Notify::new());
    let (count, finished) = (handled.clone(), done.clone());
    let worker = WorkerBuilder::new("peer").backend(storage.clone().with_pubsub()).concurrency(CONCURRENCY).build(move |_job: usize| {
        let (count, finished) = (count.clone(), finished.clone());
        async move {
            if count.fetch_add(1, Ordering::SeqCst) + 1 == jobs {
                finished.notify_one();
            }
            Ok::<(), BoxDynError>(())
        }
    });
    // The worker's future is not spawnable, so it shares the main task with the load.
    tokio::select! {
        outcome = worker.run() => outcome.map_err(|error| format!("the worker stopped early: {error}").into()),
        outcome = load(storage, callers, jobs, &done) => outcome,
    }
}

/// Pushes `jobs` jobs from `callers` tasks, waits for the last handler, prints the rate.
async fn load(
    storage: PostgresStorage<usize>,
    callers: usize,
    jobs: usize,
    done: &tokio::sync::Notify,
) -> Result<(), BoxDynError> {
    tokio::time::sleep(Duration::from_secs(1)).await;

    let begin = Instant::now();
    let mut pushers = Vec::new();
    for caller in 0..callers {
        let mut storage = storage.clone();
        let share = jobs / callers + usize::from(caller < jobs % callers);
        pushers.push(tokio::spawn(async move {
            for job in 0..share {
                storage.push_all(&mut stream::iter([TaskBuilder::new(job).build()])).await.map_err(|e| e.to_string())?;
            }
            Ok::<(), String>(())
        }));
    }
    for pusher in pushers {
        pusher.await??;
    }
    done.notified().await;
    let cycles_per_s = jobs as f64 / begin.elapsed().as_secs_f64();
    println!("apalis {cycles_per_s:.0} cycles/s");
    Ok(())
}
