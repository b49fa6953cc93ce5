//! What is to happen to a combination: answered, joined, run, refused or kept waiting. Nothing here changes anything.

use super::{
    ask::{Asked, Existing},
    flight::Flight,
    known::Lookup,
    model::{EngineRef, Failure, Job, JobId, JobKind, PlanRef, Told},
    queue::Target,
    resolve::Unresolved,
    state::State,
};
use planforge_proto::{ApiError, ErrorCode};
use planforge_types::{BuildSpec, Digest, EngineKey, FailureClass, Toolchain};

/// What is to happen to a combination.
pub(super) enum Verdict {
    /// A stored engine answers it.
    Answer { key: EngineKey, toolchain: Toolchain, spec: BuildSpec, engine: EngineRef, told: Told },
    /// It is known to fail.
    Fail { key: EngineKey, toolchain: Toolchain, spec: BuildSpec, failure: Failure },
    /// The same work is under way.
    Join(JobId),
    /// Work for a device, after `behind` ended when somebody else does nearly the same.
    Run {
        kind: JobKind,
        key: EngineKey,
        toolchain: Toolchain,
        spec: BuildSpec,
        plan: Option<PlanRef>,
        /// The stored plan that is no answer although it has the key.
        replaces: Option<Digest>,
        behind: Option<JobId>,
    },
    /// Nobody known could run it; it waits until somebody can.
    Wait(ApiError),
    /// It cannot be said before somebody looked what the store has under this key.
    Ask(EngineKey),
}

impl State {
    /// Decides without changing anything, by what the store had under the key when somebody looked.
    pub(super) fn judge(&self, asked: &Asked, lookup: &Lookup) -> Result<Verdict, ApiError> {
        self.plugins_allowed(&asked.spec)?;
        if let Some(existing) = &asked.existing {
            return self.judge_benchmark(asked, existing);
        }
        let resolved = match self.resolve(&asked.sku, &asked.matches, &asked.spec) {
            Ok(resolved) => resolved,
            Err(Unresolved::NothingOffers(error)) => return Ok(Verdict::Wait(error)),
            Err(Unresolved::Never(error)) => return Err(error),
        };
        let (toolchain, spec) = (resolved.toolchain, resolved.spec);
        let target = Target { sku: asked.sku.clone(), toolchain: toolchain.clone() };
        if let Some(error) = self.unmeasurable(&target, &asked.covered.measure) {
            return Err(error);
        }
        if let Some(error) = self.nobody_prepares(&asked.sku, &toolchain).filter(|_| asked.compile_only) {
            return Ok(Verdict::Wait(error));
        }
        let makes = if asked.compile_only { JobKind::Compile } else { JobKind::Build };
        let key = EngineKey::new(&asked.model.digest, &asked.sku, &toolchain, &spec);
        if asked.force {
            let (kind, plan, replaces, behind) = (makes, None, None, None);
            return Ok(Verdict::Run { kind, key, toolchain, spec, plan, replaces, behind });
        }
        // On the inputs that this request gives it may be right.
        let refusal = match asked.covered.measure.inputs {
            Some(_) => None,
            None => match self.known.refusal(&key, lookup) {
                Some(refusal) => refusal,
                None => return Ok(Verdict::Ask(key)),
            },
        };
        if let Some(refusal) = refusal {
            let failure = Failure::new(
                refusal.failure.class,
                format!("job {} tried this already: {}", refusal.job, refusal.failure.message),
                format!("{} (--force tries it again)", refusal.failure.hint).trim_start().to_owned(),
            );
            return Ok(Verdict::Fail { key, toolchain, spec, failure });
        }
        let Some(stored) = self.known.engine(&key, lookup) else { return Ok(Verdict::Ask(key)) };
        let replaces = stored.map(|engine| engine.plan.digest).filter(|plan| asked.stale.contains(plan));
        // An engine chosen from fewer builds is no answer; what is built now takes its place.
        let answers = |engine: &&EngineRef| replaces.is_none() && engine.plan.builds >= asked.builds;
        if let Some(engine) = stored.filter(answers) {
            let told = match asked.compile_only {
                true => Some(Told { report: engine.report, accurate: engine.accurate }),
                false => engine.answer(&asked.covered),
            };
            let is_wrong = told.is_some_and(|told| !told.accurate) || engine.is_wrong_on(asked.covered.measure.inputs);
            if is_wrong && !asked.allow_inaccurate {
                let failure = Failure::new(
                    FailureClass::Model,
                    "the stored engine's outputs are too far from the reference's",
                    "take it anyway with --allow-inaccurate, or build it again with --force",
                );
                return Ok(Verdict::Fail { key, toolchain, spec, failure });
            }
            if let Some(told) = told {
                return Ok(Verdict::Answer { key, toolchain, spec, engine: engine.clone(), told });
            }
            // What is missing is measured; nothing is built for it.
            let flight =
                Flight::Measure { plan: engine.plan.digest, sku: asked.sku.clone(), covered: asked.covered.clone() };
            let behind = match self.under_way(&flight) {
                Some((other, false)) => return Ok(Verdict::Join(other)),
                ending => ending.map(|(other, _)| other),
            };
            let plan = Some(engine.plan.clone());
            return Ok(Verdict::Run { kind: JobKind::Benchmark, key, toolchain, spec, plan, replaces, behind });
        }
        let flight = Flight::of_key(makes, &asked.sku, key);
        let other = self.flights.get(&flight).and_then(|id| self.jobs.get(id));
        let behind = match other {
            Some(other) if self.may_join(asked, other) => return Ok(Verdict::Join(other.id.clone())),
            other => other.map(|other| other.id.clone()),
        };
        Ok(Verdict::Run { kind: makes, key, toolchain, spec, plan: None, replaces, behind })
    }

