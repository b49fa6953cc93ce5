//! What is a function of one byte is computed for all 256 of them and looked up: chains of quantized activations take one
//! load an element, whatever they are made of. The values are those that the chain gives.

use super::{Instruction, Nest, registers::Source};
use crate::{
    isa::Isa,
    pool::{ThreadPool, for_parts},
};
use planforge_types::ElementType;

const BYTES: usize = 256;
/// Elements from which on the table is sooner made than the chain run.
const LEN_MIN: usize = 8 * BYTES;
/// Elements that one task looks up.
const PART: usize = 1 << 15;

/// A nest that is one byte's function where all operands but numbers lie in one place.
#[derive(Debug)]
pub(super) struct Table {
    /// The same instructions over all bytes.
    nest: Box<Nest>,
    /// Operands that are bytes, and where each begins.
    bytes: Vec<(usize, usize)>,
    len: usize,
    element_bytes: usize,
}

impl Table {
    /// `None` where operands are something else than bytes and single numbers, or elements are few. `sources`: as a nest has
    /// them.
    pub(super) fn of(sources: &[Source], code: &[Instruction], out: ElementType, len: usize) -> Option<Self> {
        if len < LEN_MIN {
            return None;
        }
        let mut bytes = Vec::new();
        for (index, source) in sources.iter().enumerate().filter(|(_, source)| !source.is_one()) {
            bytes.push((index, source.bytes_from()?));
        }
        let (_, first) = *bytes.first()?;
        if bytes.iter().any(|(_, from)| *from != first) {
            return None;
        }
        let along = sources.iter().map(|source| source.along(source.is_one())).collect();
        let nest = Box::new(Nest::new(&[BYTES], along, code, out).ok()?);
        Some(Self { nest, bytes, len, element_bytes: out.bytes() })
    }

    /// Looks the result up where the operands allow it; else nothing was done.
    pub(super) fn run(&self, isa: Isa, pool: &ThreadPool, operands: &[&[u8]], to: &mut [u8]) -> bool {
        let (first, from) = self.bytes[0];
        let place = operands[first].as_ptr();
        if self.bytes.iter().any(|(operand, _)| operands[*operand].as_ptr() != place) {
            return false;
        }
        let all: [u8; BYTES] = std::array::from_fn(|byte| byte as u8);
        let mut given = operands.to_vec();
        for (operand, _) in &self.bytes {
            given[*operand] = &all;
        }
        let mut found = vec![0; BYTES * self.element_bytes];
        // A byte that does not occur may be what cannot be computed.
        if self.nest.run(isa, pool, &given, &mut found).is_err() {
            return false;
        }
        let bytes = &operands[first][from..][..self.len];
        match self.element_bytes {
            1 => look_up::<1>(pool, bytes, &found, to),
            2 => look_up::<2>(pool, bytes, &found, to),
            4 => look_up::<4>(pool, bytes, &found, to),
            _ => look_up::<8>(pool, bytes, &found, to),
        }
        true
    }
}

fn look_up<const N: usize>(pool: &ThreadPool, bytes: &[u8], found: &[u8], to: &mut [u8]) {
    let found: [[u8; N]; BYTES] = std::array::from_fn(|byte| std::array::from_fn(|at| found[byte * N + at]));
    for_parts(pool, to.as_chunks_mut::<N>().0, PART, |task, part| {
        for (to, byte) in part.iter_mut().zip(&bytes[task * PART..]) {
            *to = found[usize::from(*byte)];
        }
    });
}
