//! Writes real-architecture ONNX models with seeded weights, so that anyone can try the farm without hunting for one.
//!
//! | module | holds |
//! |---|---|
//! | [`resnet`], [`mobilenet`], [`efficientnet`] | image classifiers: ResNet-50 v1.5, MobileNetV3-Large, EfficientNet-B0 |
//! | [`yolo`] | a one-shot detector of the CSP/PAN family, 640x640 |
//! | [`bert`], [`vit`] | transformers: BERT-base of sequence 128, ViT-B/16 |
//! | [`decoder`] | one step of a decoder of text with its caches: GPT-2, and of the size of Llama 3.2 1B |
//! | [`cnn`], [`transformer`] | what those share |
//! | [`builder`] | nodes, values and weights of a graph under construction |
//! | [`weights`] | the seeded numbers |
//! | `trigonometry` | cosines and sines whose bits are the same everywhere |
//! | `file` | a finished graph as a file |
//! | `precision` | half-precision and int8 files out of single-precision graphs |
//! | `outliers` | channels of the trained model made large, without a change of what it computes |
//!
//! Weights are scaled so that activations neither vanish nor explode: the output of every convolution, linear layer,
//! normalisation and residual block has a standard deviation between 0.1 and 10 for inputs of unit variance. Wrong
//! arithmetic then shows in the outputs instead of drowning.
//!
//! `digits` is the one that was trained: its file is embedded as it lies in `examples/`.
//!
//! Invariant: same name and options give the same bytes on every machine (integer random numbers, no `exp` or `ln`).

pub mod bert;
pub mod builder;
pub mod cnn;
pub mod decoder;
pub mod efficientnet;
mod file;
pub mod mobilenet;
mod mobilenet_v2;
mod outliers;
mod precision;
pub mod resnet;
pub mod transformer;
mod trigonometry;
pub mod vit;
pub mod weights;
pub mod yolo;

use builder::Graph;
use bytes::Bytes;
use planforge_onnx::{
    Model, OnnxError,
    proto::{TensorProto, type_proto},
    write::{Storage, write_model},
};
use prost::Message as _;
use std::path::Path;

/// The trained example model, see `examples/digits/`.
const DIGITS: &[u8] = include_bytes!("../../examples/digits/digits.onnx");

