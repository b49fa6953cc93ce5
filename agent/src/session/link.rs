//! One stream to the coordinator, from opening to its end, and what the agent says and hears on it.

use super::{Agent, devices::Checked};
use crate::{
    AgentError,
    attempt::{Stop, lack},
};
use futures::StreamExt as _;
use planforge_client::Client;
use planforge_proto::{
    ApiError, ErrorCode, protocol,
    v1::{self, agent_message::Kind as Say, coordinator_message::Kind as Hear},
};
use std::time::Duration;
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval},
};
use tokio_stream::wrappers::ReceiverStream;

/// Messages that may wait for the network. A stream that lags by more is as good as cut.
pub const OUTGOING: usize = 1024;
/// Longest wait for the coordinator to take the stream.
const OPEN_TIMEOUT: Duration = Duration::from_secs(20);

/// Ends that one hello tells of; the rest follows after the welcome.
const ENDS_IN_HELLO: usize = 128;
/// How long a coordinator may take to answer a hello.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(30);
/// Bounds of the heartbeat interval a coordinator may ask for.
const HEARTBEAT_MIN_MS: u32 = 50;
const HEARTBEAT_MAX_MS: u32 = 60_000;
pub const HEARTBEAT_DEFAULT: Duration = Duration::from_secs(3);

/// What a stream tells the agent; `generation` tells streams apart.
#[derive(Debug)]
pub struct LinkEvent {
    pub generation: u64,
    pub kind: LinkEventKind,
}

/// What happened on a stream.
#[derive(Debug)]
pub enum LinkEventKind {
    Message(Box<v1::coordinator_message::Kind>),
    /// The coordinator does not take this agent; the stream ends after it.
    Refused(v1::Refused),
    /// The last event of a stream.
    Down(ApiError),
}

/// The agent's end of a stream.
#[derive(Debug)]
pub struct Link {
    pub generation: u64,
    pub outgoing: mpsc::Sender<v1::AgentMessage>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Link {
    /// Lets what was sent leave, then ends the stream; waits at most `longest` for the coordinator to end its side.
    pub async fn finish(mut self, longest: Duration) {
        self.outgoing = mpsc::channel(1).0;
        let _ = tokio::time::timeout(longest, &mut self.task).await;
    }

    /// Opens a stream whose first message is `hello`.
    pub fn open(client: &Client, hello: v1::Hello, generation: u64, events: mpsc::Sender<LinkEvent>) -> Self {
        let (outgoing, queue) = mpsc::channel(OUTGOING);
        let first = v1::AgentMessage { kind: Some(v1::agent_message::Kind::Hello(hello)) };
        outgoing.try_send(first).expect("a new queue has room");
        let client = client.clone();
        let task = tokio::spawn(async move {
            let error = carry(client, queue, generation, &events).await;
            let _ = events.send(LinkEvent { generation, kind: LinkEventKind::Down(error) }).await;
        });
        Self { generation, outgoing, task }
    }
}

/// Carries messages until the stream ends, and says why it did.
async fn carry(
    client: Client,
    queue: mpsc::Receiver<v1::AgentMessage>,
    generation: u64,
    events: &mpsc::Sender<LinkEvent>,
) -> ApiError {
    let mut fleet = client.fleet();
    let opening = fleet.session(ReceiverStream::new(queue));
    let mut incoming = match tokio::time::timeout(OPEN_TIMEOUT, opening).await {
        Ok(Ok(response)) => response.into_inner(),
        Ok(Err(status)) => return client.error(status),
        Err(_) => {
            let message = format!("the coordinator at {} did not take the session", client.endpoint());
            return ApiError::new(ErrorCode::Unavailable, message);
        }
    };
    loop {
        match incoming.next().await {
            Some(Ok(message)) => {
                let kind = match message.kind {
                    None => continue,
                    Some(v1::coordinator_message::Kind::Refused(refused)) => LinkEventKind::Refused(refused),
                    Some(kind) => LinkEventKind::Message(Box::new(kind)),
                };
                if events.send(LinkEvent { generation, kind }).await.is_err() {
                    return ApiError::new(ErrorCode::Unavailable, "the agent has ended");
                }
            }
            Some(Err(status)) => return client.error(status),
            None => {
                return ApiError::new(ErrorCode::Unavailable, "the coordinator ended the session");
            }
        }
    }
}

impl Agent {
    pub(super) fn open_link(&mut self) {
        self.generation += 1;
        self.welcomed = false;
        self.told_in_hello = self.ended.keys().take(ENDS_IN_HELLO).cloned().collect();
        self.welcome_by = Instant::now() + WELCOME_TIMEOUT;
        let spoken = protocol::spoken();
        let hello = v1::Hello {
            agent_id: self.state.agent_id().to_owned(),
            incarnation: self.incarnation.clone(),
            name: self.config.name.clone(),
            version: spoken.release.to_owned(),
            devices: self.wire_devices(),
            leases: self.leases(),
            draining: self.draining,
            finished: self.ended.values().take(ENDS_IN_HELLO).cloned().collect(),
            protocol: spoken.newest,
            oldest_protocol: spoken.oldest,
            memory_bytes: lack::memory_bytes(),
            labels: self.config.labels.iter().map(ToString::to_string).collect(),
        };
        self.link = Some(Link::open(&self.client, hello, self.generation, self.link_events.clone()));
    }

