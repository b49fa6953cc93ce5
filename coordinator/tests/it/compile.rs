//! Compile jobs: engines that nobody measured yet, what is prepared for devices elsewhere, and that nothing runs beside them.

use crate::support::{
    SKU,
    agent::{Agent, device, hello},
    blobs::MemBlobs,
    model, open, request, state, until_state,
};
use planforge_coordinator::{auth::Actor, farm::Farm, store::MemStore};
use planforge_proto::{
    ErrorCode, protocol,
    v1::{self, FailureClass, JobKind, JobState, coordinator_message::Kind},
};
use std::sync::Arc;

const GPU: &str = r#"{"backend":"native","version":"1","components":{"cuda":"12.9","cudnn":"9.19"}}"#;
const NVRTC: &str = r#"{"backend":"native","version":"1","components":{"cuda":"12.9"}}"#;

async fn farm() -> (Farm, MemBlobs) {
    let blobs = MemBlobs::default();
    (open(Arc::new(MemStore::new()), &blobs).await, blobs)
}

async fn submit(farm: &Farm, request: v1::SubmitRequest) -> v1::Job {
    farm.submit(&Actor::local(), request).await.unwrap().jobs.remove(0)
}

fn compile(model: v1::Model, sku: &str) -> v1::SubmitRequest {
    v1::SubmitRequest { kind: JobKind::Compile.into(), skus: vec![sku.into()], ..request(model) }
}

