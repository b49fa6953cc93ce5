//! What projects say should exist, and what they want kept, as JSON.

use super::api::{JsonAnswer, JsonBody, Params, page, views};
use crate::app::{App, Caller};
use axum::{
    Json, Router,
    extract::State,
    routing::{get, post},
};
use planforge_proto::{
    v1,
    view::{DeclarationView, DeclareView, PinView, RefreshView, RefreshedView},
};
use serde::Deserialize;
use serde_json::json;

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/api/v1/pins", get(list_pins).post(pin_engines))
        .route("/api/v1/pins/remove", post(unpin_engines))
        .route("/api/v1/declarations", get(list_declarations).post(declare_engines))
        .route("/api/v1/refresh", post(refresh))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PinsQuery {
    project: String,
    plan_digest: String,
    owner: String,
    limit: u32,
    cursor: String,
}

async fn list_pins(State(app): State<App>, caller: Caller, Params(query): Params<PinsQuery>) -> JsonAnswer {
    let PinsQuery { project, plan_digest, owner, limit, cursor } = query;
    let reply = app.farm.list_pins(&caller, v1::ListPinsRequest { project, plan_digest, owner, limit, cursor }).await?;
    Ok(page::<_, PinView>("pins", reply.pins, reply.next_cursor))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PinBody {
    project: String,
    plan_digests: Vec<String>,
    reason: String,
    ttl_s: u64,
}

async fn pin_engines(State(app): State<App>, caller: Caller, JsonBody(body): JsonBody<PinBody>) -> JsonAnswer {
    let PinBody { project, plan_digests, reason, ttl_s } = body;
    let reply = app.farm.pin_engines(&caller, v1::PinEnginesRequest { project, plan_digests, reason, ttl_s }).await?;
    let pins: Vec<PinView> = reply.pins.into_iter().map(Into::into).collect();
    Ok(Json(json!({ "pins": pins, "unknown": reply.unknown })))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct UnpinBody {
    project: String,
    plan_digests: Vec<String>,
    owner: String,
}

async fn unpin_engines(State(app): State<App>, caller: Caller, JsonBody(body): JsonBody<UnpinBody>) -> JsonAnswer {
    let UnpinBody { project, plan_digests, owner } = body;
    let reply = app.farm.unpin_engines(&caller, v1::UnpinEnginesRequest { project, plan_digests, owner }).await?;
    Ok(views::<_, PinView>("pins", reply.pins))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct DeclarationsQuery {
    project: String,
    name: String,
    limit: u32,
    cursor: String,
}

async fn list_declarations(
    State(app): State<App>,
    caller: Caller,
    Params(query): Params<DeclarationsQuery>,
) -> JsonAnswer {
    let DeclarationsQuery { project, name, limit, cursor } = query;
    let request = v1::ListDeclarationsRequest { project, name, limit, cursor };
    let reply = app.farm.list_declarations(&caller, request).await?;
    Ok(page::<_, DeclarationView>("declarations", reply.declarations, reply.next_cursor))
}

async fn declare_engines(State(app): State<App>, caller: Caller, JsonBody(body): JsonBody<DeclareView>) -> JsonAnswer {
    let reply = app.farm.declare_engines(&caller, body.into()).await?;
    Ok(Json(json!({ "declared_ms": reply.declared_ms })))
}

async fn refresh(State(app): State<App>, caller: Caller, JsonBody(body): JsonBody<RefreshView>) -> JsonAnswer {
    let reply = app.farm.refresh(&caller, body.into()).await?;
    let cells: Vec<RefreshedView> = reply.cells.into_iter().map(Into::into).collect();
    Ok(Json(json!({ "cells": cells, "looked_at": reply.looked_at, "more": reply.more })))
}
