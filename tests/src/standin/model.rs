//! The ONNX file as the tool needs it: tensors at the edge, layers, and the outputs for given inputs.

use planforge_graph::{
    interpreter,
    ir::{ElementType, Tensor},
};
use planforge_import::import;
use planforge_onnx::{
    Model,
    proto::{ValueInfoProto, tensor_shape_proto::dimension, type_proto},
};
use planforge_types::{DimRange, OptimizationProfile};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A tensor at the model's edge; a dimension of -1 varies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Edge {
    pub name: String,
    /// As the model declares it.
    pub declared: String,
    pub dims: Vec<i64>,
}

/// One layer of the engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Layer {
    pub name: String,
    /// `CaskConvolution`, `gemm`, ...
    pub kind: String,
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
    /// Share of the compute time.
    pub share: f64,
    pub weights: u64,
}

/// What the tool sees of a model.
#[derive(Clone, Debug)]
pub struct Seen {
    pub graph: String,
    pub inputs: Vec<Edge>,
    pub outputs: Vec<Edge>,
    pub layers: Vec<Layer>,
    pub opset: i64,
    pub producer: String,
    /// Nodes as the parser counts them: name, operator, first output.
    pub nodes: Vec<(String, String, String)>,
}

/// Reads the edges and layers of a model.
pub fn see(model: &Model) -> Seen {
    let graph = model.graph();
    let constant = |name: &str| graph.initializer.iter().any(|tensor| tensor.name == name);
    let inputs = graph.input.iter().filter(|info| !constant(&info.name)).map(edge).collect();
    Seen {
        graph: graph.name.clone(),
        inputs,
        outputs: graph.output.iter().map(edge).collect(),
        layers: layers(model),
        opset: model.opset().unwrap_or(0),
        producer: "planforge-tests".into(),
        nodes: graph
            .node
            .iter()
            .map(|n| (n.name.clone(), n.op_type.clone(), n.output.first().cloned().unwrap_or_default()))
            .collect(),
    }
}

fn edge(info: &ValueInfoProto) -> Edge {
    let tensor = match info.r#type.as_ref().and_then(|t| t.value.as_ref()) {
        Some(type_proto::Value::TensorType(tensor)) => Some(tensor),
        _ => None,
    };
    let dims = tensor.and_then(|t| t.shape.as_ref()).map(|shape| {
        let size = |d: &planforge_onnx::proto::tensor_shape_proto::Dimension| match d.value {
            Some(dimension::Value::DimValue(size)) => size,
            _ => -1,
        };
        shape.dim.iter().map(size).collect()
    });
    let declared = match tensor.map_or(0, |t| t.elem_type) {
        1 => "fp32",
        2 => "uint8",
        3 => "int8",
        6 => "int32",
        7 => "int64",
        9 => "bool",
        10 => "fp16",
        16 => "bf16",
        _ => "fp32",
    };
    Edge { name: info.name.clone(), declared: declared.into(), dims: dims.unwrap_or_default() }
}

/// One layer a node; an activation joins the node before it.
fn layers(model: &Model) -> Vec<Layer> {
    let graph = model.graph();
    let weight = |name: &str| {
        let tensor = graph.initializer.iter().find(|tensor| tensor.name == name);
        tensor.map(|t| t.dims.iter().product::<i64>().max(0) as u64)
    };
    let mut layers: Vec<Layer> = Vec::new();
    for (index, node) in graph.node.iter().enumerate() {
        let name = if node.name.is_empty() {
            format!("(Unnamed Layer* {index}) [{}]", node.op_type)
        } else {
            node.name.clone()
        };
        let output = node.output.first().cloned().unwrap_or_default();
        let joins = matches!(node.op_type.as_str(), "Relu" | "Sigmoid" | "Tanh" | "Clip");
        if joins && let Some(last) = layers.last_mut().filter(|last| node.input.first() == last.outputs.first()) {
            last.name = format!("{} + {name}", last.name);
            last.outputs = vec![output];
            continue;
        }
        let kind = match node.op_type.as_str() {
            "Conv" => "CaskConvolution",
            "MaxPool" | "AveragePool" | "GlobalAveragePool" => "CaskPooling",
            "Gemm" | "MatMul" => "gemm",
            "Reshape" | "Transpose" | "Flatten" => "Shuffle",
            "Softmax" => "SoftMax",
            _ => "PointWiseV2",
        };
        let work = if matches!(kind, "CaskConvolution" | "gemm") { 8.0 } else { 1.0 };
        layers.push(Layer {
            name,
            kind: kind.into(),
            inputs: node.input.iter().filter(|i| weight(i).is_none() && !i.is_empty()).cloned().collect(),
            outputs: vec![output],
            share: work,
            weights: node.input.iter().filter_map(|i| weight(i)).sum(),
        });
    }
    let total: f64 = layers.iter().map(|layer| layer.share).sum();
    layers.iter_mut().for_each(|layer| layer.share /= total.max(1.0));
    layers
}

