//! `planforge build`: the whole way of a model, from file to measured plan on this machine.

use super::report;
use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, MAX_TAKEOVERS, Need},
    lists, plans,
    printer::Printer,
    reports,
    request::{
        self, LocalFiles, RequestArgs,
        models::{self, LocalModel},
    },
    signals, tables,
    wait::{self, Patience, Waiting},
};
#[cfg(feature = "local")]
use crate::{
    preparation::{self, Data},
    request::{prepare::kind_of, script::Given},
};
#[cfg(feature = "local")]
use planforge_precision::{Options, Target};
use planforge_proto::{ErrorCode, v1, view::JobView};
#[cfg(feature = "local")]
use planforge_types::Precision;
use planforge_types::{BuildSpec, Toolchain};
use std::{collections::BTreeMap, path::PathBuf, time::Duration};

/// How long cancelled jobs may take to leave their devices before this command ends anyway; their workers die with it.
const CANCEL_LIMIT: Duration = Duration::from_secs(15);

/// How often jobs are looked at for a toolchain that is gone, and how often an absence must be seen to be one: an agent
/// that joins again was never away.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
const ABSENT_LOOKS: u32 = 10;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// ONNX files
    #[arg(value_name = "MODEL", required = true)]
    models: Vec<PathBuf>,
    #[command(flatten)]
    request: RequestArgs,
    /// Copy the plans to this folder, or the one plan to this file
    #[arg(short, long, value_name = "DIR|FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    patience: Patience,
}

#[cfg(feature = "local")]
fn one_precision() -> Failure {
    Failure::usage("data to calibrate on is for one of --precision int8, fp16 and bf16")
        .hint("planforge submit prepares for several in one request; planforge prepare makes other models, too")
}

/// Where calibration data is given, the models that are built are those prepared on it; the spec is as without.
#[cfg(feature = "local")]
fn prepare(context: &Context<'_>, args: &mut Args) -> Result<(), Failure> {
    let Some(named) = args.request.extra.take_data() else { return Ok(()) };
    let [precision] = args.request.precision[..] else { return Err(one_precision()) };
    let kind = kind_of(precision.precision).filter(|_| precision.way.is_none()).ok_or_else(one_precision)?;
    let toolchains: Vec<String> = args.request.toolchain.iter().map(ToString::to_string).collect();
    let ask = args.request.extra.take_prepare().ask(kind, &toolchains);
    // Types are the model's own from here on. TensorRT wants to be told all the same.
    if ask.target != Target::TensorRt {
        args.request.precision = vec![Precision::Fp32.into()];
    }
    let given = Given::of(context, named, &args.models)?;
    for path in &mut args.models {
        let data = Data { calibration: Some(&given.path), eval: args.request.eval.as_deref() };
        let ready = preparation::run(context, path, &data, &Options::from(&ask))?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let name = format!("{stem}.{}.onnx", kind.name());
        let prepared = match &args.output {
            Some(output) if output.is_dir() || output.extension().is_none() => output.join(name),
            Some(output) => output.with_file_name(name),
            None => PathBuf::from(name),
        };
        let (report, _) = ready.write(&prepared)?;
        for finding in &ready.prepared.report.findings {
            context.printer.warn(&finding.message);
        }
        preparation::lines(&ready.prepared.report).iter().take(2).for_each(|line| context.printer.note(line));
        context.printer.note(&format!("prepared {}; every layer: {}", prepared.display(), report.display()));
        *path = prepared;
    }
    Ok(())
}

