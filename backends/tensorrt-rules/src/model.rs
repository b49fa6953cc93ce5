//! What of a model decides whether a version of TensorRT can take it: inputs, types, operators.

use planforge_onnx::{
    Model,
    proto::{
        AttributeProto, GraphProto, NodeProto, ValueInfoProto, tensor_proto::DataType, tensor_shape_proto, type_proto,
    },
};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Type in which a model computes or quantizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ModelType {
    Fp64,
    Fp32,
    Fp16,
    Bf16,
    Int8,
    Fp8,
    Int4,
}

impl ModelType {
    pub fn name(self) -> &'static str {
        match self {
            Self::Fp64 => "fp64",
            Self::Fp32 => "fp32",
            Self::Fp16 => "fp16",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
            Self::Fp8 => "fp8",
            Self::Int4 => "int4",
        }
    }
}

/// An input or output of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    pub name: String,
    /// As `trtexec` names it; `None` for what it has no name for.
    pub element: Option<&'static str>,
    /// `None` where the dimension varies.
    pub dims: Vec<Option<u64>>,
}

impl Edge {
    pub fn is_dynamic(&self) -> bool {
        self.dims.contains(&None)
    }
}

/// What was read from a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelFacts {
    pub opset: Option<i64>,
    /// What must be given to run it, in the model's order; initializers that are listed as inputs are not.
    pub inputs: Vec<Edge>,
    pub outputs: Vec<Edge>,
    /// Floating-point types that tensors, casts and edges have.
    pub computes_in: BTreeSet<ModelType>,
    /// Types of the model's quantize and dequantize nodes.
    pub quantizes_to: BTreeSet<ModelType>,
    /// Nodes by domain and operator, counted; the standard domain is empty. Subgraphs included.
    pub operators: BTreeMap<(String, String), u64>,
    /// Functions that the model defines itself, by domain and name.
    pub functions: BTreeSet<(String, String)>,
}

impl ModelFacts {
    /// Reads what matters of `model`; no weights are looked at.
    pub fn of(model: &Model) -> Self {
        let graph = model.graph();
        let initializers: BTreeSet<&str> = graph.initializer.iter().map(|tensor| tensor.name.as_str()).collect();
        let mut facts = Self { opset: model.opset(), ..Self::default() };
        facts.inputs = graph.input.iter().filter(|i| !initializers.contains(i.name.as_str())).map(edge).collect();
        facts.outputs = graph.output.iter().map(edge).collect();
        facts.graph(graph);
        for function in &model.proto.functions {
            facts.functions.insert((domain(&function.domain), function.name.clone()));
            facts.nodes(&function.node, &HashMap::new());
        }
        facts
    }

    fn graph(&mut self, graph: &GraphProto) {
        let mut types: HashMap<&str, DataType> = HashMap::new();
        for tensor in &graph.initializer {
            if let Ok(element) = DataType::try_from(tensor.data_type) {
                types.insert(&tensor.name, element);
            }
        }
        for info in graph.input.iter().chain(&graph.output).chain(&graph.value_info) {
            if let Some(element) = tensor_type(info).and_then(|t| DataType::try_from(t.elem_type).ok()) {
                types.insert(&info.name, element);
            }
        }
        self.computes_in.extend(types.values().filter_map(|element| float_type(*element)));
        self.nodes(&graph.node, &types);
    }

