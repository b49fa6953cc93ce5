//! Blobs over plain HTTP: `GET`/`HEAD` by digest with ranges, uploads by offset.
//!
//! ```text
//! POST  /v1/uploads            {"digest","size_bytes"}   200 {"state":"exists"} | 201 Location, Upload-Offset; with
//!                              Planforge-Direct: ?1, where its parts may be written to the store, Planforge-Part-Bytes too
//! POST  /v1/uploads/ID/address {"offset","sha256"}       200 {"url","headers","size_bytes","lasts_s"}: where the client
//!                              writes (PUT) the part that begins at that offset, whose bytes hash so
//! POST  /v1/uploads/ID/parts   {"offset","sha256","etag"} 204 Upload-Offset: it was written, and the store calls it so
//! HEAD  /v1/uploads/ID                                   204 Upload-Offset
//! PATCH /v1/uploads/ID         Upload-Offset, Upload-Complete: ?0|?1; body = bytes from that offset on
//! GET   /v1/blobs/sha256/HEX   with Planforge-Direct: ?1, where blobs lie in a cloud and --blobs-direct says so: 307
//!                              Location, Planforge-Range; who may read is looked at first, as for every other GET
//! ```

use super::{api::JsonBody, range};
use crate::{
    app::{App, Caller, Refusal},
    auth::Role,
    blobs::{Begun, BlobError, UploadStatus, Uploader},
};
use axum::{
    Json, Router,
    body::Body,
    extract::{Path, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, head, post},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures::StreamExt;
use planforge_proto::{ApiError, ErrorCode};
use planforge_types::Digest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

const UPLOAD_OFFSET: HeaderName = HeaderName::from_static("upload-offset");
const UPLOAD_COMPLETE: HeaderName = HeaderName::from_static("upload-complete");
const UPLOAD_LENGTH: HeaderName = HeaderName::from_static("upload-length");
const REPR_DIGEST: HeaderName = HeaderName::from_static("repr-digest");
/// `?1`: the client can read from the blob store itself, or write to it, at an address that it is given.
const PLANFORGE_DIRECT: HeaderName = HeaderName::from_static("planforge-direct");
/// With such an address: the Range that it is good with.
const PLANFORGE_RANGE: HeaderName = HeaderName::from_static("planforge-range");
/// The client may write parts of so many bytes to the blob store itself.
const PLANFORGE_PART_BYTES: HeaderName = HeaderName::from_static("planforge-part-bytes");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
/// Media type of the bytes of an upload.
const PARTIAL_UPLOAD: &str = "application/partial-upload";
/// A blob never changes: whoever has it need never ask again.
const IMMUTABLE: HeaderValue = HeaderValue::from_static("private, max-age=31536000, immutable");

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/blobs/sha256/{hex}", get(download))
        .route("/v1/uploads", post(begin))
        .route("/v1/uploads/{id}", head(offset).patch(append).delete(abandon))
        .route("/v1/uploads/{id}/address", post(part_address))
        .route("/v1/uploads/{id}/parts", post(part_written))
}

pub(super) fn digest_of(hex: &str) -> Result<Digest, ApiError> {
    hex.parse().map_err(|error| ApiError::new(ErrorCode::InvalidArgument, format!("{error}")))
}

