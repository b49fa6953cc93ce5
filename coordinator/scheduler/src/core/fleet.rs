//! Agents: sessions, inventories, heartbeats, and which devices are free.

use super::{
    agents::Farewell,
    attempts::newer_plan,
    effects::{Effects, ToAgent},
    flight::flight_of,
    known::Lookup,
    model::{Agent, Change, Device, Job, JobId, JobState, JoinedBy, PlanRef},
    queue::{DeviceKey, Target},
    state::{AgentEntry, HelloIn, LeaseRef, Now, SessionId, State},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Phases and plans that one attempt may report, each of which is an event. A build has some ten phases, and one attempt
/// builds and measures 32 times at most.
pub const ATTEMPT_REPORTS_MAX: u32 = 1_024;
/// Longest phase name or progress detail that is kept.
const PHASE_MAX_BYTES: usize = 64;
const DETAIL_MAX_BYTES: usize = 1_024;
/// Largest telemetry document of one device that is kept.
const TELEMETRY_MAX_BYTES: usize = 16 * 1024;

/// A device as it stands, for lists.
#[derive(Clone, Debug)]
pub struct DeviceView {
    pub agent: String,
    pub agent_name: String,
    pub device: Device,
    pub online: bool,
    pub draining: bool,
    pub busy: Option<JobId>,
    pub telemetry: String,
    pub seen_ms: u64,
    /// Of its agent, by name.
    pub labels: BTreeMap<String, String>,
}

/// How many devices there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    pub known: usize,
    pub online: usize,
    /// On line and at work.
    pub busy: usize,
}

impl State {
    pub(super) fn hello(&mut self, session: SessionId, hello: HelloIn, now: Now, effects: &mut Effects) {
        if let JoinedBy::Token(token) = &hello.joined_by
            && self.revoked_tokens.contains(token)
        {
            let why = Farewell::lasting("the agent's token was revoked", "ask an administrator for a new one");
            effects.sends.push((session, ToAgent::Refused(why)));
            return;
        }
        if let Some(entry) = self.agents.get(&hello.agent)
            && let Some(other) = entry.session
        {
            let silent_ms = now.mono_ms.saturating_sub(entry.last_message_mono_ms);
            if entry.incarnation != hello.incarnation && silent_ms <= self.config.lease_ms {
                let reason = format!(
                    "agent {} is connected already: another process with the same identity was heard {silent_ms} ms ago",
                    hello.agent
                );
                let hint = "stop the other one, or give this one a state folder of its own".to_owned();
                effects.sends.push((session, ToAgent::Refused(Farewell::passing(reason, hint))));
                return;
            }
            effects.sends.push((other, ToAgent::Replaced));
            self.sessions.remove(&other);
        }
        if !self.agents.contains_key(&hello.agent) && self.agents.len() >= self.config.max_agents {
            let reason = format!("{} agents are known, which is the limit", self.agents.len());
            let hint = "forget agents that are gone: planforge agents list, planforge agents forget AGENT";
            effects.sends.push((session, ToAgent::Refused(Farewell::passing(reason, hint))));
            return;
        }
        let agent = hello.agent.clone();
        self.sessions.insert(session, agent.clone());
        let before = self.agents.get(&agent).map(|entry| entry.record.clone());
        let seen_ms = before.as_ref().map_or(now.wall_ms, |record| record.seen_ms);
        let record = Agent {
            id: agent.clone(),
            name: hello.name,
            version: hello.version,
            devices: hello.devices,
            seen_ms,
            joined_by: hello.joined_by,
            protocol: hello.protocol,
            memory_bytes: hello.memory_bytes,
            labels: hello.labels,
            drained: before.as_ref().is_some_and(|record| record.drained),
        };
        let changed = before.as_ref() != Some(&record);
        let entry = AgentEntry {
            record,
            // Set below: what it no longer holds is no news to it, and nothing is granted before that is known.
            session: None,
            incarnation: hello.incarnation,
            last_message_mono_ms: now.mono_ms,
            draining: hello.draining,
            telemetry: BTreeMap::new(),
        };
        self.agents.insert(agent.clone(), entry);
        if changed {
            self.store_agent(&agent, now, effects);
        }
        // Before any device counts as free: what it still holds.
        let (resumed, lost): (Vec<_>, Vec<_>) =
            hello.leases.into_iter().partition(|lease| self.holds_lease(&agent, lease));
        for lease in &resumed {
            self.revive(&lease.job, now, effects);
        }
        effects.sends.push((session, ToAgent::Welcome { resumed: resumed.clone(), lost, protocol: hello.protocol }));
        for finished in hello.finished {
            self.finished(session, finished, now, effects);
        }
        let kept: BTreeSet<&JobId> = resumed.iter().map(|lease| &lease.job).collect();
        let dropped: Vec<JobId> = self
            .holds
            .iter()
            .filter(|(id, hold)| hold.device.agent == agent && !kept.contains(id))
            .map(|(id, _)| id.clone())
            .collect();
        for id in dropped {
            self.lose(&id, "it came back without the job", now, effects);
        }
        if let Some(entry) = self.agents.get_mut(&agent) {
            entry.session = Some(session);
        }
        for lease in &resumed {
            if let Some(reason) = self.jobs.get(&lease.job).and_then(|job| job.cancelling.clone()) {
                self.send_cancel(&lease.job, reason, effects);
            }
        }
        self.reindex_agent(&agent);
        if changed {
            self.place_all(now, effects);
        }
    }

