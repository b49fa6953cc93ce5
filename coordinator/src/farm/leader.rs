//! The leader's loop: inputs in, core applied at once, changes committed in groups, answers and messages released only
//! once they are durable.
//!
//! One commit is in flight at a time; what arrives meanwhile is applied and joins the next one. So a request and the
//! lease it leads to are one commit, and a slow disk makes commits larger instead of the queue longer.
//!
//! Crash safety: nothing is acknowledged before it is committed. When the store refuses a commit, every answer that
//! depended on it is an error, and the state is loaded anew: memory never runs ahead of the store.
//!
//! A state that breaks one of its own rules (`core/invariants.rs`) is believed in nothing: what the input caused, and what
//! waited for the next commit with it, is refused as an internal error, every session ends, and the state is loaded anew
//! from the store, which holds only what was sound before. What is committed already is released. When that has happened
//! three times within an hour, the coordinator stops leading instead: it answers nothing but the
//! reason, and `/readyz` says so.
//!
//! A store that takes no writes, as on a full disk, is asked once a second whether it does again. Until then callers are
//! refused with the reason, what agents say waits in their streams, and no lease runs out.

use super::{
    FarmConfig, FarmEvent,
    clock::Clock,
    days::Days,
    logs::Logs,
    reload::{broken_rules, refuse, refuse_message},
    seal::Sealer,
    traces, watch,
};
use crate::{
    core::{Change, CoreConfig, Event, Input, Job, JobId, Lookup, Now, Reply, SessionId, State, ToAgent},
    store::{self, Store, StoreError},
};
use planforge_metrics::Histogram;
use planforge_proto::{ApiError, ErrorCode};
use planforge_types::EngineKey;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::{broadcast, mpsc, oneshot, watch as watch_channel};

/// Inputs that may wait for the leader; senders wait beyond that.
pub(super) const INBOX_MAX: usize = 4_096;
/// Inputs that are applied before the loop looks at a finished commit.
const BURST_MAX: usize = 256;
/// Messages that may wait for one agent; a slower one is dropped and connects again.
pub(super) const OUTBOX_MAX: usize = 256;
/// Keys that are looked at in the store at once.
const LOOKED_UP_AT_ONCE: usize = 256;
/// How often the sweep looks for what was missed.
const SWEEP: Duration = Duration::from_secs(1);
/// Events that a slow watcher may be behind before it has to read the store again.
pub(super) const EVENTS_KEPT: usize = 4_096;

type Ask = Box<dyn FnOnce(&mut State, Now) + Send>;

/// What the leader is asked for.
pub(super) enum Message {
    Input {
        input: Input,
        answer: Option<oneshot::Sender<Result<Reply, ApiError>>>,
    },
    /// Looks at the state as it is, commits nothing.
    Ask(Ask),
    /// Makes changes durable that the core has no part in.
    Commit {
        changes: Vec<Change>,
        answer: oneshot::Sender<Result<(), ApiError>>,
    },
    Attach {
        session: SessionId,
        outbox: mpsc::Sender<ToAgent>,
    },
    Close {
        answer: oneshot::Sender<()>,
    },
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input { input, .. } => input.fmt(f),
            Self::Ask(_) => f.write_str("Ask"),
            Self::Commit { changes, .. } => write!(f, "Commit({})", changes.len()),
            Self::Attach { session, .. } => write!(f, "Attach({session})"),
            Self::Close { .. } => f.write_str("Close"),
        }
    }
}

/// A durable transition with the job as it stood after it.
#[derive(Debug)]
pub(super) struct LiveEvent {
    /// `None`: progress between events.
    pub event: Option<Event>,
    /// The newest durable event when this was released.
    pub seq: u64,
    pub job: Arc<Job>,
}

/// What the handle and the loop share.
#[derive(Debug)]
pub(super) struct Shared {
    pub events: broadcast::Sender<Arc<LiveEvent>>,
    /// The same as messages of the contract, of all projects, made only while somebody listens.
    pub page: broadcast::Sender<FarmEvent>,
    /// Why the farm takes no writes now.
    pub trouble: watch_channel::Sender<Option<ApiError>>,
    pub claims: Mutex<Histogram>,
    /// Durations of attempts, by outcome.
    pub attempts: Mutex<BTreeMap<&'static str, Histogram>>,
    pub logs: Logs,
    /// What devices did within the last day.
    pub days: Days,
    /// Number of the newest durable event.
    pub last_event: AtomicU64,
    /// How often the state broke its own rules.
    pub broken: AtomicU64,
}

impl Shared {
    pub fn set_trouble(&self, trouble: Option<ApiError>) {
        self.trouble.send_if_modified(|known| {
            let news = known.is_some() || trouble.is_some();
            *known = trouble;
            news
        });
    }

