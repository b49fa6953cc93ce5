//! A copy of a farm's folder, consistent whatever is written to it meanwhile.
//!
//! The database is copied first, as it stood at one moment; then every blob that the copy names. Blobs never change and
//! become visible before a row names them, so what the copy names is there, unless it was deleted in between: then the
//! copy of the database is taken anew.

use crate::{
    BLOBS, BackupError, DATABASE, FILES, FORMAT, MANIFEST, Manifest, Part, blocking,
    database::{Database, Named},
    empty_folder, sync_all,
};
use planforge_blobs::{BlobError, How, blob_path, copy_blob};
use planforge_types::{Digest, durable};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

/// How often the database is copied anew because blobs that a copy names were deleted meanwhile.
const ROUNDS_MAX: usize = 5;

/// What a backup came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    pub path: PathBuf,
    pub blobs: u64,
    pub blob_bytes: u64,
    pub database_bytes: u64,
    /// Blobs that rows name and that are not there, or damaged: the farm lacks them, and so does the backup.
    pub lacking: Vec<Digest>,
}

/// Copies the farm in `data` to `to`, which must not hold anything yet. `program` is the version that does it.
///
/// # Errors
/// See [`BackupError`]; what was copied stays, without the manifest that would make it a backup.
pub async fn backup(data: &Path, to: &Path, how: How, program: &str) -> Result<Made, BackupError> {
    let source = data.join(DATABASE);
    if !source.is_file() {
        return Err(BackupError::NoFarm { path: data.to_owned() });
    }
    empty_folder(to)?;
    let target = to.join(DATABASE);
    let mut live = Database::open(&source).await?;
    let mut round = 0;
    let (named, lacking) = loop {
        round += 1;
        live.copy_to(&target).await?;
        let mut copy = Database::open(&target).await?;
        let named = copy.named().await?;
        copy.close().await?;
        let lacking = copy_blobs(&data.join(BLOBS), &to.join(BLOBS), &named, how).await?;
        let mut deleted = false;
        for digest in &lacking {
            deleted |= !live.names(*digest).await?;
        }
        if !deleted || round == ROUNDS_MAX {
            break (named, lacking);
        }
        fs::remove_file(&target).map_err(BackupError::io("remove", &target))?;
    };
    live.close().await?;
    let (data, to, program) = (data.to_owned(), to.to_owned(), program.to_owned());
    blocking(move || finish(&data, &to, &program, &named, lacking)).await
}

/// Copies what is not there yet; returns what cannot be copied although it is named.
async fn copy_blobs(from: &Path, to: &Path, named: &[Named], how: How) -> Result<Vec<Digest>, BackupError> {
    let (from, to, named) = (from.to_owned(), to.to_owned(), named.to_vec());
    blocking(move || {
        let mut lacking = Vec::new();
        for Named { digest, may_lack, .. } in named {
            if blob_path(&to, digest).exists() {
                continue;
            }
            match copy_blob(&from, &to, digest, how) {
                Ok(_) => {}
                Err(BlobError::NotFound { .. }) if may_lack => {}
                Err(BlobError::NotFound { .. } | BlobError::Damaged { .. }) => lacking.push(digest),
                Err(other) => return Err(other.into()),
            }
        }
        Ok(lacking)
    })
    .await
}

/// Copies the small files, makes all durable and says what is there.
fn finish(data: &Path, to: &Path, program: &str, named: &[Named], lacking: Vec<Digest>) -> Result<Made, BackupError> {
    let database = Part::of(to, DATABASE)?;
    let database_bytes = database.size_bytes;
    let mut files = vec![database];
    for name in FILES {
        let path = data.join(name);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(BackupError::io("read", &path)(error)),
        };
        let target = to.join(name);
        durable::write_private(&target, &bytes).map_err(BackupError::io("write", &target))?;
        files.push(Part::of(to, name)?);
    }
    let left: BTreeSet<Digest> = lacking.iter().copied().collect();
    let (mut blobs, mut blob_bytes) = (0, 0);
    for named in named.iter().filter(|named| !left.contains(&named.digest)) {
        // What may lack and does is not there.
        if let Ok(facts) = fs::metadata(blob_path(&to.join(BLOBS), named.digest)) {
            blobs += 1;
            blob_bytes += facts.len();
        }
    }
    sync_all(to)?;
    let made_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_millis() as u64);
    let lacked = lacking.clone();
    let manifest =
        Manifest { format: FORMAT, planforge: program.to_owned(), made_ms, files, blobs, blob_bytes, lacking: lacked };
    let path = to.join(MANIFEST);
    let text = serde_json::to_vec_pretty(&manifest).map_err(|error| BackupError::io("write", &path)(error.into()))?;
    durable::write_private(&path, &text).map_err(BackupError::io("write", &path))?;
    Ok(Made { path: to.to_owned(), blobs, blob_bytes, database_bytes, lacking })
}
