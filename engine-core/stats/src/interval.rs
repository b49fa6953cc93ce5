//! Statistics of latencies: percentiles, spread, and an interval for the median that does not flatter itself.
//!
//! Latencies taken back to back resemble each other, so a textbook interval over all samples is too narrow. The
//! interval here treats each timed window as one cluster: when windows disagree about which side of the median their
//! samples fall on, the interval widens accordingly. One window has nothing to disagree with: there is no interval then.
//!
//! Sources: order statistics bound a quantile whatever the distribution (Conover, *Practical Nonparametric Statistics*,
//! 3rd edition, section 3.2); percentiles are interpolated as definition 7 of Hyndman and Fan, *Sample Quantiles in
//! Statistical Packages* (1996); windows are clusters, whose spread takes the place of that of independent samples
//! (Woodruff, *Confidence Intervals for Medians and Other Position Measures*, 1952), with Student's t for few of them.

use crate::latency::{CI_CONFIDENCE, LatencyStats, MedianInterval};

/// Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom; beyond the table the normal's is close.
const STUDENT_T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];
const NORMAL_QUANTILE: f64 = 1.960;

/// Fewer samples than this cannot bound a median with [`CI_CONFIDENCE`]: the interval is then all of them.
pub const MIN_FOR_CONFIDENCE: usize = 6;

/// The `q`-quantile (0..=1) of ascending `sorted`, interpolated between closest ranks; 0 when empty.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let rank = q.clamp(0.0, 1.0) * last as f64;
    let below = rank.floor() as usize;
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * (rank - below as f64)
}

/// The median of `values` in any order; 0 when empty.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    quantile(&sorted, 0.5)
}

/// Statistics of `samples`, which are the windows of `window_sizes` one after another; `None` when there are none.
pub fn latency_stats(samples: &[f64], window_sizes: &[usize]) -> Option<LatencyStats> {
    if samples.is_empty() {
        return None;
    }
    debug_assert_eq!(window_sizes.iter().sum::<usize>(), samples.len(), "windows cover the samples");
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let count = sorted.len();
    let mean = samples.iter().sum::<f64>() / count as f64;
    let squares: f64 = samples.iter().map(|x| (x - mean).powi(2)).sum();
    let stddev = if count > 1 { (squares / (count - 1) as f64).sqrt() } else { 0.0 };
    let middle = quantile(&sorted, 0.5);
    let interval = median_interval(samples, &sorted, middle, window_sizes);
    Some(LatencyStats {
        count: count as u64,
        median: middle,
        mean,
        stddev,
        min: sorted[0],
        max: sorted[count - 1],
        p50: middle,
        p90: quantile(&sorted, 0.90),
        p95: quantile(&sorted, 0.95),
        p99: quantile(&sorted, 0.99),
        interval,
    })
}

/// Bounds of the median as order statistics, and the confidence they have; `None` for a single window.
fn median_interval(samples: &[f64], sorted: &[f64], middle: f64, window_sizes: &[usize]) -> Option<MedianInterval> {
    let windows = window_sizes.iter().filter(|size| **size > 0).count();
    let quantile = student_t(windows.checked_sub(1)?)?;
    let count = sorted.len();
    if count < MIN_FOR_CONFIDENCE {
        let confidence = 1.0 - 2.0 * 0.5f64.powi(count as i32);
        return Some(MedianInterval { low: sorted[0], high: sorted[count - 1], confidence });
    }
    let spread = (count as f64 * dependence(samples, middle, window_sizes)).sqrt() / 2.0;
    let reach = quantile * spread;
    let centre = (count - 1) as f64 / 2.0;
    let low = (centre - reach).floor().max(0.0) as usize;
    let high = ((centre + reach).ceil() as usize).min(count - 1);
    Some(MedianInterval { low: sorted[low], high: sorted[high], confidence: CI_CONFIDENCE })
}

/// How many times larger than for independent samples the variance of "how many lie above the median" is, judged by
/// the windows; at least 1. Samples equal to the median count half.
fn dependence(samples: &[f64], middle: f64, window_sizes: &[usize]) -> f64 {
    let mut rest = samples;
    let mut squares = 0.0;
    for size in window_sizes {
        let (window, after) = rest.split_at((*size).min(rest.len()));
        rest = after;
        let excess: f64 = window.iter().map(|x| 0.5 * (x.partial_cmp(&middle).map_or(0, |o| o as i8) as f64)).sum();
        squares += excess * excess;
    }
    (squares / (samples.len() as f64 / 4.0)).max(1.0)
}

