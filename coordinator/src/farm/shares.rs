//! Links for reading one request or one model without a token.
//!
//! A link is a secret in an address, kept as a hash, that is good until it expires or is revoked, or the token that made it
//! is. Whoever has it is no caller: no role is given to it, and no route but those of `page::shared` knows of it. What it
//! opens is a [`Scope`], of which those routes ask for everything that they show.

use super::{
    Farm,
    convert::{self, invalid},
    leader::Message,
    requests::{may_submit, visible_project},
    tokens::some_admin,
};
use crate::{
    auth::{Actor, Role},
    core::{AuditKind, Change, JobId, ShareRecord, Shared},
    store::EngineFilter,
};
use planforge_proto::{ApiError, ErrorCode, v1};
use planforge_types::Digest;
use std::collections::BTreeSet;

const DAY_S: u64 = 24 * 60 * 60;
/// How long a link lasts where nobody says, and the longest.
const USUAL_S: u64 = 7 * DAY_S;
const LONGEST_S: u64 = 366 * DAY_S;
/// Links of the whole farm at once.
const SHARES_MAX: usize = 10_000;
/// Longest secret that is hashed.
const SECRET_MAX_BYTES: usize = 128;
/// That a link was read is written down at most this often.
const OPENED_STEP_MS: u64 = 60 * 1_000;

/// What a link opens.
#[derive(Clone, Debug)]
pub struct Scope {
    share: ShareRecord,
    /// Of a request; a model has the jobs that name it.
    jobs: BTreeSet<JobId>,
}

impl Scope {
    /// As whom the farm is asked: somebody who reads what the link's project may see. What of the answer is shown, the
    /// scope decides.
    pub fn reader(&self) -> Actor {
        Actor::named(format!("link {}", self.share.id), Role::Read, self.share.project.clone())
    }

    pub fn of(&self) -> &Shared {
        &self.share.of
    }

    pub fn expires_ms(&self) -> u64 {
        self.share.expires_ms
    }

    /// Whether a job is part of it.
    pub fn has_job(&self, job: &v1::Job) -> bool {
        match &self.share.of {
            Shared::Request(_) => self.jobs.contains(&JobId::from(job.id.as_str())),
            Shared::Model(model) => job.model.as_ref().is_some_and(|of| of.digest == model.to_string()),
        }
    }

    /// Whether an engine is part of it, where `jobs` are those of the request.
    pub fn has_engine(&self, engine: &v1::Engine, jobs: &[v1::Job]) -> bool {
        match &self.share.of {
            Shared::Request(_) => jobs.iter().any(|job| self.has_job(job) && job.plan_digest == engine.plan_digest),
            Shared::Model(model) => engine.model.as_ref().is_some_and(|of| of.digest == model.to_string()),
        }
    }
}

fn share_out(share: &ShareRecord) -> v1::Share {
    let (request_id, model_digest) = match &share.of {
        Shared::Request(id) => (id.clone(), String::new()),
        Shared::Model(digest) => (String::new(), digest.to_string()),
    };
    v1::Share {
        id: share.id.clone(),
        project: share.project.clone().unwrap_or_default(),
        actor: share.actor.clone(),
        request_id,
        model_digest,
        created_ms: share.created_ms,
        expires_ms: share.expires_ms,
        opened_ms: share.opened_ms,
    }
}

fn unknown(id: &str) -> ApiError {
    let message = format!("no link has the id '{}'", id.escape_debug());
    ApiError::new(ErrorCode::NotFound, message).with_hint("'planforge share list' shows them")
}

impl Farm {
    /// Makes a link for reading a request or a model of the caller's. Needs role submit.
    ///
    /// # Errors
    /// Without the role, or when the project has no such request or model.
    pub async fn create_share(
        &self,
        actor: &Actor,
        request: v1::CreateShareRequest,
    ) -> Result<v1::CreateShareReply, ApiError> {
        let object = format!("{}{}", request.request_id, request.model_digest);
        let make = self.make_share(actor, request);
        self.audited(actor, AuditKind::Use, "share.create", &object, make).await
    }

    async fn make_share(
        &self,
        actor: &Actor,
        request: v1::CreateShareRequest,
    ) -> Result<v1::CreateShareReply, ApiError> {
        may_submit(actor)?;
        let seen = visible_project(actor, &request.project)?;
        let lasts_s = if request.ttl_s == 0 { USUAL_S } else { request.ttl_s };
        if lasts_s > LONGEST_S {
            return Err(invalid(format!("a link lasts at most {} days", LONGEST_S / DAY_S)));
        }
        let (of, project) = match (request.request_id.as_str(), request.model_digest.as_str()) {
            (id, "") if !id.is_empty() => {
                // Of the project whose request it is, whoever makes the link.
                let found = self.timed("request", self.store().request_of_id(id)).await?;
                let own = found.filter(|found| seen.as_ref().is_none_or(|seen| found.project == *seen));
                let found = own.ok_or_else(|| {
                    ApiError::new(ErrorCode::NotFound, format!("no request {}", id.escape_debug()))
                        .with_hint("'planforge requests' lists them")
                })?;
                (Shared::Request(found.id), Some(found.project))
            }
            ("", digest) if !digest.is_empty() => {
                let digest = convert::digest("the model's digest", digest)?;
                let filter = EngineFilter {
                    model: Some(digest.to_string()),
                    project: seen.clone(),
                    limit: 1,
                    ..EngineFilter::default()
                };
                if self.timed("engines", self.store().engines(filter)).await?.is_empty() {
                    let message = format!("no engine of the model {}", digest.short());
                    return Err(ApiError::new(ErrorCode::NotFound, message)
                        .with_hint("'planforge engines' lists what there is, with the digests of models"));
                }
                (Shared::Model(digest), seen)
            }
            _ => return Err(invalid("a link is of one request or of one model: name one of them")),
        };
        let all = self.timed("shares", self.store().shares(None)).await?;
        let created_ms = self.clock().wall_ms();
        if all.iter().filter(|share| share.expires_ms > created_ms).count() >= SHARES_MAX {
            let message = format!("there are {SHARES_MAX} links already");
            return Err(ApiError::new(ErrorCode::ResourceExhausted, message)
                .with_hint("'planforge share revoke' takes links away"));
        }
        let secret = hex::encode(self.random_bytes::<32>());
        let share = ShareRecord {
            id: self.fresh_id(),
            secret_hash: Digest::of(secret.as_bytes()),
            project,
            of,
            actor: actor.name.clone(),
            token: actor.token.clone(),
            created_ms,
            expires_ms: created_ms + lasts_s * 1_000,
            opened_ms: 0,
        };
        let told = share_out(&share);
        let changes = vec![Change::SharesExpired { now_ms: created_ms }, Change::Share(Box::new(share))];
        self.commit(changes).await?;
        Ok(v1::CreateShareReply { share: Some(told), path: format!("/shared/{secret}"), url: String::new() })
    }

