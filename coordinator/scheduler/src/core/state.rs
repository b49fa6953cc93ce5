//! The state, and what goes in.

use super::{
    agents::Farewell,
    audit::AuditLine,
    compile::Prepared,
    effects::{Counters, Effects, Reply},
    flight::{Flight, flight_of},
    forget::Forget,
    graph::Woken,
    invariants::{self, Patrol},
    known::{Known, Lookup},
    model::{
        Agent, ArtifactRef, CacheRecord, CacheRef, Canary, Change, Covered, Device, Engine, Event, Failure, Job, JobId,
        JobState, JoinedBy, Made, Model, Outcome, PlanRef, PluginRecord, Report, RequestRecord,
    },
    pauses::{PauseId, PauseRecord},
    preparation::Preparing,
    projects::ProjectRecord,
    queue::{DeviceKey, Queue, Target},
};
use planforge_forecast::Forecaster;
use planforge_proto::ApiError;
use planforge_types::auth::Actor;
use planforge_types::{
    Attributes, BuildSpec, Digest, EngineKey, Requirement, Sku, ToolchainConstraint, TraceContext,
    fingerprint::GpuFacts, order::MeasureAsk, preparation::PrepareAsk,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

/// The time, twice: leases run on the monotonic hand, records carry the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    pub mono_ms: u64,
    pub wall_ms: u64,
}

/// Rules of the farm.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    pub lease_ms: u64,
    /// Attempts of one job before it fails for good.
    pub max_attempts: u32,
    /// How often an unstable measurement is repeated.
    pub max_remeasures: u32,
    /// Jobs that may wait or run at once.
    pub max_live_jobs: usize,
    /// Agents that may be known at once.
    pub max_agents: usize,
    /// Plugins that build specs may name, by the coordinator's configuration.
    pub plugins: BTreeSet<Digest>,
}

impl Default for CoreConfig {
    fn default() -> Self {
        Self {
            lease_ms: 15_000,
            max_attempts: 3,
            max_remeasures: 2,
            max_live_jobs: 100_000,
            max_agents: 20_000,
            plugins: BTreeSet::new(),
        }
    }
}

/// A job whose last attempt lost its agent may still be revived for this many leases before it fails for good.
pub(super) const LAST_CHANCE_LEASES: u64 = 8;
/// Requests whose idempotency keys are kept in memory; older ones are asked of the store.
const REQUESTS_KEPT: usize = 50_000;
/// Ended leases kept in memory so that a repeated `Finished` is answered without the store.
const ENDED_KEPT: usize = 50_000;
/// Above this many live jobs the whole state is no longer checked after each input of a debug build.
const CHECK_LIVE_JOBS: usize = 64;

/// One connection of an agent; a new one for every stream.
pub type SessionId = u64;

/// Names one lease; the attempt number fences it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseRef {
    pub job: JobId,
    pub attempt: u32,
    pub device: String,
}

