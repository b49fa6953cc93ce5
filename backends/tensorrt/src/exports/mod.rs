//! The JSON files that trtexec exports, of all generations.
//!
//! They are printed, not serialized: names are not escaped, `nan` and `inf` stand bare, and some versions print a
//! sentence into the middle. So they are read by a tolerant reader of our own, in one pass and with bounds on
//! everything: a damaged file gives what it still has and says what was left out, never a wrong number.

mod join;
mod layers;
mod lexer;
mod names;
mod output;
mod profile;
mod recognise;
mod times;
mod types;

pub use join::{Joined, JoinedLayer, join};
pub use layers::{Detail, IoTensor, Layer, LayerInfo, TensorInfo, Weights, read_layer_info};
pub use names::nodes_of_name;
pub use output::{OutputExport, OutputTensor, read_output};
pub use profile::{ProfileExport, ProfiledLayer, read_profile};
pub use recognise::{FileKind, recognise};
pub use times::{QueryTime, TimesExport, read_times};
pub use types::{element_bits, element_of};

use std::io;

/// Why an export could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("cannot read the export")]
    Io(#[from] io::Error),
    #[error("the {expected} export begins with neither a list nor an object")]
    NotJson { expected: &'static str },
    #[error("the {expected} export holds nothing of the kind")]
    Nothing { expected: &'static str },
    #[error("the {expected} export is nested deeper than {limit} levels")]
    TooDeep { expected: &'static str, limit: usize },
}

#[cfg(test)]
mod tests;
