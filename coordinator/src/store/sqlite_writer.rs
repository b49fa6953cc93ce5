//! The one connection that writes to SQLite: everything that waits in one transaction, and healing after a failure.
//!
//! Transactions are begun and ended by plain statements. SQLite ends a transaction by itself when the disk is full or
//! fails, and a library that counts how deep it is in transactions goes on believing in the one that is gone: from then
//! on it would refuse every new one. So nothing is counted here: after a failure whatever is left is rolled back, and a
//! connection that cannot begin a transaction then is replaced by a new one.

use super::{
    StoreError,
    sql::statements,
    sql_store::{GROUP_MAX, Waiting, Write, of_epoch},
    sqlite::{arguments, classify},
};
use crate::core::Change;
use sqlx::{AssertSqlSafe, Connection as _, SqliteConnection, sqlite::SqliteConnectOptions};
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;

/// A disk with less room than this counts as full when it is asked for after a refused commit, and when writing to it fails for
/// a reason that SQLite does not tell.
const ROOM_MIN_BYTES: u64 = 256 << 10;
/// SQLite's primary code for an error of the disk, a full one among them.
const SQLITE_IOERR: i64 = 10;

/// Owns the connection that writes.
#[derive(Debug)]
pub(super) struct Writer {
    pub file: PathBuf,
    pub options: SqliteConnectOptions,
    /// The database grows to at most this.
    pub max_bytes: Option<u64>,
    /// `None`: the last one failed and the next write makes a new one.
    pub connection: Option<SqliteConnection>,
}

impl Writer {
    pub async fn run(mut self, mut inbox: mpsc::Receiver<Write>) {
        let mut writes = Vec::with_capacity(GROUP_MAX);
        while inbox.recv_many(&mut writes, GROUP_MAX).await > 0 {
            let mut group = Vec::with_capacity(writes.len());
            for write in writes.drain(..) {
                match write {
                    Write::Commit { epoch, changes, done } => group.push(Waiting { epoch, changes, done }),
                    Write::Acquire { owner, now_ms, done } => {
                        self.commit_group(std::mem::take(&mut group)).await;
                        let _ = done.send(self.acquire(&owner, now_ms).await);
                    }
                    Write::Check { epoch, done } => {
                        self.commit_group(std::mem::take(&mut group)).await;
                        let _ = done.send(self.check(epoch).await);
                    }
                    // A commit that failed was rolled back here.
                    Write::Settle { done } => drop(done.send(Ok(()))),
                    Write::Close { done } => {
                        self.commit_group(std::mem::take(&mut group)).await;
                        if let Some(connection) = self.connection.take()
                            && let Err(error) = connection.close().await
                        {
                            tracing::warn!(%error, "closing the database failed");
                        }
                        let _ = done.send(());
                        return;
                    }
                }
            }
            self.commit_group(group).await;
        }
    }

    /// Bounds the size of the database; SQLite keeps that bound with the connection.
    pub async fn limit(&self, connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        let Some(max_bytes) = self.max_bytes else { return Ok(()) };
        let page_bytes: i64 = sqlx::query_scalar("PRAGMA page_size").fetch_one(&mut *connection).await?;
        let pages = max_bytes / page_bytes.max(1).unsigned_abs();
        sqlx::query(AssertSqlSafe(format!("PRAGMA max_page_count = {pages}"))).execute(connection).await?;
        Ok(())
    }

    async fn connect(&self) -> Result<SqliteConnection, sqlx::Error> {
        let mut connection = SqliteConnection::connect_with(&self.options).await?;
        self.limit(&mut connection).await?;
        Ok(connection)
    }

    /// Like [`classify`], and looks at the disk where SQLite only says that it failed.
    fn classify(&self, operation: &'static str, error: &sqlx::Error) -> StoreError {
        let failed = classify(&self.file, operation, error);
        let code = error.as_database_error().and_then(|e| e.code()).and_then(|code| code.parse::<i64>().ok());
        if code.is_some_and(|code| code & 0xff == SQLITE_IOERR) && !has_room(&self.file) {
            return StoreError::Full { detail: error.to_string() };
        }
        failed
    }

