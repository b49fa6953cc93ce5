//! Resumable uploads by offset.
//!
//! An upload is two files in `staging/`: `<id>.json` says what was announced, `<id>.part` holds the bytes so far, and
//! its length is the offset; so uploads survive a restart. While a request writes, one thread writes to the file and
//! another hashes; the hash is kept between requests and made again from the file after a restart.
//!
//! At most one request writes to an upload. One whose bytes stopped coming gives way to the next, so that a client whose
//! connection died unnoticed need not wait for a timeout.

use super::{Inner, LocalBlobs, blocking, hash_prefix};
use crate::{
    error::BlobError,
    turn::{BODY_SILENT, Turn, WRITER_SILENT, Writing},
    uploader::{Announced, Begun, ProjectRoom, UploadStatus, Uploader},
};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use planforge_types::{Digest, DigestWriter};
use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};
use tokio::sync::{Semaphore, mpsc};

/// Pieces between the connection and the disk: a few, so that neither waits for the other, and memory stays small.
const PIECES_IN_FLIGHT: usize = 8;
/// An upload from which nothing came for this long gives way to others where there is no room.
const RESTING: Duration = Duration::from_secs(10 * 60);
/// The disk is looked at again after so many bytes of an upload.
const LOOK_EVERY_BYTES: u64 = 8 << 20;
/// Requests that write at once; each holds two threads of the blocking pool, which others need too.
const MAX_WRITERS: usize = 64;

/// One open upload.
#[derive(Debug)]
pub(super) struct UploadSlot {
    pub(super) id: String,
    pub(super) digest: Digest,
    pub(super) size_bytes: u64,
    pub(super) uploader: Uploader,
    part: PathBuf,
    /// Bytes that are in the part file.
    offset: AtomicU64,
    /// Bytes that count against the farm's quota: those in the file, and those on their way to it.
    taken: AtomicU64,
    /// Leaves the hash of the first `offset` bytes to the next writer; `None` after a restart.
    turn: Arc<Turn<Option<DigestWriter>>>,
}

/// A request that writes to an upload.
struct Writer {
    slot: Arc<UploadSlot>,
    writing: Writing<Option<DigestWriter>>,
}

impl Writer {
    /// The hash of what is there, where it is known.
    fn take_hasher(&mut self) -> Option<DigestWriter> {
        self.writing.left.take().flatten()
    }
}

/// All open uploads.
#[derive(Debug)]
pub(super) struct Uploads {
    open: Mutex<HashMap<String, Arc<UploadSlot>>>,
    /// Bytes of open uploads that arrived.
    arrived_bytes: AtomicU64,
    ttl: Duration,
    /// Of those that never got a byte.
    empty_ttl: Duration,
    writers: Semaphore,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while a lock is held leaves counters at worst one step behind; refusing every later upload would be worse.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl UploadSlot {
    fn new(staging: &Path, id: String, announced: &Announced, offset: u64, age: Duration) -> Self {
        Self {
            part: part_path(staging, &id),
            id,
            digest: announced.digest,
            size_bytes: announced.size_bytes,
            uploader: announced.uploader.clone(),
            offset: offset.into(),
            taken: offset.into(),
            turn: Turn::new((offset == 0).then(DigestWriter::new), age),
        }
    }

    fn offset(&self) -> u64 {
        self.offset.load(Ordering::Acquire)
    }

    fn status(&self) -> UploadStatus {
        UploadStatus { id: self.id.clone(), offset: self.offset(), size_bytes: self.size_bytes }
    }

    fn touch(&self) {
        self.turn.touch();
    }

    fn silent_for(&self, pause: Duration) -> bool {
        self.turn.silent_for(pause)
    }

    /// Becomes the one writer, after a silent one was sent away.
    async fn claim(self: &Arc<Self>) -> Result<Writer, BlobError> {
        let writing = self.turn.claim(&self.id, || self.offset()).await?;
        Ok(Writer { slot: self.clone(), writing })
    }
}

impl Uploads {
    /// Takes over what a former process left in `staging`; what cannot be continued is removed.
    pub(super) fn load(staging: &Path, ttl: Duration, empty_ttl: Duration) -> Result<Self, BlobError> {
        let mut open = HashMap::new();
        let entries: Vec<_> =
            fs::read_dir(staging).and_then(Iterator::collect).map_err(BlobError::io("list", staging))?;
        for path in entries.iter().map(fs::DirEntry::path) {
            let extension = path.extension().and_then(|e| e.to_str());
            if extension == Some("json") {
                match resume(staging, &path) {
                    Some(slot) => drop(open.insert(slot.id.clone(), Arc::new(slot))),
                    None => remove_files(staging, &path.file_stem().unwrap_or_default().to_string_lossy()),
                }
            } else if extension != Some("part") || !path.with_extension("json").exists() {
                remove(&path);
            }
        }
        let arrived: u64 = open.values().map(|slot: &Arc<UploadSlot>| slot.offset()).sum();
        let writers = Semaphore::new(MAX_WRITERS);
        let uploads = Self { open: Mutex::new(open), arrived_bytes: arrived.into(), ttl, empty_ttl, writers };
        uploads.collect_stale(staging);
        Ok(uploads)
    }

