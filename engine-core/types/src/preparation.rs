//! What a model is made into before it is built: its number types, for whom, by which data.
//!
//! The names live here because coordinators, agents and clients speak of them; how any of it is done is known to
//! `planforge-precision` alone.

use crate::{BuildSpec, Digest, Precision};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Backend of the toolchains by which agents say that they prepare models, and in which version.
pub const PREPARER: &str = "precision";
/// Rises when the same model, data and options come to another prepared model than before.
pub const PREPARER_REVISION: u32 = 5;
/// Most files of calibration data of one preparation.
pub const DATA_FILES_MAX: usize = 1_024;
/// Most layers that one preparation keeps by name, and the longest name.
const KEPT_MAX: usize = 4_096;
const KEPT_NAME_MAX_BYTES: usize = 1_024;

/// What a model is prepared for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// Everybody: symmetric int8 around every layer, sum and pool, biases in single precision.
    #[default]
    Any,
    /// TensorRT: symmetric, quantised where a layer reads; what a convolution gives to a sum stays unquantised, so that
    /// both become one kernel.
    TensorRt,
    /// ONNX Runtime on CPUs: values as u8 with a zero point, biases as int32, results quantised too, as its fusions want.
    OnnxRuntime,
    /// Native engines for CPUs: as ONNX Runtime.
    Cpu,
}

/// What a model is turned into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Weights and values as int8 with scales from data.
    #[default]
    Int8,
    Fp16,
    Bf16,
    /// Weights alone as int8.
    Int8Weights,
    /// Weights alone as int4, with a scale for every group of them.
    Int4Weights,
}

/// How a range is chosen out of what was observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// All of it.
    MinMax,
    /// All but the outermost 0.01 %.
    Percentile,
    /// The cut that changes the distribution least: Kullback–Leibler divergence, as TensorRT's second entropy calibrator.
    Entropy,
    /// The cut with the least mean squared error.
    #[default]
    Mse,
}

/// What may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Budget {
    /// Points of top-1 accuracy, of 100.
    AccuracyDrop(f64),
    /// Relative RMS of the outputs.
    OutputError(f64),
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AccuracyDrop(points) => write!(f, "{points} points of top-1"),
            Self::OutputError(error) => write!(f, "{error} relative output error"),
        }
    }
}

impl Target {
    pub const ALL: [Self; 4] = [Self::Any, Self::TensorRt, Self::OnnxRuntime, Self::Cpu];

    /// As it is asked for.
    pub fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::TensorRt => "tensorrt",
            Self::OnnxRuntime => "onnxruntime",
            Self::Cpu => "cpu",
        }
    }

    /// Whether values are u8 with a zero point, and biases int32.
    pub fn has_zero_points(self) -> bool {
        matches!(self, Self::OnnxRuntime | Self::Cpu)
    }

    /// Whether TensorRT may be meant, whose calibration cache has the ranges of the model as it was: they are found then.
    pub fn has_cache(self) -> bool {
        matches!(self, Self::Any | Self::TensorRt)
    }

    /// Whether it can run what would be made.
    pub fn has(self, kind: Kind) -> bool {
        match (self, kind) {
            // ONNX Runtime's CPU kernels for convolutions and products know no bf16.
            (Self::OnnxRuntime, Kind::Bf16) => false,
            _ => true,
        }
    }
}

impl Kind {
    pub const ALL: [Self; 5] = [Self::Int8, Self::Fp16, Self::Bf16, Self::Int8Weights, Self::Int4Weights];

    /// As it is asked for.
    pub fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Fp16 => "fp16",
            Self::Bf16 => "bf16",
            Self::Int8Weights => "int8-weights",
            Self::Int4Weights => "int4-weights",
        }
    }

    /// Whether it is made from data: ranges, or overflow.
    pub fn needs_data(self) -> bool {
        self == Self::Int8
    }
}

impl Method {
    pub const ALL: [Self; 4] = [Self::MinMax, Self::Percentile, Self::Entropy, Self::Mse];

    /// As it is asked for.
    pub fn name(self) -> &'static str {
        match self {
            Self::MinMax => "min-max",
            Self::Percentile => "percentile",
            Self::Entropy => "entropy",
            Self::Mse => "mse",
        }
    }
}

/// What a preparation is to come to; with the model it is all that decides about the result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PrepareAsk {
    pub precision: Kind,
    pub target: Target,
    /// How int8 ranges are chosen.
    pub method: Method,
    /// Archives of arrays (`.npz`) by input, rows along the first axis, one after the other in this order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<Digest>,
    /// Labelled data that the loss is measured on, where that is other data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval: Option<Digest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// Layers that stay as they are, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keep: Vec<String>,
    /// Weights that share a scale, along the inputs of a layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// One scale for all weights of a layer.
    pub per_tensor: bool,
    pub equalize: bool,
    pub correct_bias: bool,
}

