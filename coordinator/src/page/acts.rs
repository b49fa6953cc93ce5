//! What a person may do from the page: forms, which work without scripts.
//!
//! A log-in of a browser lets these few be sent and nothing else that changes something: the request says that it comes
//! from the page itself (see `http::forgery`), and its cookie comes from no other site.

use super::{Base, PageError, frame, html, signed_in};
use crate::app::{App, Caller, SCRUB_BYTES_PER_S};
use axum::{
    Form,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Redirect, Response},
};
use planforge_page::{
    lists,
    parts::{CollectForm, ShareMade},
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
    let prepares = job.kind() == v1::JobKind::Prepare;
    let preparation = job.preparation.unwrap_or_default();
    let is_open = prepares || !preparation.ask_json.is_empty() && preparation.document_digest.is_empty();
    // A model that was prepared is built as it is; whose work it was is said by what is needed.
    let made_by = Some(preparation.job).filter(|job| !is_open && !job.is_empty());
    v1::SubmitRequest {
        project: job.project,
        models: job.model.into_iter().collect(),
        skus: if prepares { Vec::new() } else { vec![job.sku] },
        specs_json: if prepares { Vec::new() } else { vec![job.spec_json] },
        calibrates: (is_open && preparation.as_calibration).then_some(0).into_iter().collect(),
        prepares_json: is_open.then_some(preparation.ask_json).into_iter().collect(),
        needs: made_by.into_iter().collect(),
        toolchains: Some(job.toolchain_constraint).filter(|constraint| !constraint.is_empty()).into_iter().collect(),
        priority: job.priority,
        allow_inaccurate: job.allow_inaccurate,
        eval_digest: job.eval_digest,
        kind: job.kind,
        plan_digest: if benchmark { job.plan_digest } else { String::new() },
        builds: job.builds,
        measure: job.measure,
        tags: job.tags,
        no_fallback: job.no_fallback,
        requires: job.requires,
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
    let is_build = base.plan_digest.is_empty() && !base.skus.is_empty();
    let request = v1::SubmitRequest {
        skus: if base.skus.is_empty() { Vec::new() } else { listed(&changes.skus, &[',', ' ']) },
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
    Ok(alone(title, view, &caller, &headers))
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

/// `POST /do/forget`: what an agent offered that is away is offered no more.
pub(super) async fn forget(
    State(app): State<App>,
    caller: Caller,
    Form(OfAgent { agent }): Form<OfAgent>,
) -> Result<Redirect, PageError> {
    app.farm.forget_agent(&caller, v1::ForgetAgentRequest { agent, force: false }).await?;
    Ok(Redirect::to("/devices"))
}

/// `POST /do/revoke`: ends a token.
pub(super) async fn revoke(
    State(app): State<App>,
    caller: Caller,
    Form(OfJob { id }): Form<OfJob>,
) -> Result<Redirect, PageError> {
    app.farm.revoke_token(&caller, &id).await?;
    Ok(Redirect::to("/farm"))
}

#[derive(Deserialize)]
pub(super) struct OfPin {
    /// Plan, project and owner, apart by dots: a digest and a project have none.
    pin: String,
}

/// `POST /do/unpin`
pub(super) async fn unpin(
    State(app): State<App>,
    caller: Caller,
    Form(OfPin { pin }): Form<OfPin>,
) -> Result<Redirect, PageError> {
    let mut parts = pin.splitn(3, '.').map(str::to_owned);
    let (Some(plan), Some(project), Some(owner)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(ApiError::new(ErrorCode::InvalidArgument, "a pin is named by plan, project and owner").into());
    };
    app.farm.unpin_engines(&caller, v1::UnpinEnginesRequest { project, plan_digests: vec![plan], owner }).await?;
    Ok(Redirect::to("/farm"))
}

/// What of a project is set; empty: it stays as it is.
#[derive(Deserialize)]
pub(super) struct Limits {
    name: String,
    #[serde(default)]
    share: String,
    #[serde(default)]
    max_jobs: String,
    #[serde(default)]
    max_gib: String,
}

/// `POST /do/project`: sets a project's share and limits.
pub(super) async fn project(
    State(app): State<App>,
    caller: Caller,
    Form(limits): Form<Limits>,
) -> Result<Redirect, PageError> {
    let number = |what: &str, text: &str| match text.trim() {
        "" => Ok(None),
        text => text.parse::<u64>().map(Some).map_err(|_| {
            ApiError::new(ErrorCode::InvalidArgument, format!("{what} is a number, not '{}'", text.escape_debug()))
        }),
    };
    let share = number("a share", &limits.share)?.map(|share| u32::try_from(share).unwrap_or(u32::MAX));
    let max_gib = number("what it may store", &limits.max_gib)?;
    let request = v1::SetProjectRequest {
        name: limits.name.trim().to_owned(),
        share,
        max_jobs: number("the limit on jobs", &limits.max_jobs)?,
        max_stored_bytes: max_gib.map(|gib| gib.saturating_mul(1 << 30)),
    };
    app.farm.set_project(&caller, request).await?;
    Ok(Redirect::to("/farm"))
}

#[derive(Deserialize)]
pub(super) struct Collect {
    /// Empty: what would go is told.
    #[serde(default)]
    go: String,
}

/// `POST /do/gc`: tells what would go, or takes it away beside whatever else happens.
pub(super) async fn gc(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    Form(Collect { go }): Form<Collect>,
) -> Result<Response, PageError> {
    if go.is_empty() {
        let reply = app.farm.collect_garbage(&caller, v1::CollectGarbageRequest { dry_run: true }).await?;
        let mut sections = vec![Section::table("", lists::collected(&reply))];
        if !reply.gone.is_empty() {
            sections.push(Section::table("Engines that go", lists::gone(&reply)));
        }
        sections.push(Section::fixed("collect", &CollectForm));
        let title = "What would go";
        let view = View {
            heading: title.into(),
            lead: "Nothing has gone. Bytes that no record names any more are looked for when it does.".into(),
            above: Some(("/farm".into(), "Farm")),
            sections,
            ..View::default()
        };
        return Ok(alone(title, view, &caller, &headers));
    }
    // It may take as long as there is much; the audit log says what came of it.
    caller.must_be_admin()?;
    let (farm, actor) = (app.farm.clone(), (*caller).clone());
    let closing = app.closing.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = closing.cancelled() => {}
            // A refusal is in the audit log.
            _ = farm.collect_garbage(&actor, v1::CollectGarbageRequest { dry_run: false }) => {}
        }
    });
    Ok(Redirect::to("/activity?what=gc").into_response())
}

/// `POST /do/scrub`: has every stored blob looked at, beside whatever else happens.
pub(super) async fn scrub(State(app): State<App>, caller: Caller) -> Result<Redirect, PageError> {
    app.farm.may_scrub(&caller).await?;
    let (blobs, closing) = (app.blobs.clone(), app.closing.clone());
    tokio::spawn(async move {
        tokio::select! {
            () = closing.cancelled() => {}
            looked = blobs.scrub(SCRUB_BYTES_PER_S, |_| ()) => {
                if let Err(error) = looked {
                    tracing::warn!(%error, "stored blobs could not be looked through");
                }
            }
        }
    });
    Ok(Redirect::to("/farm"))
}

/// A page that is an answer, and has no address to come back to.
fn alone(title: &str, view: View, caller: &Caller, headers: &HeaderMap) -> Response {
    let actor = format!("{} ({})", caller.name, caller.role);
    let frame = Frame { actor, logged_in: signed_in(headers), ..frame(title) };
    html(StatusCode::OK, &Page { frame, view, json: String::new() })
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
