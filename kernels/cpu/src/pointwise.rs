//! Element-wise work: activations in place, and binary operators with the broadcasts that engines meet.

use crate::{isa::per_level, math};

/// What follows a product, or stands alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    None,
    Relu,
    Clip { low: f32, high: f32 },
    LeakyRelu { alpha: f32 },
    Elu { alpha: f32 },
    Selu { alpha: f32, gamma: f32 },
    Celu { alpha: f32 },
    ThresholdedRelu { alpha: f32 },
    Sigmoid,
    Tanh,
    HardSigmoid { alpha: f32, beta: f32 },
    HardSwish,
    Softplus,
    Softsign,
    Gelu,
    GeluTanh,
    Silu,
    Mish,
}

#[inline(always)]
fn map(values: &mut [f32], f: impl Fn(f32) -> f32) {
    for value in values {
        *value = f(*value);
    }
}

/// Values that a function is applied to in place.
trait Each {
    fn each(self, f: impl Fn(f32) -> f32);
}

impl Each for &mut [f32] {
    #[inline(always)]
    fn each(self, f: impl Fn(f32) -> f32) {
        map(self, f);
    }
}

/// A few short lines of a larger matrix, `stride` apart.
pub(crate) struct Lines {
    first: *mut f32,
    stride: usize,
    count: usize,
    len: usize,
}

impl Lines {
    /// # Safety
    /// Until the result is used up, the lines are valid and nothing else reads or writes them.
    pub(crate) unsafe fn new(first: *mut f32, stride: usize, count: usize, len: usize) -> Self {
        Self { first, stride, count, len }
    }
}

impl Each for Lines {
    #[inline(always)]
    fn each(self, f: impl Fn(f32) -> f32) {
        for line in 0..self.count {
            // SAFETY: `new`'s caller vouches for every line, so also for its place.
            let line = unsafe { std::slice::from_raw_parts_mut(self.first.add(line * self.stride), self.len) };
            map(line, &f);
        }
    }
}

/// `ln(1 + e^x)` without overflow.
#[inline(always)]
fn softplus<const FUSED: bool>(x: f32) -> f32 {
    // Scalar: ln_1p keeps the digits of small e^-|x|.
    x.max(0.0) + math::exp::<FUSED>(-x.abs()).ln_1p()
}

/// `alpha (e^x - 1)` below zero, by the half-angle form that keeps the digits near zero.
#[inline(always)]
fn exp_minus_one<const FUSED: bool>(x: f32) -> f32 {
    let t = math::tanh::<FUSED>(0.5 * x);
    2.0 * t / (1.0 - t)
}

#[inline(always)]
fn apply<const FUSED: bool>(activation: Activation, values: impl Each) {
    match activation {
        Activation::None => {}
        Activation::Relu => values.each(|x| if x < 0.0 { 0.0 } else { x }),
        Activation::Clip { low, high } => values.each(|x| {
            let x = if x < low { low } else { x };
            if x > high { high } else { x }
        }),
        Activation::LeakyRelu { alpha } => values.each(|x| if x < 0.0 { alpha * x } else { x }),
        Activation::Elu { alpha } => values.each(|x| if x < 0.0 { alpha * exp_minus_one::<FUSED>(x) } else { x }),
        Activation::Selu { alpha, gamma } => {
            values.each(|x| gamma * if x < 0.0 { alpha * exp_minus_one::<FUSED>(x) } else { x });
        }
        Activation::Celu { alpha } => {
            values.each(|x| if x < 0.0 { alpha * exp_minus_one::<FUSED>(x / alpha) } else { x });
        }
        Activation::ThresholdedRelu { alpha } => values.each(|x| if x > alpha { x } else { 0.0 }),
        Activation::Sigmoid => values.each(math::sigmoid::<FUSED>),
        Activation::Tanh => values.each(math::tanh::<FUSED>),
        Activation::HardSigmoid { alpha, beta } => values.each(|x| (alpha * x + beta).clamp(0.0, 1.0)),
        Activation::HardSwish => values.each(|x| x * (x / 6.0 + 0.5).clamp(0.0, 1.0)),
        Activation::Softplus => values.each(softplus::<FUSED>),
        Activation::Softsign => values.each(|x| x / (1.0 + x.abs())),
        Activation::Gelu => values.each(math::gelu::<FUSED>),
        Activation::GeluTanh => values.each(math::gelu_tanh::<FUSED>),
        Activation::Silu => values.each(math::silu::<FUSED>),
        Activation::Mish => values.each(|x| x * math::tanh::<FUSED>(softplus::<FUSED>(x))),
    }
}

