//! From a job as the coordinator tells it to an order for a worker.

use super::Failed;
use planforge_identity::model::model_digest;
use planforge_proto::v1;
use planforge_types::{
    BuildSpec, Digest, FailureClass, Sku, Toolchain,
    fingerprint::DiscoveredDevice,
    order::{BUILDS_MAX, BaselineAsk, BaselineOrder, CacheOrigin, MeasureAsk, PrepareOrder, WorkKind, WorkOrder},
    preparation::{PrepareAsk, PreparedFrom},
};
use std::{
    fmt::Display,
    path::{Path, PathBuf},
    str::FromStr,
};

/// What a job asks for, read and checked.
#[derive(Debug)]
pub(super) struct JobOrder {
    pub kind: WorkKind,
    pub engine_key: planforge_types::EngineKey,
    pub model_digest: Digest,
    pub graph_digest: Option<Digest>,
    pub structure_digest: Option<Digest>,
    pub sku: Sku,
    pub toolchain: Toolchain,
    pub spec: BuildSpec,
    pub eval: Option<Digest>,
    pub plan: Option<Digest>,
    pub built_for: Option<Sku>,
    /// For a build: what a compile job prepared for it.
    pub prepared: Option<Digest>,
    /// For a preparation: what the model is to become.
    pub prepare: Option<PrepareAsk>,
    /// Where the model comes from, if a job prepared it.
    pub prepared_from: Option<PreparedFrom>,
    /// The device elsewhere that is prepared for.
    pub made_for: Option<serde_json::Value>,
    /// At least 1.
    pub builds: u32,
    pub measure: MeasureAsk,
}

/// How long an order may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// The whole order.
    pub limit_ms: u64,
    /// One measurement.
    pub measure_budget_ms: u64,
    pub strict_measure_budget: bool,
}

/// Folders and files an order names.
#[derive(Debug)]
pub(super) struct OrderPaths {
    pub model: PathBuf,
    pub scratch: PathBuf,
    /// Folder of what this host's devices were measured to reach.
    pub ceilings: PathBuf,
    pub oracles: PathBuf,
    /// For a build: the cache's file, and where its content came from.
    pub cache: Option<(PathBuf, Option<CacheOrigin>)>,
    pub plan: Option<PathBuf>,
    pub prepared: Option<PathBuf>,
    /// For a preparation, in the order of what it asks for; and labelled data, where that is other data.
    pub data: Vec<PathBuf>,
    pub judged: Option<PathBuf>,
    pub eval: Option<PathBuf>,
    pub inputs: Option<PathBuf>,
    pub calibration: Option<PathBuf>,
    pub plugins: Vec<PathBuf>,
    pub baselines: Vec<BaselineOrder>,
}

fn unreadable(field: &str, reason: impl Display) -> Failed {
    Failed::new(
        FailureClass::Infrastructure,
        format!("the coordinator sent a job whose {field} cannot be read: {reason}"),
    )
    .with_hint("bring agent and coordinator to the same version")
}

fn required<T: FromStr<Err: Display>>(field: &str, text: &str) -> Result<T, Failed> {
    text.parse().map_err(|error| unreadable(field, error))
}

fn optional<T: FromStr<Err: Display>>(field: &str, text: &str) -> Result<Option<T>, Failed> {
    if text.is_empty() { Ok(None) } else { required(field, text).map(Some) }
}

/// What a model of these files is: an engine must not be stored under another model's name.
fn digest_of_files(files: &[v1::ModelFile]) -> Result<Digest, Failed> {
    let mut named = Vec::with_capacity(files.len());
    for file in files {
        named.push((file.name.as_str(), required("digest of a model file", &file.digest)?, file.size_bytes));
    }
    Ok(model_digest(named))
}

fn preparation_of(job: &v1::Job) -> Result<(&v1::Preparation, PrepareAsk), Failed> {
    let what = job.preparation.as_ref().ok_or_else(|| unreadable("preparation", "it is missing"))?;
    let ask: PrepareAsk = serde_json::from_str(&what.ask_json).map_err(|error| unreadable("preparation", error))?;
    ask.validate().map_err(|error| unreadable("preparation", error))?;
    Ok((what, ask))
}

fn read_ask(job: &v1::Job) -> Result<PrepareAsk, Failed> {
    preparation_of(job).map(|(_, ask)| ask)
}

/// Where the model of a job comes from, as far as that is known.
fn read_origin(job: &v1::Job) -> Result<Option<PreparedFrom>, Failed> {
    if job.preparation.is_none() {
        return Ok(None);
    }
    let (from, ask) = preparation_of(job)?;
    Ok(Some(PreparedFrom {
        source: required("digest of the model before it was prepared", &from.source_digest)?,
        source_name: from.source_name.clone(),
        ask,
        job: from.job.clone(),
        document: optional("digest of what became of the model", &from.document_digest)?,
        as_calibration: from.as_calibration,
    }))
}

