//! Where the latency goes, in the modes people run engines in.

use super::{Sample, timed};
use crate::{
    engine::{Captured, Engine},
    runtime::{Context, Device, RuntimeError},
};
use planforge_kernels_cuda::{device::Buffer, pinned::Pinned};
use planforge_report::{LatencySplit, ModeSplit, PartStats};
use planforge_types::BackendError;
use std::time::Instant;

/// Executions per mode, fewer where they would take longer than the budget.
const EXECUTIONS: usize = 100;
const EXECUTIONS_MIN: usize = 5;
const MODE_BUDGET_MS: f64 = 400.0;

/// Inputs that take turns: as many as no cache holds, within bounds.
const ROTATED_MIN: usize = 2;
const ROTATED_MAX: usize = 32;
const ROTATED_MAX_BYTES: u64 = 1 << 30;
/// All of them together are this many times the device's L2.
const ROTATED_CACHES: u64 = 2;

/// Host memory for every input and output by its number, locked so that the device copies by itself. States have none:
/// they stay on the device.
#[derive(Debug)]
pub(super) struct Edges {
    pub inputs: Vec<(usize, Pinned)>,
    pub outputs: Vec<(usize, Pinned)>,
}

impl Edges {
    /// Filled with what is bound.
    pub fn of(device: &Device, captured: &Captured) -> Result<Self, RuntimeError> {
        let program = &captured.program;
        let bytes = |edge: &crate::program::Edge| edge.shape.iter().product::<u64>() as usize * edge.element.bytes();
        let mut inputs = Vec::new();
        let is_state = |number: usize| program.states.iter().any(|state| state.input as usize == number);
        for (number, edge) in program.inputs.iter().enumerate().filter(|(number, _)| !is_state(*number)) {
            let mut pinned = device.gpu.pinned(bytes(edge))?;
            captured.context.memory.inputs[number].read(0, pinned.bytes_mut())?;
            inputs.push((number, pinned));
        }
        let outputs = program.outputs.iter().enumerate();
        let outputs = outputs.filter(|(number, _)| program.state_of_output(*number).is_none());
        let outputs = outputs.map(|(number, edge)| device.gpu.pinned(bytes(edge)).map(|pinned| (number, pinned)));
        Ok(Self { inputs, outputs: outputs.collect::<Result<_, _>>()? })
    }

    /// Queues the copies of all inputs.
    pub fn copy_in(&self, context: &Context) -> Result<(), RuntimeError> {
        for (number, from) in &self.inputs {
            // SAFETY: both live as long as this and the context, whose stream every caller waits for.
            unsafe { context.stream().copy_in(&context.memory.inputs[*number], from)? };
        }
        Ok(())
    }

    /// Queues the copies of all outputs.
    pub fn copy_out(&mut self, context: &Context) -> Result<(), RuntimeError> {
        for (number, to) in &mut self.outputs {
            // SAFETY: as above.
            unsafe { context.stream().copy_out(to, &context.memory.outputs[*number])? };
        }
        Ok(())
    }
}

/// Every mode on what is bound.
pub(super) fn measure(engine: &Engine) -> Result<LatencySplit, BackendError> {
    let captured = engine.current()?;
    let context = &captured.context;
    let first = timed(context, EXECUTIONS_MIN, |_| context.launch())?;
    let mean_ms = first.iter().map(|sample| sample.device_ms).sum::<f64>() / first.len() as f64;
    let count = ((MODE_BUDGET_MS / mean_ms.max(1e-3)) as usize).clamp(EXECUTIONS_MIN, EXECUTIONS);
    let resident = |graph: bool, samples: Vec<Sample>| -> ModeSplit {
        let part = |pick: fn(&Sample) -> f64| PartStats::of(&samples.iter().map(pick).collect::<Vec<_>>());
        ModeSplit {
            cuda_graph: graph,
            executions: samples.len() as u64,
            compute: part(|sample| sample.device_ms).unwrap_or_default(),
            enqueue: part(|sample| sample.enqueue_ms),
            ..ModeSplit::default()
        }
    };
    let graph = resident(true, timed(context, count, |_| context.launch())?);
    let steps = resident(false, timed(context, count, |_| context.launch_steps())?);
    let rotated = rotated(&engine.device, captured, count)?;
    let rotated = ModeSplit { rotated_inputs: true, ..resident(true, rotated) };
    let transfers = transfers(&engine.device, captured, count)?;
    Ok(LatencySplit { modes: vec![graph, rotated, steps, transfers] })
}

