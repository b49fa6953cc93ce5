//! Timing caches and plugins: what a build begins with, whose result is kept, which native code may run.

use crate::support::{
    self,
    agent::{Agent, device, hello, success},
    blobs::MemBlobs,
    model, open, request, until_state,
};
use planforge_coordinator::{auth::Actor, farm::Farm, store::MemStore};
use planforge_proto::{
    ErrorCode,
    v1::{self, JobState, agent_message::Kind as Say},
};
use planforge_types::{
    Toolchain,
    fingerprint::{DeviceFingerprint, DeviceKind, GpuFacts, HostFacts},
};
use std::sync::Arc;

fn board(name: &str) -> DeviceFingerprint {
    let gpu = GpuFacts { compute_capability: "7.5".into(), driver: "580.1".into(), ..GpuFacts::default() };
    DeviceFingerprint {
        kind: DeviceKind::Gpu,
        name: name.into(),
        memory_mib: 15_109,
        gpu: Some(gpu),
        cpu: None,
        host: HostFacts::default(),
    }
}

fn gpu(name: &str) -> v1::Device {
    v1::Device {
        fingerprint_json: serde_json::to_string(&board(name)).unwrap(),
        ..device("gpu0", "t4", "tensorrt 10.13.3")
    }
}

fn scope(name: &str) -> String {
    let toolchain: Toolchain = serde_json::from_str(r#"{"backend":"tensorrt","version":"10.13.3"}"#).unwrap();
    board(name).tuning_scope(&"t4".parse().unwrap(), &toolchain, true).to_string()
}

async fn agent(farm: &Farm, id: &str, name: &str) -> Agent {
    let mut agent = Agent::connect(farm, hello(id, vec![gpu(name)])).await;
    agent.next().await;
    agent
}

async fn submit(farm: &Farm, blobs: &MemBlobs, name: &str) -> v1::Job {
    let request = v1::SubmitRequest { skus: vec!["t4".into()], ..request(model(blobs, name)) };
    farm.submit(&Actor::local(), request).await.unwrap().jobs.remove(0)
}

/// Succeeds with a cache that holds `content`, grown from what was assigned.
async fn learn(
    agent: &mut Agent,
    blobs: &MemBlobs,
    assign: &v1::Assign,
    scope: String,
    content: &str,
) -> v1::FinishedAck {
    learn_with(agent, blobs, assign, scope, content, None).await
}

/// The same, and the cache holds what one of those beside held.
async fn learn_with(
    agent: &mut Agent,
    blobs: &MemBlobs,
    assign: &v1::Assign,
    scope: String,
    content: &str,
    beside: Option<String>,
) -> v1::FinishedAck {
    let previous = assign.cache.as_ref().map(|cache| cache.digest.clone()).unwrap_or_default();
    let mut done = success(blobs, assign);
    done.cache = Some(v1::CacheUpdate {
        scope,
        digest: blobs.insert(content.as_bytes()).to_string(),
        size_bytes: content.len() as u64,
        previous_digest: previous,
        beside_digests: beside.into_iter().collect(),
    });
    agent.say(Say::Finished(done)).await;
    agent.acknowledged().await
}

async fn caches(farm: &Farm) -> Vec<v1::TuningCache> {
    farm.list_caches(&Actor::local(), v1::ListCachesRequest::default()).await.unwrap().caches
}

#[tokio::test]
async fn a_cache_is_handed_on_within_its_scope_and_outlives_the_coordinator() {
    let (store, blobs) = (Arc::new(MemStore::new()), MemBlobs::default());
    let farm = open(store.clone(), &blobs).await;
    let mut first = agent(&farm, "a", "Tesla T4").await;
    let job = submit(&farm, &blobs, "m1").await;
    let assign = first.assigned().await;
    assert_eq!(assign.cache, None);
    let ack = learn(&mut first, &blobs, &assign, scope("Tesla T4"), "one").await;
    assert_eq!((ack.accepted, ack.reason.as_str()), (true, ""));
    let kept = caches(&farm).await;
    assert_eq!(kept.len(), 1);
    assert_eq!((kept[0].job.as_str(), kept[0].agent.as_str(), kept[0].generation), (job.id.as_str(), "host-a", 1));
    assert_eq!((kept[0].device_name.as_str(), kept[0].size_bytes), ("Tesla T4", 3));
    // Another board under the same SKU's name is another scope.
    let mut other = agent(&farm, "b", "Tesla T4 clone").await;
    first.say(Say::Goodbye(v1::Goodbye {})).await;
    support::until("the first agent to be drained", || async {
        let devices = farm.list_devices(&Actor::local(), v1::ListDevicesRequest::default()).await.unwrap().devices;
        devices.iter().any(|device| device.draining).then_some(())
    })
    .await;
    submit(&farm, &blobs, "m2").await;
    let assign = other.assigned().await;
    assert_eq!(assign.cache, None, "a cache never crosses scopes");
    let claimed = learn(&mut other, &blobs, &assign, scope("Tesla T4"), "poison").await;
    assert!(claimed.accepted && claimed.reason.contains("not of this device"), "{claimed:?}");
    assert_eq!(caches(&farm).await, kept, "nor can it be claimed for another one");
    // Restarted: the next build of the scope gets it.
    farm.close().await;
    let farm = open(store, &blobs).await;
    let mut first = agent(&farm, "a", "Tesla T4").await;
    submit(&farm, &blobs, "m3").await;
    let assign = first.assigned().await;
    let cache = assign.cache.as_ref().unwrap();
    assert_eq!(
        (cache.digest.as_str(), cache.job.as_str()),
        (support::digest_of("one").to_string().as_str(), job.id.as_str())
    );
    learn(&mut first, &blobs, &assign, scope("Tesla T4"), "one two").await;
    let kept = caches(&farm).await;
    assert_eq!(
        (kept[0].generation, kept[0].previous_digest.as_str()),
        (2, support::digest_of("one").to_string().as_str())
    );
}

#[tokio::test]
async fn of_two_hosts_that_build_at_once_the_later_ones_cache_waits_for_the_next_build_and_failures_publish_nothing() {
    let (store, blobs) = (Arc::new(MemStore::new()), MemBlobs::default());
    let farm = open(store.clone(), &blobs).await;
    let mut one = agent(&farm, "a", "Tesla T4").await;
    let mut two = agent(&farm, "b", "Tesla T4").await;
    submit(&farm, &blobs, "m1").await;
    let later = submit(&farm, &blobs, "m2").await;
    let (first, second) = (one.assigned().await, two.assigned().await);
    learn(&mut one, &blobs, &first, scope("Tesla T4"), "by one").await;
    let late = learn(&mut two, &blobs, &second, scope("Tesla T4"), "by two").await;
    assert!(late.accepted && late.reason.contains("the next build joins"), "{late:?}");
    let kept = caches(&farm).await.remove(0);
    assert_eq!((kept.generation, kept.digest), (1, support::digest_of("by one").to_string()));
    let by_two = support::digest_of("by two").to_string();
    let beside = v1::CacheBeside { digest: by_two.clone(), size_bytes: 6, job: later.id, agent: "host-b".into() };
    assert_eq!(kept.beside, std::slice::from_ref(&beside));
    // It outlives the coordinator, and stays with the newest until a build says that it holds it.
    farm.close().await;
    let farm = open(store, &blobs).await;
    let mut one = agent(&farm, "a", "Tesla T4").await;
    for (number, (content, joined)) in
        [("by one again", None), ("by one and two", Some(by_two))].into_iter().enumerate()
    {
        submit(&farm, &blobs, &format!("n{number}")).await;
        let assign = one.assigned().await;
        assert_eq!(assign.cache.as_ref().unwrap().beside, std::slice::from_ref(&beside));
        learn_with(&mut one, &blobs, &assign, scope("Tesla T4"), content, joined).await;
    }
    let kept = caches(&farm).await.remove(0);
    assert_eq!((kept.digest, kept.beside.len()), (support::digest_of("by one and two").to_string(), 0));
    let mut two = agent(&farm, "b", "Tesla T4").await;
    // What is not in the blob store is not published either; the build stands.
    let job = submit(&farm, &blobs, "m3").await;
    let (mut holder, assign) = tokio::select! { a = one.assigned() => (one, a), b = two.assigned() => (two, b) };
    let mut done = success(&blobs, &assign);
    done.cache = Some(v1::CacheUpdate {
        scope: scope("Tesla T4"),
        digest: support::digest_of("never stored").to_string(),
        size_bytes: 3,
        previous_digest: assign.cache.as_ref().unwrap().digest.clone(),
        ..v1::CacheUpdate::default()
    });
    holder.say(Say::Finished(done)).await;
    holder.acknowledged().await;
    until_state(&farm, &job.id, JobState::Succeeded).await;
    assert_eq!(caches(&farm).await[0].generation, 3);
}

/// Many builds that began with the same cache end one after the other.
#[tokio::test]
async fn of_many_caches_that_wait_beside_the_newest_some_are_kept_and_a_drop_takes_them_along() {
    let blobs = MemBlobs::default();
    let farm = open(Arc::new(MemStore::new()), &blobs).await;
    let mut hosts = Vec::new();
    for number in 0..19 {
        let mut host = agent(&farm, &format!("h{number}"), "Tesla T4").await;
        submit(&farm, &blobs, &format!("m{number}")).await;
        let assign = host.assigned().await;
        hosts.push((host, assign));
    }
    let mut told = Vec::new();
    for (number, (host, assign)) in hosts.iter_mut().enumerate() {
        // Two of them learnt the same.
        let content = format!("by {}", number.max(1));
        told.push(learn(host, &blobs, assign, scope("Tesla T4"), &content).await.reason);
    }
    assert_eq!((told[0].as_str(), told[1].as_str()), ("", ""), "{told:?}");
    assert!(told[2..18].iter().all(|told| told.contains("the next build joins")), "{told:?}");
    assert!(told[18].contains("is not kept"), "{told:?}");
    assert_eq!(caches(&farm).await[0].beside.len(), 16);
    let scope = v1::DropCacheRequest { scope: scope("Tesla T4") };
    let dropped = farm.drop_cache(&Actor::local(), scope).await.unwrap().cache.unwrap();
    assert_eq!((dropped.digest.as_str(), dropped.beside.len()), ("", 0));
}

#[tokio::test]
async fn a_breakdown_makes_the_next_attempt_begin_from_nothing_and_its_success_replaces_the_cache() {
    let blobs = MemBlobs::default();
    let farm = open(Arc::new(MemStore::new()), &blobs).await;
    let mut agent = agent(&farm, "a", "Tesla T4").await;
    submit(&farm, &blobs, "m1").await;
    let assign = agent.assigned().await;
    learn(&mut agent, &blobs, &assign, scope("Tesla T4"), "bad").await;
    submit(&farm, &blobs, "m2").await;
    for (suspects_cache, without_cache) in [(false, false), (true, false), (false, true)] {
        let assign = agent.assigned().await;
        assert_eq!(assign.without_cache, without_cache);
        if without_cache {
            learn(&mut agent, &blobs, &assign, scope("Tesla T4"), "good").await;
            break;
        }
        let class = v1::FailureClass::Infrastructure.into();
        let failure = v1::Failure { class, message: "it crashed".into(), ..Default::default() };
        let finished = v1::Finished {
            lease: assign.lease.clone(),
            outcome: "failed".into(),
            failure: Some(failure),
            suspects_cache,
            ..v1::Finished::default()
        };
        agent.say(Say::Finished(finished)).await;
        agent.acknowledged().await;
    }
    assert_eq!(caches(&farm).await[0].digest, support::digest_of("good").to_string());
}

#[tokio::test]
async fn an_administrator_drops_a_cache_for_good() {
    let blobs = MemBlobs::default();
    let farm = open(Arc::new(MemStore::new()), &blobs).await;
    let mut agent = agent(&farm, "a", "Tesla T4").await;
    submit(&farm, &blobs, "m1").await;
    let assign = agent.assigned().await;
    learn(&mut agent, &blobs, &assign, scope("Tesla T4"), "bad").await;
    submit(&farm, &blobs, "m2").await;
    let running = agent.assigned().await;
    let prefix = v1::DropCacheRequest { scope: scope("Tesla T4")[..8].into() };
    let denied = farm.drop_cache(&support::actor("s", "submit", None), prefix.clone()).await.unwrap_err();
    assert_eq!(denied.code, ErrorCode::PermissionDenied);
    let dropped = farm.drop_cache(&Actor::local(), prefix).await.unwrap().cache.unwrap();
    assert_eq!((dropped.digest.as_str(), dropped.generation), ("", 2));
    // A build that began with it brings nothing of it back.
    let ack = learn(&mut agent, &blobs, &running, scope("Tesla T4"), "bad and more").await;
    assert!(ack.reason.contains("dropped"), "{ack:?}");
    submit(&farm, &blobs, "m3").await;
    let assign = agent.assigned().await;
    assert_eq!(assign.cache.as_ref().unwrap().digest, "", "so that agents forget their copies too");
    learn(&mut agent, &blobs, &assign, scope("Tesla T4"), "clean").await;
    assert_eq!(caches(&farm).await[0].digest, support::digest_of("clean").to_string());
    let unknown = v1::DropCacheRequest { scope: "ffff".into() };
    assert_eq!(farm.drop_cache(&Actor::local(), unknown).await.unwrap_err().code, ErrorCode::NotFound);
}

#[tokio::test]
async fn plugins_are_refused_until_an_administrator_allows_them() {
    let (store, blobs) = (Arc::new(MemStore::new()), MemBlobs::default());
    let farm = open(store.clone(), &blobs).await;
    let mut agent = Agent::usual(&farm, "a").await;
    let plugin = blobs.insert(b"native code").to_string();
    let wanted = |name: &str| v1::SubmitRequest {
        specs_json: vec![format!(r#"{{"plugins":["{plugin}"]}}"#)],
        ..request(model(&blobs, name))
    };
    let refused = farm.submit(&Actor::local(), wanted("m")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Refused);
    assert!(refused.message.contains(&plugin) && refused.hint.contains("planforge plugins allow"), "{refused:?}");
    let allow = v1::AllowPluginRequest { digest: plugin.clone(), name: "a.so".into() };
    let denied = farm.allow_plugin(&support::actor("s", "submit", None), allow.clone()).await.unwrap_err();
    assert_eq!(denied.code, ErrorCode::PermissionDenied);
    farm.allow_plugin(&Actor::local(), allow).await.unwrap();
    farm.close().await;
    let farm = open(store, &blobs).await;
    let mut again = Agent::usual(&farm, "b").await;
    assert!(agent.next().await.is_none(), "the old farm is closed");
    let listed = farm.list_plugins(&Actor::local()).await.unwrap().plugins;
    assert_eq!((listed.len(), listed[0].name.as_str()), (1, "a.so"), "it is remembered");
    let running = farm.submit(&Actor::local(), wanted("m")).await.unwrap().jobs.remove(0);
    let assign = again.assigned().await;
    let waiting = farm.submit(&Actor::local(), wanted("n")).await.unwrap().jobs.remove(0);
    let forbid = v1::ForbidPluginRequest { digest: plugin.clone() };
    farm.forbid_plugin(&Actor::local(), forbid.clone()).await.unwrap();
    let failed = until_state(&farm, &waiting.id, JobState::Failed).await;
    assert!(failed.failure.unwrap().message.contains("not allowed"));
    again.succeed(&blobs, &assign).await;
    until_state(&farm, &running.id, JobState::Succeeded).await;
    assert_eq!(farm.submit(&Actor::local(), wanted("m")).await.unwrap_err().code, ErrorCode::Refused);
    assert_eq!(farm.forbid_plugin(&Actor::local(), forbid).await.unwrap_err().code, ErrorCode::NotFound);
}
