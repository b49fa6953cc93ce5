//! ONNX models to graphs, strictly: what is not understood is refused by name, everything at once.
//!
//! Import binds open dimensions to the usual sizes of a profile, infers every type and shape, and computes small
//! constants on the way (shape arithmetic), so that operators whose result follows from data become plain ones.
//! Nothing is optimised here: the result is the reference that passes are compared with.
//!
//! | module | holds |
//! |---|---|
//! | `declared` | what a model says of its inputs, as it is meant |
//! | `builder`, `scope`, `order` | the graph under construction, names, the order of nodes |
//! | `lower` | one rule per operator |
//! | `narrow` | types of eight bits and fewer that the graph has not, and what they are kept as |
//! | `solve` | sizes of open dimensions that follow from the graph |
//! | `proposal` | shapes to build a model with open dimensions at |
//! | `tail` | what follows where only data decides sizes: which nodes those are, and how they are run |
//! | `error` | everything that is wrong, and what to do about it |
//!
//! Not consulted: `value_info`, which only repeats what inference finds. A declared shape of an output that contradicts
//! what it is comes as a [`Note`], and is a problem only where that is asked for.

mod attributes;
mod builder;
mod declared;
mod error;
mod lower;
mod narrow;
mod order;
mod proposal;
mod scope;
mod solve;
mod tail;

#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;

pub use builder::TAIL_BYTES_MAX;
pub use declared::declared_dim;
pub use error::{ImportError, Note, Problem, Refusal};
pub use lower::{Known, NEWEST_OPSET, OLDEST_OPSET, known as known_operators, supported as supported_operators};

use builder::{Builder, MAX_TOTAL_ELEMENTS};
use lower::lower_node;
use narrow::{Kept, Narrow, kept_type};
pub use tail::{Bounds, Fragment};

