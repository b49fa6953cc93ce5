//! Between the contract's messages and the core's records. What comes in is checked and bounded here.

use crate::core::{
    Abilities, AgentView, ArtifactRef, Attempt, AuditLine, CacheRecord, CacheRef, CacheUpdate, DeclarationRecord,
    Device, DeviceView, Engine, Eta, Event, Failure, FinishedIn, FinishedOutcome, Foreseen, HelloIn, Job, JobId,
    JobKind, JobState, JoinedBy, LeaseRef, Model, ModelFile, PinRecord, PlanRef, PluginRecord, Report, TokenRecord,
    Tried, Want,
};
use planforge_identity::model::model_digest;
use planforge_proto::{ApiError, ErrorCode, protocol, v1};
use planforge_types::{
    BuildSpec, Digest, FailureClass, Lack, Reason, Sku, Toolchain,
    order::{BUILDS_MAX, BaselineAsk, MeasureAsk},
};
use std::{
    collections::BTreeSet,
    path::{Component, Path},
};

/// Files of one model; external data of the largest published models comes in a few hundred.
const MODEL_FILES_MAX: usize = 4_096;
/// Longest file name of a model, and longest name of anything else.
const FILE_NAME_MAX_BYTES: usize = 1_024;
const NAME_MAX_BYTES: usize = 256;
/// Largest spec document.
const SPEC_MAX_BYTES: usize = 256 * 1024;
/// Devices of one agent and offers of one device.
const DEVICES_MAX: usize = 64;
const OFFERS_MAX: usize = 64;
const SKUS_MAX: usize = 32;
/// Names of one kind that a toolchain says it can do.
const ABILITIES_MAX: usize = 64;
/// Stands for callers whose names are none of the reader's.
const SOMEBODY_ELSE: &str = "somebody else";
/// Largest fingerprint document of a device.
const FINGERPRINT_MAX_BYTES: usize = 64 * 1024;
/// Largest toolchain document of an offer, and all that one agent says of its devices together.
const OFFER_MAX_BYTES: usize = 16 * 1024;
const DESCRIPTION_MAX_BYTES: usize = 1024 * 1024;
/// Artifacts of one report; agents keep fewer.
const ARTIFACTS_MAX: usize = 256;
/// Tags of one request, and the longest of them.
const TAGS_MAX: usize = 32;
const TAG_MAX_BYTES: usize = 128;
/// Leases or finished attempts in one message.
pub(super) const LEASES_MAX: usize = 256;

pub(super) fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::InvalidArgument, message)
}

pub(super) fn digest(what: &str, text: &str) -> Result<Digest, ApiError> {
    text.parse().map_err(|error| invalid(format!("{what}: {error}")))
}

pub(super) fn optional_digest(what: &str, text: &str) -> Result<Option<Digest>, ApiError> {
    if text.is_empty() { Ok(None) } else { digest(what, text).map(Some) }
}

/// Tags of one request or filter, each once.
pub(super) fn tags(tags: &[String]) -> Result<Vec<String>, ApiError> {
    if tags.len() > TAGS_MAX {
        return Err(invalid(format!("at most {TAGS_MAX} tags go together, not {}", tags.len())));
    }
    for tag in tags {
        let (name, value) = tag.split_once('=').unwrap_or((tag, ""));
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'/');
        let is_name = !name.is_empty() && name.bytes().all(plain);
        if !is_name || tag.len() > TAG_MAX_BYTES || value.contains(|c: char| c == ',' || c.is_control()) {
            let message = format!("'{}' is no tag", tag.escape_debug());
            return Err(invalid(message).with_hint(format!(
                "a tag is NAME or NAME=VALUE, at most {TAG_MAX_BYTES} bytes; a name has letters, digits and . _ - /, a value \
                 no comma"
            )));
        }
    }
    Ok(tags.iter().collect::<BTreeSet<_>>().into_iter().cloned().collect())
}

