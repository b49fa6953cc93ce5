//! What an earlier process left behind, and what a start does about it.

use crate::support::{self, TestClock, agent::Agent, blobs::MemBlobs, model, request, until, until_state};
use futures::TryStreamExt as _;
use planforge_coordinator::{
    auth::Actor,
    farm::{Farm, FarmConfig, SystemClock},
    store::{MemStore, Store},
};
use planforge_proto::{
    ErrorCode,
    v1::{self, JobState},
};
use std::{
    fs,
    path::Path,
    sync::{Arc, atomic::Ordering},
};

async fn open(store: &Arc<dyn Store>, blobs: &MemBlobs, folder: &Path) -> Farm {
    let config =
        FarmConfig { log_folder: Some(folder.to_owned()), lease_ms: 60_000, seed: Some(7), ..Default::default() };
    Farm::open(store.clone(), Arc::new(blobs.clone()), config, Arc::new(SystemClock::new())).await.unwrap()
}

async fn log_of(farm: &Farm, id: &str) -> String {
    let request = v1::ReadLogRequest { id: id.into(), ..Default::default() };
    let chunks: Vec<v1::LogChunk> = farm.read_log(&Actor::local(), request).await.unwrap().try_collect().await.unwrap();
    String::from_utf8(chunks.into_iter().flat_map(|chunk| chunk.data).collect()).unwrap()
}

#[tokio::test]
async fn logs_of_ended_attempts_are_swept_at_the_start_and_none_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let (store, blobs): (Arc<dyn Store>, _) = (Arc::new(MemStore::default()), MemBlobs::default());
    let farm = open(&store, &blobs, folder.path()).await;
    let mut agent = Agent::usual(&farm, "a").await;
    let submit =
        async |name: &str| farm.submit(&Actor::local(), request(model(&blobs, name))).await.unwrap().jobs[0].id.clone();
    let stored = submit("stored").await;
    let assign = agent.assigned().await;
    agent.succeed(&blobs, &assign).await;
    assert!(agent.acknowledged().await.accepted);
    until_state(&farm, &stored, JobState::Succeeded).await;
    let unstored = submit("unstored").await;
    let assign = agent.assigned().await;
    agent.fail(&assign, v1::FailureClass::Model, "no").await;
    assert!(agent.acknowledged().await.accepted);
    until_state(&farm, &unstored, JobState::Failed).await;
    let running = submit("running").await;
    agent.assigned().await;
    farm.close().await;

    // As a process leaves them that was killed in between.
    for (job, words) in [(&stored, "kept elsewhere"), (&unstored, "the only copy"), (&running, "its beginning")] {
        fs::write(folder.path().join(format!("{job}-1.log")), words).unwrap();
    }
    fs::write(folder.path().join("nobodyknows1-3.log"), "x").unwrap();
    fs::write(folder.path().join("README"), "not ours").unwrap();
    let farm = open(&store, &blobs, folder.path()).await;
    let left = || {
        let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    };
    let mut kept = vec!["README".to_owned(), format!("{running}-1.log")];
    kept.sort();
    until("the sweep", || async { (left() == kept).then_some(()) }).await;
    assert_eq!(log_of(&farm, &unstored).await, "the only copy");
    assert_eq!(log_of(&farm, &stored).await, "log\n", "what its agent stored");
    farm.close().await;
    assert!(!support::SKU.is_empty());
}

#[tokio::test]
async fn a_log_that_is_kept_no_more_is_told_with_how_long_logs_are_kept() {
    const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
    let (blobs, clock) = (MemBlobs::default(), Arc::new(TestClock::default()));
    clock.0.store(20_000 * DAY_MS, Ordering::SeqCst);
    let config = FarmConfig { seed: Some(7), ..FarmConfig::default() };
    let farm = Farm::open(Arc::new(MemStore::new()), Arc::new(blobs.clone()), config, clock.clone()).await.unwrap();
    let mut agent = Agent::usual(&farm, "a").await;
    let job = farm.submit(&Actor::local(), request(model(&blobs, "m"))).await.unwrap().jobs[0].id.clone();
    let assign = agent.assigned().await;
    agent.succeed(&blobs, &assign).await;
    assert!(agent.acknowledged().await.accepted);
    until_state(&farm, &job, JobState::Succeeded).await;
    assert_eq!(log_of(&farm, &job).await, "log\n");
    blobs.remove(support::digest_of("log\n"));
    let gone = async || {
        let ask = v1::ReadLogRequest { id: job.clone(), ..Default::default() };
        farm.read_log(&Actor::local(), ask).await.err().expect("nothing is there to read")
    };
    let early = gone().await;
    assert_eq!((early.code, early.code.exit_code()), (ErrorCode::Gone, ErrorCode::NotFound.exit_code()));
    assert!(early.message.ends_with("is kept no more: logs are kept 30 days"), "{}", early.message);
    clock.0.fetch_add(45 * DAY_MS, Ordering::SeqCst);
    let late = gone().await;
    assert!(
        late.message.ends_with("logs are kept 30 days, and this one could go from 2024-11-03 on"),
        "{}",
        late.message
    );
    farm.close().await;
}
