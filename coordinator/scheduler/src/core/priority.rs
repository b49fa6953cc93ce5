//! The priority of jobs that have not ended: given when they are submitted, and changed for as long as they wait.
//!
//! What a caller changes is what its own project asked for; a job is as urgent as the most urgent of its requests. Whatever
//! a job waits for is at least as urgent as it is, so that follows all the way up, and down again.

use super::{
    effects::{Effects, JobRef},
    model::{Change, JobId, JobState},
    state::{Now, State},
};
use planforge_proto::{ApiError, ErrorCode};
use planforge_types::auth::Actor;

/// A request to change how urgent jobs are.
#[derive(Clone, Debug)]
pub struct Prioritize {
    pub actor: Actor,
    pub jobs: Vec<JobId>,
    pub priority: i32,
}

impl State {
    /// The jobs as they stand then, each with a remark where it is not as was asked.
    pub(super) fn prioritize(
        &mut self,
        asked: Prioritize,
        now: Now,
        effects: &mut Effects,
    ) -> Result<Vec<(JobRef, String)>, ApiError> {
        let reaches = |project: &str| asked.actor.project.as_ref().is_none_or(|own| own == project);
        // All or nothing: first whether every job may be touched.
        for id in &asked.jobs {
            let Some(job) = self.jobs.get(id) else { continue };
            if !job.wants.iter().any(|want| reaches(&want.project)) {
                return Err(ApiError::new(ErrorCode::NotFound, format!("no job {id} in your project")));
            }
        }
        let mut replies = Vec::with_capacity(asked.jobs.len());
        for id in &asked.jobs {
            let Some(before) = self.jobs.get(id).cloned() else {
                replies.push((JobRef::Stored(id.clone()), "it has ended".into()));
                continue;
            };
            let is_other = before.wants.iter().any(|want| reaches(&want.project) && want.priority != asked.priority);
            if is_other {
                self.set_state(id, |job| {
                    let own = job.wants.iter_mut().filter(|want| reaches(&want.project));
                    own.for_each(|want| want.priority = asked.priority);
                });
                self.settle_urgency(id, effects);
                let detail = format!("priority {} instead of {}", self.urgency(id), before.priority());
                self.record(effects, now, id, &asked.actor.name, "priority", detail);
            }
            let stands = self.urgency(id);
            let remark = match stands {
                _ if matches!(before.state, JobState::Leased | JobState::Running) => "it runs already".into(),
                stands if stands > asked.priority => format!("priority {stands}: others want it, or wait for it"),
                _ => String::new(),
            };
            replies.push((self.jobs.get(id).cloned().map_or(JobRef::Stored(id.clone()), JobRef::Live), remark));
        }
        Ok(replies)
    }

    fn urgency(&self, id: &JobId) -> i32 {
        self.jobs.get(id).map_or(0, |job| job.priority())
    }

    /// The highest priority of a job that waits for this one.
    fn lifted_to(&self, id: &JobId) -> Option<i32> {
        let waiting = self.dependents.get(id).into_iter().flatten();
        waiting.filter_map(|id| self.jobs.get(id)).map(|job| job.priority()).max()
    }

    /// After what is asked of `id` changed: it stays as urgent as whatever waits for it, and what it waits for becomes as
    /// urgent as whatever waits for that, all the way up. The change of `id` itself is for the caller to make durable.
    pub(super) fn settle_urgency(&mut self, id: &JobId, effects: &mut Effects) {
        let needs_of = |state: &Self, id: &JobId| state.jobs.get(id).map(|job| job.needs.clone()).unwrap_or_default();
        let lifted_to = self.lifted_to(id);
        self.set_state(id, |job| job.lifted_to = lifted_to);
        let mut above = needs_of(self, id);
        while let Some(need) = above.pop() {
            let lifted_to = self.lifted_to(&need);
            let Some(job) = self.jobs.get(&need).filter(|job| job.lifted_to != lifted_to) else { continue };
            let before = job.priority();
            self.set_state(&need, |job| job.lifted_to = lifted_to);
            effects.changes.extend(self.jobs.get(&need).cloned().map(Change::Job));
            if self.urgency(&need) != before {
                above.extend(needs_of(self, &need));
            }
        }
    }
}
