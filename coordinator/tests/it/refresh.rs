//! Engines whose every window was disturbed, built again where a request wants it.

use crate::support::{
    agent::{Agent, plan_of, success},
    blobs::MemBlobs,
    model, open, request, until_state,
};
use planforge_coordinator::{auth::Actor, farm::Farm, store::MemStore};
use planforge_proto::{
    ErrorCode,
    v1::{self, JobState, agent_message::Kind as Say},
};
use std::sync::Arc;

struct Bench {
    farm: Farm,
    blobs: MemBlobs,
    agent: Agent,
}

impl Bench {
    async fn new() -> Self {
        let blobs = MemBlobs::default();
        let farm = open(Arc::new(MemStore::new()), &blobs).await;
        let agent = Agent::usual(&farm, "a").await;
        Self { farm, blobs, agent }
    }

    async fn submit(&self, refresh_disturbed: bool) -> v1::Job {
        let request = v1::SubmitRequest { refresh_disturbed, ..request(model(&self.blobs, "m")) };
        self.farm.submit(&Actor::local(), request).await.expect("the request is accepted").jobs.remove(0)
    }

    /// Lets the agent end the job with a report of such windows, `quiet` or `disturbed`.
    async fn measured(&mut self, id: &str, windows: &[&str]) -> (v1::Assign, v1::Job) {
        let assign = self.agent.assigned().await;
        assert_eq!(assign.job.as_ref().unwrap().id, id);
        let window = |kind: &&str| match *kind {
            "quiet" => r#"{"iterations":40}"#,
            _ => r#"{"iterations":40,"tainted":["throttled: thermal"],"kept_tainted":true}"#,
        };
        let windows: Vec<_> = windows.iter().map(window).collect();
        let report = format!(
            r#"{{"schema_version":1,"job":"{id}","latency_ms":{{"median":1.5}},"windows":[{}]}}"#,
            windows.join(",")
        );
        let report_digest = self.blobs.insert(report.as_bytes()).to_string();
        let mut finished = v1::Finished { report_digest, ..success(&self.blobs, &assign) };
        if assign.job.as_ref().unwrap().kind() == v1::JobKind::Build {
            let plan = plan_of(&assign, id);
            finished.plan_bytes = plan.len() as u64;
            finished.plan_digest = self.blobs.insert(&plan).to_string();
        }
        self.agent.say(Say::Finished(finished)).await;
        assert!(self.agent.acknowledged().await.accepted);
        (assign, until_state(&self.farm, id, JobState::Succeeded).await)
    }
}

#[tokio::test]
async fn a_wholly_disturbed_engine_is_built_again_once_for_each_request_that_wants_it() {
    let mut bench = Bench::new().await;
    let first = bench.submit(true).await;
    let (assign, built) = bench.measured(&first.id, &["disturbed", "disturbed"]).await;
    assert!(!assign.without_cache, "nothing is stored yet");
    // Who does not ask for it is answered, as ever.
    assert!(bench.submit(false).await.cached);

    let again = bench.submit(true).await;
    assert_eq!((again.cached, again.kind()), (false, v1::JobKind::Build));
    assert_eq!(again.engine_key, built.engine_key, "it is no part of the key");
    assert!(bench.submit(false).await.cached, "the stored engine answers until there is another");
    let joined = bench.submit(true).await;
    assert_eq!(joined.id, again.id, "one live job for a key");
    let (assign, rebuilt) = bench.measured(&again.id, &["disturbed"]).await;
    assert!(assign.without_cache, "timings of then would choose the same tactics");
    assert!(!rebuilt.cached);

    // Disturbed again: the next request that wants it builds again, and only that one.
    let stored = bench.submit(false).await;
    assert!(stored.cached && stored.plan_digest == rebuilt.plan_digest && stored.plan_digest != built.plan_digest);
    let third = bench.submit(true).await;
    assert!(!third.cached);
    bench.measured(&third.id, &["disturbed", "quiet"]).await;
    let quiet = bench.submit(true).await;
    assert!(quiet.cached && quiet.report_json.contains(&third.id), "a window was quiet: {quiet:?}");
}

#[tokio::test]
async fn what_answers_decides_and_a_failed_refresh_leaves_the_stored_engine() {
    let mut bench = Bench::new().await;
    let first = bench.submit(false).await;
    let (_, built) = bench.measured(&first.id, &["disturbed"]).await;
    let again = bench.submit(true).await;
    let assign = bench.agent.assigned().await;
    assert_eq!(assign.job.as_ref().unwrap().id, again.id);
    bench.agent.fail(&assign, v1::FailureClass::Resource, "no memory").await;
    bench.agent.acknowledged().await;
    until_state(&bench.farm, &again.id, JobState::Failed).await;
    let stored = bench.submit(false).await;
    assert!(stored.cached && stored.plan_digest == built.plan_digest);

    // A later measurement of the plan that was quiet is what answers: nothing is left to refresh.
    let bench_request = v1::SubmitRequest {
        kind: v1::JobKind::Benchmark.into(),
        plan_digest: built.plan_digest.clone(),
        ..request(model(&bench.blobs, "m"))
    };
    let refused = v1::SubmitRequest { refresh_disturbed: true, ..bench_request.clone() };
    let error = bench.farm.submit(&Actor::local(), refused).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidArgument, "{error}");
    // Of two reports of the same millisecond neither is the newer one.
    let began = std::time::Instant::now();
    while began.elapsed() < std::time::Duration::from_millis(2) {
        tokio::task::yield_now().await;
    }
    let measured = bench.farm.submit(&Actor::local(), bench_request).await.unwrap().jobs.remove(0);
    bench.measured(&measured.id, &["quiet"]).await;
    let answered = bench.submit(true).await;
    assert!(answered.cached && answered.report_json.contains(&measured.id), "{answered:?}");
}
