//! Failures of the process: stopped, killed, crashed, not even started.

use super::{Ended, FailureKind, Found, Messages, between};
use crate::{
    acceptance::Exit,
    plugins::{is_plugin, library_in},
};

/// What a shell and the loader exit with when a program or one of its libraries is not there.
const NOT_FOUND: i32 = 127;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
const SIGINT: i32 = 2;

/// This program ended it.
pub(super) fn stopped(ended: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    let kind = match ended.exit {
        Exit::TimedOut { .. } => FailureKind::TimedOut,
        Exit::Hung { .. } => FailureKind::Hung,
        Exit::OverMemory { limit_bytes } => FailureKind::HostMemory { requested_bytes: Some(limit_bytes) },
        Exit::Code(_) | Exit::Signal(_) => return None,
    };
    Some(Found::new(kind, &messages.first_cause()))
}

pub(super) fn missing_library(ended: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    let told = messages.error(&[
        "error while loading shared libraries",
        "could not load library",
        "could not load plugin library",
        "cannot open safety plugin library",
        "unable to load library",
        "unable to load dynamic library",
        "failed to load library",
        "cannot open shared object file",
    ]);
    if let Some(message) = messages.error(&["but running against "]) {
        // `Compiled against cuBLASLt 11.9.2.0 but running against cuBLASLt 11.2.1.0.`
        let library = between(&message.text, "running against ", ")").unwrap_or_default().trim_end_matches('.');
        return Some(Found::new(FailureKind::MissingLibrary { library: library.to_owned() }, &message.text));
    }
    let Some(message) = told else {
        let nothing_said = ended.exit == Exit::Code(NOT_FOUND);
        return nothing_said.then(|| Found::new(FailureKind::MissingLibrary { library: String::new() }, ""));
    };
    let library = library_in(&message.text);
    let kind = if is_plugin(ended.facts, library) {
        FailureKind::PluginMissing { plugin: Some(library.to_owned()) }
    } else {
        FailureKind::MissingLibrary { library: library.to_owned() }
    };
    Some(Found::new(kind, &message.text))
}

pub(super) fn unknown_option(_: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    let message = messages.error(&["unknown option", "model missing or format not recognized"])?;
    let option = between(&message.text, "nknown option: ", "\n").unwrap_or_default().trim();
    Some(Found::new(FailureKind::UnknownOption { option: option.to_owned() }, &message.text))
}

/// `trtexec: sampleInference.cpp:844: ...: Assertion `ret' failed.`: the C library's words, past every logger.
pub(super) fn tool_assertion(_: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    let message = messages.errors.iter().copied().find(|message| {
        message.level.is_none() && message.text.contains(": Assertion `") && message.text.contains("' failed")
    })?;
    Some(Found::new(FailureKind::ToolAssertion, &message.text))
}

pub(super) fn assertion(_: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    let message = messages.errors.iter().copied().find(|message| {
        let text = message.text.to_ascii_lowercase();
        // What every failed load and every streamed build that failed end in is no cause.
        let follows = text.contains("empty engine") || text.contains("deserialize");
        text.contains("assert") && !follows
    })?;
    Some(Found::new(FailureKind::Assertion, &message.text))
}

pub(super) fn signalled(ended: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    let Exit::Signal(signal) = ended.exit else { return None };
    let kind = match signal {
        SIGKILL | SIGTERM | SIGINT => FailureKind::Killed { signal },
        _ => FailureKind::Crashed { signal },
    };
    Some(Found::new(kind, &messages.first_cause()))
}
