use super::*;
use crate::{Samples, testing::sample_report};
use planforge_stats::latency_stats;
use planforge_types::Digest;
use rand::{RngExt as _, SeedableRng as _, rngs::Xoshiro256PlusPlus};

/// A report over the given windows.
pub(super) fn report_of(windows: &[Vec<f64>]) -> Report {
    let mut report = sample_report(1.0);
    let template = report.windows[0].clone();
    report.windows =
        windows.iter().map(|w| crate::WindowRecord { iterations: w.len() as u32, ..template.clone() }).collect();
    let samples = windows.concat();
    report.samples = Samples::encode(&samples);
    let sizes: Vec<usize> = windows.iter().map(Vec::len).collect();
    report.latency_ms = latency_stats(&samples, &sizes).unwrap();
    report
}

/// Eight windows around `centre`; each has an offset of its own of up to `drift` and noise of `noise`, both relative.
fn noisy(seed: u64, centre: f64, drift: f64, noise: f64) -> Report {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut spread = |size: f64| 1.0 + (random.random::<f64>() - 0.5) * 2.0 * size;
    let windows: Vec<Vec<f64>> = (0..8)
        .map(|_| {
            let level = centre * spread(drift);
            (0..50).map(|_| level * spread(noise)).collect()
        })
        .collect();
    report_of(&windows)
}

fn verdict(left: &Report, right: &Report) -> (Verdict, String) {
    let mut comparison = compare(&[left.clone(), right.clone()]).unwrap();
    let pair = comparison.pairs.remove(0);
    (pair.verdict, pair.reason)
}

#[test]
fn clear_cases_are_told() {
    let base = noisy(1, 10.0, 0.002, 0.02);
    assert_eq!(verdict(&base, &noisy(2, 8.0, 0.002, 0.02)).0, Verdict::Faster);
    assert_eq!(verdict(&base, &noisy(3, 12.0, 0.002, 0.02)).0, Verdict::Slower);
    assert_eq!(verdict(&base, &noisy(4, 10.0, 0.002, 0.02)).0, Verdict::Same);
    assert_eq!(verdict(&base, &base).0, Verdict::Same);
}

#[test]
fn noise_wider_than_the_difference_is_ambiguous() {
    let (found, reason) = verdict(&noisy(1, 10.0, 0.2, 0.02), &noisy(2, 10.5, 0.2, 0.02));
    assert_eq!(found, Verdict::Ambiguous, "{reason}");
}

#[test]
fn drift_between_windows_is_not_taken_for_a_difference() {
    // Both measure the same engine; windows drift by a tenth. Within windows there is next to no noise, so counting
    // samples alone would be sure of a difference nearly every time.
    let trials = 60;
    let wrong = (0..trials)
        .filter(|i| {
            let (found, _) = verdict(&noisy(2 * i, 10.0, 0.1, 0.001), &noisy(2 * i + 1, 10.0, 0.1, 0.001));
            matches!(found, Verdict::Faster | Verdict::Slower)
        })
        .count();
    assert!(wrong <= 3, "{wrong} of {trials} called a difference that is not there");
}

#[test]
fn what_does_not_measure_the_same_cannot_be_told() {
    let base = sample_report(1.0);
    let with = |change: fn(&mut Report)| {
        let mut other = sample_report(0.5);
        change(&mut other);
        verdict(&base, &other)
    };
    assert_eq!(with(|_| ()).0, Verdict::Faster);
    for (change, part) in [
        ((|r| r.simulated = true) as fn(&mut Report), "simulated"),
        (|r| r.model.digest = Digest::of(b"other"), "models differ"),
        (|r| r.inputs[0].shape[0] = Some(8), "inputs differ: image:1x64 and image:8x64"),
        (|r| r.accurate = false, "outputs of the engine for cpu-x86-64-v3 are wrong"),
        (|r| *r = report_of(&[vec![0.5; 5]]), "only 5 samples"),
        (
            |r| {
                r.windows
                    .iter_mut()
                    .for_each(|w| (w.tainted, w.kept_tainted) = (vec!["throttled: thermal".into()], true))
            },
            "every window of the report for cpu-x86-64-v3 was disturbed (throttled: thermal)",
        ),
    ] {
        let (found, reason) = with(change);
        assert_eq!(found, Verdict::CannotTell, "{part}");
        assert!(reason.contains(part), "{reason}");
    }
}

