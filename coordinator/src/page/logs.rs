//! The log of a job on its page: its end, or what was looked for in it.

use crate::{app::App, auth::Actor};
use futures::StreamExt as _;
use planforge_page::{
    parts::LogTail,
    search::{Found, Search},
};
use planforge_proto::{ApiError, ErrorCode, v1};

/// Longest end of a log that is part of a page; the rest is one click away.
const MAX_LOG_TAIL_BYTES: usize = 64 * 1024;
/// Longest text that is looked for.
const ASKED_MAX_BYTES: usize = 200;

/// Lines that have a text in them.
pub(super) async fn found(app: &App, actor: &Actor, id: &str, asked: &str) -> Result<Found, ApiError> {
    if asked.len() > ASKED_MAX_BYTES {
        let message = format!("at most {ASKED_MAX_BYTES} bytes are looked for");
        return Err(ApiError::new(ErrorCode::InvalidArgument, message));
    }
    let mut search = Search::new(id, asked);
    let request = v1::ReadLogRequest { id: id.to_owned(), ..Default::default() };
    let mut chunks = match app.farm.read_log(actor, request).await {
        Ok(chunks) => chunks,
        // A job that never ran has no log.
        Err(error) if error.code == ErrorCode::NotFound => return Ok(search.done()),
        Err(error) => return Err(error),
    };
    while let Some(chunk) = chunks.next().await {
        search.feed(&chunk?.data);
    }
    Ok(search.done())
}

/// Its end, and where to go on reading.
pub(super) async fn tail(app: &App, actor: &Actor, id: &str) -> Result<LogTail, ApiError> {
    let request = v1::ReadLogRequest { id: id.to_owned(), ..Default::default() };
    let mut chunks = match app.farm.read_log(actor, request).await {
        Ok(chunks) => chunks,
        // A job that never ran has no log.
        Err(error) if error.code == ErrorCode::NotFound => return Ok(LogTail { id: id.into(), ..LogTail::default() }),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    let mut next_offset = 0;
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk?;
        next_offset = chunk.offset_bytes + chunk.data.len() as u64;
        bytes.extend_from_slice(&chunk.data);
        // Twice the tail is dropped to once the tail, so that long logs are not moved byte by byte.
        if bytes.len() > 2 * MAX_LOG_TAIL_BYTES {
            bytes.drain(..bytes.len() - MAX_LOG_TAIL_BYTES);
        }
    }
    if bytes.len() > MAX_LOG_TAIL_BYTES {
        bytes.drain(..bytes.len() - MAX_LOG_TAIL_BYTES);
    }
    let skipped = next_offset.saturating_sub(bytes.len() as u64);
    Ok(LogTail {
        id: id.into(),
        text: String::from_utf8_lossy(&bytes).into_owned(),
        skipped,
        next_offset,
        ..LogTail::default()
    })
}
