//! What copies elements and computes nothing.

use super::{
    Operands, Prepared, Ready,
    checker::{Checker, product},
};
use crate::{error::EngineError, program::MovePart};
use planforge_graph::ir::ElementType;
use planforge_kernels_cpu::shuffle::{self, MoveAxis};

#[derive(Debug)]
struct Transpose(shuffle::Transpose);

pub(super) fn transpose(check: &Checker<'_>, shape: &[usize], perm: &[usize]) -> Prepared {
    let count = product(shape)?;
    check.takes(0, count)?;
    check.gives(count)?;
    Ok(Box::new(Transpose(shuffle::Transpose::new(shape, perm).ok_or("its axes are no permutation")?)))
}

impl Ready for Transpose {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        self.0.run(on.pool, on.numbers(0), on.output(0));
        Ok(())
    }
}

#[derive(Debug)]
struct Gather {
    outer: usize,
    size: usize,
    line_bytes: usize,
    /// Whether indices have 8 bytes and not 4.
    wide: bool,
}

pub(super) fn gather(check: &Checker<'_>, [outer, size, line_bytes]: [usize; 3], index: ElementType) -> Prepared {
    let wide = match index {
        ElementType::I64 => true,
        ElementType::I32 => false,
        other => return Err(format!("indices of {other} have no kernel")),
    };
    let index_bytes = if wide { 8 } else { 4 };
    let indices = check.input_bytes(1) as usize / index_bytes;
    let table = product(&[outer, size, line_bytes])?;
    check.holds("table", check.input(0), table, 1)?;
    check.holds("indices", check.input(1), indices, index_bytes)?;
    check.holds("output", check.output(), product(&[outer, indices, line_bytes])?, 1)?;
    Ok(Box::new(Gather { outer, size, line_bytes, wide }))
}

impl Ready for Gather {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let Self { outer, size, line_bytes, wide } = *self;
        let (Some(table), Some(indices)) = (on.input::<u8>(0), on.input::<u8>(1)) else { return Ok(()) };
        let (step, index_bytes) = (on.step, if wide { 8 } else { 4 });
        let count = indices.len() / index_bytes;
        let mut lines = on.output::<u8>(0).chunks_exact_mut(line_bytes.max(1));
        for outer in 0..outer {
            for at in 0..count {
                let raw = &indices[at * index_bytes..(at + 1) * index_bytes];
                let index = if wide {
                    i64::from_le_bytes(raw.try_into().unwrap_or_default())
                } else {
                    i64::from(i32::from_le_bytes(raw.try_into().unwrap_or_default()))
                };
                let resolved = if index < 0 { index + size as i64 } else { index };
                let Some(line) = usize::try_from(resolved).ok().filter(|&line| line < size) else {
                    return Err(EngineError::Index { step: step.origins.join(" + "), index, size });
                };
                let from = (outer * size + line) * line_bytes;
                if let Some(to) = lines.next() {
                    to.copy_from_slice(&table[from..from + line_bytes]);
                }
            }
        }
        Ok(())
    }
}

/// Each with the position of its input.
#[derive(Debug)]
struct Moves(Vec<(usize, shuffle::Move)>);

/// Copies from places in strides to places in strides.
pub(super) fn strided(check: &Checker<'_>, element_bytes: usize, parts: &[MovePart]) -> Prepared {
    let mut moves = Vec::with_capacity(parts.len());
    for part in parts {
        let axes: Vec<MoveAxis> =
            part.axes.iter().map(|axis| MoveAxis { size: axis.size, from: axis.from, to: axis.to }).collect();
        let copy = shuffle::Move::new(element_bytes, (part.from, part.to), &axes)
            .ok_or("a part of it is out of bounds, or writes a place twice")?;
        let (from, to) = copy.needs();
        let fits = |elements: usize, bytes: u64| {
            elements.checked_mul(element_bytes).is_some_and(|needed| needed as u64 <= bytes)
        };
        if !fits(from, check.input_bytes(part.input)) || !fits(to, check.output_bytes()) {
            return Err("a part of it leaves its buffers".to_owned());
        }
        moves.push((part.input, copy));
    }
    Ok(Box::new(Moves(moves)))
}

impl Ready for Moves {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        for (position, copy) in &self.0 {
            let Some(from) = on.input::<u8>(*position) else { continue };
            copy.run(on.pool, from, on.output(0));
        }
        Ok(())
    }
}

#[derive(Debug)]
struct CopyAll;

pub(super) fn copy(check: &Checker<'_>) -> Prepared {
    let bytes = check.input_bytes(0) as usize;
    check.holds("input", check.input(0), bytes, 1)?;
    check.holds("output", check.output(), bytes, 1)?;
    Ok(Box::new(CopyAll))
}

impl Ready for CopyAll {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        if let Some(from) = on.input::<u8>(0) {
            on.output(0).copy_from_slice(from);
        }
        Ok(())
    }
}
