//! Tensors at an engine's edge: element types, values, and the inputs and outputs that plans have.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt};

/// Element type of a tensor at an engine's edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ElementType {
    F32,
    F16,
    Bf16,
    F64,
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    Bool,
}

impl fmt::Display for ElementType {
    /// `f32`, as everybody spells it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F64 => "f64",
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::I16 => "i16",
            Self::U16 => "u16",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::I64 => "i64",
            Self::U64 => "u64",
            Self::Bool => "bool",
        })
    }
}

impl ElementType {
    /// Size of one element.
    pub fn bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::Bool => 1,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }
}

/// A dense row-major tensor of little-endian elements.
#[derive(Clone, Debug, PartialEq)]
pub struct HostTensor {
    pub element: ElementType,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl HostTensor {
    /// A tensor of `values`, each rounded to the type and saturating at its bounds.
    pub fn of_values(element: ElementType, shape: Vec<usize>, values: &[f64]) -> Self {
        let mut bytes = Vec::with_capacity(values.len() * element.bytes());
        for &value in values {
            match element {
                ElementType::F32 => bytes.extend((value as f32).to_le_bytes()),
                ElementType::F16 => bytes.extend(f16::from_f64(value).to_le_bytes()),
                ElementType::Bf16 => bytes.extend(bf16::from_f64(value).to_le_bytes()),
                ElementType::F64 => bytes.extend(value.to_le_bytes()),
                ElementType::I8 => bytes.extend((value as i8).to_le_bytes()),
                ElementType::U8 => bytes.push(value as u8),
                ElementType::I16 => bytes.extend((value as i16).to_le_bytes()),
                ElementType::U16 => bytes.extend((value as u16).to_le_bytes()),
                ElementType::I32 => bytes.extend((value as i32).to_le_bytes()),
                ElementType::U32 => bytes.extend((value as u32).to_le_bytes()),
                ElementType::I64 => bytes.extend((value as i64).to_le_bytes()),
                ElementType::U64 => bytes.extend((value as u64).to_le_bytes()),
                ElementType::Bool => bytes.push(u8::from(value != 0.0)),
            }
        }
        Self { element, shape, bytes }
    }
}

/// Tensors by the name of the model's input or output.
pub type NamedTensors = BTreeMap<String, HostTensor>;

/// An input or output of a plan. A dimension of `None` varies within the profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    pub name: String,
    pub element: ElementType,
    pub shape: Vec<Option<u64>>,
}

impl Port {
    /// `1, 3, ?`: its dimensions, a question mark where one varies.
    pub fn sizes(&self) -> String {
        let sizes = self.shape.iter().map(|size| size.map_or_else(|| "?".to_owned(), |size| size.to_string()));
        sizes.collect::<Vec<_>>().join(", ")
    }
}

/// Product of the dimensions; `None` when it does not fit, or its bytes at 8 an element do not.
pub fn element_count(shape: &[usize]) -> Option<usize> {
    // A dimension of zero makes the others no smaller: parts of the shape are multiplied on their own, too.
    let count = shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size.max(1)))?;
    let fits = count.checked_mul(8).is_some_and(|bytes| bytes <= isize::MAX as usize);
    fits.then(|| if shape.contains(&0) { 0 } else { count })
}
