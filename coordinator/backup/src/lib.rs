//! A farm's data folder as a whole: whether database and blobs fit together, copies of it, and folders made of them.
//!
//! ```text
//! BACKUP/farm.db         the database as it stood at one moment, in one file
//! BACKUP/blobs/sha256/   every blob that it names
//! BACKUP/admin.token, agent-ca.key   what else makes the farm that one (0600), where there is one
//! BACKUP/backup.json     what is here, with digests; written last, so that a backup without it is none
//! ```
//!
//! All of it works on a folder whose coordinator runs and on one whose coordinator does not: SQLite gives every reader one
//! moment's view, and blobs never change. So nothing has to be asked of a coordinator, which may be what does not start.
//!
//! | module | holds |
//! |---|---|
//! | [`backup()`] | a copy of a folder, consistent whatever is written meanwhile |
//! | [`restore()`] | a folder made of a copy, every byte verified |
//! | [`check()`] | whether the database is sound, and every blob there that it names |
//! | `database` | what is asked of SQLite |

mod backup;
mod check;
mod database;
mod restore;

pub use backup::{Made, backup};
pub use check::{Checked, check};
pub use planforge_blobs::How;
pub use restore::{Restored, restore};

use planforge_blobs::BlobError;
use planforge_types::{Digest, DigestWriter};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

const DATABASE: &str = "farm.db";
const BLOBS: &str = "blobs";
const MANIFEST: &str = "backup.json";
/// Small files of a data folder that make its farm the one that it is.
const FILES: [&str; 2] = ["admin.token", "agent-ca.key"];
/// The form of backups that this program writes and reads.
const FORMAT: u32 = 1;

/// Why a folder could not be copied, restored or looked at.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },

    #[error("the database {} cannot be read: {detail}", path.display())]
    Database { path: PathBuf, detail: String },

    #[error("{} holds no farm: there is no {DATABASE}", path.display())]
    NoFarm { path: PathBuf },

    #[error("{} is not empty", path.display())]
    NotEmpty { path: PathBuf },

    #[error("{} is no whole backup: {reason}", path.display())]
    NotWhole { path: PathBuf, reason: String },

    #[error(transparent)]
    Blob(#[from] BlobError),
}

impl BackupError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }

    /// What to do next; may be empty.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoFarm { .. } => "name the data folder of a farm with --data DIR",
            Self::NotEmpty { .. } => "name a folder that does not exist yet",
            Self::NotWhole { .. } => "use another backup; this one broke off, or was damaged since",
            Self::Database { .. } => "`planforge admin check` says what is wrong with it",
            Self::Blob(BlobError::Full { .. }) => "free space there",
            Self::Io { .. } | Self::Blob(_) => "",
        }
    }
}

/// What a backup says of itself.
#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    format: u32,
    /// Version of the program that made it.
    planforge: String,
    made_ms: u64,
    /// Files beside the blobs, the database first.
    files: Vec<Part>,
    blobs: u64,
    blob_bytes: u64,
    /// Blobs that the database names and that were not there, or damaged, when the backup was made.
    lacking: Vec<Digest>,
}

/// One file, by name and content.
#[derive(Debug, Serialize, Deserialize)]
struct Part {
    name: String,
    sha256: Digest,
    size_bytes: u64,
}

impl Part {
    fn of(folder: &Path, name: &str) -> Result<Self, BackupError> {
        let path = folder.join(name);
        let (sha256, size_bytes) = DigestWriter::of_file(&path).map_err(BackupError::io("read", &path))?;
        Ok(Self { name: name.to_owned(), sha256, size_bytes })
    }
}

/// Makes a folder that nobody else may enter; refuses one that holds something.
fn empty_folder(path: &Path) -> Result<(), BackupError> {
    planforge_types::durable::create_private_dir(path).map_err(BackupError::io("create", path))?;
    let mut entries = fs::read_dir(path).map_err(BackupError::io("list", path))?;
    match entries.next() {
        None => Ok(()),
        Some(_) => Err(BackupError::NotEmpty { path: path.to_owned() }),
    }
}

/// Makes all that was written to the folder's file system durable: one wait instead of one for each of many files.
fn sync_all(folder: &Path) -> Result<(), BackupError> {
    let synced = File::open(folder).and_then(|handle| Ok(rustix::fs::syncfs(handle)?));
    synced.map_err(BackupError::io("sync", folder))
}

/// Runs work on files beside the runtime's threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BackupError> + Send + 'static,
) -> Result<T, BackupError> {
    let gone = |error| BackupError::io("work on", Path::new("the folder"))(io::Error::other(error));
    tokio::task::spawn_blocking(work).await.map_err(gone)?
}
