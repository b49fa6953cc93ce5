//! What a model declares of its inputs, as it is meant: exporters write what they do not know in several ways.

use planforge_graph::shape::DeclaredDim;
use planforge_onnx::proto::{
    GraphProto, ValueInfoProto,
    tensor_shape_proto::{Dimension, dimension::Value},
    type_proto,
};
use std::collections::BTreeSet;

/// Names that say that nothing is known: two dimensions of such a name have nothing in common.
const NO_NAMES: [&str; 5] = ["", "?", "-1", "None", "none"];

/// A dimension as it is meant: -1, and names that are none, are unknown.
pub fn declared_dim(dim: &Dimension) -> DeclaredDim {
    match &dim.value {
        Some(Value::DimValue(-1)) | None => DeclaredDim::Unknown,
        Some(Value::DimValue(size)) => DeclaredDim::Size(*size),
        Some(Value::DimParam(name)) if NO_NAMES.contains(&name.trim()) => DeclaredDim::Unknown,
        Some(Value::DimParam(name)) => DeclaredDim::Symbol(name.clone()),
    }
}

/// The inputs that have to be given: before IR version 4 initializers were listed, too.
pub(crate) fn inputs(graph: &GraphProto) -> Vec<&ValueInfoProto> {
    let initializers: BTreeSet<&str> = graph.initializer.iter().map(|tensor| tensor.name.as_str()).collect();
    graph.input.iter().filter(|input| !initializers.contains(input.name.as_str())).collect()
}

/// The dimensions of a dense tensor; `None` where no rank is declared.
pub(crate) fn open_dims(info: &ValueInfoProto) -> Option<Vec<DeclaredDim>> {
    let Some(type_proto::Value::TensorType(tensor)) = info.r#type.as_ref()?.value.as_ref() else { return None };
    Some(tensor.shape.as_ref()?.dim.iter().map(declared_dim).collect())
}

/// Its element type's number; 0 where there is none.
pub(crate) fn element_number(info: &ValueInfoProto) -> i32 {
    match info.r#type.as_ref().and_then(|r#type| r#type.value.as_ref()) {
        Some(type_proto::Value::TensorType(tensor)) => tensor.elem_type,
        _ => 0,
    }
}
