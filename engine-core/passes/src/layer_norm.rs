//! Recovers layer normalisation from the operators older exporters write it with.
//!
//! Before: `m = ReduceMean(x)`, `d = x - m`, `v = ReduceMean(d^2)`, `d / sqrt(v + epsilon) * scale + bias -> y`,
//! means over the last axes, d^2 as `Pow 2` or `d d`.
//! After: `x -> LayerNorm(scale, bias) -> y`; without a scale or bias of the axes' shape the rest stays as it is.

use super::edit::{Edit, Replacement, both_ways, is_scalar, producer, scalar};
use planforge_graph::ir::{Binary, DefUse, ElementType, Graph, Op, ReduceKind, Unary, ValueId};

pub fn run(graph: &mut Graph, changes: &mut Vec<String>) {
    let found = graph.def_use();
    let mut edit = Edit::of(graph);
    for division in 0..graph.nodes.len() {
        if graph.nodes[division].op != Op::Binary(Binary::Div) {
            continue;
        }
        let Some(mut norm) = normalized(graph, &found, division) else { continue };
        let mut last = division;
        let mut inputs = vec![Some(norm.x)];
        // Scale, then bias, each the only reader of what is before it.
        for op in [Binary::Mul, Binary::Add] {
            let Some((user, parameter)) = affine(graph, &found, &norm, last, op) else { break };
            norm.parts.push(last);
            inputs.push(Some(parameter));
            last = user;
        }
        let op = Op::LayerNorm { axis: norm.axis, epsilon: norm.epsilon };
        edit.replace(graph, Replacement { parts: &norm.parts, last, op, inputs }, changes);
    }
    edit.apply(graph);
}

struct Norm {
    x: ValueId,
    axis: usize,
    epsilon: f32,
    /// All nodes but the last.
    parts: Vec<usize>,
}

/// Node, first axis and input of a mean over the last axes.
fn mean(graph: &Graph, found: &DefUse, id: ValueId) -> Option<(usize, usize, ValueId)> {
    let (at, node) = producer(graph, found, id)?;
    let Op::Reduce { kind: ReduceKind::Mean, axes, keep: true } = &node.op else { return None };
    let x = node.input(0)?;
    let rank = graph.value(x).shape.len();
    let axis = *axes.first()?;
    axes.iter().copied().eq(axis..rank).then_some((at, axis, x))
}

/// Matches `d / sqrt(mean(d^2) + epsilon)` ending in the given division.
fn normalized(graph: &Graph, found: &DefUse, division: usize) -> Option<Norm> {
    let readers = |id: ValueId| found.uses[id.index()].len() + usize::from(found.is_output[id.index()]);
    let division = &graph.nodes[division];
    let (centred, deviation) = (division.input(0)?, division.input(1)?);
    let (root_at, root) = producer(graph, found, deviation).filter(|_| readers(deviation) == 1)?;
    let shifted = root.input(0).filter(|&id| root.op == Op::Unary(Unary::Sqrt) && readers(id) == 1)?;
    let (sum_at, sum) = producer(graph, found, shifted).filter(|(_, sum)| sum.op == Op::Binary(Binary::Add))?;
    let (variance, epsilon) =
        both_ways(sum).into_iter().find_map(|(variance, epsilon)| Some((variance, scalar(graph, epsilon)?)))?;
    let (variance_at, axis, squares) = mean(graph, found, variance).filter(|_| readers(variance) == 1)?;
    let (square_at, square) = producer(graph, found, squares).filter(|_| readers(squares) == 1)?;
    let centred_readers = match square.op {
        Op::Binary(Binary::Pow) if is_scalar(graph, square.input(1)?, 2.0) => 2,
        Op::Binary(Binary::Mul) if square.input(1) == Some(centred) => 3,
        _ => return None,
    };
    let (difference_at, difference) = producer(graph, found, centred)
        .filter(|(_, node)| node.op == Op::Binary(Binary::Sub) && square.input(0) == Some(centred))
        .filter(|_| readers(centred) == centred_readers)?;
    let (x, average) = (difference.input(0)?, difference.input(1)?);
    let (mean_at, mean_axis, mean_of) = mean(graph, found, average).filter(|_| readers(average) == 1)?;
    // The operator holds its epsilon in single precision: in double precision, only what that holds exactly.
    let held = graph.value(x).element != ElementType::F64 || f64::from(epsilon as f32) == epsilon;
    let fits = held
        && mean_axis == axis
        && mean_of == x
        && graph.value(x).shape == graph.value(centred).shape
        && graph.value(x).shape == graph.value(division.outputs[0]).shape;
    let parts = vec![mean_at, difference_at, square_at, variance_at, sum_at, root_at];
    fits.then_some(Norm { x, axis, epsilon: epsilon as f32, parts })
}

/// The node that alone reads `last` and applies a parameter of the normalised axes' shape.
fn affine(graph: &Graph, found: &DefUse, norm: &Norm, last: usize, op: Binary) -> Option<(usize, ValueId)> {
    let result = graph.nodes[last].outputs[0];
    let user = found.sole_use(result)?;
    let node = &graph.nodes[user];
    if node.op != Op::Binary(op) {
        return None;
    }
    let (_, parameter) = both_ways(node).into_iter().find(|&(mine, _)| mine == result)?;
    let fits = graph.static_shape(parameter)? == graph.static_shape(norm.x)?[norm.axis..]
        && graph.value(node.outputs[0]).shape == graph.value(norm.x).shape;
    fits.then_some((user, parameter))
}
