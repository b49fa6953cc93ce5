//! When requests arrive.

use rand::{RngExt as _, SeedableRng as _, rngs::Xoshiro256PlusPlus};
use std::time::Duration;

/// Requests in the order of their arrival, for a while.
#[derive(Debug)]
pub enum Arrivals {
    /// Each is there as soon as somebody takes it.
    Closed { length: Duration },
    /// Independent of each other and of whoever serves them: gaps between them are exponential (a Poisson process).
    Poisson { length: Duration, rate_per_s: f64, random: Box<Xoshiro256PlusPlus>, next: Duration },
}

impl Arrivals {
    /// As fast as they are taken.
    pub fn closed(length: Duration) -> Self {
        Self::Closed { length }
    }

    /// `rate_per_s` on average; the same for the same `seed`.
    pub fn poisson(rate_per_s: f64, length: Duration, seed: u64) -> Self {
        let random = Box::new(Xoshiro256PlusPlus::seed_from_u64(seed));
        let mut arrivals = Self::Poisson { length, rate_per_s, random, next: Duration::ZERO };
        arrivals.advance();
        arrivals
    }

    /// How long requests arrive.
    pub fn length(&self) -> Duration {
        match self {
            Self::Closed { length } | Self::Poisson { length, .. } => *length,
        }
    }

    fn advance(&mut self) {
        if let Self::Poisson { rate_per_s, random, next, .. } = self {
            // From (0, 1]: the logarithm is finite.
            let uniform = 1.0 - random.random::<f64>();
            *next += Duration::from_secs_f64(-uniform.ln() / *rate_per_s);
        }
    }

    /// When the next one arrives, since the begin; `now` is since then, too. `None` when no more come.
    pub fn next(&mut self, now: Duration) -> Option<Duration> {
        match self {
            Self::Closed { length } => (now < *length).then_some(now),
            Self::Poisson { length, next, .. } => {
                let at = *next;
                (at < *length).then(|| {
                    self.advance();
                    at
                })
            }
        }
    }

    /// How many have yet to be taken, whoever could take them.
    pub fn left(&mut self) -> u64 {
        let mut count = 0;
        if let Self::Poisson { .. } = self {
            while self.next(Duration::ZERO).is_some() {
                count += 1;
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_poisson_and_the_same_for_the_same_seed() {
        let all = |seed| {
            let mut arrivals = Arrivals::poisson(1000.0, Duration::from_secs(20), seed);
            std::iter::from_fn(|| arrivals.next(Duration::ZERO)).collect::<Vec<_>>()
        };
        let found = all(7);
        assert_eq!(found, all(7));
        assert_ne!(found, all(8));
        assert!((found.len() as f64 - 20_000.0).abs() < 4.0 * 20_000f64.sqrt(), "{}", found.len());
        // Of exponential gaps the mean is the standard deviation, and e^-1 of them are longer than it.
        let gaps: Vec<f64> = found.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1e3).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let spread = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        let longer = gaps.iter().filter(|gap| **gap > mean).count() as f64 / gaps.len() as f64;
        assert!((mean - 1.0).abs() < 0.05 && (spread - 1.0).abs() < 0.05, "{mean} {spread}");
        assert!((longer - 0.3679).abs() < 0.02, "{longer}");
    }

    #[test]
    fn what_is_left_is_counted() {
        let length = Duration::from_secs(1);
        let mut arrivals = Arrivals::poisson(500.0, length, 3);
        let taken = (0..100).filter_map(|_| arrivals.next(Duration::ZERO)).count() as u64;
        let all = std::iter::from_fn({
            let mut again = Arrivals::poisson(500.0, length, 3);
            move || again.next(Duration::ZERO)
        });
        assert_eq!(taken + arrivals.left(), all.count() as u64);
        let mut closed = Arrivals::closed(length);
        assert_eq!(
            (closed.next(Duration::from_millis(5)), closed.next(length)),
            (Some(Duration::from_millis(5)), None)
        );
        assert_eq!(closed.left(), 0);
    }
}
