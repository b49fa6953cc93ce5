//! `planforge compare`: reports side by side, with a verdict for every pair, and a gate for pipelines.

mod baselines;
mod junit;

use super::diff::lock_of;
use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    imported, portability,
    reports::{self, Selection},
    request::models,
    tables,
};
use planforge_proto::ErrorCode;
use planforge_report::{
    Report,
    compare::{
        self, Scheme,
        gate::{self, Limit},
    },
};
use planforge_types::{Sku, ToolchainConstraint, durable};
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Jobs, engine keys, plans or their digests, report files; the others of a device kind are compared with its first
    #[arg(value_name = "REPORT", required_unless_present_any = ["request", "model"])]
    reports: Vec<String>,
    /// Every job of this request instead, older toolchains first
    #[arg(long, value_name = "ID", conflicts_with = "reports")]
    request: Option<String>,
    /// The newest engines of this model instead: a file, a name, or the beginning of a digest
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["reports", "request"])]
    model: Option<String>,
    /// With --model: one engine of each of these toolchains; the first is what the others are compared with
    #[arg(long, value_name = "CONSTRAINT", requires = "model")]
    toolchain: Vec<ToolchainConstraint>,
    /// With --model: only these device kinds, and all of them
    #[arg(long, value_name = "SKU", requires = "model", value_delimiter = ',')]
    sku: Vec<Sku>,
    /// Compare every report with this one alone: a job, engine key, plan or its digest, or a report file
    #[arg(long, value_name = "REPORT")]
    baseline: Option<String>,
    /// Compare every report with what the jobs of this tag measured of the same model on the same device kind
    #[arg(long, value_name = "NAME[=VALUE]", conflicts_with = "baseline")]
    baseline_tag: Option<String>,
    /// Compare every report with the engine that this lock has of its model for its device kind: a lock file, or a branch
    /// or other git revision whose engines.lock counts
    #[arg(long, value_name = "LOCK|REVISION", conflicts_with_all = ["baseline", "baseline_tag"])]
    baseline_lock: Option<String>,
    /// Put figures that were measured elsewhere beside the reports that they fit, marked and not judged: JSON or CSV with name,
    /// device, precision, batch, median_ms and source, and model where it is of one alone
    #[arg(long, value_name = "FILE")]
    imported: Option<PathBuf>,
    /// Show where engines spend their time differently, this many parts each [default: 10]
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "10")]
    layers: Option<usize>,
    /// Fail (exit code 9) unless every engine is shown to be at most this many percent slower than its device kind's first;
    /// FIGURE is median, p99, throughput, memory, size or accuracy (in points); may be given several times
    #[arg(long, value_name = "[[SKU:]FIGURE=]PERCENT")]
    gate: Vec<Limit>,
    /// With --gate: write every figure that was judged to this file, as JUnit has test results
    #[arg(long, value_name = "FILE", requires = "gate")]
    junit: Option<PathBuf>,
}

