//! An engine before it is on a device: buffers, the steps that fill them, and which tactic computes each.

use crate::{
    source::Source,
    view::{BufferId, CHANNELS_LAST, Kind, View, strides_in},
};
use planforge_graph::ir::Activation;
use planforge_kernels_cuda::device::ALIGNMENT_BYTES;
use planforge_types::ElementType;
use serde::{Deserialize, Serialize};

/// Bytes to which weights and arena buffers are aligned.
pub(crate) const ALIGNMENT: u64 = 256;

/// Most streams of one program, the first included.
pub const MAX_STREAMS: u32 = 4;

/// Most workspace that a tactic may use; more means that it unpacks whole images.
pub const MAX_WORKSPACE_BYTES: u64 = 64 << 20;

/// Where a buffer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// Shared with buffers that live at other times, at this byte.
    Arena(u64),
    /// Among the constants, at this byte.
    Weights(u64),
    /// Memory of its own, which the caller fills.
    Input(u32),
    /// Memory of its own, which the caller reads.
    Output(u32),
}

/// A range of device memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    pub name: String,
    pub bytes: u64,
    pub place: Place,
}

/// An input or output as the caller sees it: dense rows of the model's own type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edge {
    pub name: String,
    pub element: ElementType,
    pub shape: Vec<u64>,
    pub buffer: BufferId,
}

/// One kernel launch, or what a library makes of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Unique in the program.
    pub name: String,
    /// Names of the model's nodes that it computes.
    pub origins: Vec<String>,
    pub work: Work,
    /// Chosen by the tuner, where there is a choice.
    pub tactic: Option<Tactic>,
    /// Which of the graph's streams it runs on.
    #[serde(default, skip_serializing_if = "is_first_stream")]
    pub stream: u32,
    /// Counted from shapes; multiply and add apart.
    pub flops: u64,
    /// Read and written, counted from shapes.
    pub bytes: u64,
}

fn is_first_stream(stream: &u32) -> bool {
    *stream == 0
}

impl Step {
    /// The source of the generated kernel that computes it, where one does.
    pub fn source(&self) -> Option<usize> {
        match (&self.work, &self.tactic) {
            (Work::Kernel(kernel), _) => Some(kernel.source),
            (_, Some(Tactic::Kernel { source, .. })) => Some(*source),
            _ => None,
        }
    }

    pub(crate) fn source_mut(&mut self) -> Option<&mut usize> {
        match (&mut self.work, &mut self.tactic) {
            (Work::Kernel(kernel), _) => Some(&mut kernel.source),
            (_, Some(Tactic::Kernel { source, .. })) => Some(source),
            _ => None,
        }
    }
}

/// What a step computes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Work {
    Kernel(KernelWork),
    Conv(ConvWork),
    Product(ProductWork),
    Attention(AttentionWork),
}

impl Work {
    /// A short name for lists.
    pub fn kind(&self) -> &str {
        match self {
            Self::Kernel(kernel) => &kernel.role,
            Self::Conv(conv) if conv.is_depthwise() => "depthwise_conv",
            Self::Conv(_) => "conv",
            Self::Product(_) => "gemm",
            Self::Attention(_) => "attention",
        }
    }

    /// Whether its result is stored in f32.
    pub fn is_f32(&self) -> bool {
        self.views().1.kind == Kind::F32
    }

    /// Everything it reads, then what it writes.
    pub fn views(&self) -> (Vec<&View>, &View) {
        match self {
            Self::Kernel(kernel) => {
                let (out, read) = kernel.operands.split_last().expect("a kernel writes something");
                (read.iter().collect(), out)
            }
            Self::Conv(conv) => {
                let rest = [&conv.taps, &conv.bias, &conv.residual];
                ([&conv.x, &conv.w].into_iter().chain(rest.into_iter().flatten()).collect(), &conv.y)
            }
            Self::Product(product) => {
                let rest = [&product.bias, &product.residual];
                ([&product.a, &product.b].into_iter().chain(rest.into_iter().flatten()).collect(), &product.y)
            }
            Self::Attention(attention) => {
                let read = [&attention.q, &attention.k, &attention.v].into_iter().chain(&attention.mask);
                (read.collect(), &attention.o)
            }
        }
    }
}

