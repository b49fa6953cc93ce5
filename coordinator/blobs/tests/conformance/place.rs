//! Where blobs are kept in a test, and what the cases need beside.

use bytes::Bytes;
use futures::{TryStreamExt as _, stream};
use planforge_blobs::{
    Begun, BlobError, Blobs, CloudBlobs, CloudBlobsOptions, LocalBlobs, LocalBlobsOptions, MemoryNotes, Notes as _,
    UploadStatus, blob_path,
};
use planforge_s3_server::{BUCKET, KEY_ID, Moto, S3Server, SECRET, close, keys_text};
use planforge_types::Digest;
use std::{
    fs,
    io::{Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tempfile::TempDir;

pub type Piece = Result<Bytes, String>;
pub use planforge_blobs::LocalBlobsOptions as Limits;

/// Notes of what is no blob, or none yet.
const LEFT: [&str; 4] = ["upload", "direct-upload", "part", "unconfirmed"];

/// A place and what it remembers across openings.
pub enum Place {
    Folder(TempDir),
    S3 { server: S3Server, notes: Arc<MemoryNotes>, folder: TempDir },
    Moto { server: Moto, notes: Arc<MemoryNotes>, folder: TempDir },
}

impl Place {
    pub fn folder() -> Self {
        Self::Folder(TempDir::new().unwrap())
    }

    pub fn s3() -> Self {
        Self::S3 { server: S3Server::start(), notes: Arc::default(), folder: TempDir::new().unwrap() }
    }

    /// `None`: it is not installed, which is told.
    pub fn moto() -> Option<Self> {
        Some(Self::Moto { server: Moto::start()?, notes: Arc::default(), folder: TempDir::new().unwrap() })
    }

    pub fn is_folder(&self) -> bool {
        matches!(self, Self::Folder(_))
    }

    pub async fn open(&self) -> Blobs {
        self.open_with(LocalBlobsOptions::default()).await
    }

    pub async fn open_with(&self, limits: Limits) -> Blobs {
        match self {
            Self::Folder(folder) => LocalBlobs::open(folder.path(), limits).unwrap().into(),
            Self::S3 { notes, .. } | Self::Moto { notes, .. } => {
                let mut options = self.options();
                options.max_bytes = limits.max_bytes;
                options.upload_ttl = limits.upload_ttl;
                options.empty_upload_ttl = limits.empty_upload_ttl;
                options.copies = limits.copies;
                CloudBlobs::open(options, "the farm", notes.clone()).await.unwrap().into()
            }
        }
    }

    /// How a place in a cloud is opened.
    pub fn options(&self) -> CloudBlobsOptions {
        match self {
            Self::S3 { server, folder, .. } => options(server, folder.path()),
            Self::Moto { server, folder, .. } => {
                let keys = folder.path().join("keys");
                fs::write(&keys, keys_text(KEY_ID, SECRET)).unwrap();
                close(&keys);
                reached(&server.endpoint(), keys, folder.path())
            }
            Self::Folder(_) => panic!("a folder is no cloud"),
        }
    }

    /// Size of an upload, where it is cut off, and where it goes on after a restart.
    pub fn restart(&self) -> (usize, usize, usize) {
        match self {
            Self::Folder(_) => (100_000, 70_001, 70_001),
            // Behind the last whole part.
            Self::S3 { .. } | Self::Moto { .. } => (20 << 20, (17 << 20) + 1, 16 << 20),
        }
    }

    /// What a crash may leave that is no upload.
    pub fn crash_leaves_something(&self) {
        if let Self::Folder(folder) = self {
            fs::write(folder.path().join("staging/orphan.tmp"), b"left by a crash").unwrap();
        }
    }

    /// Things that are no blobs: parts of uploads, and what is remembered of them.
    pub async fn left_over(&self) -> usize {
        match self {
            Self::Folder(folder) => fs::read_dir(folder.path().join("staging")).unwrap().count(),
            Self::S3 { server, notes, .. } => {
                let root = server.object(BUCKET, "..");
                let names = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name());
                let mut left = names.filter(|name| name.to_string_lossy().starts_with(".upload_id-")).count();
                for kind in LEFT {
                    left += notes.of_kind(kind).await.unwrap().len();
                }
                left
            }
            Self::Moto { server, notes, .. } => {
                let mut left = server.open_uploads();
                for kind in LEFT {
                    left += notes.of_kind(kind).await.unwrap().len();
                }
                left
            }
        }
    }

    fn file(&self, digest: Digest) -> PathBuf {
        match self {
            Self::Folder(folder) => blob_path(folder.path(), digest),
            Self::S3 { server, .. } => blob_path(&server.object(BUCKET, "blobs"), digest),
            Self::Moto { .. } => panic!("its objects are no files"),
        }
    }

    /// What a disk does on its own: a bit flips, and no time changes.
    pub fn damage(&self, digest: Digest) {
        if let Self::Moto { server, .. } = self {
            let key = blob_path(Path::new("blobs"), digest);
            return server.overwrite(key.to_str().unwrap(), b"other bytes");
        }
        let path = self.file(digest);
        let published = fs::metadata(&path).unwrap().modified().unwrap();
        flip_a_bit(&path);
        fs::File::open(&path).unwrap().set_modified(published).unwrap();
    }
}

/// A place at a server, as tests reach it.
pub fn options(server: &S3Server, folder: &Path) -> CloudBlobsOptions {
    at(&server.endpoint(), server, folder)
}

/// The same by way of another address.
pub fn at(endpoint: &str, server: &S3Server, folder: &Path) -> CloudBlobsOptions {
    reached(endpoint, server.keys_file(), folder)
}

fn reached(endpoint: &str, keys: PathBuf, folder: &Path) -> CloudBlobsOptions {
    let place = format!("s3://{BUCKET}/blobs").parse().unwrap();
    let mut options = CloudBlobsOptions::new(place, folder);
    options.access.endpoint = Some(endpoint.to_owned());
    options.access.keys_file = Some(keys);
    options.access.patience = Duration::from_secs(10);
    options
}

pub fn some_bytes(length: usize) -> Bytes {
    (0..length).map(|i| (i * 7 + i / 251) as u8).collect::<Vec<_>>().into()
}

pub fn whole(bytes: &Bytes) -> impl futures::Stream<Item = Piece> + Send + 'static + use<> {
    let piece = if bytes.len() > 1 << 20 { 64 << 10 } else { 1000 };
    stream::iter(bytes.chunks(piece).map(|c| Ok(Bytes::copy_from_slice(c))).collect::<Vec<_>>())
}

/// A body that breaks off after `bytes`.
pub fn cut(bytes: Bytes) -> impl futures::Stream<Item = Piece> + Send + 'static {
    stream::iter([Ok(bytes), Err("connection reset".to_owned())])
}

pub async fn begin(blobs: &Blobs, digest: Digest, size: usize) -> UploadStatus {
    match blobs.begin_upload(digest, size as u64).await.unwrap() {
        Begun::Upload(status) => status,
        Begun::Exists => panic!("the blob is not there yet"),
    }
}

pub async fn read(blobs: &Blobs, digest: Digest) -> Result<Vec<u8>, BlobError> {
    let size = blobs.find(digest).await?.ok_or_else(|| blobs.why_missing(digest))?;
    let chunks: Vec<Bytes> = blobs.open_range(digest, 0..size).await?.try_collect().await?;
    Ok(chunks.concat())
}

/// Waits until `condition` holds, for at most 20 s.
pub async fn wait_for(mut condition: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "condition not met in time");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub fn flip_a_bit(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    let byte = fs::read(path).unwrap()[500];
    let mut file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.seek(SeekFrom::Start(500)).unwrap();
    file.write_all(&[byte ^ 4]).unwrap();
}
