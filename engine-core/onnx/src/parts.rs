//! A model in two parts: one message that says everything but the weights, and the weights one after the other.
//!
//! That is how a model travels inside another file: the message is small, and the weights are mapped from where they
//! lie, whether the model had them inside or in files beside it. Equal weights lie there once, and what the file around
//! holds anyway is only pointed to. What only describes (`value_info`, documentation) is left out.

use crate::{
    error::{OnnxError, TensorError},
    external::DataFiles,
    model::{MAX_PROTOBUF_BYTES, Model},
    proto::{
        AttributeProto, GraphProto, NodeProto, StringStringEntryProto, TensorProto,
        tensor_proto::{DataLocation, DataType},
    },
    tensor,
};
use bytes::Bytes;
use prost::Message as _;
use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hasher as _},
    io::{self, Write},
    path::Path,
};

/// What the weights' part is called inside the message.
const DATA_NAME: &str = "weights";
/// What is called so that the file around the model holds anyway.
const AROUND_NAME: &str = "around";
/// Tensors of fewer bytes stay in the message.
const APART_FROM_BYTES: usize = 1024;
/// Weights begin on a cache line.
const LINE_BYTES: u64 = 64;
/// Bytes by which weights are told apart before they are compared in full.
const HEAD_BYTES: usize = 4096;

/// Where bytes lie in the file around a model, when it holds them anyway.
pub type Around<'f> = dyn Fn(&[u8]) -> Option<u64> + 'f;

/// Both parts of a model; see [`Model::detach`].
#[derive(Debug, Default)]
pub struct Detached {
    /// The message.
    pub proto: Vec<u8>,
    /// Offset and bytes of each weight, ascending; between them lies padding.
    pub weights: Vec<(u64, Bytes)>,
    /// Size of the weights with padding.
    pub weight_bytes: u64,
}

impl Detached {
    /// Writes the weights with the padding between them.
    pub fn write_weights(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut at = 0;
        for (offset, bytes) in &self.weights {
            out.write_all(&[0; LINE_BYTES as usize][..(offset - at) as usize])?;
            out.write_all(bytes)?;
            at = offset + bytes.len() as u64;
        }
        Ok(())
    }
}

impl Model {
    /// Takes the model apart. Weights are shared with it, not copied.
    pub fn detach(&self) -> Result<Detached, OnnxError> {
        self.detach_inside(&|_| None)
    }

    /// Takes the model apart, but for what lies in the file `around` it.
    pub fn detach_inside(&self, around: &Around<'_>) -> Result<Detached, OnnxError> {
        let mut proto = self.proto.clone();
        let mut parting = Parting { model: self, around, detached: Detached::default(), alike: HashMap::new() };
        let mut set_apart = |tensor: &mut TensorProto| parting.set_apart(tensor);
        if let Some(graph) = &mut proto.graph {
            graph.value_info.clear();
            graph.doc_string.clear();
            each_in_graph(graph, &mut set_apart)?;
        }
        for function in &mut proto.functions {
            for node in &mut function.node {
                each_in_node(node, &mut set_apart)?;
            }
            for attribute in &mut function.attribute_proto {
                each_in_attribute(attribute, &mut set_apart)?;
            }
        }
        let mut detached = parting.detached;
        detached.proto = proto.encode_to_vec();
        Ok(detached)
    }

    /// Puts a model together again, checking all of it as [`Model::open`] does; `weights` are shared, not copied.
    pub fn attach(proto: Bytes, weights: Bytes) -> Result<Self, OnnxError> {
        Self::attach_inside(proto, weights, Bytes::new())
    }

    /// Puts a model together again of which parts lie in the file `around` it.
    pub fn attach_inside(proto: Bytes, weights: Bytes, around: Bytes) -> Result<Self, OnnxError> {
        let path = Path::new("(inside another file)");
        if proto.len() as u64 >= MAX_PROTOBUF_BYTES {
            return Err(OnnxError::TooLarge { path: path.to_owned(), size_bytes: proto.len() as u64 });
        }
        Self::build(proto, path, DataFiles::in_memory([(DATA_NAME, weights), (AROUND_NAME, around)]))
    }
}

/// A model while it is taken apart.
struct Parting<'a> {
    model: &'a Model,
    around: &'a Around<'a>,
    detached: Detached,
    /// Weights that were set apart, by size and the digest of their first bytes.
    alike: HashMap<(usize, u64), Vec<usize>>,
}

impl Parting<'_> {
    fn set_apart(&mut self, tensor: &mut TensorProto) -> Result<(), OnnxError> {
        let external = tensor::is_external(tensor).map_err(|problem| OnnxError::tensor(&tensor.name, problem))?;
        if tensor.data_type == DataType::String as i32 {
            return Ok(());
        }
        let bytes = self.model.tensor_bytes(tensor)?;
        let is_small = bytes.len() < APART_FROM_BYTES;
        if is_small && !external {
            return Ok(());
        }
        let elsewhere = if is_small { None } else { (self.around)(&bytes) };
        let (name, offset) = match elsewhere {
            Some(offset) => (AROUND_NAME, offset),
            None => (DATA_NAME, self.place(&bytes)),
        };
        let entry = |key: &str, value: String| StringStringEntryProto { key: key.into(), value };
        *tensor = TensorProto {
            name: std::mem::take(&mut tensor.name),
            dims: std::mem::take(&mut tensor.dims),
            data_type: tensor.data_type,
            data_location: DataLocation::External as i32,
            external_data: vec![
                entry("location", name.into()),
                entry("offset", offset.to_string()),
                entry("length", bytes.len().to_string()),
            ],
            ..TensorProto::default()
        };
        Ok(())
    }

    /// Where these bytes lie among the weights: where equal ones do, else behind all others.
    fn place(&mut self, bytes: &Bytes) -> u64 {
        let mut hasher = DefaultHasher::new();
        hasher.write(&bytes[..bytes.len().min(HEAD_BYTES)]);
        let weights = &mut self.detached.weights;
        let alike = self.alike.entry((bytes.len(), hasher.finish())).or_default();
        if let Some(&index) = alike.iter().find(|&&index| weights[index].1 == bytes) {
            return weights[index].0;
        }
        alike.push(weights.len());
        let offset = self.detached.weight_bytes.next_multiple_of(LINE_BYTES);
        self.detached.weight_bytes = offset + bytes.len() as u64;
        weights.push((offset, bytes.clone()));
        offset
    }
}

