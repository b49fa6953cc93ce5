//! Whether the figures that a report states are those of its own samples.
//!
//! A report names its samples so that every number of its headline can be derived again. One whose samples say
//! something else was changed, damaged or written by a program with a defect: nobody should read on, compare with it or
//! build on it. Held are what [`latency_stats`](planforge_stats::latency_stats) computes without judgement, the
//! throughput, and the windows; of an interval only that the median lies inside, for how it is computed is refined from
//! version to version. What a report of another version does not state is not held.

use crate::{Baseline, REPORT_SCHEMA_VERSION, Report, Samples, SamplesError, WindowRecord};
use planforge_stats::{LatencyStats, MedianInterval};
use serde::Deserialize;

/// Samples are whole nanoseconds; figures of versions that did not round first differ by less than this.
const ROUNDING_MS: f64 = 1e-6;

/// Sums of the same numbers in another order differ by less than this share.
const ROUNDING_SHARE: f64 = 1e-9;

/// A figure that is not that of the samples.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is stated as {stated}, but the report's own samples come to {computed}")]
pub struct Contradiction {
    /// Path of the figure in the document, `latency_ms.median`.
    pub field: String,
    pub stated: String,
    pub computed: String,
}

impl Contradiction {
    /// What to do next.
    pub const HINT: &str = "it was changed or damaged after the measurement: take it from the farm again \
                            (planforge report JOB --json), or measure again (planforge bench)";

    fn new(field: impl Into<String>, stated: impl ToString, computed: impl ToString) -> Self {
        Self { field: field.into(), stated: stated.to_string(), computed: computed.to_string() }
    }
}

/// Holds the document of a report to its samples; what it does not have is not held, nor is what this version cannot
/// know: a later schema, another encoding of the samples.
///
/// # Errors
/// In words: figures or samples are of another kind than a report's, samples are damaged, or a figure contradicts them.
pub fn check_document(document: &str) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Version {
        schema_version: Option<u64>,
    }
    let version: Version = serde_json::from_str(document).map_err(|error| error.to_string())?;
    if version.schema_version > Some(u64::from(REPORT_SCHEMA_VERSION)) {
        return Ok(());
    }
    let stated: Stated = serde_json::from_str(document).map_err(|error| error.to_string())?;
    match stated.contradiction() {
        Ok(None) | Err(SamplesError::Encoding(_)) => Ok(()),
        Ok(Some(contradiction)) => Err(contradiction.to_string()),
        Err(error) => Err(format!("its samples are damaged: {error}")),
    }
}

impl Report {
    /// The first figure that is not that of the samples.
    ///
    /// # Errors
    /// When the samples cannot be read.
    pub fn contradiction(&self) -> Result<Option<Contradiction>, SamplesError> {
        let stated = Stated {
            batch: Some(self.batch),
            latency_ms: StatedLatency::of(&self.latency_ms, self.interval().ok()),
            throughput_per_s: Some(self.throughput_per_s),
            windows: Some(self.windows.iter().map(StatedWindow::of).collect()),
            samples: Some(self.samples.clone()),
            baselines: self.baselines.iter().map(StatedBaseline::of).collect(),
        };
        stated.contradiction()
    }
}

