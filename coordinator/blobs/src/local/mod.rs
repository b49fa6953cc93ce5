//! Blobs in a folder: `sha256/ab/<hex>` for what is visible, `staging/` for what is not yet, `quarantine/` for what
//! turned out to be damaged.
//!
//! # Crash safety
//!
//! A blob appears under its final name by rename, after its digest was checked and its bytes were fsynced; so what is
//! visible is whole, and what a crash leaves lies in `staging/` and is resumed or collected. No repair step is needed.
//!
//! `sweep` removes what nothing names any more.
//!
//! # Damage
//!
//! A published file carries a fixed modification time. A file without it was written to by somebody else (or restored
//! from a copy): it is hashed before it is served, and moved to quarantine when its digest does not match. Damage below
//! the filesystem changes no times; [`LocalBlobs::verify`] and [`LocalBlobs::scrub`] find it, in the background too, and
//! every client checks the digest of what it receives. What was set aside is no longer there for anybody; the same bytes
//! stored again take its place.

mod copy;
mod published;
mod scrub;
mod sweep;
mod upload;

pub use copy::{How, check_blob, copy_blob};

use crate::{
    error::{BlobError, Room},
    scrub::Scrub,
};
use bytes::Bytes;
use futures::{FutureExt, StreamExt, future::BoxFuture, stream, stream::BoxStream};
use planforge_proto::ApiError;
use planforge_types::{Digest, DigestWriter, durable};
use std::{
    fs::{self, File},
    io::{self, Write},
    ops::Range,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};
use upload::{UploadSlot, Uploads};

/// Bytes read at once when a blob is served: large enough that one trip to a blocking thread costs nothing beside it.
const READ_CHUNK_BYTES: u64 = 512 * 1024;
/// Bytes read at once when a blob is hashed.
const HASH_CHUNK_BYTES: usize = 256 * 1024;

/// Limits of a blob folder.
#[derive(Clone, Debug)]
pub struct LocalBlobsOptions {
    /// Most bytes that all blobs and open uploads together may take; `None`: the disk decides.
    pub max_bytes: Option<u64>,
    /// Space left free on the disk, so that the database can still commit when blobs have filled the rest.
    pub min_free_bytes: u64,
    /// Space beyond that which new work leaves to the ends of jobs that run: to plans, reports and logs. Of a small disk or
    /// quota a twentieth is enough.
    pub reserve_bytes: u64,
    /// An upload that nobody continued for this long is removed.
    pub upload_ttl: Duration,
    /// One that never got a byte, after this long.
    pub empty_upload_ttl: Duration,
    /// Folders that may have other copies: what is damaged here is taken from there. Laid out as this one, or with files
    /// named by their digests.
    pub copies: Vec<PathBuf>,
}

impl Default for LocalBlobsOptions {
    fn default() -> Self {
        Self {
            max_bytes: None,
            min_free_bytes: 64 << 20,
            reserve_bytes: RESERVE_BYTES,
            upload_ttl: Duration::from_secs(24 * 3600),
            empty_upload_ttl: Duration::from_secs(2 * 60),
            copies: Vec::new(),
        }
    }
}

/// A folder of blobs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LocalBlobs {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    options: LocalBlobsOptions,
    /// Bytes of visible blobs; counted only when there is a quota.
    used_bytes: AtomicU64,
    uploads: Uploads,
    scrub: Scrub,
    /// Makes names of temporary files unique within this process.
    temporary: AtomicU64,
    /// Taken, by the digest's first digit, while a blob becomes visible: of two uploads of one blob one counts.
    publishing: [Mutex<()>; PUBLISHING],
}

/// A reserve is at most this part of what it is kept from.
pub(crate) const RESERVE_PART: u64 = 20;
/// And usually at most so large.
pub(crate) const RESERVE_BYTES: u64 = 512 << 20;
/// Blobs that may become visible at once.
const PUBLISHING: usize = 16;

