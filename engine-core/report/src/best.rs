//! Which engine answers a question: the fastest below a latency, the cheapest above an accuracy, and what no other beats in
//! everything at once.
//!
//! Every point that was measured is a candidate: the headline of a report, and the other batches of its sweep. What cannot
//! be an answer is left out with its reason, so that nobody wonders where an engine went.

use crate::{
    Report,
    compare::accuracy::Outputs,
    format::{bytes, milliseconds, per_second, percent},
};
use planforge_stats::LatencyStats;
use serde::Serialize;
use std::cmp::Ordering;

/// What the answer is best in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// Most items per second.
    Throughput,
    /// Shortest median latency.
    Latency,
    /// Shortest 99th percentile.
    P99,
    /// Least memory that the loaded engine holds.
    Memory,
    /// Smallest plan.
    Size,
    /// Highest top-1.
    Accuracy,
    /// Least cost of a million items.
    Cost,
}

impl Goal {
    pub const ALL: [Self; 7] =
        [Self::Throughput, Self::Latency, Self::P99, Self::Memory, Self::Size, Self::Accuracy, Self::Cost];

    pub fn name(self) -> &'static str {
        match self {
            Self::Throughput => "throughput",
            Self::Latency => "latency",
            Self::P99 => "p99",
            Self::Memory => "memory",
            Self::Size => "size",
            Self::Accuracy => "accuracy",
            Self::Cost => "cost",
        }
    }
}

/// What an answer has to keep; an absent bound asks for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Bounds {
    pub median_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    pub throughput_per_s: Option<f64>,
    pub memory_bytes: Option<u64>,
    pub top1: Option<f64>,
    /// Of the outputs, over their scale.
    pub max_error: Option<f64>,
}

/// A point that was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// Index of the report.
    pub report: usize,
    pub batch: u64,
    pub median_ms: f64,
    pub p99_ms: f64,
    pub throughput_per_s: f64,
    pub memory_bytes: u64,
    pub plan_bytes: u64,
    pub top1: Option<f64>,
    pub max_error: Option<f64>,
    /// Of a million items, in the unit of the price list; absent where that has no price of the device kind.
    pub cost_per_million: Option<f64>,
    /// No other is at least as good in latency, throughput, accuracy and size, and better in one of them.
    pub on_front: bool,
}

/// An engine, or a point of it, that is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    pub report: usize,
    pub batch: u64,
    pub reason: String,
}

/// The candidates that keep the bounds, the best first, and why the others are none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    pub goal: Goal,
    pub bounds: Bounds,
    pub candidates: Vec<Candidate>,
    pub left_out: Vec<LeftOut>,
}

/// Answers by what was measured. `price_per_hour` says what a device kind costs, where that is known.
pub fn best(reports: &[Report], goal: Goal, bounds: Bounds, price_per_hour: impl Fn(&str) -> Option<f64>) -> Answer {
    // Made-up numbers answer only where there are no others.
    let any_measured = reports.iter().any(|report| !report.simulated);
    let (mut candidates, mut left_out) = (Vec::new(), Vec::new());
    for (index, report) in reports.iter().enumerate() {
        for (mut candidate, hindrance) in points(index, report) {
            let sku = report.foreign.as_ref().map_or(&report.sku, |foreign| &foreign.measured_on);
            candidate.cost_per_million =
                price_per_hour(sku.as_str()).map(|price| price / 3600.0 / candidate.throughput_per_s * 1e6);
            let simulated = (report.simulated && any_measured).then(|| "its numbers are simulated".to_owned());
            let reason =
                hindrance.or(simulated).or_else(|| broken(&bounds, &candidate)).or_else(|| unknown(goal, &candidate));
            match reason {
                Some(reason) => left_out.push(LeftOut { report: index, batch: candidate.batch, reason }),
                None => candidates.push(candidate),
            }
        }
    }
    let beaten: Vec<bool> = candidates.iter().map(|one| candidates.iter().any(|other| beats(other, one))).collect();
    for (candidate, beaten) in candidates.iter_mut().zip(beaten) {
        candidate.on_front = !beaten;
    }
    candidates.sort_by(|a, b| worth(goal, a).total_cmp(&worth(goal, b)).then(a.median_ms.total_cmp(&b.median_ms)));
    Answer { goal, bounds, candidates, left_out }
}

