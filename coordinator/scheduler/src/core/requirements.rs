//! What jobs ask of the device that runs them, beside its kind, and which devices have it.
//!
//! Whoever wants a job says what they ask; a device is given the job where it meets all of them. So identical work in
//! flight is joined only where one device can serve everybody:
//!
//! | the job | is joined | else |
//! |---|---|---|
//! | waits | by who asks for no more, or for what some known device meets together with the rest | it goes first |
//! | is held | by those whom its device meets | it goes first |
//!
//! What goes first ends, and then the store answers: an engine is the same wherever it was built. Two that wait and contradict
//! each other are told so when the second is submitted. What needs no such device (a model that is prepared, kernels
//! compiled ahead) asks for nothing.

use super::{
    ask::Asked,
    judge::Verdict,
    known::Lookup,
    model::{Job, JobId, JobKind},
    queue::{DeviceKey, Target},
    state::State,
};
use planforge_proto::{ApiError, ErrorCode};
use planforge_types::{Attributes, Requirement, Sku, fingerprint::DeviceFingerprint};

impl Job {
    /// What all who want it ask of its device.
    pub fn requirement(&self) -> Requirement {
        let asked = self.wants.iter().map(|want| &want.require);
        // Two that contradict each other are never let in together.
        asked.fold(Requirement::default(), |all, one| all.and(one).unwrap_or(all))
    }
}

/// What a job of this kind asks of its device, of what its request asks for.
pub(super) fn of_kind(kind: JobKind, sku: &Sku, asked: &Requirement) -> Requirement {
    match kind {
        JobKind::Prepare => Requirement::default(),
        JobKind::Compile if !sku.is_cpu() => Requirement::default(),
        _ => asked.clone(),
    }
}

impl State {
    /// Notes what an agent's devices have, and what its GPUs say of themselves.
    pub(super) fn learn_attributes(&mut self, agent: &str) {
        self.attributes.retain(|key, _| key.agent != agent);
        self.gpus.retain(|key, _| key.agent != agent);
        let Some(entry) = self.agents.get(agent) else { return };
        for device in &entry.record.devices {
            let key = DeviceKey { agent: agent.to_owned(), device: device.id.clone() };
            let fingerprint = serde_json::from_str::<DeviceFingerprint>(&device.fingerprint);
            let attributes = fingerprint.as_ref().map(Attributes::of).unwrap_or_default();
            let attributes = Attributes { labels: entry.record.labels.clone(), ..attributes };
            self.attributes.insert(key.clone(), attributes);
            if let Some(gpu) = fingerprint.ok().and_then(|fingerprint| fingerprint.gpu) {
                self.gpus.insert(key, gpu);
            }
        }
    }

    pub(super) fn has(&self, device: &DeviceKey, asked: &Requirement) -> bool {
        asked.is_empty() || self.attributes.get(device).is_some_and(|attributes| asked.is_met_by(attributes))
    }

    /// Whether a device meets all who want the job.
    pub(super) fn meets(&self, id: &JobId, device: &DeviceKey) -> bool {
        self.jobs.get(id).is_some_and(|job| self.serves(job, device))
    }

    pub(super) fn serves(&self, job: &Job, device: &DeviceKey) -> bool {
        job.wants.iter().all(|want| self.has(device, &want.require))
    }

    /// Whether some known device with this target, on line or not, meets it.
    pub(super) fn somebody_has(&self, target: &Target, asked: &Requirement) -> bool {
        asked.is_empty() || self.offers.get(target).into_iter().flatten().any(|device| self.has(device, asked))
    }

    /// Why no known device with this target meets what is asked for; `None` where one does, or there is none at all.
    pub(super) fn why_nobody_has(&self, target: &Target, asked: &Requirement) -> Option<String> {
        if asked.is_empty() {
            return None;
        }
        let known = self.offers.get(target)?.iter().filter_map(|device| self.attributes.get(device));
        let why = asked.why_none(known)?;
        Some(format!("no known device with {} and {} {why}", target.sku, target.toolchain))
    }

    /// Whether where `other` runs, or will run, is also where `asked` may.
    pub(super) fn may_share_device(&self, asked: &Asked, other: &Job) -> bool {
        let own = other.requirement();
        let Ok(both) = own.and(&asked.require) else { return false };
        match self.holds.get(&other.id) {
            _ if both == own => true,
            Some(hold) => self.has(&hold.device, &asked.require),
            None => Target::of(other).is_none_or(|target| self.somebody_has(&target, &both)),
        }
    }

    /// Decides about what is being submitted. What no known device meets waits for one, and what can never run where a job
    /// that waits for the same engine is to run is refused: neither could end before the other.
    pub(super) fn judge_new(&self, asked: &Asked, lookup: &Lookup) -> Result<Verdict, ApiError> {
        let verdict = self.judge(asked, lookup)?;
        let Verdict::Run { chosen, behind, .. } = &verdict else { return Ok(verdict) };
        let target = Target { sku: asked.sku.clone(), toolchain: chosen.toolchain.clone() };
        if let Some(why) = self.why_nobody_has(&target, &asked.require) {
            let hint = format!(
                "'planforge devices' shows what there is; on a farm that stays, {} waits until such a device joins",
                asked.waits_with()
            );
            return Ok(Verdict::Wait(ApiError::new(ErrorCode::Refused, why).with_hint(hint)));
        }
        let waiting = behind.as_ref().filter(|other| !self.holds.contains_key(other));
        if let Some(other) = waiting.and_then(|other| self.jobs.get(other)).filter(|_| !asked.is_open())
            && let Err(contradiction) = other.requirement().and(&asked.require)
        {
            let message =
                format!("job {} waits to build the same for another kind of device: {contradiction}", other.id);
            let hint = "submit it again once that job has ended, or with --force to build it beside that one";
            return Err(ApiError::new(ErrorCode::Conflict, message).with_hint(hint));
        }
        Ok(verdict)
    }
}
