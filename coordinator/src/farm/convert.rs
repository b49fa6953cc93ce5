//! Between the contract's messages and the core's records. What comes in is checked and bounded here; what goes out is in
//! `out`.

mod out;

pub(super) use out::{
    agent_out, artifacts_out, assignment, audit_out, cache_out, declaration_out, device_out, engine_out, eta_out,
    event_out, event_record_out, foreseen_out, job_out, lease_out, model_out, pin_out, plugin_out, preparation_out,
    report_facts, state_out, token_out,
};

use crate::core::{
    Abilities, ArtifactRef, CacheRef, CacheUpdate, Device, Failure, FinishedIn, FinishedOutcome, HelloIn, JobId,
    JobState, JoinedBy, LeaseRef, Made, Model, ModelFile, PlanRef,
};
use planforge_identity::model::model_digest;
use planforge_proto::{ApiError, ErrorCode, protocol, v1};
use planforge_types::{
    BuildSpec, Digest, FailureClass, Label, Lack, Reason, Requirement, Sku, Toolchain,
    order::{BUILDS_MAX, BaselineAsk, MeasureAsk},
    preparation::PrepareAsk,
    requirement,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path},
};

/// Files of one model; external data of the largest published models comes in a few hundred.
const MODEL_FILES_MAX: usize = 4_096;
/// Longest file name of a model, and longest name of anything else.
const FILE_NAME_MAX_BYTES: usize = 1_024;
const NAME_MAX_BYTES: usize = 256;
/// Largest spec document.
const SPEC_MAX_BYTES: usize = 256 * 1024;
/// Largest document of how models are prepared: a thousand files of data, and layers by name.
const PREPARE_MAX_BYTES: usize = 1024 * 1024;
/// Devices of one agent and offers of one device.
const DEVICES_MAX: usize = 64;
const OFFERS_MAX: usize = 64;
const SKUS_MAX: usize = 32;
/// Names of one kind that a toolchain says it can do.
const ABILITIES_MAX: usize = 64;
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
/// Labels of one agent.
const LABELS_MAX: usize = 32;
/// What one request asks of its jobs' devices.
const REQUIRES_MAX: usize = 32;
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

/// What a request asks of its jobs' devices.
pub(super) fn requirement(texts: &[String]) -> Result<Requirement, ApiError> {
    if texts.len() > REQUIRES_MAX {
        return Err(invalid(format!("at most {REQUIRES_MAX} requirements go together, not {}", texts.len())));
    }
    Requirement::of_all(texts).map_err(|error| invalid(error.to_string()))
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

/// How models are prepared; `None`: they are not.
pub(super) fn prepare(text: &str) -> Result<Option<PrepareAsk>, ApiError> {
    if text.len() > PREPARE_MAX_BYTES {
        let length = text.len();
        return Err(invalid(format!("a preparation has {length} bytes; at most {PREPARE_MAX_BYTES} are accepted")));
    }
    if text.trim().is_empty() {
        return Ok(None);
    }
    let ask: PrepareAsk = serde_json::from_str(text).map_err(|error| invalid(format!("a preparation: {error}")))?;
    let ask = ask.canonical();
    ask.validate().map_err(|error| invalid(format!("a preparation: {error}")))?;
    Ok(Some(ask))
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

pub(super) fn state(state: i32) -> Result<JobState, ApiError> {
    let known = JobState::ALL.into_iter().find(|known| i32::from(state_out(*known)) == state);
    known.ok_or_else(|| invalid(format!("{state} is no job state")))
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
        made: match &finished.made {
            Some(model) => Some(Made {
                model: self::model(model.clone())?,
                document: digest("the digest of what became of the model", &finished.made_document_digest)?,
            }),
            None => None,
        },
    })
}

fn labels(texts: &[String]) -> Result<BTreeMap<String, String>, ApiError> {
    if texts.len() > LABELS_MAX {
        return Err(invalid(format!("an agent has at most {LABELS_MAX} labels, this one {}", texts.len())));
    }
    let read = texts.iter().map(|text| text.parse::<Label>()).collect::<Result<Vec<_>, _>>();
    read.and_then(requirement::labels).map_err(|error| invalid(error.to_string()))
}

/// Everything but the finished attempts, whose reports are read first, and who it is that joins.
pub(super) fn hello(hello: v1::Hello) -> Result<HelloIn, ApiError> {
    let agent = name("the agent's id", &hello.agent_id)?;
    if agent.is_empty() || hello.incarnation.is_empty() {
        return Err(invalid("an agent says its id and its incarnation first"));
    }
    let (host, version) = (name("the agent's name", &hello.name)?, name("the agent's version", &hello.version)?);
    let spoken = protocol::spoken();
    let common = spoken.check_release(&version).and_then(|()| spoken.common(hello.oldest_protocol, hello.protocol));
    let protocol = common.map_err(|skew| {
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
        labels: labels(&hello.labels)?,
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

fn cache_update(update: &v1::CacheUpdate) -> Result<CacheUpdate, ApiError> {
    Ok(CacheUpdate {
        scope: digest("a timing cache's scope", &update.scope)?,
        cache: CacheRef { digest: digest("a timing cache's digest", &update.digest)?, size_bytes: update.size_bytes },
        previous: optional_digest("the digest of the cache before", &update.previous_digest)?,
        beside: update
            .beside_digests
            .iter()
            .map(|beside| digest("the digest of a cache beside", beside))
            .collect::<Result<_, _>>()?,
    })
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

/// A plugin's digest and its name for people.
pub(super) fn plugin_name(text: &str) -> Result<String, ApiError> {
    name("a plugin's name", text)
}

/// Why something is paused; may be empty.
pub(super) fn pause_reason(text: &str) -> Result<String, ApiError> {
    name("a pause's reason", text)
}

pub(super) fn pin_reason(text: &str) -> Result<String, ApiError> {
    name("a pin's reason", text)
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

/// The id of an agent; empty: none.
pub(super) fn agent_id(text: &str) -> Result<Option<String>, ApiError> {
    name("an agent's id", text).map(|id| Some(id).filter(|id| !id.is_empty()))
}
