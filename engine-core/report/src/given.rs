//! Real inputs that somebody gave a measurement.

use planforge_types::{Digest, Port};
use serde::{Deserialize, Serialize};

/// Real inputs that outputs were compared on, in place of made ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenInputs {
    /// Of the file that holds them.
    pub digest: Digest,
    /// As the engine took them, every dimension fixed.
    pub arrays: Vec<Port>,
    /// The headline was timed on them, too.
    pub timed: bool,
}

impl GivenInputs {
    /// As people read it, a line.
    pub fn words(&self) -> String {
        let array = |port: &Port| format!("{} {} [{}]", port.name, port.element, port.sizes());
        let arrays = self.arrays.iter().map(array).collect::<Vec<_>>().join(", ");
        let timed = if self.timed { "compared and timed" } else { "compared" };
        format!("outputs were {timed} on given inputs sha256:{}: {arrays}", self.digest.short())
    }
}
