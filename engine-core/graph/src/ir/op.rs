//! Operators and their attributes.
//!
//! Sizes that follow from the output's shape are not repeated in attributes. All axes are resolved (0-based,
//! below the rank); pads are `[begin of each spatial axis, then end of each]`.

use super::{ElementType, NamedOp};
use serde::{Deserialize, Serialize};

/// What a node computes. Inputs are listed by position; `?` marks an optional one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Op {
    /// `[x]`: x itself.
    Identity,
    /// `[x]`, element by element.
    Unary(Unary),
    /// `[x]`, element by element: the functions that may end a convolution or matrix product.
    Activation(Activation),
    /// `[a, b]`, element by element with broadcasting.
    Binary(Binary),
    /// `[a, b]` -> bool, element by element with broadcasting.
    Compare(Compare),
    /// `[condition, a, b]`: a where the condition holds, else b, with broadcasting.
    Where,
    /// `[x]`, converted as ONNX `Cast` does.
    Cast { to: ElementType },

    /// `[x (N,C,spatial..), w (M,C/group,spatial..), bias? (M), residual? (as the output)]`.
    Conv(Conv),
    /// `[x (N,C,spatial..), w (C,M/group,spatial..), bias? (M)]`.
    ConvTranspose(ConvTranspose),
    /// `[a (..,M,K), b (..,K,N), bias? (N), residual? (as the output)]`; leading axes broadcast as in numpy. One of
    /// a, b may have rank 1, as in numpy.
    MatMul(MatMul),
    /// `[x (N,C,spatial..)]`.
    Pool(Pool),

    /// `[x (N,C,..), scale (C), bias (C), mean (C), variance (C)]`, inference form.
    BatchNorm { epsilon: f32 },
    /// `[x, scale?, bias?]`: normalised over all axes from `axis` on; scale and bias have the shape of those axes
    /// or broadcast to it.
    LayerNorm { axis: usize, epsilon: f32 },
    /// `[x (N,C,..), scale (C), bias (C)]`: normalised over the spatial axes of each channel.
    InstanceNorm { epsilon: f32 },
    /// `[x (N,C,..), scale (C), bias (C)]`: normalised over groups of channels and their spatial axes.
    GroupNorm { groups: usize, epsilon: f32 },
    /// `[x (N,C,..)]`: local response normalisation across channels.
    Lrn { alpha: f32, beta: f32, bias: f32, size: usize },
    /// `[x]` along one axis; `log` gives the logarithm of the result.
    Softmax { axis: usize, log: bool },
    /// `[x]`: axes sorted, without repeats; `keep` leaves them in with size 1.
    Reduce { kind: ReduceKind, axes: Vec<usize>, keep: bool },
    /// `[x]` -> i64 index of the extreme.
    ArgReduce(ArgReduce),
    /// `[x]` along one axis.
    CumSum { axis: usize, exclusive: bool, reverse: bool },

    /// `[x]`: the same elements in the output's shape.
    Reshape,
    /// `[x]`: output axis i is input axis `perm[i]`.
    Transpose { perm: Vec<usize> },
    /// `[x]`: broadcast to the output's shape.
    Expand,
    /// `[x, ..]`.
    Concat { axis: usize },
    /// `[x]` -> one output per part, sizes as in the outputs.
    Split { axis: usize },
    /// `[x]`: one start and one non-zero step per axis; lengths as in the output.
    Slice { starts: Vec<usize>, steps: Vec<i64> },
    /// `[x, fill? (scalar)]`: one begin per axis, negative cuts off; ends follow from the output's shape.
    Pad { mode: PadMode, begins: Vec<i64> },
    /// `[x]`: repeats follow from the shapes.
    Tile,
    /// `[x, indices]`: indices may be negative.
    Gather { axis: usize },
    /// `[x, indices]`.
    GatherElements { axis: usize },
    /// `[x, indices]`.
    GatherNd { batch_dims: usize },
    /// `[indices, values (off, on)]`: the new axis is `axis` of the output.
    OneHot { axis: usize },
    /// `[x (N,C,spatial..)]` or any rank: see [`Resize`].
    Resize(Resize),
    /// `[x (N,C,H,W)]`; `column_row` is the CRD mode.
    DepthToSpace { block: usize, column_row: bool },
    /// `[x (N,C,H,W)]`.
    SpaceToDepth { block: usize },
    /// `[x (..,M,N)]`: keeps the upper or the lower triangle around diagonal `k`.
    Trilu { upper: bool, k: i64 },
    /// `[x]` -> values, i64 indices; the k follows from the outputs.
    TopK { axis: usize, largest: bool },
    /// An operator of [`crate::named`], which says what it takes.
    #[serde(rename = "Tabled")]
    Named(Box<NamedOp>),

    /// `[q (B,S,heads D), k (B,T,heads D), v (B,T,heads E), mask? (broadcasts to B,heads,S,T)]` -> (B,S,heads E): per
    /// head `softmax(scale q k^T + mask) v`. Heads lie side by side in the last axis.
    Attention(Attention),
    /// `[x, scale, zero? (of the type of the result)]`: x/scale rounded half to even, plus zero, saturated. Scale and
    /// zero are scalars, or lists along `axis`.
    Quantize(Quantization),
    /// `[x (integers), scale, zero?]`: (x - zero) scale, in the type of the scale.
    Dequantize(Quantization),
    /// `[x, scale, zero?]`: what is left of x after both.
    FakeQuantize(Quantization),
}