/// `None` without a degree of freedom: nothing then says how much what was sampled varies.
fn student_t(degrees_of_freedom: usize) -> Option<f64> {
    let row = degrees_of_freedom.checked_sub(1)?;
    Some(STUDENT_T.get(row).copied().unwrap_or(NORMAL_QUANTILE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

    #[test]
    fn percentiles_interpolate() {
        let values: Vec<f64> = (1..=101).map(f64::from).collect();
        let stats = latency_stats(&values, &[101]).unwrap();
        assert_eq!((stats.median, stats.p90, stats.p95, stats.p99), (51.0, 91.0, 96.0, 100.0));
        assert_eq!((stats.min, stats.max, stats.mean, stats.count), (1.0, 101.0, 51.0, 101));
        assert!((stats.stddev - 29.300_170).abs() < 1e-5);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        assert!(latency_stats(&[], &[]).is_none());
    }

    #[test]
    fn few_samples_claim_little() {
        let one = latency_stats(&[5.0], &[1]).unwrap();
        assert_eq!((one.interval, one.stddev), (None, 0.0));
        let three = latency_stats(&[5.0, 6.0, 7.0], &[2, 1]).unwrap();
        assert_eq!(three.interval, Some(MedianInterval { low: 5.0, high: 7.0, confidence: 0.75 }));
    }

    #[test]
    fn one_window_has_no_interval_however_many_samples() {
        let samples: Vec<f64> = (0..1000).map(|i| 10.0 + f64::from(i % 7)).collect();
        for sizes in [&[1000][..], &[0, 1000, 0]] {
            assert_eq!(latency_stats(&samples, sizes).unwrap().interval, None, "{sizes:?}");
        }
        let two = latency_stats(&samples, &[500, 500]).unwrap().interval.unwrap();
        assert_eq!(two.confidence, CI_CONFIDENCE);
        assert_eq!(
            (student_t(0), student_t(1), student_t(4), student_t(1000)),
            (None, Some(12.706), Some(2.776), Some(1.96))
        );
    }

    /// Counts how often the interval holds the true median of a distribution, over many seeded experiments.
    fn coverage(mut draw: impl FnMut(&mut StdRng) -> Vec<Vec<f64>>, truth: f64) -> f64 {
        let mut rng = StdRng::seed_from_u64(7);
        let trials = 600;
        let held = (0..trials).filter(|_| {
            let windows = draw(&mut rng);
            let sizes: Vec<usize> = windows.iter().map(Vec::len).collect();
            let stats = latency_stats(&windows.concat(), &sizes).unwrap();
            stats.interval.is_some_and(|interval| interval.low <= truth && truth <= interval.high)
        });
        held.count() as f64 / f64::from(trials)
    }

    #[test]
    fn the_interval_holds_the_median_of_independent_samples() {
        let rate =
            coverage(|rng| (0..8).map(|_| (0..40).map(|_| rng.random::<f64>().powi(3)).collect()).collect(), 0.125);
        assert!(rate > 0.94, "{rate}");
    }

    #[test]
    fn the_interval_holds_the_median_when_windows_drift() {
        // Every window has an offset of its own as large as the noise inside it.
        let rate = coverage(
            |rng| {
                (0..8)
                    .map(|_| {
                        let offset = rng.random::<f64>() - 0.5;
                        (0..40).map(|_| 10.0 + offset + rng.random::<f64>() - 0.5).collect()
                    })
                    .collect()
            },
            10.0,
        );
        assert!(rate > 0.90, "{rate}");
    }

    #[test]
    fn disagreeing_windows_widen_the_interval() {
        let calm: Vec<f64> = (0..400).map(|i| 10.0 + f64::from(i % 20) / 20.0).collect();
        let mut drifting = calm.clone();
        drifting.sort_unstable_by(f64::total_cmp);
        let width = |samples: &[f64]| {
            let interval = latency_stats(samples, &[50; 8]).unwrap().interval.unwrap();
            interval.high - interval.low
        };
        assert!(width(&drifting) > 3.0 * width(&calm));
    }
}
