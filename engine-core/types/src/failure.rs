//! What went wrong, and whether it is worth trying again.

use serde::{Deserialize, Serialize};
use std::any::Any;

/// Decides whether an attempt is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailureClass {
    /// Lost agent, store unreachable: retried.
    Infrastructure,
    /// Device memory, disk: not retried; the message has the number.
    Resource,
    /// The model or the spec is at fault: never retried, remembered.
    Model,
    /// Only the measurement is repeated.
    Unstable,
}

/// What a host had too little of: no fault of the job, and another host may have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lack {
    Disk,
    Memory,
}

impl Lack {
    /// As the contract names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Memory => "memory",
        }
    }

    /// A lack that a newer release knows alone is none here.
    pub fn of_name(name: &str) -> Option<Self> {
        [Self::Disk, Self::Memory].into_iter().find(|lack| lack.name() == name)
    }
}

/// What a failure of class [`FailureClass::Model`] is about, where something follows from that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// This toolchain cannot build the model, which says nothing against the model: another one may.
    Unsupported,
    /// The engine's outputs are too far from the reference's, or nobody knows: who allows that may have it.
    Inaccurate,
}

impl Reason {
    /// As the contract names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unsupported => "unsupported",
            Self::Inaccurate => "inaccurate",
        }
    }

    /// A reason that a newer release knows alone is none here.
    pub fn of_name(name: &str) -> Option<Self> {
        [Self::Unsupported, Self::Inaccurate].into_iter().find(|reason| reason.name() == name)
    }
}

/// Why a backend could not do what was asked, with the class that decides about a retry.
#[derive(Debug, Clone, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct BackendError {
    pub class: FailureClass,
    /// What happened, to which node, file or device.
    pub message: String,
    /// What to do next; may be empty.
    pub hint: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
}

impl BackendError {
    pub fn new(class: FailureClass, message: impl Into<String>) -> Self {
        Self { class, message: message.into(), hint: String::new(), reason: None }
    }

    /// The model's fault, or its plan's.
    pub fn model(message: impl Into<String>) -> Self {
        Self::new(FailureClass::Model, message)
    }

    /// Of the host, not of the model: tried again.
    pub fn infrastructure(message: impl Into<String>) -> Self {
        Self::new(FailureClass::Infrastructure, message)
    }

    /// `what` panicked.
    pub fn bug(what: &str, panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
        Self::infrastructure(format!("{what} stopped at a bug: {text}"))
            .with_hint("the attempt's log has the place; please report it")
    }

    /// Work that stopped because its job was cancelled: says nothing of the model, so that no key is remembered for it.
    pub fn cancelled(message: impl Into<String>) -> Self {
        Self::infrastructure(message)
    }

    /// Nothing more can be done on the device.
    pub fn device_lost(reason: &str) -> Self {
        Self::infrastructure(format!("the device was lost while it was measured: {reason}"))
            .with_hint("the agent looks at the device again before anything else runs on it; see the host's kernel log")
    }

    pub fn because(mut self, reason: Reason) -> Self {
        self.reason = Some(reason);
        self
    }

    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }
}

/// Words an error with its causes.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(&format!(": {error}"));
        source = error.source();
    }
    text
}
