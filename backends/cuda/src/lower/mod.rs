//! From the optimised graph to a program.
//!
//! Values become views: transposes, slices, splits, broadcasts and most reshapes move nothing. Chains of element-wise
//! operators become one kernel each. What is concatenated is written where it belongs in the first place. Images lie
//! with their channels last from the first convolution on.
//!
//! | file | lowers |
//! |---|---|
//! | `mod` | the walk over the graph, views, outputs |
//! | `placement` | where a value is to lie: own buffer, part of a concatenation, output |
//! | `pointwise` | element-wise operators and gathers |
//! | `heavy` | convolutions, matrix products, pooling, normalisation, softmax |
//! | `attention` | attention, fused or in parts |
//! | `states` | inputs that are changed in place and are outputs too |
//! | `one_token` | attention of one query over such inputs |
//! | `heads` | the same and the product ahead of it as one step, where a device has a kernel for that |
//! | `chain` | a row to which step after step adds as sums, and every two such steps as one, where a device has kernels for them |
//! | `one_row` | what one row of a decoder goes through: normalisation ahead of a product, rotary positions |
//! | `raise` | operators over one dimension, and transposed convolutions, as what there are better kernels for |
//! | `loops` | everything else, as plain loops over any rank and type |
//! | `memory` | which buffers share the arena |
//! | `traffic` | bytes that a step moves |

mod attention;
pub mod chain;
pub mod heads;
mod heavy;
mod loops;
mod memory;
mod moves;
mod one_row;
mod one_token;
mod placement;
mod pointwise;
mod raise;
mod reduce;
mod states;
mod traffic;

use self::loops::Rounded;
use crate::{
    codegen::{Generated, expr::Expr},
    program::{ALIGNMENT, Buffer, Edge, KernelWork, Place, Program, Step, Work},
    view::{BufferId, Kind, View},
};
use planforge_graph::ir::{DefUse, Graph, Node, Op, Tensor, ValueId};
use planforge_types::HostTensor;
use rayon::prelude::*;
use std::{collections::BTreeMap, fmt, ops::Range};

/// A program and the bytes of its constants.
#[derive(Clone, Debug)]
pub struct Lowered {
    pub program: Program,
    pub weights: Vec<u8>,
}

/// One node that has no device code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub node: String,
    pub why: String,
}

/// Nodes that this backend cannot compute, all of them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct LowerError(pub Vec<Refused>);

impl fmt::Display for LowerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} nodes have no device code: ", self.0.len())?;
        for (index, refused) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "; " };
            write!(f, "{comma}{}: {}", refused.node, refused.why)?;
        }
        Ok(())
    }
}

/// Why one node was not lowered.
type Outcome<T> = Result<T, String>;

/// What a value is while its users are still to come.
#[derive(Clone, Debug)]
enum Bound {
    View(View),
    /// Not computed yet: its only user takes it into its own kernel.
    Lazy {
        expression: Expr,
        origins: Vec<String>,
    },
}

struct Lowering<'a> {
    graph: &'a Graph,
    uses: DefUse,
    /// How floats are stored inside the engine.
    float: Kind,
    program: Program,
    weights: Vec<u8>,
    bound: BTreeMap<ValueId, Bound>,
    /// Constants that were placed: by value, storage, arrangement, and the sizes that they were padded to.
    constants: BTreeMap<(ValueId, Kind, &'static str, Vec<u64>), View>,
    /// Images that lie in more channels than they have, the rest being finite: all of their channels.
    padded: BTreeMap<ValueId, View>,
    placement: placement::Placement,
    states: states::States,
    /// Attentions of one query over states.
    sites: one_token::Sites,
    /// Constants that say which place is the last of so many.
    last_places: BTreeMap<u64, View>,
    /// What is computed ahead of products of one row, and rotary positions.
    rows: one_row::Rows,
}

