//! Events on their way out of the worker: from any thread of a backend, thinned out.

use planforge_backend::Events;
use planforge_types::order::WorkEvent;
use std::sync::{Mutex, PoisonError};

/// Progress of one phase is told in steps of this, so that a chatty compiler costs the agent nothing.
const PROGRESS_STEP: f32 = 0.01;

/// Forwards events from any thread of a backend.
pub(super) struct Outlet<'a>(Mutex<Sender<'a>>);

struct Sender<'a> {
    events: &'a mut (dyn FnMut(WorkEvent) + Send),
    /// Phase and fraction told last.
    told: Option<(String, f32)>,
}

impl<'a> Outlet<'a> {
    pub fn new(events: &'a mut (dyn FnMut(WorkEvent) + Send)) -> Self {
        Self(Mutex::new(Sender { events, told: None }))
    }

    pub fn send(&self, event: WorkEvent) {
        (self.0.lock().unwrap_or_else(PoisonError::into_inner).events)(event);
    }

    pub fn progress(&self, phase: &str, fraction: f32, detail: &str) {
        let mut sender = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fraction = if fraction.is_finite() { fraction.clamp(0.0, 1.0) } else { 0.0 };
        let news = sender
            .told
            .as_ref()
            .is_none_or(|(told, at)| told != phase || fraction >= at + PROGRESS_STEP || (fraction >= 1.0 && *at < 1.0));
        if news {
            sender.told = Some((phase.to_owned(), fraction));
            (sender.events)(WorkEvent::Progress { phase: phase.to_owned(), fraction, detail: detail.to_owned() });
        }
    }
}

/// What a backend tells while it compiles: its own stages become the detail of the phase `compile`.
pub(super) struct CompileEvents<'a>(pub &'a Outlet<'a>);

impl Events for CompileEvents<'_> {
    fn progress(&self, phase: &str, fraction: f32, detail: &str) {
        let detail = match (phase, detail) {
            ("compile" | "", detail) => detail.to_owned(),
            (stage, "") => stage.to_owned(),
            (stage, detail) => format!("{stage}: {detail}"),
        };
        self.0.progress("compile", fraction, &detail);
    }

    fn log(&self, line: &str) {
        log(line);
    }
}

/// A line for the attempt's log.
pub(super) fn log(line: &str) {
    tracing::info!(target: "attempt", "{line}");
}
