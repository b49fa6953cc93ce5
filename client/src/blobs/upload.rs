//! Upload by offset.

use super::{
    BlobError, Blobs, COMMIT_TIMEOUT, MAX_ANSWER_BYTES, ProgressFn, STALL_TIMEOUT, direct::PLANFORGE_DIRECT,
    file_body::FileBody, number,
};
use bytes::Bytes;
use planforge_types::Digest;
use reqwest::{Body, Method, StatusCode, header};
use serde::{Deserialize, Serialize};
use std::{
    fs::File,
    ops::Range,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

pub(super) const UPLOAD_OFFSET: &str = "upload-offset";
const UPLOAD_COMPLETE: &str = "upload-complete";
/// Bytes of each part that the store itself takes.
const PLANFORGE_PART_BYTES: &str = "planforge-part-bytes";
const UPLOADS_PATH: &str = "/v1/uploads";
/// How often a running upload looks whether it still moves and tells its caller.
const WATCH_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Serialize)]
struct OpenUpload {
    digest: Digest,
    size_bytes: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct UploadAnswer {
    state: String,
}

/// What an upload's bytes come from.
#[derive(Clone)]
pub(super) enum Source {
    File { file: Arc<File>, path: PathBuf, size_bytes: u64 },
    Bytes(Bytes),
}

impl Source {
    pub fn size_bytes(&self) -> u64 {
        match self {
            Self::File { size_bytes, .. } => *size_bytes,
            Self::Bytes(bytes) => bytes.len() as u64,
        }
    }

    /// Some of the bytes, and what they hash to.
    pub async fn part(&self, range: Range<u64>) -> Result<(Bytes, Digest), BlobError> {
        let source = self.clone();
        let read = tokio::task::spawn_blocking(move || {
            let whole = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
            let bytes = match &source {
                Self::Bytes(bytes) => bytes.slice(whole(range.start)..whole(range.end)),
                Self::File { file, path, .. } => {
                    let mut piece = vec![0; whole(range.end - range.start)];
                    file.read_exact_at(&mut piece, range.start).map_err(BlobError::disk("read", path))?;
                    Bytes::from(piece)
                }
            };
            let digest = Digest::of(&bytes);
            Ok((bytes, digest))
        });
        read.await.expect("reading and hashing do not panic")
    }

    /// The bytes from `offset` on; `sent` counts what left.
    fn body(&self, offset: u64, sent: Arc<AtomicU64>) -> Body {
        match self {
            Self::Bytes(bytes) => bytes.slice(usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len())..).into(),
            Self::File { file, path, size_bytes } => {
                Body::wrap(FileBody::new(file.clone(), path.clone(), offset..*size_bytes, sent))
            }
        }
    }
}

/// Where an opened upload stands.
enum Opened {
    Exists,
    At { upload: Upload, offset: u64 },
}

/// An upload that the coordinator opened.
#[derive(Clone)]
struct Upload {
    path: String,
    /// Of each part that the store itself takes; `None`: it takes none.
    part_bytes: Option<u64>,
}

impl Blobs {
    /// Uploads the file at `path`, whose SHA-256 the caller knows. Nothing is sent when the coordinator has it.
    /// A cut connection is continued at the coordinator's offset.
    ///
    /// # Errors
    ///
    /// [`BlobError::Disk`] when the file cannot be opened, [`BlobError::UploadMismatch`] when its bytes are not those that
    /// `digest` names, [`BlobError::NoRoom`] or [`BlobError::Refused`] when the coordinator takes it not,
    /// [`BlobError::Unreachable`] or [`BlobError::Cut`] when tries without progress ran out (a file that cannot be read
    /// to its end cuts the transfer too), [`BlobError::Protocol`] for an answer without sense.
    pub async fn upload(&self, path: &Path, digest: Digest) -> Result<(), BlobError> {
        self.upload_with(path, digest, &|_| ()).await
    }

