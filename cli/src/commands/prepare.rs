//! `planforge prepare`: a model of other number types, with the report of what became of every layer. Needs no farm.

use crate::{
    context::Context,
    failure::Failure,
    preparation::{self, Data, write_whole},
};
use planforge_precision::{Budget, Kind, Method, Options, Target, cache};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// ONNX file
    model: PathBuf,
    /// What it becomes: int8, fp16, bf16, int8-weights or int4-weights
    #[arg(long, value_name = "PRECISION", value_parser = kind)]
    precision: Kind,
    /// Data to calibrate on: an .npz with one array per input, rows along its first axis, or a folder of such files
    #[arg(long, value_name = "FILE.npz|DIR")]
    calibration: Option<PathBuf>,
    /// Labelled data (.npz with 'labels') that the loss is measured on; the calibration data by default
    #[arg(long, value_name = "FILE.npz")]
    eval: Option<PathBuf>,
    /// Where the prepared model goes; its report lies beside it as .preparation.json
    #[arg(short, long, value_name = "OUT.onnx")]
    output: PathBuf,
    /// Who is to run it: any, tensorrt, onnxruntime or cpu
    #[arg(long, value_name = "NAME", default_value = "any", value_parser = target)]
    target: Target,
    /// How int8 ranges are chosen: mse, min-max, percentile or entropy
    #[arg(long, value_name = "METHOD", default_value = "mse", value_parser = method)]
    method: Method,
    /// Points of top-1 accuracy that may be lost, such as 0.5; needs labels
    #[arg(long, value_name = "POINTS", conflicts_with = "max_output_error")]
    max_accuracy_drop: Option<f64>,
    /// Relative error of the outputs that may be made, such as 0.02
    #[arg(long, value_name = "ERROR")]
    max_output_error: Option<f64>,
    /// Layer that stays as it is; repeat for several
    #[arg(long, value_name = "LAYER")]
    keep: Vec<String>,
    /// Weights that share a scale, for int8-weights and int4-weights: 16, 32, 64, …
    #[arg(long, value_name = "N")]
    group_size: Option<usize>,
    /// One int8 scale for all weights of a layer, rather than one an output
    #[arg(long)]
    per_tensor: bool,
    /// Do not even out channels before int8
    #[arg(long)]
    no_equalize: bool,
    /// Do not correct biases for what rounding weights to int8 adds on average
    #[arg(long)]
    no_bias_correction: bool,
    /// Write TensorRT's calibration cache, too, for the model as it was; up to 10.16
    #[arg(long, value_name = "FILE", requires = "tensorrt_version")]
    cache: Option<PathBuf>,
    /// TensorRT that is to read the cache, such as 10.3.0
    #[arg(long, value_name = "VERSION", requires = "cache")]
    tensorrt_version: Option<String>,
}

fn named<T: Copy>(text: &str, all: &[T], name: impl Fn(T) -> &'static str) -> Result<T, String> {
    all.iter().copied().find(|one| name(*one) == text).ok_or_else(|| {
        let names = all.iter().map(|one| name(*one)).collect::<Vec<_>>().join(", ");
        format!("'{text}' is none of {names}")
    })
}

fn kind(text: &str) -> Result<Kind, String> {
    named(text, &Kind::ALL, Kind::name)
}

fn target(text: &str) -> Result<Target, String> {
    named(text, &Target::ALL, Target::name)
}

fn method(text: &str) -> Result<Method, String> {
    named(text, &Method::ALL, Method::name)
}

impl Args {
    fn options(&self) -> Options {
        let drop = self.max_accuracy_drop.map(Budget::AccuracyDrop);
        Options {
            method: self.method,
            per_tensor: self.per_tensor,
            equalize: !self.no_equalize,
            correct_bias: !self.no_bias_correction,
            budget: drop.or(self.max_output_error.map(Budget::OutputError)),
            keep: self.keep.clone(),
            group: self.group_size,
            ..Options::new(self.precision, self.target)
        }
    }
}

pub fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    if args.cache.is_some() && args.precision != Kind::Int8 {
        return Err(Failure::usage(format!("a calibration cache is for int8, not {}", args.precision.name())));
    }
    let data = Data { calibration: args.calibration.as_deref(), eval: args.eval.as_deref() };
    let ready = preparation::run(context, &args.model, &data, &args.options())?;
    // Everything that can be refused is, before anything is written.
    let text = match &args.tensorrt_version {
        Some(version) => Some(cache::text(version, &ready.prepared.scales)?),
        None => None,
    };
    let (report, mut document) = ready.write(&args.output)?;
    if let (Some(path), Some(text)) = (&args.cache, &text) {
        write_whole(path, text.as_bytes())?;
        document["cache"] = serde_json::json!(path);
    }
    for finding in &ready.prepared.report.findings {
        context.printer.warn(&finding.message);
    }
    context.printer.data(&args.output.display().to_string())?;
    for line in preparation::lines(&ready.prepared.report) {
        context.printer.note(&line);
    }
    context.printer.note(&format!("every layer: {}", report.display()));
    document["output"] = serde_json::json!(args.output);
    document["report"] = serde_json::json!(report);
    context.printer.object(&document)
}
