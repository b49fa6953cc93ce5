//! SQLite in one file, for one coordinator.

use super::{
    StoreError,
    sql::Value,
    sql_store::{SqlStore, WRITER_QUEUE, Write},
    sqlite_writer::Writer,
    tables::{Reader, Tables},
};
use planforge_proto::ApiError;
use sqlx::{
    Connection as _, SqliteConnection,
    sqlite::{SqliteArguments, SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};
use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::sync::mpsc;

/// Forward-only, by the numbers of their files; a database that has a higher one than these is refused.
const MIGRATIONS: [(i64, &str); 22] = [
    (1, include_str!("../../../migrations/sqlite/0001_farm.sql")),
    (2, include_str!("../../../migrations/sqlite/0002_caches_plugins.sql")),
    (3, include_str!("../../../migrations/sqlite/0003_engine_seq.sql")),
    (4, include_str!("../../../migrations/sqlite/0004_token_changes.sql")),
    (5, include_str!("../../../migrations/sqlite/0005_token_agents.sql")),
    (6, include_str!("../../../migrations/sqlite/0006_projects.sql")),
    (7, include_str!("../../../migrations/sqlite/0007_audit.sql")),
    (8, include_str!("../../../migrations/sqlite/0008_pins.sql")),
    (9, include_str!("../../../migrations/sqlite/0009_declarations.sql")),
    (10, include_str!("../../../migrations/sqlite/0010_lists.sql")),
    (11, include_str!("../../../migrations/sqlite/0011_retention.sql")),
    (12, include_str!("../../../migrations/sqlite/0012_tenures.sql")),
    (13, include_str!("../../../migrations/sqlite/0013_builds.sql")),
    (14, include_str!("../../../migrations/sqlite/0014_requests.sql")),
    (15, include_str!("../../../migrations/sqlite/0015_uploads.sql")),
    (16, include_str!("../../../migrations/sqlite/0016_project_devices.sql")),
    (20, include_str!("../../../migrations/sqlite/0020_shares.sql")),
    (21, include_str!("../../../migrations/sqlite/0021_coverage.sql")),
    (22, include_str!("../../../migrations/sqlite/0022_history.sql")),
    (23, include_str!("../../../migrations/sqlite/0023_blob_notes.sql")),
    (24, include_str!("../../../migrations/sqlite/0024_pauses.sql")),
    (25, include_str!("../../../migrations/sqlite/0025_preparations.sql")),
];
/// The schema that this program writes.
pub(super) const SCHEMA_VERSION: i64 = MIGRATIONS[MIGRATIONS.len() - 1].0;
/// SQLite's primary codes for a file whose pages contradict each other, and for one that is no database.
const SQLITE_CORRUPT: i64 = 11;
const SQLITE_NOTADB: i64 = 26;
/// Names the check of every page's structure.
pub(super) const QUICK_CHECK: &str = "SQLite's quick_check";
/// How long a statement waits for another process that holds the database.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections that only read.
const READERS: u32 = 3;
/// Memory of each connection for pages of the file: the inner ones of every index of a large farm stay in it, so that a
/// row is found there with about as many reads as in a small one.
const PAGES_KIB: u32 = 16 << 10;
/// Databases up to this size are checked whole whenever they are opened; larger ones would make a start wait.
const CHECKED_AT_OPEN_MAX_BYTES: u64 = 16 << 20;

/// SQLite in one file: one writer task that commits everything waiting in one transaction, readers beside it.
#[derive(Debug)]
pub struct SqliteStore {
    writer: mpsc::Sender<Write>,
    tables: Tables,
}

impl SqlStore for SqliteStore {
    fn tables(&self) -> &Tables {
        &self.tables
    }

    fn writer(&self) -> &mpsc::Sender<Write> {
        &self.writer
    }
}

impl SqliteStore {
    /// Opens or creates the database file and brings its schema up to date.
    ///
    /// # Errors
    /// When the file cannot be opened, is damaged or belongs to a newer program.
    pub async fn open(file: &Path) -> Result<Self, ApiError> {
        Ok(Self::open_limited(file, None).await?)
    }

    /// Like [`Self::open`]; the file grows to at most `max_bytes`, after which commits are refused as full.
    ///
    /// # Errors
    /// When the file cannot be opened or belongs to a newer program.
    pub async fn open_limited(file: &Path, max_bytes: Option<u64>) -> Result<Self, StoreError> {
        let cannot = |error: sqlx::Error| match classify(file, "open it", &error) {
            damaged @ StoreError::Damaged { .. } => damaged,
            _ => StoreError::Open { path: file.display().to_string(), detail: error.to_string() },
        };
        let options = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY_TIMEOUT)
            // Negative: KiB instead of pages.
            .pragma("cache_size", format!("-{PAGES_KIB}"))
            .statement_cache_capacity(256);
        let mut connection = SqliteConnection::connect_with(&options).await.map_err(cannot)?;
        check_small(&mut connection, file).await?;
        migrate(&mut connection, file).await?;
        let mut writer = Writer {
            file: file.to_owned(),
            options: options.clone().create_if_missing(false),
            max_bytes,
            connection: None,
        };
        writer.limit(&mut connection).await.map_err(cannot)?;
        writer.connection = Some(connection);
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .connect_with(options.pragma("query_only", "true"))
            .await
            .map_err(cannot)?;
        let (sender, inbox) = mpsc::channel(WRITER_QUEUE);
        tokio::spawn(writer.run(inbox));
        let tables = Tables::new(Reader::Sqlite { pool: readers, file: file.to_owned() });
        Ok(Self { writer: sender, tables })
    }
}

