//! From the core's records to the contract's messages.

use crate::core::{
    AgentView, ArtifactRef, Attempt, AuditLine, CacheBeside, CacheRecord, DeclarationRecord, DeviceView, Engine, Eta,
    Event, Failure, Foreseen, Job, JobKind, JobState, LeaseRef, Model, PinRecord, PluginRecord, Report, TokenRecord,
    Tried, Want,
};
use planforge_proto::{ApiError, v1};
use planforge_types::{
    Digest, FailureClass, Label, Sku,
    order::{BaselineAsk, MeasureAsk},
    preparation::PreparedFrom,
};
use std::collections::BTreeSet;

/// Stands for callers whose names are none of the reader's.
const SOMEBODY_ELSE: &str = "somebody else";

pub(in crate::farm) fn model_out(model: &Model) -> v1::Model {
    let text = |digest: &Option<Digest>| digest.map(|digest| digest.to_string()).unwrap_or_default();
    v1::Model {
        digest: model.digest.to_string(),
        graph_digest: text(&model.graph_digest),
        structure_digest: text(&model.structure_digest),
        name: model.name.clone(),
        files: model
            .files
            .iter()
            .map(|file| v1::ModelFile {
                name: file.name.clone(),
                digest: file.digest.to_string(),
                size_bytes: file.size_bytes,
            })
            .collect(),
    }
}

fn class_out(class: FailureClass) -> v1::FailureClass {
    match class {
        FailureClass::Infrastructure => v1::FailureClass::Infrastructure,
        FailureClass::Resource => v1::FailureClass::Resource,
        FailureClass::Model => v1::FailureClass::Model,
        FailureClass::Unstable => v1::FailureClass::Unstable,
    }
}

fn failure_out(failure: &Failure) -> v1::Failure {
    v1::Failure {
        class: class_out(failure.class).into(),
        message: failure.message.clone(),
        hint: failure.hint.clone(),
        lacked: failure.lacked.map(|lack| lack.name().to_owned()).unwrap_or_default(),
        reason: failure.reason.map(|reason| reason.name().to_owned()).unwrap_or_default(),
    }
}

pub(in crate::farm) fn state_out(state: JobState) -> v1::JobState {
    match state {
        JobState::Blocked => v1::JobState::Blocked,
        JobState::Queued => v1::JobState::Queued,
        JobState::Leased => v1::JobState::Leased,
        JobState::Running => v1::JobState::Running,
        JobState::Succeeded => v1::JobState::Succeeded,
        JobState::Failed => v1::JobState::Failed,
        JobState::Cancelled => v1::JobState::Cancelled,
        JobState::Skipped => v1::JobState::Skipped,
        JobState::Unplaceable => v1::JobState::Unplaceable,
    }
}

fn attempt_out(attempt: &Attempt) -> v1::Attempt {
    v1::Attempt {
        number: attempt.number,
        agent: attempt.agent_name.clone(),
        device: attempt.device.clone(),
        started_ms: attempt.started_ms,
        ended_ms: attempt.ended_ms,
        outcome: attempt.outcome.name().into(),
        failure: attempt.failure.as_ref().map(failure_out),
        log_digest: attempt.log.map(|log| log.to_string()).unwrap_or_default(),
    }
}

fn json(record: &impl serde::Serialize) -> String {
    serde_json::to_string(record).unwrap_or_default()
}

