//! What holds for every document, whatever the reports.

use crate::{
    Dossier, csv, html, markdown,
    story::{Found, Step, Story},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use planforge_report::{
    Finding, Foreign, LayerTime, Report, Seen, StreamPoint, StreamSweep,
    compare::{Comparison, compare, portability::portability},
    testing::{disturbed, sample_report, with_ceilings_and_batches},
};
use planforge_types::host::HostRecord;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::{collections::BTreeSet, fs, path::Path};

/// Largest file of five devices with 200 layers each.
const MOST_BYTES: usize = 500_000;

fn streams() -> StreamSweep {
    let point = |streams: u32, throughput_per_s: f64, median_ms: f64| StreamPoint {
        streams,
        throughput_per_s,
        median_ms,
        p99_ms: median_ms * 1.25,
        samples: 100,
    };
    let points = vec![point(1, 990.0, 1.01), point(2, 1700.0, 1.18), point(4, 1650.0, 2.42)];
    StreamSweep { points, knee: Some(2), best: Some(2) }
}

/// A report with something in every part.
fn full(centre_ms: f64) -> Report {
    let mut report = with_ceilings_and_batches(sample_report(centre_ms));
    report.streams = Some(streams());
    report.windows.iter_mut().for_each(|window| window.energy_uj = Some(3_000_000 + u64::from(window.iterations)));
    report.findings.push(Finding::warning("contention", "2 of 5 counted windows were disturbed"));
    report.layers[0].bytes = 3_000_000;
    report.host = Some(HostRecord::default());
    report.telemetry.seen = Some(Seen { readings: 6, ..Seen::default() });
    report
}

/// Every document of these reports: HTML, Markdown, CSV.
fn documents(reports: &[Report]) -> [String; 3] {
    let comparison: Option<Comparison> = (reports.len() > 1).then(|| compare(reports).unwrap());
    let cells: Vec<_> = reports.iter().map(|report| portability(report, reports)).collect();
    let dossier = Dossier { reports, portability: &cells, comparison: comparison.as_ref() };
    [html::render(&dossier), markdown::render(&dossier), csv::render(&dossier)]
}

/// What stands between two marks, each time.
fn between<'a>(text: &'a str, begin: &str, end: &str) -> Vec<&'a str> {
    text.split(begin).skip(1).filter_map(|rest| Some(rest.split_once(end)?.0)).collect()
}

#[test]
fn the_file_fetches_nothing_and_runs_nothing() {
    let [page, ..] = documents(&[full(1.0), full(2.0)]);
    for needle in ["<script", "src=", "@import", "<link", "<iframe", " style=", "url(http", "javascript:"] {
        assert!(!page.contains(needle), "{needle}");
    }
    let addresses: BTreeSet<&str> = between(&page, "http", "\"").into_iter().collect();
    assert!(
        addresses.iter().all(|rest| *rest == "://www.w3.org/2000/svg" || rest.starts_with("-equiv=")),
        "{addresses:?}"
    );
    // The policy allows this very style, and nothing else.
    let style = between(&page, "<style>", "</style>");
    let digest = STANDARD.encode(Sha256::digest(style[0].as_bytes()));
    assert!(page.contains(&format!("default-src 'none'; style-src 'sha256-{digest}'")), "{digest}");
    let ids = between(&page, " id=\"", "\"");
    let once: BTreeSet<&&str> = ids.iter().collect();
    assert_eq!(ids.len(), once.len(), "names are used once");
    let regions = between(&page, "role=\"region\" tabindex=\"0\" aria-label=\"", "\"");
    assert_eq!(regions.len(), regions.iter().collect::<BTreeSet<_>>().len(), "regions are told apart");
    for link in between(&page, "href=\"#", "\"") {
        assert!(once.contains(&link), "{link} leads nowhere");
    }
}