use planforge_graph::{
    ir::{ElementType, Graph, Tensor, ValueId},
    shape::{DeclaredDim, TensorType, bind_input, check_size},
};
use planforge_onnx::{
    Model,
    proto::{FunctionProto, GraphProto, NodeProto, TensorProto, ValueInfoProto, tensor_proto::DataType, type_proto},
    tensor::inline_bytes,
};
use planforge_types::OptimizationProfile;
use scope::{Context, Functions, Scope, function_key, functions};
use std::{
    cell::LazyCell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use tail::Behind;

/// Most nodes a graph may have; unrolled models stay far below.
pub const MAX_NODES: usize = 1 << 18;

/// A model's graph, and what its importer did that the model does not say.
#[derive(Debug)]
pub struct Imported {
    pub graph: Graph,
    pub notes: Vec<Note>,
    /// The nodes behind the graph, which are its tail as well: see [`import_open`].
    pub fragment: Option<Arc<Fragment>>,
}

/// Imports the model's graph with the shapes of `profile` (its `opt` sizes). An error names every problem found.
pub fn import(model: &Model, profile: Option<&OptimizationProfile>) -> Result<Graph, ImportError> {
    import_noted(model, profile, false).map(|imported| imported.graph)
}

/// As [`import`], with what deserves to be told. Where it is `strict`, contradictions that change nothing are problems.
pub fn import_noted(
    model: &Model,
    profile: Option<&OptimizationProfile>,
    strict: bool,
) -> Result<Imported, ImportError> {
    import_by(model, profile, strict, None)
}

/// As [`import_noted`], and takes models of which only data decides some sizes: the nodes that follow from them are the
/// graph's tail. `bounds` says how large their values may be.
pub fn import_open(
    model: &Model,
    profile: Option<&OptimizationProfile>,
    strict: bool,
    bounds: &Bounds,
) -> Result<Imported, ImportError> {
    import_by(model, profile, strict, Some(bounds))
}

fn import_by(
    model: &Model,
    profile: Option<&OptimizationProfile>,
    strict: bool,
    open: Option<&Bounds>,
) -> Result<Imported, ImportError> {
    let mut error = match attempt(model, profile, strict, open) {
        Ok(imported) => return Ok(imported),
        Err(problems) => ImportError { problems, sized: profile.is_some(), proposal: None },
    };
    if error.is_about_sizes() && has_open_dimensions(model) {
        let mut fits = |profile: &OptimizationProfile| match attempt(model, Some(profile), false, open) {
            Ok(_) => true,
            Err(problems) => !ImportError { problems, sized: true, proposal: None }.is_about_sizes(),
        };
        error.proposal = proposal::propose(model, &solve::solve(model), profile, &mut fits);
    }
    Err(error)
}

fn has_open_dimensions(model: &Model) -> bool {
    let is_open = |dim: &DeclaredDim| !matches!(dim, DeclaredDim::Size(_));
    declared::inputs(model.graph()).into_iter().filter_map(declared::open_dims).flatten().any(|dim| is_open(&dim))
}

fn attempt(
    model: &Model,
    profile: Option<&OptimizationProfile>,
    strict: bool,
    open: Option<&Bounds>,
) -> Result<Imported, Vec<Problem>> {
    let (builder, notes) = (Builder::default(), Vec::new());
    let functions = functions(model);
    let (defined_by, behind) = (BTreeMap::new(), open.map(|_| Behind::default()));
    let mut importer = Importer { model, builder, notes, strict, defined_by, functions, behind };
    importer.run(profile);
    if !importer.builder.problems.is_empty() {
        return Err(importer.builder.problems);
    }
    let Importer { mut builder, notes, behind, .. } = importer;
    let fragment = match (behind.filter(|behind| !behind.is_empty()), open) {
        (Some(behind), Some(bounds)) => behind.cut(model, &mut builder, bounds)?.map(Arc::new),
        _ => None,
    };
    Ok(Imported { graph: builder.graph, notes, fragment })
}

/// The element type behind ONNX's number for it, or the name of a type that is not supported.
pub fn element_type(data_type: i32) -> Result<ElementType, String> {
    Ok(match DataType::try_from(data_type) {
        Ok(DataType::Float) => ElementType::F32,
        Ok(DataType::Float16) => ElementType::F16,
        Ok(DataType::Bfloat16) => ElementType::Bf16,
        Ok(DataType::Double) => ElementType::F64,
        Ok(DataType::Int8) => ElementType::I8,
        Ok(DataType::Uint8) => ElementType::U8,
        Ok(DataType::Int16) => ElementType::I16,
        Ok(DataType::Uint16) => ElementType::U16,
        Ok(DataType::Int32) => ElementType::I32,
        Ok(DataType::Uint32) => ElementType::U32,
        Ok(DataType::Int64) => ElementType::I64,
        Ok(DataType::Uint64) => ElementType::U64,
        Ok(DataType::Bool) => ElementType::Bool,
        Ok(other) => return Err(other.as_str_name().to_owned()),
        Err(_) => return Err(format!("number {data_type}")),
    })
}

/// How messages and origins name a node.
fn label(node: &NodeProto) -> String {
    if !node.name.is_empty() {
        return node.name.clone();
    }
    match node.output.iter().find(|name| !name.is_empty()) {
        Some(output) => format!("{}:{output}", node.op_type),
        None => node.op_type.clone(),
    }
}

fn standard(domain: &str) -> bool {
    domain.is_empty() || domain == "ai.onnx"
}

/// The version of a domain's operators that the model asks for.
fn imported_opset(model: &Model, domain: &str) -> Option<i64> {
    let same = |name: &str| name == domain || (domain.is_empty() && standard(name));
    model.proto.opset_import.iter().find(|import| same(&import.domain)).map(|import| import.version)
}

/// Nodes by the domain and name of the operator that is not known.
type Unknown<'a> = BTreeMap<(&'a str, &'a str), Vec<String>>;

struct Importer<'a> {
    model: &'a Model,
    builder: Builder,
    notes: Vec<Note>,
    /// What contradicts itself without changing anything is a problem.
    strict: bool,
    /// What defines each name: an input, an initializer or a node.
    defined_by: BTreeMap<&'a str, String>,
    functions: Functions<'a>,
    /// The nodes whose sizes only data decides; absent where there must be none.
    behind: Option<Behind>,
}

