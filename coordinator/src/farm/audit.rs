//! The audit log: who did what, from where, and what came of it.
//!
//! What needs an administrator is answered when its line is durable, or the log says that it could not be written. Lines
//! of everyday use and of refusals are written as they come and not waited for. Each kind is kept up to a bound of its
//! own, so that nobody who submits, or who is refused, a hundred thousand times hides what administrators did; and of
//! refusals only so many are written each second, with how many were left out.

use super::{
    Farm, convert, gate,
    leader::Message,
    pages::{Cursor, Page, bad_cursor},
    requests::bounded,
};
use crate::{
    auth::{Actor, Role},
    core::{AuditKind, AuditLine, Change},
    rate::Rate,
    store::AuditFilter,
};
use planforge_proto::{ApiError, ErrorCode, v1};
use planforge_types::Digest;
use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Mutex, PoisonError},
};

/// How often what is too much is taken away: after so many lines of a kind.
const PRUNED_EVERY: u64 = 256;
/// Longest object and detail that are kept.
const TEXT_MAX_BYTES: usize = 512;

/// What is counted beside the lines themselves.
#[derive(Debug)]
pub(super) struct Audit(Mutex<Counted>);

#[derive(Debug)]
struct Counted {
    written: BTreeMap<AuditKind, u64>,
    /// Of callers who were not let in, and of those who were.
    strangers: Limited,
    refused: Limited,
}

/// Lines that are written, up to a rate, and how many were left out since the last.
#[derive(Debug)]
struct Limited {
    rate: Rate,
    left_out: u64,
}

impl Default for Audit {
    fn default() -> Self {
        let limited = || Limited { rate: gate::refusals(), left_out: 0 };
        Self(Mutex::new(Counted { written: BTreeMap::new(), strangers: limited(), refused: limited() }))
    }
}

impl Limited {
    /// How many were left out before this one; `None`: it is left out, too.
    fn take(&mut self, now_ms: u64) -> Option<u64> {
        if self.rate.take(now_ms).is_err() {
            self.left_out += 1;
            return None;
        }
        Some(std::mem::take(&mut self.left_out))
    }
}

fn clipped(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_MAX_BYTES)].to_owned()
}

fn left_out_words(detail: &str, left_out: u64) -> String {
    match left_out {
        0 => detail.to_owned(),
        count => format!("{detail} ({count} refusals before it were too many to write down)"),
    }
}

impl Farm {
    fn audit_line(&self, actor: &Actor, kind: AuditKind, what: &str, object: &str) -> AuditLine {
        AuditLine {
            seq: 0,
            at_ms: self.clock().wall_ms(),
            kind,
            actor: actor.name.clone(),
            role: actor.role.to_string(),
            project: actor.project.clone().unwrap_or_default(),
            token: actor.token.clone(),
            from: actor.from.clone(),
            what: what.to_owned(),
            object: clipped(object),
            outcome: "ok".into(),
            detail: String::new(),
        }
    }

    /// Counts a line; now and then it is time to take the oldest of its kind away.
    fn audit_kept(&self, kind: AuditKind) -> Option<Change> {
        let counted = &mut self.audit().0.lock().unwrap_or_else(PoisonError::into_inner);
        let written = counted.written.entry(kind).or_default();
        // The first one too: what an earlier process left may be too much.
        let prune = written.is_multiple_of(PRUNED_EVERY);
        *written += 1;
        prune.then_some(Change::AuditKept { kind, lines: self.config().audit_lines })
    }

    /// What makes a line durable.
    pub(super) fn audit_changes(&self, line: AuditLine) -> Vec<Change> {
        let kept = self.audit_kept(line.kind);
        [Change::Audit(Box::new(line))].into_iter().chain(kept).collect()
    }

    /// Makes changes without waiting for them.
    fn change_soon(&self, changes: Vec<Change>) {
        let (answer, _) = tokio::sync::oneshot::channel();
        // Where the store takes no writes what was asked for is refused as well, and the log says so.
        let _ = self.try_tell(Message::Commit { changes, answer });
    }

    fn write_soon(&self, line: AuditLine) {
        self.change_soon(self.audit_changes(line));
    }

    /// What the scheduler writes down together with a submission that it takes.
    pub(super) fn audit_of_submission(&self, actor: &Actor) -> AuditLine {
        if let Some(kept) = self.audit_kept(AuditKind::Use) {
            self.change_soon(vec![kept]);
        }
        self.audit_line(actor, AuditKind::Use, "submit", "")
    }

