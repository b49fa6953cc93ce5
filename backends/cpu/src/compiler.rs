//! The native backend: from an ONNX file to a plan file.

use super::{
    COMPILER_REVISION,
    assemble::{WeightPlan, assemble},
    cache::{self, TacticCache},
    draft::Draft,
    lower::lower,
    meter::CpuSession,
    plan::{self, Manifest, TailSummary, device_class, isa_level, levels_here},
    shapes::{Shapes, at},
    tactic::{Effort, MadeUp, TuneError, Tuner},
    tail::{OPTION_BOUNDS, Trial, bounds, refused, trial_outputs, trial_ports},
    target::{OPTION_FUSION, target},
};
use planforge_backend::{
    Cache, Cancel, CompileRequest, CompiledPlan, Compiler, Events, LoadOptions, Meter, PlanIdentity,
};
use planforge_device::CpuLevel;
use planforge_graph::ir::Graph;
use planforge_kernels_cpu::{
    gemm::{Factors, bf16_kernels},
    isa::Isa,
    pool::ThreadPool,
};
use planforge_passes::{
    frontend::{self, Imported, Note, Optimized},
    states,
};
use planforge_plan::{BACKEND, container::MAGIC};
use planforge_report::Finding;
use planforge_types::{
    BackendError, BuildSpec, Digest, FailureClass, OptimizationProfile, Precision, Reason, Sku, Toolchain,
    failure::chain, fingerprint::DiscoveredDevice,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    sync::Arc,
    time::Instant,
};

/// Option of the build spec: only tactics whose name contains its value, where a step has any.
pub const OPTION_FORCE_TACTIC: &str = "force_tactic";

const OPTIONS: &[&str] = &[OPTION_BOUNDS, OPTION_FORCE_TACTIC, OPTION_FUSION];

/// Compiles for CPUs, per instruction-set level.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuCompiler;

fn refuse(message: impl Into<String>, hint: &str) -> BackendError {
    BackendError::new(FailureClass::Model, message).with_hint(hint)
}

/// The toolchain of this build of the compiler.
pub fn toolchain() -> Toolchain {
    Toolchain { backend: BACKEND.into(), version: COMPILER_REVISION.to_string(), components: BTreeMap::new() }
}

/// The level a request asks for, when this CPU runs it.
fn level(request: &CompileRequest) -> Result<(CpuLevel, Isa), BackendError> {
    let sku = &request.sku;
    let hint = "name one of the SKUs that `planforge devices` lists";
    let level = CpuLevel::of_sku(sku)
        .ok_or_else(|| refuse(format!("the native compiler builds for CPU levels, not for {sku}"), hint))?;
    let isa = Isa::new(isa_level(level)).filter(|_| level.runs_here()).ok_or_else(|| {
        let needs = isa_level(level).describe();
        refuse(format!("{sku} needs {needs}; this CPU offers {}", levels_here()), hint)
    })?;
    Ok((level, isa))
}

impl Compiler for CpuCompiler {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn toolchains(&self, device: &DiscoveredDevice) -> Vec<Toolchain> {
        let buildable = |sku| CpuLevel::of_sku(sku).is_some_and(|level| Isa::new(isa_level(level)).is_some());
        if device.skus.iter().any(buildable) { vec![toolchain()] } else { Vec::new() }
    }

