//! What the farm's tests share: blobs in memory, and an agent that does what its script says.
#![allow(dead_code, reason = "every test binary uses another part of it")]

pub mod agent;
pub mod bench;
pub mod blobs;

use planforge_coordinator::{
    auth::Actor,
    farm::{Clock, Farm, FarmConfig, SystemClock},
    store::Store,
};
use planforge_proto::v1;
use planforge_types::Digest;
use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// A clock that the test moves.
#[derive(Debug, Default)]
pub struct TestClock(pub AtomicU64);

impl Clock for TestClock {
    fn wall_ms(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn mono_ms(&self) -> u64 {
        self.wall_ms()
    }
}

/// Long enough for a loaded machine; a test that waits this long has failed.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Waits until `look` finds something.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let waited = tokio::time::timeout(DEADLINE, async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

/// A farm over `store` with short leases and fixed ids.
pub async fn open(store: Arc<dyn Store>, blobs: &blobs::MemBlobs) -> Farm {
    let config = FarmConfig { heartbeat_ms: 100, lease_ms: 1_000, seed: Some(7), ..FarmConfig::default() };
    Farm::open(store, Arc::new(blobs.clone()), config, Arc::new(SystemClock::new())).await.expect("the farm opens")
}

/// A model of one small file that is in the blob store.
pub fn model(blobs: &blobs::MemBlobs, name: &str) -> v1::Model {
    let digest = blobs.insert(name.as_bytes()).to_string();
    let file = v1::ModelFile { name: name.into(), digest: digest.clone(), size_bytes: name.len() as u64 };
    v1::Model { digest, name: name.into(), files: vec![file], ..v1::Model::default() }
}

pub const SKU: &str = "cpu-x86-64-v3";

/// As if the actor's project had sent the model's files.
pub async fn show(farm: &Farm, actor: &Actor, model: &v1::Model) {
    for file in &model.files {
        let digest = file.digest.parse().expect("a digest");
        farm.hold_blob(actor, digest, file.size_bytes).await.expect("held");
    }
}

/// A request for one engine.
pub fn request(model: v1::Model) -> v1::SubmitRequest {
    v1::SubmitRequest { models: vec![model], skus: vec![SKU.into()], ..v1::SubmitRequest::default() }
}

pub fn actor(name: &str, role: &str, project: Option<&str>) -> Actor {
    Actor::named(name, role.parse().expect("a role"), project.map(Into::into))
}

pub fn state(job: &v1::Job) -> v1::JobState {
    job.state()
}

/// Waits until a job is in `state`.
pub async fn until_state(farm: &Farm, id: &str, wanted: v1::JobState) -> v1::Job {
    until(&format!("job {id} to be {}", wanted.as_str_name()), || async {
        farm.get_job(&Actor::local(), id).await.ok().filter(|job| job.state() == wanted)
    })
    .await
}

pub fn digest_of(text: &str) -> Digest {
    Digest::of(text.as_bytes())
}
