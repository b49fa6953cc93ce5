//! Leases and how attempts end: success, failure classes, requeue, expiry.
//!
//! Invariant: a job has at most one hold, and only the holder of its newest attempt is believed.

use super::{
    effects::{Effects, Reply, ToAgent},
    model::{
        Attempt, Change, Engine, EngineRef, Failure, Job, JobId, JobKind, JobState, Outcome, PlanRef, Refusal, Report,
    },
    queue::{DeviceKey, Target},
    state::{FinishedIn, FinishedOutcome, Hold, LAST_CHANCE_LEASES, LeaseRef, Now, Ordered, SessionId, State},
};
use planforge_types::{Digest, FailureClass, Reason, Requirement};
use std::{collections::BTreeMap, sync::Arc};

/// Free devices that are weighed against each other for one job; more would not make a better choice.
const DEVICES_WEIGHED_MAX: usize = 32;

impl State {
    /// Gives waiting jobs to the devices that became free, and free devices to the jobs that came.
    pub(super) fn dispatch(&mut self, now: Now, effects: &mut Effects) -> u64 {
        let mut granted = 0;
        while let Some(target) = self.dirty_targets.pop_first() {
            while self.queue.waits_for(&target)
                && let Some(device) = self.choose_device(&target)
            {
                if !self.serve(&device, now, effects) && !self.serve_others(&target, &device, now, effects) {
                    break;
                }
                granted += 1;
            }
        }
        while let Some(device) = self.dirty_devices.pop_first() {
            granted += u64::from(self.is_idle(&device) && self.serve(&device, now, effects));
        }
        granted
    }

    /// Looks everywhere, whether or not anything seemed to happen. What it finds is a lost wake-up.
    pub(super) fn sweep(&mut self, now: Now, effects: &mut Effects) {
        self.dirty_targets = self.queue.targets().cloned().collect();
        self.counters.rescued_wakeups += self.dispatch(now, effects);
    }

    /// The free device with the fewest other uses; of several the one with the least memory, so that who asks for more finds
    /// the others free.
    fn choose_device(&self, target: &Target) -> Option<DeviceKey> {
        let idle = self.idle.get(target)?;
        let uses = |key: &&DeviceKey| self.device(key).map_or(usize::MAX, |device| device.skus.len());
        let memory = |key: &DeviceKey| self.attributes.get(key).map_or(0, |device| device.memory_mib);
        idle.iter().take(DEVICES_WEIGHED_MAX).min_by_key(|key| (uses(key), memory(key))).cloned()
    }

    /// Grants another free device than `refused` a job, where what waits is not for that one: it, or its host, lacks something.
    fn serve_others(&mut self, target: &Target, refused: &DeviceKey, now: Now, effects: &mut Effects) -> bool {
        let others: Vec<DeviceKey> =
            self.idle.get(target).into_iter().flatten().filter(|device| *device != refused).cloned().collect();
        others.iter().any(|device| self.serve(device, now, effects))
    }

    /// Grants the free device its next job.
    fn serve(&mut self, device: &DeviceKey, now: Now, effects: &mut Effects) -> bool {
        let targets = self.targets_of(device);
        let is_paused = |id: &JobId| self.jobs.get(id).is_some_and(|job| self.is_paused(job));
        let may = |id: &JobId| {
            !is_paused(id) && self.may_grant(id) && self.may_have_room(id, device) && self.may_be_beside(id, device)
        };
        let has = |asked: &Requirement| self.has(device, asked);
        let Some(id) = self.queue.pick(targets.iter(), now.wall_ms, has, may) else { return false };
        self.grant(&id, device, now, effects);
        true
    }

    /// Attempts that count against the limit.
    fn attempts_used(&self, id: &JobId) -> u32 {
        self.jobs.get(id).map_or(0, |job| (job.attempts_counted() as u32).saturating_sub(job.remeasures))
    }

    /// Whether another attempt is allowed.
    pub(super) fn may_grant(&self, id: &JobId) -> bool {
        self.attempts_used(id) < self.config.max_attempts
    }

