//! Engines, one of them, and a model.

use super::{MAX_KNOWN, MAX_ROWS, Shown, jobs::compared, layers_of, may_submit, shown};
use crate::{app::App, auth::Actor, page::topic::Topic};
use planforge_page::{
    format::is_digest,
    history, lists,
    parts::{JobHead, ShareForm},
    report,
    rows::JobDetail,
    view::{Filter, Section, View},
};
use planforge_proto::{ApiError, ErrorCode, v1};
use planforge_report::Report;

/// Reports of other engines that advice is held against.
const OTHERS: usize = 8;
/// Other engines of a model that an engine's page lists.
const OTHERS_SHOWN: usize = 20;
/// Other engines that an engine's page knows.
const MAX_ALIKE: u32 = 200;
/// Builds that a page's history is told from.
const MAX_BUILDS: u32 = 1_000;

pub(super) fn engine_list(topic: &Topic) -> v1::ListEnginesRequest {
    v1::ListEnginesRequest {
        model: topic.get("model").into(),
        sku: topic.get("sku").into(),
        project: topic.get("project").into(),
        cursor: topic.get("cursor").into(),
        limit: MAX_ROWS,
        with_total: true,
        brief_reports: false,
    }
}

pub(super) async fn engines(app: &App, actor: &Actor, topic: &Topic, server: &str) -> Result<Shown, ApiError> {
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

pub(in crate::page) async fn engine_of(app: &App, actor: &Actor, plan: &str) -> Result<v1::Engine, ApiError> {
    let request = v1::FindEngineRequest { plan_digest: plan.into(), allow_inaccurate: true, ..Default::default() };
    app.farm.find_engine(actor, request).await
}

pub(super) fn pins_of(plan: &str) -> v1::ListPinsRequest {
    v1::ListPinsRequest { plan_digest: plan.into(), ..Default::default() }
}

/// An engine: what it is, its report, and where else it was measured.
pub(super) async fn plan(app: &App, actor: &Actor, topic: &Topic, server: &str) -> Result<Shown, ApiError> {
    let engine = engine_of(app, actor, &topic.of).await?;
    let request = v1::ListReportsRequest { plan_digest: engine.plan_digest.clone(), ..Default::default() };
    let reports = app.farm.list_reports(actor, request).await?;
    let pins = app.farm.list_pins(actor, pins_of(&engine.plan_digest)).await?.pins;
    let asked = layers_of(|name| topic.query.get(name).cloned(), format!("/plans/{}", engine.plan_digest))?;
    let alike = alike(app, actor, &engine).await?;
    let model = engine.model.as_ref().map(|model| model.digest.as_str()).unwrap_or_default();
    let is_other = |other: &&v1::Engine| {
        other.plan_digest != engine.plan_digest
            && other.model.as_ref().is_some_and(|of| of.digest == model && !model.is_empty())
    };
    let others: Vec<v1::Engine> = alike.iter().filter(is_other).cloned().collect();
    let detail = JobDetail::of_engine(&engine, server);
    let title = format!("{} on {}", detail.row.model, detail.row.sku);
    let mut sections = vec![Section::html("", "job-head", &JobHead { job: detail.clone(), may_act: false })];
    sections.extend(report::sections(detail, &engine.report_json, &held_against(&engine, &others), &asked));
    if let Some(line) = history::line_of(&builds_like(app, actor, &engine).await?, &engine) {
        sections.push(Section::html("History", "history", &history::Lines::of("history", &[line], true)));
    }
    sections.push(Section::table("Where it was measured", lists::reports(&reports.facts, &reports.reports_json)));
    if !others.is_empty() {
        let more = format!("/engines?model={model}");
        sections.push(Section::table(
            "Other engines of this model",
            lists::engines_in_part(others, OTHERS_SHOWN, more, server),
        ));
    }
    if !pins.is_empty() {
        sections.push(Section::table("Pins", lists::pins(&pins, None).without("Do")));
    }
    Ok(Shown { title, view: View { above: Some(("/engines".into(), "Engines")), sections, ..View::default() } })
}

/// What an engine's model is asked for by.
fn named(engine: &v1::Engine) -> String {
    let model = engine.model.as_ref().map(|model| match model.name.as_str() {
        "" => model.digest.clone(),
        name => name.to_owned(),
    });
    model.unwrap_or_default()
}

/// Engines of the same model by its name, whatever its weights.
pub(super) async fn alike(app: &App, actor: &Actor, engine: &v1::Engine) -> Result<Vec<v1::Engine>, ApiError> {
    let request = v1::ListEnginesRequest { model: named(engine), limit: MAX_ALIKE, ..Default::default() };
    Ok(app.farm.list_engines(actor, request).await?.engines)
}

/// Builds of a model on device kinds, on one where it is named: what histories are told from.
pub(in crate::page) async fn builds_of(
    app: &App,
    actor: &Actor,
    model: &str,
    sku: &str,
) -> Result<Vec<v1::HistoryLine>, ApiError> {
    let request =
        v1::GetHistoryRequest { model: model.into(), sku: sku.into(), limit: MAX_BUILDS, ..Default::default() };
    Ok(app.farm.get_history(actor, request).await?.lines)
}

/// Builds of the engine's model on its device kind.
pub(super) async fn builds_like(
    app: &App,
    actor: &Actor,
    engine: &v1::Engine,
) -> Result<Vec<v1::HistoryLine>, ApiError> {
    match named(engine).as_str() {
        "" => Ok(Vec::new()),
        model => builds_of(app, actor, model, &engine.sku).await,
    }
}

/// Reports that advice on an engine is held against: of its model on its device kind.
fn held_against(engine: &v1::Engine, others: &[v1::Engine]) -> Vec<Report> {
    let alike = others.iter().filter(|other| other.sku == engine.sku);
    alike.take(OTHERS).filter_map(|other| Report::parse(other.report_json.as_bytes()).ok()).collect()
}

pub(in crate::page) async fn engines_of(app: &App, actor: &Actor, model: &str) -> Result<Vec<v1::Engine>, ApiError> {
    let request = v1::ListEnginesRequest { model: model.into(), limit: MAX_KNOWN, ..Default::default() };
    let engines = app.farm.list_engines(actor, request).await?.engines;
    match engines.is_empty() {
        true => Err(ApiError::new(ErrorCode::NotFound, "the farm has no engine of this model")),
        false => Ok(engines),
    }
}

pub(super) fn jobs_of_model(model: &str) -> v1::ListJobsRequest {
    v1::ListJobsRequest { model: model.into(), limit: MAX_ROWS / 2, with_reports: true, ..Default::default() }
}

/// A model: its engines by device kind, the fastest first.
pub(super) async fn model(app: &App, actor: &Actor, topic: &Topic, server: &str) -> Result<Shown, ApiError> {
    let mut engines = engines_of(app, actor, &topic.of).await?;
    lists::best_first(&mut engines);
    let name = engines.first().and_then(|engine| engine.model.as_ref()).map(|model| model.name.clone());
    let name = name.filter(|name| !name.is_empty()).unwrap_or_else(|| topic.of.clone());
    let jobs = app.farm.list_jobs(actor, jobs_of_model(&topic.of)).await?.jobs;
    let lines = history::lines(&builds_of(app, actor, &topic.of, "").await?);
    let measured = engines.iter().filter(|engine| !engine.report_json.is_empty()).count();
    let more = format!("/engines?model={}", topic.of);
    let table = lists::engines_in_part(engines, MAX_ROWS as usize, more, server);
    let mut sections = vec![Section::table("Engines, the fastest of each device kind first", table)];
    if !lines.is_empty() {
        sections.push(Section::html("History", "history", &history::Lines::of("history", &lines, true)));
    }
    let jobs = lists::jobs("jobs", &jobs, may_submit(actor)).without_empty(&["Do"]);
    sections.push(Section::table("Jobs", jobs));
    if may_submit(actor) && is_digest(&topic.of) {
        sections.push(Section::fixed("share", &ShareForm { what: "model", of: topic.of.clone() }));
    }
    let lead = format!("sha256:{}", topic.of);
    let links = compared(measured, "model", &topic.of);
    Ok(shown(&name, View { lead, links, above: Some(("/engines".into(), "Engines")), sections, ..View::default() }))
}
