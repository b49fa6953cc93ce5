//! One job that builds several times, measurements beside the usual, several toolchains in one request.

use crate::support::{
    self,
    agent::{Agent, device, hello, success},
    blobs::MemBlobs,
    model, open, request, until_state,
};
use planforge_coordinator::{auth::Actor, farm::Farm, store::MemStore};
use planforge_proto::{
    ErrorCode,
    v1::{self, JobState, agent_message::Kind as Say},
};
use std::sync::Arc;

async fn farm() -> (Farm, MemBlobs) {
    let blobs = MemBlobs::default();
    (open(Arc::new(MemStore::new()), &blobs).await, blobs)
}

async fn submit(farm: &Farm, request: v1::SubmitRequest) -> v1::Job {
    farm.submit(&Actor::local(), request).await.expect("the request is accepted").jobs.remove(0)
}

fn times(request: v1::SubmitRequest, builds: u32) -> v1::SubmitRequest {
    v1::SubmitRequest { builds, ..request }
}

fn swept(request: v1::SubmitRequest, streams: &[u32]) -> v1::SubmitRequest {
    v1::SubmitRequest {
        measure: Some(v1::MeasureAsk { streams: streams.to_vec(), trace: false, ..Default::default() }),
        ..request
    }
}

#[tokio::test]
async fn an_engine_from_fewer_builds_is_no_answer_and_is_replaced() {
    let (farm, blobs) = farm().await;
    let mut agent = Agent::usual(&farm, "a").await;
    let usual = || request(model(&blobs, "m"));
    let once = submit(&farm, usual()).await;
    let assign = agent.assigned().await;
    agent.succeed(&blobs, &assign).await;
    agent.acknowledged().await;
    // More than is stored: built anew, under the same key.
    let more = submit(&farm, times(usual(), 3)).await;
    assert_eq!((more.cached, more.builds), (false, 3));
    assert_eq!(more.engine_key, once.engine_key, "how often is no part of the key");
    let assign = agent.assigned().await;
    assert_eq!(assign.job.as_ref().unwrap().builds, 3);
    agent.succeed(&blobs, &assign).await;
    agent.acknowledged().await;
    let more = until_state(&farm, &more.id, JobState::Succeeded).await;
    assert_eq!(more.plan_builds, 3);
    for builds in [0, 1, 2, 3] {
        let answered = submit(&farm, times(usual(), builds)).await;
        assert!(answered.cached, "{builds}");
        assert_eq!(answered.plan_digest, more.plan_digest, "the new one takes the place of the old");
        assert_eq!(answered.plan_builds, 3);
    }
    let engines = farm.list_engines(&Actor::local(), v1::ListEnginesRequest::default()).await.unwrap().engines;
    assert_eq!(engines.iter().map(|engine| engine.builds).collect::<Vec<_>>(), [3]);
    let error = farm.submit(&Actor::local(), times(usual(), 33)).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidArgument);
    let plan_digest = engines[0].plan_digest.clone();
    let bench = v1::SubmitRequest { kind: v1::JobKind::Benchmark.into(), plan_digest, ..times(usual(), 2) };
    assert!(farm.submit(&Actor::local(), bench).await.unwrap_err().message.contains("builds nothing"));
}

#[tokio::test]
async fn a_waiting_job_is_raised_and_a_running_one_is_followed() {
    let (farm, blobs) = farm().await;
    let usual = || v1::SubmitRequest { wait_for_device: true, ..request(model(&blobs, "m")) };
    let mut agent = Agent::usual(&farm, "a").await;
    // Keeps the only device busy.
    let other = submit(&farm, request(model(&blobs, "other"))).await;
    let busy = agent.assigned().await;
    let first = submit(&farm, usual()).await;
    let raised = submit(&farm, swept(times(usual(), 4), &[1, 2])).await;
    assert_eq!((raised.id.as_str(), raised.builds), (first.id.as_str(), 4), "it waits, so it is raised");
    let wider = submit(&farm, swept(usual(), &[8])).await;
    assert_eq!((wider.id.as_str(), wider.builds), (first.id.as_str(), 4));
    agent.succeed(&blobs, &busy).await;
    agent.acknowledged().await;
    until_state(&farm, &other.id, JobState::Succeeded).await;
    let assign = agent.assigned().await;
    let told = assign.job.as_ref().unwrap();
    assert_eq!((told.builds, told.measure.as_ref().unwrap().streams.as_slice()), (4, [1, 2, 8].as_slice()));
    // What it does is settled now: fewer join, more wait behind it.
    assert_eq!(submit(&farm, swept(times(usual(), 2), &[2])).await.id, first.id);
    let behind = submit(&farm, times(usual(), 5)).await;
    assert_ne!(behind.id, first.id);
    assert_eq!((behind.state(), behind.needs.as_slice()), (JobState::Blocked, std::slice::from_ref(&first.id)));
    agent.succeed(&blobs, &assign).await;
    agent.acknowledged().await;
    until_state(&farm, &first.id, JobState::Succeeded).await;
    let assign = agent.assigned().await;
    let told = assign.job.as_ref().unwrap();
    assert_eq!((told.id.as_str(), told.builds), (behind.id.as_str(), 5));
    agent.succeed(&blobs, &assign).await;
    agent.acknowledged().await;
    assert_eq!(until_state(&farm, &behind.id, JobState::Succeeded).await.plan_builds, 5);
}

