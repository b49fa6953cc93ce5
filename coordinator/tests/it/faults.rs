//! What happens when the store refuses, over memory and over a database that is full.

use crate::support::{DEADLINE, agent::Agent, blobs::MemBlobs, model, open, request, until_state};
use futures::StreamExt as _;
use planforge_coordinator::{
    auth::Actor,
    store::{MemStore, SqliteStore, Store, StoreError, mem::Faults},
};
use planforge_proto::{
    ErrorCode,
    v1::{self, JobState},
};
use std::sync::Arc;

#[tokio::test]
async fn a_refused_commit_leaves_memory_and_store_alike() {
    let blobs = MemBlobs::default();
    let store = Arc::new(MemStore::new());
    let farm = open(store.clone(), &blobs).await;
    let mut agent = Agent::usual(&farm, "a").await;
    store.set_fault(Some(StoreError::Full { detail: "disk".into() }));
    let error = farm.submit(&Actor::local(), request(model(&blobs, "m"))).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::ResourceExhausted);
    assert!(farm.ready().is_err());
    let jobs = farm.list_jobs(&Actor::local(), v1::ListJobsRequest::default()).await.unwrap();
    assert!(jobs.jobs.is_empty());
    store.set_fault(None);
    let job = farm.submit(&Actor::local(), request(model(&blobs, "m"))).await.unwrap().jobs.remove(0);
    let assign = agent.assigned().await;
    assert_eq!(assign.lease.as_ref().unwrap().attempt, 1, "the lease that was never durable was never heard of");
    assert_eq!(assign.job.as_ref().unwrap().id, job.id);
    assert!(farm.ready().is_ok());
    // What is written down beside is on its way until then.
    store_is_quiet(&farm).await;
    // An agent whose message was refused connects again and says it again.
    store.set_fault(Some(StoreError::ReadOnly { detail: "mount".into() }));
    agent.succeed(&blobs, &assign).await;
    assert!(agent.next().await.is_none(), "its session ends");
    store.set_fault(None);
    let finished = vec![crate::support::agent::success(&blobs, &assign)];
    let devices = vec![crate::support::agent::device("cpu0", crate::support::SKU, "native 1")];
    let hello = v1::Hello { finished, ..crate::support::agent::hello("a", devices) };
    let mut agent = Agent::connect(&farm, hello).await;
    assert!(agent.acknowledged().await.accepted);
    assert_eq!(until_state(&farm, &job.id, JobState::Succeeded).await.attempt, 1);
}

#[tokio::test]
async fn who_watches_hears_of_a_commit_that_was_done_unheard() {
    let blobs = MemBlobs::default();
    let store = Arc::new(MemStore::new());
    let farm = open(store.clone(), &blobs).await;
    // Without a device nothing but submissions happens.
    let waiting = |name| v1::SubmitRequest { wait_for_device: true, ..request(model(&blobs, name)) };
    let mut events = farm.watch(&Actor::local(), v1::WatchJobsRequest::default()).await.unwrap();
    farm.submit(&Actor::local(), waiting("first")).await.unwrap();
    assert_eq!(events.next().await.unwrap().unwrap().seq, 1);
    let fault = StoreError::Failed { operation: "commit", detail: "the connection is gone".into() };
    store.set_faults(Faults { unheard: Some(fault), ..Faults::default() });
    farm.submit(&Actor::local(), waiting("second")).await.unwrap_err();
    let heard = tokio::time::timeout(DEADLINE, events.next()).await.expect("in time").unwrap().unwrap();
    assert_eq!((heard.seq, heard.what.as_str()), (2, "submitted"));
    assert_eq!(heard.job.unwrap().model.unwrap().name, "second");
    assert_eq!(farm.stats().await.unwrap().last_event, 2);
}

/// Commits go in order: when one that is waited for is through, those before it are.
async fn store_is_quiet(farm: &planforge_coordinator::farm::Farm) {
    let quiet = v1::SetProjectRequest { name: "quiet".into(), max_jobs: Some(1), ..Default::default() };
    farm.set_project(&Actor::local(), quiet).await.unwrap();
}

#[tokio::test]
async fn an_old_leader_stops() {
    let blobs = MemBlobs::default();
    let store = Arc::new(MemStore::new());
    let old = open(store.clone(), &blobs).await;
    let _agent = Agent::usual(&old, "a").await;
    let new = open(store, &blobs).await;
    let error = old.submit(&Actor::local(), request(model(&blobs, "m"))).await.unwrap_err();
    assert!(error.message.contains("another coordinator leads"), "{}", error.message);
    assert!(old.ready().is_err());
    assert!(new.ready().is_ok());
}

