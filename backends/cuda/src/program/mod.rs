//! An engine before it is on a device: buffers, the steps that fill them, and which tactic computes each.

mod chain;
mod state;
mod tactic;
mod work;

pub use chain::{ChainWork, First, Tail};
pub use state::{Places, State};
pub use tactic::{After, Tactic};
pub use work::{Append, AttentionWork, ConvWork, HeadsWork, KernelWork, Norm, OneTokenWork, ProductWork, Seen, Work};

use crate::{
    source::Source,
    view::{BufferId, Kind, View},
};
use planforge_graph::ir::{Activation, GeluForm};
use planforge_kernels_cuda::device::ALIGNMENT_BYTES;
use planforge_report::gelu;
use planforge_types::ElementType;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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
    /// The source of the generated kernel that it runs, where it runs one.
    pub fn source(&self) -> Option<usize> {
        match (&self.work, &self.tactic) {
            (Work::Kernel(kernel), _) => Some(kernel.source),
            (_, tactic) => tactic.as_ref().and_then(Tactic::source),
        }
    }

    pub(crate) fn source_mut(&mut self) -> Option<&mut usize> {
        match (&mut self.work, &mut self.tactic) {
            (Work::Kernel(kernel), _) => Some(&mut kernel.source),
            (_, tactic) => tactic.as_mut().and_then(Tactic::source_mut),
        }
    }
}

/// More than any device has: 4 TiB.
const MAX_BYTES: u64 = 1 << 42;

/// A whole engine for one set of shapes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Program {
    pub buffers: Vec<Buffer>,
    pub inputs: Vec<Edge>,
    pub outputs: Vec<Edge>,
    /// Inputs whose memory steps write: each is an output too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<State>,
    /// In an order that respects every dependence.
    pub steps: Vec<Step>,
    /// Kernels' sources; steps name them by index.
    pub sources: Vec<Source>,
    pub arena_bytes: u64,
    pub weight_bytes: u64,
    /// Products of f32 may round their factors to TF32.
    #[serde(default)]
    pub tf32: bool,
    /// GELU by tanh may stand in for GELU by erf.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub approximate_gelu: bool,
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
    #[error("input {input} cannot be output {output} of the next run: {why}")]
    State { input: u32, output: u32, why: &'static str },
}

impl Program {
    /// Drops sources that no step uses any more, candidates that lost; the others stand in the order of their first use,
    /// whatever else was tried.
    pub fn drop_unused_sources(&mut self) {
        let mut place = BTreeMap::new();
        let mut sources = Vec::new();
        for step in &mut self.steps {
            if let Some(source) = step.source_mut() {
                *source = *place.entry(*source).or_insert_with(|| {
                    sources.push(self.sources[*source].clone());
                    sources.len() - 1
                });
            }
        }
        self.sources = sources;
    }

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

    /// How many GELUs are computed in which form, by the words of reports. A kernel of ours and cuDNN compute the form
    /// that the graph has; cuBLASLt's epilogue has the one with tanh alone.
    pub fn gelus(&self) -> BTreeMap<String, u64> {
        let mut found = BTreeMap::new();
        for step in &self.steps {
            let by_library = matches!(step.tactic, Some(Tactic::Blas { after: None, .. }));
            let fused = step.work.activation().into_iter().filter_map(|op| match op {
                Activation::Gelu(form) => Some(form),
                _ => None,
            });
            let own: &[GeluForm] = if let Work::Kernel(kernel) = &step.work { &kernel.gelus } else { &[] };
            for form in fused.chain(own.iter().copied()) {
                let word = match form {
                    GeluForm::Tanh => gelu::TANH,
                    GeluForm::Erf if by_library => gelu::ERF_BY_TANH,
                    GeluForm::Erf => gelu::ERF,
                };
                *found.entry(word.to_owned()).or_default() += 1;
            }
        }
        found
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
        self.check_states()?;
        // What grows has the memory of what it grows to.
        let grows = |number: &usize| self.places_of_input(*number).is_some();
        let inputs = (0..self.inputs.len()).filter(|number| !grows(number)).map(|number| &self.inputs[number]);
        for edge in inputs.chain(&self.outputs) {
            let bytes = edge.shape.iter().try_fold(Kind::of(edge.element).bytes(), |a, b| a.checked_mul(*b));
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
            let may_write = |view: &View| match self.buffer(view.buffer).place {
                Place::Arena(_) | Place::Output(_) => true,
                Place::Input(number) => self.states.iter().any(|state| state.input == number),
                Place::Weights(_) => false,
            };
            if !may_write(written) || !step.work.updates().into_iter().all(may_write) {
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

    fn view() -> View {
        View::rows(BufferId(0), Kind::F16, &[1, 8, 8])
    }

    /// A product that ends with `activation`.
    fn product(activation: Option<Activation>, tactic: Option<Tactic>) -> Step {
        Step {
            name: String::new(),
            origins: Vec::new(),
            work: Work::Product(ProductWork {
                a: view(),
                b: view(),
                bias: None,
                residual: None,
                y: view(),
                alpha: 1.0,
                activation,
                norm: None,
            }),
            tactic,
            stream: 0,
            flops: 0,
            bytes: 0,
        }
    }

    #[test]
    fn a_stream_has_the_workspace_that_a_rebuilt_tactic_wants() {
        let dnn = |workspace_bytes| Tactic::Dnn { engine: 1, knobs: Vec::new(), workspace_bytes, waits: None };
        let step = |stream: u32, workspace_bytes: u64| Step { stream, ..product(None, Some(dnn(workspace_bytes))) };
        let mut program = Program { steps: vec![step(0, 512), step(1, 256)], ..Program::default() };
        program.steps[1].tactic.as_mut().expect("it has one").set_workspace_bytes(4096);
        assert_eq!(program.workspaces_bytes(), [512, 4096]);
    }

    #[test]
    fn the_form_of_a_gelu_is_that_of_who_computes_it() {
        let product = |form: GeluForm, tactic| product(Some(Activation::Gelu(form)), tactic);
        let blas = |after: Option<After>| Some(Tactic::Blas { words: [0; 8], workspace_bytes: 0, waits: None, after });
        let after = || Some(After { source: 0, grid: [1; 3], block: [32, 1, 1] });
        let dnn = Tactic::Dnn { engine: 1, knobs: Vec::new(), workspace_bytes: 0, waits: None };
        let kernel = KernelWork {
            role: "pointwise".into(),
            source: 0,
            grid: [1; 3],
            block: [32, 1, 1],
            operands: vec![view()],
            gelus: vec![GeluForm::Erf, GeluForm::Tanh],
        };
        let steps = vec![
            product(GeluForm::Erf, blas(after())),
            product(GeluForm::Erf, Some(dnn)),
            product(GeluForm::Erf, blas(None)),
            product(GeluForm::Tanh, blas(None)),
            Step { work: Work::Kernel(kernel), ..product(GeluForm::Erf, None) },
        ];
        let program = Program { steps, ..Program::default() };
        let counts = [(gelu::ERF, 3), (gelu::ERF_BY_TANH, 1), (gelu::TANH, 2)];
        assert_eq!(program.gelus(), BTreeMap::from(counts.map(|(form, count)| (form.to_owned(), count))));
    }
}
