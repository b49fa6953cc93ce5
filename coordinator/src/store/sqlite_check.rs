//! Looking for rows that cannot be decoded, in a database that a coordinator may have open.

use super::{
    StoreError,
    sqlite::{SCHEMA_VERSION, classify},
    tables::{Row, audit_line, doc_of, event, report, share, text, token},
};
use crate::core::{
    Agent, CacheRecord, Engine, Job, PauseRecord, PluginRecord, PreparationRecord, ProjectRecord, Refusal,
    RequestRecord,
};
use futures::TryStreamExt as _;
use sqlx::{Connection as _, SqliteConnection, sqlite::SqliteConnectOptions};
use std::{path::Path, time::Duration};

/// Rows that are named; a database with more of them has other troubles.
const NAMED_MAX: usize = 1_000;
/// How long a statement waits for another process that holds the database.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// A row that hides itself from every list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRow {
    pub table: &'static str,
    /// Its key.
    pub row: String,
    pub problem: String,
}

type Decode = fn(&Row) -> Result<(), StoreError>;

/// Every table whose rows are decoded: its name, its rows with their key as `row_key`, and how they are read.
const TABLES: [(&str, &str, Decode); 14] = [
    ("jobs", "SELECT id AS row_key, doc FROM jobs", |row| doc_of::<Job>("a job")(row).map(drop)),
    ("events", "SELECT seq || '' AS row_key, * FROM events", |row| event(row).map(drop)),
    ("engines", "SELECT engine_key || ' ' || plan_digest AS row_key, doc FROM engines", |row| {
        doc_of::<Engine>("an engine")(row).map(drop)
    }),
    ("reports", "SELECT digest AS row_key, * FROM reports", |row| report(row).map(drop)),
    ("requests", "SELECT id AS row_key, doc FROM requests", |row| doc_of::<RequestRecord>("a request")(row).map(drop)),
    ("agents", "SELECT id AS row_key, doc FROM agents", |row| doc_of::<Agent>("an agent")(row).map(drop)),
    ("refusals", "SELECT engine_key AS row_key, doc FROM refusals", |row| {
        doc_of::<Refusal>("a refusal")(row).map(drop)
    }),
    ("preparations", "SELECT prepare_key AS row_key, doc FROM preparations", |row| {
        doc_of::<PreparationRecord>("a preparation")(row).map(drop)
    }),
    ("caches", "SELECT scope AS row_key, doc FROM caches", |row| {
        doc_of::<CacheRecord>("a timing cache")(row).map(drop)
    }),
    ("plugins", "SELECT digest AS row_key, doc FROM plugins", |row| doc_of::<PluginRecord>("a plugin")(row).map(drop)),
    ("pauses", "SELECT id AS row_key, doc FROM pauses", |row| doc_of::<PauseRecord>("a pause")(row).map(drop)),
    ("projects", "SELECT name AS row_key, doc FROM projects", |row| {
        doc_of::<ProjectRecord>("a project")(row).map(drop)
    }),
    ("shares", "SELECT id AS row_key, doc, opened_ms FROM shares", |row| share(row).map(drop)),
    ("audit", "SELECT seq || '' AS row_key, seq, doc FROM audit", |row| audit_line(row).map(drop)),
];

/// Names the rows of a database that cannot be decoded. Changes nothing.
///
/// # Errors
/// When the database cannot be read, or is another program version's.
pub async fn unreadable_rows(file: &Path) -> Result<Vec<BadRow>, StoreError> {
    let failed = |error: sqlx::Error| classify(file, "read it", &error);
    let options = SqliteConnectOptions::new().filename(file).read_only(true).busy_timeout(BUSY_TIMEOUT);
    let mut connection = SqliteConnection::connect_with(&options).await.map_err(failed)?;
    let found: Option<i64> = sqlx::query_scalar("SELECT MAX(version) FROM schema_versions")
        .fetch_one(&mut connection)
        .await
        .map_err(failed)?;
    let found = found.unwrap_or(0);
    if found != SCHEMA_VERSION {
        return Err(StoreError::OtherSchema { path: file.display().to_string(), found, known: SCHEMA_VERSION });
    }
    let tokens: (&str, &str, Decode) =
        ("tokens", "SELECT id AS row_key, doc, revoked, last_used_ms, agent FROM tokens", |row| token(row).map(drop));
    let mut bad = Vec::new();
    for (table, sql, decode) in TABLES.into_iter().chain([tokens]) {
        let mut rows = sqlx::query(sql).fetch(&mut connection);
        while let Some(row) = rows.try_next().await.map_err(failed)? {
            let row = Row::Sqlite(row);
            if let Err(error) = decode(&row)
                && bad.len() < NAMED_MAX
            {
                let row = text(&row, "row_key").unwrap_or_else(|_| "a row whose key cannot be read".into());
                bad.push(BadRow { table, row, problem: error.to_string() });
            }
        }
    }
    connection.close().await.map_err(failed)?;
    Ok(bad)
}
