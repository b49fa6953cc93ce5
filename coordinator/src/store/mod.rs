//! What the coordinator remembers, behind one trait.
//!
//! Crash safety: [`Store::commit`] is atomic, returns only when its changes are durable, and refuses every leader but the
//! newest. Whatever was acknowledged to a caller was committed before. Commits of one leader apply in the order in
//! which they were called.
//!
//! | module | holds |
//! |---|---|
//! | [`mem`] | everything in memory: tests and simulation |
//! | `sql_store` | a store over an SQL database: tables that are read, a writer that is told what to write |
//! | `tables` | reading tables of either database, and what their rows mean |
//! | [`sqlite`] | one file, one writer task with group commit, readers beside it |
//! | `sqlite_check` | naming rows that cannot be decoded, beside whoever has the database open |
//! | `sqlite_writer` | that writer: transactions, and healing after a full disk |
//! | [`postgres`] | a server, for several coordinators: what it must be like, its schema |
//! | `postgres_writer` | its writer: transactions under the lease of whoever leads |
//! | `postgres_words` | where its language differs |
//! | `moving` | copying everything from SQLite to PostgreSQL, and from either into a file |
//! | `unreadable` | rows that cannot be decoded: left out, told, counted |
//! | `sql` | the statements, shaped so that both SQL databases run the same ones |
//! | `lists` | which index a list of jobs or engines is read along |
//! | `history` | likewise lists of requests and events |
//! | `coverage` | how models stand on device kinds |
//! | `past` | how fast a model's builds were, one after the other |
//! | `answers` | what is stored under engine keys |
//! | `retained` | what may go by its age or last use, and taking it away |
//! | `walk` | reading a list along an index, part by part |

mod answers;
mod coverage;
mod history;
mod lists;
pub mod mem;
mod moving;
mod notes;
mod past;
pub mod postgres;
mod postgres_words;
mod postgres_writer;
mod retained;
mod sql;
mod sql_store;
pub mod sqlite;
mod sqlite_check;
mod sqlite_writer;
mod tables;
mod unreadable;
mod walk;

pub use coverage::{Coverage, CoverageFilter, CoveredModels, Standing, StandingJob};
pub use mem::MemStore;
pub use moving::{MovedTable, copy_tables, fetch_tables, move_tables};
pub use notes::{StoreNotes, noted_in_file};
pub use past::{HistoryFilter, PastBuild, PastPlace};
pub use postgres::{Leadership, PostgresConfig, PostgresStore};
pub(crate) use postgres_writer::LEASE;
pub use retained::BuildName;
pub use sqlite::SqliteStore;
pub use sqlite_check::{BadRow, unreadable_rows};

use crate::core::{
    AuditLine, Change, DeclarationId, DeclarationRecord, Engine, Event, Held, Job, JobId, JobState, PinId, PinRecord,
    Report, RequestRecord, ShareRecord, Snapshot, Stored, Tenure, TokenRecord,
};
use futures::future::BoxFuture;
use planforge_blobs::Note;
use planforge_proto::{ApiError, ErrorCode};
use planforge_retention::Build;
use planforge_types::{Digest, EngineKey};
use std::collections::{BTreeMap, BTreeSet};

/// Ended jobs that a leader begins with, to tell durations from.
pub(crate) const LATEST_MAX: usize = 2_000;

