//! What every store says of how fast builds were; and that a migration says the same of an older database.

use crate::{
    coverage_store::undo,
    store::{engine, job, key, report},
};
use planforge_coordinator::{
    core::{Change, Engine, Job, JobState, Report},
    store::{HistoryFilter, MemStore, PastBuild, SqliteStore, Store},
};
use planforge_types::{Digest, order::MeasureAsk};
use std::sync::Arc;

/// The migration that made the table of it.
pub(crate) const HISTORY: &str = include_str!("../../../migrations/sqlite/0022_history.sql");

/// A history, three builds a part.
async fn past(store: &dyn Store, filter: HistoryFilter) -> Vec<PastBuild> {
    let (mut found, mut behind) = (Vec::new(), None);
    loop {
        let part = store.history(HistoryFilter { behind, limit: 3, ..filter.clone() }).await.unwrap();
        assert!(part.items.len() <= 3);
        found.extend(part.items);
        behind = part.rest;
        if behind.is_none() {
            return found;
        }
        assert!(found.len() < 100, "the history has no end");
    }
}

fn of(model: &str) -> HistoryFilter {
    HistoryFilter { model: model.into(), ..HistoryFilter::default() }
}

/// Jobs and medians of a model's history, newest first.
async fn told(store: &dyn Store, filter: HistoryFilter) -> Vec<(String, f64)> {
    past(store, filter).await.into_iter().map(|build| (build.job, build.median_ms)).collect()
}

fn built(plan: &str, job: &str, created_ms: u64) -> Vec<Change> {
    let engine = Engine { seq: created_ms, job: job.into(), ..engine("mine", plan, created_ms) };
    vec![Change::Engine(Box::new(engine)), Change::EngineProject { key: key("mine"), project: "red".into() }]
}

