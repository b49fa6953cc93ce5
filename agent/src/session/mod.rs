//! The agent itself: one stream to the coordinator, and what it holds meanwhile.
//!
//! One task owns everything; attempts run beside it and send it notes. The stream may be cut at any time: attempts go
//! on, and the next stream's first message says what is still held and what ended meanwhile, so that the coordinator
//! resumes instead of starting over. The end of an attempt is kept on disk until it is acknowledged.

mod link;
mod telemetry;

use crate::{
    AgentConfig, AgentError, AttemptKey,
    attempt::{
        Failed, Note, Stop,
        caches::Caches,
        device_check::{self, DeviceCheck},
        joins::Joins,
        log::AttemptLog,
        models::ModelCache,
        process::Spawner,
        run::{Attempt, Shared, blocking},
    },
    host::{
        devices::{DeviceError, by_id, to_wire},
        lock::{self, Holder, Taken},
        proc::ProcessId,
        state::{Outbox, StateFolder, new_id},
    },
};
use link::{Link, LinkEvent, LinkEventKind, OUTGOING};
use planforge_client::{Client, backoff::Backoff};
use planforge_proto::{
    ApiError, ErrorCode,
    v1::{self, agent_message::Kind as Say, coordinator_message::Kind as Hear},
};
use planforge_types::fingerprint::DiscoveredDevice;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    future::Future,
    path::Path,
    pin::pin,
    sync::Arc,
    time::Duration,
};
use telemetry::Sampler;
use tokio::{
    sync::{Mutex, mpsc, watch},
    task::{JoinHandle, JoinSet},
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};

/// Notes of attempts that may wait; more only make workers wait with their output.
const NOTES_WAITING: usize = 256;
/// How often progress and logs are forwarded.
const PUMP_INTERVAL: Duration = Duration::from_millis(200);
/// Largest piece of a log in one message.
const LOG_PIECE_BYTES: usize = 64 << 10;
/// Ends that one hello tells of; the rest follows after the welcome.
const ENDS_IN_HELLO: usize = 128;
/// How long a coordinator may take to answer a hello.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(30);
/// Rounds of killing orphans at the start and the pause between them; what survives is met again when a job comes.
const ORPHAN_ROUNDS: usize = 400;
const ORPHAN_PAUSE: Duration = Duration::from_millis(5);
/// Bounds of the heartbeat interval a coordinator may ask for.
const HEARTBEAT_MIN_MS: u32 = 50;
const HEARTBEAT_MAX_MS: u32 = 60_000;
const HEARTBEAT_DEFAULT: Duration = Duration::from_secs(3);
/// How long an agent that ends waits for its last results to be acknowledged; they stay on disk.
const FAREWELL: Duration = Duration::from_secs(5);
const FAREWELL_EMBEDDED: Duration = Duration::from_secs(1);

/// A running attempt as the agent sees it.
struct Running {
    lease: v1::Lease,
    stop: watch::Sender<Option<Stop>>,
    started: bool,
    progress: Option<v1::Progress>,
    /// `progress` was not sent yet.
    progress_waits: bool,
    built: Option<v1::Built>,
    log: Option<Arc<AttemptLog>>,
    /// Log bytes already sent on this stream or an earlier one.
    log_sent: u64,
}

/// A device that was looked at, and why nothing can run on it where that is so.
type Checked = (String, Result<(), String>);

struct Agent {
    config: AgentConfig,
    client: Client,
    state: StateFolder,
    outbox: Outbox,
    incarnation: String,
    shared: Arc<Shared>,
    devices: BTreeMap<String, DiscoveredDevice>,
    /// Devices on which nothing can run, and why; looked at again from time to time.
    unusable: BTreeMap<String, String>,
    /// Devices of which the driver told what may make them unusable; to be looked at as soon as nothing runs there.
    suspects: BTreeSet<String>,
    /// One attempt of this agent at a time on each device.
    turns: HashMap<String, Arc<Mutex<()>>>,
    running: BTreeMap<AttemptKey, Running>,
    /// Ended, not acknowledged.
    ended: BTreeMap<AttemptKey, v1::Finished>,
    attempts: JoinSet<()>,
    notes: mpsc::Sender<(AttemptKey, Note)>,
    sampler: Sampler,
    link: Option<Link>,
    link_events: mpsc::Sender<LinkEvent>,
    generation: u64,
    /// Ends that the newest hello told of.
    told_in_hello: Vec<AttemptKey>,
    /// The newest stream was accepted.
    welcomed: bool,
    /// When a stream that was not accepted yet is given up.
    welcome_by: Instant,
    ever_welcomed: bool,
    backoff: Backoff,
    reconnect_at: Instant,
    /// First refusal since the last welcome.
    refused_since: Option<Instant>,
    heartbeat: tokio::time::Interval,
    draining: bool,
}

