//! Decides which values are images with their channels last (NHWC), and where the two layouts meet.
//!
//! Before: `x (N,C,H,W) -> Conv -> Relu -> Conv -> Reshape -> MatMul -> y`, all as the model has them.
//! After: x is turned once, both convolutions and the activation work on NHWC, and one turn precedes the reshape.
//!
//! Convolutions, pools and resamplings take and give images. What is computed element by element, and concatenations
//! and splits along the channels, follow their operands. Everything else takes values as the model has them. The graph
//! stays as it is: a backend turns values where [`Layouts::turns`] says, or finds that its kernels do not need it.

use planforge_graph::ir::{Graph, Node, Op, ReduceKind, ValueId};

/// How the elements of a value follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// As the model has them, the last axis innermost.
    Row,
    /// The second axis innermost.
    ChannelsLast,
}

/// A value that is needed in another layout than it is made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    pub value: ValueId,
    pub to: Layout,
}

/// The layout every value is made in, and the turns.
#[derive(Clone, Debug)]
pub struct Layouts {
    pub of: Vec<Layout>,
    /// At most one per value.
    pub turns: Vec<Turn>,
}

/// What a node does with images.
enum Takes {
    /// Its first input (and a residual) as an image; gives one or, of a mean over each image, a row.
    Image {
        gives: Layout,
    },
    /// Whatever its operands of the result's shape are.
    Follows,
    Rows,
}

fn takes(graph: &Graph, node: &Node) -> Takes {
    let rank = node.input(0).map_or(0, |id| graph.value(id).shape.len());
    match &node.op {
        Op::Conv(_) | Op::ConvTranspose(_) | Op::Pool(_) => Takes::Image { gives: Layout::ChannelsLast },
        Op::Resize(_) if rank >= 3 => Takes::Image { gives: Layout::ChannelsLast },
        Op::Reduce { kind: ReduceKind::Mean, axes, .. } if rank >= 3 && axes.iter().copied().eq(2..rank) => {
            Takes::Image { gives: Layout::Row }
        }
        Op::Identity
        | Op::Unary(_)
        | Op::Activation(_)
        | Op::Binary(_)
        | Op::Cast { .. }
        | Op::BatchNorm { .. }
        | Op::Quantize(_)
        | Op::Dequantize(_)
        | Op::FakeQuantize(_) => Takes::Follows,
        Op::Concat { axis: 1 } | Op::Split { axis: 1 } if rank >= 3 => Takes::Follows,
        _ => Takes::Rows,
    }
}

/// Whether both layouts have the elements in the same order.
fn indifferent(graph: &Graph, id: ValueId) -> bool {
    match graph.static_shape(id).as_deref() {
        Some([_, channels, spatial @ ..]) => *channels == 1 || spatial.iter().product::<usize>() == 1,
        _ => true,
    }
}

impl Layouts {
    /// Decides over a graph of static shapes.
    pub fn assign(graph: &Graph) -> Self {
        let mut layouts = Self { of: vec![Layout::Row; graph.values.len()], turns: Vec::new() };
        for node in &graph.nodes {
            let made = match takes(graph, node) {
                Takes::Image { gives } => gives,
                Takes::Follows if layouts.follows(graph, node) => Layout::ChannelsLast,
                _ => Layout::Row,
            };
            node.outputs.iter().for_each(|id| layouts.of[id.index()] = made);
            for (position, id) in node.inputs.iter().enumerate() {
                if let Some(id) = *id
                    && let Some(wanted) = layouts.wanted(graph, node, position, id)
                {
                    layouts.turn(graph, id, wanted);
                }
            }
        }
        for output in &graph.outputs {
            layouts.turn(graph, output.value, Layout::Row);
        }
        layouts
    }

    /// Whether an operand of the result's shape is an image.
    fn follows(&self, graph: &Graph, node: &Node) -> bool {
        let rank = graph.value(node.outputs[0]).shape.len();
        let image = |id: &ValueId| {
            self.of[id.index()] == Layout::ChannelsLast
                && graph.value(*id).shape.len() == rank
                && !indifferent(graph, *id)
        };
        rank >= 3 && node.inputs.iter().flatten().any(image)
    }

    /// The layout in which a node wants an input; `None` when it does not care.
    fn wanted(&self, graph: &Graph, node: &Node, position: usize, id: ValueId) -> Option<Layout> {
        let made = self.of[node.outputs[0].index()];
        let parameter = graph.constants.contains_key(&id);
        match takes(graph, node) {
            Takes::Image { .. } if position == 0 || (position == 3 && matches!(node.op, Op::Conv(_))) => {
                Some(Layout::ChannelsLast)
            }
            Takes::Image { .. } => None,
            // A backend turns constants when it stores them.
            Takes::Follows if parameter || graph.value(id).shape.len() < 3 => None,
            Takes::Follows => Some(made),
            Takes::Rows => Some(Layout::Row),
        }
    }

    fn turn(&mut self, graph: &Graph, value: ValueId, to: Layout) {
        let turn = Turn { value, to };
        if self.of[value.index()] != to && !indifferent(graph, value) && !self.turns.contains(&turn) {
            self.turns.push(turn);
        }
    }
}
