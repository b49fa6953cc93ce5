//! Moving what SQLite remembers to PostgreSQL, and what either remembers into a file, table by table: each is copied in one
//! transaction, read back, and counts only when both have as many rows with the same digest. A move that was broken off
//! goes on behind the tables that are there whole.
//!
//! Tables that triggers keep are copied like the others, with the triggers off: what they say is the same.

use super::{
    StoreError,
    postgres::{classify, connected},
    postgres_words::arguments,
    sql::Value,
    sqlite,
};
use futures::TryStreamExt as _;
use planforge_types::{Digest, DigestWriter};
use sqlx::{
    AssertSqlSafe, Connection as _, PgConnection, Row as _, SqliteConnection,
    postgres::PgRow,
    sqlite::{SqliteConnectOptions, SqliteRow},
};
use std::path::Path;

/// Everything but who leads, which farm it is, and what was migrated.
const TABLES: [&str; 31] = [
    "jobs",
    "job_projects",
    "job_tags",
    "job_counts",
    "events",
    "engines",
    "engine_projects",
    "engine_counts",
    "reports",
    "agents",
    "requests",
    "request_jobs",
    "refusals",
    "preparations",
    "tokens",
    "caches",
    "plugins",
    "pauses",
    "blob_refs",
    "projects",
    "audit",
    "pins",
    "declarations",
    "shares",
    "project_models",
    "engine_facts",
    "coverage_engines",
    "coverage_places",
    "coverage_models",
    "history_builds",
    "blob_notes",
];
/// What only the place knows where its blobs lie: no part of a file that is taken elsewhere.
const OF_THE_PLACE: &str = "blob_notes";
/// Values that one statement inserts; SQLite takes 32,766, PostgreSQL takes 65,535.
const VALUES_AT_ONCE: usize = 8_192;

/// A table that is there, whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedTable {
    pub table: &'static str,
    pub rows: u64,
    /// Over all rows in the order of their keys.
    pub digest: Digest,
    /// It was there before.
    pub was_there: bool,
}

/// How a column's values are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Integer,
    Real,
}

struct Table {
    name: &'static str,
    columns: Vec<(String, Kind)>,
    /// Columns that order its rows.
    key: Vec<String>,
}

impl Table {
    fn select(&self) -> String {
        let columns: Vec<&str> = self.columns.iter().map(|(name, _)| name.as_str()).collect();
        format!("SELECT {} FROM {} ORDER BY {}", columns.join(", "), self.name, self.key.join(", "))
    }

    fn rows_at_once(&self) -> usize {
        (VALUES_AT_ONCE / self.columns.len().max(1)).max(1)
    }

    fn insert(&self, rows: usize) -> String {
        let columns: Vec<&str> = self.columns.iter().map(|(name, _)| name.as_str()).collect();
        let row = |row: usize| {
            let places = (1..=columns.len()).map(|column| format!("${}", row * columns.len() + column));
            format!("({})", places.collect::<Vec<_>>().join(", "))
        };
        let rows: Vec<String> = (0..rows).map(row).collect();
        format!("INSERT INTO {} ({}) VALUES {}", self.name, columns.join(", "), rows.join(", "))
    }
}

/// Counts rows, and makes one digest of them.
#[derive(Default)]
struct Sum {
    rows: u64,
    digest: DigestWriter,
}

impl Sum {
    fn add(&mut self, row: &[Value]) {
        self.rows += 1;
        for value in row {
            let bytes = match value {
                Value::Text(text) => format!("t{}:{text}", text.len()),
                Value::Int(number) => format!("i{number};"),
                Value::Real(Some(number)) => format!("r{:016x};", number.to_bits()),
                Value::Real(None) => "n;".to_owned(),
            };
            self.digest.update(bytes.as_bytes());
        }
    }

    fn end(self) -> (u64, Digest) {
        (self.rows, self.digest.finish())
    }
}

/// Copies every table of a database file into the schema of a PostgreSQL database, both of this program's version and
/// used by nobody else. `tell` hears of each table that is there, whole.
///
/// # Errors
/// When either cannot be read or written, or what was copied is not what was read; tables told of before are kept.
pub async fn move_tables(file: &Path, url: &str, tell: &mut (dyn FnMut(&MovedTable) + Send)) -> Result<(), StoreError> {
    let unread = |error: sqlx::Error| sqlite::classify(file, "read it", &error);
    let options = SqliteConnectOptions::new().filename(file).read_only(true);
    let mut from = SqliteConnection::connect_with(&options).await.map_err(unread)?;
    let (mut to, name) = connected(url).await?;
    for table in TABLES {
        let table = described(&mut from, table).await.map_err(unread)?;
        let moved = move_table(&mut from, file, &mut to, &name, &table).await?;
        tell(&moved);
    }
    let ended = sqlx::query("SELECT setval(pg_get_serial_sequence('audit', 'seq'), GREATEST(MAX(seq), 1)) FROM audit")
        .execute(&mut to)
        .await;
    ended.map_err(|error| classify(&name, "number the audit log", &error))?;
    Ok(())
}

