//! Moving what SQLite remembers to PostgreSQL, table by table: each is copied in one transaction, read back, and counts
//! only when both have as many rows with the same digest. A move that was broken off goes on behind the tables that are
//! there whole.
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
/// Values that one statement inserts; PostgreSQL takes 65,535.
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
    let mut wanted = Sum::default();
    {
        let mut rows = sqlx::query(AssertSqlSafe(table.select())).fetch(&mut *from);
        while let Some(row) = rows.try_next().await.map_err(unread)? {
            wanted.add(&values(&row, table).map_err(unread)?);
        }
    }
    let wanted = wanted.end();
    let moved = |was_there| MovedTable { table: table.name, rows: wanted.0, digest: wanted.1, was_there };
    if there == wanted {
        return Ok(moved(true));
    }
    let mut writing = to.begin().await.map_err(unwritten)?;
    for statement in [format!("ALTER TABLE {} DISABLE TRIGGER USER", table.name), format!("DELETE FROM {}", table.name)]
    {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *writing).await.map_err(unwritten)?;
    }
    let rows_at_once = (VALUES_AT_ONCE / table.columns.len().max(1)).max(1);
    let mut rows = sqlx::query(AssertSqlSafe(table.select())).fetch(&mut *from).try_chunks(rows_at_once);
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
    if copied != wanted {
        let detail = format!(
            "its table {} has {} rows of digest {} after {} rows of digest {} were copied",
            table.name, copied.0, copied.1, wanted.0, wanted.1
        );
        return Err(StoreError::Failed { operation: "copy", detail });
    }
    writing.commit().await.map_err(unwritten)?;
    Ok(moved(false))
}

/// What a table of PostgreSQL holds.
async fn read_back(to: &mut PgConnection, table: &Table) -> Result<(u64, Digest), sqlx::Error> {
    let mut sum = Sum::default();
    let mut rows = sqlx::query(AssertSqlSafe(table.select())).fetch(to);
    while let Some(row) = rows.try_next().await? {
        let value = |(at, (_, kind)): (usize, &(String, Kind))| {
            Ok(match kind {
                Kind::Text => Value::Text(row.try_get(at)?),
                Kind::Integer => Value::Int(row.try_get(at)?),
                Kind::Real => Value::Real(row.try_get(at)?),
            })
        };
        sum.add(&table.columns.iter().enumerate().map(value).collect::<Result<Vec<_>, sqlx::Error>>()?);
    }
    Ok(sum.end())
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
