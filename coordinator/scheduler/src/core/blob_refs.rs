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

/// How long a project holds a blob.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tenure {
    /// As long as the records that name it.
    #[default]
    Record,
    /// It was given beside a model: as long as jobs that name it.
    Given,
    /// It was sent, and nothing names it yet.
    Sent,
    Log,
}

/// What a holder has of a blob.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hold {
    /// Counts for a project; 0 where nobody said.
    pub size_bytes: u64,
    pub tenure: Tenure,
    /// When it was sent or last named, where it has a tenure of its own.
    pub since_ms: u64,
}

impl Hold {
    pub fn of_record(size_bytes: u64) -> Self {
        Self { size_bytes, ..Self::default() }
    }

    /// The same blob named once more: the longer tenure counts, and the later time.
    pub fn and(self, other: Self) -> Self {
        Self {
            size_bytes: self.size_bytes.max(other.size_bytes),
            tenure: self.tenure.min(other.tenure),
            since_ms: self.since_ms.max(other.since_ms),
        }
    }
}

/// A blob that a project holds by a tenure which may end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub digest: Digest,
    pub project: String,
    pub tenure: Tenure,
}

impl Job {
    /// Blobs that the job was given, or that it left, with their sizes where its record has them. Plugins are the whole
    /// farm's: an administrator allowed them.
    pub fn blobs(&self) -> Vec<(Digest, Hold)> {
        let files = self.model.files.iter().map(|file| (file.digest, Hold::of_record(file.size_bytes)));
        let mut named: Vec<(Digest, Hold)> = files.collect();
        let since_ms = self.created_ms.max(self.ended_ms);
        let given = Hold { tenure: Tenure::Given, since_ms, ..Hold::default() };
        named.extend(self.given().map(|digest| (digest, given)));
        named.extend(self.report.map(|report| (report, Hold::default())));
        named.extend(self.prepared.map(|prepared| (prepared.digest, Hold::of_record(prepared.size_bytes))));
        if let Some(made) = &self.made {
            named.extend(made.model.files.iter().map(|file| (file.digest, Hold::of_record(file.size_bytes))));
            named.push((made.document, Hold::default()));
        }
        named.extend(self.from.as_ref().and_then(|from| from.document).map(|document| (document, Hold::default())));
        if let Some(plan) = &self.plan {
            named.push((plan.digest, Hold::of_record(plan.size_bytes)));
            named.extend(plan.card.map(|card| (card, Hold::default())));
        }
        named.extend(self.attempts.iter().filter_map(|attempt| {
            Some((attempt.log?, Hold { tenure: Tenure::Log, since_ms: attempt.ended_ms, ..Hold::default() }))
        }));
        named
    }

    /// Files that it was given beside the model.
    pub fn given(&self) -> impl Iterator<Item = Digest> {
        let prepare = self.prepare.iter().flat_map(|ask| ask.files());
        [self.spec.calibration, self.eval].into_iter().flatten().chain(self.measure.files()).chain(prepare)
    }

    /// Projects that asked for it.
    pub fn projects(&self) -> BTreeSet<&str> {
        self.wants.iter().map(|want| want.project.as_str()).collect()
    }

    /// Whether a change of the job may bring blobs that its record did not name before, but for a project that joins it.
    pub fn may_name_more(&self) -> bool {
        self.plan.is_some() || self.state.is_terminal() || self.state == JobState::Queued
    }
}

impl Engine {
    /// Blobs that are of the engine.
    pub fn blobs(&self) -> impl Iterator<Item = (Digest, Hold)> + use<> {
        let plan = (self.plan.digest, Hold::of_record(self.plan.size_bytes));
        std::iter::once(plan).chain(self.plan.card.map(|card| (card, Hold::default())))
    }
}

impl Report {
    /// The report's document and what the measurement left beside it.
    pub fn blobs(&self) -> impl Iterator<Item = (Digest, Hold)> + '_ {
        let document = (self.digest, Hold::of_record(self.document.len() as u64));
        let artifacts = self.artifacts.iter().map(|file| (file.digest, Hold::of_record(file.size_bytes)));
        std::iter::once(document).chain(artifacts)
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
            let cached = |cache: &CacheRecord| {
                Some(&cache.toolchain) == job.toolchain.as_ref()
                    && cache.sku == job.sku
                    && cache.blobs().any(|blob| blob == digest)
            };
            named() || self.caches.values().any(cached)
        })
    }
}
