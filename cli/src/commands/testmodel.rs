//! `planforge testmodel`: real architectures to try the farm with, written without any download.

use crate::{context::Context, failure::Failure, plans, tables};
use planforge_modelgen::{Batch, DECODERS, GenerateError, LayerNormForm, MODELS, Options, Precision, Style};
use planforge_onnx::write::Storage;
use planforge_proto::ErrorCode;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the model, as --list shows it
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// File or folder to write to; NAME.onnx here by default
    #[arg(short, long, value_name = "DIR|FILE")]
    output: Option<PathBuf>,
    /// List the models, a name a line
    #[arg(long, conflicts_with_all = ["name", "output"])]
    list: bool,
    /// Another seed gives other weights
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Put the weights into a file beside the model
    #[arg(long)]
    external_data: bool,
    /// Size of the first dimension of all inputs and outputs, or 'dynamic' to leave it open
    #[arg(long, value_name = "N|dynamic", default_value = "1", value_parser = batch)]
    batch: Batch,
    /// Leave the number of tokens open as well, up to 512: for models that read text
    #[arg(long)]
    dynamic_sequence: bool,
    /// What weights are stored in and what is computed with
    #[arg(long, value_name = "NAME", value_enum, default_value = "fp32")]
    precision: Stored,
    /// Write layer normalisation as means, differences and roots instead of one operator
    #[arg(long)]
    primitive_norms: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Stored {
    /// Single precision
    Fp32,
    /// Half precision between single-precision inputs and outputs
    Fp16,
    /// QuantizeLinear and DequantizeLinear around products and convolutions, weights as int8
    Int8,
}

impl From<Stored> for Precision {
    fn from(stored: Stored) -> Self {
        match stored {
            Stored::Fp32 => Self::Fp32,
            Stored::Fp16 => Self::Fp16,
            Stored::Int8 => Self::Int8,
        }
    }
}

/// Batches a file may be fixed to; beyond it no device has the memory.
const MAX_BATCH: u32 = 4096;

fn batch(given: &str) -> Result<Batch, String> {
    match (given, given.parse()) {
        ("dynamic", _) => Ok(Batch::Dynamic),
        (_, Ok(size)) if (1..=MAX_BATCH).contains(&size) => Ok(Batch::Fixed(size)),
        _ => Err(format!("a batch is 'dynamic' or a number from 1 to {MAX_BATCH}")),
    }
}

pub fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    match args.name {
        Some(ref name) if !args.list => write(context, name, &args),
        _ => list(context),
    }
}

fn list(context: &Context<'_>) -> Result<(), Failure> {
    let width = MODELS.iter().chain(DECODERS).map(|model| model.name.len()).max().unwrap_or(0);
    let lines: Vec<_> =
        MODELS.iter().chain(DECODERS).map(|m| format!("{:width$}  {}", m.name, m.description)).collect();
    context.printer.data(&lines.join("\n"))?;
    let models: Vec<_> = MODELS
        .iter()
        .chain(DECODERS)
        .map(|m| serde_json::json!({ "name": m.name, "description": m.description, "parameters": m.parameters }))
        .collect();
    context.printer.object(&serde_json::json!({ "models": models }))
}

fn write(context: &Context<'_>, name: &str, args: &Args) -> Result<(), Failure> {
    let model = planforge_modelgen::find(name)?;
    let file = format!("{}.onnx", model.name);
    let path = match &args.output {
        Some(output) => plans::destination(output, &file),
        None => PathBuf::from(&file),
    };
    plans::make_parent(&path)?;
    let storage = if args.external_data { Storage::External } else { Storage::Inline };
    let layer_norm = if args.primitive_norms { LayerNormForm::Primitives } else { LayerNormForm::Operator };
    let style = Style { batch: args.batch, layer_norm, open_sequence: args.dynamic_sequence };
    let options = Options { seed: args.seed, storage, style, precision: args.precision.into() };
    let spinner = context.printer.spinner(&format!("writing {}", path.display()));
    let written = planforge_modelgen::generate(name, &options, &path);
    spinner.clear();
    let written = written?;
    context.printer.data(&path.display().to_string())?;
    let size = tables::bytes(written.size_bytes);
    context
        .printer
        .note(&format!("{}: {} parameters, {} nodes, {size}", model.name, written.parameters, written.nodes));
    context.printer.object(&serde_json::json!({
        "name": model.name,
        "path": path,
        "size_bytes": written.size_bytes,
        "parameters": written.parameters,
        "nodes": written.nodes,
    }))
}

impl From<GenerateError> for Failure {
    fn from(error: GenerateError) -> Self {
        let code = match &error {
            GenerateError::Trained { .. } => {
                return Self::usage(error.to_string()).hint("leave out --precision and --primitive-norms");
            }
            GenerateError::Step { .. } => {
                return Self::usage(error.to_string()).hint("leave out --batch, --dynamic-sequence and int8");
            }
            GenerateError::NoSequence { .. } => {
                return Self::usage(error.to_string()).hint("leave out --dynamic-sequence");
            }
            GenerateError::Unknown { .. } => return Self::usage(error.to_string()).hint("planforge testmodel --list"),
            _ => ErrorCode::InvalidArgument,
        };
        Self::new(code, error.to_string())
    }
}
