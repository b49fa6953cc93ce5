//! `planforge bench` on this machine: a plan, or what is built here from a model, alone or beside a baseline.

use super::{Args, FOREIGN};
use crate::{
    backends,
    context::Context,
    failure::Failure,
    local::{ceilings_folder, oracles_folder},
    local_worker, portability,
    request::{self, extras::Beside, models},
    tables,
};
use planforge_agent::{HostDevices, baselines};
use planforge_backend::PlanIdentity;
use planforge_device::CpuLevel;
use planforge_proto::ErrorCode;
use planforge_report::{
    Report,
    compare::{
        self, Scheme,
        portability::{Portability, portability},
    },
};
use planforge_types::{
    BuildSpec, Digest, EngineKey, Precision, Sku, Toolchain, ToolchainConstraint,
    fingerprint::{DeviceKind, DiscoveredDevice},
    order::{BaselineOrder, WorkKind, WorkOrder},
    resolve::resolve_toolchain,
};
use serde::Serialize;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// How long a measurement may take where nobody says.
const USUAL_BUDGET_S: u64 = 30;

/// The same of a model that is built to be put under load.
const BUILT_BUDGET_MS: u64 = 1_000;

/// A model's file and who it is.
#[derive(Clone, Debug, Default)]
struct Subject {
    path: PathBuf,
    name: String,
    digest: Option<Digest>,
}

/// The device of this machine that a plan, or a model to be built, is measured on.
pub(super) fn device_of(args: &Args, plan: Option<&PlanIdentity>) -> Result<DiscoveredDevice, Failure> {
    match plan {
        Some(plan) if plan.sku.is_cpu() => this_cpu(),
        Some(plan) => this_gpu(Some(&plan.sku)),
        None if args.gpu => this_gpu(None),
        None => this_cpu(),
    }
}

/// A plan that was built for as long as this is kept.
#[derive(Debug)]
pub(super) struct BuiltPlan {
    pub path: PathBuf,
    _scratch: TempDir,
}

/// Builds the model that was named; `None` where a plan was.
pub(super) fn built_plan(context: &Context<'_>, args: &Args) -> Result<Option<BuiltPlan>, Failure> {
    if backends::of_plan(&args.plan)?.is_some() {
        return Ok(None);
    }
    let scratch = scratch()?;
    let bench = Bench { context, args, device: device_of(args, None)?, scratch: scratch.path() };
    let (order, _) = bench.model()?;
    // What it is measured at by itself is not what is asked for.
    let budget_ms = args.budget_s.map_or(BUILT_BUDGET_MS, |seconds| seconds * 1000);
    let done = bench.work(&WorkOrder { measure_budget_ms: budget_ms, strict_measure_budget: true, ..order })?;
    let path =
        done.plan.ok_or_else(|| Failure::new(ErrorCode::Internal, "the worker built a plan and does not say where"))?;
    Ok(Some(BuiltPlan { path, _scratch: scratch }))
}

pub(super) fn plan_digest(plan: &Path) -> Result<Digest, Failure> {
    let (digest, _) = models::hash(plan)?;
    digest.parse().map_err(|e| Failure::new(ErrorCode::Internal, format!("the digest of {}: {e}", plan.display())))
}

fn scratch() -> Result<TempDir, Failure> {
    tempfile::tempdir().map_err(|e| Failure::io("create a folder in", &std::env::temp_dir(), &e))
}

