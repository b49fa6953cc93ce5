//! Whether an engine may take the place of the one that was locked before, as far as speed is concerned.
//!
//! The verdict is that of [`compare`], the allowance that of its gate. Engines that do other work than the ones they
//! replace (another graph, precision or shape) have nothing to be held against.

use planforge_report::{
    Report,
    compare::{self, Verdict, gate},
};
use serde::Serialize;

/// What a gate says of an engine and the one that it replaces.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "outcome", content = "reason", rename_all = "snake_case")]
pub enum Judged {
    Passed(String),
    /// Slower by more than is allowed.
    Failed(String),
    /// Neither is shown, so it does not pass.
    Undecided(String),
    /// The two do different work.
    NotApplicable(String),
}

impl Judged {
    /// Whether the engine may stay.
    pub fn passes(&self) -> bool {
        matches!(self, Self::Passed(_) | Self::NotApplicable(_))
    }

    /// Why it does not pass; `None` where it does.
    pub fn objection(&self, allowed_percent: f64) -> Option<String> {
        match self {
            Self::Passed(_) | Self::NotApplicable(_) => None,
            Self::Failed(reason) => {
                Some(format!("more than {allowed_percent} % slower than what it replaces: {reason}"))
            }
            Self::Undecided(reason) => {
                Some(format!("not shown to be at most {allowed_percent} % slower than what it replaces: {reason}"))
            }
        }
    }
}

/// Why the two do different work.
fn other_work(base: &Report, now: &Report) -> Option<String> {
    let structures = (base.model.structure_digest, now.model.structure_digest);
    let same_graph = base.model.digest == now.model.digest || matches!(structures, (Some(a), Some(b)) if a == b);
    let what = if !same_graph {
        "the graphs differ"
    } else if base.spec.precision != now.spec.precision {
        "the precisions differ"
    } else if base.inputs != now.inputs {
        "the shapes differ"
    } else {
        return None;
    };
    Some(what.to_owned())
}

/// Holds `now` against `base`; its median may be slower by `allowed_percent`.
pub fn judge(base: &Report, now: &Report, allowed_percent: f64) -> Judged {
    if base.plan.digest == now.plan.digest {
        return Judged::Passed("it is the same plan".into());
    }
    if let Some(reason) = other_work(base, now) {
        return Judged::NotApplicable(reason);
    }
    let comparison = match compare::compare(&[base.clone(), now.clone()]) {
        Ok(comparison) => comparison,
        Err(error) => return Judged::Undecided(error.to_string()),
    };
    let gate = gate::judge(&comparison, allowed_percent);
    let Some(line) = gate.lines.into_iter().next() else { return Judged::Undecided("nothing was compared".into()) };
    match line.outcome {
        gate::Outcome::Passed => Judged::Passed(line.reason),
        gate::Outcome::Failed => Judged::Failed(line.reason),
        gate::Outcome::Undecided => Judged::Undecided(line.reason),
    }
}

/// How `new` stands to `old`, with the reason; of these two alone.
pub fn verdict(old: &Report, new: &Report) -> (Verdict, String) {
    match compare::compare(&[old.clone(), new.clone()]) {
        Ok(comparison) => match comparison.pairs.into_iter().next() {
            Some(pair) => (pair.verdict, pair.reason),
            None => (Verdict::CannotTell, "nothing was compared".into()),
        },
        Err(error) => (Verdict::CannotTell, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_report::testing::sample_report;
    use planforge_types::{Digest, Precision};

    fn replacing(centre_ms: f64) -> Report {
        let mut report = sample_report(centre_ms);
        report.plan.digest = Digest::of(b"other plan");
        report
    }

    #[test]
    fn slower_than_allowed_fails_and_within_the_allowance_passes() {
        let base = sample_report(1.0);
        assert!(matches!(judge(&base, &replacing(1.5), 5.0), Judged::Failed(_)));
        assert!(judge(&base, &replacing(1.5), 60.0).passes());
        assert!(judge(&base, &replacing(0.5), 0.0).passes());
        assert!(judge(&base, &sample_report(9.0), 0.0).passes(), "a plan does not replace itself");
        assert_eq!(verdict(&base, &replacing(1.5)).0, Verdict::Slower);
    }

    #[test]
    fn what_nobody_can_tell_does_not_pass() {
        let mut few = replacing(1.0);
        few.accurate = false;
        let judged = judge(&sample_report(1.0), &few, 5.0);
        assert!(matches!(judged, Judged::Undecided(_)) && !judged.passes());
        assert!(judged.objection(5.0).unwrap().starts_with("not shown to be at most 5 % slower"));
    }

    #[test]
    fn other_work_is_held_against_nothing() {
        let base = sample_report(1.0);
        let mut precise = replacing(2.0);
        precise.spec.precision = Precision::Fp16;
        let mut graph = replacing(2.0);
        graph.model.digest = Digest::of(b"another model");
        for now in [precise, graph] {
            assert!(matches!(judge(&base, &now, 5.0), Judged::NotApplicable(_)));
        }
    }
}
