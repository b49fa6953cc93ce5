//! The working copy of a model: its message with every weight inside, the types and shapes of its values, and how it is
//! edited.
//!
//! Invariants: every initializer has its bytes in `raw_data`; float constants of `Constant` nodes are initializers; names
//! that are made here are in nobody's use.

use crate::error::PrecisionError;
use bytes::Bytes;
use planforge_graph::{ir::ElementType, shape::TensorType};
use planforge_import::import;
use planforge_onnx::{
    Model, OnnxError,
    proto::{
        AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, attribute_proto::AttributeType,
        tensor_proto::DataType,
    },
    tensor::for_each_tensor,
};
use planforge_types::OptimizationProfile;
use prost::Message as _;
use std::collections::{BTreeMap, BTreeSet};

/// A model that is edited.
#[derive(Clone, Debug)]
pub struct Net {
    pub proto: ModelProto,
    /// Of every value that importing found at the shapes of the data.
    pub types: BTreeMap<String, TensorType>,
    /// Names in use.
    names: BTreeSet<String>,
}

impl Net {
    /// Takes a model in. `profile` gives open dimensions their sizes.
    ///
    /// # Errors
    ///
    /// When its weights cannot be read, or it has operators, types or shapes that are not understood.
    pub fn of(model: &Model, profile: Option<&OptimizationProfile>) -> Result<Self, PrecisionError> {
        let mut proto = model.proto.clone();
        inline(model, &mut proto)?;
        let graph = import(&reopened(&proto)?, profile)?;
        let mut types = BTreeMap::new();
        for (index, value) in graph.values.iter().enumerate() {
            let id = planforge_graph::ir::ValueId(index as u32);
            if let Some(shape) = graph.static_shape(id) {
                types.insert(value.name.clone(), TensorType { element: value.element, shape });
            }
        }
        // An output may stand for a value of another name.
        for output in &graph.outputs {
            if let Some(shape) = graph.static_shape(output.value) {
                let element = graph.value(output.value).element;
                types.entry(output.name.clone()).or_insert(TensorType { element, shape });
            }
        }
        let mut net = Self { proto, types, names: BTreeSet::new() };
        net.names = names(net.graph());
        net.name_nodes();
        net.constants_to_initializers();
        net.copies_to_initializers();
        Ok(net)
    }

    pub fn graph(&self) -> &GraphProto {
        self.proto.graph.as_ref().expect("an opened model has a graph")
    }

    pub fn graph_mut(&mut self) -> &mut GraphProto {
        self.proto.graph.get_or_insert_default()
    }

    /// The model again, checked as any file is.
    ///
    /// # Errors
    ///
    /// When it is too large for one message.
    pub fn model(&self) -> Result<Model, PrecisionError> {
        reopened(&self.proto)
    }

    /// Version of the standard operators.
    pub fn opset(&self) -> i64 {
        let standard = self.proto.opset_import.iter().find(|import| is_standard(&import.domain));
        standard.map_or(1, |import| import.version)
    }

    /// A name like `base` that nothing has yet.
    pub fn fresh(&mut self, base: &str) -> String {
        let mut name = base.to_owned();
        let mut number = 1;
        while !self.names.insert(name.clone()) {
            number += 1;
            name = format!("{base}_{number}");
        }
        name
    }

    /// The stored tensor of this name.
    pub fn initializer(&self, name: &str) -> Option<&TensorProto> {
        self.graph().initializer.iter().find(|tensor| tensor.name == name)
    }

    /// Elements of a stored single-precision tensor.
    pub fn floats(&self, name: &str) -> Option<Vec<f32>> {
        let tensor = self.initializer(name)?;
        (tensor.data_type == DataType::Float as i32).then(|| floats(tensor))
    }

    /// Puts other elements into a stored single-precision tensor.
    pub fn set_floats(&mut self, name: &str, values: &[f32]) {
        if let Some(tensor) = self.graph_mut().initializer.iter_mut().find(|tensor| tensor.name == name) {
            tensor.raw_data = float_bytes(values);
        }
    }

    /// Stores a tensor under a name of its own and gives that name.
    pub fn store(&mut self, base: &str, data_type: DataType, dims: &[i64], bytes: Bytes) -> String {
        let name = self.fresh(base);
        let tensor = TensorProto {
            name: name.clone(),
            data_type: data_type as i32,
            dims: dims.to_vec(),
            raw_data: bytes,
            ..Default::default()
        };
        self.graph_mut().initializer.push(tensor);
        name
    }

