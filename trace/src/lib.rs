//! What is said of a job on its way from the command line to a worker: spans, and log lines of JSON.
//!
//! | module | holds |
//! |---|---|
//! | [`span`] | one thing that took time, as a record |
//! | [`sink`] | where this process's spans go: nowhere, until somebody takes them |
//! | [`lines`] | log lines as JSON, with what the spans around say of job, attempt, agent and trace |
//! | `otlp` | with the feature `otlp`: spans as OpenTelemetry's protocol has them, handed over in batches by a thread of their own |
//!
//! Spans are records, made when what they tell of has ended, often by another process than the one that began it: a
//! coordinator ends a lease that its predecessor gave, an agent tells what it heard of a worker that has no network.
//! Their places in a trace are worked out from names ([`planforge_types::TraceContext::below`]), not remembered.
//!
//! Must not know: what a job is, how anything is sent.

#![warn(clippy::missing_errors_doc)]

pub mod lines;
#[cfg(feature = "otlp")]
pub mod otlp;
pub mod sink;
pub mod span;

pub use sink::{emit, is_recording};
pub use span::{Kind, Part, Span, fresh, unix_ns};