    pub(super) fn leases(&self) -> Vec<v1::Lease> {
        self.running.values().map(|running| running.lease.clone()).collect()
    }

    /// Sends on an accepted stream; what cannot be sent is told by the next hello or resent after the next welcome.
    pub(super) fn say(&mut self, kind: Say) {
        let Some(link) = self.link.as_ref().filter(|_| self.welcomed) else { return };
        if link.outgoing.try_send(v1::AgentMessage { kind: Some(kind) }).is_err() {
            self.lose_link("the stream takes no more messages");
        }
    }

    pub(super) fn lose_link(&mut self, reason: &str) {
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

    pub(super) fn on_link(&mut self, event: LinkEvent) -> Result<(), AgentError> {
        if self.link.as_ref().is_none_or(|link| link.generation != event.generation) {
            return Ok(());
        }
        match event.kind {
            LinkEventKind::Down(error) => self.on_down(error),
            LinkEventKind::Refused(refused) => {
                tracing::warn!(reason = refused.reason, hint = refused.hint, "the coordinator refused this agent");
                let error = AgentError::Refused { reason: refused.reason, hint: refused.hint };
                self.lose_link("refused");
                if refused.lasting { self.give_up(error) } else { self.bear_refusal(error) }
            }
            LinkEventKind::Message(message) => match *message {
                Hear::Welcome(welcome) => self.on_welcome(welcome),
                message => {
                    self.on_message(message);
                    Ok(())
                }
            },
        }
    }

    pub(super) fn on_down(&mut self, error: ApiError) -> Result<(), AgentError> {
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
    pub(super) fn bear_refusal(&mut self, error: AgentError) -> Result<(), AgentError> {
        let since = *self.refused_since.get_or_insert_with(Instant::now);
        if since.elapsed() < Duration::from_millis(self.config.limits.refusal_patience_ms) {
            return Ok(());
        }
        self.give_up(error)
    }

    fn give_up(&mut self, error: AgentError) -> Result<(), AgentError> {
        self.stop_all(&Stop::Drained);
        Err(error)
    }

    pub(super) fn on_message(&mut self, message: Hear) {
        match message {
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
            // Told apart before.
            Hear::Welcome(_) | Hear::Refused(_) => {}
        }
    }

    pub(super) fn on_welcome(&mut self, welcome: v1::Welcome) -> Result<(), AgentError> {
        // A coordinator chooses what both speak; one of before protocols were numbered names none.
        if let Err(skew) = protocol::spoken().common(welcome.protocol, welcome.protocol) {
            return self.give_up(AgentError::Refused {
                reason: format!("the coordinator does not work with this agent: {skew}"),
                hint: "run the same release of planforge on every host".into(),
            });
        }
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
        Ok(())
    }

    pub(super) fn beat(&mut self, checked: &mpsc::Sender<Checked>) {
        self.hear_of_suspects();
        self.look_at(self.suspects.iter().cloned().collect(), checked);
        self.sampler.start_round(self.devices.keys().cloned().collect());
        let beat = v1::Heartbeat { leases: self.leases(), telemetry: self.sampler.latest() };
        self.say(Say::Heartbeat(beat));
    }
}

pub fn heartbeat_every(period: Duration) -> tokio::time::Interval {
    let mut beat = interval(period);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beat
}
