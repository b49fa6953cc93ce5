//! The queue, a job, its clone, and a request.

use super::{ENDED, LIVE, MAX_ROWS, Shown, invalid, kept::Kept, layers_of, may_submit, now_ms, shown, states};
use crate::{
    app::App,
    auth::Actor,
    page::{
        compare, logs,
        topic::{Kind, Topic},
    },
};
use futures::future::try_join3;
use planforge_page::{
    coverage,
    graph::Graph,
    lists,
    parts::{CloneForm, JobAttempts, JobHead, ShareForm},
    progress::Progress,
    report,
    rows::{JobDetail, pretty},
    table::Empty,
    timeline::Timeline,
    view::{Filter, Section, View},
};
use planforge_proto::{
    ApiError, ErrorCode, v1,
    view::{order_from_name, state_from_name},
};
use planforge_report::compare::Comparison;

/// A bar that grows does so in steps: each is an update of the page.
const TIMELINE_STEP_MS: u64 = 10_000;
/// Reports that a request's own page compares; of more the page of comparisons tells.
const COMPARED_AT_ONCE: usize = 24;
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

pub(super) fn job_list(topic: &Topic) -> Result<v1::ListJobsRequest, ApiError> {
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

/// Whether a list has jobs that have not ended.
pub(in crate::page) fn shows_live(topic: &Topic) -> bool {
    let names = || topic.get("state").split(',').map(str::trim).filter(|name| !name.is_empty());
    let ended = |name: &str| name == "ended" || state_from_name(name).is_some_and(|state| ENDED.contains(&state));
    topic.get("sort") != "ended" && (names().count() == 0 || !names().all(ended))
}

/// Of jobs of one page, what runs comes before what waits, and what is served first before what comes later.
fn as_served(jobs: &mut [v1::Job]) {
    jobs.sort_by_key(|job| {
        let runs = matches!(job.state(), v1::JobState::Running | v1::JobState::Leased);
        (!runs, job.jobs_ahead.unwrap_or(u64::MAX), job.created_ms)
    });
}

pub(in crate::page) async fn jobs(app: &App, actor: &Actor, topic: &Topic, kept: &mut Kept) -> Result<Shown, ApiError> {
    let is_queue = topic.get("sort").is_empty();
    // Whoever looks at the queue alone sees what became of what stood there before.
    let with_ended = is_queue && topic.query.is_empty();
    let ended = async {
        match with_ended {
            true => kept.ended(app, actor).await.map(Some),
            false => Ok(None),
        }
    };
    let list = app.farm.list_jobs(actor, job_list(topic)?);
    // Of no use beside what is over.
    let depths = async {
        match shows_live(topic) {
            true => app.farm.queue_depths(actor).await.map(Some),
            false => Ok(None),
        }
    };
    let (reply, depths, ended) = try_join3(list, depths, ended).await?;
    let mut found = reply.jobs;
    if is_queue {
        as_served(&mut found);
    }
    let mut table = lists::jobs("jobs", &found, may_submit(actor));
    table.more = topic.next(&reply.next_cursor);
    let plus = if reply.more_than_total { " or more" } else { "" };
    let total = planforge_page::format::grouped(reply.total);
    table.notes.push(format!("{} of {total}{plus}", found.len()));
    if with_ended {
        table.empty = Empty::new("The queue is empty.");
    }
    let queue = depths.map(|depths| Section::table("Queue by device kind", lists::depths(&depths)));
    let mut sections: Vec<Section> = queue.into_iter().chain([Section::table("Jobs", table)]).collect();
    sections.extend(ended.map(|ended| Section::table("Ended last", lists::jobs("ended", &ended, false))));
    let view = View {
        filters: vec![
            Filter::typed("model", "Model", topic.get("model")),
            Filter::typed("sku", "SKU", topic.get("sku")),
            Filter::chosen("state", "State", topic.get("state"), &STATES),
            Filter::typed("tag", "Tags", topic.get("tag")),
            Filter::typed("project", "Project", topic.get("project")),
            Filter::chosen("sort", "Order", topic.get("sort"), &["", "newest", "oldest", "ended"])
                .otherwise("as served"),
        ],
        sections,
        ..View::default()
    };
    Ok(shown("Jobs", view))
}

pub(super) async fn job(app: &App, actor: &Actor, topic: &Topic, server: &str) -> Result<Shown, ApiError> {
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
    let asked = layers_of(|name| topic.query.get(name).cloned(), format!("/jobs/{}", job.id))?;
    let mut sections =
        vec![Section::html("", "job-head", &JobHead { job: detail.clone(), may_act: may_submit(actor) })];
    sections.extend(report::sections(detail.clone(), &job.report_json, &[], &asked));
    sections.push(Section::html("", "job-attempts", &JobAttempts { job: detail }));
    sections.push(Section::html("", "timeline", &timeline));
    sections.push(log);
    sections.push(Section::table("History", history));
    Ok(Shown { title, view: View { above: Some(("/jobs".into(), "Jobs")), sections, ..View::default() } })
}

/// What a job was submitted as, to be changed and submitted again.
pub(super) async fn clone(app: &App, actor: &Actor, topic: &Topic) -> Result<Shown, ApiError> {
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
        is_build: !matches!(job.kind(), v1::JobKind::Benchmark | v1::JobKind::Prepare),
        id: job.id.clone(),
    };
    let above = Some((format!("/jobs/{}", job.id), "The job"));
    let sections = vec![Section::fixed("clone", &form)];
    Ok(shown("Clone a job", View { above, sections, ..View::default() }))
}