fn gpu() -> v1::Device {
    let mut gpu = device("gpu0", "t4", "native 1");
    gpu.offers[0].toolchain_json = GPU.into();
    v1::Device { threads: 0, fingerprint_json: r#"{"board":"of the farm"}"#.into(), ..gpu }
}

fn processor(prepares: &[&str]) -> v1::Device {
    v1::Device {
        prepares_json: prepares.iter().map(|text| (*text).into()).collect(),
        ..device("cpu0", SKU, "native 1")
    }
}

async fn join(farm: &Farm, hello: v1::Hello) -> Agent {
    let mut agent = Agent::connect(farm, hello).await;
    assert!(matches!(agent.next().await, Some(Kind::Welcome(_))));
    agent
}

async fn end(agent: &mut Agent, blobs: &MemBlobs, assign: &v1::Assign) {
    agent.succeed(blobs, assign).await;
    let ack = agent.acknowledged().await;
    assert!(ack.accepted, "{ack:?}");
}

async fn engine(farm: &Farm, name: &str) -> v1::Engine {
    let asked = v1::ListEnginesRequest { model: name.into(), ..v1::ListEnginesRequest::default() };
    farm.list_engines(&Actor::local(), asked).await.unwrap().engines.remove(0)
}

#[tokio::test]
async fn an_engine_is_built_first_and_measured_by_whoever_asks_for_figures() {
    let blobs = MemBlobs::default();
    let store = Arc::new(MemStore::new());
    let farm = open(store.clone(), &blobs).await;
    let mut agent = Agent::usual(&farm, "a").await;
    let built = submit(&farm, compile(model(&blobs, "m"), SKU)).await;
    // Asked for twice, compiled once.
    assert_eq!(submit(&farm, compile(model(&blobs, "m"), SKU)).await.id, built.id);
    // Who wants figures waits for the engine, and has it measured then.
    let wanted = submit(&farm, request(model(&blobs, "m"))).await;
    assert_eq!((state(&wanted), &wanted.needs), (JobState::Blocked, &vec![built.id.clone()]));
    let assign = agent.assigned().await;
    assert_eq!(assign.job.as_ref().unwrap().kind(), JobKind::Compile);
    end(&mut agent, &blobs, &assign).await;
    let told = until_state(&farm, &built.id, JobState::Succeeded).await;
    assert_eq!((told.kind(), told.report_json.as_str(), told.accurate), (JobKind::Compile, "", true));
    let unmeasured = engine(&farm, "m").await;
    assert!(unmeasured.unmeasured && unmeasured.plan_digest == told.plan_digest, "{unmeasured:?}");
    let assign = agent.assigned().await;
    let measured = assign.job.clone().unwrap();
    assert_eq!((&measured.id, measured.kind()), (&wanted.id, JobKind::Benchmark), "nothing is built again");
    assert_eq!(measured.plan_digest, told.plan_digest);
    // As a coordinator finds it that is started again meanwhile.
    drop(farm);
    drop(agent);
    let farm = open(store, &blobs).await;
    assert!(engine(&farm, "m").await.unmeasured);
    let lease = assign.lease.clone();
    let mut back = hello("a", vec![device("cpu0", SKU, "native 1")]);
    back.leases.extend(lease);
    let mut agent = join(&farm, back).await;
    end(&mut agent, &blobs, &assign).await;
    until_state(&farm, &wanted.id, JobState::Succeeded).await;
    assert!(!engine(&farm, "m").await.unmeasured, "it is measured now");
    for asked in [request(model(&blobs, "m")), compile(model(&blobs, "m"), SKU)] {
        let again = submit(&farm, asked).await;
        assert_eq!((state(&again), again.cached), (JobState::Succeeded, true));
    }
}

#[tokio::test]
async fn a_build_is_given_what_was_prepared_while_its_device_was_away() {
    let (farm, blobs) = farm().await;
    // It was here, and is known by that.
    let away = join(&farm, hello("gpu-host", vec![gpu()])).await;
    drop(away);
    let mut host = join(&farm, hello("host", vec![processor(&[NVRTC])])).await;
    let ahead = submit(&farm, compile(model(&blobs, "m"), "t4")).await;
    let asked =
        v1::SubmitRequest { skus: vec!["t4".into()], needs: vec![ahead.id.clone()], ..request(model(&blobs, "m")) };
    let build = submit(&farm, asked.clone()).await;
    assert_eq!(state(&build), JobState::Blocked);
    let assign = host.assigned().await;
    let job = assign.job.as_ref().unwrap();
    assert_eq!((job.kind(), job.sku.as_str(), job.toolchain_json.as_str()), (JobKind::Compile, "t4", GPU));
    assert_eq!(assign.made_for_json, r#"{"board":"of the farm"}"#, "as the device's own agent described it");
    end(&mut host, &blobs, &assign).await;
    let done = until_state(&farm, &ahead.id, JobState::Succeeded).await;
    assert!(done.plan_digest.is_empty() && done.prepared_bytes > 0, "{done:?}");
    let listed = farm.list_engines(&Actor::local(), v1::ListEnginesRequest::default()).await.unwrap();
    assert!(listed.engines.is_empty(), "no engine comes of it");
    let mut back = join(&farm, hello("gpu-host", vec![gpu()])).await;
    let assign = back.assigned().await;
    let job = assign.job.as_ref().unwrap();
    assert_eq!((&job.id, job.kind(), &job.prepared_digest), (&build.id, JobKind::Build, &done.prepared_digest));
    end(&mut back, &blobs, &assign).await;
    until_state(&farm, &build.id, JobState::Succeeded).await;
    // One that comes when all has ended is given it, too.
    let later = submit(&farm, v1::SubmitRequest { force: true, ..asked }).await;
    assert_eq!(later.prepared_digest, done.prepared_digest);
    let other = v1::SubmitRequest { needs: vec![ahead.id], ..request(model(&blobs, "other")) };
    assert_eq!(submit(&farm, other).await.prepared_digest, "", "it was prepared for another model and device");
}

#[tokio::test]
async fn nothing_runs_beside_a_compile_job_on_its_host() {
    let (farm, blobs) = farm().await;
    let mut host = join(&farm, hello("host", vec![processor(&[NVRTC]), gpu()])).await;
    let on_gpu = |name: &str| v1::SubmitRequest { skus: vec!["t4".into()], ..request(model(&blobs, name)) };
    let first = submit(&farm, on_gpu("first")).await;
    let measured = host.assigned().await;
    assert_eq!(measured.job.as_ref().unwrap().id, first.id);
    let ahead = submit(&farm, compile(model(&blobs, "second"), "t4")).await;
    let told = farm.get_job(&Actor::local(), &ahead.id).await.unwrap();
    assert!(told.waiting_reason.contains("nothing else runs"), "{}", told.waiting_reason);
    end(&mut host, &blobs, &measured).await;
    let compiling = host.assigned().await;
    assert_eq!(compiling.job.as_ref().unwrap().id, ahead.id);
    // Nor is anything measured while it runs, on whatever device of its host.
    let waiting = [submit(&farm, on_gpu("third")).await, submit(&farm, request(model(&blobs, "fourth"))).await];
    for job in &waiting {
        let told = farm.get_job(&Actor::local(), &job.id).await.unwrap();
        assert_eq!(state(&told), JobState::Queued);
    }
    let told = farm.get_job(&Actor::local(), &waiting[0].id).await.unwrap();
    assert!(told.waiting_reason.contains("compile job"), "{}", told.waiting_reason);
    end(&mut host, &blobs, &compiling).await;
    let (one, other) = (host.assigned().await, host.assigned().await);
    let given = [one.job.unwrap().id, other.job.unwrap().id];
    assert!(waiting.iter().all(|job| given.contains(&job.id)), "{given:?}: both at once, as ever");
}

#[tokio::test]
async fn what_cannot_be_compiled_ahead_is_refused_in_words_and_old_agents_are_not_asked() {
    let (farm, blobs) = farm().await;
    let other = r#"{"backend":"native","version":"1","components":{"cuda":"13.0"}}"#;
    let mut old = hello("old", vec![processor(&[other]), gpu()]);
    old.protocol = protocol::COMPILES_SINCE - 1;
    let _old = join(&farm, old).await;
    let error = farm.submit(&Actor::local(), compile(model(&blobs, "m"), "t4")).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Refused);
    assert!(error.message.contains("cuda 12.9") && error.message.contains("t4"), "another CUDA is of no use: {error}");
    assert!(error.hint.contains("NVRTC"), "{error}");
    let many = v1::SubmitRequest { builds: 3, ..compile(model(&blobs, "m"), SKU) };
    let error = farm.submit(&Actor::local(), many).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidArgument);
    let job = submit(&farm, compile(model(&blobs, "m"), SKU)).await;
    let told = farm.get_job(&Actor::local(), &job.id).await.unwrap();
    assert!(told.waiting_reason.contains("agent of this release"), "{}", told.waiting_reason);
    let mut new = Agent::usual(&farm, "new").await;
    let assign = new.assigned().await;
    assert_eq!(assign.job.as_ref().unwrap().id, job.id);
    // A success without what was to come of it is none; what the model is to blame for is remembered.
    let nothing = v1::Finished { lease: assign.lease.clone(), outcome: "succeeded".into(), ..v1::Finished::default() };
    new.say(v1::agent_message::Kind::Finished(nothing)).await;
    new.acknowledged().await;
    let assign = new.assigned().await;
    assert_eq!(assign.lease.as_ref().unwrap().attempt, 2);
    new.fail(&assign, FailureClass::Model, "operator Frobnicate is unknown").await;
    new.acknowledged().await;
    let known = submit(&farm, request(model(&blobs, "m"))).await;
    assert_eq!(state(&known), JobState::Failed, "a build would fail as well");
}
