//! The order in which waiting jobs are served.
//!
//! Within a project: priority, which grows with waiting, then age. Both together are one number that never changes
//! while the job waits, because all jobs age alike. Between projects: the priority of the first job, which grows with
//! the time since the project was last served, then who runs least, then who was served longest ago. So a project that
//! floods the queue delays its own jobs, and a low priority is late but never starves.

use super::model::{Job, JobId};
use planforge_engine_core::identity::{Sku, Toolchain};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

/// Waiting this long counts as much as one step of priority.
pub(super) const AGEING_STEP_MS: u64 = 10 * 60 * 1_000;

/// What a job must run on: exactly this SKU with exactly this toolchain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    pub sku: Sku,
    pub toolchain: Toolchain,
}

impl Target {
    pub fn of(job: &Job) -> Option<Self> {
        Some(Self { sku: job.sku.clone(), toolchain: job.toolchain.clone()? })
    }
}

/// A device of an agent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DeviceKey {
    pub agent: String,
    pub device: String,
}

/// Serves smaller ranks first.
type Rank = (i64, JobId);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    target: Target,
    project: String,
    rank: i64,
    queued_ms: u64,
    priority: i32,
}

/// How much a project got.
#[derive(Clone, Debug, Default)]
struct Share {
    running: u32,
    last_served_ms: u64,
}

/// Waiting jobs by target and project.
#[derive(Debug, Default)]
pub(super) struct Queue {
    places: BTreeMap<JobId, Place>,
    targets: BTreeMap<Target, BTreeMap<String, BTreeSet<Rank>>>,
    shares: BTreeMap<String, Share>,
}

impl Queue {
    pub fn insert(&mut self, job: &Job, target: Target) {
        self.remove(job);
        let ageing = i64::from(job.priority()) * AGEING_STEP_MS as i64;
        let place = Place {
            target,
            project: job.project().to_owned(),
            rank: i64::try_from(job.created_ms).unwrap_or(i64::MAX).saturating_sub(ageing),
            queued_ms: job.queued_ms,
            priority: job.priority(),
        };
        let projects = self.targets.entry(place.target.clone()).or_default();
        projects.entry(place.project.clone()).or_default().insert((place.rank, job.id.clone()));
        self.places.insert(job.id.clone(), place);
    }

    pub fn remove(&mut self, job: &Job) {
        let Some(place) = self.places.remove(&job.id) else { return };
        let Some(projects) = self.targets.get_mut(&place.target) else { return };
        if let Some(ranks) = projects.get_mut(&place.project) {
            ranks.remove(&(place.rank, job.id.clone()));
            if ranks.is_empty() {
                projects.remove(&place.project);
            }
        }
        if projects.is_empty() {
            self.targets.remove(&place.target);
        }
    }

    pub fn contains(&self, id: &JobId) -> bool {
        self.places.contains_key(id)
    }

    /// Targets that somebody waits for.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        self.targets.keys()
    }

    pub fn waits_for(&self, target: &Target) -> bool {
        self.targets.contains_key(target)
    }

    /// Jobs that wait for `target`.
    pub fn jobs_of(&self, target: &Target) -> Vec<JobId> {
        let projects = self.targets.get(target).into_iter().flat_map(BTreeMap::values);
        projects.flatten().map(|(_, id)| id.clone()).collect()
    }

    /// How many jobs for the same target stand before `id` in its project's line.
    pub fn ahead_of(&self, id: &JobId) -> usize {
        let Some(place) = self.places.get(id) else { return 0 };
        let line = self.targets.get(&place.target).and_then(|projects| projects.get(&place.project));
        line.map_or(0, |ranks| ranks.range(..(place.rank, id.clone())).count())
    }

    /// The job that a device offering `targets` should run next. `may` says which jobs may be granted at all.
    pub fn pick<'a>(
        &self,
        targets: impl Iterator<Item = &'a Target>,
        now_wall_ms: u64,
        may: impl Fn(&JobId) -> bool,
    ) -> Option<JobId> {
        let mut best = None;
        for projects in targets.filter_map(|target| self.targets.get(target)) {
            for (project, ranks) in projects {
                let Some((rank, id)) = ranks.iter().find(|(_, id)| may(id)) else { continue };
                let Some(place) = self.places.get(id) else { continue };
                let share = self.shares.get(project).cloned().unwrap_or_default();
                let unserved_ms = now_wall_ms.saturating_sub(place.queued_ms.max(share.last_served_ms));
                let level = i64::from(place.priority) + (unserved_ms / AGEING_STEP_MS) as i64;
                let order = (Reverse(level), share.running, share.last_served_ms, *rank, id.clone());
                if best.as_ref().is_none_or(|known| order < *known) {
                    best = Some(order);
                }
            }
        }
        best.map(|(.., id)| id)
    }

    /// A lease was granted to a job of `project`.
    pub fn served(&mut self, project: &str, now_wall_ms: u64) {
        let share = self.shares.entry(project.to_owned()).or_default();
        share.running += 1;
        share.last_served_ms = now_wall_ms;
    }

    /// A lease of `project` ended.
    pub fn ended(&mut self, project: &str) {
        if let Some(share) = self.shares.get_mut(project) {
            share.running = share.running.saturating_sub(1);
        }
    }
}
