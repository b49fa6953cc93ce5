//! Taking away what nobody needs: what goes, what stays, and a kill between any two steps.

use planforge_coordinator::{
    auth::{Actor, Role},
    blobs::{BlobStore as _, LocalBlobs, LocalBlobsOptions},
    core::{CacheBeside, CacheRecord, CacheRef, Change},
    farm::{Farm, FarmConfig, SystemClock},
    server::{Coordinator, CoordinatorConfig},
    store::{EngineFilter, EventFilter, JobFilter, SqliteStore, Store as _},
};
use planforge_grown::{Size, grow};
use planforge_proto::v1;
use planforge_retention::Policy;
use planforge_types::{Digest, Toolchain};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

const SIZE: Size = Size { waiting: 20, finished: 300, plan_bytes: Some(64) };
const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// Files are made a moment before they are looked at: nothing is too young to go.
fn policy() -> Policy {
    Policy { grace_ms: 0, room_bytes: None, ..Policy::default() }
}

async fn open(folder: &Path) -> (Farm, LocalBlobs) {
    let store = SqliteStore::open(&folder.join("farm.db")).await.expect("the database opens");
    let blobs = LocalBlobs::open(folder.join("blobs"), LocalBlobsOptions::default()).expect("the blobs open");
    let clock = Arc::new(SystemClock::new());
    let farm = Farm::open(Arc::new(store), Arc::new(blobs.clone()), FarmConfig::default(), clock);
    (farm.await.expect("the farm opens"), blobs)
}

async fn on_disk(blobs: &LocalBlobs) -> BTreeSet<Digest> {
    let later = SystemTime::now() + Duration::from_secs(60);
    let mut found = BTreeSet::new();
    for folder in 0..=u8::MAX {
        found.extend(blobs.old_blobs(folder, later).await.unwrap().into_iter().map(|(digest, _)| digest));
    }
    found
}

/// What a farm has: ids of jobs, plans, blobs.
type Held = (BTreeSet<String>, BTreeSet<Digest>, BTreeSet<Digest>);

/// What is left, with everything that what is left names.
async fn held(folder: &Path) -> Held {
    let store = SqliteStore::open(&folder.join("farm.db")).await.unwrap();
    let blobs = LocalBlobs::open(folder.join("blobs"), LocalBlobsOptions::default()).unwrap();
    let disk = on_disk(&blobs).await;
    let jobs = store.jobs(JobFilter { limit: usize::MAX, ..JobFilter::default() }).await.unwrap();
    let engines = store.engines(EngineFilter { limit: usize::MAX, ..EngineFilter::default() }).await.unwrap();
    for engine in &engines {
        assert!(disk.contains(&engine.plan.digest), "the plan of {} is gone", engine.key);
        assert!(
            engine.model.files.iter().all(|file| disk.contains(&file.digest)),
            "the model of {} is gone",
            engine.key
        );
    }
    for job in &jobs {
        assert!(job.model.files.iter().all(|file| disk.contains(&file.digest)), "the model of {} is gone", job.id);
    }
    let count = |count: planforge_coordinator::store::Count| count.count as usize;
    assert_eq!(count(store.count_jobs(JobFilter::default()).await.unwrap()), jobs.len());
    assert_eq!(count(store.count_engines(EngineFilter::default()).await.unwrap()), engines.len());
    store.close().await.unwrap();
    let ids = jobs.iter().map(|job| job.id.to_string()).collect();
    (ids, engines.iter().map(|engine| engine.plan.digest).collect(), disk)
}

async fn collect(farm: &Farm, policy: Policy) -> v1::CollectGarbageReply {
    let mut collection = farm.collection(policy, false).await.unwrap();
    while collection.step().await.unwrap() {}
    collection.told().clone()
}

