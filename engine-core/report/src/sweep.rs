//! Many reports of one request as a sweep: what each axis does, where it bends, which point is the best, and how the engines
//! stand to their baselines at batch 1 and 8.
//!
//! An axis is whatever the reports differ in: device kind, toolchain, precision, batch, streams, threads and so on. Points
//! that differ in one axis alone are a *line* along it. How an axis behaves is told of its lines, never by averaging
//! points that differ in something else too.

use crate::{
    ModeSplit, Report,
    compare::{Verdict, compare},
    imported::{Against, Imported},
};
use planforge_types::Digest;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Raised whenever a field changes its meaning or goes away.
pub const SWEEP_SCHEMA_VERSION: u32 = 1;

/// Batches whose speed-up is told first.
pub const TOLD_BATCHES: [u64; 2] = [1, 8];

/// More of an axis pays no more where it brings less than this share of the best.
const KNEE_SHARE: f64 = 0.95;

/// One point that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Index of the report, the sweep's child.
    pub report: usize,
    /// By axis, as people read it.
    pub at: BTreeMap<String, String>,
    pub median_ms: f64,
    /// Absent of what was measured for a choice alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<f64>,
    pub throughput_per_s: f64,
    /// Every window was disturbed: it is shown, and judged by nobody.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disturbed: bool,
    /// The median by which the fastest of several builds was chosen: low by luck as well, so it is never a best point.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub to_choose: bool,
}

/// Points that differ in one axis alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    pub axis: String,
    /// What the points have in common, of the other axes.
    pub with: BTreeMap<String, String>,
    /// Indices of points, ascending along the axis.
    pub points: Vec<usize>,
    /// The smallest value that gives nearly the best throughput; absent where the axis has no order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub knee: Option<String>,
    /// The value of the highest throughput.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<String>,
}

/// How an engine stands to its baseline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeedUp {
    pub report: usize,
    pub batch: u64,
    /// As it was asked for, or the toolchain of the baseline's report.
    pub baseline: String,
    pub verdict: Verdict,
    /// The baseline's median over the engine's: 2 is twice as fast. Absent where it would mean nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times_low: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times_high: Option<f64>,
    pub reason: String,
    /// The baseline was measured elsewhere: there is a ratio, and no verdict.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub imported: bool,
}

impl SpeedUp {
    /// The verdict as people read it.
    pub fn verdict_words(&self) -> &'static str {
        if self.imported { "imported, not judged" } else { self.verdict.words() }
    }
}

/// A sweep; its reports are its children.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    pub schema_version: u32,
    /// At batch 1 and 8; other batches follow.
    pub speed_ups: Vec<SpeedUp>,
    /// Names of axes that have more than one value.
    pub axes: Vec<String>,
    pub points: Vec<Point>,
    pub lines: Vec<Line>,
    /// Indices of the points of the highest throughput and of the lowest median, by device kind and model.
    pub best_throughput: Vec<usize>,
    pub best_latency: Vec<usize>,
    /// Why speed-ups are missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

impl Sweep {
    /// What `reports` say together. Those of `baseline`, a backend's name, are what the others are held against.
    pub fn of(reports: &[Report], baseline: Option<&str>) -> Self {
        Self::with(reports, baseline, &[])
    }

