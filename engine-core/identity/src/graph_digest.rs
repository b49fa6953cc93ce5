//! The graph behind the file: a digest of what is computed, not of how it was written down.
//!
//! The graph is walked from its outputs; every value gets a number when it is first met, and its producer is written
//! down: operator, attributes by name, inputs by number. So names of nodes and inner values, the order of nodes and
//! initializers, unused parts, doc strings, metadata and the storage form of tensors leave no trace, while operators,
//! attributes, types, weights, operator set versions and the names of inputs and outputs do.
//!
//! The structure digest leaves out the elements of weights. What steers the graph stays: integers (of the types that
//! shapes have), strings and booleans of up to [`MAX_STEERING_ELEMENTS`] elements, tensors in attributes, and floats where an operator makes a
//! shape of them.

use planforge_onnx::{
    Model, OnnxError,
    proto::{
        AttributeProto, FunctionProto, GraphProto, NodeProto, SparseTensorProto, TensorProto, TypeProto,
        ValueInfoProto, attribute_proto::AttributeType, tensor_proto::DataType, tensor_shape_proto::dimension,
        type_proto,
    },
    tensor::for_each_tensor,
};
use planforge_types::{Digest, DigestWriter};
use prost::Message as _;
use rayon::prelude::*;
use std::collections::{HashMap, HashSet};

/// Integer tensors up to this size are taken for shapes, axes or indices; larger ones for quantised weights.
pub const MAX_STEERING_ELEMENTS: i64 = 1024;

/// The two digests of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphDigests {
    pub graph: Digest,
    pub structure: Digest,
}

/// Both digests of `model`'s graph.
pub fn of(model: &Model) -> Result<GraphDigests, OnnxError> {
    let mut walk = Walk {
        graph: DigestWriter::new(),
        structure: DigestWriter::new(),
        data: tensor_digests(model)?,
        steering: steering_values(model),
        begun: HashSet::new(),
        scopes: Vec::new(),
        next: 0,
    };
    walk.text("planforge-graph-v1");
    let mut opsets: Vec<_> =
        model.proto.opset_import.iter().map(|import| (domain(&import.domain), import.version)).collect();
    opsets.sort_unstable();
    walk.number(opsets.len() as u64);
    for (domain, version) in opsets {
        walk.text(domain);
        walk.number(version as u64);
    }
    walk.graph(model.graph(), None);
    let mut functions: Vec<_> = model.proto.functions.iter().collect();
    functions.sort_by_key(|function| (domain(&function.domain), &function.name, &function.overload));
    walk.number(functions.len() as u64);
    functions.into_iter().for_each(|function| walk.function(function));
    // Rare, and outside what a graph computes when it is run: taken as they stand.
    for training in &model.proto.training_info {
        walk.bytes(&training.encode_to_vec());
    }
    for configuration in &model.proto.configuration {
        walk.bytes(&configuration.encode_to_vec());
    }
    Ok(GraphDigests { graph: walk.graph.finish(), structure: walk.structure.finish() })
}

