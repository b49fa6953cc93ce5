//! How every declared cell stands, by the lock and what the farm says.

use super::{Inputs, Project, farm_name, inputs::path_of};
use crate::{context::Context, failure::Failure, farm::Farm, settings::Key};
use planforge_fleet::{
    Cell, CellId, Lock, Locked, State,
    gate::{self, Judged},
    lock::Headline,
    state::{Held, Seen, assess},
};
use planforge_proto::{ErrorCode, v1};
use planforge_report::{Report, compare::gate::Limit, figures::Figures};
use planforge_tensorrt_rules::{hardware::Board, preflight};
use planforge_types::{
    BuildSpec, Digest, Sku, Toolchain, ToolchainConstraint,
    fingerprint::{DeviceFingerprint, GpuFacts},
    resolve_spec, resolve_toolchain,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};
use tokio::task::JoinSet;

/// Questions that are under way at once.
const AT_ONCE: usize = 16;

/// What the farm has devices for, those of agents that are away among them.
#[derive(Debug)]
pub struct Fleet(Vec<v1::Device>);

impl Fleet {
    pub async fn ask(farm: &Farm) -> Result<Self, Failure> {
        let reply = farm.rpc().list_devices(v1::ListDevicesRequest { online_only: false }).await;
        Ok(Self(reply.map_err(|e| farm.error(e))?.into_inner().devices))
    }

    pub fn skus(&self) -> BTreeSet<Sku> {
        let offering = self.0.iter().filter(|device| !device.offers.is_empty());
        offering.flat_map(|device| &device.skus).filter_map(|sku| sku.parse().ok()).collect()
    }

    /// Devices of a kind, each with a toolchain that it offers.
    fn offers(&self, sku: &Sku) -> Vec<(&v1::Device, Toolchain)> {
        let alike = self.0.iter().filter(|device| device.skus.iter().any(|known| known == sku.as_str()));
        let offers = alike.flat_map(|device| device.offers.iter().map(move |offer| (device, offer)));
        offers.filter_map(|(device, offer)| Some((device, serde_json::from_str(&offer.toolchain_json).ok()?))).collect()
    }

    /// What a request for this comes to now, as the coordinator would resolve it; `None` where nothing offers it.
    pub fn resolve(
        &self,
        sku: &Sku,
        constraint: &ToolchainConstraint,
        spec: &BuildSpec,
    ) -> Option<(Toolchain, BuildSpec)> {
        let offers = self.offers(sku);
        let gpu = self.gpu(sku);
        let board = gpu.as_ref().and_then(Board::of);
        let mut spec = spec.clone();
        let allow_unknown = preflight::take_permission(&mut spec);
        let all: Vec<Toolchain> = offers.iter().map(|(_, toolchain)| toolchain.clone()).collect();
        let usable: Vec<Toolchain> =
            all.iter().filter(|offer| preflight::usable(offer, board.as_ref(), allow_unknown)).cloned().collect();
        let toolchain = resolve_toolchain(constraint, &usable).or_else(|_| resolve_toolchain(constraint, &all)).ok()?;
        let threads = offers.iter().filter(|(_, offered)| *offered == toolchain).map(|(device, _)| device.threads);
        let spec = resolve_spec(&spec, sku, threads).ok()?;
        Some((toolchain, spec))
    }

    fn gpu(&self, sku: &Sku) -> Option<GpuFacts> {
        let mut alike = self.0.iter().filter(|device| device.skus.iter().any(|known| known == sku.as_str()));
        alike.find_map(|device| serde_json::from_str::<DeviceFingerprint>(&device.fingerprint_json).ok()?.gpu)
    }
}

/// A cell and how it stands.
#[derive(Clone, Debug)]
pub struct Row {
    pub cell: Cell,
    pub locked: Option<Locked>,
    pub state: State,
    /// What a gate said of it.
    pub gate: Option<Judged>,
}

/// How every cell stands.
#[derive(Debug)]
pub struct Survey {
    pub rows: Vec<Row>,
    /// Cells of the lock that are declared no more.
    pub undeclared: Vec<CellId>,
}

