//! Where one toolchain cannot build a model, the next one is asked: links, memory, what needs the job, cancels, restarts.

use crate::support::{
    actor,
    agent::{Agent, device, hello},
    blobs::MemBlobs,
    model, open, show, state, until_state,
};
use planforge_coordinator::{auth::Actor, farm::Farm, store::MemStore};
use planforge_proto::v1::{self, FailureClass, JobState, agent_message, coordinator_message::Kind};
use std::sync::Arc;

const SKU: &str = "t4";

fn request(model: v1::Model) -> v1::SubmitRequest {
    v1::SubmitRequest { models: vec![model], skus: vec![SKU.into()], ..v1::SubmitRequest::default() }
}

/// An agent whose device has two backends, `tensorrt` before `native`.
async fn agent(farm: &Farm, id: &str) -> Agent {
    agent_with(farm, id, Vec::new()).await
}

async fn agent_with(farm: &Farm, id: &str, leases: Vec<v1::Lease>) -> Agent {
    let [first, second] = ["tensorrt 10.3.0", "native 1"].map(|toolchain| device("cpu0", SKU, toolchain));
    let offers = first.offers.into_iter().chain(second.offers.clone()).collect();
    let devices = vec![v1::Device { offers, threads: 0, ..second }];
    let mut agent = Agent::connect(farm, v1::Hello { leases, ..hello(id, devices) }).await;
    assert!(matches!(agent.next().await, Some(Kind::Welcome(_))));
    agent
}

async fn farm() -> (Farm, MemBlobs, Agent) {
    let blobs = MemBlobs::default();
    let farm = open(Arc::new(MemStore::new()), &blobs).await;
    let agent = agent(&farm, "a").await;
    (farm, blobs, agent)
}

async fn submit(farm: &Farm, request: v1::SubmitRequest) -> v1::Job {
    farm.submit(&Actor::local(), request).await.unwrap().jobs.remove(0)
}

/// The next job of the agent, which is to be of that backend.
async fn assigned(agent: &mut Agent, backend: &str) -> v1::Assign {
    let assign = agent.assigned().await;
    assert!(assign.job.as_ref().unwrap().toolchain_json.contains(backend), "{assign:?}");
    assign
}

async fn refuse(agent: &mut Agent, assign: &v1::Assign, reason: &str, message: &str) {
    let class = FailureClass::Model.into();
    let failure = v1::Failure { class, message: message.into(), reason: reason.into(), ..v1::Failure::default() };
    let finished = v1::Finished {
        lease: assign.lease.clone(),
        outcome: "failed".into(),
        failure: Some(failure),
        ..v1::Finished::default()
    };
    agent.say(agent_message::Kind::Finished(finished)).await;
    agent.acknowledged().await;
}

async fn succeed(agent: &mut Agent, blobs: &MemBlobs, assign: &v1::Assign) {
    agent.succeed(blobs, assign).await;
    agent.acknowledged().await;
}

fn id(assign: &v1::Assign) -> String {
    assign.job.as_ref().unwrap().id.clone()
}

