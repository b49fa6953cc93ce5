//! Inputs that are changed in place: an output that is an input with some places written anew takes that input's memory.
//!
//! Before: `cache -> ScatterElements(place, new) -> next cache`, transposed on the way or not.
//! After: the scatter writes its places of the input's own memory, which is the output; nothing is copied.
//!
//! Only where nobody reads what was there before: every value from the input to the scatter has one reader. What is put
//! takes the place of what was there, so that running again on the same inputs gives the same.

use crate::program::State;
use planforge_graph::ir::{DefUse, Graph, Op, ValueId};
use std::collections::BTreeSet;

#[derive(Debug, Default)]
pub(super) struct States {
    pub pairs: Vec<State>,
    /// Results of the scatters, by value: they lie where their data lies.
    in_place: BTreeSet<ValueId>,
}

impl States {
    pub fn of(graph: &Graph, uses: &DefUse) -> Self {
        let mut states = Self::default();
        for (number, output) in graph.outputs.iter().enumerate() {
            let Some((scatter, input)) = found(graph, uses, output.value) else { continue };
            let taken = states.in_place.contains(&scatter) || states.pairs.iter().any(|state| state.input == input);
            if !taken {
                states.in_place.insert(scatter);
                states.pairs.push(State { input, output: number as u32 });
            }
        }
        states
    }

    pub fn is_in_place(&self, id: ValueId) -> bool {
        self.in_place.contains(&id)
    }
}

/// The scatter whose result `output` is, and the number of the input that it changes.
fn found(graph: &Graph, uses: &DefUse, output: ValueId) -> Option<(ValueId, u32)> {
    let mut order: Vec<usize> = (0..graph.value(output).shape.len()).collect();
    let mut at = output;
    let scatter = loop {
        let node = &graph.nodes[uses.definition[at.index()]?];
        match &node.op {
            Op::Transpose { perm } => order = order.iter().map(|&axis| perm[axis]).collect(),
            Op::Identity => {}
            Op::Named(named) if is_put(&named.name, named.text("reduction")) => break node,
            _ => return None,
        }
        at = node.input(0)?;
    };
    let result = scatter.outputs[0];
    at = scatter.input(0)?;
    while let Some(definition) = uses.definition[at.index()] {
        uses.sole_use(at)?;
        let node = &graph.nodes[definition];
        match &node.op {
            Op::Transpose { perm } => order = order.iter().map(|&axis| perm[axis]).collect(),
            Op::Identity => {}
            _ => return None,
        }
        at = node.input(0)?;
    }
    uses.sole_use(at)?;
    let input = graph.inputs.iter().position(|&id| id == at)?;
    let alike = graph.value(at).element == graph.value(output).element
        && graph.static_shape(at).is_some()
        && graph.static_shape(at) == graph.static_shape(output);
    (alike && order.iter().copied().eq(0..order.len())).then_some((result, input as u32))
}

fn is_put(name: &str, reduction: &str) -> bool {
    matches!(name, "scatter_elements" | "scatter_nd") && matches!(reduction, "none" | "")
}