/// Every execution copies another set of inputs into the graph's own, on the device; the copy counts. States stay.
fn rotated(device: &Device, captured: &Captured, count: usize) -> Result<Vec<Sample>, RuntimeError> {
    let context = &captured.context;
    let memory = &context.memory;
    let original = Edges::of(device, captured)?;
    let set_bytes: u64 = original.inputs.iter().map(|(number, _)| memory.inputs[*number].len_bytes() as u64).sum();
    let wanted = (ROTATED_CACHES * device.gpu.properties().l2_bytes).div_ceil(set_bytes.max(1));
    let fitting = (ROTATED_MAX_BYTES / set_bytes.max(1)) as usize;
    let sets = (wanted as usize).min(fitting).clamp(ROTATED_MIN, ROTATED_MAX);
    let mut rotating: Vec<Vec<Buffer>> = Vec::new();
    for set in 0..sets {
        let mut buffers = Vec::new();
        for (number, pinned) in &original.inputs {
            let edge = &captured.program.inputs[*number];
            // The same values in other places: token ids and masks stay what they may be.
            let mut bytes = pinned.bytes().to_vec();
            let elements = bytes.len() / edge.element.bytes();
            bytes.rotate_left(set * elements / sets * edge.element.bytes());
            buffers.push(device.gpu.upload(&bytes)?);
        }
        rotating.push(buffers);
    }
    device.gpu.synchronize()?;
    let samples = timed(context, count, |index| {
        for (from, (number, _)) in rotating[index % sets].iter().zip(&original.inputs) {
            let to = &memory.inputs[*number];
            // SAFETY: both live until the stream was waited for, which `timed` does, and are as long as each other.
            unsafe { context.stream().copy(to.address(), from.address(), from.len_bytes().min(to.len_bytes()))? };
        }
        context.launch()
    })?;
    for (number, pinned) in &original.inputs {
        memory.inputs[*number].write(0, pinned.bytes())?;
    }
    device.gpu.synchronize()?;
    Ok(samples)
}

/// Every execution brings its inputs and takes its outputs, one after the other.
fn transfers(device: &Device, captured: &Captured, count: usize) -> Result<ModeSplit, RuntimeError> {
    let context = &captured.context;
    let stream = context.stream();
    let mut edges = Edges::of(device, captured)?;
    let (mut h2d, mut compute, mut d2h, mut host, mut enqueue) = (vec![], vec![], vec![], vec![], vec![]);
    for _ in 0..count {
        let began = Instant::now();
        let start = stream.moment()?;
        edges.copy_in(context)?;
        let arrived = stream.moment()?;
        context.launch()?;
        let computed = stream.moment()?;
        edges.copy_out(context)?;
        let end = stream.moment()?;
        enqueue.push(began.elapsed().as_secs_f64() * 1e3);
        end.wait()?;
        host.push(began.elapsed().as_secs_f64() * 1e3);
        h2d.push(arrived.since_ms(&start)?);
        compute.push(computed.since_ms(&arrived)?);
        d2h.push(end.since_ms(&computed)?);
    }
    Ok(ModeSplit {
        cuda_graph: true,
        transfers: true,
        executions: count as u64,
        compute: PartStats::of(&compute).unwrap_or_default(),
        enqueue: PartStats::of(&enqueue),
        h2d: PartStats::of(&h2d),
        d2h: PartStats::of(&d2h),
        host: PartStats::of(&host),
        ..ModeSplit::default()
    })
}
