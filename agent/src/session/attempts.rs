//! Attempts as the agent sees them: begun, told of, stopped, forwarded, ended.

use super::{Agent, link::OUTGOING};
use crate::{
    AttemptKey,
    attempt::{Attempt, Failed, Note, Stop, log::AttemptLog, spans::Spans},
};
use planforge_proto::v1::{self, agent_message::Kind as Say};
use planforge_types::TraceContext;
use std::sync::Arc;
use tokio::sync::watch;
use tracing::Instrument as _;

/// Largest piece of a log in one message.
const LOG_PIECE_BYTES: usize = 64 << 10;

/// A running attempt as the agent sees it.
pub struct Running {
    pub lease: v1::Lease,
    pub stop: watch::Sender<Option<Stop>>,
    pub started: bool,
    pub progress: Option<v1::Progress>,
    /// `progress` was not sent yet.
    pub progress_waits: bool,
    pub built: Option<v1::Built>,
    pub log: Option<Arc<AttemptLog>>,
    /// Log bytes already sent on this stream or an earlier one.
    pub log_sent: u64,
    /// Around its log lines.
    pub span: tracing::Span,
}

impl Agent {
    pub(super) fn on_assign(&mut self, assign: v1::Assign) {
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
        let trace: Option<TraceContext> = assign.traceparent.parse().ok();
        // Of the level of the gravest lines, so that it is around all that are let through.
        let span = tracing::error_span!(
            "attempt",
            job = %key.job,
            attempt = key.attempt,
            trace = trace.map(|trace| tracing::field::display(trace.id())),
        );
        span.in_scope(|| tracing::info!(device = device.id, sku = job.sku, "attempt starts"));
        let attempt = Attempt {
            shared: self.shared.clone(),
            key: key.clone(),
            lease: lease.clone(),
            job,
            trace,
            spans: Spans::begin(trace, &key, &self.config.name, &device.id),
            cache: assign.cache,
            without_cache: assign.without_cache,
            made_for: assign.made_for_json,
            device,
            suspected,
            turn,
            stop: stopped,
            notes: self.notes.clone(),
        };
        self.attempts.spawn(attempt.run().instrument(span.clone()));
        let running = Running {
            lease,
            stop,
            started: false,
            progress: None,
            progress_waits: false,
            built: None,
            log: None,
            log_sent: 0,
            span,
        };
        self.running.insert(key, running);
    }

    pub(super) fn on_note(&mut self, key: &AttemptKey, note: Note) {
        while self.attempts.try_join_next().is_some() {}
        let Some(running) = self.running.get_mut(key) else { return };
        let lease = Some(running.lease.clone());
        let _within = running.span.clone().entered();
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
                self.make_room();
                match finished {
                    Some(finished) => {
                        tracing::info!(outcome = finished.outcome, "attempt ended");
                        self.ended.insert(key.clone(), (*finished).clone());
                        self.say(Say::Finished(*finished));
                    }
                    None => self.outbox.forget(key),
                }
            }
        }
    }

    /// Ends an attempt that never ran.
    pub(super) fn end(&mut self, key: &AttemptKey, finished: v1::Finished) {
        if let Err(error) = self.outbox.end(key, &finished) {
            tracing::error!(job = key.job, attempt = key.attempt, %error, "cannot keep the end of an attempt; it is only in memory");
        }
        self.ended.insert(key.clone(), finished.clone());
        self.say(Say::Finished(finished));
    }

    pub(super) fn stop(&mut self, lease: &v1::Lease, why: Stop) {
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

    pub(super) fn stop_all(&mut self, why: &Stop) {
        for lease in self.leases() {
            self.stop(&lease, why.clone());
        }
    }

    /// Another attempt owns the job.
    pub(super) fn lose(&mut self, lease: &v1::Lease, reason: String) {
        self.stop(lease, Stop::LeaseLost { reason });
        self.forget(lease);
    }

    pub(super) fn forget(&mut self, lease: &v1::Lease) {
        let Some(key) = AttemptKey::of(lease) else { return };
        if self.ended.remove(&key).is_some() {
            self.outbox.forget(&key);
        }
    }

    /// Forwards waiting progress and log bytes.
    pub(super) fn pump(&mut self) {
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
    pub(super) fn pump_log(&mut self, key: &AttemptKey) {
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
                    running.span.in_scope(|| tracing::warn!(%error, "cannot read an attempt's log"));
                    running.log = None;
                    return;
                }
            };
            running.log_sent += data.len() as u64;
            let lease = Some(running.lease.clone());
            self.say(Say::Log(v1::LogLines { lease, offset_bytes, data }));
        }
    }
}
