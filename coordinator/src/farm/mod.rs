//! The farm: the leader's loop around the sans-IO core and the store, behind one handle.

pub mod clock;
pub mod stats;

pub use clock::{Clock, SystemClock};
pub use stats::{FarmStats, Histogram, LATENCY_BOUNDS_MS, StoreOp};

use crate::{auth::Actor, blobs::BlobStore, store::Store};
use futures::stream::BoxStream;
use planforge_proto::{ApiError, ErrorCode, v1};
use std::{path::PathBuf, sync::Arc};
use tokio::sync::broadcast;

/// How the farm is run. Every bound has a default that suits a shop with a thousand agents.
#[derive(Clone, Debug)]
pub struct FarmConfig {
    /// How often agents beat.
    pub heartbeat_ms: u32,
    /// A lease not beaten for this long makes its job claimable again.
    pub lease_ms: u32,
    /// Attempts of one job before it fails for good.
    pub max_attempts: u32,
    /// Jobs that may be waiting or running at once; more are refused.
    pub max_live_jobs: usize,
    /// Folder of the live logs; `None` keeps them in memory (tests, simulation).
    pub log_folder: Option<PathBuf>,
    /// Seeds ids and secrets in simulations; `None`: the system's randomness.
    pub seed: Option<u64>,
    /// Says which process leads, in the store and to people.
    pub owner: String,
}

impl Default for FarmConfig {
    fn default() -> Self {
        Self {
            heartbeat_ms: 3_000,
            lease_ms: 15_000,
            max_attempts: 3,
            max_live_jobs: 100_000,
            log_folder: None,
            seed: None,
            owner: "coordinator".into(),
        }
    }
}

/// A durable event, as watchers get it.
pub type FarmEvent = Arc<v1::JobEvent>;

/// Streams end with the first error.
pub type Reply<T> = BoxStream<'static, Result<T, ApiError>>;

/// Handle on the running farm; clones share it. It enforces roles and projects; who the caller is, the server has found out.
#[derive(Clone)]
pub struct Farm {
    events: broadcast::Sender<FarmEvent>,
}

impl std::fmt::Debug for Farm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Farm").finish_non_exhaustive()
    }
}

fn later<T>() -> Result<T, ApiError> {
    Err(ApiError::new(ErrorCode::Unavailable, "the farm does not run yet"))
}

impl Farm {
    /// Takes the leadership, loads the store and starts the leader's loop. Requires a running tokio runtime.
    pub async fn open(
        _store: Arc<dyn Store>,
        _blobs: Arc<dyn BlobStore>,
        _config: FarmConfig,
        _clock: Arc<dyn Clock>,
    ) -> Result<Self, ApiError> {
        Ok(Self { events: broadcast::channel(16).0 })
    }

    /// Stops the loop after what was accepted is durable, and ends every stream. Later calls are refused as unavailable.
    pub async fn close(&self) {}

    /// Whether the farm leads and its store takes writes: what `/readyz` answers.
    pub fn ready(&self) -> Result<(), ApiError> {
        later()
    }

    pub fn server_info(&self, _actor: &Actor) -> v1::ServerInfo {
        v1::ServerInfo::default()
    }

    pub async fn submit(&self, _actor: &Actor, _request: v1::SubmitRequest) -> Result<v1::SubmitReply, ApiError> {
        later()
    }

    pub async fn list_jobs(
        &self,
        _actor: &Actor,
        _request: v1::ListJobsRequest,
    ) -> Result<v1::ListJobsReply, ApiError> {
        later()
    }

    /// One job with its attempts and its report, by id or unique prefix.
    pub async fn get_job(&self, _actor: &Actor, _id: &str) -> Result<v1::Job, ApiError> {
        later()
    }

    pub async fn cancel_jobs(
        &self,
        _actor: &Actor,
        _request: v1::CancelJobsRequest,
    ) -> Result<v1::CancelJobsReply, ApiError> {
        later()
    }

    pub async fn list_devices(
        &self,
        _actor: &Actor,
        _request: v1::ListDevicesRequest,
    ) -> Result<v1::ListDevicesReply, ApiError> {
        later()
    }

    pub async fn list_engines(
        &self,
        _actor: &Actor,
        _request: v1::ListEnginesRequest,
    ) -> Result<v1::ListEnginesReply, ApiError> {
        later()
    }

    pub async fn find_engine(&self, _actor: &Actor, _request: v1::FindEngineRequest) -> Result<v1::Engine, ApiError> {
        later()
    }

    pub async fn list_reports(
        &self,
        _actor: &Actor,
        _request: v1::ListReportsRequest,
    ) -> Result<v1::ListReportsReply, ApiError> {
        later()
    }

    /// Replays durable events after `after_event`, then follows. Progress inside a phase comes too, under the number of
    /// the last durable event.
    pub async fn watch(&self, _actor: &Actor, _request: v1::WatchJobsRequest) -> Result<Reply<v1::JobEvent>, ApiError> {
        later()
    }

    pub async fn read_log(
        &self,
        _actor: &Actor,
        _request: v1::ReadLogRequest,
    ) -> Result<Reply<v1::LogChunk>, ApiError> {
        later()
    }

    pub async fn create_token(
        &self,
        _actor: &Actor,
        _request: v1::CreateTokenRequest,
    ) -> Result<v1::CreateTokenReply, ApiError> {
        later()
    }

    pub async fn list_tokens(&self, _actor: &Actor) -> Result<v1::ListTokensReply, ApiError> {
        later()
    }

    pub async fn revoke_token(&self, _actor: &Actor, _id: &str) -> Result<v1::RevokeTokenReply, ApiError> {
        later()
    }

    /// Who holds `secret`: `None` when it is unknown, expired or revoked. Answered from memory, constant in time.
    pub async fn authenticate(&self, _secret: &str) -> Result<Option<Actor>, ApiError> {
        later()
    }

    /// Speaks `Fleet.Session` with one agent until either side ends. `inbound` errors count as a lost connection.
    pub async fn session(
        &self,
        _actor: &Actor,
        _inbound: Reply<v1::AgentMessage>,
    ) -> Result<Reply<v1::CoordinatorMessage>, ApiError> {
        later()
    }

    /// Every event of every project, for the page; a slow reader is told that it lagged and asks `watch` again.
    pub fn subscribe(&self) -> broadcast::Receiver<FarmEvent> {
        self.events.subscribe()
    }

    pub async fn stats(&self) -> Result<FarmStats, ApiError> {
        later()
    }
}
