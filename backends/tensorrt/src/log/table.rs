//! The table of `--dumpProfile`: numbers first and the layer last, or up to 8.4 the layer first.

use super::number::number;

/// More layers than any engine has.
const MAX_ROWS: usize = 100_000;

/// Longest layer name that is kept whole.
const MAX_NAME_BYTES: usize = 4 << 10;

/// Names of all rows together.
const MAX_NAMES_BYTES: usize = 16 << 20;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProfileTable {
    /// Profiled runs.
    pub iterations: Option<u64>,
    pub rows: Vec<TableRow>,
    /// The last row.
    pub total: Option<TableRow>,
}

/// Rounded for people: two, four, four and one decimals. `--exportProfile` has more.
#[derive(Clone, Debug, PartialEq)]
pub struct TableRow {
    pub name: String,
    /// Over all iterations.
    pub time_ms: f64,
    pub average_ms: f64,
    pub median_ms: Option<f64>,
    pub percent: f64,
}

/// Reads the table's lines after its title.
#[derive(Clone, Debug)]
pub(super) struct TableReader {
    layout: Option<Layout>,
    table: ProfileTable,
    names_bytes: usize,
}

#[derive(Clone, Copy, Debug)]
struct Layout {
    layer_first: bool,
    median: bool,
}

impl TableReader {
    /// `=== Profile (21248 iterations ) ===`
    pub(super) fn title(body: &str) -> Option<Self> {
        let rest = body.trim().strip_prefix("=== Profile")?;
        let count = rest.trim_start().trim_start_matches('(').split_whitespace().next();
        let iterations = count.and_then(|count| count.parse().ok());
        Some(Self { layout: None, table: ProfileTable { iterations, ..ProfileTable::default() }, names_bytes: 0 })
    }

    /// Takes one line; returns the table when this line ended it.
    pub(super) fn line(&mut self, body: &str) -> Option<ProfileTable> {
        let Some(layout) = self.layout else {
            let header = body.trim();
            if header.contains("Layer") && header.contains("Time") {
                let layer_first = header.starts_with("Layer");
                self.layout = Some(Layout { layer_first, median: header.contains("Median") });
                return None;
            }
            return (!header.is_empty()).then(|| std::mem::take(&mut self.table));
        };
        let Some(row) = row(body, layout) else { return Some(std::mem::take(&mut self.table)) };
        if row.name == "Total" {
            self.table.total = Some(row);
            return Some(std::mem::take(&mut self.table));
        }
        self.names_bytes += row.name.len();
        if self.table.rows.len() < MAX_ROWS && self.names_bytes <= MAX_NAMES_BYTES {
            self.table.rows.push(row);
        }
        None
    }

    /// The table as far as it got when the log ends.
    pub(super) fn end(self) -> ProfileTable {
        self.table
    }
}

fn row(body: &str, layout: Layout) -> Option<TableRow> {
    let columns = if layout.median { 4 } else { 3 };
    let mut values = Vec::with_capacity(columns);
    let mut rest = body;
    for _ in 0..columns {
        let (word, left) = if layout.layer_first { last_word(rest)? } else { first_word(rest)? };
        values.push(number(word)?);
        rest = left;
    }
    if layout.layer_first {
        values.reverse();
    }
    let name = super::kept::cut(rest.trim(), MAX_NAME_BYTES).to_owned();
    let median_ms = layout.median.then(|| values[2]);
    Some(TableRow { name, time_ms: values[0], average_ms: values[1], median_ms, percent: *values.last()? })
}

fn first_word(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let end = text.find(char::is_whitespace).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

fn last_word(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_end();
    let start = text.rfind(char::is_whitespace).map_or(0, |at| at + 1);
    let (rest, word) = text.split_at_checked(start)?;
    (!word.is_empty()).then_some((word, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Option<ProfileTable> {
        let mut reader = TableReader::title(lines[0])?;
        for line in &lines[1..] {
            if let Some(table) = reader.line(line) {
                return Some(table);
            }
        }
        Some(reader.end())
    }

    #[test]
    fn numbers_first() {
        let table = read(&[
            "=== Profile (210 iterations ) ===",
            "   Time(ms)     Avg.(ms)   Median(ms)   Time(%)   Layer",
            "      14.10       0.0671       0.0600      40.3   conv 1 + relu",
            "      20.90       0.0995       0.0900      59.7   3 0.5 odd",
            "      35.00       0.1667       0.1500     100.0   Total",
        ])
        .unwrap();
        assert_eq!(table.iterations, Some(210));
        assert_eq!(table.rows.len(), 2);
        assert_eq!(table.rows[0].name, "conv 1 + relu");
        assert_eq!(table.rows[0].median_ms, Some(0.06));
        assert_eq!(table.rows[1].name, "3 0.5 odd");
        assert_eq!(table.total.unwrap().time_ms, 35.0);
    }

    #[test]
    fn layer_first() {
        let table = read(&[
            "=== Profile (12 iterations ) ===",
            "        Layer   Time (ms)   Avg. Time (ms)   Median Time (ms)   Time %",
            "conv 1 + relu        3.00           0.2500             0.2400     75.0",
            "    pool (2 3)        1.00           0.0833             0.0800     25.0",
            "        Total        4.00           0.3333             0.3200    100.0",
        ])
        .unwrap();
        assert_eq!(table.rows[1].name, "pool (2 3)");
        assert_eq!(table.rows[1].average_ms, 0.0833);
        assert_eq!(table.total.unwrap().percent, 100.0);
    }

    #[test]
    fn without_a_median_and_without_an_end() {
        let table = read(&[
            "=== Profile (2 iterations ) ===",
            "   Layer   Time (ms)   Avg. Time (ms)   Time %",
            "ä     1.00    0.5000    -nan",
        ])
        .unwrap();
        assert_eq!(table.rows[0].median_ms, None);
        assert!(table.rows[0].percent.is_nan());
        assert_eq!(table.total, None);
    }

    #[test]
    fn anything_else_ends_the_table() {
        let table = read(&["=== Profile (2 iterations ) ===", "", "Throughput: 1 qps"]).unwrap();
        assert!(table.rows.is_empty());
    }
}
