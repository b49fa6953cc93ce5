//! Whether the cores of one device were equally fast beside two measurements.
//!
//! Windows carry what a fixed piece of work took around them ([`crate::WindowRecord::pace_ns`]). A neighbour on the same
//! cores that stays for a whole measurement disturbs all of its windows alike, and only another measurement shows it.

use super::measured_on;
use crate::Report;

/// Paces further apart than this leave nothing to be told of two engines.
const MAX_APART: f64 = 0.05;

/// The median pace of the windows that count, in nanoseconds, where all of them have one.
fn pace_ns(report: &Report) -> Option<f64> {
    let counted = report.windows.iter().filter(|window| window.tainted.is_empty() || window.kept_tainted);
    let paces = counted.map(|window| window.pace_ns.filter(|pace_ns| *pace_ns > 0.0)).collect::<Option<Vec<f64>>>()?;
    (!paces.is_empty()).then(|| planforge_stats::median(&paces))
}

/// Both paces, where the two reports are of one kind of device: those of different ones differ by nature.
fn paces_ns(left: &Report, right: &Report) -> Option<(f64, f64)> {
    let same = measured_on(left) == measured_on(right) && left.device.name == right.device.name;
    same.then(|| pace_ns(left).zip(pace_ns(right))).flatten()
}

/// The logarithm of the slower pace over the quicker one.
pub(super) fn apart(left: &Report, right: &Report) -> Option<f64> {
    paces_ns(left, right).map(|(left, right)| (left / right).ln().abs())
}

/// Why nothing can be told of the two; `None` where their paces allow it.
pub(super) fn hindrance(left: &Report, right: &Report) -> Option<String> {
    let (left_ns, right_ns) = paces_ns(left, right)?;
    (apart(left, right)? > MAX_APART.ln_1p()).then(|| {
        format!(
            "the cores were not equally fast: a fixed piece of work took {:.1} us beside one report and {:.1} us beside the \
             other (a neighbour on the same cores, or a lower clock; measure again)",
            left_ns / 1e3,
            right_ns / 1e3
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        compare::{Verdict, compare},
        testing::sample_report,
    };

    fn paced(centre_ms: f64, pace_ns: f64) -> Report {
        let mut report = sample_report(centre_ms);
        report.windows.iter_mut().for_each(|window| window.pace_ns = Some(pace_ns));
        report
    }

    fn verdict(left: Report, right: Report) -> (Verdict, String) {
        let comparison = compare(&[left, right]).unwrap();
        (comparison.pairs[0].verdict, comparison.pairs[0].reason.clone())
    }

    #[test]
    fn slower_cores_are_no_slower_engine() {
        assert_eq!(verdict(paced(1.0, 30_000.0), paced(1.4, 30_000.0)).0, Verdict::Slower);
        for (left, right) in [(30_000.0, 42_000.0), (42_000.0, 30_000.0)] {
            let (verdict, reason) = verdict(paced(1.0, left), paced(1.4, right));
            assert_eq!(verdict, Verdict::CannotTell);
            assert!(reason.contains("30.0 us beside") && reason.contains("42.0 us beside"), "{reason}");
        }
    }

    #[test]
    fn what_the_cores_explain_widens_the_margin() {
        assert_eq!(verdict(paced(1.0, 30_000.0), paced(1.04, 30_000.0)).0, Verdict::Slower);
        let (found, reason) = verdict(paced(1.0, 30_000.0), paced(1.04, 30_900.0));
        assert_ne!(found, Verdict::Slower, "{reason}");
        assert!(reason.ends_with("and 3 % more, for the cores were so much faster beside one"), "{reason}");
        assert_eq!(verdict(paced(1.04, 30_900.0), paced(1.0, 30_000.0)).0, found, "whichever comes first");
    }

    #[test]
    fn reports_without_a_pace_and_of_other_devices_are_judged_as_ever() {
        assert_eq!(verdict(sample_report(1.0), paced(1.4, 30_000.0)).0, Verdict::Slower);
        let mut other = paced(1.4, 60_000.0);
        other.device.name = "another CPU".into();
        assert_eq!(verdict(paced(1.0, 30_000.0), other).0, Verdict::Slower);
    }
}
