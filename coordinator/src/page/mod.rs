//! The live page: rendered here, brought up to date by events, whole without JavaScript.
//!
//! A page is a frame around *fragments*. A fragment is an element with an id, rendered by one template, so that the
//! first answer and every later event send the same HTML (see [`events`]). Nothing is loaded from elsewhere, and the
//! content security policy allows neither inline script nor inline style.

mod assets;
mod events;
mod login;
mod projects;

use crate::{
    app::{App, Caller, Peer, Refusal, SESSION_COOKIE},
    auth::Actor,
    farm::LiveCounts,
};
use askama::Template;
use axum::{
    Router,
    extract::{Path, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{Html, IntoResponse, Redirect, Response},
    routing::{get, post},
};
use futures::StreamExt;
pub(crate) use login::to_login;
use planforge_page::rows::{DeviceCard, EngineRow, JobDetail, JobRow};
use planforge_proto::{ApiError, ErrorCode, v1};
use planforge_report::disturbance;
use projects::ProjectList;

const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'",
);
/// Rows per list: more than a person looks through; the command line has them all.
const MAX_ROWS: u32 = 60;
/// Longest end of a log that is part of a page; the rest is one click away.
const MAX_LOG_TAIL_BYTES: usize = 64 * 1024;

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/", get(overview))
        .route("/devices", get(async || Redirect::to("/#devices")))
        .route("/engines", get(async || Redirect::to("/#engines")))
        .route("/jobs", get(async || Redirect::to("/#jobs")))
        .route("/jobs/{id}", get(job))
        .route("/events", get(events::overview))
        .route("/jobs/{id}/events", get(events::job))
}

/// What is served without a token.
pub(crate) fn open_routes() -> Router<App> {
    Router::new()
        .route("/assets/{name}", get(assets::serve))
        .route("/favicon.ico", get(async || Redirect::permanent(&assets::PATHS.icon)))
        .route("/login", get(login::form).post(login::log_in))
        .route("/logout", post(login::log_out))
}

/// The frame of every page.
struct Frame {
    assets: &'static assets::Paths,
    title: String,
    /// Where the page's events come from; empty: it has none.
    events: String,
    /// Who looks at it; empty before log-in.
    actor: String,
    /// Came by a cookie: can log out.
    logged_in: bool,
    version: &'static str,
}

impl Frame {
    fn new(title: impl Into<String>) -> Self {
        Self {
            assets: &assets::PATHS,
            title: title.into(),
            events: String::new(),
            actor: String::new(),
            logged_in: false,
            version: env!("CARGO_PKG_VERSION"),
        }
    }

    fn of(title: impl Into<String>, events: impl Into<String>, caller: &Actor, headers: &HeaderMap) -> Self {
        let logged_in = headers
            .get_all(header::COOKIE)
            .into_iter()
            .any(|value| value.to_str().is_ok_and(|text| text.contains(SESSION_COOKIE)));
        let actor = format!("{} ({})", caller.name, caller.role);
        Self { events: events.into(), actor, logged_in, ..Self::new(title) }
    }
}

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    frame: Frame,
    counts: Counts,
    projects: ProjectList,
    jobs: JobList,
    devices: DeviceList,
    engines: EngineList,
}

#[derive(Template, Default)]
#[template(path = "counts.html")]
struct Counts {
    running: usize,
    waiting: usize,
    failed: usize,
    /// Jobs that ended last, as many as are looked at.
    ended: usize,
    devices_online: usize,
    devices_busy: usize,
    devices: usize,
    engines: String,
    /// Damaged blobs, for who sees the whole farm.
    set_aside: usize,
}

#[derive(Template)]
#[template(path = "jobs.html")]
struct JobList {
    rows: Vec<JobRow>,
    /// Running and waiting jobs that have no row.
    unseen: usize,
    server: String,
}

#[derive(Template)]
#[template(path = "devices.html")]
struct DeviceList {
    cards: Vec<DeviceCard>,
    server: String,
}

#[derive(Template)]
#[template(path = "engines.html")]
struct EngineList {
    rows: Vec<EngineRow>,
}

impl JobList {
    fn submit_command(&self) -> String {
        format!("planforge submit digits.onnx --sku cpu-x86-64-v3 --server {}", self.server)
    }

