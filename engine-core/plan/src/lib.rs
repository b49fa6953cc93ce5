//! What plans of every native engine share: the file's sections, what it says of its model, and what it takes.

pub mod container;
pub mod lines;
mod summary;
pub mod takes;

pub use summary::{GraphSummary, PassSummary};
pub use takes::{InputError, TakenDim, TakenInput};

/// Name of the native backends in toolchains, of CPUs and of NVIDIA devices alike.
pub const BACKEND: &str = "native";
