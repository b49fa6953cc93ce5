//! `planforge prepare`: a model of other number types, with the report of what became of every layer. Needs no farm, but to
//! bring what a job of one made.

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    plans,
    preparation::{self, Data, write_whole},
    request::{
        prepare::{kind, method, target},
        script::Given,
    },
};
use planforge_precision::{Budget, Kind, Method, Options, Preparation, Target, cache};
use planforge_proto::{
    ErrorCode, v1,
    view::{kind_name, state_name},
};
use planforge_types::Digest;
use std::{
    fs,
    path::{Path, PathBuf},
};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// ONNX file
    #[arg(required_unless_present = "of")]
    model: Option<PathBuf>,
    /// Bring what a job of the farm prepared, with its report, instead of preparing anything
    #[arg(long, value_name = "JOB", conflicts_with_all = ["model", "precision", "calibration", "eval", "cache"])]
    of: Option<String>,
    /// What it becomes: int8, fp16, bf16, int8-weights or int4-weights
    #[arg(long, value_name = "PRECISION", value_parser = kind, required_unless_present = "of")]
    precision: Option<Kind>,
    /// Data to calibrate on: an .npz with one array per input, rows along its first axis, a folder of such files, or a script
    /// that writes one, called with MODEL.onnx OUT.npz
    #[arg(long, value_name = "FILE.npz|DIR|SCRIPT")]
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

impl Args {
    fn options(&self, precision: Kind) -> Options {
        let drop = self.max_accuracy_drop.map(Budget::AccuracyDrop);
        Options {
            method: self.method,
            per_tensor: self.per_tensor,
            equalize: !self.no_equalize,
            correct_bias: !self.no_bias_correction,
            budget: drop.or(self.max_output_error.map(Budget::OutputError)),
            keep: self.keep.clone(),
            group: self.group_size,
            ..Options::new(precision, self.target)
        }
    }
}

/// Brings what a job prepared to `output`, and its report beside it.
async fn bring(context: &Context<'_>, farm: &Farm, id: &str, output: &Path) -> Result<(), Failure> {
    let job =
        farm.rpc().get_job(v1::GetJobRequest { id: id.to_owned() }).await.map_err(|e| farm.error(e))?.into_inner();
    let preparation = job.preparation.clone().unwrap_or_default();
    let Some(model) = preparation.made.filter(|_| job.kind() == v1::JobKind::Prepare) else {
        let message = match job.kind() {
            v1::JobKind::Prepare => format!("job {} is {}: it made no model", job.id, state_name(job.state())),
            kind => format!("job {} is a {} job, which prepares nothing", job.id, kind_name(kind)),
        };
        let hint = match preparation.job.is_empty() || job.kind() == v1::JobKind::Prepare {
            true => "planforge jobs lists jobs with their kinds".to_owned(),
            false => format!("its model was prepared by job {}", preparation.job),
        };
        return Err(Failure::new(ErrorCode::NotFound, message).hint(hint));
    };
    plans::make_parent(output)?;
    let digest = |text: &str| {
        text.parse::<Digest>()
            .map_err(|e| Failure::new(ErrorCode::Internal, format!("a digest of job {}: {e}", job.id)))
    };
    // External data keeps its name, by which the model knows it.
    for (index, file) in model.files.iter().enumerate() {
        let path = if index == 0 { output.to_owned() } else { output.with_file_name(&file.name) };
        plans::download(context, farm, digest(&file.digest)?, file.size_bytes, &path).await?;
    }
    let report = output.with_extension("preparation.json");
    plans::download(context, farm, digest(&preparation.document_digest)?, 0, &report).await?;
    let text = fs::read(&report).map_err(|e| Failure::io("read", &report, &e))?;
    let mut document: serde_json::Value = serde_json::from_slice(&text)
        .map_err(|e| Failure::new(ErrorCode::Internal, format!("the report of job {}: {e}", job.id)))?;
    context.printer.data(&output.display().to_string())?;
    // A newer release may say it otherwise; then the file has to do.
    if let Ok(told) = serde_json::from_value::<Preparation>(document.clone()) {
        told.findings.iter().for_each(|finding| context.printer.warn(&finding.message));
        preparation::lines(&told).iter().for_each(|line| context.printer.note(line));
    }
    context.printer.note(&format!("every layer: {}", report.display()));
    document["output"] = serde_json::json!(output);
    document["report"] = serde_json::json!(report);
    context.printer.object(&document)
}

pub fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    if let Some(job) = &args.of {
        let brought = Farm::with(context, Need::Answers, async |farm| bring(context, farm, job, &args.output).await);
        return context.block_on(brought);
    }
    // Both are there, as the command line was read.
    let (Some(model), Some(precision)) = (&args.model, args.precision) else {
        return Err(Failure::usage("name a model and a precision"));
    };
    if args.cache.is_some() && precision != Kind::Int8 {
        return Err(Failure::usage(format!("a calibration cache is for int8, not {}", precision.name())));
    }
    if args.cache.is_some() && !args.options(precision).target.has_cache() {
        let target = args.options(precision).target.name();
        return Err(Failure::usage(format!("a calibration cache is TensorRT's, and the target is {target}"))
            .hint("leave --target out, or write the cache by a preparation of its own"));
    }
    let named = args.calibration.clone();
    let given = named.map(|named| Given::of(context, named, std::slice::from_ref(model))).transpose()?;
    let data = Data { calibration: given.as_ref().map(|given| &*given.path), eval: args.eval.as_deref() };
    let ready = preparation::run(context, model, &data, &args.options(precision))?;
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
