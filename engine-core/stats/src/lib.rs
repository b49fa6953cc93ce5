//! What samples say: quantiles, the interval of a median, the interval of a ratio of medians.
//!
//! | module | holds |
//! |---|---|
//! | [`interval`] | quantiles, and an interval for the median that counts windows |
//! | [`latency`] | the statistics of one measurement, and how they are written |
//! | [`bootstrap`] | the interval of a ratio of medians, by resampling windows and then samples within them |
//!
//! Must not know: where samples come from, what is compared, what a verdict is.

pub mod bootstrap;
pub mod interval;
pub mod latency;

pub use interval::{MIN_FOR_CONFIDENCE, latency_stats, median, quantile};
pub use latency::{CI_CONFIDENCE, LatencyStats, MedianInterval};

/// Windows that a report has at least where it is compared with another. With fewer nobody can tell how much of a
/// difference is only that between windows.
pub const COMPARABLE_WINDOWS: usize = 5;
