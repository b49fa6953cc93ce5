//! What an agent lacked, and who else may have it: full disks and too little memory of hosts.
//!
//! Such a failure says nothing about the job, and nothing about other agents. The job goes to one that may have what was
//! lacking, as long as there is one that takes jobs; where there is none, it fails with the number.

use super::{
    model::{Failure, Job, JobId},
    queue::{DeviceKey, Target},
    state::State,
};
use planforge_types::Lack;

/// How often a job is tried for which an agent had too little memory.
const TRIES_FOR_MEMORY: usize = 2;

impl State {
    /// Whether a job that just failed for what its agent lacked is tried on another.
    pub(super) fn goes_elsewhere(&self, job: &Job, failure: &Failure) -> bool {
        let Some(lack) = failure.lacked else { return false };
        let tries = job.attempts.iter().filter(|attempt| lacked(attempt.failure.as_ref()) == Some(lack)).count();
        let enough = lack == Lack::Memory && tries >= TRIES_FOR_MEMORY;
        !enough && self.somebody_has_room(job)
    }

    /// Whether a device's host may have what earlier ones lacked for the job. Everybody may where nobody has it.
    pub(super) fn may_have_room(&self, id: &JobId, device: &DeviceKey) -> bool {
        let Some(job) = self.jobs.get(id) else { return false };
        self.has_room(job, &device.agent) || !self.somebody_has_room(job)
    }

    /// Whether an agent that takes jobs offers what the job needs and may have what was lacking.
    fn somebody_has_room(&self, job: &Job) -> bool {
        let Some(target) = Target::of(job) else { return false };
        let mut offered = self.offers.get(&target).into_iter().flatten();
        offered.any(|device| self.takes_jobs(device) && self.serves(job, device) && self.has_room(job, &device.agent))
    }

    fn has_room(&self, job: &Job, agent: &str) -> bool {
        job.attempts.iter().all(|attempt| match lacked(attempt.failure.as_ref()) {
            None => true,
            Some(Lack::Disk) => attempt.agent != agent,
            Some(Lack::Memory) => self.memory_of(agent) > self.memory_of(&attempt.agent),
        })
    }

    /// Bytes that the workers of an agent may use; 0 where it did not say.
    fn memory_of(&self, agent: &str) -> u64 {
        self.agents.get(agent).map_or(0, |entry| entry.record.memory_bytes)
    }
}

fn lacked(failure: Option<&Failure>) -> Option<Lack> {
    failure.and_then(|failure| failure.lacked)
}