    fn grant(&mut self, id: &JobId, device: &DeviceKey, now: Now, effects: &mut Effects) {
        if self.holds.contains_key(id) {
            self.close_attempt(id, Outcome::Lost, None, None, now, effects);
        }
        let Some(session) = self.agents.get(&device.agent).and_then(|agent| agent.session) else { return };
        let agent_name = self.agents.get(&device.agent).map(|agent| agent.record.name.clone()).unwrap_or_default();
        let Some(job) = self.jobs.get(id) else { return };
        let number = job.attempt() + 1;
        let (cache, without_cache) = self.cache_for(device, job);
        let ordered = Ordered::of(job);
        let project = job.project().to_owned();
        self.counters.claims_ms.push(now.wall_ms.saturating_sub(job.queued_ms));
        self.set_state(id, |job| {
            job.state = JobState::Leased;
            job.phase.clear();
            job.progress = 0.0;
            if job.started_ms == 0 {
                job.started_ms = now.wall_ms;
            }
            job.attempts.push(Attempt {
                number,
                agent: device.agent.clone(),
                agent_name: agent_name.clone(),
                device: device.device.clone(),
                started_ms: now.wall_ms,
                ended_ms: 0,
                outcome: Outcome::Running,
                failure: None,
                log: None,
                suspects_cache: false,
                built: None,
                taken_back: false,
            });
        });
        self.queue.served(&project, now.wall_ms);
        let hold = Hold {
            attempt: number,
            device: device.clone(),
            deadline_mono_ms: now.mono_ms + self.config.lease_ms,
            expired: false,
            project,
            ordered,
            reports: 0,
        };
        self.holds.insert(id.clone(), hold);
        self.busy.insert(device.clone(), id.clone());
        self.refresh_idle(device);
        self.record(effects, now, id, "coordinator", "leased", format!("to {} of {agent_name}", device.device));
        if let Some(job) = self.jobs.get(id) {
            let lease = LeaseRef { job: id.clone(), attempt: number, device: device.device.clone() };
            effects.sends.push((session, ToAgent::Assign { lease, job: job.clone(), cache, without_cache }));
        }
    }

    /// Ends the newest attempt and takes its hold; the job's own state is the caller's business.
    pub(super) fn close_attempt(
        &mut self,
        id: &JobId,
        outcome: Outcome,
        failure: Option<Failure>,
        log: Option<Digest>,
        now: Now,
        effects: &mut Effects,
    ) {
        let Some(hold) = self.holds.remove(id) else { return };
        let why = failure.as_ref().map(|failure| failure.message.clone());
        if !hold.expired {
            self.queue.ended(&hold.project);
        }
        if self.busy.get(&hold.device) == Some(id) {
            self.busy.remove(&hold.device);
        }
        self.refresh_idle(&hold.device);
        self.look_again_at(&hold.device.agent);
        *self.counters.attempts.entry(outcome.name()).or_default() += 1;
        let mut took_ms = None;
        if let Some(attempt) = self.job_mut(id).and_then(|job| job.attempts.last_mut()) {
            attempt.outcome = outcome;
            attempt.ended_ms = now.wall_ms;
            took_ms = Some(now.wall_ms.saturating_sub(attempt.started_ms));
            attempt.failure = failure;
            attempt.log = log;
        }
        self.counters.attempts_ms.extend(took_ms.map(|ms| (outcome, ms)));
        effects.closed.push((id.clone(), hold.attempt, log.is_some()));
        if outcome == Outcome::Lost {
            self.remember_ended(id.clone(), hold.attempt, false);
            if let Some(session) = self.agents.get(&hold.device.agent).and_then(|agent| agent.session) {
                let lease = LeaseRef { job: id.clone(), attempt: hold.attempt, device: hold.device.device };
                let reason = why.unwrap_or_else(|| "the lease ran out and the job went on without it".to_owned());
                effects.sends.push((session, ToAgent::LeaseLost { lease, reason }));
            }
        } else {
            self.remember_ended(id.clone(), hold.attempt, true);
        }
    }