async fn download(
    State(app): State<App>,
    caller: Caller,
    Path(hex): Path<String>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let digest = digest_of(&hex)?;
    // What is none of the caller's is, to it, not there.
    if !app.farm.may_read_blob(&caller, caller.proof(), digest).await? {
        return Err(BlobError::NotFound { digest }.into());
    }
    let size = app.blobs.find(digest).await?.ok_or_else(|| app.blobs.why_missing(digest))?;
    let etag = format!("\"sha256:{digest}\"");
    let mut answer = HeaderMap::new();
    answer.insert(header::ETAG, text(&etag));
    answer.insert(REPR_DIGEST, text(&format!("sha-256=:{}:", STANDARD.encode(digest.as_raw()))));
    answer.insert(header::CACHE_CONTROL, IMMUTABLE);
    answer.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if names_etag(&headers, header::IF_NONE_MATCH, &etag) {
        return Ok((StatusCode::NOT_MODIFIED, answer).into_response());
    }
    let asked = match headers.get(header::RANGE).map(|value| value.to_str().unwrap_or_default()) {
        Some(range) if may_range(&headers, &etag) => range::parse(range, size),
        _ => range::Asked::Whole,
    };
    let (status, part) = match asked {
        range::Asked::Whole => (StatusCode::OK, 0..size),
        range::Asked::Part(part) => {
            answer.insert(header::CONTENT_RANGE, text(&format!("bytes {}-{}/{size}", part.start, part.end - 1)));
            (StatusCode::PARTIAL_CONTENT, part)
        }
        range::Asked::Unsatisfiable => {
            let error = ApiError::new(ErrorCode::InvalidArgument, format!("the blob has {size} bytes"));
            let mut response = Refusal { error, status: StatusCode::RANGE_NOT_SATISFIABLE }.into_response();
            response.headers_mut().insert(header::CONTENT_RANGE, text(&format!("bytes */{size}")));
            return Ok(response);
        }
    };
    if method == Method::GET && wants_direct(&headers) {
        let (first, end) = (part.start, part.end);
        if let Some((address, lasts)) = app.blobs.direct(digest, part.clone()).await? {
            app.farm.note_download(&caller, digest);
            tracing::debug!(%digest, first, end, lasts_s = lasts.as_secs(), "sends a client to the blob store");
            let location = HeaderValue::from_str(&address)
                .map_err(|error| ApiError::new(ErrorCode::Internal, format!("the signed address is none: {error}")))?;
            let range = text(&format!("bytes={first}-{}", end - 1));
            let headers = [(header::LOCATION, location), (PLANFORGE_RANGE, range), (header::CACHE_CONTROL, NO_STORE)];
            return Ok((StatusCode::TEMPORARY_REDIRECT, headers).into_response());
        }
    }
    answer.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    answer.insert(header::CONTENT_LENGTH, HeaderValue::from(part.end - part.start));
    let body = if method == Method::HEAD {
        Body::empty()
    } else {
        app.farm.note_download(&caller, digest);
        let metrics = app.metrics.clone();
        let chunks = app.blobs.open_range(digest, part).await?;
        Body::from_stream(chunks.inspect(move |chunk| {
            if let Ok(bytes) = chunk {
                metrics.blob_bytes_sent(bytes.len());
            }
        }))
    };
    Ok((status, answer, body).into_response())
}

/// Whether the client can use the blob store itself.
fn wants_direct(headers: &HeaderMap) -> bool {
    headers.get(PLANFORGE_DIRECT).is_some_and(|value| value.as_bytes() == b"?1")
}

fn text(value: &str) -> HeaderValue {
    HeaderValue::from_str(value).expect("digests and numbers are ASCII")
}

/// Whether a header lists the tag, or any tag.
fn names_etag(headers: &HeaderMap, name: HeaderName, etag: &str) -> bool {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .any(|tag| tag == "*" || tag.trim_start_matches("W/") == etag)
}

