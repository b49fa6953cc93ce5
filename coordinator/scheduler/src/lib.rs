//! The scheduling core: which job runs where and when, decided without clocks, sockets or a database.
//!
//! Must not know: tokio, SQL or gRPC streams.

mod core;

pub use self::core::*;
