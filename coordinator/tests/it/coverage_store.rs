//! What every store says of how models stand on device kinds; and that a migration says the same of an older database.

use crate::{
    store::{engine, job, key, report},
    support::SKU,
};
use planforge_coordinator::{
    core::{Change, Engine, Failure, Job, JobState, Report},
    store::{Coverage, CoverageFilter, CoveredModels, MemStore, SqliteStore, Store},
};
use planforge_types::{Digest, EngineKey, FailureClass, Sku, order::MeasureAsk};
use std::{path::Path, sync::Arc};

/// The migration that lets jobs change their models, of which the tables of how models stand hear.
pub(crate) const PREPARATIONS: &str = include_str!("../../../migrations/sqlite/0025_preparations.sql");
/// The migration that made those tables.
pub(crate) const COVERAGE: &str = include_str!("../../../migrations/sqlite/0021_coverage.sql");

fn of(project: &str) -> CoverageFilter {
    CoverageFilter { project: Some(project.to_owned()).filter(|name| !name.is_empty()), ..CoverageFilter::default() }
}

async fn models(store: &dyn Store, filter: &CoverageFilter) -> CoveredModels {
    store.covered_models(filter.clone(), 0, 100).await.unwrap()
}

async fn names(store: &dyn Store, project: &str) -> Vec<String> {
    models(store, &of(project)).await.names
}

async fn coverage(store: &dyn Store, project: &str, model: &str) -> Coverage {
    store.coverage(of(project), vec![model.into()], false).await.unwrap()
}

/// Plan, median and whether it is disturbed and simulated, of the one engine of a model.
async fn figures(store: &dyn Store, project: &str, model: &str) -> (Digest, Option<f64>, bool, bool) {
    let engines = coverage(store, project, model).await.engines;
    let [one] = &engines[..] else { panic!("{engines:?}") };
    (one.plan.parse().unwrap(), one.median_ms, one.disturbed, one.simulated)
}

/// A job with its project; its model is that of `model` and has another name where one is given.
pub(crate) fn asked(
    id: &str,
    project: &str,
    (model, name): (&str, &str),
    state: JobState,
    created_ms: u64,
) -> Vec<Change> {
    let mut asked = Job { phase: "compile".into(), ..job(id, state, created_ms) };
    asked.model = job(model, state, 1).model;
    asked.model.name = name.into();
    if state == JobState::Failed {
        asked.failure = Some(Failure::new(FailureClass::Resource, format!("{id} had no room"), ""));
    }
    let in_project = Change::JobProject { project: project.into(), job: id.into(), created_ms };
    vec![in_project, Change::Job(Arc::new(asked))]
}

pub(crate) fn built(id: &str, plan: &str, (created_ms, seq): (u64, u64), project: &str) -> Vec<Change> {
    let engine = Engine { seq, project: project.into(), ..engine(id, plan, created_ms) };
    vec![Change::Engine(Box::new(engine)), Change::EngineProject { key: key(id), project: project.into() }]
}

pub(crate) fn measured(plan: &str, document: &str, created_ms: u64) -> Change {
    Change::Report(Box::new(report("mine", plan, document, created_ms, None)))
}

const DISTURBED: &str = r#"{"latency_ms":{"median":2.5},"windows":[{"iterations":4,"tainted":["x"],"kept_tainted":true},
    {"iterations":4,"tainted":["y"],"kept_tainted":false}]}"#;
const QUIET: &str = r#"{"latency_ms":{"median":1.5},"simulated":true,"windows":[{"iterations":4,"tainted":["x"],
    "kept_tainted":true},{"iterations":4}]}"#;