/// A generated kernel; its arguments are the operands' addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelWork {
    /// `pointwise`, `pool`, `layer_norm`, ...
    pub role: String,
    /// Index of its source in the program.
    pub source: usize,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// The last one is written.
    pub operands: Vec<View>,
}

/// `y = activation(conv(x, w) + residual + bias)` over channels-last images.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConvWork {
    pub x: View,
    /// Logical `K C R S`, lying `K R S C`.
    pub w: View,
    /// The weights of a depthwise convolution once more, as `[R][S][C]`.
    pub taps: Option<View>,
    pub bias: Option<View>,
    pub residual: Option<View>,
    pub y: View,
    /// Height, then width.
    pub strides: [u64; 2],
    pub pads_before: [u64; 2],
    pub pads_after: [u64; 2],
    pub dilations: [u64; 2],
    pub groups: u64,
    pub activation: Option<Activation>,
}

impl ConvWork {
    /// Every channel by itself.
    pub fn is_depthwise(&self) -> bool {
        self.groups > 1 && self.groups == self.x.dims[1] && self.groups == self.y.dims[1]
    }

    /// A matrix product over pixels.
    pub fn is_pointwise(&self) -> bool {
        self.groups == 1
            && self.w.dims[2..] == [1, 1]
            && self.strides == [1, 1]
            && self.pads_before == [0, 0]
            && self.pads_after == [0, 0]
    }

    /// Whether its operands are as large as a library takes them to be from each other's sizes.
    fn operands_fit(&self) -> bool {
        let (x, w, y) = (&self.x, &self.w, &self.y);
        w.dims[1].checked_mul(self.groups) == Some(x.dims[1])
            && (x.dims[0], w.dims[0]) == (y.dims[0], y.dims[1])
            && (!self.is_pointwise() || x.dims[2..] == y.dims[2..])
            && w.has_strides(&strides_in(&w.dims, &CHANNELS_LAST))
            && (w.kind, y.kind) == (x.kind, x.kind)
            && self.bias.as_ref().is_none_or(|bias| is_bias(bias, y.dims[1], x.kind))
            && self.residual.as_ref().is_none_or(|residual| residual.kind == x.kind && residual.dims == y.dims)
    }
}

/// `y = activation(alpha a · b + residual + bias)`: `[batch][m][k] · [batch][k][n]`, in any strides that have one
/// dimension of 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProductWork {
    pub a: View,
    pub b: View,
    pub bias: Option<View>,
    pub residual: Option<View>,
    pub y: View,
    pub alpha: f32,
    pub activation: Option<Activation>,
}

impl ProductWork {
    /// Whether its operands are as large as a library takes them to be from each other's sizes.
    fn operands_fit(&self) -> bool {
        let [batch, m, k] = [0, 1, 2].map(|axis| self.a.dims[axis]);
        let n = self.b.dims[2];
        let kind = self.a.kind;
        let dense = |view: &View, axis: usize| view.dims[axis] == 1 || view.strides[axis] == 1;
        let in_rows = |view: &View| view.kind == kind && view.dims == [batch, m, n] && dense(view, 2);
        self.b.dims == [batch, k, n]
            && self.b.kind == kind
            && dense(&self.a, 2)
            && (dense(&self.b, 1) || dense(&self.b, 2))
            && in_rows(&self.y)
            && self.residual.as_ref().is_none_or(in_rows)
            && self.bias.as_ref().is_none_or(|bias| is_bias(bias, n, kind))
    }
}

/// `o = softmax(scale q · kᵀ + mask) · v` over `[batch][heads][sequence][size]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionWork {
    pub q: View,
    pub k: View,
    pub v: View,
    /// `[batch][heads][queries][keys]`, mostly by strides of 0.
    #[serde(default)]
    pub mask: Option<View>,
    pub o: View,
    pub scale: f32,
}

