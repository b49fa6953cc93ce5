//! The data folder of this machine's farm: who uses it, and the short way to its socket.
//!
//! Beside the coordinator's own files lies `clients.lock`: every process that uses the farm holds a shared lock on it,
//! so that a host sees whether others still need it. The kernel frees the lock however a process ends.

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

/// Longest path a Unix socket address holds, less the byte that ends it and the staging suffix that binding adds.
const SOCKET_PATH_MAX_BYTES: usize = 100;

const CLIENTS_LOCK: &str = "clients.lock";
const SOCKET: &str = "coordinator.sock";

/// An opened data folder. While it lives, this process counts as one that uses the farm.
#[derive(Debug)]
pub struct DataFolder {
    path: PathBuf,
    /// Keeps `/proc/self/fd/N` valid, the short way to a socket in a deep folder.
    handle: File,
    clients: File,
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
        let lock = path.join(CLIENTS_LOCK);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let clients = options.open(&lock).map_err(|e| Failure::io("open the lock", &lock, &e))?;
        let folder = Self { path, handle, clients };
        folder.appear()?;
        Ok(folder)
    }

    /// The folder, absolute and without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether another process uses the farm now.
    pub fn others_are_here(&self) -> Result<bool, Failure> {
        // Trading the shared lock for an exclusive one is not atomic, but only a host tries, and there is one host.
        let others = match self.clients.try_lock() {
            Ok(()) => false,
            Err(TryLockError::WouldBlock) => true,
            Err(TryLockError::Error(e)) => return Err(Failure::io("lock", &self.path.join(CLIENTS_LOCK), &e)),
        };
        self.appear()?;
        Ok(others)
    }

    /// A path to the socket that fits an address, however deep the folder lies. Valid while this value lives.
    pub fn socket_path(&self) -> PathBuf {
        let plain = self.path.join(SOCKET);
        if plain.as_os_str().len() <= SOCKET_PATH_MAX_BYTES {
            return plain;
        }
        PathBuf::from(format!("/proc/self/fd/{}", self.handle.as_raw_fd())).join(SOCKET)
    }

    fn appear(&self) -> Result<(), Failure> {
        self.clients.lock_shared().map_err(|e| Failure::io("lock", &self.path.join(CLIENTS_LOCK), &e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{UnixListener, UnixStream};

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
        let host = DataFolder::open(&deep).unwrap();
        let client = DataFolder::open(&deep).unwrap();
        let _listener = UnixListener::bind(host.socket_path()).unwrap();
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