/// A model that can be generated.
#[derive(Clone, Copy, Debug)]
pub struct ModelInfo {
    /// What [`generate`] takes.
    pub name: &'static str,
    /// One line for people.
    pub description: &'static str,
    /// Trained numbers; running statistics and constants are not counted.
    pub parameters: u64,
    /// Whether it reads text, so that the number of tokens can be left open.
    pub text: bool,
    source: Source,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Graph(fn(&Style) -> Graph),
    /// One step of a decoder, always of a batch of 1.
    Step(fn(&Style) -> Graph),
    /// A whole ONNX file.
    Trained(&'static [u8]),
    /// The same with planted outlier channels.
    Outliers(&'static [u8]),
}

/// Every model, smallest first.
pub const MODELS: &[ModelInfo] = &[
    ModelInfo {
        name: "digits",
        description: "small CNN trained on scikit-learn's digits, input 1x1x8x8, real weights",
        parameters: 38_282,
        text: false,
        source: Source::Trained(DIGITS),
    },
    ModelInfo {
        name: "digits-outliers",
        description: "the same function with a few channels 32 times as large as the others, hard to quantise",
        parameters: 38_282,
        text: false,
        source: Source::Outliers(DIGITS),
    },
    ModelInfo {
        name: "efficientnet-b0",
        description: "EfficientNet-B0, image classification, input 1x3x224x224, seeded weights",
        parameters: 5_288_548,
        text: false,
        source: Source::Graph(efficientnet::efficientnet_b0),
    },
    ModelInfo {
        name: "mobilenet-v2",
        description: "MobileNetV2, image classification, input 1x3x224x224, seeded weights",
        parameters: 3_504_872,
        text: false,
        source: Source::Graph(mobilenet_v2::mobilenet_v2),
    },
    ModelInfo {
        name: "mobilenet-v3-large",
        description: "MobileNetV3-Large, image classification, input 1x3x224x224, seeded weights",
        parameters: 5_483_032,
        text: false,
        source: Source::Graph(mobilenet::mobilenet_v3_large),
    },
    ModelInfo {
        name: "yolo-s",
        description: "one-shot detector (CSP blocks, SPPF, PAN neck, three heads), input 1x3x640x640, seeded weights",
        parameters: 7_235_389,
        text: false,
        source: Source::Graph(yolo::yolo_s),
    },
    ModelInfo {
        name: "resnet50",
        description: "ResNet-50 v1.5, image classification, input 1x3x224x224, seeded weights",
        parameters: 25_557_032,
        text: false,
        source: Source::Graph(resnet::resnet50),
    },
    ModelInfo {
        name: "vit-b-16",
        description: "ViT-B/16, image classification, input 1x3x224x224, seeded weights",
        parameters: 86_567_656,
        text: false,
        source: Source::Graph(vit::vit_b_16),
    },
    ModelInfo {
        name: "bert-base",
        description: "BERT-base, text encoder, sequence 128, batch 1, seeded weights",
        parameters: 109_482_240,
        text: true,
        source: Source::Graph(bert::bert_base),
    },
];

/// Decoders of text, one token at a time: apart from the others because their inputs and outputs are not rows of a batch,
/// and because of their size.
pub const DECODERS: &[ModelInfo] = &[
    ModelInfo {
        name: "gpt2-tiny-step",
        description: "one step of a decoder like GPT-2 that takes no time, cache of 48 places, seeded weights",
        parameters: 74_432,
        text: false,
        source: Source::Step(decoder::gpt2_tiny),
    },
    ModelInfo {
        name: "llama-tiny-step",
        description: "one step of a decoder like Llama that takes no time, cache of 48 places, seeded weights",
        parameters: 586_560,
        text: false,
        source: Source::Step(decoder::llama_tiny),
    },
    ModelInfo {
        name: "gpt2-tiny-past",
        description: "one step of a decoder like GPT-2 that takes no time, as transformers are exported: caches that grow, seeded weights",
        parameters: 74_432,
        text: false,
        source: Source::Step(decoder::gpt2_tiny_past),
    },
    ModelInfo {
        name: "llama-tiny-past",
        description: "one step of a decoder like Llama that takes no time, as transformers are exported: caches that grow, seeded weights",
        parameters: 586_560,
        text: false,
        source: Source::Step(decoder::llama_tiny_past),
    },
    ModelInfo {
        name: "gpt2-step",
        description: "one step of GPT-2 small with a cache of 1024 places, seeded weights",
        parameters: 124_439_808,
        text: false,
        source: Source::Step(decoder::gpt2),
    },
    ModelInfo {
        name: "gpt2-past",
        description: "one step of GPT-2 small as transformers are exported: caches that grow, seeded weights",
        parameters: 124_439_808,
        text: false,
        source: Source::Step(decoder::gpt2_past),
    },
    ModelInfo {
        name: "llama-1b-step",
        description: "one step of a decoder of the size of Llama 3.2 1B with a cache of 2048 places, seeded weights",
        parameters: 1_235_814_400,
        text: false,
        source: Source::Step(decoder::llama_1b),
    },
    ModelInfo {
        name: "llama-1b-past",
        description: "one step of a decoder of the size of Llama 3.2 1B as transformers are exported: caches that grow, seeded weights",
        parameters: 1_235_814_400,
        text: false,
        source: Source::Step(decoder::llama_1b_past),
    },
];

/// The size of the first dimension of all inputs and outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batch {
    Fixed(u32),
    /// Left open, as `batch`.
    Dynamic,
}

/// How layer normalisation is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerNormForm {
    /// As the operator that opset 17 brought.
    Operator,
    /// As means, differences and a root.
    Primitives,
}

/// What a graph may be asked to look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    pub batch: Batch,
    pub layer_norm: LayerNormForm,
    /// Leave the number of tokens open, as `sequence`; for models that read text.
    pub open_sequence: bool,
}

impl Default for Style {
    fn default() -> Self {
        Self { batch: Batch::Fixed(1), layer_norm: LayerNormForm::Operator, open_sequence: false }
    }
}

/// What a file stores its weights in and computes with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    #[default]
    Fp32,
    /// Half precision inside, single precision at inputs and outputs.
    Fp16,
    /// `QuantizeLinear` and `DequantizeLinear` around products and convolutions.
    Int8,
}

