//! Operators of the model to operators of the graph, one rule each.
//!
//! A rule names every attribute the operator has in any version; one that this version does not have is left
//! unread, which the importer refuses.

mod attention;
mod bits;
mod compose;
mod control;
mod crop;
mod einsum;
mod flex;
mod integer;
mod interpolate;
mod linear;
mod loss;
mod math;
mod microsoft;
mod microsoft_attention;
mod microsoft_blocks;
mod microsoft_integer;
mod microsoft_recurrent;
mod ml;
mod movement;
mod nested;
mod normalize;
mod optional;
mod pool;
mod quantize;
pub mod random;
mod recurrent;
mod reduce;
mod regions;
mod resize;
mod sample;
mod scatter;
mod select;
mod sequence;
mod signal;
mod source;
mod stateful;
mod training;
mod widths;

pub use nested::lower_node;

use super::{builder::Lowering, error::Refusal, standard};
use planforge_graph::ir::ValueId;
use planforge_onnx::proto::NodeProto;

/// Gives the values of the node's outputs, in order; trailing unwanted outputs may be missing.
pub type Lower = fn(&mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal>;

/// How one operator is imported.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub op_type: &'static str,
    pub attributes: &'static [&'static str],
    pub lower: Lower,
}

/// Oldest opset whose meaning some rule knows.
pub const OLDEST_OPSET: i64 = 1;

/// Newest opset whose meaning the rules know; what changed up to here are types and attributes that are checked.
pub const NEWEST_OPSET: i64 = 28;

/// Broadcasting is the same from here on; older operators need an entry in [`SINCE`].
const SINCE_BROADCASTING: i64 = 7;

/// Operators whose meaning is known from another version on than [`SINCE_BROADCASTING`].
const SINCE: &[(&str, i64)] = &[
    ("AffineGrid", 20),
    ("BitCast", 26),
    ("CausalConvWithState", 27),
    ("ConcatFromSequence", 11),
    ("CumProd", 26),
    ("DeformConv", 19),
    ("GridSample", 16),
    ("Identity", 1),
    ("LinearAttention", 27),
    ("MaxUnpool", 9),
    ("Not", 1),
    ("Optional", 15),
    ("OptionalGetElement", 15),
    ("OptionalHasElement", 15),
    ("RoiAlign", 10),
    ("Scan", 8),
    ("SequenceAt", 11),
    ("SequenceConstruct", 11),
    ("SequenceEmpty", 11),
    ("SequenceErase", 11),
    ("SequenceInsert", 11),
    ("SequenceLength", 11),
    ("SplitToSequence", 11),
    ("Shape", 1),
    ("Size", 1),
    ("SwiGLU", 28),
    ("TensorScatter", 24),
    ("Transpose", 1),
];

/// The first opset in which a rule knows what its operator means.
pub fn since(op_type: &str) -> i64 {
    SINCE.iter().find(|(name, _)| *name == op_type).map_or(SINCE_BROADCASTING, |(_, since)| *since)
}

const TABLES: &[&[Rule]] = &[
    attention::RULES,
    bits::RULES,
    control::RULES,
    crop::RULES,
    einsum::RULES,
    integer::RULES,
    loss::RULES,
    recurrent::RULES,
    scatter::RULES,
    select::RULES,
    sequence::RULES,
    signal::RULES,
    linear::RULES,
    math::RULES,
    movement::RULES,
    normalize::RULES,
    optional::RULES,
    pool::RULES,
    quantize::RULES,
    random::RULES,
    reduce::RULES,
    regions::RULES,
    resize::RULES,
    sample::RULES,
    source::RULES,
    stateful::RULES,
];

/// What ONNX Runtime's optimizer and quantizer emit beside standard operators.
const MICROSOFT: &[&[Rule]] = &[
    microsoft::RULES,
    microsoft_attention::RULES,
    microsoft_blocks::RULES,
    microsoft_integer::RULES,
    microsoft_recurrent::RULES,
];

/// Every domain with its rules; the standard one is empty.
const DOMAINS: &[(&str, &[&[Rule]])] = &[
    ("", TABLES),
    (flex::DOMAIN, &[flex::RULES]),
    (ml::DOMAIN, ml::TABLES),
    (training::DOMAIN, &[training::RULES]),
    ("com.microsoft", MICROSOFT),
];

/// The rule of an operator; the standard domain is empty.
pub fn rule(domain: &str, op_type: &str) -> Option<&'static Rule> {
    let (_, tables) = DOMAINS.iter().find(|(name, _)| *name == domain)?;
    tables.iter().flat_map(|table| table.iter()).find(|rule| rule.op_type == op_type)
}

/// The rule of a node, where it is known in this version of the standard operators; functions are not looked at.
pub fn rule_of(node: &NodeProto, opset: Option<i64>) -> Option<&'static Rule> {
    let domain = if standard(&node.domain) { "" } else { node.domain.as_str() };
    let found = if node.overload.is_empty() { rule(domain, &node.op_type) } else { None };
    let is_old = |rule: &Rule| {
        domain.is_empty() && opset.is_some_and(|version| (OLDEST_OPSET..since(rule.op_type)).contains(&version))
    };
    found.filter(|rule| !is_old(rule))
}

/// An operator that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Empty: the standard one.
    pub domain: &'static str,
    pub op_type: &'static str,
    /// First and last version of the standard operators in which its meaning is known; `None` in other domains.
    pub opsets: Option<(i64, i64)>,
}

/// All operators that are known, by domain and name.
pub fn known() -> Vec<Known> {
    let of = |domain: &'static str, tables: &'static [&'static [Rule]]| {
        tables.iter().flat_map(|table| table.iter()).map(move |rule| {
            let opsets = domain.is_empty().then(|| (since(rule.op_type), NEWEST_OPSET));
            Known { domain, op_type: rule.op_type, opsets }
        })
    };
    let mut all: Vec<Known> = DOMAINS.iter().flat_map(|&(domain, tables)| of(domain, tables)).collect();
    all.sort_by_key(|known| (known.domain, known.op_type));
    all
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
