//! What is asked of SQLite: one moment's copy, the blobs that it names, and whether it is sound.

use crate::BackupError;
use futures::TryStreamExt as _;
use planforge_types::Digest;
use sqlx::{Connection as _, Row as _, SqliteConnection, sqlite::SqliteConnectOptions};
use std::{path::Path, time::Duration};

/// How long a statement waits for another process that holds the database.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);
/// Problems that a check names; one that has more is not repaired by reading them.
const PROBLEMS_MAX: usize = 100;

/// A blob that a database names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Named {
    pub digest: Digest,
    /// 0 where nobody said.
    pub size_bytes: u64,
    /// It may be missing: a cache that another followed, a plugin that was allowed before it came.
    pub may_lack: bool,
}

/// A database that is only read; no file beside it is written to but SQLite's own.
pub(crate) struct Database<'a> {
    path: &'a Path,
    connection: SqliteConnection,
}

impl<'a> Database<'a> {
    pub(crate) async fn open(path: &'a Path) -> Result<Self, BackupError> {
        let options = SqliteConnectOptions::new().filename(path).read_only(true).busy_timeout(BUSY_TIMEOUT);
        let opened = SqliteConnection::connect_with(&options).await;
        let connection = opened.map_err(|error| failed(path, &error))?;
        Ok(Self { path, connection })
    }

    pub(crate) async fn close(self) -> Result<(), BackupError> {
        self.connection.close().await.map_err(|error| failed(self.path, &error))
    }

    /// Writes the database as it stands at one moment to a new file, without what it has deleted.
    pub(crate) async fn copy_to(&mut self, file: &Path) -> Result<(), BackupError> {
        let target = file.to_string_lossy().into_owned();
        let copied = sqlx::query("VACUUM INTO $1").bind(target).execute(&mut self.connection).await;
        copied.map(drop).map_err(|error| failed(self.path, &error))
    }

    /// The blobs that rows name, in the order of digests, each once.
    pub(crate) async fn named(&mut self) -> Result<Vec<Named>, BackupError> {
        let mut named = self.list("SELECT digest, size_bytes FROM blob_refs", false).await?;
        let newest = "SELECT json_extract(doc, '$.cache.digest'), json_extract(doc, '$.cache.size_bytes') \
                      FROM caches WHERE json_valid(doc)";
        named.extend(self.list(newest, false).await?);
        let former = "SELECT json_extract(doc, '$.previous'), 0 FROM caches WHERE json_valid(doc)";
        named.extend(self.list(former, true).await?);
        let beside = "SELECT json_extract(beside.value, '$.cache.digest'), json_extract(beside.value, '$.cache.size_bytes') \
                      FROM caches, json_each(CASE WHEN json_valid(doc) THEN doc END, '$.beside') AS beside";
        named.extend(self.list(beside, true).await?);
        named.extend(self.list("SELECT digest, 0 FROM plugins", true).await?);
        // Of several rows of one blob the one counts that says most.
        named.sort_by_key(|named| (named.digest, named.may_lack, std::cmp::Reverse(named.size_bytes)));
        named.dedup_by_key(|named| named.digest);
        Ok(named)
    }

    /// Whether any row names the blob now.
    pub(crate) async fn names(&mut self, digest: Digest) -> Result<bool, BackupError> {
        let sql = "SELECT 1 FROM blob_refs WHERE digest = $1 \
                   UNION SELECT 1 FROM caches WHERE json_valid(doc) AND json_extract(doc, '$.cache.digest') = $1";
        let found = sqlx::query(sql).bind(digest.to_string()).fetch_optional(&mut self.connection).await;
        Ok(found.map_err(|error| failed(self.path, &error))?.is_some())
    }

    async fn list(&mut self, sql: &'static str, may_lack: bool) -> Result<Vec<Named>, BackupError> {
        let mut named = Vec::new();
        let mut rows = sqlx::query(sql).fetch(&mut self.connection);
        while let Some(row) = rows.try_next().await.map_err(|error| failed(self.path, &error))? {
            // A name that is no digest names no blob; which row that is, a check of the rows says.
            let digest = row.try_get::<Option<String>, _>(0).ok().flatten().and_then(|text| text.parse().ok());
            let size_bytes = row.try_get::<Option<i64>, _>(1).ok().flatten().unwrap_or(0).max(0).unsigned_abs();
            named.extend(digest.map(|digest| Named { digest, size_bytes, may_lack }));
        }
        Ok(named)
    }

    /// What SQLite finds wrong with the file; nothing when it is sound.
    pub(crate) async fn problems(&mut self) -> Result<Vec<String>, BackupError> {
        let sql = sqlx::AssertSqlSafe(format!("PRAGMA integrity_check({PROBLEMS_MAX})"));
        let found = sqlx::query_scalar(sql).fetch_all(&mut self.connection).await;
        let found: Vec<String> = found.map_err(|error| failed(self.path, &error))?;
        Ok(found.into_iter().filter(|line| line != "ok").collect())
    }
}

fn failed(path: &Path, error: &sqlx::Error) -> BackupError {
    BackupError::Database { path: path.to_owned(), detail: error.to_string() }
}
