//! What a request asks for, one combination at a time, before anything is decided about it.

use super::{
    fallback::Tried,
    model::{Canary, Covered, Job, JobKind, Model, PlanRef},
    preparation, requirements,
    state::{SpecAsk, Submit, SubmitWhat},
    submit::JOBS_PER_REQUEST_MAX,
};
use planforge_proto::{ApiError, ErrorCode};
use planforge_types::{
    BuildSpec, Digest, EngineKey, Requirement, Sku, Toolchain, ToolchainConstraint,
    preparation::{PrepareAsk, PreparedFrom},
};
use std::{collections::BTreeSet, sync::Arc};

/// One combination of a request, before anything is decided about it.
pub(super) struct Asked {
    pub model: Model,
    pub sku: Sku,
    pub spec: BuildSpec,
    pub constraint: String,
    pub matches: ToolchainConstraint,
    pub force: bool,
    pub allow_inaccurate: bool,
    /// From how many builds the plan is to be chosen.
    pub builds: u32,
    /// What its report is to have beside the usual.
    pub covered: Covered,
    /// Stored plans that are no answer: every window of their measurement was disturbed.
    pub stale: Arc<BTreeSet<Digest>>,
    /// For a benchmark.
    pub existing: Option<Existing>,
    /// What the engine is held against.
    pub canary: Option<Canary>,
    /// Nothing is to be measured, or done on the device.
    pub compile_only: bool,
    /// What is asked of the device that runs it.
    pub require: Requirement,
    /// Where a toolchain cannot build the model the next one is asked.
    pub falls_back: bool,
    /// Those that cannot build it.
    pub tried: Vec<Tried>,
    /// For a prepare job: what the model is to become.
    pub prepare: Option<PrepareAsk>,
    /// For others: where the model comes from, or will.
    pub from: Option<PreparedFrom>,
}

impl Asked {
    /// The command that would wait for what no known agent has.
    pub fn waits_with(&self) -> &'static str {
        match self.existing {
            Some(_) => "'planforge bench --on SKU --wait-for-device'",
            None => "'planforge submit --wait-for-device'",
        }
    }
}

/// The plan that a benchmark measures.
#[derive(Clone)]
pub(super) struct Existing {
    pub plan: PlanRef,
    pub key: EngineKey,
    /// What made the plan, and what must run it.
    pub toolchain: Toolchain,
    pub built_for: Sku,
}

impl Asked {
    /// The kind of job that builds it.
    pub fn makes(&self) -> JobKind {
        match self.prepare {
            Some(_) => JobKind::Prepare,
            None if self.compile_only => JobKind::Compile,
            None => JobKind::Build,
        }
    }

    /// Whether its model is still to be prepared.
    pub fn is_open(&self) -> bool {
        self.from.as_ref().is_some_and(|from| from.document.is_none())
    }

    /// What a job that waits asked for; `None` when its record makes no sense.
    pub fn of(job: &Job) -> Option<Self> {
        let measured = job.kind == JobKind::Benchmark;
        let existing = match (&job.plan, job.key, &job.toolchain) {
            (Some(plan), Some(key), Some(toolchain)) if measured => Some(Existing {
                plan: plan.clone(),
                key,
                toolchain: toolchain.clone(),
                built_for: job.built_for.clone().unwrap_or_else(|| job.sku.clone()),
            }),
            _ => None,
        };
        let threads = if measured { job.spec.threads } else { job.asked_threads };
        Some(Self {
            model: job.model.clone(),
            sku: job.sku.clone(),
            spec: BuildSpec { threads, ..job.spec.clone() },
            constraint: job.constraint.clone(),
            matches: job.constraint.parse().ok()?,
            force: job.force,
            allow_inaccurate: job.allow_inaccurate,
            builds: job.builds,
            covered: job.covered(),
            stale: Arc::new(job.replaces.into_iter().collect()),
            existing,
            canary: job.canary.clone(),
            compile_only: job.kind == JobKind::Compile,
            require: job.requirement(),
            falls_back: !job.prepares() && job.prepare.is_none() && job.wants.iter().all(|want| !want.no_fallback),
            tried: job.tried.clone(),
            prepare: job.prepare.as_deref().cloned(),
            from: job.from.as_deref().cloned(),
        })
    }
}

