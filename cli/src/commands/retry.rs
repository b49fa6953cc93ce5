//! `planforge retry`: the failed jobs of a request once more, those that were skipped for them, and whatever of what those
//! need did not succeed either; nothing else of it.

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    lists,
    request::{self, LocalFiles},
    settings::Key,
    tables,
    wait::{self, Patience, Waiting},
};
use planforge_proto::{ErrorCode, v1, view::JobView};
use std::collections::BTreeMap;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Request whose failed and skipped jobs are tried again, as `submit --json` and `jobs --json` name it
    request: String,
    /// Wait until the jobs have ended
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    patience: Patience,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    if args.patience.timeout.is_some() && !args.wait {
        return Err(Failure::usage("--timeout is about waiting").hint("add --wait"));
    }
    let need = if args.wait { Need::Work } else { Need::Lasting };
    Farm::with(context, need, async |farm| retry(context, farm, &args).await).await
}

async fn retry(context: &Context<'_>, farm: &Farm, args: &Args) -> Result<(), Failure> {
    let request = v1::ListJobsRequest {
        project: context.settings.get(Key::Project).unwrap_or_default().into(),
        request_id: args.request.clone(),
        states: vec![v1::JobState::Failed.into(), v1::JobState::Skipped.into()],
        limit: u32::MAX,
        ..Default::default()
    };
    let mut failed = lists::jobs(farm, request).await?;
    lists::complete(farm, &mut failed).await?;
    failed.reverse();
    if failed.is_empty() {
        context.printer.note(&format!("no job of request {} failed or was skipped", args.request));
        return context.printer.object(&serde_json::json!({ "request_ids": [], "jobs": [] }));
    }
    let (mut request_ids, mut jobs) = (Vec::new(), Vec::new());
    let mut instead: BTreeMap<String, String> = BTreeMap::new();
    for job in with_what_they_need(farm, failed).await? {
        let mut request = again(&job)?;
        request.needs = job.needed.iter().map(|need| instead.get(need).unwrap_or(need).clone()).collect();
        let reply = request::submit(context, farm, &request, &LocalFiles::new()).await?;
        request_ids.push(reply.request_id);
        instead.extend(reply.jobs.first().map(|new| (job.id, new.id.clone())));
        jobs.extend(reply.jobs);
    }
    let ids: Vec<String> = jobs.iter().map(|job| job.id.clone()).collect();
    if args.wait {
        jobs = Waiting::new(context.printer, &jobs).finish(farm, &ids, args.patience).await?;
    }
    context.printer.data(&tables::jobs(&jobs, tables::now_ms()))?;
    let succeeded = !args.wait || wait::tell_failures(context.printer, &jobs);
    if !args.wait {
        context.printer.note(&format!("follow with: planforge watch {}", ids.join(" ")));
    }
    let jobs: Vec<_> = jobs.into_iter().map(JobView::from).collect();
    context.printer.object(&serde_json::json!({ "request_ids": request_ids, "jobs": jobs }))?;
    if succeeded { Ok(()) } else { Err(Failure::jobs_failed()) }
}

/// `jobs` and all that they need, by whatever way, that ended without success; each behind what it needs.
async fn with_what_they_need(farm: &Farm, jobs: Vec<v1::Job>) -> Result<Vec<v1::Job>, Failure> {
    let mut found: BTreeMap<String, v1::Job> = BTreeMap::new();
    let (mut order, mut open): (Vec<String>, Vec<v1::Job>) = (Vec::new(), jobs);
    while let Some(job) = open.pop() {
        if found.contains_key(&job.id) {
            continue;
        }
        for need in job.needed.iter().filter(|need| !found.contains_key(*need)) {
            let needed = farm.rpc().get_job(v1::GetJobRequest { id: need.clone() }).await;
            let needed = needed.map_err(|error| farm.error(error))?.into_inner();
            let ended = [v1::JobState::Failed, v1::JobState::Cancelled, v1::JobState::Skipped];
            open.extend(Some(needed).filter(|needed| ended.contains(&needed.state())));
        }
        order.push(job.id.clone());
        found.insert(job.id.clone(), job);
    }
    // A job needs only what was there before it.
    let mut sorted = Vec::with_capacity(order.len());
    while !found.is_empty() {
        let before = found.len();
        for id in &order {
            let is_ready = |job: &v1::Job| job.needed.iter().all(|need| !found.contains_key(need));
            if found.get(id).is_some_and(is_ready) {
                sorted.extend(found.remove(id));
            }
        }
        if found.len() == before {
            return Err(Failure::new(ErrorCode::Internal, "the coordinator names jobs that need each other"));
        }
    }
    Ok(sorted)
}

