//! End-to-end, fault, simulation and load tests of the whole product.
//!
//! This crate's library is the harness: it starts the real `planforge` binary as coordinator, agent and command
//! line, each in folders of its own, kills it, and waits on conditions with a deadline. The tests are in `tests/`.
//!
//! | module | holds |
//! |---|---|
//! | [`process`] | one started program: its log, its death, its whole group |
//! | [`farm`] | a coordinator with agents, as processes |
//! | [`browser`] | headless Chromium: tabs, screens, what scripts say |
//! | [`boards`] | GPUs that are not there |
//! | [`fleet`] | hosts with such GPUs, and toolchains for them |
//! | [`machine`] | disks that a test fills, and clocks that it sets |
//! | [`models`] | model files the tests build |
//! | [`proxy`] | a way to a coordinator that can be cut |
//! | [`release`] | release packages, as tests make them |
//! | [`releases`] | a farm of the release before |
//! | [`scripted`] | an agent with such GPUs |
//! | [`standin`] | a program that behaves like `trtexec` |
//!
//! Invariant: nothing here reaches into the product's memory; what a test knows it learned as a user would.

pub mod boards;
pub mod browser;
pub mod farm;
pub mod fleet;
pub mod machine;
pub mod models;
pub mod process;
pub mod proxy;
pub mod release;
pub mod releases;
pub mod scripted;
pub mod standin;

use std::time::{Duration, Instant};

/// Longest a condition may take to become true. Generous: two shared cores, unoptimised glue code.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// Pause between two looks at a condition.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Waits until `condition` gives a value; panics with `what` and the last reason when the deadline passes.
pub fn eventually<T>(what: &str, mut condition: impl FnMut() -> Result<T, String>) -> T {
    let begin = Instant::now();
    loop {
        match condition() {
            Ok(value) => return value,
            Err(reason) if begin.elapsed() > DEADLINE => panic!("{what}: not within {DEADLINE:?}: {reason}"),
            Err(_) => pause(LOOK_EVERY),
        }
    }
}

/// The harness's only sleep: between two looks at a condition.
#[expect(clippy::disallowed_methods, reason = "the one place that polls a foreign process")]
pub fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
