//! What every store promises of what goes by an age of its own, and of event numbers when events have gone.

use crate::{
    coverage_store::{COVERAGE, PREPARATIONS, undo},
    past_store::HISTORY,
    store::{engine, event, job, key, report},
};
use planforge_coordinator::{
    core::{Attempt, BlobHolder, Change, Held, Hold, JobState, Outcome, Tenure},
    store::{EventFilter, MemStore, ReportFilter, SqliteStore, Store},
};
use planforge_types::Digest;
use std::sync::Arc;

fn digest(text: &str) -> Digest {
    Digest::of(text.as_bytes())
}

pub(crate) async fn ages(store: &dyn Store) {
    let epoch = store.acquire("one", 1).await.unwrap();
    holds(store, epoch).await;
    measurements(store, epoch).await;
    events(store, epoch).await;
}

async fn holds(store: &dyn Store, epoch: u64) {
    let sent = |name: &str, since_ms| Change::Blob {
        digest: digest(name),
        holder: BlobHolder::Project("red".into()),
        hold: Hold { size_bytes: 10, tenure: Tenure::Sent, since_ms },
    };
    let held = async |tenure, before_ms| {
        let held = store.held_since_before(tenure, before_ms, 10).await.unwrap();
        held.into_iter().map(|held| held.digest).collect::<Vec<_>>()
    };
    store.commit(epoch, vec![sent("a", 5), sent("b", 6), sent("labels", 7)]).await.unwrap();
    assert_eq!(store.count_held_since_before(Tenure::Sent, 7).await.unwrap(), 2);
    assert_eq!(store.count_held_since_before(Tenure::Log, 7).await.unwrap(), 0);
    store.commit(epoch, vec![sent("a", 8)]).await.unwrap();
    assert_eq!(
        held(Tenure::Sent, 9).await,
        [digest("b"), digest("labels"), digest("a")],
        "what is sent again is newer"
    );
    assert_eq!(held(Tenure::Sent, 8).await, [digest("b"), digest("labels")]);

    // A job names one of them, another is its model's file, and it has a log.
    let mut ended = job("a", JobState::Succeeded, 20);
    ended.eval = Some(digest("labels"));
    ended.attempts.push(Attempt {
        number: 1,
        agent: "agent".into(),
        agent_name: "host".into(),
        device: "cpu0".into(),
        started_ms: 20,
        ended_ms: 21,
        outcome: Outcome::Succeeded,
        failure: None,
        log: Some(digest("log")),
        suspects_cache: false,
        built: None,
        taken_back: false,
    });
    let changes = vec![
        Change::Job(Arc::new(ended.clone())),
        Change::JobProject { project: "red".into(), job: ended.id.clone(), created_ms: 20 },
    ];
    store.commit(epoch, changes.clone()).await.unwrap();
    assert_eq!(held(Tenure::Sent, 100).await, [digest("b")]);
    assert_eq!((held(Tenure::Given, 22).await, held(Tenure::Given, 21).await), (vec![digest("labels")], vec![]));
    assert_eq!((held(Tenure::Log, 22).await, held(Tenure::Log, 21).await), (vec![digest("log")], vec![]));

    // What was renewed meanwhile stays, what is of a record stays, and the rest goes.
    let forget = |name: &str, tenure, before_ms| Change::ForgetHeld {
        held: Held { digest: digest(name), project: "red".into(), tenure },
        before_ms,
    };
    let forgotten = vec![
        forget("a", Tenure::Sent, 100),
        forget("b", Tenure::Sent, 6),
        forget("labels", Tenure::Given, 22),
        forget("log", Tenure::Log, 22),
    ];
    store.commit(epoch, forgotten).await.unwrap();
    let sees = async |name: &str| store.may_see_blob("red", digest(name)).await.unwrap();
    assert!(sees("a").await && sees("b").await && !sees("labels").await && !sees("log").await);
    let unnamed = store.unnamed_blobs(vec![digest("a"), digest("b"), digest("labels"), digest("log")]).await.unwrap();
    assert_eq!(unnamed, [digest("labels"), digest("log")]);
    // Sent once more, a file of a model does not become one that nothing names.
    store.commit(epoch, vec![sent("a", 200), forget("b", Tenure::Sent, 7)]).await.unwrap();
    assert_eq!(held(Tenure::Sent, 1_000).await, []);
    assert_eq!(store.stored_bytes("red").await.unwrap(), 10);
}

