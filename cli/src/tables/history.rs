//! Requests and events as tables.

use super::{duration, projects::moment, render as render_table, table};
use planforge_proto::{v1, view};

/// One row a request.
pub fn requests(requests: &[v1::SubmittedRequest], now_ms: u64) -> String {
    let mut rows = table(&["request", "state", "jobs", "open", "failed", "project", "by", "age"]);
    for request in requests {
        rows.add_row([
            request.id.clone(),
            view::request_state_name(request.state()),
            request.jobs.to_string(),
            request.live_jobs.to_string(),
            request.failed_jobs.to_string(),
            request.project.clone(),
            request.actor.clone(),
            duration(now_ms.saturating_sub(request.created_ms)),
        ]);
    }
    render_table(rows, &[2, 3, 4, 7])
}

/// One row an event.
pub fn events(events: &[v1::EventRecord]) -> String {
    let mut rows = table(&["event", "when (utc)", "job", "what", "state", "attempt", "by", "detail"]);
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    for event in events {
        let detail = match (event.phase.as_str(), event.detail.as_str()) {
            (phase, "") => or_dash(phase),
            (_, detail) => detail.to_owned(),
        };
        rows.add_row([
            event.seq.to_string(),
            moment(event.at_ms),
            event.job.clone(),
            event.what.clone(),
            view::state_name(event.state()),
            if event.attempt == 0 { "-".into() } else { event.attempt.to_string() },
            event.actor.clone(),
            detail,
        ]);
    }
    render_table(rows, &[0, 5])
}
