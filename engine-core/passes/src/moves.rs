//! Merges chains of reshapes and of transposes.
//!
//! Before: `x -> Reshape -> Reshape -> y`, `x -> Transpose p -> Transpose q -> z`.
//! After: `x -> Reshape -> y`, `x -> Transpose p[q] -> z`. What nobody reads any more is left to `drop-dead`.

use super::{chains, edit::joined_origins, identity};
use planforge_graph::ir::{Graph, Op};

/// Merges, shortens and drops until nothing is left to do: a dropped transpose may bring two reshapes together.
pub fn settle(graph: &mut Graph, changes: &mut Vec<String>) {
    loop {
        let before = changes.len();
        run(graph, changes);
        chains::run(graph, changes);
        identity::run(graph, changes);
        if changes.len() == before {
            return;
        }
    }
}

pub fn run(graph: &mut Graph, changes: &mut Vec<String>) {
    let found = graph.def_use();
    for index in 0..graph.nodes.len() {
        let node = &graph.nodes[index];
        let Some(before) = node.input(0).and_then(|id| found.definition[id.index()]) else { continue };
        let first = &graph.nodes[before];
        let merged = match (&first.op, &node.op) {
            (Op::Reshape, Op::Reshape) => Op::Reshape,
            (Op::Transpose { perm: first }, Op::Transpose { perm }) => {
                Op::Transpose { perm: perm.iter().map(|&axis| first[axis]).collect() }
            }
            _ => continue,
        };
        let input = first.input(0);
        let origins = joined_origins(graph, &[before, index]);
        changes.push(origins.join(" + "));
        let node = &mut graph.nodes[index];
        (node.op, node.inputs, node.origins) = (merged, vec![input], origins);
    }
}