async fn measurements(store: &dyn Store, epoch: u64) {
    let made = Change::Engine(Box::new(engine("b", "plan", 30)));
    // Made with the plan, then twice more; and one of another plan.
    let reports = [
        report("b", "plan", "first", 30, None),
        report("c", "plan", "second", 31, None),
        report("c", "plan", "labelled", 31, Some(digest("eval"))),
        report("d", "plan", "third", 32, None),
        report("e", "other", "alone", 30, None),
    ];
    let [_, second, ..] = &reports;
    let (second, artifacts) = (second.digest, second.artifacts.clone());
    let mut changes = vec![made];
    changes.extend(reports.map(|report| Change::Report(Box::new(report))));
    store.commit(epoch, changes).await.unwrap();
    // What only one project may see is that project's.
    let sees = |project: &str| Change::EngineProject { key: key("b"), project: project.into() };
    let bytes = async |project: &str| store.plan_bytes_of(project).await.unwrap();
    store.commit(epoch, vec![sees("pink")]).await.unwrap();
    assert_eq!((bytes("pink").await, bytes("teal").await, store.plan_bytes().await.unwrap()), (3, 0, 3));
    store.commit(epoch, vec![sees("teal")]).await.unwrap();
    assert_eq!((bytes("pink").await, bytes("teal").await), (0, 0));
    let old = store.older_reports(40, None, 10).await.unwrap();
    assert_eq!(old, [(31, second)], "neither the newest of its kind nor the one that came with the plan");
    assert_eq!(store.older_reports(40, Some(old[0]), 10).await.unwrap(), []);
    assert_eq!(store.older_reports(31, None, 10).await.unwrap(), []);
    store.commit(epoch, vec![Change::ForgetReport(second)]).await.unwrap();
    let left = store.reports(ReportFilter { limit: 10, ..ReportFilter::default() }).await.unwrap();
    assert!(left.len() == 4 && left.iter().all(|report| report.digest != second));
    let mut named: Vec<Digest> = artifacts.iter().map(|artifact| artifact.digest).collect();
    named.push(second);
    named.retain(|digest| !left.iter().any(|report| report.blobs().any(|(other, _)| other == *digest)));
    assert_eq!(store.unnamed_blobs(named.clone()).await.unwrap(), named, "its bytes go with it");
}

async fn events(store: &dyn Store, epoch: u64) {
    assert_eq!(store.events_before(100, 10).await.unwrap(), None);
    store.commit(epoch, (1..=6).map(|seq| event(seq, "a")).collect()).await.unwrap();
    assert_eq!(store.events_before(4, 10).await.unwrap(), Some((3, 3)));
    assert_eq!(store.events_before(4, 2).await.unwrap(), Some((2, 2)));
    store.commit(epoch, vec![Change::EventsGone { until: 3 }]).await.unwrap();
    let seqs = async || {
        let events = store.events(EventFilter { limit: 10, ..EventFilter::default() }).await.unwrap();
        events.into_iter().map(|event| event.seq).collect::<Vec<_>>()
    };
    assert_eq!(seqs().await, [4, 5, 6]);
    // Numbers go on where they were, though nothing of a job is left and every event is old.
    assert_eq!(store.events_before(100, 10).await.unwrap(), Some((2, 5)));
    let mut ended = job("a", JobState::Succeeded, 20);
    ended.ended_ms = 21;
    store.commit(epoch, vec![Change::ForgetJob(Box::new(ended)), Change::EventsGone { until: 6 }]).await.unwrap();
    assert_eq!((seqs().await, store.load().await.unwrap().last_event), (vec![6], 6));
    store.commit(epoch, vec![event(7, "b"), Change::EventsGone { until: 6 }]).await.unwrap();
    assert_eq!(seqs().await, [7]);
}

#[tokio::test]
async fn ages_are_kept_in_memory() {
    ages(&MemStore::new()).await;
}

#[tokio::test]
async fn ages_are_kept_by_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("farm.db")).await.unwrap();
    ages(&store).await;
    store.close().await.unwrap();
}

#[tokio::test]
async fn what_was_sent_before_ages_were_kept_and_nothing_names_gets_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("farm.db");
    let store = SqliteStore::open(&file).await.unwrap();
    let epoch = store.acquire("one", 1).await.unwrap();
    let sent = |name: &str| Change::Blob {
        digest: digest(name),
        holder: BlobHolder::Project("red".into()),
        hold: Hold { size_bytes: 10, tenure: Tenure::Sent, since_ms: 5 },
    };
    let mut ended = job("a", JobState::Succeeded, 20);
    (ended.eval, ended.report) = (Some(digest("labels")), Some(digest("report of a job")));
    let mut changes: Vec<Change> = ["stray", "labels", "report of a job", "a"].map(sent).into();
    changes.push(Change::Job(Arc::new(ended.clone())));
    changes.push(Change::JobProject { project: "red".into(), job: ended.id.clone(), created_ms: 20 });
    store.commit(epoch, changes).await.unwrap();
    store.close().await.unwrap();
    // As it was before: no row says how long it lasts.
    undo(&file, PREPARATIONS, 25).await;
    undo(&file, HISTORY, 22).await;
    undo(&file, COVERAGE, 21).await;
    let older = "UPDATE blob_refs SET tenure = 0, since_ms = 0; DELETE FROM schema_versions WHERE version >= 15;
        DROP TRIGGER job_projects_come; DROP INDEX job_projects_sku; DROP TABLE shares; DROP TABLE pauses; DROP TABLE blob_notes;
        ALTER TABLE job_projects DROP COLUMN sku;
        CREATE TRIGGER job_projects_come AFTER INSERT ON job_projects BEGIN SELECT 1; END";
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&file);
    let mut connection = <sqlx::SqliteConnection as sqlx::Connection>::connect_with(&options).await.unwrap();
    sqlx::raw_sql(older).execute(&mut connection).await.unwrap();
    sqlx::Connection::close(connection).await.unwrap();

    let store = SqliteStore::open(&file).await.unwrap();
    let held = async |tenure| {
        let held = store.held_since_before(tenure, u64::MAX >> 1, 10).await.unwrap();
        held.into_iter().map(|held| held.digest).collect::<Vec<_>>()
    };
    assert_eq!(held(Tenure::Sent).await, [digest("stray")]);
    assert_eq!(store.count_held_since_before(Tenure::Sent, 1_000_000).await.unwrap(), 0, "its age begins now");
    assert_eq!((held(Tenure::Given).await, held(Tenure::Log).await), (vec![], vec![]));
    store.close().await.unwrap();
}
