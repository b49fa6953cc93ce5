//! Runs a program: every step prepared once, then executed in order on the engine's own threads.

use super::{
    error::EngineError,
    memory::{AlignedBytes, Memory, OutOfMemory, Weights},
    program::{BufferId, Program, ProgramError, ProgramPort},
    steps::{Operands, Ready, prepare},
};
use planforge_backend::Lent;
use planforge_import::Fragment;
use planforge_kernels_cpu::{gemm::Workspace, isa::Isa, pool::ThreadPool, watch::Stint};
use std::{sync::Arc, time::Instant};

/// A program with its memory and threads, ready to run.
#[derive(Debug)]
pub struct Engine {
    program: Program,
    /// Its steps, in order.
    ready: Vec<Box<dyn Ready>>,
    /// Behind which of them each value that passes is there.
    makers: Vec<Option<usize>>,
    memory: Memory,
    workspace: Workspace,
    pool: Arc<ThreadPool>,
    isa: Isa,
    /// The nodes behind the program, where only data decides some sizes.
    fragment: Option<Arc<Fragment>>,
}

/// When a step ran, and when each thread was at work on it.
#[derive(Clone, Debug)]
pub struct Watched {
    pub from: Instant,
    pub to: Instant,
    pub stints: Vec<Stint>,
}

impl Engine {
    /// Checks and prepares `program`; the machine runs `isa`.
    pub(crate) fn new(
        program: Program,
        weights: Weights,
        isa: Isa,
        pool: Arc<ThreadPool>,
    ) -> Result<Self, EngineError> {
        let mut engine = Self::without_arena(program, weights, isa, pool)?;
        engine.give_arena(AlignedBytes::default())?;
        Ok(engine)
    }

