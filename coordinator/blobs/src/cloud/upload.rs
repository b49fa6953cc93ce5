//! Resumable uploads by offset, as multipart uploads of the store.
//!
//! Bytes are hashed as they come and gathered until they fill a part, which is sent while the next one fills. A blob
//! smaller than a part is written as one object at its end. Notes name every part that the store has and keep the hash up
//! to it, so an upload goes on behind its last part after a restart, and at another coordinator; until then also what had
//! not filled a part is kept, in memory and up to a limit.

pub(super) use super::progress::part_bytes;
use super::{
    CloudBlobs, CloudBlobsOptions, Inner,
    bucket::{Part, name},
    direct, lock,
    progress::{DIRECT, PART, Progress, UPLOAD, restored},
    publish::Written,
};
use crate::{
    error::BlobError,
    notes::{NoteChange, Notes},
    scrub::now_ms,
    turn::{BODY_SILENT, Turn, WRITER_SILENT},
    uploader::{Announced, Begun, ProjectRoom, UploadStatus, Uploader},
};
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt as _};
use planforge_types::Digest;
use sha2::{Digest as _, Sha256};
use std::{
    collections::HashMap,
    fmt, io,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{sync::Semaphore, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// Requests that write at once: each holds two parts in memory.
const MAX_WRITERS: usize = 24;
/// Bytes of all resting uploads together that have not filled a part and are kept all the same.
const TAILS_MAX_BYTES: u64 = 64 << 20;

/// One open upload.
pub(super) struct Slot {
    pub id: String,
    pub announced: Announced,
    /// Of every part but the last.
    pub part_bytes: u64,
    /// Bytes that the store or the memory has.
    pub offset: AtomicU64,
    /// Its client may write its parts to the store itself: none came through here before one did.
    pub may_be_direct: AtomicBool,
    pub turn: Arc<Turn<Progress>>,
}

/// All open uploads.
pub(super) struct Uploads {
    open: Mutex<HashMap<String, Arc<Slot>>>,
    /// Bytes of resting uploads that only the memory has.
    tails_bytes: AtomicU64,
    writers: Semaphore,
    ttl: Duration,
    /// Of those that never got a byte.
    empty_ttl: Duration,
}

/// A part on its way to the store.
struct Flying {
    part: JoinHandle<Result<Part, BlobError>>,
    /// Hash of everything up to its end.
    hash: Sha256,
}

impl Slot {
    fn new(id: String, announced: Announced, progress: Progress, age: Duration) -> Self {
        let part_bytes = part_bytes(announced.size_bytes);
        let offset = (progress.parts.len() as u64 * part_bytes).min(announced.size_bytes);
        let is_untouched = progress.direct || progress.upload.is_none();
        let may_be_direct = is_untouched && direct::suits(announced.size_bytes, part_bytes);
        let (offset, may_be_direct) = (offset.into(), may_be_direct.into());
        Self { id, announced, part_bytes, offset, may_be_direct, turn: Turn::new(progress, age) }
    }

    /// The object that its parts become.
    fn object(&self, progress: &Progress) -> String {
        if progress.direct { direct::staged(&self.id) } else { name(self.announced.digest) }
    }

    pub fn offset(&self) -> u64 {
        self.offset.load(Ordering::Acquire)
    }

    pub fn status(&self) -> UploadStatus {
        UploadStatus { id: self.id.clone(), offset: self.offset(), size_bytes: self.announced.size_bytes }
    }
}

impl Uploads {
    /// Takes over what notes tell of; what makes no sense is left to the store's own rules.
    pub async fn load(notes: &dyn Notes, options: &CloudBlobsOptions) -> Result<Self, BlobError> {
        let mut uploads = notes.of_kind(UPLOAD).await.map_err(BlobError::Notes)?;
        uploads.extend(notes.of_kind(DIRECT).await.map_err(BlobError::Notes)?);
        let parts = notes.of_kind(PART).await.map_err(BlobError::Notes)?;
        let mut open = HashMap::new();
        let mut changes = Vec::new();
        for note in uploads {
            match restored(&note, &parts) {
                Some((announced, progress)) => {
                    let age = Duration::from_millis(now_ms().saturating_sub(note.at_ms));
                    let slot = Slot::new(note.name.clone(), announced, progress, age);
                    open.insert(note.name, Arc::new(slot));
                }
                None => changes.push(NoteChange::Remove { kind: note.kind, name: note.name }),
            }
        }
        let is_lost = |name: &String| !name.split('/').next().is_some_and(|id| open.contains_key(id));
        let lost = parts.into_iter().map(|part| part.name).filter(is_lost);
        changes.extend(lost.map(|name| NoteChange::Remove { kind: PART, name }));
        if !changes.is_empty() {
            notes.change(changes).await.map_err(BlobError::Notes)?;
        }
        Ok(Self {
            open: Mutex::new(open),
            tails_bytes: AtomicU64::new(0),
            writers: Semaphore::new(MAX_WRITERS),
            ttl: options.upload_ttl,
            empty_ttl: options.empty_upload_ttl,
        })
    }

    pub fn arrived_bytes(&self) -> u64 {
        lock(&self.open).values().map(|slot| slot.offset()).sum()
    }

    pub fn get(&self, id: &str) -> Result<Arc<Slot>, BlobError> {
        lock(&self.open).get(id).cloned().ok_or_else(|| BlobError::upload_unknown(id))
    }

    fn admit(&self, announced: &Announced, project: Option<&ProjectRoom>) -> Result<(), BlobError> {
        let open = lock(&self.open);
        let others = open.values().map(|slot| (&slot.announced.uploader, slot.announced.size_bytes));
        announced.uploader.admit(others, announced.size_bytes, project)
    }

    /// An upload of the same bytes by the same that nobody writes to: a client that lost its way continues it.
    fn adoptable(&self, announced: &Announced) -> Option<Arc<Slot>> {
        let same = |slot: &&Arc<Slot>| {
            slot.announced.uploader.is(&announced.uploader)
                && slot.announced.digest == announced.digest
                && slot.announced.size_bytes == announced.size_bytes
                && slot.turn.silent_for(WRITER_SILENT)
        };
        lock(&self.open).values().filter(same).max_by_key(|slot| slot.offset()).cloned()
    }
}

impl CloudBlobs {
    /// As [`crate::LocalBlobs::begin_upload_for`].
    ///
    /// # Errors
    /// No room, too many uploads, or the store fails.
    pub async fn begin_upload_for(
        &self,
        uploader: Uploader,
        digest: Digest,
        size_bytes: u64,
        may_know: bool,
        project: Option<ProjectRoom>,
    ) -> Result<Begun, BlobError> {
        if may_know && let Some(stored) = self.announce(digest).await? {
            return Begun::of_stored(digest, size_bytes, stored);
        }
        let announced = Announced { digest, size_bytes, uploader };
        let uploads = &self.inner.uploads;
        if let Some(slot) = uploads.adoptable(&announced) {
            slot.turn.touch();
            return Ok(Begun::Upload(slot.status()));
        }
        if uploads.admit(&announced, project.as_ref()).is_err() {
            self.collect_stale_uploads().await;
        }
        uploads.admit(&announced, project.as_ref())?;
        self.inner.has_room(size_bytes, announced.uploader.leaves_reserve)?;
        // 128 random bits: whoever does not know the id cannot touch the upload.
        let id = hex::encode(rand::random::<[u8; 16]>());
        let slot = Slot::new(id.clone(), announced, Progress::default(), Duration::ZERO);
        let status = slot.status();
        lock(&uploads.open).insert(id, Arc::new(slot));
        Ok(Begun::Upload(status))
    }

    /// As [`crate::LocalBlobs::upload_of`].
    ///
    /// # Errors
    /// There is none of that id and uploader.
    pub fn upload_of(&self, uploader: &Uploader, id: &str) -> Result<(Digest, UploadStatus), BlobError> {
        let slot = self.inner.uploads.get(id)?;
        match slot.announced.uploader.is_seen_by(uploader) {
            true => Ok((slot.announced.digest, slot.status())),
            false => Err(BlobError::upload_unknown(id)),
        }
    }

    /// Where an upload stands now.
    ///
    /// # Errors
    /// There is none of that id.
    pub fn upload_status(&self, id: &str) -> Result<UploadStatus, BlobError> {
        Ok(self.inner.uploads.get(id)?.status())
    }

    /// Appends `body` at `offset`. With `complete` these are the last bytes: the blob is confirmed and visible when this
    /// returns. What came before the body broke off, or the store failed, is kept as far as the offset then says.
    ///
    /// Dropping the returned future stops nothing half-way: the work runs in a task of its own.
    ///
    /// # Errors
    /// As of a folder's; and where the store fails.
    pub async fn append<E: fmt::Display + Send + 'static>(
        &self,
        id: &str,
        offset: u64,
        complete: bool,
        body: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
    ) -> Result<UploadStatus, BlobError> {
        let slot = self.inner.uploads.get(id)?;
        let blobs = self.clone();
        let place = self.place().to_string();
        let appended = tokio::spawn(async move { blobs.append_to(slot, offset, complete, body).await }).await;
        appended.unwrap_or_else(|gone| Err(BlobError::io("write", place.as_ref())(io::Error::other(gone))))
    }

    async fn append_to<E: fmt::Display>(
        &self,
        slot: Arc<Slot>,
        offset: u64,
        complete: bool,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
    ) -> Result<UploadStatus, BlobError> {
        let uploads = &self.inner.uploads;
        // The semaphore is never closed; without a permit the upload would only be slower.
        let _permit = uploads.writers.acquire().await.ok();
        let mut writing = slot.turn.claim(&slot.id, || slot.offset()).await?;
        let Some(mut progress) = writing.left.take() else {
            self.end(&slot, &Progress::default()).await;
            return Err(BlobError::UploadUnknown { id: slot.id.clone() });
        };
        uploads.tails_bytes.fetch_sub(progress.tail.len() as u64, Ordering::Relaxed);
        let expected = slot.offset();
        let appended = match expected == offset {
            false => Err(BlobError::OffsetMismatch { id: slot.id.clone(), expected, given: offset }),
            true => {
                if !progress.direct {
                    slot.may_be_direct.store(false, Ordering::Release);
                }
                self.pump(&slot, &mut progress, &writing.cancel, body).await
            }
        };
        let appended = match appended {
            Ok(()) if complete => self.finish(&slot, &mut progress).await,
            other => other,
        };
        if (appended.is_ok() && complete) || appended.as_ref().is_err_and(Self::is_lost) {
            let status = slot.status();
            self.end(&slot, &progress).await;
            return appended.map(|()| status);
        }
        let resting = progress.tail.len() as u64;
        if uploads.tails_bytes.fetch_add(resting, Ordering::Relaxed) + resting > TAILS_MAX_BYTES {
            uploads.tails_bytes.fetch_sub(resting, Ordering::Relaxed);
            self.rewind(&slot, &mut progress);
        }
        writing.left = Some(progress);
        match appended {
            Ok(()) => Ok(slot.status()),
            // The caller hears where it goes on, also where bytes were lost since.
            Err(BlobError::Interrupted { id, reason, .. }) => {
                Err(BlobError::Interrupted { id, offset: slot.offset(), reason })
            }
            Err(other) => Err(other),
        }
    }

    /// Forgets what the store has not.
    fn rewind(&self, slot: &Slot, progress: &mut Progress) {
        progress.rewind();
        let kept = (progress.parts.len() as u64 * slot.part_bytes).min(slot.announced.size_bytes);
        let lost = slot.offset.swap(kept, Ordering::AcqRel).saturating_sub(kept);
        self.inner.taken.left(lost);
    }

    /// Removes an upload and what is noted of it, and gives it up at the store where it was not completed.
    async fn end(&self, slot: &Slot, progress: &Progress) {
        slot.turn.end();
        if lock(&self.inner.uploads.open).remove(&slot.id).is_some() {
            self.inner.taken.left(slot.offset());
        }
        if let Some(upload) = &progress.upload {
            let object = name(slot.announced.digest);
            if progress.direct {
                self.unstage(&slot.id, upload).await;
            } else if self.is_hidden(slot.announced.digest)
                || !matches!(self.find(slot.announced.digest).await, Ok(Some(_)))
            {
                self.inner.bucket.abort(&object, upload).await;
            }
            if let Err(error) = self.note(progress.forgotten(&slot.id)).await {
                tracing::warn!(%error, id = slot.id, "what is noted of an upload stays until the next start");
            }
        }
    }

    /// Takes bytes from the body until it ends, breaks off, falls silent or holds too much.
    async fn pump<E: fmt::Display>(
        &self,
        slot: &Slot,
        progress: &mut Progress,
        cancel: &CancellationToken,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
    ) -> Result<(), BlobError> {
        let mut flying = None;
        let received = self.receive(slot, progress, &mut flying, cancel, body).await;
        let settled = self.settle(slot, progress, &mut flying).await;
        if settled.is_err() || matches!(received, Err(BlobError::Store { .. } | BlobError::Notes(_))) {
            self.rewind(slot, progress);
        }
        received.and(settled)
    }

    async fn receive<E: fmt::Display>(
        &self,
        slot: &Slot,
        progress: &mut Progress,
        flying: &mut Option<Flying>,
        cancel: &CancellationToken,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
    ) -> Result<(), BlobError> {
        let cut = |reason: String| BlobError::Interrupted { id: slot.id.clone(), offset: slot.offset(), reason };
        let size_bytes = slot.announced.size_bytes;
        let mut body = pin!(body);
        loop {
            let piece = tokio::select! {
                biased;
                () = cancel.cancelled() => return Err(cut("another request took over".into())),
                piece = tokio::time::timeout(BODY_SILENT, body.next()) => piece,
            };
            let mut piece = match piece {
                Err(_) => return Err(cut(format!("nothing came for {} s", BODY_SILENT.as_secs()))),
                Ok(None) => return Ok(()),
                Ok(Some(Err(error))) => return Err(cut(error.to_string())),
                Ok(Some(Ok(piece))) => piece,
            };
            slot.turn.touch();
            let bytes = piece.len() as u64;
            if slot.offset() + bytes > size_bytes {
                let (digest, announced_bytes) = (slot.announced.digest, size_bytes);
                return Err(BlobError::SizeMismatch { digest, announced_bytes, received: "more".into() });
            }
            self.inner.taken.arrived(bytes);
            slot.offset.fetch_add(bytes, Ordering::AcqRel);
            self.inner.still_fits(bytes)?;
            while !piece.is_empty() {
                let room = usize::try_from(slot.part_bytes).unwrap_or(usize::MAX) - progress.tail.len();
                let fits = piece.split_to(room.min(piece.len()));
                progress.hasher.update(&fits);
                progress.tail.extend_from_slice(&fits);
                let is_full = progress.tail.len() as u64 == slot.part_bytes;
                if is_full && size_bytes > slot.part_bytes {
                    self.settle(slot, progress, flying).await?;
                    *flying = Some(self.send(slot, progress).await?);
                }
            }
        }
    }

    /// Sends what waits as the next part.
    async fn send(&self, slot: &Slot, progress: &mut Progress) -> Result<Flying, BlobError> {
        let object = slot.object(progress);
        let upload = match progress.upload.clone() {
            Some(upload) => upload,
            None => {
                let upload = self.inner.bucket.begin_multipart(&object).await?;
                progress.upload = Some(upload.clone());
                self.note(progress.kept(&slot.id, &slot.announced)).await?;
                upload
            }
        };
        let (bytes, hash) = progress.take_tail();
        let (bucket, index) = (self.inner.bucket.clone(), progress.parts.len());
        let part = tokio::spawn(async move { bucket.put_part(&object, &upload, index, bytes).await });
        Ok(Flying { part, hash })
    }

    /// Waits for the part on its way, and notes that it is there.
    async fn settle(&self, slot: &Slot, progress: &mut Progress, flying: &mut Option<Flying>) -> Result<(), BlobError> {
        let Some(Flying { part, hash }) = flying.take() else { return Ok(()) };
        let place = self.place().to_string();
        let sent =
            part.await.unwrap_or_else(|gone| Err(BlobError::io("write", place.as_ref())(io::Error::other(gone))));
        progress.sent(sent?, hash);
        self.note(progress.kept(&slot.id, &slot.announced)).await
    }

    /// Checks digest and size of the whole and makes it visible.
    async fn finish(&self, slot: &Slot, progress: &mut Progress) -> Result<(), BlobError> {
        let (digest, announced_bytes, offset) = (slot.announced.digest, slot.announced.size_bytes, slot.offset());
        if offset != announced_bytes {
            return Err(BlobError::SizeMismatch { digest, announced_bytes, received: offset.to_string() });
        }
        let found = progress.digest();
        // What a client wrote to the store itself nobody here has seen yet.
        if !progress.direct && found != digest {
            return Err(BlobError::DigestMismatch { expected: digest, found });
        }
        if progress.upload.is_none() {
            let (bytes, _) = progress.take_tail();
            let published = self.publish(digest, announced_bytes, Written::Whole(bytes.clone()), Vec::new()).await;
            if published.is_err() {
                progress.tail = BytesMut::from(bytes);
            }
            return published;
        }
        if !progress.tail.is_empty() {
            let mut flying = Some(self.send(slot, progress).await?);
            if let Err(error) = self.settle(slot, progress, &mut flying).await {
                self.rewind(slot, progress);
                return Err(error);
            }
        }
        if progress.direct {
            return self.assemble(slot, progress).await;
        }
        let (upload, parts) = (progress.upload.clone().unwrap_or_default(), progress.parts.clone());
        let forgotten = progress.forgotten(&slot.id);
        self.publish(digest, announced_bytes, Written::Parts { upload, parts }, forgotten).await
    }

    /// Gives an upload up and removes its bytes.
    ///
    /// # Errors
    /// There is none of that id, or somebody writes to it.
    pub async fn abandon_upload(&self, id: &str) -> Result<(), BlobError> {
        let slot = self.inner.uploads.get(id)?;
        let mut writing = slot.turn.claim(&slot.id, || slot.offset()).await?;
        let progress = writing.left.take().unwrap_or_default();
        self.inner.uploads.tails_bytes.fetch_sub(progress.tail.len() as u64, Ordering::Relaxed);
        self.end(&slot, &progress).await;
        Ok(())
    }

    /// Gives up uploads that nobody continued for the time to live, and looks at blobs that are not confirmed yet; returns
    /// how many went.
    pub async fn collect_stale_uploads(&self) -> usize {
        self.settle_unconfirmed().await;
        let uploads = &self.inner.uploads;
        let open: Vec<_> = lock(&uploads.open).values().cloned().collect();
        let mut gone = 0;
        for slot in open {
            let ttl = if slot.offset() == 0 { uploads.empty_ttl } else { uploads.ttl };
            let is_stale = !slot.turn.is_written_to() && slot.turn.silent_for(ttl);
            if is_stale && self.abandon_upload(&slot.id).await.is_ok() {
                gone += 1;
            }
        }
        gone
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("bucket", &self.bucket).finish_non_exhaustive()
    }
}
