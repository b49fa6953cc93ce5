//! Identities of model files that were hashed before, so that asking for a finished engine does not read a model again.
//!
//! What do we store? One small file per model path, in one folder: the identity, and of each of the model's files the
//! device, inode, size, mtime and ctime it had. A lookup is a handful of `stat` calls.
//!
//! Crash safety: entries are written by rename and carry their own SHA-256; one that does not read back is as good as
//! absent. Processes share the folder without locks: they write the same content.
//!
//! Invariant: a changed file is never taken for the old one. Timestamps tick coarsely, so a file that was changed less
//! than `SETTLED` before it was hashed is not stored: a second change could leave the same stamp.

use super::model::ModelIdentity;
use planforge_types::{Digest, durable};
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    io::Read as _,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// How long before hashing a file's last change must lie.
const SETTLED: Duration = Duration::from_secs(2);

/// Most entries kept; the oldest go first. At well under a kilobyte each, a few megabytes.
const MAX_ENTRIES: usize = 4096;

/// Largest entry that is written or read: a model with some thousand external files.
const MAX_ENTRY_BYTES: u64 = 1 << 20;

/// Raised when the meaning of an entry, or the way digests are made, changes.
const VERSION: u32 = 1;

/// A folder of known identities.
#[derive(Clone, Debug)]
pub struct DigestCache {
    folder: PathBuf,
}

/// What tells one state of a file from another without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    device: u64,
    inode: u64,
    size_bytes: u64,
    /// Nanoseconds since 1970; `ctime` cannot be set by programs.
    mtime_ns: i128,
    ctime_ns: i128,
}

impl Stamp {
    /// The state of the file at `path` now; symbolic links are followed.
    pub fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        let ns = |seconds: i64, ns: i64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size_bytes: metadata.size(),
            mtime_ns: ns(metadata.mtime(), metadata.mtime_nsec()),
            ctime_ns: ns(metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    /// Whether the file had not been touched for a while at `moment_ns`.
    fn settled_at(&self, moment_ns: i128) -> bool {
        let latest = moment_ns - SETTLED.as_nanos() as i128;
        self.mtime_ns < latest && self.ctime_ns < latest
    }
}

/// When hashing began, and the stamps of the files that were hashed.
#[derive(Clone, Debug)]
pub struct Stamped {
    began_ns: i128,
    stamps: Vec<Stamp>,
}

impl Stamped {
    /// Hashing begins now.
    pub fn now() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { began_ns: now.as_nanos() as i128, stamps: Vec::new() }
    }

    /// The stamps of the model's files, in their order.
    pub fn with(self, stamps: Vec<Stamp>) -> Self {
        Self { stamps, ..self }
    }
}

#[derive(Serialize, Deserialize)]
struct Entry {
    version: u32,
    /// Two paths with one hash would be a broken SHA-256; kept for people who look into the folder.
    path: PathBuf,
    stamps: Vec<Stamp>,
    identity: ModelIdentity,
}

impl DigestCache {
    /// A cache in `folder`, which is made when the first entry is written.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The identity of the model at `path`, when it is known and none of its files changed.
    pub fn get(&self, path: &Path) -> Option<ModelIdentity> {
        let place = real_place(path)?;
        let entry = self.read(&place)?;
        let files = &entry.identity.files;
        let folder = place.parent()?;
        let unchanged = entry.version == VERSION
            && entry.path == place
            && files.len() == entry.stamps.len()
            && files.iter().zip(&entry.stamps).enumerate().all(|(index, (file, stamp))| {
                // A link among external files may have been turned elsewhere.
                let leads_there =
                    index == 0 || fs::canonicalize(folder.join(&file.name)).is_ok_and(|real| real == file.path);
                let path = if index == 0 { &place } else { &file.path };
                leads_there && Stamp::of(path).is_ok_and(|now| now == *stamp)
            });
        if !unchanged {
            return None;
        }
        let mut identity = entry.identity;
        path.clone_into(&mut identity.files.first_mut()?.path);
        Some(identity)
    }

