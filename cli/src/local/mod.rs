//! This machine's own farm: who hosts it, who is its client.
//!
//! The first process on a data folder locks it, runs the coordinator and listens on a socket there; later ones are its
//! clients. When the host ends, however it ends, the kernel frees its lock and the next client that notices becomes
//! the host and goes on with what the store holds.

mod folder;
mod host;

pub use folder::DataFolder;
pub use host::state_folder;

use crate::{failure::Failure, farm::Need, printer::Printer};
use planforge_client::{Client, Endpoint};
use planforge_engine_core::identity::Digest;
use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// How long to wait for a host that holds the lock to answer on its socket: a store is opened in far less.
const HOST_START_LIMIT: Duration = Duration::from_secs(1);
/// Between tries to become the host or to reach it.
const TRY_AGAIN: Duration = Duration::from_millis(20);

/// This process's part in the farm.
#[derive(Debug)]
pub struct Local {
    client: Client,
    folder: DataFolder,
}

impl Local {
    /// Reaches the host of the farm in `data`.
    pub async fn join(data: &Path, _need: Need) -> Result<Self, Failure> {
        let folder = DataFolder::open(data)?;
        let deadline = Instant::now() + HOST_START_LIMIT;
        loop {
            match Client::connect(Endpoint::unix(folder.socket_path()), None).await {
                Ok(client) => return Ok(Self { client, folder }),
                Err(error) if Instant::now() > deadline => return Err(error.into()),
                Err(_) => tokio::time::sleep(TRY_AGAIN).await,
            }
        }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Where the farm keeps a blob that it has.
    pub fn stored_blob(&self, _digest: Digest) -> Option<PathBuf> {
        None
    }

    /// Has an agent at work; whether that is news.
    pub async fn start_work(&mut self) -> Result<bool, Failure> {
        Ok(false)
    }

    /// Ends this process's part without waiting for what others want.
    pub async fn leave(self) {}

    /// Ends this process's part.
    pub async fn close(self, _printer: &Printer) {
        drop(self.folder);
    }
}