    /// Makes a job claimable again, or ends it when its attempts are used up.
    pub(super) fn retry(&mut self, id: &JobId, why: &Failure, now: Now, effects: &mut Effects) {
        let Some(job) = self.jobs.get(id) else { return };
        if let Some(reason) = job.cancelling.clone() {
            return self.end(id, JobState::Cancelled, None, "coordinator", reason, now, effects);
        }
        if !self.may_grant(id) {
            let failure = self.evidence(id);
            return self.end(id, JobState::Failed, Some(failure), "coordinator", "", now, effects);
        }
        self.set_state(id, |job| {
            job.state = JobState::Queued;
            job.phase.clear();
            job.progress = 0.0;
            job.queued_ms = now.wall_ms;
        });
        self.record(effects, now, id, "coordinator", "requeued", why.message.clone());
        self.place(id, now, effects);
    }

    /// The failure of a job that used up its attempts: what each of them saw.
    fn evidence(&self, id: &JobId) -> Failure {
        let attempts = self.jobs.get(id).map(|job| job.attempts.as_slice()).unwrap_or_default();
        let lines: Vec<String> = attempts
            .iter()
            .map(|attempt| {
                let what = attempt.failure.as_ref().map_or_else(|| attempt.outcome.name(), |f| f.message.as_str());
                format!("attempt {} on {} of {}: {what}", attempt.number, attempt.device, attempt.agent_name)
            })
            .collect();
        let class =
            attempts.iter().rev().find_map(|a| a.failure.as_ref()).map_or(FailureClass::Infrastructure, |f| f.class);
        let message = format!("gave up after {} attempts: {}", attempts.len(), lines.join("; "));
        Failure::new(class, message, "read the attempts' logs with 'planforge logs'; submit it again to try again")
    }

    /// Believes the end of an attempt only from the holder of the newest one.
    pub(super) fn finished(&mut self, session: SessionId, finished: FinishedIn, now: Now, effects: &mut Effects) {
        let Some(agent) = self.hear(session, now) else { return };
        let lease = finished.lease.clone();
        let id = lease.job.clone();
        let ack =
            |accepted, reason: &str| ToAgent::FinishedAck { lease: lease.clone(), accepted, reason: reason.into() };
        if !self.holds_lease(&agent, &lease) {
            let answer = match (self.ended.get(&(id.clone(), lease.attempt)), self.jobs.get(&id)) {
                (Some(true), _) => ack(true, "known already"),
                (Some(false), _) => ack(false, "the lease ran out and the job went on without it"),
                (None, Some(job)) => ack(false, &format!("attempt {} is the job's newest", job.attempt())),
                (None, None) => ToAgent::FinishedUnknown { lease: lease.clone() },
            };
            effects.sends.push((session, answer));
            return;
        }
        self.revive(&id, now, effects);
        let mut remark = String::new();
        match finished.outcome {
            FinishedOutcome::Succeeded => remark = self.succeeded(&id, &agent, finished, now, effects),
            FinishedOutcome::Failed(ref failure) => {
                if finished.suspects_cache
                    && let Some(attempt) = self.job_mut(&id).and_then(|job| job.attempts.last_mut())
                {
                    attempt.suspects_cache = true;
                }
                // A plan that is stored stays worth something: the next attempt only measures it.
                self.keep_plan(&id, finished.plan.clone());
                self.close_attempt(&id, Outcome::Failed, Some(failure.clone()), finished.log, now, effects);
                self.failed(&id, &agent, failure.clone(), now, effects);
            }
            FinishedOutcome::Cancelled => {
                self.close_attempt(&id, Outcome::Cancelled, None, finished.log, now, effects);
                let why = Failure::new(FailureClass::Infrastructure, format!("agent {agent} gave it up"), "");
                self.retry(&id, &why, now, effects);
            }
        }
        effects.sends.push((session, ack(true, &remark)));
    }

    fn keep_plan(&mut self, id: &JobId, plan: Option<PlanRef>) {
        if let Some(job) = self.job_mut(id)
            && job.kind == JobKind::Build
        {
            job.plan = newer_plan(job, plan);
        }
    }

