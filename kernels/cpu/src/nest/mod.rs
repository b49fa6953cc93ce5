//! Loops over any number of axes: operands of any type in strides, a short program of element-wise instructions over them,
//! and one dense result.
//!
//! The result is made in chunks of [`CHUNK`] elements that follow each other in memory. For each chunk every instruction runs
//! once, from registers of as many numbers to a register; only loading knows where an operand lies. So what is fused costs
//! one pass over memory, whatever it is made of, and an instruction is chosen once in 512 elements.
//!
//! | module | holds |
//! |---|---|
//! | `registers` | numbers on their way: loading from strides, storing |
//! | `compute` | what each instruction does, per level |
//! | [`fold`] | sums, extremes and places of extremes over some axes |
//! | [`scan`] | softmax and running sums along an axis that is not the last |
//! | `table` | what is a function of one byte, looked up |

mod compute;
pub mod fold;
mod registers;
pub mod scan;
mod table;

pub use compute::{Binary, Compare, Unary};
pub use registers::Source;

use crate::{
    isa::Isa,
    pointwise::Activation,
    pool::{ThreadPool, for_parts},
};
use planforge_types::ElementType;
use registers::{Banks, Walker, prepared_axes};
use std::sync::{Mutex, PoisonError};
use table::Table;

/// Numbers in one register.
pub const CHUNK: usize = 512;
/// Most axes, instructions and operands: what nobody needs more of.
pub const AXES_MAX: usize = 16;
const CODE_MAX: usize = 256;
/// Elements that one task makes: enough to be worth waking a thread.
const PART: usize = 32 * CHUNK;

/// How numbers are held between instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// f32, of f32 and both halves.
    Single,
    /// f64.
    Double,
    /// i64, of integers and bools.
    Whole,
}

impl Class {
    /// What elements of a type are held as.
    pub fn of(element: ElementType) -> Self {
        match element {
            ElementType::F32 | ElementType::F16 | ElementType::Bf16 => Self::Single,
            ElementType::F64 => Self::Double,
            _ => Self::Whole,
        }
    }
}

/// What makes a register from others, which are named by the place of the instruction that made them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Instruction {
    /// An operand, held as its type is.
    Load(usize),
    /// A number in another type, as `as` converts: floats are cut and saturate, integers wrap; whether it is not zero, as a
    /// bool.
    Convert {
        from: usize,
        to: ElementType,
    },
    Unary(Unary, usize),
    /// f32 alone.
    Activate(Activation, usize),
    Binary(Binary, usize, usize),
    /// 1 or 0.
    Compare(Compare, usize, usize),
    /// The second where the first, an integer, is not 0; else the third.
    Select(usize, usize, usize),
    /// f32: `x / scale`, rounded half to even (0 for what is no number), plus zero, within bounds.
    Quantize {
        x: usize,
        scale: usize,
        zero: Option<usize>,
        low: f32,
        high: f32,
    },
}

impl Instruction {
    fn reads(&self) -> impl Iterator<Item = usize> {
        let all = match *self {
            Self::Load(_) => [None; 3],
            Self::Convert { from: a, .. } | Self::Unary(_, a) | Self::Activate(_, a) => [Some(a), None, None],
            Self::Binary(_, a, b) | Self::Compare(_, a, b) => [Some(a), Some(b), None],
            Self::Select(a, b, c) => [Some(a), Some(b), Some(c)],
            Self::Quantize { x, scale, zero, .. } => [Some(x), Some(scale), zero],
        };
        all.into_iter().flatten()
    }
}

/// An instruction with the place of its register.
#[derive(Clone, Copy, Debug)]
struct Placed {
    instruction: Instruction,
    class: Class,
    /// Of the register within its class.
    slot: usize,
}

/// A nest of loops made ready.
#[derive(Debug)]
pub struct Nest {
    sizes: Vec<usize>,
    len: usize,
    sources: Vec<Source>,
    code: Vec<Placed>,
    /// Registers of each class.
    banks: [usize; 3],
    out: ElementType,
    /// Registers that no task has now.
    idle: Mutex<Vec<Banks>>,
    /// Where the result is a function of one byte, as far as the operands say.
    table: Option<Table>,
}

