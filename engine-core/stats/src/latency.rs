//! Statistics of one measurement's latencies, and where their median lies.

use serde::{Deserialize, Serialize};

/// Why a single window gives no interval, as reports say it.
const ONE_WINDOW: &str = "one window";

/// Confidence of the median's interval.
pub const CI_CONFIDENCE: f64 = 0.95;

/// Statistics over all counted samples; percentiles by linear interpolation between closest ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct LatencyStats {
    pub count: u64,
    pub median: f64,
    pub mean: f64,
    /// Of the sample (n - 1); 0 for a single sample.
    pub stddev: f64,
    pub min: f64,
    pub max: f64,
    pub p50: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
    /// Where the median lies; `None`: the samples are of one window, which does not tell.
    pub interval: Option<MedianInterval>,
}

/// Confidence interval of a median, from order statistics.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MedianInterval {
    pub low: f64,
    pub high: f64,
    /// Confidence the interval has, 0..1; less than usual for a handful of samples.
    pub confidence: f64,
}

impl MedianInterval {
    /// How far the median is known, for people: `±1.2 %`, or why it is not.
    pub fn words(interval: Option<Self>, median: f64) -> String {
        match interval {
            Some(interval) => format!("±{:.1} %", (interval.relative_half_width(median) * 100.0).min(999.9)),
            None => format!("no interval: {ONE_WINDOW}"),
        }
    }

    /// Half the width over `median`. An interval without the usual confidence counts as endless.
    pub fn relative_half_width(self, median: f64) -> f64 {
        if self.confidence < CI_CONFIDENCE {
            return f64::INFINITY;
        }
        (self.high - self.low) / 2.0 / median.max(f64::MIN_POSITIVE)
    }
}

/// The statistics as JSON. Readers of every version want bounds: where there is no interval these are all samples, with
/// no confidence, and `no_interval` says why.
#[derive(Serialize, Deserialize)]
struct Stored {
    count: u64,
    median: f64,
    mean: f64,
    stddev: f64,
    min: f64,
    max: f64,
    p50: f64,
    p90: f64,
    p95: f64,
    p99: f64,
    ci_low: f64,
    ci_high: f64,
    ci_confidence: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    no_interval: Option<String>,
}

impl From<Stored> for LatencyStats {
    fn from(stored: Stored) -> Self {
        let Stored { count, median, mean, stddev, min, max, p50, p90, p95, p99, .. } = stored;
        let told = stored.no_interval.is_none() && stored.ci_confidence > 0.0;
        let interval = told.then_some(MedianInterval {
            low: stored.ci_low,
            high: stored.ci_high,
            confidence: stored.ci_confidence,
        });
        Self { count, median, mean, stddev, min, max, p50, p90, p95, p99, interval }
    }
}

impl From<LatencyStats> for Stored {
    fn from(stats: LatencyStats) -> Self {
        let LatencyStats { count, median, mean, stddev, min, max, p50, p90, p95, p99, interval } = stats;
        let no_interval = interval.is_none().then(|| ONE_WINDOW.to_owned());
        let MedianInterval { low: ci_low, high: ci_high, confidence: ci_confidence } =
            interval.unwrap_or(MedianInterval { low: min, high: max, confidence: 0.0 });
        Self { count, median, mean, stddev, min, max, p50, p90, p95, p99, ci_low, ci_high, ci_confidence, no_interval }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency_stats;

    #[test]
    fn one_window_is_told_to_readers_of_every_version() {
        let one = latency_stats(&[1.0, 2.0, 4.0], &[3]).unwrap();
        let json = serde_json::to_value(one).unwrap();
        assert_eq!(json["no_interval"], "one window");
        // What a reader that knows nothing of it needs: numbers, and that they mean nothing.
        assert_eq!(
            (&json["ci_low"], &json["ci_high"], &json["ci_confidence"]),
            (&1.0.into(), &4.0.into(), &0.0.into())
        );
        assert_eq!(serde_json::from_value::<LatencyStats>(json).unwrap(), one);
        assert_eq!(MedianInterval::words(one.interval, one.median), "no interval: one window");

        let several = latency_stats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], &[3, 2, 2]).unwrap();
        let json = serde_json::to_value(several).unwrap();
        assert!(several.interval.is_some() && json.get("no_interval").is_none());
        assert_eq!(serde_json::from_value::<LatencyStats>(json).unwrap(), several);
    }
}