impl<'a> Importer<'a> {
    fn run(&mut self, profile: Option<&OptimizationProfile>) {
        let graph = self.model.graph();
        self.builder.graph.name = graph.name.clone();
        if graph.node.len() > MAX_NODES {
            let (count, most) = (graph.node.len() as u128, MAX_NODES as u128);
            self.builder.problems.push(Problem::TooLarge { what: "nodes", count, most });
            return;
        }
        // Where nothing is of the standard operators, their version says nothing.
        let opset = self.model.opset().or_else(|| (!self.needs_opset(graph)).then_some(NEWEST_OPSET));
        self.check_features(graph);
        self.check_operators(graph, opset);
        self.define_names(graph);
        let order = match order::sort(&graph.node) {
            Ok(order) => order,
            Err(cycle) => {
                let nodes = cycle.into_iter().map(|index| label(&graph.node[index])).collect();
                self.builder.problems.push(Problem::Cycle { nodes });
                return;
            }
        };
        self.check_uses(graph);
        // What follows may assume that names are defined, once, and before their use.
        let structural =
            |problem: &Problem| matches!(problem, Problem::DefinedTwice { .. } | Problem::NotDefined { .. });
        let Some(opset) = opset.filter(|_| !self.builder.problems.iter().any(structural)) else { return };
        let declared = self.defined_by.keys().map(|&name| name.to_owned()).collect();
        self.builder.scopes.push(Scope { declared, ..Scope::default() });
        self.bind_inputs(graph, profile);
        self.read_initializers(graph);
        let model = self.model;
        for index in order {
            let functions = &self.functions;
            let context = Context { model, functions, opset, bound: None, calls: &[], depth: 0, prefix: "" };
            match &mut self.behind {
                Some(behind) => behind.lower(&mut self.builder, &graph.node, index, context),
                None => lower_node(&mut self.builder, &graph.node[index], context),
            }
            if self.builder.total_elements > MAX_TOTAL_ELEMENTS {
                let count = self.builder.total_elements;
                self.builder.problems.push(Problem::TooLarge { what: "elements", count, most: MAX_TOTAL_ELEMENTS });
                return;
            }
        }
        self.give_outputs(graph);
    }

    /// Refuses parts of the format that would change the meaning if they were skipped.
    fn check_features(&mut self, graph: &GraphProto) {
        let proto = &self.model.proto;
        let twice = proto.functions.len() - self.functions.len();
        let found = [
            (twice > 0, "several functions of the same name, domain and overload".to_owned()),
            (!proto.training_info.is_empty(), "training information".to_owned()),
            (!graph.sparse_initializer.is_empty(), "sparse initializers".to_owned()),
            (!graph.quantization_annotation.is_empty(), "quantization annotations".to_owned()),
            (graph.output.is_empty(), "a graph without outputs".to_owned()),
        ];
        let features = found.into_iter().filter(|(is_there, _)| *is_there);
        self.builder.problems.extend(features.map(|(_, what)| Problem::Feature { what }));
    }

    /// Whether any node of the graph, or of a function that imports no version of its own, is a standard operator.
    fn needs_opset(&self, graph: &GraphProto) -> bool {
        let borrows = |of: &&&FunctionProto| !of.opset_import.iter().any(|import| standard(&import.domain));
        let mut borrowing = self.functions.values().filter(borrows);
        self.uses_standard(&graph.node) || borrowing.any(|function| self.uses_standard(&function.node))
    }

    fn uses_standard(&self, nodes: &[NodeProto]) -> bool {
        nodes.iter().any(|node| {
            let attributes = node.attribute.iter();
            let mut inner =
                attributes.flat_map(|attribute| attribute.g.as_deref().into_iter().chain(&attribute.graphs));
            let is_own = standard(&node.domain) && !self.functions.contains_key(&function_key(node));
            is_own || inner.any(|graph| self.uses_standard(&graph.node))
        })
    }

    /// Lists operators, opsets and attributes that are not known, over the whole model but for branches: one that is not
    /// taken may hold anything.
    fn check_operators(&mut self, graph: &'a GraphProto, opset: Option<i64>) {
        match opset {
            None => self.builder.problems.push(Problem::NoOpset),
            Some(version) => self.check_opset(version),
        }
        let mut unknown = Unknown::new();
        self.check_nodes(&graph.node, opset, &mut unknown);
        let functions: Vec<&FunctionProto> = self.functions.values().copied().collect();
        for function in functions {
            let imported = function.opset_import.iter().find(|import| standard(&import.domain));
            if let Some(import) = imported {
                self.check_opset(import.version);
            }
            self.check_nodes(&function.node, imported.map(|import| import.version).or(opset), &mut unknown);
        }
        for ((domain, op_type), nodes) in unknown {
            let opset = imported_opset(self.model, domain);
            let (domain, op_type) = (domain.to_owned(), op_type.to_owned());
            self.builder.problems.push(Problem::Operator { domain, op_type, opset, nodes });
        }
    }

    fn check_opset(&mut self, version: i64) {
        if !(OLDEST_OPSET..=NEWEST_OPSET).contains(&version) {
            let problem = Problem::Opset { version, oldest: OLDEST_OPSET, newest: NEWEST_OPSET };
            if !self.builder.problems.contains(&problem) {
                self.builder.problems.push(problem);
            }
        }
    }