/// Why a store did not do what was asked. Nothing of a refused commit was applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    #[error("another coordinator leads: epoch {current} has begun, this one is {mine}")]
    Fenced { mine: u64, current: u64 },
    #[error("another coordinator leads this farm: {owner}{}", at(address))]
    Led {
        owner: String,
        /// Where callers reach it; may be empty.
        address: String,
    },
    #[error("the database {database} cannot be used: {why}")]
    Unfit {
        database: String,
        why: String,
        /// What to do about it.
        hint: &'static str,
    },
    #[error("the database has no room left: {detail}")]
    Full { detail: String },
    #[error("the database is read-only: {detail}")]
    ReadOnly { detail: String },
    #[error("the database is busy: {detail}")]
    Busy { detail: String },
    /// Other transactions were put before this one as often as it was tried.
    #[error("the database undid it in favour of another transaction: {detail}")]
    Conflict { detail: String },
    /// The server, or whatever lies between, ended the connection that it ran on.
    #[error("the database's session ended while it was to {operation}: {detail}")]
    SessionEnded { operation: &'static str, detail: String },
    #[error(
        "the database {path} was written by a newer planforge: it has schema version {found}, this one knows {known}"
    )]
    NewerSchema { path: String, found: i64, known: i64 },
    #[error("the database {path} has schema version {found}, and this planforge reads version {known}")]
    OtherSchema { path: String, found: i64, known: i64 },
    #[error("the database {path} is damaged: {check} found: {detail}")]
    Damaged { path: String, check: String, detail: String },
    #[error("cannot open the database {path}: {detail}")]
    Open { path: String, detail: String },
    #[error("the database failed to {operation}: {detail}")]
    Failed { operation: &'static str, detail: String },
    #[error("the database holds a record of {what} that cannot be read: {detail}")]
    Corrupt { what: &'static str, detail: String },
    #[error("the database is closed")]
    Closed,
}

fn at(address: &str) -> String {
    if address.is_empty() { String::new() } else { format!(", at {address}") }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let (code, hint) = match &error {
            StoreError::Full { .. } => (ErrorCode::ResourceExhausted, "free disk space where the database lies"),
            StoreError::ReadOnly { .. } => {
                (ErrorCode::Unavailable, "make the coordinator's data folder writable, or name the primary")
            }
            StoreError::Busy { .. } => (ErrorCode::Unavailable, "try again; another process holds the database"),
            StoreError::Conflict { .. } => (
                ErrorCode::Unavailable,
                "try again; pg_stat_activity names the program that writes to the farm's tables besides",
            ),
            StoreError::SessionEnded { .. } => {
                (ErrorCode::Unavailable, "try again; the server's log says who ended the session, and why")
            }
            StoreError::Fenced { .. } => (ErrorCode::Unavailable, "ask the new leader"),
            StoreError::Led { .. } => (ErrorCode::Unavailable, "ask that one; this one stands by"),
            StoreError::Unfit { hint, .. } => (ErrorCode::Refused, *hint),
            StoreError::NewerSchema { .. } => (
                ErrorCode::Internal,
                "run the newer planforge again, or restore a backup from before it: planforge admin restore",
            ),
            StoreError::OtherSchema { .. } => {
                (ErrorCode::Internal, "use the planforge that last ran this farm, or let this one run it once")
            }
            StoreError::Damaged { .. } => (
                ErrorCode::Internal,
                "restore the newest backup into another folder: planforge admin restore BACKUP --data DIR; `planforge admin \
                 check` says what else is wrong, and nothing was changed",
            ),
            StoreError::Open { .. } => (ErrorCode::Unavailable, "check the path and its permissions"),
            StoreError::Closed => (ErrorCode::Unavailable, "the coordinator is shutting down; try again"),
            StoreError::Failed { .. } => (ErrorCode::Unavailable, "look at the coordinator's log"),
            StoreError::Corrupt { .. } => {
                (ErrorCode::Internal, "`planforge admin check` names every such row; a backup may still have it")
            }
        };
        Self::new(code, error.to_string()).with_hint(hint)
    }
}

/// In which order jobs are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JobOrder {
    /// By the time of their submission.
    #[default]
    Newest,
    Oldest,
    /// Those that ended, the last first.
    Ended,
}

/// Which jobs, in which order. Empty lists and `None` mean any.
#[derive(Clone, Debug, Default)]
pub struct JobFilter {
    pub project: Option<String>,
    pub states: Vec<JobState>,
    pub ids: Vec<JobId>,
    pub sku: Option<String>,
    /// Name, or prefix of the digest.
    pub model: Option<String>,
    /// All of them, as requests of the project wrote them.
    pub tags: Vec<String>,
    /// Submitted then or later.
    pub since_ms: Option<u64>,
    /// Submitted then or earlier.
    pub until_ms: Option<u64>,
    pub order: JobOrder,
    /// Only what stands behind the job of this time (of its submission or, by `Ended`, its end) and id: the rest of a list.
    pub behind: Option<(u64, JobId)>,
    pub limit: usize,
}

impl JobFilter {
    /// Where a job stands in a list.
    pub fn place(&self, job: &Job) -> (u64, JobId) {
        let at_ms = if self.order == JobOrder::Ended { job.ended_ms } else { job.created_ms };
        (at_ms, job.id.clone())
    }

