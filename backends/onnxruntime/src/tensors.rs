//! Tensors in and out of the library, by bytes.

use ort::{
    memory::Allocator,
    value::{
        DynMapValueType, DynSequenceValueType, DynTensor, DynTensorValueType, DynValue, TensorElementType, ValueType,
    },
};
use planforge_types::{BackendError, ElementType, FailureClass, HostTensor, Port};

/// Library types beside ours; whatever is not here has no place at an engine's edge.
const ELEMENTS: [(TensorElementType, ElementType); 13] = [
    (TensorElementType::Float32, ElementType::F32),
    (TensorElementType::Float16, ElementType::F16),
    (TensorElementType::Bfloat16, ElementType::Bf16),
    (TensorElementType::Float64, ElementType::F64),
    (TensorElementType::Int8, ElementType::I8),
    (TensorElementType::Uint8, ElementType::U8),
    (TensorElementType::Int16, ElementType::I16),
    (TensorElementType::Uint16, ElementType::U16),
    (TensorElementType::Int32, ElementType::I32),
    (TensorElementType::Uint32, ElementType::U32),
    (TensorElementType::Int64, ElementType::I64),
    (TensorElementType::Uint64, ElementType::U64),
    (TensorElementType::Bool, ElementType::Bool),
];

fn to_library(element: ElementType) -> Option<TensorElementType> {
    ELEMENTS.iter().find(|(_, ours)| *ours == element).map(|(theirs, _)| *theirs)
}

fn from_library(element: TensorElementType) -> Option<ElementType> {
    ELEMENTS.iter().find(|(theirs, _)| *theirs == element).map(|(_, ours)| *ours)
}

/// An input or output as a port; sequences, maps and text have none.
pub(crate) fn port(name: &str, dtype: &ValueType) -> Result<Port, BackendError> {
    let refused = || {
        BackendError::model(format!("'{name}' is {dtype}, which engines neither take nor give"))
            .with_hint("change the model so that its inputs and outputs are tensors of numbers")
    };
    let (ty, shape) = match dtype {
        ValueType::Tensor { ty, shape, .. } => (*ty, shape),
        _ => return Err(refused()),
    };
    let element = from_library(ty).ok_or_else(refused)?;
    let shape = shape.iter().map(|size| u64::try_from(*size).ok()).collect();
    Ok(Port { name: name.to_owned(), element, shape })
}

/// Copies a tensor into memory of the library.
pub(crate) fn to_value(tensor: &HostTensor) -> Result<DynTensor, BackendError> {
    let element = to_library(tensor.element)
        .ok_or_else(|| BackendError::model(format!("{} is no type of onnxruntime", tensor.element)))?;
    let count = tensor.shape.iter().try_fold(1usize, |count, size| count.checked_mul(*size));
    if count.and_then(|count| count.checked_mul(tensor.element.bytes())) != Some(tensor.bytes.len()) {
        return Err(BackendError::model(format!(
            "a tensor of shape {:?} has {} bytes",
            tensor.shape,
            tensor.bytes.len()
        )));
    }
    let shape: Vec<i64> = tensor.shape.iter().map(|size| *size as i64).collect();
    let mut value = DynTensor::new(&Allocator::default(), element, shape).map_err(|error| {
        BackendError::new(FailureClass::Resource, format!("onnxruntime cannot take a tensor: {}", error.message()))
    })?;
    if !tensor.bytes.is_empty() {
        // SAFETY: the tensor was just made on the CPU with this element type and shape, so it holds exactly this many
        // bytes, and nobody else knows of it.
        unsafe {
            std::ptr::copy_nonoverlapping(tensor.bytes.as_ptr(), value.data_ptr_mut().cast::<u8>(), tensor.bytes.len());
        }
    }
    Ok(value)
}

/// The tensor that a list of maps was made of: a row for each map, a column for each of `labels`.
pub(crate) fn from_maps(name: &str, value: &DynValue, labels: &[i64]) -> Result<HostTensor, BackendError> {
    let refused = |error: ort::Error| {
        BackendError::model(format!("output '{name}' is no list of maps of numbers: {}", error.message()))
    };
    let maps = value.view().downcast::<DynSequenceValueType>().map_err(refused)?;
    let maps = maps.try_extract_sequence::<DynMapValueType>().map_err(refused)?;
    let mut bytes = Vec::with_capacity(maps.len() * labels.len() * size_of::<f32>());
    for map in &maps {
        let map = map.try_extract_map::<i64, f32>().map_err(refused)?;
        for label in labels {
            let missing = || BackendError::model(format!("a map of output '{name}' lacks the label {label}"));
            bytes.extend(map.get(label).ok_or_else(missing)?.to_le_bytes());
        }
    }
    Ok(HostTensor { element: ElementType::F32, shape: vec![maps.len(), labels.len()], bytes })
}

/// Copies an output out of the library; it must lie in the CPU's memory.
pub(crate) fn from_value(name: &str, value: &DynValue) -> Result<HostTensor, BackendError> {
    let refused = || BackendError::model(format!("output '{name}' is {}, no tensor of numbers", value.dtype()));
    let tensor = value.view().downcast::<DynTensorValueType>().map_err(|_| refused())?;
    let element = from_library(*tensor.data_type()).ok_or_else(refused)?;
    let sizes = tensor.shape().iter().map(|size| usize::try_from(*size).ok()).collect::<Option<Vec<_>>>();
    let shape = sizes.ok_or_else(refused)?;
    let count = shape.iter().try_fold(element.bytes(), |bytes, size| bytes.checked_mul(*size)).ok_or_else(refused)?;
    let mut bytes = Vec::new();
    if count > 0 {
        if !tensor.memory_info().is_cpu_accessible() {
            return Err(BackendError::model(format!("output '{name}' was left on the device")));
        }
        // SAFETY: a dense tensor of `shape` and `element` in CPU memory, alive as long as `value`.
        bytes = unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast::<u8>(), count) }.to_vec();
    }
    Ok(HostTensor { element, shape, bytes })
}
