//! Who is calling: token, log-in of a browser, or the owner of the data folder.
//!
//! Invariant: a token that is presented must be good, wherever it is presented. Without one only the Unix socket lets a
//! caller in, which showed at the door that it is the owner's; a port never does, whatever its address.

use super::{App, Refusal, grpc};
use crate::{
    auth::{Actor, Proof, Role},
    page,
    server::{Peer, Via},
};
use axum::{
    extract::{FromRequestParts, Request, State},
    http::{HeaderMap, Method, header, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use planforge_proto::{ApiError, ErrorCode};
use planforge_types::Digest;
use std::{ops::Deref, time::Duration};

/// The cookie of a browser that is signed in; behind it comes the port, because browsers send one port's cookies to all
/// others of a host. Accepted for reading only, so that no other site can make a browser change anything.
pub(crate) const SESSION_COOKIE: &str = "planforge_session_";

/// How often a stream looks whether its caller may still have it.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// The caller of a guarded route.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) actor: Actor,
    standing: Standing,
}

/// What a request was let in by.
#[derive(Clone, Debug)]
struct Standing {
    proof: Proof,
    /// Secret of the browser's session, where it came by one.
    session: Option<String>,
}

impl Deref for Caller {
    type Target = Actor;

    fn deref(&self) -> &Actor {
        &self.actor
    }
}

impl Caller {
    /// Refuses whoever may only read.
    pub(crate) fn may_write(&self) -> Result<(), ApiError> {
        match self.actor.role {
            Role::Read => Err(self.lacks("store anything", "submit, agent or admin")),
            Role::Submit | Role::Agent | Role::Admin => Ok(()),
        }
    }

    /// Refuses everybody but administrators.
    pub(crate) fn must_be_admin(&self) -> Result<(), ApiError> {
        match self.actor.role {
            Role::Admin => Ok(()),
            _ => Err(self.lacks("do this", "admin")),
        }
    }

    /// The end of a stream that this caller is sent: the server closes, or what let the caller in is worth nothing any
    /// more (a revoked token, a browser that was signed out).
    pub(crate) fn stream_end(&self, app: &App) -> impl Future<Output = ()> + Send + use<> {
        let (app, Standing { proof, session }) = (app.clone(), self.standing.clone());
        async move {
            let mut looks = tokio::time::interval(LOOK_AGAIN);
            while app.closing.run_until_cancelled(looks.tick()).await.is_some() {
                let over = session.as_ref().is_some_and(|secret| app.farm.session_proof(secret).is_none());
                if over || app.farm.actor_of(proof).is_none() {
                    return;
                }
            }
        }
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

/// Lets a request through with its [`Actor`], or answers in the caller's language: gRPC status, log-in page or problem.
pub(crate) async fn guard(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let credential = credential(&app, &request);
    match identify(&app, credential).await {
        Ok((actor, standing)) => {
            let extensions = request.extensions_mut();
            extensions.insert(actor);
            extensions.insert(standing.proof);
            extensions.insert(standing);
            next.run(request).await
        }
        Err(error) if is_grpc(request.headers()) => grpc::refused(error),
        Err(error) if error.code == ErrorCode::Unauthenticated && wants_page(request.headers()) => {
            page::to_login(request.uri())
        }
        Err(error) => Refusal::from(error).into_response(),
    }
}

/// What a request shows of its caller.
enum Credential {
    Token(String),
    /// A log-in that stands in a cookie.
    Session(String),
    /// Nothing, where nothing is needed.
    Owner,
}

fn credential(app: &App, request: &Request) -> Result<Credential, ApiError> {
    let headers = request.headers();
    if let Some(secret) = bearer(headers)? {
        return Ok(Credential::Token(secret.to_owned()));
    }
    let reading = matches!(*request.method(), Method::GET | Method::HEAD);
    if reading && let Some(secret) = cookie(headers, &app.options.session_cookie) {
        return Ok(Credential::Session(secret.to_owned()));
    }
    match request.extensions().get::<Peer>().map(|peer| peer.via) {
        Some(Via::Unix) => Ok(Credential::Owner),
        _ => Err(ApiError::new(
            ErrorCode::Unauthenticated,
            "this coordinator asks for a token and the request carries none",
        )
        .with_hint(
            "set PLANFORGE_TOKEN or pass --token; whoever runs the coordinator gets in without one on its own machine \
             (planforge --data DIR), and makes them with planforge token create",
        )),
    }
}

async fn identify(app: &App, credential: Result<Credential, ApiError>) -> Result<(Actor, Standing), ApiError> {
    match credential? {
        Credential::Token(secret) => {
            let (actor, proof) = authenticate(app, &secret).await?;
            Ok((actor, Standing { proof, session: None }))
        }
        Credential::Session(secret) => {
            let found = app.farm.session_proof(&secret).and_then(|proof| Some((app.farm.actor_of(proof)?, proof)));
            let (actor, proof) = found.ok_or_else(|| {
                ApiError::new(ErrorCode::Unauthenticated, "this browser is not signed in any more")
                    .with_hint("sign in at /login, or with the link that `planforge open` prints")
            })?;
            Ok((actor, Standing { proof, session: Some(secret) }))
        }
        Credential::Owner => Ok((Actor::local(), Standing { proof: Proof::Owner, session: None })),
    }
}

/// The actor of a secret; whatever is wrong with it, the answer is the same.
pub(crate) async fn authenticate(app: &App, secret: &str) -> Result<(Actor, Proof), ApiError> {
    let actor = app.farm.authenticate(secret).await?.ok_or_else(|| {
        ApiError::new(ErrorCode::Unauthenticated, "the token is unknown, expired or revoked")
            .with_hint("ask an administrator for a new one (planforge token create) and set PLANFORGE_TOKEN")
    })?;
    Ok((actor, Proof::Token(Digest::of(secret.as_bytes()))))
}

fn bearer(headers: &HeaderMap) -> Result<Option<&str>, ApiError> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let secret = value.to_str().ok().and_then(|text| {
        let (scheme, secret) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
    });
    let malformed = || {
        ApiError::new(ErrorCode::Unauthenticated, "the Authorization header is not 'Bearer TOKEN'")
            .with_hint("send 'Authorization: Bearer TOKEN'")
    };
    secret.map(Some).ok_or_else(malformed)
}

/// The value of a cookie.
pub(crate) fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let pairs = headers.get_all(header::COOKIE).into_iter().filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(';'));
    pairs.filter_map(|pair| pair.trim().split_once('=')).find(|(found, _)| *found == name).map(|(_, value)| value)
}

pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|v| v.as_bytes().starts_with(b"application/grpc"))
}

/// Whether a person's browser asks.
pub(crate) fn wants_page(headers: &HeaderMap) -> bool {
    headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).is_some_and(|accept| accept.contains("text/html"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_from_its_header_and_a_log_in_from_its_cookie() {
        let mut headers = HeaderMap::new();
        assert_eq!(bearer(&headers).unwrap(), None);
        headers.insert(header::AUTHORIZATION, "bearer abc".parse().unwrap());
        headers.insert(header::COOKIE, "a=b; planforge_session_7400=xyz; c=d".parse().unwrap());
        assert_eq!(bearer(&headers).unwrap(), Some("abc"));
        assert_eq!(cookie(&headers, "planforge_session_7400"), Some("xyz"));
        assert_eq!(cookie(&headers, "planforge_session_740"), None);
        headers.insert(header::AUTHORIZATION, "Basic abc".parse().unwrap());
        assert_eq!(bearer(&headers).unwrap_err().code, ErrorCode::Unauthenticated);
    }
}
