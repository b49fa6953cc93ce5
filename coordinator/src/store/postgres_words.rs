//! Where PostgreSQL's language differs from SQLite's, in which the statements are written.
//!
//! The statements say along which index SQLite reads (`INDEXED BY`), and in which order it joins (`CROSS JOIN … ON`):
//! PostgreSQL's planner knows from its statistics. What they take out of documents, functions of SQLite's names do there
//! (migration 0001). Everything else both understand.

use super::sql::Value;
use sqlx::{Arguments as _, postgres::PgArguments};

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
