//! Prepare jobs: a model is made once for all builds that want it, which wait for it and are of it then.

use crate::support::{
    SKU, actor,
    agent::{Agent, device, hello},
    blobs::MemBlobs,
    model, open, request, show, state, until_state,
};
use planforge_coordinator::{
    auth::{Actor, Proof},
    farm::Farm,
    store::{CoverageFilter, MemStore, SqliteStore, Store},
};
use planforge_proto::{
    ErrorCode,
    v1::{self, FailureClass, JobKind, JobState, coordinator_message::Kind},
};
use std::sync::Arc;

const OTHER_SKU: &str = "cpu-x86-64-v2";
const PREPARER: &str = r#"{"backend":"precision","version":"1"}"#;

fn host(id: &str, prepares: &[&str]) -> v1::Hello {
    let mut cpu = device("cpu0", OTHER_SKU, "native 1");
    cpu.skus.push(SKU.into());
    cpu.prepares_json = prepares.iter().map(|text| (*text).into()).collect();
    hello(id, vec![cpu])
}

async fn join(farm: &Farm, hello: v1::Hello) -> Agent {
    let mut agent = Agent::connect(farm, hello).await;
    assert!(matches!(agent.next().await, Some(Kind::Welcome(_))));
    agent
}

/// int8 on the data that is stored as `data`, for two kinds of device.
fn int8(blobs: &MemBlobs, name: &str, data: &str) -> v1::SubmitRequest {
    let data = blobs.insert(data.as_bytes());
    v1::SubmitRequest {
        skus: vec![SKU.into(), OTHER_SKU.into()],
        specs_json: vec![r#"{"precision":"int8"}"#.into()],
        prepares_json: vec![format!(r#"{{"precision":"int8","data":["{data}"]}}"#)],
        ..request(model(blobs, name))
    }
}

async fn submit(farm: &Farm, request: v1::SubmitRequest) -> Vec<v1::Job> {
    farm.submit(&Actor::local(), request).await.unwrap().jobs
}

async fn end(agent: &mut Agent, blobs: &MemBlobs, assign: &v1::Assign) {
    agent.succeed(blobs, assign).await;
    let ack = agent.acknowledged().await;
    assert!(ack.accepted, "{ack:?}");
}

fn made_of(job: &v1::Job) -> v1::Model {
    job.preparation.clone().and_then(|preparation| preparation.made).expect("a model was made")
}

async fn through(store: impl AsyncFn() -> Arc<dyn Store>) {
    let blobs = MemBlobs::default();
    let farm = open(store().await, &blobs).await;
    let mut agent = join(&farm, host("a", &[PREPARER])).await;
    let jobs = submit(&farm, int8(&blobs, "net.onnx", "rows")).await;
    let [prepare, builds @ ..] = &jobs[..] else { panic!("{jobs:?}") };
    assert_eq!((prepare.kind(), prepare.sku.as_str(), builds.len()), (JobKind::Prepare, "anywhere", 2));
    for build in builds {
        assert_eq!((state(build), &build.needs), (JobState::Blocked, &vec![prepare.id.clone()]));
        assert_eq!(build.engine_key, "", "what it is built from is not known yet");
        let from = build.preparation.clone().unwrap();
        assert_eq!((from.job, from.document_digest), (prepare.id.clone(), String::new()));
    }
    // What is prepared anywhere stands on no device kind, and hides nothing that does.
    let (all, actor) = (CoverageFilter::default(), Actor::local());
    let covered = farm.covered_models(&actor, &all, 0, 10).await.unwrap();
    assert_eq!((covered.names.len(), covered.skus), (1, vec![OTHER_SKU.to_owned(), SKU.to_owned()]));
    for apart in [false, true] {
        let coverage = farm.coverage(&actor, &all, covered.names.clone(), apart).await.unwrap();
        let mut live: Vec<&str> = coverage.live.iter().map(|job| job.sku.as_str()).collect();
        live.sort_unstable();
        assert_eq!(live, [OTHER_SKU, SKU], "apart: {apart}");
    }
    // Who asks for the same meanwhile waits for the same.
    let again = submit(&farm, int8(&blobs, "net.onnx", "rows")).await;
    assert_eq!((&again[0].id, state(&again[1])), (&prepare.id, JobState::Blocked));
    let assign = agent.assigned().await;
    let job = assign.job.clone().unwrap();
    assert_eq!((job.kind(), &job.id), (JobKind::Prepare, &prepare.id));
    assert!(job.preparation.as_ref().unwrap().ask_json.contains(r#""method":"mse""#), "{job:?}");
    // As a coordinator finds it that is started again meanwhile.
    drop(agent);
    farm.close().await;
    let farm = open(store().await, &blobs).await;
    let mut back = host("a", &[PREPARER]);
    back.leases.extend(assign.lease.clone());
    let mut agent = join(&farm, back).await;
    end(&mut agent, &blobs, &assign).await;
    let done = until_state(&farm, &prepare.id, JobState::Succeeded).await;
    let made = made_of(&done);
    for build in builds {
        let assign = agent.assigned().await;
        let job = assign.job.clone().unwrap();
        assert_eq!((job.kind(), job.model.as_ref().unwrap()), (JobKind::Build, &made));
        assert!(job.spec_json.contains(r#""precision":"fp32""#), "types are the model's own: {}", job.spec_json);
        let from = job.preparation.clone().unwrap();
        assert_eq!(from.document_digest, done.preparation.as_ref().unwrap().document_digest);
        assert_eq!(from.source_name, "net.onnx");
        end(&mut agent, &blobs, &assign).await;
        let told = until_state(&farm, &job.id, JobState::Succeeded).await;
        assert!(told.engine_key != done.engine_key && builds.iter().any(|one| one.id == told.id), "{build:?}");
    }
    for other in &again[1..] {
        let told = until_state(&farm, &other.id, JobState::Succeeded).await;
        assert!(told.cached, "the first request's engine answers");
    }
    // All of it is answered from then on; the prepared model as it is comes to the same engine.
    let later = submit(&farm, int8(&blobs, "net.onnx", "rows")).await;
    assert!(later.iter().all(|job| state(job) == JobState::Succeeded && job.cached), "{later:?}");
    let by_hand = submit(&farm, request(made.clone())).await.remove(0);
    assert!(by_hand.cached && by_hand.preparation.is_none());
    let asked = v1::ListEnginesRequest { model: made.name.clone(), ..v1::ListEnginesRequest::default() };
    let engines = farm.list_engines(&Actor::local(), asked).await.unwrap().engines;
    assert!(engines.len() == 2 && engines.iter().all(|engine| engine.preparation.is_some()), "{engines:?}");
    // The builds are found under the name of what they are built from.
    let named = v1::ListJobsRequest { model: made.name, ..v1::ListJobsRequest::default() };
    let found = farm.list_jobs(&Actor::local(), named).await.unwrap().jobs;
    assert!(builds.iter().all(|build| found.iter().any(|job| job.id == build.id)), "{found:?}");
}

#[tokio::test]
async fn one_preparation_serves_every_build_of_it_in_memory() {
    let store: Arc<dyn Store> = Arc::new(MemStore::new());
    through(async || store.clone()).await;
}

#[tokio::test]
async fn one_preparation_serves_every_build_of_it_in_a_database() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("farm.db");
    through(async || Arc::new(SqliteStore::open(&file).await.unwrap()) as Arc<dyn Store>).await;
}

async fn three_ways(store: impl AsyncFn() -> Arc<dyn Store>) {
    let blobs = MemBlobs::default();
    let farm = open(store().await, &blobs).await;
    let mut agent = join(&farm, host("a", &[PREPARER])).await;
    let plain = int8(&blobs, "net.onnx", "rows");
    let (spec, ask) = (plain.specs_json[0].clone(), plain.prepares_json[0].clone());
    let source = plain.models[0].clone();
    let ways = v1::SubmitRequest {
        skus: vec![SKU.into()],
        specs_json: vec![spec.clone(), spec.clone(), spec],
        prepares_json: vec![String::new(), ask.clone(), ask],
        calibrates: vec![1],
        ..plain
    };
    let jobs = submit(&farm, ways.clone()).await;
    let [prepare, plain, calibrated, prepared] = &jobs[..] else { panic!("{jobs:?}") };
    assert_eq!((prepare.kind(), state(plain), plain.preparation.is_none()), (JobKind::Prepare, JobState::Queued, true));
    let ways_of = [calibrated, prepared].map(|job| {
        let from = job.preparation.clone().unwrap();
        (state(job), from.as_calibration, from.job == prepare.id)
    });
    assert_eq!(
        ways_of,
        [(JobState::Blocked, true, true), (JobState::Blocked, false, true)],
        "one preparation for both"
    );
    let (mut ended, mut assign) = (Vec::new(), agent.assigned().await);
    // As a coordinator finds them that is started again while they wait.
    drop(agent);
    farm.close().await;
    let farm = open(store().await, &blobs).await;
    let mut back = host("a", &[PREPARER]);
    back.leases.extend(assign.lease.clone());
    let mut agent = join(&farm, back).await;
    loop {
        ended.push(assign.job.clone().unwrap());
        end(&mut agent, &blobs, &assign).await;
        if ended.len() == jobs.len() {
            break;
        }
        assign = agent.assigned().await;
    }
    let done = until_state(&farm, &prepare.id, JobState::Succeeded).await.preparation.unwrap();
    let given = |id: &str| ended.iter().find(|job| job.id == id).cloned().unwrap();
    let (plain, calibrated, prepared) = (given(&plain.id), given(&calibrated.id), given(&prepared.id));
    let calibration = format!(r#""calibration":"{}""#, done.document_digest);
    assert_eq!((calibrated.model.as_ref(), plain.model.as_ref()), (Some(&source), Some(&source)));
    assert!(calibrated.spec_json.contains(&calibration) && calibrated.spec_json.contains(r#""precision":"int8""#));
    assert_eq!(prepared.model, done.made);
    assert!([&plain, &prepared].iter().all(|job| !job.spec_json.contains(&calibration)), "{plain:?} {prepared:?}");
    let mut keys: Vec<&str> = [&plain, &calibrated, &prepared].map(|job| job.engine_key.as_str()).to_vec();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 3, "three engines");
    // Answered from then on; what calibrated an engine can be given by hand.
    let later = submit(&farm, ways.clone()).await;
    assert!(later.iter().all(|job| state(job) == JobState::Succeeded && job.cached), "{later:?}");
    let by_hand = v1::SubmitRequest {
        skus: vec![SKU.into()],
        specs_json: vec![format!(r#"{{"precision":"int8",{calibration}}}"#)],
        ..request(source)
    };
    assert!(submit(&farm, by_hand).await.remove(0).cached);
    let mut for_processors: serde_json::Value = serde_json::from_str(&ways.prepares_json[1]).unwrap();
    for_processors["target"] = "cpu".into();
    let for_processors = for_processors.to_string();
    for (calibrates, ask, word) in [
        (vec![0], ways.prepares_json[1].as_str(), "names none"),
        (vec![7], ways.prepares_json[1].as_str(), "names none"),
        (vec![1], r#"{"precision":"fp16"}"#, "fp16 finds no ranges"),
        (vec![1], for_processors.as_str(), "for cpu finds no ranges"),
    ] {
        let prepares_json = vec![String::new(), ask.to_owned()];
        let error = farm.submit(&Actor::local(), v1::SubmitRequest { calibrates, prepares_json, ..ways.clone() }).await;
        let error = error.unwrap_err();
        assert!(error.code == ErrorCode::InvalidArgument && error.message.contains(word), "{error}");
    }
}

#[tokio::test]
async fn one_preparation_serves_three_ways_to_int8_in_memory() {
    let store: Arc<dyn Store> = Arc::new(MemStore::new());
    three_ways(async || store.clone()).await;
}

#[tokio::test]
async fn one_preparation_serves_three_ways_to_int8_in_a_database() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("farm.db");
    three_ways(async || Arc::new(SqliteStore::open(&file).await.unwrap()) as Arc<dyn Store>).await;
}

#[tokio::test]
async fn a_failure_is_told_to_all_that_wait_remembered_and_tried_again_by_one_job() {
    let blobs = MemBlobs::default();
    let farm = open(Arc::new(MemStore::new()), &blobs).await;
    let mut agent = join(&farm, host("a", &[PREPARER])).await;
    let jobs = submit(&farm, int8(&blobs, "net.onnx", "rows")).await;
    let assign = agent.assigned().await;
    agent.fail(&assign, FailureClass::Infrastructure, "the host fell over").await;
    agent.acknowledged().await;
    let assign = agent.assigned().await;
    assert_eq!(assign.lease.as_ref().unwrap().attempt, 2, "that is tried again");
    agent.fail(&assign, FailureClass::Model, "array 'x' is 0 everywhere").await;
    agent.acknowledged().await;
    for build in &jobs[1..] {
        let told = until_state(&farm, &build.id, JobState::Skipped).await;
        let failure = told.failure.unwrap();
        assert!(failure.message.contains("is 0 everywhere") && failure.class() == FailureClass::Model, "{failure:?}");
        assert!(failure.message.contains(&jobs[0].id), "{failure:?}");
    }
    // Known from then on, and nothing waits for it.
    let known = submit(&farm, int8(&blobs, "net.onnx", "rows")).await;
    assert_eq!(known.iter().map(state).collect::<Vec<_>>(), [JobState::Failed, JobState::Skipped, JobState::Skipped]);
    assert!(known[0].failure.as_ref().unwrap().message.contains("tried this already"), "{:?}", known[0]);
    // Tried again: by one job, which the builds need and that is taken for what they want.
    let asked = int8(&blobs, "net.onnx", "rows");
    let alone = v1::SubmitRequest {
        kind: JobKind::Prepare.into(),
        skus: Vec::new(),
        specs_json: Vec::new(),
        force: true,
        ..asked.clone()
    };
    let retried = submit(&farm, alone).await;
    assert_eq!((retried.len(), retried[0].kind()), (1, JobKind::Prepare));
    let needs = vec![retried[0].id.clone()];
    let builds = submit(&farm, v1::SubmitRequest { needs, force: true, ..asked }).await;
    assert_eq!(builds.len(), 2, "no second preparation: {builds:?}");
    let assign = agent.assigned().await;
    assert_eq!(assign.job.as_ref().unwrap().id, retried[0].id);
    end(&mut agent, &blobs, &assign).await;
    let made = made_of(&until_state(&farm, &retried[0].id, JobState::Succeeded).await);
    let assign = agent.assigned().await;
    assert_eq!(assign.job.as_ref().unwrap().model, Some(made.clone()));
    agent.fail(&assign, FailureClass::Resource, "no room").await;
    agent.acknowledged().await;
    // As `retry` asks for a build whose model is there: it is said where that comes from.
    let needs = vec![retried[0].id.clone()];
    let last = v1::SubmitRequest { needs, force: true, ..request(made) };
    let last = submit(&farm, last).await.remove(0);
    assert_eq!(last.preparation.unwrap().source_name, "net.onnx");
    // What is given up with the preparation is given up.
    let jobs = submit(&farm, int8(&blobs, "net.onnx", "other rows")).await;
    let cancel = v1::CancelJobsRequest { ids: vec![jobs[0].id.clone()], ..v1::CancelJobsRequest::default() };
    farm.cancel_jobs(&Actor::local(), cancel).await.unwrap();
    assert!(until_state(&farm, &jobs[1].id, JobState::Skipped).await.failure.is_some());
}

#[tokio::test]
async fn what_cannot_be_prepared_is_refused_in_words() {
    let blobs = MemBlobs::default();
    let farm = open(Arc::new(MemStore::new()), &blobs).await;
    let _old = join(&farm, host("old", &[])).await;
    let error = farm.submit(&Actor::local(), int8(&blobs, "net.onnx", "rows")).await.unwrap_err();
    assert!(error.code == ErrorCode::Refused && error.message.contains("prepares models"), "{error}");
    assert!(error.hint.contains("planforge prepare"), "{error}");
    let waits = v1::SubmitRequest { wait_for_device: true, ..int8(&blobs, "net.onnx", "rows") };
    let jobs = submit(&farm, waits).await;
    assert_eq!((state(&jobs[0]), state(&jobs[1])), (JobState::Unplaceable, JobState::Blocked));
    let good = int8(&blobs, "net.onnx", "rows");
    let way = |text: &str| v1::SubmitRequest { prepares_json: vec![text.into()], ..good.clone() };
    let bad = [
        ("needs calibration data", way(r#"{"precision":"int8"}"#)),
        ("precison", way(r#"{"precison":"int8"}"#)),
        ("has no bf16", way(r#"{"precision":"bf16","target":"onnxruntime"}"#)),
        ("needs data", way(r#"{"precision":"fp16","budget":{"output_error":0.1}}"#)),
        ("2 ways", v1::SubmitRequest { prepares_json: vec![String::new(); 2], ..good.clone() }),
        (
            "does not say how",
            v1::SubmitRequest {
                kind: JobKind::Prepare.into(),
                skus: Vec::new(),
                prepares_json: Vec::new(),
                ..good.clone()
            },
        ),
    ];
    for (words, bad) in bad {
        let error = farm.submit(&Actor::local(), bad).await.expect_err(words);
        assert!(error.code == ErrorCode::InvalidArgument && error.message.contains(words), "{words}: {error}");
    }
    // One comes that can: what waited for it goes on, and a success without a model is none.
    let mut new = join(&farm, host("new", &[PREPARER])).await;
    let assign = new.assigned().await;
    assert_eq!(assign.job.as_ref().unwrap().id, jobs[0].id);
    let nothing = v1::Finished { lease: assign.lease.clone(), outcome: "succeeded".into(), ..v1::Finished::default() };
    new.say(v1::agent_message::Kind::Finished(nothing)).await;
    new.acknowledged().await;
    assert_eq!(new.assigned().await.lease.unwrap().attempt, 2);
    // What a dry run says of it.
    let dry = farm.dry_run(&Actor::local(), int8(&blobs, "other.onnx", "rows")).await.unwrap();
    let would: Vec<&str> = dry.combinations.iter().map(|one| one.would.as_str()).collect();
    assert_eq!(would, ["prepare", "block", "block"], "{dry:?}");
}

#[tokio::test]
async fn a_spec_without_preparation_keeps_its_key_and_others_stay_out_of_a_projects_data() {
    let blobs = MemBlobs::default();
    let farm = open(Arc::new(MemStore::new()), &blobs).await;
    let mut agent = join(&farm, host("a", &[PREPARER])).await;
    let (red, blue) = (actor("r", "submit", Some("red")), actor("b", "submit", Some("blue")));
    let asked = v1::SubmitRequest { skus: vec![SKU.into()], ..int8(&blobs, "net.onnx", "rows") };
    let rows = planforge_types::Digest::of(b"rows");
    // Data has to be shown like a model, by whoever names it.
    show(&farm, &red, &asked.models[0]).await;
    let reply = farm.submit(&red, asked.clone()).await.unwrap();
    assert_eq!(reply.missing_blobs, [rows.to_string()]);
    farm.hold_blob(&red, rows, 4).await.unwrap();
    let jobs = farm.submit(&red, asked.clone()).await.unwrap().jobs;
    for _ in 0..2 {
        let assign = agent.assigned().await;
        end(&mut agent, &blobs, &assign).await;
    }
    let built = until_state(&farm, &jobs[1].id, JobState::Succeeded).await;
    let made = built.model.clone().unwrap();
    show(&farm, &blue, &asked.models[0]).await;
    let reply = farm.submit(&blue, asked.clone()).await.unwrap();
    assert_eq!(reply.missing_blobs, [rows.to_string()], "nothing is answered to who has not shown the data");
    assert!(!farm.may_read_blob(&blue, Proof::Owner, rows).await.unwrap());
    let file = made.files[0].digest.parse().unwrap();
    assert!(
        farm.may_read_blob(&red, Proof::Owner, file).await.unwrap()
            && !farm.may_read_blob(&blue, Proof::Owner, file).await.unwrap()
    );
    // Who has the prepared model by other means is told the engine, and nothing of where red's comes from.
    show(&farm, &blue, &made).await;
    let same = v1::SubmitRequest { skus: vec![SKU.into()], ..request(made.clone()) };
    let own = farm.submit(&blue, same).await.unwrap().jobs.remove(0);
    assert!(own.cached && own.preparation.is_none(), "{own:?}");
    let find = |project: &str| v1::FindEngineRequest {
        plan_digest: built.plan_digest.clone(),
        project: project.into(),
        ..Default::default()
    };
    assert!(farm.find_engine(&blue, find("blue")).await.unwrap().preparation.is_none());
    let told = farm.find_engine(&red, find("red")).await.unwrap().preparation.unwrap();
    assert_eq!((told.source_name.as_str(), told.job), ("net.onnx", jobs[0].id.clone()));
    // With the data shown, blue has the model that red's job made.
    farm.hold_blob(&blue, rows, 4).await.unwrap();
    let jobs = farm.submit(&blue, asked).await.unwrap().jobs;
    assert!(jobs.iter().all(|job| job.cached), "{jobs:?}");
    assert!(farm.may_read_blob(&blue, Proof::Owner, file).await.unwrap());
}
