//! The farm as its callers see it: requests in, a scripted agent at work, answers out.

mod support;

use planforge_coordinator::{auth::Actor, store::MemStore};
use planforge_proto::v1::JobState;
use std::sync::Arc;
use support::{agent::Agent, blobs::MemBlobs, model, open, request, until_state};

#[tokio::test]
async fn a_job_goes_from_submission_to_an_engine() {
    let blobs = MemBlobs::default();
    let farm = open(Arc::new(MemStore::new()), &blobs).await;
    let mut agent = Agent::usual(&farm, "a").await;
    let reply = farm.submit(&Actor::local(), request(model(&blobs, "m.onnx"))).await.unwrap();
    let assign = agent.assigned().await;
    assert_eq!(assign.job.as_ref().unwrap().id, reply.jobs[0].id);
    agent.started(&assign).await;
    until_state(&farm, &reply.jobs[0].id, JobState::Running).await;
    agent.succeed(&blobs, &assign).await;
    assert!(agent.acknowledged().await.accepted);
    let job = until_state(&farm, &reply.jobs[0].id, JobState::Succeeded).await;
    assert!(!job.cached && job.accurate && job.report_json.contains("median"), "{job:?}");
    let again = farm.submit(&Actor::local(), request(model(&blobs, "m.onnx"))).await.unwrap();
    assert!(again.jobs[0].cached);
    assert_eq!((again.jobs[0].state(), &again.jobs[0].plan_digest), (JobState::Succeeded, &job.plan_digest));
    farm.close().await;
}
