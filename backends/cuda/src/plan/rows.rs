//! Are the rows of a batch computed apart? Then fewer rows may run in a graph that was captured for more, and the rest
//! is thrown away.
//!
//! The first dimension is followed from the inputs to the outputs: an operator keeps rows apart when every row of its
//! result depends on the same row of what carries rows, and on nothing else that differs by row. Whatever is not known to
//! do so does not.

use planforge_graph::ir::{Graph, Node, Op, ValueId};
use std::collections::BTreeSet;

/// Whether all rows (of the first dimension that all inputs and outputs share, at least 2) are computed apart.
pub fn computed_apart(graph: &Graph) -> bool {
    let Some(rows) = graph.inputs.first().and_then(|&id| first_size(graph, id)).filter(|rows| *rows >= 2) else {
        return false;
    };
    let has_rows = |id: ValueId| first_size(graph, id) == Some(rows);
    if !graph.inputs.iter().all(|&id| has_rows(id)) {
        return false;
    }
    let mut walk = Walk { graph, rows, carries: graph.inputs.iter().copied().collect(), alike: BTreeSet::new() };
    graph.nodes.iter().all(|node| walk.node(node))
        && graph.outputs.iter().all(|output| has_rows(output.value) && walk.carries.contains(&output.value))
}

fn first_size(graph: &Graph, id: ValueId) -> Option<usize> {
    graph.static_shape(id)?.first().copied()
}

struct Walk<'a> {
    graph: &'a Graph,
    rows: usize,
    /// Values whose first dimension is the rows.
    carries: BTreeSet<ValueId>,
    /// Values that carry none, whose first dimension is as large all the same, and whose rows are all equal.
    alike: BTreeSet<ValueId>,
}

