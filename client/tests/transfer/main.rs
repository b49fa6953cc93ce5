//! Transfers over real sockets against a small server that keeps the protocol, through a proxy that cuts connections.

mod blobs;
mod connect;
#[expect(dead_code, reason = "shared with the agent's tests, which use the rest")]
mod server;