per_level! {
    /// Applies `activation` to every value.
    pub fn activate(activation: Activation, values: &mut [f32]) {
        apply::<FUSED>(activation, values);
    }
}

per_level! {
    /// Applies `activation` to every value of every line.
    pub(crate) fn activate_lines(activation: Activation, lines: Lines) {
        apply::<FUSED>(activation, lines);
    }
}

/// Functions of one value that engines vectorise beside the activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    Neg,
    Abs,
    Exp,
    Sqrt,
    Reciprocal,
    Erf,
}

per_level! {
    /// Applies `function` to every value.
    pub fn unary(function: Unary, values: &mut [f32]) {
        match function {
            Unary::Neg => map(values, |x| -x),
            Unary::Abs => map(values, f32::abs),
            Unary::Exp => map(values, math::exp::<FUSED>),
            Unary::Sqrt => map(values, f32::sqrt),
            Unary::Reciprocal => map(values, |x| 1.0 / x),
            Unary::Erf => map(values, math::erf::<FUSED>),
        }
    }
}

/// Functions of two values that engines vectorise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Min,
    Max,
}

/// The right operand of one run of a binary operator.
#[derive(Clone, Copy, Debug)]
pub enum Right<'a> {
    /// As long as the output.
    Each(&'a [f32]),
    /// The same for every element.
    Same(f32),
}

/// The left operand of one run of a binary operator.
#[derive(Clone, Copy, Debug)]
pub enum Left<'a> {
    Each(&'a [f32]),
    Same(f32),
}

#[inline(always)]
fn zip(left: Left<'_>, right: Right<'_>, to: &mut [f32], f: impl Fn(f32, f32) -> f32) {
    match (left, right) {
        (Left::Each(a), Right::Each(b)) => {
            for ((to, a), b) in to.iter_mut().zip(a).zip(b) {
                *to = f(*a, *b);
            }
        }
        (Left::Each(a), Right::Same(b)) => {
            for (to, a) in to.iter_mut().zip(a) {
                *to = f(*a, b);
            }
        }
        (Left::Same(a), Right::Each(b)) => {
            for (to, b) in to.iter_mut().zip(b) {
                *to = f(a, *b);
            }
        }
        (Left::Same(a), Right::Same(b)) => to.fill(f(a, b)),
    }
}

/// The function of two values by its name.
macro_rules! with_function {
    ($function:expr, |$f:ident| $body:expr) => {
        match $function {
            Binary::Add => {
                let $f = |a: f32, b: f32| a + b;
                $body
            }
            Binary::Sub => {
                let $f = |a: f32, b: f32| a - b;
                $body
            }
            Binary::Mul => {
                let $f = |a: f32, b: f32| a * b;
                $body
            }
            Binary::Div => {
                let $f = |a: f32, b: f32| a / b;
                $body
            }
            // A NaN on either side is the result.
            Binary::Min => {
                let $f = |a: f32, b: f32| if a < b || a.is_nan() { a } else { b };
                $body
            }
            Binary::Max => {
                let $f = |a: f32, b: f32| if a > b || a.is_nan() { a } else { b };
                $body
            }
        }
    };
}

per_level! {
    /// `to[i] = function(left, right)`, up to the length of the shortest operand.
    pub fn binary(function: Binary, left: Left<'_>, right: Right<'_>, to: &mut [f32]) {
        with_function!(function, |f| zip(left, right, to, f));
    }
}

per_level! {
    /// `function` of each line of `left` and all of `right`; what is no whole line of `left` and `to` is left as it is.
    ///
    /// # Panics
    /// When `right` is empty.
    pub fn binary_lines(function: Binary, left: &[f32], right: &[f32], to: &mut [f32]) {
        with_function!(function, |f| {
            for (to, left) in to.chunks_exact_mut(right.len()).zip(left.chunks_exact(right.len())) {
                zip(Left::Each(left), Right::Each(right), to, f);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    #[test]
    fn gelu_keeps_its_digits_down_to_the_smallest_numbers_at_every_level() {
        // The whole negative tail as far as the result is a normal number, and beyond.
        let x: Vec<f32> = (0..200_001).map(|step| step as f32 * -1e-4).collect();
        for isa in Isa::available() {
            let mut y = x.clone();
            activate(isa, Activation::Gelu, &mut y);
            for (x, y) in x.iter().zip(&y) {
                let (x, y) = (f64::from(*x), f64::from(*y));
                let right = 0.5 * x * libm::erfc(-x / 2f64.sqrt());
                let error = (y - right).abs();
                assert!(error <= 2e-6 * right.abs() + 3e-38, "{:?}: gelu({x}) = {y}, not {right}", isa.level());
            }
        }
    }
}
