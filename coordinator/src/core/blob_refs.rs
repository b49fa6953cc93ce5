//! Which blobs records name: what is a project's is found by it.

use super::{
    model::{CacheRecord, Engine, Job, JobState, Report},
    queue::DeviceKey,
    state::State,
};
use planforge_types::{Digest, EngineKey};
use std::collections::BTreeSet;

/// To whom a blob belongs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlobHolder {
    /// It uploaded the bytes, or its jobs name them.
    Project(String),
    /// They are of its engine: of whoever may see that.
    Engine(EngineKey),
}

impl Job {
    /// Blobs that the job was given, or that it left, with their sizes where its record has them. Plugins are the whole
    /// farm's: an administrator allowed them.
    pub fn blobs(&self) -> Vec<(Digest, u64)> {
        let mut named: Vec<(Digest, u64)> =
            self.model.files.iter().map(|file| (file.digest, file.size_bytes)).collect();
        let given = [self.spec.calibration, self.eval, self.measure.inputs, self.report];
        named.extend(given.into_iter().flatten().map(|digest| (digest, 0)));
        if let Some(plan) = &self.plan {
            named.push((plan.digest, plan.size_bytes));
            named.extend(plan.card.map(|card| (card, 0)));
        }
        named.extend(self.attempts.iter().filter_map(|attempt| attempt.log).map(|log| (log, 0)));
        named
    }

    /// Projects that asked for it.
    pub fn projects(&self) -> BTreeSet<&str> {
        self.wants.iter().map(|want| want.project.as_str()).collect()
    }

    /// Whether a change of the job may bring blobs that its record did not name before, but for a project that joins it.
    pub(crate) fn may_name_more(&self) -> bool {
        self.plan.is_some() || self.state.is_terminal() || self.state == JobState::Queued
    }
}

impl Engine {
    /// Blobs that are of the engine.
    pub fn blobs(&self) -> impl Iterator<Item = (Digest, u64)> + use<> {
        [Some((self.plan.digest, self.plan.size_bytes)), self.plan.card.map(|card| (card, 0))].into_iter().flatten()
    }
}

impl Report {
    /// The report's document and what the measurement left beside it.
    pub fn blobs(&self) -> impl Iterator<Item = (Digest, u64)> + '_ {
        let document = (self.digest, self.document.len() as u64);
        std::iter::once(document).chain(self.artifacts.iter().map(|artifact| (artifact.digest, artifact.size_bytes)))
    }
}

impl State {
    /// Whether a blob is part of what an agent holds a lease of, or a timing cache that its builds begin with.
    pub fn lends(&self, agent: &str, digest: Digest) -> bool {
        let first = DeviceKey { agent: agent.to_owned(), device: String::new() };
        let held = self.busy.range(first..).take_while(|(device, _)| device.agent == agent);
        let mut jobs = held.filter_map(|(_, id)| self.jobs.get(id));
        jobs.any(|job| {
            let named = || job.blobs().iter().any(|(blob, _)| *blob == digest) || job.spec.plugins.contains(&digest);
            // A lease may be older than the newest cache: the one before it may still be on its way.
            let cached = |cache: &CacheRecord| {
                Some(&cache.toolchain) == job.toolchain.as_ref()
                    && cache.sku == job.sku
                    && (cache.cache.is_some_and(|cache| cache.digest == digest) || cache.previous == Some(digest))
            };
            named() || self.caches.values().any(cached)
        })
    }
}
