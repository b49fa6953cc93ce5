//! `planforge submit`: jobs that go on without this command.

use super::dry_run::dry_run;
use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    request::{self, LocalFiles, RequestArgs, extras::Attached, models},
    signals, tables,
    wait::{self, Waiting},
};
use planforge_proto::{ErrorCode, v1, view::JobView};
use planforge_types::BuildSpec;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// ONNX files
    #[arg(value_name = "MODEL", required_unless_present = "clone")]
    models: Vec<PathBuf>,
    #[command(flatten)]
    request: RequestArgs,
    /// Submit what this job asked for again; every flag given overrides its part
    #[arg(long, value_name = "JOB")]
    clone: Option<String>,
    /// Wait until the jobs have ended
    #[arg(long)]
    wait: bool,
    /// Show what would be submitted and what is stored already; submit nothing
    #[arg(long, conflicts_with = "wait")]
    dry_run: bool,
    /// Keep combinations that no known device can run until one can
    #[arg(long)]
    wait_for_device: bool,
    /// Resolve the toolchain again when the exact one is no longer offered
    #[arg(long)]
    follow_toolchain: bool,
}

pub fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let mut found = Vec::new();
    for path in &args.models {
        found.push(models::identify(&context.settings, path)?);
    }
    request::check_inputs(&args.request, &args.models, &BuildSpec::default())?;
    let attached = args.request.attached()?;
    context.block_on(Farm::with(context, Need::Lasting, async |farm| {
        let mut files = LocalFiles::new();
        let mut named = Vec::new();
        for local in found {
            files.extend(local.files);
            named.push(local.model);
        }
        let mut request = match &args.clone {
            Some(id) => from_template(context, farm, &args, id, named, &attached).await?,
            None => {
                let skus = args.request.skus(context)?;
                request::assemble(context, &args.request, named, skus, &BuildSpec::default(), &attached)?
            }
        };
        files.extend(attached.files);
        request.wait_for_device = args.wait_for_device;
        request.follow_toolchain = args.follow_toolchain;
        if request.skus.is_empty() {
            request.skus = request::skus_of_this_host(farm).await?;
        }
        if args.dry_run {
            dry_run(context, farm, &request, &files).await
        } else {
            submit(context, farm, &request, &files, args.wait).await
        }
    }))
}

/// An earlier job as the template of a request.
async fn from_template(
    context: &Context<'_>,
    farm: &Farm,
    args: &Args,
    id: &str,
    named: Vec<v1::Model>,
    attached: &Attached,
) -> Result<v1::SubmitRequest, Failure> {
    let job = farm.rpc().get_job(v1::GetJobRequest { id: id.to_owned() }).await;
    let job = job.map_err(|e| farm.error(e))?.into_inner();
    let base: BuildSpec = serde_json::from_str(&job.spec_json).map_err(|e| {
        Failure::new(ErrorCode::Internal, format!("the build spec of job {} cannot be read: {e}", job.id))
    })?;
    let models = if named.is_empty() { job.model.into_iter().collect() } else { named };
    // Not the settings' SKUs: a clone repeats its template, and only flags override it.
    let skus = if args.request.skus.is_empty() { vec![job.sku] } else { args.request.skus(context)? };
    let mut request = request::assemble(context, &args.request, models, skus, &base, attached)?;
    if request.toolchains.is_empty() && !job.toolchain_constraint.is_empty() {
        request.toolchains.push(job.toolchain_constraint);
    }
    if request.project.is_empty() {
        request.project = job.project;
    }
    request.priority = args.request.priority.unwrap_or(job.priority);
    if attached.eval.is_none() {
        request.eval_digest = job.eval_digest;
    }
    request.builds = args.request.extra.builds.unwrap_or(job.builds);
    request.measure = request.measure.or(job.measure);
    Ok(request)
}

async fn submit(
    context: &Context<'_>,
    farm: &Farm,
    request: &v1::SubmitRequest,
    files: &LocalFiles,
    wait: bool,
) -> Result<(), Failure> {
    let reply = request::submit(context, farm, request, files).await?;
    let ids: Vec<_> = reply.jobs.iter().map(|job| job.id.clone()).collect();
    if !wait {
        context.printer.data(&tables::jobs(&reply.jobs, tables::now_ms()))?;
        context.printer.note(&format!("follow with: planforge watch {}", ids.join(" ")));
        return object(context, &reply.request_id, reply.jobs);
    }
    let mut waiting = Waiting::new(context.printer, &reply.jobs);
    tokio::select! {
        result = waiting.until_ended(farm) => result?,
        () = signals::interrupted() => {
            waiting.clear();
            return Err(Failure::interrupted().hint(format!("the jobs go on; planforge cancel {} ends them", ids.join(" "))));
        }
    }
    let jobs = Waiting::results(farm, &ids).await?;
    context.printer.data(&tables::jobs(&jobs, tables::now_ms()))?;
    let succeeded = wait::tell_failures(context.printer, &jobs);
    object(context, &reply.request_id, jobs)?;
    if succeeded { Ok(()) } else { Err(Failure::jobs_failed()) }
}

fn object(context: &Context<'_>, request_id: &str, jobs: Vec<v1::Job>) -> Result<(), Failure> {
    let jobs: Vec<_> = jobs.into_iter().map(JobView::from).collect();
    context.printer.object(&serde_json::json!({ "request_id": request_id, "jobs": jobs }))
}
