//! Which values are quantised: where a backend computes in integers, and no further.

use crate::{
    attention::{Attention, attentions, scaled_by_one_number},
    layers::Layer,
    net::{Net, is_standard},
};
use planforge_onnx::proto::NodeProto;
use planforge_types::preparation::Target;
use std::collections::{BTreeMap, BTreeSet};

/// Who reads a value after its trip through int8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readers {
    All,
    /// These nodes, by index.
    Some(BTreeSet<usize>),
}

/// The values to quantise, with their readers; and values that share the scale of another.
#[derive(Clone, Debug, Default)]
pub struct Places {
    pub points: BTreeMap<String, Readers>,
    /// A value and the one whose scale it takes: moved numbers need no other, and joined ones the widest of all.
    pub shared: BTreeMap<String, String>,
    /// Of those the ones whose own numbers do not widen it.
    pub cut: BTreeSet<String>,
}

impl Places {
    /// The values that share one scale with `value`, itself among them.
    pub fn group(&self, value: &str) -> String {
        let mut root = value;
        while let Some(next) = self.shared.get(root) {
            root = next;
        }
        root.to_owned()
    }

    fn add(&mut self, value: &str, reader: Option<usize>) {
        match (self.points.get_mut(value), reader) {
            (Some(Readers::Some(readers)), Some(reader)) => {
                readers.insert(reader);
            }
            (Some(Readers::All), Some(_)) => {}
            (_, None) => {
                self.points.insert(value.to_owned(), Readers::All);
            }
            (None, Some(reader)) => {
                self.points.insert(value.to_owned(), Readers::Some(BTreeSet::from([reader])));
            }
        }
    }

    fn share(&mut self, value: &str, with: &str) {
        let (from, to) = (self.group(value), self.group(with));
        if from != to {
            self.shared.insert(from, to);
        }
    }
}

/// Operators that only move numbers: what is quantised before them is so behind them.
pub const MOVES: [&str; 8] =
    ["MaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Identity", "Slice"];
/// Those that average: their result takes a scale of its own.
const AVERAGES: [&str; 2] = ["AveragePool", "GlobalAveragePool"];

/// Chooses the values for `layers`, which are those that become integers.
pub fn places(net: &Net, layers: &[&Layer], target: Target) -> Places {
    let mut places = Places::default();
    match target {
        Target::TensorRt => sparse(net, layers, &mut places),
        _ => dense(net, layers, target, &mut places),
    }
    places
}

/// The activation that alone reads `value`, by index: both run as one.
pub fn activation_behind(
    net: &Net,
    readers: &BTreeMap<&str, Vec<usize>>,
    fixed: &BTreeSet<String>,
    value: &str,
) -> Option<usize> {
    let [at] = readers.get(value)?[..] else { return None };
    let node = &net.graph().node[at];
    let fused = is_standard(&node.domain) && matches!(node.op_type.as_str(), "Relu" | "Clip") && node.input[0] == value;
    (fused && net.is_single(value) && !fixed.contains(value)).then_some(at)
}

/// The value behind the activation that follows at once, where nobody else reads what is before it: both run as one.
fn behind_activation(net: &Net, readers: &BTreeMap<&str, Vec<usize>>, fixed: &BTreeSet<String>, value: &str) -> String {
    let mut value = value.to_owned();
    while let Some([at]) = readers.get(value.as_str()).map(|all| &all[..]) {
        let node = &net.graph().node[*at];
        // The bias behind a product, or an activation.
        let is_bias = node.op_type == "Add" && node.input.iter().any(|name| net.initializer(name).is_some());
        let fused = is_bias && !fixed.contains(&value) || activation_behind(net, readers, fixed, &value).is_some();
        if !fused {
            break;
        }
        value.clone_from(&node.output[0]);
    }
    value
}