/// Every point of a report, with why it is no answer.
fn points(index: usize, report: &Report) -> Vec<(Candidate, Option<String>)> {
    let outputs = Outputs::of(report);
    let point = |batch: u64, latency: &LatencyStats, throughput_per_s: f64| Candidate {
        report: index,
        batch,
        median_ms: latency.median,
        p99_ms: latency.p99,
        throughput_per_s,
        memory_bytes: report.engine_memory_bytes,
        plan_bytes: report.plan.bytes,
        top1: outputs.top1,
        max_error: outputs.max_error,
        cost_per_million: None,
        on_front: false,
    };
    let wrong = (!report.accurate).then(|| "its outputs are wrong".to_owned());
    let disturbed = |all: Option<String>| all.map(|reason| format!("every window was disturbed ({reason})"));
    let headline = wrong.clone().or_else(|| disturbed(report.wholly_disturbed().map(|reason| reason.to_string())));
    let mut found = vec![(point(report.batch, &report.latency_ms, report.throughput_per_s), headline)];
    let sweep = report.batches.iter().flat_map(|batches| &batches.points).filter(|point| !point.headline);
    for swept in sweep {
        let (Some(latency), Some(throughput)) = (&swept.latency_ms, swept.throughput_per_s) else { continue };
        let hindrance = wrong.clone().or_else(|| swept.disturbed.then(|| "every window was disturbed".to_owned()));
        found.push((point(swept.batch.into(), latency, throughput), hindrance));
    }
    found
}

/// The first bound that a candidate does not keep, or does not show that it does.
fn broken(bounds: &Bounds, candidate: &Candidate) -> Option<String> {
    let kept = |what: &str, value: Option<f64>, bound: Option<f64>, most: bool, show: &dyn Fn(f64) -> String| {
        let bound = bound?;
        let Some(value) = value else { return Some(format!("its {what} is not known")) };
        let (is_kept, side) = if most { (value <= bound, "above") } else { (value >= bound, "below") };
        (!is_kept).then(|| format!("its {what} is {}, {side} {}", show(value), show(bound)))
    };
    let size = |value: f64| bytes(value as u64);
    let memory = (Some(candidate.memory_bytes as f64), bounds.memory_bytes.map(|bytes| bytes as f64));
    let throughput = Some(candidate.throughput_per_s);
    kept("median latency", Some(candidate.median_ms), bounds.median_ms, true, &milliseconds)
        .or_else(|| kept("99th percentile", Some(candidate.p99_ms), bounds.p99_ms, true, &milliseconds))
        .or_else(|| kept("throughput", throughput, bounds.throughput_per_s, false, &per_second))
        .or_else(|| kept("memory", memory.0, memory.1, true, &size))
        .or_else(|| kept("top-1 accuracy", candidate.top1, bounds.top1, false, &percent))
        .or_else(|| kept("largest error", candidate.max_error, bounds.max_error, true, &|error| format!("{error:.1e}")))
}

/// Why the goal says nothing of a candidate.
fn unknown(goal: Goal, candidate: &Candidate) -> Option<String> {
    match goal {
        Goal::Accuracy if candidate.top1.is_none() => Some("its accuracy was not measured (build with --eval)".into()),
        Goal::Cost if candidate.cost_per_million.is_none() => Some("its device kind has no price".into()),
        _ => None,
    }
}

/// The less, the better.
fn worth(goal: Goal, candidate: &Candidate) -> f64 {
    match goal {
        Goal::Throughput => -candidate.throughput_per_s,
        Goal::Latency => candidate.median_ms,
        Goal::P99 => candidate.p99_ms,
        Goal::Memory => candidate.memory_bytes as f64,
        Goal::Size => candidate.plan_bytes as f64,
        Goal::Accuracy => -candidate.top1.unwrap_or_default(),
        Goal::Cost => candidate.cost_per_million.unwrap_or(f64::INFINITY),
    }
}

