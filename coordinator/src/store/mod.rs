//! What the coordinator remembers, behind one trait.
//!
//! Crash safety: [`Store::commit`] is atomic, returns only when its changes are durable, and refuses every leader but the
//! newest. Whatever was acknowledged to a caller was committed before. Commits of one leader apply in the order in
//! which they were called.
//!
//! | module | holds |
//! |---|---|
//! | [`mem`] | everything in memory: tests and simulation |
//! | [`sqlite`] | one file, one writer task with group commit, readers beside it |
//! | `sqlite_check` | naming rows that cannot be decoded, beside whoever has the database open |
//! | `sqlite_writer` | that writer: transactions, and healing after a full disk |
//! | `unreadable` | rows that cannot be decoded: left out, told, counted |
//! | `sql` | the statements, shaped so that another SQL database runs the same ones |

pub mod mem;
mod sql;
pub mod sqlite;
mod sqlite_check;
mod sqlite_writer;
mod unreadable;

pub use mem::MemStore;
pub use sqlite::SqliteStore;
pub use sqlite_check::{BadRow, unreadable_rows};

use crate::core::{
    AuditLine, Change, Engine, Event, Job, JobId, JobState, Report, RequestRecord, Snapshot, TokenRecord,
};
use futures::future::BoxFuture;
use planforge_proto::{ApiError, ErrorCode};
use planforge_types::{Digest, EngineKey};

/// Why a store did not do what was asked. Nothing of a refused commit was applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    #[error("another coordinator leads: epoch {current} has begun, this one is {mine}")]
    Fenced { mine: u64, current: u64 },
    #[error("the database has no room left: {detail}")]
    Full { detail: String },
    #[error("the database is read-only: {detail}")]
    ReadOnly { detail: String },
    #[error("the database is busy: {detail}")]
    Busy { detail: String },
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

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let (code, hint) = match &error {
            StoreError::Full { .. } => (ErrorCode::ResourceExhausted, "free disk space on the coordinator"),
            StoreError::ReadOnly { .. } => (ErrorCode::Unavailable, "make the coordinator's data folder writable"),
            StoreError::Busy { .. } => (ErrorCode::Unavailable, "try again; another process holds the database"),
            StoreError::Fenced { .. } => (ErrorCode::Unavailable, "ask the new leader"),
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

/// Which jobs; newest first. Empty lists and `None` mean any.
#[derive(Clone, Debug, Default)]
pub struct JobFilter {
    pub project: Option<String>,
    pub states: Vec<JobState>,
    pub ids: Vec<JobId>,
    pub sku: Option<String>,
    /// Name, or prefix of the digest.
    pub model: Option<String>,
    /// Only what stands behind the job of this creation time and id: the rest of a list.
    pub behind: Option<(u64, JobId)>,
    pub limit: usize,
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

/// What a store call returns.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// Everything durable except blobs.
pub trait Store: Send + Sync + 'static {
    /// Begins a new epoch and returns it; every older leader's commits are refused from now on.
    fn acquire<'a>(&'a self, owner: &'a str, now_ms: u64) -> Answer<'a, u64>;

    /// What a leader must know to go on.
    fn load(&self) -> Answer<'_, Snapshot>;

    /// Makes `changes` durable, all or none.
    fn commit(&self, epoch: u64, changes: Vec<Change>) -> Answer<'_, ()>;

    /// Whether commits are taken now. Really writes, so that a full or broken disk refuses it too, and changes nothing.
    fn check(&self, epoch: u64) -> Answer<'_, ()>;

    fn job<'a>(&'a self, id: &'a JobId) -> Answer<'a, Option<Job>>;

    /// At most `limit` ids that begin with `prefix`.
    fn job_ids<'a>(&'a self, prefix: &'a str, limit: usize) -> Answer<'a, Vec<JobId>>;

    fn jobs(&self, filter: JobFilter) -> Answer<'_, Vec<Job>>;

    fn events(&self, filter: EventFilter) -> Answer<'_, Vec<Event>>;

    fn engines(&self, filter: EngineFilter) -> Answer<'_, Vec<Engine>>;

    fn reports(&self, filter: ReportFilter) -> Answer<'_, Vec<Report>>;

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

    /// Rows that were left out of answers because they cannot be decoded.
    fn unreadable_rows(&self) -> u64 {
        0
    }

    /// Ends background work after what was called is done.
    fn close(&self) -> Answer<'_, ()>;
}
