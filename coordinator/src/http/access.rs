//! Who is calling: token, log-in of a browser, or the owner of the data folder.
//!
//! Invariant: a token that is presented must be good, wherever it is presented. Without one only the Unix socket lets a
//! caller in, which showed at the door that it is the owner's; a port never does, whatever its address.

use super::{bodies, enroll, forgery, grpc};
use crate::{
    app::{App, Peer, Refusal, Standing, Via, authenticate, cookie, hop, is_grpc, wants_page},
    auth::{Actor, Proof, Role},
    certificates,
    doors::{Full, Place},
    page,
    turns::{Turn, Turns},
};
use axum::{
    extract::{Request, State},
    http::{HeaderMap, Method, Uri, header},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use planforge_proto::{ApiError, ErrorCode};
use planforge_types::Digest;
use std::sync::Arc;

/// Lets a request through with its [`Actor`], or answers in the caller's language: gRPC status, log-in page or problem.
pub(crate) async fn guard(State(app): State<App>, request: Request, next: Next) -> Response {
    let credential = credential(&app, &request);
    let from = from(&request);
    let place = request.extensions().get::<Arc<Place>>().cloned();
    let identified = identify(&app, credential).await.and_then(|(actor, standing)| {
        only_to_enroll(&actor, request.uri().path())?;
        certificate_of_agent(&app, &actor, &standing, request.extensions().get::<Peer>())?;
        place.map_or(Ok(()), |place| place.prove(standing.proof, &actor).map_err(no_place))?;
        Ok((actor, standing))
    });
    match identified {
        Ok((actor, standing)) => {
            let grpc = is_grpc(request.headers());
            let (mut request, turn) = match turn(&app, &actor, standing.proof, request).await {
                Ok(both) => both,
                // Who has shown a good token is not sent to the log-in.
                Err(error) if grpc => return grpc::refused(error),
                Err(error) => return Refusal::from(error).into_response(),
            };
            let (role, proof) = (actor.role, standing.proof);
            let actor = Actor { from, ..actor };
            let extensions = request.extensions_mut();
            extensions.insert(actor);
            extensions.insert(standing.proof);
            extensions.insert(standing);
            let passed_on = request.extensions().get::<hop::PassedOn>().is_some();
            let mut response = next.run(request).await;
            if passed_on {
                hop::tell_known(response.headers_mut(), proof, role);
            }
            drop(turn);
            response
        }
        Err(error) => {
            app.farm.note_stranger(&from, request.uri().path(), &error);
            refused(&request, error)
        }
    }
}

/// What a request asks of the coordinator, for its caller's turn.
#[derive(Clone, Copy)]
enum Work {
    /// A transfer of blobs or an agent's session: they have limits of their own, and may take long.
    Stream,
    Submission,
    Other,
}

impl Work {
    fn of(request: &Request) -> Self {
        match request.uri().path() {
            path if path.starts_with("/v1/") || path.starts_with("/planforge.v1.Fleet/") => Self::Stream,
            "/planforge.v1.Farm/Submit" => Self::Submission,
            "/api/v1/jobs" if request.method() == Method::POST => Self::Submission,
            _ => Self::Other,
        }
    }
}

/// Waits until it is the caller's turn, and until what it asks is here: a body that comes slowly takes no turn.
async fn turn(app: &App, actor: &Actor, proof: Proof, request: Request) -> Result<(Request, Turn), ApiError> {
    let work = Work::of(&request);
    if matches!(work, Work::Stream) || !Turns::limits(actor, proof) {
        return Ok((request, Turn::default()));
    }
    let request = bodies::arrived(request).await;
    let turn = app.turns.call(actor, proof, matches!(work, Work::Submission)).await?;
    Ok((request, turn))
}

/// Where a request comes from, for the audit log.
fn from(request: &Request) -> String {
    request.extensions().get::<Peer>().map(Peer::place).unwrap_or_default()
}

/// The page that a person looked at: what was asked for, or where the form stands that was sent.
fn page_of(request: &Request) -> Uri {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return request.uri().clone();
    }
    let from = request.headers().get(header::REFERER).and_then(|from| from.to_str().ok()?.parse().ok());
    from.unwrap_or_default()
}

