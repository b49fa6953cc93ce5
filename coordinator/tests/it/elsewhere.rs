//! Jobs for which an agent's host had too little disk or memory.

use crate::support::{
    self, SKU,
    agent::{Agent, device, hello},
    blobs::MemBlobs,
    model, request, until_state,
};
use planforge_coordinator::{auth::Actor, farm::Farm, store::MemStore};
use planforge_proto::v1::{self, FailureClass, JobState, agent_message::Kind as Say, coordinator_message::Kind};
use std::sync::Arc;

async fn farm() -> (Farm, MemBlobs) {
    let blobs = MemBlobs::default();
    (support::open(Arc::new(MemStore::default()), &blobs).await, blobs)
}

/// An agent of the usual kind with so much memory.
async fn agent(farm: &Farm, id: &str, memory_bytes: u64) -> Agent {
    let hello = v1::Hello { memory_bytes, ..hello(id, vec![device("cpu0", SKU, "native 1")]) };
    let mut agent = Agent::connect(farm, hello).await;
    assert!(matches!(agent.next().await, Some(Kind::Welcome(_))));
    agent
}

async fn lack(agent: &mut Agent, assign: &v1::Assign, lacked: &str) {
    let failure = v1::Failure {
        class: FailureClass::Resource.into(),
        message: format!("too little {lacked}: 7 MiB"),
        hint: String::new(),
        lacked: lacked.into(),
        reason: String::new(),
    };
    let finished = v1::Finished {
        lease: assign.lease.clone(),
        outcome: "failed".into(),
        failure: Some(failure),
        ..v1::Finished::default()
    };
    agent.say(Say::Finished(finished)).await;
    assert!(agent.acknowledged().await.accepted);
}

#[tokio::test]
async fn a_job_whose_agents_disk_is_full_goes_to_another_agent() {
    let (farm, blobs) = farm().await;
    let mut full = agent(&farm, "full", 0).await;
    let id = farm.submit(&Actor::local(), request(model(&blobs, "m"))).await.unwrap().jobs[0].id.clone();
    let assign = full.assigned().await;
    let mut other = agent(&farm, "other", 0).await;
    lack(&mut full, &assign, "disk").await;
    // Both are free, and the first has the smaller name.
    let assign = other.assigned().await;
    assert_eq!(assign.lease.as_ref().unwrap().job, id);
    other.succeed(&blobs, &assign).await;
    let job = until_state(&farm, &id, JobState::Succeeded).await;
    let failed = job.attempts[0].failure.as_ref().unwrap();
    assert_eq!((job.attempts.len(), failed.lacked.as_str()), (2, "disk"));

    // Other jobs still go to the first: its disk may be large enough for them.
    let next = farm.submit(&Actor::local(), request(model(&blobs, "n"))).await.unwrap().jobs[0].id.clone();
    let assign = full.assigned().await;
    assert_eq!(assign.lease.unwrap().job, next);
}

#[tokio::test]
async fn a_job_waits_for_the_busy_agent_that_may_have_what_another_lacked() {
    let (farm, blobs) = farm().await;
    let mut full = agent(&farm, "a-full", 0).await;
    let id = farm.submit(&Actor::local(), request(model(&blobs, "m"))).await.unwrap().jobs[0].id.clone();
    let first = full.assigned().await;
    let mut busy = agent(&farm, "b-busy", 0).await;
    farm.submit(&Actor::local(), request(model(&blobs, "n"))).await.unwrap();
    let held = busy.assigned().await;
    lack(&mut full, &first, "disk").await;
    until_state(&farm, &id, JobState::Queued).await;
    busy.succeed(&blobs, &held).await;
    assert!(busy.acknowledged().await.accepted);
    let assign = busy.assigned().await;
    assert_eq!(assign.lease.as_ref().unwrap().job, id);
    busy.succeed(&blobs, &assign).await;
    until_state(&farm, &id, JobState::Succeeded).await;
}

#[tokio::test]
async fn with_nobody_else_it_fails_at_once_with_the_number() {
    let (farm, blobs) = farm().await;
    let mut full = agent(&farm, "full", 0).await;
    let id = farm.submit(&Actor::local(), request(model(&blobs, "m"))).await.unwrap().jobs[0].id.clone();
    let assign = full.assigned().await;
    lack(&mut full, &assign, "disk").await;
    let job = until_state(&farm, &id, JobState::Failed).await;
    let failure = job.failure.unwrap();
    assert_eq!((failure.class(), failure.message.as_str()), (FailureClass::Resource, "too little disk: 7 MiB"));
    assert_eq!(job.attempts.len(), 1);
}

#[tokio::test]
async fn too_little_memory_is_tried_once_more_where_there_is_more_of_it() {
    let (farm, blobs) = farm().await;
    let mut small = agent(&farm, "a-small", 8 << 30).await;
    let id = farm.submit(&Actor::local(), request(model(&blobs, "m"))).await.unwrap().jobs[0].id.clone();
    let assign = small.assigned().await;
    let _alike = agent(&farm, "b-alike", 8 << 30).await;
    let mut large = agent(&farm, "c-large", 16 << 30).await;
    let largest = agent(&farm, "d-largest", 32 << 30).await;
    lack(&mut small, &assign, "memory").await;
    let assign = large.assigned().await;
    assert_eq!(assign.lease.as_ref().unwrap().job, id);
    lack(&mut large, &assign, "memory").await;
    // Once: what 16 GiB are too little for is for people to decide about.
    let job = until_state(&farm, &id, JobState::Failed).await;
    assert_eq!((job.attempts.len(), job.failure.unwrap().class()), (2, FailureClass::Resource));

    // Where nobody has more, not even once.
    let next = farm.submit(&Actor::local(), request(model(&blobs, "n"))).await.unwrap().jobs[0].id.clone();
    let assign = small.assigned().await;
    drop((large, largest));
    support::until("the larger ones to be gone", || async {
        let devices = farm.list_devices(&Actor::local(), v1::ListDevicesRequest { online_only: true }).await.unwrap();
        (devices.devices.len() == 2).then_some(())
    })
    .await;
    lack(&mut small, &assign, "memory").await;
    let job = until_state(&farm, &next, JobState::Failed).await;
    assert_eq!(job.attempts.len(), 1);
}
