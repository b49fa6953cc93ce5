//! Pauses of device kinds, projects and agents: who may make them, what waits, what goes on, and what is told of it.

use crate::support::{SKU, actor, agent::Agent, blobs::MemBlobs, model, open, request, until, until_state};
use planforge_coordinator::{auth::Actor, farm::Farm, store::MemStore};
use planforge_proto::{
    ErrorCode,
    v1::{self, JobState},
};
use std::sync::Arc;

fn pause(kind: &str, name: &str) -> v1::PauseRequest {
    v1::PauseRequest {
        kind: kind.into(),
        name: name.into(),
        reason: "new driver".into(),
        ..v1::PauseRequest::default()
    }
}

fn resume(kind: &str, name: &str) -> v1::ResumeRequest {
    v1::ResumeRequest { kind: kind.into(), name: name.into(), window: false }
}

async fn submit(farm: &Farm, blobs: &MemBlobs, name: &str, project: &str) -> v1::Job {
    let ask = v1::SubmitRequest { project: project.into(), ..request(model(blobs, name)) };
    farm.submit(&Actor::local(), ask).await.unwrap().jobs.remove(0)
}

async fn why(farm: &Farm, id: &str) -> String {
    farm.get_job(&Actor::local(), id).await.unwrap().waiting_reason
}

async fn paused(farm: &Farm, actor: &Actor) -> Vec<(String, String)> {
    let pauses = farm.list_pauses(actor).await.unwrap().pauses;
    pauses.into_iter().map(|pause| (pause.kind, pause.name)).collect()
}

#[tokio::test]
async fn what_is_paused_waits_and_says_why_also_after_a_restart_and_what_runs_goes_on() {
    let (store, blobs) = (Arc::new(MemStore::new()), MemBlobs::default());
    let first = open(store.clone(), &blobs).await;
    let mut agent = Agent::usual(&first, "a").await;
    let running = submit(&first, &blobs, "runs", "red").await;
    let assign = agent.assigned().await;
    for (kind, name) in [("sku", SKU), ("agent", "host-a"), ("project", "red")] {
        first.pause(&Actor::local(), pause(kind, name)).await.unwrap();
    }
    agent.succeed(&blobs, &assign).await;
    until_state(&first, &running.id, JobState::Succeeded).await;
    let waits = submit(&first, &blobs, "waits", "red").await;
    assert_eq!(waits.state(), JobState::Queued);
    first.close().await;

    let farm = open(store, &blobs).await;
    let mut agent = Agent::usual(&farm, "a").await;
    let told = |what: &str| format!("{what} is paused by local until somebody resumes it: new driver");
    assert_eq!(why(&farm, &waits.id).await, told(&format!("device kind {SKU}")));
    let all = ["sku", "project", "agent"].map(str::to_owned);
    assert_eq!(paused(&farm, &Actor::local()).await.into_iter().map(|(kind, _)| kind).collect::<Vec<_>>(), all);
    // One after the other is taken back: the rest still holds it up.
    farm.resume(&Actor::local(), resume("sku", SKU)).await.unwrap();
    assert_eq!(why(&farm, &waits.id).await, told("project red"));
    farm.resume(&Actor::local(), resume("project", "red")).await.unwrap();
    assert_eq!(why(&farm, &waits.id).await, told("agent host-a"));
    farm.resume(&Actor::local(), resume("agent", "a")).await.unwrap();
    assert_eq!(agent.assigned().await.lease.unwrap().job, waits.id);
    let error = farm.resume(&Actor::local(), resume("agent", "a")).await.unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (ErrorCode::NotFound, "the agent a is not paused"));
    // Who did what is written down.
    let audit = farm.list_audit(&Actor::local(), v1::ListAuditRequest::default()).await.unwrap().records;
    let lines: Vec<String> = audit.iter().map(|line| format!("{} {}", line.what, line.object)).collect();
    assert!(
        lines.contains(&"pause agent host-a".to_owned()) && lines.contains(&"resume project red".to_owned()),
        "{lines:?}"
    );
}

#[tokio::test]
async fn a_job_that_another_project_asked_for_too_goes_on() {
    let blobs = MemBlobs::default();
    let farm = open(Arc::new(MemStore::new()), &blobs).await;
    let mut agent = Agent::usual(&farm, "a").await;
    farm.pause(&Actor::local(), pause("project", "red")).await.unwrap();
    let job = submit(&farm, &blobs, "m", "red").await;
    assert!(why(&farm, &job.id).await.contains("project red is paused"));
    let joined = submit(&farm, &blobs, "m", "blue").await;
    assert_eq!(joined.id, job.id);
    assert_eq!(agent.assigned().await.lease.unwrap().job, job.id);
}