/// Element-wise functions of one argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unary {
    Neg,
    Abs,
    Exp,
    Log,
    Sqrt,
    Reciprocal,
    Floor,
    Ceil,
    /// Half to even.
    Round,
    Sign,
    Erf,
    Sin,
    Cos,
    Tan,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    Asinh,
    Acosh,
    Atanh,
    /// bool -> bool.
    Not,
    /// -> bool.
    IsNan,
    BitwiseNot,
}

/// How GELU is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GeluForm {
    /// `x/2 (1 + erf(x/sqrt 2))`
    Erf,
    /// `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`
    Tanh,
}

/// Element-wise functions that may follow a convolution or a matrix product in the same kernel.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Activation {
    Relu,
    /// A missing bound does not limit.
    Clip {
        min: Option<f32>,
        max: Option<f32>,
    },
    LeakyRelu {
        alpha: f32,
    },
    Elu {
        alpha: f32,
    },
    Selu {
        alpha: f32,
        gamma: f32,
    },
    Celu {
        alpha: f32,
    },
    ThresholdedRelu {
        alpha: f32,
    },
    Sigmoid,
    Tanh,
    /// `max(0, min(1, alpha x + beta))`
    HardSigmoid {
        alpha: f32,
        beta: f32,
    },
    /// `x max(0, min(1, x/6 + 1/2))`
    HardSwish,
    Softplus,
    Softsign,
    Gelu(GeluForm),
    /// `x sigmoid(x)`
    Silu,
    /// `x tanh(softplus(x))`
    Mish,
}

/// Element-wise functions of two arguments of the same type, with broadcasting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Binary {
    Add,
    Sub,
    Mul,
    /// Integers: toward zero.
    Div,
    /// The exponent may be of another type than the base.
    Pow,
    Min,
    Max,
    /// Sign of the divisor (integers only), as Python's `%`.
    Mod,
    /// Sign of the dividend, as C's `fmod`.
    FMod,
    /// `[x, slope]`: x, or slope times x below zero.
    PRelu,
    And,
    Or,
    Xor,
    BitwiseAnd,
    BitwiseOr,
    BitwiseXor,
    ShiftLeft,
    ShiftRight,
}

/// Comparisons, with broadcasting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compare {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// What follows a convolution or matrix product before its result is stored:
/// `activation(product + bias + residual)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Epilogue {
    pub activation: Option<Activation>,
}

/// Convolution (correlation) over 1 or more spatial axes. The kernel's size is that of the weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conv {
    pub strides: Vec<usize>,
    pub pads: Vec<usize>,
    pub dilations: Vec<usize>,
    pub groups: usize,
    pub epilogue: Epilogue,
}

/// Transposed convolution; what the end pads and output padding cut or add follows from the output's shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConvTranspose {
    pub strides: Vec<usize>,
    /// Begin pads only.
    pub pads: Vec<usize>,
    pub dilations: Vec<usize>,
    pub groups: usize,
}

/// `activation(alpha op(a) op(b) + bias + residual)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MatMul {
    pub alpha: f32,
    /// The last two axes of a (b) are given swapped.
    pub trans_a: bool,
    pub trans_b: bool,
    pub epilogue: Epilogue,
}

impl Default for MatMul {
    fn default() -> Self {
        Self { alpha: 1.0, trans_a: false, trans_b: false, epilogue: Epilogue::default() }
    }
}

/// What a pooling window gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PoolKind {
    Max,
    /// `count_pad`: padding counts in the divisor (what lies beyond the end pads never does).
    Average {
        count_pad: bool,
    },
}

