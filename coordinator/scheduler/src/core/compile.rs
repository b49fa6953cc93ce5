//! Compile jobs: what an engine takes short of its measurement, or of its device; and what keeps a host's cores busy.
//!
//! | for | it makes | where |
//! |---|---|---|
//! | a processor's SKU | an engine, verified, *built, not measured* until a job measures it | on a device of that SKU |
//! | any other SKU | what can be made ready without such a device: kernels, compiled for its architecture | on a processor whose agent offers to prepare for the toolchain |
//!
//! What was prepared is given to every build that needs the job; the build then times, decides and makes the engine. It is
//! found there by what it was compiled from, so that a build takes of it only what is exactly its own.
//!
//! Invariant: an agent holds a compile job, or a prepare job, beside no other job. It keeps the host's cores busy, which would
//! show in whatever is measured there meanwhile.

use super::{
    effects::Effects,
    graph::named,
    model::{CacheRef, Failure, Job, JobId, JobKind, JobState, Outcome},
    queue::{DeviceKey, Target},
    state::{FinishedIn, Now, State},
};
use planforge_proto::{ApiError, ErrorCode, protocol};
use planforge_types::{FailureClass, Sku, Toolchain, preparation::PREPARER};

/// Versions on which what is prepared rests; a host without the device has none of the others.
const DECISIVE: [&str; 1] = ["cuda"];
/// In the place of a SKU, where a job runs on whatever its agent has.
pub(super) const ANYWHERE: &str = "anywhere";

impl Job {
    /// Whether it makes things ready for a device that is elsewhere.
    pub fn prepares(&self) -> bool {
        self.kind == JobKind::Compile && !self.sku.is_cpu()
    }

    /// Whether its model is still to be prepared.
    pub fn is_open(&self) -> bool {
        self.from.as_ref().is_some_and(|from| from.document.is_none())
    }

    /// Whether it is of one kind of device, and so told of among what stands there.
    pub fn is_of_a_device(&self) -> bool {
        self.sku.as_str() != ANYWHERE
    }

    /// Whether it keeps all of its host's cores busy, and measures nothing.
    pub fn fills_its_host(&self) -> bool {
        matches!(self.kind, JobKind::Compile | JobKind::Prepare)
    }

    /// Whether an engine comes of it.
    pub fn makes_engine(&self) -> bool {
        self.kind == JobKind::Build || self.kind == JobKind::Compile && self.sku.is_cpu()
    }
}

impl Target {
    /// Where things are prepared for engines of this toolchain, or models are.
    pub fn preparing(toolchain: &Toolchain) -> Option<Self> {
        if toolchain.backend == PREPARER {
            return Some(Self { sku: ANYWHERE.parse::<Sku>().ok()?, toolchain: toolchain.clone() });
        }
        let known = |name: &&str| Some(((*name).to_owned(), toolchain.components.get(*name)?.clone()));
        let components = DECISIVE.iter().map(known).collect::<Option<_>>()?;
        let toolchain =
            Toolchain { backend: toolchain.backend.clone(), version: toolchain.version.clone(), components };
        Some(Self { sku: ANYWHERE.parse::<Sku>().ok()?, toolchain })
    }

    /// Whether it names a kind of device.
    pub fn is_a_device(&self) -> bool {
        self.sku.as_str() != ANYWHERE
    }
}

