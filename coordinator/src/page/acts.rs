//! What a person may do from the page: forms, which work without scripts.
//!
//! A log-in of a browser lets these few be sent and nothing else that changes something: the request says that it comes
//! from the page itself (see `http::forgery`), and its cookie comes from no other site.

use super::PageError;
use crate::app::{App, Caller};
use axum::{
    Form,
    extract::State,
    response::{IntoResponse as _, Redirect, Response},
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

/// `POST /do/retry`: submits what a job was submitted as.
pub(super) async fn retry(
    State(app): State<App>,
    caller: Caller,
    Form(OfJob { id }): Form<OfJob>,
) -> Result<Response, PageError> {
    let job = app.farm.get_job(&caller, &id).await?;
    let benchmark = job.kind() == v1::JobKind::Benchmark;
    let request = v1::SubmitRequest {
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
    };
    let reply = app.farm.submit(&caller, request).await?;
    app.turns.submitted(&caller, caller.proof(), reply.jobs.len());
    match (reply.jobs.first(), reply.missing_blobs.first()) {
        (Some(job), _) => Ok(to_job(&job.id)),
        (None, missing) => {
            let missing = missing.map(String::as_str).unwrap_or_default();
            let message = format!("the farm does not have the files of this job's model any more (sha256:{missing})");
            let error = ApiError::new(ErrorCode::Gone, message);
            Err(error.with_hint("submit it from where the model is: planforge submit MODEL.onnx --sku SKU").into())
        }
    }
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