/// Says how models stand while everything of it comes, changes and goes.
pub(crate) async fn conforms(store: &dyn Store) {
    let epoch = store.acquire("first", 1).await.unwrap();
    let commit = async |changes: Vec<Change>| store.commit(epoch, changes).await.unwrap();
    assert_eq!(models(store, &of("")).await, CoveredModels::default());

    let digest = |text: &str| Digest::of(text.as_bytes());
    commit(asked("j1", "red", ("mine", "mine.onnx"), JobState::Succeeded, 4_000)).await;
    assert_eq!(names(store, "red").await, [""; 0], "a job that succeeded is nothing without an engine");
    commit(built("mine", "plan1", (5_000, 1), "red")).await;
    let known = models(store, &of("red")).await;
    let skus = vec![SKU.to_owned()];
    assert_eq!(known, CoveredModels { names: vec!["mine.onnx".into()], count: 1, skus });
    assert_eq!(figures(store, "red", "mine.onnx").await, (digest("plan1"), None, false, false));
    commit(vec![measured("plan1", DISTURBED, 5_000)]).await;
    assert_eq!(figures(store, "red", "mine.onnx").await, (digest("plan1"), Some(2.5), true, false));
    // What was found on given inputs says nothing of the usual ones.
    let inputs = MeasureAsk { inputs: Some(digest("inputs")), ..MeasureAsk::default() };
    let given = report("mine", "plan1", r#"{"latency_ms":{"median":9.0}}"#, 5_100, None);
    commit(vec![Change::Report(Box::new(Report { measure: inputs, ..given }))]).await;
    assert_eq!(figures(store, "red", "mine.onnx").await.1, Some(2.5));
    commit(vec![measured("plan1", QUIET, 5_200)]).await;
    assert_eq!(figures(store, "red", "mine.onnx").await, (digest("plan1"), Some(1.5), false, true));
    for unreadable in ["nothing", r#"{"latency_ms":{"median":"fast"}}"#] {
        commit(vec![measured("plan1", unreadable, 5_300)]).await;
        assert_eq!(figures(store, "red", "mine.onnx").await.1, None, "{unreadable}");
        commit(vec![Change::ForgetReport(digest(unreadable))]).await;
        assert_eq!(figures(store, "red", "mine.onnx").await.1, Some(1.5), "{unreadable}");
    }
    // A newer build, by the order of events, and the older one again when that is gone.
    commit(built("mine", "plan2", (4_500, 7), "red")).await;
    assert_eq!(figures(store, "", "mine.onnx").await, (digest("plan2"), None, false, false));
    commit(vec![Change::ForgetBuild { key: key("mine"), plan: digest("plan2") }]).await;
    assert_eq!(figures(store, "", "mine.onnx").await, (digest("plan1"), Some(1.5), false, true));

    another_project(store, epoch).await;
    jobs(store, epoch).await;
    filters(store, epoch).await;
    prepared(store, epoch).await;

    commit(vec![Change::ForgetBuild { key: key("mine"), plan: digest("plan1") }]).await;
    assert_eq!((names(store, "blue").await, names(store, "red").await), (Vec::new(), vec!["mine.onnx".to_owned()]));
    assert_eq!(coverage(store, "red", "mine.onnx").await.engines, [], "jobs are left of it");
}

/// An engine that another project had built is known by what one's own jobs call its model.
async fn another_project(store: &dyn Store, epoch: u64) {
    let commit = async |changes: Vec<Change>| store.commit(epoch, changes).await.unwrap();
    let seen = Change::EngineProject { key: key("mine"), project: "blue".into() };
    let own = asked("j2", "blue", ("mine", "ours.onnx"), JobState::Succeeded, 6_000);
    commit([own, vec![seen]].concat()).await;
    assert_eq!((names(store, "blue").await, names(store, "").await.len()), (vec!["ours.onnx".to_owned()], 1));
    assert_eq!(figures(store, "blue", "ours.onnx").await.1, Some(1.5));
    assert_eq!(coverage(store, "blue", "mine.onnx").await, Coverage::default(), "its name is its own project's");
    commit(asked("j3", "blue", ("mine", "late.onnx"), JobState::Succeeded, 6_100)).await;
    assert_eq!(names(store, "blue").await, ["late.onnx"]);
    let digests = vec![Digest::of(b"mine").to_string(), Digest::of(b"none").to_string()];
    for (project, name) in [(None, "mine.onnx"), (Some("red"), "mine.onnx"), (Some("blue"), "late.onnx")] {
        let named = store.model_names(project.map(str::to_owned), digests.clone()).await.unwrap();
        assert_eq!(named.into_iter().collect::<Vec<_>>(), [(digests[0].clone(), name.to_owned())]);
    }
}

async fn jobs(store: &dyn Store, epoch: u64) {
    let commit = async |changes: Vec<Change>| store.commit(epoch, changes).await.unwrap();
    let own = |id: &str, model: &str, state, at_ms| asked(id, "red", (model, &format!("{model}.onnx")), state, at_ms);
    let told = async |project: &str, model: &str| {
        let coverage = coverage(store, project, model).await;
        let told = |jobs: Vec<planforge_coordinator::store::StandingJob>| {
            jobs.into_iter().map(|job| format!("{} {} {}", job.id, job.state.name(), job.why)).collect::<Vec<_>>()
        };
        (told(coverage.live), told(coverage.failed))
    };
    let none = Vec::<String>::new;
    // Older than the engine.
    commit(own("f0", "mine", JobState::Failed, 4_100)).await;
    assert_eq!(told("red", "mine.onnx").await, (none(), none()));
    commit([own("f1", "mine", JobState::Failed, 7_000), own("f2", "mine", JobState::Failed, 7_100)].concat()).await;
    commit([own("w1", "mine", JobState::Queued, 8_000), own("r1", "mine", JobState::Running, 8_100)].concat()).await;
    let (live, failed) = told("red", "mine.onnx").await;
    assert_eq!((live, failed), (vec!["r1 running compile".to_owned()], vec!["f2 failed f2 had no room".to_owned()]));
    assert_eq!(told("blue", "mine.onnx").await, (none(), none()), "another project's");
    let apart = store.coverage(of("red"), vec!["mine.onnx".into()], true).await.unwrap();
    assert_eq!((apart.live.len(), apart.failed.len()), (2, 3), "all of them where rows are told apart");
    let spec = serde_json::to_string(&planforge_types::BuildSpec::default()).unwrap();
    assert!(apart.live.iter().all(|job| job.spec_json == spec && job.constraint == "native"), "{apart:?}");
    assert!(apart.engines.iter().all(|engine| engine.spec_json == spec), "{apart:?}");

    // A model of which nothing but jobs is known.
    commit([own("q1", "only", JobState::Queued, 9_000), own("q2", "only", JobState::Queued, 9_001)].concat()).await;
    assert_eq!(names(store, "red").await, ["mine.onnx", "only.onnx"]);
    commit(own("q1", "only", JobState::Running, 9_000)).await;
    commit(own("q1", "only", JobState::Cancelled, 9_000)).await;
    assert_eq!((names(store, "red").await.len(), names(store, "").await.len()), (2, 2));
    commit(own("q2", "only", JobState::Failed, 9_001)).await;
    assert_eq!(told("", "only.onnx").await, (none(), vec!["q2 failed q2 had no room".to_owned()]));
    let mut gone = job("q2", JobState::Failed, 9_001);
    gone.model = job("only", JobState::Failed, 1).model;
    commit(vec![Change::ForgetJob(Box::new(gone))]).await;
    assert_eq!((names(store, "red").await, names(store, "").await.len()), (vec!["mine.onnx".to_owned()], 1));
}

async fn filters(store: &dyn Store, epoch: u64) {
    let commit = async |changes: Vec<Change>| store.commit(epoch, changes).await.unwrap();
    let mut changes = Vec::new();
    for number in 0..9 {
        let sku: Sku = ["t4", "a100-sxm4-40gb", "a100-pcie-80gb"][number % 3].parse().unwrap();
        let name = format!("many{number}");
        let mut engine = engine(&name, &format!("plan of {name}"), 100 + number as u64);
        engine.key = EngineKey::new(&engine.model.digest, &sku, &engine.toolchain, &engine.spec);
        engine.sku = sku;
        changes.push(Change::EngineProject { key: engine.key, project: "green".into() });
        changes.push(Change::Engine(Box::new(Engine { project: "green".into(), ..engine })));
    }
    commit(changes).await;
    let all = models(store, &of("green")).await;
    assert_eq!((all.names.len(), all.count, all.skus.join(" ").as_str()), (9, 9, "a100-pcie-80gb a100-sxm4-40gb t4"));
    let part = store.covered_models(of("green"), 7, 5).await.unwrap();
    assert_eq!((part.names.join(" ").as_str(), part.count), ("many7.onnx many8.onnx", 9));
    let with = |sku: Option<&str>, model: Option<&str>| CoverageFilter {
        sku: sku.map(str::to_owned),
        model: model.map(str::to_owned),
        ..of("green")
    };
    let prefix = Digest::of(b"many4").to_string()[..10].to_owned();
    for (filter, expected) in [
        (with(Some("t4"), None), "many0.onnx many3.onnx many6.onnx"),
        (with(Some("a100-*"), None), "many1.onnx many2.onnx many4.onnx many5.onnx many7.onnx many8.onnx"),
        (with(Some("a100"), None), ""),
        (with(None, Some("many4.onnx")), "many4.onnx"),
        (with(None, Some(&prefix)), "many4.onnx"),
        (with(Some("t4"), Some("many4.onnx")), ""),
        (with(None, Some("mine.onnx")), ""),
        (with(None, Some("it's")), ""),
    ] {
        let known = models(store, &filter).await;
        assert_eq!((known.names.join(" ").as_str(), known.count), (expected, known.names.len() as u64), "{filter:?}");
        let standing = store.coverage(filter.clone(), all.names.clone(), false).await.unwrap().engines;
        assert_eq!(standing.len(), known.names.len(), "{filter:?}");
        assert!(standing.is_sorted_by_key(|one| std::cmp::Reverse(one.created_ms)), "newest first: {standing:?}");
    }
    let asked = ["many1.onnx", "mine.onnx", "none"].map(str::to_owned).to_vec();
    let among = store.covered_among(of("green"), asked).await.unwrap();
    assert_eq!(among.into_iter().collect::<Vec<_>>(), ["many1.onnx"]);
}

/// A job whose model was prepared meanwhile stands for that from then on, and is kept as long as something is of it.
async fn prepared(store: &dyn Store, epoch: u64) {
    let commit = async |changes: Vec<Change>| store.commit(epoch, changes).await.unwrap();
    let digest = |text: &str| Digest::of(text.as_bytes());
    let waiting = asked("p1", "violet", ("raw", "raw.onnx"), JobState::Blocked, 20_000);
    commit(waiting.clone()).await;
    assert_eq!(names(store, "violet").await, ["raw.onnx"]);
    let Change::Job(job) = &waiting[1] else { panic!("{waiting:?}") };
    let made =
        planforge_coordinator::core::Model { name: "raw.int8.onnx".into(), ..self::job("int8", job.state, 1).model };
    let from = planforge_types::preparation::PreparedFrom {
        source: job.model.digest,
        source_name: "raw.onnx".into(),
        ask: planforge_types::preparation::PrepareAsk::default(),
        job: "p0".into(),
        document: Some(digest("document")),
        as_calibration: false,
    };
    let with = |state| {
        Change::Job(Arc::new(Job { state, model: made.clone(), from: Some(from.clone().into()), ..(**job).clone() }))
    };
    commit(vec![with(JobState::Queued)]).await;
    assert_eq!(names(store, "violet").await, ["raw.int8.onnx"]);
    let filter = planforge_coordinator::store::JobFilter {
        model: Some(made.digest.to_string()),
        limit: 9,
        ..Default::default()
    };
    assert_eq!(store.jobs(filter).await.unwrap().len(), 1, "it is found by what it is built from");
    // In one commit with its end.
    let Change::Job(skipped) = with(JobState::Skipped) else { panic!("a job") };
    commit(vec![Change::Job(Arc::new(Job { ended_ms: 20_001, ..(*skipped).clone() }))]).await;
    assert_eq!(names(store, "violet").await, [""; 0]);
    let record = planforge_coordinator::core::PreparationRecord {
        key: key("a way"),
        job: "p0".into(),
        made: planforge_coordinator::core::Made { model: made.clone(), document: digest("document") },
    };
    commit(vec![Change::Preparation(Box::new(record.clone()))]).await;
    let stored = async || store.stored(vec![key("a way")]).await.unwrap().remove(&key("a way")).unwrap().preparation;
    assert_eq!(stored().await, Some(record.clone()));
    let newer = planforge_coordinator::core::PreparationRecord { job: "p2".into(), ..record };
    commit(vec![Change::Preparation(Box::new(newer.clone()))]).await;
    assert_eq!(stored().await, Some(newer));
    let sees = async || store.may_see_blob("red", made.files[0].digest).await.unwrap();
    assert!(sees().await);
    let ended = |id: &str| Job { id: id.into(), ended_ms: 20_001, ..(**job).clone() };
    let builds = Job { model: made.clone(), from: Some(from.into()), state: JobState::Skipped, ..ended("p1") };
    commit(vec![Change::ForgetJob(Box::new(builds))]).await;
    assert!(sees().await, "what was prepared is kept for who asks for it again");
    let prepares = Job {
        made: Some(planforge_coordinator::core::Made { model: made.clone(), document: digest("document") }.into()),
        state: JobState::Succeeded,
        ..ended("p2")
    };
    commit(vec![Change::ForgetJob(Box::new(prepares))]).await;
    assert_eq!((stored().await, sees().await), (None, false));
}

#[tokio::test]
async fn memory_says_how_models_stand() {
    conforms(&MemStore::new()).await;
}

#[tokio::test]
async fn sqlite_says_how_models_stand() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("farm.db")).await.unwrap();
    conforms(&store).await;
    store.close().await.unwrap();
}

