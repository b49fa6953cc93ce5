//! Device time of one step, and of a whole graph.

use super::{Device, Ready, Result};
use planforge_kernels_cuda::device::{Graph, Moment, Stream};

/// Runs of a step that are captured together when it is timed: long enough that launching does not count.
const MIN_TIMED_US: f64 = 200.0;
const MAX_REPEATS: usize = 20;
/// Launches of which the median is taken.
const TIMED_LAUNCHES: usize = 5;
/// Launches of a whole graph of which the median is taken: as many as fit in this time, after some that warm up.
const GRAPH_LAUNCHES_MS: f64 = 12.0;
const GRAPH_LAUNCHES: std::ops::RangeInclusive<usize> = 5..=25;
const WARMING_LAUNCHES: usize = 3;

/// Median device time of one run of `ready`, in microseconds.
pub fn time_us(device: &Device, ready: &Ready) -> Result<f64> {
    let stream = &device.stream;
    // SAFETY: the caller's memory lives.
    unsafe { ready.run(stream)? };
    let first = stream.moment()?;
    // SAFETY: as above.
    unsafe { ready.run(stream)? };
    let rough_us = elapsed_ms(stream, &first)? * 1e3;
    let repeats = ((MIN_TIMED_US / rough_us.max(1.0)) as usize).clamp(2, MAX_REPEATS);
    // SAFETY: as above.
    let graph = stream.capture(|| (0..repeats).try_for_each(|_| unsafe { ready.run(stream) }))?;
    let mut times = Vec::with_capacity(TIMED_LAUNCHES);
    for _ in 0..TIMED_LAUNCHES {
        let from = stream.moment()?;
        // SAFETY: the memory it was captured with lives.
        unsafe { graph.launch()? };
        times.push(elapsed_ms(stream, &from)? * 1e3 / repeats as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[TIMED_LAUNCHES / 2])
}

/// Median device time of a graph, in milliseconds.
///
/// # Safety
/// The memory it was captured with lives.
pub unsafe fn median_ms(stream: &Stream, graph: &Graph) -> Result<f64> {
    let launch = || {
        let from = stream.moment()?;
        // SAFETY: as the caller vouches.
        unsafe { graph.launch()? };
        elapsed_ms(stream, &from)
    };
    let mut rough_ms = 0.0;
    for _ in 0..WARMING_LAUNCHES {
        rough_ms = launch()?;
    }
    let count = (GRAPH_LAUNCHES_MS / f64::max(rough_ms, 1e-3)) as usize;
    let count = count.clamp(*GRAPH_LAUNCHES.start(), *GRAPH_LAUNCHES.end());
    let mut times = (0..count).map(|_| launch()).collect::<Result<Vec<f64>>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Device time since `from`, which everything queued since then is waited for.
fn elapsed_ms(stream: &Stream, from: &Moment) -> Result<f64> {
    let to = stream.moment()?;
    to.wait()?;
    Ok(to.since_ms(from)?)
}
