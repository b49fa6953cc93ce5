//! `planforge report --story MODEL`: one thing changed at a time, each built and measured on the same device kind.

use super::{
    document::{self, Format},
    told::{self, Told},
};
use crate::{
    commands::build::Build,
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    printer::Printer,
    reports,
    request::{
        self, LocalFiles,
        extras::{self, Beside},
        models,
    },
    settings::Key,
    signals, tables,
};
use planforge_documents::{
    html, markdown,
    story::{Found, Step, Story},
};
use planforge_fleet::shapes;
use planforge_proto::v1;
use planforge_report::Report;
use planforge_types::{
    BuildSpec, OptimizationProfile, Precision, Sku, ToolchainConstraint,
    order::{BaselineAsk, MeasureAsk},
    spec::OptimizationLevel,
};
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub struct StoryArgs {
    /// Tell how this ONNX model gets fast on a device kind: fusion, precision, tactics, threads, batch and streams, one after the other, each built and measured; or a story that was told as JSON, once more
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["what", "all", "artifacts", "request"])]
    story: Option<PathBuf>,
    /// Device kind of the story; the best of this machine by default
    #[arg(long, value_name = "SKU", requires = "story")]
    sku: Option<Sku>,
    /// Input shapes of the story, such as images:1..1..8x3x640x640: the usual size throughout, the range for the batches
    #[arg(long, value_name = "NAME:SHAPE,...", value_parser = shapes::parse, requires = "story")]
    shapes: Option<OptimizationProfile>,
    /// Toolchain of the story, such as native or 'tensorrt>=10.3,<11'
    #[arg(long, value_name = "CONSTRAINT", requires = "story")]
    toolchain: Option<ToolchainConstraint>,
    /// Another runtime that the story begins with, measured under the lease of its first step, named as for build --beside
    #[arg(long, value_name = "NAME[=MODULE]", value_parser = Beside::parse, requires = "story")]
    beside: Option<Beside>,
}

/// Largest batch that is swept.
const MOST_BATCH: u64 = 64;

/// Streams that are swept.
const STREAMS: [u32; 4] = [1, 2, 4, 8];

/// The tag that the jobs of a story have.
const TAG: &str = "story";

/// What a step is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    Latency,
    Batches,
    Streams,
}

/// A step before it was tried.
struct Asked {
    name: &'static str,
    change: &'static str,
    about: About,
    /// What it changes of the spec so far.
    apply: fn(&mut BuildSpec, &StoryArgs),
    measure: MeasureAsk,
}

impl Asked {
    fn latency(name: &'static str, change: &'static str, apply: fn(&mut BuildSpec, &StoryArgs)) -> Self {
        Self { name, change, about: About::Latency, apply, measure: MeasureAsk::default() }
    }
}

/// Option of native CPU compilers that leaves operators apart.
const UNFUSED: (&str, &str) = ("fusion", "off");

fn fuse(spec: &mut BuildSpec, _: &StoryArgs) {
    spec.options.remove(UNFUSED.0);
}

fn halve(spec: &mut BuildSpec, _: &StoryArgs) {
    spec.precision = Precision::Fp16;
}

fn search(spec: &mut BuildSpec, _: &StoryArgs) {
    spec.optimization_level = OptimizationLevel::default();
}

fn all_cores(spec: &mut BuildSpec, _: &StoryArgs) {
    spec.threads = None;
}

fn open_batch(spec: &mut BuildSpec, args: &StoryArgs) {
    spec.profiles = args.shapes.iter().cloned().collect();
}

