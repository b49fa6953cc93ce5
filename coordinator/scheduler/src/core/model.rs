//! What the farm knows: plain records that the store keeps as they are.

use super::{
    abilities::Abilities,
    audit::{AuditKind, AuditLine},
    blob_refs::{BlobHolder, Held, Hold},
    declarations::{DeclarationId, DeclarationRecord},
    fallback::Tried,
    pins::{PinId, PinRecord},
    projects::ProjectRecord,
};
use planforge_types::{
    BuildSpec, Digest, EngineKey, FailureClass, Lack, Reason, Requirement, Sku, Toolchain, TraceContext,
    order::MeasureAsk,
    preparation::{PrepareAsk, PreparedFrom},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, sync::Arc};

/// A job's name: twelve random characters, so that a short prefix tells jobs apart.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct JobId(Arc<str>);

impl JobId {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for JobId {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<&str> for JobId {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<JobId> for String {
    fn from(id: JobId) -> Self {
        id.0.as_ref().to_owned()
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobId({})", self.0)
    }
}

/// What a job does. Other kinds of the contract are refused at submission until a backend needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobKind {
    /// Compile, verify, measure.
    Build,
    /// Measure an existing plan.
    Benchmark,
    /// Compile without measuring, or without the device: see `compile`.
    Compile,
    /// Make a model of other number types: see `preparation`.
    Prepare,
}

impl JobKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Build => "build",
            Self::Benchmark => "benchmark",
            Self::Compile => "compile",
            Self::Prepare => "prepare",
        }
    }
}

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// Waits for the jobs it needs.
    Blocked,
    Queued,
    /// An agent was told; it has not said that it started.
    Leased,
    Running,
    Succeeded,
    Failed,
    Cancelled,
    /// A job it needed did not succeed.
    Skipped,
    /// Waits for a device or toolchain that nobody known offers.
    Unplaceable,
}

impl JobState {
    pub const ALL: [Self; 9] = [
        Self::Blocked,
        Self::Queued,
        Self::Leased,
        Self::Running,
        Self::Succeeded,
        Self::Failed,
        Self::Cancelled,
        Self::Skipped,
        Self::Unplaceable,
    ];

    /// Whether nothing can happen to the job any more.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled | Self::Skipped)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Blocked => "blocked",
            Self::Queued => "queued",
            Self::Leased => "leased",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Skipped => "skipped",
            Self::Unplaceable => "unplaceable",
        }
    }

    /// The state of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

/// Why an attempt or a job failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub class: FailureClass,
    pub message: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
    /// What the agent's host had too little of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lacked: Option<Lack>,
    /// Of a refused model or engine, where something follows from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
}

/// Longest failure message or hint that is kept; agents' texts come from compilers and may be long.
const FAILURE_TEXT_MAX_BYTES: usize = 8 * 1024;

impl Failure {
    pub fn new(class: FailureClass, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { class, message: clip(message.into()), hint: clip(hint.into()), lacked: None, reason: None }
    }
}

fn clip(mut text: String) -> String {
    if text.len() > FAILURE_TEXT_MAX_BYTES {
        let end = (0..=FAILURE_TEXT_MAX_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

/// One file of a model, found in the blob store by its digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFile {
    pub name: String,
    pub digest: Digest,
    pub size_bytes: u64,
}

/// A model as its submitter described it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    pub digest: Digest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph_digest: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structure_digest: Option<Digest>,
    pub name: String,
    pub files: Vec<ModelFile>,
}

/// One request's interest in a job. A job lives until it ends or nobody wants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Want {
    pub request: String,
    pub project: String,
    pub actor: String,
    pub priority: i32,
    /// `NAME` or `NAME=VALUE`: what the request is found by, no part of any key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// It named its toolchain, or said that it wants no other than the best: see `fallback`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_fallback: bool,
    /// What it asks of the device that runs the job.
    #[serde(default, skip_serializing_if = "Requirement::is_empty")]
    pub require: Requirement,
}

/// How an attempt stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Running,
    Succeeded,
    Failed,
    Cancelled,
    /// Its lease ran out, or its agent came back without it.
    Lost,
}

