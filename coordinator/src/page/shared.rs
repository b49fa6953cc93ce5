//! What somebody with a link may read: one request or one model, its jobs, engines and reports, and nothing else.
//!
//! Nobody is signed in by a link, and no other route knows of it. What is asked of the farm is asked as its project's
//! reader, and everything that is shown goes through the link's [`Scope`] first; addresses lead back below the link, and
//! what names other jobs, agents, people or tokens is left out. Such a page is read as it is: no events follow.

use super::{
    PageError,
    events::{self, Source},
    frame, html, load,
};
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
    coverage, format, history, layers, lists,
    parts::JobHead,
    progress::Progress,
    report,
    rows::JobDetail,
    view::{Frame, Page, Section, Snapshot, View},
};
use planforge_proto::{
    ApiError, ErrorCode, v1,
    view::{EngineView, JobView},
};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(default)]
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

    /// As it goes on behind another query.
    fn query(&self) -> String {
        let asked = [("layers", &self.layers), ("from", &self.from), ("find", &self.find)];
        let pair = |(name, value): (&str, &Option<String>)| {
            value.as_ref().map(|value| format!("&{name}={}", format::encoded(value)))
        };
        asked.into_iter().filter_map(pair).collect()
    }
}

/// What of a link is looked at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Root,
    Job(String),
    Plan(String),
}

impl Place {
    /// Below the link's own address.
    fn path(&self) -> String {
        match self {
            Self::Root => String::new(),
            Self::Job(id) => format!("/jobs/{id}"),
            Self::Plan(digest) => format!("/plans/{digest}"),
        }
    }

    fn read(path: &str) -> Option<Self> {
        match path.strip_prefix('/').unwrap_or(path).split_once('/') {
            None if path.is_empty() => Some(Self::Root),
            Some(("jobs", id)) => Some(Self::Job(id.to_owned())),
            Some(("plans", digest)) => Some(Self::Plan(digest.to_owned())),
            _ => None,
        }
    }
}

/// What a link opens, and where it stands.
struct Reader {
    scope: Scope,
    within: String,
}

fn within(secret: &str) -> String {
    format!("/shared/{secret}")
}

async fn reader(app: &App, secret: &str, peer: Option<Extension<Peer>>) -> Result<Reader, ApiError> {
    let from = peer.map(|Extension(peer)| peer.place()).unwrap_or_default();
    let scope = app.farm.open_share(secret, &from).await.inspect_err(|error| {
        // Without the secret: one that was good a minute ago may still stand in somebody's history.
        app.farm.note_stranger(&from, "/shared", error);
    })?;
    Ok(Reader { scope, within: within(secret) })
}

/// The page again, for who has it open; not good any more once the link is not.
pub(super) async fn view_of(app: &App, secret: &str, place: &Place, how: &How) -> Result<View, ApiError> {
    let scope = app.farm.scope_of_share(secret).await?;
    let reader = Reader { scope, within: within(secret) };
    Ok(reader.seen(app, place, how).await?.view)
}

/// A page of a link, and the same as JSON.
struct Seen {
    title: String,
    view: View,
    json: Value,
}

