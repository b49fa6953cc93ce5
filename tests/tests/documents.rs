//! Reports as documents, as the command writes them: the HTML file in a real browser, on every screen, without a network.

use planforge_report::{
    Finding, Foreign, Report, StreamPoint, StreamSweep, schema,
    testing::{disturbed, sample_report, with_ceilings_and_batches},
};
use planforge_tests::{
    browser::{Browser, PAPER, SCREENS},
    models, process,
    release::root,
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Runs the rules of axe; what it finds, one line each.
const FINDINGS: &str =
    "axe.run(document, { resultTypes: ['violations'] }).then((found) => found.violations.flatMap((rule) =>
    rule.nodes.map((node) => rule.id + ' (' + rule.impact + '): ' + node.html.slice(0, 200))).join('\\n'))";

/// What a committed story may take, page or samples.
const STORY_MAX_BYTES: u64 = 500_000;

/// A report with something in every part.
fn full(centre_ms: f64) -> Report {
    let mut report = with_ceilings_and_batches(sample_report(centre_ms));
    let point = |streams: u32, throughput_per_s: f64| StreamPoint {
        streams,
        throughput_per_s,
        median_ms: centre_ms * f64::from(streams),
        p99_ms: centre_ms * f64::from(streams) * 1.2,
        samples: 100,
    };
    let points = vec![point(1, 990.0), point(2, 1700.0), point(4, 1710.0)];
    report.streams = Some(StreamSweep { points, knee: Some(2), best: Some(4) });
    report.layers[0].bytes = 3_000_000;
    report.model.name = "<b>nets & co</b>.onnx".into();
    report.findings.push(Finding::warning("contention", "2 of 5 windows were disturbed by other processes"));
    report
}

fn reports() -> Vec<Report> {
    let mut foreign = full(1.5);
    foreign.sku = "cpu-x86-64-v2".parse().expect("a SKU");
    let measured_on = full(1.0).sku;
    foreign.foreign = Some(Foreign { built_for: foreign.sku.clone(), measured_on });
    vec![full(1.0), foreign, disturbed(full(2.0))]
}

/// The stories that are committed as examples.
fn stories() -> Vec<PathBuf> {
    let folder = fs::read_dir(root().join("examples/story")).expect("the examples");
    let files = folder.map(|entry| entry.expect("an entry").path());
    let mut found: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|ending| ending == "json")).collect();
    found.sort();
    assert!(!found.is_empty(), "no story is there");
    found
}

/// `planforge report` of these reports with `extra`, into a file of this name; what the file holds.
fn written(home: &Path, name: &str, reports: &[Report], extra: &[&str]) -> String {
    let file = home.join("reports.json");
    fs::write(&file, serde_json::to_vec(reports).expect("JSON")).expect("written");
    let mut command = process::command(home);
    command.arg("report").arg(&file).args(extra).arg("-o").arg(home.join(name));
    let output = process::run(command);
    assert!(output.status.success(), "{output:?}");
    fs::read_to_string(home.join(name)).expect("the document")
}

fn home() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("planforge-test-").tempdir().expect("a temporary folder")
}

