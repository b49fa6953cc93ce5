//! Tensors whose bytes may lie in the mapped model file.

use super::ElementType;
use bytes::Bytes;
use half::{bf16, f16};
use planforge_types::HostTensor;
use planforge_types::element_count;
use std::{borrow::Cow, fmt};

/// A dense row-major tensor of little-endian elements. Bytes are shared, and aligned to nothing.
#[derive(Clone, PartialEq)]
pub struct Tensor {
    element: ElementType,
    shape: Vec<usize>,
    bytes: Bytes,
}

/// Why bytes do not make a tensor, or a tensor is not what it was taken for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    #[error("a tensor of {element} {shape:?} has {expected} bytes, not {actual}")]
    Length { element: ElementType, shape: Vec<usize>, expected: usize, actual: usize },
    #[error("the shape {0:?} has more elements than this machine can address")]
    Overflow(Vec<usize>),
    #[error("a tensor of {actual} was read as {wanted}")]
    Element { wanted: ElementType, actual: ElementType },
}

/// Rust types that lie in tensors as they are.
pub trait Element: bytemuck::Pod + PartialOrd + fmt::Debug + Send + Sync {
    const ELEMENT: ElementType;
}

macro_rules! elements {
    ($($rust:ty => $element:ident),*) => {$(impl Element for $rust { const ELEMENT: ElementType = ElementType::$element; })*};
}
elements!(f32 => F32, f16 => F16, bf16 => Bf16, f64 => F64, i8 => I8, u8 => U8, i16 => I16, u16 => U16, i32 => I32, u32 => U32, i64 => I64, u64 => U64);

#[cfg(not(target_endian = "little"))]
compile_error!("tensors are little-endian in files and in memory");

/// Lets `Bytes` own a vector of any element type.
struct Owner<T>(Vec<T>);

impl<T: bytemuck::Pod> AsRef<[u8]> for Owner<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

impl Tensor {
    /// A tensor over `bytes`, which must be exactly as long as type and shape say.
    ///
    /// # Errors
    ///
    /// When the bytes are not as many as the shape takes, or more than can be addressed.
    pub fn new(element: ElementType, shape: Vec<usize>, bytes: Bytes) -> Result<Self, TensorError> {
        let Some(count) = element_count(&shape) else { return Err(TensorError::Overflow(shape)) };
        let expected = count * element.bytes();
        if bytes.len() != expected {
            return Err(TensorError::Length { element, shape, expected, actual: bytes.len() });
        }
        Ok(Self { element, shape, bytes })
    }

    /// A tensor of `values`, without copying them.
    ///
    /// # Errors
    ///
    /// When the values do not fill the shape.
    pub fn from_vec<T: Element>(shape: Vec<usize>, values: Vec<T>) -> Result<Self, TensorError> {
        Self::new(T::ELEMENT, shape, Bytes::from_owner(Owner(values)))
    }

    /// A tensor of no dimensions.
    pub fn scalar<T: Element>(value: T) -> Self {
        Self { element: T::ELEMENT, shape: Vec::new(), bytes: Bytes::copy_from_slice(bytemuck::bytes_of(&value)) }
    }

    /// A bool tensor; elements are one byte, 0 or 1.
    ///
    /// # Errors
    ///
    /// When the values do not fill the shape.
    pub fn from_bools(shape: Vec<usize>, values: Vec<u8>) -> Result<Self, TensorError> {
        Self::new(ElementType::Bool, shape, Bytes::from(values))
    }

