//! Failures of the device and its driver.

use super::{Ended, FailureKind, Found, Messages, bytes_in, model::WANT_OF_MEMORY};

pub(super) fn driver(_: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    let message = messages.error(&[
        "cuda driver version is insufficient",
        "no cuda-capable device",
        "cannot find any available devices",
        "cannot find device id",
        "invalid device ordinal",
        "driver/library version mismatch",
        "system not yet initialized",
        "cuda initialization failure",
        "forward compatibility was attempted",
        "unsupported sm",
        "no kernel image is available",
    ])?;
    Some(Found::new(FailureKind::Driver, &message.text))
}

/// Out of memory, unless some node merely lost tactics to it: that is told with the node.
pub(super) fn memory(_: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    if let Some(message) = messages.error(&["no space left on device", "disk quota exceeded"]) {
        return Some(Found::new(FailureKind::Disk, &message.text));
    }
    if messages.error(&["could not find any implementation for node"]).is_some() {
        return None;
    }
    if let Some(message) = messages.error(&["std::bad_alloc", "amount of cpu memory", "cannot allocate memory"]) {
        let requested_bytes = bytes_in(&message.text);
        return Some(Found::new(FailureKind::HostMemory { requested_bytes }, &message.text));
    }
    let message = messages.error(WANT_OF_MEMORY)?;
    // The number stands in another message than the error.
    let told = messages.warning(&["could not be allocated", "insufficient memory"]);
    let requested_bytes = bytes_in(&message.text).or_else(|| bytes_in(&told?.text));
    Some(Found::new(FailureKind::DeviceMemory { requested_bytes }, &message.text))
}

pub(super) fn cuda(_: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    let message = messages.error(&[
        "cuda failure",
        "cuda runtime",
        "cuda error",
        "cuda driver",
        "cudaerror",
        "illegal memory access",
        "unspecified launch failure",
        "uncorrectable ecc",
        "cudnn error",
        "cublas error",
        "cask error",
    ])?;
    Some(Found::new(FailureKind::Cuda, &message.text))
}