/// All that is said of how models stand.
pub(crate) async fn everything(store: &dyn Store) -> Vec<(CoveredModels, Coverage)> {
    let mut all = Vec::new();
    for project in ["", "red", "blue", "green"] {
        let known = models(store, &of(project)).await;
        for apart in [false, true] {
            let coverage = store.coverage(of(project), known.names.clone(), apart).await.unwrap();
            all.push((known.clone(), coverage));
        }
    }
    all
}

/// Takes everything away that a migration made: `script` is its file, `version` its number.
pub(crate) async fn undo(file: &Path, script: &str, version: i64) {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file);
    let mut connection = <sqlx::SqliteConnection as sqlx::Connection>::connect_with(&options).await.unwrap();
    let mut made: Vec<(&str, &str)> = Vec::new();
    for line in script.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["CREATE", "UNIQUE", "INDEX", name, ..] => made.push(("INDEX", name)),
            ["CREATE", kind, name, ..] => made.push((kind, name)),
            _ => {}
        }
    }
    assert!(made.len() >= 5, "{made:?}");
    for kind in ["TRIGGER", "VIEW", "INDEX", "TABLE"] {
        for (_, name) in made.iter().filter(|(of, _)| *of == kind) {
            let drop = format!("DROP {kind} {name}");
            sqlx::raw_sql(sqlx::AssertSqlSafe(drop)).execute(&mut connection).await.unwrap();
        }
    }
    sqlx::query("DELETE FROM schema_versions WHERE version = $1").bind(version).execute(&mut connection).await.unwrap();
    sqlx::Connection::close(connection).await.unwrap();
}

