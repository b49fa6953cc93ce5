//! `planforge time-candidates`: workers start it, send it programs and get what their steps take.

use planforge_agent::worker;
use planforge_cuda::tune::apart::{self, Order};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::io;

/// Answers one order. What it logs goes where its worker's log goes, and it ends with it: a device is for the next job
/// then.
pub fn serve() -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    worker::log_to_stderr();
    let out = worker::take_stdout()?;
    apart::serve(Order::read(&mut io::stdin().lock())?, out)
}
