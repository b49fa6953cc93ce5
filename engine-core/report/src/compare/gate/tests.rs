use super::*;
use crate::{
    compare::{compare, tests::report_of},
    testing::sample_report,
};

fn lines(base: &Report, other: &Report, limits: &[&str]) -> Vec<(Outcome, String)> {
    let limits: Vec<Limit> = limits.iter().map(|text| text.parse().unwrap()).collect();
    let reports = [base.clone(), other.clone()];
    let gate = judge(&compare(&reports).unwrap(), &reports, &limits);
    gate.lines.into_iter().map(|line| (line.outcome, line.reason)).collect()
}

fn outcomes(base: &Report, other: &Report, limits: &[&str]) -> Vec<Outcome> {
    lines(base, other, limits).into_iter().map(|(outcome, _)| outcome).collect()
}

/// Twenty windows of a hundred samples around 10 ms, of which one in `every` takes `slow` times as long.
fn with_tail(every: usize, slow: f64) -> Report {
    let sample = |window: usize, index: usize| {
        let noise = ((window * 37 + index * 91) % 101) as f64 / 101.0 * 0.02;
        10.0 * (1.0 + noise) * if (index + window * 7).is_multiple_of(every) { slow } else { 1.0 }
    };
    report_of(&(0..20).map(|window| (0..100).map(|index| sample(window, index)).collect()).collect::<Vec<_>>())
}

#[test]
fn a_tail_is_held_by_itself() {
    let (calm, tailed) = (with_tail(1_000_000, 1.0), with_tail(25, 3.0));
    assert_eq!(outcomes(&calm, &tailed, &["5", "p99=10"]), [Outcome::Passed, Outcome::Failed]);
    assert_eq!(outcomes(&calm, &calm, &["p99=10"]), [Outcome::Passed]);
    assert_eq!(outcomes(&tailed, &calm, &["p99=0"]), [Outcome::Passed], "shorter than before");
    // Six windows tell nothing of it.
    let few = report_of(&vec![vec![10.0; 50]; 6]);
    let [(outcome, reason)] = &lines(&few, &few, &["p99=10"])[..] else { panic!("one limit, one line") };
    assert!(*outcome == Outcome::Undecided && reason.contains("fewer than ten windows"), "{reason}");
}

#[test]
fn throughputs_are_of_items() {
    let base = with_tail(1_000_000, 1.0);
    let mut slower = report_of(&vec![vec![11.0, 11.1, 11.2, 11.05]; 20]);
    slower.batch = base.batch;
    assert_eq!(outcomes(&base, &slower, &["throughput=5"]), [Outcome::Failed]);
    assert_eq!(outcomes(&base, &slower, &["throughput=20"]), [Outcome::Passed]);
    let (_, reason) = lines(&base, &slower, &["throughput=5"]).remove(0);
    assert!(reason.contains("the ratio of throughputs is 0.9"), "{reason}");
}

#[test]
fn sizes_memory_and_accuracy_are_held_as_they_are() {
    let base = sample_report(1.0);
    let mut other = sample_report(1.0);
    other.plan.bytes = base.plan.bytes * 11 / 10;
    other.engine_memory_bytes = base.engine_memory_bytes * 2;
    assert_eq!(outcomes(&base, &other, &["size=10", "size=10", "memory=50"])[2], Outcome::Failed);
    assert_eq!(outcomes(&base, &other, &["size=11", "memory=100"]), [Outcome::Passed, Outcome::Passed]);
    assert_eq!(outcomes(&base, &other, &["size=9"]), [Outcome::Failed]);
    let (mut known, mut worse) = (base.clone(), other);
    let accuracy = crate::Accuracy { rows: 1000, correct: 970, top1: 0.97, reference_top1: None };
    known.accuracy = Some(accuracy.clone());
    worse.accuracy = Some(crate::Accuracy { correct: 965, top1: 0.965, ..accuracy });
    assert_eq!(outcomes(&known, &worse, &["accuracy=0.5", "accuracy=0.4"]), [Outcome::Passed, Outcome::Failed]);
    worse.accuracy = None;
    assert_eq!(outcomes(&known, &worse, &["accuracy=0.5"]), [Outcome::Undecided]);
}

#[test]
fn what_cannot_be_compared_has_undecided_latencies_and_a_size() {
    let base = sample_report(1.0);
    let mut wrong = sample_report(0.5);
    wrong.accurate = false;
    let limits = ["5", "p99=5", "throughput=5", "size=0", "accuracy=1"];
    let expected = [Outcome::Undecided, Outcome::Undecided, Outcome::Undecided, Outcome::Passed, Outcome::Failed];
    assert_eq!(outcomes(&base, &wrong, &limits), expected);
}

#[test]
fn the_answer_is_told_with_every_limit() {
    let reports = [sample_report(1.0), sample_report(1.0)];
    let limits: Vec<Limit> = ["5", "cpu-x86-64-v3:size=1", "t4:size=2"].iter().map(|l| l.parse().unwrap()).collect();
    let gate = judge(&compare(&reports).unwrap(), &reports, &limits);
    let text = gate.render();
    assert!(text.ends_with(
        "allowed is median latency at most 5 % slower, plan size at most 1 % more on cpu-x86-64-v3, plan size at most 2 % more on t4\n"
    ), "{text}");
    assert_eq!(gate.lines.len(), 2, "one that is for another device kind judges nothing: {text}");
}
