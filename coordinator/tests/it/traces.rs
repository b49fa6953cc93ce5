//! Which trace a job belongs to: its first submission's, through attempts and restarts.

use crate::support::{agent::Agent, blobs::MemBlobs, model, open, request};
use planforge_coordinator::{auth::Actor, store::MemStore};
use planforge_proto::v1;
use planforge_types::TraceContext;
use std::sync::Arc;

const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn place(assign: &v1::Assign) -> TraceContext {
    assign.traceparent.parse().unwrap_or_else(|error| panic!("'{}': {error}", assign.traceparent))
}

#[tokio::test]
async fn every_attempt_has_a_place_of_its_own_in_the_trace_of_the_first_submission() {
    let (store, blobs) = (Arc::new(MemStore::new()), MemBlobs::default());
    let caller: TraceContext = CALLER.parse().unwrap();
    let farm = open(store.clone(), &blobs).await;
    let wanted = v1::SubmitRequest { wait_for_device: true, ..request(model(&blobs, "m")) };
    farm.submit_traced(&Actor::local(), wanted.clone(), Some(caller)).await.unwrap();
    // Who joins comes with another trace.
    let other = CALLER.replace("4bf92f35", "00000001").parse().unwrap();
    let joining = v1::SubmitRequest { tags: vec!["joins".into()], ..wanted };
    farm.submit_traced(&Actor::local(), joining, Some(other)).await.unwrap();
    farm.close().await;

    let farm = open(store, &blobs).await;
    let mut agent = Agent::usual(&farm, "a").await;
    let first = agent.assigned().await;
    agent.fail(&first, v1::FailureClass::Infrastructure, "the driver went away").await;
    let second = loop {
        match agent.next().await {
            Some(v1::coordinator_message::Kind::Assign(assign)) => break assign,
            Some(_) => {}
            None => panic!("the session ended"),
        }
    };
    let (first, second) = (place(&first), place(&second));
    assert_eq!([first.trace, second.trace], [caller.trace; 2]);
    assert!(first.span != second.span && first.span != caller.span && first.sampled);
}

#[tokio::test]
async fn a_job_that_came_without_a_trace_has_one_of_its_own() {
    let blobs = MemBlobs::default();
    let farm = open(Arc::new(MemStore::new()), &blobs).await;
    let mut agent = Agent::usual(&farm, "a").await;
    let mut traces = Vec::new();
    for name in ["m", "n"] {
        farm.submit(&Actor::local(), request(model(&blobs, name))).await.unwrap();
        let assign = agent.assigned().await;
        traces.push(place(&assign).trace);
        agent.succeed(&blobs, &assign).await;
        assert!(matches!(agent.next().await, Some(v1::coordinator_message::Kind::FinishedAck(_))));
    }
    assert_ne!(traces[0], traces[1]);
}
