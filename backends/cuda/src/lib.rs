//! Native engines for NVIDIA devices.
//!
//! | module | holds |
//! |---|---|
//! | [`view`] | how a tensor lies in device memory |
//! | [`program`] | an engine before it is on a device: buffers, steps, tactics |
//! | [`lower`] | from the optimised graph to a program |
//! | [`codegen`] | CUDA C++ of the kernels that are made for one step's exact shapes |
//! | [`source`] | the text of a generated kernel |
//! | [`signature`] | what tells steps apart for the tactic cache |
//! | [`schedule`] | which steps run side by side |
//! | [`runtime`] | a program on a device: memory, prepared steps, the captured graph |
//! | [`tune`], [`cache`] | candidates for every step, timed on the device, and what is remembered of it |
//! | [`early`] | which kernels let the ones behind them begin early |
//! | [`ahead`] | what can be compiled for a device that is elsewhere |
//! | [`build`] | from an ONNX file to the programs of an engine |
//! | [`mod@plan`] | the plan file: written, read and checked |
//! | [`engine`] | a loaded plan: a graph per profile, smaller batches, other shapes |
//! | [`compiler`], [`meter`] | the backend's two traits |
//! | [`mod@inspect`] | a plan in words and as JSON |
//! | [`operators`] | which operators of models have device code |
//! | [`probe`] | the device's own ceilings: copies, products, transfers, launches |
//! | [`versions`] | the libraries and the toolchain they make |
//!
//! Invariant: every address a step uses lies inside the arena, the weights, or an input's or output's own memory;
//! [`program::Program::check`] holds a plan to it before anything runs.
//!
//! Invariant: without an NVIDIA device no library is opened; [`compiler::CudaCompiler`] looks for them only when it is
//! asked about a device, or to prepare for one that is elsewhere.

pub mod ahead;
pub mod build;
pub mod cache;
pub mod codegen;
pub mod compiler;
pub mod early;
pub mod engine;
mod failure;
pub mod inspect;
pub mod lower;
pub mod meter;
pub mod operators;
pub mod plan;
pub mod probe;
pub mod program;
pub mod runtime;
pub mod schedule;
pub mod signature;
pub mod source;
pub mod tune;
pub mod versions;
pub mod view;

pub use compiler::CudaCompiler;
pub use inspect::{Inspection, inspect};
