//! What each kind of step takes and does: checked and made ready once, then run, and its tactics where it has a choice.
//!
//! | module | kinds |
//! |---|---|
//! | [`products`] | products of matrices, one or a batch |
//! | [`attention`] | attention |
//! | [`integer_attention`] | attention over 8-bit integers |
//! | [`images`] | convolutions and pools |
//! | [`volumes`] | convolutions over volumes |
//! | [`recurrent`] | RNN, GRU and LSTM |
//! | [`quantized`] | products, convolutions and pools of 8-bit integers |
//! | [`rows`] | softmax and normalization |
//! | [`points`] | element-wise operators |
//! | [`moves`] | what copies and computes nothing |
//! | [`loops`] | element-wise programs over operands of any type |
//! | [`along`] | reductions, softmax, running sums, order and resampling along axes |
//! | [`fourier`] | Fourier transforms |
//! | [`lookups`] | elements taken and put by indices |
//! | [`classes`] | labels and probabilities from scores |
//! | [`trees`] | ensembles of trees |
//! | [`reference`] | any operator without a kernel |
//! | [`checker`], [`operands`] | for all of them: comparing sizes with buffers; the memory that a running step sees |
//!
//! A plan is input like any other: everything is checked before it runs, so that a program that passes may give a wrong
//! answer at worst.

mod along;
mod attention;
mod checker;
mod classes;
mod fourier;
mod images;
mod integer_attention;
mod lookups;
mod loops;
mod moves;
mod operands;
mod points;
mod products;
mod quantized;
mod recurrent;
mod reference;
mod rows;
mod trees;
mod volumes;

pub(crate) use classes::rule as class_rule;
pub(crate) use operands::Operands;

use self::checker::Checker;
use super::{
    error::EngineError,
    program::{Program, Step, StepKind, Tactic},
};
use planforge_graph::ir::{self, GeluForm};
use planforge_kernels_cpu::{
    gemm::{Factors, Kernel, bf16_kernels, kernel_by_name, kernels},
    isa::Isa,
    pointwise::Activation,
};
use std::fmt::Debug;

/// A step ready to run: kernels looked up, sizes compared with buffers.
pub(crate) trait Ready: Debug + Send + Sync {
    /// Runs it on what it reads and writes.
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError>;
}

/// A step made ready; the error completes "step N: ...".
type Prepared = Result<Box<dyn Ready>, String>;

/// Checks a step against its buffers and looks up what it runs; the error completes "step N: ...".
pub(crate) fn prepare(program: &Program, step: &Step, isa: Isa) -> Prepared {
    let check = &Checker { program, step, isa };
    match &step.kind {
        StepKind::Conv { shape, activation } => images::conv(check, shape, *activation),
        StepKind::Depthwise { shape, activation } => images::depthwise(check, shape, *activation),
        StepKind::Volume { shape, activation } => volumes::conv(check, shape, *activation),
        StepKind::Recurrent(sizes) => recurrent::recurrent(check, sizes),
        StepKind::Gemm { rows, columns, depth, alpha, activation } => {
            products::gemm(check, [*rows, *columns, *depth], *alpha, *activation)
        }
        StepKind::BatchGemm { rows, columns, depth, alpha, activation, a, b, c_row, items } => {
            let sizes = [*rows, *columns, *depth];
            products::batch_gemm(check, sizes, *alpha, *activation, [*a, *b], *c_row, items)
        }
        StepKind::Attention { sizes, queries, keys, values, mask } => {
            attention::attention(check, sizes, [*queries, *keys, *values], *mask)
        }
        StepKind::IntegerAttention { sizes, bytes, mask } => integer_attention::attention(check, sizes, bytes, *mask),
        StepKind::IntegerGemm { rows, columns, depth, signed, to } => {
            quantized::gemm(check, [*rows, *columns, *depth], *signed, *to)
        }
        StepKind::IntegerConv { shape, signed, to } => quantized::conv(check, shape, *signed, *to),
        StepKind::IntegerDepthwise { shape, signed, to } => quantized::depthwise(check, shape, *signed, *to),
        StepKind::IntegerPool { shape, signed } => quantized::pool(check, shape, *signed),
        StepKind::Pool { shape, function, padded } => images::pool(check, shape, *function, *padded),
        StepKind::GlobalMean { channels } => images::global_mean(check, *channels),
        StepKind::Softmax { columns, guarded } => rows::softmax(check, *columns, *guarded),
        StepKind::LayerNorm { columns, epsilon } => rows::layer_norm(check, *columns, *epsilon),
        StepKind::Point { function } => points::point(check, *function),
        StepKind::Pair { function, axes } => points::pair(check, *function, axes),
        StepKind::Transpose { shape, perm } => moves::transpose(check, shape, perm),
        StepKind::Gather { outer, size, line_bytes, index } => {
            moves::gather(check, [*outer, *size, *line_bytes], *index)
        }
        StepKind::Move { element_bytes, parts } => moves::strided(check, *element_bytes, parts),
        StepKind::Copy => moves::copy(check),
        StepKind::Loops { sizes, operands, code, element } => loops::loops(check, sizes, operands, code, *element),
        StepKind::Fold { kind, sizes, gone, strides, element } => {
            along::fold(check, *kind, along::Axes { sizes, gone, strides, element: *element })
        }
        StepKind::Places { largest, last, sizes, gone, strides, element } => {
            along::places(check, (*largest, *last), along::Axes { sizes, gone, strides, element: *element })
        }
        StepKind::SoftmaxAlong { sizes, log } => along::softmax(check, *sizes, *log),
        StepKind::RunningSum { sizes, exclusive, reverse, element } => {
            along::running_sum(check, *sizes, (*exclusive, *reverse), *element)
        }
        StepKind::FirstInOrder { sizes, k, largest, element } => {
            along::first_in_order(check, *sizes, *k, *largest, *element)
        }
        StepKind::Fourier { length, inverse, lines } => fourier::fourier(check, *length, *inverse, lines),
        StepKind::Resample { sizes, taps } => along::resample(check, *sizes, *taps),
        StepKind::Take { lookup, element_bytes } => lookups::take(check, lookup, *element_bytes),
        StepKind::Put { lookup, meeting, element } => lookups::put(check, lookup, *meeting, *element),
        StepKind::Classes { op, rows, columns } => classes::classes(check, op, *rows, *columns),
        StepKind::Trees(sizes) => trees::trees(check, sizes),
        StepKind::Reference { op, inputs, outputs } => reference::reference(check, op, inputs, outputs),
    }
}

