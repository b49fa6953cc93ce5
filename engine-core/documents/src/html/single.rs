//! One report: figures, distribution, where the time goes, sweeps, findings, the record.

use super::write::{Table, data, exact, figure, pair, shortened, words};
use crate::{Dossier, chart, figure as figures, record};
use planforge_advice::{Advice, advise, bound};
use planforge_report::{
    Finding, LayerCounters, LayerTime, Report, Roofline, Severity, disturbance,
    format::{milliseconds, per_second, percent},
};

/// Characters that names in tables have at most; the JSON has them whole.
const NAME_CHARACTERS: usize = 64;
const TACTIC_CHARACTERS: usize = 32;

pub(super) fn section(dossier: &Dossier<'_>, report: &Report, number: usize, label: &str) -> String {
    let mut out = format!("<section class=\"report\" aria-labelledby=\"r{number}\">\n");
    out.push_str(&format!("<h2 id=\"r{number}\">{number}. {}</h2>\n", words(label)));
    let device = format!("{}, {} on {}", report.model.name, report.toolchain, report.device.name);
    out.push_str(&format!("<p class=\"lead\">{}</p>\n", words(&device)));
    if let Some(Some(cell)) = dossier.portability.get(number - 1) {
        let line = format!("built for {}, measured on {}: loss: {}", cell.built_for, cell.measured_on, cell.words());
        out.push_str(&format!("<p>{}</p>\n", words(&line)));
    }
    out.push_str(&tiles(report));
    if report.wholly_disturbed().is_some() {
        out.push_str(&format!("<p>{}</p>\n", words(&disturbance::legend(true))));
    }
    out.push_str(&advice(&advise(report, dossier.reports)));
    out.push_str(&findings(&report.findings));
    out.push_str(&latency(report, number));
    out.push_str(&split(report, number));
    out.push_str(&layers(report, number));
    out.push_str(&sweeps(report, number));
    out.push_str(&builds(report, number));
    out.push_str(&beside(report));
    out.push_str(&record(report, number));
    out.push_str("</section>\n");
    out
}

fn tiles(report: &Report) -> String {
    let mut out = "<dl class=\"tiles\">\n".to_owned();
    for figure in figures::headline(report) {
        let sure = match figure.name {
            "median latency" => format!(" {}", words(&figures::sureness(report))),
            _ => String::new(),
        };
        out.push_str(&format!(
            "<div><dt>{}</dt><dd>{}<small>{}{sure}</small></dd></div>\n",
            figure.name,
            data(&figure),
            words(figure.basis.words())
        ));
    }
    out.push_str("</dl>\n");
    out
}

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Note => "note",
        Severity::Warning => "warning",
        Severity::Error => "error",
    }
}

/// What is worth trying, and by which number.
fn advice(all: &[Advice]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let mut out = "<h3>What to try</h3>\n<ul class=\"findings\">\n".to_owned();
    for Advice { code, severity: gravity, message, evidence, advice } in all {
        let severity = severity(*gravity);
        out.push_str(&format!(
            "<li class=\"{severity}\"><b>{severity}</b>{} <code>{code}</code><p>{}</p><p><small>{}</small></p></li>\n",
            words(message),
            words(advice),
            words(&evidence.words())
        ));
    }
    out.push_str("</ul>\n");
    out
}

fn findings(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return String::new();
    }
    let mut out = "<h3>Findings</h3>\n<ul class=\"findings\">\n".to_owned();
    for finding in findings {
        let severity = severity(finding.severity);
        let (message, code) = (words(&finding.message), words(&finding.code));
        out.push_str(&format!("<li class=\"{severity}\"><b>{severity}</b>{message} <code>{code}</code></li>\n"));
    }
    out.push_str("</ul>\n");
    out
}

