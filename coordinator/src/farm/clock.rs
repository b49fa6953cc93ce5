//! Where time comes from. Nothing else in the coordinator reads a clock.

use std::time::{SystemTime, UNIX_EPOCH};

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
