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

/// Statements that write these rows, as few as may be, in an order that gives the same: what moves nothing else goes with
/// the first that does.
pub(super) fn together(rows: Vec<(&'static Table, Vec<Vec<Value>>)>) -> Vec<(String, PgArguments)> {
    let (mut moving, plain): (Vec<_>, Vec<_>) = rows.into_iter().partition(|(table, _)| table.moves_others);
    let first = if moving.is_empty() { None } else { Some(moving.remove(0)) };
    let mut all = Vec::new();
    let with_first: Vec<_> = plain.into_iter().chain(first).collect();
    if !with_first.is_empty() {
        all.push(one_statement(with_first));
    }
    all.extend(moving.into_iter().map(|rows| one_statement(vec![rows])));
    all
}

/// The rows of each table as arrays, a column one of them: whatever their number, the statement is prepared once.
fn one_statement(rows: Vec<(&'static Table, Vec<Vec<Value>>)>) -> (String, PgArguments) {
    let (mut sql, mut arguments, mut place) = (String::new(), PgArguments::default(), 0);
    let last = rows.len() - 1;
    for (at, (table, rows)) in rows.into_iter().enumerate() {
        if at < last {
            let _ = write!(sql, "{}t{at} AS (", if at == 0 { "WITH " } else { ", " });
        } else if at > 0 {
            sql.push(' ');
        }
        let _ = write!(sql, "{}SELECT * FROM unnest(", table.head);
        bind_columns(&mut sql, &mut arguments, &mut place, rows);
        let _ = write!(sql, "){}{}", table.tail, if at < last { ")" } else { "" });
    }
    (sql, arguments)
}

fn bind_columns(sql: &mut String, arguments: &mut PgArguments, place: &mut usize, rows: Vec<Vec<Value>>) {
    let mut rows: Vec<_> = rows.into_iter().map(Vec::into_iter).collect();
    let mut comma = "";
    loop {
        let mut column = rows.iter_mut().filter_map(Iterator::next).peekable();
        let Some(first) = column.peek() else { break };
        *place += 1;
        let _ = write!(sql, "{comma}${place}::{}[]", array_of(first));
        comma = ", ";
        // Binding texts and numbers cannot fail; a column is of one type.
        let _ = match first {
            Value::Text(_) => arguments.add(column.filter_map(words).collect::<Vec<String>>()),
            Value::Int(_) => arguments.add(column.filter_map(integer).collect::<Vec<i64>>()),
            Value::Real(_) => arguments.add(column.filter_map(real).collect::<Vec<Option<f64>>>()),
        };
    }
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
    use crate::store::{PostgresConfig, PostgresStore, Store as _, sql::TABLES};
    use planforge_postgres_server::Server;
    use std::collections::BTreeSet;

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

    /// Rows that triggers make more of may not stand in one statement: each of them goes by what was there before it.
    #[tokio::test]
    async fn what_moves_others_has_triggers_and_nothing_else_has() {
        let Some(server) = Server::start() else { return };
        let url = server.database("farm");
        let config = PostgresConfig { url, may_begin: true, ..PostgresConfig::default() };
        PostgresStore::open(&config).await.unwrap().close().await.unwrap();
        let sql = "SELECT DISTINCT tgrelid::regclass FROM pg_trigger WHERE NOT tgisinternal";
        let with_triggers: BTreeSet<String> = server.sql("farm", sql).lines().map(str::to_owned).collect();
        let name = |table: &Table| {
            let name = table.head.split_whitespace().nth(2).expect("INSERT INTO or DELETE FROM, and a name");
            name.to_owned()
        };
        for table in TABLES {
            assert_eq!(table.moves_others, with_triggers.contains(&name(table)), "{}", name(table));
        }
        assert!(TABLES.iter().any(|table| table.moves_others) && TABLES.iter().any(|table| !table.moves_others));
    }

    #[test]
    fn what_moves_nothing_goes_with_the_first_statement_that_does() {
        let rows = |name: &str| {
            let table = TABLES.into_iter().find(|table| table.head.contains(name)).expect("there is the table");
            (table, vec![vec![Value::Text("a".into()), Value::Int(1)], vec![Value::Text("b".into()), Value::Int(2)]])
        };
        let sql = |names: &[&str]| -> Vec<String> {
            let statements = together(names.iter().map(|name| rows(name)).collect());
            statements.into_iter().map(|(sql, _)| sql).collect()
        };
        assert_eq!(sql(&[]), Vec::<String>::new());
        let all = sql(&["INTO jobs ", "INTO events ", "INTO requests ", "INTO audit "]);
        let [first, second] = &all[..] else { panic!("{all:#?}") };
        let numbered = |sql: &str| sql.matches("$1::").count() == 1 && sql.matches("::bigint[]").count() >= 1;
        assert!(first.starts_with("WITH t0 AS (INSERT INTO events "), "{first}");
        assert!(first.contains("), t1 AS (INSERT INTO audit ") && first.contains("INSERT INTO jobs "), "{first}");
        assert!(first.contains("unnest($5::text[], $6::bigint[])") && numbered(first), "{first}");
        assert!(second.starts_with("INSERT INTO requests ") && numbered(second), "{second}");
    }
}
