//! Who is calling: token, log-in of a browser, or the owner of the data folder.
//!
//! Invariant: a token that is presented must be good, wherever it is presented. Without one only the Unix socket lets a
//! caller in, which showed at the door that it is the owner's; a port never does, whatever its address.

use super::grpc;
use crate::{
    app::{App, Origin, Peer, Refusal, Standing, Via, authenticate, cookie, is_grpc, wants_page},
    auth::{Actor, Proof},
    page,
};
use axum::{
    extract::{Request, State},
    http::{HeaderMap, Method, header},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use planforge_proto::{ApiError, ErrorCode};

/// Lets a request through with its [`Actor`], or answers in the caller's language: gRPC status, log-in page or problem.
pub(crate) async fn guard(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let credential = credential(&app, &request);
    let from = from(&request);
    match identify(&app, credential).await {
        Ok((actor, standing)) => {
            let actor = Actor { from, ..actor };
            let extensions = request.extensions_mut();
            extensions.insert(actor);
            extensions.insert(standing.proof);
            extensions.insert(standing);
            next.run(request).await
        }
        Err(error) => {
            app.farm.note_stranger(&from, request.uri().path(), &error);
            refused(&request, error)
        }
    }
}

/// Where a request comes from, for the audit log.
fn from(request: &Request) -> String {
    let extensions = request.extensions();
    match (extensions.get::<Origin>(), extensions.get::<Peer>().map(|peer| peer.via)) {
        (Some(Origin(address)), _) => address.to_string(),
        (None, Some(Via::Unix)) => "unix".into(),
        (None, _) => String::new(),
    }
}

/// A refusal in the caller's language.
fn refused(request: &Request, error: ApiError) -> Response {
    match error {
        error if is_grpc(request.headers()) => grpc::refused(error),
        error if error.code == ErrorCode::Unauthenticated && wants_page(request.headers()) => {
            page::to_login(request.uri())
        }
        error => Refusal::from(error).into_response(),
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