impl Outcome {
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Lost => "lost",
        }
    }
}

/// One run of a job under a lease; its number fences it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Counts from 1.
    pub number: u32,
    /// Stable id of the agent.
    pub agent: String,
    /// Name of the agent's host, for people.
    pub agent_name: String,
    pub device: String,
    pub started_ms: u64,
    /// 0 while it runs.
    pub ended_ms: u64,
    pub outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<Digest>,
    /// It broke down while it used a timing cache: the next attempt goes without.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspects_cache: bool,
    /// The plan that it said it built.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub built: Option<Digest>,
    /// The lease was taken back for what has nothing to do with the job (its agent's token was revoked, say): it is none
    /// of the attempts that the job may have.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub taken_back: bool,
}

/// A plan in the blob store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanRef {
    pub digest: Digest,
    pub size_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<Digest>,
    /// From how many builds it was chosen.
    #[serde(default = "once", skip_serializing_if = "is_once")]
    pub builds: u32,
}

fn once() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_once(builds: &u32) -> bool {
    *builds == 1
}

/// A file that a measurement left beside its report, in the blob store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactRef {
    pub name: String,
    pub digest: Digest,
    pub size_bytes: u64,
}

/// What a job's engine is held against before the job succeeds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Canary {
    pub plan: Digest,
    /// By which the median may be slower.
    pub slower_percent: f64,
}

/// What a prepare job made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    pub model: Model,
    /// What became of which layer, and why.
    pub document: Digest,
}

/// A model that was prepared, by the key of how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreparationRecord {
    pub key: EngineKey,
    /// The newest that came to it: the record is kept as long as that is.
    pub job: JobId,
    pub made: Made,
}

/// A job with everything that was decided about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    pub id: JobId,
    pub kind: JobKind,
    pub state: JobState,
    /// `None` while no toolchain is resolved.
    pub key: Option<EngineKey>,
    pub model: Model,
    pub sku: Sku,
    /// Toolchain constraint as asked; empty: any.
    pub constraint: String,
    pub toolchain: Option<Toolchain>,
    /// As asked; `spec` has what was resolved from it.
    pub asked_threads: Option<u32>,
    pub spec: BuildSpec,
    pub force: bool,
    pub follow_toolchain: bool,
    pub wait_for_device: bool,
    pub allow_inaccurate: bool,
    pub eval: Option<Digest>,
    /// How often it is built and measured under one lease; no part of the key. It rises while the job waits and
    /// somebody asks for more; nothing changes it while the job is held.
    #[serde(default = "once", skip_serializing_if = "is_once")]
    pub builds: u32,
    /// The stored plan that it takes the place of, because every window of its measurement was disturbed: it is no answer
    /// to this job, nor are timings of that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<Digest>,
    /// What is measured beside the usual; no part of the key. It grows while the job waits, like `builds`.
    #[serde(default, skip_serializing_if = "MeasureAsk::is_empty")]
    pub measure: MeasureAsk,
    /// Who wants it; the first one's project pays for it.
    pub wants: Vec<Want>,
    /// Of what it waits for now: jobs that must succeed first, or with `recheck` only end.
    pub needs: Vec<JobId>,
    /// What it was submitted to need, whether that ended or not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needed: Vec<JobId>,
    /// The highest priority of a job that waits for this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifted_to: Option<i32>,
    /// When what it needs has ended it is admitted anew: the answer may be in the store by then.
    pub recheck: bool,
    /// Every attempt so far; the last one's number is the fence.
    pub attempts: Vec<Attempt>,
    /// Attempts that only the measurement's unrest ended.
    pub remeasures: u32,
    pub phase: String,
    /// 0..=1 of the phase; changes between events, so the store's value is old.
    #[serde(default)]
    pub progress: f32,
    pub created_ms: u64,
    /// When it last became claimable.
    pub queued_ms: u64,
    /// First lease, 0 when none.
    pub started_ms: u64,
    /// 0 while it lives.
    pub ended_ms: u64,
    pub failure: Option<Failure>,
    pub plan: Option<PlanRef>,
    /// For a benchmark: the SKU that `plan` was built for, `sku` or another one whose devices can run it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub built_for: Option<Sku>,
    pub report: Option<Digest>,
    pub cached: bool,
    pub accurate: bool,
    /// Nobody wants it any more and its holder was told.
    pub cancelling: Option<String>,
    /// What a compile job prepared for a device elsewhere; of a build, what a job that it needed prepared for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepared: Option<CacheRef>,
    /// Of a prepare job: what its model is to become.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepare: Option<Box<PrepareAsk>>,
    /// Of a prepare job that succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made: Option<Box<Made>>,
    /// Of others: where the model comes from, if a prepare job made it. Before that has, the model is the one that it is
    /// made from, and nothing is decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Box<PreparedFrom>>,
    /// It succeeds only where its engine is shown to be not slower than another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
    /// Of a compile job for a device elsewhere: such a device, as its agent described it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_for: Option<String>,
    /// The job that took its place with another toolchain, where its own cannot build the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<JobId>,
    /// Toolchains that refused its model before its own was asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tried: Vec<Tried>,
    /// Under which place of which trace it was submitted, by whoever did so first; decides nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceContext>,
}

