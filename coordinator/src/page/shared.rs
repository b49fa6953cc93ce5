//! What somebody with a link may read: one request or one model, its jobs, engines and reports, and nothing else.
//!
//! Nobody is signed in by a link, and no other route knows of it. What is asked of the farm is asked as its project's
//! reader, and everything that is shown goes through the link's [`Scope`] first; addresses lead back below the link, and
//! what names other jobs, agents, people or tokens is left out. Such a page is read as it is: no events follow.

use super::{PageError, frame, html, load};
use crate::{
    app::{App, Peer, Refusal},
    core::Shared,
    farm::Scope,
};
use axum::{
    Extension, Json,
    extract::{Path, Query, State},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use planforge_page::{
    coverage, format, layers, lists,
    parts::JobHead,
    report,
    rows::JobDetail,
    view::{Frame, Page, Section, View},
};
use planforge_proto::{
    ApiError, ErrorCode, v1,
    view::{EngineView, JobView},
};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct How {
    format: String,
    layers: Option<String>,
    from: Option<String>,
    find: Option<String>,
}

impl How {
    fn layers(&self, address: String) -> Result<layers::Asked, ApiError> {
        let query = |name: &str| match name {
            "layers" => self.layers.clone(),
            "from" => self.from.clone(),
            _ => self.find.clone(),
        };
        load::layers_of(query, address)
    }
}

/// What a link opens, and where it stands.
struct Reader {
    scope: Scope,
    within: String,
}

async fn reader(app: &App, secret: &str, peer: Option<Extension<Peer>>) -> Result<Reader, ApiError> {
    let from = peer.map(|Extension(peer)| peer.place()).unwrap_or_default();
    let scope = app.farm.open_share(secret, &from).await.inspect_err(|error| {
        // Without the secret: one that was good a minute ago may still stand in somebody's history.
        app.farm.note_stranger(&from, "/shared", error);
    })?;
    Ok(Reader { scope, within: format!("/shared/{secret}") })
}

impl Reader {
    /// A job without what is not of it: who runs it where, for whom, and what else there is.
    fn cleaned(&self, mut job: v1::Job) -> v1::Job {
        let is_request = matches!(self.scope.of(), Shared::Request(_));
        job.request_id = if is_request { job.request_id } else { String::new() };
        for text in [&mut job.agent, &mut job.device, &mut job.actor, &mut job.waiting_reason] {
            text.clear();
        }
        for list in [&mut job.needs, &mut job.needed, &mut job.needed_by] {
            list.clear();
        }
        job.attempts.clear();
        job.artifacts.clear();
        job.jobs_ahead = None;
        // What was skipped names what it needed, and what the farm's machines did names machines.
        if job.state() == v1::JobState::Skipped {
            job.failure = None;
        }
        if let Some(failure) = &mut job.failure {
            failure.hint.clear();
            if failure.class() == v1::FailureClass::Infrastructure {
                failure.message = "something of the farm itself failed".into();
            }
        }
        job
    }

    /// The jobs that are part of it.
    async fn jobs(&self, app: &App) -> Result<Vec<v1::Job>, ApiError> {
        let actor = self.scope.reader();
        let jobs = match self.scope.of() {
            Shared::Request(id) => load::jobs_of_request(app, &actor, id).await?,
            Shared::Model(model) => {
                let request = v1::ListJobsRequest {
                    model: model.to_string(),
                    limit: load::MAX_ROWS,
                    with_reports: true,
                    ..Default::default()
                };
                app.farm.list_jobs(&actor, request).await?.jobs
            }
        };
        Ok(jobs.into_iter().filter(|job| self.scope.has_job(job)).map(|job| self.cleaned(job)).collect())
    }

    /// The engines that are part of it, each once.
    async fn engines(&self, app: &App, jobs: &[v1::Job]) -> Result<Vec<v1::Engine>, ApiError> {
        let actor = self.scope.reader();
        let mut engines = match self.scope.of() {
            Shared::Model(model) => load::engines_of(app, &actor, &model.to_string()).await?,
            Shared::Request(_) => {
                let mut found: Vec<v1::Engine> = Vec::new();
                for job in jobs.iter().filter(|job| !job.plan_digest.is_empty()) {
                    if found.iter().all(|engine| engine.plan_digest != job.plan_digest)
                        // One that was taken away since is not there to be read.
                        && let Ok(engine) = load::engine_of(app, &actor, &job.plan_digest).await
                    {
                        found.push(engine);
                    }
                }
                found
            }
        };
        engines.retain(|engine| self.scope.has_engine(engine, jobs));
        lists::best_first(&mut engines);
        Ok(engines.into_iter().map(|engine| v1::Engine { job: String::new(), ..engine }).collect())
    }

    fn is_part<'a>(jobs: &'a [v1::Job], engines: &'a [v1::Engine]) -> impl Fn(&str) -> bool + 'a {
        move |href| match href.split_once('/').and_then(|(_, rest)| rest.split_once('/')) {
            Some(("jobs", id)) => jobs.iter().any(|job| job.id == id),
            Some(("plans", digest)) => engines.iter().any(|engine| engine.plan_digest == digest),
            _ => false,
        }
    }

    fn page(&self, title: &str, view: View) -> Response {
        let lead = format!("{} Read-only, good until {}.", view.lead, format::iso(self.scope.expires_ms()));
        let view = View { lead: lead.trim_start().into(), ..view };
        let frame = Frame { is_alone: true, ..frame(title) };
        let json = String::new();
        let mut response = html(StatusCode::OK, &Page { frame, view, json });
        let headers = response.headers_mut();
        // The address is the secret: nobody who is linked to is told of it, and nobody who finds it keeps it.
        headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        headers.insert("x-robots-tag", HeaderValue::from_static("noindex, nofollow"));
        response
    }
}

fn wants_json(how: &How) -> Result<bool, ApiError> {
    match how.format.as_str() {
        "" | "html" => Ok(false),
        "json" => Ok(true),
        _ => Err(ApiError::new(ErrorCode::InvalidArgument, "formats are html and json")),
    }
}

fn answered(json: Value) -> Response {
    ([(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))], Json(json)).into_response()
}

