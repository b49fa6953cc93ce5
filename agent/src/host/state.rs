//! The agent's own folder.
//!
//! What is kept: `agent-id`, who this agent is across restarts; `outbox/`, the end of every attempt until the
//! coordinator has acknowledged it; `models/`, files by digest; `caches/`, timing caches by device class and toolchain;
//! `ceilings/`, what the devices were measured to reach; `oracles/`, how the reference stood against independent runtimes;
//! `scratch/`, the folders of running attempts.
//!
//! Crash safety: an attempt's end is durable before it is sent. While an attempt runs, the outbox already holds the
//! end it would have if this process died, so the next process reports it instead of leaving it to a lease's expiry.

use planforge_proto::v1;
use planforge_types::durable;
use prost::Message as _;
use rustix::fs::{FlockOperation, flock};
use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};
use ulid::Ulid;

/// Folder of what the devices were measured to reach, within an agent's own; other commands of its user share it.
pub const CEILINGS: &str = "ceilings";

/// Folder of how the reference stood against independent runtimes, within an agent's own.
pub const ORACLES: &str = "oracles";

/// Mode of files that other users have no business with.
const PRIVATE_MODE: u32 = 0o600;

/// Longest job id that is taken; ids become file names.
const JOB_ID_MAX_BYTES: usize = 64;

/// Where an agent's own folder has model files, named by their digests.
pub fn models_folder(root: &Path) -> PathBuf {
    root.join("models")
}

/// Why the agent's folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("another agent of this host already uses the state folder {}", path.display())]
    Busy { path: PathBuf },
    #[error("{} does not hold an agent's identity", path.display())]
    BadIdentity { path: PathBuf },
}

impl StateError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}

/// How long the beginning of a download is of use to whoever goes on with it.
const PART_LIFE: Duration = Duration::from_secs(24 * 60 * 60);

/// Removes files that broke off a while ago: they have hidden names, or say that they are partial.
fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_part = name.starts_with('.') || name.ends_with(".partial");
        let facts = fs::symlink_metadata(&path);
        let age = facts.ok().filter(fs::Metadata::is_file).and_then(|facts| facts.modified().ok()?.elapsed().ok());
        if is_part && age.is_some_and(|age| age >= PART_LIFE) {
            match fs::remove_file(&path) {
                Ok(()) => tracing::info!(path = %path.display(), "removed what broke off earlier"),
                Err(error) => tracing::warn!(path = %path.display(), %error, "cannot remove what broke off earlier"),
            }
        }
    }
}

/// Names one attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttemptKey {
    pub job: String,
    pub attempt: u32,
}

impl AttemptKey {
    /// The attempt a lease is for; `None` when the job's id could not be a file name.
    pub fn of(lease: &v1::Lease) -> Option<Self> {
        let fine = (1..=JOB_ID_MAX_BYTES).contains(&lease.job.len())
            && lease.job.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        fine.then(|| Self { job: lease.job.clone(), attempt: lease.attempt })
    }
}

impl std::fmt::Display for AttemptKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.job, self.attempt)
    }
}

/// The agent's folder, locked for this process.
#[derive(Debug)]
pub struct StateFolder {
    root: PathBuf,
    agent_id: String,
    /// Held open: the lock ends with the process.
    _lock: File,
}

impl StateFolder {
    /// Opens the folder, making it and an identity when there is none. Scratch of dead attempts is removed, and what broke
    /// off of other files and nobody went on with.
    pub fn open(root: &Path) -> Result<Self, StateError> {
        for folder in ["", "outbox", "models", "caches", CEILINGS, ORACLES, "scratch"] {
            let path = root.join(folder);
            durable::create_private_dir(&path).map_err(StateError::io("make", &path))?;
        }
        close(root).map_err(StateError::io("close to others", root))?;
        let lock_path = root.join("agent.lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(PRIVATE_MODE)
            .open(&lock_path)
            .map_err(StateError::io("open", &lock_path))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(StateError::Busy { path: root.to_owned() }),
            Err(error) => return Err(StateError::io("lock", &lock_path)(error.into())),
        }
        let agent_id = identity(&root.join("agent-id"))?;
        let state = Self { root: root.to_owned(), agent_id, _lock: lock };
        state.clear_scratch()?;
        for folder in ["outbox", "models", "caches", CEILINGS, ORACLES] {
            sweep(&root.join(folder));
        }
        Ok(state)
    }