/// What `job` asked for, asked again.
fn again(job: &v1::Job) -> Result<v1::SubmitRequest, Failure> {
    let model = job.model.clone().ok_or_else(|| {
        Failure::new(ErrorCode::Internal, format!("the coordinator names no model of job {}", job.id))
    })?;
    let measures = job.kind() == v1::JobKind::Benchmark;
    let prepares = job.kind() == v1::JobKind::Prepare;
    // A model that was prepared is built as it is: the job that made it is among what is needed.
    let preparation = job.preparation.as_ref().filter(|from| prepares || from.document_digest.is_empty());
    // A canary is one once more, so that what needs it waits for its gate as before.
    let canary = (!job.canary_plan.is_empty())
        .then(|| v1::Canary { plan_digest: job.canary_plan.clone(), slower_percent: job.canary_slower_percent });
    // What failed for good is remembered and would be the answer; anything else is merged with whoever asks for the same.
    let remembered = job.failure.as_ref().is_some_and(|failure| failure.class() == v1::FailureClass::Model);
    Ok(v1::SubmitRequest {
        idempotency_key: ulid::Ulid::generate().to_string(),
        project: job.project.clone(),
        models: if measures { Vec::new() } else { vec![model] },
        skus: if prepares { Vec::new() } else { vec![job.sku.clone()] },
        specs_json: if measures || prepares { Vec::new() } else { vec![job.spec_json.clone()] },
        calibrates: preparation.filter(|of| of.as_calibration).map(|_| 0).into_iter().collect(),
        prepares_json: preparation.map(|preparation| preparation.ask_json.clone()).into_iter().collect(),
        toolchains: Some(job.toolchain_constraint.clone())
            .filter(|text| !text.is_empty() && !measures)
            .into_iter()
            .collect(),
        priority: job.priority,
        force: remembered && !measures,
        allow_inaccurate: job.allow_inaccurate,
        eval_digest: job.eval_digest.clone(),
        kind: job.kind,
        plan_digest: if measures { job.plan_digest.clone() } else { String::new() },
        builds: job.builds,
        measure: job.measure.clone(),
        no_fallback: job.no_fallback,
        requires: job.requires.clone(),
        tags: job.tags.clone(),
        canary,
        ..Default::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(class: v1::FailureClass) -> v1::Job {
        v1::Job {
            model: Some(v1::Model::default()),
            sku: "t4".into(),
            kind: v1::JobKind::Build.into(),
            spec_json: "{}".into(),
            toolchain_constraint: "tensorrt<11".into(),
            failure: Some(v1::Failure { class: class.into(), ..Default::default() }),
            ..Default::default()
        }
    }

    #[test]
    fn only_what_is_remembered_is_forced() {
        let model = again(&failed(v1::FailureClass::Model)).unwrap();
        let lost = again(&failed(v1::FailureClass::Infrastructure)).unwrap();
        assert!(model.force && !lost.force);
        assert_eq!((lost.skus, lost.toolchains), (vec!["t4".to_owned()], vec!["tensorrt<11".to_owned()]));
        let mut benchmark = failed(v1::FailureClass::Model);
        benchmark.set_kind(v1::JobKind::Benchmark);
        benchmark.plan_digest = "ab".into();
        let benchmark = again(&benchmark).unwrap();
        assert!(!benchmark.force && benchmark.models.is_empty() && benchmark.plan_digest == "ab");
    }

    #[test]
    fn a_canary_is_one_again() {
        let mut canary = failed(v1::FailureClass::Unstable);
        (canary.canary_plan, canary.canary_slower_percent) = ("ab".into(), 3.0);
        canary.tags = vec!["refresh".into()];
        let again = again(&canary).unwrap();
        assert_eq!(again.canary, Some(v1::Canary { plan_digest: "ab".into(), slower_percent: 3.0 }));
        assert_eq!(again.tags, ["refresh"], "the schedule finds it as it found the first");
        assert_eq!(super::again(&failed(v1::FailureClass::Infrastructure)).unwrap().canary, None);
    }
}