impl Job {
    /// One that nothing was decided about: queued since `at_ms`, to build `model` for `sku` as `spec` says.
    pub fn queued(id: JobId, model: Model, sku: Sku, spec: BuildSpec, want: Want, at_ms: u64) -> Self {
        Self {
            id,
            kind: JobKind::Build,
            state: JobState::Queued,
            key: None,
            model,
            sku,
            constraint: String::new(),
            toolchain: None,
            asked_threads: spec.threads,
            spec,
            force: false,
            follow_toolchain: false,
            wait_for_device: false,
            allow_inaccurate: false,
            eval: None,
            builds: once(),
            replaces: None,
            measure: MeasureAsk::default(),
            wants: vec![want],
            needs: Vec::new(),
            needed: Vec::new(),
            lifted_to: None,
            recheck: false,
            attempts: Vec::new(),
            remeasures: 0,
            phase: String::new(),
            progress: 0.0,
            created_ms: at_ms,
            queued_ms: at_ms,
            started_ms: 0,
            ended_ms: 0,
            failure: None,
            plan: None,
            built_for: None,
            report: None,
            cached: false,
            accurate: false,
            cancelling: None,
            prepared: None,
            prepare: None,
            made: None,
            from: None,
            canary: None,
            made_for: None,
            fallback: None,
            tried: Vec::new(),
            trace: None,
        }
    }

    /// Attempts but for those whose lease was taken back.
    pub fn attempts_counted(&self) -> usize {
        self.attempts.iter().filter(|attempt| !attempt.taken_back).count()
    }

    /// Number of the newest attempt, 0 when none.
    pub fn attempt(&self) -> u32 {
        self.attempts.last().map_or(0, |attempt| attempt.number)
    }

    /// The highest priority anybody gave it, or gave a job that waits for it.
    pub fn priority(&self) -> i32 {
        let asked = self.wants.iter().map(|want| want.priority).max().unwrap_or(0);
        self.lifted_to.map_or(asked, |lifted| asked.max(lifted))
    }

    /// The project that pays for it.
    pub fn project(&self) -> &str {
        self.wants.first().map_or("", |want| &want.project)
    }

    /// Whether somebody in `project` asked for it.
    pub fn is_in(&self, project: &str) -> bool {
        self.wants.iter().any(|want| want.project == project)
    }

    /// What its report has beside the usual.
    pub fn covered(&self) -> Covered {
        Covered { eval: self.eval, measure: self.measure.clone() }
    }

    /// Whether the next attempt only measures: benchmarks, and builds whose plan is already stored.
    pub fn only_measures(&self) -> bool {
        self.plan.is_some()
    }
}

/// A device as its agent last described it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    pub id: String,
    pub skus: Vec<Sku>,
    /// JSON text.
    pub fingerprint: String,
    pub offers: Vec<Toolchain>,
    /// What an offer can do, by its place in `offers`; none of an agent that did not say.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub abilities: BTreeMap<u32, Abilities>,
    pub draining: bool,
    pub simulated: bool,
    pub quarantined: bool,
    pub quarantine_reason: String,
    /// Physical cores a CPU engine may use; 0 for GPUs.
    pub threads: u32,
    /// Of a processor: toolchains with which it prepares for devices that are elsewhere, by the versions that matter to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prepares: Vec<Toolchain>,
}