#[test]
fn other_weights_of_the_same_structure_are_compared_and_named() {
    let structure = Some(Digest::of(b"structure"));
    let mut base = sample_report(1.0);
    base.model.structure_digest = structure;
    let mut other = sample_report(0.5);
    other.model = crate::ModelRef { digest: Digest::of(b"retrained"), ..base.model.clone() };
    let comparison = compare(&[base, other]).unwrap();
    assert_eq!(comparison.pairs[0].verdict, Verdict::Faster);
    assert!(comparison.pairs[0].differences[0].starts_with("weights: "), "{:?}", comparison.pairs[0].differences);
}

#[test]
fn a_disturbed_measurement_needs_a_larger_difference() {
    let base = noisy(1, 10.0, 0.001, 0.01);
    let mut other = noisy(2, 9.5, 0.001, 0.01);
    assert_eq!(verdict(&base, &other).0, Verdict::Faster);
    other.windows.iter_mut().skip(1).for_each(|window| {
        window.tainted = vec!["waited for a processor: 9 %".into()];
        window.kept_tainted = true;
    });
    let (found, reason) = verdict(&base, &other);
    assert!(found == Verdict::Same && reason.contains("disturbed"), "{found:?} {reason}");
}

#[test]
fn the_verdict_turns_with_the_order_and_repeats() {
    let (left, right) = (noisy(1, 10.0, 0.01, 0.02), noisy(2, 8.0, 0.01, 0.02));
    assert_eq!((verdict(&left, &right).0, verdict(&right, &left).0), (Verdict::Faster, Verdict::Slower));
    assert_eq!(compare(&[left.clone(), right.clone()]).unwrap(), compare(&[left, right]).unwrap());
}

/// A verdict, with what it is for whoever swaps the two reports.
fn swapped(verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Faster => Verdict::Slower,
        Verdict::Slower => Verdict::Faster,
        other => other,
    }
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(16))]

    #[test]
    fn the_other_way_round_everything_is_the_mirror_image(
        seed in 0..1000u64,
        percent in -15..15i32,
        drift in 0.0..0.1f64,
        noise in 0.001..0.1f64,
        disturbed in proptest::bool::ANY,
    ) {
        let left = noisy(2 * seed, 10.0, drift, noise);
        let mut right = noisy(2 * seed + 1, 10.0 * (1.0 + f64::from(percent) / 100.0), drift, noise);
        right.windows[0].kept_tainted = disturbed;
        if disturbed {
            right.windows[0].tainted = vec!["waited for a processor: 9 %".into()];
        }
        let pair = |left: &Report, right: &Report| compare(&[left.clone(), right.clone()]).unwrap().pairs.remove(0);
        let (there, back) = (pair(&left, &right), pair(&right, &left));
        proptest::prop_assert_eq!(there.verdict, swapped(back.verdict));
        let of = |pair: &Pair| (pair.ratio.unwrap(), pair.ratio_low.unwrap(), pair.ratio_high.unwrap());
        let ((ratio, low, high), (back_ratio, back_low, back_high)) = (of(&there), of(&back));
        for (value, inverse) in [(ratio, back_ratio), (low, back_high), (high, back_low)] {
            proptest::prop_assert!((value * inverse - 1.0).abs() < 1e-12, "{} and {}", value, inverse);
        }
    }
}

#[test]
fn margins_are_as_far_from_one_on_either_side() {
    let interval = |log_ratio: f64| RatioInterval { log_ratio, log_low: log_ratio - 1e-3, log_high: log_ratio + 1e-3 };
    let basis = Basis::of(1);
    for (margin, disturbed) in [(SAME_MARGIN, false), (DISTURBED_MARGIN, true)] {
        let verdict =
            |log_ratio: f64| judge(&interval(log_ratio), Condition { disturbed, roughly: false, apart: 0.0 }, &basis).0;
        let edge = (1.0 + margin).ln();
        assert_eq!((verdict(edge), verdict(-edge)), (Verdict::Slower, Verdict::Faster));
        let within = edge - 1.1e-3;
        assert_eq!((verdict(within), verdict(-within)), (Verdict::Same, Verdict::Same));
        // 1 - margin is farther from 1 than 1 + margin is: it was the edge once.
        assert_eq!(verdict((1.0 - margin).ln() + 1e-9), Verdict::Faster);
    }
}

