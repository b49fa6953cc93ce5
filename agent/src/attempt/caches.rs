//! Timing and tactic caches of this host: one private copy for each build, kept and published after its success.
//!
//! The coordinator says which cache is the newest of a scope (`DeviceFingerprint::tuning_scope`); this host keeps a copy
//! by digest, so that an unchanged cache is never fetched twice and the blob store may be away. A build works on its own
//! copy in its scratch folder: what it leaves there is worth something only when the build succeeded, and a build that
//! is killed tears nothing. Whatever is wrong with a cache costs time, never a build.
//!
//! Crash safety: data lies under its digest; `SCOPE.json`, replaced by rename, says which data is a scope's newest here.
//! What is used is checked against its digest first.

use super::{joins::Joins, log::AttemptLog, models::is_sound};
use planforge_client::{Blobs, blocking::blocking};
use planforge_proto::v1;
use planforge_types::{
    Digest, DigestWriter, Sku, durable,
    order::{CacheOrigin, TUNING_CACHE_MAX_BYTES},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, PoisonError},
    time::SystemTime,
};
use tokio::sync::{Mutex, OwnedMutexGuard};

/// Name of a build's own copy in its scratch folder.
pub(super) const CACHE_FILE: &str = "tuning.cache";
/// Scopes that a host keeps copies for: every toolchain on every device it has, with room for upgrades.
const SCOPES_MAX: usize = 64;
/// Bytes that are copied at once.
const PIECE_BYTES: usize = 64 << 10;

/// The caches this host keeps; clones share them.
#[derive(Clone, Debug)]
pub struct Caches {
    folder: PathBuf,
    joins: Joins,
    /// One build's cache of a scope is kept and published at a time, so that each grows from the one before.
    turns: Arc<std::sync::Mutex<BTreeMap<Digest, Arc<Mutex<()>>>>>,
}

/// What a build may begin with.
#[derive(Debug)]
pub(super) struct Offered {
    /// As this agent works it out; a cache of another scope is not touched.
    pub scope: Digest,
    /// Whose caches these are.
    pub backend: String,
    pub sku: Sku,
    /// As the coordinator knows it; without a digest: dropped.
    pub newest: Option<v1::TuningCache>,
    /// Begin from nothing.
    pub without: bool,
}

/// What a build began with.
#[derive(Debug)]
pub(super) struct TakenCache {
    pub scope: Digest,
    backend: String,
    sku: Sku,
    /// The build's own copy.
    pub file: PathBuf,
    /// `None`: from nothing.
    pub origin: Option<CacheOrigin>,
    /// The farm's newest when the build began.
    previous: Option<Digest>,
    /// Of those that the farm keeps beside it: what the build began with too, or what is of no use to any.
    beside: Vec<Digest>,
    /// The build did not begin with what the farm has: its result would drop what others learnt.
    only_here: bool,
    /// It began from nothing because of what the farm has: nothing of that is added afterwards.
    shuns: bool,
    /// What this agent had published when the build began.
    published: Option<Digest>,
}

impl Caches {
    pub fn new(folder: PathBuf, joins: Joins) -> Self {
        Self { folder, joins, turns: Arc::default() }
    }

    fn data(&self, digest: Digest) -> PathBuf {
        self.folder.join(format!("{digest}.cache"))
    }

    fn record(&self, scope: Digest) -> PathBuf {
        self.folder.join(format!("{scope}.json"))
    }

