//! Runs a program: every step prepared once, then executed in order on the engine's own threads.

use super::{
    memory::{AlignedBytes, Memory, OutOfMemory, Weights},
    prepare::{Prepared, Rows, prepare},
    program::{Buffer, BufferId, Program, ProgramError},
};
use bytes::Bytes;
use planforge_graph::{interpreter, ir::Tensor, reference::OpError, shape::TensorType};
use planforge_kernels_cpu::{
    conv::{self, LineRows, TapRows},
    depthwise::{self, Depthwise},
    gemm::{self, Epilogue, MatrixRows, Place, Workspace},
    isa::Isa,
    pointwise::{self, Left, Right},
    pool::{ThreadPool, for_parts},
    rows, window,
};
use std::{sync::Arc, time::Instant};

/// Why an engine could not be made or run.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("the plan's program does not hold together")]
    Program(#[from] ProgramError),
    #[error("its steps have no room")]
    Memory(#[from] OutOfMemory),
    #[error("step {step}")]
    Reference {
        step: String,
        #[source]
        source: OpError,
    },
    #[error("step {step}: index {index} is outside of a table of {size} lines")]
    Index { step: String, index: i64, size: usize },
}

/// A program with its memory and threads, ready to run.
#[derive(Debug)]
pub struct Engine {
    program: Program,
    prepared: Vec<Prepared>,
    memory: Memory,
    workspace: Workspace,
    pool: Arc<ThreadPool>,
    isa: Isa,
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
        let prepared = program
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
        Ok(Self { program, prepared, memory, workspace: Workspace::new(threads), pool, isa })
    }

    pub(crate) fn program(&self) -> &Program {
        &self.program
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
        (0..self.prepared.len()).try_for_each(|index| self.step(index))
    }

    /// Runs every step once and adds each one's time to `times_ms`.
    pub fn run_timed(&mut self, times_ms: &mut [Vec<f64>]) -> Result<(), EngineError> {
        for (index, times) in times_ms.iter_mut().enumerate().take(self.prepared.len()) {
            let start = Instant::now();
            self.step(index)?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        Ok(())
    }

    fn buffer(&self, id: BufferId) -> &Buffer {
        self.program.buffer(id)
    }

    /// The elements of what a step reads.
    ///
    /// # Safety
    /// As [`Memory::read`].
    unsafe fn read<T: bytemuck::Pod>(&self, id: BufferId) -> &[T] {
        // SAFETY: the caller's promise. (`cast_slice` panics where elements are not aligned; `Program::check` found that
        // buffers begin at cache lines.)
        bytemuck::cast_slice(unsafe { self.memory.read(self.buffer(id)) })
    }

    /// The elements of what a step writes.
    ///
    /// # Safety
    /// As [`Memory::write`].
    #[expect(clippy::mut_from_ref, reason = "see `Memory::write`")]
    unsafe fn write<T: bytemuck::Pod>(&self, id: BufferId) -> &mut [T] {
        // SAFETY: the caller's promise.
        bytemuck::cast_slice_mut(unsafe { self.memory.write(self.buffer(id)) })
    }

    /// Runs one step.
    pub(crate) fn step(&mut self, index: usize) -> Result<(), EngineError> {
        let step = &self.program.steps[index];
        let this = &*self;
        let (isa, pool) = (this.isa, &this.pool);
        // SAFETY: `&mut self` keeps other runs and borrowers away; `Program::check`, which `without_arena` calls, found
        // that what this step writes overlaps neither what it reads nor what else it writes. All accesses below rest on
        // this, and on nothing that a kernel promises: kernels are handed slices and check their lengths.
        let input =
            |position: usize| step.inputs.get(position).copied().flatten().map(|id| unsafe { this.read::<f32>(id) });
        let first = || input(0).unwrap_or(&[]);
        // SAFETY: as above.
        let output = || unsafe { this.write::<f32>(step.outputs[0]) };
        // SAFETY: as above.
        let weights = || step.weights.map_or(&[][..], |id| unsafe { this.read::<f32>(id) });
        // SAFETY: as above.
        let bias = || step.bias.map(|id| unsafe { this.read::<f32>(id) });
        match &self.prepared[index] {
            Prepared::Conv { shape, blocking, rows, activation, group_weights, group_bias } => {
                let (image, c, packed, bias) = (first(), output(), weights(), bias());
                let residual = input(1);
                // SAFETY: as above.
                let scratch = step.scratch.map(|id| unsafe { this.write::<f32>(id) });
                let image = match scratch {
                    Some(bordered) => {
                        conv::add_border(pool, shape, image, bordered);
                        &*bordered
                    }
                    None => image,
                };
                for group in 0..shape.groups {
                    let place = shape.group_place(group);
                    let epilogue = Epilogue {
                        alpha: 1.0,
                        bias: bias.map(|bias| &bias[group * group_bias..(group + 1) * group_bias]),
                        residual: residual.map(|residual| (residual, place)),
                        activation: *activation,
                    };
                    let b = &packed[group * group_weights..(group + 1) * group_weights];
                    let b = (b, shape.out_channels / shape.groups);
                    let out = (&mut *c, place);
                    let run = |rows: &dyn gemm::Rows| {
                        gemm::multiply(isa, pool, &this.workspace, blocking, rows, b, out, &epilogue);
                    };
                    let depth = shape.channels / shape.groups;
                    match rows {
                        Rows::Matrix => {
                            let first = image.get(group * depth..).unwrap_or(&[]);
                            run(&MatrixRows::new(first, shape.pixels(), depth, shape.channels));
                        }
                        Rows::Lines => run(&LineRows::new(*shape, image)),
                        Rows::Taps => run(&TapRows::new(*shape, image, group)),
                    }
                }
            }
            Prepared::Depthwise { shape, activation } => {
                let of = Depthwise {
                    image: first(),
                    weights: weights(),
                    bias: bias().unwrap_or(&[]),
                    residual: input(1),
                    activation: *activation,
                };
                depthwise::depthwise(isa, pool, shape, &of, output());
            }
            Prepared::Gemm { rows, columns, depth, alpha, activation, blocking } => {
                let place = Place { offset: 0, stride: *columns };
                let a = MatrixRows::new(first(), *rows, *depth, *depth);
                let epilogue = Epilogue {
                    alpha: *alpha,
                    bias: bias(),
                    residual: input(1).map(|residual| (residual, place)),
                    activation: *activation,
                };
                let b = (weights(), *columns);
                gemm::multiply(isa, pool, &this.workspace, blocking, &a, b, (output(), place), &epilogue);
            }
            Prepared::Batch { products, alpha, activation, blocking } => {
                let epilogue = Epilogue {
                    alpha: *alpha,
                    bias: bias(),
                    residual: input(2).map(|residual| (residual, Place { offset: 0, stride: 0 })),
                    activation: *activation,
                };
                let operands = (first(), input(1).unwrap_or(&[]));
                gemm::multiply_batch(isa, pool, &this.workspace, blocking, products, operands, output(), &epilogue);
            }
            Prepared::Attention { shape, rows, mask, blocking, passes } => {
                let operand = |position: usize| gemm::HeadRows {
                    data: input(position).unwrap_or(&[]),
                    offset: rows[position].offset,
                    stride: rows[position].stride,
                };
                let of = gemm::Attention {
                    shape: *shape,
                    queries: operand(0),
                    keys: operand(1),
                    values: operand(2),
                    mask: input(3).map(|data| gemm::Mask { data, strides: *mask }),
                };
                // SAFETY: as above.
                let scratch = step.scratch.map(|id| unsafe { this.write::<f32>(id) });
                match scratch.filter(|_| *passes) {
                    Some(scores) => {
                        gemm::attention_in_passes(isa, pool, &this.workspace, blocking, &of, scores, output());
                    }
                    None => gemm::attention(isa, pool, &this.workspace, blocking, &of, output()),
                }
            }
            Prepared::Pool { shape, kind, padded } => {
                window::pool(isa, pool, *kind, shape, *padded, first(), output());
            }
            Prepared::GlobalMean { channels } => window::global_mean(isa, pool, *channels, first(), output()),
            Prepared::Softmax { columns, guarded } => {
                let to = output();
                to.copy_from_slice(first());
                rows::softmax(isa, pool, *columns, *guarded, to);
            }
            Prepared::LayerNorm { columns, epsilon } => {
                let parameters = rows::NormParameters { scale: input(1), bias: input(2), epsilon: *epsilon };
                rows::layer_norm(isa, pool, *columns, first(), parameters, output());
            }
            Prepared::Activation(activation) => {
                parts(pool, first(), output(), |part| pointwise::activate(isa, *activation, part));
            }
            Prepared::Unary(function) => {
                parts(pool, first(), output(), |part| pointwise::unary(isa, *function, part));
            }
            Prepared::Pair { function, pair } => {
                let (a, b, to) = (first(), input(1).unwrap_or(&[]), output());
                // Runs of the innermost axis, enough of them per task to be worth waking a thread.
                let inner = pair.inner.size;
                let per_task = (16_384 / inner.max(1)).max(1);
                for_parts(pool, to, inner * per_task, |task, part| {
                    if pair.repeats_right() {
                        let from = task * per_task * inner;
                        return pointwise::binary_lines(isa, *function, &a[from..from + part.len()], &b[..inner], part);
                    }
                    for (index, run) in part.chunks_exact_mut(inner).enumerate() {
                        let (at_a, at_b) = pair.offsets(task * per_task + index);
                        let left =
                            if pair.inner.a == 1 { Left::Each(&a[at_a..at_a + inner]) } else { Left::Same(a[at_a]) };
                        let right =
                            if pair.inner.b == 1 { Right::Each(&b[at_b..at_b + inner]) } else { Right::Same(b[at_b]) };
                        pointwise::binary(isa, *function, left, right, run);
                    }
                });
            }
            Prepared::Transpose(transpose) => transpose.run(pool, first(), output()),
            Prepared::Gather { outer, size, line_bytes, wide } => {
                let table_id = step.inputs.first().copied().flatten();
                let index_id = step.inputs.get(1).copied().flatten();
                let (Some(table_id), Some(index_id)) = (table_id, index_id) else { return Ok(()) };
                // SAFETY: as above.
                let table = unsafe { this.read::<u8>(table_id) };
                // SAFETY: as above.
                let to = unsafe { this.write::<u8>(step.outputs[0]) };
                // SAFETY: as above.
                let indices: &[u8] = unsafe { this.read(index_id) };
                let index_bytes = if *wide { 8 } else { 4 };
                let count = indices.len() / index_bytes;
                let mut lines = to.chunks_exact_mut((*line_bytes).max(1));
                for outer in 0..*outer {
                    for at in 0..count {
                        let raw = &indices[at * index_bytes..(at + 1) * index_bytes];
                        let index = if *wide {
                            i64::from_le_bytes(raw.try_into().unwrap_or_default())
                        } else {
                            i64::from(i32::from_le_bytes(raw.try_into().unwrap_or_default()))
                        };
                        let resolved = if index < 0 { index + *size as i64 } else { index };
                        let Some(line) = usize::try_from(resolved).ok().filter(|line| line < size) else {
                            return Err(EngineError::Index { step: step.origins.join(" + "), index, size: *size });
                        };
                        let from = (outer * size + line) * line_bytes;
                        if let Some(to) = lines.next() {
                            to.copy_from_slice(&table[from..from + line_bytes]);
                        }
                    }
                }
            }
            Prepared::Move(moves) => {
                // SAFETY: as above.
                let to = unsafe { this.write::<u8>(step.outputs[0]) };
                for (position, copy) in moves {
                    let Some(id) = step.inputs.get(*position).copied().flatten() else { continue };
                    // SAFETY: as above.
                    copy.run(pool, unsafe { this.read::<u8>(id) }, to);
                }
            }
            Prepared::Copy => {
                let Some(from) = step.inputs.first().copied().flatten() else { return Ok(()) };
                // SAFETY: as above.
                unsafe { this.write::<u8>(step.outputs[0]).copy_from_slice(this.read(from)) };
            }
            Prepared::Reference { op, inputs, outputs } => {
                let failed = |source| EngineError::Reference { step: step.origins.join(" + "), source };
                let mut tensors = Vec::with_capacity(inputs.len());
                for (of, id) in inputs.iter().zip(&step.inputs) {
                    tensors.push(match (of, id) {
                        (Some(of), Some(id)) => {
                            // SAFETY: as above.
                            let bytes = Bytes::copy_from_slice(unsafe { this.read(*id) });
                            Some(Tensor::new(of.element, of.shape.clone(), bytes).map_err(|e| failed(e.into()))?)
                        }
                        _ => None,
                    });
                }
                let given: Vec<Option<&Tensor>> = tensors.iter().map(Option::as_ref).collect();
                let types: Vec<TensorType> = outputs.iter().map(TensorType::from).collect();
                for (tensor, id) in interpreter::run(op, &given, &types).map_err(failed)?.iter().zip(&step.outputs) {
                    // SAFETY: as above.
                    unsafe { this.write::<u8>(*id) }.copy_from_slice(tensor.bytes());
                }
            }
        }
        Ok(())
    }
}

/// Copies `from` to `to` part by part and applies `body` to each while it is in cache.
fn parts(pool: &ThreadPool, from: &[f32], to: &mut [f32], body: impl Fn(&mut [f32]) + Sync) {
    const PART: usize = 16_384;
    for_parts(pool, to, PART, |task, part| {
        part.copy_from_slice(&from[task * PART..task * PART + part.len()]);
        body(part);
    });
}