    pub fn element(&self) -> ElementType {
        self.element
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    pub fn len(&self) -> usize {
        self.bytes.len() / self.element.bytes()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The elements; copied only when their bytes are not aligned.
    ///
    /// # Errors
    ///
    /// When the elements are of another type.
    pub fn values<T: Element>(&self) -> Result<Cow<'_, [T]>, TensorError> {
        if self.element != T::ELEMENT {
            return Err(TensorError::Element { wanted: T::ELEMENT, actual: self.element });
        }
        Ok(self.cast())
    }

    /// The bytes of a bool or 8-bit tensor.
    ///
    /// # Errors
    ///
    /// When the elements are no bools.
    pub fn bools(&self) -> Result<&[u8], TensorError> {
        match self.element {
            ElementType::Bool => Ok(&self.bytes),
            actual => Err(TensorError::Element { wanted: ElementType::Bool, actual }),
        }
    }

    fn cast<T: Element>(&self) -> Cow<'_, [T]> {
        match bytemuck::try_cast_slice(&self.bytes) {
            Ok(aligned) => Cow::Borrowed(aligned),
            Err(_) => Cow::Owned(bytemuck::pod_collect_to_vec(&self.bytes)),
        }
    }

    /// The same bytes in another shape of as many elements.
    ///
    /// # Errors
    ///
    /// When the shape has another number of elements.
    pub fn reshaped(&self, shape: Vec<usize>) -> Result<Self, TensorError> {
        Self::new(self.element, shape, self.bytes.clone())
    }

    /// Elements of an integer tensor (any width, bool as 0 and 1); `None` for other types.
    pub fn to_i64s(&self) -> Option<Vec<i64>> {
        Some(match self.element {
            ElementType::I64 => self.cast::<i64>().into_owned(),
            ElementType::I32 => self.cast::<i32>().iter().map(|&v| v.into()).collect(),
            ElementType::I16 => self.cast::<i16>().iter().map(|&v| v.into()).collect(),
            ElementType::I8 => self.cast::<i8>().iter().map(|&v| v.into()).collect(),
            ElementType::U8 | ElementType::Bool => self.bytes.iter().map(|&v| v.into()).collect(),
            ElementType::U16 => self.cast::<u16>().iter().map(|&v| v.into()).collect(),
            ElementType::U32 => self.cast::<u32>().iter().map(|&v| v.into()).collect(),
            ElementType::U64 => {
                self.cast::<u64>().iter().map(|&v| i64::try_from(v).ok()).collect::<Option<Vec<_>>>()?
            }
            ElementType::F32 | ElementType::F16 | ElementType::Bf16 | ElementType::F64 => return None,
        })
    }

    /// Every element as f64: exact, but for 64-bit integers beyond 2^53.
    pub fn to_f64s(&self) -> Vec<f64> {
        match self.element {
            ElementType::F64 => self.cast::<f64>().into_owned(),
            ElementType::F32 => self.cast::<f32>().iter().map(|&v| v.into()).collect(),
            ElementType::F16 => self.cast::<f16>().iter().map(|&v| v.into()).collect(),
            ElementType::Bf16 => self.cast::<bf16>().iter().map(|&v| v.into()).collect(),
            ElementType::U64 => self.cast::<u64>().iter().map(|&v| v as f64).collect(),
            ElementType::I64 => self.cast::<i64>().iter().map(|&v| v as f64).collect(),
            ElementType::I32 => self.cast::<i32>().iter().map(|&v| v.into()).collect(),
            ElementType::U32 => self.cast::<u32>().iter().map(|&v| v.into()).collect(),
            ElementType::I16 => self.cast::<i16>().iter().map(|&v| v.into()).collect(),
            ElementType::U16 => self.cast::<u16>().iter().map(|&v| v.into()).collect(),
            ElementType::I8 => self.cast::<i8>().iter().map(|&v| v.into()).collect(),
            ElementType::U8 | ElementType::Bool => self.bytes.iter().map(|&v| v.into()).collect(),
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({:?} {:?}, {} bytes)", self.element, self.shape, self.bytes.len())
    }
}

impl TryFrom<HostTensor> for Tensor {
    type Error = TensorError;

    fn try_from(tensor: HostTensor) -> Result<Self, TensorError> {
        Self::new(tensor.element, tensor.shape, Bytes::from(tensor.bytes))
    }
}

impl From<&Tensor> for HostTensor {
    fn from(tensor: &Tensor) -> Self {
        Self { element: tensor.element, shape: tensor.shape.clone(), bytes: tensor.bytes.to_vec() }
    }
}
