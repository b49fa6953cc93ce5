//! What one input causes: changes, messages, the answer to the caller.

use super::{
    agents::{AgentView, Farewell},
    model::{CacheRecord, Change, Job, JobId, Outcome},
    state::{LeaseRef, SessionId, Submit},
};
use planforge_proto::ApiError;
use planforge_types::{Digest, EngineKey};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// What the core tells an agent.
#[derive(Clone, Debug)]
pub enum ToAgent {
    Welcome {
        resumed: Vec<LeaseRef>,
        lost: Vec<LeaseRef>,
        /// Spoken from now on.
        protocol: u32,
    },
    Assign {
        lease: LeaseRef,
        job: Arc<Job>,
        /// For an attempt that builds: the newest of its scope, dropped or not; `None`: nothing was ever published.
        cache: Option<Box<CacheRecord>>,
        /// An earlier attempt broke down with the cache: this one is to begin from nothing.
        without_cache: bool,
    },
    Cancel {
        lease: LeaseRef,
        reason: String,
    },
    FinishedAck {
        lease: LeaseRef,
        accepted: bool,
        reason: String,
    },
    /// The job is not live and its end is not remembered here: the store decides how to answer.
    FinishedUnknown {
        lease: LeaseRef,
    },
    LeaseLost {
        lease: LeaseRef,
        reason: String,
    },
    /// The session ends after it.
    Refused(Farewell),
    /// A newer stream of the same process took over: end quietly.
    Replaced,
}

/// What became of a request.
#[derive(Clone, Debug)]
pub enum Submitted {
    /// In the order of the combinations.
    Jobs { request: String, jobs: Vec<JobRef> },
    /// Nothing was submitted: these blobs are not there.
    Missing(Vec<Digest>),
    /// Nothing was submitted: stored engines would answer it if these plans are still in the blob store. To be given
    /// again with those of them that are gone.
    Look { plans: BTreeSet<Digest>, submit: Box<Submit> },
    /// Nothing was submitted: somebody has to look under these keys first. What is durable by now has every change up to
    /// `as_of`. To be given again with what was found.
    Ask { keys: BTreeSet<EngineKey>, as_of: u64, submit: Box<Submit> },
    /// Nothing was submitted: a job that it needs ended since somebody looked. To be given again with how it ended.
    Needs { submit: Box<Submit> },
}

/// A job of a reply: as it stands, or one that ended before and is only in the store.
#[derive(Clone, Debug)]
pub enum JobRef {
    Live(Arc<Job>),
    Stored(JobId),
}

/// The answer to the caller.
#[derive(Clone, Debug, Default)]
pub enum Reply {
    #[default]
    None,
    /// The job is not live, and nobody said how it ended.
    Unknown,
    Submitted(Result<Submitted, ApiError>),
    /// The jobs as they stand, each with a remark when it goes on.
    Cancelled(Result<Vec<(JobRef, String)>, ApiError>),
    /// The jobs as they stand, each with a remark when it is not as was asked.
    Prioritized(Result<Vec<(JobRef, String)>, ApiError>),
    /// The agent as it stands, or stood when it was forgotten.
    Agent(Result<Box<AgentView>, ApiError>),
    /// The pause that was taken back.
    Resumed(Result<Box<super::pauses::PauseRecord>, ApiError>),
}

/// What one input causes.
#[derive(Debug, Default)]
pub struct Effects {
    /// To be made durable together.
    pub changes: Vec<Change>,
    /// The jobs of the event changes, as they stood after each: same order.
    pub snapshots: Vec<Arc<Job>>,
    /// To be sent once the changes are durable.
    pub sends: Vec<(SessionId, ToAgent)>,
    pub reply: Reply,
    /// Jobs whose progress moved without an event.
    pub progress: Vec<Arc<Job>>,
    /// Keys under which somebody has to look, for jobs that wait for it; answered by [`super::Input::Stored`].
    pub asks: BTreeSet<EngineKey>,
    /// Attempts that ended, and whether their agent stored the log.
    pub closed: Vec<(JobId, u32, bool)>,
    /// Rules that the state breaks now: nothing of these effects may be believed, nor the state.
    pub broken: Vec<String>,
}

/// Numbers for the metrics, since start.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    pub merged: u64,
    pub answered: u64,
    pub lease_expiries: u64,
    pub revivals: u64,
    pub rescued_wakeups: u64,
    pub ended: BTreeMap<&'static str, u64>,
    pub attempts: BTreeMap<&'static str, u64>,
    /// From claimable to leased, wall milliseconds, since they were last taken.
    pub claims_ms: Vec<u64>,
    /// How attempts ended and how long they took, wall milliseconds, since they were last taken.
    pub attempts_ms: Vec<(Outcome, u64)>,
}
