//! How far off the outputs of two engines are that compute in different precisions: what their difference in speed costs.

use crate::{Report, format::percent};
use serde::{Deserialize, Serialize};

/// What a report says of its engine's outputs; absent where nothing was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outputs {
    /// Largest difference from the reference over its scale.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_error: Option<f64>,
    /// The worst output's root of the mean squared difference over the reference's root mean square.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relative_rms: Option<f64>,
    /// Share of labelled rows that it gets right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top1: Option<f64>,
}

impl Outputs {
    pub fn of(report: &Report) -> Self {
        let compared = report.numerics.as_ref().filter(|numerics| numerics.skipped.is_none());
        Self {
            max_error: compared.map(|numerics| numerics.max_error),
            relative_rms: compared
                .and_then(|n| n.outputs.iter().map(|output| output.relative_rms).max_by(f64::total_cmp)),
            top1: report.accuracy.as_ref().map(|accuracy| accuracy.top1),
        }
    }
}

/// The outputs of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AccuracyDifference {
    pub base: Outputs,
    pub other: Outputs,
}

/// What stands beside the verdict on two engines of different precisions; `None` where the precisions agree.
pub(super) fn difference(left: &Report, right: &Report) -> Option<AccuracyDifference> {
    (left.spec.precision != right.spec.precision)
        .then(|| AccuracyDifference { base: Outputs::of(left), other: Outputs::of(right) })
}

impl AccuracyDifference {
    /// As people read it, a line.
    pub fn words(&self) -> String {
        let error = |error: f64| format!("{error:.1e}");
        let both = |what: &str, of: fn(&Outputs) -> Option<f64>, show: &dyn Fn(f64) -> String| {
            let told = [of(&self.base), of(&self.other)];
            let shown = told.map(|value| value.map_or_else(|| "not known".to_owned(), show));
            told.iter().any(Option::is_some).then(|| format!("{what} {} and {}", shown[0], shown[1]))
        };
        let facts = [
            both("outputs off by", |outputs| outputs.max_error, &error),
            both("by the root mean square", |outputs| outputs.relative_rms, &error),
            both("top-1", |outputs| outputs.top1, &|share| percent(share)),
        ];
        let facts: Vec<String> = facts.into_iter().flatten().collect();
        if facts.is_empty() { "how far off the outputs are is not known".into() } else { facts.join(", ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        compare::{Verdict, compare},
        testing::sample_report,
    };
    use planforge_types::Precision;

    #[test]
    fn other_precisions_are_judged_by_speed_with_their_accuracy_beside() {
        let base = sample_report(1.0);
        let mut half = sample_report(0.5);
        half.spec.precision = Precision::Fp16;
        if let Some(accuracy) = &mut half.accuracy {
            accuracy.top1 = 0.5;
        }
        let pair = compare(&[base.clone(), half]).unwrap().pairs.remove(0);
        assert_eq!(pair.verdict, Verdict::Faster, "{}", pair.reason);
        assert!(pair.differences.contains(&"precision: fp32 and fp16".to_owned()), "{:?}", pair.differences);
        let accuracy = pair.accuracy.unwrap();
        assert_eq!(accuracy.other.top1, Some(0.5));
        assert!(accuracy.words().contains("and 50"), "{}", accuracy.words());
        assert!(compare(&[base.clone(), sample_report(0.5)]).unwrap().pairs[0].accuracy.is_none(), "precisions agree");
    }

    #[test]
    fn what_was_not_compared_is_not_known() {
        let nothing = AccuracyDifference { base: Outputs::default(), other: Outputs::default() };
        assert_eq!(nothing.words(), "how far off the outputs are is not known");
        let one = AccuracyDifference { other: Outputs { top1: Some(0.9), ..Outputs::default() }, ..nothing };
        assert!(one.words().starts_with("top-1 not known and 90"), "{}", one.words());
    }
}
