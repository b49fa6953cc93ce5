//! What the one row of a decoder's step goes through beside products and attention, where states are changed in place:
//!
//! - a normalisation that only products read is made by each of them for itself: no step, no row in memory;
//! - rotary positions are one step, whose halves a concatenation would need three for.

use super::{Lowering, Outcome, states::States};
use crate::{
    codegen::nest::indices,
    program::Norm,
    view::{Kind, View},
};
use planforge_graph::ir::{Binary, DefUse, Graph, Node, Op, ReduceKind, Unary, ValueId};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(super) struct Rows {
    /// Values that are normalisations, also under other shapes.
    norms: BTreeMap<ValueId, Normal>,
    /// Rotary positions, by number of their last node.
    turns: BTreeMap<usize, Turn>,
    /// Nodes that need no steps of their own.
    absorbed: BTreeSet<usize>,
}

/// A normalisation of one row.
#[derive(Clone, Debug)]
pub(super) struct Normal {
    pub x: ValueId,
    scale: Option<ValueId>,
    bias: Option<ValueId>,
    epsilon: f32,
    centred: bool,
}

/// `x cos + (-second half of x, first half of x) sin`.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    pub x: ValueId,
    pub cosines: ValueId,
    pub sines: ValueId,
}

/// Rows are read in vectors of this many elements.
const VECTOR: usize = 8;
const MAX_ROW: usize = crate::codegen::matvec::MAX_NORM as usize;

impl Rows {
    pub fn of(graph: &Graph, uses: &DefUse, states: &States) -> Self {
        let mut rows = Self::default();
        if states.pairs.is_empty() {
            return rows;
        }
        let found = Found { graph, uses };
        for (number, node) in graph.nodes.iter().enumerate() {
            if let Some((normal, parts)) = found.normal(number, node) {
                let result = node.outputs[0];
                let Some((values, moves)) = found.only_products(result) else { continue };
                rows.norms.extend(values.into_iter().map(|id| (id, normal.clone())));
                rows.absorbed.extend(parts.into_iter().chain(moves));
            } else if let Some((turn, parts)) = found.turn(node) {
                rows.turns.insert(number, turn);
                rows.absorbed.extend(parts);
            }
        }
        rows
    }

    pub fn normal(&self, id: ValueId) -> Option<&Normal> {
        self.norms.get(&id)
    }

    pub fn turn(&self, node: usize) -> Option<&Turn> {
        self.turns.get(&node)
    }

    pub fn absorbs(&self, node: usize) -> bool {
        self.absorbed.contains(&node)
    }
}

/// Where patterns are looked for.
struct Found<'a> {
    graph: &'a Graph,
    uses: &'a DefUse,
}

/// Operands of a binary operator, either way round.
fn both_ways(node: &Node) -> Option<[(ValueId, ValueId); 2]> {
    let (a, b) = (node.input(0)?, node.input(1)?);
    Some([(a, b), (b, a)])
}

impl<'a> Found<'a> {
    fn producer(&self, id: ValueId) -> Option<(usize, &'a Node)> {
        let number = self.uses.definition[id.index()]?;
        Some((number, &self.graph.nodes[number]))
    }

    /// The node that computes a value which one node alone reads.
    fn sole(&self, id: ValueId) -> Option<(usize, &'a Node)> {
        self.uses.sole_use(id)?;
        self.producer(id)
    }

    fn scalar(&self, id: ValueId) -> Option<f64> {
        let tensor = self.graph.constant(id)?;
        (tensor.shape().iter().product::<usize>() == 1).then(|| tensor.to_f64s()[0])
    }

    /// A row's length, of a value that is one row.
    fn row(&self, id: ValueId) -> Option<usize> {
        let shape = self.graph.static_shape(id)?;
        let last = *shape.last()?;
        let fits = shape.iter().product::<usize>() == last && last % VECTOR == 0 && (VECTOR..=MAX_ROW).contains(&last);
        (fits && Kind::of(self.graph.value(id).element).is_float()).then_some(last)
    }