#[test]
fn many_pairs_share_the_error_and_say_so() {
    let reports: Vec<Report> = (0..10).map(|seed| noisy(seed, 10.0, 0.002, 0.02)).collect();
    let width = |reports: &[Report]| {
        let comparison = compare(reports).unwrap();
        let pair = comparison.pairs[0].clone();
        (pair.ratio_high.unwrap() - pair.ratio_low.unwrap(), pair.reason, comparison.basis.unwrap())
    };
    let ((two, reason, alone), (ten, shared, together)) = (width(&reports[..2]), width(&reports));
    assert!(reason.contains("95 % interval") && shared.contains("99.89 % interval"), "{reason}, {shared}");
    assert!(ten > 1.2 * two, "{ten} {two}");
    assert_eq!((alone.pairs, together.pairs, together.together), (1, 45, 0.95));
    let words = together.words();
    assert!(words.contains("within 2 %") && words.contains("within 10 %") && words.contains("all 45 pairs"), "{words}");
    // Pairs that nothing is told of take no share.
    let mut odd = reports[2].clone();
    odd.accurate = false;
    let basis = compare(&[reports[0].clone(), reports[1].clone(), odd]).unwrap().basis.unwrap();
    assert_eq!((basis.pairs, basis.each), (1, 0.95));
}

#[test]
fn windows_that_resemble_their_neighbours_tell_large_differences_only() {
    // The level goes up and down slowly, through 3 % of itself.
    let waves = |centre: f64| {
        let level = |window: i32| centre * (1.0 + 0.015 * (f64::from(window) / 4.0).sin());
        report_of(&(0..20).map(|window| vec![level(window); 20]).collect::<Vec<_>>())
    };
    let pair = |other: f64| compare(&[waves(10.0), waves(other)]).unwrap().pairs.remove(0);
    assert_eq!(waves(10.0).interval(), Err(NoInterval::Alike));
    for (other, verdict) in
        [(10.0, Verdict::Same), (10.5, Verdict::Ambiguous), (11.5, Verdict::Slower), (8.5, Verdict::Faster)]
    {
        let found = pair(other);
        assert_eq!(found.verdict, verdict, "{other}: {found:?}");
        assert!(found.reason.contains("roughly") && found.reason.contains("resemble each other too much"), "{found:?}");
        assert!(found.reason.ends_with("within 10 % count as none"), "{found:?}");
    }
    // One that rises all the time may have come from anywhere.
    let rising: Vec<Vec<f64>> = (0..20).map(|window| vec![10.0 + f64::from(window) / 10.0; 20]).collect();
    let pair = compare(&[noisy(1, 10.0, 0.002, 0.02), report_of(&rising)]).unwrap().pairs.remove(0);
    assert_eq!(pair.verdict, Verdict::Ambiguous);
    assert!(pair.ratio_low.unwrap() < 0.8 && pair.ratio_high.unwrap() > 1.3, "{pair:?}");
}

#[test]
fn numbers_of_reports_are_bounded_and_damage_is_told() {
    let one = sample_report(1.0);
    assert!(matches!(compare(std::slice::from_ref(&one)), Err(CompareError::TooFew(1))));
    assert!(matches!(compare(&vec![one.clone(); MAX_REPORTS + 1]), Err(CompareError::TooMany { count: 65, most: 64 })));
    let mut damaged = one.clone();
    damaged.samples.count += 1;
    assert!(matches!(compare(&[one, damaged]), Err(CompareError::Samples { index: 1, .. })));
}

