//! A gate for pipelines: may this change go out?
//!
//! Limits say by how much which figure may be worse. Within each group (one model on one SKU) every later report is judged
//! against the group's first, or every report against the baseline where there is one. Latencies pass when the whole
//! confidence interval of their ratio stays within the allowance; they fail when the figure is worse by more than is
//! allowed and the interval says that it is worse at all. Everything else, *cannot tell* among it, is undecided: nobody has
//! shown that it is good enough, so the gate does not pass. Sizes and accuracies have no noise and are held as they are.

mod limit;

pub use limit::{Figure, Limit};

use super::{Comparison, Pair, Verdict};
use crate::{
    Report,
    format::{bytes, percent},
};
use planforge_stats::{CI_CONFIDENCE, NoInterval, Place, RatioInterval, ratio_interval};
use serde::{Deserialize, Serialize};

/// What the gate says of one figure of one report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Passed,
    /// Worse by more than is allowed.
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
    pub limits: Vec<Limit>,
    pub passed: bool,
    /// One for every figure of every report that was judged, and for every group in which there was nothing to judge.
    pub lines: Vec<Line>,
}

/// One figure of one report against that of the one it is held against.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    pub sku: String,
    pub model: String,
    /// Indices of the comparison's rows; absent when the group has one report only.
    pub base: Option<usize>,
    pub other: Option<usize>,
    /// Absent where nothing was judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    pub outcome: Outcome,
    pub reason: String,
}

/// Judges every group of `comparison`, which is that of `reports`, by `limits`. Of two limits of one figure that of a
/// report's own SKU counts.
pub fn judge(comparison: &Comparison, reports: &[Report], limits: &[Limit]) -> Gate {
    let judged: Vec<Judged<'_>> = comparison.groups.iter().flat_map(|group| in_group(comparison, group)).collect();
    let wanted = |sku: &str| -> Vec<&Limit> { limits.iter().filter(|limit| limit.applies(limits, sku)).collect() };
    let intervals: usize = judged
        .iter()
        .filter(|one| one.pair.is_some())
        .map(|one| wanted(&one.group.sku).iter().filter(|limit| limit.figure.is_latency()).count())
        .sum();
    let confidence = 1.0 - (1.0 - CI_CONFIDENCE) / intervals.max(1) as f64;
    let mut lines = Vec::new();
    for Judged { group, pair, hindrance } in judged {
        let line = |limit: Option<&Limit>, outcome: Outcome, reason: String| Line {
            sku: group.sku.clone(),
            model: group.model.clone(),
            base: pair.map(|pair| pair.base),
            other: pair.map(|pair| pair.other),
            limit: limit.cloned(),
            outcome,
            reason,
        };
        let held = pair.and_then(|pair| Some((pair, reports.get(pair.base)?, reports.get(pair.other)?)));
        match (hindrance, held) {
            (None, Some((pair, base, other))) => lines.extend(wanted(&group.sku).into_iter().map(|limit| {
                let (outcome, reason) = figure(limit, pair, (base, other), confidence);
                line(Some(limit), outcome, reason)
            })),
            (hindrance, _) => {
                lines.push(line(None, Outcome::Undecided, hindrance.unwrap_or_else(|| "it was not compared".into())));
            }
        }
    }
    let passed = !lines.is_empty() && lines.iter().all(|line| line.outcome == Outcome::Passed);
    Gate { limits: limits.to_vec(), passed, lines }
}

/// A report that is judged, or a group without one.
struct Judged<'a> {
    group: &'a super::Group,
    pair: Option<&'a Pair>,
    /// Why nothing of it can be judged.
    hindrance: Option<String>,
}

fn in_group<'a>(comparison: &'a Comparison, group: &'a super::Group) -> Vec<Judged<'a>> {
    if !comparison.bases.is_empty() {
        let judged = group.rows.iter().filter(|row| !comparison.bases.contains(&Some(**row))).map(|row| {
            let pair = comparison.against_base(*row);
            let hindrance = pair.is_none().then(|| format!("there is no baseline for report {}", row + 1));
            Judged { group, pair, hindrance }
        });
        return judged.collect();
    }
    let base = if comparison.against_first { Some(0) } else { group.rows.first().copied() };
    let others: Vec<usize> = group.rows.iter().copied().filter(|row| Some(*row) != base).collect();
    if others.is_empty() && !comparison.against_first {
        let hindrance = Some("there is one report only, and nothing to compare it with".into());
        return vec![Judged { group, pair: None, hindrance }];
    }
    let judged = others.into_iter().map(|other| {
        let pair = comparison.against_base(other);
        let hindrance = pair.filter(|pair| pair.across_devices).map(|pair| pair.reason.clone());
        Judged { group, pair, hindrance }
    });
    judged.collect()
}

fn figure(limit: &Limit, pair: &Pair, (base, other): (&Report, &Report), confidence: f64) -> (Outcome, String) {
    let figure = limit.figure;
    if figure.is_latency() && pair.verdict == Verdict::CannotTell {
        return (Outcome::Undecided, pair.reason.clone());
    }
    match figure {
        Figure::Median => (median(pair, limit.allowed_percent), pair.reason.clone()),
        Figure::P99 | Figure::Throughput => by_interval(limit, (base, other), confidence),
        Figure::Memory => by_size(limit, base.engine_memory_bytes, other.engine_memory_bytes),
        Figure::Size => by_size(limit, base.plan.bytes, other.plan.bytes),
        Figure::Accuracy => by_accuracy(limit, base, other),
    }
}