/// Lowers `graph`, whose shapes are all known, with its floats stored as `float`.
pub fn lower(graph: &Graph, float: Kind) -> Result<Lowered, LowerError> {
    let graph = &*raise::raised(graph);
    let uses = graph.def_use();
    let states = states::States::of(graph, &uses, float);
    let rows = one_row::Rows::of(graph, &uses, &states);
    let mut lowering = Lowering {
        sites: one_token::Sites::of(graph, &uses, &states, &rows),
        rows,
        states,
        graph,
        float,
        program: Program::default(),
        weights: Vec::new(),
        bound: BTreeMap::new(),
        constants: BTreeMap::new(),
        last_places: BTreeMap::new(),
        padded: BTreeMap::new(),
        placement: placement::Placement::of(graph, &uses),
        uses,
    };
    let mut refused = Vec::new();
    if let Err(why) = lowering.edges() {
        refused.push(Refused { node: "inputs and outputs".into(), why });
        return Err(LowerError(refused));
    }
    for (number, node) in graph.nodes.iter().enumerate() {
        if let Err(why) = lowering.node(number, node) {
            let name = node.origins.first().cloned().unwrap_or_else(|| node.op.kind().to_owned());
            refused.push(Refused { node: format!("{} '{name}'", node.op.kind()), why });
            // Its results count as known, so that what follows is judged for itself.
            for &output in &node.outputs {
                if let Ok(view) = lowering.fresh(output) {
                    lowering.bound.insert(output, Bound::View(view));
                }
            }
        }
    }
    if refused.is_empty()
        && let Err(why) = lowering.outputs()
    {
        refused.push(Refused { node: "outputs".into(), why });
    }
    if !refused.is_empty() {
        return Err(LowerError(refused));
    }
    memory::plan(&mut lowering.program);
    lowering.program.weight_bytes = lowering.weights.len() as u64;
    Ok(Lowered { program: lowering.program, weights: lowering.weights })
}

/// Whether an output of the graph is an input that is changed in place.
pub fn changes_inputs(graph: &Graph) -> bool {
    let uses = graph.def_use();
    let caches = planforge_passes::states::caches(graph, &uses);
    caches.iter().any(|cache| cache.is_alone && !cache.converts)
        || !planforge_passes::states::grown(graph, &uses).is_empty()
}

/// Writes values as `kind` stores them, on all cores.
fn store(kind: Kind, values: &[f64], to: &mut [u8]) {
    const CHUNK: usize = 1 << 14;
    let chunks = to.par_chunks_mut(CHUNK * kind.bytes() as usize).zip(values.par_chunks(CHUNK));
    chunks.for_each(|(to, values)| {
        to.copy_from_slice(&HostTensor::of_values(kind.element(), vec![values.len()], values).bytes);
    });
}

