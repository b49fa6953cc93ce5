//! A report's charts.

use crate::figure::{basis, estimate};
use planforge_charts::{
    Axis, Bar, Bars, Caption, Ceiling, Cell, Distribution, Heat, History, Line, Lines, Mark, Moment, Point, Quantile,
    RooflineChart, Shares, Spot, Unit,
};
use planforge_report::{LayerTime, Report, Roofline, compare::portability::Portability};
use std::collections::BTreeSet;

const LATENCY: Axis<'_> = Axis { name: "latency", unit: Unit::Milliseconds };

/// Bars that a chart of layers has; the others are one bar together.
const BARS: usize = 20;

/// Layers of a roofline that are named; a mark has no room for more, and the table has all.
const NAMED: usize = 40;

/// Layers that a roofline has, the slowest: more are one blot, and a page of its own size.
const SPOTS: usize = 300;

/// Characters of a layer's name in a chart.
const NAME_CHARACTERS: usize = 48;

/// Kinds of layers with a mark of their own; the rest are "other".
const KINDS: usize = 5;

/// How the latency is spread.
pub fn distribution(report: &Report, id: &str) -> Option<String> {
    let samples = report.samples.decode().ok()?;
    let stats = &report.latency_ms;
    let quantiles = [("p50", stats.median), ("p90", stats.p90), ("p95", stats.p95), ("p99", stats.p99)];
    let quantiles = quantiles.map(|(name, value)| Quantile { name, value });
    let caption = Caption { id, title: "Latency distribution", basis: basis(report) };
    Some(Distribution { caption, x: LATENCY, samples: &samples, quantiles: &quantiles }.svg())
}

/// How the latencies of several reports are spread.
pub fn shares(reports: &[Report], labels: &[String], id: &str) -> Option<String> {
    let first = reports.first()?;
    let samples: Vec<Vec<f64>> = reports.iter().map(|report| report.samples.decode()).collect::<Result<_, _>>().ok()?;
    let series: Vec<(&str, &[f64])> =
        labels.iter().zip(&samples).map(|(label, samples)| (label.as_str(), samples.as_slice())).collect();
    let simulated = reports.iter().find(|report| report.simulated).unwrap_or(first);
    let caption = Caption { id, title: "Latencies beside each other", basis: basis(simulated) };
    Some(Shares { caption, x: LATENCY, series: &series }.svg())
}

/// The median of every window, discarded ones too, within the interval of the whole.
pub fn windows(report: &Report, id: &str) -> Option<String> {
    if report.windows.len() < 2 {
        return None;
    }
    let labels: Vec<String> = (1..=report.windows.len()).map(|number| number.to_string()).collect();
    let moments: Vec<Moment<'_>> = (report.windows.iter().zip(&labels))
        .map(|(window, label)| {
            let remark = match (window.tainted.is_empty(), window.kept_tainted) {
                (true, _) => "",
                (false, true) => "disturbed and kept",
                (false, false) => "disturbed and discarded",
            };
            Moment { label, value: window.median_ms, between: None, remark }
        })
        .collect();
    let noise = report.interval().ok().map(|interval| (interval.low, interval.high));
    let caption = Caption { id, title: "Median of each window", basis: basis(report) };
    Some(History { caption, y: LATENCY, moments: &moments, noise }.svg())
}

/// Throughput, then latency, by batch.
pub fn batches(report: &Report, id: &str) -> Vec<String> {
    let Some(sweep) = &report.batches else { return Vec::new() };
    let measured = || sweep.points.iter().filter_map(|point| Some((point, point.latency_ms.as_ref()?)));
    let rate = |(point, _): (&planforge_report::BatchPoint, _)| {
        Some(Point { x: point.batch.into(), y: point.throughput_per_s?, between: None })
    };
    let median = |(point, stats): (&planforge_report::BatchPoint, &planforge_stats::LatencyStats)| Point {
        x: point.batch.into(),
        y: stats.median,
        between: stats.interval.ok().map(|interval| (interval.low, interval.high)),
    };
    let rates: Vec<Point> = measured().filter_map(rate).collect();
    let medians: Vec<Point> = measured().map(median).collect();
    sweeps(report, id, "batch", (rates, medians), sweep.knee)
}

