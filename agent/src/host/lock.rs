//! One device, one job: a lock file per device and host, whose descriptor the worker inherits.
//!
//! The coordinator's lease decides who may publish; this lock decides who may run. It is held as long as any process
//! of the attempt lives, so an agent that died and came back cannot take a device that an orphan still uses. The file
//! names the holder; when the holder's agent is dead, its processes are orphans and are killed.
//! The folder is the host's, not the user's: agents of two users must meet on the same file.

use super::proc::{self, ProcessId};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _, Write as _},
    os::{
        fd::{AsRawFd as _, RawFd},
        unix::fs::PermissionsExt as _,
    },
    path::{Path, PathBuf},
};

/// Where locks live, best first. `/run/lock` is emptied at boot and shared by all users.
const FOLDERS: [&str; 2] = ["/run/lock/planforge", "/tmp/planforge-locks"];
/// Everyone may make files, nobody may remove another's.
const FOLDER_MODE: u32 = 0o1777;
const FILE_MODE: u32 = 0o666;
/// Largest note in a lock file that is read.
const NOTE_MAX_BYTES: u64 = 16 << 10;

/// Why a device could not be guarded.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} the device lock {}: {source}", path.display())]
pub struct LockError {
    pub action: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

/// Who holds a device, as its lock file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub agent: ProcessId,
    /// For people.
    pub agent_name: String,
    pub job: String,
    /// Marks every process of the attempt.
    pub marker: String,
    /// Leader of the attempt's process group, once it runs.
    pub worker: Option<ProcessId>,
}

/// A device that is ours until this and every inherited descriptor are closed.
#[derive(Debug)]
pub struct DeviceLock {
    file: File,
    path: PathBuf,
}

/// What an attempt to take a device gave.
#[derive(Debug)]
pub enum Taken {
    Ours(DeviceLock),
    /// Somebody has it; who, when the file tells.
    Held(Option<Holder>),
}

/// The lock folder of this host: the first that exists or can be made and takes files of ours.
pub fn host_folder() -> Result<PathBuf, LockError> {
    let mut last = None;
    for folder in FOLDERS.map(Path::new) {
        match prepare_folder(folder) {
            Ok(()) => return Ok(folder.to_owned()),
            Err(error) => last = Some(error),
        }
    }
    Err(last.expect("there is at least one folder"))
}

/// Makes `folder` usable by every user of the host.
pub fn prepare_folder(folder: &Path) -> Result<(), LockError> {
    let fail = |action| move |source| LockError { action, path: folder.to_owned(), source };
    match fs::create_dir(folder) {
        Ok(()) => fs::set_permissions(folder, fs::Permissions::from_mode(FOLDER_MODE)).map_err(fail("share"))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(fail("make the folder of")(error)),
    }
    rustix::fs::access(folder, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)
        .map_err(|error| fail("write in the folder of")(error.into()))
}

fn file_name(device: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '.' { c } else { '_' };
    format!("device-{}.lock", device.chars().map(safe).collect::<String>())
}

/// Opens the lock file. Another user's file is opened without the create flag, which sticky folders refuse.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    loop {
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => return Ok(fd.into()),
            Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        match rustix::fs::open(path, flags | OFlags::CREATE | OFlags::EXCL, Mode::from_raw_mode(FILE_MODE)) {
            Ok(fd) => {
                let file = File::from(fd);
                file.set_permissions(fs::Permissions::from_mode(FILE_MODE))?;
                return Ok(file);
            }
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Tries to take `device` now.
pub fn try_take(folder: &Path, device: &str) -> Result<Taken, LockError> {
    let path = folder.join(file_name(device));
    let fail = |action| LockErrorAt { action, path: path.clone() };
    let mut file = open(&path).map_err(|source| fail("open").with(source))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            let lock = DeviceLock { file, path };
            lock.write_note(b"")?;
            Ok(Taken::Ours(lock))
        }
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut note = Vec::new();
            (&mut file).take(NOTE_MAX_BYTES).read_to_end(&mut note).map_err(|source| fail("read").with(source))?;
            Ok(Taken::Held(serde_json::from_slice(&note).ok()))
        }
        Err(error) => Err(fail("take").with(error.into())),
    }
}

struct LockErrorAt {
    action: &'static str,
    path: PathBuf,
}

impl LockErrorAt {
    fn with(self, source: io::Error) -> LockError {
        LockError { action: self.action, path: self.path, source }
    }
}

impl DeviceLock {
    /// The descriptor that the worker inherits.
    pub fn raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Says in the file who holds the device.
    pub fn name_holder(&self, holder: &Holder) -> Result<(), LockError> {
        self.write_note(&serde_json::to_vec(holder).expect("plain data"))
    }

    fn write_note(&self, note: &[u8]) -> Result<(), LockError> {
        let fail = |source| LockError { action: "write", path: self.path.clone(), source };
        let mut file = &self.file;
        file.set_len(0).map_err(fail)?;
        file.rewind().map_err(fail)?;
        file.write_all(note).map_err(fail)
    }
}

impl Holder {
    /// Kills what a dead agent left running; `false` when its agent lives and the device is rightly held.
    pub fn kill_if_orphaned(&self) -> bool {
        if self.agent.is_alive() {
            return false;
        }
        // Anybody may have written the note: only what was started for this very attempt is killed.
        let worker = self.worker.filter(|worker| worker.is_alive() && proc::carries(worker.pid, &self.marker));
        if let Some(worker) = worker {
            proc::signal_group(worker.pid, nix::sys::signal::Signal::SIGKILL);
        }
        let strays = proc::kill_marked(&self.marker);
        if worker.is_some() || strays > 0 {
            let (job, agent) = (&self.job, &self.agent_name);
            tracing::warn!(job, agent, ?worker, strays, "killed what a dead agent left on a device");
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(marker: &str) -> Holder {
        Holder {
            agent: ProcessId::current().unwrap(),
            agent_name: "host".into(),
            job: "j".into(),
            marker: marker.into(),
            worker: None,
        }
    }

    #[test]
    fn a_device_is_taken_once_and_names_its_holder() {
        let folder = tempfile::tempdir().unwrap();
        let Taken::Ours(lock) = try_take(folder.path(), "GPU-1/../x").unwrap() else { panic!("free") };
        lock.name_holder(&holder("a")).unwrap();
        let Taken::Held(Some(seen)) = try_take(folder.path(), "GPU-1/../x").unwrap() else { panic!("held") };
        assert_eq!(seen, holder("a"));
        assert!(!seen.kill_if_orphaned(), "its agent is this very process");
        assert!(matches!(try_take(folder.path(), "cpu0").unwrap(), Taken::Ours(_)));
        drop(lock);
        assert!(matches!(try_take(folder.path(), "GPU-1/../x").unwrap(), Taken::Ours(_)));
    }

    #[test]
    fn the_folder_and_files_are_everyones() {
        let folder = tempfile::tempdir().unwrap();
        let locks = folder.path().join("locks");
        prepare_folder(&locks).unwrap();
        prepare_folder(&locks).unwrap();
        let _lock = try_take(&locks, "cpu0").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(&locks), mode(&locks.join("device-cpu0.lock"))), (0o1777, 0o666));
    }
}
