//! SQLite in one file, for one coordinator.

use super::{
    Answer, AuditFilter, BuildName, Count, Coverage, CoverageFilter, CoveredModels, DeclarationFilter, EngineFilter,
    EventFilter, EventListFilter, Heap, HistoryFilter, JobFilter, LATEST_MAX, ListedRequest, Part, PastBuild,
    PastPlace, PinFilter, ReportFilter, RequestFilter, Store, StoreError,
    sql::{Select, Statement, Value},
    sqlite_writer::{Write, Writer},
    unreadable::Unreadable,
};
use crate::core::{
    Agent, AuditLine, CacheRecord, Change, DeclarationId, DeclarationRecord, Engine, Event, Held, Job, JobId, JobState,
    PinId, PinRecord, PluginRecord, ProjectRecord, Report, RequestRecord, ShareRecord, Snapshot, Stored, Tenure,
    TokenRecord,
};
use futures::{TryStreamExt as _, stream::TryChunksError};
use planforge_proto::ApiError;
use planforge_retention::Build;
use planforge_types::{Digest, EngineKey};
use serde::de::DeserializeOwned;
use sqlx::{
    AssertSqlSafe, Connection as _, Row as _, SqliteConnection, SqlitePool,
    sqlite::{
        SqliteArguments, SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteRow, SqliteSynchronous,
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::sync::{mpsc, oneshot};

/// Forward-only, by the numbers of their files; a database that has a higher one than these is refused.
const MIGRATIONS: [(i64, &str); 19] = [
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
];
/// The schema that this program writes.
pub(super) const SCHEMA_VERSION: i64 = MIGRATIONS[MIGRATIONS.len() - 1].0;
/// Commits that may wait for the writer.
const WRITER_QUEUE: usize = 1_024;
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
/// Records that are decoded at once, and how many such pieces may wait for it, where very many are read.
const DECODED_AT_ONCE: usize = 1_024;
const PIECES_AHEAD: usize = 2;
/// Databases up to this size are checked whole whenever they are opened; larger ones would make a start wait.
const CHECKED_AT_OPEN_MAX_BYTES: u64 = 16 << 20;

/// SQLite in one file: one writer task that commits everything waiting in one transaction, readers beside it.
#[derive(Debug)]
pub struct SqliteStore {
    writer: mpsc::Sender<Write>,
    readers: SqlitePool,
    file: PathBuf,
    unreadable: Unreadable,
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
        Ok(Self { writer: sender, readers, file: file.to_owned(), unreadable: Unreadable::default() })
    }

    pub(super) async fn rows(&self, statement: Statement) -> Result<Vec<SqliteRow>, StoreError> {
        let query = sqlx::query_with(AssertSqlSafe(statement.sql), arguments(statement.values));
        query.fetch_all(&self.readers).await.map_err(|error| classify(&self.file, "read", &error))
    }

    /// The records of rows; what cannot be decoded is left out and counted, so that it hides nothing but itself.
    pub(super) fn records<T>(
        &self,
        rows: &[SqliteRow],
        decode: impl Fn(&SqliteRow) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let mut records = Vec::with_capacity(rows.len());
        for row in rows {
            records.extend(self.sound(row, decode(row))?);
        }
        Ok(records)
    }

    /// A row's record; `None`, and counted, where it cannot be decoded.
    fn sound<T>(&self, row: &SqliteRow, decoded: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
        match decoded {
            Err(error @ StoreError::Corrupt { .. }) => {
                self.unreadable.left_out(row, &error);
                Ok(None)
            }
            other => other.map(Some),
        }
    }

    pub(super) async fn docs<T: DeserializeOwned>(
        &self,
        what: &'static str,
        statement: Statement,
    ) -> Result<Vec<T>, StoreError> {
        self.records(&self.rows(statement).await?, doc_of(what))
    }

    /// At most `limit` records, fewer only where there are no more: what is left out makes no page look like the last.
    pub(super) async fn page<T>(
        &self,
        select: &Select,
        order: &str,
        limit: usize,
        decode: impl Fn(&SqliteRow) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let mut asked = limit;
        loop {
            let rows = self.rows(select.clone().order(order, asked)).await?;
            let mut records = self.records(&rows, &decode)?;
            if records.len() >= limit || rows.len() < asked {
                records.truncate(limit);
                return Ok(records);
            }
            asked = asked.saturating_mul(2);
        }
    }

    /// The one record that was asked for; there it matters that it cannot be decoded.
    pub(super) async fn doc<T: DeserializeOwned>(
        &self,
        what: &'static str,
        statement: Statement,
    ) -> Result<Option<T>, StoreError> {
        self.rows(statement).await?.first().map(doc_of(what)).transpose()
    }

    /// As [`Self::docs`], without all rows in memory at once; they are decoded beside the reading.
    async fn docs_in_pieces<T>(&self, what: &'static str, sql: &str) -> Result<Vec<T>, StoreError>
    where
        T: DeserializeOwned + Send + 'static,
    {
        let rows = sqlx::query(AssertSqlSafe(sql.to_owned())).fetch(&self.readers);
        let decoded = rows.try_chunks(DECODED_AT_ONCE).map_ok(|rows| async move {
            let decode = move || rows.into_iter().map(|row| (doc_of::<T>(what)(&row), row)).collect::<Vec<_>>();
            Ok(tokio::task::spawn_blocking(decode).await)
        });
        let mut pieces = std::pin::pin!(decoded.try_buffered(PIECES_AHEAD));
        let mut found = Vec::new();
        loop {
            let piece = match pieces.try_next().await {
                Ok(Some(piece)) => piece,
                Ok(None) => return Ok(found),
                Err(TryChunksError(_, error)) => return Err(classify(&self.file, "read", &error)),
            };
            let piece = piece.map_err(|error| StoreError::Failed { operation: "decode", detail: error.to_string() })?;
            for (record, row) in piece {
                found.extend(self.sound(&row, record)?);
            }
        }
    }
}

pub(super) fn arguments(values: Vec<Value>) -> SqliteArguments {
    use sqlx::Arguments as _;
    let mut arguments = SqliteArguments::default();
    for value in values {
        // Binding text and integers cannot fail in SQLite.
        let _ = match value {
            Value::Text(text) => arguments.add(text),
            Value::Int(number) => arguments.add(number),
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

/// A column that holds something else than it should is damage of this row alone.
pub(super) fn unlike(error: &sqlx::Error) -> StoreError {
    StoreError::Corrupt { what: "a row", detail: error.to_string() }
}

pub(super) fn text(row: &SqliteRow, column: &str) -> Result<String, StoreError> {
    row.try_get(column).map_err(|error| unlike(&error))
}

pub(super) fn number(row: &SqliteRow, column: &str) -> Result<u64, StoreError> {
    let number: i64 = row.try_get(column).map_err(|error| unlike(&error))?;
    Ok(number.max(0).unsigned_abs())
}

pub(super) fn parse<T: DeserializeOwned>(what: &'static str, document: &str) -> Result<T, StoreError> {
    serde_json::from_str(document).map_err(|error| StoreError::Corrupt { what, detail: error.to_string() })
}

pub(super) fn doc_of<T: DeserializeOwned>(what: &'static str) -> impl Fn(&SqliteRow) -> Result<T, StoreError> {
    move |row| parse(what, &text(row, "doc")?)
}

pub(super) fn digest(what: &'static str, text: &str) -> Result<Digest, StoreError> {
    text.parse().map_err(|error| StoreError::Corrupt { what, detail: format!("{error}") })
}

pub(super) fn digest_or_none(what: &'static str, text: &str) -> Result<Option<Digest>, StoreError> {
    if text.is_empty() { Ok(None) } else { digest(what, text).map(Some) }
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

impl Store for SqliteStore {
    fn acquire<'a>(&'a self, owner: &'a str, now_ms: u64) -> Answer<'a, u64> {
        Box::pin(async move {
            let (done, answer) = oneshot::channel();
            let write = Write::Acquire { owner: owner.to_owned(), now_ms, done };
            self.writer.send(write).await.map_err(|_| StoreError::Closed)?;
            answer.await.map_err(|_| StoreError::Closed)?
        })
    }

    fn load(&self) -> Answer<'_, Snapshot> {
        Box::pin(async move {
            let jobs = self.docs_in_pieces("a job", "SELECT doc FROM jobs WHERE ended_ms = 0").await?;
            let latest = format!(
                "SELECT doc FROM jobs INDEXED BY jobs_ended WHERE ended_ms <> 0 ORDER BY ended_ms DESC, id DESC LIMIT \
                 {LATEST_MAX}"
            );
            let mut latest: Vec<Job> = self.docs_in_pieces("a job", &latest).await?;
            latest.reverse();
            let agents: Vec<Agent> = self.docs("an agent", plain("SELECT doc FROM agents")).await?;
            let caches: Vec<CacheRecord> = self.docs("a timing cache", plain("SELECT doc FROM caches")).await?;
            let projects: Vec<ProjectRecord> = self.docs("a project", plain("SELECT doc FROM projects")).await?;
            let plugins: Vec<PluginRecord> = self.docs("a plugin", plain("SELECT doc FROM plugins")).await?;
            let last = self.rows(plain("SELECT COALESCE(MAX(seq), 0) AS last FROM events")).await?;
            let last_event = last.first().map_or(Ok(0), |row| number(row, "last"))?;
            Ok(Snapshot { jobs, latest, agents, caches, plugins, projects, last_event })
        })
    }

    fn commit(&self, epoch: u64, changes: Vec<Change>) -> Answer<'_, ()> {
        Box::pin(async move {
            let (done, answer) = oneshot::channel();
            self.writer.send(Write::Commit { epoch, changes, done }).await.map_err(|_| StoreError::Closed)?;
            answer.await.map_err(|_| StoreError::Closed)?
        })
    }

    fn check(&self, epoch: u64) -> Answer<'_, ()> {
        Box::pin(async move {
            let (done, answer) = oneshot::channel();
            self.writer.send(Write::Check { epoch, done }).await.map_err(|_| StoreError::Closed)?;
            answer.await.map_err(|_| StoreError::Closed)?
        })
    }

    fn job<'a>(&'a self, id: &'a JobId) -> Answer<'a, Option<Job>> {
        Box::pin(async move {
            let mut select = Select::new("SELECT doc FROM jobs");
            let statement = select.filter("id = #", Some(id.as_str())).order("id", 1);
            self.doc("a job", statement).await
        })
    }

    fn job_ids<'a>(&'a self, prefix: &'a str, project: Option<&'a str>, limit: usize) -> Answer<'a, Vec<JobId>> {
        Box::pin(async move {
            let mut select = Select::new("SELECT id FROM jobs");
            // '~' sorts behind every character of an id.
            select
                .filter("(id >= # AND id < # || '~')", Some(prefix))
                .filter("EXISTS (SELECT 1 FROM job_projects AS p INDEXED BY job_projects_job WHERE p.job = jobs.id AND p.project = #)", project);
            let statement = select.order("id", limit);
            self.rows(statement).await?.iter().map(|row| text(row, "id").map(JobId::from)).collect()
        })
    }

    fn stored(&self, keys: Vec<EngineKey>) -> Answer<'_, BTreeMap<EngineKey, Stored>> {
        Box::pin(self.stored_under(keys))
    }

    fn part_of_jobs(&self, filter: JobFilter) -> Answer<'_, Part<Job, (u64, JobId)>> {
        Box::pin(Self::part_of_jobs(self, filter))
    }

    fn count_jobs(&self, filter: JobFilter) -> Answer<'_, Count> {
        Box::pin(self.count_of_jobs(filter))
    }

    fn job_counts<'a>(&'a self, project: Option<&'a str>) -> Answer<'a, BTreeMap<(String, JobState), u64>> {
        Box::pin(Self::job_counts(self, project))
    }

    fn oldest_waiting<'a>(&'a self, sku: &'a str) -> Answer<'a, Option<u64>> {
        Box::pin(Self::oldest_waiting(self, sku))
    }

    fn events(&self, filter: EventFilter) -> Answer<'_, Vec<Event>> {
        Box::pin(self.events_after(filter))
    }

    fn part_of_events(&self, filter: EventListFilter) -> Answer<'_, Part<Event, u64>> {
        Box::pin(Self::part_of_events(self, filter))
    }

    fn count_events(&self, filter: EventListFilter) -> Answer<'_, Count> {
        Box::pin(self.count_of_events(filter))
    }

    fn part_of_requests(&self, filter: RequestFilter) -> Answer<'_, Part<ListedRequest, (u64, String)>> {
        Box::pin(Self::part_of_requests(self, filter))
    }

    fn count_requests(&self, filter: RequestFilter) -> Answer<'_, Count> {
        Box::pin(self.count_of_requests(filter))
    }

    fn part_of_engines(&self, filter: EngineFilter) -> Answer<'_, Part<Engine, (u64, EngineKey, Digest)>> {
        Box::pin(Self::part_of_engines(self, filter))
    }

    fn count_engines(&self, filter: EngineFilter) -> Answer<'_, Count> {
        Box::pin(self.count_of_engines(filter))
    }

    fn covered_models(&self, filter: CoverageFilter, from: u64, limit: usize) -> Answer<'_, CoveredModels> {
        Box::pin(async move { Self::covered_models(self, &filter, from, limit).await })
    }

    fn covered_among(&self, filter: CoverageFilter, names: Vec<String>) -> Answer<'_, BTreeSet<String>> {
        Box::pin(async move { Self::covered_among(self, &filter, &names).await })
    }

    fn model_names(&self, project: Option<String>, digests: Vec<String>) -> Answer<'_, BTreeMap<String, String>> {
        Box::pin(async move { Self::model_names(self, project.as_deref(), &digests).await })
    }

    fn coverage(&self, filter: CoverageFilter, models: Vec<String>, apart: bool) -> Answer<'_, Coverage> {
        Box::pin(async move { Self::coverage(self, &filter, &models, apart).await })
    }

    fn history(&self, filter: HistoryFilter) -> Answer<'_, Part<PastBuild, PastPlace>> {
        Box::pin(self.part_of_history(filter))
    }

    fn reports(&self, filter: ReportFilter) -> Answer<'_, Vec<Report>> {
        Box::pin(async move {
            let mut select = Select::new(
                "SELECT digest, plan_digest, engine_key, job, sku, eval_digest, created_ms, document, measure, artifacts \
                 FROM reports",
            );
            select
                .filter("digest = #", filter.digest.map(|digest| digest.to_string()))
                .filter("plan_digest = #", filter.plan.map(|plan| plan.to_string()))
                .filter("engine_key = #", filter.key.map(|key| key.to_string()))
                .filter("job = #", filter.job.map(String::from))
                .filter("sku = #", filter.sku)
                .behind(
                    "created_ms, digest",
                    filter.behind.map(|(at_ms, digest)| vec![at_ms.into(), digest.to_string().into()]),
                );
            self.page(&select, "created_ms DESC, digest DESC", filter.limit, report).await
        })
    }

    fn request<'a>(&'a self, project: &'a str, idempotency_key: &'a str) -> Answer<'a, Option<RequestRecord>> {
        Box::pin(async move {
            let mut select = Select::new("SELECT doc FROM requests");
            select.filter("project = #", Some(project)).filter("idempotency_key = #", Some(idempotency_key));
            // Repeats the condition of the partial index, which is used only then.
            select.always("idempotency_key <> ''");
            // Taken for one that is not there, the request would be made twice.
            self.doc("a request", select.order("id", 1)).await
        })
    }

    fn request_of_id<'a>(&'a self, id: &'a str) -> Answer<'a, Option<RequestRecord>> {
        Box::pin(async move {
            let mut select = Select::new("SELECT doc FROM requests");
            self.doc("a request", select.filter("id = #", Some(id)).order("id", 1)).await
        })
    }

    fn tokens(&self) -> Answer<'_, Vec<TokenRecord>> {
        Box::pin(async move {
            let rows = self.rows(plain("SELECT doc, revoked, last_used_ms, agent FROM tokens ORDER BY id")).await?;
            self.records(&rows, token)
        })
    }

    fn may_see_blob<'a>(&'a self, project: &'a str, digest: Digest) -> Answer<'a, bool> {
        Box::pin(async move {
            let sql = "SELECT 1 AS found FROM blob_refs AS b WHERE b.digest = $1 AND (b.project = $2 OR EXISTS \
                       (SELECT 1 FROM engine_projects AS e WHERE e.engine_key = b.engine_key AND e.project = $2)) LIMIT 1";
            let values = vec![digest.to_string().into(), project.into()];
            Ok(!self.rows(Statement { sql: sql.to_owned(), values }).await?.is_empty())
        })
    }

    fn stored_bytes<'a>(&'a self, project: &'a str) -> Answer<'a, u64> {
        Box::pin(async move {
            // The condition is the one of the index.
            let sql =
                "SELECT COALESCE(SUM(size_bytes), 0) AS bytes FROM blob_refs WHERE project = $1 AND project <> ''";
            let statement = Statement { sql: sql.to_owned(), values: vec![project.into()] };
            self.rows(statement).await?.first().map_or(Ok(0), |row| number(row, "bytes"))
        })
    }

    fn project_names(&self) -> Answer<'_, Vec<String>> {
        Box::pin(self.counted_projects())
    }

    fn audit(&self, filter: AuditFilter) -> Answer<'_, Vec<AuditLine>> {
        Box::pin(async move {
            let mut select = Select::new("SELECT seq, doc FROM audit");
            select
                .filter("seq < #", filter.before)
                .filter("at_ms >= #", filter.since_ms)
                .filter("at_ms <= #", filter.until_ms)
                .filter("project = #", filter.project)
                .filter("actor = #", filter.actor)
                // '~' sorts behind every character of what was done.
                .filter("(what >= # AND what < # || '~')", filter.what);
            self.page(&select, "seq DESC", filter.limit, audit_line).await
        })
    }

    fn heaps(&self) -> Answer<'_, Vec<Heap>> {
        Box::pin(async move {
            let sql = "SELECT b.project, CASE b.tenure WHEN 3 THEN 'logs' WHEN 2 THEN 'uploads' WHEN 1 THEN 'inputs' ELSE \
                       CASE WHEN EXISTS (SELECT 1 FROM engines AS e WHERE e.plan_digest = b.digest) THEN 'plans' \
                       WHEN EXISTS (SELECT 1 FROM reports AS r WHERE r.digest = b.digest) THEN 'reports' \
                       ELSE 'models and cards' END END AS kind, COUNT(*) AS blobs, SUM(b.size_bytes) AS bytes \
                       FROM blob_refs AS b WHERE b.project <> '' GROUP BY 1, 2 ORDER BY 1, 2";
            let heap = |row: &SqliteRow| {
                Ok(Heap {
                    project: text(row, "project")?,
                    kind: text(row, "kind")?,
                    blobs: number(row, "blobs")?,
                    bytes: number(row, "bytes")?,
                })
            };
            self.rows(plain(sql)).await?.iter().map(heap).collect()
        })
    }

    fn pins(&self, filter: PinFilter) -> Answer<'_, Vec<PinRecord>> {
        Box::pin(async move {
            let mut select = Select::new("SELECT doc FROM pins");
            select
                .filter("expires_ms > #", Some(filter.now_ms))
                .filter("project = #", filter.project)
                .filter("owner = #", filter.owner)
                .one_of("plan_digest", filter.plans.iter().map(Digest::to_string))
                .behind(
                    "created_ms, plan_digest, project, owner",
                    filter.behind.map(|(at_ms, PinId { plan, project, owner })| {
                        vec![at_ms.into(), plan.to_string().into(), project.into(), owner.into()]
                    }),
                );
            let order = "created_ms DESC, plan_digest DESC, project DESC, owner DESC";
            self.docs("a pin", select.order(order, filter.limit)).await
        })
    }

    fn shares<'a>(&'a self, project: Option<&'a str>) -> Answer<'a, Vec<ShareRecord>> {
        Box::pin(async move {
            let mut select = Select::new("SELECT doc, opened_ms FROM shares");
            select.filter("project = #", project);
            self.rows(select.order("created_ms DESC, id DESC", usize::MAX)).await?.iter().map(share).collect()
        })
    }

    fn share_of(&self, secret_hash: Digest) -> Answer<'_, Option<ShareRecord>> {
        Box::pin(async move {
            let mut select = Select::new("SELECT doc, opened_ms FROM shares");
            select.filter("secret_hash = #", Some(secret_hash.to_string()));
            self.rows(select.order("id", 1)).await?.first().map(share).transpose()
        })
    }

    fn pin_count<'a>(&'a self, project: &'a str, now_ms: u64) -> Answer<'a, u64> {
        Box::pin(async move {
            let sql = "SELECT COUNT(*) AS pins FROM pins WHERE project = $1 AND expires_ms > $2";
            let statement = Statement { sql: sql.to_owned(), values: vec![project.into(), now_ms.into()] };
            self.rows(statement).await?.first().map_or(Ok(0), |row| number(row, "pins"))
        })
    }

    fn is_pinned(&self, plan: Digest, now_ms: u64) -> Answer<'_, bool> {
        Box::pin(async move {
            let sql = "SELECT 1 AS found FROM pins WHERE plan_digest = $1 AND expires_ms > $2 LIMIT 1";
            let values = vec![plan.to_string().into(), now_ms.into()];
            Ok(!self.rows(Statement { sql: sql.to_owned(), values }).await?.is_empty())
        })
    }

    fn declarations(&self, filter: DeclarationFilter) -> Answer<'_, Vec<DeclarationRecord>> {
        Box::pin(async move {
            let mut select = Select::new("SELECT doc FROM declarations");
            select.filter("project = #", filter.project).filter("name = #", filter.name).behind(
                "declared_ms, project, name",
                filter.behind.map(|(at_ms, id)| vec![at_ms.into(), id.project.into(), id.name.into()]),
            );
            let order = "declared_ms DESC, project DESC, name DESC";
            self.docs("a declaration", select.order(order, filter.limit)).await
        })
    }

    fn other_declarations<'a>(&'a self, id: &'a DeclarationId) -> Answer<'a, u64> {
        Box::pin(async move {
            let sql = "SELECT COUNT(*) AS others FROM declarations WHERE project = $1 AND name <> $2";
            let values = vec![id.project.as_str().into(), id.name.as_str().into()];
            let statement = Statement { sql: sql.to_owned(), values };
            self.rows(statement).await?.first().map_or(Ok(0), |row| number(row, "others"))
        })
    }

    fn builds_unused_since(
        &self,
        before_ms: u64,
        behind: Option<(u64, BuildName)>,
        limit: usize,
        now_ms: u64,
    ) -> Answer<'_, Vec<Build<BuildName>>> {
        Box::pin(Self::builds_unused_since(self, before_ms, behind, limit, now_ms))
    }

    fn plan_bytes(&self) -> Answer<'_, u64> {
        Box::pin(Self::plan_bytes(self))
    }

    fn plan_bytes_of<'a>(&'a self, project: &'a str) -> Answer<'a, u64> {
        Box::pin(Self::plan_bytes_of(self, project))
    }

    fn jobs_ended_before(&self, before_ms: u64, limit: usize) -> Answer<'_, Vec<Job>> {
        Box::pin(Self::jobs_ended_before(self, before_ms, limit))
    }

    fn count_jobs_ended_before(&self, before_ms: u64) -> Answer<'_, u64> {
        Box::pin(Self::count_jobs_ended_before(self, before_ms))
    }

    fn requests_without_jobs(&self, before_ms: u64, limit: usize) -> Answer<'_, Vec<String>> {
        Box::pin(Self::requests_without_jobs(self, before_ms, limit))
    }

    fn unnamed_blobs(&self, digests: Vec<Digest>) -> Answer<'_, Vec<Digest>> {
        Box::pin(Self::unnamed_blobs(self, digests))
    }

    fn held_since_before(&self, tenure: Tenure, before_ms: u64, limit: usize) -> Answer<'_, Vec<Held>> {
        Box::pin(Self::held_since_before(self, tenure, before_ms, limit))
    }

    fn count_held_since_before(&self, tenure: Tenure, before_ms: u64) -> Answer<'_, u64> {
        Box::pin(Self::count_held_since_before(self, tenure, before_ms))
    }

    fn events_before(&self, before_ms: u64, limit: usize) -> Answer<'_, Option<(u64, u64)>> {
        Box::pin(Self::events_before(self, before_ms, limit))
    }

    fn older_reports(
        &self,
        before_ms: u64,
        behind: Option<(u64, Digest)>,
        limit: usize,
    ) -> Answer<'_, Vec<(u64, Digest)>> {
        Box::pin(Self::older_reports(self, before_ms, behind, limit))
    }

    fn unreadable_rows(&self) -> u64 {
        self.unreadable.count()
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            let (done, closed) = oneshot::channel();
            if self.writer.send(Write::Close { done }).await.is_ok() {
                let _ = closed.await;
            }
            self.readers.close().await;
            Ok(())
        })
    }
}