/// By what an agent joined: decides who else may join under its identity, and whose end is its end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JoinedBy {
    /// Before this was kept.
    #[default]
    Unknown,
    /// The owner's socket.
    Owner,
    /// The token of this id.
    Token(String),
}

/// An agent as it last described itself. Kept when it goes away: requests are resolved against it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    pub id: String,
    pub name: String,
    pub version: String,
    pub devices: Vec<Device>,
    /// When its last session began or ended; sessions that live are newer.
    pub seen_ms: u64,
    #[serde(default)]
    pub joined_by: JoinedBy,
    /// Protocol that was spoken with it; 0: it has not joined since protocols are numbered.
    #[serde(default)]
    pub protocol: u32,
    /// An administrator wants it to get no more leases.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drained: bool,
    /// That its workers may use together; 0: unknown.
    #[serde(default)]
    pub memory_bytes: u64,
    /// As it was started with, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// A finished engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Engine {
    pub key: EngineKey,
    pub plan: PlanRef,
    pub model: Model,
    pub sku: Sku,
    pub toolchain: Toolchain,
    pub spec: BuildSpec,
    pub accurate: bool,
    /// Given inputs that its build was verified on; `None`: made ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<Digest>,
    pub created_ms: u64,
    /// The newest event when it was stored. Of a key's engines the highest is the one that is fetched: the clock may
    /// stand still between two of them, or be set back. 0 in records of versions that did not keep it.
    #[serde(default)]
    pub seq: u64,
    pub job: JobId,
    pub simulated: bool,
    pub project: String,
    /// A compile job made it, which measures nothing. It is measured once there is a report of its plan.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unmeasured: bool,
    /// Where its model comes from, if a prepare job made that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Box<PreparedFrom>>,
}

impl Engine {
    /// Engines of one key stand in this order, the one that is fetched last.
    pub fn age_order(&self) -> (u64, u64, Digest) {
        (self.seq, self.created_ms, self.plan.digest)
    }
}

/// One measurement of a plan on a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Digest of the document, which is also a blob.
    pub digest: Digest,
    pub plan: Digest,
    pub key: Option<EngineKey>,
    pub job: JobId,
    pub sku: Sku,
    /// Labelled test set that its accuracy was counted on.
    pub eval: Option<Digest>,
    /// What was asked to be measured beside the usual. A backend that cannot says so in the document.
    pub measure: MeasureAsk,
    pub artifacts: Vec<ArtifactRef>,
    pub created_ms: u64,
    /// The document, JSON text.
    pub document: String,
}

/// One transition, as the store keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Rises by one without gaps.
    pub seq: u64,
    pub at_ms: u64,
    pub job: JobId,
    pub actor: String,
    pub what: String,
    /// The job's state after it.
    pub state: JobState,
    pub attempt: u32,
    pub phase: String,
    pub detail: String,
}

/// A request that was accepted, kept so that repeating it changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRecord {
    pub id: String,
    pub project: String,
    pub actor: String,
    /// Empty: cannot be repeated.
    pub idempotency_key: String,
    /// Of the request's contents, so that a key used for something else is noticed.
    pub fingerprint: Digest,
    /// In the order of the reply.
    pub jobs: Vec<JobId>,
    pub created_ms: u64,
}

/// A key that is known to fail because of its model or spec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub key: EngineKey,
    pub job: JobId,
    pub failure: Failure,
}

/// The newest timing or tactic cache of a scope (see `DeviceFingerprint::tuning_scope`), and where it came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheRecord {
    pub scope: Digest,
    /// Counts publications and drops in this scope.
    pub generation: u32,
    /// `None`: dropped. Copies that agents keep are worth nothing then either.
    pub cache: Option<CacheRef>,
    /// What it grew from; `None`: from nothing.
    pub previous: Option<Digest>,
    pub sku: Sku,
    pub device_name: String,
    pub toolchain: Toolchain,
    pub job: JobId,
    pub attempt: u32,
    /// Name of the agent's host, for people.
    pub agent: String,
    pub device: String,
    pub published_ms: u64,
    /// What builds learnt that began with an earlier one than this: the scope's next build adds them. The oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<CacheBeside>,
}

