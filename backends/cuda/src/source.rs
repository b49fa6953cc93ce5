//! The text of a generated kernel.

use planforge_types::Digest;
use serde::{Deserialize, Serialize};

/// A kernel that is to be compiled: its text decides everything, so equal texts are one kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// What it does, for people; the entry point's name too.
    pub name: String,
    pub text: String,
}

/// What makes a kernel wait for those ahead of it; see the prelude.
pub(crate) const WAIT: &str = "AFTER_OTHERS;";

impl Source {
    /// Whether the kernel waits for those ahead of it by itself.
    pub(crate) fn waits(&self) -> bool {
        self.text.contains(WAIT)
    }
}

/// The name of a source in a plan.
pub fn source_digest(source: &Source) -> Digest {
    Digest::of(format!("{}\n{}", source.name, source.text).as_bytes())
}