/// What a request comes to, before anything is decided about it.
pub(super) struct Expanded {
    /// Models that are to be prepared, each in each way once.
    pub prepares: Vec<Asked>,
    /// Every combination of the request.
    pub builds: Vec<Asked>,
}

impl Expanded {
    pub fn len(&self) -> usize {
        self.prepares.len() + self.builds.len()
    }
}

/// What a request comes to. A model that is to be prepared first is still the one that it is made from.
///
/// # Errors
/// When that is nothing, or too much.
pub(super) fn expand(submit: &Submit) -> Result<Expanded, ApiError> {
    let builds = match &submit.what {
        SubmitWhat::Build { models, specs, constraints } => {
            models.len().saturating_mul(submit.skus.len()).saturating_mul(specs.len()).saturating_mul(constraints.len())
        }
        SubmitWhat::Benchmark(_) => submit.skus.len(),
    };
    let prepares = match &submit.what {
        SubmitWhat::Build { models, specs, .. } => preparation::of_request(models, specs, submit),
        SubmitWhat::Benchmark(_) => Vec::new(),
    };
    let count = builds.saturating_add(prepares.len());
    if count == 0 || count > JOBS_PER_REQUEST_MAX {
        let message = format!("the request comes to {count} jobs; it must be 1 to {JOBS_PER_REQUEST_MAX}");
        return Err(ApiError::new(ErrorCode::InvalidArgument, message));
    }
    let mut asked = Vec::with_capacity(builds);
    let as_it_is = |model: &Model, sku: &Sku, spec: &SpecAsk, constraint: &(String, ToolchainConstraint)| Asked {
        model: model.clone(),
        sku: sku.clone(),
        spec: spec.spec.clone(),
        constraint: constraint.0.clone(),
        matches: constraint.1.clone(),
        force: submit.force,
        allow_inaccurate: submit.allow_inaccurate,
        builds: submit.builds,
        covered: Covered { eval: submit.eval, measure: submit.measure.clone() },
        stale: Arc::clone(&submit.disturbed_plans),
        existing: None,
        canary: submit.canary.clone(),
        compile_only: submit.compile_only,
        require: match submit.compile_only {
            true => requirements::of_kind(JobKind::Compile, sku, &submit.require),
            false => submit.require.clone(),
        },
        // What is made ready elsewhere is made ready for one toolchain.
        falls_back: !submit.no_fallback && constraint.0.is_empty() && (!submit.compile_only || sku.is_cpu()),
        tried: Vec::new(),
        prepare: None,
        from: None,
    };
    let one = |model: &Model, sku: &Sku, spec: &SpecAsk, constraint: &(String, ToolchainConstraint)| {
        preparation::with_origin(as_it_is(model, sku, spec, constraint), spec, submit)
    };
    match &submit.what {
        SubmitWhat::Build { models, specs, constraints } => {
            for model in models {
                for sku in &submit.skus {
                    for spec in specs {
                        asked.extend(constraints.iter().map(|constraint| one(model, sku, spec, constraint)));
                    }
                }
            }
        }
        SubmitWhat::Benchmark(engine) => {
            let any = (String::new(), ToolchainConstraint::default());
            let spec = SpecAsk { spec: engine.spec.clone(), prepare: None, calibrates: false };
            for sku in &submit.skus {
                let existing = Existing {
                    plan: engine.plan.clone(),
                    key: engine.key,
                    toolchain: engine.toolchain.clone(),
                    built_for: engine.sku.clone(),
                };
                asked.push(Asked {
                    existing: Some(existing),
                    falls_back: false,
                    from: engine.from.as_deref().cloned(),
                    ..as_it_is(&engine.model, sku, &spec, &any)
                });
            }
        }
    }
    Ok(Expanded { prepares, builds: asked })
}
