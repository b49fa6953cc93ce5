//! The program of an engine: buffers, and steps that run one after another. It is what the manifest of a plan holds.
//!
//! Images lie NHWC in buffers that convolutions and pools use; every other tensor lies as in the model. Steps know
//! the layout by their own attributes only: a buffer is bytes.

use planforge_graph::{
    ir::{Activation, Binary, Compare, ElementType, NamedOp, Op, ReduceKind, Unary},
    named,
    shape::TensorType,
};
use planforge_kernels_cpu::{
    conv::{ConvShape, VolumeShape},
    gemm::{AttentionShape, Factors, kernel_by_name},
};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Index of a buffer in its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BufferId(pub u32);

impl BufferId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where a buffer's bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Offset in the memory that a running engine writes.
    Arena(u64),
    /// Offset in the plan's weights section.
    Weights(u64),
}

/// A stretch of memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Buffer {
    /// Name of the model's value it holds, or of what a step needs beside it.
    pub name: String,
    pub bytes: u64,
    pub place: Place,
}

/// An input or output of the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramPort {
    pub name: String,
    pub element: ElementType,
    pub shape: Vec<usize>,
    pub buffer: BufferId,
}

/// A two-dimensional convolution or pool over an NHWC image, as [`ConvShape`] has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageShape {
    pub batch: usize,
    pub height: usize,
    pub width: usize,
    pub channels: usize,
    pub out_height: usize,
    pub out_width: usize,
    pub out_channels: usize,
    pub kernel: [usize; 2],
    pub strides: [usize; 2],
    pub dilations: [usize; 2],
    /// Above and to the left.
    pub pads: [usize; 2],
    pub groups: usize,
}

impl From<ImageShape> for ConvShape {
    fn from(s: ImageShape) -> Self {
        Self {
            batch: s.batch,
            height: s.height,
            width: s.width,
            channels: s.channels,
            out_height: s.out_height,
            out_width: s.out_width,
            out_channels: s.out_channels,
            kernel: s.kernel,
            strides: s.strides,
            dilations: s.dilations,
            pads: s.pads,
            groups: s.groups,
        }
    }
}

/// A three-dimensional convolution over an NDHWC image: its planes, and what stands over them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeSizes {
    pub plane: ImageShape,
    pub depth: usize,
    pub out_depth: usize,
    pub kernel: usize,
    pub stride: usize,
    pub dilation: usize,
    pub pad: usize,
}

impl From<VolumeSizes> for VolumeShape {
    fn from(s: VolumeSizes) -> Self {
        Self {
            plane: s.plane.into(),
            depth: s.depth,
            out_depth: s.out_depth,
            kernel: s.kernel,
            stride: s.stride,
            dilation: s.dilation,
            pad: s.pad,
        }
    }
}

/// Which cell a recurrent network repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CellKind {
    Rnn,
    Gru { before_reset: bool },
    Lstm { input_forget: bool },
}

/// Sizes of a recurrent network in one direction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecurrentSizes {
    pub kind: CellKind,
    pub steps: usize,
    pub batch: usize,
    pub hidden: usize,
    pub reverse: bool,
    /// Of gates, then of what is new, and (LSTM) of the state.
    pub activations: Vec<Activation>,
    /// What sums are limited to.
    pub clip: Option<f32>,
}

impl RecurrentSizes {
    /// Gates of a cell.
    pub fn gates(&self) -> usize {
        match self.kind {
            CellKind::Rnn => 1,
            CellKind::Gru { .. } => 3,
            CellKind::Lstm { .. } => 4,
        }
    }

    /// Columns of the recurrent product: all gates; of GRU the first two padded to whole panels of any kernel, so that the
    /// last one can be multiplied by itself.
    pub fn columns(&self) -> Option<usize> {
        self.last_gate()?.checked_add(self.hidden)
    }

    /// Where the last gate's columns begin.
    pub fn last_gate(&self) -> Option<usize> {
        let before = self.hidden.checked_mul(self.gates() - 1)?;
        match self.kind {
            CellKind::Gru { .. } => before.checked_next_multiple_of(PANELS),
            _ => Some(before),
        }
    }
}