    /// A connection on which a transaction has begun.
    async fn begin(&mut self) -> Result<&mut SqliteConnection, StoreError> {
        let failed = |writer: &Self, error: &sqlx::Error| writer.classify("begin a commit", error);
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect().await.map_err(|error| failed(self, &error))?,
        };
        match sqlx::query("BEGIN IMMEDIATE").execute(&mut connection).await {
            Ok(_) => Ok(self.connection.insert(connection)),
            Err(error) => {
                let error = failed(self, &error);
                // Only that somebody else holds the database is no fault of the connection.
                if matches!(error, StoreError::Busy { .. }) {
                    self.connection = Some(connection);
                } else {
                    tracing::warn!(%error, "the connection to the database is replaced");
                }
                Err(error)
            }
        }
    }

    /// Ends what [`Self::begin`] began, well only when `result` is.
    async fn end(&mut self, result: Result<(), StoreError>) -> Result<(), StoreError> {
        let Some(connection) = &mut self.connection else { return result };
        let result = match result {
            Ok(()) => match sqlx::query("COMMIT").execute(&mut *connection).await {
                Ok(_) => return Ok(()),
                Err(error) => Err(error),
            },
            Err(error) => {
                rollback(connection).await;
                return Err(error);
            }
        };
        rollback(connection).await;
        result.map_err(|error| self.classify("commit", &error))
    }

    async fn acquire(&mut self, owner: &str, now_ms: u64) -> Result<u64, StoreError> {
        let connection = self.begin().await?;
        let taken = sqlx::query_scalar(
            "UPDATE leader SET epoch = epoch + 1, owner = $1, since_ms = $2 WHERE id = 1 RETURNING epoch",
        )
        .bind(owner)
        .bind(i64::try_from(now_ms).unwrap_or(i64::MAX))
        .fetch_one(connection)
        .await;
        let taken: Result<i64, StoreError> = taken.map_err(|error| self.classify("take the leadership", &error));
        let epoch = taken.as_ref().map_or(0, |epoch| epoch.max(&0).unsigned_abs());
        self.end(taken.map(drop)).await.map(|()| epoch)
    }

    async fn check(&mut self, epoch: u64) -> Result<(), StoreError> {
        // One page often finds a place in what a refused commit left behind; the next commit would not.
        if !has_room(&self.file) {
            let detail = format!("its disk has less than {ROOM_MIN_BYTES} bytes left");
            return Err(StoreError::Full { detail });
        }
        let connection = self.begin().await?;
        let written = async {
            let current = current_epoch(connection).await?;
            // Writes a page as it is.
            sqlx::query("UPDATE leader SET since_ms = since_ms WHERE id = 1").execute(connection).await?;
            Ok(current)
        }
        .await;
        let result = match written {
            Ok(current) if current != epoch => Err(StoreError::Fenced { mine: epoch, current }),
            Ok(_) => Ok(()),
            Err(error) => Err(self.classify("write", &error)),
        };
        self.end(result).await
    }

    /// Commits everything that waits in one transaction; it holds for all of them or for none.
    async fn commit_group(&mut self, group: Vec<Waiting>) {
        if group.is_empty() {
            return;
        }
        let current = match self.begin().await {
            Ok(connection) => match current_epoch(connection).await {
                Ok(current) => Ok(current),
                Err(error) => {
                    let error = self.classify("begin a commit", &error);
                    self.end(Err(error)).await.map(|()| 0)
                }
            },
            Err(error) => Err(error),
        };
        let current = match current {
            Ok(current) => current,
            Err(error) => {
                // Whoever waits hears the true reason.
                for waiting in group {
                    let _ = waiting.done.send(Err(error.clone()));
                }
                return;
            }
        };
        let (changes, acknowledged) = of_epoch(group, current);
        let written = self.write(changes.into_iter()).await;
        let result = self.end(written).await;
        for done in acknowledged {
            let _ = done.send(result.clone());
        }
    }

    async fn write(&mut self, changes: impl Iterator<Item = Change>) -> Result<(), StoreError> {
        for statement in statements(changes) {
            let Some(connection) = &mut self.connection else { return Err(StoreError::Closed) };
            let query = sqlx::query_with(AssertSqlSafe(statement.sql), arguments(statement.values));
            if let Err(error) = query.execute(connection).await {
                return Err(self.classify("write", &error));
            }
        }
        Ok(())
    }
}

/// Ends whatever is left of a transaction. After some failures SQLite has done so itself, and says that none is active.
async fn rollback(connection: &mut SqliteConnection) {
    if let Err(error) = sqlx::query("ROLLBACK").execute(connection).await {
        tracing::debug!(%error, "nothing to roll back");
    }
}

async fn current_epoch(connection: &mut SqliteConnection) -> Result<u64, sqlx::Error> {
    let epoch: i64 = sqlx::query_scalar("SELECT epoch FROM leader WHERE id = 1").fetch_one(connection).await?;
    Ok(epoch.max(0).unsigned_abs())
}

/// Whether the disk of `file` has room for more; unknown counts as room.
fn has_room(file: &Path) -> bool {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    rustix::fs::statvfs(folder).map_or(true, |stat| stat.f_bavail * stat.f_frsize >= ROOM_MIN_BYTES)
}
