//! Writing files so that they survive a power cut: fsync, rename and fsync of the folder in one place, so that none of
//! the three can be forgotten at a call site.

use std::{
    fs::{self, File, FileTimes, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::Path,
    time::{Duration, SystemTime},
};

/// Modification time of every published file. A later write to the file changes it, so a file that still carries it
/// holds the bytes that were checked before it was published.
fn published_mtime() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1)
}

/// Makes a written file immutable and durable under its final name.
///
/// `file` is the open handle of `from`; both paths lie on one filesystem.
pub(crate) fn publish(file: &File, from: &Path, to: &Path) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(0o444))?;
    mark_unmodified(file)?;
    file.sync_all()?;
    let folder = parent(to)?;
    if !folder.is_dir() {
        create_private_dir(folder)?;
        sync_dir(parent(folder)?)?;
    }
    fs::rename(from, to)?;
    sync_dir(folder)
}

/// Whether nothing was written to the file since [`publish`].
pub(crate) fn is_unmodified(metadata: &fs::Metadata) -> bool {
    metadata.modified().is_ok_and(|time| time == published_mtime())
}

/// Says that the file's bytes were checked and are those of its digest.
pub(crate) fn mark_unmodified(file: &File) -> io::Result<()> {
    file.set_times(FileTimes::new().set_modified(published_mtime()))
}

/// Makes the entries of a folder durable.
pub(crate) fn sync_dir(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Writes a small file that only its owner may read, whole or not at all.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let staged = path.with_added_extension("new");
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&staged)?;
        // One that an earlier attempt left may have another mode.
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&staged, path)
    })();
    if let Err(error) = written {
        // The error is what counts; a full disk gets the part that was written back.
        let _ = fs::remove_file(&staged);
        return Err(error);
    }
    sync_dir(parent(path)?)
}

/// Creates a folder and its missing parents; only the owner may enter those that it creates.
pub fn create_private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn parent(path: &Path) -> io::Result<&Path> {
    path.parent().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "path has no parent folder"))
}