fn latency(report: &Report, number: usize) -> String {
    let mut out = "<h3>Latency</h3>\n".to_owned();
    let charts = [
        chart::distribution(report, &format!("c{number}-latency")),
        chart::windows(report, &format!("c{number}-windows")),
    ];
    let charts: Vec<String> = charts.into_iter().flatten().collect();
    out.push_str(&pair(&charts));
    let basis = figures::basis(report).words();
    let label = format!("Latency figures of report {number}");
    let caption = format!("Of all samples that count ({basis}); percentiles by linear interpolation");
    let mut table = Table::new(&label, &caption, &[("figure", false), ("value", true)]);
    for figure in figures::latency(report) {
        table.row(&[words(figure.name), data(&figure)]);
    }
    out.push_str(&table.end());
    out
}

fn split(report: &Report, number: usize) -> String {
    let Some(split) = report.split.as_ref().filter(|split| !split.modes.is_empty()) else { return String::new() };
    let columns = ["mode", "in", "compute", "out", "enqueue", "host"].map(|name| (name, name != "mode"));
    let caption =
        format!("Medians of each part of the latency, by mode of running ({})", figures::basis(report).words());
    let mut table = Table::new(&format!("Parts of the latency of report {number}"), &caption, &columns);
    for mode in &split.modes {
        let graph = if mode.cuda_graph { "CUDA graph" } else { "no CUDA graph" };
        let transfers = if mode.transfers { "with transfers" } else { "no transfers" };
        let parts = [mode.h2d, Some(mode.compute), mode.d2h, mode.enqueue, mode.host];
        let mut cells = vec![words(&format!("{graph}, {transfers}"))];
        cells.extend(parts.map(|part| part.map_or("–".into(), |part| exact(part.median, &milliseconds(part.median)))));
        table.row(&cells);
    }
    format!("<h3>Where the latency goes</h3>\n{}", table.end())
}

fn layers(report: &Report, number: usize) -> String {
    if report.layers.is_empty() {
        return String::new();
    }
    let mut out = "<h3>Where the time goes</h3>\n".to_owned();
    if let Some(bound) = bound::of_engine(report) {
        out.push_str(&format!("<p>Bound by {}.</p>\n", words(&bound.words)));
    }
    let charts =
        [chart::layers(report, &format!("c{number}-layers")), chart::roofline(report, &format!("c{number}-roof"))];
    charts.into_iter().flatten().for_each(|svg| out.push_str(&figure(&svg)));
    let total: f64 = report.layers.iter().map(|layer| layer.median_ms).sum();
    let caption = "Times are measured in runs apart from the latencies; shares of ceilings are estimated from shapes";
    let columns = [
        ("layer", false),
        ("kind", false),
        ("type", false),
        ("time", true),
        ("share", true),
        ("reached", false),
        ("bound by", false),
        ("tactic", false),
    ];
    let counted = report.layers.iter().any(|layer| layer.counters.is_some());
    let columns: Vec<(&str, bool)> =
        columns.into_iter().chain(counted.then_some(("counted by the device", false))).collect();
    let mut table = Table::new(&format!("Layers of report {number}"), caption, &columns);
    let mut sorted: Vec<&LayerTime> = report.layers.iter().collect();
    sorted.sort_by(|a, b| b.median_ms.total_cmp(&a.median_ms));
    for layer in sorted {
        let reached =
            Roofline::of(layer, report.ceilings.as_ref()).and_then(|line| line.of_ceiling()).unwrap_or_default();
        let bound = bound::of_layer(layer, report).map_or("", bound::Bottleneck::words);
        let told = layer.counters.as_ref().map(LayerCounters::describe);
        let told = counted.then(|| words(&told.unwrap_or_default()));
        let mut cells = vec![
            words(&shortened(&layer.name, NAME_CHARACTERS)),
            words(&layer.kind),
            words(layer.precision.as_deref().unwrap_or_default()),
            exact(layer.median_ms, &milliseconds(layer.median_ms)),
            percent(layer.median_ms / total.max(f64::MIN_POSITIVE)),
            reached,
            bound.to_owned(),
            words(&shortened(&layer.tactic, TACTIC_CHARACTERS)),
        ];
        cells.extend(told);
        table.row(&cells);
    }
    let count = report.layers.len();
    out.push_str(&format!("<details><summary>All {count} layers</summary>\n{}</details>\n", table.end()));
    out
}