/// A refusal in the caller's language.
fn refused(request: &Request, error: ApiError) -> Response {
    match error {
        error if is_grpc(request.headers()) => grpc::refused(error),
        error if error.code == ErrorCode::Unauthenticated && wants_page(request.headers()) => {
            page::to_login(&page_of(request))
        }
        error => Refusal::from(error).into_response(),
    }
}

/// A one-time token is good for its one thing.
fn only_to_enroll(actor: &Actor, path: &str) -> Result<(), ApiError> {
    if actor.role != Role::Enroll || path == enroll::ENROLL {
        return Ok(());
    }
    let message = format!("the token '{}' enrolls one agent, and is good for nothing else", actor.name);
    Err(ApiError::new(ErrorCode::PermissionDenied, message)
        .with_hint("give it to the agent: planforge agent --enroll FILE"))
}

/// What an agent without a certificate does.
pub(super) const CERTIFICATE_HINT: &str = "start the agent with its certificate (--cert FILE --cert-key FILE), or have it certified here: planforge token create \
     NAME --role enroll -o FILE, then planforge agent --enroll FILE";

/// Where agents show certificates, an agent's token alone is worth nothing: whoever presents it shows a certificate made
/// out to the token's name. An enrolled agent's certificate is its token.
fn certificate_of_agent(app: &App, actor: &Actor, standing: &Standing, peer: Option<&Peer>) -> Result<(), ApiError> {
    if !app.options.require_agent_certificate || actor.role != Role::Agent {
        return Ok(());
    }
    let Some(certificate) = peer.and_then(|peer| peer.certificate.as_ref()) else {
        let message = format!("agents must show a client certificate here, and '{}' shows none", actor.name);
        return Err(ApiError::new(ErrorCode::Unauthenticated, message).with_hint(CERTIFICATE_HINT));
    };
    if standing.proof == Proof::Token(certificate.shown.key) || certificates::names(&certificate.der, &actor.name) {
        return Ok(());
    }
    let message = format!("the certificate that is shown is not made out to '{}', whose token this is", actor.name);
    Err(ApiError::new(ErrorCode::PermissionDenied, message)
        .with_hint("a token has the name of its agent's certificate, which stands there as a DNS name"))
}

/// A good token for which there is no connection left.
pub(crate) fn no_place(full: Full) -> ApiError {
    let hint = match full {
        Full::OfToken(_) => "use fewer connections at once, or several tokens",
        Full::OfPeople(_) | Full::All(_) => {
            "try again later; whoever runs the coordinator can let it have more open files (ulimit -Hn, LimitNOFILE=): \
             planforge doctor says how many connections that is"
        }
    };
    ApiError::new(ErrorCode::ResourceExhausted, full.to_string()).with_hint(hint)
}

/// What a request shows of its caller.
enum Credential {
    Token(String),
    /// The key of an enrolled agent, by its certificate.
    Key(Digest),
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
    let peer = request.extensions().get::<Peer>();
    let certificate = peer.and_then(|peer| peer.certificate.as_ref());
    if let Some(key) = certificate.map(|certificate| certificate.shown.key).filter(|key| app.farm.knows_key(*key)) {
        return Ok(Credential::Key(key));
    }
    let reading = matches!(*request.method(), Method::GET | Method::HEAD);
    // Where it says to come from was looked at before, see `forgery`.
    let of_the_page = *request.method() == Method::POST
        && forgery::is_of_the_page(request.uri().path())
        && forgery::says_where_it_comes_from(headers);
    if (reading || of_the_page)
        && let Some(secret) = cookie(headers, &app.options.session_cookie)
    {
        return Ok(Credential::Session(secret.to_owned()));
    }
    match peer.map(|peer| peer.via) {
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
        Credential::Key(key) => {
            let proof = Proof::Token(key);
            let actor = app.farm.actor_of(proof).ok_or_else(|| {
                let unknown = || ApiError::new(ErrorCode::Unauthenticated, "the certificate's agent is not known here");
                app.farm.objection(proof).unwrap_or_else(unknown)
            })?;
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
