//! What every command gets: a way to say things, the settings, and a runtime where one is needed.

use crate::{failure::Failure, printer::Printer, settings::Settings};
use std::{future::Future, pin::Pin};

/// What every command gets.
#[derive(Debug)]
pub struct Context<'a> {
    pub printer: &'a Printer,
    pub settings: Settings,
    /// How often `-v` was given.
    pub verbose: u8,
}

impl Context<'_> {
    /// Runs a command's asynchronous part. Commands that need no network never come here.
    pub fn block_on<T>(&self, command: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|e| {
            Failure::new(planforge_proto::ErrorCode::Internal, format!("cannot start the runtime: {e}"))
        })?;
        // On the heap, so that the runtime's own code is compiled once and not once for each command.
        let command: Pin<Box<dyn Future<Output = _> + '_>> = Box::pin(command);
        let result = runtime.block_on(command);
        // What still runs on blocking threads (a read of a closed terminal) must not keep the process.
        runtime.shutdown_background();
        result
    }
}