    /// Stable across restarts.
    pub fn agent_id(&self) -> &str {
        &self.agent_id
    }

    pub fn models(&self) -> PathBuf {
        models_folder(&self.root)
    }

    pub fn ceilings(&self) -> PathBuf {
        self.root.join(CEILINGS)
    }

    pub fn oracles(&self) -> PathBuf {
        self.root.join(ORACLES)
    }

    pub fn caches(&self) -> PathBuf {
        self.root.join("caches")
    }

    pub fn scratch(&self) -> PathBuf {
        self.root.join("scratch")
    }

    /// Folders of what this agent could get again.
    pub fn kept(&self) -> Vec<PathBuf> {
        vec![self.models(), self.caches(), self.ceilings(), self.oracles()]
    }

    pub fn outbox(&self) -> Outbox {
        Outbox { folder: self.root.join("outbox") }
    }

    fn clear_scratch(&self) -> Result<(), StateError> {
        let scratch = self.scratch();
        for entry in fs::read_dir(&scratch).map_err(StateError::io("list", &scratch))? {
            let path = entry.map_err(StateError::io("list", &scratch))?.path();
            if let Err(error) = fs::remove_dir_all(&path) {
                tracing::warn!(path = %path.display(), %error, "cannot remove the scratch folder of a dead attempt");
            }
        }
        Ok(())
    }
}