/// How a model is generated.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Another seed gives other weights of the same distribution. Trained models ignore it.
    pub seed: u64,
    /// Whether the weights go into the ONNX file or into a file beside it.
    pub storage: Storage,
    pub style: Style,
    pub precision: Precision,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: 0, storage: Storage::Inline, style: Style::default(), precision: Precision::Fp32 }
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
    #[error("there is no test model '{name}'; there are: {}", MODELS.iter().chain(DECODERS).map(|model| model.name).collect::<Vec<_>>().join(", "))]
    Unknown { name: String },
    #[error("{name} is written as it was trained: only its batch can be chosen")]
    Trained { name: String },
    #[error("{name} is one step for one token: neither its batch nor its sequence can be chosen, and not int8")]
    Step { name: String },
    #[error("{name} reads no text, so it has no sequence to leave open")]
    NoSequence { name: String },
    #[error(transparent)]
    Onnx(#[from] OnnxError),
}

/// The model of that name.
pub fn find(name: &str) -> Result<&'static ModelInfo, GenerateError> {
    MODELS
        .iter()
        .chain(DECODERS)
        .find(|model| model.name == name)
        .ok_or_else(|| GenerateError::Unknown { name: name.to_owned() })
}

/// Writes the model `name` to `path`. The file appears whole or not at all.
pub fn generate(name: &str, options: &Options, path: &Path) -> Result<Generated, GenerateError> {
    let info = find(name)?;
    if options.style.open_sequence && !info.text {
        return Err(GenerateError::NoSequence { name: name.to_owned() });
    }
    let bytes = match info.source {
        Source::Step(_) if options.style.batch != Batch::Fixed(1) || options.precision == Precision::Int8 => {
            return Err(GenerateError::Step { name: name.to_owned() });
        }
        Source::Step(build) | Source::Graph(build) => return Ok(file::write(build(&options.style), options, path)?),
        Source::Trained(bytes) => bytes.into(),
        Source::Outliers(bytes) => outliers::planted(bytes)?,
    };
    let as_trained = Style { batch: options.style.batch, ..Style::default() };
    if (options.style, options.precision) != (as_trained, Precision::Fp32) {
        return Err(GenerateError::Trained { name: name.to_owned() });
    }
    let bytes = with_batch(bytes, options.style.batch)?;
    Ok(write_trained(bytes, info.parameters, options.storage, path)?)
}

/// The model with another first dimension at its inputs and outputs; nothing inside of it says a batch.
fn with_batch(bytes: Bytes, batch: Batch) -> Result<Bytes, OnnxError> {
    if batch == Batch::Fixed(1) {
        return Ok(bytes);
    }
    let mut proto = Model::from_bytes(bytes)?.proto;
    if let Some(graph) = &mut proto.graph {
        graph.value_info.clear();
        for port in graph.input.iter_mut().chain(&mut graph.output) {
            let value = port.r#type.as_mut().and_then(|ty| ty.value.as_mut());
            let Some(type_proto::Value::TensorType(tensor)) = value else { continue };
            if let Some(first) = tensor.shape.as_mut().and_then(|shape| shape.dim.first_mut()) {
                *first = builder::batch_dimension(batch);
            }
        }
    }
    Ok(proto.encode_to_vec().into())
}

fn write_trained(bytes: Bytes, parameters: u64, storage: Storage, path: &Path) -> Result<Generated, OnnxError> {
    let model = Model::from_bytes(bytes.clone())?;
    let nodes = model.graph().node.len();
    let size_bytes = match storage {
        Storage::Inline => planforge_onnx::write::write_bytes(path, &bytes)?,
        Storage::External => {
            let mut proto = model.proto;
            let stored = proto.graph.as_mut().map(|graph| std::mem::take(&mut graph.initializer)).unwrap_or_default();
            let mut data = stored.iter().map(|tensor| tensor.raw_data.clone());
            let weights: Vec<_> =
                stored.iter().map(|tensor| TensorProto { raw_data: Default::default(), ..tensor.clone() }).collect();
            write_model(path, &proto, &weights, storage, &mut |_, out| out.write_all(&data.next().unwrap_or_default()))?
        }
    };
    Ok(Generated { size_bytes, nodes, parameters })
}
