//! `planforge submit --dry-run`: what every combination of a request would come to, to the exact commands.

use crate::{context::Context, failure::Failure, farm::Farm, request::LocalFiles, tables};
use planforge_device::catalogue;
use planforge_onnx::Model;
use planforge_proto::{ErrorCode, v1};
use planforge_tensorrt_rules::{
    BACKEND as TENSORRT, Refusal, Version,
    hardware::Board,
    model::ModelFacts,
    preflight::{self, Step},
};
use planforge_types::{
    BuildSpec, Toolchain, ToolchainConstraint,
    fingerprint::{DeviceFingerprint, GpuFacts},
    resolve_toolchain,
    shown::line,
};
use std::{collections::BTreeMap, fmt::Write as _, path::Path};

/// Asks the store about every combination that the request stands for, and writes the commands that a TensorRT job of
/// it would run.
pub(super) async fn dry_run(
    context: &Context<'_>,
    farm: &Farm,
    request: &v1::SubmitRequest,
    files: &LocalFiles,
) -> Result<(), Failure> {
    let devices = farm.rpc().list_devices(v1::ListDevicesRequest { online_only: false }).await;
    let devices = devices.map_err(|e| farm.error(e))?.into_inner().devices;
    let any = vec![String::new()];
    let toolchains = if request.toolchains.is_empty() { &any } else { &request.toolchains };
    let mut rows = tables::table(&["model", "sku", "toolchain", "spec", "would"]);
    let mut objects = Vec::new();
    let mut commands = String::new();
    let mut known: BTreeMap<&str, Option<ModelFacts>> = BTreeMap::new();
    for model in &request.models {
        for sku in &request.skus {
            for spec_text in &request.specs_json {
                for toolchain in toolchains {
                    let gpu = gpu_of(&devices, sku);
                    let exact = exact_toolchain(&devices, sku, toolchain, gpu.as_ref(), spec_text);
                    let job = exact.as_ref().filter(|exact| exact.backend == TENSORRT).map(|exact| {
                        let facts = known.entry(&model.digest).or_insert_with(|| facts(context, model, files));
                        job(exact, spec_text, model, facts.as_ref(), gpu.as_ref())
                    });
                    let would = match &job {
                        Some(Err(refusal)) => format!("be refused: {refusal}"),
                        _ => would(farm, request, &devices, [&model.digest, sku, spec_text, toolchain]).await?,
                    };
                    let shown = match (&exact, toolchain.as_str()) {
                        (Some(exact), _) => exact.to_string(),
                        (None, "") => "any".into(),
                        (None, constraint) => constraint.to_owned(),
                    };
                    let name = tables::model_name(Some(model));
                    let spec_words = short_spec(spec_text);
                    rows.add_row([name, sku, &shown, &spec_words, &would]);
                    let mut object = serde_json::json!({
                        "model": model.digest,
                        "sku": sku,
                        "toolchain_constraint": toolchain,
                        "toolchain": exact,
                        "spec": serde_json::from_str::<serde_json::Value>(spec_text).unwrap_or_default(),
                        "would": would,
                    });
                    match job {
                        Some(Ok(Job { steps, warnings })) => {
                            let heading = format!("{name} for {sku} with {shown}, {spec_words}");
                            let _ = writeln!(commands, "\n{}", line(&heading));
                            for warning in &warnings {
                                let _ = writeln!(commands, "  warning: {}", line(warning));
                            }
                            for Step { name, command } in &steps {
                                let _ = writeln!(commands, "  {name}: {}", line(&command.to_string()));
                            }
                            let (processes, least_s) = (preflight::TIMED_PROCESSES, preflight::timed_processes_s());
                            let _ = writeln!(
                                commands,
                                "  measuring: {processes} benchmark processes or more, as a comparison takes: at least \
                                 {least_s:.0} s, and loading the engine {processes} times"
                            );
                            object["measuring"] = serde_json::json!({ "processes": processes, "least_s": least_s });
                            object["warnings"] = warnings.into();
                            let step = |s: &Step| serde_json::json!({ "name": s.name, "args": s.command.to_texts() });
                            object["commands"] = steps.iter().map(step).collect();
                        }
                        Some(Err(refusal)) => {
                            object["refused"] = serde_json::json!({
                                "reason": refusal.to_string(),
                                "hint": refusal.hint(),
                            });
                        }
                        None => {}
                    }
                    objects.push(object);
                }
            }
        }
    }
    context.printer.data(&format!("{}{commands}", tables::render(rows, &[])))?;
    context.printer.object(&serde_json::json!({ "combinations": objects }))
}