    /// Why the farm takes no writes now.
    pub fn trouble(&self) -> Option<ApiError> {
        self.trouble.borrow().clone()
    }
}

/// What waits for one commit.
#[derive(Default)]
pub(super) struct Batch {
    pub changes: Vec<Change>,
    pub events: Vec<LiveEvent>,
    pub sends: Vec<(SessionId, ToAgent)>,
    pub replies: Vec<(oneshot::Sender<Result<Reply, ApiError>>, Reply)>,
    pub commits: Vec<oneshot::Sender<Result<(), ApiError>>>,
    pub closed: Vec<(JobId, u32, bool)>,
    /// Keys under which the store is to be looked at once the changes are durable.
    pub asks: BTreeSet<EngineKey>,
    /// Changes of engines up to this one are among the changes, or durable already.
    pub as_of: u64,
    /// Whose inputs are lost when the commit is refused.
    pub sessions: BTreeSet<SessionId>,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.changes.is_empty()
            && self.events.is_empty()
            && self.sends.is_empty()
            && self.replies.is_empty()
            && self.commits.is_empty()
            && self.closed.is_empty()
            && self.asks.is_empty()
    }
}

pub(super) struct Leader {
    pub state: State,
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub config: FarmConfig,
    pub epoch: u64,
    pub shared: Arc<Shared>,
    pub outboxes: BTreeMap<SessionId, mpsc::Sender<ToAgent>>,
    /// To tell itself what was found in the store.
    pub own: mpsc::WeakSender<Message>,
    pub sealer: Sealer,
    /// The store refused the last write.
    pub ailing: bool,
    /// The state breaks its own rules: nothing is applied to it any more.
    pub broken: Option<ApiError>,
    /// When that was, on the monotonic hand.
    pub broken_at_ms: VecDeque<u64>,
}

/// Why the loop ended.
pub(super) enum End {
    Closed(oneshot::Sender<()>),
    Fenced(StoreError),
    Broken(ApiError),
    Abandoned,
}

impl Leader {
    pub async fn run(mut self, mut inbox: mpsc::Receiver<Message>) {
        let end = self.lead(&mut inbox).await;
        let (answer, why) = match end {
            End::Closed(answer) => {
                (Some(answer), ApiError::new(ErrorCode::Unavailable, "the coordinator is shutting down"))
            }
            End::Fenced(error) => {
                tracing::error!(%error, "the coordinator stopped leading");
                (None, error.into())
            }
            End::Broken(error) => {
                tracing::error!(%error, "the coordinator stopped leading");
                (None, error)
            }
            End::Abandoned => (None, ApiError::new(ErrorCode::Unavailable, "the coordinator is shutting down")),
        };
        self.shared.set_trouble(Some(why.clone()));
        self.outboxes.clear();
        inbox.close();
        while let Some(message) = inbox.recv().await {
            match message {
                Message::Input { answer: Some(answer), .. } => drop(answer.send(Err(why.clone()))),
                Message::Commit { answer, .. } => drop(answer.send(Err(why.clone()))),
                Message::Close { answer } => drop(answer.send(())),
                _ => {}
            }
        }
        if let Err(error) = self.store.close().await {
            tracing::warn!(%error, "the database could not be closed cleanly");
        }
        if let Some(answer) = answer {
            let _ = answer.send(());
        }
    }

    pub(super) fn now(&self) -> Now {
        Now { mono_ms: self.clock.mono_ms(), wall_ms: self.clock.wall_ms() }
    }