type Change<'f> = dyn FnMut(&mut TensorProto) -> Result<(), OnnxError> + 'f;

fn each_in_graph(graph: &mut GraphProto, change: &mut Change<'_>) -> Result<(), OnnxError> {
    graph.initializer.iter_mut().try_for_each(&mut *change)?;
    if !graph.sparse_initializer.is_empty() {
        let problem = TensorError::Unsupported { what: "taking sparse tensors apart" };
        return Err(OnnxError::tensor("sparse_initializer", problem));
    }
    graph.node.iter_mut().try_for_each(|node| each_in_node(node, change))
}

fn each_in_node(node: &mut NodeProto, change: &mut Change<'_>) -> Result<(), OnnxError> {
    node.attribute.iter_mut().try_for_each(|attribute| each_in_attribute(attribute, change))
}

fn each_in_attribute(attribute: &mut AttributeProto, change: &mut Change<'_>) -> Result<(), OnnxError> {
    attribute.t.iter_mut().try_for_each(|tensor| change(tensor))?;
    attribute.tensors.iter_mut().try_for_each(&mut *change)?;
    attribute.g.iter_mut().try_for_each(|graph| each_in_graph(graph, change))?;
    attribute.graphs.iter_mut().try_for_each(|graph| each_in_graph(graph, change))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{ModelProto, attribute_proto::AttributeType};

    fn tensor(name: &str, count: usize) -> TensorProto {
        TensorProto {
            name: name.into(),
            data_type: DataType::Float as i32,
            dims: vec![count as i64],
            float_data: (0..count).map(|at| at as f32).collect(),
            ..TensorProto::default()
        }
    }

    #[test]
    fn equal_weights_and_what_lies_around_are_held_once() {
        let shifted = |name: &str, by: f32| {
            let mut tensor = tensor(name, 500);
            tensor.float_data.iter_mut().for_each(|value| *value += by);
            tensor
        };
        let initializer = vec![shifted("a", 0.0), shifted("b", 0.0), shifted("c", 1.0), shifted("held", 2.0)];
        let graph = GraphProto { initializer, ..GraphProto::default() };
        let proto = ModelProto { graph: Some(graph), ..ModelProto::default() };
        let model = Model::from_bytes(proto.encode_to_vec().into()).unwrap();
        let of = |model: &Model, index: usize| model.tensor_bytes(&model.graph().initializer[index]).unwrap();
        let mut around = vec![7; 256];
        around.extend_from_slice(&of(&model, 3));
        let held = of(&model, 3);
        let detached = model.detach_inside(&|bytes| (bytes == held).then_some(256)).unwrap();
        assert_eq!(detached.weights.iter().map(|(offset, _)| *offset).collect::<Vec<_>>(), [0, 2048]);
        assert_eq!(detached.weight_bytes, 4048);
        let mut weights = Vec::new();
        detached.write_weights(&mut weights).unwrap();
        let back = Model::attach_inside(detached.proto.clone().into(), weights.clone().into(), around.into()).unwrap();
        for index in 0..4 {
            assert_eq!(of(&model, index), of(&back, index), "tensor {index}");
        }
        assert!(Model::attach(detached.proto.into(), weights.into()).is_err(), "what lies around is needed");
    }

    #[test]
    fn a_model_taken_apart_is_the_same_put_together() {
        let constant = NodeProto {
            op_type: "Constant".into(),
            output: vec!["c".into()],
            attribute: vec![AttributeProto {
                name: "value".into(),
                t: Some(tensor("inner", 3000).into()),
                r#type: AttributeType::Tensor as i32,
                ..AttributeProto::default()
            }],
            ..NodeProto::default()
        };
        let graph = GraphProto {
            node: vec![constant],
            initializer: vec![tensor("small", 3), tensor("large", 777)],
            ..GraphProto::default()
        };
        let proto = ModelProto { graph: Some(graph), ..ModelProto::default() };
        let model = Model::from_bytes(proto.encode_to_vec().into()).unwrap();
        let detached = model.detach().unwrap();
        assert_eq!(detached.weights.len(), 2);
        assert!(detached.proto.len() < 1000);
        let mut weights = Vec::new();
        detached.write_weights(&mut weights).unwrap();
        assert_eq!(weights.len() as u64, detached.weight_bytes);
        let cut = weights[..weights.len() - 1].to_vec();
        assert!(Model::attach(detached.proto.clone().into(), cut.into()).is_err());
        let back = Model::attach(detached.proto.into(), weights.into()).unwrap();
        for (was, is) in model.graph().initializer.iter().zip(&back.graph().initializer) {
            assert_eq!((&was.name, &was.dims), (&is.name, &is.dims));
            assert_eq!(model.tensor_bytes(was).unwrap(), back.tensor_bytes(is).unwrap());
        }
        let inner = |model: &Model| {
            let tensor = model.graph().node[0].attribute[0].t.as_ref().unwrap();
            model.tensor_bytes(tensor).unwrap()
        };
        assert_eq!(inner(&model), inner(&back));
    }
}
