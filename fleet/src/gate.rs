//! Whether an engine may take the place of the one that was locked before.
//!
//! The verdict is that of [`compare`], the limits are those of its gate. Engines that do other work than the ones they
//! replace (another graph, precision or shape) have nothing to be held against.

use planforge_report::{
    Report,
    compare::{
        self, Verdict,
        gate::{self, Limit},
    },
};
use serde::Serialize;

/// What a gate says of an engine and the one that it replaces.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "outcome", content = "reason", rename_all = "snake_case")]
pub enum Judged {
    Passed(String),
    /// Worse by more than is allowed.
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
    pub fn objection(&self) -> Option<String> {
        match self {
            Self::Passed(_) | Self::NotApplicable(_) => None,
            Self::Failed(reason) => Some(format!("worse than what it replaces: {reason}")),
            Self::Undecided(reason) => Some(format!("not shown to be as good as what it replaces: {reason}")),
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

/// Holds `now` against `base` by `limits`; the first one that it does not keep is told.
pub fn judge(base: &Report, now: &Report, limits: &[Limit]) -> Judged {
    if base.plan.digest == now.plan.digest {
        return Judged::Passed("it is the same plan".into());
    }
    if let Some(reason) = other_work(base, now) {
        return Judged::NotApplicable(reason);
    }
    let reports = [base.clone(), now.clone()];
    let comparison = match compare::compare(&reports) {
        Ok(comparison) => comparison,
        Err(error) => return Judged::Undecided(error.to_string()),
    };
    let gate = gate::judge(&comparison, &reports, limits);
    let told = |outcome: gate::Outcome| -> Option<String> {
        let line = gate.lines.iter().find(|line| line.outcome == outcome)?;
        let allowed = line.limit.as_ref().map(|limit| format!("{} is allowed: ", limit.words())).unwrap_or_default();
        Some(format!("{allowed}{}", line.reason))
    };
    if let Some(reason) = told(gate::Outcome::Failed) {
        return Judged::Failed(reason);
    }
    match (gate.passed, told(gate::Outcome::Undecided)) {
        (true, _) => Judged::Passed(gate.lines.iter().map(|line| line.reason.clone()).collect::<Vec<_>>().join("; ")),
        (false, Some(reason)) => Judged::Undecided(reason),
        (false, None) => Judged::NotApplicable("no limit is for this device kind".into()),
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
        let judge = |now: &Report, percent: f64| judge(&base, now, &[Limit::of_median(percent)]);
        assert!(matches!(judge(&replacing(1.5), 5.0), Judged::Failed(_)));
        assert!(judge(&replacing(1.5), 60.0).passes());
        assert!(judge(&replacing(0.5), 0.0).passes());
        assert!(judge(&sample_report(9.0), 0.0).passes(), "a plan does not replace itself");
        assert_eq!(verdict(&base, &replacing(1.5)).0, Verdict::Slower);
    }

    #[test]
    fn what_nobody_can_tell_does_not_pass() {
        let mut few = replacing(1.0);
        few.accurate = false;
        let judged = judge(&sample_report(1.0), &few, &[Limit::of_median(5.0)]);
        assert!(matches!(judged, Judged::Undecided(_)) && !judged.passes());
        let objection = judged.objection().unwrap();
        assert!(objection.contains("median latency at most 5 % slower is allowed"), "{objection}");
    }

    #[test]
    fn every_limit_counts_and_those_of_other_devices_do_not() {
        let (base, mut now) = (sample_report(1.0), replacing(1.0));
        now.plan.bytes = base.plan.bytes * 2;
        let limits = |texts: &[&str]| -> Vec<Limit> { texts.iter().map(|text| text.parse().unwrap()).collect() };
        assert!(judge(&base, &now, &limits(&["20"])).passes());
        let Judged::Failed(reason) = judge(&base, &now, &limits(&["20", "size=10"])) else { panic!("twice as large") };
        assert!(reason.starts_with("plan size at most 10 % more is allowed"), "{reason}");
        assert!(judge(&base, &now, &limits(&["20", "t4:size=10"])).passes());
        assert!(matches!(judge(&base, &now, &limits(&["t4:size=10"])), Judged::NotApplicable(_)));
    }

    #[test]
    fn other_work_is_held_against_nothing() {
        let base = sample_report(1.0);
        let mut precise = replacing(2.0);
        precise.spec.precision = Precision::Fp16;
        let mut graph = replacing(2.0);
        graph.model.digest = Digest::of(b"another model");
        for now in [precise, graph] {
            assert!(matches!(judge(&base, &now, &[Limit::of_median(5.0)]), Judged::NotApplicable(_)));
        }
    }
}