    async fn lead(&mut self, inbox: &mut mpsc::Receiver<Message>) -> End {
        let mut sweep = tokio::time::interval(SWEEP);
        sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut pending = Batch::default();
        // Without a batch it only asks whether the store takes writes again.
        let mut in_flight: Option<(store::Answer<'static, ()>, Option<Batch>)> = None;
        let mut closing: Option<oneshot::Sender<()>> = None;
        let (store, epoch) = (self.store.clone(), self.epoch);
        let mut superseded = Box::pin(async move { store.superseded(epoch).await });
        let mut burst = Vec::with_capacity(BURST_MAX);
        loop {
            if in_flight.is_none()
                && let Some(error) = self.broken.take()
                && let Err(end) = self.begin_anew(error, std::mem::take(&mut pending), inbox).await
            {
                return end;
            }
            if in_flight.is_none() && !pending.is_empty() {
                let mut batch = std::mem::take(&mut pending);
                if batch.changes.is_empty() {
                    self.release(batch);
                    continue;
                }
                let (store, epoch) = (self.store.clone(), self.epoch);
                let changes = std::mem::take(&mut batch.changes);
                let commit = Box::pin(async move { store.commit(epoch, changes).await });
                in_flight = Some((commit, Some(batch)));
            }
            if in_flight.is_none()
                && let Some(answer) = closing.take()
            {
                return End::Closed(answer);
            }
            let is_idle = in_flight.is_none();
            let committed = async {
                match &mut in_flight {
                    Some((commit, _)) => commit.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                result = committed => {
                    let Some((_, batch)) = in_flight.take() else { continue };
                    match (result, batch) {
                        (Ok(()), batch) => {
                            self.recovered();
                            self.release(batch.unwrap_or_default());
                        }
                        (Err(error @ StoreError::Fenced { .. }), batch) => {
                            let why = ApiError::from(error.clone());
                            refuse(batch.unwrap_or_default(), &why);
                            refuse(std::mem::take(&mut pending), &why);
                            return End::Fenced(error);
                        }
                        (Err(error), None) => self.shared.set_trouble(Some(error.into())),
                        (Err(error), Some(batch)) => {
                            let lost = [batch, std::mem::take(&mut pending)];
                            if let Err(end) = self.recover(error, lost, inbox).await {
                                return end;
                            }
                        }
                    }
                }
                // What is on its way hears from its own commit how that went.
                error = &mut superseded, if is_idle => {
                    refuse(std::mem::take(&mut pending), &ApiError::from(error.clone()));
                    return End::Fenced(error);
                }
                count = inbox.recv_many(&mut burst, BURST_MAX), if closing.is_none() && self.broken.is_none() => {
                    if count == 0 {
                        return End::Abandoned;
                    }
                    for message in burst.drain(..) {
                        if let Message::Close { answer } = message {
                            closing = Some(answer);
                        } else if let Some(error) = &self.broken {
                            refuse_message(message, error);
                        } else {
                            self.take(message, &mut pending);
                        }
                    }
                }
                _ = sweep.tick(), if self.broken.is_none() => {
                    if !self.ailing {
                        self.apply(Input::Tick, None, &mut pending);
                    } else if in_flight.is_none() {
                        let (store, epoch) = (self.store.clone(), self.epoch);
                        in_flight = Some((Box::pin(async move { store.check(epoch).await }), None));
                    }
                }
            }
        }
    }

    fn take(&mut self, message: Message, batch: &mut Batch) {
        match message {
            Message::Input { input, answer } => self.apply(input, answer, batch),
            Message::Ask(ask) => {
                let now = self.now();
                ask(&mut self.state, now);
            }
            Message::Commit { changes, answer } => {
                batch.changes.extend(changes);
                batch.commits.push(answer);
            }
            Message::Attach { session, outbox } => drop(self.outboxes.insert(session, outbox)),
            Message::Close { answer } => drop(answer.send(())),
        }
    }

    fn apply(&mut self, input: Input, answer: Option<oneshot::Sender<Result<Reply, ApiError>>>, batch: &mut Batch) {
        let mut session = session_of(&input);
        if let Input::Disconnected { session: gone } = &input {
            self.outboxes.remove(gone);
            session = None;
        }
        let now = self.now();
        let mut effects = self.state.apply(input, now);
        if !effects.broken.is_empty() {
            let error = broken_rules(effects.broken);
            if let Some(answer) = answer {
                let _ = answer.send(Err(error.clone()));
            }
            self.broken = Some(error);
            return;
        }
        if !effects.changes.is_empty() {
            batch.sessions.extend(session);
        }
        let mut snapshots = std::mem::take(&mut effects.snapshots).into_iter();
        for change in &effects.changes {
            if let Change::Event(event) = change
                && let Some(job) = snapshots.next()
            {
                batch.events.push(LiveEvent { seq: event.seq, event: Some(event.clone()), job });
            }
        }
        let seq = self.state.last_event();
        batch.events.extend(effects.progress.into_iter().map(|job| LiveEvent { event: None, seq, job }));
        batch.changes.append(&mut effects.changes);
        batch.sends.append(&mut effects.sends);
        batch.closed.append(&mut effects.closed);
        batch.asks.append(&mut effects.asks);
        batch.as_of = self.state.as_of();
        if let Some(answer) = answer {
            batch.replies.push((answer, effects.reply));
        }
        let claims = self.state.take_claims();
        if !claims.is_empty() {
            let mut histogram = self.shared.claims.lock().unwrap_or_else(PoisonError::into_inner);
            claims.into_iter().for_each(|claim| histogram.observe(claim as f64));
        }
        let attempts = self.state.take_attempts();
        if !attempts.is_empty() {
            let mut durations = self.shared.attempts.lock().unwrap_or_else(PoisonError::into_inner);
            for (outcome, took_ms) in attempts {
                durations.entry(outcome.name()).or_default().observe(took_ms as f64);
            }
        }
    }

    /// What was waited for is durable: let it out, agents first.
    fn release(&mut self, batch: Batch) {
        self.state.durable_as_of(batch.as_of);
        if !batch.asks.is_empty() {
            self.look_up(batch.asks, batch.as_of);
        }
        for (session, message) in batch.sends {
            self.send(session, message);
        }
        for (answer, reply) in batch.replies {
            let _ = answer.send(Ok(reply));
        }
        for answer in batch.commits {
            let _ = answer.send(Ok(()));
        }
        for event in batch.events {
            self.tell(event);
        }
        for (job, attempt, stored) in batch.closed {
            if stored {
                self.shared.logs.close(&job, attempt);
            } else {
                self.sealer.begin(job, attempt);
            }
        }
    }

    /// Tells who watches.
    pub(super) fn tell(&self, event: LiveEvent) {
        self.shared.last_event.fetch_max(event.seq, Ordering::Relaxed);
        // Sending fails only when nobody watches any more.
        if self.shared.page.receiver_count() > 0 {
            let _ = self.shared.page.send(Arc::new(watch::message(&event, None)));
        }
        if let Some(durable) = &event.event {
            self.shared.days.note(durable, &event.job);
            traces::tell(durable, &event.job);
        }
        let _ = self.shared.events.send(Arc::new(event));
    }

    /// Looks what the store has under keys, beside the loop, and brings it in as an input. What cannot be read is asked for
    /// again by the sweep.
    fn look_up(&self, keys: BTreeSet<EngineKey>, as_of: u64) {
        let (store, own) = (self.store.clone(), self.own.clone());
        tokio::spawn(async move {
            let keys: Vec<EngineKey> = keys.into_iter().collect();
            for keys in keys.chunks(LOOKED_UP_AT_ONCE) {
                let stored = match store.stored(keys.to_vec()).await {
                    Ok(stored) => stored,
                    Err(error) => return tracing::warn!(%error, "the store cannot be asked what answers waiting jobs"),
                };
                let input = Input::Stored(Box::new(Lookup { stored, as_of }));
                let Some(own) = own.upgrade() else { return };
                // Closed: nobody waits for it any more.
                let _ = own.send(Message::Input { input, answer: None }).await;
            }
        });
    }

    fn send(&mut self, session: SessionId, message: ToAgent) {
        match &message {
            ToAgent::Assign { lease, .. } => self.shared.logs.begin(&lease.job, lease.attempt, session),
            ToAgent::Welcome { resumed, .. } => {
                resumed.iter().for_each(|lease| self.shared.logs.open(&lease.job, lease.attempt, session));
            }
            _ => {}
        }
        let last = matches!(message, ToAgent::Refused(_) | ToAgent::Replaced);
        let Some(outbox) = self.outboxes.get(&session) else { return };
        let sent = outbox.try_send(message).is_ok();
        if last || !sent {
            // The session's task ends with its outbox and reports the disconnection.
            self.outboxes.remove(&session);
        }
    }

    /// The store took a write.
    fn recovered(&mut self) {
        if std::mem::take(&mut self.ailing) {
            tracing::info!("the store takes writes again");
            let now = self.now();
            self.state.begin_deadlines_anew(now);
        }
        self.shared.set_trouble(None);
    }
}

/// The session that an input came from.
pub(super) fn session_of(input: &Input) -> Option<SessionId> {
    match input {
        Input::Hello { session, .. }
        | Input::Inventory { session, .. }
        | Input::Heartbeat { session, .. }
        | Input::Started { session, .. }
        | Input::Progress { session, .. }
        | Input::Built { session, .. }
        | Input::Finished { session, .. }
        | Input::Goodbye { session }
        | Input::Refuse { session, .. }
        | Input::Expel { session, .. }
        | Input::Disconnected { session } => Some(*session),
        Input::Submit(_)
        | Input::Cancel(_)
        | Input::Prioritize(_)
        | Input::DropCache { .. }
        | Input::SetProject(_)
        | Input::AllowPlugin(_)
        | Input::ForbidPlugin(_)
        | Input::Pause(_)
        | Input::Resume(_)
        | Input::RevokeToken { .. }
        | Input::RebindToken { .. }
        | Input::DrainAgent { .. }
        | Input::ForgetAgent { .. }
        | Input::LogSealed { .. }
        | Input::Forget(_)
        | Input::Used(_)
        | Input::Stored(_)
        | Input::Tick => None,
    }
}

pub(super) fn core_config(config: &FarmConfig) -> CoreConfig {
    CoreConfig {
        lease_ms: u64::from(config.lease_ms),
        max_attempts: config.max_attempts.max(1),
        max_live_jobs: config.max_live_jobs,
        plugins: config.plugins.clone(),
        ..CoreConfig::default()
    }
}