/// The first spec, and the steps from there.
fn plan(sku: &Sku, args: &StoryArgs, first_beside: Option<&BaselineAsk>) -> (BuildSpec, Vec<Asked>) {
    let mut base = BuildSpec {
        profiles: args.shapes.iter().map(|profile| profile.fixed(|range| range.opt)).collect(),
        optimization_level: OptimizationLevel(0),
        ..BuildSpec::default()
    };
    let onnxruntime = BaselineAsk { name: "onnxruntime".into(), module: None };
    let beside = MeasureAsk { baselines: vec![onnxruntime], ..MeasureAsk::default() };
    let mut steps = Vec::new();
    if sku.is_cpu() {
        base.threads = Some(1);
        base.options.insert(UNFUSED.0.to_owned(), UNFUSED.1.to_owned());
    }
    let first = match sku.is_cpu() {
        true => "every operator by itself, the first kernel that fits, one thread",
        false => "fp32, the first kernel that fits",
    };
    let baselines = first_beside.cloned().into_iter().collect();
    let measure = MeasureAsk { baselines, ..MeasureAsk::default() };
    steps.push(Asked { measure, ..Asked::latency("baseline", first, |_, _| ()) });
    steps.push(Asked::latency("fusion", "operators joined, constants folded into weights", fuse));
    steps.push(Asked::latency("precision", "fp16 in place of fp32", halve));
    steps.push(Asked::latency("tactics", "kernels timed here, the fastest taken", search));
    if sku.is_cpu() {
        steps.push(Asked::latency("threads", "a thread on every core", all_cores));
    }
    // The other runtimes stand beside the last engine of one execution at a time.
    if let Some(last) = steps.last_mut() {
        last.measure = beside;
    }
    let batches = MeasureAsk { batches: batches(args.shapes.as_ref()), ..MeasureAsk::default() };
    let change = "several items at once";
    steps.push(Asked { name: "batch", change, about: About::Batches, apply: open_batch, measure: batches });
    let streams = MeasureAsk { streams: STREAMS.to_vec(), ..MeasureAsk::default() };
    let (change, about) = ("several executions at once", About::Streams);
    steps.push(Asked { name: "streams", change, about, apply: |_, _| (), measure: streams });
    (base, steps)
}

/// Powers of two that the first dimension's range holds; empty where it leaves none open.
fn batches(profile: Option<&OptimizationProfile>) -> Vec<u32> {
    let ranges = profile.into_iter().flat_map(|profile| profile.inputs.values()).filter_map(|dims| dims.first());
    let Some(range) = ranges.copied().find(|range| range.min < range.max) else { return Vec::new() };
    let powers = (0..u64::BITS).map(|power| 1u64 << power).take_while(|batch| *batch <= range.max.min(MOST_BATCH));
    powers.filter(|batch| *batch >= range.min).filter_map(|batch| u32::try_from(batch).ok()).collect()
}

/// Tells the story that was asked for; `None` where none was.
pub async fn run(
    context: &Context<'_>,
    args: &StoryArgs,
    format: Option<Format>,
    output: Option<&Path>,
) -> Option<Result<(), Failure>> {
    let model = args.story.as_deref()?;
    Some(write(context, args, model, format, output).await)
}

async fn write(
    context: &Context<'_>,
    args: &StoryArgs,
    model: &Path,
    format: Option<Format>,
    output: Option<&Path>,
) -> Result<(), Failure> {
    if format == Some(Format::Csv) {
        return Err(Failure::usage("a story has no CSV").hint("its reports have: planforge report JOB --format csv"));
    }
    let told = match told::is_told(model) {
        true => told::read(model)?,
        false => tell(context, args, model).await?,
    };
    let story = Story { reports: &told.reports, steps: &told.steps };
    let object = serde_json::json!({ "story": story.rows(), "steps": told.steps, "reports": told.reports });
    let text = match format {
        Some(Format::Html) => html::story::render(&story),
        Some(Format::Markdown) => markdown::story(&story),
        Some(Format::Json) => document::pretty(&object)?,
        Some(Format::Csv) | None => tables::story::render(&story),
    };
    document::write(context, output, &text, &object)
}

async fn tell(context: &Context<'_>, args: &StoryArgs, model: &Path) -> Result<Told, Failure> {
    let mut local = models::identify(&context.settings, model)?;
    let beside = args.beside.as_ref().map(Beside::ask).transpose()?;
    if let Some((digest, path)) = beside
        .as_ref()
        .and_then(|asked| asked.module)
        .zip(args.beside.as_ref().and_then(|beside| beside.module.clone()))
    {
        local.files.insert(digest.to_string(), path);
    }
    let mut farm = Farm::open(context, Need::Answers).await?;
    let sku = match sku_of(context, args, &mut farm).await {
        Ok(sku) => sku,
        Err(failure) => {
            farm.close(context.printer).await;
            return Err(failure);
        }
    };
    let (mut spec, asked) = plan(&sku, args, beside.as_ref());
    let mut told = Told { reports: Vec::new(), steps: Vec::new() };
    for step in asked {
        let mut tried = spec.clone();
        (step.apply)(&mut tried, args);
        let found = if let Some(reason) = pointless(&step, &spec, &tried) {
            Err(reason)
        } else {
            context.printer.note(&format!("story: {}: {} ({})", step.name, step.change, tried.words()));
            let request = request_of(context, args, &local.model, &sku, &tried, &step.measure)?;
            let (result, rest) = measured(context, request, &local.files, farm).await;
            farm = match rest {
                Some(farm) => farm,
                None => Farm::open(context, Need::Answers).await?,
            };
            result?
        };
        if keep(&mut told, &step, found, context.printer) {
            spec = tried;
        }
        if let Some(beside) = beside.as_ref().filter(|_| told.steps.len() == 1) {
            begin_with(&mut told, &beside.name);
        }
    }
    farm.close(context.printer).await;
    Ok(told)
}

