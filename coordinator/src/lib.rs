//! Queue, scheduler, leases, store, blobs, API and status page.
//!
//! Invariant: the coordinator never builds or measures anything itself.

mod app;
pub mod auth;
pub use planforge_blobs as blobs;
mod certificates;
pub mod core;
mod doors;
pub mod farm;
mod http;
mod metrics;
mod page;
pub mod server;
pub mod store;
pub mod tls;
