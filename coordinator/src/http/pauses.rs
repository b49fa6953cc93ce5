//! Pauses, as JSON.

use super::api::{JsonAnswer, JsonBody, views};
use crate::app::{App, Caller};
use axum::{
    Json, Router,
    extract::State,
    routing::{get, post},
};
use planforge_proto::{v1, view::PauseView};
use serde::Deserialize;
use serde_json::json;

pub(super) fn routes() -> Router<App> {
    Router::new().route("/api/v1/pauses", get(list_pauses).post(pause)).route("/api/v1/pauses/resume", post(resume))
}

async fn list_pauses(State(app): State<App>, caller: Caller) -> JsonAnswer {
    let reply = app.farm.list_pauses(&caller).await?;
    Ok(views::<_, PauseView>("pauses", reply.pauses))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WindowBody {
    #[serde(default)]
    days: Vec<u32>,
    start_minute: u32,
    minutes: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PauseBody {
    kind: String,
    name: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    for_ms: u64,
    #[serde(default)]
    until_ms: u64,
    window: Option<WindowBody>,
}

async fn pause(State(app): State<App>, caller: Caller, JsonBody(body): JsonBody<PauseBody>) -> JsonAnswer {
    let PauseBody { kind, name, reason, for_ms, until_ms, window } = body;
    let window =
        window.map(|WindowBody { days, start_minute, minutes }| v1::PauseWindow { days, start_minute, minutes });
    let request = v1::PauseRequest { kind, name, reason, for_ms, until_ms, window };
    let reply = app.farm.pause(&caller, request).await?;
    Ok(Json(json!({ "pause": reply.pause.map(PauseView::from) })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResumeBody {
    kind: String,
    name: String,
    #[serde(default)]
    window: bool,
}

async fn resume(State(app): State<App>, caller: Caller, JsonBody(body): JsonBody<ResumeBody>) -> JsonAnswer {
    let ResumeBody { kind, name, window } = body;
    let reply = app.farm.resume(&caller, v1::ResumeRequest { kind, name, window }).await?;
    Ok(Json(json!({ "resumed": reply.pause.map(PauseView::from) })))
}
