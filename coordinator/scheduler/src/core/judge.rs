//! What is to happen to a combination: answered, joined, run, refused or kept waiting. Nothing here changes anything.

use super::{
    ask::{Asked, Existing},
    fallback::{Tried, with_tried},
    flight::Flight,
    known::Lookup,
    model::{EngineRef, Failure, Job, JobId, JobKind, PlanRef, PreparationRecord, Refusal, Told},
    queue::Target,
    resolve::{Resolved, Unresolved},
    state::State,
};
use planforge_proto::{ApiError, ErrorCode};
use planforge_types::{BuildSpec, Digest, EngineKey, FailureClass, Reason, Toolchain};

/// What a combination came to.
#[derive(Clone)]
pub(super) struct Chosen {
    pub key: EngineKey,
    pub toolchain: Toolchain,
    pub spec: BuildSpec,
    /// Toolchains that cannot build the model.
    pub tried: Vec<Tried>,
}

impl Chosen {
    pub fn onto(self, job: &mut Job) {
        (job.key, job.toolchain, job.spec, job.tried) = (Some(self.key), Some(self.toolchain), self.spec, self.tried);
    }
}

/// What is to happen to a combination.
pub(super) enum Verdict {
    /// A stored engine answers it.
    Answer { chosen: Chosen, engine: EngineRef, told: Told },
    /// The model was prepared before.
    Made { chosen: Chosen, record: PreparationRecord },
    /// It is known to fail.
    Fail { chosen: Chosen, failure: Failure },
    /// The same work is under way.
    Join(JobId),
    /// Work for a device, after `behind` ended when somebody else does nearly the same.
    Run {
        chosen: Chosen,
        kind: JobKind,
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
        let mut tried = asked.tried.clone();
        // What is said where nothing is left to be asked.
        let mut refused = None;
        loop {
            let chosen = match self.choose(asked, &tried) {
                Ok(chosen) => chosen,
                Err(Unresolved::NothingOffers(error)) => return Ok(refused.unwrap_or(Verdict::Wait(error))),
                Err(Unresolved::Never(error)) => return refused.ok_or(error),
            };
            if asked.force {
                return Ok(Verdict::Run { chosen, kind: asked.makes(), plan: None, replaces: None, behind: None });
            }
            let Some(refusal) = self.refusal(asked, &chosen.key, lookup) else { return Ok(Verdict::Ask(chosen.key)) };
            let Some(refusal) = refusal else { return Ok(self.judge_stored(asked, chosen, lookup)) };
            let Refusal { job, failure, .. } = refusal;
            let told = Failure {
                reason: failure.reason,
                ..Failure::new(
                    failure.class,
                    format!("job {job} tried this already: {}", failure.message),
                    format!("{} (--force tries it again)", failure.hint).trim_start().to_owned(),
                )
            };
            let mut told = with_tried(&tried, &chosen.toolchain, told);
            if !tried.is_empty() {
                told.hint.push_str(" (--force tries all of them again)");
            }
            let one = Tried::new(&chosen.toolchain, job, failure);
            let verdict = Verdict::Fail { chosen, failure: told };
            if !asked.falls_back || failure.reason != Some(Reason::Unsupported) {
                return Ok(verdict);
            }
            tried.push(one);
            refused = Some(verdict);
        }
    }

    /// Every key that it may come to, by whatever the store has under those before it.
    pub(super) fn keys_of(&self, asked: &Asked) -> Vec<EngineKey> {
        let (mut keys, mut tried) = (Vec::new(), asked.tried.clone());
        while let Ok(Chosen { key, toolchain, .. }) = self.choose(asked, &tried) {
            keys.push(key);
            if !asked.falls_back {
                break;
            }
            tried.push(Tried { toolchain, job: JobId::from(""), message: String::new() });
        }
        keys
    }

    /// The best toolchain beside those that were tried, and what the engine would be called.
    fn choose(&self, asked: &Asked, tried: &[Tried]) -> Result<Chosen, Unresolved> {
        if let Some(ask) = &asked.prepare {
            let toolchain = self.preparer().map_err(Unresolved::NothingOffers)?;
            let key = EngineKey::of_preparation(&asked.model.digest, &toolchain, ask);
            return Ok(Chosen { key, toolchain, spec: asked.spec.clone(), tried: Vec::new() });
        }
        let Resolved { toolchain, spec } = self.resolve(asked, tried)?;
        let target = Target { sku: asked.sku.clone(), toolchain: toolchain.clone() };
        if let Some(error) = self.unmeasurable(&target, &asked.covered.measure) {
            return Err(Unresolved::Never(error));
        }
        if let Some(error) = self.nobody_prepares(&asked.sku, &toolchain).filter(|_| asked.compile_only) {
            return Err(Unresolved::NothingOffers(error));
        }
        let key = EngineKey::new(&asked.model.digest, &asked.sku, &toolchain, &spec);
        Ok(Chosen { key, toolchain, spec, tried: tried.to_vec() })
    }