#[tokio::test]
async fn what_is_old_goes_with_all_that_is_only_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let begun_ms = now_ms();
    grow(folder.path(), SIZE, begun_ms, |_| ()).await.unwrap();
    let before = held(folder.path()).await;
    let (farm, blobs) = open(folder.path()).await;
    let mut dry = farm.collection(policy(), true).await.unwrap();
    while dry.step().await.unwrap() {}
    let told = dry.told().clone();
    assert!(told.jobs > 200 && told.engines > 100, "{told:?}");
    assert_eq!(held(folder.path()).await, before, "a dry run takes nothing");
    // One of the oldest is fetched: it stays.
    let store = SqliteStore::open(&folder.path().join("farm.db")).await.unwrap();
    let oldest = store.builds_unused_since(u64::MAX >> 1, None, 200, begun_ms).await.unwrap();
    let used = oldest.iter().find(|build| build.superseded_ms.is_none()).unwrap().name;
    let request = v1::FindEngineRequest { engine_key: used.0.to_string(), ..Default::default() };
    farm.find_engine(&Actor::local(), request).await.unwrap();
    let begin = std::time::Instant::now();
    loop {
        let unused = store.builds_unused_since(begun_ms, None, usize::MAX >> 1, begun_ms).await.unwrap();
        if !unused.iter().any(|build| build.name == used) {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "its use is not written down");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let collected = collect(&farm, policy()).await;
    assert_eq!((collected.jobs, collected.engines), (told.jobs, told.engines - 1));
    assert!(collected.blobs > 100 && collected.gone.iter().all(|gone| ["superseded", "unused"].contains(&&*gone.why)));
    let (jobs, plans, disk) = held(folder.path()).await;
    assert!(plans.contains(&used.1) && disk.contains(&used.1));
    let kept =
        farm.list_jobs(&Actor::local(), v1::ListJobsRequest { limit: 1_000, ..Default::default() }).await.unwrap();
    assert_eq!(kept.jobs.len(), jobs.len());
    let fresh = |job: &v1::Job| job.ended_ms == 0 || job.ended_ms + 91 * DAY_MS > begun_ms;
    assert!(kept.jobs.iter().all(fresh) && kept.jobs.iter().filter(|job| job.ended_ms == 0).count() == 20);
    assert_eq!(store.unnamed_blobs(disk.iter().copied().collect()).await.unwrap(), []);
    assert!(disk.len() < before.2.len());
    // Nothing more goes, and what is gone is built again like any other.
    let again = collect(&farm, policy()).await;
    assert_eq!((again.jobs, again.engines, again.blobs), (0, 0, 0));
    assert!(blobs.size(used.1).await.unwrap().is_some());
    farm.close().await;
}

