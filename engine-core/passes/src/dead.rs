//! Drops nodes whose results nobody reads.
//!
//! Before: `x -> Relu -> y` and `x -> Exp -> z`, only y an output. After: `x -> Relu -> y`.

use super::edit::Edit;
use planforge_graph::ir::Graph;

pub fn run(graph: &mut Graph, changes: &mut Vec<String>) {
    let mut wanted = vec![false; graph.values.len()];
    for output in &graph.outputs {
        wanted[output.value.index()] = true;
    }
    let mut edit = Edit::of(graph);
    for (index, node) in graph.nodes.iter().enumerate().rev() {
        if node.outputs.iter().any(|id| wanted[id.index()]) {
            node.inputs.iter().flatten().for_each(|id| wanted[id.index()] = true);
        } else {
            edit.kill(index);
            changes.push(node.origins.join(" + "));
        }
    }
    edit.apply(graph);
}
