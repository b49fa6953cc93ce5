//! Why a job is not running yet, in words.

use super::{
    model::{Job, JobId, JobState},
    queue::Target,
    state::State,
};

impl State {
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
        let Some(target) = Target::of(job) else { return String::new() };
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