    /// Whether a job is one of them by what stands in its record: its projects and tags stand elsewhere.
    fn fits(&self, job: &Job) -> bool {
        let is_model = |asked: &String| {
            job.model.name == *asked || (!asked.is_empty() && job.model.digest.to_string().starts_with(asked.as_str()))
        };
        (self.states.is_empty() || self.states.contains(&job.state))
            && (self.ids.is_empty() || self.ids.contains(&job.id))
            && self.sku.as_ref().is_none_or(|sku| job.sku.as_str() == sku)
            && self.model.as_ref().is_none_or(is_model)
            && self.since_ms.is_none_or(|since| job.created_ms >= since)
            && self.until_ms.is_none_or(|until| job.created_ms <= until)
            && (self.order != JobOrder::Ended || job.ended_ms > 0)
    }

    /// The part of the list that is asked for, where all of `jobs`, of the right projects and tags, are at hand.
    fn part_of<'a>(&self, jobs: impl Iterator<Item = &'a Job>) -> Part<Job, (u64, JobId)> {
        let oldest_first = self.order == JobOrder::Oldest;
        let is_behind = |job: &&Job| {
            self.behind.as_ref().is_none_or(|behind| {
                let place = self.place(job);
                if oldest_first { place > *behind } else { place < *behind }
            })
        };
        let mut found: Vec<&Job> = jobs.filter(|job| self.fits(job)).filter(is_behind).collect();
        found.sort_by_key(|job| self.place(job));
        if !oldest_first {
            found.reverse();
        }
        let rest = match found.len() > self.limit {
            // A part of nothing is where it began.
            true => found.get(self.limit.wrapping_sub(1)).map(|job| self.place(job)).or_else(|| self.behind.clone()),
            false => None,
        };
        Part { items: found.into_iter().take(self.limit).cloned().collect(), rest }
    }
}

/// Part of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Part<T, P> {
    /// At most as many as were asked for, perhaps fewer, or none, although the list goes on.
    pub items: Vec<T>,
    /// Where it goes on: what to ask for as `behind`. `None`: this is its end.
    pub rest: Option<P>,
}

/// How many there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub count: u64,
    /// Else there are more than `count`.
    pub is_exact: bool,
}

/// What a project holds of one kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Heap {
    pub project: String,
    /// `plans`, `reports`, `models and cards`, `inputs`, `uploads` or `logs`.
    pub kind: String,
    pub blobs: u64,
    /// 0 where nobody says how large they are, as of logs.
    pub bytes: u64,
}

/// Which events; in order. Empty lists and `None` mean any.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    /// Only later ones.
    pub after: u64,
    pub project: Option<String>,
    pub jobs: Vec<JobId>,
    pub limit: usize,
}

/// Which events of a list; the latest first. Empty lists and `None` mean any.
#[derive(Clone, Debug, Default)]
pub struct EventListFilter {
    /// Only later ones.
    pub after: u64,
    pub project: Option<String>,
    pub jobs: Vec<JobId>,
    /// What happened.
    pub kinds: Vec<String>,
    /// Only earlier ones than the event of this number: the rest of a list.
    pub before: Option<u64>,
    pub limit: usize,
}

/// How a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestState {
    /// Some of its jobs have not ended.
    Open,
    Succeeded,
    /// All of its jobs have ended, some without success.
    Failed,
}

impl RequestState {
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
        }
    }
}

/// A request, with how its jobs stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedRequest {
    pub request: RequestRecord,
    /// That it came to.
    pub jobs: u64,
    /// Of them: not ended.
    pub live: u64,
    /// Of them: ended without success.
    pub lost: u64,
}

impl ListedRequest {
    pub fn state(&self) -> RequestState {
        match (self.live, self.lost) {
            (0, 0) => RequestState::Succeeded,
            (0, _) => RequestState::Failed,
            _ => RequestState::Open,
        }
    }

    /// Where it stands in a list.
    pub fn place(&self) -> (u64, String) {
        (self.request.created_ms, self.request.id.clone())
    }
}

/// Which requests; newest first. Empty lists and `None` mean any.
#[derive(Clone, Debug, Default)]
pub struct RequestFilter {
    pub project: Option<String>,
    pub states: Vec<RequestState>,
    /// Made then or later.
    pub since_ms: Option<u64>,
    /// Made then or earlier.
    pub until_ms: Option<u64>,
    /// Only what stands behind the request of this time and id: the rest of a list.
    pub behind: Option<(u64, String)>,
    pub limit: usize,
}

