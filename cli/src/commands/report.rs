//! `planforge report`: the measurements of jobs, engines and plans, on a screen or as a document.

mod document;
mod story;
mod told;

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    imported, plans, portability,
    reports::{self, Found},
    tables,
};
use document::Format;
use planforge_advice::{advise, bound};
use planforge_proto::{ErrorCode, view::ArtifactView};
use planforge_report::{
    Report,
    compare::portability::{Portability, portability},
    schema::SCHEMA,
    sweep::Sweep,
};
use planforge_types::shown;
use std::path::{Path, PathBuf};

/// What engines are held against where nobody says.
const USUAL_BASELINE: &str = "onnxruntime";

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Jobs, engine keys, plan files or their digests, report files; several are shown beside each other
    #[arg(value_name = "WHAT", required_unless_present_any = ["schema", "request", "story"])]
    what: Vec<String>,
    /// Every report of this request: what each axis of a sweep does, speed-ups over the baseline, the best points
    #[arg(long, value_name = "ID", conflicts_with_all = ["what", "all", "artifacts"])]
    request: Option<String>,
    /// With --request: the backend that the others are held against; onnxruntime where the request has engines of it
    #[arg(long, value_name = "BACKEND", requires = "request")]
    baseline: Option<String>,
    /// With --request: figures that were measured elsewhere as baselines too, marked and not judged: JSON or CSV with name,
    /// device, precision, batch, median_ms and source, and model where it is of one alone
    #[arg(long, value_name = "FILE", requires = "request")]
    imported: Option<PathBuf>,
    /// Every measurement, newest first; only the newest by default, but all that a file holds
    #[arg(long)]
    all: bool,
    /// Bring the files that the measurement left (a timeline, profile exports) to this folder
    #[arg(long, value_name = "DIR", conflicts_with = "all")]
    artifacts: Option<PathBuf>,
    /// Write a document instead: one HTML file, Markdown for a pull request, CSV with a figure a line, or the JSON
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    /// Write the document to this file; its ending names the format
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print the JSON Schema of reports
    #[arg(long, conflicts_with_all = ["what", "all", "artifacts", "format", "output", "request"])]
    schema: bool,
    #[command(flatten)]
    story: story::StoryArgs,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    if args.schema {
        context.printer.data(SCHEMA)?;
        return context.printer.object(&serde_json::from_str::<serde_json::Value>(SCHEMA).unwrap_or_default());
    }
    let format = document::format(args.format, args.output.as_deref())?;
    if let Some(told) = story::run(context, &args.story, format, args.output.as_deref()).await {
        return told;
    }
    let figures = imported::read(args.imported.as_deref())?;
    let (found, own) = if let Some(id) = &args.request {
        Farm::with(context, Need::Answers, async |farm| {
            let found = reports::of_request(context, farm, id, false).await?;
            if found.is_empty() {
                return Err(Failure::new(ErrorCode::NotFound, format!("no job of request {id} was measured yet"))
                    .hint(format!("planforge jobs --request {id} says how they stand")));
            }
            let own = portability::own_engines(farm, &found).await?;
            Ok((found.into_iter().map(Found::alone).collect::<Vec<_>>(), own))
        })
        .await?
    } else if reports::all_are_files(&args.what) {
        let read = args.what.iter().map(|name| reports::read_file(Path::new(name)));
        let found: Vec<_> = read.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().map(Found::alone).collect();
        let own = portability::own_engines_at_hand(context, found.iter().map(|found| &found.report)).await;
        (found, own)
    } else {
        Farm::with(context, Need::Answers, async |farm| look(context, farm, &args).await).await?
    };
    // Of several reports one may be the engine that another is held against.
    let known = || own.iter().chain(found.iter().map(|found| &found.report));
    let cells: Vec<_> = found.iter().map(|found| portability(&found.report, known())).collect();
    let all: Vec<Report> = known().cloned().collect();
    let advice: Vec<_> = found.iter().map(|found| advise(&found.report, &all)).collect();
    let bounds: Vec<_> = found.iter().map(|found| bound::of_engine(&found.report)).collect();
    let texts = found.iter().enumerate().map(|(index, found)| {
        let told = tables::advice::render(bounds[index].as_ref(), &advice[index]);
        format!("{}{told}", text(found, cells[index].as_ref()))
    });
    let texts: Vec<String> = texts.collect();
    let artifacts: Vec<Vec<ArtifactView>> =
        found.iter().map(|found| found.artifacts.iter().cloned().map(Into::into).collect()).collect();
    let reports: Vec<_> = found.into_iter().map(|found| found.report).collect();
    imported::some_fit(&figures, &reports)?;
    let sweep = args.request.is_some().then(|| Sweep::with(&reports, baseline(&args, &reports).as_deref(), &figures));
    let mut object = serde_json::json!({
        "reports": reports, "artifacts": artifacts, "portability": cells, "bounds": bounds, "advice": advice,
    });
    if let Some(sweep) = &sweep {
        object["sweep"] = serde_json::json!(sweep);
    }
    if let Some(format) = format {
        let document = document::render(format, &reports, &cells, &own, sweep.as_ref(), &object)?;
        return document::write(context, args.output.as_deref(), &document, &object);
    }
    match &sweep {
        // The children are many: what they say together comes first, each by itself where it is asked for.
        Some(sweep) => context.printer.data(&tables::sweep::render(sweep, &reports))?,
        None => context.printer.data(&texts.join("\n"))?,
    }
    context.printer.object(&object)
}

/// The backend that the engines of a request are held against.
fn baseline(args: &Args, reports: &[Report]) -> Option<String> {
    let is = |report: &Report| report.toolchain.backend == USUAL_BASELINE;
    let mixed = reports.iter().any(is) && !reports.iter().all(is);
    args.baseline.clone().or_else(|| mixed.then(|| USUAL_BASELINE.to_owned()))
}

/// The reports that were asked for, and those of the engines that foreign plans among them are held against.
async fn look(context: &Context<'_>, farm: &Farm, args: &Args) -> Result<(Vec<Found>, Vec<Report>), Failure> {
    let mut found = Vec::new();
    for name in &args.what {
        let mut named = reports::find_all(context, farm, name).await?;
        // Of what is named beside others a file brings all that it holds.
        if !args.all && !reports::is_report_file(Path::new(name)) {
            named.truncate(1);
        }
        found.extend(named);
    }
    let own = portability::own_engines(farm, found.iter().map(|found| &found.report)).await?;
    if args.artifacts.is_some() && args.what.len() > 1 {
        return Err(Failure::usage("--artifacts brings the files of one report").hint("name one job, engine or plan"));
    }
    let (Some(folder), Some(newest)) = (&args.artifacts, found.first()) else { return Ok((found, own)) };
    if newest.artifacts.is_empty() {
        return Err(Failure::new(
            ErrorCode::NotFound,
            format!("the newest report of '{}' left no files", args.what[0]),
        )
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
