//! How throughput grows with parallel streams, and where it stops paying.

use super::stats;
use crate::{
    backend::{BackendError, Cancel, Meter, Window},
    report::{StreamPoint, StreamSweep},
};

/// Throughput, relative to the best, from which more streams are said to add only latency.
const KNEE_SHARE: f64 = 0.95;

/// Executions timed at each number of streams, at least.
const SWEEP_ITERATIONS: u32 = 20;

/// Timed part of each point.
const SWEEP_WINDOW_MS: f64 = 500.0;

/// Measures each of `counts` (ascending, each once) until `budget_ms` is spent; `None` where the backend has no streams.
pub fn measure(
    meter: &mut dyn Meter,
    counts: &[u32],
    batch: u64,
    clock: &dyn super::Clock,
    budget_ms: f64,
    cancel: &Cancel,
) -> Result<Option<StreamSweep>, BackendError> {
    let began_ms = clock.now_ms();
    let mut points: Vec<StreamPoint> = Vec::new();
    for &streams in counts {
        let spent = clock.now_ms() - began_ms >= budget_ms;
        if cancel.is_cancelled() || (spent && !points.is_empty()) {
            break;
        }
        let window = Window { iterations: SWEEP_ITERATIONS, duration_ms: SWEEP_WINDOW_MS };
        let Some(samples) = meter.streams(streams, window)? else { return Ok(None) };
        let mut latencies = samples.latency_ms;
        latencies.sort_unstable_by(f64::total_cmp);
        points.push(StreamPoint {
            streams,
            throughput_per_s: samples.executions_per_s * batch as f64,
            median_ms: stats::quantile(&latencies, 0.5),
            p99_ms: stats::quantile(&latencies, 0.99),
            samples: latencies.len() as u64,
        });
    }
    Ok(Some(judge(points)))
}

/// Finds knee and best point.
///
/// *Best* is the highest throughput, at the fewest streams that reach it. The *knee* is the fewest streams within 5 %
/// of it. One point alone bends nowhere.
pub fn judge(mut points: Vec<StreamPoint>) -> StreamSweep {
    points.sort_by_key(|point| point.streams);
    let top = points.iter().map(|point| point.throughput_per_s).fold(0.0, f64::max);
    let fewest = |share: f64| {
        let enough = |point: &&StreamPoint| point.throughput_per_s >= top * share;
        points.iter().find(enough).map(|point| point.streams)
    };
    let best = (top > 0.0).then(|| fewest(1.0)).flatten();
    let knee = (top > 0.0 && points.len() > 1).then(|| fewest(KNEE_SHARE)).flatten();
    StreamSweep { knee, best, points }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep(throughputs: &[(u32, f64)]) -> StreamSweep {
        let point = |&(streams, throughput_per_s)| StreamPoint {
            streams,
            throughput_per_s,
            median_ms: 1.0,
            p99_ms: 1.0,
            samples: 20,
        };
        judge(throughputs.iter().map(point).collect())
    }

    #[test]
    fn the_knee_is_where_more_streams_stop_paying() {
        let found = sweep(&[(1, 100.0), (2, 180.0), (4, 196.0), (8, 200.0)]);
        assert_eq!((found.knee, found.best), (Some(4), Some(8)));
        let falling = sweep(&[(1, 200.0), (2, 150.0), (4, 120.0)]);
        assert_eq!((falling.knee, falling.best), (Some(1), Some(1)));
        let rising = sweep(&[(1, 100.0), (2, 200.0), (4, 400.0)]);
        assert_eq!((rising.knee, rising.best), (Some(4), Some(4)));
    }

    #[test]
    fn points_in_any_order_are_judged_alike_and_equals_prefer_fewer_streams() {
        let found = sweep(&[(8, 200.0), (1, 100.0), (4, 200.0)]);
        assert_eq!(found.points.iter().map(|p| p.streams).collect::<Vec<_>>(), [1, 4, 8]);
        assert_eq!((found.knee, found.best), (Some(4), Some(4)));
    }

    #[test]
    fn too_little_says_nothing() {
        assert_eq!((sweep(&[]).knee, sweep(&[]).best), (None, None));
        let one = sweep(&[(2, 50.0)]);
        assert_eq!((one.knee, one.best), (None, Some(2)));
        let dead = sweep(&[(1, 0.0), (2, 0.0)]);
        assert_eq!((dead.knee, dead.best), (None, None));
    }
}