    fn failed(&mut self, id: &JobId, agent: &str, failure: Failure, now: Now, effects: &mut Effects) {
        let Some(job) = self.jobs.get(id).cloned() else { return };
        match failure.class {
            _ if self.goes_elsewhere(&job, &failure) => self.retry(id, &failure, now, effects),
            FailureClass::Infrastructure => self.retry(id, &failure, now, effects),
            FailureClass::Unstable if job.only_measures() && job.remeasures < self.config.max_remeasures => {
                if let Some(job) = self.job_mut(id) {
                    job.remeasures += 1;
                }
                self.retry(id, &failure, now, effects);
            }
            class => {
                if let (Some(reason), true) = (&job.cancelling, class != FailureClass::Model) {
                    return self.end(id, JobState::Cancelled, None, agent, reason.clone(), now, effects);
                }
                // What one request's own inputs showed says nothing to those who give none.
                let of_model = job.measure.inputs.is_none() || failure.reason == Some(Reason::Unsupported);
                let remembered = job.key.filter(|_| of_model);
                let makes = job.kind != JobKind::Benchmark;
                if let (FailureClass::Model, true, Some(key)) = (class, makes, remembered) {
                    let refusal = Refusal { key, job: id.clone(), failure: failure.clone() };
                    self.known.refused(refusal.clone());
                    effects.changes.push(Change::Refusal(refusal));
                }
                self.refuse_job(id, agent, failure, now, effects);
            }
        }
    }

    /// Takes a success. Returns what the agent should know of it beside that.
    fn succeeded(&mut self, id: &JobId, agent: &str, finished: FinishedIn, now: Now, effects: &mut Effects) -> String {
        let Some(job) = self.jobs.get(id).cloned() else { return String::new() };
        if job.prepares() {
            self.take_prepared(id, agent, finished, now, effects);
            return String::new();
        }
        if job.kind == JobKind::Prepare {
            self.take_made(id, agent, finished, now, effects);
            return String::new();
        }
        let FinishedIn { plan, report, log, accurate, artifacts, cache, .. } = finished;
        // What an agent measured although nobody asked is nobody's measurement.
        let report = report.filter(|_| job.kind != JobKind::Compile);
        let device = self.holds.get(id).map(|hold| hold.device.clone());
        let plan = if job.makes_engine() { newer_plan(&job, plan) } else { job.plan.clone() };
        let (Some(plan), Some(key), Some(toolchain)) = (plan, job.key, job.toolchain.clone()) else {
            let failure = Failure::new(
                FailureClass::Infrastructure,
                format!("agent {agent} reported success without a plan"),
                "",
            );
            self.close_attempt(id, Outcome::Failed, Some(failure.clone()), log, now, effects);
            self.retry(id, &failure, now, effects);
            return String::new();
        };
        if let Some(wanted) = job.measure.inputs
            && report.as_ref().is_some_and(|report| report.inputs != Some(wanted))
        {
            let message =
                format!("agent {agent} reported success, but did not compare outputs on the inputs given to the job");
            let failure = Failure::new(
                FailureClass::Infrastructure,
                message,
                "update planforge on its host: older versions know no given inputs",
            );
            self.close_attempt(id, Outcome::Failed, Some(failure.clone()), log, now, effects);
            self.retry(id, &failure, now, effects);
            return String::new();
        }
        self.close_attempt(id, Outcome::Succeeded, None, log, now, effects);
        if let Some(job) = self.jobs.get(id).cloned() {
            self.learn_duration(&job);
        }
        if job.makes_engine() {
            let unmeasured = job.kind == JobKind::Compile;
            let engine = EngineRef {
                plan: plan.clone(),
                accurate,
                inputs: job.measure.inputs,
                report: report.as_ref().map(|report| report.digest),
                reports: BTreeMap::new(),
                unmeasured,
            };
            self.known.built(key, engine, job.measure.inputs.is_none());
            // What was found right on given inputs says nothing of a refusal on made ones.
            if job.measure.inputs.is_none() {
                effects.changes.push(Change::ForgetRefusal(key));
            }
            effects.changes.push(Change::Engine(Box::new(Engine {
                key,
                plan: plan.clone(),
                model: job.model.clone(),
                sku: job.sku.clone(),
                toolchain,
                spec: job.spec.clone(),
                accurate,
                inputs: job.measure.inputs,
                created_ms: now.wall_ms,
                seq: self.last_event,
                job: id.clone(),
                simulated: report.as_ref().is_some_and(|report| report.simulated),
                project: job.project().to_owned(),
                unmeasured,
                from: job.from.clone(),
            })));
        }
        for want in &job.wants {
            effects.changes.push(Change::EngineProject { key, project: want.project.clone() });
        }
        let digest = report.as_ref().map(|report| report.digest);
        if let Some(report) = report {
            let report = Report {
                digest: report.digest,
                plan: plan.digest,
                key: Some(key),
                job: id.clone(),
                sku: job.sku.clone(),
                eval: job.eval.filter(|_| report.has_accuracy),
                measure: job.measure.clone(),
                artifacts,
                created_ms: now.wall_ms,
                document: report.document,
            };
            // What another SKU's device measured answers nobody who asks for the SKU it was built for.
            if job.built_for.as_ref().is_none_or(|built_for| *built_for == job.sku) {
                self.learn_report(&report, accurate);
            }
            effects.changes.push(Change::Report(Box::new(report)));
        }
        if let Some(job) = self.job_mut(id) {
            job.plan = Some(plan);
            job.report = digest.or(job.report);
            job.accurate = accurate;
            job.progress = 1.0;
        }
        // In the transaction that takes the build, so that a cache is never newer than what proves that it works.
        let remark = match (cache, device) {
            (Some(update), Some(device)) if job.makes_engine() => {
                self.publish_cache(&job, &device, update, now, effects)
            }
            _ => None,
        };
        let remark = remark.unwrap_or_default();
        self.end(id, JobState::Succeeded, None, agent, remark.clone(), now, effects);
        remark
    }

