//! `planforge report`: the measurements of a job, engine or plan.

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    plans, portability,
    reports::{self, Found},
    tables,
};
use planforge_proto::{ErrorCode, view::ArtifactView};
use planforge_report::{
    Report,
    compare::portability::{Portability, portability},
};
use planforge_types::shown;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Job, engine key, plan file or its digest, or report file
    what: String,
    /// Every measurement, newest first; only the newest by default, but all that a file holds
    #[arg(long)]
    all: bool,
    /// Bring the files that the measurement left (a timeline, profile exports) to this folder
    #[arg(long, value_name = "DIR", conflicts_with = "all")]
    artifacts: Option<PathBuf>,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let (found, own) = if reports::is_report_file(Path::new(&args.what)) {
        let found: Vec<_> = reports::read_file(Path::new(&args.what))?.into_iter().map(Found::alone).collect();
        let own = portability::own_engines_at_hand(context, found.iter().map(|found| &found.report)).await;
        (found, own)
    } else {
        Farm::with(context, Need::Answers, async |farm| look(context, farm, &args).await).await?
    };
    let cells: Vec<_> = found.iter().map(|found| portability(&found.report, &own)).collect();
    let texts: Vec<_> = found.iter().zip(&cells).map(|(found, cell)| text(found, cell.as_ref())).collect();
    context.printer.data(&texts.join("\n"))?;
    let artifacts: Vec<Vec<ArtifactView>> =
        found.iter().map(|found| found.artifacts.iter().cloned().map(Into::into).collect()).collect();
    let reports: Vec<_> = found.into_iter().map(|found| found.report).collect();
    context.printer.object(&serde_json::json!({ "reports": reports, "artifacts": artifacts, "portability": cells }))
}

/// The reports that were asked for, and those of the engines that foreign plans among them are held against.
async fn look(context: &Context<'_>, farm: &Farm, args: &Args) -> Result<(Vec<Found>, Vec<Report>), Failure> {
    let mut found = reports::find_all(context, farm, &args.what).await?;
    if !args.all {
        found.truncate(1);
    }
    let own = portability::own_engines(farm, found.iter().map(|found| &found.report)).await?;
    let (Some(folder), Some(newest)) = (&args.artifacts, found.first()) else { return Ok((found, own)) };
    if newest.artifacts.is_empty() {
        return Err(Failure::new(ErrorCode::NotFound, format!("the newest report of '{}' left no files", args.what))
            .hint("ask for a timeline with: planforge bench --on SKU PLAN --trace"));
    }
    for artifact in &newest.artifacts {
        // A coordinator must not choose where on this machine a file lands.
        let plain = Path::new(&artifact.name).file_name().is_some_and(|name| name == artifact.name.as_str());
        let digest = artifact.digest.parse().ok().filter(|_| plain).ok_or_else(|| {
            Failure::new(ErrorCode::Internal, format!("the artifact '{}' has no usable name", artifact.name))
        })?;
        let path = folder.join(&artifact.name);
        plans::download(context, farm, digest, artifact.size_bytes, &path).await?;
        context.printer.note(&format!("{}: {}", path.display(), tables::bytes(artifact.size_bytes)));
    }
    Ok((found, own))
}

/// A report in words.
pub fn text(found: &Found, cell: Option<&Portability>) -> String {
    let mut text = tables::report::render(&found.report, cell.map(Portability::words).as_deref());
    for artifact in &found.artifacts {
        let line = format!("artifact {} ({})", artifact.name, tables::bytes(artifact.size_bytes));
        text.push_str(&shown::line(&line));
        text.push('\n');
    }
    text
}