/// `If-Range` compares strongly; a date never matches, because blobs have none.
fn may_range(headers: &HeaderMap, etag: &str) -> bool {
    headers.get(header::IF_RANGE).is_none_or(|value| value.as_bytes() == etag.as_bytes())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Announcement {
    digest: Digest,
    size_bytes: u64,
}

#[derive(Serialize)]
struct UploadAnswer {
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
}

async fn begin(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    JsonBody(announced): JsonBody<Announcement>,
) -> Result<Response, Refusal> {
    caller.may_write()?;
    let Announcement { digest, size_bytes } = announced;
    let may_know = app.farm.may_read_blob(&caller, caller.proof(), digest).await?;
    let room = app.farm.project_room(&caller).await?;
    match app.blobs.begin_upload_for(uploader(&caller), digest, size_bytes, may_know, room).await.map_err(refused)? {
        Begun::Exists => {
            app.metrics.blob_deduplicated();
            Ok(Json(UploadAnswer { state: "exists", offset: None }).into_response())
        }
        Begun::Upload(status) => {
            let location = [(header::LOCATION, format!("/v1/uploads/{}", status.id))];
            let mut standing = standing(&status);
            if wants_direct(&headers)
                && let Some(part_bytes) = app.blobs.direct_part_bytes(&status.id)?
            {
                standing.insert(PLANFORGE_PART_BYTES, HeaderValue::from(part_bytes));
            }
            let body = Json(UploadAnswer { state: "open", offset: Some(status.offset) });
            Ok((StatusCode::CREATED, location, standing, body).into_response())
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PartAsk {
    offset: u64,
    sha256: Digest,
}

#[derive(Serialize)]
struct PartAnswer {
    url: String,
    headers: BTreeMap<String, String>,
    size_bytes: u64,
    lasts_s: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PartTold {
    offset: u64,
    sha256: Digest,
    etag: String,
}

async fn part_address(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    JsonBody(PartAsk { offset, sha256 }): JsonBody<PartAsk>,
) -> Result<Response, Refusal> {
    caller.may_write()?;
    let (digest, _) = app.blobs.upload_of(&uploader(&caller), &id)?;
    let part = app.blobs.part_address(&id, offset, sha256).await.map_err(refused)?;
    let lasts_s = part.lasts.as_secs();
    tracing::debug!(%digest, offset, bytes = part.size_bytes, lasts_s, "lets a client write to the blob store");
    let answer = PartAnswer { url: part.url, headers: part.headers, size_bytes: part.size_bytes, lasts_s };
    Ok(([(header::CACHE_CONTROL, NO_STORE)], Json(answer)).into_response())
}

async fn part_written(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    JsonBody(PartTold { offset, sha256, etag }): JsonBody<PartTold>,
) -> Result<Response, Refusal> {
    caller.may_write()?;
    app.blobs.upload_of(&uploader(&caller), &id)?;
    let status = app.blobs.part_written(&id, offset, sha256, &etag).await.map_err(refused)?;
    Ok((StatusCode::NO_CONTENT, standing(&status)).into_response())
}

fn uploader(caller: &Caller) -> Uploader {
    // What agents store is of the jobs that they are leased, whatever their token belongs to.
    let project = caller.project.clone().filter(|_| caller.role != Role::Agent);
    // Agents may join as administrators or over the owner's socket too; who only submits is none.
    let leaves_reserve = caller.role == Role::Submit;
    Uploader { token: caller.token.clone(), name: caller.name.clone(), project, leaves_reserve }
}

/// 413 where the limit is the caller's own, 507 where it is the coordinator's.
fn refused(error: BlobError) -> Refusal {
    let own = error.is_callers_limit();
    let refusal = Refusal::from(error);
    if own { Refusal { status: StatusCode::PAYLOAD_TOO_LARGE, ..refusal } } else { refusal }
}

/// Headers that say where an upload stands.
fn standing(status: &UploadStatus) -> HeaderMap {
    HeaderMap::from_iter([
        (UPLOAD_OFFSET, HeaderValue::from(status.offset)),
        (UPLOAD_LENGTH, HeaderValue::from(status.size_bytes)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ])
}

async fn offset(State(app): State<App>, caller: Caller, Path(id): Path<String>) -> Result<Response, Refusal> {
    caller.may_write()?;
    let (_, status) = app.blobs.upload_of(&uploader(&caller), &id)?;
    Ok((StatusCode::NO_CONTENT, standing(&status)).into_response())
}

async fn append(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    caller.may_write()?;
    let wrong = |message: String| ApiError::new(ErrorCode::InvalidArgument, message);
    if headers.get(header::CONTENT_TYPE).is_none_or(|value| value.as_bytes() != PARTIAL_UPLOAD.as_bytes()) {
        let error = wrong(format!("bytes of an upload have the content type {PARTIAL_UPLOAD}"));
        return Err(Refusal { error, status: StatusCode::UNSUPPORTED_MEDIA_TYPE });
    }
    let offset: u64 = headers
        .get(UPLOAD_OFFSET)
        .and_then(|value| value.to_str().ok()?.parse().ok())
        .ok_or_else(|| wrong("the request names no Upload-Offset".into()))?;
    let complete = match headers.get(UPLOAD_COMPLETE).map(HeaderValue::as_bytes) {
        Some(b"?1") => true,
        Some(b"?0") | None => false,
        Some(_) => return Err(wrong("Upload-Complete is ?0 or ?1".into()).into()),
    };
    let metrics = app.metrics.clone();
    let body = body.into_data_stream().inspect(move |piece| {
        if let Ok(bytes) = piece {
            metrics.blob_bytes_received(bytes.len());
        }
    });
    let (digest, _) = app.blobs.upload_of(&uploader(&caller), &id)?;
    match app.blobs.append(&id, offset, complete, body).await {
        Ok(status) => {
            if complete {
                app.farm.hold_blob(&caller, digest, status.size_bytes).await?;
            }
            let code = if complete { StatusCode::CREATED } else { StatusCode::NO_CONTENT };
            let complete = HeaderValue::from_static(if complete { "?1" } else { "?0" });
            Ok((code, standing(&status), [(UPLOAD_COMPLETE, complete)]).into_response())
        }
        Err(error) => {
            let standing_at = match &error {
                BlobError::OffsetMismatch { expected, .. } => Some(*expected),
                BlobError::UploadBusy { offset, .. } | BlobError::Interrupted { offset, .. } => Some(*offset),
                _ => None,
            };
            let mut response = refused(error).into_response();
            if let Some(offset) = standing_at {
                response.headers_mut().insert(UPLOAD_OFFSET, HeaderValue::from(offset));
            }
            Ok(response)
        }
    }
}

async fn abandon(State(app): State<App>, caller: Caller, Path(id): Path<String>) -> Result<StatusCode, Refusal> {
    caller.may_write()?;
    app.blobs.upload_of(&uploader(&caller), &id)?;
    app.blobs.abandon_upload(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}