pub(super) fn arguments(values: Vec<Value>) -> SqliteArguments {
    use sqlx::Arguments as _;
    let mut arguments = SqliteArguments::default();
    for value in values {
        // Binding texts and numbers cannot fail in SQLite.
        let _ = match value {
            Value::Text(text) => arguments.add(text),
            Value::Int(number) => arguments.add(number),
            Value::Real(number) => arguments.add(number),
        };
    }
    arguments
}

/// Sorts a database error into what can be done about it.
pub(super) fn classify(file: &Path, operation: &'static str, error: &sqlx::Error) -> StoreError {
    let detail = error.to_string();
    let code = error.as_database_error().and_then(|e| e.code()).and_then(|code| code.parse::<i64>().ok());
    // The low byte of SQLite's extended codes is the primary one.
    match code.map(|code| code & 0xff) {
        Some(5 | 6) => StoreError::Busy { detail },
        Some(8) => StoreError::ReadOnly { detail },
        Some(SQLITE_CORRUPT | SQLITE_NOTADB) => {
            StoreError::Damaged { path: file.display().to_string(), check: format!("trying to {operation}"), detail }
        }
        Some(13) => StoreError::Full { detail },
        _ => StoreError::Failed { operation, detail },
    }
}

/// Looks at every page of a small database, so that damage is said at the start and not by whoever meets it.
async fn check_small(connection: &mut SqliteConnection, file: &Path) -> Result<(), StoreError> {
    if fs::metadata(file).map_or(0, |facts| facts.len()) > CHECKED_AT_OPEN_MAX_BYTES {
        return Ok(());
    }
    let checked = sqlx::query_scalar("PRAGMA quick_check(1)").fetch_one(connection).await;
    let found: String = checked.map_err(|error| classify(file, "check it", &error))?;
    match found.as_str() {
        "ok" => Ok(()),
        _ => Err(StoreError::Damaged { path: file.display().to_string(), check: QUICK_CHECK.into(), detail: found }),
    }
}

async fn migrate(connection: &mut SqliteConnection, file: &Path) -> Result<(), StoreError> {
    let failed = |error: sqlx::Error| classify(file, "bring its schema up to date", &error);
    sqlx::query("CREATE TABLE IF NOT EXISTS schema_versions (version BIGINT PRIMARY KEY, applied_ms BIGINT NOT NULL)")
        .execute(&mut *connection)
        .await
        .map_err(failed)?;
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed)?;
    let applied: Vec<i64> =
        sqlx::query_scalar("SELECT version FROM schema_versions").fetch_all(&mut *transaction).await.map_err(failed)?;
    let known = SCHEMA_VERSION;
    if let Some(found) = applied.iter().copied().max().filter(|found| *found > known) {
        return Err(StoreError::NewerSchema { path: file.display().to_string(), found, known });
    }
    let applied_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_millis() as i64);
    for (version, script) in MIGRATIONS.into_iter().filter(|(version, _)| !applied.contains(version)) {
        sqlx::raw_sql(script).execute(&mut *transaction).await.map_err(failed)?;
        sqlx::query("INSERT INTO schema_versions (version, applied_ms) VALUES ($1, $2)")
            .bind(version)
            .bind(applied_ms)
            .execute(&mut *transaction)
            .await
            .map_err(failed)?;
    }
    transaction.commit().await.map_err(failed)
}
