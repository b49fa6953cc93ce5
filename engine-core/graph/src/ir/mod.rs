//! The graph every backend compiles: typed values, nodes in topological order, constants.
//!
//! A graph comes out of `planforge-import` with the shapes of one optimization profile bound, so that every value
//! has a type and a shape. What ONNX passes as tensors but needs before anything runs (target shapes, axes, pads,
//! slice bounds) is resolved into attributes; spellings that mean the same arrive as one operator (`Gemm` is a
//! [`MatMul`], `Flatten` a [`Op::Reshape`], `GlobalAveragePool` a [`Op::Reduce`]).
//!
//! Invariant: nothing here knows of a device. Layouts, tiles, threads and kernels belong to backends.
//! Invariant: the order of `nodes` is topological, and iteration anywhere in here is deterministic.

mod check;
mod dump;
mod graph;
mod named_op;
mod op;
mod tail;
mod tensor;

pub use check::GraphError;
pub use graph::{DefUse, Dim, Graph, Node, Output, Value, ValueId};
pub use named_op::NamedOp;
pub use op::{
    Activation, ArgReduce, Attention, Binary, Compare, Conv, ConvTranspose, Epilogue, GeluForm, MatMul, Op, PadMode,
    Pool, PoolKind, Quantization, ReduceKind, Resize, ResizeCoordinates, ResizeMode, ResizeNearest, Unary,
};
pub use planforge_types::{ElementType, element_count};
pub use tail::{Computer, Remainder, Sized, Tail, TailError, TailOutput};
pub use tensor::{Element, Tensor, TensorError};
