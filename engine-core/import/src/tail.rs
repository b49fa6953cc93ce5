//! What follows where only data decides sizes.
//!
//! A node whose result's shape follows from a value that is not known, and all that reads what it gives, cannot be in a
//! graph. They stay as the model has them: a [`Fragment`], a model of its own that takes what the graph computes. It is
//! run as it is imported, node by node, with every value known: what an operator means is said once.

use crate::{
    builder::{Builder, Eager, place},
    error::{ImportError, Problem, Refusal},
    label,
    lower::{lower_node, random},
    narrow::{Narrow, kept_type},
    order::{self, read_by},
    read_kept,
    scope::{Context, Scope, functions},
};
use planforge_graph::ir::{Computer, ElementType, Remainder, Tail, TailError, TailOutput, Tensor, ValueId};
use planforge_onnx::{
    Model,
    proto::{
        GraphProto, NodeProto, TensorProto, TensorShapeProto, TypeProto, ValueInfoProto,
        tensor_proto::DataType,
        tensor_shape_proto::{Dimension, dimension},
        type_proto,
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// How large values may be of which only data decides the sizes: no dimension larger than this, by name.
pub type Bounds = BTreeMap<String, u64>;

/// The nodes of a model that are behind its graph, while it is imported.
#[derive(Debug, Default)]
pub(crate) struct Behind {
    /// In topological order.
    nodes: Vec<usize>,
    names: BTreeSet<String>,
    /// Why the first ones are there.
    why: Vec<Problem>,
}

/// Whether a problem is that something is not known before the engine runs.
fn follows_from_data(problem: &Problem) -> bool {
    matches!(problem, Problem::Node { refusal: Refusal::NotConstant { .. }, .. })
}

impl Behind {
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Lowers a node of the main graph, unless it belongs behind it.
    pub fn lower(&mut self, builder: &mut Builder, nodes: &[NodeProto], index: usize, context: Context<'_>) {
        let node = &nodes[index];
        let mut reads = false;
        read_by(node, &mut |name| reads |= self.names.contains(name));
        if !reads {
            let before = builder.problems.len();
            lower_node(builder, node, context);
            let found = &builder.problems[before..];
            if found.is_empty() || !found.iter().all(follows_from_data) {
                return;
            }
            self.why.extend(builder.problems.drain(before..));
        } else if random::is_random(node)
            && let Some(refusal) = random::refusal(node, context.model.graph())
        {
            // It would be refused at every run.
            let (op_type, opset) = (node.op_type.clone(), context.opset);
            builder.problems.push(Problem::Node { node: label(node), op_type, opset, refusal });
        }
        self.nodes.push(index);
        self.names.extend(node.output.iter().filter(|name| !name.is_empty()).cloned());
    }

    /// Cuts the model: what the outputs need of the nodes behind becomes a fragment, what that reads an output of the
    /// graph. `None` where no output needs any.
    pub fn cut(
        mut self,
        model: &Model,
        builder: &mut Builder,
        bounds: &Bounds,
    ) -> Result<Option<Fragment>, Vec<Problem>> {
        let graph = model.graph();
        let named = builder.scopes.first().map(|scope| scope.named.clone()).unwrap_or_default();
        let producers: BTreeMap<&str, usize> = graph
            .node
            .iter()
            .enumerate()
            .flat_map(|(index, node)| node.output.iter().map(move |name| (name.as_str(), index)))
            .collect();
        let wanted: Vec<&ValueInfoProto> =
            graph.output.iter().filter(|output| !named.contains_key(&output.name)).collect();
        if wanted.is_empty() {
            return Ok(None);
        }
        // What is no tensor of the graph's types cannot be handed on: its nodes are computed behind, too.
        let cannot_be_handed = |id: &ValueId| builder.sequences.contains_key(id) || builder.narrow.contains_key(id);
        let mut needed: BTreeSet<String> = wanted.iter().map(|output| output.name.clone()).collect();
        let mut kept: BTreeSet<usize> = BTreeSet::new();
        let mut open: Vec<String> = needed.iter().cloned().collect();
        while let Some(name) = open.pop() {
            let is_behind = self.names.contains(&name) || named.get(&name).is_some_and(cannot_be_handed);
            let Some(&index) = producers.get(name.as_str()).filter(|_| is_behind) else { continue };
            if kept.insert(index) {
                read_by(&graph.node[index], &mut |read| {
                    if !read.is_empty() && needed.insert(read.to_owned()) {
                        open.push(read.to_owned());
                    }
                });
            }
        }
        let order = order::sort(&graph.node).unwrap_or_default();
        self.nodes = order.into_iter().filter(|index| kept.contains(index)).collect();
        let made: BTreeSet<&str> =
            self.nodes.iter().flat_map(|&index| &graph.node[index].output).map(String::as_str).collect();
        let initializers: BTreeMap<&str, &TensorProto> =
            graph.initializer.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        let mut part = GraphProto { name: graph.name.clone(), ..GraphProto::default() };
        let mut handed = Vec::new();
        for name in needed.iter().filter(|name| !made.contains(name.as_str())) {
            if let Some(&tensor) = initializers.get(name.as_str()) {
                part.initializer.push(tensor.clone());
                continue;
            }
            let Some(&id) = named.get(name) else {
                return Err(self.why);
            };
            match builder.graph.constant(id) {
                Some(tensor) => part.initializer.push(proto_of(name, tensor)),
                None => {
                    let ty = builder.ty(id);
                    part.input.push(value_info(name, ty.element, &ty.shape));
                    handed.push((name.clone(), id));
                }
            }
        }
        part.node = self.nodes.iter().map(|&index| graph.node[index].clone()).collect();
        part.output = wanted.iter().map(|&output| output.clone()).collect();
        let outputs = wanted.iter().map(|output| declared(output)).collect();
        for (name, id) in &handed {
            if !builder.graph.outputs.iter().any(|output| output.name == *name) {
                builder.add_output(name, *id);
            }
        }
        let fragment = Fragment::new(model.with_graph(part), bounds.clone()).map_err(|error| error.problems)?;
        let fragment = Fragment { why: self.why, ..fragment };
        let order = graph.output.iter().map(|output| output.name.clone()).collect();
        let handed = handed.into_iter().map(|(name, _)| name).collect();
        let remainder: Arc<dyn Remainder> = Arc::new(fragment.clone());
        builder.graph.tail = Some(Tail { handed, outputs, order, remainder });
        Ok(Some(fragment))
    }
}

/// What a model declares of an output.
fn declared(output: &ValueInfoProto) -> TailOutput {
    let tensor = match output.r#type.as_ref().and_then(|ty| ty.value.as_ref()) {
        Some(type_proto::Value::TensorType(tensor)) => tensor.shape.as_ref().map(|shape| (tensor.elem_type, shape)),
        _ => None,
    };
    let declared = tensor.and_then(|(number, shape)| {
        let (element, _) = kept_type(number).ok()?;
        let size = |dim: &Dimension| match crate::declared_dim(dim) {
            planforge_graph::shape::DeclaredDim::Size(size) => u64::try_from(size).ok(),
            _ => None,
        };
        Some((element, shape.dim.iter().map(size).collect()))
    });
    TailOutput { name: output.name.clone(), declared }
}

/// ONNX's number of an element type.
fn number_of(element: ElementType) -> i32 {
    let of = match element {
        ElementType::F32 => DataType::Float,
        ElementType::F16 => DataType::Float16,
        ElementType::Bf16 => DataType::Bfloat16,
        ElementType::F64 => DataType::Double,
        ElementType::I8 => DataType::Int8,
        ElementType::U8 => DataType::Uint8,
        ElementType::I16 => DataType::Int16,
        ElementType::U16 => DataType::Uint16,
        ElementType::I32 => DataType::Int32,
        ElementType::U32 => DataType::Uint32,
        ElementType::I64 => DataType::Int64,
        ElementType::U64 => DataType::Uint64,
        ElementType::Bool => DataType::Bool,
    };
    of as i32
}

fn proto_of(name: &str, tensor: &Tensor) -> TensorProto {
    TensorProto {
        name: name.to_owned(),
        dims: tensor.shape().iter().map(|&size| size as i64).collect(),
        data_type: number_of(tensor.element()),
        raw_data: tensor.bytes().clone(),
        ..TensorProto::default()
    }
}

fn value_info(name: &str, element: ElementType, shape: &[usize]) -> ValueInfoProto {
    let dim =
        |&size: &usize| Dimension { value: Some(dimension::Value::DimValue(size as i64)), ..Dimension::default() };
    let tensor = type_proto::Tensor {
        elem_type: number_of(element),
        shape: Some(TensorShapeProto { dim: shape.iter().map(dim).collect() }),
    };
    let r#type = TypeProto { value: Some(type_proto::Value::TensorType(tensor)), ..TypeProto::default() };
    ValueInfoProto { name: name.to_owned(), r#type: Some(r#type), ..ValueInfoProto::default() }
}

/// The nodes behind a graph, a model of their own: its inputs are what the graph hands on.
#[derive(Clone, Debug)]
pub struct Fragment {
    model: Arc<Model>,
    opset: i64,
    constants: Vec<(String, Tensor, Option<Narrow>)>,
    /// In topological order: nodes, each with the names that are still read when it is done.
    nodes: Vec<(usize, BTreeSet<String>)>,
    bounds: Bounds,
    why: Vec<Problem>,
}

impl Fragment {
    /// The nodes of `model`.
    pub fn new(model: Model, bounds: Bounds) -> Result<Self, ImportError> {
        let failed = |problems| ImportError { problems, sized: false, proposal: None };
        let graph = model.graph();
        let order = order::sort(&graph.node).map_err(|cycle| {
            let nodes = cycle.into_iter().map(|index| label(&graph.node[index])).collect();
            failed(vec![Problem::Cycle { nodes }])
        })?;
        let mut constants = Vec::with_capacity(graph.initializer.len());
        for proto in &graph.initializer {
            let (tensor, narrow) = read_kept(&model, proto)
                .map_err(|reason| failed(vec![Problem::Tensor { name: proto.name.clone(), reason }]))?;
            constants.push((proto.name.clone(), tensor, narrow));
        }
        let mut alive: BTreeSet<String> = graph.output.iter().map(|output| output.name.clone()).collect();
        let mut nodes = Vec::with_capacity(order.len());
        for index in order.into_iter().rev() {
            nodes.push((index, alive.clone()));
            for name in &graph.node[index].output {
                alive.remove(name);
            }
            read_by(&graph.node[index], &mut |name| {
                alive.insert(name.to_owned());
            });
        }
        nodes.reverse();
        // Where nothing is of the standard operators, their version says nothing.
        let opset = model.opset().unwrap_or(crate::NEWEST_OPSET);
        Ok(Self { model: Arc::new(model), opset, constants, nodes, bounds, why: Vec::new() })
    }

    /// The same with nothing bounded.
    pub fn unbounded(&self) -> Self {
        Self { bounds: Bounds::new(), ..self.clone() }
    }

    /// The model that it is.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// How many of the model's nodes it is.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether nothing is behind.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// What keeps the nodes out of a graph, in words.
    pub fn reasons(&self) -> impl Iterator<Item = String> + '_ {
        self.why.iter().map(ToString::to_string)
    }

    /// The constants it reads: they stay where they are for as long as it is there.
    pub fn constants(&self) -> impl Iterator<Item = &Tensor> {
        self.constants.iter().map(|(_, tensor, _)| tensor)
    }

    /// Runs every node on what the graph handed on.
    fn compute(
        &self,
        given: &BTreeMap<String, Tensor>,
        computer: &Arc<dyn Computer>,
    ) -> Result<BTreeMap<String, Tensor>, Vec<Problem>> {
        let graph = self.model.graph();
        let mut builder = Builder::computing(Eager::new(Arc::clone(computer), self.bounds.clone()));
        let mut scope = Scope::default();
        scope.declared.extend(graph.node.iter().flat_map(|node| node.output.iter().cloned()));
        for (name, tensor, narrow) in &self.constants {
            let id = builder.add_constant(String::new(), tensor.clone());
            builder.narrow.extend(narrow.map(|narrow| (id, narrow)));
            scope.named.insert(name.clone(), id);
        }
        let constants = builder.graph.values.len() as u32;
        for input in &graph.input {
            let missing =
                || vec![Problem::NotDefined { place: "what follows the graph".into(), name: input.name.clone() }];
            let tensor = given.get(&input.name).ok_or_else(missing)?;
            let id = builder.add_constant(String::new(), tensor.clone());
            scope.named.insert(input.name.clone(), id);
        }
        builder.scopes.push(scope);
        let functions = functions(&self.model);
        let (model, opset) = (self.model.as_ref(), self.opset);
        let context = Context { model, functions: &functions, opset, bound: None, calls: &[], depth: 0, prefix: "" };
        for (index, alive) in &self.nodes {
            let node = &graph.node[*index];
            lower_node(&mut builder, node, context);
            if builder.is_sweep_due() {
                let named = builder.scopes.first().map(|scope| &scope.named);
                let read = named.into_iter().flatten().filter(|(name, _)| alive.contains(*name)).map(|(_, &id)| id);
                let kept: Vec<ValueId> = read.chain((0..constants).map(ValueId)).collect();
                builder.keep_only(&place(node), &kept);
            }
            if !builder.problems.is_empty() {
                return Err(builder.problems);
            }
        }
        let scope = builder.scopes.first();
        let known = |name: &str| scope.and_then(|scope| builder.graph.constant(*scope.named.get(name)?)).cloned();
        graph
            .output
            .iter()
            .map(|output| match known(&output.name) {
                Some(tensor) => Ok((output.name.clone(), tensor)),
                None => {
                    Err(vec![Problem::NotDefined { place: "the list of outputs".into(), name: output.name.clone() }])
                }
            })
            .collect()
    }
}

impl Remainder for Fragment {
    fn run(
        &self,
        given: &BTreeMap<String, Tensor>,
        computer: &Arc<dyn Computer>,
    ) -> Result<BTreeMap<String, Tensor>, TailError> {
        self.compute(given, computer).map_err(|problems| {
            let words: Vec<String> = problems.iter().map(ToString::to_string).collect();
            let error = ImportError { problems, sized: false, proposal: None };
            TailError { message: words.join("; "), unsupported: error.is_unsupported() }
        })
    }
}