pub fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    #[cfg(feature = "local")]
    let args = {
        let mut args = args;
        prepare(context, &mut args)?;
        args
    };
    args.request.no_ways()?;
    let found =
        args.models.iter().map(|path| models::identify(&context.settings, path)).collect::<Result<Vec<_>, _>>()?;
    request::check_inputs(&args.request, &args.models, &BuildSpec::default())?;
    let attached = args.request.attached()?;
    let mut files = LocalFiles::new();
    let mut named = Vec::new();
    for LocalModel { model, files: own } in found {
        files.extend(own);
        named.push(model);
    }
    let skus = args.request.skus(context)?;
    let request = request::assemble(context, &args.request, named, skus, &BuildSpec::default(), &attached)?;
    files.extend(attached.files);
    context.block_on(async {
        let mut build = Build { context, request, files, farm: None, submitted: None };
        let jobs = tokio::select! {
            result = build.jobs() => result?,
            () = signals::interrupted() => return Err(build.interrupted(Failure::interrupted()).await),
            failure = args.patience.over() => return Err(build.interrupted(failure).await),
        };
        build.deliver(jobs, args.output).await
    })
}

/// One build on its way.
pub(super) struct Build<'a> {
    context: &'a Context<'a>,
    request: v1::SubmitRequest,
    files: LocalFiles,
    farm: Option<Farm>,
    /// What the coordinator acknowledged: what Ctrl-C has to withdraw.
    submitted: Option<v1::SubmitReply>,
}

impl<'a> Build<'a> {
    /// On a farm that is open already.
    pub(super) fn on(context: &'a Context<'a>, request: v1::SubmitRequest, files: LocalFiles, farm: Farm) -> Self {
        Self { context, request, files, farm: Some(farm), submitted: None }
    }

    /// The farm for what comes next; `None` where it ended meanwhile.
    pub(super) fn into_farm(self) -> Option<Farm> {
        self.farm
    }

    fn printer(&self) -> &Printer {
        self.context.printer
    }

    /// Submits and waits. On this machine's own farm, goes on with the next host when the present one ends.
    pub(super) async fn jobs(&mut self) -> Result<Vec<v1::Job>, Failure> {
        let mut takeovers = 0;
        loop {
            let result = self.try_jobs().await;
            match (result, &mut self.farm) {
                (Err(failure), Some(farm)) if failure.is_unavailable() && farm.is_local() => {
                    takeovers += 1;
                    if takeovers > MAX_TAKEOVERS {
                        return Err(failure);
                    }
                    tracing::debug!(%failure, "the farm's host ended: looking for the next one");
                    // The idempotency key makes the next submission find the jobs of this one.
                    self.farm = None;
                }
                (result, _) => return result,
            }
        }
    }

    async fn try_jobs(&mut self) -> Result<Vec<v1::Job>, Failure> {
        if self.farm.is_none() {
            self.farm = Some(Farm::open(self.context, Need::Answers).await?);
        }
        let farm = self.farm.as_mut().expect("opened above");
        if self.request.skus.is_empty() {
            self.request.skus = match farm.is_local() {
                true => request::skus_of_this_machine(farm).await?,
                false => request::skus_of_this_host(farm).await?,
            };
        }
        let mut asked_again = false;
        let reply = loop {
            let reply = match request::submit(self.context, farm, &self.request, &self.files).await {
                // A farm that does not know this machine's devices yet, or knows what they offered before an upgrade.
                Err(failure) if failure.name == ErrorCode::Refused.name() && farm.start_work().await? => {
                    tracing::debug!(%failure, "asking again with an agent at work");
                    request::submit(self.context, farm, &self.request, &self.files).await?
                }
                other => other?,
            };
            self.submitted = Some(reply.clone());
            let mut waiting = Waiting::new(self.context.printer, &reply.jobs);
            if waiting.live().is_empty() && reply.jobs.iter().all(|job| job.cached) {
                return Ok(reply.jobs);
            }
            if !farm.is_local() {
                waiting.until_ended(farm).await?;
                break reply;
            }
            farm.start_work().await?;
            let live = waiting.live();
            let lost = tokio::select! {
                followed = waiting.follow(farm) => followed.map(|()| None)?,
                lost = until_lost(farm, &live) => Some(lost?),
            };
            if let Some(job) = lost {
                waiting.clear();
                if asked_again || job.state() == v1::JobState::Queued {
                    // This machine's agent has said what it has: nobody would ever take the job.
                    let failure = nobody_offers(&job);
                    withdraw(self.context.printer, farm, &reply, "no toolchain of this machine can build it").await;
                    return Err(failure);
                }
                // The farm knew what this machine offered before an upgrade, and now its agent has said otherwise: with
                // another compiler the engines have other keys.
                self.context
                    .printer
                    .note("this machine offers other toolchains than before: asking for its present ones");
                withdraw(self.context.printer, farm, &reply, "the machine offers another toolchain now").await;
                self.request.idempotency_key = ulid::Ulid::generate().to_string();
                asked_again = true;
                continue;
            }
            break reply;
        };
        let ids: Vec<_> = reply.jobs.iter().map(|job| job.id.clone()).collect();
        Waiting::results(farm, &ids).await
    }

