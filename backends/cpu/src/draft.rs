//! An engine between graph and plan: steps in order, whose tactics, packed weights and memory are still open.

use super::program::{BufferId, ProgramPort, Step};
use bytes::Bytes;
use planforge_graph::ir::Tensor;
use std::{borrow::Cow, collections::BTreeSet};

/// What a buffer is for.
#[derive(Clone, Debug)]
pub(crate) enum Role {
    /// Written by a step.
    Temporary,
    /// Written by the caller; kept through every run.
    Input,
    Constant(Bytes),
}

#[derive(Clone, Debug)]
pub(crate) struct DraftBuffer {
    pub name: String,
    pub bytes: u64,
    pub role: Role,
}

/// The right operand of a step, as the model has it.
#[derive(Clone, Debug)]
pub(crate) enum WeightSource {
    /// (output channels, channels per group, kernel height, kernel width).
    Conv { data: Tensor, out_channels: usize, channels: usize, kernel: [usize; 2], groups: usize },
    /// Element (step, column) lies at `step * strides[0] + column * strides[1]`.
    Matrix { data: Tensor, depth: usize, columns: usize, strides: [usize; 2] },
    /// Bytes, as those of a convolution.
    IntegerConv { data: Tensor, out_channels: usize, channels: usize, kernel: [usize; 2], groups: usize },
    /// Bytes, depth x columns.
    IntegerMatrix { data: Tensor, depth: usize, columns: usize },
}

impl WeightSource {
    pub(crate) fn data(&self) -> &Tensor {
        let (Self::Conv { data, .. }
        | Self::Matrix { data, .. }
        | Self::IntegerConv { data, .. }
        | Self::IntegerMatrix { data, .. }) = self;
        data
    }

    pub(crate) fn values(&self) -> Cow<'_, [f32]> {
        self.data().values::<f32>().unwrap_or(Cow::Borrowed(&[]))
    }
}

/// A step whose tactic is open. Its buffers but for weights, bias and scratch are set.
#[derive(Clone, Debug)]
pub(crate) struct DraftStep {
    pub step: Step,
    pub weights: Option<WeightSource>,
    /// One value per output channel or column.
    pub bias: Option<Vec<f32>>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Draft {
    pub buffers: Vec<DraftBuffer>,
    pub steps: Vec<DraftStep>,
    pub inputs: Vec<ProgramPort>,
    pub outputs: Vec<ProgramPort>,
    /// Outputs that are lent as soon as they are made.
    pub passing: Vec<ProgramPort>,
}

impl Draft {
    pub(crate) fn add_buffer(&mut self, name: impl Into<String>, bytes: u64, role: Role) -> BufferId {
        // Import bounds the number of values far below 2^32; each gives a handful of buffers.
        let id = BufferId(u32::try_from(self.buffers.len()).expect("fewer than 2^32 buffers"));
        self.buffers.push(DraftBuffer { name: name.into(), bytes, role });
        id
    }

    /// Lets the outputs of these names pass; those that no step makes stay to the end.
    pub(crate) fn let_pass(&mut self, names: &BTreeSet<String>) {
        let made: BTreeSet<BufferId> = self.steps.iter().flat_map(|of| of.step.outputs.iter().copied()).collect();
        let passes = |port: &ProgramPort| names.contains(&port.name) && made.contains(&port.buffer);
        let (passing, outputs) = std::mem::take(&mut self.outputs).into_iter().partition(passes);
        (self.passing, self.outputs) = (passing, outputs);
    }
}