/// Puts another runtime before the first step, under whose lease it was measured.
fn begin_with(told: &mut Told, name: &str) {
    let report = told.reports.first();
    let place = report.and_then(|report| report.baselines.iter().position(|baseline| baseline.name == name));
    let (change, found) = match report.zip(place) {
        Some((report, baseline)) => {
            let other = &report.baselines[baseline];
            let settings = other.settings.iter().map(|(name, value)| format!("{name} {value}"));
            let words: Vec<String> = std::iter::once(other.library.clone()).chain(settings).collect();
            (words.join(", "), Found::Beside { report: 0, baseline })
        }
        None => {
            let lacks = report.and_then(|report| report.findings.iter().find(|finding| finding.code == "no-baseline"));
            let reason = lacks.map_or_else(|| "it was not measured".to_owned(), |finding| finding.message.clone());
            ("another runtime".to_owned(), Found::Unavailable(reason))
        }
    };
    let kept = place.is_some();
    told.steps.insert(0, Step { name: name.to_owned(), change, found, kept });
}

/// Why a step is not tried.
fn pointless(step: &Asked, before: &BuildSpec, tried: &BuildSpec) -> Option<String> {
    match step.about {
        About::Batches if step.measure.batches.is_empty() => {
            Some("no batch is open; give its range, such as --shapes NAME:1..1..8x3x640x640".into())
        }
        About::Latency if step.name == "fusion" && before == tried => {
            Some("no compiler of this device kind can leave it out, so it is part of the baseline".into())
        }
        _ => None,
    }
}

/// Adds what a step came to; whether later steps build on it.
fn keep(told: &mut Told, step: &Asked, found: Result<Report, String>, printer: &Printer) -> bool {
    let index = told.reports.len();
    let mut tell = |found: Found, kept: bool| {
        told.steps.push(Step { name: step.name.to_owned(), change: step.change.to_owned(), found, kept })
    };
    let report = match found {
        Ok(report) => report,
        Err(reason) => {
            printer.note(&format!("story: {}: not available: {reason}", step.name));
            tell(Found::Unavailable(reason), false);
            return false;
        }
    };
    let lacks =
        |code: &str| report.findings.iter().find(|finding| finding.code == code).map(|finding| finding.message.clone());
    match step.about {
        About::Batches if report.batches.is_none() => {
            tell(Found::Unavailable(lacks("no-batches").unwrap_or_else(|| "no batches were measured".into())), false);
            return false;
        }
        About::Streams if report.streams.as_ref().is_none_or(|streams| streams.points.len() < 2) => {
            tell(Found::Unavailable(lacks("no-streams").unwrap_or_else(|| "no streams were measured".into())), false);
            return false;
        }
        About::Batches => tell(Found::Batches(index), false),
        About::Streams => tell(Found::Streams(index), false),
        About::Latency => {
            // What is slower is told and undone.
            let steps = told.steps.iter().rev().filter(|step| step.kept);
            let before =
                steps.filter_map(|step| if let Found::Latency(at) = step.found { Some(at) } else { None }).next();
            let before_ms = before.map(|at| told.reports[at].latency_ms.median);
            let kept = before_ms.is_none_or(|before_ms| report.latency_ms.median <= before_ms);
            told.steps.push(Step {
                name: step.name.to_owned(),
                change: step.change.to_owned(),
                found: Found::Latency(index),
                kept,
            });
            told.reports.push(report);
            return kept;
        }
    }
    told.reports.push(report);
    false
}

async fn sku_of(context: &Context<'_>, args: &StoryArgs, farm: &mut Farm) -> Result<Sku, Failure> {
    if let Some(sku) = &args.sku {
        return Ok(sku.clone());
    }
    let mut skus = context.settings.list(Key::Skus);
    if skus.is_empty() {
        skus = match farm.is_local() {
            true => request::skus_of_this_machine(farm).await?,
            false => request::skus_of_this_host(farm).await?,
        };
    }
    let first = skus.first().ok_or_else(|| Failure::usage("no device kind is known").hint("name one with --sku"))?;
    first.parse().map_err(|error| Failure::usage(format!("'{first}' is no device kind: {error}")))
}

