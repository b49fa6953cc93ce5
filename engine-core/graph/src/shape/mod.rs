//! Types and shapes: what they are, how they broadcast and slide, and the binding of model inputs to a profile. What
//! each operator makes of them is said in [`crate::infer`].

mod bind;
mod cost;
mod given;
mod products;
mod spatial;

pub use bind::{BindError, DeclaredDim, MAX_ELEMENTS, MAX_RANK, bind_input, check_size, sum};
pub use cost::multiply_accumulates;
pub(crate) use given::{Given, attribute, broadcast_types, mismatch, require, wanted_shape};
pub use given::{ShapeError, is_float, taps_are_few};
pub(crate) use products::{conv_type, matmul_type};
pub use spatial::{AutoPad, resolve_pads, transposed_pads, window_outputs};

use crate::ir::{ElementType, Tensor};
use std::fmt;

/// Element type and static shape of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    pub element: ElementType,
    pub shape: Vec<usize>,
}

impl TensorType {
    pub fn new(element: ElementType, shape: impl Into<Vec<usize>>) -> Self {
        Self { element, shape: shape.into() }
    }

    pub fn of(tensor: &Tensor) -> Self {
        Self::new(tensor.element(), tensor.shape())
    }

    pub fn rank(&self) -> usize {
        self.shape.len()
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.element, self.shape)
    }
}

/// The shape two shapes broadcast to, as in numpy.
pub fn broadcast(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let size = |shape: &[usize], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(1, |at| shape[at]);
    (0..rank)
        .map(|axis| match (size(a, axis), size(b, axis)) {
            (x, y) if x == y => Some(x),
            (1, y) => Some(y),
            (x, 1) => Some(x),
            _ => None,
        })
        .collect()
}
