//! PostgreSQL, for several coordinators of which one leads.
//!
//! What cannot be used is refused in words before anything is written: a server that is too old, a replica, a schema of
//! another program, of another farm or of a newer planforge, and missing rights.

use super::{
    StoreError,
    postgres_writer::Writer,
    sql_store::{SqlStore, WRITER_QUEUE, Write},
    tables::{Reader, Tables},
};
use futures::future::BoxFuture;
use sqlx::{
    Connection as _, PgConnection, PgPool, Row as _,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use std::{
    fmt,
    str::FromStr as _,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio::sync::{mpsc, watch};

/// Forward-only, by the numbers of their files; a schema that has a higher one than these is refused.
const MIGRATIONS: [(i64, &str); 5] = [
    (1, include_str!("../../../migrations/postgres/0001_farm.sql")),
    (23, include_str!("../../../migrations/postgres/0023_blob_notes.sql")),
    (24, include_str!("../../../migrations/postgres/0024_pauses.sql")),
    (25, include_str!("../../../migrations/postgres/0025_preparations.sql")),
    (26, include_str!("../../../migrations/postgres/0026_whole_statements.sql")),
];
const SCHEMA_VERSION: i64 = MIGRATIONS[MIGRATIONS.len() - 1].0;
/// Whatever is written is found by its key. Plans are kept, also those that were made while the farm was small enough to be
/// read whole, so that they may only go along indexes.
const BY_INDEX: [(&str, &str); 4] =
    [("enable_seqscan", "off"), ("enable_hashjoin", "off"), ("enable_mergejoin", "off"), ("jit", "off")];

/// The oldest release that the statements are written for.
const OLDEST_VERSION: i64 = 140_000;
/// Connections that only read. More of them would not make a small server faster.
const READERS: u32 = 8;
/// How long a read waits for one of them, and a start for the server.
const CONNECTS_WITHIN: Duration = Duration::from_secs(10);
/// How long a statement waits for another transaction's lock.
const LOCKED_AT_MOST_MS: &str = "10000";
/// Statements of one connection that the server keeps parsed.
const STATEMENTS_PREPARED: usize = 512;
/// Tables of another program that are named.
const NAMED_MAX: i64 = 5;

/// Where the database is, and how this coordinator is known there.
#[derive(Clone, Default)]
pub struct PostgresConfig {
    /// `postgres://USER:PASSWORD@HOST:PORT/DATABASE?options`, as PostgreSQL's own programs take it.
    pub url: String,
    /// Where callers reach this coordinator while it leads; for people and for those that stand by.
    pub address: String,
    /// The farm that the database has to be, where that is known.
    pub farm: Option<String>,
    /// A database with nothing in it may become the farm's.
    pub may_begin: bool,
}

impl fmt::Debug for PostgresConfig {
    /// Without the URL, in which a password may stand.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresConfig")
            .field("address", &self.address)
            .field("farm", &self.farm)
            .finish_non_exhaustive()
    }
}

/// Who leads.
#[derive(Clone, PartialEq, Eq)]
pub struct Leadership {
    pub epoch: u64,
    /// In words.
    pub owner: String,
    /// Where callers, and those that stand by, reach it; may be empty.
    pub address: String,
    /// Names its process, and is known to the farm's coordinators alone.
    pub holder: String,
    /// Nobody does: the lease has run out.
    pub is_free: bool,
}

impl fmt::Debug for Leadership {
    /// Without the holder, which is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership")
            .field("epoch", &self.epoch)
            .field("owner", &self.owner)
            .field("address", &self.address)
            .field("is_free", &self.is_free)
            .finish_non_exhaustive()
    }
}

/// PostgreSQL: one writer task that commits everything waiting in one transaction, readers beside it.
#[derive(Debug)]
pub struct PostgresStore {
    writer: mpsc::Sender<Write>,
    tables: Tables,
    pool: PgPool,
    name: String,
    farm: String,
    holder: String,
    superseded: watch::Receiver<Option<StoreError>>,
}

impl SqlStore for PostgresStore {
    fn tables(&self) -> &Tables {
        &self.tables
    }

    fn writer(&self) -> &mpsc::Sender<Write> {
        &self.writer
    }

    fn superseded(&self, _epoch: u64) -> BoxFuture<'_, StoreError> {
        let mut told = self.superseded.clone();
        Box::pin(async move {
            let error = told.wait_for(Option::is_some).await.ok().and_then(|error| error.clone());
            match error {
                Some(error) => error,
                // The writer ended with its store.
                None => std::future::pending().await,
            }
        })
    }
}