/// Around every layer and everything between layers that integers pass through.
fn dense(net: &Net, layers: &[&Layer], target: Target, places: &mut Places) {
    let (readers, fixed) = (net.readers(), net.fixed_names());
    let chosen: BTreeSet<usize> = layers.iter().map(|layer| layer.node).collect();
    let mut results: BTreeMap<String, &Layer> = BTreeMap::new();
    for layer in layers {
        places.add(&layer.input, None);
        results.insert(behind_activation(net, &readers, &fixed, &layer.output), layer);
    }
    let attended = match target {
        Target::Cpu => attended(net, (&readers, &fixed), &chosen, &results),
        _ => Vec::new(),
    };
    let goes_through: BTreeSet<usize> = attended.iter().flat_map(|of| [of.scores, of.context]).collect();
    let continues = |at: usize| goes_through.contains(&at) || continues(net, &chosen, at);
    for of in &attended {
        for value in [&of.queries, &of.keys, &of.values, &of.weights, &of.result] {
            places.add(value, None);
        }
    }
    for (at, node) in net.graph().node.iter().enumerate() {
        let Some(output) = node.output.first().filter(|_| is_standard(&node.domain) && !chosen.contains(&at)) else {
            continue;
        };
        let quantised = |name: &str| places.points.contains_key(name) || results.contains_key(name);
        let op = node.op_type.as_str();
        let behind = behind_activation(net, &readers, &fixed, output);
        if op == "Add" && is_sum_of_two(net, at) && node.input.iter().any(|name| quantised(name)) {
            node.input.iter().for_each(|name| places.add(name, None));
            if !fixed.contains(&behind) {
                places.add(&behind, None);
            }
        } else if target == Target::OnnxRuntime && is_gate(net, at) && node.input.iter().all(|name| quantised(name)) {
            node.input.iter().for_each(|name| places.add(name, None));
            if !fixed.contains(output) {
                places.add(output, None);
            }
        } else if op == "Concat"
            && node.input.iter().any(|name| quantised(name))
            && node.input.iter().all(|name| net.is_single(name))
        {
            let joined = node.input.iter().filter(|name| net.initializer(name).is_none());
            joined.clone().for_each(|name| places.add(name, None));
            if !fixed.contains(&behind) {
                places.add(&behind, None);
                // Its kernel copies bytes of its own scale, and looks all others up one by one. What nobody else reads has
                // that scale behind it in any case; what shares another's scale already keeps it.
                let alone = |name: &&String| readers.get(name.as_str()).is_some_and(|all| all.len() == 1);
                if target == Target::OnnxRuntime && behind == *output {
                    let own: Vec<&String> = joined.filter(alone).filter(|name| places.group(name) == ***name).collect();
                    for name in own.into_iter().filter(|name| !fixed.contains(*name)) {
                        places.share(name, output);
                        places.cut.insert(name.clone());
                    }
                }
            }
        } else if (MOVES.contains(&op) || AVERAGES.contains(&op))
            && quantised(&node.input[0])
            && net.is_single(output)
            && node.output.len() == 1
        {
            let goes_on = readers.get(output.as_str()).is_some_and(|all| all.iter().any(|at| continues(*at)));
            if goes_on && !fixed.contains(output) {
                places.add(&node.input[0], None);
                places.add(output, None);
                if MOVES.contains(&op) {
                    places.share(output, &node.input[0].clone());
                }
            }
        }
    }
    // What a layer gives is quantised where a fusion wants it: always behind convolutions, else where integers go on.
    for (value, layer) in results {
        let goes_on = readers.get(value.as_str()).is_some_and(|all| all.iter().any(|at| continues(*at)));
        if !fixed.contains(&value) && (goes_on || layer.op_type == "Conv") {
            places.add(&value, None);
        }
    }
}

