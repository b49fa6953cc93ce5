//! Requests: expansion, admission, merging, answers from the store.

use super::{
    model::{Change, EngineRef, Failure, Job, JobId, JobKind, JobState, Model, PlanRef, RequestRecord, Want},
    resolve::Unresolved,
    state::{Effects, Flight, JobRef, Now, State, Submit, SubmitWhat, Submitted},
};
use planforge_engine_core::{
    identity::{BuildSpec, Digest, EngineKey, Sku, Toolchain, ToolchainConstraint},
    worker::FailureClass,
};
use planforge_proto::{ApiError, ErrorCode};
use std::collections::BTreeSet;

/// Jobs that one request may expand to.
pub const JOBS_PER_REQUEST_MAX: usize = 4_096;

/// One combination of a request, before anything is decided about it.
struct Asked {
    model: Model,
    sku: Sku,
    spec: BuildSpec,
    constraint: String,
    matches: ToolchainConstraint,
    force: bool,
    allow_inaccurate: bool,
    eval: Option<Digest>,
    measure: Option<Measure>,
}

/// What a benchmark measures.
#[derive(Clone)]
struct Measure {
    plan: PlanRef,
    key: EngineKey,
    /// What made the plan, and what must run it.
    toolchain: Toolchain,
    built_for: Sku,
}

/// What is to happen to a combination.
enum Verdict {
    /// A stored engine answers it.
    Answer { key: EngineKey, toolchain: Toolchain, spec: BuildSpec, engine: EngineRef },
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
        behind: Option<JobId>,
    },
    /// Nobody known could run it; it waits until somebody can.
    Wait(ApiError),
}

