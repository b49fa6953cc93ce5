//! Queue, scheduler, leases, store, blobs, API and status page.
//!
//! Invariant: the coordinator never builds or measures anything itself.

pub mod auth;
pub mod blobs;
mod durable;
pub mod farm;
pub mod store;