impl Walk<'_> {
    fn node(&mut self, node: &Node) -> bool {
        let inputs: Vec<ValueId> = node.inputs.iter().flatten().copied().collect();
        if !inputs.iter().any(|id| self.carries.contains(id)) {
            if matches!(node.op, Op::Expand) && !self.has_rows(inputs[0]) {
                self.alike.extend(&node.outputs);
            }
            return true;
        }
        let apart = self.keeps_apart(node) && node.outputs.iter().all(|&id| self.has_rows(id));
        self.carries.extend(&node.outputs);
        apart
    }

    fn has_rows(&self, id: ValueId) -> bool {
        first_size(self.graph, id) == Some(self.rows)
    }

    fn rank(&self, id: ValueId) -> usize {
        self.graph.value(id).shape.len()
    }

    fn carries(&self, node: &Node, position: usize) -> bool {
        node.input(position).is_some_and(|id| self.carries.contains(&id))
    }

    /// Aligned with a result of `rank` dimensions, it gives every row the same, or each row its own.
    fn aligned(&self, node: &Node, position: usize, rank: usize) -> bool {
        let Some(id) = node.input(position) else { return true };
        if self.carries.contains(&id) {
            return self.rank(id) == rank && self.has_rows(id);
        }
        self.rank(id) < rank || first_size(self.graph, id) == Some(1) || self.same_rows(id)
    }

    /// Its first dimension is a size of its own, yet all its rows are equal.
    fn same_rows(&self, id: ValueId) -> bool {
        self.alike.contains(&id)
            || self.graph.constant(id).is_some_and(|tensor| {
                let bytes = tensor.bytes();
                let row = bytes.len() / self.rows.max(1);
                row > 0 && bytes.len() % row == 0 && bytes.chunks(row).all(|other| other == &bytes[..row])
            })
    }

    /// Only the first input carries rows.
    fn first_alone(&self, node: &Node) -> bool {
        self.carries(node, 0) && (1..node.inputs.len()).all(|position| !self.carries(node, position))
    }

    fn all_aligned(&self, node: &Node) -> bool {
        let rank = self.rank(node.outputs[0]);
        (0..node.inputs.len()).all(|position| self.aligned(node, position, rank))
    }

    fn keeps_apart(&self, node: &Node) -> bool {
        match &node.op {
            Op::Identity
            | Op::Unary(_)
            | Op::Activation(_)
            | Op::Cast { .. }
            | Op::Binary(_)
            | Op::Compare(_)
            | Op::Where
            | Op::Attention(_) => self.all_aligned(node),
            Op::Conv(_) => {
                let rank = self.rank(node.outputs[0]);
                self.carries(node, 0) && !self.carries(node, 1) && !self.carries(node, 2) && self.aligned(node, 3, rank)
            }
            Op::Pool(_)
            | Op::BatchNorm { .. }
            | Op::InstanceNorm { .. }
            | Op::GroupNorm { .. }
            | Op::Lrn { .. }
            | Op::DepthToSpace { .. }
            | Op::SpaceToDepth { .. }
            | Op::ConvTranspose(_)
            | Op::Reshape => self.first_alone(node),
            Op::Resize(resize) => self.first_alone(node) && resize.scales.first() == Some(&1.0),
            Op::MatMul(product) => {
                let rank = self.rank(node.outputs[0]);
                // A plain matrix has its rows first unless it is given transposed, and can only stand on the left.
                let left = !(self.carries(node, 0) && rank < 3 && product.trans_a);
                let right = !(self.carries(node, 1) && rank < 3);
                // One matrix for all rows of the batch has no dimension that is aligned with them.
                let one_for_all = |position: usize| {
                    !self.carries(node, position) && node.input(position).is_some_and(|id| self.rank(id) < 3)
                };
                left && right
                    && (0..2).all(|position| one_for_all(position) || self.aligned(node, position, rank))
                    && !self.carries(node, 2)
                    && self.aligned(node, 3, rank)
            }
            Op::LayerNorm { axis, .. } | Op::Softmax { axis, .. } | Op::CumSum { axis, .. } | Op::TopK { axis, .. } => {
                self.first_alone(node) && *axis > 0
            }
            Op::ArgReduce(reduce) => self.first_alone(node) && reduce.axis > 0,
            Op::Reduce { axes, .. } => self.first_alone(node) && !axes.contains(&0),
            Op::Transpose { perm } => perm.first() == Some(&0),
            Op::Expand => self.all_aligned(node),
            Op::Concat { axis } => *axis > 0 && self.all_aligned(node),
            Op::Split { axis } => *axis > 0,
            Op::Slice { starts, steps } => starts.first() == Some(&0) && steps.first() == Some(&1),
            Op::Pad { begins, .. } => self.first_alone(node) && begins.first() == Some(&0),
            Op::Gather { axis } => match (self.carries(node, 0), self.carries(node, 1)) {
                (true, false) => *axis > 0,
                (false, true) => *axis == 0,
                _ => false,
            },
            Op::Trilu { .. } => self.rank(node.outputs[0]) > 2,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_graph::ir::{Output, ReduceKind};
    use planforge_import;
    use planforge_modelgen::{Batch, Options, Style};
    use planforge_passes::Target;
    use planforge_types::ElementType;

    fn zoo(name: &str, batch: u32) -> Graph {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        let style = Style { batch: Batch::Fixed(batch), ..Style::default() };
        planforge_modelgen::generate(name, &Options { style, ..Options::default() }, &path).unwrap();
        let graph = planforge_import::import(&planforge_onnx::Model::open(&path).unwrap(), None).unwrap();
        planforge_passes::pipeline(graph, Target::default()).unwrap().graph
    }

    #[test]
    fn networks_that_look_at_one_picture_at_a_time_keep_rows_apart() {
        for name in ["mobilenet-v3-large", "yolo-s"] {
            assert!(computed_apart(&zoo(name, 4)), "{name}");
        }
        assert!(!computed_apart(&zoo("mobilenet-v3-large", 1)), "one row cannot be fewer");
    }

    /// `x [4, 3]` through one operator.
    fn through(op: Op, second: Option<(bool, [usize; 2])>, out: &[usize]) -> bool {
        let mut graph = Graph::default();
        let x = graph.add_value("x", ElementType::F32, &[4, 3]);
        graph.inputs.push(x);
        let mut inputs = vec![Some(x)];
        if let Some((is_input, shape)) = second {
            let id = graph.add_value("b", ElementType::F32, &shape);
            if is_input {
                graph.inputs.push(id);
            }
            inputs.push(Some(id));
        }
        let y = graph.add_value("y", ElementType::F32, out);
        graph.nodes.push(Node { op, inputs, outputs: vec![y], origins: vec![] });
        graph.outputs.push(Output { name: "y".into(), value: y });
        computed_apart(&graph)
    }

    #[test]
    fn whatever_mixes_rows_is_told() {
        use planforge_graph::ir::MatMul;
        let product = |trans_a| Op::MatMul(MatMul { trans_a, ..MatMul::default() });
        assert!(through(Op::Softmax { axis: 1, log: false }, None, &[4, 3]));
        assert!(!through(Op::Softmax { axis: 0, log: false }, None, &[4, 3]));
        assert!(through(product(false), Some((false, [3, 4])), &[4, 4]));
        assert!(!through(product(true), Some((false, [4, 4])), &[3, 4]));
        assert!(!through(product(false), Some((true, [4, 3])), &[4, 3]), "rows meet rows");
        assert!(!through(Op::Reduce { kind: ReduceKind::Sum, axes: vec![0], keep: true }, None, &[1, 3]));
        assert!(!through(Op::Transpose { perm: vec![1, 0] }, None, &[3, 4]));
        assert!(through(Op::Concat { axis: 1 }, Some((true, [4, 2])), &[4, 5]));
        assert!(!through(Op::Concat { axis: 1 }, Some((false, [4, 2])), &[4, 5]), "what those rows are is not known");
        assert!(!through(Op::Slice { starts: vec![1, 0], steps: vec![1, 1] }, None, &[3, 3]));
        assert!(!through(Op::Reshape, None, &[3, 4]));
    }
}
