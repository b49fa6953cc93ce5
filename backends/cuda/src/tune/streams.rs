//! Whether the steps of a program are quicker side by side: the whole graph is timed with several assignments to streams.

use crate::{
    program::{MAX_STREAMS, Program},
    runtime::{Constants, Context, Device, Kernels, Result, RuntimeError},
    schedule,
};
use planforge_kernels_cuda::device::DeviceError;
use planforge_types::Digest;
use std::collections::BTreeMap;

/// Numbers of streams that are tried.
const TRIED: [u32; 2] = [2, MAX_STREAMS];
/// What counts as quicker: more than the noise of a median.
const GAIN: f64 = 0.99;
/// A step whose time is not known is taken to cost this, and its bytes at this rate.
const LAUNCH_US: f64 = 2.0;
const BYTES_PER_US: f64 = 2e6;

/// Streams of a program's steps, by digest of the program before it had any.
pub type Streams = BTreeMap<Digest, Vec<u32>>;

/// Makes `program`, whose tactics are chosen, ready to run; with what `known` says of its streams, or after trying
/// where it `compares`, which `known` learns. `step_us`: times of steps by name.
pub(crate) fn choose(
    device: &Device,
    program: &mut Program,
    weights: &Constants,
    step_us: &BTreeMap<&str, f64>,
    compares: bool,
    known: &mut Streams,
) -> Result<Context> {
    let mut kernels = Kernels::new();
    let key = Digest::of(&serde_json::to_vec(program).expect("a program has only JSON types"));
    if let Some(streams) = known.get(&key) {
        if let Some(spread) = schedule::on_streams(program, streams) {
            *program = spread;
        }
        return Context::new(device, program, weights.clone(), &mut kernels);
    }
    let mut best = Context::new(device, program, weights.clone(), &mut kernels)?;
    if !compares {
        return Ok(best);
    }
    let guess = |step: &crate::program::Step| LAUNCH_US + step.bytes as f64 / BYTES_PER_US;
    let cost_us: Vec<f64> = program
        .steps
        .iter()
        .map(|step| step_us.get(step.name.as_str()).copied().unwrap_or_else(|| guess(step)))
        .collect();
    let single = program.clone();
    let mut best_ms = best.time_ms()?;
    let single_ms = best_ms;
    let mut tried: Vec<Program> = Vec::new();
    for spread in TRIED.iter().filter_map(|&streams| schedule::spread(&single, streams, &cost_us)) {
        if tried.contains(&spread) {
            continue;
        }
        tried.push(spread.clone());
        let timed = Context::new(device, &spread, weights.clone(), &mut kernels)
            .and_then(|context| Ok((context.time_ms()?, context)));
        match timed {
            Ok((ms, context)) if ms < best_ms * GAIN => {
                (best, best_ms) = (context, ms);
                *program = spread;
            }
            Ok(_) => {}
            Err(error @ RuntimeError::Device(DeviceError::Fault { .. })) => return Err(error),
            Err(error) => tracing::debug!(%error, "steps do not run side by side"),
        }
    }
    let streams = program.steps.iter().map(|step| step.stream + 1).max().unwrap_or(1);
    tracing::info!(streams, single_ms, best_ms, "steps are spread over streams");
    known.insert(key, program.steps.iter().map(|step| step.stream).collect());
    Ok(best)
}
