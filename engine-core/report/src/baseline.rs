//! What another runtime made of the same model, on the same device and inputs, under the same lease.
//!
//! A baseline is measured as an engine is: the same warm-up, windows, stopping rule and looks at the device. So the two
//! are compared as reports are ([`Report::against`]), with an interval and a verdict.

use crate::{
    Experiment, Report, Samples, WindowRecord,
    compare::{CompareError, Pair, Verdict, compare},
    disturbance,
    format::milliseconds,
};
use planforge_stats::LatencyStats;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Another runtime beside an engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// As it was asked for: `onnxruntime`, `torch-compile`.
    pub name: String,
    /// The runtime and its version, in its own words: `torch 2.11.0+cu130`.
    pub library: String,
    /// What else it says of how it ran: type, mode, threads.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// Loading the model and making it ready to run, compilation included.
    pub ready_ms: f64,
    pub latency_ms: LatencyStats,
    pub experiment: Experiment,
    pub windows: Vec<WindowRecord>,
    /// Every latency that counted, in the order measured.
    pub samples: Samples,
    /// Root of the mean squared difference of its outputs from the engine's, over the engine's root mean square; the
    /// largest of all outputs. Absent where it gave none that could be compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relative_rms: Option<f64>,
}

impl Report {
    /// A baseline as people read it, with how the engine stands to it.
    pub fn baseline_words(&self, baseline: &Baseline) -> String {
        let Baseline { name, library, latency_ms, ready_ms, relative_rms, .. } = baseline;
        let settings: Vec<String> = baseline.settings.iter().map(|(name, value)| format!("{name} {value}")).collect();
        let settings = if settings.is_empty() { String::new() } else { format!(" ({})", settings.join(", ")) };
        let median = milliseconds(latency_ms.median);
        let standing = match self.against(baseline) {
            Err(error) => format!("not compared: {error}"),
            Ok(Pair { verdict: Verdict::CannotTell, reason, .. }) => format!("not compared: {reason}"),
            Ok(Pair { verdict, ratio, ratio_low, ratio_high, .. }) => {
                let bounds = ratio_low.zip(ratio_high).map(|(low, high)| format!(" ({low:.3} to {high:.3})"));
                let ratio = ratio.map(|ratio| format!(", takes {ratio:.3}x its time{}", bounds.unwrap_or_default()));
                let told = match verdict {
                    Verdict::Ambiguous => "not told apart".to_owned(),
                    told => format!("the engine is {}", told.words()),
                };
                format!("{told}{}", ratio.unwrap_or_default())
            }
        };
        let outputs = match relative_rms {
            Some(rms) => format!("outputs {rms:.1e} apart (relative RMS)"),
            None => "outputs not compared".to_owned(),
        };
        let disturbed = if disturbance::first_reason(&baseline.windows).is_some() { ", disturbed" } else { "" };
        format!(
            "{name}, {library}{settings}: {median} median{disturbed}, ready in {}; {standing}; {outputs}",
            milliseconds(*ready_ms)
        )
    }

    /// The report as it would be of this baseline: what was measured is its own, everything else the engine's.
    pub fn of_baseline(&self, baseline: &Baseline) -> Self {
        let Baseline { latency_ms, experiment, windows, samples, .. } = baseline.clone();
        let mean_ms = latency_ms.mean.max(f64::MIN_POSITIVE);
        Self {
            throughput_per_s: self.batch as f64 * 1e3 / mean_ms,
            latency_ms,
            experiment,
            windows,
            samples,
            ..self.clone()
        }
    }

    /// How the engine stands to a baseline of the report: the baseline is the pair's base, so a ratio below 1 says that
    /// the engine takes less time.
    ///
    /// # Errors
    /// When the samples of one of the two cannot be read.
    pub fn against(&self, baseline: &Baseline) -> Result<Pair, CompareError> {
        let comparison = compare(&[self.of_baseline(baseline), self.clone()])?;
        Ok(comparison.pairs.into_iter().next().expect("two reports are one pair"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{compare::Verdict, testing::sample_report};

    fn beside(engine_ms: f64, baseline_ms: f64) -> Report {
        let other = sample_report(baseline_ms);
        let baseline = Baseline {
            name: "onnxruntime".into(),
            library: "onnxruntime 1.31.1".into(),
            settings: BTreeMap::new(),
            ready_ms: 12.0,
            latency_ms: other.latency_ms,
            experiment: other.experiment,
            windows: other.windows,
            samples: other.samples,
            relative_rms: Some(1e-7),
        };
        Report { baselines: vec![baseline], ..sample_report(engine_ms) }
    }

    #[test]
    fn an_engine_is_judged_against_a_baseline_as_against_a_report() {
        let report = beside(1.0, 2.0);
        let pair = report.against(&report.baselines[0]).unwrap();
        assert_eq!(pair.verdict, Verdict::Faster, "{pair:?}");
        assert!((pair.ratio.unwrap() - 0.5).abs() < 1e-9, "{pair:?}");
        let same = beside(1.0, 1.0);
        assert_eq!(same.against(&same.baselines[0]).unwrap().verdict, Verdict::Same);
    }

    #[test]
    fn a_baselines_figures_are_held_to_its_samples() {
        let mut report = beside(1.0, 2.0);
        assert_eq!(report.contradiction().unwrap(), None);
        let text = serde_json::to_string(&report).unwrap();
        crate::check::check_document(&text).unwrap();
        report.baselines[0].latency_ms.median *= 0.9;
        let found = report.contradiction().unwrap().unwrap();
        assert_eq!(found.field, "baselines[0].latency_ms.median");
        let text = serde_json::to_string(&report).unwrap();
        assert!(crate::check::check_document(&text).unwrap_err().contains("baselines[0].latency_ms.median"));
    }
}
