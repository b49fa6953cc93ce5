//! Device memory of one engine context, and the constants that contexts share.

use super::{Device, Result};
use crate::{
    program::{Edge, Place, Program},
    view::{BufferId, View},
};
use planforge_kernels_cuda::device::Buffer;
use std::rc::Rc;

/// Constants on the device: those of an engine, which all of its contexts share, and behind them those that graphs of one
/// shape have besides.
#[derive(Clone, Debug)]
pub struct Constants {
    shared: Rc<Buffer>,
    /// Where the places of the own ones begin: what the shared ones take in the plan.
    shared_bytes: u64,
    own: Option<Rc<Buffer>>,
}

impl Constants {
    /// An engine's, copied to the device.
    pub fn upload(device: &Device, bytes: &[u8]) -> Result<Self> {
        let shared = Rc::new(device.gpu.upload(bytes)?);
        Ok(Self { shared, shared_bytes: bytes.len() as u64, own: None })
    }

    /// With `own` behind those that are shared, copied to the device.
    pub fn with(&self, device: &Device, own: &[u8]) -> Result<Self> {
        let (shared, own) = (self.shared.clone(), Some(Rc::new(device.gpu.upload(own)?)));
        Ok(Self { shared, shared_bytes: self.shared_bytes, own })
    }

    /// Device memory of those that all contexts share.
    pub fn shared_bytes(&self) -> u64 {
        self.shared.len_bytes() as u64
    }

    /// Device memory of all.
    pub fn len_bytes(&self) -> u64 {
        self.shared_bytes() + self.own.as_ref().map_or(0, |own| own.len_bytes() as u64)
    }

    /// What a place among the constants lies in, and where it begins there.
    fn part(&self, at: u64) -> (&Buffer, u64) {
        match &self.own {
            Some(own) if at >= self.shared_bytes => (own, at - self.shared_bytes),
            _ => (&self.shared, at),
        }
    }
}

/// Device memory of one engine context.
#[derive(Debug)]
pub struct Memory {
    arena: Buffer,
    weights: Constants,
    pub inputs: Vec<Rc<Buffer>>,
    /// Of a state the input's.
    pub outputs: Vec<Rc<Buffer>>,
    /// By stream.
    workspaces: Vec<Buffer>,
}

impl Memory {
    /// Memory for `program` with a workspace for each stream; contexts of one engine share its weights.
    pub fn new(device: &Device, program: &Program, weights: Constants, workspaces_bytes: &[u64]) -> Result<Self> {
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let own = |edge: &Edge| device.gpu.alloc(size(program.buffer(edge.buffer).bytes)).map(Rc::new);
        let inputs = program.inputs.iter().map(own).collect::<std::result::Result<Vec<_>, _>>()?;
        let outputs = program.outputs.iter().enumerate().map(|(number, edge)| match program.state_of_output(number) {
            Some(state) => Ok(inputs[state.input as usize].clone()),
            None => own(edge),
        });
        let outputs = outputs.collect::<std::result::Result<Vec<_>, _>>()?;
        // A state begins as zeros.
        for state in &program.states {
            inputs[state.input as usize].fill(0)?;
        }
        Ok(Self {
            arena: device.gpu.alloc(size(program.arena_bytes))?,
            weights,
            inputs,
            outputs,
            workspaces: workspaces_bytes
                .iter()
                .map(|bytes| device.gpu.alloc(size(*bytes)))
                .collect::<std::result::Result<_, _>>()?,
        })
    }

    pub(crate) fn workspace_bytes(&self, stream: u32) -> u64 {
        self.workspaces[stream as usize].len_bytes() as u64
    }

    pub(crate) fn workspace_address(&self, stream: u32) -> u64 {
        self.workspaces[stream as usize].address()
    }

    /// Where a view begins.
    pub(crate) fn address_of(&self, program: &Program, view: &View) -> u64 {
        let base = match program.buffer(view.buffer).place {
            Place::Arena(at) => self.arena.address() + at,
            Place::Weights(at) => {
                let (memory, begin) = self.weights.part(at);
                memory.address() + begin
            }
            Place::Input(number) => self.inputs[number as usize].address(),
            Place::Output(number) => self.outputs[number as usize].address(),
        };
        base + view.offset * view.kind.bytes()
    }

    /// Copies a part of a buffer from the device, after everything that was queued on it.
    pub(crate) fn read(&self, program: &Program, buffer: BufferId, at: u64, bytes: &mut [u8]) -> Result<()> {
        let (memory, begin) = match program.buffer(buffer).place {
            Place::Arena(begin) => (&self.arena, begin),
            Place::Weights(at) => self.weights.part(at),
            Place::Input(number) => (&*self.inputs[number as usize], 0),
            Place::Output(number) => (&*self.outputs[number as usize], 0),
        };
        Ok(memory.read((begin + at) as usize, bytes)?)
    }

    /// Bytes of everything.
    pub fn bytes(&self) -> u64 {
        // A state is an input and an output in one.
        let states = self.outputs.iter().filter(|output| self.inputs.iter().any(|input| Rc::ptr_eq(input, output)));
        let twice: usize = states.map(|buffer| buffer.len_bytes()).sum();
        let edges: usize = self.inputs.iter().chain(&self.outputs).map(|buffer| buffer.len_bytes()).sum();
        let workspaces: usize = self.workspaces.iter().map(Buffer::len_bytes).sum();
        self.weights.len_bytes() + (self.arena.len_bytes() + edges - twice + workspaces) as u64
    }

    /// Fills the arena with small halves of either sign, so that what is timed has data like real data.
    pub fn fill_with_noise(&self) -> Result<()> {
        const CHUNK: usize = 8 << 20;
        let mut state = 0x9e37_79b9_u32;
        let noise: Vec<u8> = (0..CHUNK / 2)
            .flat_map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let bits = ((state >> 31) << 15) as u16 | (0x3000 + ((state >> 20) & 0x7ff) as u16);
                bits.to_le_bytes()
            })
            .collect();
        let length = self.arena.len_bytes();
        for at in (0..length).step_by(CHUNK) {
            self.arena.write(at, &noise[..CHUNK.min(length - at)])?;
        }
        Ok(())
    }
}