/// A whole number of columns of every kernel's panels.
const PANELS: usize = 192;

/// Strides of a matrix of a batch, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MatrixStrides {
    pub row: usize,
    pub column: usize,
}

/// Functions of one value that have a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PointFunction {
    Activation(Activation),
    Neg,
    Abs,
    Exp,
    Sqrt,
    Reciprocal,
    Erf,
}

/// Functions of two values that have a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PairFunction {
    Add,
    Sub,
    Mul,
    Div,
    Min,
    Max,
}

/// One axis of an element-wise operator of two operands; strides in elements, 0 where an operand repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairAxis {
    pub size: usize,
    pub a: usize,
    pub b: usize,
}

/// One axis of a copy; strides in elements, 0 where the input repeats, negative where it is read backwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoveAxis {
    pub size: usize,
    pub from: isize,
    pub to: usize,
}

/// What one input gives to a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MovePart {
    /// Position among the step's inputs.
    pub input: usize,
    /// First element read and written.
    pub from: usize,
    pub to: usize,
    pub axes: Vec<MoveAxis>,
}

/// Where the rows of an operand of attention lie: those of all images one after another, every head beside the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeadRows {
    /// First element.
    pub offset: usize,
    /// From one row to the next.
    pub stride: usize,
}

/// Sizes of attention, as the kernels have them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionSizes {
    pub batch: usize,
    pub heads: usize,
    pub queries: usize,
    pub keys: usize,
    pub depth: usize,
    pub value_depth: usize,
    pub scale: f32,
    pub guarded: bool,
}

impl From<AttentionSizes> for AttentionShape {
    fn from(s: AttentionSizes) -> Self {
        Self {
            batch: s.batch,
            heads: s.heads,
            queries: s.queries,
            keys: s.keys,
            depth: s.depth,
            value_depth: s.value_depth,
            scale: s.scale,
            guarded: s.guarded,
        }
    }
}

/// Numbers of attention over bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ByteAttention {
    /// Of queries, keys and values: whether they are signed, and their zero points as they hold them.
    pub signed: [bool; 3],
    pub zeros: [u8; 3],
    /// The keys of a head lie as (depth, keys).
    pub turned: bool,
    pub weights: WeightSteps,
    /// By what the sums of weighted values are multiplied.
    pub factor: f64,
    /// Bytes or, [`SumsTo::Scaled`], floats.
    pub to: SumsTo,
}

/// Steps of the weights that values are summed with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightSteps {
    pub scale: f32,
    pub zero: i32,
    pub signed: bool,
}

/// What a pool gives; see the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolFunction {
    Max,
    Average { count_pad: bool },
}

/// How the leaves of an ensemble are brought together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TreeAggregate {
    Sum,
    Average,
    Min,
    Max,
}

/// Sizes of an ensemble of trees: rows, features and scores of a row, trees, nodes and weights of all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TreeSizes {
    pub rows: usize,
    pub features: usize,
    pub targets: usize,
    pub trees: usize,
    pub nodes: usize,
    pub weights: usize,
    /// Of rows, thresholds, weights and scores: f32 or f64.
    pub element: ElementType,
    pub aggregate: TreeAggregate,
}

/// An operand of loops: elements in strides, the first at `first`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoopOperand {
    pub element: ElementType,
    pub first: usize,
    /// One per axis; 0 where it repeats.
    pub strides: Vec<isize>,
}

/// An instruction of loops; others are named by their place before it. Numbers are what the kernels hold elements as: f32,
/// f64 or 64-bit integers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoopInstruction {
    /// An operand, as its type is held.
    Load(usize),
    /// An operand, converted to a type as it is loaded.
    LoadAs(usize, ElementType),
    /// As `Cast`.
    Convert(usize, ElementType),
    Unary(Unary, usize),
    Activation(Activation, usize),
    Binary(Binary, usize, usize),
    /// Left or right, of integers of so many bits.
    Shift {
        left: bool,
        bits: u32,
        x: usize,
        by: usize,
    },
    Compare(Compare, usize, usize),
    /// The second where the first is not 0, else the third.
    Select(usize, usize, usize),
    /// f32: `x / scale` rounded, plus zero, within what `element` holds.
    Quantize {
        element: ElementType,
        x: usize,
        scale: usize,
        zero: Option<usize>,
    },
}

