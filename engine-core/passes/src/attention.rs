//! Recovers attention from products and softmax, whatever way heads were split and joined.
//!
//! Before: `q (B,H,S,D), k (B,H,D,T) -> MatMul(scale) -> Add mask -> Softmax -> MatMul v (B,H,T,E) -> y (B,H,S,E)`.
//! After: `Attention(q', k', v', mask) -> Reshape -> Transpose -> y`, where `q'` and the others are the operands with
//! heads side by side (B,S,H D), by a transpose and a reshape each.
//!
//! Models split heads by a reshape and a transpose and join them by the reverse: what is added here meets those and
//! vanishes when moves are settled. A guard against rows without any key, `Where(IsNaN(w), 0, w)` behind the softmax,
//! becomes part of it. Without heads (B,S,D) nothing is added. Scales are in the product already.

use super::edit::{Edit, both_ways, joined_origins, producer, sole_producer};
use planforge_graph::{
    ir::{Attention, Binary, DefUse, Graph, MatMul, Node, Op, Unary, ValueId},
    shape::{broadcast, is_float},
};

pub fn run(graph: &mut Graph, changes: &mut Vec<String>) {
    let found = graph.def_use();
    let mut edit = Edit::of(graph);
    for softmax in 0..graph.nodes.len() {
        let Some(matched) = matched(graph, &found, softmax) else { continue };
        replace(graph, &mut edit, &matched, changes);
    }
    edit.apply(graph);
}

/// An attention in pieces.
struct Matched {
    q: ValueId,
    k: ValueId,
    /// k is given as (.., T, D) and swapped by the product.
    k_rows: bool,
    v: ValueId,
    mask: Option<ValueId>,
    scale: f32,
    guarded: bool,
    /// All its nodes but the last product.
    parts: Vec<usize>,
    last: usize,
}

/// A product without anything added to it.
pub fn bare(node: &Node) -> Option<MatMul> {
    let Op::MatMul(product) = node.op else { return None };
    let alone = node.input(2).is_none() && node.input(3).is_none() && product.epilogue.activation.is_none();
    (alone && !product.trans_a).then_some(product)
}

fn matched(graph: &Graph, found: &DefUse, softmax: usize) -> Option<Matched> {
    let node = &graph.nodes[softmax];
    let Op::Softmax { axis, log: false } = node.op else { return None };
    let (before, weights) = (node.input(0)?, node.outputs[0]);
    let scores_shape = graph.static_shape(before)?;
    let rank = scores_shape.len();
    if axis + 1 != rank || !(3..=4).contains(&rank) || !is_float(graph.value(before).element) {
        return None;
    }
    let mut parts = vec![softmax];
    let (guarded, weights) = match guard(graph, found, weights) {
        Some((nodes, weights)) => {
            parts.extend(nodes);
            (true, weights)
        }
        None => (false, weights),
    };
    let last = found.sole_use(weights)?;
    let context = bare(&graph.nodes[last]).filter(|product| product.alpha == 1.0 && !product.trans_b)?;
    debug_assert!(!context.trans_a);
    if graph.nodes[last].input(0)? != weights {
        return None;
    }
    let v = graph.nodes[last].input(1)?;
    let (at, first) = sole_producer(graph, found, before)?;
    let (mask, scores) = match first.op {
        Op::Binary(Binary::Add) => {
            parts.push(at);
            let is_product = |id: ValueId| producer(graph, found, id).is_some_and(|(_, node)| bare(node).is_some());
            let (scores, mask) = both_ways(first).into_iter().find(|&(scores, _)| is_product(scores))?;
            (Some(mask), sole_producer(graph, found, scores)?)
        }
        _ => (None, (at, first)),
    };
    let product = bare(scores.1)?;
    parts.push(scores.0);
    let (q, k) = (scores.1.input(0)?, scores.1.input(1)?);
    // Nothing is broadcast: every head has queries, keys and values of its own.
    let shapes = [q, k, v].map(|id| graph.static_shape(id));
    let [Some(q_shape), Some(k_shape), Some(v_shape)] = &shapes else { return None };
    let lead = rank - 2;
    let own =
        [q_shape, k_shape, v_shape].iter().all(|shape| shape.len() == rank && shape[..lead] == scores_shape[..lead]);
    let mask_fits = match mask {
        None => true,
        Some(mask) => {
            let shape = graph.static_shape(mask)?;
            shape.len() <= rank && broadcast(&shape, &scores_shape).as_deref() == Some(&scores_shape)
        }
    };
    (own && mask_fits).then_some(Matched {
        q,
        k,
        k_rows: product.trans_b,
        v,
        mask,
        scale: product.alpha,
        guarded,
        parts,
        last,
    })
}

