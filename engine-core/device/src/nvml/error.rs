//! What a call of the library failed of.

use std::ffi::c_uint;

pub(super) const SUCCESS: c_uint = 0;
pub(super) const INVALID_ARGUMENT: c_uint = 2;
const NOT_SUPPORTED: c_uint = 3;
const NOT_FOUND: c_uint = 6;
pub(super) const INSUFFICIENT_SIZE: c_uint = 7;
const FUNCTION_NOT_FOUND: c_uint = 13;

/// `nvmlReturn_t` in words.
const NAMES: [(c_uint, &str); 30] = [
    (1, "the library was not initialised"),
    (INVALID_ARGUMENT, "invalid argument"),
    (NOT_SUPPORTED, "not supported"),
    (4, "no permission"),
    (5, "already initialised"),
    (NOT_FOUND, "not found"),
    (INSUFFICIENT_SIZE, "insufficient size"),
    (8, "external power cables are missing"),
    (9, "the driver is not loaded"),
    (10, "timed out"),
    (11, "the kernel found a problem with interrupts"),
    (12, "a library was not found"),
    (FUNCTION_NOT_FOUND, "the driver does not have this function"),
    (14, "the device's infoROM is corrupted"),
    (15, "the GPU is lost"),
    (16, "the GPU has to be reset"),
    (17, "the operating system blocks the device"),
    (18, "driver and library differ in version"),
    (19, "the GPU is in use"),
    (20, "insufficient memory"),
    (21, "no data"),
    (22, "not possible with ECC on"),
    (23, "insufficient resources"),
    (24, "frequency not supported"),
    (25, "the version of an argument is not known"),
    (26, "deprecated"),
    (27, "not ready"),
    (28, "no GPU was found"),
    (29, "invalid state"),
    (30, "this kind of reset is not supported"),
];

/// Why the library, or one of its functions, gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvmlError {
    #[error("{library} cannot be loaded: {reason}")]
    Library { library: String, reason: String },

    /// The driver's library has no such function.
    #[error("{function}: not supported, the driver's library does not have it")]
    Missing { function: &'static str },

    /// `code` is an `nvmlReturn_t`.
    #[error("{function}: {}", name(*.code))]
    Call { function: &'static str, code: c_uint },

    #[error("{function} answered with what is no text")]
    Text { function: &'static str },

    #[error("{function} answered with the unknown value {value}")]
    Value { function: &'static str, value: c_uint },
}

impl NvmlError {
    /// What the return code of `function` says.
    pub(super) fn of(function: &'static str, code: c_uint) -> Result<(), Self> {
        if code == SUCCESS { Ok(()) } else { Err(Self::Call { function, code }) }
    }

    /// Neither now nor later will this driver answer that for this device.
    pub fn is_not_supported(&self) -> bool {
        matches!(self, Self::Missing { .. } | Self::Call { code: NOT_SUPPORTED | FUNCTION_NOT_FOUND, .. })
    }

    /// What was asked for is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Call { code: NOT_FOUND, .. })
    }

    /// The buffer did not hold the answer.
    pub(super) fn is_insufficient_size(&self) -> bool {
        matches!(self, Self::Call { code: INSUFFICIENT_SIZE, .. })
    }
}

fn name(code: c_uint) -> String {
    match NAMES.iter().find(|(known, _)| *known == code) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("unknown error {code}"),
    }
}