/// A request, already read and bounded.
#[derive(Clone, Debug)]
pub struct Submit {
    pub actor: String,
    pub project: String,
    pub request: String,
    pub idempotency_key: String,
    pub fingerprint: Digest,
    /// What to build, or for a benchmark the plan to measure.
    pub what: SubmitWhat,
    pub skus: Vec<Sku>,
    pub priority: i32,
    pub tags: Vec<String>,
    pub force: bool,
    pub wait_for_device: bool,
    pub follow_toolchain: bool,
    pub allow_inaccurate: bool,
    pub eval: Option<Digest>,
    /// At least 1.
    pub builds: u32,
    pub measure: MeasureAsk,
    /// Of a request for one engine.
    pub canary: Option<Canary>,
    /// Of a build: without measuring, or without the device.
    pub compile_only: bool,
    /// Where no toolchain is named and the best cannot build a model, no other is asked.
    pub no_fallback: bool,
    /// What it asks of the devices that run its jobs.
    pub require: Requirement,
    /// Jobs that must succeed before any of the request's. One that prepares what the request wants prepared is taken for
    /// that.
    pub needs: Vec<Need>,
    /// Blobs the request names that are not in the blob store.
    pub missing: Vec<Digest>,
    /// Some of what the request names was never shown by its project: it is told nothing about it before it is.
    pub unseen: bool,
    /// Why nothing new may be built or measured for its project: its quota, or a disk that has little left.
    pub over_quota: Option<ApiError>,
    /// Plans of stored engines that are not in the blob store any more: they answer nothing. `None`: nobody looked yet.
    pub missing_plans: Option<Vec<Digest>>,
    /// Plans of stored engines whose every window was disturbed, where the request wants such built again.
    pub disturbed_plans: Arc<BTreeSet<Digest>>,
    /// What the store has under the keys that it comes to, as far as somebody looked.
    pub lookup: Lookup,
    /// One fresh id per combination.
    pub ids: Vec<JobId>,
    /// What the audit log is to say of it, in the transaction that takes it.
    pub audit: Option<Box<AuditLine>>,
    /// The trace that its jobs belong to.
    pub trace: Option<TraceContext>,
}

/// A job that a request's jobs need, as the store had it when somebody looked.
#[derive(Clone, Debug)]
pub struct Need {
    pub job: JobId,
    /// How it ended; `None`: it had not.
    pub ended: Option<JobState>,
    /// What it prepared for builds that need it.
    pub prepared: Option<Prepared>,
    /// Of a prepare job.
    pub prepares: Option<Preparing>,
}

/// A spec, and how models are prepared before they are built by it.
#[derive(Clone, Debug)]
pub struct SpecAsk {
    pub spec: BuildSpec,
    pub prepare: Option<PrepareAsk>,
    /// The engine is of the model as it is, and takes the ranges that are found as its calibration.
    pub calibrates: bool,
}

#[derive(Clone, Debug)]
pub enum SubmitWhat {
    /// Without SKUs or specs, models are only prepared.
    Build {
        models: Vec<Model>,
        specs: Vec<SpecAsk>,
        constraints: Vec<(String, ToolchainConstraint)>,
    },
    Benchmark(Box<Engine>),
}

/// A request to withdraw interest in jobs.
#[derive(Clone, Debug)]
pub struct Cancel {
    pub actor: Actor,
    pub jobs: Vec<JobId>,
    /// Only this request's interest.
    pub request: Option<String>,
    pub reason: String,
}

/// The first message of an agent's session.
#[derive(Clone, Debug)]
pub struct HelloIn {
    pub agent: String,
    pub incarnation: String,
    pub name: String,
    pub version: String,
    pub devices: Vec<Device>,
    pub leases: Vec<LeaseRef>,
    pub draining: bool,
    pub finished: Vec<FinishedIn>,
    pub joined_by: JoinedBy,
    /// Protocol that is spoken from now on.
    pub protocol: u32,
    pub memory_bytes: u64,
    pub labels: BTreeMap<String, String>,
}

/// The end of an attempt, its documents already read and checked.
#[derive(Clone, Debug)]
pub struct FinishedIn {
    pub lease: LeaseRef,
    pub outcome: FinishedOutcome,
    pub plan: Option<PlanRef>,
    pub report: Option<ReportIn>,
    pub log: Option<Digest>,
    pub accurate: bool,
    pub artifacts: Vec<ArtifactRef>,
    pub cache: Option<CacheUpdate>,
    /// The attempt broke down while it used a timing cache.
    pub suspects_cache: bool,
    /// What a compile job prepared for a device elsewhere.
    pub prepared: Option<CacheRef>,
    /// What a prepare job made.
    pub made: Option<Made>,
}

/// What a finished build learnt, to be published in the transaction that takes the build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheUpdate {
    pub scope: Digest,
    pub cache: CacheRef,
    /// The newest one when the build was assigned.
    pub previous: Option<Digest>,
    /// Of those beside that: what it holds now, or what cannot be joined.
    pub beside: BTreeSet<Digest>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum FinishedOutcome {
    Succeeded,
    Failed(Failure),
    Cancelled,
}