/// How a step with a choice is computed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum Tactic {
    /// A cuDNN engine by its number and knobs.
    Dnn {
        engine: i64,
        knobs: Vec<(u32, i64)>,
        workspace_bytes: u64,
        /// Whether it waits for a kernel ahead of it that lets it begin early, where that was tried.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        waits: Option<bool>,
    },
    /// A cuBLASLt algorithm.
    Blas {
        #[serde(with = "hex_words")]
        words: [u64; 8],
        workspace_bytes: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        waits: Option<bool>,
    },
    /// A generated kernel.
    Kernel {
        source: usize,
        grid: [u32; 3],
        block: [u32; 3],
        /// Dynamic shared memory of one block.
        #[serde(default)]
        shared_bytes: u32,
    },
}

impl Tactic {
    pub fn workspace_bytes(&self) -> u64 {
        match self {
            Self::Dnn { workspace_bytes, .. } | Self::Blas { workspace_bytes, .. } => *workspace_bytes,
            Self::Kernel { .. } => 0,
        }
    }

    /// Of a library's tactic: what that wants now, whatever it wanted when it was chosen.
    pub(crate) fn set_workspace_bytes(&mut self, bytes: u64) {
        match self {
            Self::Dnn { workspace_bytes, .. } | Self::Blas { workspace_bytes, .. } => *workspace_bytes = bytes,
            Self::Kernel { .. } => {}
        }
    }

    pub fn is_library(&self) -> bool {
        !matches!(self, Self::Kernel { .. })
    }

    /// Whether it waits by itself for a kernel ahead of it that lets it begin early.
    pub fn waits(&self) -> bool {
        match self {
            Self::Dnn { waits, .. } | Self::Blas { waits, .. } => *waits == Some(true),
            Self::Kernel { .. } => true,
        }
    }

    /// Of a library's tactic: whether it was seen to wait for what is ahead of it.
    pub(crate) fn set_waits(&mut self, seen: bool) {
        match self {
            Self::Dnn { waits, .. } | Self::Blas { waits, .. } => *waits = Some(seen),
            Self::Kernel { .. } => {}
        }
    }

    /// Whose it is.
    pub fn library(&self) -> &'static str {
        match self {
            Self::Dnn { .. } => "cudnn",
            Self::Blas { .. } => "cublaslt",
            Self::Kernel { .. } => "kernel",
        }
    }

    /// For lists and for forcing.
    pub fn name(&self) -> String {
        match self {
            Self::Dnn { engine, knobs, .. } => {
                let knobs: String = knobs.iter().map(|(kind, value)| format!(" k{kind}={value}")).collect();
                format!("cudnn eng{engine}{knobs}")
            }
            Self::Blas { words, .. } => format!("cublaslt {:x}", words.iter().fold(0, |a, w| a ^ w)),
            Self::Kernel { grid, block, .. } => format!("kernel {}x{}", grid[0], block[0]),
        }
    }
}

