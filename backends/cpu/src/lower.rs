//! From the graph to steps: which operators have a kernel, and in which layout each value lies.
//!
//! Convolutions and pools work on NHWC images; what is computed element by element from an image stays one; anything
//! else takes values as the model has them, and a transpose is added where the two meet. Transposes that feed a
//! matrix product, or take its result, become strides of the product and cost nothing. Parts of a packed tensor that
//! attention reads are strides as well.

mod along;
mod attention;
mod classes;
mod loops;
mod movement;
mod quantized;
mod recurrent;
mod spectral;
mod transposed;
mod trees;
mod volumes;

use super::{
    draft::{Draft, DraftStep, Role, WeightSource},
    program::{
        BufferId, ImageShape, MatrixStrides, PairAxis, PairFunction, PointFunction, PoolFunction, ProgramPort, Step,
        StepKind, TypeOf,
    },
};
use planforge_graph::{
    ir::{
        Binary, Conv, DefUse, ElementType, Graph, MatMul, Node, Op, Pool, PoolKind, ReduceKind, Tensor, Unary, ValueId,
    },
    named::{
        integer_attention::ATTENTION as INTEGER_ATTENTION,
        quantized::{CONV as INTEGER_CONV, PRODUCT as INTEGER_PRODUCT},
    },
};
use planforge_kernels_cpu::conv::TAP_CHANNELS_MAX;

/// Why a graph cannot be lowered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LowerError {
    #[error("the size of {name} varies; the native compiler builds engines of one fixed shape")]
    Dynamic { name: String },
    #[error("{name} is used before it is computed")]
    Undefined { name: String },
}

/// What is known of a value while lowering.
#[derive(Clone, Debug, Default)]
struct Placed {
    /// Lies as in the model.
    row: Option<BufferId>,
    /// Lies with its second axis innermost (NHWC).
    image: Option<BufferId>,
    /// Is a transpose of another value that no step computes yet.
    view: Option<(ValueId, Vec<usize>)>,
    /// Lies in a buffer in these strides, one per axis.
    strided: Option<(BufferId, Vec<usize>)>,
    /// Is a part of another value, from these starts on, that no step copies yet.
    part: Option<(ValueId, Vec<usize>)>,
}

struct Lowering<'a> {
    graph: &'a Graph,
    uses: DefUse,
    draft: Draft,
    placed: Vec<Placed>,
    /// Nodes that an earlier step already computes.
    done: Vec<bool>,
    /// Values that the node that alone reads them computes among its own, and how much that is.
    waiting: Vec<Option<usize>>,
}

type Lowered<T> = Result<T, LowerError>;

