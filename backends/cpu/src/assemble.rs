//! From a draft with tactics to a program and its weights: operands packed for their kernels, and every buffer given
//! its place.

use super::{
    draft::{Draft, DraftStep, Role, WeightSource},
    program::{ALIGNMENT, Buffer, BufferId, Place, Program, Step},
    steps::{packed_bytes, scratch_bytes},
};
use bytes::Bytes;
use planforge_graph::ir::ElementType;
use planforge_kernels_cpu::{
    gemm::{Kernel, kernel_by_name, pack_columns, pack_with},
    quantized,
};
use planforge_onnx::Model;
use planforge_passes::memory::{Lifetime, place};
use planforge_types::{Digest, DigestWriter};
use std::{
    collections::BTreeMap,
    io::{self, Write},
};

/// The kernel whose order weights are packed in.
#[derive(Clone, Copy, Debug)]
enum PackedFor {
    Floats(&'static Kernel),
    Integers(&'static quantized::Kernel),
}

impl PackedFor {
    fn named(name: &str) -> Option<Self> {
        let integers = || quantized::kernel_by_name(name).map(Self::Integers);
        kernel_by_name(name).map(Self::Floats).or_else(integers)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Floats(kernel) => kernel.name,
            Self::Integers(kernel) => kernel.name,
        }
    }
}

/// Where the bytes of a constant come from, when they are written.
#[derive(Debug)]
enum Content {
    Bytes(Bytes),
    /// Packed weights of a step.
    Weights {
        source: WeightSource,
        kernel: PackedFor,
    },
    /// A bias, padded with zeros for each group.
    Bias {
        values: Vec<f32>,
        groups: usize,
    },
}

impl Content {
    /// A digest of the bytes that will be written: what decides them, and nothing else.
    fn key(&self, bytes: u64, digests: &mut Digests) -> Digest {
        let text = match self {
            Self::Bytes(data) => format!("bytes {}", digests.of(data)),
            Self::Weights { source, kernel } => {
                let data = digests.of(source.data().bytes());
                match source {
                    WeightSource::Conv { out_channels, channels, kernel: window, groups, .. }
                    | WeightSource::IntegerConv { out_channels, channels, kernel: window, groups, .. } => {
                        format!("{} conv {bytes} {out_channels} {channels} {window:?} {groups} {data}", kernel.name())
                    }
                    WeightSource::Matrix { depth, columns, strides, .. } => {
                        format!("{} matrix {bytes} {depth} {columns} {strides:?} {data}", kernel.name())
                    }
                    WeightSource::IntegerMatrix { depth, columns, .. } => {
                        let element = source.data().element();
                        format!("{} bytes {element} {bytes} {depth} {columns} {data}", kernel.name())
                    }
                }
            }
            Self::Bias { values, groups } => {
                format!("bias {bytes} {groups} {}", Digest::of(bytemuck::cast_slice(values)))
            }
        };
        Digest::of(text.as_bytes())
    }
}

/// Digests of tensors. Those that lie in memory that stays where it is are worked out once.
#[derive(Debug, Default)]
pub(crate) struct Digests {
    /// Held so that its addresses stay its own.
    stable: Bytes,
    known: BTreeMap<(usize, usize), Digest>,
}

impl Digests {
    /// `stable`: where most tensors lie.
    pub(crate) fn over(stable: Bytes) -> Self {
        Self { stable, known: BTreeMap::new() }
    }

    fn of(&mut self, bytes: &Bytes) -> Digest {
        let (start, end) = (bytes.as_ptr() as usize, bytes.as_ptr() as usize + bytes.len());
        let first = self.stable.as_ptr() as usize;
        let lasting = first <= start && end <= first + self.stable.len();
        if let Some(digest) = self.known.get(&(start, end)).filter(|_| lasting) {
            return *digest;
        }
        let mut writer = DigestWriter::new();
        // Writing to a digest cannot fail.
        let _ = writer.write_all(bytes);
        let digest = writer.finish();
        if lasting {
            self.known.insert((start, end), digest);
        }
        digest
    }
}

/// Where each packed operand of a weights section lies, by [`Content::key`].
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub digests: Digests,
    /// Offset and bytes.
    pub places: BTreeMap<Digest, [u64; 2]>,
}

/// A weights section that programs put their constants into, not yet written.
#[derive(Debug, Default)]
pub(crate) struct WeightPlan {
    /// In order of offset.
    parts: Vec<(u64, u64, Content)>,
    /// Where the first part may lie.
    begin: u64,
    bytes: u64,
    /// What programs have in common lies there once; `None`: nothing is looked for.
    shared: Option<Shared>,
}

