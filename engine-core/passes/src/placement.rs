//! Finds values that need no memory of their own because they can lie inside others.
//!
//! Before: `a -> Concat(a, b) -> c`, `x -> Split -> p, q`: four copies.
//! After: a and b are written straight into their parts of c; p and q are read where they lie in x.
//!
//! The graph stays as it is. A backend whose kernels take strides follows this, one whose kernels do not copies.

use planforge_graph::ir::{Graph, Node, Op, ValueId};

/// Where a value lies in another: at these starts, one per axis, with the strides of the whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub whole: ValueId,
    pub starts: Vec<usize>,
}

/// Places of all values of a graph that have one.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    places: Vec<Option<Place>>,
}

impl Placement {
    /// No value lies in another.
    pub fn none(graph: &Graph) -> Self {
        Self { places: vec![None; graph.values.len()] }
    }

    /// Finds the places in a graph of static shapes. Inputs, outputs and constants keep memory of their own.
    pub fn find(graph: &Graph) -> Self {
        let mut found = Self::none(graph);
        let uses = graph.def_use();
        let movable = |id: ValueId| uses.definition[id.index()].is_some() && !uses.is_output[id.index()];
        for node in &graph.nodes {
            match &node.op {
                Op::Split { axis } => found.parts(graph, node, *axis, &movable),
                Op::Slice { starts, steps } if steps.iter().all(|&step| step == 1) => {
                    if let Some(whole) = node.input(0).filter(|id| !graph.constants.contains_key(id)) {
                        let output = node.outputs[0];
                        if movable(output) {
                            found.places[output.index()] = Some(Place { whole, starts: starts.clone() });
                        }
                    }
                }
                Op::Concat { axis } => found.joined(graph, node, *axis, &movable),
                _ => (),
            }
        }
        found
    }

    /// Where `id` lies in another value; `None` when it has memory of its own.
    pub fn of(&self, id: ValueId) -> Option<&Place> {
        self.places[id.index()].as_ref()
    }

    /// The outermost value that `id` lies in, and its starts there.
    pub fn outermost(&self, id: ValueId) -> Option<Place> {
        let mut place = self.of(id)?.clone();
        while let Some(outer) = self.of(place.whole) {
            place.starts.iter_mut().zip(&outer.starts).for_each(|(start, outer)| *start += outer);
            place.whole = outer.whole;
        }
        Some(place)
    }

    /// How many values lie in others.
    pub fn len(&self) -> usize {
        self.places.iter().flatten().count()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn parts(&mut self, graph: &Graph, node: &Node, axis: usize, movable: &dyn Fn(ValueId) -> bool) {
        let Some(whole) = node.input(0).filter(|id| !graph.constants.contains_key(id)) else { return };
        let mut start = 0;
        for &output in &node.outputs {
            let Some(shape) = graph.static_shape(output) else { return };
            let mut starts = vec![0; shape.len()];
            starts[axis] = start;
            start += shape[axis];
            if movable(output) {
                self.places[output.index()] = Some(Place { whole, starts });
            }
        }
    }

    fn joined(&mut self, graph: &Graph, node: &Node, axis: usize, movable: &dyn Fn(ValueId) -> bool) {
        let (whole, mut start) = (node.outputs[0], 0);
        for &input in node.inputs.iter().flatten() {
            let Some(shape) = graph.static_shape(input) else { return };
            let mut starts = vec![0; shape.len()];
            starts[axis] = start;
            start += shape[axis];
            let once = node.inputs.iter().flatten().filter(|&&other| other == input).count() == 1;
            // What reshapes share their memory with must stay in one piece.
            if once && movable(input) && self.of(input).is_none() && !reshaped(graph, input) {
                self.places[input.index()] = Some(Place { whole, starts });
            }
        }
    }
}

/// Whether `id` is a reshape, or one reads it: the two lie in the same memory.
fn reshaped(graph: &Graph, id: ValueId) -> bool {
    let moves = |node: &&Node| matches!(node.op, Op::Reshape | Op::Identity);
    graph.nodes.iter().filter(moves).any(|node| node.outputs.contains(&id) || node.input(0) == Some(id))
}
