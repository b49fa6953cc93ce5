//! Tensors between this program and the tool's files: raw little-endian elements in, decimal numbers out.

use planforge_engine_core::backend::{ElementType, HostTensor};

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
pub(crate) fn convert(tensor: &HostTensor, to: ElementType) -> Vec<u8> {
    if tensor.element == to {
        return tensor.bytes.clone();
    }
    let size = tensor.element.bytes();
    let mut bytes = Vec::with_capacity(tensor.bytes.len() / size * to.bytes());
    for one in tensor.bytes.chunks_exact(size) {
        push(&mut bytes, to, number(tensor.element, one));
    }
    bytes
}

/// A tensor of `values`.
pub(crate) fn tensor(element: ElementType, shape: Vec<usize>, values: &[f64]) -> HostTensor {
    let mut bytes = Vec::with_capacity(values.len() * element.bytes());
    values.iter().for_each(|value| push(&mut bytes, element, *value));
    HostTensor { element, shape, bytes }
}

/// One little-endian element as a number; `bytes` has the element's size.
fn number(element: ElementType, bytes: &[u8]) -> f64 {
    fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
        bytes.try_into().expect("chunks of the element's size")
    }
    match element {
        ElementType::F32 => f32::from_le_bytes(array(bytes)).into(),
        ElementType::F16 => half::f16::from_le_bytes(array(bytes)).to_f64(),
        ElementType::Bf16 => half::bf16::from_le_bytes(array(bytes)).to_f64(),
        ElementType::F64 => f64::from_le_bytes(array(bytes)),
        ElementType::I8 => i8::from_le_bytes(array(bytes)).into(),
        ElementType::U8 | ElementType::Bool => bytes[0].into(),
        ElementType::I16 => i16::from_le_bytes(array(bytes)).into(),
        ElementType::U16 => u16::from_le_bytes(array(bytes)).into(),
        ElementType::I32 => i32::from_le_bytes(array(bytes)).into(),
        ElementType::U32 => u32::from_le_bytes(array(bytes)).into(),
        ElementType::I64 => i64::from_le_bytes(array(bytes)) as f64,
        ElementType::U64 => u64::from_le_bytes(array(bytes)) as f64,
    }
}

fn push(bytes: &mut Vec<u8>, element: ElementType, value: f64) {
    match element {
        ElementType::F32 => bytes.extend((value as f32).to_le_bytes()),
        ElementType::F16 => bytes.extend(half::f16::from_f64(value).to_le_bytes()),
        ElementType::Bf16 => bytes.extend(half::bf16::from_f64(value).to_le_bytes()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_where_the_other_type_has_room() {
        let ids = tensor(ElementType::I64, vec![3], &[0.0, 30_521.0, -1.0]);
        let narrow = HostTensor { element: ElementType::I32, shape: vec![3], bytes: convert(&ids, ElementType::I32) };
        assert_eq!(narrow.bytes.len(), 12);
        assert_eq!(convert(&narrow, ElementType::I64), ids.bytes);
        let floats = tensor(ElementType::F32, vec![2], &[0.5, -1e9]);
        let half = convert(&floats, ElementType::F16);
        let half = HostTensor { element: ElementType::F16, shape: vec![2], bytes: half };
        let back = convert(&half, ElementType::F32);
        assert_eq!(f32::from_le_bytes(back[..4].try_into().unwrap()), 0.5);
        assert_eq!(f32::from_le_bytes(back[4..].try_into().unwrap()), f32::NEG_INFINITY);
        assert_eq!(convert(&floats, ElementType::F32), floats.bytes);
    }

    #[test]
    fn the_tools_names_are_known_and_others_are_not() {
        assert_eq!(element("bf16"), Some(ElementType::Bf16));
        assert_eq!((element("int4"), element("fp8"), element("")), (None, None, None));
    }
}
