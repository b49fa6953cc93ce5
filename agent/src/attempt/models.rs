//! Model files by digest, kept between jobs, and the folders that attempts see of them.
//!
//! Files are downloaded once, verified whenever they are used, and hard-linked into an attempt's folder under the
//! names the model knows its external data by. The cache is bounded with all else that the host keeps
//! (`host/room.rs`); what an attempt is laying out, or has a link to, stays.

use crate::host::room::{Freed, Room};
use planforge_client::{BlobError, Blobs, blocking::blocking};
use planforge_types::{Digest, DigestWriter};
use std::{
    collections::{BTreeSet, HashMap},
    fs::{self, File, FileTimes},
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Component, Path, PathBuf},
    sync::{Arc, Mutex, Weak},
    time::SystemTime,
};

/// Most files of one model; the largest published models have a few hundred.
const FILES_MAX: usize = 10_000;

/// Why a model cannot be laid out.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("the job's model has no files, or more than {FILES_MAX}")]
    FileCount,
    #[error("the model file name '{name}' leads out of the model's folder")]
    BadName { name: String },
    #[error("'{text}' is not a digest")]
    BadDigest { text: String },
    #[error(transparent)]
    Blob(#[from] BlobError),
    #[error("cannot {action} {}: {source}", path.display())]
    Disk { action: &'static str, path: PathBuf, source: io::Error },
}

impl ModelError {
    fn disk(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Disk { action, path, source }
    }
}

/// The cache; clones share it.
#[derive(Clone, Debug)]
pub struct ModelCache {
    folder: PathBuf,
    /// Of all that the host keeps.
    room: Room,
    /// Downloads in progress, so that two devices never fetch one file twice.
    busy: Arc<Mutex<HashMap<Digest, Weak<tokio::sync::Mutex<()>>>>>,
}

impl ModelCache {
    pub fn new(folder: PathBuf, room: Room) -> Self {
        Self { folder, room, busy: Arc::default() }
    }

    fn path(&self, digest: Digest) -> PathBuf {
        self.folder.join(digest.to_string())
    }

    /// Serialises work on one file.
    fn turn(&self, digest: Digest) -> Arc<tokio::sync::Mutex<()>> {
        let mut busy = self.busy.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        busy.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = busy.get(&digest).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::new(tokio::sync::Mutex::new(()));
        busy.insert(digest, Arc::downgrade(&turn));
        turn
    }

    /// Puts the file of `digest` at `dest` (on the same file system), downloading it when the cache has no sound copy.
    pub async fn place(&self, blobs: &Blobs, digest: Digest, dest: &Path) -> Result<(), ModelError> {
        let turn = self.turn(digest);
        let _turn = turn.lock().await;
        let cached = self.path(digest);
        let (check, at) = (cached.clone(), dest.to_owned());
        let sound = blocking(move || is_sound(&check, digest)).await;
        if !sound {
            blobs.download_to_cache(digest, &cached).await?;
        }
        blocking(move || {
            fs::set_permissions(&cached, fs::Permissions::from_mode(0o444))
                .map_err(ModelError::disk("protect", &cached))?;
            if let Some(folder) = at.parent() {
                fs::create_dir_all(folder).map_err(ModelError::disk("make", folder))?;
            }
            fs::hard_link(&cached, &at).map_err(ModelError::disk("link", &at))
        })
        .await?;
        if !sound {
            self.make_room().await;
        }
        Ok(())
    }

    /// Lays the files of a model out in `folder`, replacing what is there, and returns the path of the ONNX file, the first of them.
    pub async fn lay_out(
        &self,
        blobs: &Blobs,
        files: &[planforge_proto::v1::ModelFile],
        folder: &Path,
        told: &(dyn Fn(usize, usize) + Send + Sync),
    ) -> Result<PathBuf, ModelError> {
        if files.is_empty() || files.len() > FILES_MAX {
            return Err(ModelError::FileCount);
        }
        match fs::remove_dir_all(folder) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(ModelError::disk("clear", folder)(error)),
        }
        let mut first = None;
        for (index, file) in files.iter().enumerate() {
            told(index, files.len());
            let digest = file.digest.parse().map_err(|_| ModelError::BadDigest { text: file.digest.clone() })?;
            let path = folder.join(safe_name(&file.name)?);
            self.place(blobs, digest, &path).await?;
            first.get_or_insert(path);
        }
        Ok(first.expect("there is at least one file"))
    }

    /// Makes what the host keeps fit its bound; files that an attempt is laying out stay.
    pub async fn make_room(&self) {
        let cache = self.clone();
        let freed = blocking(move || {
            let laid_out = cache.laid_out();
            cache.room.make(&|path| laid_out.contains(path), SystemTime::now())
        });
        let Freed { files, bytes } = freed.await;
        if files > 0 {
            tracing::info!(files, bytes, "removed what was used longest ago of this host's models and caches");
        }
    }

    /// Files between their download and the links to them.
    fn laid_out(&self) -> BTreeSet<PathBuf> {
        let busy = self.busy.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        busy.iter().filter(|(_, turn)| turn.strong_count() > 0).map(|(digest, _)| self.path(*digest)).collect()
    }
}

/// Whether `path` holds the bytes that `digest` names; marks it used. A damaged copy is removed.
pub(super) fn is_sound(path: &Path, digest: Digest) -> bool {
    let Ok(mut file) = File::open(path) else { return false };
    let mut hash = DigestWriter::new();
    if io::copy(&mut file, &mut hash).is_ok() && hash.finish() == digest {
        // Only the order of eviction suffers when the time cannot be set.
        let _ = file.set_times(FileTimes::new().set_modified(SystemTime::now()));
        return true;
    }
    tracing::warn!(path = %path.display(), "a cached file does not match its digest; fetching it again");
    let _ = fs::remove_file(path);
    false
}

/// A file name of a model as a path below its folder.
fn safe_name(name: &str) -> Result<PathBuf, ModelError> {
    let path = Path::new(name);
    let below = !name.is_empty()
        && !name.contains('\0')
        && path.components().all(|part| matches!(part, Component::Normal(_)))
        && path.components().count() > 0;
    if below { Ok(path.to_owned()) } else { Err(ModelError::BadName { name: name.chars().take(200).collect() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_the_folder() {
        for bad in ["", "..", "../x", "a/../../x", "/etc/passwd", "a\0b", "./x"] {
            assert!(safe_name(bad).is_err(), "{bad}");
        }
        for good in ["model.onnx", "weights/part.0", "a b", "..data"] {
            assert_eq!(safe_name(good).unwrap(), Path::new(good));
        }
    }

    #[tokio::test]
    async fn what_is_being_laid_out_stays() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ModelCache::new(folder.path().to_owned(), Room::new(vec![folder.path().to_owned()], 0));
        let (one, other) = (Digest::of(b"one"), Digest::of(b"other"));
        for digest in [one, other] {
            fs::write(cache.path(digest), "x").unwrap();
        }
        let turn = cache.turn(one);
        cache.make_room().await;
        assert!(cache.path(one).exists() && !cache.path(other).exists());
        drop(turn);
        cache.make_room().await;
        assert!(!cache.path(one).exists());
    }

    #[test]
    fn a_damaged_copy_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        fs::write(&path, b"abc").unwrap();
        assert!(is_sound(&path, Digest::of(b"abc")));
        assert!(!is_sound(&path, Digest::of(b"abd")) && !path.exists());
    }
}