/// Which engines; newest first, of each key only the newest unless `plan` names one. `None` means any.
#[derive(Clone, Debug, Default)]
pub struct EngineFilter {
    pub key: Option<EngineKey>,
    pub plan: Option<Digest>,
    /// Name, or prefix of the digest.
    pub model: Option<String>,
    pub sku: Option<String>,
    pub project: Option<String>,
    /// Only what stands behind the engine of this creation time, key and plan: the rest of a list.
    pub behind: Option<(u64, EngineKey, Digest)>,
    pub limit: usize,
}

/// Which reports; newest first. `None` means any.
#[derive(Clone, Debug, Default)]
pub struct ReportFilter {
    pub digest: Option<Digest>,
    pub plan: Option<Digest>,
    pub key: Option<EngineKey>,
    pub job: Option<JobId>,
    pub sku: Option<String>,
    /// Only what stands behind the report of this creation time and digest: the rest of a list.
    pub behind: Option<(u64, Digest)>,
    pub limit: usize,
}

/// Which lines of the audit log; newest first. `None` means any.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    pub actor: Option<String>,
    /// A beginning of it.
    pub what: Option<String>,
    pub project: Option<String>,
    pub since_ms: Option<u64>,
    pub until_ms: Option<u64>,
    /// Only older lines than the one of this number: the rest of a list.
    pub before: Option<u64>,
    pub limit: usize,
}

/// Which pins; newest first, none that has expired. Empty lists and `None` mean any.
#[derive(Clone, Debug, Default)]
pub struct PinFilter {
    pub project: Option<String>,
    pub owner: Option<String>,
    pub plans: Vec<Digest>,
    pub now_ms: u64,
    /// Only what stands behind the pin of this creation time and id: the rest of a list.
    pub behind: Option<(u64, PinId)>,
    pub limit: usize,
}

/// Which declarations; newest first. `None` means any.
#[derive(Clone, Debug, Default)]
pub struct DeclarationFilter {
    pub project: Option<String>,
    pub name: Option<String>,
    /// Only what stands behind the declaration of this time and id: the rest of a list.
    pub behind: Option<(u64, DeclarationId)>,
    pub limit: usize,
}

