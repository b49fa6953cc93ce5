//! Blobs in a folder of another place: for backups and for what is restored from them.

use super::{Inner, blob_path, hash_file, published};
use crate::error::BlobError;
use planforge_types::{Digest, DigestWriter, durable};
use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::Path,
    sync::atomic::Ordering,
};

/// How a blob gets to another folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Its bytes are written again, and checked on the way.
    Copy,
    /// The same file under another name, where both folders lie on one file system; else as [`How::Copy`]. Damage of the
    /// one is damage of the other.
    Link,
}

/// Bytes that are copied at once.
const PIECE_BYTES: usize = 256 * 1024;

/// Puts the blob of one store's folder into another's, and returns its size. It is visible there only when its bytes are
/// those of its digest, and durable when the file system is synced afterwards: one sync serves many blobs.
///
/// # Errors
/// It is not there, it is damaged, or a disk says no.
pub fn copy_blob(from_root: &Path, to_root: &Path, digest: Digest, how: How) -> Result<u64, BlobError> {
    let (from, to) = (blob_path(from_root, digest), blob_path(to_root, digest));
    let source = File::open(&from).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => BlobError::NotFound { digest },
        _ => BlobError::io("open blob", &from)(error),
    })?;
    if let Some(folder) = to.parent() {
        durable::create_private_dir(folder).map_err(BlobError::io("create folder", folder))?;
    }
    if how == How::Link && fs::hard_link(&from, &to).is_ok() {
        return Ok(source.metadata().map_err(BlobError::io("look up blob", &from))?.len());
    }
    let staged = to.with_extension("new");
    let written = write_copy(&source, &staged, digest).and_then(|bytes| {
        fs::rename(&staged, &to).map_err(BlobError::io("name blob", &to))?;
        Ok(bytes)
    });
    if written.is_err() {
        // The error is what counts.
        let _ = fs::remove_file(&staged);
    }
    written
}

/// Whether a blob of a folder has the bytes of its digest; its size.
///
/// # Errors
/// As [`copy_blob`]. Nothing is moved or changed.
pub fn check_blob(root: &Path, digest: Digest) -> Result<u64, BlobError> {
    let path = blob_path(root, digest);
    let file = File::open(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => BlobError::NotFound { digest },
        _ => BlobError::io("open blob", &path)(error),
    })?;
    let (found, bytes) = hash_file(&file).map_err(BlobError::io("read blob", &path))?;
    right(digest, found).map(|()| bytes)
}

fn right(digest: Digest, found: Digest) -> Result<(), BlobError> {
    if found == digest {
        return Ok(());
    }
    Err(BlobError::Damaged { digest, reason: format!("its bytes hash to sha256:{found}") })
}

impl Inner {
    /// Stores what was set aside anew where another folder has it whole.
    pub(super) fn heal(&self, digest: Digest) {
        for folder in &self.options.copies {
            for copy in [blob_path(folder, digest), folder.join(digest.to_string())] {
                let Ok(source) = File::open(&copy) else { continue };
                match self.take_copy(&source, digest) {
                    Ok(()) => {
                        tracing::info!(%digest, from = %copy.display(), "a damaged blob was replaced by another copy of it");
                        return;
                    }
                    Err(error) => {
                        tracing::warn!(%digest, from = %copy.display(), %error, "no copy to heal a blob from")
                    }
                }
            }
        }
    }

    fn take_copy(&self, source: &File, digest: Digest) -> Result<(), BlobError> {
        let bytes = source.metadata().map_err(BlobError::io("look up blob", &self.path(digest)))?.len();
        self.check_room(bytes, false)?;
        let number = self.temporary.fetch_add(1, Ordering::Relaxed);
        let staged = self.staging().join(format!("{digest}-{number}.tmp"));
        let stored = write_copy(source, &staged, digest).and_then(|bytes| {
            let file = File::open(&staged).map_err(BlobError::io("open", &staged))?;
            self.publish(&file, &staged, digest, bytes)
        });
        if stored.is_err() {
            // The error is what counts; a file that cannot be removed now is removed at the next start.
            let _ = fs::remove_file(&staged);
        }
        stored
    }
}

fn write_copy(mut source: &File, staged: &Path, digest: Digest) -> Result<u64, BlobError> {
    let failed = |error| BlobError::io("write", staged)(error);
    let mut target = File::create(staged).map_err(failed)?;
    let (mut hasher, mut buffer) = (DigestWriter::new(), vec![0; PIECE_BYTES]);
    loop {
        // A disk that cannot read it has lost it.
        let lost = |error| BlobError::Damaged { digest, reason: format!("the disk cannot read it: {error}") };
        let count = source.read(&mut buffer).map_err(lost)?;
        if count == 0 {
            break;
        }
        hasher.update(&buffer[..count]);
        target.write_all(&buffer[..count]).map_err(failed)?;
    }
    let bytes = hasher.bytes();
    right(digest, hasher.finish())?;
    published::close_to_writes(&target).map_err(failed)?;
    Ok(bytes)
}
