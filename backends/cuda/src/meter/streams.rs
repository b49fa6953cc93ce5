//! Several contexts of one engine at once: own activations, own locked host memory, own stream; the constants are shared.

use super::split::Edges;
use crate::{
    engine::Engine,
    runtime::{Context, RuntimeError},
};
use planforge_backend::{StreamSamples, Window};
use planforge_kernels_cuda::device::Moment;
use planforge_types::BackendError;
use std::time::Instant;

/// Executions a stream may be ahead of what was waited for.
const AHEAD: usize = 2;
/// Most executions of one point, whatever its window says.
const EXECUTIONS_MAX: usize = 100_000;

/// One stream and what it has in flight, oldest first.
struct Lane {
    context: Context,
    edges: Edges,
    flying: std::collections::VecDeque<(Moment, Moment)>,
}

/// Runs `streams` contexts for as long as `window` says, each bringing its inputs and taking its outputs; waited for
/// at the end.
pub(super) fn measure(engine: &Engine, streams: u32, window: Window) -> Result<StreamSamples, BackendError> {
    Ok(run(engine, streams as usize, window)?)
}

fn run(engine: &Engine, streams: usize, window: Window) -> Result<StreamSamples, RuntimeError> {
    let captured = engine.current().map_err(|_| RuntimeError::NotBound)?;
    let device = &engine.device;
    let mut lanes = Vec::with_capacity(streams);
    for _ in 0..streams {
        let edges = Edges::of(device, captured)?;
        let context = captured.another_context(device)?;
        lanes.push(Lane { context, edges, flying: Default::default() });
    }
    // Warm: each context once.
    for lane in &mut lanes {
        lane.edges.copy_in(&lane.context)?;
        lane.context.launch()?;
    }
    device.gpu.synchronize()?;
    let least = (window.iterations as usize).max(streams);
    let mut latency_ms = Vec::new();
    let began = Instant::now();
    let mut launched = 0;
    while launched < EXECUTIONS_MAX && (launched < least || began.elapsed().as_secs_f64() * 1e3 < window.duration_ms) {
        for lane in &mut lanes {
            if lane.flying.len() >= AHEAD {
                lane.land(&mut latency_ms)?;
            }
            let stream = lane.context.stream();
            let from = stream.moment()?;
            lane.edges.copy_in(&lane.context)?;
            lane.context.launch()?;
            lane.edges.copy_out(&lane.context)?;
            let to = stream.moment()?;
            lane.flying.push_back((from, to));
            launched += 1;
        }
    }
    device.gpu.synchronize()?;
    let elapsed_s = began.elapsed().as_secs_f64();
    for lane in &mut lanes {
        while !lane.flying.is_empty() {
            lane.land(&mut latency_ms)?;
        }
    }
    Ok(StreamSamples { executions_per_s: launched as f64 / elapsed_s.max(1e-9), latency_ms })
}

impl Lane {
    /// Waits for the oldest execution.
    fn land(&mut self, latency_ms: &mut Vec<f64>) -> Result<(), RuntimeError> {
        if let Some((from, to)) = self.flying.pop_front() {
            to.wait()?;
            latency_ms.push(to.since_ms(&from)?);
        }
        Ok(())
    }
}