/// Runs an agent until `shutdown` resolves and what runs has ended, or until it cannot go on.
///
/// Requires a tokio runtime with time and I/O. Lost connections are retried for ever; what ends the agent is a bad
/// set-up, a denied token, or a coordinator that keeps refusing it.
pub async fn run(config: AgentConfig, shutdown: impl Future<Output = ()>) -> Result<(), AgentError> {
    let (notes, mut notes_in) = mpsc::channel(NOTES_WAITING);
    let (link_events, mut link_events_in) = mpsc::channel(NOTES_WAITING);
    let mut agent = Agent::start(config, notes, link_events).await?;
    let mut shutdown = pin!(shutdown);
    let mut pump = interval(PUMP_INTERVAL);
    pump.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut refresh = interval(Duration::from_millis(agent.config.limits.device_refresh_ms.max(1)));
    refresh.set_missed_tick_behavior(MissedTickBehavior::Delay);
    refresh.reset();
    let (found, mut found_in) = mpsc::channel(1);
    let mut looking: Option<JoinHandle<()>> = None;
    let mut recheck = interval(Duration::from_millis(agent.config.limits.device_retry_ms.max(1)));
    recheck.set_missed_tick_behavior(MissedTickBehavior::Delay);
    recheck.reset();
    let (checked, mut checked_in) = mpsc::channel::<Checked>(NOTES_WAITING);
    let mut drain_until: Option<Instant> = None;
    let mut farewell_until: Option<Instant> = None;
    let far_away = Instant::now() + Duration::from_secs(365 * 24 * 3600);
    loop {
        if agent.draining && agent.running.is_empty() {
            let farewell = if agent.config.embedded { FAREWELL_EMBEDDED } else { FAREWELL };
            let until = *farewell_until.get_or_insert_with(|| Instant::now() + farewell);
            if agent.ended.is_empty() || Instant::now() >= until {
                return agent.farewell().await;
            }
        }
        tokio::select! {
            biased;
            () = &mut shutdown, if !agent.draining => {
                agent.begin_drain();
                let patience = if agent.config.embedded { 0 } else { agent.config.limits.drain_ms };
                drain_until = Some(Instant::now() + Duration::from_millis(patience));
            }
            () = sleep_until(drain_until.unwrap_or(far_away)), if drain_until.is_some() => {
                drain_until = None;
                agent.stop_all(&Stop::Drained);
            }
            () = sleep_until(farewell_until.unwrap_or(far_away)), if farewell_until.is_some() => {}
            // Timers come before what others send: a flood of messages must not end a lease.
            _ = agent.heartbeat.tick(), if agent.welcomed => agent.beat(&checked),
            _ = pump.tick(), if agent.welcomed && !agent.running.is_empty() => agent.pump(),
            () = sleep_until(agent.reconnect_at), if agent.link.is_none() => agent.open_link(),
            () = sleep_until(agent.welcome_by), if agent.link.is_some() && !agent.welcomed => {
                agent.lose_link("the coordinator did not answer the hello");
            }
            Some(event) = link_events_in.recv() => agent.on_link(event)?,
            Some((key, note)) = notes_in.recv() => agent.on_note(&key, note),
            Some(devices) = found_in.recv() => agent.on_devices(devices),
            Some((device, result)) = checked_in.recv() => agent.on_checked(&device, result),
            _ = recheck.tick(), if !agent.unusable.is_empty() => agent.look_at(agent.unusable.keys().cloned().collect(), &checked),
            // A driver that hangs holds one thread, not one more at every round.
            _ = refresh.tick(), if looking.as_ref().is_none_or(JoinHandle::is_finished) => {
                let (source, found) = (agent.config.devices.clone(), found.clone());
                looking = Some(tokio::task::spawn_blocking(move || {
                    // A round that the agent has not looked at yet is enough.
                    let _ = found.try_send(source.devices());
                }));
            }
        }
    }
}

