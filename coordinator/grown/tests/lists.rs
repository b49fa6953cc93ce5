//! A farm as years leave it: what is counted is there, lists have all of it, and what ended long ago still answers.

use futures::StreamExt as _;
use planforge_coordinator::{
    auth::{Actor, Proof, Role},
    blobs::{LocalBlobs, LocalBlobsOptions},
    core::JobState,
    farm::{Farm, FarmConfig, LiveCounts, SystemClock},
    store::{SqliteStore, Store as _},
};
use planforge_grown::{PROJECTS, Size, grow};
use planforge_proto::{ApiError, protocol, v1};
use std::{collections::BTreeSet, sync::Arc};
use tempfile::TempDir;

const SIZE: Size = Size { waiting: 300, finished: 900, plan_bytes: Some(64) };
const NOW_MS: u64 = 1_800_000_000_000;

async fn farm(folder: &TempDir) -> Farm {
    grow(folder.path(), SIZE, NOW_MS, |_| ()).await.expect("the farm grows");
    let store = SqliteStore::open(&folder.path().join("farm.db")).await.expect("the database opens");
    let blobs = LocalBlobs::open(folder.path().join("blobs"), LocalBlobsOptions::default()).expect("the blobs open");
    let clock = Arc::new(SystemClock::new());
    let config = FarmConfig { seed: Some(3), ..FarmConfig::default() };
    Farm::open(Arc::new(store), Arc::new(blobs), config, clock).await.expect("the farm opens")
}

/// Every page of a list, and the total that it says.
async fn all(farm: &Farm, request: v1::ListJobsRequest) -> (Vec<v1::Job>, v1::ListJobsReply) {
    let mut request = v1::ListJobsRequest { limit: 70, with_total: true, ..request };
    let first = farm.list_jobs(&Actor::local(), request.clone()).await.expect("the list is read");
    let (mut jobs, mut cursor) = (first.jobs.clone(), first.next_cursor.clone());
    while !cursor.is_empty() {
        request.cursor = cursor;
        let reply = farm.list_jobs(&Actor::local(), request.clone()).await.expect("the list goes on");
        assert!(reply.jobs.len() <= 70);
        jobs.extend(reply.jobs);
        cursor = reply.next_cursor;
    }
    (jobs, first)
}

#[tokio::test]
async fn lists_and_counts_of_a_grown_farm_agree() {
    let folder = tempfile::tempdir().unwrap();
    let farm = farm(&folder).await;
    let any = v1::ListJobsRequest::default;
    let (jobs, reply) = all(&farm, any()).await;
    let ids: BTreeSet<&str> = jobs.iter().map(|job| job.id.as_str()).collect();
    assert_eq!((jobs.len(), ids.len(), reply.total, reply.more_than_total), (1_200, 1_200, 1_200, false));
    assert!(jobs.windows(2).all(|pair| (pair[0].created_ms, &pair[0].id) > (pair[1].created_ms, &pair[1].id)));
    for project in PROJECTS {
        let wanted = jobs.iter().filter(|job| job.project == project).count();
        let (own, reply) = all(&farm, v1::ListJobsRequest { project: project.into(), ..any() }).await;
        assert_eq!((own.len(), reply.total), (wanted, wanted as u64), "{project}");
    }
    for (states, sku) in [(vec![v1::JobState::Queued], ""), (vec![v1::JobState::Failed, v1::JobState::Cancelled], "t4")]
    {
        let fits = |job: &&v1::Job| states.contains(&job.state()) && (sku.is_empty() || job.sku == sku);
        let wanted: Vec<&v1::Job> = jobs.iter().filter(fits).collect();
        assert!(!wanted.is_empty());
        let of_states = states.iter().map(|state| i32::from(*state)).collect();
        let (mut found, reply) = all(
            &farm,
            v1::ListJobsRequest { states: of_states, sku: sku.into(), order: v1::JobOrder::Oldest.into(), ..any() },
        )
        .await;
        assert_eq!(reply.total, wanted.len() as u64);
        found.reverse();
        assert!(found.iter().map(|job| &job.id).eq(wanted.iter().map(|job| &job.id)));
    }
    let (tagged, reply) = all(&farm, v1::ListJobsRequest { tags: vec!["nightly".into()], ..any() }).await;
    assert!(tagged.len() as u64 == reply.total && tagged.len() > 20);
    assert!(tagged.iter().all(|job| job.tags == ["nightly"]));
    let counts = farm.live_counts(&Actor::local()).await.unwrap();
    assert_eq!(counts, LiveCounts { running: 0, waiting: 300 });
    let engines = v1::ListEnginesRequest { with_total: true, limit: 5_000, ..Default::default() };
    let engines = farm.list_engines(&Actor::local(), engines).await.unwrap();
    assert_eq!(engines.total, engines.engines.len() as u64);
    assert!(engines.total > 50 && engines.next_cursor.is_empty());
    // A cursor of one order is none of another.
    let page = v1::ListJobsRequest { limit: 10, order: v1::JobOrder::Oldest.into(), ..any() };
    let cursor = farm.list_jobs(&Actor::local(), page).await.unwrap().next_cursor;
    let other = v1::ListJobsRequest { cursor, ..any() };
    assert!(farm.list_jobs(&Actor::local(), other).await.unwrap_err().message.contains("cursor"));
    farm.close().await;
}

