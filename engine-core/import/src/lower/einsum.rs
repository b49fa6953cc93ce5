//! Equations over named axes.

use super::{super::builder::Lowering, Rule};
use crate::error::Refusal;
use planforge_graph::{
    ir::{Binary, NamedOp, Op, ReduceKind, ValueId},
    shape::is_float,
};

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
    if let Some(product) = as_products(node, &terms, &inputs, &result)? {
        return Ok(vec![product]);
    }
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

/// A value and the labels of its axes.
struct Term {
    value: ValueId,
    labels: Vec<usize>,
}

/// The equation as sums, transposes and matrix products of one operand after the other, which backends have kernels for;
/// nothing where a label stands twice in a term, sizes of a label differ, or operands are integers.
fn as_products(
    node: &mut Lowering<'_>,
    terms: &[Vec<usize>],
    inputs: &[ValueId],
    result: &[usize],
) -> Result<Option<ValueId>, Refusal> {
    let mut sizes = std::collections::BTreeMap::new();
    for (labels, &id) in terms.iter().zip(inputs) {
        let once = labels.iter().enumerate().all(|(at, label)| !labels[..at].contains(label));
        if !once || !is_float(node.ty(id).element) {
            return Ok(None);
        }
        for (&label, size) in labels.iter().zip(node.shape(id)) {
            if size == 0 || *sizes.entry(label).or_insert(size) != size {
                return Ok(None);
            }
        }
    }
    let known = |label: &usize| sizes.contains_key(label);
    let once = result.iter().enumerate().all(|(at, label)| known(label) && !result[..at].contains(label));
    if !once {
        return Ok(None);
    }
    let all = terms.iter().zip(inputs).map(|(labels, &value)| Term { value, labels: labels.clone() });
    let mut rest: std::collections::VecDeque<Term> = all.collect();
    let Some(mut whole) = rest.pop_front() else { return Ok(None) };
    while let Some(next) = rest.pop_front() {
        let later = |label: &usize| result.contains(label) || rest.iter().any(|term| term.labels.contains(label));
        whole = joined(node, whole, next, &later, &sizes)?;
    }
    let whole = summed(node, whole, &|label| result.contains(label))?;
    Ok(Some(brought(node, &whole, result)?))
}

/// The sum over the labels that nobody needs.
fn summed(node: &mut Lowering<'_>, term: Term, needed: &dyn Fn(&usize) -> bool) -> Result<Term, Refusal> {
    let gone: Vec<usize> = (0..term.labels.len()).filter(|&axis| !needed(&term.labels[axis])).collect();
    if gone.is_empty() {
        return Ok(term);
    }
    let value = node.reduce(ReduceKind::Sum, term.value, &gone, false)?;
    Ok(Term { value, labels: term.labels.into_iter().filter(|label| needed(label)).collect() })
}

/// The term's value with its axes in the order of `labels`.
fn brought(node: &mut Lowering<'_>, term: &Term, labels: &[usize]) -> Result<ValueId, Refusal> {
    let perm: Vec<usize> = labels.iter().filter_map(|label| term.labels.iter().position(|own| own == label)).collect();
    if perm.iter().copied().eq(0..perm.len()) { Ok(term.value) } else { node.transpose(term.value, &perm) }
}

/// Two terms as one: labels that both have and nobody needs later are summed over.
fn joined(
    node: &mut Lowering<'_>,
    a: Term,
    b: Term,
    later: &dyn Fn(&usize) -> bool,
    sizes: &std::collections::BTreeMap<usize, usize>,
) -> Result<Term, Refusal> {
    let a_labels = a.labels.clone();
    let b_labels = b.labels.clone();
    let a = summed(node, a, &|label| b_labels.contains(label) || later(label))?;
    let b = summed(node, b, &|label| a_labels.contains(label) || later(label))?;
    let pick = |from: &Term, wanted: &dyn Fn(&usize) -> bool| -> Vec<usize> {
        from.labels.iter().copied().filter(wanted).collect()
    };
    let both = |label: &usize| a.labels.contains(label) && b.labels.contains(label);
    let batch = pick(&a, &|label| both(label) && later(label));
    let depth = pick(&a, &|label| both(label) && !later(label));
    let left = pick(&a, &|label| !b.labels.contains(label));
    let right = pick(&b, &|label| !a.labels.contains(label));
    let of = |labels: &[usize]| labels.iter().map(|label| sizes[label]).collect::<Vec<usize>>();
    let count = |labels: &[usize]| of(labels).iter().product::<usize>();
    let shape = |parts: &[&[usize]]| parts.iter().flat_map(|labels| of(labels)).collect::<Vec<usize>>();
    let labels = [&batch[..], &left, &right].concat();
    if depth.is_empty() {
        // Nothing is summed: every element with every other.
        let ones = |count: usize| vec![1; count];
        let x = brought(node, &a, &[&batch[..], &left].concat())?;
        let x = node.reshape(x, [shape(&[&batch, &left]), ones(right.len())].concat())?;
        let y = brought(node, &b, &[&batch[..], &right].concat())?;
        let y = node.reshape(y, [of(&batch), ones(left.len()), of(&right)].concat())?;
        return Ok(Term { value: node.binary(Binary::Mul, x, y)?, labels });
    }
    let matrices = |rows: usize, columns: usize| match batch.is_empty() {
        true => vec![rows, columns],
        false => vec![count(&batch), rows, columns],
    };
    let x = brought(node, &a, &[&batch[..], &left, &depth].concat())?;
    let x = node.reshape(x, matrices(count(&left), count(&depth)))?;
    let y = brought(node, &b, &[&batch[..], &depth, &right].concat())?;
    let y = node.reshape(y, matrices(count(&depth), count(&right)))?;
    let product = node.matmul(x, y)?;
    Ok(Term { value: node.reshape(product, shape(&[&batch, &left, &right]))?, labels })
}