impl CacheRecord {
    /// Blobs that its scope's builds may ask for: the newest, the one before it, which may still be on its way, and those
    /// beside.
    pub fn blobs(&self) -> impl Iterator<Item = Digest> {
        let beside = self.beside.iter().map(|beside| beside.cache.digest);
        self.cache.iter().map(|cache| cache.digest).chain(self.previous).chain(beside)
    }
}

/// A cache in the blob store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheRef {
    pub digest: Digest,
    pub size_bytes: u64,
}

/// A cache that was not the first to be published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheBeside {
    pub cache: CacheRef,
    pub job: JobId,
    /// Name of the agent's host, for people.
    pub agent: String,
}

/// A plugin library that an administrator allowed: native code, run by workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginRecord {
    pub digest: Digest,
    /// For people.
    pub name: String,
    pub actor: String,
    pub allowed_ms: u64,
}

/// A token; its secret is nowhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    pub id: String,
    pub name: String,
    pub role: String,
    pub project: Option<String>,
    /// SHA-256 of the secret.
    pub secret_hash: Digest,
    pub created_ms: u64,
    /// 0: never.
    pub expires_ms: u64,
    pub revoked: bool,
    /// Coarse: written at most once in a while.
    pub last_used_ms: u64,
    /// The agent that it belongs to, for a token of role agent. `None` until its first use, and after a rebinding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
}

/// One durable change. A list of them is committed as a whole or not at all.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The job as it now stands.
    Job(Arc<Job>),
    /// The job belongs to that project too.
    JobProject {
        project: String,
        job: JobId,
        created_ms: u64,
    },
    Event(Event),
    Engine(Box<Engine>),
    /// The project may see the engine.
    EngineProject {
        key: EngineKey,
        project: String,
    },
    Report(Box<Report>),
    Agent(Box<Agent>),
    ForgetAgent(String),
    Request(RequestRecord),
    /// The blob belongs to that holder too.
    Blob {
        digest: Digest,
        holder: BlobHolder,
        hold: Hold,
    },
    Refusal(Refusal),
    ForgetRefusal(EngineKey),
    /// In place of what the key had before.
    Preparation(Box<PreparationRecord>),
    Cache(Box<CacheRecord>),
    Plugin(PluginRecord),
    Project(ProjectRecord),
    /// As it now stands.
    Pin(Box<PinRecord>),
    Unpin(PinId),
    /// Pins that have expired by this time go.
    PinsExpired {
        now_ms: u64,
    },
    /// In place of what the repository declared before.
    Declaration(Box<DeclarationRecord>),
    ForgetDeclaration(DeclarationId),
    /// A new link. Changes nothing about one that is there: an id is given once.
    Share(Box<super::shares::ShareRecord>),
    /// Somebody read it; the latest time counts.
    ShareOpened {
        id: String,
        at_ms: u64,
    },
    Unshare(String),
    /// Links that have expired by this time go.
    SharesExpired {
        now_ms: u64,
    },
    Audit(Box<AuditLine>),
    /// An engine was fetched, or answered a request.
    EngineUsed {
        key: EngineKey,
        at_ms: u64,
    },
    /// An ended job goes, with its events and what only it named.
    ForgetJob(Box<Job>),
    /// A build goes, with its reports.
    ForgetBuild {
        key: EngineKey,
        plan: Digest,
    },
    ForgetRequest(String),
    /// In a request the first job's place is taken by the second: see `fallback`.
    Fallback {
        request: String,
        from: JobId,
        to: JobId,
    },
    /// A project's hold of a blob goes, unless it was renewed since.
    ForgetHeld {
        held: Held,
        before_ms: u64,
    },
    /// Events up to that number go.
    EventsGone {
        until: u64,
    },
    ForgetReport(Digest),
    /// Of the lines of a kind only the newest stay.
    AuditKept {
        kind: AuditKind,
        lines: usize,
    },
    ForgetPlugin(Digest),
    /// What a blob store remembers under a kind and name; no text: nothing any more.
    BlobNote {
        kind: String,
        name: String,
        text: Option<String>,
        at_ms: u64,
    },
    /// As it now stands.
    Pause(Box<super::pauses::PauseRecord>),
    Resume(super::pauses::PauseId),
    /// A new token. Changes nothing about one that is there: an id is given once.
    TokenMade(TokenRecord),
    /// It never works again, whatever else is written about it.
    TokenRevoked {
        id: String,
    },
    /// It was used; the latest time counts.
    TokenUsed {
        id: String,
        at_ms: u64,
    },
    /// It belongs to that agent from now on; `None`: to the next one that uses it.
    TokenBound {
        id: String,
        agent: Option<String>,
    },
}

