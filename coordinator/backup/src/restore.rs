//! A farm's folder made of a backup. Every byte is held against its digest on the way; the database gets its name last, so
//! that what broke off is no farm.

use crate::{
    BLOBS, BackupError, DATABASE, FORMAT, MANIFEST, Manifest, Part, blocking,
    database::{Database, Named},
    empty_folder, sync_all,
};
use planforge_blobs::{BlobError, How, copy_blob};
use planforge_types::{Digest, durable};
use std::{
    collections::BTreeSet,
    fs,
    path::{Component, Path, PathBuf},
};

/// What was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    pub path: PathBuf,
    /// When the backup was made, Unix milliseconds.
    pub made_ms: u64,
    pub blobs: u64,
    pub blob_bytes: u64,
    /// Blobs that the farm lacked already when the backup was made.
    pub lacking: Vec<Digest>,
}

/// Makes the farm of a backup in `to`, which must not hold anything yet.
///
/// # Errors
/// See [`BackupError`]; what was written stays, without the database that would make it a farm.
pub async fn restore(backup: &Path, to: &Path) -> Result<Restored, BackupError> {
    let (from, target) = (backup.to_owned(), to.to_owned());
    let (manifest, staged) = blocking(move || begin(&from, &target)).await?;
    let mut database = Database::open(&staged).await?;
    let named = database.named().await?;
    database.close().await?;
    let (from, target) = (backup.to_owned(), to.to_owned());
    blocking(move || finish(&from, &target, manifest, &named, &staged)).await
}

/// Reads what is in the backup and copies the database, not yet under its name.
fn begin(backup: &Path, to: &Path) -> Result<(Manifest, PathBuf), BackupError> {
    let not_whole = |reason: String| BackupError::NotWhole { path: backup.to_owned(), reason };
    let path = backup.join(MANIFEST);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(not_whole(format!("it has no {MANIFEST}")));
        }
        Err(error) => return Err(BackupError::io("read", &path)(error)),
    };
    let manifest: Manifest =
        serde_json::from_slice(&text).map_err(|error| not_whole(format!("its {MANIFEST} cannot be read: {error}")))?;
    if manifest.format != FORMAT {
        return Err(not_whole(format!("it has form {}, and this program knows form {FORMAT}", manifest.format)));
    }
    let database = manifest.files.iter().find(|part| part.name == DATABASE);
    let database = database.ok_or_else(|| not_whole(format!("its {MANIFEST} names no {DATABASE}")))?;
    empty_folder(to)?;
    let staged = to.join(format!("{DATABASE}.restoring"));
    copy_file(backup, database, &staged)?;
    Ok((manifest, staged))
}

fn finish(
    backup: &Path,
    to: &Path,
    manifest: Manifest,
    named: &[Named],
    staged: &Path,
) -> Result<Restored, BackupError> {
    let lacked: BTreeSet<Digest> = manifest.lacking.iter().copied().collect();
    let (mut blobs, mut blob_bytes) = (0, 0);
    for Named { digest, may_lack, .. } in named {
        match copy_blob(&backup.join(BLOBS), &to.join(BLOBS), *digest, How::Copy) {
            Ok(bytes) => {
                blobs += 1;
                blob_bytes += bytes;
            }
            Err(BlobError::NotFound { .. }) if *may_lack || lacked.contains(digest) => {}
            Err(error @ (BlobError::NotFound { .. } | BlobError::Damaged { .. })) => {
                return Err(BackupError::NotWhole { path: backup.to_owned(), reason: error.to_string() });
            }
            Err(other) => return Err(other.into()),
        }
    }
    for part in manifest.files.iter().filter(|part| part.name != DATABASE) {
        copy_file(backup, part, &to.join(plain_name(backup, part)?))?;
    }
    sync_all(to)?;
    let database = to.join(DATABASE);
    durable::rename(staged, &database).map_err(BackupError::io("name", &database))?;
    Ok(Restored { path: to.to_owned(), made_ms: manifest.made_ms, blobs, blob_bytes, lacking: manifest.lacking })
}

/// A name that stays inside of the folder.
fn plain_name<'a>(backup: &Path, part: &'a Part) -> Result<&'a str, BackupError> {
    let mut components = Path::new(&part.name).components();
    match (components.next(), components.next()) {
        (Some(Component::Normal(_)), None) => Ok(&part.name),
        _ => Err(BackupError::NotWhole {
            path: backup.to_owned(),
            reason: format!("its {MANIFEST} names '{}', which is no file of it", part.name.escape_default()),
        }),
    }
}

/// Copies one small file, closed to others, when it is what the manifest says.
fn copy_file(backup: &Path, part: &Part, target: &Path) -> Result<(), BackupError> {
    let source = backup.join(plain_name(backup, part)?);
    let found = Part::of(backup, &part.name)?;
    if (found.sha256, found.size_bytes) != (part.sha256, part.size_bytes) {
        let reason = format!("{} hashes to sha256:{}, not sha256:{}", part.name, found.sha256, part.sha256);
        return Err(BackupError::NotWhole { path: backup.to_owned(), reason });
    }
    let mut from = fs::File::open(&source).map_err(BackupError::io("read", &source))?;
    let mut options = fs::OpenOptions::new();
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut to = options.write(true).create_new(true).open(target).map_err(BackupError::io("create", target))?;
    std::io::copy(&mut from, &mut to).map(drop).map_err(BackupError::io("write", target))
}
