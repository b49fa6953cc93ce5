//! What `/metrics` and the page tell about the farm, gathered as one plain snapshot.

use super::{Farm, SKU_LABELS_MAX};
use crate::core::DeviceView;
use planforge_metrics::{DEVICES_MAX, DeviceReading, FarmStats};
use planforge_proto::ApiError;
use planforge_types::fingerprint::{DeviceFingerprint, DeviceKind};
use std::sync::{PoisonError, atomic::Ordering};

/// A device as metrics tell of it.
fn reading(view: &DeviceView) -> DeviceReading {
    let fingerprint: Option<DeviceFingerprint> = serde_json::from_str(&view.device.fingerprint).ok();
    let told = |told: DeviceFingerprint| (told.name, told.memory_mib, told.kind == DeviceKind::Gpu);
    let (name, memory_mib, is_gpu) = fingerprint.map(told).unwrap_or_default();
    let reading = DeviceReading {
        id: view.device.id.clone(),
        host: view.agent_name.clone(),
        name,
        is_gpu,
        sku: view.device.skus.last().map(ToString::to_string).unwrap_or_default(),
        busy: view.busy.is_some(),
        quarantined: view.device.quarantined,
        draining: view.draining,
        memory_mib,
        ..DeviceReading::default()
    };
    reading.with_telemetry(&view.telemetry)
}

impl Farm {
    /// Numbers for the metrics and the page.
    pub async fn stats(&self) -> Result<FarmStats, ApiError> {
        let inbox = self.inner.inbox.max_capacity() - self.inner.inbox.capacity();
        let (mut stats, labels) = self
            .ask(|state, now| {
                let mut stats = FarmStats { last_event: state.last_event(), ..FarmStats::default() };
                let labels = state.offered_skus(SKU_LABELS_MAX);
                for device in state.devices(now) {
                    if device.online && stats.devices.len() < DEVICES_MAX {
                        stats.devices.push(reading(&device));
                    }
                    stats.devices_up += u64::from(device.online);
                    stats.devices_busy += u64::from(device.busy.is_some());
                    stats.devices_quarantined += u64::from(device.device.quarantined);
                }
                let counters = state.counters();
                stats.ended_jobs.clone_from(&counters.ended);
                stats.attempts.clone_from(&counters.attempts);
                stats.lease_expiries = counters.lease_expiries;
                stats.revivals = counters.revivals;
                stats.rescued_wakeups = counters.rescued_wakeups;
                (stats.merged, stats.answered) = (counters.merged, counters.answered);
                (stats.agents_known, stats.agents_up) = state.agent_counts();
                (stats, labels)
            })
            .await?;
        self.add_waiting(&mut stats, &labels).await?;
        stats.epoch = self.inner.epoch;
        stats.inbox = inbox as u64;
        stats.broken_states = self.inner.shared.broken.load(Ordering::Relaxed);
        stats.unreadable_rows = self.inner.store.unreadable_rows();
        let shared = &self.inner.shared;
        stats.watchers = (shared.events.receiver_count() + shared.page.receiver_count()) as u64;
        stats.claim_latency = self.inner.shared.claims.lock().unwrap_or_else(PoisonError::into_inner).clone();
        stats.attempt_durations = self.inner.shared.attempts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        stats.store = self.inner.store_ops.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(stats)
    }
}