    /// What is left to do after Ctrl-C, or when the time is over: on this machine nothing stays behind, on a coordinator the
    /// jobs go on.
    pub(super) async fn interrupted(mut self, failure: Failure) -> Failure {
        let (Some(farm), Some(reply)) = (self.farm.take(), self.submitted.take()) else { return failure };
        let ids: Vec<_> = reply.jobs.iter().map(|job| job.id.clone()).collect();
        if !farm.is_local() {
            return failure.hint(format!("the jobs go on; planforge cancel {} ends them", ids.join(" ")));
        }
        let cancelled = tokio::select! {
            result = tokio::time::timeout(CANCEL_LIMIT, withdraw(self.printer(), &farm, &reply, "interrupted")) => result.is_ok(),
            () = signals::interrupted() => false,
        };
        if !cancelled {
            self.printer().warn("the jobs did not confirm their end; their processes end with this one");
        }
        farm.leave().await;
        failure
    }

    /// Brings the plans here and says what they are.
    async fn deliver(self, jobs: Vec<v1::Job>, output: Option<PathBuf>) -> Result<(), Failure> {
        let Some(farm) = self.farm else { return Ok(()) };
        let result = deliver(self.context, &farm, jobs, output).await;
        farm.close(self.context.printer).await;
        let (jobs, views) = result?;
        let printer = self.context.printer;
        printer.data(&tables::built(&jobs, &views))?;
        match only_report(&jobs) {
            Ok(Some(report)) => printer.data(&format!("\n{report}"))?,
            Ok(None) => {}
            Err(failure) => printer.warn(&failure.to_string()),
        }
        // Of those that were waited for it was said before.
        wait::tell_tried(printer, jobs.iter().filter(|job| job.cached));
        let succeeded = wait::tell_failures(printer, &jobs);
        let request_id = self.submitted.map(|reply| reply.request_id);
        printer.object(&serde_json::json!({ "request_id": request_id, "jobs": views }))?;
        if succeeded { Ok(()) } else { Err(Failure::jobs_failed()) }
    }
}

/// Why a build ends whose toolchain is gone again: another program of this folder, of another release, has it.
fn nobody_offers(job: &v1::Job) -> Failure {
    let why = if job.waiting_reason.is_empty() { "nothing here offers its toolchain" } else { &job.waiting_reason };
    let message = format!("{} for {} cannot be built here: {why}", tables::model_name(job.model.as_ref()), job.sku);
    Failure::new(ErrorCode::Refused, message).hint(match job.state() {
        v1::JobState::Queued => {
            "no agent of another machine can join the farm inside this command: planforge agents forget NAME takes one \
             away that is gone, and planforge up lets those join that are not"
        }
        _ => {
            "end other planforge processes of this data folder, which may be of another release, or build in one of its \
             own with --data DIR"
        }
    })
}

