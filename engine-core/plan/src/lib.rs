//! What plans of every native engine share: the file's sections, what it says of its model, and what it takes.

pub mod container;
pub mod lines;
pub mod operators;
pub mod signature;
mod summary;

pub use signature::{DimSignature, InputError, InputSignature};
pub use summary::{GraphSummary, PassSummary};

/// Name of the native backends in toolchains, of CPUs and of NVIDIA devices alike.
pub const BACKEND: &str = "native";