/// A report that was read and is valid JSON.
#[derive(Clone, Debug)]
pub struct ReportIn {
    pub digest: Digest,
    /// It has an accuracy: counted on the job's test set.
    pub has_accuracy: bool,
    /// Digest of the given inputs that outputs were compared on, as it says.
    pub inputs: Option<Digest>,
    pub simulated: bool,
    pub document: String,
}

/// Everything that can happen.
#[derive(Clone, Debug)]
pub enum Input {
    Submit(Box<Submit>),
    Cancel(Cancel),
    Prioritize(super::Prioritize),
    Hello {
        session: SessionId,
        hello: Box<HelloIn>,
    },
    Inventory {
        session: SessionId,
        devices: Vec<Device>,
    },
    Heartbeat {
        session: SessionId,
        leases: Vec<LeaseRef>,
        telemetry: Vec<(String, String)>,
    },
    Started {
        session: SessionId,
        lease: LeaseRef,
    },
    Progress {
        session: SessionId,
        lease: LeaseRef,
        phase: String,
        fraction: f32,
        detail: String,
    },
    Built {
        session: SessionId,
        lease: LeaseRef,
        plan: PlanRef,
    },
    Finished {
        session: SessionId,
        finished: Box<FinishedIn>,
    },
    /// An administrator made the next build of a scope begin from nothing.
    DropCache {
        scope: Digest,
    },
    /// A project's share and limits, as they are from now on.
    SetProject(ProjectRecord),
    AllowPlugin(PluginRecord),
    ForbidPlugin(Digest),
    /// In place of one of the same thing.
    Pause(Box<PauseRecord>),
    Resume(PauseId),
    /// Drained: it wants no more leases.
    Goodbye {
        session: SessionId,
    },
    Disconnected {
        session: SessionId,
    },
    /// The stream said what makes no sense, or too much, and is to end. What its agent holds stays with it.
    Refuse {
        session: SessionId,
        why: Farewell,
    },
    /// Who is behind the stream may not be an agent any more: what it holds is taken back.
    Expel {
        session: SessionId,
        why: Farewell,
    },
    /// Ends a token and the stay of the agents that joined with it.
    RevokeToken {
        token: String,
        why: Farewell,
    },
    /// Gives an agent's token to another agent, or to the next one that uses it.
    RebindToken {
        token: String,
        agent: Option<String>,
        why: Farewell,
    },
    DrainAgent {
        agent: String,
        drained: bool,
    },
    ForgetAgent {
        agent: String,
        force: bool,
    },
    /// The log of an attempt that ended without its agent's help was stored.
    LogSealed {
        job: JobId,
        attempt: u32,
        log: Digest,
        ended: Option<Box<Job>>,
    },
    /// A policy let this go.
    Forget(Box<Forget>),
    /// Engines that somebody fetches.
    Used(Vec<EngineKey>),
    /// What the store had under keys that [`super::Effects`] asked for.
    Stored(Box<Lookup>),
    /// The sweep: once a second.
    Tick,
}

/// What the store gives at start.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Jobs that have not ended.
    pub jobs: Vec<Job>,
    /// Of those that ended the latest, oldest first: what durations are foretold from.
    pub latest: Vec<Job>,
    pub agents: Vec<Agent>,
    pub caches: Vec<CacheRecord>,
    pub plugins: Vec<PluginRecord>,
    pub pauses: Vec<PauseRecord>,
    pub projects: Vec<ProjectRecord>,
    /// Number of the newest event, 0 when none.
    pub last_event: u64,
}

