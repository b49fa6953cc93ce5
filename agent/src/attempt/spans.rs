//! What an attempt does, as spans below its lease: its phases, and of its worker what that tells of itself. The worker has
//! no network, so its agent keeps the times at which it heard of things.

use crate::AttemptKey;
use planforge_trace::{Kind, Part, Span, emit, is_recording, unix_ns};
use planforge_types::TraceContext;
use std::sync::{Mutex, PoisonError};

/// Phases, and stretches of timed windows, of one attempt that are told; more is the work of a worker that went astray.
const PHASES_MAX: usize = 256;
const STRETCHES_MAX: usize = 1_024;

/// Phases in which the agent works and no worker does, or one that waits.
const OF_AGENT: [&str; 4] = ["fetch", "wait", "upload", "report"];

/// The spans of one attempt; nothing where nobody takes them.
#[derive(Debug)]
pub struct Spans(Option<Recorder>);

#[derive(Debug)]
struct Recorder {
    lease: TraceContext,
    place: TraceContext,
    attributes: Vec<(&'static str, String)>,
    began_unix_ns: u64,
    open: Mutex<Open>,
}

/// What has begun and not ended.
#[derive(Debug, Default)]
struct Open {
    phase: Option<Begun>,
    windows: Option<u64>,
    phases: usize,
    stretches: usize,
}

#[derive(Debug)]
struct Begun {
    name: String,
    place: TraceContext,
    began_unix_ns: u64,
}

impl Spans {
    /// Begins the span of an attempt below `lease`.
    pub fn begin(lease: Option<TraceContext>, key: &AttemptKey, agent: &str, device: &str) -> Self {
        Self(lease.filter(|_| is_recording()).map(|lease| Recorder {
            lease,
            place: lease.below("attempt"),
            attributes: vec![
                ("planforge.job", key.job.clone()),
                ("planforge.attempt", key.attempt.to_string()),
                ("planforge.agent", agent.to_owned()),
                ("planforge.device", device.to_owned()),
            ],
            began_unix_ns: unix_ns(),
            open: Mutex::default(),
        }))
    }

    /// A phase begins, which ends the one before; the same again is no news.
    pub fn phase(&self, name: &str) {
        let Some(recorder) = &self.0 else { return };
        let mut open = recorder.open();
        if open.phase.as_ref().is_some_and(|phase| phase.name == name) || open.phases >= PHASES_MAX {
            return;
        }
        recorder.end_phase(&mut open, None);
        open.phases += 1;
        let place = recorder.place.below(&format!("phase {}", open.phases));
        open.phase = Some(Begun { name: name.to_owned(), place, began_unix_ns: unix_ns() });
    }

    /// A stretch of timed windows begins, or ends; of a single one nothing is told while it is timed.
    pub fn windows(&self, begins: bool) {
        let Some(recorder) = &self.0 else { return };
        let mut open = recorder.open();
        if begins {
            open.windows = Some(unix_ns());
        } else {
            recorder.end_windows(&mut open);
        }
    }

    /// The work failed in the phase that goes on.
    pub fn failed(&self, error: &str) {
        if let Some(recorder) = &self.0 {
            recorder.end_phase(&mut recorder.open(), Some(error.to_owned()));
        }
    }

    /// The attempt has ended; `error` says why not well.
    pub fn end(&self, error: Option<String>) {
        let Some(recorder) = &self.0 else { return };
        let mut open = recorder.open();
        recorder.end_phase(&mut open, None);
        recorder.emit(Part::Agent, "attempt", (recorder.place, recorder.lease), recorder.began_unix_ns, error);
    }
}

impl Recorder {
    fn open(&self) -> std::sync::MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_windows(&self, open: &mut Open) {
        let Some(began) = open.windows.take() else { return };
        if open.stretches >= STRETCHES_MAX {
            return;
        }
        open.stretches += 1;
        let above = open.phase.as_ref().map_or(self.place, |phase| phase.place);
        self.emit(Part::Worker, "windows", (above.below(&format!("windows {}", open.stretches)), above), began, None);
    }

    fn end_phase(&self, open: &mut Open, error: Option<String>) {
        self.end_windows(open);
        let Some(Begun { name, place, began_unix_ns }) = open.phase.take() else { return };
        let part = if OF_AGENT.contains(&name.as_str()) { Part::Agent } else { Part::Worker };
        self.emit(part, &name, (place, self.place), began_unix_ns, error);
    }

    fn emit(
        &self,
        part: Part,
        name: &str,
        (context, parent): (TraceContext, TraceContext),
        start_unix_ns: u64,
        error: Option<String>,
    ) {
        emit(Span {
            part,
            name: name.to_owned(),
            kind: Kind::Internal,
            context,
            parent: Some(parent),
            start_unix_ns,
            end_unix_ns: unix_ns(),
            attributes: self.attributes.clone(),
            error,
        });
    }
}