impl Lowering<'_> {
    fn dims(&self, id: ValueId) -> Outcome<Vec<u64>> {
        let shape = self.graph.static_shape(id);
        let shape = shape.ok_or_else(|| format!("the shape of '{}' is not fixed", self.graph.value(id).name))?;
        Ok(shape.into_iter().map(|size| size as u64).collect())
    }

    /// How a value is stored inside the engine.
    fn kind(&self, id: ValueId) -> Kind {
        match Kind::of(self.graph.value(id).element) {
            kind if kind.is_float() => self.float,
            kind => kind,
        }
    }

    fn buffer(&mut self, name: &str, bytes: u64, place: Place) -> BufferId {
        let id = BufferId(u32::try_from(self.program.buffers.len()).expect("a graph has fewer values than 2^32"));
        let bytes = bytes.max(1).next_multiple_of(ALIGNMENT);
        self.program.buffers.push(Buffer { name: name.into(), bytes, place });
        id
    }

    fn edges(&mut self) -> Outcome<()> {
        for (number, &id) in self.graph.inputs.iter().enumerate() {
            let value = self.graph.value(id).clone();
            let dims = self.dims(id)?;
            let kind = Kind::of(value.element);
            let state = self.states.pairs.iter().find(|state| state.input as usize == number).copied();
            let growing = state.and_then(|state| Some((self.graph.outputs[state.output as usize].value, state.grows?)));
            // Of a cache that grows the memory of what it grows to.
            let whole = growing.map_or(Ok(dims.clone()), |(result, _)| self.dims(result))?;
            let bytes = whole.iter().product::<u64>() * kind.bytes();
            let buffer = self.buffer(&value.name, bytes, Place::Input(number as u32));
            let mut view = View::rows(buffer, kind, &whole);
            if let Some((result, axis)) = growing {
                self.placement.wholes.insert(result, view.clone());
                view = view.slice(axis as usize, 0, dims[axis as usize]);
            }
            self.program.inputs.push(Edge { name: value.name, element: value.element, shape: dims, buffer });
            self.bound.insert(id, Bound::View(view));
        }
        self.program.states.clone_from(&self.states.pairs);
        for (number, output) in self.graph.outputs.iter().enumerate() {
            let value = self.graph.value(output.value).clone();
            let dims = self.dims(output.value)?;
            let kind = Kind::of(value.element);
            let bytes = dims.iter().product::<u64>() * kind.bytes();
            let buffer = match self.program.state_of_output(number) {
                Some(state) => self.program.inputs[state.input as usize].buffer,
                None => self.buffer(&output.name, bytes, Place::Output(number as u32)),
            };
            self.program.outputs.push(Edge {
                name: output.name.clone(),
                element: value.element,
                shape: dims.clone(),
                buffer,
            });
            self.placement.outputs.entry(output.value).or_insert_with(|| View::rows(buffer, kind, &dims));
        }
        Ok(())
    }

    /// Whatever was not written into an output's memory right away is copied there.
    fn outputs(&mut self) -> Outcome<()> {
        for (number, output) in self.graph.outputs.iter().enumerate() {
            let edge = self.program.outputs[number].clone();
            let kind = Kind::of(edge.element);
            let wanted = View::rows(edge.buffer, kind, &edge.shape);
            let have = self.view(output.value)?;
            if !have.is_same(&wanted) {
                self.copy(&have, &wanted, &[])?;
            }
        }
        Ok(())
    }

    fn node(&mut self, number: usize, node: &Node) -> Outcome<()> {
        if self.sites.absorbs(number) || self.rows.absorbs(number) {
            return Ok(());
        }
        match &node.op {
            Op::Attention(attention) if self.sites.at(number).is_some() => {
                let site = self.sites.at(number).cloned().ok_or("no site")?;
                self.one_token(node, attention, &site)
            }
            Op::Binary(_) if self.rows.turn(number).is_some() => {
                let turn = self.rows.turn(number).cloned().ok_or("no turn")?;
                self.turned(node, &turn)
            }
            Op::Identity
            | Op::Unary(_)
            | Op::Activation(_)
            | Op::Binary(_)
            | Op::Compare(_)
            | Op::Where
            | Op::Cast { .. } => self.pointwise(node),
            Op::BatchNorm { epsilon } => self.batch_norm(node, *epsilon),
            Op::Gather { axis } => self.gather(node, *axis),
            Op::Reshape => self.reshape(node),
            Op::Transpose { perm } => {
                let view = self.input_view(node, 0)?.permuted(perm);
                self.bind(node.outputs[0], view)
            }
            Op::Expand => {
                let dims = self.dims(node.outputs[0])?;
                let view = self.input_view(node, 0)?.broadcast(&dims).ok_or("it does not broadcast")?;
                self.bind(node.outputs[0], view)
            }
            Op::Slice { starts, steps } => self.slice(node, starts, steps),
            Op::Pad { mode, begins } => self.pad(node, *mode, begins),
            Op::Tile => self.tile(node),
            Op::GatherElements { axis } => self.gather_elements(node, *axis),
            Op::Trilu { upper, k } => self.triangle(node, *upper, *k),
            Op::DepthToSpace { block, column_row } => self.depth_to_space(node, *block, *column_row),
            Op::SpaceToDepth { block } => self.space_to_depth(node, *block),
            Op::Split { axis } => {
                let whole = self.input_view(node, 0)?;
                let mut start = 0;
                for &output in &node.outputs {
                    let length = self.dims(output)?[*axis];
                    self.bind(output, whole.slice(*axis, start, length))?;
                    start += length;
                }
                Ok(())
            }
            Op::Concat { axis } => self.concat(node, *axis),
            Op::Conv(conv) if self.is_common_image(node, 1)? => self.conv(node, conv),
            Op::Conv(conv) => self.conv_loops(node, conv),
            Op::ConvTranspose(conv) => self.conv_transpose(node, conv),
            Op::MatMul(product) if self.is_common_product(node)? => self.product(node, product),
            Op::MatMul(product) => self.product_loops(node, product),
            Op::Pool(pool) if self.is_common_image(node, 0)? => self.pool(node, pool),
            Op::Pool(pool) => self.pool_loops(node, pool),
            Op::Lrn { alpha, beta, bias, size } => self.local_norm(node, [*alpha, *beta, *bias], *size),
            Op::GatherNd { batch_dims } => self.gather_nd(node, *batch_dims),
            Op::OneHot { axis } => self.one_hot(node, *axis),
            Op::TopK { axis, largest } => self.top_k(node, *axis, *largest),
            Op::Quantize(how) => self.quantize(node, how, Rounded::ToWhole),
            Op::FakeQuantize(how) => self.quantize(node, how, Rounded::ToSteps),
            Op::Dequantize(how) => self.dequantize(node, how),
            Op::Named(named) => self.named(node, named),
            Op::Reduce { kind, axes, .. } => self.reduce(node, *kind, axes),
            Op::CumSum { axis, exclusive, reverse } => self.running_sum(node, *axis, *exclusive, *reverse),
            Op::ArgReduce(arg) => self.arg_reduce(node, arg),
            Op::LayerNorm { axis, epsilon } => self.layer_norm(node, *axis, *epsilon),
            Op::InstanceNorm { epsilon } => self.group_norm(node, None, *epsilon),
            Op::GroupNorm { groups, epsilon } => self.group_norm(node, Some(*groups), *epsilon),
            Op::Attention(attention) => self.attention(node, attention),
            Op::Softmax { axis, log } => self.softmax(node, *axis, *log),
            Op::Resize(resize) => self.resize(node, resize),
        }
    }

    fn bind(&mut self, id: ValueId, view: View) -> Outcome<()> {
        self.bound.insert(id, Bound::View(view));
        Ok(())
    }

    /// A value in memory: a lazy one is computed now, a constant is placed as it is.
    fn view(&mut self, id: ValueId) -> Outcome<View> {
        if let Some(tensor) = self.graph.constant(id) {
            let kind = self.kind(id);
            let dims: Vec<u64> = tensor.shape().iter().map(|&size| size as u64).collect();
            if tensor.element() != kind.element() {
                return self.constant(id, kind, "rows", &dims, |tensor| tensor.to_f64s());
            }
            // Whole numbers may be larger than what f64 counts to.
            let key = (id, kind, "rows", dims);
            if let Some(view) = self.constants.get(&key) {
                return Ok(view.clone());
            }
            let name = self.graph.value(id).name.clone();
            let (view, room) = self.weights_room(&name, kind, &key.3);
            self.weights[room].copy_from_slice(tensor.bytes());
            self.constants.insert(key, view.clone());
            return Ok(view);
        }
        match self.bound.get(&id).cloned() {
            Some(Bound::View(view)) => Ok(view),
            Some(Bound::Lazy { expression, origins }) => {
                let out = self.place(id)?;
                self.emit_pointwise(&expression, &out, &origins)?;
                self.bound.insert(id, Bound::View(out.clone()));
                Ok(out)
            }
            None => Err(format!("'{}' is not computed", self.graph.value(id).name)),
        }
    }

    fn input_view(&mut self, node: &Node, position: usize) -> Outcome<View> {
        let id = node.input(position).ok_or_else(|| format!("input {position} is missing"))?;
        self.view(id)
    }

    /// A constant among the weights, arranged by `arrange`, which returns its elements in the order of `dims`. Equal
    /// names and sizes are one arrangement.
    fn constant(
        &mut self,
        id: ValueId,
        kind: Kind,
        arrangement: &'static str,
        dims: &[u64],
        arrange: impl FnOnce(&Tensor) -> Vec<f64>,
    ) -> Outcome<View> {
        let key = (id, kind, arrangement, dims.to_vec());
        if let Some(view) = self.constants.get(&key) {
            return Ok(view.clone());
        }
        let tensor =
            self.graph.constant(id).ok_or_else(|| format!("'{}' is not constant", self.graph.value(id).name))?;
        let values = arrange(tensor);
        let view = self.weights_view(&self.graph.value(id).name.clone(), kind, dims, &values);
        self.constants.insert(key, view.clone());
        Ok(view)
    }

    fn weights_view(&mut self, name: &str, kind: Kind, dims: &[u64], values: &[f64]) -> View {
        let (view, room) = self.weights_room(name, kind, dims);
        store(kind, values, &mut self.weights[room]);
        view
    }

    /// Room among the weights for a tensor of these sizes.
    fn weights_room(&mut self, name: &str, kind: Kind, dims: &[u64]) -> (View, Range<usize>) {
        let at = (self.weights.len() as u64).next_multiple_of(ALIGNMENT);
        let bytes = dims.iter().product::<u64>() * kind.bytes();
        // A constant without elements has a place too.
        let end = (at + bytes.max(1)).next_multiple_of(ALIGNMENT);
        self.weights.resize(usize::try_from(end).expect("weights fit in memory"), 0);
        let buffer = self.buffer(name, bytes, Place::Weights(at));
        (View::rows(buffer, kind, dims), at as usize..(at + bytes) as usize)
    }

    /// Own memory for a value, laid out as values of its kind are.
    fn fresh(&mut self, id: ValueId) -> Outcome<View> {
        let (dims, kind) = (self.dims(id)?, self.kind(id));
        let name = self.graph.value(id).name.clone();
        let buffer = self.buffer(&name, dims.iter().product::<u64>() * kind.bytes(), Place::Arena(0));
        Ok(if self.placement.is_image(id) {
            View::channels_last(buffer, kind, &dims)
        } else {
            View::rows(buffer, kind, &dims)
        })
    }

    /// Memory that no value of the graph has.
    fn temporary(&mut self, name: &str, kind: Kind, dims: &[u64]) -> BufferId {
        self.buffer(name, dims.iter().product::<u64>() * kind.bytes(), Place::Arena(0))
    }

    fn emit(
        &mut self,
        generated: Generated,
        role: &str,
        operands: Vec<View>,
        origins: &[String],
        flops: u64,
    ) -> &mut Step {
        let source = match self.program.sources.iter().position(|known| *known == generated.source) {
            Some(index) => index,
            None => {
                self.program.sources.push(generated.source);
                self.program.sources.len() - 1
            }
        };
        let (grid, block) = (generated.grid, generated.block);
        let work = KernelWork { role: role.into(), source, grid, block, operands, gelus: Vec::new() };
        self.step(Work::Kernel(work), origins, flops)
    }

    fn step(&mut self, work: Work, origins: &[String], flops: u64) -> &mut Step {
        let number = self.program.steps.len();
        let name = format!("{number:03} {}", origins.first().map_or(work.kind(), String::as_str));
        let bytes = traffic::of_work(&work);
        self.program.steps.push(Step { name, origins: origins.to_vec(), work, tactic: None, stream: 0, flops, bytes });
        self.program.steps.last_mut().expect("pushed above")
    }

    fn copy(&mut self, from: &View, to: &View, origins: &[String]) -> Outcome<()> {
        let load = crate::codegen::expr::Load { view: from.clone(), index: None };
        self.emit_pointwise(&Expr::Load(load), to, origins)
    }

    /// The view itself when it is dense rows of the engine's float type, else a copy that is.
    fn dense_rows(&mut self, view: View) -> Outcome<View> {
        if view.is_rows() && (view.kind == self.float || !view.kind.is_float()) {
            return Ok(view);
        }
        let kind = if view.kind.is_float() { self.float } else { view.kind };
        let buffer = self.temporary("rows", kind, &view.dims);
        let rows = View::rows(buffer, kind, &view.dims);
        self.copy(&view, &rows, &[])?;
        Ok(rows)
    }
}

fn is_output(program: &Program, buffer: BufferId) -> bool {
    program.outputs.iter().any(|output| output.buffer == buffer)
}

/// Steps that read a buffer or write it, by number.
fn touching(program: &Program, buffer: BufferId) -> impl Iterator<Item = usize> {
    let touches = move |step: &Step| {
        let (read, written) = step.work.views();
        read.into_iter().chain([written]).any(|view| view.buffer == buffer)
    };
    program.steps.iter().enumerate().filter(move |(_, step)| touches(step)).map(|(number, _)| number)
}

/// Nodes of the graph that steps come from, each once.
fn origins_of(steps: &[Step]) -> Vec<String> {
    let mut origins: Vec<String> = Vec::new();
    for origin in steps.iter().flat_map(|step| &step.origins) {
        if !origins.contains(origin) {
            origins.push(origin.clone());
        }
    }
    origins
}
