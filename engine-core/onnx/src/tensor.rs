//! Element types, sizes, and a tensor's bytes whatever field they are stored in.

use crate::{
    error::TensorError,
    proto::{
        AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto,
        tensor_proto::{DataLocation, DataType},
    },
};
use bytes::Bytes;

/// Bits of one element; `None` for strings, which have no fixed size, and for `UNDEFINED`.
pub fn element_bits(data_type: DataType) -> Option<u64> {
    Some(match data_type {
        DataType::Undefined | DataType::String => return None,
        DataType::Uint2 | DataType::Int2 => 2,
        DataType::Uint4 | DataType::Int4 | DataType::Float4e2m1 => 4,
        DataType::Float6e2m3 | DataType::Float6e3m2 => 6,
        DataType::Uint8
        | DataType::Int8
        | DataType::Bool
        | DataType::Float8e4m3fn
        | DataType::Float8e4m3fnuz
        | DataType::Float8e5m2
        | DataType::Float8e5m2fnuz
        | DataType::Float8e8m0 => 8,
        DataType::Uint16 | DataType::Int16 | DataType::Float16 | DataType::Bfloat16 => 16,
        DataType::Float | DataType::Int32 | DataType::Uint32 => 32,
        DataType::Double | DataType::Int64 | DataType::Uint64 | DataType::Complex64 => 64,
        DataType::Complex128 => 128,
    })
}

/// The element type of `tensor`; an unknown or undefined number is an error.
pub fn data_type(tensor: &TensorProto) -> Result<DataType, TensorError> {
    match DataType::try_from(tensor.data_type) {
        Ok(DataType::Undefined) | Err(_) => Err(TensorError::UnknownType { data_type: tensor.data_type }),
        Ok(known) => Ok(known),
    }
}

/// Number of elements of a shape; 1 for a scalar, 0 when a dimension is 0.
pub fn element_count(dims: &[i64]) -> Result<u64, TensorError> {
    let mut count = Some(1u64);
    for &dim in dims {
        let dim = u64::try_from(dim).map_err(|_| TensorError::NegativeDimension { dim })?;
        count = if dim == 0 { Some(0) } else { count.and_then(|count| count.checked_mul(dim)) };
        if dim == 0 {
            // Still look at the other dimensions, for a negative one.
            for &other in dims {
                u64::try_from(other).map_err(|_| TensorError::NegativeDimension { dim: other })?;
            }
            return Ok(0);
        }
    }
    count
        .filter(|count| *count <= isize::MAX as u64)
        .ok_or_else(|| TensorError::TooManyElements { dims: dims.to_vec() })
}

/// Bytes that `tensor`'s elements take when stored densely, sub-byte elements packed.
pub fn expected_bytes(tensor: &TensorProto) -> Result<u64, TensorError> {
    let count = element_count(&tensor.dims)?;
    let bits =
        element_bits(data_type(tensor)?).ok_or(TensorError::Unsupported { what: "a size for string elements" })?;
    let bytes = (u128::from(count) * u128::from(bits)).div_ceil(8);
    u64::try_from(bytes)
        .ok()
        .filter(|bytes| *bytes <= isize::MAX as u64)
        .ok_or_else(|| TensorError::TooManyElements { dims: tensor.dims.clone() })
}

/// True when the elements lie in a file beside the model.
pub fn is_external(tensor: &TensorProto) -> Result<bool, TensorError> {
    match DataLocation::try_from(tensor.data_location) {
        Ok(DataLocation::Default) if tensor.external_data.is_empty() => Ok(false),
        Ok(DataLocation::Default) => Err(TensorError::TwoStorages { first: "the model", second: "external_data" }),
        Ok(DataLocation::External) => Ok(true),
        Err(_) => Err(TensorError::UnknownLocation { location: tensor.data_location }),
    }
}

/// The field that holds the elements, or none; more than one is an error.
fn storage(tensor: &TensorProto) -> Result<Option<&'static str>, TensorError> {
    let fields = [
        ("raw_data", !tensor.raw_data.is_empty()),
        ("float_data", !tensor.float_data.is_empty()),
        ("int32_data", !tensor.int32_data.is_empty()),
        ("int64_data", !tensor.int64_data.is_empty()),
        ("double_data", !tensor.double_data.is_empty()),
        ("uint64_data", !tensor.uint64_data.is_empty()),
        ("string_data", !tensor.string_data.is_empty()),
    ];
    let mut used = fields.into_iter().filter(|(_, used)| *used).map(|(name, _)| name);
    let first = used.next();
    match (first, used.next()) {
        (Some(first), Some(second)) => Err(TensorError::TwoStorages { first, second }),
        _ => Ok(first),
    }
}