#[tokio::test]
async fn the_next_toolchain_takes_over_and_is_the_answer_from_then_on() {
    let (farm, blobs, mut agent) = farm().await;
    let reply = farm.submit(&Actor::local(), request(model(&blobs, "m"))).await.unwrap();
    let first = assigned(&mut agent, "tensorrt").await;
    refuse(&mut agent, &first, "unsupported", "no operator Frob").await;
    let second = assigned(&mut agent, "native").await;
    assert_ne!(id(&first), id(&second));
    let failed = until_state(&farm, &id(&first), JobState::Failed).await;
    assert_eq!((&failed.id, &failed.fallback), (&reply.jobs[0].id, &id(&second)));
    let failure = failed.failure.unwrap();
    assert_eq!((failure.reason.as_str(), failure.message.as_str()), ("unsupported", "no operator Frob"));
    succeed(&mut agent, &blobs, &second).await;
    let built = until_state(&farm, &id(&second), JobState::Succeeded).await;
    assert_ne!(built.engine_key, failed.engine_key);
    assert_eq!(built.request_id, reply.request_id);
    let [tried] = &built.tried[..] else { panic!("{built:?}") };
    assert_eq!((tried.job.as_str(), tried.message.as_str()), (failed.id.as_str(), "no operator Frob"));
    assert!(tried.toolchain_json.contains("tensorrt"));
    // The request has the second in the first one's place, and has succeeded with it.
    let of_request = v1::ListJobsRequest { request_id: reply.request_id.clone(), ..Default::default() };
    let listed = farm.list_jobs(&Actor::local(), of_request).await.unwrap().jobs;
    assert_eq!(listed.iter().map(|job| &job.id).collect::<Vec<_>>(), [&built.id]);
    let history = farm.history(&Actor::local(), &built.id).await.unwrap();
    assert!(history[0].what == "submitted" && history[0].detail.contains(&failed.id), "{history:?}");

    // Asked again, nothing fails first; a dry run says why it is this engine.
    let foreseen = farm.dry_run(&Actor::local(), request(model(&blobs, "m"))).await.unwrap().combinations.remove(0);
    assert_eq!((foreseen.would.as_str(), &foreseen.engine_key), ("answer", &built.engine_key));
    assert!(foreseen.detail.contains("tensorrt 10.3.0") && foreseen.detail.contains(&failed.id), "{}", foreseen.detail);
    let again = submit(&farm, request(model(&blobs, "m"))).await;
    assert_eq!((state(&again), again.cached, &again.engine_key), (JobState::Succeeded, true, &built.engine_key));
    assert_eq!(again.tried, built.tried);
    // By force it is tried again, all of it.
    submit(&farm, v1::SubmitRequest { force: true, ..request(model(&blobs, "m")) }).await;
    let first = assigned(&mut agent, "tensorrt").await;
    refuse(&mut agent, &first, "unsupported", "no operator Frob").await;
    let second = assigned(&mut agent, "native").await;
    succeed(&mut agent, &blobs, &second).await;
    until_state(&farm, &id(&second), JobState::Succeeded).await;
}

#[tokio::test]
async fn who_names_a_toolchain_or_wants_no_other_gets_none() {
    let (farm, blobs, mut agent) = farm().await;
    let of = |name: &str, change: fn(&mut v1::SubmitRequest)| {
        let mut request = request(model(&blobs, name));
        change(&mut request);
        request
    };
    let named: fn(&mut v1::SubmitRequest) = |request| request.toolchains = vec!["tensorrt".into()];
    let alone: fn(&mut v1::SubmitRequest) = |request| request.no_fallback = true;
    for (name, change) in [("named", named), ("alone", alone)] {
        let job = submit(&farm, of(name, change)).await;
        let assign = assigned(&mut agent, "tensorrt").await;
        refuse(&mut agent, &assign, "unsupported", "no operator Frob").await;
        let failed = until_state(&farm, &job.id, JobState::Failed).await;
        assert_eq!((failed.fallback.as_str(), failed.failure.unwrap().message.as_str()), ("", "no operator Frob"));
        let again = submit(&farm, of(name, change)).await;
        assert_eq!((state(&again), again.cached), (JobState::Failed, true));
    }
    // Whoever takes any begins with the other one now.
    let other = submit(&farm, request(model(&blobs, "alone"))).await;
    assert_eq!((state(&other), other.tried.len()), (JobState::Queued, 1));
    let assign = assigned(&mut agent, "native").await;
    succeed(&mut agent, &blobs, &assign).await;
    // What is wrong with the model itself is nothing for others.
    let job = submit(&farm, request(model(&blobs, "broken"))).await;
    let assign = assigned(&mut agent, "tensorrt").await;
    refuse(&mut agent, &assign, "", "the graph is cyclic").await;
    assert_eq!(until_state(&farm, &job.id, JobState::Failed).await.fallback, "");
}

#[tokio::test]
async fn of_one_job_only_those_go_on_who_take_any_toolchain() {
    let (farm, blobs, mut agent) = farm().await;
    let (red, blue) = (actor("red", "submit", Some("red")), actor("blue", "submit", Some("blue")));
    let m = model(&blobs, "m");
    for actor in [&red, &blue] {
        show(&farm, actor, &m).await;
    }
    let named = v1::SubmitRequest { toolchains: vec!["tensorrt".into()], ..request(m.clone()) };
    let first = farm.submit(&red, named).await.unwrap().jobs.remove(0);
    let joined = farm.submit(&blue, request(m)).await.unwrap().jobs.remove(0);
    assert_eq!(first.id, joined.id);
    let assign = assigned(&mut agent, "tensorrt").await;
    refuse(&mut agent, &assign, "unsupported", "no").await;
    let second = assigned(&mut agent, "native").await;
    assert_eq!(farm.get_job(&blue, &id(&second)).await.unwrap().project, "blue");
    assert!(farm.get_job(&red, &id(&second)).await.is_err(), "it is none of red's");
}

