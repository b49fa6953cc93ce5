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
    compare::{self, gate},
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
    /// Fail (exit code 9) unless every engine is shown to be at most this many percent slower than its device kind's first
    #[arg(long, value_name = "PERCENT", value_parser = allowance)]
    gate: Option<f64>,
}

fn allowance(text: &str) -> Result<f64, String> {
    let percent: f64 = text.trim_end_matches('%').parse().map_err(|_| format!("'{text}' is no number of percent"))?;
    if (0.0..=1000.0).contains(&percent) { Ok(percent) } else { Err("between 0 and 1000 percent".into()) }
}

pub fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let (found, own) = if !args.reports.is_empty() && reports::all_are_files(&args.reports) {
        let read = args.reports.iter().map(|name| reports::read_file(Path::new(name)));
        let found = read.collect::<Result<Vec<_>, _>>()?.concat();
        let own = context.block_on(async { Ok(portability::own_engines_at_hand(context, &found).await) })?;
        (found, own)
    } else {
        let selection = selection(context, &args)?;
        context.block_on(Farm::with(context, Need::Answers, async |farm| {
            let found = select(context, farm, &args, &selection).await?;
            let own = portability::own_engines(farm, &found).await?;
            Ok((found, own))
        }))?
    };
    let comparison = compare::compare_among(&found, &own).map_err(|error| Failure::usage(error.to_string()))?;
    let Some(allowed_percent) = args.gate else {
        context.printer.data(&tables::comparison::render(&comparison))?;
        return context.printer.object(&comparison);
    };
    let gate = gate::judge(&comparison, allowed_percent);
    context.printer.data(&format!("{}\n{}", tables::comparison::render(&comparison), gate.render()))?;
    let mut document = serde_json::to_value(&comparison)
        .map_err(|e| Failure::new(ErrorCode::Internal, format!("cannot write the comparison as JSON: {e}")))?;
    document["gate"] = serde_json::json!(gate);
    context.printer.object(&document)?;
    if gate.passed { Ok(()) } else { Err(Failure::gate()) }
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
        Selection::Request(id) => reports::of_request(context, farm, id, args.gate.is_some()).await,
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
