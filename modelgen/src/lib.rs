//! Writes real-architecture ONNX models with seeded weights, so that anyone can try the farm without hunting for one.
//!
//! | module | holds |
//! |---|---|
//! | [`resnet`] | ResNet-50, version 1.5 |
//! | [`bert`] | BERT-base, sequence 128 |
//! | [`builder`] | nodes, values and weights of a graph under construction |
//! | [`weights`] | the seeded numbers |
//!
//! Weights are scaled so that activations neither vanish nor explode: the output of every convolution, linear layer,
//! normalisation and residual block has a standard deviation between 0.1 and 10 for inputs of unit variance. Wrong
//! arithmetic then shows in the outputs instead of drowning.
//!
//! Invariant: same name and options give the same bytes on every machine (integer random numbers, no `exp` or `ln`).

pub mod bert;
pub mod builder;
pub mod resnet;
pub mod weights;

use builder::Graph;
use planforge_onnx::{OnnxError, write::Storage};
use std::path::Path;

/// A model that can be generated.
#[derive(Clone, Copy, Debug)]
pub struct ModelInfo {
    /// What [`generate`] takes.
    pub name: &'static str,
    /// One line for people.
    pub description: &'static str,
    /// Trained numbers; running statistics and constants are not counted.
    pub parameters: u64,
    source: Source,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Graph(fn() -> Graph),
}

/// Every model, smallest first.
pub const MODELS: &[ModelInfo] = &[
    ModelInfo {
        name: "resnet50",
        description: "ResNet-50 v1.5, image classification, input 1x3x224x224, seeded weights",
        parameters: 25_557_032,
        source: Source::Graph(resnet::resnet50),
    },
    ModelInfo {
        name: "bert-base",
        description: "BERT-base, text encoder, sequence 128, batch 1, seeded weights",
        parameters: 109_482_240,
        source: Source::Graph(bert::bert_base),
    },
];

/// How a model is generated.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Another seed gives other weights of the same distribution. Trained models ignore it.
    pub seed: u64,
    /// Whether the weights go into the ONNX file or into a file beside it.
    pub storage: Storage,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: 0, storage: Storage::Inline }
    }
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generated {
    /// All files together.
    pub size_bytes: u64,
    pub nodes: usize,
    pub parameters: u64,
}

/// Why a model could not be generated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    #[error("there is no test model '{name}'; there are: {}", MODELS.iter().map(|model| model.name).collect::<Vec<_>>().join(", "))]
    Unknown { name: String },
    #[error(transparent)]
    Onnx(#[from] OnnxError),
}

/// The model of that name.
pub fn find(name: &str) -> Result<&'static ModelInfo, GenerateError> {
    MODELS.iter().find(|model| model.name == name).ok_or_else(|| GenerateError::Unknown { name: name.to_owned() })
}

/// Writes the model `name` to `path`. The file appears whole or not at all.
pub fn generate(name: &str, options: &Options, path: &Path) -> Result<Generated, GenerateError> {
    match find(name)?.source {
        Source::Graph(build) => Ok(build().write(options, path)?),
    }
}