#[tokio::test]
async fn where_all_refuse_each_reason_is_told() {
    let (farm, blobs, mut agent) = farm().await;
    submit(&farm, request(model(&blobs, "m"))).await;
    let first = assigned(&mut agent, "tensorrt").await;
    refuse(&mut agent, &first, "unsupported", "no operator Frob").await;
    let second = assigned(&mut agent, "native").await;
    refuse(&mut agent, &second, "unsupported", "no opset 99").await;
    let told = |failure: v1::Failure| {
        let message = failure.message;
        for part in ["tensorrt 10.3.0: no operator Frob", "native 1: ", "no opset 99", "2 toolchains"] {
            assert!(message.contains(part), "{message}");
        }
        assert!(failure.hint.contains("planforge ops"), "{}", failure.hint);
    };
    let failed = until_state(&farm, &id(&second), JobState::Failed).await;
    assert_eq!(failed.fallback, "");
    told(failed.failure.unwrap());
    // Remembered of both, by all who take any; each backend's own refusal is what those hear who name it.
    let foreseen = farm.dry_run(&Actor::local(), request(model(&blobs, "m"))).await.unwrap().combinations.remove(0);
    assert_eq!(foreseen.would, "fail");
    let again = submit(&farm, request(model(&blobs, "m"))).await;
    assert_eq!((state(&again), again.cached), (JobState::Failed, true));
    told(again.failure.unwrap());
    let named = v1::SubmitRequest { toolchains: vec!["native".into()], ..request(model(&blobs, "m")) };
    let message = submit(&farm, named).await.failure.unwrap().message;
    assert!(message.contains("no opset 99") && !message.contains("Frob"), "{message}");
    // The second refusal is known when the first one comes: no second job is made.
    submit(&farm, v1::SubmitRequest { toolchains: vec!["native".into()], ..request(model(&blobs, "n")) }).await;
    let assign = assigned(&mut agent, "native").await;
    refuse(&mut agent, &assign, "unsupported", "no opset 99").await;
    let job = submit(&farm, request(model(&blobs, "n"))).await;
    let assign = assigned(&mut agent, "tensorrt").await;
    refuse(&mut agent, &assign, "unsupported", "no operator Frob").await;
    let failed = until_state(&farm, &job.id, JobState::Failed).await;
    assert_eq!(failed.fallback, "");
    told(failed.failure.unwrap());
}

#[tokio::test]
async fn what_needs_a_job_needs_the_one_that_took_its_place() {
    let (farm, blobs, mut agent) = farm().await;
    let first = submit(&farm, request(model(&blobs, "m"))).await;
    let after = |name: &str| v1::SubmitRequest { needs: vec![first.id.clone()], ..request(model(&blobs, name)) };
    let waiting = submit(&farm, after("waits")).await;
    let assign = assigned(&mut agent, "tensorrt").await;
    refuse(&mut agent, &assign, "unsupported", "no").await;
    let second = assigned(&mut agent, "native").await;
    let now = farm.get_job(&Actor::local(), &waiting.id).await.unwrap();
    assert_eq!((state(&now), &now.needs, &now.needed), (JobState::Blocked, &vec![id(&second)], &vec![id(&second)]));
    // Named by the id of the first, also after its end.
    let later = submit(&farm, after("later")).await;
    assert_eq!(later.needs, [id(&second)]);
    succeed(&mut agent, &blobs, &second).await;
    for _ in 0..2 {
        let assign = assigned(&mut agent, "tensorrt").await;
        succeed(&mut agent, &blobs, &assign).await;
    }
    for job in [&waiting, &later] {
        until_state(&farm, &job.id, JobState::Succeeded).await;
    }
}

#[tokio::test]
async fn cancelling_the_first_ends_the_one_that_took_its_place() {
    let (farm, blobs, mut agent) = farm().await;
    let first = submit(&farm, request(model(&blobs, "m"))).await;
    let assign = assigned(&mut agent, "tensorrt").await;
    let cancel = || v1::CancelJobsRequest { ids: vec![first.id.clone()], ..Default::default() };
    refuse(&mut agent, &assign, "unsupported", "no").await;
    let second = assigned(&mut agent, "native").await;
    let reply = farm.cancel_jobs(&Actor::local(), cancel()).await.unwrap();
    assert_eq!(reply.jobs.iter().map(|job| job.id.clone()).collect::<Vec<_>>(), [id(&second)]);
    assert!(matches!(agent.next().await, Some(Kind::Cancel(_))));
    // One that nobody wants any more is refused in vain: nothing takes its place.
    let other = submit(&farm, request(model(&blobs, "n"))).await;
    refuse(&mut agent, &second, "unsupported", "no").await;
    let assign = assigned(&mut agent, "tensorrt").await;
    let cancel = v1::CancelJobsRequest { ids: vec![other.id.clone()], ..Default::default() };
    farm.cancel_jobs(&Actor::local(), cancel).await.unwrap();
    assert!(matches!(agent.next().await, Some(Kind::Cancel(_))));
    refuse(&mut agent, &assign, "unsupported", "no").await;
    assert_eq!(until_state(&farm, &other.id, JobState::Failed).await.fallback, "");
}