/// Shape and numbers of tensors by name.
pub type Inputs = BTreeMap<String, (Vec<i64>, Vec<f64>)>;
pub type Outputs = BTreeMap<String, (Vec<usize>, Vec<f64>)>;

/// The model's outputs on `inputs`.
pub fn evaluate(model: &Model, inputs: &Inputs) -> Result<Outputs, String> {
    let range = |size: &i64| DimRange { min: *size as u64, opt: *size as u64, max: *size as u64 };
    let profile = OptimizationProfile {
        inputs: inputs.iter().map(|(name, (dims, _))| (name.clone(), dims.iter().map(range).collect())).collect(),
    };
    let graph = import(model, Some(&profile)).map_err(|e| e.to_string())?;
    let mut tensors = BTreeMap::new();
    for id in &graph.inputs {
        let value = graph.value(*id);
        let (dims, values) = inputs.get(&value.name).ok_or_else(|| format!("input {} is not there", value.name))?;
        let shape = dims.iter().map(|size| *size as usize).collect();
        tensors.insert(value.name.clone(), tensor(value.element, shape, values)?);
    }
    let outputs = interpreter::execute(&graph, &tensors).map_err(|e| e.to_string())?;
    Ok(outputs.into_iter().map(|(name, tensor)| (name, (tensor.shape().to_vec(), tensor.to_f64s()))).collect())
}

fn tensor(element: ElementType, shape: Vec<usize>, values: &[f64]) -> Result<Tensor, String> {
    let made = match element {
        ElementType::F32 => Tensor::from_vec(shape, values.iter().map(|v| *v as f32).collect::<Vec<_>>()),
        ElementType::F64 => Tensor::from_vec(shape, values.to_vec()),
        ElementType::I64 => Tensor::from_vec(shape, values.iter().map(|v| *v as i64).collect::<Vec<_>>()),
        ElementType::I32 => Tensor::from_vec(shape, values.iter().map(|v| *v as i32).collect::<Vec<_>>()),
        ElementType::I8 => Tensor::from_vec(shape, values.iter().map(|v| *v as i8).collect::<Vec<_>>()),
        ElementType::U8 => Tensor::from_vec(shape, values.iter().map(|v| *v as u8).collect::<Vec<_>>()),
        ElementType::Bool => Tensor::from_bools(shape, values.iter().map(|v| u8::from(*v != 0.0)).collect()),
        ElementType::F16 => Tensor::from_vec(shape, values.iter().map(|v| half::f16::from_f64(*v)).collect::<Vec<_>>()),
        other => return Err(format!("the stand-in feeds no {other:?}")),
    };
    made.map_err(|e| e.to_string())
}

/// Size of one element of a binding.
pub fn element_bytes(kind: &str) -> usize {
    match kind {
        "int64" => 8,
        "fp32" | "int32" => 4,
        "fp16" | "bf16" => 2,
        _ => 1,
    }
}

/// The numbers in little-endian `bytes` of a binding.
pub fn decode(kind: &str, bytes: &[u8]) -> Vec<f64> {
    let one = |part: &[u8]| match kind {
        "fp32" => f64::from(f32::from_le_bytes(part.try_into().unwrap_or_default())),
        "int32" => f64::from(i32::from_le_bytes(part.try_into().unwrap_or_default())),
        "int64" => i64::from_le_bytes(part.try_into().unwrap_or_default()) as f64,
        "fp16" => half::f16::from_le_bytes(part.try_into().unwrap_or_default()).to_f64(),
        "bf16" => half::bf16::from_le_bytes(part.try_into().unwrap_or_default()).to_f64(),
        "int8" => f64::from(part[0].cast_signed()),
        _ => f64::from(part[0]),
    };
    bytes.chunks_exact(element_bytes(kind)).map(one).collect()
}