/// Copies every table of a PostgreSQL database into a database file, both of this program's version and used by nobody else,
/// but for what only the place of its blobs knows. `tell` hears of each table that is there, whole.
///
/// # Errors
/// As [`move_tables`].
pub async fn fetch_tables(
    url: &str,
    file: &Path,
    tell: &mut (dyn FnMut(&MovedTable) + Send),
) -> Result<(), StoreError> {
    let unwritten = |error: sqlx::Error| sqlite::classify(file, "write to it", &error);
    let (mut from, name) = connected(url).await?;
    let unread = |error: sqlx::Error| classify(&name, "read it", &error);
    let mut to =
        SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(file)).await.map_err(unwritten)?;
    // As it was at one moment.
    let mut from = from.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY").await.map_err(unread)?;
    for table in TABLES.into_iter().filter(|table| *table != OF_THE_PLACE) {
        let table = described(&mut to, table).await.map_err(unwritten)?;
        tell(&fetch_table(&mut from, &name, &mut to, file, &table).await?);
    }
    to.close().await.map_err(unwritten)
}

/// Copies a database file that nobody uses, but for what only the place of its blobs knows.
///
/// # Errors
/// When either cannot be read or written, or the copy is not what was copied.
pub async fn copy_tables(from: &Path, to: &Path, tell: &mut (dyn FnMut(&MovedTable) + Send)) -> Result<(), StoreError> {
    let unread = |error: sqlx::Error| sqlite::classify(from, "copy it", &error);
    let options = SqliteConnectOptions::new().filename(from);
    let mut source = SqliteConnection::connect_with(&options).await.map_err(unread)?;
    sqlx::query("VACUUM INTO $1").bind(to.to_string_lossy()).execute(&mut source).await.map_err(unread)?;
    let unwritten = |error: sqlx::Error| sqlite::classify(to, "read it back", &error);
    let mut copy =
        SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(to)).await.map_err(unwritten)?;
    for name in TABLES.into_iter().filter(|table| *table != OF_THE_PLACE) {
        let table = described(&mut source, name).await.map_err(unread)?;
        let wanted = rows_of(&mut source, &table).await.map_err(unread)?;
        let copied = rows_of(&mut copy, &table).await.map_err(unwritten)?;
        tell(&same(name, wanted, copied, false)?);
    }
    sqlx::query("DELETE FROM blob_notes").execute(&mut copy).await.map_err(unwritten)?;
    copy.close().await.map_err(unwritten)
}

/// A table that was copied, if it was.
fn same(
    table: &'static str,
    wanted: (u64, Digest),
    copied: (u64, Digest),
    was_there: bool,
) -> Result<MovedTable, StoreError> {
    if copied == wanted {
        return Ok(MovedTable { table, rows: wanted.0, digest: wanted.1, was_there });
    }
    let detail = format!(
        "its table {table} has {} rows of digest {} after {} rows of digest {} were copied",
        copied.0, copied.1, wanted.0, wanted.1
    );
    Err(StoreError::Failed { operation: "copy", detail })
}

