//! What samples say: quantiles, the interval of a median, the interval of a ratio of medians.
//!
//! | module | holds |
//! |---|---|
//! | [`interval`] | quantiles, and an interval for the median that counts windows |
//! | [`alike`] | how much neighbouring windows resemble each other, and what that does to their spread |
//! | [`change`] | since which measurement of a series its level is another |
//! | [`student`] | Student's t |
//! | [`latency`] | the statistics of one measurement, and how they are written |
//! | [`ratio`] | the interval of a ratio of medians, the same from either side |
//!
//! Must not know: where samples come from, what is compared, what a verdict is.

pub mod alike;
pub mod change;
pub mod interval;
pub mod latency;
pub mod ratio;
pub mod student;

pub use interval::{MIN_FOR_CONFIDENCE, NARROW, latency_stats, median, median_interval, quantile};
pub use latency::{CI_CONFIDENCE, INTERVAL_RULE, LatencyStats, MedianInterval, NoInterval};
pub use ratio::{Place, RatioInterval, ratio_interval};

/// Windows that a report has at least where it is compared with another. With fewer nobody can tell how much of a
/// difference is only that between windows.
pub const COMPARABLE_WINDOWS: usize = 5;

#[cfg(test)]
mod coverage_tests;
