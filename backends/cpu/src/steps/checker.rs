//! Compares what a step says with the buffers it names.

use crate::program::{BufferId, Program, Step, Tactic};
use planforge_graph::ir::element_count;
use planforge_kernels_cpu::{
    gemm::{Blocking, Kernel, bf16_kernels, kernel_by_name, kernels},
    isa::{Isa, IsaLevel},
};

/// Most images of a batch, channels or groups.
pub(super) const CHANNELS_MAX: usize = 1 << 24;

/// How many elements sizes make.
pub(super) fn product(factors: &[usize]) -> Result<usize, String> {
    element_count(factors).ok_or_else(|| "its sizes are out of bounds".to_owned())
}

/// One step of a program, to be checked for `isa`.
pub(super) struct Checker<'a> {
    pub program: &'a Program,
    pub step: &'a Step,
    pub isa: Isa,
}

impl Checker<'_> {
    /// Compares a buffer's size with `elements` of `bytes` bytes each.
    pub(super) fn holds(&self, what: &str, id: Option<BufferId>, elements: usize, bytes: usize) -> Result<(), String> {
        let id = id.ok_or_else(|| format!("it lacks its {what}"))?;
        let actual = self.program.buffer(id).bytes;
        let expected = (elements as u64).saturating_mul(bytes as u64);
        if actual == expected { Ok(()) } else { Err(format!("its {what} has {actual} bytes, not {expected}")) }
    }

    pub(super) fn input(&self, position: usize) -> Option<BufferId> {
        self.step.inputs.get(position).copied().flatten()
    }

    /// Bytes of an input; 0 where there is none.
    pub(super) fn input_bytes(&self, position: usize) -> u64 {
        self.input(position).map_or(0, |id| self.program.buffer(id).bytes)
    }

    /// The first output.
    pub(super) fn output(&self) -> Option<BufferId> {
        self.step.outputs.first().copied()
    }

    /// Bytes of the first output; 0 where there is none.
    pub(super) fn output_bytes(&self) -> u64 {
        self.output().map_or(0, |id| self.program.buffer(id).bytes)
    }

    /// That an input holds so many numbers.
    pub(super) fn takes(&self, position: usize, elements: usize) -> Result<(), String> {
        self.holds(&format!("input {position}"), self.input(position), elements, 4)
    }

    /// That an input, where there is one, holds so many numbers.
    pub(super) fn may_take(&self, position: usize, elements: usize) -> Result<(), String> {
        if self.input(position).is_some() { self.takes(position, elements) } else { Ok(()) }
    }

    /// That there is one output of so many numbers.
    pub(super) fn gives(&self, elements: usize) -> Result<(), String> {
        if self.step.outputs.len() != 1 {
            return Err("it has not one output".to_owned());
        }
        self.holds("output", Some(self.step.outputs[0]), elements, 4)
    }

    /// That the bias, where there is one, holds so many numbers.
    pub(super) fn may_add(&self, elements: usize) -> Result<(), String> {
        if self.step.bias.is_some() { self.holds("bias", self.step.bias, elements, 4) } else { Ok(()) }
    }

    /// That there is scratch memory of so many numbers, or none of it.
    pub(super) fn needs_scratch(&self, elements: Option<usize>) -> Result<(), String> {
        match elements {
            Some(elements) => self.holds("scratch", self.step.scratch, elements, 4),
            None if self.step.scratch.is_some() => Err("it has scratch memory without need".to_owned()),
            None => Ok(()),
        }
    }

    pub(super) fn tactic(&self) -> Result<&Tactic, String> {
        self.step.tactic.as_ref().ok_or_else(|| "it lacks a tactic".to_owned())
    }

    /// Looks up the kernel of the step's tactic, which must be one of the engine's level that multiplies as f32.
    pub(super) fn blocking(&self) -> Result<Blocking, String> {
        self.blocking_of(kernels)
    }

    /// Likewise, of a product with packed weights: it may be one of bf16.
    pub(super) fn blocking_with_weights(&self) -> Result<Blocking, String> {
        self.blocking_of(bf16_kernels).or_else(|_| self.blocking())
    }

    /// Likewise, one of those that a level has by `of`.
    fn blocking_of(&self, of: fn(IsaLevel) -> &'static [&'static Kernel]) -> Result<Blocking, String> {
        let tactic = self.tactic()?;
        let level = self.isa.level();
        let kernel = kernel_by_name(&tactic.kernel).ok_or_else(|| format!("there is no kernel {}", tactic.kernel))?;
        if !of(level).iter().any(|known| std::ptr::eq(*known, kernel)) {
            return Err(format!("kernel {} needs {}, this engine is for {level}", kernel.name, kernel.level));
        }
        if tactic.row_block == 0 || tactic.column_block == 0 || tactic.column_block > CHANNELS_MAX {
            return Err("its blocks are out of bounds".to_owned());
        }
        let depth_block = if tactic.depth_block == 0 { usize::MAX } else { tactic.depth_block };
        Ok(Blocking {
            kernel,
            pack_rows: tactic.pack_rows,
            row_block: tactic.row_block,
            column_block: tactic.column_block,
            depth_block,
        })
    }
}
