//! A farm with more jobs than one message holds, asked over real gRPC with the limits of the real client.

use crate::{
    store::{engine, job, key, report},
    support::{SKU, agent, model, request},
};
use planforge_client::{Client, Endpoint, FarmService};
use planforge_coordinator::{
    auth::Actor,
    core::{Change, JobId, JobState, PlanRef, RequestRecord},
    farm::{Farm, FarmConfig, LiveCounts, SystemClock},
    server::{Coordinator, CoordinatorConfig},
    store::{MemStore, SqliteStore, Store as _},
};
use planforge_proto::v1;
use planforge_types::Digest;
use prost::Message as _;
use std::{collections::BTreeSet, sync::Arc};
use tempfile::TempDir;

/// With their reports twice what a client takes in one message.
const JOBS: usize = 1_600;
const REPORT_BYTES: usize = 40_000;
const CLIENT_TAKES_BYTES: usize = 32 << 20;
/// The first request has these; the second the rest.
const FIRST: usize = 1_300;

fn id(number: usize) -> String {
    format!("job{number:05}")
}

/// What a client says to get the jobs of the first request again.
fn repeated() -> v1::SubmitRequest {
    v1::SubmitRequest { idempotency_key: "again".into(), skus: vec![SKU.into()], ..v1::SubmitRequest::default() }
}

