//! Requests: admission, merging, answers from the store.

use super::{
    ask::{Asked, Expanded, expand},
    effects::{Effects, JobRef, Submitted},
    judge::Verdict,
    known::Lookup,
    model::{CacheRef, Change, Failure, Job, JobId, JobKind, JobState, PreparationRecord, RequestRecord, Want},
    state::{Now, State, Submit},
};
use planforge_proto::{ApiError, ErrorCode};
use planforge_types::{Digest, FailureClass, Sku};
use std::collections::BTreeSet;

/// Jobs that one request may expand to.
pub const JOBS_PER_REQUEST_MAX: usize = 4_096;
/// Different reasons that one refusal lists.
const REASONS_LISTED_MAX: usize = 8;

impl State {
    pub(super) fn submit(&mut self, submit: Submit, now: Now, effects: &mut Effects) -> Result<Submitted, ApiError> {
        if !submit.idempotency_key.is_empty()
            && let Some(known) = self.known_request(&submit.project, &submit.idempotency_key)
        {
            return repeat(known, submit.fingerprint, |id| self.job_ref(id));
        }
        if let Some(missing) = submit.missing_plans.as_ref().filter(|missing| !missing.is_empty()) {
            self.known.lost(missing.iter());
        }
        let Some(waits) = self.unmet(&submit.needs)? else {
            return Ok(Submitted::Needs { submit: Box::new(submit) });
        };
        let expanded = expand(&submit)?;
        let combinations = expanded.len();
        if combinations > submit.ids.len() {
            return Err(ApiError::new(ErrorCode::Internal, "fewer ids than jobs came with the request"));
        }
        let Expanded { prepares, mut builds } = expanded;
        let mut runs = 0;
        let mut refused = Vec::new();
        let (mut plans, mut keys) = (BTreeSet::new(), BTreeSet::new());
        for one in &prepares {
            match self.judge(one, &submit.lookup)? {
                Verdict::Wait(error) if !submit.wait_for_device => refused.push(error),
                _ if !waits.is_empty() => runs += 1,
                Verdict::Ask(key) => drop(keys.insert(key)),
                // What is built from it is decided about as it is built.
                Verdict::Made { record, .. } => {
                    plans.extend(record.made.model.files.iter().map(|file| file.digest));
                    builds.iter_mut().filter(|build| build.is_of(one)).for_each(|build| build.take_made(&record.made));
                }
                Verdict::Run { .. } | Verdict::Wait(_) => runs += 1,
                _ => {}
            }
        }
        for one in &builds {
            match self.judge_new(one, &submit.lookup) {
                Ok(Verdict::Wait(error)) if !submit.wait_for_device => refused.push(error),
                // Nothing is decided about it before what it needs has ended.
                Ok(_) if !waits.is_empty() || one.is_open() => runs += 1,
                Ok(Verdict::Ask(key)) => drop(keys.insert(key)),
                Ok(Verdict::Answer { engine, .. }) => drop(plans.insert(engine.plan.digest)),
                Ok(Verdict::Run { plan, .. }) => {
                    plans.extend(plan.map(|plan| plan.digest));
                    runs += 1;
                }
                Ok(Verdict::Wait(_)) => runs += 1,
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
        if !refused.is_empty() {
            return Err(refusal_of_all(refused, combinations));
        }
        // Whoever only names a digest hears nothing of engines that others have of it.
        if submit.unseen {
            return Ok(Submitted::Missing(submit.missing));
        }
        if !keys.is_empty() {
            return Ok(Submitted::Ask { keys, as_of: self.as_of(), submit: Box::new(submit) });
        }
        if submit.missing_plans.is_none() && !plans.is_empty() {
            return Ok(Submitted::Look { plans, submit: Box::new(submit) });
        }
        // Before the bytes are asked for: nobody sends a model in vain.
        if let Some(error) = submit.over_quota.as_ref().filter(|_| runs > 0) {
            return Err(error.clone());
        }
        if runs > 0 && !submit.missing.is_empty() {
            return Ok(Submitted::Missing(submit.missing));
        }
        self.admission(&submit.project, runs)?;
        let ids = &submit.ids[prepares.len()..];
        let (mut jobs, failed) = self.admit_prepares(prepares, &mut builds, &submit, &waits, now, effects)?;
        for (one, id) in builds.into_iter().zip(ids) {
            let awaited = one.from.as_ref().filter(|_| one.is_open()).map(|from| JobId::from(from.job.as_str()));
            if let Some(ended) = failed.iter().find(|job| awaited.as_ref() == Some(&job.id)) {
                jobs.push(self.admit_skipped(one, id.clone(), &submit, ended, now, effects));
                continue;
            }
            let mut waits = waits.clone();
            waits.extend(awaited.filter(|job| !submit.needs.iter().any(|need| need.job == *job)));
            if !waits.is_empty() {
                jobs.push(self.admit_blocked(one, id.clone(), &submit, &waits, now, effects));
                continue;
            }
            // Judged again: the combination before it may be the same.
            let verdict = self.judge(&one, &submit.lookup)?;
            jobs.push(self.admit(one, verdict, id.clone(), &submit, now, effects));
        }
        if let Some(mut line) = submit.audit {
            line.object.clone_from(&submit.request);
            line.project.clone_from(&submit.project);
            line.detail = format!("{} jobs in project {}", jobs.len(), submit.project);
            effects.changes.push(Change::Audit(line));
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
        effects.changes.push(Change::Request(record));
        Ok(Submitted::Jobs { request: submit.request, jobs })
    }

    fn job_ref(&self, id: &JobId) -> JobRef {
        self.jobs.get(id).map_or_else(|| JobRef::Stored(id.clone()), |job| JobRef::Live(job.clone()))
    }

    pub(super) fn admit(
        &mut self,
        asked: Asked,
        verdict: Verdict,
        id: JobId,
        submit: &Submit,
        now: Now,
        effects: &mut Effects,
    ) -> JobRef {
        if let Verdict::Join(other) = &verdict {
            return self.join(other.clone(), submit.want(&asked), &asked, now, effects);
        }
        self.enter(asked, id.clone(), submit, now, effects);
        self.settle(&id, verdict, &submit.actor, "submitted", now, effects);
        self.jobs
            .get(&id)
            .cloned()
            .or_else(|| effects.snapshots.iter().rev().find(|job| job.id == id).cloned())
            .map_or(JobRef::Stored(id), JobRef::Live)
    }

    /// Makes a job of what was asked, about which nothing is decided yet.
    pub(super) fn enter(&mut self, asked: Asked, id: JobId, submit: &Submit, now: Now, effects: &mut Effects) {
        let want = submit.want(&asked);
        let project = want.project.clone();
        let is_open = asked.is_open();
        let mut needed: Vec<JobId> = submit.needs.iter().map(|need| need.job.clone()).collect();
        let prepared_by = asked.from.as_ref().filter(|from| !from.job.is_empty());
        needed.extend(prepared_by.map(|from| JobId::from(from.job.as_str())).filter(|job| !needed.contains(job)));
        let job = Job {
            kind: match asked.existing {
                Some(_) => JobKind::Benchmark,
                None => asked.makes(),
            },
            state: JobState::Unplaceable,
            key: asked.existing.as_ref().map(|existing| existing.key),
            constraint: asked.constraint,
            toolchain: asked.existing.as_ref().map(|existing| existing.toolchain.clone()),
            force: asked.force,
            // What a preparer is called in another release is nothing that anybody asked for.
            follow_toolchain: submit.follow_toolchain || asked.prepare.is_some(),
            wait_for_device: submit.wait_for_device,
            allow_inaccurate: asked.allow_inaccurate,
            eval: asked.covered.eval,
            builds: asked.builds,
            measure: asked.covered.measure,
            built_for: asked.existing.as_ref().map(|existing| existing.built_for.clone()),
            plan: asked.existing.map(|existing| existing.plan),
            needed,
            prepared: submit.prepared_for(&asked.model.digest, &asked.sku).filter(|_| !is_open),
            prepare: asked.prepare.map(Box::new),
            from: asked.from.map(Box::new),
            canary: asked.canary,
            trace: submit.trace,
            ..Job::queued(id.clone(), asked.model, asked.sku, asked.spec, want, now.wall_ms)
        };
        effects.changes.push(Change::JobProject { project, job: id.clone(), created_ms: now.wall_ms });
        self.charge(job.project(), 1);
        self.jobs.insert(id, std::sync::Arc::new(job));
    }

    /// Adds one request's interest to work that is under way. Where that asks for more (builds, measurements), the job
    /// is raised to it; it was found joinable, so nobody holds it then. A job that only measures builds nothing: its
    /// plan was chosen from as many builds as anybody who is let in asks for.
    pub(super) fn join(&mut self, id: JobId, want: Want, asked: &Asked, now: Now, effects: &mut Effects) -> JobRef {
        let Some(job) = self.jobs.get(&id) else { return JobRef::Stored(id) };
        if job.wants.iter().any(|known| known.request == want.request) {
            return JobRef::Live(job.clone());
        }
        let created_ms = job.created_ms;
        if !job.is_in(&want.project) {
            effects.changes.push(Change::JobProject { project: want.project.clone(), job: id.clone(), created_ms });
        }
        let covered = job.covered();
        let covered =
            if covered.covers(&asked.covered) { covered } else { covered.joined(&asked.covered).unwrap_or(covered) };
        let actor = want.actor.clone();
        let mut detail = format!("request {} joined", want.request);
        let builds = if job.only_measures() { job.builds } else { job.builds.max(asked.builds) };
        if builds > job.builds {
            detail.push_str(&format!("; raised from {} to {builds} builds", job.builds));
        }
        let required = job.requirement();
        if let Ok(both) = required.and(&want.require)
            && both != required
        {
            detail.push_str(&format!("; its device must meet {both} from now on"));
        }
        self.set_state(&id, |job| {
            job.wants.push(want);
            job.builds = builds;
            (job.eval, job.measure) = (covered.eval, covered.measure);
        });
        self.counters.merged += 1;
        self.record(effects, now, &id, &actor, "merged", detail);
        self.jobs.get(&id).map_or_else(|| JobRef::Stored(id.clone()), |job| JobRef::Live(job.clone()))
    }

    /// Brings a job that is in no index to where the verdict puts it.
    pub(super) fn settle(
        &mut self,
        id: &JobId,
        verdict: Verdict,
        actor: &str,
        what: &str,
        now: Now,
        effects: &mut Effects,
    ) {
        match verdict {
            Verdict::Answer { chosen, engine, told } => {
                let key = chosen.key;
                let projects: Vec<String> =
                    self.jobs.get(id).iter().flat_map(|job| &job.wants).map(|want| want.project.clone()).collect();
                effects.changes.extend(projects.into_iter().map(|project| Change::EngineProject { key, project }));
                self.use_engine(key, now, effects);
                if let Some(job) = self.job_mut(id) {
                    chosen.onto(job);
                    job.report = told.report;
                    job.plan = Some(engine.plan);
                    job.accurate = told.accurate;
                    job.cached = true;
                    job.recheck = false;
                }
                self.counters.answered += 1;
                self.end(id, JobState::Succeeded, None, actor, "answered from the store", now, effects);
            }
            Verdict::Made { chosen, record } => {
                let record = PreparationRecord { job: id.clone(), ..record };
                if let Some(job) = self.job_mut(id) {
                    chosen.onto(job);
                    job.cached = true;
                    job.recheck = false;
                }
                self.keep_made(id, record, effects);
                self.counters.answered += 1;
                self.end(id, JobState::Succeeded, None, actor, "prepared before", now, effects);
            }
            Verdict::Fail { chosen, failure } => {
                if let Some(job) = self.job_mut(id) {
                    chosen.onto(job);
                    job.cached = true;
                    job.recheck = false;
                }
                self.counters.answered += 1;
                self.end(id, JobState::Failed, Some(failure), actor, "known to fail", now, effects);
            }
            Verdict::Join(other) => self.block(id, other, actor, what, now, effects),
            Verdict::Ask(key) => {
                self.index(id);
                self.record(effects, now, id, actor, what, "is being looked up in the store");
                self.ask_for(id, "resolved", key, now, effects);
            }
            Verdict::Run { chosen, kind, plan, replaces, behind } => {
                let described =
                    self.jobs.get(id).and_then(|job| self.described(&job.sku, &chosen.toolchain)).unwrap_or_default();
                if let Some(job) = self.job_mut(id) {
                    chosen.onto(job);
                    job.kind = kind;
                    job.replaces = replaces;
                    job.plan = plan.or_else(|| job.plan.take().filter(|_| kind == JobKind::Build));
                    job.made_for = job.prepares().then_some(described);
                }
                if let Some(other) = behind {
                    return self.block(id, other, actor, what, now, effects);
                }
                self.set_state(id, |job| {
                    job.state = JobState::Queued;
                    job.recheck = false;
                    job.queued_ms = now.wall_ms;
                });
                self.record(effects, now, id, actor, what, "");
            }
            Verdict::Wait(error) => {
                self.set_state(id, |job| {
                    job.state = JobState::Unplaceable;
                    job.recheck = false;
                    // What was likely while it waited for others decides nothing: it would be taken for what its key says.
                    if job.key.is_none() {
                        job.toolchain = None;
                    }
                });
                self.record(
                    effects,
                    now,
                    id,
                    actor,
                    if what == "submitted" { what } else { "unplaceable" },
                    error.message,
                );
            }
        }
    }

    /// Lets a job wait until `other` ended; then it is admitted anew.
    fn block(&mut self, id: &JobId, other: JobId, actor: &str, what: &str, now: Now, effects: &mut Effects) {
        let detail = format!("waits for job {other}, which does nearly the same");
        self.set_state(id, |job| job.recheck = true);
        self.wait_for(id, vec![other], effects);
        self.record(effects, now, id, actor, what, detail);
    }

    /// Decides anew about a job that waited for a device, a toolchain or another job.
    pub(super) fn readmit(&mut self, id: &JobId, what: &'static str, lookup: &Lookup, now: Now, effects: &mut Effects) {
        self.unindex(id);
        let Some(job) = self.jobs.get(id).cloned() else { return };
        let Some(asked) = Asked::of(&job) else { return };
        match self.judge(&asked, lookup) {
            Ok(Verdict::Ask(key)) => {
                self.index(id);
                self.ask_for(id, what, key, now, effects);
            }
            Ok(Verdict::Wait(_)) if job.state == JobState::Unplaceable => self.index(id),
            Ok(verdict) => self.settle(id, verdict, "coordinator", what, now, effects),
            Err(error) => {
                let failure = Failure::new(FailureClass::Model, error.message, error.hint);
                self.end(id, JobState::Failed, Some(failure), "coordinator", "", now, effects);
            }
        }
    }
}

/// One refusal for a whole request: all or nothing, with every reason, so that one look mends it.
fn refusal_of_all(mut refused: Vec<ApiError>, combinations: usize) -> ApiError {
    let count = refused.len();
    let mut seen = BTreeSet::new();
    refused.retain(|error| seen.insert(error.message.clone()));
    let left_out = refused.len().saturating_sub(REASONS_LISTED_MAX);
    refused.truncate(REASONS_LISTED_MAX);
    let mut error = refused.swap_remove(0);
    if combinations == 1 || count == 0 {
        return error;
    }
    let reasons = std::iter::once(error.message.as_str()).chain(refused.iter().map(|other| other.message.as_str()));
    let mut message = format!(
        "{count} of the request's {combinations} combinations can be run by nobody known, so nothing was submitted: {}",
        reasons.collect::<Vec<_>>().join("; ")
    );
    if left_out > 0 {
        message.push_str(&format!("; and {left_out} more reasons"));
    }
    error.message = message;
    error
}

impl Submit {
    /// What a job that it needs, and that has ended, prepared for such builds.
    fn prepared_for(&self, model: &Digest, sku: &Sku) -> Option<CacheRef> {
        let prepared = self.needs.iter().filter_map(|need| need.prepared.as_ref()).filter(|_| !self.compile_only);
        prepared.filter(|prepared| (&prepared.model, &prepared.sku) == (model, sku)).map(|one| one.files).next_back()
    }

    /// Its interest in the job of a combination.
    fn want(&self, asked: &Asked) -> Want {
        Want {
            request: self.request.clone(),
            project: self.project.clone(),
            actor: self.actor.clone(),
            priority: self.priority,
            tags: self.tags.clone(),
            no_fallback: !asked.falls_back,
            require: asked.require.clone(),
        }
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
