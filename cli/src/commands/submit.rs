//! `planforge submit`: jobs that go on without this command.

use super::dry_run::dry_run;
use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need, Place},
    request::{self, LocalFiles, RequestArgs, extras::Attached, models, prepare::Preparations, script::Given},
    tables,
    wait::{self, Patience, Waiting},
};
use planforge_client::Endpoint;
use planforge_proto::{ErrorCode, v1, view::JobView};
use planforge_types::{BuildSpec, Sku};
use std::{collections::BTreeMap, path::PathBuf};

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
    #[command(flatten)]
    patience: Patience,
    /// Show what would be submitted and what is stored already; submit nothing
    #[arg(long, conflicts_with = "wait")]
    dry_run: bool,
    /// Keep combinations that no known device can run until one can
    #[arg(long)]
    wait_for_device: bool,
    /// Resolve the toolchain again when the exact one is no longer offered
    #[arg(long)]
    follow_toolchain: bool,
    /// Begin only when this job, or every job of this request, has succeeded; skip these jobs if it does not (repeatable)
    #[arg(long, value_name = "JOB|REQUEST")]
    needs: Vec<String>,
    /// Build for a processor without measuring: 'planforge bench PLAN --on SKU', or a build later, measures. For NVIDIA
    /// devices, compile kernels without the device, for builds that --needs this job
    #[arg(long, conflicts_with_all = ["compile_first", "clone"])]
    compile_only: bool,
    /// NVIDIA devices: compile kernels on another host first, so that the device only times and decides
    #[arg(long, conflicts_with_all = ["dry_run", "clone"])]
    compile_first: bool,
}

pub fn run(context: &Context<'_>, mut args: Args) -> Result<(), Failure> {
    if args.patience.timeout.is_some() && !args.wait {
        return Err(Failure::usage("--timeout is about waiting").hint("add --wait"));
    }
    let mut found = Vec::new();
    for path in &args.models {
        found.push(models::identify(&context.settings, path)?);
    }
    request::check_inputs(&args.request, &args.models, &BuildSpec::default())?;
    // Where data is given the models are prepared first, by a job of their own.
    let preparations = match args.request.extra.take_data() {
        None => {
            args.request.no_ways()?;
            None
        }
        Some(_) if args.compile_only || args.compile_first || args.clone.is_some() => {
            return Err(Failure::usage(
                "data to prepare models on goes with neither --clone nor compiling without a device",
            )
            .hint("planforge prepare makes the model here; submit what it writes"));
        }
        Some(named) => {
            let data = Given::of(context, named, &args.models)?;
            let eval = args.request.eval.as_deref();
            // The small client leaves it to the worker whether data fits.
            #[cfg(feature = "local")]
            crate::preparation::check_data(&data.path, eval, &args.models)?;
            Some((Preparations::of(&data.path, eval)?, args.request.extra.take_prepare(), data))
        }
    };
    let attached = args.request.attached()?;
    context.block_on(Farm::with(context, Need::Lasting, async |farm| {
        let mut files = LocalFiles::new();
        let mut named = Vec::new();
        let mut typed = BTreeMap::new();
        for (local, path) in found.iter().cloned().zip(&args.models) {
            files.extend(local.files);
            // Of files that hold the same model the first stands for all.
            typed.entry(local.model.digest.clone()).or_insert_with(|| path.display().to_string());
            named.push(local.model);
        }
        let mut request = match &args.clone {
            Some(id) => from_template(context, farm, &args, id, named, &attached).await?,
            None => {
                let skus = args.request.skus(context)?;
                request::assemble(context, &args.request, named, skus, &BuildSpec::default(), &attached)?
            }
        };
        files.extend(attached.files.clone());
        if let Some((preparations, how, _)) = &preparations {
            files.extend(preparations.files.clone());
            let ways = args.request.specs_by_way(&BuildSpec::default())?;
            let ways: Vec<_> = ways.into_iter().map(|(_, way)| way).collect();
            preparations.onto(context, how, &ways, &mut request)?;
        }
        request.wait_for_device = args.wait_for_device;
        request.follow_toolchain = args.follow_toolchain;
        request.needs.clone_from(&args.needs);
        if request.skus.is_empty() {
            request.skus = request::skus_of_this_host(farm).await?;
        }
        if args.compile_only {
            request = compiling(&request);
        }
        if args.dry_run {
            dry_run(context, farm, &request, &files).await
        } else {
            if args.compile_first {
                request.needs.push(compile_first(context, farm, &request, &files).await?);
            }
            let told = Told { typed, page: page(context, farm).await? };
            submit(context, farm, &request, &files, &told, args.wait.then_some(args.patience)).await
        }
    }))
}

/// The same engines, compiled and no more.
fn compiling(request: &v1::SubmitRequest) -> v1::SubmitRequest {
    v1::SubmitRequest {
        idempotency_key: ulid::Ulid::generate().to_string(),
        kind: v1::JobKind::Compile.into(),
        ..request.clone()
    }
}