/// Sizes around an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AxisSizes {
    pub outer: usize,
    pub size: usize,
    pub inner: usize,
}

/// What a step looks up: for each index over `sizes` at its strides, and further by given indices within `limits` (size
/// and stride), runs of `run` elements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LookupSizes {
    pub sizes: Vec<usize>,
    pub strides: Vec<usize>,
    pub limits: Vec<[usize; 2]>,
    pub run: usize,
    /// Type of the indices: i64 or i32.
    pub index: ElementType,
}

/// Lines of Fourier transforms, as [`planforge_kernels_cpu::fourier::Lines`] has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FourierLines {
    pub count: [usize; 2],
    pub from: [usize; 2],
    pub to: [usize; 2],
    pub from_step: usize,
    pub to_step: usize,
    pub given: usize,
    pub from_complex: bool,
    pub to_complex: bool,
    pub bins: usize,
    pub mirrored: bool,
}

/// What becomes of exact sums, as [`planforge_kernels_cpu::quantized::Finish`] has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SumsTo {
    /// i32: nothing else.
    Sums,
    /// Bytes: `(sum + bias) * factor` rounded, plus zero, within the limits; bias and factor are f64.
    Integers { zero: i32, low: i32, high: i32 },
    /// f32: the same product, rounded once.
    Scaled,
    /// f32: `sum * factor + bias`, all of it f32.
    Floats,
}

/// How an update meets what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Meeting {
    None,
    Add,
    Mul,
    Max,
    Min,
}