fn request_of(
    context: &Context<'_>,
    args: &StoryArgs,
    model: &v1::Model,
    sku: &Sku,
    spec: &BuildSpec,
    measure: &MeasureAsk,
) -> Result<v1::SubmitRequest, Failure> {
    Ok(v1::SubmitRequest {
        idempotency_key: ulid::Ulid::generate().to_string(),
        project: context.settings.get(Key::Project).unwrap_or_default().into(),
        models: vec![model.clone()],
        skus: vec![sku.to_string()],
        specs_json: request::spec_documents(std::slice::from_ref(&spec.clone().canonical()))?,
        toolchains: args.toolchain.iter().map(ToString::to_string).collect(),
        tags: vec![TAG.to_owned()],
        kind: v1::JobKind::Build.into(),
        builds: 1,
        measure: extras::ask_out(measure),
        // A story is of one compiler throughout.
        no_fallback: true,
        ..Default::default()
    })
}

/// Builds and measures what was asked for, on a farm that it gives back. Inside: the report, or why there is none; outside:
/// what ends the story.
async fn measured(
    context: &Context<'_>,
    request: v1::SubmitRequest,
    files: &LocalFiles,
    farm: Farm,
) -> (Result<Result<Report, String>, Failure>, Option<Farm>) {
    let mut build = Build::on(context, request, files.clone(), farm);
    let jobs = tokio::select! {
        result = build.jobs() => result,
        () = signals::interrupted() => return (Err(build.interrupted(Failure::interrupted()).await), None),
    };
    let farm = build.into_farm();
    let found = match jobs {
        Ok(jobs) => jobs.first().map_or_else(|| Ok(Err("no job came of it".into())), outcome),
        // A device kind, an option or a measurement that nobody here offers is told; everything else ends the story.
        Err(failure) if failure.is_refused() => Ok(Err(failure.to_string())),
        Err(failure) => Err(failure),
    };
    (found, farm)
}

fn outcome(job: &v1::Job) -> Result<Result<Report, String>, Failure> {
    match reports::of_job(job)? {
        Some(found) if job.state() == v1::JobState::Succeeded => Ok(Ok(found.report)),
        _ => Ok(Err(job
            .failure
            .as_ref()
            .map_or_else(|| "the job has no report".to_owned(), |failed| failed.message.clone()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(shapes: Option<&str>) -> StoryArgs {
        let shapes = shapes.map(|text| shapes::parse(text).unwrap());
        StoryArgs { story: None, sku: None, shapes, toolchain: None, beside: None }
    }

    /// What the steps of a device kind build, one after the other, if all of them pay.
    fn specs(sku: &str, shapes: Option<&str>) -> Vec<(&'static str, String)> {
        let args = args(shapes);
        let (mut spec, steps) = plan(&sku.parse().unwrap(), &args, None);
        let step = |step: Asked| {
            (step.apply)(&mut spec, &args);
            (step.name, spec.words())
        };
        steps.into_iter().map(step).collect()
    }

    #[test]
    fn a_story_changes_one_thing_at_a_time() {
        let told = specs("cpu-x86-64-v3", Some("x:1..1..8x3"));
        let names: Vec<_> = told.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["baseline", "fusion", "precision", "tactics", "threads", "batch", "streams"]);
        assert_eq!(told[0].1, "fp32, 1 thread, x:1x3, level 0, fusion=off");
        assert_eq!(told[1].1, "fp32, 1 thread, x:1x3, level 0");
        assert_eq!(told[4].1, "fp16, x:1x3");
        assert_eq!(told[5].1, "fp16, x:1..1..8x3");
        // The last engine is the default spec: the key that everybody else's builds have.
        let args = args(None);
        let (mut spec, steps) = plan(&"cpu-x86-64-v3".parse().unwrap(), &args, None);
        steps.iter().filter(|step| step.name != "precision").for_each(|step| (step.apply)(&mut spec, &args));
        assert_eq!(spec, BuildSpec::default());
        let gpu = specs("h200-sxm", None);
        assert_eq!(gpu[0].1, "fp32, level 0");
        assert!(gpu.iter().all(|(name, words)| *name != "threads" && !words.contains("fusion")));
    }

    #[test]
    fn batches_are_those_that_the_range_holds() {
        let of = |text: &str| batches(Some(&shapes::parse(text).unwrap()));
        assert_eq!(of("x:1..1..8x3"), [1, 2, 4, 8]);
        assert_eq!(of("x:2..4..12x3,y:2..4..12"), [2, 4, 8]);
        assert_eq!((of("x:1x3"), batches(None)), (vec![], vec![]));
    }
}
