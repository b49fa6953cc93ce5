//! What was measured so far: which windows count, why others do not, and whether it is enough.
//!
//! A disturbed window is measured again, a bounded number of times; after that such windows count for want of better
//! ones. As soon as there are quiet windows enough for a comparison, those alone count, however many were disturbed.

use super::{MeasureConfig, QUIET_WAIT_MS, Timed};
use planforge_device::telemetry::contention;
use planforge_report::{Experiment, Finding, Severity, StopReason, WindowRecord, samples::MAX_SAMPLES};
use planforge_stats::{CI_CONFIDENCE, COMPARABLE_WINDOWS, LatencyStats, MIN_FOR_CONFIDENCE};
use planforge_types::telemetry::PassedProcess;

/// When a window was, by this host's clock: from the sample before it to the one after it.
pub(super) struct Span {
    pub from_unix_ms: u64,
    pub to_unix_ms: u64,
}

/// One window as it was measured.
pub(super) struct Measured {
    pub timed: Timed,
    /// Executions, where more than the latencies that are kept.
    pub thinned_from: Option<u64>,
    pub span: Span,
    pub tainted: Vec<String>,
    pub pace_ns: Option<f64>,
    pub energy_uj: Option<u64>,
}

struct Entry {
    window: Measured,
    /// It does not count, whatever comes.
    discarded: bool,
}

impl Entry {
    fn is_clean(&self) -> bool {
        self.window.tainted.is_empty()
    }
}

#[derive(Default)]
pub(super) struct Record {
    entries: Vec<Entry>,
    /// The best of the paces before the first window and of those that windows carry, each its slowest.
    best_pace_ns: Option<f64>,
}

impl Record {
    /// Tells of the cores' pace outside of windows.
    pub fn saw_pace(&mut self, pace_ns: Option<f64>) {
        let best = [self.best_pace_ns, pace_ns].into_iter().flatten().reduce(f64::min);
        self.best_pace_ns = best;
    }

    /// Adds a window. Where it is disturbed it is discarded while fewer than `most_discarded` were so far.
    pub fn add(&mut self, window: Measured, config: &MeasureConfig, most_discarded: usize) {
        self.saw_pace(window.pace_ns);
        let discarded = !window.tainted.is_empty() && self.discarded() < most_discarded;
        self.entries.push(Entry { window, discarded });
        // The best pace may be a new one, beside which earlier windows were slow.
        for index in 0..self.entries.len() {
            let slow = self.slow(index);
            self.taint(index, slow.into_iter().collect(), most_discarded);
        }
        self.settle(config);
    }

    /// Taints windows of which it is known only now that another process may have used the device during them.
    pub fn taint_earlier(&mut self, passed: &[PassedProcess], config: &MeasureConfig, most_discarded: usize) {
        for index in 0..self.entries.len() {
            let Span { from_unix_ms, to_unix_ms } = self.entries[index].window.span;
            let met = passed.iter().filter(|process| process.may_have_met(from_unix_ms, to_unix_ms));
            let reasons = met.map(contention::passed).collect();
            self.taint(index, reasons, most_discarded);
        }
        self.settle(config);
    }

    fn taint(&mut self, index: usize, reasons: Vec<String>, most_discarded: usize) {
        let may_discard = self.discarded() < most_discarded;
        let Entry { window, discarded } = &mut self.entries[index];
        let was_clean = window.tainted.is_empty();
        for reason in reasons {
            if !window.tainted.contains(&reason) {
                window.tainted.push(reason);
            }
        }
        *discarded |= was_clean && !window.tainted.is_empty() && may_discard;
    }

    /// Why a window is disturbed whose cores were slower than they can be, once.
    fn slow(&self, index: usize) -> Option<String> {
        let Measured { pace_ns, tainted, .. } = &self.entries[index].window;
        let reason = contention::slow_cores(self.best_pace_ns?, (*pace_ns)?)?;
        let known = tainted.iter().any(|known| super::reason_kind(known) == super::reason_kind(&reason));
        (!known).then_some(reason)
    }

    /// Leaves all disturbed windows out once quiet ones are enough.
    fn settle(&mut self, config: &MeasureConfig) {
        let clean = self.entries.iter().filter(|entry| entry.is_clean());
        let (windows, samples) =
            clean.fold((0, 0), |(windows, samples), entry| (windows + 1, samples + entry.window.timed.latencies.len()));
        let enough_samples = samples >= MIN_FOR_CONFIDENCE && samples as u64 >= config.min_samples;
        if windows >= config.min_windows && enough_samples {
            self.entries.iter_mut().for_each(|entry| entry.discarded |= !entry.is_clean());
        }
    }

    fn discarded(&self) -> usize {
        self.entries.iter().filter(|entry| entry.discarded).count()
    }

    fn counted(&self) -> impl Iterator<Item = &Measured> {
        self.entries.iter().filter(|entry| !entry.discarded).map(|entry| &entry.window)
    }