    fn options(&self, _sku: &Sku) -> Option<&'static [&'static str]> {
        Some(OPTIONS)
    }

    fn check(&self, request: &CompileRequest) -> Result<(), BackendError> {
        let (_, isa) = level(request)?;
        let spec = &request.spec;
        if request.toolchain != toolchain() {
            return Err(refuse(
                format!("this program holds {}, not {}", toolchain(), request.toolchain),
                "ask for the toolchain that is offered, or run the other release",
            ));
        }
        let refusals = [
            (
                !matches!(spec.precision, Precision::Fp32 | Precision::Bf16 | Precision::Best),
                format!("precision {}", spec.precision),
            ),
            (spec.hardware_compatibility.is_some(), "hardware compatibility levels".into()),
            (spec.version_compatible, "version-compatible plans".into()),
            (spec.calibration.is_some(), "calibration".into()),
            (!spec.plugins.is_empty(), "plugins".into()),
            (spec.threads == Some(0), "engines of no threads".into()),
        ];
        if spec.approximate_gelu {
            return Err(refuse(
                "an approximate GELU is for native engines of NVIDIA devices; on processors GELU is as the model has it",
                "leave --approximate-gelu out",
            ));
        }
        if spec.precision == Precision::Bf16 && bf16_kernels(isa.level()).is_empty() {
            return Err(refuse(
                format!("the native compiler has no bf16 for {}", request.sku),
                "build for cpu-x86-64-v4-bf16 or cpu-x86-64-v4-amx, on a processor that has it, or leave the precision out",
            ));
        }
        if let Some((_, what)) = refusals.iter().find(|(given, _)| *given) {
            return Err(refuse(format!("the native compiler does not support {what} yet"), "leave it out of the spec"));
        }
        if let Some(name) = spec.options.keys().find(|name| !OPTIONS.contains(&name.as_str())) {
            return Err(refuse(
                format!("the native compiler has no option {name}; it has {}", OPTIONS.join(", ")),
                "leave the option out",
            ));
        }
        if let Err(part) = bounds(spec.options.get(OPTION_BOUNDS)) {
            return Err(refuse(
                format!("{OPTION_BOUNDS} names values with the most that a dimension may be; '{part}' does not"),
                "say bounds=NAME:SIZE, with commas between several",
            ));
        }
        if let Some(value) = spec.options.get(OPTION_FUSION).filter(|value| *value != "off") {
            return Err(refuse(
                format!("{OPTION_FUSION} is on unless it is off; '{value}' is neither"),
                "say fusion=off, or leave the option out",
            ));
        }
        Ok(())
    }

    fn compile(
        &self,
        request: &CompileRequest,
        events: &dyn Events,
        cancel: &Cancel,
    ) -> Result<CompiledPlan, BackendError> {
        compile_on(device_class(), request, Runs::Many, events, cancel)
    }

    fn compile_lending(
        &self,
        request: &CompileRequest,
        passing: &BTreeSet<String>,
        events: &dyn Events,
        cancel: &Cancel,
    ) -> Result<CompiledPlan, BackendError> {
        compile_on(device_class(), request, Runs::Some { passing }, events, cancel)
    }

    fn join_caches(&self, _sku: &Sku, into: &Path, from: &Path) -> io::Result<bool> {
        cache::join(into, from)?;
        Ok(true)
    }

    fn recognises(&self, head: &[u8]) -> bool {
        head.starts_with(&MAGIC)
    }

    fn identify(&self, plan: &Path) -> Result<PlanIdentity, BackendError> {
        let plan = super::inspect(plan)?;
        Ok(PlanIdentity {
            model_name: plan.graph.name,
            model_digest: plan.model_digest,
            sku: plan.sku,
            toolchain: plan.toolchain,
            spec: plan.spec,
            threads: Some(plan.threads),
            foreign: plan.foreign,
        })
    }

    fn load(&self, plan: &Path, options: &LoadOptions) -> Result<Box<dyn Meter>, BackendError> {
        Ok(Box::new(CpuSession::load(plan, options)?))
    }
}

/// What products with weights may be rounded to.
fn factors(precision: Precision) -> Factors {
    if matches!(precision, Precision::Bf16 | Precision::Best) { Factors::Bf16 } else { Factors::F32 }
}

/// What a report says of an import.
fn finding(note: &Note) -> Finding {
    match note.is_warning() {
        true => Finding::warning(note.code(), note.to_string()),
        false => Finding::note(note.code(), note.to_string()),
    }
}

