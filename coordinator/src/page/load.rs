//! What a page shows, made of the farm's answers: the same for the first answer, for its updates, and as JSON.

use super::{
    logs,
    topic::{Kind, Topic},
};
use crate::{
    app::App,
    auth::{Actor, Role},
    farm::{DeviceName, LiveCounts},
    store::Heap,
};
use planforge_page::{
    cards::DeviceCard,
    coverage::{self, By, Known},
    day::Day,
    format::is_digest,
    lists,
    parts::{CloneForm, Counts, DeviceList, JobAttempts, JobHead, JobResult, ShareForm},
    rows::{JobDetail, pretty},
    search::Line,
    table::{Cell, Part},
    timeline::Timeline,
    view::{Filter, Section, View},
};
use planforge_proto::{
    ApiError, ErrorCode, v1,
    view::{
        AgentView, AuditView, CacheView, DeviceView, EngineView, JobView, PinView, PluginView, ProjectView, ShareView,
        order_from_name, state_from_name,
    },
};
use serde::Serialize;
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// Rows per list: what a person looks through before a filter is quicker.
pub(super) const MAX_ROWS: u32 = 60;
/// Devices that have a card.
const MAX_CARDS: usize = 100;
/// Engines and jobs that the first page is made of; filters reach the others.
const MAX_KNOWN: u32 = 400;
/// A bar that grows does so in steps: each is an update of the page.
const TIMELINE_STEP_MS: u64 = 10_000;
const LIVE: [v1::JobState; 5] = [
    v1::JobState::Running,
    v1::JobState::Leased,
    v1::JobState::Queued,
    v1::JobState::Blocked,
    v1::JobState::Unplaceable,
];
const ENDED: [v1::JobState; 4] =
    [v1::JobState::Succeeded, v1::JobState::Failed, v1::JobState::Cancelled, v1::JobState::Skipped];
const STATES: [&str; 11] = [
    "",
    "waiting",
    "ended",
    "queued",
    "running",
    "succeeded",
    "failed",
    "cancelled",
    "blocked",
    "unplaceable",
    "skipped",
];

/// A page with its title.
pub(super) struct Shown {
    pub(super) title: String,
    pub(super) view: View,
}

fn shown(heading: &str, view: View) -> Shown {
    Shown { title: heading.into(), view: View { heading: heading.into(), ..view } }
}

fn may_submit(actor: &Actor) -> bool {
    matches!(actor.role, Role::Submit | Role::Admin)
}

/// What a page shows to one caller.
pub(super) async fn view(app: &App, actor: &Actor, topic: &Topic, server: &str) -> Result<Shown, ApiError> {
    match topic.kind {
        Kind::Home => home(app, actor, topic, server).await,
        Kind::Jobs => jobs(app, actor, topic).await,
        Kind::Job => job(app, actor, topic, server).await,
        Kind::Clone => clone(app, actor, topic).await,
        Kind::Request => request(app, actor, topic).await,
        Kind::Engines => engines(app, actor, topic, server).await,
        Kind::Plan => plan(app, actor, topic, server).await,
        Kind::Model => model(app, actor, topic, server).await,
        Kind::Compare => Ok(shown("Compare", super::compare::view(app, actor, topic, server).await?)),
        Kind::Devices => devices(app, actor, server).await,
        Kind::Farm => farm(app, actor).await,
        Kind::Activity => activity(app, actor, topic).await,
        Kind::Api => Ok(api()),
    }
}

fn views<T, V: From<T> + Serialize>(items: Vec<T>) -> Vec<V> {
    items.into_iter().map(V::from).collect()
}

