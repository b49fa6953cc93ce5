//! Ensembles of decision trees.
//!
//! Nodes of all trees lie in one list, each a line of [`NODE`] integers: mode, feature, the node behind a condition that
//! holds, the node behind one that does not, and whether a missing value (NaN) counts as holding. A leaf has the first
//! of its weights and their number in place of the two nodes. Nodes may be shared; they make no circle.

use super::Entry;
use crate::{
    ir::{ElementType, NamedOp, Tensor},
    reference::{Inputs, OpError, gather::integers, numbers::Numbers},
    shape::{Given, ShapeError, TensorType, attribute, mismatch, require},
};

/// Integers of one node.
pub const NODE: usize = 5;

/// What a node asks of its feature, by number; the last is a leaf.
pub const MODES: [&str; 7] = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "LEAF"];

/// The number of leaves in [`MODES`].
pub const LEAF: i64 = 6;

/// How the leaves that a row comes to are brought together.
pub const AGGREGATES: [&str; 4] = ["SUM", "AVERAGE", "MIN", "MAX"];

pub(super) const ENTRIES: &[Entry] = &[Entry { name: "trees", takes_empty: true, infer: trees_type, run: trees }];

/// `[x (N,F, f32 or f64), roots (T, integers), nodes (M,5, integers), thresholds (M), leaf targets (L, integers), leaf
/// weights (L)]` -> scores (N, targets) of the type of x, and where `presence` is set which of them some leaf gave.
fn trees_type(named: &NamedOp, given: &Given<'_>, _: &[Vec<usize>]) -> Result<Vec<TensorType>, ShapeError> {
    let x = given.float(0)?;
    let rows = match x.shape[..] {
        [rows, _] if matches!(x.element, ElementType::F32 | ElementType::F64) => rows,
        _ => return Err(given.rank_error(0, "2 axes of f32 or f64 are needed".into())),
    };
    let (roots, nodes, targets) = (given.integer(1)?, given.integer(2)?, given.integer(4)?);
    let (thresholds, weights) = (given.get(3)?, given.get(5)?);
    given.same_element(0, 3)?;
    given.same_element(0, 5)?;
    require(roots.rank() == 1, || given.rank_error(1, "1 axis is needed".into()))?;
    let [count, NODE] = nodes.shape[..] else { return Err(given.rank_error(2, format!("{NODE} columns are needed"))) };
    require(thresholds.shape == [count], || mismatch("thresholds", &thresholds.shape, &nodes.shape))?;
    require(targets.rank() == 1 && targets.shape == weights.shape, || {
        mismatch("leaf weights", &weights.shape, &targets.shape)
    })?;
    require(AGGREGATES.contains(&named.text("aggregate")), || {
        attribute("aggregate", named.text("aggregate"), &x.shape)
    })?;
    let wide = named.size("targets");
    require((1..=1 << 20).contains(&wide), || attribute("targets", wide, &x.shape))?;
    let mut types = vec![TensorType::new(x.element, [rows, wide])];
    if named.flag("presence") {
        types.push(TensorType::new(ElementType::Bool, [rows, wide]));
    }
    Ok(types)
}

/// Whether a value meets the condition of a branch; a missing one meets none.
fn meets(mode: i64, value: f64, threshold: f64) -> bool {
    match mode {
        0 => value <= threshold,
        1 => value < threshold,
        2 => value >= threshold,
        3 => value > threshold,
        4 => value == threshold,
        _ => value != threshold,
    }
}

fn trees(named: &NamedOp, inputs: &Inputs<'_>, outputs: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
    let op = "trees";
    let x = inputs.get(0)?;
    let columns = x.shape()[1];
    let (x, thresholds, weights) = (x.to_f64s(), inputs.get(3)?.to_f64s(), inputs.get(5)?.to_f64s());
    let (roots, nodes) = (integers(op, inputs.get(1)?)?, integers(op, inputs.get(2)?)?);
    let leaf_targets = integers(op, inputs.get(4)?)?;
    let within = |index: i64, size: usize| {
        let place = usize::try_from(index).ok().filter(|&place| place < size);
        place.ok_or(OpError::Index { op, index, size })
    };
    let wide = named.size("targets");
    let [rows, _] = outputs[0].shape[..] else { return Ok(Vec::new()) };
    let aggregate = named.text("aggregate");
    let (mut scores, mut present) = (vec![0f64; rows * wide], vec![0u8; rows * wide]);
    for row in 0..rows {
        for &root in &roots {
            let mut at = within(root, thresholds.len())?;
            // A path through what makes no circle visits no node twice.
            for _ in 0..thresholds.len() {
                let [mode, feature, yes, no, missing] = nodes[at * NODE..][..NODE] else { break };
                if mode == LEAF {
                    break;
                }
                let value = x[row * columns + within(feature, columns)?];
                let holds = meets(mode, value, thresholds[at]) || (missing != 0 && value.is_nan());
                at = within(if holds { yes } else { no }, thresholds.len())?;
            }
            let [mode, _, first, count, _] = nodes[at * NODE..][..NODE] else { continue };
            if mode != LEAF {
                return Err(OpError::Impossible { op, reason: "its nodes make a circle".into() });
            }
            for index in first..first.saturating_add(count) {
                let weight = weights[within(index, weights.len())?];
                let place = row * wide + within(leaf_targets[index as usize], wide)?;
                let score = &mut scores[place];
                let is_first = present[place] == 0;
                match aggregate {
                    "MIN" if is_first || weight < *score => *score = weight,
                    "MAX" if is_first || weight > *score => *score = weight,
                    "MIN" | "MAX" => {}
                    _ => *score += weight,
                }
                present[place] = 1;
            }
        }
    }
    if aggregate == "AVERAGE" {
        scores.iter_mut().for_each(|score| *score /= roots.len() as f64);
    }
    let mut results = vec![Numbers::Float(scores).into_tensor(&outputs[0])?];
    if let Some(of) = outputs.get(1) {
        results.push(Tensor::from_bools(of.shape.clone(), present)?);
    }
    Ok(results)
}
