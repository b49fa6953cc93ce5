//! `planforge submit --dry-run`: what every combination of a request would come to, to the exact commands.

use crate::{context::Context, failure::Failure, farm::Farm, request::LocalFiles, tables};
use planforge_device::catalogue;
use planforge_onnx::Model;
use planforge_proto::v1;
use planforge_tensorrt_rules::{
    BACKEND as TENSORRT, Refusal, Version,
    hardware::Board,
    model::ModelFacts,
    preflight::{self, Step},
};
use planforge_types::{
    BuildSpec, Toolchain,
    fingerprint::{DeviceFingerprint, GpuFacts},
    shown::line,
};
use std::{collections::BTreeMap, fmt::Write as _, path::Path};

/// Asks the coordinator what a submission would come to, and writes the commands that a TensorRT job of it would run.
pub(super) async fn dry_run(
    context: &Context<'_>,
    farm: &Farm,
    request: &v1::SubmitRequest,
    files: &LocalFiles,
) -> Result<(), Failure> {
    let reply = farm.rpc().dry_run(request.clone()).await.map_err(|error| {
        let unknown = error.code() == tonic::Code::Unimplemented;
        let failure = farm.error(error);
        if unknown {
            failure.hint("the coordinator is of an older release, which cannot say: upgrade it first")
        } else {
            failure
        }
    })?;
    let reply = reply.into_inner();
    let devices = farm.rpc().list_devices(v1::ListDevicesRequest { online_only: false }).await;
    let devices = devices.map_err(|e| farm.error(e))?.into_inner().devices;
    let mut rows = tables::table(&["model", "sku", "toolchain", "spec", "would"]);
    let mut objects = Vec::new();
    let mut commands = String::new();
    let mut known: BTreeMap<&str, Option<ModelFacts>> = BTreeMap::new();
    for one in &reply.combinations {
        let Some(model) = request.models.iter().find(|model| model.digest == one.model_digest) else { continue };
        let exact = exact_toolchain(one);
        let job = exact.as_ref().filter(|exact| exact.backend == TENSORRT).map(|exact| {
            let facts = known.entry(&model.digest).or_insert_with(|| facts(context, model, files));
            job(exact, &one.spec_json, model, facts.as_ref(), gpu_of(&devices, &one.sku).as_ref())
        });
        let would = match &job {
            // What the model's own shapes forbid the coordinator does not see.
            Some(Err(refusal)) if ["build", "refuse"].contains(&one.would.as_str()) => format!("be refused: {refusal}"),
            _ => words(one),
        };
        let shown = match (&exact, one.toolchain_constraint.as_str()) {
            (Some(exact), _) => exact.to_string(),
            (None, "") => "any".into(),
            (None, constraint) => constraint.to_owned(),
        };
        let name = tables::model_name(Some(model));
        let spec_words = short_spec(&one.spec_json);
        rows.add_row([name, &one.sku, &shown, &spec_words, &would]);
        let some = |text: &String| (!text.is_empty()).then_some(text.clone());
        let mut object = serde_json::json!({
            "model": one.model_digest,
            "sku": one.sku,
            "toolchain_constraint": one.toolchain_constraint,
            "toolchain": exact,
            "spec": serde_json::from_str::<serde_json::Value>(&one.spec_json).unwrap_or_default(),
            "would": would,
            "verdict": one.would,
            "engine_key": some(&one.engine_key),
            "plan_digest": some(&one.plan_digest),
            "job": some(&one.job),
        });
        match job {
            Some(Ok(Job { steps, warnings })) => {
                let heading = format!("{name} for {} with {shown}, {spec_words}", one.sku);
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
                    "  measuring: {processes} benchmark processes or more, as a comparison takes: at least {least_s:.0} s, \
                     and loading the engine {processes} times"
                );
                object["measuring"] = serde_json::json!({ "processes": processes, "least_s": least_s });
                object["warnings"] = warnings.into();
                let step = |s: &Step| serde_json::json!({ "name": s.name, "args": s.command.to_texts() });
                object["commands"] = steps.iter().map(step).collect();
            }
            Some(Err(refusal)) => {
                object["refused"] = serde_json::json!({ "reason": refusal.to_string(), "hint": refusal.hint() });
            }
            None => {}
        }
        objects.push(object);
    }
    context.printer.data(&format!("{}{commands}", tables::render(rows, &[])))?;
    let refusal = (!reply.refusal.is_empty()).then_some(&reply.refusal);
    if let Some(reason) = refusal {
        context.printer.note(&format!("the request would be refused as a whole: {reason}"));
        if !reply.refusal_hint.is_empty() {
            context.printer.hint(&reply.refusal_hint);
        }
    }
    if !reply.missing_blobs.is_empty() {
        context.printer.note(&format!("{} files would be uploaded first", reply.missing_blobs.len()));
    }
    context.printer.object(&serde_json::json!({
        "combinations": objects,
        "refusal": refusal,
        "missing_blobs": reply.missing_blobs,
    }))
}

/// What would become of a combination.
fn words(one: &v1::Foreseen) -> String {
    let key = tables::short(&one.engine_key);
    let verb = match one.would.as_str() {
        "answer" if !one.plan_digest.is_empty() => return format!("answer with the stored engine {key}"),
        "answer" => return format!("take what was prepared: {}", one.detail),
        "join" if !one.job.is_empty() => return format!("join job {}", one.job),
        "measure" => format!("measure the stored engine {key}"),
        "build" | "compile" | "prepare" => one.would.clone(),
        "fail" => "fail, as it is known to".to_owned(),
        "refuse" => "be refused".to_owned(),
        "block" => "wait".to_owned(),
        other => other.to_owned(),
    };
    if one.detail.is_empty() { verb } else { format!("{verb}: {}", one.detail) }
}

/// The toolchain a combination comes to: what the coordinator resolved, else the version that it names itself.
fn exact_toolchain(one: &v1::Foreseen) -> Option<Toolchain> {
    serde_json::from_str(&one.toolchain_json).ok().or_else(|| {
        let version =
            one.toolchain_constraint.trim().strip_prefix(TENSORRT)?.trim_start().trim_start_matches('=').trim();
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

/// What a spec asks beyond the defaults, in few words.
fn short_spec(json: &str) -> String {
    let Ok(spec) = serde_json::from_str::<BuildSpec>(json) else { return json.to_owned() };
    let mut words = vec![spec.precision.to_string()];
    words.extend(spec.threads.map(|n| format!("{n} threads")));
    words.extend(spec.approximate_gelu.then(|| "approximate GELU".to_owned()));
    words.extend(spec.strict.then(|| "strict".to_owned()));
    if !spec.profiles.is_empty() {
        words.push(format!("{} profiles", spec.profiles.len()));
    }
    words.join(", ")
}
