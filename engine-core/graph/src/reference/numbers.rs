//! Tensors as exact numbers: floats as f64, integers and bools as i128.

use super::OpError;
use crate::{
    ir::{ElementType, Tensor},
    shape::{TensorType, is_float},
};
use half::{bf16, f16};

/// Elements of a tensor in the type they are computed in.
#[derive(Debug)]
pub enum Numbers {
    Float(Vec<f64>),
    Int(Vec<i128>),
}

impl Numbers {
    pub fn of(tensor: &Tensor) -> Self {
        match tensor.element() {
            element if is_float(element) => Self::Float(tensor.to_f64s()),
            ElementType::U64 => {
                let values = tensor.values::<u64>().expect("the type was just matched");
                Self::Int(values.iter().map(|&v| v.into()).collect())
            }
            _ => Self::Int(tensor.to_i64s().expect("integers of 64 bits").into_iter().map(i128::from).collect()),
        }
    }

    /// # Errors
    ///
    /// When it is no tensor of floats.
    pub fn floats(&self) -> Option<&[f64]> {
        match self {
            Self::Float(values) => Some(values),
            Self::Int(_) => None,
        }
    }

    pub fn ints(&self) -> Option<&[i128]> {
        match self {
            Self::Int(values) => Some(values),
            Self::Float(_) => None,
        }
    }

    /// Rounds (floats), truncates (float to integer, saturating) or wraps (integers) to the wanted type.
    ///
    /// # Errors
    ///
    /// When there are not as many numbers as the shape has places.
    pub fn into_tensor(self, out: &TensorType) -> Result<Tensor, OpError> {
        let shape = out.shape.clone();
        macro_rules! convert {
            ($rust:ty) => {
                match self {
                    Self::Float(values) => Tensor::from_vec(shape, values.iter().map(|&v| v as $rust).collect()),
                    Self::Int(values) => Tensor::from_vec(shape, values.iter().map(|&v| v as $rust).collect()),
                }
            };
        }
        macro_rules! convert_half {
            ($rust:ty) => {
                match self {
                    Self::Float(values) => {
                        Tensor::from_vec(shape, values.iter().map(|&v| <$rust>::from_f64(v)).collect())
                    }
                    Self::Int(values) => {
                        Tensor::from_vec(shape, values.iter().map(|&v| <$rust>::from_f64(v as f64)).collect())
                    }
                }
            };
        }
        Ok(match out.element {
            ElementType::F32 => convert!(f32),
            ElementType::F64 => match self {
                Self::Float(values) => Tensor::from_vec(shape, values),
                Self::Int(values) => Tensor::from_vec(shape, values.iter().map(|&v| v as f64).collect()),
            },
            ElementType::F16 => convert_half!(f16),
            ElementType::Bf16 => convert_half!(bf16),
            ElementType::I8 => convert!(i8),
            ElementType::U8 => convert!(u8),
            ElementType::I16 => convert!(i16),
            ElementType::U16 => convert!(u16),
            ElementType::I32 => convert!(i32),
            ElementType::U32 => convert!(u32),
            ElementType::I64 => convert!(i64),
            ElementType::U64 => convert!(u64),
            ElementType::Bool => Tensor::from_bools(
                shape,
                match self {
                    Self::Float(values) => values.iter().map(|&v| u8::from(v != 0.0)).collect(),
                    Self::Int(values) => values.iter().map(|&v| u8::from(v != 0)).collect(),
                },
            ),
        }?)
    }
}

/// Elements as f64 of a tensor that must be a float one.
///
/// # Errors
///
/// When it is no tensor of floats.
pub fn floats(op: &'static str, tensor: &Tensor) -> Result<Vec<f64>, OpError> {
    match is_float(tensor.element()) {
        true => Ok(tensor.to_f64s()),
        false => Err(OpError::Element { op, element: tensor.element() }),
    }
}
