//! How much may be lost, and which layers go back to single precision so that no more is.
//!
//! Layers return in the order of harm per cost saved: the squared error that a layer makes alone, over the microseconds
//! that its integers save, or the multiplications that they make cheaper; where that leaves one that is too much by itself, in the order of harm alone. How many
//! must is found by halving, as fewer errors are never more harm.

use crate::{error::PrecisionError, truth::Agreement};
use planforge_types::preparation::Budget;
use std::collections::BTreeSet;

/// How a budget is held against what was reached.
pub trait Lost {
    /// What is lost of the budget's measure.
    fn lost(&self, truth: &Agreement, reached: &Agreement) -> f64;

    /// Whether that little is lost.
    fn holds(&self, truth: &Agreement, reached: &Agreement) -> bool;
}

impl Lost for Budget {
    fn lost(&self, truth: &Agreement, reached: &Agreement) -> f64 {
        match self {
            Self::AccuracyDrop(_) => match (truth.top1(), reached.top1()) {
                (Some(before), Some(after)) => 100.0 * (before - after),
                _ => f64::INFINITY,
            },
            Self::OutputError(_) => reached.relative_rms,
        }
    }

    fn holds(&self, truth: &Agreement, reached: &Agreement) -> bool {
        let (Self::AccuracyDrop(most) | Self::OutputError(most)) = self;
        // Rows are counted: what is allowed must not be missed by a rounding.
        self.lost(truth, reached) <= most + 1e-9
    }
}

/// A layer that may return.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// What its lower precision saves: microseconds, multiplications or weights, the same of all layers.
    pub saved: f64,
}

/// Which layers return, and what is reached without them.
#[derive(Clone, Debug)]
pub struct Settled {
    /// Indices of the layers that go back.
    pub returned: BTreeSet<usize>,
    pub reached: Agreement,
    /// Relative RMS that each layer makes alone; empty where the budget held at once.
    pub harm: Vec<f64>,
    pub evaluations: usize,
}

/// What saves nothing, or costs something, is divided by this.
const LEAST_SAVED: f64 = 1e-3;

/// Measures a model in which the layers of `returned` keep single precision.
pub type Measure<'a> = dyn FnMut(&BTreeSet<usize>) -> Result<Agreement, PrecisionError> + 'a;