fn sweeps(report: &Report, number: usize) -> String {
    let batches = chart::batches(report, &format!("c{number}-batch"));
    let streams = chart::streams(report, &format!("c{number}-streams"));
    let mut out = String::new();
    for (heading, charts) in [("By batch", batches), ("By streams", streams)] {
        if !charts.is_empty() {
            out.push_str(&format!("<h3>{heading}</h3>\n{}", pair(&charts)));
        }
    }
    let problems = report.batches.iter().flat_map(|sweep| &sweep.points).filter_map(|point| {
        let problem = point.problem.as_ref()?;
        Some(format!("<li>batch {}: not measured: {}</li>\n", point.batch, words(problem)))
    });
    let problems: String = problems.collect();
    if !problems.is_empty() {
        out.push_str(&format!("<ul>\n{problems}</ul>\n"));
    }
    out.push_str(&points(report, number));
    out
}

/// Optimization profiles at their smallest, usual and largest shapes.
fn points(report: &Report, number: usize) -> String {
    if report.points.is_empty() {
        return String::new();
    }
    let columns =
        [("profile", false), ("at", false), ("shapes", false), ("median", true), ("p99", true), ("throughput", true)];
    let caption = format!("Every profile at its shapes ({})", figures::basis(report).words());
    let mut table = Table::new(&format!("Optimization profiles of report {number}"), &caption, &columns);
    for point in &report.points {
        let sizes = |shape: &[u64]| shape.iter().map(u64::to_string).collect::<Vec<_>>().join("x");
        let shapes: Vec<String> = point.shapes.iter().map(|(name, shape)| format!("{name} {}", sizes(shape))).collect();
        let none = || words(point.problem.as_deref().unwrap_or("–"));
        let of =
            |value: Option<f64>, show: fn(f64) -> String| value.map_or_else(none, |value| exact(value, &show(value)));
        let stats = point.latency_ms.as_ref();
        table.row(&[
            point.profile.to_string(),
            point.at.name().to_owned(),
            words(&shapes.join(", ")),
            of(stats.map(|stats| stats.median), milliseconds),
            of(stats.map(|stats| stats.p99), milliseconds),
            of(point.throughput_per_s, per_second),
        ]);
    }
    format!("<h3>By shape</h3>\n{}", table.end())
}

/// Other runtimes that were measured under the same lease.
fn beside(report: &Report) -> String {
    if report.baselines.is_empty() {
        return String::new();
    }
    let lines =
        report.baselines.iter().map(|baseline| format!("<li>{}</li>\n", words(&report.baseline_words(baseline))));
    let basis = figures::basis(report).words();
    format!("<h3>Other runtimes beside it ({basis})</h3>\n<ul>\n{}</ul>\n", lines.collect::<String>())
}

fn builds(report: &Report, number: usize) -> String {
    let Some(selection) = &report.selection else { return String::new() };
    let columns = [("plan", false), ("median", true), ("built in", true), ("kept", false)];
    let caption =
        format!("Builds of the same engine ({}), {} apart", figures::basis(report).words(), percent(selection.spread));
    let mut table = Table::new(&format!("Builds of report {number}"), &caption, &columns);
    for build in &selection.builds {
        let kept = if build.kept { "kept" } else { "" };
        table.row(&[
            words(&build.plan_digest.short()),
            exact(build.median_ms, &milliseconds(build.median_ms)),
            exact(build.build_ms, &milliseconds(build.build_ms)),
            kept.to_owned(),
        ]);
    }
    format!("<h3>Builds</h3>\n{}", table.end())
}

pub(super) fn record(report: &Report, number: usize) -> String {
    let mut out = "<h3>Record</h3>\n".to_owned();
    for part in record::parts(report) {
        out.push_str(&format!("<details><summary>{}</summary>\n", part.heading));
        let mut table = Table::new(
            &format!("{}, report {number}", part.heading),
            part.heading,
            &[("what", false), ("recorded", false)],
        );
        for (name, text) in &part.lines {
            table.row(&[words(name), words(text)]);
        }
        out.push_str(&table.end());
        out.push_str("</details>\n");
    }
    out
}