impl LocalBlobs {
    /// Opens or creates the folder. Uploads that a former process left are offered again, temporary files are removed.
    /// Reads no blob, but counts them when there is a quota.
    pub fn open(root: impl Into<PathBuf>, options: LocalBlobsOptions) -> Result<Self, BlobError> {
        let root = root.into();
        for folder in ["sha256", "staging", "quarantine"] {
            let path = root.join(folder);
            durable::create_private_dir(&path).map_err(BlobError::io("create folder", &path))?;
        }
        let used_bytes = match options.max_bytes {
            Some(_) => visible(&root)?.iter().map(|(_, size)| size).sum(),
            None => 0,
        };
        let uploads = Uploads::load(&root.join("staging"), options.upload_ttl, options.empty_upload_ttl)?;
        let inner = Inner {
            scrub: Scrub::load(&root),
            root,
            options,
            used_bytes: used_bytes.into(),
            uploads,
            temporary: AtomicU64::new(0),
            publishing: Default::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Where a blob lies or would lie.
    pub fn path(&self, digest: Digest) -> PathBuf {
        self.inner.path(digest)
    }

    /// Bytes that blobs may still take, by quota and by disk, open uploads counted by what arrived.
    pub fn available_bytes(&self) -> Result<u64, BlobError> {
        self.inner.available_bytes()
    }

    /// Hashes a visible blob; a damaged one is moved to quarantine and named in the error.
    pub async fn verify(&self, digest: Digest) -> Result<(), BlobError> {
        let inner = self.inner.clone();
        blocking(move || inner.verify(digest)).await
    }

    /// Why a blob that is not visible is not.
    pub fn why_missing(&self, digest: Digest) -> BlobError {
        self.inner.missing(digest)
    }

    /// Whether any blob is visible.
    pub fn has_some(&self) -> Result<bool, BlobError> {
        Ok(!visible(&self.inner.root)?.is_empty())
    }

    /// As [`Self::has_some`] of a folder that nobody has opened, or that is not there yet.
    pub fn has_some_in(root: &Path) -> Result<bool, BlobError> {
        if !root.join("sha256").exists() {
            return Ok(false);
        }
        Ok(!visible(root)?.is_empty())
    }

    /// Every visible blob with its bytes, in the order of digests.
    pub async fn list(&self) -> Result<Vec<(Digest, u64)>, BlobError> {
        let inner = self.inner.clone();
        let mut found = blocking(move || visible(&inner.root)).await?;
        found.sort();
        Ok(found)
    }

    /// Size of a visible blob.
    pub async fn find(&self, digest: Digest) -> Result<Option<u64>, BlobError> {
        let inner = self.inner.clone();
        blocking(move || inner.size(digest)).await
    }

    /// Streams `range` of a visible blob, reading one chunk ahead. The range must lie inside the blob.
    pub async fn open_range(
        &self,
        digest: Digest,
        range: Range<u64>,
    ) -> Result<BoxStream<'static, Result<Bytes, BlobError>>, BlobError> {
        let inner = self.inner.clone();
        // Opened and begun in one piece of work: what is read most often is shorter than a chunk.
        let (file, path, first, offset) = blocking(move || {
            let (file, path) = inner.open_checked(digest)?;
            let length = READ_CHUNK_BYTES.min(range.end.saturating_sub(range.start));
            let first = read_exact(&file, range.start, length as usize).map_err(BlobError::io("read blob", &path))?;
            Ok((file, path, first, range.start + length))
        })
        .await?;
        let rest = read_ahead(Arc::new(file), path, offset..range.end);
        Ok(match first.is_empty() {
            true => rest,
            false => stream::once(std::future::ready(Ok(first))).chain(rest).boxed(),
        })
    }

    /// Stores a small blob in one call.
    pub async fn store(&self, bytes: Bytes) -> Result<Digest, BlobError> {
        let inner = self.inner.clone();
        blocking(move || inner.store(&bytes)).await
    }
}

/// Where a blob lies below the folder of a store, or would lie.
pub fn blob_path(root: &Path, digest: Digest) -> PathBuf {
    let hex = digest.to_string();
    root.join("sha256").join(&hex[..2]).join(hex)
}

impl Inner {
    fn path(&self, digest: Digest) -> PathBuf {
        blob_path(&self.root, digest)
    }

    fn quarantine(&self) -> PathBuf {
        self.root.join("quarantine")
    }

    /// Held while a blob becomes visible or stops being so.
    fn turn(&self, digest: Digest) -> MutexGuard<'_, ()> {
        let turn = &self.publishing[usize::from(digest.as_raw()[0]) % PUBLISHING];
        turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn staging(&self) -> PathBuf {
        self.root.join("staging")
    }

    fn size(&self, digest: Digest) -> Result<Option<u64>, BlobError> {
        Ok(self.look_up(&self.path(digest))?.map(|metadata| metadata.len()))
    }

