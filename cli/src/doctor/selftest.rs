//! A real build and benchmark of a small model with every TensorRT that a GPU of this host is offered.

use super::Check;
use crate::{backends, context::Context, failure::Failure, reports, request::models};
use planforge_backend::Cancel;
use planforge_device::telemetry;
use planforge_proto::ErrorCode;
use planforge_report::Report;
use planforge_tensorrt_rules::{hardware::Board, preflight};
use planforge_types::{
    BackendError, BuildSpec, EngineKey, Toolchain,
    fingerprint::DiscoveredDevice,
    order::{MeasureAsk, WorkEvent, WorkKind, WorkOrder},
};
use planforge_worker::job;
use std::{fs, io, path::Path};

const AREA: &str = "self-test";
/// The handwritten-digits classifier of the examples.
const MODEL: &[u8] = include_bytes!("../../../examples/digits/digits.onnx");
const MODEL_NAME: &str = "digits.onnx";
/// Longest that building may take: the model builds within seconds on any device.
const BUILD_LIMIT_MS: u64 = 5 * 60 * 1000;
/// Longest that measuring may take.
const MEASURE_BUDGET_MS: u64 = 5 * 1000;
const BACKEND: &str = planforge_tensorrt_rules::BACKEND;

/// Builds, verifies and measures; says plainly when there was nothing to test.
pub fn checks(context: &Context<'_>, devices: &[DiscoveredDevice]) -> Vec<Check> {
    let pairs = devices.iter().filter(|device| device.fingerprint.gpu.is_some()).flat_map(|device| {
        let board = device.fingerprint.gpu.as_ref().and_then(Board::of);
        // What does not know the GPU at all is said among the toolchains.
        let ours = device.offers.iter().filter(|toolchain| toolchain.backend == BACKEND);
        let ours = ours.filter(move |toolchain| preflight::usable(toolchain, board.as_ref(), false));
        ours.map(move |toolchain| (device, toolchain))
    });
    let checks: Vec<Check> = pairs.map(|(device, toolchain)| check(context, device, toolchain)).collect();
    if checks.is_empty() {
        let none = Check::ok(AREA, "tensorrt build", "not run");
        return vec![none.meaning("no GPU here is offered a TensorRT: nothing of it was checked")];
    }
    checks
}

fn check(context: &Context<'_>, device: &DiscoveredDevice, toolchain: &Toolchain) -> Check {
    let sku = device.skus.first().map(ToString::to_string).unwrap_or_default();
    let name = format!("{BACKEND} {} on {sku}", toolchain.version);
    match build(context, device, toolchain) {
        Ok(report) => judge(name, &report),
        Err(failure) => Check::ok(AREA, name, failure.to_string())
            .problem("this TensorRT cannot build and run a small model here", failure.hint),
    }
}

fn judge(name: String, report: &Report) -> Check {
    let seen = format!(
        "built in {:.1} s, median latency {:.4} ms over {} samples{}",
        report.build_ms.unwrap_or_default() / 1e3,
        report.latency_ms.median,
        report.latency_ms.count,
        if report.wholly_disturbed().is_some() { ", every window disturbed" } else { "" }
    );
    let check = Check::ok(AREA, name, seen);
    if !report.accurate {
        return check.problem("the engine's outputs are wrong", "do not trust this installation's engines");
    }
    let compared = report.numerics.as_ref().is_some_and(|numerics| numerics.skipped.is_none());
    check.meaning(if compared {
        "built, loaded, run and measured; its outputs agree with the reference"
    } else {
        "built, loaded, run and measured; its outputs were not compared"
    })
}

fn build(context: &Context<'_>, device: &DiscoveredDevice, toolchain: &Toolchain) -> Result<Report, Failure> {
    let folder = tempfile::tempdir().map_err(|e| Failure::io("create a folder in", &std::env::temp_dir(), &e))?;
    let model = folder.path().join(MODEL_NAME);
    fs::write(&model, MODEL).map_err(|e| Failure::io("write", &model, &e))?;
    let scratch = folder.path().join("scratch");
    fs::create_dir(&scratch).map_err(|e| Failure::io("create", &scratch, &e))?;
    let order = order(context, device, toolchain, &model, &scratch)?;
    let spinner = context.printer.spinner("self-test");
    let mut report = Err(Failure::new(ErrorCode::Internal, "the self-test ended without a word"));
    let mut listen = |event: WorkEvent| match event {
        WorkEvent::Progress { phase, detail, .. } => spinner.say(&format!("self-test: {phase} {detail}")),
        WorkEvent::Done { report: path, .. } => report = reports::of_worker(&path),
        WorkEvent::Failed { class, message, hint, .. } => {
            report = Err(BackendError::new(class, message).with_hint(hint).into());
        }
        WorkEvent::Built { .. }
        | WorkEvent::WindowBegin
        | WorkEvent::WindowEnd
        | WorkEvent::Compiled { .. }
        | WorkEvent::Made { .. }
        | WorkEvent::Prepared { .. } => {}
    };
    // Nothing is uploaded.
    let mut upload = || -> io::Result<()> { Ok(()) };
    job::run(&order, &backends::compilers(), &telemetry::for_device, &mut listen, &mut upload, &Cancel::default());
    spinner.clear();
    report
}

fn order(
    context: &Context<'_>,
    device: &DiscoveredDevice,
    toolchain: &Toolchain,
    model: &Path,
    scratch: &Path,
) -> Result<WorkOrder, Failure> {
    let internal = |what: &str| Failure::new(ErrorCode::Internal, what.to_owned());
    let identity = models::identify(&context.settings, model)?.model;
    let model_digest = identity.digest.parse().map_err(|_| internal("the example model has no digest"))?;
    let sku = device.skus.first().ok_or_else(|| internal("the device has no name"))?.clone();
    let spec = BuildSpec::default().canonical();
    Ok(WorkOrder {
        kind: WorkKind::Build,
        job: "doctor".into(),
        attempt: 1,
        agent: "this machine".into(),
        engine_key: EngineKey::new(&model_digest, &sku, toolchain, &spec),
        model: model.to_owned(),
        model_name: MODEL_NAME.into(),
        model_digest,
        graph_digest: None,
        structure_digest: None,
        sku,
        toolchain: toolchain.clone(),
        spec,
        fingerprint: serde_json::to_value(&device.fingerprint).map_err(|_| internal("cannot describe this device"))?,
        scratch: scratch.to_owned(),
        cache: None,
        cache_origin: None,
        prepared: None,
        prepare: None,
        prepared_from: None,
        ceilings: None,
        oracles: None,
        plan: None,
        built_for: None,
        eval: None,
        inputs: None,
        baselines: Vec::new(),
        calibration: None,
        plugins: Vec::new(),
        builds: 1,
        measure: MeasureAsk::default(),
        limit_ms: BUILD_LIMIT_MS,
        measure_budget_ms: MEASURE_BUDGET_MS,
        // Nobody compares it.
        strict_measure_budget: true,
        allow_inaccurate: true,
        simulated: device.simulated,
        trace: None,
    })
}
