//! What jobs ask of their device beside its kind: who gets them, why they wait, and whom they are merged with.

use crate::support::{
    self, SKU, actor,
    agent::{Agent, device, hello},
    blobs::MemBlobs,
    model, open, request, show, until_state,
};
use planforge_coordinator::{
    auth::Actor,
    farm::Farm,
    store::{MemStore, Store},
};
use planforge_proto::{
    ErrorCode,
    v1::{self, JobState, coordinator_message::Kind},
};
use std::sync::Arc;

async fn farm() -> (Farm, MemBlobs) {
    let blobs = MemBlobs::default();
    (open(Arc::new(MemStore::default()), &blobs).await, blobs)
}

/// An agent whose device of the usual kind has so much memory.
async fn agent(farm: &Farm, id: &str, memory_gib: u64) -> Agent {
    let fingerprint_json = format!(r#"{{"kind":"cpu","name":"scripted","memory_mib":{}}}"#, memory_gib << 10);
    let own = v1::Device { fingerprint_json, ..device("cpu0", SKU, "native 1") };
    let mut agent = Agent::connect(farm, hello(id, vec![own])).await;
    assert!(matches!(agent.next().await, Some(Kind::Welcome(_))));
    agent
}

/// One whose device is a slice of a GPU.
async fn slice(farm: &Farm, id: &str) -> Agent {
    let gpu = r#"{"kind":"gpu","name":"scripted","memory_mib":9856,"gpu":{"driver":"570.86.10","mig":"1g.10gb"}}"#;
    let own = v1::Device { fingerprint_json: gpu.into(), ..device("gpu0", SKU, "native 1") };
    let mut agent = Agent::connect(farm, hello(id, vec![own])).await;
    assert!(matches!(agent.next().await, Some(Kind::Welcome(_))));
    agent
}

fn ask(blobs: &MemBlobs, name: &str, requires: &[&str]) -> v1::SubmitRequest {
    let requires = requires.iter().map(|text| (*text).to_owned()).collect();
    v1::SubmitRequest { requires, wait_for_device: true, ..request(model(blobs, name)) }
}

async fn submit(farm: &Farm, ask: v1::SubmitRequest) -> v1::Job {
    farm.submit(&Actor::local(), ask).await.unwrap().jobs.remove(0)
}

async fn shown(farm: &Farm, id: &str) -> v1::Job {
    farm.get_job(&Actor::local(), id).await.unwrap()
}

fn of(assign: &v1::Assign) -> &str {
    &assign.lease.as_ref().unwrap().job
}

#[tokio::test]
async fn a_job_goes_only_to_the_device_that_has_what_it_asks_for_and_waits_for_it() {
    let blobs = MemBlobs::default();
    let store: Arc<dyn Store> = Arc::new(MemStore::default());
    let first = open(store.clone(), &blobs).await;
    let mut small = agent(&first, "a-small", 24).await;
    let large = submit(&first, ask(&blobs, "large", &["memory=40GiB"])).await;
    assert_eq!((large.state(), large.requires.as_slice()), (JobState::Queued, &["memory=40GiB".to_owned()][..]));
    let why = "no known device with cpu-x86-64-v3 and native 1 meets memory=40GiB (the largest has 24 GiB)";
    assert_eq!(shown(&first, &large.id).await.waiting_reason, why);
    // Who asks for less is not held up by it.
    let usual = submit(&first, ask(&blobs, "usual", &["memory=24GiB", "mig=none"])).await;
    let assign = small.assigned().await;
    assert_eq!(of(&assign), usual.id);
    small.succeed(&blobs, &assign).await;
    until_state(&first, &usual.id, JobState::Succeeded).await;
    first.close().await;

    // It is kept, and so is what is known of the agents.
    let farm = open(store, &blobs).await;
    assert_eq!(shown(&farm, &large.id).await.waiting_reason, why);
    let _small = agent(&farm, "a-small", 24).await;
    let mut new = agent(&farm, "b-new", 80).await;
    let assign = new.assigned().await;
    assert_eq!(of(&assign), large.id);
    new.succeed(&blobs, &assign).await;
    until_state(&farm, &large.id, JobState::Succeeded).await;
    // What is stored is the same engine, whoever asks for it.
    let answered = submit(&farm, ask(&blobs, "large", &["memory=1TiB"])).await;
    assert!(answered.cached && answered.state() == JobState::Succeeded, "{answered:?}");
}

#[tokio::test]
async fn while_the_device_that_has_it_is_busy_or_away_the_others_stay_free_and_the_reason_counts_that_one_alone() {
    let (farm, blobs) = farm().await;
    let mut large = agent(&farm, "large", 80).await;
    let held = submit(&farm, ask(&blobs, "held", &["memory=40GiB"])).await;
    let assign = large.assigned().await;
    let _small = agent(&farm, "small", 24).await;
    let waits = submit(&farm, ask(&blobs, "waits", &["memory=40GiB"])).await;
    let reason = shown(&farm, &waits.id).await.waiting_reason;
    assert_eq!(reason, "1 of 1 devices are busy, 0 jobs are likely served before it");
    large.succeed(&blobs, &assign).await;
    until_state(&farm, &held.id, JobState::Succeeded).await;
    let next = support::until("the next job", || async {
        let job = shown(&farm, &waits.id).await;
        (job.state() == JobState::Leased).then_some(job.agent)
    })
    .await;
    assert_eq!(next, "host-large");

    drop(large);
    let away = submit(&farm, ask(&blobs, "away", &["memory=40GiB"])).await;
    let reason = "every device with cpu-x86-64-v3 and native 1 that meets memory=40GiB is offline (1 known)";
    support::until("the agent to be away", || async {
        (shown(&farm, &away.id).await.waiting_reason == reason).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_job_that_asks_for_a_label_goes_to_the_agent_that_was_started_with_it() {
    let (farm, blobs) = farm().await;
    let labelled = |labels: &[&str]| v1::Hello {
        labels: labels.iter().map(|text| (*text).to_owned()).collect(),
        ..hello("a", vec![device("cpu0", SKU, "native 1")])
    };
    let mut first = Agent::connect(&farm, labelled(&["zone=a"])).await;
    assert!(matches!(first.next().await, Some(Kind::Welcome(_))));
    let job = submit(&farm, ask(&blobs, "m", &["label=zone=b", "label=quiet"])).await;
    let reason = shown(&farm, &job.id).await.waiting_reason;
    assert!(reason.ends_with("meets label=quiet (no agent has it) or label=zone=b (it is a)"), "{reason}");
    // The same agent, started anew with others.
    let mut again = Agent::connect(&farm, labelled(&["zone=b", "quiet"])).await;
    assert!(matches!(again.next().await, Some(Kind::Welcome(_))));
    assert_eq!(of(&again.assigned().await), job.id);
    let agents = farm.list_agents(&Actor::local()).await.unwrap().agents;
    assert_eq!(agents[0].labels, ["quiet", "zone=b"]);
    let devices = farm.list_devices(&Actor::local(), v1::ListDevicesRequest::default()).await.unwrap().devices;
    assert_eq!(devices[0].labels, ["quiet", "zone=b"]);
    let mut twice = Agent::connect(&farm, v1::Hello { agent_id: "b".into(), ..labelled(&["zone=a", "zone=b"]) }).await;
    let Some(Kind::Refused(refused)) = twice.next().await else { panic!("it is taken") };
    assert!(refused.reason.contains("the label zone stands there twice"), "{refused:?}");
}

#[tokio::test]
async fn the_least_device_that_will_do_is_chosen() {
    let (farm, blobs) = farm().await;
    let mut large = agent(&farm, "a-large", 80).await;
    let mut small = agent(&farm, "b-small", 24).await;
    let plain = submit(&farm, ask(&blobs, "plain", &[])).await;
    assert_eq!(of(&small.assigned().await), plain.id);
    let strict = submit(&farm, ask(&blobs, "strict", &["memory=40GiB"])).await;
    assert_eq!(of(&large.assigned().await), strict.id);
}

#[tokio::test]
async fn what_nobody_known_has_is_refused_to_who_does_not_wait_for_it_and_so_is_nonsense() {
    let (farm, blobs) = farm().await;
    let _agent = agent(&farm, "a", 24).await;
    let now = |requires: &[&str]| v1::SubmitRequest { wait_for_device: false, ..ask(&blobs, "m", requires) };
    let error = farm.submit(&Actor::local(), now(&["memory=40GiB"])).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Refused);
    assert!(error.message.contains("meets memory=40GiB (the largest has 24 GiB)"), "{}", error.message);
    assert!(error.hint.contains("'planforge submit --wait-for-device' waits"), "{}", error.hint);
    let told = farm.dry_run(&Actor::local(), now(&["driver=570"])).await.unwrap();
    assert_eq!(told.combinations[0].would, "refuse");
    assert!(told.combinations[0].detail.contains("meets driver=570 (no driver is known)"), "{told:?}");
    for (requires, words) in
        [(&["colour=red"][..], "is no requirement"), (&["mig=none", "mig=any"], "mig=none contradicts mig=any")]
    {
        let error = farm.submit(&Actor::local(), ask(&blobs, "m", requires)).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidArgument);
        assert!(error.message.contains(words), "{}", error.message);
    }
}

#[tokio::test]
async fn a_job_that_waits_takes_in_who_asks_for_more_as_long_as_one_device_has_all_of_it() {
    let (farm, blobs) = farm().await;
    let mut large = agent(&farm, "large", 80).await;
    submit(&farm, ask(&blobs, "other", &[])).await;
    let assign = large.assigned().await;
    let mut middle = agent(&farm, "middle", 48).await;
    let mut slice = slice(&farm, "slice").await;
    let waits = submit(&farm, ask(&blobs, "waits", &["memory=64GiB"])).await;
    let blue = actor("blue", "submit", Some("blue"));
    let more = v1::SubmitRequest { project: "blue".into(), ..ask(&blobs, "waits", &["memory=72GiB"]) };
    show(&farm, &blue, &more.models[0]).await;
    let joined = farm.submit(&blue, more).await.unwrap().jobs.remove(0);
    assert_eq!((&joined.id, joined.requires), (&waits.id, vec!["memory=72GiB".to_owned()]));
    let events = farm.history(&Actor::local(), &waits.id).await.unwrap();
    let raised = "its device must meet memory=72GiB from now on";
    assert!(events.iter().any(|event| event.detail.ends_with(raised)), "{events:?}");
    // Whoever asked for more leaves: what the others ask for holds.
    let leave = v1::CancelJobsRequest { ids: vec![waits.id.clone()], ..v1::CancelJobsRequest::default() };
    farm.cancel_jobs(&blue, leave).await.unwrap();
    assert_eq!(shown(&farm, &waits.id).await.requires, ["memory=64GiB"]);

    // What no known device has together comes after it; what no device could have is refused.
    let behind = submit(&farm, ask(&blobs, "waits", &["memory=1TiB"])).await;
    assert_eq!(behind.state(), JobState::Blocked);
    let whole = submit(&farm, ask(&blobs, "whole", &["memory=64GiB", "mig=none"])).await;
    let error = farm.submit(&Actor::local(), ask(&blobs, "whole", &["mig=any"])).await.unwrap_err();
    let words =
        "waits to build the same for another kind of device: mig=none contradicts mig=any: no device meets both";
    assert_eq!((error.code, error.message), (ErrorCode::Conflict, format!("job {} {words}", whole.id)));
    let beside = v1::SubmitRequest { force: true, ..ask(&blobs, "whole", &["mig=1g.10gb"]) };
    let beside = submit(&farm, beside).await;
    assert_eq!(of(&slice.assigned().await), beside.id);

    large.succeed(&blobs, &assign).await;
    assert!(large.acknowledged().await.accepted);
    let assign = large.assigned().await;
    assert_eq!(of(&assign), waits.id);
    large.succeed(&blobs, &assign).await;
    assert!(until_state(&farm, &behind.id, JobState::Succeeded).await.cached);
    assert!(large.acknowledged().await.accepted);
    assert_eq!(of(&large.assigned().await), whole.id);
    // It was free all the time.
    let plain = submit(&farm, ask(&blobs, "plain", &[])).await;
    assert_eq!(of(&middle.assigned().await), plain.id);
}

#[tokio::test]
async fn a_job_that_runs_is_joined_by_whom_its_device_meets_and_others_come_after_it() {
    let (farm, blobs) = farm().await;
    let mut large = agent(&farm, "a-large", 80).await;
    let runs = submit(&farm, ask(&blobs, "m", &[])).await;
    let assign = large.assigned().await;
    let met = submit(&farm, ask(&blobs, "m", &["memory=40GiB"])).await;
    assert_eq!(met.id, runs.id);
    let _larger = agent(&farm, "b-larger", 160).await;
    let unmet = submit(&farm, ask(&blobs, "m", &["memory=100GiB"])).await;
    assert_eq!(unmet.state(), JobState::Blocked);
    assert!(shown(&farm, &unmet.id).await.waiting_reason.contains(&runs.id));
    large.succeed(&blobs, &assign).await;
    let unmet = until_state(&farm, &unmet.id, JobState::Succeeded).await;
    assert!(unmet.cached, "{unmet:?}");
}
