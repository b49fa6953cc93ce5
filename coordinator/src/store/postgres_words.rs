//! Where PostgreSQL's language differs from SQLite's, in which the statements are written.
//!
//! The statements say along which index SQLite reads (`INDEXED BY`), and in which order it joins (`CROSS JOIN … ON`):
//! PostgreSQL's planner knows from its statistics. What they take out of documents, functions of SQLite's names do there
//! (migration 0001). Everything else both understand.

use super::sql::{Table, Value};
use sqlx::{Arguments as _, postgres::PgArguments};
use std::fmt::Write as _;

const INDEXED_BY: &str = " INDEXED BY ";

/// What the same thing is called: joins in a given order, lists and documents of rows, a number in all its digits.
const NAMES: [(&str, &str); 4] = [
    (" CROSS JOIN ", " JOIN "),
    ("json_group_array(", "json_agg("),
    ("json_array(", "json_build_array("),
    ("printf('%!.17g', ", "concat("),
];

/// A statement as PostgreSQL understands it. Nothing that callers wrote stands in its text: that is bound.
pub(super) fn translated(sql: &str) -> String {
    let mut pieces = sql.split(INDEXED_BY);
    let mut translated = String::with_capacity(sql.len());
    translated.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        let end = piece.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(piece.len());
        translated.push_str(&piece[end..]);
    }
    NAMES.iter().fold(translated, |sql, (from, to)| if sql.contains(from) { sql.replace(from, to) } else { sql })
}

/// A text as PostgreSQL can hold it: without one character, which documents have escaped.
pub(super) fn text(text: String) -> String {
    if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text }
}

pub(super) fn arguments(values: Vec<Value>) -> PgArguments {
    let mut arguments = PgArguments::default();
    for value in values {
        // Binding texts and numbers cannot fail.
        let _ = match value {
            Value::Text(words) => arguments.add(text(words)),
            Value::Int(number) => arguments.add(number),
            Value::Real(number) => arguments.add(number),
        };
    }
    arguments
}

/// All rows of one table in one statement, a column an array: whatever their number, it is prepared once.
pub(super) fn arrays(table: &Table, rows: Vec<Vec<Value>>) -> (String, PgArguments) {
    let mut sql = format!("{}SELECT * FROM unnest(", table.head);
    let mut arguments = PgArguments::default();
    let mut rows: Vec<_> = rows.into_iter().map(Vec::into_iter).collect();
    let mut place = 0;
    loop {
        let mut column = rows.iter_mut().filter_map(Iterator::next).peekable();
        let Some(first) = column.peek() else { break };
        place += 1;
        let (name, comma) = (array_of(first), if place == 1 { "" } else { ", " });
        let _ = write!(sql, "{comma}${place}::{name}[]");
        // Binding texts and numbers cannot fail; a column is of one type.
        let _ = match first {
            Value::Text(_) => arguments.add(column.filter_map(words).collect::<Vec<String>>()),
            Value::Int(_) => arguments.add(column.filter_map(integer).collect::<Vec<i64>>()),
            Value::Real(_) => arguments.add(column.filter_map(real).collect::<Vec<Option<f64>>>()),
        };
    }
    let _ = write!(sql, "){}", table.tail);
    (sql, arguments)
}

fn array_of(value: &Value) -> &'static str {
    match value {
        Value::Text(_) => "text",
        Value::Int(_) => "bigint",
        Value::Real(_) => "double precision",
    }
}

fn words(value: Value) -> Option<String> {
    if let Value::Text(words) = value { Some(text(words)) } else { None }
}

fn integer(value: Value) -> Option<i64> {
    if let Value::Int(number) = value { Some(number) } else { None }
}

fn real(value: Value) -> Option<Option<f64>> {
    if let Value::Real(number) = value { Some(number) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_sqlite_understands_is_left_out() {
        let sql = "SELECT 1 FROM jobs AS j INDEXED BY jobs_ended WHERE EXISTS (SELECT 1 FROM a INDEXED BY a_b) AND \
                   p CROSS JOIN q ON TRUE";
        let expected = "SELECT 1 FROM jobs AS j WHERE EXISTS (SELECT 1 FROM a) AND p JOIN q ON TRUE";
        assert_eq!(translated(sql), expected);
        assert_eq!(translated("SELECT 1 FROM jobs INDEXED BY jobs_live"), "SELECT 1 FROM jobs");
        let lists = translated("SELECT json_group_array(json_array(a, printf('%!.17g', b))), json_array_length(c)");
        assert_eq!(lists, "SELECT json_agg(json_build_array(a, concat(b))), json_array_length(c)");
    }
}