/// The job as somebody in `project` sees it; `None`: as its first requester does.
pub(in crate::farm) fn job_out(job: &Job, project: Option<&str>) -> v1::Job {
    let want = job.wants.iter().find(|want| project.is_none_or(|project| want.project == project));
    let want = want.or(job.wants.first());
    let last = job.attempts.last();
    let kind = match job.kind {
        JobKind::Build => v1::JobKind::Build,
        JobKind::Benchmark => v1::JobKind::Benchmark,
        JobKind::Compile => v1::JobKind::Compile,
        JobKind::Prepare => v1::JobKind::Prepare,
    };
    v1::Job {
        id: job.id.as_str().into(),
        kind: kind.into(),
        state: state_out(job.state).into(),
        project: want.map(|want| want.project.clone()).unwrap_or_default(),
        engine_key: job.key.map(|key| key.to_string()).unwrap_or_default(),
        model: Some(model_out(&job.model)),
        sku: job.sku.to_string(),
        toolchain_json: job.toolchain.as_ref().map(json).unwrap_or_default(),
        spec_json: json(&job.spec),
        priority: job.priority(),
        attempt: job.attempt(),
        agent: last.map(|attempt| attempt.agent_name.clone()).unwrap_or_default(),
        device: last.map(|attempt| attempt.device.clone()).unwrap_or_default(),
        phase: job.phase.clone(),
        progress: job.progress,
        created_ms: job.created_ms,
        started_ms: job.started_ms,
        ended_ms: job.ended_ms,
        failure: job.failure.as_ref().map(failure_out),
        plan_digest: job.plan.as_ref().map(|plan| plan.digest.to_string()).unwrap_or_default(),
        plan_bytes: job.plan.as_ref().map_or(0, |plan| plan.size_bytes),
        report_json: String::new(),
        cached: job.cached,
        accurate: job.accurate,
        needs: job.needs.iter().map(|need| need.as_str().into()).collect(),
        needed: job.needed.iter().map(|need| need.as_str().into()).collect(),
        needed_by: Vec::new(),
        actor: want.map(|want| want.actor.clone()).unwrap_or_default(),
        waiting_reason: String::new(),
        eval_digest: job.eval.map(|eval| eval.to_string()).unwrap_or_default(),
        request_id: want.map(|want| want.request.clone()).unwrap_or_default(),
        attempts: job.attempts.iter().map(attempt_out).collect(),
        toolchain_constraint: job.constraint.clone(),
        allow_inaccurate: job.allow_inaccurate,
        built_for: job.built_for.as_ref().map(Sku::to_string).unwrap_or_default(),
        builds: job.builds,
        measure: measure_out(&job.measure),
        plan_builds: job.plan.as_ref().map_or(0, |plan| plan.builds),
        artifacts: Vec::new(),
        partial: false,
        tags: tags_out(job, project),
        jobs_ahead: None,
        eta: None,
        prepared_digest: job.prepared.map(|prepared| prepared.digest.to_string()).unwrap_or_default(),
        prepared_bytes: job.prepared.map_or(0, |prepared| prepared.size_bytes),
        canary_plan: job.canary.as_ref().map(|canary| canary.plan.to_string()).unwrap_or_default(),
        fallback: job.fallback.as_ref().map(|job| job.as_str().to_owned()).unwrap_or_default(),
        tried: job.tried.iter().map(tried_out).collect(),
        no_fallback: want.is_some_and(|want| want.no_fallback),
        canary_slower_percent: job.canary.as_ref().map(|canary| canary.slower_percent).unwrap_or_default(),
        requires: job.requirement().texts(),
        preparation: preparation_out(job, project),
    }
}

/// What a job prepares, or where its model comes from, as somebody in `project` sees it: from what another project made
/// the same bytes is nobody else's.
pub(in crate::farm) fn preparation_out(job: &Job, project: Option<&str>) -> Option<v1::Preparation> {
    let Some(ask) = &job.prepare else {
        let own = project.is_none_or(|project| job.project() == project);
        return job.from.as_deref().filter(|_| own).map(from_out);
    };
    Some(v1::Preparation {
        ask_json: json(ask),
        source_digest: job.model.digest.to_string(),
        source_name: job.model.name.clone(),
        job: job.id.as_str().into(),
        document_digest: job.made.as_ref().map(|made| made.document.to_string()).unwrap_or_default(),
        made: job.made.as_ref().map(|made| model_out(&made.model)),
        as_calibration: false,
    })
}

fn from_out(from: &PreparedFrom) -> v1::Preparation {
    v1::Preparation {
        ask_json: json(&from.ask),
        source_digest: from.source.to_string(),
        source_name: from.source_name.clone(),
        job: from.job.clone(),
        document_digest: from.document.map(|document| document.to_string()).unwrap_or_default(),
        made: None,
        as_calibration: from.as_calibration,
    }
}

fn tried_out(tried: &Tried) -> v1::Tried {
    let Tried { toolchain, job, message } = tried;
    v1::Tried { toolchain_json: json(toolchain), job: job.as_str().into(), message: message.clone() }
}

