//! One device, one job: a lock file per device and host, whose descriptor the worker inherits.
//!
//! The coordinator's lease decides who may publish; this lock decides who may run. It is held as long as any process
//! of the attempt lives, so an agent that died and came back cannot take a device that an orphan still uses. The file
//! names the holder; when the holder's agent is dead, its processes are orphans and are killed.
//! The folder is the host's, not the user's: agents of two users must meet on the same file.

use super::{
    owner::Owner,
    proc::{self, ProcessId},
};
use planforge_types::host_lock::{self, Tried};
pub use planforge_types::host_lock::{LockError, host_folder, prepare_folder};
use serde::{Deserialize, Serialize};
use std::{
    fmt,
    fs::File,
    io::{Read as _, Seek as _, Write as _},
    os::fd::{AsRawFd as _, RawFd},
    path::{Path, PathBuf},
};

/// Largest note in a lock file that is read.
const NOTE_MAX_BYTES: u64 = 16 << 10;
/// How the lock files of devices are called.
const FILE_BEGINS: &str = "device-";
const FILE_ENDS: &str = ".lock";

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
    /// Where these numbers count; containers that share a lock folder number their processes each for itself.
    #[serde(default)]
    pub pid_namespace: Option<u64>,
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
    Busy(Busy),
}

/// Somebody else's hold on a device.
#[derive(Debug)]
pub struct Busy {
    /// The lock file.
    pub path: PathBuf,
    /// What the file tells of the holder.
    pub holder: Option<Holder>,
    /// What the kernel tells of the process that took the lock.
    pub owner: Option<Owner>,
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.holder, &self.owner) {
            (Some(holder), owner) => {
                write!(f, "agent {} (pid {}", holder.agent_name, holder.agent.pid)?;
                if holder.is_elsewhere() {
                    f.write_str(" of another container")?;
                }
                if let Some(uid) = owner.as_ref().and_then(|owner| owner.uid) {
                    write!(f, ", uid {uid}")?;
                }
                write!(f, "), job {}", holder.job)?;
            }
            (None, Some(owner)) => write!(f, "{owner}")?,
            (None, None) => f.write_str("a process that cannot be seen from here")?,
        }
        write!(f, ", by the lock file {}", self.path.display())
    }
}

fn file_name(device: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '.' { c } else { '_' };
    format!("{FILE_BEGINS}{}{FILE_ENDS}", device.chars().map(safe).collect::<String>())
}

/// Tries to take `device` now.
pub fn try_take(folder: &Path, device: &str) -> Result<Taken, LockError> {
    try_take_file(folder.join(file_name(device)))
}

fn try_take_file(path: PathBuf) -> Result<Taken, LockError> {
    match host_lock::try_lock(&path)? {
        Tried::Ours(file) => {
            let lock = DeviceLock { file, path };
            lock.write_note(b"")?;
            Ok(Taken::Ours(lock))
        }
        Tried::Taken(mut file) => {
            let mut note = Vec::new();
            (&mut file).take(NOTE_MAX_BYTES).read_to_end(&mut note).map_err(LockError::of("read", &path))?;
            let holder = serde_json::from_slice(&note).ok();
            Ok(Taken::Busy(Busy { holder, owner: Owner::of(&file), path }))
        }
    }
}

/// Tries to take every device of the host that ever was used, but for `own`, now, and names the holder in each; else says
/// who has one.
pub fn try_take_others(folder: &Path, own: &str, holder: &Holder) -> Result<Result<Vec<DeviceLock>, Busy>, LockError> {
    let own = file_name(own);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(LockError::of("read", folder))? {
        let name = entry.map_err(LockError::of("read", folder))?.file_name().to_string_lossy().into_owned();
        let is_device = name.starts_with(FILE_BEGINS) && name.ends_with(FILE_ENDS);
        names.extend(Some(name).filter(|name| is_device && *name != own));
    }
    // In one order, so that two who try at once do not hinder each other for ever.
    names.sort_unstable();
    let mut taken = Vec::with_capacity(names.len());
    for name in names {
        match try_take_file(folder.join(name))? {
            Taken::Ours(lock) => {
                lock.name_holder(holder)?;
                taken.push(lock);
            }
            Taken::Busy(busy) => return Ok(Err(busy)),
        }
    }
    Ok(Ok(taken))
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
        let mut file = &self.file;
        let written = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(note));
        written.map_err(LockError::of("write", &self.path))
    }
}

impl Holder {
    /// Whether its processes are numbered elsewhere, where nothing of them can be seen or ended from here.
    fn is_elsewhere(&self) -> bool {
        self.pid_namespace.is_some_and(|namespace| proc::pid_namespace() != Some(namespace))
    }