    /// As [`Blobs::upload`], telling `progress` how far it is.
    ///
    /// # Errors
    ///
    /// As [`Blobs::upload`].
    pub async fn upload_with(&self, path: &Path, digest: Digest, progress: ProgressFn<'_>) -> Result<(), BlobError> {
        let file = File::open(path).map_err(BlobError::disk("open", path))?;
        let size_bytes = file.metadata().map_err(BlobError::disk("read", path))?.len();
        self.send_all(&Source::File { file: Arc::new(file), path: path.to_owned(), size_bytes }, digest, progress).await
    }

    /// Uploads bytes in memory and returns their digest.
    ///
    /// # Errors
    ///
    /// As [`Blobs::upload`], without those of the file.
    pub async fn put_bytes(&self, bytes: Bytes) -> Result<Digest, BlobError> {
        let digest = Digest::of(&bytes);
        self.send_all(&Source::Bytes(bytes), digest, &|_| ()).await?;
        Ok(digest)
    }

    async fn send_all(&self, source: &Source, digest: Digest, progress: ProgressFn<'_>) -> Result<(), BlobError> {
        let mut backoff = self.retries.backoff();
        let mut idle_tries = 0;
        let mut furthest = 0;
        let mut upload: Option<Upload> = None;
        loop {
            let error =
                match self.send_once(source, digest, &mut upload, &mut furthest, &mut idle_tries, progress).await {
                    Ok(()) => {
                        progress(source.size_bytes());
                        return Ok(());
                    }
                    Err(error) => error,
                };
            // An upload that the coordinator has forgotten (swept, another one leads) is opened anew, whatever else went wrong
            // before: what has not filled a part is in the memory of the one that led.
            let forgotten = upload.is_some() && matches!(error, BlobError::NotFound { .. });
            if forgotten {
                upload = None;
            }
            let error = match error {
                // Told of by this name the caller would take the blob for one that is not there.
                BlobError::NotFound { url } if forgotten => {
                    let reason = "the coordinator knows this upload no more; another one may lead by now".to_owned();
                    BlobError::Cut { url, reason }
                }
                other => other,
            };
            idle_tries += 1;
            if !error.is_retryable() || idle_tries >= self.retries.idle_tries {
                return Err(error);
            }
            let delay = backoff.next_delay();
            tracing::debug!(%digest, offset = furthest, ?delay, %error, "upload interrupted, will continue");
            tokio::time::sleep(delay).await;
        }
    }

    /// One try: open or look up the upload, then send everything from its offset.
    async fn send_once(
        &self,
        source: &Source,
        digest: Digest,
        upload: &mut Option<Upload>,
        furthest: &mut u64,
        idle_tries: &mut u32,
        progress: ProgressFn<'_>,
    ) -> Result<(), BlobError> {
        let opened = match upload {
            None => self.open_upload(digest, source.size_bytes()).await?,
            Some(upload) => self.upload_offset(upload.clone()).await?,
        };
        let Opened::At { upload: open, offset } = opened else { return Ok(()) };
        *upload = Some(open.clone());
        let Upload { path, part_bytes } = open;
        if offset > *furthest {
            *furthest = offset;
            *idle_tries = 0;
        }
        let url = self.url(&path);
        if offset > source.size_bytes() {
            let reason = format!("the upload's offset {offset} is beyond the blob's {} bytes", source.size_bytes());
            return Err(BlobError::Protocol { url, reason });
        }
        progress(offset);
        let offset = match part_bytes {
            Some(part_bytes) => self.write_parts(source, &path, offset, part_bytes, progress).await?,
            None => offset,
        };
        let sent = Arc::new(AtomicU64::new(offset));
        let request = self
            .request(Method::PATCH, &path)
            .header(UPLOAD_OFFSET, offset)
            .header(UPLOAD_COMPLETE, "?1")
            .header(header::CONTENT_TYPE, "application/partial-upload")
            .body(source.body(offset, sent.clone()));
        let answer = self.send(request, COMMIT_TIMEOUT.max(transfer_limit(source.size_bytes() - offset)));
        let response = watched(answer, &sent, source.size_bytes(), &url, progress).await?;
        match response.status() {
            status if status.is_success() => Ok(()),
            // The next try asks for the right offset.
            StatusCode::CONFLICT => {
                let at = number(&response, UPLOAD_OFFSET);
                let reason = match at {
                    Some(at) => format!("the coordinator is at offset {at}, not {offset}"),
                    None => format!("the coordinator does not say where it is, and wants nothing at {offset}"),
                };
                Err(BlobError::Cut { url, reason })
            }
            StatusCode::UNPROCESSABLE_ENTITY => match self.refusal(response, &url).await {
                BlobError::Refused { message, .. } => Err(BlobError::UploadMismatch { digest, message }),
                other => Err(other),
            },
            _ => Err(self.refusal(response, &url).await),
        }
    }

