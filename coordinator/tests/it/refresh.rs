//! Engines whose every window was disturbed, built again where a request wants it.

use crate::support::{bench::Bench, model, request, until_state};
use planforge_coordinator::auth::Actor;
use planforge_proto::{
    ErrorCode,
    v1::{self, JobState},
};

/// Asks for an engine of the one model.
async fn submit(bench: &Bench, refresh_disturbed: bool) -> v1::Job {
    bench.submit(v1::SubmitRequest { refresh_disturbed, ..request(model(&bench.blobs, "m")) }).await
}

/// Lets the agent end the job with a report of such windows, `quiet` or `disturbed`.
async fn measured(bench: &mut Bench, id: &str, windows: &[&str]) -> (v1::Assign, v1::Job) {
    let assign = bench.agent.assigned().await;
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
    let finished = bench.finished(&assign, id, |_| report.into_bytes());
    bench.finish(finished).await;
    (assign, until_state(&bench.farm, id, JobState::Succeeded).await)
}

#[tokio::test]
async fn a_wholly_disturbed_engine_is_built_again_once_for_each_request_that_wants_it() {
    let mut bench = Bench::new().await;
    let first = submit(&bench, true).await;
    let (assign, built) = measured(&mut bench, &first.id, &["disturbed", "disturbed"]).await;
    assert!(!assign.without_cache, "nothing is stored yet");
    // Who does not ask for it is answered, as ever.
    assert!(submit(&bench, false).await.cached);

    let again = submit(&bench, true).await;
    assert_eq!((again.cached, again.kind()), (false, v1::JobKind::Build));
    assert_eq!(again.engine_key, built.engine_key, "it is no part of the key");
    assert!(submit(&bench, false).await.cached, "the stored engine answers until there is another");
    let joined = submit(&bench, true).await;
    assert_eq!(joined.id, again.id, "one live job for a key");
    let (assign, rebuilt) = measured(&mut bench, &again.id, &["disturbed"]).await;
    assert!(assign.without_cache, "timings of then would choose the same tactics");
    assert!(!rebuilt.cached);

    // Disturbed again: the next request that wants it builds again, and only that one.
    let stored = submit(&bench, false).await;
    assert!(stored.cached && stored.plan_digest == rebuilt.plan_digest && stored.plan_digest != built.plan_digest);
    let third = submit(&bench, true).await;
    assert!(!third.cached);
    measured(&mut bench, &third.id, &["disturbed", "quiet"]).await;
    let quiet = submit(&bench, true).await;
    assert!(quiet.cached && quiet.report_json.contains(&third.id), "a window was quiet: {quiet:?}");
}

#[tokio::test]
async fn what_answers_decides_and_a_failed_refresh_leaves_the_stored_engine() {
    let mut bench = Bench::new().await;
    let first = submit(&bench, false).await;
    let (_, built) = measured(&mut bench, &first.id, &["disturbed"]).await;
    let again = submit(&bench, true).await;
    let assign = bench.agent.assigned().await;
    assert_eq!(assign.job.as_ref().unwrap().id, again.id);
    bench.agent.fail(&assign, v1::FailureClass::Resource, "no memory").await;
    bench.agent.acknowledged().await;
    until_state(&bench.farm, &again.id, JobState::Failed).await;
    let stored = submit(&bench, false).await;
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
    let again = bench.farm.submit(&Actor::local(), bench_request).await.unwrap().jobs.remove(0);
    measured(&mut bench, &again.id, &["quiet"]).await;
    let answered = submit(&bench, true).await;
    assert!(answered.cached && answered.report_json.contains(&again.id), "{answered:?}");
}
