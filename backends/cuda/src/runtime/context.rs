//! A whole program on a device, captured as one graph.

use super::{Constants, Device, Kernels, Memory, Ready, Result, graph_ms, prepare, time_us, timing::median_ms};
use crate::{
    early::{self, Behind},
    program::{Program, Tactic},
    schedule::Schedule,
};
use planforge_kernels_cuda::{
    device::{Graph, Moment, Stream},
    nvtx::range,
};
use std::fmt;

/// A program with its memory on a device, ready to run as one graph.
pub struct Context {
    pub memory: Memory,
    ready: Vec<Ready>,
    /// Names of the steps, for profilers.
    names: Vec<String>,
    graph: Graph,
    stream: Stream,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({} steps)", self.ready.len())
    }
}

impl Context {
    /// Prepares every step and captures them; each must have its tactic.
    pub fn new(device: &Device, program: &Program, weights: Constants, kernels: &mut Kernels) -> Result<Self> {
        program.check()?;
        let memory = Memory::new(device, program, weights, &program.workspaces_bytes())?;
        let schedule = Schedule::of(program);
        let mut ready = prepare_all(device, program, &schedule, &memory, kernels)?;
        keep_libraries_behind(device, program, &mut ready)?;
        let stream = device.gpu.stream()?;
        // Once outside of a capture: libraries set things up at their first call.
        for step in &ready {
            // SAFETY: the memory lives in this context.
            unsafe { step.run(&stream)? };
        }
        stream.synchronize()?;
        let sides: Vec<Stream> =
            (1..schedule.streams).map(|_| device.gpu.stream()).collect::<std::result::Result<_, _>>()?;
        let graph = capture(program, &schedule, &ready, &stream, &sides)?;
        let names = program.steps.iter().map(|step| step.name.clone()).collect();
        Ok(Self { memory, ready, names, graph, stream })
    }

    /// Queues one execution as a graph.
    pub fn launch(&self) -> Result<()> {
        // SAFETY: the memory it was captured with lives in this context.
        let _: () = unsafe { self.graph.launch()? };
        Ok(())
    }

    /// Queues one execution step by step.
    pub fn launch_steps(&self) -> Result<()> {
        for (step, name) in self.ready.iter().zip(&self.names) {
            let _range = range(name);
            // SAFETY: the memory lives in this context.
            unsafe { step.run(&self.stream)? };
        }
        Ok(())
    }

    /// Queues one step of an execution.
    pub(crate) fn launch_step(&self, index: usize) -> Result<()> {
        // SAFETY: the memory lives in this context.
        unsafe { self.ready[index].run(&self.stream) }
    }

    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Median device time of the graph, in milliseconds.
    pub(crate) fn time_ms(&self) -> Result<f64> {
        // SAFETY: the memory it was captured with lives in this context.
        unsafe { median_ms(&self.stream, &self.graph) }
    }

    /// The same of so many launches.
    pub(crate) fn rough_ms(&self, launches: usize) -> Result<f64> {
        // SAFETY: as above.
        unsafe { graph_ms(&self.stream, &self.graph, launches) }
    }

    /// Median device time of each step by itself, in milliseconds.
    pub fn step_times_ms(&self, device: &Device) -> Result<Vec<f64>> {
        self.ready.iter().map(|ready| time_us(device, ready, f64::INFINITY).map(|us| us / 1e3)).collect()
    }
}

/// Holds every kernel to what [`early`] decides.
pub(crate) fn keep_libraries_behind(device: &Device, program: &Program, ready: &mut [Ready]) -> Result<()> {
    let steps: Vec<Behind> =
        ready.iter().map(|ready| Behind { waits: ready.waits(), is_library: ready.is_library() }).collect();
    let Some(alone) = early::kept_alone(device.gpu.properties().arch.capability, program, &steps) else {
        return Ok(());
    };
    ready.iter_mut().zip(alone).try_for_each(|(ready, alone)| ready.let_next_begin_early(!alone))
}

/// Makes a step of a program ready that has its steps on some streams.
pub(crate) fn prepare_step(
    device: &Device,
    program: &Program,
    schedule: &Schedule,
    number: usize,
    tactic: Option<&Tactic>,
    memory: &Memory,
    kernels: &mut Kernels,
) -> Result<Ready> {
    let mut ready = prepare(device, program, &program.steps[number], tactic, memory, kernels)?;
    if !schedule.waits[number].is_empty() {
        ready.begin_after_all();
    }
    Ok(ready)
}

/// Makes every step ready to be computed by the tactic it has.
pub(crate) fn prepare_all(
    device: &Device,
    program: &Program,
    schedule: &Schedule,
    memory: &Memory,
    kernels: &mut Kernels,
) -> Result<Vec<Ready>> {
    let mut ready = |number: usize, tactic| prepare_step(device, program, schedule, number, tactic, memory, kernels);
    program.steps.iter().enumerate().map(|(number, step)| ready(number, step.tactic.as_ref())).collect()
}

/// All steps as one graph, from `stream` on and with `sides` beside it; the memory that they were made ready for has to
/// outlive it.
pub(crate) fn capture(
    program: &Program,
    schedule: &Schedule,
    ready: &[Ready],
    stream: &Stream,
    sides: &[Stream],
) -> Result<Graph> {
    stream.capture(|| {
        sides.iter().try_for_each(|side| side.after(stream))?;
        let queued = queue(program, schedule, ready, stream, sides);
        // A capture cannot end while another stream is in it.
        sides.iter().try_for_each(|side| stream.after(side))?;
        queued
    })
}

/// Queues every step on its stream, after what it waits for on others.
fn queue(program: &Program, schedule: &Schedule, ready: &[Ready], first: &Stream, sides: &[Stream]) -> Result<()> {
    let streams: Vec<&Stream> = [first].into_iter().chain(sides).collect();
    let awaited = schedule.awaited();
    let mut done: Vec<Option<Moment>> = Vec::with_capacity(ready.len());
    for (number, step) in ready.iter().enumerate() {
        let stream = streams[program.steps[number].stream as usize];
        for moment in schedule.waits[number].iter().filter_map(|&earlier| done[earlier].as_ref()) {
            stream.after_moment(moment)?;
        }
        // SAFETY: the memory that the steps were made ready for lives.
        unsafe { step.run(stream)? };
        done.push(if awaited[number] { Some(stream.moment()?) } else { None });
    }
    Ok(())
}
