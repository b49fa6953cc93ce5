//! Takes moves of whole rows past what is computed row by row, towards the moves that undo them.
//!
//! Before: `x (B,S,C) -> Transpose (S,B,C) -> MatMul w -> Add b -> Reshape (S,B,3,D) -> Transpose (3,B,S,D) -> y`.
//! After: `x -> MatMul w -> Add b -> Transpose (S,B,N) -> Reshape -> Transpose -> y`, whose moves become one.
//!
//! Only where another move follows: else nothing would be gained.

use super::{
    chains::Chain,
    dead,
    edit::{Edit, both_ways, joined_origins},
};
use planforge_graph::ir::{Binary, DefUse, Graph, Node, Op, ValueId};

/// Operators between two moves; an attention's projection or a transformer's whole MLP has fewer.
const MAX_DISTANCE: usize = 8;

/// Rounds in all. Moves stop at residuals, so that usual models need far fewer; it bounds the work on any other.
pub const MAX_ROUNDS: usize = 64;

pub fn run(graph: &mut Graph, changes: &mut Vec<String>) {
    // A move sinks past one operator a round.
    for _ in 0..MAX_ROUNDS {
        let found = graph.def_use();
        let mut edit = Edit::of(graph);
        let before = changes.len();
        let mut sunk = vec![false; graph.nodes.len()];
        for at in 0..graph.nodes.len() {
            let Some(operand) = by_rows(graph, at) else { continue };
            let Some(chain) = movable(graph, &found, at, operand) else { continue };
            changes.push(graph.nodes[at].origins.join(" + "));
            let origins = origins(graph, &chain, &sunk);
            swap(graph, &mut edit, at, operand, &chain, origins);
            sunk[at] = true;
        }
        edit.apply(graph);
        if changes.len() == before {
            return;
        }
        // Moves that nobody reads any more would count as readers of what they move. They live on behind the operators,
        // so that is no change of its own.
        dead::run(graph, &mut Vec::new());
    }
}

/// The model's nodes behind a chain, without what another chain left at its beginning in the same round.
fn origins(graph: &Graph, chain: &Chain, sunk: &[bool]) -> Vec<String> {
    let own: Vec<usize> = chain.nodes.iter().copied().filter(|&node| !sunk[node]).collect();
    joined_origins(graph, if own.is_empty() { &chain.nodes } else { &own })
}

/// The input whose rows the node computes one by one, everything else being the same for all rows.
fn by_rows(graph: &Graph, at: usize) -> Option<usize> {
    let node = &graph.nodes[at];
    let rank = |id: ValueId| graph.value(id).shape.len();
    let constant_of_rank = |position: usize, most: usize| match node.input(position) {
        None => true,
        Some(id) => graph.constant(id).is_some() && rank(id) <= most,
    };
    match &node.op {
        Op::MatMul(product) => {
            let plain = !product.trans_a && node.input(3).is_none() && node.input(1).is_some_and(|b| rank(b) == 2);
            (plain && constant_of_rank(1, 2) && constant_of_rank(2, 1)).then_some(0)
        }
        Op::Binary(Binary::Add | Binary::Mul) => {
            let same = |id: ValueId| graph.value(id).shape == graph.value(node.outputs[0]).shape;
            let row = |id: ValueId| graph.constant(id).is_some() && rank(id) <= 1;
            both_ways(node).iter().position(|&(x, other)| same(x) && row(other))
        }
        Op::Activation(_) => Some(0),
        Op::LayerNorm { axis, .. } => (axis + 1 == rank(node.input(0)?)).then_some(0),
        _ => None,
    }
}

/// The chain before a node's operand, if it moves whole rows and another move follows the node.
fn movable(graph: &Graph, found: &DefUse, at: usize, operand: usize) -> Option<Chain> {
    let input = graph.nodes[at].input(operand)?;
    found.sole_use(input)?;
    let chain = Chain::ending_in(graph, found, input)?;
    let (from, to) = (graph.static_shape(chain.source)?, graph.static_shape(input)?);
    let row = *from.last()?;
    // The last atom ends both orders and holds the row: nothing inside of it moves.
    let last = chain.atoms.len().checked_sub(1)?;
    let ends = chain.order.last() == Some(&last) && chain.atoms[last].is_multiple_of(row) && to.last() == Some(&row);
    (ends && row > 1 && from.len() > 1 && move_follows(graph, found, at)).then_some(chain)
}

fn move_follows(graph: &Graph, found: &DefUse, mut at: usize) -> bool {
    for _ in 0..MAX_DISTANCE {
        let Some(next) = found.sole_use(graph.nodes[at].outputs[0]) else { return false };
        if matches!(graph.nodes[next].op, Op::Reshape | Op::Transpose { .. }) {
            return true;
        }
        let reads = by_rows(graph, next).and_then(|operand| graph.nodes[next].input(operand));
        if reads != Some(graph.nodes[at].outputs[0]) {
            return false;
        }
        at = next;
    }
    false
}

/// Lets the node read the chain's source, and puts the moves behind it.
fn swap(graph: &mut Graph, edit: &mut Edit, at: usize, operand: usize, chain: &Chain, origins: Vec<String>) {
    let output = graph.nodes[at].outputs[0];
    let (Some(from), Some(to)) = (graph.static_shape(chain.source), graph.static_shape(output)) else { return };
    let (Some((&row, lead)), Some(&width)) = (from.split_last(), to.last()) else { return };
    let (name, element) = (graph.value(output).name.clone(), graph.value(output).element);
    let value = |graph: &mut Graph, what: &str, shape: &[usize]| {
        graph.add_value(format!("{name}/{what}{}", graph.values.len()), element, shape)
    };

    let computed = value(graph, "rows", &[lead, &[width]].concat());
    let mut node = Node { outputs: vec![computed], ..graph.nodes[at].clone() };
    node.inputs[operand] = Some(chain.source);
    if let Op::LayerNorm { axis, .. } = &mut node.op {
        *axis = lead.len();
    }
    edit.insert(at, node);
    let mut atoms = chain.atoms.clone();
    if let Some(last) = atoms.last_mut() {
        *last = *last / row * width;
    }
    let mut moved = computed;
    if !chain.is_reshape() {
        let turned: Vec<usize> = chain.order.iter().map(|&atom| atoms[atom]).collect();
        let split = value(graph, "split", &atoms);
        let turned = value(graph, "turned", &turned);
        let moves = [(Op::Reshape, computed, split), (Op::Transpose { perm: chain.order.clone() }, split, turned)];
        for (op, input, output) in moves {
            edit.insert(at, Node { op, inputs: vec![Some(input)], outputs: vec![output], origins: origins.clone() });
        }
        moved = turned;
    }
    graph.nodes[at] = Node { op: Op::Reshape, inputs: vec![Some(moved)], outputs: vec![output], origins };
}
