//! Requests that give real inputs: what was found on some answers nobody who gives others, or none.

use crate::support::{
    agent::{Agent, success},
    blobs::MemBlobs,
    model, open, request, until_state,
};
use planforge_coordinator::{auth::Actor, farm::Farm, store::MemStore};
use planforge_proto::v1::{self, JobKind, JobState, agent_message::Kind as Say};
use std::sync::Arc;

struct Bench {
    store: Arc<MemStore>,
    farm: Farm,
    blobs: MemBlobs,
    agent: Agent,
}

impl Bench {
    async fn new() -> Self {
        let (store, blobs) = (Arc::new(MemStore::new()), MemBlobs::default());
        let farm = open(store.clone(), &blobs).await;
        let agent = Agent::usual(&farm, "a").await;
        Self { store, farm, blobs, agent }
    }

    /// The same farm after its coordinator was started again.
    async fn reopened(self) -> Self {
        let farm = open(self.store.clone(), &self.blobs).await;
        let agent = Agent::usual(&farm, "b").await;
        Self { farm, agent, ..self }
    }

    fn request(&self, inputs: Option<&str>, time_inputs: bool) -> v1::SubmitRequest {
        let inputs_digest = inputs.map(|inputs| self.blobs.insert(inputs.as_bytes()).to_string()).unwrap_or_default();
        let measure = v1::MeasureAsk { inputs_digest, time_inputs, ..v1::MeasureAsk::default() };
        v1::SubmitRequest { measure: Some(measure), ..request(model(&self.blobs, "m")) }
    }

    async fn submit(&self, inputs: Option<&str>) -> v1::Job {
        self.submitted(self.request(inputs, false)).await
    }

    async fn submitted(&self, request: v1::SubmitRequest) -> v1::Job {
        self.farm.submit(&Actor::local(), request).await.expect("the request is accepted").jobs.remove(0)
    }

    /// The agent does the job, whose report says so.
    async fn done(&mut self, id: &str) -> v1::Job {
        self.ended(id, true).await
    }

