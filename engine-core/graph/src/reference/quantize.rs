//! Floats as scaled integers and back.

use super::{
    Inputs, OpError,
    numbers::{Numbers, floats},
    walk::around,
};
use crate::{
    ir::{ElementType, Quantization, Tensor},
    shape::TensorType,
};

/// Scale and zero of every element, for a tensor of this shape.
struct Steps {
    scales: Vec<f64>,
    zeros: Vec<f64>,
    /// Elements that lie behind the axis.
    inner: usize,
}

impl Steps {
    fn of(how: Quantization, inputs: &Inputs<'_>, shape: &[usize]) -> Result<Self, OpError> {
        let scales = floats("quantize", inputs.get(1)?)?;
        let zeros = inputs.optional(2).map_or_else(|| vec![0.0; scales.len()], Tensor::to_f64s);
        let inner = how.axis.map_or(1, |axis| around(shape, axis).2);
        Ok(Self { scales, zeros, inner: inner.max(1) })
    }

    fn at(&self, index: usize) -> (f64, f64) {
        let at = index / self.inner % self.scales.len();
        (self.scales[at], self.zeros[at])
    }
}

/// Least and largest integer of the type, exactly.
fn limits(element: ElementType) -> Result<(f64, f64), OpError> {
    Ok(match element {
        ElementType::I8 => (i8::MIN.into(), i8::MAX.into()),
        ElementType::U8 => (0.0, u8::MAX.into()),
        ElementType::I16 => (i16::MIN.into(), i16::MAX.into()),
        ElementType::U16 => (0.0, u16::MAX.into()),
        ElementType::I32 => (i32::MIN.into(), i32::MAX.into()),
        element => return Err(OpError::Element { op: "quantize", element }),
    })
}

/// Integers (as f64) that stand for the elements. The quotient is rounded to single precision before it is rounded to
/// a whole number, as every runtime does that computes in the type of its input; NaN becomes the zero point.
fn integers(how: Quantization, inputs: &Inputs<'_>, steps: &Steps) -> Result<Vec<f64>, OpError> {
    let (low, high) = limits(how.element)?;
    let x = inputs.get(0)?;
    let single = x.element() != ElementType::F64;
    let whole = |(index, x): (usize, f64)| {
        let (scale, zero) = steps.at(index);
        let quotient = if single { f64::from((x / scale) as f32) } else { x / scale };
        let rounded = if quotient.is_nan() { 0.0 } else { quotient.round_ties_even() };
        (rounded + zero).clamp(low, high)
    };
    Ok(floats("quantize", x)?.into_iter().enumerate().map(whole).collect())
}

/// `[x, scale, zero?]`, the parameters scalars or one per place of the axis; gives integers of the shape of `x`.
///
/// # Errors
///
/// When an input is missing or of a type that is not quantized.
pub fn quantize(how: Quantization, inputs: &Inputs<'_>, out: &TensorType) -> Result<Tensor, OpError> {
    let steps = Steps::of(how, inputs, &out.shape)?;
    Numbers::Float(integers(how, inputs, &steps)?).into_tensor(out)
}

fn scaled(mut integers: Vec<f64>, steps: &Steps, out: &TensorType) -> Result<Tensor, OpError> {
    for (index, value) in integers.iter_mut().enumerate() {
        let (scale, zero) = steps.at(index);
        *value = (*value - zero) * scale;
    }
    Numbers::Float(integers).into_tensor(out)
}

/// `[x, scale, zero?]`, the parameters scalars or one per place of the axis; gives floats of the shape of `x`.
///
/// # Errors
///
/// When an input is missing or of a type that is not quantized.
pub fn dequantize(how: Quantization, inputs: &Inputs<'_>, out: &TensorType) -> Result<Tensor, OpError> {
    let steps = Steps::of(how, inputs, &out.shape)?;
    scaled(inputs.get(0)?.to_f64s(), &steps, out)
}

/// The size of one step of `x` at every element: inputs as of `quantize`.
///
/// # Errors
///
/// When the scale is missing or no float.
pub fn steps(how: Quantization, tensors: &[Option<&Tensor>]) -> Result<Vec<f64>, OpError> {
    let inputs = Inputs { op: "quantize", tensors };
    let x = inputs.get(0)?;
    let steps = Steps::of(how, &inputs, x.shape())?;
    Ok((0..x.len()).map(|index| steps.at(index).0).collect())
}

pub fn fake_quantize(how: Quantization, inputs: &Inputs<'_>, out: &TensorType) -> Result<Tensor, OpError> {
    let steps = Steps::of(how, inputs, &out.shape)?;
    scaled(integers(how, inputs, &steps)?, &steps, out)
}
