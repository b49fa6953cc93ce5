//! Lock files on which every process of a host meets: one for each device, one for each processor core.
//!
//! The kernel gives a file's lock to one open file at a time and takes it back when the last process that has it open
//! ends, however it ends. That holds across users, and across containers, network and process namespaces, as long as
//! both sides open the same file. A container has a `/run` and a `/tmp` of its own: containers of one host share these
//! locks only when they are given one folder, mounted where they look for it or named by `PLANFORGE_LOCK_DIR`.
//! `planforge doctor` says where that is not so.

use rustix::fs::{Access, Mode, OFlags};
use std::{
    fs::{self, File, Permissions, TryLockError},
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// Names the folder of the locks; agents hand it to their workers.
pub const FOLDER_VARIABLE: &str = "PLANFORGE_LOCK_DIR";
/// Where locks live without that, best first. `/run/lock` is emptied at boot and shared by all users.
pub const FOLDERS: [&str; 2] = ["/run/lock/planforge", "/tmp/planforge-locks"];
/// Everyone may make files, nobody may remove another's.
const FOLDER_MODE: u32 = 0o1777;
const FILE_MODE: u32 = 0o666;

/// Why a lock file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} the lock {}: {source}", path.display())]
pub struct LockError {
    pub action: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

impl LockError {
    /// Of `action` on `path`.
    pub fn of(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self { action, path, source }
    }
}

/// What trying a lock gave: the open file either way.
#[derive(Debug)]
pub enum Tried {
    /// Ours, until this and every inherited descriptor are closed.
    Ours(File),
    Taken(File),
}

/// The folder that was named, by whoever runs this process.
pub fn named_folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER_VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from)
}

/// The lock folder of this host: the one that was named, else the first that exists or can be made and takes files of ours.
///
/// # Errors
/// When there is none, or the named one cannot be used: nothing else takes its place, since others would not look there.
pub fn host_folder() -> Result<PathBuf, LockError> {
    match named_folder() {
        Some(folder) => prepare_folder(&folder).map(|()| folder),
        None => first_of(&FOLDERS.map(PathBuf::from)),
    }
}

/// One that exists comes before a better one that would have to be made: others use it already.
fn first_of(folders: &[PathBuf]) -> Result<PathBuf, LockError> {
    if let Some(used) = folders.iter().find(|folder| folder.is_dir() && takes_files(folder).is_ok()) {
        return Ok(used.clone());
    }
    let mut last = None;
    for folder in folders {
        match prepare_folder(folder) {
            Ok(()) => return Ok(folder.clone()),
            Err(error) => last = Some(error),
        }
    }
    Err(last.expect("there is at least one folder"))
}

/// Makes `folder` usable by every user of the host.
///
/// # Errors
/// When it cannot be made, or takes no files of ours.
pub fn prepare_folder(folder: &Path) -> Result<(), LockError> {
    match fs::create_dir(folder) {
        Ok(()) => fs::set_permissions(folder, Permissions::from_mode(FOLDER_MODE))
            .map_err(LockError::of("share the folder of", folder))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(LockError::of("make the folder of", folder)(error)),
    }
    takes_files(folder)
}

fn takes_files(folder: &Path) -> Result<(), LockError> {
    rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|error| LockError::of("write in the folder of", folder)(error.into()))
}

/// Tries to take the lock file `path` now.
///
/// # Errors
/// When the file cannot be opened, or its file system knows no locks.
pub fn try_lock(path: &Path) -> Result<Tried, LockError> {
    let file = open(path).map_err(LockError::of("open", path))?;
    match file.try_lock() {
        Ok(()) => Ok(Tried::Ours(file)),
        Err(TryLockError::WouldBlock) => Ok(Tried::Taken(file)),
        Err(TryLockError::Error(error)) => Err(LockError::of("take", path)(error)),
    }
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
                file.set_permissions(Permissions::from_mode(FILE_MODE))?;
                return Ok(file);
            }
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_lock_is_taken_once_and_free_again_when_it_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("core-0.lock");
        let Tried::Ours(held) = try_lock(&path).unwrap() else { panic!("free") };
        assert!(matches!(try_lock(&path).unwrap(), Tried::Taken(_)));
        drop(held);
        assert!(matches!(try_lock(&path).unwrap(), Tried::Ours(_)));
    }

    #[test]
    fn the_folder_and_files_are_everyones() {
        let folder = tempfile::tempdir().unwrap();
        let locks = folder.path().join("locks");
        prepare_folder(&locks).unwrap();
        prepare_folder(&locks).unwrap();
        let _lock = try_lock(&locks.join("x.lock")).unwrap();
        assert_eq!((mode(&locks), mode(&locks.join("x.lock"))), (0o1777, 0o666));
    }

    #[test]
    fn a_folder_that_others_use_comes_before_one_that_would_have_to_be_made() {
        let folder = tempfile::tempdir().unwrap();
        let (better, used) = (folder.path().join("better"), folder.path().join("used"));
        let folders = [better.clone(), used.clone()];
        assert_eq!(first_of(&folders).unwrap(), better);
        fs::remove_dir(&better).unwrap();
        fs::create_dir(&used).unwrap();
        assert_eq!(first_of(&folders).unwrap(), used);
        let nowhere = [folder.path().join("missing/locks")];
        assert!(first_of(&nowhere).unwrap_err().to_string().contains("missing/locks"));
    }
}