    async fn open_upload(&self, digest: Digest, size_bytes: u64) -> Result<Opened, BlobError> {
        let url = self.url(UPLOADS_PATH);
        let order = serde_json::to_vec(&OpenUpload { digest, size_bytes }).expect("plain data");
        let request =
            self.request(Method::POST, UPLOADS_PATH).header(header::CONTENT_TYPE, "application/json").body(order);
        let request = if self.direct.writes() { request.header(PLANFORGE_DIRECT, "?1") } else { request };
        let response = self.send(request, STALL_TIMEOUT).await?;
        if !response.status().is_success() {
            return Err(self.refusal(response, &url).await);
        }
        let location = response.headers().get(header::LOCATION).and_then(|v| v.to_str().ok()).map(str::to_owned);
        let offset = number(&response, UPLOAD_OFFSET).unwrap_or(0);
        let part_bytes = number(&response, PLANFORGE_PART_BYTES);
        let body = self.body(response, &url, MAX_ANSWER_BYTES).await?;
        let answer: UploadAnswer = serde_json::from_slice(&body).unwrap_or_default();
        match location {
            _ if answer.state == "exists" => Ok(Opened::Exists),
            Some(path) if path.starts_with('/') => Ok(Opened::At { upload: Upload { path, part_bytes }, offset }),
            _ => Err(BlobError::Protocol { url, reason: "the answer names no upload to continue".into() }),
        }
    }

    async fn upload_offset(&self, upload: Upload) -> Result<Opened, BlobError> {
        let url = self.url(&upload.path);
        let response = self.send(self.request(Method::HEAD, &upload.path), STALL_TIMEOUT).await?;
        if !response.status().is_success() {
            return Err(self.refusal(response, &url).await);
        }
        match number(&response, UPLOAD_OFFSET) {
            Some(offset) => Ok(Opened::At { upload, offset }),
            None => Err(BlobError::Protocol { url, reason: "the answer has no Upload-Offset".into() }),
        }
    }
}

/// Longest a transfer of `bytes` may take at all: one at 128 KiB/s is as good as dead.
pub(super) fn transfer_limit(bytes: u64) -> Duration {
    Duration::from_secs(bytes / (128 << 10))
}

/// Waits for the answer while bytes move; a connection that takes nothing for [`STALL_TIMEOUT`] is cut.
async fn watched<T>(
    answer: impl Future<Output = Result<T, BlobError>>,
    sent: &AtomicU64,
    end: u64,
    url: &str,
    progress: ProgressFn<'_>,
) -> Result<T, BlobError> {
    tokio::pin!(answer);
    let mut last = (sent.load(Ordering::Relaxed), tokio::time::Instant::now());
    loop {
        tokio::select! {
            biased;
            result = &mut answer => return result,
            () = tokio::time::sleep(WATCH_INTERVAL) => {}
        }
        let now = sent.load(Ordering::Relaxed);
        progress(now);
        if now != last.0 || now >= end {
            last = (now, tokio::time::Instant::now());
        } else if last.1.elapsed() >= STALL_TIMEOUT {
            let reason = format!("nothing moved for {} s at byte {now}", STALL_TIMEOUT.as_secs());
            return Err(BlobError::Cut { url: url.to_owned(), reason });
        }
    }
}