#[tokio::test]
async fn a_coordinator_that_starts_again_goes_on_with_the_second() {
    let (store, blobs) = (Arc::new(MemStore::new()), MemBlobs::default());
    let before = open(store.clone(), &blobs).await;
    let mut a = agent(&before, "a").await;
    let reply = before.submit(&Actor::local(), request(model(&blobs, "m"))).await.unwrap();
    let first = assigned(&mut a, "tensorrt").await;
    refuse(&mut a, &first, "unsupported", "no").await;
    let second = assigned(&mut a, "native").await;
    drop(a);
    let farm = open(store, &blobs).await;
    let kept = farm.get_job(&Actor::local(), &id(&second)).await.unwrap();
    assert_eq!(kept.tried[0].job, reply.jobs[0].id);
    // Its agent comes back with it.
    let mut a = agent_with(&farm, "a", second.lease.iter().cloned().collect()).await;
    succeed(&mut a, &blobs, &second).await;
    until_state(&farm, &id(&second), JobState::Succeeded).await;
    let again = submit(&farm, request(model(&blobs, "m"))).await;
    assert_eq!((again.cached, &again.engine_key), (true, &kept.engine_key));
}

#[tokio::test]
async fn refusals_that_only_the_store_knows_are_found_by_who_was_blocked() {
    let (store, blobs) = (Arc::new(MemStore::new()), MemBlobs::default());
    let before = open(store.clone(), &blobs).await;
    let mut a = agent(&before, "a").await;
    let alone = v1::SubmitRequest { no_fallback: true, ..request(model(&blobs, "m")) };
    let refused = submit(&before, alone).await;
    let assign = assigned(&mut a, "tensorrt").await;
    refuse(&mut a, &assign, "unsupported", "no").await;
    until_state(&before, &refused.id, JobState::Failed).await;
    drop(a);
    let farm = open(store, &blobs).await;
    let mut a = agent(&farm, "a").await;
    let first = submit(&farm, request(model(&blobs, "first"))).await;
    let later = v1::SubmitRequest { needs: vec![first.id], ..request(model(&blobs, "m")) };
    let later = submit(&farm, later).await;
    let assign = assigned(&mut a, "tensorrt").await;
    succeed(&mut a, &blobs, &assign).await;
    let assign = assigned(&mut a, "native").await;
    assert_eq!(id(&assign), later.id);
    let now = farm.get_job(&Actor::local(), &later.id).await.unwrap();
    assert_eq!(now.tried.iter().map(|one| &one.job).collect::<Vec<_>>(), [&refused.id]);
}

#[tokio::test]
async fn a_refusal_for_wrong_outputs_holds_only_those_who_want_right_ones() {
    let (farm, blobs, mut agent) = farm().await;
    let job = submit(&farm, request(model(&blobs, "m"))).await;
    let assign = assigned(&mut agent, "tensorrt").await;
    refuse(&mut agent, &assign, "inaccurate", "the engine's outputs are wrong").await;
    let failed = until_state(&farm, &job.id, JobState::Failed).await;
    assert_eq!(failed.fallback, "", "another toolchain is no answer to that");
    let again = submit(&farm, request(model(&blobs, "m"))).await;
    assert_eq!((state(&again), again.cached), (JobState::Failed, true));
    // As the hint says.
    let allowed = v1::SubmitRequest { allow_inaccurate: true, ..request(model(&blobs, "m")) };
    let allowed = submit(&farm, allowed).await;
    assert_eq!(state(&allowed), JobState::Queued);
    let assign = assigned(&mut agent, "tensorrt").await;
    assert!(assign.job.as_ref().unwrap().allow_inaccurate);
    succeed(&mut agent, &blobs, &assign).await;
    until_state(&farm, &allowed.id, JobState::Succeeded).await;
}
