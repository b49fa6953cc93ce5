//! Certificates for agents: the first for a one-time token, the next for the one that is shown.

use super::api::JsonBody;
use crate::{
    app::{App, Caller, Peer, Refusal},
    auth::{Proof, Role},
    certificates::{Authority, AuthorityError, Issued, PublicKey, key_hash},
};
use axum::{Extension, Json, Router, extract::State, routing::post};
use planforge_proto::{
    ApiError, ErrorCode,
    enrollment::{self, Certified, Enrollment},
};
use rcgen::PublicKeyData as _;

/// Where a one-time token is good, and nowhere else.
pub(super) const ENROLL: &str = "/v1/enroll";

pub(super) fn routes() -> Router<App> {
    Router::new().route(ENROLL, post(enroll)).route("/v1/certificate", post(renew))
}

fn refused(error: AuthorityError) -> ApiError {
    let code = match error {
        AuthorityError::Unproven => ErrorCode::InvalidArgument,
        _ => ErrorCode::Internal,
    };
    ApiError::new(code, error.to_string())
}

fn authority(app: &App) -> Result<&Authority, ApiError> {
    app.options.authority.as_deref().ok_or_else(|| {
        ApiError::new(ErrorCode::InvalidArgument, "this coordinator certifies no agents").with_hint(
            "start it with --agent-certificates offer, or give the agent a token of role agent (--token-file)",
        )
    })
}

fn certified(issued: Issued) -> Json<Certified> {
    let Issued { pem, expires_ms, renew_in } = issued;
    Json(Certified { certificate: pem, expires_ms, renew_in_s: renew_in.as_secs() })
}

async fn enroll(
    State(app): State<App>,
    caller: Caller,
    Extension(proof): Extension<Proof>,
    JsonBody(asked): JsonBody<Enrollment>,
) -> Result<Json<Certified>, Refusal> {
    let authority = authority(&app)?;
    let key =
        PublicKey::proven(&asked.public_key, &asked.signature, &enrollment::words(&asked.agent_id)).map_err(refused)?;
    // Made before the token is used up, and given out after.
    let issued = authority.certify(&key, &asked.agent_id).map_err(refused)?;
    app.farm.enroll(proof, &asked.agent_id, key_hash(&key.subject_public_key_info())).await?;
    tracing::info!(token = caller.name, agent = asked.agent_id, "certified an agent's key");
    Ok(certified(issued))
}

async fn renew(
    State(app): State<App>,
    caller: Caller,
    Extension(peer): Extension<Peer>,
    Extension(proof): Extension<Proof>,
) -> Result<Json<Certified>, Refusal> {
    let authority = authority(&app)?;
    let shown = peer.certificate.as_ref().map(|certificate| &certificate.shown);
    let own = shown.filter(|shown| proof == Proof::Token(shown.key) && caller.role == Role::Agent);
    let key = own.and_then(|shown| Some((shown.key, PublicKey::of_info(&shown.public_key_info)?)));
    let (hash, key) = key.ok_or_else(|| {
        ApiError::new(ErrorCode::PermissionDenied, "only the certificate of an enrolled agent is renewed, for itself")
            .with_hint("certificates of other authorities are renewed by them")
    })?;
    Ok(certified(authority.certify(&key, &app.farm.enrolled(hash)?).map_err(refused)?))
}