/// The same lists, with the same filters and pages, as JSON.
pub(super) async fn json(app: &App, actor: &Actor, topic: &Topic) -> Result<Value, ApiError> {
    let cursor = |cursor: String| Some(cursor).filter(|cursor| !cursor.is_empty());
    Ok(match topic.kind {
        Kind::Home => {
            let known = known(app, actor, topic).await?;
            json!({ "coverage": coverage::slots(&known, by(topic)?), "more": known.is_cut })
        }
        Kind::Jobs => {
            let reply = app.farm.list_jobs(actor, job_list(topic)?).await?;
            let (total, more_than_total) = (reply.total, reply.more_than_total);
            let (next_cursor, jobs) = (cursor(reply.next_cursor), views::<_, JobView>(reply.jobs));
            json!({ "jobs": jobs, "next_cursor": next_cursor, "total": total, "more_than_total": more_than_total })
        }
        Kind::Job => {
            let job: JobView = app.farm.get_job(actor, &topic.of).await?.into();
            let events = app.farm.history(actor, &topic.of).await?;
            let event = |event: &v1::JobEvent| {
                json!({ "seq": event.seq, "at_ms": event.at_ms, "actor": event.actor, "what": event.what,
                        "detail": event.detail })
            };
            let found = match topic.get("q") {
                "" => None,
                asked => Some(logs::found(app, actor, &topic.of, asked).await?),
            };
            let line = |line: &Line| {
                let text: String = line.pieces.iter().map(|piece| piece.text.as_str()).collect();
                json!({ "number": line.number, "text": text })
            };
            let found = found.map(|found| {
                json!({ "q": found.asked, "matching": found.matching, "places": found.places, "total": found.total,
                        "lines": found.lines.iter().map(line).collect::<Vec<_>>() })
            });
            json!({ "job": job, "history": events.iter().map(event).collect::<Vec<_>>(), "log": found })
        }
        Kind::Clone => json!({ "job": JobView::from(app.farm.get_job(actor, &topic.of).await?) }),
        Kind::Request => {
            let jobs = jobs_of_request(app, actor, &topic.of).await?;
            json!({ "request_id": topic.of, "jobs": views::<_, JobView>(jobs) })
        }
        Kind::Engines => {
            let reply = app.farm.list_engines(actor, engine_list(topic)).await?;
            let (total, more_than_total) = (reply.total, reply.more_than_total);
            let (next_cursor, engines) = (cursor(reply.next_cursor), views::<_, EngineView>(reply.engines));
            json!({ "engines": engines, "next_cursor": next_cursor, "total": total, "more_than_total": more_than_total })
        }
        Kind::Plan => {
            let engine = engine_of(app, actor, &topic.of).await?;
            let pins = app.farm.list_pins(actor, pins_of(&engine.plan_digest)).await?.pins;
            json!({ "engine": EngineView::from(engine), "pins": views::<_, PinView>(pins) })
        }
        Kind::Model => json!({ "engines": views::<_, EngineView>(engines_of(app, actor, &topic.of).await?) }),
        Kind::Compare => {
            let compared = super::compare::comparison(app, actor, topic).await?;
            json!({ "comparison": compared.map(|(comparison, _)| comparison) })
        }
        Kind::Devices => {
            let devices = app.farm.list_devices(actor, v1::ListDevicesRequest::default()).await?.devices;
            let agents = if actor.is_farm_admin() { app.farm.list_agents(actor).await?.agents } else { Vec::new() };
            let days = days_of(app, &devices);
            let days = devices
                .iter()
                .zip(&days)
                .map(|(device, day)| json!({ "agent": device.agent, "device": device.id, "day": day }));
            let days: Vec<Value> = days.collect();
            json!({
                "devices": views::<_, DeviceView>(devices), "agents": views::<_, AgentView>(agents), "days": days,
            })
        }
        Kind::Farm => {
            let projects = app.farm.list_projects(actor, v1::ListProjectsRequest::default()).await?;
            let more_projects = !projects.next_cursor.is_empty();
            let pins = app.farm.list_pins(actor, v1::ListPinsRequest::default()).await?;
            let caches = app.farm.list_caches(actor, v1::ListCachesRequest::default()).await?.caches;
            let plugins = app.farm.list_plugins(actor).await?.plugins;
            let (counted, heaps) = stored(app, actor).await?;
            let shares = match may_submit(actor) {
                true => app.farm.list_shares(actor, v1::ListSharesRequest::default()).await?.shares,
                false => Vec::new(),
            };
            json!({
                "stored": heaps, "stored_counted_ms": counted,
                "shares": views::<_, ShareView>(shares),
                "projects": views::<_, ProjectView>(projects.projects), "more_projects": more_projects, "pins": views::<_, PinView>(pins.pins),
                "caches": views::<_, CacheView>(caches), "plugins": views::<_, PluginView>(plugins),
            })
        }
        Kind::Activity => {
            let ended = app.farm.list_jobs(actor, ended_list()).await?.jobs;
            let (records, next) = match actor.role {
                Role::Admin => {
                    let reply = app.farm.list_audit(actor, audit_list(topic)).await?;
                    (reply.records, cursor(reply.next_cursor))
                }
                _ => (Vec::new(), None),
            };
            json!({ "ended": views::<_, JobView>(ended), "audit": views::<_, AuditView>(records), "next_cursor": next })
        }
        Kind::Api => json!({
            "routes": ROUTES.iter().map(|(route, what)| json!({ "route": route, "for": what })).collect::<Vec<_>>()
        }),
    })
}

