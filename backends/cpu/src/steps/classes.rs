//! Labels and probabilities from scores.

use super::{Operands, Prepared, Ready, checker::Checker, checker::product};
use crate::{error::EngineError, program::Place};
use planforge_graph::ir::NamedOp;
use planforge_kernels_cpu::classes::{Classes, Decision, Transform, Written};

#[derive(Debug)]
struct Ruled {
    /// Its base values are those of the input behind the scores.
    rule: Classes,
}

/// The kernel's form of an operator on `columns` scores, with `base` values to be added; `None` where there is none.
pub(crate) fn rule(named: &NamedOp, columns: usize, base: usize) -> Option<Classes> {
    let labels = named.ints("labels").to_vec();
    let never = named.ints("never");
    let counts: Vec<bool> = (0..columns).map(|column| !never.contains(&(column as i64))).collect();
    let transform = match named.text("transform") {
        "NONE" => Transform::None,
        "LOGISTIC" => Transform::Logistic,
        "SOFTMAX" => Transform::Softmax,
        _ => return None,
    };
    // Of a pair the logistic function alone is known; it takes the margin, whatever the score is without it.
    let pair = |column: usize, is_probability: bool| match transform {
        Transform::Logistic => (Written::Opposite { column }, Transform::Logistic),
        _ if is_probability => (Written::Rest { column }, Transform::None),
        _ => (Written::Opposite { column }, Transform::None),
    };
    let above = |column: usize, threshold: f32| Decision::Above { column, threshold };
    let (decision, (written, transform), labels) = match (named.name.as_str(), columns) {
        ("linear_classes", 1) if labels.len() == 2 => (above(0, 0.0), pair(0, true), labels),
        ("linear_classes", 2..) => (Decision::Largest, (Written::Columns, transform), labels),
        ("tree_classes", 2) if base < 2 => {
            let (binary, positive) = (named.flag("binary"), named.flag("positive"));
            let column = usize::from(counts[1]);
            let written = match (counts[1], binary) {
                (true, _) => (Written::Columns, transform),
                (false, true) => pair(0, positive),
                (false, false) => return None,
            };
            let threshold = if binary && positive { 0.5 } else { 0.0 };
            // What is no pair of one column is told by 0 and 1, whatever the labels are.
            (above(column, threshold), written, if binary { labels } else { vec![0, 1] })
        }
        // A base value makes a class count that no leaf gives.
        ("tree_classes", 3..) if base == 0 || base == columns => {
            let counts_all = base == columns;
            let rule = Classes {
                labels,
                base: vec![0.0; columns],
                counts: counts.iter().map(|&counts| counts || counts_all).collect(),
                decision: Decision::Largest,
                written: Written::Columns,
                transform,
            };
            return Some(rule).filter(Classes::holds_together);
        }
        _ => return None,
    };
    let rule = Classes { labels, base: vec![0.0; columns], counts, decision, written, transform };
    Some(rule).filter(Classes::holds_together)
}

pub(super) fn classes(check: &Checker<'_>, named: &NamedOp, rows: usize, columns: usize) -> Prepared {
    let base = check.input_bytes(1) as usize / 4;
    check.may_take(1, base)?;
    if check.input(1).is_some_and(|id| !matches!(check.program.buffer(id).place, Place::Weights(_))) {
        return Err("its base values are no constants".to_owned());
    }
    let rule = rule(named, columns, base).ok_or("there is no kernel for its rule")?;
    let wide = if rule.written == Written::Columns { columns } else { 2 };
    check.takes(0, product(&[rows, columns])?)?;
    let [labels, scores] = check.step.outputs[..] else { return Err("it has not two outputs".to_owned()) };
    check.holds("labels", Some(labels), rows, 8)?;
    check.holds("scores", Some(scores), product(&[rows, wide])?, 4)?;
    Ok(Box::new(Ruled { rule }))
}

impl Ready for Ruled {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let (isa, pool, scores) = (on.isa, on.pool, on.numbers(0));
        let mut rule = self.rule.clone();
        rule.base.iter_mut().zip(on.numbers(1)).for_each(|(base, given)| *base = *given);
        let (labels, out) = on.two_outputs();
        rule.run(isa, pool, scores, labels, out);
        Ok(())
    }
}
