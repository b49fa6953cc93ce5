//! What waits for what: jobs that a job needs, and what follows when they end.
//!
//! A job names what it needs when it is submitted, and only jobs that are there already: so no circle can close. It is
//! decided about when all of that has succeeded, as if it were submitted then; where one of it ends otherwise, it is
//! skipped, and whatever needs it likewise. Jobs that wait behind another one that does nearly the same (`recheck`) are woken
//! here too, however that one ended.

use super::{
    ask::Asked,
    compile::Prepared,
    effects::{Effects, JobRef},
    known::Lookup,
    model::{Change, Failure, Job, JobId, JobState, Made},
    state::{Need, Now, State, Submit},
};
use planforge_proto::{ApiError, ErrorCode};
use planforge_types::FailureClass;

/// Jobs that a sentence names; of more it says how many there are.
const NAMED_MAX: usize = 3;

/// A job whose wait for another one is over.
#[derive(Debug)]
pub(super) struct Woken {
    waiting: JobId,
    ended: JobId,
    /// Why whoever needs it is skipped; `None`: it succeeded.
    because: Option<Failure>,
    /// What it prepared for who needs it.
    prepared: Option<Prepared>,
    /// The model that it made for who needs it.
    made: Option<Made>,
}

impl State {
    /// Of what a request needs, the jobs that have not ended. `None`: one of them ended since somebody looked.
    ///
    /// # Errors
    /// When one of them can never succeed any more.
    pub(super) fn unmet(&self, needs: &[Need]) -> Result<Option<Vec<JobId>>, ApiError> {
        let mut waits = Vec::new();
        for need in needs {
            match (self.jobs.contains_key(&need.job), need.ended) {
                (true, _) => waits.push(need.job.clone()),
                (false, Some(JobState::Succeeded)) => {}
                (false, Some(ended)) => {
                    let message = format!("job {}, which the request needs, is {}", need.job, ended.name());
                    return Err(ApiError::new(ErrorCode::Refused, message).with_hint(
                        "'planforge retry REQUEST' tries a failed job again: name the job that it makes of it",
                    ));
                }
                (false, None) => return Ok(None),
            }
        }
        Ok(Some(waits))
    }

    /// Takes a job about which nothing is decided before `waits` have succeeded.
    pub(super) fn admit_blocked(
        &mut self,
        asked: Asked,
        id: JobId,
        submit: &Submit,
        waits: &[JobId],
        now: Now,
        effects: &mut Effects,
    ) -> JobRef {
        // With what it would be built now, for people and for what is foretold; decided anew when it may run.
        let likely = self.likely_toolchain(&asked);
        self.enter(asked, id.clone(), submit, now, effects);
        if let Some(job) = self.job_mut(&id) {
            job.toolchain = job.toolchain.take().or(likely);
        }
        self.wait_for(&id, waits.to_vec(), effects);
        let detail = format!("needs {}", named(waits));
        self.record(effects, now, &id, &submit.actor, "submitted", detail);
        self.jobs.get(&id).map_or_else(|| JobRef::Stored(id.clone()), |job| JobRef::Live(job.clone()))
    }

    /// Lets a job wait until all of `needs` have ended. They are at least as urgent as it is from now on.
    pub(super) fn wait_for(&mut self, id: &JobId, needs: Vec<JobId>, effects: &mut Effects) {
        for need in &needs {
            self.dependents.entry(need.clone()).or_default().insert(id.clone());
        }
        self.set_state(id, |job| {
            job.state = JobState::Blocked;
            job.needs = needs;
        });
        let Some(priority) = self.jobs.get(id).map(|job| job.priority()) else { return };
        let mut above: Vec<JobId> = self.needs_of(id);
        while let Some(need) = above.pop() {
            if self.jobs.get(&need).is_none_or(|job| job.priority() >= priority) {
                continue;
            }
            self.set_state(&need, |job| job.lifted_to = Some(priority));
            effects.changes.extend(self.jobs.get(&need).cloned().map(Change::Job));
            above.extend(self.needs_of(&need));
        }
    }

    fn needs_of(&self, id: &JobId) -> Vec<JobId> {
        self.jobs.get(id).map(|job| job.needs.clone()).unwrap_or_default()
    }

    /// Jobs that are skipped when this one does not succeed, but for those that need them in turn.
    pub fn needed_by(&self, id: &JobId) -> impl Iterator<Item = &Job> {
        let waiting = self.dependents.get(id).into_iter().flatten();
        waiting.filter_map(|id| self.jobs.get(id)).map(AsRef::as_ref).filter(|job| !job.recheck)
    }