/// Closes a folder of an earlier release to other users: models, plans and this agent's key lie in it.
fn close(folder: &Path) -> io::Result<()> {
    let mode = fs::metadata(folder)?.permissions().mode();
    if mode & 0o077 != 0 {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

fn identity(path: &Path) -> Result<String, StateError> {
    match fs::read_to_string(path) {
        Ok(text) => match Ulid::from_string(text.trim()) {
            Ok(id) => Ok(id.to_string()),
            Err(_) => Err(StateError::BadIdentity { path: path.to_owned() }),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let id = new_id();
            durable::write_private(path, id.as_bytes()).map_err(StateError::io("write", path))?;
            Ok(id)
        }
        Err(error) => Err(StateError::io("read", path)(error)),
    }
}

/// A new random name for an agent, a process or an attempt.
pub fn new_id() -> String {
    Ulid::generate().to_string()
}

/// Ends of attempts that the coordinator has not acknowledged.
#[derive(Clone, Debug)]
pub struct Outbox {
    folder: PathBuf,
}

impl Outbox {
    fn ended_path(&self, key: &AttemptKey) -> PathBuf {
        self.folder.join(format!("{key}.ended"))
    }

    fn running_path(&self, key: &AttemptKey) -> PathBuf {
        self.folder.join(format!("{key}.running"))
    }

    /// Every end that still has to be acknowledged, those of attempts that died with an earlier process included.
    pub fn unacknowledged(&self) -> Result<Vec<v1::Finished>, StateError> {
        let mut ends = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(StateError::io("list", &self.folder))? {
            let path = entry.map_err(StateError::io("list", &self.folder))?.path();
            let is = |extension: &str| path.extension().is_some_and(|e| e == extension);
            if is("running") && path.with_extension("ended").exists() {
                remove(&path);
                continue;
            }
            if !is("running") && !is("ended") {
                remove(&path);
                continue;
            }
            let bytes = fs::read(&path).map_err(StateError::io("read", &path))?;
            match v1::Finished::decode(bytes.as_slice()) {
                Ok(finished) if finished.lease.is_some() => ends.push(finished),
                _ => {
                    tracing::warn!(path = %path.display(), "dropping an unreadable record of a finished attempt");
                    remove(&path);
                }
            }
        }
        Ok(ends)
    }

    /// Notes what is to be reported should this process die while the attempt runs. Not synced: after a power cut the
    /// lease's expiry does the same.
    pub fn begin(&self, key: &AttemptKey, if_lost: &v1::Finished) -> Result<(), StateError> {
        let path = self.running_path(key);
        let mut options = File::options();
        let file = options.create(true).truncate(true).write(true).mode(PRIVATE_MODE).open(&path);
        file.and_then(|mut file| file.write_all(&if_lost.encode_to_vec())).map_err(StateError::io("write", &path))
    }

    /// Keeps how the attempt ended until it is acknowledged.
    pub fn end(&self, key: &AttemptKey, finished: &v1::Finished) -> Result<(), StateError> {
        let path = self.ended_path(key);
        durable::write_private(&path, &finished.encode_to_vec()).map_err(StateError::io("write", &path))?;
        remove(&self.running_path(key));
        Ok(())
    }

    /// Drops the attempt: acknowledged, or another attempt owns the job.
    pub fn forget(&self, key: &AttemptKey) {
        remove(&self.ended_path(key));
        remove(&self.running_path(key));
    }
}

fn remove(path: &Path) {
    match fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!(path = %path.display(), %error, "cannot remove a file of the outbox"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(job: &str, outcome: &str) -> v1::Finished {
        let lease = v1::Lease { job: job.into(), attempt: 1, device: "cpu0".into() };
        v1::Finished { lease: Some(lease), outcome: outcome.into(), ..v1::Finished::default() }
    }

    fn key(job: &str) -> AttemptKey {
        AttemptKey { job: job.into(), attempt: 1 }
    }

    #[test]
    fn what_broke_off_long_ago_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        drop(StateFolder::open(folder.path()).unwrap());
        let path = |name: &str| folder.path().join(name);
        let files = ["models/.a.part", "models/.b.part", "caches/c.partial", "outbox/.d.new", "models/whole"];
        for name in files {
            fs::write(path(name), "x").unwrap();
            let age = if name == "models/.b.part" { Duration::ZERO } else { PART_LIFE + Duration::from_secs(1) };
            let at = std::time::SystemTime::now() - age;
            File::options().write(true).open(path(name)).unwrap().set_modified(at).unwrap();
        }
        drop(StateFolder::open(folder.path()).unwrap());
        let left: Vec<&str> = files.into_iter().filter(|name| path(name).exists()).collect();
        assert_eq!(left, ["models/.b.part", "models/whole"], "a download that was just cut goes on");
    }

    #[test]
    fn identity_stays_and_the_folder_has_one_owner() {
        let folder = tempfile::tempdir().unwrap();
        let first = StateFolder::open(folder.path()).unwrap();
        assert!(matches!(StateFolder::open(folder.path()), Err(StateError::Busy { .. })));
        let id = first.agent_id().to_owned();
        fs::create_dir(first.scratch().join("left")).unwrap();
        drop(first);
        let second = StateFolder::open(folder.path()).unwrap();
        assert_eq!(second.agent_id(), id);
        assert!(!second.scratch().join("left").exists());
        drop(second);
        fs::write(folder.path().join("agent-id"), "nonsense").unwrap();
        assert!(matches!(StateFolder::open(folder.path()), Err(StateError::BadIdentity { .. })));
    }

    #[test]
    fn folders_and_files_are_closed_to_other_users() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("state");
        fs::create_dir(&root).unwrap();
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
        let state = StateFolder::open(&root).unwrap();
        state.outbox().begin(&key("a"), &finished("a", "failed")).unwrap();
        state.outbox().end(&key("b"), &finished("b", "succeeded")).unwrap();
        let mut folders = vec![root];
        while let Some(folder) = folders.pop() {
            assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700, "{}", folder.display());
            for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
                if entry.file_type().unwrap().is_dir() {
                    folders.push(entry.path());
                } else {
                    let mode = entry.metadata().unwrap().permissions().mode();
                    assert_eq!(mode & 0o777, 0o600, "{}", entry.path().display());
                }
            }
        }
    }

    #[test]
    fn what_is_not_acknowledged_survives_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let outbox = StateFolder::open(folder.path()).unwrap().outbox();
        outbox.begin(&key("a"), &finished("a", "failed")).unwrap();
        outbox.begin(&key("b"), &finished("b", "failed")).unwrap();
        outbox.end(&key("b"), &finished("b", "succeeded")).unwrap();
        outbox.begin(&key("c"), &finished("c", "failed")).unwrap();
        outbox.forget(&key("c"));
        fs::write(outbox.folder.join("d-1.ended"), b"\xff\xff").unwrap();
        let mut ends: Vec<_> =
            outbox.unacknowledged().unwrap().into_iter().map(|f| (f.lease.unwrap().job, f.outcome)).collect();
        ends.sort();
        assert_eq!(ends, [("a".into(), "failed".into()), ("b".into(), "succeeded".into())]);
    }

    #[test]
    fn job_ids_that_are_paths_are_refused() {
        for bad in ["", "../x", "a/b", &"a".repeat(65)] {
            assert_eq!(AttemptKey::of(&v1::Lease { job: bad.into(), attempt: 1, device: String::new() }), None);
        }
    }
}
