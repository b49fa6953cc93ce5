//! `planforge bench`: measures a plan: on this machine, as an agent would, without a farm; or on devices of the farm.

mod on;

use super::{Context, inspect::inspect_plan};
use crate::{
    backends,
    failure::Failure,
    request::{extras::MeasureArgs, models},
};
use planforge_agent::HostDevices;
use planforge_engine_core::{
    backend::{BackendError, Cancel},
    device::{CpuLevel, DiscoveredDevice},
    identity::{EngineKey, Sku},
    native::Inspection,
    report::Report,
    telemetry,
    worker::{self, WorkEvent, WorkKind, WorkOrder},
};
use planforge_proto::ErrorCode;
use std::{
    io,
    path::{Path, PathBuf},
};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Plan to measure; with --on also the digest of a plan, or an engine key
    #[arg(value_name = "PLAN|DIGEST")]
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
    /// With --on: higher goes first
    #[arg(long, value_name = "N", requires = "on", allow_negative_numbers = true,
          value_parser = clap::value_parser!(i32).range(-100..=100))]
    priority: Option<i32>,
    #[command(flatten)]
    measure: MeasureArgs,
    /// The model it was built from; its outputs are then checked against the reference operators
    #[arg(long, value_name = "ONNX", conflicts_with = "on")]
    model: Option<PathBuf>,
    /// Labelled test set (.npz) for the accuracy
    #[arg(long, value_name = "FILE.npz")]
    eval: Option<PathBuf>,
    /// CPU threads; as the plan says by default
    #[arg(long, value_name = "N", conflicts_with = "on", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Longest the measurement may take, in seconds
    #[arg(long, value_name = "S", default_value_t = 30, conflicts_with = "on", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    budget_s: u64,
    /// Write the report to this file
    #[arg(short, long, value_name = "FILE", conflicts_with = "on")]
    output: Option<PathBuf>,
}

/// Said of a plan that runs here although it was built on another kind of processor.
pub const FOREIGN: &str =
    "a foreign plan: its tactics were timed on another kind of CPU, so another plan may be faster here";

pub fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    if !args.on.is_empty() {
        return context.block_on(on::run(context, &args));
    }
    let plan = inspect_plan(&args.plan)?;
    if plan.foreign {
        context.printer.warn(FOREIGN);
    }
    let device = this_cpu()?;
    let scratch = tempfile::tempdir().map_err(|e| Failure::io("create a folder in", &std::env::temp_dir(), &e))?;
    let order = order(context, &args, plan, &device, scratch.path())?;
    let report = measure(context, &order)?;
    let text = report.render();
    if let Some(output) = &args.output {
        let json = serde_json::to_vec_pretty(&report)
            .map_err(|e| Failure::new(ErrorCode::Internal, format!("cannot write the report as JSON: {e}")))?;
        std::fs::write(output, json).map_err(|e| Failure::io("write", output, &e))?;
    }
    context.printer.data(&text)?;
    context.printer.object(&report)
}

fn this_cpu() -> Result<DiscoveredDevice, Failure> {
    let devices = HostDevices::new(backends::compilers(), None).discover();
    devices
        .into_iter()
        .find(|device| device.threads > 0)
        .ok_or_else(|| Failure::new(ErrorCode::Refused, "this machine's processor has no known instruction-set level"))
}

/// What the plan is measured as: its own SKU where this processor has it, else the best one here, marked as foreign.
fn order(
    context: &Context<'_>,
    args: &Args,
    plan: Inspection,
    device: &DiscoveredDevice,
    scratch: &Path,
) -> Result<WorkOrder, Failure> {
    if CpuLevel::of_sku(&plan.sku).is_some() && !device.skus.contains(&plan.sku) {
        let here = device.skus.iter().map(Sku::to_string).collect::<Vec<_>>().join(", ");
        return Err(Failure::usage(format!("the plan is for {}; this machine runs {here}", plan.sku))
            .hint("fetch the engine of one of these"));
    }
    let model = args.model.as_deref().map(|path| models::identify(&context.settings, path)).transpose()?;
    if let Some(model) = model.as_ref().filter(|m| m.model.digest != plan.model_digest.to_string()) {
        let message = format!("the plan was built from sha256:{}, not from {}", plan.model_digest, model.model.name);
        return Err(Failure::usage(message));
    }
    let mut spec = plan.spec.clone();
    spec.threads = args.threads.or(spec.threads).or(Some(plan.threads));
    Ok(WorkOrder {
        kind: WorkKind::Benchmark,
        job: "bench".into(),
        attempt: 1,
        agent: "this machine".into(),
        engine_key: EngineKey::new(&plan.model_digest, &plan.sku, &plan.toolchain, &plan.spec),
        model: args.model.clone().unwrap_or_default(),
        model_name: model.map_or_else(|| plan.graph.name.clone(), |m| m.model.name),
        model_digest: plan.model_digest,
        graph_digest: None,
        structure_digest: None,
        sku: plan.sku,
        toolchain: plan.toolchain,
        spec,
        fingerprint: serde_json::to_value(&device.fingerprint)
            .map_err(|e| Failure::new(ErrorCode::Internal, format!("cannot describe this device: {e}")))?,
        scratch: scratch.to_owned(),
        cache: None,
        cache_origin: None,
        plan: Some(args.plan.clone()),
        built_for: None,
        eval: args.eval.clone(),
        calibration: None,
        plugins: Vec::new(),
        builds: 1,
        measure: args.measure.ask()?,
        limit_ms: 0,
        measure_budget_ms: args.budget_s * 1000,
        allow_inaccurate: true,
        simulated: false,
    })
}

fn measure(context: &Context<'_>, order: &WorkOrder) -> Result<Report, Failure> {
    let spinner = context.printer.spinner("starting");
    let mut report = Err(Failure::new(ErrorCode::Internal, "the measurement ended without a word"));
    let mut listen = |event: WorkEvent| match event {
        WorkEvent::Progress { phase, fraction, detail } => {
            spinner.set_message(format!("{phase} {:.0}% {detail}", fraction * 100.0));
        }
        WorkEvent::Done { report: path, .. } => report = crate::reports::read_file(&path),
        WorkEvent::Failed { class, message, hint } => {
            report = Err(BackendError::new(class, message).with_hint(hint).into());
        }
        WorkEvent::Built { .. } | WorkEvent::WindowBegin | WorkEvent::WindowEnd => {}
    };
    // Nothing is uploaded: a measurement of a given plan never asks.
    let mut upload = || -> io::Result<()> { Ok(()) };
    worker::run(order, &backends::compilers(), &telemetry::for_device, &mut listen, &mut upload, &Cancel::default());
    spinner.finish_and_clear();
    report
}