    /// Links of the caller's project, newest first. Needs role submit.
    ///
    /// # Errors
    /// Without the role, or when the store cannot be asked.
    pub async fn list_shares(
        &self,
        actor: &Actor,
        request: v1::ListSharesRequest,
    ) -> Result<v1::ListSharesReply, ApiError> {
        may_submit(actor)?;
        let project = visible_project(actor, &request.project)?;
        let now_ms = self.clock().wall_ms();
        let shares = self.timed("shares", self.store().shares(project.as_deref())).await?;
        let good = shares.iter().filter(|share| share.expires_ms > now_ms);
        Ok(v1::ListSharesReply { shares: good.map(share_out).collect() })
    }

    /// Ends a link: the caller's own, or for administrators any of their project.
    ///
    /// # Errors
    /// Without the role, or when there is no such link.
    pub async fn revoke_share(
        &self,
        actor: &Actor,
        request: v1::RevokeShareRequest,
    ) -> Result<v1::RevokeShareReply, ApiError> {
        let object = request.id.clone();
        let end = self.end_share(actor, request);
        self.audited(actor, AuditKind::Use, "share.revoke", &object, end).await
    }

    async fn end_share(
        &self,
        actor: &Actor,
        request: v1::RevokeShareRequest,
    ) -> Result<v1::RevokeShareReply, ApiError> {
        may_submit(actor)?;
        let shares = self.timed("shares", self.store().shares(actor.project.as_deref())).await?;
        let share = shares.into_iter().find(|share| share.id == request.id).ok_or_else(|| unknown(&request.id))?;
        if share.actor != actor.name {
            some_admin(actor)?;
        }
        let now_ms = self.clock().wall_ms();
        self.commit(vec![Change::Unshare(share.id.clone()), Change::SharesExpired { now_ms }]).await?;
        Ok(v1::RevokeShareReply { share: Some(share_out(&share)) })
    }

    /// What a link opens, while it is good. Says in the audit log that it was read, from where.
    ///
    /// # Errors
    /// The same for every secret that is worth nothing, whatever the reason.
    pub async fn open_share(&self, secret: &str, from: &str) -> Result<Scope, ApiError> {
        let scope = self.scope_of_share(secret).await?;
        let (share, now_ms) = (&scope.share, self.clock().wall_ms());
        if now_ms.saturating_sub(share.opened_ms) >= OPENED_STEP_MS && self.shared().trouble().is_none() {
            let reader = Actor { from: from.to_owned(), ..Actor::named("", Role::Read, share.project.clone()) };
            self.note(&reader, "share.open", &share.id, &format!("a link of {}", share.actor));
            let (answer, _) = tokio::sync::oneshot::channel();
            let changes = vec![Change::ShareOpened { id: share.id.clone(), at_ms: now_ms }];
            let _ = self.try_tell(Message::Commit { changes, answer });
        }
        Ok(scope)
    }

    /// The same for who reads on: nothing is written down.
    ///
    /// # Errors
    /// As for [`Farm::open_share`].
    pub async fn scope_of_share(&self, secret: &str) -> Result<Scope, ApiError> {
        let nothing = || {
            ApiError::new(ErrorCode::NotFound, "this link is not good: it has expired, was revoked, or never was")
                .with_hint("ask whoever gave it to you for a new one")
        };
        if secret.is_empty() || secret.len() > SECRET_MAX_BYTES {
            return Err(nothing());
        }
        let hash = Digest::of(secret.as_bytes());
        let share = self.timed("shares", self.store().share_of(hash)).await?.ok_or_else(nothing)?;
        let now_ms = self.clock().wall_ms();
        let is_left = share.token.is_empty()
            || self
                .tokens()
                .with(|known| known.by_hash.values().any(|token| token.id == share.token && !token.revoked));
        if share.expires_ms <= now_ms || !is_left {
            return Err(nothing());
        }
        let jobs = match &share.of {
            Shared::Request(id) => self.jobs_of_request(share.project.as_deref(), id).await?.into_iter().collect(),
            Shared::Model(_) => BTreeSet::new(),
        };
        Ok(Scope { share, jobs })
    }
}
