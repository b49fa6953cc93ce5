//! The JSON API below `/api/v1`: the views of `planforge_proto::view`, errors as problem documents.

use super::history;
use crate::app::{App, Caller, Refusal};
use axum::{
    Json, Router,
    body::Body,
    extract::{FromRequest, FromRequestParts, Path, Query, Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures::StreamExt;
use planforge_proto::{
    ApiError, ErrorCode, v1,
    view::{
        AgentView, AuditView, CacheView, CollectedView, DeviceView, EngineView, JobView, PluginView, ProjectView,
        ReportFactsView, SubmitView, order_from_name, state_from_name,
    },
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/api/v1/info", get(info))
        .route("/api/v1/jobs", get(list_jobs).post(submit))
        .route("/api/v1/jobs/{id}", get(get_job))
        .route("/api/v1/jobs/{id}/cancel", post(cancel))
        .route("/api/v1/jobs/{id}/priority", post(set_priority))
        .route("/api/v1/jobs/{id}/log", get(log))
        .route("/api/v1/requests", get(history::list_requests))
        .route("/api/v1/events", get(history::list_events))
        .route("/api/v1/devices", get(list_devices))
        .route("/api/v1/engines", get(list_engines))
        .route("/api/v1/engines/find", get(find_engine))
        .route("/api/v1/reports", get(list_reports))
        .route("/api/v1/caches", get(list_caches))
        .route("/api/v1/caches/{scope}/drop", post(drop_cache))
        .route("/api/v1/plugins", get(list_plugins))
        .route("/api/v1/projects", get(list_projects))
        .route("/api/v1/audit", get(list_audit))
        .route("/api/v1/gc", post(collect_garbage))
        .route("/api/v1/agents", get(list_agents))
        .route("/api/v1/agents/{agent}/drain", post(drain_agent))
        .route("/api/v1/agents/{agent}/resume", post(resume_agent))
        .route("/api/v1/agents/{agent}/forget", post(forget_agent))
}

/// A JSON body; what is wrong with it becomes a problem document.
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        match Json::<T>::from_request(request, state).await {
            Ok(Json(value)) => Ok(Self(value)),
            Err(rejection) => {
                let error = ApiError::new(ErrorCode::InvalidArgument, rejection.body_text());
                let status = match rejection.status() {
                    StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
                    other => other,
                };
                Err(Refusal { error, status })
            }
        }
    }
}

/// Query parameters; an unknown one is an error, because a misspelt filter would answer with everything.
pub(super) struct Params<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Refusal> {
        match Query::<T>::try_from_uri(&parts.uri) {
            Ok(Query(value)) => Ok(Self(value)),
            Err(rejection) => Err(ApiError::new(ErrorCode::InvalidArgument, rejection.body_text()).into()),
        }
    }
}

pub(super) type JsonAnswer = Result<Json<Value>, Refusal>;

pub(super) fn views<T, V: From<T> + serde::Serialize>(name: &str, items: Vec<T>) -> Json<Value> {
    let views: Vec<V> = items.into_iter().map(V::from).collect();
    Json(json!({ name: views }))
}

/// Part of a list: `next_cursor` is null where the list ends.
pub(super) fn page<T, V: From<T> + serde::Serialize>(name: &str, items: Vec<T>, next_cursor: String) -> Json<Value> {
    let views: Vec<V> = items.into_iter().map(V::from).collect();
    Json(json!({ name: views, "next_cursor": some_cursor(next_cursor) }))
}

/// As [`page`], with how many the whole list has; where counting ended before it did, `more_than_total` says so.
pub(super) fn counted<T, V: From<T> + serde::Serialize>(
    name: &str,
    items: Vec<T>,
    next_cursor: String,
    (total, more_than_total): (u64, bool),
) -> Json<Value> {
    let Json(mut list) = page::<T, V>(name, items, next_cursor);
    list["total"] = total.into();
    list["more_than_total"] = more_than_total.into();
    Json(list)
}

fn some_cursor(next_cursor: String) -> Option<String> {
    Some(next_cursor).filter(|cursor| !cursor.is_empty())
}