/// Kills what dead agents left on devices before the coordinator hears that they are free.
fn clear_orphans(folder: &Path, devices: &BTreeMap<String, DiscoveredDevice>) -> Result<(), lock::LockError> {
    for device in devices.keys() {
        for _ in 0..ORPHAN_ROUNDS {
            match lock::try_take(folder, device)? {
                Taken::Held(held) if held.holder.as_ref().is_some_and(Holder::kill_if_orphaned) => {
                    std::thread::park_timeout(ORPHAN_PAUSE);
                }
                _ => break,
            }
        }
    }
    Ok(())
}

impl Agent {
    async fn start(
        config: AgentConfig,
        notes: mpsc::Sender<(AttemptKey, Note)>,
        link_events: mpsc::Sender<LinkEvent>,
    ) -> Result<Self, AgentError> {
        let client = Client::lazy(config.endpoint.clone(), config.token.clone()).map_err(AgentError::Endpoint)?;
        let setup = config.clone();
        let (state, devices, ended) = tokio::task::spawn_blocking(move || {
            let state = StateFolder::open(&setup.state_dir)?;
            setup.prepare_lock_dir()?;
            let devices = by_id(setup.devices.devices()?);
            clear_orphans(&setup.lock_dir, &devices)?;
            let ended = state.outbox().unacknowledged()?;
            Ok::<_, AgentError>((state, devices, ended))
        })
        .await
        .expect("opening the state folder does not panic")?;
        let ended = ended.into_iter().filter_map(|f| Some((AttemptKey::of(f.lease.as_ref()?)?, f))).collect();
        let limits = config.limits.clone();
        let shared = Arc::new(Shared {
            agent_name: config.name.clone(),
            process: ProcessId::current().ok_or(AgentError::NoProc)?,
            worker_command: config.worker_command.clone(),
            blobs: client.blobs().clone(),
            models: ModelCache::new(state.models(), limits.model_cache_bytes),
            scratch: state.scratch(),
            caches: Caches::new(state.caches(), Joins::new(config.devices.clone())),
            ceilings: state.ceilings(),
            refuse_plugins: config.refuse_plugins,
            outbox: state.outbox(),
            lock_folder: config.lock_dir.clone(),
            spawner: Spawner::start().map_err(AgentError::Thread)?,
            check: DeviceCheck::new(config.devices.clone(), config.check_command.clone()),
            limits: limits.clone(),
        });
        let names: Vec<_> = devices.keys().cloned().collect();
        tracing::info!(agent = state.agent_id(), name = config.name, ?names, coordinator = %config.endpoint, "agent starts");
        Ok(Self {
            client,
            outbox: state.outbox(),
            state,
            incarnation: new_id(),
            shared,
            devices,
            unusable: BTreeMap::new(),
            suspects: BTreeSet::new(),
            turns: HashMap::new(),
            running: BTreeMap::new(),
            ended,
            attempts: JoinSet::new(),
            notes,
            sampler: Sampler::new(config.devices.clone()),
            link: None,
            link_events,
            generation: 0,
            told_in_hello: Vec::new(),
            welcomed: false,
            welcome_by: Instant::now(),
            ever_welcomed: false,
            backoff: Backoff::new(
                Duration::from_millis(limits.reconnect_first_ms),
                Duration::from_millis(limits.reconnect_longest_ms),
            ),
            reconnect_at: Instant::now(),
            refused_since: None,
            heartbeat: heartbeat_every(HEARTBEAT_DEFAULT),
            draining: false,
            config,
        })
    }

    // ---- the stream ----

