//! What must hold after every input, and over every history of events.
//!
//! | when | what is checked |
//! |---|---|
//! | after each input, in every build | the jobs that it touched, with their devices (`Patrol`), and the next few jobs, holds and agents in turn |
//! | when a state is loaded | every job: one that the store holds in a shape that breaks a rule is told and left alone |
//! | after each input of a debug build, while few jobs are live; in property tests | everything |
//!
//! What the leader does about a broken rule stands in `farm/leader.rs`.

use super::{
    effects::{Effects, ToAgent},
    flight::flight_of,
    model::{Event, Job, JobId, JobKind, JobState},
    queue::{DeviceKey, Target},
    state::{Hold, Ordered, State},
};
use planforge_types::order::BUILDS_MAX;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

/// Checks the whole state.
///
/// # Errors
/// Every rule that is broken, in words.
pub fn check(state: &State) -> Result<(), Vec<String>> {
    let mut broken = Vec::new();
    let mut held = BTreeSet::new();
    for (id, hold) in &state.holds {
        if !held.insert(&hold.device) {
            broken.push(format!("{:?} holds two jobs", hold.device));
        }
        check_hold(state, id, hold, &mut broken);
    }
    state.busy.keys().for_each(|device| check_busy(state, device, &mut broken));
    state.jobs.values().for_each(|job| check_job(state, job, &mut broken));
    state.sessions.keys().for_each(|session| check_session(state, *session, &mut broken));
    for (target, devices) in &state.idle {
        for device in devices {
            if !state.is_idle(device) || !state.targets_of(device).contains(target) {
                broken.push(format!("{device:?} counts as free for {target:?} and is not"));
            }
        }
    }
    let mut live_of = BTreeMap::<&str, usize>::new();
    state.jobs.values().for_each(|job| *live_of.entry(job.project()).or_default() += 1);
    if !state.live_of.iter().map(|(project, count)| (project.as_str(), *count)).eq(live_of) {
        broken.push(format!("live jobs are counted as {:?}", state.live_of));
    }
    if broken.is_empty() { Ok(()) } else { Err(broken) }
}

fn check_hold(state: &State, id: &JobId, hold: &Hold, broken: &mut Vec<String>) {
    let Some(job) = state.jobs.get(id) else {
        broken.push(format!("{id} is held but not live"));
        return;
    };
    // What runs, or may be revived, is what the job will be taken for.
    if Ordered::of(job) != hold.ordered {
        broken.push(format!("{id} asks for {:?} while an attempt does {:?}", Ordered::of(job), hold.ordered));
    }
    if job.attempt() != hold.attempt {
        broken.push(format!("{id} is held at attempt {} but is at {}", hold.attempt, job.attempt()));
    }
    let active = matches!(job.state, JobState::Leased | JobState::Running);
    if active == hold.expired {
        broken.push(format!("{id} is {} with a hold that is expired: {}", job.state.name(), hold.expired));
    }
    // A compile job keeps a host's cores busy: whatever is measured there meanwhile would show it.
    broken.extend(state.crowded(&hold.device.agent));
    if state.busy.get(&hold.device) != Some(id) {
        broken.push(format!("{id} is held by {:?}, which is not busy with it", hold.device));
    }
}

fn check_busy(state: &State, device: &DeviceKey, broken: &mut Vec<String>) {
    let Some(id) = state.busy.get(device) else { return };
    if state.holds.get(id).is_none_or(|hold| hold.device != *device) {
        broken.push(format!("{device:?} is busy with {id}, which it does not hold"));
    }
}