    /// Why what is asked for is known to fail under its key; the outer `None`: somebody has to look.
    fn refusal<'a>(&'a self, asked: &Asked, key: &EngineKey, lookup: &'a Lookup) -> Option<Option<&'a Refusal>> {
        // On the inputs that this request gives it may be right, and who takes it anyway asks for no more. What cannot be
        // built cannot be built for them either.
        let holds = |refusal: &&Refusal| match refusal.failure.reason {
            Some(Reason::Unsupported) => true,
            Some(Reason::Inaccurate) if asked.allow_inaccurate => false,
            _ => asked.covered.measure.inputs.is_none(),
        };
        Some(self.known.refusal(key, lookup)?.filter(holds))
    }

    /// Decides about what is not known to fail.
    fn judge_stored(&self, asked: &Asked, chosen: Chosen, lookup: &Lookup) -> Verdict {
        let (key, makes) = (chosen.key, asked.makes());
        if makes == JobKind::Prepare {
            match self.known.preparation(&key, lookup) {
                None => return Verdict::Ask(key),
                Some(Some(record)) => return Verdict::Made { chosen, record: record.clone() },
                Some(None) => {}
            }
            let flight = Flight::of_key(makes, &asked.sku, key);
            let behind = match self.under_way(&flight, asked) {
                Some((other, true)) => return Verdict::Join(other),
                other => other.map(|(other, _)| other),
            };
            return Verdict::Run { chosen, kind: makes, plan: None, replaces: None, behind };
        }
        let Some(stored) = self.known.engine(&key, lookup) else { return Verdict::Ask(key) };
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
                return Verdict::Fail { chosen, failure };
            }
            if let Some(told) = told {
                return Verdict::Answer { chosen, engine: engine.clone(), told };
            }
            // What is missing is measured; nothing is built for it.
            let flight =
                Flight::Measure { plan: engine.plan.digest, sku: asked.sku.clone(), covered: asked.covered.clone() };
            let behind = match self.under_way(&flight, asked) {
                Some((other, true)) => return Verdict::Join(other),
                other => other.map(|(other, _)| other),
            };
            let plan = Some(engine.plan.clone());
            return Verdict::Run { chosen, kind: JobKind::Benchmark, plan, replaces, behind };
        }
        let flight = Flight::of_key(makes, &asked.sku, key);
        let other = self.flights.get(&flight).and_then(|id| self.jobs.get(id));
        let behind = match other {
            Some(other) if self.may_join(asked, other) => return Verdict::Join(other.id.clone()),
            other => other.map(|other| other.id.clone()),
        };
        Verdict::Run { chosen, kind: makes, plan: None, replaces, behind }
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
        if !self.may_share_device(asked, other) {
            return false;
        }
        let held = self.holds.contains_key(&other.id);
        let measured =
            other.covered().covers(&asked.covered) || (!held && other.covered().joined(&asked.covered).is_some());
        // A plan that is stored already was chosen from as many builds as were asked for then.
        let built = other.builds >= asked.builds || (!held && other.plan.is_none());
        measured && built
    }

    /// The job that does this work, and whether it may be joined. One that is being cancelled, or runs on a device where
    /// `asked` may not, is no answer, but may still give one.
    fn under_way(&self, flight: &Flight, asked: &Asked) -> Option<(JobId, bool)> {
        let job = self.flights.get(flight).and_then(|id| self.jobs.get(id))?;
        Some((job.id.clone(), job.cancelling.is_none() && self.may_share_device(asked, job)))
    }

    fn judge_benchmark(&self, asked: &Asked, existing: &Existing) -> Result<Verdict, ApiError> {
        let Existing { plan, key, toolchain: made_by, .. } = existing;
        let target = Target { sku: asked.sku.clone(), toolchain: made_by.clone() };
        let flight = Flight::Measure { plan: plan.digest, sku: asked.sku.clone(), covered: asked.covered.clone() };
        let behind = match self.under_way(&flight, asked).filter(|_| !asked.force) {
            Some((other, true)) => return Ok(Verdict::Join(other)),
            other => other.map(|(other, _)| other),
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
        let chosen =
            Chosen { key: *key, toolchain: made_by.clone(), spec: asked.spec.clone(), tried: asked.tried.clone() };
        Ok(Verdict::Run { chosen, kind: JobKind::Benchmark, plan: Some(plan.clone()), replaces: None, behind })
    }
}
