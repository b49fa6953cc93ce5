//! Device time of one step, and of a whole graph.

use super::{Device, Ready, Result};
use planforge_kernels_cuda::device::{Graph, Stream};

/// Runs of a step that are captured together when it is timed: long enough that launching does not count.
const MIN_TIMED_US: f64 = 200.0;
const MAX_REPEATS: usize = 20;
/// Runs by which is seen roughly what one takes.
const ROUGH_RUNS: usize = 2;
/// What takes so many times the best, and what one launch may add, is not timed with care.
const HOPELESS: f64 = 3.0;
const LAUNCH_US: f64 = 20.0;
/// Launches of which the median is taken.
const TIMED_LAUNCHES: usize = 5;
/// Launches of a whole graph of which the median is taken: as many as fit in this time, after some that warm up.
const GRAPH_LAUNCHES_MS: f64 = 12.0;
const GRAPH_LAUNCHES: std::ops::RangeInclusive<usize> = 5..=25;
const WARMING_LAUNCHES: usize = 3;

/// Median device time of one run of `ready`, in microseconds; roughly that where it takes much more than `best_us`.
pub fn time_us(device: &Device, ready: &Ready, best_us: f64) -> Result<f64> {
    let stream = &device.stream;
    // Queued behind one another, for a host that compiles meanwhile is late now and then; the second of two is not, too.
    let mut moments = Vec::with_capacity(ROUGH_RUNS + 1);
    for _ in 0..=ROUGH_RUNS {
        // SAFETY: the caller's memory lives.
        unsafe { ready.run(stream)? };
        moments.push(stream.moment()?);
    }
    moments[ROUGH_RUNS].wait()?;
    let mut rough_us = f64::INFINITY;
    for both in moments.windows(2) {
        rough_us = rough_us.min(both[1].since_ms(&both[0])? * 1e3);
    }
    if rough_us > HOPELESS * best_us + LAUNCH_US {
        return Ok(rough_us);
    }
    let repeats = ((MIN_TIMED_US / rough_us.max(1.0)) as usize).clamp(2, MAX_REPEATS);
    // SAFETY: as above.
    let graph = stream.capture(|| (0..repeats).try_for_each(|_| unsafe { ready.run(stream) }))?;
    // SAFETY: the memory it was captured with lives.
    Ok(unsafe { graph_ms(stream, &graph, TIMED_LAUNCHES)? } * 1e3 / repeats as f64)
}

/// Median device time of a graph, in milliseconds.
///
/// # Safety
/// The memory it was captured with lives.
pub unsafe fn median_ms(stream: &Stream, graph: &Graph) -> Result<f64> {
    // SAFETY: as the caller vouches.
    let rough_ms = unsafe { graph_ms(stream, graph, WARMING_LAUNCHES)? };
    let count = (GRAPH_LAUNCHES_MS / f64::max(rough_ms, 1e-3)) as usize;
    // SAFETY: as above.
    unsafe { graph_ms(stream, graph, count.clamp(*GRAPH_LAUNCHES.start(), *GRAPH_LAUNCHES.end())) }
}

/// Median device time of so many launches of a graph, in milliseconds, after one that does not count.
///
/// # Safety
/// The memory it was captured with lives.
pub unsafe fn graph_ms(stream: &Stream, graph: &Graph, launches: usize) -> Result<f64> {
    // Queued behind one another, as they are measured: a device that idles between two begins the next otherwise.
    let mut moments = Vec::with_capacity(launches + 2);
    for _ in 0..=launches {
        moments.push(stream.moment()?);
        // SAFETY: as the caller vouches.
        unsafe { graph.launch()? };
    }
    moments.push(stream.moment()?);
    moments[launches + 1].wait()?;
    let mut times = Vec::with_capacity(launches);
    for both in moments[1..].windows(2) {
        times.push(both[1].since_ms(&both[0])?);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