/// What a store call returns.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// Everything durable except blobs.
pub trait Store: Send + Sync + 'static {
    /// Begins a new epoch and returns it; every older leader's commits are refused from now on. Where several coordinators
    /// share a store, it is refused while another one's lease holds.
    fn acquire<'a>(&'a self, owner: &'a str, now_ms: u64) -> Answer<'a, u64>;

    /// Ends once another leader's epoch has begun: with what its commits would be refused with. Stores that one process
    /// alone can open never say so.
    fn superseded(&self, _epoch: u64) -> BoxFuture<'_, StoreError> {
        Box::pin(std::future::pending())
    }

    /// What a leader must know to go on: nothing of what has ended, but for the latest durations.
    fn load(&self) -> Answer<'_, Snapshot>;

    /// Makes `changes` durable, all or none.
    fn commit(&self, epoch: u64, changes: Vec<Change>) -> Answer<'_, ()>;

    /// Whether commits are taken now. Really writes, so that a full or broken disk refuses it too, and changes nothing.
    fn check(&self, epoch: u64) -> Answer<'_, ()>;

    fn job<'a>(&'a self, id: &'a JobId) -> Answer<'a, Option<Job>>;

    /// At most `limit` ids that begin with `prefix`, of the jobs of one project or all.
    fn job_ids<'a>(&'a self, prefix: &'a str, project: Option<&'a str>, limit: usize) -> Answer<'a, Vec<JobId>>;

    /// Part of a list of jobs, in about the same time however many there are.
    fn part_of_jobs(&self, filter: JobFilter) -> Answer<'_, Part<Job, (u64, JobId)>>;

    /// How many jobs there are of a list, wherever it goes on.
    fn count_jobs(&self, filter: JobFilter) -> Answer<'_, Count>;

    /// Jobs by device kind and state, of one project or all.
    fn job_counts<'a>(&'a self, project: Option<&'a str>) -> Answer<'a, BTreeMap<(String, JobState), u64>>;

    /// When the oldest job of each of these device kinds that is in one of these states was submitted.
    fn oldest_waiting<'a>(&'a self, skus: Vec<String>, states: &'a [JobState]) -> Answer<'a, BTreeMap<String, u64>>;

    /// What is stored under each of these keys.
    fn stored(&self, keys: Vec<EngineKey>) -> Answer<'_, BTreeMap<EngineKey, Stored>>;

    /// As many jobs of a list as were asked for.
    fn jobs(&self, mut filter: JobFilter) -> Answer<'_, Vec<Job>> {
        Box::pin(async move {
            let mut found: Vec<Job> = Vec::new();
            let limit = filter.limit;
            loop {
                filter.limit = limit - found.len();
                let part = self.part_of_jobs(filter.clone()).await?;
                found.extend(part.items);
                filter.behind = part.rest;
                if filter.behind.is_none() || found.len() >= limit {
                    return Ok(found);
                }
            }
        })
    }

    fn events(&self, filter: EventFilter) -> Answer<'_, Vec<Event>>;

    /// Part of a list of events, in about the same time however many there are.
    fn part_of_events(&self, filter: EventListFilter) -> Answer<'_, Part<Event, u64>>;

    /// How many events there are of a list, wherever it goes on.
    fn count_events(&self, filter: EventListFilter) -> Answer<'_, Count>;

    /// Part of a list of requests, in about the same time however many there are.
    fn part_of_requests(&self, filter: RequestFilter) -> Answer<'_, Part<ListedRequest, (u64, String)>>;

    /// How many requests there are of a list, wherever it goes on.
    fn count_requests(&self, filter: RequestFilter) -> Answer<'_, Count>;

    /// Part of a list of engines, in about the same time however many there are.
    fn part_of_engines(&self, filter: EngineFilter) -> Answer<'_, Part<Engine, (u64, EngineKey, Digest)>>;

    /// How many engines there are of a list, wherever it goes on.
    fn count_engines(&self, filter: EngineFilter) -> Answer<'_, Count>;

    /// As many engines of a list as were asked for.
    fn engines(&self, mut filter: EngineFilter) -> Answer<'_, Vec<Engine>> {
        Box::pin(async move {
            let mut found: Vec<Engine> = Vec::new();
            let limit = filter.limit;
            loop {
                filter.limit = limit - found.len();
                let part = self.part_of_engines(filter.clone()).await?;
                found.extend(part.items);
                filter.behind = part.rest;
                if filter.behind.is_none() || found.len() >= limit {
                    return Ok(found);
                }
            }
        })
    }

    /// Models of which something stands anywhere, by name: `limit` of them from the one of number `from`, and how many
    /// there are; in about the same time however many engines and jobs there are.
    fn covered_models(&self, filter: CoverageFilter, from: u64, limit: usize) -> Answer<'_, CoveredModels>;

    /// Those of the names under which something stands.
    fn covered_among(&self, filter: CoverageFilter, names: Vec<String>) -> Answer<'_, BTreeSet<String>>;

    /// What the newest engine of each of these models calls it, by the model's digest; those without one are left out.
    fn model_names(&self, project: Option<String>, digests: Vec<String>) -> Answer<'_, BTreeMap<String, String>>;

    /// How these models stand: the newest build of each key; of the jobs that live the newest of each model and device kind,
    /// likewise of those that failed after the newest build. `apart`: all of these jobs, with what they asked for.
    fn coverage(&self, filter: CoverageFilter, models: Vec<String>, apart: bool) -> Answer<'_, Coverage>;

    /// Part of a model's history: its builds that were measured, older ones of a key and those that are gone too.
    fn history(&self, filter: HistoryFilter) -> Answer<'_, Part<PastBuild, PastPlace>>;

    fn reports(&self, filter: ReportFilter) -> Answer<'_, Vec<Report>>;

    /// Of each of these jobs, of which there are few, its newest report.
    fn newest_reports(&self, jobs: Vec<JobId>) -> Answer<'_, Vec<Report>>;

    fn request<'a>(&'a self, project: &'a str, idempotency_key: &'a str) -> Answer<'a, Option<RequestRecord>>;

    fn request_of_id<'a>(&'a self, id: &'a str) -> Answer<'a, Option<RequestRecord>>;

    fn tokens(&self) -> Answer<'_, Vec<TokenRecord>>;

    /// Every project that ever had a job.
    fn project_names(&self) -> Answer<'_, Vec<String>>;

    fn audit(&self, filter: AuditFilter) -> Answer<'_, Vec<AuditLine>>;

    /// Whether a blob is of something that the project may see.
    fn may_see_blob<'a>(&'a self, project: &'a str, digest: Digest) -> Answer<'a, bool>;

    /// Bytes that a project holds: what it uploaded, and what its jobs name.
    fn stored_bytes<'a>(&'a self, project: &'a str) -> Answer<'a, u64>;

    /// What projects hold, by project and kind; takes as long as there are rows that hold a blob.
    fn heaps(&self) -> Answer<'_, Vec<Heap>>;

    fn pins(&self, filter: PinFilter) -> Answer<'_, Vec<PinRecord>>;

    /// Links for reading, newest first: of one project or all.
    fn shares<'a>(&'a self, project: Option<&'a str>) -> Answer<'a, Vec<ShareRecord>>;

    /// What a blob store remembers of a kind, in the order of names.
    fn blob_notes(&self, kind: &'static str) -> Answer<'_, Vec<Note>>;

    /// Makes changes of such notes durable, in the epoch in which this process leads, or before it does where it alone can.
    fn commit_notes(&self, changes: Vec<Change>) -> Answer<'_, ()>;

    /// The link whose secret has this hash.
    fn share_of(&self, secret_hash: Digest) -> Answer<'_, Option<ShareRecord>>;

    /// How many pins of a project have not expired.
    fn pin_count<'a>(&'a self, project: &'a str, now_ms: u64) -> Answer<'a, u64>;

    /// Whether anybody wants the plan kept at this time: to be asked before a plan is taken away.
    fn is_pinned(&self, plan: Digest, now_ms: u64) -> Answer<'_, bool>;

    fn declarations(&self, filter: DeclarationFilter) -> Answer<'_, Vec<DeclarationRecord>>;

    /// How many declarations the project has beside that one.
    fn other_declarations<'a>(&'a self, id: &'a DeclarationId) -> Answer<'a, u64>;

    /// Builds that were last used before `before_ms`, those first that were not used for longest, behind one of that last
    /// use and name.
    fn builds_unused_since(
        &self,
        before_ms: u64,
        behind: Option<(u64, BuildName)>,
        limit: usize,
        now_ms: u64,
    ) -> Answer<'_, Vec<Build<BuildName>>>;

    /// Bytes of all plans together.
    fn plan_bytes(&self) -> Answer<'_, u64>;

    /// Bytes of the plans that only this project may see.
    fn plan_bytes_of<'a>(&'a self, project: &'a str) -> Answer<'a, u64>;

    /// Jobs that ended before, the first that ended first.
    fn jobs_ended_before(&self, before_ms: u64, limit: usize) -> Answer<'_, Vec<Job>>;

    fn count_jobs_ended_before(&self, before_ms: u64) -> Answer<'_, u64>;

    /// Requests that were made before and of which no job is kept.
    fn requests_without_jobs(&self, before_ms: u64, limit: usize) -> Answer<'_, Vec<String>>;

    /// Those of the blobs that no record names.
    fn unnamed_blobs(&self, digests: Vec<Digest>) -> Answer<'_, Vec<Digest>>;

    /// Rows that hold a blob for a project since before, by that tenure, the oldest first.
    fn held_since_before(&self, tenure: Tenure, before_ms: u64, limit: usize) -> Answer<'_, Vec<Held>>;

    /// How many of them there are.
    fn count_held_since_before(&self, tenure: Tenure, before_ms: u64) -> Answer<'_, u64>;

    /// Of the first `limit` events, how many are older than that, and the number of the last of those. The newest event of
    /// all is never among them: the next one's number follows it.
    fn events_before(&self, before_ms: u64, limit: usize) -> Answer<'_, Option<(u64, u64)>>;

    /// Reports made before, behind one of that time and digest, the oldest first: of a plan's measurements on a device kind
    /// neither the newest nor the one that was made with the plan.
    fn older_reports(
        &self,
        before_ms: u64,
        behind: Option<(u64, Digest)>,
        limit: usize,
    ) -> Answer<'_, Vec<(u64, Digest)>>;

    /// Rows that were left out of answers because they cannot be decoded.
    fn unreadable_rows(&self) -> u64 {
        0
    }

    /// Ends background work after what was called is done.
    fn close(&self) -> Answer<'_, ()>;
}