/// Checks storage and size of a tensor whose data is not external; see [`inline_bytes`].
pub(crate) fn check_inline(tensor: &TensorProto) -> Result<(), TensorError> {
    if data_type(tensor)? == DataType::String {
        strings(tensor).map(drop)
    } else if tensor.raw_data.is_empty() {
        typed_elements(tensor).map(drop)
    } else {
        inline_bytes(tensor).map(drop)
    }
}

/// Checks that nothing but external data is given.
pub(crate) fn check_external(tensor: &TensorProto) -> Result<(), TensorError> {
    if data_type(tensor)? == DataType::String {
        return Err(TensorError::Unsupported { what: "external data of string elements" });
    }
    match storage(tensor)? {
        Some(first) => Err(TensorError::TwoStorages { first, second: "external_data" }),
        None => no_segment(tensor),
    }
}

fn no_segment(tensor: &TensorProto) -> Result<(), TensorError> {
    if tensor.segment.is_some() {
        Err(TensorError::Unsupported { what: "a tensor stored in segments" })
    } else {
        Ok(())
    }
}

/// The elements of a string tensor.
pub fn strings(tensor: &TensorProto) -> Result<&[Bytes], TensorError> {
    no_segment(tensor)?;
    let count = element_count(&tensor.dims)?;
    match storage(tensor)? {
        None | Some("string_data") if tensor.string_data.len() as u64 == count => Ok(&tensor.string_data),
        None | Some("string_data") => Err(wrong_size(tensor.string_data.len(), "strings", count)),
        Some(other) => Err(TensorError::TwoStorages { first: other, second: "string_data" }),
    }
}

fn wrong_size(found: usize, unit: &str, expected: u64) -> TensorError {
    TensorError::WrongSize { found: format!("{found} {unit}"), expected: expected.to_string() }
}

/// Little-endian row-major elements of a tensor whose data is in the model itself: a view when they are stored raw, a
/// copy when they are stored in a typed field. Sub-byte elements stay packed, lowest bits first.
pub fn inline_bytes(tensor: &TensorProto) -> Result<Bytes, TensorError> {
    no_segment(tensor)?;
    let expected = expected_bytes(tensor)?;
    if tensor.raw_data.is_empty() {
        typed_elements(tensor)?;
        return Ok(typed_bytes(tensor));
    }
    storage(tensor)?;
    if tensor.raw_data.len() as u64 != expected {
        return Err(wrong_size(tensor.raw_data.len(), "bytes", expected));
    }
    Ok(tensor.raw_data.clone())
}

/// Checks that the typed field which belongs to the element type, and no other, holds the right number of entries.
fn typed_elements(tensor: &TensorProto) -> Result<(), TensorError> {
    no_segment(tensor)?;
    let data_type = data_type(tensor)?;
    let count = element_count(&tensor.dims)?;
    let (field, found, expected) = match data_type {
        DataType::Float => ("float_data", tensor.float_data.len(), count),
        DataType::Complex64 => ("float_data", tensor.float_data.len(), count.saturating_mul(2)),
        DataType::Double => ("double_data", tensor.double_data.len(), count),
        DataType::Complex128 => ("double_data", tensor.double_data.len(), count.saturating_mul(2)),
        DataType::Int64 => ("int64_data", tensor.int64_data.len(), count),
        DataType::Uint32 | DataType::Uint64 => ("uint64_data", tensor.uint64_data.len(), count),
        // Elements of four and of two bits are packed, a byte to an entry.
        DataType::Uint2 | DataType::Int2 => ("int32_data", tensor.int32_data.len(), count.div_ceil(4)),
        DataType::Uint4 | DataType::Int4 | DataType::Float4e2m1 => {
            ("int32_data", tensor.int32_data.len(), count.div_ceil(2))
        }
        _ => ("int32_data", tensor.int32_data.len(), count),
    };
    match storage(tensor)? {
        Some(used) if used != field => return Err(TensorError::TwoStorages { first: used, second: field }),
        _ => {}
    }
    if found as u64 == expected { Ok(()) } else { Err(wrong_size(found, "elements", expected)) }
}

