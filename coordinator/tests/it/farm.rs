//! The farm as its callers see it: requests in, scripted agents at work, answers out.

use crate::support::{
    self,
    agent::{Agent, device, hello},
    blobs::MemBlobs,
    model, open, request, until_state,
};
use futures::StreamExt as _;
use planforge_coordinator::{
    auth::{Actor, Proof},
    farm::{Farm, FarmConfig, SystemClock},
    store::MemStore,
};
use planforge_proto::{
    ErrorCode,
    v1::{self, FailureClass, JobState, coordinator_message::Kind},
};
use std::sync::Arc;
use support::{SKU, actor};

async fn farm() -> (Farm, MemBlobs) {
    let blobs = MemBlobs::default();
    (open(Arc::new(MemStore::new()), &blobs).await, blobs)
}

async fn submit(farm: &Farm, request: v1::SubmitRequest) -> v1::Job {
    let mut reply = farm.submit(&Actor::local(), request).await.expect("the request is accepted");
    assert!(reply.missing_blobs.is_empty());
    reply.jobs.remove(0)
}

#[tokio::test]
async fn a_job_goes_from_submission_to_an_engine() {
    let (farm, blobs) = farm().await;
    let mut agent = Agent::usual(&farm, "a").await;
    let job = submit(&farm, request(model(&blobs, "m.onnx"))).await;
    let assign = agent.assigned().await;
    assert_eq!(assign.job.as_ref().unwrap().id, job.id);
    agent.started(&assign).await;
    until_state(&farm, &job.id, JobState::Running).await;
    agent.succeed(&blobs, &assign).await;
    assert!(agent.acknowledged().await.accepted);
    let job = until_state(&farm, &job.id, JobState::Succeeded).await;
    assert!(!job.cached && job.accurate && job.report_json.contains("median"), "{job:?}");
    let again = submit(&farm, request(model(&blobs, "m.onnx"))).await;
    assert!(again.cached && again.report_json.contains("median"));
    assert_eq!((again.state(), &again.plan_digest), (JobState::Succeeded, &job.plan_digest));
    let engine = v1::FindEngineRequest {
        model_digest: job.model.as_ref().unwrap().digest.clone(),
        sku: SKU.into(),
        ..v1::FindEngineRequest::default()
    };
    assert_eq!(farm.find_engine(&Actor::local(), engine).await.unwrap().plan_digest, job.plan_digest);
    assert_eq!(farm.stats().await.unwrap().rescued_wakeups, 0);
    farm.close().await;
    assert!(farm.submit(&Actor::local(), request(model(&blobs, "m.onnx"))).await.is_err());
}

#[tokio::test]
async fn equal_requests_share_one_job_until_nobody_wants_it() {
    let (farm, blobs) = farm().await;
    let (red, blue) = (actor("r", "submit", Some("red")), actor("b", "submit", Some("blue")));
    let mut agent = Agent::usual(&farm, "a").await;
    for actor in [&red, &blue] {
        support::show(&farm, actor, &model(&blobs, "m")).await;
    }
    let first = farm.submit(&red, request(model(&blobs, "m"))).await.unwrap().jobs.remove(0);
    let assign = agent.assigned().await;
    let second = farm.submit(&blue, request(model(&blobs, "m"))).await.unwrap().jobs.remove(0);
    assert_eq!(first.id, second.id);
    assert_eq!((first.project.as_str(), second.project.as_str()), ("red", "blue"), "each sees its own request");
    assert_eq!(farm.stats().await.unwrap().merged, 1);
    let ask = v1::WatchJobsRequest { ids: vec![first.id.clone()], ..v1::WatchJobsRequest::default() };
    let seen = farm.watch(&blue, ask).await.unwrap().take(3).map(Result::unwrap);
    let seen: Vec<(String, String)> = seen.map(|event| (event.what, event.actor)).collect().await;
    let seen: Vec<(&str, &str)> = seen.iter().map(|(what, actor)| (what.as_str(), actor.as_str())).collect();
    assert_eq!((seen[0], seen[2]), (("submitted", "somebody else"), ("merged", "b")), "{seen:?}");
    let cancel = |id: &str| v1::CancelJobsRequest { ids: vec![id.into()], ..v1::CancelJobsRequest::default() };
    let kept = farm.cancel_jobs(&red, cancel(&first.id)).await.unwrap().jobs.remove(0);
    assert_eq!(kept.waiting_reason, "goes on: 1 other requests want it", "whose they are is theirs");
    assert_eq!(kept.state(), JobState::Leased);
    farm.cancel_jobs(&blue, cancel(&first.id)).await.unwrap();
    assert!(matches!(agent.next().await, Some(Kind::Cancel(_))));
    let finished = v1::Finished { lease: assign.lease, outcome: "cancelled".into(), ..v1::Finished::default() };
    agent.say(v1::agent_message::Kind::Finished(finished)).await;
    assert_eq!(until_state(&farm, &first.id, JobState::Cancelled).await.attempt, 1);
}

#[tokio::test]
async fn force_builds_again_and_becomes_the_engine() {
    let (farm, blobs) = farm().await;
    let mut agent = Agent::usual(&farm, "a").await;
    for force in [false, true] {
        let job = submit(&farm, v1::SubmitRequest { force, ..request(model(&blobs, "m")) }).await;
        let assign = agent.assigned().await;
        assert_eq!(assign.job.as_ref().unwrap().id, job.id);
        agent.succeed(&blobs, &assign).await;
        assert!(agent.acknowledged().await.accepted);
        assert!(!until_state(&farm, &job.id, JobState::Succeeded).await.cached);
    }
}