fn name(what: &str, text: &str) -> Result<String, ApiError> {
    if text.len() > NAME_MAX_BYTES || text.chars().any(char::is_control) {
        return Err(invalid(format!("{what} must be at most {NAME_MAX_BYTES} bytes without control characters")));
    }
    Ok(text.to_owned())
}

/// A project's name: lower-case letters, digits, `-`, `_` and `.`.
pub(super) fn project(text: &str) -> Result<String, ApiError> {
    let fine = !text.is_empty()
        && text.len() <= 64
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.".contains(&b));
    if fine {
        return Ok(text.to_owned());
    }
    Err(invalid(format!("'{text}' is no project name (1 to 64 lower-case letters, digits, '-', '_' and '.')")))
}

pub(super) fn sku(text: &str) -> Result<Sku, ApiError> {
    text.parse().map_err(|error| invalid(format!("{error}")))
}

pub(super) fn spec(text: &str) -> Result<BuildSpec, ApiError> {
    if text.len() > SPEC_MAX_BYTES {
        return Err(invalid(format!("the build spec has {} bytes; at most {SPEC_MAX_BYTES} are accepted", text.len())));
    }
    let text = if text.trim().is_empty() { "{}" } else { text };
    BuildSpec::parse(text).map_err(|error| invalid(format!("the build spec: {error}")))
}

pub(super) fn model(model: v1::Model) -> Result<Model, ApiError> {
    let own = digest("the model's digest", &model.digest)?;
    if model.files.is_empty() || model.files.len() > MODEL_FILES_MAX {
        return Err(invalid(format!("a model has 1 to {MODEL_FILES_MAX} files, this one {}", model.files.len())));
    }
    let mut files = Vec::with_capacity(model.files.len());
    for file in model.files {
        let path = Path::new(&file.name);
        let inside = path.components().all(|part| matches!(part, Component::Normal(_)));
        if file.name.is_empty() || file.name.len() > FILE_NAME_MAX_BYTES || !inside || file.name.contains(['\\', '\0'])
        {
            return Err(invalid(format!("'{}' is no file name inside the model's folder", file.name.escape_debug())));
        }
        let digest = digest("a model file's digest", &file.digest)?;
        files.push(ModelFile { name: file.name, digest, size_bytes: file.size_bytes });
    }
    let names: BTreeSet<&str> = files.iter().map(|file| file.name.as_str()).collect();
    if names.len() < files.len() {
        return Err(invalid("two files of the model have one name"));
    }
    // A model is named by what it is: otherwise one name could be given to another model's engine.
    let made = model_digest(files.iter().map(|file| (file.name.as_str(), file.digest, file.size_bytes)));
    if made != own {
        let message = format!("the model says that it is {own}, but its files make it {made}");
        return Err(invalid(message).with_hint("submit the model with this version of planforge"));
    }
    Ok(Model {
        digest: own,
        graph_digest: optional_digest("the model's graph digest", &model.graph_digest)?,
        structure_digest: optional_digest("the model's structure digest", &model.structure_digest)?,
        name: name("the model's name", &model.name)?,
        files,
    })
}

