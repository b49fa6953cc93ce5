//! Device time of one step.

use super::{Device, Ready, Result};
use planforge_kernels::cuda::device::{Moment, Stream};

/// Runs of a step that are captured together when it is timed: long enough that launching does not count.
const MIN_TIMED_US: f64 = 200.0;
const MAX_REPEATS: usize = 20;
/// Launches of which the median is taken.
const TIMED_LAUNCHES: usize = 5;

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
    let mut failed = None;
    let graph = stream.capture(|| {
        for _ in 0..repeats {
            // SAFETY: as above.
            if let Err(error) = unsafe { ready.run(stream) } {
                failed = Some(error);
                break;
            }
        }
        Ok(())
    });
    if let Some(error) = failed {
        return Err(error);
    }
    let graph = graph?;
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

/// Device time since `from`, which everything queued since then is waited for.
fn elapsed_ms(stream: &Stream, from: &Moment) -> Result<f64> {
    let to = stream.moment()?;
    to.wait()?;
    Ok(to.since_ms(from)?)
}