impl PostgresStore {
    /// Looks at the database, and brings its schema up to date where it may be used.
    ///
    /// # Errors
    /// When it cannot be reached or used; nothing was written then.
    pub async fn open(config: &PostgresConfig) -> Result<Self, StoreError> {
        let (options, name) = reached(&config.url)?;
        let cannot = |error: sqlx::Error| cannot_open(&name, &error);
        let mut connection = connect(&options, &name).await?;
        look(&mut connection, &name, config).await?;
        migrate(&mut connection, &name).await?;
        let farm = sqlx::query_scalar("SELECT name FROM farm WHERE id = 1").fetch_one(&mut connection).await;
        let farm = farm.map_err(cannot)?;
        let idle_ms = super::postgres_writer::LEASE.as_millis().to_string();
        let writing = options
            .clone()
            .options([("idle_in_transaction_session_timeout", idle_ms.as_str()), ("lock_timeout", LOCKED_AT_MOST_MS)])
            .options(BY_INDEX);
        // Plans made for the values at hand: how far a list goes decides along which index it is read.
        let reading =
            options.options([("plan_cache_mode", "force_custom_plan"), ("default_transaction_read_only", "on")]);
        let pool = PgPoolOptions::new()
            .max_connections(READERS)
            .acquire_timeout(CONNECTS_WITHIN)
            .connect_with(reading)
            .await
            .map_err(cannot)?;
        let (told, superseded) = watch::channel(None);
        let holder = format!("{:032x}", rand::random::<u128>());
        let writer = Writer {
            name: name.clone(),
            options: writing,
            connection: None,
            holder: holder.clone(),
            address: config.address.clone(),
            leads: None,
            renewed: Instant::now(),
            superseded: told,
            unsettled: false,
        };
        let (sender, inbox) = mpsc::channel(WRITER_QUEUE);
        tokio::spawn(writer.run(inbox));
        let tables = Tables::new(Reader::Postgres { pool: pool.clone(), name: name.clone() });
        Ok(Self { writer: sender, tables, pool, name, farm, holder, superseded })
    }

    /// Which farm the database is.
    pub fn farm(&self) -> &str {
        &self.farm
    }

    /// What this process is called in the lease while it leads: a secret of the farm's coordinators.
    pub fn holder(&self) -> &str {
        &self.holder
    }

    /// The database in words.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether anything of a farm is in it.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn is_used(&self) -> Result<bool, StoreError> {
        let sql =
            "SELECT EXISTS (SELECT 1 FROM tokens) OR EXISTS (SELECT 1 FROM jobs) OR EXISTS (SELECT 1 FROM events)";
        let used = sqlx::query_scalar(sql).fetch_one(&self.pool).await;
        used.map_err(|error| classify(&self.name, "read it", &error))
    }

    /// Who leads, by the database's clock.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn leadership(&self) -> Result<Leadership, StoreError> {
        let failed = |error: sqlx::Error| classify(&self.name, "read who leads", &error);
        let row = sqlx::query(
            "SELECT epoch, owner, address, holder, expires_at < clock_timestamp() AS is_free FROM leader WHERE id = 1",
        )
        .fetch_one(&self.pool)
        .await
        .map_err(failed)?;
        let epoch: i64 = row.try_get("epoch").map_err(failed)?;
        Ok(Leadership {
            epoch: epoch.max(0).unsigned_abs(),
            owner: row.try_get("owner").map_err(failed)?,
            address: row.try_get("address").map_err(failed)?,
            holder: row.try_get("holder").map_err(failed)?,
            is_free: row.try_get("is_free").map_err(failed)?,
        })
    }
}

/// How a database is reached, and what it is called.
fn reached(url: &str) -> Result<(PgConnectOptions, String), StoreError> {
    let wrong = |why: String| StoreError::Unfit {
        database: "that --store names".into(),
        why: format!("its URL is none of PostgreSQL: {why}"),
        hint: "write postgres://USER@HOST:PORT/DATABASE",
    };
    if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
        return Err(wrong("it does not begin with postgres://".into()));
    }
    let options = PgConnectOptions::from_str(url).map_err(|error| wrong(error.to_string()))?;
    let options = options.application_name("planforge").statement_cache_capacity(STATEMENTS_PREPARED);
    let name = named(&options);
    Ok((options, name))
}

async fn connect(options: &PgConnectOptions, name: &str) -> Result<PgConnection, StoreError> {
    match tokio::time::timeout(CONNECTS_WITHIN, PgConnection::connect_with(options)).await {
        Ok(connected) => connected.map_err(|error| cannot_open(name, &error)),
        Err(_) => {
            let detail = format!("no answer within {} s", CONNECTS_WITHIN.as_secs());
            Err(StoreError::Open { path: name.to_owned(), detail })
        }
    }
}

