//! Requests that another coordinator of the farm passes on: who is behind them, and that none is passed on twice.
//!
//! Whoever passes a request on says so ([`HOPS`]), and a coordinator that does not lead refuses what says so: two that
//! take each other for the leader answer at once, instead of asking each other for ever. Beside it stands what the one
//! who took the connection knows of its other end ([`Claims`]): the socket of a data folder's owner, an address, a client
//! certificate. That is believed from those who know the leader's secret, which stands in the farm's database alone and
//! is another one for each process that leads. Tokens and cookies travel as they came.

use super::{Peer, PeerCertificate, Refusal, Via, is_grpc};
use crate::auth::{Actor, Proof, Role};
use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use planforge_proto::{ApiError, ErrorCode};
use planforge_types::Digest;
use serde::{Deserialize, Serialize};
use std::{net::IpAddr, sync::Arc};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tonic::Status;

/// In a request that a coordinator passes on.
pub const HOPS: HeaderName = HeaderName::from_static("planforge-hops");
/// Beside it, the leader's secret and what is known of the caller.
const CLAIMS: HeaderName = HeaderName::from_static("planforge-peer");
/// In the answer to one with claims: by what its connection is known now.
const KNOWN: HeaderName = HeaderName::from_static("planforge-known");

/// What a coordinator knows of the other end of a connection on which it took a request.
#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    /// It came over the Unix socket: by the owner of that coordinator's data folder.
    owner: bool,
    encrypted: bool,
    address: Option<IpAddr>,
    /// The client certificate that TLS has verified there, as base64 of its DER.
    certificate: Option<String>,
}

/// Marks a request as passed on. `secret`: the leader's, where nobody else can hear it; without it, nothing is said of
/// the caller.
pub fn mark(headers: &mut HeaderMap, peer: &Peer, secret: Option<&str>) {
    headers.insert(HOPS, HeaderValue::from_static("1"));
    headers.remove(CLAIMS);
    let Some(secret) = secret else { return };
    let claims = Claims {
        owner: peer.via == Via::Unix,
        encrypted: peer.encrypted,
        address: peer.address,
        certificate: peer.certificate.as_ref().map(|certificate| BASE64_STANDARD.encode(&certificate.der)),
    };
    let claims = serde_json::to_vec(&claims).map(|json| BASE64_STANDARD.encode(json));
    if let Ok(claims) = claims
        && let Ok(mut value) = HeaderValue::from_str(&format!("{secret} {claims}"))
    {
        value.set_sensitive(true);
        headers.insert(CLAIMS, value);
    }
}

/// Whether another coordinator passed the request on.
pub fn is_passed_on(headers: &HeaderMap) -> bool {
    headers.contains_key(HOPS) || headers.contains_key(CLAIMS)
}

/// What a coordinator says to a request that was passed on to it, and is not its to answer.
pub fn refusal() -> ApiError {
    ApiError::new(ErrorCode::Unavailable, "the request was passed on to a coordinator that does not lead").with_hint(
        "try again in a moment; where this stays so, the leader's address (--advertise URL) is not its own alone",
    )
}

/// The peer of whoever asked first, where that may be believed.
fn read(value: &HeaderValue, secret: &str) -> Option<Peer> {
    let (shown, claims) = value.to_str().ok()?.split_once(' ')?;
    // Of digests, so that the time it takes tells nothing of the secret.
    if Digest::of(shown.as_bytes()) != Digest::of(secret.as_bytes()) {
        return None;
    }
    let Claims { owner, encrypted, address, certificate } =
        serde_json::from_slice(&BASE64_STANDARD.decode(claims).ok()?).ok()?;
    let certificate = match certificate {
        None => None,
        Some(text) => {
            let der = CertificateDer::from(BASE64_STANDARD.decode(text).ok()?);
            Some(Arc::new(PeerCertificate::read(der)?))
        }
    };
    let via = if owner { Via::Unix } else { Via::Port };
    Some(Peer { via, encrypted, address, certificate })
}

