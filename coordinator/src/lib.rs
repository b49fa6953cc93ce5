//! Queue, scheduler, leases, store, blobs, API and status page.
//!
//! Invariant: the coordinator never builds or measures anything itself.

mod app;
pub mod farm;
mod http;
mod page;
pub mod server;
pub mod store;
pub mod tls;

pub use planforge_blobs as blobs;
use planforge_callers::{doors, rate, turns};
use planforge_certificates as certificates;
pub use planforge_scheduler as core;
pub use planforge_types::auth;