/// A connection of its own, and the database in words.
pub(super) async fn connected(url: &str) -> Result<(PgConnection, String), StoreError> {
    let (options, name) = reached(url)?;
    Ok((connect(&options, &name).await?, name))
}

/// The database in words, without anything secret.
fn named(options: &PgConnectOptions) -> String {
    let database = options.get_database().unwrap_or(options.get_username());
    match options.get_socket() {
        Some(socket) => format!("{database} at {}:{}", socket.display(), options.get_port()),
        None => format!("{database} at {}:{}", options.get_host(), options.get_port()),
    }
}

fn code(error: &sqlx::Error) -> Option<String> {
    Some(error.as_database_error()?.code()?.into_owned())
}

/// Sorts a database error into what can be done about it, by PostgreSQL's codes.
pub(super) fn classify(name: &str, operation: &'static str, error: &sqlx::Error) -> StoreError {
    let detail = error.to_string();
    let code = code(error).unwrap_or_default();
    match code.as_str() {
        // disk_full
        "53100" => StoreError::Full { detail },
        // read_only_sql_transaction
        "25006" => StoreError::ReadOnly { detail },
        // too_many_connections, lock_not_available
        "53300" | "55P03" => StoreError::Busy { detail },
        // serialization_failure, deadlock_detected
        "40001" | "40P01" => StoreError::Conflict { detail },
        // admin_shutdown, crash_shutdown, idle_in_transaction_session_timeout
        "57P01" | "57P02" | "25P03" => StoreError::SessionEnded { operation, detail },
        // data_corrupted, index_corrupted
        "XX001" | "XX002" => {
            StoreError::Damaged { path: name.to_owned(), check: format!("trying to {operation}"), detail }
        }
        _ => StoreError::Failed { operation, detail },
    }
}

fn unfit(name: &str, why: impl Into<String>, hint: &'static str) -> StoreError {
    StoreError::Unfit { database: name.to_owned(), why: why.into(), hint }
}

/// Why a database cannot be opened.
fn cannot_open(name: &str, error: &sqlx::Error) -> StoreError {
    match code(error).as_deref() {
        // invalid_password, invalid_authorization_specification
        Some("28P01" | "28000") => unfit(name, error.to_string(), "give the user and password that it knows"),
        // invalid_catalog_name
        Some("3D000") => unfit(name, error.to_string(), "make it (createdb), or name the one that is there"),
        // insufficient_privilege
        Some("42501") => unfit(name, error.to_string(), "let its owner grant this user what is missing"),
        _ => StoreError::Open { path: name.to_owned(), detail: error.to_string() },
    }
}

