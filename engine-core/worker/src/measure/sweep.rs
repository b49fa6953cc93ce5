//! How throughput grows with parallel streams or the batch, and where it stops paying.

use planforge_backend::{Cancel, Meter, Window};
use planforge_report::{BatchPoint, BatchSweep, StreamPoint, StreamSweep};
use planforge_stats;
use planforge_types::BackendError;

/// Throughput, relative to the best, from which more streams are said to add only latency.
const KNEE_SHARE: f64 = 0.95;

/// Executions timed at each number of streams, at least.
const SWEEP_ITERATIONS: u32 = 20;

/// Timed part of each point.
const SWEEP_WINDOW_MS: f64 = 500.0;

/// What a sweep over streams found before it ended.
#[derive(Debug)]
pub struct Swept {
    /// `None` where the backend has no streams.
    pub points: Option<StreamSweep>,
    /// Why it ended before its last count: more streams may need more memory than there is.
    pub ended: Option<BackendError>,
}

/// Measures each of `counts` (ascending, each once) until `budget_ms` is spent. An error of the first is the sweep's own.
pub fn measure(
    meter: &mut dyn Meter,
    counts: &[u32],
    batch: u64,
    clock: &dyn super::Clock,
    budget_ms: f64,
    cancel: &Cancel,
) -> Result<Swept, BackendError> {
    let began_ms = clock.now_ms();
    let mut points: Vec<StreamPoint> = Vec::new();
    let mut ended = None;
    for &streams in counts {
        let spent = clock.now_ms() - began_ms >= budget_ms;
        if cancel.is_cancelled() || (spent && !points.is_empty()) {
            break;
        }
        let window = Window { iterations: SWEEP_ITERATIONS, duration_ms: SWEEP_WINDOW_MS };
        let samples = match meter.streams(streams, window) {
            Ok(Some(samples)) => samples,
            Ok(None) => return Ok(Swept { points: None, ended: None }),
            Err(error) if points.is_empty() => return Err(error),
            Err(error) => {
                ended = Some(error);
                break;
            }
        };
        let mut latencies = samples.latency_ms;
        latencies.sort_unstable_by(f64::total_cmp);
        points.push(StreamPoint {
            streams,
            throughput_per_s: samples.executions_per_s * batch as f64,
            median_ms: planforge_stats::quantile(&latencies, 0.5),
            p99_ms: planforge_stats::quantile(&latencies, 0.99),
            samples: latencies.len() as u64,
        });
    }
    Ok(Swept { points: Some(judge(points)), ended })
}

/// Finds knee and best point of streams in any order.
pub fn judge(mut points: Vec<StreamPoint>) -> StreamSweep {
    points.sort_by_key(|point| point.streams);
    let found = bend(points.iter().map(|point| (point.streams, point.throughput_per_s)));
    StreamSweep { knee: found.knee, best: found.best, points }
}

/// Finds knee and best point of batches in any order; those without numbers are left out of it.
pub fn judge_batches(mut points: Vec<BatchPoint>) -> BatchSweep {
    points.sort_by_key(|point| point.batch);
    let found = bend(points.iter().filter_map(|point| Some((point.batch, point.throughput_per_s?))));
    BatchSweep { knee: found.knee, best: found.best, points }
}

struct Bend {
    knee: Option<u32>,
    best: Option<u32>,
}

/// Where a curve of throughputs, ascending by what is swept, bends.
///
/// *Best* is the highest throughput, at the fewest that reach it. The *knee* is the fewest within 5 % of it. One point
/// alone bends nowhere.
fn bend(curve: impl Iterator<Item = (u32, f64)>) -> Bend {
    let curve: Vec<_> = curve.collect();
    let top = curve.iter().map(|(_, throughput)| *throughput).fold(0.0, f64::max);
    let fewest = |share: f64| curve.iter().find(|(_, throughput)| *throughput >= top * share).map(|(at, _)| *at);
    let best = (top > 0.0).then(|| fewest(1.0)).flatten();
    let knee = (top > 0.0 && curve.len() > 1).then(|| fewest(KNEE_SHARE)).flatten();
    Bend { knee, best }
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
    fn batches_without_numbers_bend_nothing() {
        let point = |batch, throughput_per_s| BatchPoint {
            batch,
            latency_ms: None,
            throughput_per_s,
            disturbed: false,
            headline: false,
            problem: None,
        };
        let found =
            judge_batches(vec![point(32, None), point(8, Some(198.0)), point(16, Some(200.0)), point(1, Some(50.0))]);
        assert_eq!((found.knee, found.best), (Some(8), Some(16)));
        assert_eq!(found.points.iter().map(|p| p.batch).collect::<Vec<_>>(), [1, 8, 16, 32]);
        assert_eq!(judge_batches(vec![point(1, None)]).best, None);
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
