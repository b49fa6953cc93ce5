//! A tuning story as a file.

use super::{
    page,
    single::record,
    write::{Table, data, exact, figure, pair, words},
};
use crate::{chart, story::Story};
use planforge_report::{
    Report, disturbance,
    format::{milliseconds, per_second},
};

/// The file.
pub fn render(story: &Story<'_>) -> String {
    let mut main = tiles(story);
    main.push_str("<section aria-labelledby=\"steps\">\n<h2 id=\"steps\">What each step brought</h2>\n");
    main.push_str(&story.chart("c0-steps").map(|svg| figure(&svg)).unwrap_or_default());
    main.push_str(&steps(story));
    main.push_str("</section>\n");
    main.push_str(&sweeps(story));
    main.push_str(&beside(story));
    if let (Some(first), Some(last)) = (story.first(), story.last()) {
        main.push_str("<section aria-labelledby=\"spread\">\n<h2 id=\"spread\">How steady it was</h2>\n");
        let ends = [first.into_owned(), last.clone()];
        let labels = ["at first".to_owned(), "at last".to_owned()];
        let charts = [chart::shares(&ends, &labels, "c0-shares"), chart::windows(last, "c0-windows")];
        main.push_str(&pair(&charts.into_iter().flatten().collect::<Vec<_>>()));
        main.push_str("</section>\n<section aria-labelledby=\"last\">\n<h2 id=\"last\">The last engine</h2>\n");
        main.push_str(&chart::layers(last, "c0-layers").map(|svg| figure(&svg)).unwrap_or_default());
        main.push_str(&record(last, 1));
        main.push_str("</section>\n");
    }
    let lead = "Every step is a build of its own, measured by the same experiment on the same device, and held against the \
                step before it. A gain within its interval of 1 is none.";
    page(&story.title(), story.reports, lead, &main)
}

fn tiles(story: &Story<'_>) -> String {
    let mut out = "<dl class=\"tiles\">\n".to_owned();
    for figure in story.headline() {
        out.push_str(&format!(
            "<div><dt>{}</dt><dd>{}<small>{}</small></dd></div>\n",
            figure.name,
            data(&figure),
            figure.basis.words()
        ));
    }
    out.push_str("</dl>\n");
    let disturbed = story.reports.iter().any(|report| report.wholly_disturbed().is_some());
    if disturbed {
        out.push_str(&format!("<p>{}</p>\n", words(&disturbance::legend(true))));
    }
    out
}

fn steps(story: &Story<'_>) -> String {
    let columns = [
        ("step", false),
        ("what was done", false),
        ("median", true),
        ("throughput", true),
        ("over the step before", false),
        ("over the first", true),
        ("built with", false),
    ];
    let caption = "Medians and throughput are measured; of a sweep the best point is shown, over its smallest";
    let mut table = Table::new("Steps of the story", caption, &columns);
    let none = || "–".to_owned();
    for row in story.rows() {
        let report = row.report.and_then(|index| story.reports.get(index));
        let median = |ms: f64| exact(ms, &disturbance::marked(milliseconds(ms), row.disturbed));
        let gain = row.gain.as_ref().map(|gain| words(&gain.words()));
        let told = match (gain, row.remark.as_str()) {
            (Some(gain), "") => gain,
            (Some(gain), remark) => format!("{gain}; {}", words(remark)),
            (None, "") => none(),
            (None, remark) => words(remark),
        };
        table.row(&[
            words(&row.name),
            words(&row.change),
            row.median_ms.map_or_else(none, median),
            row.throughput_per_s.map_or_else(none, |rate| exact(rate, &per_second(rate))),
            told,
            row.since_first.map_or_else(none, |times| exact(times, &format!("{times:.2}x"))),
            report.map_or_else(none, |report| words(&report.spec.words())),
        ]);
    }
    table.end()
}

fn sweeps(story: &Story<'_>) -> String {
    let mut out = String::new();
    for (index, report) in story.reports.iter().enumerate() {
        let id = |name: &str| format!("c{}-{name}", index + 1);
        for (heading, charts) in
            [("By batch", chart::batches(report, &id("batch"))), ("By streams", chart::streams(report, &id("streams")))]
        {
            if !charts.is_empty() {
                out.push_str(&format!("<h3>{heading}</h3>\n{}", pair(&charts)));
            }
        }
    }
    out
}

/// Other runtimes that were measured under the lease of one of the steps.
fn beside(story: &Story<'_>) -> String {
    let told: Vec<(&Report, String)> = (story.reports.iter())
        .flat_map(|report| report.baselines.iter().map(move |baseline| (report, report.baseline_words(baseline))))
        .collect();
    if told.is_empty() {
        return String::new();
    }
    let lines: String = told
        .iter()
        .map(|(report, line)| {
            format!("<li>{} <small>beside {}</small></li>\n", words(line), words(&report.spec.words()))
        })
        .collect();
    format!("<h3>Other runtimes on the same device, under the same lease (measured)</h3>\n<ul>\n{lines}</ul>\n")
}
