//! The graph under construction, and one node's view of it.

mod eager;

pub use eager::{Eager, TAIL_BYTES_MAX, place};

use super::{
    MAX_NODES,
    attributes::Attributes,
    error::{Problem, Refusal},
    imported_opset,
    narrow::{Kept, Narrow},
    standard,
};
use crate::scope::{Context, Scope};
use planforge_graph::{
    infer::infer,
    interpreter,
    ir::{ElementType, Graph, Node, Op, Output, Tensor, ValueId},
    reference::OpError,
    shape::{TensorType, check_size},
};
use planforge_onnx::{
    Model,
    proto::{NodeProto, TensorProto},
};
use std::collections::{BTreeMap, BTreeSet};

/// Elements up to which results of constant inputs are computed during import: shapes and indices, not weights
/// (a pass folds those).
pub const MAX_FOLDED_ELEMENTS: usize = 1 << 16;

/// Most element operations that folding during import may cost in all; a model that unrolls into more keeps the nodes.
pub const MAX_FOLDING_WORK: u64 = 1 << 27;

/// Folding that costs no more than this is not counted: the number of nodes bounds it.
const SMALL_FOLD: u64 = 256;

/// Most elements all values may have together.
pub const MAX_TOTAL_ELEMENTS: u128 = 1 << 36;

/// Graph, names, and what is known of them so far.
#[derive(Debug, Default)]
pub struct Builder {
    pub graph: Graph,
    types: Vec<TensorType>,
    /// The names that can be read, innermost last; the first scope is the main graph or a function's body.
    pub scopes: Vec<Scope>,
    /// How many calls of functions are around the scopes.
    pub enclosing: usize,
    /// Nodes and iterations lowered so far, each time one is inlined or unrolled.
    pub lowered: usize,
    pub problems: Vec<Problem>,
    /// What folding has cost so far: see [`MAX_FOLDING_WORK`].
    folding_work: u64,
    /// Every name a value has or will have.
    pub taken: BTreeSet<String>,
    pub total_elements: u128,
    /// Tensors in place of the maps that a model makes of them.
    pub unzipped: Vec<ValueId>,
    /// Tensors of the sequences that values stand for.
    pub sequences: BTreeMap<ValueId, Vec<ValueId>>,
    /// Values that are kept as another type than the model means.
    pub narrow: BTreeMap<ValueId, Narrow>,
    /// Computes every node as it is lowered, so that every value is known; absent where a graph is made.
    pub eager: Option<Eager>,
    invented: u64,
}

impl Builder {
    /// One that computes every node as it is lowered.
    pub fn computing(eager: Eager) -> Self {
        Self { eager: Some(eager), ..Self::default() }
    }

    pub fn add_value(&mut self, name: String, ty: TensorType) -> ValueId {
        self.total_elements += ty.shape.iter().map(|&size| size as u128).product::<u128>();
        let id = self.graph.add_value(name, ty.element, &ty.shape);
        self.types.push(ty);
        id
    }

    pub fn add_constant(&mut self, name: String, tensor: Tensor) -> ValueId {
        let id = self.add_value(name, TensorType::of(&tensor));
        self.graph.constants.insert(id, tensor);
        id
    }

    /// Counts nodes or iterations, so that no nesting of loops makes more than [`MAX_NODES`] of them.
    pub fn unroll(&mut self, count: usize) -> Result<(), Refusal> {
        let before = self.lowered;
        self.lowered = before.saturating_add(count);
        if self.lowered <= MAX_NODES {
            return Ok(());
        }
        if before <= MAX_NODES {
            let (count, most) = (self.lowered as u128, MAX_NODES as u128);
            self.problems.push(Problem::TooLarge { what: "nodes after inlining and unrolling", count, most });
        }
        Err(Refusal::Inner)
    }

    /// Lists a node whose operator is not known, unless it is listed.
    pub fn unknown_operator(&mut self, model: &Model, node: &NodeProto, name: &str) {
        let wanted = if standard(&node.domain) { "" } else { node.domain.as_str() };
        let listed = self.problems.iter_mut().find_map(|problem| match problem {
            Problem::Operator { domain, op_type, nodes, .. } if domain == wanted && *op_type == node.op_type => {
                Some(nodes)
            }
            _ => None,
        });
        match listed {
            // Those outside of branches are listed by their own names.
            Some(nodes) if nodes.iter().any(|known| name == known || name.ends_with(&format!("/{known}"))) => {}
            Some(nodes) => nodes.push(name.to_owned()),
            None => {
                let (domain, op_type) = (wanted.to_owned(), node.op_type.clone());
                let opset = imported_opset(model, wanted);
                self.problems.push(Problem::Operator { domain, op_type, opset, nodes: vec![name.to_owned()] });
            }
        }
    }