/// Who holds a job. Not durable: after a restart every open attempt gets a fresh lease.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    pub attempt: u32,
    pub device: DeviceKey,
    pub deadline_mono_ms: u64,
    /// Claimable by others, and revivable until one of them claims it.
    pub expired: bool,
    /// Whose share it counts against.
    pub project: String,
    /// Phases and plans that its agent reported: each is an event.
    pub reports: u32,
    /// What its attempt was told to do; the job asks for just that as long as it is held.
    pub ordered: Ordered,
}

/// The parts of a job that may rise while it waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ordered {
    pub builds: u32,
    pub covered: Covered,
}

impl Ordered {
    pub fn of(job: &Job) -> Self {
        Self { builds: job.builds, covered: job.covered() }
    }
}

/// An agent and, while it is connected, its session.
#[derive(Clone, Debug)]
pub(super) struct AgentEntry {
    pub record: Agent,
    pub session: Option<SessionId>,
    pub incarnation: String,
    pub last_message_mono_ms: u64,
    pub draining: bool,
    /// By device id, JSON text.
    pub telemetry: BTreeMap<String, String>,
}

/// The whole farm in memory.
#[derive(Debug)]
pub struct State {
    pub(super) config: CoreConfig,
    pub(super) last_event: u64,
    /// Jobs that have not ended.
    pub(super) jobs: BTreeMap<JobId, Arc<Job>>,
    pub(super) holds: BTreeMap<JobId, Hold>,
    /// Which job occupies a device. An expired hold occupies it too until the agent is heard without it.
    pub(super) busy: BTreeMap<DeviceKey, JobId>,
    pub(super) flights: BTreeMap<Flight, JobId>,
    /// Who waits for a job to end.
    pub(super) dependents: BTreeMap<JobId, BTreeSet<JobId>>,
    /// Jobs whose wait for another one is over, to be decided about before the input is done.
    pub(super) woken: VecDeque<Woken>,
    /// Somebody takes care of `woken` already.
    pub(super) waking: bool,
    pub(super) unplaceable: BTreeSet<JobId>,
    pub(super) queue: Queue,
    /// What this state changed of what the store has under engine keys.
    pub(super) known: Known,
    /// Jobs about which nothing is decided before somebody looked under their key, and what their event will be called.
    pub(super) asking: BTreeMap<JobId, &'static str>,
    /// Jobs that nobody can run are to be looked at again.
    place_again: bool,
    /// A test broke it on purpose: what breaks of it is told, and ends nothing here.
    harmed: bool,
    pub(super) forecaster: Forecaster,
    /// The newest timing or tactic cache of each scope.
    pub(super) caches: BTreeMap<Digest, CacheRecord>,
    /// Plugins that build specs may name, beside those of the configuration.
    pub(super) plugins: BTreeMap<Digest, PluginRecord>,
    pub(super) pauses: BTreeMap<PauseId, PauseRecord>,
    /// Those that hold, as they were looked at last.
    pub(super) paused: BTreeSet<PauseId>,
    /// Shares and limits of the projects that have some.
    pub(super) projects: BTreeMap<String, ProjectRecord>,
    /// Live jobs by the project that pays for them.
    pub(super) live_of: BTreeMap<String, usize>,
    pub(super) agents: BTreeMap<String, AgentEntry>,
    pub(super) sessions: BTreeMap<SessionId, String>,
    /// What known devices have of what jobs may ask for.
    pub(super) attributes: BTreeMap<DeviceKey, Attributes>,
    /// What known GPUs say of themselves, so that no submission reads every device's description.
    pub(super) gpus: BTreeMap<DeviceKey, GpuFacts>,
    /// Known devices, offline ones too, by what they offer.
    pub(super) offers: BTreeMap<Target, BTreeSet<DeviceKey>>,
    /// Connected, willing and free devices, by what they offer.
    pub(super) idle: BTreeMap<Target, BTreeSet<DeviceKey>>,
    /// Devices and targets to look at before the input is done.
    pub(super) dirty_devices: BTreeSet<DeviceKey>,
    pub(super) dirty_targets: BTreeSet<Target>,
    requests: BTreeMap<(String, String), RequestRecord>,
    request_order: VecDeque<(String, String)>,
    pub(super) ended: BTreeMap<(JobId, u32), bool>,
    /// Tokens that were revoked since this state was loaded: a hello that was on its way meanwhile comes too late.
    pub(super) revoked_tokens: BTreeSet<String>,
    ended_order: VecDeque<(JobId, u32)>,
    pub(super) counters: Counters,
    patrol: Patrol,
    /// What was wrong with the jobs that were loaded.
    loaded_broken: Vec<String>,
}