async fn fetch_table(
    from: &mut PgConnection,
    name: &str,
    to: &mut SqliteConnection,
    file: &Path,
    table: &Table,
) -> Result<MovedTable, StoreError> {
    let unread = |error: sqlx::Error| classify(name, "read it", &error);
    let unwritten = |error: sqlx::Error| sqlite::classify(file, "write to it", &error);
    let wanted = read_back(from, table).await.map_err(unread)?;
    if rows_of(to, table).await.map_err(unwritten)? == wanted {
        return same(table.name, wanted, wanted, true);
    }
    let mut writing = to.begin().await.map_err(unwritten)?;
    // Triggers cannot be turned off: they go, and come back before anybody sees it.
    let triggers: Vec<(String, String)> = sqlx::query_as("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        .fetch_all(&mut *writing)
        .await
        .map_err(unwritten)?;
    for (trigger, _) in &triggers {
        let drop = format!("DROP TRIGGER \"{trigger}\"");
        sqlx::raw_sql(AssertSqlSafe(drop)).execute(&mut *writing).await.map_err(unwritten)?;
    }
    let delete = format!("DELETE FROM {}", table.name);
    sqlx::raw_sql(AssertSqlSafe(delete)).execute(&mut *writing).await.map_err(unwritten)?;
    let mut rows = sqlx::query(AssertSqlSafe(table.select())).fetch(from).try_chunks(table.rows_at_once());
    loop {
        let piece = match rows.try_next().await {
            Ok(Some(piece)) => piece,
            Ok(None) => break,
            Err(error) => return Err(unread(error.1)),
        };
        let mut insert = sqlx::query(AssertSqlSafe(table.insert(piece.len())));
        for row in &piece {
            for value in pg_values(row, table).map_err(unread)? {
                insert = match value {
                    Value::Text(text) => insert.bind(text),
                    Value::Int(number) => insert.bind(number),
                    Value::Real(number) => insert.bind(number),
                };
            }
        }
        insert.execute(&mut *writing).await.map_err(unwritten)?;
    }
    for (_, trigger) in triggers {
        sqlx::raw_sql(AssertSqlSafe(trigger)).execute(&mut *writing).await.map_err(unwritten)?;
    }
    let copied = rows_of(&mut writing, table).await.map_err(unwritten)?;
    let moved = same(table.name, wanted, copied, false)?;
    writing.commit().await.map_err(unwritten)?;
    Ok(moved)
}

async fn described(from: &mut SqliteConnection, name: &'static str) -> Result<Table, sqlx::Error> {
    let rows =
        sqlx::query("SELECT name, type, pk FROM pragma_table_info($1) ORDER BY cid").bind(name).fetch_all(from).await?;
    let (mut columns, mut key) = (Vec::new(), Vec::new());
    for row in rows {
        let (column, kind, place): (String, String, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let kind = match kind.as_str() {
            "TEXT" => Kind::Text,
            "REAL" => Kind::Real,
            _ => Kind::Integer,
        };
        if place > 0 {
            key.push((place, column.clone()));
        }
        columns.push((column, kind));
    }
    key.sort();
    Ok(Table { name, columns, key: key.into_iter().map(|(_, column)| column).collect() })
}

async fn move_table(
    from: &mut SqliteConnection,
    file: &Path,
    to: &mut PgConnection,
    name: &str,
    table: &Table,
) -> Result<MovedTable, StoreError> {
    let unread = |error: sqlx::Error| sqlite::classify(file, "read it", &error);
    let unwritten = |error: sqlx::Error| classify(name, "write to it", &error);
    let there = read_back(to, table).await.map_err(unwritten)?;
    let wanted = rows_of(from, table).await.map_err(unread)?;
    if there == wanted {
        return same(table.name, wanted, there, true);
    }
    let mut writing = to.begin().await.map_err(unwritten)?;
    for statement in [format!("ALTER TABLE {} DISABLE TRIGGER USER", table.name), format!("DELETE FROM {}", table.name)]
    {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *writing).await.map_err(unwritten)?;
    }
    let mut rows = sqlx::query(AssertSqlSafe(table.select())).fetch(&mut *from).try_chunks(table.rows_at_once());
    loop {
        let piece = match rows.try_next().await {
            Ok(Some(piece)) => piece,
            Ok(None) => break,
            Err(error) => return Err(unread(error.1)),
        };
        let insert = table.insert(piece.len());
        let piece: Result<Vec<Vec<Value>>, sqlx::Error> = piece.iter().map(|row| values(row, table)).collect();
        let piece = piece.map_err(unread)?.into_iter().flatten().collect();
        sqlx::query_with(AssertSqlSafe(insert), arguments(piece)).execute(&mut *writing).await.map_err(unwritten)?;
    }
    let on = format!("ALTER TABLE {} ENABLE TRIGGER USER", table.name);
    sqlx::raw_sql(AssertSqlSafe(on)).execute(&mut *writing).await.map_err(unwritten)?;
    let copied = read_back(&mut writing, table).await.map_err(unwritten)?;
    let moved = same(table.name, wanted, copied, false)?;
    writing.commit().await.map_err(unwritten)?;
    Ok(moved)
}

/// What a table of PostgreSQL holds.
async fn read_back(to: &mut PgConnection, table: &Table) -> Result<(u64, Digest), sqlx::Error> {
    let mut sum = Sum::default();
    let mut rows = sqlx::query(AssertSqlSafe(table.select())).fetch(to);
    while let Some(row) = rows.try_next().await? {
        sum.add(&pg_values(&row, table)?);
    }
    Ok(sum.end())
}

/// What a table of SQLite holds.
async fn rows_of(from: &mut SqliteConnection, table: &Table) -> Result<(u64, Digest), sqlx::Error> {
    let mut sum = Sum::default();
    let mut rows = sqlx::query(AssertSqlSafe(table.select())).fetch(from);
    while let Some(row) = rows.try_next().await? {
        sum.add(&values(&row, table)?);
    }
    Ok(sum.end())
}

fn pg_values(row: &PgRow, table: &Table) -> Result<Vec<Value>, sqlx::Error> {
    let value = |(at, (_, kind)): (usize, &(String, Kind))| {
        Ok(match kind {
            Kind::Text => Value::Text(row.try_get(at)?),
            Kind::Integer => Value::Int(row.try_get(at)?),
            Kind::Real => Value::Real(row.try_get(at)?),
        })
    };
    table.columns.iter().enumerate().map(value).collect()
}

/// A row of SQLite as PostgreSQL can hold it.
fn values(row: &SqliteRow, table: &Table) -> Result<Vec<Value>, sqlx::Error> {
    let value = |(at, (_, kind)): (usize, &(String, Kind))| {
        Ok(match kind {
            Kind::Text => Value::Text(super::postgres_words::text(row.try_get(at)?)),
            Kind::Integer => Value::Int(row.try_get(at)?),
            Kind::Real => Value::Real(row.try_get(at)?),
        })
    };
    table.columns.iter().enumerate().map(value).collect()
}
