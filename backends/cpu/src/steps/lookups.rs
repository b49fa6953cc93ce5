//! Elements taken and put by indices.

use super::{Operands, Prepared, Ready, checker::Checker};
use crate::{
    error::EngineError,
    program::{LookupSizes, Meeting},
};
use planforge_graph::ir::ElementType;
use planforge_kernels_cpu::lookup::{Indices, Lookup, OutOfRange};

/// Checks the lookup against the indices (input 1); gives it, and whether indices have 8 bytes.
fn lookup(check: &Checker<'_>, of: &LookupSizes) -> Result<(Lookup, bool), String> {
    let wide = match of.index {
        ElementType::I64 => true,
        ElementType::I32 => false,
        other => return Err(format!("indices of {other} have no kernel")),
    };
    let limits: Vec<(usize, usize)> = of.limits.iter().map(|&[size, stride]| (size, stride)).collect();
    let lookup = Lookup::new(&of.sizes, &of.strides, &limits, of.run).ok_or("its sizes are out of bounds")?;
    check.holds("indices", check.input(1), lookup.indices(), if wide { 8 } else { 4 })?;
    Ok((lookup, wide))
}

fn indices<'a>(on: &Operands<'a>, wide: bool) -> Indices<'a> {
    match wide {
        true => Indices::Wide(on.input(1).unwrap_or_default()),
        false => Indices::Narrow(on.input(1).unwrap_or_default()),
    }
}

fn outside(on: &Operands<'_>, error: OutOfRange) -> EngineError {
    EngineError::Index { step: on.step.origins.join(" + "), index: error.index, size: error.size }
}

#[derive(Debug)]
struct Take {
    lookup: Lookup,
    wide: bool,
    bytes: usize,
}

pub(super) fn take(check: &Checker<'_>, of: &LookupSizes, bytes: usize) -> Prepared {
    let (lookup, wide) = lookup(check, of)?;
    if !matches!(bytes, 1 | 2 | 4 | 8) || check.step.outputs.len() != 1 {
        return Err("its elements have no such width".to_owned());
    }
    if (check.input_bytes(0) / bytes as u64) < lookup.needs() as u64 {
        return Err("its input is too short".to_owned());
    }
    check.holds("output", check.output(), lookup.count() * lookup.run_len(), bytes)?;
    Ok(Box::new(Take { lookup, wide, bytes }))
}

impl Ready for Take {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let (from, indices) = (on.input(0).unwrap_or_default(), indices(on, self.wide));
        self.lookup.take(self.bytes, from, indices, on.output(0)).map_err(|error| outside(on, error))
    }
}

#[derive(Debug)]
struct Put {
    lookup: Lookup,
    wide: bool,
    meeting: Meeting,
    element: ElementType,
}

pub(super) fn put(check: &Checker<'_>, of: &LookupSizes, meeting: Meeting, element: ElementType) -> Prepared {
    let (lookup, wide) = lookup(check, of)?;
    let half = matches!(element, ElementType::F16 | ElementType::Bf16 | ElementType::Bool);
    if half && meeting != Meeting::None {
        return Err(format!("updates of {element} have no kernel"));
    }
    let bytes = element.bytes();
    let elements = check.input_bytes(0) as usize / bytes;
    check.holds("input", check.input(0), elements, bytes)?;
    check.holds("updates", check.input(2), lookup.count() * lookup.run_len(), bytes)?;
    check.holds("output", check.output(), elements, bytes)?;
    if elements < lookup.needs() {
        return Err("its input is too short".to_owned());
    }
    Ok(Box::new(Put { lookup, wide, meeting, element }))
}

impl Ready for Put {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let indices = indices(on, self.wide);
        let from = on.input::<u8>(0).unwrap_or_default();
        on.output::<u8>(0).copy_from_slice(from);
        macro_rules! met {
            ($number:ty, $add:expr, $mul:expr, $max:expr, $min:expr) => {{
                let updates = on.input::<$number>(2).unwrap_or_default();
                let to = on.output::<$number>(0);
                match self.meeting {
                    Meeting::None => self.lookup.put(updates, indices, to, |_, new| new),
                    Meeting::Add => self.lookup.put(updates, indices, to, $add),
                    Meeting::Mul => self.lookup.put(updates, indices, to, $mul),
                    Meeting::Max => self.lookup.put(updates, indices, to, $max),
                    Meeting::Min => self.lookup.put(updates, indices, to, $min),
                }
            }};
        }
        macro_rules! floats {
            ($number:ident) => {
                met!(
                    $number,
                    |a, b| a + b,
                    |a, b| a * b,
                    |a: $number, b: $number| if a.is_nan() || b.is_nan() { $number::NAN } else { a.max(b) },
                    |a: $number, b: $number| if a.is_nan() || b.is_nan() { $number::NAN } else { a.min(b) }
                )
            };
        }
        macro_rules! whole {
            ($number:ident) => {
                met!($number, $number::wrapping_add, $number::wrapping_mul, |a, b| a.max(b), |a, b| a.min(b))
            };
        }
        let done = match self.element {
            ElementType::F32 => floats!(f32),
            ElementType::F64 => floats!(f64),
            ElementType::I8 => whole!(i8),
            ElementType::U8 | ElementType::Bool => whole!(u8),
            ElementType::I16 => whole!(i16),
            ElementType::U16 | ElementType::F16 | ElementType::Bf16 => whole!(u16),
            ElementType::I32 => whole!(i32),
            ElementType::U32 => whole!(u32),
            ElementType::I64 => whole!(i64),
            ElementType::U64 => whole!(u64),
        };
        done.map_err(|error| outside(on, error))
    }
}