    /// Writes down what was refused, up to a rate: nobody makes the database work by being refused.
    pub(super) fn audit_refusal(&self, actor: &Actor, kind: AuditKind, what: &str, object: &str, error: &ApiError) {
        let now_ms = self.clock().mono_ms();
        let taken = self.audit().0.lock().unwrap_or_else(PoisonError::into_inner).refused.take(now_ms);
        let Some(left_out) = taken else { return };
        let denied = matches!(error.code, ErrorCode::PermissionDenied | ErrorCode::Unauthenticated);
        let line = self.audit_line(actor, if denied { AuditKind::Denied } else { kind }, what, object);
        let detail = left_out_words(&clipped(&error.message), left_out);
        self.write_soon(AuditLine { outcome: error.code.name().into(), detail, ..line });
    }

    /// Does what somebody asked for and writes down what came of it. What needs an administrator is durable before it is
    /// answered.
    pub(super) async fn audited<T>(
        &self,
        actor: &Actor,
        kind: AuditKind,
        what: &'static str,
        object: &str,
        work: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let done = work.await;
        if let Err(error) = &done {
            self.audit_refusal(actor, kind, what, object, error);
            return done;
        }
        let line = self.audit_line(actor, kind, what, object);
        if kind != AuditKind::Admin {
            self.write_soon(line);
        } else if let Err(error) = self.commit(self.audit_changes(line)).await {
            tracing::error!(%error, actor = actor.name, what, "what an administrator did is not in the audit log");
        }
        done
    }

    /// Writes down what happened, without waiting.
    pub(super) fn note(&self, actor: &Actor, what: &str, object: &str, detail: &str) {
        let line = self.audit_line(actor, AuditKind::Use, what, object);
        self.write_soon(AuditLine { detail: clipped(detail), ..line });
    }

    /// What an upload leaves in the log; nothing of agents', who store what they were leased.
    pub(super) fn audit_of_upload(&self, actor: &Actor, digest: Digest, size_bytes: u64) -> Vec<Change> {
        if actor.role == Role::Agent {
            return Vec::new();
        }
        let line = self.audit_line(actor, AuditKind::Use, "upload", &digest.to_string());
        self.audit_changes(AuditLine { detail: format!("{size_bytes} bytes"), ..line })
    }

    /// Somebody signed a browser in.
    pub fn note_login(&self, actor: &Actor, how: &str) {
        self.note(actor, "login", "", how);
    }

    /// A caller who was not let in.
    pub fn note_stranger(&self, from: &str, path: &str, error: &ApiError) {
        let now_ms = self.clock().mono_ms();
        let taken = self.audit().0.lock().unwrap_or_else(PoisonError::into_inner).strangers.take(now_ms);
        let Some(left_out) = taken else { return };
        let nobody = Actor { from: from.to_owned(), ..Actor::named("", Role::Read, None) };
        let line = self.audit_line(&nobody, AuditKind::Denied, "enter", path);
        let detail = left_out_words(&clipped(&error.message), left_out);
        self.write_soon(AuditLine { role: String::new(), outcome: error.code.name().into(), detail, ..line });
    }

    /// Who did what, newest first. Needs role admin; of one project: what was done in it.
    ///
    /// # Errors
    /// Without the role, or when the store cannot be asked.
    pub async fn list_audit(
        &self,
        actor: &Actor,
        request: v1::ListAuditRequest,
    ) -> Result<v1::ListAuditReply, ApiError> {
        super::tokens::some_admin(actor)?;
        let project = super::requests::visible_project(actor, &request.project)?;
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        let before = match Cursor::read(&request.cursor)? {
            Some(Cursor { created_ms: _, names: [seq] }) => Some(seq.parse().map_err(|_| bad_cursor())?),
            None => None,
        };
        let limit = bounded(request.limit);
        let filter = AuditFilter {
            actor: some(request.actor),
            what: some(request.what),
            project,
            since_ms: (request.since_ms > 0).then_some(request.since_ms),
            until_ms: (request.until_ms > 0).then_some(request.until_ms),
            before,
            limit: limit + 1,
        };
        let mut lines = self.timed("audit", self.store().audit(filter)).await?;
        let more = lines.len() > limit;
        lines.truncate(limit);
        let mut page = Page::new();
        for line in &lines {
            if !page.push(convert::audit_out(line)) {
                break;
            }
        }
        let cut = page.len() < lines.len() || more;
        let next_cursor = lines
            .get(page.len().saturating_sub(1))
            .filter(|_| cut)
            .map(|last| Cursor { created_ms: last.at_ms, names: [&*last.seq.to_string()] }.write());
        Ok(v1::ListAuditReply { records: page.into_items(), next_cursor: next_cursor.unwrap_or_default() })
    }
}
