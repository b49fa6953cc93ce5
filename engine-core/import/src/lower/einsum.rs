//! Equations over named axes.

use super::{super::builder::Lowering, Rule};
use crate::error::Refusal;
use planforge_graph::ir::{NamedOp, Op, ValueId};

pub const RULES: &[Rule] = &[Rule { op_type: "Einsum", attributes: &["equation"], lower: einsum }];

/// Letters are labels 0 to 51; the axes that an ellipsis stands for come after them, the last one first.
const ELLIPSIS: usize = 52;

fn label(letter: char) -> Option<usize> {
    match letter {
        'a'..='z' => Some(letter as usize - 'a' as usize),
        'A'..='Z' => Some(letter as usize - 'A' as usize + 26),
        _ => None,
    }
}

/// Labels of one term over `rank` axes; `None` when it is not one.
fn term(text: &str, rank: usize) -> Option<Vec<usize>> {
    let Some((before, after)) = text.split_once("...") else { return text.chars().map(label).collect() };
    let named = before.len() + after.len();
    let open = rank.checked_sub(named).filter(|&open| open <= 8)?;
    let middle = (0..open).rev().map(|at| Some(ELLIPSIS + at));
    before.chars().map(label).chain(middle).chain(after.chars().map(label)).collect()
}

fn einsum(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let equation: String = node.attributes.text_or("equation", "")?.chars().filter(|letter| *letter != ' ').collect();
    let wrong =
        || Refusal::Attribute { name: "equation".into(), reason: format!("is '{equation}', which does not fit") };
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (equation.as_str(), None),
    };
    let inputs: Vec<ValueId> =
        (0..node.inputs.len()).map(|position| node.input(position, "an operand")).collect::<Result<_, _>>()?;
    let texts: Vec<&str> = left.split(',').collect();
    if texts.len() != inputs.len() || inputs.is_empty() {
        return Err(wrong());
    }
    let mut terms = Vec::new();
    for (text, &id) in texts.iter().zip(&inputs) {
        let rank = node.ty(id).rank();
        terms.push(term(text, rank).filter(|labels| labels.len() == rank).ok_or_else(wrong)?);
    }
    let widest =
        terms.iter().flatten().filter(|&&label| label >= ELLIPSIS).max().map_or(0, |&last| last + 1 - ELLIPSIS);
    let result = match right {
        Some(right) => {
            let named = right.replace("...", "").len();
            let open = if right.contains("...") { widest } else { 0 };
            term(right, named + open).ok_or_else(wrong)?
        }
        // What stands once, in order of the alphabet, capitals first; what an ellipsis stands for comes before.
        None => {
            let once = |label: usize| terms.iter().flatten().filter(|&&other| other == label).count() == 1;
            let open = (0..widest).rev().map(|at| ELLIPSIS + at);
            open.chain((26..52).chain(0..26).filter(|&label| once(label))).collect()
        }
    };
    // Numbers without gaps, so that labels that do not occur cost nothing.
    terms.push(result);
    let mut used: Vec<usize> = terms.iter().flatten().copied().collect();
    used.sort_unstable();
    used.dedup();
    let number = |label: &usize| used.binary_search(label).unwrap_or(0);
    let labels: Vec<usize> = terms.iter().flatten().map(number).collect();
    let ranks: Vec<usize> = terms.iter().map(Vec::len).collect();
    let op = NamedOp::new("einsum").with_sizes("labels", &labels).with_sizes("ranks", &ranks);
    Ok(vec![node.emit(Op::Named(op.into()), &inputs)?])
}
