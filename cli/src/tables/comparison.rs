//! A comparison as a plain table: one row a report, the verdict against the first.

use super::{Comparison, ForeignRow, Pair, Row};
use crate::format::{bytes, milliseconds, per_second, percent};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets::NOTHING};

const COLUMNS: [&str; 10] =
    ["#", "SKU", "TOOLCHAIN", "SPEC", "MEDIAN", "P99", "THROUGHPUT", "PLAN", "TOP-1", "VERDICT"];

/// Columns whose numbers line up on the right.
const NUMERIC: [usize; 5] = [4, 5, 6, 7, 8];

impl Comparison {
    /// The comparison as plain text: the table, then a line for every pair with its reason.
    pub fn render(&self) -> String {
        let mut table = Table::new();
        table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(COLUMNS);
        for (index, row) in self.rows.iter().enumerate() {
            table.add_row(cells(index, row, self.against_base(index)));
        }
        if let Some(first) = table.column_mut(0) {
            first.set_padding((0, 1));
        }
        for index in NUMERIC {
            if let Some(column) = table.column_mut(index) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let mut text = String::new();
        for line in table.to_string().lines() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text.push('\n');
        for pair in &self.pairs {
            text.push_str(&line(pair));
        }
        for ForeignRow { row, cell } in &self.portability {
            let (built_for, measured_on) = (&cell.built_for, &cell.measured_on);
            let words = cell.words();
            text.push_str(&format!("{} built for {built_for}, measured on {measured_on}: loss: {words}\n", row + 1));
        }
        text
    }
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
        milliseconds(row.median_ms),
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
    format!("{} against {}: {}: {}{differences}\n", pair.other + 1, pair.base + 1, pair.verdict.words(), pair.reason)
}