/// Submits what can be compiled without the device of `request`; returns what that is to need.
async fn compile_first(
    context: &Context<'_>,
    farm: &Farm,
    request: &v1::SubmitRequest,
    files: &LocalFiles,
) -> Result<String, Failure> {
    let is_cpu = |sku: &String| sku.parse::<Sku>().is_ok_and(|sku| sku.is_cpu());
    if request.skus.iter().any(is_cpu) {
        return Err(Failure::usage("an engine for a processor is compiled on it: nothing can be done before")
            .hint("leave --compile-first out, or name NVIDIA devices alone"));
    }
    // Of several, each build would wait for what is compiled for all.
    if request.skus.len() != 1 || request.models.len() != 1 {
        return Err(Failure::usage("--compile-first is for one model and one device kind at a time")
            .hint("run it for each of them"));
    }
    let ahead = v1::SubmitRequest {
        eval_digest: String::new(),
        builds: 1,
        measure: None,
        refresh_disturbed: false,
        ..compiling(request)
    };
    let reply = request::submit(context, farm, &ahead, files).await?;
    let ids: Vec<_> = reply.jobs.iter().map(|job| job.id.as_str()).collect();
    context.printer.note(&format!("compiles first, without the device: {}", ids.join(" ")));
    Ok(reply.request_id)
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
    request.no_fallback |= job.no_fallback;
    if request.requires.is_empty() {
        request.requires = job.requires;
    }
    if request.project.is_empty() {
        request.project = job.project;
    }
    request.priority = args.request.priority.unwrap_or(job.priority);
    if attached.eval.is_none() {
        request.eval_digest = job.eval_digest;
    }
    request.builds = args.request.builds()?.unwrap_or(job.builds);
    request.measure = request.measure.or(job.measure);
    Ok(request)
}

/// The URL by which the user knows the coordinator, else the one that it says; empty where it has no page.
async fn page(context: &Context<'_>, farm: &Farm) -> Result<String, Failure> {
    match Place::choose(&context.settings)? {
        Place::Server(endpoint @ (Endpoint::Http { .. } | Endpoint::Https { .. })) => Ok(endpoint.to_string()),
        _ => farm.page().await,
    }
}

/// What people are told of their jobs beside what the coordinator says.
struct Told {
    /// Model files as they were named, by digest.
    typed: BTreeMap<String, String>,
    /// The coordinator's page, or nothing.
    page: String,
}

impl Told {
    fn file(&self, job: &v1::Job) -> Option<&String> {
        self.typed.get(&job.model.as_ref()?.digest)
    }

    fn url(&self, job: &v1::Job) -> Option<String> {
        (!self.page.is_empty()).then(|| format!("{}/jobs/{}", self.page.trim_end_matches('/'), job.id))
    }

    fn table(&self, jobs: &[v1::Job]) -> String {
        let name = |job: &v1::Job| {
            self.file(job).cloned().unwrap_or_else(|| tables::model_name(job.model.as_ref()).to_owned())
        };
        let urls: Option<Vec<String>> = jobs.iter().map(|job| self.url(job)).collect();
        tables::submitted(jobs, jobs.iter().map(name).collect(), urls, tables::now_ms())
    }

    fn object(&self, request_id: &str, jobs: Vec<v1::Job>) -> serde_json::Value {
        let jobs = jobs.into_iter().map(|job| {
            let (file, url) = (self.file(&job).cloned(), self.url(&job));
            Submitted { file, url, job: job.into() }
        });
        serde_json::json!({ "request_id": request_id, "jobs": jobs.collect::<Vec<_>>() })
    }
}

/// A job, the file that was named for its model, and where the page tells of it.
#[derive(serde::Serialize)]
struct Submitted {
    #[serde(flatten)]
    job: JobView,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
}

async fn submit(
    context: &Context<'_>,
    farm: &Farm,
    request: &v1::SubmitRequest,
    files: &LocalFiles,
    told: &Told,
    wait: Option<Patience>,
) -> Result<(), Failure> {
    let reply = request::submit(context, farm, request, files).await?;
    let ids: Vec<_> = reply.jobs.iter().map(|job| job.id.clone()).collect();
    let Some(patience) = wait else {
        context.printer.data(&told.table(&reply.jobs))?;
        wait::tell_tried(context.printer, &reply.jobs);
        context.printer.note(&format!("follow with: planforge watch {}", ids.join(" ")));
        return context.printer.object(&told.object(&reply.request_id, reply.jobs));
    };
    let jobs = Waiting::new(context.printer, &reply.jobs).finish(farm, &ids, patience).await?;
    context.printer.data(&told.table(&jobs))?;
    let succeeded = wait::tell_failures(context.printer, &jobs);
    context.printer.object(&told.object(&reply.request_id, jobs))?;
    if succeeded { Ok(()) } else { Err(Failure::jobs_failed()) }
}