/// Every tactic of a step, the one to take untimed first. Empty for kinds without a choice. `factors`: bf16 where products
/// with weights may be rounded to that.
pub(crate) fn candidates(kind: &StepKind, isa: Isa, factors: Factors, threads: usize) -> Vec<Tactic> {
    let with_weights = with_weights(isa, factors);
    products::candidates(kind, isa, &with_weights, threads)
        .or_else(|| images::candidates(kind, &with_weights, threads))
        .or_else(|| volumes::candidates(kind, &with_weights, threads))
        .or_else(|| recurrent::candidates(kind, isa, threads))
        .or_else(|| attention::candidates(kind, isa))
        .or_else(|| quantized::candidates(kind, isa, threads))
        .or_else(|| integer_attention::candidates(kind, isa))
        .unwrap_or_default()
}

/// The kernels of products with weights.
fn with_weights(isa: Isa, factors: Factors) -> Vec<&'static Kernel> {
    let short = if factors == Factors::Bf16 { bf16_kernels(isa.level()) } else { &[] };
    short.iter().chain(kernels(isa.level())).copied().collect()
}

/// Bytes of the scratch memory a tactic needs.
pub(crate) fn scratch_bytes(kind: &StepKind, tactic: &Tactic) -> Option<u64> {
    images::scratch_bytes(kind, tactic)
        .or_else(|| attention::scratch_bytes(kind, tactic))
        .or_else(|| recurrent::scratch_bytes(kind))
}

/// Sizes of packed weights and padded bias in elements, for kinds that have them.
fn packed_size(kind: &StepKind, kernel: &Kernel) -> Option<(usize, usize)> {
    products::packed_size(kind, kernel)
        .or_else(|| images::packed_size(kind, kernel))
        .or_else(|| volumes::packed_size(kind, kernel))
        .or_else(|| recurrent::packed_size(kind, kernel))
}

/// Bytes of packed weights and padded bias, for kinds that have them, by the name of the kernel they are packed for.
pub(crate) fn packed_bytes(kind: &StepKind, kernel: &str) -> Option<(u64, u64)> {
    if let Some(bytes) = quantized::packed_bytes(kind, kernel) {
        return Some((bytes, 0));
    }
    let (weights, bias) = packed_size(kind, kernel_by_name(kernel)?)?;
    Some((weights as u64 * 4, bias as u64 * 4))
}

/// The kernels' form of an activation.
fn activation(of: Option<ir::Activation>) -> Activation {
    use ir::Activation as From;
    match of {
        None => Activation::None,
        Some(From::Relu) => Activation::Relu,
        Some(From::Clip { min, max }) => {
            Activation::Clip { low: min.unwrap_or(f32::NEG_INFINITY), high: max.unwrap_or(f32::INFINITY) }
        }
        Some(From::LeakyRelu { alpha }) => Activation::LeakyRelu { alpha },
        Some(From::Elu { alpha }) => Activation::Elu { alpha },
        Some(From::Selu { alpha, gamma }) => Activation::Selu { alpha, gamma },
        Some(From::Celu { alpha }) => Activation::Celu { alpha },
        Some(From::ThresholdedRelu { alpha }) => Activation::ThresholdedRelu { alpha },
        Some(From::Sigmoid) => Activation::Sigmoid,
        Some(From::Tanh) => Activation::Tanh,
        Some(From::HardSigmoid { alpha, beta }) => Activation::HardSigmoid { alpha, beta },
        Some(From::HardSwish) => Activation::HardSwish,
        Some(From::Softplus) => Activation::Softplus,
        Some(From::Softsign) => Activation::Softsign,
        Some(From::Gelu(GeluForm::Erf)) => Activation::Gelu,
        Some(From::Gelu(GeluForm::Tanh)) => Activation::GeluTanh,
        Some(From::Silu) => Activation::Silu,
        Some(From::Mish) => Activation::Mish,
    }
}
