//! Taking away what a policy let go, as long as nobody needs it now.

use super::{
    blob_refs::{BlobHolder, Held, Hold, Tenure},
    effects::Effects,
    flight::Flight,
    model::{CacheRecord, Change, Job},
    state::{Now, State},
};
use planforge_types::{Digest, EngineKey};
use std::collections::BTreeSet;

/// What is to go, as it was found a moment ago.
#[derive(Clone, Debug, Default)]
pub struct Forget {
    /// Ended ones.
    pub jobs: Vec<Job>,
    /// Builds by key and plan.
    pub builds: Vec<(EngineKey, Digest)>,
    pub requests: Vec<String>,
    pub held: Vec<Held>,
    /// What was held anew since stays.
    pub held_before_ms: u64,
    /// Events up to that number.
    pub events_until: u64,
    pub reports: Vec<Digest>,
    /// A build that was used since stays.
    pub unused_since_ms: u64,
}

impl State {
    pub(super) fn forget(&mut self, forget: Forget, now: Now, effects: &mut Effects) {
        // A job that lives was never found as one that ended; ids are given once.
        let ended = forget.jobs.into_iter().filter(|job| job.state.is_terminal() && !self.jobs.contains_key(&job.id));
        let ended: Vec<Job> = ended.collect();
        // What it prepared goes with it.
        for key in ended.iter().filter(|job| job.made.is_some()).filter_map(|job| job.key) {
            self.known.preparation_forgotten(key);
        }
        effects.changes.extend(ended.into_iter().map(|job| Change::ForgetJob(Box::new(job))));
        effects.changes.extend(forget.requests.into_iter().map(Change::ForgetRequest));
        let given = if forget.held.is_empty() { BTreeSet::new() } else { self.given_to_jobs() };
        let before_ms = forget.held_before_ms;
        effects.changes.extend(forget.held.into_iter().map(|held| match held.tenure {
            // A live job names it: it is as old as now.
            Tenure::Given if given.contains(&held.digest) => {
                let hold = Hold { tenure: Tenure::Given, since_ms: now.wall_ms, ..Hold::default() };
                Change::Blob { digest: held.digest, holder: BlobHolder::Project(held.project), hold }
            }
            _ => Change::ForgetHeld { held, before_ms },
        }));
        let until = forget.events_until;
        effects.changes.extend((until > 0).then_some(Change::EventsGone { until }));
        effects.changes.extend(forget.reports.into_iter().map(Change::ForgetReport));
        let measured = self.flights.keys().filter_map(|flight| match flight {
            Flight::Measure { plan, .. } => Some(*plan),
            Flight::Build(_) | Flight::Ahead(_) | Flight::Prepare(_) => None,
        });
        // Plans that live jobs measure, or that they are to take the place of.
        let needed: BTreeSet<Digest> = if forget.builds.is_empty() { BTreeSet::new() } else { measured.collect() };
        for (key, plan) in forget.builds {
            let is_needed = needed.contains(&plan)
                || self.flights.contains_key(&Flight::Build(key))
                || self.known.used_since(&key, forget.unused_since_ms);
            if !is_needed {
                self.known.forgotten(key);
                effects.changes.push(Change::ForgetBuild { key, plan });
            }
        }
    }

    /// Somebody fetched these engines, or looked at them to do so.
    pub(super) fn used(&mut self, keys: Vec<EngineKey>, now: Now, effects: &mut Effects) {
        for key in keys {
            self.use_engine(key, now, effects);
        }
    }

    pub(super) fn use_engine(&mut self, key: EngineKey, now: Now, effects: &mut Effects) {
        if self.known.used(key, now.wall_ms) {
            effects.changes.push(Change::EngineUsed { key, at_ms: now.wall_ms });
        }
    }

    /// Files that were given beside the models of jobs that live.
    pub fn given_to_jobs(&self) -> BTreeSet<Digest> {
        self.jobs.values().flat_map(|job| job.given()).collect()
    }

    /// Blobs that are needed although no job and no engine names them: timing caches.
    pub fn named_beside_jobs(&self) -> BTreeSet<Digest> {
        let caches = self.caches.values().flat_map(CacheRecord::blobs);
        caches.chain(self.config.plugins.iter().copied()).collect()
    }
}