    pub(super) fn inventory(&mut self, session: SessionId, devices: Vec<Device>, now: Now, effects: &mut Effects) {
        let Some(agent) = self.hear(session, now) else { return };
        let Some(entry) = self.agents.get_mut(&agent) else { return };
        if entry.record.devices == devices {
            return;
        }
        entry.record.devices = devices;
        self.store_agent(&agent, now, effects);
        self.reindex_agent(&agent);
        self.place_all(now, effects);
    }

    fn store_agent(&mut self, agent: &str, now: Now, effects: &mut Effects) {
        if let Some(entry) = self.agents.get_mut(agent) {
            entry.record.seen_ms = now.wall_ms;
            effects.changes.push(Change::Agent(Box::new(entry.record.clone())));
        }
    }

    /// Notes that a session is alive; `None` when it is not one of ours any more.
    pub(super) fn hear(&mut self, session: SessionId, now: Now) -> Option<String> {
        let agent = self.sessions.get(&session)?.clone();
        self.agents.get_mut(&agent)?.last_message_mono_ms = now.mono_ms;
        Some(agent)
    }

    pub(super) fn heartbeat(
        &mut self,
        session: SessionId,
        leases: Vec<LeaseRef>,
        telemetry: Vec<(String, String)>,
        now: Now,
        effects: &mut Effects,
    ) {
        let Some(agent) = self.hear(session, now) else { return };
        if let Some(entry) = self.agents.get_mut(&agent) {
            for (device, document) in telemetry {
                let known = entry.record.devices.iter().any(|known| known.id == device);
                if known && document.len() <= TELEMETRY_MAX_BYTES {
                    entry.telemetry.insert(device, document);
                }
            }
        }
        for lease in leases {
            self.touch(session, &agent, &lease, now, effects);
        }
    }

    /// Extends a lease that the agent holds, or tells it that it does not.
    fn touch(&mut self, session: SessionId, agent: &str, lease: &LeaseRef, now: Now, effects: &mut Effects) -> bool {
        if self.holds_lease(agent, lease) {
            self.revive(&lease.job, now, effects);
            return true;
        }
        if self.ended.get(&(lease.job.clone(), lease.attempt)) != Some(&true) {
            let reason = "this attempt is not the job's newest, or the job has ended".to_owned();
            effects.sends.push((session, ToAgent::LeaseLost { lease: lease.clone(), reason }));
        }
        false
    }

