//! `planforge matrix`: plans built for each device kind, measured on each: where one plan may serve several kinds.
//!
//! What was measured is looked up. With --measure what is missing is built and measured first, as `submit` and
//! `bench --on` would.

mod lookup;
mod measure;

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    request::{self, parse_precision},
    tables,
    wait::Patience,
};
use lookup::{Looked, Wanted};
use planforge_documents::matrix as document;
use planforge_proto::ErrorCode;
use planforge_report::matrix::{Classes, Matrix, classes};
use planforge_types::{BuildSpec, Precision, Requirement, Sku, ToolchainConstraint, durable};
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// ONNX files, or models' names or the beginnings of their digests; several are evidence of which kinds may stand for
    /// each other
    #[arg(value_name = "MODEL", required = true)]
    models: Vec<String>,
    /// Device kinds, two or more
    #[arg(long, value_name = "SKU", value_delimiter = ',', required = true)]
    sku: Vec<Sku>,
    /// Engines of this toolchain; of what was built for most of the device kinds by default
    #[arg(long, value_name = "CONSTRAINT", default_value = "", hide_default_value = true)]
    toolchain: ToolchainConstraint,
    /// Engines of this precision
    #[arg(long, value_name = "PRECISION", default_value = "fp32", value_parser = parse_precision)]
    precision: Precision,
    /// Engines of this spec, as JSON or a file of it
    #[arg(long, value_name = "JSON|FILE", conflicts_with = "precision")]
    spec: Option<String>,
    /// Build and measure what is missing first, and wait for it
    #[arg(long)]
    measure: bool,
    /// With --measure: keep jobs that no known device can run until one can
    #[arg(long, requires = "measure")]
    wait_for_device: bool,
    /// With --measure: only on a device with this, as for 'planforge submit': memory=40GiB, driver=570, mig=none or label=NAME;
    /// repeat for several
    #[arg(long = "require", value_name = "KEY=VALUE", requires = "measure")]
    requires: Vec<Requirement>,
    #[command(flatten)]
    patience: Patience,
    /// Write the matrix to this file: .html with a heat map, .md or .json
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let mut skus: Vec<Sku> = Vec::new();
    for sku in &args.sku {
        if !skus.contains(sku) {
            skus.push(sku.clone());
        }
    }
    if skus.len() < 2 {
        return Err(Failure::usage("a matrix takes two device kinds or more")
            .hint("add --sku A,B; planforge devices lists them"));
    }
    if args.patience.timeout.is_some() && !args.measure {
        return Err(Failure::usage("--timeout is about waiting").hint("add --measure"));
    }
    let format = args.output.as_deref().map(Format::of).transpose()?;
    let spec = spec(&args)?;
    let requires = request::requires(&args.requires)?;
    let wanted: Vec<Wanted> = args
        .models
        .iter()
        .map(|model| Wanted::of(context, model, &skus, &spec, &args.toolchain))
        .collect::<Result<_, _>>()?;
    let need = if args.measure { Need::Work } else { Need::Answers };
    let (matrices, all_done) = Farm::with(context, need, async |farm| {
        let (mut matrices, mut all_done) = (Vec::new(), true);
        for wanted in &wanted {
            let mut looked = Looked::at(context, farm, wanted).await?;
            if args.measure {
                let job = measure::Measuring {
                    context,
                    farm,
                    wait_for_device: args.wait_for_device,
                    requires: &requires,
                    patience: args.patience,
                };
                all_done &= job.complete(wanted, &mut looked).await?;
            }
            matrices.push(looked.matrix(wanted)?);
        }
        Ok((matrices, all_done))
    })
    .await?;
    let classes = classes(&matrices);
    let text: Vec<String> = matrices.iter().map(tables::matrix::render).collect();
    context.printer.data(&format!("{}\n{}", text.join("\n"), tables::matrix::classes(&classes)))?;
    let object = serde_json::json!({ "matrices": matrices, "classes": classes });
    if let (Some(path), Some(format)) = (&args.output, format) {
        write(context, path, &format.render(&matrices, &classes, &object)?)?;
    }
    context.printer.object(&object)?;
    if all_done { Ok(()) } else { Err(Failure::jobs_failed()) }
}

fn spec(args: &Args) -> Result<BuildSpec, Failure> {
    let Some(text) = &args.spec else {
        return Ok(BuildSpec { precision: args.precision, ..BuildSpec::default() }.canonical());
    };
    let path = Path::new(text);
    let read = match path.is_file() {
        true => std::fs::read_to_string(path).map_err(|error| Failure::io("read", path, &error))?,
        false => text.clone(),
    };
    BuildSpec::parse(&read).map_err(|error| Failure::usage(format!("--spec {text}: {error}")))
}

/// What a matrix is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Html,
    Markdown,
    Json,
}

impl Format {
    fn of(path: &Path) -> Result<Self, Failure> {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("html" | "htm") => Ok(Self::Html),
            Some("md" | "markdown") => Ok(Self::Markdown),
            Some("json") => Ok(Self::Json),
            _ => Err(Failure::usage(format!("the ending of {} names no format", path.display()))
                .hint("end it in .html, .md or .json")),
        }
    }

    fn render(self, matrices: &[Matrix], classes: &Classes, object: &serde_json::Value) -> Result<String, Failure> {
        Ok(match self {
            Self::Html => planforge_documents::html::matrix(matrices, classes),
            Self::Markdown => document::markdown(matrices, classes),
            Self::Json => serde_json::to_string_pretty(object).map_err(|error| {
                Failure::new(ErrorCode::Internal, format!("cannot write the matrix as JSON: {error}"))
            })?,
        })
    }
}

fn write(context: &Context<'_>, path: &Path, document: &str) -> Result<(), Failure> {
    durable::write(path, document.as_bytes()).map_err(|error| Failure::io("write", path, &error))?;
    context.printer.note(&format!("{}: {}", path.display(), tables::bytes(document.len() as u64)));
    Ok(())
}
