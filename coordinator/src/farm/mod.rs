//! The farm: the leader's loop around the sans-IO core and the store, behind one handle.

mod agents;
mod audit;
mod binding;
mod canary;
pub mod clock;
mod confine;
mod convert;
mod coverage;
mod days;
mod declarations;
mod enrollment;
mod gate;
mod gc;
mod heaps;
mod history;
mod leader;
mod lists;
mod logins;
mod logs;
mod needs;
mod operator;
mod overview;
mod pages;
mod past;
mod pauses;
mod pins;
mod plan_check;
mod portability;
mod priority;
mod projects;
mod refresh;
mod reload;
mod requests;
mod seal;
mod session;
mod shares;
mod stats;
mod tokens;
mod traces;
mod watch;

#[cfg(test)]
mod reload_tests;

pub use clock::{Clock, SystemClock};
pub use days::DeviceName;
pub use gc::Collection;
pub use lists::LiveCounts;
pub use logins::{LoginLink, SESSION_SECONDS};
pub use shares::Scope;
pub use tokens::is_secret;

use crate::{
    auth::{Actor, Proof, Role},
    blobs::BlobStore,
    core::{AuditKind, Change, DeviceView, Input, Job, JobId, Now, Outcome, SessionId, State},
    store::{LATEST_MAX, Store, StoreError},
};
use audit::Audit;
use days::Days;
use futures::stream::BoxStream;
use gate::Gate;
use leader::{Leader, Message, Shared};
use logins::Logins;
use logs::Logs;
use planforge_metrics::StoreOp;
use planforge_proto::{ApiError, ErrorCode, v1};
use planforge_retention::Policy;
use planforge_types::{Digest, TraceContext};
use projects::StoredBytes;
use rand::{Rng as _, RngExt as _, SeedableRng as _, rngs::StdRng};
use seal::Sealer;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    future::Future,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};
use tokens::Tokens;
use tokio::sync::{broadcast, mpsc, oneshot, watch as watch_channel};

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
    /// A digest is enough to read a blob and to be given what others made of it, whatever the project.
    pub share_projects: bool,
    /// Lines of each kind that the audit log keeps.
    pub audit_lines: usize,
    /// Plugin libraries that build specs may name, beside those that an administrator allows later.
    pub plugins: BTreeSet<Digest>,
    /// What is kept, and how long.
    pub retention: Policy,
    /// A link that signs a browser in is worth nothing after this long.
    pub login_link_ms: u64,
    /// Folder of the live logs; `None` keeps them in memory (tests, simulation).
    pub log_folder: Option<PathBuf>,
    /// Keeps who is signed in; `None`: until the process ends.
    pub sessions_file: Option<PathBuf>,
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
            share_projects: false,
            audit_lines: 50_000,
            plugins: BTreeSet::new(),
            retention: Policy::default(),
            login_link_ms: 10 * 60 * 1_000,
            log_folder: None,
            sessions_file: None,
            seed: None,
            owner: "coordinator".into(),
        }
    }
}

/// A durable event, as watchers get it.
pub type FarmEvent = Arc<v1::JobEvent>;

/// Streams end with the first error.
pub type Reply<T> = BoxStream<'static, Result<T, ApiError>>;

/// SKUs that metrics have a label for; a shop has a few dozen kinds of devices.
const SKU_LABELS_MAX: usize = 64;

/// Characters of ids: no two look alike.
const ID_ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const ID_CHARACTERS: usize = 12;
/// Calls that count what a project has and add to it, side by side.
const PROJECT_TURNS: usize = 16;

struct Inner {
    inbox: mpsc::Sender<Message>,
    shared: Arc<Shared>,
    store: Arc<dyn Store>,
    blobs: Arc<dyn BlobStore>,
    clock: Arc<dyn Clock>,
    config: FarmConfig,
    epoch: u64,
    tokens: Tokens,
    gate: Gate,
    audit: Audit,
    stored_bytes: StoredBytes,
    heaps: heaps::Heaps,
    project_turns: [tokio::sync::Mutex<()>; PROJECT_TURNS],
    logins: Logins,
    /// When blobs were downloaded that was noted, monotonic.
    downloads: Mutex<BTreeMap<Digest, u64>>,
    sessions: AtomicU64,
    random: Mutex<StdRng>,
    store_ops: Mutex<BTreeMap<&'static str, StoreOp>>,
}