fn measured(plan: &str, job: &str, median_ms: f64, created_ms: u64) -> Report {
    // No two reports are the same bytes.
    let document = format!(r#"{{"latency_ms":{{"median":{median_ms}}},"of":"{job} {created_ms}"}}"#);
    Report { job: job.into(), ..report("mine", plan, &document, created_ms, None) }
}

fn change(report: Report) -> Change {
    Change::Report(Box::new(report))
}

pub(crate) async fn conforms(store: &dyn Store) {
    let epoch = store.acquire("first", 1).await.unwrap();
    let commit = async |changes: Vec<Change>| store.commit(epoch, changes).await.unwrap();
    let named = job("mine", JobState::Succeeded, 1).model;
    let (name, digest) = (named.name.clone(), named.digest);
    let pair = |job: &str, median_ms: f64| (job.to_owned(), median_ms);
    assert_eq!(told(store, of(&name)).await, []);
    commit(built("plan1", "job1", 10)).await;
    assert_eq!(told(store, of(&name)).await, [], "nobody measured it");
    commit(vec![change(measured("plan1", "job1", 2.0, 10))]).await;
    // Older versions stay: of one key a build takes the place of another, and not in its history.
    let second = [built("plan2", "job2", 20), vec![change(measured("plan2", "job2", 3.0, 20))]];
    commit(second.concat()).await;
    assert_eq!(told(store, of(&name)).await, [pair("job2", 3.0), pair("job1", 2.0)]);
    // What others find of a plan later changes nothing, be it of given inputs or not.
    let inputs = MeasureAsk { inputs: Some(Digest::of(b"inputs")), ..MeasureAsk::default() };
    let given = Report { measure: inputs.clone(), ..measured("plan2", "job2", 7.0, 21) };
    commit(vec![change(given), change(measured("plan2", "bench", 8.0, 22))]).await;
    assert_eq!(told(store, of(&name)).await[0], pair("job2", 3.0));
    // A build that comes to the same bytes is another one, of which nothing is known until it is measured.
    commit(built("plan1", "job3", 30)).await;
    assert_eq!(told(store, of(&name)).await, [pair("job2", 3.0), pair("job1", 2.0)]);
    commit(vec![change(measured("plan1", "job3", 0.1 + 0.2, 30))]).await;
    let all = [pair("job3", 0.1 + 0.2), pair("job2", 3.0), pair("job1", 2.0)];
    assert_eq!(told(store, of(&name)).await, all);
    // A compile job measures nothing; the first who does says how fast its build is.
    commit([built("plan4", "job4", 40), vec![change(measured("plan4", "device", 4.0, 41))]].concat()).await;
    commit(vec![change(measured("plan4", "again", 5.0, 42))]).await;
    assert_eq!(told(store, of(&name)).await[0], pair("job4", 4.0));
    // What is simulated, of another device kind, or no report is in none.
    let odd = |text: &str, created_ms| Report { job: "job5".into(), ..report("mine", "plan5", text, created_ms, None) };
    commit(built("plan5", "job5", 50)).await;
    let elsewhere = Report { sku: "t4".parse().unwrap(), ..odd(r#"{"latency_ms":{"median":1.0}}"#, 50) };
    commit(vec![change(elsewhere), change(odd(r#"{"latency_ms":{"median":1},"simulated":true}"#, 51))]).await;
    for text in ["nothing", r#"{"latency_ms":{"median":"fast"}}"#] {
        commit(vec![change(odd(text, 50))]).await;
    }
    assert_eq!(told(store, of(&name)).await.len(), 4);
    let disturbed = r#"{"latency_ms":{"median":6},"windows":[{"iterations":4,"tainted":["x"],"kept_tainted":true}]}"#;
    commit(
        [
            built("plan6", "job6", 60),
            vec![change(Report { job: "job6".into(), ..report("mine", "plan6", disturbed, 60, None) })],
        ]
        .concat(),
    )
    .await;
    let newest = past(store, of(&name)).await.remove(0);
    assert!(newest.disturbed && newest.median_ms == 6.0 && newest.model_digest == digest.to_string(), "{newest:?}");

    // By the beginning of a digest, device kind and project.
    assert_eq!(told(store, of(&digest.to_string()[..8])).await.len(), 5);
    assert_eq!(told(store, HistoryFilter { sku: Some("t4".into()), ..of(&name) }).await, []);
    let in_project = |project: &str| HistoryFilter { project: Some(project.into()), ..of(&name) };
    assert_eq!((told(store, in_project("red")).await.len(), told(store, in_project("blue")).await.len()), (5, 0));

    // Another project that has the model knows its builds, by the name that it gave it.
    let mut own = Job { model: named.clone(), ..job("theirs", JobState::Succeeded, 70) };
    own.model.name = "ours.onnx".into();
    commit(vec![
        Change::JobProject { project: "blue".into(), job: "theirs".into(), created_ms: 70 },
        Change::Job(Arc::new(own)),
        Change::EngineProject { key: key("mine"), project: "blue".into() },
    ])
    .await;
    let confined =
        |project: &str, model: &str| HistoryFilter { own_names: true, model: model.into(), ..in_project(project) };
    assert_eq!(told(store, confined("blue", "ours.onnx")).await.len(), 5);
    assert_eq!(told(store, confined("blue", &name)).await, [], "its name is its own project's");
    assert_eq!(told(store, confined("red", &name)).await.len(), 5);
    assert_eq!(told(store, confined("red", "ours.onnx")).await, []);

    // A history is of what was: plans and reports go, its builds stay.
    for plan in ["plan1", "plan2"] {
        commit(vec![Change::ForgetBuild { key: key("mine"), plan: Digest::of(plan.as_bytes()) }]).await;
    }
    assert_eq!(told(store, of(&name)).await[2..], all);
}

#[tokio::test]
async fn builds_are_remembered_in_memory() {
    conforms(&MemStore::new()).await;
}

#[tokio::test]
async fn builds_are_remembered_by_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("farm.db")).await.unwrap();
    conforms(&store).await;
    store.close().await.unwrap();
}

#[tokio::test]
async fn an_older_database_says_the_same_of_builds_that_it_still_has() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("farm.db");
    let store = SqliteStore::open(&file).await.unwrap();
    let epoch = store.acquire("one", 1).await.unwrap();
    let changes = [
        built("plan1", "job1", 10),
        vec![change(measured("plan1", "job1", 2.0, 10))],
        built("plan2", "job2", 20),
        vec![change(measured("plan2", "job2", 3.0, 20)), change(measured("plan2", "bench", 9.0, 30))],
        // What cannot be read hinders nobody.
        vec![change(report("mine", "plan3", "nothing", 40, None))],
        built("plan3", "job3", 40),
    ];
    store.commit(epoch, changes.concat()).await.unwrap();
    let name = job("mine", JobState::Succeeded, 1).model.name;
    let kept = past(&store, of(&name)).await;
    assert_eq!(kept.len(), 2, "{kept:?}");
    store.close().await.unwrap();
    undo(&file, HISTORY, 22).await;
    let store = SqliteStore::open(&file).await.unwrap();
    assert_eq!(past(&store, of(&name)).await, kept);
    store.close().await.unwrap();
}