impl State {
    /// Devices of an agent that are held, with their jobs.
    fn busy_of<'a>(&'a self, agent: &'a str) -> impl Iterator<Item = (&'a DeviceKey, &'a JobId)> {
        let first = DeviceKey { agent: agent.to_owned(), device: String::new() };
        self.busy.range(first..).take_while(move |(device, _)| device.agent == agent)
    }

    /// Whether a job may run on a device beside what else its agent holds.
    pub(super) fn may_be_beside(&self, id: &JobId, device: &DeviceKey) -> bool {
        let Some(job) = self.jobs.get(id) else { return false };
        let mut others = self.busy_of(&device.agent).filter(|(other, _)| *other != device);
        match job.fills_its_host() {
            true => self.knows_compile(&device.agent) && others.next().is_none(),
            false => !others.any(|(_, other)| self.jobs.get(other).is_some_and(|job| job.fills_its_host())),
        }
    }

    /// Why a job is given to none of the devices that are free for it; `None` where one of them may have it.
    pub(super) fn kept_apart(&self, job: &Job, target: &Target) -> Option<&'static str> {
        let free: Vec<&DeviceKey> = self.idle.get(target)?.iter().filter(|device| self.serves(job, device)).collect();
        if free.is_empty() || free.iter().any(|device| self.may_be_beside(&job.id, device)) {
            return None;
        }
        Some(match job.kind {
            JobKind::Compile if !free.iter().any(|device| self.knows_compile(&device.agent)) => {
                "waits for an agent of this release: those that could run it know no compile jobs yet"
            }
            JobKind::Compile => {
                "waits until nothing else runs on a host that can compile it: what is measured there would show it"
            }
            JobKind::Prepare => {
                "waits until nothing else runs on a host that can prepare it: what is measured there would show it"
            }
            _ => {
                "waits for a compile job, or one that prepares a model, on its host to end: nothing is measured beside one"
            }
        })
    }

    /// What of an agent's jobs may not run side by side, in words.
    pub(super) fn crowded(&self, agent: &str) -> Option<String> {
        let held: Vec<JobId> = self.busy_of(agent).map(|(_, id)| id.clone()).collect();
        let compiles = |id: &&JobId| self.jobs.get(*id).is_some_and(|job| job.fills_its_host());
        let compile = held.iter().find(compiles).filter(|_| held.len() > 1)?;
        Some(format!("agent {agent} holds {} at once, of which {compile} compiles or prepares", named(&held)))
    }

    /// An agent of before protocol 3 would refuse the kind.
    fn knows_compile(&self, agent: &str) -> bool {
        self.agents.get(agent).is_some_and(|entry| entry.record.protocol >= protocol::COMPILES_SINCE)
    }

    /// A device of the agent is held no more: others of its host may run now what they could not beside that.
    pub(super) fn look_again_at(&mut self, agent: &str) {
        let Some(entry) = self.agents.get(agent) else { return };
        let keys = entry.record.devices.iter();
        let keys = keys.map(|device| DeviceKey { agent: agent.to_owned(), device: device.id.clone() });
        let idle: Vec<DeviceKey> = keys.filter(|key| self.is_idle(key)).collect();
        self.dirty_devices.extend(idle);
    }

    /// The refusal of a compile job that nobody known could run.
    pub(super) fn nobody_prepares(&self, sku: &Sku, toolchain: &Toolchain) -> Option<ApiError> {
        let target = Target::preparing(toolchain);
        if sku.is_cpu() || target.is_some_and(|target| self.offers.contains_key(&target)) {
            return None;
        }
        let message = format!("no known agent can compile with {toolchain} for {sku} without the device");
        let hint = "native engines for NVIDIA devices are compiled ahead on any host whose agent finds NVRTC of the same CUDA \
                    version ('planforge devices' shows who prepares what); other toolchains need the device: submit without \
                    compiling ahead";
        Some(ApiError::new(ErrorCode::Refused, message).with_hint(hint))
    }

    /// A device for which a job is to prepare, as its agent last described it.
    pub(super) fn described(&self, sku: &Sku, toolchain: &Toolchain) -> Option<String> {
        let target = Target { sku: sku.clone(), toolchain: toolchain.clone() };
        let mut devices = self.offers.get(&target).into_iter().flatten();
        devices.find_map(|key| self.device(key)).map(|device| device.fingerprint.clone())
    }

    /// Takes what a job prepared.
    pub(super) fn take_prepared(
        &mut self,
        id: &JobId,
        agent: &str,
        finished: FinishedIn,
        now: Now,
        effects: &mut Effects,
    ) {
        let FinishedIn { prepared, log, .. } = finished;
        let Some(prepared) = prepared else {
            let message = format!("agent {agent} reported success without what it was to prepare");
            let failure = Failure::new(FailureClass::Infrastructure, message, "");
            self.close_attempt(id, Outcome::Failed, Some(failure.clone()), log, now, effects);
            return self.retry(id, &failure, now, effects);
        };
        self.close_attempt(id, Outcome::Succeeded, None, log, now, effects);
        if let Some(job) = self.jobs.get(id).cloned() {
            self.learn_duration(&job);
        }
        if let Some(job) = self.job_mut(id) {
            job.prepared = Some(prepared);
            job.progress = 1.0;
        }
        let detail = format!("prepared {} bytes for builds that need it", prepared.size_bytes);
        self.end(id, JobState::Succeeded, None, agent, detail, now, effects);
    }

    /// Gives a build what a job that it needed prepared for its like.
    pub(super) fn give_prepared(&mut self, id: &JobId, prepared: &Prepared) {
        if let Some(job) = self.job_mut(id)
            && job.makes_engine()
            && !job.is_open()
            && (&job.sku, &job.model.digest) == (&prepared.sku, &prepared.model)
        {
            job.prepared = Some(prepared.files);
        }
    }
}

/// What a compile job left for builds of its model on its SKU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    pub sku: Sku,
    pub model: planforge_types::Digest,
    pub files: CacheRef,
}

impl Prepared {
    /// `None` where the job prepared nothing.
    pub fn of(job: &Job) -> Option<Self> {
        let files = job.prepared.filter(|_| job.prepares() && job.state == JobState::Succeeded)?;
        Some(Self { sku: job.sku.clone(), model: job.model.digest, files })
    }
}
