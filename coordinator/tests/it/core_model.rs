//! Random histories of the core, beside a small model of what its callers were promised.

use crate::support::SKU;
use planforge_coordinator::{
    auth::{Actor, Role},
    core::{
        self, CacheRef, Cancel, Change, CoreConfig, Device, Engine, Failure, FinishedIn, FinishedOutcome, HelloIn,
        Input, Job, JobId, JobRef, JobState, JoinedBy, LeaseRef, Lookup, Made, Model, ModelFile, Need, Now, PauseId,
        PauseRecord, PausedKind, PlanRef, Prepared, Preparing, Prioritize, Reply, ReportIn, SessionId, SpecAsk, State,
        Submit, SubmitWhat, Submitted, ToAgent, Window, invariants,
    },
    store::{MemStore, Store},
};
use planforge_types::{
    BuildSpec, Digest, EngineKey, FailureClass, Reason, Requirement, Toolchain, ToolchainConstraint,
    order::MeasureAsk,
    preparation::{Kind, PREPARER, PrepareAsk, Target},
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const AGENTS: usize = 3;
const LEASE_MS: u64 = 1_000;
/// The coordinator looks after its leases this often.
const SWEEP_MS: u64 = 1_000;

#[derive(Clone, Debug)]
enum Op {
    Submit {
        model: u8,
        sku: u8,
        force: bool,
        wait: bool,
        follow: bool,
        priority: i8,
        project: u8,
        eval: bool,
        builds: u32,
        sweep: u8,
        needs: Vec<usize>,
        compile: bool,
        no_fallback: bool,
        /// Whether its model is prepared first, and in which way.
        prepare: u8,
        /// What it asks of its device.
        require: u8,
    },
    /// Measures a stored plan on a kind of device.
    Bench {
        engine: usize,
        sku: u8,
        force: bool,
        wait: bool,
        eval: bool,
        sweep: u8,
    },
    Cancel {
        job: usize,
        project: u8,
    },
    Prioritize {
        job: usize,
        project: u8,
        priority: i8,
    },
    Connect {
        agent: usize,
        fresh: bool,
        toolchain: u8,
    },
    Disconnect {
        agent: usize,
    },
    Beat {
        agent: usize,
    },
    /// The plan of what it works on is stored; measuring goes on.
    Built {
        agent: usize,
    },
    Finish {
        agent: usize,
        how: u8,
        again: bool,
    },
    Upgrade {
        agent: usize,
        toolchain: u8,
    },
    Drain {
        agent: usize,
    },
    /// A device kind, a project or an agent; for so long, or until somebody resumes it, or in a window.
    Pause {
        what: u8,
        which: u8,
        minutes: u8,
        window: bool,
    },
    Resume {
        what: u8,
        which: u8,
        window: bool,
    },
    Wait {
        ms: u16,
    },
    JumpClock {
        minutes: i8,
    },
    RestartCoordinator,
}

fn op() -> impl Strategy<Value = Op> {
    let agent = 0..AGENTS;
    prop_oneof![
        6 => (
            (0..3u8, 0..3u8, prop::bool::weighted(0.1), any::<bool>(), any::<bool>(), any::<i8>(), 0..2u8, any::<bool>()),
            (
                prop_oneof![3 => Just(1), 1 => 2..4u32],
                prop_oneof![4 => Just(0), 1 => 1..4u8],
                prop_oneof![2 => Just(Vec::new()), 1 => prop::collection::vec(any::<usize>(), 1..4)],
                prop::bool::weighted(0.3),
                prop::bool::weighted(0.2),
                prop_oneof![2 => Just(0), 1 => 1..4u8],
                prop_oneof![2 => Just(0), 1 => 1..5u8],
            ),
        )
            .prop_map(|((model, sku, force, wait, follow, priority, project, eval), (builds, sweep, needs, compile, no_fallback, prepare, require))| {
                // What is only compiled is measured in no way.
                let (eval, builds, sweep) = if compile { (false, 1, 0) } else { (eval, builds, sweep) };
                Op::Submit {
                    model, sku, force, wait, follow, priority, project, eval, builds, sweep, needs, compile, no_fallback,
                    prepare, require,
                }
            }),
        2 => (any::<usize>(), 0..3u8, prop::bool::weighted(0.2), any::<bool>(), any::<bool>(), 0..4u8)
            .prop_map(|(engine, sku, force, wait, eval, sweep)| Op::Bench { engine, sku, force, wait, eval, sweep }),
        2 => (any::<usize>(), 0..2u8).prop_map(|(job, project)| Op::Cancel { job, project }),
        2 => (any::<usize>(), 0..2u8, any::<i8>())
            .prop_map(|(job, project, priority)| Op::Prioritize { job, project, priority }),
        3 => (agent.clone(), any::<bool>(), 0..2u8)
            .prop_map(|(agent, fresh, toolchain)| Op::Connect { agent, fresh, toolchain }),
        1 => agent.clone().prop_map(|agent| Op::Disconnect { agent }),
        4 => agent.clone().prop_map(|agent| Op::Beat { agent }),
        2 => agent.clone().prop_map(|agent| Op::Built { agent }),
        6 => (agent.clone(), 0..10u8, any::<bool>()).prop_map(|(agent, how, again)| Op::Finish { agent, how, again }),
        1 => (agent.clone(), 0..2u8).prop_map(|(agent, toolchain)| Op::Upgrade { agent, toolchain }),
        1 => agent.prop_map(|agent| Op::Drain { agent }),
        1 => (0..3u8, 0..2u8, 0..4u8, any::<bool>())
            .prop_map(|(what, which, minutes, window)| Op::Pause { what, which, minutes, window }),
        2 => (0..3u8, 0..2u8, any::<bool>()).prop_map(|(what, which, window)| Op::Resume { what, which, window }),
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
    /// When each agent last said anything, monotonic.
    last_message_ms: [u64; AGENTS],
    /// When each attempt's lease was given, monotonic.
    granted_ms: BTreeMap<(JobId, u32), u64>,
    ids: u32,
    /// What was acknowledged to callers: it must exist for ever.
    acknowledged: BTreeSet<JobId>,
    /// The most builds that anybody asked of each job.
    asked_builds: BTreeMap<JobId, u32>,
    /// How often each attempt builds, or the plan that it only measures.
    ordered: BTreeMap<(JobId, u32), (u32, Option<PlanRef>)>,
    /// Every engine that was stored.
    engines: Vec<Engine>,
    /// From how many builds each key's newest engine was chosen.
    stored_builds: BTreeMap<EngineKey, u32>,
    /// Keys that were built by force: those are built without a look at what is stored.
    forced: BTreeSet<EngineKey>,
    seen: BTreeMap<JobId, JobState>,
    /// When the core last looked which pauses hold, by the farm's clock.
    looked_ms: u64,
}

fn now<T>(future: impl Future<Output = T>) -> T {
    futures::executor::block_on(future)
}

fn pause_id(what: u8, which: u8, is_window: bool) -> PauseId {
    let (kind, name) = match what {
        0 => (PausedKind::Sku, if which == 0 { SKU.to_owned() } else { "t4".to_owned() }),
        1 => (PausedKind::Project, format!("project{which}")),
        _ => (PausedKind::Agent, format!("agent{which}")),
    };
    PauseId { kind, name, is_window }
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
            last_message_ms: [0; AGENTS],
            granted_ms: BTreeMap::new(),
            ids: 0,
            acknowledged: BTreeSet::new(),
            asked_builds: BTreeMap::new(),
            ordered: BTreeMap::new(),
            engines: Vec::new(),
            stored_builds: BTreeMap::new(),
            forced: BTreeSet::new(),
            seen: BTreeMap::new(),
            looked_ms: time.wall_ms,
        }
    }

    fn apply(&mut self, input: Input) -> Reply {
        let speaker =
            self.agents.iter().position(|agent| agent.session.is_some() && agent.session == session_of(&input));
        if let Some(index) = speaker {
            self.last_message_ms[index] = self.now.mono_ms;
        }
        if matches!(input, Input::Tick | Input::Pause(_) | Input::Resume(_)) {
            self.looked_ms = self.now.wall_ms;
        }
        let effects = self.state.apply(input, self.now);
        invariants::check(&self.state).expect("the state is sound");
        for change in &effects.changes {
            match change {
                Change::Event(event) => self.history.add(event).expect("the history is sound"),
                Change::Job(job) => {
                    self.seen.insert(job.id.clone(), job.state);
                    self.forced.extend(job.key.filter(|_| job.force));
                }
                Change::Engine(engine) => {
                    self.stored_builds.insert(engine.key, engine.plan.builds);
                    self.engines.push(engine.as_ref().clone());
                }
                _ => {}
            }
        }
        let replaced = effects.changes.iter().filter_map(|change| match change {
            Change::Fallback { request, from, to } => Some((request.clone(), from.clone(), to.clone())),
            _ => None,
        });
        let replaced: Vec<(String, JobId, JobId)> = replaced.collect();
        now(self.store.commit(self.epoch, effects.changes)).unwrap();
        for (request, from, to) in replaced {
            self.check_fallback(&request, &from, &to);
            let asked = self.asked_builds.get(&from).copied().unwrap_or(1);
            let known = self.asked_builds.entry(to.clone()).or_default();
            *known = (*known).max(asked);
            self.acknowledged.insert(to);
        }
        self.state.durable_as_of(self.state.as_of());
        for (session, message) in effects.sends {
            if let ToAgent::Assign { lease, job, .. } = &message {
                self.check_pauses(session, job);
                self.ordered.insert((lease.job.clone(), lease.attempt), (job.builds, job.plan.clone()));
                for need in &job.needed {
                    assert_eq!(self.seen.get(need), Some(&JobState::Succeeded), "{} runs before {need}", job.id);
                }
                // What is prepared although an engine came meanwhile is of no use, and does no harm.
                let makes = !job.only_measures() && !job.prepares() && job.kind != core::JobKind::Prepare;
                if let Some(key) = job.key.filter(|key| makes && !self.forced.contains(key)) {
                    let stored = self.stored_builds.get(&key).copied().unwrap_or(0);
                    assert!(stored < job.builds, "{} builds what the store answers from {stored} builds", job.id);
                }
                self.granted_ms.insert((lease.job.clone(), lease.attempt), self.now.mono_ms);
            }
            self.hear(session, message);
        }
        if !effects.asks.is_empty() {
            let lookup = self.look_up(effects.asks);
            self.apply(Input::Stored(Box::new(lookup)));
        }
        effects.reply
    }

    /// A job that took another's place: both name each other, and the request has it in that place.
    fn check_fallback(&self, request: &str, from: &JobId, to: &JobId) {
        let job = |id: &JobId| now(self.store.job(id)).unwrap().expect("a stored job");
        let (first, second) = (job(from), job(to));
        assert_eq!((first.state, first.fallback.as_ref()), (JobState::Failed, Some(to)));
        assert!(second.wants.iter().any(|want| want.request == request && !want.no_fallback), "{second:?}");
        let stored = now(self.store.request_of_id(request)).unwrap().expect("the request");
        assert!(!stored.jobs.contains(from) && stored.jobs.contains(to), "{stored:?}");
        let backend = |job: &Job| job.toolchain.as_ref().map(|toolchain| toolchain.backend.clone());
        assert_ne!(backend(&first), backend(&second), "{to} asks the backend again that refused the model");
        // Whoever needs it knows which one that is now.
        for other in self.state.live_jobs().filter(|job| !job.recheck) {
            assert!(!other.needed.contains(from), "{} needs {from}, whose place {to} took", other.id);
        }
    }

    /// Nothing is given out that a pause holds up.
    fn check_pauses(&self, session: SessionId, job: &Job) {
        let agent = self.agents.iter().position(|agent| agent.session == Some(session));
        let is_paused = |kind: PausedKind, name: &str| {
            let holds = |pause: &PauseRecord| pause.holds_at(self.looked_ms);
            self.state.pauses().any(|pause| pause.kind == kind && pause.name == name && holds(pause))
        };
        assert!(!is_paused(PausedKind::Sku, job.sku.as_str()), "{} is for a kind that is paused", job.id);
        let agent = agent.map(|index| format!("agent{index}")).unwrap_or_default();
        assert!(!is_paused(PausedKind::Agent, &agent), "{} is for an agent that is paused", job.id);
        let mut projects = job.wants.iter().map(|want| &want.project);
        assert!(projects.any(|project| !is_paused(PausedKind::Project, project)), "{} is of paused projects", job.id);
    }

    fn look_up(&self, keys: BTreeSet<EngineKey>) -> Lookup {
        let stored = now(self.store.stored(keys.into_iter().collect())).unwrap();
        Lookup { stored, as_of: self.state.as_of() }
    }

    fn hear(&mut self, session: SessionId, message: ToAgent) {
        let Some(agent) = self.agents.iter_mut().find(|agent| agent.session == Some(session)) else { return };
        match message {
            ToAgent::Assign { lease, job, .. } => {
                let same = agent.leases.iter().any(|held| held.device == lease.device);
                assert!(!same, "a device holds one lease at a time: {:?} and {lease:?}", agent.leases);
                if job.kind == core::JobKind::Prepare {
                    assert!(lease.device.starts_with("cpu"), "{job:?} on {lease:?}");
                }
                if let Some(from) = &job.from {
                    let by = now(self.store.job(&from.job.as_str().into())).unwrap().expect("who prepared it");
                    let made = by.made.expect("it succeeded");
                    let wanted = if from.as_calibration { by.model.digest } else { made.model.digest };
                    assert_eq!((job.model.digest, from.source), (wanted, by.model.digest), "{}", job.id);
                    let calibrated = from.as_calibration.then_some(made.document);
                    assert_eq!((job.spec.calibration, from.document), (calibrated, Some(made.document)), "{}", job.id);
                    assert!(job.needed.contains(&by.id), "{} says what it was prepared by", job.id);
                }
                if job.prepares() {
                    assert!(job.made_for.is_some() && lease.device.starts_with("cpu"), "{job:?} on {lease:?}");
                }
                if job.kind == core::JobKind::Build && job.sku.as_str() == "t4" {
                    let prepared = |need: &&JobId| {
                        now(self.store.job(need)).unwrap().is_some_and(|need| {
                            Prepared::of(&need)
                                .is_some_and(|made| made.model == job.model.digest && made.sku == job.sku)
                        })
                    };
                    let given = job.needed.iter().any(|need| prepared(&need));
                    // What was compiled before its model was prepared is not given to it afterwards.
                    let given = given && (job.from.is_none() || job.prepared.is_some());
                    assert_eq!(job.prepared.is_some(), given, "{} and what {:?} prepared", job.id, job.needed);
                }
                agent.leases.push(lease);
            }
            ToAgent::LeaseLost { lease, .. } => agent.leases.retain(|held| *held != lease),
            ToAgent::Welcome { lost, .. } => agent.leases.retain(|held| !lost.contains(held)),
            ToAgent::Refused(_) | ToAgent::Replaced => agent.session = None,
            _ => {}
        }
    }

    fn submit(&mut self, submit: &Op) {
        let Op::Submit {
            model,
            sku,
            force,
            wait,
            follow,
            priority,
            project,
            eval,
            builds,
            sweep,
            needs,
            compile,
            no_fallback,
            prepare,
            require,
        } = submit
        else {
            return;
        };
        let digest = Digest::of(&[*model]);
        let file = ModelFile { name: "m".into(), digest, size_bytes: 1 };
        let model = Model { digest, graph_digest: None, structure_digest: None, name: "m".into(), files: vec![file] };
        self.ask(Submit {
            project: format!("project{project}"),
            actor: format!("actor{project}"),
            what: SubmitWhat::Build {
                models: vec![model],
                specs: vec![SpecAsk { spec: BuildSpec::default(), prepare: way(*prepare), calibrates: *prepare == 3 }],
                constraints: vec![(String::new(), ToolchainConstraint::default())],
            },
            priority: i32::from(*priority),
            force: *force,
            wait_for_device: *wait,
            follow_toolchain: *follow,
            builds: *builds,
            compile_only: *compile,
            no_fallback: *no_fallback,
            needs: self.needs(needs),
            require: required(*require),
            ..asked(*sku, *eval, *sweep)
        });
    }

    /// Jobs that callers were told of, each as it stands.
    fn needs(&self, picks: &[usize]) -> Vec<Need> {
        let known: Vec<&JobId> = self.acknowledged.iter().collect();
        let picked: BTreeSet<&JobId> =
            picks.iter().filter_map(|pick| known.get(pick % known.len().max(1)).copied()).collect();
        let need = |job: &JobId| Need {
            job: job.clone(),
            ended: self.seen.get(job).copied().filter(|state| state.is_terminal()),
            prepared: now(self.store.job(job)).unwrap().as_ref().and_then(Prepared::of),
            prepares: now(self.store.job(job)).unwrap().as_ref().and_then(Preparing::of),
        };
        picked.into_iter().map(need).collect()
    }

    fn ask(&mut self, submit: Submit) {
        self.ids += 1;
        let (builds, measure) = (submit.builds, submit.measure.clone());
        let submit = Submit {
            request: format!("request{}", self.ids),
            // The second where a job that prepares its model comes first.
            ids: ["", "b"].map(|part| format!("job{}{part}", self.ids).as_str().into()).to_vec(),
            ..submit
        };
        let mut reply = self.apply(Input::Submit(Box::new(submit)));
        // What is known under one key may lead to another.
        while let Reply::Submitted(Ok(Submitted::Ask { mut keys, submit, .. })) = reply {
            keys.extend(submit.lookup.stored.keys());
            let lookup = self.look_up(keys);
            reply = self.apply(Input::Submit(Box::new(Submit { lookup, ..*submit })));
        }
        if let Reply::Submitted(Ok(Submitted::Jobs { jobs, .. })) = reply {
            for job in jobs {
                let id = match job {
                    JobRef::Stored(id) => id,
                    JobRef::Live(job) if job.kind == core::JobKind::Prepare => {
                        self.acknowledged.insert(job.id.clone());
                        continue;
                    }
                    JobRef::Live(job) => {
                        // A job that only measures has its plan already, chosen from that many builds.
                        let chosen_from = job.plan.as_ref().map_or(job.builds, |plan| plan.builds.max(job.builds));
                        assert!(
                            chosen_from >= builds,
                            "{} answers from {chosen_from} builds, {builds} were asked for",
                            job.id
                        );
                        assert!(job.measure.covers(&measure), "{} measures less than was asked for", job.id);
                        job.id.clone()
                    }
                };
                let asked = self.asked_builds.entry(id.clone()).or_default();
                *asked = (*asked).max(builds);
                self.acknowledged.insert(id);
            }
        }
    }

    fn connect(&mut self, index: usize, fresh: bool, toolchain: u8) {
        self.sessions += 1;
        let session = self.sessions;
        let agent = &mut self.agents[index];
        if fresh {
            // A new process: the old one is dead, and its connection with it.
            if let Some(old) = agent.session.take() {
                self.apply(Input::Disconnected { session: old });
            }
            let agent = &mut self.agents[index];
            agent.incarnation += 1;
            agent.leases.clear();
        }
        let agent = &mut self.agents[index];
        agent.session = Some(session);
        agent.toolchain = toolchain;
        let hello = HelloIn {
            agent: format!("agent{index}"),
            incarnation: agent.incarnation.to_string(),
            name: format!("host{index}"),
            version: "0".into(),
            devices: devices(index, toolchain),
            leases: agent.leases.clone(),
            draining: false,
            finished: Vec::new(),
            joined_by: JoinedBy::Unknown,
            protocol: planforge_proto::protocol::PROTOCOL,
            memory_bytes: 0,
            labels: BTreeMap::new(),
        };
        self.apply(Input::Hello { session, hello: Box::new(hello) });
    }

    fn finish(&mut self, index: usize, how: u8, again: bool) {
        let agent = &mut self.agents[index];
        let (Some(session), false) = (agent.session, agent.leases.is_empty()) else { return };
        let lease = agent.leases.remove(0);
        let failed = |class| FinishedOutcome::Failed(Failure::new(class, "scripted", ""));
        let outcome = match how {
            0 => failed(FailureClass::Infrastructure),
            1 => failed(FailureClass::Unstable),
            2 => failed(FailureClass::Model),
            3 => FinishedOutcome::Cancelled,
            8.. => FinishedOutcome::Failed(Failure {
                reason: Some(Reason::Unsupported),
                ..Failure::new(FailureClass::Model, "scripted", "")
            }),
            _ => FinishedOutcome::Succeeded,
        };
        let newest = self.state.job(&lease.job).is_some_and(|job| job.attempt() == lease.attempt);
        let plan = self.plan_of(&lease);
        let report = format!("report of {}-{}", lease.job, lease.attempt);
        let report = ReportIn {
            digest: Digest::of(report.as_bytes()),
            has_accuracy: true,
            inputs: self.state.job(&lease.job).and_then(|job| job.measure.inputs),
            simulated: true,
            document: "{}".into(),
        };
        let prepares = self.state.job(&lease.job).is_some_and(|job| job.prepares());
        let files = || CacheRef { digest: Digest::of(lease.job.as_str().as_bytes()), size_bytes: 1 };
        let prepared = prepares.then(files);
        let job = self.state.job(&lease.job).filter(|job| job.kind == core::JobKind::Prepare);
        // The same in the same way comes to the same, whoever does it.
        let made = job.map(|job| {
            let digest = Digest::of(format!("{} {:?}", job.model.digest, job.prepare).as_bytes());
            let file = ModelFile { name: "model.onnx".into(), digest, size_bytes: 1 };
            let model = Model { digest, files: vec![file], ..job.model.clone() };
            Made { model, document: Digest::of(b"what became of it") }
        });
        let builds = prepared.is_none() && made.is_none();
        let finished = FinishedIn {
            lease: lease.clone(),
            outcome,
            plan: Some(plan).filter(|_| builds),
            report: Some(report).filter(|_| builds && (4..8).contains(&how)),
            log: None,
            accurate: true,
            artifacts: Vec::new(),
            cache: None,
            suspects_cache: false,
            prepared,
            made,
        };
        for _ in 0..=u8::from(again) {
            let finished = Box::new(finished.clone());
            self.apply(Input::Finished { session, finished });
        }
        if !newest {
            let job = now(self.store.job(&lease.job)).unwrap();
            let attempt = job.and_then(|job| job.attempts.into_iter().find(|a| a.number == lease.attempt));
            assert!(
                attempt.is_none_or(|attempt| attempt.outcome != core::Outcome::Running),
                "a superseded attempt is closed"
            );
        }
    }

    /// What an attempt made, or measures: then it does not know from how many builds that was chosen.
    fn plan_of(&self, lease: &LeaseRef) -> PlanRef {
        let (builds, given) = &self.ordered[&(lease.job.clone(), lease.attempt)];
        let made = || PlanRef {
            digest: Digest::of(format!("{}-{}", lease.job, lease.attempt).as_bytes()),
            size_bytes: 1,
            card: None,
            builds: *builds,
        };
        given.as_ref().map_or_else(made, |given| PlanRef { builds: 0, ..given.clone() })
    }

    fn restart(&mut self) {
        self.epoch = now(self.store.acquire("model", 0)).unwrap();
        let snapshot = now(self.store.load()).unwrap();
        let before = std::mem::replace(&mut self.state, State::new(config(), snapshot, self.now));
        self.looked_ms = self.now.wall_ms;
        invariants::check_reloaded(&before, &self.state).expect("nothing is forgotten");
        let stored = |key: &EngineKey| now(self.store.stored(vec![*key])).unwrap().remove(key).unwrap_or_default();
        before.check_known(stored).expect("what was known of engines is stored");
        invariants::check(&self.state).expect("the loaded state is sound");
        self.agents.iter_mut().for_each(|agent| agent.session = None);
        // Open attempts get a fresh lease to be resumed in.
        self.last_message_ms = [self.now.mono_ms; AGENTS];
    }

    fn step(&mut self, op: &Op) {
        match op {
            Op::Submit { .. } => self.submit(op),
            Op::Bench { engine, sku, force, wait, eval, sweep } => {
                if self.engines.is_empty() {
                    return;
                }
                let engine = Box::new(self.engines[engine % self.engines.len()].clone());
                let what = SubmitWhat::Benchmark(engine);
                self.ask(Submit { what, force: *force, wait_for_device: *wait, ..asked(*sku, *eval, *sweep) });
            }
            Op::Built { agent } => {
                let puppet = &self.agents[*agent];
                if let (Some(session), Some(lease)) = (puppet.session, puppet.leases.first().cloned()) {
                    let plan = self.plan_of(&lease);
                    self.apply(Input::Started { session, lease: lease.clone() });
                    self.apply(Input::Built { session, lease, plan });
                }
            }
            Op::Pause { what, which, minutes, window } => {
                let PauseId { kind, name, .. } = pause_id(*what, *which, *window);
                let minute = (self.now.wall_ms / 60_000 % 1_440) as u16;
                let window = window.then(|| Window {
                    days: Window::EVERY_DAY,
                    start_minute: minute,
                    minutes: 1 + u16::from(*minutes),
                });
                let until_ms = match minutes {
                    0 => 0,
                    minutes => self.now.wall_ms + u64::from(*minutes) * 60_000,
                };
                let pause = PauseRecord {
                    kind,
                    shown: name.clone(),
                    name,
                    reason: String::new(),
                    actor: "root".into(),
                    own: false,
                    since_ms: self.now.wall_ms,
                    until_ms,
                    window,
                };
                self.apply(Input::Pause(Box::new(pause)));
            }
            Op::Resume { what, which, window } => {
                let id = pause_id(*what, *which, *window);
                let known = self.state.pauses().any(|pause| pause.id() == id);
                let reply = self.apply(Input::Resume(id));
                assert_eq!(matches!(reply, Reply::Resumed(Ok(_))), known);
            }
            Op::Cancel { job, project } => {
                let jobs: Vec<JobId> = self.acknowledged.iter().cloned().collect();
                let Some(id) = jobs.get(job % jobs.len().max(1)) else { return };
                let name = format!("actor{project}");
                let actor = Actor::named(name, Role::Submit, Some(format!("project{project}")));
                let cancel = Cancel { actor, jobs: vec![id.clone()], request: None, reason: String::new() };
                self.apply(Input::Cancel(cancel));
            }
            Op::Prioritize { job, project, priority } => {
                let jobs: Vec<JobId> = self.acknowledged.iter().cloned().collect();
                let Some(id) = jobs.get(job % jobs.len().max(1)) else { return };
                let (own, priority) = (format!("project{project}"), i32::from(*priority));
                let actor = Actor::named(format!("actor{project}"), Role::Submit, Some(own.clone()));
                let before = self.state.job(id).cloned();
                let asked = Prioritize { actor, jobs: vec![id.clone()], priority };
                let reply = self.apply(Input::Prioritize(asked));
                let Some(before) = before else { return };
                let now = self.state.job(id).expect("how urgent a job is ends nothing");
                let is_own = before.is_in(&own);
                assert_eq!(matches!(reply, Reply::Prioritized(Ok(_))), is_own, "{id}");
                for (was, is) in before.wants.iter().zip(&now.wants) {
                    let expected = if was.project == own { priority } else { was.priority };
                    assert_eq!(is.priority, expected, "{id}: nobody else's wish is touched");
                }
                assert!(!is_own || now.priority() >= priority, "{id}");
            }
            Op::Connect { agent, fresh, toolchain } => self.connect(*agent, *fresh, *toolchain),
            Op::Disconnect { agent } => {
                if let Some(session) = self.agents[*agent].session.take() {
                    self.apply(Input::Disconnected { session });
                }
            }
            Op::Beat { agent } => {
                let agent = &self.agents[*agent];
                if let Some(session) = agent.session {
                    let leases = agent.leases.clone();
                    self.apply(Input::Heartbeat { session, leases, telemetry: Vec::new() });
                }
            }
            Op::Finish { agent, how, again } => self.finish(*agent, *how, *again),
            Op::Upgrade { agent, toolchain } => {
                let devices = devices(*agent, *toolchain);
                self.agents[*agent].toolchain = *toolchain;
                if let Some(session) = self.agents[*agent].session {
                    self.apply(Input::Inventory { session, devices });
                }
            }
            Op::Drain { agent } => {
                if let Some(session) = self.agents[*agent].session {
                    self.apply(Input::Goodbye { session });
                }
            }
            Op::Wait { ms } => {
                let mut left_ms = u64::from(*ms);
                while left_ms > 0 {
                    let step_ms = left_ms.min(SWEEP_MS);
                    self.now.mono_ms += step_ms;
                    self.now.wall_ms += step_ms;
                    left_ms -= step_ms;
                    self.apply(Input::Tick);
                    self.no_job_stays_with_the_dead();
                }
            }
            Op::JumpClock { minutes } => {
                self.now.wall_ms = self.now.wall_ms.saturating_add_signed(i64::from(*minutes) * 60_000);
            }
            Op::RestartCoordinator => self.restart(),
        }
        self.check();
    }

    /// What an agent held that fell silent is claimable again within its lease and one sweep.
    fn no_job_stays_with_the_dead(&self) {
        for job in self.state.live_jobs().filter(|job| matches!(job.state, JobState::Leased | JobState::Running)) {
            let attempt = job.attempts.last().expect("somebody holds it");
            let agent: usize = attempt.agent.trim_start_matches("agent").parse().unwrap();
            let granted_ms = self.granted_ms[&(job.id.clone(), attempt.number)];
            let silent_ms = self.now.mono_ms - self.last_message_ms[agent].max(granted_ms);
            assert!(
                silent_ms < LEASE_MS + SWEEP_MS,
                "{} is still with {}, silent for {silent_ms} ms",
                job.id,
                attempt.agent
            );
        }
    }

    fn check(&self) {
        assert_eq!(self.state.counters().rescued_wakeups, 0, "the sweep found a lost wake-up");
        for id in &self.acknowledged {
            let ended = self.seen.get(id).is_some_and(|state| state.is_terminal());
            assert!(self.state.job(id).is_some() != ended, "{id} is live or has ended, never both or neither");
        }
    }

    /// Whether nobody offers what it, or a job that it needs, must run on, or nobody who does has what it asks for.
    fn waits_for_a_device(&self, job: &Job) -> bool {
        let mut needs = job.needs.iter().filter_map(|need| self.state.job(need));
        let lacking = || self.state.lookout(self.now).outlook(job).reason.starts_with("no known device");
        job.state == JobState::Unplaceable
            || job.state == JobState::Queued && lacking()
            || job.state == JobState::Blocked && needs.any(|need| self.waits_for_a_device(need))
    }

    /// With every agent back and working, everything ends; what nobody offers keeps waiting and says so.
    fn settle(&mut self) {
        let paused: Vec<PauseId> = self.state.pauses().map(PauseRecord::id).collect();
        for id in paused {
            self.apply(Input::Resume(id));
        }
        for index in 0..AGENTS {
            self.connect(index, true, 1);
        }
        for _ in 0..400 {
            for index in 0..AGENTS {
                self.finish(index, 7, false);
                self.step(&Op::Beat { agent: index });
            }
            self.step(&Op::Wait { ms: 300 });
        }
        for job in self.state.live_jobs() {
            let why = self.state.lookout(self.now).outlook(job).reason;
            assert!(self.waits_for_a_device(job), "{} never ends: {why}", job.id);
            assert!(!self.state.lookout(self.now).outlook(job).reason.is_empty());
        }
        let built: Vec<Job> = now(self.store.jobs(core_filter())).unwrap();
        for job in built.iter().filter(|job| job.state == JobState::Skipped) {
            let failed = |need: &JobId| self.seen.get(need).is_some_and(|state| *state != JobState::Succeeded);
            assert!(job.needed.iter().any(failed) && job.failure.is_some(), "{} was skipped for nothing", job.id);
        }
        let has_engine = |job: &&Job| !job.prepares() && job.kind != core::JobKind::Prepare;
        for job in built.iter().filter(|job| job.state == JobState::Succeeded).filter(has_engine) {
            let builds = job.plan.as_ref().map_or(0, |plan| plan.builds);
            let asked = self.asked_builds.get(&job.id).copied().unwrap_or(1);
            assert!(builds >= asked, "{} was answered from {builds} builds, {asked} were asked for", job.id);
        }
        let mut made = BTreeMap::new();
        let prepared = |job: &&Job| job.made.is_some() && !job.force && !job.cached;
        for job in built.iter().filter(prepared).filter(|job| job.key.is_some_and(|key| !self.forced.contains(&key))) {
            let other = made.insert(job.key, job.id.clone());
            assert_eq!(other, None, "{} prepared what was prepared already", job.id);
        }
        let mut keys = BTreeMap::new();
        for job in built.iter().filter(|job| !job.force && !job.cached && job.makes_engine()) {
            if job.state == JobState::Succeeded && job.key.is_some_and(|key| !self.forced.contains(&key)) {
                let builds = job.plan.as_ref().map(|plan| plan.builds);
                let other = keys.insert((job.key, builds), job.id.clone());
                assert_eq!(other, None, "{} built what was built already", job.id);
            }
        }
    }
}

