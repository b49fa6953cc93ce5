//! Is a device still good? Asked after a failure that may be the device's own, before anything else runs on it.
//!
//! The device must still be found on this host, and a small process of its own must be able to use it: a broken driver
//! may hang or crash whoever asks. The process runs like a worker, under the device's lock, and dies with the agent.

use super::{
    Shared,
    process::{Worker, WorkerLimits, WorkerStart},
};
use crate::host::{
    devices::{DeviceError, DeviceSource},
    lock::DeviceLock,
    state::new_id,
};
use nix::sys::signal::Signal;
use planforge_client::blocking::blocking;
use planforge_types::fingerprint::{DeviceKind, DiscoveredDevice};
use std::{ffi::OsString, fmt, fs, io, sync::Arc, time::Duration};
use tokio::{io::AsyncReadExt as _, sync::Mutex, time::timeout};

/// Most bytes of the process's words that are read.
const WORDS_MAX_BYTES: u64 = 16 << 10;
/// How long a killed process may take to go; one that the driver holds never goes, and keeps the device locked.
const KILL_GRACE: Duration = Duration::from_secs(2);

/// How devices are looked at.
pub struct DeviceCheck {
    source: Arc<dyn DeviceSource>,
    /// Program and arguments, to which the device's id is added. It succeeds, or says why the device cannot be used.
    command: Vec<OsString>,
    /// Held while the host's devices are listed: a driver that hangs holds one thread, not one more at every look.
    listing: Arc<Mutex<()>>,
}

impl DeviceCheck {
    pub fn new(source: Arc<dyn DeviceSource>, command: Vec<OsString>) -> Self {
        Self { source, command, listing: Arc::default() }
    }

    /// The host's devices; does not come back while the driver hangs.
    async fn list(&self) -> Result<Vec<DiscoveredDevice>, DeviceError> {
        let (source, turn) = (self.source.clone(), self.listing.clone().lock_owned().await);
        blocking(move || {
            let found = source.devices();
            drop(turn);
            found
        })
        .await
    }
}

impl fmt::Debug for DeviceCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceCheck").field("command", &self.command).finish_non_exhaustive()
    }
}

/// Whether a device of this kind can break while its host goes on.
pub fn can_break(device: &DiscoveredDevice) -> bool {
    device.fingerprint.kind == DeviceKind::Gpu
}

/// Looks at the device; the error says why nothing can run on it.
pub async fn check(shared: &Shared, device: &DiscoveredDevice, lock: &DeviceLock) -> Result<(), String> {
    let limit = Duration::from_millis(shared.limits.device_check_ms);
    let late = || format!("the device did not answer within {} s", limit.as_secs_f64());
    let found = timeout(limit, shared.check.list()).await.map_err(|_| late())?;
    if !found.map_err(|error| error.to_string())?.iter().any(|found| found.id == device.id) {
        return Err("the device is not found any more".into());
    }
    let marker = format!("check.{}", new_id());
    let scratch = shared.scratch.join(&marker);
    let mut command = shared.check.command.clone();
    command.push(device.id.clone().into());
    let limits = WorkerLimits { file_bytes: shared.limits.file_bytes, address_space_bytes: None };
    let visible = device.fingerprint.visibility();
    let lock_folder = shared.lock_folder.clone();
    let start = WorkerStart { command, scratch: scratch.clone(), marker, limits, visible, lock_folder };
    let made = fs::create_dir_all(&scratch);
    let spawned = match made {
        Ok(()) => shared.spawner.spawn(start, lock).await,
        Err(error) => Err(error),
    };
    let looked = match spawned {
        Ok(process) => follow(process, limit).await.unwrap_or_else(|| Err(late())),
        Err(error) => Err(format!("the device cannot be looked at: {error}")),
    };
    if let Err(error) = fs::remove_dir_all(&scratch)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(folder = %scratch.display(), %error, "cannot remove the folder of a device check");
    }
    looked
}

/// Waits for the process and takes its verdict; `None` when it took too long and was killed.
async fn follow(mut process: Worker, limit: Duration) -> Option<Result<(), String>> {
    drop(process.stdin);
    let words = async {
        let mut words = Vec::new();
        if let Ok(stderr) = tokio::process::ChildStderr::from_std(process.stderr) {
            let _ = stderr.take(WORDS_MAX_BYTES).read_to_end(&mut words).await;
        }
        String::from_utf8_lossy(&words).into_owned()
    };
    let ended = timeout(limit, async { tokio::join!(words, &mut process.ended) }).await;
    let Ok((words, status)) = ended else {
        process.id.signal_group(Signal::SIGKILL);
        let _ = timeout(KILL_GRACE, process.ended).await;
        return None;
    };
    Some(match status {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => {
            let last = words.lines().rev().find(|line| !line.trim().is_empty());
            Err(last
                .map_or_else(|| format!("looking at it ended with {}", super::process::describe(status)), Into::into))
        }
        Ok(Err(error)) => Err(format!("looking at it was not seen to end: {error}")),
        Err(_) => Err("looking at it was not seen to end".into()),
    })
}
