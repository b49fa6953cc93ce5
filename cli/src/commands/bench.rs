//! `planforge bench`: measures a plan or what is built from a model: on this machine, as an agent would, without a farm;
//! or a plan on devices of the farm; or how an engine does under load.

mod here;
mod load;
mod on;

use crate::{
    context::Context,
    failure::Failure,
    request::{extras::MeasureArgs, parse_precision},
    wait::Patience,
};
use planforge_fleet::shapes;
use planforge_types::{OptimizationProfile, Precision, Requirement, Sku, ToolchainConstraint};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Plan to measure, or ONNX file of a model to build and measure here; with --on a plan, its digest or an engine key
    #[arg(value_name = "PLAN|ONNX|DIGEST")]
    plan: PathBuf,
    /// Measure on devices of this kind of the farm, also of another kind than the plan was built for: such results are
    /// marked as foreign; repeat for several
    #[arg(long, value_name = "SKU", value_delimiter = ',')]
    on: Vec<Sku>,
    /// With --on: return once the jobs are submitted
    #[arg(long, requires = "on")]
    detach: bool,
    /// With --on: keep jobs that no known device can run until one can
    #[arg(long, requires = "on")]
    wait_for_device: bool,
    /// With --on: only on a device with this, as for 'planforge submit': memory=40GiB, driver=570, mig=none or label=NAME;
    /// repeat for several
    #[arg(long = "require", value_name = "KEY=VALUE", requires = "on")]
    requires: Vec<Requirement>,
    /// With --on: higher goes first
    #[arg(long, value_name = "N", requires = "on", allow_negative_numbers = true,
          value_parser = clap::value_parser!(i32).range(-100..=100))]
    priority: Option<i32>,
    #[command(flatten)]
    measure: MeasureArgs,
    #[command(flatten)]
    patience: Patience,
    /// The model a plan was built from; its outputs are then checked, and a baseline can be built
    #[arg(long, value_name = "ONNX", conflicts_with = "on")]
    model: Option<PathBuf>,
    /// Build the model with this toolchain too, such as onnxruntime, measure that and compare
    #[arg(long, value_name = "CONSTRAINT", conflicts_with = "on")]
    baseline: Option<ToolchainConstraint>,
    /// Toolchain that a model is built with; the best of the device by default
    #[arg(long, value_name = "CONSTRAINT", conflicts_with = "on")]
    toolchain: Option<ToolchainConstraint>,
    /// Build a model for this machine's NVIDIA device, not for its processor
    #[arg(long, conflicts_with = "on")]
    gpu: bool,
    /// Precision that a model is built in
    #[arg(long, value_name = "PRECISION", default_value = "fp32", conflicts_with = "on", value_parser = parse_precision)]
    precision: Precision,
    /// On this machine's NVIDIA device: GELU by tanh may stand in for GELU by erf where that is quicker
    #[arg(long, requires = "gpu")]
    approximate_gelu: bool,
    /// Input shapes that a model is built for, such as images:1x3x224x224
    #[arg(long, value_name = "NAME:SHAPE,...", conflicts_with = "on", value_parser = shapes::parse)]
    shapes: Vec<OptimizationProfile>,
    /// Labelled test set (.npz) for the accuracy
    #[arg(long, value_name = "FILE.npz")]
    eval: Option<PathBuf>,
    /// CPU threads; as the plan says by default, every core for a model
    #[arg(long, value_name = "N", conflicts_with = "on", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Longest each measurement may take, in seconds, even where comparisons need more; 30, or what they need, by default
    #[arg(long, value_name = "S", conflicts_with = "on", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    budget_s: Option<u64>,
    /// Write the report to this file
    #[arg(short, long, value_name = "FILE", conflicts_with = "on")]
    output: Option<PathBuf>,
    /// Write the baseline's report to this file
    #[arg(long, value_name = "FILE", requires = "baseline")]
    baseline_output: Option<PathBuf>,
    #[command(flatten)]
    load: load::LoadArgs,
}

/// Said of a plan that runs here although it was built on another kind of device.
pub const FOREIGN: &str =
    "a foreign plan: its tactics were timed on another kind of device, so another plan may be faster here";

pub fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    if !args.on.is_empty() {
        return context.block_on(on::run(context, &args));
    }
    if args.patience.timeout.is_some() {
        return Err(Failure::usage("--timeout is about waiting for the farm, with --on")
            .hint("--budget-s says how long a measurement here may take"));
    }
    match args.load.is_asked() {
        true => load::run(context, &args),
        false => here::run(context, &args),
    }
}