#[test]
fn one_report_is_held_against_many_and_they_against_nothing_else() {
    let mut reports = vec![sample_report(1.0); MAX_AGAINST_BASELINE + 1];
    reports[2].sku = "cpu-x86-64-v2".parse().unwrap();
    reports[3].sku = "cpu-x86-64-v2".parse().unwrap();
    let comparison = compare_among(&reports, &[], Scheme::Baseline).unwrap();
    assert_eq!(comparison.pairs.len(), MAX_AGAINST_BASELINE);
    assert!(comparison.pairs.iter().all(|pair| pair.base == 0));
    assert_eq!(comparison.against_base(0), None);
    assert_eq!(comparison.against_base(3).map(|pair| (pair.base, pair.across_devices)), Some((0, true)));
    let gate = gate::judge(&comparison, &reports, &[gate::Limit::of_median(5.0)]);
    assert_eq!(gate.lines.len(), MAX_AGAINST_BASELINE, "each is judged");
    let elsewhere = gate.lines.iter().filter(|line| line.reason.contains("on different device kinds"));
    let elsewhere: Vec<_> = elsewhere.map(|line| (line.other, line.outcome)).collect();
    assert_eq!(elsewhere, [(Some(2), gate::Outcome::Undecided), (Some(3), gate::Outcome::Undecided)]);
    reports.push(sample_report(1.0));
    assert!(matches!(compare_among(&reports, &[], Scheme::Baseline), Err(CompareError::TooMany { .. })));
}

#[test]
fn steps_are_told_against_the_base_that_verdicts_are_against() {
    let mut other = sample_report(2.0);
    other.layers[0].tactic = "another".into();
    let mut stranger = sample_report(1.0);
    stranger.model.digest = Digest::of(b"stranger");
    let reports = [sample_report(1.0), other, stranger];
    let comparison = compare(&reports).unwrap();
    assert!(comparison.layers.is_empty(), "nobody asked");
    let comparison = comparison.with_layers(&reports);
    assert_eq!(comparison.layers.iter().map(|l| (l.base, l.other)).collect::<Vec<_>>(), [(0, 1)]);
    let changed = comparison.layers[0].parts.iter().filter(|part| !part.changes.is_empty());
    assert_eq!(changed.count(), 1);
    assert_eq!(serde_json::from_str::<Comparison>(&serde_json::to_string(&comparison).unwrap()).unwrap(), comparison);
}