/// Gives every buffer its place; constants go into `weights`, whose size the program has to be told at the end.
pub(crate) fn assemble(draft: Draft, weights: &mut WeightPlan) -> Program {
    let mut buffers = draft.buffers;
    let mut contents: BTreeMap<BufferId, Content> = BTreeMap::new();
    let mut steps: Vec<Step> = Vec::with_capacity(draft.steps.len());
    let mut scratches: BTreeMap<BufferId, usize> = BTreeMap::new();
    for (index, of) in draft.steps.into_iter().enumerate() {
        let mut add = |name: String, bytes: u64, role: Role| {
            buffers.push(super::draft::DraftBuffer { name, bytes, role });
            BufferId((buffers.len() - 1) as u32)
        };
        let name = of.step.origins.first().cloned().unwrap_or_default();
        let mut step = of.step.clone();
        if let Some(tactic) = &step.tactic
            && let Some(kernel) = PackedFor::named(&tactic.kernel)
        {
            if let Some(bytes) = scratch_bytes(&step.kind, tactic) {
                let id = add(format!("{name} (image with border)"), bytes, Role::Temporary);
                scratches.insert(id, index);
                step.scratch = Some(id);
            }
            let (weight_bytes, bias_bytes) = packed_bytes(&of.step.kind, kernel.name()).unwrap_or((0, 0));
            let DraftStep { weights, bias, .. } = of;
            let groups = match &weights {
                Some(WeightSource::Conv { groups, .. }) => *groups,
                _ => 1,
            };
            if let Some(source) = weights {
                let id = add(format!("{name} (packed weights)"), weight_bytes, Role::Temporary);
                contents.insert(id, Content::Weights { source, kernel });
                step.weights = Some(id);
            }
            if let Some(values) = bias {
                let id = add(format!("{name} (bias)"), bias_bytes, Role::Temporary);
                contents.insert(id, Content::Bias { values, groups });
                step.bias = Some(id);
            }
        }
        steps.push(step);
    }
    for (index, buffer) in buffers.iter().enumerate() {
        if let Role::Constant(bytes) = &buffer.role {
            contents.insert(BufferId(index as u32), Content::Bytes(bytes.clone()));
        }
    }
    // Inputs live throughout: a run must not spoil them for the next. Outputs live to the end; what passes is lent before
    // anybody writes again, and lives no longer than others read it.
    let mut lives: Vec<Option<Lifetime>> = vec![None; buffers.len()];
    let end = steps.len();
    let mut touch = |id: BufferId, at: usize| {
        let bytes = buffers[id.index()].bytes;
        let life = lives[id.index()].get_or_insert(Lifetime { bytes, first: at, last: at });
        life.first = life.first.min(at);
        life.last = life.last.max(at);
    };
    for (index, step) in steps.iter().enumerate() {
        step.reads().chain(step.writes()).for_each(|id| touch(id, index));
    }
    for port in &draft.inputs {
        touch(port.buffer, 0);
        touch(port.buffer, end);
    }
    for port in &draft.outputs {
        touch(port.buffer, end);
    }
    let in_arena: Vec<usize> = (0..buffers.len())
        .filter(|&index| lives[index].is_some() && !contents.contains_key(&BufferId(index as u32)))
        .collect();
    let arena_lives: Vec<Lifetime> = in_arena.iter().filter_map(|&index| lives[index]).collect();
    let (offsets, arena_bytes) = place(&arena_lives, ALIGNMENT);
    let mut places: Vec<Option<Place>> = vec![None; buffers.len()];
    for (&index, offset) in in_arena.iter().zip(offsets) {
        places[index] = Some(Place::Arena(offset));
    }
    for (id, content) in contents {
        if lives[id.index()].is_some() {
            places[id.index()] = Some(Place::Weights(weights.add(buffers[id.index()].bytes, content)));
        }
    }
    // Buffers that nothing touches are dropped.
    let mut renumbered = vec![BufferId(0); buffers.len()];
    let mut kept = Vec::new();
    for (index, buffer) in buffers.into_iter().enumerate() {
        if let Some(place) = places[index] {
            renumbered[index] = BufferId(kept.len() as u32);
            kept.push(Buffer { name: buffer.name, bytes: buffer.bytes, place });
        }
    }
    let to = |id: BufferId| renumbered[id.index()];
    for step in &mut steps {
        step.inputs.iter_mut().flatten().for_each(|id| *id = to(*id));
        step.outputs.iter_mut().for_each(|id| *id = to(*id));
        for id in [&mut step.weights, &mut step.bias, &mut step.scratch].into_iter().flatten() {
            *id = to(*id);
        }
    }
    let mut program = Program {
        buffers: kept,
        inputs: draft.inputs,
        outputs: draft.outputs,
        passing: draft.passing,
        steps,
        arena_bytes,
        weight_bytes: weights.bytes,
    };
    for port in program.inputs.iter_mut().chain(&mut program.outputs).chain(&mut program.passing) {
        port.buffer = to(port.buffer);
    }
    program
}

impl WeightPlan {
    /// An empty section for the constants of a model.
    pub(crate) fn of(model: &Model) -> Self {
        // Most weights lie in the largest file, which stays mapped.
        let largest = model.files().iter().max_by_key(|file| file.size_bytes);
        let digests = Digests::over(largest.map(|file| file.bytes.clone()).unwrap_or_default());
        Self::sharing(0, Shared { digests, places: BTreeMap::new() })
    }

