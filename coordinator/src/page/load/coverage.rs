//! Coverage, the first page.

use super::{LIVE, MAX_KNOWN, MAX_ROWS, Shown, activity::ended_list, invalid, shown, states};
use crate::{app::App, auth::Actor, farm::LiveCounts, page::topic::Topic};
use planforge_page::{
    coverage::{self, By, Known},
    lists,
    parts::Counts,
    view::{Filter, Section, View},
};
use planforge_proto::{ApiError, v1};

pub(super) fn by(topic: &Topic) -> Result<By, ApiError> {
    match topic.get("by") {
        "" | "model" => Ok(By::Model),
        "spec" => Ok(By::Spec),
        "toolchain" => Ok(By::Toolchain),
        other => Err(invalid(format!("'{}' tells no rows apart", other.escape_debug()), "by is spec or toolchain")),
    }
}

/// What coverage is told from: of one model or device kind, where one is named.
pub(super) async fn known(app: &App, actor: &Actor, topic: &Topic) -> Result<Known, ApiError> {
    // `a100-*` is a family of device kinds: what is read of all of them is narrowed here.
    let (model, asked) = (topic.get("model").to_owned(), topic.get("sku").to_owned());
    let family = asked.strip_suffix('*').map(str::to_owned);
    let sku = if family.is_some() { String::new() } else { asked };
    let is_of_family = |sku: &str| family.as_ref().is_none_or(|family| sku.starts_with(family.as_str()));
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
            && is_of_family(&cell.sku)
            && (model.is_empty() || cell.model == model || cell.model_digest.starts_with(&model))
    };
    declarations.iter_mut().for_each(|declaration: &mut v1::Declaration| declaration.cells.retain(is_asked));
    let is_cut = !engines.next_cursor.is_empty() || !live.next_cursor.is_empty() || !cursor.is_empty();
    let mut known = Known { declarations, engines: engines.engines, live: live.jobs, failed: failed.jobs, is_cut };
    known.engines.retain(|engine| is_of_family(&engine.sku));
    known.live.retain(|job| is_of_family(&job.sku));
    known.failed.retain(|job| is_of_family(&job.sku));
    Ok(known)
}

/// How much there is of everything.
pub(super) async fn counts(app: &App, actor: &Actor) -> Result<Counts, ApiError> {
    let ended = app.farm.list_jobs(actor, ended_list()).await?.jobs;
    let devices = app.farm.list_devices(actor, v1::ListDevicesRequest::default()).await?.devices;
    let LiveCounts { running, waiting } = app.farm.live_counts(actor).await?;
    let count = v1::ListEnginesRequest { limit: 1, with_total: true, ..Default::default() };
    let engines = app.farm.list_engines(actor, count).await?;
    let plus = if engines.more_than_total { "+" } else { "" };
    Ok(Counts {
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
    })
}

pub(super) async fn home(app: &App, actor: &Actor, topic: &Topic, server: &str) -> Result<Shown, ApiError> {
    let known = known(app, actor, topic).await?;
    let slots = coverage::slots(&known, by(topic)?);
    let counts = counts(app, actor).await?;
    let asked = coverage::Asked { from: topic.number("from")?, address: topic.without("from").address() };
    let mut sections = vec![
        Section::html("", "counts", &counts),
        Section::table("Models by device kind", coverage::table(&slots, known.is_cut, server, &asked)),
    ];
    let (projects, unseen) = app.farm.busy_projects(actor).await?;
    sections.extend(lists::projects(&projects, unseen).map(|table| Section::table("Projects", table)));
    let view = View {
        heading_is_hidden: true,
        above_filters: 1,
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