async fn info(State(app): State<App>, caller: Caller) -> Json<Value> {
    let info = app.farm.server_info(&caller);
    Json(json!({
        "version": info.version,
        "epoch": info.epoch,
        "actor": info.actor,
        "role": info.role,
        "project": info.project,
    }))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct JobsQuery {
    project: String,
    /// Names, separated by commas.
    state: String,
    /// Ids or unique prefixes, separated by commas.
    id: String,
    limit: u32,
    reports: bool,
    sku: String,
    model: String,
    /// Only jobs of this request.
    request: String,
    /// All of them, separated by commas.
    tag: String,
    since_ms: u64,
    until_ms: u64,
    /// newest, oldest or ended.
    sort: String,
    /// `next_cursor` of the page before.
    cursor: String,
}

pub(super) fn words(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|word| !word.is_empty())
}

async fn list_jobs(State(app): State<App>, caller: Caller, Params(query): Params<JobsQuery>) -> JsonAnswer {
    let state = |name: &str| {
        let unknown = || {
            ApiError::new(ErrorCode::InvalidArgument, format!("'{name}' is no job state")).with_hint(
                "states are blocked, queued, leased, running, succeeded, failed, cancelled, skipped, unplaceable",
            )
        };
        state_from_name(name).map(i32::from).ok_or_else(unknown)
    };
    let order = match query.sort.as_str() {
        "" => v1::JobOrder::Unspecified,
        name => order_from_name(name).ok_or_else(|| {
            ApiError::new(ErrorCode::InvalidArgument, format!("'{name}' is no order of jobs"))
                .with_hint("orders are newest, oldest, ended")
        })?,
    };
    let request = v1::ListJobsRequest {
        states: words(&query.state).map(state).collect::<Result<_, _>>()?,
        ids: words(&query.id).map(str::to_owned).collect(),
        project: query.project,
        limit: query.limit,
        with_reports: query.reports,
        sku: query.sku,
        model: query.model,
        request_id: query.request,
        tags: words(&query.tag).map(str::to_owned).collect(),
        since_ms: query.since_ms,
        until_ms: query.until_ms,
        order: order.into(),
        with_total: true,
        cursor: query.cursor,
    };
    let reply = app.farm.list_jobs(&caller, request).await?;
    Ok(counted::<_, JobView>("jobs", reply.jobs, reply.next_cursor, (reply.total, reply.more_than_total)))
}

async fn submit(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    JsonBody(body): JsonBody<SubmitView>,
) -> Result<Response, Refusal> {
    let mut request = v1::SubmitRequest::try_from(body)?;
    if let Some(key) = headers.get("idempotency-key").and_then(|value| value.to_str().ok()) {
        request.idempotency_key = key.to_owned();
    }
    let trace = headers.get("traceparent").and_then(|value| value.to_str().ok()?.parse().ok());
    let reply = app.farm.submit_traced(&caller, request, trace).await?;
    app.turns.submitted(&caller, caller.proof(), reply.jobs.len());
    let jobs: Vec<JobView> = reply.jobs.into_iter().map(Into::into).collect();
    let status = if reply.missing_blobs.is_empty() { StatusCode::CREATED } else { StatusCode::OK };
    let body = json!({ "request_id": reply.request_id, "jobs": jobs, "missing_blobs": reply.missing_blobs });
    Ok((status, Json(body)).into_response())
}

