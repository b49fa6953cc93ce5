//! Jittered waiting between retries, so that a thousand clients do not come back in the same instant.

use rand::RngExt as _;
use std::time::Duration;

/// Doubling delays up to a ceiling, each drawn from the upper half of its step.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    /// Delays handed out since the last success.
    steps: u32,
}

impl Backoff {
    /// Starts at `first` and never waits longer than `longest`.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, steps: 0 }
    }

    /// How long to wait before the next try.
    pub fn next_delay(&mut self) -> Duration {
        let step = self.first.saturating_mul(1_u32.checked_shl(self.steps).unwrap_or(u32::MAX)).min(self.longest);
        self.steps = self.steps.saturating_add(1).min(31);
        step.mul_f64(rand::rng().random_range(0.5..=1.0))
    }

    /// Something worked: begin again with the first delay.
    pub fn reset(&mut self) {
        self.steps = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_the_ceiling_and_start_again() {
        let (first, longest) = (Duration::from_millis(100), Duration::from_secs(2));
        let mut backoff = Backoff::new(first, longest);
        let delays: Vec<_> = (0..64).map(|_| backoff.next_delay()).collect();
        assert!(delays[0] >= first / 2 && delays[0] <= first, "{delays:?}");
        assert!(delays[5..].iter().all(|d| *d >= longest / 2 && *d <= longest), "{delays:?}");
        backoff.reset();
        assert!(backoff.next_delay() <= first);
    }
}
