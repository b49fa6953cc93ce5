//! Whether the steps of a program are quicker side by side: the whole graph is timed with many ways to spread them over
//! streams, and what seems to gain is timed again beside what it would take the place of.

use super::proof::Proof;
use crate::{
    program::{Program, Step},
    runtime::{Constants, Context, Device, Kernels, Result, RuntimeError},
    schedule::{self, Order, Tried},
};
use planforge_kernels_cuda::device::DeviceError;
use planforge_types::Digest;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// All of it ends about after this time.
const LONGEST: Duration = Duration::from_millis(2000);
/// What a way has to show beside the best: more than the noise of a median, and again.
const PROOF: Proof = Proof { gain: 0.997, turns: 2 };
/// What is slower than the best by no more is near it: others may gain.
const NEAR: f64 = 1.03;
/// Launches of a way that is tried, and of the best behind it: clocks wander, and what was quick a second ago says little.
const LAUNCHES: usize = 9;
/// A step whose time is not known is taken to cost this, and its bytes at this rate.
const LAUNCH_US: f64 = 2.0;
const BYTES_PER_US: f64 = 2e6;

/// Streams of a program's steps, by digest of the program before it had any.
pub type Streams = BTreeMap<Digest, Vec<u32>>;

/// What is known of a program's streams is known by this, of the program with all steps on one.
pub(super) fn key(program: &Program) -> Digest {
    Digest::of(&serde_json::to_vec(program).expect("a program has only JSON types"))
}

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
    let key = key(program);
    if let Some(streams) = known.get(&key) {
        if let Some(spread) = schedule::on_streams(program, streams) {
            *program = spread;
        }
        return Context::new(device, program, weights.clone(), &mut kernels);
    }
    let single = Context::new(device, program, weights.clone(), &mut kernels)?;
    if !compares {
        return Ok(single);
    }
    let began = Instant::now();
    let single_ms = single.time_ms()?;
    let best = Way { program: program.clone(), context: single };
    let mut trials = Trials { device, single: program, weights, kernels, best, tried: 0 };
    if let Some(order) = Order::of(program) {
        let guess = |step: &Step| LAUNCH_US + step.bytes as f64 / BYTES_PER_US;
        let cost_us = |step: &Step| step_us.get(step.name.as_str()).copied().unwrap_or_else(|| guess(step));
        let cost_us: Vec<f64> = program.steps.iter().map(cost_us).collect();
        schedule::search(&order, &cost_us, &mut |way| trials.try_one(way), &|| began.elapsed() < LONGEST)?;
    }
    let (tried, Way { program: chosen, context }) = (trials.tried, trials.best);
    let best_ms = context.time_ms()?;
    let streams = chosen.steps.iter().map(|step| step.stream + 1).max().unwrap_or(1);
    let seconds = began.elapsed().as_secs_f32();
    tracing::info!(streams, tried, single_ms, best_ms, seconds, "steps are spread over streams");
    known.insert(key, chosen.steps.iter().map(|step| step.stream).collect());
    *program = chosen;
    Ok(context)
}

/// A program with its steps on some streams.
struct Way {
    program: Program,
    context: Context,
}

/// Ways on the device, of which the best is kept beside the one that is tried.
struct Trials<'a> {
    device: &'a Device,
    /// With all steps on one stream.
    single: &'a Program,
    weights: &'a Constants,
    kernels: Kernels,
    best: Way,
    tried: usize,
}

impl Trials<'_> {
    /// Times the program with its steps on these streams, which take the best's place where they gain.
    fn try_one(&mut self, streams: &[u32]) -> Result<Tried> {
        let Some(program) = schedule::on_streams(self.single, streams) else { return Ok(Tried::Far) };
        self.tried += 1;
        let timed = Context::new(self.device, &program, self.weights.clone(), &mut self.kernels)
            .and_then(|context| Ok((context.rough_ms(LAUNCHES)?, context)));
        let (ms, context) = match timed {
            Ok(timed) => timed,
            Err(error @ RuntimeError::Device(DeviceError::Fault { .. })) => return Err(error),
            Err(error) => {
                tracing::debug!(%error, "steps do not run side by side");
                return Ok(Tried::Far);
            }
        };
        let best_ms = self.best.context.rough_ms(LAUNCHES)?;
        if ms < best_ms * PROOF.gain && PROOF.in_turns(&self.best.context, &context, &mut Context::time_ms)?.is_quicker
        {
            self.best = Way { program, context };
            return Ok(Tried::Gains);
        }
        Ok(if ms < best_ms * NEAR { Tried::Near } else { Tried::Far })
    }
}
