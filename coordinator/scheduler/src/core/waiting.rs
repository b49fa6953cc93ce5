//! Why a job is not running yet, how many are likely served before it, and when it will likely have ended.

use super::{
    graph::named,
    model::{Job, JobId, JobKind, JobState, Outcome},
    queue::{DeviceKey, Target},
    state::{Now, State},
};
use planforge_forecast::Work;
use planforge_types::Requirement;
use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
};

/// Devices of one target that are looked at for what else they serve and how long they are busy; others are taken for
/// like them.
const DEVICES_LOOKED_AT_MAX: usize = 64;
/// Jobs of one chain that are looked at; of what waits behind more of them nothing is foretold.
const CHAIN_MAX: usize = 64;

/// What is told of a job that has not ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outlook {
    /// Why it is not running yet, for people; empty when it runs.
    pub reason: String,
    /// Jobs that are likely served first; `None` when it is not queued.
    pub jobs_ahead: Option<usize>,
    /// `None`: nothing like it is known, or nothing could run it now.
    pub eta: Option<Eta>,
}

/// When a job will likely have begun and ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Eta {
    pub start_in_ms: u64,
    pub end_in_ms: u64,
    /// The factor within which four fifths of the latest forecasts were right.
    pub error_factor: Option<f64>,
    /// Ended jobs that it rests on.
    pub samples: u32,
}

/// The devices that a target's jobs of one requirement could run on, as they stand.
#[derive(Debug)]
struct Crew {
    known: usize,
    online: usize,
    busy: usize,
    /// Some device is free and takes jobs.
    is_idle: bool,
    /// What they serve.
    targets: BTreeSet<Target>,
    /// How long they are likely still busy, all together.
    left_ms: u64,
}

/// Looks at jobs one after another; what is the same for many of them is worked out once.
#[derive(Debug)]
pub struct Lookout<'a> {
    state: &'a State,
    now: Now,
    crews: BTreeMap<(Target, Requirement), Crew>,
    error_factor: OnceCell<Option<f64>>,
    /// When jobs that others need will likely have ended, from now, and what that rests on.
    ends: BTreeMap<JobId, Option<(u64, u32)>>,
    /// Jobs of one chain that are being looked at.
    depth: usize,
}

/// A job as forecasts know it.
fn work(job: &Job) -> Work {
    let what = match job.kind {
        JobKind::Build => "build",
        JobKind::Benchmark => "measure",
        JobKind::Compile => "compile",
        JobKind::Prepare => "prepare",
    };
    let toolchain = job.toolchain.as_ref().map(ToString::to_string).unwrap_or_default();
    let mut spec = serde_json::to_string(&(&job.spec, job.builds, &job.measure, job.eval)).unwrap_or_default();
    if let Some(ask) = &job.prepare {
        spec.push_str(&serde_json::to_string(ask).unwrap_or_default());
    }
    Work { model: job.model.digest.to_string(), place: format!("{what} {} {toolchain}", job.sku), spec }
}

impl State {
    /// Learns how long a job took that succeeded.
    pub(super) fn learn_duration(&mut self, job: &Job) {
        let ran = job.attempts.last().filter(|attempt| attempt.outcome == Outcome::Succeeded);
        if let Some(attempt) = ran
            && attempt.ended_ms > attempt.started_ms
        {
            self.forecaster.learn(&work(job), attempt.ended_ms - attempt.started_ms);
        }
    }

    /// To look at jobs that have not ended.
    pub fn lookout(&self, now: Now) -> Lookout<'_> {
        Lookout {
            state: self,
            now,
            crews: BTreeMap::new(),
            error_factor: OnceCell::new(),
            ends: BTreeMap::new(),
            depth: 0,
        }
    }

    /// How long a job that runs will likely go on.
    fn left_ms(&self, job: &Job, now: Now) -> Option<(u64, u32)> {
        let begun_ms = job.attempts.last().filter(|attempt| attempt.ended_ms == 0)?.started_ms;
        let forecast = self.forecaster.forecast(&work(job))?;
        let ran_ms = now.wall_ms.saturating_sub(begun_ms);
        // What takes longer than was thought takes a little longer still.
        Some((forecast.duration_ms.saturating_sub(ran_ms).max(forecast.duration_ms / 10), forecast.samples))
    }

    fn crew(&self, target: &Target, requirement: &Requirement, now: Now) -> Crew {
        let known = self.offers.get(target);
        let is_online = |key: &DeviceKey| self.agents.get(&key.agent).is_some_and(|agent| agent.session.is_some());
        let mut crew = Crew {
            known: 0,
            online: 0,
            busy: 0,
            is_idle: self.idle.get(target).into_iter().flatten().any(|key| self.has(key, requirement)),
            targets: BTreeSet::from([target.clone()]),
            left_ms: 0,
        };
        let mut left_of = Vec::new();
        for key in known.into_iter().flatten().filter(|key| self.has(key, requirement)) {
            let job = self.busy.get(key);
            crew.known += 1;
            crew.busy += usize::from(job.is_some());
            if !is_online(key) {
                continue;
            }
            crew.online += 1;
            if crew.online <= DEVICES_LOOKED_AT_MAX {
                crew.targets.extend(self.targets_of(key));
                let job = job.and_then(|id| self.jobs.get(id));
                left_of.extend(job.and_then(|job| self.left_ms(job, now)).map(|(left_ms, _)| left_ms));
            }
        }
        let busy = crew.busy.min(crew.online) as u64;
        if !left_of.is_empty() {
            crew.left_ms = left_of.iter().sum::<u64>() / left_of.len() as u64 * busy;
        }
        crew
    }
}