    /// Ends a job for good, and decides about those that waited for it.
    #[expect(clippy::too_many_arguments, reason = "every end says who, why and when")]
    pub(super) fn end(
        &mut self,
        id: &JobId,
        state: JobState,
        failure: Option<Failure>,
        actor: &str,
        detail: impl Into<String>,
        now: Now,
        effects: &mut Effects,
    ) {
        self.unindex(id);
        let mut detail = detail.into();
        if let (Some(failure), true) = (&failure, detail.is_empty()) {
            detail.clone_from(&failure.message);
        }
        if let Some(job) = self.job_mut(id) {
            job.state = state;
            job.failure = failure;
            job.ended_ms = now.wall_ms;
            job.cancelling = None;
        }
        self.record(effects, now, id, actor, state.name(), detail);
        *self.counters.ended.entry(state.name()).or_default() += 1;
        let Some(job) = self.jobs.remove(id) else { return };
        self.charge(job.project(), -1);
        for need in &job.needs {
            if let Some(waiting) = self.dependents.get_mut(need) {
                waiting.remove(id);
                if waiting.is_empty() {
                    self.dependents.remove(need);
                }
            }
        }
        self.wake_dependents(&job, now, effects);
    }

    /// Ends leases that were not beaten in time.
    pub(super) fn expire(&mut self, now: Now, effects: &mut Effects) {
        self.drop_silent_agents(now, effects);
        let last_chance_ms = self.config.lease_ms * LAST_CHANCE_LEASES;
        let late: Vec<(JobId, bool)> = self
            .holds
            .iter()
            .filter(|(_, hold)| {
                let deadline = hold.deadline_mono_ms + if hold.expired { last_chance_ms } else { 0 };
                deadline <= now.mono_ms
            })
            .map(|(id, hold)| (id.clone(), hold.expired))
            .collect();
        for (id, expired) in late {
            if expired {
                // Others could have claimed it long ago; only a job without attempts left is waited for no more.
                if !self.may_grant(&id) {
                    self.lose(&id, "its agent did not come back", now, effects);
                }
                continue;
            }
            self.counters.lease_expiries += 1;
            let cancelling = self.jobs.get(&id).is_some_and(|job| job.cancelling.is_some());
            let Some(hold) = self.holds.get_mut(&id) else { continue };
            let connected = self.agents.get(&hold.device.agent).is_some_and(|agent| agent.session.is_some());
            if cancelling || connected {
                // A connected agent that does not name the lease does not have it.
                self.lose(&id, "its agent beats without it", now, effects);
                continue;
            }
            hold.expired = true;
            let project = hold.project.clone();
            let agent = hold.device.agent.clone();
            self.queue.ended(&project);
            self.set_state(&id, |job| {
                job.state = JobState::Queued;
                job.queued_ms = now.wall_ms;
            });
            self.record(
                effects,
                now,
                &id,
                "coordinator",
                "lease-expired",
                format!("agent {agent} was not heard in time"),
            );
            self.place(&id, now, effects);
        }
    }