/// What a step computes. Inputs are listed by position, and all are f32 unless said otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    /// `[image, residual?]` with packed weights and bias.
    Conv { shape: ImageShape, activation: Option<Activation> },
    /// `[volume, residual?]` with packed weights and bias.
    Volume { shape: VolumeSizes, activation: Option<Activation> },
    /// `[x (steps, batch, columns), h?, c?, lengths (i32)?, peepholes?, bias of the new gate?]` with packed recurrent weights:
    /// x has the products with the inputs already -> `[y (steps, batch, hidden), h]`, and c for LSTM.
    Recurrent(RecurrentSizes),
    /// `[image, residual?]` with weights `[kernel line][kernel column][channel]` and a bias.
    Depthwise { shape: ImageShape, activation: Option<Activation> },
    /// `[a (rows x depth), residual?]` with packed weights (depth x columns) and bias.
    Gemm { rows: usize, columns: usize, depth: usize, alpha: f32, activation: Option<Activation> },
    /// `[a, b, residual?]`, with bias; `items` are offsets of a, b and c (and residual) in elements.
    BatchGemm {
        rows: usize,
        columns: usize,
        depth: usize,
        alpha: f32,
        activation: Option<Activation>,
        a: MatrixStrides,
        b: MatrixStrides,
        c_row: usize,
        items: Vec<[usize; 3]>,
    },
    /// `[x (rows x depth bytes), zero of x?, zeros of columns? (i32), bias?, factor?]` with packed weights: integers multiplied
    /// exactly. Lists have one element, or one for each column; zeros of columns are moved as the weights are.
    IntegerGemm { rows: usize, columns: usize, depth: usize, signed: bool, to: SumsTo },
    /// The same for the windows of an image of bytes.
    IntegerConv { shape: ImageShape, signed: bool, to: SumsTo },
    /// `[image of bytes, zero of it?, nothing, bias?, factor?]` with weights and their sums.
    IntegerDepthwise { shape: ImageShape, signed: bool, to: SumsTo },
    /// `[image of bytes]`: the largest of each window.
    IntegerPool { shape: ImageShape, signed: bool },
    /// `[queries, keys, values, mask?]` of bytes, each head's rows one behind the other and heads behind one another; the
    /// mask's strides are along image, head, query and key.
    IntegerAttention { sizes: AttentionSizes, bytes: ByteAttention, mask: [usize; 4] },
    /// `[queries, keys, values, mask?]`; the mask's strides are along image, head, query and key.
    Attention { sizes: AttentionSizes, queries: HeadRows, keys: HeadRows, values: HeadRows, mask: [usize; 4] },
    /// `[image]`; `padded`: height and width up to which padding counts.
    Pool { shape: ImageShape, function: PoolFunction, padded: [usize; 2] },
    /// `[image]` -> one mean per image and channel.
    GlobalMean { channels: usize },
    /// `[x]`, rows of `columns`; `guarded`: a row without a softmax becomes zeros.
    Softmax {
        columns: usize,
        #[serde(default)]
        guarded: bool,
    },
    /// `[x, scale?, bias?]`, rows of `columns`.
    LayerNorm { columns: usize, epsilon: f32 },
    /// `[x]`.
    Point { function: PointFunction },
    /// `[a, b]`; axes of the output, outermost first.
    Pair { function: PairFunction, axes: Vec<PairAxis> },
    /// `[x]` of 4-byte elements: output axis i is input axis `perm[i]`.
    Transpose { shape: Vec<usize>, perm: Vec<usize> },
    /// `[table, indices (i64 or i32)]`: `outer` times, lines of `line_bytes` out of `size` by index.
    Gather { outer: usize, size: usize, line_bytes: usize, index: ElementType },
    /// `[x, ...]`: elements of any type, from places in strides to places in strides.
    Move { element_bytes: usize, parts: Vec<MovePart> },
    /// `[x]`, any bytes.
    Copy,
    /// Operands of any types: an element-wise program for every index over `sizes`; the last number is the result, stored as
    /// `element`.
    Loops { sizes: Vec<usize>, operands: Vec<LoopOperand>, code: Vec<LoopInstruction>, element: ElementType },
    /// `[x]` in strides: brought together over the axes that `gone` marks.
    Fold { kind: ReduceKind, sizes: Vec<usize>, gone: Vec<bool>, strides: Vec<isize>, element: ElementType },
    /// `[x]` in strides: the place (i64) of the largest or smallest along the axes that `gone` marks.
    Places { largest: bool, last: bool, sizes: Vec<usize>, gone: Vec<bool>, strides: Vec<isize>, element: ElementType },
    /// `[x]`: softmax, or its logarithm, along an axis.
    SoftmaxAlong { sizes: AxisSizes, log: bool },
    /// `[x]`: running sums along an axis.
    RunningSum { sizes: AxisSizes, exclusive: bool, reverse: bool, element: ElementType },
    /// `[x]` -> values, places (i64): the first `k` along an axis.
    FirstInOrder { sizes: AxisSizes, k: usize, largest: bool, element: ElementType },
    /// `[x, window?]`: Fourier transforms of so many numbers, along lines of x.
    Fourier { length: usize, inverse: bool, lines: FourierLines },
    /// `[x, lines (i32), weights]`: every line along an axis a weighted sum of `taps` lines.
    Resample { sizes: AxisSizes, taps: usize },
    /// `[x, indices]`: elements of any type.
    Take { lookup: LookupSizes, element_bytes: usize },
    /// `[x, indices, updates]`: x with updates put where the indices say.
    Put { lookup: LookupSizes, meeting: Meeting, element: ElementType },
    /// `[x, roots (i32), nodes (i32), thresholds, leaf targets (i32), leaf weights]`, floats of the type that the sizes
    /// say; all but x are constants.
    Trees(TreeSizes),
    /// `[scores (rows x columns), base values?]` -> labels (i64), scores: an operator of this name by its kernel.
    Classes { op: NamedOp, rows: usize, columns: usize },
    /// Any operator, by its reference implementation.
    Reference { op: Op, inputs: Vec<Option<TypeOf>>, outputs: Vec<TypeOf> },
}

