//! The interval of a ratio of two medians, from where each of the two lies.
//!
//! A ratio is a difference of logarithms, and the interval of a difference follows from the intervals of its two sides:
//! on either side the distances from median to bound add up as squares. No draws are made, so that the same reports always
//! get the same interval, and that of B to A is the mirror image of A to B, to the last bit of its logarithms.
//!
//! Sources: the method of variance estimates recovery (Zou and Donner, *Construction of Confidence Limits about Effect
//! Measures: A General Approach*, 2008, after Newcombe, *Interval Estimation for the Difference between Independent
//! Proportions*, 1998).

use crate::{
    alike::MIN_TO_JUDGE,
    interval::{cut, mean_interval, median, median_interval, quantile, quantile_interval},
    latency::NoInterval,
};

/// How far from the median a place may be, over the range that the windows' medians wandered through; see
/// [`Place::wandering`]. Set so that what it gives holds in `coverage_tests.rs`.
const WANDERED: f64 = 2.0;

/// A middle of samples (their median, where nothing else is said), and where it lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

impl Place {
    /// Of the median of `samples`, the windows of `window_sizes` one after another, with `confidence`.
    pub fn of(samples: &[f64], window_sizes: &[usize], confidence: f64) -> Result<Self, NoInterval> {
        let interval = median_interval(samples, window_sizes, confidence)?;
        Ok(Self { median: median(samples), low: interval.low, high: interval.high })
    }

    /// Of the quantile `share` (0 to 1) of `samples`.
    pub fn of_quantile(
        samples: &[f64],
        window_sizes: &[usize],
        share: f64,
        confidence: f64,
    ) -> Result<Self, NoInterval> {
        let interval = quantile_interval(samples, window_sizes, share, confidence)?;
        let mut sorted = samples.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        Ok(Self { median: quantile(&sorted, share), low: interval.low, high: interval.high })
    }

    /// Of the mean of `samples`.
    pub fn of_mean(samples: &[f64], window_sizes: &[usize], confidence: f64) -> Result<Self, NoInterval> {
        let interval = mean_interval(samples, window_sizes, confidence)?;
        let mean = samples.iter().sum::<f64>() / samples.len().max(1) as f64;
        Ok(Self { median: mean, low: interval.low, high: interval.high })
    }

    /// Where the median of windows lies that resemble their neighbours too much for an interval ([`NoInterval::Alike`]):
    /// to either side twice as far as their own medians lie apart, the least and the greatest of which are left out. In
    /// simulations it holds 97 % of the time where each window is like the one before by 0.9, and more often where less:
    /// who uses it says so, and asks for differences as on a disturbed device. `None` of fewer than ten windows.
    pub fn wandering(samples: &[f64], window_sizes: &[usize]) -> Option<Self> {
        let mut medians: Vec<f64> = cut(samples, window_sizes).into_iter().map(median).collect();
        medians.sort_unstable_by(f64::total_cmp);
        let [_, least, .., greatest, _] = medians[..] else { return None };
        let (median, reach) = (median(samples), WANDERED * (greatest - least));
        let far = Self { median, low: (median - reach).max(0.0), high: median + reach };
        (medians.len() >= MIN_TO_JUDGE).then_some(far)
    }
}

/// Median of the other over the base's, and where it lies, as natural logarithms: below 0 the other is smaller.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RatioInterval {
    pub log_ratio: f64,
    /// Minus infinity where the other's median may be 0.
    pub log_low: f64,
    /// Infinity where the base's median may be 0.
    pub log_high: f64,
}

impl RatioInterval {
    pub fn ratio(&self) -> f64 {
        self.log_ratio.exp()
    }

    pub fn low(&self) -> f64 {
        self.log_low.exp()
    }

    pub fn high(&self) -> f64 {
        self.log_high.exp()
    }
}

/// `None` when either median is 0. The confidence is that of the two places.
pub fn ratio_interval(base: &Place, other: &Place) -> Option<RatioInterval> {
    if base.median <= 0.0 || other.median <= 0.0 {
        return None;
    }
    let log_ratio = other.median.ln() - base.median.ln();
    let below = |place: &Place| (place.median.ln() - place.low.max(0.0).ln()).max(0.0);
    let above = |place: &Place| (place.high.ln() - place.median.ln()).max(0.0);
    let together = |a: f64, b: f64| (a * a + b * b).sqrt();
    Some(RatioInterval {
        log_ratio,
        log_low: log_ratio - together(below(other), above(base)),
        log_high: log_ratio + together(above(other), below(base)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place() -> impl Strategy<Value = Place> {
        (1e-6..1e6f64, 0.0..1.0f64, 0.0..3.0f64).prop_map(|(median, below, above)| Place {
            median,
            low: median * (1.0 - below),
            high: median * (1.0 + above),
        })
    }

    proptest! {
        #[test]
        fn the_other_way_round_it_is_its_own_mirror_image(a in place(), b in place()) {
            let (there, back) = (ratio_interval(&a, &b).unwrap(), ratio_interval(&b, &a).unwrap());
            prop_assert_eq!(there.log_ratio, -back.log_ratio);
            prop_assert_eq!((there.log_low, there.log_high), (-back.log_high, -back.log_low));
            prop_assert!(there.log_low <= there.log_ratio && there.log_ratio <= there.log_high);
        }
    }

    #[test]
    fn it_is_as_wide_as_its_two_sides_together() {
        let sure = Place { median: 2.0, low: 2.0, high: 2.0 };
        let unsure = Place { median: 4.0, low: 3.0, high: 5.0 };
        let found = ratio_interval(&sure, &unsure).unwrap();
        for (bound, expected) in [(found.ratio(), 2.0), (found.low(), 1.5), (found.high(), 2.5)] {
            assert!((bound - expected).abs() < 1e-12, "{bound}, not {expected}");
        }
        let both = ratio_interval(&unsure, &unsure).unwrap();
        assert!(both.log_low < -(4.0f64 / 3.0).ln() && both.log_low > -2.0 * (4.0f64 / 3.0).ln());
    }

    #[test]
    fn nothing_divides_by_zero() {
        let zero = Place { median: 0.0, low: 0.0, high: 1.0 };
        let one = Place { median: 1.0, low: 0.0, high: 2.0 };
        assert_eq!(ratio_interval(&zero, &one), None);
        assert_eq!(ratio_interval(&one, &zero), None);
        let found = ratio_interval(&one, &one).unwrap();
        assert_eq!((found.log_low, found.log_high), (f64::NEG_INFINITY, f64::INFINITY));
    }
}
