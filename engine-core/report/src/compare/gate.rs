//! A gate for pipelines: may this change go out, as far as speed is concerned?
//!
//! Within each group (one model on one SKU) every later report is judged against the group's first. It passes when
//! the whole confidence interval of the ratio stays within the allowance, or the verdict is *faster*; it fails when the
//! median is slower by more than the allowance and the verdict is *slower*. Everything else, *cannot tell* among it, is
//! undecided: nobody has shown that it is fast enough, so the gate does not pass.

use super::{Comparison, Pair, Verdict};
use serde::{Deserialize, Serialize};

/// What the gate says of one report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Passed,
    /// Slower by more than is allowed.
    Failed,
    /// Neither is shown.
    Undecided,
}

impl Outcome {
    /// As people read it.
    pub fn words(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
            Self::Undecided => "UNDECIDED",
        }
    }
}

/// The gate's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gate {
    /// Percent that the median may be slower.
    pub allowed_percent: f64,
    pub passed: bool,
    /// One for every report that was judged, and for every group in which there was nothing to judge.
    pub lines: Vec<Line>,
}

/// One report against its group's first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    pub sku: String,
    pub model: String,
    /// Indices of the comparison's rows; absent when the group has one report only.
    pub base: Option<usize>,
    pub other: Option<usize>,
    pub outcome: Outcome,
    pub reason: String,
}

/// Judges every group of `comparison`; the median may be slower by `allowed_percent`.
pub fn judge(comparison: &Comparison, allowed_percent: f64) -> Gate {
    let mut lines = Vec::new();
    for group in &comparison.groups {
        let line = |pair: Option<&Pair>, outcome: Outcome, reason: String| Line {
            sku: group.sku.clone(),
            model: group.model.clone(),
            base: pair.map(|pair| pair.base),
            other: pair.map(|pair| pair.other),
            outcome,
            reason,
        };
        let [_, others @ ..] = group.rows.as_slice() else { continue };
        if others.is_empty() {
            lines.push(line(
                None,
                Outcome::Undecided,
                "there is one report only, and nothing to compare it with".into(),
            ));
        }
        for other in others {
            match comparison.against_base(*other) {
                Some(pair) => lines.push(line(Some(pair), outcome(pair, allowed_percent), pair.reason.clone())),
                None => lines.push(line(None, Outcome::Undecided, "it was not compared".into())),
            }
        }
    }
    let passed = !lines.is_empty() && lines.iter().all(|line| line.outcome == Outcome::Passed);
    Gate { allowed_percent, passed, lines }
}

fn outcome(pair: &Pair, allowed_percent: f64) -> Outcome {
    let most = 1.0 + allowed_percent / 100.0;
    match (pair.verdict, pair.ratio, pair.ratio_high) {
        (Verdict::Faster, ..) => Outcome::Passed,
        // "Same" is judged with margins of its own, which disturbed windows widen: it says nothing of this limit.
        (_, Some(_), Some(high)) if high <= most => Outcome::Passed,
        (Verdict::Slower, Some(ratio), _) if ratio > most => Outcome::Failed,
        _ => Outcome::Undecided,
    }
}

impl Gate {
    /// A line for every report, and the answer.
    pub fn render(&self) -> String {
        let mut text = String::new();
        for line in &self.lines {
            let rows = match (line.base, line.other) {
                (Some(base), Some(other)) => format!(" ({} against {})", other + 1, base + 1),
                _ => String::new(),
            };
            text.push_str(&format!("{}  {}  {}{rows}: {}\n", line.outcome.words(), line.sku, line.model, line.reason));
        }
        let answer = if self.passed { "passed" } else { "NOT passed" };
        text.push_str(&format!("gate {answer}: at most {} % slower is allowed\n", self.allowed_percent));
        text
    }
}