/// Type of an operand of a reference step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TypeOf {
    pub element: ElementType,
    pub shape: Vec<usize>,
}

impl From<&TypeOf> for TensorType {
    fn from(of: &TypeOf) -> Self {
        Self::new(of.element, of.shape.clone())
    }
}

impl StepKind {
    /// A short name, as reports and statistics use it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Conv { .. } => "conv",
            Self::Depthwise { .. } => "depthwise",
            Self::Volume { .. } => "volume",
            Self::Recurrent(_) => "recurrent",
            Self::Gemm { .. } => "gemm",
            Self::BatchGemm { .. } => "batch_gemm",
            Self::IntegerGemm { .. } => "integer_gemm",
            Self::IntegerConv { .. } => "integer_conv",
            Self::IntegerDepthwise { .. } => "integer_depthwise",
            Self::IntegerPool { .. } => "integer_pool",
            Self::IntegerAttention { .. } => "integer_attention",
            Self::Attention { .. } => "attention",
            Self::Pool { .. } => "pool",
            Self::GlobalMean { .. } => "global_mean",
            Self::Softmax { .. } => "softmax",
            Self::LayerNorm { .. } => "layer_norm",
            Self::Point { .. } => "pointwise",
            Self::Pair { .. } => "binary",
            Self::Transpose { .. } => "transpose",
            Self::Gather { .. } => "gather",
            Self::Move { .. } => "move",
            Self::Copy => "copy",
            Self::Loops { .. } => "loops",
            Self::Fold { .. } => "fold",
            Self::Places { .. } => "places",
            Self::SoftmaxAlong { .. } => "softmax_along",
            Self::RunningSum { .. } => "running_sum",
            Self::FirstInOrder { .. } => "first_in_order",
            Self::Fourier { .. } => "fourier",
            Self::Resample { .. } => "resample",
            Self::Take { .. } => "take",
            Self::Put { .. } => "put",
            Self::Trees(_) => "trees",
            Self::Classes { .. } => "classes",
            Self::Reference { op, .. } => named::kind_of(op),
        }
    }

    /// Whether tactics of this kind are timed.
    pub fn is_tuned(&self) -> bool {
        matches!(
            self,
            Self::Conv { .. }
                | Self::Volume { .. }
                | Self::Gemm { .. }
                | Self::BatchGemm { .. }
                | Self::IntegerGemm { .. }
                | Self::IntegerConv { .. }
                | Self::IntegerAttention { .. }
                | Self::Attention { .. }
                | Self::Recurrent(_)
        )
    }

    /// The same as far as its time goes: numbers that do not change it are those of no model.
    pub fn as_timed(&self) -> Cow<'_, Self> {
        let Self::IntegerAttention { sizes, bytes, mask } = self else { return Cow::Borrowed(self) };
        let weights = WeightSteps { scale: 1.0, zero: i32::from(bytes.weights.zero != 0), ..bytes.weights };
        let to = match bytes.to {
            SumsTo::Integers { .. } => SumsTo::Integers { zero: 0, low: 0, high: 0 },
            other => other,
        };
        let zeros = bytes.zeros.map(|zero| u8::from(zero != 0));
        let bytes = ByteAttention { zeros, weights, factor: 1.0, to, ..*bytes };
        Cow::Owned(Self::IntegerAttention { sizes: AttentionSizes { scale: 1.0, ..*sizes }, bytes, mask: *mask })
    }

    /// How many inputs a tuned kind always has; behind them it may have one more, a residual or a mask.
    pub fn operands(&self) -> usize {
        match self {
            Self::BatchGemm { .. } => 2,
            Self::Attention { .. } | Self::IntegerAttention { .. } => 3,
            Self::IntegerGemm { .. } | Self::IntegerConv { .. } => 5,
            _ => 1,
        }
    }

    /// Multiplications and additions, counted from shapes; 0 for steps that move or reduce.
    pub fn flops(&self) -> u64 {
        let product = |factors: &[usize]| factors.iter().fold(2u64, |n, &f| n.saturating_mul(f as u64));
        match self {
            Self::Conv { shape: s, .. }
            | Self::Depthwise { shape: s, .. }
            | Self::IntegerConv { shape: s, .. }
            | Self::IntegerDepthwise { shape: s, .. } => product(&[
                s.batch,
                s.out_height,
                s.out_width,
                s.out_channels,
                s.kernel[0],
                s.kernel[1],
                s.channels / s.groups.max(1),
            ]),
            Self::Volume { shape, .. } => {
                let s = &shape.plane;
                let plane = [s.batch, s.out_height, s.out_width, s.out_channels, s.kernel[0], s.kernel[1]];
                product(&[&plane[..], &[s.channels / s.groups.max(1), shape.out_depth, shape.kernel]].concat())
            }
            Self::Recurrent(s) => product(&[s.steps, s.batch, s.hidden, s.hidden, s.gates()]),
            Self::Gemm { rows, columns, depth, .. } | Self::IntegerGemm { rows, columns, depth, .. } => {
                product(&[*rows, *columns, *depth])
            }
            Self::BatchGemm { rows, columns, depth, items, .. } => product(&[*rows, *columns, *depth, items.len()]),
            Self::Attention { sizes: s, .. } | Self::IntegerAttention { sizes: s, .. } => {
                product(&[s.batch, s.heads, s.queries, s.keys, s.depth.saturating_add(s.value_depth)])
            }
            _ => 0,
        }
    }
}