    /// Whether what `other`, a live build of the same key, leads to answers `asked` too. A job that nobody holds can
    /// still be asked for more, see [`State::join`]: once an attempt runs, or may be revived, what it does is settled.
    fn may_join(&self, asked: &Asked, other: &Job) -> bool {
        if asked.allow_inaccurate != other.allow_inaccurate || other.cancelling.is_some() {
            return false;
        }
        // Whoever is held against another engine may fail where others would not.
        if asked.canary != other.canary {
            return false;
        }
        // What is only compiled is measured by nobody.
        if other.kind == JobKind::Compile && !asked.compile_only {
            return false;
        }
        let held = self.holds.contains_key(&other.id);
        let measured =
            other.covered().covers(&asked.covered) || (!held && other.covered().joined(&asked.covered).is_some());
        // A plan that is stored already was chosen from as many builds as were asked for then.
        let built = other.builds >= asked.builds || (!held && other.plan.is_none());
        measured && built
    }

    /// The job that does this work, and whether it is being cancelled: then it is no answer, but may still give one.
    fn under_way(&self, flight: &Flight) -> Option<(JobId, bool)> {
        let job = self.flights.get(flight).and_then(|id| self.jobs.get(id))?;
        Some((job.id.clone(), job.cancelling.is_some()))
    }

    fn judge_benchmark(&self, asked: &Asked, existing: &Existing) -> Result<Verdict, ApiError> {
        let Existing { plan, key, toolchain: made_by, .. } = existing;
        let target = Target { sku: asked.sku.clone(), toolchain: made_by.clone() };
        let flight = Flight::Measure { plan: plan.digest, sku: asked.sku.clone(), covered: asked.covered.clone() };
        let behind = match self.under_way(&flight).filter(|_| !asked.force) {
            Some((other, false)) => return Ok(Verdict::Join(other)),
            ending => ending.map(|(other, _)| other),
        };
        if !self.offers.contains_key(&target) {
            let message = format!(
                "no known agent can measure this plan on {}: it needs {made_by}, and {}",
                asked.sku,
                self.alternatives(&asked.sku)
            );
            return Ok(Verdict::Wait(ApiError::new(ErrorCode::Refused, message)));
        }
        if let Some(error) = self.unmeasurable(&target, &asked.covered.measure) {
            return Err(error);
        }
        Ok(Verdict::Run {
            kind: JobKind::Benchmark,
            key: *key,
            toolchain: made_by.clone(),
            spec: asked.spec.clone(),
            plan: Some(plan.clone()),
            replaces: None,
            behind,
        })
    }
}
