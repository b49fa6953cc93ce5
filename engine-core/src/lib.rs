//! What an engine is and how one is made.
//!
//! | module | holds |
//! |---|---|
//! | [`backend`] | the two traits every backend implements: `Compiler` and `Meter` |
//! | [`import`] | ONNX models to graphs, strictly |
//! | [`ir`] | the graph every native backend compiles |
//! | [`native`] | the native compiler for CPUs and its engines |
//! | [`measure`] | the benchmark as an experiment with a record |
//! | [`verify`] | are a plan's outputs right? |
//! | [`explain`] | what the native compiler would do with a model, and what it cannot |
//! | [`shape`] | types and shapes of every operator's results; binding to a profile |
//! | [`passes`] | rewrites that make a graph cheaper without changing what it computes |
//! | [`ops`] | plain reference implementations of every operator |
//! | [`worker`] | what an agent tells a worker process and hears from it |
//!
//! Invariant: nothing here opens a network connection or a database.

pub mod backend;
pub mod explain;
#[doc(hidden)]
pub mod fuzzing;
pub mod import;
pub mod infer;
pub mod interpreter;
pub mod ir;
pub mod measure;
pub mod named;
pub mod native;
pub mod passes;
pub mod plan;
pub mod reference;
pub mod shape;
pub mod verify;
pub mod worker;
