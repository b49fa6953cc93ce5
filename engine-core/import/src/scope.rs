//! Where a node stands: the names it can read, the functions there are, and those around it.

use super::standard;
use planforge_graph::ir::ValueId;
use planforge_onnx::{
    Model,
    proto::{AttributeProto, FunctionProto, NodeProto},
};
use std::collections::{BTreeMap, BTreeSet};

/// Most functions and subgraphs inside each other.
pub const MAX_NESTING: usize = 100;

/// What identifies a function: domain, name and overload.
pub type FunctionKey<'a> = (&'a str, &'a str, &'a str);

/// The model's functions.
pub type Functions<'a> = BTreeMap<FunctionKey<'a>, &'a FunctionProto>;

/// Attributes a function was called with; `None` where the caller leaves one out that has no default.
pub type Bound<'a> = BTreeMap<&'a str, Option<&'a AttributeProto>>;

/// Where a node stands.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    pub model: &'a Model,
    pub functions: &'a Functions<'a>,
    /// Version of the standard operators here; a function imports its own.
    pub opset: i64,
    /// Attributes of the function around it, when there is one.
    pub bound: Option<&'a Bound<'a>>,
    /// The functions around it, outermost first.
    pub calls: &'a [FunctionKey<'a>],
    /// How many functions and subgraphs are around it.
    pub depth: usize,
    /// Names of the nodes around it, for labels.
    pub prefix: &'a str,
}

/// The names of one graph or function body.
#[derive(Debug, Default)]
pub struct Scope {
    /// Values by name.
    pub named: BTreeMap<String, ValueId>,
    /// Every name that something in the graph defines; one without a value could not be lowered.
    pub declared: BTreeSet<String>,
}

pub fn function_key(node: &NodeProto) -> FunctionKey<'_> {
    let domain = if standard(&node.domain) { "" } else { node.domain.as_str() };
    (domain, &node.op_type, &node.overload)
}

/// The functions of a model by key.
pub fn functions(model: &Model) -> Functions<'_> {
    let functions = model.proto.functions.iter();
    functions
        .map(|function| {
            let domain = if standard(&function.domain) { "" } else { function.domain.as_str() };
            ((domain, function.name.as_str(), function.overload.as_str()), function)
        })
        .collect()
}