fn median(pair: &Pair, allowed_percent: f64) -> Outcome {
    let most = 1.0 + allowed_percent / 100.0;
    match (pair.verdict, pair.ratio, pair.ratio_high) {
        (Verdict::Faster, ..) => Outcome::Passed,
        // "Same" is judged with margins of its own, which disturbed windows widen: it says nothing of this limit.
        (_, Some(_), Some(high)) if high <= most => Outcome::Passed,
        (Verdict::Slower, Some(ratio), _) if ratio > most => Outcome::Failed,
        _ => Outcome::Undecided,
    }
}

/// By a ratio of latencies and its interval.
fn by_interval(limit: &Limit, (base, other): (&Report, &Report), confidence: f64) -> (Outcome, String) {
    // A throughput is so much lower as the mean latency of an item is longer.
    let items = match limit.figure {
        Figure::Throughput => base.batch as f64 / other.batch as f64,
        _ => 1.0,
    };
    let most = match limit.figure {
        Figure::Throughput => 1.0 / (1.0 - limit.allowed_percent / 100.0),
        _ => 1.0 + limit.allowed_percent / 100.0,
    };
    let places = place(limit.figure, base, confidence).and_then(|a| Ok((a, place(limit.figure, other, confidence)?)));
    let (below, above) = match places {
        Ok(places) => places,
        Err(reason) => return (Outcome::Undecided, reason),
    };
    let Some(RatioInterval { log_ratio, log_low, log_high }) = ratio_interval(&below, &above) else {
        return (Outcome::Undecided, "a report holds no latency to divide by".into());
    };
    let [ratio, low, high] = [log_ratio, log_low, log_high].map(|log| log.exp() * items);
    let outcome = match () {
        () if high <= most => Outcome::Passed,
        () if ratio > most && low > 1.0 => Outcome::Failed,
        () => Outcome::Undecided,
    };
    let (what, [shown, from, to]) = match limit.figure {
        Figure::Throughput => ("throughputs", [1.0 / ratio, 1.0 / high, 1.0 / low]),
        _ => ("99th percentiles", [ratio, low, high]),
    };
    let bound = |value: f64| if value.is_finite() { format!("{value:.3}") } else { "no bound".into() };
    (outcome, format!("the ratio of {what} is {shown:.3}, interval {} to {}", bound(from), bound(to)))
}

/// Where the figure of a report lies.
fn place(figure: Figure, report: &Report, confidence: f64) -> Result<Place, String> {
    let samples = report.samples.decode().map_err(|error| error.to_string())?;
    let sizes = report.counted_windows();
    let found = match figure {
        Figure::P99 => Place::of_quantile(&samples, &sizes, 0.99, confidence),
        _ => Place::of_mean(&samples, &sizes, confidence),
    };
    found.map_err(|reason| {
        let why = match reason {
            NoInterval::OneWindow => "it has fewer than ten windows",
            other => other.words(),
        };
        format!(
            "where the {} of the report for {} lies is not known: {why} (measure it again, with more time)",
            figure.words(),
            report.sku
        )
    })
}

fn by_size(limit: &Limit, base_bytes: u64, other_bytes: u64) -> (Outcome, String) {
    let most = base_bytes as f64 * (1.0 + limit.allowed_percent / 100.0);
    let outcome = if other_bytes as f64 <= most { Outcome::Passed } else { Outcome::Failed };
    (outcome, format!("{} against {}", bytes(other_bytes), bytes(base_bytes)))
}

/// Top-1 accuracies by their difference in percentage points.
fn by_accuracy(limit: &Limit, base: &Report, other: &Report) -> (Outcome, String) {
    if !other.accurate {
        return (Outcome::Failed, "the outputs of the engine are wrong".into());
    }
    match (&base.accuracy, &other.accuracy) {
        (Some(base), Some(other)) => {
            let lower = (base.top1 - other.top1) * 100.0;
            // Shares of rows are quotients: their difference is off by an ulp or two.
            let outcome = if lower <= limit.allowed_percent + 1e-9 { Outcome::Passed } else { Outcome::Failed };
            (outcome, format!("top-1 {} against {}", percent(other.top1), percent(base.top1)))
        }
        _ => {
            (Outcome::Undecided, "there is no accuracy on labelled rows to hold it against (build with --eval)".into())
        }
    }
}

impl Gate {
    /// A line for every figure, and the answer.
    pub fn render(&self) -> String {
        let mut text = String::new();
        for line in &self.lines {
            let rows = match (line.base, line.other) {
                (Some(base), Some(other)) => format!(" ({} against {})", other + 1, base + 1),
                _ => String::new(),
            };
            let figure = line.limit.as_ref().map(|limit| format!("  {}", limit.figure.words())).unwrap_or_default();
            let (outcome, sku, model) = (line.outcome.words(), &line.sku, &line.model);
            text.push_str(&format!("{outcome}  {sku}  {model}{figure}{rows}: {}\n", line.reason));
        }
        let answer = if self.passed { "passed" } else { "NOT passed" };
        let limits: Vec<String> = self.limits.iter().map(Limit::words).collect();
        text.push_str(&format!("gate {answer}: allowed is {}\n", limits.join(", ")));
        text
    }
}

#[cfg(test)]
mod tests;