    /// Lays the newest cache of the scope out as `file`. Whatever goes wrong, the build begins with less.
    pub(super) async fn take(&self, blobs: &Blobs, offered: Offered, file: PathBuf, log: &AttemptLog) -> TakenCache {
        let Offered { scope, backend, sku, newest, without } = offered;
        let published = self.joins.published(scope);
        let mut taken = TakenCache {
            scope,
            backend,
            sku,
            file,
            origin: None,
            previous: None,
            beside: Vec::new(),
            only_here: false,
            shuns: without,
            published,
        };
        let newest = newest.map(|newest| Newest::read(&newest, scope)).transpose().unwrap_or_else(|why| {
            log.note(&format!("the timing cache that the coordinator named is left alone: {why}"));
            taken.only_here = true;
            None
        });
        if without {
            log.note("begins without the timing cache: an earlier attempt broke down with it, or it was timed while disturbed");
        }
        let mut waiting = Vec::new();
        let origin = match newest {
            Some(Newest::Dropped) => {
                self.forget(scope).await;
                None
            }
            Some(Newest::Cache { newest, beside }) => {
                // A cold success after a breakdown takes the place of what broke.
                taken.previous = Some(newest.digest);
                waiting = beside;
                if without {
                    taken.beside.extend(waiting.drain(..).map(|beside| beside.digest));
                    None
                } else if self.fetch(blobs, scope, &newest, log).await {
                    Some(newest)
                } else {
                    taken.only_here = true;
                    self.kept(scope).await
                }
            }
            None if without => None,
            None => self.kept(scope).await,
        };
        let Some(origin) = origin else { return taken };
        let (from, to) = (self.data(origin.digest), taken.file.clone());
        match blocking(move || copy_and_hash(&from, &to)).await {
            Ok(digest) if digest == origin.digest => taken.origin = Some(origin),
            other => {
                let why = other.map_or_else(|error| error.to_string(), |_| "it is damaged".into());
                log.note(&format!("the timing cache cannot be copied, the build begins without it: {why}"));
                // What such a build learns must not take the place of all that the farm's cache holds.
                taken.only_here |= taken.previous.is_some();
                let file = taken.file.clone();
                // Half a copy that stays is found damaged by the backend.
                let _ = blocking(move || fs::remove_file(file)).await;
            }
        }
        if !taken.only_here {
            for beside in waiting {
                self.add_beside(blobs, &mut taken, beside, log).await;
            }
        }
        taken
    }

    /// Adds one that the farm keeps beside its newest to what a build begins with.
    async fn add_beside(&self, blobs: &Blobs, taken: &mut TakenCache, beside: Beside, log: &AttemptLog) {
        let Beside { digest, bytes, job } = beside;
        if bytes > TUNING_CACHE_MAX_BYTES {
            taken.beside.push(digest);
            return;
        }
        let from = taken.file.with_extension("beside");
        if let Err(error) = blobs.download_to_cache(digest, &from).await {
            log.note(&format!("the timing cache of job {job} is not joined yet, for it could not be fetched: {error}"));
            return;
        }
        let (joins, backend, sku, into) =
            (self.joins.clone(), taken.backend.clone(), taken.sku.clone(), taken.file.clone());
        let joined = blocking(move || {
            let joined = joins.join(&backend, &sku, &into, &from);
            fs::remove_file(&from).and(joined)
        });
        match joined.await {
            Ok(true) => {
                log.note(&format!("the timing cache was joined with that of job {job}, which was built meanwhile"))
            }
            Ok(false) => log.note(&format!("the timing cache of job {job} cannot be joined with another: it goes")),
            Err(error) => log.note(&format!("the timing cache of job {job} is not joined, and goes: {error}")),
        }
        taken.beside.push(digest);
    }

    /// Has the data of `newest` here, sound; else says why not.
    async fn fetch(&self, blobs: &Blobs, scope: Digest, newest: &CacheOrigin, log: &AttemptLog) -> bool {
        if newest.bytes > TUNING_CACHE_MAX_BYTES {
            let limit = TUNING_CACHE_MAX_BYTES;
            log.note(&format!("the timing cache has {} bytes, more than {limit}: left alone", newest.bytes));
            return false;
        }
        let (data, digest) = (self.data(newest.digest), newest.digest);
        let check = data.clone();
        if blocking(move || is_sound(&check, digest)).await {
            return true;
        }
        if let Err(error) = blobs.download_to_cache(digest, &data).await {
            log.note(&format!("the newest timing cache could not be fetched: {error}"));
            return false;
        }
        let (caches, newest) = (self.clone(), newest.clone());
        if let Err(error) = blocking(move || caches.remember(scope, &newest)).await {
            tracing::warn!(folder = %self.folder.display(), %error, "cannot remember a fetched timing cache");
        }
        true
    }

