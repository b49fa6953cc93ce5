//! The report of a preparation: what became of every layer and why, and where the bytes are.

use crate::{
    error::Finding,
    net::{Net, bytes_by_type},
};
use planforge_onnx::proto::tensor_proto::DataType;
use planforge_types::{
    Digest,
    preparation::{Budget, Kind, Method, Target},
};
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;

/// Version of the report's form.
pub const SCHEMA: u32 = 1;

/// Tensors that an answer names.
const NAMED: usize = 5;
/// Smaller tensors explain nothing.
const NAMED_BYTES: u64 = 1024;

/// What was done to a model, and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Preparation {
    pub schema: u32,
    pub precision: Kind,
    pub target: Target,
    /// How ranges were chosen; absent where none were.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub method: Option<Method>,
    /// What ran the model.
    pub runner: String,
    /// Rows that ranges or overflow come from; 0 without data.
    pub samples: u64,
    pub coverage: Coverage,
    /// What was lost; absent where there was no data to measure it on.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub measured: Option<Measured>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub budget: Option<Budget>,
    /// Bytes of stored tensors by their type, before and after.
    pub bytes_before: BTreeMap<String, u64>,
    pub bytes_after: BTreeMap<String, u64>,
    /// Questions people ask of sizes and losses, answered.
    pub answers: Vec<String>,
    pub findings: Vec<Finding>,
    /// Normalisations that went into the convolution before them, and what queries and keys were multiplied by.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub folded: Vec<String>,
    /// Layers whose channels were evened out.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub equalized: Vec<String>,
    pub layers: Vec<LayerReport>,
}

/// The report as it is written: what was prepared from what, then what came of it.
#[derive(Debug, Serialize)]
pub struct Document<'a> {
    /// Digest of the ONNX model that was prepared, and of the model that came of it.
    pub source: Digest,
    pub prepared: Digest,
    /// Digest of every file of data, in order.
    pub data: Vec<Digest>,
    /// Scales of the tensors of the model as it was, symmetric, by name: what a calibration cache holds.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", serialize_with = "widened")]
    pub calibration: &'a BTreeMap<String, f32>,
    #[serde(flatten)]
    pub report: &'a Preparation,
}

/// The same text whichever way numbers of a document take to it.
fn widened<S: Serializer>(scales: &BTreeMap<String, f32>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(scales.iter().map(|(name, scale)| (name, f64::from(*scale))))
}

/// One layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerReport {
    pub name: String,
    pub op: String,
    /// `int8`, `fp32`, …: what its weights and products are.
    pub precision: String,
    pub why: String,
    pub weights: u64,
    /// Bytes of its weights as they are stored now.
    pub weight_bytes: u64,
    /// Multiplications of one execution.
    pub macs: u64,
    /// Relative RMS of the outputs with this layer alone lowered; where a budget made it measured.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub harm: Option<f64>,
    /// Microseconds that it takes less in int8, measured on the machine that prepared the model; where a budget weighed it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub saved_us: Option<f64>,
}

/// How much of the model was lowered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Coverage {
    pub layers: u64,
    pub layers_lowered: u64,
    pub weights: u64,
    pub weights_lowered: u64,
    pub macs: u64,
    pub macs_lowered: u64,
}

/// What the prepared model loses against the one it came from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    pub rows: u64,
    /// Of the outputs, or of what their softmax reads.
    pub relative_rms: f64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub top1_before: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub top1_after: Option<f64>,
    /// Times that a model was run on the rows.
    pub evaluations: u64,
}

impl Coverage {
    pub fn of(layers: &[LayerReport], precision: &str) -> Self {
        let mut coverage = Self::default();
        for layer in layers {
            let lowered = u64::from(layer.precision == precision);
            coverage.layers += 1;
            coverage.layers_lowered += lowered;
            coverage.weights += layer.weights;
            coverage.weights_lowered += lowered * layer.weights;
            coverage.macs += layer.macs;
            coverage.macs_lowered += lowered * layer.macs;
        }
        coverage
    }
}

/// Mebibytes and their like, for answers.
fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

/// Why the weights take what they take, and not what they would with every one of them in the type that was asked for.
pub fn answers(before: &Net, after: &Net, kind: Kind, layers: &[LayerReport]) -> Vec<String> {
    let bits: u64 = match kind {
        Kind::Int8 | Kind::Int8Weights => 8,
        Kind::Int4Weights => 4,
        Kind::Fp16 | Kind::Bf16 => 16,
    };
    let total = |net: &Net| bytes_by_type(net.graph()).values().sum::<u64>();
    let single = DataType::Float as i32;
    let floats = before.graph().initializer.iter().filter(|tensor| tensor.data_type == single);
    let float_bytes: u64 = floats.map(|tensor| tensor.raw_data.len() as u64).sum();
    let (was, is) = (total(before), total(after));
    let ideal = was - float_bytes + float_bytes / 32 * bits;
    let mut text =
        format!("the stored tensors take {} and not {}: they took {} before", size(is), size(ideal), size(was));
    let mut wide: Vec<_> = after
        .graph()
        .initializer
        .iter()
        .filter(|tensor| tensor.data_type == single && tensor.raw_data.len() as u64 >= NAMED_BYTES)
        .collect();
    wide.sort_by_key(|tensor| std::cmp::Reverse(tensor.raw_data.len()));
    let kept: u64 = after
        .graph()
        .initializer
        .iter()
        .filter(|tensor| tensor.data_type == single)
        .map(|tensor| tensor.raw_data.len() as u64)
        .sum();
    text += &format!(", and {} are still single precision", size(kept));
    let mut answers = vec![text];
    for tensor in wide.iter().take(NAMED) {
        let readers: Vec<&str> = after
            .graph()
            .node
            .iter()
            .filter(|node| node.input.contains(&tensor.name))
            .map(|node| node.name.as_str())
            .collect();
        let layer = layers.iter().find(|layer| readers.contains(&layer.name.as_str()));
        let why = match layer {
            Some(layer) if layer.precision == "fp32" => {
                format!("'{}' stays single precision: {}", layer.name, layer.why)
            }
            _ if tensor.name.ends_with("_scale") => "the scales of what was quantised".to_owned(),
            _ if tensor.name.contains("bias") => "biases are added in single precision".to_owned(),
            _ => match readers.first() {
                Some(reader) => format!("'{reader}' reads it, which is no layer that is lowered"),
                None => "nobody reads it".to_owned(),
            },
        };
        answers.push(format!("{} in '{}': {why}", size(tensor.raw_data.len() as u64), tensor.name));
    }
    if wide.len() > NAMED {
        let rest: u64 = wide[NAMED..].iter().map(|tensor| tensor.raw_data.len() as u64).sum();
        answers.push(format!("{} in {} more tensors", size(rest), wide.len() - NAMED));
    }
    answers
}