/// Throughput, then latency, by streams.
pub fn streams(report: &Report, id: &str) -> Vec<String> {
    let Some(sweep) = &report.streams else { return Vec::new() };
    let points = |of: &dyn Fn(&planforge_report::StreamPoint) -> f64| -> Vec<Point> {
        sweep.points.iter().map(|point| Point { x: point.streams.into(), y: of(point), between: None }).collect()
    };
    sweeps(report, id, "streams", (points(&|p| p.throughput_per_s), points(&|p| p.median_ms)), sweep.knee)
}

fn sweeps(report: &Report, id: &str, by: &str, points: (Vec<Point>, Vec<Point>), knee: Option<u32>) -> Vec<String> {
    if points.0.len() < 2 {
        return Vec::new();
    }
    let marks: Vec<Mark<'_>> = knee.map(|knee| Mark { x: knee.into(), name: "knee at" }).into_iter().collect();
    let x = Axis { name: by, unit: Unit::Count };
    let chart = |name: &str, y: Axis<'_>, points: Vec<Point>, marks: &[Mark<'_>]| {
        let (id, title) = (format!("{id}-{name}"), format!("{} by {by}", capital(y.name)));
        let caption = Caption { id: &id, title: &title, basis: basis(report) };
        Lines { caption, x, y, lines: &[Line { name: y.name, points }], marks }.svg()
    };
    let rate = Axis { name: "throughput", unit: Unit::PerSecond };
    let median = Axis { name: "median latency", unit: Unit::Milliseconds };
    vec![chart("rate", rate, points.0, &marks), chart("median", median, points.1, &marks)]
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// Kinds of layers by their time, as many as have a mark; what is less is `other`.
fn kinds(layers: &[LayerTime]) -> Vec<String> {
    let names: BTreeSet<&str> = layers.iter().map(|layer| layer.kind.as_str()).collect();
    let time = |kind: &str| layers.iter().filter(|layer| layer.kind == kind).map(|layer| layer.median_ms).sum::<f64>();
    let mut names: Vec<(&str, f64)> = names.into_iter().map(|name| (name, time(name))).collect();
    names.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut kept: Vec<String> = names.iter().take(KINDS).map(|(name, _)| kind_name(name)).collect();
    if names.len() > KINDS {
        kept.push("other".into());
    }
    kept
}

/// What is told of a layer's kind; some engines tell none.
fn kind_name(kind: &str) -> String {
    if kind.is_empty() { "not told".into() } else { kind.chars().take(18).collect() }
}

fn kind_of(layer: &LayerTime, kinds: &[String]) -> usize {
    let name = kind_name(&layer.kind);
    kinds.iter().position(|kind| *kind == name).unwrap_or(kinds.len().saturating_sub(1))
}

/// What takes the time.
pub fn layers(report: &Report, id: &str) -> Option<String> {
    if report.layers.is_empty() {
        return None;
    }
    let kinds = kinds(&report.layers);
    let mut sorted: Vec<&LayerTime> = report.layers.iter().collect();
    sorted.sort_by(|a, b| b.median_ms.total_cmp(&a.median_ms));
    let (shown, rest) = sorted.split_at(sorted.len().min(BARS));
    let words: Vec<String> = (shown.iter())
        .map(|layer| {
            Roofline::of(layer, report.ceilings.as_ref()).and_then(|line| line.of_ceiling()).unwrap_or_default()
        })
        .collect();
    let mut bars: Vec<Bar<'_>> = (shown.iter().zip(&words))
        .map(|(layer, note)| Bar { name: &layer.name, value: layer.median_ms, note, kind: kind_of(layer, &kinds) })
        .collect();
    let name = format!("{} other layers", rest.len());
    if !rest.is_empty() {
        let value = rest.iter().map(|layer| layer.median_ms).sum();
        bars.push(Bar { name: &name, value, note: "together", kind: kinds.len().saturating_sub(1) });
    }
    let caption = Caption { id, title: "Time of layers, profiled apart from the latencies", basis: basis(report) };
    let names: Vec<&str> = kinds.iter().map(String::as_str).collect();
    Some(Bars { caption, unit: Unit::Milliseconds, bars: &bars, kinds: &names }.svg())
}

