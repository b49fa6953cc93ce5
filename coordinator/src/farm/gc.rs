//! Taking away what nobody needs any more, as the policy says (`planforge-retention`), beside the farm's work.
//!
//! A collection goes in small steps, each safe by itself:
//!
//! 1. **Mark**: ended jobs and old builds are read in small pieces, and the policy says which go.
//! 2. **Forget**: their rows go, a piece a transaction, through the leader: what a live job needs, or what somebody used
//!    meanwhile, stays. A transaction takes a record with everything that is only of it, or nothing.
//! 3. **Sweep**: bytes that no row names go, folder by folder, unless they were stored or announced within the grace
//!    (`coordinator/blobs/src/local/sweep.rs`).
//!
//! A crash between two steps leaves bytes without a name at worst; the next collection sweeps them. A dry run marks, and
//! sweeps nothing.

use super::{Farm, leader::Message, tokens::admin};
use crate::{
    auth::{Actor, Role},
    core::{AuditKind, Forget, Input, Tenure},
    store::{BuildName, EngineFilter},
};
use planforge_proto::{ApiError, v1};
use planforge_retention::{Build, Policy, Weighed, Why, before, builds_before, jobs_before};
use planforge_types::{Digest, EngineKey};
use std::{
    collections::BTreeMap,
    sync::PoisonError,
    time::{Duration, SystemTime},
};
use tokio::time::Instant;

/// Records of one transaction, at least and at most: as many as are gone within [`COMMIT_MAX`].
const AT_ONCE_MIN: usize = 4;
const AT_ONCE_MAX: usize = 64;
/// How long agents and callers may wait for one transaction.
const COMMIT_MAX: Duration = Duration::from_millis(3);
/// A collection rests for so many times as long as its last transaction took, so that most of what comes meets none.
const REST: u32 = 6;
/// Builds that are weighed against each other at once.
const WEIGHED_AT_ONCE: usize = 2_000;
/// Events of one transaction: small rows without anything beside them.
const EVENTS_AT_ONCE: usize = 1_000;
/// Between two transactions, so that those of agents and callers come in between.
const PAUSE: Duration = Duration::from_millis(20);
/// Downloads that are remembered, so that one of many pieces is noted once, and for how long.
const DOWNLOADS_KEPT: usize = 10_000;
const DOWNLOAD_NOTED_EVERY_MS: u64 = 10 * 60 * 1_000;
/// Engines that a reply names.
const NAMED_MAX: usize = 1_000;

/// Where a collection is.
#[derive(Debug)]
enum Stage {
    Jobs,
    Requests,
    Events,
    /// Rows that hold blobs by that tenure.
    Held(Tenure),
    /// Behind that measurement.
    Reports(Option<(u64, Digest)>),
    /// Behind that build; first what goes by age and quota, then what goes to make room.
    Builds(Pass, Option<(u64, BuildName)>),
    /// Builds that were weighed and go; what comes after them.
    Leaving(Vec<(Build<BuildName>, Why)>, Box<Stage>),
    Sweep(u16),
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    AgeAndQuota,
    Room,
}

/// One collection; see [`Collection::step`].
#[derive(Debug)]
pub struct Collection {
    farm: Farm,
    policy: Policy,
    dry_run: bool,
    now_ms: u64,
    stage: Stage,
    /// Records of the next transaction.
    at_once: usize,
    weighed: Weighed<BuildName>,
    told: v1::CollectGarbageReply,
}

impl Farm {
    /// Takes away what the policy lets go; tells what. Needs role admin.
    ///
    /// # Errors
    /// Without the role, or when the store or the disk refuses.
    pub async fn collect_garbage(
        &self,
        actor: &Actor,
        request: v1::CollectGarbageRequest,
    ) -> Result<v1::CollectGarbageReply, ApiError> {
        let what = if request.dry_run { "dry run" } else { "collection" };
        let collected = async {
            admin(actor)?;
            let mut collection = self.collection(self.config().retention.clone(), request.dry_run).await?;
            while collection.step().await? {}
            Ok(collection.told)
        };
        self.audited(actor, AuditKind::Admin, "gc", what, collected).await
    }

    /// What the farm keeps.
    pub fn policy(&self) -> &Policy {
        &self.config().retention
    }

    /// Notes that somebody fetches an engine. A farm that takes no writes now forgets it.
    pub(super) fn note_use(&self, key: EngineKey) {
        let _ = self.try_tell(Message::Input { input: Input::Used(vec![key]), answer: None });
    }

