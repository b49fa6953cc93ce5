//! Runs operators and whole graphs with the reference kernels: the oracle of tests and of `verify`, and how constants are
//! folded.

use crate::{
    ir::{Computer, Graph, Node, Op, Sized, Tensor, ValueId},
    named,
    reference::{
        Inputs, OpError, attention, contraction, elementwise, gather, movement, normalize, numbers, pool, quantize,
        reduce, resize,
    },
    shape::TensorType,
};
use std::{collections::BTreeMap, ops::ControlFlow, sync::Arc};

#[cfg(test)]
mod tests;

/// Computes one operator. `outputs` are its results' types as [`crate::infer::infer`] gives them.
///
/// # Errors
///
/// When an input is missing, of a type without such an operator, or holds what cannot be computed (an index outside,
/// an integer divided by zero).
pub fn run(op: &Op, tensors: &[Option<&Tensor>], outputs: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
    let inputs = Inputs { op: op.kind(), tensors };
    if outputs.iter().all(|out| out.shape.contains(&0)) {
        // Nothing is computed of which there is nothing.
        let empty = |out: &TensorType| Tensor::new(out.element, out.shape.clone(), Default::default());
        return Ok(outputs.iter().map(empty).collect::<Result<_, _>>()?);
    }
    let out = &outputs[0];
    let one = match op {
        Op::Identity => inputs.get(0)?.clone(),
        Op::Unary(unary) => elementwise::unary(*unary, inputs.get(0)?, out)?,
        Op::Activation(activation) => elementwise::activate(activation, inputs.get(0)?, out)?,
        Op::Binary(binary) => elementwise::binary(*binary, inputs.get(0)?, inputs.get(1)?, out)?,
        Op::Compare(compare) => elementwise::compare(*compare, inputs.get(0)?, inputs.get(1)?, out)?,
        Op::Where => movement::select(inputs.get(0)?, inputs.get(1)?, inputs.get(2)?, out)?,
        Op::Cast { .. } => numbers::Numbers::of(inputs.get(0)?).into_tensor(out)?,
        Op::Conv(conv) => contraction::conv(conv, &inputs, out)?,
        Op::ConvTranspose(conv) => contraction::conv_transpose(conv, &inputs, out)?,
        Op::MatMul(product) => contraction::matmul(product, &inputs, out)?,
        Op::Pool(pool) => pool::pool(pool, inputs.get(0)?, out)?,
        Op::BatchNorm { epsilon } => normalize::batch_norm(&inputs, *epsilon, out)?,
        Op::LayerNorm { axis, epsilon } => normalize::layer_norm(&inputs, *axis, *epsilon, out)?,
        Op::InstanceNorm { epsilon } => normalize::group_norm(&inputs, None, *epsilon, out)?,
        Op::GroupNorm { groups, epsilon } => normalize::group_norm(&inputs, Some(*groups), *epsilon, out)?,
        Op::Lrn { alpha, beta, bias, size } => normalize::lrn(inputs.get(0)?, [*alpha, *beta, *bias], *size, out)?,
        Op::Softmax { axis, log } => normalize::softmax(inputs.get(0)?, *axis, *log, out)?,
        Op::Reduce { kind, axes, .. } => reduce::reduce(*kind, axes, inputs.get(0)?, out)?,
        Op::ArgReduce(arg) => reduce::arg_reduce(arg, inputs.get(0)?, out)?,
        Op::CumSum { axis, exclusive, reverse } => reduce::cum_sum(inputs.get(0)?, *axis, *exclusive, *reverse, out)?,
        Op::Reshape => inputs.get(0)?.reshaped(out.shape.clone())?,
        Op::Transpose { perm } => movement::transpose(inputs.get(0)?, perm, out)?,
        Op::Expand => movement::expand(inputs.get(0)?, out)?,
        Op::Concat { axis } => movement::concat(&inputs.all()?, *axis, out)?,
        Op::Split { axis } => return movement::split(inputs.get(0)?, *axis, outputs),
        Op::Slice { starts, steps } => movement::slice(inputs.get(0)?, starts, steps, out)?,
        Op::Pad { mode, begins } => movement::pad(inputs.get(0)?, inputs.optional(1), *mode, begins, out)?,
        Op::Tile => movement::tile(inputs.get(0)?, out)?,
        Op::Gather { axis } => gather::gather(inputs.get(0)?, inputs.get(1)?, *axis, out)?,
        Op::GatherElements { axis } => gather::gather_elements(inputs.get(0)?, inputs.get(1)?, *axis, out)?,
        Op::GatherNd { batch_dims } => gather::gather_nd(inputs.get(0)?, inputs.get(1)?, *batch_dims, out)?,
        Op::OneHot { axis } => gather::one_hot(inputs.get(0)?, inputs.get(1)?, *axis, out)?,
        Op::Resize(resize) => resize::resize(resize, inputs.get(0)?, out)?,
        Op::DepthToSpace { block, column_row } => movement::depth_to_space(inputs.get(0)?, *block, *column_row, out)?,
        Op::SpaceToDepth { block } => movement::space_to_depth(inputs.get(0)?, *block, out)?,
        Op::Trilu { upper, k } => movement::trilu(inputs.get(0)?, *upper, *k, out)?,
        Op::Named(named) => return named::run(named, &inputs, outputs),
        Op::Attention(attention) => attention::attention(attention, &inputs, out)?,
        Op::Quantize(how) => quantize::quantize(*how, &inputs, out)?,
        Op::Dequantize(how) => quantize::dequantize(*how, &inputs, out)?,
        Op::FakeQuantize(how) => quantize::fake_quantize(*how, &inputs, out)?,
        Op::TopK { axis, largest } => return reduce::top_k(inputs.get(0)?, *axis, *largest, outputs),
    };
    Ok(vec![one])
}

