//! A comparison as a plain table: one row a report, the verdict against the first.

use super::table;
use planforge_report::{
    compare::{
        Comparison, ForeignRow, Pair, Row,
        layers::{LayerDifference, Part},
    },
    disturbance,
    format::{bytes, milliseconds, per_second, percent},
};
use planforge_types::shown;

const COLUMNS: [&str; 11] =
    ["#", "model", "sku", "toolchain", "spec", "median", "p99", "throughput", "plan", "top-1", "verdict"];

/// Columns whose numbers line up on the right.
const NUMERIC: [usize; 5] = [5, 6, 7, 8, 9];

/// The comparison as plain text: the table, then a line for every pair with its reason, then of each difference of steps
/// that was asked for the `most` parts whose time differs most.
pub fn render(comparison: &Comparison, most: usize) -> String {
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
    for beside in &comparison.imported {
        text.push_str(&format!("{}\n", shown::line(&beside.words())));
    }
    for difference in &comparison.layers {
        text.push_str(&layers(difference, most));
    }
    text
}

/// Where an engine spends its time otherwise than its base.
fn layers(difference: &LayerDifference, most: usize) -> String {
    let LayerDifference { base, other, base_ms, other_ms, parts } = difference;
    let mut text = format!(
        "\nsteps of {} against {}, profiled apart from the latencies: {} against {}\n",
        other + 1,
        base + 1,
        milliseconds(*other_ms),
        milliseconds(*base_ms),
    );
    let (shown, rest) = parts.split_at(parts.len().min(most));
    for part in shown {
        let (changes, by, name) = (part.change_words(), part.tactic_words(), part.name_words());
        let (from, to) = (milliseconds(part.base_ms), milliseconds(part.other_ms));
        let line = format!("  {:+.3} ms  {from} -> {to}  {changes}  {by}  {name}", part.more_ms());
        text.push_str(&format!("{}\n", shown::line(&line)));
    }
    if !rest.is_empty() {
        let together: f64 = rest.iter().map(Part::more_ms).sum();
        text.push_str(&format!("  {together:+.3} ms  in {} parts that differ less\n", rest.len()));
    }
    text
}

fn cells(index: usize, row: &Row, pair: Option<&Pair>) -> [String; 11] {
    let verdict = pair.map_or_else(|| "-".to_owned(), Pair::verdict_words);
    let marks: String = row.marks().iter().map(|mark| format!(" {mark}")).collect();
    [
        (index + 1).to_string(),
        row.model.clone(),
        row.sku.clone(),
        row.toolchain.clone(),
        format!("{}{marks}", row.spec_words()),
        disturbance::marked(milliseconds(row.median_ms), row.wholly_disturbed),
        milliseconds(row.p99_ms),
        per_second(row.throughput_per_s),
        bytes(row.plan_bytes),
        row.top1.map_or("-".to_owned(), percent),
        verdict,
    ]
}

fn line(pair: &Pair) -> String {
    format!("{} against {}: {}: {}", pair.other + 1, pair.base + 1, pair.judged_words(), pair.reason_words())
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
        insta::assert_snapshot!(render(&comparison, 0));
    }

    #[test]
    fn a_median_of_disturbed_windows_alone_is_marked() {
        let reports = [sample_report(1.0), disturbed(sample_report(1.5))];
        let text = render(&compare(&reports).unwrap(), 0);
        assert_eq!(text.matches('*').count(), 2, "at the median and where it is explained: {text}");
        assert!(text.contains("1.515 ms*") && text.contains("* every window of this measurement"), "{text}");
    }

    #[test]
    fn steps_that_differ_most_are_shown_first_and_the_rest_together() {
        let mut slower = sample_report(2.0);
        slower.layers[0].tactic = "slow".into();
        slower.layers[0].median_ms += 0.5;
        slower.spec.precision = planforge_types::Precision::Fp16;
        let reports = [sample_report(1.0), slower];
        let text = render(&compare(&reports).unwrap().with_layers(&reports), 1);
        assert!(text.contains("steps of 2 against 1, profiled apart from the latencies"), "{text}");
        assert!(text.contains("  +0.500 ms") && text.contains("other tactic") && text.contains("-> slow"), "{text}");
        assert!(text.contains("parts that differ less"), "{text}");
        assert!(text.contains("outputs off by") && text.contains("precision: fp32 and fp16"), "{text}");
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
        let text = render(&compare(&reports).unwrap(), 0);
        assert!(text.contains("slower against 3 (1.10x the time)"), "{text}");
        assert!(text.contains("another device kind: 0.12x the time of 1"), "{text}");
        assert!(text.contains("3 against 1: not judged: on different device kinds, t4 and h100-sxm"), "{text}");
        let across = text.lines().filter(|line| line.contains("on different device kinds"));
        assert!(across.clone().count() == 2 && across.clone().all(|line| !line.contains("aster:")), "{text}");
        assert!(text.contains("on different device kinds, t4 and h100-sxm") && text.contains("simulated"), "{text}");
    }
}