    /// The same without memory, which it has to be given before it runs.
    pub(crate) fn without_arena(
        program: Program,
        weights: Weights,
        isa: Isa,
        pool: Arc<ThreadPool>,
    ) -> Result<Self, EngineError> {
        program.check()?;
        if weights.len() as u64 != program.weight_bytes {
            return Err(ProgramError::Arena { bytes: program.weight_bytes }.into());
        }
        let ready = program
            .steps
            .iter()
            .enumerate()
            .map(|(index, step)| {
                prepare(&program, step, isa).map_err(|reason| ProgramError::Step {
                    step: index,
                    kind: step.kind.name(),
                    reason,
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let threads = pool.threads();
        let memory = Memory::new(weights);
        let makers = program.passing.iter().map(|port| program.maker(port.buffer)).collect();
        Ok(Self { program, ready, makers, memory, workspace: Workspace::new(threads), pool, isa, fragment: None })
    }

    pub(crate) fn program(&self) -> &Program {
        &self.program
    }

    /// The same with nodes behind its program, which whoever runs it runs.
    pub(crate) fn followed_by(self, fragment: Option<Arc<Fragment>>) -> Self {
        Self { fragment, ..self }
    }

    pub(crate) fn fragment(&self) -> Option<&Arc<Fragment>> {
        self.fragment.as_ref()
    }

    /// What another engine of the same program is made of; the constants are shared.
    pub(crate) fn parts(&self) -> (Program, Weights, Isa) {
        (self.program.clone(), self.memory.weights().clone(), self.isa)
    }

    /// The bytes of every input, as they were set.
    pub(crate) fn input_bytes(&mut self) -> Vec<Vec<u8>> {
        let buffers: Vec<BufferId> = self.program.inputs.iter().map(|port| port.buffer).collect();
        buffers.into_iter().map(|buffer| self.buffer_mut(buffer).to_vec()).collect()
    }

    /// Takes the engine's memory away; until it has some again, it must not run.
    pub(crate) fn take_arena(&mut self) -> AlignedBytes {
        self.memory.take_arena()
    }

    /// Gives the engine memory, whatever is in it; what is too small is replaced. Inputs have to be set anew.
    pub(crate) fn give_arena(&mut self, arena: AlignedBytes) -> Result<(), OutOfMemory> {
        self.memory.give_arena(arena, self.program.arena_bytes as usize)
    }

    /// Bytes held: arena, weights and scratch.
    pub fn held_bytes(&self) -> u64 {
        self.memory.held_bytes() + self.workspace.bytes() as u64
    }

    /// Writes the bytes of input `index`.
    ///
    /// # Panics
    /// When `bytes` is not as long as the input's buffer.
    pub fn set_input(&mut self, index: usize, bytes: &[u8]) {
        let buffer = self.program.buffer(self.program.inputs[index].buffer);
        // SAFETY: `&mut self`: no step runs, and no other slice is lent out.
        unsafe { self.memory.write(buffer) }.copy_from_slice(bytes);
    }

    /// The bytes of output `index` after a run.
    pub fn output(&self, index: usize) -> &[u8] {
        let buffer = self.program.buffer(self.program.outputs[index].buffer);
        // SAFETY: runs need `&mut self`, so nothing writes while the result lives.
        unsafe { self.memory.read(buffer) }
    }

    /// Bytes of any buffer in the arena, for filling by the tuner.
    pub(crate) fn buffer_mut(&mut self, id: BufferId) -> &mut [u8] {
        // SAFETY: `&mut self`.
        unsafe { self.memory.write(self.program.buffer(id)) }
    }

    /// Runs every step once.
    pub fn run(&mut self) -> Result<(), EngineError> {
        (0..self.ready.len()).try_for_each(|index| self.step(index))
    }

    /// Runs every step once and lends what passes by behind the step that makes it, and the outputs at the end.
    pub fn run_lending(&mut self, look: &mut dyn FnMut(&[Lent<'_>])) -> Result<(), EngineError> {
        for index in 0..self.ready.len() {
            self.step(index)?;
            let made = self.program.passing.iter().zip(&self.makers).filter(|(_, maker)| **maker == Some(index));
            let lent: Vec<Lent<'_>> = made.map(|(port, _)| self.lent(port)).collect();
            if !lent.is_empty() {
                look(&lent);
            }
        }
        look(&self.program.outputs.iter().map(|port| self.lent(port)).collect::<Vec<_>>());
        Ok(())
    }

    /// A port of the program, whose bytes are there.
    fn lent<'a>(&'a self, port: &'a ProgramPort) -> Lent<'a> {
        // SAFETY: steps need `&mut self`, so nothing writes while the result lives.
        let bytes = unsafe { self.memory.read(self.program.buffer(port.buffer)) };
        Lent { name: &port.name, element: port.element, shape: &port.shape, bytes }
    }

    /// Runs every step once and adds each one's time to `times_ms`.
    pub fn run_timed(&mut self, times_ms: &mut [Vec<f64>]) -> Result<(), EngineError> {
        for (index, times) in times_ms.iter_mut().enumerate().take(self.ready.len()) {
            let start = Instant::now();
            self.step(index)?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        Ok(())
    }

    /// Runs every step once and tells when each ran, and when each thread was at work on it.
    pub fn run_watched(&mut self) -> Result<Vec<Watched>, EngineError> {
        self.pool.watch(true);
        // What an earlier run left behind is none of this one's.
        self.pool.stints();
        let mut watched = Vec::with_capacity(self.ready.len());
        let ran = (0..self.ready.len()).try_for_each(|index| {
            let from = Instant::now();
            self.step(index)?;
            let to = Instant::now();
            watched.push(Watched { from, to, stints: self.pool.stints() });
            Ok(())
        });
        self.pool.watch(false);
        ran.map(|()| watched)
    }

    /// Runs one step.
    pub(crate) fn step(&mut self, index: usize) -> Result<(), EngineError> {
        let (program, step) = (&self.program, &self.program.steps[index]);
        // SAFETY: `without_arena` called `Program::check`; and `&mut self` keeps other runs and borrowers away.
        let mut operands = unsafe { Operands::new(program, step, &self.memory, self.isa, &self.pool, &self.workspace) };
        self.ready[index].run(&mut operands)
    }
}
