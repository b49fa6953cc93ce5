//! The graph every native backend compiles, and what its operators mean.
//!
//! | module | holds |
//! |---|---|
//! | [`ir`] | typed values, nodes in topological order, constants |
//! | [`shape`] | types and shapes, binding to a profile, how much a graph computes |
//! | [`infer`] | types and shapes of every operator's results |
//! | [`mod@reference`] | plain implementations of operators |
//! | [`named`] | operators known by name alone, each with shapes and implementation in one entry |
//! | [`interpreter`] | running operators and graphs with them |
//!
//! Must not know: ONNX, devices, plans.

#![warn(clippy::missing_errors_doc)]

pub mod infer;
pub mod interpreter;
pub mod ir;
pub mod named;
pub mod reference;
pub mod shape;