/// `Where(IsNaN(w), 0, w)`, which exporters write behind the softmax: its nodes, and what it gives.
fn guard(graph: &Graph, found: &DefUse, weights: ValueId) -> Option<([usize; 2], ValueId)> {
    let &[question, choice] = found.uses[weights.index()].as_slice() else { return None };
    let (asks, chooses) = (&graph.nodes[question], &graph.nodes[choice]);
    let zero = |id: ValueId| graph.constant(id).is_some_and(|tensor| tensor.to_f64s() == [0.0]);
    let fits = !found.is_output[weights.index()]
        && asks.op == Op::Unary(Unary::IsNan)
        && found.sole_use(asks.outputs[0]) == Some(choice)
        && chooses.op == Op::Where
        && chooses.input(0) == Some(asks.outputs[0])
        && chooses.input(1).is_some_and(zero)
        && chooses.input(2) == Some(weights);
    fits.then_some(([question, choice], chooses.outputs[0]))
}

fn replace(graph: &mut Graph, edit: &mut Edit, of: &Matched, changes: &mut Vec<String>) {
    let output = graph.nodes[of.last].outputs[0];
    let (Some(q_shape), Some(out_shape)) = (graph.static_shape(of.q), graph.static_shape(output)) else { return };
    let with_heads = q_shape.len() == 4;
    let heads = if with_heads { q_shape[1] } else { 1 };
    let name = graph.value(output).name.clone();
    let mut all = of.parts.clone();
    all.push(of.last);
    let origins = joined_origins(graph, &all);
    let mut add = |graph: &mut Graph, op: Op, from: ValueId, suffix: &str, shape: &[usize]| {
        let value = graph.add_value(format!("{name}/{suffix}"), graph.value(from).element, shape);
        let node = Node { op, inputs: vec![Some(from)], outputs: vec![value], origins: origins.clone() };
        edit.insert(of.last, node);
        value
    };
    // Brings an operand to (B, rows, heads columns).
    let mut flat = |graph: &mut Graph, id: ValueId, swapped: bool, suffix: &str| -> Option<ValueId> {
        let shape = graph.static_shape(id)?;
        let perm: &[usize] = match (with_heads, swapped) {
            (true, false) => &[0, 2, 1, 3],
            (true, true) => &[0, 3, 1, 2],
            (false, true) => &[0, 2, 1],
            (false, false) => return Some(id),
        };
        let moved: Vec<usize> = perm.iter().map(|&axis| shape[axis]).collect();
        let turned = add(graph, Op::Transpose { perm: perm.to_vec() }, id, &format!("{suffix}/rows"), &moved);
        match moved[..] {
            [batch, rows, heads, columns] => {
                Some(add(graph, Op::Reshape, turned, suffix, &[batch, rows, heads * columns]))
            }
            _ => Some(turned),
        }
    };
    let q = flat(graph, of.q, false, "queries");
    let k = flat(graph, of.k, !of.k_rows, "keys");
    let v = flat(graph, of.v, false, "values");
    // Beside heads that are not there, a mask of the batch would be taken for one of the heads.
    let mask = of.mask.map(|mask| match (with_heads, graph.static_shape(mask).as_deref()) {
        (false, Some(&[batch, rows, columns])) => add(graph, Op::Reshape, mask, "mask", &[batch, 1, rows, columns]),
        _ => mask,
    });
    let mut inputs = vec![q, k, v];
    inputs.extend(mask.map(Some));
    let op = Op::Attention(Attention { heads, scale: of.scale, guarded: of.guarded });
    changes.push(format!("{}: {}", op.kind(), origins.join(" + ")));
    of.parts.iter().for_each(|&part| edit.kill(part));
    let node = &mut graph.nodes[of.last];
    node.origins.clone_from(&origins);
    if !with_heads {
        (node.op, node.inputs) = (op, inputs);
        return;
    }
    let [batch, _, rows, columns] = out_shape[..] else { return };
    let element = graph.value(output).element;
    let joined = graph.add_value(format!("{name}/joined"), element, &[batch, rows, heads * columns]);
    let split = graph.add_value(format!("{name}/split"), element, &[batch, rows, heads, columns]);
    edit.insert(of.last, Node { op, inputs, outputs: vec![joined], origins: origins.clone() });
    edit.insert(of.last, Node { op: Op::Reshape, inputs: vec![Some(joined)], outputs: vec![split], origins });
    let node = &mut graph.nodes[of.last];
    (node.op, node.inputs) = (Op::Transpose { perm: vec![0, 2, 1, 3] }, vec![Some(split)]);
}