    /// This host's own newest of the scope, when its data is sound.
    async fn kept(&self, scope: Digest) -> Option<CacheOrigin> {
        let caches = self.clone();
        blocking(move || {
            let origin: CacheOrigin = serde_json::from_slice(&fs::read(caches.record(scope)).ok()?).ok()?;
            let fits = origin.bytes <= TUNING_CACHE_MAX_BYTES;
            (fits && is_sound(&caches.data(origin.digest), origin.digest)).then_some(origin)
        })
        .await
    }

    async fn forget(&self, scope: Digest) {
        let record = self.record(scope);
        blocking(move || match fs::remove_file(&record) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %record.display(), %error, "cannot remove a dropped timing cache");
            }
            _ => {}
        })
        .await;
    }

    async fn turn(&self, scope: Digest) -> OwnedMutexGuard<()> {
        let turn = self.turns.lock().unwrap_or_else(PoisonError::into_inner).entry(scope).or_default().clone();
        turn.lock_owned().await
    }

    /// After a success: keeps what the build left, by rename, and uploads it. Returns what the coordinator is to
    /// publish; `None` when there is nothing new, or nothing that may be published.
    ///
    /// May be dropped at any time, the upload included: others of the scope have their turn then. What was begun on this
    /// host's disk ends first, since it has the turn with it.
    pub(super) async fn keep(
        &self,
        blobs: &Blobs,
        taken: TakenCache,
        (job, agent): (&str, &str),
        log: &Arc<AttemptLog>,
    ) -> Option<v1::CacheUpdate> {
        let (scope, only_here) = (taken.scope, taken.only_here);
        let beside = taken.beside.iter().map(Digest::to_string).collect();
        let turn = self.turn(scope).await;
        let (caches, notes) = (self.clone(), log.clone());
        let (job, agent) = (job.to_owned(), agent.to_owned());
        let work = blocking(move || {
            let previous = caches.join(&taken, &notes);
            let before = taken.origin.as_ref().map(|origin| origin.digest);
            (caches.keep_file(scope, &taken.file, before, job, agent), previous, turn)
        });
        let (kept, previous, _turn) = work.await;
        let kept = match kept {
            Ok(Kept::New(kept)) => kept,
            Ok(Kept::Same) => return None,
            Ok(Kept::Refused(why)) => {
                log.note(&format!("the timing cache that the build left is not kept: {why}"));
                return None;
            }
            Err(error) => {
                log.note(&format!("the timing cache that the build left cannot be kept: {error}"));
                return None;
            }
        };
        if only_here {
            log.note("the timing cache is kept on this host only: the build did not begin with the farm's");
            return None;
        }
        if let Err(error) = blobs.upload(&self.data(kept.digest), kept.digest).await {
            log.note(&format!("the timing cache is kept on this host only: {error}"));
            return None;
        }
        self.joins.publish(scope, kept.digest);
        Some(v1::CacheUpdate {
            scope: scope.to_string(),
            digest: kept.digest.to_string(),
            size_bytes: kept.bytes,
            previous_digest: previous.map(|previous| previous.to_string()).unwrap_or_default(),
            beside_digests: beside,
        })
    }

    /// Adds to what a build left what others of this host published since it began; returns what the result grew from.
    fn join(&self, taken: &TakenCache, log: &AttemptLog) -> Option<Digest> {
        let newer = self.joins.published(taken.scope).filter(|newer| Some(*newer) != taken.published);
        let Some(newer) = newer.filter(|_| !taken.only_here && !taken.shuns) else { return taken.previous };
        let (from, into) = (self.data(newer), &taken.file);
        let before = taken.origin.as_ref().map(|origin| origin.digest);
        let join = || -> io::Result<bool> {
            // A build that learnt nothing has nothing to publish.
            let learnt = fs::symlink_metadata(into).is_ok_and(|file| file.is_file())
                && Some(DigestWriter::of_file(into)?.0) != before;
            if !learnt || !is_sound(&from, newer) {
                return Ok(false);
            }
            self.joins.join(&taken.backend, &taken.sku, into, &from)
        };
        match join() {
            Ok(true) => {
                log.note("the timing cache was joined with that of a build that ended meanwhile on this host");
                Some(newer)
            }
            Ok(false) => taken.previous,
            Err(error) => {
                log.note(&format!("the timing cache cannot be joined with one that was published meanwhile: {error}"));
                taken.previous
            }
        }
    }

    fn keep_file(
        &self,
        scope: Digest,
        file: &Path,
        before: Option<Digest>,
        job: String,
        agent: String,
    ) -> io::Result<Kept> {
        // Not through a link: only what lies in the scratch folder itself.
        let bytes = match fs::symlink_metadata(file) {
            Ok(metadata) if metadata.is_file() => metadata.len(),
            Ok(_) => return Ok(Kept::Refused("it is no plain file".into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Kept::Same),
            Err(error) => return Err(error),
        };
        if bytes == 0 || bytes > TUNING_CACHE_MAX_BYTES {
            return Ok(Kept::Refused(format!("it has {bytes} bytes; 1 to {TUNING_CACHE_MAX_BYTES} are kept")));
        }
        let staged = self.folder.join(format!("{}.partial", crate::host::state::new_id()));
        let digest = copy_and_hash(file, &staged).inspect_err(|_| drop(fs::remove_file(&staged)))?;
        if before == Some(digest) {
            fs::remove_file(&staged)?;
            return Ok(Kept::Same);
        }
        durable::rename(&staged, &self.data(digest))?;
        let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let published_unix_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        let kept = CacheOrigin { digest, bytes, job, agent, published_unix_ms };
        self.remember(scope, &kept)?;
        Ok(Kept::New(kept))
    }

    /// Makes `newest`, whose data is here, the scope's newest on this host.
    fn remember(&self, scope: Digest, newest: &CacheOrigin) -> io::Result<()> {
        durable::write(&self.record(scope), &serde_json::to_vec(newest).map_err(io::Error::other)?)?;
        if let Err(error) = self.tidy() {
            tracing::warn!(folder = %self.folder.display(), %error, "cannot tidy the folder of timing caches");
        }
        Ok(())
    }

    /// Removes the longest unchanged scopes beyond the limit, and data that is no scope's newest.
    fn tidy(&self) -> io::Result<()> {
        let (mut records, mut data) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("json") => records.push((fs::metadata(&path)?.modified()?, path)),
                Some("cache") => data.push(path),
                _ => {}
            }
        }
        records.sort();
        let over = records.len().saturating_sub(SCOPES_MAX);
        for (_, path) in records.drain(..over) {
            fs::remove_file(path)?;
        }
        let mut named = BTreeSet::new();
        for (_, path) in &records {
            if let Ok(origin) = serde_json::from_slice::<CacheOrigin>(&fs::read(path)?) {
                named.insert(self.data(origin.digest));
            }
        }
        for path in data.iter().filter(|path| !named.contains(*path)) {
            fs::remove_file(path)?;
        }
        Ok(())
    }
}