impl Survey {
    /// Looks at every cell that is declared for device kinds of the farm, and with `locked_too` of the lock: a class still
    /// means those whose last agent was forgotten.
    pub async fn of(
        context: &Context<'_>,
        farm: &Farm,
        project: &Project,
        (lock, locked_too): (&Lock, bool),
        inputs: &Inputs,
    ) -> Result<Self, Failure> {
        let fleet = Fleet::ask(farm).await?;
        let mut skus = fleet.skus();
        if locked_too {
            skus.extend(lock.cells.keys().map(|id| id.sku.clone()));
        }
        let declaration = &project.declaration;
        let ids = declaration
            .cells(&skus, &project.boards)
            .map_err(|error| Failure::new(ErrorCode::Refused, error.to_string()).hint(error.hint()))?;
        if let Some((one, other)) = declaration.layout.collision(&ids) {
            let file = declaration.layout.file(one);
            return Err(Failure::usage(format!("the engines of {one} and of {other} would both be {file}"))
                .hint("name {model}, {sku} and {spec} in layout.file"));
        }
        let undeclared = lock.cells.keys().filter(|id| !ids.contains(id)).cloned().collect();
        let plans: BTreeSet<Digest> =
            ids.iter().filter_map(|id| lock.cells.get(id)).map(|locked| locked.plan).collect();
        let limits = &declaration.gates.limits;
        let bases = lock.cells.values().filter_map(|locked| locked.base_plan).filter(|_| !limits.is_empty());
        let wanted = plans.iter().copied().chain(bases).collect();
        let engines = engines_of(context, farm, wanted).await?;
        let here = farm_name(context)?;
        let mut rows = Vec::with_capacity(ids.len());
        for id in ids {
            let cell = Cell {
                model: inputs.models[&id.model],
                spec: inputs.specs[&id.spec].clone(),
                toolchain: declaration.specs[&id.spec].toolchain.clone(),
                id,
            };
            let locked = lock.cells.get(&cell.id).cloned();
            let mut seen = Seen { newest: fleet.resolve(&cell.id.sku, &cell.toolchain, &cell.spec), ..Seen::default() };
            let mut judged = None;
            if let Some(locked) = &locked {
                let found = &engines[&locked.plan];
                if let (Ok(engine), Some((newest, _))) = (found, &seen.newest)
                    && newest.backend != locked.toolchain.backend
                    && refused_before(farm, engine, newest).await?
                {
                    let same = locked.toolchain.backend.parse().unwrap_or_default();
                    seen.newest = fleet.resolve(&cell.id.sku, &same, &cell.spec);
                }
                seen.plan = Some(match found {
                    Ok(_) => Held::Yes,
                    Err(why) if locked.farm != here => Held::No(format!("{why}; it was locked at {}", locked.farm)),
                    Err(why) => Held::No(why.clone()),
                });
                if let (false, Some(base)) = (limits.is_empty(), locked.base_plan) {
                    let base = engines.get(&base).and_then(|found| found.as_ref().ok());
                    judged = Some(judge_gate(base, found.as_ref().ok(), limits));
                }
            }
            seen.gate.clone_from(&judged);
            let state = assess(&cell, locked.as_ref(), &seen);
            rows.push(Row { cell, locked, state, gate: judged });
        }
        Ok(Self { rows, undeclared })
    }
}

/// Whether a toolchain refused the model before the engine's own was asked, as far as its job is kept.
async fn refused_before(farm: &Farm, engine: &v1::Engine, toolchain: &Toolchain) -> Result<bool, Failure> {
    let job = match farm.rpc().get_job(v1::GetJobRequest { id: engine.job.clone() }).await.map_err(|e| farm.error(e)) {
        Ok(job) => job.into_inner(),
        Err(failure) if failure.name == ErrorCode::NotFound.name() => return Ok(false),
        Err(failure) => return Err(failure),
    };
    let refused =
        |one: &v1::Tried| serde_json::from_str::<Toolchain>(&one.toolchain_json).ok().as_ref() == Some(toolchain);
    Ok(job.tried.iter().any(refused))
}