    /// Nodes of one graph and of the subgraphs in it.
    fn check_nodes(&mut self, nodes: &'a [NodeProto], opset: Option<i64>, unknown: &mut Unknown<'a>) {
        for node in nodes {
            let subgraphs = node.attribute.iter().filter_map(|attribute| attribute.g.as_deref());
            let more = node.attribute.iter().flat_map(|attribute| &attribute.graphs);
            let is_branch = standard(&node.domain) && node.op_type == "If";
            for subgraph in subgraphs.chain(more).filter(|_| !is_branch) {
                self.check_nodes(&subgraph.node, opset, unknown);
            }
            if self.functions.contains_key(&function_key(node)) {
                continue;
            }
            let domain = if standard(&node.domain) { "" } else { node.domain.as_str() };
            let Some(rule) = lower::rule_of(node, opset) else {
                unknown.entry((domain, &node.op_type)).or_default().push(label(node));
                continue;
            };
            for attribute in &node.attribute {
                if !rule.attributes.contains(&attribute.name.as_str()) {
                    self.builder.problems.push(Problem::Attribute {
                        node: label(node),
                        op_type: node.op_type.clone(),
                        attribute: attribute.name.clone(),
                        reason: "is unknown".into(),
                    });
                }
            }
        }
    }

    /// Notes what defines every name, and refuses a second definition.
    fn define_names(&mut self, graph: &'a GraphProto) {
        let initializers: BTreeSet<&str> = graph.initializer.iter().map(|tensor| tensor.name.as_str()).collect();
        let inputs = graph.input.iter().map(|input| (input.name.as_str(), format!("input {}", input.name)));
        // Before IR version 4, initializers were listed as inputs too; they are constants either way.
        let inputs = inputs.filter(|(name, _)| !initializers.contains(name));
        let constants =
            graph.initializer.iter().map(|tensor| (tensor.name.as_str(), format!("initializer {}", tensor.name)));
        let outputs = graph.node.iter().flat_map(|node| {
            let names = node.output.iter().filter(|name| !name.is_empty());
            names.map(|name| (name.as_str(), format!("node {}", label(node))))
        });
        for (name, definition) in inputs.chain(constants).chain(outputs) {
            self.builder.taken.insert(name.to_owned());
            if let Some(first) = self.defined_by.insert(name, definition.clone()) {
                self.builder.problems.push(Problem::DefinedTwice { name: name.to_owned(), first, second: definition });
            }
        }
    }

    fn name(&mut self, name: &str, id: ValueId) {
        if let Some(scope) = self.builder.scopes.first_mut() {
            scope.named.insert(name.to_owned(), id);
        }
    }

    fn check_uses(&mut self, graph: &GraphProto) {
        let mut missing = BTreeSet::new();
        for node in &graph.node {
            for name in node.input.iter().filter(|name| !name.is_empty()) {
                if !self.defined_by.contains_key(name.as_str()) {
                    missing.insert((name.clone(), format!("node {}", label(node))));
                }
            }
        }
        for output in &graph.output {
            if !self.defined_by.contains_key(output.name.as_str()) {
                missing.insert((output.name.clone(), "the list of outputs".into()));
            }
        }
        self.builder.problems.extend(missing.into_iter().map(|(name, place)| Problem::NotDefined { place, name }));
    }

    fn bind_inputs(&mut self, graph: &GraphProto, profile: Option<&OptimizationProfile>) {
        let inputs = declared::inputs(graph);
        for name in profile.iter().flat_map(|profile| profile.inputs.keys()) {
            if !inputs.iter().any(|input| input.name == *name) {
                let inputs = inputs.iter().map(|input| input.name.as_str()).collect::<Vec<_>>().join(", ");
                self.builder.problems.push(Problem::ProfileInput { name: name.clone(), inputs });
            }
        }
        let mut symbols = BTreeMap::new();
        let mut bound: Vec<Option<(Kept, Vec<usize>)>> = vec![None; inputs.len()];
        let model = self.model;
        let solution = LazyCell::new(move || solve::solve(model));
        // A symbol may be bound by an input that comes later: those with a profile go first.
        let given = |input: &ValueInfoProto| profile.is_some_and(|profile| profile.inputs.contains_key(&input.name));
        for first in [true, false] {
            for (place, input) in inputs.iter().enumerate().filter(|(_, input)| given(input) == first) {
                let Some((element, mut declared)) = self.declared(input, &format!("input {}", input.name)) else {
                    continue;
                };
                let is_open =
                    |dims: &&mut Vec<DeclaredDim>| dims.iter().any(|dim| !matches!(dim, DeclaredDim::Size(_)));
                if let Some(declared) = declared.as_mut().filter(|_| !first).filter(is_open) {
                    self.solve_open(&input.name, declared, &symbols, &solution);
                }
                match bind_input(&input.name, declared.as_deref(), profile, &mut symbols) {
                    Ok(shape) => bound[place] = Some((element, shape)),
                    Err(error) => self.builder.problems.push(error.into()),
                }
            }
        }
        for (input, bound) in inputs.iter().zip(bound) {
            if let Some(((element, narrow), shape)) = bound {
                let id = self.builder.add_value(input.name.clone(), TensorType { element, shape });
                self.name(&input.name, id);
                self.builder.graph.inputs.push(id);
                self.builder.narrow.extend(narrow.map(|narrow| (id, narrow)));
                self.note_kept(format!("input {}", input.name), (element, narrow));
            }
        }
    }