#[test]
fn a_comparison_comes_back() {
    let mut slow = sample_report(2.0);
    slow.sku = "cpu-x86-64-v2".parse().unwrap();
    let mut wrong = sample_report(0.1);
    wrong.accurate = false;
    wrong.accuracy = None;
    let comparison = compare(&[sample_report(1.0), slow, wrong]).unwrap();
    let text = serde_json::to_string(&comparison).unwrap();
    assert_eq!(serde_json::from_str::<Comparison>(&text).unwrap(), comparison);
    // Two on one SKU, and one on another: that is compared with the first only.
    assert_eq!(comparison.pairs.iter().map(|p| (p.base, p.other)).collect::<Vec<_>>(), [(0, 1), (0, 2)]);
    assert_eq!(comparison.groups.iter().map(|g| g.rows.clone()).collect::<Vec<_>>(), [vec![0, 2], vec![1]]);
    assert!(text.contains(r#""verdict":"cannot_tell""#));
}

/// A report of a simulated run on a GPU.
fn on(sku: &str, version: &str, centre_ms: f64) -> Report {
    let mut report = noisy(u64::from(version.len() as u32), centre_ms, 0.002, 0.01);
    report.simulated = true;
    report.sku = sku.parse().unwrap();
    report.toolchain.backend = "tensorrt".into();
    report.toolchain.version = version.into();
    report
}

#[test]
fn an_upgrade_is_judged_per_sku() {
    let reports = [
        on("t4", "10.13.3.9", 4.0),
        on("t4", "11.1.0.106", 3.6),
        on("h100-sxm", "10.13.3.9", 0.5),
        on("h100-sxm", "11.1.0.106", 0.55),
    ];
    let comparison = compare(&reports).unwrap();
    let verdict = |row: usize| comparison.against_base(row).map(|pair| (pair.base, pair.verdict, pair.across_devices));
    assert_eq!(verdict(0), None);
    assert_eq!(verdict(1), Some((0, Verdict::Faster, false)));
    assert_eq!(verdict(2), Some((0, Verdict::Faster, true)), "a base of another device is told as such");
    assert_eq!(verdict(3), Some((2, Verdict::Slower, false)));
    let reason = &comparison.against_base(2).unwrap().reason;
    assert!(reason.contains("on different device kinds, t4 and h100-sxm"), "{reason}");
    assert!(!reason.contains("aster") && !reason.contains("lower"), "{reason}");
}

#[test]
fn modes_of_running_must_agree() {
    use crate::{LatencySplit, ModeSplit};
    let with = |transfers: bool| {
        let mut report = on("t4", "10.13.3.9", 1.0);
        let mode = ModeSplit { cuda_graph: true, transfers, ..ModeSplit::default() };
        report.split = Some(LatencySplit { modes: vec![mode] });
        report
    };
    assert_eq!(verdict(&with(true), &with(true)).0, Verdict::Same);
    let (found, reason) = verdict(&with(true), &with(false));
    assert!(found == Verdict::CannotTell && reason.contains("modes of running differ"), "{reason}");
}

#[test]
fn portable_builds_are_compared_with_the_plain_one() {
    let plain = on("a100-sxm4-80gb", "10.13.3.9", 1.0);
    let mut portable = on("a100-sxm4-80gb", "10.13.3.9", 1.12);
    portable.spec.hardware_compatibility = Some("ampere+".into());
    portable.spec.version_compatible = true;
    let comparison = compare(&[plain, portable]).unwrap();
    let pair = &comparison.pairs[0];
    assert_eq!(pair.verdict, Verdict::Slower);
    assert!(pair.differences.iter().any(|d| d == "hardware compatibility: none and ampere+"), "{:?}", pair.differences);
    assert_eq!(comparison.rows[1].extras, ["ampere+", "version-compatible"]);
}

#[test]
fn a_gate_passes_only_what_is_shown_to_be_fast_enough() {
    use super::gate::{Gate, Limit, Outcome};
    let judge = |reports: &[Report], allowed: f64| -> Gate {
        gate::judge(&compare(reports).unwrap(), reports, &[Limit::of_median(allowed)])
    };
    let outcome = |centre_ms: f64, drift: f64| {
        let other = Report { simulated: true, ..noisy(9, centre_ms, drift, 0.01) };
        let mut other = Report { sku: "t4".parse().unwrap(), ..other };
        other.toolchain = on("t4", "11.1", 1.0).toolchain;
        let reports = [on("t4", "10.13", 1.0), other];
        let outcome = |allowed| judge(&reports, allowed).lines.remove(0).outcome;
        (compare(&reports).unwrap().pairs[0].verdict, outcome(0.5), outcome(5.0))
    };
    let (verdict, narrow, wide) = outcome(1.01, 0.002);
    assert_eq!((verdict, wide), (Verdict::Same, Outcome::Passed));
    assert_ne!(narrow, Outcome::Passed, "what is the same for a verdict may be slower than a narrow gate allows");
    let outcome = |centre_ms: f64, drift: f64| outcome(centre_ms, drift).2;
    assert_eq!(outcome(0.8, 0.002), Outcome::Passed);
    assert_eq!(outcome(1.0, 0.002), Outcome::Passed);
    assert_eq!(outcome(1.03, 0.002), Outcome::Passed, "slower, but by less than is allowed");
    assert_eq!(outcome(1.2, 0.002), Outcome::Failed);
    assert_eq!(outcome(1.02, 0.3), Outcome::Undecided);
    let mut real = on("t4", "11.1", 0.5);
    real.simulated = false;
    let gate = judge(&[on("t4", "10.13", 1.0), real], 5.0);
    assert_eq!(gate.lines[0].outcome, Outcome::Undecided, "cannot tell is no pass");
    assert!(!gate.passed);
    let alone = judge(&[on("t4", "10.13", 1.0), on("l4", "10.13", 1.0)], 5.0);
    assert!(!alone.passed && alone.lines.iter().all(|l| l.outcome == Outcome::Undecided), "nothing was compared");
}
