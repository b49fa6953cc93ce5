//! `planforge eval`: how often a plan is right on labelled data, as a report of its own and as a gate.

use super::run::compiler;
use crate::{context::Context, failure::Failure, preparation};
use planforge_backend::LoadOptions;
use planforge_precision::{DataError, Samples};
use planforge_proto::ErrorCode;
use serde::Serialize;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// File of the plan
    plan: PathBuf,
    /// Labelled data: an .npz with one array per input and 'labels', or a folder of such files
    #[arg(value_name = "LABELLED.npz|DIR")]
    labelled: PathBuf,
    /// What counts as right: top1, the label has the highest score; topk, it is among the K highest
    #[arg(long, value_name = "METRIC", default_value = "top1", value_parser = ["top1", "topk"])]
    metric: String,
    /// K of topk
    #[arg(long, value_name = "K", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    k: u32,
    /// Least share that must be right, 0 to 1; the gate fails below it
    #[arg(long, value_name = "SHARE", value_parser = share)]
    min_top1: Option<f64>,
    /// Least share whose label must be among the K highest, 0 to 1
    #[arg(long, value_name = "SHARE", value_parser = share)]
    min_topk: Option<f64>,
    /// Write the report to this file, too
    #[arg(short, long, value_name = "FILE.json")]
    output: Option<PathBuf>,
    /// CPU threads; as the plan says by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
}

fn share(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| format!("'{text}' is no number"))?;
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err(format!("{value} is no share: it lies between 0 and 1")) }
}

/// How often a plan was right.
#[derive(Debug, Serialize)]
struct Evaluation {
    schema: u32,
    plan_digest: String,
    backend: &'static str,
    data: Vec<String>,
    metric: String,
    rows: u64,
    correct: u64,
    top1: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    k: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    topk: Option<f64>,
    /// Whether every limit that was given is kept; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    passed: Option<bool>,
}

pub fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let asks_for_k = args.metric == "topk" || args.min_topk.is_some();
    let (plan_digest, _) = crate::request::models::hash(&args.plan)?;
    let (arrays, digests) = preparation::arrays(&args.labelled)?;
    let found = arrays.keys().cloned().collect::<Vec<_>>().join(", ");
    let compiler = compiler(&args.plan)?;
    let options = LoadOptions { threads: args.threads, profile: 0, allow_foreign: true, site: None };
    let mut meter = compiler.load(&args.plan, &options)?;
    let told = |error: DataError| Failure::usage(format!("{}: {error}", args.labelled.display())).hint(error.hint());
    let samples = Samples::fit(arrays, &meter.inputs()).map_err(told)?;
    if !samples.has_labels() {
        return Err(told(DataError::NoLabels { found }));
    }
    let first = meter.outputs().into_iter().next().map(|port| port.name);
    let first = first.ok_or_else(|| Failure::new(ErrorCode::InvalidArgument, "the plan has no output"))?;
    let (mut top1, mut topk) = (0, 0);
    let spinner = context.printer.spinner(&format!("evaluating {}", args.plan.display()));
    for index in 0..samples.batches() {
        meter.bind(&samples.inputs(index))?;
        let outputs = meter.run()?;
        let Some(scores) = outputs.get(&first) else { continue };
        top1 += samples.correct(index, &first, scores, 1).map_err(told)?;
        topk += samples.correct(index, &first, scores, args.k as usize).map_err(told)?;
    }
    spinner.clear();
    let rows = samples.rows();
    let of = |correct: usize| correct as f64 / rows as f64;
    let limits = [args.min_top1.map(|least| of(top1) >= least), args.min_topk.map(|least| of(topk) >= least)];
    let passed = limits.iter().flatten().copied().reduce(|a, b| a && b);
    let evaluation = Evaluation {
        schema: 1,
        plan_digest,
        backend: compiler.backend(),
        data: digests.iter().map(ToString::to_string).collect(),
        rows: rows as u64,
        correct: if args.metric == "topk" { topk } else { top1 } as u64,
        metric: args.metric,
        top1: of(top1),
        k: asks_for_k.then_some(args.k),
        topk: asks_for_k.then(|| of(topk)),
        passed,
    };
    let document = serde_json::to_value(&evaluation)
        .map_err(|e| Failure::new(ErrorCode::Internal, format!("cannot write the report as JSON: {e}")))?;
    if let Some(path) = &args.output {
        preparation::write_whole(path, format!("{document:#}\n").as_bytes())?;
    }
    let mut line = format!("top-1 {:.2} % ({top1} of {rows})", 100.0 * evaluation.top1);
    if let Some(topk) = evaluation.topk {
        line += &format!(", top-{} {:.2} %", args.k, 100.0 * topk);
    }
    context.printer.data(&line)?;
    for (least, reached, name) in [(args.min_top1, evaluation.top1, "top-1"), (args.min_topk, of(topk), "top-k")] {
        if let Some(least) = least.filter(|least| reached < *least) {
            context.printer.note(&format!("FAILED: {name} {:.2} % is below {:.2} %", 100.0 * reached, 100.0 * least));
        }
    }
    context.printer.object(&document)?;
    if passed == Some(false) { Err(Failure::gate()) } else { Ok(()) }
}