/// Finds the fewest layers, worst first, without which the budget holds. `alone` measures one layer; `costs` is asked only
/// where not all of them can stay.
///
/// # Errors
///
/// When it holds only with every layer back, or nothing can be measured.
pub fn settle(
    budget: Option<Budget>,
    truth: &Agreement,
    costs: &mut dyn FnMut() -> Vec<Cost>,
    names: &[&str],
    measure: &mut Measure<'_>,
    alone: &mut Measure<'_>,
) -> Result<Settled, PrecisionError> {
    let mut evaluations = 1;
    let none = BTreeSet::new();
    let first = measure(&none)?;
    let Some(budget) = budget.filter(|budget| !budget.holds(truth, &first)) else {
        return Ok(Settled { returned: none, reached: first, harm: Vec::new(), evaluations });
    };
    let costs = costs();
    let all: BTreeSet<usize> = (0..costs.len()).collect();
    let mut harm = Vec::new();
    for index in 0..costs.len() {
        let mut others = all.clone();
        others.remove(&index);
        harm.push(alone(&others)?.relative_rms);
        evaluations += 1;
    }
    let worth = |index: &usize| harm[*index] * harm[*index] / costs[*index].saved.max(LEAST_SAVED);
    let order = |key: &dyn Fn(&usize) -> f64| {
        let mut order: Vec<usize> = (0..costs.len()).collect();
        order.sort_by(|a, b| key(b).total_cmp(&key(a)));
        order
    };
    // Where one layer alone is too much and saves most, it is last by worth: then by harm whatever it saves.
    let (mut best, mut best_order, mut best_count) = (first, order(&worth), 0);
    for order in [order(&worth), order(&|index| harm[*index])] {
        let (mut too_few, mut enough) = (0, costs.len());
        let mut found: Option<Agreement> = None;
        while enough - too_few > 1 {
            let count = usize::midpoint(too_few, enough);
            let reached = measure(&order[..count].iter().copied().collect())?;
            evaluations += 1;
            if budget.lost(truth, &reached) < budget.lost(truth, &best) {
                (best, best_order, best_count) = (reached, order.clone(), count);
            }
            if budget.holds(truth, &reached) {
                (enough, found) = (count, Some(reached));
            } else {
                too_few = count;
            }
        }
        if let Some(reached) = found {
            return Ok(Settled { returned: order[..enough].iter().copied().collect(), reached, harm, evaluations });
        }
    }
    let back: Vec<&str> = best_order[..best_count].iter().map(|index| names[*index]).collect();
    let left: Vec<&str> = best_order[best_count..].iter().map(|index| names[*index]).collect();
    let lost = budget.lost(truth, &best);
    let best = match &back[..] {
        [] => format!("with all {} layers lowered {lost:.4} is lost", left.len()),
        back => format!("the best, {lost:.4} lost, has {} back in single precision", back.join(", ")),
    };
    let best = format!("{best}; what remains is the harm of {}", left.join(", "));
    Err(PrecisionError::Budget { budget: budget.to_string(), best })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRUTH: Agreement = Agreement { relative_rms: 0.0, correct: Some(100), rows: 100 };

    /// Layers that add their squared errors up.
    fn errors(harm: &[f64]) -> impl Fn(&BTreeSet<usize>) -> Result<Agreement, PrecisionError> + '_ {
        move |returned| {
            let left = harm.iter().enumerate().filter(|(at, _)| !returned.contains(at));
            let relative_rms = left.map(|(_, harm)| harm * harm).sum::<f64>().sqrt();
            Ok(Agreement { relative_rms, correct: Some(100 - (relative_rms * 100.0) as usize), rows: 100 })
        }
    }

    fn settle_all(budget: Option<Budget>, harm: &[f64], saved: &[f64]) -> Result<Settled, PrecisionError> {
        let costs: Vec<Cost> = saved.iter().map(|saved| Cost { saved: *saved }).collect();
        let (of, alone) = (errors(harm), errors(harm));
        settle(budget, &TRUTH, &mut || costs.clone(), &["a", "b", "c", "d"], &mut |set| of(set), &mut |set| alone(set))
    }

    #[test]
    fn nothing_returns_without_a_budget_or_within_one() {
        let harm = [0.01, 0.2, 0.01, 0.01];
        assert!(settle_all(None, &harm, &[1.0; 4]).unwrap().returned.is_empty());
        let settled = settle_all(Some(Budget::OutputError(0.5)), &harm, &[1.0; 4]).unwrap();
        assert_eq!((settled.returned.len(), settled.evaluations), (0, 1));
        let (of, alone) = (errors(&harm), errors(&harm));
        let never = &mut || unreachable!("nothing is timed where all may stay");
        let budget = Some(Budget::OutputError(0.5));
        settle(budget, &TRUTH, never, &["a", "b", "c", "d"], &mut |set| of(set), &mut |set| alone(set)).unwrap();
    }

    #[test]
    fn the_worst_returns_first_and_no_more_than_must() {
        let settled = settle_all(Some(Budget::OutputError(0.05)), &[0.01, 0.2, 0.01, 0.1], &[1.0; 4]).unwrap();
        assert_eq!(settled.returned, BTreeSet::from([1, 3]));
        assert!(settled.reached.relative_rms <= 0.05);
        // The same harm weighs less where more is saved.
        let settled =
            settle_all(Some(Budget::OutputError(0.12)), &[0.1, 0.1, 0.01, 0.01], &[1e6, 10.0, 1e6, 1e6]).unwrap();
        assert_eq!(settled.returned, BTreeSet::from([1]));
        let settled = settle_all(Some(Budget::AccuracyDrop(2.0)), &[0.01, 0.2, 0.01, 0.01], &[1.0; 4]).unwrap();
        assert_eq!(settled.returned, BTreeSet::from([1]));
    }

    #[test]
    fn one_layer_that_is_too_much_returns_whatever_it_saves() {
        let settled =
            settle_all(Some(Budget::OutputError(0.05)), &[0.02, 0.5, 0.02, 0.02], &[1.0, 1e9, 1.0, 1.0]).unwrap();
        assert_eq!(settled.returned, BTreeSet::from([1]));
    }

    #[test]
    fn what_cannot_be_met_names_the_best_and_its_layers() {
        let error = settle_all(Some(Budget::OutputError(0.001)), &[0.01, 0.2, 0.02, 0.1], &[1.0; 4]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("the best, 0.0100 lost, has b, d, c back in single precision"), "{text}");
        assert!(text.contains("the harm of a"), "{text}");
    }
}