    /// Gives open dimensions of an input the sizes that the graph alone takes, where nobody says others.
    fn solve_open(
        &mut self,
        input: &str,
        declared: &mut [DeclaredDim],
        symbols: &BTreeMap<String, u64>,
        solution: &solve::Solution,
    ) {
        let is_open = |dim: &DeclaredDim| match dim {
            DeclaredDim::Size(_) => false,
            DeclaredDim::Symbol(name) => !symbols.contains_key(name),
            DeclaredDim::Unknown => true,
        };
        for (axis, dim) in declared.iter_mut().enumerate().filter(|(_, dim)| is_open(dim)) {
            if let Some(size) = solution.certain(input, axis) {
                *dim = DeclaredDim::Size(size);
                self.notes.push(Note::Solved { input: input.to_owned(), axis, size });
            }
        }
    }

    /// Says of an input or output that engines keep it as another type than the model does.
    fn note_kept(&mut self, place: String, (element, narrow): Kept) {
        let Some(narrow) = narrow else { return };
        match self.strict {
            true => self.builder.problems.push(Problem::Element { place, element: narrow.name().into() }),
            false => self.notes.push(Note::KeptAs { place, declared: narrow.name().into(), element }),
        }
    }

    /// Element type and dimensions of a declared input or output; notes a problem when it is no dense tensor.
    fn declared(&mut self, info: &ValueInfoProto, place: &str) -> Option<(Kept, Option<Vec<DeclaredDim>>)> {
        let value = info.r#type.as_ref().and_then(|r#type| r#type.value.as_ref());
        let Some(type_proto::Value::TensorType(tensor)) = value else {
            let element = if value.is_none() { "none" } else { "a sequence, map, optional or sparse tensor" };
            self.builder.problems.push(Problem::Element { place: place.into(), element: element.into() });
            return None;
        };
        let kept = match kept_type(tensor.elem_type) {
            Ok(kept) => kept,
            Err(element) => {
                self.builder.problems.push(Problem::Element { place: place.into(), element });
                return None;
            }
        };
        let dims = tensor.shape.as_ref().map(|shape| shape.dim.iter().map(declared_dim).collect());
        Some((kept, dims))
    }

    fn read_initializers(&mut self, graph: &GraphProto) {
        for proto in &graph.initializer {
            if proto.data_type == DataType::String as i32 {
                let place = format!("tensor {}", proto.name);
                self.builder.problems.push(Problem::Element { place, element: DataType::String.as_str_name().into() });
                continue;
            }
            match read_kept(self.model, proto) {
                Ok((tensor, narrow)) => {
                    let id = self.builder.add_constant(proto.name.clone(), tensor);
                    self.builder.narrow.extend(narrow.map(|narrow| (id, narrow)));
                    self.name(&proto.name, id);
                }
                Err(reason) => self.builder.problems.push(Problem::Tensor { name: proto.name.clone(), reason }),
            }
        }
    }