pub fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let figures = imported::read(args.imported.as_deref())?;
    let named: Vec<String> = args.baseline.iter().chain(&args.reports).cloned().collect();
    let lock = args.baseline_lock.as_deref().map(lock_of).transpose()?;
    let of_farm = lock.is_some() || args.baseline_tag.is_some();
    let (found, own, precedents) = if !of_farm && !args.reports.is_empty() && reports::all_are_files(&named) {
        let base = args.baseline.iter().map(|name| newest_of_file(Path::new(name)));
        let read = base.chain(args.reports.iter().map(|name| reports::read_file(Path::new(name))));
        let found = read.collect::<Result<Vec<_>, _>>()?.concat();
        let own = context.block_on(async { Ok(portability::own_engines_at_hand(context, &found).await) })?;
        (found, own, None)
    } else {
        let selection = selection(context, &args)?;
        context.block_on(Farm::with(context, Need::Answers, async |farm| {
            let mut found = match &args.baseline {
                Some(name) => reports::find(context, farm, name).await?.into_iter().take(1).collect(),
                None => Vec::new(),
            };
            found.extend(select(context, farm, &args, &selection).await?);
            let own = portability::own_engines(farm, &found).await?;
            let precedents = match (&lock, &args.baseline_tag) {
                (Some(lock), _) => Some(baselines::of_lock(context, farm, lock, &found).await?),
                (None, Some(tag)) => Some(baselines::of_tag(context, farm, tag).await?),
                (None, None) => None,
            };
            Ok((found, own, precedents))
        }))?
    };
    let (found, comparison) = match precedents {
        Some(precedents) => {
            let (reports, bases) = baselines::beside(found, &precedents);
            let compared = compare::compare_each(&reports, &own, &bases);
            (reports, compared)
        }
        None => {
            let scheme = if args.baseline.is_some() { Scheme::Baseline } else { Scheme::Groups };
            let compared = match found.as_slice() {
                [only] if !figures.is_empty() => compare::alone(only),
                reports => compare::compare_among(reports, &own, scheme),
            };
            (found, compared)
        }
    };
    let comparison = comparison.map_err(|error| Failure::usage(error.to_string()))?;
    imported::some_fit(&figures, &found)?;
    let comparison = comparison.with_imported(&found, &figures);
    let comparison = if args.layers.is_some() { comparison.with_layers(&found) } else { comparison };
    let text = tables::comparison::render(&comparison, args.layers.unwrap_or_default());
    if args.gate.is_empty() {
        context.printer.data(&text)?;
        return context.printer.object(&comparison);
    }
    let gate = gate::judge(&comparison, &found, &args.gate);
    if let Some(path) = &args.junit {
        let junit = junit::of_gate(&gate, &comparison);
        durable::write(path, junit.as_bytes()).map_err(|error| Failure::io("write", path, &error))?;
    }
    context.printer.data(&format!("{text}\n{}", gate.render()))?;
    let mut document = serde_json::to_value(&comparison)
        .map_err(|e| Failure::new(ErrorCode::Internal, format!("cannot write the comparison as JSON: {e}")))?;
    document["gate"] = serde_json::json!(gate);
    context.printer.object(&document)?;
    if gate.passed { Ok(()) } else { Err(Failure::gate()) }
}

/// The newest report of a file.
fn newest_of_file(path: &Path) -> Result<Vec<Report>, Failure> {
    let mut read = reports::read_file(path)?;
    read.sort_by_key(|report| std::cmp::Reverse(report.provenance.measured_unix_ms));
    read.truncate(1);
    Ok(read)
}

/// What is to be compared; a model's file is identified here, before anybody is asked.
fn selection(context: &Context<'_>, args: &Args) -> Result<Selection, Failure> {
    Ok(match (&args.request, &args.model) {
        (Some(id), _) => Selection::Request(id.clone()),
        (None, Some(model)) if Path::new(model).is_file() => {
            Selection::Model(models::identify(&context.settings, Path::new(model))?.model.digest)
        }
        (None, Some(model)) => Selection::Model(model.clone()),
        (None, None) => Selection::Names,
    })
}

async fn select(
    context: &Context<'_>,
    farm: &Farm,
    args: &Args,
    selection: &Selection,
) -> Result<Vec<Report>, Failure> {
    match selection {
        Selection::Request(id) => reports::of_request(context, farm, id, !args.gate.is_empty()).await,
        Selection::Model(model) => reports::of_model(context, farm, model, &args.sku, &args.toolchain).await,
        Selection::Names => {
            let mut found = Vec::new();
            for name in &args.reports {
                // The newest of what the farm has; of a file what it holds.
                let most = if reports::is_report_file(Path::new(name)) { usize::MAX } else { 1 };
                found.extend(reports::find(context, farm, name).await?.into_iter().take(most));
            }
            Ok(found)
        }
    }
}
