//! Who is to run the prepared model, as far as that changes what it should look like.

use serde::{Deserialize, Serialize};

/// What a model is prepared for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Weights and values as int8 with scales from data.
    Int8,
    Fp16,
    Bf16,
    /// Weights alone as int8.
    Int8Weights,
    /// Weights alone as int4, with a scale for every group of them.
    Int4Weights,
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