    async fn ended(&mut self, id: &str, accurate: bool) -> v1::Job {
        let assign = self.agent.assigned().await;
        assert_eq!(assign.job.as_ref().unwrap().id, id);
        let job = assign.job.as_ref().unwrap();
        let given = &job.measure.clone().unwrap_or_default().inputs_digest;
        let given = if given.is_empty() { "null".into() } else { format!(r#"{{"digest":"{given}"}}"#) };
        let report = format!(
            r#"{{"schema_version":1,"job":"{id}","latency_ms":{{"median":1.5}},"given_inputs":{given},"accurate":{accurate}}}"#
        );
        let report_digest = self.blobs.insert(report.as_bytes()).to_string();
        let finished = v1::Finished { report_digest, accurate, ..success(&self.blobs, &assign) };
        self.agent.say(Say::Finished(finished)).await;
        assert!(self.agent.acknowledged().await.accepted);
        until_state(&self.farm, id, JobState::Succeeded).await
    }

    /// The agent finds the outputs wrong.
    async fn refused(&mut self, id: &str) {
        let assign = self.agent.assigned().await;
        assert_eq!(assign.job.as_ref().unwrap().id, id);
        self.agent.fail(&assign, v1::FailureClass::Model, "the engine's outputs are wrong").await;
        self.agent.acknowledged().await;
        until_state(&self.farm, id, JobState::Failed).await;
    }
}

#[tokio::test]
async fn a_build_on_given_inputs_answers_nobody_else_and_the_other_way_round() {
    let mut bench = Bench::new().await;
    let given = bench.submit(Some("mine")).await;
    let built = bench.done(&given.id).await;
    assert!(bench.submit(Some("mine")).await.cached);

    // Whoever gives none, or others, has the same plan measured: nothing is built, and nothing answered.
    let mut seen = vec![given.id.clone()];
    for inputs in [None, Some("yours")] {
        let other = bench.submit(inputs).await;
        assert_eq!((other.cached, other.kind()), (false, JobKind::Benchmark), "{inputs:?}");
        assert!(!seen.contains(&other.id) && other.report_json.is_empty());
        let other = bench.done(&other.id).await;
        assert_eq!(other.plan_digest, built.plan_digest);
        seen.push(other.id.clone());
    }
    // Also timed: another figure again.
    let timed = bench.submitted(bench.request(Some("mine"), true)).await;
    assert!(!timed.cached && !seen.contains(&timed.id));
    bench.done(&timed.id).await;

    // Now each is answered by its own report, also by a coordinator that was started again.
    for _ in 0..2 {
        for (inputs, time_inputs, id) in [
            (Some("mine"), false, &seen[0]),
            (None, false, &seen[1]),
            (Some("yours"), false, &seen[2]),
            (Some("mine"), true, &timed.id),
        ] {
            let answered = bench.submitted(bench.request(inputs, time_inputs)).await;
            assert!(
                answered.cached && answered.report_json.contains(id.as_str()),
                "{inputs:?} {time_inputs}: {answered:?}"
            );
            let asked = v1::ListReportsRequest { job: answered.id.clone(), ..v1::ListReportsRequest::default() };
            let reports = bench.farm.list_reports(&Actor::local(), asked).await.unwrap().reports_json;
            assert!(reports.len() == 1 && reports[0].contains(id.as_str()), "{inputs:?} {time_inputs}: {reports:?}");
        }
        bench = bench.reopened().await;
    }
}

#[tokio::test]
async fn a_usual_engine_is_measured_on_what_is_given() {
    let mut bench = Bench::new().await;
    let usual = bench.submit(None).await;
    bench.done(&usual.id).await;
    let given = bench.submit(Some("mine")).await;
    assert_eq!((given.cached, given.kind()), (false, JobKind::Benchmark));
    bench.done(&given.id).await;
    // The newer report is of given inputs; who gives none sees the older one.
    let answered = bench.submit(None).await;
    assert!(answered.cached && answered.report_json.contains(&usual.id), "{answered:?}");
    let engines = bench.farm.list_engines(&Actor::local(), v1::ListEnginesRequest::default()).await.unwrap().engines;
    assert!(engines[0].report_json.contains(&usual.id) && engines[0].inputs_digest.is_empty(), "{engines:?}");
}

#[tokio::test]
async fn live_jobs_are_joined_by_those_who_give_the_same() {
    let mut bench = Bench::new().await;
    let first = bench.submit(Some("mine")).await;
    assert_eq!(bench.submit(Some("mine")).await.id, first.id);
    for inputs in [None, Some("yours")] {
        let behind = bench.submit(inputs).await;
        assert_ne!(behind.id, first.id);
        assert_eq!((behind.state(), &behind.needs[..]), (JobState::Blocked, std::slice::from_ref(&first.id)));
    }
    bench.done(&first.id).await;
    for _ in 0..2 {
        let assign = bench.agent.assigned().await;
        assert_eq!(assign.job.as_ref().unwrap().kind(), JobKind::Benchmark, "the plan is there; it is only measured");
        bench.agent.succeed(&bench.blobs, &assign).await;
        bench.agent.acknowledged().await;
    }
}

#[tokio::test]
async fn what_is_wrong_on_given_inputs_is_said_to_those_who_give_them_alone() {
    let mut bench = Bench::new().await;
    // Wrong on some, so refused; whoever gives none tries for himself.
    let wrong = bench.submit(Some("odd")).await;
    bench.refused(&wrong.id).await;
    let usual = bench.submit(None).await;
    assert!(!usual.cached);
    bench.refused(&usual.id).await;
    assert!(bench.submit(None).await.cached, "known to fail on made inputs");
    let mine = bench.submit(Some("mine")).await;
    assert!(!mine.cached, "nothing is known of these");
    bench.done(&mine.id).await;
    assert!(bench.submit(Some("mine")).await.cached);
    let still = bench.submit(None).await;
    assert_eq!((still.cached, still.state()), (true, JobState::Failed), "still known to fail on made inputs");
}

#[tokio::test]
async fn an_engine_kept_though_wrong_is_wrong_on_its_own_inputs() {
    let mut bench = Bench::new().await;
    let request = v1::SubmitRequest { allow_inaccurate: true, ..bench.request(Some("odd"), false) };
    let kept = bench.submitted(request).await;
    bench.ended(&kept.id, false).await;
    // Wrong outputs on a benchmark's made inputs are known just so.
    for _ in 0..2 {
        let odd = bench.submit(Some("odd")).await;
        assert_eq!((odd.cached, odd.state()), (true, JobState::Failed));
        bench = bench.reopened().await;
    }
    let usual = bench.submit(None).await;
    assert_eq!((usual.cached, usual.kind()), (false, JobKind::Benchmark));
    bench.done(&usual.id).await;
    for _ in 0..2 {
        let answered = bench.submit(None).await;
        assert!(answered.cached && answered.accurate && answered.state() == JobState::Succeeded, "{answered:?}");
        bench = bench.reopened().await;
    }
    let lenient = v1::SubmitRequest { allow_inaccurate: true, ..bench.request(Some("odd"), false) };
    let lenient = bench.submitted(lenient).await;
    assert!(lenient.cached && !lenient.accurate);
}

#[tokio::test]
async fn an_agent_that_knows_no_given_inputs_is_not_believed() {
    let mut bench = Bench::new().await;
    let job = bench.submit(Some("mine")).await;
    for attempt in 1..=3 {
        let assign = bench.agent.assigned().await;
        let lease = assign.lease.as_ref().unwrap();
        assert_eq!((lease.job.as_str(), lease.attempt), (job.id.as_str(), attempt));
        let report = format!(r#"{{"schema_version":1,"attempt":{attempt},"latency_ms":{{"median":1.5}}}}"#);
        let report_digest = bench.blobs.insert(report.as_bytes()).to_string();
        let finished = v1::Finished { report_digest, ..success(&bench.blobs, &assign) };
        bench.agent.say(Say::Finished(finished)).await;
        bench.agent.acknowledged().await;
    }
    let failed = until_state(&bench.farm, &job.id, JobState::Failed).await;
    let message = failed.failure.unwrap().message;
    assert!(message.contains("did not compare outputs on the inputs given"), "{message}");
}
