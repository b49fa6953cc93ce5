//! Operators as others that there are better kernels for: convolutions over one dimension as those over two of which
//! one is 1, and transposed convolutions as convolutions that make every pixel of a block in channels of its own.

use planforge_graph::ir::{Conv, ConvTranspose, ElementType, Epilogue, Graph, Node, Op, Tensor, ValueId};
use std::borrow::Cow;

/// The graph with all of these replaced; values that it had keep their numbers.
pub(super) fn raised(graph: &Graph) -> Cow<'_, Graph> {
    let fits = |node: &Node| plan(graph, node).is_some();
    if !graph.nodes.iter().any(fits) {
        return Cow::Borrowed(graph);
    }
    let mut raised = graph.clone();
    for node in std::mem::take(&mut raised.nodes) {
        match plan(graph, &node) {
            Some(Raise::Line(conv)) => line(&mut raised, &node, conv),
            Some(Raise::Blocks(blocks)) => blocks.put(&mut raised, &node),
            None => raised.nodes.push(node),
        }
    }
    Cow::Owned(raised)
}

enum Raise {
    /// A convolution over one dimension, as one over two.
    Line(Conv),
    Blocks(Blocks),
}

fn plan(graph: &Graph, node: &Node) -> Option<Raise> {
    let weights = graph.constant(node.input(1)?)?;
    let is_engines_float = matches!(weights.element(), ElementType::F32 | ElementType::F16 | ElementType::Bf16);
    if !is_engines_float || weights.is_empty() {
        return None;
    }
    match &node.op {
        Op::Conv(conv) if weights.rank() == 3 => {
            let first = |sizes: &[usize]| [&[1], sizes].concat();
            let [begin, end] = conv.pads[..] else { return None };
            Some(Raise::Line(Conv {
                strides: first(&conv.strides),
                pads: vec![0, begin, 0, end],
                dilations: first(&conv.dilations),
                ..conv.clone()
            }))
        }
        Op::ConvTranspose(conv) => Blocks::of(graph, node, conv, weights).map(Raise::Blocks),
        _ => None,
    }
}

/// Adds a node with one new result like `like`, of another shape.
fn add(
    graph: &mut Graph,
    op: Op,
    inputs: Vec<Option<ValueId>>,
    (like, shape): (ValueId, &[usize]),
    of: &Node,
) -> ValueId {
    let value = graph.value(like);
    let (name, element) = (format!("{} raised", value.name), value.element);
    let out = graph.add_value(name, element, shape);
    graph.nodes.push(Node { op, inputs, outputs: vec![out], origins: of.origins.clone() });
    out
}

/// `[.., length]` as `[.., 1, length]`, and back.
fn line(graph: &mut Graph, node: &Node, conv: Conv) {
    let flat = |shape: &[usize]| [&shape[..2], &[1], &shape[2..]].concat();
    let mut inputs = node.inputs.clone();
    for position in [0, 1, 3] {
        let Some(id) = node.input(position) else { continue };
        let shape = flat(&graph.static_shape(id).unwrap_or_default());
        inputs[position] = Some(match graph.constant(id).and_then(|tensor| tensor.reshaped(shape.clone()).ok()) {
            Some(tensor) => {
                let name = format!("{} in two dimensions", graph.value(id).name);
                graph.add_constant(name, tensor)
            }
            None => add(graph, Op::Reshape, vec![Some(id)], (id, &shape), node),
        });
    }
    let out = node.outputs[0];
    let shape = flat(&graph.static_shape(out).unwrap_or_default());
    let raised = add(graph, Op::Conv(conv), inputs, (out, &shape), node);
    let (inputs, outputs, origins) = (vec![Some(raised)], node.outputs.clone(), node.origins.clone());
    graph.nodes.push(Node { op: Op::Reshape, inputs, outputs, origins });
}

/// A transposed convolution by `stride` steps: the pixels of each block of so many are sums over the same few pixels of
/// the input, with weights of their own. Sizes are height, then width.
struct Blocks {
    /// `[batch, inputs, height, width]`, of one dimension with a height of 1.
    x: [usize; 4],
    weights: Tensor,
    bias: Option<Tensor>,
    channels: usize,
    block: [usize; 2],
    /// Pixels of the input that meet in one of the result, along each axis.
    reach: [usize; 2],
    pads: Vec<usize>,
}