/// Row-major strides.
fn strides_of(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

/// Lowers an optimised graph of static shapes.
pub(crate) fn lower(graph: &Graph) -> Lowered<Draft> {
    let mut lowering = Lowering {
        graph,
        uses: graph.def_use(),
        draft: Draft::default(),
        placed: vec![Placed::default(); graph.values.len()],
        done: vec![false; graph.nodes.len()],
        waiting: vec![None; graph.values.len()],
    };
    for &id in &graph.inputs {
        let (name, bytes) = (graph.value(id).name.clone(), lowering.bytes(id)?);
        let buffer = lowering.draft.add_buffer(&name, bytes, Role::Input);
        lowering.placed[id.index()].row = Some(buffer);
        let (element, shape) = (graph.value(id).element, lowering.shape(id)?);
        lowering.draft.inputs.push(ProgramPort { name, element, shape, buffer });
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        if !lowering.done[index] && !lowering.defer(index) {
            lowering.node(node)?;
        }
    }
    for output in &graph.outputs {
        let buffer = lowering.row(output.value)?;
        let (element, shape) = (graph.value(output.value).element, lowering.shape(output.value)?);
        lowering.draft.outputs.push(ProgramPort { name: output.name.clone(), element, shape, buffer });
    }
    Ok(lowering.draft)
}

impl Lowering<'_> {
    fn shape(&self, id: ValueId) -> Lowered<Vec<usize>> {
        self.graph.static_shape(id).ok_or_else(|| LowerError::Dynamic { name: self.graph.value(id).name.clone() })
    }

    fn bytes(&self, id: ValueId) -> Lowered<u64> {
        let count: usize = self.shape(id)?.iter().product();
        Ok((count * self.graph.value(id).element.bytes()) as u64)
    }

    fn is_f32(&self, id: ValueId) -> bool {
        self.graph.value(id).element == ElementType::F32
    }

    fn temporary(&mut self, id: ValueId, suffix: &str) -> Lowered<BufferId> {
        let name = format!("{}{suffix}", self.graph.value(id).name);
        let bytes = self.bytes(id)?;
        Ok(self.draft.add_buffer(name, bytes, Role::Temporary))
    }

    fn emit(&mut self, origins: &[String], kind: StepKind, inputs: Vec<Option<BufferId>>, outputs: Vec<BufferId>) {
        let step = Step {
            origins: origins.to_vec(),
            kind,
            inputs,
            outputs,
            weights: None,
            bias: None,
            scratch: None,
            tactic: None,
            tried: Vec::new(),
        };
        self.draft.steps.push(DraftStep { step, weights: None, bias: None });
    }

    /// The names a layout change is listed under.
    fn layout_origin(&self, id: ValueId, to: &str) -> Vec<String> {
        vec![format!("{} -> {to}", self.graph.value(id).name)]
    }

    /// The buffer that holds `id` as the model has it.
    fn row(&mut self, id: ValueId) -> Lowered<BufferId> {
        if let Some(buffer) = self.placed[id.index()].row {
            return Ok(buffer);
        }
        let buffer = if let Some(constant) = self.graph.constant(id) {
            let (name, bytes) = (self.graph.value(id).name.clone(), constant.bytes().clone());
            self.draft.add_buffer(name, bytes.len() as u64, Role::Constant(bytes))
        } else if let Some(image) = self.placed[id.index()].image {
            let shape = self.shape(id)?;
            let (channels, pixels) = (shape[1], shape[2..].iter().product::<usize>());
            if channels == 1 || pixels == 1 {
                image
            } else if self.graph.value(id).element.bytes() != 4 {
                self.copied(id, image, 0, &movement::image_strides(&shape))?
            } else {
                let buffer = self.temporary(id, "")?;
                let kind = StepKind::Transpose { shape: vec![shape[0], pixels, channels], perm: vec![0, 2, 1] };
                self.emit(&self.layout_origin(id, "NCHW"), kind, vec![Some(image)], vec![buffer]);
                buffer
            }
        } else if let Some((from, strides)) = self.placed[id.index()].strided.clone() {
            self.copied(id, from, 0, &strides)?
        } else if let Some((source, perm)) = self.placed[id.index()].view.clone() {
            let from = self.row(source)?;
            let shape = self.shape(source)?;
            let buffer = self.temporary(id, "")?;
            let origins = match self.uses.definition[id.index()] {
                Some(node) => self.graph.nodes[node].origins.clone(),
                None => self.layout_origin(id, "transposed"),
            };
            self.emit(&origins, StepKind::Transpose { shape, perm }, vec![Some(from)], vec![buffer]);
            buffer
        } else if let Some((source, starts)) = self.placed[id.index()].part.clone() {
            let strides = strides_of(&self.shape(source)?);
            let first = starts.iter().zip(&strides).map(|(start, stride)| start * stride).sum();
            let from = self.row(source)?;
            self.copied(id, from, first, &strides)?
        } else {
            return Err(LowerError::Undefined { name: self.graph.value(id).name.clone() });
        };
        self.placed[id.index()].row = Some(buffer);
        Ok(buffer)
    }

    /// The buffer that holds `id` (rank 3 or more) as an NHWC image.
    fn image(&mut self, id: ValueId) -> Lowered<BufferId> {
        if let Some(buffer) = self.placed[id.index()].image {
            return Ok(buffer);
        }
        let shape = self.shape(id)?;
        let (channels, pixels) = (shape[1], shape[2..].iter().product::<usize>());
        let rank = shape.len();
        // A transpose to channels second of what has channels last is that very image.
        let channels_first: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
        let viewed = self.placed[id.index()].view.clone().filter(|(_, perm)| *perm == channels_first);
        let buffer = if let (Some((source, _)), None) = (viewed, self.placed[id.index()].row) {
            self.row(source)?
        } else {
            let row = self.row(id)?;
            if channels == 1 || pixels == 1 {
                row
            } else if self.graph.value(id).element.bytes() != 4 {
                self.turned(id, row)?
            } else {
                let kind = StepKind::Transpose { shape: vec![shape[0], channels, pixels], perm: vec![0, 2, 1] };
                let buffer = self.temporary(id, " (NHWC)")?;
                self.emit(&self.layout_origin(id, "NHWC"), kind, vec![Some(row)], vec![buffer]);
                buffer
            }
        };
        self.placed[id.index()].image = Some(buffer);
        Ok(buffer)
    }

    /// Whether `id` lies as an image now, and only so.
    fn is_image(&self, id: ValueId) -> bool {
        let placed = &self.placed[id.index()];
        placed.image.is_some() && placed.row.is_none()
    }

    /// Buffer and strides of `id` without moving it.
    fn view(&mut self, id: ValueId) -> Lowered<(BufferId, Vec<usize>)> {
        if let (None, Some(strided)) = (self.placed[id.index()].row, self.placed[id.index()].strided.clone()) {
            return Ok(strided);
        }
        if let (None, Some((source, perm))) = (self.placed[id.index()].row, self.placed[id.index()].view.clone()) {
            let strides = strides_of(&self.shape(source)?);
            return Ok((self.row(source)?, perm.iter().map(|&axis| strides[axis]).collect()));
        }
        let strides = strides_of(&self.shape(id)?);
        Ok((self.row(id)?, strides))
    }

    fn node(&mut self, node: &Node) -> Lowered<()> {
        if self.joins(node) && self.loops(node)? {
            return Ok(());
        }
        let handled = match &node.op {
            Op::Identity | Op::Reshape => self.alias(node)?,
            Op::Conv(conv) => self.conv(node, conv)? || self.volume(node, conv)? || self.late_conv(node, conv)?,
            Op::ConvTranspose(conv) => self.conv_transpose(node, conv)?,
            Op::MatMul(product) => self.product(node, product)?,
            Op::Pool(pool) => {
                self.pool(node, pool)? || self.integer_pool(node, pool)? || self.pool_volume(node, pool)?
            }
            Op::Reduce { kind, axes, .. } => {
                *kind == ReduceKind::Mean && self.global_mean(node, axes)? || self.reduce(node, *kind, axes)?
            }
            Op::ArgReduce(arg) => self.places(node, *arg)?,
            Op::CumSum { axis, exclusive, reverse } => self.running_sum(node, *axis, *exclusive, *reverse)?,
            Op::TopK { axis, largest } => self.top_k(node, *axis, *largest)?,
            Op::Softmax { axis, log } => {
                !*log && self.softmax(node, *axis)? || self.softmax_along(node, *axis, *log)?
            }
            Op::InstanceNorm { epsilon } => self.group_norm(node, None, *epsilon)?,
            Op::GroupNorm { groups, epsilon } => self.group_norm(node, Some(*groups), *epsilon)?,
            Op::Pad { mode, begins } => self.pad(node, *mode, begins)?,
            Op::Tile => self.tile(node)?,
            Op::DepthToSpace { block, column_row } => self.blocks(node, *block, *column_row, true)?,
            Op::SpaceToDepth { block } => self.blocks(node, *block, false, false)?,
            Op::GatherElements { axis } => self.gather_elements(node, *axis)?,
            Op::GatherNd { batch_dims } => self.gather_nd(node, *batch_dims)?,
            Op::LayerNorm { axis, epsilon } => self.layer_norm(node, *axis, *epsilon)?,
            Op::Activation(activation) => self.point(node, PointFunction::Activation(*activation))?,
            Op::Unary(unary) => match point_function(*unary) {
                Some(function) => self.point(node, function)?,
                None => false,
            },
            Op::Binary(binary) => match pair_function(*binary) {
                Some(function) => self.pair(node, function)?,
                None => false,
            },
            Op::Transpose { perm } => self.transpose(node, perm)?,
            Op::Gather { axis } => self.gather(node, *axis)?,
            Op::Attention(attention) => self.attention(node, attention)?,
            Op::Split { axis } => self.split(node, *axis)?,
            Op::Slice { starts, steps } => self.slice(node, starts, steps)?,
            Op::Concat { axis } => self.concat(node, *axis)?,
            Op::Resize(resize) => self.resize(node, resize)?,
            Op::Expand => self.expand(node)?,
            Op::Named(named) => match named.name.as_str() {
                INTEGER_PRODUCT => self.integer_product(node, named)?,
                INTEGER_CONV => self.integer_conv(node, named)?,
                INTEGER_ATTENTION => self.integer_attention(node, named)?,
                "trees" => self.trees(node, named)?,
                "tree_classes" | "linear_classes" => self.classes(node, named)?,
                "dft" => self.dft(node, named)?,
                "stft" => self.stft(node, named)?,
                "lstm" | "gru" | "rnn" => self.recurrent(node, named)?,
                "scatter_elements" | "scatter_nd" => self.scatter(node, named)?,
                _ => false,
            },
            _ => false,
        };
        if handled || self.loops(node)? { Ok(()) } else { self.reference(node) }
    }

    fn alias(&mut self, node: &Node) -> Lowered<bool> {
        let Some(input) = node.input(0) else { return Ok(false) };
        let output = node.outputs[0];
        if matches!(node.op, Op::Identity) {
            // Lies wherever the input lies; made a row only when someone asks for one.
            if !self.graph.constants.contains_key(&input) {
                self.placed[output.index()] = self.placed[input.index()].clone();
                return Ok(true);
            }
        } else if self.split_axes(node)? {
            return Ok(true);
        }
        let row = self.row(input)?;
        self.placed[output.index()].row = Some(row);
        Ok(true)
    }

    /// Any operator, by its reference implementation.
    fn reference(&mut self, node: &Node) -> Lowered<()> {
        let mut inputs = Vec::new();
        let mut types = Vec::new();
        for id in &node.inputs {
            match id {
                Some(id) => {
                    inputs.push(Some(self.row(*id)?));
                    types.push(Some(TypeOf { element: self.graph.value(*id).element, shape: self.shape(*id)? }));
                }
                None => {
                    inputs.push(None);
                    types.push(None);
                }
            }
        }
        let mut outputs = Vec::new();
        let mut output_types = Vec::new();
        for &id in &node.outputs {
            let buffer = self.temporary(id, "")?;
            self.placed[id.index()].row = Some(buffer);
            outputs.push(buffer);
            output_types.push(TypeOf { element: self.graph.value(id).element, shape: self.shape(id)? });
        }
        let kind = StepKind::Reference { op: node.op.clone(), inputs: types, outputs: output_types };
        self.emit(&node.origins, kind, inputs, outputs);
        Ok(())
    }

    /// A constant f32 tensor.
    fn constant_f32(&self, id: ValueId) -> Option<&Tensor> {
        self.graph.constant(id).filter(|tensor| tensor.element() == ElementType::F32)
    }

    /// The values of an optional constant bias; `None` when there is one that is no constant of `len` values.
    fn bias(&self, id: Option<ValueId>, len: usize) -> Option<Option<Vec<f32>>> {
        let Some(id) = id else { return Some(None) };
        let tensor = self.constant_f32(id).filter(|tensor| tensor.len() == len)?;
        Some(Some(tensor.values::<f32>().ok()?.into_owned()))
    }

    fn conv(&mut self, node: &Node, conv: &Conv) -> Lowered<bool> {
        let (Some(x), Some(w)) = (node.input(0), node.input(1)) else { return Ok(false) };
        let output = node.outputs[0];
        let (shape, out) = (self.shape(x)?, self.shape(output)?);
        let Some(weights) = self.constant_f32(w).cloned() else { return Ok(false) };
        let Some(image) =
            image_shape(&shape, &out, &weights.shape()[2..], &conv.strides, &conv.dilations, &conv.pads, conv.groups)
        else {
            return Ok(false);
        };
        let Some(bias) = self.bias(node.input(2), image.out_channels) else { return Ok(false) };
        if !self.is_f32(x) || image.channels / image.groups > TAP_CHANNELS_MAX || out.contains(&0) || shape.contains(&0)
        {
            return Ok(false);
        }
        let from = self.image(x)?;
        let residual = node.input(3).map(|id| self.image(id)).transpose()?;
        let to = self.temporary(output, " (NHWC)")?;
        self.placed[output.index()].image = Some(to);
        let activation = conv.epilogue.activation;
        let depthwise = image.groups > 1 && image.groups == image.channels && image.out_channels == image.channels;
        let inputs = if residual.is_some() { vec![Some(from), residual] } else { vec![Some(from)] };
        if depthwise {
            let values = weights.values::<f32>().unwrap_or_default();
            let taps = image.kernel[0] * image.kernel[1];
            let mut by_tap = vec![0.0f32; values.len()];
            for (channel, kernel) in values.chunks_exact(taps).enumerate() {
                for (tap, value) in kernel.iter().enumerate() {
                    by_tap[tap * image.channels + channel] = *value;
                }
            }
            let bias = bias.unwrap_or_else(|| vec![0.0; image.channels]);
            let name = &self.graph.value(w).name;
            let weights =
                self.draft.add_buffer(format!("{name} (by tap)"), (by_tap.len() * 4) as u64, constant(&by_tap));
            let bias = self.draft.add_buffer(format!("{name} (bias)"), (bias.len() * 4) as u64, constant(&bias));
            self.emit(&node.origins, StepKind::Depthwise { shape: image, activation }, inputs, vec![to]);
            if let Some(last) = self.draft.steps.last_mut() {
                (last.step.weights, last.step.bias) = (Some(weights), Some(bias));
            }
            return Ok(true);
        }
        self.emit(&node.origins, StepKind::Conv { shape: image, activation }, inputs, vec![to]);
        if let Some(last) = self.draft.steps.last_mut() {
            last.weights = Some(WeightSource::Conv {
                data: weights,
                out_channels: image.out_channels,
                channels: image.channels / image.groups,
                kernel: image.kernel,
                groups: image.groups,
            });
            last.bias = bias;
        }
        Ok(true)
    }

    fn product(&mut self, node: &Node, product: &MatMul) -> Lowered<bool> {
        let (Some(a), Some(b)) = (node.input(0), node.input(1)) else { return Ok(false) };
        let output = node.outputs[0];
        let (a_shape, b_shape) = (self.shape(a)?, self.shape(b)?);
        let (a_rank, b_rank) = (a_shape.len(), b_shape.len());
        if !self.is_f32(a) || !self.is_f32(b) || a_rank < 2 || b_rank < 2 {
            return Ok(false);
        }
        let swap = |shape: &[usize], swapped: bool| {
            let (rows, columns) = (shape[shape.len() - 2], shape[shape.len() - 1]);
            if swapped { (columns, rows) } else { (rows, columns) }
        };
        let (rows, depth) = swap(&a_shape, product.trans_a);
        let (_, columns) = swap(&b_shape, product.trans_b);
        let out_shape = self.shape(output)?;
        if out_shape.contains(&0) || depth == 0 {
            return Ok(false);
        }
        let Some(bias) = self.bias(node.input(2), columns) else { return Ok(false) };
        let (alpha, activation) = (product.alpha, product.epilogue.activation);
        let b_batch: usize = b_shape[..b_rank - 2].iter().product();
        if let Some(constant) =
            self.constant_f32(b).filter(|_| b_batch == 1 && !product.trans_a && b_rank <= a_rank).cloned()
        {
            let rows = a_shape[..a_rank - 1].iter().product();
            let strides = if product.trans_b { [1, depth] } else { [columns, 1] };
            let from = self.row(a)?;
            let residual = node.input(3).map(|id| self.row(id)).transpose()?;
            let to = self.temporary(output, "")?;
            self.placed[output.index()].row = Some(to);
            let inputs = if residual.is_some() { vec![Some(from), residual] } else { vec![Some(from)] };
            self.emit(&node.origins, StepKind::Gemm { rows, columns, depth, alpha, activation }, inputs, vec![to]);
            if let Some(last) = self.draft.steps.last_mut() {
                last.weights = Some(WeightSource::Matrix { data: constant, depth, columns, strides });
                last.bias = bias;
            }
            return Ok(true);
        }
        let (a_buffer, a_strides) = self.view(a)?;
        let (b_buffer, b_strides) = self.view(b)?;
        let batch = &out_shape[..out_shape.len() - 2];
        // A transpose that alone takes the result and keeps its columns: written in its order at once.
        let folded = self.uses.sole_use(output).and_then(|user| match &self.graph.nodes[user].op {
            Op::Transpose { perm } if node.input(3).is_none() && perm.last() == Some(&(out_shape.len() - 1)) => {
                Some((user, perm.clone()))
            }
            _ => None,
        });
        let residual = node.input(3).map(|id| self.row(id)).transpose()?;
        let mut c_strides = strides_of(&out_shape);
        let (target, mut origins) =
            (folded.as_ref().map_or(output, |(user, _)| self.graph.nodes[*user].outputs[0]), node.origins.clone());
        if let Some((user, perm)) = &folded {
            let placed = strides_of(&self.shape(target)?);
            for (at, &axis) in perm.iter().enumerate() {
                c_strides[axis] = placed[at];
            }
            self.done[*user] = true;
            origins.extend(self.graph.nodes[*user].origins.iter().cloned());
        }
        let to = self.temporary(target, "")?;
        self.placed[target.index()].row = Some(to);
        let mut items = Vec::new();
        for index in 0..batch.iter().product::<usize>() {
            let (mut rest, mut at) = (index, [0, 0, 0]);
            for axis in (0..batch.len()).rev() {
                let position = rest % batch[axis];
                rest /= batch[axis];
                // Leading axes are aligned at the right; an axis of size 1 repeats.
                let along = |shape: &[usize], strides: &[usize]| {
                    let axis = (axis + shape.len()).checked_sub(out_shape.len());
                    axis.filter(|&axis| shape[axis] != 1).map_or(0, |axis| strides[axis])
                };
                at[0] += position * along(&a_shape, &a_strides);
                at[1] += position * along(&b_shape, &b_strides);
                at[2] += position * c_strides[axis];
            }
            items.push(at);
        }
        let matrix = |strides: &[usize], swapped: bool| {
            let (row, column) = (strides[strides.len() - 2], strides[strides.len() - 1]);
            if swapped { MatrixStrides { row: column, column: row } } else { MatrixStrides { row, column } }
        };
        let kind = StepKind::BatchGemm {
            rows,
            columns,
            depth,
            alpha,
            activation,
            a: matrix(&a_strides, product.trans_a),
            b: matrix(&b_strides, product.trans_b),
            c_row: c_strides[out_shape.len() - 2],
            items,
        };
        let mut inputs = vec![Some(a_buffer), Some(b_buffer)];
        inputs.extend(residual.map(Some));
        self.emit(&origins, kind, inputs, vec![to]);
        if let Some(last) = self.draft.steps.last_mut() {
            last.bias = bias;
        }
        Ok(true)
    }

    fn pool(&mut self, node: &Node, pool: &Pool) -> Lowered<bool> {
        let Some(x) = node.input(0) else { return Ok(false) };
        let output = node.outputs[0];
        let (shape, out) = (self.shape(x)?, self.shape(output)?);
        let Some(image) = image_shape(&shape, &out, &pool.kernel, &pool.strides, &pool.dilations, &pool.pads, 1) else {
            return Ok(false);
        };
        if !self.is_f32(x) || out.contains(&0) || shape.contains(&0) {
            return Ok(false);
        }
        let end_pads = match pool.pads.as_slice() {
            [_, end] => [0, *end],
            [_, _, bottom, right] => [*bottom, *right],
            _ => return Ok(false),
        };
        let padded = [image.pads[0] + image.height + end_pads[0], image.pads[1] + image.width + end_pads[1]];
        let function = match pool.kind {
            PoolKind::Max => PoolFunction::Max,
            PoolKind::Average { count_pad } => PoolFunction::Average { count_pad },
        };
        let from = self.image(x)?;
        let to = self.temporary(output, " (NHWC)")?;
        self.placed[output.index()].image = Some(to);
        self.emit(&node.origins, StepKind::Pool { shape: image, function, padded }, vec![Some(from)], vec![to]);
        Ok(true)
    }

    fn global_mean(&mut self, node: &Node, axes: &[usize]) -> Lowered<bool> {
        let Some(x) = node.input(0) else { return Ok(false) };
        let shape = self.shape(x)?;
        let spatial: Vec<usize> = (2..shape.len()).collect();
        if !self.is_f32(x) || shape.len() < 3 || axes != spatial || shape.contains(&0) {
            return Ok(false);
        }
        let from = self.image(x)?;
        let output = node.outputs[0];
        let to = self.temporary(output, "")?;
        self.placed[output.index()].row = Some(to);
        self.emit(&node.origins, StepKind::GlobalMean { channels: shape[1] }, vec![Some(from)], vec![to]);
        Ok(true)
    }

    fn softmax(&mut self, node: &Node, axis: usize) -> Lowered<bool> {
        let Some(x) = node.input(0) else { return Ok(false) };
        let shape = self.shape(x)?;
        if !self.is_f32(x) || axis + 1 != shape.len() || shape.contains(&0) {
            return Ok(false);
        }
        self.rows_step(node, x, StepKind::Softmax { columns: shape[axis], guarded: false }, Vec::new())
    }

    fn layer_norm(&mut self, node: &Node, axis: usize, epsilon: f32) -> Lowered<bool> {
        let Some(x) = node.input(0) else { return Ok(false) };
        let shape = self.shape(x)?;
        let columns: usize = shape[axis..].iter().product();
        let mut parameters = Vec::new();
        for position in [1, 2] {
            let given = node.input(position);
            if let Some(id) = given
                && (!self.is_f32(id) || self.shape(id)?.iter().product::<usize>() != columns)
            {
                return Ok(false);
            }
            parameters.push(given.map(|id| self.row(id)).transpose()?);
        }
        if !self.is_f32(x) || shape.contains(&0) {
            return Ok(false);
        }
        self.rows_step(node, x, StepKind::LayerNorm { columns, epsilon }, parameters)
    }

    pub(super) fn rows_step(
        &mut self,
        node: &Node,
        x: ValueId,
        kind: StepKind,
        more: Vec<Option<BufferId>>,
    ) -> Lowered<bool> {
        let mut inputs = vec![Some(self.row(x)?)];
        inputs.extend(more);
        let output = node.outputs[0];
        let to = self.temporary(output, "")?;
        self.placed[output.index()].row = Some(to);
        self.emit(&node.origins, kind, inputs, vec![to]);
        Ok(true)
    }

    fn point(&mut self, node: &Node, function: PointFunction) -> Lowered<bool> {
        let Some(x) = node.input(0) else { return Ok(false) };
        if !self.is_f32(x) {
            return Ok(false);
        }
        let output = node.outputs[0];
        let as_image = self.is_image(x);
        let from = if as_image { self.image(x)? } else { self.row(x)? };
        let to = self.temporary(output, if as_image { " (NHWC)" } else { "" })?;
        let placed = &mut self.placed[output.index()];
        *(if as_image { &mut placed.image } else { &mut placed.row }) = Some(to);
        self.emit(&node.origins, StepKind::Point { function }, vec![Some(from)], vec![to]);
        Ok(true)
    }

    fn pair(&mut self, node: &Node, function: PairFunction) -> Lowered<bool> {
        let (Some(a), Some(b)) = (node.input(0), node.input(1)) else { return Ok(false) };
        if !self.is_f32(a) || !self.is_f32(b) {
            return Ok(false);
        }
        let output = node.outputs[0];
        let out = self.shape(output)?;
        if out.contains(&0) {
            return Ok(false);
        }
        // As an image when an operand of the output's shape lies so.
        let rank = out.len();
        let mut as_image = false;
        for id in [a, b] {
            as_image |= rank >= 3 && self.is_image(id) && self.shape(id)? == out;
        }
        let mut order: Vec<usize> = (0..rank).collect();
        if as_image {
            order = [0].into_iter().chain(2..rank).chain([1]).collect();
        }
        let mut buffers = Vec::new();
        let mut strides = Vec::new();
        for id in [a, b] {
            // Aligned at the right, sizes of one where an axis is missing.
            let own = self.shape(id)?;
            let shape: Vec<usize> = vec![1; rank - own.len()].into_iter().chain(own.iter().copied()).collect();
            let lies_as_image = as_image && own.len() == rank && !self.graph.constants.contains_key(&id);
            let buffer = if lies_as_image { self.image(id)? } else { self.row(id)? };
            let by_axis = if lies_as_image {
                let moved: Vec<usize> = order.iter().map(|&axis| shape[axis]).collect();
                strides_of(&moved)
            } else {
                let all = strides_of(&shape);
                order.iter().map(|&axis| all[axis]).collect()
            };
            let repeated = order.iter().zip(by_axis).map(|(&axis, stride)| if shape[axis] == 1 { 0 } else { stride });
            strides.push(repeated.collect::<Vec<_>>());
            buffers.push(Some(buffer));
        }
        let mut axes: Vec<PairAxis> = Vec::new();
        for (at, &axis) in order.iter().enumerate().filter(|&(_, &axis)| out[axis] != 1) {
            let next = PairAxis { size: out[axis], a: strides[0][at], b: strides[1][at] };
            match axes.last_mut() {
                Some(last) if last.a == next.a * next.size && last.b == next.b * next.size => {
                    *last = PairAxis { size: last.size * next.size, ..next };
                }
                _ => axes.push(next),
            }
        }
        // A constant per channel of a model's layout has stride 1 there, or is a scalar; anything else with a strided
        // innermost axis has no kernel.
        if axes.last().is_some_and(|inner| inner.a > 1 || inner.b > 1) {
            return Ok(false);
        }
        let to = self.temporary(output, if as_image { " (NHWC)" } else { "" })?;
        let placed = &mut self.placed[output.index()];
        *(if as_image { &mut placed.image } else { &mut placed.row }) = Some(to);
        self.emit(&node.origins, StepKind::Pair { function, axes }, buffers, vec![to]);
        Ok(true)
    }

    fn transpose(&mut self, node: &Node, perm: &[usize]) -> Lowered<bool> {
        let Some(x) = node.input(0) else { return Ok(false) };
        if perm.len() > 8 || self.shape(x)?.contains(&0) {
            return Ok(false);
        }
        let output = node.outputs[0];
        if self.graph.value(x).element.bytes() != 4 {
            return self.transposed_at_once(node, x, perm);
        }
        let rank = perm.len();
        // An image given out with channels last is there already.
        let channels_last: Vec<usize> = (0..1).chain(2..rank).chain(1..rank.min(2)).collect();
        if rank >= 3 && perm == channels_last && self.is_image(x) {
            let image = self.image(x)?;
            self.placed[output.index()].row = Some(image);
            return Ok(true);
        }
        if let (None, Some((buffer, strides))) = (self.placed[x.index()].row, self.placed[x.index()].strided.clone()) {
            self.placed[output.index()].strided = Some((buffer, perm.iter().map(|&axis| strides[axis]).collect()));
            return Ok(true);
        }
        let (source, perm) = match (self.placed[x.index()].row, self.placed[x.index()].view.clone()) {
            (None, Some((source, inner))) => (source, perm.iter().map(|&axis| inner[axis]).collect()),
            _ => (x, perm.to_vec()),
        };
        self.placed[output.index()].view = Some((source, perm));
        Ok(true)
    }

    fn gather(&mut self, node: &Node, axis: usize) -> Lowered<bool> {
        let (Some(x), Some(indices)) = (node.input(0), node.input(1)) else { return Ok(false) };
        let index = self.graph.value(indices).element;
        let shape = self.shape(x)?;
        let output = node.outputs[0];
        let inner: usize = shape[axis + 1..].iter().product();
        let line_bytes = inner * self.graph.value(x).element.bytes();
        if !matches!(index, ElementType::I64 | ElementType::I32) || line_bytes == 0 || self.shape(output)?.contains(&0)
        {
            return Ok(false);
        }
        let inputs = vec![Some(self.row(x)?), Some(self.row(indices)?)];
        let to = self.temporary(output, "")?;
        self.placed[output.index()].row = Some(to);
        let outer = shape[..axis].iter().product();
        let kind = StepKind::Gather { outer, size: shape[axis], line_bytes, index };
        self.emit(&node.origins, kind, inputs, vec![to]);
        Ok(true)
    }
}