/// The standard domain has two spellings.
fn domain(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

/// Digests of every tensor's elements, by the tensor's address; made in parallel, for weights can be large.
fn tensor_digests(model: &Model) -> Result<HashMap<usize, Digest>, OnnxError> {
    let mut tensors = Vec::new();
    for_each_tensor(&model.proto, &mut |tensor| {
        tensors.push(tensor);
        Ok::<_, OnnxError>(())
    })?;
    let digest = |tensor: &TensorProto| {
        let digest = if tensor.data_type == DataType::String as i32 {
            let mut digest = DigestWriter::new();
            for text in &tensor.string_data {
                digest.update(&(text.len() as u64).to_le_bytes());
                digest.update(text);
            }
            digest.finish()
        } else {
            Digest::of(&model.tensor_bytes(tensor)?)
        };
        Ok((address(tensor), digest))
    };
    tensors.into_par_iter().map(digest).collect()
}

fn address<T>(of: &T) -> usize {
    std::ptr::from_ref(of).addr()
}

/// Inputs of operators that make shapes or lengths of floats.
const STEERING_FLOATS: [(&str, &[usize]); 4] =
    [("Resize", &[1, 2]), ("Upsample", &[1]), ("Range", &[0, 1, 2]), ("OneHot", &[1])];

/// Names of the values that such inputs take, in any graph of the model.
fn steering_values(model: &Model) -> HashSet<&str> {
    let mut found = HashSet::new();
    let mut graphs = vec![model.graph()];
    let mut nodes: Vec<&NodeProto> = model.proto.functions.iter().flat_map(|function| &function.node).collect();
    while let Some(graph) = graphs.pop() {
        nodes.extend(&graph.node);
        while let Some(node) = nodes.pop() {
            let steering = STEERING_FLOATS.iter().find(|(op_type, _)| *op_type == node.op_type);
            let inputs = steering.into_iter().flat_map(|(_, inputs)| inputs.iter());
            found.extend(inputs.filter_map(|input| node.input.get(*input)).map(String::as_str));
            graphs.extend(subgraphs(node));
        }
    }
    found
}

/// The graphs that `node` holds in attributes.
fn subgraphs(node: &NodeProto) -> impl Iterator<Item = &GraphProto> {
    node.attribute.iter().flat_map(|attribute| attribute.g.as_deref().into_iter().chain(&attribute.graphs))
}

/// Every name that graphs inside `node` mention, which may be values from outside them.
fn mentioned_inside(node: &NodeProto) -> Vec<&str> {
    let mut names = Vec::new();
    let mut graphs: Vec<&GraphProto> = subgraphs(node).collect();
    while let Some(graph) = graphs.pop() {
        names.extend(graph.output.iter().map(|output| output.name.as_str()));
        for inner in &graph.node {
            names.extend(inner.input.iter().map(String::as_str));
            graphs.extend(subgraphs(inner));
        }
    }
    names
}

/// The names that one graph (or function) gives.
#[derive(Default)]
struct Scope<'a> {
    /// Index of the graph around it.
    parent: Option<usize>,
    /// Values that have their number.
    numbers: HashMap<&'a str, u64>,
    producers: HashMap<&'a str, &'a NodeProto>,
    weights: HashMap<&'a str, &'a TensorProto>,
    sparse: HashMap<&'a str, &'a SparseTensorProto>,
}

/// Work that is left; an explicit stack, for a graph's depth is not bounded.
enum Step<'a> {
    /// The value of that name, seen from the scope of that index, must get its number.
    Need(usize, &'a str),
    /// The node, whose inputs have their numbers, is written down.
    Emit(usize, &'a NodeProto),
}

struct Walk<'a> {
    graph: DigestWriter,
    structure: DigestWriter,
    /// By address of the tensor.
    data: HashMap<usize, Digest>,
    steering: HashSet<&'a str>,
    /// By address, the nodes that are written down or wait for their inputs, graphs inside of nodes included: a node
    /// met again before it is written down is part of a cycle, which may lead through a graph inside it.
    begun: HashSet<usize>,
    scopes: Vec<Scope<'a>>,
    /// Number of the next value.
    next: u64,
}

