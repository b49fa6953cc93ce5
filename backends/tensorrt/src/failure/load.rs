//! Failures of plans and caches: another version's, another device's, damaged, empty.

use super::{Ended, FailureKind, Found, Messages, between};
use crate::{acceptance::Rejected, log::Message};
use planforge_types::FailureClass;

/// The run passed, and what it wrote is no whole plan: the disk lost it, whatever else the log says.
pub(super) fn not_whole(ended: &Ended<'_>, _: &Messages<'_>) -> Option<Found> {
    match ended.rejected? {
        Rejected::Plan(error) => {
            let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
            Some(Found::new(FailureKind::PlanDamaged, &format!("{error}{cause}")))
        }
        _ => None,
    }
}

/// The plan was not written, after everything else went well.
pub(super) fn writing(_: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    let message = messages.error(&[
        "cannot open file for write",
        "cannot write to filestreamwriter",
        "cannot open engine file",
        "error writing",
        "failed to write",
        "write failed",
        "saving engine to file failed",
        "saving engine kernel text to file failed",
    ])?;
    Some(Found::new(FailureKind::WritingPlan, &message.text))
}

/// An empty engine is the model's only where the builder says why: else nothing is known, and nothing is remembered.
pub(super) fn class_of_empty(evidence: &str) -> FailureClass {
    let evidence = evidence.to_ascii_lowercase();
    let told = evidence.contains("error[") || evidence.contains("error code") || evidence.contains("exception");
    if told { FailureClass::Model } else { FailureClass::Infrastructure }
}

/// `expecting X got Y`: what this runtime or device wants, and what the plan is.
fn expecting(message: &Message, unit: &str) -> (Option<String>, Option<String>) {
    let word = |before: &str, after: &[char]| {
        let rest = message.text.split_once(before)?.1;
        let word = rest.trim_start().strip_prefix(unit).unwrap_or(rest).trim_start();
        let word = word.split(after).next()?.trim_end_matches('.').to_owned();
        (!word.is_empty()).then_some(word)
    };
    (word("expecting ", &[' ', ',']), word(" got ", &[' ', ',']))
}

pub(super) fn incompatible(_: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    if let Some(message) = messages.error(&["on an incompatible device"]) {
        let (device, plan) = expecting(message, "compute");
        return Some(Found::new(FailureKind::WrongDevice { device, plan }, &message.text));
    }
    if let Some(message) = messages.error(&["not compatible with this version of tensorrt"]) {
        let (runtime, plan) = expecting(message, "library version");
        return Some(Found::new(FailureKind::PlanVersion { runtime, plan }, &message.text));
    }
    let message = messages.error(&["version tag does not match", "serialization version is not supported"])?;
    let digits = |before| {
        let number = between(&message.text, before, ",")?.split(|c: char| !c.is_ascii_digit()).next()?;
        (!number.is_empty()).then(|| format!("format {number}"))
    };
    let (runtime, plan) = (digits("Current Version: "), digits("Serialized Engine Version: "));
    Some(Found::new(FailureKind::PlanVersion { runtime, plan }, &message.text))
}

pub(super) fn timing_cache(_: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    let message =
        messages.error(&["timingcache creation failed", "failed to create itimingcache", "timing cache miss"])?;
    Some(Found::new(FailureKind::TimingCache, &message.text))
}

pub(super) fn damaged(_: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    let message = messages.error(&[
        "magic tag does not match",
        "magictagread",
        "engine plan file is corrupted",
        "error opening engine file",
        "error loading engine file",
        "engine is empty. nothing to deserialize",
        "premature end",
        "checksum",
        "size specified in header does not match",
        "failed to read plan file",
        "plan file is incorrect",
        "plan file is empty",
        "failed to verify a plan tag",
        "error when reading engine file",
        "engine blob is empty",
        "reading engine file via stream reader failed",
    ])?;
    Some(Found::new(FailureKind::PlanDamaged, &message.text))
}

pub(super) fn empty_engine(ended: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    let told = messages.error(&["empty engine"]);
    if told.is_none() && ended.facts.engine.size_mib != Some(0.0) {
        return None;
    }
    // What came before says more than the sentence itself.
    Some(Found::new(FailureKind::EmptyEngine, &messages.first_cause()))
}

pub(super) fn unexplained(_: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    if let Some(message) = messages.error(&["cannot deserialize plugin", "plugincreator not found", "plugin creator"]) {
        let plugin =
            between(&message.text, "not find plugin: ", " ").filter(|_| message.text.contains("not find plugin"));
        return Some(Found::new(FailureKind::PluginMissing { plugin: plugin.map(str::to_owned) }, &message.text));
    }
    let message = messages.error(&["deserializ", "got invalid engine"])?;
    Some(Found::new(FailureKind::Load, &message.text))
}