fn check_job(state: &State, job: &Job, broken: &mut Vec<String>) {
    let id = &job.id;
    if job.state.is_terminal() {
        broken.push(format!("{id} is live but {}", job.state.name()));
    }
    if matches!(job.state, JobState::Leased | JobState::Running) && !state.holds.contains_key(id) {
        broken.push(format!("{id} is {} but nobody holds it", job.state.name()));
    }
    if (job.state == JobState::Queued) != state.queue.contains(id) {
        broken.push(format!("{id} is {} and in the queue: {}", job.state.name(), state.queue.contains(id)));
    }
    if (job.state == JobState::Unplaceable) != state.unplaceable.contains(id) {
        broken.push(format!("{id} is {} but the unplaceable set disagrees", job.state.name()));
    }
    // What it waited for ended; what becomes of it waits for a look into the store.
    let is_asking = state.asking.contains_key(id);
    if (job.state == JobState::Blocked) == job.needs.is_empty() && !(is_asking && job.state == JobState::Blocked) {
        broken.push(format!("{id} is {} and needs {:?}", job.state.name(), job.needs));
    }
    for need in &job.needs {
        if !state.jobs.contains_key(need) || !state.dependents.get(need).is_some_and(|ids| ids.contains(id)) {
            broken.push(format!("{id} waits for {need}, which will never wake it"));
        }
        if state.jobs.get(need).is_some_and(|other| other.priority() < job.priority()) {
            broken.push(format!("{id} waits for {need}, which is less urgent than it is"));
        }
    }
    if !(1..=BUILDS_MAX).contains(&job.builds) {
        broken.push(format!("{id} is to be built {} times", job.builds));
    }
    if job.kind == JobKind::Compile && (job.builds > 1 || !job.covered().is_usual() || job.report.is_some()) {
        broken.push(format!("{id} compiles, and is to be measured"));
    }
    if job.prepares() && (job.plan.is_some() || job.key.is_some() && job.made_for.is_none()) {
        broken.push(format!("{id} prepares for a device that is not known, or has a plan"));
    }
    if (job.kind == JobKind::Prepare) != job.prepare.is_some() || job.prepare.is_some() && job.plan.is_some() {
        broken.push(format!("{id} is a {} job; what its model is to become: {:?}", job.kind.name(), job.prepare));
    }
    // Nothing is decided about what is built before its model is known.
    if job.is_open() && (job.key.is_some() || job.state != JobState::Blocked) {
        broken.push(format!("{id} is {} before its model is prepared", job.state.name()));
    }
    if job.wants.is_empty() {
        broken.push(format!("nobody wants {id}"));
    }
    for (index, attempt) in job.attempts.iter().enumerate() {
        if attempt.number as usize != index + 1 {
            broken.push(format!("{id} has attempt {} at place {index}", attempt.number));
        }
    }
    let limit = state.config.max_attempts + state.config.max_remeasures;
    if job.attempts_counted() as u32 > limit {
        broken.push(format!("{id} had {} attempts, more than {limit}", job.attempts_counted()));
    }
    if job.state == JobState::Queued && Target::of(job).is_none() {
        broken.push(format!("{id} is queued without a toolchain"));
    }
    // One live job per key: more would build the same engine twice, and only one of them is found. About what waits for a
    // device that there is none of is decided anew before it runs.
    if job.state != JobState::Unplaceable
        && let Some(flight) = flight_of(job)
        && state.flights.get(&flight) != Some(id)
    {
        let found = state.flights.get(&flight);
        broken.push(format!("{flight:?} is under way as {id}, but what is found under it is {found:?}"));
    }
}

/// What may be left of a job that has ended.
fn check_gone(state: &State, id: &JobId, broken: &mut Vec<String>) {
    if state.holds.contains_key(id) {
        broken.push(format!("{id} is held but not live"));
    }
    if state.queue.contains(id) || state.unplaceable.contains(id) {
        broken.push(format!("{id} waits but is not live"));
    }
}

fn check_session(state: &State, session: u64, broken: &mut Vec<String>) {
    let Some(agent) = state.sessions.get(&session) else { return };
    if state.agents.get(agent).and_then(|entry| entry.session) != Some(session) {
        broken.push(format!("session {session} of {agent} is not the agent's"));
    }
}