/// Layers below what the device was measured to reach.
pub fn roofline(report: &Report, id: &str) -> Option<String> {
    let kinds = kinds(&report.layers);
    let lines = report.layers.iter().filter(|layer| layer.flops > 0 && layer.bytes > 0);
    let lines = lines.filter_map(|layer| Some((layer, Roofline::of(layer, report.ceilings.as_ref())?)));
    let mut lines: Vec<_> = lines.collect();
    if lines.is_empty() {
        return None;
    }
    lines.sort_by(|(a, _), (b, _)| b.median_ms.total_cmp(&a.median_ms));
    lines.truncate(SPOTS);
    let words: Vec<(String, String)> = (lines.iter().enumerate())
        .map(|(index, (layer, line))| match index < NAMED {
            true => (layer.name.chars().take(NAME_CHARACTERS).collect(), line.of_ceiling().unwrap_or_default()),
            false => Default::default(),
        })
        .collect();
    let spots: Vec<Spot<'_>> = (lines.iter().zip(&words))
        .map(|((layer, line), (name, reached))| Spot {
            name,
            flop_per_byte: layer.flops as f64 / layer.bytes as f64,
            flop_per_s: line.tflop_s * 1e12,
            kind: kind_of(layer, &kinds),
            reached,
        })
        .collect();
    let rates = report.ceilings.as_ref().map(|ceilings| &ceilings.rates);
    let ceilings: Vec<Ceiling<'_>> = (rates.iter().flat_map(|rates| &rates.tflop_s))
        .map(|(name, rate)| Ceiling { name, flop_per_s: rate * 1e12 })
        .collect();
    let names: Vec<&str> = kinds.iter().map(String::as_str).collect();
    let caption = Caption { id, title: "Roofline", basis: estimate(report) };
    let chart = RooflineChart {
        caption,
        copy_bytes_per_s: rates.map(|rates| rates.copy_gb_s * 1e9),
        ceilings: &ceilings,
        spots: &spots,
        kinds: &names,
        left_out: report.layers.len() - lines.len(),
    };
    Some(chart.svg())
}

/// The matrix of plans built for one device kind and measured on another: the time over that of the device's own engine.
pub fn matrix(reports: &[Report], portability: &[Option<Portability>], id: &str) -> Option<String> {
    let cells: Vec<&Portability> = portability.iter().flatten().collect();
    let first = reports.first().filter(|_| !cells.is_empty())?;
    let rows: BTreeSet<&str> =
        cells.iter().flat_map(|cell| [cell.built_for.as_str(), cell.measured_on.as_str()]).collect();
    let names: Vec<&str> = rows.into_iter().collect();
    let cell = |built_for: &str, measured_on: &str| {
        if built_for == measured_on {
            return Cell::Empty("its own");
        }
        let found =
            cells.iter().find(|cell| cell.built_for.as_str() == built_for && cell.measured_on.as_str() == measured_on);
        match found.map(|cell| cell.loss.as_ref()) {
            Some(Some(loss)) => Cell::Value(1.0 + loss.relative),
            Some(None) => Cell::Empty("not judged"),
            None => Cell::Empty(""),
        }
    };
    let table: Vec<Vec<Cell<'_>>> =
        names.iter().map(|built| names.iter().map(|measured| cell(built, measured)).collect()).collect();
    let simulated = reports.iter().find(|report| report.simulated).unwrap_or(first);
    let title = "Time of plans built elsewhere, over that of the device's own engine";
    let caption = Caption { id, title, basis: basis(simulated) };
    let axes = ("built for", "measured on");
    Some(Heat { caption, unit: Unit::Times, axes, rows: &names, columns: &names, cells: &table }.svg())
}

/// How the latency is spread, as one line of a terminal, with what its ends are.
pub fn spark(report: &Report) -> Option<String> {
    const WIDTH: usize = 40;
    let samples = report.samples.decode().ok()?;
    let (low, high) = (report.latency_ms.min, report.latency_ms.p99);
    let ends = [low, high].map(planforge_report::format::milliseconds);
    let line = planforge_charts::spark::histogram(&samples, (low, high), WIDTH);
    Some(format!("{} |{line}| {} (p99 and beyond in the last)", ends[0], ends[1]))
}
