//! Recovers activations that multiply their argument by a gate of it.
//!
//! Before: `x -> Sigmoid -> Mul x -> y`, `x -> HardSigmoid(1/6, 1/2) -> Mul x -> y`.
//! After: `x -> Silu -> y`, `x -> HardSwish -> y`.

use super::edit::{Edit, Replacement, both_ways, sole_producer};
use planforge_graph::ir::{Activation, Binary, Graph, Op};

pub fn run(graph: &mut Graph, changes: &mut Vec<String>) {
    let found = graph.def_use();
    let mut edit = Edit::of(graph);
    for last in 0..graph.nodes.len() {
        if graph.nodes[last].op != Op::Binary(Binary::Mul) {
            continue;
        }
        let matched = both_ways(&graph.nodes[last]).into_iter().find_map(|(gate, x)| {
            let (at, node) = sole_producer(graph, &found, gate)?;
            let Op::Activation(activation) = node.op else { return None };
            (node.input(0) == Some(x) && !edit.is_dead(at)).then_some((at, gated(&activation)?, x))
        });
        if let Some((at, activation, x)) = matched {
            let op = Op::Activation(activation);
            edit.replace(graph, Replacement { parts: &[at], last, op, inputs: vec![Some(x)] }, changes);
        }
    }
    edit.apply(graph);
}

fn gated(gate: &Activation) -> Option<Activation> {
    match *gate {
        Activation::Sigmoid => Some(Activation::Silu),
        Activation::HardSigmoid { alpha, beta } if (alpha - 1.0 / 6.0).abs() < 1e-6 && beta == 0.5 => {
            Some(Activation::HardSwish)
        }
        _ => None,
    }
}
