//! Having stored bytes looked at: one blob, or all of them at a rate.

use crate::{
    app::{App, Caller, Refusal, SCRUB_BYTES_PER_S},
    auth::Actor,
    blobs::{BlobError, Blobs, ScrubReport},
    farm::Reply,
};
use axum::{
    Json, Router,
    extract::{Path, State},
    response::{IntoResponse as _, Response},
    routing::post,
};
use futures::StreamExt as _;
use planforge_proto::{ApiError, v1};
use planforge_types::Digest;
use std::time::Duration;
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::wrappers::ReceiverStream;

/// How often a caller hears how far it is.
const TOLD_EVERY: Duration = Duration::from_millis(500);
/// Messages that may wait for a slow caller.
const OUTBOX: usize = 4;

pub(super) fn routes() -> Router<App> {
    Router::new().route("/api/v1/blobs/{hex}/verify", post(verify)).route("/api/v1/blobs/scrub", post(scrub))
}

async fn verify(State(app): State<App>, caller: Caller, Path(hex): Path<String>) -> Result<Response, Refusal> {
    caller.must_be_admin()?;
    app.blobs.verify(super::blobs::digest_of(&hex)?).await?;
    Ok(Json(serde_json::json!({ "state": "intact" })).into_response())
}

async fn scrub(State(app): State<App>, caller: Caller) -> Result<Response, Refusal> {
    app.farm.may_scrub(&caller).await?;
    let report = app.blobs.scrub(SCRUB_BYTES_PER_S, |_| ()).await?;
    let corrupt: Vec<_> = report.damaged.iter().map(Digest::to_string).collect();
    Ok(Json(serde_json::json!({ "blobs": report.blobs, "bytes": report.bytes, "corrupt": corrupt })).into_response())
}

/// The same over gRPC, told as it goes. It ends when nobody listens any more.
pub(super) async fn told(app: &App, actor: &Actor, bytes_per_s: u64) -> Result<Reply<v1::ScrubProgress>, ApiError> {
    app.farm.may_scrub(actor).await?;
    let (out, messages) = mpsc::channel(OUTBOX);
    let blobs = app.blobs.clone();
    let rate = if bytes_per_s == 0 { SCRUB_BYTES_PER_S } else { bytes_per_s };
    tokio::spawn(async move {
        let gone = out.clone();
        tokio::select! {
            biased;
            () = gone.closed() => {}
            () = look(blobs, rate, out) => {}
        }
    });
    Ok(ReceiverStream::new(messages).boxed())
}

async fn look(blobs: Blobs, rate: u64, out: mpsc::Sender<Result<v1::ScrubProgress, ApiError>>) {
    let mut told = Instant::now();
    let tell = |report: &ScrubReport| {
        if told.elapsed() >= TOLD_EVERY {
            told = Instant::now();
            let progress = v1::ScrubProgress { blobs: report.blobs, bytes: report.bytes, ..Default::default() };
            // A caller that is slow misses a step and hears the next.
            let _ = out.try_send(Ok(progress));
        }
    };
    let done = async {
        let report = blobs.scrub(rate, tell).await?;
        Ok::<_, BlobError>(v1::ScrubProgress {
            blobs: report.blobs,
            bytes: report.bytes,
            damaged: report.damaged.iter().map(Digest::to_string).collect(),
            quarantined: blobs.quarantined()?.iter().map(Digest::to_string).collect(),
            done: true,
        })
    };
    // Nobody may be listening any more; then there is nobody to tell.
    let done = done.await;
    let _ = out.send(done.map_err(ApiError::from)).await;
}
