//! What a person may do from the page: forms, which work without scripts.
//!
//! A log-in of a browser lets these few be sent and nothing else that changes something: the request says that it comes
//! from the page itself (see `http::forgery`), and its cookie comes from no other site.

use super::{Base, PageError, frame, html, signed_in};
use crate::app::{App, Caller};
use axum::{
    Form,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Redirect, Response},
};
use planforge_page::{
    parts::ShareMade,
    view::{Frame, Page, Section, View},
};
use planforge_proto::{ApiError, ErrorCode, v1};
use serde::Deserialize;

#[derive(Deserialize)]
pub(super) struct OfJob {
    id: String,
}

#[derive(Deserialize)]
pub(super) struct OfAgent {
    agent: String,
}

fn to_job(id: &str) -> Response {
    Redirect::to(&format!("/jobs/{id}")).into_response()
}

/// `POST /do/cancel`
pub(super) async fn cancel(
    State(app): State<App>,
    caller: Caller,
    Form(OfJob { id }): Form<OfJob>,
) -> Result<Response, PageError> {
    // By its whole id, so that the way back leads to a page and nowhere else.
    let id = app.farm.get_job(&caller, &id).await?.id;
    let reason = "cancelled on the page".into();
    app.farm
        .cancel_jobs(&caller, v1::CancelJobsRequest { ids: vec![id.clone()], reason, ..Default::default() })
        .await?;
    Ok(to_job(&id))
}

#[derive(Deserialize)]
pub(super) struct Urgency {
    id: String,
    priority: i32,
}

/// `POST /do/priority`
pub(super) async fn priority(
    State(app): State<App>,
    caller: Caller,
    Form(Urgency { id, priority }): Form<Urgency>,
) -> Result<Response, PageError> {
    let id = app.farm.get_job(&caller, &id).await?.id;
    app.farm.set_priority(&caller, v1::SetPriorityRequest { ids: vec![id.clone()], priority }).await?;
    Ok(to_job(&id))
}

/// What a job was submitted as.
fn as_submitted(job: v1::Job) -> v1::SubmitRequest {
    let benchmark = job.kind() == v1::JobKind::Benchmark;
    v1::SubmitRequest {
        project: job.project,
        models: job.model.into_iter().collect(),
        skus: vec![job.sku],
        specs_json: vec![job.spec_json],
        toolchains: Some(job.toolchain_constraint).filter(|constraint| !constraint.is_empty()).into_iter().collect(),
        priority: job.priority,
        allow_inaccurate: job.allow_inaccurate,
        eval_digest: job.eval_digest,
        kind: if benchmark { v1::JobKind::Benchmark } else { v1::JobKind::Build }.into(),
        plan_digest: if benchmark { job.plan_digest } else { String::new() },
        builds: job.builds,
        measure: job.measure,
        tags: job.tags,
        // Who asks for it again knows that nobody has such a device now.
        wait_for_device: true,
        ..v1::SubmitRequest::default()
    }
}

async fn submit(app: &App, caller: &Caller, request: v1::SubmitRequest) -> Result<Response, PageError> {
    let reply = app.farm.submit(caller, request).await?;
    app.turns.submitted(caller, caller.proof(), reply.jobs.len());
    match (&reply.jobs[..], reply.missing_blobs.first()) {
        ([job], _) => Ok(to_job(&job.id)),
        ([_, ..], _) => Ok(Redirect::to(&format!("/requests/{}", reply.request_id)).into_response()),
        ([], missing) => {
            let missing = missing.map(String::as_str).unwrap_or_default();
            let message = format!("the farm does not have the files of this job's model any more (sha256:{missing})");
            let error = ApiError::new(ErrorCode::Gone, message);
            Err(error.with_hint("submit it from where the model is: planforge submit MODEL.onnx --sku SKU").into())
        }
    }
}

/// `POST /do/retry`: submits what a job was submitted as.
pub(super) async fn retry(
    State(app): State<App>,
    caller: Caller,
    Form(OfJob { id }): Form<OfJob>,
) -> Result<Response, PageError> {
    let job = app.farm.get_job(&caller, &id).await?;
    submit(&app, &caller, as_submitted(job)).await
}