/// The attentions between layers that are integers: what they read was made by such layers, and what they give is read by
/// one. Where a layer of them is not, neither are the products.
fn attended(
    net: &Net,
    (readers, fixed): (&BTreeMap<&str, Vec<usize>>, &BTreeSet<String>),
    chosen: &BTreeSet<usize>,
    results: &BTreeMap<String, &Layer>,
) -> Vec<Attention> {
    let makers = net.makers();
    let nodes = &net.graph().node;
    let moved = |node: &NodeProto| is_standard(&node.domain) && MOVES.contains(&node.op_type.as_str());
    let made = |value: &str| {
        let mut value = value;
        while !results.contains_key(value) {
            let Some(node) = makers.get(value).map(|at| &nodes[*at]) else { return false };
            value = match scaled_by_one_number(net, node) {
                Some(before) => before,
                None if moved(node) => &node.input[0],
                None => return false,
            };
        }
        true
    };
    let read = |value: &str| {
        let mut value = value;
        while let Some([at]) = readers.get(value).map(|all| &all[..]) {
            if chosen.contains(at) {
                return true;
            }
            if !moved(&nodes[*at]) || fixed.contains(value) {
                return false;
            }
            value = &nodes[*at].output[0];
        }
        false
    };
    let mut all = attentions(net, readers, fixed);
    all.retain(|of| [&of.queries, &of.keys, &of.values].into_iter().all(|value| made(value)) && read(&of.result));
    all
}

/// Whether integers may go on through this node.
fn continues(net: &Net, chosen: &BTreeSet<usize>, at: usize) -> bool {
    let op = net.graph().node[at].op_type.as_str();
    chosen.contains(&at) || MOVES.contains(&op) || AVERAGES.contains(&op) || op == "Concat" || is_sum_of_two(net, at)
}

/// What ONNX Runtime has kernels over bytes for beside sums: the gates of activations and of channels.
fn is_gate(net: &Net, at: usize) -> bool {
    let node = &net.graph().node[at];
    let computed = |name: &String| net.initializer(name).is_none() && net.is_single(name);
    match node.op_type.as_str() {
        "Sigmoid" => node.input.iter().all(computed),
        "Mul" => node.input.len() == 2 && node.input.iter().all(computed),
        _ => false,
    }
}

/// A sum of two computed values of one shape: a residual connection.
fn is_sum_of_two(net: &Net, at: usize) -> bool {
    let node = &net.graph().node[at];
    if node.op_type != "Add" || node.input.len() != 2 {
        return false;
    }
    let [a, b] = [&node.input[0], &node.input[1]];
    let stored = |name: &str| net.initializer(name).is_some();
    a != b && !stored(a) && !stored(b) && net.is_single(a) && net.is_single(b) && net.shape(a) == net.shape(b)
}

/// Where a layer reads, and on the other branch of the sum that follows it at once.
fn sparse(net: &Net, layers: &[&Layer], places: &mut Places) {
    let (readers, fixed) = (net.readers(), net.fixed_names());
    for layer in layers {
        places.add(&layer.input, Some(layer.node));
    }
    let outputs: BTreeSet<&str> = layers.iter().map(|layer| layer.output.as_str()).collect();
    for at in 0..net.graph().node.len() {
        if !is_sum_of_two(net, at) {
            continue;
        }
        let node = &net.graph().node[at];
        let alone = |name: &str| {
            outputs.contains(name) && !fixed.contains(name) && readers.get(name).is_some_and(|all| all.len() == 1)
        };
        // With two layers before it, the second takes the sum in; the first is its other branch.
        let other = match [alone(&node.input[0]), alone(&node.input[1])] {
            [_, true] => &node.input[0],
            [true, false] => &node.input[1],
            _ => continue,
        };
        places.add(other, Some(at));
    }
    // What is joined takes one scale, so that joining moves bytes and nothing else.
    for node in net.graph().node.iter().filter(|node| node.op_type == "Concat") {
        let quantised = |name: &String| places.points.contains_key(name);
        if node.output.first().is_some_and(quantised) {
            let others: Vec<String> = node.input.iter().filter(|name| quantised(name)).cloned().collect();
            others.iter().for_each(|name| places.share(name, &node.output[0]));
        }
    }
}