/// What became of a file that a build left.
#[derive(Debug)]
enum Kept {
    New(CacheOrigin),
    /// None, or the one it began with.
    Same,
    Refused(String),
}

/// What the coordinator says of a scope.
enum Newest {
    Dropped,
    Cache { newest: CacheOrigin, beside: Vec<Beside> },
}

/// A cache that is to be added to the newest.
#[derive(Debug)]
struct Beside {
    digest: Digest,
    bytes: u64,
    /// Whose build left it.
    job: String,
}

impl Newest {
    fn read(cache: &v1::TuningCache, scope: Digest) -> Result<Self, String> {
        if cache.scope != scope.to_string() {
            return Err("it is of another kind of device, or of another toolchain".into());
        }
        if cache.digest.is_empty() {
            return Ok(Self::Dropped);
        }
        let newest = CacheOrigin {
            digest: cache.digest.parse().map_err(|error| format!("{error}"))?,
            bytes: cache.size_bytes,
            job: cache.job.clone(),
            agent: cache.agent.clone(),
            published_unix_ms: cache.published_ms,
        };
        let beside = cache.beside.iter().filter_map(|beside| {
            Some(Beside { digest: beside.digest.parse().ok()?, bytes: beside.size_bytes, job: beside.job.clone() })
        });
        Ok(Self::Cache { newest, beside: beside.collect() })
    }
}

