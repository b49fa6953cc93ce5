//! The wire contract `planforge.v1`: generated messages and services, their errors, and their shape as JSON.
//!
//! Invariant: this crate knows no domain type. The coordinator, the agent and the command line convert to and from it.

pub mod error;
pub mod view;

pub use error::{ApiError, ErrorCode};

/// Messages and services of `planforge.v1`.
#[allow(missing_debug_implementations, clippy::all, clippy::allow_attributes_without_reason, reason = "generated code")]
pub mod v1 {
    tonic::include_proto!("planforge.v1");
}