/// Whether a device counts as free exactly where it is.
fn check_devices(state: &State, agent: &str, broken: &mut Vec<String>) {
    let Some(entry) = state.agents.get(agent) else { return };
    for device in &entry.record.devices {
        let key = DeviceKey { agent: agent.to_owned(), device: device.id.clone() };
        check_busy(state, &key, broken);
        let free = state.is_idle(&key);
        for target in state.targets_of(&key) {
            if state.idle.get(&target).is_some_and(|devices| devices.contains(&key)) != free {
                broken.push(format!("{key:?} counts as free for {target:?}: {}, and is free: {free}", !free));
            }
        }
    }
}

/// Jobs, holds and agents that are looked at beside what an input touched, so that everything is looked at in turn.
const JOBS_IN_TURN: usize = 4;
const HOLDS_IN_TURN: usize = 2;
const AGENTS_IN_TURN: usize = 1;

/// Checks a state piece by piece: what each input touched, and a little of the rest. Its work does not grow with the farm.
#[derive(Debug, Default)]
pub(super) struct Patrol {
    job: Option<JobId>,
    hold: Option<JobId>,
    agent: Option<String>,
    /// Jobs that were loaded in a shape that breaks a rule.
    excused: BTreeSet<JobId>,
}

impl Patrol {
    /// Begins over a state that was just loaded. What is wrong with its jobs already was so in the store, perhaps under an
    /// older program or other settings: it is told, and no reason to stop.
    pub fn begin(state: &State) -> (Self, Vec<String>) {
        let (mut patrol, mut told) = (Self::default(), Vec::new());
        for job in state.jobs.values() {
            let before = told.len();
            check_job(state, job, &mut told);
            if told.len() > before {
                patrol.excused.insert(job.id.clone());
            }
        }
        (patrol, told)
    }

    /// Which rules are broken after an input with these effects.
    pub fn look(&mut self, state: &State, effects: &Effects) -> Vec<String> {
        let mut broken = Vec::new();
        let mut touched: BTreeSet<&JobId> =
            effects.snapshots.iter().chain(&effects.progress).map(|job| &job.id).collect();
        touched.extend(effects.closed.iter().map(|(id, ..)| id));
        touched.extend(effects.sends.iter().filter_map(|(_, message)| match message {
            ToAgent::Assign { lease, .. } | ToAgent::Cancel { lease, .. } | ToAgent::FinishedAck { lease, .. } => {
                Some(&lease.job)
            }
            _ => None,
        }));
        touched.into_iter().for_each(|id| self.look_at(state, id, &mut broken));
        for (_, message) in &effects.sends {
            let ToAgent::Assign { lease, .. } = message else { continue };
            if let Some(hold) = state.holds.get(&lease.job)
                && !state.meets(&lease.job, &hold.device)
            {
                broken.push(format!("{} was given to {:?}, which lacks what it asks for", lease.job, hold.device));
            }
        }
        for id in next(&state.jobs, &mut self.job, JOBS_IN_TURN) {
            self.look_at(state, id, &mut broken);
        }
        for id in next(&state.holds, &mut self.hold, HOLDS_IN_TURN) {
            self.look_at(state, id, &mut broken);
        }
        for agent in next(&state.agents, &mut self.agent, AGENTS_IN_TURN) {
            check_devices(state, agent, &mut broken);
            let session = state.agents.get(agent).and_then(|entry| entry.session);
            if session.is_some_and(|session| state.sessions.get(&session) != Some(agent)) {
                broken.push(format!("{agent} is connected by a session that is not its own"));
            }
        }
        broken
    }

    fn look_at(&self, state: &State, id: &JobId, broken: &mut Vec<String>) {
        if self.excused.contains(id) {
            return;
        }
        match state.jobs.get(id) {
            Some(job) => check_job(state, job, broken),
            None => check_gone(state, id, broken),
        }
        if let Some(hold) = state.holds.get(id) {
            check_hold(state, id, hold, broken);
            check_busy(state, &hold.device, broken);
        }
    }
}