/// The typed field as little-endian bytes; its length was checked.
fn typed_bytes(tensor: &TensorProto) -> Bytes {
    let bits = data_type(tensor).ok().and_then(element_bits).unwrap_or(8);
    let bytes: Vec<u8> = if !tensor.float_data.is_empty() {
        tensor.float_data.iter().flat_map(|value| value.to_le_bytes()).collect()
    } else if !tensor.double_data.is_empty() {
        tensor.double_data.iter().flat_map(|value| value.to_le_bytes()).collect()
    } else if !tensor.int64_data.is_empty() {
        tensor.int64_data.iter().flat_map(|value| value.to_le_bytes()).collect()
    } else if !tensor.uint64_data.is_empty() && bits == 32 {
        tensor.uint64_data.iter().flat_map(|value| (*value as u32).to_le_bytes()).collect()
    } else if !tensor.uint64_data.is_empty() {
        tensor.uint64_data.iter().flat_map(|value| value.to_le_bytes()).collect()
    } else {
        match bits {
            32 => tensor.int32_data.iter().flat_map(|value| value.to_le_bytes()).collect(),
            16 => tensor.int32_data.iter().flat_map(|value| (*value as u16).to_le_bytes()).collect(),
            6 => pack_six_bits(&tensor.int32_data),
            _ => tensor.int32_data.iter().map(|value| *value as u8).collect(),
        }
    };
    Bytes::from(bytes)
}

/// A stream of six-bit elements, lowest bits first, from one element per entry.
fn pack_six_bits(values: &[i32]) -> Vec<u8> {
    let mut packed = vec![0u8; (values.len() * 6).div_ceil(8)];
    for (at, value) in values.iter().enumerate() {
        let (byte, shift) = (at * 6 / 8, at * 6 % 8);
        let bits = ((*value as u16) & 0x3f) << shift;
        packed[byte] |= bits as u8;
        if shift > 2 {
            packed[byte + 1] |= (bits >> 8) as u8;
        }
    }
    packed
}

/// Calls `visit` for every tensor of the model: initializers, attributes, subgraphs, functions, training.
pub fn for_each_tensor<'a, E>(model: &'a ModelProto, visit: &mut Visit<'_, 'a, E>) -> Result<(), E> {
    model.graph.iter().try_for_each(|graph| visit_graph(graph, visit))?;
    for function in &model.functions {
        function.node.iter().try_for_each(|node| visit_node(node, visit))?;
        function.attribute_proto.iter().try_for_each(|attribute| visit_attribute(attribute, visit))?;
    }
    for training in &model.training_info {
        let graphs = training.initialization.iter().chain(&training.algorithm);
        graphs.into_iter().try_for_each(|graph| visit_graph(graph, visit))?;
    }
    Ok(())
}

/// What [`for_each_tensor`] calls; an error ends the walk.
pub type Visit<'f, 'a, E> = dyn FnMut(&'a TensorProto) -> Result<(), E> + 'f;

fn visit_graph<'a, E>(graph: &'a GraphProto, visit: &mut Visit<'_, 'a, E>) -> Result<(), E> {
    graph.initializer.iter().try_for_each(&mut *visit)?;
    graph.sparse_initializer.iter().try_for_each(|sparse| visit_sparse(sparse, visit))?;
    graph.node.iter().try_for_each(|node| visit_node(node, visit))
}

fn visit_node<'a, E>(node: &'a NodeProto, visit: &mut Visit<'_, 'a, E>) -> Result<(), E> {
    node.attribute.iter().try_for_each(|attribute| visit_attribute(attribute, visit))
}

fn visit_attribute<'a, E>(attribute: &'a AttributeProto, visit: &mut Visit<'_, 'a, E>) -> Result<(), E> {
    attribute.t.as_deref().into_iter().chain(&attribute.tensors).try_for_each(&mut *visit)?;
    let mut sparse = attribute.sparse_tensor.as_deref().into_iter().chain(&attribute.sparse_tensors);
    sparse.try_for_each(|sparse| visit_sparse(sparse, visit))?;
    attribute.g.as_deref().into_iter().chain(&attribute.graphs).try_for_each(|graph| visit_graph(graph, visit))
}

fn visit_sparse<'a, E>(sparse: &'a SparseTensorProto, visit: &mut Visit<'_, 'a, E>) -> Result<(), E> {
    sparse.values.iter().chain(&sparse.indices).try_for_each(&mut *visit)
}
