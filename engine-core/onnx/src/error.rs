//! What can be wrong with a model file, and what to do about it.

use crate::walk::{Malformed, UnknownField};
use std::{io, path::PathBuf};

/// A file that could not be read as ONNX, or not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OnnxError {
    #[error("cannot open '{}': {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("'{}' is a {kind}, not a file", path.display())]
    NotAFile { path: PathBuf, kind: &'static str },
    #[error("'{}' is empty", path.display())]
    Empty { path: PathBuf },
    #[error("'{}' is one protobuf of {} MiB; protobufs end at 2 GiB", path.display(), size_bytes >> 20)]
    TooLarge { path: PathBuf, size_bytes: u64 },
    #[error("'{}' is not an ONNX model: it looks like {looks_like}", path.display())]
    NotOnnx { path: PathBuf, looks_like: &'static str },
    #[error("'{}' is not a valid ONNX model: {malformed}", path.display())]
    Malformed { path: PathBuf, malformed: Malformed },
    #[error("'{}' holds {count} field(s) that ONNX does not have: {}", path.display(), list_unknown(fields, *count))]
    UnknownFields {
        path: PathBuf,
        /// The first few.
        fields: Vec<UnknownField>,
        count: usize,
    },
    #[error("cannot decode '{}': {source}", path.display())]
    Decode { path: PathBuf, source: prost::DecodeError },
    #[error("'{}' holds no graph", path.display())]
    NoGraph { path: PathBuf },
    #[error("tensor '{tensor}': {problem}")]
    Tensor { tensor: String, problem: TensorError },
    #[error("cannot write '{}': {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// What is wrong with one tensor or with the file its data lies in.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    #[error("element type {data_type} is unknown")]
    UnknownType { data_type: i32 },
    #[error("dimension {dim} is negative")]
    NegativeDimension { dim: i64 },
    #[error("dimensions {dims:?} are more elements than memory has addresses")]
    TooManyElements { dims: Vec<i64> },
    #[error("{found} where its shape and type need {expected}")]
    WrongSize { found: String, expected: String },
    #[error("data is stored in {first} and in {second}")]
    TwoStorages { first: &'static str, second: &'static str },
    #[error("{what} is not supported")]
    Unsupported { what: &'static str },
    #[error("data location {location} is unknown")]
    UnknownLocation { location: i32 },
    #[error("external data has no location")]
    NoLocation,
    #[error("external data entry '{key}' is unknown")]
    UnknownExternalKey { key: String },
    #[error("external data entry '{key}' is given twice")]
    RepeatedExternalKey { key: String },
    #[error("external data {key} '{value}' is not a number of bytes")]
    BadExternalNumber { key: &'static str, value: String },
    #[error("external data file '{location}' lies outside the model's folder: {why}")]
    Escapes { location: String, why: &'static str },
    #[error("external data file '{location}' is missing from '{}'", folder.display())]
    Missing { location: String, folder: PathBuf },
    #[error("external data file '{location}' is a {kind}, not a file")]
    NotAFile { location: String, kind: &'static str },
    #[error("cannot read external data file '{location}': {source}")]
    Read { location: String, source: io::Error },
    #[error("needs bytes {offset}..{} of external data file '{location}', which has {size_bytes}", u128::from(*offset) + u128::from(*length))]
    OutOfFile { location: String, offset: u64, length: u64, size_bytes: u64 },
    #[error("model was read from memory, so external data file '{location}' cannot be found")]
    NoFolder { location: String },
}

impl OnnxError {
    pub(crate) fn tensor(name: &str, problem: TensorError) -> Self {
        let tensor = if name.is_empty() { "(unnamed)" } else { name };
        Self::Tensor { tensor: tensor.to_owned(), problem }
    }

    /// What to do next; empty when the message says it all.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::TooLarge { .. } => "save the model with external data (save_as_external_data), any size is good then",
            Self::Empty { .. } => "the export or the copy of this file did not finish: make it again",
            Self::NotOnnx { looks_like, .. } if looks_like.contains("LFS") => "fetch the real file: git lfs pull",
            Self::NotOnnx { looks_like, .. } if looks_like.contains("PyTorch") => {
                "export the model to ONNX first (torch.onnx.export)"
            }
            Self::NotOnnx { .. } => "give the path of an .onnx file",
            Self::Malformed { .. } => {
                "the file is damaged or cut short: compare its size and SHA-256 with the original"
            }
            Self::UnknownFields { .. } => "export again with a released version of the ONNX format (IR 14 or older)",
            Self::Tensor { problem: TensorError::Escapes { .. }, .. } => {
                "put the data file beside the model and name it by a relative path"
            }
            Self::Tensor { problem: TensorError::Missing { .. }, .. } => {
                "copy the model together with its external data files"
            }
            _ => "",
        }
    }
}

fn list_unknown(fields: &[UnknownField], count: usize) -> String {
    let mut text = fields.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if count > fields.len() {
        text.push_str(&format!(" and {} more", count - fields.len()));
    }
    text
}
