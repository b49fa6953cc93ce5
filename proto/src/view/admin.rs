//! What administrators look at: projects and the audit log.

use super::{some_number, some_text};
use crate::v1;
use serde::{Deserialize, Serialize};

/// What a project may take of the farm, and what it has. Limits that nobody set are `null`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProjectView {
    pub name: String,
    /// Weight in the queue and in the farm's places; 1 is usual.
    pub share: u32,
    /// Waiting or running at once, as the farm's administrators set it.
    pub max_jobs: Option<u64>,
    pub max_stored_bytes: Option<u64>,
    /// As its own administrators set it; the smaller counts.
    pub own_max_jobs: Option<u64>,
    pub own_max_stored_bytes: Option<u64>,
    pub live_jobs: u64,
    pub running_jobs: u64,
    /// Live jobs that it could come to now, by limits and by how full the farm is.
    pub jobs_limit: u64,
    pub stored_bytes: u64,
    pub tokens: u32,
}

impl From<v1::Project> for ProjectView {
    fn from(project: v1::Project) -> Self {
        Self {
            name: project.name,
            share: project.share,
            max_jobs: some_number(project.max_jobs),
            max_stored_bytes: some_number(project.max_stored_bytes),
            own_max_jobs: some_number(project.own_max_jobs),
            own_max_stored_bytes: some_number(project.own_max_stored_bytes),
            live_jobs: project.live_jobs,
            running_jobs: project.running_jobs,
            jobs_limit: project.jobs_limit,
            stored_bytes: project.stored_bytes,
            tokens: project.tokens,
        }
    }
}

/// One line of the audit log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditView {
    pub seq: u64,
    pub at_ms: u64,
    /// Name of the token, or `local`; `null`: nobody who was let in.
    pub actor: Option<String>,
    pub role: Option<String>,
    /// That the caller belongs to, or that was acted on; `null`: the whole farm.
    pub project: Option<String>,
    /// Id of the token; `null`: the owner's socket, or none.
    pub token: Option<String>,
    /// Address, or `unix`.
    pub from: Option<String>,
    pub what: String,
    pub object: Option<String>,
    /// `ok`, or the code of the refusal.
    pub outcome: String,
    pub detail: Option<String>,
}

impl From<v1::AuditRecord> for AuditView {
    fn from(record: v1::AuditRecord) -> Self {
        Self {
            seq: record.seq,
            at_ms: record.at_ms,
            actor: some_text(record.actor),
            role: some_text(record.role),
            project: some_text(record.project),
            token: some_text(record.token),
            from: some_text(record.from),
            what: record.what,
            object: some_text(record.object),
            outcome: record.outcome,
            detail: some_text(record.detail),
        }
    }
}

/// What a collection took away, or would.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CollectedView {
    pub dry_run: bool,
    pub jobs: u64,
    pub engines: u64,
    pub engine_bytes: u64,
    /// Bytes that no record named any more, plans among them; a dry run does not look.
    pub blobs: u64,
    pub blob_bytes: u64,
    /// The first of the engines.
    pub gone: Vec<GoneView>,
    /// Of these and what follows a dry run counts those of the jobs that would go, too.
    pub events: u64,
    pub logs: u64,
    /// Sent, or given beside a model, and named by no job.
    pub files: u64,
    /// Measurements of which there is a newer one.
    pub reports: u64,
}

/// An engine that went, or would.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GoneView {
    pub engine_key: String,
    pub plan_digest: String,
    pub plan_bytes: u64,
    /// `superseded`, `unused`, `quota` or `room`.
    pub why: String,
}

impl From<v1::CollectGarbageReply> for CollectedView {
    fn from(reply: v1::CollectGarbageReply) -> Self {
        let v1::CollectGarbageReply {
            dry_run,
            jobs,
            engines,
            engine_bytes,
            blobs,
            blob_bytes,
            gone,
            events,
            logs,
            files,
            reports,
        } = reply;
        let gone = gone.into_iter().map(|gone| {
            let v1::GoneEngine { engine_key, plan_digest, plan_bytes, why } = gone;
            GoneView { engine_key, plan_digest, plan_bytes, why }
        });
        let gone = gone.collect();
        Self { dry_run, jobs, engines, engine_bytes, blobs, blob_bytes, gone, events, logs, files, reports }
    }
}
