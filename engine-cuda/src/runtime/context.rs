//! A whole program on a device, captured as one graph.

use super::{Device, Kernels, Memory, Ready, Result, prepare, time_us};
use crate::program::Program;
use planforge_kernels::cuda::device::{Buffer, Graph, Stream};
use std::fmt;

/// A program with its memory on a device, ready to run as one graph.
pub struct Context {
    pub memory: Memory,
    ready: Vec<Ready>,
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
    pub fn new(
        device: &Device,
        program: &Program,
        weights: std::rc::Rc<Buffer>,
        kernels: &mut Kernels,
    ) -> Result<Self> {
        program.check()?;
        let memory = Memory::new(device, program, weights, program.workspace_bytes())?;
        let mut ready = Vec::with_capacity(program.steps.len());
        for step in &program.steps {
            ready.push(prepare(device, program, step, step.tactic.as_ref(), &memory, kernels)?);
        }
        let stream = device.gpu.stream()?;
        // Once outside of a capture: libraries set things up at their first call.
        for step in &ready {
            // SAFETY: the memory lives in this context.
            unsafe { step.run(&stream)? };
        }
        stream.synchronize()?;
        let mut failed = None;
        let graph = stream.capture(|| {
            for step in &ready {
                // SAFETY: as above.
                if let Err(error) = unsafe { step.run(&stream) } {
                    failed = Some(error);
                    break;
                }
            }
            Ok(())
        });
        if let Some(error) = failed {
            return Err(error);
        }
        Ok(Self { memory, ready, graph: graph?, stream })
    }

    /// Queues one execution as a graph.
    pub fn launch(&self) -> Result<()> {
        // SAFETY: the memory it was captured with lives in this context.
        let _: () = unsafe { self.graph.launch()? };
        Ok(())
    }

    /// Queues one execution step by step.
    pub fn launch_steps(&self) -> Result<()> {
        for step in &self.ready {
            // SAFETY: the memory lives in this context.
            unsafe { step.run(&self.stream)? };
        }
        Ok(())
    }

    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Median device time of each step by itself, in milliseconds.
    pub fn step_times_ms(&self, device: &Device) -> Result<Vec<f64>> {
        self.ready.iter().map(|ready| time_us(device, ready).map(|us| us / 1e3)).collect()
    }
}