/// What a decoder keeps from run to run. A dimension that varies may be the one that places are written along.
fn caches(graph: &Graph, spec: &BuildSpec) -> Vec<Cache> {
    if spec.profiles.iter().any(OptimizationProfile::varies) {
        return Vec::new();
    }
    let of = |cache: states::Cache| {
        let input = graph.value(graph.inputs[cache.input]);
        let places = cache.axis.and_then(|axis| Some(graph.static_shape(graph.inputs[cache.input])?[axis] as u64));
        Cache { input: input.name.clone(), output: graph.outputs[cache.output].name.clone(), places }
    };
    states::caches(graph, &graph.def_use()).into_iter().map(of).collect()
}

/// Facts with one more.
fn joined(mut facts: serde_json::Value, name: &str, value: serde_json::Value) -> serde_json::Value {
    facts[name] = value;
    facts
}

/// What an engine is compiled for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Runs<'a> {
    /// To be kept, and run by anybody.
    Many,
    /// To be run some hundred times by [`Meter::run_lending`]: outputs of these names need not last.
    Some { passing: &'a BTreeSet<String> },
}

/// Compiles on a host of this class; what its tactics are known for.
pub(super) fn compile_on(
    device_class: Digest,
    request: &CompileRequest,
    runs: Runs<'_>,
    events: &dyn Events,
    cancel: &Cancel,
) -> Result<CompiledPlan, BackendError> {
    CpuCompiler.check(request)?;
    let (level, isa) = level(request)?;
    let stop = || BackendError::cancelled("the build was cancelled");
    events.progress("import", 0.0, "");
    let model = frontend::open(&request.model)?;
    let sized = bounds(request.spec.options.get(OPTION_BOUNDS)).unwrap_or_default();
    let first = request.spec.profiles.first();
    let Imported { graph, notes, fragment } = frontend::import_open(&model, first, request.spec.strict, &sized)?;
    let tail = graph.tail.clone();
    if cancel.is_cancelled() {
        return Err(stop());
    }
    events.progress("optimize", 0.0, "");
    let caches = caches(&graph, &request.spec);
    let Optimized { graph, summary, passes } = frontend::optimize(graph, target(&request.spec))?;
    let mut draft = lower(&graph).map_err(|error| refuse(error.to_string(), "give every dimension one size"))?;
    drop(graph);

    let threads = match request.spec.threads {
        Some(threads) => threads as usize,
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let resource = |message: String| BackendError::new(FailureClass::Resource, message);
    let pool = Arc::new(ThreadPool::pinned(threads).map_err(|error| resource(chain(&error)))?);
    let mut cache = TacticCache::open(request.cache.as_deref(), device_class, level.name(), threads);
    let tuner_pool = Arc::clone(&pool);
    let effort = if matches!(runs, Runs::Many) { Effort::FULL } else { Effort::BRIEF };
    let mut tuner = Tuner {
        isa,
        factors: factors(request.spec.precision),
        pool,
        level: request.spec.optimization_level.0,
        effort,
        force: request.spec.options.get(OPTION_FORCE_TACTIC).map(String::as_str),
        cache: &mut cache,
        made_up: MadeUp::default(),
        events,
        cancel,
    };
    let mut tuning_seconds = 0.0;
    let mut tune = |draft: &mut Draft| {
        let began = Instant::now();
        tuner.tune(draft).map_err(|error| match error {
            TuneError::Cancelled => stop(),
            TuneError::Run { .. } => refuse(chain(&error), "report this with the model's structure"),
        })?;
        tuning_seconds += began.elapsed().as_secs_f64();
        Ok::<_, BackendError>(())
    };
    tune(&mut draft)?;
    let profiles = &request.spec.profiles;
    let several = profiles.len() > 1 || profiles.iter().any(OptimizationProfile::varies);
    // Programs of other shapes, and what follows a program, take its outputs from where they stay.
    if let Runs::Some { passing } = runs
        && !several
        && tail.is_none()
    {
        draft.let_pass(passing);
    }
    let (program, dynamic, weights, mut detached) = if several {
        let mut shapes = Shapes::of(&model, isa, target(&request.spec), threads);
        shapes.add(&profiles[0], draft)?;
        for profile in &profiles[1..] {
            let mut draft = at(&model, profile, target(&request.spec))?;
            tune(&mut draft)?;
            shapes.add(profile, draft)?;
        }
        let detached = model.detach().map_err(|error| refuse(chain(&error), error.hint()))?;
        let (program, dynamic, weights) = shapes.finish();
        (program, Some(dynamic), weights, Some(detached))
    } else {
        let mut weights = WeightPlan::of(&model);
        (assemble(draft, &mut weights), None, weights, None)
    };
    if let Err(error) = cache.save() {
        events.log(&format!("the tactic cache could not be kept: {error}"));
    }
    events.log(&format!("{} steps timed, {} known from the tactic cache", cache.misses, cache.hits));

    events.progress("write", 0.0, "");
    program.check().map_err(|error| refuse(error.to_string(), "report this with the model's structure"))?;
    let mut summary_of_tail = None;
    if let (Some(tail), Some(fragment)) = (tail, fragment) {
        let made = match trial_outputs(&program, &weights, &fragment, isa, &tuner_pool) {
            Ok(Trial::Outputs(made)) => Some(made),
            Ok(Trial::Failed(error)) if error.unsupported => return Err(refused(&error)),
            Ok(Trial::Failed(error)) => {
                events.log(&format!("made-up inputs do not run: {error}"));
                None
            }
            Err(error) => return Err(resource(chain(&error))),
        };
        let outputs = trial_ports(&tail.outputs, made.as_ref()).map_err(|name| {
            refuse(
                format!("data decides how output {name} is shaped, and the model does not declare it"),
                "export the model with the types of its outputs",
            )
            .because(Reason::Unsupported)
        })?;
        if detached.is_none() {
            detached = Some(fragment.model().detach().map_err(|error| refuse(chain(&error), error.hint()))?);
        }
        summary_of_tail = Some(TailSummary {
            nodes: fragment.len() as u64,
            reasons: fragment.reasons().collect(),
            handed: tail.handed,
            outputs,
            order: tail.order,
        });
    }
    let manifest = Manifest {
        model_digest: request.model_digest,
        sku: request.sku.clone(),
        toolchain: request.toolchain.clone(),
        spec: request.spec.clone().canonical(),
        device_class,
        threads: threads as u32,
        graph: summary,
        passes,
        program,
        dynamic,
        tail: summary_of_tail,
        caches,
    };
    let path = request.scratch.join("engine.plan");
    plan::write(&path, &manifest, &weights, detached.as_ref()).map_err(|error| {
        resource(format!("plan {}: {}", path.display(), chain(&error)))
            .with_hint("make room on the disk of the scratch folder")
    })?;
    let facts = serde_json::json!({
        "steps": manifest.program.steps.len(),
        "reference_steps": manifest.program.steps.iter().filter(|s| matches!(s.kind, super::program::StepKind::Reference { .. })).count(),
        "passes": manifest.passes.iter().map(|pass| (pass.pass.clone(), pass.changes.len())).collect::<BTreeMap<_, _>>(),
        "gelu": super::gelus::of(&manifest.program),
        "tuning_seconds": tuning_seconds,
        "tactics_timed": cache.misses,
        "tactics_known": cache.hits,
        "arena_bytes": manifest.program.arena_bytes,
        "weight_bytes": manifest.program.weight_bytes,
        "profiles": manifest.profiles(),
    });
    let facts = match &manifest.tail {
        Some(tail) => joined(facts, "nodes_sized_by_data", tail.nodes.into()),
        None => facts,
    };
    events.progress("write", 1.0, "");
    Ok(CompiledPlan { path, facts, findings: notes.iter().map(finding).collect() })
}
