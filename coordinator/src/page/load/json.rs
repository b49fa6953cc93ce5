//! The same lists, with the same filters and pages, as JSON.

use super::{
    activity::{ROUTES, audit_list, ended_list},
    coverage::{Covered, counts, covered_now},
    engines::{alike, builds_like, builds_of, engine_list, engine_of, engines_of, jobs_of_model, pins_of},
    farm::{days_of, kept, lately, storage, stored, versions},
    jobs::{job_list, jobs_of_request, of_request},
    layers_of, may_submit,
};
use crate::{
    app::App,
    auth::{Actor, Role},
    page::{
        logs,
        topic::{Kind, Topic},
    },
};
use planforge_page::{coverage, history, layers, progress::Progress, reading::Reading, search::Line, table::Table};
use planforge_proto::{
    ApiError, v1,
    view::{
        AgentView, AuditView, CacheView, DeviceView, EngineView, JobView, PauseView, PinView, PluginView, ProjectView,
        ShareView,
    },
};
use serde::Serialize;
use serde_json::{Value, json};

fn views<T, V: From<T> + Serialize>(items: Vec<T>) -> Vec<V> {
    items.into_iter().map(V::from).collect()
}

/// The same lists, with the same filters and pages, as JSON.
pub(in crate::page) async fn json(app: &App, actor: &Actor, topic: &Topic) -> Result<Value, ApiError> {
    let cursor = |cursor: String| Some(cursor).filter(|cursor| !cursor.is_empty());
    Ok(match topic.kind {
        Kind::Home => {
            let Covered { window, slots, is_cut, .. } = covered_now(app, actor, topic).await?;
            let (projects, more_projects) = app.farm.busy_projects(actor).await?;
            json!({
                "coverage": slots, "models": window.count, "from": window.from, "next_from": window.next(),
                "more": is_cut || window.next().is_some(),
                "counts": counts(app, actor).await?,
                "projects": views::<_, ProjectView>(projects), "more_projects": more_projects,
            })
        }
        Kind::Jobs => {
            let reply = app.farm.list_jobs(actor, job_list(topic)?).await?;
            let (total, more_than_total) = (reply.total, reply.more_than_total);
            let (next_cursor, jobs) = (cursor(reply.next_cursor), views::<_, JobView>(reply.jobs));
            let ended = app.farm.list_jobs(actor, ended_list()).await?.jobs;
            json!({
                "jobs": jobs, "next_cursor": next_cursor, "total": total, "more_than_total": more_than_total,
                "depths": app.farm.queue_depths(actor).await?, "ended": views::<_, JobView>(ended),
            })
        }
        Kind::Job => {
            let job: JobView = app.farm.get_job(actor, &topic.of).await?.into();
            let job = serde_json::to_value(job).unwrap_or_default();
            let layers = layers(topic, &job["report"])?;
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
            json!({
                "job": job, "layers": layers, "history": events.iter().map(event).collect::<Vec<_>>(), "log": found,
            })
        }
        Kind::Clone => json!({ "job": JobView::from(app.farm.get_job(actor, &topic.of).await?) }),
        Kind::Request => {
            let jobs = jobs_of_request(app, actor, &topic.of).await?;
            let comparison = match jobs.iter().filter(|job| !job.report_json.is_empty()).count() {
                0 | 1 => None,
                _ => of_request(app, actor, &topic.of).await,
            };
            json!({
                "request_id": topic.of, "progress": Progress::of(&jobs), "coverage": coverage::slots_of_request(&jobs),
                "jobs": views::<_, JobView>(jobs), "comparison": comparison.map(|(comparison, _)| comparison),
            })
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
            let request = v1::ListReportsRequest { plan_digest: engine.plan_digest.clone(), ..Default::default() };
            let reports = app.farm.list_reports(actor, request).await?;
            let report = |json: &String| serde_json::from_str::<Value>(json).unwrap_or_default();
            let reports: Vec<Value> = reports.reports_json.iter().map(report).collect();
            let alike = alike(app, actor, &engine).await?;
            let history = history::line_of(&builds_like(app, actor, &engine).await?, &engine);
            let engine = serde_json::to_value(EngineView::from(engine)).unwrap_or_default();
            json!({
                "layers": layers(topic, &engine["report"])?, "engine": engine, "reports": reports, "history": history,
                "engines": views::<_, EngineView>(alike), "pins": views::<_, PinView>(pins),
            })
        }
        Kind::Model => {
            let engines = engines_of(app, actor, &topic.of).await?;
            let jobs = app.farm.list_jobs(actor, jobs_of_model(&topic.of)).await?.jobs;
            let history = history::lines(&builds_of(app, actor, &topic.of, "").await?);
            json!({
                "history": history, "engines": views::<_, EngineView>(engines),
                "jobs": views::<_, JobView>(jobs),
            })
        }
        Kind::Compare => {
            let compared = crate::page::compare::comparison(app, actor, topic).await?;
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
            let pauses = app.farm.list_pauses(actor).await?.pauses;
            let (counted, heaps) = stored(app, actor).await?;
            let shares = match may_submit(actor) {
                true => app.farm.list_shares(actor, v1::ListSharesRequest::default()).await?.shares,
                false => Vec::new(),
            };
            let tokens = match actor.role {
                Role::Admin => app.farm.list_tokens(actor).await?.tokens,
                _ => Vec::new(),
            };
            let audit = match actor.role {
                Role::Admin => app.farm.list_audit(actor, lately()).await?.records,
                _ => Vec::new(),
            };
            let (store, kept) = match actor.is_farm_admin() {
                true => (table(&storage(app)), table(&kept(app))),
                false => Default::default(),
            };
            json!({
                "storage": store, "kept": kept, "tokens": tokens.iter().map(token).collect::<Vec<_>>(),
                "audit": views::<_, AuditView>(audit), "versions": table(&versions(app, actor).await?),
                "stored": heaps, "stored_counted_ms": counted,
                "shares": views::<_, ShareView>(shares),
                "projects": views::<_, ProjectView>(projects.projects), "more_projects": more_projects, "pins": views::<_, PinView>(pins.pins),
                "caches": views::<_, CacheView>(caches), "plugins": views::<_, PluginView>(plugins),
                "pauses": views::<_, PauseView>(pauses),
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

/// A token without anything that it could be used by.
fn token(token: &v1::Token) -> Value {
    json!({
        "id": token.id, "name": token.name, "role": token.role, "project": token.project, "agent": token.agent_name,
        "created_ms": token.created_ms, "last_used_ms": token.last_used_ms, "expires_ms": token.expires_ms,
        "revoked": token.revoked,
    })
}

/// The layers of a report, as the page sorts them; all of them.
fn layers(topic: &Topic, report: &Value) -> Result<Value, ApiError> {
    let asked = layers_of(|name| topic.query.get(name).cloned(), String::new())?;
    if report.is_null() {
        return Ok(json!([]));
    }
    let reading = Reading::of(&report.to_string());
    Ok(json!(layers::told(&reading, &asked)))
}

/// A table of facts, which has no other form: a row an object, by the names of its columns.
fn table(table: &Table) -> Value {
    let names: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
    let row = |row: &planforge_page::table::Row| -> Value {
        let cells = names.iter().zip(&row.cells).map(|(name, cell)| (name.to_lowercase(), json!(cell.words())));
        Value::Object(cells.collect())
    };
    table.rows.iter().map(row).collect()
}
