//! Statistics of one measurement's latencies, and where their median lies.

use serde::{Deserialize, Serialize};

/// The rule by which intervals are found, raised when the same samples get other bounds: what is stored of an older rule
/// cannot be derived again. 1: order statistics, whose spread is that of the windows around their own median.
pub const INTERVAL_RULE: u32 = 2;

/// The rule of statistics that name none.
fn first_rule() -> u32 {
    1
}

/// Reports that never named a rule go on naming none.
fn is_first_rule(rule: &u32) -> bool {
    *rule == first_rule()
}

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
    /// Where the median lies, or why the samples do not tell.
    pub interval: Result<MedianInterval, NoInterval>,
    /// How the interval was found: [`INTERVAL_RULE`], or that of an older version.
    pub interval_rule: u32,
}

/// Why samples do not tell where their median lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoInterval {
    /// A single window says nothing of how much windows differ.
    OneWindow,
    /// Neighbouring windows are so alike that they may all be off to the same side.
    Alike,
    /// A reason that this version does not know.
    Untold,
}

impl NoInterval {
    /// As reports say it.
    pub fn words(self) -> &'static str {
        match self {
            Self::OneWindow => "one window",
            Self::Alike => "neighbouring windows resemble each other too much",
            Self::Untold => "not told",
        }
    }

    fn of(words: &str) -> Self {
        [Self::OneWindow, Self::Alike].into_iter().find(|reason| reason.words() == words).unwrap_or(Self::Untold)
    }
}

/// Confidence interval of a median.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MedianInterval {
    pub low: f64,
    pub high: f64,
    /// Confidence the interval has, 0..1; less than usual for a handful of samples.
    pub confidence: f64,
}

impl MedianInterval {
    /// How far the median is known, for people: `±1.2 %`, or why it is not.
    pub fn words(interval: Result<Self, NoInterval>, median: f64) -> String {
        match interval {
            Ok(interval) => format!("±{:.1} %", (interval.relative_half_width(median) * 100.0).min(999.9)),
            Err(reason) => format!("no interval: {}", reason.words()),
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
    #[serde(default = "first_rule", skip_serializing_if = "is_first_rule")]
    ci_rule: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    no_interval: Option<String>,
}

impl From<Stored> for LatencyStats {
    fn from(stored: Stored) -> Self {
        let Stored { count, median, mean, stddev, min, max, p50, p90, p95, p99, .. } = stored;
        let bounds = MedianInterval { low: stored.ci_low, high: stored.ci_high, confidence: stored.ci_confidence };
        let interval = match &stored.no_interval {
            Some(reason) => Err(NoInterval::of(reason)),
            None if bounds.confidence > 0.0 => Ok(bounds),
            None => Err(NoInterval::Untold),
        };
        let interval_rule = stored.ci_rule;
        Self { count, median, mean, stddev, min, max, p50, p90, p95, p99, interval, interval_rule }
    }
}

impl From<LatencyStats> for Stored {
    fn from(stats: LatencyStats) -> Self {
        let LatencyStats { count, median, mean, stddev, min, max, p50, p90, p95, p99, interval, .. } = stats;
        let no_interval = interval.err().map(|reason| reason.words().to_owned());
        let MedianInterval { low: ci_low, high: ci_high, confidence: ci_confidence } =
            interval.unwrap_or(MedianInterval { low: min, high: max, confidence: 0.0 });
        Self {
            count,
            median,
            mean,
            stddev,
            min,
            max,
            p50,
            p90,
            p95,
            p99,
            ci_low,
            ci_high,
            ci_confidence,
            ci_rule: stats.interval_rule,
            no_interval,
        }
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
        assert!(several.interval.is_ok() && json.get("no_interval").is_none());
        assert_eq!(serde_json::from_value::<LatencyStats>(json).unwrap(), several);
    }
}
