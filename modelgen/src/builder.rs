//! Nodes, values and weights of a graph under construction.

use crate::{
    Batch, LayerNormForm, Style,
    weights::{Draw, Form, Init},
};
use planforge_onnx::proto::{
    AttributeProto, GraphProto, NodeProto, TensorProto, TensorShapeProto, TypeProto, ValueInfoProto,
    attribute_proto::AttributeType,
    tensor_proto::DataType,
    tensor_shape_proto::{Dimension, dimension},
    type_proto,
};
use std::collections::{BTreeMap, BTreeSet};

/// Stands in a shape for the batch that the style asks for.
pub const BATCH: i64 = -1;

/// Stands in a shape for a number of tokens that is left open.
pub const TOKENS: i64 = -2;

/// Name of that number.
const TOKENS_NAME: &str = "sequence";

/// Name of a batch that is left open.
const BATCH_NAME: &str = "batch";

/// The name of a value.
pub type Value = String;

/// A graph under construction.
#[derive(Debug)]
pub struct Graph {
    pub(crate) proto: GraphProto,
    /// Streamed when the file is written.
    pub(crate) weights: Vec<TensorProto>,
    /// How each of the weights is made, by name.
    pub(crate) draws: BTreeMap<String, Draw>,
    /// What nearly all elements of a value lie within, on both sides of zero.
    pub(crate) ranges: BTreeMap<Value, f64>,
    pub(crate) parameters: u64,
    /// Inputs and outputs that are one tensor from run to run: stored as the weights are.
    pub(crate) states: BTreeSet<Value>,
    style: Style,
}

impl Graph {
    pub fn new(name: &str, style: &Style) -> Self {
        let proto = GraphProto { name: name.to_owned(), ..Default::default() };
        Self {
            proto,
            weights: Vec::new(),
            draws: BTreeMap::new(),
            ranges: BTreeMap::new(),
            parameters: 0,
            states: BTreeSet::new(),
            style: *style,
        }
    }

    /// A first dimension of [`BATCH`] becomes the batch, here and in outputs.
    pub fn input(&mut self, name: &str, data_type: DataType, dims: &[i64]) -> Value {
        self.proto.input.push(value_info(name, data_type, dims, self.style.batch));
        name.to_owned()
    }

    pub fn batch(&self) -> Batch {
        self.style.batch
    }

    pub fn open_sequence(&self) -> bool {
        self.style.open_sequence
    }

    pub fn layer_norm_form(&self) -> LayerNormForm {
        self.style.layer_norm
    }

    /// The batch in a constant that `Reshape` takes: zero copies the size when it is open.
    pub fn batch_or_copy(&self) -> i64 {
        match self.style.batch {
            Batch::Fixed(size) => size.into(),
            Batch::Dynamic => 0,
        }
    }

    /// Declares the value an output. It must bear the name a user should see: see [`Self::named_node`].
    pub fn output(&mut self, value: &Value, dims: &[i64]) {
        self.proto.output.push(value_info(value, DataType::Float, dims, self.style.batch));
    }

    pub fn typed_output(&mut self, value: &Value, data_type: DataType, dims: &[i64]) {
        self.proto.output.push(value_info(value, data_type, dims, self.style.batch));
    }

    /// An input of which each dimension is a number, or the name of one that is left open.
    pub fn open_input(&mut self, name: &str, data_type: DataType, dims: &[&str]) -> Value {
        self.proto.input.push(open_info(name, data_type, dims));
        name.to_owned()
    }

    /// As [`Self::open_input`], of an output.
    pub fn open_output(&mut self, value: &Value, dims: &[&str]) {
        self.proto.output.push(open_info(value, DataType::Float, dims));
    }

    /// Says that an input or output is one tensor from run to run.
    pub fn keep(&mut self, name: &str) {
        self.states.insert(name.to_owned());
    }

    /// An input that an output takes the place of at the next run.
    pub fn state_input(&mut self, name: &str, dims: &[i64]) -> Value {
        self.states.insert(name.to_owned());
        self.input(name, DataType::Float, dims)
    }

    /// An output that takes an input's place at the next run.
    pub fn state_output(&mut self, name: &str, dims: &[i64]) {
        self.states.insert(name.to_owned());
        self.output(&name.to_owned(), dims);
    }

    /// A trained weight.
    pub fn parameter(&mut self, name: &str, dims: &[i64], init: Init) -> Value {
        self.parameters += dims.iter().product::<i64>() as u64;
        self.statistic(name, dims, init)
    }

    /// A stored tensor that is no trained parameter, such as a running mean.
    pub fn statistic(&mut self, name: &str, dims: &[i64], init: Init) -> Value {
        self.weights.push(tensor(name, DataType::Float, dims, Vec::new()));
        let count = dims.iter().product::<i64>() as u64;
        let draw = Draw { init, stream: name.to_owned(), count, form: Form::Single };
        self.draws.insert(name.to_owned(), draw);
        name.to_owned()
    }

    /// An integer constant: a shape, indices.
    pub fn integers(&mut self, name: &str, dims: &[i64], values: &[i64]) -> Value {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.proto.initializer.push(tensor(name, DataType::Int64, dims, bytes));
        name.to_owned()
    }