pub(super) fn token(row: &SqliteRow) -> Result<TokenRecord, StoreError> {
    let mut token: TokenRecord = parse("a token", &text(row, "doc")?)?;
    // Older versions wrote both into the document.
    token.revoked |= number(row, "revoked")? != 0;
    token.last_used_ms = token.last_used_ms.max(number(row, "last_used_ms")?);
    token.agent = Some(text(row, "agent")?).filter(|agent| !agent.is_empty());
    Ok(token)
}

pub(super) fn audit_line(row: &SqliteRow) -> Result<AuditLine, StoreError> {
    Ok(AuditLine { seq: number(row, "seq")?, ..parse("an audit line", &text(row, "doc")?)? })
}

pub(super) fn share(row: &SqliteRow) -> Result<ShareRecord, StoreError> {
    Ok(ShareRecord { opened_ms: number(row, "opened_ms")?, ..parse("a link", &text(row, "doc")?)? })
}

pub(super) fn plain(sql: &str) -> Statement {
    Statement { sql: sql.to_owned(), values: Vec::new() }
}

pub(super) fn event(row: &SqliteRow) -> Result<Event, StoreError> {
    let state = text(row, "state")?;
    let state = JobState::from_name(&state)
        .ok_or_else(|| StoreError::Corrupt { what: "an event", detail: format!("unknown state '{state}'") })?;
    Ok(Event {
        seq: number(row, "seq")?,
        at_ms: number(row, "at_ms")?,
        job: text(row, "job")?.into(),
        actor: text(row, "actor")?,
        what: text(row, "what")?,
        state,
        attempt: u32::try_from(number(row, "attempt")?).unwrap_or(u32::MAX),
        phase: text(row, "phase")?,
        detail: text(row, "detail")?,
    })
}

pub(super) fn report(row: &SqliteRow) -> Result<Report, StoreError> {
    let what = "a report";
    let key = text(row, "engine_key")?;
    let corrupt = |error: String| StoreError::Corrupt { what, detail: error };
    Ok(Report {
        digest: digest(what, &text(row, "digest")?)?,
        plan: digest(what, &text(row, "plan_digest")?)?,
        key: if key.is_empty() { None } else { Some(key.parse().map_err(|e| corrupt(format!("{e}")))?) },
        job: text(row, "job")?.into(),
        sku: text(row, "sku")?.parse().map_err(|e| corrupt(format!("{e}")))?,
        eval: digest_or_none(what, &text(row, "eval_digest")?)?,
        measure: parse(what, &text(row, "measure")?)?,
        artifacts: parse(what, &text(row, "artifacts")?)?,
        created_ms: number(row, "created_ms")?,
        document: text(row, "document")?,
    })
}
