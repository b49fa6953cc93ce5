//! `planforge compare`: reports side by side, with a verdict for every pair, and a gate for pipelines.

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    portability,
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
use planforge_types::{Sku, ToolchainConstraint};
use std::path::Path;

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
    /// Show where engines spend their time differently, this many parts each [default: 10]
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "10")]
    layers: Option<usize>,
    /// Fail (exit code 9) unless every engine is shown to be at most this many percent slower than its device kind's first;
    /// FIGURE is median, p99, throughput, memory, size or accuracy (in points); may be given several times
    #[arg(long, value_name = "[[SKU:]FIGURE=]PERCENT")]
    gate: Vec<Limit>,
}

pub fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let named: Vec<String> = args.baseline.iter().chain(&args.reports).cloned().collect();
    let (found, own) = if !args.reports.is_empty() && reports::all_are_files(&named) {
        let base = args.baseline.iter().map(|name| newest_of_file(Path::new(name)));
        let read = base.chain(args.reports.iter().map(|name| reports::read_file(Path::new(name))));
        let found = read.collect::<Result<Vec<_>, _>>()?.concat();
        let own = context.block_on(async { Ok(portability::own_engines_at_hand(context, &found).await) })?;
        (found, own)
    } else {
        let selection = selection(context, &args)?;
        context.block_on(Farm::with(context, Need::Answers, async |farm| {
            let mut found = match &args.baseline {
                Some(name) => reports::find(context, farm, name).await?.into_iter().take(1).collect(),
                None => Vec::new(),
            };
            found.extend(select(context, farm, &args, &selection).await?);
            let own = portability::own_engines(farm, &found).await?;
            Ok((found, own))
        }))?
    };
    let scheme = if args.baseline.is_some() { Scheme::Baseline } else { Scheme::Groups };
    let comparison = compare::compare_among(&found, &own, scheme).map_err(|error| Failure::usage(error.to_string()))?;
    let comparison = if args.layers.is_some() { comparison.with_layers(&found) } else { comparison };
    let text = tables::comparison::render(&comparison, args.layers.unwrap_or_default());
    if args.gate.is_empty() {
        context.printer.data(&text)?;
        return context.printer.object(&comparison);
    }
    let gate = gate::judge(&comparison, &found, &args.gate);
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
