//! What reports are held against, where each has a baseline of its own: what jobs of a tag measured, or what a lock names.

use crate::{
    context::Context,
    declared::{engine_of_plan, report_of},
    failure::Failure,
    farm::Farm,
    lists, reports,
    settings::Key,
};
use planforge_fleet::Lock;
use planforge_proto::{ErrorCode, v1};
use planforge_report::{Report, compare::precedent};
use std::collections::BTreeSet;

/// Newest jobs of a tag that are looked at.
const TAGGED_LOOKED_AT: u32 = 1_024;

/// What the jobs of a tag measured.
pub async fn of_tag(context: &Context<'_>, farm: &Farm, tag: &str) -> Result<Vec<Report>, Failure> {
    let request = v1::ListJobsRequest {
        project: context.settings.get(Key::Project).unwrap_or_default().into(),
        tags: vec![tag.to_owned()],
        states: vec![v1::JobState::Succeeded.into()],
        limit: TAGGED_LOOKED_AT,
        ..Default::default()
    };
    let mut found = Vec::new();
    for job in lists::jobs(farm, request).await? {
        // One by one: a report is long, and lists bring their beginning alone.
        let job = farm.rpc().get_job(v1::GetJobRequest { id: job.id }).await.map_err(|e| farm.error(e))?.into_inner();
        found.extend(reports::of_job(&job)?.map(|found| found.report));
    }
    match found.is_empty() {
        false => Ok(found),
        true => Err(Failure::new(ErrorCode::NotFound, format!("no job of the tag {tag} was measured"))
            .hint(format!("planforge jobs --tag {tag} lists them; submit --tag {tag} sets it"))),
    }
}

/// What was measured of the engines that a lock has of the models of `reports`, for their device kinds.
pub async fn of_lock(
    context: &Context<'_>,
    farm: &Farm,
    lock: &Lock,
    reports: &[Report],
) -> Result<Vec<Report>, Failure> {
    // Other weights are another digest; what a lock calls the model does not tell which graph it is.
    let kinds: BTreeSet<&str> = reports.iter().map(|report| report.sku.as_str()).collect();
    let (mut found, mut gone) = (Vec::new(), Vec::new());
    for (id, locked) in lock.cells.iter().filter(|(id, _)| kinds.contains(id.sku.as_str())) {
        match engine_of_plan(context, farm, locked.plan).await?.as_ref().ok().and_then(report_of) {
            Some(report) => found.push(report),
            None => gone.push(id.to_string()),
        }
    }
    if !gone.is_empty() {
        context.printer.warn(&format!("the farm has no measurement of the locked engines of {}", gone.join(", ")));
    }
    match found.is_empty() {
        false => Ok(found),
        true => {
            Err(Failure::new(ErrorCode::NotFound, "the lock names no engine for these device kinds that was measured")
                .hint("planforge diff shows what a lock holds; planforge fetch brings it"))
        }
    }
}

/// Every baseline that counts, then the reports, and what each is held against.
pub fn beside(reports: Vec<Report>, stored: &[Report]) -> (Vec<Report>, Vec<Option<usize>>) {
    let mut bases: Vec<&Report> = Vec::new();
    let of_each: Vec<Option<usize>> = reports
        .iter()
        .map(|report| {
            let found = precedent(report, stored)?;
            let known = bases.iter().position(|base| *base == found);
            Some(known.unwrap_or_else(|| {
                bases.push(found);
                bases.len() - 1
            }))
        })
        .collect();
    let mut all: Vec<Report> = bases.iter().map(|base| (*base).clone()).collect();
    let mut told = vec![None; all.len()];
    told.extend(of_each);
    all.extend(reports);
    (all, told)
}