impl State {
    /// Takes up where the store says the farm stood. Open attempts get a fresh lease to be resumed in.
    pub fn new(config: CoreConfig, snapshot: Snapshot, now: Now) -> Self {
        let mut state = Self {
            config: config.clone(),
            last_event: snapshot.last_event,
            jobs: BTreeMap::new(),
            holds: BTreeMap::new(),
            busy: BTreeMap::new(),
            flights: BTreeMap::new(),
            dependents: BTreeMap::new(),
            woken: VecDeque::new(),
            waking: false,
            unplaceable: BTreeSet::new(),
            queue: Queue::default(),
            known: Known::default(),
            asking: BTreeMap::new(),
            place_again: false,
            harmed: false,
            forecaster: Forecaster::default(),
            caches: snapshot.caches.into_iter().map(|cache| (cache.scope, cache)).collect(),
            projects: BTreeMap::new(),
            live_of: BTreeMap::new(),
            plugins: snapshot.plugins.into_iter().map(|plugin| (plugin.digest, plugin)).collect(),
            paused: snapshot.pauses.iter().filter(|pause| pause.holds_at(now.wall_ms)).map(PauseRecord::id).collect(),
            pauses: snapshot.pauses.into_iter().map(|pause| (pause.id(), pause)).collect(),
            agents: BTreeMap::new(),
            sessions: BTreeMap::new(),
            attributes: BTreeMap::new(),
            gpus: BTreeMap::new(),
            offers: BTreeMap::new(),
            idle: BTreeMap::new(),
            dirty_devices: BTreeSet::new(),
            dirty_targets: BTreeSet::new(),
            requests: BTreeMap::new(),
            request_order: VecDeque::new(),
            ended: BTreeMap::new(),
            revoked_tokens: BTreeSet::new(),
            ended_order: VecDeque::new(),
            counters: Counters::default(),
            patrol: Patrol::default(),
            loaded_broken: Vec::new(),
        };
        for record in snapshot.projects {
            state.queue.weigh(&record.name, record.share);
            state.projects.insert(record.name.clone(), record);
        }
        for record in snapshot.agents {
            let entry = AgentEntry {
                record,
                session: None,
                incarnation: String::new(),
                last_message_mono_ms: now.mono_ms,
                draining: false,
                telemetry: BTreeMap::new(),
            };
            state.agents.insert(entry.record.id.clone(), entry);
        }
        let live: BTreeSet<JobId> = snapshot.jobs.iter().map(|job| job.id.clone()).collect();
        for mut job in snapshot.jobs {
            if job.state.is_terminal() {
                continue;
            }
            // What it waited for ended, and its own fate waited for a look into the store: had it needed what did not
            // succeed, it would have been skipped with that.
            if job.state == JobState::Blocked {
                job.needs.retain(|need| live.contains(need));
                if job.needs.is_empty() {
                    state.asking.insert(job.id.clone(), "unblocked");
                }
            }
            let id = job.id.clone();
            // A queued job with an open attempt is one whose lease expired: its holder may still revive it.
            let expired = job.state == JobState::Queued;
            if (expired || matches!(job.state, JobState::Leased | JobState::Running))
                && let Some(attempt) = job.attempts.last().filter(|attempt| attempt.outcome == Outcome::Running)
            {
                let device = DeviceKey { agent: attempt.agent.clone(), device: attempt.device.clone() };
                state.busy.insert(device.clone(), id.clone());
                let hold = Hold {
                    attempt: attempt.number,
                    device,
                    deadline_mono_ms: now.mono_ms + config.lease_ms,
                    expired,
                    project: job.project().to_owned(),
                    reports: 0,
                    ordered: Ordered::of(&job),
                };
                if !expired {
                    state.queue.served(&hold.project, attempt.started_ms);
                }
                state.holds.insert(id.clone(), hold);
            }
            for need in &job.needs {
                state.dependents.entry(need.clone()).or_default().insert(id.clone());
            }
            state.charge(job.project(), 1);
            state.jobs.insert(id.clone(), Arc::new(job));
            state.index(&id);
        }
        for job in &snapshot.latest {
            state.learn_duration(job);
        }
        let agents: Vec<String> = state.agents.keys().cloned().collect();
        for agent in agents {
            state.reindex_agent(&agent);
        }
        (state.patrol, state.loaded_broken) = Patrol::begin(&state);
        state
    }