impl<'a> Walk<'a> {
    /// A graph with the values of `parent` in sight.
    fn graph(&mut self, graph: &'a GraphProto, parent: Option<usize>) {
        let mut scope = Scope { parent, ..Scope::default() };
        scope.weights = graph.initializer.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        let sparse = graph.sparse_initializer.iter();
        scope.sparse = sparse.filter_map(|sparse| Some((sparse.values.as_ref()?.name.as_str(), sparse))).collect();
        scope.producers = producers(&graph.node);
        let at = self.enter(scope);
        self.number(graph.input.len() as u64);
        for input in &graph.input {
            self.port(input, parent.is_none());
            // An input with a value of its own is one that callers may leave out.
            let default = self.scopes[at].weights.get(input.name.as_str()).copied();
            self.number(u64::from(default.is_some()));
            if let Some(default) = default {
                self.weight(default);
            }
            self.name(at, &input.name);
        }
        let outputs: Vec<&str> = graph.output.iter().map(|output| output.name.as_str()).collect();
        self.outputs(at, &outputs);
        graph.output.iter().for_each(|output| self.port(output, parent.is_none()));
        let mut annotations: Vec<_> = graph.quantization_annotation.iter().collect();
        annotations.sort_by_key(|annotation| self.find(at, &annotation.tensor_name));
        for annotation in annotations {
            self.reference(at, &annotation.tensor_name);
            for entry in &annotation.quant_parameter_tensor_names {
                self.text(&entry.key);
                self.outputs(at, &[entry.value.as_str()]);
            }
        }
    }

    fn function(&mut self, function: &'a FunctionProto) {
        for text in [domain(&function.domain), &function.name, &function.overload] {
            self.text(text);
        }
        let mut opsets: Vec<_> =
            function.opset_import.iter().map(|import| (domain(&import.domain), import.version)).collect();
        opsets.sort_unstable();
        for (domain, version) in opsets {
            self.text(domain);
            self.number(version as u64);
        }
        function.attribute.iter().for_each(|name| self.text(name));
        let at = self.enter(Scope { producers: producers(&function.node), ..Scope::default() });
        self.attributes(at, &function.attribute_proto, "");
        self.number(function.input.len() as u64);
        function.input.iter().for_each(|input| self.name(at, input));
        let outputs: Vec<&str> = function.output.iter().map(String::as_str).collect();
        self.outputs(at, &outputs);
    }

    fn enter(&mut self, scope: Scope<'a>) -> usize {
        self.scopes.push(scope);
        self.scopes.len() - 1
    }