/// Pooling over the spatial axes; ceiling mode is already in the output's shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pool {
    pub kind: PoolKind,
    pub kernel: Vec<usize>,
    pub strides: Vec<usize>,
    pub pads: Vec<usize>,
    pub dilations: Vec<usize>,
}

/// How elements are brought together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReduceKind {
    Sum,
    Mean,
    Max,
    Min,
    Prod,
    L1,
    L2,
    LogSum,
    LogSumExp,
    SumSquare,
}

/// Index of the largest (or smallest) element along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArgReduce {
    pub largest: bool,
    pub axis: usize,
    pub keep: bool,
    /// Of equal extremes the last instead of the first.
    pub last: bool,
}

/// What lies outside of a padded tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PadMode {
    Constant,
    Reflect,
    Edge,
    Wrap,
}

/// How resized elements are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ResizeMode {
    Nearest(ResizeNearest),
    Linear,
}

/// Scaled dot-product attention of several heads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    pub heads: usize,
    /// Of the scores, before the mask is added.
    pub scale: f32,
    /// Weights that are no numbers count as 0: a query whose every key is masked by -inf gives zeros.
    #[serde(default)]
    pub guarded: bool,
}

/// How floats are kept as integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quantization {
    /// The integers' type.
    pub element: ElementType,
    /// The axis that scale and zero run along; `None`: one of each for the whole tensor.
    pub axis: Option<usize>,
}

/// Which neighbour a nearest resize takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ResizeNearest {
    RoundPreferFloor,
    RoundPreferCeil,
    Floor,
    Ceil,
}

/// How an output coordinate maps to one of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ResizeCoordinates {
    HalfPixel,
    PytorchHalfPixel,
    AlignCorners,
    Asymmetric,
}

/// Resampling of a grid; one scale per axis, output size / input size unless the model gave the scales.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resize {
    pub mode: ResizeMode,
    pub coordinates: ResizeCoordinates,
    pub scales: Vec<f32>,
}

impl Op {
    /// A short name for lists and statistics.
    pub fn kind(&self) -> &str {
        match self {
            Self::Named(named) => &named.name,
            own => own.own_kind().unwrap_or_default(),
        }
    }

    /// The short name of an operator that has a variant of its own.
    pub(crate) fn own_kind(&self) -> Option<&'static str> {
        Some(match self {
            Self::Identity => "identity",
            Self::Unary(_) => "unary",
            Self::Activation(_) => "activation",
            Self::Binary(_) => "binary",
            Self::Compare(_) => "compare",
            Self::Where => "where",
            Self::Cast { .. } => "cast",
            Self::Conv(_) => "conv",
            Self::ConvTranspose(_) => "conv_transpose",
            Self::MatMul(_) => "matmul",
            Self::Pool(_) => "pool",
            Self::BatchNorm { .. } => "batch_norm",
            Self::LayerNorm { .. } => "layer_norm",
            Self::InstanceNorm { .. } => "instance_norm",
            Self::GroupNorm { .. } => "group_norm",
            Self::Lrn { .. } => "lrn",
            Self::Softmax { .. } => "softmax",
            Self::Reduce { .. } => "reduce",
            Self::ArgReduce(_) => "arg_reduce",
            Self::CumSum { .. } => "cum_sum",
            Self::Reshape => "reshape",
            Self::Transpose { .. } => "transpose",
            Self::Expand => "expand",
            Self::Concat { .. } => "concat",
            Self::Split { .. } => "split",
            Self::Slice { .. } => "slice",
            Self::Pad { .. } => "pad",
            Self::Tile => "tile",
            Self::Gather { .. } => "gather",
            Self::GatherElements { .. } => "gather_elements",
            Self::GatherNd { .. } => "gather_nd",
            Self::OneHot { .. } => "one_hot",
            Self::Resize(_) => "resize",
            Self::DepthToSpace { .. } => "depth_to_space",
            Self::SpaceToDepth { .. } => "space_to_depth",
            Self::Trilu { .. } => "trilu",
            Self::TopK { .. } => "top_k",
            Self::Named(_) => return None,
            Self::Attention(_) => "attention",
            Self::Quantize(_) => "quantize",
            Self::Dequantize(_) => "dequantize",
            Self::FakeQuantize(_) => "fake_quantize",
        })
    }

    /// The epilogue, of operators that have one.
    pub fn epilogue(&self) -> Option<&Epilogue> {
        match self {
            Self::Conv(conv) => Some(&conv.epilogue),
            Self::MatMul(product) => Some(&product.epilogue),
            _ => None,
        }
    }
}