#[tokio::test]
async fn an_older_database_says_the_same_of_how_models_stand() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("farm.db");
    let store = SqliteStore::open(&file).await.unwrap();
    conforms(&store).await;
    let epoch = store.acquire("second", 2).await.unwrap();
    let last = [
        asked("k1", "red", ("kept", "kept.onnx"), JobState::Running, 10_000),
        built("kept", "first", (10_001, 20), "red"),
        built("kept", "second", (10_002, 21), "red"),
        vec![measured("second", DISTURBED, 10_003)],
        asked("k2", "blue", ("kept", "theirs.onnx"), JobState::Succeeded, 10_004),
        vec![Change::EngineProject { key: key("kept"), project: "blue".into() }],
        // A report for another device kind.
        vec![Change::Report(Box::new(Report {
            sku: "t4".parse().unwrap(),
            ..report("kept", "second", QUIET, 10_005, None)
        }))],
    ];
    store.commit(epoch, last.concat()).await.unwrap();
    let kept = everything(&store).await;
    assert!(kept.iter().all(|(known, _)| !known.names.is_empty()), "{kept:?}");
    store.close().await.unwrap();
    undo(&file, COVERAGE, 21).await;
    let store = SqliteStore::open(&file).await.unwrap();
    assert_eq!(everything(&store).await, kept);
    store.close().await.unwrap();
}