#[tokio::test]
async fn a_running_measurement_is_joined_by_who_asks_for_as_many_builds_as_its_plan_has() {
    let (farm, blobs) = farm().await;
    let usual = || request(model(&blobs, "m"));
    let mut agent = Agent::usual(&farm, "a").await;
    let built = submit(&farm, times(usual(), 3)).await;
    let assign = agent.assigned().await;
    agent.succeed(&blobs, &assign).await;
    agent.acknowledged().await;
    until_state(&farm, &built.id, JobState::Succeeded).await;
    // The engine is there; only the sweep is missing, and is measured for whoever asks for it.
    let sweep = submit(&farm, swept(usual(), &[1, 2])).await;
    let assign = agent.assigned().await;
    assert_eq!((sweep.kind(), sweep.builds), (v1::JobKind::Benchmark, 1));
    let joined = submit(&farm, swept(times(usual(), 2), &[1, 2])).await;
    assert_eq!((joined.id.as_str(), joined.builds), (sweep.id.as_str(), 1), "it builds nothing, so it is not raised");
    agent.succeed(&blobs, &assign).await;
    agent.acknowledged().await;
    let sweep = until_state(&farm, &sweep.id, JobState::Succeeded).await;
    assert_eq!((sweep.plan_digest, sweep.plan_builds), (built_plan(&farm).await, 3));
}

async fn built_plan(farm: &Farm) -> String {
    let engines = farm.list_engines(&Actor::local(), v1::ListEnginesRequest::default()).await.unwrap().engines;
    assert_eq!(engines.len(), 1);
    engines[0].plan_digest.clone()
}

#[tokio::test]
async fn a_plan_stored_before_the_failure_keeps_its_builds() {
    let (farm, blobs) = farm().await;
    let mut agent = Agent::usual(&farm, "a").await;
    let job = submit(&farm, times(request(model(&blobs, "m")), 3)).await;
    let assign = agent.assigned().await;
    let done = success(&blobs, &assign);
    let built = v1::Built {
        lease: assign.lease.clone(),
        plan_digest: done.plan_digest.clone(),
        plan_bytes: done.plan_bytes,
        card_digest: done.card_digest.clone(),
        builds: 3,
    };
    agent.say(Say::Built(built)).await;
    agent.fail(&assign, v1::FailureClass::Unstable, "the clocks moved").await;
    agent.acknowledged().await;
    // The multi-build selection is not drawn again: only the measurement is repeated.
    let assign = agent.assigned().await;
    assert_eq!(assign.job.as_ref().unwrap().kind(), v1::JobKind::Benchmark);
    agent.succeed(&blobs, &assign).await;
    agent.acknowledged().await;
    let job = until_state(&farm, &job.id, JobState::Succeeded).await;
    assert_eq!((job.plan_digest, job.plan_builds), (done.plan_digest, 3));
}