    /// A normalisation that ends in this node, and all nodes it is made of.
    fn normal(&self, number: usize, node: &Node) -> Option<(Normal, Vec<usize>)> {
        match node.op {
            Op::LayerNorm { axis, epsilon } => {
                let x = node.input(0)?;
                let length = self.row(x)?;
                let whole = |id: Option<ValueId>| {
                    id.is_none_or(|id| self.graph.constant(id).is_some_and(|of| of.shape() == [length]))
                };
                let fits = axis + 1 == self.graph.value(x).shape.len() && whole(node.input(1)) && whole(node.input(2));
                let normal = Normal { x, scale: node.input(1), bias: node.input(2), epsilon, centred: true };
                fits.then(|| (normal, vec![number]))
            }
            Op::Binary(Binary::Mul) => {
                let length = self.row(node.outputs[0])?;
                both_ways(node)?.into_iter().find_map(|(scale, normal)| {
                    self.graph.constant(scale).filter(|of| of.shape() == [length])?;
                    let (x, epsilon, mut parts) = self.by_root(normal)?;
                    parts.push(number);
                    Some((Normal { x, scale: Some(scale), bias: None, epsilon, centred: false }, parts))
                })
            }
            _ => None,
        }
    }

    /// `x / sqrt(mean(x^2) + epsilon)`, as a product with the reciprocal or as a quotient.
    fn by_root(&self, id: ValueId) -> Option<(ValueId, f32, Vec<usize>)> {
        let (last, node) = self.sole(id)?;
        let mut parts = vec![last];
        let ways = match node.op {
            Op::Binary(Binary::Mul) => both_ways(node)?.to_vec(),
            Op::Binary(Binary::Div) => vec![(node.input(0)?, node.input(1)?)],
            _ => return None,
        };
        let divides = node.op == Op::Binary(Binary::Div);
        ways.into_iter().find_map(|(x, by)| {
            let root = if divides {
                by
            } else {
                let (inverse, node) = self.sole(by)?;
                parts.truncate(1);
                parts.push(inverse);
                match node.op {
                    Op::Unary(Unary::Reciprocal) => node.input(0)?,
                    Op::Binary(Binary::Div) if self.scalar(node.input(0)?) == Some(1.0) => node.input(1)?,
                    _ => return None,
                }
            };
            let (root_at, root) = self.sole(root).filter(|(_, root)| root.op == Op::Unary(Unary::Sqrt))?;
            let (sum_at, sum) = self.sole(root.input(0)?).filter(|(_, sum)| sum.op == Op::Binary(Binary::Add))?;
            let (mean, epsilon) =
                both_ways(sum)?.into_iter().find_map(|(mean, epsilon)| Some((mean, self.scalar(epsilon)?)))?;
            let (mean_at, mean) = self.sole(mean)?;
            let Op::Reduce { kind: ReduceKind::Mean, axes, keep: true } = &mean.op else { return None };
            let rank = self.graph.value(x).shape.len();
            let (square_at, square) = self.sole(mean.input(0)?)?;
            let squares = match square.op {
                Op::Binary(Binary::Pow) => self.scalar(square.input(1)?) == Some(2.0),
                Op::Binary(Binary::Mul) => square.input(1) == Some(x),
                _ => false,
            };
            let fits = squares && square.input(0) == Some(x) && axes[..] == [rank - 1] && self.row(x).is_some();
            let mut all = parts.clone();
            all.extend([root_at, sum_at, mean_at, square_at]);
            fits.then_some((x, epsilon as f32, all))
        })
    }

    /// When products of one row with constants alone read a value: it and what reshapes make of it, and those reshapes.
    fn only_products(&self, id: ValueId) -> Option<(Vec<ValueId>, Vec<usize>)> {
        let length = self.row(id)?;
        let (mut values, mut moves) = (vec![id], Vec::new());
        let readers = &self.uses.uses[id.index()];
        if self.uses.is_output[id.index()] || readers.is_empty() {
            return None;
        }
        for &number in readers {
            let node = &self.graph.nodes[number];
            match &node.op {
                Op::Reshape | Op::Identity if self.row(node.outputs[0]) == Some(length) => {
                    let (more, further) = self.only_products(node.outputs[0])?;
                    values.extend(more);
                    moves.push(number);
                    moves.extend(further);
                }
                Op::MatMul(product) => {
                    let weights = self.graph.constant(node.input(1)?)?;
                    let first = node.input(0) == Some(id) && [1, 2, 3].iter().all(|&at| node.input(at) != Some(id));
                    let ranks = self.graph.value(id).shape.len() >= 2 && weights.rank() == 2;
                    if !first || !ranks || product.trans_a || !Kind::of(weights.element()).is_float() {
                        return None;
                    }
                }
                _ => return None,
            }
        }
        Some((values, moves))
    }