    fn give_outputs(&mut self, graph: &GraphProto) {
        let mut seen = BTreeSet::new();
        for output in &graph.output {
            if !seen.insert(output.name.as_str()) {
                let name = output.name.clone();
                let (first, second) = ("the list of outputs".into(), "the list of outputs".into());
                self.builder.problems.push(Problem::DefinedTwice { name, first, second });
            }
            // Not there: something it needs was refused, which is already listed.
            let named = |scope: &Scope| scope.named.get(&output.name).copied();
            let Some(id) = self.builder.scopes.first().and_then(named) else { continue };
            if self.builder.sequences.contains_key(&id) {
                let place = format!("output {}", output.name);
                self.builder.problems.push(Problem::Element { place, element: "a sequence".into() });
                continue;
            }
            self.builder.add_output(&output.name, id);
            let kept = (self.builder.ty(id).element, self.builder.narrow.get(&id).copied());
            self.note_kept(format!("output {}", output.name), kept);
            if self.builder.unzipped.contains(&id) {
                let name = output.name.clone();
                match self.strict {
                    true => self.builder.problems.push(Problem::Maps { name }),
                    false => self.notes.push(Note::MapsLeftOut { name }),
                }
                continue;
            }
            if output.r#type.as_ref().is_some_and(|r#type| r#type.value.is_some()) {
                self.check_output(output, id);
            }
        }
    }

    /// A declared output must have the inferred type; another shape is told.
    fn check_output(&mut self, output: &ValueInfoProto, id: ValueId) {
        let Some(((element, narrow), dims)) = self.declared(output, &format!("output {}", output.name)) else { return };
        let inferred = self.builder.ty(id).clone();
        let same = (element, narrow) == (inferred.element, self.builder.narrow.get(&id).copied());
        let fits = dims.as_ref().is_none_or(|dims| {
            dims.len() == inferred.rank()
                && dims.iter().zip(&inferred.shape).all(|(dim, &size)| match dim {
                    DeclaredDim::Size(declared) => i128::from(*declared) == size as i128,
                    DeclaredDim::Symbol(_) | DeclaredDim::Unknown => true,
                })
        });
        if !same || !fits {
            let dims: Vec<String> = dims
                .unwrap_or_default()
                .into_iter()
                .map(|dim| match dim {
                    DeclaredDim::Size(size) => size.to_string(),
                    DeclaredDim::Symbol(name) => name,
                    DeclaredDim::Unknown => "?".into(),
                })
                .collect();
            let (name, inferred_type) = (output.name.clone(), inferred.to_string());
            let element = narrow.map_or_else(|| element.to_string(), |narrow| narrow.name().to_owned());
            let declared = format!("{element} [{}]", dims.join(", "));
            if self.strict || !same {
                self.builder.problems.push(Problem::OutputDiffers { name, declared, inferred: inferred_type });
            } else {
                self.notes.push(Note::OutputDiffers { name, declared, inferred: inferred_type });
            }
        }
    }
}

/// A tensor of the model, its bytes where the file is mapped; one of a type that the graph has not is refused.
fn read_tensor(model: &Model, proto: &TensorProto) -> Result<Tensor, String> {
    match read_kept(model, proto)? {
        (tensor, None) => Ok(tensor),
        (_, Some(narrow)) => Err(format!("element type {} is not supported here", narrow.name())),
    }
}

/// As [`read_tensor`], and one of a narrow type as it is kept.
fn read_kept(model: &Model, proto: &TensorProto) -> Result<(Tensor, Option<Narrow>), String> {
    kept_tensor(proto, Some(model))
}

/// A tensor of a model or, without one, of its own.
fn kept_tensor(proto: &TensorProto, model: Option<&Model>) -> Result<(Tensor, Option<Narrow>), String> {
    let (element, narrow) =
        kept_type(proto.data_type).map_err(|name| format!("element type {name} is not supported"))?;
    let sizes: Vec<i128> = proto.dims.iter().map(|&size| size.into()).collect();
    let shape = check_size("it", &sizes).map_err(|error| error.to_string())?;
    let bytes = match model {
        Some(model) => model.tensor_bytes(proto).map_err(|error| error.to_string())?,
        None => inline_bytes(proto).map_err(|error| error.to_string())?,
    };
    if let Some(narrow) = narrow {
        return Ok((narrow::unpacked(narrow, shape, &bytes)?, Some(narrow)));
    }
    let tensor = match element {
        // Anything but zero is true; the graph stores 1.
        ElementType::Bool if bytes.iter().any(|&byte| byte > 1) => {
            Tensor::from_bools(shape, bytes.iter().map(|&byte| u8::from(byte != 0)).collect())
        }
        _ => Tensor::new(element, shape, bytes),
    };
    Ok((tensor.map_err(|error| error.to_string())?, None))
}

/// A tensor that is no part of a model, such as an input in a file, as an engine takes it.
///
/// # Errors
///
/// When its type is not supported, or its elements do not fill its shape.
pub fn engine_tensor(proto: &TensorProto) -> Result<Tensor, String> {
    kept_tensor(proto, None).map(|(tensor, _)| tensor)
}
