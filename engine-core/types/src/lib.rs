//! What every crate of the farm calls things: digests, devices, toolchains, specs, keys, tensors, failures, work orders.
//!
//! | module | holds |
//! |---|---|
//! | [`digest`] | SHA-256 as the name of bytes |
//! | [`sku`], [`toolchain`], [`spec`], [`key`] | what an engine is built for, with and as, and the key made of them |
//! | [`resolve`] | from what a request asks to what exactly goes into the key |
//! | [`fingerprint`] | what exactly a device is, as data |
//! | [`host`] | the machine around a measurement, as data |
//! | [`requirement`] | what a job asks of its device beside the kind, and what a device has of that |
//! | [`telemetry`] | a device's state at one moment, as data |
//! | [`tensor`] | tensors at an engine's edge |
//! | [`failure`] | what went wrong, with the class that decides about a retry |
//! | [`preparation`] | what a model is made into before it is built, and from what it was made |
//! | [`order`] | what an agent tells a worker process and hears from it |
//! | [`auth`] | what a token allows, and who stands behind a call |
//! | [`trace`] | which trace something belongs to |
//! | [`shown`] | words from outside as people see them |
//! | [`durable`] | files that are whole or not there |
//! | [`private_file`] | files with secrets, and whether anybody else may read them |
//! | [`open_files`] | how many files this process may have open |
//! | [`host_lock`] | lock files on which every process of a host meets |
//!
//! Must not know: how anything of this is found, built, measured or stored.

#![warn(clippy::missing_errors_doc)]

pub mod auth;
pub mod digest;
pub mod durable;
pub mod failure;
pub mod fingerprint;
pub mod host;
pub mod host_lock;
pub mod key;
pub mod open_files;
pub mod order;
pub mod preparation;
pub mod private_file;
pub mod requirement;
pub mod resolve;
pub mod shown;
pub mod sku;
pub mod spec;
mod spec_words;
pub mod telemetry;
pub mod tensor;
pub mod toolchain;
pub mod trace;

pub use digest::{Digest, DigestWriter};
pub use failure::{BackendError, FailureClass, Lack, Reason};
pub use key::EngineKey;
pub use requirement::{Attributes, Label, Requirement, RequirementError};
pub use resolve::{ResolveError, resolve_spec, resolve_toolchain};
pub use sku::Sku;
pub use spec::{BuildSpec, DimRange, OptimizationLevel, OptimizationProfile, Precision, SpecError};
pub use tensor::{ElementType, HostTensor, NamedTensors, Port, element_count};
pub use toolchain::{Toolchain, ToolchainConstraint};
pub use trace::TraceContext;

#[cfg(test)]
mod key_tests;