    /// What the system says of a blob's file, where there is one.
    fn look_up(&self, path: &Path) -> Result<Option<fs::Metadata>, BlobError> {
        match fs::metadata(path) {
            Ok(metadata) => Ok(Some(metadata)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(BlobError::io("look up blob", path)(error)),
        }
    }

    /// Opens a blob for reading; one that was written to since it was published is hashed first.
    fn open_checked(&self, digest: Digest) -> Result<(File, PathBuf), BlobError> {
        let path = self.path(digest);
        let file = self.open(digest, &path)?;
        let metadata = file.metadata().map_err(BlobError::io("look up blob", &path))?;
        if !published::is_unmodified(&metadata) {
            self.verify(digest)?;
        }
        Ok((file, path))
    }

    fn open(&self, digest: Digest, path: &Path) -> Result<File, BlobError> {
        File::open(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => self.missing(digest),
            _ => BlobError::io("open blob", path)(error),
        })
    }

    fn verify(&self, digest: Digest) -> Result<(), BlobError> {
        let path = self.path(digest);
        let file = self.open(digest, &path)?;
        let (found, _) = hash_file(&file).map_err(BlobError::io("read blob", &path))?;
        self.judge(digest, &file, found)
    }

    /// Whether the bytes of a blob are those that its digest names; else it is set aside.
    fn judge(&self, digest: Digest, file: &File, found: Digest) -> Result<(), BlobError> {
        if found == digest {
            let path = self.path(digest);
            let marked = file.metadata().and_then(|facts| match published::is_unmodified(&facts) {
                true => Ok(()),
                false => published::mark_unmodified(file),
            });
            return marked.map_err(BlobError::io("mark blob", &path));
        }
        Err(self.set_aside(digest, file, format!("its bytes hash to sha256:{found}"))?)
    }

    /// Moves a damaged blob to quarantine, and returns the error that says so. One that was stored anew meanwhile stays.
    fn set_aside(&self, digest: Digest, file: &File, reason: String) -> Result<BlobError, BlobError> {
        let (path, target) = (self.path(digest), self.quarantine().join(digest.to_string()));
        let turn = self.turn(digest);
        let damaged = file.metadata().map_err(BlobError::io("look up blob", &path))?;
        let is_it = |there: &fs::Metadata| (there.dev(), there.ino()) == (damaged.dev(), damaged.ino());
        if fs::metadata(&path).is_ok_and(|there| is_it(&there)) {
            fs::rename(&path, &target).map_err(BlobError::io("move to quarantine", &path))?;
            self.forget_bytes(damaged.len());
            tracing::error!(%digest, reason, path = %target.display(), "a stored blob is damaged and was set aside");
        }
        drop(turn);
        self.heal(digest);
        Ok(BlobError::Corrupt { digest, reason })
    }

    /// Why a blob is not there.
    fn missing(&self, digest: Digest) -> BlobError {
        match self.quarantine().join(digest.to_string()).exists() {
            true => BlobError::Quarantined { digest },
            false => BlobError::NotFound { digest },
        }
    }

    fn store(&self, bytes: &[u8]) -> Result<Digest, BlobError> {
        let digest = Digest::of(bytes);
        if self.announce(digest)?.is_some() {
            return Ok(digest);
        }
        self.check_room(bytes.len() as u64, false)?;
        let number = self.temporary.fetch_add(1, Ordering::Relaxed);
        let staged = self.staging().join(format!("{digest}-{number}.tmp"));
        let written = File::create_new(&staged).map_err(BlobError::io("create", &staged)).and_then(|mut file| {
            file.write_all(bytes).map_err(BlobError::io("write", &staged))?;
            self.publish(&file, &staged, digest, bytes.len() as u64)
        });
        if written.is_err() {
            // The error is what counts; a file that cannot be removed now is removed at the next start.
            let _ = fs::remove_file(&staged);
        }
        written.map(|()| digest)
    }

    /// Makes a staged file, whose digest was checked, visible.
    fn publish(&self, file: &File, staged: &Path, digest: Digest, size: u64) -> Result<(), BlobError> {
        let target = self.path(digest);
        let _turn = self.turn(digest);
        let known = self.size(digest)?.is_some();
        published::publish(file, staged, &target).map_err(BlobError::io("publish blob", &target))?;
        // Whole again: what was set aside is of no use any more.
        let healed = fs::remove_file(self.quarantine().join(digest.to_string())).is_ok();
        if healed {
            tracing::info!(%digest, "a blob that was set aside as damaged is stored again");
        }
        if !known {
            self.used_bytes.fetch_add(size, Ordering::Relaxed);
        }
        Ok(())
    }

