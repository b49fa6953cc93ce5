//! A matrix whose cells are shaded by their numbers, and hold them.

use crate::{
    plot::{CHARACTER, Caption, shortened},
    svg::Anchor,
    unit::Unit,
};

const ROW: f64 = 34.0;
const COLUMN: f64 = 96.0;
const NAME_CHARACTERS: usize = 26;

/// Shades, from the palest.
pub(crate) const SHADES: usize = 6;

/// One cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cell<'a> {
    Value(f64),
    /// Why there is none, in a word or two.
    Empty(&'a str),
}

/// Rows by columns.
#[derive(Clone, Copy, Debug)]
pub struct Heat<'a> {
    pub caption: Caption<'a>,
    pub unit: Unit,
    /// What rows and columns are: `built for`, `measured on`.
    pub axes: (&'a str, &'a str),
    pub rows: &'a [&'a str],
    pub columns: &'a [&'a str],
    /// Row by row.
    pub cells: &'a [Vec<Cell<'a>>],
}

impl Heat<'_> {
    fn cell(&self, row: usize, column: usize) -> Cell<'_> {
        self.cells.get(row).and_then(|cells| cells.get(column)).copied().unwrap_or(Cell::Empty(""))
    }

    fn words(&self) -> String {
        let mut said = Vec::new();
        for (row, row_name) in self.rows.iter().enumerate() {
            for (column, column_name) in self.columns.iter().enumerate() {
                if let Cell::Value(value) = self.cell(row, column) {
                    said.push(format!("{row_name} and {column_name} {}", self.unit.figure(value)));
                }
            }
        }
        let more = said.len().saturating_sub(24);
        said.truncate(24);
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        format!("{} by {}: {}{more}", self.axes.0, self.axes.1, said.join(", "))
    }

    /// The picture.
    pub fn svg(&self) -> String {
        let named = self.rows.iter().chain([&self.axes.0]).map(|name| name.chars().count()).max().unwrap_or(0);
        let left = 14.0 + named.min(NAME_CHARACTERS) as f64 * CHARACTER;
        let width = (left + COLUMN * self.columns.len() as f64 + 8.0).max(560.0);
        let size = (width, 64.0 + ROW * self.rows.len() as f64);
        let mut svg = self.caption.open(size, &self.words());
        svg.text("t", (left - 8.0, 48.0), Anchor::End, self.axes.0);
        svg.text("t", (left, 28.0), Anchor::Start, self.axes.1);
        let values = self.cells.iter().flatten().filter_map(|cell| match cell {
            Cell::Value(value) if value.is_finite() => Some(*value),
            _ => None,
        });
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        for (column, name) in self.columns.iter().enumerate() {
            let middle = left + COLUMN * (column as f64 + 0.5);
            svg.text("", (middle, 48.0), Anchor::Middle, &shortened(name, (COLUMN / CHARACTER) as usize));
        }
        for (row, name) in self.rows.iter().enumerate() {
            let y = 56.0 + ROW * row as f64;
            svg.text("", (left - 8.0, y + 21.0), Anchor::End, &shortened(name, NAME_CHARACTERS));
            for (column, column_name) in self.columns.iter().enumerate() {
                let x = left + COLUMN * column as f64;
                let (shade, text) = match self.cell(row, column) {
                    Cell::Value(value) => {
                        let share = if high > low { (value - low) / (high - low) } else { 0.0 };
                        let shade = ((share * SHADES as f64) as usize).min(SHADES - 1);
                        (shade + 1, self.unit.figure(value))
                    }
                    Cell::Empty(why) => (0, if why.is_empty() { "–".to_owned() } else { why.to_owned() }),
                };
                let said = format!("{} {name}, {} {column_name}: {text}", self.axes.0, self.axes.1);
                svg.rect(&format!("class=\"h{shade}\""), (x + 1.0, y + 1.0), (COLUMN - 2.0, ROW - 2.0), Some(&said));
                let class = format!("y{shade}");
                let label = shortened(&text, (COLUMN / CHARACTER) as usize);
                svg.text(&class, (x + COLUMN / 2.0, y + 21.0), Anchor::Middle, &label);
            }
        }
        svg.end()
    }
}
