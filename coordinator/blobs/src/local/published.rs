//! Files of blobs: immutable and durable under their final name, and known to be unchanged since.

use planforge_types::durable;
use std::{
    fs::{self, File, FileTimes, Permissions},
    io,
    os::unix::fs::PermissionsExt as _,
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
pub(super) fn publish(file: &File, from: &Path, to: &Path) -> io::Result<()> {
    close_to_writes(file)?;
    let folder = parent(to)?;
    if !folder.is_dir() {
        durable::create_private_dir(folder)?;
        durable::sync_folder(parent(folder)?)?;
    }
    durable::publish(file, from, to)
}

/// Renews the change time of a published file, and nothing else of it.
pub(super) fn renew(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(0o444))
}

/// Makes a file whose bytes were checked one that is not written to any more.
pub(super) fn close_to_writes(file: &File) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(0o444))?;
    mark_unmodified(file)
}

/// Whether nothing was written to the file since [`publish`].
pub(super) fn is_unmodified(metadata: &fs::Metadata) -> bool {
    metadata.modified().is_ok_and(|time| time == published_mtime())
}

/// Says that the file's bytes were checked and are those of its digest.
pub(super) fn mark_unmodified(file: &File) -> io::Result<()> {
    file.set_times(FileTimes::new().set_modified(published_mtime()))
}

fn parent(path: &Path) -> io::Result<&Path> {
    path.parent().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "path has no parent folder"))
}
