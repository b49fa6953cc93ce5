//! Who is calling: token, cookie, or the owner of this machine.
//!
//! Invariant: a token that is presented must be good, wherever it is presented. Without one, only the Unix socket and a
//! loopback port let a caller in, and the port only when tokens are not required there.

use super::{App, Refusal, grpc};
use crate::{
    auth::{Actor, Role},
    page,
    server::{Peer, Via},
};
use axum::{
    extract::{FromRequestParts, Request, State},
    http::{HeaderMap, Method, header, request::Parts, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};
use planforge_proto::{ApiError, ErrorCode};
use std::ops::Deref;

/// The page's log-in cookie. Accepted for reading only, so that no other site can make a browser change anything.
pub(crate) const TOKEN_COOKIE: &str = "planforge_token";

/// The caller of a guarded route.
#[derive(Clone, Debug)]
pub(crate) struct Caller(pub(crate) Actor);

impl Deref for Caller {
    type Target = Actor;

    fn deref(&self) -> &Actor {
        &self.0
    }
}

impl Caller {
    /// Refuses whoever may only read.
    pub(crate) fn may_write(&self) -> Result<(), ApiError> {
        match self.0.role {
            Role::Read => Err(self.lacks("store anything", "submit, agent or admin")),
            Role::Submit | Role::Agent | Role::Admin => Ok(()),
        }
    }

    /// Refuses everybody but administrators.
    pub(crate) fn must_be_admin(&self) -> Result<(), ApiError> {
        match self.0.role {
            Role::Admin => Ok(()),
            _ => Err(self.lacks("do this", "admin")),
        }
    }

    fn lacks(&self, what: &str, needed: &str) -> ApiError {
        let message = format!("the token '{}' with role {} may not {what}", self.0.name, self.0.role);
        ApiError::new(ErrorCode::PermissionDenied, message).with_hint(format!("use a token with role {needed}"))
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Refusal> {
        let missing = || ApiError::new(ErrorCode::Internal, "a route is not guarded").into();
        parts.extensions.get::<Actor>().cloned().map(Self).ok_or_else(missing)
    }
}

/// Lets a request through with its [`Actor`], or answers in the caller's language: gRPC status, log-in page or problem.
pub(crate) async fn guard(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let credential = credential(&app, &request);
    match identify(&app, credential).await {
        Ok(actor) => {
            request.extensions_mut().insert(actor);
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
    Secret(String),
    /// Nothing, where nothing is needed.
    Owner,
}

fn credential(app: &App, request: &Request) -> Result<Credential, ApiError> {
    let headers = request.headers();
    let reading = matches!(*request.method(), Method::GET | Method::HEAD);
    let secret = match bearer(headers)? {
        None if reading => cookie(headers),
        secret => secret,
    };
    match secret {
        Some(secret) => Ok(Credential::Secret(secret.to_owned())),
        None => may_be_anonymous(app, request).map(|()| Credential::Owner),
    }
}

async fn identify(app: &App, credential: Result<Credential, ApiError>) -> Result<Actor, ApiError> {
    match credential? {
        Credential::Secret(secret) => authenticate(app, &secret).await,
        Credential::Owner => Ok(Actor::local()),
    }
}

/// The actor of a secret; whatever is wrong with it, the answer is the same.
pub(crate) async fn authenticate(app: &App, secret: &str) -> Result<Actor, ApiError> {
    app.farm.authenticate(secret).await?.ok_or_else(|| {
        ApiError::new(ErrorCode::Unauthenticated, "the token is unknown, expired or revoked")
            .with_hint("ask an administrator for a new one (planforge token create) and set PLANFORGE_TOKEN")
    })
}

fn may_be_anonymous(app: &App, request: &Request) -> Result<(), ApiError> {
    let refused = |message: &str| {
        Err(ApiError::new(ErrorCode::Unauthenticated, message)
            .with_hint("set PLANFORGE_TOKEN or pass --token; the first administrator's is in admin.token in the coordinator's data folder"))
    };
    match request.extensions().get::<Peer>().map(|peer| peer.via) {
        Some(Via::Unix) => Ok(()),
        Some(Via::Loopback) if !app.options.require_token => {
            let headers = request.headers();
            if headers.contains_key(header::FORWARDED) || headers.contains_key("x-forwarded-for") {
                return refused("this request came through a proxy and carries no token");
            }
            // A web site that makes a browser call us by its own name must not pass for the owner of this machine.
            let host = request.uri().host().map(str::to_owned).or_else(|| named_host(headers));
            if !host.as_deref().is_some_and(is_local_name) {
                return refused("this request carries no token and does not name this machine as its host");
            }
            Ok(())
        }
        _ => refused("this coordinator asks for a token and the request carries none"),
    }
}

fn named_host(headers: &HeaderMap) -> Option<String> {
    let authority: Authority = headers.get(header::HOST)?.to_str().ok()?.parse().ok()?;
    Some(authority.host().to_owned())
}

fn is_local_name(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.eq_ignore_ascii_case("localhost") || bare.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
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

fn cookie(headers: &HeaderMap) -> Option<&str> {
    let pairs = headers.get_all(header::COOKIE).into_iter().filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(';'));
    pairs.filter_map(|pair| pair.trim().split_once('=')).find(|(name, _)| *name == TOKEN_COOKIE).map(|(_, value)| value)
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
    fn local_names_are_few() {
        for local in ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "[::1]", "::1"] {
            assert!(is_local_name(local), "{local}");
        }
        for foreign in ["", "example.org", "localhost.example.org", "10.0.0.1", "0.0.0.0", "127.0.0.1.example.org"] {
            assert!(!is_local_name(foreign), "{foreign}");
        }
    }

    #[test]
    fn a_token_is_read_from_header_and_cookie() {
        let mut headers = HeaderMap::new();
        assert_eq!(bearer(&headers).unwrap(), None);
        headers.insert(header::AUTHORIZATION, "bearer abc".parse().unwrap());
        headers.insert(header::COOKIE, "a=b; planforge_token=xyz; c=d".parse().unwrap());
        assert_eq!(bearer(&headers).unwrap(), Some("abc"));
        assert_eq!(cookie(&headers), Some("xyz"));
        headers.insert(header::AUTHORIZATION, "Basic abc".parse().unwrap());
        assert_eq!(bearer(&headers).unwrap_err().code, ErrorCode::Unauthenticated);
    }
}