pub fn run(context: &Context<'_>, args: &Args) -> Result<(), Failure> {
    let scratch = scratch()?;
    let plan = backends::of_plan(&args.plan)?.map(|compiler| compiler.identify(&args.plan)).transpose()?;
    let device = device_of(args, plan.as_ref())?;
    let bench = Bench { context, args, device, scratch: scratch.path() };
    let (order, subject) = match plan {
        Some(plan) => bench.plan(plan)?,
        None => bench.model()?,
    };
    measurable(&order)?;
    // Whether there is a baseline is known before anything takes its time.
    let baseline = args.baseline.as_ref().map(|wanted| bench.baseline(wanted, &order, &subject)).transpose()?;
    let report = bench.measure(&order)?;
    write(args.output.as_deref(), &report)?;
    let own = context.block_on(async { Ok(portability::own_engines_at_hand(context, [&report]).await) })?;
    let Some(baseline) = baseline else {
        let cell = portability(&report, &own);
        context.printer.data(&tables::report::render(&report, cell.as_ref().map(Portability::words).as_deref()))?;
        let mut document = as_json(&report)?;
        if let Some(cell) = cell {
            document["portability"] = as_json(&cell)?;
        }
        return context.printer.object(&document);
    };
    let beside = bench.measure(&baseline)?;
    write(args.baseline_output.as_deref(), &beside)?;
    // The engine stands against the baseline: a ratio below 1 says that it is faster.
    let reports = [beside, report];
    let comparison = compare::compare_among(&reports, &own, Scheme::Groups)
        .map_err(|e| Failure::new(ErrorCode::Internal, e.to_string()))?;
    context.printer.data(&tables::comparison::render(&comparison, 0))?;
    let [baseline, report] = reports;
    context.printer.object(&serde_json::json!({ "report": report, "baseline": baseline, "comparison": comparison }))
}

/// Refuses what the order's toolchain can never measure on this machine, before anything is built.
fn measurable(order: &WorkOrder) -> Result<(), Failure> {
    let compilers = backends::compilers();
    let Some(compiler) = compilers.iter().find(|compiler| compiler.backend() == order.toolchain.backend) else {
        return Ok(());
    };
    let never = compiler.never_measures(&order.sku);
    let mut asked = order.measure.extras().into_iter();
    match asked.find(|(name, ..)| never.contains(name)) {
        None => Ok(()),
        Some((_, what, flag)) => {
            let message = format!("{} cannot be measured so: {} has no {what} there", order.sku, order.toolchain);
            let hint = format!("leave out {flag}, or measure on another device of the farm with --on SKU");
            Err(Failure::new(ErrorCode::Refused, message).hint(hint))
        }
    }
}

fn write(output: Option<&Path>, report: &Report) -> Result<(), Failure> {
    let Some(output) = output else { return Ok(()) };
    let json = serde_json::to_vec_pretty(report).map_err(|e| no_json(&e))?;
    std::fs::write(output, json).map_err(|e| Failure::io("write", output, &e))
}

fn as_json(document: &impl Serialize) -> Result<serde_json::Value, Failure> {
    serde_json::to_value(document).map_err(|e| no_json(&e))
}

pub(super) fn no_json(error: &serde_json::Error) -> Failure {
    Failure::new(ErrorCode::Internal, format!("cannot write the report as JSON: {error}"))
}

fn this_cpu() -> Result<DiscoveredDevice, Failure> {
    let devices = HostDevices::new(backends::compilers(), None).discover();
    devices
        .into_iter()
        .find(|device| device.threads > 0)
        .ok_or_else(|| Failure::new(ErrorCode::Refused, "this machine's processor has no known instruction-set level"))
}

/// The NVIDIA device of that kind, else the first.
fn this_gpu(sku: Option<&Sku>) -> Result<DiscoveredDevice, Failure> {
    let mut devices = HostDevices::new(backends::compilers(), None).discover();
    devices.retain(|device| device.fingerprint.kind == DeviceKind::Gpu);
    let named = devices.iter().position(|device| sku.is_some_and(|sku| device.skus.contains(sku)));
    match devices.is_empty() {
        true => {
            let what = sku.map_or("this machine has no NVIDIA device".to_owned(), |sku| {
                format!("the plan is for {sku}; this machine has no NVIDIA device")
            });
            Err(Failure::new(ErrorCode::Refused, what).hint("measure it in the farm with --on"))
        }
        false => Ok(devices.swap_remove(named.unwrap_or(0))),
    }
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|e| Failure::io("resolve", path, &e))
}