/// The form of a clone: what differs from the job that it is of.
#[derive(Deserialize)]
pub(super) struct Changes {
    id: String,
    /// Separated by commas.
    skus: String,
    /// One a line: a range has commas in it.
    #[serde(default)]
    toolchains: String,
    #[serde(default)]
    spec: String,
    builds: Option<u32>,
    priority: i32,
    #[serde(default)]
    tags: String,
    /// There where it is ticked.
    #[serde(default)]
    force: String,
    #[serde(default)]
    allow_inaccurate: String,
}

/// `POST /do/clone`: submits what a job was submitted as, with changes.
pub(super) async fn clone(
    State(app): State<App>,
    caller: Caller,
    Form(changes): Form<Changes>,
) -> Result<Response, PageError> {
    let listed = |text: &str, at: &[char]| {
        let parts = text.split(at).map(str::trim).filter(|part| !part.is_empty());
        parts.map(str::to_owned).collect::<Vec<_>>()
    };
    let base = as_submitted(app.farm.get_job(&caller, &changes.id).await?);
    // What is measured is a plan: it was built as it was.
    let is_build = base.plan_digest.is_empty();
    let request = v1::SubmitRequest {
        skus: listed(&changes.skus, &[',', ' ']),
        toolchains: if is_build { listed(&changes.toolchains, &['\n', '\r']) } else { base.toolchains.clone() },
        specs_json: match changes.spec.trim() {
            "" => base.specs_json.clone(),
            spec if is_build => vec![spec.to_owned()],
            _ => base.specs_json.clone(),
        },
        builds: changes.builds.filter(|_| is_build).unwrap_or(base.builds),
        priority: changes.priority,
        tags: listed(&changes.tags, &[',', ' ']),
        force: !changes.force.is_empty(),
        allow_inaccurate: !changes.allow_inaccurate.is_empty(),
        ..base
    };
    submit(&app, &caller, request).await
}

/// What a link is to be made of: one of both.
#[derive(Deserialize)]
pub(super) struct ToShare {
    #[serde(default)]
    request: String,
    #[serde(default)]
    model: String,
    days: u64,
}

/// `POST /do/share`: makes a link and shows it, once.
pub(super) async fn share(
    State(app): State<App>,
    caller: Caller,
    Base(server): Base,
    headers: HeaderMap,
    Form(ToShare { request, model, days }): Form<ToShare>,
) -> Result<Response, PageError> {
    let back = match request.as_str() {
        "" => format!("/models/{model}"),
        id => format!("/requests/{id}"),
    };
    let ask = v1::CreateShareRequest {
        request_id: request,
        model_digest: model,
        ttl_s: days.max(1).saturating_mul(24 * 60 * 60),
        ..Default::default()
    };
    let made = app.farm.create_share(&caller, ask).await?;
    let made = ShareMade { url: format!("{server}{}", made.path), days: days.max(1) };
    let title = "Read-only link";
    let view = View {
        heading: title.into(),
        above: Some((back, "Back to what it shows")),
        sections: vec![Section::fixed("share", &made)],
        ..View::default()
    };
    let actor = format!("{} ({})", caller.name, caller.role);
    let frame = Frame { actor, logged_in: signed_in(&headers), ..frame(title) };
    Ok(html(StatusCode::OK, &Page { frame, view, json: String::new() }))
}

/// `POST /do/unshare`: ends a link.
pub(super) async fn unshare(
    State(app): State<App>,
    caller: Caller,
    Form(OfJob { id }): Form<OfJob>,
) -> Result<Redirect, PageError> {
    app.farm.revoke_share(&caller, v1::RevokeShareRequest { id }).await?;
    Ok(Redirect::to("/farm"))
}

/// `POST /do/drain`
pub(super) async fn drain(
    State(app): State<App>,
    caller: Caller,
    Form(OfAgent { agent }): Form<OfAgent>,
) -> Result<Redirect, PageError> {
    app.farm.drain_agent(&caller, v1::DrainAgentRequest { agent }).await?;
    Ok(Redirect::to("/devices"))
}

/// `POST /do/resume`
pub(super) async fn resume(
    State(app): State<App>,
    caller: Caller,
    Form(OfAgent { agent }): Form<OfAgent>,
) -> Result<Redirect, PageError> {
    app.farm.resume_agent(&caller, v1::ResumeAgentRequest { agent }).await?;
    Ok(Redirect::to("/devices"))
}
