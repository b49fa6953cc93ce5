//! Failures of the device, its driver and the host's disk.

use super::{Ended, FailureKind, Found, Messages, between, bytes_in, model::WANT_OF_MEMORY};

/// A scratch disk that is full, or that does not take what is written to it.
pub(super) fn disk(_: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    let message = messages.error(&[
        "no space left on device",
        "disk quota exceeded",
        "input/output error",
        "read-only file system",
        "stale file handle",
        "file too large",
        "not enough space on the disk",
    ])?;
    Some(Found::new(FailureKind::Disk, &message.text))
}

/// Neither TensorRT nor its plugins have code for this GPU: it is newer than they, or they have given it up.
pub(super) fn unknown_gpu(_: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    let message = messages.error(&[
        "target gpu sm",
        "unsupported sm",
        "sm version not supported",
        "no kernel image is available",
        "unsupported gpu architecture",
        "gpu architecture is not supported",
        "unsupported compute capability",
        "compute capability is not supported",
    ])?;
    Some(Found::new(FailureKind::UnknownGpu { capability: sm(&message.text) }, &message.text))
}

/// `Target GPU SM 120` is 12.0, `Unsupported SM: 0x809` is 8.9.
fn sm(text: &str) -> Option<String> {
    if let Some(rest) = text.split_once("Target GPU SM ").map(|(_, rest)| rest) {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).take(4).collect();
        let (major, minor) = digits.split_at_checked(digits.len().checked_sub(1)?)?;
        return (!major.is_empty()).then(|| format!("{major}.{minor}"));
    }
    let digits = between(text, "nsupported SM: 0x", ")").filter(|_| text.contains("nsupported SM: 0x"))?;
    let digits: String = digits.chars().take_while(char::is_ascii_hexdigit).take(4).collect();
    let code = u32::from_str_radix(&digits, 16).ok()?;
    Some(format!("{}.{}", code >> 8, code & 0xff))
}

/// The GPU lacks the hardware for a precision that was asked for or that the model has.
pub(super) fn precision(_: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    const WORDS: [&str; 12] =
        ["bf16", "bfloat16", "mxfp8", "nvfp4", "fp8", "fp4", "int4", "int8", "fp16", "tf32", "half", "e8m0"];
    const LACKS: [&str; 11] = [
        "require hardware with",
        "requires hardware with",
        "hardware does not support",
        "hardware without",
        "not supported on this platform",
        "not supported on the platform",
        "not supported on current platform",
        "not supported on this gpu",
        "not supported on this hardware",
        "platform does not support",
        "device does not support",
    ];
    let lacks = |text: &str| {
        LACKS.iter().any(|words| text.contains(words))
            || WORDS.iter().any(|word| {
                text.contains(&format!("{word} is not supported"))
                    || text.contains(&format!("{word} precision is not supported"))
            })
    };
    messages.errors.iter().find_map(|message| {
        let text = message.text.to_ascii_lowercase();
        let word = WORDS.iter().find(|word| text.contains(*word))?;
        lacks(&text).then(|| {
            let precision = if *word == "bfloat16" { "bf16" } else { word };
            Found::new(FailureKind::Precision { precision: Some(precision.to_owned()) }, &message.text)
        })
    })
}

/// A kernel that was chosen or tried could not be run.
pub(super) fn kernel(_: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    let message = messages.error(&[
        "error code 1: cask",
        "cask error",
        "cask convolution execution",
        "cask gemm execution",
        "final synchronize failed",
        "final event synchronize failed",
        "kernel launch failed",
        "failed to launch",
        "launch failed",
        "failed to enqueue",
        "enqueue failed",
        "enqueuev2: error",
        "enqueuev3: error",
        "runner.cpp::execute",
        "::execute::",
        "error code 7:",
        "cudnn error",
        "error code 1: cudnn",
        "cublas error",
        "error code 1: cublas",
    ])?;
    // The tool's own way out names no kernel.
    if super::is_way_out(&message.text) {
        return None;
    }
    Some(Found::new(FailureKind::Kernel, &message.text))
}

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
    ])?;
    Some(Found::new(FailureKind::Driver, &message.text))
}

/// Out of memory, unless some node merely lost tactics to it: that is told with the node.
pub(super) fn memory(_: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
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
        "error code 1: cuda",
    ])?;
    Some(Found::new(FailureKind::Cuda, &message.text))
}