async fn get_job(State(app): State<App>, caller: Caller, Path(id): Path<String>) -> Result<Json<JobView>, Refusal> {
    Ok(Json(app.farm.get_job(&caller, &id).await?.into()))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct CancelBody {
    reason: String,
}

async fn cancel(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    JsonBody(body): JsonBody<CancelBody>,
) -> JsonAnswer {
    let request = v1::CancelJobsRequest { ids: vec![id], reason: body.reason, ..Default::default() };
    let reply = app.farm.cancel_jobs(&caller, request).await?;
    Ok(views::<_, JobView>("jobs", reply.jobs))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PriorityBody {
    priority: i32,
}

async fn set_priority(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    JsonBody(PriorityBody { priority }): JsonBody<PriorityBody>,
) -> JsonAnswer {
    let reply = app.farm.set_priority(&caller, v1::SetPriorityRequest { ids: vec![id], priority }).await?;
    let jobs: Vec<JobView> = reply.jobs.into_iter().map(Into::into).collect();
    Ok(Json(json!({ "jobs": jobs, "remarks": reply.remarks })))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LogQuery {
    attempt: u32,
    follow: bool,
    offset_bytes: u64,
}

/// The log as plain text; with `follow` it goes on until the attempt ends.
async fn log(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    Params(query): Params<LogQuery>,
) -> Result<Response, Refusal> {
    let LogQuery { attempt, follow, offset_bytes } = query;
    let request = v1::ReadLogRequest { id, attempt, follow, offset_bytes };
    let place = app.turns.stream(&caller, caller.proof(), false)?;
    let chunks = app.farm.read_log(&caller, request).await?;
    let bytes = caller.guard(&app, chunks).map(move |chunk| {
        // It has its place until it ends.
        let _ = &place;
        chunk.map(|chunk| chunk.data)
    });
    let headers = [(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"))];
    Ok((headers, Body::from_stream(bytes)).into_response())
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct DevicesQuery {
    online: bool,
}

async fn list_devices(State(app): State<App>, caller: Caller, Params(query): Params<DevicesQuery>) -> JsonAnswer {
    let request = v1::ListDevicesRequest { online_only: query.online };
    let reply = app.farm.list_devices(&caller, request).await?;
    Ok(views::<_, DeviceView>("devices", reply.devices))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct EnginesQuery {
    model: String,
    sku: String,
    project: String,
    limit: u32,
    cursor: String,
}

async fn list_engines(State(app): State<App>, caller: Caller, Params(query): Params<EnginesQuery>) -> JsonAnswer {
    let EnginesQuery { model, sku, project, limit, cursor } = query;
    let request = v1::ListEnginesRequest { model, sku, project, limit, cursor, with_total: true, brief_reports: false };
    let reply = app.farm.list_engines(&caller, request).await?;
    Ok(counted::<_, EngineView>("engines", reply.engines, reply.next_cursor, (reply.total, reply.more_than_total)))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct FindQuery {
    engine_key: String,
    /// Digest of the model.
    model: String,
    sku: String,
    /// Build spec as JSON text.
    spec: String,
    toolchain: String,
    allow_inaccurate: bool,
    project: String,
    plan_digest: String,
}

async fn find_engine(
    State(app): State<App>,
    caller: Caller,
    Params(query): Params<FindQuery>,
) -> Result<Json<EngineView>, Refusal> {
    let request = v1::FindEngineRequest {
        engine_key: query.engine_key,
        model_digest: query.model,
        sku: query.sku,
        spec_json: query.spec,
        toolchain: query.toolchain,
        allow_inaccurate: query.allow_inaccurate,
        project: query.project,
        plan_digest: query.plan_digest,
    };
    Ok(Json(app.farm.find_engine(&caller, request).await?.into()))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ReportsQuery {
    plan_digest: String,
    engine_key: String,
    job: String,
    cursor: String,
}

async fn list_reports(State(app): State<App>, caller: Caller, Params(query): Params<ReportsQuery>) -> JsonAnswer {
    let ReportsQuery { plan_digest, engine_key, job, cursor } = query;
    let reply = app.farm.list_reports(&caller, v1::ListReportsRequest { plan_digest, engine_key, job, cursor }).await?;
    let next_cursor = some_cursor(reply.next_cursor);
    let facts: Vec<ReportFactsView> = reply.facts.into_iter().map(Into::into).collect();
    let parse = |text: String| {
        serde_json::from_str::<Value>(&text)
            .map_err(|error| ApiError::new(ErrorCode::Internal, format!("a stored report is no JSON: {error}")))
    };
    let reports: Vec<Value> = reply.reports_json.into_iter().map(parse).collect::<Result<_, _>>()?;
    Ok(Json(json!({ "reports": reports, "facts": facts, "next_cursor": next_cursor })))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct CachesQuery {
    sku: String,
}

async fn list_caches(State(app): State<App>, caller: Caller, Params(query): Params<CachesQuery>) -> JsonAnswer {
    let reply = app.farm.list_caches(&caller, v1::ListCachesRequest { sku: query.sku }).await?;
    Ok(views::<_, CacheView>("caches", reply.caches))
}

async fn drop_cache(
    State(app): State<App>,
    caller: Caller,
    Path(scope): Path<String>,
) -> Result<Json<CacheView>, Refusal> {
    let reply = app.farm.drop_cache(&caller, v1::DropCacheRequest { scope }).await?;
    Ok(Json(reply.cache.unwrap_or_default().into()))
}

async fn list_plugins(State(app): State<App>, caller: Caller) -> JsonAnswer {
    let reply = app.farm.list_plugins(&caller).await?;
    Ok(views::<_, PluginView>("plugins", reply.plugins))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ProjectsQuery {
    limit: u32,
    cursor: String,
}

async fn list_projects(State(app): State<App>, caller: Caller, Params(query): Params<ProjectsQuery>) -> JsonAnswer {
    let ProjectsQuery { limit, cursor } = query;
    let reply = app.farm.list_projects(&caller, v1::ListProjectsRequest { limit, cursor }).await?;
    Ok(page::<_, ProjectView>("projects", reply.projects, reply.next_cursor))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct AuditQuery {
    actor: String,
    /// Or a beginning of it.
    what: String,
    project: String,
    since_ms: u64,
    until_ms: u64,
    limit: u32,
    cursor: String,
}

async fn list_audit(State(app): State<App>, caller: Caller, Params(query): Params<AuditQuery>) -> JsonAnswer {
    let AuditQuery { actor, what, project, since_ms, until_ms, limit, cursor } = query;
    let request = v1::ListAuditRequest { actor, what, project, since_ms, until_ms, limit, cursor };
    let reply = app.farm.list_audit(&caller, request).await?;
    Ok(page::<_, AuditView>("audit", reply.records, reply.next_cursor))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct CollectBody {
    dry_run: bool,
}

async fn collect_garbage(
    State(app): State<App>,
    caller: Caller,
    JsonBody(body): JsonBody<CollectBody>,
) -> Result<Json<CollectedView>, Refusal> {
    let request = v1::CollectGarbageRequest { dry_run: body.dry_run };
    Ok(Json(app.farm.collect_garbage(&caller, request).await?.into()))
}

async fn list_agents(State(app): State<App>, caller: Caller) -> JsonAnswer {
    let reply = app.farm.list_agents(&caller).await?;
    Ok(views::<_, AgentView>("agents", reply.agents))
}

async fn drain_agent(
    State(app): State<App>,
    caller: Caller,
    Path(agent): Path<String>,
) -> Result<Json<AgentView>, Refusal> {
    let reply = app.farm.drain_agent(&caller, v1::DrainAgentRequest { agent }).await?;
    Ok(Json(reply.agent.unwrap_or_default().into()))
}

async fn resume_agent(
    State(app): State<App>,
    caller: Caller,
    Path(agent): Path<String>,
) -> Result<Json<AgentView>, Refusal> {
    let reply = app.farm.resume_agent(&caller, v1::ResumeAgentRequest { agent }).await?;
    Ok(Json(reply.agent.unwrap_or_default().into()))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ForgetBody {
    force: bool,
}

async fn forget_agent(
    State(app): State<App>,
    caller: Caller,
    Path(agent): Path<String>,
    JsonBody(body): JsonBody<ForgetBody>,
) -> Result<Json<AgentView>, Refusal> {
    let reply = app.farm.forget_agent(&caller, v1::ForgetAgentRequest { agent, force: body.force }).await?;
    Ok(Json(reply.agent.unwrap_or_default().into()))
}
