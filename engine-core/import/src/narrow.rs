//! Types of eight bits and fewer that the graph has not: what they are kept as, and how they are read and made.
//!
//! Integers of two and four bits are kept one to a byte, as `i8` or `u8`; floats of eight bits and fewer as their codes, as
//! `u8`. The builder notes which values are: nodes that only move elements hand the note on, any other is refused that
//! does not ask for the numbers. So no code is ever taken for a number.

use crate::element_type;
use planforge_graph::{
    ir::{ElementType, Tensor},
    named::{NARROW_FLOATS, power},
};
use planforge_onnx::proto::tensor_proto::DataType;

/// A type that the graph has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Narrow {
    data_type: DataType,
}

/// What a value is kept as, and the type that is meant where it is another.
pub type Kept = (ElementType, Option<Narrow>);

/// The element type behind ONNX's number, also where it is kept as another; or the name of one that is not supported.
pub fn kept_type(data_type: i32) -> Result<Kept, String> {
    match Narrow::of(data_type) {
        Some(narrow) => Ok((narrow.kept_as(), Some(narrow))),
        None => Ok((element_type(data_type)?, None)),
    }
}

/// A tensor that is kept one element to a byte, of its packed bytes.
pub fn unpacked(narrow: Narrow, shape: Vec<usize>, packed: &[u8]) -> Result<Tensor, String> {
    let (bits, count) = (narrow.bits(), shape.iter().product::<usize>());
    if bits == 8 {
        return Tensor::from_vec(shape, packed.to_vec()).map_err(|error| error.to_string());
    }
    let per_byte = 8 / bits as usize;
    let element = |at: usize| {
        let byte = packed.get(at / per_byte).copied().unwrap_or(0);
        (byte >> (at % per_byte * bits as usize)) & ((1 << bits) - 1)
    };
    let elements = (0..count).map(element);
    let tensor = match narrow.is_signed() {
        // The highest bit stands for all above it.
        true => {
            Tensor::from_vec(shape, elements.map(|bits_of| ((bits_of << (8 - bits)) as i8) >> (8 - bits)).collect())
        }
        false => Tensor::from_vec(shape, elements.collect::<Vec<u8>>()),
    };
    tensor.map_err(|error| error.to_string())
}

impl Narrow {
    pub fn of(data_type: i32) -> Option<Self> {
        let data_type = DataType::try_from(data_type).ok()?;
        let known = matches!(
            data_type,
            DataType::Int2
                | DataType::Uint2
                | DataType::Int4
                | DataType::Uint4
                | DataType::Float4e2m1
                | DataType::Float8e4m3fn
                | DataType::Float8e4m3fnuz
                | DataType::Float8e5m2
                | DataType::Float8e5m2fnuz
                | DataType::Float8e8m0
        );
        known.then_some(Self { data_type })
    }

    /// As ONNX names it.
    pub fn name(self) -> &'static str {
        self.data_type.as_str_name()
    }

    pub fn kept_as(self) -> ElementType {
        if self.is_signed() { ElementType::I8 } else { ElementType::U8 }
    }

    fn is_signed(self) -> bool {
        matches!(self.data_type, DataType::Int2 | DataType::Int4)
    }

    pub fn is_integer(self) -> bool {
        self.is_signed() || matches!(self.data_type, DataType::Uint2 | DataType::Uint4)
    }

    fn bits(self) -> u32 {
        match self.data_type {
            DataType::Int2 | DataType::Uint2 => 2,
            DataType::Int4 | DataType::Uint4 | DataType::Float4e2m1 => 4,
            _ => 8,
        }
    }

    /// The least and the largest integer.
    pub fn range(self) -> [f64; 2] {
        let count = f64::from(1u32 << self.bits());
        if self.is_signed() { [-count / 2.0, count / 2.0 - 1.0] } else { [0.0, count - 1.0] }
    }

    /// The number of every code.
    pub fn table(self) -> Vec<f32> {
        let format = NARROW_FLOATS.iter().find(|format| format.name == self.name());
        (0..=u8::MAX).map(|code| format.map_or_else(|| power(code), |format| format.decode(code)) as f32).collect()
    }
}