    fn open_link(&mut self) {
        self.generation += 1;
        self.welcomed = false;
        self.told_in_hello = self.ended.keys().take(ENDS_IN_HELLO).cloned().collect();
        self.welcome_by = Instant::now() + WELCOME_TIMEOUT;
        let hello = v1::Hello {
            agent_id: self.state.agent_id().to_owned(),
            incarnation: self.incarnation.clone(),
            name: self.config.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            devices: self.wire_devices(),
            leases: self.leases(),
            draining: self.draining,
            finished: self.ended.values().take(ENDS_IN_HELLO).cloned().collect(),
        };
        self.link = Some(Link::open(&self.client, hello, self.generation, self.link_events.clone()));
    }

    fn leases(&self) -> Vec<v1::Lease> {
        self.running.values().map(|running| running.lease.clone()).collect()
    }

    fn wire_devices(&self) -> Vec<v1::Device> {
        let wire = |device: &DiscoveredDevice| to_wire(device, self.draining, self.unusable.get(&device.id));
        self.devices.values().map(wire).collect()
    }

    /// Sends on an accepted stream; what cannot be sent is told by the next hello or resent after the next welcome.
    fn say(&mut self, kind: Say) {
        let Some(link) = self.link.as_ref().filter(|_| self.welcomed) else { return };
        if link.outgoing.try_send(v1::AgentMessage { kind: Some(kind) }).is_err() {
            self.lose_link("the stream takes no more messages");
        }
    }

    fn lose_link(&mut self, reason: &str) {
        let delay = self.backoff.next_delay();
        if self.welcomed {
            tracing::warn!(reason, running = self.running.len(), "lost the coordinator; jobs go on, reconnecting");
        } else {
            tracing::debug!(reason, ?delay, "not connected, will try again");
        }
        self.link = None;
        self.welcomed = false;
        self.reconnect_at = Instant::now() + delay;
    }

    fn on_link(&mut self, event: LinkEvent) -> Result<(), AgentError> {
        if self.link.as_ref().is_none_or(|link| link.generation != event.generation) {
            return Ok(());
        }
        match event.kind {
            LinkEventKind::Down(error) => self.on_down(error),
            LinkEventKind::Refused(refused) => {
                tracing::warn!(reason = refused.reason, hint = refused.hint, "the coordinator refused this agent");
                let error = AgentError::Refused { reason: refused.reason, hint: refused.hint };
                self.lose_link("refused");
                self.bear_refusal(error)
            }
            LinkEventKind::Message(message) => {
                self.on_message(*message);
                Ok(())
            }
        }
    }

    fn on_down(&mut self, error: ApiError) -> Result<(), AgentError> {
        let denied = matches!(error.code, ErrorCode::Unauthenticated | ErrorCode::PermissionDenied);
        if self.generation == 1 && !denied {
            tracing::warn!(error = error.message, hint = error.hint, "cannot join the farm yet, trying on");
        }
        self.lose_link(&error.message);
        if !denied {
            return Ok(());
        }
        if self.ever_welcomed { self.bear_refusal(AgentError::Denied(error)) } else { Err(AgentError::Denied(error)) }
    }

    /// Refusals are retried for a while: the coordinator may not know yet that the process before this one is dead.
    fn bear_refusal(&mut self, error: AgentError) -> Result<(), AgentError> {
        let since = *self.refused_since.get_or_insert_with(Instant::now);
        if since.elapsed() < Duration::from_millis(self.config.limits.refusal_patience_ms) {
            return Ok(());
        }
        self.stop_all(&Stop::Drained);
        Err(error)
    }

    fn on_message(&mut self, message: Hear) {
        match message {
            Hear::Welcome(welcome) => self.on_welcome(welcome),
            Hear::Assign(assign) => self.on_assign(assign),
            Hear::Cancel(v1::CancelLease { lease: Some(lease), reason }) => {
                self.stop(&lease, Stop::Cancelled { reason });
            }
            Hear::LeaseLost(v1::LeaseLost { lease: Some(lease), reason }) => self.lose(&lease, reason),
            Hear::FinishedAck(v1::FinishedAck { lease: Some(lease), accepted, reason }) => {
                if !accepted {
                    tracing::warn!(job = lease.job, attempt = lease.attempt, reason, "a result was not accepted");
                } else if !reason.is_empty() {
                    tracing::info!(job = lease.job, attempt = lease.attempt, reason, "a result was accepted");
                }
                self.forget(&lease);
            }
            Hear::Cancel(_) | Hear::LeaseLost(_) | Hear::FinishedAck(_) => {
                tracing::warn!("a message of the coordinator names no lease");
            }
            // Told apart by the stream.
            Hear::Refused(_) => {}
        }
    }

