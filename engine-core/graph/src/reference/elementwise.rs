//! Element-by-element operators.

use super::{
    OpError,
    numbers::{Numbers, floats},
    walk::{broadcast_strides, walk},
};
use crate::{
    ir::{Activation, Binary, Compare, GeluForm, Tensor, Unary},
    shape::TensorType,
};
use std::f64::consts::{FRAC_1_SQRT_2, PI};

/// The larger of two, NaN when either is (as numpy).
pub fn max_nan(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

/// The smaller of two, NaN when either is.
pub fn min_nan(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// log(1 + e^x) without overflow.
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// One activation of one number.
pub fn activate_one(activation: &Activation, x: f64) -> f64 {
    match *activation {
        Activation::Relu => max_nan(x, 0.0),
        Activation::Clip { min, max } => {
            let x = min.map_or(x, |min| max_nan(x, min.into()));
            max.map_or(x, |max| min_nan(x, max.into()))
        }
        Activation::LeakyRelu { alpha } => {
            if x < 0.0 {
                f64::from(alpha) * x
            } else {
                x
            }
        }
        Activation::Elu { alpha } => {
            if x < 0.0 {
                f64::from(alpha) * x.exp_m1()
            } else {
                x
            }
        }
        Activation::Selu { alpha, gamma } => {
            f64::from(gamma) * if x <= 0.0 { f64::from(alpha) * x.exp_m1() } else { x }
        }
        Activation::Celu { alpha } => {
            let alpha = f64::from(alpha);
            max_nan(0.0, x) + min_nan(0.0, alpha * (x / alpha).exp_m1())
        }
        Activation::ThresholdedRelu { alpha } => {
            if x > f64::from(alpha) {
                x
            } else {
                0.0
            }
        }
        Activation::Sigmoid => sigmoid(x),
        Activation::Tanh => x.tanh(),
        Activation::HardSigmoid { alpha, beta } => min_nan(max_nan(f64::from(alpha) * x + f64::from(beta), 0.0), 1.0),
        Activation::HardSwish => x * min_nan(max_nan(x / 6.0 + 0.5, 0.0), 1.0),
        Activation::Softplus => softplus(x),
        Activation::Softsign => x / (1.0 + x.abs()),
        // 1 + erf would cancel below zero.
        Activation::Gelu(GeluForm::Erf) => 0.5 * x * libm::erfc(-x * FRAC_1_SQRT_2),
        // Neither must 1 + tanh: half of it is the sigmoid of twice the angle.
        Activation::Gelu(GeluForm::Tanh) => x * sigmoid(2.0 * (2.0 / PI).sqrt() * (x + 0.044715 * x * x * x)),
        Activation::Silu => x * sigmoid(x),
        Activation::Mish => x * softplus(x).tanh(),
    }
}

/// Element by element, in the shape of `x`.
///
/// # Errors
///
/// When the type has no such activation.
pub fn activate(activation: &Activation, x: &Tensor, out: &TensorType) -> Result<Tensor, OpError> {
    let values = match Numbers::of(x) {
        Numbers::Float(values) => Numbers::Float(values.iter().map(|&x| activate_one(activation, x)).collect()),
        // ONNX allows integers here for Relu and Clip alone.
        Numbers::Int(values) => match *activation {
            Activation::Relu => Numbers::Int(values.iter().map(|&x| x.max(0)).collect()),
            _ => return Err(OpError::Element { op: "activation", element: x.element() }),
        },
    };
    values.into_tensor(out)
}

/// Element by element, in the shape of `x`.
///
/// # Errors
///
/// When the type has no such function.
pub fn unary(op: Unary, x: &Tensor, out: &TensorType) -> Result<Tensor, OpError> {
    let wrong = || OpError::Element { op: "unary", element: x.element() };
    let result = match Numbers::of(x) {
        Numbers::Float(values) => {
            let function: fn(f64) -> f64 = match op {
                Unary::Neg => |x| -x,
                Unary::Abs => f64::abs,
                Unary::Exp => f64::exp,
                Unary::Log => f64::ln,
                Unary::Sqrt => f64::sqrt,
                Unary::Reciprocal => f64::recip,
                Unary::Floor => f64::floor,
                Unary::Ceil => f64::ceil,
                Unary::Round => f64::round_ties_even,
                Unary::Sign => |x| {
                    if x > 0.0 {
                        1.0
                    } else if x < 0.0 {
                        -1.0
                    } else {
                        x
                    }
                },
                Unary::Erf => libm::erf,
                Unary::Sin => f64::sin,
                Unary::Cos => f64::cos,
                Unary::Tan => f64::tan,
                Unary::Asin => f64::asin,
                Unary::Acos => f64::acos,
                Unary::Atan => f64::atan,
                Unary::Sinh => f64::sinh,
                Unary::Cosh => f64::cosh,
                Unary::Asinh => f64::asinh,
                Unary::Acosh => f64::acosh,
                Unary::Atanh => f64::atanh,
                Unary::IsNan => {
                    return Numbers::Int(values.iter().map(|x| x.is_nan().into()).collect()).into_tensor(out);
                }
                Unary::Not | Unary::BitwiseNot => return Err(wrong()),
            };
            Numbers::Float(values.into_iter().map(function).collect())
        }
        Numbers::Int(values) => {
            let function: fn(i128) -> i128 = match op {
                Unary::Neg => |x| -x,
                Unary::Abs => i128::abs,
                Unary::Sign => i128::signum,
                Unary::Not => |x| i128::from(x == 0),
                Unary::BitwiseNot => |x| !x,
                _ => return Err(wrong()),
            };
            Numbers::Int(values.into_iter().map(function).collect())
        }
    };
    result.into_tensor(out)
}

/// Visits the pairs that broadcasting brings together, in the order of the output.
fn pairs<A: Copy, B: Copy>(a: (&[usize], &[A]), b: (&[usize], &[B]), to: &[usize], mut visit: impl FnMut(A, B)) {
    let (a_strides, b_strides) = (broadcast_strides(a.0, to), broadcast_strides(b.0, to));
    walk(to, [&a_strides, &b_strides], |[i, j]| visit(a.1[i as usize], b.1[j as usize]));
}

fn divide_toward_minus_infinity_remainder(a: i128, b: i128) -> i128 {
    let remainder = a % b;
    if remainder != 0 && (remainder < 0) != (b < 0) { remainder + b } else { remainder }
}

fn integer_power(base: i128, exponent: i128) -> i128 {
    let (mut result, mut base, mut exponent) = (1i128, base, exponent);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = result.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        exponent >>= 1;
    }
    result
}

/// Two operands of any shapes that broadcast; gives the shape they broadcast to.
///
/// # Errors
///
/// When the type has no such function, or an integer is divided by zero.
pub fn binary(op: Binary, a: &Tensor, b: &Tensor, out: &TensorType) -> Result<Tensor, OpError> {
    let to = &out.shape;
    let wrong = OpError::Element { op: "binary", element: a.element() };
    let bits = 8 * a.element().bytes() as i128;
    match (Numbers::of(a), Numbers::of(b)) {
        (Numbers::Int(x), Numbers::Int(y)) => {
            let mut result = Vec::with_capacity(to.iter().product());
            if matches!(op, Binary::Div | Binary::Mod | Binary::FMod) && y.contains(&0) {
                return Err(OpError::DivisionByZero);
            }
            if op == Binary::Pow && y.iter().any(|&y| y < 0) {
                let as_floats = |v: Vec<i128>| v.into_iter().map(|v| v as f64).collect::<Vec<_>>();
                return float_binary(op, (a.shape(), &as_floats(x)), (b.shape(), &as_floats(y)), wrong, out);
            }
            let function: fn(i128, i128, i128) -> i128 = match op {
                Binary::Add => |x, y, _| x + y,
                Binary::Sub => |x, y, _| x - y,
                Binary::Mul => |x, y, _| x.wrapping_mul(y),
                Binary::Div => |x, y, _| x / y,
                Binary::Pow => |x, y, _| integer_power(x, y),
                Binary::Min => |x, y, _| x.min(y),
                Binary::Max => |x, y, _| x.max(y),
                Binary::Mod => |x, y, _| divide_toward_minus_infinity_remainder(x, y),
                Binary::FMod => |x, y, _| x % y,
                Binary::PRelu => |x, y, _| if x < 0 { x.wrapping_mul(y) } else { x },
                Binary::And | Binary::BitwiseAnd => |x, y, _| x & y,
                Binary::Or | Binary::BitwiseOr => |x, y, _| x | y,
                Binary::Xor | Binary::BitwiseXor => |x, y, _| x ^ y,
                Binary::ShiftLeft => |x, y, bits| if y < bits { x << y } else { 0 },
                Binary::ShiftRight => |x, y, bits| if y < bits { x >> y } else { 0 },
            };
            pairs((a.shape(), &x), (b.shape(), &y), to, |x, y| result.push(function(x, y, bits)));
            Numbers::Int(result).into_tensor(out)
        }
        (Numbers::Float(x), Numbers::Float(y)) => float_binary(op, (a.shape(), &x), (b.shape(), &y), wrong, out),
        // Pow alone takes two types; the result has the base's.
        (Numbers::Float(x), Numbers::Int(y)) if op == Binary::Pow => {
            let y: Vec<f64> = y.into_iter().map(|y| y as f64).collect();
            float_binary(op, (a.shape(), &x), (b.shape(), &y), wrong, out)
        }
        (Numbers::Int(x), Numbers::Float(y)) if op == Binary::Pow => {
            let x: Vec<f64> = x.into_iter().map(|x| x as f64).collect();
            float_binary(op, (a.shape(), &x), (b.shape(), &y), wrong, out)
        }
        _ => Err(wrong),
    }
}

fn float_binary(
    op: Binary,
    a: (&[usize], &[f64]),
    b: (&[usize], &[f64]),
    wrong: OpError,
    out: &TensorType,
) -> Result<Tensor, OpError> {
    let function: fn(f64, f64) -> f64 = match op {
        Binary::Add => |x, y| x + y,
        Binary::Sub => |x, y| x - y,
        Binary::Mul => |x, y| x * y,
        Binary::Div => |x, y| x / y,
        Binary::Pow => f64::powf,
        Binary::Min => min_nan,
        Binary::Max => max_nan,
        Binary::FMod => |x, y| x % y,
        Binary::PRelu => |x, y| if x < 0.0 { x * y } else { x },
        _ => return Err(wrong),
    };
    let mut result = Vec::with_capacity(out.shape.iter().product());
    pairs(a, b, &out.shape, |x, y| result.push(function(x, y)));
    Numbers::Float(result).into_tensor(out)
}

/// Two operands of any shapes that broadcast; gives bools of the shape they broadcast to.
///
/// # Errors
///
/// When the type has no such order.
pub fn compare(op: Compare, a: &Tensor, b: &Tensor, out: &TensorType) -> Result<Tensor, OpError> {
    fn all<T: PartialOrd + Copy>(op: Compare, a: (&[usize], &[T]), b: (&[usize], &[T]), to: &[usize]) -> Vec<u8> {
        let mut result = Vec::with_capacity(to.iter().product());
        pairs(a, b, to, |x, y| {
            result.push(u8::from(match op {
                Compare::Equal => x == y,
                Compare::Less => x < y,
                Compare::LessOrEqual => x <= y,
                Compare::Greater => x > y,
                Compare::GreaterOrEqual => x >= y,
            }));
        });
        result
    }
    let result = match (Numbers::of(a), Numbers::of(b)) {
        (Numbers::Int(x), Numbers::Int(y)) => all(op, (a.shape(), &x), (b.shape(), &y), &out.shape),
        (Numbers::Float(x), Numbers::Float(y)) => all(op, (a.shape(), &x), (b.shape(), &y), &out.shape),
        _ => return Err(OpError::Element { op: "compare", element: b.element() }),
    };
    Ok(Tensor::from_bools(out.shape.clone(), result)?)
}

/// Applies an optional activation in place.
pub fn activate_all(activation: Option<&Activation>, values: &mut [f64]) {
    if let Some(activation) = activation {
        for value in values {
            *value = activate_one(activation, *value);
        }
    }
}

/// Elements of an optional per-channel parameter.
///
/// # Errors
///
/// When it is no tensor of floats.
pub fn optional_floats(op: &'static str, tensor: Option<&Tensor>) -> Result<Option<Vec<f64>>, OpError> {
    tensor.map(|tensor| floats(op, tensor)).transpose()
}
