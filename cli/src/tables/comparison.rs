//! A comparison as a plain table: one row a report, the verdict against the first.

use super::table;
use planforge_report::{
    compare::{Comparison, ForeignRow, Pair, Row},
    disturbance,
    format::{bytes, milliseconds, per_second, percent},
};
use planforge_types::shown;

const COLUMNS: [&str; 10] =
    ["#", "sku", "toolchain", "spec", "median", "p99", "throughput", "plan", "top-1", "verdict"];

/// Columns whose numbers line up on the right.
const NUMERIC: [usize; 5] = [4, 5, 6, 7, 8];

/// The comparison as plain text: the table, then a line for every pair with its reason.
pub fn render(comparison: &Comparison) -> String {
    let mut rows = table(&COLUMNS);
    for (index, row) in comparison.rows.iter().enumerate() {
        rows.add_row(cells(index, row, comparison.against_base(index)));
    }
    let is_marked = comparison.rows.iter().any(|row| row.wholly_disturbed);
    let mut text = super::explained(super::render(rows, &NUMERIC), is_marked);
    text.push('\n');
    for pair in &comparison.pairs {
        text.push_str(&format!("{}\n", shown::line(&line(pair))));
    }
    if let Some(basis) = &comparison.basis {
        text.push_str(&format!("{}\n", shown::line(&basis.words())));
    }
    for ForeignRow { row, cell } in &comparison.portability {
        let (built_for, measured_on) = (&cell.built_for, &cell.measured_on);
        let words = cell.words();
        let line = format!("{} built for {built_for}, measured on {measured_on}: loss: {words}", row + 1);
        text.push_str(&format!("{}\n", shown::line(&line)));
    }
    text
}

fn cells(index: usize, row: &Row, pair: Option<&Pair>) -> [String; 10] {
    let verdict = match pair {
        None => "-".to_owned(),
        Some(Pair { ratio: Some(ratio), base, across_devices: true, .. }) => {
            format!("another device kind: {ratio:.2}x the time of {}", base + 1)
        }
        Some(Pair { verdict, ratio: Some(ratio), base, .. }) => {
            format!("{} against {} ({ratio:.2}x the time)", verdict.words(), base + 1)
        }
        Some(Pair { verdict, base, .. }) => format!("{} against {}", verdict.words(), base + 1),
    };
    let threads = row.threads.map(|threads| format!(" {threads}t")).unwrap_or_default();
    let mut marks: String = row.extras.iter().map(|extra| format!(" {extra}")).collect();
    for (set, mark) in [
        (!row.accurate, " WRONG"),
        (row.simulated, " simulated"),
        (row.foreign, " foreign"),
        (row.disturbed, " disturbed"),
    ] {
        marks.push_str(if set { mark } else { "" });
    }
    [
        (index + 1).to_string(),
        row.sku.clone(),
        row.toolchain.clone(),
        format!("{} b{}{threads}{marks}", row.precision, row.batch),
        disturbance::marked(milliseconds(row.median_ms), row.wholly_disturbed),
        milliseconds(row.p99_ms),
        per_second(row.throughput_per_s),
        bytes(row.plan_bytes),
        row.top1.map_or("-".to_owned(), percent),
        verdict,
    ]
}

fn line(pair: &Pair) -> String {
    let differences =
        if pair.differences.is_empty() { String::new() } else { format!(" [{}]", pair.differences.join("; ")) };
    // Which device is the faster one is no verdict on engines.
    let verdict = match (pair.across_devices, pair.ratio) {
        (true, Some(_)) => "not judged",
        _ => pair.verdict.words(),
    };
    format!("{} against {}: {verdict}: {}{differences}", pair.other + 1, pair.base + 1, pair.reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_report::{
        Report,
        compare::compare,
        testing::{disturbed, sample_report},
    };

    #[test]
    fn a_comparison_is_a_table() {
        let mut slow = sample_report(2.0);
        slow.sku = "cpu-x86-64-v2".parse().unwrap();
        let mut wrong = sample_report(0.1);
        wrong.accurate = false;
        wrong.accuracy = None;
        let comparison = compare(&[sample_report(1.0), slow, wrong]).unwrap();
        insta::assert_snapshot!(render(&comparison));
    }

    #[test]
    fn a_median_of_disturbed_windows_alone_is_marked() {
        let reports = [sample_report(1.0), disturbed(sample_report(1.5))];
        let text = render(&compare(&reports).unwrap());
        assert_eq!(text.matches('*').count(), 2, "at the median and where it is explained: {text}");
        assert!(text.contains("1.515 ms*") && text.contains("* every window of this measurement"), "{text}");
    }

    /// A report of a simulated run on a GPU.
    fn on(sku: &str, version: &str, centre_ms: f64) -> Report {
        let mut report = sample_report(centre_ms);
        report.simulated = true;
        report.sku = sku.parse().unwrap();
        report.toolchain.version = version.into();
        report
    }

    #[test]
    fn verdicts_name_what_they_are_against() {
        let reports =
            [on("t4", "10", 4.0), on("t4", "11", 3.6), on("h100-sxm", "10", 0.48), on("h100-sxm", "11", 0.528)];
        let text = render(&compare(&reports).unwrap());
        assert!(text.contains("slower against 3 (1.10x the time)"), "{text}");
        assert!(text.contains("another device kind: 0.12x the time of 1"), "{text}");
        assert!(text.contains("3 against 1: not judged: on different device kinds, t4 and h100-sxm"), "{text}");
        let across = text.lines().filter(|line| line.contains("on different device kinds"));
        assert!(across.clone().count() == 2 && across.clone().all(|line| !line.contains("aster:")), "{text}");
        assert!(text.contains("on different device kinds, t4 and h100-sxm") && text.contains("simulated"), "{text}");
    }
}