pub(in crate::farm) fn eta_out(eta: Eta) -> v1::Eta {
    let Eta { start_in_ms, end_in_ms, error_factor, samples } = eta;
    v1::Eta { start_in_ms, end_in_ms, error_factor: error_factor.unwrap_or_default(), samples }
}

/// Tags of the requests that somebody in `project` may see.
fn tags_out(job: &Job, project: Option<&str>) -> Vec<String> {
    let own = |want: &&Want| project.is_none_or(|project| want.project == project);
    let tags: BTreeSet<&String> = job.wants.iter().filter(own).flat_map(|want| &want.tags).collect();
    tags.into_iter().cloned().collect()
}

/// What an agent is told to do. A build whose plan is stored already is told to measure it.
pub(in crate::farm) fn assignment(job: &Job) -> v1::Job {
    let mut out = job_out(job, None);
    out.attempts.clear();
    out.tried.clear();
    out.tags.clear();
    if job.only_measures() {
        out.kind = v1::JobKind::Benchmark.into();
    }
    out
}

/// Who caused an event, as somebody in `project` sees it: whose tokens another project has is its own.
fn event_actor(event: &Event, job: &Job, project: Option<&str>) -> String {
    let of_requests = matches!(event.what.as_str(), "submitted" | "merged" | "withdrawn" | "priority");
    let own = |project: &str| job.wants.iter().any(|want| want.project == project && want.actor == event.actor);
    match project {
        Some(project) if of_requests && !own(project) => SOMEBODY_ELSE.into(),
        _ => {
            // An agent is known to people by its host.
            let attempt = job.attempts.iter().find(|attempt| attempt.agent == event.actor);
            attempt.map_or_else(|| event.actor.clone(), |attempt| attempt.agent_name.clone())
        }
    }
}

pub(in crate::farm) fn event_out(event: &Event, job: &Job, project: Option<&str>) -> v1::JobEvent {
    let mut view = job_out(job, project);
    view.attempts.clear();
    view.tried.clear();
    view.state = state_out(event.state).into();
    view.attempt = event.attempt;
    view.phase.clone_from(&event.phase);
    v1::JobEvent {
        seq: event.seq,
        at_ms: event.at_ms,
        actor: event_actor(event, job, project),
        what: event.what.clone(),
        job: Some(view),
        detail: event.detail.clone(),
    }
}

/// An event without its job, which is `None` where it is kept no more.
pub(in crate::farm) fn event_record_out(event: &Event, job: Option<&Job>, project: Option<&str>) -> v1::EventRecord {
    let actor = match (job, project) {
        (Some(job), project) => event_actor(event, job, project),
        (None, None) => event.actor.clone(),
        (None, Some(_)) => SOMEBODY_ELSE.into(),
    };
    v1::EventRecord {
        seq: event.seq,
        at_ms: event.at_ms,
        job: event.job.as_str().into(),
        actor,
        what: event.what.clone(),
        state: state_out(event.state).into(),
        attempt: event.attempt,
        phase: event.phase.clone(),
        detail: event.detail.clone(),
    }
}

pub(in crate::farm) fn engine_out(engine: &Engine, report_json: String) -> v1::Engine {
    let unmeasured = engine.unmeasured && report_json.is_empty();
    v1::Engine {
        unmeasured,
        engine_key: engine.key.to_string(),
        plan_digest: engine.plan.digest.to_string(),
        plan_bytes: engine.plan.size_bytes,
        model: Some(model_out(&engine.model)),
        sku: engine.sku.to_string(),
        toolchain_json: json(&engine.toolchain),
        spec_json: json(&engine.spec),
        card_digest: engine.plan.card.map(|card| card.to_string()).unwrap_or_default(),
        report_json,
        accurate: engine.accurate,
        created_ms: engine.created_ms,
        job: engine.job.as_str().into(),
        simulated: engine.simulated,
        project: engine.project.clone(),
        builds: engine.plan.builds,
        inputs_digest: engine.inputs.map(|inputs| inputs.to_string()).unwrap_or_default(),
        preparation: engine.from.as_deref().map(from_out),
    }
}

