//! Who is calling, once a request was let in.

use super::{App, Refusal};
use crate::{
    auth::{Actor, Proof, Role},
    farm::Reply,
};
use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, header, request::Parts},
};
use futures::{FutureExt as _, StreamExt as _, stream};
use planforge_proto::{ApiError, ErrorCode};
use planforge_types::Digest;
use std::ops::Deref;

/// The cookie of a browser that is signed in; behind it comes the port, because browsers send one port's cookies to all
/// others of a host. Accepted for reading, and for the page's own forms where they say that they come from it, so that no
/// other site can make a browser change anything.
pub const SESSION_COOKIE: &str = "planforge_session_";

/// What to do about a token that is worth nothing.
const NEW_TOKEN: &str = "ask an administrator for a new one (planforge token create) and set PLANFORGE_TOKEN";

/// The caller of a guarded route.
#[derive(Clone, Debug)]
pub struct Caller {
    pub actor: Actor,
    standing: Standing,
}

/// What a request was let in by.
#[derive(Clone, Debug)]
pub struct Standing {
    pub proof: Proof,
    /// Secret of the browser's session, where it came by one.
    pub session: Option<String>,
}

impl Standing {
    /// Whether it is still worth something.
    pub(super) fn stands(&self, app: &App) -> bool {
        let is_signed_in = self.session.as_ref().is_none_or(|secret| app.farm.session_proof(secret).is_some());
        is_signed_in && app.farm.actor_of(self.proof).is_some()
    }

    /// Waits until the server closes, or until this is worth nothing any more: then it says so.
    fn over(&self, app: &App) -> impl Future<Output = Option<ApiError>> + Send + use<> {
        let (watch, closing) = (app.lookout.watch(app, self.clone()), app.closing.clone());
        async move {
            closing.run_until_cancelled(watch.over()).await.map(|()| {
                let message = "the token was revoked or has expired meanwhile";
                ApiError::new(ErrorCode::Unauthenticated, message).with_hint(NEW_TOKEN)
            })
        }
    }

    /// What a stream brings until the server closes. Who may not have it any more gets an error as its end, so that a
    /// part is not taken for the whole.
    pub fn guard<T: Send + 'static>(&self, app: &App, items: Reply<T>) -> Reply<T> {
        let over = self.over(app).boxed();
        let guarded = stream::unfold(Some((items, over)), |both| async move {
            let (mut items, mut over) = both?;
            tokio::select! {
                biased;
                end = &mut over => end.map(|error| (Err(error), None)),
                item = items.next() => item.map(|item| (item, Some((items, over)))),
            }
        });
        guarded.boxed()
    }
}

impl Deref for Caller {
    type Target = Actor;

    fn deref(&self) -> &Actor {
        &self.actor
    }
}

impl Caller {
    /// Refuses whoever may only read.
    pub fn may_write(&self) -> Result<(), ApiError> {
        match self.actor.role {
            Role::Read | Role::Enroll => Err(self.lacks("store anything", "submit, agent or admin")),
            Role::Submit | Role::Agent | Role::Admin => Ok(()),
        }
    }

    /// Refuses everybody but administrators of the whole farm.
    pub fn must_be_admin(&self) -> Result<(), ApiError> {
        if self.actor.is_farm_admin() {
            return Ok(());
        }
        Err(self.lacks("do this", "admin that belongs to no project"))
    }

    /// Refuses whoever belongs to one project.
    pub fn must_see_everything(&self) -> Result<(), ApiError> {
        if self.actor.role == Role::Agent {
            return Err(self.lacks("look at the farm", "read, submit or admin"));
        }
        let Some(project) = &self.actor.project else { return Ok(()) };
        let message =
            format!("the token '{}' belongs to project {project}; this tells of the whole farm", self.actor.name);
        Err(ApiError::new(ErrorCode::PermissionDenied, message).with_hint("use a token that belongs to no project"))
    }

    /// What let it in.
    pub fn proof(&self) -> Proof {
        self.standing.proof
    }

    /// The end of a stream that this caller is sent: the server closes, or what let the caller in is worth nothing any
    /// more (a revoked token, a browser that was signed out).
    pub fn stream_end(&self, app: &App) -> impl Future<Output = ()> + Send + use<> {
        let over = self.standing.over(app);
        async move { drop(over.await) }
    }

    /// What a stream brings, with an error at its end where this caller may not have it any more.
    pub fn guard<T: Send + 'static>(&self, app: &App, items: Reply<T>) -> Reply<T> {
        self.standing.guard(app, items)
    }

    fn lacks(&self, what: &str, needed: &str) -> ApiError {
        let message = format!("the token '{}' with role {} may not {what}", self.actor.name, self.actor.role);
        ApiError::new(ErrorCode::PermissionDenied, message).with_hint(format!("use a token with role {needed}"))
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Refusal> {
        let missing = || ApiError::new(ErrorCode::Internal, "a route is not guarded").into();
        let (actor, standing) = (parts.extensions.get::<Actor>(), parts.extensions.get::<Standing>());
        actor
            .zip(standing)
            .map(|(actor, standing)| Self { actor: actor.clone(), standing: standing.clone() })
            .ok_or_else(missing)
    }
}

/// The actor of a secret; whatever is wrong with it, the answer is the same.
pub async fn authenticate(app: &App, secret: &str) -> Result<(Actor, Proof), ApiError> {
    let actor = app.farm.authenticate(secret).await?.ok_or_else(|| {
        ApiError::new(ErrorCode::Unauthenticated, "the token is unknown, expired or revoked").with_hint(NEW_TOKEN)
    })?;
    Ok((actor, Proof::Token(Digest::of(secret.as_bytes()))))
}

/// The value of a cookie.
pub fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let pairs = headers.get_all(header::COOKIE).into_iter().filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(';'));
    pairs.filter_map(|pair| pair.trim().split_once('=')).find(|(found, _)| *found == name).map(|(_, value)| value)
}

pub fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|v| v.as_bytes().starts_with(b"application/grpc"))
}

/// Whether a person's browser asks.
pub fn wants_page(headers: &HeaderMap) -> bool {
    headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).is_some_and(|accept| accept.contains("text/html"))
}