fn by(topic: &Topic) -> Result<By, ApiError> {
    match topic.get("by") {
        "" | "model" => Ok(By::Model),
        "spec" => Ok(By::Spec),
        "toolchain" => Ok(By::Toolchain),
        other => Err(invalid(format!("'{}' tells no rows apart", other.escape_debug()), "by is spec or toolchain")),
    }
}

pub(super) fn invalid(message: String, hint: &str) -> ApiError {
    ApiError::new(ErrorCode::InvalidArgument, message).with_hint(hint)
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

fn states(states: &[v1::JobState]) -> Vec<i32> {
    states.iter().map(|state| i32::from(*state)).collect()
}

/// What coverage is told from: of one model or device kind, where one is named.
async fn known(app: &App, actor: &Actor, topic: &Topic) -> Result<Known, ApiError> {
    let (model, sku) = (topic.get("model").to_owned(), topic.get("sku").to_owned());
    let request = v1::ListEnginesRequest {
        model: model.clone(),
        sku: sku.clone(),
        project: topic.get("project").into(),
        limit: MAX_KNOWN,
        ..Default::default()
    };
    let engines = app.farm.list_engines(actor, request).await?;
    let list = |of: &[v1::JobState], order: v1::JobOrder, limit: u32| v1::ListJobsRequest {
        states: states(of),
        model: model.clone(),
        sku: sku.clone(),
        project: topic.get("project").into(),
        order: order.into(),
        limit,
        ..Default::default()
    };
    let live = app.farm.list_jobs(actor, list(&LIVE, v1::JobOrder::Newest, MAX_KNOWN)).await?;
    let failed = app.farm.list_jobs(actor, list(&[v1::JobState::Failed], v1::JobOrder::Ended, MAX_ROWS)).await?;
    let mut declarations = Vec::new();
    let mut cursor = String::new();
    for _ in 0..8 {
        let request =
            v1::ListDeclarationsRequest { project: topic.get("project").into(), cursor, ..Default::default() };
        let reply = app.farm.list_declarations(actor, request).await?;
        declarations.extend(reply.declarations);
        cursor = reply.next_cursor;
        if cursor.is_empty() {
            break;
        }
    }
    let is_asked = |cell: &v1::DeclaredCell| {
        (sku.is_empty() || cell.sku == sku)
            && (model.is_empty() || cell.model == model || cell.model_digest.starts_with(&model))
    };
    declarations.iter_mut().for_each(|declaration: &mut v1::Declaration| declaration.cells.retain(is_asked));
    let is_cut = !engines.next_cursor.is_empty() || !live.next_cursor.is_empty() || !cursor.is_empty();
    Ok(Known { declarations, engines: engines.engines, live: live.jobs, failed: failed.jobs, is_cut })
}

async fn home(app: &App, actor: &Actor, topic: &Topic, server: &str) -> Result<Shown, ApiError> {
    let known = known(app, actor, topic).await?;
    let slots = coverage::slots(&known, by(topic)?);
    let ended = app.farm.list_jobs(actor, ended_list()).await?.jobs;
    let devices = app.farm.list_devices(actor, v1::ListDevicesRequest::default()).await?.devices;
    let LiveCounts { running, waiting } = app.farm.live_counts(actor).await?;
    let count = v1::ListEnginesRequest { limit: 1, with_total: true, ..Default::default() };
    let engines = app.farm.list_engines(actor, count).await?;
    let plus = if engines.more_than_total { "+" } else { "" };
    let counts = Counts {
        running,
        waiting,
        failed: ended.iter().filter(|job| job.state() == v1::JobState::Failed).count(),
        ended: ended.len(),
        devices_online: devices.iter().filter(|device| device.online).count(),
        devices_busy: devices.iter().filter(|device| device.online && device.busy).count(),
        devices: devices.len(),
        engines: format!("{}{plus}", planforge_page::format::grouped(engines.total)),
        set_aside: match actor.project {
            None => app.blobs.quarantined().map_or(0, |set_aside| set_aside.len()),
            Some(_) => 0,
        },
    };
    let mut sections = vec![
        Section::html("", "counts", &counts),
        Section::table("Models by device kind", coverage::table(&slots, known.is_cut, server)),
    ];
    let (projects, unseen) = app.farm.busy_projects(actor).await?;
    sections.extend(lists::projects(&projects, unseen).map(|table| Section::table("Projects", table)));
    let view = View {
        heading_is_hidden: true,
        filters: vec![
            Filter::typed("model", "Model", topic.get("model")),
            Filter::typed("sku", "SKU", topic.get("sku")),
            Filter::typed("project", "Project", topic.get("project")),
            Filter::chosen("by", "Apart by", topic.get("by"), &["model", "spec", "toolchain"]),
        ],
        sections,
        ..View::default()
    };
    Ok(Shown { title: "Planforge".into(), ..shown("Coverage", view) })
}

fn job_list(topic: &Topic) -> Result<v1::ListJobsRequest, ApiError> {
    let state = |name: &str| match name {
        "waiting" => Ok(states(&LIVE[2..])),
        "live" => Ok(states(&LIVE)),
        "ended" => Ok(states(&ENDED)),
        name => state_from_name(name).map(|state| vec![i32::from(state)]).ok_or_else(|| {
            invalid(format!("'{}' is no job state", name.escape_debug()), "states stand in the field of that name")
        }),
    };
    let mut of = Vec::new();
    for name in topic.get("state").split(',').map(str::trim).filter(|name| !name.is_empty()) {
        of.extend(state(name)?);
    }
    // The queue as it will be served: what waits longest comes first.
    let order = match topic.get("sort") {
        "" => v1::JobOrder::Oldest,
        name => order_from_name(name).ok_or_else(|| {
            invalid(format!("'{}' is no order of jobs", name.escape_debug()), "orders are newest, oldest, ended")
        })?,
    };
    if of.is_empty() && order == v1::JobOrder::Oldest && topic.get("sort").is_empty() {
        of = states(&LIVE);
    }
    Ok(v1::ListJobsRequest {
        states: of,
        project: topic.get("project").into(),
        model: topic.get("model").into(),
        sku: topic.get("sku").into(),
        tags: topic.get("tag").split(',').map(str::trim).filter(|tag| !tag.is_empty()).map(str::to_owned).collect(),
        cursor: topic.get("cursor").into(),
        order: order.into(),
        limit: MAX_ROWS,
        with_reports: true,
        with_total: true,
        ..Default::default()
    })
}

/// Jobs that ended last.
fn ended_list() -> v1::ListJobsRequest {
    let order = v1::JobOrder::Ended.into();
    v1::ListJobsRequest { order, limit: MAX_ROWS / 2, with_reports: true, ..Default::default() }
}

/// Of jobs of one page, what runs comes before what waits, and what is served first before what comes later.
fn as_served(jobs: &mut [v1::Job]) {
    jobs.sort_by_key(|job| {
        let runs = matches!(job.state(), v1::JobState::Running | v1::JobState::Leased);
        (!runs, job.jobs_ahead.unwrap_or(u64::MAX), job.created_ms)
    });
}

async fn jobs(app: &App, actor: &Actor, topic: &Topic) -> Result<Shown, ApiError> {
    let reply = app.farm.list_jobs(actor, job_list(topic)?).await?;
    let mut found = reply.jobs;
    let is_queue = topic.get("sort").is_empty();
    if is_queue {
        as_served(&mut found);
    }
    let mut table = lists::jobs("jobs", &found, may_submit(actor));
    table.more = topic.next(&reply.next_cursor);
    let plus = if reply.more_than_total { " or more" } else { "" };
    let total = planforge_page::format::grouped(reply.total);
    table.notes.push(format!("{} of {total}{plus}", found.len()));
    let queue = lists::depths(&app.farm.queue_depths(actor).await?);
    let mut sections = vec![Section::table("Queue by device kind", queue), Section::table("Jobs", table)];
    // Whoever looks at the queue alone sees what became of what stood there before.
    if is_queue && topic.query.is_empty() {
        let ended = app.farm.list_jobs(actor, ended_list()).await?.jobs;
        sections.push(Section::table("Ended last", lists::jobs("ended", &ended, false)));
    }
    let view = View {
        filters: vec![
            Filter::typed("model", "Model", topic.get("model")),
            Filter::typed("sku", "SKU", topic.get("sku")),
            Filter::chosen("state", "State", topic.get("state"), &STATES),
            Filter::typed("tag", "Tags", topic.get("tag")),
            Filter::typed("project", "Project", topic.get("project")),
            Filter::chosen("sort", "Order", topic.get("sort"), &["", "newest", "oldest", "ended"]),
        ],
        sections,
        ..View::default()
    };
    Ok(shown("Jobs", view))
}

async fn job(app: &App, actor: &Actor, topic: &Topic, server: &str) -> Result<Shown, ApiError> {
    let job = app.farm.get_job(actor, &topic.of).await?;
    let log = match topic.get("q") {
        "" => Section::fixed("job-log", &logs::tail(app, actor, &job.id).await?),
        asked => Section::html("", "job-log", &logs::found(app, actor, &job.id, asked).await?),
    };
    let portability = app.farm.portability(actor, &job).await?;
    let detail = JobDetail::new(&job, portability.as_ref(), server);
    let events = app.farm.history(actor, &job.id).await?;
    let history = lists::history(&events);
    let timeline = Timeline::of(&events, now_ms() / TIMELINE_STEP_MS * TIMELINE_STEP_MS);
    let title = format!("{} on {}", detail.row.model, detail.row.sku);
    let sections = vec![
        Section::html("", "job-head", &JobHead { job: detail.clone(), may_act: may_submit(actor) }),
        Section::html("", "job-result", &JobResult { job: detail.clone() }),
        Section::html("", "job-attempts", &JobAttempts { job: detail }),
        Section::html("", "timeline", &timeline),
        log,
        Section::table("History", history),
    ];
    Ok(Shown { title, view: View { above: Some(("/jobs".into(), "Jobs")), sections, ..View::default() } })
}

/// What a job was submitted as, to be changed and submitted again.
async fn clone(app: &App, actor: &Actor, topic: &Topic) -> Result<Shown, ApiError> {
    let job = app.farm.get_job(actor, &topic.of).await?;
    if !may_submit(actor) {
        let message = format!("'{}' has role {}; this needs role submit", actor.name, actor.role);
        return Err(ApiError::new(ErrorCode::PermissionDenied, message).with_hint("log in with another token"));
    }
    let model = job.model.as_ref().map(|model| model.name.clone()).unwrap_or_default();
    let form = CloneForm {
        what: format!("{model} on {}", job.sku),
        sku: job.sku.clone(),
        toolchain: job.toolchain_constraint.clone(),
        spec: pretty(&job.spec_json),
        builds: job.builds.max(1),
        priority: job.priority,
        tags: job.tags.join(", "),
        allow_inaccurate: job.allow_inaccurate,
        is_build: job.kind() != v1::JobKind::Benchmark,
        id: job.id.clone(),
    };
    let above = Some((format!("/jobs/{}", job.id), "The job"));
    let sections = vec![Section::fixed("clone", &form)];
    Ok(shown("Clone a job", View { above, sections, ..View::default() }))
}

pub(super) async fn jobs_of_request(app: &App, actor: &Actor, id: &str) -> Result<Vec<v1::Job>, ApiError> {
    let request = v1::ListJobsRequest { request_id: id.to_owned(), with_reports: true, ..Default::default() };
    let jobs = app.farm.list_jobs(actor, request).await?.jobs;
    match jobs.is_empty() {
        true => Err(ApiError::new(ErrorCode::NotFound, "no request has this id")),
        false => Ok(jobs),
    }
}

async fn request(app: &App, actor: &Actor, topic: &Topic) -> Result<Shown, ApiError> {
    let jobs = jobs_of_request(app, actor, &topic.of).await?;
    let ended = jobs.iter().filter(|job| ENDED.contains(&job.state())).count();
    let lasts_ms = jobs.iter().filter_map(|job| job.eta.as_ref()).map(|eta| eta.end_in_ms).max();
    let eta = lasts_ms.map(|ms| format!(", the last likely done {}", planforge_page::format::wait(ms)));
    let lead = format!("{ended} of {} jobs ended{}", jobs.len(), eta.unwrap_or_default());
    let mut sections = vec![
        Section::table("Models by device kind", coverage::of_request(&jobs)),
        Section::table("Jobs", lists::jobs("jobs", &jobs, may_submit(actor))),
    ];
    if may_submit(actor) {
        sections.push(Section::fixed("share", &ShareForm { what: "request", of: topic.of.clone() }));
    }
    let measured = jobs.iter().filter(|job| !job.report_json.is_empty()).count();
    let links = compared(measured, "request", &topic.of);
    let view = View { lead, links, above: Some(("/jobs".into(), "Jobs")), sections, ..View::default() };
    Ok(shown(&format!("Request {}", topic.of), view))
}

/// Where reports are held against each other, when there are several.
fn compared(reports: usize, what: &str, of: &str) -> Vec<(String, &'static str)> {
    if reports < 2 { Vec::new() } else { vec![(format!("/compare?{what}={of}"), "Compare its reports")] }
}

fn engine_list(topic: &Topic) -> v1::ListEnginesRequest {
    v1::ListEnginesRequest {
        model: topic.get("model").into(),
        sku: topic.get("sku").into(),
        project: topic.get("project").into(),
        cursor: topic.get("cursor").into(),
        limit: MAX_ROWS,
        with_total: true,
    }
}

async fn engines(app: &App, actor: &Actor, topic: &Topic, server: &str) -> Result<Shown, ApiError> {
    let reply = app.farm.list_engines(actor, engine_list(topic)).await?;
    let mut table = lists::engines(&reply.engines, server);
    table.more = topic.next(&reply.next_cursor);
    let plus = if reply.more_than_total { " or more" } else { "" };
    let total = planforge_page::format::grouped(reply.total);
    table.notes.push(format!("{} of {total}{plus}", reply.engines.len()));
    let view = View {
        filters: vec![
            Filter::typed("model", "Model", topic.get("model")),
            Filter::typed("sku", "SKU", topic.get("sku")),
            Filter::typed("project", "Project", topic.get("project")),
        ],
        sections: vec![Section::table("", table)],
        ..View::default()
    };
    Ok(shown("Engines", view))
}

pub(super) async fn engine_of(app: &App, actor: &Actor, plan: &str) -> Result<v1::Engine, ApiError> {
    let request = v1::FindEngineRequest { plan_digest: plan.into(), allow_inaccurate: true, ..Default::default() };
    app.farm.find_engine(actor, request).await
}

fn pins_of(plan: &str) -> v1::ListPinsRequest {
    v1::ListPinsRequest { plan_digest: plan.into(), ..Default::default() }
}

/// An engine: what it is, its report, and where else it was measured.
async fn plan(app: &App, actor: &Actor, topic: &Topic, server: &str) -> Result<Shown, ApiError> {
    let engine = engine_of(app, actor, &topic.of).await?;
    let request = v1::ListReportsRequest { plan_digest: engine.plan_digest.clone(), ..Default::default() };
    let reports = app.farm.list_reports(actor, request).await?;
    let pins = app.farm.list_pins(actor, pins_of(&engine.plan_digest)).await?.pins;
    let model = engine.model.as_ref().map(|model| model.digest.clone()).unwrap_or_default();
    let others = engines_of(app, actor, &model).await?;
    let others: Vec<v1::Engine> = others.into_iter().filter(|other| other.plan_digest != engine.plan_digest).collect();
    let detail = JobDetail::of_engine(&engine, server);
    let title = format!("{} on {}", detail.row.model, detail.row.sku);
    let mut sections = vec![
        Section::html("", "job-head", &JobHead { job: detail.clone(), may_act: false }),
        Section::html("", "job-result", &JobResult { job: detail }),
        Section::table("Where it was measured", lists::reports(&reports.facts, &reports.reports_json)),
    ];
    if !others.is_empty() {
        sections.push(Section::table("Other engines of this model", lists::engines(&others, server)));
    }
    if !pins.is_empty() {
        sections.push(Section::table("Pins", lists::pins(&pins)));
    }
    Ok(Shown { title, view: View { above: Some(("/engines".into(), "Engines")), sections, ..View::default() } })
}

pub(super) async fn engines_of(app: &App, actor: &Actor, model: &str) -> Result<Vec<v1::Engine>, ApiError> {
    let request = v1::ListEnginesRequest { model: model.into(), limit: MAX_KNOWN, ..Default::default() };
    let engines = app.farm.list_engines(actor, request).await?.engines;
    match engines.is_empty() {
        true => Err(ApiError::new(ErrorCode::NotFound, "the farm has no engine of this model")),
        false => Ok(engines),
    }
}

/// A model: its engines by device kind, the fastest first.
async fn model(app: &App, actor: &Actor, topic: &Topic, server: &str) -> Result<Shown, ApiError> {
    let mut engines = engines_of(app, actor, &topic.of).await?;
    lists::best_first(&mut engines);
    let name = engines.first().and_then(|engine| engine.model.as_ref()).map(|model| model.name.clone());
    let name = name.filter(|name| !name.is_empty()).unwrap_or_else(|| topic.of.clone());
    let jobs =
        v1::ListJobsRequest { model: topic.of.clone(), limit: MAX_ROWS / 2, with_reports: true, ..Default::default() };
    let jobs = app.farm.list_jobs(actor, jobs).await?.jobs;
    let mut sections = vec![
        Section::table("Engines, the fastest of each device kind first", lists::engines(&engines, server)),
        Section::table("Jobs", lists::jobs("jobs", &jobs, may_submit(actor))),
    ];
    if may_submit(actor) && is_digest(&topic.of) {
        sections.push(Section::fixed("share", &ShareForm { what: "model", of: topic.of.clone() }));
    }
    let lead = format!("sha256:{}", topic.of);
    let links = compared(engines.iter().filter(|engine| !engine.report_json.is_empty()).count(), "model", &topic.of);
    Ok(shown(&name, View { lead, links, above: Some(("/engines".into(), "Engines")), sections, ..View::default() }))
}

/// What each device did within a day, in their order.
fn days_of(app: &App, devices: &[v1::Device]) -> Vec<Day> {
    let names: Vec<DeviceName> = devices.iter().map(|device| (device.agent.clone(), device.id.clone())).collect();
    app.farm.days_of(&names)
}

async fn devices(app: &App, actor: &Actor, server: &str) -> Result<Shown, ApiError> {
    let devices = app.farm.list_devices(actor, v1::ListDevicesRequest::default()).await?.devices;
    let days = days_of(app, &devices[..devices.len().min(MAX_CARDS)]);
    let cards: Vec<DeviceCard> = devices.iter().zip(&days).map(|(device, day)| DeviceCard::new(device, day)).collect();
    let list = DeviceList { unseen: devices.len() - cards.len(), cards, server: server.into() };
    let mut sections = vec![Section::html("", "devices", &list)];
    if actor.is_farm_admin() {
        let agents = app.farm.list_agents(actor).await?.agents;
        sections.push(Section::table("Agents", lists::agents(&agents)));
    }
    Ok(shown("Devices", View { sections, ..View::default() }))
}

/// What is stored by project and kind, and when that was counted.
async fn stored(app: &App, actor: &Actor) -> Result<(Option<u64>, Vec<lists::Stored>), ApiError> {
    let Some((at_ms, heaps)) = app.farm.stored_by_kind(actor).await? else { return Ok((None, Vec::new())) };
    let stored =
        |heap: Heap| lists::Stored { project: heap.project, kind: heap.kind, blobs: heap.blobs, bytes: heap.bytes };
    Ok((Some(at_ms), heaps.into_iter().map(stored).collect()))
}

async fn farm(app: &App, actor: &Actor) -> Result<Shown, ApiError> {
    let info = app.farm.server_info(actor);
    let mut sections = Vec::new();
    if actor.is_farm_admin() {
        sections.push(Section::table("Storage", storage(app)));
    }
    let (counted, heaps) = stored(app, actor).await?;
    sections.push(Section::table("Storage by kind and project", lists::stored(&heaps, counted)));
    let projects = app.farm.list_projects(actor, v1::ListProjectsRequest::default()).await?;
    if let Some(mut table) = lists::projects(&projects.projects, 0) {
        if !projects.next_cursor.is_empty() {
            table.notes.push("there are more: planforge projects list".into());
        }
        sections.push(Section::table("Projects", table));
    }
    let pins = app.farm.list_pins(actor, v1::ListPinsRequest { limit: MAX_ROWS, ..Default::default() }).await?;
    let mut pinned = lists::pins(&pins.pins);
    if !pins.next_cursor.is_empty() {
        pinned.notes.push("There are more: planforge pins lists them all.".into());
    }
    sections.push(Section::table("Pins", pinned));
    if actor.role == Role::Admin {
        sections.push(Section::table("Tokens", lists::tokens(&app.farm.list_tokens(actor).await?.tokens)));
    }
    if may_submit(actor) {
        let shares = app.farm.list_shares(actor, v1::ListSharesRequest::default()).await?.shares;
        sections.push(Section::table("Read-only links", lists::shares(&shares)));
    }
    let caches = app.farm.list_caches(actor, v1::ListCachesRequest::default()).await?.caches;
    sections.push(Section::table("Tuning caches", lists::caches(&caches)));
    sections.push(Section::table("Plugins", lists::plugins(&app.farm.list_plugins(actor).await?.plugins)));
    let lead = format!("Planforge {}; you are {} ({}).", info.version, info.actor, info.role);
    Ok(shown("Farm", View { lead, sections, ..View::default() }))
}

/// The blob store: room, damage, and how far it was looked through.
fn storage(app: &App) -> planforge_page::table::Table {
    let mut table = lists::facts("storage", "Storage");
    let bytes = planforge_page::format::bytes;
    let set_aside = app.blobs.quarantined().unwrap_or_default();
    let scrub = app.blobs.scrub_state();
    let facts = [
        ("Room left", app.blobs.available_bytes().map_or_else(|_| "not known".into(), bytes)),
        ("Damaged blobs set aside", set_aside.len().to_string()),
        ("Blobs looked through", format!("{} ({})", scrub.blobs, bytes(scrub.bytes))),
        ("Found damaged since this folder was made", scrub.damaged_total.to_string()),
    ];
    let when = Cell::time((scrub.ended_ms > 0).then(|| planforge_page::format::iso(scrub.ended_ms)));
    table.push("looked", "", [Cell::text("Last whole look through"), when]);
    for (name, value) in facts {
        table.push(name, "", [Cell::text(name), Cell::of([Part::Text(value)])]);
    }
    table
}

fn audit_list(topic: &Topic) -> v1::ListAuditRequest {
    v1::ListAuditRequest {
        actor: topic.get("actor").into(),
        what: topic.get("what").into(),
        project: topic.get("project").into(),
        cursor: topic.get("cursor").into(),
        limit: MAX_ROWS,
        ..Default::default()
    }
}

/// What ended last, and for administrators who did what.
async fn activity(app: &App, actor: &Actor, topic: &Topic) -> Result<Shown, ApiError> {
    let mut sections = Vec::new();
    let mut filters = Vec::new();
    if topic.query.is_empty() {
        let ended = app.farm.list_jobs(actor, ended_list()).await?.jobs;
        sections.push(Section::table("Jobs that ended last", lists::jobs("ended", &ended, false)));
    }
    if actor.role == Role::Admin {
        let reply = app.farm.list_audit(actor, audit_list(topic)).await?;
        let mut table = lists::audit(&reply.records);
        table.more = topic.next(&reply.next_cursor);
        sections.push(Section::table("Audit log", table));
        filters = vec![
            Filter::typed("actor", "Who", topic.get("actor")),
            Filter::typed("what", "Did", topic.get("what")),
            Filter::typed("project", "Project", topic.get("project")),
        ];
    }
    Ok(shown("Activity", View { filters, sections, ..View::default() }))
}

/// What scripts ask for: `coordinator/tests/page.rs` holds it to the routes that there are.
const ROUTES: [(&str, &str); 33] = [
    ("GET /api/v1/info", "who you are to this coordinator, and its version"),
    (
        "GET /api/v1/jobs",
        "jobs: state, id, sku, model, request, tag, project, since_ms, until_ms, sort, reports, limit, cursor",
    ),
    ("POST /api/v1/jobs", "submits models for device kinds, specs and toolchains; Idempotency-Key is heeded"),
    ("GET /api/v1/jobs/{id}", "one job with its attempts and report"),
    ("POST /api/v1/jobs/{id}/cancel", "cancels it, or withdraws the caller's request for it"),
    ("POST /api/v1/jobs/{id}/priority", "how urgent it is while it waits: priority, higher first"),
    ("GET /api/v1/jobs/{id}/log", "its log as text: attempt, offset_bytes, follow"),
    ("GET /api/v1/requests", "requests and how they stand: state, project, since_ms, until_ms, limit, cursor"),
    ("GET /api/v1/events", "what happened to jobs: job, kind, after, project, limit, cursor"),
    ("GET /api/v1/devices", "devices with their fingerprints and telemetry: online"),
    ("GET /api/v1/engines", "engines: model, sku, project, limit, cursor"),
    ("GET /api/v1/engines/find", "the engine of a model, device kind, spec and toolchain, or of a key or plan"),
    ("GET /api/v1/reports", "reports of a plan, engine or job"),
    ("GET /api/v1/caches", "tuning caches: sku"),
    ("POST /api/v1/caches/{scope}/drop", "the next build in the scope begins from nothing"),
    ("GET /api/v1/plugins", "plugin libraries that jobs may load"),
    ("GET /api/v1/projects", "projects with their shares, limits and what they hold"),
    ("GET /api/v1/audit", "who did what: actor, what, project, since_ms, until_ms, limit, cursor"),
    ("POST /api/v1/gc", "takes away what the farm's policy lets go, or tells what that would be (dry_run)"),
    ("GET /api/v1/agents", "agents, those that are away too"),
    ("POST /api/v1/agents/{agent}/drain", "no more leases until it is resumed"),
    ("POST /api/v1/agents/{agent}/resume", "leases again"),
    ("POST /api/v1/agents/{agent}/forget", "what it offered is offered no more"),
    ("GET /api/v1/pins", "pins: who wants which plan kept, and until when"),
    ("POST /api/v1/pins", "wants plans kept"),
    ("POST /api/v1/pins/remove", "takes pins away"),
    ("GET /api/v1/shares", "links for reading a request or a model without a token"),
    ("POST /api/v1/shares", "makes one: request_id or model_digest, ttl_s"),
    ("POST /api/v1/shares/{id}/revoke", "ends one"),
    ("GET /api/v1/declarations", "which engines the repositories of a project say should exist"),
    ("POST /api/v1/declarations", "says it, in place of what the repository said before"),
    ("POST /api/v1/blobs/{hex}/verify", "whether a blob still has the bytes of its digest"),
    ("POST /api/v1/blobs/scrub", "the same for all of them"),
];

fn api() -> Shown {
    let lead = "JSON over HTTP, with a token as 'Authorization: Bearer TOKEN'. Every page here is also JSON at \
                ?format=json, with the same filters and pages.";
    let sections = vec![Section::table("", lists::routes(&ROUTES))];
    shown("API", View { lead: lead.into(), sections, ..View::default() })
}