    fn forget_bytes(&self, size: u64) {
        let less = |used: u64| Some(used.saturating_sub(size));
        // The closure always returns a value, so this cannot fail.
        let _ = self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    fn available_bytes(&self) -> Result<u64, BlobError> {
        Ok(self.on_disk()?.min(self.within_quota()))
    }

    fn disk(&self) -> Result<rustix::fs::StatVfs, BlobError> {
        rustix::fs::statvfs(&self.root).map_err(|error| BlobError::io("ask for free space", &self.root)(error.into()))
    }

    /// What arrived lies on the disk already.
    fn on_disk(&self) -> Result<u64, BlobError> {
        let stat = self.disk()?;
        Ok((stat.f_bavail * stat.f_frsize).saturating_sub(self.options.min_free_bytes))
    }

    /// What new work leaves alone of a room of `size_bytes`.
    fn reserve_of(&self, size_bytes: u64) -> u64 {
        self.options.reserve_bytes.min(size_bytes / RESERVE_PART)
    }

    /// Whether there is more than what is kept for the ends of jobs that run.
    fn room_for_work(&self) -> Result<(), BlobError> {
        let stat = self.disk()?;
        let mut rooms = vec![(Room::Disk, self.on_disk()?, self.reserve_of(stat.f_blocks * stat.f_frsize))];
        rooms.extend(self.options.max_bytes.map(|max| (Room::FarmQuota, self.within_quota(), self.reserve_of(max))));
        match rooms.into_iter().find(|(_, available_bytes, reserve_bytes)| available_bytes < reserve_bytes) {
            Some((room, available_bytes, reserve_bytes)) => {
                Err(BlobError::Reserved { room, path: self.root.clone(), available_bytes, reserve_bytes })
            }
            None => Ok(()),
        }
    }

    fn within_quota(&self) -> u64 {
        self.options.max_bytes.map_or(u64::MAX, |max| {
            let used = self.used_bytes.load(Ordering::Relaxed);
            max.saturating_sub(used).saturating_sub(self.uploads.arrived_bytes())
        })
    }

    /// Whether there is room, once uploads that nobody continues gave way where there is none.
    fn check_room(&self, needed_bytes: u64, leaves_reserve: bool) -> Result<(), BlobError> {
        match self.has_room(needed_bytes, leaves_reserve) {
            Err(BlobError::Full { .. }) if self.uploads.give_way(&self.staging()) > 0 => {
                self.has_room(needed_bytes, leaves_reserve)
            }
            other => other,
        }
    }

    fn has_room(&self, needed_bytes: u64, leaves_reserve: bool) -> Result<(), BlobError> {
        let (mut disk, quota) = (self.on_disk()?, self.within_quota());
        if leaves_reserve {
            let stat = self.disk()?;
            disk = disk.saturating_sub(self.reserve_of(stat.f_blocks * stat.f_frsize));
        }
        let (room, available_bytes) = if quota < disk { (Room::FarmQuota, quota) } else { (Room::Disk, disk) };
        if needed_bytes > available_bytes {
            return Err(BlobError::Full { room, path: self.root.clone(), needed_bytes, available_bytes });
        }
        Ok(())
    }

    /// Whether a piece that arrived, and counts already, still fits. Looks at the disk where `look` says so.
    fn still_fits(&self, piece_bytes: u64, look: bool) -> Result<(), BlobError> {
        match self.has_room_for_arrived(piece_bytes, look) {
            Err(BlobError::Full { .. }) if self.uploads.give_way(&self.staging()) > 0 => {
                self.has_room_for_arrived(piece_bytes, look)
            }
            other => other,
        }
    }

    fn has_room_for_arrived(&self, needed_bytes: u64, look: bool) -> Result<(), BlobError> {
        let taken = self.used_bytes.load(Ordering::Relaxed).saturating_add(self.uploads.arrived_bytes());
        let full = |room, available_bytes| {
            Err(BlobError::Full { room, path: self.root.clone(), needed_bytes, available_bytes })
        };
        if self.options.max_bytes.is_some_and(|max| taken > max) {
            return full(Room::FarmQuota, 0);
        }
        match look.then(|| self.on_disk()).transpose()? {
            Some(disk) if disk < needed_bytes => full(Room::Disk, disk),
            _ => Ok(()),
        }
    }

    /// Says how much room there was when a write found none.
    fn describe_full(&self, error: BlobError, slot: &UploadSlot) -> BlobError {
        match error {
            BlobError::Full { room, path, .. } => BlobError::Full {
                room,
                path,
                needed_bytes: slot.size_bytes,
                available_bytes: self.available_bytes().unwrap_or(0),
            },
            other => other,
        }
    }
}

blob_store!(LocalBlobs);

/// Every visible blob with its size. Names that are no digests are passed over.
fn visible(root: &Path) -> Result<Vec<(Digest, u64)>, BlobError> {
    let top = root.join("sha256");
    let list = |folder: &Path| -> io::Result<Vec<fs::DirEntry>> { fs::read_dir(folder)?.collect() };
    let mut found = Vec::new();
    for prefix in list(&top).map_err(BlobError::io("list", &top))? {
        let folder = prefix.path();
        for entry in list(&folder).map_err(BlobError::io("list", &folder))? {
            let Some(digest) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            match entry.metadata() {
                Ok(metadata) => found.push((digest, metadata.len())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(BlobError::io("look up blob", &entry.path())(error)),
            }
        }
    }
    Ok(found)
}

/// Digest and size of a whole file, from its start.
fn hash_file(file: &File) -> io::Result<(Digest, u64)> {
    let mut hasher = DigestWriter::new();
    hash_prefix(file, u64::MAX, &mut hasher)?;
    let size = hasher.bytes();
    Ok((hasher.finish(), size))
}

/// Feeds up to `limit` bytes from the start of `file` to `hasher`.
fn hash_prefix(file: &File, limit: u64, hasher: &mut DigestWriter) -> io::Result<()> {
    let mut buffer = vec![0; HASH_CHUNK_BYTES];
    let mut offset = 0;
    while offset < limit {
        let want = usize::try_from(limit - offset).map_or(buffer.len(), |left| left.min(buffer.len()));
        let count = rustix::io::pread(file, &mut buffer[..want], offset)?;
        if count == 0 {
            break;
        }
        hasher.update(&buffer[..count]);
        offset += count as u64;
    }
    Ok(())
}

/// A stream of chunks; while one is being sent, the next is read. A slow receiver holds no thread.
fn read_ahead(file: Arc<File>, path: PathBuf, range: Range<u64>) -> BoxStream<'static, Result<Bytes, BlobError>> {
    let read = move |offset: u64, file: Arc<File>| {
        let length = READ_CHUNK_BYTES.min(range.end.saturating_sub(offset));
        (length > 0).then(|| tokio::task::spawn_blocking(move || read_exact(&file, offset, length as usize)))
    };
    let first = read(range.start, file.clone());
    stream::try_unfold((range.start, first), move |(offset, pending)| {
        let (file, path) = (file.clone(), path.clone());
        async move {
            let Some(pending) = pending else { return Ok(None) };
            let chunk = match pending.await {
                Ok(chunk) => chunk.map_err(BlobError::io("read blob", &path))?,
                Err(gone) => return Err(BlobError::io("read blob", &path)(io::Error::other(gone))),
            };
            let next = offset + chunk.len() as u64;
            Ok(Some((chunk, (next, read(next, file)))))
        }
    })
    .boxed()
}

fn read_exact(file: &File, offset: u64, length: usize) -> io::Result<Bytes> {
    let mut buffer = Vec::with_capacity(length);
    while buffer.len() < length {
        let at = offset + buffer.len() as u64;
        let left = length - buffer.len();
        let before = buffer.len();
        rustix::io::pread(file, rustix::buffer::spare_capacity(&mut buffer), at)?;
        if buffer.len() == before {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("{left} bytes are missing at its end")));
        }
        buffer.truncate(length);
    }
    Ok(buffer.into())
}

/// Runs blocking file work; a panic in it becomes an I/O error of this call only.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BlobError> + Send + 'static,
) -> Result<T, BlobError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|gone| {
        Err(BlobError::Io { action: "work on", path: "the blob folder".into(), source: io::Error::other(gone) })
    })
}