pub(in crate::page) async fn jobs_of_request(app: &App, actor: &Actor, id: &str) -> Result<Vec<v1::Job>, ApiError> {
    let request = v1::ListJobsRequest { request_id: id.to_owned(), with_reports: true, ..Default::default() };
    let jobs = app.farm.list_jobs(actor, request).await?.jobs;
    match jobs.is_empty() {
        true => Err(ApiError::new(ErrorCode::NotFound, "no request has this id")),
        false => Ok(jobs),
    }
}

pub(super) async fn request(app: &App, actor: &Actor, topic: &Topic) -> Result<Shown, ApiError> {
    let jobs = jobs_of_request(app, actor, &topic.of).await?;
    let progress = Progress::of(&jobs);
    let measured = jobs.iter().filter(|job| !job.report_json.is_empty()).count();
    let mut sections = vec![Section::html("", "progress", &progress)];
    sections.extend(Graph::of(&jobs).map(|graph| Section::html("What needs what", "graph", &graph)));
    sections.push(Section::table("Models by device kind", coverage::of_request(&jobs)));
    if progress.is_done() && (2..=COMPARED_AT_ONCE).contains(&measured) {
        sections.extend(compared_now(app, actor, &topic.of).await);
    }
    let table = lists::jobs("jobs", &jobs, may_submit(actor)).without_empty(&["Now", "Do"]);
    sections.push(Section::table("Jobs", table));
    if may_submit(actor) {
        sections.push(Section::fixed("share", &ShareForm { what: "request", of: topic.of.clone() }));
    }
    let links = compared(measured, "request", &topic.of);
    let view = View { links, above: Some(("/jobs".into(), "Jobs")), sections, ..View::default() };
    Ok(shown(&format!("Request {}", topic.of), view))
}

/// How the reports of a request that is done stand to each other; nothing where they cannot be compared, which the page of
/// comparisons says.
async fn compared_now(app: &App, actor: &Actor, request: &str) -> Vec<Section> {
    let compared = of_request(app, actor, request).await;
    compared
        .map(|(compared, addresses)| planforge_page::comparison::sections(&compared, &addresses, 0))
        .unwrap_or_default()
}

/// The comparison of a request's reports, with where each is shown.
pub(super) async fn of_request(app: &App, actor: &Actor, request: &str) -> Option<(Comparison, Vec<String>)> {
    let query = [("request".to_owned(), request.to_owned())].into();
    let topic = Topic { kind: Kind::Compare, of: String::new(), query };
    let compared = compare::comparison(app, actor, &topic).await;
    compared.inspect_err(|error| tracing::debug!(%error, "a request's reports are not compared")).ok().flatten()
}

/// Where reports are held against each other, when there are several.
pub(super) fn compared(reports: usize, what: &str, of: &str) -> Vec<(String, &'static str)> {
    if reports < 2 { Vec::new() } else { vec![(format!("/compare?{what}={of}"), "Compare its reports")] }
}
