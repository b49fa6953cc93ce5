//! Transfers over real sockets against a small server that keeps the protocol, through a proxy that cuts connections.

mod blobs;
mod connect;
mod server;