impl Default for PrepareAsk {
    fn default() -> Self {
        Self::new(Kind::default(), Target::default())
    }
}

impl PrepareAsk {
    /// The usual way: least squared error, a scale for each output, channels evened out, biases corrected.
    pub fn new(precision: Kind, target: Target) -> Self {
        Self {
            precision,
            target,
            method: Method::default(),
            data: Vec::new(),
            eval: None,
            budget: None,
            keep: Vec::new(),
            group: None,
            per_tensor: false,
            equalize: true,
            correct_bias: true,
        }
    }

    /// The one form in which equal asks are equal: what decides nothing for its precision is as usual.
    pub fn canonical(mut self) -> Self {
        let usual = Self::new(self.precision, self.target);
        self.keep.sort();
        self.keep.dedup();
        if self.precision != Kind::Int8 {
            (self.method, self.per_tensor) = (usual.method, usual.per_tensor);
            (self.equalize, self.correct_bias) = (usual.equalize, usual.correct_bias);
        }
        if !matches!(self.precision, Kind::Int8Weights | Kind::Int4Weights) {
            self.group = None;
        }
        self
    }

    /// The files that it names.
    pub fn files(&self) -> impl Iterator<Item = Digest> + '_ {
        self.data.iter().copied().chain(self.eval)
    }

    /// In a few words: `int8 by mse for any, 2 files of data`.
    pub fn words(&self) -> String {
        let mut words = self.precision.name().to_owned();
        if self.precision == Kind::Int8 {
            words.push_str(&format!(" by {}", self.method.name()));
        }
        if self.target != Target::Any {
            words.push_str(&format!(" for {}", self.target.name()));
        }
        match &self.data[..] {
            [] => {}
            [one] => words.push_str(&format!(", data {}", one.short())),
            [first, rest @ ..] => words.push_str(&format!(", data {} and {} more files", first.short(), rest.len())),
        }
        if let Some(budget) = &self.budget {
            words.push_str(&format!(", at most {budget} lost"));
        }
        words
    }

    /// Refuses what no preparation could ever come to.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn validate(&self) -> Result<(), String> {
        let (kind, target) = (self.precision.name(), self.target.name());
        if !self.target.has(self.precision) {
            return Err(format!("the target {target} has no {kind}"));
        }
        if self.precision.needs_data() && self.data.is_empty() {
            return Err(format!("{kind} needs calibration data, and none is given"));
        }
        if self.data.len() > DATA_FILES_MAX {
            let count = self.data.len();
            return Err(format!("a preparation takes at most {DATA_FILES_MAX} files of data, not {count}"));
        }
        if let Some(Budget::AccuracyDrop(most) | Budget::OutputError(most)) = self.budget {
            if !most.is_finite() || most < 0.0 {
                return Err(format!("a budget of {most} allows nothing"));
            }
            if self.data.is_empty() && self.eval.is_none() {
                return Err("a budget needs data that the loss is measured on, and none is given".into());
            }
        }
        if let Some(group) = self.group.filter(|group| *group < 16 || !group.is_power_of_two()) {
            return Err(format!("a group of {group} weights is none of 16, 32, 64, …"));
        }
        if self.keep.len() > KEPT_MAX || self.keep.iter().any(|name| name.len() > KEPT_NAME_MAX_BYTES) {
            return Err(format!(
                "a preparation keeps at most {KEPT_MAX} layers, by names of at most {KEPT_NAME_MAX_BYTES} bytes"
            ));
        }
        Ok(())
    }
}

/// The three ways to an int8 engine of TensorRT, by which they are asked for in one request and told apart in lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Int8Way {
    /// Without any ranges: its times are worth something, its outputs nothing.
    Uncalibrated,
    /// The model as it is, with the ranges that its preparation found: a calibration cache, for versions up to 10.16.
    Calibrated,
    /// The prepared model, whose ranges stand in its nodes.
    Qdq,
}

impl Int8Way {
    pub const ALL: [Self; 3] = [Self::Uncalibrated, Self::Calibrated, Self::Qdq];

    /// As it is asked for.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uncalibrated => "int8-uncalibrated",
            Self::Calibrated => "int8-calibrated",
            Self::Qdq => "int8-qdq",
        }
    }

    /// The way of an engine by its spec and where its model comes from; `None` where these do not tell: a model as it is
    /// may hold ranges of its own.
    pub fn of(spec: &BuildSpec, from: Option<&PreparedFrom>) -> Option<Self> {
        match from {
            Some(from) if from.as_calibration => Some(Self::Calibrated),
            Some(from) if from.ask.precision == Kind::Int8 => Some(Self::Qdq),
            _ => (spec.precision == Precision::Int8 && spec.calibration.is_some()).then_some(Self::Calibrated),
        }
    }
}

