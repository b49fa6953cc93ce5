//! What made a model fast on a device: one thing changed at a time, and what each of them brought.
//!
//! Every step is a build and a measurement of its own, held against the step before it as any two reports are; so a gain
//! has an interval and a verdict. What a backend or a model cannot do is a step too, with the reason.

use crate::figure::{self, Figure, basis};
use planforge_charts::{Bar, Bars, Caption, Unit};
use planforge_report::{
    Report,
    compare::{Verdict, compare},
    disturbance,
    format::{milliseconds, per_second},
};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// One thing changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// `fusion`.
    pub name: String,
    /// What was done, in words.
    pub change: String,
    pub found: Found,
    /// Later steps build on it; what is slower is told and undone.
    pub kept: bool,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// Another runtime: the latency of this baseline of that report.
    Beside { report: usize, baseline: usize },
    /// The latency of the report of this index.
    Latency(usize),
    /// The best batch of its sweep.
    Batches(usize),
    /// The best number of streams of its sweep.
    Streams(usize),
    /// Why nothing was measured.
    Unavailable(String),
}

/// The steps in their order, and the reports that they rest on.
#[derive(Clone, Copy, Debug)]
pub struct Story<'a> {
    pub reports: &'a [Report],
    pub steps: &'a [Step],
}

/// A step as it is told.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub name: String,
    pub change: String,
    /// Index of the report that it rests on.
    pub report: Option<usize>,
    pub median_ms: Option<f64>,
    pub throughput_per_s: Option<f64>,
    pub gain: Option<Gain>,
    /// Times the first step's speed: by the latency, or by the throughput where that is what the step is about.
    pub since_first: Option<f64>,
    /// Why there are no figures, or no gain.
    pub remark: String,
    /// Every window of its measurement was disturbed.
    pub disturbed: bool,
}

/// How a step stands to the one before it.
#[derive(Clone, Debug, Serialize)]
pub struct Gain {
    /// Times as fast, or times the throughput.
    pub times: f64,
    /// 95 % of how often it is measured again lie between these.
    pub low: Option<f64>,
    pub high: Option<f64>,
    /// `faster`, `same`; of throughput nothing is judged.
    pub verdict: Option<&'static str>,
}

impl Gain {
    /// `1.32x (1.29 to 1.35), faster`.
    pub fn words(&self) -> String {
        let bounds = self.low.zip(self.high).map(|(low, high)| format!(" ({low:.2} to {high:.2})"));
        let verdict = self.verdict.map(|verdict| format!(", {verdict}"));
        format!("{:.2}x{}{}", self.times, bounds.unwrap_or_default(), verdict.unwrap_or_default())
    }
}