/// How a model is prepared.
fn way(number: u8) -> Option<PrepareAsk> {
    match number {
        0 => None,
        1 => Some(PrepareAsk::new(Kind::Fp16, Target::Any)),
        // Of the third the engine takes the ranges alone.
        2 | 3 => Some(PrepareAsk::new(Kind::Int8, Target::Any)),
        _ => Some(PrepareAsk::new(Kind::Int8Weights, Target::Any)),
    }
}

/// What is asked of a device: each is met by some, and by not all.
fn required(number: u8) -> Requirement {
    let texts = [&[][..], &["memory=20GiB"], &["memory=40GiB"], &["mig=any"], &["mig=none"]];
    Requirement::of_all(texts[usize::from(number)]).unwrap()
}

/// What `required` speaks of, of each agent's devices.
fn fingerprint(agent: usize) -> String {
    let slice = if agent == 1 { r#","gpu":{"mig":"1g.10gb"}"# } else { "" };
    format!(r#"{{"kind":"cpu","name":"scripted","memory_mib":{}{slice}}}"#, [81_920, 9_856, 24_576][agent])
}

/// A request for nothing yet.
fn asked(sku: u8, eval: bool, sweep: u8) -> Submit {
    let streams = (1..=3).filter(|streams| sweep & (1 << (streams - 1)) != 0).collect();
    Submit {
        actor: "actor0".into(),
        project: "project0".into(),
        request: String::new(),
        idempotency_key: String::new(),
        fingerprint: Digest::of(b""),
        what: SubmitWhat::Build { models: Vec::new(), specs: Vec::new(), constraints: Vec::new() },
        skus: vec![[SKU, "cpu-x86-64-v2", "t4"][usize::from(sku)].parse().unwrap()],
        priority: 0,
        tags: Vec::new(),
        force: false,
        wait_for_device: false,
        follow_toolchain: false,
        allow_inaccurate: false,
        eval: eval.then(|| Digest::of(b"labels")),
        builds: 1,
        measure: MeasureAsk { streams, ..MeasureAsk::default() },
        canary: None,
        compile_only: false,
        no_fallback: false,
        require: Requirement::default(),
        needs: Vec::new(),
        missing: Vec::new(),
        unseen: false,
        over_quota: None,
        missing_plans: Some(Vec::new()),
        disturbed_plans: std::sync::Arc::default(),
        lookup: Lookup::default(),
        ids: Vec::new(),
        audit: None,
        trace: None,
    }
}

/// The session that an input is a message of.
fn session_of(input: &Input) -> Option<SessionId> {
    match input {
        Input::Hello { session, .. }
        | Input::Inventory { session, .. }
        | Input::Heartbeat { session, .. }
        | Input::Started { session, .. }
        | Input::Progress { session, .. }
        | Input::Built { session, .. }
        | Input::Finished { session, .. }
        | Input::Refuse { session, .. }
        | Input::Expel { session, .. }
        | Input::Goodbye { session } => Some(*session),
        Input::Submit(_)
        | Input::Cancel(_)
        | Input::Prioritize(_)
        | Input::Disconnected { .. }
        | Input::LogSealed { .. }
        | Input::Forget(_)
        | Input::Used(_)
        | Input::Stored(_)
        | Input::Tick => None,
        Input::DropCache { .. } | Input::SetProject(_) | Input::AllowPlugin(_) | Input::ForbidPlugin(_) => None,
        Input::Pause(_) | Input::Resume(_) => None,
        Input::RevokeToken { .. }
        | Input::RebindToken { .. }
        | Input::DrainAgent { .. }
        | Input::ForgetAgent { .. } => None,
    }
}

fn core_filter() -> planforge_coordinator::store::JobFilter {
    planforge_coordinator::store::JobFilter { limit: usize::MAX, ..Default::default() }
}

fn devices(agent: usize, toolchain: u8) -> Vec<Device> {
    let offer = Toolchain { backend: "native".into(), version: toolchain.to_string(), components: BTreeMap::new() };
    let with = |names: &[&str]| {
        let components = names.iter().map(|name| ((*name).to_owned(), "12.9".to_owned())).collect();
        Toolchain { components, ..offer.clone() }
    };
    let device = |id: &str, skus: &[&str]| Device {
        id: id.into(),
        skus: skus.iter().map(|sku| sku.parse().unwrap()).collect(),
        fingerprint: fingerprint(agent),
        offers: vec![offer.clone()],
        abilities: BTreeMap::new(),
        draining: false,
        simulated: true,
        quarantined: false,
        quarantine_reason: String::new(),
        threads: 2,
        prepares: Vec::new(),
    };
    let gpu = || Device { offers: vec![with(&["cuda", "cudnn"])], threads: 0, ..device("gpu0", &["t4"]) };
    let two = |one: Device| {
        let other = Toolchain { backend: "onnxruntime".into(), version: "1".into(), components: BTreeMap::new() };
        Device { offers: vec![offer.clone(), other], ..one }
    };
    // Models are prepared by the first two, in the revision that they have now.
    let preparer = Toolchain { backend: PREPARER.into(), version: toolchain.to_string(), components: BTreeMap::new() };
    // The first one is a CPU with two levels behind one lock and two backends; the second, with two backends, too, prepares
    // for the GPU of the third.
    match agent {
        0 => vec![Device { prepares: vec![preparer], ..two(device("cpu0", &["cpu-x86-64-v2", SKU])) }],
        1 => vec![Device { prepares: vec![with(&["cuda"]), preparer], ..two(device("cpu0", &[SKU])) }],
        _ => vec![device("cpu0", &["cpu-x86-64-v2"]), device("cpu1", &[SKU]), gpu()],
    }
}

/// Two measure the same plan, the second on a device that there is none of; then the toolchain goes, and comes back.
#[test]
fn what_waits_for_a_device_runs_once_where_another_does_the_same() {
    let submit = |model, sku, eval, wait, require| Op::Submit {
        model,
        sku,
        force: false,
        wait,
        follow: false,
        priority: 0,
        project: 0,
        eval,
        builds: 1,
        sweep: 0,
        needs: Vec::new(),
        compile: false,
        no_fallback: false,
        prepare: 0,
        require,
    };
    for back in [1, 0] {
        let mut world = World::new();
        for op in [
            Op::Connect { agent: 0, fresh: false, toolchain: 0 },
            submit(2, 1, false, false, 0),
            Op::Finish { agent: 0, how: 4, again: false },
            submit(0, 0, false, false, 0),
            submit(2, 1, true, false, 0),
            submit(2, 1, true, true, 3),
            Op::Connect { agent: 0, fresh: true, toolchain: 1 },
            Op::Connect { agent: 0, fresh: true, toolchain: back },
        ] {
            world.step(&op);
        }
        world.settle();
    }
}

#[test]
fn a_plan_that_goes_with_its_toolchain_is_gone_from_the_store_while_its_job_is_looked_up() {
    let submit = |model, follow, priority| Op::Submit {
        model,
        sku: 0,
        force: false,
        wait: follow,
        follow,
        priority,
        project: 0,
        eval: false,
        builds: 1,
        sweep: 0,
        needs: Vec::new(),
        compile: false,
        no_fallback: false,
        prepare: 0,
        require: 0,
    };
    let connect = |agent, fresh, toolchain| Op::Connect { agent, fresh, toolchain };
    let mut world = World::new();
    for op in [
        submit(0, true, 0),
        connect(0, false, 1),
        Op::Upgrade { agent: 0, toolchain: 0 },
        submit(0, false, 0),
        connect(1, false, 1),
        Op::Built { agent: 0 },
        Op::Disconnect { agent: 0 },
        Op::Disconnect { agent: 0 },
        submit(1, false, 1),
        connect(1, true, 0),
        connect(0, true, 1),
        Op::Disconnect { agent: 0 },
        Op::RestartCoordinator,
    ] {
        world.step(&op);
    }
    world.settle();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, max_shrink_iters: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_history_keeps_the_promises(ops in prop::collection::vec(op(), 1..120)) {
        let mut world = World::new();
        for op in &ops {
            world.step(op);
        }
        world.settle();
    }
}