/// Types of a node's outputs, as its graph declares them.
///
/// # Errors
///
/// When a shape is not bound.
pub fn output_types(graph: &Graph, node: &Node) -> Result<Vec<TensorType>, OpError> {
    node.outputs.iter().map(|&id| declared_type(graph, id)).collect()
}

fn declared_type(graph: &Graph, id: ValueId) -> Result<TensorType, OpError> {
    let value = graph.value(id);
    let shape = graph.static_shape(id).ok_or_else(|| OpError::Unbound { name: value.name.clone() })?;
    Ok(TensorType { element: value.element, shape })
}

/// Runs the graph on named inputs and gives its outputs by name.
///
/// # Errors
///
/// When inputs are not those of the graph, or a node fails, which is then named.
pub fn execute(graph: &Graph, inputs: &BTreeMap<String, Tensor>) -> Result<BTreeMap<String, Tensor>, OpError> {
    execute_observed(graph, inputs, &mut |_, _| ControlFlow::Continue(()))
}

/// As [`execute`], and hands `observer` every value a node computes, right after it is computed; breaking there ends
/// the execution with [`OpError::Stopped`].
///
/// # Errors
///
/// As [`execute`].
pub fn execute_observed(
    graph: &Graph,
    inputs: &BTreeMap<String, Tensor>,
    observer: &mut dyn FnMut(ValueId, &Tensor) -> ControlFlow<()>,
) -> Result<BTreeMap<String, Tensor>, OpError> {
    let mut compute = |node: &Node, tensors: &[Option<&Tensor>], types: &[TensorType]| {
        let results = run(&node.op, tensors, types)?;
        match node.outputs.iter().zip(&results).any(|(&id, tensor)| observer(id, tensor).is_break()) {
            true => Err(OpError::Stopped),
            false => Ok(results),
        }
    };
    execute_by(graph, inputs, &mut compute)
}

/// Computes one node, of which it is given the inputs and the types of its outputs; [`OpError::Stopped`] ends the
/// execution.
pub type Compute<'a> = dyn FnMut(&Node, &[Option<&Tensor>], &[TensorType]) -> Result<Vec<Tensor>, OpError> + 'a;