    pub(super) fn arrived_bytes(&self) -> u64 {
        self.arrived_bytes.load(Ordering::Relaxed)
    }

    /// Whether another upload may be opened.
    fn admit(&self, announced: &Announced, project: Option<&ProjectRoom>) -> Result<(), BlobError> {
        let open = lock(&self.open);
        let others = open.values().map(|slot| (&slot.uploader, slot.size_bytes));
        announced.uploader.admit(others, announced.size_bytes, project)
    }

    fn get(&self, id: &str) -> Result<Arc<UploadSlot>, BlobError> {
        lock(&self.open).get(id).cloned().ok_or_else(|| BlobError::upload_unknown(id))
    }

    /// An upload of the same bytes that nobody writes to: a client that lost its way continues it.
    fn adoptable(&self, announced: &Announced) -> Option<Arc<UploadSlot>> {
        let same = |slot: &&Arc<UploadSlot>| {
            // Somebody else's may hold bytes that this caller does not have.
            slot.uploader.is(&announced.uploader)
                && slot.digest == announced.digest
                && slot.size_bytes == announced.size_bytes
                && slot.silent_for(WRITER_SILENT)
        };
        lock(&self.open).values().filter(same).max_by_key(|slot| slot.offset()).cloned()
    }

    /// Removes the upload and its files.
    fn end(&self, staging: &Path, slot: &UploadSlot) {
        slot.turn.end();
        if lock(&self.open).remove(&slot.id).is_some() {
            self.arrived_bytes.fetch_sub(slot.taken.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        remove_files(staging, &slot.id);
    }

    /// Removes uploads that nobody continued for the time to live, or that never got a byte for theirs; returns how many.
    fn collect_stale(&self, staging: &Path) -> usize {
        self.collect(staging, |slot| slot.silent_for(if slot.offset() == 0 { self.empty_ttl } else { self.ttl }))
    }

    /// Removes uploads that rest, because there is no room for those that move; returns how many.
    pub(super) fn give_way(&self, staging: &Path) -> usize {
        self.collect(staging, |slot| slot.silent_for(RESTING))
    }

    /// Removes what `goes` says, but for what is being written to.
    fn collect(&self, staging: &Path, goes: impl Fn(&UploadSlot) -> bool) -> usize {
        let slots: Vec<_> = lock(&self.open).values().cloned().collect();
        let idle = |slot: &&Arc<UploadSlot>| !slot.turn.is_written_to() && goes(slot);
        let gone: Vec<_> = slots.iter().filter(idle).collect();
        gone.iter().for_each(|slot| self.end(staging, slot));
        gone.len()
    }
}

impl LocalBlobs {
    /// Announces a blob, as nobody in particular who may know what is stored.
    pub async fn begin_upload(&self, digest: Digest, size_bytes: u64) -> Result<Begun, BlobError> {
        self.begin_upload_for(Uploader::default(), digest, size_bytes, true, None).await
    }

    /// Announces a blob. Refused at once when there is no room for it, or when the uploader, or its project, has as much
    /// as it may. Only who `may_know` hears that the blob is here; everybody else sends the bytes.
    pub async fn begin_upload_for(
        &self,
        uploader: Uploader,
        digest: Digest,
        size_bytes: u64,
        may_know: bool,
        project: Option<ProjectRoom>,
    ) -> Result<Begun, BlobError> {
        let inner = self.inner.clone();
        blocking(move || {
            if may_know && let Some(stored) = inner.announce(digest)? {
                return Begun::of_stored(digest, size_bytes, stored);
            }
            let announced = Announced { digest, size_bytes, uploader };
            if let Some(slot) = inner.uploads.adoptable(&announced) {
                slot.touch();
                return Ok(Begun::Upload(slot.status()));
            }
            let staging = inner.staging();
            let admitted = match inner.uploads.admit(&announced, project.as_ref()) {
                Err(_) if inner.uploads.collect_stale(&staging) > 0 => {
                    inner.uploads.admit(&announced, project.as_ref())
                }
                other => other,
            };
            admitted?;
            inner.check_room(size_bytes, announced.uploader.leaves_reserve)?;
            let slot = UploadSlot::new(&staging, new_id(), &announced, 0, Duration::ZERO);
            create_files(&staging, &slot.id, &announced)?;
            let status = slot.status();
            lock(&inner.uploads.open).insert(slot.id.clone(), Arc::new(slot));
            Ok(Begun::Upload(status))
        })
        .await
    }

    /// What was announced under an id, by this uploader; to others it does not exist.
    pub fn upload_of(&self, uploader: &Uploader, id: &str) -> Result<(Digest, UploadStatus), BlobError> {
        let slot = self.inner.uploads.get(id)?;
        match slot.uploader.is_seen_by(uploader) {
            true => Ok((slot.digest, slot.status())),
            false => Err(BlobError::upload_unknown(id)),
        }
    }

    /// Where an upload stands now.
    pub fn upload_status(&self, id: &str) -> Result<UploadStatus, BlobError> {
        Ok(self.inner.uploads.get(id)?.status())
    }

    /// Appends `body` at `offset`. With `complete` these are the last bytes: the digest is checked, and the blob is
    /// durable and visible when this returns. When the body breaks off, what came is kept. A wrong digest, a wrong size
    /// or a full disk ends the upload and removes its bytes.
    ///
    /// Dropping the returned future stops nothing half-way: the work runs in a task of its own.
    pub async fn append<E: std::fmt::Display + Send + 'static>(
        &self,
        id: &str,
        offset: u64,
        complete: bool,
        body: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
    ) -> Result<UploadStatus, BlobError> {
        let slot = self.inner.uploads.get(id)?;
        let blobs = self.clone();
        let path = slot.part.clone();
        let appended = tokio::spawn(async move { blobs.append_to(slot, offset, complete, body).await }).await;
        appended.unwrap_or_else(|gone| Err(BlobError::io("write", &path)(io::Error::other(gone))))
    }

    async fn append_to<E: std::fmt::Display>(
        &self,
        slot: Arc<UploadSlot>,
        offset: u64,
        complete: bool,
        body: impl Stream<Item = Result<Bytes, E>>,
    ) -> Result<UploadStatus, BlobError> {
        let mut writing = slot.claim().await?;
        let expected = slot.offset();
        if expected != offset {
            return Err(BlobError::OffsetMismatch { id: slot.id.clone(), expected, given: offset });
        }
        let appended = self.pump(&mut writing, body).await;
        let published = match appended {
            Ok(()) if complete => self.finish(&mut writing).await,
            other => other,
        };
        if let Err(error) = published {
            if !matches!(error, BlobError::Interrupted { .. }) {
                self.inner.uploads.end(&self.inner.staging(), &slot);
            }
            return Err(self.inner.describe_full(error, &slot));
        }
        let status = slot.status();
        if complete {
            self.inner.uploads.end(&self.inner.staging(), &slot);
        }
        Ok(status)
    }

    /// Gives an upload up and removes its bytes.
    pub async fn abandon_upload(&self, id: &str) -> Result<(), BlobError> {
        let slot = self.inner.uploads.get(id)?;
        let _writing = slot.claim().await?;
        self.inner.uploads.end(&self.inner.staging(), &slot);
        Ok(())
    }

    /// Removes uploads that nobody continued for the time to live; returns how many.
    pub async fn collect_stale_uploads(&self) -> usize {
        let inner = self.inner.clone();
        blocking(move || Ok(inner.uploads.collect_stale(&inner.staging()))).await.unwrap_or(0)
    }

    /// Moves the body to the disk and through the hash, each on a thread of its own.
    async fn pump<E: std::fmt::Display>(
        &self,
        writing: &mut Writer,
        body: impl Stream<Item = Result<Bytes, E>>,
    ) -> Result<(), BlobError> {
        // The semaphore is never closed; without a permit the upload would only be slower.
        let _permit = self.inner.uploads.writers.acquire().await.ok();
        let slot = writing.slot.clone();
        let (to_disk, disk_pieces) = mpsc::channel(PIECES_IN_FLIGHT);
        let (to_hash, hash_pieces) = mpsc::channel(PIECES_IN_FLIGHT);
        let writer = tokio::task::spawn_blocking({
            let slot = slot.clone();
            move || write_pieces(&slot, disk_pieces)
        });
        let hasher = tokio::task::spawn_blocking({
            let (slot, known) = (slot.clone(), writing.take_hasher());
            let at = slot.offset();
            move || hash_pieces_from(&slot.part, known, at, hash_pieces)
        });
        let received = receive(&self.inner, writing, body, &to_disk, &to_hash).await;
        drop((to_disk, to_hash));
        let joined = |gone| BlobError::io("write", &slot.part)(io::Error::other(gone));
        let written = writer.await.map_err(joined)?;
        writing.writing.left = Some(Some(hasher.await.map_err(joined)??));
        written.and(received)
    }

    /// Checks digest and size of the whole and makes it visible.
    async fn finish(&self, writing: &mut Writer) -> Result<(), BlobError> {
        let slot = writing.slot.clone();
        let (digest, announced_bytes, offset) = (slot.digest, slot.size_bytes, slot.offset());
        if offset != announced_bytes {
            return Err(BlobError::SizeMismatch { digest, announced_bytes, received: offset.to_string() });
        }
        let found = writing.take_hasher().unwrap_or_default().finish();
        if found != digest {
            return Err(BlobError::DigestMismatch { expected: digest, found });
        }
        let inner = self.inner.clone();
        blocking(move || {
            let file = File::open(&slot.part).map_err(BlobError::io("open", &slot.part))?;
            inner.publish(&file, &slot.part, digest, announced_bytes)
        })
        .await
    }
}

/// Hands every piece to both threads until the body ends, breaks off, falls silent or holds too much.
async fn receive<E: std::fmt::Display>(
    blobs: &Inner,
    writing: &Writer,
    body: impl Stream<Item = Result<Bytes, E>>,
    to_disk: &mpsc::Sender<Bytes>,
    to_hash: &mpsc::Sender<Bytes>,
) -> Result<(), BlobError> {
    let slot = &writing.slot;
    let cut = |reason: String| BlobError::Interrupted { id: slot.id.clone(), offset: slot.offset(), reason };
    let mut room = slot.size_bytes - slot.offset();
    let mut unlooked = LOOK_EVERY_BYTES;
    let mut body = pin!(body);
    loop {
        let piece = tokio::select! {
            biased;
            () = writing.writing.cancel.cancelled() => return Err(cut("another request took over".into())),
            piece = tokio::time::timeout(BODY_SILENT, body.next()) => piece,
        };
        let piece = match piece {
            Err(_) => return Err(cut(format!("nothing came for {} s", BODY_SILENT.as_secs()))),
            Ok(None) => return Ok(()),
            Ok(Some(Err(error))) => return Err(cut(error.to_string())),
            Ok(Some(Ok(piece))) => piece,
        };
        slot.touch();
        let Some(left) = room.checked_sub(piece.len() as u64) else {
            let (digest, announced_bytes) = (slot.digest, slot.size_bytes);
            return Err(BlobError::SizeMismatch { digest, announced_bytes, received: "more".into() });
        };
        room = left;
        let bytes = piece.len() as u64;
        slot.taken.fetch_add(bytes, Ordering::Relaxed);
        blobs.uploads.arrived_bytes.fetch_add(bytes, Ordering::Relaxed);
        unlooked = unlooked.saturating_add(bytes);
        blobs.still_fits(bytes, unlooked >= LOOK_EVERY_BYTES)?;
        unlooked %= LOOK_EVERY_BYTES;
        // A thread that is gone has failed; its own error says why.
        if to_hash.send(piece.clone()).await.is_err() || to_disk.send(piece).await.is_err() {
            return Ok(());
        }
    }
}

fn write_pieces(slot: &UploadSlot, mut pieces: mpsc::Receiver<Bytes>) -> Result<(), BlobError> {
    let path = &slot.part;
    let mut file = OpenOptions::new().append(true).open(path).map_err(BlobError::io("open", path))?;
    while let Some(piece) = pieces.blocking_recv() {
        file.write_all(&piece).map_err(BlobError::io("write", path))?;
        slot.offset.fetch_add(piece.len() as u64, Ordering::Release);
    }
    Ok(())
}

/// Continues `known`, or hashes the first `at` bytes of the file anew, then everything that comes.
fn hash_pieces_from(
    part: &Path,
    known: Option<DigestWriter>,
    at: u64,
    mut pieces: mpsc::Receiver<Bytes>,
) -> Result<DigestWriter, BlobError> {
    let mut hasher = known.unwrap_or_default();
    if hasher.bytes() != at {
        hasher = DigestWriter::new();
        let file = File::open(part).map_err(BlobError::io("open", part))?;
        hash_prefix(&file, at, &mut hasher).map_err(BlobError::io("read", part))?;
    }
    while let Some(piece) = pieces.blocking_recv() {
        hasher.update(&piece);
    }
    Ok(hasher)
}

/// 128 random bits: whoever does not know the id cannot touch the upload.
fn new_id() -> String {
    hex::encode(rand::random::<[u8; 16]>())
}

fn part_path(staging: &Path, id: &str) -> PathBuf {
    staging.join(format!("{id}.part"))
}

fn json_path(staging: &Path, id: &str) -> PathBuf {
    staging.join(format!("{id}.json"))
}

/// Neither file is fsynced: after a power cut the client begins anew, and the digest tells whether bytes are right.
fn create_files(staging: &Path, id: &str, announced: &Announced) -> Result<(), BlobError> {
    let (part, json) = (part_path(staging, id), json_path(staging, id));
    let text = serde_json::to_vec(announced).map_err(|e| BlobError::io("encode", &json)(e.into()))?;
    let created = File::create_new(&part)
        .map_err(BlobError::io("create", &part))
        .and_then(|_| fs::write(&json, text).map_err(BlobError::io("write", &json)));
    if created.is_err() {
        remove_files(staging, id);
    }
    created
}

/// An upload as its files describe it; `None` when they make no sense.
fn resume(staging: &Path, json: &Path) -> Option<UploadSlot> {
    let id = json.file_stem()?.to_str()?.to_owned();
    let announced: Announced = serde_json::from_slice(&fs::read(json).ok()?).ok()?;
    let metadata = fs::metadata(part_path(staging, &id)).ok()?;
    if metadata.len() > announced.size_bytes {
        return None;
    }
    let age = metadata.modified().ok().and_then(|t| SystemTime::now().duration_since(t).ok()).unwrap_or_default();
    Some(UploadSlot::new(staging, id, &announced, metadata.len(), age))
}

fn remove_files(staging: &Path, id: &str) {
    remove(&json_path(staging, id));
    remove(&part_path(staging, id));
}

fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "cannot remove a staged file");
        }
        _ => {}
    }
}