pub(super) fn model_out(model: &Model) -> v1::Model {
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

pub(super) fn failure(failure: Option<v1::Failure>) -> Failure {
    let failure = failure.unwrap_or_default();
    let class = match v1::FailureClass::try_from(failure.class) {
        Ok(v1::FailureClass::Resource) => FailureClass::Resource,
        Ok(v1::FailureClass::Model) => FailureClass::Model,
        Ok(v1::FailureClass::Unstable) => FailureClass::Unstable,
        // A class that is missing or from a newer agent: trying again is bounded and harms nothing.
        _ => FailureClass::Infrastructure,
    };
    let message = if failure.message.is_empty() { "the agent gave no reason".into() } else { failure.message };
    let reason = Reason::of_name(&failure.reason).filter(|_| class == FailureClass::Model);
    Failure { lacked: Lack::of_name(&failure.lacked), reason, ..Failure::new(class, message, failure.hint) }
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

pub(super) fn state_out(state: JobState) -> v1::JobState {
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

pub(super) fn state(state: i32) -> Result<JobState, ApiError> {
    let known = JobState::ALL.into_iter().find(|known| i32::from(state_out(*known)) == state);
    known.ok_or_else(|| invalid(format!("{state} is no job state")))
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
pub(super) fn job_out(job: &Job, project: Option<&str>) -> v1::Job {
    let want = job.wants.iter().find(|want| project.is_none_or(|project| want.project == project));
    let want = want.or(job.wants.first());
    let last = job.attempts.last();
    let kind = match job.kind {
        JobKind::Build => v1::JobKind::Build,
        JobKind::Benchmark => v1::JobKind::Benchmark,
        JobKind::Compile => v1::JobKind::Compile,
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
    }
}

fn tried_out(tried: &Tried) -> v1::Tried {
    let Tried { toolchain, job, message } = tried;
    v1::Tried { toolchain_json: json(toolchain), job: job.as_str().into(), message: message.clone() }
}

pub(super) fn eta_out(eta: Eta) -> v1::Eta {
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
pub(super) fn assignment(job: &Job) -> v1::Job {
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

pub(super) fn event_out(event: &Event, job: &Job, project: Option<&str>) -> v1::JobEvent {
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
pub(super) fn event_record_out(event: &Event, job: Option<&Job>, project: Option<&str>) -> v1::EventRecord {
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

pub(super) fn engine_out(engine: &Engine, report_json: String) -> v1::Engine {
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
    }
}

/// `sees_job`: what it works on is something of the caller's.
pub(super) fn device_out(view: DeviceView, sees_job: bool) -> v1::Device {
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
    }
}

fn toolchain(device: &str, text: &str) -> Result<Toolchain, ApiError> {
    if text.len() > OFFER_MAX_BYTES {
        return Err(invalid(format!("a toolchain of device '{device}' is larger than {OFFER_MAX_BYTES} bytes")));
    }
    serde_json::from_str(text).map_err(|error| invalid(format!("a toolchain of device '{device}': {error}")))
}

fn device(device: v1::Device) -> Result<Device, ApiError> {
    let id = name("a device's id", &device.id)?;
    if id.is_empty() || device.skus.is_empty() || device.skus.len() > SKUS_MAX || device.offers.len() > OFFERS_MAX {
        let limits = format!("1 to {SKUS_MAX} SKUs and at most {OFFERS_MAX} toolchains");
        return Err(invalid(format!("device '{id}' must have an id, {limits}")));
    }
    if device.fingerprint_json.len() > FINGERPRINT_MAX_BYTES {
        return Err(invalid(format!("the fingerprint of device '{id}' is larger than {FINGERPRINT_MAX_BYTES} bytes")));
    }
    let skus = device.skus.iter().map(|text| sku(text)).collect::<Result<_, _>>()?;
    let mut offers = Vec::with_capacity(device.offers.len());
    for offer in device.offers {
        offers.push((toolchain(&id, &offer.toolchain_json)?, offer.abilities.map(abilities).transpose()?));
    }
    if device.prepares_json.len() > OFFERS_MAX {
        return Err(invalid(format!("device '{id}' prepares for more than {OFFERS_MAX} toolchains")));
    }
    let mut prepares = device.prepares_json.iter().map(|text| toolchain(&id, text)).collect::<Result<Vec<_>, _>>()?;
    prepares.sort();
    prepares.dedup();
    offers.sort_by(|left, right| left.0.cmp(&right.0));
    offers.dedup_by(|later, first| later.0 == first.0);
    let (offers, said): (Vec<Toolchain>, Vec<Option<Abilities>>) = offers.into_iter().unzip();
    let abilities = (0..).zip(said).filter_map(|(at, abilities)| Some((at, abilities?))).collect();
    Ok(Device {
        id,
        skus,
        fingerprint: device.fingerprint_json,
        offers,
        abilities,
        draining: device.draining,
        simulated: device.simulated,
        quarantined: device.quarantined,
        quarantine_reason: name("a quarantine reason", &device.quarantine_reason)?,
        threads: device.threads,
        prepares,
    })
}

/// A precision that only a newer release knows is none that this one could ask for.
fn abilities(said: v1::Abilities) -> Result<Abilities, ApiError> {
    let names = |what: &str, names: Vec<String>| {
        if names.len() > ABILITIES_MAX {
            return Err(invalid(format!("a toolchain has at most {ABILITIES_MAX} {what}, not {}", names.len())));
        }
        names.iter().map(|one| name(what, one)).collect::<Result<Vec<_>, _>>()
    };
    let precision = |text: String| serde_json::from_value(serde_json::Value::String(text)).ok();
    Ok(Abilities {
        precisions: names("precisions", said.precisions)?.into_iter().filter_map(precision).collect(),
        features: names("features", said.features)?.into_iter().collect(),
        options: names("options", said.options)?.into_iter().collect(),
        never_measures: names("measurements", said.never_measures)?.into_iter().collect(),
    })
}

pub(super) fn devices(devices: Vec<v1::Device>) -> Result<Vec<Device>, ApiError> {
    if devices.len() > DEVICES_MAX {
        return Err(invalid(format!("an agent has at most {DEVICES_MAX} devices, this one says {}", devices.len())));
    }
    let bytes = devices.iter().map(|device| {
        let offers = device.offers.iter().map(|offer| offer.toolchain_json.len()).sum::<usize>();
        device.fingerprint_json.len() + offers + device.prepares_json.iter().map(String::len).sum::<usize>()
    });
    let bytes: usize = bytes.sum();
    if bytes > DESCRIPTION_MAX_BYTES {
        let limit =
            format!("an agent describes its devices in at most {DESCRIPTION_MAX_BYTES} bytes, this one in {bytes}");
        return Err(invalid(limit));
    }
    let mut known = devices.into_iter().map(device).collect::<Result<Vec<_>, _>>()?;
    known.sort_by(|left, right| left.id.cmp(&right.id));
    if let Some(pair) = known.windows(2).find(|pair| pair[0].id == pair[1].id) {
        return Err(invalid(format!("the agent names device '{}' twice", pair[0].id)));
    }
    Ok(known)
}

pub(super) fn lease(lease: Option<v1::Lease>) -> Result<LeaseRef, ApiError> {
    let lease = lease.ok_or_else(|| invalid("the message names no lease"))?;
    Ok(LeaseRef { job: job_id(&lease.job)?, attempt: lease.attempt, device: name("a device's id", &lease.device)? })
}

pub(super) fn leases(leases: Vec<v1::Lease>) -> Result<Vec<LeaseRef>, ApiError> {
    if leases.len() > LEASES_MAX {
        return Err(invalid(format!("an agent holds at most {LEASES_MAX} leases, this one says {}", leases.len())));
    }
    leases.into_iter().map(|one| lease(Some(one))).collect()
}

pub(super) fn lease_out(lease: LeaseRef) -> v1::Lease {
    v1::Lease { job: lease.job.into(), attempt: lease.attempt, device: lease.device }
}

/// An id or a prefix of one.
pub(super) fn job_id(text: &str) -> Result<JobId, ApiError> {
    let fine = !text.is_empty() && text.len() <= 64 && text.bytes().all(|b| b.is_ascii_alphanumeric());
    if fine { Ok(text.into()) } else { Err(invalid(format!("'{}' is no job id", text.escape_debug()))) }
}

/// `builds` as an agent says it; one that says nothing built once.
pub(super) fn plan(digest_text: &str, size_bytes: u64, card: &str, builds: u32) -> Result<Option<PlanRef>, ApiError> {
    let card = optional_digest("the card's digest", card)?;
    let plan = optional_digest("the plan's digest", digest_text)?;
    let builds = builds.clamp(1, BUILDS_MAX);
    Ok(plan.map(|digest| PlanRef { digest, size_bytes, card, builds }))
}

/// Everything but the report, which is read from the blob store.
pub(super) fn finished(finished: &v1::Finished) -> Result<FinishedIn, ApiError> {
    let outcome = match finished.outcome.as_str() {
        "succeeded" => FinishedOutcome::Succeeded,
        "failed" => FinishedOutcome::Failed(failure(finished.failure.clone())),
        "cancelled" => FinishedOutcome::Cancelled,
        other => return Err(invalid(format!("'{}' is no outcome of an attempt", other.escape_debug()))),
    };
    Ok(FinishedIn {
        lease: lease(finished.lease.clone())?,
        outcome,
        plan: plan(&finished.plan_digest, finished.plan_bytes, &finished.card_digest, finished.builds)?,
        report: None,
        log: optional_digest("the log's digest", &finished.log_digest)?,
        accurate: finished.accurate,
        artifacts: artifacts(&finished.artifacts)?,
        cache: finished.cache.as_ref().map(cache_update).transpose()?,
        suspects_cache: finished.suspects_cache,
        prepared: optional_digest("the digest of what was prepared", &finished.prepared_digest)?
            .map(|digest| CacheRef { digest, size_bytes: finished.prepared_bytes }),
    })
}

/// Everything but the finished attempts, whose reports are read first, and who it is that joins.
pub(super) fn hello(hello: v1::Hello) -> Result<HelloIn, ApiError> {
    let agent = name("the agent's id", &hello.agent_id)?;
    if agent.is_empty() || hello.incarnation.is_empty() {
        return Err(invalid("an agent says its id and its incarnation first"));
    }
    let (host, version) = (name("the agent's name", &hello.name)?, name("the agent's version", &hello.version)?);
    let protocol = protocol::check_release(&version)
        .and_then(|()| protocol::common(hello.oldest_protocol, hello.protocol))
        .map_err(|skew| {
            let message = format!("the agent on {host} does not work with this coordinator: {skew}");
            ApiError::new(ErrorCode::Refused, message)
                .with_hint("run the same release on every host; the coordinator first, when upgrading")
        })?;
    Ok(HelloIn {
        agent,
        incarnation: name("the agent's incarnation", &hello.incarnation)?,
        name: host,
        version,
        devices: devices(hello.devices)?,
        leases: leases(hello.leases)?,
        draining: hello.draining,
        finished: Vec::new(),
        joined_by: JoinedBy::Unknown,
        protocol,
        memory_bytes: hello.memory_bytes,
    })
}

fn artifacts(artifacts: &[v1::Artifact]) -> Result<Vec<ArtifactRef>, ApiError> {
    if artifacts.len() > ARTIFACTS_MAX {
        let count = artifacts.len();
        return Err(invalid(format!("a report has at most {ARTIFACTS_MAX} artifacts, this one {count}")));
    }
    let read = |artifact: &v1::Artifact| {
        let name = name("an artifact's name", &artifact.name)?;
        if name.is_empty() || name.contains(['/', '\\']) || name.starts_with('.') {
            return Err(invalid(format!("'{}' is no name for an artifact", name.escape_debug())));
        }
        let digest = digest("an artifact's digest", &artifact.digest)?;
        Ok(ArtifactRef { name, digest, size_bytes: artifact.size_bytes })
    };
    artifacts.iter().map(read).collect()
}

pub(super) fn artifacts_out(artifacts: &[ArtifactRef]) -> Vec<v1::Artifact> {
    let out = |artifact: &ArtifactRef| v1::Artifact {
        name: artifact.name.clone(),
        digest: artifact.digest.to_string(),
        size_bytes: artifact.size_bytes,
    };
    artifacts.iter().map(out).collect()
}

fn cache_update(update: &v1::CacheUpdate) -> Result<CacheUpdate, ApiError> {
    Ok(CacheUpdate {
        scope: digest("a timing cache's scope", &update.scope)?,
        cache: CacheRef { digest: digest("a timing cache's digest", &update.digest)?, size_bytes: update.size_bytes },
        previous: optional_digest("the digest of the cache before", &update.previous_digest)?,
    })
}

pub(super) fn cache_out(record: &CacheRecord) -> v1::TuningCache {
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
    }
}

pub(super) fn builds(asked: u32) -> Result<u32, ApiError> {
    if asked > BUILDS_MAX {
        return Err(invalid(format!("a job builds at most {BUILDS_MAX} times, not {asked}")));
    }
    Ok(asked.max(1))
}

pub(super) fn measure(asked: Option<v1::MeasureAsk>) -> Result<MeasureAsk, ApiError> {
    let v1::MeasureAsk { streams, trace, batches, warm_up_ms, min_windows, inputs_digest, time_inputs, baselines } =
        asked.unwrap_or_default();
    let inputs = optional_digest("the inputs' digest", &inputs_digest)?;
    let read = |v1::Baseline { name, module_digest }| {
        let module = optional_digest("the digest of a baseline's module", &module_digest)?;
        Ok::<_, ApiError>(BaselineAsk { name, module })
    };
    let baselines = baselines.into_iter().map(read).collect::<Result<_, _>>()?;
    let ask = MeasureAsk { streams, trace, batches, warm_up_ms, min_windows, inputs, time_inputs, baselines };
    ask.validate().map_err(invalid)?;
    Ok(ask)
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

pub(super) fn report_facts(report: &Report) -> v1::ReportFacts {
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

/// A plugin's digest and its name for people.
pub(super) fn plugin_name(text: &str) -> Result<String, ApiError> {
    name("a plugin's name", text)
}

pub(super) fn plugin_out(plugin: &PluginRecord) -> v1::Plugin {
    v1::Plugin {
        digest: plugin.digest.to_string(),
        name: plugin.name.clone(),
        actor: plugin.actor.clone(),
        allowed_ms: plugin.allowed_ms,
    }
}

pub(super) fn pin_reason(text: &str) -> Result<String, ApiError> {
    name("a pin's reason", text)
}

pub(super) fn pin_out(pin: &PinRecord) -> v1::Pin {
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

/// The name of a repository: it stands in command lines.
pub(super) fn repository(text: &str) -> Result<String, ApiError> {
    let fine = !text.is_empty()
        && text.len() <= 64
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        && text.as_bytes()[0].is_ascii_alphanumeric();
    if fine {
        return Ok(text.to_owned());
    }
    let text: String = text.chars().take(80).collect();
    let rule = "1 to 64 letters, digits, '-', '_' and '.', a letter or digit first";
    Err(invalid(format!("'{}' is no name of a repository ({rule})", text.escape_debug())))
}

/// A name of a declaration's own.
pub(super) fn declared_name(what: &str, text: &str) -> Result<String, ApiError> {
    if text.is_empty() {
        return Err(invalid(format!("{what} must not be empty")));
    }
    name(what, text)
}

pub(super) fn declaration_out(record: &DeclarationRecord) -> v1::Declaration {
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

pub(super) fn token_out(token: &TokenRecord) -> v1::Token {
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

pub(super) fn foreseen_out(
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

pub(super) fn audit_out(line: &AuditLine) -> v1::AuditRecord {
    let AuditLine { seq, at_ms, kind: _, actor, role, project, token, from, what, object, outcome, detail } =
        line.clone();
    v1::AuditRecord { seq, at_ms, actor, role, project, token, from, what, object, outcome, detail }
}

/// The id of an agent; empty: none.
pub(super) fn agent_id(text: &str) -> Result<Option<String>, ApiError> {
    name("an agent's id", text).map(|id| Some(id).filter(|id| !id.is_empty()))
}

pub(super) fn agent_out(view: &AgentView) -> v1::Agent {
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
    }
}