    /// Every latency that counts, in the order measured.
    pub fn samples(&self) -> Vec<f64> {
        self.counted().flat_map(|window| window.timed.latencies.iter().copied()).collect()
    }

    /// How many latencies count.
    pub fn sample_count(&self) -> usize {
        self.counted().map(|window| window.timed.latencies.len()).sum()
    }

    pub fn stats(&self) -> Option<LatencyStats> {
        let sizes: Vec<usize> = self.counted().map(|window| window.timed.latencies.len()).collect();
        planforge_stats::latency_stats(&self.samples(), &sizes)
    }

    /// Every window as reports keep it.
    pub fn windows(&self) -> Vec<WindowRecord> {
        let record = |Entry { window, discarded }: &Entry| WindowRecord {
            iterations: window.timed.latencies.len() as u32,
            duration_ms: window.timed.duration_ms,
            median_ms: planforge_stats::median(&window.timed.latencies),
            tainted: window.tainted.clone(),
            kept_tainted: !window.tainted.is_empty() && !discarded,
            thinned_from: window.thinned_from,
            pace_ns: window.pace_ns,
            energy_uj: window.energy_uj,
        };
        self.entries.iter().map(record).collect()
    }

    /// Why to end now, if so. A budget never ends an experiment that has nothing to show.
    pub fn stop(&self, config: &MeasureConfig, elapsed_ms: f64, timed_ms: f64) -> Option<StopReason> {
        let stats = self.stats()?;
        let count = self.sample_count();
        let full = count >= MAX_SAMPLES;
        let comparable = self.counted().count() >= config.min_windows && count >= MIN_FOR_CONFIDENCE;
        let quiet = self.counted().all(|window| window.tainted.is_empty());
        let quiet = quiet || elapsed_ms >= QUIET_WAIT_MS.min(config.budget_ms);
        let long = timed_ms >= config.min_duration_ms || full;
        let enough = stats.count >= config.min_samples && comparable && long && quiet;
        if enough && relative_half_width(&stats).is_some_and(|width| width <= config.target_relative_ci) {
            Some(StopReason::Confident)
        } else if full {
            Some(StopReason::SampleLimit)
        } else {
            let may_end = comparable || config.strict_budget;
            (may_end && elapsed_ms >= config.budget_ms).then_some(StopReason::BudgetSpent)
        }
    }

    pub fn findings(&self, stats: &LatencyStats, experiment: &Experiment) -> Vec<Finding> {
        let mut findings = Vec::new();
        let kept = self.counted().filter(|window| !window.tainted.is_empty()).count();
        let counted = self.counted().count();
        let mut reasons: Vec<&str> =
            self.entries.iter().flat_map(|entry| &entry.window.tainted).map(String::as_str).collect();
        reasons.sort_unstable();
        reasons.dedup_by(|a, b| super::reason_kind(a) == super::reason_kind(b));
        let reasons = reasons.join("; ");
        let discarded = self.discarded();
        if kept > 0 {
            findings.push(Finding {
                code: "contention".into(),
                severity: Severity::Warning,
                message: format!(
                    "{kept} of {counted} counted windows were disturbed and kept, after {discarded} were measured again: {reasons}"
                ),
            });
        } else if discarded > 0 {
            findings.push(Finding {
                code: "remeasured".into(),
                severity: Severity::Note,
                message: format!("{discarded} disturbed windows were discarded and measured again: {reasons}"),
            });
        }
        if experiment.stop != StopReason::Confident {
            let aim = format!("±{:.1} % aimed for", experiment.target_relative_ci * 100.0);
            let spent = if experiment.stop == StopReason::BudgetSpent { "the time budget" } else { "room for samples" };
            let untold =
                |why: &str| format!("the median has no interval, let alone the {aim}, when {spent} ran out: {why}");
            let message = match stats.interval {
                Ok(interval) if interval.confidence >= CI_CONFIDENCE => {
                    let width = interval.relative_half_width(stats.median) * 100.0;
                    format!("the median is known to ±{width:.1} %, not to the {aim}, when {spent} ran out")
                }
                Ok(_) => untold("too few samples"),
                Err(reason) => untold(reason.words()),
            };
            findings.push(Finding { code: "not-confident".into(), severity: Severity::Warning, message });
        }
        if counted < COMPARABLE_WINDOWS {
            findings.push(Finding {
                code: "too-few-windows".into(),
                severity: Severity::Warning,
                message: format!(
                    "no comparison is possible with this measurement: {counted} of the {COMPARABLE_WINDOWS} windows that one \
                     takes were timed in the {:.0} s that were asked for",
                    experiment.budget_ms / 1e3
                ),
            });
        }
        findings
    }
}

/// Half the width of the median's interval over the median, where it has one.
fn relative_half_width(stats: &LatencyStats) -> Option<f64> {
    stats.interval.ok().map(|interval| interval.relative_half_width(stats.median))
}