/// The toolchain a constraint comes to: the newest that anybody offers, else the version it names itself.
fn exact_toolchain(
    devices: &[v1::Device],
    sku: &str,
    constraint: &str,
    gpu: Option<&GpuFacts>,
    spec: &str,
) -> Option<Toolchain> {
    let offering = devices.iter().filter(|device| device.skus.iter().any(|offered| offered == sku));
    let offers: Vec<Toolchain> = offering
        .flat_map(|device| &device.offers)
        .filter_map(|offer| serde_json::from_str(&offer.toolchain_json).ok())
        .collect();
    let parsed: ToolchainConstraint = constraint.parse().ok()?;
    // As the coordinator does: the newest that is of use on such a GPU before the newest of all.
    let allow_unknown = BuildSpec::parse(spec).is_ok_and(|mut spec| preflight::take_permission(&mut spec));
    let board = gpu.and_then(Board::of);
    let usable: Vec<Toolchain> =
        offers.iter().filter(|offer| preflight::usable(offer, board.as_ref(), allow_unknown)).cloned().collect();
    let resolved = resolve_toolchain(&parsed, &usable).or_else(|_| resolve_toolchain(&parsed, &offers));
    resolved.ok().or_else(|| {
        let version = constraint.trim().strip_prefix(TENSORRT)?.trim_start().trim_start_matches('=').trim();
        let version: Version = version.parse().ok()?;
        Some(Toolchain { backend: TENSORRT.into(), version: version.to_string(), components: BTreeMap::new() })
    })
}

/// What a TensorRT job would run.
struct Job {
    steps: Vec<Step>,
    warnings: Vec<String>,
}

/// What is known of the GPUs of this kind: what an agent tells of one, else what the catalogue has.
fn gpu_of(devices: &[v1::Device], sku: &str) -> Option<GpuFacts> {
    let told = devices.iter().filter(|device| device.skus.iter().any(|offered| offered == sku));
    let mut told = told.filter_map(|d| serde_json::from_str::<DeviceFingerprint>(&d.fingerprint_json).ok()?.gpu);
    told.next().or_else(|| {
        let entry = catalogue::entry(&sku.parse().ok()?)?;
        Some(GpuFacts { compute_capability: entry.compute_capability.into(), ..GpuFacts::default() })
    })
}

fn job(
    toolchain: &Toolchain,
    spec: &str,
    model: &v1::Model,
    facts: Option<&ModelFacts>,
    gpu: Option<&GpuFacts>,
) -> Result<Job, Refusal> {
    let mut spec = BuildSpec::parse(spec).map_err(|error| Refusal::spec(error.to_string(), ""))?;
    let allow_unknown = preflight::take_permission(&mut spec);
    let Some(capabilities) = preflight::capabilities_of(toolchain) else {
        return Ok(Job { steps: Vec::new(), warnings: vec![format!("the version of {toolchain} cannot be read")] });
    };
    let newer = preflight::known(capabilities.version(), allow_unknown)?;
    let board = gpu.and_then(Board::of);
    let mut warnings = preflight::check(&capabilities, &spec, facts, board.as_ref())?;
    warnings.extend(newer);
    let name = model.files.first().map_or("model.onnx", |file| file.name.as_str());
    let steps = preflight::steps(&capabilities, &spec, Path::new(name), facts)?;
    if facts.is_none() {
        warnings.push("the model is not here: shapes and types are not checked against it".into());
    }
    Ok(Job { steps, warnings })
}

/// What of a model on this machine decides about its commands.
fn facts(context: &Context<'_>, model: &v1::Model, files: &LocalFiles) -> Option<ModelFacts> {
    let path = files.get(&model.files.first()?.digest)?;
    match Model::open(path) {
        Ok(model) => Some(ModelFacts::of(&model)),
        Err(error) => {
            context.printer.warn(&format!("{} cannot be looked into: {error}", path.display()));
            None
        }
    }
}

async fn would(
    farm: &Farm,
    request: &v1::SubmitRequest,
    devices: &[v1::Device],
    [model, sku, spec, toolchain]: [&String; 4],
) -> Result<String, Failure> {
    let wanted = v1::FindEngineRequest {
        model_digest: model.clone(),
        sku: sku.clone(),
        spec_json: spec.clone(),
        toolchain: toolchain.clone(),
        allow_inaccurate: request.allow_inaccurate,
        project: request.project.clone(),
        ..Default::default()
    };
    match farm.rpc().find_engine(wanted).await.map_err(|e| farm.error(e)) {
        Ok(engine) => {
            let engine = engine.into_inner();
            let refreshed = request.refresh_disturbed && tables::is_disturbed(&engine.report_json);
            if !request.force && !refreshed {
                return Ok(format!("answer with the stored engine {}", tables::short(&engine.engine_key)));
            }
        }
        Err(failure) if ![ErrorCode::NotFound, ErrorCode::Gone].map(ErrorCode::name).contains(&failure.name) => {
            return Err(failure);
        }
        _ => {}
    }
    let offering: Vec<_> = devices.iter().filter(|d| d.skus.contains(sku) && !d.offers.is_empty()).collect();
    Ok(match (offering.is_empty(), offering.iter().any(|d| d.online)) {
        (false, true) => "build".into(),
        (false, false) => "queue until an agent with such a device is back".into(),
        (true, _) if request.wait_for_device => "wait for a first such device".into(),
        (true, _) => "be refused: no known device offers it".into(),
    })
}

/// What a spec asks beyond the defaults, in few words.
fn short_spec(json: &str) -> String {
    let Ok(spec) = serde_json::from_str::<BuildSpec>(json) else { return json.to_owned() };
    let mut words = vec![format!("{:?}", spec.precision).to_lowercase()];
    words.extend(spec.threads.map(|n| format!("{n} threads")));
    words.extend(spec.approximate_gelu.then(|| "approximate GELU".to_owned()));
    if !spec.profiles.is_empty() {
        words.push(format!("{} profiles", spec.profiles.len()));
    }
    words.join(", ")
}
