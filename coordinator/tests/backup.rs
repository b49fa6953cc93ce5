//! Backups of a farm at work, and farms made of them.

#[path = "served/mod.rs"]
mod served;
#[path = "it/support/mod.rs"]
mod support;

use futures::TryStreamExt as _;
use planforge_backup::{BackupError, How, backup, check, restore};
use planforge_coordinator::{
    auth::Actor,
    blobs::Blobs,
    core::{CacheBeside, CacheRecord, CacheRef, Change},
    farm::Farm,
    server::{Coordinator, CoordinatorConfig},
    store::{SqliteStore, Store as _},
};
use planforge_proto::v1::{self, agent_message::Kind as Say, coordinator_message::Kind};
use planforge_types::{Digest, Toolchain};
use served::Served;
use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
};
use support::{SKU, agent, agent::Agent, blobs::MemBlobs, until};
use tokio_util::sync::CancellationToken;

/// What callers and agents were told: jobs by id, with the plan of those that ended.
type Told = Arc<Mutex<BTreeMap<String, Option<Digest>>>>;

/// Stores models and submits them until `stop`.
async fn submit(farm: Farm, blobs: Blobs, name: String, told: Told, stop: CancellationToken) {
    let mut number = 0;
    while !stop.is_cancelled() {
        number += 1;
        let bytes = format!("{name} {number}").into_bytes();
        let digest = blobs.store(bytes.clone().into()).await.unwrap().to_string();
        let file = v1::ModelFile { name: name.clone(), digest: digest.clone(), size_bytes: bytes.len() as u64 };
        let model = v1::Model { digest, name: name.clone(), files: vec![file], ..v1::Model::default() };
        let reply = farm.submit(&Actor::local(), support::request(model)).await.unwrap();
        told.lock().unwrap().entry(reply.jobs[0].id.clone()).or_insert(None);
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// Builds whatever it is given until `stop`.
async fn build(farm: Farm, blobs: Blobs, id: String, told: Told, stop: CancellationToken) {
    let mut agent = Agent::usual(&farm, &id).await;
    loop {
        let heard = tokio::select! {
            () = stop.cancelled() => return,
            heard = agent.next() => heard.expect("the session goes on"),
        };
        let Kind::Assign(assign) = heard else { continue };
        let made = MemBlobs::default();
        let success = agent::success(&made, &assign);
        for digest in [&success.plan_digest, &success.card_digest, &success.report_digest, &success.log_digest] {
            blobs.store(made.get(digest.parse().unwrap()).unwrap()).await.unwrap();
        }
        let plan = success.plan_digest.parse().unwrap();
        agent.say(Say::Finished(success)).await;
        assert!(agent.acknowledged().await.accepted);
        told.lock().unwrap().insert(assign.lease.unwrap().job, Some(plan));
    }
}

async fn start(data: &Path) -> Coordinator {
    let mut config = CoordinatorConfig::new(data);
    config.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    Coordinator::start(config).await.unwrap()
}

/// Everything that was told is in the farm, and what it built can be read.
async fn has_all(data: &Path, told: &BTreeMap<String, Option<Digest>>) {
    let coordinator = start(data).await;
    for (id, plan) in told {
        let job = coordinator.farm().get_job(&Actor::local(), id).await.unwrap();
        let Some(plan) = plan else { continue };
        assert_eq!((job.state(), &job.plan_digest), (v1::JobState::Succeeded, &plan.to_string()), "{id}");
        let find = v1::FindEngineRequest { plan_digest: job.plan_digest.clone(), ..Default::default() };
        coordinator.farm().find_engine(&Actor::local(), find).await.unwrap();
        let blobs = coordinator.blobs();
        let size = blobs.find(*plan).await.unwrap().expect("the plan is there");
        let pieces: Vec<bytes::Bytes> = blobs.open_range(*plan, 0..size).await.unwrap().try_collect().await.unwrap();
        assert_eq!(Digest::of(&pieces.concat()), *plan);
    }
    coordinator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_backup_of_a_farm_at_work_has_all_that_was_acknowledged_before() {
    let served = Served::start().await;
    let (farm, blobs) = (served.coordinator.farm().clone(), served.coordinator.blobs().clone());
    let (told, stop) = (Told::default(), CancellationToken::new());
    let mut work = Vec::new();
    for number in 0..3 {
        let given = (farm.clone(), blobs.clone(), format!("m{number}"), told.clone(), stop.clone());
        work.push(tokio::spawn(submit(given.0, given.1, given.2, given.3, given.4)));
        let given = (farm.clone(), blobs.clone(), format!("agent{number}"), told.clone(), stop.clone());
        work.push(tokio::spawn(build(given.0, given.1, given.2, given.3, given.4)));
    }
    let data = served.folder.path().join("data");
    let ended = |told: &Told| told.lock().unwrap().values().flatten().count();
    for (round, how) in [How::Copy, How::Link, How::Copy].into_iter().enumerate() {
        let (before, so_far) = (ended(&told), || async { Some(ended(&told)) });
        until("more jobs to end", || async { so_far().await.filter(|count| *count >= before + 20) }).await;
        let acknowledged = told.lock().unwrap().clone();
        let to = served.folder.path().join(format!("backup{round}"));
        let made = backup(&data, &to, how, "test").await.unwrap();
        assert_eq!(made.lacking, []);
        until("work to go on", || async {
            Some(()).filter(|()| ended(&told) > acknowledged.values().flatten().count())
        })
        .await;
        let again = served.folder.path().join(format!("restored{round}"));
        let restored = restore(&to, &again).await.unwrap();
        assert_eq!((restored.blobs, restored.blob_bytes), (made.blobs, made.blob_bytes));
        let checked = check(&again, true).await.unwrap();
        assert!(checked.is_sound() && checked.unnamed == 0, "{checked:?}");
        assert_eq!(fs::read(again.join("admin.token")).unwrap(), fs::read(data.join("admin.token")).unwrap());
        has_all(&again, &acknowledged).await;
    }
    stop.cancel();
    for task in work {
        task.await.unwrap();
    }
    assert!(check(&data, true).await.unwrap().is_sound(), "the farm itself is as it was");
    assert!(!SKU.is_empty());
}

/// A farm with a few engines, stopped.
async fn stopped() -> Served {
    let served = Served::start().await;
    let (farm, blobs) = (served.coordinator.farm().clone(), served.coordinator.blobs().clone());
    let (told, stop) = (Told::default(), CancellationToken::new());
    let submitting = tokio::spawn(submit(farm.clone(), blobs.clone(), "m".into(), told.clone(), stop.clone()));
    let building = tokio::spawn(build(farm, blobs, "agent".into(), told.clone(), stop.clone()));
    until("jobs to end", || async { (told.lock().unwrap().values().flatten().count() >= 3).then_some(()) }).await;
    stop.cancel();
    submitting.await.unwrap();
    building.await.unwrap();
    served
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_that_is_not_whole_makes_no_farm() {
    let served = stopped().await;
    let (data, to) = (served.folder.path().join("data"), served.folder.path().join("backup"));
    backup(&data, &to, How::Copy, "test").await.unwrap();
    assert!(matches!(backup(&data, &to, How::Copy, "test").await.unwrap_err(), BackupError::NotEmpty { .. }));
    assert!(
        matches!(restore(&to, &data).await.unwrap_err(), BackupError::NotEmpty { .. }),
        "a farm is not overwritten"
    );

    let blob = fs::read_dir(to.join("blobs/sha256")).unwrap().next().unwrap().unwrap().path();
    let blob = fs::read_dir(blob).unwrap().next().unwrap().unwrap().path();
    let damages: [(&str, &Path); 4] = [
        ("database", &to.join("farm.db")),
        ("token", &to.join("admin.token")),
        ("blob", &blob),
        ("manifest", &to.join("backup.json")),
    ];
    for (number, (what, path)) in damages.into_iter().enumerate() {
        let whole = fs::read(path).unwrap();
        for damaged in [None, Some([&whole[..whole.len() - 1], &b"?"[..]].concat())] {
            fs::remove_file(path).unwrap();
            let gone = damaged.is_none();
            if let Some(bytes) = damaged {
                fs::write(path, bytes).unwrap();
            }
            let target = served.folder.path().join(format!("target{number}-{gone}"));
            let error = restore(&to, &target).await.err().unwrap_or_else(|| panic!("restored without its {what}"));
            let expected = matches!(error, BackupError::NotWhole { .. } | BackupError::Io { .. });
            assert!(expected, "{what}: {error}");
            assert!(!target.join("farm.db").exists(), "{what}: what broke off is no farm");
            fs::remove_file(path).ok();
            fs::write(path, &whole).unwrap();
        }
    }
    restore(&to, &served.folder.path().join("whole")).await.unwrap();
}

/// The newest of a scope, the one before it, and what waits to be joined with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timing_caches_are_in_a_backup_and_those_beside_the_newest_may_be_lacking() {
    let served = Served::start().await;
    let data = served.folder.path().join("data");
    let Blobs::Folder(blobs) = served.coordinator.blobs().clone() else { panic!("blobs lie in a folder") };
    let mut caches = Vec::new();
    for content in ["newest", "before", "beside"] {
        caches.push(blobs.store(content.into()).await.unwrap());
    }
    served.coordinator.shutdown().await;
    let record = CacheRecord {
        scope: Digest::of(b"scope"),
        sku: SKU.parse().unwrap(),
        device_name: "device".into(),
        toolchain: Toolchain { backend: "native".into(), version: "1".into(), components: BTreeMap::new() },
        generation: 2,
        cache: Some(CacheRef { digest: caches[0], size_bytes: 6 }),
        previous: Some(caches[1]),
        job: "aa1".into(),
        attempt: 1,
        agent: "host".into(),
        device: "gpu0".into(),
        published_ms: 1,
        beside: vec![CacheBeside {
            cache: CacheRef { digest: caches[2], size_bytes: 6 },
            job: "aa2".into(),
            agent: "other".into(),
        }],
    };
    let store = SqliteStore::open(&data.join("farm.db")).await.unwrap();
    let epoch = store.acquire("test", 1).await.unwrap();
    store.commit(epoch, vec![Change::Cache(Box::new(record))]).await.unwrap();
    store.close().await.unwrap();
    let sound = check(&data, true).await.unwrap();
    assert!(sound.is_sound() && sound.unnamed == 0, "{sound:?}");
    let to = served.folder.path().join("backup");
    backup(&data, &to, How::Copy, "test").await.unwrap();
    let again = served.folder.path().join("again");
    restore(&to, &again).await.unwrap();
    for cache in &caches {
        let path = blobs.path(*cache);
        assert!(again.join(path.strip_prefix(&data).unwrap()).exists(), "{cache}");
    }
    fs::remove_file(blobs.path(caches[2])).unwrap();
    assert!(check(&data, true).await.unwrap().is_sound(), "it costs time, and nothing else");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_names_what_is_wrong_and_a_backup_says_what_it_lacks() {
    let served = stopped().await;
    let data = served.folder.path().join("data");
    let Blobs::Folder(blobs) = served.coordinator.blobs().clone() else { panic!("blobs lie in a folder") };
    let engines = served.coordinator.farm().list_engines(&Actor::local(), v1::ListEnginesRequest::default()).await;
    let plans: Vec<Digest> =
        engines.unwrap().engines.iter().map(|engine| engine.plan_digest.parse().unwrap()).collect();
    let orphan = blobs.store("named by nothing".into()).await.unwrap();
    let sound = check(&data, true).await.unwrap();
    assert!(sound.is_sound() && sound.unnamed == 1, "{sound:?}");

    fs::remove_file(blobs.path(plans[0])).unwrap();
    let path = blobs.path(plans[1]);
    let mut bytes = fs::read(&path).unwrap();
    bytes[20] ^= 1;
    fs::remove_file(&path).unwrap();
    fs::write(&path, bytes).unwrap();
    let mut short = fs::read(blobs.path(plans[2])).unwrap();
    short.pop();
    fs::remove_file(blobs.path(plans[2])).unwrap();
    fs::write(blobs.path(plans[2]), short).unwrap();

    let quick = check(&data, false).await.unwrap();
    assert_eq!((&quick.missing, &quick.damaged), (&vec![plans[0]], &vec![plans[2]]), "sizes tell without reading");
    let read = check(&data, true).await.unwrap();
    assert_eq!(read.missing, [plans[0]]);
    let mut wrong = vec![plans[1], plans[2]];
    wrong.sort();
    assert_eq!(read.damaged, wrong);
    assert!(blobs.path(orphan).exists() && blobs.path(plans[1]).exists(), "a check changes nothing");

    let to = served.folder.path().join("backup");
    let made = backup(&data, &to, How::Copy, "test").await.unwrap();
    wrong.push(plans[0]);
    wrong.sort();
    let mut lacking = made.lacking.clone();
    lacking.sort();
    assert_eq!(lacking, wrong);
    let again = served.folder.path().join("again");
    assert_eq!(restore(&to, &again).await.unwrap().lacking, made.lacking);
    assert!(!again.join("blobs/sha256").join(&orphan.to_string()[..2]).join(orphan.to_string()).exists());

    // A database that is damaged is said, and nothing else is compared with it.
    served.coordinator.shutdown().await;
    fs::write(data.join("farm.db"), b"no database").unwrap();
    let damaged = check(&data, true).await.unwrap();
    assert!(!damaged.is_sound() && !damaged.problems.is_empty(), "{damaged:?}");
    let error = backup(&data, &served.folder.path().join("of-damaged"), How::Copy, "test").await.unwrap_err();
    assert!(matches!(error, BackupError::Database { .. }), "{error}");
    assert!(matches!(check(&data.join("nowhere"), true).await.unwrap_err(), BackupError::NoFarm { .. }));
}
