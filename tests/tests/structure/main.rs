//! The structure of the workspace, held to what ARCHITECTURE.md says of it: no circle between crates or between the
//! top-level modules of one, who may reach whom, how large a crate may be, and that what the pages name is there.

#![expect(clippy::print_stdout, reason = "what was counted is shown: in CI, and with --no-capture")]

mod crates;
mod documents;
mod messages;
mod modules;
