//! `planforge report`: the measurements of a job, engine or plan.

use super::Context;
use crate::{
    failure::Failure,
    farm::{Farm, Need},
    reports,
};
use std::path::Path;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Job, engine key, plan digest or report file
    what: String,
    /// Every measurement, newest first; only the newest by default
    #[arg(long)]
    all: bool,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let mut found = if Path::new(&args.what).is_file() {
        vec![reports::read_file(Path::new(&args.what))?]
    } else {
        let farm = Farm::open(context, Need::Answers).await?;
        let found = reports::find(context, &farm, &args.what).await;
        farm.close(context.printer).await;
        found?
    };
    if !args.all {
        found.truncate(1);
    }
    let texts: Vec<_> = found.iter().map(planforge_engine_core::report::Report::render).collect();
    context.printer.data(&texts.join("\n"))?;
    context.printer.object(&serde_json::json!({ "reports": found }))
}
