//! Download with verification, resumed by range.

use super::{
    BlobError, Blobs, PIECE_BYTES, PIECES_IN_FLIGHT, ProgressFn, STALL_TIMEOUT, direct::PLANFORGE_DIRECT, number,
};
use crate::{
    blocking::{blocking, joined},
    failure::causes,
};
use bytes::Bytes;
use planforge_types::{Digest, DigestWriter, durable};
use reqwest::{Method, Response, StatusCode, header};
use rustix::fs::{FlockOperation, flock};
use std::{
    fs::{self, File, OpenOptions},
    io::{Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
};
use tokio::sync::mpsc;

/// The unfinished file beside its destination, locked, with the hash of what it holds.
struct Part {
    file: File,
    path: PathBuf,
    hash: DigestWriter,
}

impl Part {
    /// Opens or begins the part file of `digest` for `dest`. A part that another process writes is left alone.
    fn open(dest: &Path, digest: Digest) -> Result<Self, BlobError> {
        let folder = dest.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let stem = dest.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let mut path = folder.join(format!(".{stem}.{}.part", digest.short()));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(&path).map_err(BlobError::disk("create", &path))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() || !same_file(&file, &path) {
            path = folder.join(format!(".{stem}.{}.{}.part", digest.short(), rand::random::<u64>()));
            file = options.create_new(true).open(&path).map_err(BlobError::disk("create", &path))?;
        }
        let mut part = Self { file, path, hash: DigestWriter::new() };
        part.hash_present()?;
        Ok(part)
    }

    /// Hashes what an earlier process left.
    fn hash_present(&mut self) -> Result<(), BlobError> {
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            let read = self.file.read(&mut buffer).map_err(BlobError::disk("read", &self.path))?;
            if read == 0 {
                return Ok(());
            }
            self.hash.update(&buffer[..read]);
        }
    }

    fn len(&self) -> u64 {
        self.hash.bytes()
    }

    fn append(&mut self, piece: &[u8]) -> Result<(), BlobError> {
        self.file.write_all(piece).map_err(BlobError::disk("write", &self.path))?;
        self.hash.update(piece);
        Ok(())
    }

    /// After a failed write the file may hold more than the hash knows: forget that.
    fn trim(&mut self) -> Result<(), BlobError> {
        let len = self.len();
        self.file.set_len(len).map_err(BlobError::disk("truncate", &self.path))?;
        self.file.seek(SeekFrom::Start(len)).map_err(BlobError::disk("write", &self.path))?;
        Ok(())
    }

    fn restart(&mut self) -> Result<(), BlobError> {
        self.hash = DigestWriter::new();
        self.trim()
    }

    /// Gives the bytes their name, once they are durable if that is asked for.
    fn publish(self, dest: &Path, durable: bool) -> Result<(), BlobError> {
        if !durable {
            return fs::rename(&self.path, dest).map_err(BlobError::disk("write", dest));
        }
        durable::publish(&self.file, &self.path, dest).map_err(BlobError::disk("write", dest))
    }

    fn discard(self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove a part file");
        }
    }
}

