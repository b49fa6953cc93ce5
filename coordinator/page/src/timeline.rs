//! What a job did when, told from its events: one bar for each time of waiting and each phase of an attempt.

use crate::format;
use askama::Template;
use planforge_proto::{v1, view::is_ended};

/// Steps that are shown; a job that was tried very often shows its last ones.
const STEPS_MAX: usize = 40;
/// How long the axis is, in units of the picture.
const AXIS: u64 = 1_000;

#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub name: String,
    pub took: String,
    /// `wait`, `work` or `measure`.
    pub class: &'static str,
    /// Where its bar begins and how long it is, of `AXIS`.
    pub at: u64,
    pub length: u64,
    /// It goes on.
    pub is_open: bool,
}

#[derive(Clone, Debug, Default, Template)]
#[template(path = "timeline.html")]
pub struct Timeline {
    pub steps: Vec<Step>,
    /// From the first event to the last, or to now.
    pub whole: String,
}

struct Span {
    name: String,
    class: &'static str,
    begun_ms: u64,
    ended_ms: u64,
    is_open: bool,
}

/// What begins with an event; `None`: what was goes on.
fn begins(event: &v1::JobEvent) -> Option<(String, &'static str)> {
    let job = event.job.as_ref()?;
    Some(match event.what.as_str() {
        "submitted" | "requeued" | "unblocked" | "placeable" | "unplaceable" => ("waiting".into(), "wait"),
        "leased" | "running" => ("starting".into(), "work"),
        "phase" if job.phase.starts_with("measure") => (job.phase.clone(), "measure"),
        "phase" if !job.phase.is_empty() => (job.phase.clone(), "work"),
        _ => return None,
    })
}

impl Timeline {
    /// `events` in order; `now_ms` is where a job that has not ended stands.
    pub fn of(events: &[v1::JobEvent], now_ms: u64) -> Self {
        let mut spans: Vec<Span> = Vec::new();
        let mut is_over = false;
        for event in events {
            let state = event.job.as_ref().map_or(v1::JobState::Unspecified, v1::Job::state);
            is_over = is_ended(state);
            let next = begins(event).filter(|_| !is_over);
            let is_same = |last: &Span| next.as_ref().is_some_and(|(name, _)| *name == last.name);
            if let Some(last) = spans.last_mut().filter(|last| last.is_open) {
                last.ended_ms = event.at_ms.max(last.begun_ms);
                if (next.is_none() && !is_over) || is_same(last) {
                    continue;
                }
                last.is_open = false;
            }
            if let Some((name, class)) = next {
                spans.push(Span { name, class, begun_ms: event.at_ms, ended_ms: event.at_ms, is_open: true });
            }
        }
        if let Some(last) = spans.last_mut().filter(|last| last.is_open && !is_over) {
            last.ended_ms = now_ms.max(last.ended_ms);
        }
        let left_out = spans.len().saturating_sub(STEPS_MAX);
        spans.drain(..left_out);
        let from_ms = spans.iter().map(|span| span.begun_ms).min().unwrap_or(0);
        let until_ms = spans.iter().map(|span| span.ended_ms).max().unwrap_or(0);
        let whole_ms = (until_ms - from_ms).max(1);
        let step = |span: Span| {
            let at = (span.begun_ms.saturating_sub(from_ms)) * AXIS / whole_ms;
            let end = (span.ended_ms.saturating_sub(from_ms)) * AXIS / whole_ms;
            // What was over at once is seen, too.
            let length = (end.saturating_sub(at)).max(2);
            Step {
                name: span.name,
                took: format::milliseconds((span.ended_ms - span.begun_ms) as f64),
                class: span.class,
                at: at.min(AXIS - length),
                length,
                is_open: span.is_open,
            }
        };
        Self { steps: spans.into_iter().map(step).collect(), whole: format::milliseconds(whole_ms as f64) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use v1::JobState::{Leased, Queued, Running, Succeeded};

    fn event(at_ms: u64, what: &str, state: v1::JobState, phase: &str) -> v1::JobEvent {
        let job = v1::Job { state: state.into(), phase: phase.into(), ..Default::default() };
        v1::JobEvent { at_ms, what: what.into(), job: Some(job), ..Default::default() }
    }

    #[test]
    fn a_job_waits_works_measures_and_is_done() {
        let events = [
            event(1_000, "submitted", Queued, ""),
            event(1_500, "merged", Queued, ""),
            event(2_000, "leased", Leased, ""),
            event(2_100, "running", Running, ""),
            event(2_200, "phase", Running, "compile"),
            event(6_000, "built", Running, "compile"),
            event(7_000, "phase", Running, "measure"),
            event(11_000, "succeeded", Succeeded, "measure"),
        ];
        let told = Timeline::of(&events, 99_000);
        let told: Vec<_> = told.steps.iter().map(|step| (&*step.name, &*step.took, step.class, step.at)).collect();
        let expected = [
            ("waiting", "1.00 s", "wait", 0),
            ("starting", "200 ms", "work", 100),
            ("compile", "4.80 s", "work", 120),
            ("measure", "4.00 s", "measure", 600),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn what_goes_on_goes_on_until_now_and_an_attempt_that_was_lost_waits_again() {
        let events = [
            event(1_000, "submitted", Queued, ""),
            event(2_000, "leased", Leased, ""),
            event(4_000, "requeued", Queued, ""),
        ];
        let told = Timeline::of(&events, 11_000);
        let names: Vec<_> = told.steps.iter().map(|step| (&*step.name, step.is_open)).collect();
        assert_eq!(names, [("waiting", false), ("starting", false), ("waiting", true)]);
        assert_eq!((told.steps[2].took.as_str(), told.steps[2].at, told.steps[2].length), ("7.00 s", 300, 700));
        assert!(Timeline::of(&[], 5).steps.is_empty());
        let many: Vec<_> = (0..500)
            .flat_map(|n| [event(n * 10, "leased", Leased, ""), event(n * 10 + 5, "requeued", Queued, "")])
            .collect();
        assert_eq!(Timeline::of(&many, 10_000).steps.len(), STEPS_MAX);
    }
}