    /// Gives `node` a copy of its own of a stored tensor that others read too, so that it can be changed.
    pub fn own(&mut self, node: usize, position: usize) -> Option<String> {
        let name = self.graph().node[node].input.get(position).filter(|name| !name.is_empty())?.clone();
        let readers = self.graph().node.iter().flat_map(|node| &node.input).filter(|input| **input == name).count();
        if readers <= 1 {
            return Some(name);
        }
        let mut copy = self.initializer(&name)?.clone();
        let own = self.fresh(&format!("{name}_own"));
        copy.name.clone_from(&own);
        self.graph_mut().initializer.push(copy);
        self.graph_mut().node[node].input[position].clone_from(&own);
        Some(own)
    }

    /// Drops stored tensors that nobody reads.
    pub fn drop_unread(&mut self) {
        let graph = self.graph();
        let mut read: BTreeSet<String> = graph.output.iter().map(|output| output.name.clone()).collect();
        read_names(graph, &mut read);
        let unread = |tensor: &&TensorProto| !read.contains(&tensor.name);
        let gone: BTreeSet<String> =
            graph.initializer.iter().filter(unread).map(|tensor| tensor.name.clone()).collect();
        let graph = self.graph_mut();
        graph.initializer.retain(|tensor| !gone.contains(&tensor.name));
        // Old files list weights among the inputs, too.
        graph.input.retain(|input| !gone.contains(&input.name));
    }

    /// The nodes that read each value, by index.
    pub fn readers(&self) -> BTreeMap<&str, Vec<usize>> {
        let mut readers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (at, node) in self.graph().node.iter().enumerate() {
            for input in node.input.iter().filter(|input| !input.is_empty()) {
                let list = readers.entry(input).or_default();
                if list.last() != Some(&at) {
                    list.push(at);
                }
            }
        }
        readers
    }

    /// The node that makes each value, by index.
    pub fn makers(&self) -> BTreeMap<&str, usize> {
        let nodes = self.graph().node.iter().enumerate();
        nodes.flat_map(|(at, node)| node.output.iter().map(move |output| (output.as_str(), at))).collect()
    }

    /// Values that bodies of control-flow nodes take from outside, and outputs of the graph: nobody may rename them.
    pub fn fixed_names(&self) -> BTreeSet<String> {
        let mut fixed: BTreeSet<String> = self.graph().output.iter().map(|output| output.name.clone()).collect();
        for body in self.graph().node.iter().flat_map(bodies) {
            read_names(body, &mut fixed);
        }
        fixed
    }

    pub fn shape(&self, value: &str) -> Option<&[usize]> {
        self.types.get(value).map(|of| of.shape.as_slice())
    }

    pub fn is_single(&self, value: &str) -> bool {
        self.types.get(value).is_some_and(|of| of.element == ElementType::F32)
    }

    fn name_nodes(&mut self) {
        let mut taken = BTreeSet::new();
        for at in 0..self.graph().node.len() {
            let node = &self.graph().node[at];
            let name = match node.name.is_empty() {
                true => node
                    .output
                    .iter()
                    .find(|name| !name.is_empty())
                    .map_or_else(|| format!("node{at}"), |first| format!("{}:{first}", node.op_type)),
                false => node.name.clone(),
            };
            let name = if taken.contains(&name) { format!("{name}#{at}") } else { name };
            taken.insert(name.clone());
            self.graph_mut().node[at].name = name;
        }
    }

    /// Lets who reads a copy of a stored tensor read the tensor: an exporter stores equal ones once and copies them.
    fn copies_to_initializers(&mut self) {
        let fixed = self.fixed_names();
        let mut of: BTreeMap<String, String> = BTreeMap::new();
        for node in self.graph().node.iter().filter(|node| node.op_type == "Identity" && is_standard(&node.domain)) {
            let ([input], [output]) = (&node.input[..], &node.output[..]) else { continue };
            let stored = of.get(input).unwrap_or(input).clone();
            if self.initializer(&stored).is_some() && !fixed.contains(output) {
                of.insert(output.clone(), stored);
            }
        }
        let nodes = &mut self.graph_mut().node;
        nodes.retain(|node| node.output.iter().all(|output| !of.contains_key(output)));
        for input in nodes.iter_mut().flat_map(|node| &mut node.input) {
            if let Some(stored) = of.get(input) {
                input.clone_from(stored);
            }
        }
    }

    fn constants_to_initializers(&mut self) {
        let graph = self.graph_mut();
        let nodes = std::mem::take(&mut graph.node);
        for node in nodes {
            let value =
                node.attribute.iter().find(|attribute| attribute.name == "value").and_then(|value| value.t.as_deref());
            match value.filter(|tensor| node.op_type == "Constant" && tensor.data_type == DataType::Float as i32) {
                Some(tensor) => {
                    let name = node.output[0].clone();
                    graph.initializer.push(TensorProto { name, ..with_raw(tensor) });
                }
                None => graph.node.push(node),
            }
        }
    }
}