/// A request whose claims were believed: its answer says who it was.
#[derive(Clone, Copy, Debug)]
pub struct PassedOn;

/// Puts whoever asked first in the place of the coordinator that passes on what it asks. `secret`: this coordinator's
/// own, where others may pass requests on to it.
pub async fn arrived(State(secret): State<Option<Arc<str>>>, mut request: Request, next: Next) -> Response {
    if !is_passed_on(request.headers()) {
        return next.run(request).await;
    }
    request.headers_mut().remove(HOPS);
    let claims = request.headers_mut().remove(CLAIMS);
    let peer = match (&secret, claims) {
        // Whoever does not lead any more, or never did, is found out here.
        (None, _) => return refused(request.headers(), refusal()),
        (Some(_), None) => None,
        (Some(secret), Some(claims)) => match read(&claims, secret) {
            Some(peer) => Some(peer),
            None => return refused(request.headers(), refusal()),
        },
    };
    if let Some(peer) = peer {
        request.extensions_mut().insert(peer);
        request.extensions_mut().insert(PassedOn);
    }
    next.run(request).await
}

/// A refusal in the caller's language.
pub fn refused(headers: &HeaderMap, error: ApiError) -> Response {
    if is_grpc(headers) { Status::from(error).into_http() } else { Refusal::from(error).into_response() }
}

/// Tells the coordinator that passed a request on by what its connection is known now.
pub fn tell_known(headers: &mut HeaderMap, proof: Proof, role: Role) {
    let proof = match proof {
        Proof::Owner => "owner".to_owned(),
        Proof::Token(hash) => hash.to_string(),
    };
    if let Ok(mut value) = HeaderValue::from_str(&format!("{role} {proof}")) {
        value.set_sensitive(true);
        headers.insert(KNOWN, value);
    }
}

/// What the leader told of that, which goes no further.
pub fn take_known(headers: &mut HeaderMap) -> Option<(Proof, Actor)> {
    let value = headers.remove(KNOWN)?;
    let (role, proof) = value.to_str().ok()?.split_once(' ')?;
    let proof = if proof == "owner" { Proof::Owner } else { Proof::Token(proof.parse().ok()?) };
    Some((proof, Actor::named("", role.parse().ok()?, None)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(via: Via) -> Peer {
        Peer { via, encrypted: true, address: Some(IpAddr::from([192, 0, 2, 7])), certificate: None }
    }

    #[test]
    fn who_asked_first_is_believed_from_those_who_know_the_secret() {
        let mut headers = HeaderMap::new();
        mark(&mut headers, &peer(Via::Unix), Some("right"));
        assert!(is_passed_on(&headers));
        let found = read(&headers[&CLAIMS], "right").unwrap();
        assert_eq!((found.via, found.encrypted, found.address), (Via::Unix, true, peer(Via::Unix).address));
        assert!(read(&headers[&CLAIMS], "wrong").is_none());
        mark(&mut headers, &peer(Via::Port), Some("right"));
        assert_eq!(read(&headers[&CLAIMS], "right").unwrap().via, Via::Port);
    }

    #[test]
    fn without_a_secret_nothing_is_said_and_what_a_caller_says_itself_goes_no_further() {
        let mut headers = HeaderMap::new();
        headers.insert(CLAIMS, HeaderValue::from_static("forged e30="));
        mark(&mut headers, &peer(Via::Unix), None);
        assert!(!headers.contains_key(CLAIMS) && is_passed_on(&headers));
    }

    #[test]
    fn what_a_connection_is_known_by_comes_back_and_goes_no_further() {
        let mut headers = HeaderMap::new();
        let proof = Proof::Token(Digest::of(b"token"));
        tell_known(&mut headers, proof, Role::Agent);
        let (found, actor) = take_known(&mut headers).unwrap();
        assert_eq!((found, actor.role), (proof, Role::Agent));
        assert!(headers.is_empty() && take_known(&mut headers).is_none());
        tell_known(&mut headers, Proof::Owner, Role::Admin);
        assert_eq!(take_known(&mut headers).unwrap().0, Proof::Owner);
    }
}