struct Bench<'a> {
    context: &'a Context<'a>,
    args: &'a Args,
    device: DiscoveredDevice,
    scratch: &'a Path,
}

impl Bench<'_> {
    fn subject(&self, path: &Path) -> Result<Subject, Failure> {
        let model = models::identify(&self.context.settings, path)?.model;
        let digest = model.digest.parse().ok();
        Ok(Subject { path: absolute(path)?, name: model.name, digest })
    }

    /// A plan is measured as its own SKU; the same processor may lack it.
    fn plan(&self, plan: PlanIdentity) -> Result<(WorkOrder, Subject), Failure> {
        if !self.args.shapes.is_empty() || self.args.toolchain.is_some() {
            return Err(Failure::usage("--shapes and --toolchain say how a model is built, but this is a plan")
                .hint("give the ONNX file in its place"));
        }
        if CpuLevel::of_sku(&plan.sku).is_some() && !self.device.skus.contains(&plan.sku) {
            let here = self.device.skus.iter().map(Sku::to_string).collect::<Vec<_>>().join(", ");
            return Err(Failure::usage(format!("the plan is for {}; this machine runs {here}", plan.sku))
                .hint("fetch the engine of one of these"));
        }
        if plan.foreign {
            self.context.printer.warn(FOREIGN);
        }
        let subject = match &self.args.model {
            Some(path) => self.subject(path)?,
            None => Subject { name: plan.model_name.clone(), ..Subject::default() },
        };
        if subject.digest.is_some_and(|digest| digest != plan.model_digest) {
            let message = format!("the plan was built from sha256:{}, not from {}", plan.model_digest, subject.name);
            return Err(Failure::usage(message));
        }
        let engine_key = EngineKey::new(&plan.model_digest, &plan.sku, &plan.toolchain, &plan.spec);
        let mut spec = plan.spec;
        spec.threads = self.args.threads.or(spec.threads).or(plan.threads);
        let subject = Subject { digest: Some(plan.model_digest), ..subject };
        // A plan for another GPU of the same architecture runs as what it is here, and says so.
        let own = self.device.skus.last().filter(|_| self.device.fingerprint.kind == DeviceKind::Gpu);
        let sku = own.unwrap_or(&plan.sku).clone();
        let built_for = (sku != plan.sku).then(|| plan.sku.clone());
        let order = self.order(&subject, sku, plan.toolchain, spec)?;
        let plan = Some(absolute(&self.args.plan)?);
        Ok((WorkOrder { kind: WorkKind::Benchmark, engine_key, plan, built_for, ..order }, subject))
    }

    fn model(&self) -> Result<(WorkOrder, Subject), Failure> {
        if self.args.model.is_some() {
            return Err(Failure::usage(format!(
                "{} is a model itself, so --model says nothing",
                self.args.plan.display()
            ))
            .hint("leave --model out"));
        }
        let subject = self.subject(&self.args.plan)?;
        let spec = BuildSpec {
            precision: self.args.precision,
            profiles: self.args.shapes.clone(),
            approximate_gelu: self.args.approximate_gelu,
            threads: (self.device.threads > 0).then(|| self.args.threads.unwrap_or(self.device.threads)),
            ..BuildSpec::default()
        };
        if let Some(inputs) = &self.args.measure.inputs {
            request::check_fit(inputs, &subject.path, spec.profiles.first())?;
        }
        let order = self.build(&subject, &self.args.toolchain.clone().unwrap_or_default(), spec)?;
        Ok((order, subject))
    }

    /// What the engine of `order` is compared with: as near to it as the other toolchain comes.
    fn baseline(
        &self,
        wanted: &ToolchainConstraint,
        order: &WorkOrder,
        subject: &Subject,
    ) -> Result<WorkOrder, Failure> {
        if subject.path.as_os_str().is_empty() {
            return Err(Failure::usage("a baseline is built from the model, which a plan does not hold")
                .hint("name it with --model, or give the ONNX file in the plan's place"));
        }
        let precision = match order.spec.precision {
            Precision::Fp32 => Precision::Fp32,
            _ => Precision::Best,
        };
        let spec = BuildSpec {
            precision,
            profiles: order.spec.profiles.clone(),
            threads: order.spec.threads,
            ..BuildSpec::default()
        };
        self.build(subject, wanted, spec)
    }

    fn build(&self, subject: &Subject, wanted: &ToolchainConstraint, spec: BuildSpec) -> Result<WorkOrder, Failure> {
        let toolchain = resolve_toolchain(wanted, &self.device.offers)
            .map_err(|e| Failure::new(ErrorCode::Refused, e.to_string()).hint("see `planforge devices`"))?;
        let sku = self.device.skus.last().cloned();
        let sku = sku.ok_or_else(|| Failure::new(ErrorCode::Refused, "the device has no SKU"))?;
        self.order(subject, sku, toolchain, spec)
    }

    /// An order that builds in a folder of its own.
    fn order(&self, subject: &Subject, sku: Sku, toolchain: Toolchain, spec: BuildSpec) -> Result<WorkOrder, Failure> {
        let model_digest =
            subject.digest.ok_or_else(|| Failure::new(ErrorCode::Internal, "the model's digest is not known"))?;
        let scratch = tempfile::Builder::new().tempdir_in(self.scratch);
        let scratch = scratch.map_err(|e| Failure::io("create a folder in", self.scratch, &e))?.keep();
        Ok(WorkOrder {
            kind: WorkKind::Build,
            job: "bench".into(),
            attempt: 1,
            agent: "this machine".into(),
            engine_key: EngineKey::new(&model_digest, &sku, &toolchain, &spec),
            model: subject.path.clone(),
            model_name: subject.name.clone(),
            model_digest,
            graph_digest: None,
            structure_digest: None,
            sku,
            toolchain,
            spec,
            fingerprint: serde_json::to_value(&self.device.fingerprint)
                .map_err(|e| Failure::new(ErrorCode::Internal, format!("cannot describe this device: {e}")))?,
            scratch,
            cache: None,
            cache_origin: None,
            prepared: None,
            prepare: None,
            prepared_from: None,
            ceilings: ceilings_folder(&self.context.settings),
            oracles: oracles_folder(&self.context.settings),
            plan: None,
            built_for: None,
            eval: self.args.eval.as_deref().map(absolute).transpose()?,
            inputs: self.args.measure.inputs.as_deref().map(absolute).transpose()?,
            baselines: self.args.measure.beside.iter().map(beside).collect::<Result<_, Failure>>()?,
            calibration: None,
            plugins: Vec::new(),
            builds: 1,
            measure: self.args.measure.ask()?,
            limit_ms: 0,
            measure_budget_ms: self.args.budget_s.unwrap_or(USUAL_BUDGET_S) * 1000,
            strict_measure_budget: self.args.budget_s.is_some(),
            allow_inaccurate: true,
            simulated: false,
            trace: None,
        })
    }

    fn measure(&self, order: &WorkOrder) -> Result<Report, Failure> {
        Ok(self.work(order)?.report)
    }

    fn work(&self, order: &WorkOrder) -> Result<local_worker::Done, Failure> {
        local_worker::run(self.context.printer, order, &self.device.fingerprint, self.context.verbose > 0)
    }
}

/// A runtime to be measured beside the engine, as an agent of this machine would find it.
fn beside(asked: &Beside) -> Result<BaselineOrder, Failure> {
    let found = baselines::program(baselines::of_environment().as_deref(), &asked.name);
    let (program, problem) = found.map_or_else(|why| (None, Some(why)), |program| (program, None));
    let module = asked.module.as_deref().map(absolute).transpose()?;
    Ok(BaselineOrder { name: asked.name.clone(), program, problem, module })
}