#[tokio::test]
async fn what_nobody_can_run_is_refused_with_what_exists() {
    let (farm, blobs) = farm().await;
    let _agent = Agent::usual(&farm, "a").await;
    let gpu = v1::SubmitRequest { skus: vec!["h100-sxm".into()], ..request(model(&blobs, "m")) };
    let error = farm.submit(&Actor::local(), gpu).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Refused);
    assert!(error.message.contains("cpu-x86-64-v3 (native 1)"), "{}", error.message);
    let newer = v1::SubmitRequest { toolchains: vec!["native>=2".into()], ..request(model(&blobs, "m")) };
    let error = farm.submit(&Actor::local(), newer).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Refused);
    assert!(error.message.contains("native 1"), "{}", error.message);
    let jobs = farm.list_jobs(&Actor::local(), v1::ListJobsRequest::default()).await.unwrap();
    assert!(jobs.jobs.is_empty(), "a refused request leaves nothing");
}

#[tokio::test]
async fn what_the_resolved_tensorrt_cannot_do_is_refused_with_what_can() {
    let (farm, blobs) = farm().await;
    let devices = ["tensorrt 8.6.1", "tensorrt 10.16.1.11", "tensorrt 11.1.0.106"];
    let devices =
        devices.iter().enumerate().map(|(n, toolchain)| device(&format!("gpu{n}"), "t4", toolchain)).collect();
    let mut agent = Agent::connect(&farm, hello("a", devices)).await;
    assert!(matches!(agent.next().await, Some(Kind::Welcome(_))));
    let ask = |spec: &str, toolchain: &str| v1::SubmitRequest {
        skus: vec!["t4".into()],
        specs_json: vec![spec.into()],
        toolchains: vec![toolchain.into()],
        ..request(model(&blobs, "m"))
    };
    let profile = r#"{"x":[{"min":1,"opt":2,"max":8}]}"#;
    let profiles = format!(r#"{{"profiles":[{profile},{profile}]}}"#);
    let heuristic = r#"{"options":{"heuristic":"true"}}"#;
    let constrained = r#"{"precision":"fp16","options":{"layer_precisions":"a:fp32"}}"#;
    for (spec, toolchain, said, hint) in [
        (
            profiles.as_str(),
            "tensorrt=8.6",
            "8.6.1 does not support several optimization profiles",
            "10.16.1.11, 11.1.0.106",
        ),
        (heuristic, "tensorrt", "8.5.1 to 9.3 do", "TensorRT 8.6.1, which can"),
        (constrained, "tensorrt>=11", "8.4.1 to 10.16 do", "8.6.1, 10.16.1.11"),
        (r#"{"options":{"use_dla_core":"0"}}"#, "tensorrt", "DLA", "on the board itself"),
        (r#"{"options":{"onnx":"/etc/passwd"}}"#, "tensorrt", "no such option", "tactic_sources"),
    ] {
        let error = farm.submit(&Actor::local(), ask(spec, toolchain)).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Refused, "{error}");
        assert!(error.message.starts_with("t4 cannot have this engine: "), "{}", error.message);
        assert!(error.message.contains(said) && error.hint.contains(hint), "{} / {}", error.message, error.hint);
    }
    // One combination that cannot be refuses the whole request: nothing is queued.
    let mut both = ask(r#"{"precision":"fp16"}"#, "tensorrt=10");
    both.specs_json.push(heuristic.into());
    assert_eq!(farm.submit(&Actor::local(), both).await.unwrap_err().code, ErrorCode::Refused);
    let jobs = farm.list_jobs(&Actor::local(), v1::ListJobsRequest::default()).await.unwrap();
    assert!(jobs.jobs.is_empty(), "a refused request leaves nothing");
    let good = farm.submit(&Actor::local(), ask(&profiles, "tensorrt=10")).await.unwrap();
    assert_eq!(good.jobs.len(), 1);
}

#[tokio::test]
async fn waiting_for_a_device_has_no_key_until_one_comes_and_then_merges() {
    let (farm, blobs) = farm().await;
    let waits = |name| v1::SubmitRequest { wait_for_device: true, ..request(model(&blobs, name)) };
    let first = submit(&farm, waits("m")).await;
    let second = submit(&farm, waits("m")).await;
    assert_eq!((first.state(), first.engine_key.as_str()), (JobState::Unplaceable, ""));
    assert_ne!(first.id, second.id);
    let mut agent = Agent::usual(&farm, "a").await;
    let assign = agent.assigned().await;
    assert!(!assign.job.as_ref().unwrap().engine_key.is_empty());
    agent.succeed(&blobs, &assign).await;
    let done = [
        until_state(&farm, &first.id, JobState::Succeeded).await,
        until_state(&farm, &second.id, JobState::Succeeded).await,
    ];
    assert_eq!(done.iter().filter(|job| job.cached).count(), 1, "one was built, the other answered by it");
    assert_eq!(done[0].plan_digest, done[1].plan_digest);
}

#[tokio::test]
async fn a_toolchain_that_goes_away_leaves_its_jobs_unplaceable_or_followed() {
    let (farm, blobs) = farm().await;
    let mut agent = Agent::usual(&farm, "a").await;
    submit(&farm, request(model(&blobs, "busy"))).await;
    let busy = agent.assigned().await;
    let stays = submit(&farm, request(model(&blobs, "stays"))).await;
    let follows =
        submit(&farm, v1::SubmitRequest { follow_toolchain: true, ..request(model(&blobs, "follows")) }).await;
    let devices = vec![device("cpu0", SKU, "native 2")];
    agent.say(v1::agent_message::Kind::Inventory(v1::Inventory { devices })).await;
    let stuck = until_state(&farm, &stays.id, JobState::Unplaceable).await;
    assert!(stuck.waiting_reason.contains("native 2"), "{}", stuck.waiting_reason);
    agent.succeed(&blobs, &busy).await;
    agent.acknowledged().await;
    let next = agent.assigned().await.job.unwrap();
    assert_eq!(next.id, follows.id);
    assert_ne!(next.engine_key, follows.engine_key);
    let devices = vec![device("cpu0", SKU, "native 1")];
    agent.say(v1::agent_message::Kind::Inventory(v1::Inventory { devices })).await;
    until_state(&farm, &stays.id, JobState::Queued).await;
}

#[tokio::test]
async fn failure_classes_decide_about_another_attempt() {
    let (farm, blobs) = farm().await;
    let mut agent = Agent::usual(&farm, "a").await;
    let job = submit(&farm, request(model(&blobs, "infra"))).await;
    for _ in 0..3 {
        let assign = agent.assigned().await;
        agent.fail(&assign, FailureClass::Infrastructure, "store unreachable").await;
        agent.acknowledged().await;
    }
    let failed = until_state(&farm, &job.id, JobState::Failed).await;
    assert_eq!(failed.attempts.len(), 3);
    let message = failed.failure.unwrap().message;
    assert_eq!(message.matches("store unreachable").count(), 3, "{message}");
    for (class, name) in [(FailureClass::Model, "model"), (FailureClass::Resource, "resource")] {
        let job = submit(&farm, request(model(&blobs, name))).await;
        let assign = agent.assigned().await;
        agent.fail(&assign, class, "no").await;
        agent.acknowledged().await;
        assert_eq!(until_state(&farm, &job.id, JobState::Failed).await.attempt, 1);
    }
    let known = submit(&farm, request(model(&blobs, "model"))).await;
    assert_eq!((known.state(), known.cached), (JobState::Failed, true), "a model's fault is remembered");
    assert!(known.failure.unwrap().hint.contains("--force"));
    let again = submit(&farm, request(model(&blobs, "resource"))).await;
    assert_ne!(again.state(), JobState::Failed, "a lack of memory is not");
}

#[tokio::test]
async fn an_unstable_measurement_is_repeated_alone_and_not_for_ever() {
    let (farm, blobs) = farm().await;
    let mut agent = Agent::usual(&farm, "a").await;
    let job = submit(&farm, request(model(&blobs, "m"))).await;
    let mut kinds = Vec::new();
    for _ in 0..3 {
        let assign = agent.assigned().await;
        kinds.push(assign.job.as_ref().unwrap().kind());
        let plan = support::agent::plan_of(&assign, "one");
        let built = v1::Built {
            lease: assign.lease.clone(),
            plan_digest: blobs.insert(&plan).to_string(),
            plan_bytes: plan.len() as u64,
            ..v1::Built::default()
        };
        agent.say(v1::agent_message::Kind::Built(built)).await;
        agent.fail(&assign, FailureClass::Unstable, "clocks moved").await;
        agent.acknowledged().await;
    }
    assert_eq!(kinds, [v1::JobKind::Build, v1::JobKind::Benchmark, v1::JobKind::Benchmark]);
    let failed = until_state(&farm, &job.id, JobState::Failed).await;
    assert_eq!(failed.failure.unwrap().class(), FailureClass::Unstable);
}

#[tokio::test]
async fn an_expired_lease_goes_to_another_agent_and_its_holder_is_refused() {
    let (farm, blobs) = farm().await;
    let mut slow = Agent::usual(&farm, "slow").await;
    let job = submit(&farm, request(model(&blobs, "m"))).await;
    let first = slow.assigned().await;
    let mut quick = Agent::usual(&farm, "quick").await;
    // It beats, so it stays connected, but not for this lease: it does not have it any more.
    let second = loop {
        slow.beat(&[]).await;
        tokio::select! {
            biased;
            second = quick.assigned() => break second,
            () = tokio::time::sleep(std::time::Duration::from_millis(100)) => quick.beat(&[]).await,
        }
    };
    assert_eq!(second.lease.as_ref().unwrap().attempt, 2);
    assert!(matches!(slow.next().await, Some(Kind::LeaseLost(_))));
    slow.succeed(&blobs, &first).await;
    assert!(!slow.acknowledged().await.accepted, "a superseded attempt publishes nothing");
    quick.succeed(&blobs, &second).await;
    assert!(quick.acknowledged().await.accepted);
    let done = until_state(&farm, &job.id, JobState::Succeeded).await;
    assert!(done.report_json.contains(r#""attempt":2"#));
    assert_eq!(done.attempts[0].outcome, "lost");
    quick.succeed(&blobs, &second).await;
    assert!(quick.acknowledged().await.accepted, "finishing twice is finishing once");
}

#[tokio::test]
async fn a_lease_outlives_its_connection_and_the_coordinator() {
    let blobs = MemBlobs::default();
    let store = Arc::new(MemStore::new());
    let farm = open(store.clone(), &blobs).await;
    let mut agent = Agent::usual(&farm, "a").await;
    let job = submit(&farm, request(model(&blobs, "m"))).await;
    let assign = agent.assigned().await;
    agent.started(&assign).await;
    until_state(&farm, &job.id, JobState::Running).await;
    let back = || v1::Hello {
        leases: assign.lease.clone().into_iter().collect(),
        ..hello("a", vec![device("cpu0", SKU, "native 1")])
    };
    drop(agent);
    let mut agent = Agent::connect(&farm, back()).await;
    let Some(Kind::Welcome(welcome)) = agent.next().await else { panic!("not welcomed") };
    assert_eq!((welcome.resumed.len(), welcome.lost.len()), (1, 0));
    farm.close().await;
    assert!(agent.next().await.is_none(), "the session ends with the farm");
    let farm = open(store, &blobs).await;
    let mut agent = Agent::connect(&farm, back()).await;
    let Some(Kind::Welcome(welcome)) = agent.next().await else { panic!("not welcomed") };
    assert_eq!(welcome.resumed.len(), 1);
    agent.succeed(&blobs, &assign).await;
    assert!(agent.acknowledged().await.accepted);
    assert_eq!(until_state(&farm, &job.id, JobState::Succeeded).await.attempt, 1, "never requeued");
}

#[tokio::test]
async fn a_restarted_agent_gives_its_jobs_back_at_once() {
    let (farm, blobs) = farm().await;
    let mut agent = Agent::usual(&farm, "a").await;
    let job = submit(&farm, request(model(&blobs, "m"))).await;
    agent.assigned().await;
    let second = v1::Hello { incarnation: "a-2".into(), ..hello("a", vec![device("cpu0", SKU, "native 1")]) };
    let mut twin = Agent::connect(&farm, second.clone()).await;
    let Some(Kind::Refused(refused)) = twin.next().await else { panic!("two live processes with one identity") };
    assert!(refused.reason.contains("connected already"), "{}", refused.reason);
    assert!(twin.next().await.is_none());
    drop(agent);
    let mut agent = support::until("the old session to be gone", || async {
        let mut agent = Agent::connect(&farm, second.clone()).await;
        matches!(agent.next().await, Some(Kind::Welcome(_))).then_some(agent)
    })
    .await;
    let assign = agent.assigned().await;
    assert_eq!((assign.job.unwrap().id, assign.lease.unwrap().attempt), (job.id, 2));
}

#[tokio::test]
async fn missing_blobs_are_asked_for_unless_the_store_answers() {
    let (farm, blobs) = farm().await;
    let mut agent = Agent::usual(&farm, "a").await;
    let digest = support::digest_of("absent").to_string();
    let file = v1::ModelFile { name: "m".into(), digest: digest.clone(), size_bytes: 6 };
    let absent = v1::Model { digest: digest.clone(), name: "m".into(), files: vec![file], ..v1::Model::default() };
    let reply = farm.submit(&Actor::local(), request(absent.clone())).await.unwrap();
    assert_eq!((reply.missing_blobs, reply.jobs.len()), (vec![digest], 0));
    blobs.insert(b"absent");
    submit(&farm, request(absent.clone())).await;
    let assign = agent.assigned().await;
    agent.succeed(&blobs, &assign).await;
    agent.acknowledged().await;
    blobs.remove(support::digest_of("absent"));
    assert!(submit(&farm, request(absent)).await.cached);
}

#[tokio::test]
async fn a_success_without_its_blobs_is_a_failed_attempt() {
    let (farm, blobs) = farm().await;
    let mut agent = Agent::usual(&farm, "a").await;
    let job = submit(&farm, request(model(&blobs, "m"))).await;
    let assign = agent.assigned().await;
    let absent = support::digest_of("never stored").to_string();
    let finished = v1::Finished { plan_digest: absent, ..support::agent::success(&blobs, &assign) };
    agent.say(v1::agent_message::Kind::Finished(finished)).await;
    agent.acknowledged().await;
    let again = agent.assigned().await;
    assert_eq!(again.lease.unwrap().attempt, 2);
    let view = farm.get_job(&Actor::local(), &job.id).await.unwrap();
    assert!(view.attempts[0].failure.as_ref().unwrap().message.contains("not in the blob store"));
}

#[tokio::test]
async fn a_success_whose_report_contradicts_its_samples_is_a_failed_attempt() {
    let (farm, blobs) = farm().await;
    let mut agent = Agent::usual(&farm, "a").await;
    let job = submit(&farm, request(model(&blobs, "m"))).await;
    let samples = serde_json::to_string(&planforge_report::Samples::encode(&[1.0, 2.0, 3.0])).unwrap();
    let report = |median: f64| {
        format!(r#"{{"schema_version":1,"latency_ms":{{"count":3,"median":{median:?}}},"samples":{samples}}}"#)
    };
    for (attempt, median) in [(1, 1.5), (2, 2.0)] {
        let assign = agent.assigned().await;
        assert_eq!(assign.lease.as_ref().unwrap().attempt, attempt);
        let report_digest = blobs.insert(report(median).as_bytes()).to_string();
        let finished = v1::Finished { report_digest, ..support::agent::success(&blobs, &assign) };
        agent.say(v1::agent_message::Kind::Finished(finished)).await;
        agent.acknowledged().await;
    }
    let view = until_state(&farm, &job.id, JobState::Succeeded).await;
    assert_eq!(view.report_json, report(2.0), "nothing is kept of the first");
    let failure = farm.get_job(&Actor::local(), &job.id).await.unwrap().attempts[0].failure.clone().unwrap();
    for said in [job.id.as_str(), "latency_ms.median is stated as 1.5", "come to 2"] {
        assert!(failure.message.contains(said), "{said}: {}", failure.message);
    }
    assert!(failure.hint.contains("planforge doctor"), "{}", failure.hint);
}

#[tokio::test]
async fn repeating_a_request_changes_nothing() {
    let blobs = MemBlobs::default();
    let store = Arc::new(MemStore::new());
    let farm = open(store.clone(), &blobs).await;
    let _agent = Agent::usual(&farm, "a").await;
    let once = v1::SubmitRequest { idempotency_key: "k".into(), force: true, ..request(model(&blobs, "m")) };
    let first = submit(&farm, once.clone()).await;
    assert_eq!(submit(&farm, once.clone()).await.id, first.id);
    let other = v1::SubmitRequest { priority: 3, ..once.clone() };
    assert_eq!(farm.submit(&Actor::local(), other).await.unwrap_err().code, ErrorCode::Conflict);
    farm.close().await;
    let farm = open(store, &blobs).await;
    assert_eq!(submit(&farm, once).await.id, first.id, "also after a restart");
}

#[tokio::test]
async fn a_test_set_that_is_new_to_an_engine_is_measured_on_it() {
    let (farm, blobs) = farm().await;
    let mut agent = Agent::usual(&farm, "a").await;
    submit(&farm, request(model(&blobs, "m"))).await;
    let assign = agent.assigned().await;
    agent.succeed(&blobs, &assign).await;
    agent.acknowledged().await;
    let eval_digest = blobs.insert(b"labels").to_string();
    let with_eval = || v1::SubmitRequest { eval_digest: eval_digest.clone(), ..request(model(&blobs, "m")) };
    let job = submit(&farm, with_eval()).await;
    let assign = agent.assigned().await;
    let told = assign.job.as_ref().unwrap();
    assert_eq!((told.kind(), told.id == job.id), (v1::JobKind::Benchmark, true));
    agent.succeed(&blobs, &assign).await;
    agent.acknowledged().await;
    until_state(&farm, &job.id, JobState::Succeeded).await;
    let answered = submit(&farm, with_eval()).await;
    assert!(answered.cached && answered.report_json.contains("top1"), "{answered:?}");
    assert!(submit(&farm, request(model(&blobs, "m"))).await.cached, "no test set asked, none needed");
}

#[tokio::test]
async fn a_plan_is_measured_where_it_is_asked_to_be() {
    let (farm, blobs) = farm().await;
    let mut agent = Agent::usual(&farm, "a").await;
    submit(&farm, request(model(&blobs, "m"))).await;
    let assign = agent.assigned().await;
    agent.succeed(&blobs, &assign).await;
    agent.acknowledged().await;
    let mut other = Agent::connect(&farm, hello("b", vec![device("cpu0", "cpu-x86-64-v4", "native 1")])).await;
    other.next().await;
    let engines = farm.list_engines(&Actor::local(), v1::ListEnginesRequest::default()).await.unwrap().engines;
    let measure = v1::SubmitRequest {
        kind: v1::JobKind::Benchmark.into(),
        plan_digest: engines[0].plan_digest.clone(),
        skus: vec!["cpu-x86-64-v4".into()],
        eval_digest: blobs.insert(b"labels").to_string(),
        ..v1::SubmitRequest::default()
    };
    let job = submit(&farm, measure.clone()).await;
    let assign = other.assigned().await;
    let assigned = assign.job.as_ref().unwrap();
    assert_eq!(assigned.plan_digest, engines[0].plan_digest);
    assert_eq!((assigned.built_for.as_str(), assigned.sku.as_str()), (SKU, "cpu-x86-64-v4"), "so it is marked foreign");
    other.succeed(&blobs, &assign).await;
    until_state(&farm, &job.id, JobState::Succeeded).await;
    let reports =
        v1::ListReportsRequest { plan_digest: engines[0].plan_digest.clone(), ..v1::ListReportsRequest::default() };
    assert_eq!(farm.list_reports(&Actor::local(), reports).await.unwrap().reports_json.len(), 2);
    // What was counted there says nothing about the SKU that the engine was built for.
    let eval_digest = measure.eval_digest.clone();
    let own = submit(&farm, v1::SubmitRequest { eval_digest, ..request(model(&blobs, "m")) }).await;
    assert!(!own.cached, "{own:?}");
    let assign = agent.assigned().await;
    assert_eq!(assign.job.as_ref().unwrap().built_for, "", "its own plan");
    agent.succeed(&blobs, &assign).await;
    until_state(&farm, &own.id, JobState::Succeeded).await;
    // A plan whose bytes are gone can be measured nowhere.
    blobs.remove(engines[0].plan_digest.parse().unwrap());
    let error = farm.submit(&Actor::local(), measure).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Gone);
    assert!(error.message.contains("is gone"), "{error}");
}

#[tokio::test]
async fn an_engine_whose_plan_is_gone_is_built_again() {
    let (farm, blobs) = farm().await;
    let mut agent = Agent::usual(&farm, "a").await;
    submit(&farm, request(model(&blobs, "m"))).await;
    let assign = agent.assigned().await;
    agent.succeed(&blobs, &assign).await;
    agent.acknowledged().await;
    let first = submit(&farm, request(model(&blobs, "m"))).await;
    assert!(first.cached);
    blobs.remove(first.plan_digest.parse().unwrap());
    let wanted = v1::FindEngineRequest { plan_digest: first.plan_digest, ..v1::FindEngineRequest::default() };
    let error = farm.find_engine(&Actor::local(), wanted).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Gone);
    assert!(error.message.contains("is gone") && error.hint.contains("submit"), "{error:?}");

    // A test set that it was not counted on must not lead to a measurement of what is not there either.
    let eval_digest = blobs.insert(b"labels").to_string();
    let again = submit(&farm, v1::SubmitRequest { eval_digest, ..request(model(&blobs, "m")) }).await;
    assert!(!again.cached, "{again:?}");
    let joined = submit(&farm, request(model(&blobs, "m"))).await;
    assert_eq!(joined.id, again.id, "one build for both");
    let assign = agent.assigned().await;
    assert_eq!(assign.job.as_ref().unwrap().kind(), v1::JobKind::Build);
    agent.succeed(&blobs, &assign).await;
    agent.acknowledged().await;
    let answered = submit(&farm, request(model(&blobs, "m"))).await;
    assert!(answered.cached);
    let wanted = v1::FindEngineRequest { plan_digest: answered.plan_digest, ..v1::FindEngineRequest::default() };
    farm.find_engine(&Actor::local(), wanted).await.expect("it is there again");
}

#[tokio::test]
async fn roles_and_projects_hold() {
    let (farm, blobs) = farm().await;
    let _agent = Agent::usual(&farm, "a").await;
    let (red, blue) = (actor("r", "submit", Some("red")), actor("b", "submit", Some("blue")));
    support::show(&farm, &red, &model(&blobs, "m")).await;
    let job = farm.submit(&red, request(model(&blobs, "m"))).await.unwrap().jobs.remove(0);
    assert_eq!(farm.get_job(&blue, &job.id).await.unwrap_err().code, ErrorCode::NotFound);
    let cancel = v1::CancelJobsRequest { ids: vec![job.id.clone()], ..v1::CancelJobsRequest::default() };
    assert_eq!(farm.cancel_jobs(&blue, cancel.clone()).await.unwrap_err().code, ErrorCode::NotFound);
    assert!(farm.list_jobs(&blue, v1::ListJobsRequest::default()).await.unwrap().jobs.is_empty());
    let theirs = v1::ListJobsRequest { project: "red".into(), ..v1::ListJobsRequest::default() };
    assert_eq!(farm.list_jobs(&blue, theirs).await.unwrap_err().code, ErrorCode::PermissionDenied);
    for role in ["read", "agent"] {
        let error = farm.submit(&actor("x", role, None), request(model(&blobs, "m"))).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::PermissionDenied, "{role}");
        let error = farm.cancel_jobs(&actor("x", role, None), cancel.clone()).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::PermissionDenied, "{role}");
    }
    let inbound = futures::stream::pending().boxed();
    assert_eq!(farm.session(&red, Proof::Owner, inbound).await.err().unwrap().code, ErrorCode::PermissionDenied);
    assert_eq!(farm.list_tokens(&red).await.unwrap_err().code, ErrorCode::PermissionDenied);
}

#[tokio::test]
async fn tokens_are_hashed_and_can_be_revoked() {
    let blobs = MemBlobs::default();
    let store = Arc::new(MemStore::new());
    let farm = open(store.clone(), &blobs).await;
    let ask = v1::CreateTokenRequest { name: "ci".into(), role: "submit".into(), project: "red".into(), ttl_s: 0 };
    let made = farm.create_token(&Actor::local(), ask.clone()).await.unwrap();
    assert!(made.secret.starts_with("pf_") && made.secret.len() == 67);
    assert_eq!(farm.create_token(&Actor::local(), ask).await.unwrap_err().code, ErrorCode::Conflict);
    assert_eq!(
        farm.authenticate(&made.secret).await.unwrap(),
        Some(Actor { token: made.id.clone(), ..actor("ci", "submit", Some("red")) })
    );
    assert_eq!(farm.authenticate("pf_00").await.unwrap(), None);
    farm.close().await;
    let farm = open(store.clone(), &blobs).await;
    assert!(farm.authenticate(&made.secret).await.unwrap().is_some(), "kept over a restart");
    let kept = format!("{:?}", planforge_coordinator::store::Store::tokens(store.as_ref()).await.unwrap());
    assert!(!kept.contains(&made.secret), "the secret is nowhere");
    farm.revoke_token(&Actor::local(), &made.id).await.unwrap();
    assert_eq!(farm.authenticate(&made.secret).await.unwrap(), None);
}

#[tokio::test]
async fn a_watch_replays_then_follows_then_ends() {
    let (farm, blobs) = farm().await;
    let mut agent = Agent::usual(&farm, "a").await;
    let job = submit(&farm, request(model(&blobs, "m"))).await;
    let assign = agent.assigned().await;
    let ask = v1::WatchJobsRequest { ids: vec![job.id.clone()], until_ended: true, ..v1::WatchJobsRequest::default() };
    let mut events = farm.watch(&Actor::local(), ask.clone()).await.unwrap();
    assert_eq!(events.next().await.unwrap().unwrap().what, "submitted");
    agent.started(&assign).await;
    agent.succeed(&blobs, &assign).await;
    let rest: Vec<v1::JobEvent> = events.map(Result::unwrap).collect().await;
    let what: Vec<&str> = rest.iter().map(|event| event.what.as_str()).collect();
    assert_eq!(what, ["leased", "running", "succeeded"]);
    assert!(rest.windows(2).all(|pair| pair[0].seq < pair[1].seq));
    let later = v1::WatchJobsRequest { after_event: rest[1].seq, ..ask };
    let rest: Vec<_> = farm.watch(&Actor::local(), later).await.unwrap().collect().await;
    assert_eq!(rest.len(), 1, "replay begins after the given event");
}

async fn log(farm: &Farm, id: &str, follow: bool) -> String {
    let ask = v1::ReadLogRequest { id: id.into(), follow, ..v1::ReadLogRequest::default() };
    let chunks: Vec<_> =
        farm.read_log(&Actor::local(), ask).await.unwrap().map(|chunk| chunk.unwrap().data).collect().await;
    String::from_utf8(chunks.concat()).unwrap()
}

#[tokio::test]
async fn logs_are_live_and_outlive_a_lost_agent() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = MemBlobs::default();
    let config = FarmConfig {
        lease_ms: 1_000,
        max_attempts: 1,
        log_folder: Some(folder.path().into()),
        ..FarmConfig::default()
    };
    let clock = Arc::new(SystemClock::new());
    let farm = Farm::open(Arc::new(MemStore::new()), Arc::new(blobs.clone()), config, clock).await.unwrap();
    let mut agent = Agent::usual(&farm, "a").await;
    let job = submit(&farm, request(model(&blobs, "m"))).await;
    let assign = agent.assigned().await;
    let lines = |offset_bytes, data: &str| {
        let lease = assign.lease.clone();
        v1::agent_message::Kind::Log(v1::LogLines { lease, offset_bytes, data: data.into() })
    };
    agent.say(lines(0, "one\n")).await;
    agent.say(lines(0, "one\ntwo\n")).await;
    agent.say(lines(99, "beyond")).await;
    support::until("the log", || async { (log(&farm, &job.id, false).await == "one\ntwo\n").then_some(()) }).await;
    drop(agent);
    let agent = Agent::usual(&farm, "a").await;
    until_state(&farm, &job.id, JobState::Failed).await;
    support::until("the sealed log", || async {
        let job = farm.get_job(&Actor::local(), &job.id).await.unwrap();
        (!job.attempts[0].log_digest.is_empty()).then_some(())
    })
    .await;
    assert_eq!(log(&farm, &job.id, true).await, "one\ntwo\n");
    agent.beat(&[]).await;
    support::until("the live log to be removed", || async {
        std::fs::read_dir(folder.path()).unwrap().next().is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_queue_is_bounded() {
    let blobs = MemBlobs::default();
    let config = FarmConfig { max_live_jobs: 3, ..FarmConfig::default() };
    let clock = Arc::new(SystemClock::new());
    let farm = Farm::open(Arc::new(MemStore::new()), Arc::new(blobs.clone()), config, clock).await.unwrap();
    let _agent = Agent::usual(&farm, "a").await;
    submit(&farm, request(model(&blobs, "1"))).await;
    submit(&farm, request(model(&blobs, "2"))).await;
    let error = farm.submit(&Actor::local(), request(model(&blobs, "3"))).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::ResourceExhausted);
    submit(&farm, request(model(&blobs, "1"))).await;
}

#[tokio::test]
async fn an_invented_sku_makes_no_metric() {
    let (farm, blobs) = farm().await;
    let _agent = Agent::usual(&farm, "a").await;
    for number in 0..100 {
        let skus = vec![format!("invented{number}")];
        let ask = v1::SubmitRequest { wait_for_device: true, skus, ..request(model(&blobs, "m")) };
        farm.submit(&Actor::local(), ask).await.unwrap();
    }
    farm.submit(&Actor::local(), request(model(&blobs, "1"))).await.unwrap();
    farm.submit(&Actor::local(), request(model(&blobs, "2"))).await.unwrap();
    let labels: Vec<String> = farm.stats().await.unwrap().oldest_pending_ms.into_keys().collect();
    assert_eq!(labels, [support::SKU, "other"]);
}

#[tokio::test]
async fn what_no_toolchain_can_do_is_refused_at_submission() {
    let (farm, blobs) = farm().await;
    let mut cpu = device("cpu0", support::SKU, "native 1");
    cpu.offers[0].abilities = Some(v1::Abilities {
        precisions: vec!["fp32".into(), "best".into(), "fp4 of a newer release".into()],
        features: vec!["calibration".into()],
        options: vec!["*".into()],
        never_measures: vec!["sweep_streams".into(), "trace".into()],
    });
    let _agent = Agent::connect(&farm, hello("a", vec![cpu])).await;
    let ask = |spec: &str| v1::SubmitRequest { specs_json: vec![spec.into()], ..request(model(&blobs, "m")) };
    support::until("the agent's devices", || async {
        farm.dry_run(&Actor::local(), ask("{}")).await.unwrap().refusal.is_empty().then_some(())
    })
    .await;
    let digest = support::digest_of("plugin").to_string();
    let plugin = v1::AllowPluginRequest { digest: digest.clone(), name: "p".into() };
    farm.allow_plugin(&Actor::local(), plugin).await.unwrap();
    for (spec, what) in [
        (r#"{"precision":"fp16"}"#.to_owned(), "precision fp16 (it has fp32, best)"),
        (format!(r#"{{"plugins":["{digest}"]}}"#), "plugins"),
        (r#"{"version_compatible":true}"#.to_owned(), "version-compatible plans"),
    ] {
        // Not even who would wait for another device waits for this one.
        for wait_for_device in [false, true] {
            let ask = v1::SubmitRequest { wait_for_device, ..ask(&spec) };
            let error = farm.submit(&Actor::local(), ask).await.unwrap_err();
            assert_eq!(error.code, ErrorCode::Refused, "{spec}");
            assert!(error.message.contains(what) && error.message.contains("native 1"), "{}", error.message);
        }
    }
    for (measure, what, flag) in [
        (v1::MeasureAsk { streams: vec![1, 2], ..Default::default() }, "no parallel streams", "--sweep-streams"),
        (v1::MeasureAsk { trace: true, ..Default::default() }, "no timelines", "--trace"),
    ] {
        let ask = v1::SubmitRequest { measure: Some(measure), ..ask("{}") };
        let foreseen = farm.dry_run(&Actor::local(), ask.clone()).await.unwrap();
        assert!(foreseen.refusal.contains(what), "{}", foreseen.refusal);
        let error = farm.submit(&Actor::local(), ask).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Refused);
        assert!(error.message.contains(what) && error.message.contains(support::SKU), "{}", error.message);
        assert!(error.hint.contains(flag) && error.hint.contains("no known device can"), "{}", error.hint);
    }
    farm.submit(&Actor::local(), ask(r#"{"precision":"best"}"#)).await.unwrap();
    // An agent that does not say is taken at its word for everything; so is one of two.
    let _older = Agent::usual(&farm, "b").await;
    farm.submit(&Actor::local(), ask(r#"{"precision":"fp16"}"#)).await.unwrap();
}

#[tokio::test]
async fn nonsense_is_refused_before_anything_happens() {
    let (farm, blobs) = farm().await;
    let _agent = Agent::usual(&farm, "a").await;
    let good = request(model(&blobs, "m"));
    let named = |name: &str| {
        let mut model = model(&blobs, "m");
        model.files[0].name = name.into();
        request(model)
    };
    let mut lies = model(&blobs, "m");
    lies.digest = support::digest_of("other").to_string();
    // The digest of the ONNX file alone, given to what its external data make another model.
    let mut more = model(&blobs, "m");
    more.files.push(model(&blobs, "weights").files.remove(0));
    let mut twice = more.clone();
    twice.files.push(twice.files[1].clone());
    let kind = |kind: v1::JobKind| v1::SubmitRequest { kind: kind.into(), ..good.clone() };
    let bad = [
        ("no SKU", v1::SubmitRequest { skus: vec![], ..good.clone() }),
        ("SKU", v1::SubmitRequest { skus: vec!["H100 SXM".into()], ..good.clone() }),
        ("spec", v1::SubmitRequest { specs_json: vec![r#"{"precison":"fp16"}"#.into()], ..good.clone() }),
        ("constraint", v1::SubmitRequest { toolchains: vec!["tensorrt>=".into()], ..good.clone() }),
        ("no model", v1::SubmitRequest { models: vec![], ..good.clone() }),
        ("no device kind", kind(v1::JobKind::Prepare)),
        ("probe jobs", kind(v1::JobKind::Probe)),
        ("job kind 99", v1::SubmitRequest { kind: 99, ..good.clone() }),
        ("project", v1::SubmitRequest { project: "../x".into(), ..good.clone() }),
        ("escape", named("../m")),
        ("absolute", named("/m")),
        ("another model's name", request(lies)),
        ("its files make it", request(more.clone())),
        ("one name", request(twice)),
    ];
    for (what, bad) in bad {
        let is_kind = bad.kind != 0;
        let error = farm.submit(&Actor::local(), bad).await.expect_err(what);
        assert_eq!(error.code, ErrorCode::InvalidArgument, "{what}: {error}");
        assert!(!is_kind || error.message.contains(what), "{what}: {error}");
    }
    // A baseline is built by another runtime, which nobody offers here.
    let error = farm.submit(&Actor::local(), kind(v1::JobKind::Baseline)).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Refused);
    assert!(error.message.contains("'onnxruntime'"), "{error}");
    // Named by all of its files it is welcome.
    let file = |file: &v1::ModelFile| (file.digest.parse().unwrap(), file.size_bytes);
    let parts: Vec<_> = more.files.iter().map(file).collect();
    let named = more.files.iter().zip(&parts).map(|(file, (digest, size))| (file.name.as_str(), *digest, *size));
    let digest = planforge_identity::model::model_digest(named).to_string();
    let welcome = v1::Model { digest, ..more };
    let dry = v1::SubmitRequest { skus: vec!["t4".into()], ..request(welcome) };
    assert_eq!(farm.submit(&Actor::local(), dry).await.unwrap_err().code, ErrorCode::Refused, "only for its SKU");
    let jobs = farm.list_jobs(&Actor::local(), v1::ListJobsRequest::default()).await.unwrap();
    assert!(jobs.jobs.is_empty());
}
