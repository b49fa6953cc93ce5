//! Timing and tactic caches: which one a build begins with, and whose result is kept.
//!
//! A cache belongs to one scope (`DeviceFingerprint::tuning_scope`): what one kind of device learnt never reaches
//! another kind. The coordinator works the scope out itself, from the device that holds the lease and the toolchain of
//! the job; what an agent claims only has to agree. A build's result is published in the transaction that takes the
//! build, and only when the cache it grew from is still the newest. Here caches are never merged: of two builds at once
//! the later one's is kept beside the newest, and whoever builds next in the scope is given both and joins them (an agent
//! joins those of its own host before). What its backend cannot join goes then, which costs time and nothing else.

use super::{
    effects::Effects,
    model::{CacheBeside, CacheRecord, Change, Job, Outcome},
    queue::DeviceKey,
    state::{CacheUpdate, Now, State},
};
use planforge_types::{Digest, fingerprint::DeviceFingerprint};

/// Caches that are kept beside the newest of a scope: about as many as builds may end at once.
const BESIDE_MAX: usize = 16;

impl State {
    /// Scope of what a build on the device learns, and the device's own name for itself. `None` for a device that does
    /// not describe itself in a way we understand.
    fn scope_of(&self, device: &DeviceKey, job: &Job) -> Option<(Digest, String)> {
        let device = self.device(device)?;
        let fingerprint: DeviceFingerprint = serde_json::from_str(&device.fingerprint).ok()?;
        let scope = fingerprint.tuning_scope(&job.sku, job.toolchain.as_ref()?, device.simulated);
        Some((scope, fingerprint.name))
    }

    /// What an attempt that builds begins with, and whether it must begin from nothing.
    pub(super) fn cache_for(&self, device: &DeviceKey, job: &Job) -> (Option<Box<CacheRecord>>, bool) {
        if !job.makes_engine() || job.only_measures() {
            return (None, false);
        }
        let newest = self.scope_of(device, job).and_then(|(scope, _)| self.caches.get(&scope));
        let suspected = job.attempts.iter().any(|attempt| attempt.outcome == Outcome::Failed && attempt.suspects_cache);
        // What was timed beside something else would be chosen again without being timed.
        (newest.cloned().map(Box::new), suspected || job.replaces.is_some())
    }

    /// Publishes what a build learnt. Returns in words what becomes of it when somebody else was first, or why it is not
    /// kept.
    pub(super) fn publish_cache(
        &mut self,
        job: &Job,
        device: &DeviceKey,
        update: CacheUpdate,
        now: Now,
        effects: &mut Effects,
    ) -> Option<String> {
        let (Some((scope, device_name)), Some(toolchain)) = (self.scope_of(device, job), job.toolchain.clone()) else {
            return Some("the timing cache is not kept: its device cannot be told apart from others".into());
        };
        if scope != update.scope {
            return Some("the timing cache is not kept: it is not of this device and toolchain".into());
        }
        let agent = job.attempts.last().map(|attempt| attempt.agent_name.clone()).unwrap_or_default();
        let newest = self.caches.get(&scope);
        if newest.and_then(|newest| newest.cache).map(|cache| cache.digest) != update.previous {
            let beside = CacheBeside { cache: update.cache, job: job.id.clone(), agent };
            return self.keep_beside(scope, beside, effects);
        }
        let mut beside = newest.map(|newest| newest.beside.clone()).unwrap_or_default();
        beside.retain(|beside| !update.beside.contains(&beside.cache.digest) && beside.cache != update.cache);
        let record = CacheRecord {
            scope,
            generation: newest.map_or(0, |newest| newest.generation) + 1,
            cache: Some(update.cache),
            previous: update.previous,
            sku: job.sku.clone(),
            device_name,
            toolchain,
            job: job.id.clone(),
            attempt: job.attempt(),
            agent,
            device: device.device.clone(),
            published_ms: now.wall_ms,
            beside,
        };
        effects.changes.push(Change::Cache(Box::new(record.clone())));
        self.caches.insert(scope, record);
        None
    }

    /// Keeps what a build learnt that did not begin with the newest. Returns why not, or what is to become of it.
    fn keep_beside(&mut self, scope: Digest, beside: CacheBeside, effects: &mut Effects) -> Option<String> {
        let newest = self.caches.get_mut(&scope).and_then(|record| record.cache.map(|cache| (record, cache)));
        let Some((record, cache)) = newest else {
            return Some("the timing cache it grew from was dropped meanwhile; the result is not kept".into());
        };
        if cache == beside.cache || record.beside.iter().any(|known| known.cache == beside.cache) {
            return None;
        }
        let told = format!("job {} published a timing cache for this kind of device meanwhile", record.job);
        if record.beside.len() >= BESIDE_MAX {
            return Some(format!("{told}, and {BESIDE_MAX} wait to be joined with it: this build's is not kept"));
        }
        record.beside.push(beside);
        effects.changes.push(Change::Cache(Box::new(record.clone())));
        Some(format!("{told}: the next build joins this one's with it"))
    }

    /// Forgets the cache of a scope, and keeps the fact: copies that agents still have count for nothing.
    pub(super) fn drop_cache(&mut self, scope: Digest, now: Now, effects: &mut Effects) {
        let Some(record) = self.caches.get_mut(&scope).filter(|record| record.cache.is_some()) else { return };
        record.previous = record.cache.take().map(|cache| cache.digest);
        record.beside.clear();
        record.generation += 1;
        record.published_ms = now.wall_ms;
        effects.changes.push(Change::Cache(Box::new(record.clone())));
    }

    /// The newest cache of every scope, dropped ones too.
    pub fn caches(&self) -> impl Iterator<Item = &CacheRecord> {
        self.caches.values()
    }
}