#[tokio::test]
async fn a_start_reads_what_lives_and_what_ended_long_ago_still_answers() {
    let folder = tempfile::tempdir().unwrap();
    let farm = farm(&folder).await;
    let store = SqliteStore::open(&folder.path().join("farm.db")).await.unwrap();
    let snapshot = store.load().await.unwrap();
    assert_eq!(snapshot.jobs.len(), 300);
    assert!(snapshot.jobs.iter().all(|job| job.state == JobState::Queued));
    store.close().await.unwrap();
    let request = v1::ListEnginesRequest { limit: 1, sku: "t4".into(), ..Default::default() };
    let engine = farm.list_engines(&Actor::local(), request).await.unwrap().engines.remove(0);
    let submit = v1::SubmitRequest {
        models: vec![engine.model.clone().unwrap()],
        skus: vec!["t4".into()],
        specs_json: vec![engine.spec_json.clone()],
        tags: vec!["again".into(), "again".into()],
        ..Default::default()
    };
    let told = farm.dry_run(&Actor::local(), submit.clone()).await.unwrap().combinations.remove(0);
    assert_eq!((told.would.as_str(), &told.plan_digest), ("answer", &engine.plan_digest));
    let job = farm.submit(&Actor::local(), submit.clone()).await.unwrap().jobs.remove(0);
    assert!(job.cached, "{job:?}");
    assert_eq!((&job.plan_digest, &job.engine_key), (&engine.plan_digest, &engine.engine_key));
    assert_eq!(job.tags, ["again"]);
    // What was never built is not answered.
    let spec = r#"{"precision":"bf16"}"#.to_owned();
    let other = v1::SubmitRequest { specs_json: vec![spec], ..submit.clone() };
    let other = farm.submit(&Actor::local(), other).await.unwrap().jobs.remove(0);
    assert!(!other.cached && other.state() == v1::JobState::Queued);
    for bad in ["", "=x", "a b", "a=1,2", "ä"] {
        let refused = v1::SubmitRequest { tags: vec![bad.into()], ..submit.clone() };
        assert!(farm.submit(&Actor::local(), refused).await.is_err(), "{bad:?}");
    }
    farm.close().await;
}

/// An agent with one GPU.
fn hello() -> v1::Hello {
    let offer = v1::Offer { toolchain_json: r#"{"backend":"native","version":"1"}"#.into(), ..v1::Offer::default() };
    let device = v1::Device {
        id: "dev0".into(),
        skus: vec!["t4".into()],
        fingerprint_json: "{}".into(),
        offers: vec![offer],
        simulated: true,
        ..v1::Device::default()
    };
    v1::Hello {
        agent_id: "w".into(),
        incarnation: "1".into(),
        name: "host-w".into(),
        version: protocol::RELEASE.into(),
        protocol: protocol::PROTOCOL,
        oldest_protocol: protocol::OLDEST_PROTOCOL,
        devices: vec![device],
        ..v1::Hello::default()
    }
}

#[tokio::test]
async fn a_queued_job_says_how_many_are_before_it_and_when_it_is_likely_done() {
    let folder = tempfile::tempdir().unwrap();
    let farm = farm(&folder).await;
    let (out, messages) = tokio::sync::mpsc::channel::<Result<v1::AgentMessage, ApiError>>(8);
    out.send(Ok(v1::AgentMessage { kind: Some(v1::agent_message::Kind::Hello(hello())) })).await.unwrap();
    let actor = Actor::named("agents".to_owned(), Role::Agent, None);
    let inbound = Box::pin(tokio_stream::wrappers::ReceiverStream::new(messages));
    let mut worker = farm.session(&actor, Proof::Owner, inbound).await.expect("the session begins");
    let assigned = |kind| matches!(kind, v1::coordinator_message::Kind::Assign(_));
    while !worker.next().await.expect("the session lives").unwrap().kind.is_some_and(assigned) {}
    let queued = v1::ListJobsRequest {
        states: vec![v1::JobState::Queued.into()],
        sku: "t4".into(),
        order: v1::JobOrder::Oldest.into(),
        limit: 1_000,
        ..Default::default()
    };
    let jobs = farm.list_jobs(&Actor::local(), queued).await.unwrap().jobs;
    assert!(jobs.len() > 15, "{}", jobs.len());
    // One agent of a kind that is away offers it too; of five projects each has its turn.
    let mut places: Vec<u64> = jobs.iter().map(|job| job.jobs_ahead.expect("it is queued")).collect();
    places.sort_unstable();
    assert!(places[0] <= PROJECTS.len() as u64 && *places.last().unwrap() <= jobs.len() as u64 + 5, "{places:?}");
    for job in &jobs {
        let eta = job.eta.expect("the history tells");
        assert!(eta.samples > 0 && eta.end_in_ms > eta.start_in_ms, "{eta:?}");
        assert!((1.0..=2.0).contains(&eta.error_factor), "{eta:?}");
        assert!(job.waiting_reason.contains("are likely served before it"), "{}", job.waiting_reason);
    }
    let last = jobs.iter().max_by_key(|job| job.jobs_ahead).unwrap();
    let first = jobs.iter().min_by_key(|job| job.jobs_ahead).unwrap();
    assert!(last.eta.unwrap().start_in_ms > first.eta.unwrap().start_in_ms);
    farm.close().await;
}
