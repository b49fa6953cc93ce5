//! So many at once, and so many more each second.

/// An allowance that fills up again; where nothing waits for it, what was not used is kept up to `burst`.
#[derive(Debug)]
pub struct Rate {
    burst: u32,
    per_s: u32,
    /// What was allowed is paid for by then, on the monotonic hand in microseconds.
    paid_us: u64,
}

impl Rate {
    pub const fn new(burst: u32, per_s: u32) -> Self {
        Self { burst, per_s, paid_us: 0 }
    }

    fn step_us(&self) -> u64 {
        1_000_000 / u64::from(self.per_s)
    }

    /// Takes one; otherwise how many milliseconds too early it is.
    pub fn take(&mut self, now_ms: u64) -> Result<(), u64> {
        self.look(now_ms)?;
        self.charge(1, now_ms);
        Ok(())
    }

    /// Whether one could be taken; otherwise how many milliseconds too early it is.
    pub fn look(&self, now_ms: u64) -> Result<(), u64> {
        let ahead_us = self.paid_us.saturating_sub(now_ms.saturating_mul(1_000));
        let most_us = self.step_us() * u64::from(self.burst - 1);
        if ahead_us > most_us { Err((ahead_us - most_us).div_ceil(1_000)) } else { Ok(()) }
    }

    /// Takes `count`, also where that is more than there is: whoever comes next waits until it is paid for.
    pub fn charge(&mut self, count: u32, now_ms: u64) {
        let now_us = now_ms.saturating_mul(1_000);
        self.paid_us = self.paid_us.max(now_us).saturating_add(self.step_us() * u64::from(count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_allows_its_burst_and_then_so_many_each_second() {
        let mut rate = Rate::new(3, 2);
        for _ in 0..3 {
            assert_eq!(rate.take(10_000), Ok(()));
        }
        assert_eq!(rate.take(10_000), Err(500));
        assert_eq!(rate.take(10_499), Err(1));
        assert_eq!(rate.take(10_500), Ok(()));
        assert_eq!(rate.take(10_500), Err(500), "what is not paid for yet is not there");
        for _ in 0..3 {
            assert_eq!(rate.take(60_000), Ok(()), "a rest fills it up, and no further");
        }
        assert!(rate.take(60_000).is_err());
    }

    #[test]
    fn what_was_charged_beyond_the_burst_is_waited_for() {
        let mut rate = Rate::new(4, 2);
        assert_eq!(rate.look(1_000), Ok(()));
        rate.charge(10, 1_000);
        assert_eq!(rate.look(1_000), Err(3_500));
        assert_eq!(rate.look(4_500), Ok(()));
        assert_eq!(rate.look(4_500), Ok(()), "a look takes nothing");
    }
}