    fn on_welcome(&mut self, welcome: v1::Welcome) {
        tracing::info!(epoch = welcome.epoch, resumed = welcome.resumed.len(), lost = welcome.lost.len(), "joined");
        self.welcomed = true;
        self.ever_welcomed = true;
        self.refused_since = None;
        self.backoff.reset();
        let beat_ms = welcome.heartbeat_ms.clamp(HEARTBEAT_MIN_MS, HEARTBEAT_MAX_MS);
        self.heartbeat = heartbeat_every(Duration::from_millis(beat_ms.into()));
        for lease in &welcome.lost {
            self.lose(lease, "the job was given to another attempt meanwhile".into());
        }
        let mut again = Vec::new();
        for running in self.running.values_mut() {
            running.progress_waits = running.progress.is_some();
            // A coordinator that restarted may have nothing of it; repeated bytes change nothing.
            running.log_sent = 0;
            if running.started {
                again.push(Say::Started(v1::Started { lease: Some(running.lease.clone()) }));
            }
            again.extend(running.built.clone().map(Say::Built));
        }
        for (key, finished) in &self.ended {
            if !self.told_in_hello.contains(key) {
                again.push(Say::Finished(finished.clone()));
            }
        }
        for message in again {
            self.say(message);
        }
        self.pump();
    }

    /// Takes over which devices the driver told of.
    fn hear_of_suspects(&mut self) {
        for (device, reason) in self.sampler.take_suspects() {
            if self.devices.get(&device).is_some_and(device_check::can_break) && self.suspects.insert(device.clone()) {
                tracing::warn!(device, reason, "a device will be looked at");
            }
        }
    }

    fn beat(&mut self, checked: &mpsc::Sender<Checked>) {
        self.hear_of_suspects();
        self.look_at(self.suspects.iter().cloned().collect(), checked);
        self.sampler.start_round(self.devices.keys().cloned().collect());
        let beat = v1::Heartbeat { leases: self.leases(), telemetry: self.sampler.latest() };
        self.say(Say::Heartbeat(beat));
    }

    // ---- attempts ----

    fn on_assign(&mut self, assign: v1::Assign) {
        let (Some(lease), Some(job)) = (assign.lease, assign.job) else {
            tracing::warn!("the coordinator assigned a job without its lease or its description");
            return;
        };
        let Some(key) = AttemptKey::of(&lease) else {
            tracing::warn!(job = lease.job, "the coordinator assigned a job whose id cannot be used");
            return;
        };
        if self.running.contains_key(&key) {
            return;
        }
        if let Some(finished) = self.ended.get(&key).cloned() {
            self.say(Say::Finished(finished));
            return;
        }
        let refuse = |failed: Failed| v1::Finished {
            lease: Some(lease.clone()),
            outcome: "failed".into(),
            failure: Some(failed.to_wire()),
            ..v1::Finished::default()
        };
        let name = &self.config.name;
        if self.draining {
            let failed = Failed::infrastructure(format!("agent {name} is being shut down and takes no more jobs"));
            return self.end(&key, refuse(failed));
        }
        let Some(device) = self.devices.get(&lease.device).cloned() else {
            let failed = Failed::infrastructure(format!("agent {name} has no device {} any more", lease.device));
            return self.end(&key, refuse(failed));
        };
        if let Some(reason) = self.unusable.get(&device.id) {
            let failed =
                Failed::infrastructure(format!("device {} of agent {name} cannot be used: {reason}", device.id));
            return self.end(&key, refuse(failed));
        }
        let if_lost = refuse(Failed::infrastructure(format!("agent {name} ended while the job ran")));
        if let Err(error) = self.outbox.begin(&key, &if_lost) {
            return self.end(&key, refuse(Failed::infrastructure(error.to_string())));
        }
        self.hear_of_suspects();
        let suspected = self.suspects.contains(&device.id);
        let (stop, stopped) = watch::channel(None);
        let turn = self.turns.entry(device.id.clone()).or_default().clone();
        tracing::info!(job = key.job, attempt = key.attempt, device = device.id, sku = job.sku, "attempt starts");
        let attempt = Attempt {
            shared: self.shared.clone(),
            key: key.clone(),
            lease: lease.clone(),
            job,
            cache: assign.cache,
            without_cache: assign.without_cache,
            device,
            suspected,
            turn,
            stop: stopped,
            notes: self.notes.clone(),
        };
        self.attempts.spawn(attempt.run());
        let running = Running {
            lease,
            stop,
            started: false,
            progress: None,
            progress_waits: false,
            built: None,
            log: None,
            log_sent: 0,
        };
        self.running.insert(key, running);
    }