    /// Rotary positions that end in this node, and the nodes before it that they are made of.
    fn turn(&self, node: &Node) -> Option<(Turn, Vec<usize>)> {
        if node.op != Op::Binary(Binary::Add) {
            return None;
        }
        let shape = self.graph.static_shape(node.outputs[0])?;
        let last = shape.len().checked_sub(1)?;
        let size = shape[last];
        both_ways(node)?.into_iter().find_map(|(along, across)| {
            let (along_at, along) = self.sole(along).filter(|(_, node)| node.op == Op::Binary(Binary::Mul))?;
            let (across_at, across) = self.sole(across).filter(|(_, node)| node.op == Op::Binary(Binary::Mul))?;
            let (other_at, other, sines) = both_ways(across)?.into_iter().find_map(|(other, sines)| {
                let (at, node) = self.sole(other)?;
                (node.op == Op::Concat { axis: last }).then_some((at, node, sines))
            })?;
            let [Some(negated), Some(first)] = other.inputs[..] else { return None };
            let (negated_at, negated) = self.sole(negated).filter(|(_, node)| node.op == Op::Unary(Unary::Neg))?;
            let half = |id: ValueId, start: usize| -> Option<(usize, ValueId)> {
                let (at, node) = self.sole(id)?;
                let Op::Slice { starts, steps } = &node.op else { return None };
                let x = node.input(0)?;
                let mut wanted = vec![0; shape.len()];
                wanted[last] = start;
                let fits = *starts == wanted
                    && steps.iter().all(|&step| step == 1)
                    && self.graph.static_shape(x)? == shape
                    && self.graph.static_shape(id)?[last] * 2 == size;
                fits.then_some((at, x))
            };
            let (first_at, x) = half(first, 0)?;
            let (second_at, same) = half(negated.input(0)?, size / 2)?;
            let cosines = both_ways(along)?.into_iter().find_map(|(mine, other)| (mine == x).then_some(other))?;
            let parts = vec![along_at, across_at, other_at, negated_at, first_at, second_at];
            (same == x && size % 2 == 0).then_some((Turn { x, cosines, sines }, parts))
        })
    }
}

impl Lowering<'_> {
    /// The row that a product reads, and what it does to it first.
    pub(super) fn normalised_row(&mut self, normal: &Normal) -> Outcome<(View, Norm)> {
        let x = self.view(normal.x)?;
        let x = self.aligned_rows(x)?;
        let mut parameter = |id: Option<ValueId>| -> Outcome<Option<View>> {
            let Some(id) = id else { return Ok(None) };
            let dims = self.dims(id)?;
            self.constant(id, self.float, "rows", &dims, |tensor| tensor.to_f64s()).map(Some)
        };
        let (scale, bias) = (parameter(normal.scale)?, parameter(normal.bias)?);
        Ok((x, Norm { epsilon: normal.epsilon, centred: normal.centred, scale, bias }))
    }

    pub(super) fn turned(&mut self, node: &Node, turn: &Turn) -> Outcome<()> {
        let dims = self.dims(node.outputs[0])?;
        let along = |view: View| view.broadcast(&dims).ok_or("its angles do not broadcast");
        let x = self.view(turn.x)?;
        let (cosines, sines) = (along(self.view(turn.cosines)?)?, along(self.view(turn.sines)?)?);
        let rank = dims.len();
        let half = dims[rank - 1] / 2;
        let (place, leading) = (indices(rank), indices(rank - 1));
        let body = format!(
            "const int at = i{last} < {half} ? i{last} + {half} : i{last} - {half};\nconst auto other = X0({leading}, at);\n\
             put(Y({place}), X0({place}) * X1({place}) + (i{last} < {half} ? -other : other) * X2({place}));",
            last = rank - 1,
        );
        self.nest_of_result(node, "rotary", &[x, cosines, sines], &body)
    }
}