#[tokio::test]
async fn a_pause_ends_by_itself() {
    let blobs = MemBlobs::default();
    let farm = open(Arc::new(MemStore::new()), &blobs).await;
    let agent = Agent::usual(&farm, "a").await;
    let short = v1::PauseRequest { for_ms: 300, ..pause("sku", SKU) };
    let made = farm.pause(&Actor::local(), short).await.unwrap().pause.unwrap();
    assert!(made.holds && made.until_ms == made.since_ms + 300, "{made:?}");
    let job = submit(&farm, &blobs, "m", "red").await;
    assert!(why(&farm, &job.id).await.contains("for another 1 min"));
    until("the job is leased", || async {
        agent.beat(&[]).await;
        let state = farm.get_job(&Actor::local(), &job.id).await.unwrap().state();
        (state == JobState::Leased).then_some(())
    })
    .await;
    until("the list is empty", || async { paused(&farm, &Actor::local()).await.is_empty().then_some(()) }).await;
}

#[tokio::test]
async fn a_window_stands_beside_a_pause_and_is_taken_back_by_itself() {
    let blobs = MemBlobs::default();
    let farm = open(Arc::new(MemStore::new()), &blobs).await;
    let _agent = Agent::usual(&farm, "a").await;
    let window = |days: &[u32], start_minute, minutes| v1::PauseRequest {
        window: Some(v1::PauseWindow { days: days.to_vec(), start_minute, minutes }),
        ..pause("sku", SKU)
    };
    // All day: it holds, whenever this runs.
    let made = farm.pause(&Actor::local(), window(&[], 0, 1_440)).await.unwrap().pause.unwrap();
    assert!(made.holds && made.window.unwrap().days == [1, 2, 3, 4, 5, 6, 7]);
    let job = submit(&farm, &blobs, "m", "red").await;
    assert_eq!(job.state(), JobState::Queued);
    farm.pause(&Actor::local(), pause("sku", SKU)).await.unwrap();
    assert_eq!(paused(&farm, &Actor::local()).await.len(), 2);
    farm.resume(&Actor::local(), resume("sku", SKU)).await.unwrap();
    assert!(why(&farm, &job.id).await.contains("is paused by local for another"), "{}", why(&farm, &job.id).await);
    farm.resume(&Actor::local(), v1::ResumeRequest { window: true, ..resume("sku", SKU) }).await.unwrap();
    until_state(&farm, &job.id, JobState::Leased).await;
    for wrong in
        [window(&[0], 0, 1), window(&[8], 0, 1), window(&[], 1_440, 1), window(&[], 0, 0), window(&[], 0, 1_441)]
    {
        assert_eq!(farm.pause(&Actor::local(), wrong).await.unwrap_err().code, ErrorCode::InvalidArgument);
    }
}

#[tokio::test]
async fn who_may_pause_what() {
    let blobs = MemBlobs::default();
    let farm = open(Arc::new(MemStore::new()), &blobs).await;
    let _agent = Agent::usual(&farm, "a").await;
    until("the agent's devices", || async {
        let devices = farm.list_devices(&Actor::local(), v1::ListDevicesRequest::default()).await.unwrap().devices;
        (!devices.is_empty()).then_some(())
    })
    .await;
    let (submits, red, blue) =
        (actor("s", "submit", None), actor("r", "admin", Some("red")), actor("b", "admin", Some("blue")));
    for (who, kind, name) in
        [(&submits, "sku", SKU), (&red, "sku", SKU), (&red, "agent", "a"), (&red, "project", "blue")]
    {
        let error = farm.pause(who, pause(kind, name)).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::PermissionDenied, "{kind} {name}: {error:?}");
    }
    // A project's own pause is its own to take back, the farm's is not; nor is it told to others.
    farm.pause(&red, pause("project", "red")).await.unwrap();
    assert_eq!((paused(&farm, &red).await.len(), paused(&farm, &blue).await.len()), (1, 0));
    farm.resume(&red, resume("project", "red")).await.unwrap();
    farm.pause(&Actor::local(), pause("project", "red")).await.unwrap();
    for refused in [
        farm.resume(&red, resume("project", "red")).await.map(drop),
        farm.pause(&red, pause("project", "red")).await.map(drop),
    ] {
        assert_eq!(refused.unwrap_err().code, ErrorCode::PermissionDenied);
    }
    // What is not there, and what makes no sense.
    for (wrong, code) in [
        (pause("sku", "t4"), ErrorCode::NotFound),
        (pause("agent", "nobody"), ErrorCode::NotFound),
        (pause("host", "a"), ErrorCode::InvalidArgument),
        (v1::PauseRequest { until_ms: 1, ..pause("sku", SKU) }, ErrorCode::InvalidArgument),
        (v1::PauseRequest { for_ms: u64::MAX, ..pause("sku", SKU) }, ErrorCode::InvalidArgument),
        (v1::PauseRequest { for_ms: 1, until_ms: u64::MAX, ..pause("sku", SKU) }, ErrorCode::InvalidArgument),
        (v1::PauseRequest { reason: "two\nlines".into(), ..pause("sku", SKU) }, ErrorCode::InvalidArgument),
    ] {
        let error = farm.pause(&Actor::local(), wrong.clone()).await.unwrap_err();
        assert_eq!(error.code, code, "{wrong:?}: {error:?}");
    }
}