/// How the rows of a product are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gather {
    /// Rows of a matrix.
    Matrix,
    /// Pieces per kernel position, in the image itself.
    Taps,
    /// Pieces per kernel line, in a copy with a border.
    Lines,
    /// Attention head by head, a block of queries at a time.
    Heads,
    /// Attention in passes over all heads, every score in memory.
    Passes,
}

/// How a product is computed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tactic {
    /// Kernel by name; begins with its instruction set.
    pub kernel: String,
    pub gather: Gather,
    pub pack_rows: bool,
    pub row_block: usize,
    pub column_block: usize,
    /// 0: the whole depth in one pass.
    pub depth_block: usize,
}

impl Step {
    /// What it computes in: what has neither bytes nor bf16 numbers to multiply, and no bytes to look up, is made as fp32.
    pub fn precision(&self) -> &'static str {
        use ElementType::{I8, U8};
        match &self.kind {
            StepKind::IntegerGemm { .. }
            | StepKind::IntegerConv { .. }
            | StepKind::IntegerDepthwise { .. }
            | StepKind::IntegerPool { .. }
            | StepKind::IntegerAttention { .. }
            | StepKind::Loops { element: I8 | U8, .. }
            | StepKind::Fold { element: I8 | U8, .. } => "int8",
            _ => self.tactic.as_ref().and_then(Tactic::factors).unwrap_or(Factors::F32).name(),
        }
    }
}

impl Tactic {
    /// In which numbers its product is made, where it is one of floats.
    pub fn factors(&self) -> Option<Factors> {
        kernel_by_name(&self.kernel).map(|kernel| kernel.factors)
    }

    /// The tactic in one word: `avx512_14x32+taps+packed+r112+c256`.
    pub fn name(&self) -> String {
        let mut name = self.kernel.clone();
        match self.gather {
            Gather::Matrix => {}
            Gather::Taps => name.push_str("+taps"),
            Gather::Lines => name.push_str("+lines"),
            Gather::Heads => name.push_str("+heads"),
            Gather::Passes => name.push_str("+passes"),
        }
        if self.pack_rows {
            name.push_str("+packed");
        }
        name.push_str(&format!("+r{}+c{}", self.row_block, self.column_block));
        if self.depth_block > 0 {
            name.push_str(&format!("+k{}", self.depth_block));
        }
        name
    }
}

