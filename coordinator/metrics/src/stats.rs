//! What `/metrics` and the page tell about the farm, as one plain snapshot.

use crate::DeviceReading;
use std::collections::BTreeMap;

/// Upper bounds of the latency buckets, milliseconds; the last bucket is open.
pub const LATENCY_BOUNDS_MS: [f64; 14] =
    [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 250.0, 1_000.0, 5_000.0, 30_000.0, 300_000.0, 3_600_000.0];

/// A histogram with the bounds of [`LATENCY_BOUNDS_MS`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// One count per bound and one more for what lies above the last; not cumulative.
    pub counts: [u64; LATENCY_BOUNDS_MS.len() + 1],
    pub sum_ms: f64,
    pub count: u64,
    pub max_ms: f64,
}

impl Histogram {
    /// Counts one observation.
    pub fn observe(&mut self, value_ms: f64) {
        let bucket = LATENCY_BOUNDS_MS.iter().position(|bound| value_ms <= *bound).unwrap_or(LATENCY_BOUNDS_MS.len());
        self.counts[bucket] += 1;
        self.sum_ms += value_ms;
        self.count += 1;
        self.max_ms = self.max_ms.max(value_ms);
    }
}

/// One kind of store operation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoreOp {
    pub errors: u64,
    pub latency: Histogram,
}

/// A snapshot of the farm.
#[derive(Clone, Debug, Default)]
pub struct FarmStats {
    pub epoch: u64,
    /// Jobs that have not ended, by state name.
    pub live_jobs: BTreeMap<&'static str, u64>,
    /// Jobs that ended since this coordinator started, by state name.
    pub ended_jobs: BTreeMap<&'static str, u64>,
    /// Age of the oldest queued or unplaceable job, milliseconds, by SKU.
    pub oldest_pending_ms: BTreeMap<String, u64>,
    /// From queued to leased.
    pub claim_latency: Histogram,
    /// Attempts that ended since start, by outcome.
    pub attempts: BTreeMap<&'static str, u64>,
    /// From lease to end, by outcome.
    pub attempt_durations: BTreeMap<&'static str, Histogram>,
    pub lease_expiries: u64,
    pub revivals: u64,
    /// Jobs that only the sweep gave to a device: a lost wake-up each. Stays 0.
    pub rescued_wakeups: u64,
    /// How often the scheduler's state broke its own rules and was loaded anew. Stays 0.
    pub broken_states: u64,
    /// Rows that answers lack because they cannot be decoded. Stays 0.
    pub unreadable_rows: u64,
    /// Requests that joined a job in flight.
    pub merged: u64,
    /// Requests answered from the store.
    pub answered: u64,
    pub agents_up: u64,
    pub agents_known: u64,
    pub devices_up: u64,
    pub devices_busy: u64,
    pub devices_quarantined: u64,
    pub watchers: u64,
    pub last_event: u64,
    /// Inputs that wait for the leader.
    pub inbox: u64,
    /// By operation: `commit`, `jobs`, `events`, ...
    pub store: BTreeMap<&'static str, StoreOp>,
    /// What is known of devices now, at most [`crate::DEVICES_MAX`] of them.
    pub devices: Vec<DeviceReading>,
}
