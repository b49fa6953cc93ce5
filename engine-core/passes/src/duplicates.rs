//! Computes equal things once.
//!
//! Before: `x -> Transpose -> a`, `x -> Transpose -> b`. After: `x -> Transpose -> a`, readers of b read a.

use super::edit::Edit;
use planforge_graph::ir::{Graph, ValueId};
use std::collections::BTreeMap;

pub fn run(graph: &mut Graph, changes: &mut Vec<String>) {
    let mut edit = Edit::of(graph);
    let mut stands_for: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        let inputs: Vec<Option<ValueId>> =
            node.inputs.iter().map(|id| id.map(|id| stands_for.get(&id).copied().unwrap_or(id))).collect();
        // The shapes belong to the key: a reshape's target is nowhere else.
        let types: Vec<_> = node.outputs.iter().map(|&id| (graph.value(id).element, &graph.value(id).shape)).collect();
        let key = format!("{:?} {inputs:?} {types:?}", node.op);
        match seen.get(&key) {
            None => {
                seen.insert(key, index);
            }
            Some(&first) => {
                changes.push(node.origins.join(" + "));
                edit.kill(index);
                for (&from, &to) in node.outputs.iter().zip(&graph.nodes[first].outputs) {
                    stands_for.insert(from, to);
                    edit.redirect(from, to);
                }
            }
        }
    }
    edit.apply(graph);
}