impl Story<'_> {
    /// What was measured first: of another runtime, where the story begins with one.
    pub fn first(&self) -> Option<Cow<'_, Report>> {
        self.steps.iter().filter(|step| step.kept).find_map(|step| self.latency(&step.found))
    }

    /// The report of the last step about latency that was kept.
    pub fn last(&self) -> Option<&Report> {
        let kept = self.steps.iter().rev().filter(|step| step.kept);
        kept.filter_map(|step| match step.found {
            Found::Latency(index) => self.reports.get(index),
            _ => None,
        })
        .next()
    }

    fn latency(&self, found: &Found) -> Option<Cow<'_, Report>> {
        match *found {
            Found::Latency(index) => self.reports.get(index).map(Cow::Borrowed),
            Found::Beside { report, baseline } => {
                let report = self.reports.get(report)?;
                Some(Cow::Owned(report.of_baseline(report.baselines.get(baseline)?)))
            }
            _ => None,
        }
    }

    /// `yolo-s.onnx on cpu-x86-64-v4: 182.10 ms to 61.32 ms`.
    pub fn title(&self) -> String {
        match (self.first(), self.last()) {
            (Some(first), Some(last)) => {
                let [from, to] = [&first, last].map(|report| milliseconds(report.latency_ms.median));
                format!("{} on {}: {from} to {to}", first.model.name, figure::measured_on(&first))
            }
            _ => "nothing was measured".into(),
        }
    }

    /// Every step with its gain over the one before it that is of its kind.
    pub fn rows(&self) -> Vec<Row> {
        let mut before: Option<Cow<'_, Report>> = None;
        self.steps
            .iter()
            .map(|step| {
                let row = self.row(step, before.as_deref());
                if step.kept {
                    before = self.latency(&step.found).or(before.take());
                }
                row
            })
            .collect()
    }

    fn row(&self, step: &Step, before: Option<&Report>) -> Row {
        let mut row = Row {
            name: step.name.clone(),
            change: step.change.clone(),
            report: None,
            median_ms: None,
            throughput_per_s: None,
            gain: None,
            since_first: None,
            remark: String::new(),
            disturbed: false,
        };
        let report = |index: &usize| self.reports.get(*index);
        match &step.found {
            Found::Unavailable(reason) => row.remark = format!("not available: {reason}"),
            Found::Latency(_) | Found::Beside { .. } => {
                let Some(report) = self.latency(&step.found) else { return row };
                row.report = if let Found::Latency(index) = step.found { Some(index) } else { None };
                row.median_ms = Some(report.latency_ms.median);
                row.throughput_per_s = Some(report.throughput_per_s);
                row.disturbed = report.wholly_disturbed().is_some();
                row.since_first = self.first().map(|first| first.latency_ms.median / report.latency_ms.median);
                match before.map(|before| gain(before, &report)) {
                    Some(Ok(gain)) => row.gain = Some(gain),
                    Some(Err(reason)) => row.remark = reason,
                    None => {}
                }
                if !step.kept {
                    row.remark = format!("{}{}not kept", row.remark, if row.remark.is_empty() { "" } else { "; " });
                }
            }
            Found::Batches(index) => {
                let Some(sweep) = report(index).and_then(|report| report.batches.as_ref()) else { return row };
                row.report = Some(*index);
                let of = |batch: Option<u32>| sweep.points.iter().find(|point| Some(point.batch) == batch);
                let best = of(sweep.best).or_else(|| sweep.points.last());
                let median = |point: &planforge_report::BatchPoint| point.latency_ms.as_ref().map(|stats| stats.median);
                row.median_ms = best.and_then(median);
                row.throughput_per_s = best.and_then(|point| point.throughput_per_s);
                let smallest = sweep.points.iter().find_map(|point| point.throughput_per_s);
                self.by_throughput(&mut row, smallest);
                if let (Some(best), Some(knee)) = (sweep.best, sweep.knee) {
                    row.remark = format!("best at batch {best}, knee at {knee}");
                }
            }
            Found::Streams(index) => {
                let Some(sweep) = report(index).and_then(|report| report.streams.as_ref()) else { return row };
                row.report = Some(*index);
                let best = sweep.points.iter().find(|point| Some(point.streams) == sweep.best);
                let best = best.or_else(|| sweep.points.last());
                row.median_ms = best.map(|point| point.median_ms);
                row.throughput_per_s = best.map(|point| point.throughput_per_s);
                self.by_throughput(&mut row, sweep.points.first().map(|point| point.throughput_per_s));
                if let (Some(best), Some(knee)) = (sweep.best, sweep.knee) {
                    row.remark = format!("best with {best} streams, knee at {knee}");
                }
            }
        }
        row
    }

    /// The gain of a sweep's best over its smallest, and over the first step.
    fn by_throughput(&self, row: &mut Row, smallest: Option<f64>) {
        let over = |base: Option<f64>| Some(row.throughput_per_s? / base.filter(|rate| *rate > 0.0)?);
        let gain = over(smallest).map(|times| Gain { times, low: None, high: None, verdict: None });
        row.since_first = over(self.first().map(|first| first.throughput_per_s));
        row.gain = gain;
    }

    /// The latencies of the steps below each other.
    pub fn chart(&self, id: &str) -> Option<String> {
        let rows = self.rows();
        let notes: Vec<String> =
            rows.iter().map(|row| row.gain.as_ref().map(Gain::words).unwrap_or_default()).collect();
        let bars: Vec<Bar<'_>> = (self.steps.iter().zip(&rows).zip(&notes))
            .filter(|((step, _), _)| matches!(step.found, Found::Latency(_) | Found::Beside { .. }))
            .filter_map(|((step, row), note)| Some(Bar { name: &step.name, value: row.median_ms?, note, kind: 0 }))
            .collect();
        let first = self.first().filter(|_| bars.len() > 1)?;
        let title = "Median latency after each step";
        let caption = Caption { id, title, basis: basis(&first) };
        Some(Bars { caption, unit: Unit::Milliseconds, bars: &bars, kinds: &[] }.svg())
    }

    /// The figures above all else.
    pub fn headline(&self) -> Vec<Figure> {
        let (Some(first), Some(last)) = (self.first(), self.last()) else { return Vec::new() };
        let of = |name, report: &Report| Figure {
            name,
            unit: "ms",
            value: report.latency_ms.median,
            text: disturbance::marked(milliseconds(report.latency_ms.median), report.wholly_disturbed().is_some()),
            basis: basis(report),
        };
        let times =
            |name, value: f64| Figure { name, unit: "", value, text: format!("{value:.2}x"), basis: basis(last) };
        let mut figures = vec![
            of("median at first", &first),
            of("median at last", last),
            times("times as fast", first.latency_ms.median / last.latency_ms.median),
        ];
        let rates = self.rows().into_iter().filter_map(|row| Some((row.throughput_per_s?, row.since_first?)));
        if let Some((rate, since)) = rates.max_by(|a, b| a.0.total_cmp(&b.0)) {
            let text = per_second(rate);
            figures.push(Figure { name: "best throughput", unit: "1/s", value: rate, text, basis: basis(last) });
            figures.push(times("over the throughput at first", since));
        }
        figures
    }
}

