//! ONNX Runtime as a backend: full operator coverage on CPUs and, where its provider is there, on NVIDIA GPUs.
//!
//! | module | holds |
//! |---|---|
//! | [`library`] | where libonnxruntime is and what it can do, told without loading it |
//! | [`compiler`] | the backend `onnxruntime`: a session whose optimised model is the plan |
//! | [`plan`] | the plan file: an ONNX model that says in its metadata what it was built as |
//! | [`meter`] | a loaded plan, bound, run and timed |
//! | [`oracle`] | unoptimised sessions that say what a model's outputs are |
//! | `session` | the loaded library and the sessions made with it |
//! | `profile` | the library's profile of a run as times per node |
//! | `settings` | what a spec asks of a session, and what of it is refused |
//! | `tensors` | tensors in and out of the library |
//! | `elf`, `python` | how the library is found |
//!
//! Invariant: the library is loaded only to build, load or verify (in a worker process, or a command that runs a
//! plan), never to find out what this host offers.

pub mod compiler;
mod elf;
pub mod library;
pub mod meter;
pub mod oracle;
pub mod plan;
mod profile;
mod python;
mod session;
mod settings;
mod tensors;

pub use compiler::OnnxRuntimeCompiler;
pub use library::{LIBRARY_VARIABLE, Library, Search};

/// Name of the backend.
pub const BACKEND: &str = "onnxruntime";
