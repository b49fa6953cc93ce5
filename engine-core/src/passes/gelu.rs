//! Recovers GELU from the operators exporters write it with.
//!
//! Before: `x -> Div sqrt(2) -> Erf -> Add 1 -> Mul x -> Mul 1/2 -> y`, or with the half taken elsewhere:
//! `Mul(Mul(x, 1/2), Add(..))`, `Mul(x, Mul(Add(..), 1/2))`; multiplication by a reciprocal counts as division.
//! After: `x -> Gelu -> y`. The inner results must have no other reader.

use super::edit::{Edit, Replacement, both_ways, is_scalar, sole_producer};
use crate::ir::{Activation, Binary, DefUse, GeluForm, Graph, Node, Op, Unary, ValueId};
use std::f64::consts::SQRT_2;

pub fn run(graph: &mut Graph, changes: &mut Vec<String>) {
    let found = graph.def_use();
    let mut edit = Edit::of(graph);
    for erf in 0..graph.nodes.len() {
        if graph.nodes[erf].op != Op::Unary(Unary::Erf) {
            continue;
        }
        let Some((x, parts, last)) = whole(graph, &found, erf) else { continue };
        let same_shape = graph.value(x).shape == graph.value(graph.nodes[last].outputs[0]).shape;
        if same_shape && !parts.iter().any(|&part| edit.is_dead(part)) {
            let op = Op::Activation(Activation::Gelu(GeluForm::Erf));
            edit.replace(graph, Replacement { parts: &parts, last, op, inputs: vec![Some(x)] }, changes);
        }
    }
    edit.apply(graph);
}

/// What a node divides by `divisor`, or multiplies by its reciprocal.
fn divided(graph: &Graph, node: &Node, divisor: f64) -> Option<ValueId> {
    let (ways, constant) = match node.op {
        Op::Binary(Binary::Div) => (1, divisor),
        Op::Binary(Binary::Mul) => (2, 1.0 / divisor),
        _ => return None,
    };
    both_ways(node).into_iter().take(ways).find(|&(_, by)| is_scalar(graph, by, constant)).map(|(x, _)| x)
}

/// The other factor of a multiplication by `mine`.
fn other_factor(node: &Node, mine: ValueId) -> Option<ValueId> {
    let ways = if node.op == Op::Binary(Binary::Mul) { both_ways(node) } else { Vec::new() };
    ways.into_iter().find(|&(first, _)| first == mine).map(|(_, other)| other)
}

/// The activation's input, the nodes it is made of but the last, and the last.
fn whole(graph: &Graph, found: &DefUse, erf: usize) -> Option<(ValueId, Vec<usize>, usize)> {
    let (scaling, scaled) = sole_producer(graph, found, graph.nodes[erf].input(0)?)?;
    let x = divided(graph, scaled, SQRT_2)?;
    let plus_one = found.sole_use(graph.nodes[erf].outputs[0])?;
    let adds_one = |node: &Node| {
        node.op == Op::Binary(Binary::Add) && both_ways(node).iter().any(|&(_, one)| is_scalar(graph, one, 1.0))
    };
    if !adds_one(&graph.nodes[plus_one]) {
        return None;
    }
    let sum = graph.nodes[plus_one].outputs[0];
    let next = found.sole_use(sum)?;
    let mut parts = vec![scaling, erf, plus_one];
    // (1 + erf)/2, then x.
    if divided(graph, &graph.nodes[next], 2.0) == Some(sum) {
        let half = graph.nodes[next].outputs[0];
        let last = found.sole_use(half)?;
        parts.push(next);
        return (other_factor(&graph.nodes[last], half)? == x).then_some((x, parts, last));
    }
    let other = other_factor(&graph.nodes[next], sum)?;
    if other == x {
        // x (1 + erf), then the half.
        let product = graph.nodes[next].outputs[0];
        let last = found.sole_use(product)?;
        parts.push(next);
        return (divided(graph, &graph.nodes[last], 2.0)? == product).then_some((x, parts, last));
    }
    // x/2 (1 + erf).
    let (halving, half) = sole_producer(graph, found, other)?;
    parts.push(halving);
    (divided(graph, half, 2.0)? == x).then_some((x, parts, next))
}
