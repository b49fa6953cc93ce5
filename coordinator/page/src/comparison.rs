//! Reports side by side, with the verdicts on them.

use crate::{
    table::{Cell, Empty, Part, Table, column, figures, words},
    view::Section,
};
use planforge_report::{
    compare::{Comparison, Pair, Row, Verdict, layers},
    disturbance,
    format::{bytes, milliseconds, per_second, percent},
};

/// Pairs that are told of; the table above has the verdict on every report.
const PAIRS_MAX: usize = 200;

/// The parts of a comparison of reports that are shown at `addresses`; of each difference of steps the `most` parts whose time differs most.
pub fn sections(comparison: &Comparison, addresses: &[String], most: usize) -> Vec<Section> {
    let mut sections = vec![
        Section::table("Reports", reports(comparison, addresses)),
        Section::table("Pair by pair", pairs(&comparison.pairs)),
    ];
    if !comparison.portability.is_empty() {
        sections.push(Section::table("Built elsewhere", built_elsewhere(comparison)));
    }
    if !comparison.layers.is_empty() {
        sections.push(Section::table("Where the time differs", steps(comparison, most)));
    }
    sections
}

/// What a page says that compares nothing yet.
pub fn nothing(server: &str) -> Section {
    let mut table = Table::new("reports", "Reports", &[words("Model")]);
    table.empty = Empty::new(
        "Name jobs or plans in the first field, apart by commas; or a model's digest, or a request, to compare all of its \
         engines.",
    )
    .typing(format!("planforge compare --model model.onnx --server {server}"));
    Section::table("", table)
}

fn reports(comparison: &Comparison, addresses: &[String]) -> Table {
    let columns = [
        figures("#"),
        column("Model", "wide"),
        words("SKU"),
        words("Toolchain"),
        words("Spec"),
        figures("Median"),
        figures("p99"),
        figures("Throughput"),
        figures("Plan"),
        figures("Top-1"),
        column("Verdict", "detail"),
    ];
    let mut table = Table::new("reports", "Reports", &columns);
    for (index, row) in comparison.rows.iter().enumerate() {
        let href = addresses.get(index).cloned().unwrap_or_default();
        table.push(index.to_string(), "", cells(index, row, href, comparison.against_base(index)));
    }
    let is_marked = comparison.rows.iter().any(|row| row.wholly_disturbed);
    table.notes.extend(Some(disturbance::legend(is_marked)).filter(|legend| !legend.is_empty()));
    table.notes.extend(comparison.basis.as_ref().map(planforge_report::compare::Basis::words));
    table
}

fn cells(index: usize, row: &Row, href: String, pair: Option<&Pair>) -> [Cell; 11] {
    let mut spec = vec![Part::Text(row.spec_words())];
    spec.extend(row.marks().into_iter().map(|mark| Part::tag(mark, if mark == "WRONG" { "bad" } else { "warn" })));
    let verdict = match pair {
        None => Cell::of([Part::Muted("what the others are compared with".into())]),
        Some(pair) => {
            let words = match pair.ratio {
                Some(ratio) => format!(" {ratio:.2}x the time of {}", pair.base + 1),
                None => format!(" against {}", pair.base + 1),
            };
            Cell::of([Part::tag(pair.judged_words(), class(pair)), Part::Text(words)])
        }
    };
    [
        Cell::text((index + 1).to_string()),
        Cell::of([Part::link(href, row.model.clone())]),
        Cell::code(row.sku.clone()),
        Cell::text(row.toolchain.clone()),
        Cell::of(spec),
        Cell::text(disturbance::marked(milliseconds(row.median_ms), row.wholly_disturbed))
            .strong(!row.wholly_disturbed),
        Cell::text(milliseconds(row.p99_ms)),
        Cell::text(per_second(row.throughput_per_s)),
        Cell::text(bytes(row.plan_bytes)),
        Cell::text(row.top1.map_or_else(|| "-".to_owned(), percent)),
        verdict,
    ]
}

/// Only what engines differ in is good or bad.
fn class(pair: &Pair) -> &'static str {
    match pair.verdict {
        _ if pair.across_devices => "",
        Verdict::Faster => "good",
        Verdict::Slower => "bad",
        Verdict::Same | Verdict::Ambiguous | Verdict::CannotTell => "",
    }
}

fn pairs(pairs: &[Pair]) -> Table {
    let columns = [words("Pair"), words("Verdict"), figures("Time"), figures("Interval"), column("Why", "wide")];
    let mut table = Table::new("pairs", "Pair by pair", &columns);
    for pair in pairs.iter().take(PAIRS_MAX) {
        let interval = match (pair.ratio_low, pair.ratio_high) {
            (Some(low), Some(high)) => format!("{low:.3} to {high:.3}"),
            _ => "-".to_owned(),
        };
        let cells = [
            Cell::text(format!("{} against {}", pair.other + 1, pair.base + 1)),
            Cell::of([Part::tag(pair.judged_words(), class(pair))]),
            Cell::text(pair.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}x"))),
            Cell::text(interval),
            Cell::text(pair.reason_words()),
        ];
        table.push(format!("{}-{}", pair.base, pair.other), "", cells);
    }
    if pairs.len() > PAIRS_MAX {
        table.notes.push(format!("{PAIRS_MAX} of {} pairs; this page as JSON has them all.", pairs.len()));
    }
    table
}

fn built_elsewhere(comparison: &Comparison) -> Table {
    let columns = [figures("#"), words("Built for"), words("Measured on"), column("Loss", "wide")];
    let mut table = Table::new("elsewhere", "Plans that were built for another device kind", &columns);
    for foreign in &comparison.portability {
        let cells = [
            Cell::text((foreign.row + 1).to_string()),
            Cell::code(foreign.cell.built_for.to_string()),
            Cell::code(foreign.cell.measured_on.to_string()),
            Cell::text(foreign.cell.words()),
        ];
        table.push(foreign.row.to_string(), "", cells);
    }
    table
}

fn steps(comparison: &Comparison, most: usize) -> Table {
    let columns = [
        words("Pair"),
        figures("Difference"),
        figures("From"),
        figures("To"),
        words("Changed"),
        column("Tactics", "detail"),
        column("Steps", "wide"),
    ];
    let mut table = Table::new("steps", "Steps whose time differs", &columns);
    for difference in &comparison.layers {
        let pair = format!("{} against {}", difference.other + 1, difference.base + 1);
        for (at, part) in difference.parts.iter().take(most).enumerate() {
            let cells = [
                Cell::text(pair.clone()),
                Cell::text(format!("{:+.3} ms", part.more_ms())).strong(true),
                Cell::text(milliseconds(part.base_ms)),
                Cell::text(milliseconds(part.other_ms)),
                Cell::text(part.change_words()),
                Cell::text(part.tactic_words()),
                Cell::text(part.name_words()),
            ];
            table.push(format!("{}-{at}", difference.other), "", cells);
        }
        if difference.parts.len() > most {
            let rest: f64 = difference.parts[most..].iter().map(layers::Part::more_ms).sum();
            let parts = difference.parts.len() - most;
            table.notes.push(format!("{pair}: {rest:+.3} ms more in {parts} parts that differ less."));
        }
    }
    table.notes.push("Steps are profiled apart from the latencies.".into());
    table
}