    /// What the mark at a median means; empty where none has it.
    fn legend(&self) -> String {
        disturbance::legend(self.rows.iter().any(|row| row.is_marked))
    }
}

impl EngineList {
    /// As [`JobList::legend`].
    fn legend(&self) -> String {
        disturbance::legend(self.rows.iter().any(|row| row.is_marked))
    }
}

impl DeviceList {
    fn join_command(&self) -> String {
        format!("planforge agent --server {}", self.server)
    }
}

/// The fragments of the first page, as one caller may see them.
struct Overview {
    counts: Counts,
    projects: ProjectList,
    jobs: JobList,
    devices: DeviceList,
    engines: EngineList,
}

impl Overview {
    async fn load(app: &App, actor: &Actor, server: &str) -> Result<Self, ApiError> {
        use v1::JobState::*;
        let list = |states: &[v1::JobState], limit, with_reports| {
            let states = states.iter().map(|state| i32::from(*state)).collect();
            let request = v1::ListJobsRequest { states, limit, with_reports, ..Default::default() };
            app.farm.list_jobs(actor, request)
        };
        // Lists show the newest; what runs is older than what waits and must not be crowded out by it.
        let mut live = list(&[Running, Leased], MAX_ROWS, false).await?.jobs;
        let room = MAX_ROWS.saturating_sub(u32::try_from(live.len()).unwrap_or(MAX_ROWS));
        if room > 0 {
            live.extend(list(&[Queued, Blocked, Unplaceable], room, false).await?.jobs);
        }
        let ended = list(&[Succeeded, Failed, Cancelled, Skipped], MAX_ROWS / 2, true).await?.jobs;
        let devices = app.farm.list_devices(actor, v1::ListDevicesRequest::default()).await?.devices;
        let request = v1::ListEnginesRequest { limit: MAX_ROWS, ..Default::default() };
        let engines = app.farm.list_engines(actor, request).await?.engines;
        let LiveCounts { running, waiting } = app.farm.live_counts(actor).await?;
        let plus = if engines.len() >= MAX_ROWS as usize { "+" } else { "" };
        let counts = Counts {
            running,
            waiting,
            failed: ended.iter().filter(|job| job.state() == Failed).count(),
            ended: ended.len(),
            devices_online: devices.iter().filter(|device| device.online).count(),
            devices_busy: devices.iter().filter(|device| device.online && device.busy).count(),
            devices: devices.len(),
            engines: format!("{}{plus}", engines.len()),
            set_aside: match actor.project {
                None => app.blobs.quarantined().map_or(0, |set_aside| set_aside.len()),
                Some(_) => 0,
            },
        };
        let (projects, unseen_projects) = app.farm.busy_projects(actor).await?;
        let server = server.to_owned();
        Ok(Self {
            counts,
            projects: ProjectList::new(&projects, unseen_projects),
            jobs: JobList {
                rows: live.iter().chain(&ended).map(JobRow::new).collect(),
                unseen: (running + waiting).saturating_sub(live.len()),
                server: server.clone(),
            },
            engines: EngineList { rows: engines.iter().map(|engine| EngineRow::new(engine, &server)).collect() },
            devices: DeviceList { cards: devices.iter().map(DeviceCard::new).collect(), server },
        })
    }
}

async fn overview(
    State(app): State<App>,
    caller: Caller,
    Base(server): Base,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let Overview { counts, projects, jobs, devices, engines } = Overview::load(&app, &caller, &server).await?;
    let frame = Frame::of("Planforge", "/events", &caller, &headers);
    Ok(html(StatusCode::OK, &OverviewPage { frame, counts, projects, jobs, devices, engines }))
}

#[derive(Template)]
#[template(path = "job.html")]
struct JobPage {
    frame: Frame,
    id: String,
    head: JobHead,
    result: JobResult,
    attempts: JobAttempts,
    log: LogTail,
}

#[derive(Template)]
#[template(path = "job_head.html")]
struct JobHead {
    job: JobDetail,
}

#[derive(Template)]
#[template(path = "job_result.html")]
struct JobResult {
    job: JobDetail,
}

#[derive(Template)]
#[template(path = "job_attempts.html")]
struct JobAttempts {
    job: JobDetail,
}