    pub fn ty(&self, id: ValueId) -> &TensorType {
        &self.types[id.index()]
    }

    pub fn add_output(&mut self, name: &str, value: ValueId) {
        self.graph.outputs.push(Output { name: name.into(), value });
    }

    /// A name for a value the model does not name.
    fn invent(&mut self, stem: &str) -> String {
        loop {
            self.invented += 1;
            let name = format!("{stem}/{}", self.invented);
            if self.taken.insert(name.clone()) {
                return name;
            }
        }
    }
}

/// One node of the model while it is lowered.
#[derive(Debug)]
pub struct Lowering<'a> {
    pub builder: &'a mut Builder,
    /// Version of the standard operators.
    pub opset: i64,
    pub attributes: Attributes<'a>,
    /// By position; `None` where the model leaves an optional input out.
    pub inputs: Vec<Option<ValueId>>,
    /// Names of the outputs; empty where the model does not want one.
    pub outputs: &'a [String],
    /// Name for error messages and origins.
    pub label: String,
    pub model: &'a Model,
    pub context: Context<'a>,
}

impl Lowering<'_> {
    /// A tensor that must be given.
    pub fn input(&self, position: usize, what: &'static str) -> Result<ValueId, Refusal> {
        let id = self.value(position, what)?;
        match self.builder.sequences.contains_key(&id) {
            true => Err(Refusal::Element("a sequence".into())),
            false => Ok(id),
        }
    }

    /// A tensor or a sequence that must be given.
    pub fn value(&self, position: usize, what: &'static str) -> Result<ValueId, Refusal> {
        self.optional(position).ok_or(Refusal::MissingInput { position, what })
    }

    pub fn optional(&self, position: usize) -> Option<ValueId> {
        self.inputs.get(position).copied().flatten()
    }

    /// Refuses more inputs than the operator is known to have.
    pub fn at_most(&self, most: usize) -> Result<(), Refusal> {
        match self.inputs.len() <= most {
            true => Ok(()),
            false => Err(Refusal::Inputs { given: self.inputs.len(), most }),
        }
    }

    pub fn ty(&self, id: ValueId) -> &TensorType {
        self.builder.ty(id)
    }

    pub fn shape(&self, id: ValueId) -> Vec<usize> {
        self.builder.ty(id).shape.clone()
    }

    /// Whether the model wants output `position`.
    pub fn wants(&self, position: usize) -> bool {
        self.outputs.get(position).is_some_and(|name| !name.is_empty())
    }

    /// Refuses outputs from `position` on.
    pub fn only_outputs(&self, count: usize) -> Result<(), Refusal> {
        match (count..self.outputs.len()).find(|&position| self.wants(position)) {
            Some(position) => Err(Refusal::Output { position }),
            None => Ok(()),
        }
    }

    /// The numbers of a value that are known; codes and sequences are none.
    pub fn constant(&self, id: ValueId) -> Option<&Tensor> {
        let is_other = self.narrow(id).is_some() || self.builder.sequences.contains_key(&id);
        self.builder.graph.constant(id).filter(|_| !is_other)
    }

    /// Integers of an input that shapes follow from; `None` when it is not given.
    pub fn known_ints(&self, position: usize, what: &'static str) -> Result<Option<Vec<i64>>, Refusal> {
        let Some(id) = self.optional(position) else { return Ok(None) };
        if self.ty(id).shape == [0] {
            // Whatever it will hold, there is nothing in it.
            return Ok(Some(Vec::new()));
        }
        let tensor = self.constant(id).ok_or(Refusal::NotConstant { what })?;
        let shape = tensor.shape();
        if shape.len() > 1 {
            return Err(Refusal::Impossible { what, value: "not a list".into(), shape: shape.to_vec() });
        }
        let ints = tensor.to_i64s().ok_or_else(|| Refusal::Element(tensor.element().to_string()))?;
        Ok(Some(ints))
    }

    /// Floats of an input that shapes follow from; `None` when it is not given or empty.
    pub fn known_floats(&self, position: usize, what: &'static str) -> Result<Option<Vec<f64>>, Refusal> {
        let Some(id) = self.optional(position) else { return Ok(None) };
        let tensor = self.constant(id).ok_or(Refusal::NotConstant { what })?;
        Ok(Some(tensor.to_f64s()).filter(|values| !values.is_empty()))
    }

    /// The tensor of an attribute.
    pub fn read_tensor(&self, proto: &TensorProto) -> Result<Tensor, Refusal> {
        super::read_tensor(self.model, proto)
            .map_err(|what| Refusal::Unsupported { what: format!("the tensor: {what}") })
    }

    /// The tensor of an attribute as a value, also where it is kept as another type.
    pub fn read_constant(&mut self, proto: &TensorProto) -> Result<ValueId, Refusal> {
        let (tensor, narrow) = super::read_kept(self.model, proto)
            .map_err(|what| Refusal::Unsupported { what: format!("the tensor: {what}") })?;
        let id = self.add_constant(tensor);
        self.builder.narrow.extend(narrow.map(|narrow| (id, narrow)));
        Ok(id)
    }

    /// Adds a constant of the importer's own.
    pub fn add_constant(&mut self, tensor: Tensor) -> ValueId {
        // Where everything is computed at once, nobody asks for names.
        let name = if self.builder.eager.is_some() { String::new() } else { self.builder.invent(&self.label.clone()) };
        self.builder.add_constant(name, tensor)
    }

    /// A scalar of a given float or integer type.
    pub fn scalar(&mut self, element: ElementType, value: f64) -> Result<ValueId, Refusal> {
        let ty = [TensorType::new(element, [])];
        let tensor = interpreter::run(&Op::Cast { to: element }, &[Some(&Tensor::scalar(value))], &ty)?.remove(0);
        Ok(self.add_constant(tensor))
    }

    /// Adds a node with one output, whose shape the operator itself determines.
    pub fn emit(&mut self, op: Op, inputs: &[ValueId]) -> Result<ValueId, Refusal> {
        self.emit_optional(op, inputs.iter().copied().map(Some).collect(), &[])
    }

    /// Adds a node with one output of a resolved shape.
    pub fn emit_as(&mut self, op: Op, inputs: &[ValueId], shape: Vec<usize>) -> Result<ValueId, Refusal> {
        self.emit_optional(op, inputs.iter().copied().map(Some).collect(), &[shape])
    }

    /// Adds a node with one output.
    pub fn emit_optional(
        &mut self,
        op: Op,
        inputs: Vec<Option<ValueId>>,
        wanted: &[Vec<usize>],
    ) -> Result<ValueId, Refusal> {
        Ok(self.emit_all(op, inputs, wanted)?[0])
    }

    /// Adds a node; computes it at once when it is small and all its inputs are constants.
    pub fn emit_all(
        &mut self,
        op: Op,
        mut inputs: Vec<Option<ValueId>>,
        wanted: &[Vec<usize>],
    ) -> Result<Vec<ValueId>, Refusal> {
        while inputs.last() == Some(&None) {
            inputs.pop();
        }
        let narrow = self.moved(&op, &inputs)?;
        let types: Vec<Option<&TensorType>> = inputs.iter().map(|id| id.map(|id| self.builder.ty(id))).collect();
        let results = infer(&op, &types, wanted)?;
        for result in &results {
            let sizes: Vec<i128> = result.shape.iter().map(|&size| size as i128).collect();
            check_size("the result", &sizes)?;
        }
        if self.builder.eager.is_some() {
            let computed = self.compute_now(&op, &inputs, results)?;
            self.builder
                .narrow
                .extend(narrow.into_iter().flat_map(|narrow| computed.iter().map(move |&id| (id, narrow))));
            return Ok(computed);
        }
        if let Some(constants) = self.small_constants(&op, &inputs, &results) {
            let constants: Vec<Option<&Tensor>> = constants.iter().map(Option::as_ref).collect();
            let computed = interpreter::run(&op, &constants, &results)?;
            return Ok(computed.into_iter().map(|tensor| self.add_constant(tensor)).collect());
        }
        let outputs = results
            .into_iter()
            .map(|ty| {
                let name = self.builder.invent(&self.label.clone());
                let id = self.builder.add_value(name, ty);
                self.builder.narrow.extend(narrow.map(|narrow| (id, narrow)));
                id
            })
            .collect::<Vec<_>>();
        let origins = vec![self.label.clone()];
        self.builder.graph.nodes.push(Node { op, inputs, outputs: outputs.clone(), origins });
        Ok(outputs)
    }

    /// Computes a node of which every input is known.
    fn compute_now(
        &mut self,
        op: &Op,
        inputs: &[Option<ValueId>],
        results: Vec<TensorType>,
    ) -> Result<Vec<ValueId>, Refusal> {
        let Some(eager) = &self.builder.eager else { return Err(Refusal::Inner) };
        let known = |id: &ValueId| self.builder.graph.constant(*id);
        let tensors: Vec<Option<&Tensor>> = inputs.iter().map(|id| id.as_ref().and_then(known)).collect();
        if let Some(position) = (0..inputs.len()).find(|&at| inputs[at].is_some() && tensors[at].is_none()) {
            return Err(OpError::MissingInput { op: op.kind().to_owned(), position }.into());
        }
        let computed = eager.compute(op, &tensors, results)?;
        Ok(computed.into_iter().map(|tensor| self.builder.add_constant(String::new(), tensor)).collect())
    }

    /// Whether what is looked at here may be of any size: it is there.
    pub fn sees_all(&self) -> bool {
        self.builder.eager.is_some()
    }

    /// The type that is meant by what a value is kept as.
    pub fn narrow(&self, id: ValueId) -> Option<Narrow> {
        self.builder.narrow.get(&id).copied()
    }

    /// Element type of a value as the model means it, for comparisons.
    pub fn kept(&self, id: ValueId) -> Kept {
        (self.ty(id).element, self.narrow(id))
    }

    /// What a node makes of values that are kept as another type: the same where it only moves them.
    pub fn moved(&self, op: &Op, inputs: &[Option<ValueId>]) -> Result<Option<Narrow>, Refusal> {
        if inputs.iter().flatten().any(|id| self.builder.sequences.contains_key(id)) {
            return Err(Refusal::Element("a sequence".into()));
        }
        let narrow = |id: &Option<ValueId>| id.and_then(|id| self.narrow(id));
        let Some(first) = inputs.iter().find_map(narrow) else { return Ok(None) };
        let data = match op {
            Op::Identity
            | Op::Reshape
            | Op::Transpose { .. }
            | Op::Expand
            | Op::Split { .. }
            | Op::Slice { .. }
            | Op::Tile
            | Op::DepthToSpace { .. }
            | Op::SpaceToDepth { .. }
            | Op::Gather { .. }
            | Op::GatherElements { .. }
            | Op::GatherNd { .. } => 1,
            Op::Concat { .. } => inputs.len(),
            _ => 0,
        };
        let (moved, rest) = inputs.split_at(data.min(inputs.len()));
        let fits =
            data > 0 && moved.iter().all(|id| narrow(id) == Some(first)) && rest.iter().all(|id| narrow(id).is_none());
        match fits {
            true => Ok(Some(first)),
            false => Err(Refusal::Element(first.name().into())),
        }
    }

    fn small_constants(
        &mut self,
        op: &Op,
        inputs: &[Option<ValueId>],
        results: &[TensorType],
    ) -> Option<Vec<Option<Tensor>>> {
        let small = |ty: &TensorType| ty.shape.iter().product::<usize>() <= MAX_FOLDED_ELEMENTS;
        let all_small = results.iter().all(small) && inputs.iter().flatten().all(|&id| small(self.builder.ty(id)));
        // Stored integers of a quantized model may be what a backend computes with; a pass decides.
        if !all_small || inputs.is_empty() || matches!(op, Op::Dequantize(_)) {
            return None;
        }
        let constants: Option<Vec<Option<Tensor>>> = inputs
            .iter()
            .map(|id| id.map(|id| self.constant(id).cloned()).map_or(Some(None), |known| known.map(Some)))
            .collect();
        let constants = constants?;
        let count = |shape: &[usize]| shape.iter().product::<usize>() as u64;
        let given = constants.iter().flatten().map(|tensor| tensor.len() as u64);
        let made: u64 = results.iter().map(|ty| count(&ty.shape)).sum();
        let work = match op {
            Op::MatMul(_) | Op::Conv(_) | Op::ConvTranspose(_) | Op::Pool(_) | Op::Named(_) => {
                made.saturating_mul(given.max().unwrap_or(1))
            }
            _ => made + given.sum::<u64>(),
        };
        if work <= SMALL_FOLD {
            return Some(constants);
        }
        self.builder.folding_work = self.builder.folding_work.saturating_add(work);
        (self.builder.folding_work <= MAX_FOLDING_WORK).then_some(constants)
    }

    /// An axis that may count from the end, resolved against `rank`.
    pub fn axis(&self, axis: i64, rank: usize, what: &'static str) -> Result<usize, Refusal> {
        let resolved = if axis < 0 { axis + rank as i64 } else { axis };
        usize::try_from(resolved).ok().filter(|&resolved| resolved < rank).ok_or_else(|| Refusal::Impossible {
            what,
            value: axis.to_string(),
            shape: vec![rank],
        })
    }

    /// Axes resolved, sorted and without repeats.
    pub fn axes(&self, axes: &[i64], rank: usize) -> Result<Vec<usize>, Refusal> {
        let mut resolved = axes.iter().map(|&axis| self.axis(axis, rank, "axes")).collect::<Result<Vec<_>, _>>()?;
        resolved.sort_unstable();
        let before = resolved.len();
        resolved.dedup();
        match resolved.len() == before {
            true => Ok(resolved),
            false => Err(Refusal::Impossible { what: "axes", value: format!("{axes:?}"), shape: vec![rank] }),
        }
    }
}
