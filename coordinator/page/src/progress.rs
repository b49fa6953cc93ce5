//! How far a request is: its jobs by state, as words and as one bar.

use crate::rows::Pill;
use askama::Template;
use planforge_proto::v1;
use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Part {
    count: usize,
    state: &'static str,
    #[serde(skip)]
    pill: Pill,
    /// Where it begins in the bar and how long it is, of 1,000.
    #[serde(skip)]
    at: usize,
    #[serde(skip)]
    length: usize,
}

#[derive(Clone, Debug, Template, Serialize)]
#[template(path = "progress.html")]
pub struct Progress {
    jobs: usize,
    ended: usize,
    parts: Vec<Part>,
    /// When the last of it has likely ended, in words; empty: nobody knows, or all has.
    eta: String,
}

const STATES: [(&str, &str, &str); 5] = [
    ("succeeded", "✓", "good"),
    ("failed", "✕", "bad"),
    ("cancelled", "⊘", "off"),
    ("running", "▶", "go"),
    ("waiting", "◷", "wait"),
];

fn place(state: v1::JobState) -> usize {
    use v1::JobState::*;
    match state {
        Succeeded => 0,
        Failed => 1,
        Cancelled | Skipped => 2,
        Running | Leased => 3,
        _ => 4,
    }
}

impl Progress {
    pub fn of(jobs: &[v1::Job]) -> Self {
        let mut counts = [0; STATES.len()];
        jobs.iter().for_each(|job| counts[place(job.state())] += 1);
        let mut at = 0;
        let mut parts = Vec::new();
        for ((state, sign, class), count) in STATES.into_iter().zip(counts).filter(|(_, count)| *count > 0) {
            let length = count * 1_000 / jobs.len().max(1);
            parts.push(Part { count, state, pill: Pill::new(format!("{count} {state}"), sign, class), at, length });
            at += length;
        }
        let lasts_ms = jobs.iter().filter_map(|job| job.eta.as_ref()).map(|eta| eta.end_in_ms).max();
        let eta = lasts_ms.map(crate::format::wait).unwrap_or_default();
        Self { jobs: jobs.len(), ended: counts[..3].iter().sum(), parts, eta }
    }

    /// All of it has ended.
    pub fn is_done(&self) -> bool {
        self.ended == self.jobs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_counted_by_what_became_of_them() {
        let job = |state: v1::JobState| v1::Job { state: state.into(), ..Default::default() };
        let mut jobs = vec![job(v1::JobState::Succeeded), job(v1::JobState::Skipped), job(v1::JobState::Leased)];
        jobs.push(v1::Job {
            eta: Some(v1::Eta { end_in_ms: 600_000, ..Default::default() }),
            ..job(v1::JobState::Queued)
        });
        let progress = Progress::of(&jobs);
        assert!(!progress.is_done() && Progress::of(&jobs[..2]).is_done());
        let html = progress.render().unwrap();
        for part in
            ["2 of 4 jobs ended", "likely done in 10 min", "1 succeeded", "1 running", "x=\"750\" width=\"250\""]
        {
            assert!(html.contains(part), "{part}: {html}");
        }
    }
}