/// A graph's stored bytes, by ONNX's name for the type of their elements.
pub fn bytes_by_type(graph: &GraphProto) -> BTreeMap<String, u64> {
    let mut bytes = BTreeMap::new();
    for tensor in &graph.initializer {
        let name = DataType::try_from(tensor.data_type).map_or("unknown", |known| known.as_str_name());
        *bytes.entry(name.to_ascii_lowercase()).or_insert(0) += tensor.raw_data.len() as u64;
    }
    bytes
}

pub fn is_standard(domain: &str) -> bool {
    domain.is_empty() || domain == "ai.onnx"
}

/// Graphs inside a node.
pub fn bodies(node: &NodeProto) -> impl Iterator<Item = &GraphProto> {
    node.attribute.iter().flat_map(|attribute| attribute.g.as_deref().into_iter().chain(&attribute.graphs))
}

fn read_names(graph: &GraphProto, into: &mut BTreeSet<String>) {
    for node in &graph.node {
        into.extend(node.input.iter().cloned());
        bodies(node).for_each(|body| {
            read_names(body, into);
            into.extend(body.output.iter().map(|output| output.name.clone()));
        });
    }
}

fn names(graph: &GraphProto) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    names.extend(graph.input.iter().chain(&graph.output).map(|info| info.name.clone()));
    names.extend(graph.initializer.iter().map(|tensor| tensor.name.clone()));
    for node in &graph.node {
        names.insert(node.name.clone());
        names.extend(node.output.iter().cloned());
        bodies(node).for_each(|body| names.extend(self::names(body)));
    }
    names
}

fn reopened(proto: &ModelProto) -> Result<Model, PrecisionError> {
    Ok(Model::from_bytes(proto.encode_to_vec().into())?)
}

/// Puts every tensor's bytes into its own `raw_data`.
fn inline(model: &Model, proto: &mut ModelProto) -> Result<(), PrecisionError> {
    let mut stored = BTreeMap::new();
    for_each_tensor(&model.proto, &mut |tensor| -> Result<(), OnnxError> {
        if planforge_onnx::tensor::is_external(tensor).unwrap_or(false) {
            stored.insert(tensor.name.clone(), model.tensor_bytes(tensor)?);
        }
        Ok(())
    })?;
    if let Some(graph) = proto.graph.as_mut() {
        for tensor in &mut graph.initializer {
            if let Some(bytes) = stored.get(&tensor.name) {
                *tensor = TensorProto {
                    name: std::mem::take(&mut tensor.name),
                    dims: std::mem::take(&mut tensor.dims),
                    data_type: tensor.data_type,
                    raw_data: bytes.clone(),
                    ..Default::default()
                };
            } else if tensor.data_type != DataType::String as i32 {
                *tensor = with_raw(tensor);
            }
        }
    }
    Ok(())
}

fn with_raw(tensor: &TensorProto) -> TensorProto {
    let raw_data = planforge_onnx::tensor::inline_bytes(tensor).unwrap_or_default();
    TensorProto {
        name: tensor.name.clone(),
        dims: tensor.dims.clone(),
        data_type: tensor.data_type,
        raw_data,
        ..Default::default()
    }
}

/// Elements of a single-precision tensor with raw bytes.
pub fn floats(tensor: &TensorProto) -> Vec<f32> {
    let whole = tensor.raw_data.len() / size_of::<f32>() * size_of::<f32>();
    bytemuck::pod_collect_to_vec(&tensor.raw_data[..whole])
}

pub fn float_bytes(values: &[f32]) -> Bytes {
    Bytes::copy_from_slice(bytemuck::cast_slice(values))
}

pub fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto { name: name.to_owned(), i, r#type: AttributeType::Int as i32, ..Default::default() }
}

pub fn int_attribute(node: &NodeProto, name: &str) -> Option<i64> {
    node.attribute.iter().find(|attribute| attribute.name == name).map(|attribute| attribute.i)
}

/// A node of the standard domain.
pub fn node(name: String, op_type: &str, inputs: &[&str], output: &str, attribute: Vec<AttributeProto>) -> NodeProto {
    NodeProto {
        name,
        op_type: op_type.to_owned(),
        input: inputs.iter().map(|name| (*name).to_owned()).collect(),
        output: vec![output.to_owned()],
        attribute,
        ..Default::default()
    }
}
