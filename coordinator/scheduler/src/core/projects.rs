//! Shares and limits of projects: who may take how much of the queue.
//!
//! Two limits hold for a project beside those that somebody set. The farm has room for so many live jobs. And of the
//! places that are free a project leaves some: it may have at most [`PLACES_PER_FREE_PLACE`] times as many live jobs as
//! there are free places, times its share. Alone it gets four fifths of the farm so, two get four ninths each, and
//! whoever comes next always finds room, whatever the others did before.

use super::{effects::Effects, model::Change, state::State};
use planforge_proto::{ApiError, ErrorCode};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Live jobs that a project of share 1 may have for each place that is free.
const PLACES_PER_FREE_PLACE: u64 = 4;
/// Largest share.
pub const SHARE_MAX: u32 = 1_000;

/// What a project may take of the farm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProjectRecord {
    pub name: String,
    /// Weight in the queue and in the farm's places; 1 is usual.
    pub share: u32,
    /// Jobs that may wait or run at once; `None`: what its share gives. Set by the farm's administrators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_jobs: Option<u64>,
    /// Bytes that it may store; `None`: what the disk has. Set by the farm's administrators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_stored_bytes: Option<u64>,
    /// As `max_jobs`, set by the project's own administrators: the smaller counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_max_jobs: Option<u64>,
    /// As `max_stored_bytes`, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_max_stored_bytes: Option<u64>,
    pub changed_by: String,
    pub changed_ms: u64,
}

impl ProjectRecord {
    /// One that nobody set anything for.
    pub fn usual(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            share: 1,
            max_jobs: None,
            max_stored_bytes: None,
            own_max_jobs: None,
            own_max_stored_bytes: None,
            changed_by: String::new(),
            changed_ms: 0,
        }
    }

    /// The smaller of both limits.
    pub fn jobs_quota(&self) -> Option<u64> {
        smaller(self.max_jobs, self.own_max_jobs)
    }

    /// The smaller of both limits.
    pub fn bytes_quota(&self) -> Option<u64> {
        smaller(self.max_stored_bytes, self.own_max_stored_bytes)
    }
}

fn smaller(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

/// A project as it stands.
#[derive(Clone, Debug)]
pub struct ProjectView {
    pub record: ProjectRecord,
    pub live_jobs: u64,
    pub running_jobs: u64,
    /// Live jobs that it could have now.
    pub jobs_limit: u64,
}

impl State {
    /// Counts a live job for the project that pays for it, or one that is gone.
    pub(super) fn charge(&mut self, project: &str, jobs: isize) {
        let count = self.live_of.entry(project.to_owned()).or_default();
        *count = count.saturating_add_signed(jobs);
        if *count == 0 {
            self.live_of.remove(project);
        }
    }

    pub(super) fn set_project(&mut self, record: ProjectRecord, effects: &mut Effects) {
        self.queue.weigh(&record.name, record.share);
        effects.changes.push(Change::Project(record.clone()));
        self.projects.insert(record.name.clone(), record);
    }

    /// Limits that hold for a project.
    pub fn project(&self, name: &str) -> ProjectRecord {
        self.projects.get(name).cloned().unwrap_or_else(|| ProjectRecord::usual(name))
    }

    /// Projects that have limits or live jobs.
    pub fn projects(&self) -> BTreeMap<String, ProjectView> {
        let names = self.projects.keys().chain(self.live_of.keys());
        names.map(|name| (name.clone(), self.project_view(name))).collect()
    }

    /// Bytes that projects may store, of those that have a quota.
    pub fn bytes_quotas(&self) -> BTreeMap<String, u64> {
        self.projects.values().filter_map(|record| Some((record.name.clone(), record.bytes_quota()?))).collect()
    }

    pub fn project_view(&self, name: &str) -> ProjectView {
        let record = self.project(name);
        let live_jobs = self.live_of.get(name).copied().unwrap_or_default() as u64;
        let jobs_limit = self.share_of_places(&record, live_jobs).min(record.jobs_quota().unwrap_or(u64::MAX));
        ProjectView { live_jobs, running_jobs: self.queue.running(name).into(), jobs_limit, record }
    }

    /// Jobs that may wait or run at once in the whole farm.
    pub fn max_live_jobs(&self) -> usize {
        self.config.max_live_jobs
    }

    /// The most live jobs that the project can come to, if nobody else takes a place: it may have
    /// `PLACES_PER_FREE_PLACE` times its share for each place that is free then.
    fn share_of_places(&self, record: &ProjectRecord, live_jobs: u64) -> u64 {
        let places = (self.config.max_live_jobs as u64).saturating_sub(self.jobs.len() as u64 - live_jobs);
        let per_free = PLACES_PER_FREE_PLACE * u64::from(record.share);
        // The largest n with n <= per_free * (places - n).
        places.saturating_mul(per_free) / (per_free + 1)
    }

    /// Whether a project may have `runs` live jobs more.
    ///
    /// # Errors
    /// The limit that is in the way, and whose it is.
    pub(super) fn admission(&self, project: &str, runs: usize) -> Result<(), ApiError> {
        if runs == 0 {
            return Ok(());
        }
        let full = |message: String, hint: &str| {
            Err(ApiError::new(ErrorCode::ResourceExhausted, message).with_hint(hint.to_owned()))
        };
        let (farm, most) = (self.jobs.len(), self.config.max_live_jobs);
        let record = self.project(project);
        let live = self.live_of.get(project).copied().unwrap_or_default() as u64;
        let wanted = live + runs as u64;
        if let Some(quota) = record.jobs_quota().filter(|quota| wanted > *quota) {
            let message = format!(
                "project {project} has {live} jobs that wait or run, and this request needs {runs} more than its quota of \
                 {quota} allows"
            );
            return full(
                message,
                "try again when some have ended, cancel some, or have an administrator raise the quota (planforge \
                 projects set)",
            );
        }
        if farm + runs > most {
            let message = format!(
                "the farm's queue is full: {farm} jobs wait or run, and this request needs {runs} more than the farm's \
                 limit of {most} allows"
            );
            return full(message, "try again when some have ended; --max-jobs of the coordinator raises the limit");
        }
        let part = self.share_of_places(&record, live);
        if wanted > part {
            let message = format!(
                "the queue is full for project {project}: it has {live} jobs that wait or run, this request needs {runs} \
                 more, and its share of the farm's {most} places is {part} now ({} are taken by others)",
                farm as u64 - live
            );
            return full(
                message,
                "try again when some have ended; an administrator raises its share with: planforge projects set",
            );
        }
        Ok(())
    }
}