fn not_of_it(what: &str) -> ApiError {
    ApiError::new(ErrorCode::NotFound, format!("this link shows no such {what}"))
}

/// JSON for who asked for it, else a page.
fn refused(how: &How, error: ApiError) -> Response {
    if how.format == "json" { Refusal::from(error).into_response() } else { PageError(error).into_response() }
}

/// `GET /shared/{secret}`: the request or the model.
pub(super) async fn root(
    State(app): State<App>,
    Path(secret): Path<String>,
    peer: Option<Extension<Peer>>,
    Query(how): Query<How>,
) -> Response {
    let shown = async {
        let reader = reader(&app, &secret, peer).await?;
        let jobs = reader.jobs(&app).await?;
        let engines = reader.engines(&app, &jobs).await?;
        if wants_json(&how)? {
            let jobs: Vec<JobView> = jobs.into_iter().map(JobView::from).collect();
            let engines: Vec<EngineView> = engines.into_iter().map(EngineView::from).collect();
            return Ok(answered(json!({ "jobs": jobs, "engines": engines })));
        }
        let is_part = Reader::is_part(&jobs, &engines);
        let table = |table: planforge_page::table::Table| table.for_readers(&reader.within, &is_part);
        let list_of_jobs = table(lists::jobs("jobs", &jobs, false));
        let list_of_engines = table(lists::engines(&engines, "").without("Fetch"));
        let (title, sections) = match reader.scope.of() {
            Shared::Request(id) => (
                format!("Request {id}"),
                vec![
                    Section::table("Models by device kind", table(coverage::of_request(&jobs))),
                    Section::table("Jobs", list_of_jobs),
                    Section::table("Engines", list_of_engines),
                ],
            ),
            Shared::Model(digest) => {
                let name =
                    engines.iter().filter_map(|engine| engine.model.as_ref()).find(|model| !model.name.is_empty());
                let title = name.map_or_else(|| digest.short(), |model| model.name.clone());
                let best = "Engines, the fastest of each device kind first";
                (title, vec![Section::table(best, list_of_engines), Section::table("Jobs", list_of_jobs)])
            }
        };
        let view = View { heading: title.clone(), sections, ..View::default() };
        Ok(reader.page(&title, view))
    };
    shown.await.unwrap_or_else(|error| refused(&how, error))
}

/// `GET /shared/{secret}/jobs/{id}`
pub(super) async fn job(
    State(app): State<App>,
    Path((secret, id)): Path<(String, String)>,
    peer: Option<Extension<Peer>>,
    Query(how): Query<How>,
) -> Response {
    let shown = async {
        let reader = reader(&app, &secret, peer).await?;
        let job = app.farm.get_job(&reader.scope.reader(), &id).await.map_err(|_| not_of_it("job"))?;
        if job.id != id || !reader.scope.has_job(&job) {
            return Err(not_of_it("job"));
        }
        let job = reader.cleaned(job);
        if wants_json(&how)? {
            return Ok(answered(json!({ "job": JobView::from(job) })));
        }
        let asked = how.layers(format!("{}/jobs/{id}", reader.within))?;
        Ok(reader.of_one(JobDetail::new(&job, None, ""), &job.report_json, &asked))
    };
    shown.await.unwrap_or_else(|error| refused(&how, error))
}

/// `GET /shared/{secret}/plans/{digest}`
pub(super) async fn plan(
    State(app): State<App>,
    Path((secret, digest)): Path<(String, String)>,
    peer: Option<Extension<Peer>>,
    Query(how): Query<How>,
) -> Response {
    let shown = async {
        let reader = reader(&app, &secret, peer).await?;
        let jobs = match reader.scope.of() {
            Shared::Request(_) => reader.jobs(&app).await?,
            Shared::Model(_) => Vec::new(),
        };
        let engine = load::engine_of(&app, &reader.scope.reader(), &digest).await;
        let engine = engine.ok().filter(|engine| reader.scope.has_engine(engine, &jobs));
        let engine = engine.ok_or_else(|| not_of_it("engine"))?;
        let engine = v1::Engine { job: String::new(), ..engine };
        if wants_json(&how)? {
            return Ok(answered(json!({ "engine": EngineView::from(engine) })));
        }
        let asked = how.layers(format!("{}/plans/{digest}", reader.within))?;
        Ok(reader.of_one(JobDetail::of_engine(&engine, ""), &engine.report_json, &asked))
    };
    shown.await.unwrap_or_else(|error| refused(&how, error))
}

impl Reader {
    /// The page of a job or an engine.
    fn of_one(&self, detail: JobDetail, document: &str, asked: &layers::Asked) -> Response {
        let detail = detail.for_readers(&self.within);
        let title = format!("{} on {}", detail.row.model, detail.row.sku);
        let mut sections = vec![Section::html("", "job-head", &JobHead { job: detail.clone(), may_act: false })];
        sections.extend(report::sections(detail, document, &[], asked));
        self.page(&title, View { above: Some((self.within.clone(), "All of this link")), sections, ..View::default() })
    }
}
