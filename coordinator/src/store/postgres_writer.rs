//! The one connection that writes to PostgreSQL: everything that waits in one transaction, under the lease of the one
//! coordinator that leads.
//!
//! The lease is a row with an epoch and the time until which it holds, by the database's clock. Every writing transaction
//! begins by locking that row and looking at its epoch, so a coordinator that was paused past its lease writes nothing
//! when it wakes: another has raised the epoch. A transaction in which nothing happens for as long as a lease holds is
//! ended by the database, so a paused coordinator keeps nobody from taking over either.
//!
//! Crash safety: where a connection breaks while a commit is on its way, nobody here knows whether it holds. Before the
//! state is loaded anew the row is locked once more, behind whatever the old connection was still doing. What is known not
//! to hold, because the database said that it undid it or because its end was never asked for, is tried again here.

use super::{
    StoreError,
    postgres::classify,
    postgres_words::{arguments, together, translated},
    sql::{Statement, Written, written},
    sql_store::{GROUP_MAX, Waiting, Write, of_epoch},
};
use crate::core::Change;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _, postgres::PgConnectOptions};
use std::time::{Duration, Instant};
use tokio::{
    sync::{mpsc, watch},
    time::{MissedTickBehavior, interval, timeout},
};

/// How long a coordinator leads without renewing that.
pub(crate) const LEASE: Duration = Duration::from_secs(2);
/// How often it is renewed.
const RENEWAL: Duration = Duration::from_millis(500);
/// How long the database may take for one statement before its connection counts as broken.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);
/// Likewise to connect.
const CONNECTS_WITHIN: Duration = Duration::from_secs(5);
/// How often a commit is tried that the database undid, or whose session ended before its end was asked for.
const COMMITS_MAX: u32 = 4;
/// What passes before it is tried the second time; as much more each time after that.
const BETWEEN_COMMITS: Duration = Duration::from_millis(10);

/// Owns the connection that writes.
#[derive(Debug)]
pub(super) struct Writer {
    /// The database in words.
    pub name: String,
    pub options: PgConnectOptions,
    /// `None`: the last one failed and the next write makes a new one.
    pub connection: Option<PgConnection>,
    /// Names this process in the lease.
    pub holder: String,
    /// Where others find it.
    pub address: String,
    /// The epoch in which it leads.
    pub leads: Option<u64>,
    pub renewed: Instant,
    /// Told when another coordinator has taken over.
    pub superseded: watch::Sender<Option<StoreError>>,
    /// A commit may still be on its way on a connection that broke.
    pub unsettled: bool,
}

