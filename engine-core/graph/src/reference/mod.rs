//! Plain reference implementations of every operator: obviously right first, quick enough to be used second.
//!
//! They are the oracle of the tests, fold constants, and verify engines where no other runtime is present. Every
//! float is computed in f64 and rounded once to the type of the result; sums of products, means and softmax
//! accumulate in f64. Integers are computed exactly in i128 and wrap to their type.
//!
//! Invariant: nothing here is tuned for a device, and nothing depends on the number of threads.

pub(crate) mod attention;
pub(crate) mod contraction;
pub(crate) mod elementwise;
pub(crate) mod gather;
pub(crate) mod movement;
pub(crate) mod normalize;
pub(crate) mod numbers;
pub(crate) mod pool;
pub(crate) mod quantize;
pub(crate) mod reduce;
pub mod resize;
pub(crate) mod walk;

pub use crate::ir::Tensor;
pub use movement::padded_position;
pub use quantize::steps;
pub use walk::around;

use crate::ir::{ElementType, TailError, TensorError};

/// Why an operator or a graph could not be executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    #[error("{op} does not take {element}")]
    Element { op: &'static str, element: ElementType },
    #[error("{op} lacks input {position}")]
    MissingInput { op: String, position: usize },
    #[error("there is no operator {0} in the table of this version")]
    Unknown(String),
    #[error("{op} cannot be computed: {reason}")]
    Impossible { op: &'static str, reason: String },
    #[error("integer division by zero")]
    DivisionByZero,
    #[error("{op}: index {index} is outside of an axis of {size}")]
    Index { op: &'static str, index: i64, size: usize },
    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error("input {name} is not given")]
    InputNotGiven { name: String },
    #[error("input {name} has no place in this graph; it takes {expected}")]
    InputUnknown { name: String, expected: String },
    #[error("input {name} is {actual}, but the graph takes {expected}")]
    InputDiffers { name: String, actual: String, expected: String },
    #[error("the shape of {name} is not bound")]
    Unbound { name: String },
    #[error("the execution was stopped")]
    Stopped,
    #[error(transparent)]
    Tail(#[from] TailError),
    #[error("node {node}: {source}")]
    Node { node: String, source: Box<OpError> },
}

/// The inputs of one operator by position.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    pub(crate) op: &'a str,
    pub(crate) tensors: &'a [Option<&'a Tensor>],
}

impl<'a> Inputs<'a> {
    pub(crate) fn get(&self, position: usize) -> Result<&'a Tensor, OpError> {
        self.optional(position).ok_or_else(|| OpError::MissingInput { op: self.op.to_owned(), position })
    }

    pub(crate) fn optional(&self, position: usize) -> Option<&'a Tensor> {
        self.tensors.get(position).copied().flatten()
    }

    pub(crate) fn all(&self) -> Result<Vec<&'a Tensor>, OpError> {
        (0..self.tensors.len()).map(|position| self.get(position)).collect()
    }
}
