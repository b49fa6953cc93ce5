//! What happened lately, and the routes of the API.

use super::{MAX_ROWS, Shown, shown};
use crate::{
    app::App,
    auth::{Actor, Role},
    page::topic::Topic,
};
use planforge_page::{
    lists,
    view::{Filter, Section, View},
};
use planforge_proto::{ApiError, v1};

/// Jobs that ended last.
pub(super) fn ended_list() -> v1::ListJobsRequest {
    let order = v1::JobOrder::Ended.into();
    v1::ListJobsRequest { order, limit: MAX_ROWS / 2, with_reports: true, ..Default::default() }
}

pub(super) fn audit_list(topic: &Topic) -> v1::ListAuditRequest {
    v1::ListAuditRequest {
        actor: topic.get("actor").into(),
        what: topic.get("what").into(),
        project: topic.get("project").into(),
        cursor: topic.get("cursor").into(),
        limit: MAX_ROWS,
        ..Default::default()
    }
}

/// What ended last, and for administrators who did what.
pub(super) async fn activity(app: &App, actor: &Actor, topic: &Topic) -> Result<Shown, ApiError> {
    let mut sections = Vec::new();
    let mut filters = Vec::new();
    if topic.query.is_empty() {
        let ended = app.farm.list_jobs(actor, ended_list()).await?.jobs;
        sections.push(Section::table("Jobs that ended last", lists::jobs("ended", &ended, false)));
    }
    if actor.role == Role::Admin {
        let reply = app.farm.list_audit(actor, audit_list(topic)).await?;
        let mut table = lists::audit(&reply.records);
        table.more = topic.next(&reply.next_cursor);
        sections.push(Section::table("Audit log", table));
        filters = vec![
            Filter::typed("actor", "Who", topic.get("actor")),
            Filter::typed("what", "Did", topic.get("what")),
            Filter::typed("project", "Project", topic.get("project")),
        ];
    }
    Ok(shown("Activity", View { filters, sections, ..View::default() }))
}

/// What scripts ask for: `coordinator/tests/page.rs` holds it to the routes that there are.
pub(super) const ROUTES: [(&str, &str); 37] = [
    ("GET /api/v1/info", "who you are to this coordinator, and its version"),
    (
        "GET /api/v1/jobs",
        "jobs: state, id, sku, model, request, tag, project, since_ms, until_ms, sort, reports, limit, cursor",
    ),
    ("POST /api/v1/refresh", "stale engines, with why, built again; dry_run only tells"),
    ("POST /api/v1/jobs", "submits models for device kinds, specs and toolchains; Idempotency-Key is heeded"),
    ("GET /api/v1/jobs/{id}", "one job with its attempts and report"),
    ("POST /api/v1/jobs/{id}/cancel", "cancels it, or withdraws the caller's request for it"),
    ("POST /api/v1/jobs/{id}/priority", "how urgent it is while it waits: priority, higher first"),
    ("GET /api/v1/jobs/{id}/log", "its log as text: attempt, offset_bytes, follow"),
    ("GET /api/v1/requests", "requests and how they stand: state, project, since_ms, until_ms, limit, cursor"),
    ("GET /api/v1/events", "what happened to jobs: job, kind, after, project, limit, cursor"),
    ("GET /api/v1/devices", "devices with their fingerprints and telemetry: online"),
    ("GET /api/v1/engines", "engines: model, sku, project, limit, cursor"),
    ("GET /api/v1/engines/find", "the engine of a model, device kind, spec and toolchain, or of a key or plan"),
    ("GET /api/v1/reports", "reports of a plan, engine or job"),
    ("GET /api/v1/caches", "tuning caches: sku"),
    ("POST /api/v1/caches/{scope}/drop", "the next build in the scope begins from nothing"),
    ("GET /api/v1/plugins", "plugin libraries that jobs may load"),
    ("GET /api/v1/pauses", "device kinds, projects and agents that get no more jobs"),
    ("POST /api/v1/pauses", "pauses one: kind, name, reason, for_ms or until_ms, window"),
    ("POST /api/v1/pauses/resume", "lets it have jobs again: kind, name, window"),
    ("GET /api/v1/projects", "projects with their shares, limits and what they hold"),
    ("GET /api/v1/audit", "who did what: actor, what, project, since_ms, until_ms, limit, cursor"),
    ("POST /api/v1/gc", "takes away what the farm's policy lets go, or tells what that would be (dry_run)"),
    ("GET /api/v1/agents", "agents, those that are away too"),
    ("POST /api/v1/agents/{agent}/drain", "no more leases until it is resumed"),
    ("POST /api/v1/agents/{agent}/resume", "leases again"),
    ("POST /api/v1/agents/{agent}/forget", "what it offered is offered no more"),
    ("GET /api/v1/pins", "pins: who wants which plan kept, and until when"),
    ("POST /api/v1/pins", "wants plans kept"),
    ("POST /api/v1/pins/remove", "takes pins away"),
    ("GET /api/v1/shares", "links for reading a request or a model without a token"),
    ("POST /api/v1/shares", "makes one: request_id or model_digest, ttl_s"),
    ("POST /api/v1/shares/{id}/revoke", "ends one"),
    ("GET /api/v1/declarations", "which engines the repositories of a project say should exist"),
    ("POST /api/v1/declarations", "says it, in place of what the repository said before"),
    ("POST /api/v1/blobs/{hex}/verify", "whether a blob still has the bytes of its digest"),
    ("POST /api/v1/blobs/scrub", "the same for all of them"),
];

pub(super) fn api() -> Shown {
    let lead = "JSON over HTTP, with a token as 'Authorization: Bearer TOKEN'. Every page here is also JSON at \
                ?format=json, with the same filters and pages.";
    let sections = vec![Section::table("", lists::routes(&ROUTES))];
    shown("API", View { lead: lead.into(), sections, ..View::default() })
}