/// `sees_job`: what it works on is something of the caller's.
pub(in crate::farm) fn device_out(view: DeviceView, sees_job: bool) -> v1::Device {
    let device = view.device;
    let busy = view.busy.is_some();
    v1::Device {
        id: device.id,
        agent: view.agent_name,
        skus: device.skus.iter().map(Sku::to_string).collect(),
        fingerprint_json: device.fingerprint,
        offers: device.offers.iter().map(|offer| v1::Offer { toolchain_json: json(offer), abilities: None }).collect(),
        online: view.online,
        busy_job: view.busy.filter(|_| sees_job).map(String::from).unwrap_or_default(),
        busy,
        telemetry_json: view.telemetry,
        last_seen_ms: view.seen_ms,
        draining: view.draining,
        simulated: device.simulated,
        quarantined: device.quarantined,
        quarantine_reason: device.quarantine_reason,
        threads: device.threads,
        prepares_json: device.prepares.iter().map(json).collect(),
        labels: view.labels.iter().map(label_out).collect(),
    }
}

pub(in crate::farm) fn lease_out(lease: LeaseRef) -> v1::Lease {
    v1::Lease { job: lease.job.into(), attempt: lease.attempt, device: lease.device }
}

pub(in crate::farm) fn artifacts_out(artifacts: &[ArtifactRef]) -> Vec<v1::Artifact> {
    let out = |artifact: &ArtifactRef| v1::Artifact {
        name: artifact.name.clone(),
        digest: artifact.digest.to_string(),
        size_bytes: artifact.size_bytes,
    };
    artifacts.iter().map(out).collect()
}

pub(in crate::farm) fn cache_out(record: &CacheRecord) -> v1::TuningCache {
    v1::TuningCache {
        scope: record.scope.to_string(),
        digest: record.cache.map(|cache| cache.digest.to_string()).unwrap_or_default(),
        size_bytes: record.cache.map_or(0, |cache| cache.size_bytes),
        previous_digest: record.previous.map(|previous| previous.to_string()).unwrap_or_default(),
        sku: record.sku.to_string(),
        device_name: record.device_name.clone(),
        toolchain_json: json(&record.toolchain),
        job: record.job.as_str().into(),
        attempt: record.attempt,
        agent: record.agent.clone(),
        device: record.device.clone(),
        published_ms: record.published_ms,
        generation: record.generation,
        beside: record.beside.iter().map(beside_out).collect(),
    }
}

fn beside_out(beside: &CacheBeside) -> v1::CacheBeside {
    v1::CacheBeside {
        digest: beside.cache.digest.to_string(),
        size_bytes: beside.cache.size_bytes,
        job: beside.job.as_str().into(),
        agent: beside.agent.clone(),
    }
}

fn baseline_out(ask: &BaselineAsk) -> v1::Baseline {
    let module_digest = ask.module.map(|module| module.to_string()).unwrap_or_default();
    v1::Baseline { name: ask.name.clone(), module_digest }
}

fn measure_out(ask: &MeasureAsk) -> Option<v1::MeasureAsk> {
    (!ask.is_empty()).then(|| v1::MeasureAsk {
        streams: ask.streams.clone(),
        trace: ask.trace,
        batches: ask.batches.clone(),
        warm_up_ms: ask.warm_up_ms,
        min_windows: ask.min_windows,
        inputs_digest: ask.inputs.map(|inputs| inputs.to_string()).unwrap_or_default(),
        time_inputs: ask.time_inputs,
        baselines: ask.baselines.iter().map(baseline_out).collect(),
    })
}

pub(in crate::farm) fn report_facts(report: &Report) -> v1::ReportFacts {
    v1::ReportFacts {
        digest: report.digest.to_string(),
        plan_digest: report.plan.to_string(),
        job: report.job.as_str().into(),
        sku: report.sku.to_string(),
        created_ms: report.created_ms,
        measure: measure_out(&report.measure),
        artifacts: artifacts_out(&report.artifacts),
    }
}

pub(in crate::farm) fn plugin_out(plugin: &PluginRecord) -> v1::Plugin {
    v1::Plugin {
        digest: plugin.digest.to_string(),
        name: plugin.name.clone(),
        actor: plugin.actor.clone(),
        allowed_ms: plugin.allowed_ms,
    }
}

