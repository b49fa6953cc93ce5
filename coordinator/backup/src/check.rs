//! Whether a farm's folder is whole: the database sound, and every blob there that it names. Changes nothing.

use crate::{
    BLOBS, BackupError, DATABASE, blocking,
    database::{Database, Named},
};
use planforge_blobs::{BlobError, blob_path, check_blob};
use planforge_types::Digest;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// What was looked at and found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    pub database: PathBuf,
    /// What SQLite says of the file; nothing: it is sound. Where it is not, rows and blobs were not compared.
    pub problems: Vec<String>,
    /// Blobs that rows name, and that are there.
    pub blobs: u64,
    pub blob_bytes: u64,
    /// Whether the bytes were read.
    pub read: bool,
    /// Named and not there.
    pub missing: Vec<Digest>,
    /// Named, and with other bytes than their digest says; where bytes were not read, as far as sizes tell.
    pub damaged: Vec<Digest>,
    /// Set aside as damaged earlier and not stored again since.
    pub quarantined: Vec<Digest>,
    /// There, and named by nothing: uploads that no job used, and what was deleted from the database alone.
    pub unnamed: u64,
    pub unnamed_bytes: u64,
}

impl Checked {
    /// Whether anything is wrong. What nobody names only takes room.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty() && self.missing.is_empty() && self.damaged.is_empty()
    }
}

/// Looks at the farm in `data`; with `read` at every byte of its blobs.
///
/// # Errors
/// When there is no farm, or the disk refuses to be read; what is wrong with the farm is no error here.
pub async fn check(data: &Path, read: bool) -> Result<Checked, BackupError> {
    let path = data.join(DATABASE);
    if !path.is_file() {
        return Err(BackupError::NoFarm { path: data.to_owned() });
    }
    let mut checked = Checked { database: path.clone(), read, ..Checked::default() };
    let named = match look(&path).await {
        Ok((problems, named)) => {
            checked.problems = problems;
            named
        }
        Err(BackupError::Database { detail, .. }) => {
            checked.problems.push(detail);
            return Ok(checked);
        }
        Err(other) => return Err(other),
    };
    let root = data.join(BLOBS);
    let mut checked = blocking(move || compare(&root, &named, &mut checked).map(|()| checked)).await?;
    if !checked.missing.is_empty() {
        // Some may have been deleted meanwhile, their rows first.
        let mut database = Database::open(&path).await?;
        for digest in std::mem::take(&mut checked.missing) {
            if database.names(digest).await? {
                checked.missing.push(digest);
            }
        }
        database.close().await?;
    }
    Ok(checked)
}

async fn look(path: &Path) -> Result<(Vec<String>, Vec<Named>), BackupError> {
    let mut database = Database::open(path).await?;
    let problems = database.problems().await?;
    let named = if problems.is_empty() { database.named().await? } else { Vec::new() };
    database.close().await?;
    Ok((problems, named))
}

fn compare(root: &Path, named: &[Named], checked: &mut Checked) -> Result<(), BackupError> {
    let mut there = visible(root)?;
    for Named { digest, size_bytes, may_lack } in named {
        match there.remove(digest) {
            None if *may_lack => {}
            None => checked.missing.push(*digest),
            Some(found) => {
                // A size that somebody said may be wrong; the bytes tell.
                let doubtful = *size_bytes != 0 && found != *size_bytes;
                if (checked.read || doubtful) && !has_its_bytes(root, *digest)? {
                    checked.damaged.push(*digest);
                    continue;
                }
                checked.blobs += 1;
                checked.blob_bytes += found;
            }
        }
    }
    (checked.unnamed, checked.unnamed_bytes) = (there.len() as u64, there.values().sum());
    checked.quarantined = digests_in(&root.join("quarantine"))?.into_iter().map(|(digest, _)| digest).collect();
    Ok(())
}

fn has_its_bytes(root: &Path, digest: Digest) -> Result<bool, BackupError> {
    match check_blob(root, digest) {
        Ok(_) => Ok(true),
        // A disk that cannot read it has lost it.
        Err(BlobError::Damaged { .. } | BlobError::Io { .. }) => Ok(false),
        // Removed meanwhile.
        Err(BlobError::NotFound { .. }) => Ok(!blob_path(root, digest).exists()),
        Err(other) => Err(other.into()),
    }
}

fn visible(root: &Path) -> Result<BTreeMap<Digest, u64>, BackupError> {
    let top = root.join("sha256");
    let mut found = BTreeMap::new();
    let Ok(folders) = fs::read_dir(&top) else { return Ok(found) };
    for folder in folders {
        found.extend(digests_in(&folder.map_err(BackupError::io("list", &top))?.path())?);
    }
    Ok(found)
}

/// Files of a folder that are named by a digest, with their sizes; nothing where there is no folder.
fn digests_in(folder: &Path) -> Result<Vec<(Digest, u64)>, BackupError> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(BackupError::io("list", folder))?;
        let digest = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let (Some(digest), Ok(facts)) = (digest, entry.metadata()) {
            found.push((digest, facts.len()));
        }
    }
    Ok(found)
}