    /// Notes that somebody downloads a blob; where it is a plan, its engine is used.
    pub fn note_download(&self, actor: &Actor, digest: Digest) {
        let now_ms = self.clock().mono_ms();
        let mut known = self.inner.downloads.lock().unwrap_or_else(PoisonError::into_inner);
        let lately = known.get(&digest).is_some_and(|at_ms| now_ms < at_ms + DOWNLOAD_NOTED_EVERY_MS);
        if actor.role == Role::Agent || lately {
            return;
        }
        if known.len() >= DOWNLOADS_KEPT {
            known.retain(|_, at_ms| now_ms < *at_ms + DOWNLOAD_NOTED_EVERY_MS);
        }
        if known.len() >= DOWNLOADS_KEPT {
            known.clear();
        }
        known.insert(digest, now_ms);
        drop(known);
        let farm = self.clone();
        tokio::spawn(async move {
            let filter = EngineFilter { plan: Some(digest), limit: 1, ..EngineFilter::default() };
            match farm.timed("engines", farm.store().engines(filter)).await {
                Ok(engines) => engines.first().into_iter().for_each(|engine| farm.note_use(engine.key)),
                Err(error) => tracing::debug!(%error, "a download could not be noted"),
            }
        });
    }

    /// A collection that has not begun. Quotas of projects are added to the policy.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn collection(&self, mut policy: Policy, dry_run: bool) -> Result<Collection, ApiError> {
        let quotas = self.ask(|state, _| state.bytes_quotas()).await?;
        policy.quotas_bytes.extend(quotas);
        let bytes = match policy.room_bytes {
            Some(_) => self.timed("plan_bytes", self.store().plan_bytes()).await?,
            None => 0,
        };
        let mut of_projects = BTreeMap::new();
        for project in policy.quotas_bytes.keys() {
            let bytes = self.timed("plan_bytes_of", self.store().plan_bytes_of(project)).await?;
            of_projects.insert(project.clone(), bytes);
        }
        let weighed = Weighed::new(&policy, bytes, &of_projects);
        let now_ms = self.clock().wall_ms();
        let told = v1::CollectGarbageReply { dry_run, ..Default::default() };
        let (farm, stage, at_once) = (self.clone(), Stage::Jobs, AT_ONCE_MIN);
        Ok(Collection { farm, policy, dry_run, now_ms, stage, at_once, weighed, told })
    }
}

/// How many records the next transaction takes, after one that took so long.
fn paced(at_once: usize, took: Duration) -> usize {
    let next = match took {
        _ if took > COMMIT_MAX => at_once / 2,
        _ if took < COMMIT_MAX / 2 => at_once + at_once / 4,
        _ => at_once,
    };
    next.clamp(AT_ONCE_MIN, AT_ONCE_MAX)
}

impl Collection {
    /// What is gone so far, or would be.
    pub fn told(&self) -> &v1::CollectGarbageReply {
        &self.told
    }