/// A tactic and how long it took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimedTactic {
    pub tactic: Tactic,
    /// Quickest of the timed runs in nanoseconds; `None` when the tactic was taken untimed.
    pub best_ns: Option<u64>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Names of the model's nodes that this step computes.
    pub origins: Vec<String>,
    pub kind: StepKind,
    pub inputs: Vec<Option<BufferId>>,
    pub outputs: Vec<BufferId>,
    /// Packed weights of a product or depthwise convolution.
    pub weights: Option<BufferId>,
    /// One value per output channel or column, padded as the kernel reads it.
    pub bias: Option<BufferId>,
    /// Memory that only this step uses.
    pub scratch: Option<BufferId>,
    /// How it is computed, for kinds that have a choice.
    pub tactic: Option<Tactic>,
    /// What was tried, fastest first.
    pub tried: Vec<TimedTactic>,
}

impl Step {
    /// The kernel that computes it, its instruction set first.
    pub fn kernel_name(&self, isa: &str) -> String {
        match (&self.tactic, &self.kind) {
            (Some(tactic), _) => tactic.name(),
            (None, StepKind::Reference { .. }) => format!("reference_{}", self.kind.name()),
            (None, _) => format!("{isa}_{}", self.kind.name()),
        }
    }

    /// Every buffer the step reads.
    pub fn reads(&self) -> impl Iterator<Item = BufferId> + '_ {
        self.inputs.iter().flatten().copied().chain(self.weights).chain(self.bias)
    }

    /// Every buffer the step writes.
    pub fn writes(&self) -> impl Iterator<Item = BufferId> + '_ {
        self.outputs.iter().copied().chain(self.scratch)
    }
}

/// Everything a plan says of how to run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    pub buffers: Vec<Buffer>,
    pub inputs: Vec<ProgramPort>,
    pub outputs: Vec<ProgramPort>,
    /// Outputs that are lent behind the step that makes them, whose memory is another's afterwards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passing: Vec<ProgramPort>,
    pub steps: Vec<Step>,
    pub arena_bytes: u64,
    pub weight_bytes: u64,
}

/// Alignment of every buffer: a cache line, and the widest vector.
pub const ALIGNMENT: u64 = 64;
/// Most memory an engine may ask for, so that a damaged or hostile plan cannot take the machine down: 64 GiB.
pub const ARENA_MAX_BYTES: u64 = 64 << 30;

/// Why a program cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    #[error("the program asks for {bytes} bytes of memory; at most {ARENA_MAX_BYTES} are allowed")]
    Arena { bytes: u64 },
    #[error("the program asks for {bytes} bytes of memory, of which its buffers take {needed}")]
    Unneeded { bytes: u64, needed: u64 },
    #[error("buffer {buffer} ({name}) is used by no step")]
    Unused { buffer: usize, name: String },
    #[error("buffer {buffer} ({name}) does not lie within its {bytes} bytes, or not at a multiple of {ALIGNMENT}")]
    Buffer { buffer: usize, name: String, bytes: u64 },
    #[error("step {step} names a buffer that does not exist")]
    NoBuffer { step: usize },
    #[error("step {step} writes to constant memory")]
    WritesWeights { step: usize },
    #[error("step {step} writes where it reads")]
    Overlap { step: usize },
    #[error("port {name} does not fit its buffer")]
    Port { name: String },
    #[error("step {step} ({kind}): {reason}")]
    Step { step: usize, kind: &'static str, reason: String },
}

