//! Nodes in their scope: the main graph, the body of a function, the body of a branch or loop.
//!
//! Functions are inlined; `If`, `Loop` and `Scan` become plain nodes too: the branch that is taken, the iterations that
//! run. So nothing after the importer knows of scopes. Whatever is found wrong on the way is noted in
//! [`Builder::problems`], and what depends on it is left out silently.

use crate::scope::{Bound, Context, MAX_NESTING, Scope, function_key};
use crate::{
    MAX_NODES,
    attributes::Attributes,
    builder::{Builder, Lowering},
    error::{Problem, Refusal},
    label, lower,
    narrow::kept_type,
    order, read_kept, standard,
};
use planforge_graph::{
    ir::{ElementType, ValueId},
    shape::{MAX_RANK, TensorType},
};
use planforge_onnx::proto::{FunctionProto, GraphProto, NodeProto, type_proto};
use std::collections::BTreeSet;

/// What a name stands for.
enum Found {
    Value(ValueId),
    /// It is defined, but what defines it was refused.
    Refused,
    Nothing,
}

fn find(builder: &Builder, name: &str) -> Found {
    for scope in builder.scopes.iter().rev() {
        if let Some(&id) = scope.named.get(name) {
            return Found::Value(id);
        }
        if scope.declared.contains(name) {
            return Found::Refused;
        }
    }
    Found::Nothing
}

/// Lowers one node, unless something it needs could not be lowered.
pub fn lower_node(builder: &mut Builder, node: &NodeProto, context: Context<'_>) {
    if builder.unroll(1).is_err() {
        return;
    }
    let name = format!("{}{}", context.prefix, label(node));
    let mut inputs = Vec::with_capacity(node.input.len());
    for input in &node.input {
        if input.is_empty() {
            inputs.push(None);
            continue;
        }
        match find(builder, input) {
            Found::Value(id) => inputs.push(Some(id)),
            Found::Refused => return,
            Found::Nothing => {
                let place = format!("node {name}");
                builder.problems.push(Problem::NotDefined { place, name: input.clone() });
                return;
            }
        }
    }
    while inputs.last() == Some(&None) {
        inputs.pop();
    }
    let first_new = builder.graph.values.len();
    match lower_with(builder, node, &name, inputs, context) {
        Ok(results) => {
            name_results(builder, node, &results, first_new);
            builder.check_bounds(node);
        }
        // What is wrong with it is listed already.
        Err(Refusal::Inner) if !builder.problems.is_empty() => {}
        Err(refusal) => {
            let (node, op_type, opset) = (name, node.op_type.clone(), context.opset);
            builder.problems.push(Problem::Node { node, op_type, opset, refusal });
        }
    }
}

fn lower_with(
    builder: &mut Builder,
    node: &NodeProto,
    name: &str,
    inputs: Vec<Option<ValueId>>,
    context: Context<'_>,
) -> Result<Vec<ValueId>, Refusal> {
    if let Some(function) = context.functions.get(&function_key(node)) {
        return call(builder, function, node, name, inputs, context);
    }
    let Some(rule) = lower::rule_of(node, Some(context.opset)) else {
        // Listed already, but for those in a branch that is taken.
        builder.unknown_operator(context.model, node, name);
        return Err(Refusal::Inner);
    };
    let mut lowering = Lowering {
        builder,
        opset: context.opset,
        attributes: Attributes::of(node, context.bound)?,
        inputs,
        outputs: &node.output,
        label: name.to_owned(),
        model: context.model,
        context,
    };
    let results = (rule.lower)(&mut lowering)?;
    if let Some(position) = (results.len()..node.output.len()).find(|&position| lowering.wants(position)) {
        return Err(Refusal::Output { position });
    }
    match lowering.attributes.unread().first() {
        Some(name) => Err(Refusal::Attribute {
            name: (*name).to_owned(),
            reason: format!("does not belong to {} at opset {}", rule.op_type, context.opset),
        }),
        None => Ok(results),
    }
}

/// Gives values the model's names, in the main graph; a value that has a name already keeps it.
fn name_results(builder: &mut Builder, node: &NodeProto, results: &[ValueId], first_new: usize) {
    let outermost = builder.scopes.len() == 1 && builder.enclosing == 0;
    let mut renamed = BTreeSet::new();
    for (name, &id) in node.output.iter().zip(results) {
        if name.is_empty() {
            continue;
        }
        if outermost && id.index() >= first_new && renamed.insert(id) {
            builder.graph.values[id.index()].name.clone_from(name);
        }
        if let Some(scope) = builder.scopes.last_mut() {
            scope.named.insert(name.clone(), id);
        }
    }
}