    /// Writes down what the values depend on, then which they are.
    fn outputs(&mut self, scope: usize, names: &[&'a str]) {
        let mut steps: Vec<_> = names.iter().rev().map(|name| Step::Need(scope, name)).collect();
        while let Some(step) = steps.pop() {
            match step {
                Step::Need(from, name) => {
                    let Some((at, node)) = self.unnumbered(from, name) else { continue };
                    if self.begun.insert(address(node)) {
                        steps.push(Step::Emit(at, node));
                        let names = node.input.iter().map(String::as_str).chain(mentioned_inside(node));
                        let needs: Vec<_> = names.map(|name| Step::Need(at, name)).collect();
                        steps.extend(needs.into_iter().rev());
                    }
                }
                Step::Emit(at, node) => self.node(at, node),
            }
        }
        self.number(names.len() as u64);
        names.iter().for_each(|name| self.reference(scope, name));
    }

    /// The scope that gives `name` and the node that makes it, when it has no number yet. A weight gets its number here.
    fn unnumbered(&mut self, from: usize, name: &'a str) -> Option<(usize, &'a NodeProto)> {
        let mut at = from;
        loop {
            let scope = &self.scopes[at];
            if name.is_empty() || scope.numbers.contains_key(name) {
                return None;
            }
            if let Some(node) = scope.producers.get(name) {
                return Some((at, node));
            }
            if let Some(tensor) = scope.weights.get(name).copied() {
                self.weight(tensor);
                self.name(at, name);
                return None;
            }
            if let Some(sparse) = scope.sparse.get(name).copied() {
                self.sparse(sparse);
                self.name(at, name);
                return None;
            }
            at = scope.parent?;
        }
    }

    /// Gives a value of a scope the next number.
    fn name(&mut self, scope: usize, name: &'a str) {
        self.scopes[scope].numbers.insert(name, self.next);
        self.next += 1;
    }

    /// The number of a value, seen from `scope`.
    fn find(&self, scope: usize, name: &str) -> Option<u64> {
        let scope = &self.scopes[scope];
        scope.numbers.get(name).copied().or_else(|| self.find(scope.parent?, name))
    }

    /// Writes which value is meant; one that nothing makes, by its name.
    fn reference(&mut self, scope: usize, name: &str) {
        match self.find(scope, name) {
            _ if name.is_empty() => self.number(u64::MAX),
            Some(number) => self.number(number),
            None => {
                self.number(u64::MAX - 1);
                self.text(name);
            }
        }
    }

    fn node(&mut self, scope: usize, node: &'a NodeProto) {
        for text in [domain(&node.domain), &node.op_type, &node.overload] {
            self.text(text);
        }
        // Optional values that are left out at the end may be written or not.
        let used = |names: &[String]| names.iter().rposition(|name| !name.is_empty()).map_or(0, |last| last + 1);
        let inputs = &node.input[..used(&node.input)];
        self.number(inputs.len() as u64);
        inputs.iter().for_each(|input| self.reference(scope, input));
        let is_weight = node.op_type == "Constant"
            && node.output.first().is_some_and(|output| !self.steering.contains(output.as_str()));
        self.attributes(scope, &node.attribute, if is_weight { "value" } else { "" });
        for configuration in &node.device_configurations {
            self.bytes(&configuration.encode_to_vec());
        }
        let outputs = &node.output[..used(&node.output)];
        self.number(outputs.len() as u64);
        for output in outputs {
            self.number(u64::from(output.is_empty()));
            if !output.is_empty() {
                self.name(scope, output);
            }
        }
    }

    /// Attributes by name; the tensor of the one called `weight` is a weight.
    fn attributes(&mut self, scope: usize, attributes: &'a [AttributeProto], weight: &str) {
        let mut sorted: Vec<_> = attributes.iter().collect();
        sorted.sort_by_key(|attribute| &attribute.name);
        self.number(sorted.len() as u64);
        for attribute in sorted {
            self.text(&attribute.name);
            self.attribute(scope, attribute, attribute.name == weight);
        }
    }

    fn attribute(&mut self, scope: usize, attribute: &'a AttributeProto, is_weight: bool) {
        self.number(attribute.r#type as u64);
        self.text(&attribute.ref_attr_name);
        match attribute.r#type() {
            AttributeType::Float => self.number(u64::from(attribute.f.to_bits())),
            AttributeType::Int => self.number(attribute.i as u64),
            AttributeType::String => self.bytes(&attribute.s),
            AttributeType::Tensor if is_weight => attribute.t.iter().for_each(|tensor| self.weight(tensor)),
            // Lists, graphs, and attributes of old files that do not say their type: all there is.
            _ => {
                self.number(u64::from(attribute.f.to_bits()));
                self.number(attribute.i as u64);
                self.bytes(&attribute.s);
                self.list(&attribute.floats, |walk, value| walk.number(u64::from(value.to_bits())));
                self.list(&attribute.ints, |walk, value| walk.number(*value as u64));
                self.list(&attribute.strings, |walk, value| walk.bytes(value));
                self.list(attribute.t.as_deref(), |walk, tensor| walk.tensor(tensor, true));
                self.list(&attribute.tensors, |walk, tensor| walk.tensor(tensor, true));
                self.list(attribute.sparse_tensor.as_deref(), Self::sparse);
                self.list(&attribute.sparse_tensors, Self::sparse);
                self.list(attribute.tp.as_deref(), Self::value_type);
                self.list(&attribute.type_protos, Self::value_type);
                self.list(attribute.g.as_deref(), |walk, graph| walk.graph(graph, Some(scope)));
                self.list(&attribute.graphs, |walk, graph| walk.graph(graph, Some(scope)));
            }
        }
    }

    fn list<T: 'a>(&mut self, items: impl IntoIterator<Item = &'a T>, mut each: impl FnMut(&mut Self, &'a T)) {
        let items: Vec<_> = items.into_iter().collect();
        self.number(items.len() as u64);
        items.into_iter().for_each(|item| each(self, item));
    }

    /// A stored tensor: its elements are in the structure only when they steer the graph.
    fn weight(&mut self, tensor: &'a TensorProto) {
        let steering = [DataType::Int64, DataType::Int32, DataType::Bool, DataType::String];
        let integer = steering.iter().any(|steering| *steering as i32 == tensor.data_type);
        let small = tensor.dims.iter().try_fold(1i64, |count, dim| count.checked_mul(*dim));
        let small = small.is_some_and(|count| count <= MAX_STEERING_ELEMENTS);
        let steers = self.steering.contains(tensor.name.as_str()) || integer && small;
        self.tensor(tensor, steers);
    }

    fn tensor(&mut self, tensor: &'a TensorProto, in_structure: bool) {
        self.number(tensor.data_type as u64);
        self.number(tensor.dims.len() as u64);
        tensor.dims.iter().for_each(|dim| self.number(*dim as u64));
        let digest = self.data.get(&address(tensor)).map(|digest| *digest.as_raw()).unwrap_or_default();
        self.graph.update(&digest);
        self.structure.update(&[u8::from(in_structure)]);
        if in_structure {
            self.structure.update(&digest);
        }
    }

    fn sparse(&mut self, sparse: &'a SparseTensorProto) {
        self.list(&sparse.dims, |walk, dim| walk.number(*dim as u64));
        self.list(&sparse.values, Self::weight);
        self.list(&sparse.indices, |walk, tensor| walk.tensor(tensor, false));
    }

    fn port(&mut self, port: &'a ValueInfoProto, named: bool) {
        if named {
            self.text(&port.name);
        }
        self.list(&port.r#type, Self::value_type);
    }

    fn value_type(&mut self, value: &'a TypeProto) {
        use type_proto::Value;
        match &value.value {
            None => self.number(0),
            Some(Value::TensorType(tensor)) => {
                self.number(1);
                self.number(tensor.elem_type as u64);
                self.list(&tensor.shape, Self::shape);
            }
            Some(Value::SparseTensorType(tensor)) => {
                self.number(2);
                self.number(tensor.elem_type as u64);
                self.list(&tensor.shape, Self::shape);
            }
            Some(Value::SequenceType(sequence)) => {
                self.number(3);
                self.list(sequence.elem_type.as_deref(), Self::value_type);
            }
            Some(Value::OptionalType(optional)) => {
                self.number(4);
                self.list(optional.elem_type.as_deref(), Self::value_type);
            }
            Some(Value::MapType(map)) => {
                self.number(5);
                self.number(map.key_type as u64);
                self.list(map.value_type.as_deref(), Self::value_type);
            }
            Some(Value::OpaqueType(opaque)) => {
                self.number(6);
                self.text(&opaque.domain);
                self.text(&opaque.name);
            }
        }
    }

    fn shape(&mut self, shape: &'a planforge_onnx::proto::TensorShapeProto) {
        self.list(&shape.dim, |walk, dim| match &dim.value {
            None => walk.number(0),
            Some(dimension::Value::DimValue(size)) => {
                walk.number(1);
                walk.number(*size as u64);
            }
            Some(dimension::Value::DimParam(name)) => {
                walk.number(2);
                walk.text(name);
            }
        });
    }

    fn number(&mut self, number: u64) {
        self.graph.update(&number.to_le_bytes());
        self.structure.update(&number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.graph.update(bytes);
        self.structure.update(bytes);
    }
}

/// Which node makes each value.
fn producers(nodes: &[NodeProto]) -> HashMap<&str, &NodeProto> {
    nodes.iter().flat_map(|node| node.output.iter().map(move |output| (output.as_str(), node))).collect()
}