/// Looks whether the database can be used as this farm's; changes nothing.
async fn look(connection: &mut PgConnection, name: &str, config: &PostgresConfig) -> Result<(), StoreError> {
    let cannot = |error: sqlx::Error| cannot_open(name, &error);
    let facts = sqlx::query(
        "SELECT current_setting('server_version_num')::bigint AS version, current_setting('server_version') AS release, \
         pg_is_in_recovery() AS is_replica, current_setting('transaction_read_only') = 'on' AS is_read_only, \
         current_setting('server_encoding') AS encoding, current_schema()::text AS schema, current_user::text AS role, \
         current_setting('fsync') = 'off' OR current_setting('synchronous_commit') = 'off' AS forgets",
    )
    .fetch_one(&mut *connection)
    .await
    .map_err(cannot)?;
    let version: i64 = facts.try_get("version").map_err(cannot)?;
    if version < OLDEST_VERSION {
        let release: String = facts.try_get("release").map_err(cannot)?;
        let (oldest, hint) = (OLDEST_VERSION / 10_000, "upgrade the server");
        return Err(unfit(
            name,
            format!("its server is PostgreSQL {release}; {oldest} is the oldest that will do"),
            hint,
        ));
    }
    if facts.try_get("is_replica").map_err(cannot)? {
        return Err(unfit(name, "its server is a replica, which takes no writes", "name the primary"));
    }
    if facts.try_get("is_read_only").map_err(cannot)? {
        let hint = "take default_transaction_read_only away from the role or the database";
        return Err(unfit(name, "it takes no writes from this user", hint));
    }
    let encoding: String = facts.try_get("encoding").map_err(cannot)?;
    if encoding != "UTF8" {
        return Err(unfit(name, format!("its texts are {encoding}"), "make a database with encoding UTF8"));
    }
    let role: String = facts.try_get("role").map_err(cannot)?;
    let Some(schema): Option<String> = facts.try_get("schema").map_err(cannot)? else {
        return Err(unfit(name, "no schema of its search_path is there", "make the schema, or name another one"));
    };
    if facts.try_get("forgets").map_err(cannot)? {
        tracing::warn!(database = name, "fsync or synchronous_commit is off there: what is acknowledged may be lost");
    }
    let of_schema = "FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
                     WHERE n.nspname = current_schema() AND c.relkind IN ('r', 'p', 'v', 'm', 'f')";
    let tables = format!("SELECT c.relname::text {of_schema} ORDER BY 1 LIMIT {NAMED_MAX}");
    let tables: Vec<String> =
        sqlx::query_scalar(sqlx::AssertSqlSafe(tables)).fetch_all(&mut *connection).await.map_err(cannot)?;
    let ours = format!("SELECT COUNT(*) = 3 {of_schema} AND c.relname IN ('schema_versions', 'leader', 'farm')");
    let is_ours: bool =
        sqlx::query_scalar(sqlx::AssertSqlSafe(ours)).fetch_one(&mut *connection).await.map_err(cannot)?;
    if !is_ours && !tables.is_empty() {
        let why = format!("its schema {schema} holds another program's tables: {}", tables.join(", "));
        return Err(unfit(name, why, "make an empty database or schema for the farm"));
    }
    if !is_ours {
        let may: bool = sqlx::query_scalar("SELECT has_schema_privilege(current_schema(), 'CREATE')")
            .fetch_one(&mut *connection)
            .await
            .map_err(cannot)?;
        if !config.may_begin {
            let why = "it is empty, and the folders of this coordinator are a farm's";
            return Err(unfit(name, why, "name the farm's database, use other folders, or begin an empty farm: --new"));
        }
        if !may {
            let why = format!("the user {role} may not make tables in its schema {schema}");
            return Err(unfit(name, why, "let its owner GRANT CREATE ON SCHEMA to this user"));
        }
        return Ok(());
    }
    let closed = format!(
        "SELECT c.relname::text {of_schema} AND c.relkind = 'r' AND NOT (has_table_privilege(c.oid, 'SELECT') AND \
         has_table_privilege(c.oid, 'INSERT') AND has_table_privilege(c.oid, 'UPDATE') AND \
         has_table_privilege(c.oid, 'DELETE')) ORDER BY 1 LIMIT {NAMED_MAX}"
    );
    let closed: Vec<String> =
        sqlx::query_scalar(sqlx::AssertSqlSafe(closed)).fetch_all(&mut *connection).await.map_err(cannot)?;
    if !closed.is_empty() {
        let why = format!("the user {role} may not read and write its tables: {}", closed.join(", "));
        return Err(unfit(
            name,
            why,
            "let their owner GRANT SELECT, INSERT, UPDATE, DELETE on all of them to this user",
        ));
    }
    let found: Option<i64> = sqlx::query_scalar("SELECT MAX(version) FROM schema_versions")
        .fetch_one(&mut *connection)
        .await
        .map_err(cannot)?;
    let (found, known) = (found.unwrap_or(0), SCHEMA_VERSION);
    if found > known {
        return Err(StoreError::NewerSchema { path: name.to_owned(), found, known });
    }
    let is: String =
        sqlx::query_scalar("SELECT name FROM farm WHERE id = 1").fetch_one(connection).await.map_err(cannot)?;
    match &config.farm {
        Some(farm) if *farm != is => {
            let hint = "name the database that this folder was used with, or use another folder";
            Err(unfit(name, format!("it is another farm's ({is}) than the folders of this coordinator ({farm})"), hint))
        }
        _ => Ok(()),
    }
}

/// Brings the schema up to date; of several coordinators that come at once one does.
async fn migrate(connection: &mut PgConnection, name: &str) -> Result<(), StoreError> {
    let failed = |error: sqlx::Error| classify(name, "bring its schema up to date", &error);
    let mut transaction = connection.begin().await.map_err(failed)?;
    sqlx::query("SELECT pg_advisory_xact_lock(hashtext('planforge'), hashtext(current_schema()))")
        .execute(&mut *transaction)
        .await
        .map_err(failed)?;
    let has_versions: bool = sqlx::query_scalar("SELECT to_regclass('schema_versions') IS NOT NULL")
        .fetch_one(&mut *transaction)
        .await
        .map_err(failed)?;
    if !has_versions {
        sqlx::query("CREATE TABLE schema_versions (version BIGINT PRIMARY KEY, applied_ms BIGINT NOT NULL)")
            .execute(&mut *transaction)
            .await
            .map_err(failed)?;
    }
    let applied: Vec<i64> =
        sqlx::query_scalar("SELECT version FROM schema_versions").fetch_all(&mut *transaction).await.map_err(failed)?;
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
