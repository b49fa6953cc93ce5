//! A state that breaks its own rules is believed in nothing.

use super::{Farm, FarmConfig, leader::Message};
use crate::{
    blobs::{LocalBlobs, LocalBlobsOptions},
    core::{Change, Input, Job, JobId, Model, Now, PluginRecord, State, Want},
    farm::SystemClock,
    store::{MemStore, Store},
};
use planforge_proto::ErrorCode;
use planforge_types::{BuildSpec, Digest, Toolchain};
use std::{collections::BTreeMap, sync::Arc};
use tokio::sync::oneshot;

fn queued(id: &str) -> Job {
    let digest = Digest::of(id.as_bytes());
    let model = Model { digest, graph_digest: None, structure_digest: None, name: id.into(), files: Vec::new() };
    let want = Want {
        request: id.into(),
        actor: "a".into(),
        project: "p".into(),
        priority: 0,
        tags: Vec::new(),
        no_fallback: false,
        require: planforge_types::Requirement::default(),
    };
    let toolchain = Toolchain { backend: "native".into(), version: "1".into(), components: BTreeMap::new() };
    let sku = "cpu-x86-64-v3".parse().unwrap();
    let job = Job::queued(id.into(), model, sku, BuildSpec::default(), want, 1);
    Job { toolchain: Some(toolchain), wait_for_device: true, ..job }
}

struct World {
    _blobs: tempfile::TempDir,
    store: Arc<MemStore>,
    farm: Farm,
}

impl World {
    /// A farm whose store holds these jobs.
    async fn with(jobs: Vec<Job>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(MemStore::new());
        let epoch = store.acquire("before", 0).await.unwrap();
        store.commit(epoch, jobs.into_iter().map(|job| Change::Job(Arc::new(job))).collect()).await.unwrap();
        let blobs = LocalBlobs::open(folder.path(), LocalBlobsOptions::default()).unwrap();
        let config = FarmConfig { seed: Some(1), ..FarmConfig::default() };
        let farm = Farm::open(store.clone(), Arc::new(blobs), config, Arc::new(SystemClock::new())).await.unwrap();
        Self { _blobs: folder, store, farm }
    }

    /// Does to the state what a bug would, and has an input and a commit follow at once: neither may be acknowledged.
    async fn break_and_ask(&self, id: &JobId) -> (Result<(), ErrorCode>, Result<(), ErrorCode>) {
        let lost = id.clone();
        let break_it = Box::new(move |state: &mut State, _: Now| state.lose_place(&lost));
        let (input_answer, input) = oneshot::channel();
        let (commit_answer, commit) = oneshot::channel();
        let messages = [
            Message::Commit { changes: vec![Change::Plugin(plugin())], answer: commit_answer },
            Message::Ask(break_it),
            Message::Input { input: Input::AllowPlugin(plugin()), answer: Some(input_answer) },
        ];
        // One burst: nothing runs in between on this thread.
        for message in messages {
            self.farm.inner.inbox.try_send(message).unwrap();
        }
        let code = |error: planforge_proto::ApiError| {
            assert!(error.message.contains("broke its own rules") && error.message.contains("j1"), "{error}");
            assert!(!error.hint.is_empty());
            error.code
        };
        (input.await.unwrap().map(drop).map_err(code), commit.await.unwrap().map_err(code))
    }

    async fn plugins(&self) -> usize {
        self.store.load().await.unwrap().plugins.len()
    }
}

fn plugin() -> PluginRecord {
    PluginRecord { digest: Digest::of(b"plugin"), name: "p.so".into(), actor: "admin".into(), allowed_ms: 1 }
}

#[tokio::test]
async fn nothing_of_a_broken_state_is_acknowledged_and_the_store_is_loaded_anew() {
    let world = World::with(vec![queued("j1"), queued("j2")]).await;
    let id = JobId::from("j1");
    assert_eq!(world.break_and_ask(&id).await, (Err(ErrorCode::Internal), Err(ErrorCode::Internal)));
    assert_eq!(world.plugins().await, 0, "nothing of it is stored");
    // Loaded anew, all is as the store has it.
    let healthy = world.farm.ask(|state, _| crate::core::invariants::check(state)).await.unwrap();
    assert_eq!(healthy, Ok(()));
    world.farm.ready().unwrap();
    world.farm.input(Input::AllowPlugin(plugin())).await.unwrap();
    assert_eq!((world.plugins().await, world.farm.stats().await.unwrap().broken_states), (1, 1));
}

#[tokio::test]
async fn a_coordinator_that_breaks_again_and_again_stops_leading() {
    let world = World::with(vec![queued("j1")]).await;
    let id = JobId::from("j1");
    for _ in 0..super::reload::BROKEN_MAX {
        assert_eq!(world.break_and_ask(&id).await.0, Err(ErrorCode::Internal));
    }
    let refused = world.farm.input(Input::AllowPlugin(plugin())).await.unwrap_err();
    assert!(refused.message.contains("broke its own rules"), "{refused}");
    assert!(refused.hint.contains("restart"), "{refused:?}");
    assert_eq!(world.farm.ready().unwrap_err().code, ErrorCode::Internal);
    assert_eq!(world.plugins().await, 0);
}

/// As an older program may have left it: the farm opens, and such a job stands in nobody's way.
#[tokio::test]
async fn what_was_wrong_in_the_store_already_is_no_reason_to_stop() {
    let odd = Job { wants: Vec::new(), ..queued("j1") };
    let world = World::with(vec![odd, queued("j2")]).await;
    for _ in 0..3 {
        world.farm.input(Input::Tick).await.unwrap();
    }
    let told = world.farm.ask(|state, _| state.loaded_broken().to_vec()).await.unwrap();
    assert_eq!(told, ["nobody wants j1"]);
    assert_eq!(world.farm.stats().await.unwrap().broken_states, 0);
}