#[test]
fn the_file_has_no_finding_of_axe_on_any_screen() {
    let home = home();
    written(home.path(), "many.html", &reports(), &[]);
    let mut simulated = sample_report(1.0);
    simulated.simulated = true;
    written(home.path(), "one.html", &[simulated], &[]);
    let axe = fs::read_to_string(root().join("target/axe-package/axe_playwright_python/axe.min.js"));
    if axe.is_err() {
        assert!(std::env::var_os("CI").is_none(), "test.sh installs axe");
        planforge_skipped::skipped("axe is not installed: ./test.sh installs it");
    }
    let pictures = std::env::var_os("PLANFORGE_PAGE_PICTURES");
    let mut browser = Browser::start(home.path());
    let tab = browser.tab();
    let mut wrong = Vec::new();
    let mut files = vec![home.path().join("many.html"), home.path().join("one.html")];
    files.extend(stories().into_iter().map(|story| story.with_extension("html")));
    for file in files {
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        for screen in SCREENS.into_iter().chain([PAPER]) {
            browser.look_as(&tab, screen);
            browser.open(&tab, &format!("file://{}", file.display()));
            // What is folded away is looked at, too.
            browser.eval(&tab, "document.querySelectorAll('details').forEach((part) => { part.open = true; }); 1");
            if let Some(folder) = &pictures {
                let file = format!("report-{name}-{}.png.base64", screen.name);
                fs::write(Path::new(folder).join(file), browser.picture(&tab)).expect("a picture");
            }
            let wide = browser.eval(&tab, "document.documentElement.scrollWidth").as_i64().unwrap_or(0);
            if wide > i64::from(screen.width) {
                wrong.push(format!("{name} {}: {wide} pixels wide", screen.name));
            }
            if let Ok(axe) = &axe {
                browser.eval(&tab, axe);
                let found = browser.eval(&tab, FINDINGS);
                let lines = found.as_str().unwrap_or("?").lines();
                wrong.extend(lines.map(|line| format!("{name} {}: {line}", screen.name)));
            }
        }
    }
    // A policy that forbids the file's own style would be told here.
    wrong.extend(browser.complaints(&tab));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Reading a story holds every figure to the raw samples; what is shown of it is what those give.
#[test]
fn the_example_stories_are_what_their_raw_samples_give() {
    let home = home();
    for told in stories() {
        let committed = told.with_extension("html");
        let page = home.path().join("story.html");
        let mut command = process::command(home.path());
        command.arg("report").arg("--story").arg(&told).arg("-o").arg(&page);
        let output = process::run(command);
        assert!(output.status.success(), "{}: {output:?}", told.display());
        let page = fs::read_to_string(page).expect("the page");
        if std::env::var_os("PLANFORGE_BLESS").is_some() {
            fs::write(&committed, &page).expect("written");
        }
        let name = committed.display();
        let same = fs::read_to_string(&committed).is_ok_and(|committed| committed == page);
        assert!(
            same,
            "{name} is not what its samples give; PLANFORGE_BLESS=1 writes it, examples/story/make.sh measures anew"
        );
        for file in [&told, &committed] {
            let bytes = fs::metadata(file).expect("there").len();
            assert!(bytes <= STORY_MAX_BYTES, "{}: {bytes} bytes", file.display());
        }
        // A figure that was changed by hand is refused.
        let mut document: serde_json::Value = serde_json::from_slice(&fs::read(&told).expect("read")).expect("JSON");
        let median = &mut document["reports"][0]["latency_ms"]["median"];
        *median = serde_json::json!(median.as_f64().expect("a median") * 0.9);
        let changed = home.path().join("changed.json");
        fs::write(&changed, document.to_string()).expect("written");
        let mut command = process::command(home.path());
        command.arg("report").arg("--story").arg(&changed);
        let refused = process::run(command);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains("latency_ms.median"), "{refused:?}");
    }
}

#[test]
fn the_ending_names_the_format_and_json_is_read_again() {
    let home = home();
    let reports = reports();
    let page = written(home.path(), "a.html", &reports, &[]);
    assert!(page.starts_with("<!doctype html>") && page.contains("&lt;b&gt;nets &amp; co&lt;/b&gt;"), "{page}");
    assert!(written(home.path(), "a.md", &reports, &[]).starts_with("### "));
    assert!(written(home.path(), "a.csv", &reports, &[]).starts_with("report,model,sku,"));
    assert!(written(home.path(), "a.txt", &reports, &["--format", "markdown"]).starts_with("### "));
    let document = written(home.path(), "a.json", &reports, &[]);
    assert_eq!(Report::parse_all(document.as_bytes()).expect("reports"), reports);
    let mut command = process::command(home.path());
    command.arg("report").arg(home.path().join("a.json")).args(["-o", "report.pdf"]);
    let refused = process::run(command);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--format json, csv, markdown or html"), "{refused:?}");
}

#[test]
fn a_report_that_was_really_measured_is_what_the_schema_says_and_every_document_takes_it() {
    let home = home();
    let model = home.path().join("model.onnx");
    models::convolutions(&model, 2, 16, 14, 7);
    let mut command = process::command(home.path());
    command.arg("build").arg(&model).args(["--threads", "1", "--json", "--data"]);
    let document = process::run_json({
        command.arg(home.path().join("data"));
        command
    });
    let report = &document["jobs"][0]["report"];
    assert_eq!(schema::complaints(report), Vec::<String>::new());
    let report = Report::parse(report.to_string().as_bytes()).expect("a report");
    let page = written(home.path(), "real.html", &[report], &[]);
    for part in ["Latency distribution", "Time of layers", "Roofline", "Host", "Device"] {
        assert!(page.contains(part), "{part}");
    }
}