impl State {
    pub(super) fn submit(&mut self, submit: Submit, now: Now, fx: &mut Effects) -> Result<Submitted, ApiError> {
        if !submit.idempotency_key.is_empty()
            && let Some(known) = self.known_request(&submit.project, &submit.idempotency_key)
        {
            return repeat(known, submit.fingerprint, |id| self.job_ref(id));
        }
        // The store keeps their rows, as the record of what was built, until they are built again.
        if let Some(gone) = submit.gone.as_ref().filter(|gone| !gone.is_empty()) {
            self.engines.retain(|_, engine| !gone.contains(&engine.plan.digest));
        }
        let asked = expand(&submit)?;
        if asked.len() > submit.ids.len() {
            return Err(ApiError::new(ErrorCode::Internal, "fewer ids than jobs came with the request"));
        }
        let mut runs = 0;
        let mut plans = BTreeSet::new();
        for one in &asked {
            match self.judge(one) {
                Ok(Verdict::Answer { engine, .. }) => drop(plans.insert(engine.plan.digest)),
                Ok(Verdict::Run { plan, .. }) => {
                    plans.extend(plan.map(|plan| plan.digest));
                    runs += 1;
                }
                Ok(Verdict::Wait(error)) if !submit.wait_for_device => return Err(error),
                Ok(Verdict::Wait(_)) => runs += 1,
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
        if submit.gone.is_none() && !plans.is_empty() {
            return Ok(Submitted::Look { plans, submit: Box::new(submit) });
        }
        if runs > 0 && !submit.missing.is_empty() {
            return Ok(Submitted::Missing(submit.missing));
        }
        if self.jobs.len() + runs > self.config.max_live_jobs {
            let message = format!(
                "the queue is full: {} jobs wait or run, and this request needs {runs} more than the limit of {}",
                self.jobs.len(),
                self.config.max_live_jobs
            );
            return Err(
                ApiError::new(ErrorCode::ResourceExhausted, message).with_hint("try again when some have ended")
            );
        }
        let mut jobs = Vec::with_capacity(asked.len());
        for (one, id) in asked.into_iter().zip(&submit.ids) {
            // Judged again: the combination before it may be the same.
            let verdict = self.judge(&one)?;
            jobs.push(self.admit(one, verdict, id.clone(), &submit, now, fx));
        }
        let record = RequestRecord {
            id: submit.request.clone(),
            project: submit.project,
            actor: submit.actor,
            idempotency_key: submit.idempotency_key,
            fingerprint: submit.fingerprint,
            jobs: jobs.iter().map(|job| job_id(job).clone()).collect(),
            created_ms: now.wall_ms,
        };
        if !record.idempotency_key.is_empty() {
            self.remember_request(&record);
        }
        fx.changes.push(Change::Request(record));
        Ok(Submitted::Jobs { request: submit.request, jobs })
    }

    fn job_ref(&self, id: &JobId) -> JobRef {
        self.jobs.get(id).map_or_else(|| JobRef::Stored(id.clone()), |job| JobRef::Live(job.clone()))
    }

    /// Decides without changing anything.
    fn judge(&self, asked: &Asked) -> Result<Verdict, ApiError> {
        if let Some(measure) = &asked.measure {
            return self.judge_benchmark(asked, measure);
        }
        let resolved = match self.resolve(&asked.sku, &asked.matches, &asked.spec) {
            Ok(resolved) => resolved,
            Err(Unresolved::NothingOffers(error)) => return Ok(Verdict::Wait(error)),
            Err(Unresolved::Never(error)) => return Err(error),
        };
        let (toolchain, spec) = (resolved.toolchain, resolved.spec);
        let key = EngineKey::new(&asked.model.digest, &asked.sku, &toolchain, &spec);
        if asked.force {
            return Ok(Verdict::Run { kind: JobKind::Build, key, toolchain, spec, plan: None, behind: None });
        }
        if let Some(refusal) = self.refusals.get(&key) {
            let failure = Failure::new(
                refusal.failure.class,
                format!("job {} tried this already: {}", refusal.job, refusal.failure.message),
                format!("{} (--force tries it again)", refusal.failure.hint).trim_start().to_owned(),
            );
            return Ok(Verdict::Fail { key, toolchain, spec, failure });
        }
        if let Some(engine) = self.engines.get(&key) {
            if !engine.accurate && !asked.allow_inaccurate {
                let failure = Failure::new(
                    FailureClass::Model,
                    "the stored engine's outputs are too far from the reference's",
                    "take it anyway with --allow-inaccurate, or build it again with --force",
                );
                return Ok(Verdict::Fail { key, toolchain, spec, failure });
            }
            let Some(eval) = asked.eval.filter(|eval| !engine.evals.contains_key(eval)) else {
                return Ok(Verdict::Answer { key, toolchain, spec, engine: engine.clone() });
            };
            let flight = Flight::Measure { plan: engine.plan.digest, sku: asked.sku.clone(), eval: Some(eval) };
            let behind = match self.under_way(&flight) {
                Some((other, false)) => return Ok(Verdict::Join(other)),
                ending => ending.map(|(other, _)| other),
            };
            let plan = Some(engine.plan.clone());
            return Ok(Verdict::Run { kind: JobKind::Benchmark, key, toolchain, spec, plan, behind });
        }
        let other = self.flights.get(&Flight::Build(key)).and_then(|id| self.jobs.get(id));
        let Some(other) = other else {
            return Ok(Verdict::Run { kind: JobKind::Build, key, toolchain, spec, plan: None, behind: None });
        };
        let waits = !matches!(other.state, JobState::Leased | JobState::Running);
        let same_eval = asked.eval.is_none() || asked.eval == other.eval || (waits && other.eval.is_none());
        let same_rule = asked.allow_inaccurate == other.allow_inaccurate;
        if same_eval && same_rule && other.cancelling.is_none() {
            return Ok(Verdict::Join(other.id.clone()));
        }
        let behind = Some(other.id.clone());
        Ok(Verdict::Run { kind: JobKind::Build, key, toolchain, spec, plan: None, behind })
    }

    /// The job that does this work, and whether it is being cancelled: then it is no answer, but may still give one.
    fn under_way(&self, flight: &Flight) -> Option<(JobId, bool)> {
        let job = self.flights.get(flight).and_then(|id| self.jobs.get(id))?;
        Some((job.id.clone(), job.cancelling.is_some()))
    }

    fn judge_benchmark(&self, asked: &Asked, measure: &Measure) -> Result<Verdict, ApiError> {
        let Measure { plan, key, toolchain: made_by, .. } = measure;
        let target = super::queue::Target { sku: asked.sku.clone(), toolchain: made_by.clone() };
        let flight = Flight::Measure { plan: plan.digest, sku: asked.sku.clone(), eval: asked.eval };
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
        Ok(Verdict::Run {
            kind: JobKind::Benchmark,
            key: *key,
            toolchain: made_by.clone(),
            spec: asked.spec.clone(),
            plan: Some(plan.clone()),
            behind,
        })
    }

    fn admit(
        &mut self,
        asked: Asked,
        verdict: Verdict,
        id: JobId,
        submit: &Submit,
        now: Now,
        fx: &mut Effects,
    ) -> JobRef {
        let want = Want {
            request: submit.request.clone(),
            project: submit.project.clone(),
            actor: submit.actor.clone(),
            priority: submit.priority,
        };
        if let Verdict::Join(other) = &verdict {
            return self.join(other.clone(), want, asked.eval, now, fx);
        }
        let project = want.project.clone();
        let job = Job {
            id: id.clone(),
            kind: if asked.measure.is_some() { JobKind::Benchmark } else { JobKind::Build },
            state: JobState::Unplaceable,
            key: asked.measure.as_ref().map(|measure| measure.key),
            model: asked.model,
            sku: asked.sku,
            constraint: asked.constraint,
            toolchain: asked.measure.as_ref().map(|measure| measure.toolchain.clone()),
            asked_threads: asked.spec.threads,
            spec: asked.spec,
            force: asked.force,
            follow_toolchain: submit.follow_toolchain,
            wait_for_device: submit.wait_for_device,
            allow_inaccurate: asked.allow_inaccurate,
            eval: asked.eval,
            wants: vec![want],
            needs: Vec::new(),
            recheck: false,
            attempts: Vec::new(),
            remeasures: 0,
            phase: String::new(),
            progress: 0.0,
            created_ms: now.wall_ms,
            queued_ms: now.wall_ms,
            started_ms: 0,
            ended_ms: 0,
            failure: None,
            built_for: asked.measure.as_ref().map(|measure| measure.built_for.clone()),
            plan: asked.measure.map(|measure| measure.plan),
            report: None,
            cached: false,
            accurate: false,
            cancelling: None,
        };
        fx.changes.push(Change::JobProject { project, job: id.clone(), created_ms: now.wall_ms });
        self.jobs.insert(id.clone(), std::sync::Arc::new(job));
        self.settle(&id, verdict, &submit.actor, "submitted", now, fx);
        self.jobs
            .get(&id)
            .cloned()
            .or_else(|| fx.snapshots.iter().rev().find(|job| job.id == id).cloned())
            .map_or(JobRef::Stored(id), JobRef::Live)
    }

    /// Adds one request's interest to work that is under way.
    fn join(&mut self, id: JobId, want: Want, eval: Option<Digest>, now: Now, fx: &mut Effects) -> JobRef {
        let Some(job) = self.jobs.get(&id) else { return JobRef::Stored(id) };
        if job.wants.iter().any(|known| known.request == want.request) {
            return JobRef::Live(job.clone());
        }
        let created_ms = job.created_ms;
        if !job.is_in(&want.project) {
            fx.changes.push(Change::JobProject { project: want.project.clone(), job: id.clone(), created_ms });
        }
        let (actor, detail) =
            (want.actor.clone(), format!("request {} of project {} joined", want.request, want.project));
        self.set_state(&id, |job| {
            job.wants.push(want);
            job.eval = job.eval.or(eval);
        });
        self.counters.merged += 1;
        self.record(fx, now, &id, &actor, "merged", detail);
        self.jobs.get(&id).map_or_else(|| JobRef::Stored(id.clone()), |job| JobRef::Live(job.clone()))
    }

    /// Brings a job that is in no index to where the verdict puts it.
    fn settle(&mut self, id: &JobId, verdict: Verdict, actor: &str, what: &str, now: Now, fx: &mut Effects) {
        match verdict {
            Verdict::Answer { key, toolchain, spec, engine } => {
                let projects: Vec<String> =
                    self.jobs.get(id).iter().flat_map(|job| &job.wants).map(|want| want.project.clone()).collect();
                fx.changes.extend(projects.into_iter().map(|project| Change::EngineProject { key, project }));
                if let Some(job) = self.job_mut(id) {
                    (job.key, job.toolchain, job.spec) = (Some(key), Some(toolchain), spec);
                    job.report = job.eval.and_then(|eval| engine.evals.get(&eval).copied()).or(engine.report);
                    job.plan = Some(engine.plan);
                    job.accurate = engine.accurate;
                    job.cached = true;
                    job.recheck = false;
                }
                self.counters.answered += 1;
                self.end(id, JobState::Succeeded, None, actor, "answered from the store", now, fx);
            }
            Verdict::Fail { key, toolchain, spec, failure } => {
                if let Some(job) = self.job_mut(id) {
                    (job.key, job.toolchain, job.spec) = (Some(key), Some(toolchain), spec);
                    job.cached = true;
                    job.recheck = false;
                }
                self.counters.answered += 1;
                self.end(id, JobState::Failed, Some(failure), actor, "known to fail", now, fx);
            }
            Verdict::Join(other) => self.block(id, other, actor, what, now, fx),
            Verdict::Run { kind, key, toolchain, spec, plan, behind } => {
                if let Some(job) = self.job_mut(id) {
                    (job.kind, job.key, job.toolchain, job.spec) = (kind, Some(key), Some(toolchain), spec);
                    job.plan = plan.or_else(|| job.plan.take().filter(|_| kind == JobKind::Build));
                }
                if let Some(other) = behind {
                    return self.block(id, other, actor, what, now, fx);
                }
                self.set_state(id, |job| {
                    job.state = JobState::Queued;
                    job.recheck = false;
                    job.queued_ms = now.wall_ms;
                });
                self.record(fx, now, id, actor, what, "");
            }
            Verdict::Wait(error) => {
                self.set_state(id, |job| {
                    job.state = JobState::Unplaceable;
                    job.recheck = false;
                });
                self.record(fx, now, id, actor, if what == "submitted" { what } else { "unplaceable" }, error.message);
            }
        }
    }

    /// Lets a job wait until `other` ended; then it is admitted anew.
    fn block(&mut self, id: &JobId, other: JobId, actor: &str, what: &str, now: Now, fx: &mut Effects) {
        self.dependents.entry(other.clone()).or_default().insert(id.clone());
        let detail = format!("waits for job {other}, which does nearly the same");
        self.set_state(id, |job| {
            job.state = JobState::Blocked;
            job.recheck = true;
            job.needs = vec![other];
        });
        self.record(fx, now, id, actor, what, detail);
    }

    /// Decides anew about a job that waited for a device, a toolchain or another job.
    pub(super) fn readmit(&mut self, id: &JobId, what: &str, now: Now, fx: &mut Effects) {
        self.unindex(id);
        let Some(job) = self.jobs.get(id).cloned() else { return };
        let Ok(matches) = job.constraint.parse::<ToolchainConstraint>() else { return };
        let measured = job.kind == JobKind::Benchmark;
        let measure = match (&job.plan, job.key, &job.toolchain) {
            (Some(plan), Some(key), Some(toolchain)) if measured => Some(Measure {
                plan: plan.clone(),
                key,
                toolchain: toolchain.clone(),
                built_for: job.built_for.clone().unwrap_or_else(|| job.sku.clone()),
            }),
            _ => None,
        };
        let threads = if measured { job.spec.threads } else { job.asked_threads };
        let asked = Asked {
            model: job.model.clone(),
            sku: job.sku.clone(),
            spec: BuildSpec { threads, ..job.spec.clone() },
            constraint: job.constraint.clone(),
            matches,
            force: job.force,
            allow_inaccurate: job.allow_inaccurate,
            eval: job.eval,
            measure,
        };
        match self.judge(&asked) {
            Ok(Verdict::Wait(_)) if job.state == JobState::Unplaceable => self.index(id),
            Ok(verdict) => self.settle(id, verdict, "coordinator", what, now, fx),
            Err(error) => {
                let failure = Failure::new(FailureClass::Model, error.message, error.hint);
                self.end(id, JobState::Failed, Some(failure), "coordinator", "", now, fx);
            }
        }
    }

    /// Why a job is not running yet, for people; empty when it runs or has ended.
    pub fn waiting_reason(&self, job: &Job) -> String {
        match job.state {
            JobState::Blocked => {
                let needs: Vec<&str> = job.needs.iter().map(JobId::as_str).collect();
                format!("waits for job {}", needs.join(", "))
            }
            JobState::Unplaceable => match &job.toolchain {
                Some(toolchain) => {
                    format!("nobody offers {toolchain} on {} any more; {}", job.sku, self.alternatives(&job.sku))
                }
                None => format!("waits for an agent that can run it; {}", self.alternatives(&job.sku)),
            },
            JobState::Queued => self.queued_reason(job),
            _ => job.cancelling.as_ref().map(|reason| format!("being cancelled: {reason}")).unwrap_or_default(),
        }
    }

    fn queued_reason(&self, job: &Job) -> String {
        if let Some(hold) = self.holds.get(&job.id) {
            let agent = &hold.device.agent;
            if !self.may_grant(&job.id) {
                return format!("lost agent {agent} in its last attempt; only that agent can still finish it");
            }
        }
        let Some(target) = super::queue::Target::of(job) else { return String::new() };
        let known: Vec<_> = self.offers.get(&target).into_iter().flatten().collect();
        let online =
            known.iter().filter(|key| self.agents.get(&key.agent).is_some_and(|a| a.session.is_some())).count();
        let busy = known.iter().filter(|key| self.busy.contains_key(key)).count();
        let ahead = self.queue.ahead_of(&job.id);
        if online == 0 {
            return format!(
                "every device with {} and {} is offline ({} known)",
                target.sku,
                target.toolchain,
                known.len()
            );
        }
        if busy == 0 && ahead == 0 {
            return format!("{online} devices online, none takes jobs now (draining or quarantined)");
        }
        format!("{busy} of {online} devices are busy, {ahead} jobs of the project stand before it")
    }
}

fn job_id(job: &JobRef) -> &JobId {
    match job {
        JobRef::Live(job) => &job.id,
        JobRef::Stored(id) => id,
    }
}

/// The reply to a request that was accepted before.
pub fn repeat(
    known: &RequestRecord,
    fingerprint: Digest,
    job: impl Fn(&JobId) -> JobRef,
) -> Result<Submitted, ApiError> {
    if known.fingerprint != fingerprint {
        let message =
            format!("idempotency key '{}' was used at request {} for something else", known.idempotency_key, known.id);
        return Err(ApiError::new(ErrorCode::Conflict, message).with_hint("use a new key for a new request"));
    }
    Ok(Submitted::Jobs { request: known.id.clone(), jobs: known.jobs.iter().map(job).collect() })
}

fn expand(submit: &Submit) -> Result<Vec<Asked>, ApiError> {
    let count = match &submit.what {
        SubmitWhat::Build { models, specs, constraints } => {
            models.len().saturating_mul(submit.skus.len()).saturating_mul(specs.len()).saturating_mul(constraints.len())
        }
        SubmitWhat::Benchmark(_) => submit.skus.len(),
    };
    if count == 0 || count > JOBS_PER_REQUEST_MAX {
        let message = format!("the request comes to {count} jobs; it must be 1 to {JOBS_PER_REQUEST_MAX}");
        return Err(ApiError::new(ErrorCode::InvalidArgument, message));
    }
    let mut asked = Vec::with_capacity(count);
    let one = |model: &Model, sku: &Sku, spec: &BuildSpec, constraint: &(String, ToolchainConstraint)| Asked {
        model: model.clone(),
        sku: sku.clone(),
        spec: spec.clone(),
        constraint: constraint.0.clone(),
        matches: constraint.1.clone(),
        force: submit.force,
        allow_inaccurate: submit.allow_inaccurate,
        eval: submit.eval,
        measure: None,
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
            for sku in &submit.skus {
                let measure = Measure {
                    plan: engine.plan.clone(),
                    key: engine.key,
                    toolchain: engine.toolchain.clone(),
                    built_for: engine.sku.clone(),
                };
                asked.push(Asked { measure: Some(measure), ..one(&engine.model, sku, &engine.spec, &any) });
            }
        }
    }
    Ok(asked)
}