    /// Lets go of the jobs that need this one, and names them. Who only waits behind it keeps waiting.
    pub(super) fn release_needs(&mut self, id: &JobId) -> Vec<JobId> {
        let needing: Vec<JobId> = self.needed_by(id).map(|job| job.id.clone()).collect();
        let jobs = &self.jobs;
        if let Some(waiting) = self.dependents.get_mut(id) {
            waiting.retain(|job| jobs.get(job).is_some_and(|job| job.recheck));
            if waiting.is_empty() {
                self.dependents.remove(id);
            }
        }
        needing
    }

    /// Decides about those that waited for `ended`. However long a chain of them is, it takes no more of the stack than
    /// one.
    pub(super) fn wake_dependents(&mut self, ended: &Job, now: Now, effects: &mut Effects) {
        let because = (ended.state != JobState::Succeeded).then(|| skipped_by(ended));
        let prepared = Prepared::of(ended);
        let made = ended.made.as_deref().filter(|_| ended.state == JobState::Succeeded).cloned();
        let waiting = self.dependents.remove(&ended.id).unwrap_or_default();
        self.woken.extend(waiting.into_iter().map(|waiting| {
            let (ended, because, prepared, made) = (ended.id.clone(), because.clone(), prepared.clone(), made.clone());
            Woken { waiting, ended, because, prepared, made }
        }));
        if std::mem::replace(&mut self.waking, true) {
            return;
        }
        while let Some(woken) = self.woken.pop_front() {
            self.wake(woken, now, effects);
        }
        self.waking = false;
    }

    fn wake(&mut self, woken: Woken, now: Now, effects: &mut Effects) {
        let Woken { waiting, ended, because, prepared, made } = woken;
        if let Some(prepared) = &prepared {
            self.give_prepared(&waiting, prepared);
        }
        if let Some(made) = &made {
            self.give_made(&waiting, &ended, made);
        }
        let Some(job) = self.job_mut(&waiting) else { return };
        job.needs.retain(|need| *need != ended);
        // Before anything is decided: that may wait for a look into the store, and a restart must not forget it.
        if prepared.is_some() || made.is_some() {
            effects.changes.extend(self.jobs.get(&waiting).cloned().map(Change::Job));
        }
        let Some(job) = self.jobs.get(&waiting) else { return };
        match because.filter(|_| !job.recheck) {
            Some(failure) => {
                self.end(&waiting, JobState::Skipped, Some(failure), "coordinator", "", now, effects);
            }
            None if job.needs.is_empty() => self.readmit(&waiting, "unblocked", &Lookup::default(), now, effects),
            None => {}
        }
    }
}

/// Why a job is skipped that needs `ended`. The first cause is told all along a chain.
pub(super) fn skipped_by(ended: &Job) -> Failure {
    let again = "'planforge retry REQUEST' tries it and what it needs again";
    match &ended.failure {
        Some(cause) if ended.state == JobState::Skipped => cause.clone(),
        Some(cause) => {
            let message = format!("job {}, which it needs, {}: {}", ended.id, ended.state.name(), cause.message);
            Failure::new(cause.class, message, format!("{}; {again}", cause.hint).trim_start_matches("; "))
        }
        None => {
            let message = format!("job {}, which it needs, was {}", ended.id, ended.state.name());
            Failure::new(FailureClass::Infrastructure, message, again)
        }
    }
}

/// Jobs with `to` where `from` stood, each once.
pub(super) fn in_place_of(ids: &[JobId], from: &JobId, to: &JobId) -> Vec<JobId> {
    let mut others: Vec<JobId> = Vec::with_capacity(ids.len());
    for id in ids.iter().map(|id| if id == from { to } else { id }) {
        if !others.contains(id) {
            others.push(id.clone());
        }
    }
    others
}

/// Jobs in a sentence.
pub(super) fn named(ids: &[JobId]) -> String {
    let mut text = if ids.len() == 1 { "job " } else { "jobs " }.to_owned();
    let names: Vec<&str> = ids.iter().take(NAMED_MAX).map(JobId::as_str).collect();
    text.push_str(&names.join(", "));
    if ids.len() > NAMED_MAX {
        text.push_str(&format!(" and {} more", ids.len() - NAMED_MAX));
    }
    text
}
