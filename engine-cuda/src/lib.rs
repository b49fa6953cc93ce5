//! Native engines for NVIDIA devices.
//!
//! | module | holds |
//! |---|---|
//! | [`view`] | how a tensor lies in device memory |
//! | [`program`] | an engine before it is on a device: buffers, steps, tactics |
//! | [`lower`] | from the optimised graph to a program |
//! | [`codegen`] | CUDA C++ of the kernels that are made for one step's exact shapes |
//! | [`runtime`] | a program on a device: memory, prepared steps, the captured graph |
//! | [`tune`] | candidates for every step, timed on the device |
//!
//! Not here yet: the plan file, and the backend's two traits over all this; until then no command offers these engines.
//!
//! Invariant: every address a step uses lies inside the arena, the weights, or an input's or output's own memory;
//! [`program::Program::check`] holds a plan to it before anything runs.

pub mod codegen;
mod failure;
pub mod lower;
pub mod plan;
pub mod program;
pub mod runtime;
pub mod tune;
pub mod versions;
pub mod view;
