//! Recovers GELU from the operators exporters write it with.
//!
//! Before: `x -> Div sqrt(2) -> Erf -> Add 1 -> Mul x -> Mul 1/2 -> y`, or with the half taken elsewhere:
//! `Mul(Mul(x, 1/2), Add(..))`, `Mul(x, Mul(Add(..), 1/2))`; multiplication by a reciprocal counts as division.
//! The approximation by tanh likewise, its cubic argument in any order of sums, products and powers.
//! After: `x -> Gelu -> y`. The inner results must have no other reader.

use super::edit::{Edit, Replacement, both_ways, is_scalar, producer, scalar, sole_producer};
use planforge_graph::ir::{Activation, Binary, DefUse, GeluForm, Graph, Node, Op, Unary, ValueId};
use std::f64::consts::SQRT_2;

/// `sqrt(2/pi)`, which the approximation by tanh scales its argument by, and the share of the cube in it.
const SQRT_2_OVER_PI: f64 = 0.797_884_560_802_865_4;
const CUBE: f64 = 0.044715;

/// Operators between x and tanh: nobody writes a cubic in more.
const POLYNOMIAL_DEPTH_MAX: usize = 6;

pub fn run(graph: &mut Graph, changes: &mut Vec<String>) {
    let found = graph.def_use();
    let mut edit = Edit::of(graph);
    for core in 0..graph.nodes.len() {
        let Some((form, x, parts, last)) = whole(graph, &found, core) else { continue };
        let same_shape = graph.value(x).shape == graph.value(graph.nodes[last].outputs[0]).shape;
        if same_shape && !parts.iter().any(|&part| edit.is_dead(part)) {
            let op = Op::Activation(Activation::Gelu(form));
            edit.replace(graph, Replacement { parts: &parts, last, op, inputs: vec![Some(x)] }, changes);
        }
    }
    edit.apply(graph);
}

/// The form and inner nodes of `erf` or `tanh` of what GELU applies it to for this x; `None` when it is anything else.
fn inner(graph: &Graph, found: &DefUse, core: usize, x: ValueId) -> Option<(GeluForm, Vec<usize>)> {
    let argument = graph.nodes[core].input(0)?;
    match graph.nodes[core].op {
        Op::Unary(Unary::Erf) => {
            let (scaling, scaled) = sole_producer(graph, found, argument)?;
            (divided(graph, scaled, SQRT_2)? == x).then_some((GeluForm::Erf, vec![scaling, core]))
        }
        Op::Activation(Activation::Tanh) => {
            let mut parts = vec![core];
            let [c0, c1, c2, c3] = polynomial(graph, found, argument, x, &mut parts, 0)?;
            let near = |value: f64, wanted: f64| (value - wanted).abs() <= 1e-3 * wanted;
            let fits = c0 == 0.0 && c2 == 0.0 && near(c1, SQRT_2_OVER_PI) && near(c3, SQRT_2_OVER_PI * CUBE);
            parts.sort_unstable();
            parts.dedup();
            // Nobody else may read what disappears.
            let inside = parts.iter().filter(|&&part| part != core).all(|&part| {
                let value = graph.nodes[part].outputs[0].index();
                !found.is_output[value] && found.uses[value].iter().all(|user| parts.contains(user))
            });
            (fits && inside).then_some((GeluForm::Tanh, parts))
        }
        _ => None,
    }
}

/// Coefficients of a value that is a polynomial of x up to the third degree; adds the nodes it is made of.
fn polynomial(
    graph: &Graph,
    found: &DefUse,
    value: ValueId,
    x: ValueId,
    parts: &mut Vec<usize>,
    depth: usize,
) -> Option<[f64; 4]> {
    if value == x {
        return Some([0.0, 1.0, 0.0, 0.0]);
    }
    if let Some(constant) = scalar(graph, value) {
        return Some([constant, 0.0, 0.0, 0.0]);
    }
    if depth == POLYNOMIAL_DEPTH_MAX {
        return None;
    }
    let (at, node) = producer(graph, found, value)?;
    let Op::Binary(op) = node.op else { return None };
    parts.push(at);
    let a = polynomial(graph, found, node.input(0)?, x, parts, depth + 1)?;
    let b = polynomial(graph, found, node.input(1)?, x, parts, depth + 1)?;
    let is_constant = |of: [f64; 4]| of[1..] == [0.0; 3];
    match op {
        Binary::Add => Some(std::array::from_fn(|power| a[power] + b[power])),
        Binary::Sub => Some(std::array::from_fn(|power| a[power] - b[power])),
        Binary::Mul => times(a, b),
        Binary::Div if is_constant(b) && b[0] != 0.0 => Some(a.map(|c| c / b[0])),
        Binary::Pow if is_constant(b) && b[0] == 2.0 => times(a, a),
        Binary::Pow if is_constant(b) && b[0] == 3.0 => times(a, times(a, a)?),
        _ => None,
    }
}

/// The product of two polynomials, unless it is of a higher degree.
fn times(a: [f64; 4], b: [f64; 4]) -> Option<[f64; 4]> {
    let mut product = [0.0; 7];
    for (i, a) in a.into_iter().enumerate() {
        for (j, b) in b.into_iter().enumerate() {
            product[i + j] += a * b;
        }
    }
    (product[4..] == [0.0; 3]).then(|| [product[0], product[1], product[2], product[3]])
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

/// Form, input, the nodes it is made of but the last, and the last.
fn whole(graph: &Graph, found: &DefUse, core: usize) -> Option<(GeluForm, ValueId, Vec<usize>, usize)> {
    if !matches!(graph.nodes[core].op, Op::Unary(Unary::Erf) | Op::Activation(Activation::Tanh)) {
        return None;
    }
    let plus_one = found.sole_use(graph.nodes[core].outputs[0])?;
    let adds_one = |node: &Node| {
        node.op == Op::Binary(Binary::Add) && both_ways(node).iter().any(|&(_, one)| is_scalar(graph, one, 1.0))
    };
    if !adds_one(&graph.nodes[plus_one]) {
        return None;
    }
    let sum = graph.nodes[plus_one].outputs[0];
    let next = found.sole_use(sum)?;
    let with = |x: ValueId, outer: &[usize], last: usize| {
        let (form, mut parts) = inner(graph, found, core, x)?;
        parts.push(plus_one);
        parts.extend(outer);
        Some((form, x, parts, last))
    };
    // (1 + core)/2, then x.
    if divided(graph, &graph.nodes[next], 2.0) == Some(sum) {
        let half = graph.nodes[next].outputs[0];
        let last = found.sole_use(half)?;
        return with(other_factor(&graph.nodes[last], half)?, &[next], last);
    }
    let other = other_factor(&graph.nodes[next], sum)?;
    // x (1 + core), then the half.
    let product = graph.nodes[next].outputs[0];
    if let Some(last) = found.sole_use(product)
        && divided(graph, &graph.nodes[last], 2.0) == Some(product)
        && let Some(matched) = with(other, &[next], last)
    {
        return Some(matched);
    }
    // x/2 (1 + core).
    let (halving, half) = sole_producer(graph, found, other)?;
    with(divided(graph, half, 2.0)?, &[halving], next)
}
