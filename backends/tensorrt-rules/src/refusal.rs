//! What cannot be built, said before anything runs.

use crate::{flags, version::Version};
use planforge_types::{BackendError, FailureClass};

/// Why a spec, a model and a TensorRT version do not go together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Other versions can do it.
    #[error("TensorRT {version} does not support {what}; {able}")]
    Version {
        what: String,
        version: Version,
        /// `8.6.0 to 10.16 do`.
        able: String,
        hint: String,
    },
    /// A version that nothing is known of.
    #[error("TensorRT {version} is {problem}")]
    Toolchain { version: Version, problem: String, hint: String },
    /// An option that is unknown, or whose value says nothing.
    #[error("option {name}: {problem}")]
    Option { name: String, problem: String, hint: String },
    /// Parts of one spec exclude each other.
    #[error("{what}")]
    Spec { what: String, hint: String },
    /// The model is not what this spec and version need.
    #[error("{what}")]
    Model { what: String, hint: String },
    /// A file name that the option parser would take apart.
    #[error("the path {path} cannot be given to trtexec: {problem}")]
    Path { path: String, problem: &'static str },
}

impl Refusal {
    /// `what` needs `flag`, which `version` lacks.
    pub fn flag(what: impl Into<String>, version: Version, flag: &str) -> Self {
        let found = flags::find(flag);
        let able = found.map_or_else(|| "no version does".to_owned(), |f| format!("{} do", f.versions()));
        let hint = match found.map(|f| f.instead).filter(|instead| !instead.is_empty()) {
            Some(instead) => format!("ask for a toolchain that has it, or use {instead}"),
            None => "ask for a toolchain that has it, or leave it out of the spec".to_owned(),
        };
        Self::Version { what: what.into(), version, able, hint }
    }

    /// `what` is only in the versions that `able` names.
    pub fn version(what: impl Into<String>, version: Version, able: impl Into<String>) -> Self {
        let hint = "ask for a toolchain that has it, or leave it out of the spec".to_owned();
        Self::Version { what: what.into(), version, able: able.into(), hint }
    }

    pub fn spec(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Spec { what: what.into(), hint: hint.into() }
    }

    pub fn model(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Model { what: what.into(), hint: hint.into() }
    }

    pub fn option(name: &str, problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Option { name: name.into(), problem: problem.into(), hint: hint.into() }
    }

    /// What to do next.
    pub fn hint(&self) -> &str {
        match self {
            Self::Version { hint, .. }
            | Self::Toolchain { hint, .. }
            | Self::Option { hint, .. }
            | Self::Spec { hint, .. }
            | Self::Model { hint, .. } => hint,
            Self::Path { .. } => "use a folder whose name has none of these characters",
        }
    }
}

impl From<Refusal> for BackendError {
    fn from(refusal: Refusal) -> Self {
        Self::new(FailureClass::Model, refusal.to_string()).with_hint(refusal.hint())
    }
}