    /// A number as a scalar constant.
    pub fn scalar(&mut self, name: &str, value: f32) -> Value {
        self.proto.initializer.push(tensor(name, DataType::Float, &[], value.to_le_bytes().to_vec()));
        name.to_owned()
    }

    /// Int8 zeros.
    pub fn zero_int8(&mut self, name: &str, dims: &[i64]) -> Value {
        let bytes = vec![0; dims.iter().product::<i64>() as usize];
        self.proto.initializer.push(tensor(name, DataType::Int8, dims, bytes));
        name.to_owned()
    }

    /// Says what nearly all elements of a value lie within, on both sides of zero.
    pub fn expect_within(&mut self, value: &Value, range: f64) {
        self.ranges.insert(value.clone(), range);
    }

    /// Several numbers as a constant of one axis.
    pub fn numbers(&mut self, name: &str, values: &[f32]) -> Value {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.proto.initializer.push(tensor(name, DataType::Float, &[values.len() as i64], bytes));
        name.to_owned()
    }

    /// Rows of numbers as a constant.
    pub fn matrix(&mut self, name: &str, dims: &[i64; 2], values: &[f32]) -> Value {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.proto.initializer.push(tensor(name, DataType::Float, dims, bytes));
        name.to_owned()
    }

    /// Adds a node with one output, named after the node.
    pub fn node(&mut self, name: &str, op_type: &str, inputs: &[&Value], attributes: Vec<AttributeProto>) -> Value {
        self.named_node(name, op_type, inputs, attributes, &format!("{name}_output_0"))
    }

    /// Adds a node whose one output is called `output`.
    pub fn named_node(
        &mut self,
        name: &str,
        op_type: &str,
        inputs: &[&Value],
        attribute: Vec<AttributeProto>,
        output: &str,
    ) -> Value {
        self.proto.node.push(NodeProto {
            name: name.to_owned(),
            op_type: op_type.to_owned(),
            input: inputs.iter().map(|input| (*input).clone()).collect(),
            output: vec![output.to_owned()],
            attribute,
            ..Default::default()
        });
        output.to_owned()
    }
}

fn tensor(name: &str, data_type: DataType, dims: &[i64], raw_data: Vec<u8>) -> TensorProto {
    TensorProto {
        name: name.to_owned(),
        dims: dims.to_vec(),
        data_type: data_type.into(),
        raw_data: raw_data.into(),
        ..Default::default()
    }
}

/// A first dimension as the style asks for it.
pub(crate) fn batch_dimension(batch: Batch) -> Dimension {
    let value = match batch {
        Batch::Fixed(size) => dimension::Value::DimValue(size.into()),
        Batch::Dynamic => dimension::Value::DimParam(BATCH_NAME.to_owned()),
    };
    Dimension { value: Some(value), ..Default::default() }
}

fn value_info(name: &str, data_type: DataType, dims: &[i64], batch: Batch) -> ValueInfoProto {
    let dim = |size: &i64| {
        let value = match *size {
            BATCH => return batch_dimension(batch),
            TOKENS => dimension::Value::DimParam(TOKENS_NAME.to_owned()),
            size => dimension::Value::DimValue(size),
        };
        Dimension { value: Some(value), ..Default::default() }
    };
    shaped_info(name, data_type, dims.iter().map(dim).collect())
}

fn open_info(name: &str, data_type: DataType, dims: &[&str]) -> ValueInfoProto {
    let dim = |size: &&str| {
        let value = match size.parse() {
            Ok(size) => dimension::Value::DimValue(size),
            Err(_) => dimension::Value::DimParam((*size).to_owned()),
        };
        Dimension { value: Some(value), ..Default::default() }
    };
    shaped_info(name, data_type, dims.iter().map(dim).collect())
}

fn shaped_info(name: &str, data_type: DataType, dim: Vec<Dimension>) -> ValueInfoProto {
    let shape = TensorShapeProto { dim };
    let tensor = type_proto::Tensor { elem_type: data_type.into(), shape: Some(shape) };
    let value = Some(type_proto::Value::TensorType(tensor));
    ValueInfoProto {
        name: name.to_owned(),
        r#type: Some(TypeProto { value, ..Default::default() }),
        ..Default::default()
    }
}

/// An integer attribute.
pub fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto { name: name.to_owned(), r#type: AttributeType::Int.into(), i, ..Default::default() }
}

/// An attribute of several integers.
pub fn ints(name: &str, ints: &[i64]) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        r#type: AttributeType::Ints.into(),
        ints: ints.to_vec(),
        ..Default::default()
    }
}

/// An attribute of text.
pub fn text(name: &str, s: &str) -> AttributeProto {
    let s = s.as_bytes().to_vec().into();
    AttributeProto { name: name.to_owned(), r#type: AttributeType::String.into(), s, ..Default::default() }
}

/// A floating-point attribute.
pub fn float(name: &str, f: f32) -> AttributeProto {
    AttributeProto { name: name.to_owned(), r#type: AttributeType::Float.into(), f, ..Default::default() }
}
