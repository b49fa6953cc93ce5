//! Operators by name: each with its shapes and its reference implementation in one place.
//!
//! What is here has no kernel of its own; engines run these implementations. An operator that becomes worth a kernel
//! becomes a variant of [`crate::ir::Op`]. Families are files; adding an operator is one entry in its family's table.
//!
//! Invariant: `infer` refuses whatever `run` would stumble over, for a plan may say anything.

use crate::{
    ir::{NamedOp, Op, Tensor},
    reference::{Inputs, OpError},
    shape::{Given, ShapeError, TensorType},
};

mod bits;
mod classes;
mod einsum;
pub mod integer_attention;
mod labels;
mod order;
pub mod quantized;
mod recurrent;
mod regions;
mod scatter;
mod spectral;
mod support_vectors;
mod text;
pub mod trees;
mod windows;

pub use bits::{EXPONENT, NARROW_FLOATS, NarrowFloat, power};
pub use classes::TRANSFORMS;
pub use recurrent::ACTIVATIONS;

/// Types of the results; `wanted` gives shapes that follow from data.
type Infer = fn(&NamedOp, &Given<'_>, &[Vec<usize>]) -> Result<Vec<TensorType>, ShapeError>;

/// Computes the results, of the types that `Infer` gives.
type Run = fn(&NamedOp, &Inputs<'_>, &[TensorType]) -> Result<Vec<Tensor>, OpError>;

/// One operator.
struct Entry {
    name: &'static str,
    /// Makes something of inputs without elements.
    takes_empty: bool,
    infer: Infer,
    run: Run,
}

const TABLES: &[&[Entry]] = &[
    bits::ENTRIES,
    classes::ENTRIES,
    einsum::ENTRIES,
    integer_attention::ENTRIES,
    labels::ENTRIES,
    order::ENTRIES,
    quantized::ENTRIES,
    recurrent::ENTRIES,
    regions::ENTRIES,
    scatter::ENTRIES,
    spectral::ENTRIES,
    support_vectors::ENTRIES,
    text::ENTRIES,
    trees::ENTRIES,
    windows::ENTRIES,
];

fn entry(name: &str) -> Option<&'static Entry> {
    TABLES.iter().flat_map(|table| table.iter()).find(|entry| entry.name == name)
}

/// The name of an operator, for lists; one that is not in the table is unknown.
pub fn kind(name: &str) -> &'static str {
    entry(name).map_or("unknown", |entry| entry.name)
}

/// The short name of any operator, as [`Op::kind`], for what outlives the operator.
pub fn kind_of(op: &Op) -> &'static str {
    match op {
        Op::Named(named) => kind(&named.name),
        own => own.own_kind().unwrap_or_default(),
    }
}

pub(crate) fn takes_empty(name: &str) -> bool {
    entry(name).is_some_and(|entry| entry.takes_empty)
}

pub(crate) fn infer(named: &NamedOp, given: &Given<'_>, wanted: &[Vec<usize>]) -> Result<Vec<TensorType>, ShapeError> {
    let entry = entry(&named.name).ok_or_else(|| ShapeError::Unknown { name: named.name.clone() })?;
    (entry.infer)(named, given, wanted)
}

pub(crate) fn run(named: &NamedOp, inputs: &Inputs<'_>, outputs: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
    let entry = entry(&named.name).ok_or_else(|| OpError::Unknown(named.name.clone()))?;
    (entry.run)(named, inputs, outputs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_in_the_table_once() {
        let mut names: Vec<&str> = TABLES.iter().flat_map(|table| table.iter().map(|entry| entry.name)).collect();
        names.sort_unstable();
        let mut unique = names.clone();
        unique.dedup();
        assert_eq!(names, unique);
        assert_eq!(kind("nothing of the kind"), "unknown");
    }
}
