//! How agents and the command line reach a coordinator.
//!
//! | module | holds |
//! |---|---|
//! | [`endpoint`] | where a coordinator is: `http(s)://host:port` or `unix:/path` |
//! | [`connect`] | the connector under gRPC: TCP, TLS and Unix sockets |
//! | [`tls`] | whom this side believes, and the certificate that it shows where it has one |
//! | [`client`] | the gRPC clients with credentials, and connection errors that say what to do |
//! | [`blobs`] | verified, resumable blob transfer over HTTP/1.1 |
//! | [`web`] | files that are named by address and SHA-256 |
//! | [`post`] | documents for servers that are no coordinators |
//! | [`backoff`] | jittered waiting between retries |
//!
//! Invariant: nothing here knows what a job is.

#![warn(clippy::missing_errors_doc)]

pub mod backoff;
pub mod blobs;
pub mod blocking;
pub mod client;
pub mod connect;
pub mod endpoint;
mod failure;
pub mod post;
pub mod tls;
mod token;
pub mod web;

pub use blobs::{BlobError, Blobs};
pub use client::{Client, FarmService, FleetService};
pub use endpoint::{Endpoint, EndpointError, EndpointOptions};
pub use tls::Identity;
pub use token::Token;
