//! Verdicts take windows: with fewer than five nobody can tell a difference of engines from one of windows.

use super::{gate, tests::report_of, *};
use crate::Foreign;
use rand::{RngExt as _, SeedableRng as _, rngs::Xoshiro256PlusPlus};

/// A report of one and the same engine: windows lie 3 % apart, samples of one window hardly at all.
fn report(seed: u64, windows: usize) -> Report {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut spread = |size: f64| 1.0 + (random.random::<f64>() - 0.5) * 2.0 * size;
    let window = |_| {
        let level = 10.0 * spread(0.03);
        (0..100).map(|_| level * spread(0.002)).collect()
    };
    report_of(&(0..windows).map(window).collect::<Vec<Vec<f64>>>())
}

/// Everything that is said of two reports: the verdict with its reason, and whether gates would let the second pass.
fn said(left: &Report, right: &Report) -> (Pair, bool) {
    let reports = [left.clone(), right.clone()];
    let comparison = compare(&reports).unwrap();
    let passes = |allowed: f64| gate::judge(&comparison, &reports, &[gate::Limit::of_median(allowed)]).passed;
    let passed = [0.5, 1.0, 5.0, 100.0].into_iter().any(passes);
    (comparison.pairs[0].clone(), passed)
}

#[test]
fn of_two_reports_of_one_engine_with_few_windows_nothing_is_told() {
    for (left, right) in [(1, 1), (2, 2), (1, 2), (4, 4), (1, 8), (8, 4)] {
        for seed in 0..60 {
            let (pair, passed) = said(&report(2 * seed, left), &report(2 * seed + 1, right));
            assert_eq!(pair.verdict, Verdict::CannotTell, "{left} and {right} windows: {pair:?}");
            assert!(pair.reason.starts_with("too few windows: "), "{}", pair.reason);
            assert_eq!((pair.ratio, pair.ratio_low, pair.ratio_high), (None, None, None));
            assert!(!passed, "a gate passed on {left} and {right} windows");
        }
    }
}

#[test]
fn five_windows_on_both_sides_are_enough() {
    let (pair, _) = said(&report(1, 5), &report(2, 5));
    assert_ne!(pair.verdict, Verdict::CannotTell, "{pair:?}");
    let (same, passed) = said(&report(1, 5), &report(1, 5));
    assert!(same.verdict != Verdict::CannotTell && passed, "{same:?}");
}

#[test]
fn the_windows_that_are_used_are_counted() {
    let whole = report(1, 8);
    // Discarded: their samples are in no report.
    let discarded = |count: usize| {
        let mut report = report(2, 8 - count);
        let mut gone = report.windows[0].clone();
        gone.tainted = vec!["waited for a processor: 50 %".into()];
        report.windows.extend(vec![gone; count]);
        report
    };
    assert_eq!(said(&whole, &discarded(4)).0.verdict, Verdict::CannotTell);
    assert_ne!(said(&whole, &discarded(3)).0.verdict, Verdict::CannotTell);
    // Disturbed and kept: they count, as their samples do.
    let mut kept = report(3, 5);
    kept.windows.iter_mut().take(4).for_each(|window| {
        (window.tainted, window.kept_tainted) = (vec!["waited for a processor: 50 %".into()], true);
    });
    assert_ne!(said(&whole, &kept).0.verdict, Verdict::CannotTell);
    // Empty: they hold nothing.
    let mut empty = report(4, 4);
    let nothing = crate::WindowRecord { iterations: 0, ..empty.windows[0].clone() };
    empty.windows.extend(vec![nothing; 4]);
    assert_eq!(said(&whole, &empty).0.verdict, Verdict::CannotTell);
}

#[test]
fn a_foreign_plan_loses_nothing_that_few_windows_could_tell() {
    let own = report(1, 8);
    let foreign = |windows: usize| {
        let (built_for, measured_on) = ("cpu-x86-64-v2".parse().unwrap(), own.sku.clone());
        Report { foreign: Some(Foreign { built_for, measured_on }), ..report(2, windows) }
    };
    let few = portability(&foreign(4), std::slice::from_ref(&own)).unwrap();
    assert!(few.loss.is_none() && few.words().starts_with("not measured: too few windows"), "{}", few.words());
    let few = portability(&foreign(8), &[report(1, 1)]).unwrap();
    assert!(few.loss.is_none() && few.words().starts_with("not measured: too few windows"), "{}", few.words());
    assert!(portability(&foreign(5), std::slice::from_ref(&own)).unwrap().loss.is_some());
}

#[test]
fn a_row_of_one_window_has_no_interval() {
    let comparison = compare(&[report(1, 1), report(2, 8)]).unwrap();
    let [one, many] = &comparison.rows[..] else { panic!("two rows") };
    assert_eq!((one.ci_low_ms, one.ci_high_ms, one.windows), (None, None, 1));
    assert!(many.ci_low_ms < many.ci_high_ms && many.windows == 8);
    let json = serde_json::to_value(&comparison).unwrap();
    assert!(json["rows"][0].get("ci_low_ms").is_none() && json["rows"][1]["ci_low_ms"].is_number());
}