#[test]
fn every_part_of_a_report_is_in_the_file() {
    let mut foreign = full(1.5);
    foreign.foreign =
        Some(Foreign { built_for: "cpu-x86-64-v2".parse().unwrap(), measured_on: "cpu-x86-64-v3".parse().unwrap() });
    let [page, text, table] = documents(&[full(1.0), disturbed(foreign)]);
    let parts = [
        "Latency distribution",
        "Median of each window",
        "Roofline",
        "Time of layers",
        "Throughput by batch",
        "Throughput by streams",
        "Latencies beside each other",
        "Time of plans built elsewhere",
        "knee at 2",
        "contention",
        "Host",
        "not recorded",
        "What to try",
        "streams-cost",
        "Bound by ",
        "(estimated)</desc>",
        "(measured)</desc>",
        "every window of this measurement",
        "<th scope=\"row\">built for<td>cpu-x86-64-v2",
        "<th scope=\"row\">measured on<td>cpu-x86-64-v3",
        "energy per inference",
        "utilisation outside of windows",
        "not available",
    ];
    for part in parts {
        assert!(page.contains(part), "{part}");
    }
    for part in
        ["| median latency | 1.010 ms", "**warning**", "<summary>Record</summary>", "| 2 | 1700/s |", "Latency: `"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(table.starts_with(csv::HEADER) && table.contains(",streams,2,throughput,1700,1/s,measured"), "{table}");
    assert!(table.contains(",layer,conv1+relu,operations,150000000,FLOP,estimated"), "{table}");
}

#[test]
fn what_was_simulated_says_so_in_every_document() {
    let mut report = full(1.0);
    report.simulated = true;
    for document in documents(&[report]) {
        assert!(document.contains("SIMULATED"), "{document}");
        assert!(!document.contains(",measured") && !document.contains("(measured)</desc>"), "{document}");
    }
}

#[test]
fn names_of_strangers_are_words() {
    let hostile = "</title><script>alert(1)</script>\" onload=\"x\n=cmd|' /C calc'!A0,\u{202e}`@all` ](http://x)";
    let mut report = full(1.0);
    report.model.name = hostile.into();
    report.device.name = hostile.into();
    report.provenance.agent = hostile.into();
    report.layers[0] =
        LayerTime { name: hostile.into(), kind: hostile.into(), tactic: hostile.into(), ..report.layers[0].clone() };
    report.layers[0].precision = Some(hostile.into());
    report.findings.push(Finding::warning(hostile, hostile));
    report.spec.options.insert(hostile.into(), hostile.into());
    report.windows[0].tainted = vec![hostile.into()];
    report.windows[0].kept_tainted = true;
    report.inputs[0].name = hostile.into();
    let [page, text, table] = documents(&[report.clone(), report]);
    for document in [&page, &text] {
        assert!(!document.contains("<script") && !document.contains('\u{202e}'), "{document}");
    }
    assert!(!page.contains("\" onload="), "{page}");
    assert!(!text.contains("@all") && !text.replace("\\]", "").contains("](http"), "{text}");
    // Every line of the table has as many cells as the first, and none is a formula.
    let columns = csv::HEADER.split(',').count();
    for line in table.trim_end().split("\r\n") {
        let outside: String = line.split('"').step_by(2).collect();
        assert_eq!(outside.matches(',').count() + 1, columns, "{line}");
        assert!(line.split(',').all(|cell| !cell.starts_with(['=', '@'])), "{line}");
    }
}

#[test]
fn five_devices_of_two_hundred_layers_fit() {
    let long = |index: usize| {
        format!("/backbone/stage{}/block{index}/conv{index}/Conv + /backbone/stage/block/relu/Relu", index % 7)
    };
    let of = |centre_ms: f64| {
        let mut report = full(centre_ms);
        let layer = |index: usize| LayerTime {
            name: long(index),
            kind: ["conv", "gemm", "pool", "add", "softmax", "resize", "reformat"][index % 7].into(),
            tactic: format!("sm90_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_{index}"),
            median_ms: 0.01 + (index * 7919 % 97) as f64 / 1e3,
            flops: 1_000_000 + (index as u64) * 31_337,
            bytes: 10_000 + (index as u64) * 977,
            precision: Some("fp16".into()),
            ..LayerTime::default()
        };
        report.layers = (0..200).map(layer).collect();
        report
    };
    let reports: Vec<Report> = [1.0, 1.4, 2.0, 3.0, 5.0].map(of).into();
    let [page, text, _] = documents(&reports);
    assert!(page.len() <= MOST_BYTES, "{} bytes", page.len());
    // What a comment of a pull request may hold.
    assert!(text.len() <= 65_536, "{} bytes", text.len());
}

/// Numbers of a report's document but the statistics of its samples.
fn stated(report: &Report, found: &mut Vec<f64>) {
    fn collect(value: &Value, found: &mut Vec<f64>) {
        match value {
            Value::Number(number) => found.extend(number.as_f64()),
            Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
            Value::Object(fields) => fields.values().for_each(|field| collect(field, found)),
            _ => {}
        }
    }
    let mut document = serde_json::to_value(report).unwrap();
    let fields = document.as_object_mut().unwrap();
    for derived in ["latency_ms", "windows", "throughput_per_s", "samples"] {
        assert!(fields.remove(derived).is_some());
    }
    collect(&document, found);
}

/// What the raw samples come to, by arithmetic of its own.
fn derived(report: &Report) -> Vec<f64> {
    let samples = report.samples.decode().unwrap();
    let mut sorted = samples.clone();
    sorted.sort_by(f64::total_cmp);
    let quantile = |sorted: &[f64], share: f64| {
        let at = share * (sorted.len() - 1) as f64;
        let (low, part) = (at.floor() as usize, at.fract());
        sorted[low] + (sorted[(low + 1).min(sorted.len() - 1)] - sorted[low]) * part
    };
    let count = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / count;
    let variance = samples.iter().map(|sample| (sample - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let mut found = vec![mean, variance.sqrt(), count, sorted[0], sorted[sorted.len() - 1]];
    found.extend([0.5, 0.9, 0.95, 0.99].map(|share| quantile(&sorted, share)));
    found.push(report.batch as f64 * 1e3 / mean);
    let used_uj: u64 = report.windows.iter().filter_map(|window| window.energy_uj).sum();
    found.push(used_uj as f64 / count / 1e6);
    let sizes = report.counted_windows();
    found.extend([sizes.len() as f64, (report.windows.len() - sizes.len()) as f64]);
    let interval = planforge_stats::median_interval(&samples, &sizes, planforge_stats::CI_CONFIDENCE);
    found.extend(interval.iter().flat_map(|interval| [interval.low, interval.high]));
    let mut rest = samples.as_slice();
    for size in sizes {
        let (mut own, after) = (rest[..size].to_vec(), &rest[size..]);
        own.sort_by(f64::total_cmp);
        found.push(quantile(&own, 0.5));
        rest = after;
    }
    found
}

#[test]
fn every_number_follows_from_the_raw_samples_or_was_counted() {
    let reports = [full(1.0), full(1.7)];
    let mut known = Vec::new();
    for report in &reports {
        known.extend(derived(report));
        stated(report, &mut known);
    }
    let is_known = |value: f64| known.iter().any(|known| (known - value).abs() <= 1e-9 * value.abs().max(1e-9));
    let [page, _, table] = documents(&reports);
    let mut seen = 0;
    for element in between(&page, "<data value=\"", "</data>") {
        let (value, text) = element.split_once("\">").unwrap();
        let value: f64 = value.parse().unwrap();
        assert!(is_known(value), "{value} ({text}) follows from nothing");
        assert!(shows(text, value), "'{text}' is not {value}");
        seen += 1;
    }
    assert!(seen > 60, "{seen} numbers");
    for line in table.lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let value: f64 = cells[cells.len() - 3].parse().unwrap_or_else(|_| panic!("{line}"));
        assert!(is_known(value), "{line} follows from nothing");
    }
    // A number that is changed after the measurement follows from nothing.
    assert!(!is_known(reports[0].latency_ms.median * 1.001));
}

#[test]
fn every_number_of_a_story_is_a_reports_or_a_ratio_of_two() {
    let reports = [full(4.0), full(2.0), full(1.7)];
    let step = |name: &str, found| Step { name: name.into(), change: "something".into(), found, kept: true };
    let steps = [
        step("baseline", Found::Latency(0)),
        step("fusion", Found::Latency(1)),
        step("precision", Found::Unavailable("no <b>fp16</b>".into())),
        step("batch", Found::Batches(2)),
        step("streams", Found::Streams(2)),
    ];
    let story = Story { reports: &reports, steps: &steps };
    let page = html::story::render(&story);
    let seen = follow(&story, &page);
    assert!(seen > 12, "{seen} numbers");
    for part in ["no &lt;b&gt;fp16&lt;/b&gt;", "2.00x (", "best with 2 streams, knee at 2", "Throughput by batch"] {
        assert!(page.contains(part), "{part}");
    }
    let ids = between(&page, " id=\"", "\"");
    assert_eq!(ids.len(), ids.iter().collect::<BTreeSet<_>>().len(), "names are used once");
    let text = markdown::story(&story);
    assert!(
        text.contains("| fusion | something | 2.020 ms |") && text.contains("not available: no &lt;b&gt;"),
        "{text}"
    );
}

#[test]
fn every_number_of_an_example_story_follows_from_its_raw_samples() {
    #[derive(serde::Deserialize)]
    struct Document {
        steps: Vec<Step>,
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/story");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut told = 0;
    for file in files.filter(|path| path.extension().is_some_and(|ending| ending == "json")) {
        let text = fs::read(&file).unwrap();
        let Document { steps } = serde_json::from_slice(&text).unwrap();
        let reports = Report::parse_all(&text).unwrap();
        let story = Story { reports: &reports, steps: &steps };
        assert!(steps.len() > 4 && story.first().is_some() && reports.iter().all(|report| !report.simulated));
        let seen = follow(&story, &html::story::render(&story));
        assert!(seen > 15, "{}: {seen} numbers", file.display());
        told += 1;
    }
    assert!(told > 0, "no story is there");
}

/// That every number of a story's page is one of its reports', or a ratio of two to the first; how many there are.
fn follow(story: &Story<'_>, page: &str) -> usize {
    let mut known = Vec::new();
    for report in story.reports {
        known.extend(derived(report));
        report.baselines.iter().for_each(|baseline| known.extend(derived(&report.of_baseline(baseline))));
        stated(report, &mut known);
    }
    let first = story.first().map(|first| derived(&first)).unwrap_or_default();
    let over_first = |value: f64| {
        known.iter().any(|other| {
            first.iter().any(|first| (other / first - value).abs() < 1e-9 || (first / other - value).abs() < 1e-9)
        })
    };
    let is_known = |value: f64| known.iter().any(|known| (known - value).abs() <= 1e-9 * value.abs().max(1e-9));
    let mut seen = 0;
    for element in between(page, "<data value=\"", "</data>") {
        let (value, text) = element.split_once("\">").unwrap();
        let value: f64 = value.parse().unwrap();
        let is_ratio = text.ends_with('x') && over_first(value);
        assert!(is_known(value) || is_ratio, "{value} ({text}) follows from nothing");
        assert!(shows(text.trim_end_matches('x'), value), "'{text}' is not {value}");
        seen += 1;
    }
    seen
}

/// Whether a text shows a value, in some unit, rounded to the digits that it has.
fn shows(text: &str, value: f64) -> bool {
    let number = text.split([' ', '/', '*']).next().unwrap_or_default();
    let Ok(shown) = number.parse::<f64>() else { return false };
    let (mantissa, exponent) = number.split_once('e').unwrap_or((number, "0"));
    let places = mantissa.split_once('.').map_or(0, |(_, after)| after.len() as i32);
    let half = 0.5000001 * 10f64.powi(exponent.parse::<i32>().unwrap() - places);
    [1.0, 1e-3, 1e-6, 1e3, 1024.0, 1048576.0, 0.01].iter().any(|unit| (shown * unit - value).abs() <= half * unit)
}
