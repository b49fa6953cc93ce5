//! Links for reading one request or one model, as JSON.

use super::api::{JsonAnswer, JsonBody, Params, views};
use crate::app::{App, Caller, Refusal};
use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use planforge_proto::{v1, view::ShareView};
use serde::Deserialize;
use serde_json::json;

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/api/v1/shares", get(list_shares).post(create_share))
        .route("/api/v1/shares/{id}/revoke", post(revoke_share))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct SharesQuery {
    project: String,
}

async fn list_shares(State(app): State<App>, caller: Caller, Params(query): Params<SharesQuery>) -> JsonAnswer {
    let reply = app.farm.list_shares(&caller, v1::ListSharesRequest { project: query.project }).await?;
    Ok(views::<_, ShareView>("shares", reply.shares))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ShareBody {
    project: String,
    request_id: String,
    model_digest: String,
    ttl_s: u64,
}

async fn create_share(
    State(app): State<App>,
    caller: Caller,
    JsonBody(body): JsonBody<ShareBody>,
) -> Result<Response, Refusal> {
    let ShareBody { project, request_id, model_digest, ttl_s } = body;
    let request = v1::CreateShareRequest { project, request_id, model_digest, ttl_s };
    let reply = app.farm.create_share(&caller, request).await?;
    let url = format!("{}{}", app.options.page_url(), reply.path);
    let share = reply.share.map(ShareView::from);
    Ok((StatusCode::CREATED, Json(json!({ "share": share, "path": reply.path, "url": url }))).into_response())
}

/// What is taken from a body that has nothing to say.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

async fn revoke_share(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    JsonBody(Nothing {}): JsonBody<Nothing>,
) -> JsonAnswer {
    let reply = app.farm.revoke_share(&caller, v1::RevokeShareRequest { id }).await?;
    Ok(Json(json!({ "revoked": reply.share.map(ShareView::from) })))
}
