//! The agent itself: one stream to the coordinator, and what it holds meanwhile.
//!
//! One task owns everything; attempts run beside it and send it notes. The stream may be cut at any time: attempts go
//! on, and the next stream's first message says what is still held and what ended meanwhile, so that the coordinator
//! resumes instead of starting over. The end of an attempt is kept on disk until it is acknowledged.
//!
//! | module | holds |
//! |---|---|
//! | `link` | one stream, what is said and heard on it |
//! | `attempts` | attempts: begun, told of, stopped, forwarded, ended |
//! | `devices` | which devices there are and which cannot be used |
//! | `telemetry` | their state for heartbeats |

mod attempts;
mod devices;
mod link;
mod telemetry;

use crate::{
    AgentConfig, AgentError, AttemptKey,
    attempt::{
        Note, Shared, Stop, caches::Caches, device_check::DeviceCheck, joins::Joins, models::ModelCache,
        process::Spawner,
    },
    enrollment,
    host::{
        devices::by_id,
        proc::ProcessId,
        room::Room,
        state::{Outbox, StateFolder, new_id},
    },
};
use attempts::Running;
use devices::{Checked, clear_orphans};
use link::{HEARTBEAT_DEFAULT, Link, LinkEvent, heartbeat_every};
use planforge_client::{Client, backoff::Backoff, blocking::blocking};
use planforge_proto::v1::{self, agent_message::Kind as Say};
use planforge_types::fingerprint::DiscoveredDevice;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    future::Future,
    pin::pin,
    sync::Arc,
    time::Duration,
};
use telemetry::Sampler;
use tokio::{
    sync::{Mutex, mpsc},
    task::{JoinHandle, JoinSet},
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

/// Notes of attempts that may wait; more only make workers wait with their output.
const NOTES_WAITING: usize = 256;
/// How often progress and logs are forwarded.
const PUMP_INTERVAL: Duration = Duration::from_millis(200);
/// How often an idle agent looks whether what it keeps is still of use; it does at every attempt's end, too.
const ROOM_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);
/// How long an agent that ends waits for its last results to be acknowledged; they stay on disk.
const FAREWELL: Duration = Duration::from_secs(5);
const FAREWELL_EMBEDDED: Duration = Duration::from_secs(1);

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
    // Of the level of the gravest lines, so that it is around all that are let through.
    let span = tracing::error_span!("agent", agent = %config.name);
    serve(config, shutdown).instrument(span).await
}

async fn serve(config: AgentConfig, shutdown: impl Future<Output = ()>) -> Result<(), AgentError> {
    let (notes, mut notes_in) = mpsc::channel(NOTES_WAITING);
    let (link_events, mut link_events_in) = mpsc::channel(NOTES_WAITING);
    let mut agent = Agent::start(config, notes, link_events).await?;
    let _renewing = agent.config.enrolled.clone().map(|identity| {
        AbortOnDropHandle::new(tokio::spawn(enrollment::keep_renewing(agent.client.blobs().clone(), identity)))
    });
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
    // The first at once: what earlier processes left.
    let mut room = interval(ROOM_INTERVAL);
    room.set_missed_tick_behavior(MissedTickBehavior::Delay);
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
            _ = room.tick() => agent.make_room(),
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

impl Agent {
    async fn start(
        config: AgentConfig,
        notes: mpsc::Sender<(AttemptKey, Note)>,
        link_events: mpsc::Sender<LinkEvent>,
    ) -> Result<Self, AgentError> {
        let client = Client::lazy(config.endpoint.clone(), config.token.clone()).map_err(AgentError::Endpoint)?;
        let setup = config.clone();
        let (state, devices, ended) = blocking(move || {
            let state = StateFolder::open(&setup.state_dir)?;
            setup.prepare_lock_dir()?;
            let devices = by_id(setup.devices.devices()?);
            clear_orphans(&setup.lock_dir, &devices)?;
            let ended = state.outbox().unacknowledged()?;
            Ok::<_, AgentError>((state, devices, ended))
        })
        .await?;
        let ended = ended.into_iter().filter_map(|f| Some((AttemptKey::of(f.lease.as_ref()?)?, f))).collect();
        let limits = config.limits.clone();
        let shared = Arc::new(Shared {
            agent_name: config.name.clone(),
            process: ProcessId::current().ok_or(AgentError::NoProc)?,
            worker_command: config.worker_command.clone(),
            blobs: client.blobs().clone(),
            models: ModelCache::new(state.models(), Room::new(state.kept(), limits.cache_bytes)),
            scratch: state.scratch(),
            caches: Caches::new(state.caches(), Joins::new(config.devices.clone())),
            ceilings: state.ceilings(),
            oracles: state.oracles(),
            baselines: config.baselines.clone(),
            refuse_plugins: config.refuse_plugins,
            outbox: state.outbox(),
            lock_folder: config.lock_dir.clone(),
            spawner: Spawner::start().map_err(AgentError::Thread)?,
            check: DeviceCheck::new(config.devices.clone(), config.check_command.clone()),
            limits: limits.clone(),
        });
        let names: Vec<_> = devices.keys().cloned().collect();
        tracing::info!(id = state.agent_id(), devices = names.join(" "), coordinator = %config.endpoint, "agent starts");
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

    fn begin_drain(&mut self) {
        self.draining = true;
        if !self.running.is_empty() {
            tracing::info!(running = self.running.len(), "draining: no new jobs, waiting for those that run");
        }
        self.say(Say::Inventory(v1::Inventory { devices: self.wire_devices() }));
    }

    /// Makes what this host keeps fit its bound, beside everything else.
    fn make_room(&self) {
        let shared = self.shared.clone();
        tokio::spawn(async move { shared.models.make_room().await });
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
        // An agent of one command would never come to it otherwise.
        self.shared.models.make_room().await;
        tracing::info!("agent ends");
        Ok(())
    }
}