/// Inlines one call of a function.
fn call(
    builder: &mut Builder,
    function: &FunctionProto,
    node: &NodeProto,
    name: &str,
    inputs: Vec<Option<ValueId>>,
    context: Context<'_>,
) -> Result<Vec<ValueId>, Refusal> {
    let key = function_key(node);
    let unsupported = |what: String| Refusal::Unsupported { what };
    if context.calls.contains(&key) {
        return Err(unsupported(format!("function {}, which calls itself,", function.name)));
    }
    if context.depth >= MAX_NESTING {
        return Err(unsupported(format!("nesting deeper than {MAX_NESTING}")));
    }
    if inputs.len() > function.input.len() {
        return Err(Refusal::Inputs { given: inputs.len(), most: function.input.len() });
    }
    let wants = |position: usize| node.output.get(position).is_some_and(|name| !name.is_empty());
    if let Some(position) = (function.output.len()..node.output.len()).find(|&position| wants(position)) {
        return Err(Refusal::Output { position });
    }
    let imported = function.opset_import.iter().find(|import| standard(&import.domain));
    let opset = imported.map_or(context.opset, |import| import.version);
    // What the caller gives may itself be an attribute of the function around the call.
    let given = Attributes::of(node, context.bound)?;
    let mut bound = Bound::new();
    for name in &function.attribute {
        bound.insert(name, given.any(name));
    }
    for default in &function.attribute_proto {
        bound.insert(&default.name, Some(given.any(&default.name).unwrap_or(default)));
    }
    if let Some(name) = given.unread().first() {
        let reason = format!("does not belong to function {}", function.name);
        return Err(Refusal::Attribute { name: (*name).to_owned(), reason });
    }
    let mut scope = Scope::default();
    for (position, input) in function.input.iter().enumerate() {
        // An input that is left out is left out wherever the body reads it.
        match inputs.get(position).copied().flatten() {
            Some(id) => drop(scope.named.insert(input.clone(), id)),
            None => drop(scope.declared.insert(input.clone())),
        }
    }
    let left_out: BTreeSet<&str> = scope.declared.iter().map(String::as_str).collect();
    let body: Vec<NodeProto> = match left_out.is_empty() {
        true => function.node.clone(),
        false => function.node.iter().map(|node| without_inputs(node, &left_out)).collect(),
    };
    scope.declared.clear();
    let calls = [context.calls, &[key]].concat();
    let prefix = format!("{name}/");
    let inner =
        Context { opset, bound: Some(&bound), calls: &calls, depth: context.depth + 1, prefix: &prefix, ..context };
    let outer = std::mem::replace(&mut builder.scopes, vec![scope]);
    builder.enclosing += 1;
    let done = lower_body(builder, &body, inner);
    let results = done.and_then(|()| outputs(builder, function.output.iter(), &format!("function {}", function.name)));
    builder.enclosing -= 1;
    builder.scopes = outer;
    results
}

/// The node with some of its inputs left out.
fn without_inputs(node: &NodeProto, left_out: &BTreeSet<&str>) -> NodeProto {
    let mut node = node.clone();
    for input in node.input.iter_mut().filter(|input| left_out.contains(input.as_str())) {
        input.clear();
    }
    node
}

/// Lowers the nodes of a body in the innermost scope.
fn lower_body(builder: &mut Builder, nodes: &[NodeProto], context: Context<'_>) -> Result<(), Refusal> {
    let Some(scope) = builder.scopes.last_mut() else { return Ok(()) };
    let mut twice = None;
    for name in nodes.iter().flat_map(|node| &node.output).filter(|name| !name.is_empty()) {
        if scope.named.contains_key(name) || !scope.declared.insert(name.clone()) {
            twice = Some(name.clone());
        }
    }
    if let Some(name) = twice {
        let place = context.prefix.trim_end_matches('/').to_owned();
        builder.problems.push(Problem::DefinedTwice { name, first: place.clone(), second: place });
        return Err(Refusal::Inner);
    }
    let order = order::sort(nodes).map_err(|cycle| {
        let nodes = cycle.into_iter().map(|index| format!("{}{}", context.prefix, label(&nodes[index]))).collect();
        builder.problems.push(Problem::Cycle { nodes });
        Refusal::Inner
    })?;
    for index in order {
        lower_node(builder, &nodes[index], context);
        if builder.lowered > MAX_NODES {
            return Err(Refusal::Inner);
        }
    }
    Ok(())
}

/// The values of a body's outputs.
fn outputs<'a>(
    builder: &mut Builder,
    names: impl Iterator<Item = &'a String>,
    place: &str,
) -> Result<Vec<ValueId>, Refusal> {
    let mut values = Vec::new();
    let mut complete = true;
    for name in names {
        match find(builder, name) {
            Found::Value(id) => values.push(id),
            Found::Refused => complete = false,
            Found::Nothing => {
                let place = format!("the list of outputs of {place}");
                builder.problems.push(Problem::NotDefined { place, name: name.clone() });
                complete = false;
            }
        }
    }
    if complete { Ok(values) } else { Err(Refusal::Inner) }
}