/// The end of a log, and where to go on reading.
#[derive(Default)]
struct LogTail {
    text: String,
    /// Bytes before the text that are not shown.
    skipped: u64,
    next_offset: u64,
}

async fn job(
    State(app): State<App>,
    caller: Caller,
    Base(server): Base,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let job = app.farm.get_job(&caller, &id).await?;
    let log = log_tail(&app, &caller, &job.id).await?;
    let portability = app.farm.portability(&caller, &job).await?;
    let detail = JobDetail::new(&job, portability.as_ref(), &server);
    let title = format!("{} on {}", detail.row.model, detail.row.sku);
    let frame = Frame::of(title, format!("/jobs/{}/events", job.id), &caller, &headers);
    let page = JobPage {
        frame,
        id: job.id,
        head: JobHead { job: detail.clone() },
        result: JobResult { job: detail.clone() },
        attempts: JobAttempts { job: detail },
        log,
    };
    Ok(html(StatusCode::OK, &page))
}

async fn log_tail(app: &App, actor: &Actor, id: &str) -> Result<LogTail, ApiError> {
    let request = v1::ReadLogRequest { id: id.to_owned(), ..Default::default() };
    let mut chunks = match app.farm.read_log(actor, request).await {
        Ok(chunks) => chunks,
        // A job that never ran has no log.
        Err(error) if error.code == ErrorCode::NotFound => return Ok(LogTail::default()),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    let mut next_offset = 0;
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk?;
        next_offset = chunk.offset_bytes + chunk.data.len() as u64;
        bytes.extend_from_slice(&chunk.data);
        // Twice the tail is dropped to once the tail, so that long logs are not moved byte by byte.
        if bytes.len() > 2 * MAX_LOG_TAIL_BYTES {
            bytes.drain(..bytes.len() - MAX_LOG_TAIL_BYTES);
        }
    }
    if bytes.len() > MAX_LOG_TAIL_BYTES {
        bytes.drain(..bytes.len() - MAX_LOG_TAIL_BYTES);
    }
    let skipped = next_offset.saturating_sub(bytes.len() as u64);
    Ok(LogTail { text: String::from_utf8_lossy(&bytes).into_owned(), skipped, next_offset })
}

#[derive(Template)]
#[template(path = "error.html")]
struct ErrorPage {
    frame: Frame,
    heading: String,
    message: String,
    hint: String,
}

pub(crate) fn error_page(status: StatusCode, error: &ApiError) -> Response {
    let heading = match error.code {
        ErrorCode::NotFound => "Not found",
        ErrorCode::PermissionDenied | ErrorCode::Unauthenticated => "Not allowed",
        ErrorCode::Unavailable => "Not available now",
        _ => "That did not work",
    };
    let page = ErrorPage {
        frame: Frame::new(heading),
        heading: heading.into(),
        message: error.message.clone(),
        hint: error.hint.clone(),
    };
    html(status, &page)
}

/// An error on a page's way out.
struct PageError(ApiError);

impl From<ApiError> for PageError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        let status = Refusal::from(self.0.clone()).status;
        error_page(status, &self.0)
    }
}

fn html(status: StatusCode, page: &impl Template) -> Response {
    let mut response = match page.render() {
        Ok(text) => (status, Html(text)).into_response(),
        Err(error) => {
            tracing::error!(%error, "cannot render a page");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, POLICY);
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// How the browser reached this coordinator, or what was configured: stands in the commands that the page shows.
struct Base(String);

impl axum::extract::FromRequestParts<App> for Base {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(
        parts: &mut axum::http::request::Parts,
        app: &App,
    ) -> Result<Self, std::convert::Infallible> {
        if !app.options.public_url.is_empty() {
            return Ok(Self(app.options.public_url.clone()));
        }
        let encrypted = parts.extensions.get::<Peer>().is_some_and(|peer| peer.encrypted);
        let host = parts.headers.get(header::HOST).and_then(|value| value.to_str().ok());
        let host = host.or_else(|| parts.uri.authority().map(|authority| authority.as_str())).unwrap_or("HOST:PORT");
        Ok(Self(format!("{}://{host}", if encrypted { "https" } else { "http" })))
    }
}