pub(in crate::farm) fn pin_out(pin: &PinRecord) -> v1::Pin {
    v1::Pin {
        plan_digest: pin.plan.to_string(),
        project: pin.project.clone(),
        owner: pin.owner.clone(),
        engine_key: pin.key.to_string(),
        model_name: pin.model.clone(),
        sku: pin.sku.to_string(),
        reason: pin.reason.clone(),
        created_ms: pin.created_ms,
        expires_ms: pin.expires_ms,
    }
}

pub(in crate::farm) fn declaration_out(record: &DeclarationRecord) -> v1::Declaration {
    let specs = record.specs.iter().map(|spec| v1::DeclaredSpec {
        name: spec.name.clone(),
        spec_json: json(&spec.spec),
        toolchain: spec.toolchain.clone(),
    });
    let cells = record.cells.iter().map(|cell| v1::DeclaredCell {
        model: cell.model.clone(),
        model_digest: cell.digest.to_string(),
        sku: cell.sku.to_string(),
        target: cell.target.clone(),
        spec: cell.spec.clone(),
        plan_digest: cell.plan.map(|plan| plan.to_string()).unwrap_or_default(),
    });
    v1::Declaration {
        project: record.project.clone(),
        name: record.name.clone(),
        actor: record.actor.clone(),
        declared_ms: record.declared_ms,
        specs: specs.collect(),
        cells: cells.collect(),
    }
}

pub(in crate::farm) fn token_out(token: &TokenRecord) -> v1::Token {
    v1::Token {
        id: token.id.clone(),
        name: token.name.clone(),
        role: token.role.clone(),
        project: token.project.clone().unwrap_or_default(),
        created_ms: token.created_ms,
        expires_ms: token.expires_ms,
        revoked: token.revoked,
        last_used_ms: token.last_used_ms,
        agent: token.agent.clone().unwrap_or_default(),
        agent_name: String::new(),
    }
}

pub(in crate::farm) fn foreseen_out(
    combinations: Vec<Foreseen>,
    missing: &[Digest],
    refusal: Option<ApiError>,
) -> v1::DryRunReply {
    let out = |one: Foreseen| v1::Foreseen {
        model_digest: one.model.to_string(),
        sku: one.sku.to_string(),
        spec_json: json(&one.spec),
        toolchain_constraint: one.constraint,
        toolchain_json: one.toolchain.as_ref().map(json).unwrap_or_default(),
        engine_key: one.key.map(|key| key.to_string()).unwrap_or_default(),
        would: one.would.into(),
        detail: one.detail,
        hint: one.hint,
        plan_digest: one.plan.map(|plan| plan.to_string()).unwrap_or_default(),
        job: one.job.map(String::from).unwrap_or_default(),
    };
    let (message, hint) = refusal.map(|error| (error.message, error.hint)).unwrap_or_default();
    v1::DryRunReply {
        combinations: combinations.into_iter().map(out).collect(),
        missing_blobs: missing.iter().map(Digest::to_string).collect(),
        refusal: message,
        refusal_hint: hint,
    }
}

pub(in crate::farm) fn audit_out(line: &AuditLine) -> v1::AuditRecord {
    let AuditLine { seq, at_ms, kind: _, actor, role, project, token, from, what, object, outcome, detail } =
        line.clone();
    v1::AuditRecord { seq, at_ms, actor, role, project, token, from, what, object, outcome, detail }
}

fn label_out((name, value): (&String, &String)) -> String {
    Label { name: name.clone(), value: Some(value.clone()).filter(|value| !value.is_empty()) }.to_string()
}

pub(in crate::farm) fn agent_out(view: &AgentView) -> v1::Agent {
    let AgentView { agent, online, draining, jobs, seen_ms } = view;
    let skus: BTreeSet<String> =
        agent.devices.iter().flat_map(|device| device.skus.iter().map(Sku::to_string)).collect();
    v1::Agent {
        id: agent.id.clone(),
        name: agent.name.clone(),
        version: agent.version.clone(),
        protocol: agent.protocol,
        online: *online,
        draining: *draining,
        drained: agent.drained,
        devices: agent.devices.len() as u32,
        skus: skus.into_iter().collect(),
        jobs: jobs.iter().map(|job| job.as_str().into()).collect(),
        last_seen_ms: *seen_ms,
        token: String::new(),
        labels: agent.labels.iter().map(label_out).collect(),
    }
}