/// How many times as fast, by the medians; or why that cannot be told.
fn gain(before: &Report, report: &Report) -> Result<Gain, String> {
    let comparison = compare(&[before.clone(), report.clone()]).map_err(|error| error.to_string())?;
    let pair = comparison.pairs.into_iter().next().ok_or("the two were not compared")?;
    match (pair.verdict, pair.ratio) {
        (Verdict::CannotTell, _) | (_, None) => Err(format!("not compared: {}", pair.reason_words())),
        (verdict, Some(ratio)) => Ok(Gain {
            times: 1.0 / ratio,
            low: pair.ratio_high.map(|high| 1.0 / high),
            high: pair.ratio_low.map(|low| 1.0 / low),
            verdict: Some(match verdict {
                Verdict::Ambiguous => "not told apart",
                told => told.words(),
            }),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_report::testing::{sample_report, with_ceilings_and_batches};

    fn steps() -> Vec<Step> {
        let step = |name: &str, found| Step { name: name.into(), change: "a change".into(), found, kept: true };
        vec![
            step("baseline", Found::Latency(0)),
            step("fusion", Found::Latency(1)),
            step("precision", Found::Unavailable("CPUs compute in fp32 alone".into())),
            step("tactics", Found::Latency(2)),
            step("batch", Found::Batches(3)),
        ]
    }

    fn reports() -> Vec<Report> {
        let mut reports: Vec<Report> = [4.0, 2.0, 1.0, 1.0].map(sample_report).into();
        reports[3] = with_ceilings_and_batches(reports[3].clone());
        reports
    }

    #[test]
    fn every_step_is_held_against_the_one_before_it() {
        let (reports, steps) = (reports(), steps());
        let story = Story { reports: &reports, steps: &steps };
        let rows = story.rows();
        assert_eq!(rows.len(), 5);
        assert!(rows[0].gain.is_none() && rows[0].since_first == Some(1.0));
        let gain = rows[1].gain.as_ref().unwrap();
        assert!((gain.times - 2.0).abs() < 1e-6 && gain.verdict == Some("faster"), "{gain:?}");
        assert!(rows[2].remark.contains("fp32 alone") && rows[2].median_ms.is_none());
        let tactics = &rows[3];
        assert!(
            (tactics.gain.as_ref().unwrap().times - 2.0).abs() < 1e-6,
            "against the fusion, over what was not there"
        );
        assert!((tactics.since_first.unwrap() - 4.0).abs() < 1e-6);
        let batch = &rows[4];
        let sweep = reports[3].batches.as_ref().unwrap();
        let rate = |batch: Option<u32>| {
            sweep.points.iter().find(|point| Some(point.batch) == batch).unwrap().throughput_per_s.unwrap()
        };
        assert_eq!(batch.throughput_per_s, Some(rate(sweep.best)));
        assert_eq!(batch.gain.as_ref().unwrap().times, rate(sweep.best) / sweep.points[0].throughput_per_s.unwrap());
        assert!(story.title().contains("to 1.010 ms"), "{}", story.title());
        let chart = story.chart("c").unwrap();
        assert!(chart.contains("tactics") && chart.contains("2.00x") && !chart.contains("precision"), "{chart}");
    }

    #[test]
    fn what_is_slower_is_told_and_undone() {
        let reports: Vec<Report> = [2.0, 3.0, 1.0].map(sample_report).into();
        let step = |name: &str, index, kept| Step {
            name: name.into(),
            change: String::new(),
            found: Found::Latency(index),
            kept,
        };
        let steps = [step("baseline", 0, true), step("fusion", 1, false), step("tactics", 2, true)];
        let story = Story { reports: &reports, steps: &steps };
        let rows = story.rows();
        assert!(rows[1].remark == "not kept" && rows[1].gain.as_ref().unwrap().times < 1.0, "{:?}", rows[1]);
        assert!((rows[2].gain.as_ref().unwrap().times - 2.0).abs() < 1e-6, "against the baseline");
    }

    #[test]
    fn a_story_may_begin_with_another_runtime() {
        let mut reports: Vec<Report> = [2.0, 1.0].map(sample_report).into();
        let other = sample_report(8.0);
        reports[0].baselines = vec![planforge_report::Baseline {
            name: "torch-eager".into(),
            library: "torch 2.11".into(),
            settings: std::collections::BTreeMap::new(),
            ready_ms: 12.0,
            latency_ms: other.latency_ms,
            experiment: other.experiment,
            windows: other.windows,
            samples: other.samples,
            relative_rms: None,
        }];
        let step = |name: &str, found| Step { name: name.into(), change: "a change".into(), found, kept: true };
        let steps = [
            step("torch-eager", Found::Beside { report: 0, baseline: 0 }),
            step("baseline", Found::Latency(0)),
            step("tactics", Found::Latency(1)),
        ];
        let story = Story { reports: &reports, steps: &steps };
        let rows = story.rows();
        assert!(rows[0].gain.is_none() && rows[0].report.is_none() && rows[0].since_first == Some(1.0));
        let gain = rows[1].gain.as_ref().unwrap();
        assert!((gain.times - 4.0).abs() < 1e-6 && gain.verdict == Some("faster"), "{gain:?}");
        assert!((rows[2].since_first.unwrap() - 8.0).abs() < 1e-6, "over the other runtime");
        assert!(story.title().contains("8.080 ms to 1.010 ms"), "{}", story.title());
        assert!(story.chart("c").unwrap().contains("torch-eager"));
        // A step of which nothing is there any more says nothing.
        let gone = [step("torch-eager", Found::Beside { report: 0, baseline: 7 })];
        assert!(Story { reports: &reports, steps: &gone }.rows()[0].median_ms.is_none());
    }

    #[test]
    fn a_story_of_nothing_says_so() {
        let found = Found::Unavailable("refused".into());
        let steps = [Step { name: "baseline".into(), change: String::new(), found, kept: false }];
        let story = Story { reports: &[], steps: &steps };
        assert_eq!(story.title(), "nothing was measured");
        assert!(story.chart("c").is_none() && story.headline().is_empty() && story.rows()[0].gain.is_none());
    }
}
