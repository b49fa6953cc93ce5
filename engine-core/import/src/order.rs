//! Topological order of a model's nodes.

use planforge_onnx::proto::NodeProto;
use std::collections::{BTreeMap, BTreeSet};

/// Indices of nodes so that each comes after those it reads from; the model's order wherever it allows.
/// Otherwise the indices of one cycle, its first node repeated at the end.
pub fn sort(nodes: &[NodeProto]) -> Result<Vec<usize>, Vec<usize>> {
    let mut producer: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, node) in nodes.iter().enumerate() {
        for name in node.output.iter().filter(|name| !name.is_empty()) {
            producer.entry(name).or_insert(index);
        }
    }
    let sources = |index: usize| -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        read_by(&nodes[index], &mut |name| found.extend(producer.get(name).copied()));
        found
    };
    let mut waits = vec![0usize; nodes.len()];
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for (index, waits) in waits.iter_mut().enumerate() {
        for source in sources(index) {
            *waits += 1;
            readers[source].push(index);
        }
    }
    let mut ready: BTreeSet<usize> = (0..nodes.len()).filter(|&index| waits[index] == 0).collect();
    let mut order = Vec::with_capacity(nodes.len());
    while let Some(index) = ready.pop_first() {
        order.push(index);
        for &reader in &readers[index] {
            waits[reader] -= 1;
            if waits[reader] == 0 {
                ready.insert(reader);
            }
        }
    }
    match (0..nodes.len()).find(|&index| waits[index] > 0) {
        None => Ok(order),
        Some(start) => Err(cycle_from(start, &waits, sources)),
    }
}

/// Every name a node reads, those its subgraphs take from around them included.
pub fn read_by<'a>(node: &'a NodeProto, visit: &mut dyn FnMut(&'a str)) {
    node.input.iter().for_each(|name| visit(name));
    for attribute in &node.attribute {
        for graph in attribute.g.as_deref().into_iter().chain(&attribute.graphs) {
            let own = graph.input.iter().map(|input| &input.name);
            let own = own.chain(graph.initializer.iter().map(|tensor| &tensor.name));
            let own: BTreeSet<&str> =
                own.chain(graph.node.iter().flat_map(|node| &node.output)).map(String::as_str).collect();
            let mut outside = |name: &'a str| {
                if !own.contains(name) {
                    visit(name);
                }
            };
            graph.node.iter().for_each(|node| read_by(node, &mut outside));
            graph.output.iter().for_each(|output| outside(&output.name));
        }
    }
}

/// Walks node to ones it waits for until a node comes twice.
fn cycle_from(start: usize, waits: &[usize], sources: impl Fn(usize) -> BTreeSet<usize>) -> Vec<usize> {
    let mut path = vec![start];
    let mut place = BTreeMap::from([(start, 0)]);
    loop {
        let Some(next) = sources(path[path.len() - 1]).into_iter().find(|&source| waits[source] > 0) else {
            return path;
        };
        if let Some(&first) = place.get(&next) {
            // Found against the direction of the data; give it in that direction.
            let mut cycle = path.split_off(first);
            cycle.push(next);
            cycle.reverse();
            return cycle;
        }
        place.insert(next, path.len());
        path.push(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(inputs: &[&str], outputs: &[&str]) -> NodeProto {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        NodeProto { input: names(inputs), output: names(outputs), ..NodeProto::default() }
    }

    #[test]
    fn nodes_keep_their_order_and_move_only_behind_what_they_read() {
        let nodes = [node(&["b"], &["c"]), node(&["x"], &["a"]), node(&["a"], &["b"]), node(&["x"], &["d"])];
        assert_eq!(sort(&nodes), Ok(vec![1, 2, 0, 3]));
    }

    #[test]
    fn a_cycle_is_given_in_the_direction_of_its_data() {
        let nodes = [node(&["x"], &["a"]), node(&["a", "d"], &["b"]), node(&["b"], &["c"]), node(&["c"], &["d"])];
        let cycle = sort(&nodes).unwrap_err();
        assert_eq!(cycle.first(), cycle.last());
        assert_eq!(cycle.len(), 4);
        for pair in cycle.windows(2) {
            assert!(nodes[pair[1]].input.contains(&nodes[pair[0]].output[0]), "{cycle:?}");
        }
        assert_eq!(sort(&[node(&["a"], &["a"])]), Err(vec![0, 0]));
    }
}
