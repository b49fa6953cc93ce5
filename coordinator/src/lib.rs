//! Queue, scheduler, leases, store, blobs, API and status page.
//!
//! Invariant: the coordinator never builds or measures anything itself.

mod app;
pub mod core;
pub mod farm;
mod http;
mod metrics;
mod page;
pub mod server;
pub mod store;
pub mod tls;

pub use planforge_blobs as blobs;
pub use planforge_callers::auth;
use planforge_callers::{doors, rate, turns};
use planforge_certificates as certificates;