    /// Remembers `identity`, unless a file changed too shortly before. Failing to write costs time later, nothing else.
    pub fn put(&self, path: &Path, identity: &ModelIdentity, stamped: Stamped) {
        if !stamped.stamps.iter().all(|stamp| stamp.settled_at(stamped.began_ns)) {
            return;
        }
        let Some(place) = real_place(path) else { return };
        let entry = Entry { version: VERSION, path: place.clone(), stamps: stamped.stamps, identity: identity.clone() };
        if let Err(error) = self.write(&place, &entry) {
            tracing::debug!(folder = %self.folder.display(), %error, "cannot remember a model's digest");
        }
    }

    fn file_of(&self, place: &Path) -> PathBuf {
        self.folder.join(format!("{}.json", Digest::of(place.as_os_str().as_encoded_bytes())))
    }

    /// The entry for `place`; nothing when there is none or it is damaged.
    fn read(&self, place: &Path) -> Option<Entry> {
        let mut text = String::new();
        fs::File::open(self.file_of(place)).ok()?.take(MAX_ENTRY_BYTES).read_to_string(&mut text).ok()?;
        let (digest, body) = text.split_once('\n')?;
        (digest.parse() == Ok(Digest::of(body.as_bytes()))).then(|| serde_json::from_str(body).ok())?
    }

    fn write(&self, place: &Path, entry: &Entry) -> io::Result<()> {
        let body = serde_json::to_string(entry)?;
        let text = format!("{}\n{body}", Digest::of(body.as_bytes()));
        if text.len() as u64 >= MAX_ENTRY_BYTES {
            return Ok(());
        }
        fs::create_dir_all(&self.folder)?;
        self.trim()?;
        durable::write_cache(&self.file_of(place), text.as_bytes())
    }

    /// Makes room for one entry: removes the oldest tenth when the folder is full.
    fn trim(&self) -> io::Result<()> {
        let entries = fs::read_dir(&self.folder)?.filter_map(Result::ok);
        let mut aged: Vec<_> =
            entries.filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()))).collect();
        if aged.len() < MAX_ENTRIES {
            return Ok(());
        }
        aged.sort_unstable();
        // Another process may have removed it already.
        aged.iter().take(MAX_ENTRIES / 10).for_each(|(_, path)| drop(fs::remove_file(path)));
        Ok(())
    }
}

/// The path by which a model is known: its real folder, and its name in it (external data lies beside the name, not
/// beside what a link leads to).
fn real_place(path: &Path) -> Option<PathBuf> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    Some(fs::canonicalize(folder).ok()?.join(path.file_name()?))
}

#[cfg(test)]
mod tests {
    use super::{super::model::IdentifiedFile, *};

    /// An identity for a model of the files `names` in `folder`, stamped as if they had been at rest for long.
    fn known(folder: &Path, names: &[&str]) -> (ModelIdentity, Stamped) {
        let files: Vec<_> = names
            .iter()
            .map(|name| IdentifiedFile {
                name: (*name).into(),
                path: fs::canonicalize(folder).unwrap().join(name),
                digest: Digest::of(name.as_bytes()),
                size_bytes: 1,
            })
            .collect();
        let stamps = files.iter().map(|file| Stamp::of(&file.path).unwrap()).collect();
        let digest = Digest::of(b"x");
        let identity =
            ModelIdentity { digest, graph_digest: digest, structure_digest: digest, name: names[0].into(), files };
        let later = Stamped { began_ns: Stamped::now().began_ns + 2 * SETTLED.as_nanos() as i128, stamps };
        (identity, later)
    }

    struct Fixture {
        folder: tempfile::TempDir,
        cache: DigestCache,
        model: PathBuf,
        identity: ModelIdentity,
    }