/// What a document states of its samples.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Stated {
    /// What other runtimes took, each of its own samples.
    baselines: Vec<StatedBaseline>,
    batch: Option<u64>,
    latency_ms: StatedLatency,
    throughput_per_s: Option<f64>,
    windows: Option<Vec<StatedWindow>>,
    samples: Option<Samples>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct StatedBaseline {
    latency_ms: StatedLatency,
    windows: Option<Vec<StatedWindow>>,
    samples: Option<Samples>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct StatedLatency {
    count: Option<u64>,
    median: Option<f64>,
    mean: Option<f64>,
    stddev: Option<f64>,
    min: Option<f64>,
    max: Option<f64>,
    p50: Option<f64>,
    p90: Option<f64>,
    p95: Option<f64>,
    p99: Option<f64>,
    ci_low: Option<f64>,
    ci_high: Option<f64>,
    ci_rule: Option<u32>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct StatedWindow {
    iterations: u64,
    median_ms: Option<f64>,
    tainted: Vec<String>,
    kept_tainted: bool,
}

impl StatedBaseline {
    fn of(baseline: &Baseline) -> Self {
        Self {
            latency_ms: StatedLatency::of(&baseline.latency_ms, baseline.latency_ms.interval.ok()),
            windows: Some(baseline.windows.iter().map(StatedWindow::of).collect()),
            samples: Some(baseline.samples.clone()),
        }
    }
}

impl StatedLatency {
    fn of(stats: &LatencyStats, interval: Option<MedianInterval>) -> Self {
        Self {
            count: Some(stats.count),
            median: Some(stats.median),
            mean: Some(stats.mean),
            stddev: Some(stats.stddev),
            min: Some(stats.min),
            max: Some(stats.max),
            p50: Some(stats.p50),
            p90: Some(stats.p90),
            p95: Some(stats.p95),
            p99: Some(stats.p99),
            ci_low: interval.map(|interval| interval.low),
            ci_high: interval.map(|interval| interval.high),
            ci_rule: Some(stats.interval_rule),
        }
    }
}

impl StatedWindow {
    fn of(window: &WindowRecord) -> Self {
        Self {
            iterations: u64::from(window.iterations),
            median_ms: Some(window.median_ms),
            tainted: window.tainted.clone(),
            kept_tainted: window.kept_tainted,
        }
    }

    fn counts(&self) -> bool {
        self.tainted.is_empty() || self.kept_tainted
    }
}

impl Stated {
    fn contradiction(&self) -> Result<Option<Contradiction>, SamplesError> {
        let Some(samples) = &self.samples else { return Ok(None) };
        let samples = samples.decode()?;
        let own = self.windows_contradict(&samples).or_else(|| self.figures_contradict(&samples));
        if own.is_some() {
            return Ok(own);
        }
        for (index, baseline) in self.baselines.iter().enumerate() {
            let StatedBaseline { latency_ms, windows, samples } = baseline.clone();
            if let Some(mut found) = (Stated { latency_ms, windows, samples, ..Stated::default() }).contradiction()? {
                found.field = format!("baselines[{index}].{}", found.field);
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The windows that count have to cover the samples, each with the median of its own.
    fn windows_contradict(&self, samples: &[f64]) -> Option<Contradiction> {
        let windows = self.windows.as_ref()?;
        let counted = || windows.iter().enumerate().filter(|(_, window)| window.counts());
        let covered = counted().try_fold(0u64, |sum, (_, window)| sum.checked_add(window.iterations));
        if covered != Some(samples.len() as u64) {
            let total = covered.map_or_else(|| "too many to count".to_owned(), |total| total.to_string());
            let stated = format!("{} counted windows of {total} samples", counted().count());
            return Some(Contradiction::new("windows", stated, format!("{} samples", samples.len())));
        }
        let mut rest = samples;
        for (index, window) in counted() {
            let (own, after) = rest.split_at(window.iterations as usize);
            rest = after;
            let field = || format!("windows[{index}].median_ms");
            if let Some(found) = held(field, window.median_ms, planforge_stats::median(own)) {
                return Some(found);
            }
        }
        None
    }

    fn figures_contradict(&self, samples: &[f64]) -> Option<Contradiction> {
        let latency = &self.latency_ms;
        if let Some(count) = latency.count.filter(|count| *count != samples.len() as u64) {
            return Some(Contradiction::new("latency_ms.count", count, samples.len()));
        }
        // Where one window lies in another does not matter to anything that is held here.
        let own = planforge_stats::latency_stats(samples, &[samples.len()])?;
        let figures = [
            ("median", latency.median, own.median),
            ("mean", latency.mean, own.mean),
            ("stddev", latency.stddev, own.stddev),
            ("min", latency.min, own.min),
            ("max", latency.max, own.max),
            ("p50", latency.p50, own.p50),
            ("p90", latency.p90, own.p90),
            ("p95", latency.p95, own.p95),
            ("p99", latency.p99, own.p99),
        ];
        let field = |name: &'static str| move || format!("latency_ms.{name}");
        let wrong = figures.into_iter().find_map(|(name, stated, computed)| held(field(name), stated, computed));
        wrong
            .or_else(|| self.interval_contradicts(samples, own.median))
            .or_else(|| self.throughput_contradicts(own.mean))
    }

    /// An interval holds its median; one of today's rule is found again.
    fn interval_contradicts(&self, samples: &[f64], median: f64) -> Option<Contradiction> {
        let (low, high) = (self.latency_ms.ci_low?, self.latency_ms.ci_high?);
        if self.latency_ms.ci_rule == Some(planforge_stats::INTERVAL_RULE)
            && let Some(windows) = &self.windows
        {
            let counted = windows.iter().filter(|window| window.counts());
            let sizes: Vec<usize> = counted.map(|window| window.iterations as usize).collect();
            let interval = planforge_stats::median_interval(samples, &sizes, planforge_stats::CI_CONFIDENCE);
            if let Ok(interval) = interval {
                let field = |name: &'static str| move || format!("latency_ms.{name}");
                return held(field("ci_low"), Some(low), interval.low)
                    .or_else(|| held(field("ci_high"), Some(high), interval.high));
            }
        }
        let holds = low <= median + tolerance_ms(median) && median <= high + tolerance_ms(median);
        let told = || Contradiction::new("latency_ms.ci", format!("{low} to {high}"), format!("a median of {median}"));
        (!holds).then(told)
    }

    fn throughput_contradicts(&self, mean_ms: f64) -> Option<Contradiction> {
        let (stated, batch) = (self.throughput_per_s?, self.batch?);
        if mean_ms <= ROUNDING_MS {
            return None;
        }
        let computed = batch as f64 * 1e3 / mean_ms;
        let allowed = computed * (tolerance_ms(mean_ms) / mean_ms + ROUNDING_SHARE);
        // Written so that a figure that is no number contradicts too.
        let agrees = (stated - computed).abs() <= allowed;
        (!agrees).then(|| Contradiction::new("throughput_per_s", stated, computed))
    }
}

fn tolerance_ms(value_ms: f64) -> f64 {
    ROUNDING_MS + value_ms.abs() * ROUNDING_SHARE
}

/// The contradiction between a figure in milliseconds and what it should be; none where it is not stated.
fn held(field: impl FnOnce() -> String, stated: Option<f64>, computed: f64) -> Option<Contradiction> {
    let stated = stated?;
    let agrees = (stated - computed).abs() <= tolerance_ms(computed);
    (!agrees).then(|| Contradiction::new(field(), stated, computed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sample_report;
    use serde_json::{Value, json};

    fn document() -> Value {
        serde_json::to_value(sample_report(1.0)).unwrap()
    }

    #[test]
    fn every_figure_that_contradicts_the_samples_is_named() {
        let paths = [
            "latency_ms.count",
            "latency_ms.median",
            "latency_ms.mean",
            "latency_ms.stddev",
            "latency_ms.min",
            "latency_ms.max",
            "latency_ms.p50",
            "latency_ms.p90",
            "latency_ms.p95",
            "latency_ms.p99",
            "throughput_per_s",
            "batch",
        ];
        for path in paths {
            let mut changed = document();
            let figure = changed.pointer_mut(&format!("/{}", path.replace('.', "/"))).unwrap();
            let (was, now) = (figure.clone(), figure.as_f64().unwrap() * 2.0);
            *figure = if was.is_u64() { json!(now as u64) } else { json!(now) };
            let report: Report = serde_json::from_value(changed.clone()).unwrap();
            let found = report.contradiction().unwrap().unwrap_or_else(|| panic!("{path} was not held"));
            // The throughput is what a batch is seen by.
            let named = if path == "batch" { "throughput_per_s" } else { path };
            assert_eq!(found.field, named);
            if path != "batch" {
                assert_eq!(found.stated.parse::<f64>().unwrap(), now, "{path}");
            }
            assert!(check_document(&changed.to_string()).unwrap_err().contains(named), "{path}");
            assert!(!report.is_consistent().unwrap());
        }
    }

    #[test]
    fn windows_have_to_be_those_of_the_samples() {
        let mut fewer = sample_report(1.0);
        fewer.windows.pop();
        let found = fewer.contradiction().unwrap().unwrap();
        assert_eq!((found.field.as_str(), found.computed.as_str()), ("windows", "200 samples"));
        assert_eq!(found.stated, "4 counted windows of 160 samples");
        let mut median = sample_report(1.0);
        median.windows[3].median_ms = 0.5;
        assert_eq!(median.contradiction().unwrap().unwrap().field, "windows[3].median_ms");
        let mut endless = sample_report(1.0);
        endless.windows[0].iterations = u32::MAX;
        assert_eq!(endless.contradiction().unwrap().unwrap().field, "windows");
        // A window that was measured again has no samples to be held to.
        let mut discarded = sample_report(1.0);
        let more = crate::WindowRecord { tainted: vec!["throttled".into()], ..discarded.windows[0].clone() };
        discarded.windows.insert(2, more);
        assert_eq!(discarded.contradiction().unwrap(), None);
    }

    #[test]
    fn an_interval_of_todays_rule_is_found_again_and_any_holds_its_median() {
        let mut report = sample_report(1.0);
        let interval = report.latency_ms.interval.as_mut().unwrap();
        (interval.low, interval.high) = (interval.high * 1.1, interval.high * 1.2);
        assert_eq!(report.contradiction().unwrap().unwrap().field, "latency_ms.ci_low");
        // How wide it is changed with the rule.
        report.latency_ms.interval_rule = planforge_stats::INTERVAL_RULE - 1;
        assert_eq!(report.contradiction().unwrap().unwrap().field, "latency_ms.ci");
        report.latency_ms.interval.as_mut().unwrap().low = 0.0;
        assert_eq!(report.contradiction().unwrap(), None);
    }

    #[test]
    fn rounding_is_no_contradiction_and_one_part_in_a_thousand_is() {
        let mut report = sample_report(1.0);
        report.latency_ms.mean += 0.4e-6;
        report.latency_ms.p99 *= 1.0 + 1e-12;
        report.throughput_per_s *= 1.0 + 1e-10;
        assert_eq!(report.contradiction().unwrap(), None);
        report.latency_ms.median *= 0.999;
        assert!(report.contradiction().unwrap().is_some());
    }

    #[test]
    fn what_a_document_lacks_or_writes_in_another_way_is_not_held() {
        let mut older = document();
        let fields = older.as_object_mut().unwrap();
        assert!(fields.remove("samples").is_some());
        fields["latency_ms"]["median"] = json!(7.0);
        check_document(&older.to_string()).unwrap();
        let mut newer = document();
        newer["samples"]["encoding"] = json!("csv");
        check_document(&newer.to_string()).unwrap();
        newer = document();
        (newer["latency_ms"], newer["schema_version"]) = (json!("another shape"), json!(99));
        check_document(&newer.to_string()).unwrap();
        let mut part = document();
        part["latency_ms"].as_object_mut().unwrap().retain(|name, _| name == "median");
        check_document(&part.to_string()).unwrap();
        part["samples"]["data"] = json!("!");
        assert!(check_document(&part.to_string()).unwrap_err().contains("its samples are damaged"));
    }
}
