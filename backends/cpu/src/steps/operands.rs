//! The memory that a running step sees: what it reads, and what it writes.

use crate::{
    memory::Memory,
    program::{BufferId, Program, Step},
};
use planforge_kernels_cpu::{gemm::Workspace, isa::Isa, pool::ThreadPool};

/// What a recurrent network writes: every state, the last one, the last of inside where there is one; and its memory.
pub(super) struct States<'a> {
    pub all: &'a mut [f32],
    pub last: &'a mut [f32],
    pub inner: Option<&'a mut [f32]>,
    pub scratch: &'a mut [f32],
}

/// What one step reads and writes, and what it runs with. All `unsafe` of running a step is here and where it is made;
/// none of it rests on what a kernel promises: kernels are handed slices and check their lengths.
///
/// What a step reads may be held as long as the step runs. What it writes is borrowed from the operands themselves, so
/// that no two slices of it are there at once but those that one call gives.
pub(crate) struct Operands<'a> {
    program: &'a Program,
    memory: &'a Memory,
    pub step: &'a Step,
    pub isa: Isa,
    pub pool: &'a ThreadPool,
    pub workspace: &'a Workspace,
}

impl<'a> Operands<'a> {
    /// # Safety
    /// `program` passed [`Program::check`], so that what `step`, one of its steps, writes overlaps neither what it reads
    /// nor what else it writes; and for all of `'a`, nothing but these operands reads or writes the arena of `memory`.
    pub(crate) unsafe fn new(
        program: &'a Program,
        step: &'a Step,
        memory: &'a Memory,
        isa: Isa,
        pool: &'a ThreadPool,
        workspace: &'a Workspace,
    ) -> Self {
        Self { program, memory, step, isa, pool, workspace }
    }

    /// The whole elements of a buffer that the step reads. (`cast_slice` panics where elements are not aligned;
    /// `Program::check` found that buffers begin at cache lines, not that they end with an element.)
    ///
    /// # Safety
    /// `id` is one of [`Step::reads`].
    unsafe fn read<T: bytemuck::Pod>(&self, id: BufferId) -> &'a [T] {
        // SAFETY: nobody else writes the arena, and what the step writes lies elsewhere, by the promise of `new`.
        let bytes = unsafe { self.memory.read(self.program.buffer(id)) };
        bytemuck::cast_slice(&bytes[..bytes.len() - bytes.len() % size_of::<T>().max(1)])
    }

    /// The whole elements of a buffer that the step writes.
    ///
    /// # Safety
    /// `id` is one of [`Step::writes`], and no other slice of it lives as long as the result.
    unsafe fn write<T: bytemuck::Pod>(&self, id: BufferId) -> &'a mut [T] {
        // SAFETY: nobody else uses the arena, and the buffer overlaps no other one of the step, by the promise of `new`;
        // the caller promises the rest.
        let bytes = unsafe { self.memory.write(self.program.buffer(id)) };
        let whole = bytes.len() - bytes.len() % size_of::<T>().max(1);
        bytemuck::cast_slice_mut(&mut bytes[..whole])
    }

    /// The elements of an input, where there is one.
    pub(super) fn input<T: bytemuck::Pod>(&self, position: usize) -> Option<&'a [T]> {
        // SAFETY: inputs are read.
        self.step.inputs.get(position).copied().flatten().map(|id| unsafe { self.read(id) })
    }

    /// The numbers of an input; none where it is not there.
    pub(super) fn numbers(&self, position: usize) -> &'a [f32] {
        self.input(position).unwrap_or(&[])
    }

    pub(super) fn weights(&self) -> &'a [f32] {
        // SAFETY: weights are read.
        self.step.weights.map_or(&[], |id| unsafe { self.read(id) })
    }

    /// Weights that are no numbers of f32.
    pub(super) fn weight_bytes(&self) -> &'a [u8] {
        // SAFETY: weights are read.
        self.step.weights.map_or(&[], |id| unsafe { self.read(id) })
    }

    pub(super) fn bias(&self) -> Option<&'a [f32]> {
        // SAFETY: a bias is read.
        self.step.bias.map(|id| unsafe { self.read(id) })
    }

    /// The elements of output `index`.
    pub(super) fn output<T: bytemuck::Pod>(&mut self, index: usize) -> &mut [T] {
        // SAFETY: outputs are written; `&mut self` is borrowed as long as the result.
        unsafe { self.write(self.step.outputs[index]) }
    }

    /// The elements of the first two outputs.
    pub(super) fn two_outputs<T: bytemuck::Pod, U: bytemuck::Pod>(&mut self) -> (&mut [T], &mut [U]) {
        // SAFETY: both are written and, as two things that the step writes, lie apart; `&mut self` is borrowed as long as
        // the results.
        unsafe { (self.write(self.step.outputs[0]), self.write(self.step.outputs[1])) }
    }

    /// The numbers of the only output, and the scratch memory, where there is one.
    pub(super) fn output_and_scratch(&mut self) -> (&mut [f32], Option<&mut [f32]>) {
        // SAFETY: both are written and, as two things that the step writes, lie apart; `&mut self` is borrowed as long as
        // the results.
        unsafe { (self.write(self.step.outputs[0]), self.step.scratch.map(|id| self.write(id))) }
    }
    /// The numbers of the first two outputs, of a third where there is one, and the scratch memory.
    pub(super) fn states_and_scratch(&mut self) -> States<'_> {
        let outputs = &self.step.outputs;
        let scratch = self.step.scratch;
        // SAFETY: all are written and, as things that the step writes, lie apart; `&mut self` is borrowed as long as the
        // results.
        unsafe {
            States {
                all: self.write(outputs[0]),
                last: self.write(outputs[1]),
                inner: outputs.get(2).map(|&id| self.write(id)),
                scratch: scratch.map_or(&mut [], |id| self.write(id)),
            }
        }
    }
}