impl Writer {
    pub async fn run(mut self, mut inbox: mpsc::Receiver<Write>) {
        let mut writes = Vec::with_capacity(GROUP_MAX);
        let mut renewal = interval(RENEWAL);
        renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let count = tokio::select! {
                biased;
                _ = renewal.tick() => {
                    self.renew().await;
                    continue;
                }
                count = inbox.recv_many(&mut writes, GROUP_MAX) => count,
            };
            if count == 0 {
                return self.close().await;
            }
            let mut group = Vec::with_capacity(writes.len());
            for write in writes.drain(..) {
                match write {
                    Write::Commit { epoch, changes, done } => {
                        // Whoever does not lead has no epoch to write in.
                        let epoch = epoch.or(self.leads).or(Some(0));
                        group.push(Waiting { epoch, changes, done });
                    }
                    Write::Acquire { owner, now_ms, done } => {
                        self.commit_group(std::mem::take(&mut group)).await;
                        let _ = done.send(self.acquire(&owner, now_ms).await);
                    }
                    Write::Check { epoch, done } => {
                        self.commit_group(std::mem::take(&mut group)).await;
                        let _ = done.send(self.check(epoch).await);
                    }
                    Write::Settle { done } => {
                        self.commit_group(std::mem::take(&mut group)).await;
                        let _ = done.send(self.settle().await);
                    }
                    Write::Close { done } => {
                        self.commit_group(std::mem::take(&mut group)).await;
                        self.close().await;
                        let _ = done.send(());
                        return;
                    }
                }
            }
            self.commit_group(group).await;
        }
    }

    /// What the database answers, or that it does not.
    async fn within<T>(
        &self,
        operation: &'static str,
        answer: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, StoreError> {
        match timeout(ANSWERS_WITHIN, answer).await {
            Ok(answer) => answer.map_err(|error| match error {
                sqlx::Error::Io(why) => StoreError::SessionEnded { operation, detail: why.to_string() },
                error => classify(&self.name, operation, &error),
            }),
            Err(_) => {
                let detail = format!("no answer within {} s", ANSWERS_WITHIN.as_secs());
                Err(StoreError::Failed { operation, detail })
            }
        }
    }

    /// The connection, taken out: whoever has no error with it puts it back.
    async fn take(&mut self) -> Result<PgConnection, StoreError> {
        match self.connection.take() {
            Some(connection) => Ok(connection),
            None => match timeout(CONNECTS_WITHIN, PgConnection::connect_with(&self.options)).await {
                Ok(connected) => connected.map_err(|error| classify(&self.name, "connect", &error)),
                Err(_) => {
                    let detail = format!("no answer within {} s", CONNECTS_WITHIN.as_secs());
                    Err(StoreError::Failed { operation: "connect", detail })
                }
            },
        }
    }

    /// A transaction on a connection, and the epoch of whoever leads, which stays as it is until that ends. A connection
    /// that was ended while nothing went over it is replaced.
    async fn begin(&mut self) -> Result<(PgConnection, u64), StoreError> {
        let was_kept = self.connection.is_some();
        let connection = self.take().await?;
        match self.begin_on(connection).await {
            Err(StoreError::SessionEnded { .. }) if was_kept => {
                let connection = self.take().await?;
                self.begin_on(connection).await
            }
            begun => begun,
        }
    }

    async fn begin_on(&self, mut connection: PgConnection) -> Result<(PgConnection, u64), StoreError> {
        let begun = async {
            // Both in one message.
            let row = sqlx::raw_sql("BEGIN; SELECT epoch FROM leader WHERE id = 1 FOR NO KEY UPDATE")
                .fetch_one(&mut connection)
                .await?;
            row.try_get(0)
        };
        let epoch: i64 = match self.within("begin a commit", begun).await {
            Ok(epoch) => epoch,
            Err(error) => {
                tracing::warn!(%error, "the connection to the database is replaced");
                return Err(error);
            }
        };
        Ok((connection, epoch.max(0).unsigned_abs()))
    }

    /// Ends a transaction, well only when `result` is.
    async fn end(&mut self, mut connection: PgConnection, result: Result<(), StoreError>) -> Result<(), StoreError> {
        let how = if result.is_ok() { "COMMIT" } else { "ROLLBACK" };
        let ended = self.within("commit", async { sqlx::raw_sql(how).execute(&mut connection).await }).await;
        match (&result, ended) {
            (_, Ok(_)) => {
                self.connection = Some(connection);
                result
            }
            // The database says that it did not.
            (Ok(()), Err(error @ StoreError::Conflict { .. })) => {
                self.connection = Some(connection);
                Err(error)
            }
            (Ok(()), Err(error)) => {
                // Whether it holds nobody knows before the connection's end is known.
                self.unsettled = true;
                Err(error)
            }
            (Err(_), Err(_)) => result,
        }
    }

    /// Waits until no earlier transaction of ours is under way.
    async fn settle(&mut self) -> Result<(), StoreError> {
        if !self.unsettled {
            return Ok(());
        }
        let (connection, _) = self.begin().await?;
        self.end(connection, Err(StoreError::Closed)).await.ok();
        self.unsettled = false;
        Ok(())
    }

    async fn acquire(&mut self, owner: &str, now_ms: u64) -> Result<u64, StoreError> {
        let mut connection = self.take().await?;
        let (holder, address) = (self.holder.clone(), self.address.clone());
        let taken = async {
            let taken: Option<i64> = sqlx::query_scalar(
                "UPDATE leader SET epoch = epoch + 1, owner = $1, since_ms = $2, holder = $3, address = $4, \
                 expires_at = clock_timestamp() + $5 * interval '1 millisecond' \
                 WHERE id = 1 AND (expires_at < clock_timestamp() OR holder = $3) RETURNING epoch",
            )
            .bind(owner)
            .bind(i64::try_from(now_ms).unwrap_or(i64::MAX))
            .bind(holder)
            .bind(address)
            .bind(LEASE.as_millis() as i64)
            .fetch_optional(&mut connection)
            .await?;
            if let Some(epoch) = taken {
                return Ok(Ok(epoch.max(0).unsigned_abs()));
            }
            let leader =
                sqlx::query("SELECT owner, address FROM leader WHERE id = 1").fetch_one(&mut connection).await?;
            Ok(Err(StoreError::Led { owner: leader.try_get("owner")?, address: leader.try_get("address")? }))
        };
        let taken = self.within("take the leadership", taken).await?;
        self.connection = Some(connection);
        let epoch = taken?;
        self.leads = Some(epoch);
        self.renewed = Instant::now();
        Ok(epoch)
    }

    /// Goes on leading. The renewal is not waited for on the database's disk: lost with it, the lease only ends sooner.
    async fn renew(&mut self) {
        let Some(epoch) = self.leads else { return };
        let Ok(mut connection) = self.take().await else { return };
        let sql = format!("BEGIN; SET LOCAL synchronous_commit = off; {}; COMMIT", renewal(epoch));
        let renewed = async { sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await };
        match self.within("renew the leadership", renewed).await {
            Ok(done) if done.rows_affected() == 0 => {
                let current = sqlx::query_scalar("SELECT epoch FROM leader WHERE id = 1").fetch_one(&mut connection);
                let current: i64 = current.await.unwrap_or_default();
                self.connection = Some(connection);
                self.step_down(epoch, current.max(0).unsigned_abs());
            }
            Ok(_) => {
                self.connection = Some(connection);
                self.renewed = Instant::now();
            }
            Err(error) => tracing::warn!(%error, "the leadership could not be renewed; trying again"),
        }
    }

    /// Another coordinator leads.
    fn step_down(&mut self, mine: u64, current: u64) {
        if self.leads.take_if(|leads| *leads == mine).is_some() {
            self.superseded.send_replace(Some(StoreError::Fenced { mine, current }));
        }
    }

    async fn check(&mut self, epoch: u64) -> Result<(), StoreError> {
        let (mut connection, current) = self.begin().await?;
        if current != epoch {
            self.step_down(epoch, current);
            return self.end(connection, Err(StoreError::Fenced { mine: epoch, current })).await;
        }
        let written = async { sqlx::raw_sql(AssertSqlSafe(renewal(epoch))).execute(&mut connection).await };
        let written = self.within("write", written).await;
        self.end(connection, written.map(drop)).await
    }

    /// Commits everything that waits in one transaction; it holds for all of them or for none.
    async fn commit_group(&mut self, group: Vec<Waiting>) {
        if group.is_empty() {
            return;
        }
        let (mut connection, current) = match self.begin().await {
            Ok(begun) => begun,
            Err(error) => {
                // Whoever waits hears the true reason.
                for waiting in group {
                    let _ = waiting.done.send(Err(error.clone()));
                }
                return;
            }
        };
        if let Some(mine) = self.leads.filter(|mine| *mine != current) {
            self.step_down(mine, current);
        }
        let (changes, acknowledged) = of_epoch(group, current);
        if acknowledged.is_empty() {
            let _ = self.end(connection, Err(StoreError::Closed)).await;
            return;
        }
        let mut tries = 1;
        let result = loop {
            let written = self.write(&mut connection, changes.clone(), current).await;
            let is_undone = is_undone(&written);
            let result = self.end(connection, written).await;
            if tries == COMMITS_MAX || !is_undone && !matches!(result, Err(StoreError::Conflict { .. })) {
                break result;
            }
            if let Err(error) = &result {
                tracing::warn!(%error, tries, "the commit is tried again");
            }
            tokio::time::sleep(BETWEEN_COMMITS * tries).await;
            tries += 1;
            match self.begin().await {
                Ok((begun, still)) if still == current => connection = begun,
                Ok((begun, other)) => {
                    self.step_down(current, other);
                    break self.end(begun, Err(StoreError::Fenced { mine: current, current: other })).await;
                }
                Err(error) => break Err(error),
            }
        };
        for done in acknowledged {
            let _ = done.send(result.clone());
        }
    }

    async fn write(
        &mut self,
        connection: &mut PgConnection,
        changes: Vec<Change>,
        epoch: u64,
    ) -> Result<(), StoreError> {
        let mut all = Vec::new();
        let mut rows = Vec::new();
        for written in written(changes.into_iter()) {
            match written {
                Written::Rows(table, of_it) => rows.push((table, of_it)),
                Written::One(Statement { sql, values }) => {
                    all.extend(together(std::mem::take(&mut rows)));
                    all.push((translated(&sql), arguments(values)));
                }
            }
        }
        all.extend(together(rows));
        for (sql, arguments) in all {
            let query = sqlx::query_with(AssertSqlSafe(sql), arguments);
            self.within("write", async { query.execute(&mut *connection).await }).await?;
        }
        // A large commit is no reason to lose the lease.
        if self.leads == Some(epoch) && self.renewed.elapsed() >= RENEWAL {
            let renewed = async { sqlx::raw_sql(AssertSqlSafe(renewal(epoch))).execute(&mut *connection).await };
            self.within("renew the leadership", renewed).await?;
            self.renewed = Instant::now();
        }
        Ok(())
    }

    /// Gives the lease back, so that another coordinator leads at once.
    async fn close(&mut self) {
        if let Some(epoch) = self.leads.take()
            && let Ok(mut connection) = self.take().await
        {
            let sql = format!("UPDATE leader SET expires_at = '-infinity' WHERE id = 1 AND epoch = {epoch}");
            let given = async { sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await };
            if let Err(error) = self.within("give the leadership back", given).await {
                tracing::warn!(%error, "the leadership ends by itself");
            }
            self.connection = Some(connection);
        }
        if let Some(connection) = self.connection.take()
            && let Err(error) = connection.close().await
        {
            tracing::debug!(%error, "closing the connection to the database failed");
        }
    }
}

/// Whether what was written is undone for reasons that pass, and was not asked to hold yet.
fn is_undone(written: &Result<(), StoreError>) -> bool {
    matches!(written, Err(StoreError::Conflict { .. } | StoreError::SessionEnded { .. }))
}

/// Renews the lease of an epoch, of no other.
fn renewal(epoch: u64) -> String {
    let lease_ms = LEASE.as_millis();
    format!(
        "UPDATE leader SET expires_at = clock_timestamp() + {lease_ms} * interval '1 millisecond' \
         WHERE id = 1 AND epoch = {epoch}"
    )
}
