//! What each TensorRT version can be asked: flags, options, command lines, and what a spec is refused for. No process is
//! run here, so that a coordinator can refuse at submission what no agent could do.
//!
//! | module | holds |
//! |---|---|
//! | [`version`] | TensorRT versions, as tools and files write them |
//! | [`flags`] | which version has which option |
//! | [`options`] | what a spec's backend options mean |
//! | [`command`] | command lines from specs |
//! | [`model`] | what command lines need to know of a model |
//! | [`hardware`] | what a GPU can do with a version, by its compute capability |
//! | `operators` | which operators a version's parser has |
//! | [`preflight`] | every command line of a job, and what is refused before any runs |
//! | [`refusal`] | why a spec cannot be built |
//!
//! Must not know: installations, processes, logs, how devices are found.

pub mod command;
pub mod flags;
pub mod hardware;
pub mod model;
mod operators;
pub mod options;
pub mod plan;
pub mod preflight;
pub mod refusal;
pub mod version;

pub use flags::Capabilities;
pub use refusal::Refusal;
pub use version::Version;

/// The backend's name in toolchains.
pub const BACKEND: &str = "tensorrt";
