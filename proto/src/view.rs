//! How jobs, devices, engines and errors look as JSON: one shape for the HTTP API and for `--json` of the command line.
//!
//! Documents that travel as JSON text in the contract (spec, toolchain, fingerprint, report) are embedded as JSON.
//! Times are Unix milliseconds of the coordinator's clock; what has not happened yet is `null`.

mod admin;
mod declared;
mod history;
mod pauses;
mod shares;

pub use admin::{AuditView, CollectedView, ProjectView};
pub use declared::{
    DeclarationView, DeclareView, DeclaredCellView, DeclaredSpecView, PinView, RefreshView, RefreshedView,
};
pub use history::{EventView, RequestView, request_state_from_name, request_state_name};
pub use pauses::{PauseView, PauseWindowView};
pub use shares::ShareView;

use crate::{ApiError, ErrorCode, v1};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Lower-case name of an enum value of the contract without its prefix: `JOB_STATE_QUEUED` is `queued`.
fn short_name(full: &str, prefix: &str) -> String {
    full.strip_prefix(prefix).unwrap_or(full).to_ascii_lowercase()
}

/// Name of a job state: `queued`, `leased`, `running`, `succeeded`, ...
pub fn state_name(state: v1::JobState) -> String {
    short_name(state.as_str_name(), "JOB_STATE_")
}

/// The state of that name; `None` for a name that is no state.
pub fn state_from_name(name: &str) -> Option<v1::JobState> {
    let state = v1::JobState::from_str_name(&format!("JOB_STATE_{}", name.to_ascii_uppercase()))?;
    (state != v1::JobState::Unspecified).then_some(state)
}

/// The order of that name: `newest`, `oldest` or `ended`; `None` for another name.
pub fn order_from_name(name: &str) -> Option<v1::JobOrder> {
    let order = v1::JobOrder::from_str_name(&format!("JOB_ORDER_{}", name.to_ascii_uppercase()))?;
    (order != v1::JobOrder::Unspecified).then_some(order)
}

/// Whether a job in this state will never change again.
pub fn is_ended(state: v1::JobState) -> bool {
    use v1::JobState::*;
    matches!(state, Succeeded | Failed | Cancelled | Skipped)
}

/// Name of a job kind: `build`, `benchmark`, ...
pub fn kind_name(kind: v1::JobKind) -> String {
    short_name(kind.as_str_name(), "JOB_KIND_")
}

/// The kind of that name; `None` for a name that is no kind.
pub fn kind_from_name(name: &str) -> Option<v1::JobKind> {
    let kind = v1::JobKind::from_str_name(&format!("JOB_KIND_{}", name.to_ascii_uppercase()))?;
    (kind != v1::JobKind::Unspecified).then_some(kind)
}

/// Name of a failure class: `infrastructure`, `resource`, `model`, `unstable`.
pub fn failure_class_name(class: v1::FailureClass) -> String {
    short_name(class.as_str_name(), "FAILURE_CLASS_")
}

