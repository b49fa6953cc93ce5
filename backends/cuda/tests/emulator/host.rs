//! A lowered program on the host: its memory, with fences around everything, and its steps by kernels of ours.

use super::{As, Emulator, Range};
use planforge_cuda::{
    codegen::candidates::own_kernels,
    codegen::{Generated, gemm},
    program::{Place, Program, Step, Work},
    view::View,
};
use planforge_graph::ir::Tensor;
use std::{collections::BTreeMap, ffi::c_void};

/// Largest tiles come last, so few of them cost little to emulate.
const TILES: usize = 6;
/// What lies before and behind every operand, and is looked at afterwards.
const FENCE_BYTES: usize = 256;
const FENCE: u8 = 0xff;

/// Memory with fences around it, filled with what is no number.
pub struct Memory {
    bytes: Vec<u8>,
    begin: usize,
    len: usize,
}

impl Memory {
    fn new(len: usize) -> Self {
        let bytes = vec![FENCE; len + 3 * FENCE_BYTES];
        let begin = FENCE_BYTES + bytes.as_ptr().align_offset(FENCE_BYTES);
        Self { bytes, begin, len }
    }

    fn of(content: &[u8]) -> Self {
        let mut memory = Self::new(content.len());
        memory.put(content);
        memory
    }

    pub fn put(&mut self, content: &[u8]) {
        self.bytes[self.begin..][..content.len()].copy_from_slice(content);
    }

    fn content(&self) -> &[u8] {
        &self.bytes[self.begin..][..self.len]
    }

    fn range(&self) -> Range {
        let begin = self.content().as_ptr() as usize;
        Range { begin, end: begin + self.len }
    }

    fn is_fenced(&self) -> bool {
        let (before, rest) = self.bytes.split_at(self.begin);
        before.iter().chain(&rest[self.len..]).all(|byte| *byte == FENCE)
    }
}

/// Everything a program reads and writes.
pub struct Host<'a> {
    emulator: &'a Emulator,
    program: &'a Program,
    arena: Memory,
    weights: Memory,
    /// States are outputs too.
    pub inputs: Vec<Memory>,
    outputs: Vec<Memory>,
}

impl<'a> Host<'a> {
    pub fn new(
        emulator: &'a Emulator,
        program: &'a Program,
        weights: &[u8],
        inputs: &BTreeMap<String, Tensor>,
    ) -> Self {
        let size = |bytes: u64| usize::try_from(bytes).expect("it fits into memory");
        let inputs = program.inputs.iter().enumerate().map(|(number, edge)| {
            let bytes = inputs[&edge.name].bytes();
            program
                .places_of_input(number)
                .map_or_else(|| Memory::of(bytes), |places| Memory::of(&places.spread(bytes)))
        });
        let outputs = program.outputs.iter().map(|edge| Memory::new(size(program.buffer(edge.buffer).bytes)));
        Self {
            emulator,
            program,
            arena: Memory::new(size(program.arena_bytes)),
            weights: Memory::of(weights),
            inputs: inputs.collect(),
            outputs: outputs.collect(),
        }
    }

    /// What an output holds; a state is the input that it changes.
    pub fn output(&self, number: usize) -> Tensor {
        let edge = &self.program.outputs[number];
        let shape: Vec<usize> = edge.shape.iter().map(|dim| *dim as usize).collect();
        // Memory is given out in larger pieces.
        let bytes = shape.iter().product::<usize>() * edge.element.bytes();
        let memory = match self.program.state_of_output(number) {
            Some(state) => &self.inputs[state.input as usize],
            None => &self.outputs[number],
        };
        let content = memory.content()[..bytes].to_vec();
        Tensor::new(edge.element, shape, content.into()).expect("it has as many bytes as its shape says")
    }

    fn memories(&self) -> impl Iterator<Item = &Memory> {
        [&self.arena, &self.weights].into_iter().chain(&self.inputs).chain(&self.outputs)
    }

    fn address(&mut self, view: &View) -> *mut c_void {
        let (memory, at) = match self.program.buffer(view.buffer).place {
            Place::Arena(at) => (&mut self.arena, at),
            Place::Weights(at) => (&mut self.weights, at),
            Place::Input(number) => (&mut self.inputs[number as usize], 0),
            Place::Output(number) => (&mut self.outputs[number as usize], 0),
        };
        let at = memory.begin + usize::try_from(at + view.offset * view.kind.bytes()).expect("it fits into memory");
        memory.bytes[at..].as_mut_ptr().cast()
    }

    pub fn run(&mut self, step: &Step, kernel: &Generated, as_: As) -> Result<(), String> {
        let (mut views, written) = step.work.views();
        if matches!(&step.work, Work::Conv(conv) if conv.taps.is_some()) {
            // A depthwise kernel reads its weights in their other arrangement.
            views.remove(1);
        }
        views.push(written);
        let operands: Vec<*mut c_void> = views.into_iter().map(|view| self.address(view)).collect();
        let ranges: Vec<Range> = self.memories().map(Memory::range).collect();
        // SAFETY: the memories live in this host, and only this launch uses them.
        unsafe { self.emulator.run(kernel, as_, &operands, &ranges)? };
        let fenced = self.memories().all(Memory::is_fenced);
        if fenced { Ok(()) } else { Err("it wrote outside of its operands".into()) }
    }
}

/// Whether its blocks go on to further columns, which are copied meanwhile: only where copies are counted.
pub fn stays(kernel: &Generated) -> bool {
    kernel.source.name == "staged" && !kernel.source.text.contains("#define STAGES 1\n")
}

/// Kernels that can compute a step, each with how it is compiled.
pub fn kernels(program: &Program, step: &Step) -> Vec<(Generated, As)> {
    if let Work::Kernel(work) = &step.work {
        let source = program.sources[work.source].clone();
        return vec![(Generated { source, grid: work.grid, block: work.block, shared_bytes: 0 }, As::Ampere)];
    }
    let target = gemm::Device { capability: 90, sm_count: 132, shared_block_bytes: 227 * 1024 };
    let own = own_kernels(target, program, &step.work, TILES);
    // Blocks of a cluster, and those that stay.
    let counts = |kernel: &Generated| {
        let name = &*kernel.source.name;
        (["gemm", "heads", "pair"].contains(&name) && kernel.grid[1] > 1) || stays(kernel)
    };
    own.into_iter().map(|kernel| if counts(&kernel) { (kernel, As::Hopper) } else { (kernel, As::Ampere) }).collect()
}