    /// Rules that jobs broke when they were loaded; they are left as they are.
    pub fn loaded_broken(&self) -> &[String] {
        &self.loaded_broken
    }

    /// Carries over from `before` who is connected, after the store refused changes and the state was loaded anew.
    pub fn adopt_sessions(&mut self, before: &State, except: &BTreeSet<SessionId>) {
        for (session, agent) in &before.sessions {
            let (Some(old), Some(entry)) = (before.agents.get(agent), self.agents.get_mut(agent)) else { continue };
            // Only what the store also knows: an agent whose inventory was not stored says hello again.
            let (was, is) = (&old.record, &entry.record);
            if except.contains(session) || (&was.devices, &was.labels) != (&is.devices, &is.labels) {
                continue;
            }
            *entry = AgentEntry { record: entry.record.clone(), ..old.clone() };
            self.sessions.insert(*session, agent.clone());
            self.reindex_agent(agent);
        }
        self.counters = before.counters.clone();
        // What was being decided about jobs that nobody could run was forgotten with the state before.
        self.place_again = true;
    }

    /// Begins every deadline anew: nobody could be heard while the store took no writes.
    pub fn begin_deadlines_anew(&mut self, now: Now) {
        for entry in self.agents.values_mut() {
            entry.last_message_mono_ms = now.mono_ms;
        }
        for hold in self.holds.values_mut() {
            hold.deadline_mono_ms = now.mono_ms + self.config.lease_ms;
        }
    }