    /// One step; `false`: it was the last.
    ///
    /// # Errors
    /// When the store or the disk refuses. What was done before stays done.
    pub async fn step(&mut self) -> Result<bool, ApiError> {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Jobs => self.jobs().await?,
            Stage::Requests => self.requests().await?,
            Stage::Events => self.events().await?,
            Stage::Held(tenure) => self.held(tenure).await?,
            Stage::Reports(behind) => self.reports(behind).await?,
            Stage::Builds(pass, behind) => self.builds(pass, behind).await?,
            Stage::Leaving(gone, next) => self.leaving(gone, next).await?,
            Stage::Sweep(folder) => self.sweep(folder).await?,
            Stage::Done => Stage::Done,
        };
        Ok(!matches!(self.stage, Stage::Done))
    }

    async fn forget(&mut self, forget: Forget) -> Result<(), ApiError> {
        if !self.dry_run {
            let begin = Instant::now();
            self.farm.input(Input::Forget(Box::new(forget))).await?;
            let took = begin.elapsed();
            self.at_once = paced(self.at_once, took);
            tokio::time::sleep(PAUSE.max(took * REST)).await;
        }
        Ok(())
    }

    async fn jobs(&mut self) -> Result<Stage, ApiError> {
        let Some(before_ms) = jobs_before(&self.policy, self.now_ms) else { return Ok(Stage::Events) };
        let store = self.farm.store();
        if self.dry_run {
            self.told.jobs = self.farm.timed("old_jobs", store.count_jobs_ended_before(before_ms)).await?;
            return Ok(Stage::Events);
        }
        let jobs = self.farm.timed("old_jobs", store.jobs_ended_before(before_ms, self.at_once)).await?;
        let (count, asked) = (jobs.len(), self.at_once);
        self.told.jobs += count as u64;
        if count > 0 {
            self.forget(Forget { jobs, ..Forget::default() }).await?;
        }
        Ok(if count < asked { Stage::Requests } else { Stage::Jobs })
    }

    async fn requests(&mut self) -> Result<Stage, ApiError> {
        let Some(before_ms) = jobs_before(&self.policy, self.now_ms) else {
            return Ok(Stage::Events);
        };
        let found = self.farm.store().requests_without_jobs(before_ms, self.at_once);
        let requests = self.farm.timed("old_requests", found).await?;
        let (count, asked) = (requests.len(), self.at_once);
        if count > 0 {
            self.forget(Forget { requests, ..Forget::default() }).await?;
        }
        Ok(if count < asked { Stage::Events } else { Stage::Requests })
    }

    async fn events(&mut self) -> Result<Stage, ApiError> {
        let next = Stage::Held(Tenure::Log);
        let Some(before_ms) = before(&self.policy, self.policy.events_ms, self.now_ms) else { return Ok(next) };
        let asked = if self.dry_run { usize::MAX } else { EVENTS_AT_ONCE };
        let found = self.farm.store().events_before(before_ms, asked);
        let Some((count, events_until)) = self.farm.timed("old_events", found).await? else { return Ok(next) };
        self.told.events += count;
        self.forget(Forget { events_until, ..Forget::default() }).await?;
        Ok(if self.dry_run || count < EVENTS_AT_ONCE as u64 { next } else { Stage::Events })
    }

    async fn held(&mut self, tenure: Tenure) -> Result<Stage, ApiError> {
        let (age_ms, next) = match tenure {
            Tenure::Log => (self.policy.logs_ms, Stage::Held(Tenure::Sent)),
            Tenure::Sent => (self.policy.uploads_ms, Stage::Held(Tenure::Given)),
            // As long as the jobs that name it; those that live are asked for when it is forgotten.
            Tenure::Given => (self.policy.jobs_ms, Stage::Reports(None)),
            Tenure::Record => (None, Stage::Reports(None)),
        };
        let Some(held_before_ms) = before(&self.policy, age_ms, self.now_ms) else { return Ok(next) };
        if self.dry_run && tenure != Tenure::Given {
            let count = self.farm.store().count_held_since_before(tenure, held_before_ms);
            let count = self.farm.timed("old_holds", count).await?;
            *self.told_of(tenure) += count;
            return Ok(next);
        }
        // Of files that were given beside models there are few.
        let asked = if self.dry_run { usize::MAX } else { self.at_once };
        let found = self.farm.store().held_since_before(tenure, held_before_ms, asked);
        let held = self.farm.timed("old_holds", found).await?;
        let count = held.len();
        let needed = self.farm.ask(|state, _| state.given_to_jobs()).await?;
        let gone = held.iter().filter(|held| tenure != Tenure::Given || !needed.contains(&held.digest)).count();
        *self.told_of(tenure) += gone as u64;
        if count > 0 {
            self.forget(Forget { held, held_before_ms, ..Forget::default() }).await?;
        }
        Ok(if self.dry_run || count < asked { next } else { Stage::Held(tenure) })
    }

    /// What holds of a tenure are counted as.
    fn told_of(&mut self, tenure: Tenure) -> &mut u64 {
        if tenure == Tenure::Log { &mut self.told.logs } else { &mut self.told.files }
    }

    async fn reports(&mut self, behind: Option<(u64, Digest)>) -> Result<Stage, ApiError> {
        let next = Stage::Builds(Pass::AgeAndQuota, None);
        let Some(before_ms) = before(&self.policy, self.policy.reports_ms, self.now_ms) else { return Ok(next) };
        let asked = if self.dry_run { WEIGHED_AT_ONCE } else { self.at_once };
        let found = self.farm.store().older_reports(before_ms, behind, asked);
        let found = self.farm.timed("old_reports", found).await?;
        let last = found.last().copied().filter(|_| found.len() == asked);
        self.told.reports += found.len() as u64;
        if !found.is_empty() {
            let reports = found.into_iter().map(|(_, digest)| digest).collect();
            self.forget(Forget { reports, ..Forget::default() }).await?;
        }
        Ok(last.map_or(next, |last| Stage::Reports(Some(last))))
    }

    async fn builds(&mut self, pass: Pass, behind: Option<(u64, BuildName)>) -> Result<Stage, ApiError> {
        let Some(before_ms) = builds_before(&self.policy, self.now_ms) else { return Ok(Stage::Sweep(0)) };
        let old = self.farm.store().builds_unused_since(before_ms, behind, WEIGHED_AT_ONCE, self.now_ms);
        let old = self.farm.timed("old_builds", old).await?;
        let gone = match pass {
            Pass::AgeAndQuota => self.weighed.by_age_and_quota(&self.policy, &old, self.now_ms),
            Pass::Room => self.weighed.for_room(&self.policy, &old, self.now_ms),
        };
        let last = old.last().filter(|_| old.len() == WEIGHED_AT_ONCE);
        let next = match (last, pass) {
            (Some(last), Pass::AgeAndQuota) => Stage::Builds(pass, Some((last.used_ms, last.name))),
            (Some(last), Pass::Room) if self.weighed.is_room_needed() => {
                Stage::Builds(pass, Some((last.used_ms, last.name)))
            }
            (None, Pass::AgeAndQuota) if self.weighed.is_room_needed() => Stage::Builds(Pass::Room, None),
            (_, _) => Stage::Sweep(0),
        };
        Ok(Stage::Leaving(gone, Box::new(next)))
    }

    /// A transaction a step, so that whoever takes the steps may rest between any two.
    async fn leaving(&mut self, mut gone: Vec<(Build<BuildName>, Why)>, next: Box<Stage>) -> Result<Stage, ApiError> {
        if gone.is_empty() {
            return Ok(*next);
        }
        let now: Vec<_> = gone.drain(..gone.len().min(self.at_once)).collect();
        let builds = now.iter().map(|(build, _)| build.name).collect();
        self.forget(Forget { builds, unused_since_ms: self.now_ms, ..Forget::default() }).await?;
        now.iter().for_each(|(build, why)| self.tell(build, *why));
        Ok(Stage::Leaving(gone, next))
    }

    fn tell(&mut self, build: &Build<BuildName>, why: Why) {
        self.told.engines += 1;
        self.told.engine_bytes += build.bytes;
        if self.told.gone.len() < NAMED_MAX {
            self.told.gone.push(v1::GoneEngine {
                engine_key: build.name.0.to_string(),
                plan_digest: build.name.1.to_string(),
                plan_bytes: build.bytes,
                why: why.name().into(),
            });
        }
    }

    async fn sweep(&mut self, folder: u16) -> Result<Stage, ApiError> {
        let Ok(at) = u8::try_from(folder) else { return Ok(Stage::Done) };
        if self.dry_run {
            return Ok(Stage::Done);
        }
        // By the clock of the disk.
        let Some(before) = SystemTime::now().checked_sub(Duration::from_millis(self.policy.grace_ms)) else {
            return Ok(Stage::Done);
        };
        let blobs = self.farm.blobs();
        let old = blobs.old_blobs(at, before).await?;
        let names: Vec<Digest> = old.iter().map(|(digest, _)| *digest).collect();
        let unnamed = self.farm.timed("unnamed_blobs", self.farm.store().unnamed_blobs(names)).await?;
        let needed = self.farm.ask(|state, _| state.named_beside_jobs()).await?;
        for digest in unnamed.into_iter().filter(|digest| !needed.contains(digest)) {
            if let Some(bytes) = blobs.remove_old(digest, before).await? {
                self.told.blobs += 1;
                self.told.blob_bytes += bytes;
            }
        }
        Ok(Stage::Sweep(folder + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_of_a_collection_become_as_large_as_nobody_notices() {
        let per_record = Duration::from_micros(100);
        let mut at_once = AT_ONCE_MIN;
        for _ in 0..20 {
            at_once = paced(at_once, per_record * at_once as u32);
        }
        assert!((15..=30).contains(&at_once), "{at_once}");
        // A disk that takes long for any of them, and one that takes nothing.
        assert_eq!((0..20).fold(at_once, |at_once, _| paced(at_once, 2 * COMMIT_MAX)), AT_ONCE_MIN);
        assert_eq!((0..20).fold(at_once, |at_once, _| paced(at_once, Duration::ZERO)), AT_ONCE_MAX);
    }
}