    /// The same, also held against figures that were measured elsewhere.
    pub fn with(reports: &[Report], baseline: Option<&str>, imported: &[Imported]) -> Self {
        let is_baseline = |report: &Report| baseline.is_some_and(|name| report.toolchain.backend == name);
        let mut points: Vec<Point> =
            reports.iter().enumerate().flat_map(|(index, report)| of_report(index, report)).collect();
        let axes = axes(&mut points);
        let lines = lines(&points, &axes);
        let (mut speed_ups, mut missing) = (Vec::new(), Vec::new());
        for (index, report) in reports.iter().enumerate().filter(|(_, report)| !is_baseline(report)) {
            let before = speed_ups.len();
            let base = reports.iter().filter(|other| is_baseline(other)).filter(|other| is_of_same_work(other, report));
            speed_ups.extend(base.filter_map(|base| against_report(index, report, base)));
            speed_ups.extend(report.baselines.iter().map(|baseline| against_baseline(index, report, baseline)));
            speed_ups.extend(imported.iter().filter_map(|figure| against_imported(index, report, figure)));
            if speed_ups.len() == before {
                missing.push(format!("report {} ({}, b{}) has no baseline", index + 1, report.sku, report.batch));
            }
        }
        let unused = imported.iter().filter(|figure| reports.iter().all(|report| figure.against(report).is_none()));
        missing.extend(unused.map(|figure| format!("nothing was measured to hold against {}", figure.words())));
        let told = |one: &SpeedUp| TOLD_BATCHES.iter().position(|batch| *batch == one.batch).unwrap_or(usize::MAX);
        speed_ups.sort_by_key(|one| (told(one), one.batch, one.report));
        let best_throughput = best(&points, |point| -point.throughput_per_s);
        let best_latency = best(&points, |point| point.median_ms);
        let schema_version = SWEEP_SCHEMA_VERSION;
        Self { schema_version, speed_ups, axes, points, lines, best_throughput, best_latency, missing }
    }
}

