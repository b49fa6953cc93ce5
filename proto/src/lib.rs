//! The wire contract `planforge.v1`: generated messages and services, their errors, and their shape as JSON.
//!
//! Invariant: this crate knows no domain type. The coordinator, the agent and the command line convert to and from it.

pub mod enrollment;
pub mod error;
pub mod protocol;
pub mod view;

pub use error::{ApiError, ErrorCode};

/// The schema as tools read it, encoded.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("../generated/planforge.v1.binpb");

/// Messages and services of `planforge.v1`, generated from the schema beside this crate by a test: `tests/tests/generated.rs`.
#[allow(missing_debug_implementations, clippy::all, clippy::allow_attributes_without_reason, reason = "generated code")]
pub mod v1 {
    include!("../generated/planforge.v1.rs");
}
