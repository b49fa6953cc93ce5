//! Random histories of the core, beside a small model of what its callers were promised.

use crate::support::{SKU, agent::device};
use planforge_coordinator::{
    auth::{Actor, Role},
    core::{
        self, Cancel, Change, CoreConfig, Device, Failure, FinishedIn, FinishedOutcome, HelloIn, Input, Job, JobId,
        JobRef, JobState, LeaseRef, Model, ModelFile, Now, PlanRef, Reply, SessionId, State, Submit, SubmitWhat, Submitted,
        ToAgent, invariants,
    },
    store::{MemStore, Store},
};
use planforge_engine_core::{
    identity::{BuildSpec, Digest, Toolchain, ToolchainConstraint},
    worker::FailureClass,
};
use proptest::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

const AGENTS: usize = 3;
const LEASE_MS: u64 = 1_000;

#[derive(Clone, Debug)]
enum Op {
    Submit { model: u8, sku: u8, force: bool, wait: bool, follow: bool, priority: i8, project: u8, eval: bool },
    Cancel { job: usize, project: u8 },
    Connect { agent: usize, fresh: bool, toolchain: u8 },
    Disconnect { agent: usize },
    Beat { agent: usize },
    Finish { agent: usize, how: u8, again: bool },
    Upgrade { agent: usize, toolchain: u8 },
    Drain { agent: usize },
    Wait { ms: u16 },
    JumpClock { minutes: i8 },
    RestartCoordinator,
}

fn op() -> impl Strategy<Value = Op> {
    let agent = 0..AGENTS;
    prop_oneof![
        6 => (0..3u8, 0..3u8, prop::bool::weighted(0.1), any::<bool>(), any::<bool>(), any::<i8>(), 0..2u8, any::<bool>())
            .prop_map(|(model, sku, force, wait, follow, priority, project, eval)| Op::Submit {
                model, sku, force, wait, follow, priority, project, eval
            }),
        2 => (any::<usize>(), 0..2u8).prop_map(|(job, project)| Op::Cancel { job, project }),
        3 => (agent.clone(), any::<bool>(), 0..2u8)
            .prop_map(|(agent, fresh, toolchain)| Op::Connect { agent, fresh, toolchain }),
        1 => agent.clone().prop_map(|agent| Op::Disconnect { agent }),
        4 => agent.clone().prop_map(|agent| Op::Beat { agent }),
        6 => (agent.clone(), 0..8u8, any::<bool>()).prop_map(|(agent, how, again)| Op::Finish { agent, how, again }),
        1 => (agent.clone(), 0..2u8).prop_map(|(agent, toolchain)| Op::Upgrade { agent, toolchain }),
        1 => agent.prop_map(|agent| Op::Drain { agent }),
        4 => (0..3_000u16).prop_map(|ms| Op::Wait { ms }),
        1 => (-70..70i8).prop_map(|minutes| Op::JumpClock { minutes }),
        1 => Just(Op::RestartCoordinator),
    ]
}

#[derive(Default)]
struct Puppet {
    session: Option<SessionId>,
    incarnation: u32,
    leases: Vec<LeaseRef>,
    toolchain: u8,
}

struct World {
    state: State,
    now: Now,
    store: MemStore,
    epoch: u64,
    history: invariants::History,
    agents: [Puppet; AGENTS],
    sessions: SessionId,
    ids: u32,
    /// What was acknowledged to callers: it must exist for ever.
    acknowledged: BTreeSet<JobId>,
    seen: BTreeMap<JobId, JobState>,
}

fn now<T>(future: impl Future<Output = T>) -> T {
    futures::executor::block_on(future)
}

fn config() -> CoreConfig {
    CoreConfig { lease_ms: LEASE_MS, ..CoreConfig::default() }
}

impl World {
    fn new() -> Self {
        let store = MemStore::new();
        let epoch = now(store.acquire("model", 0)).unwrap();
        let time = Now { mono_ms: 0, wall_ms: 1_700_000_000_000 };
        Self {
            state: State::new(config(), now(store.load()).unwrap(), time),
            now: time,
            store,
            epoch,
            history: invariants::History::default(),
            agents: Default::default(),
            sessions: 0,
            ids: 0,
            acknowledged: BTreeSet::new(),
            seen: BTreeMap::new(),
        }
    }

    fn apply(&mut self, input: Input) -> Reply {
        let effects = self.state.apply(input, self.now);
        invariants::check(&self.state).expect("the state is sound");
        for change in &effects.changes {
            match change {
                Change::Event(event) => self.history.add(event).expect("the history is sound"),
                Change::Job(job) => drop(self.seen.insert(job.id.clone(), job.state)),
                _ => {}
            }
        }
        now(self.store.commit(self.epoch, effects.changes)).unwrap();
        for (session, message) in effects.sends {
            self.hear(session, message);
        }
        effects.reply
    }

    fn hear(&mut self, session: SessionId, message: ToAgent) {
        let Some(agent) = self.agents.iter_mut().find(|agent| agent.session == Some(session)) else { return };
        match message {
            ToAgent::Assign { lease, .. } => {
                let same = agent.leases.iter().any(|held| held.device == lease.device);
                assert!(!same, "a device holds one lease at a time: {:?} and {lease:?}", agent.leases);
                agent.leases.push(lease);
            }
            ToAgent::LeaseLost { lease, .. } => agent.leases.retain(|held| *held != lease),
            ToAgent::Welcome { lost, .. } => agent.leases.retain(|held| !lost.contains(held)),
            ToAgent::Refused { .. } | ToAgent::Replaced => agent.session = None,
            _ => {}
        }
    }

    fn submit(&mut self, submit: &Op) {
        let Op::Submit { model, sku, force, wait, follow, priority, project, eval } = submit else { return };
        self.ids += 1;
        let digest = Digest::of(&[*model]);
        let file = ModelFile { name: "m".into(), digest, size_bytes: 1 };
        let model =
            Model { digest, graph_digest: None, structure_digest: None, name: "m".into(), files: vec![file] };
        let submit = Submit {
            actor: format!("actor{project}"),
            project: format!("project{project}"),
            request: format!("request{}", self.ids),
            idempotency_key: String::new(),
            fingerprint: digest,
            what: SubmitWhat::Build {
                models: vec![model],
                specs: vec![BuildSpec::default()],
                constraints: vec![(String::new(), ToolchainConstraint::default())],
            },
            skus: vec![[SKU, "cpu-x86-64-v2", "t4"][*sku as usize].parse().unwrap()],
            priority: i32::from(*priority),
            force: *force,
            wait_for_device: *wait,
            follow_toolchain: *follow,
            allow_inaccurate: false,
            eval: eval.then(|| Digest::of(b"labels")),
            missing: Vec::new(),
            ids: vec![format!("job{}", self.ids).as_str().into()],
        };
        if let Reply::Submitted(Ok(Submitted::Jobs { jobs, .. })) = self.apply(Input::Submit(Box::new(submit))) {
            for job in jobs {
                let (JobRef::Stored(id) | JobRef::Live(core::Job2 { id, .. })) = job.into();
                self.acknowledged.insert(id);
            }
        }
    }
}