/// Where a model comes from that a job of the farm prepared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PreparedFrom {
    /// The model that was prepared: its identity, and what it is called.
    pub source: Digest,
    pub source_name: String,
    pub ask: PrepareAsk,
    /// The job that prepares it, or did.
    pub job: String,
    /// The document that says what became of which layer, and why; `None`: the model is not prepared yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<Digest>,
    /// The engine is of the model as it was, and takes the document as its calibration, for the ranges in it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub as_calibration: bool,
}

impl PreparedFrom {
    /// In a sentence.
    pub fn words(&self) -> String {
        let name = if self.source_name.is_empty() { "a model" } else { &self.source_name };
        let how = if self.as_calibration { "calibrated like" } else { "prepared from" };
        format!("{how} {name} ({}): {}", self.source.short(), self.ask.words())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn int8() -> PrepareAsk {
        PrepareAsk { data: vec![Digest::of(b"rows")], ..PrepareAsk::new(Kind::Int8, Target::Any) }
    }

    #[test]
    fn what_can_never_come_to_anything_is_refused_in_words() {
        int8().validate().unwrap();
        let refused = |ask: PrepareAsk, word: &str| {
            let why = ask.validate().unwrap_err();
            assert!(why.contains(word), "{why}");
        };
        refused(PrepareAsk { data: Vec::new(), ..int8() }, "needs calibration data");
        refused(PrepareAsk::new(Kind::Bf16, Target::OnnxRuntime), "has no bf16");
        refused(PrepareAsk { budget: Some(Budget::OutputError(f64::NAN)), ..int8() }, "allows nothing");
        let fp16 = PrepareAsk::new(Kind::Fp16, Target::Any);
        refused(PrepareAsk { budget: Some(Budget::OutputError(0.1)), ..fp16 }, "needs data");
        refused(PrepareAsk { group: Some(20), ..PrepareAsk::new(Kind::Int4Weights, Target::Any) }, "20 weights");
        refused(PrepareAsk { data: vec![Digest::of(b"x"); DATA_FILES_MAX + 1], ..int8() }, "at most 1024 files");
    }

    #[test]
    fn what_decides_nothing_is_as_usual() {
        let fp16 = PrepareAsk { method: Method::Entropy, group: Some(32), ..PrepareAsk::new(Kind::Fp16, Target::Any) };
        assert_eq!(fp16.canonical(), PrepareAsk::new(Kind::Fp16, Target::Any));
        let kept =
            |names: &[&str]| PrepareAsk { keep: names.iter().map(|&n| n.into()).collect(), ..int8() }.canonical();
        assert_eq!(kept(&["b", "a", "b"]), kept(&["a", "b"]));
        assert_ne!(PrepareAsk { method: Method::Entropy, ..int8() }.canonical(), int8());
    }

    #[test]
    fn the_way_of_an_engine_is_told_by_its_spec_and_its_models_origin() {
        let spec = |precision, calibration| BuildSpec { precision, calibration, ..BuildSpec::default() };
        let from = |ask: PrepareAsk, as_calibration| PreparedFrom {
            source: Digest::of(b"model"),
            source_name: String::new(),
            ask,
            job: String::new(),
            document: None,
            as_calibration,
        };
        let plain = spec(Precision::Int8, None);
        let fp16 = PrepareAsk::new(Kind::Fp16, Target::Any);
        assert_eq!(Int8Way::of(&plain, None), None);
        assert_eq!(Int8Way::of(&plain, Some(&from(int8(), false))), Some(Int8Way::Qdq));
        assert_eq!(Int8Way::of(&plain, Some(&from(int8(), true))), Some(Int8Way::Calibrated));
        assert_eq!(Int8Way::of(&spec(Precision::Int8, Some(Digest::of(b"cache"))), None), Some(Int8Way::Calibrated));
        assert_eq!(Int8Way::of(&spec(Precision::Best, Some(Digest::of(b"cache"))), None), None);
        assert_eq!(Int8Way::of(&spec(Precision::Fp16, None), Some(&from(fp16, false))), None);
        // What was written down before anybody could ask for it reads as before.
        let before = serde_json::to_value(from(int8(), false)).unwrap();
        assert!(before.get("as_calibration").is_none());
        assert_eq!(serde_json::from_value::<PreparedFrom>(before).unwrap(), from(int8(), false));
    }

    #[test]
    fn an_ask_is_read_with_the_usual_in_place_of_what_it_leaves_out() {
        let ask: PrepareAsk = serde_json::from_str(r#"{"precision":"int8-weights","target":"tensorrt"}"#).unwrap();
        assert_eq!(ask, PrepareAsk::new(Kind::Int8Weights, Target::TensorRt));
        assert_eq!(serde_json::from_str::<PrepareAsk>(&serde_json::to_string(&int8()).unwrap()).unwrap(), int8());
        assert!(serde_json::from_str::<PrepareAsk>(r#"{"precison":"int8"}"#).is_err());
    }
}