/// Copies up to the limit and returns what was copied: what happens to `from` later changes nothing.
fn copy_and_hash(from: &Path, to: &Path) -> io::Result<Digest> {
    let mut hash = DigestWriter::new();
    let mut out = File::create(to)?;
    let mut source = File::open(from)?.take(TUNING_CACHE_MAX_BYTES);
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        let read = source.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        hash.write_all(&buffer[..read])?;
        out.write_all(&buffer[..read])?;
    }
    out.sync_all()?;
    Ok(hash.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl crate::DeviceSource for Nothing {
        fn devices(&self) -> Result<Vec<planforge_types::fingerprint::DiscoveredDevice>, crate::DeviceError> {
            Ok(Vec::new())
        }

        fn telemetry(&self, _: &str) -> Option<planforge_types::telemetry::TelemetrySample> {
            None
        }

        /// Caches are lines here.
        fn join_caches(&self, backend: &str, _: &Sku, into: &Path, from: &Path) -> io::Result<bool> {
            if backend != "native" {
                return Ok(false);
            }
            let own = fs::read_to_string(into)?;
            let other = fs::read_to_string(from)?;
            let new: Vec<&str> = other.lines().filter(|line| !own.lines().any(|known| known == *line)).collect();
            fs::write(into, format!("{own}{}\n", new.join("\n")))?;
            Ok(true)
        }
    }

    fn caches_in(folder: &Path) -> Caches {
        Caches::new(folder.to_owned(), Joins::new(Arc::new(Nothing)))
    }

    fn keep(caches: &Caches, scope: Digest, content: &[u8], before: Option<Digest>) -> io::Result<Kept> {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join(CACHE_FILE);
        fs::write(&file, content).unwrap();
        caches.keep_file(scope, &file, before, "j".into(), "a".into())
    }

    #[test]
    fn only_new_plain_content_is_kept_and_old_data_goes() {
        let folder = tempfile::tempdir().unwrap();
        let caches = caches_in(folder.path());
        let scope = Digest::of(b"scope");
        let first = match keep(&caches, scope, b"one", None).unwrap() {
            Kept::New(kept) => kept,
            other => panic!("{other:?}"),
        };
        assert_eq!((first.digest, first.bytes), (Digest::of(b"one"), 3));
        assert!(matches!(keep(&caches, scope, b"one", Some(first.digest)).unwrap(), Kept::Same));
        assert!(matches!(keep(&caches, scope, b"", None).unwrap(), Kept::Refused(_)));
        assert!(matches!(keep(&caches, scope, b"two", Some(first.digest)).unwrap(), Kept::New(_)));
        assert!(!caches.data(first.digest).exists() && caches.data(Digest::of(b"two")).exists());
        let scratch = tempfile::tempdir().unwrap();
        let link = scratch.path().join(CACHE_FILE);
        std::os::unix::fs::symlink("/etc/hostname", &link).unwrap();
        assert!(matches!(
            caches.keep_file(scope, &link, None, String::new(), String::new()).unwrap(),
            Kept::Refused(_)
        ));
        // Nothing half-done stays.
        let left = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        assert!(left.into_iter().all(|path| path.extension().is_none_or(|extension| extension != "partial")));
    }

    /// Three builds begin at once: the second and third add what was published before them.
    #[tokio::test]
    async fn what_builds_side_by_side_learnt_is_joined() {
        let folder = tempfile::tempdir().unwrap();
        let scratch = tempfile::tempdir().unwrap();
        let log = AttemptLog::create(&scratch.path().join("log"), 1 << 20).unwrap();
        let caches = caches_in(folder.path());
        let scope = Digest::of(b"scope");
        let begun = |name: &str, published: Option<Digest>| TakenCache {
            scope,
            backend: "native".into(),
            sku: "h200-sxm".parse().unwrap(),
            file: scratch.path().join(name),
            origin: None,
            previous: Some(Digest::of(b"of the farm")),
            beside: Vec::new(),
            only_here: false,
            shuns: false,
            published,
        };
        let left = |taken: &TakenCache, content: &str| fs::write(&taken.file, content).unwrap();
        let kept = |taken: &TakenCache| {
            let Kept::New(kept) = caches.keep_file(scope, &taken.file, None, "j".into(), "a".into()).unwrap() else {
                panic!("nothing new")
            };
            caches.joins.publish(scope, kept.digest);
            kept.digest
        };
        let (first, second) = (begun("first", None), begun("second", None));
        left(&first, "one\n");
        assert_eq!(caches.join(&first, &log), first.previous, "nothing was published meanwhile");
        let published = kept(&first);
        left(&second, "two\n");
        assert_eq!(caches.join(&second, &log), Some(published), "it grew from the first's");
        assert_eq!(fs::read_to_string(&second.file).unwrap(), "two\none\n");
        let published = kept(&second);

        // One that has to leave it alone, or has nothing to add, is as it was.
        let untouched = async |taken: TakenCache, why: &str| {
            left(&taken, "three\n");
            assert_eq!(caches.join(&taken, &log), taken.previous, "{why}");
            assert_eq!(fs::read_to_string(&taken.file).unwrap(), "three\n", "{why}");
        };
        untouched(begun("later", Some(published)), "it began after that").await;
        untouched(TakenCache { shuns: true, ..begun("third", None) }, "what the farm has broke a build").await;
        untouched(TakenCache { only_here: true, ..begun("third", None) }, "it began with another cache").await;
        untouched(TakenCache { backend: "tensorrt".into(), ..begun("third", None) }, "nobody can join these").await;
        let own = CacheOrigin {
            digest: Digest::of(b"three\n"),
            bytes: 6,
            job: String::new(),
            agent: String::new(),
            published_unix_ms: 0,
        };
        untouched(TakenCache { origin: Some(own), ..begun("third", None) }, "it learnt nothing").await;
        fs::write(caches.data(published), "torn").unwrap();
        untouched(begun("third", None), "what was published is damaged").await;
    }

    #[test]
    fn scopes_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let caches = caches_in(folder.path());
        for number in 0..SCOPES_MAX + 3 {
            keep(&caches, Digest::of(&number.to_le_bytes()), &number.to_le_bytes(), None).unwrap();
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), SCOPES_MAX * 2);
    }

    #[test]
    fn another_scopes_cache_is_left_alone() {
        let scope = Digest::of(b"scope");
        let cache = |scope: Digest, digest: &str| v1::TuningCache {
            scope: scope.to_string(),
            digest: digest.into(),
            ..v1::TuningCache::default()
        };
        assert!(Newest::read(&cache(Digest::of(b"other"), &Digest::of(b"x").to_string()), scope).is_err());
        assert!(Newest::read(&cache(scope, "nonsense"), scope).is_err());
        assert!(matches!(Newest::read(&cache(scope, ""), scope), Ok(Newest::Dropped)));
        assert!(matches!(Newest::read(&cache(scope, &Digest::of(b"x").to_string()), scope), Ok(Newest::Cache { .. })));
    }
}
