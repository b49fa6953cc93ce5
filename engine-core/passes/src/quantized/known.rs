//! Questions about a graph in which constants are not computed yet.

use planforge_graph::{
    interpreter,
    ir::{Binary, DefUse, Graph, Node, Op, Tensor, ValueId},
};

/// Most elements of what is computed here: scales, zero points, biases.
const ELEMENTS_MAX: usize = 1 << 18;
/// Most operators on the way from constants.
const DEPTH_MAX: usize = 8;

/// A graph, and who uses what in it.
#[derive(Clone, Copy)]
pub struct Known<'a> {
    pub graph: &'a Graph,
    pub found: &'a DefUse,
}

impl<'a> Known<'a> {
    /// The node that defines a value.
    pub fn producer(&self, id: ValueId) -> Option<(usize, &'a Node)> {
        self.found.definition[id.index()].map(|at| (at, &self.graph.nodes[at]))
    }

    /// The only node that reads a value.
    pub fn user(&self, id: ValueId) -> Option<(usize, &'a Node)> {
        self.found.sole_use(id).map(|at| (at, &self.graph.nodes[at]))
    }

    pub fn shape(&self, id: ValueId) -> Option<Vec<usize>> {
        self.graph.static_shape(id)
    }

    /// What a small value is, when it follows from constants.
    pub fn tensor(&self, id: ValueId) -> Option<Tensor> {
        self.tensor_within(id, DEPTH_MAX)
    }

    fn tensor_within(&self, id: ValueId, depth: usize) -> Option<Tensor> {
        let small = self.shape(id)?.iter().try_fold(1usize, |count, &size| count.checked_mul(size))? <= ELEMENTS_MAX;
        if !small {
            return None;
        }
        if let Some(tensor) = self.graph.constant(id) {
            return Some(tensor.clone());
        }
        let (_, node) = self.producer(id)?;
        let depth = depth.checked_sub(1)?;
        let simple = matches!(
            node.op,
            Op::Identity
                | Op::Cast { .. }
                | Op::Reshape
                | Op::Expand
                | Op::Transpose { .. }
                | Op::Slice { .. }
                | Op::Binary(_)
                | Op::Unary(_)
                | Op::Dequantize(_)
                | Op::Quantize(_)
                | Op::Concat { .. }
        );
        if !simple || node.outputs.len() != 1 {
            return None;
        }
        let given: Option<Vec<Option<Tensor>>> =
            node.inputs.iter().map(|id| id.map_or(Some(None), |id| self.tensor_within(id, depth).map(Some))).collect();
        let given = given?;
        let given: Vec<Option<&Tensor>> = given.iter().map(Option::as_ref).collect();
        let types = interpreter::output_types(self.graph, node).ok()?;
        interpreter::run(&node.op, &given, &types).ok()?.pop()
    }

    /// The one number of a known value.
    pub fn scalar(&self, id: ValueId) -> Option<f64> {
        let count = self.shape(id)?.iter().product::<usize>();
        (count == 1).then(|| self.tensor(id)).flatten().map(|tensor| tensor.to_f64s()[0])
    }

    /// The numbers of a known value that is one, or one for each index of `axis` of a value with `rank` axes.
    pub fn list(&self, id: ValueId, rank: usize, axis: usize) -> Option<Vec<f64>> {
        if !runs_along(&self.shape(id)?, rank, axis) {
            return None;
        }
        self.tensor(id).map(|tensor| tensor.to_f64s())
    }

    /// Both operands of a function of two values, when one of them is `id`: the other.
    pub fn other(&self, node: &Node, binary: Binary, id: ValueId) -> Option<ValueId> {
        let (a, b) = (node.input(0)?, node.input(1)?);
        match node.op {
            Op::Binary(found) if found == binary && a == id && b != id => Some(b),
            Op::Binary(found) if found == binary && b == id && a != id => Some(a),
            _ => None,
        }
    }
}

/// Whether a shape, which broadcasts to one of `rank` axes, differs along `axis` alone.
pub fn runs_along(shape: &[usize], rank: usize, axis: usize) -> bool {
    let Some(missing) = rank.checked_sub(shape.len()) else { return false };
    shape.iter().enumerate().all(|(at, &size)| size == 1 || at + missing == axis)
}