/// The headline of a report, and whatever it has measured beside: batches, streams, running without a CUDA graph, fewer
/// builds.
fn of_report(index: usize, report: &Report) -> Vec<Point> {
    let at = place(report);
    let point = |changed: &[(&str, String)], median_ms: f64, p99_ms: Option<f64>, throughput_per_s: f64| {
        let mut at = at.clone();
        at.extend(changed.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        Point { report: index, at, median_ms, p99_ms, throughput_per_s, disturbed: false, to_choose: false }
    };
    let headline = point(&[], report.latency_ms.median, Some(report.latency_ms.p99), report.throughput_per_s);
    let mut found = vec![Point { disturbed: report.wholly_disturbed().is_some(), ..headline }];
    for swept in report.batches.iter().flat_map(|batches| &batches.points).filter(|point| !point.headline) {
        let (Some(latency), Some(throughput)) = (&swept.latency_ms, swept.throughput_per_s) else { continue };
        let changed = [(BATCH, swept.batch.to_string())];
        let of_batch = point(&changed, latency.median, Some(latency.p99), throughput);
        found.push(Point { disturbed: swept.disturbed, ..of_batch });
    }
    for swept in report.streams.iter().flat_map(|streams| &streams.points).filter(|point| point.streams != 1) {
        let changed = [(STREAMS, swept.streams.to_string())];
        found.push(point(&changed, swept.median_ms, Some(swept.p99_ms), swept.throughput_per_s));
    }
    let batch = report.batch as f64;
    let modes = report.split.iter().flat_map(|split| &split.modes);
    let resident: Vec<&ModeSplit> = modes.filter(|mode| !mode.transfers && !mode.rotated_inputs).collect();
    let other = resident.split_first().and_then(|(first, rest)| rest.iter().find(|m| m.cuda_graph != first.cuda_graph));
    if let Some(mode) = other {
        // Without a graph the host may hand over more slowly than the device computes.
        let each_ms = mode.enqueue.map_or(mode.compute.mean, |enqueue| enqueue.mean.max(mode.compute.mean));
        if each_ms > 0.0 {
            let changed = [(CUDA_GRAPH, on_off(mode.cuda_graph))];
            found.push(point(&changed, mode.compute.median, mode.compute.p99, batch * 1e3 / each_ms));
        }
    }
    let trials = report.selection.iter().filter(|selection| selection.builds.len() > 1);
    for selection in trials {
        let mut fastest: Option<f64> = None;
        for (before, trial) in selection.builds.iter().enumerate() {
            if trial.accurate && trial.median_ms > 0.0 {
                fastest = Some(fastest.map_or(trial.median_ms, |known| known.min(trial.median_ms)));
            }
            let Some(median_ms) = fastest else { continue };
            let changed = [(BUILDS, (before + 1).to_string()), (MEASURED, "to choose".to_owned())];
            let chosen = point(&changed, median_ms, None, batch * 1e3 / median_ms);
            // Which of them were disturbed is not told.
            found.push(Point { disturbed: selection.disturbed > 0, to_choose: true, ..chosen });
        }
    }
    found
}

const BATCH: &str = "batch";
const STREAMS: &str = "streams";
const CUDA_GRAPH: &str = "cuda graph";
const BUILDS: &str = "builds";
/// Whether a plan was measured for its report, or for the choice among builds.
const MEASURED: &str = "measured";

fn on_off(is_on: bool) -> String {
    if is_on { "on" } else { "off" }.to_owned()
}

/// What a report's headline was measured at, by axis.
fn place(report: &Report) -> BTreeMap<String, String> {
    let spec = &report.spec;
    let sku = report.foreign.as_ref().map_or(&report.sku, |foreign| &foreign.measured_on);
    let graph = report.split.as_ref().and_then(|split| split.modes.first()).map(|mode| mode.cuda_graph);
    let shapes = report.inputs.iter().map(|port| {
        // Of what varies the usual size is what was timed.
        let usual = |axis: usize| Some(spec.profiles.first()?.inputs.get(&port.name)?.get(axis)?.opt);
        let size = |(axis, dim): (usize, &Option<u64>)| {
            dim.or_else(|| usual(axis)).map_or("?".to_owned(), |size| size.to_string())
        };
        format!("{}:{}", port.name, port.shape.iter().enumerate().skip(1).map(size).collect::<Vec<_>>().join("x"))
    });
    let options = spec.options.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",");
    let none = || "none".to_owned();
    [
        ("model", report.model.name.clone()),
        ("sku", sku.to_string()),
        ("toolchain", report.toolchain.to_string()),
        ("precision", spec.precision.to_string()),
        (BATCH, report.batch.to_string()),
        ("shapes", shapes.collect::<Vec<_>>().join(",")),
        ("profile", if spec.varies() { "dynamic" } else { "static" }.to_owned()),
        (STREAMS, "1".to_owned()),
        ("threads", spec.threads.map_or_else(none, |threads| threads.to_string())),
        (CUDA_GRAPH, graph.map_or_else(none, on_off)),
        ("workspace MiB", spec.workspace_mib.map_or_else(none, |mib| mib.to_string())),
        ("level", spec.optimization_level.0.to_string()),
        ("hardware compatibility", spec.hardware_compatibility.clone().unwrap_or_else(none)),
        ("version compatible", on_off(spec.version_compatible)),
        ("options", if options.is_empty() { none() } else { options }),
        (BUILDS, report.selection.as_ref().map_or(1, |selection| selection.builds.len()).to_string()),
        (MEASURED, "for itself".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// Axes with more than one value; the others are taken out of the points, for they say nothing.
fn axes(points: &mut [Point]) -> Vec<String> {
    let mut values: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, value) in points.iter().flat_map(|point| &point.at) {
        values.entry(name).or_default().insert(value);
    }
    let axes: Vec<String> =
        values.into_iter().filter(|(_, values)| values.len() > 1).map(|(name, _)| name.to_owned()).collect();
    points.iter_mut().for_each(|point| point.at.retain(|name, _| axes.contains(name)));
    axes
}

/// Whether an axis' values have an order, and this one's place in it.
fn number(value: &str) -> Option<f64> {
    value.parse().ok().filter(|number: &f64| number.is_finite())
}

fn lines(points: &[Point], axes: &[String]) -> Vec<Line> {
    let mut found = Vec::new();
    for axis in axes {
        let mut lines: BTreeMap<BTreeMap<String, String>, Vec<usize>> = BTreeMap::new();
        for (index, point) in points.iter().enumerate() {
            let mut with = point.at.clone();
            with.remove(axis);
            lines.entry(with).or_default().push(index);
        }
        for (with, mut members) in lines.into_iter().filter(|(_, members)| members.len() > 1) {
            let value = |index: &usize| points[*index].at.get(axis).map_or("", String::as_str);
            members.sort_by(|a, b| {
                let numbers = number(value(a)).zip(number(value(b)));
                numbers.map_or_else(|| value(a).cmp(value(b)), |(a, b)| a.total_cmp(&b))
            });
            let judged: Vec<usize> = members.iter().copied().filter(|index| !points[*index].disturbed).collect();
            let top = judged.iter().map(|index| points[*index].throughput_per_s).fold(0.0, f64::max);
            let least = |share: f64| {
                let found = judged.iter().find(|index| points[**index].throughput_per_s >= top * share)?;
                points[*found].at.get(axis).cloned()
            };
            let is_told = top > 0.0 && judged.len() > 1;
            let ordered = members.iter().all(|index| number(value(index)).is_some());
            let knee = (is_told && ordered).then(|| least(KNEE_SHARE)).flatten();
            let best = is_told.then(|| least(1.0)).flatten();
            found.push(Line { axis: axis.clone(), with, points: members, knee, best });
        }
    }
    found
}

/// The best point of each model and device kind that nothing disturbed and that no choice flatters.
fn best(points: &[Point], worth: impl Fn(&Point) -> f64) -> Vec<usize> {
    let mut found: BTreeMap<(Option<&String>, Option<&String>), usize> = BTreeMap::new();
    for (index, point) in points.iter().enumerate().filter(|(_, point)| !point.disturbed && !point.to_choose) {
        let of = (point.at.get("model"), point.at.get("sku"));
        let known = found.entry(of).or_insert(index);
        if worth(point) < worth(&points[*known]) {
            *known = index;
        }
    }
    found.into_values().collect()
}

fn is_of_same_work(base: &Report, report: &Report) -> bool {
    let structure = |report: &Report| -> Digest { report.model.structure_digest.unwrap_or(report.model.digest) };
    base.sku == report.sku
        && base.foreign == report.foreign
        && structure(base) == structure(report)
        && base.inputs == report.inputs
        && base.spec.threads == report.spec.threads
}

fn against_report(index: usize, report: &Report, base: &Report) -> Option<SpeedUp> {
    let comparison = compare(&[base.clone(), report.clone()]).ok()?;
    let pair = comparison.pairs.into_iter().next()?;
    let baseline = format!("{} {}", base.toolchain, base.spec.precision);
    Some(speed_up(index, report, baseline, pair))
}

fn against_baseline(index: usize, report: &Report, baseline: &crate::Baseline) -> SpeedUp {
    match report.against(baseline) {
        Ok(pair) => speed_up(index, report, baseline.name.clone(), pair),
        Err(error) => SpeedUp {
            report: index,
            batch: report.batch,
            baseline: baseline.name.clone(),
            verdict: Verdict::CannotTell,
            times: None,
            times_low: None,
            times_high: None,
            reason: error.to_string(),
            imported: false,
        },
    }
}

fn speed_up(index: usize, report: &Report, baseline: String, pair: crate::compare::Pair) -> SpeedUp {
    let inverse = |ratio: Option<f64>| ratio.filter(|ratio| *ratio > 0.0).map(|ratio| 1.0 / ratio);
    SpeedUp {
        report: index,
        batch: report.batch,
        baseline,
        verdict: pair.verdict,
        times: inverse(pair.ratio),
        times_low: inverse(pair.ratio_high),
        times_high: inverse(pair.ratio_low),
        reason: pair.reason,
        imported: false,
    }
}

fn against_imported(index: usize, report: &Report, figure: &Imported) -> Option<SpeedUp> {
    let Against { batch, times, reason } = figure.against(report)?;
    Some(SpeedUp {
        report: index,
        batch,
        baseline: figure.label(),
        verdict: Verdict::CannotTell,
        times,
        times_low: None,
        times_high: None,
        reason,
        imported: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        BuildSelection, BuildTrial, LatencySplit, PartStats,
        testing::{disturbed, sample_report, with_ceilings_and_batches},
    };

    fn at(threads: u32, batch: u64, centre_ms: f64) -> Report {
        let mut report = sample_report(centre_ms);
        report.spec.threads = Some(threads);
        report.batch = batch;
        report.inputs[0].shape[0] = Some(batch);
        report.throughput_per_s = batch as f64 * 1e3 / report.latency_ms.mean;
        report
    }

    #[test]
    fn an_axis_is_told_of_points_that_differ_in_nothing_else() {
        let reports = [at(1, 1, 4.0), at(2, 1, 2.1), at(4, 1, 2.05), at(1, 8, 30.0), at(2, 8, 15.0)];
        let sweep = Sweep::of(&reports, None);
        assert_eq!(sweep.axes, ["batch", "threads"]);
        let lines: Vec<_> = sweep.lines.iter().map(|line| (line.axis.as_str(), line.points.clone())).collect();
        assert_eq!(
            lines,
            [("batch", vec![0, 3]), ("batch", vec![1, 4]), ("threads", vec![0, 1, 2]), ("threads", vec![3, 4])]
        );
        let threads = &sweep.lines[2];
        assert_eq!((threads.knee.as_deref(), threads.best.as_deref()), (Some("2"), Some("4")));
        assert_eq!(threads.with, BTreeMap::from([("batch".to_owned(), "1".to_owned())]));
        assert_eq!((sweep.best_throughput, sweep.best_latency), (vec![4], vec![2]));
        assert_eq!(sweep.missing.len(), 5);
    }

    #[test]
    fn batches_that_a_report_swept_itself_are_points_too_and_disturbed_ones_are_judged_by_nobody() {
        let sweep = Sweep::of(&[with_ceilings_and_batches(sample_report(1.0))], None);
        assert_eq!((sweep.axes.as_slice(), sweep.points.len()), (&["batch".to_owned()][..], 2));
        assert_eq!(sweep.lines[0].best.as_deref(), Some("8"));
        let reports = [at(1, 1, 4.0), disturbed(at(2, 1, 1.0)), at(4, 1, 3.0)];
        let sweep = Sweep::of(&reports, None);
        assert_eq!((sweep.lines[0].best.as_deref(), sweep.best_latency), (Some("4"), vec![2]));
    }

    #[test]
    fn running_without_a_cuda_graph_is_a_point_of_the_same_engine() {
        let mode = |cuda_graph: bool, compute: f64, enqueue: f64| ModeSplit {
            cuda_graph,
            compute: PartStats { median: compute, mean: compute, ..PartStats::default() },
            enqueue: Some(PartStats { median: enqueue, mean: enqueue, ..PartStats::default() }),
            ..ModeSplit::default()
        };
        let transfers = ModeSplit { transfers: true, ..mode(false, 9.0, 9.0) };
        let mut report = at(1, 1, 1.0);
        report.split = Some(LatencySplit { modes: vec![mode(true, 1.0, 0.01), transfers, mode(false, 1.5, 2.0)] });
        let sweep = Sweep::of(&[report], None);
        assert_eq!((sweep.axes.as_slice(), sweep.points.len()), (&["cuda graph".to_owned()][..], 2));
        let off = &sweep.points[1];
        assert_eq!((off.at["cuda graph"].as_str(), off.median_ms), ("off", 1.5));
        assert!((off.throughput_per_s - 500.0).abs() < 1e-9, "the host hands over no faster: {off:?}");
        assert_eq!(sweep.lines[0].best.as_deref(), Some("on"));
    }

    #[test]
    fn fewer_builds_are_told_by_the_medians_of_the_choice_and_are_no_best_points() {
        let trial = |median_ms: f64, accurate: bool| BuildTrial {
            plan_digest: Digest::of(b"plan"),
            bytes: 1,
            build_ms: 1.0,
            median_ms,
            ci_low_ms: None,
            ci_high_ms: None,
            accurate,
            kept: false,
            cache: None,
        };
        let builds = vec![trial(2.0, true), trial(0.5, false), trial(1.2, true), trial(0.9, true)];
        let selection =
            BuildSelection { builds, spread: 1.0, unstable: true, disturbed: 0, remeasured: true, failed: Vec::new() };
        let mut report = at(1, 1, 1.0);
        report.selection = Some(selection.clone());
        let sweep = Sweep::of(std::slice::from_ref(&report), None);
        assert_eq!(sweep.axes, ["builds", "measured"]);
        let line = sweep.lines.iter().find(|line| line.axis == "builds").unwrap();
        let told: Vec<_> = line.points.iter().map(|index| sweep.points[*index].median_ms).collect();
        assert_eq!(told, [2.0, 2.0, 1.2, 0.9], "what is wrong counts for nothing");
        assert_eq!((line.best.as_deref(), line.knee.as_deref()), (Some("4"), Some("4")));
        assert_eq!((sweep.best_latency.as_slice(), sweep.points[0].to_choose), (&[0][..], false));
        report.selection = Some(BuildSelection { disturbed: 1, ..selection });
        let sweep = Sweep::of(&[report], None);
        assert!(sweep.lines.iter().all(|line| line.axis != "builds" || line.best.is_none()), "{:?}", sweep.lines);
    }

    #[test]
    fn shapes_that_vary_are_held_against_their_usual_size() {
        let fixed = at(1, 1, 1.0);
        let mut open = at(1, 1, 1.1);
        let dims = fixed.inputs[0].shape.iter().map(|size| {
            let size = size.unwrap();
            planforge_types::DimRange { min: 1, opt: size, max: size + 1 }
        });
        let inputs = BTreeMap::from([(fixed.inputs[0].name.clone(), dims.collect::<Vec<_>>())]);
        open.spec.profiles = vec![planforge_types::OptimizationProfile { inputs }];
        open.inputs[0].shape.iter_mut().for_each(|size| *size = None);
        let sweep = Sweep::of(&[fixed, open], None);
        assert_eq!((sweep.axes.as_slice(), sweep.lines.len()), (&["profile".to_owned()][..], 1));
        assert_eq!(sweep.lines[0].best.as_deref(), Some("static"));
    }

    #[test]
    fn speed_ups_over_the_baseline_come_first_at_batch_1_and_8() {
        let base = |threads, batch, ms| {
            let mut report = at(threads, batch, ms);
            report.toolchain.backend = "onnxruntime".into();
            report
        };
        let reports = [at(2, 4, 4.0), at(2, 8, 8.0), at(2, 1, 1.0), base(2, 1, 2.0), base(2, 8, 12.0), base(2, 4, 4.0)];
        let sweep = Sweep::of(&reports, Some("onnxruntime"));
        let told: Vec<_> = sweep.speed_ups.iter().map(|one| (one.batch, one.report, one.verdict)).collect();
        assert_eq!(told, [(1, 2, Verdict::Faster), (8, 1, Verdict::Faster), (4, 0, Verdict::Same)]);
        let first = &sweep.speed_ups[0];
        assert!((first.times.unwrap() - 2.0).abs() < 0.02, "{first:?}");
        assert!(first.times_low.unwrap() < 2.0 && first.times_high.unwrap() > 2.0, "{first:?}");
        assert!(sweep.missing.is_empty());
    }

    #[test]
    fn imported_figures_are_marked_and_judge_nothing() {
        let figures = "name,device,precision,batch,median_ms,source\n\
                       TensorRT,cpu-x86-64-v3,fp16,1,2.0,a paper\nTensorRT,cpu-x86-64-v3,fp16,64,9.0,a paper\n";
        let figures = crate::imported::parse(figures).unwrap();
        let sweep = Sweep::with(&[at(2, 1, 1.0), at(2, 8, 4.0)], None, &figures);
        assert_eq!(sweep.speed_ups.len(), 1);
        let told = &sweep.speed_ups[0];
        assert!(told.imported && told.baseline.contains("[imported: a paper]"), "{told:?}");
        assert_eq!((told.verdict, told.verdict_words()), (Verdict::CannotTell, "imported, not judged"));
        assert!((told.times.unwrap() - 2.0).abs() < 0.03 && told.times_low.is_none(), "{told:?}");
        assert_eq!(sweep.missing.len(), 2, "{:?}", sweep.missing);
        assert!(sweep.missing[1].contains("nothing was measured to hold against") && sweep.missing[1].contains("b64"));
    }
}
