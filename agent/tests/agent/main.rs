//! An agent against a small coordinator in this process, with shell scripts as workers.

mod attempts;
mod devices;
mod farm;
mod files;
#[path = "../../../client/tests/transfer/server.rs"]
#[expect(dead_code, reason = "shared with the client's tests, which use all of it")]
mod server;
mod sessions;
