//! The interval of a ratio of medians, by resampling windows and then samples within them.
//!
//! Sources: the percentile bootstrap (Efron and Tibshirani, *An Introduction to the Bootstrap*, chapter 13), drawn in two
//! stages because samples of one window resemble each other (Davison and Hinkley, *Bootstrap Methods and their
//! Application*, section 3.8).

use crate::quantile;
use rand::{RngExt as _, SeedableRng as _, rngs::Xoshiro256PlusPlus};

/// Resamples drawn: the ends of a 95 % interval are then the 25th from either side.
const RESAMPLES: usize = 1000;

/// The same reports always get the same interval.
const SEED: u64 = 0x636f_6d70_6172_6501;

/// Ends of the interval as quantiles of the resampled ratios.
const ENDS: (f64, f64) = (0.025, 0.975);

/// Samples drawn per resample and report; more would only cost time.
const MAX_DRAWN: usize = 2000;

/// Median of the other over the base's, and where it lies with 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RatioInterval {
    pub ratio: f64,
    pub low: f64,
    pub high: f64,
}

/// Cuts `samples` into their windows.
pub fn windows(samples: &[f64], sizes: &[usize]) -> Vec<Vec<f64>> {
    let mut rest = samples;
    let mut cut = Vec::new();
    for size in sizes {
        let (window, after) = rest.split_at((*size).min(rest.len()));
        cut.push(window.to_vec());
        rest = after;
    }
    cut.push(rest.to_vec());
    cut.retain(|window| !window.is_empty());
    cut
}

/// `None` when either side has no samples or a median of zero.
pub fn ratio_interval(base: &[Vec<f64>], other: &[Vec<f64>]) -> Option<RatioInterval> {
    let middle = |windows: &[Vec<f64>]| median(&mut windows.concat()).filter(|median| *median > 0.0);
    let ratio = middle(other)? / middle(base)?;
    let mut random = Xoshiro256PlusPlus::seed_from_u64(SEED);
    let mut ratios = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        let below = median(&mut resample(base, &mut random)).filter(|median| *median > 0.0);
        if let (Some(above), Some(below)) = (median(&mut resample(other, &mut random)), below) {
            ratios.push(above / below);
        }
    }
    ratios.sort_unstable_by(f64::total_cmp);
    Some(RatioInterval { ratio, low: quantile(&ratios, ENDS.0), high: quantile(&ratios, ENDS.1) })
}

fn resample(windows: &[Vec<f64>], random: &mut Xoshiro256PlusPlus) -> Vec<f64> {
    let total: usize = windows.iter().map(Vec::len).sum();
    let share = (MAX_DRAWN as f64 / total.max(1) as f64).min(1.0);
    let mut drawn = Vec::with_capacity(total.min(MAX_DRAWN) + windows.len());
    for _ in 0..windows.len() {
        let window = &windows[random.random_range(0..windows.len())];
        let count = ((window.len() as f64 * share).round() as usize).max(1);
        drawn.extend((0..count).map(|_| window[random.random_range(0..window.len())]));
    }
    drawn
}

/// The middle sample; that it is one of two for even counts does not matter among resamples.
fn median(samples: &mut [f64]) -> Option<f64> {
    let middle = samples.len().checked_sub(1)? / 2;
    Some(*samples.select_nth_unstable_by(middle, f64::total_cmp).1)
}