#[tokio::test]
async fn a_full_disk_refuses_requests_and_keeps_what_was_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("farm.db");
    let blobs = MemBlobs::default();
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open_limited(&file, Some(400 * 1024)).await.unwrap());
    let farm = open(store, &blobs).await;
    let mut agent = Agent::usual(&farm, "a").await;
    let mut accepted = Vec::new();
    let error = loop {
        let wide = v1::SubmitRequest { force: true, priority: accepted.len() as i32, ..request(model(&blobs, "m")) };
        match farm.submit(&Actor::local(), wide).await {
            Ok(reply) => accepted.push(reply.jobs[0].id.clone()),
            Err(error) => break error,
        }
        assert!(accepted.len() < 10_000, "the disk is never full");
    };
    assert_eq!(error.code, ErrorCode::ResourceExhausted, "{error}");
    let first = agent.assigned().await;
    assert!(accepted.contains(&first.job.unwrap().id));
    for id in &accepted {
        farm.get_job(&Actor::local(), id).await.unwrap();
    }
    tokio::time::timeout(DEADLINE, farm.close()).await.unwrap();
    let farm = open(Arc::new(SqliteStore::open(&file).await.unwrap()), &blobs).await;
    for id in &accepted {
        farm.get_job(&Actor::local(), id).await.unwrap();
    }
    farm.submit(&Actor::local(), request(model(&blobs, "new"))).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_can_neither_be_written_nor_read_is_waited_for() {
    let blobs = MemBlobs::default();
    let store = Arc::new(MemStore::new());
    let farm = open(store.clone(), &blobs).await;
    let mut agent = Agent::usual(&farm, "a").await;
    let job = farm.submit(&Actor::local(), request(model(&blobs, "m"))).await.unwrap().jobs.remove(0);
    let assign = agent.assigned().await;
    agent.started(&assign).await;
    until_state(&farm, &job.id, JobState::Running).await;
    let fault = StoreError::Failed { operation: "read", detail: "disk I/O error".into() };
    store.set_fault(Some(fault.clone()));
    store.set_load_fault(Some(fault));
    farm.submit(&Actor::local(), request(model(&blobs, "other"))).await.unwrap_err();
    // The job ends meanwhile. Far longer than any lease.
    agent.succeed(&blobs, &assign).await;
    tokio::time::sleep(std::time::Duration::from_secs(600)).await;
    assert!(farm.ready().is_err());
    let error = farm.submit(&Actor::local(), request(model(&blobs, "other"))).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Unavailable, "{error}");
    store.set_load_fault(None);
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    assert!(farm.ready().is_err(), "reading is not writing");
    store.set_fault(None);
    // By itself: nobody asks for a write.
    crate::support::until("the farm to be ready", || async { farm.ready().ok() }).await;
    assert!(agent.acknowledged().await.accepted, "the end that came meanwhile, on the same stream");
    assert_eq!(until_state(&farm, &job.id, JobState::Succeeded).await.attempt, 1);
}

#[tokio::test]
async fn logs_that_find_no_room_are_stored_later_each_of_them() {
    let blobs = MemBlobs::default();
    let store = Arc::new(MemStore::new());
    let farm = open(store.clone(), &blobs).await;
    let mut agent = Agent::usual(&farm, "a").await;
    let model = model(&blobs, "m");
    let job = farm.submit(&Actor::local(), request(model)).await.unwrap().jobs.remove(0);
    blobs.set_full(true);
    for attempt in 1..=3_u32 {
        let assign = agent.assigned().await;
        assert_eq!(assign.lease.as_ref().unwrap().attempt, attempt);
        let data = format!("log of attempt {attempt}\n").into_bytes();
        let lines = v1::LogLines { lease: assign.lease.clone(), offset_bytes: 0, data };
        agent.say(v1::agent_message::Kind::Log(lines)).await;
        // Without a log: its agent found no room for it either.
        agent.fail(&assign, v1::FailureClass::Infrastructure, "no luck").await;
        assert!(agent.acknowledged().await.accepted);
    }
    until_state(&farm, &job.id, JobState::Failed).await;
    let logs = || async {
        let job = store.job(&job.id.as_str().into()).await.unwrap().unwrap();
        job.attempts.iter().map(|attempt| attempt.log).collect::<Option<Vec<_>>>()
    };
    assert_eq!(logs().await, None);
    blobs.set_full(false);
    let stored = crate::support::until("every log to be stored", logs).await;
    for (number, log) in (1..).zip(stored) {
        assert_eq!(blobs.get(log).unwrap(), format!("log of attempt {number}\n"));
    }
}
