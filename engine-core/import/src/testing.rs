//! Small models for tests.

use super::import;
use planforge_graph::ir::{ElementType, Graph, Tensor};
use planforge_onnx::{
    Model,
    proto::{
        AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto,
        TypeProto, ValueInfoProto, attribute_proto::AttributeType, tensor_proto::DataType, tensor_shape_proto,
        type_proto,
    },
};
use prost::Message;

/// A model under construction; its nodes are named after what they compute.
#[derive(Clone, Debug)]
pub struct TestModel {
    pub proto: ModelProto,
}

pub fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto { name: name.into(), i, r#type: AttributeType::Int as i32, ..AttributeProto::default() }
}

pub fn ints(name: &str, ints: &[i64]) -> AttributeProto {
    let r#type = AttributeType::Ints as i32;
    AttributeProto { name: name.into(), ints: ints.to_vec(), r#type, ..AttributeProto::default() }
}

pub fn float(name: &str, f: f32) -> AttributeProto {
    AttributeProto { name: name.into(), f, r#type: AttributeType::Float as i32, ..AttributeProto::default() }
}

pub fn text(name: &str, s: &'static str) -> AttributeProto {
    let r#type = AttributeType::String as i32;
    AttributeProto { name: name.into(), s: s.into(), r#type, ..AttributeProto::default() }
}

fn data_type(element: ElementType) -> DataType {
    match element {
        ElementType::F32 => DataType::Float,
        ElementType::F16 => DataType::Float16,
        ElementType::U8 => DataType::Uint8,
        ElementType::I8 => DataType::Int8,
        ElementType::I32 => DataType::Int32,
        ElementType::I64 => DataType::Int64,
        ElementType::Bool => DataType::Bool,
        other => unreachable!("no test uses {other:?}"),
    }
}

/// A dimension of a declared shape.
pub fn dim(value: tensor_shape_proto::dimension::Value) -> tensor_shape_proto::Dimension {
    tensor_shape_proto::Dimension { value: Some(value), ..Default::default() }
}

pub fn value_info(name: &str, elem_type: i32, dims: Vec<tensor_shape_proto::Dimension>) -> ValueInfoProto {
    let tensor = type_proto::Tensor { elem_type, shape: Some(TensorShapeProto { dim: dims }) };
    let r#type = TypeProto { value: Some(type_proto::Value::TensorType(tensor)), ..TypeProto::default() };
    ValueInfoProto { name: name.into(), r#type: Some(r#type), ..ValueInfoProto::default() }
}

impl TestModel {
    pub fn new(opset: i64) -> Self {
        let opset = OperatorSetIdProto { version: opset, ..OperatorSetIdProto::default() };
        let graph = Some(GraphProto { name: "test".into(), ..GraphProto::default() });
        Self { proto: ModelProto { ir_version: 8, opset_import: vec![opset], graph, ..ModelProto::default() } }
    }

    pub fn graph(&mut self) -> &mut GraphProto {
        self.proto.graph.get_or_insert_default()
    }

    pub fn input(self, name: &str, shape: &[i64]) -> Self {
        self.input_of(name, ElementType::F32, shape)
    }

    pub fn input_of(mut self, name: &str, element: ElementType, shape: &[i64]) -> Self {
        let dims = shape.iter().map(|&size| dim(tensor_shape_proto::dimension::Value::DimValue(size))).collect();
        self.graph().input.push(value_info(name, data_type(element) as i32, dims));
        self
    }

    pub fn constant(mut self, name: &str, tensor: &Tensor) -> Self {
        let initializer = TensorProto {
            name: name.into(),
            data_type: data_type(tensor.element()) as i32,
            dims: tensor.shape().iter().map(|&size| size as i64).collect(),
            raw_data: tensor.bytes().clone(),
            ..TensorProto::default()
        };
        self.graph().initializer.push(initializer);
        self
    }

    pub fn floats(self, name: &str, shape: &[usize], values: &[f32]) -> Self {
        self.constant(name, &Tensor::from_vec(shape.to_vec(), values.to_vec()).expect("values fill the shape"))
    }

    pub fn longs(self, name: &str, values: &[i64]) -> Self {
        self.constant(name, &Tensor::from_vec(vec![values.len()], values.to_vec()).expect("one dimension"))
    }

    pub fn node(self, op_type: &str, inputs: &[&str], output: &str, attributes: Vec<AttributeProto>) -> Self {
        self.node_of(op_type, inputs, &[output], attributes)
    }

    /// A node with several outputs.
    pub fn node_of(
        mut self,
        op_type: &str,
        inputs: &[&str],
        outputs: &[&str],
        attributes: Vec<AttributeProto>,
    ) -> Self {
        self.graph().node.push(NodeProto {
            op_type: op_type.into(),
            name: format!("make {}", outputs.join(" ")),
            input: inputs.iter().map(|&name| name.to_owned()).collect(),
            output: outputs.iter().map(|&name| name.to_owned()).collect(),
            attribute: attributes,
            ..NodeProto::default()
        });
        self
    }

    pub fn output(mut self, name: &str) -> Self {
        self.graph().output.push(ValueInfoProto { name: name.into(), ..ValueInfoProto::default() });
        self
    }

    pub fn model(&self) -> Model {
        Model::from_bytes(self.proto.encode_to_vec().into()).expect("a test model is valid ONNX")
    }

    pub fn import(&self) -> Graph {
        import(&self.model(), None).expect("a test model is supported")
    }
}

/// Numbers between -1 and 1 that repeat after 97 steps.
pub fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|index| (index * 41 % 97) as f32 / 48.0 - 1.0).collect()
}