/// Words as one text: JSON numbers do not hold all of 64 bits.
mod hex_words {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub fn serialize<S: Serializer>(words: &[u64; 8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&words.map(|word| format!("{word:016x}")).concat())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<[u64; 8], D::Error> {
        let text = String::deserialize(from)?;
        let wrong = || D::Error::custom("an algorithm is 128 hexadecimal digits");
        if text.len() != 128 || !text.is_ascii() {
            return Err(wrong());
        }
        let mut words = [0; 8];
        for (index, word) in words.iter_mut().enumerate() {
            *word = u64::from_str_radix(&text[index * 16..][..16], 16).map_err(|_| wrong())?;
        }
        Ok(words)
    }
}

/// More than any device has: 4 TiB.
const MAX_BYTES: u64 = 1 << 42;

/// What a launch may ask for on any device: blocks along each axis, threads along each axis and of a block.
const GRID_MAX: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
const BLOCK_MAX: [u32; 3] = [1024, 1024, 64];
const BLOCK_THREADS_MAX: u64 = 1024;
/// More shared memory than a block has on any device.
const SHARED_MAX_BYTES: u32 = 256 << 10;

/// Most elements of one view, so that no product of sizes overflows.
const MAX_VIEW_ELEMENTS: u64 = 1 << 40;

impl Work {
    /// Ranks and sizes that everything else relies on.
    fn check_shapes(&self) -> Result<(), &'static str> {
        if let Self::Kernel(kernel) = self {
            if kernel.operands.is_empty() {
                return Err("a kernel that writes nothing");
            }
            check_launch(kernel.grid, kernel.block)?;
        }
        let (read, written) = self.views();
        for view in read.into_iter().chain([written]) {
            let elements = view.dims.iter().try_fold(1u64, |count, &size| count.checked_mul(size.max(1)));
            if elements.is_none_or(|count| count > MAX_VIEW_ELEMENTS) || view.dims.len() != view.strides.len() {
                return Err("more elements than any device has");
            }
        }
        let whole = |views: &[&View], rank: usize| views.iter().all(|view| view.rank() == rank && view.elements() > 0);
        let right = match self {
            Self::Kernel(_) => true,
            Self::Conv(conv) => {
                let image = |view: &View| view.rank() == 4 && view.elements() > 0 && view.is_channels_last();
                image(&conv.x)
                    && image(&conv.y)
                    && conv.residual.as_ref().is_none_or(image)
                    && whole(&[&conv.w], 4)
                    && conv.groups > 0
                    && conv.strides.iter().chain(&conv.dilations).all(|&size| size > 0)
            }
            Self::Product(product) => {
                whole(&[&product.a, &product.b, &product.y], 3)
                    && product.residual.as_ref().is_none_or(|view| whole(&[view], 3))
            }
            Self::Attention(attention) => whole(&[&attention.q, &attention.k, &attention.v, &attention.o], 4),
        };
        if !right {
            return Err("a rank, a size or strides that its kind of step never has");
        }
        let fit = match self {
            Self::Conv(conv) => conv.operands_fit(),
            Self::Product(product) => product.operands_fit(),
            Self::Kernel(_) | Self::Attention(_) => true,
        };
        if fit { Ok(()) } else { Err("operands that do not fit each other") }
    }
}

/// Whether any device launches so many blocks of so many threads.
fn check_launch(grid: [u32; 3], block: [u32; 3]) -> Result<(), &'static str> {
    if grid.iter().chain(&block).any(|&size| size == 0) {
        return Err("a launch of no threads");
    }
    let within = |sizes: [u32; 3], most: [u32; 3]| sizes.iter().zip(most).all(|(size, most)| *size <= most);
    let threads: u64 = block.iter().map(|&size| u64::from(size)).product();
    if !within(grid, GRID_MAX) || !within(block, BLOCK_MAX) || threads > BLOCK_THREADS_MAX {
        return Err("a launch of more threads than any device has");
    }
    Ok(())
}

impl Tactic {
    /// Whether any device runs it.
    fn check(&self) -> Result<(), &'static str> {
        match self {
            Self::Kernel { grid, block, shared_bytes, .. } => {
                check_launch(*grid, *block)?;
                if *shared_bytes > SHARED_MAX_BYTES {
                    return Err("more shared memory than a block has");
                }
            }
            Self::Dnn { workspace_bytes, .. } | Self::Blas { workspace_bytes, .. } => {
                if *workspace_bytes > MAX_WORKSPACE_BYTES {
                    return Err("a larger workspace than tactics have");
                }
            }
        }
        Ok(())
    }
}

/// A bias as libraries read it: as many elements, one after another.
fn is_bias(view: &View, elements: u64, kind: Kind) -> bool {
    view.kind == kind && view.dims == [elements] && view.is_rows()
}

/// A whole engine for one set of shapes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Program {
    pub buffers: Vec<Buffer>,
    pub inputs: Vec<Edge>,
    pub outputs: Vec<Edge>,
    /// In an order that respects every dependence.
    pub steps: Vec<Step>,
    /// Kernels' sources; steps name them by index.
    pub sources: Vec<Source>,
    pub arena_bytes: u64,
    pub weight_bytes: u64,
    /// Products of f32 may round their factors to TF32.
    #[serde(default)]
    pub tf32: bool,
}