/// Whether `one` is at least as good as `other` in everything, and better in something. Accuracy counts where both know
/// theirs.
fn beats(one: &Candidate, other: &Candidate) -> bool {
    let accuracy = match (one.top1, other.top1) {
        (Some(a), Some(b)) => b.total_cmp(&a),
        _ => match (one.max_error, other.max_error) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            _ => Ordering::Equal,
        },
    };
    let all = [
        one.median_ms.total_cmp(&other.median_ms),
        other.throughput_per_s.total_cmp(&one.throughput_per_s),
        one.plan_bytes.cmp(&other.plan_bytes),
        accuracy,
    ];
    all.iter().all(|order| order.is_le()) && all.iter().any(|order| order.is_lt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{disturbed, sample_report, with_ceilings_and_batches};
    use proptest::prelude::*;

    fn on(sku: &str, centre_ms: f64) -> Report {
        let mut report = sample_report(centre_ms);
        report.sku = sku.parse().unwrap();
        report.throughput_per_s = 1e3 / report.latency_ms.mean;
        report
    }

    fn order(answer: &Answer) -> Vec<usize> {
        answer.candidates.iter().map(|candidate| candidate.report).collect()
    }

    #[test]
    fn the_best_within_bounds_comes_first_and_what_is_left_out_says_why() {
        let mut wrong = on("t4", 0.1);
        wrong.accurate = false;
        let reports = [on("t4", 4.0), on("h100-sxm", 0.5), on("a100-pcie-40gb", 1.0), wrong, disturbed(on("t4", 0.2))];
        let bounds = Bounds { p99_ms: Some(2.0), ..Bounds::default() };
        let answer = best(&reports, Goal::Throughput, bounds, |_| None);
        assert_eq!(order(&answer), [1, 2]);
        let reasons: Vec<(usize, &str)> = answer.left_out.iter().map(|out| (out.report, out.reason.as_str())).collect();
        assert_eq!(reasons[0], (0, "its 99th percentile is 4.079 ms, above 2.000 ms"));
        assert_eq!(reasons[1], (3, "its outputs are wrong"));
        assert!(reasons[2].1.starts_with("every window was disturbed"), "{reasons:?}");
    }

    #[test]
    fn the_cheapest_is_by_price_and_throughput() {
        let reports = [on("t4", 4.0), on("h100-sxm", 0.5), on("l4", 1.0)];
        let price = |sku: &str| match sku {
            "t4" => Some(0.35),
            "h100-sxm" => Some(4.0),
            _ => None,
        };
        let answer = best(&reports, Goal::Cost, Bounds::default(), price);
        assert_eq!(order(&answer), [0, 1], "eight times faster, and eleven times as dear");
        let cost = answer.candidates[0].cost_per_million.unwrap();
        assert!((cost - 0.35 / 3600.0 * answer.candidates[0].median_ms * 1e3).abs() < 0.01, "{cost}");
        assert_eq!(answer.left_out[0].reason, "its device kind has no price");
    }

    #[test]
    fn batches_of_a_sweep_are_points_of_their_own_and_the_headline_is_one() {
        let answer =
            best(&[with_ceilings_and_batches(sample_report(1.0))], Goal::Throughput, Bounds::default(), |_| None);
        let batches: Vec<u64> = answer.candidates.iter().map(|candidate| candidate.batch).collect();
        assert_eq!(batches, [8, 1]);
    }

    #[test]
    fn simulated_numbers_answer_only_where_there_are_no_others() {
        let mut simulated = on("t4", 0.1);
        simulated.simulated = true;
        let both = best(&[on("t4", 4.0), simulated.clone()], Goal::Latency, Bounds::default(), |_| None);
        assert_eq!((order(&both), both.left_out[0].reason.as_str()), (vec![0], "its numbers are simulated"));
        assert_eq!(order(&best(&[simulated], Goal::Latency, Bounds::default(), |_| None)), [0]);
    }

    proptest! {
        /// Whatever is asked for, an answer on the front beats nothing better, and everything off it is beaten by something.
        #[test]
        fn the_front_is_what_nothing_beats(figures in prop::collection::vec((1..20u32, 1..20u32, 1..20u64), 1..12)) {
            let reports: Vec<Report> = figures.iter().map(|(latency, throughput, size)| {
                let mut report = sample_report(f64::from(*latency));
                report.throughput_per_s = f64::from(*throughput);
                report.plan.bytes = *size;
                report
            }).collect();
            let answer = best(&reports, Goal::Size, Bounds::default(), |_| None);
            prop_assert_eq!(answer.candidates.len(), reports.len());
            for one in &answer.candidates {
                let beaten = answer.candidates.iter().any(|other| other.on_front && beats(other, one));
                prop_assert_eq!(one.on_front, !beaten);
            }
        }
    }
}