/// The next `count` keys behind `at`, from the beginning again after the last.
fn next<'a, K: Ord + Clone, V>(map: &'a BTreeMap<K, V>, at: &mut Option<K>, count: usize) -> Vec<&'a K> {
    let from = at.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
    let keys: Vec<&K> = map.range((from, Bound::Unbounded)).take(count).map(|(key, _)| key).collect();
    // A short piece is the last one.
    *at = if keys.len() < count { None } else { keys.last().map(|key| (*key).clone()) };
    keys
}

/// Checks that a state loaded from the store knows what the one before it knew. What the store does not keep (holds,
/// sessions, where progress stands) is nobody's promise.
///
/// # Errors
/// Everything that was forgotten or changed, in words.
pub fn check_reloaded(before: &State, after: &State) -> Result<(), Vec<String>> {
    let mut broken = Vec::new();
    let ids: BTreeSet<_> = before.jobs.keys().chain(after.jobs.keys()).collect();
    for id in ids {
        let known = |state: &State| state.jobs.get(id).map(|job| Job { progress: 0.0, ..job.as_ref().clone() });
        if known(before) != known(after) {
            broken.push(format!("{id} was {:?} and is {:?}", known(before), known(after)));
        }
    }
    if before.last_event != after.last_event {
        broken.push(format!("the newest event was {} and is {}", before.last_event, after.last_event));
    }
    if broken.is_empty() { Ok(()) } else { Err(broken) }
}

/// Checks a history of durable events, in order.
#[derive(Debug, Default)]
pub struct History {
    last_seq: u64,
    jobs: BTreeMap<JobId, (JobState, u32)>,
}

impl History {
    /// Takes the next event.
    ///
    /// # Errors
    /// The rule that the event breaks.
    pub fn add(&mut self, event: &Event) -> Result<(), String> {
        if event.seq != self.last_seq + 1 {
            return Err(format!("event {} follows {}", event.seq, self.last_seq));
        }
        self.last_seq = event.seq;
        if let Some((state, attempt)) = self.jobs.get(&event.job) {
            if state.is_terminal() {
                return Err(format!("{} is {} again after it was {}", event.job, event.state.name(), state.name()));
            }
            if event.attempt < *attempt {
                return Err(format!("{} went from attempt {attempt} back to {}", event.job, event.attempt));
            }
            if event.what == "leased" && event.attempt != attempt + 1 {
                return Err(format!("{} was leased at attempt {} after {attempt}", event.job, event.attempt));
            }
        } else if event.what != "submitted" && !event.state.is_terminal() {
            return Err(format!("{} begins with {}", event.job, event.what));
        }
        self.jobs.insert(event.job.clone(), (event.state, event.attempt));
        Ok(())
    }

    /// Jobs that have not ended.
    pub fn open(&self) -> impl Iterator<Item = &JobId> {
        self.jobs.iter().filter(|(_, (state, _))| !state.is_terminal()).map(|(id, _)| id)
    }

    /// Every job that was seen, with how it stands.
    pub fn jobs(&self) -> impl Iterator<Item = (&JobId, JobState)> {
        self.jobs.iter().map(|(id, (state, _))| (id, *state))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_its_turn_and_they_begin_anew() {
        let map: BTreeMap<u32, ()> = (0..5).map(|key| (key, ())).collect();
        let mut at = None;
        let mut turn = || next(&map, &mut at, 2).into_iter().copied().collect::<Vec<_>>();
        assert_eq!([turn(), turn(), turn(), turn()], [vec![0, 1], vec![2, 3], vec![4], vec![0, 1]]);
        let (mut at, gone) = (Some(9), BTreeMap::from([(1, ())]));
        assert!(next(&gone, &mut at, 2).is_empty());
        assert_eq!(next(&gone, &mut at, 2), [&1]);
    }
}