    /// Sessions that are connected.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.sessions.keys().copied()
    }

    /// Applies one input. The effects are in causal order.
    pub fn apply(&mut self, input: Input, now: Now) -> Effects {
        let mut effects = Effects::default();
        let sweep = matches!(input, Input::Tick);
        match input {
            Input::Submit(submit) => effects.reply = Reply::Submitted(self.submit(*submit, now, &mut effects)),
            Input::Cancel(cancel) => effects.reply = Reply::Cancelled(self.cancel(cancel, now, &mut effects)),
            Input::Prioritize(asked) => {
                effects.reply = Reply::Prioritized(self.prioritize(asked, now, &mut effects));
            }
            Input::Hello { session, hello } => self.hello(session, *hello, now, &mut effects),
            Input::Inventory { session, devices } => self.inventory(session, devices, now, &mut effects),
            Input::Heartbeat { session, leases, telemetry } => {
                self.heartbeat(session, leases, telemetry, now, &mut effects);
            }
            Input::Started { session, lease } => self.started(session, &lease, now, &mut effects),
            Input::Progress { session, lease, phase, fraction, detail } => {
                self.progress(session, &lease, &phase, fraction, &detail, now, &mut effects);
            }
            Input::Built { session, lease, plan } => self.built(session, &lease, plan, now, &mut effects),
            Input::Finished { session, finished } => self.finished(session, *finished, now, &mut effects),
            Input::DropCache { scope } => self.drop_cache(scope, now, &mut effects),
            Input::SetProject(record) => self.set_project(record, &mut effects),
            Input::AllowPlugin(plugin) => self.allow_plugin(plugin, &mut effects),
            Input::ForbidPlugin(digest) => self.forbid_plugin(digest, now, &mut effects),
            Input::Pause(record) => self.pause(*record, now, &mut effects),
            Input::Resume(id) => self.resume(id, now, &mut effects),
            Input::Goodbye { session } => self.goodbye(session, now),
            Input::Disconnected { session } => self.disconnected(session, now, &mut effects),
            Input::Refuse { session, why } => self.refuse(session, why, now, &mut effects),
            Input::Expel { session, why } => self.expel_session(session, why, now, &mut effects),
            Input::RevokeToken { token, why } => self.revoke_token(token, &why, now, &mut effects),
            Input::RebindToken { token, agent, why } => self.rebind_token(token, agent, &why, now, &mut effects),
            Input::DrainAgent { agent, drained } => self.drain_agent(&agent, drained, now, &mut effects),
            Input::ForgetAgent { agent, force } => self.forget_agent(&agent, force, now, &mut effects),
            Input::LogSealed { job, attempt, log, ended } => {
                self.log_sealed(&job, attempt, log, ended.map(|job| *job), &mut effects);
            }
            Input::Forget(forget) => self.forget(*forget, now, &mut effects),
            Input::Used(keys) => self.used(keys, now, &mut effects),
            Input::Stored(lookup) => self.looked_up(&lookup, now, &mut effects),
            Input::Tick => self.tick(now, &mut effects),
        }
        self.dispatch(now, &mut effects);
        if sweep {
            self.sweep(now, &mut effects);
        }
        let mut patrol = std::mem::take(&mut self.patrol);
        effects.broken = patrol.look(self, &effects);
        self.patrol = patrol;
        if cfg!(debug_assertions) && !self.harmed && self.loaded_broken().is_empty() {
            assert!(effects.broken.is_empty(), "{:?}", effects.broken);
            if self.jobs.len() <= CHECK_LIVE_JOBS {
                invariants::check(self).unwrap_or_else(|broken| panic!("{broken:?}"));
            }
        }
        effects
    }

    /// Forgets a queued job's place, as a bug would, for tests of what is done about it.
    #[cfg(feature = "testing")]
    pub fn lose_place(&mut self, id: &JobId) {
        self.harmed = true;
        let job = self.jobs.get(id).cloned().expect("a live job");
        self.queue.remove(&job);
    }

    /// Records a transition of `id`: one event and the job as it now stands.
    pub(super) fn record(
        &mut self,
        effects: &mut Effects,
        now: Now,
        id: &JobId,
        actor: &str,
        what: &str,
        detail: impl Into<String>,
    ) {
        let Some(job) = self.jobs.get(id) else { return };
        self.last_event += 1;
        effects.changes.push(Change::Job(job.clone()));
        effects.changes.push(Change::Event(Event {
            seq: self.last_event,
            at_ms: now.wall_ms,
            job: id.clone(),
            actor: actor.to_owned(),
            what: what.to_owned(),
            state: job.state,
            attempt: job.attempt(),
            phase: job.phase.clone(),
            detail: detail.into(),
        }));
        effects.snapshots.push(job.clone());
    }

    pub(super) fn job_mut(&mut self, id: &JobId) -> Option<&mut Job> {
        self.jobs.get_mut(id).map(Arc::make_mut)
    }

    /// Puts a live job where its state says that it waits.
    pub(super) fn index(&mut self, id: &JobId) {
        let Some(job) = self.jobs.get(id).cloned() else { return };
        match job.state {
            JobState::Queued => {
                if let Some(target) = Target::of(&job) {
                    self.queue.insert(&job, target.clone());
                    self.dirty_targets.insert(target);
                }
            }
            JobState::Unplaceable => {
                self.unplaceable.insert(id.clone());
            }
            _ => {}
        }
        if let Some(flight) = flight_of(&job) {
            self.flights.entry(flight).or_insert_with(|| id.clone());
        }
    }

    /// Takes a job out of every index; its state may change then.
    pub(super) fn unindex(&mut self, id: &JobId) {
        let Some(job) = self.jobs.get(id).cloned() else { return };
        self.queue.remove(&job);
        self.unplaceable.remove(id);
        if let Some(flight) = flight_of(&job)
            && self.flights.get(&flight) == Some(id)
        {
            self.flights.remove(&flight);
        }
    }

    /// Changes a job's state with its indices.
    pub(super) fn set_state(&mut self, id: &JobId, change: impl FnOnce(&mut Job)) {
        self.unindex(id);
        if let Some(job) = self.job_mut(id) {
            let paid = job.project().to_owned();
            change(job);
            let pays = job.project().to_owned();
            if paid != pays {
                self.charge(&paid, -1);
                self.charge(&pays, 1);
            }
        }
        self.index(id);
    }

    pub(super) fn remember_request(&mut self, record: &RequestRecord) {
        let key = (record.project.clone(), record.idempotency_key.clone());
        if self.requests.insert(key.clone(), record.clone()).is_none() {
            self.request_order.push_back(key);
        }
        while self.request_order.len() > REQUESTS_KEPT {
            if let Some(oldest) = self.request_order.pop_front() {
                self.requests.remove(&oldest);
            }
        }
    }

    /// In what is remembered of requests, a job whose place another one took.
    pub(super) fn replace_in_requests(&mut self, requests: &BTreeSet<String>, from: &JobId, to: &JobId) {
        for record in self.requests.values_mut().filter(|record| requests.contains(&record.id)) {
            record.jobs.iter_mut().filter(|job| *job == from).for_each(|job| *job = to.clone());
        }
    }

    pub(super) fn known_request(&self, project: &str, key: &str) -> Option<&RequestRecord> {
        self.requests.get(&(project.to_owned(), key.to_owned()))
    }

    pub(super) fn remember_ended(&mut self, job: JobId, attempt: u32, accepted: bool) {
        if self.ended.insert((job.clone(), attempt), accepted).is_none() {
            self.ended_order.push_back((job, attempt));
        }
        while self.ended_order.len() > ENDED_KEPT {
            if let Some(oldest) = self.ended_order.pop_front() {
                self.ended.remove(&oldest);
            }
        }
    }

    /// Adds what a report tells to what requests are answered from.
    pub(super) fn learn_report(&mut self, report: &Report, accurate: bool) {
        if let Some(key) = report.key {
            self.known.measured(key, report.plan, Covered::of(report), report.digest, accurate);
        }
    }

    /// What comes with time alone.
    fn tick(&mut self, now: Now, effects: &mut Effects) {
        self.look_at_pauses(now, effects);
        self.expire(now, effects);
        if std::mem::take(&mut self.place_again) {
            self.place_all(now, effects);
        }
        if !self.asking.is_empty() {
            self.decide_asking(&Lookup::default(), now, effects);
        }
    }

    /// A job that has not ended.
    pub fn job(&self, id: &JobId) -> Option<&Arc<Job>> {
        self.jobs.get(id)
    }

    /// Jobs that have not ended.
    pub fn live_jobs(&self) -> impl Iterator<Item = &Arc<Job>> {
        self.jobs.values()
    }

    /// How many jobs have not ended.
    pub fn live_count(&self) -> usize {
        self.jobs.len()
    }

    pub fn last_event(&self) -> u64 {
        self.last_event
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Claim latencies since the last call.
    pub fn take_claims(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.counters.claims_ms)
    }

    /// Attempts that ended since the last call, and how long each took.
    pub fn take_attempts(&mut self) -> Vec<(Outcome, u64)> {
        std::mem::take(&mut self.counters.attempts_ms)
    }
}