    /// Kills what a dead agent left running; `false` when its agent lives, or lives where nobody here can tell, and the
    /// device is rightly held.
    pub fn kill_if_orphaned(&self) -> bool {
        if self.is_elsewhere() || self.agent.is_alive() {
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
            let worker = worker.map(|worker| worker.pid);
            tracing::warn!(job, agent, worker, strays, "killed what a dead agent left on a device");
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
            pid_namespace: proc::pid_namespace(),
        }
    }

    fn busy(folder: &Path, device: &str) -> Busy {
        match try_take(folder, device).unwrap() {
            Taken::Busy(busy) => busy,
            Taken::Ours(_) => panic!("{device} is free"),
        }
    }

    #[test]
    fn a_device_is_taken_once_and_names_its_holder() {
        let folder = tempfile::tempdir().unwrap();
        let Taken::Ours(lock) = try_take(folder.path(), "GPU-1/../x").unwrap() else { panic!("free") };
        lock.name_holder(&holder("a")).unwrap();
        let seen = busy(folder.path(), "GPU-1/../x").holder.unwrap();
        assert_eq!(seen, holder("a"));
        assert!(!seen.kill_if_orphaned(), "its agent is this very process");
        assert!(matches!(try_take(folder.path(), "cpu0").unwrap(), Taken::Ours(_)));
        drop(lock);
        assert!(matches!(try_take(folder.path(), "GPU-1/../x").unwrap(), Taken::Ours(_)));
    }

    #[test]
    fn whoever_holds_a_device_is_named_with_or_without_a_note() {
        let folder = tempfile::tempdir().unwrap();
        let Taken::Ours(lock) = try_take(folder.path(), "cpu0").unwrap() else { panic!("free") };
        let (pid, uid) = (std::process::id(), rustix::process::getuid().as_raw());
        let silent = busy(folder.path(), "cpu0").to_string();
        assert!(silent.contains(&format!("process {pid} (")) && silent.contains(&format!("uid {uid}")), "{silent}");
        assert!(silent.ends_with("device-cpu0.lock"), "{silent}");
        lock.name_holder(&holder("a")).unwrap();
        let named = busy(folder.path(), "cpu0").to_string();
        assert!(named.starts_with(&format!("agent host (pid {pid}, uid {uid}), job j, by the lock file ")), "{named}");
    }

    #[test]
    fn a_host_is_taken_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        for device in ["cpu0", "GPU-1", "GPU-2"] {
            drop(try_take(folder.path(), device).unwrap());
        }
        std::fs::write(folder.path().join("core-3.lock"), b"").unwrap();
        let Taken::Ours(_own) = try_take(folder.path(), "cpu0").unwrap() else { panic!("free") };
        let Taken::Ours(used) = try_take(folder.path(), "GPU-2").unwrap() else { panic!("free") };
        used.name_holder(&holder("measures")).unwrap();
        let busy = try_take_others(folder.path(), "cpu0", &holder("compiles")).unwrap().unwrap_err();
        assert!(busy.to_string().contains("device-GPU-2.lock"), "{busy}");
        assert!(matches!(try_take(folder.path(), "GPU-1").unwrap(), Taken::Ours(_)), "nothing is kept while it waits");
        drop(used);
        let others = try_take_others(folder.path(), "cpu0", &holder("compiles")).unwrap().unwrap();
        assert_eq!(others.len(), 2);
        assert_eq!(busy_of(folder.path(), "GPU-1"), Some(holder("compiles")), "who comes meanwhile hears who has it");
    }

    fn busy_of(folder: &Path, device: &str) -> Option<Holder> {
        busy(folder, device).holder
    }

    /// Its numbers mean nothing here: the agent of another container is neither dead nor to be killed.
    #[test]
    fn a_holder_of_another_container_is_left_alone() {
        let dead = ProcessId { started_ticks: 1, ..ProcessId::current().unwrap() };
        let here = Holder { agent: dead, ..holder("nobody-carries-it") };
        assert!(here.kill_if_orphaned());
        let elsewhere = Holder { pid_namespace: Some(1), ..here.clone() };
        assert!(!elsewhere.kill_if_orphaned());
        // Agents before this one did not say where their numbers count.
        let mut note = serde_json::to_value(&here).unwrap();
        note.as_object_mut().unwrap().remove("pid_namespace");
        let before: Holder = serde_json::from_value(note).unwrap();
        assert!(before.kill_if_orphaned());
        let busy = Busy { path: "device-x.lock".into(), holder: Some(elsewhere), owner: None };
        assert!(busy.to_string().contains("of another container"), "{busy}");
    }
}