#[tokio::test]
async fn what_was_not_measured_yet_is_measured_on_the_stored_plan() {
    let (farm, blobs) = farm().await;
    let mut agent = Agent::usual(&farm, "a").await;
    let usual = || request(model(&blobs, "m"));
    let built = submit(&farm, usual()).await;
    let assign = agent.assigned().await;
    agent.succeed(&blobs, &assign).await;
    agent.acknowledged().await;
    let asked = submit(&farm, swept(usual(), &[1, 4])).await;
    let assign = agent.assigned().await;
    let told = assign.job.as_ref().unwrap();
    assert_eq!((told.id.as_str(), told.kind()), (asked.id.as_str(), v1::JobKind::Benchmark));
    let plan = until_state(&farm, &built.id, JobState::Succeeded).await.plan_digest;
    assert_eq!(told.plan_digest, plan, "nothing is built again");
    let timeline = blobs.insert(b"timeline");
    let mut done = success(&blobs, &assign);
    let artifact = |name: &str, digest: String, size_bytes| v1::Artifact { name: name.into(), digest, size_bytes };
    done.artifacts = vec![
        artifact("t.nsys-rep", timeline.to_string(), 8),
        artifact("gone.json", support::digest_of("never stored").to_string(), 3),
    ];
    agent.say(Say::Finished(done)).await;
    assert!(agent.acknowledged().await.accepted);
    let asked = until_state(&farm, &asked.id, JobState::Succeeded).await;
    assert_eq!(asked.artifacts.iter().map(|a| a.name.as_str()).collect::<Vec<_>>(), ["t.nsys-rep"]);
    for (streams, cached) in [(vec![4], true), (vec![1, 4], true), (vec![], true), (vec![1, 2], false)] {
        let answered = submit(&farm, swept(usual(), &streams)).await;
        assert_eq!(answered.cached, cached, "{streams:?}");
        // Who asks for nothing special gets either report: both may carry the same millisecond.
        if !streams.is_empty() {
            assert_eq!(answered.artifacts.len(), usize::from(cached), "{streams:?}");
        }
    }
    let reports = v1::ListReportsRequest { plan_digest: plan, ..v1::ListReportsRequest::default() };
    let reply = farm.list_reports(&Actor::local(), reports).await.unwrap();
    assert_eq!(reply.facts.len(), reply.reports_json.len());
    assert_eq!(reply.facts.iter().filter(|facts| facts.measure.is_some()).count(), 1);
    for bad in [vec![0], vec![65], vec![2, 1], (1..=17).collect()] {
        let error = farm.submit(&Actor::local(), swept(usual(), &bad)).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidArgument, "{bad:?}");
    }
}

#[tokio::test]
async fn one_request_fans_out_over_the_toolchains_of_one_device() {
    let (farm, blobs) = farm().await;
    let mut gpu = device("gpu0", "t4", "tensorrt 10.13.3");
    let offer = |version: &str| v1::Offer {
        toolchain_json: format!(r#"{{"backend":"tensorrt","version":"{version}"}}"#),
        ..v1::Offer::default()
    };
    gpu.offers.extend([offer("11.1.0"), offer("8.6.1")]);
    let mut agent = Agent::connect(&farm, hello("a", vec![gpu])).await;
    agent.next().await;
    let over = |toolchains: &[&str]| v1::SubmitRequest {
        skus: vec!["t4".into()],
        toolchains: toolchains.iter().map(|constraint| (*constraint).to_owned()).collect(),
        ..request(model(&blobs, "m"))
    };
    let jobs = farm.submit(&Actor::local(), over(&["tensorrt=10.13", "tensorrt=11.1", "tensorrt"])).await.unwrap().jobs;
    let versions: Vec<_> = jobs.iter().map(|job| job.toolchain_json.clone()).collect();
    assert!(versions[0].contains("10.13.3") && versions[1].contains("11.1.0") && versions[2].contains("11.1.0"));
    assert_ne!(jobs[0].engine_key, jobs[1].engine_key, "every version has engines of its own");
    assert_eq!(jobs[1].id, jobs[2].id, "what comes to the same version is one job");
    // One after the other: they share a device.
    let mut built = Vec::new();
    for _ in 0..2 {
        let assign = agent.assigned().await;
        built.push(assign.job.as_ref().unwrap().toolchain_json.clone());
        agent.succeed(&blobs, &assign).await;
        agent.acknowledged().await;
    }
    built.sort();
    assert_eq!(built, [versions[0].clone(), versions[1].clone()]);
    // All or nothing, with every reason at once.
    let before = farm.stats().await.unwrap().last_event;
    let refused =
        farm.submit(&Actor::local(), over(&["tensorrt=10.13", "tensorrt=9", "tensorrt=12"])).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Refused);
    for part in ["2 of the request's 3 combinations", "tensorrt=9", "tensorrt=12", "8.6.1", "11.1.0"] {
        assert!(refused.message.contains(part), "{part}: {}", refused.message);
    }
    assert_eq!(farm.stats().await.unwrap().last_event, before, "nothing was submitted");
}
