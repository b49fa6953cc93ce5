//! Which reports the comparison page is of, and what it says of them.

use super::{
    load::{engine_of, engines_of, invalid, jobs_of_request},
    topic::Topic,
};
use crate::{app::App, auth::Actor};
use planforge_page::{
    comparison, lists,
    view::{Filter, Section, View},
};
use planforge_proto::{ApiError, ErrorCode, v1};
use planforge_report::{
    Report,
    compare::{self, Comparison, MAX_REPORTS, Scheme},
};
use std::collections::BTreeSet;

/// Parts of each difference of steps, where they are asked for.
const STEPS: usize = 10;

/// A comparison, and where its reports are shown; `None`: nothing is named yet.
pub(super) async fn comparison(
    app: &App,
    actor: &Actor,
    topic: &Topic,
) -> Result<Option<(Comparison, Vec<String>)>, ApiError> {
    let named = topic.get("of").split(',').map(str::trim).filter(|name| !name.is_empty());
    let baseline = Some(topic.get("baseline")).filter(|name| !name.is_empty());
    let mut found = Vec::new();
    for name in baseline.into_iter().chain(named) {
        found.push(one(app, actor, name).await?);
        if found.len() > MAX_REPORTS {
            return Err(too_many(found.len()));
        }
    }
    if !topic.get("request").is_empty() {
        let jobs = jobs_of_request(app, actor, topic.get("request")).await?;
        found.extend(jobs.into_iter().map(|job| (format!("/jobs/{}", job.id), job.report_json)));
    }
    if !topic.get("model").is_empty() {
        let mut engines = engines_of(app, actor, topic.get("model")).await?;
        lists::best_first(&mut engines);
        found.extend(engines.into_iter().map(|engine| (format!("/plans/{}", engine.plan_digest), engine.report_json)));
    }
    found.retain(|(_, document)| !document.is_empty());
    if found.len() > MAX_REPORTS {
        return Err(too_many(found.len()));
    }
    if found.is_empty() && topic.query.is_empty() {
        return Ok(None);
    }
    let (mut addresses, mut reports) = (Vec::new(), Vec::new());
    for (href, document) in found {
        let report = Report::parse(document.as_bytes()).map_err(|error| {
            ApiError::new(ErrorCode::Refused, format!("the report of {href}: {error}")).with_hint(error.hint())
        })?;
        addresses.push(href);
        reports.push(report);
    }
    let own = own_engines(app, actor, &reports).await?;
    let scheme = if baseline.is_some() { Scheme::Baseline } else { Scheme::Groups };
    let with_steps = !topic.get("steps").is_empty();
    let compared = tokio::task::spawn_blocking(move || {
        let comparison = compare::compare_among(&reports, &own, scheme)?;
        Ok(if with_steps { comparison.with_layers(&reports) } else { comparison })
    });
    let compared = compared.await.map_err(|error| ApiError::new(ErrorCode::Internal, error.to_string()))?;
    let compared = compared.map_err(|error: compare::CompareError| {
        invalid(error.to_string(), "name jobs or plans with reports, a model, or a request")
    })?;
    Ok(Some((compared, addresses)))
}

fn too_many(count: usize) -> ApiError {
    let message = format!("{count} reports are more than the {MAX_REPORTS} that one page compares");
    invalid(message, "name those that matter, or use planforge compare --baseline")
}

/// The report of a plan, by its digest, on its own device kind, or that of a job.
async fn one(app: &App, actor: &Actor, name: &str) -> Result<(String, String), ApiError> {
    let is_digest = name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let (href, document) = match is_digest {
        true => (format!("/plans/{name}"), engine_of(app, actor, name).await?.report_json),
        false => {
            let job = app.farm.get_job(actor, name).await?;
            (format!("/jobs/{}", job.id), job.report_json)
        }
    };
    if document.is_empty() {
        let message = format!("{} has no report", name.escape_debug());
        return Err(ApiError::new(ErrorCode::NotFound, message).with_hint("compare what has been measured"));
    }
    Ok((href, document))
}

/// Reports of the engines that foreign plans among `reports` are held against.
async fn own_engines(app: &App, actor: &Actor, reports: &[Report]) -> Result<Vec<Report>, ApiError> {
    let keys: BTreeSet<String> =
        reports.iter().filter_map(compare::portability::own_key).map(|key| key.to_string()).collect();
    let mut found = Vec::new();
    for engine_key in keys {
        let request = v1::ListReportsRequest { engine_key, ..Default::default() };
        let listed = app.farm.list_reports(actor, request).await?.reports_json;
        found.extend(listed.iter().filter_map(|document| Report::parse(document.as_bytes()).ok()));
    }
    Ok(found)
}

/// The page, whatever it compares.
pub(super) async fn view(app: &App, actor: &Actor, topic: &Topic, server: &str) -> Result<View, ApiError> {
    let sections: Vec<Section> = match comparison(app, actor, topic).await? {
        Some((compared, addresses)) => comparison::sections(&compared, &addresses, STEPS),
        None => vec![comparison::nothing(server)],
    };
    let filters = vec![
        Filter::typed("of", "Jobs or plans", topic.get("of")),
        Filter::typed("baseline", "Against", topic.get("baseline")),
        Filter::typed("model", "Model", topic.get("model")),
        Filter::typed("request", "Request", topic.get("request")),
        Filter::chosen("steps", "Steps", topic.get("steps"), &["", "differences"]).otherwise("left out"),
    ];
    Ok(View { filters, sections, ..View::default() })
}