    fn nodes(&mut self, nodes: &[NodeProto], types: &HashMap<&str, DataType>) {
        let constants = nodes.iter().filter(|node| node.op_type == "Constant").filter_map(|node| {
            let tensor = node.attribute.iter().find_map(|attribute| attribute.t.as_ref())?;
            Some((node.output.first()?.as_str(), DataType::try_from(tensor.data_type).ok()?))
        });
        let constants: HashMap<&str, DataType> = constants.collect();
        let type_of = |name: &str| types.get(name).or_else(|| constants.get(name)).copied();
        self.computes_in.extend(constants.values().filter_map(|element| float_type(*element)));
        for node in nodes {
            *self.operators.entry((domain(&node.domain), node.op_type.clone())).or_default() += 1;
            match node.op_type.as_str() {
                "Cast" => {
                    let to = int_attribute(node, "to").and_then(|to| DataType::try_from(to).ok());
                    self.computes_in.extend(to.and_then(float_type));
                }
                "QuantizeLinear" | "DequantizeLinear" => {
                    // The zero point's type says it; else the attribute; else a quantized tensor that is read. A node
                    // that says nothing means uint8, which is int8 arithmetic too.
                    let named = node.input.get(2).and_then(|zero_point| type_of(zero_point));
                    let attribute = || int_attribute(node, "output_dtype").and_then(|to| DataType::try_from(to).ok());
                    let read =
                        || node.input.first().and_then(|input| type_of(input)).filter(|t| quantized(*t).is_some());
                    let element = named.or_else(attribute).or_else(read).unwrap_or(DataType::Uint8);
                    self.quantizes_to.extend(quantized(element));
                }
                op if op.starts_with("TRT_FP8") => {
                    self.quantizes_to.insert(ModelType::Fp8);
                }
                op if op.starts_with("TRT_INT4") => {
                    self.quantizes_to.insert(ModelType::Int4);
                }
                _ => {}
            }
            for attribute in &node.attribute {
                attribute.g.iter().map(|graph| &**graph).chain(&attribute.graphs).for_each(|graph| self.graph(graph));
            }
        }
    }

    pub fn has_quantization(&self) -> bool {
        !self.quantizes_to.is_empty()
    }

    pub fn input(&self, name: &str) -> Option<&Edge> {
        self.inputs.iter().find(|edge| edge.name == name)
    }
}

/// The standard domain has two spellings.
fn domain(text: &str) -> String {
    if text == "ai.onnx" { String::new() } else { text.to_owned() }
}

fn int_attribute(node: &NodeProto, name: &str) -> Option<i32> {
    let attribute: &AttributeProto = node.attribute.iter().find(|attribute| attribute.name == name)?;
    i32::try_from(attribute.i).ok()
}

fn tensor_type(info: &ValueInfoProto) -> Option<&type_proto::Tensor> {
    match info.r#type.as_ref()?.value.as_ref()? {
        type_proto::Value::TensorType(tensor) => Some(tensor),
        _ => None,
    }
}

fn edge(info: &ValueInfoProto) -> Edge {
    let tensor = tensor_type(info);
    let element = tensor.and_then(|t| DataType::try_from(t.elem_type).ok()).and_then(tool_name);
    let dims = tensor.and_then(|t| t.shape.as_ref()).map(|shape| &shape.dim[..]).unwrap_or_default();
    let size = |dim: &tensor_shape_proto::Dimension| match dim.value {
        Some(tensor_shape_proto::dimension::Value::DimValue(size)) => u64::try_from(size).ok(),
        _ => None,
    };
    Edge { name: info.name.clone(), element, dims: dims.iter().map(size).collect() }
}

/// What `trtexec` calls an element type at a network's edge.
fn tool_name(element: DataType) -> Option<&'static str> {
    Some(match element {
        DataType::Float => "fp32",
        DataType::Float16 => "fp16",
        DataType::Bfloat16 => "bf16",
        DataType::Int8 => "int8",
        DataType::Int32 => "int32",
        DataType::Int64 => "int64",
        DataType::Uint8 => "uint8",
        DataType::Bool => "bool",
        DataType::Float8e4m3fn => "fp8",
        DataType::Int4 => "int4",
        _ => return None,
    })
}

fn float_type(element: DataType) -> Option<ModelType> {
    Some(match element {
        DataType::Double => ModelType::Fp64,
        DataType::Float => ModelType::Fp32,
        DataType::Float16 => ModelType::Fp16,
        DataType::Bfloat16 => ModelType::Bf16,
        _ => return None,
    })
}

fn quantized(element: DataType) -> Option<ModelType> {
    Some(match element {
        DataType::Int8 | DataType::Uint8 => ModelType::Int8,
        DataType::Float8e4m3fn | DataType::Float8e5m2 => ModelType::Fp8,
        DataType::Int4 | DataType::Uint4 => ModelType::Int4,
        _ => return None,
    })
}
