//! Tensors between this program and the tool's files: raw little-endian elements in, decimal numbers out.

use planforge_graph::ir::{Tensor, TensorError};
use planforge_types::{ElementType, HostTensor};

/// The element type that `trtexec` calls `name`; `None` for types without a whole number of bytes, and for others that
/// no tensor at an engine's edge has here.
pub(crate) fn element(name: &str) -> Option<ElementType> {
    Some(match name {
        "fp32" => ElementType::F32,
        "fp16" => ElementType::F16,
        "bf16" => ElementType::Bf16,
        "int8" => ElementType::I8,
        "uint8" => ElementType::U8,
        "int32" => ElementType::I32,
        "int64" => ElementType::I64,
        "bool" => ElementType::Bool,
        _ => return None,
    })
}

/// The tensor's elements in another type, saturating at its bounds; the same bytes where the type is the same.
///
/// # Errors
/// When the tensor's bytes are not as many as its shape says.
pub(crate) fn convert(tensor: &HostTensor, to: ElementType) -> Result<Vec<u8>, TensorError> {
    if tensor.element == to {
        return Ok(tensor.bytes.clone());
    }
    let values = Tensor::try_from(tensor.clone())?.to_f64s();
    Ok(HostTensor::of_values(to, tensor.shape.clone(), &values).bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_where_the_other_type_has_room() {
        let ids = HostTensor::of_values(ElementType::I64, vec![3], &[0.0, 30_521.0, -1.0]);
        let narrow =
            HostTensor { element: ElementType::I32, shape: vec![3], bytes: convert(&ids, ElementType::I32).unwrap() };
        assert_eq!(narrow.bytes.len(), 12);
        assert_eq!(convert(&narrow, ElementType::I64).unwrap(), ids.bytes);
        let floats = HostTensor::of_values(ElementType::F32, vec![2], &[0.5, -1e9]);
        let half = convert(&floats, ElementType::F16).unwrap();
        let half = HostTensor { element: ElementType::F16, shape: vec![2], bytes: half };
        let back = convert(&half, ElementType::F32).unwrap();
        assert_eq!(f32::from_le_bytes(back[..4].try_into().unwrap()), 0.5);
        assert_eq!(f32::from_le_bytes(back[4..].try_into().unwrap()), f32::NEG_INFINITY);
        assert_eq!(convert(&floats, ElementType::F32).unwrap(), floats.bytes);
    }

    #[test]
    fn the_tools_names_are_known_and_others_are_not() {
        assert_eq!(element("bf16"), Some(ElementType::Bf16));
        assert_eq!((element("int4"), element("fp8"), element("")), (None, None, None));
    }
}
