//! `planforge check-device GPU-UUID`: agents start it to see whether a GPU can still be used after a failure. It succeeds,
//! or its last line says why not.

use crate::printer;
use planforge_device::gpu::recovery_needed;
use planforge_kernels_cuda::{check, device::DeviceError};
use std::process::ExitCode;

/// Looks at the device. One that only lacks memory, or that cannot be asked without a driver library, is not broken; one
/// that its driver wants reset first is.
pub fn main(device: &str) -> ExitCode {
    // Asked first: using a device that wants a reset may never come back.
    let (words, code) = match recovery_needed(device) {
        Some(words) => (words.to_owned(), ExitCode::FAILURE),
        None => match check::check(device) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(
                error @ (DeviceError::OutOfMemory { .. } | DeviceError::Exhausted { .. } | DeviceError::Missing(_)),
            ) => (error.to_string(), ExitCode::SUCCESS),
            Err(error) => (error.to_string(), ExitCode::FAILURE),
        },
    };
    printer::bare(&words);
    code
}
