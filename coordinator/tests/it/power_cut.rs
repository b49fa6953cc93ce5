//! A power cut: the write-ahead log ends anywhere. What was acknowledged is there, and no commit is there by half.

use crate::store::{event, job};
use planforge_coordinator::{
    core::{Change, JobState},
    store::{EventFilter, SqliteStore, Store},
};
use std::{fs, sync::Arc};

/// Bytes of the head of a write-ahead log, and of that of each of its frames.
const LOG_HEAD: u64 = 32;
const FRAME_HEAD: u64 = 24;
const PAGE: u64 = 4096;
const COMMITS: u64 = 12;

#[tokio::test]
async fn a_log_that_ends_at_any_frame_has_whole_commits_and_all_acknowledged_ones() {
    let folder = tempfile::tempdir().unwrap();
    let (file, log) = (folder.path().join("farm.db"), folder.path().join("farm.db-wal"));
    let store = SqliteStore::open(&file).await.unwrap();
    let epoch = store.acquire("me", 1).await.unwrap();
    // Bytes of the log that were durable when each commit was acknowledged.
    let mut durable = Vec::new();
    for number in 1..=COMMITS {
        let id = format!("job{number}");
        let mut large = job(&id, JobState::Queued, number);
        large.constraint = "x".repeat(number as usize * 900);
        store.commit(epoch, vec![Change::Job(Arc::new(large)), event(number, &id)]).await.unwrap();
        durable.push(fs::metadata(&log).unwrap().len());
    }
    assert!(durable.is_sorted() && durable[0] > LOG_HEAD, "{durable:?}");
    let (database, whole) = (fs::read(&file).unwrap(), fs::read(&log).unwrap());

    let frames = (whole.len() as u64 - LOG_HEAD) / (FRAME_HEAD + PAGE);
    let first = (durable[0] - LOG_HEAD) / (FRAME_HEAD + PAGE);
    let mut cuts = 0;
    for frame in first.saturating_sub(3)..=frames {
        let at = LOG_HEAD + frame * (FRAME_HEAD + PAGE);
        // At the frame's end, within the next frame's head, and within its page.
        for cut in [at, at + 7, at + FRAME_HEAD + PAGE / 2].into_iter().filter(|cut| *cut <= whole.len() as u64) {
            let copy = tempfile::tempdir().unwrap();
            let copied = copy.path().join("farm.db");
            fs::write(&copied, &database).unwrap();
            fs::write(copy.path().join("farm.db-wal"), &whole[..cut as usize]).unwrap();
            let store = SqliteStore::open(&copied).await.unwrap();
            let snapshot = store.load().await.unwrap();
            let filter = EventFilter { limit: 100, ..EventFilter::default() };
            let events: Vec<u64> = store.events(filter).await.unwrap().iter().map(|event| event.seq).collect();
            let acknowledged = durable.iter().filter(|bytes| **bytes <= cut).count() as u64;
            assert!(events.iter().copied().eq(1..=events.len() as u64), "cut at {cut}: {events:?}");
            assert!(events.len() as u64 >= acknowledged, "cut at {cut}: {events:?}, {acknowledged} were acknowledged");
            assert_eq!(snapshot.jobs.len(), events.len(), "cut at {cut}: no commit is there by half");
            // Restart needs no repair step: the next commit is taken.
            let epoch = store.acquire("next", 2).await.unwrap();
            store.commit(epoch, vec![event(events.len() as u64 + 1, "next")]).await.unwrap();
            store.close().await.unwrap();
            cuts += 1;
        }
    }
    assert!(cuts > 2 * COMMITS, "{cuts}");
}
