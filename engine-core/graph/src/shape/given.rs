//! What operators are given, and why one cannot be applied to it.

use super::{TensorType, broadcast};
use crate::ir::ElementType;

/// Most taps that all windows of a pooling may have together: kernels visit them one by one.
const MAX_WINDOW_TAPS: usize = 1 << 36;

/// Why an operator cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    #[error("input {position} is missing")]
    MissingInput { position: usize },
    #[error("the type {element} of input {position} is not supported")]
    Element { position: usize, element: ElementType },
    #[error("inputs have the types {first} and {second}, which must be equal")]
    ElementsDiffer { first: ElementType, second: ElementType },
    #[error("input {position} has rank {rank}, but {wanted}")]
    Rank { position: usize, rank: usize, wanted: String },
    #[error("the shapes {first:?} and {second:?} do not broadcast")]
    Broadcast { first: Vec<usize>, second: Vec<usize> },
    #[error("{what}: {first:?} does not fit {second:?}")]
    Mismatch { what: &'static str, first: Vec<usize>, second: Vec<usize> },
    #[error("the attribute {name} is {value}, which is impossible for {shape:?}")]
    Attribute { name: &'static str, value: String, shape: Vec<usize> },
    #[error("input {position} has no elements, of which nothing can be computed")]
    Empty { position: usize },
    #[error("there is no operator {name} in the table of this version")]
    Unknown { name: String },
    #[error("{node}: outputs are declared as {declared}, but are {inferred}")]
    Declared { node: String, declared: String, inferred: String },
    #[error("{node}: {source}")]
    Node { node: String, source: Box<ShapeError> },
    #[error("the shape of {name} is not bound")]
    Unbound { name: String },
}

/// Inputs of one operator by position.
pub(crate) struct Given<'a>(pub(crate) &'a [Option<&'a TensorType>]);

impl<'a> Given<'a> {
    pub(crate) fn get(&self, position: usize) -> Result<&'a TensorType, ShapeError> {
        self.optional(position).ok_or(ShapeError::MissingInput { position })
    }

    pub(crate) fn optional(&self, position: usize) -> Option<&'a TensorType> {
        self.0.get(position).copied().flatten()
    }

    pub(crate) fn float(&self, position: usize) -> Result<&'a TensorType, ShapeError> {
        let given = self.get(position)?;
        match is_float(given.element) {
            true => Ok(given),
            false => Err(ShapeError::Element { position, element: given.element }),
        }
    }

    pub(crate) fn integer(&self, position: usize) -> Result<&'a TensorType, ShapeError> {
        let given = self.get(position)?;
        match is_float(given.element) || given.element == ElementType::Bool {
            true => Err(ShapeError::Element { position, element: given.element }),
            false => Ok(given),
        }
    }

    pub(crate) fn bool(&self, position: usize) -> Result<&'a TensorType, ShapeError> {
        let given = self.get(position)?;
        match given.element {
            ElementType::Bool => Ok(given),
            element => Err(ShapeError::Element { position, element }),
        }
    }

    /// Image-like: batch, channels and at least `spatial` more axes.
    pub(crate) fn image(&self, position: usize, spatial: usize) -> Result<&'a TensorType, ShapeError> {
        let given = self.get(position)?;
        match given.rank() >= 2 + spatial {
            true => Ok(given),
            false => Err(self.rank_error(position, format!("at least {} axes are needed", 2 + spatial))),
        }
    }

    pub(crate) fn rank_error(&self, position: usize, wanted: String) -> ShapeError {
        ShapeError::Rank { position, rank: self.0[position].map_or(0, TensorType::rank), wanted }
    }

    pub(crate) fn same_element(&self, first: usize, second: usize) -> Result<(), ShapeError> {
        let (first, second) = (self.get(first)?.element, self.get(second)?.element);
        match first == second {
            true => Ok(()),
            false => Err(ShapeError::ElementsDiffer { first, second }),
        }
    }

    /// Optional inputs must have exactly this type.
    pub(crate) fn optional_is(
        &self,
        position: usize,
        what: &'static str,
        wanted: &TensorType,
    ) -> Result<(), ShapeError> {
        let Some(given) = self.optional(position) else { return Ok(()) };
        if given.shape != wanted.shape {
            return Err(mismatch(what, &given.shape, &wanted.shape));
        }
        match given.element == wanted.element {
            true => Ok(()),
            false => Err(ShapeError::ElementsDiffer { first: given.element, second: wanted.element }),
        }
    }

    pub(crate) fn axis(&self, axis: usize, position: usize) -> Result<&'a TensorType, ShapeError> {
        let given = self.get(position)?;
        match axis < given.rank() {
            true => Ok(given),
            false => Err(attribute("axis", axis, &given.shape)),
        }
    }
}

/// Whether values of this type are floats.
pub fn is_float(element: ElementType) -> bool {
    matches!(element, ElementType::F32 | ElementType::F16 | ElementType::Bf16 | ElementType::F64)
}

pub(crate) fn mismatch(what: &'static str, first: &[usize], second: &[usize]) -> ShapeError {
    ShapeError::Mismatch { what, first: first.to_vec(), second: second.to_vec() }
}

pub(crate) fn attribute(name: &'static str, value: impl std::fmt::Debug, shape: &[usize]) -> ShapeError {
    ShapeError::Attribute { name, value: format!("{value:?}"), shape: shape.to_vec() }
}

pub(crate) fn require(holds: bool, error: impl FnOnce() -> ShapeError) -> Result<(), ShapeError> {
    if holds { Ok(()) } else { Err(error()) }
}

pub(crate) fn broadcast_types(first: &TensorType, second: &TensorType) -> Result<Vec<usize>, ShapeError> {
    broadcast(&first.shape, &second.shape)
        .ok_or_else(|| ShapeError::Broadcast { first: first.shape.clone(), second: second.shape.clone() })
}

pub(crate) fn wanted_shape(wanted: &[Vec<usize>], position: usize) -> Result<&[usize], ShapeError> {
    wanted.get(position).map(Vec::as_slice).ok_or(ShapeError::MissingInput { position })
}

/// Whether windows with this kernel can be computed for every element of `out`.
pub fn taps_are_few(kernel: &[usize], out: &[usize]) -> bool {
    let taps = kernel.iter().chain(out).try_fold(1usize, |taps, &size| taps.checked_mul(size));
    taps.is_some_and(|taps| taps <= MAX_WINDOW_TAPS)
}