    fn fixture() -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        for name in ["m.onnx", "weights"] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        let cache = DigestCache::new(folder.path().join("cache"));
        let model = folder.path().join("m.onnx");
        let (identity, stamped) = known(folder.path(), &["m.onnx", "weights"]);
        cache.put(&model, &identity, stamped);
        assert_eq!(cache.get(&model).as_ref().map(|found| found.digest), Some(identity.digest));
        Fixture { folder, cache, model, identity }
    }

    #[test]
    fn a_change_of_any_file_is_noticed() {
        for name in ["m.onnx", "weights"] {
            let it = fixture();
            fs::write(it.folder.path().join(name), "other").unwrap();
            assert_eq!(it.cache.get(&it.model), None, "{name}");
        }
        let it = fixture();
        fs::remove_file(it.folder.path().join("weights")).unwrap();
        assert_eq!(it.cache.get(&it.model), None);
    }

    #[test]
    fn a_replaced_file_with_the_old_size_and_mtime_is_noticed() {
        let it = fixture();
        let modified = fs::metadata(&it.model).unwrap().modified().unwrap();
        fs::write(it.folder.path().join("new"), "M.onnx").unwrap();
        fs::rename(it.folder.path().join("new"), &it.model).unwrap();
        fs::File::options().write(true).open(&it.model).unwrap().set_modified(modified).unwrap();
        assert_eq!(it.cache.get(&it.model), None);
    }

    #[test]
    fn a_link_that_was_turned_elsewhere_is_noticed() {
        let it = fixture();
        // The old data file stays as it was, under its real name.
        let weights = it.folder.path().join("weights");
        fs::create_dir(it.folder.path().join("other")).unwrap();
        fs::write(it.folder.path().join("other/weights"), "weights").unwrap();
        fs::rename(&weights, it.folder.path().join("kept")).unwrap();
        std::os::unix::fs::symlink("other/weights", &weights).unwrap();
        assert_eq!(it.cache.get(&it.model), None);
    }

    #[test]
    fn a_file_changed_just_before_is_not_remembered() {
        let it = fixture();
        fs::remove_dir_all(it.folder.path().join("cache")).unwrap();
        let (identity, mut stamped) = known(it.folder.path(), &["m.onnx"]);
        stamped.began_ns = stamped.stamps[0].ctime_ns + SETTLED.as_nanos() as i128;
        it.cache.put(&it.model, &identity, stamped.clone());
        assert_eq!(it.cache.get(&it.model), None);
        stamped.began_ns += 1;
        it.cache.put(&it.model, &identity, stamped);
        assert!(it.cache.get(&it.model).is_some());
    }

    #[test]
    fn a_damaged_entry_is_as_good_as_absent_and_is_replaced() {
        let it = fixture();
        let entry = fs::read_dir(it.folder.path().join("cache")).unwrap().next().unwrap().unwrap().path();
        let sound = fs::read(&entry).unwrap();
        for at in (0..sound.len()).step_by(7) {
            let mut damaged = sound.clone();
            damaged[at] ^= 1;
            fs::write(&entry, &damaged).unwrap();
            assert_eq!(it.cache.get(&it.model), None, "byte {at}");
            fs::write(&entry, &sound[..at]).unwrap();
            assert_eq!(it.cache.get(&it.model), None, "cut at {at}");
        }
        let (identity, stamped) = known(it.folder.path(), &["m.onnx", "weights"]);
        it.cache.put(&it.model, &identity, stamped);
        assert!(it.cache.get(&it.model).is_some());
    }

    #[test]
    fn a_model_is_found_under_another_spelling_of_its_path() {
        let it = fixture();
        fs::create_dir(it.folder.path().join("sub")).unwrap();
        let spelling = it.folder.path().join("sub/../m.onnx");
        let found = it.cache.get(&spelling).unwrap();
        assert_eq!((found.digest, found.files[0].path.as_path()), (it.identity.digest, spelling.as_path()));
    }

    #[test]
    fn an_unwritable_folder_does_no_harm() {
        let it = fixture();
        let cache = DigestCache::new(it.model.join("below-a-file"));
        let (identity, stamped) = known(it.folder.path(), &["m.onnx"]);
        cache.put(&it.model, &identity, stamped);
        assert_eq!(cache.get(&it.model), None);
    }

    #[test]
    fn many_writers_leave_one_sound_entry() {
        let it = fixture();
        let (identity, stamped) = known(it.folder.path(), &["m.onnx", "weights"]);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        it.cache.put(&it.model, &identity, stamped.clone());
                        assert!(it.cache.get(&it.model).is_some());
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(it.folder.path().join("cache")).unwrap().count(), 1);
    }
}