impl Program {
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.index()]
    }

    /// Bytes that a step reads and writes.
    pub fn moved_bytes(&self, step: &Step) -> u64 {
        let bytes = |id: BufferId| self.buffer(id).bytes;
        let written = step.outputs.iter().copied().map(bytes);
        match step.kind {
            // It touches only the lines it takes.
            StepKind::Gather { .. } | StepKind::Take { .. } => written.map(|bytes| 2 * bytes).sum(),
            _ => step.reads().map(bytes).chain(written).sum(),
        }
    }

    /// Checks that every buffer lies inside its memory and that no step writes to weights or to what it reads, so
    /// that the slices a running engine makes never alias; and that no memory is asked for but what steps use. What a
    /// step's kernel needs is checked when it is prepared.
    pub fn check(&self) -> Result<(), ProgramError> {
        if self.arena_bytes > ARENA_MAX_BYTES {
            return Err(ProgramError::Arena { bytes: self.arena_bytes });
        }
        for (index, buffer) in self.buffers.iter().enumerate() {
            let (offset, within) = match buffer.place {
                Place::Arena(offset) => (offset, self.arena_bytes),
                Place::Weights(offset) => (offset, self.weight_bytes),
            };
            let inside = offset.checked_add(buffer.bytes).is_some_and(|end| end <= within);
            if !inside || !offset.is_multiple_of(ALIGNMENT) {
                return Err(ProgramError::Buffer { buffer: index, name: buffer.name.clone(), bytes: within });
            }
        }
        self.check_arena()?;
        for (index, step) in self.steps.iter().enumerate() {
            if step.reads().chain(step.writes()).any(|id| id.index() >= self.buffers.len()) {
                return Err(ProgramError::NoBuffer { step: index });
            }
            let mut ranges = Vec::new();
            for id in step.writes() {
                let Place::Arena(start) = self.buffer(id).place else {
                    return Err(ProgramError::WritesWeights { step: index });
                };
                ranges.push((start, start + self.buffer(id).bytes, true));
            }
            for id in step.reads() {
                if let Place::Arena(start) = self.buffer(id).place {
                    ranges.push((start, start + self.buffer(id).bytes, false));
                }
            }
            for (at, (start, end, written)) in ranges.iter().enumerate() {
                let clash = |(s, e, w): &(u64, u64, bool)| (*written || *w) && s < end && start < e;
                if ranges[at + 1..].iter().any(clash) {
                    return Err(ProgramError::Overlap { step: index });
                }
            }
        }
        for port in self.inputs.iter().chain(&self.outputs).chain(&self.passing) {
            let bytes =
                planforge_graph::ir::element_count(&port.shape).map(|count| (count * port.element.bytes()) as u64);
            let buffer = self.buffers.get(port.buffer.index());
            if bytes.is_none() || buffer.map(|buffer| buffer.bytes) != bytes {
                return Err(ProgramError::Port { name: port.name.clone() });
            }
        }
        for port in &self.inputs {
            if matches!(self.buffer(port.buffer).place, Place::Weights(_)) {
                return Err(ProgramError::Port { name: port.name.clone() });
            }
        }
        match self.passing.iter().find(|port| self.maker(port.buffer).is_none()) {
            Some(port) => Err(ProgramError::Port { name: port.name.clone() }),
            None => Ok(()),
        }
    }

    /// The step behind which a buffer is whole; `None` where no step writes it.
    pub(crate) fn maker(&self, id: BufferId) -> Option<usize> {
        self.steps.iter().rposition(|step| step.outputs.contains(&id))
    }

    /// Checks that the arena is as large as its buffers need, whose ends are known to be inside of it, and that each of
    /// them is there for something.
    fn check_arena(&self) -> Result<(), ProgramError> {
        let end = |buffer: &Buffer| match buffer.place {
            Place::Arena(offset) => offset + buffer.bytes,
            Place::Weights(_) => 0,
        };
        let needed = self.buffers.iter().map(end).max().unwrap_or(0);
        // Compilers round up to whole lines.
        if self.arena_bytes > needed.next_multiple_of(ALIGNMENT) {
            return Err(ProgramError::Unneeded { bytes: self.arena_bytes, needed });
        }
        let mut used = vec![false; self.buffers.len()];
        let ports = self.inputs.iter().chain(&self.outputs).map(|port| port.buffer);
        for id in self.steps.iter().flat_map(|step| step.reads().chain(step.writes())).chain(ports) {
            // One that does not exist is told by who names it.
            if let Some(used) = used.get_mut(id.index()) {
                *used = true;
            }
        }
        match used.iter().position(|used| !used) {
            Some(buffer) => Err(ProgramError::Unused { buffer, name: self.buffers[buffer].name.clone() }),
            None => Ok(()),
        }
    }
}