impl JobOrder {
    /// `made_for`: of a compile job, the device elsewhere that it prepares for; empty: none.
    pub fn read(job: &v1::Job, made_for: &str) -> Result<Self, Failed> {
        let kind = match job.kind() {
            v1::JobKind::Build => WorkKind::Build,
            v1::JobKind::Compile if made_for.is_empty() => WorkKind::Compile,
            v1::JobKind::Compile => WorkKind::Ahead,
            v1::JobKind::Prepare => WorkKind::Prepare,
            v1::JobKind::Benchmark => WorkKind::Benchmark,
            other => return Err(unreadable("kind", format!("this agent does not know {}", other.as_str_name()))),
        };
        let model = job.model.as_ref().ok_or_else(|| unreadable("model", "it is missing"))?;
        let model_digest = required("model digest", &model.digest)?;
        let made = digest_of_files(&model.files)?;
        if made != model_digest {
            let reason = format!("it is to be {model_digest}, but its files make it {made}");
            return Err(unreadable("model", reason));
        }
        let plan = optional("plan digest", if kind == WorkKind::Benchmark { &job.plan_digest } else { "" })?;
        if kind == WorkKind::Benchmark && plan.is_none() {
            return Err(unreadable("plan digest", "it is missing"));
        }
        let v1::MeasureAsk { streams, trace, batches, warm_up_ms, min_windows, inputs_digest, time_inputs, baselines } =
            job.measure.clone().unwrap_or_default();
        let inputs = optional("inputs", &inputs_digest)?;
        let read = |v1::Baseline { name, module_digest }| {
            Ok(BaselineAsk { name, module: optional("module of a baseline", &module_digest)? })
        };
        let baselines = baselines.into_iter().map(read).collect::<Result<_, Failed>>()?;
        let measure = MeasureAsk { streams, trace, batches, warm_up_ms, min_windows, inputs, time_inputs, baselines };
        measure.validate().map_err(|error| unreadable("measurement", error))?;
        Ok(Self {
            kind,
            engine_key: required("engine key", &job.engine_key)?,
            model_digest,
            graph_digest: optional("graph digest", &model.graph_digest)?,
            structure_digest: optional("structure digest", &model.structure_digest)?,
            sku: required("SKU", &job.sku)?,
            toolchain: serde_json::from_str(&job.toolchain_json).map_err(|e| unreadable("toolchain", e))?,
            spec: serde_json::from_str(&job.spec_json).map_err(|e| unreadable("spec", e))?,
            eval: optional("test set", &job.eval_digest)?,
            plan,
            built_for: optional("SKU it was built for", &job.built_for)?,
            prepared: match kind {
                WorkKind::Build => optional("digest of what was prepared", &job.prepared_digest)?,
                _ => None,
            },
            prepare: match kind {
                WorkKind::Prepare => Some(read_ask(job)?),
                _ => None,
            },
            prepared_from: match kind {
                WorkKind::Prepare => None,
                _ => read_origin(job)?,
            },
            made_for: match made_for {
                "" => None,
                text => Some(serde_json::from_str(text).map_err(|error| unreadable("device elsewhere", error))?),
            },
            builds: job.builds.clamp(1, BUILDS_MAX),
            measure,
        })
    }

    pub fn into_work(
        self,
        key: &crate::AttemptKey,
        agent: &str,
        job: &v1::Job,
        device: &DiscoveredDevice,
        Bounds { limit_ms, measure_budget_ms, strict_measure_budget }: Bounds,
        paths: OrderPaths,
    ) -> WorkOrder {
        let model_name = job.model.as_ref().map(|model| model.name.clone()).unwrap_or_default();
        let (cache, cache_origin) = paths.cache.unzip();
        let prepare = self.prepare.map(|ask| PrepareOrder { ask, data: paths.data, eval: paths.judged });
        let here = || serde_json::to_value(&device.fingerprint).expect("a fingerprint has only JSON types");
        WorkOrder {
            kind: self.kind,
            job: key.job.clone(),
            attempt: key.attempt,
            agent: agent.to_owned(),
            engine_key: self.engine_key,
            model: paths.model,
            model_name,
            model_digest: self.model_digest,
            graph_digest: self.graph_digest,
            structure_digest: self.structure_digest,
            sku: self.sku,
            toolchain: self.toolchain,
            spec: self.spec,
            fingerprint: self.made_for.unwrap_or_else(here),
            scratch: paths.scratch,
            cache,
            cache_origin: cache_origin.flatten(),
            prepared: paths.prepared,
            prepare,
            prepared_from: self.prepared_from,
            ceilings: Some(paths.ceilings),
            oracles: Some(paths.oracles),
            built_for: self.built_for,
            plan: paths.plan,
            baselines: paths.baselines,
            eval: paths.eval,
            inputs: paths.inputs,
            calibration: paths.calibration,
            plugins: paths.plugins,
            builds: self.builds,
            measure: self.measure,
            limit_ms,
            measure_budget_ms,
            strict_measure_budget,
            allow_inaccurate: job.allow_inaccurate,
            simulated: device.simulated,
            trace: None,
        }
    }
}

/// The folder of one attempt, removed when it ends.
#[derive(Debug)]
pub(super) struct Scratch {
    pub folder: PathBuf,
}

impl Scratch {
    pub fn create(root: &Path, key: &crate::AttemptKey) -> std::io::Result<Self> {
        let folder = root.join(key.to_string());
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        std::fs::create_dir_all(folder.join("work"))?;
        Ok(Self { folder })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            tracing::warn!(folder = %self.folder.display(), %error, "cannot remove an attempt's scratch folder");
        }
    }
}
