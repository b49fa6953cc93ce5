//! Withdrawal of requests: a job ends only when nobody wants it any more.

use super::{
    effects::{Effects, JobRef, ToAgent},
    model::{JobId, JobState, Outcome},
    state::{Cancel, LeaseRef, Now, State},
};
use planforge_proto::{ApiError, ErrorCode};
use planforge_types::auth::Actor;
use std::collections::BTreeSet;

impl State {
    pub(super) fn cancel(
        &mut self,
        cancel: Cancel,
        now: Now,
        effects: &mut Effects,
    ) -> Result<Vec<(JobRef, String)>, ApiError> {
        // All or nothing: first whether every job may be touched.
        for id in &cancel.jobs {
            let Some(job) = self.jobs.get(id) else { continue };
            if !job.wants.iter().any(|want| reaches(&cancel.actor, &want.project)) {
                return Err(ApiError::new(ErrorCode::NotFound, format!("no job {id} in your project")));
            }
        }
        let mut replies = Vec::with_capacity(cancel.jobs.len());
        for id in &cancel.jobs {
            let remark = self.withdraw(id, &cancel, now, effects);
            let job = self.jobs.get(id).cloned();
            let job = job.or_else(|| effects.snapshots.iter().rev().find(|job| job.id == *id).cloned());
            replies.push((job.map_or_else(|| JobRef::Stored(id.clone()), JobRef::Live), remark));
        }
        Ok(replies)
    }

    fn withdraw(&mut self, id: &JobId, cancel: &Cancel, now: Now, effects: &mut Effects) -> String {
        let Some(job) = self.jobs.get(id).cloned() else { return String::new() };
        let actor = &cancel.actor;
        let own = job.wants.iter().any(|want| reaches(actor, &want.project) && want.actor == actor.name);
        let (withdrawn, left): (Vec<_>, Vec<_>) = job.wants.iter().cloned().partition(|want| {
            let named = cancel.request.as_ref().map_or(!own || want.actor == actor.name, |r| *r == want.request);
            named && reaches(actor, &want.project)
        });
        if withdrawn.is_empty() {
            return "this request does not want it any more".into();
        }
        if !left.is_empty() {
            let projects: BTreeSet<&str> =
                left.iter().map(|want| want.project.as_str()).filter(|project| reaches(actor, project)).collect();
            let projects = projects.into_iter().collect::<Vec<_>>().join(", ");
            let named = if projects.is_empty() { String::new() } else { format!(" (project {projects})") };
            let remark = format!("goes on: {} other requests want it{named}", left.len());
            self.set_state(id, |job| job.wants = left);
            // Whoever withdrew may have been the most urgent one.
            self.settle_urgency(id, effects);
            self.record(effects, now, id, &actor.name, "withdrawn", remark.clone());
            return remark;
        }
        let reason =
            if cancel.reason.is_empty() { format!("cancelled by {}", actor.name) } else { cancel.reason.clone() };
        if matches!(job.state, JobState::Leased | JobState::Running) {
            if job.cancelling.is_none() {
                self.set_state(id, |job| job.cancelling = Some(reason.clone()));
                self.record(effects, now, id, &actor.name, "cancelling", reason.clone());
                self.send_cancel(id, reason, effects);
            }
            return "its agent was told to stop".into();
        }
        if self.holds.contains_key(id) {
            self.close_attempt(id, Outcome::Lost, None, None, now, effects);
        }
        let skipped = self.needed_by(id).count();
        self.end(id, JobState::Cancelled, None, &actor.name, reason, now, effects);
        if skipped == 0 { String::new() } else { format!("{skipped} jobs that need it are skipped") }
    }

    /// Tells the holder to stop, when it is connected; otherwise it hears it when it says hello.
    pub(super) fn send_cancel(&self, id: &JobId, reason: String, effects: &mut Effects) {
        let Some(hold) = self.holds.get(id) else { return };
        if let Some(session) = self.agents.get(&hold.device.agent).and_then(|agent| agent.session) {
            let lease = LeaseRef { job: id.clone(), attempt: hold.attempt, device: hold.device.device.clone() };
            effects.sends.push((session, ToAgent::Cancel { lease, reason }));
        }
    }
}

fn reaches(actor: &Actor, project: &str) -> bool {
    actor.project.as_ref().is_none_or(|own| own == project)
}