impl Lowering<'_> {
    /// Lowers a subgraph that runs once.
    pub fn subgraph(&mut self, graph: &GraphProto, inputs: &[ValueId]) -> Result<Vec<ValueId>, Refusal> {
        let initializers = self.initializers(graph);
        self.iteration(graph, &initializers, inputs)
    }

    /// The names of a subgraph's initializers, which are read once however often it runs.
    pub fn initializers(&mut self, graph: &GraphProto) -> Scope {
        let mut scope = Scope::default();
        for proto in &graph.initializer {
            match read_kept(self.model, proto) {
                Ok((tensor, narrow)) => {
                    let id = self.add_constant(tensor);
                    self.builder.narrow.extend(narrow.map(|narrow| (id, narrow)));
                    scope.named.insert(proto.name.clone(), id);
                }
                Err(reason) => {
                    self.builder.problems.push(Problem::Tensor { name: proto.name.clone(), reason });
                    scope.declared.insert(proto.name.clone());
                }
            }
        }
        scope
    }

    /// Lowers one run of a subgraph on `inputs` and gives its outputs. It sees the names around it.
    pub fn iteration(
        &mut self,
        graph: &GraphProto,
        initializers: &Scope,
        inputs: &[ValueId],
    ) -> Result<Vec<ValueId>, Refusal> {
        let context = self.context;
        let unsupported = |what: String| Err(Refusal::Unsupported { what });
        if context.depth >= MAX_NESTING {
            return unsupported(format!("nesting deeper than {MAX_NESTING}"));
        }
        if !graph.sparse_initializer.is_empty() || !graph.quantization_annotation.is_empty() {
            return unsupported("a subgraph with sparse initializers or quantization annotations".into());
        }
        if inputs.len() != graph.input.len() {
            let (given, most) = (inputs.len(), graph.input.len());
            return unsupported(format!("a subgraph of {most} inputs in the place of one of {given}"));
        }
        let prefix = format!("{}/", self.label);
        let mut scope = Scope { declared: initializers.declared.clone(), ..Scope::default() };
        for (info, &id) in graph.input.iter().zip(inputs) {
            self.check_declared(info, id)?;
            scope.named.insert(info.name.clone(), id);
        }
        scope.named.extend(initializers.named.clone());
        self.builder.scopes.push(scope);
        let inner = Context { depth: context.depth + 1, prefix: &prefix, ..context };
        let done = lower_body(self.builder, &graph.node, inner);
        let names = graph.output.iter().map(|output| &output.name);
        let results = done.and_then(|()| outputs(self.builder, names, self.label.as_str()));
        self.builder.scopes.pop();
        results
    }

    /// The declared type of a body's input must not contradict the value.
    fn check_declared(&self, info: &planforge_onnx::proto::ValueInfoProto, id: ValueId) -> Result<(), Refusal> {
        let Some(declared) = info.r#type.as_ref().and_then(|r#type| r#type.value.as_ref()) else { return Ok(()) };
        let type_proto::Value::TensorType(tensor) = declared else {
            let is_sequence = matches!(declared, type_proto::Value::SequenceType(_));
            if is_sequence && self.builder.sequences.contains_key(&id) {
                return Ok(());
            }
            return Err(Refusal::Element("a sequence, map, optional or sparse tensor".into()));
        };
        let kept = kept_type(tensor.elem_type).map_err(Refusal::Element)?;
        let ty = self.ty(id);
        let rank = tensor.shape.as_ref().map(|shape| shape.dim.len());
        let element = kept.1.map_or_else(|| kept.0.to_string(), |narrow| narrow.name().to_owned());
        if kept != self.kept(id) || rank.is_some_and(|rank| rank > MAX_RANK) {
            let what = format!("input {} of a body, declared as {element} and given {ty},", info.name);
            return Err(Refusal::Unsupported { what });
        }
        Ok(())
    }

    /// The one bool of a condition, when it is known.
    pub fn known_flag(&self, id: ValueId) -> Option<bool> {
        let tensor = self.constant(id).filter(|tensor| tensor.element() == ElementType::Bool && tensor.len() == 1)?;
        Some(tensor.bytes()[0] != 0)
    }

    /// Whether two values have the same type.
    pub fn same_type(&self, a: ValueId, b: ValueId) -> bool {
        let types: [&TensorType; 2] = [self.ty(a), self.ty(b)];
        types[0] == types[1] && self.narrow(a) == self.narrow(b)
    }
}
