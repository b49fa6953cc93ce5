//! Where time comes from. Nothing else in the coordinator reads a clock.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

/// A clock that is set back by more than this is told; less is what time servers do.
const TOLD_FROM_MS: u64 = 1_000;

/// A clock with two hands: records carry `wall_ms`, leases run on `mono_ms`, so that a jump of the wall clock ends none.
pub trait Clock: Send + Sync + 'static {
    /// Unix milliseconds.
    fn wall_ms(&self) -> u64;
    /// Milliseconds since some fixed moment; never goes back.
    fn mono_ms(&self) -> u64;
}

/// The machine's clocks; the monotonic one is tokio's, which tests may pause.
#[derive(Debug)]
pub struct SystemClock {
    start: tokio::time::Instant,
}

impl SystemClock {
    /// Must be made inside a tokio runtime when that runtime's time is paused or simulated.
    pub fn new() -> Self {
        Self { start: tokio::time::Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn wall_ms(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_millis() as u64)
    }

    fn mono_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }
}

/// A clock whose time of day never goes back while the farm runs: where the machine's is set back, it stands still until
/// that has caught up. So what has expired stays expired, nothing ends before it began, and what is newer has no smaller
/// time. A restart takes the machine's time as it is.
pub(super) struct Steady {
    inner: Arc<dyn Clock>,
    latest_ms: AtomicU64,
    told: AtomicU64,
}

impl Steady {
    pub(super) fn new(inner: Arc<dyn Clock>) -> Self {
        Self { inner, latest_ms: AtomicU64::new(0), told: AtomicU64::new(0) }
    }
}

impl Clock for Steady {
    fn wall_ms(&self) -> u64 {
        let now_ms = self.inner.wall_ms();
        let latest_ms = self.latest_ms.fetch_max(now_ms, Ordering::Relaxed).max(now_ms);
        // Once for each moment at which it stands.
        if latest_ms - now_ms > TOLD_FROM_MS && self.told.swap(latest_ms, Ordering::Relaxed) != latest_ms {
            let seconds = (latest_ms - now_ms) / 1_000;
            tracing::warn!(seconds, "the clock was set back; the farm's time stands still until it has caught up");
        }
        latest_ms
    }

    fn mono_ms(&self) -> u64 {
        self.inner.mono_ms()
    }
}
