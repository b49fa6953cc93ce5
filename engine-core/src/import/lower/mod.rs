//! Operators of the model to operators of the graph, one rule each.
//!
//! A rule names every attribute the operator has in any version; one that this version does not have is left
//! unread, which the importer refuses.

mod linear;
mod math;
mod movement;
mod normalize;
mod pool;
mod reduce;
mod resize;
mod source;

use super::{builder::Lowering, error::Refusal};
use crate::ir::ValueId;

/// Gives the values of the node's outputs, in order; trailing unwanted outputs may be missing.
pub type Lower = fn(&mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal>;

/// How one operator is imported.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub op_type: &'static str,
    pub attributes: &'static [&'static str],
    pub lower: Lower,
}

/// Oldest opset whose meaning the rules know.
pub const OLDEST_OPSET: i64 = 9;

/// Newest opset whose meaning the rules know; no operator in the table changes its meaning up to here.
pub const NEWEST_OPSET: i64 = 25;

const TABLES: [&[Rule]; 8] = [
    linear::RULES,
    math::RULES,
    movement::RULES,
    normalize::RULES,
    pool::RULES,
    reduce::RULES,
    resize::RULES,
    source::RULES,
];

/// The rule of a standard operator.
pub fn rule(op_type: &str) -> Option<&'static Rule> {
    TABLES.iter().flat_map(|table| table.iter()).find(|rule| rule.op_type == op_type)
}

/// Names of all supported standard operators, sorted.
pub fn supported() -> Vec<&'static str> {
    let mut names: Vec<_> = TABLES.iter().flat_map(|table| table.iter().map(|rule| rule.op_type)).collect();
    names.sort_unstable();
    names
}

/// A list of non-negative sizes from an attribute or input.
fn sizes(what: &'static str, values: &[i64]) -> Result<Vec<usize>, Refusal> {
    values.iter().map(|&value| usize::try_from(value)).collect::<Result<_, _>>().map_err(|_| Refusal::Impossible {
        what,
        value: format!("{values:?}"),
        shape: Vec::new(),
    })
}

/// A list of positive sizes of known length, or a default for each.
fn spatial_sizes(
    what: &'static str,
    values: Option<&[i64]>,
    count: usize,
    default: usize,
) -> Result<Vec<usize>, Refusal> {
    let Some(values) = values else { return Ok(vec![default; count]) };
    let sizes = sizes(what, values)?;
    match sizes.len() == count && (default == 0 || !sizes.contains(&0)) {
        true => Ok(sizes),
        false => Err(Refusal::Impossible { what, value: format!("{values:?}"), shape: vec![count] }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_operator_has_two_rules() {
        let names = supported();
        let mut unique = names.clone();
        unique.dedup();
        assert_eq!(names, unique);
    }
}