impl Blocks {
    /// `None` for what has other forms, or constants that are none.
    fn of(graph: &Graph, node: &Node, conv: &ConvTranspose, weights: &Tensor) -> Option<Self> {
        let spatial = weights.rank().checked_sub(2).filter(|rank| matches!(rank, 1 | 2))?;
        let flat = |sizes: &[usize], with: usize| -> Option<[usize; 2]> {
            [&vec![with; 2 - spatial], sizes].concat().try_into().ok()
        };
        if conv.groups != 1 || conv.dilations.iter().any(|&dilation| dilation != 1) {
            return None;
        }
        let (block, taps) = (flat(&conv.strides, 1)?, flat(&weights.shape()[2..], 1)?);
        let reach = [0, 1].map(|axis| taps[axis].div_ceil(block[axis]));
        let given = graph.static_shape(node.input(0)?)?;
        let image = flat(&given[2..], 1)?;
        let out = flat(&graph.static_shape(node.outputs[0])?[2..], 1)?;
        let pads = flat(&conv.pads, 0)?;
        // What lies behind the last block would have to be filled.
        let covers = |axis: usize| pads[axis] + out[axis] <= (image[axis] + reach[axis] - 1) * block[axis];
        let bias = match node.input(2) {
            Some(id) => Some(graph.constant(id)?),
            None => None,
        };
        if !(covers(0) && covers(1)) || given.contains(&0) || out.contains(&0) {
            return None;
        }
        let channels = weights.shape()[1];
        let pixels = block[0] * block[1];
        let each = |bias: &Tensor| bias.to_f64s().into_iter().flat_map(|value| vec![value as f32; pixels]).collect();
        let bias = bias.map(|bias| Tensor::from_vec(vec![channels * pixels], each(bias)).ok());
        Some(Self {
            x: [given[0], given[1], image[0], image[1]],
            weights: turned(weights, taps, block, reach)?,
            bias: match bias {
                Some(bias) => Some(bias?),
                None => None,
            },
            channels,
            block,
            reach,
            pads: conv.pads.clone(),
        })
    }

    fn put(self, graph: &mut Graph, node: &Node) {
        let (Some(x), out) = (node.input(0), node.outputs[0]) else { return };
        let out_shape = graph.static_shape(out).unwrap_or_default();
        let [batch, _, height, width] = self.x;
        let x = match graph.static_shape(x) {
            Some(shape) if shape.len() == 4 => x,
            _ => add(graph, Op::Reshape, vec![Some(x)], (x, &self.x), node),
        };
        let weights = Some(graph.add_constant(format!("{} by pixel", graph.value(out).name), self.weights));
        let bias = self.bias.map(|bias| graph.add_constant(format!("{} bias by pixel", graph.value(out).name), bias));
        let [down, along] = self.block;
        let [rows, columns] = [height + self.reach[0] - 1, width + self.reach[1] - 1];
        let conv = Conv {
            strides: vec![1, 1],
            pads: [0, 1, 0, 1].map(|axis| self.reach[axis] - 1).to_vec(),
            dilations: vec![1, 1],
            groups: 1,
            epilogue: Epilogue::default(),
        };
        let shape = [batch, self.channels * down * along, rows, columns];
        let mut whole = add(graph, Op::Conv(conv), vec![Some(x), weights, bias], (out, &shape), node);
        let reshape = |graph: &mut Graph, id: ValueId, shape: &[usize]| {
            add(graph, Op::Reshape, vec![Some(id)], (out, shape), node)
        };
        let blocks = [batch, self.channels, rows * down, columns * along];
        if down * along > 1 {
            whole = reshape(graph, whole, &[batch, self.channels, down, along, rows, columns]);
            let op = Op::Transpose { perm: vec![0, 1, 4, 2, 5, 3] };
            let shape = [batch, self.channels, rows, down, columns, along];
            whole = add(graph, op, vec![Some(whole)], (out, &shape), node);
            let rank = out_shape.len();
            whole = reshape(graph, whole, &[&blocks[..2], &blocks[6 - rank..]].concat());
        } else if out_shape.len() < 4 {
            whole = reshape(graph, whole, &[&blocks[..2], &blocks[3..]].concat());
        }
        let starts = [&[0, 0], &self.pads[..]].concat();
        let op = Op::Slice { steps: vec![1; starts.len()], starts };
        let (inputs, outputs, origins) = (vec![Some(whole)], node.outputs.clone(), node.origins.clone());
        graph.nodes.push(Node { op, inputs, outputs, origins });
    }
}

/// Weights `[inputs][channels][taps]` as `[channels][block][inputs][reach]`, each pixel's turned around.
fn turned(weights: &Tensor, taps: [usize; 2], block: [usize; 2], reach: [usize; 2]) -> Option<Tensor> {
    let (inputs, channels) = (weights.shape()[0], weights.shape()[1]);
    let values = weights.to_f64s();
    let mut turned = Vec::with_capacity(channels * block[0] * block[1] * inputs * reach[0] * reach[1]);
    for channel in 0..channels {
        for pixel in 0..block[0] * block[1] {
            let (down, along) = (pixel / block[1], pixel % block[1]);
            for input in 0..inputs {
                for place in 0..reach[0] * reach[1] {
                    let row = block[0] * (reach[0] - 1 - place / reach[1]) + down;
                    let column = block[1] * (reach[1] - 1 - place % reach[1]) + along;
                    let at = ((input * channels + channel) * taps[0] + row) * taps[1] + column;
                    let inside = row < taps[0] && column < taps[1];
                    turned.push(if inside { values[at] as f32 } else { 0.0 });
                }
            }
        }
    }
    Tensor::from_vec(vec![channels * block[0] * block[1], inputs, reach[0], reach[1]], turned).ok()
}