/// Jobs that were built and measured, all reports under one engine key, each with an engine of its own.
async fn fill(store: &SqliteStore) {
    let epoch = store.acquire("before", 1).await.unwrap();
    let mut changes = Vec::new();
    for number in 0..JOBS {
        let (id, at_ms) = (id(number), 1 + number as u64 / 7);
        let plan = format!("plan {number}");
        let text = format!(r#"{{"n":{number},"pad":"{}"}}"#, "x".repeat(REPORT_BYTES));
        let plan_ref = PlanRef { digest: Digest::of(plan.as_bytes()), size_bytes: 3, card: None, builds: 1 };
        let mut record = job(&id, JobState::Succeeded, at_ms);
        record.plan = Some(plan_ref);
        record.wants[0].request = if number < FIRST { "first".into() } else { "second".into() };
        let mut measured = report(&id, &plan, &text, at_ms, None);
        measured.key = Some(key("all"));
        changes.extend([
            Change::Job(Arc::new(record)),
            Change::JobProject { project: "red".into(), job: id.as_str().into(), created_ms: at_ms },
            Change::Engine(Box::new(engine(&id, &plan, at_ms))),
            Change::Report(Box::new(measured)),
        ]);
    }
    let fingerprint = v1::SubmitRequest { idempotency_key: String::new(), ..repeated() };
    for (name, jobs, idempotency_key) in [("first", 0..FIRST, "again"), ("second", FIRST..JOBS, "")] {
        changes.push(Change::Request(RequestRecord {
            id: name.into(),
            project: "default".into(),
            actor: "me".into(),
            idempotency_key: idempotency_key.into(),
            fingerprint: Digest::of(&fingerprint.encode_to_vec()),
            jobs: jobs.map(|number| JobId::from(id(number))).collect(),
            created_ms: 1,
        }));
    }
    store.commit(epoch, changes).await.unwrap();
    store.close().await.unwrap();
}

async fn served() -> (Coordinator, FarmService, TempDir) {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    // Makes the folder the way it wants it.
    let socket = folder.path().join("s");
    let mut config = CoordinatorConfig::new(&data);
    config.unix_socket = Some(socket.clone());
    Coordinator::start(config.clone()).await.unwrap().shutdown().await;
    fill(&SqliteStore::open(&data.join("farm.db")).await.unwrap()).await;
    let coordinator = Coordinator::start(config).await.unwrap();
    let client = Client::connect(Endpoint::unix(&socket), None).await.unwrap();
    (coordinator, client.farm(), folder)
}

/// Every page of a list until it ends.
async fn jobs(farm: &mut FarmService, mut request: v1::ListJobsRequest) -> Vec<v1::Job> {
    let mut found = Vec::new();
    loop {
        let reply = farm.list_jobs(request.clone()).await.expect("no page is too long").into_inner();
        found.extend(reply.jobs);
        if reply.next_cursor.is_empty() {
            return found;
        }
        request.cursor = reply.next_cursor;
    }
}

#[tokio::test]
async fn no_list_dies_of_its_length_and_none_is_cut_unsaid() {
    let (coordinator, mut farm, _folder) = served().await;
    const { assert!(JOBS * REPORT_BYTES > 3 * CLIENT_TAKES_BYTES / 2) };

    let all = jobs(&mut farm, v1::ListJobsRequest { limit: 5_000, with_reports: true, ..Default::default() }).await;
    let ids: Vec<&str> = all.iter().map(|job| job.id.as_str()).collect();
    let newest_first: Vec<String> = (0..JOBS).rev().map(id).collect();
    assert_eq!(ids, newest_first);
    assert!(all.iter().all(|job| job.report_json.len() > REPORT_BYTES && !job.partial));

    // A limit below the whole list, as `planforge jobs --limit 1500` asks.
    let limited = v1::ListJobsRequest { limit: 1_500, ..Default::default() };
    let reply = farm.list_jobs(limited).await.unwrap().into_inner();
    assert_eq!((reply.jobs.len(), reply.next_cursor.is_empty()), (1_500, false));

    for (name, expected) in [("first", 0..FIRST), ("second", FIRST..JOBS)] {
        let of_request = v1::ListJobsRequest { request_id: name.into(), ..Default::default() };
        let found = jobs(&mut farm, of_request.clone()).await;
        let ids: Vec<&str> = found.iter().map(|job| job.id.as_str()).collect();
        assert_eq!(ids, expected.clone().rev().map(id).collect::<Vec<_>>(), "{name}");
        let with_reports = jobs(&mut farm, v1::ListJobsRequest { with_reports: true, ..of_request }).await;
        assert_eq!(with_reports.len(), expected.len());
    }
    let none = v1::ListJobsRequest { request_id: "third".into(), ..Default::default() };
    assert_eq!(farm.list_jobs(none).await.unwrap_err().code(), tonic::Code::NotFound);
    let bad = v1::ListJobsRequest { cursor: "x".into(), ..Default::default() };
    assert_eq!(farm.list_jobs(bad).await.unwrap_err().code(), tonic::Code::InvalidArgument);

    let mut request = v1::ListEnginesRequest { limit: 5_000, ..Default::default() };
    let mut engines = BTreeSet::new();
    loop {
        let reply = farm.list_engines(request.clone()).await.expect("no page is too long").into_inner();
        for engine in reply.engines {
            assert!(engine.report_json.len() > REPORT_BYTES);
            assert!(engines.insert(engine.engine_key), "an engine comes once");
        }
        request.cursor = reply.next_cursor;
        if request.cursor.is_empty() {
            break;
        }
    }
    assert_eq!(engines.len(), JOBS);

    let mut request = v1::ListReportsRequest { engine_key: key("all").to_string(), ..Default::default() };
    let mut reports = BTreeSet::new();
    loop {
        let reply = farm.list_reports(request.clone()).await.expect("no page is too long").into_inner();
        assert_eq!(reply.reports_json.len(), reply.facts.len());
        for facts in reply.facts {
            assert!(reports.insert(facts.digest), "a report comes once");
        }
        request.cursor = reply.next_cursor;
        if request.cursor.is_empty() {
            break;
        }
    }
    assert_eq!(reports.len(), JOBS);

    // A reply that has to name every job of a request shortens those that do not fit, and says so.
    let reply = farm.submit(repeated()).await.expect("the reply is not too long").into_inner();
    assert_eq!((reply.request_id.as_str(), reply.jobs.len()), ("first", FIRST));
    assert!(!reply.jobs[0].partial && reply.jobs[0].report_json.len() > REPORT_BYTES);
    let last = reply.jobs.last().unwrap();
    assert!(last.partial && last.state() == v1::JobState::Succeeded && last.id == id(FIRST - 1));
    let whole = farm.get_job(v1::GetJobRequest { id: last.id.clone() }).await.unwrap().into_inner();
    assert!(!whole.partial && whole.report_json.len() > REPORT_BYTES);
    coordinator.shutdown().await;
}

#[tokio::test]
async fn what_runs_and_waits_is_counted_by_the_scheduler() {
    let blobs = crate::support::blobs::MemBlobs::default();
    // The agent says nothing while it works: its leases outlast the test on any machine.
    let config = FarmConfig { lease_ms: 3_600_000, seed: Some(7), ..FarmConfig::default() };
    let store = Arc::new(MemStore::new());
    let clock = Arc::new(SystemClock::new());
    let farm = Farm::open(store, Arc::new(blobs.clone()), config, clock).await.expect("the farm opens");
    let devices = ["cpu0", "cpu1"].map(|name| agent::device(name, SKU, "native 1")).to_vec();
    let mut worker = agent::Agent::connect(&farm, agent::hello("a", devices)).await;
    assert!(matches!(worker.next().await, Some(v1::coordinator_message::Kind::Welcome(_))));
    let models = (0..1_000).map(|number| model(&blobs, &format!("m{number}"))).collect();
    let first = v1::SubmitRequest { models, ..request(model(&blobs, "m0")) };
    assert_eq!(farm.submit(&Actor::local(), first).await.unwrap().jobs.len(), 1_000);
    let models = (1_000..1_073).map(|number| model(&blobs, &format!("m{number}"))).collect();
    let second = v1::SubmitRequest { models, project: "red".into(), ..request(model(&blobs, "m0")) };
    farm.submit(&Actor::local(), second).await.unwrap();
    let mut assigned = 0;
    while assigned < 2 {
        let message = worker.next().await.expect("the session lives");
        assigned += usize::from(matches!(message, v1::coordinator_message::Kind::Assign(_)));
    }
    let counts = |actor: Actor| {
        let farm = farm.clone();
        async move { farm.live_counts(&actor).await.unwrap() }
    };
    assert_eq!(counts(Actor::local()).await, LiveCounts { running: 2, waiting: 1_071 });
    // Others see what is their own; nobody is starved, so one device may work for either project.
    let red = counts(crate::support::actor("r", "read", Some("red"))).await;
    assert_eq!(red.running + red.waiting, 73);
    farm.close().await;
}
