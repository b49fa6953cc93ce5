//! What must hold after every input, and over every history of events.
//!
//! The same checks run in debug builds after each input, in property tests and in the simulation.

use super::{
    model::{Event, Job, JobId, JobState},
    queue::Target,
    state::{Ordered, State, flight_of},
};
use planforge_types::order::BUILDS_MAX;
use std::collections::{BTreeMap, BTreeSet};

/// Checks the whole state.
///
/// # Errors
/// Every rule that is broken, in words.
pub fn check(state: &State) -> Result<(), Vec<String>> {
    let mut broken = Vec::new();
    let mut held = BTreeSet::new();
    for (id, hold) in &state.holds {
        let Some(job) = state.jobs.get(id) else {
            broken.push(format!("{id} is held but not live"));
            continue;
        };
        if !held.insert(&hold.device) {
            broken.push(format!("{:?} holds two jobs", hold.device));
        }
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
        if state.busy.get(&hold.device) != Some(id) {
            broken.push(format!("{id} is held by {:?}, which is not busy with it", hold.device));
        }
    }
    for (device, id) in &state.busy {
        if state.holds.get(id).is_none_or(|hold| hold.device != *device) {
            broken.push(format!("{device:?} is busy with {id}, which it does not hold"));
        }
    }
    let mut keys: BTreeMap<_, Vec<&JobId>> = BTreeMap::new();
    for (id, job) in &state.jobs {
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
        if (job.state == JobState::Blocked) == job.needs.is_empty() {
            broken.push(format!("{id} is {} and needs {:?}", job.state.name(), job.needs));
        }
        for need in &job.needs {
            if !state.jobs.contains_key(need) || !state.dependents.get(need).is_some_and(|ids| ids.contains(id)) {
                broken.push(format!("{id} waits for {need}, which will never wake it"));
            }
        }
        if !(1..=BUILDS_MAX).contains(&job.builds) {
            broken.push(format!("{id} is to be built {} times", job.builds));
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
        if job.attempts.len() as u32 > limit {
            broken.push(format!("{id} had {} attempts, more than {limit}", job.attempts.len()));
        }
        if job.state == JobState::Queued && Target::of(job).is_none() {
            broken.push(format!("{id} is queued without a toolchain"));
        }
        if let Some(flight) = flight_of(job) {
            keys.entry(flight).or_default().push(id);
        }
    }
    for (flight, ids) in keys {
        // One live job per key: more would build the same engine twice.
        if ids.len() > 1 {
            broken.push(format!("{flight:?} is under way more than once: {ids:?}"));
        }
        if !state.flights.get(&flight).is_some_and(|id| ids.contains(&id)) {
            broken.push(format!("{flight:?} is under way but not found"));
        }
    }
    for (session, agent) in &state.sessions {
        if state.agents.get(agent).and_then(|entry| entry.session) != Some(*session) {
            broken.push(format!("session {session} of {agent} is not the agent's"));
        }
    }
    for (target, devices) in &state.idle {
        for device in devices {
            if !state.is_idle(device) || !state.targets_of(device).contains(target) {
                broken.push(format!("{device:?} counts as free for {target:?} and is not"));
            }
        }
    }
    if broken.is_empty() { Ok(()) } else { Err(broken) }
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
    let keys: BTreeSet<_> = before.engines.keys().chain(after.engines.keys()).collect();
    for key in keys {
        let known =
            |state: &State| state.engines.get(key).map(|known| (known.plan.clone(), known.accurate, known.report));
        if known(before) != known(after) {
            broken.push(format!("engine {key} was {:?} and is {:?}", known(before), known(after)));
        }
    }
    if before.refusals != after.refusals {
        broken.push(format!("refusals were {:?} and are {:?}", before.refusals, after.refusals));
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
