//! What was asked of a farm, and what happened.

use super::{short_name, some_number, some_text, state_name};
use crate::v1;
use serde::{Deserialize, Serialize};

/// Name of a request's state: `open`, `succeeded` or `failed`.
pub fn request_state_name(state: v1::RequestState) -> String {
    short_name(state.as_str_name(), "REQUEST_STATE_")
}

/// The state of that name; `None` for a name that is no state of requests.
pub fn request_state_from_name(name: &str) -> Option<v1::RequestState> {
    let state = v1::RequestState::from_str_name(&format!("REQUEST_STATE_{}", name.to_ascii_uppercase()))?;
    (state != v1::RequestState::Unspecified).then_some(state)
}

/// A request, and how it stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestView {
    pub id: String,
    pub project: String,
    /// Name of the token, or `local`.
    pub actor: String,
    pub created_ms: u64,
    /// `open`: some of its jobs have not ended; `succeeded`; `failed`: some ended without success.
    pub state: String,
    /// That it came to.
    pub jobs: u64,
    /// Of them: not ended.
    pub live_jobs: u64,
    /// Of them: ended without success.
    pub failed_jobs: u64,
}

impl From<v1::SubmittedRequest> for RequestView {
    fn from(request: v1::SubmittedRequest) -> Self {
        Self {
            state: request_state_name(request.state()),
            id: request.id,
            project: request.project,
            actor: request.actor,
            created_ms: request.created_ms,
            jobs: request.jobs,
            live_jobs: request.live_jobs,
            failed_jobs: request.failed_jobs,
        }
    }
}

/// Something that happened to a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventView {
    pub seq: u64,
    pub at_ms: u64,
    pub job: String,
    pub actor: String,
    /// submitted, merged, leased, running, phase, built, succeeded, ...
    pub what: String,
    /// The job's, after it.
    pub state: String,
    /// The job's newest; `null` when none.
    pub attempt: Option<u64>,
    pub phase: Option<String>,
    pub detail: Option<String>,
}

impl From<v1::EventRecord> for EventView {
    fn from(event: v1::EventRecord) -> Self {
        Self {
            state: state_name(event.state()),
            seq: event.seq,
            at_ms: event.at_ms,
            job: event.job,
            actor: event.actor,
            what: event.what,
            attempt: some_number(event.attempt.into()),
            phase: some_text(event.phase),
            detail: some_text(event.detail),
        }
    }
}