    /// A section for several programs, that begins where another of `begin` bytes ends; `shared` says what lies there.
    pub(crate) fn sharing(begin: u64, shared: Shared) -> Self {
        Self { parts: Vec::new(), begin, bytes: begin, shared: Some(shared) }
    }

    /// Size so far, with that of the section it begins behind.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What lies where, when it is shared.
    pub(crate) fn shared(&mut self) -> Option<&mut Shared> {
        self.shared.as_mut()
    }

    /// Gives a constant its offset: a place of its own, unless its bytes are there already.
    fn add(&mut self, bytes: u64, content: Content) -> u64 {
        let key = self.shared.as_mut().map(|shared| content.key(bytes, &mut shared.digests));
        if let (Some(key), Some(shared)) = (&key, &self.shared)
            && let Some([offset, _]) = shared.places.get(key).filter(|[_, there]| *there == bytes)
        {
            return *offset;
        }
        let offset = self.bytes;
        if let (Some(key), Some(shared)) = (key, &mut self.shared) {
            shared.places.insert(key, [offset, bytes]);
        }
        self.parts.push((offset, bytes, content));
        self.bytes = (offset + bytes).next_multiple_of(ALIGNMENT);
        offset
    }

    /// Writes the section; at most one packed operand is in memory at a time.
    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut at = self.begin;
        let pad = |out: &mut dyn Write, at: &mut u64, to: u64| -> io::Result<()> {
            let gap = (to - *at) as usize;
            *at = to;
            out.write_all(&[0; ALIGNMENT as usize][..gap])
        };
        let mut packed: Vec<f32> = Vec::new();
        for (offset, bytes, content) in &self.parts {
            pad(out, &mut at, *offset)?;
            match content {
                Content::Bytes(bytes) => out.write_all(bytes)?,
                Content::Weights { source, kernel } => {
                    packed.clear();
                    packed.resize((bytes / 4) as usize, 0.0);
                    match kernel {
                        PackedFor::Floats(kernel) => pack(source, kernel, &mut packed),
                        PackedFor::Integers(kernel) => {
                            pack_integers(source, kernel, bytemuck::cast_slice_mut(&mut packed));
                        }
                    }
                    out.write_all(bytemuck::cast_slice(&packed))?;
                }
                Content::Bias { values, groups } => {
                    let padded = (bytes / 4) as usize / groups;
                    let own = values.len() / groups;
                    packed.clear();
                    packed.resize((bytes / 4) as usize, 0.0);
                    for group in 0..*groups {
                        packed[group * padded..][..own].copy_from_slice(&values[group * own..][..own]);
                    }
                    out.write_all(bytemuck::cast_slice(&packed))?;
                }
            }
            at += bytes;
        }
        pad(out, &mut at, self.bytes)
    }
}

/// Packs a right operand in the order of its kernel.
fn pack(source: &WeightSource, kernel: &Kernel, to: &mut [f32]) {
    let values = source.values();
    match source {
        WeightSource::Matrix { depth, columns, strides, .. } => {
            pack_columns(kernel, &values, (*depth, strides[0]), (*columns, strides[1]), to);
        }
        WeightSource::Conv { out_channels, channels, kernel: window, groups, .. } => {
            let (taps, columns) = (window[0] * window[1], out_channels / groups);
            let depth = taps * channels;
            let size = to.len() / groups;
            if size == 0 {
                return;
            }
            for (group, to) in to.chunks_exact_mut(size).enumerate() {
                // The model has (output channel, channel, tap); the kernels' depth is (tap, channel).
                pack_with(kernel, depth, columns, to, |step, column| {
                    let (tap, channel) = (step / channels, step % channels);
                    values[((group * columns + column) * channels + channel) * taps + tap]
                });
            }
        }
        WeightSource::IntegerMatrix { .. } | WeightSource::IntegerConv { .. } => {}
    }
}

/// Packs bytes in the order of their kernel; unsigned ones are moved by 128.
fn pack_integers(source: &WeightSource, kernel: &quantized::Kernel, to: &mut [u8]) {
    let data = source.data();
    let by = if data.element() == ElementType::U8 { 0x80 } else { 0 };
    let values: &[u8] = data.bytes();
    match source {
        WeightSource::IntegerMatrix { depth, columns, .. } => {
            quantized::pack(kernel, *depth, *columns, to, |step, column| (values[step * columns + column] ^ by) as i8);
        }
        WeightSource::IntegerConv { out_channels, channels, kernel: window, groups, .. } => {
            let (taps, columns) = (window[0] * window[1], out_channels / groups);
            let size = to.len() / groups;
            for (group, to) in to.chunks_exact_mut(size.max(1)).enumerate() {
                quantized::pack(kernel, taps * channels, columns, to, |step, column| {
                    let (tap, channel) = (step / channels, step % channels);
                    (values[((group * columns + column) * channels + channel) * taps + tap] ^ by) as i8
                });
            }
        }
        WeightSource::Matrix { .. } | WeightSource::Conv { .. } => {}
    }
}