/// Handle on the running farm; clones share it. It enforces roles and projects; who the caller is, the server has found out.
#[derive(Clone)]
pub struct Farm {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Farm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Farm").field("epoch", &self.inner.epoch).finish_non_exhaustive()
    }
}

/// A project in words of the audit log.
fn named_project(project: &str) -> &str {
    if project.is_empty() { "every project" } else { project }
}

impl Farm {
    /// Takes the leadership, loads the store and starts the leader's loop. Requires a running tokio runtime.
    ///
    /// # Errors
    /// When the store cannot be read or the folder of the live logs cannot be made.
    pub async fn open(
        store: Arc<dyn Store>,
        blobs: Arc<dyn BlobStore>,
        config: FarmConfig,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, ApiError> {
        let logs = Logs::new(config.log_folder.clone())
            .map_err(|error| ApiError::new(ErrorCode::Unavailable, format!("the folder of live logs: {error}")))?;
        let left = logs.left();
        let clock: Arc<dyn Clock> = Arc::new(clock::Steady::new(clock));
        let epoch = store.acquire(&config.owner, clock.wall_ms()).await?;
        let snapshot = store.load().await?;
        let tokens = Tokens::new(store.tokens().await?);
        let now = Now { mono_ms: clock.mono_ms(), wall_ms: clock.wall_ms() };
        let day_ago_ms = now.wall_ms.saturating_sub(24 * 60 * 60 * 1_000);
        let ended: Vec<Job> = snapshot.latest.iter().filter(|job| job.ended_ms > day_ago_ms).cloned().collect();
        let is_all = snapshot.latest.len() < LATEST_MAX || ended.len() < snapshot.latest.len();
        let state = State::new(leader::core_config(&config), snapshot, now);
        reload::tell_loaded(&state);
        let shared = Arc::new(Shared {
            events: broadcast::channel(leader::EVENTS_KEPT).0,
            page: broadcast::channel(leader::EVENTS_KEPT).0,
            trouble: watch_channel::Sender::new(None),
            claims: Mutex::default(),
            attempts: Mutex::default(),
            logs,
            days: Days::begin(state.live_jobs(), now.wall_ms),
            last_event: AtomicU64::new(state.last_event()),
            broken: AtomicU64::new(0),
        });
        let (inbox, messages) = mpsc::channel(leader::INBOX_MAX);
        let sealer = Sealer::new(&shared, &blobs, &store, inbox.downgrade());
        let running = |job: &Arc<Job>| {
            let attempt = job.attempts.last().filter(|attempt| attempt.outcome == Outcome::Running)?;
            Some((job.id.clone(), attempt.number))
        };
        let running = state.live_jobs().filter_map(running).collect();
        let sweeping = sealer.clone().sweep(left, running);
        let leader = Leader {
            state,
            store: store.clone(),
            clock: clock.clone(),
            config: config.clone(),
            epoch,
            shared: shared.clone(),
            outboxes: BTreeMap::new(),
            own: inbox.downgrade(),
            sealer,
            ailing: false,
            broken: None,
            broken_at_ms: VecDeque::new(),
        };
        tokio::spawn(leader.run(messages));
        tokio::spawn(sweeping);
        let told = shared.clone();
        let learn = move |past, since_ms| told.days.learn(past, since_ms);
        tokio::spawn(days::read(store.clone(), learn, ended, is_all, now.wall_ms));
        // With a seed, every epoch still draws its own numbers: ids must not repeat after a restart.
        let random = match config.seed {
            Some(seed) => StdRng::seed_from_u64(seed.wrapping_add(epoch.wrapping_mul(0x9e37_79b9_7f4a_7c15))),
            None => rand::make_rng(),
        };
        let logins = Logins::of_file(config.sessions_file.clone(), now);
        let inner = Inner {
            inbox,
            shared,
            store,
            blobs,
            clock,
            config,
            epoch,
            tokens,
            gate: Gate::default(),
            audit: Audit::default(),
            stored_bytes: StoredBytes::default(),
            heaps: heaps::Heaps::default(),
            project_turns: Default::default(),
            logins,
            downloads: Mutex::default(),
            sessions: AtomicU64::new(1),
            random: Mutex::new(random),
            store_ops: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Stops the loop after what was accepted is durable, and ends every stream. Later calls are refused as unavailable.
    pub async fn close(&self) {
        let (answer, closed) = oneshot::channel();
        if self.inner.inbox.send(Message::Close { answer }).await.is_ok() {
            // The loop may have ended by itself; closed is closed.
            let _ = closed.await;
        }
    }

    /// Ends once the farm has ended by itself, with the reason: another coordinator leads, or its state could not be
    /// believed.
    pub async fn ended(&self) -> ApiError {
        self.inner.inbox.closed().await;
        let trouble = self.inner.shared.trouble();
        trouble.unwrap_or_else(|| ApiError::new(ErrorCode::Unavailable, "the coordinator is shutting down"))
    }

    /// Whether the farm leads and its store takes writes: what `/readyz` answers.
    ///
    /// # Errors
    /// The trouble that the last commit had.
    pub fn ready(&self) -> Result<(), ApiError> {
        match self.inner.shared.trouble() {
            Some(trouble) => Err(trouble),
            None => Ok(()),
        }
    }

    /// Who leads, and who the caller is to it.
    pub fn server_info(&self, actor: &Actor) -> v1::ServerInfo {
        v1::ServerInfo {
            version: env!("CARGO_PKG_VERSION").into(),
            epoch: self.inner.epoch,
            actor: actor.name.clone(),
            role: actor.role.to_string(),
            project: actor.project.clone().unwrap_or_default(),
            // The server's, which knows where it listens.
            url: String::new(),
            last_event: self.inner.shared.last_event.load(Ordering::Relaxed),
        }
    }

    /// Expands a request to jobs and makes them durable, all or none. Needs role submit.
    ///
    /// # Errors
    /// A wrong request, one that nothing known could run, or a store that takes no writes.
    pub async fn submit(&self, actor: &Actor, request: v1::SubmitRequest) -> Result<v1::SubmitReply, ApiError> {
        self.submit_traced(actor, request, None).await
    }

    /// The same for a caller who said to which trace it belongs.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub async fn submit_traced(
        &self,
        actor: &Actor,
        request: v1::SubmitRequest,
        caller: Option<TraceContext>,
    ) -> Result<v1::SubmitReply, ApiError> {
        let project = request.project.clone();
        let submitted = self.accept(actor, request, caller).await;
        if let Err(error) = &submitted {
            self.audit_refusal(actor, AuditKind::Use, "submit", &project, error);
        }
        submitted
    }

    /// What a submission would come to; changes nothing. Needs role submit.
    ///
    /// # Errors
    /// A wrong request.
    pub async fn dry_run(&self, actor: &Actor, request: v1::SubmitRequest) -> Result<v1::DryRunReply, ApiError> {
        self.foresee(actor, request).await
    }

    /// Jobs of the caller's projects, newest first.
    pub async fn list_jobs(&self, actor: &Actor, request: v1::ListJobsRequest) -> Result<v1::ListJobsReply, ApiError> {
        self.jobs_out(actor, request).await
    }

    /// One job with its attempts and its report, by id or unique prefix.
    pub async fn get_job(&self, actor: &Actor, id: &str) -> Result<v1::Job, ApiError> {
        self.job_out(actor, id).await
    }

    /// Withdraws interest in jobs; each reply's `waiting_reason` says when its job goes on for others.
    pub async fn cancel_jobs(
        &self,
        actor: &Actor,
        request: v1::CancelJobsRequest,
    ) -> Result<v1::CancelJobsReply, ApiError> {
        let jobs = request.ids.join(" ");
        let cancel = self.cancel(actor, request);
        self.audited(actor, AuditKind::Use, "cancel", &jobs, cancel).await
    }

    /// Every known device, offline ones too unless the request says otherwise.
    pub async fn list_devices(
        &self,
        actor: &Actor,
        request: v1::ListDevicesRequest,
    ) -> Result<v1::ListDevicesReply, ApiError> {
        let (project, agent) = (actor.project.clone(), actor.role == Role::Agent);
        let views = self
            .ask(move |state, now| {
                let sees = |id: &JobId| {
                    let inside = |project: &String| state.job(id).is_some_and(|job| job.is_in(project));
                    !agent && project.as_ref().is_none_or(inside)
                };
                let told = |view: DeviceView| (view.busy.as_ref().is_none_or(sees), view);
                state.devices(now).into_iter().map(told).collect::<Vec<_>>()
            })
            .await?;
        let views = views.into_iter().filter(|(_, view)| view.online || !request.online_only);
        Ok(v1::ListDevicesReply { devices: views.map(|(sees, view)| convert::device_out(view, sees)).collect() })
    }

    /// Engines of the caller's projects, newest first.
    pub async fn list_engines(
        &self,
        actor: &Actor,
        request: v1::ListEnginesRequest,
    ) -> Result<v1::ListEnginesReply, ApiError> {
        self.engines_out(actor, request).await
    }

    /// The newest engine that fits; an inaccurate one only when the request allows it.
    pub async fn find_engine(&self, actor: &Actor, request: v1::FindEngineRequest) -> Result<v1::Engine, ApiError> {
        self.find(actor, request).await
    }

    /// Reports of a plan, a key or a job, newest first.
    pub async fn list_reports(
        &self,
        actor: &Actor,
        request: v1::ListReportsRequest,
    ) -> Result<v1::ListReportsReply, ApiError> {
        self.reports_out(actor, request).await
    }

    /// Replays durable events after `after_event`, then follows. Progress inside a phase comes too, under the number of
    /// the last durable event.
    pub async fn watch(&self, actor: &Actor, request: v1::WatchJobsRequest) -> Result<Reply<v1::JobEvent>, ApiError> {
        watch::watch(self, actor, request).await
    }

    /// An attempt's log from an offset; follows it while the attempt runs when asked to.
    pub async fn read_log(&self, actor: &Actor, request: v1::ReadLogRequest) -> Result<Reply<v1::LogChunk>, ApiError> {
        watch::read_log(self, actor, request).await
    }

    /// Makes a token; its secret is in this reply and nowhere else. Needs role admin.
    pub async fn create_token(
        &self,
        actor: &Actor,
        request: v1::CreateTokenRequest,
    ) -> Result<v1::CreateTokenReply, ApiError> {
        let what = format!("{} ({} of {})", request.name, request.role, named_project(&request.project));
        let made = self.make_token(actor, request, self.fresh_secret());
        self.audited(actor, AuditKind::Admin, "token.create", &what, made).await
    }

    /// The token of whoever may read the data folder, with a secret that lies there already: in a farm without tokens.
    pub async fn create_first_token(&self, actor: &Actor, secret: String) -> Result<(), ApiError> {
        let request = v1::CreateTokenRequest { name: "admin".into(), role: "admin".into(), ..Default::default() };
        self.make_token(actor, request, secret).await.map(drop)
    }

    pub async fn list_tokens(&self, actor: &Actor) -> Result<v1::ListTokensReply, ApiError> {
        self.tokens_out(actor).await
    }

    /// Ends a token at once, by id or by name, and the sessions of agents that joined with it. Needs role admin.
    pub async fn revoke_token(&self, actor: &Actor, id: &str) -> Result<v1::RevokeTokenReply, ApiError> {
        self.audited(actor, AuditKind::Admin, "token.revoke", id, self.end_token(actor, id)).await
    }

    /// Who holds `secret`: `None` when it is unknown, expired or revoked. Answered from memory.
    pub async fn authenticate(&self, secret: &str) -> Result<Option<Actor>, ApiError> {
        Ok(self.holder(secret))
    }

    /// Speaks `Fleet.Session` with one agent until either side ends, or what it showed (`proof`) is worth nothing any
    /// more. `inbound` errors count as a lost connection.
    pub async fn session(
        &self,
        actor: &Actor,
        proof: Proof,
        inbound: Reply<v1::AgentMessage>,
    ) -> Result<Reply<v1::CoordinatorMessage>, ApiError> {
        session::session(self, actor, proof, inbound).await
    }

    /// Every event of every project, progress included, for the page; a slow reader is told that it lagged and looks at
    /// the whole again.
    pub fn subscribe(&self) -> broadcast::Receiver<FarmEvent> {
        self.inner.shared.page.subscribe()
    }

    fn gone() -> ApiError {
        ApiError::new(ErrorCode::Unavailable, "the coordinator is shutting down").with_hint("try again in a moment")
    }

    fn refusal(&self) -> ApiError {
        self.inner.shared.trouble().unwrap_or_else(Self::gone)
    }

    async fn tell(&self, message: Message) -> Result<(), ApiError> {
        self.inner.inbox.send(message).await.map_err(|_| self.refusal())
    }

    fn try_tell(&self, message: Message) -> Result<(), ApiError> {
        self.inner.inbox.try_send(message).map_err(|_| self.refusal())
    }

    /// Applies an input and waits until what it caused is durable.
    async fn input(&self, input: Input) -> Result<crate::core::Reply, ApiError> {
        let (answer, reply) = oneshot::channel();
        self.tell(Message::Input { input, answer: Some(answer) }).await?;
        reply.await.map_err(|_| self.refusal())?
    }

    async fn commit(&self, changes: Vec<Change>) -> Result<(), ApiError> {
        let (answer, reply) = oneshot::channel();
        self.tell(Message::Commit { changes, answer }).await?;
        reply.await.map_err(|_| self.refusal())?
    }

    /// Looks at the state between two inputs.
    async fn ask<T: Send + 'static>(
        &self,
        look: impl FnOnce(&mut State, Now) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let (answer, reply) = oneshot::channel();
        // Nobody may wait for the answer any more; then it is dropped.
        let ask = move |state: &mut State, now: Now| drop(answer.send(look(state, now)));
        self.tell(Message::Ask(Box::new(ask))).await?;
        reply.await.map_err(|_| self.refusal())
    }

    /// Runs a query and counts how long it took.
    async fn timed<T>(
        &self,
        operation: &'static str,
        query: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, ApiError> {
        let start = Instant::now();
        let result = query.await;
        let mut operations = self.inner.store_ops.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = operations.entry(operation).or_default();
        entry.latency.observe(start.elapsed().as_secs_f64() * 1e3);
        entry.errors += u64::from(result.is_err());
        Ok(result?)
    }

    /// One call at a time counts what a project has and adds to it.
    async fn turn_of(&self, project: &str) -> tokio::sync::MutexGuard<'_, ()> {
        let sum = project.bytes().fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        self.inner.project_turns[sum % PROJECT_TURNS].lock().await
    }

    fn random_bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.inner.random.lock().unwrap_or_else(PoisonError::into_inner).fill_bytes(&mut bytes);
        bytes
    }

    fn fresh_id(&self) -> String {
        let mut random = self.inner.random.lock().unwrap_or_else(PoisonError::into_inner);
        (0..ID_CHARACTERS).map(|_| char::from(ID_ALPHABET[random.random_range(0..ID_ALPHABET.len())])).collect()
    }

    fn next_session(&self) -> SessionId {
        self.inner.sessions.fetch_add(1, Ordering::Relaxed)
    }

    fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    fn blobs(&self) -> &Arc<dyn BlobStore> {
        &self.inner.blobs
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.clock
    }

    fn config(&self) -> &FarmConfig {
        &self.inner.config
    }

    fn epoch(&self) -> u64 {
        self.inner.epoch
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    fn tokens(&self) -> &Tokens {
        &self.inner.tokens
    }

    fn audit(&self) -> &Audit {
        &self.inner.audit
    }

    fn gate(&self) -> &Gate {
        &self.inner.gate
    }
}