impl Lookout<'_> {
    pub fn outlook(&mut self, job: &Job) -> Outlook {
        let state = self.state;
        let reason = match job.state {
            JobState::Blocked if job.needs.is_empty() => "is being looked up in the store".to_owned(),
            JobState::Blocked => {
                let eta = self.when_needs_end(job);
                return Outlook { reason: format!("waits for {}", named(&job.needs)), jobs_ahead: None, eta };
            }
            JobState::Unplaceable => match &job.toolchain {
                Some(toolchain) => {
                    format!("nobody offers {toolchain} on {} any more; {}", job.sku, state.alternatives(&job.sku))
                }
                None => format!("waits for an agent that can run it; {}", state.alternatives(&job.sku)),
            },
            JobState::Queued => return self.queued(job),
            _ => job.cancelling.as_ref().map(|reason| format!("being cancelled: {reason}")).unwrap_or_default(),
        };
        let runs = matches!(job.state, JobState::Leased | JobState::Running);
        let left = state.left_ms(job, self.now).filter(|_| runs && job.cancelling.is_none());
        let eta = left.map(|(end_in_ms, samples)| self.eta(0, end_in_ms, samples));
        Outlook { reason, jobs_ahead: None, eta }
    }

    /// Of a job that needs others: it begins when the last of them has ended.
    fn when_needs_end(&mut self, job: &Job) -> Option<Eta> {
        let forecast = self.state.forecaster.forecast(&work(job))?;
        let (mut start_in_ms, mut samples) = (0, forecast.samples);
        for need in &job.needs {
            let (end_in_ms, known) = self.end_of(need)?;
            start_in_ms = start_in_ms.max(end_in_ms);
            samples = samples.min(known);
        }
        Some(self.eta(start_in_ms, start_in_ms.saturating_add(forecast.duration_ms), samples))
    }

    /// When a job that has not ended likely will have, and the jobs that this rests on.
    fn end_of(&mut self, id: &JobId) -> Option<(u64, u32)> {
        if let Some(known) = self.ends.get(id) {
            return *known;
        }
        let job = self.state.jobs.get(id).filter(|_| self.depth < CHAIN_MAX)?.clone();
        self.depth += 1;
        let end = self.outlook(&job).eta.map(|eta| (eta.end_in_ms, eta.samples));
        self.depth -= 1;
        self.ends.insert(id.clone(), end);
        end
    }

    fn eta(&self, start_in_ms: u64, end_in_ms: u64, samples: u32) -> Eta {
        let error_factor = *self.error_factor.get_or_init(|| self.state.forecaster.error_factor());
        Eta { start_in_ms, end_in_ms, error_factor, samples }
    }

    fn queued(&mut self, job: &Job) -> Outlook {
        let state = self.state;
        if let Some(hold) = state.holds.get(&job.id)
            && !state.may_grant(&job.id)
        {
            let agent = &hold.device.agent;
            let reason = format!("lost agent {agent} in its last attempt; only that agent can still finish it");
            return Outlook { reason, ..Outlook::default() };
        }
        let Some(target) = Target::of(job) else { return Outlook::default() };
        let now = self.now;
        let requirement = job.requirement();
        let crew = self.crews.entry((target.clone(), requirement.clone()));
        let crew = crew.or_insert_with(|| state.crew(&target, &requirement, now));
        let Crew { known, online, busy, is_idle, left_ms, .. } = *crew;
        let ahead = state.queue.ahead_of(&job.id, crew.targets.iter());
        if let Some(reason) = state.why_nobody_has(&target, &requirement) {
            return Outlook { reason, jobs_ahead: Some(ahead), eta: None };
        }
        if let Some(reason) = state.why_paused(job, &target, now) {
            return Outlook { reason, jobs_ahead: Some(ahead), eta: None };
        }
        if online == 0 {
            let asked = if requirement.is_empty() { String::new() } else { format!(" that meets {requirement}") };
            let Target { sku, toolchain } = &target;
            let reason = format!("every device with {sku} and {toolchain}{asked} is offline ({known} known)");
            return Outlook { reason, jobs_ahead: Some(ahead), eta: None };
        }
        if let Some(reason) = state.kept_apart(job, &target) {
            return Outlook { reason: reason.into(), jobs_ahead: Some(ahead), eta: None };
        }
        if busy == 0 && ahead == 0 {
            let reason = format!("{online} devices online, none takes jobs now (draining or quarantined)");
            return Outlook { reason, jobs_ahead: Some(0), eta: None };
        }
        let reason = format!("{busy} of {online} devices are busy, {ahead} jobs are likely served before it");
        let start_in_ms = |usual_ms: u64| match is_idle && ahead == 0 {
            true => 0,
            false => (left_ms + ahead as u64 * usual_ms) / online as u64,
        };
        let work = work(job);
        let eta = state.forecaster.forecast(&work).map(|forecast| {
            let usual_ms = state.forecaster.mean_ms(&work.place).unwrap_or(forecast.duration_ms);
            let start_in_ms = start_in_ms(usual_ms);
            self.eta(start_in_ms, start_in_ms.saturating_add(forecast.duration_ms), forecast.samples)
        });
        Outlook { reason, jobs_ahead: Some(ahead), eta }
    }
}