/// What the gate says of an engine and the one whose place it took.
fn judge_gate(base: Option<&v1::Engine>, now: Option<&v1::Engine>, limits: &[Limit]) -> Judged {
    let Some(base) = base else {
        return Judged::Undecided(
            "the farm has the replaced engine no more (planforge sync --accept takes this one)".into(),
        );
    };
    match (report_of(base), now.and_then(report_of)) {
        (Some(base), Some(now)) => gate::judge(&base, &now, limits),
        _ => Judged::Undecided("one of the two has no measurement".into()),
    }
}

/// The newest measurement of an engine, where there is one that can be read.
pub fn report_of(engine: &v1::Engine) -> Option<Report> {
    Report::parse(engine.report_json.as_bytes()).ok()
}

/// The engine of a plan; `Err` with the reason where the farm does not have it.
pub async fn engine_of_plan(
    context: &Context<'_>,
    farm: &Farm,
    plan: Digest,
) -> Result<Result<v1::Engine, String>, Failure> {
    Ok(engines_of(context, farm, BTreeSet::from([plan]))
        .await?
        .remove(&plan)
        .unwrap_or_else(|| Err("it was not looked for".into())))
}

async fn engines_of(
    context: &Context<'_>,
    farm: &Farm,
    plans: BTreeSet<Digest>,
) -> Result<BTreeMap<Digest, Result<v1::Engine, String>>, Failure> {
    let project: String = context.settings.get(Key::Project).unwrap_or_default().into();
    let mut found = BTreeMap::new();
    let mut asked = JoinSet::new();
    let mut plans = plans.into_iter();
    loop {
        while asked.len() < AT_ONCE {
            let Some(plan) = plans.next() else { break };
            let mut rpc = farm.rpc();
            let request = v1::FindEngineRequest {
                plan_digest: plan.to_string(),
                allow_inaccurate: true,
                project: project.clone(),
                ..Default::default()
            };
            asked.spawn(async move { (plan, rpc.find_engine(request).await) });
        }
        let Some(answered) = asked.join_next().await else { return Ok(found) };
        let (plan, reply) = answered
            .map_err(|e| Failure::new(ErrorCode::Internal, format!("asking for an engine ended badly: {e}")))?;
        let engine = match reply.map_err(|e| farm.error(e)) {
            Ok(engine) => Ok(engine.into_inner()),
            Err(failure) if failure.name == ErrorCode::Gone.name() => Err(failure.to_string()),
            Err(failure) if failure.name == ErrorCode::NotFound.name() => {
                Err(format!("the farm has no plan sha256:{}", plan.short()))
            }
            Err(failure) => return Err(failure),
        };
        found.insert(plan, engine);
    }
}

/// The engine as a lock says it.
pub fn locked_as(engine: &v1::Engine, farm: &str, base_plan: Option<Digest>) -> Result<Locked, Failure> {
    let wrong = |what: &str, error: &dyn std::fmt::Display| {
        Failure::new(
            ErrorCode::Internal,
            format!("the coordinator names the engine's {what} by something else: {error}"),
        )
    };
    let model = engine.model.as_ref().map(|model| model.digest.clone()).unwrap_or_default();
    let figures = Figures::parse(&engine.report_json).unwrap_or_default();
    Ok(Locked {
        model: model.parse().map_err(|e| wrong("model", &e))?,
        toolchain: serde_json::from_str(&engine.toolchain_json).map_err(|e| wrong("toolchain", &e))?,
        spec: BuildSpec::parse(&engine.spec_json).map_err(|e| wrong("build spec", &e))?,
        engine_key: engine.engine_key.parse().map_err(|e| wrong("key", &e))?,
        plan: engine.plan_digest.parse().map_err(|e| wrong("plan", &e))?,
        plan_bytes: engine.plan_bytes,
        farm: farm.to_owned(),
        headline: Headline {
            median_ms: figures.latency_ms.median,
            p99_ms: figures.latency_ms.p99,
            throughput_per_s: figures.throughput_per_s,
        },
        base_plan,
    })
}

impl Project {
    /// The file of a declared model; `None` for one of the web, and for a name that is not declared.
    pub fn model_path(&self, name: &str) -> Option<PathBuf> {
        path_of(self, name)
    }
}