/// As [`execute`], with `compute` in place of [`run`]: what differs from it in a way that is to be studied.
///
/// # Errors
///
/// As [`execute`].
pub fn execute_by(
    graph: &Graph,
    inputs: &BTreeMap<String, Tensor>,
    compute: &mut Compute<'_>,
) -> Result<BTreeMap<String, Tensor>, OpError> {
    let mut values: Vec<Option<Tensor>> = vec![None; graph.values.len()];
    bind_inputs(graph, inputs, &mut values)?;
    for (&id, tensor) in &graph.constants {
        values[id.index()] = Some(tensor.clone());
    }
    // Values are dropped after their last use, so that the peak is that of the live ones.
    let mut last_use: Vec<Option<usize>> = vec![None; graph.values.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        for id in node.inputs.iter().flatten().chain(&node.outputs) {
            last_use[id.index()] = Some(index);
        }
    }
    for output in &graph.outputs {
        last_use[output.value.index()] = None;
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        let named = |source: OpError| match source {
            OpError::Stopped => OpError::Stopped,
            source => OpError::Node {
                node: format!("{} ({})", node.origins.join(" + "), node.op.kind()),
                source: Box::new(source),
            },
        };
        let types = output_types(graph, node)?;
        let tensors: Vec<Option<&Tensor>> =
            node.inputs.iter().map(|id| id.and_then(|id| values[id.index()].as_ref())).collect();
        let results = compute(node, &tensors, &types).map_err(named)?;
        for (&id, tensor) in node.outputs.iter().zip(results) {
            values[id.index()] = Some(tensor);
        }
        for id in node.inputs.iter().flatten().chain(&node.outputs) {
            if last_use[id.index()] == Some(index) {
                values[id.index()] = None;
            }
        }
    }
    let outputs = graph.outputs.iter().map(|output| match &values[output.value.index()] {
        Some(tensor) => Ok((output.name.clone(), tensor.clone())),
        None => Err(OpError::InputNotGiven { name: output.name.clone() }),
    });
    let outputs = outputs.collect::<Result<_, _>>()?;
    match &graph.tail {
        None => Ok(outputs),
        Some(tail) => Ok(tail.finish(outputs, &plainly())?),
    }
}

/// Computes what follows a graph by the reference kernels.
pub fn plainly() -> Arc<dyn Computer> {
    Arc::new(Plainly)
}

struct Plainly;

impl Computer for Plainly {
    fn compute(&self, op: &Op, inputs: &[Option<&Tensor>], outputs: &[Sized]) -> Result<Vec<Tensor>, String> {
        let types: Vec<TensorType> =
            outputs.iter().map(|(element, shape)| TensorType::new(*element, shape.clone())).collect();
        run(op, inputs, &types).map_err(|error| error.to_string())
    }
}

fn bind_inputs(graph: &Graph, inputs: &BTreeMap<String, Tensor>, values: &mut [Option<Tensor>]) -> Result<(), OpError> {
    let names: Vec<&str> = graph.inputs.iter().map(|&id| graph.value(id).name.as_str()).collect();
    if let Some(name) = inputs.keys().find(|name| !names.contains(&name.as_str())) {
        return Err(OpError::InputUnknown { name: name.clone(), expected: names.join(", ") });
    }
    for &id in &graph.inputs {
        let name = &graph.value(id).name;
        let tensor = inputs.get(name).ok_or_else(|| OpError::InputNotGiven { name: name.clone() })?;
        let expected = declared_type(graph, id)?;
        let actual = TensorType::of(tensor);
        if actual != expected {
            return Err(OpError::InputDiffers {
                name: name.clone(),
                actual: actual.to_string(),
                expected: expected.to_string(),
            });
        }
        values[id.index()] = Some(tensor.clone());
    }
    Ok(())
}