    fn on_note(&mut self, key: &AttemptKey, note: Note) {
        while self.attempts.try_join_next().is_some() {}
        let Some(running) = self.running.get_mut(key) else { return };
        let lease = Some(running.lease.clone());
        match note {
            Note::Log(log) => running.log = Some(log),
            Note::Started => {
                running.started = true;
                self.say(Say::Started(v1::Started { lease }));
            }
            Note::Progress { phase, fraction, detail } => {
                let new_phase = running.progress.as_ref().is_none_or(|old| old.phase != phase);
                let progress = v1::Progress { lease, phase, fraction, detail };
                running.progress = Some(progress.clone());
                running.progress_waits = !new_phase;
                if new_phase {
                    self.say(Say::Progress(progress));
                }
            }
            Note::Built(built) => {
                running.built = Some(built.clone());
                self.say(Say::Built(built));
            }
            Note::Checked(result) => {
                let device = running.lease.device.clone();
                self.on_checked(&device, result);
            }
            Note::Window(begins) => self.sampler.window(&running.lease.device, begins),
            Note::Ended(finished) => {
                self.sampler.window(&running.lease.device, false);
                self.pump_log(key);
                self.running.remove(key);
                match finished {
                    Some(finished) => {
                        tracing::info!(
                            job = key.job,
                            attempt = key.attempt,
                            outcome = finished.outcome,
                            "attempt ended"
                        );
                        self.ended.insert(key.clone(), (*finished).clone());
                        self.say(Say::Finished(*finished));
                    }
                    None => self.outbox.forget(key),
                }
            }
        }
    }

    /// Ends an attempt that never ran.
    fn end(&mut self, key: &AttemptKey, finished: v1::Finished) {
        if let Err(error) = self.outbox.end(key, &finished) {
            tracing::error!(%error, "cannot keep the end of an attempt; it is only in memory");
        }
        self.ended.insert(key.clone(), finished.clone());
        self.say(Say::Finished(finished));
    }

    fn stop(&mut self, lease: &v1::Lease, why: Stop) {
        if let Some(running) = AttemptKey::of(lease).and_then(|key| self.running.get(&key)) {
            running.stop.send_if_modified(|stop| {
                // A lost lease overrides everything: nothing may be published any more.
                let first = stop.is_none() || matches!(why, Stop::LeaseLost { .. });
                if first {
                    *stop = Some(why);
                }
                first
            });
        }
    }

    fn stop_all(&mut self, why: &Stop) {
        for lease in self.leases() {
            self.stop(&lease, why.clone());
        }
    }

    /// Another attempt owns the job.
    fn lose(&mut self, lease: &v1::Lease, reason: String) {
        self.stop(lease, Stop::LeaseLost { reason });
        self.forget(lease);
    }

    fn forget(&mut self, lease: &v1::Lease) {
        let Some(key) = AttemptKey::of(lease) else { return };
        if self.ended.remove(&key).is_some() {
            self.outbox.forget(&key);
        }
    }

    /// Forwards waiting progress and log bytes.
    fn pump(&mut self) {
        let keys: Vec<_> = self.running.keys().cloned().collect();
        for key in &keys {
            let Some(running) = self.running.get_mut(key) else { continue };
            if std::mem::take(&mut running.progress_waits)
                && let Some(progress) = running.progress.clone()
            {
                self.say(Say::Progress(progress));
            }
            self.pump_log(key);
        }
    }

