//! Reading tables, whichever SQL database they lie in: statements in, rows out, and what rows mean.
//!
//! A database differs in how it is reached (`Reader`), in how a row's columns are taken out (`Row`), and in few words of
//! its language (`postgres_words`). Everything else about reading is said once, here and in the modules that build on it.

use super::{
    StoreError, postgres, postgres_words,
    sql::{Select, Statement},
    sqlite,
    unreadable::Unreadable,
};
use crate::core::{AuditLine, Event, JobState, Report, ShareRecord, TokenRecord};
use futures::{
    StreamExt as _, TryStreamExt as _,
    stream::{BoxStream, TryChunksError},
};
use planforge_types::Digest;
use serde::de::DeserializeOwned;
use sqlx::{
    AssertSqlSafe, Column as _, PgPool, Row as _, SqlitePool, TypeInfo as _, postgres::PgRow, sqlite::SqliteRow,
};
use std::path::PathBuf;

/// Records that are decoded at once, and how many such pieces may wait for it, where very many are read.
const DECODED_AT_ONCE: usize = 1_024;
const PIECES_AHEAD: usize = 2;

/// How the tables are reached.
#[derive(Debug)]
pub(super) enum Reader {
    Sqlite {
        pool: SqlitePool,
        file: PathBuf,
    },
    Postgres {
        pool: PgPool,
        /// The database in words: where it is and what it is called.
        name: String,
    },
}

impl Reader {
    fn classify(&self, operation: &'static str, error: &sqlx::Error) -> StoreError {
        match self {
            Self::Sqlite { file, .. } => sqlite::classify(file, operation, error),
            Self::Postgres { name, .. } => postgres::classify(name, operation, error),
        }
    }

    async fn rows(&self, Statement { sql, values }: Statement) -> Result<Vec<Row>, sqlx::Error> {
        match self {
            Self::Sqlite { pool, .. } => {
                let rows = sqlx::query_with(AssertSqlSafe(sql), sqlite::arguments(values)).fetch_all(pool).await?;
                Ok(rows.into_iter().map(Row::Sqlite).collect())
            }
            Self::Postgres { pool, .. } => {
                let sql = postgres_words::translated(&sql);
                let rows = sqlx::query_with(AssertSqlSafe(sql), postgres_words::arguments(values)).fetch_all(pool);
                Ok(rows.await?.into_iter().map(Row::Postgres).collect())
            }
        }
    }

    fn stream(&self, sql: &str) -> BoxStream<'_, Result<Row, sqlx::Error>> {
        match self {
            Self::Sqlite { pool, .. } => {
                sqlx::query(AssertSqlSafe(sql.to_owned())).fetch(pool).map_ok(Row::Sqlite).boxed()
            }
            Self::Postgres { pool, .. } => {
                let sql = postgres_words::translated(sql);
                sqlx::query(AssertSqlSafe(sql)).fetch(pool).map_ok(Row::Postgres).boxed()
            }
        }
    }
}

/// The tables of a store, to read.
#[derive(Debug)]
pub struct Tables {
    reader: Reader,
    unreadable: Unreadable,
}

impl Tables {
    pub(super) fn new(reader: Reader) -> Self {
        Self { reader, unreadable: Unreadable::default() }
    }

    pub(super) async fn rows(&self, statement: Statement) -> Result<Vec<Row>, StoreError> {
        self.reader.rows(statement).await.map_err(|error| self.reader.classify("read", &error))
    }

    /// The records of rows; what cannot be decoded is left out and counted, so that it hides nothing but itself.
    pub(super) fn records<T>(
        &self,
        rows: &[Row],
        decode: impl Fn(&Row) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let mut records = Vec::with_capacity(rows.len());
        for row in rows {
            records.extend(self.sound(row, decode(row))?);
        }
        Ok(records)
    }