/// Why numbers could not be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NestError {
    #[error("an integer was divided by zero")]
    DivisionByZero,
}

impl Nest {
    /// Runs `code` for every index over `sizes`, outermost first; the last instruction's number is the result, stored as
    /// `out` with the last axis innermost. The error completes "it ...".
    pub fn new(
        sizes: &[usize],
        sources: Vec<Source>,
        code: &[Instruction],
        out: ElementType,
    ) -> Result<Self, &'static str> {
        let (sizes, sources, len) = prepared_axes(sizes, sources)?;
        if code.is_empty() || code.len() > CODE_MAX {
            return Err("computes nothing, or too much at once");
        }
        let mut classes: Vec<Class> = Vec::with_capacity(code.len());
        for (index, instruction) in code.iter().enumerate() {
            if instruction.reads().any(|from| from >= index) {
                return Err("uses a number that is not there yet");
            }
            classes.push(compute::class_of(instruction, &classes, &sources)?);
        }
        compute::may_store(classes[code.len() - 1], out)?;
        let mut last_use: Vec<usize> = (0..code.len()).collect();
        for (index, instruction) in code.iter().enumerate() {
            instruction.reads().for_each(|from| last_use[from] = index);
        }
        last_use[code.len() - 1] = usize::MAX;
        let mut free: [Vec<usize>; 3] = Default::default();
        let mut banks = [0usize; 3];
        let mut placed: Vec<Placed> = Vec::with_capacity(code.len());
        for (index, &instruction) in code.iter().enumerate() {
            let class = classes[index];
            let slot = free[class as usize].pop().unwrap_or_else(|| {
                banks[class as usize] += 1;
                banks[class as usize] - 1
            });
            placed.push(Placed { instruction, class, slot });
            // After the result has its register, so that it has none that it is made of.
            for from in 0..=index {
                if last_use[from] == index {
                    free[placed[from].class as usize].push(placed[from].slot);
                }
            }
        }
        let table = Table::of(&sources, code, out, len);
        Ok(Self { sizes, len, sources, code: placed, banks, out, idle: Mutex::default(), table })
    }

    /// Elements of the result.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no result.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that operand `index` must have.
    pub fn needs(&self, index: usize) -> usize {
        self.sources[index].needs_bytes
    }

    /// Computes the result from the operands' bytes.
    ///
    /// # Panics
    /// When an operand is missing or shorter than [`Self::needs`], or `to` is not as long as the result.
    pub fn run(&self, isa: Isa, pool: &ThreadPool, operands: &[&[u8]], to: &mut [u8]) -> Result<(), NestError> {
        let bytes = self.out.bytes();
        assert_eq!(to.len(), self.len * bytes, "the result is not as long as its loops");
        assert_eq!(operands.len(), self.sources.len(), "there is not one operand for each source");
        for (source, given) in self.sources.iter().zip(operands) {
            assert!(given.len() >= source.needs_bytes, "an operand is too short");
        }
        if let Some(table) = &self.table
            && table.run(isa, pool, operands, to)
        {
            return Ok(());
        }
        let failed = Mutex::new(None);
        for_parts(pool, to, PART * bytes, |task, part| {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut banks = idle.unwrap_or_else(|| Banks::new(self.banks));
            let mut walkers: Vec<Walker> =
                self.sources.iter().map(|of| Walker::at(of, &self.sizes, task * PART)).collect();
            for part in part.chunks_mut(CHUNK * bytes) {
                let count = part.len() / bytes;
                for placed in &self.code {
                    let result = match placed.instruction {
                        Instruction::Load(source) => {
                            let of = &self.sources[source];
                            // Loaded where it is first used; an operand has one load.
                            walkers[source].load(
                                isa,
                                of,
                                &self.sizes,
                                operands[source],
                                count,
                                banks.of(placed.class, placed.slot),
                            );
                            Ok(())
                        }
                        other => compute::run(isa, &other, &self.code, placed, count, &mut banks),
                    };
                    if let Err(error) = result {
                        *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                        return;
                    }
                }
                let last = &self.code[self.code.len() - 1];
                banks.store(isa, last.class, last.slot, count, self.out, part);
            }
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(banks);
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests;
