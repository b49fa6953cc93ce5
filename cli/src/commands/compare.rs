//! `planforge compare`: reports side by side, with a verdict for every pair.

use super::Context;
use crate::{
    failure::Failure,
    farm::{Farm, Need},
    reports,
};
use planforge_engine_core::{
    compare::{self, CompareError},
    report::Report,
};
use std::path::Path;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Jobs, engine keys, plan digests or report files; the first is what the others are compared with
    #[arg(required = true, num_args = 2.., value_name = "REPORT")]
    reports: Vec<String>,
}

pub fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let found = if reports::all_are_files(&args.reports) {
        args.reports.iter().map(|name| reports::read_file(Path::new(name))).collect::<Result<Vec<_>, _>>()?
    } else {
        let mut found = Vec::new();
        context.block_on(async {
            let farm = Farm::open(context, Need::Answers).await?;
            let result = newest(context, &farm, &args.reports, &mut found).await;
            farm.close(context.printer).await;
            result
        })?;
        found
    };
    let comparison = compare::compare(&found).map_err(|error| match &error {
        CompareError::Samples { index, source } => {
            let name = args.reports.get(*index).map_or("a report", String::as_str);
            Failure::usage(format!("the samples of '{name}' are damaged: {source}"))
        }
        _ => Failure::usage(error.to_string()),
    })?;
    context.printer.data(&comparison.render())?;
    context.printer.object(&comparison)
}

/// The newest report of each name.
async fn newest(context: &Context<'_>, farm: &Farm, names: &[String], found: &mut Vec<Report>) -> Result<(), Failure> {
    for name in names {
        found.extend(reports::find(context, farm, name).await?.into_iter().next());
    }
    Ok(())
}