    pub(super) fn started(&mut self, session: SessionId, lease: &LeaseRef, now: Now, effects: &mut Effects) {
        let Some(agent) = self.hear(session, now) else { return };
        if !self.touch(session, &agent, lease, now, effects) {
            return;
        }
        if self.jobs.get(&lease.job).is_some_and(|job| job.state == JobState::Leased) {
            self.set_state(&lease.job, |job| job.state = JobState::Running);
            self.record(effects, now, &lease.job, &agent, "running", "");
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    pub(super) fn progress(
        &mut self,
        session: SessionId,
        lease: &LeaseRef,
        phase: &str,
        fraction: f32,
        detail: &str,
        now: Now,
        effects: &mut Effects,
    ) {
        let Some(agent) = self.hear(session, now) else { return };
        if !self.touch(session, &agent, lease, now, effects) {
            return;
        }
        let phase = clipped(phase, PHASE_MAX_BYTES);
        let Some(job) = self.job_mut(&lease.job) else { return };
        job.progress = if fraction.is_finite() { fraction.clamp(0.0, 1.0) } else { 0.0 };
        if job.phase == phase {
            if let Some(job) = self.jobs.get(&lease.job) {
                effects.progress.push(job.clone());
            }
            return;
        }
        if !self.may_report(&lease.job, now, effects) {
            return;
        }
        let Some(job) = self.job_mut(&lease.job) else { return };
        phase.clone_into(&mut job.phase);
        let detail = clipped(detail, DETAIL_MAX_BYTES);
        self.record(effects, now, &lease.job, &agent, "phase", detail);
    }

    /// Counts what an attempt reports; one that reports without end is given up.
    fn may_report(&mut self, id: &JobId, now: Now, effects: &mut Effects) -> bool {
        let Some(hold) = self.holds.get_mut(id) else { return false };
        hold.reports += 1;
        let within = hold.reports <= ATTEMPT_REPORTS_MAX;
        if !within {
            let why = format!("it reported more than {ATTEMPT_REPORTS_MAX} phases and plans of one attempt, the limit");
            self.lose(id, &why, now, effects);
        }
        within
    }

    pub(super) fn built(
        &mut self,
        session: SessionId,
        lease: &LeaseRef,
        plan: PlanRef,
        now: Now,
        effects: &mut Effects,
    ) {
        let Some(agent) = self.hear(session, now) else { return };
        if !self.touch(session, &agent, lease, now, effects) {
            return;
        }
        let detail = format!("plan {} of {} bytes", plan.digest.short(), plan.size_bytes);
        let Some(job) = self.jobs.get(&lease.job) else { return };
        let plan = newer_plan(job, Some(plan));
        if job.kind == super::JobKind::Build && job.plan != plan && self.may_report(&lease.job, now, effects) {
            let Some(job) = self.job_mut(&lease.job) else { return };
            if let Some(attempt) = job.attempts.last_mut() {
                attempt.built = plan.as_ref().map(|plan| plan.digest);
            }
            job.plan = plan;
            self.record(effects, now, &lease.job, &agent, "built", detail);
        }
    }

    pub(super) fn goodbye(&mut self, session: SessionId, now: Now) {
        let Some(agent) = self.hear(session, now) else { return };
        if let Some(entry) = self.agents.get_mut(&agent) {
            entry.draining = true;
        }
        self.refresh_agent(&agent);
    }

    pub(super) fn disconnected(&mut self, session: SessionId, now: Now, effects: &mut Effects) {
        let Some(agent) = self.sessions.remove(&session) else { return };
        if let Some(entry) = self.agents.get_mut(&agent)
            && entry.session == Some(session)
        {
            entry.session = None;
            self.store_agent(&agent, now, effects);
            self.refresh_agent(&agent);
        }
    }

    /// Ends sessions that stay open but silent, as after a pulled cable.
    pub(super) fn drop_silent_agents(&mut self, now: Now, effects: &mut Effects) {
        let silent: Vec<SessionId> = self
            .agents
            .values()
            .filter(|entry| now.mono_ms.saturating_sub(entry.last_message_mono_ms) > self.config.lease_ms)
            .filter_map(|entry| entry.session)
            .collect();
        for session in silent {
            let reason = format!("nothing was heard for {} ms", self.config.lease_ms);
            effects.sends.push((session, ToAgent::Refused(Farewell::passing(reason, "connect again"))));
            self.disconnected(session, now, effects);
        }
    }

    pub(super) fn device(&self, key: &DeviceKey) -> Option<&Device> {
        self.agents.get(&key.agent)?.record.devices.iter().find(|device| device.id == key.device)
    }

    pub(super) fn targets_of(&self, key: &DeviceKey) -> Vec<Target> {
        let Some(device) = self.device(key) else { return Vec::new() };
        let pair = |sku| move |toolchain| (sku, toolchain);
        let pairs = device.skus.iter().flat_map(|sku| device.offers.iter().map(pair(sku)));
        let targets = pairs.map(|(sku, toolchain)| Target { sku: sku.clone(), toolchain: toolchain.clone() });
        targets.chain(device.prepares.iter().filter_map(Target::preparing)).collect()
    }

    /// Brings what is known of an agent's devices into the indices.
    pub(super) fn reindex_agent(&mut self, agent: &str) {
        for keys in [&mut self.offers, &mut self.idle] {
            keys.retain(|_, devices| {
                devices.retain(|key| key.agent != agent);
                !devices.is_empty()
            });
        }
        self.learn_attributes(agent);
        let Some(entry) = self.agents.get(agent) else { return };
        let keys: Vec<DeviceKey> = entry
            .record
            .devices
            .iter()
            .map(|device| DeviceKey { agent: agent.to_owned(), device: device.id.clone() })
            .collect();
        for key in keys {
            for target in self.targets_of(&key) {
                self.offers.entry(target).or_default().insert(key.clone());
            }
            self.refresh_idle(&key);
        }
    }

    pub(super) fn refresh_agent(&mut self, agent: &str) {
        let devices: Vec<String> = self
            .agents
            .get(agent)
            .map(|entry| entry.record.devices.iter().map(|device| device.id.clone()).collect())
            .unwrap_or_default();
        for device in devices {
            self.refresh_idle(&DeviceKey { agent: agent.to_owned(), device });
        }
    }

    /// Whether a device could take a job now.
    pub(super) fn is_idle(&self, key: &DeviceKey) -> bool {
        self.takes_jobs(key) && !self.busy.contains_key(key)
    }

    /// Whether the device gets jobs, once it is free.
    pub(super) fn takes_jobs(&self, key: &DeviceKey) -> bool {
        let Some(entry) = self.agents.get(&key.agent) else { return false };
        let willing = self.device(key).is_some_and(|device| !device.draining && !device.quarantined);
        let willing = willing && !entry.draining && !entry.record.drained && !self.is_agent_paused(&key.agent);
        willing && entry.session.is_some()
    }

    /// Keeps the index of free devices; a device that is free now gets looked at.
    pub(super) fn refresh_idle(&mut self, key: &DeviceKey) {
        let idle = self.is_idle(key);
        for target in self.targets_of(key) {
            if idle {
                self.idle.entry(target).or_default().insert(key.clone());
            } else if let Some(devices) = self.idle.get_mut(&target) {
                devices.remove(key);
                if devices.is_empty() {
                    self.idle.remove(&target);
                }
            }
        }
        if idle {
            self.dirty_devices.insert(key.clone());
        }
    }

    /// After inventories changed: jobs that nobody can run any more, and those that somebody now can.
    pub(super) fn place_all(&mut self, now: Now, effects: &mut Effects) {
        let orphaned: Vec<Target> =
            self.queue.targets().filter(|target| !self.offers.contains_key(target)).cloned().collect();
        let orphans: Vec<JobId> = orphaned.iter().flat_map(|target| self.queue.jobs_of(target)).collect();
        for id in orphans {
            self.place(&id, now, effects);
        }
        for id in self.unplaceable.clone() {
            let Some(job) = self.jobs.get(&id) else { continue };
            match Target::of(job) {
                // What another job does meanwhile may be what this one is to do: about that is decided anew.
                Some(target) if self.offers.contains_key(&target) && !self.is_done_by_another(job) => {
                    self.set_state(&id, |job| {
                        job.state = JobState::Queued;
                        job.queued_ms = now.wall_ms;
                    });
                    self.record(effects, now, &id, "coordinator", "placeable", "its toolchain is offered again");
                }
                Some(target) if !job.follow_toolchain && !self.offers.contains_key(&target) => {}
                _ => self.readmit(&id, "resolved", &Lookup::default(), now, effects),
            }
        }
    }

    /// Whether another live job is found under what this one does.
    fn is_done_by_another(&self, job: &Job) -> bool {
        flight_of(job).and_then(|flight| self.flights.get(&flight)).is_some_and(|other| *other != job.id)
    }

    /// A queued job whose exact toolchain nobody known offers is unplaceable, or resolved again when it may follow.
    pub(super) fn place(&mut self, id: &JobId, now: Now, effects: &mut Effects) {
        let Some(job) = self.jobs.get(id) else { return };
        let Some(target) = Target::of(job) else { return };
        // An expired hold may still be revived; its job keeps its key until the hold is gone.
        if job.state != JobState::Queued || self.offers.contains_key(&target) || self.holds.contains_key(id) {
            return;
        }
        if job.follow_toolchain && job.kind != super::JobKind::Benchmark {
            // Its plan, if any, was made by the toolchain that is gone. What becomes of it may have to be looked up first.
            if let Some(job) = self.jobs.get_mut(id).filter(|job| job.plan.is_some()) {
                Arc::make_mut(job).plan = None;
                effects.changes.push(Change::Job(job.clone()));
            }
            return self.readmit(id, "followed", &Lookup::default(), now, effects);
        }
        let detail = format!(
            "nobody offers {} on {} any more; {}",
            target.toolchain,
            target.sku,
            self.alternatives(&target.sku)
        );
        self.set_state(id, |job| job.state = JobState::Unplaceable);
        self.record(effects, now, id, "coordinator", "unplaceable", detail);
        self.release_followers(id, now, effects);
    }

    /// Jobs that only waited for this one to end are decided anew: it may never end.
    fn release_followers(&mut self, id: &JobId, now: Now, effects: &mut Effects) {
        let waiting = self.dependents.get(id).cloned().unwrap_or_default();
        for follower in waiting {
            if !self.jobs.get(&follower).is_some_and(|job| job.recheck) {
                continue;
            }
            if let Some(ids) = self.dependents.get_mut(id) {
                ids.remove(&follower);
                if ids.is_empty() {
                    self.dependents.remove(id);
                }
            }
            if let Some(job) = self.job_mut(&follower) {
                job.needs.retain(|need| need != id);
            }
            self.readmit(&follower, "unblocked", &Lookup::default(), now, effects);
        }
    }

    /// Every known device, offline ones too.
    pub fn devices(&self, now: Now) -> Vec<DeviceView> {
        let mut views = Vec::new();
        for entry in self.agents.values() {
            let online = entry.session.is_some();
            let silent_ms = now.mono_ms.saturating_sub(entry.last_message_mono_ms);
            for device in &entry.record.devices {
                let key = DeviceKey { agent: entry.record.id.clone(), device: device.id.clone() };
                views.push(DeviceView {
                    agent: entry.record.id.clone(),
                    agent_name: entry.record.name.clone(),
                    device: device.clone(),
                    online,
                    draining: entry.draining || entry.record.drained || device.draining,
                    busy: self.busy.get(&key).cloned(),
                    telemetry: entry.telemetry.get(&device.id).cloned().unwrap_or_default(),
                    seen_ms: if online { now.wall_ms.saturating_sub(silent_ms) } else { entry.record.seen_ms },
                    labels: entry.record.labels.clone(),
                });
            }
        }
        views
    }

    /// How many of [`Self::devices`] there are, without looking at what they are.
    pub fn device_counts(&self) -> DeviceCounts {
        let online = || self.agents.values().filter(|entry| entry.session.is_some());
        let is_busy = |id: &String, device: &Device| {
            self.busy.contains_key(&DeviceKey { agent: id.clone(), device: device.id.clone() })
        };
        let busy =
            |entry: &AgentEntry| entry.record.devices.iter().filter(|device| is_busy(&entry.record.id, device)).count();
        DeviceCounts {
            known: self.agents.values().map(|entry| entry.record.devices.len()).sum(),
            online: online().map(|entry| entry.record.devices.len()).sum(),
            busy: online().map(busy).sum(),
        }
    }

    /// Of each of these device kinds, how many devices are on line, and how many of them are at work.
    pub fn online_and_busy(&self, skus: &[String]) -> Vec<(u64, u64)> {
        let mut counts = vec![(0, 0); skus.len()];
        for entry in self.agents.values().filter(|entry| entry.session.is_some()) {
            for device in &entry.record.devices {
                let is_busy = || {
                    let key = DeviceKey { agent: entry.record.id.clone(), device: device.id.clone() };
                    self.busy.contains_key(&key)
                };
                let of = skus.iter().zip(&mut counts);
                for (_, (online, busy)) in of.filter(|(sku, _)| device.skus.iter().any(|own| own.as_str() == *sku)) {
                    *online += 1;
                    *busy += u64::from(is_busy());
                }
            }
        }
        counts
    }

    /// Agents that are known and agents that are connected.
    pub fn agent_counts(&self) -> (u64, u64) {
        (self.agents.len() as u64, self.sessions.len() as u64)
    }
}

/// The beginning of a text that an agent sent, of at most so many bytes.
fn clipped(text: &str, max_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(max_bytes)]
}
