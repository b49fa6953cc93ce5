//! Which of several stored reports a new one is held against.

use super::{measured_on, same_work};
use crate::Report;

/// The report among `stored` that measured what `report` measures: the same work on the same device kind. Of several the
/// one nearest to it counts: first the same spec, then the same precision, then the same shapes, then the same backend;
/// of equals the newest. A report that is stored itself is its own: it was not replaced. `None` where there is none.
pub fn precedent<'a>(report: &Report, stored: impl IntoIterator<Item = &'a Report>) -> Option<&'a Report> {
    let fits = |other: &&Report| {
        measured_on(other) == measured_on(report)
            && same_work(other, report)
            && other.foreign.is_some() == report.foreign.is_some()
    };
    let nearness = |other: &&Report| {
        (
            *other == report,
            other.spec.clone().canonical() == report.spec.clone().canonical(),
            other.spec.precision == report.spec.precision,
            other.inputs == report.inputs,
            other.toolchain.backend == report.toolchain.backend,
            other.provenance.measured_unix_ms,
        )
    };
    stored.into_iter().filter(fits).max_by_key(nearness)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        compare::{compare_each, gate},
        testing::sample_report,
    };
    use planforge_types::{Digest, Precision};

    #[test]
    fn the_nearest_of_the_same_work_on_the_same_kind_is_taken() {
        let now = sample_report(1.0);
        let at = |unix_ms: u64, change: fn(&mut Report)| {
            let mut report = sample_report(1.1);
            report.provenance.measured_unix_ms = unix_ms;
            change(&mut report);
            report
        };
        let stored = [
            at(1, |_| {}),
            at(2, |_| {}),
            at(9, |r| r.spec.precision = Precision::Fp16),
            at(9, |r| r.sku = "t4".parse().unwrap()),
            at(9, |r| r.model.digest = Digest::of(b"another")),
        ];
        assert_eq!(precedent(&now, &stored).map(|found| found.provenance.measured_unix_ms), Some(2));
        assert_eq!(precedent(&now, &stored[2..]).map(|found| found.spec.precision), Some(Precision::Fp16));
        assert_eq!(precedent(&now, &stored[3..]), None);
        let mut newer = at(99, |_| {});
        newer.spec.threads = Some(7);
        assert_eq!(precedent(&now, [&newer, &now]), Some(&now), "not another spec's, though it is newer");
    }

    #[test]
    fn each_report_is_gated_by_its_own_baseline_and_one_without_is_undecided() {
        let on = |sku: &str, ms: f64| {
            let mut report = sample_report(ms);
            report.sku = sku.parse().unwrap();
            report
        };
        let reports = [on("t4", 1.0), on("l4", 2.0), on("t4", 1.5), on("l4", 2.0), on("a10", 1.0)];
        let bases = [None, None, Some(0), Some(1), None];
        let comparison = compare_each(&reports, &[], &bases).unwrap();
        assert_eq!(comparison.pairs.len(), 2);
        let gate = gate::judge(&comparison, &reports, &[gate::Limit::of_median(5.0)]);
        let told: Vec<_> = gate.lines.iter().map(|line| (line.sku.as_str(), line.outcome)).collect();
        use gate::Outcome::{Failed, Passed, Undecided};
        assert_eq!(told, [("t4", Failed), ("l4", Passed), ("a10", Undecided)]);
        assert!(!gate.passed && gate.lines[2].reason == "there is no baseline for report 5");
    }
}