impl Reader {
    /// A job without what is not of it: who runs it where, for whom, and what else there is.
    fn cleaned(&self, mut job: v1::Job) -> v1::Job {
        let is_request = matches!(self.scope.of(), Shared::Request(_));
        job.request_id = if is_request { job.request_id } else { String::new() };
        for text in [&mut job.agent, &mut job.device, &mut job.actor, &mut job.waiting_reason] {
            text.clear();
        }
        job.fallback.clear();
        job.tried.iter_mut().for_each(|one| one.job.clear());
        // From what a model was made is none of what the link shows.
        job.preparation = None;
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

    /// What stands at a place of the link.
    async fn seen(&self, app: &App, place: &Place, how: &How) -> Result<Seen, ApiError> {
        match place {
            Place::Root => self.root(app).await,
            Place::Job(id) => self.job(app, id, how).await,
            Place::Plan(digest) => self.plan(app, digest, how).await,
        }
    }

    /// The request or the model.
    async fn root(&self, app: &App) -> Result<Seen, ApiError> {
        let jobs = self.jobs(app).await?;
        let engines = self.engines(app, &jobs).await?;
        let is_part = Reader::is_part(&jobs, &engines);
        let table = |table: planforge_page::table::Table| table.for_readers(&self.within, &is_part);
        let list_of_jobs = table(lists::jobs("jobs", &jobs, false));
        let list_of_engines = table(lists::engines(&engines, "").without("Fetch"));
        let (title, sections) = match self.scope.of() {
            Shared::Request(id) => (
                format!("Request {id}"),
                vec![
                    Section::html("", "progress", &Progress::of(&jobs)),
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
                let mut sections = vec![Section::table(best, list_of_engines)];
                let told = load::builds_of(app, &self.scope.reader(), &digest.to_string(), "").await?;
                let lines = history::lines(&told);
                if !lines.is_empty() {
                    sections.push(Section::html("History", "history", &history::Lines::of("history", &lines, false)));
                }
                sections.push(Section::table("Jobs", list_of_jobs));
                (title, sections)
            }
        };
        // What says which addresses are part of it looks at both.
        drop(is_part);
        let jobs: Vec<JobView> = jobs.into_iter().map(JobView::from).collect();
        let engines: Vec<EngineView> = engines.into_iter().map(EngineView::from).collect();
        let view = View { heading: title.clone(), sections, ..View::default() };
        Ok(Seen { title, view, json: json!({ "jobs": jobs, "engines": engines }) })
    }

    async fn job(&self, app: &App, id: &str, how: &How) -> Result<Seen, ApiError> {
        let job = app.farm.get_job(&self.scope.reader(), id).await.map_err(|_| not_of_it("job"))?;
        if job.id != id || !self.scope.has_job(&job) {
            return Err(not_of_it("job"));
        }
        let job = self.cleaned(job);
        let asked = how.layers(format!("{}/jobs/{id}", self.within))?;
        let (title, view) = self.of_one(JobDetail::new(&job, None, ""), &job.report_json, &asked);
        Ok(Seen { title, view, json: json!({ "job": JobView::from(job) }) })
    }

    async fn plan(&self, app: &App, digest: &str, how: &How) -> Result<Seen, ApiError> {
        let jobs = match self.scope.of() {
            Shared::Request(_) => self.jobs(app).await?,
            Shared::Model(_) => Vec::new(),
        };
        let engine = load::engine_of(app, &self.scope.reader(), digest).await;
        let engine = engine.ok().filter(|engine| self.scope.has_engine(engine, &jobs));
        let engine = engine.ok_or_else(|| not_of_it("engine"))?;
        let engine = v1::Engine { job: String::new(), ..engine };
        let asked = how.layers(format!("{}/plans/{digest}", self.within))?;
        let (title, view) = self.of_one(JobDetail::of_engine(&engine, ""), &engine.report_json, &asked);
        Ok(Seen { title, view, json: json!({ "engine": EngineView::from(engine) }) })
    }

    /// The page of a job or an engine.
    fn of_one(&self, detail: JobDetail, document: &str, asked: &layers::Asked) -> (String, View) {
        let detail = detail.for_readers(&self.within);
        let title = format!("{} on {}", detail.row.model, detail.row.sku);
        let mut sections = vec![Section::html("", "job-head", &JobHead { job: detail.clone(), may_act: false })];
        sections.extend(report::sections(detail, document, &[], asked));
        (title, View { above: Some((self.within.clone(), "All of this link")), sections, ..View::default() })
    }

    fn page(&self, seen: Seen, place: &Place, how: &How) -> Response {
        let Seen { title, view, .. } = seen;
        let lead = format!("{} Read-only, good until {}.", view.lead, format::iso(self.scope.expires_ms()));
        let view = View { lead: lead.trim_start().into(), ..view };
        let state = format!("{:x}", Snapshot::of(&view).tag);
        let topic = format!("{}{}", self.within, place.path());
        let events = format!("{}/events?of={}{}", self.within, format::encoded(&place.path()), how.query());
        let frame = Frame { is_alone: true, topic, state, events, ..frame(title) };
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

async fn show(app: &App, secret: &str, place: Place, peer: Option<Extension<Peer>>, how: &How) -> Response {
    let shown = async {
        let reader = reader(app, secret, peer).await?;
        let wants_json = wants_json(how)?;
        let seen = reader.seen(app, &place, how).await?;
        Ok(if wants_json { answered(seen.json) } else { reader.page(seen, &place, how) })
    };
    shown.await.unwrap_or_else(|error| refused(how, error))
}

/// `GET /shared/{secret}`: the request or the model.
pub(super) async fn root(
    State(app): State<App>,
    Path(secret): Path<String>,
    peer: Option<Extension<Peer>>,
    Query(how): Query<How>,
) -> Response {
    show(&app, &secret, Place::Root, peer, &how).await
}

/// `GET /shared/{secret}/jobs/{id}`
pub(super) async fn job(
    State(app): State<App>,
    Path((secret, id)): Path<(String, String)>,
    peer: Option<Extension<Peer>>,
    Query(how): Query<How>,
) -> Response {
    show(&app, &secret, Place::Job(id), peer, &how).await
}

/// `GET /shared/{secret}/plans/{digest}`
pub(super) async fn plan(
    State(app): State<App>,
    Path((secret, digest)): Path<(String, String)>,
    peer: Option<Extension<Peer>>,
    Query(how): Query<How>,
) -> Response {
    show(&app, &secret, Place::Plan(digest), peer, &how).await
}

/// Which page of a link is followed.
#[derive(Deserialize)]
pub(super) struct Followed {
    #[serde(default)]
    of: String,
    #[serde(default)]
    state: String,
    #[serde(flatten)]
    how: How,
}

/// `GET /shared/{secret}/events`: what changes on a page of a link, for as long as the link is good.
pub(super) async fn follow(
    State(app): State<App>,
    Extension(hub): Extension<events::Hub>,
    Path(secret): Path<String>,
    peer: Option<Extension<Peer>>,
    Query(Followed { of, state, how }): Query<Followed>,
) -> Result<Response, Refusal> {
    let place = Place::read(&of).ok_or_else(|| not_of_it("page"))?;
    reader(&app, &secret, peer).await?;
    let source = Source::Link { secret, place, how };
    let end = app.closing.clone().cancelled_owned();
    Ok(events::stream(&app, &hub, vec![(source, state)], end).await?)
}