/// What is wrong with a program, so that it never runs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    #[error("step '{step}' names buffer {buffer}, of {count}")]
    NoBuffer { step: String, buffer: u32, count: usize },
    #[error("step '{step}' reaches beyond buffer '{buffer}' of {bytes} bytes")]
    Beyond { step: String, buffer: String, bytes: u64 },
    #[error("buffer '{buffer}' reaches beyond its {place} of {bytes} bytes")]
    Outside { buffer: String, place: &'static str, bytes: u64 },
    #[error("step '{step}' writes constants or an input")]
    Writes { step: String },
    #[error("step '{step}' names kernel {source_index}, of {count}")]
    NoKernel { step: String, source_index: usize, count: usize },
    #[error("'{edge}' is not the whole of its buffer")]
    Edge { edge: String },
    #[error("buffer '{buffer}' is not where such buffers lie: {why}")]
    Misplaced { buffer: String, why: &'static str },
    #[error("step '{step}' has a shape it cannot have: {why}")]
    Shape { step: String, why: &'static str },
    #[error("step '{step}' runs on stream {stream}, of {MAX_STREAMS}")]
    NoStream { step: String, stream: u32 },
    #[error("it wants {bytes} bytes of {what}, more than any device has")]
    TooLarge { what: &'static str, bytes: u64 },
    #[error("it wants an arena of {bytes} bytes, of which its buffers take {needed}")]
    Unneeded { bytes: u64, needed: u64 },
    #[error("buffer '{buffer}' of {bytes} bytes is used by no step")]
    Unused { buffer: String, bytes: u64 },
    #[error("step '{step}' has a tactic it cannot have: {why}")]
    Tactic { step: String, why: &'static str },
}

impl Program {
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0 as usize]
    }

    /// Whether a view is of the weights, which no step writes.
    pub fn is_constant(&self, view: &View) -> bool {
        matches!(self.buffer(view.buffer).place, Place::Weights(_))
    }

    /// Largest workspace that any step's tactic wants, by stream: steps that run at once have one each.
    pub fn workspaces_bytes(&self) -> Vec<u64> {
        let mut bytes = vec![0];
        for step in &self.steps {
            let stream = step.stream as usize;
            if bytes.len() <= stream {
                bytes.resize(stream + 1, 0);
            }
            bytes[stream] = bytes[stream].max(step.tactic.as_ref().map_or(0, Tactic::workspace_bytes));
        }
        bytes
    }

    /// All workspaces together.
    pub fn workspace_bytes(&self) -> u64 {
        self.workspaces_bytes().iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Every address that a step uses lies inside its buffer, and every buffer inside its place.
    pub fn check(&self) -> Result<(), ProgramError> {
        if let Some(step) = self.steps.iter().find(|step| step.stream >= MAX_STREAMS) {
            return Err(ProgramError::NoStream { step: step.name.clone(), stream: step.stream });
        }
        for (what, bytes) in
            [("arena", self.arena_bytes), ("constants", self.weight_bytes), ("workspace", self.workspace_bytes())]
        {
            if bytes > MAX_BYTES {
                return Err(ProgramError::TooLarge { what, bytes });
            }
        }
        for (index, buffer) in self.buffers.iter().enumerate() {
            let misplaced = |why| ProgramError::Misplaced { buffer: buffer.name.clone(), why };
            let (at, place, bytes) = match buffer.place {
                Place::Arena(at) => (at, "arena", self.arena_bytes),
                Place::Weights(at) => (at, "constants", self.weight_bytes),
                Place::Input(number) | Place::Output(number) => {
                    let edges = if matches!(buffer.place, Place::Input(_)) { &self.inputs } else { &self.outputs };
                    let edge = edges.get(number as usize).ok_or_else(|| misplaced("there is no such edge"))?;
                    if edge.buffer.0 as usize != index || buffer.bytes > MAX_BYTES {
                        return Err(misplaced("the edge has other memory"));
                    }
                    continue;
                }
            };
            if at % ALIGNMENT_BYTES as u64 != 0 {
                return Err(misplaced("it is not aligned"));
            }
            if at.checked_add(buffer.bytes).is_none_or(|end| end > bytes) {
                return Err(ProgramError::Outside { buffer: buffer.name.clone(), place, bytes });
            }
        }
        for edge in self.inputs.iter().chain(&self.outputs) {
            let kind = Kind::of(edge.element);
            let bytes = kind.and_then(|kind| edge.shape.iter().try_fold(kind.bytes(), |a, b| a.checked_mul(*b)));
            let buffer = self.buffers.get(edge.buffer.0 as usize);
            // Rounded up to where the next could begin.
            let whole = |bytes: u64, held: u64| bytes <= held && held <= bytes.max(1).next_multiple_of(ALIGNMENT);
            if buffer.is_none_or(|buffer| bytes.is_none_or(|bytes| !whole(bytes, buffer.bytes))) {
                return Err(ProgramError::Edge { edge: edge.name.clone() });
            }
        }
        for step in &self.steps {
            let name = || step.name.clone();
            let shape = |why| ProgramError::Shape { step: step.name.clone(), why };
            step.work.check_shapes().map_err(shape)?;
            let tactic = step.tactic.as_ref().map_or(Ok(()), Tactic::check);
            tactic.map_err(|why| ProgramError::Tactic { step: step.name.clone(), why })?;
            let (read, written) = step.work.views();
            for view in read.into_iter().chain([written]) {
                let count = self.buffers.len();
                let Some(buffer) = self.buffers.get(view.buffer.0 as usize) else {
                    return Err(ProgramError::NoBuffer { step: name(), buffer: view.buffer.0, count });
                };
                if view.dims.len() != view.strides.len() || view.end_bytes().is_none_or(|end| end > buffer.bytes) {
                    return Err(ProgramError::Beyond {
                        step: name(),
                        buffer: buffer.name.clone(),
                        bytes: buffer.bytes,
                    });
                }
            }
            if matches!(self.buffer(written.buffer).place, Place::Weights(_) | Place::Input(_)) {
                return Err(ProgramError::Writes { step: name() });
            }
            if let Some(source_index) = step.source().filter(|index| *index >= self.sources.len()) {
                return Err(ProgramError::NoKernel { step: name(), source_index, count: self.sources.len() });
            }
        }
        self.check_arena()
    }

    /// The arena is as large as its buffers need, whose ends are known to be inside of it, and none of them is there for
    /// nothing; the steps are known to name buffers that exist.
    fn check_arena(&self) -> Result<(), ProgramError> {
        let end = |buffer: &Buffer| match buffer.place {
            Place::Arena(at) => at + buffer.bytes,
            _ => 0,
        };
        let needed = self.buffers.iter().map(end).max().unwrap_or(0);
        if self.arena_bytes > needed.next_multiple_of(ALIGNMENT) {
            return Err(ProgramError::Unneeded { bytes: self.arena_bytes, needed });
        }
        let mut used = vec![false; self.buffers.len()];
        for step in &self.steps {
            let (read, written) = step.work.views();
            read.into_iter().chain([written]).for_each(|view| used[view.buffer.0 as usize] = true);
        }
        // Lowering leaves values that nobody uses in their place, with the least of room.
        let in_vain = |(buffer, used): &(&Buffer, bool)| {
            !used && buffer.bytes > ALIGNMENT && matches!(buffer.place, Place::Arena(_))
        };
        match self.buffers.iter().zip(used).find(in_vain) {
            Some((buffer, _)) => Err(ProgramError::Unused { buffer: buffer.name.clone(), bytes: buffer.bytes }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_has_the_workspace_that_a_rebuilt_tactic_wants() {
        let view = || View::rows(BufferId(0), Kind::F16, &[1, 8, 8]);
        let step = |stream: u32, workspace_bytes: u64| Step {
            name: stream.to_string(),
            origins: Vec::new(),
            work: Work::Product(ProductWork {
                a: view(),
                b: view(),
                bias: None,
                residual: None,
                y: view(),
                alpha: 1.0,
                activation: None,
            }),
            tactic: Some(Tactic::Dnn { engine: 1, knobs: Vec::new(), workspace_bytes, waits: None }),
            stream,
            flops: 0,
            bytes: 0,
        };
        let mut program = Program { steps: vec![step(0, 512), step(1, 256)], ..Program::default() };
        program.steps[1].tactic.as_mut().expect("it has one").set_workspace_bytes(4096);
        assert_eq!(program.workspaces_bytes(), [512, 4096]);
    }
}
