//! What logs and traces say of a job, from its submission to the end of each attempt.
//!
//! A job keeps the place of its submission in a trace ([`Job::trace`]); all other places are worked out from it, so that a
//! coordinator ends spans that another began, and a lease has the same place before and after a restart.

use crate::core::{Attempt, Event, Job, Outcome};
use planforge_proto::v1;
use planforge_trace::{Kind, Part, Span, emit, is_recording, unix_ns};
use planforge_types::{Digest, TraceContext};

const NS_PER_MS: u64 = 1_000_000;
/// Jobs of a request that its span names.
const NAMED_MAX: usize = 16;

/// The place of a submission: in the caller's trace, or in one of its own.
pub(super) fn place_of_request(request: &str, caller: Option<TraceContext>) -> TraceContext {
    let own = || {
        let digest = Digest::of(format!("request {request}").as_bytes());
        let (mut trace, mut span) = ([0; 16], [0; 8]);
        trace.copy_from_slice(&digest.as_raw()[..16]);
        span.copy_from_slice(&digest.as_raw()[16..24]);
        TraceContext { trace, span, sampled: true }
    };
    caller.unwrap_or_else(own).below(&format!("accept {request}"))
}

/// The place of a lease, below which its agent puts what it does.
pub(super) fn place_of_lease(job: &Job, attempt: u32) -> Option<TraceContext> {
    Some(job.trace?.below(&format!("lease {} {attempt}", job.id)))
}

/// A request was taken, or is when its blobs have come.
pub(super) fn accepted(place: TraceContext, caller: Option<TraceContext>, began_unix_ns: u64, reply: &v1::SubmitReply) {
    if !is_recording() {
        return;
    }
    let named: Vec<&str> = reply.jobs.iter().take(NAMED_MAX).map(|job| job.id.as_str()).collect();
    let mut attributes = vec![("planforge.request", reply.request_id.clone())];
    match named[..] {
        [job] => attributes.push(("planforge.job", job.to_owned())),
        _ => attributes.push(("planforge.jobs", named.join(" "))),
    }
    if !reply.missing_blobs.is_empty() {
        attributes.push(("planforge.missing_blobs", reply.missing_blobs.len().to_string()));
    }
    emit(Span {
        part: Part::Coordinator,
        name: "accept".into(),
        kind: Kind::Server,
        context: place,
        parent: caller,
        start_unix_ns: began_unix_ns,
        end_unix_ns: unix_ns(),
        attributes,
        error: None,
    });
}

/// Something became durable of a job.
pub(super) fn tell(event: &Event, job: &Job) {
    let trace = job.trace.map(|trace| tracing::field::display(trace.id()));
    let newest = job.attempts.last();
    let agent = newest.map(|attempt| attempt.agent_name.as_str());
    let attempt = newest.map(|attempt| attempt.number);
    match event.what.as_str() {
        "submitted" => {
            tracing::info!(job = %job.id, trace, model = job.model.name, sku = %job.sku, "job submitted");
        }
        "leased" => {
            let device = newest.map(|attempt| attempt.device.as_str());
            tracing::info!(job = %job.id, attempt, agent, device, trace, "job leased");
        }
        "requeued" => {
            tracing::warn!(job = %job.id, attempt, agent, trace, reason = event.detail, "job goes back to the queue");
        }
        _ if event.state.is_terminal() => {
            tracing::info!(job = %job.id, attempt, agent, trace, state = event.state.name(), "job ended");
        }
        _ => {}
    }
    if !is_recording() {
        return;
    }
    // A lease that ran out ends when the next one begins.
    for ended in job.attempts.iter().rev().take(2).filter(|attempt| attempt.ended_ms == event.at_ms) {
        span(job, ended, &format!("lease {} {}", job.id, ended.number), "lease", ended.started_ms, ended.ended_ms);
    }
    if let Some(newest) = newest.filter(|_| event.what == "leased") {
        let place = format!("queue {} {}", job.id, newest.number);
        span(job, newest, &place, "queue wait", job.queued_ms, newest.started_ms);
    }
}

fn span(job: &Job, attempt: &Attempt, place: &str, name: &str, start_ms: u64, end_ms: u64) {
    let Some(parent) = job.trace else { return };
    let error = match attempt.outcome {
        Outcome::Running | Outcome::Succeeded => None,
        _ if name == "queue wait" => None,
        other => Some(attempt.failure.as_ref().map_or_else(|| other.name().to_owned(), |f| f.message.clone())),
    };
    emit(Span {
        part: Part::Coordinator,
        name: name.into(),
        kind: Kind::Internal,
        context: parent.below(place),
        parent: Some(parent),
        start_unix_ns: start_ms * NS_PER_MS,
        // The clock of the farm counts milliseconds: an end is somewhere within one.
        end_unix_ns: end_ms * NS_PER_MS + NS_PER_MS - 1,
        attributes: vec![
            ("planforge.job", job.id.to_string()),
            ("planforge.attempt", attempt.number.to_string()),
            ("planforge.agent", attempt.agent_name.clone()),
            ("planforge.device", attempt.device.clone()),
            ("planforge.sku", job.sku.to_string()),
        ],
        error,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_a_place_in_its_callers_trace_or_in_one_of_its_own() {
        let caller: TraceContext = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00".parse().unwrap();
        let place = place_of_request("r1", Some(caller));
        assert_eq!((place.trace, place.sampled), (caller.trace, false));
        assert_ne!(place.span, caller.span);
        let own = place_of_request("r1", None);
        assert_eq!(own, place_of_request("r1", None), "the same after a restart");
        assert!(own.sampled && own.trace != place_of_request("r2", None).trace);
    }
}