    /// Sends new log bytes, as long as the stream has room for messages that matter more.
    fn pump_log(&mut self, key: &AttemptKey) {
        loop {
            let Some(link) = self.link.as_ref().filter(|_| self.welcomed) else { return };
            if link.outgoing.capacity() < OUTGOING / 2 {
                return;
            }
            let Some(running) = self.running.get_mut(key) else { return };
            let Some(log) = running.log.as_ref().filter(|log| log.len_bytes() > running.log_sent) else { return };
            let offset_bytes = running.log_sent;
            let data = match log.read(offset_bytes, LOG_PIECE_BYTES) {
                Ok(data) => data,
                Err(error) => {
                    tracing::warn!(attempt = %key, %error, "cannot read an attempt's log");
                    running.log = None;
                    return;
                }
            };
            running.log_sent += data.len() as u64;
            let lease = Some(running.lease.clone());
            self.say(Say::Log(v1::LogLines { lease, offset_bytes, data }));
        }
    }

    // ---- devices and shutdown ----

    fn on_devices(&mut self, found: Result<Vec<DiscoveredDevice>, DeviceError>) {
        match found {
            Ok(devices) => {
                let devices = by_id(devices);
                if devices != self.devices {
                    tracing::info!(devices = ?devices.keys().collect::<Vec<_>>(), "devices or toolchains changed");
                    self.devices = devices;
                    self.say(Say::Inventory(v1::Inventory { devices: self.wire_devices() }));
                }
            }
            Err(error) => tracing::warn!(%error, "keeping the devices found before"),
        }
    }

    /// A device was looked at; the coordinator hears of it where that changed anything.
    fn on_checked(&mut self, device: &str, result: Result<(), String>) {
        self.suspects.remove(device);
        let changed = match result {
            Ok(()) => {
                let was = self.unusable.remove(device);
                was.iter().for_each(|reason| tracing::info!(device, was = reason, "a device can be used again"));
                was.is_some()
            }
            Err(reason) => {
                let same = self.unusable.get(device) == Some(&reason);
                if !same {
                    tracing::error!(device, reason, "a device cannot be used; it gets no jobs until it can");
                    self.unusable.insert(device.to_owned(), reason);
                }
                !same
            }
        };
        if changed {
            self.say(Say::Inventory(v1::Inventory { devices: self.wire_devices() }));
        }
    }

    /// Looks at devices, those apart on which something runs: that looks itself when it fails, and the next round will.
    fn look_at(&mut self, devices: Vec<String>, checked: &mpsc::Sender<Checked>) {
        for device in devices.iter().filter_map(|id| self.devices.get(id)).cloned() {
            let (shared, checked) = (self.shared.clone(), checked.clone());
            let turn = self.turns.entry(device.id.clone()).or_default().clone();
            self.attempts.spawn(async move {
                let Ok(_turn) = turn.try_lock() else { return };
                let (folder, id) = (shared.lock_folder.clone(), device.id.clone());
                let lock = match blocking(move || lock::try_take(&folder, &id)).await {
                    Ok(Taken::Ours(lock)) => lock,
                    Ok(Taken::Held(_)) => return,
                    Err(error) => return tracing::warn!(device = device.id, %error, "cannot look at a device again"),
                };
                let result = device_check::check(&shared, &device, &lock).await;
                drop(lock);
                // The agent that would hear it is gone only when the process is ending.
                let _ = checked.send((device.id, result)).await;
            });
        }
    }

    fn begin_drain(&mut self) {
        self.draining = true;
        if !self.running.is_empty() {
            tracing::info!(running = self.running.len(), "draining: no new jobs, waiting for those that run");
        }
        self.say(Say::Inventory(v1::Inventory { devices: self.wire_devices() }));
    }

    /// Says goodbye, and waits until it is on its way.
    async fn farewell(mut self) -> Result<(), AgentError> {
        if !self.ended.is_empty() {
            tracing::warn!(
                results = self.ended.len(),
                "ending with results not yet delivered; the next start delivers them"
            );
        }
        self.say(Say::Goodbye(v1::Goodbye {}));
        if let Some(link) = self.link.take() {
            link.finish(FAREWELL_EMBEDDED).await;
        }
        tracing::info!("agent ends");
        Ok(())
    }
}

fn heartbeat_every(period: Duration) -> tokio::time::Interval {
    let mut beat = interval(period);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beat
}