    /// A row's record; `None`, and counted, where it cannot be decoded.
    fn sound<T>(&self, row: &Row, decoded: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
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
        decode: impl Fn(&Row) -> Result<T, StoreError>,
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
    pub(super) async fn docs_in_pieces<T>(&self, what: &'static str, sql: &str) -> Result<Vec<T>, StoreError>
    where
        T: DeserializeOwned + Send + 'static,
    {
        let decoded = self.reader.stream(sql).try_chunks(DECODED_AT_ONCE).map_ok(|rows| async move {
            let decode = move || rows.into_iter().map(|row| (doc_of::<T>(what)(&row), row)).collect::<Vec<_>>();
            Ok(tokio::task::spawn_blocking(decode).await)
        });
        let mut pieces = std::pin::pin!(decoded.try_buffered(PIECES_AHEAD));
        let mut found = Vec::new();
        loop {
            let piece = match pieces.try_next().await {
                Ok(Some(piece)) => piece,
                Ok(None) => return Ok(found),
                Err(TryChunksError(_, error)) => return Err(self.reader.classify("read", &error)),
            };
            let piece = piece.map_err(|error| StoreError::Failed { operation: "decode", detail: error.to_string() })?;
            for (record, row) in piece {
                found.extend(self.sound(&row, record)?);
            }
        }
    }

    pub(super) fn unreadable_rows(&self) -> u64 {
        self.unreadable.count()
    }

    pub(super) async fn close(&self) {
        match &self.reader {
            Reader::Sqlite { pool, .. } => pool.close().await,
            Reader::Postgres { pool, .. } => pool.close().await,
        }
    }
}

/// A row of any of the databases.
#[derive(Debug)]
pub(super) enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

impl Row {
    /// What its first column holds, as the database has it.
    pub fn first_bytes(&self) -> Vec<u8> {
        match self {
            Self::Sqlite(row) => row.try_get_unchecked(0),
            Self::Postgres(row) => row.try_get_unchecked(0),
        }
        .unwrap_or_default()
    }

    /// A number, or whether something is so: SQLite knows no difference.
    fn integer(&self, column: &str) -> Result<i64, sqlx::Error> {
        match self {
            Self::Sqlite(row) => row.try_get(column),
            Self::Postgres(row) => match row.try_column(column)?.type_info().name() {
                "BOOL" => row.try_get::<bool, _>(column).map(i64::from),
                "INT4" => row.try_get::<i32, _>(column).map(i64::from),
                _ => row.try_get(column),
            },
        }
    }
}

/// A column that holds something else than it should is damage of this row alone.
fn unlike(error: &sqlx::Error) -> StoreError {
    StoreError::Corrupt { what: "a row", detail: error.to_string() }
}

pub(super) fn text(row: &Row, column: &str) -> Result<String, StoreError> {
    match row {
        Row::Sqlite(row) => row.try_get(column),
        Row::Postgres(row) => row.try_get(column),
    }
    .map_err(|error| unlike(&error))
}

pub(super) fn text_or_none(row: &Row, column: &str) -> Result<Option<String>, StoreError> {
    match row {
        Row::Sqlite(row) => row.try_get(column),
        Row::Postgres(row) => row.try_get(column),
    }
    .map_err(|error| unlike(&error))
}

pub(super) fn number(row: &Row, column: &str) -> Result<u64, StoreError> {
    row.integer(column).map(|number| number.max(0).unsigned_abs()).map_err(|error| unlike(&error))
}

pub(super) fn real_or_none(row: &Row, column: &str) -> Result<Option<f64>, StoreError> {
    match row {
        Row::Sqlite(row) => row.try_get(column),
        Row::Postgres(row) => row.try_get(column),
    }
    .map_err(|error| unlike(&error))
}

pub(super) fn parse<T: DeserializeOwned>(what: &'static str, document: &str) -> Result<T, StoreError> {
    serde_json::from_str(document).map_err(|error| StoreError::Corrupt { what, detail: error.to_string() })
}

pub(super) fn doc_of<T: DeserializeOwned>(what: &'static str) -> impl Fn(&Row) -> Result<T, StoreError> {
    move |row| parse(what, &text(row, "doc")?)
}

pub(super) fn digest(what: &'static str, text: &str) -> Result<Digest, StoreError> {
    text.parse().map_err(|error| StoreError::Corrupt { what, detail: format!("{error}") })
}

pub(super) fn digest_or_none(what: &'static str, text: &str) -> Result<Option<Digest>, StoreError> {
    if text.is_empty() { Ok(None) } else { digest(what, text).map(Some) }
}

pub(super) fn plain(sql: &str) -> Statement {
    Statement { sql: sql.to_owned(), values: Vec::new() }
}

pub(super) fn token(row: &Row) -> Result<TokenRecord, StoreError> {
    let mut token: TokenRecord = parse("a token", &text(row, "doc")?)?;
    // Older versions wrote both into the document.
    token.revoked |= number(row, "revoked")? != 0;
    token.last_used_ms = token.last_used_ms.max(number(row, "last_used_ms")?);
    token.agent = Some(text(row, "agent")?).filter(|agent| !agent.is_empty());
    Ok(token)
}

pub(super) fn audit_line(row: &Row) -> Result<AuditLine, StoreError> {
    Ok(AuditLine { seq: number(row, "seq")?, ..parse("an audit line", &text(row, "doc")?)? })
}

pub(super) fn share(row: &Row) -> Result<ShareRecord, StoreError> {
    Ok(ShareRecord { opened_ms: number(row, "opened_ms")?, ..parse("a link", &text(row, "doc")?)? })
}

pub(super) fn event(row: &Row) -> Result<Event, StoreError> {
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

pub(super) fn report(row: &Row) -> Result<Report, StoreError> {
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