fn some_text(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn some_number(number: u64) -> Option<u64> {
    (number != 0).then_some(number)
}

/// Text that is not JSON is kept as a string rather than lost.
fn some_json(text: String) -> Option<Value> {
    (!text.is_empty()).then(|| serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// Why an attempt or a job failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FailureView {
    pub class: String,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Of class `model`: `unsupported` (another toolchain may build the model) or `inaccurate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl From<v1::Failure> for FailureView {
    fn from(failure: v1::Failure) -> Self {
        Self {
            class: failure_class_name(failure.class()),
            message: failure.message,
            hint: some_text(failure.hint),
            reason: some_text(failure.reason),
        }
    }
}

/// One file of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelFileView {
    pub name: String,
    pub digest: String,
    pub size_bytes: u64,
}

/// A model by its digests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelView {
    pub digest: String,
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph_digest: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structure_digest: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<ModelFileView>,
}

impl From<v1::Model> for ModelView {
    fn from(model: v1::Model) -> Self {
        let file = |f: v1::ModelFile| ModelFileView { name: f.name, digest: f.digest, size_bytes: f.size_bytes };
        Self {
            digest: model.digest,
            name: model.name,
            graph_digest: some_text(model.graph_digest),
            structure_digest: some_text(model.structure_digest),
            files: model.files.into_iter().map(file).collect(),
        }
    }
}

/// One attempt of a job under a lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttemptView {
    pub number: u32,
    pub agent: String,
    pub device: String,
    pub started_ms: Option<u64>,
    pub ended_ms: Option<u64>,
    /// `running`, `succeeded`, `failed`, `cancelled` or `lost`.
    pub outcome: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureView>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_digest: Option<String>,
}

impl From<v1::Attempt> for AttemptView {
    fn from(attempt: v1::Attempt) -> Self {
        Self {
            number: attempt.number,
            agent: attempt.agent,
            device: attempt.device,
            started_ms: some_number(attempt.started_ms),
            ended_ms: some_number(attempt.ended_ms),
            outcome: attempt.outcome,
            failure: attempt.failure.map(Into::into),
            log_digest: some_text(attempt.log_digest),
        }
    }
}

/// What is measured beside the usual.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MeasureView {
    /// Numbers of parallel streams to sweep, ascending.
    pub streams: Vec<u32>,
    pub trace: bool,
    /// Batches to sweep, ascending.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub batches: Vec<u32>,
    /// Least time that the headline warms up, in milliseconds; 0: the usual.
    #[serde(skip_serializing_if = "is_usual")]
    pub warm_up_ms: u32,
    /// Least number of timed windows that the headline counts; 0: the usual.
    #[serde(skip_serializing_if = "is_usual")]
    pub min_windows: u32,
    /// Real inputs that outputs are compared on.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub inputs_digest: String,
    /// They are what is timed, too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub time_inputs: bool,
    /// Other runtimes measured beside the engine, by name, ascending.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub baselines: Vec<BaselineView>,
}

/// Another runtime that is measured beside an engine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BaselineView {
    pub name: String,
    /// The model in the form that its program takes; absent: the ONNX file.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub module_digest: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_usual(least: &u32) -> bool {
    *least == 0
}

impl From<v1::MeasureAsk> for MeasureView {
    fn from(ask: v1::MeasureAsk) -> Self {
        let v1::MeasureAsk { streams, trace, batches, warm_up_ms, min_windows, inputs_digest, time_inputs, baselines } =
            ask;
        let view = |v1::Baseline { name, module_digest }| BaselineView { name, module_digest };
        let baselines = baselines.into_iter().map(view).collect();
        Self { streams, trace, batches, warm_up_ms, min_windows, inputs_digest, time_inputs, baselines }
    }
}

impl From<MeasureView> for v1::MeasureAsk {
    fn from(view: MeasureView) -> Self {
        let MeasureView { streams, trace, batches, warm_up_ms, min_windows, inputs_digest, time_inputs, baselines } =
            view;
        let message = |BaselineView { name, module_digest }| v1::Baseline { name, module_digest };
        let baselines = baselines.into_iter().map(message).collect();
        Self { streams, trace, batches, warm_up_ms, min_windows, inputs_digest, time_inputs, baselines }
    }
}

/// A file beside a report, a blob by its digest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArtifactView {
    pub name: String,
    pub digest: String,
    pub size_bytes: u64,
}

impl From<v1::Artifact> for ArtifactView {
    fn from(artifact: v1::Artifact) -> Self {
        Self { name: artifact.name, digest: artifact.digest, size_bytes: artifact.size_bytes }
    }
}

/// What the farm knows of a report beside its document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReportFactsView {
    pub digest: String,
    pub plan_digest: String,
    pub job: String,
    /// Device kind that it was measured on.
    pub sku: String,
    pub created_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measure: Option<MeasureView>,
    pub artifacts: Vec<ArtifactView>,
}

impl From<v1::ReportFacts> for ReportFactsView {
    fn from(facts: v1::ReportFacts) -> Self {
        Self {
            digest: facts.digest,
            plan_digest: facts.plan_digest,
            job: facts.job,
            sku: facts.sku,
            created_ms: facts.created_ms,
            measure: facts.measure.map(Into::into),
            artifacts: facts.artifacts.into_iter().map(Into::into).collect(),
        }
    }
}

/// The newest timing or tactic cache of a device kind with a toolchain. `digest` is `null` when it was dropped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CacheView {
    pub scope: String,
    pub digest: Option<String>,
    pub size_bytes: u64,
    /// What it grew from.
    pub previous_digest: Option<String>,
    /// Counts publications and drops.
    pub generation: u32,
    pub sku: String,
    pub device_name: String,
    pub toolchain: Option<Value>,
    pub job: String,
    pub attempt: u32,
    pub agent: String,
    pub device: String,
    pub published_ms: u64,
    /// What builds learnt while another was the first to publish: the scope's next build adds them.
    #[serde(default)]
    pub beside: Vec<CacheBesideView>,
}

/// A cache that waits beside the newest of its scope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheBesideView {
    pub digest: String,
    pub size_bytes: u64,
    pub job: String,
    pub agent: String,
}

impl From<v1::CacheBeside> for CacheBesideView {
    fn from(cache: v1::CacheBeside) -> Self {
        let v1::CacheBeside { digest, size_bytes, job, agent } = cache;
        Self { digest, size_bytes, job, agent }
    }
}

impl From<v1::TuningCache> for CacheView {
    fn from(cache: v1::TuningCache) -> Self {
        Self {
            scope: cache.scope,
            digest: some_text(cache.digest),
            size_bytes: cache.size_bytes,
            previous_digest: some_text(cache.previous_digest),
            generation: cache.generation,
            sku: cache.sku,
            device_name: cache.device_name,
            toolchain: some_json(cache.toolchain_json),
            job: cache.job,
            attempt: cache.attempt,
            agent: cache.agent,
            device: cache.device,
            published_ms: cache.published_ms,
            beside: cache.beside.into_iter().map(CacheBesideView::from).collect(),
        }
    }
}

/// An agent. `token` is the name of the one it joined with, `null` over the owner's socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentView {
    pub id: String,
    pub name: String,
    pub version: String,
    /// Protocol that is spoken with it; `null` when it has not joined since protocols are numbered.
    pub protocol: Option<u64>,
    pub online: bool,
    /// It is being shut down.
    pub draining: bool,
    /// An administrator lets it get no more leases.
    pub drained: bool,
    pub devices: u32,
    pub skus: Vec<String>,
    /// That it holds.
    pub jobs: Vec<String>,
    pub last_seen_ms: Option<u64>,
    pub token: Option<String>,
    /// `NAME` or `NAME=VALUE` that it was started with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
}

impl From<v1::Agent> for AgentView {
    fn from(agent: v1::Agent) -> Self {
        Self {
            id: agent.id,
            name: agent.name,
            version: agent.version,
            protocol: some_number(agent.protocol.into()),
            online: agent.online,
            draining: agent.draining,
            drained: agent.drained,
            devices: agent.devices,
            skus: agent.skus,
            jobs: agent.jobs,
            last_seen_ms: some_number(agent.last_seen_ms),
            token: some_text(agent.token),
            labels: agent.labels,
        }
    }
}

/// A plugin library that jobs may load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PluginView {
    pub digest: String,
    pub name: String,
    /// Who allowed it; `configuration` when the coordinator was started with it.
    pub actor: String,
    pub allowed_ms: Option<u64>,
}

impl From<v1::Plugin> for PluginView {
    fn from(plugin: v1::Plugin) -> Self {
        Self {
            digest: plugin.digest,
            name: plugin.name,
            actor: plugin.actor,
            allowed_ms: some_number(plugin.allowed_ms),
        }
    }
}

/// One job. `engine_key` is `null` while the job is unplaceable; `plan_digest` and `report` are `null` until they exist.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobView {
    pub id: String,
    pub kind: String,
    pub state: String,
    pub project: String,
    pub model: ModelView,
    pub sku: String,
    pub engine_key: Option<String>,
    pub toolchain: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toolchain_constraint: Option<String>,
    pub spec: Option<Value>,
    pub priority: i32,
    pub attempt: u32,
    pub agent: Option<String>,
    pub device: Option<String>,
    pub phase: Option<String>,
    /// 0..1 of the phase.
    pub progress: f32,
    pub created_ms: u64,
    pub started_ms: Option<u64>,
    pub ended_ms: Option<u64>,
    pub waiting_reason: Option<String>,
    pub failure: Option<FailureView>,
    /// Answered from the store: nothing ran.
    pub cached: bool,
    pub accurate: bool,
    /// Measured on a scripted device: its figures mean nothing.
    #[serde(default)]
    pub simulated: bool,
    pub plan_digest: Option<String>,
    pub plan_bytes: Option<u64>,
    /// Where the plan lies on this machine; only the command line knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_path: Option<String>,
    /// How often it is built and measured; the best plan is kept.
    #[serde(default = "once")]
    pub builds: u32,
    /// From how many builds its plan was chosen.
    #[serde(default)]
    pub plan_builds: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measure: Option<MeasureView>,
    pub report: Option<Value>,
    /// Files beside the report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<ArtifactView>,
    pub actor: String,
    pub request_id: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    /// Jobs that it waits for now.
    pub needs: Vec<String>,
    /// Jobs that it was submitted to need, whether they ended or not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needed: Vec<String>,
    /// Jobs that wait for it now, at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needed_by: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<AttemptView>,
    /// A long reply left out its spec, model files, attempts and report: the job's own document has them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// `NAME` or `NAME=VALUE`, of the requests of the caller's project.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Jobs that the devices it could run on likely serve first; `null` when it is not queued.
    #[serde(default)]
    pub jobs_ahead: Option<u64>,
    #[serde(default)]
    pub eta: Option<EtaView>,
    /// What a compile job prepared for a device elsewhere, or what a build was given of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepared_digest: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepared_bytes: Option<u64>,
    /// Of a canary: plan of the engine that it is held against.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary_plan: Option<String>,
    /// Job that took its place with another toolchain, where its own could not build the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<String>,
    /// Toolchains that refused its model before its own was asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tried: Vec<TriedView>,
    /// By which its median may be slower.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary_slower_percent: Option<f64>,
    /// What it asks of the device that runs it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// Of a prepare job: what it makes; of others: where their model comes from, or will.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preparation: Option<PreparationView>,
}

/// How a model is made into one of other number types, and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PreparationView {
    /// Precision, target, method, data by digest.
    pub ask: Option<Value>,
    pub source_digest: String,
    pub source_name: String,
    /// The job of kind prepare.
    pub job: String,
    /// What became of which layer, and why, as a blob; `null` while the model is not prepared yet.
    pub document_digest: Option<String>,
    /// Of a prepare job that succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made: Option<ModelView>,
    /// The engine is of the model as it was, with the ranges in the document as its calibration.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub as_calibration: bool,
}

impl From<v1::Preparation> for PreparationView {
    fn from(preparation: v1::Preparation) -> Self {
        let v1::Preparation { ask_json, source_digest, source_name, job, document_digest, made, as_calibration } =
            preparation;
        Self {
            ask: some_json(ask_json),
            source_digest,
            source_name,
            job,
            document_digest: some_text(document_digest),
            made: made.map(Into::into),
            as_calibration,
        }
    }
}

/// A toolchain that refused a job's model before the job was given to another one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TriedView {
    pub toolchain: Option<Value>,
    /// That found out.
    pub job: String,
    pub message: String,
}

impl From<v1::Tried> for TriedView {
    fn from(tried: v1::Tried) -> Self {
        Self { toolchain: some_json(tried.toolchain_json), job: tried.job, message: tried.message }
    }
}

/// When a job will likely have begun and ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EtaView {
    /// 0: it runs.
    pub start_in_ms: u64,
    pub end_in_ms: u64,
    /// Four fifths of the latest forecasts of a job's duration were right within this factor; `null`: too few were made.
    pub error_factor: Option<f64>,
    /// Ended jobs that it rests on.
    pub samples: u32,
}

impl From<v1::Eta> for EtaView {
    fn from(eta: v1::Eta) -> Self {
        let v1::Eta { start_in_ms, end_in_ms, error_factor, samples } = eta;
        Self { start_in_ms, end_in_ms, error_factor: Some(error_factor).filter(|factor| *factor >= 1.0), samples }
    }
}

fn once() -> u32 {
    1
}

impl From<v1::Job> for JobView {
    fn from(mut job: v1::Job) -> Self {
        let report = some_json(std::mem::take(&mut job.report_json));
        Self {
            kind: kind_name(job.kind()),
            state: state_name(job.state()),
            id: job.id,
            project: job.project,
            model: job.model.unwrap_or_default().into(),
            sku: job.sku,
            engine_key: some_text(job.engine_key),
            toolchain: some_json(job.toolchain_json),
            toolchain_constraint: some_text(job.toolchain_constraint),
            spec: some_json(job.spec_json),
            priority: job.priority,
            attempt: job.attempt,
            agent: some_text(job.agent),
            device: some_text(job.device),
            phase: some_text(job.phase),
            progress: job.progress,
            created_ms: job.created_ms,
            started_ms: some_number(job.started_ms),
            ended_ms: some_number(job.ended_ms),
            waiting_reason: some_text(job.waiting_reason),
            failure: job.failure.map(Into::into),
            cached: job.cached,
            accurate: job.accurate,
            simulated: report.as_ref().is_some_and(|report| report["simulated"] == true),
            plan_digest: some_text(job.plan_digest),
            plan_bytes: some_number(job.plan_bytes),
            plan_path: None,
            builds: job.builds.max(1),
            plan_builds: (job.plan_builds > 0).then_some(job.plan_builds),
            measure: job.measure.map(Into::into),
            report,
            artifacts: job.artifacts.into_iter().map(Into::into).collect(),
            actor: job.actor,
            request_id: some_text(job.request_id),
            needs: job.needs,
            needed: job.needed,
            needed_by: job.needed_by,
            attempts: job.attempts.into_iter().map(Into::into).collect(),
            partial: job.partial,
            tags: job.tags,
            jobs_ahead: job.jobs_ahead,
            eta: job.eta.map(Into::into),
            prepared_digest: some_text(job.prepared_digest),
            prepared_bytes: some_number(job.prepared_bytes),
            canary_slower_percent: (!job.canary_plan.is_empty()).then_some(job.canary_slower_percent),
            canary_plan: some_text(job.canary_plan),
            fallback: some_text(job.fallback),
            tried: job.tried.into_iter().map(Into::into).collect(),
            requires: job.requires,
            preparation: job.preparation.map(Into::into),
        }
    }
}

/// One device of one agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceView {
    pub id: String,
    pub agent: String,
    /// Best last.
    pub skus: Vec<String>,
    pub toolchains: Vec<Value>,
    pub fingerprint: Option<Value>,
    pub online: bool,
    pub draining: bool,
    /// Also where `busy_job` is none of the caller's.
    #[serde(default)]
    pub busy: bool,
    pub busy_job: Option<String>,
    pub telemetry: Option<Value>,
    pub last_seen_ms: Option<u64>,
    pub threads: u32,
    /// A scripted device of a test fleet: its figures mean nothing.
    pub simulated: bool,
    pub quarantined: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine_reason: Option<String>,
    /// Of a processor: toolchains with which it compiles for devices elsewhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prepares: Vec<Value>,
    /// What its agent was started with, `NAME` or `NAME=VALUE`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
}

impl From<v1::Device> for DeviceView {
    fn from(device: v1::Device) -> Self {
        Self {
            id: device.id,
            agent: device.agent,
            skus: device.skus,
            toolchains: device.offers.into_iter().filter_map(|offer| some_json(offer.toolchain_json)).collect(),
            fingerprint: some_json(device.fingerprint_json),
            online: device.online,
            draining: device.draining,
            busy: device.busy || !device.busy_job.is_empty(),
            busy_job: some_text(device.busy_job),
            telemetry: some_json(device.telemetry_json),
            last_seen_ms: some_number(device.last_seen_ms),
            threads: device.threads,
            simulated: device.simulated,
            quarantined: device.quarantined,
            quarantine_reason: some_text(device.quarantine_reason),
            prepares: device.prepares_json.into_iter().filter_map(some_json).collect(),
            labels: device.labels,
        }
    }
}

/// One finished engine: what `fetch` gives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineView {
    pub engine_key: String,
    pub plan_digest: String,
    pub plan_bytes: u64,
    pub model: ModelView,
    pub sku: String,
    pub toolchain: Option<Value>,
    pub spec: Option<Value>,
    pub card_digest: Option<String>,
    pub report: Option<Value>,
    pub accurate: bool,
    pub created_ms: u64,
    pub job: Option<String>,
    pub simulated: bool,
    pub project: String,
    /// From how many builds the plan was chosen.
    #[serde(default = "once")]
    pub builds: u32,
    /// Given inputs that its build was verified on; absent: made ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs_digest: Option<String>,
    /// Built, not measured: nobody timed it yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unmeasured: bool,
    /// Where its model comes from, if a job of the farm prepared it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preparation: Option<PreparationView>,
}

impl From<v1::Engine> for EngineView {
    fn from(engine: v1::Engine) -> Self {
        Self {
            engine_key: engine.engine_key,
            plan_digest: engine.plan_digest,
            plan_bytes: engine.plan_bytes,
            model: engine.model.unwrap_or_default().into(),
            sku: engine.sku,
            toolchain: some_json(engine.toolchain_json),
            spec: some_json(engine.spec_json),
            card_digest: some_text(engine.card_digest),
            report: some_json(engine.report_json),
            accurate: engine.accurate,
            created_ms: engine.created_ms,
            job: some_text(engine.job),
            simulated: engine.simulated,
            project: engine.project,
            builds: engine.builds.max(1),
            inputs_digest: some_text(engine.inputs_digest),
            unmeasured: engine.unmeasured,
            preparation: engine.preparation.map(Into::into),
        }
    }
}

/// What a submission says, as JSON; see `SubmitRequest` of the contract. Specs are documents, not text.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SubmitView {
    pub idempotency_key: String,
    pub project: String,
    pub models: Vec<ModelView>,
    pub skus: Vec<String>,
    /// None: one spec of defaults.
    pub specs: Vec<Value>,
    pub toolchains: Vec<String>,
    pub priority: i32,
    pub force: bool,
    pub wait_for_device: bool,
    pub allow_inaccurate: bool,
    pub eval_digest: String,
    pub follow_toolchain: bool,
    /// Name of a job kind; empty: build.
    pub kind: String,
    pub plan_digest: String,
    /// Build and measure this often under one lease and keep the best plan; 0: once.
    pub builds: u32,
    pub measure: MeasureView,
    /// Build again where every window of the stored engine's measurement was disturbed.
    pub refresh_disturbed: bool,
    /// `NAME` or `NAME=VALUE`, to find its jobs by.
    pub tags: Vec<String>,
    /// Jobs that must succeed before any of this is decided, or requests, whose jobs all count.
    pub needs: Vec<String>,
    /// What the engine is held against before its job succeeds.
    pub canary: Option<CanaryView>,
    /// Where no toolchain is named and the best cannot build a model, ask no other.
    pub no_fallback: bool,
    /// What its jobs ask of the device that runs them: `memory=40GiB`, `driver=570`, `mig=none`, `mig=any`, `mig=1g.10gb`,
    /// `label=NAME`, `label=NAME=VALUE`.
    pub requires: Vec<String>,
    /// How models are prepared before they are built, by the place of the spec that is built from what comes of it; `null`:
    /// as they are.
    pub prepares: Vec<Value>,
    /// Places in `prepares` of which engines take the ranges as their calibration, and the model as it is.
    #[serde(default)]
    pub calibrates: Vec<u32>,
}

/// The engine that another is to be not slower than.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CanaryView {
    pub plan_digest: String,
    /// By which its median may be slower.
    pub slower_percent: f64,
}

impl TryFrom<SubmitView> for v1::SubmitRequest {
    type Error = ApiError;

    fn try_from(view: SubmitView) -> Result<Self, ApiError> {
        let unknown = || ApiError::new(ErrorCode::InvalidArgument, format!("'{}' is no kind of job", view.kind));
        let kind = match view.kind.as_str() {
            "" => v1::JobKind::Unspecified,
            name => kind_from_name(name).ok_or_else(unknown)?,
        };
        let mut specs_json: Vec<String> = view.specs.iter().map(Value::to_string).collect();
        if specs_json.is_empty() {
            specs_json.push("{}".into());
        }
        let canary = |CanaryView { plan_digest, slower_percent }| v1::Canary { plan_digest, slower_percent };
        Ok(Self {
            canary: view.canary.map(canary),
            idempotency_key: view.idempotency_key,
            project: view.project,
            models: view.models.into_iter().map(Into::into).collect(),
            skus: view.skus,
            specs_json,
            toolchains: view.toolchains,
            priority: view.priority,
            force: view.force,
            wait_for_device: view.wait_for_device,
            allow_inaccurate: view.allow_inaccurate,
            eval_digest: view.eval_digest,
            follow_toolchain: view.follow_toolchain,
            kind: kind.into(),
            plan_digest: view.plan_digest,
            builds: view.builds,
            measure: Some(view.measure.into()),
            refresh_disturbed: view.refresh_disturbed,
            tags: view.tags,
            needs: view.needs,
            no_fallback: view.no_fallback,
            requires: view.requires,
            calibrates: view.calibrates,
            prepares_json: view
                .prepares
                .iter()
                .map(|ask| if ask.is_null() { String::new() } else { ask.to_string() })
                .collect(),
        })
    }
}

impl From<ModelView> for v1::Model {
    fn from(model: ModelView) -> Self {
        let file = |f: ModelFileView| v1::ModelFile { name: f.name, digest: f.digest, size_bytes: f.size_bytes };
        Self {
            digest: model.digest,
            graph_digest: model.graph_digest.unwrap_or_default(),
            structure_digest: model.structure_digest.unwrap_or_default(),
            name: model.name,
            files: model.files.into_iter().map(file).collect(),
        }
    }
}

/// An error as `application/problem+json` (RFC 9457) with our code and hint beside the standard members.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Problem {
    /// Always `about:blank`: `code` is what to act on.
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    pub detail: String,
    /// Stable name of the error code, such as `not-found`.
    pub code: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
}

impl From<&ApiError> for Problem {
    fn from(error: &ApiError) -> Self {
        Self {
            kind: "about:blank".into(),
            title: error.code.name().replace('-', " "),
            status: error.code.http_status(),
            detail: error.message.clone(),
            code: error.code.name().into(),
            hint: error.hint.clone(),
        }
    }
}

impl From<Problem> for ApiError {
    fn from(problem: Problem) -> Self {
        let code = ErrorCode::from_name(&problem.code).unwrap_or(ErrorCode::Internal);
        Self { code, message: problem.detail, hint: problem.hint }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_view_embeds_documents_and_leaves_nothing_half_said() {
        let job = v1::Job {
            id: "j1".into(),
            kind: v1::JobKind::Build.into(),
            state: v1::JobState::Succeeded.into(),
            sku: "cpu-x86-64-v3".into(),
            report_json: r#"{"latency_ms":{"median":1.5},"throughput_per_s":600.0}"#.into(),
            spec_json: "not json".into(),
            ..Default::default()
        };
        let view = serde_json::to_value(JobView::from(job)).unwrap();
        assert_eq!(view["state"], "succeeded");
        assert_eq!(view["kind"], "build");
        assert_eq!(view["report"]["latency_ms"]["median"], 1.5);
        assert_eq!(view["report"]["throughput_per_s"], 600.0);
        assert_eq!(view["spec"], "not json");
        for absent in ["engine_key", "plan_digest", "started_ms", "failure"] {
            assert!(view[absent].is_null() && view.as_object().unwrap().contains_key(absent), "{absent}");
        }
        assert_eq!(view["cached"], false);
        let back: JobView = serde_json::from_value(view.clone()).unwrap();
        assert_eq!(serde_json::to_value(back).unwrap(), view);
    }

    #[test]
    fn names_of_states_and_kinds_read_back() {
        for number in 1..=9 {
            let state = v1::JobState::try_from(number).unwrap();
            assert_eq!(state_from_name(&state_name(state)), Some(state));
        }
        assert_eq!(state_from_name("unspecified"), None);
        assert_eq!(kind_from_name("benchmark"), Some(v1::JobKind::Benchmark));
        assert_eq!(kind_from_name("nothing"), None);
    }

    #[test]
    fn a_problem_turns_back_into_its_error() {
        let error = ApiError::new(ErrorCode::Refused, "no device offers sku 'x'").with_hint("use one of: y");
        let problem = Problem::from(&error);
        assert_eq!(problem.status, 422);
        let back = ApiError::from(problem);
        assert_eq!((back.code, back.message, back.hint), (error.code, error.message, error.hint));
    }
}