/// What the core must know of an engine to answer requests from the store.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineRef {
    pub plan: PlanRef,
    /// Its build was found right, on `inputs`.
    pub accurate: bool,
    /// Given inputs that its build was verified on; `None`: made ones. What they showed says nothing of others.
    pub inputs: Option<Digest>,
    /// Report of its first measurement.
    pub report: Option<Digest>,
    /// Its reports that have more than the usual, by what they have; the newest of each. Of an engine that was built on
    /// given inputs the usual ones, too.
    pub reports: BTreeMap<Covered, Told>,
    /// Built, not measured: it answers only who asks for no measurement.
    pub unmeasured: bool,
}

/// What a report has beside the usual.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Covered {
    /// Labelled test set that accuracy was counted on.
    pub eval: Option<Digest>,
    pub measure: MeasureAsk,
}

impl Covered {
    pub fn of(report: &Report) -> Self {
        Self { eval: report.eval, measure: report.measure.clone() }
    }

    /// Whether it is the usual.
    pub fn is_usual(&self) -> bool {
        self.eval.is_none() && self.measure.is_empty()
    }

    /// What a report has that has both; `None` when no single report can.
    pub fn joined(&self, other: &Self) -> Option<Self> {
        if self.eval.is_some() && other.eval.is_some() && self.eval != other.eval {
            return None;
        }
        let measure = self.measure.joined(&other.measure)?;
        Some(Self { eval: self.eval.or(other.eval), measure })
    }

    /// Whether a report that has this has everything that `asked` asks for.
    pub fn covers(&self, asked: &Self) -> bool {
        (asked.eval.is_none() || self.eval == asked.eval) && self.measure.covers(&asked.measure)
    }
}

/// What a stored report tells those whom it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// `None`: the engine is from a version that kept none.
    pub report: Option<Digest>,
    /// It found nothing wrong.
    pub accurate: bool,
}

impl EngineRef {
    /// What answers a request: `None` when no report has all that is asked for, on the inputs that are asked for.
    pub fn answer(&self, asked: &Covered) -> Option<Told> {
        if asked.is_usual() && self.inputs.is_none() && !self.unmeasured {
            return Some(Told { report: self.report, accurate: self.accurate });
        }
        let (_, told) = self.reports.iter().find(|(has, _)| has.covers(asked))?;
        Some(Told { accurate: told.accurate && !self.is_wrong_on(asked.measure.inputs), ..*told })
    }

    /// Whether its build was found wrong on the very inputs that are asked for.
    pub fn is_wrong_on(&self, inputs: Option<Digest>) -> bool {
        !self.accurate && self.inputs == inputs
    }

    /// Learns what a report of its plan on its own SKU has. What its first measurement tells those who ask for nothing
    /// beside the usual stands apart, unless that was made on inputs which they do not give.
    pub fn learn(&mut self, covered: Covered, report: Digest, accurate: bool) {
        if self.unmeasured && covered.measure.inputs.is_none() {
            (self.unmeasured, self.report) = (false, Some(report));
        }
        if !covered.is_usual() || self.inputs.is_some() {
            self.reports.insert(covered, Told { report: Some(report), accurate });
        }
    }
}
