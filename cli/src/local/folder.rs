//! The data folder of this machine's farm: who may host it, and where its socket is.
//!
//! | file | holds |
//! |---|---|
//! | `host.lock` | an exclusive lock of the one process that hosts the farm; the kernel frees it however that process ends |
//! | `clients.lock` | a shared lock of every process that uses the farm, so that a host sees whether others still need it |
//! | `farm.sock` | the host's socket; only this folder's owner can reach it |

use crate::failure::Failure;
use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io,
    os::{
        fd::AsRawFd as _,
        unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
};
use tokio::net::UnixListener;

/// Longest path a Unix socket address holds, less the byte that ends it.
const SOCKET_PATH_MAX_BYTES: usize = 107;

const HOST_LOCK: &str = "host.lock";
const CLIENTS_LOCK: &str = "clients.lock";
const SOCKET: &str = "farm.sock";

/// An opened data folder. While it lives, this process counts as one that uses the farm.
#[derive(Debug)]
pub struct DataFolder {
    path: PathBuf,
    /// Keeps `/proc/self/fd/N` valid, the short way to a socket in a deep folder.
    handle: File,
    clients: File,
}

/// The right to host the farm of a data folder; freed when dropped or when the process ends.
#[derive(Debug)]
pub struct HostLock {
    _file: File,
}

impl DataFolder {
    /// Opens the folder, made where it is missing, closed to other users.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let failed = |e: io::Error| Failure::io("use the data folder", path, &e);
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
        let path = fs::canonicalize(path).map_err(failed)?;
        let handle = File::open(&path).map_err(failed)?;
        let facts = handle.metadata().map_err(failed)?;
        if facts.uid() != rustix::process::geteuid().as_raw() {
            let message = format!("the data folder {} belongs to another user", path.display());
            return Err(Failure::usage(message).hint("name a folder of your own with --data DIR"));
        }
        if facts.mode() & 0o077 != 0 {
            // Whoever reaches the socket in it acts as its owner.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).map_err(failed)?;
        }
        let clients = lock_file(&path.join(CLIENTS_LOCK))?;
        let folder = Self { path, handle, clients };
        folder.appear()?;
        Ok(folder)
    }

    /// The folder, absolute and without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tries to become the host; `None` when another process is.
    pub fn try_host(&self) -> Result<Option<HostLock>, Failure> {
        let path = self.path.join(HOST_LOCK);
        let file = lock_file(&path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(HostLock { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(e)) => Err(Failure::io("lock", &path, &e)),
        }
    }

    /// Whether another process uses the farm now.
    pub fn others_are_here(&self) -> Result<bool, Failure> {
        // Trading the shared lock for an exclusive one is not atomic, but nobody waits for the exclusive one.
        match self.clients.try_lock() {
            Ok(()) => {
                self.appear()?;
                Ok(false)
            }
            Err(TryLockError::WouldBlock) => {
                self.appear()?;
                Ok(true)
            }
            Err(TryLockError::Error(e)) => Err(Failure::io("lock", &self.path.join(CLIENTS_LOCK), &e)),
        }
    }

    /// A path to the socket that fits an address, however deep the folder lies. Valid while this value lives.
    pub fn socket_path(&self) -> PathBuf {
        let plain = self.path.join(SOCKET);
        if plain.as_os_str().len() <= SOCKET_PATH_MAX_BYTES {
            return plain;
        }
        PathBuf::from(format!("/proc/self/fd/{}", self.handle.as_raw_fd())).join(SOCKET)
    }

    /// Listens on the socket. Only the host calls this, so a socket that lies there is a dead host's.
    pub fn listen(&self, _host: &HostLock) -> Result<UnixListener, Failure> {
        let path = self.socket_path();
        let failed = |e: io::Error| Failure::io("listen on", &self.path.join(SOCKET), &e);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(e)),
            _ => {}
        }
        UnixListener::bind(&path).map_err(failed)
    }

    fn appear(&self) -> Result<(), Failure> {
        self.clients.lock_shared().map_err(|e| Failure::io("lock", &self.path.join(CLIENTS_LOCK), &e))
    }
}

fn lock_file(path: &Path) -> Result<File, Failure> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.open(path).map_err(|e| Failure::io("open the lock", path, &e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::UnixStream;

    #[test]
    fn one_process_hosts_and_the_next_takes_over() {
        let root = tempfile::tempdir().unwrap();
        let first = DataFolder::open(&root.path().join("data")).unwrap();
        let second = DataFolder::open(&root.path().join("data")).unwrap();
        let lock = first.try_host().unwrap().expect("nobody hosts yet");
        assert!(second.try_host().unwrap().is_none());
        drop(lock);
        assert!(second.try_host().unwrap().is_some());
    }

    #[test]
    fn a_host_sees_whether_others_need_it() {
        let root = tempfile::tempdir().unwrap();
        let host = DataFolder::open(root.path()).unwrap();
        assert!(!host.others_are_here().unwrap());
        let client = DataFolder::open(root.path()).unwrap();
        assert!(host.others_are_here().unwrap());
        assert!(client.others_are_here().unwrap());
        drop(client);
        assert!(!host.others_are_here().unwrap());
    }

    #[tokio::test]
    async fn a_socket_in_a_deep_folder_can_be_reached() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("d".repeat(120));
        let folder = DataFolder::open(&deep).unwrap();
        let host = folder.try_host().unwrap().unwrap();
        // Twice: the second host finds the first one's dead socket.
        drop(folder.listen(&host).unwrap());
        let _listener = folder.listen(&host).unwrap();
        let client = DataFolder::open(&deep).unwrap();
        UnixStream::connect(client.socket_path()).await.unwrap();
        assert!(deep.join(SOCKET).exists());
    }

    #[test]
    fn the_folder_is_closed_to_others() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("data");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let folder = DataFolder::open(&path).unwrap();
        assert_eq!(fs::metadata(folder.path()).unwrap().mode() & 0o777, 0o700);
    }
}
