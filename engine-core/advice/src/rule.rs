//! What a rule is given, and what it says.

use planforge_report::{
    LayerTime, Report, Severity,
    compare::{Verdict, compare},
};
use serde::Serialize;

/// A rule: what it has to say of a case, if anything.
pub(crate) type Rule = fn(&Case<'_>) -> Option<Advice>;

/// Something worth doing, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// Stable name of the rule.
    pub code: &'static str,
    pub severity: Severity,
    /// What was found, with its numbers.
    pub message: String,
    pub evidence: Evidence,
    /// What to try.
    pub advice: String,
}

/// The number that made a rule speak.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Evidence {
    /// What it counts: `share of the layers' time in int8`.
    pub what: &'static str,
    pub value: f64,
    /// From where the rule speaks.
    pub threshold: f64,
    /// Derived from counts or models, not from samples alone.
    pub estimated: bool,
}

impl Evidence {
    pub(crate) fn measured(what: &'static str, value: f64, threshold: f64) -> Self {
        Self { what, value, threshold, estimated: false }
    }

    pub(crate) fn estimated(what: &'static str, value: f64, threshold: f64) -> Self {
        Self { what, value, threshold, estimated: true }
    }

    /// As people read it: what was counted, what it came to, and from where the rule speaks.
    pub fn words(&self) -> String {
        let basis = if self.estimated { "estimated" } else { "measured" };
        let (value, threshold) = (rounded(self.value), rounded(self.threshold));
        format!("{}: {value} ({basis}), the rule speaks at {threshold}", self.what)
    }
}

/// With three digits that mean something.
fn rounded(value: f64) -> String {
    let places = (2 - value.abs().max(1e-6).log10().floor() as i32).clamp(0, 6) as usize;
    let text = format!("{value:.places$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// A report, and what it can be held against.
pub(crate) struct Case<'a> {
    pub report: &'a Report,
    others: Vec<&'a Report>,
}

impl<'a> Case<'a> {
    pub fn new(report: &'a Report, others: &'a [Report]) -> Self {
        Self { report, others: others.iter().filter(|other| *other != report).collect() }
    }

    /// `9.0` as (9, 0).
    pub fn compute_capability(&self) -> Option<(u32, u32)> {
        let gpu = self.report.device.gpu.as_ref()?;
        let (major, minor) = gpu.compute_capability.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    }

    /// GPUs since Volta multiply half precision in units of their own.
    pub fn has_tensor_cores(&self) -> bool {
        self.compute_capability().is_some_and(|capability| capability >= (7, 0))
    }

    /// Time of all layers, where there are any.
    pub fn layers_ms(&self) -> Option<f64> {
        let total: f64 = self.report.layers.iter().map(|layer| layer.median_ms).sum();
        (total > 0.0).then_some(total)
    }

    /// Share of the layers' time in those of a kind.
    pub fn share(&self, of: impl Fn(&LayerTime) -> bool) -> Option<f64> {
        let total = self.layers_ms()?;
        Some(self.report.layers.iter().filter(|layer| of(layer)).map(|layer| layer.median_ms).sum::<f64>() / total)
    }

    /// The slowest layers of a kind, the slowest first.
    pub fn slowest(&self, most: usize, of: impl Fn(&LayerTime) -> bool) -> Vec<&'a LayerTime> {
        let mut layers: Vec<&LayerTime> = self.report.layers.iter().filter(|layer| of(layer)).collect();
        layers.sort_by(|a, b| b.median_ms.total_cmp(&a.median_ms));
        layers.truncate(most);
        layers
    }

    /// Reports of the same model on the same device kind that are right.
    pub fn alike(&self) -> impl Iterator<Item = &'a Report> {
        let report = self.report;
        self.others.iter().copied().filter(move |other| {
            other.model.digest == report.model.digest
                && other.measured_on() == report.measured_on()
                && other.simulated == report.simulated
                && other.foreign.is_some() == report.foreign.is_some()
        })
    }

    pub fn others(&self) -> impl Iterator<Item = &'a Report> {
        self.others.iter().copied()
    }
}

/// How many times as long `report` takes as `base`, where both measured the same thing; and whether that is more than
/// their measurements could differ.
pub(crate) fn times(base: &Report, report: &Report) -> Option<(f64, bool)> {
    let pair = compare(&[base.clone(), report.clone()]).ok()?.pairs.into_iter().next()?;
    let sure = matches!(pair.verdict, Verdict::Faster | Verdict::Slower);
    Some((pair.ratio?, sure))
}

/// `12 %`, `0.4 %`.
pub(crate) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent.abs() < 10.0 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

/// A layer's name by itself: engines join those of all that they fused.
pub(crate) fn name(layer: &LayerTime) -> &str {
    let first = layer.name.split(" + ").next().unwrap_or_default();
    if first.is_empty() { &layer.name } else { first }
}