/// Cancels what a request asked for and waits until that has ended.
async fn withdraw(printer: &Printer, farm: &Farm, reply: &v1::SubmitReply, reason: &str) {
    let ids: Vec<_> = reply.jobs.iter().map(|job| job.id.clone()).collect();
    let mut cancelled = Vec::with_capacity(ids.len());
    for ids in ids.chunks(lists::NAMED_MAX) {
        let request =
            v1::CancelJobsRequest { ids: ids.to_vec(), reason: reason.into(), request_id: reply.request_id.clone() };
        match farm.rpc().cancel_jobs(request).await {
            Ok(reply) => cancelled.extend(reply.into_inner().jobs),
            Err(status) => return tracing::debug!(%status, "the jobs could not be withdrawn"),
        }
    }
    // Jobs that other requests want go on, and are not waited for.
    let ours: Vec<_> = cancelled.into_iter().filter(|job| job.waiting_reason.is_empty()).collect();
    if let Err(failure) = Waiting::new(printer, &ours).follow(farm).await {
        tracing::debug!(%failure, "the end of the cancelled jobs was not seen");
    }
}

/// The first of these jobs that nobody will ever take: its toolchain is offered no more, or only by agents that cannot come
/// back, because a farm inside a command has no port. A device is seen before what that means for jobs stands in the
/// store, so it is looked again and again.
async fn until_lost(farm: &Farm, ids: &[String]) -> Result<v1::Job, Failure> {
    let embedded = farm.is_embedded().await?;
    let mut absent: BTreeMap<String, u32> = BTreeMap::new();
    loop {
        let jobs = Waiting::results(farm, ids).await?;
        if let Some(job) = jobs.iter().find(|job| job.state() == v1::JobState::Unplaceable) {
            return Ok(job.clone());
        }
        let request = v1::ListDevicesRequest { online_only: true };
        let devices = farm.rpc().list_devices(request).await.map_err(|e| farm.error(e))?.into_inner().devices;
        for job in jobs.into_iter().filter(|job| embedded && job.state() == v1::JobState::Queued) {
            let offers = |device: &v1::Device| {
                device.skus.contains(&job.sku)
                    && device
                        .offers
                        .iter()
                        .any(|offer| toolchain(&offer.toolchain_json) == toolchain(&job.toolchain_json))
            };
            let looks = absent.entry(job.id.clone()).or_default();
            *looks = if devices.iter().any(offers) { 0 } else { *looks + 1 };
            if *looks >= ABSENT_LOOKS {
                return Ok(job);
            }
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// A toolchain from its document; `None` where this release cannot read it.
fn toolchain(document: &str) -> Option<Toolchain> {
    serde_json::from_str(document).ok()
}

/// The report of the one engine that was asked for; of several the table has to do.
fn only_report(jobs: &[v1::Job]) -> Result<Option<String>, Failure> {
    let [job] = jobs else { return Ok(None) };
    Ok(reports::of_job(job)?.map(|found| report::text(&found, None)))
}

async fn deliver(
    context: &Context<'_>,
    farm: &Farm,
    jobs: Vec<v1::Job>,
    output: Option<PathBuf>,
) -> Result<(Vec<v1::Job>, Vec<JobView>), Failure> {
    let several = jobs.iter().filter(|job| !job.plan_digest.is_empty()).count() > 1;
    if let Some(file) = output.as_ref().filter(|path| several && path.is_file()) {
        let message = format!("{} is a file, but there are several plans", file.display());
        return Err(Failure::usage(message).hint("name a folder with -o DIR/"));
    }
    let mut views = Vec::new();
    let mut taken = std::collections::BTreeSet::new();
    for job in &jobs {
        let mut view = JobView::from(job.clone());
        if job.state() == v1::JobState::Succeeded && !job.plan_digest.is_empty() {
            let mut name = plans::shared_name(job.model.as_ref(), &job.sku);
            if !taken.insert(name.clone()) {
                name = plans::with_key(&name, &job.engine_key);
            }
            let path = match &output {
                Some(output) if several => plans::copy(context, farm, job, output.join(name)).await?,
                Some(output) => plans::copy(context, farm, job, plans::destination(output, &name)).await?,
                None => plans::keep(context, farm, job).await?,
            };
            view.plan_path = Some(path.to_string_lossy().into_owned());
        }
        views.push(view);
    }
    Ok((jobs, views))
}