#[tokio::test]
async fn a_farm_that_is_killed_between_two_steps_loses_nothing_and_ends_the_same() {
    let template = tempfile::tempdir().unwrap();
    let small = Size { finished: 150, ..SIZE };
    grow(template.path(), small, now_ms(), |_| ()).await.unwrap();
    let mut ends: Option<Held> = None;
    let mut killed_at = 0;
    loop {
        let folder = tempfile::tempdir().unwrap();
        copy(template.path(), folder.path());
        let (farm, _) = open(folder.path()).await;
        let mut collection = farm.collection(policy(), false).await.unwrap();
        let mut goes_on = true;
        for _ in 0..killed_at {
            goes_on = collection.step().await.unwrap();
        }
        // Killed: whatever leads next fences it.
        drop(collection);
        held(folder.path()).await;
        let (next, _) = open(folder.path()).await;
        collect(&next, policy()).await;
        let end = held(folder.path()).await;
        assert_eq!(ends.get_or_insert_with(|| end.clone()), &end, "killed after {killed_at} steps");
        next.close().await;
        farm.close().await;
        if !goes_on {
            return;
        }
        // Every step that takes rows, then some of those that take bytes.
        killed_at += if killed_at < 8 { 1 } else { 60 };
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[tokio::test]
async fn what_a_waiting_job_needs_and_what_is_announced_again_lives() {
    let folder = tempfile::tempdir().unwrap();
    grow(folder.path(), SIZE, now_ms(), |_| ()).await.unwrap();
    let (farm, blobs) = open(folder.path()).await;
    let request = v1::ListEnginesRequest { sku: "t4".into(), limit: 100, ..Default::default() };
    let engines = farm.list_engines(&Actor::local(), request).await.unwrap().engines;
    let (measured, oldest) = (&engines[engines.len() - 1], &engines[engines.len() - 2]);
    // A job that waits to measure a plan keeps it, however old.
    let bench = v1::SubmitRequest {
        kind: v1::JobKind::Benchmark.into(),
        plan_digest: measured.plan_digest.clone(),
        skus: vec!["t4".into()],
        ..Default::default()
    };
    assert_eq!(farm.submit(&Actor::local(), bench).await.unwrap().jobs[0].state(), v1::JobState::Queued);
    let mut collection = farm.collection(policy(), false).await.unwrap();
    while !collection.told().gone.iter().any(|gone| gone.plan_digest == oldest.plan_digest) {
        assert!(collection.step().await.unwrap());
    }
    // Between its row and its bytes: somebody asks for the same engine again, and it is built, not answered.
    let again = v1::SubmitRequest {
        models: vec![oldest.model.clone().unwrap()],
        skus: vec!["t4".into()],
        specs_json: vec![oldest.spec_json.clone()],
        ..Default::default()
    };
    let reply = farm.submit(&Actor::local(), again).await.unwrap();
    let job = match reply.jobs.first() {
        Some(job) => job.clone(),
        None => panic!("its model was announced and is gone: {:?}", reply.missing_blobs),
    };
    assert!(!job.cached);
    while collection.step().await.unwrap() {}
    for file in &job.model.unwrap().files {
        assert!(blobs.find(file.digest.parse().unwrap()).await.unwrap().is_some(), "a live job's model");
    }
    assert!(
        blobs.find(measured.plan_digest.parse().unwrap()).await.unwrap().is_some(),
        "a plan that is to be measured"
    );
    farm.close().await;
}

#[tokio::test]
async fn what_was_sent_and_given_goes_when_no_job_names_it_and_events_by_their_age() {
    let folder = tempfile::tempdir().unwrap();
    grow(folder.path(), Size { finished: 340, ..SIZE }, now_ms(), |_| ()).await.unwrap();
    let (farm, blobs) = open(folder.path()).await;
    let actor = Actor::named("ci", Role::Submit, Some("red".into()));
    let send = async |text: &str| {
        let digest = blobs.store(text.to_owned().into()).await.unwrap();
        farm.hold_blob(&actor, digest, text.len() as u64).await.unwrap();
        digest
    };
    let (never, given, model) = (send("never named").await, send("inputs").await, send("model").await);
    for number in 0..80 {
        send(&format!("never named {number}")).await;
    }
    let file = v1::ModelFile { name: "m.onnx".into(), digest: model.to_string(), size_bytes: 5 };
    let request = v1::SubmitRequest {
        models: vec![v1::Model {
            digest: model.to_string(),
            name: "m.onnx".into(),
            files: vec![file],
            ..Default::default()
        }],
        skus: vec!["t4".into()],
        measure: Some(v1::MeasureAsk { inputs_digest: given.to_string(), ..Default::default() }),
        wait_for_device: true,
        ..Default::default()
    };
    let reply = farm.submit(&actor, request).await.unwrap();
    let id = reply.jobs[0].id.clone();
    let ages = Policy { events_ms: Some(0), uploads_ms: Some(0), jobs_ms: Some(0), ..policy() };
    let there = async |digest| blobs.find(digest).await.unwrap().is_some();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let mut dry = farm.collection(ages.clone(), true).await.unwrap();
    while dry.step().await.unwrap() {}
    let foreseen = dry.told().clone();
    let told = collect(&farm, ages.clone()).await;
    // More of each than one transaction takes; events go with their jobs, too.
    assert!(foreseen.files == told.files && foreseen.events > 1_000, "{foreseen:?}");
    // Those of the jobs that wait; the rest went with theirs.
    assert!(told.events >= 20 && told.files == 81, "{told:?}");
    assert!(!there(never).await && there(given).await && there(model).await, "a live job names both");
    assert_eq!(farm.get_job(&Actor::local(), &id).await.unwrap().state(), v1::JobState::Queued);

    let cancel = v1::CancelJobsRequest { ids: vec![id.clone()], ..Default::default() };
    farm.cancel_jobs(&actor, cancel).await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let told = collect(&farm, ages.clone()).await;
    assert_eq!((told.jobs, told.files), (1, 1), "{told:?}");
    assert!(!there(given).await && !there(model).await);
    farm.close().await;

    // Every event is gone but the newest: numbers go on behind it after a restart.
    let store = SqliteStore::open(&folder.path().join("farm.db")).await.unwrap();
    let events = store.events(EventFilter { limit: 10, ..EventFilter::default() }).await.unwrap();
    let [newest] = &events[..] else { panic!("{events:?}") };
    assert_eq!(store.load().await.unwrap().last_event, newest.seq);
    assert!(newest.seq > 300);
}

#[tokio::test]
async fn of_a_scopes_timing_caches_the_newest_the_one_before_it_and_those_beside_stay() {
    let folder = tempfile::tempdir().unwrap();
    let (farm, blobs) = open(folder.path()).await;
    farm.close().await;
    let mut caches = Vec::new();
    for generation in 1..=4 {
        caches.push(blobs.store(format!("cache {generation}").into()).await.unwrap());
    }
    let store = SqliteStore::open(&folder.path().join("farm.db")).await.unwrap();
    let epoch = store.acquire("test", 1).await.unwrap();
    let record = CacheRecord {
        scope: Digest::of(b"scope"),
        sku: "t4".parse().unwrap(),
        device_name: "T4".into(),
        toolchain: Toolchain { backend: "native".into(), version: "1".into(), components: BTreeMap::new() },
        generation: 3,
        cache: Some(CacheRef { digest: caches[2], size_bytes: 7 }),
        previous: Some(caches[1]),
        job: "aa1".into(),
        attempt: 1,
        agent: "host".into(),
        device: "gpu0".into(),
        published_ms: 1,
        beside: vec![CacheBeside {
            cache: CacheRef { digest: caches[3], size_bytes: 7 },
            job: "aa2".into(),
            agent: "host".into(),
        }],
    };
    store.commit(epoch, vec![Change::Cache(Box::new(record))]).await.unwrap();
    store.close().await.unwrap();
    let (farm, blobs) = open(folder.path()).await;
    let told = collect(&farm, policy()).await;
    assert_eq!((told.blobs, on_disk(&blobs).await), (1, caches[1..].iter().copied().collect()));
    farm.close().await;
}

/// As `build` does it: a coordinator that lives for one command tidies before it ends, once a day.
#[tokio::test]
async fn a_farm_that_lives_for_one_command_is_tidied_once_a_day() {
    let folder = tempfile::tempdir().unwrap();
    grow(folder.path(), SIZE, now_ms(), |_| ()).await.unwrap();
    let mark = folder.path().join("tidied");
    let one_command = async || {
        let mut config = CoordinatorConfig::new(folder.path());
        config.unix_socket = Some(folder.path().join("s"));
        let coordinator = Coordinator::start(config).await.unwrap();
        coordinator.tidy_if_due(Duration::from_secs(60)).await;
        let request = v1::ListJobsRequest { limit: 1, with_total: true, ..Default::default() };
        let jobs = coordinator.farm().list_jobs(&Actor::local(), request).await.unwrap().total;
        coordinator.shutdown().await;
        (jobs, std::fs::read_to_string(&mark).unwrap().parse::<u64>().unwrap())
    };
    let (jobs, first_ms) = one_command().await;
    assert!(jobs < 320, "old jobs are gone: {jobs}");
    assert_eq!(one_command().await, (jobs, first_ms), "it was done today");
    let yesterday_ms = first_ms - DAY_MS - 1;
    for stale in [yesterday_ms.to_string(), (first_ms + 10 * DAY_MS).to_string(), "torn".to_owned()] {
        std::fs::write(&mark, &stale).unwrap();
        let (_, again_ms) = one_command().await;
        assert!(again_ms >= first_ms && again_ms < first_ms + DAY_MS, "{stale}");
    }
}