/// Whether `path` still names the open `file`: another process may have renamed it while we waited for its lock.
fn same_file(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    match (file.metadata(), fs::metadata(path)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

/// Writes and hashes pieces on a thread of its own until the sender is gone.
fn write_pieces(mut part: Part, mut pieces: mpsc::Receiver<Bytes>) -> (Part, Result<(), BlobError>) {
    while let Some(piece) = pieces.blocking_recv() {
        if let Err(error) = part.append(&piece) {
            if let Err(trim_error) = part.trim() {
                tracing::warn!(error = %trim_error, "cannot trim a part file; its digest will not match later");
            }
            return (part, Err(error));
        }
    }
    (part, Ok(()))
}

/// Start and total of a `Content-Range: bytes START-END/TOTAL`.
fn content_range(response: &Response) -> Option<(u64, u64)> {
    let text = response.headers().get(header::CONTENT_RANGE)?.to_str().ok()?;
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((start.parse().ok()?, total.parse().ok()?))
}

impl Blobs {
    /// Downloads a blob to `dest`, replacing what is there in one step once the digest matched and the bytes are
    /// durable. An interrupted download is continued, also by a later process.
    ///
    /// # Errors
    ///
    /// [`BlobError::NotFound`] when the coordinator has no such blob, [`BlobError::Refused`] when it said no,
    /// [`BlobError::WrongDigest`] when what came is something else, [`BlobError::Disk`] when this side cannot write,
    /// [`BlobError::Unreachable`] or [`BlobError::Cut`] when tries without progress ran out (what came stays for a later
    /// one), [`BlobError::Protocol`] for an answer without sense. `dest` is untouched in every case but an error of the
    /// last sync.
    pub async fn download(&self, digest: Digest, dest: &Path) -> Result<u64, BlobError> {
        self.download_with(digest, dest, &|_| ()).await
    }

    /// As [`Blobs::download`], telling `progress` how far it is. Returns the size in bytes.
    ///
    /// # Errors
    ///
    /// As [`Blobs::download`].
    pub async fn download_with(&self, digest: Digest, dest: &Path, progress: ProgressFn<'_>) -> Result<u64, BlobError> {
        self.download_as(digest, dest, true, progress).await
    }

    /// As [`Blobs::download`], but a power cut may leave damaged bytes: for caches that verify what they use.
    ///
    /// # Errors
    ///
    /// As [`Blobs::download`].
    pub async fn download_to_cache(&self, digest: Digest, dest: &Path) -> Result<u64, BlobError> {
        self.download_as(digest, dest, false, &|_| ()).await
    }

    async fn download_as(
        &self,
        digest: Digest,
        dest: &Path,
        durable: bool,
        progress: ProgressFn<'_>,
    ) -> Result<u64, BlobError> {
        let owned = dest.to_owned();
        let mut part = blocking(move || Part::open(&owned, digest)).await?;
        let mut backoff = self.retries.backoff();
        let mut idle_tries = 0;
        // Bytes that an earlier process left may be damaged: then the whole is fetched once more.
        let mut inherited = part.len() > 0;
        loop {
            let before = part.len();
            let (returned, result) = self.fetch_rest(part, digest, progress).await;
            part = returned;
            let error = match result {
                Ok(()) => {
                    let (size, actual) = (part.len(), part.hash.clone().finish());
                    if actual == digest {
                        let dest = dest.to_owned();
                        return blocking(move || part.publish(&dest, durable)).await.map(|()| size);
                    }
                    if !inherited {
                        part.discard();
                        return Err(BlobError::WrongDigest { url: self.url(&Self::blob_path(digest)), actual });
                    }
                    inherited = false;
                    part.restart()?;
                    continue;
                }
                Err(error) => error,
            };
            idle_tries = if part.len() > before { 0 } else { idle_tries + 1 };
            if !error.is_retryable() || idle_tries >= self.retries.idle_tries {
                if part.len() == 0 {
                    part.discard();
                }
                return Err(error);
            }
            if part.len() > before {
                backoff.reset();
            }
            let delay = backoff.next_delay();
            tracing::debug!(%digest, offset = part.len(), ?delay, %error, "download interrupted, will continue");
            tokio::time::sleep(delay).await;
        }
    }

    /// One try: asks for everything from the part's end on.
    async fn fetch_rest(
        &self,
        mut part: Part,
        digest: Digest,
        progress: ProgressFn<'_>,
    ) -> (Part, Result<(), BlobError>) {
        let path = Self::blob_path(digest);
        let url = self.url(&path);
        let request = |is_direct: bool| {
            let mut request = self.request(Method::GET, &path);
            if part.len() > 0 {
                request = request
                    .header(header::RANGE, format!("bytes={}-", part.len()))
                    .header(header::IF_RANGE, format!("\"sha256:{digest}\""));
            }
            if is_direct { request.header(PLANFORGE_DIRECT, "?1") } else { request }
        };
        let asked = async {
            let response = self.send(request(self.direct.is_on()), STALL_TIMEOUT).await?;
            if response.status() != StatusCode::TEMPORARY_REDIRECT {
                return Ok(response);
            }
            match self.follow(&response).await {
                Some(response) => Ok(response),
                None => self.send(request(false), STALL_TIMEOUT).await,
            }
        };
        let response = match asked.await {
            Ok(response) => response,
            Err(error) => return (part, Err(error)),
        };
        let total = match response.status() {
            StatusCode::OK => {
                if let Err(error) = part.restart() {
                    return (part, Err(error));
                }
                number(&response, header::CONTENT_LENGTH.as_str())
            }
            StatusCode::PARTIAL_CONTENT => match content_range(&response) {
                Some((start, total)) if start == part.len() => Some(total),
                _ => {
                    let reason = format!("the answer's Content-Range does not begin at {}", part.len());
                    return (part, Err(BlobError::Protocol { url, reason }));
                }
            },
            // Nothing is left to ask for: complete, or a part that is too long; the digest tells.
            StatusCode::RANGE_NOT_SATISFIABLE if part.len() > 0 => return (part, Ok(())),
            _ => {
                let error = self.refusal(response, &url).await;
                return (part, Err(error));
            }
        };
        let (part, moved) = self.receive(part, response, &url, progress).await;
        let result = moved.and_then(|()| match total {
            Some(total) if part.len() < total => {
                Err(BlobError::Cut { url, reason: format!("it ended at byte {} of {total}", part.len()) })
            }
            _ => Ok(()),
        });
        (part, result)
    }

    /// Streams the body into the part.
    async fn receive(
        &self,
        part: Part,
        mut response: Response,
        url: &str,
        progress: ProgressFn<'_>,
    ) -> (Part, Result<(), BlobError>) {
        let mut at = part.len();
        progress(at);
        let (sender, pieces) = mpsc::channel::<Bytes>(PIECES_IN_FLIGHT);
        let writer = tokio::task::spawn_blocking(move || write_pieces(part, pieces));
        let received = loop {
            let bytes = match tokio::time::timeout(STALL_TIMEOUT, response.chunk()).await {
                Ok(Ok(None)) => break Ok(()),
                Ok(Ok(Some(bytes))) => bytes,
                Ok(Err(error)) => {
                    let reason = format!("at byte {at}: {}", causes(&error.without_url()));
                    break Err(BlobError::Cut { url: url.to_owned(), reason });
                }
                Err(_) => {
                    let reason = format!("nothing came for {} s at byte {at}", STALL_TIMEOUT.as_secs());
                    break Err(BlobError::Cut { url: url.to_owned(), reason });
                }
            };
            at += bytes.len() as u64;
            if sender.send(bytes).await.is_err() {
                break Ok(()); // the writer failed; its own error says why
            }
            progress(at);
        };
        drop(sender);
        let (part, written) = joined(writer).await;
        (part, written.and(received))
    }

    /// Reads a small blob into memory, verified.
    ///
    /// # Errors
    ///
    /// As [`Blobs::download`] without those of the disk, and [`BlobError::TooLarge`] for more than `limit_bytes`.
    pub async fn get_bytes(&self, digest: Digest, limit_bytes: usize) -> Result<Bytes, BlobError> {
        let path = Self::blob_path(digest);
        let url = self.url(&path);
        let mut backoff = self.retries.backoff();
        let mut tries = 0;
        loop {
            let error = match self.get_bytes_once(&path, &url, limit_bytes).await {
                Ok(bytes) => {
                    let actual = Digest::of(&bytes);
                    return if actual == digest { Ok(bytes) } else { Err(BlobError::WrongDigest { url, actual }) };
                }
                Err(error) => error,
            };
            tries += 1;
            if !error.is_retryable() || tries >= self.retries.idle_tries {
                return Err(error);
            }
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }

    async fn get_bytes_once(&self, path: &str, url: &str, limit_bytes: usize) -> Result<Bytes, BlobError> {
        let response = self.send(self.request(Method::GET, path), STALL_TIMEOUT).await?;
        if !response.status().is_success() {
            return Err(self.refusal(response, url).await);
        }
        if number(&response, header::CONTENT_LENGTH.as_str()).is_some_and(|size| size > limit_bytes as u64) {
            return Err(BlobError::TooLarge { url: url.to_owned(), limit_bytes: limit_bytes as u64 });
        }
        self.body(response, url, limit_bytes).await
    }
}