    /// Gives an attempt up.
    pub(super) fn lose(&mut self, id: &JobId, why: &str, now: Now, effects: &mut Effects) {
        let agent = self.holds.get(id).map(|hold| hold.device.agent.clone()).unwrap_or_default();
        let failure = Failure::new(FailureClass::Infrastructure, format!("lost agent {agent}: {why}"), "");
        self.close_attempt(id, Outcome::Lost, Some(failure.clone()), None, now, effects);
        self.retry(id, &failure, now, effects);
    }

    /// An expired lease whose holder is heard again goes on.
    pub(super) fn revive(&mut self, id: &JobId, now: Now, effects: &mut Effects) {
        let deadline = now.mono_ms + self.config.lease_ms;
        let Some(hold) = self.holds.get_mut(id) else { return };
        hold.deadline_mono_ms = deadline;
        if !std::mem::take(&mut hold.expired) {
            return;
        }
        let (project, device, agent) = (hold.project.clone(), hold.device.clone(), hold.device.agent.clone());
        self.queue.served(&project, now.wall_ms);
        self.busy.insert(device.clone(), id.clone());
        self.refresh_idle(&device);
        self.counters.revivals += 1;
        self.set_state(id, |job| job.state = JobState::Running);
        self.record(effects, now, id, &agent, "revived", "its agent is back and still works on it");
    }

    /// Whether `agent` holds exactly this lease, expired or not.
    pub(super) fn holds_lease(&self, agent: &str, lease: &LeaseRef) -> bool {
        self.holds.get(&lease.job).is_some_and(|hold| hold.attempt == lease.attempt && hold.device.agent == agent)
    }

    /// `ended` is the job as stored when it is not live any more: nothing else changes it then.
    pub(super) fn log_sealed(
        &mut self,
        id: &JobId,
        number: u32,
        log: Digest,
        ended: Option<Job>,
        effects: &mut Effects,
    ) {
        let mut ended = ended.filter(|job| job.state.is_terminal());
        let job = match self.jobs.get_mut(id) {
            Some(job) => Arc::make_mut(job),
            None => match &mut ended {
                Some(job) => job,
                None => {
                    effects.reply = Reply::Unknown;
                    return;
                }
            },
        };
        if let Some(attempt) = job.attempts.iter_mut().find(|attempt| attempt.number == number && attempt.log.is_none())
        {
            attempt.log = Some(log);
            effects.changes.push(Change::Job(Arc::new(job.clone())));
        }
    }
}

/// The job's plan after an attempt that names `plan`. An attempt that only measured names the plan it was given and
/// knows nothing of how it was made; one that built tells how often only at its end.
pub(super) fn newer_plan(job: &Job, plan: Option<PlanRef>) -> Option<PlanRef> {
    match (&job.plan, plan) {
        (Some(known), Some(named)) if known.digest == named.digest => {
            Some(PlanRef { builds: known.builds.max(named.builds), ..known.clone() })
        }
        (known, named) => named.or_else(|| known.clone()),
    }
}