fn constant(values: &[f32]) -> Role {
    Role::Constant(bytes::Bytes::copy_from_slice(bytemuck::cast_slice(values)))
}

/// The two-dimensional form of a convolution or pool over one or two spatial axes.
fn image_shape(
    shape: &[usize],
    out: &[usize],
    kernel: &[usize],
    strides: &[usize],
    dilations: &[usize],
    pads: &[usize],
    groups: usize,
) -> Option<ImageShape> {
    let two = |values: &[usize], missing: usize| match values {
        [one] => Some([missing, *one]),
        [first, second] => Some([*first, *second]),
        _ => None,
    };
    let size = two(&shape[2..], 1)?;
    let out_size = two(&out[2..], 1)?;
    Some(ImageShape {
        batch: shape[0],
        height: size[0],
        width: size[1],
        channels: shape[1],
        out_height: out_size[0],
        out_width: out_size[1],
        out_channels: out[1],
        kernel: two(kernel, 1)?,
        strides: two(strides, 1)?,
        dilations: two(dilations, 1)?,
        pads: two(&pads[..pads.len() / 2], 0)?,
        groups,
    })
}

fn point_function(unary: Unary) -> Option<PointFunction> {
    Some(match unary {
        Unary::Neg => PointFunction::Neg,
        Unary::Abs => PointFunction::Abs,
        Unary::Exp => PointFunction::Exp,
        Unary::Sqrt => PointFunction::Sqrt,
        Unary::Reciprocal => PointFunction::Reciprocal,
        Unary::Erf => PointFunction::Erf,
        _ => return None,
    })
}

fn pair_function(binary: Binary) -> Option<PairFunction> {
    Some(match binary {
        Binary::Add => PairFunction::Add,
        Binary::Sub => PairFunction::Sub,
        Binary::Mul => PairFunction::Mul,
        Binary::Div => PairFunction::Div,
        Binary::Min => PairFunction::Min,
        Binary::Max => PairFunction::Max,
        _ => return None,
    })
}
